/* SPDX-License-Identifier: Apache-2.0
 *
 * Fuzzes the parser of egress.policy.yaml. The text written from an accepted file must be accepted
 * again and be written as the same text. An accepted policy must have all limits.
 */
#include <stdlib.h>
#include <string.h>

#include "common/model/config/config.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_round_trip(const clv_policy_config *config) {
  CLV_AUTO(clv_bytes_done) clv_bytes first = {0}, second = {0};
  CLV_AUTO(clv_policy_config_freep) clv_policy_config *parsed_again = NULL;
  if (clv_policy_config_write(config, &first, NULL)) abort();
  if (clv_policy_config_parse("/elsewhere/p.yaml", first.data, first.len, &parsed_again, NULL))
    abort();
  if (clv_policy_config_write(parsed_again, &second, NULL)) abort();
  if (first.len != second.len || memcmp(first.data, second.data, first.len) != 0) abort();
}

static void check_limits(const clv_policy_config *config) {
  if (config->version != 1 || !config->workers.n || !config->dtypes.n) abort();
  if (!config->largest_shape.n || !config->bytes_per_epoch) abort();
  for (size_t i = 0; i < config->largest_shape.n; i++)
    if (!(config->largest_shape.items[i] >= 1)) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  CLV_AUTO(clv_policy_config_freep) clv_policy_config *config = NULL;
  clv_err err = {0};
  clv_code code =
      clv_policy_config_parse("/etc/cleave/p.yaml", (const char *)data, size, &config, &err);
  if ((code == CLV_OK) != (config != NULL) || (code != CLV_OK && !err.text[0])) abort();
  if (!config) return 0;
  check_round_trip(config);
  check_limits(config);
  return 0;
}
