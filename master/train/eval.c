/* SPDX-License-Identifier: Apache-2.0
 *
 * Evaluation: each batch is a context of its own, a few of them in flight, and the next one is
 * being read. The labels are at home, and so is the loss.
 */
#include <string.h>

#include "master/train/train_int.h"

typedef struct eval_slot {
  cleave_context context;
  cleave_future output, loss;
  clv_tensor *y, *lengths; /* lengths: NULL unless sequences are packed */
  size_t row, n;
} eval_slot;

typedef struct evaluation {
  clv_trainer *t;
  const clv_dataset *data;
  const clv_subset *rows;
  clv_loader *loader;               /* NULL without rows */
  eval_slot slots[CLV_EVAL_WINDOW]; /* a ring */
  size_t first, in_flight, at;
  clv_tensor *predictions;
  double loss, counted; /* sums */
  clv_score *score;     /* NULL: none is wanted */
} evaluation;

/* What is left of an evaluation that failed. */
static void evaluation_done(evaluation *e) {
  for (; e->in_flight; e->in_flight--) {
    eval_slot *s = &e->slots[e->first++ % CLV_EVAL_WINDOW];
    s->y = clv_tensor_unref(s->y);
    s->lengths = clv_tensor_unref(s->lengths);
    (void)!cleave_context_end(e->t->runtime, s->context, NULL);
  }
  clv_tensor_unref(e->predictions);
  clv_loader_free(e->loader);
}

static clv_code local_loss(clv_trainer *t, cleave_module **ret, clv_err *err) {
  bool at_home = t->b->stages[t->b->n_stages].worker < 0;
  if (!at_home && !t->local_loss)
    CLV_TRY(clv_trainer_load_loss(t, "(loss at home)", -1, &t->local_loss, err));
  *ret = at_home ? t->modules[t->b->n_stages] : t->local_loss;
  return CLV_OK;
}

/* The output of the last stage, on its way here. */
static clv_code call_stages(evaluation *e, eval_slot *s, const clv_batch *batch,
                            cleave_reference *ret, clv_err *err) {
  clv_trainer *t = e->t;
  uint32_t last = t->b->n_stages - 1, n;
  clv_tensor *x[CLV_MAX_INPUTS];
  cleave_reference in[CLV_MAX_INPUTS];
  for (size_t k = 0; k < t->b->inputs.n; k++) x[k] = clv_batch_input(batch, k);
  clv_sequences of;
  CLV_TRY(clv_trainer_sequences(t, x, 0, s->n, &of, err));
  bool cached = t->cache.data && t->cache.data == e->data;
  if (cached) CLV_TRY(clv_trainer_front(t, s->context, batch->index, x, &of, &in[0], err));
  for (uint32_t i = cached; i < last; i++) {
    CLV_TRY(clv_trainer_leaves(t, s->context, i, x, &of, in, &n, err));
    CLV_TRY(clv_trainer_hop(t, i, s->n, (uint64_t)of.rows, false, err));
    CLV_API(cleave_call(t->runtime, s->context, t->modules[i], in, n, &in[0], CLV_WHY));
  }
  CLV_TRY(clv_trainer_leaves(t, s->context, last, x, &of, in, &n, err));
  CLV_API(
      cleave_rpc_async(t->runtime, s->context, t->modules[last], in, n, ret, &s->output, CLV_WHY));
  return CLV_OK;
}

static clv_code sequences_of(const clv_trainer *t, const eval_slot *s, clv_sequences *ret,
                             clv_err *err) {
  clv_tensor *x[CLV_MAX_INPUTS] = {NULL};
  if (s->lengths) x[t->b->lengths] = s->lengths;
  return clv_trainer_sequences(t, x, 0, s->n, ret, err);
}

static clv_code call_loss(evaluation *e, eval_slot *s, cleave_reference output, clv_err *err) {
  clv_trainer *t = e->t;
  clv_sequences of;
  cleave_tensor y;
  CLV_TRY(sequences_of(t, s, &of, err));
  CLV_TRY(clv_trainer_targets(t, &of, s->y, &y, err));
  cleave_module *loss;
  cleave_reference target;
  CLV_TRY(local_loss(t, &loss, err));
  CLV_API(cleave_leaf(t->runtime, s->context, &y, false, &target, CLV_WHY));
  const cleave_reference both[] = {output, target};
  CLV_API(cleave_rpc_async(t->runtime, s->context, loss, both, 2, NULL, &s->loss, CLV_WHY));
  return CLV_OK;
}

/* A batch's labels and lengths are needed again after the next one has been read. */
static clv_code keep(const clv_tensor *of, clv_tensor **ret, clv_err *err) {
  if (!of) return CLV_OK;
  CLV_TRY(clv_tensor_new(of->dtype, &of->shape, ret, err));
  memcpy((*ret)->data, of->data, of->bytes);
  return CLV_OK;
}

