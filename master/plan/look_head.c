/* SPDX-License-Identifier: Apache-2.0
 *
 * Tries to read labels, as one part of the look (look.c): runs the layers behind the last worker
 * and the loss on random inputs with real labels, and attacks the gradients that would be sent back
 * to that worker. look.c calls clv_look_read_head once for each draw of the secret weights.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "master/plan/look_int.h"

enum {
  N_SAMPLED_GRADIENTS = 512, /* approximate number of gradients to read labels from */
  MAX_INPUT_DRAWS = 64,      /* most random inputs per record */
  MAX_LABEL_PARTS = 8,       /* most values that cross the cut and have one vector for each label */
  MAX_LABEL_COLUMNS = 256,   /* most numbers to read of a numeric label */
  MAX_BATCH_RECORDS = 64,
  MAX_GRADIENT_VALUES = 16384, /* most values to read of a gradient */
};
/* Random inputs are uniform in [-MAX_RANDOM_INPUT, MAX_RANDOM_INPUT], so their standard deviation
 * is 1. */
static const float MAX_RANDOM_INPUT = 1.7320508f;
static const double MIN_MACS_PER_S = 1e10; /* multiply-adds per second of the slowest machine */

/* The part of a record's gradient that belongs to one label. */
typedef struct gradient_part {
  size_t first_index, n_values; /* index of the part's first value, number of the part's values */
  /* distance between the parts of neighbouring labels, in values; 0: the record has one part */
  size_t label_stride;
} gradient_part;

typedef struct label_gradients {
  const clv_look_draw *r;
  const clv_blueprint *b;
  uint32_t last_worker_stage; /* last stage that is at a worker */
  /* true: the master has layers behind last_worker_stage, which are parts[0] */
  bool has_layers_behind;
  /* [0]: the master's layers behind last_worker_stage; [1]: the layers that own tied parameters of
   * parts[0] */
  clv_look_part parts[2];
  size_t n_parts;
  clv_graph *loss_graph;
  clv_params *empty_params;
  clv_plan *loss_plan;
  clv_call *loss_call;
  size_t batch_size, n_gradient_values; /* records of a batch; values of a record's gradient */
  size_t n_outputs;                     /* values of the prediction of one record */
  size_t n_labels_per_record;
  gradient_part label_parts[MAX_LABEL_PARTS];
  size_t n_label_parts, n_values_per_label; /* values of the gradient that belong to one label */
  /* x: inputs of the layers, [batch_size][n_gradient_values]; dx: gradients of x, of the same size;
   * dout: gradients of the predictions */
  float *x, *dx, *dout;
  /* every value_step-th value of a label's gradient is kept, n_kept_per_label in all */
  size_t value_step, n_kept_per_label;
  /* values of the kept gradients, [capacity][n_kept_per_label] */
  float *kept_gradient_values;
  int64_t *kept_classes; /* [capacity] class of each kept gradient's label */
  size_t *kept_records;  /* [capacity] record of each kept gradient */
  /* n: number of kept gradients; capacity: most gradients to keep; n_fit: number of kept gradients
   * in the first half, from which the attack learns */
  size_t n, capacity, n_fit;
} label_gradients;

static void free_label_gradients(label_gradients *h) {
  if (h->loss_plan) clv_plan_call_put(h->loss_plan, h->loss_call);
  clv_plan_free(h->loss_plan);
  clv_params_free(h->empty_params);
  clv_graph_free(h->loss_graph);
  for (size_t i = 0; i < h->n_parts; i++) clv_look_part_done(&h->parts[i]);
  free(h->x);
  free(h->dx);
  free(h->dout);
  free(h->kept_gradient_values);
  free(h->kept_classes);
  free(h->kept_records);
}

/* ---- layers behind the last worker ----------------------------------------------------------- */

static size_t count_record_values(const clv_shape *s) {
  size_t n = 1;
  for (int i = 1; i < s->rank; i++) n *= (size_t)s->dim[i];
  return n;
}

