/* SPDX-License-Identifier: Apache-2.0
 *
 * Evaluation (clv_trainer_eval). The master sends the records in a permuted order, because records
 * of one class are often neighbours in the files and a worker could infer labels from their order.
 * Each batch has its own context. A few batches are in flight while the loader reads the next one.
 * The master collects the outputs in the order of the files. Then it computes the loss and the
 * scores in that order, so their sums do not depend on the permutation. Outputs of more than
 * COLLECT_BYTES are not collected unless the caller wants predictions: each batch is evaluated when
 * its output arrives.
 */
#include <stdlib.h>
#include <string.h>

#include "master/train/train_int.h"

enum { COLLECT_BYTES = 256 << 20 };

typedef struct eval_slot {
  cleave_context context;
  cleave_future output;
  clv_tensor *y, *lengths; /* y: NULL without labels; lengths: NULL unless sequences are packed */
  size_t at, n;            /* index of the batch's first record in the sent order; records */
} eval_slot;

/* Outputs of records with their labels, row by row. */
typedef struct answers {
  clv_tensor *outputs;     /* f32 [rows, ...], padded */
  clv_tensor *y, *lengths; /* [rows, ...]; NULL as in eval_slot */
} answers;

typedef struct evaluation {
  clv_trainer *t;
  const clv_dataset *data;
  const clv_subset *rows;           /* the records in the order of the files */
  uint32_t *place;                  /* [rows->n] index in `rows` of each record sent */
  clv_subset sent;                  /* rows in the order in which they are sent */
  clv_loader *loader;               /* of `sent`; NULL without rows */
  eval_slot slots[CLV_EVAL_WINDOW]; /* circular list, the oldest at `first` */
  size_t first, in_flight, at;
  bool collects;        /* `got` has all rows; false: those of one batch */
  answers got;          /* outputs and labels received; allocated with the first batch */
  double loss, counted; /* sums of weighted losses and of weights */
  clv_score *score;     /* NULL: no scores */
} evaluation;

static void slot_done(eval_slot *s) {
  s->y = clv_tensor_unref(s->y);
  s->lengths = clv_tensor_unref(s->lengths);
}

/* Frees an evaluation, and ends the contexts in flight of one that failed. */
static void evaluation_done(evaluation *e) {
  for (; e->in_flight; e->in_flight--) {
    eval_slot *s = &e->slots[e->first++ % CLV_EVAL_WINDOW];
    slot_done(s);
    (void)!cleave_context_end(e->t->runtime, s->context, NULL);
  }
  clv_tensor_unref(e->got.outputs);
  clv_tensor_unref(e->got.y);
  clv_tensor_unref(e->got.lengths);
  clv_loader_free(e->loader);
  clv_subset_done(&e->sent);
  free(e->place);
}

/* ---- the order ------------------------------------------------------------------------------- */

/* Draws the order in which records are sent. It depends on the seed and on how many there are, so
 * every evaluation of a run makes the same batches, wherever its stages are. */
static clv_code draw_order(evaluation *e, clv_err *err) {
  size_t n = e->rows->n;
  clv_key key;
  CLV_TRY(clv_alloc(n, sizeof *e->place, &e->place, err));
  CLV_TRY(clv_alloc(n, sizeof *e->sent.index, &e->sent.index, err));
  CLV_TRY(clv_key_derive("cleave evaluation", &e->t->config->train.seed.key, NULL, 0, &key, err));
  const clv_rng_key stream = clv_rng_key_of(&key);
  clv_rng_permutation(&stream, e->place, n);
  for (size_t i = 0; i < n; i++) e->sent.index[i] = e->rows->index[e->place[i]];
  e->sent.n = n;
  return CLV_OK;
}

/* ---- sending --------------------------------------------------------------------------------- */

