/* SPDX-License-Identifier: Apache-2.0
 *
 * Tries to read records and tokens, as one part of the look (look.c): runs all layers before the
 * last cut on a few records, and attacks all tensors that are sent for a record together. look.c
 * calls clv_look_read_front once for each draw of the secret weights.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "master/plan/look_int.h"

/* Multiply-adds per second of the slowest machine; used to estimate for how many records there is
 * time. */
static const double MIN_MACS_PER_S = 1e10;
enum { MAX_BATCH_RECORDS = 16, MAX_POSSIBLE_SHAPES = 8 };

typedef struct look_tensors {
  const clv_look_draw *r;
  const clv_blueprint *b;
  uint32_t n_parts; /* number of stages of the master before the last cut */
  clv_look_part *parts;
  size_t n_tensors;
  size_t n_values_per_record; /* number of values that all tensors together have for one record */
  clv_look_tensor *tensors;
  /* [n_tensors] stage that outputs the tensor; n_stages: the tensor is a model input */
  uint32_t *tensor_stages;
  float *values;             /* values of the tensors, [records][n_values_per_record] */
  uint64_t run_duration_ns;  /* time that run_all_records took for all records */
  int64_t *exchanged_tokens; /* tokens of the records that run_exchanged_tokens has made */
} look_tensors;

static void free_look_tensors(look_tensors *f) {
  for (uint32_t i = 0; f->parts && i < f->n_parts; i++) clv_look_part_done(&f->parts[i]);
  free(f->parts);
  free(f->tensors);
  free(f->tensor_stages);
  free(f->values);
  free(f->exchanged_tokens);
}

/* ---- tensors from which the attacks read ----------------------------------------------------- */

static bool is_output_sent(const clv_blueprint *b, uint32_t i) {
  return b->stages[i].worker < 0 && b->stages[i + 1].worker >= 0;
}

/* True if the master sends input k of the model to a worker. The input with the lengths of
 * sequences does not count, because it has no records. */
static bool is_input_sent(const clv_blueprint *b, uint32_t k) {
  bool is_sent = false;
  for (uint32_t i = 0; i < b->n_stages; i++)
    for (uint32_t j = 0; b->stages[i].worker >= 0 && j < b->stages[i].n_model_inputs; j++)
      is_sent |= b->stages[i].model_inputs[j] == k;
  return is_sent && !clv_graph_length_limit(b->full_graph, (int)k);
}

static clv_shape make_record_shape(const clv_shape *s) {
  clv_shape ret = {.rank = CLV_MAX(s->rank - 1, 0)};
  memcpy(ret.dim, s->dim + 1, (size_t)ret.rank * sizeof *ret.dim);
  return ret;
}

static clv_code add_tensor(look_tensors *f, uint32_t stage, const clv_shape *shape, clv_err *err) {
  size_t n;
  clv_look_tensor *t = &f->tensors[f->n_tensors];
  *t = (clv_look_tensor){.first_index = f->n_values_per_record, .shape = make_record_shape(shape)};
  CLV_TRY(clv_shape_numel(&t->shape, &n, err));
  f->tensor_stages[f->n_tensors++] = stage;
  return clv_add_size(f->n_values_per_record, n, &f->n_values_per_record)
             ? CLV_OK
             : clv_fail(err, CLV_EXHAUSTED, "too many values");
}

static clv_code list_tensors(look_tensors *f, clv_err *err) {
  const clv_node *values[CLV_MAX_NODES];
  size_t max_tensors = f->b->inputs.n;
  for (uint32_t i = 0; i < f->b->n_stages; i++)
    if (is_output_sent(f->b, i)) f->n_parts = i + 1;
  for (uint32_t i = 0; i < f->n_parts; i++)
    max_tensors += clv_blueprint_list_cut_values(f->b, i, NULL);
  CLV_TRY(clv_alloc(max_tensors, sizeof *f->tensors, &f->tensors, err));
  CLV_TRY(clv_alloc(max_tensors, sizeof *f->tensor_stages, &f->tensor_stages, err));
  for (uint32_t i = 0; i < f->n_parts; i++) {
    uint32_t n = is_output_sent(f->b, i) ? clv_blueprint_list_cut_values(f->b, i, values) : 0;
    for (uint32_t k = 0; k < n; k++) CLV_TRY(add_tensor(f, i, &values[k]->shape, err));
  }
  for (uint32_t k = 0; k < f->b->inputs.n; k++)
    if (is_input_sent(f->b, k))
      CLV_TRY(add_tensor(f, f->b->n_stages, &f->b->inputs.inputs[k].shape, err));
  return CLV_OK;
}

