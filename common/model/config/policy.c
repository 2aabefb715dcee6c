/* SPDX-License-Identifier: Apache-2.0
 *
 * egress.policy.yaml: parsing (clv_policy_config_parse), and the checks across keys.
 */
#include <stdlib.h>

#include "common/model/config/schema_int.h"

clv_code clv_policy_fail_at(const clv_policy_config *policy, clv_config_pos pos, clv_err *err,
                            const char *fmt, ...) {
  va_list ap;
  clv_yaml_source source = {policy->file, &policy->overrides};
  va_start(ap, fmt);
  clv_code code = clv_yaml_source_vfail(&source, pos, err, fmt, ap);
  va_end(ap);
  return code;
}

static clv_code check_shape(const clv_policy_config *c, clv_err *err) {
  for (size_t i = 0; i < c->largest_shape.n; i++)
    if (c->largest_shape.items[i] != (double)(int64_t)c->largest_shape.items[i])
      return clv_policy_fail_at(c, c->shape_pos, err, "'largest_shape' is of whole numbers, not %g",
                                c->largest_shape.items[i]);
  return CLV_OK;
}

void clv_policy_config_free(clv_policy_config *config) {
  if (!config) return;
  clv_schema_free_at(clv_policy_schema(), config);
  clv_text_list_clear(&config->overrides);
  free(config->file);
  free(config);
}

void clv_policy_config_freep(clv_policy_config **config) { clv_policy_config_free(*config); }

clv_code clv_policy_config_parse(const char *path, const char *text, size_t len,
                                 clv_policy_config **ret_config, clv_err *err) {
  CLV_AUTO(clv_policy_config_freep) clv_policy_config *c = NULL;
  CLV_TRY(clv_alloc(1, sizeof *c, &c, err));
  CLV_TRY(clv_strdup(path, &c->file, err));
  clv_yaml_source source = {c->file, &c->overrides};
  CLV_TRY(clv_config_build(clv_policy_schema(), &source, text, len, NULL, &c->overrides, c, err));
  CLV_TRY(check_shape(c, err));
  *ret_config = clv_steal(&c);
  return CLV_OK;
}
