/* SPDX-License-Identifier: Apache-2.0
 *
 * Evaluates a model (clv_trainer_eval). The master sends the records in a permuted order, because
 * records of one class are often neighbours in the files and a worker could infer labels from their
 * order. Each batch has its own context. A few batches are in flight while the loader reads the
 * next one. The master collects the outputs in the order of the files. Then it computes the loss
 * and the scores in that order, so their sums do not depend on the permutation. Outputs of more
 * than MAX_COLLECTED_BYTES are not collected unless the caller wants predictions: each batch is
 * evaluated when its output arrives.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "master/train/train_int.h"

enum { MAX_COLLECTED_BYTES = 256 << 20 };

typedef struct eval_slot {
  cleave_context context;
  cleave_future output;
  clv_tensor *y, *lengths; /* y: NULL without labels; lengths: NULL unless sequences are packed */
  size_t at, n; /* index of the batch's first record in the order of sending; number of records */
} eval_slot;

/* Outputs of records with their labels, row by row. */
typedef struct answer_tensors {
  clv_tensor *outputs; /* f32 [rows, ...], padded */
  /* y: [rows, ...] labels; NULL: the records have none. lengths: [rows, ...] lengths of sequences;
   * NULL: sequences are not packed. */
  clv_tensor *y, *lengths;
} answer_tensors;

typedef struct evaluation {
  clv_trainer *t;
  const clv_dataset *data;
  const clv_subset *rows;           /* the records in the order of the files */
  uint32_t *row_of_sent_record;     /* [rows->n] index in `rows` of each record sent */
  clv_subset sent_rows;             /* rows in the order in which they are sent */
  clv_loader *loader;               /* loader of `sent_rows`; NULL if there are no rows */
  eval_slot slots[CLV_EVAL_WINDOW]; /* circular list, the oldest at `oldest_slot` */
  size_t oldest_slot, n_in_flight, n_sent;
  bool collects_all_rows; /* `received_answers` has all rows; false: rows of one batch */
  /* outputs and labels received; allocated with the first batch */
  answer_tensors received_answers;
  /* sums of weighted losses and of weights, if records have one label */
  double loss_sum, weight_sum;
  /* [n_targets] sums of the weighted losses of each target, and of the weights of its labels */
  double target_loss_sums[CLV_MAX_TARGETS], target_weight_sums[CLV_MAX_TARGETS];
  /* [n_targets], or [1] if records have one label: scores that receive the predictions; NULL: no
   * scores are wanted */
  clv_score *const *scores;
  /* numbers of the records of `received_answers`, row by row; caller-owned */
  const uint32_t *record_of_row;
} evaluation;

static void free_eval_slot(eval_slot *s) {
  s->y = clv_tensor_unref(s->y);
  s->lengths = clv_tensor_unref(s->lengths);
}

/* Frees an evaluation. If the evaluation failed, ends its contexts in flight. */
static void end_evaluation(evaluation *e) {
  for (; e->n_in_flight; e->n_in_flight--) {
    eval_slot *s = &e->slots[e->oldest_slot++ % CLV_EVAL_WINDOW];
    free_eval_slot(s);
    (void)!cleave_context_end(e->t->runtime, s->context, NULL);
  }
  clv_tensor_unref(e->received_answers.outputs);
  clv_tensor_unref(e->received_answers.y);
  clv_tensor_unref(e->received_answers.lengths);
  clv_loader_free(e->loader);
  clv_subset_done(&e->sent_rows);
  free(e->row_of_sent_record);
}

/* ---- order in which records are sent --------------------------------------------------------- */

/* Draws the order in which records are sent. The order depends only on the seed and on the number
 * of records, so every evaluation of a run has the same batches, at whatever workers its stages
 * are. */