static clv_code make_parts(look_tensors *f, clv_err *err) {
  CLV_TRY(clv_alloc(f->n_parts, sizeof *f->parts, &f->parts, err));
  for (uint32_t i = 0; i < f->n_parts; i++) {
    CLV_TRY(clv_look_part_new(&f->r->weights, i, i, &f->parts[i], err));
    f->parts[i].runs_as_training &= !f->r->o->only_evaluates;
  }
  return clv_look_parts_connect_ties(f->parts, f->n_parts, err);
}

/* ---- running the layers before the last cut -------------------------------------------------- */

static double count_macs_per_record(const look_tensors *f) {
  double n_macs = 0;
  for (uint32_t i = 0; i < f->n_parts; i++) n_macs += clv_look_part_mac_count(&f->parts[i]);
  return n_macs;
}

/* Chooses as many records as time and memory permit, when the first draw of the weights runs. The
 * later draws use the same records. */
static clv_code choose_records(look_tensors *f, clv_err *err) {
  double time_left_s =
      (double)(f->r->draw_end_ns - CLV_MIN(clv_now_ns(), f->r->draw_end_ns)) * 1e-9;
  double max_records_by_time =
      time_left_s * MIN_MACS_PER_S / CLV_MAX(count_macs_per_record(f), 1.0);
  size_t max_records_by_memory =
      CLV_LOOK_MAX_VALUE_BYTES / sizeof(float) / CLV_MAX(f->n_values_per_record, (size_t)1);
  if (max_records_by_time < CLV_LOOK_MIN_RECORDS)
    return clv_fail(err, CLV_EXHAUSTED, "%d records would take longer than %d s",
                    CLV_LOOK_MIN_RECORDS, CLV_LOOK_MAX_SECONDS);
  if (max_records_by_memory < CLV_LOOK_MIN_RECORDS)
    return clv_fail(err, CLV_EXHAUSTED, "a record has %zu values there, more than a look keeps",
                    f->n_values_per_record);
  return clv_look_choose_records(
      f->r, CLV_MIN(max_records_by_memory, (size_t)CLV_MIN(max_records_by_time, 1e6)), err);
}

static char *get_row_data(const clv_tensor *t, size_t record) {
  return (char *)t->data + record * (t->bytes / (size_t)t->shape.dim[0]);
}

static void store_values(const look_tensors *f, size_t tensor, const void *source, clv_dtype dtype,
                         size_t row_stride, size_t record, size_t n) {
  const clv_look_tensor *t = &f->tensors[tensor];
  size_t tensor_width =
      (tensor + 1 < f->n_tensors ? f->tensors[tensor + 1].first_index : f->n_values_per_record) -
      t->first_index;
  for (size_t r = 0; r < n; r++)
    for (size_t k = 0; k < tensor_width; k++)
      f->values[(record + r) * f->n_values_per_record + t->first_index + k] =
          dtype == CLV_I64 ? (float)((const int64_t *)source)[r * row_stride + k]
                           : ((const float *)source)[r * row_stride + k];
}

