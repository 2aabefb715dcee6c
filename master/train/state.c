/* SPDX-License-Identifier: Apache-2.0
 *
 * The state of all stages: collected for checkpoints, put back on resume, and initial weights put
 * into their stages.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/wire/wire.h"
#include "master/train/train_int.h"

/* ---- collecting ------------------------------------------------------------------------------ */

typedef struct state_set {
  cleave_state state;
  cleave_tensor *own;       /* [n], or NULL */
  clv_weights_tensor *list; /* [n], views of either */
  size_t n;
} state_set;

static void state_set_done(state_set *s) {
  cleave_state_free(&s->state);
  for (size_t i = 0; s->own && i < s->n; i++) cleave_tensor_free(&s->own[i]);
  free(s->own);
  free(s->list);
}

static clv_code get_set(clv_trainer *t, uint32_t stage, cleave_state_kind kind, state_set *ret,
                        clv_err *err) {
  CLV_API(cleave_state_read(t->runtime, t->modules[stage], kind, 0, &ret->state, CLV_WHY));
  CLV_TRY(clv_alloc(ret->state.n, sizeof *ret->list, &ret->list, err));
  for (size_t i = 0; i < ret->state.n; i++) {
    const cleave_tensor *x = &ret->state.items[i].tensor;
    clv_shape shape = {.rank = x->rank};
    memcpy(shape.dim, x->shape, sizeof shape.dim);
    ret->list[i] =
        (clv_weights_tensor){ret->state.items[i].name, (clv_dtype)x->dtype, shape, x->data};
  }
  ret->n = ret->state.n;
  return CLV_OK;
}

/* What a worker's artifact has and nobody changes is not fetched to be kept once more. */
static clv_code get_kept(clv_trainer *t, uint32_t stage, state_set *ret, clv_err *err) {
  const clv_params *params = t->b->stages[stage].params;
  CLV_TRY(clv_alloc((size_t)params->n, sizeof *ret->list, &ret->list, err));
  CLV_TRY(clv_alloc((size_t)params->n, sizeof *ret->own, &ret->own, err));
  for (int i = 0; i < params->n; i++) {
    const clv_param *p = &params->list[i];
    cleave_tensor *x = &ret->own[ret->n];
    if (!clv_adapters_keep(&t->config->stages[stage], p)) continue;
    CLV_API(cleave_weight_read(t->runtime, t->modules[stage], p->name, 0, x, CLV_WHY));
    ret->list[ret->n++] = (clv_weights_tensor){p->name, p->dtype, p->shape, x->data};
  }
  return CLV_OK;
}

static bool keeps_all(const clv_trainer *t, uint32_t stage) {
  const clv_params *params = t->b->stages[stage].params;
  for (int i = 0; i < params->n; i++)
    if (!clv_adapters_keep(&t->config->stages[stage], &params->list[i])) return false;
  return true;
}

static clv_code save_stage(clv_trainer *t, uint32_t i, clv_checkpoint_writer *w, clv_err *err) {
  CLV_AUTO(state_set_done) state_set model = {0}, optimizer = {0};
  CLV_TRY(keeps_all(t, i) ? get_set(t, i, CLEAVE_STATE_WEIGHTS, &model, err)
                          : get_kept(t, i, &model, err));
  CLV_TRY(get_set(t, i, CLEAVE_STATE_OPTIMIZER, &optimizer, err));
  return clv_checkpoint_add_stage(w, i, model.list, model.n, optimizer.list, optimizer.n, err);
}

clv_code clv_trainer_save(clv_trainer *t, const char *run_dir, clv_cursor cursor, uint64_t spared,
                          clv_err *err) {
  CLV_AUTO(clv_checkpoint_writer_freep) clv_checkpoint_writer *w = NULL;
  CLV_AUTO(clv_bytes_done) clv_bytes config = {0};
  clv_sha256 digest;
  char hex[65];
  clv_trainer_doing(t, "checkpoint of step", t->committed);
  clv_code code = clv_checkpoint_begin(run_dir, t->committed, t->b->n_stages, &w, err);
  if (code == CLV_EXISTS) return CLV_OK; /* this very step is saved already */
  CLV_TRY(code);
  for (uint32_t i = 0; i < t->b->n_stages; i++) CLV_TRY(save_stage(t, i, w, err));
  CLV_TRY(clv_session_config_write(t->config, &config, err));
  CLV_TRY(clv_sha256_of(config.data, config.len, &digest, err));
  clv_sha256_hex(&digest, hex);
  CLV_TRY(clv_checkpoint_add_file(w, "session.effective.yaml", config.data, config.len, err));
  const char *isa = clv_backend_isa(clv_backend_cpu());
  clv_kv extra[] = {{"isa", isa}, {"libraries", clv_backend_libraries(clv_backend_cpu())}};
  clv_trainer_state state = {.epoch = cursor.epoch,
                             .index = cursor.index,
                             .global_step = t->committed,
                             .max_steps = t->config->train.max_steps,
                             .extra = extra,
                             .n_extra = CLV_COUNT(extra)};
  CLV_TRY(clv_checkpoint_add_state(w, &state, err));
  CLV_TRY(clv_checkpoint_commit(w, hex, CLV_WIRE_PROTOCOL, NULL, err));
  return clv_checkpoint_prune(run_dir, (uint32_t)t->config->checkpoint.keep, spared, err);
}