static bool has_outside_ties(const clv_look_part *p) {
  for (int k = 0; k < p->params->n_ties; k++)
    if (p->params->ties[k].owner_index < 0) return true;
  return false;
}

/* Makes the layers behind the last worker. If these layers have tied parameters that the master's
 * first stages own, makes these stages as well. */
static clv_code make_layers(label_gradients *h, clv_err *err) {
  uint32_t first_stage = h->last_worker_stage + 1, end_stage = h->b->n_stages;
  h->has_layers_behind = first_stage < end_stage;
  if (!h->has_layers_behind) return CLV_OK;
  CLV_TRY(
      clv_look_part_new(&h->r->weights, first_stage, end_stage - 1, &h->parts[h->n_parts++], err));
  uint32_t n_first_stages = 0;
  while (n_first_stages < first_stage && h->b->stages[n_first_stages].worker < 0) n_first_stages++;
  if (n_first_stages && has_outside_ties(&h->parts[0]))
    CLV_TRY(clv_look_part_new(&h->r->weights, 0, n_first_stages - 1, &h->parts[h->n_parts++], err));
  h->parts[0].needs_input_grad = true;
  return clv_look_parts_connect_ties(h->parts, h->n_parts, err);
}

static clv_shape get_prediction_shape(const label_gradients *h) {
  const clv_graph *g = h->b->full_graph;
  return g->nodes[g->output_node].shape;
}

static clv_code make_loss_plan(label_gradients *h, clv_err *err) {
  const clv_shape out = get_prediction_shape(h);
  clv_plan_options po = {.backend = clv_backend_cpu(),
                         .dtype = CLV_F32,
                         .batch = (int64_t)h->batch_size,
                         .training = true,
                         .needs_input_grad = {true},
                         .threads = 1};
  CLV_TRY(
      clv_session_make_loss_graph(h->b->config, &out, (int64_t)h->batch_size, &h->loss_graph, err));
  CLV_TRY(clv_params_make(h->loss_graph, &h->empty_params, err));
  CLV_TRY(clv_plan_new(h->loss_graph, h->empty_params, &po, &h->loss_plan, err));
  h->n_outputs = count_record_values(&out);
  return clv_alloc(h->batch_size * h->n_outputs, sizeof *h->dout, &h->dout, err);
}

/* Finds the values of a record's gradient that belong to one label. If each position of a sequence
 * has a label, the values at a position belong to the label of this position. */
static clv_code find_label_parts(label_gradients *h, clv_err *err) {
  const clv_node *values[CLV_MAX_NODES];
  uint32_t n = clv_blueprint_list_cut_values(h->b, h->last_worker_stage, values);
  size_t at = 0;
  bool is_label_per_position = h->r->sample->y->dtype == CLV_I64 && h->n_labels_per_record > 1;
  for (uint32_t k = 0; k < n; k++) {
    size_t n_values = count_record_values(&values[k]->shape),
           n_label_values = n_values / h->n_labels_per_record;
    bool has_vector_per_label =
        values[k]->shape.rank > 2 && (size_t)values[k]->shape.dim[1] == h->n_labels_per_record;
    if (is_label_per_position && has_vector_per_label && h->n_label_parts < MAX_LABEL_PARTS) {
      h->label_parts[h->n_label_parts++] = (gradient_part){at, n_label_values, n_label_values};
      h->n_values_per_label += n_label_values;
    }
    at += n_values;
  }
  h->n_gradient_values = at;
  if (!is_label_per_position) {
    h->label_parts[h->n_label_parts++] = (gradient_part){0, at, 0};
    h->n_values_per_label = at;
  }
  if (h->n_label_parts) return CLV_OK;
  return clv_fail(err, CLV_UNIMPLEMENTED, "labels have %zu places, and the gradient has none",
                  h->n_labels_per_record);
}