/* Calls all stages for a batch and begins to fetch the output of the last one into s->output. */
static clv_code call_stages(evaluation *e, eval_slot *s, const clv_batch *batch,
                            cleave_reference *ret, clv_err *err) {
  clv_trainer *t = e->t;
  uint32_t last = t->b->n_stages - 1, n;
  clv_tensor *x[CLV_MAX_INPUTS];
  cleave_reference in[CLV_MAX_INPUTS];
  for (size_t k = 0; k < t->b->inputs.n; k++) x[k] = clv_batch_input(batch, k);
  clv_sequences of;
  CLV_TRY(clv_trainer_select_sequences(t, x, 0, s->n, &of, err));
  bool cached = t->cache.data && t->cache.data == e->data;
  if (cached) CLV_TRY(clv_trainer_front_leaf(t, s->context, batch->index, x, &of, &in[0], err));
  for (uint32_t i = cached; i < last; i++) {
    CLV_TRY(clv_trainer_stage_inputs(t, s->context, i, x, &of, in, &n, err));
    CLV_TRY(clv_trainer_charge_hop(t, i, s->n, (uint64_t)of.rows, false, err));
    CLV_TRY_API(cleave_call(t->runtime, s->context, t->modules[i], in, n, &in[0], CLV_API_ERROR));
  }
  CLV_TRY(clv_trainer_stage_inputs(t, s->context, last, x, &of, in, &n, err));
  CLV_TRY_API(cleave_rpc_async(t->runtime, s->context, t->modules[last], in, n, ret, &s->output,
                               CLV_API_ERROR));
  return CLV_OK;
}

/* Copies labels or lengths of a batch, because the loader reuses its memory for the next batch. */
static clv_code copy_tensor(const clv_tensor *of, clv_tensor **ret, clv_err *err) {
  if (!of) return CLV_OK;
  CLV_TRY(clv_tensor_new(of->dtype, &of->shape, ret, err));
  memcpy((*ret)->data, of->data, of->bytes);
  return CLV_OK;
}

static clv_code send_batch(evaluation *e, clv_err *err) {
  clv_trainer *t = e->t;
  eval_slot *s = &e->slots[(e->first + e->in_flight) % CLV_EVAL_WINDOW];
  CLV_AUTO(clv_tensor_unrefp) clv_tensor *y = NULL, *lengths = NULL;
  clv_batch batch;
  cleave_context_options o = {.size = sizeof o, .evaluation = true};
  cleave_reference output;
  CLV_TRY(clv_loader_next(e->loader, &batch, err));
  CLV_TRY(copy_tensor(batch.y, &y, err));
  if (t->b->lengths_input >= 0)
    CLV_TRY(copy_tensor(clv_batch_input(&batch, (size_t)t->b->lengths_input), &lengths, err));
  *s = (eval_slot){.at = e->at, .n = batch.n};
  CLV_TRY_API(cleave_context_open(t->runtime, &o, &s->context, CLV_API_ERROR));
  s->y = clv_steal(&y);
  s->lengths = clv_steal(&lengths);
  e->in_flight++;
  e->at += batch.n;
  return call_stages(e, s, &batch, &output, err);
}

/* ---- loss and scores ------------------------------------------------------------------------- */

static clv_code local_loss(clv_trainer *t, cleave_module **ret, clv_err *err) {
  bool at_master = t->b->stages[t->b->n_stages].worker < 0;
  if (!at_master && !t->local_loss)
    CLV_TRY(clv_trainer_load_loss(t, "(loss at the master)", -1, &t->local_loss, err));
  *ret = at_master ? t->modules[t->b->n_stages] : t->local_loss;
  return CLV_OK;
}

static clv_code sequences_of(const clv_trainer *t, const clv_tensor *lengths, size_t start,
                             size_t n, clv_sequences *ret, clv_err *err) {
  clv_tensor *x[CLV_MAX_INPUTS] = {NULL};
  if (lengths) x[t->b->lengths_input] = (clv_tensor *)(uintptr_t)lengths;
  return clv_trainer_select_sequences(t, x, start, n, ret, err);
}

/* Computes the loss of n rows of the answers, in a separate context. Each leaf copies its tensor,
 * so the trainer's buffer for packed sequences can serve both. */
static clv_code loss_of(evaluation *e, size_t start, size_t n, float *ret, clv_err *err) {
  clv_trainer *t = e->t;
  cleave_context_options o = {.size = sizeof o, .evaluation = true};
  bool packed = t->b->stages[t->b->n_stages].graph->nodes[0].max_positions;
  cleave_context context;
  cleave_reference both[2];
  cleave_future loss;
  cleave_module *module;
  cleave_tensor part;
  clv_sequences of;
  CLV_TRY(local_loss(t, &module, err));
  CLV_TRY(sequences_of(t, e->got.lengths, start, n, &of, err));
  CLV_TRY_API(cleave_context_open(t->runtime, &o, &context, CLV_API_ERROR));
  CLV_TRY(clv_trainer_pack_rows(t, &of, e->got.outputs, packed, 0, &part, err));
  CLV_TRY_API(cleave_leaf(t->runtime, context, &part, false, &both[0], CLV_API_ERROR));
  CLV_TRY(clv_trainer_pack_targets(t, &of, e->got.y, &part, err));
  CLV_TRY_API(cleave_leaf(t->runtime, context, &part, false, &both[1], CLV_API_ERROR));
  CLV_TRY_API(cleave_rpc_async(t->runtime, context, module, both, 2, NULL, &loss, CLV_API_ERROR));
  CLV_TRY_API(cleave_wait(t->runtime, loss, 0, &t->fetched, CLV_API_ERROR));
  *ret = *(const float *)t->fetched.data;
  CLV_TRY_API(cleave_context_end(t->runtime, context, CLV_API_ERROR));
  return CLV_OK;
}

