/* SPDX-License-Identifier: Apache-2.0
 *
 * One step: all calls of all micro-batches and the whole backward are told to the nodes at once; they
 * run what is ready. How many micro-batches are in flight is a condition on the calls of the first
 * stage that learns, so that the driver reacts to nothing in the middle of a step.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "master/train/train_int.h"

cleave_tensor clv_rows_of(const clv_tensor *batch, size_t start, size_t n) {
  size_t row = batch->bytes / (size_t)batch->shape.dim[0];
  cleave_tensor t = {.dtype = (cleave_dtype)batch->dtype,
                     .rank = batch->shape.rank,
                     .data = (char *)batch->data + start * row};
  memcpy(t.shape, batch->shape.dim, sizeof t.shape);
  t.shape[0] = (int64_t)n;
  return t;
}

size_t clv_count_correct(const cleave_tensor *prediction, const int64_t *labels, size_t n) {
  size_t classes = cleave_tensor_count(prediction) / n, correct = 0;
  const float *x = prediction->data;
  for (size_t i = 0; i < n; i++, x += classes) {
    size_t best = 0;
    for (size_t c = 1; c < classes; c++)
      if (x[c] > x[best]) best = c;
    correct += (int64_t)best == labels[i];
  }
  return correct;
}

clv_code clv_trainer_forward(clv_trainer *t, cleave_context c, const cleave_tensor *x,
                             cleave_reference after, micro *ret, clv_err *err) {
  const clv_blueprint *b = t->b;
  CLV_API(cleave_leaf(t->runtime, c, x, false, &ret->output, CLV_WHY));
  for (uint32_t i = 0; i < b->n_stages; i++) {
    bool first = i == t->first_learning;
    cleave_call_options o = {.send_to = cleave_module_node(t->modules[i + 1])};
    if (first) o.after = after;
    CLV_API(
        cleave_call_with(t->runtime, c, t->modules[i], &ret->output, 1, &o, &ret->output, CLV_WHY));
    if (first) ret->first_learning = ret->output;
  }
  return CLV_OK;
}

uint32_t clv_trainer_window(const clv_trainer *t, uint32_t n_micro) {
  uint32_t stages = t->b->n_stages + 1;
  switch (t->config->pipeline.schedule) {
    case CLV_PIPE_NAIVE:
      return 1;
    case CLV_PIPE_1F1B:
      return CLV_MIN(stages, n_micro);
    case CLV_PIPE_GPIPE:
      break;
  }
  return n_micro;
}

static uint32_t cut(clv_trainer *t, const clv_batch *batch) {
  uint32_t n = (uint32_t)clv_chunk_sizes(batch->n, t->b->micro_batches, t->sizes);
  size_t at = 0;
  for (uint32_t k = 0; k < n; at += t->sizes[k++]) {
    t->micros[k] = (micro){.start = at, .size = t->sizes[k]};
    t->shares[k] = (float)((double)t->sizes[k] / (double)batch->n);
  }
  return n;
}

static clv_code call_micro(clv_trainer *t, cleave_context c, const clv_batch *batch, uint32_t k,
                           uint32_t window, clv_err *err) {
  micro *m = &t->micros[k];
  cleave_tensor x = clv_rows_of(batch->x, m->start, m->size);
  cleave_tensor y = clv_rows_of(batch->y, m->start, m->size);
  cleave_reference after = {0}, target;
  if (k >= window) after = t->micros[k - window].first_learning;
  CLV_TRY(clv_trainer_forward(t, c, &x, after, m, err));
  CLV_API(cleave_leaf(t->runtime, c, &y, false, &target, CLV_WHY));
  const cleave_reference both[] = {m->output, target};
  CLV_API(cleave_rpc_async(t->runtime, c, t->modules[t->b->n_stages], both, 2, &t->losses[k],
                           &m->loss_here, CLV_WHY));
  return CLV_OK;
}

/* Losses have come with the backward; so have predictions, unless the loss is elsewhere. */
static clv_code collect(clv_trainer *t, const clv_batch *batch, uint32_t n, clv_step_result *ret,
                        clv_err *err) {
  bool classes = batch->y->dtype == CLV_I64 && t->b->shards[t->b->n_stages].worker < 0;
  for (uint32_t k = 0; k < n; k++) {
    const micro *m = &t->micros[k];
    CLV_API(cleave_wait(t->runtime, m->loss_here, 0, &t->fetched, CLV_WHY));
    ret->loss += *(const float *)t->fetched.data * ((double)m->size / (double)batch->n);
    if (!classes) continue;
    CLV_API(cleave_to_here(t->runtime, m->output, 0, &t->fetched, CLV_WHY));
    ret->correct +=
        clv_count_correct(&t->fetched, (const int64_t *)batch->y->data + m->start, m->size);
  }
  return CLV_OK;
}

static clv_code in_context(clv_trainer *t, cleave_context c, const clv_batch *batch,
                           clv_step_result *ret, clv_err *err) {
  uint32_t n = cut(t, batch), window = clv_trainer_window(t, n);
  cleave_stepped stepped;
  for (uint32_t k = 0; k < n; k++) CLV_TRY(call_micro(t, c, batch, k, window, err));
  CLV_API(cleave_backward_weighted(t->runtime, c, t->losses, t->shares, n, false, 0, CLV_WHY));
  CLV_TRY(collect(t, batch, n, ret, err));
  CLV_API(cleave_step(t->runtime, t->optimizer, c, 0, &stepped, CLV_WHY));
  ret->applied = stepped.applied;
  ret->grad_norm = stepped.norm;
  ret->lr = stepped.lr;
  return CLV_OK;
}

clv_code clv_trainer_step(clv_trainer *t, const clv_batch *batch, clv_step_result *ret,
                          clv_err *err) {
  cleave_context_options o = {.step = t->committed + 1};
  cleave_counts before, after;
  cleave_context c;
  *ret = (clv_step_result){.samples = batch->n};
  if (!batch->n || !batch->y) return clv_fail(err, CLV_INVALID, "an empty batch or no labels");
  clv_trainer_doing(t, "step", t->committed + 1);
  cleave_count(t->runtime, &before);
  CLV_API(cleave_context_open(t->runtime, &o, &c, CLV_WHY));
  CLV_TRY(in_context(t, c, batch, ret, err));
  CLV_API(cleave_context_end(t->runtime, c, CLV_WHY));
  t->committed++;
  cleave_count(t->runtime, &after);
  ret->wait_ns = after.idle_ns - before.idle_ns;
  return CLV_OK;
}
