/* SPDX-License-Identifier: Apache-2.0
 *
 * The session of a run for those who look at its curves.
 */
#include <stdlib.h>
#include <string.h>

#include "master/run/run_int.h"

static clv_code digest_of(const clv_session_config *c, clv_sha256 *ret, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes whole = {0};
  CLV_TRY(clv_session_config_write(c, &whole, err));
  return clv_sha256_of(whole.data, whole.len, ret, err);
}

/* A shallow copy from which what names places is left out; nothing of it is freed. */
clv_code clv_run_public_session(const clv_session_config *c, clv_bytes *ret, clv_sha256 *ret_digest,
                                clv_err *err) {
  CLV_AUTO(clv_freep) clv_stage_spec *stages = NULL;
  clv_session_config shown = *c;
  CLV_TRY(digest_of(c, ret_digest, err));
  CLV_TRY(clv_alloc(c->n_stages, sizeof *stages, &stages, err));
  for (size_t i = 0; i < c->n_stages; i++) {
    stages[i] = c->stages[i];
    stages[i].weights_file = stages[i].weights_folder = stages[i].lora.from = NULL;
  }
  shown.stages = stages;
  shown.tls = (clv_tls_config){0};
  shown.n_workers = 0;
  shown.data.root = NULL;
  shown.data.train.n = shown.data.test.n = 0;
  shown.train.seed = (clv_seed){0};
  shown.pipeline.file = NULL;
  shown.log.tensorboard = shown.checkpoint.dir = shown.run.dir = NULL;
  return clv_session_config_write(&shown, ret, err);
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