static clv_code draw_sending_order(evaluation *e, clv_err *err) {
  size_t n = e->rows->n;
  clv_key key;
  CLV_TRY(clv_alloc(n, sizeof *e->row_of_sent_record, &e->row_of_sent_record, err));
  CLV_TRY(clv_alloc(n, sizeof *e->sent_rows.index, &e->sent_rows.index, err));
  CLV_TRY(clv_key_derive("cleave evaluation", &e->t->config->train.seed.key, NULL, 0, &key, err));
  const clv_rng_key rng_key = clv_rng_key_of(&key);
  clv_rng_permutation(&rng_key, e->row_of_sent_record, n);
  for (size_t i = 0; i < n; i++) e->sent_rows.index[i] = e->rows->index[e->row_of_sent_record[i]];
  e->sent_rows.n = n;
  return CLV_OK;
}

/* ---- sending batches ------------------------------------------------------------------------- */

/* Calls all stages for a batch and begins to fetch the output of the last one into s->output. */
static clv_code call_stages(evaluation *e, eval_slot *s, const clv_batch *batch,
                            cleave_reference *ret, clv_err *err) {
  clv_trainer *t = e->t;
  uint32_t last_stage = t->b->n_stages - 1, n;
  clv_tensor *x[CLV_MAX_INPUTS];
  cleave_reference in[CLV_MAX_INPUTS];
  for (size_t k = 0; k < t->b->inputs.n; k++) x[k] = clv_batch_input(batch, k);
  clv_sequences sequences;
  CLV_TRY(clv_trainer_select_sequences(t, x, 0, s->n, &sequences, err));
  bool uses_cache = t->cache.data && t->cache.data == e->data;
  if (uses_cache)
    CLV_TRY(clv_trainer_make_front_leaf(t, s->context, batch->index, x, &sequences, &in[0], err));
  for (uint32_t i = uses_cache; i < last_stage; i++) {
    CLV_TRY(clv_trainer_stage_inputs(t, s->context, i, x, &sequences, in, &n, err));
    CLV_TRY(clv_trainer_charge_direct_flows(t, i, s->n, (uint64_t)sequences.n_rows, false, err));
    CLV_TRY_API(cleave_call(t->runtime, s->context, t->modules[i], in, n, &in[0], CLV_API_ERROR));
  }
  CLV_TRY(clv_trainer_stage_inputs(t, s->context, last_stage, x, &sequences, in, &n, err));
  CLV_TRY_API(cleave_rpc_async(t->runtime, s->context, t->modules[last_stage], in, n, ret,
                               &s->output, CLV_API_ERROR));
  return CLV_OK;
}

/* Copies labels or lengths of a batch, because the loader reuses the memory for the next batch. */
static clv_code copy_tensor(const clv_tensor *from, clv_tensor **ret, clv_err *err) {
  if (!from) return CLV_OK;
  CLV_TRY(clv_tensor_new(from->dtype, &from->shape, ret, err));
  memcpy((*ret)->data, from->data, from->bytes);
  return CLV_OK;
}

/* First RNG position of passes with dropout, larger than the positions of all steps. */
#define FIRST_DROPOUT_POSITION (UINT64_C(1) << 40)

void clv_trainer_set_dropout_pass(clv_trainer *t, uint64_t pass) { t->dropout_pass = pass; }

/* Returns the options of the context of the next batch. */
static cleave_context_options make_context_options(const evaluation *e) {
  uint64_t pass = e->t->dropout_pass;
  cleave_context_options o = {.size = sizeof o, .evaluation = !pass};
  if (pass) o.step = FIRST_DROPOUT_POSITION + (pass - 1) * e->rows->n + e->n_sent;
  return o;
}

static clv_code send_batch(evaluation *e, clv_err *err) {
  clv_trainer *t = e->t;
  eval_slot *s = &e->slots[(e->oldest_slot + e->n_in_flight) % CLV_EVAL_WINDOW];
  CLV_AUTO(clv_tensor_unrefp) clv_tensor *y = NULL, *lengths = NULL;
  clv_batch batch;
  const cleave_context_options o = make_context_options(e);
  cleave_reference output;
  CLV_TRY(clv_loader_next(e->loader, &batch, err));
  CLV_TRY(copy_tensor(batch.y, &y, err));
  if (t->b->lengths_input >= 0)
    CLV_TRY(copy_tensor(clv_batch_input(&batch, (size_t)t->b->lengths_input), &lengths, err));
  *s = (eval_slot){.at = e->n_sent, .n = batch.n};
  CLV_TRY_API(cleave_context_open(t->runtime, &o, &s->context, CLV_API_ERROR));
  s->y = clv_steal(&y);
  s->lengths = clv_steal(&lengths);
  e->n_in_flight++;
  e->n_sent += batch.n;
  return call_stages(e, s, &batch, &output, err);
}

