/* SPDX-License-Identifier: Apache-2.0
 *
 * Compares the cut of a checkpoint with the cut of a session: which stage of the checkpoint has
 * each parameter (clv_params_find_checkpoint_stages), whether each stage has its own files
 * (clv_blueprint_compare_cut), and whether files that stayed at workers are at the workers where
 * the session needs them (clv_blueprint_check_kept_files).
 */
#include <stdlib.h>
#include <string.h>

#include "master/plan/plan_int.h"

clv_code clv_checkpoint_parse_session(const clv_checkpoint *c, clv_session_config **ret,
                                      clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes text = {0};
  CLV_TRY(clv_checkpoint_read_file(c, CLV_SESSION_FILE, &text, err));
  return clv_session_config_parse(CLV_SESSION_FILE, text.data, text.len, NULL, ret, err);
}

clv_code clv_checkpoint_choose_weights(clv_checkpoint *c, int weights, clv_err *err) {
  CLV_AUTO(clv_session_config_freep) clv_session_config *config = NULL;
  if (weights != CLV_WEIGHTS_EMA) return CLV_OK;
  CLV_TRY(clv_checkpoint_parse_session(c, &config, err));
  if (!(config->train.ema > 0))
    return clv_fail(err, CLV_INVALID,
                    "%s has no averages of the weights, because its run trained without train.ema: "
                    "leave out --weights ema",
                    clv_checkpoint_path(c));
  clv_checkpoint_use_ema(c);
  return CLV_OK;
}

clv_code clv_params_find_checkpoint_stages(const clv_params *p, const clv_checkpoint *c,
                                           uint32_t **ret_stages, clv_err *err) {
  CLV_AUTO(clv_freep) const char **names = NULL;
  CLV_AUTO(clv_freep) uint32_t *stages = NULL;
  CLV_TRY(clv_alloc((size_t)p->n, sizeof *names, &names, err));
  CLV_TRY(clv_alloc((size_t)p->n, sizeof *stages, &stages, err));
  for (int k = 0; k < p->n; k++) names[k] = p->list[k].name;
  CLV_TRY(clv_checkpoint_find_stages(c, names, (size_t)p->n, stages, err));
  *ret_stages = clv_steal(&stages);
  return CLV_OK;
}

/* ---- comparing the cut of a checkpoint ------------------------------------------------------- */

/* True if stage i of the checkpoint had its fixed (frozen) weights in an artifact, a file of its
 * worker, and the stage has the same artifact now. checkpoint_config: session of the checkpoint;
 * NULL: that session cannot be read, and is assumed to equal the present one. */
static bool had_same_artifact(const clv_session_config *checkpoint_config,
                              const clv_stage_spec *present_spec, uint32_t i) {
  if (!checkpoint_config) return true;
  const char *checkpoint_sha256 =
      i < checkpoint_config->n_stages ? checkpoint_config->stages[i].weights_sha256 : NULL;
  return checkpoint_sha256 && checkpoint_config->stages[i].weights_artifact &&
         present_spec->weights_sha256 &&
         strcmp(checkpoint_sha256, present_spec->weights_sha256) == 0;
}

/* True if stage i restores the parameter from the file of stage i, or has the parameter in the same
 * artifact of its worker as before. checkpoint_stage: stage whose file has the parameter;
 * checkpoints of release 0.7 also have the fixed (frozen) parameters. */
static bool is_at_same_stage(const clv_blueprint *b, const clv_session_config *checkpoint_config,
                             uint32_t i, const clv_param *p, uint32_t checkpoint_stage) {
  const clv_stage_spec *spec = &b->config->stages[i];
  if (clv_is_param_checkpointed(spec, p)) return checkpoint_stage == i;
  return (checkpoint_stage == i || checkpoint_stage == CLV_CHECKPOINT_NO_STAGE) &&
         had_same_artifact(checkpoint_config, spec, i);
}

clv_code clv_blueprint_compare_cut(const clv_blueprint *b, const clv_checkpoint *c, bool *ret,
                                   clv_err *err) {
  CLV_AUTO(clv_session_config_freep) clv_session_config *checkpoint_config = NULL;
  clv_err why;
  if (clv_checkpoint_parse_session(c, &checkpoint_config, &why) != CLV_OK) checkpoint_config = NULL;
  *ret = clv_checkpoint_manifest(c)->stages == b->n_stages;
  for (uint32_t i = 0; *ret && i < b->n_stages; i++) {
    const clv_params *p = b->stages[i].params;
    CLV_AUTO(clv_freep) uint32_t *stages = NULL;
    CLV_TRY(clv_params_find_checkpoint_stages(p, c, &stages, err));
    for (int k = 0; *ret && k < p->n; k++)
      *ret = is_at_same_stage(b, checkpoint_config, i, &p->list[k], stages[k]);
  }
  return CLV_OK;
}

/* ---- checking the files of a checkpoint that stayed at workers ------------------------------- */

/* True if `identity` is the identity of `worker`, or of one of that worker's spares. */
static bool is_worker_or_spare(const clv_session_config *c, int worker, const char *identity) {
  if (worker < 0) return false;
  const clv_remote_spec *w = &c->workers[worker];
  bool is_same = strcmp(w->identity, identity) == 0;
  for (size_t i = 0; i < w->spares.n; i++)
    for (size_t k = 0; k < c->n_workers; k++)
      is_same |= strcmp(c->workers[k].name, w->spares.items[i]) == 0 &&
                 strcmp(c->workers[k].identity, identity) == 0;
  return is_same;
}

clv_code clv_blueprint_check_kept_files(const clv_blueprint *b, const clv_checkpoint *c,
                                        clv_err *err) {
  const clv_manifest *m = clv_checkpoint_manifest(c);
  bool has_same_cut;
  CLV_TRY(clv_blueprint_compare_cut(b, c, &has_same_cut, err));
  for (uint32_t i = 0; i < 2 * m->stages; i++) {
    const clv_manifest_file *f = clv_manifest_find_stage(m, i / 2, i % 2);
    if (!f || !f->keeper_identity) continue;
    if (has_same_cut &&
        is_worker_or_spare(b->config, b->stages[i / 2].planned_worker, f->keeper_identity))
      continue;
    return clv_fail(err, CLV_INVALID,
                    "%s: %s stayed at '%s', and the session has another cut or another place for "
                    "its stage: gather the files first with `cleave-master checkpoint gather %s`",
                    clv_checkpoint_path(c), f->name, f->keeper_identity, b->config->file);
  }
  return CLV_OK;
}