/* Makes the plans of the layers for as many records at once as fit into the memory. */
static clv_code make_plan(label_gradients *h, clv_err *err) {
  double time_left_s =
      (double)(h->r->draw_end_ns - CLV_MIN(clv_now_ns(), h->r->draw_end_ns)) * 1e-9;
  double n_macs = h->has_layers_behind ? 6 * clv_look_part_mac_count(&h->parts[0]) : 0;
  size_t n = h->r->sample->record_counts.n;
  size_t max_batch_size =
      CLV_LOOK_MAX_VALUE_BYTES / sizeof(float) / 4 / CLV_MAX(h->n_gradient_values, (size_t)1);
  if (max_batch_size < CLV_LOOK_MIN_RECORDS)
    return clv_fail(err, CLV_EXHAUSTED, "a gradient has %zu values, more than a look keeps",
                    h->n_gradient_values);
  h->batch_size = CLV_MIN(CLV_MIN(n, max_batch_size), (size_t)MAX_BATCH_RECORDS);
  if (n_macs * (double)n > time_left_s * MIN_MACS_PER_S)
    return clv_fail(err, CLV_EXHAUSTED, "%zu records would take longer than %d s", n,
                    CLV_LOOK_MAX_SECONDS);
  if (h->has_layers_behind)
    CLV_TRY(clv_look_part_make_plan(&h->parts[0], (int64_t)h->batch_size, err));
  return make_loss_plan(h, err);
}

/* ---- computing the gradients that would be sent ---------------------------------------------- */

static clv_code alloc_gradients(label_gradients *h, clv_err *err) {
  h->value_step =
      CLV_MAX((h->n_values_per_label + MAX_GRADIENT_VALUES - 1) / MAX_GRADIENT_VALUES, (size_t)1);
  h->n_kept_per_label = (h->n_values_per_label + h->value_step - 1) / h->value_step;
  h->capacity = (size_t)2 * N_SAMPLED_GRADIENTS;
  CLV_TRY(clv_alloc(h->batch_size * h->n_gradient_values, sizeof *h->x, &h->x, err));
  CLV_TRY(clv_alloc(h->batch_size * h->n_gradient_values, sizeof *h->dx, &h->dx, err));
  CLV_TRY(clv_alloc(h->capacity * h->n_kept_per_label, sizeof *h->kept_gradient_values,
                    &h->kept_gradient_values, err));
  CLV_TRY(clv_alloc(h->capacity, sizeof *h->kept_classes, &h->kept_classes, err));
  return clv_alloc(h->capacity, sizeof *h->kept_records, &h->kept_records, err);
}

/* Returns the class of a label; -1: the loss ignores the label. */
static int64_t get_label_class(const label_gradients *h, int64_t label) {
  const clv_shape out = get_prediction_shape(h);
  return label >= 0 && label < out.dim[out.rank - 1] ? label : -1;
}

/* Keeps the gradient of one label. Of a long gradient it keeps every value_step-th value. */
static void keep_label_gradient(label_gradients *h, size_t row, size_t position) {
  float *to = h->kept_gradient_values + h->n * h->n_kept_per_label;
  size_t at = 0;
  for (size_t k = 0; k < h->n_label_parts; k++) {
    const gradient_part *p = &h->label_parts[k];
    const float *source =
        h->dx + row * h->n_gradient_values + p->first_index + position * p->label_stride;
    for (size_t i = 0; i < p->n_values; i++, at++)
      if (at % h->value_step == 0) *to++ = source[i];
  }
}

/* True for a pseudo-random fraction of the labels, which is the same in each run. */
static bool is_label_chosen(size_t i, double chosen_share) {
  return (double)((uint32_t)i * 2654435761u) < chosen_share * 4294967296.0;
}

static void keep_gradients(label_gradients *h, size_t record, size_t draw, double kept_share) {
  const clv_tensor *y = h->r->sample->y;
  bool are_classes = y->dtype == CLV_I64;
  for (size_t row = 0; row < h->batch_size; row++)
    for (size_t position = 0; position < (are_classes ? h->n_labels_per_record : 1); position++) {
      size_t at = (record + row) * h->n_labels_per_record + position;
      int64_t label = are_classes ? get_label_class(h, ((const int64_t *)y->data)[at]) : 0;
      if (label < 0 || h->n == h->capacity || !is_label_chosen(draw * 7919 + at, kept_share))
        continue;
      keep_label_gradient(h, row, position);
      h->kept_records[h->n] = record + row;
      h->kept_classes[h->n++] = label;
    }
}

