/* SPDX-License-Identifier: Apache-2.0
 *
 * One step: the micro-batches are injected as the schedule allows; every loss that comes back is
 * answered with the micro-batch's share of the batch as its gradient; when all stages have voted,
 * one decision goes to all of them.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/models/models.h"
#include "master/train/train_int.h"

/* ---- what packets mean to the driver ------------------------------------------------------------- */

static void fail_here(clv_trainer *t, const clv_packet *p, const clv_err *why) {
  const char *kind = clv_frame_kind_name(p->frame.kind);
  if (p->from)
    clv_node_fail(t->node, why->code, "master", "%s of worker '%s': %s", kind,
                  clv_link_peer(p->from), why->text);
  else
    clv_node_fail(t->node, why->code, "master", "%s: %s", kind, why->text);
}

/* The loss of a micro-batch: remembered, and answered with its weight. */
static clv_code on_loss(clv_trainer *t, const clv_packet *p, clv_err *err) {
  const clv_frame *f = &p->frame;
  if (f->n_tensors != 1 || p->tensor[0]->bytes != 4 || f->micro_batch >= t->n_micro ||
      f->step != t->committed + 1)
    return clv_fail(err, CLV_INVALID, "a loss that belongs to no micro-batch of step %llu",
                    (unsigned long long)t->committed + 1);
  t->losses[f->micro_batch] = *(const float *)p->tensor[0]->data;
  t->losses_in++;
  clv_packet *back;
  CLV_AUTO(clv_tensor_unrefp) clv_tensor *share = NULL;
  CLV_TRY(clv_pool_tensor(t->pool, CLV_F32, &p->tensor[0]->shape, &share, err));
  *(float *)share->data = (float)((double)t->sizes[f->micro_batch] / (double)t->samples);
  CLV_TRY(clv_packet_new(t->pool, CLV_BACKWARD, &back, err));
  back->frame.context = f->context;
  back->frame.message = ++t->next_message;
  back->frame.reply_to = f->message;
  back->frame.step = f->step;
  back->frame.micro_batch = f->micro_batch;
  back->frame.n_micro_batches = t->n_micro;
  back->frame.flags = CLV_FLAG_TRAINING | (f->micro_batch + 1 == t->n_micro ? CLV_FLAG_PREPARE : 0);
  back->frame.stage = t->b->n_stages;
  clv_packet_add(back, share);
  clv_node_send(t->node, back);
  return CLV_OK;
}

static clv_code on_vote(clv_trainer *t, const clv_packet *p, clv_err *err) {
  const clv_frame *f = &p->frame;
  uint32_t n = f->stage < t->b->n_stages ? t->b->shards[f->stage].n_learning : 0;
  size_t bytes = f->n_tensors ? p->tensor[0]->bytes : 0;
  if (f->stage >= t->b->n_stages || f->step != t->committed + 1 || bytes != n * sizeof(double) ||
      !t->b->shards[f->stage].participates || t->voted[f->stage])
    return clv_fail(err, CLV_INVALID, "a vote of stage %u for step %llu with %zu bytes", f->stage,
                    (unsigned long long)f->step, bytes);
  t->voted[f->stage] = true;
  if (n) memcpy(t->grad_sq + t->grad_at[f->stage], p->tensor[0]->data, bytes);
  t->finite &= f->vote.finite;
  t->votes_in++;
  return CLV_OK;
}

static clv_code on_state(clv_trainer *t, const clv_packet *p, clv_err *err) {
  collecting *c = &t->collect;
  const clv_frame *f = &p->frame;
  if (f->kind == CLV_STATE_ITEM) {
    if (f->state.index >= c->count || f->n_tensors != 1 || c->tensors[f->state.index])
      return clv_fail(err, CLV_INVALID, "state item %u of %u", f->state.index, c->count);
    c->tensors[f->state.index] = clv_tensor_ref(p->tensor[0]);
    memcpy(c->names[f->state.index], f->state.name, sizeof c->names[0]);
    c->got++;
  } else {
    if (!c->wanted || c->told) return clv_fail(err, CLV_INVALID, "a STATE_DONE nobody waits for");
    c->told = true;
  }
  c->moved = true;
  c->done = c->told && c->got == c->count;
  return CLV_OK;
}