/* ---- putting back ---------------------------------------------------------------------------- */

static clv_code put_set(clv_trainer *t, uint32_t stage, cleave_state_kind kind,
                        const clv_weights_entry *const *entries, size_t n, clv_err *err) {
  CLV_AUTO(clv_freep) cleave_named *items = NULL;
  CLV_TRY(clv_alloc(n, sizeof *items, &items, err));
  for (size_t i = 0; i < n; i++) {
    const clv_weights_entry *e = entries[i];
    items[i] = (cleave_named){e->name,
                              {.dtype = (cleave_dtype)e->dtype,
                               .rank = e->shape.rank,
                               .data = (void *)(uintptr_t)e->data}};
    memcpy(items[i].tensor.shape, e->shape.dim, sizeof items[i].tensor.shape);
  }
  CLV_TRY(clv_trainer_expect_state(t, stage, kind, items, n, err));
  CLV_API(cleave_state_write(t->runtime, t->modules[stage], kind, items, n, 0, CLV_WHY));
  return CLV_OK;
}

/* Those that were found. */
static clv_code put_found(clv_trainer *t, uint32_t stage, const clv_weights_entry **found,
                          clv_err *err) {
  size_t n = 0;
  for (int k = 0; k < t->b->stages[stage].params->n; k++)
    if (found[k]) found[n++] = found[k];
  return put_set(t, stage, CLEAVE_STATE_WEIGHTS, found, n, err);
}

static clv_code put_weights(clv_trainer *t, uint32_t stage, const clv_weights_file *f,
                            clv_err *err) {
  CLV_AUTO(clv_freep) const clv_weights_entry **found = NULL;
  CLV_TRY(clv_stage_match(t->b, stage, f, 0, &found, err));
  return put_found(t, stage, found, err);
}

/* A moment of a parameter that does not learn: checkpoints had them before version 0.7. */
static bool is_idle(const clv_params *params, const char *name) {
  const char *dot = strrchr(name, '.');
  for (int i = 0; dot && i < params->n; i++) {
    const clv_param *p = &params->list[i];
    if (strlen(p->name) == (size_t)(dot - name) && strncmp(p->name, name, strlen(p->name)) == 0)
      return p->fixed;
  }
  return false;
}

/* As many as the optimiser has, or the file is of another run. */
static clv_code put_optimizer(clv_trainer *t, uint32_t stage, const clv_weights_file *f,
                              clv_err *err) {
  size_t n = 0, all = clv_weights_count(f),
         want = cleave_state_count(t->modules[stage], CLEAVE_STATE_OPTIMIZER);
  CLV_AUTO(clv_freep) const clv_weights_entry **items = NULL;
  CLV_TRY(clv_alloc(all, sizeof *items, &items, err));
  for (size_t i = 0; i < all; i++) {
    const clv_weights_entry *e = &clv_weights_entries(f)[i];
    if (all == want || !is_idle(t->b->stages[stage].params, e->name)) items[n++] = e;
  }
  if (n != want)
    return clv_fail(err, CLV_DATA_LOSS, "the optimiser's file has %zu tensors, not %zu", n, want);
  return put_set(t, stage, CLEAVE_STATE_OPTIMIZER, items, n, err);
}

static clv_code restore_stage(clv_trainer *t, uint32_t i, const clv_checkpoint *c, clv_err *err) {
  CLV_AUTO(clv_weights_closep) clv_weights_file *model = NULL, *optimizer = NULL;
  CLV_TRY(clv_checkpoint_open_model(c, i, &model, err));
  CLV_TRY(put_weights(t, i, model, err));
  if (!t->b->stages[i].n_learning) return CLV_OK;
  CLV_TRY(clv_checkpoint_open_optimizer(c, i, &optimizer, err));
  return put_optimizer(t, i, optimizer, err);
}

clv_code clv_trainer_restore(clv_trainer *t, const char *run_dir, clv_cursor *ret_cursor,
                             clv_bytes *notes, clv_err *err) {
  CLV_AUTO(clv_checkpoint_freep) clv_checkpoint *c = NULL;
  CLV_TRY(clv_checkpoint_latest(run_dir, &c, notes, err));
  return clv_trainer_restore_from(t, c, ret_cursor, notes, err);
}