static const char *get_record_labels(const label_gradients *h, size_t record) {
  const clv_tensor *y = h->r->sample->y;
  return (const char *)y->data + record * (y->bytes / (size_t)y->shape.dim[0]);
}

static clv_code run_loss(label_gradients *h, const void *prediction, size_t record, void *dout,
                         clv_err *err) {
  CLV_AUTO(clv_target_inputs_done) clv_target_inputs targets = {0};
  const void *in[CLV_MAX_INPUTS] = {prediction, get_record_labels(h, record)};
  if (h->b->config->loss.n_targets)
    CLV_TRY(clv_target_inputs_make(
        h->b->config, &(clv_target_labels){in[1], h->batch_size, 0, h->batch_size}, &targets, err));
  for (uint32_t k = 0; k < targets.n; k++) in[1 + k] = targets.inputs[k];
  void *const din[CLV_MAX_INPUTS] = {dout};
  const float loss_grad = 1;
  const clv_rng_key key = {0};
  float mean_loss, unused_values[16];
  clv_plan_call_put(h->loss_plan, clv_steal(&h->loss_call));
  CLV_TRY(clv_plan_call_get(h->loss_plan, &h->loss_call, err));
  CLV_TRY(clv_plan_forward(h->loss_plan, h->loss_call, unused_values, 1, in, true, &mean_loss, &key,
                           err));
  CLV_TRY(clv_plan_backward_input(h->loss_plan, h->loss_call, unused_values, &loss_grad, din,
                                  unused_values, false, err));
  return clv_plan_backward_weight(h->loss_plan, h->loss_call, unused_values, unused_values, false,
                                  err);
}

static clv_code run_batch(label_gradients *h, size_t record, size_t draw, clv_err *err) {
  const void *in[CLV_MAX_INPUTS] = {h->x};
  int input_indexes[CLV_MAX_INPUTS];
  clv_rng_key key = clv_rng_key_of(h->r->weights.seed);
  key.step = draw + 1;
  key.layer = UINT32_MAX;
  key.micro_batch = (uint32_t)record;
  clv_rng_uniform(&key, -MAX_RANDOM_INPUT, MAX_RANDOM_INPUT, h->x,
                  h->batch_size * h->n_gradient_values);
  if (!h->has_layers_behind) return run_loss(h, h->x, record, h->dx, err);
  uint32_t n = clv_look_part_list_inputs(h->b, &h->parts[0], input_indexes);
  for (uint32_t k = 1; k < n; k++) {
    const clv_tensor *x = h->r->sample->x[input_indexes[k]];
    in[k] = (const char *)x->data + record * (x->bytes / (size_t)x->shape.dim[0]);
  }
  CLV_TRY(clv_look_part_forward(&h->parts[0], in, &key, err));
  CLV_TRY(run_loss(h, h->parts[0].output, record, h->dout, err));
  return clv_look_part_backward(&h->parts[0], h->dout, h->dx, err);
}

/* Runs all records. Each record occurs in both halves of the samples (attacks learn from the first
 * and are tested with the second), with different random inputs. */
