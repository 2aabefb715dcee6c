/* SPDX-License-Identifier: Apache-2.0
 *
 * The state of all stages: collected for checkpoints, put back on resume, and initial weights from
 * files. Stages at home are read in place, the others over their links.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "master/train/train_int.h"

/* One stage's tensors by name, with the memory behind them. */
typedef struct state_set {
  clv_weights_tensor *list;
  size_t n;
  collecting remote; /* when it came over a link */
} state_set;

static void collecting_done(collecting *c) {
  for (uint32_t i = 0; i < c->count; i++) clv_tensor_unref(c->tensors[i]);
  free(c->tensors);
  free(c->names);
  *c = (collecting){0};
}

static void state_set_done(state_set *s) {
  free(s->list);
  collecting_done(&s->remote);
  *s = (state_set){0};
}

/* ---- collecting -------------------------------------------------------------------------------------- */

static clv_code local_set(clv_stage *stage, clv_state_what what, state_set *ret, clv_err *err) {
  uint32_t n = clv_stage_state_count(stage, what);
  CLV_TRY(clv_alloc(n, sizeof *ret->list, &ret->list, err));
  CLV_TRY(clv_alloc(n, sizeof *ret->remote.names, &ret->remote.names, err));
  clv_state_item item;
  for (uint32_t i = 0; clv_stage_state_item(stage, what, i, &item); i++) {
    memcpy(ret->remote.names[i], item.name, sizeof item.name);
    ret->list[ret->n++] =
        (clv_weights_tensor){ret->remote.names[i], item.dtype, item.shape, item.data};
  }
  return CLV_OK;
}

/* How many items a remote stage has follows from its plan, so a worker cannot send more. */
static uint32_t expected_items(const clv_trainer *t, uint32_t stage, clv_state_what what) {
  const clv_shard_plan *s = &t->b->shards[stage];
  if (what == CLV_STATE_WEIGHTS) return (uint32_t)s->params->n;
  if (!s->n_learning) return 0;
  uint32_t trainable = 0, moments = 2;
  for (int i = 0; i < s->params->n; i++) trainable += s->params->list[i].trainable;
  if (t->config->train.optimizer.kind == CLV_OPT_SGD)
    moments = t->config->train.optimizer.momentum != 0;
  return moments * trainable + 1;
}

static bool same_spec(const clv_tensor *x, clv_dtype dtype, const clv_shape *shape) {
  return x->dtype == dtype && clv_shape_equal(&x->shape, shape);
}

/* Is it a piece of the stage's state that the plan knows, with the plan's shape? */
static bool in_plan(const clv_params *params, clv_state_what what, const char *name,
                    const clv_tensor *x) {
  static const clv_shape scalar = {0};
  if (what == CLV_STATE_OPTIMIZER && strcmp(name, "step") == 0)
    return same_spec(x, CLV_I64, &scalar);
  char param[CLV_WIRE_NAME + 1];
  snprintf(param, sizeof param, "%s", name);
  char *moment = what == CLV_STATE_OPTIMIZER ? strrchr(param, '.') : NULL;
  if (moment) *moment = '\0';
  const clv_param *p = clv_params_find(params, param);
  return p && same_spec(x, p->dtype, &p->shape);
}

static clv_code check_items(const clv_trainer *t, uint32_t stage, clv_state_what what,
                            const collecting *c, clv_err *err) {
  const clv_shard_plan *s = &t->b->shards[stage];
  char shape[160];
  for (uint32_t i = 0; i < c->count; i++)
    if (!in_plan(s->params, what, c->names[i], c->tensors[i]))
      return clv_fail(err, CLV_INVALID, "worker '%s' sent state '%s' %s, which is not the plan's",
                      t->config->workers[s->worker].name, c->names[i],
                      clv_shape_format(&c->tensors[i]->shape, shape, sizeof shape));
  return CLV_OK;
}