/* ---- loss of collected outputs --------------------------------------------------------------- */

static clv_code load_local_loss(clv_trainer *t, cleave_module **ret, clv_err *err) {
  bool is_at_master = t->b->stages[t->b->n_stages].worker < 0;
  if (!is_at_master && !t->local_loss_module)
    CLV_TRY(clv_trainer_load_loss(t, "(loss at the master)", -1, &t->local_loss_module, err));
  *ret = is_at_master ? t->modules[t->b->n_stages] : t->local_loss_module;
  return CLV_OK;
}

static clv_code select_sequences(const clv_trainer *t, const clv_tensor *lengths, size_t start,
                                 size_t n, clv_sequences *ret, clv_err *err) {
  clv_tensor *x[CLV_MAX_INPUTS] = {NULL};
  if (lengths) x[t->b->lengths_input] = (clv_tensor *)(uintptr_t)lengths;
  return clv_trainer_select_sequences(t, x, start, n, ret, err);
}

/* Computes the loss of n rows of the collected outputs, in a separate context. Each leaf (input
 * tensor of the context) copies its tensor, so the outputs and the labels can use the trainer's
 * pack buffer one after the other. */
static clv_code compute_loss(evaluation *e, size_t start, size_t n, float *ret, clv_err *err) {
  clv_trainer *t = e->t;
  uint32_t n_in;
  cleave_context_options o = {.size = sizeof o, .evaluation = true};
  bool is_packed = t->b->stages[t->b->n_stages].graph->nodes[0].max_positions;
  cleave_context context;
  cleave_reference loss_inputs[CLV_MAX_INPUTS];
  cleave_future loss_future;
  cleave_module *module;
  cleave_tensor packed_rows; /* rows of this call, without the padding if the loss is packed */
  clv_sequences sequences;
  CLV_TRY(load_local_loss(t, &module, err));
  CLV_TRY(select_sequences(t, e->received_answers.lengths, start, n, &sequences, err));
  CLV_TRY_API(cleave_context_open(t->runtime, &o, &context, CLV_API_ERROR));
  CLV_TRY(clv_trainer_pack_rows(t, &sequences, e->received_answers.outputs, is_packed, 0,
                                &packed_rows, err));
  CLV_TRY_API(
      cleave_leaf(t->runtime, context, &packed_rows, false, &loss_inputs[0], CLV_API_ERROR));
  CLV_TRY(clv_trainer_loss_inputs(t, context, &sequences, e->received_answers.y, loss_inputs, &n_in,
                                  err));
  CLV_TRY_API(cleave_rpc_async(t->runtime, context, module, loss_inputs, n_in, NULL, &loss_future,
                               CLV_API_ERROR));
  CLV_TRY_API(cleave_wait(t->runtime, loss_future, 0, &t->fetched_value, CLV_API_ERROR));
  *ret = *(const float *)t->fetched_value.data;
  CLV_TRY_API(cleave_context_end(t->runtime, context, CLV_API_ERROR));
  return CLV_OK;
}

/* ---- losses of several targets --------------------------------------------------------------- */

/* Loads the loss modules of all targets, once per trainer. */
static clv_code load_target_losses(clv_trainer *t, clv_err *err) {
  size_t n = t->config->loss.n_targets;
  if (t->target_losses) return CLV_OK;
  CLV_TRY(clv_alloc(n, sizeof *t->target_losses, &t->target_losses, err));
  for (size_t k = 0; k < n; k++) CLV_TRY(clv_trainer_load_target_loss(t, k, err));
  return CLV_OK;
}