static size_t count_correct(const clv_tensor *pred, const int64_t *labels, size_t n) {
  size_t classes = pred->n / n, correct = 0;
  const float *x = pred->data;
  for (size_t i = 0; i < n; i++, x += classes) {
    size_t best = 0;
    for (size_t c = 1; c < classes; c++)
      if (x[c] > x[best]) best = c;
    correct += (int64_t)best == labels[i];
  }
  return correct;
}

static clv_code loss_of(clv_trainer *t, const clv_tensor *pred, const clv_tensor *y, size_t n,
                        double *ret, clv_err *err) {
  clv_plan *plan;
  clv_call *c = NULL;
  float value;
  clv_rng_key key = {0};
  const void *in[2] = {pred->data, y->data};
  CLV_TRY(clv_stage_plan(t->loss_stage, (int64_t)n, false, &plan, err));
  CLV_TRY(clv_plan_call_get(plan, &c, err));
  clv_code code = clv_plan_forward(plan, c, NULL, 1, in, true, &value, &key, err);
  clv_plan_call_put(plan, c);
  *ret = value;
  return code;
}

static clv_code on_eval(clv_trainer *t, const clv_packet *p, clv_err *err) {
  const clv_frame *f = &p->frame;
  if (f->micro_batch >= CLV_EVAL_WINDOW || f->n_tensors != 1)
    return clv_fail(err, CLV_INVALID, "an evaluation output of no micro-batch");
  struct eval_slot *slot = &t->eval_slots[f->micro_batch];
  const clv_tensor *pred = p->tensor[0];
  const clv_graph *last = t->b->shards[t->b->n_stages - 1].graph;
  clv_shape want = last->nodes[last->output].shape;
  want.dim[0] = (int64_t)slot->n;
  if (!slot->n || pred->dtype != CLV_F32 || !clv_shape_equal(&pred->shape, &want))
    return clv_fail(err, CLV_INVALID, "an evaluation output of the wrong shape");
  if (t->predictions) {
    size_t row = pred->bytes / slot->n;
    memcpy((char *)t->predictions->data + slot->row * row, pred->data, pred->bytes);
  }
  if (slot->y) {
    double loss = 0;
    CLV_TRY(loss_of(t, pred, slot->y, slot->n, &loss, err));
    t->eval_loss += loss * (double)slot->n;
    if (slot->y->dtype == CLV_I64) t->correct += count_correct(pred, slot->y->data, slot->n);
  }
  slot->n = 0;
  slot->y = clv_tensor_unref(slot->y);
  t->eval_outstanding--;
  return CLV_OK;
}

static clv_code on_committed(clv_trainer *t, const clv_packet *p, clv_err *err) {
  (void)p;
  if (t->committed_in == clv_node_commits_sent(t->node))
    return clv_fail(err, CLV_INVALID, "it answers no COMMIT");
  t->committed_in++;
  return CLV_OK;
}

static clv_code on_forward(clv_trainer *t, const clv_packet *p, clv_err *err) {
  return p->frame.flags & CLV_FLAG_TRAINING ? on_loss(t, p, err) : on_eval(t, p, err);
}

void clv_trainer_on_driver(void *user, clv_packet *p) {
  static clv_code (*const handlers[CLV_FRAME_KINDS])(clv_trainer *, const clv_packet *,
                                                     clv_err *) = {
      [CLV_FORWARD] = on_forward,  [CLV_VOTE] = on_vote,        [CLV_COMMITTED] = on_committed,
      [CLV_STATE_ITEM] = on_state, [CLV_STATE_DONE] = on_state,
  };
  clv_trainer *t = user;
  clv_err err;
  clv_code code = handlers[p->frame.kind] ? handlers[p->frame.kind](t, p, &err)
                                          : clv_fail(&err, CLV_INVALID, "nobody asked for it");
  if (code != CLV_OK) fail_here(t, p, &err);
  t->progress = true;
  clv_packet_free(p);
}

