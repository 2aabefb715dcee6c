/* SPDX-License-Identifier: Apache-2.0
 *
 * Writes the public session of a run for its event files: the session without paths, addresses and
 * credentials.
 */
#include <string.h>

#include "master/run/run_int.h"

static clv_code compute_session_digest(const clv_session_config *c, clv_sha256 *ret, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes full_text = {0};
  CLV_TRY(clv_session_config_write(c, &full_text, err));
  return clv_sha256_of(full_text.data, full_text.len, ret, err);
}

clv_code clv_run_write_public_session(const clv_session_config *c, clv_bytes *ret,
                                      clv_sha256 *ret_digest, clv_err *err) {
  CLV_TRY(compute_session_digest(c, ret_digest, err));
  return clv_session_config_write_public(c, ret, err);
}

clv_code clv_run_events_folder(const clv_session_config *c, clv_bytes *ret, clv_err *err) {
  const char *folder = c->log.tensorboard;
  if (!folder) return CLV_OK;
  if (strcmp(folder, "true") == 0)
    clv_bytes_printf(ret, "%s/tensorboard", c->checkpoint.dir);
  else
    clv_bytes_printf(ret, "%s/%s", folder, c->name);
  return ret->failed ? clv_fail(err, CLV_EXHAUSTED, "out of memory") : CLV_OK;
}
