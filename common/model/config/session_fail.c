/* SPDX-License-Identifier: Apache-2.0
 *
 * Errors of session.yaml, with file, line and column (clv_session_fail_at).
 */
#include <stdarg.h>

#include "common/model/config/schema_int.h"

clv_code clv_session_fail_at(const clv_session_config *config, clv_config_pos pos, clv_err *err,
                             const char *fmt, ...) {
  va_list ap;
  clv_yaml_source source = {config->file, &config->overrides};
  va_start(ap, fmt);
  clv_code code = clv_yaml_source_vfail(&source, pos, err, fmt, ap);
  va_end(ap);
  return code;
}