void clv_trainer_on_prediction(void *user, const clv_packet *p) {
  clv_trainer *t = user;
  bool labels_slot = p->frame.presence[0] == 2;
  uint32_t k = p->frame.micro_batch;
  if (!t->labels || labels_slot || p->frame.n_tensors < 1 || k >= t->n_micro) return;
  if (p->tensor[0]->dtype != CLV_F32 || p->tensor[0]->n % t->sizes[k]) return;
  t->correct += count_correct(p->tensor[0], t->labels + t->starts[k], t->sizes[k]);
}

void clv_trainer_on_handled(void *user, clv_frame_kind kind, uint32_t stage, uint32_t micro_batch) {
  clv_trainer *t = user;
  (void)micro_batch;
  if (kind != CLV_BACKWARD || stage != 0) return;
  t->finished++;
  t->progress = true;
}

/* "; last heard of worker 'a' 900 ms ago, 'b' 3 ms ago": who keeps the others waiting. */
static const char *silence(const clv_trainer *t, char *buf, size_t len) {
  size_t used = 0;
  uint64_t now = clv_now_ns();
  buf[0] = '\0';
  for (size_t i = 0; i < t->config->n_workers && used < len; i++) {
    const remote *r = &t->remotes[i];
    if (!r->link) continue;
    uint64_t heard = __atomic_load_n(&r->heard_ns, __ATOMIC_RELAXED);
    used += (size_t)snprintf(buf + used, len - used, "%s'%.64s' %llu ms ago",
                             used ? ", " : "; last heard of worker ", r->spec->name,
                             (unsigned long long)(now - CLV_MIN(heard, now)) / 1000000u);
  }
  return buf;
}

/* A link's end is told by whoever notices it first: a send that fails, or the link's own event, which
 * knows the worker's name and the cause. The latter follows within moments and is what people need. */
static clv_code blame(clv_trainer *t, clv_code code, clv_err *err) {
  char hop[CLV_WIRE_NAME + 1] = "";
  for (int i = 0; i < 200 && code == CLV_UNAVAILABLE && !clv_node_failed(t->node, NULL, NULL); i++)
    nanosleep(&(struct timespec){0, 5 * 1000 * 1000}, NULL);
  if (!clv_node_failed(t->node, err, hop)) return code;
  code = err ? err->code : code;
  snprintf(t->lost, sizeof t->lost, "%s", hop);
  for (size_t i = 0; i < t->config->n_workers; i++)
    if (strcmp(t->config->workers[i].name, hop) == 0) code = CLV_UNAVAILABLE;
  if (err) err->code = code;
  return code;
}

clv_code clv_trainer_explain(clv_trainer *t, clv_code code, clv_err *err) {
  if (code == CLV_OK || code == CLV_DEADLINE) return code;
  code = blame(t, code, err);
  if (err && strncmp(err->text, "step ", 5) != 0)
    clv_err_prefix(err, "step %llu", (unsigned long long)t->committed + 1);
  return code;
}

clv_code clv_trainer_wait(clv_trainer *t, const bool *flag, uint64_t *wait_ns, const char *what,
                          clv_err *err) {
  uint64_t now = clv_now_ns(), limit_ms = t->config->limits.step_timeout_ms;
  uint64_t deadline = t->deadline_ns ? t->deadline_ns : now + limit_ms * 1000000u;
  clv_code code = clv_node_pump(t->node, flag, deadline, wait_ns, err);
  if (code == CLV_OK) return CLV_OK;
  if (clv_node_failed(t->node, NULL, NULL)) return clv_trainer_explain(t, code, err);
  char heard[256];
  clv_fail(err, CLV_DEADLINE, "no %s within %llu ms (limits.step_timeout)%s", what,
           (unsigned long long)limit_ms, silence(t, heard, sizeof heard));
  clv_err_prefix(err, "step %llu", (unsigned long long)t->committed + 1);
  return code;
}