static void store_output(const look_tensors *f, uint32_t stage, size_t record) {
  const clv_look_part *p = &f->parts[stage];
  const clv_node *out = &p->graph->nodes[p->graph->output_node];
  size_t at = 0, row_stride = 0, first_value_index = SIZE_MAX;
  for (size_t k = 0; k < f->n_tensors; k++) {
    if (f->tensor_stages[k] != stage) continue;
    if (first_value_index == SIZE_MAX) first_value_index = f->tensors[k].first_index;
    row_stride = (k + 1 < f->n_tensors ? f->tensors[k + 1].first_index : f->n_values_per_record) -
                 first_value_index;
  }
  for (size_t k = 0; k < f->n_tensors; k++) {
    if (f->tensor_stages[k] != stage) continue;
    at = f->tensors[k].first_index - first_value_index;
    store_values(f, k, (const char *)p->output + at * clv_dtype_size(out->dtype), out->dtype,
                 row_stride, record, (size_t)p->batch_size);
  }
}

static clv_code run_batch(look_tensors *f, size_t record, clv_err *err) {
  const clv_rng_key key = {.step = 1};
  const void *in[CLV_MAX_INPUTS];
  int input_indexes[CLV_MAX_INPUTS];
  for (uint32_t i = 0; i < f->n_parts; i++) {
    uint32_t n = clv_look_part_list_inputs(f->b, &f->parts[i], input_indexes);
    for (uint32_t k = 0; k < n; k++)
      in[k] = input_indexes[k] < 0 ? f->parts[i - 1].output
                                   : get_row_data(f->r->sample->x[input_indexes[k]], record);
    CLV_TRY(clv_look_part_forward(&f->parts[i], in, &key, err));
    if (is_output_sent(f->b, i)) store_output(f, i, record);
  }
  return CLV_OK;
}

static void store_inputs(const look_tensors *f, size_t n) {
  size_t k = 0;
  while (k < f->n_tensors && f->tensor_stages[k] < f->b->n_stages) k++;
  for (uint32_t input = 0; input < f->b->inputs.n; input++) {
    const clv_tensor *x = f->r->sample->x[input];
    if (is_input_sent(f->b, input))
      store_values(f, k++, x->data, x->dtype, x->n / (size_t)x->shape.dim[0], 0, n);
  }
}

/* Returns how many records to run at once: as many as take one second, at most MAX_BATCH_RECORDS,
 * but at least two, because batch norm needs two. */
static size_t choose_batch_size(const look_tensors *f, size_t n) {
  double max_records_by_time =
      CLV_MIN(MIN_MACS_PER_S / CLV_MAX(count_macs_per_record(f), 1.0), (double)MAX_BATCH_RECORDS);
  return CLV_MIN(n, CLV_MAX((size_t)max_records_by_time, (size_t)2));
}

static clv_code check_time(const look_tensors *f, clv_err *err) {
  if (clv_now_ns() <= f->r->look_end_ns) return CLV_OK;
  return clv_fail(err, CLV_EXHAUSTED, "%zu records took longer than %d s",
                  f->r->sample->record_counts.n, CLV_LOOK_MAX_SECONDS);
}

/* Runs all records. The last batch starts earlier if it would be short, and so repeats some
 * records. */
static clv_code run_all_records(look_tensors *f, clv_err *err) {
  size_t n = f->r->sample->record_counts.n, batch_size = choose_batch_size(f, n);
  uint64_t begin_ns = clv_now_ns();
  for (size_t at = 0; f->n_parts && at < n; at += batch_size) {
    CLV_TRY(check_time(f, err));
    CLV_TRY(run_batch(f, CLV_MIN(at, n - batch_size), err));
  }
  f->run_duration_ns = clv_now_ns() - begin_ns;
  return CLV_OK;
}

static clv_code compute_sent_values(look_tensors *f, clv_err *err) {
  size_t n = f->r->sample->record_counts.n;
  CLV_TRY(clv_alloc(n * f->n_values_per_record, sizeof *f->values, &f->values, err));
  for (size_t k = 0; k < f->n_tensors; k++) {
    f->tensors[k].values = f->values;
    f->tensors[k].record_stride = f->n_values_per_record;
  }
  for (uint32_t i = 0; i < f->n_parts; i++)
    CLV_TRY(clv_look_part_make_plan(&f->parts[i], (int64_t)choose_batch_size(f, n), err));
  CLV_TRY(run_all_records(f, err));
  store_inputs(f, n);
  return CLV_OK;
}