clv_code clv_trainer_restore_from(clv_trainer *t, const clv_checkpoint *c, clv_cursor *ret_cursor,
                                  clv_bytes *notes, clv_err *err) {
  const clv_manifest *m = clv_checkpoint_manifest(c);
  const clv_trainer_state *s = clv_checkpoint_state(c);
  if (m->stages != t->b->n_stages)
    return clv_fail(err, CLV_INVALID, "%s has %u stages, the session %u", clv_checkpoint_path(c),
                    m->stages, t->b->n_stages);
  const char *isa = clv_trainer_state_get(s, "isa");
  if (isa && strcmp(isa, clv_backend_isa(clv_backend_cpu())) != 0)
    clv_bytes_printf(
        notes, "the checkpoint was computed with %s, this machine has %s: not bit-identical\n", isa,
        clv_backend_isa(clv_backend_cpu()));
  t->committed = m->step;
  CLV_API(cleave_optimizer_set_steps(t->runtime, t->optimizer, m->step, CLV_WHY));
  for (uint32_t i = 0; i < t->b->n_stages; i++) {
    if (restore_stage(t, i, c, err) != CLV_OK)
      return clv_err_prefix(err, "%s, stage '%s'", clv_checkpoint_path(c),
                            t->config->stages[i].name);
  }
  *ret_cursor = (clv_cursor){s->epoch, s->index};
  return CLV_OK;
}

static clv_code push_file(clv_trainer *t, uint32_t i, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes notes = {0};
  CLV_AUTO(clv_weights_closep) clv_weights_file *f = NULL;
  CLV_AUTO(clv_freep) const clv_weights_entry **found = NULL;
  clv_code code = clv_stage_file_open(t->b, i, &f, &found, &notes, err);
  if (notes.len) clv_trainer_on_notice(t, notes.data);
  CLV_TRY(code);
  return put_found(t, i, found, err); /* a new module's counts are 0 */
}

static clv_code push_adapters(clv_trainer *t, uint32_t i, clv_err *err) {
  const clv_params *params = t->b->stages[i].params;
  CLV_AUTO(clv_weights_closep) clv_weights_file *f = NULL;
  CLV_AUTO(clv_freep) const clv_weights_entry **found = NULL;
  CLV_AUTO(clv_freep) clv_weights_entry *named = NULL;
  size_t n = 0;
  CLV_TRY(clv_stage_adapters_open(t->b, i, &f, &found, err));
  CLV_TRY(clv_alloc((size_t)params->n, sizeof *named, &named, err));
  for (int k = 0; k < params->n; k++) {
    if (!found[k]) continue;
    named[n] = *found[k];
    named[n].name = params->list[k].name;
    found[n] = &named[n];
    n++;
  }
  return put_set(t, i, CLEAVE_STATE_WEIGHTS, found, n, err);
}

/* One tensor at a time: those of other nodes are here only on their way. */
static clv_code push_tensors(clv_trainer *t, uint32_t stage, const clv_stage_folder *f,
                             clv_err *err) {
  for (size_t i = 0; i < f->n; i++) {
    const clv_weights_want *w = &f->want[i];
    clv_weights_entry e = {.name = w->name, .dtype = w->dtype, .shape = w->shape};
    const clv_weights_entry *one = &e;
    CLV_AUTO(clv_freep) void *buf = NULL;
    if (f->found[i] == CLV_WEIGHTS_NONE) continue;
    CLV_TRY(clv_shape_bytes(&w->shape, w->dtype, &e.bytes, err));
    CLV_TRY(clv_alloc_aligned(e.bytes, &buf, err));
    CLV_TRY(clv_weights_folder_read(f->folder, f->found[i], w, buf, err));
    e.data = buf;
    CLV_TRY(put_set(t, stage, CLEAVE_STATE_WEIGHTS, &one, 1, err));
  }
  return CLV_OK;
}

static clv_code push_folder(clv_trainer *t, uint32_t i, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes notes = {0};
  CLV_AUTO(clv_stage_folder_done) clv_stage_folder f = {0};
  clv_code code = clv_stage_folder_open(t->b, i, &f, &notes, err);
  if (notes.len) clv_trainer_on_notice(t, notes.data);
  CLV_TRY(code);
  return push_tensors(t, i, &f, err);
}

clv_code clv_trainer_push_files(clv_trainer *t, clv_err *err) {
  for (uint32_t i = 0; i < t->b->n_stages; i++) {
    if (t->config->stages[i].weights_file) CLV_TRY(push_file(t, i, err));
    if (t->config->stages[i].weights_folder) CLV_TRY(push_folder(t, i, err));
    if (t->config->stages[i].lora.from) CLV_TRY(push_adapters(t, i, err));
  }
  return CLV_OK;
}