/* ---- a training step -------------------------------------------------------------------------------- */

static clv_code new_forward(clv_trainer *t, uint32_t stage, uint64_t step, uint32_t k, uint32_t n,
                            unsigned flags, clv_packet **ret, clv_err *err) {
  CLV_TRY(clv_packet_new(t->pool, CLV_FORWARD, ret, err));
  clv_frame *f = &(*ret)->frame;
  f->message = ++t->next_message;
  /* A step is a context; every evaluated micro-batch is one of its own, apart from all steps. */
  f->context = flags & CLV_FLAG_TRAINING ? step : ((uint64_t)1 << 47) + f->message;
  f->step = step;
  f->stage = stage;
  f->micro_batch = k;
  f->n_micro_batches = n;
  f->flags = flags;
  return CLV_OK;
}

/* Rows [at, at + n) of a batch tensor. A copy, so that the loader may refill its buffer while the
 * micro-batch is still kept for its backward. */
static clv_code rows_of(clv_trainer *t, const clv_tensor *from, size_t at, size_t n,
                        clv_tensor **ret, clv_err *err) {
  clv_shape shape = from->shape;
  size_t row = from->bytes / (size_t)shape.dim[0];
  shape.dim[0] = (int64_t)n;
  CLV_TRY(clv_pool_tensor(t->pool, from->dtype, &shape, ret, err));
  memcpy((*ret)->data, (const char *)from->data + at * row, n * row);
  return CLV_OK;
}

static clv_code inject(clv_trainer *t, const clv_batch *batch, uint32_t k, clv_err *err) {
  CLV_AUTO(clv_tensor_unrefp) clv_tensor *x = NULL, *y = NULL;
  clv_packet *p;
  uint64_t step = t->committed + 1;
  CLV_TRY(rows_of(t, batch->x, t->starts[k], t->sizes[k], &x, err));
  CLV_TRY(rows_of(t, batch->y, t->starts[k], t->sizes[k], &y, err));
  CLV_TRY(new_forward(t, t->b->n_stages, step, k, t->n_micro, CLV_FLAG_TRAINING, &p, err));
  p->frame.presence[0] = 2; /* slot 1: the labels */
  clv_packet_add(p, y);
  clv_node_send(t->node, p);
  CLV_TRY(new_forward(t, 0, step, k, t->n_micro, CLV_FLAG_TRAINING, &p, err));
  clv_packet_add(p, x);
  clv_node_send(t->node, p);
  return CLV_OK;
}

/* How many micro-batches may be in flight: the schedule as a window. */
static uint32_t window_of(const clv_trainer *t) {
  uint32_t stages = t->b->n_stages + 1;
  switch (t->config->pipeline.schedule) {
    case CLV_PIPE_NAIVE:
      return 1;
    case CLV_PIPE_1F1B:
      return CLV_MIN(stages, t->n_micro);
    case CLV_PIPE_GPIPE:
      break;
  }
  return t->n_micro;
}

static uint32_t done_count(const clv_trainer *t) {
  const clv_shard_plan *first = &t->b->shards[0];
  return first->worker < 0 && first->participates ? t->finished : t->losses_in;
}

static clv_code begin_step(clv_trainer *t, const clv_batch *batch, clv_err *err) {
  t->n_micro = (uint32_t)clv_chunk_sizes(batch->n, t->b->micro_batches, t->sizes);
  size_t at = 0;
  for (uint32_t k = 0; k < t->n_micro; at += t->sizes[k++]) t->starts[k] = at;
  t->samples = batch->n;
  t->posted = t->losses_in = t->finished = t->votes_in = 0;
  t->finite = true;
  t->correct = 0;
  memset(t->voted, 0, t->b->n_stages * sizeof *t->voted);
  t->deadline_ns = clv_now_ns() + t->config->limits.step_timeout_ms * 1000000u;
  t->labels = batch->y && batch->y->dtype == CLV_I64 && t->b->shards[t->b->n_stages].worker < 0
                  ? batch->y->data
                  : NULL;
  if (!t->n_micro || !batch->y) return clv_fail(err, CLV_INVALID, "an empty batch or no labels");
  return CLV_OK;
}