static clv_code run_all_records(label_gradients *h, clv_err *err) {
  size_t n_records = h->r->sample->record_counts.n,
         n_draws = CLV_MAX(N_SAMPLED_GRADIENTS / n_records, (size_t)2);
  double n_labels;
  if (h->r->sample->y->dtype == CLV_I64)
    n_draws = CLV_MAX(n_draws / h->n_labels_per_record, (size_t)2);
  n_draws = CLV_MIN(n_draws - n_draws % 2, (size_t)MAX_INPUT_DRAWS);
  n_labels = (double)(n_draws * n_records *
                      (h->r->sample->y->dtype == CLV_I64 ? h->n_labels_per_record : 1));
  for (size_t draw = 0; draw < n_draws; draw++) {
    if (draw == n_draws / 2) h->n_fit = h->n;
    for (size_t at = 0; at + h->batch_size <= n_records; at += h->batch_size) {
      if (clv_now_ns() > h->r->look_end_ns)
        return clv_fail(err, CLV_EXHAUSTED, "gradients of %zu records took longer than %d s",
                        n_records, CLV_LOOK_MAX_SECONDS);
      CLV_TRY(run_batch(h, at, draw, err));
      keep_gradients(h, at, draw, (double)h->capacity / n_labels * .9);
    }
    if (draw > 1 && draw < n_draws / 2 && clv_now_ns() > h->r->draw_end_ns) draw = n_draws / 2 - 1;
  }
  return CLV_OK;
}

/* ---- reading labels from the gradients ------------------------------------------------------- */

static const float *get_numeric_labels(const label_gradients *h, size_t record) {
  return (const float *)get_record_labels(h, record);
}

static int compare_floats(const void *a, const void *b) {
  float x = *(const float *)a, y = *(const float *)b;
  return x < y ? -1 : x > y;
}

/* Copies the different values of a sorted list to `ret`. Returns their number. */
static size_t remove_duplicates(const float *sorted_values, size_t n, float *ret) {
  size_t n_kept = 0;
  for (size_t i = 0; i < n; i++)
    if (!i || sorted_values[i] > sorted_values[i - 1]) ret[n_kept++] = sorted_values[i];
  return n_kept;
}

/* Turns column `at` of numeric labels into classes. If the labels have only a few different values,
 * each value is a class; otherwise there are two classes, up to the median and above it. Returns
 * the number of classes. */
static size_t classify_numbers(const label_gradients *h, size_t at, int64_t *classes) {
  float sorted_values[CLV_LOOK_MAX_RECORDS] = {0};
  float class_ends[CLV_LOOK_MAX_RECORDS]; /* largest value of each class, ascending */
  size_t n = CLV_MIN(h->r->sample->record_counts.n, (size_t)CLV_LOOK_MAX_RECORDS);
  for (size_t i = 0; i < n; i++) sorted_values[i] = get_numeric_labels(h, i)[at];
  qsort(sorted_values, n, sizeof *sorted_values, compare_floats);
  size_t n_class_ends = remove_duplicates(sorted_values, n, class_ends);
  if (n_class_ends > CLV_MIN(n / 2, (size_t)CLV_LOOK_MAX_CLASSES)) {
    class_ends[0] = sorted_values[(n - 1) / 2];
    n_class_ends = 1;
  }
  for (size_t i = 0; i < h->n; i++) {
    classes[i] = 0;
    for (size_t k = 0; k < n_class_ends; k++)
      classes[i] += get_numeric_labels(h, h->kept_records[i])[at] > class_ends[k];
  }
  return CLV_MAX(n_class_ends, (size_t)2);
}

typedef struct column_variance {
  size_t at;
  double variance;
} column_variance;

static double compute_variance(const label_gradients *h, size_t at) {
  double sum = 0, squares_sum = 0, n = (double)h->r->sample->record_counts.n,
         first_value = (double)get_numeric_labels(h, 0)[at];
  for (size_t i = 0; i < h->r->sample->record_counts.n; i++) {
    double v = (double)get_numeric_labels(h, i)[at] - first_value;
    sum += v;
    squares_sum += v * v;
  }
  return squares_sum / n - sum / n * (sum / n);
}

static int compare_by_variance(const void *a, const void *b) {
  const column_variance *x = a, *y = b;
  if (x->variance != y->variance) return x->variance > y->variance ? -1 : 1;
  return x->at < y->at ? -1 : x->at > y->at;
}

/* Chooses the columns of numeric labels that are not constant. If there are more than
 * MAX_LABEL_COLUMNS, half of the choice are the most variable columns, and the others are taken at
 * even steps. The most variable one comes first. */