/* ---- reading records and tokens from the tensors --------------------------------------------- */

static void set_nothing_to_read(clv_look_result *ret, const char *why) {
  ret->state = CLV_LOOK_NOTHING_TO_READ;
  snprintf(ret->reason, sizeof ret->reason, "%s", why);
}

static void set_result(clv_look_result *ret, clv_code code, const clv_look_reading *reading,
                       const clv_err *err) {
  if (code != CLV_OK) {
    clv_look_set_skipped(ret, err);
    return;
  }
  ret->state = CLV_LOOK_RAN;
  ret->figure = reading->figure;
  ret->method = reading->by;
}

/* Returns an input of the records as a tensor. If no records were chosen yet, only the shape is
 * set. */
static clv_look_tensor get_input_tensor(const look_tensors *f, uint32_t k) {
  const clv_tensor *x = k < f->r->sample->n_inputs ? f->r->sample->x[k] : NULL;
  if (!x) return (clv_look_tensor){.shape = make_record_shape(&f->b->inputs.inputs[k].shape)};
  return (clv_look_tensor){.values = x->data,
                           .record_stride = x->n / (size_t)x->shape.dim[0],
                           .shape = make_record_shape(&x->shape)};
}

static bool find_grid_view(const look_tensors *f, clv_look_view *ret) {
  for (uint32_t k = 0; k < f->b->inputs.n; k++) {
    const clv_look_tensor t = get_input_tensor(f, k);
    if (f->b->inputs.inputs[k].dtype == CLV_F32 && clv_look_make_record_view(&t, ret)) return true;
  }
  return false;
}

/* Lists shapes that a flat tensor may have had before it was flattened: the shapes of layers with
 * as many values as the tensor. Returns the number of shapes. */
static size_t list_possible_shapes(const look_tensors *f, size_t tensor,
                                   clv_shape ret[MAX_POSSIBLE_SHAPES]) {
  const clv_shape flat_shape = f->tensors[tensor].shape;
  size_t n = 0;
  ret[n++] = flat_shape;
  for (int i = 0; flat_shape.rank == 1 && i < f->b->full_graph->n_nodes && n < MAX_POSSIBLE_SHAPES;
       i++) {
    const clv_shape s = make_record_shape(&f->b->full_graph->nodes[i].shape);
    size_t n_values, k = 0;
    if (s.rank < 2 || clv_shape_numel(&s, &n_values, NULL) != CLV_OK) continue;
    while (k < n && !clv_shape_equal(&ret[k], &s)) k++;
    if (n_values == (size_t)flat_shape.dim[0] && k == n) ret[n++] = s;
  }
  return n;
}

typedef struct look_views {
  clv_look_view *list;
  size_t n;
} look_views;

static void free_views(look_views *v) { free(v->list); }

/* Lists the views of all tensors that the attacks read: as sequences of n_tokens vectors, or, if
 * n_tokens is 0, as grids like that of `records`. */
static clv_code list_views(const look_tensors *f, const clv_look_view *records, size_t n_tokens,
                           look_views *ret, clv_err *err) {
  clv_look_view tensor_views[CLV_LOOK_MAX_VIEWS];
  clv_shape shapes[MAX_POSSIBLE_SHAPES];
  size_t max_list_views = f->n_tensors * MAX_POSSIBLE_SHAPES * CLV_LOOK_MAX_VIEWS + 1;
  CLV_TRY(clv_alloc(max_list_views, sizeof *ret->list, &ret->list, err));
  for (size_t k = 0; k < f->n_tensors; k++) {
    size_t n_shapes = list_possible_shapes(f, k, shapes);
    for (size_t s = 0; s < n_shapes; s++) {
      clv_look_tensor t = f->tensors[k];
      t.shape = shapes[s];
      size_t n = n_tokens ? clv_look_make_sequence_views(&t, n_tokens, tensor_views)
                          : clv_look_make_grid_views(&t, records, tensor_views);
      memcpy(ret->list + ret->n, tensor_views, n * sizeof *tensor_views);
      ret->n += n;
    }
  }
  return CLV_OK;
}