void clv_trainer_set_length(clv_trainer *t, uint64_t steps) {
  uint64_t stated = t->config->train.schedule.total_steps;
  t->length = stated ? stated : steps;
}

static clv_code decide(clv_trainer *t, clv_step_result *ret, clv_err *err) {
  static const clv_lr_curve curves[] = {[CLV_LR_CONSTANT] = CLV_LR_CURVE_CONSTANT,
                                        [CLV_LR_STEP] = CLV_LR_CURVE_STEP,
                                        [CLV_LR_COSINE] = CLV_LR_CURVE_COSINE,
                                        [CLV_LR_LINEAR] = CLV_LR_CURVE_LINEAR};
  const clv_train_config *c = &t->config->train;
  clv_lr_schedule schedule = {curves[c->schedule.kind], c->schedule.warmup_steps,
                              c->schedule.step_size, t->length, c->schedule.gamma};
  double norm_sq = 0;
  for (uint32_t i = 0; i < t->grad_at[t->b->n_stages]; i++) norm_sq += t->grad_sq[i];
  bool apply = t->finite && isfinite(norm_sq);
  clv_frame f = {.kind = CLV_COMMIT, .context = t->committed + 1, .step = t->committed + 1};
  f.commit.step = t->committed + 1;
  f.commit.apply = apply;
  f.commit.scale = apply ? (float)clv_clip_scale(norm_sq, c->clip_grad_norm) : 0;
  f.commit.lr = (float)clv_lr_at(&schedule, c->optimizer.lr, t->committed);
  CLV_TRY(clv_node_commit(t->node, &f, err));
  t->committed++;
  ret->applied = apply;
  ret->grad_norm = sqrt(norm_sq);
  ret->lr = f.commit.lr;
  return CLV_OK;
}

static clv_code run_step(clv_trainer *t, const clv_batch *batch, clv_step_result *ret,
                         clv_err *err) {
  *ret = (clv_step_result){.samples = batch->n};
  CLV_TRY(begin_step(t, batch, err));
  uint32_t window = window_of(t);
  while (t->losses_in < t->n_micro || t->votes_in < t->votes_wanted) {
    while (t->posted < t->n_micro && t->posted - done_count(t) < window)
      CLV_TRY(inject(t, batch, t->posted++, err));
    t->progress = false;
    CLV_TRY(clv_trainer_wait(t, &t->progress, &ret->wait_ns, "loss or vote", err));
  }
  for (uint32_t k = 0; k < t->n_micro; k++)
    ret->loss += t->losses[k] * ((double)t->sizes[k] / (double)t->samples);
  ret->correct = t->correct;
  t->deadline_ns = 0;
  return decide(t, ret, err);
}

clv_code clv_trainer_step(clv_trainer *t, const clv_batch *batch, clv_step_result *ret,
                          clv_err *err) {
  return clv_trainer_explain(t, run_step(t, batch, ret, err), err);
}

clv_code clv_trainer_flush(clv_trainer *t, clv_err *err) {
  uint32_t sent;
  CLV_TRY(clv_node_flush_commits(t->node, &sent, err));
  while (t->committed_in < clv_node_commits_sent(t->node)) {
    t->progress = false;
    CLV_TRY(clv_trainer_wait(t, &t->progress, NULL, "COMMITTED", err));
  }
  return CLV_OK;
}

/* ---- evaluation -------------------------------------------------------------------------------------- */