static clv_code remote_set(clv_trainer *t, uint32_t stage, clv_state_what what, state_set *ret,
                           clv_err *err) {
  collecting *c = &t->collect;
  clv_packet *p;
  *c = (collecting){.count = expected_items(t, stage, what), .wanted = true};
  clv_code code = clv_alloc(c->count, sizeof *c->tensors, &c->tensors, err);
  if (code == CLV_OK) code = clv_alloc(c->count, sizeof *c->names, &c->names, err);
  if (code == CLV_OK) code = clv_packet_new(t->pool, CLV_STATE_GET, &p, err);
  if (code == CLV_OK) {
    p->frame.stage = stage;
    p->frame.message = ++t->next_message;
    p->frame.state.what = what;
    code = clv_link_send(t->remotes[t->b->shards[stage].worker].link, p, err);
  }
  while (code == CLV_OK && !c->done) {
    c->moved = false;
    code = clv_trainer_wait(t, &c->moved, NULL, "state of a stage", err);
  }
  ret->remote = *c; /* owned by the set from here on, complete or not */
  *c = (collecting){0};
  CLV_TRY(code);
  CLV_TRY(check_items(t, stage, what, &ret->remote, err));
  CLV_TRY(clv_alloc(ret->remote.count, sizeof *ret->list, &ret->list, err));
  for (uint32_t i = 0; i < ret->remote.count; i++) {
    const clv_tensor *x = ret->remote.tensors[i];
    ret->list[ret->n++] = (clv_weights_tensor){ret->remote.names[i], x->dtype, x->shape, x->data};
  }
  return CLV_OK;
}

static clv_code get_set(clv_trainer *t, uint32_t stage, clv_state_what what, state_set *ret,
                        clv_err *err) {
  clv_stage *local = clv_node_stage(t->node, stage);
  return local ? local_set(local, what, ret, err) : remote_set(t, stage, what, ret, err);
}

static clv_code save_stage(clv_trainer *t, uint32_t i, clv_checkpoint_writer *w, clv_err *err) {
  CLV_AUTO(state_set_done) state_set model = {0}, optimizer = {0};
  CLV_TRY(get_set(t, i, CLV_STATE_WEIGHTS, &model, err));
  CLV_TRY(get_set(t, i, CLV_STATE_OPTIMIZER, &optimizer, err));
  return clv_checkpoint_add_stage(w, i, model.list, model.n, optimizer.list, optimizer.n, err);
}

static clv_code save_all(clv_trainer *t, const char *run_dir, clv_cursor cursor, clv_err *err) {
  CLV_AUTO(clv_checkpoint_writer_freep) clv_checkpoint_writer *w = NULL;
  CLV_AUTO(clv_bytes_done) clv_bytes config = {0};
  clv_sha256 digest;
  char hex[65];
  CLV_TRY(clv_trainer_flush(t, err));
  clv_code code = clv_checkpoint_begin(run_dir, t->committed, t->b->n_stages, &w, err);
  if (code == CLV_EXISTS) return CLV_OK; /* this very step is saved already */
  CLV_TRY(code);
  for (uint32_t i = 0; i < t->b->n_stages; i++) CLV_TRY(save_stage(t, i, w, err));
  CLV_TRY(clv_session_config_write(t->config, &config, err));
  CLV_TRY(clv_sha256_of(config.data, config.len, &digest, err));
  clv_sha256_hex(&digest, hex);
  CLV_TRY(clv_checkpoint_add_file(w, "session.effective.yaml", config.data, config.len, err));
  const char *isa = clv_backend_cpu()->isa();
  clv_kv extra[] = {{"isa", isa}, {"libraries", clv_backend_cpu()->libraries()}};
  clv_trainer_state state = {.epoch = cursor.epoch,
                             .index = cursor.index,
                             .global_step = t->committed,
                             .max_steps = t->config->train.max_steps,
                             .seed = t->config->train.seed,
                             .extra = extra,
                             .n_extra = CLV_COUNT(extra)};
  CLV_TRY(clv_checkpoint_add_state(w, &state, err));
  CLV_TRY(clv_checkpoint_commit(w, hex, CLV_WIRE_PROTOCOL, NULL, err));
  return clv_checkpoint_prune(run_dir, (uint32_t)t->config->checkpoint.keep, err);
}