/* Returns why no tensor can look like a picture, from the shapes of records and tensors alone;
 * NULL: a tensor may look like one. */
static const char *why_no_pixels(const look_tensors *f) {
  CLV_AUTO(free_views) look_views v = {0};
  clv_look_view records;
  size_t k = 0;
  if (!find_grid_view(f, &records)) return "records are no images or signals of 16 places";
  if (list_views(f, &records, 0, &v, NULL) != CLV_OK) return NULL;
  while (k < v.n && v.list[k].n_rows * v.list[k].n_columns < CLV_LOOK_MIN_PLACES) k++;
  return k < v.n ? NULL : "no tensor that leaves has a grid of 16 places";
}

static void read_pixels(look_tensors *f, clv_look_result *ret) {
  CLV_AUTO(free_views) look_views v = {0};
  clv_look_view records;
  clv_look_reading reading;
  clv_err err;
  (void)find_grid_view(f, &records);
  clv_code code = list_views(f, &records, 0, &v, &err);
  if (code == CLV_OK)
    code = clv_look_read_pixels(v.list, v.n, &records, f->r->sample->record_counts, &reading, &err);
  set_result(ret, code, &reading, &err);
}

/* Finds the first input with tokens. If a token has further numbers, such as those of a box, only
 * the first number, the token itself, counts. */
static bool find_token_input(const look_tensors *f, uint32_t *ret, size_t *n_tokens,
                             size_t *n_values_per_token) {
  for (uint32_t k = 0; k < f->b->inputs.n; k++) {
    const clv_shape s = make_record_shape(&f->b->inputs.inputs[k].shape);
    if (f->b->inputs.inputs[k].dtype != CLV_I64 || clv_graph_length_limit(f->b->full_graph, (int)k))
      continue;
    *ret = k;
    *n_tokens = s.rank ? (size_t)s.dim[0] : 1;
    *n_values_per_token = s.rank > 1 ? (size_t)s.dim[1] : 1;
    return s.rank < 3 && *n_tokens && *n_values_per_token;
  }
  return false;
}

static int64_t get_sequence_length(const look_tensors *f, size_t record) {
  for (uint32_t k = 0; k < f->b->inputs.n; k++)
    if (clv_graph_length_limit(f->b->full_graph, (int)k))
      return ((const int64_t *)f->r->sample->x[k]->data)[record];
  return INT64_MAX;
}

static clv_code list_tokens(const look_tensors *f, uint32_t input, size_t n_tokens,
                            size_t n_values_per_token, int64_t **ret, clv_err *err) {
  const int64_t *x = f->r->sample->x[input]->data;
  size_t n = f->r->sample->record_counts.n;
  CLV_TRY(clv_alloc(n * n_tokens, sizeof **ret, ret, err));
  for (size_t i = 0; i < n * n_tokens; i++) {
    bool is_pad = (int64_t)(i % n_tokens) >= get_sequence_length(f, i / n_tokens);
    (*ret)[i] = is_pad ? -1 : x[i * n_values_per_token];
  }
  return CLV_OK;
}

/* Finds the first input of floats that is no grid, so neither a picture nor a sequence. */
static bool find_flat_input(const look_tensors *f, clv_look_tensor *ret) {
  clv_look_view grid;
  for (uint32_t k = 0; k < f->b->inputs.n; k++) {
    if (f->b->inputs.inputs[k].dtype != CLV_F32) continue;
    *ret = get_input_tensor(f, k);
    if (!clv_look_make_record_view(ret, &grid)) return true;
  }
  return false;
}

/* Numbers the records so that records that are equal bit by bit have equal numbers. False: most
 * records differ from all others. */