/* The rows that have a label of one target. The owner of the struct frees the arrays. */
typedef struct labelled_rows {
  float *x;          /* [n][width of the target] outputs */
  void *y;           /* [n] labels: f32, or i64 if they are classes */
  size_t n;          /* number of rows with a label */
  double weight_sum; /* sum of the weights of the labels */
} labelled_rows;

static void labelled_rows_done(labelled_rows *r) {
  free(r->x);
  free(r->y);
}

/* Copies the outputs and labels of a target from n rows of received_answers, from row `start` on.
 * Leaves out rows without a label of the target. column: first output of the target. */
static clv_code copy_target(const evaluation *e, size_t target, size_t column, size_t start,
                            size_t n, labelled_rows *ret, clv_err *err) {
  const clv_tensor *outputs = e->received_answers.outputs, *labels = e->received_answers.y;
  const clv_target_spec *s = &e->t->config->loss.targets[target];
  size_t row_width = outputs->n / (size_t)outputs->shape.dim[0], width = clv_target_width(s);
  int64_t *classes = NULL;
  CLV_TRY(clv_alloc(n * width, sizeof *ret->x, &ret->x, err));
  CLV_TRY(clv_alloc(n, sizeof *classes, &classes, err));
  ret->y = classes;
  for (size_t i = 0; i < n; i++) {
    float label =
        ((const float *)labels->data)[(start + i) * e->t->config->loss.n_targets + target];
    if (isnan(label)) continue;
    memcpy(ret->x + ret->n * width, (const float *)outputs->data + (start + i) * row_width + column,
           width * sizeof *ret->x);
    if (s->n_classes)
      classes[ret->n++] = (int64_t)label;
    else
      ((float *)ret->y)[ret->n++] = label;
    ret->weight_sum += clv_target_label_weight(s, label);
  }
  return CLV_OK;
}

/* Computes the loss of a target over rows that have a label, in a separate context. */
static clv_code compute_target_loss(evaluation *e, size_t target, const labelled_rows *rows,
                                    float *ret, clv_err *err) {
  clv_trainer *t = e->t;
  const clv_target_spec *s = &t->config->loss.targets[target];
  const cleave_context_options o = {.size = sizeof o, .evaluation = true};
  cleave_reference in[2];
  cleave_context context;
  cleave_future loss;
  const cleave_tensor outputs = {.dtype = CLEAVE_F32,
                                 .rank = 2,
                                 .shape = {(int64_t)rows->n, (int64_t)clv_target_width(s)},
                                 .data = rows->x},
                      labels = {.dtype = s->n_classes ? CLEAVE_I64 : CLEAVE_F32,
                                .rank = s->n_classes ? 1 : 2,
                                .shape = {(int64_t)rows->n, s->n_classes ? 0 : 1},
                                .data = rows->y};
  CLV_TRY_API(cleave_context_open(t->runtime, &o, &context, CLV_API_ERROR));
  CLV_TRY_API(cleave_leaf(t->runtime, context, &outputs, false, &in[0], CLV_API_ERROR));
  CLV_TRY_API(cleave_leaf(t->runtime, context, &labels, false, &in[1], CLV_API_ERROR));
  CLV_TRY_API(cleave_rpc_async(t->runtime, context, t->target_losses[target], in, 2, NULL, &loss,
                               CLV_API_ERROR));
  CLV_TRY_API(cleave_wait(t->runtime, loss, 0, &t->fetched_value, CLV_API_ERROR));
  *ret = *(const float *)t->fetched_value.data;
  CLV_TRY_API(cleave_context_end(t->runtime, context, CLV_API_ERROR));
  return CLV_OK;
}

/* Adds the losses of n rows to the sums of each target. Before the addition, multiplies a target's
 * mean loss over the labelled rows by the sum of the weights of the rows' labels. */