clv_code clv_trainer_save(clv_trainer *t, const char *run_dir, clv_cursor cursor, clv_err *err) {
  return clv_trainer_explain(t, save_all(t, run_dir, cursor, err), err);
}

/* ---- putting back ------------------------------------------------------------------------------------- */

/* One item; NULL for a stage without any, which still learns which step it is at. */
static clv_code put_item(clv_trainer *t, uint32_t stage, clv_state_what what,
                         const clv_weights_entry *e, size_t index, size_t n, clv_err *err) {
  CLV_AUTO(clv_tensor_unrefp) clv_tensor *x = NULL;
  CLV_AUTO(clv_packet_freep) clv_packet *p = NULL;
  CLV_TRY(clv_packet_new(t->pool, CLV_STATE_PUT, &p, err));
  p->frame.stage = stage;
  p->frame.step = t->committed;
  p->frame.message = ++t->next_message;
  p->frame.state.what = what;
  p->frame.state.index = (uint32_t)index;
  p->frame.state.count = (uint32_t)n;
  if (e) {
    CLV_TRY(clv_pool_tensor(t->pool, e->dtype, &e->shape, &x, err));
    memcpy(x->data, e->data, e->bytes);
    snprintf(p->frame.state.name, sizeof p->frame.state.name, "%s", e->name);
    clv_packet_add(p, x);
  }
  return clv_link_send(t->remotes[t->b->shards[stage].worker].link, clv_steal(&p), err);
}

static clv_code put_remote(clv_trainer *t, uint32_t stage, clv_state_what what,
                           const clv_weights_entry *const *items, size_t n, clv_err *err) {
  t->collect = (collecting){.wanted = true};
  if (!n) CLV_TRY(put_item(t, stage, what, NULL, 0, 0, err));
  for (size_t i = 0; i < n; i++) CLV_TRY(put_item(t, stage, what, items[i], i, n, err));
  while (!t->collect.done) {
    t->collect.moved = false;
    CLV_TRY(clv_trainer_wait(t, &t->collect.moved, NULL, "STATE_DONE", err));
  }
  t->collect = (collecting){0};
  return CLV_OK;
}

static clv_code put_local(clv_stage *stage, clv_state_what what,
                          const clv_weights_entry *const *items, size_t n, uint64_t committed,
                          clv_err *err) {
  for (size_t i = 0; i < n; i++)
    CLV_TRY(clv_stage_state_set(stage, what, items[i]->name, items[i]->dtype, &items[i]->shape,
                                items[i]->data, err));
  clv_stage_set_committed(stage, committed);
  return CLV_OK;
}

static clv_code put_set(clv_trainer *t, uint32_t stage, clv_state_what what,
                        const clv_weights_entry *const *items, size_t n, clv_err *err) {
  clv_stage *local = clv_node_stage(t->node, stage);
  if (local) return put_local(local, what, items, n, t->committed, err);
  return put_remote(t, stage, what, items, n, err);
}

/* All tensors that the stage's plan names, from a weights file. */
static clv_code put_weights(clv_trainer *t, uint32_t stage, const clv_weights_file *f,
                            unsigned flags, clv_err *err) {
  const clv_params *params = t->b->shards[stage].params;
  CLV_AUTO(clv_freep) clv_weights_want *want = NULL;
  CLV_AUTO(clv_freep) const clv_weights_entry **found = NULL;
  CLV_TRY(clv_alloc((size_t)params->n, sizeof *want, &want, err));
  CLV_TRY(clv_alloc((size_t)params->n, sizeof *found, &found, err));
  for (int i = 0; i < params->n; i++)
    want[i] =
        (clv_weights_want){params->list[i].name, params->list[i].dtype, params->list[i].shape};
  CLV_TRY(clv_weights_match(f, want, (size_t)params->n, flags, found, err));
  return put_set(t, stage, CLV_STATE_WEIGHTS, found, (size_t)params->n, err);
}