static bool number_repeated_records(const look_tensors *f, int64_t ret[CLV_LOOK_MAX_RECORDS]) {
  size_t n = f->r->sample->record_counts.n, n_different = 0;
  clv_look_tensor t;
  if (!find_flat_input(f, &t)) return false;
  for (size_t i = 0; i < n; i++) {
    size_t k = 0;
    while (memcmp(t.values + k * t.record_stride, t.values + i * t.record_stride,
                  t.record_stride * sizeof(float)))
      k++;
    ret[i] = k < i ? ret[k] : (int64_t)n_different++;
  }
  return n_different <= n / 2;
}

static void read_nearest_tokens(const look_tensors *f, const clv_look_tokens *t,
                                clv_look_result *ret) {
  CLV_AUTO(free_views) look_views v = {0};
  clv_look_reading reading;
  clv_err err;
  clv_code code = list_views(f, NULL, t->n_tokens, &v, &err);
  if (code == CLV_OK)
    code = clv_look_read_tokens(v.list, v.n, t, f->r->sample->record_counts, &reading, &err);
  set_result(ret, code, &reading, &err);
}

static void recognize_repeated_records(const look_tensors *f, clv_look_result *ret) {
  int64_t tokens[CLV_LOOK_MAX_RECORDS];
  const clv_look_tokens t = {tokens, 1};
  /* if no records repeat, there is nothing to read, and why_no_tokens has set the reason */
  if (!number_repeated_records(f, tokens)) return;
  read_nearest_tokens(f, &t, ret);
  if (ret->state == CLV_LOOK_RAN) ret->method = "the nearest vector (records repeat)";
}

static void read_tokens(look_tensors *f, clv_look_result *ret) {
  CLV_AUTO(clv_freep) int64_t *tokens = NULL;
  size_t n_tokens, n_values_per_token;
  uint32_t input;
  clv_err err;
  if (!find_token_input(f, &input, &n_tokens, &n_values_per_token)) {
    recognize_repeated_records(f, ret);
    return;
  }
  clv_code code = list_tokens(f, input, n_tokens, n_values_per_token, &tokens, &err);
  const clv_look_tokens t = {tokens, n_tokens};
  if (code == CLV_OK)
    read_nearest_tokens(f, &t, ret);
  else
    clv_look_set_skipped(ret, &err);
}

/* Returns why the records have no tokens; NULL: the records have or may have tokens. Examines the
 * records alone, so that the reason is known even if the layers cannot run. Chooses records if none
 * were chosen yet. */
static const char *why_no_tokens(const look_tensors *f) {
  int64_t tokens[CLV_LOOK_MAX_RECORDS];
  size_t n_tokens, n_values_per_token;
  uint32_t input;
  clv_err choose_err;
  if (find_token_input(f, &input, &n_tokens, &n_values_per_token)) return NULL;
  if (clv_look_choose_records(f->r, CLV_LOOK_MAX_RECORDS, &choose_err) != CLV_OK &&
      !f->r->sample->record_counts.n)
    return NULL;
  return number_repeated_records(f, tokens) ? NULL : "records have no tokens";
}

/* ---- reading features, the numbers of an input ----------------------------------------------- */

/* Returns how many of the values that are sent for a record are outputs of the master's layers.
 * These values come first; the values of model inputs follow. */
static size_t count_master_values(const look_tensors *f) {
  size_t k = 0;
  while (k < f->n_tensors && f->tensor_stages[k] < f->b->n_stages) k++;
  return k < f->n_tensors ? f->tensors[k].first_index : f->n_values_per_record;
}

static bool is_features_input(const look_tensors *f, uint32_t input) {
  return f->b->inputs.inputs[input].dtype == CLV_F32 && !is_input_sent(f->b, input);
}

static const char *why_no_features(const look_tensors *f) {
  uint32_t input;
  size_t n_tokens, n_values_per_token;
  bool has_features =
      find_token_input(f, &input, &n_tokens, &n_values_per_token) && !is_input_sent(f->b, input);
  for (uint32_t k = 0; k < f->b->inputs.n; k++) has_features |= is_features_input(f, k);
  if (!has_features) return "records have no numbers, or they leave as they are";
  return count_master_values(f) ? NULL : "only records leave";
}

/* Reads the features of an input. If the input is a picture, its neighbouring positions are alike,
 * so the finding is PICTURE; otherwise it is RAW INPUT. */
