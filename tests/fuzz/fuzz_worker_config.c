/* SPDX-License-Identifier: Apache-2.0
 *
 * Fuzzes the parser of worker files with overrides (fuzz_config.h). An accepted file is written as
 * text that is accepted again and written as the same text.
 */
#include <stdlib.h>
#include <string.h>

#include "tests/fuzz/fuzz_config.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_round_trip(const clv_worker_config *config) {
  CLV_AUTO(clv_bytes_done) clv_bytes first = {0}, second = {0};
  CLV_AUTO(clv_worker_config_freep) clv_worker_config *parsed_again = NULL;
  NEVER(clv_worker_config_write(config, &first, NULL));
  NEVER(clv_worker_config_parse("/elsewhere/x.yaml", first.data, first.len, NULL, &parsed_again,
                                NULL));
  NEVER(clv_worker_config_write(parsed_again, &second, NULL));
  NEVER(first.len != second.len || memcmp(first.data, second.data, first.len) != 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  config_input in;
  split_config_input(data, size, &in);
  clv_worker_config *config = NULL;
  clv_err err = {0};
  clv_code code =
      clv_worker_config_parse("/etc/cleave/w.yaml", in.text, in.len, &in.over, &config, &err);
  NEVER((code == CLV_OK) != (config != NULL) || (code != CLV_OK && !err.text[0]));
  if (config) check_round_trip(config);
  clv_worker_config_free(config);
  return 0;
}