static clv_code add_target_losses(evaluation *e, size_t start, size_t n, clv_step_result *ret,
                                  clv_err *err) {
  const clv_session_config *c = e->t->config;
  size_t column = 0;
  CLV_TRY(load_target_losses(e->t, err));
  for (size_t k = 0; k < c->loss.n_targets; k++) {
    CLV_AUTO(labelled_rows_done) labelled_rows rows = {0};
    float loss = 0;
    CLV_TRY(copy_target(e, k, column, start, n, &rows, err));
    if (rows.n) CLV_TRY(compute_target_loss(e, k, &rows, &loss, err));
    e->target_loss_sums[k] += (double)loss * rows.weight_sum;
    e->target_weight_sums[k] += rows.weight_sum;
    ret->n_target_labels[k] += rows.n;
    column += clv_target_width(&c->loss.targets[k]);
  }
  return CLV_OK;
}

/* Sets the mean loss of each target, and the loss of the evaluation: the sum of these mean losses,
 * each multiplied by its loss_weight. A target without labels adds nothing. */
static void finish_target_losses(const evaluation *e, clv_step_result *ret) {
  const clv_session_config *c = e->t->config;
  ret->loss = 0;
  for (size_t k = 0; k < c->loss.n_targets; k++) {
    bool has_labels = e->target_weight_sums[k] > 0;
    ret->target_losses[k] = has_labels ? e->target_loss_sums[k] / e->target_weight_sums[k] : NAN;
    if (has_labels) ret->loss += c->loss.targets[k].loss_weight * ret->target_losses[k];
  }
}

/* ---- scores of an evaluation ----------------------------------------------------------------- */

/* Adds one record with f32 labels to the score. The labels are one yes or no, several of these, or
 * numbers. */
static clv_code add_f32_record(const evaluation *e, size_t record, const float *outputs,
                               const float *labels, clv_err *err) {
  if (clv_score_has_classes(e->scores[0]))
    return clv_score_add(e->scores[0], record, outputs, &(int64_t){labels[0] > 0.5f}, 1, err);
  return clv_score_add_targets(e->scores[0], record, outputs, labels, err);
}

/* Adds the outputs of a target and its label to the score of the target, unless the label is
 * missing. */
static clv_code add_target_of_record(const evaluation *e, size_t target, size_t record,
                                     const float *outputs, float label, clv_err *err) {
  clv_score *score = e->scores[target];
  bool has_classes = e->t->config->loss.targets[target].n_classes > 0;
  if (isnan(label)) return CLV_OK;
  if (!clv_score_has_classes(score))
    return clv_score_add_targets(score, record, outputs, &label, err);
  int64_t class = has_classes ? (int64_t)label : label > 0.5f;
  return clv_score_add(score, record, outputs, &class, 1, err);
}

/* Adds one record with several targets: the outputs and the label of each target to its score. */
static clv_code add_targets_of_record(const evaluation *e, size_t record, const float *outputs,
                                      const float *labels, clv_err *err) {
  const clv_session_config *c = e->t->config;
  for (size_t k = 0; k < c->loss.n_targets; k++) {
    CLV_TRY(add_target_of_record(e, k, record, outputs, labels[k], err));
    outputs += clv_target_width(&c->loss.targets[k]);
  }
  return CLV_OK;
}

/* Adds n rows from `start` on to the scores, record by record. */
static clv_code add_scores(const evaluation *e, const float *outputs, size_t start, size_t n,
                           clv_err *err) {
  const clv_tensor *y = e->received_answers.y, *x = e->received_answers.outputs;
  size_t labels_per_row = y->n / (size_t)y->shape.dim[0],
         outputs_per_row = x->n / (size_t)x->shape.dim[0];
  if (!e->scores) return CLV_OK;
  for (size_t i = 0; i < n; i++) {
    size_t record = e->record_of_row[start + i];
    const float *row = outputs + i * outputs_per_row;
    if (e->t->config->loss.n_targets)
      CLV_TRY(add_targets_of_record(e, record, row,
                                    (const float *)y->data + (start + i) * labels_per_row, err));
    else if (y->dtype != CLV_I64)
      CLV_TRY(add_f32_record(e, record, row, (const float *)y->data + (start + i) * labels_per_row,
                             err));
    else
      CLV_TRY(clv_score_add(e->scores[0], record, row,
                            (const int64_t *)y->data + (start + i) * labels_per_row, labels_per_row,
                            err));
  }
  return CLV_OK;
}