static clv_code choose_columns(const label_gradients *h, column_variance **ret, size_t *n_ret,
                               clv_err *err) {
  size_t n = 0;
  CLV_TRY(clv_alloc(h->n_labels_per_record, sizeof **ret, ret, err));
  for (size_t k = 0; k < h->n_labels_per_record; k++) {
    double variance = compute_variance(h, k);
    if (variance > 0) (*ret)[n++] = (column_variance){k, variance};
  }
  if (n > 0) qsort(*ret, n, sizeof **ret, compare_by_variance);
  size_t n_most_variable = MAX_LABEL_COLUMNS / 2, n_others = n - CLV_MIN(n, n_most_variable);
  for (size_t k = 0; n_others > n_most_variable && k < n_most_variable; k++)
    (*ret)[n_most_variable + k] = (*ret)[n_most_variable + k * n_others / n_most_variable];
  *n_ret = CLV_MIN(n, (size_t)MAX_LABEL_COLUMNS);
  return CLV_OK;
}

/* Returns the position of the 1 in a one-hot label; SIZE_MAX: the label is not one-hot. */
static size_t get_one_hot_class(const label_gradients *h, size_t record) {
  const float *v = get_numeric_labels(h, record);
  size_t ret = SIZE_MAX;
  for (size_t k = 0; k < h->n_labels_per_record; k++) {
    bool is_one = v[k] == 1;
    if ((!is_one && v[k] != 0) || (is_one && ret != SIZE_MAX)) return SIZE_MAX;
    if (is_one) ret = k;
  }
  return ret;
}

static bool are_labels_one_hot(const label_gradients *h) {
  bool are_all_one_hot = h->n_labels_per_record > 1;
  for (size_t i = 0; are_all_one_hot && i < h->r->sample->record_counts.n; i++)
    are_all_one_hot = get_one_hot_class(h, i) != SIZE_MAX;
  return are_all_one_hot;
}

static clv_code read_columns(label_gradients *h, clv_look_gradients *g, clv_look_reading *ret,
                             clv_err *err) {
  CLV_AUTO(clv_freep) column_variance *columns = NULL;
  CLV_AUTO(clv_freep) int64_t *classes = NULL;
  size_t n_length_groups[MAX_LABEL_COLUMNS];
  CLV_TRY(choose_columns(h, &columns, &g->n_columns, err));
  CLV_TRY(clv_alloc(g->n_columns * h->n, sizeof *classes, &classes, err));
  for (size_t k = 0; k < g->n_columns; k++)
    n_length_groups[k] = classify_numbers(h, columns[k].at, classes + k * h->n);
  g->labels = classes;
  g->n_length_groups = n_length_groups;
  return clv_look_read_labels(g, ret, err);
}

/* Tries to read numeric labels from their gradients. One-hot labels are read as classes and, if the
 * loss has an accuracy, also number by number; other labels only number by number. *ret: result
 * with the highest figure, the fraction that was read. *groups: which records have equal labels;
 * set for one-hot labels only. */
static clv_code read_numeric_labels(label_gradients *h, clv_look_gradients *g,
                                    clv_look_reading *ret, clv_look_reading *groups, clv_err *err) {
  clv_look_reading columns_reading;
  *ret = (clv_look_reading){.by = ""};
  if (are_labels_one_hot(h)) {
    for (size_t i = 0; i < h->n; i++)
      h->kept_classes[i] = (int64_t)get_one_hot_class(h, h->kept_records[i]);
    CLV_TRY(clv_look_read_label_groups(g, groups, err));
    CLV_TRY(clv_look_read_labels(g, ret, err));
    if (!clv_loss_has_accuracy(h->b->config->loss.kind)) return CLV_OK;
  }
  CLV_TRY(read_columns(h, g, &columns_reading, err));
  if (!*ret->by || columns_reading.figure > ret->figure) *ret = columns_reading;
  return CLV_OK;
}