/* Adds predictions of a binary loss, whose labels are 0 or 1 as f32. */
static clv_code add_sides(clv_score *score, const float *outputs, const clv_tensor *y, size_t start,
                          size_t n, clv_err *err) {
  /* never reached: the loss refuses such labels */
  if (y->n != (size_t)y->shape.dim[0]) return CLV_OK;
  for (size_t i = 0; i < n; i++) {
    int64_t side = ((const float *)y->data)[start + i] > 0.5f;
    CLV_TRY(clv_score_add(score, outputs + i, &side, 1, err));
  }
  return CLV_OK;
}

static clv_code add_scores(const evaluation *e, const float *outputs, size_t start, size_t n,
                           clv_err *err) {
  const clv_tensor *y = e->got.y;
  if (!e->score) return CLV_OK;
  if (y->dtype != CLV_I64) return add_sides(e->score, outputs, y, start, n, err);
  size_t per_row = y->n / (size_t)y->shape.dim[0];
  return clv_score_add(e->score, outputs, (const int64_t *)y->data + start * per_row, n * per_row,
                       err);
}

/* Adds loss, right predictions and scores of n rows from `start` on, at most a batch. */
static clv_code evaluate_rows(evaluation *e, size_t start, size_t n, clv_step_result *ret,
                              clv_err *err) {
  clv_trainer *t = e->t;
  float loss;
  CLV_TRY(loss_of(e, start, n, &loss, err));
  const cleave_tensor outputs = clv_batch_rows(e->got.outputs, start, n);
  double counted = clv_trainer_batch_weight(t, e->got.y, start, n);
  e->loss += loss * counted;
  e->counted += counted;
  ret->labelled += clv_trainer_count_labelled(t, e->got.y, start, n);
  if (clv_trainer_has_accuracy(t))
    ret->correct += clv_trainer_count_correct(t, &outputs, e->got.y, start, n);
  return add_scores(e, outputs.data, start, n, err);
}

static clv_code evaluate_all(evaluation *e, clv_step_result *ret, clv_err *err) {
  size_t batch = (size_t)e->t->b->eval_size;
  if (!e->collects || !e->got.y) return CLV_OK;
  for (size_t at = 0; at < e->rows->n; at += batch)
    CLV_TRY(evaluate_rows(e, at, CLV_MIN(batch, e->rows->n - at), ret, err));
  return CLV_OK;
}

/* ---- collecting ------------------------------------------------------------------------------ */

static size_t rows_collected(const evaluation *e) {
  return e->collects ? e->rows->n : CLV_MIN((size_t)e->t->b->eval_size, e->rows->n);
}

static clv_code make_rows(const evaluation *e, clv_dtype dtype, const clv_shape *of,
                          clv_tensor **ret, clv_err *err) {
  clv_shape shape = *of;
  shape.dim[0] = (int64_t)rows_collected(e);
  return clv_tensor_new(dtype, &shape, ret, err);
}

/* Allocates labels and lengths, with the shapes of the first batch. */
static clv_code make_answers(evaluation *e, const eval_slot *s, clv_err *err) {
  if (s->y && !e->got.y) CLV_TRY(make_rows(e, s->y->dtype, &s->y->shape, &e->got.y, err));
  if (s->lengths && !e->got.lengths)
    CLV_TRY(make_rows(e, s->lengths->dtype, &s->lengths->shape, &e->got.lengths, err));
  return CLV_OK;
}

static void put_row(clv_tensor *to, size_t row, const void *from, size_t from_row) {
  size_t bytes = to->bytes / (size_t)to->shape.dim[0];
  memcpy((char *)to->data + row * bytes, (const char *)from + from_row * bytes, bytes);
}