static void read_input_features(const look_tensors *f, uint32_t input, clv_look_result *ret) {
  const clv_look_tensor t = get_input_tensor(f, input);
  const clv_look_features features = {.features = t.values,
                                      .feature_record_stride = t.record_stride,
                                      .n_features = t.record_stride,
                                      .values = f->values,
                                      .value_record_stride = f->n_values_per_record,
                                      .n_values = count_master_values(f)};
  clv_look_view grid;
  clv_look_reading reading;
  clv_err err;
  clv_code code = clv_look_read_features(&features, f->r->sample->record_counts, &reading, &err);
  set_result(ret, code, &reading, &err);
  ret->findings =
      clv_look_make_record_view(&t, &grid) ? CLV_FINDING_PICTURE : CLV_FINDING_RAW_INPUT;
}

/* True if result a is worse than result b: the finding of a needs a key of `privacy` and that of b
 * needs none, or else the figure of a (the fraction that was read) is larger. */
static bool is_worse_result(const clv_look_result *a, const clv_look_result *b) {
  bool needs_key[2] = {a->figure > CLV_LOOK_CERTAIN_FIGURE && a->findings != CLV_FINDING_PICTURE,
                       b->figure > CLV_LOOK_CERTAIN_FIGURE && b->findings != CLV_FINDING_PICTURE};
  return needs_key[0] != needs_key[1] ? needs_key[0] : a->figure > b->figure;
}

/* Returns a pseudo-random number below n that depends only on `draw` and n. */
static size_t draw_index_below(uint64_t draw, size_t n) {
  uint64_t h = (draw + 1) * UINT64_C(0x9e3779b97f4a7c15);
  h = (h ^ h >> 31) * UINT64_C(0xbf58476d1ce4e5b9);
  return (size_t)((h ^ h >> 29) % n);
}

/* Replaces each token of record r by the token at the same position of a record that is drawn from
 * the first n records. */
static void exchange_tokens(const look_tensors *f, int64_t *x, size_t r, size_t n, size_t n_tokens,
                            size_t n_values_per_token) {
  for (size_t s = 0; s < n_tokens; s++) {
    size_t from = draw_index_below(r * n_tokens + s, n);
    bool is_pad_in_either =
        (int64_t)s >= CLV_MIN(get_sequence_length(f, r), get_sequence_length(f, from));
    if (!is_pad_in_either)
      x[(r * n_tokens + s) * n_values_per_token] = x[(from * n_tokens + s) * n_values_per_token];
  }
}

/* Runs the layers again on records with exchanged tokens, and lists the exchanged tokens. In a
 * large vocabulary a token seldom occurs twice at a position, so an attack would have no examples
 * to learn from. So each token of the last three quarters of the records is replaced by the token
 * at the same position of a record that is drawn from the first quarter. The draw is separate for
 * each position, so an attack can read from a vector only the token of this vector, not the
 * neighbouring tokens. */
static clv_code run_exchanged_tokens(look_tensors *f, uint32_t input, size_t n_tokens,
                                     size_t n_values_per_token, clv_err *err) {
  clv_tensor *x = f->r->sample->x[input];
  clv_look_split split = f->r->sample->record_counts;
  CLV_AUTO(clv_freep) int64_t *original_tokens = NULL;
  if (clv_now_ns() + f->run_duration_ns > f->r->look_end_ns)
    return clv_fail(err, CLV_EXHAUSTED, "to run layers twice would take longer than %d s",
                    CLV_LOOK_MAX_SECONDS);
  CLV_TRY(clv_alloc(x->n, sizeof *original_tokens, &original_tokens, err));
  memcpy(original_tokens, x->data, x->n * sizeof *original_tokens);
  for (size_t r = split.n_fit / 2; r < split.n; r++)
    exchange_tokens(f, x->data, r, split.n_fit / 2, n_tokens, n_values_per_token);
  clv_code code = run_all_records(f, err);
  if (code == CLV_OK)
    code = list_tokens(f, input, n_tokens, n_values_per_token, &f->exchanged_tokens, err);
  memcpy(x->data, original_tokens, x->n * sizeof *original_tokens);
  return code;
}

