/* SPDX-License-Identifier: Apache-2.0
 *
 * Fuzzes the meter that counts the frames of an accepted connection after TLS. The first byte says
 * where the other bytes are cut into two pieces. The reason for a refusal and the counts must be
 * the same for every cut, and an accepted connection must not be refused once all its counts are
 * credited.
 */
#include <string.h>

#include "common/net/tls/tls_int.h"
#include "tests/fuzz/never.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  clv_tls_frame_meter uncut, parts;
  if (size < 1) return 0;
  size_t step = (size_t)data[0] + 1;
  clv_tls_frame_meter_init(&uncut, 7);
  clv_tls_frame_meter_init(&parts, 7);
  const char *excess = clv_tls_frame_meter_charge(&uncut, data + 1, size - 1, 9), *part = NULL;
  for (size_t at = 1; at < size && !part; at += step)
    part = clv_tls_frame_meter_charge(&parts, data + at, CLV_MIN(step, size - at), 9);
  NEVER(excess != part);
  NEVER(!excess && memcmp(&uncut, &parts, sizeof uncut) != 0);
  clv_tls_frame_meter_credit_message(&uncut, size);
  for (int i = 0; i < CLV_TLS_BUCKETS; i++)
    clv_tls_frame_meter_credit(&uncut, (clv_tls_bucket)i, 1 << 30);
  NEVER(clv_tls_frame_meter_charge(&uncut, NULL, 0, UINT64_MAX) != NULL);
  return 0;
}