/* Adds loss, right predictions and scores of n rows from `start` on. n: at most the rows of a
 * batch. */
static clv_code evaluate_rows(evaluation *e, size_t start, size_t n, clv_step_result *ret,
                              clv_err *err) {
  clv_trainer *t = e->t;
  float loss = 0;
  if (t->config->loss.n_targets)
    CLV_TRY(add_target_losses(e, start, n, ret, err));
  else
    CLV_TRY(compute_loss(e, start, n, &loss, err));
  const cleave_tensor outputs = clv_batch_rows(e->received_answers.outputs, start, n);
  double weight = clv_trainer_batch_weight(t, e->received_answers.y, start, n);
  e->loss_sum += (double)loss * weight;
  e->weight_sum += weight;
  ret->n_labelled += clv_trainer_count_labelled(t, e->received_answers.y, start, n);
  if (clv_trainer_has_accuracy(t))
    ret->n_correct += clv_trainer_count_correct(t, &outputs, e->received_answers.y, start, n);
  return add_scores(e, outputs.data, start, n, err);
}

static clv_code evaluate_collected_rows(evaluation *e, clv_step_result *ret, clv_err *err) {
  size_t batch_size = (size_t)e->t->b->eval_size;
  if (!e->collects_all_rows || !e->received_answers.y) return CLV_OK;
  e->record_of_row = e->rows->index;
  for (size_t at = 0; at < e->rows->n; at += batch_size)
    CLV_TRY(evaluate_rows(e, at, CLV_MIN(batch_size, e->rows->n - at), ret, err));
  return CLV_OK;
}

/* ---- collecting the outputs of batches ------------------------------------------------------- */

static size_t count_collected_rows(const evaluation *e) {
  return e->collects_all_rows ? e->rows->n : CLV_MIN((size_t)e->t->b->eval_size, e->rows->n);
}

static clv_code make_rows_tensor(const evaluation *e, clv_dtype dtype, const clv_shape *batch_shape,
                                 clv_tensor **ret, clv_err *err) {
  clv_shape shape = *batch_shape;
  shape.dim[0] = (int64_t)count_collected_rows(e);
  return clv_tensor_new(dtype, &shape, ret, err);
}

/* Allocates labels and lengths, with the shapes of the first batch. */
static clv_code allocate_labels(evaluation *e, const eval_slot *s, clv_err *err) {
  if (s->y && !e->received_answers.y)
    CLV_TRY(make_rows_tensor(e, s->y->dtype, &s->y->shape, &e->received_answers.y, err));
  if (s->lengths && !e->received_answers.lengths)
    CLV_TRY(make_rows_tensor(e, s->lengths->dtype, &s->lengths->shape, &e->received_answers.lengths,
                             err));
  return CLV_OK;
}

static void copy_row(clv_tensor *to, size_t row, const void *from, size_t from_row) {
  size_t bytes = to->bytes / (size_t)to->shape.dim[0];
  memcpy((char *)to->data + row * bytes, (const char *)from + from_row * bytes, bytes);
}

static void store_rows(evaluation *e, const eval_slot *s, const void *outputs) {
  for (size_t i = 0; i < s->n; i++) {
    size_t row = e->collects_all_rows ? e->row_of_sent_record[s->at + i] : i;
    copy_row(e->received_answers.outputs, row, outputs, i);
    if (s->y) copy_row(e->received_answers.y, row, s->y->data, i);
    if (s->lengths) copy_row(e->received_answers.lengths, row, s->lengths->data, i);
  }
}

static clv_code receive_output(evaluation *e, const eval_slot *s, clv_err *err) {
  clv_trainer *t = e->t;
  CLV_TRY_API(cleave_wait(t->runtime, s->output, 0, &t->fetched_value, CLV_API_ERROR));
  clv_sequences sequences;
  cleave_tensor output;
  CLV_TRY(select_sequences(t, s->lengths, 0, s->n, &sequences, err));
  CLV_TRY(clv_trainer_unpack_output(t, &sequences, &t->fetched_value, &output, err));
  CLV_TRY(allocate_labels(e, s, err));
  store_rows(e, s, output.data);
  return CLV_OK;
}