/* Runs the attack on tokens again, on records whose tokens run_exchanged_tokens has replaced by
 * tokens of other records. Replaces the earlier result *ret if the new result is worse, or if
 * the earlier or the new attack did not run. Call this function last, because it overwrites
 * f->values. */
static void read_exchanged_tokens(look_tensors *f, clv_look_result *ret) {
  size_t n_tokens, n_values_per_token;
  uint32_t input;
  clv_err err;
  if (!find_token_input(f, &input, &n_tokens, &n_values_per_token) || is_input_sent(f->b, input))
    return;
  clv_code code = run_exchanged_tokens(f, input, n_tokens, n_values_per_token, &err);
  const clv_look_tokens t = {f->exchanged_tokens, n_tokens};
  clv_look_result exchanged_result = {0};
  if (code == CLV_OK)
    read_nearest_tokens(f, &t, &exchanged_result);
  else
    clv_look_set_skipped(&exchanged_result, &err);
  exchanged_result.findings = CLV_FINDING_TOKENS;
  if (exchanged_result.state == CLV_LOOK_RAN)
    exchanged_result.method = "the nearest vector of the same token";
  if (exchanged_result.state != CLV_LOOK_RAN || ret->state != CLV_LOOK_RAN ||
      is_worse_result(&exchanged_result, ret))
    *ret = exchanged_result;
}

static void read_features(look_tensors *f, clv_look_result *ret) {
  for (uint32_t k = 0; k < f->b->inputs.n; k++) {
    clv_look_result input_result = {0};
    if (!is_features_input(f, k)) continue;
    read_input_features(f, k, &input_result);
    if (input_result.state != CLV_LOOK_RAN || ret->state != CLV_LOOK_RAN ||
        is_worse_result(&input_result, ret))
      *ret = input_result;
    if (input_result.state != CLV_LOOK_RAN) return;
  }
  read_exchanged_tokens(f, ret);
}

static clv_code prepare_and_compute(look_tensors *f, clv_err *err) {
  CLV_TRY(make_parts(f, err));
  CLV_TRY(choose_records(f, err));
  return compute_sent_values(f, err);
}

/* Sets the result of an attack that did not run. why: reason why there is nothing to read; NULL:
 * there is something, but an error in `code` and `err` kept the attack from running. */
static void set_not_read(clv_look_result *ret, const char *why, clv_code code, const clv_err *err) {
  if (why)
    set_nothing_to_read(ret, why);
  else if (code != CLV_OK)
    clv_look_set_skipped(ret, err);
}

void clv_look_read_front(const clv_look_draw *r, clv_look_result results[CLV_LOOK_N_READERS]) {
  static const struct {
    clv_look_reader reader;
    const char *(*why_nothing_to_read)(const look_tensors *f);
    void (*read)(look_tensors *f, clv_look_result *ret);
  } readers[] = {{CLV_LOOK_PIXELS, why_no_pixels, read_pixels},
                 {CLV_LOOK_TOKENS, why_no_tokens, read_tokens},
                 {CLV_LOOK_FEATURES, why_no_features, read_features}};
  CLV_AUTO(free_look_tensors) look_tensors f = {.r = r, .b = r->weights.b};
  clv_err err;
  clv_code code = list_tensors(&f, &err);
  bool is_list_complete = code == CLV_OK, has_sent_tensor = is_list_complete && f.n_tensors;
  if (has_sent_tensor) code = prepare_and_compute(&f, &err);
  for (size_t k = 0; k < CLV_COUNT(readers); k++) {
    clv_look_result *ret = &results[readers[k].reader];
    const char *why = has_sent_tensor    ? readers[k].why_nothing_to_read(&f)
                      : is_list_complete ? "no tensor made of records leaves"
                                         : NULL;
    set_not_read(ret, why, code, &err);
    if (code == CLV_OK && !why) readers[k].read(&f, ret);
  }
}
