/* SPDX-License-Identifier: Apache-2.0 */
#include "master/data/data.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  CLV_AUTO(clv_tensor_unrefp) clv_tensor *t = NULL;
  clv_err err;
  if (clv_idx_parse(data, size, "fuzz", 1 << 22, &t, &err) != CLV_OK) return 0;
  volatile uint8_t last = t->bytes ? ((const uint8_t *)t->data)[t->bytes - 1] : 0;
  (void)last;
  return 0;
}