static clv_code make_loss_stage(clv_trainer *t, clv_err *err) {
  if (t->loss_stage) return CLV_OK;
  clv_stage_options o = {
      .index = t->b->n_stages, .backend = clv_backend_cpu(), .threads = 1, .max_micro_batches = 1};
  const clv_graph *loss = t->b->shards[t->b->n_stages].graph;
  CLV_TRY(clv_loss_graph(clv_loss_name(t->config->loss.kind), &loss->nodes[0].shape,
                         t->b->micro_size, &o.graph, err));
  return clv_stage_new(&o, &t->loss_stage, err);
}

static clv_code eval_inject(clv_trainer *t, const clv_dataset *data, const uint32_t *index,
                            size_t row, size_t n, clv_err *err) {
  uint32_t k = 0;
  while (t->eval_slots[k].n) k++;
  CLV_AUTO(clv_tensor_unrefp) clv_tensor *x = NULL, *y = NULL;
  clv_shape xs = clv_dataset_x_shape(data, n), ys = clv_dataset_y_shape(data, n);
  CLV_TRY(clv_pool_tensor(t->pool, clv_dataset_x_dtype(data), &xs, &x, err));
  if (clv_dataset_has_labels(data))
    CLV_TRY(clv_pool_tensor(t->pool, clv_dataset_y_dtype(data), &ys, &y, err));
  CLV_TRY(clv_batch_fill(data, index, n, x, y, err));
  t->eval_slots[k] = (struct eval_slot){clv_steal(&y), row, n};
  t->eval_outstanding++;
  clv_packet *p;
  CLV_TRY(new_forward(t, 0, t->committed, k, CLV_EVAL_WINDOW, 0, &p, err));
  clv_packet_add(p, x);
  clv_node_send(t->node, p);
  return CLV_OK;
}

static clv_code eval_rows(clv_trainer *t, const clv_dataset *data, const clv_subset *rows,
                          uint64_t *wait_ns, clv_err *err) {
  size_t at = 0, batch = (size_t)t->b->eval_size;
  while (at < rows->n || t->eval_outstanding) {
    while (at < rows->n && t->eval_outstanding < CLV_EVAL_WINDOW) {
      size_t n = CLV_MIN(batch, rows->n - at);
      CLV_TRY(eval_inject(t, data, rows->index + at, at, n, err));
      at += n;
    }
    t->progress = false;
    CLV_TRY(clv_trainer_wait(t, &t->progress, wait_ns, "evaluation output", err));
  }
  return CLV_OK;
}

static clv_code run_eval(clv_trainer *t, const clv_dataset *data, const clv_subset *rows,
                         clv_step_result *ret, clv_tensor **predictions, clv_err *err) {
  *ret = (clv_step_result){.samples = rows->n};
  CLV_TRY(make_loss_stage(t, err));
  CLV_TRY(clv_trainer_flush(t, err));
  if (predictions) {
    const clv_graph *last = t->b->shards[t->b->n_stages - 1].graph;
    clv_shape shape = last->nodes[last->output].shape;
    shape.dim[0] = (int64_t)rows->n;
    CLV_TRY(clv_tensor_new(CLV_F32, &shape, &t->predictions, err));
  }
  t->eval_loss = 0;
  t->correct = 0;
  clv_code code = eval_rows(t, data, rows, &ret->wait_ns, err);
  for (uint32_t k = 0; k < CLV_EVAL_WINDOW; k++) {
    t->eval_slots[k].y = clv_tensor_unref(t->eval_slots[k].y);
    t->eval_slots[k].n = 0;
  }
  t->eval_outstanding = 0;
  if (predictions && code == CLV_OK) *predictions = clv_tensor_ref(t->predictions);
  t->predictions = clv_tensor_unref(t->predictions);
  ret->loss = rows->n ? t->eval_loss / (double)rows->n : 0;
  ret->correct = t->correct;
  return code;
}

clv_code clv_trainer_eval(clv_trainer *t, const clv_dataset *data, const clv_subset *rows,
                          clv_step_result *ret, clv_tensor **predictions, clv_err *err) {
  return clv_trainer_explain(t, run_eval(t, data, rows, ret, predictions, err), err);
}
