/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/store/store.h"

#include <string.h>

static clv_code open_checked(const clv_worker_config *config, const clv_artifact_spec *a,
                             clv_weights_file **ret, clv_err *err) {
  clv_sha256 stated;
  CLV_AUTO(clv_weights_closep) clv_weights_file *f = NULL;
  clv_err why;
  if (!clv_sha256_parse(a->sha256, &stated))
    return clv_worker_fail_at(config, a->pos, err, "artifact '%s': sha256 is not 64 hex digits",
                              a->name);
  if (clv_weights_open(a->file, 0, &f, &why) != CLV_OK)
    return clv_worker_fail_at(config, a->pos, err, "artifact '%s': %s", a->name, why.text);
  if (memcmp(&stated, clv_weights_digest(f), sizeof stated) != 0) {
    char hex[65];
    clv_sha256_hex(clv_weights_digest(f), hex);
    return clv_worker_fail_at(config, a->pos, err, "artifact '%s': %s has SHA-256 %s", a->name,
                              a->file, hex);
  }
  *ret = clv_steal(&f);
  return CLV_OK;
}

clv_code clv_store_check(const clv_worker_config *config, clv_err *err) {
  for (size_t i = 0; i < config->n_artifacts; i++) {
    CLV_AUTO(clv_weights_closep) clv_weights_file *f = NULL;
    CLV_TRY(open_checked(config, &config->artifacts[i], &f, err));
  }
  return CLV_OK;
}

clv_code clv_store_open(const clv_worker_config *config, const char *name, const clv_sha256 *want,
                        clv_weights_file **ret, clv_err *err) {
  for (size_t i = 0; i < config->n_artifacts; i++) {
    const clv_artifact_spec *a = &config->artifacts[i];
    if (strcmp(a->name, name) != 0) continue;
    clv_err why;
    CLV_AUTO(clv_weights_closep) clv_weights_file *f = NULL;
    if (open_checked(config, a, &f, &why) != CLV_OK) {
      clv_log(CLV_LOG_DEBUG, "%s", why.text); /* the path is not for the peer */
      return clv_fail(err, CLV_DATA_LOSS, "artifact '%s' is damaged on the worker's disk", name);
    }
    if (memcmp(want, clv_weights_digest(f), sizeof *want) != 0)
      return clv_fail(err, CLV_DATA_LOSS, "artifact '%s' has another SHA-256 than the session says",
                      name);
    *ret = clv_steal(&f);
    return CLV_OK;
  }
  return clv_fail(err, CLV_NOT_FOUND, "no artifact '%s' on this worker", name);
}
