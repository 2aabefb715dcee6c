/* SPDX-License-Identifier: Apache-2.0
 *
 * Handles the secret of a run: 256 bits in run.key, with mode 0600. Without train.seed the seed is
 * derived from the secret. The secret also keys the digest of the configuration that the master
 * sends to workers.
 */
#include <string.h>

#include "master/run/run_int.h"

static clv_code append_key_path(const clv_run *r, clv_bytes *ret, clv_err *err) {
  clv_bytes_printf(ret, "%s/run.key", r->config->checkpoint.dir);
  return ret->failed ? clv_fail(err, CLV_EXHAUSTED, "out of memory") : CLV_OK;
}

static clv_code read_key(const clv_run *r, clv_sha256 *ret, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes path = {0}, text = {0};
  CLV_TRY(append_key_path(r, &path, err));
  CLV_TRY(clv_file_read(path.data, 256, &text, err));
  if (text.len && text.data[text.len - 1] == '\n') text.data[--text.len] = '\0';
  if (!text.len || !clv_sha256_parse(text.data, ret))
    return clv_fail(err, CLV_DATA_LOSS, "%s is not 64 hexadecimal digits: restore it from a copy",
                    path.data);
  return CLV_OK;
}

/* Draws a secret. Fails if the run resumes from checkpoints and its seed was derived from the
 * missing secret. */
static clv_code handle_missing_key(const clv_run *r, clv_sha256 *ret, clv_err *err) {
  const char *dir = r->config->checkpoint.dir;
  if (!r->o->resume || r->config->train.seed.is_given || !clv_checkpoint_has_any(dir))
    return clv_random_bytes(ret, sizeof *ret, err);
  return clv_fail(err, CLV_NOT_FOUND,
                  "%s has checkpoints, but no run.key, from which dropout and the order of the "
                  "records follow: copy it from where the run began, or give train.seed",
                  dir);
}

clv_code clv_run_resolve_key(clv_run *r, bool reads_existing, clv_err *err) {
  clv_err read_error;
  clv_code code = reads_existing ? read_key(r, &r->secret, &read_error) : CLV_NOT_FOUND;
  if (code == CLV_NOT_FOUND)
    CLV_TRY(handle_missing_key(r, &r->secret, err));
  else if (code != CLV_OK)
    return clv_fail(err, code, "%s", read_error.text);
  r->has_secret = true;
  r->effective_config = *r->config;
  r->config = &r->effective_config;
  clv_seed *seed = &r->effective_config.train.seed;
  if (seed->is_given) return CLV_OK;
  seed->is_drawn = true;
  return clv_key_derive("cleave seed of a run", &(clv_key){{0}}, &r->secret, sizeof r->secret,
                        &seed->key, err);
}

/* Leaves r->has_secret false if the folder has no key. The ledger, which lists weights that workers
 * know, then finds no layers of this run. */
clv_code clv_run_find_key(clv_run *r, clv_err *err) {
  if (r->has_secret || !clv_checkpoint_has_any(r->config->checkpoint.dir)) return CLV_OK;
  clv_code code = read_key(r, &r->secret, err);
  r->has_secret = code == CLV_OK;
  return code == CLV_NOT_FOUND ? CLV_OK : code;
}

clv_code clv_run_write_key(const clv_run *r, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes path = {0};
  char text[66];
  CLV_TRY(append_key_path(r, &path, err));
  clv_sha256_hex(&r->secret, text);
  text[64] = '\n';
  clv_code code = clv_file_write_durable(path.data, text, 65, 0600, err);
  explicit_bzero(text, sizeof text);
  return code;
}
