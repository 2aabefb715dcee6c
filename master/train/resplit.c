/* SPDX-License-Identifier: Apache-2.0
 *
 * Restores a checkpoint under a session with another cut. A parameter has the name of its layer in
 * the full model, and a moment the name of its parameter, so both are looked up by name in the
 * files of all stages (common/model/weights/checkpoint_tensors.c). A tensor goes from its file to
 * the node of its stage in pieces, as in state.c. The count `step` of an optimiser belongs to no
 * parameter: a stage takes it from the files that its parameters come from.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "master/train/train_int.h"

clv_code clv_trainer_check_moved_layers(const clv_trainer *t, const clv_checkpoint *c,
                                        clv_err *err) {
  CLV_AUTO(clv_moved_layers_done) clv_moved_layers m = {0};
  CLV_TRY(clv_moved_layers_find(t->b, c, &m, err));
  return clv_moved_layers_check(t->b, &m, err);
}

/* ---- names of tensors in messages ------------------------------------------------------------ */

enum { MAX_LISTED_NAMES = 3 };

/* Names for a message: "'a', 'b', 'c' and 4 more". */
typedef struct name_list {
  clv_bytes text;
  size_t n;
} name_list;

static void free_name_list(name_list *l) { clv_bytes_done(&l->text); }

static void add_name(name_list *l, const char *name) {
  if (l->n++ < MAX_LISTED_NAMES)
    clv_bytes_printf(&l->text, "%s'%.120s'", l->text.len ? ", " : "", name);
}

static const char *finish_name_list(name_list *l) {
  if (l->n > MAX_LISTED_NAMES) clv_bytes_printf(&l->text, " and %zu more", l->n - MAX_LISTED_NAMES);
  return l->text.data ? l->text.data : "";
}

/* ---- lists of the tensors to restore --------------------------------------------------------- */

/* Tensors of one kind for one stage. They come from the files of several stages; fixed weights may
 * come from the file or folder of the session. */
typedef struct stage_tensors {
  cleave_state_list moment_names; /* names of the optimiser's moments, as the stage has them */
  clv_weights_file *file;
  clv_stage_folder folder;
  clv_weights_want *items;   /* [n] the tensors as the stage takes them */
  clv_state_origin *origins; /* [n] origin of each tensor */
  size_t n;
} stage_tensors;

/* A checkpoint that is restored under another cut. */
typedef struct resplit {
  clv_trainer *t;
  const clv_checkpoint *c;
  clv_session_config *checkpoint_config; /* session of the checkpoint; NULL: it cannot be read */
  clv_checkpoint_tensors weights, moments;
  bool *is_weight_used, *is_moment_used; /* [weights.n], [moments.n] a stage takes the tensor */
  stage_tensors *stage_weights, *stage_moments; /* [n_stages] tensors of each stage */
} resplit;

static void free_stage_tensors(stage_tensors *s) {
  cleave_state_list_done(&s->moment_names);
  clv_weights_close(s->file);
  clv_stage_folder_done(&s->folder);
  free(s->items);
  free(s->origins);
}

static void free_resplit(resplit *r) {
  for (uint32_t i = 0; r->stage_weights && i < r->t->b->n_stages; i++)
    free_stage_tensors(&r->stage_weights[i]);
  for (uint32_t i = 0; r->stage_moments && i < r->t->b->n_stages; i++)
    free_stage_tensors(&r->stage_moments[i]);
  clv_checkpoint_tensors_close(&r->weights);
  clv_checkpoint_tensors_close(&r->moments);
  clv_session_config_free(r->checkpoint_config);
  free(r->stage_weights);
  free(r->stage_moments);
  free(r->is_weight_used);
  free(r->is_moment_used);
}

static clv_code make_stage_tensors(stage_tensors *s, size_t max_tensors, clv_err *err) {
  CLV_TRY(clv_alloc(max_tensors, sizeof *s->items, &s->items, err));
  return clv_alloc(max_tensors, sizeof *s->origins, &s->origins, err);
}

static bool can_read_as(const clv_weights_entry *e, const clv_weights_want *w) {
  bool can_narrow = w->dtype == CLV_BF16 && e->dtype == CLV_F32;
  return (e->dtype == w->dtype || can_narrow) && clv_shape_equal(&e->shape, &w->shape);
}

static clv_code fail_mismatch(const clv_weights_entry *e, const clv_weights_want *w, clv_err *err) {
  char stored_shape[160], needed_shape[160];
  return clv_fail(
      err, CLV_INVALID,
      "'%.120s' is %s %s in the checkpoint, and %s %s in the session: restore the layer, "
      "or start over with --fresh",
      w->name, e->type_name, clv_shape_format(&e->shape, stored_shape, sizeof stored_shape),
      clv_dtype_name(w->dtype), clv_shape_format(&w->shape, needed_shape, sizeof needed_shape));
}