static clv_code put_optimizer(clv_trainer *t, uint32_t stage, const clv_weights_file *f,
                              clv_err *err) {
  size_t n = clv_weights_count(f);
  if (n != expected_items(t, stage, CLV_STATE_OPTIMIZER))
    return clv_fail(err, CLV_DATA_LOSS, "the optimiser's file has %zu tensors, not %u", n,
                    expected_items(t, stage, CLV_STATE_OPTIMIZER));
  CLV_AUTO(clv_freep) const clv_weights_entry **items = NULL;
  CLV_TRY(clv_alloc(n, sizeof *items, &items, err));
  for (size_t i = 0; i < n; i++) items[i] = &clv_weights_entries(f)[i];
  return put_set(t, stage, CLV_STATE_OPTIMIZER, items, n, err);
}

static clv_code restore_stage(clv_trainer *t, uint32_t i, const clv_checkpoint *c, clv_err *err) {
  CLV_AUTO(clv_weights_closep) clv_weights_file *model = NULL, *optimizer = NULL;
  CLV_TRY(clv_checkpoint_open_model(c, i, &model, err));
  CLV_TRY(put_weights(t, i, model, 0, err));
  if (!expected_items(t, i, CLV_STATE_OPTIMIZER)) return CLV_OK;
  CLV_TRY(clv_checkpoint_open_optimizer(c, i, &optimizer, err));
  return put_optimizer(t, i, optimizer, err);
}

clv_code clv_trainer_restore(clv_trainer *t, const char *run_dir, clv_cursor *ret_cursor,
                             clv_bytes *notes, clv_err *err) {
  CLV_AUTO(clv_checkpoint_freep) clv_checkpoint *c = NULL;
  CLV_TRY(clv_checkpoint_latest(run_dir, &c, notes, err));
  const clv_manifest *m = clv_checkpoint_manifest(c);
  const clv_trainer_state *s = clv_checkpoint_state(c);
  if (m->stages != t->b->n_stages)
    return clv_fail(err, CLV_INVALID, "%s has %u stages, the session %u", clv_checkpoint_path(c),
                    m->stages, t->b->n_stages);
  const char *isa = clv_trainer_state_get(s, "isa");
  if (isa && strcmp(isa, clv_backend_cpu()->isa()) != 0)
    clv_log(CLV_LOG_WARN,
            "the checkpoint was computed with %s, this machine has %s: not bit-identical", isa,
            clv_backend_cpu()->isa());
  t->committed = m->step;
  clv_stage *loss = clv_node_stage(t->node, t->b->n_stages);
  if (loss) clv_stage_set_committed(loss, t->committed);
  for (uint32_t i = 0; i < t->b->n_stages; i++) {
    if (restore_stage(t, i, c, err) != CLV_OK)
      return clv_err_prefix(err, "%s, stage '%s'", clv_checkpoint_path(c),
                            t->config->stages[i].name);
  }
  *ret_cursor = (clv_cursor){s->epoch, s->index};
  return CLV_OK;
}

clv_code clv_trainer_push_files(clv_trainer *t, clv_err *err) {
  for (uint32_t i = 0; i < t->b->n_stages; i++) {
    const clv_stage_spec *spec = &t->config->stages[i];
    if (!spec->weights_file) continue;
    CLV_AUTO(clv_weights_closep) clv_weights_file *f = NULL;
    clv_err why;
    clv_code code = clv_weights_open(spec->weights_file, 0, &f, &why);
    clv_sha256 want;
    if (code == CLV_OK && spec->weights_sha256 && clv_sha256_parse(spec->weights_sha256, &want) &&
        memcmp(&want, clv_weights_digest(f), sizeof want) != 0)
      code = clv_fail(&why, CLV_DATA_LOSS, "%s has another SHA-256 than the session says",
                      spec->weights_file);
    if (code == CLV_OK) code = put_weights(t, i, f, CLV_WEIGHTS_ALLOW_UNEXPECTED, &why);
    if (code != CLV_OK) {
      clv_session_fail_at(t->config, spec->weights_pos, err, "stage '%s': %s", spec->name,
                          why.text);
      err->code = CLV_DATA_LOSS;
      return CLV_DATA_LOSS;
    }
  }
  return CLV_OK;
}