static clv_code inject(evaluation *e, clv_err *err) {
  clv_trainer *t = e->t;
  eval_slot *s = &e->slots[(e->first + e->in_flight) % CLV_EVAL_WINDOW];
  CLV_AUTO(clv_tensor_unrefp) clv_tensor *y = NULL, *lengths = NULL;
  clv_batch batch;
  cleave_context_options o = {.size = sizeof o, .evaluation = true};
  cleave_reference output;
  CLV_TRY(clv_loader_next(e->loader, &batch, err));
  CLV_TRY(keep(batch.y, &y, err));
  if (t->b->lengths >= 0)
    CLV_TRY(keep(clv_batch_input(&batch, (size_t)t->b->lengths), &lengths, err));
  *s = (eval_slot){.row = e->at, .n = batch.n};
  CLV_API(cleave_context_open(t->runtime, &o, &s->context, CLV_WHY));
  s->y = clv_steal(&y);
  s->lengths = clv_steal(&lengths);
  e->in_flight++;
  e->at += batch.n;
  CLV_TRY(call_stages(e, s, &batch, &output, err));
  return s->y ? call_loss(e, s, output, err) : CLV_OK;
}

/* Labels of binary losses are sides. */
static clv_code add_sides(clv_score *score, const float *outputs, const clv_tensor *y, size_t n,
                          clv_err *err) {
  if (y->n != (size_t)y->shape.dim[0]) return CLV_OK; /* which the loss refuses */
  for (size_t i = 0; i < n; i++) {
    int64_t side = ((const float *)y->data)[i] > 0.5f;
    CLV_TRY(clv_score_add(score, outputs + i, &side, 1, err));
  }
  return CLV_OK;
}

static clv_code add_scores(const evaluation *e, const eval_slot *s, const float *outputs,
                           clv_err *err) {
  if (!e->score || !s->y) return CLV_OK;
  if (s->y->dtype != CLV_I64) return add_sides(e->score, outputs, s->y, s->n, err);
  size_t per_row = s->y->n / (size_t)s->y->shape.dim[0];
  return clv_score_add(e->score, outputs, s->y->data, s->n * per_row, err);
}

static clv_code take_output(evaluation *e, const eval_slot *s, clv_step_result *ret, clv_err *err) {
  clv_trainer *t = e->t;
  CLV_API(cleave_wait(t->runtime, s->output, 0, &t->fetched, CLV_WHY));
  clv_sequences of;
  cleave_tensor output;
  CLV_TRY(sequences_of(t, s, &of, err));
  CLV_TRY(clv_trainer_padded(t, &of, &t->fetched, &output, err));
  size_t bytes = cleave_tensor_count(&output) * sizeof(float);
  if (e->predictions)
    memcpy((char *)e->predictions->data + s->row * (bytes / s->n), output.data, bytes);
  if (s->y && clv_trainer_counts_right(t))
    ret->correct += clv_trainer_count_right(t, &output, s->y, 0, s->n);
  return add_scores(e, s, output.data, err);
}

/* The oldest in flight. */
static clv_code finish_one(evaluation *e, clv_step_result *ret, clv_err *err) {
  clv_trainer *t = e->t;
  eval_slot *s = &e->slots[e->first % CLV_EVAL_WINDOW];
  CLV_TRY(take_output(e, s, ret, err));
  if (s->y) {
    CLV_API(cleave_wait(t->runtime, s->loss, 0, &t->fetched, CLV_WHY));
    double counted = clv_trainer_counted(t, s->y, 0, s->n);
    e->loss += *(const float *)t->fetched.data * counted;
    e->counted += counted;
    ret->judged += clv_trainer_judged(t, s->y, 0, s->n);
  }
  CLV_API(cleave_context_end(t->runtime, s->context, CLV_WHY));
  s->y = clv_tensor_unref(s->y);
  s->lengths = clv_tensor_unref(s->lengths);
  e->first++;
  e->in_flight--;
  return CLV_OK;
}

static clv_code all_rows(evaluation *e, clv_step_result *ret, clv_err *err) {
  clv_batches_options o = {
      .subset = e->rows, .batch = (size_t)e->t->b->eval_size, .epochs = 1, .evaluation = true};
  if (e->rows->n) CLV_TRY(clv_loader_new(e->data, &o, &e->loader, err));
  while (e->at < e->rows->n || e->in_flight) {
    if (e->t->use == CLV_TRAINER_EVALUATES) CLV_TRY(clv_interrupt_check(err));
    while (e->at < e->rows->n && e->in_flight < CLV_EVAL_WINDOW) CLV_TRY(inject(e, err));
    CLV_TRY(finish_one(e, ret, err));
  }
  ret->loss = e->counted > 0 ? e->loss / e->counted : 0;
  return CLV_OK;
}

clv_code clv_trainer_eval(clv_trainer *t, const clv_dataset *data, const clv_subset *rows,
                          clv_score *score, clv_step_result *ret, clv_tensor **predictions,
                          clv_err *err) {
  CLV_AUTO(evaluation_done) evaluation e = {.t = t, .data = data, .rows = rows, .score = score};
  if (score) clv_score_start(score);
  *ret = (clv_step_result){.samples = rows->n};
  clv_trainer_doing(t, "evaluation after step", t->committed);
  t->cache.use = CLV_CACHE_NONE;
  if (t->cache.data == data) clv_trainer_look_up(t, rows->index, rows->n);
  CLV_TRY(clv_trainer_expect(t, CLV_MIN((uint64_t)t->b->eval_size, rows->n), false, err));
  if (predictions) {
    const clv_graph *whole = t->b->whole;
    clv_shape shape = whole->nodes[whole->output].shape;
    shape.dim[0] = (int64_t)rows->n;
    CLV_TRY(clv_tensor_new(CLV_F32, &shape, &e.predictions, err));
  }
  CLV_TRY(all_rows(&e, ret, err));
  if (predictions) *predictions = clv_tensor_ref(e.predictions);
  return CLV_OK;
}