/* Adds the tensor `w` to the tensors of a stage. If the checkpoint lacks the tensor, adds its name
 * to `missing`. */
static clv_code take_tensor(const clv_checkpoint_tensors *source, bool *is_used, clv_weights_want w,
                            stage_tensors *s, name_list *missing, clv_err *err) {
  const clv_checkpoint_tensor *x = clv_checkpoint_tensors_find(source, w.name);
  if (!x) {
    add_name(missing, w.name);
    return CLV_OK;
  }
  if (!can_read_as(x->entry, &w)) return fail_mismatch(x->entry, &w, err);
  is_used[x - source->tensors] = true;
  s->items[s->n] = w;
  s->origins[s->n++] = (clv_state_origin){.file = x->file, .entry = x->entry};
  return CLV_OK;
}

/* ---- finding weights in the checkpoint ------------------------------------------------------- */

/* Appends the artifacts (files of weights at workers) with weights that the checkpoint lacks. */
static void describe_artifacts(const resplit *r, clv_bytes *out) {
  for (size_t i = 0; r->checkpoint_config && i < r->checkpoint_config->n_stages; i++) {
    const clv_stage_spec *s = &r->checkpoint_config->stages[i];
    if (s->weights_artifact)
      clv_bytes_printf(out, "%s'%.60s' (sha256 %.64s) of stage '%.40s' at %.40s",
                       out->len ? ", " : "", s->weights_artifact,
                       s->weights_sha256 ? s->weights_sha256 : "not given", s->name, s->at);
  }
}

static clv_code fail_missing_weights(const resplit *r, name_list *missing, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes artifacts = {0};
  const char *names = finish_name_list(missing);
  describe_artifacts(r, &artifacts);
  if (artifacts.len)
    return clv_fail(err, CLV_INVALID,
                    "the checkpoint lacks %s, whose fixed values are in the artifact %s: give this "
                    "stage that artifact of its worker, or as weights.file or folder of the "
                    "master, with the same sha256",
                    names, artifacts.data);
  return clv_fail(err, CLV_INVALID, "the checkpoint lacks %s: its model is another one", names);
}

/* Returns true if a stage of the checkpoint had its fixed weights from a worker's artifact (file of
 * weights) with the same digest as in `spec`. */
static bool has_same_source(const resplit *r, const clv_stage_spec *spec) {
  bool has_same = false;
  for (size_t i = 0;
       r->checkpoint_config && spec->weights_sha256 && i < r->checkpoint_config->n_stages; i++) {
    const clv_stage_spec *s = &r->checkpoint_config->stages[i];
    has_same |= s->weights_artifact && s->weights_sha256 &&
                strcmp(s->weights_sha256, spec->weights_sha256) == 0;
  }
  return has_same;
}

static size_t find_in_folder(const clv_stage_folder *f, const char *name) {
  for (size_t i = 0; i < f->n; i++)
    if (strcmp(f->wanted_tensors[i].name, name) == 0) return f->folder_indexes[i];
  return CLV_WEIGHTS_NONE;
}

/* Finds fixed parameters, which the run of the checkpoint took from a worker's artifact (file of
 * weights), in the session's file or folder with the same digest. missing: parameters that the
 * checkpoint lacks; the function removes those that it finds. */
static clv_code find_in_session_files(resplit *r, uint32_t stage, name_list *missing,
                                      clv_err *err) {
  const clv_blueprint *b = r->t->b;
  const clv_stage_spec *spec = &r->t->config->stages[stage];
  const clv_params *p = b->stages[stage].params;
  stage_tensors *s = &r->stage_weights[stage];
  CLV_AUTO(clv_freep) const clv_weights_entry **found = NULL;
  CLV_AUTO(clv_bytes_done) clv_bytes notes = {0};
  if (!clv_stage_has_master_weights(spec) || !has_same_source(r, spec)) return CLV_OK;
  if (spec->weights_file)
    CLV_TRY(clv_stage_file_open(b, stage, &s->file, &found, &notes, err));
  else
    CLV_TRY(clv_stage_folder_open(b, stage, &s->folder, &notes, err));
  free_name_list(missing);
  *missing = (name_list){0};
  for (int k = 0; k < p->n; k++) {
    const clv_param *x = &p->list[k];
    if (clv_checkpoint_tensors_find(&r->weights, x->name)) continue;
    clv_state_origin origin = {.file = s->file, .folder = s->folder.folder};
    if (s->file) origin.entry = found[k];
    if (s->folder.folder) origin.index = find_in_folder(&s->folder, x->name);
    if (!x->is_fixed || (s->file && !origin.entry) || origin.index == CLV_WEIGHTS_NONE) {
      add_name(missing, x->name);
      continue;
    }
    s->items[s->n] = (clv_weights_want){x->name, x->dtype, x->shape, false};
    s->origins[s->n++] = origin;
  }
  return CLV_OK;
}