/* Returns how many different class weights the loss has, from 2 to CLV_LOOK_MAX_LENGTH_GROUPS. Each
 * different weight scales gradients to another norm. */
static size_t count_gradient_lengths(const label_gradients *h) {
  const clv_class_weights *w =
      &h->loss_graph->nodes[h->loss_graph->output_node].attrs.class_weights;
  size_t n = 0;
  for (size_t i = 0; i < (size_t)w->n && n < CLV_LOOK_MAX_LENGTH_GROUPS; i++) {
    size_t k = 0;
    while (k < i && w->of[k] != w->of[i]) k++;
    n += k == i;
  }
  return CLV_MAX(n, (size_t)2);
}

/* Reads the labels (*ret), and which records have the same label (*groups). If the labels are no
 * classes, no groups are read and groups->by is "". */
static clv_code read_labels(label_gradients *h, clv_look_reading *ret, clv_look_reading *groups,
                            clv_err *err) {
  const clv_tensor *y = h->r->sample->y;
  h->n_labels_per_record = y->n / (size_t)y->shape.dim[0];
  CLV_TRY(make_layers(h, err));
  CLV_TRY(find_label_parts(h, err));
  CLV_TRY(make_plan(h, err));
  CLV_TRY(alloc_gradients(h, err));
  CLV_TRY(run_all_records(h, err));
  size_t n_length_groups = count_gradient_lengths(h);
  clv_look_gradients g = {.values = h->kept_gradient_values,
                          .labels = h->kept_classes,
                          .n = h->n,
                          .n_fit = h->n_fit,
                          .width = h->n_kept_per_label,
                          .n_columns = 1,
                          .n_length_groups = &n_length_groups,
                          .are_of_outputs = !h->has_layers_behind || !h->parts[0].params->n};
  *groups = (clv_look_reading){.by = ""};
  if (y->dtype != CLV_I64) return read_numeric_labels(h, &g, ret, groups, err);
  CLV_TRY(clv_look_read_label_groups(&g, groups, err));
  return clv_look_read_labels(&g, ret, err);
}

/* Returns why there are no labels to read; NULL: there are some. */
static const char *why_no_labels(const clv_look_draw *r, uint32_t last_worker_stage) {
  const clv_blueprint *b = r->weights.b;
  if (r->o->only_evaluates) return "no gradient is sent";
  if (b->stages[b->n_stages].worker >= 0) return "the labels themselves leave";
  if (last_worker_stage == b->n_stages || !b->stages[last_worker_stage + 1].input_needs_grad)
    return "no gradient is sent";
  return clv_dataset_has_labels(r->o->dataset) ? NULL : "there are no labels";
}

static void set_nothing_to_read(clv_look_result *ret, const char *why) {
  snprintf(ret->reason, sizeof ret->reason, "%s", why);
}

static void set_result(clv_look_result *ret, const clv_look_reading *reading) {
  ret->state = CLV_LOOK_RAN;
  ret->figure = reading->figure;
  ret->method = reading->by;
}

void clv_look_read_head(const clv_look_draw *r, clv_look_result *labels, clv_look_result *groups) {
  CLV_AUTO(free_label_gradients) label_gradients h = {.r = r, .b = r->weights.b};
  clv_look_reading label_reading, group_reading;
  clv_err err;
  h.last_worker_stage = clv_look_find_last_worker_stage(h.b);
  const char *why = why_no_labels(r, h.last_worker_stage);
  if (why) {
    set_nothing_to_read(labels, why);
    set_nothing_to_read(groups, why);
    return;
  }
  clv_code code = clv_look_choose_records(r, CLV_LOOK_MAX_RECORDS, &err);
  if (code == CLV_OK) code = read_labels(&h, &label_reading, &group_reading, &err);
  if (code != CLV_OK) {
    clv_look_set_skipped(labels, &err);
    clv_look_set_skipped(groups, &err);
    return;
  }
  set_result(labels, &label_reading);
  if (*group_reading.by)
    set_result(groups, &group_reading);
  else
    set_nothing_to_read(groups, "labels are no classes");
}