static void put_rows(evaluation *e, const eval_slot *s, const void *outputs) {
  for (size_t i = 0; i < s->n; i++) {
    size_t row = e->collects ? e->place[s->at + i] : i;
    put_row(e->got.outputs, row, outputs, i);
    if (s->y) put_row(e->got.y, row, s->y->data, i);
    if (s->lengths) put_row(e->got.lengths, row, s->lengths->data, i);
  }
}

static clv_code take_output(evaluation *e, const eval_slot *s, clv_err *err) {
  clv_trainer *t = e->t;
  CLV_TRY_API(cleave_wait(t->runtime, s->output, 0, &t->fetched, CLV_API_ERROR));
  clv_sequences of;
  cleave_tensor output;
  CLV_TRY(sequences_of(t, s->lengths, 0, s->n, &of, err));
  CLV_TRY(clv_trainer_unpack_output(t, &of, &t->fetched, &output, err));
  CLV_TRY(make_answers(e, s, err));
  put_rows(e, s, output.data);
  return CLV_OK;
}

/* Waits for the oldest batch in flight and takes its output. */
static clv_code finish_one(evaluation *e, clv_step_result *ret, clv_err *err) {
  clv_trainer *t = e->t;
  eval_slot *s = &e->slots[e->first % CLV_EVAL_WINDOW];
  CLV_TRY(take_output(e, s, err));
  if (!e->collects && s->y) CLV_TRY(evaluate_rows(e, 0, s->n, ret, err));
  CLV_TRY_API(cleave_context_end(t->runtime, s->context, CLV_API_ERROR));
  slot_done(s);
  e->first++;
  e->in_flight--;
  return CLV_OK;
}

static clv_code all_rows(evaluation *e, clv_step_result *ret, clv_err *err) {
  clv_batches_options o = {
      .subset = &e->sent, .batch = (size_t)e->t->b->eval_size, .epochs = 1, .is_evaluation = true};
  if (e->rows->n) CLV_TRY(clv_loader_new(e->data, &o, &e->loader, err));
  while (e->at < e->rows->n || e->in_flight) {
    if (e->t->use == CLV_TRAINER_EVALUATES) CLV_TRY(clv_interrupt_check(err));
    while (e->at < e->rows->n && e->in_flight < CLV_EVAL_WINDOW) CLV_TRY(send_batch(e, err));
    CLV_TRY(finish_one(e, ret, err));
  }
  CLV_TRY(evaluate_all(e, ret, err));
  ret->loss = e->counted > 0 ? e->loss / e->counted : 0;
  return CLV_OK;
}

/* Allocates the outputs of all rows, or of one batch if those are too large. */
static clv_code make_outputs(evaluation *e, bool predicts, clv_err *err) {
  const clv_graph *whole = e->t->b->full_graph;
  const clv_node *out = &whole->nodes[whole->output];
  size_t row = sizeof(float), bytes;
  for (int i = 1; i < out->shape.rank; i++) row *= (size_t)out->shape.dim[i];
  e->collects =
      predicts || (clv_mul_size(e->rows->n, row, &bytes) && bytes <= (size_t)COLLECT_BYTES);
  return make_rows(e, CLV_F32, &out->shape, &e->got.outputs, err);
}

clv_code clv_trainer_eval(clv_trainer *t, const clv_dataset *data, const clv_subset *rows,
                          clv_score *score, clv_step_result *ret, clv_tensor **predictions,
                          clv_err *err) {
  CLV_AUTO(evaluation_done) evaluation e = {.t = t, .data = data, .rows = rows, .score = score};
  if (score) clv_score_reset(score);
  *ret = (clv_step_result){.samples = rows->n};
  clv_trainer_set_activity(t, "evaluation after step", t->committed);
  t->cache.use = CLV_CACHE_NONE;
  if (t->cache.data == data) clv_trainer_choose_cache_use(t, rows->index, rows->n);
  CLV_TRY(clv_trainer_expect(t, CLV_MIN((uint64_t)t->b->eval_size, rows->n), false, err));
  CLV_TRY(draw_order(&e, err));
  if (rows->n || predictions) CLV_TRY(make_outputs(&e, predictions != NULL, err));
  CLV_TRY(all_rows(&e, ret, err));
  if (predictions) *predictions = clv_tensor_ref(e.got.outputs);
  return CLV_OK;
}