/* Checks a stage with fixed weights in an artifact (file of weights at its worker). The checkpoint
 * must not have these weights, and its run must have read them from the same artifact. */
static clv_code check_artifact(const resplit *r, uint32_t stage, clv_err *err) {
  const clv_params *p = r->t->b->stages[stage].params;
  const clv_stage_spec *spec = &r->t->config->stages[stage];
  CLV_AUTO(free_name_list) name_list replaced = {0}, left_out = {0};
  CLV_AUTO(clv_bytes_done) clv_bytes artifacts = {0};
  for (int k = 0; k < p->n; k++)
    if (!clv_is_param_checkpointed(spec, &p->list[k]))
      add_name(clv_checkpoint_tensors_find(&r->weights, p->list[k].name) ? &replaced : &left_out,
               p->list[k].name);
  if (replaced.n)
    return clv_fail(err, CLV_INVALID,
                    "the checkpoint has %s, which this stage would take from the artifact '%.60s': "
                    "leave weights.artifact out, and the master sends those of the checkpoint",
                    finish_name_list(&replaced), spec->weights_artifact);
  if (!left_out.n || has_same_source(r, spec)) return CLV_OK;
  describe_artifacts(r, &artifacts);
  return clv_fail(err, CLV_INVALID,
                  "this stage would take %s from the artifact '%.60s' (sha256 %.64s), but the run "
                  "has trained with %s",
                  finish_name_list(&left_out), spec->weights_artifact, spec->weights_sha256,
                  artifacts.len ? (const char *)artifacts.data : "weights of another source");
}

static clv_code find_weights(resplit *r, uint32_t stage, clv_err *err) {
  const clv_params *p = r->t->b->stages[stage].params;
  stage_tensors *s = &r->stage_weights[stage];
  CLV_AUTO(free_name_list) name_list missing = {0};
  CLV_TRY(check_artifact(r, stage, err));
  CLV_TRY(make_stage_tensors(s, (size_t)p->n, err));
  for (int k = 0; k < p->n; k++) {
    const clv_param *x = &p->list[k];
    if (!clv_is_param_checkpointed(&r->t->config->stages[stage], x)) continue;
    CLV_TRY(take_tensor(&r->weights, r->is_weight_used,
                        (clv_weights_want){x->name, x->dtype, x->shape, false}, s, &missing, err));
  }
  if (missing.n) CLV_TRY(find_in_session_files(r, stage, &missing, err));
  return missing.n ? fail_missing_weights(r, &missing, err) : CLV_OK;
}

/* ---- finding the optimiser's state in the checkpoint ----------------------------------------- */

/* Finds the number of steps that the optimiser has taken for all learning parameters of a stage.
 * The parameters come from several files, whose counts may differ, because a module that gets no
 * gradient takes no step. A stage has a single count, so different counts are an error. */
static clv_code find_step_count(const resplit *r, uint32_t stage, int64_t *ret, clv_err *err) {
  const clv_params *p = r->t->b->stages[stage].params;
  const clv_checkpoint_tensor *first = NULL;
  for (int k = 0; k < p->n; k++) {
    if (!p->list[k].trainable || p->list[k].is_fixed) continue;
    const clv_checkpoint_tensor *x = clv_checkpoint_tensors_find(&r->weights, p->list[k].name);
    int64_t step;
    if (!x || (first && x->stage == first->stage)) continue;
    CLV_TRY(clv_checkpoint_tensors_read_step(&r->moments, x->stage, &step, err));
    if (first && step != *ret)
      return clv_fail(err, CLV_INVALID,
                      "the optimiser has taken %lld steps for '%.120s' and %lld for '%.120s': a "
                      "stage has one count, so leave these two layers in different stages",
                      (long long)*ret, first->entry->name, (long long)step, x->entry->name);
    first = x;
    *ret = step;
  }
  return CLV_OK;
}