/* Waits for the oldest batch in flight and stores its output. */
static clv_code finish_oldest_batch(evaluation *e, clv_step_result *ret, clv_err *err) {
  clv_trainer *t = e->t;
  eval_slot *s = &e->slots[e->oldest_slot % CLV_EVAL_WINDOW];
  CLV_TRY(receive_output(e, s, err));
  e->record_of_row = e->sent_rows.index + s->at;
  if (!e->collects_all_rows && s->y) CLV_TRY(evaluate_rows(e, 0, s->n, ret, err));
  CLV_TRY_API(cleave_context_end(t->runtime, s->context, CLV_API_ERROR));
  free_eval_slot(s);
  e->oldest_slot++;
  e->n_in_flight--;
  return CLV_OK;
}

static clv_code send_and_evaluate(evaluation *e, clv_step_result *ret, clv_err *err) {
  clv_batches_options o = {.subset = &e->sent_rows,
                           .batch_size = (size_t)e->t->b->eval_size,
                           .epochs = 1,
                           .is_evaluation = true};
  size_t window = e->t->dropout_pass ? 1 : CLV_EVAL_WINDOW;
  if (e->rows->n) CLV_TRY(clv_loader_new(e->data, &o, &e->loader, err));
  while (e->n_sent < e->rows->n || e->n_in_flight) {
    if (e->t->use == CLV_TRAINER_EVALUATION) CLV_TRY(clv_interrupt_check(err));
    while (e->n_sent < e->rows->n && e->n_in_flight < window) CLV_TRY(send_batch(e, err));
    CLV_TRY(finish_oldest_batch(e, ret, err));
  }
  CLV_TRY(evaluate_collected_rows(e, ret, err));
  ret->loss = e->weight_sum > 0 ? e->loss_sum / e->weight_sum : 0;
  if (e->t->config->loss.n_targets) finish_target_losses(e, ret);
  return CLV_OK;
}

/* Allocates memory for the outputs of all rows, or of one batch if all rows need more than
 * MAX_COLLECTED_BYTES. */
static clv_code allocate_outputs(evaluation *e, bool wants_predictions, clv_err *err) {
  const clv_graph *graph = e->t->b->full_graph;
  const clv_node *out = &graph->nodes[graph->output_node];
  size_t row_bytes = sizeof(float), bytes;
  for (int i = 1; i < out->shape.rank; i++) row_bytes *= (size_t)out->shape.dim[i];
  e->collects_all_rows = wants_predictions || (clv_mul_size(e->rows->n, row_bytes, &bytes) &&
                                               bytes <= (size_t)MAX_COLLECTED_BYTES);
  return make_rows_tensor(e, CLV_F32, &out->shape, &e->received_answers.outputs, err);
}

clv_code clv_trainer_eval(clv_trainer *t, const clv_dataset *data, const clv_subset *rows,
                          clv_score *const *scores, clv_step_result *ret, clv_tensor **predictions,
                          clv_err *err) {
  CLV_AUTO(end_evaluation) evaluation e = {.t = t, .data = data, .rows = rows, .scores = scores};
  size_t n_scores = CLV_MAX(t->config->loss.n_targets, (size_t)1);
  for (size_t i = 0; scores && i < n_scores; i++) clv_score_reset(scores[i]);
  *ret = (clv_step_result){.samples = rows->n};
  clv_trainer_set_activity(t, "evaluation after step", t->n_committed_steps);
  t->cache.use = CLV_CACHE_NONE;
  if (t->cache.data == data) clv_trainer_choose_cache_use(t, rows->index, rows->n);
  CLV_TRY(clv_trainer_allow_batch(t, CLV_MIN((uint64_t)t->b->eval_size, rows->n), false, err));
  CLV_TRY(draw_sending_order(&e, err));
  if (rows->n || predictions) CLV_TRY(allocate_outputs(&e, predictions != NULL, err));
  CLV_TRY(send_and_evaluate(&e, ret, err));
  if (predictions) *predictions = clv_tensor_ref(e.received_answers.outputs);
  return CLV_OK;
}