static clv_code find_moments(resplit *r, uint32_t stage, clv_err *err) {
  stage_tensors *s = &r->stage_moments[stage];
  CLV_AUTO(free_name_list) name_list missing = {0};
  clv_trainer *t = r->t;
  int64_t step = 0;
  CLV_TRY_API(cleave_state_list_of(t->modules[stage], CLEAVE_STATE_OPTIMIZER, &s->moment_names,
                                   CLV_API_ERROR));
  CLV_TRY(make_stage_tensors(s, s->moment_names.n, err));
  CLV_TRY(find_step_count(r, stage, &step, err));
  for (size_t i = 0; i < s->moment_names.n; i++) {
    const clv_weights_want *w = &s->moment_names.items[i];
    /* an average that the checkpoint lacks begins with its parameter, which the node already has */
    if (clv_optim_is_ema(w->name) && !clv_checkpoint_tensors_find(&r->moments, w->name)) continue;
    if (strcmp(w->name, CLV_STEP_NAME) != 0) {
      CLV_TRY(take_tensor(&r->moments, r->is_moment_used, *w, s, &missing, err));
      continue;
    }
    s->items[s->n] = *w;
    s->origins[s->n++] = (clv_state_origin){.value = step};
  }
  if (!missing.n) return CLV_OK;
  return clv_fail(err, CLV_INVALID,
                  "the checkpoint lacks %s of the optimiser: train.optimizer or the frozen layers "
                  "are others; change these under the cut of the checkpoint",
                  finish_name_list(&missing));
}

/* ---- restoring all stages -------------------------------------------------------------------- */

/* Fails if the checkpoint has tensors that no stage of the session has taken. */
static clv_code check_all_used(const clv_checkpoint_tensors *t, const bool *is_used,
                               const char *reason, clv_err *err) {
  CLV_AUTO(free_name_list) name_list unused = {0};
  for (size_t i = 0; i < t->n; i++)
    if (!is_used[i]) add_name(&unused, t->tensors[i].entry->name);
  if (!unused.n) return CLV_OK;
  return clv_fail(err, CLV_INVALID,
                  "the checkpoint has %s, which no stage of the session takes: %s",
                  finish_name_list(&unused), reason);
}

static bool has_moments(const resplit *r, uint32_t stage) {
  return r->t->b->stages[stage].n_learning_params && r->t->optimizer;
}

/* Finds the tensors of all stages before the first of them is sent. */
static clv_code find_tensors(resplit *r, clv_err *err) {
  clv_trainer *t = r->t;
  for (uint32_t i = 0; i < t->b->n_stages; i++) {
    clv_code code = find_weights(r, i, err);
    if (code == CLV_OK && has_moments(r, i)) code = find_moments(r, i, err);
    if (code != CLV_OK) return clv_err_prefix(err, "stage '%s'", t->config->stages[i].name);
  }
  for (size_t i = 0; i < r->moments.n && !(t->config->train.ema > 0); i++)
    r->is_moment_used[i] |= clv_optim_is_ema(r->moments.tensors[i].entry->name);
  CLV_TRY(check_all_used(&r->weights, r->is_weight_used, "its model is another one", err));
  return check_all_used(&r->moments, r->is_moment_used,
                        "its layer is frozen now, or train.optimizer is another one; change these "
                        "under the cut of the checkpoint",
                        err);
}

static clv_code send_stage(resplit *r, uint32_t i, clv_err *err) {
  stage_tensors *w = &r->stage_weights[i], *m = &r->stage_moments[i];
  CLV_TRY(clv_trainer_send_state(r->t, i, CLEAVE_STATE_WEIGHTS, w->items, w->origins, w->n, err));
  if (!has_moments(r, i)) return CLV_OK;
  return clv_trainer_send_state(r->t, i, CLEAVE_STATE_OPTIMIZER, m->items, m->origins, m->n, err);
}

static clv_code open_resplit(resplit *r, clv_err *err) {
  uint32_t n = r->t->b->n_stages;
  clv_err reason;
  if (clv_checkpoint_parse_session(r->c, &r->checkpoint_config, &reason) != CLV_OK)
    r->checkpoint_config = NULL;
  CLV_TRY(clv_alloc(n, sizeof *r->stage_weights, &r->stage_weights, err));
  CLV_TRY(clv_alloc(n, sizeof *r->stage_moments, &r->stage_moments, err));
  CLV_TRY(clv_checkpoint_open_tensors(r->c, false, &r->weights, err));
  if (r->t->optimizer) CLV_TRY(clv_checkpoint_open_tensors(r->c, true, &r->moments, err));
  CLV_TRY(clv_alloc(r->weights.n, sizeof *r->is_weight_used, &r->is_weight_used, err));
  return clv_alloc(r->moments.n, sizeof *r->is_moment_used, &r->is_moment_used, err);
}

clv_code clv_trainer_restore_other_cut(clv_trainer *t, const clv_checkpoint *c, clv_err *err) {
  CLV_AUTO(free_resplit) resplit r = {.t = t, .c = c};
  CLV_TRY(clv_blueprint_check_kept_files(t->b, c, err));
  CLV_TRY(open_resplit(&r, err));
  clv_code code = find_tensors(&r, err);
  for (uint32_t i = 0; i < t->b->n_stages && code == CLV_OK; i++) code = send_stage(&r, i, err);
  return code == CLV_OK ? CLV_OK : clv_err_prefix(err, "%s", clv_checkpoint_path(c));
}
