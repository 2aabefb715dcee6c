/* SPDX-License-Identifier: Apache-2.0
 *
 * Checks that records, labels, outputs and batch sizes fit together (clv_run_data_check_fit).
 * Without these checks a run would fail in its first step, or in the last step of an epoch. Each
 * message names the key and the file.
 */
#include <stdio.h>
#include <string.h>

#include "master/plan/plan_int.h"

/* One of the session's two sets of records, with the key and the files that messages name. */
typedef struct data_set {
  const clv_dataset *ds;
  const char *key;
  const clv_text_list *files;
  clv_config_pos key_pos;
} data_set;

/* Returns the file that has input k of the records. */
static const char *get_records_file(const data_set *s, size_t k) {
  return s->files->items[CLV_MIN(k, s->files->n - 1)];
}
static const char *get_labels_file(const data_set *s) { return s->files->items[s->files->n - 1]; }

static const clv_node *get_last_layer(const clv_blueprint *b) {
  return &b->full_graph->nodes[b->full_graph->output_node];
}

/* Formats the shape of one record: the shape without its first dimension. */
static const char *format_record_shape(clv_shape s, char *text, size_t len) {
  for (int i = 1; i < s.rank; i++) s.dim[i - 1] = s.dim[i];
  s.rank -= s.rank > 0;
  return clv_shape_format(&s, text, len);
}

static clv_code check_same_shapes(const clv_blueprint *b, const data_set *train,
                                  const data_set *test, clv_err *err) {
  char train_text[160], test_text[160];
  for (size_t k = 0; k < clv_dataset_input_count(train->ds); k++) {
    clv_shape x = clv_dataset_input(train->ds, k, 1).shape;
    clv_shape y = clv_dataset_input(test->ds, k, 1).shape;
    if (clv_shape_equal(&x, &y)) continue;
    return clv_session_fail_at(
        b->config, test->key_pos, err,
        "%s: %s has records of %s, %s of data.train has %s: both need the same", test->key,
        get_records_file(test, k), format_record_shape(y, test_text, sizeof test_text),
        get_records_file(train, k), format_record_shape(x, train_text, sizeof train_text));
  }
  return CLV_OK;
}

/* ---- checks that labels fit the outputs of the model ----------------------------------------- */

/* Checks that the last layer outputs one vector of classes for each label, with the classes in its
 * last dimension. */
static clv_code check_label_positions(const clv_blueprint *b, const data_set *s, clv_err *err) {
  char found_shape_text[160], wanted_shape_text[160];
  clv_shape y = clv_dataset_y_shape(s->ds, 1), out = get_last_layer(b)->shape;
  if (!y.rank || clv_dataset_y_dtype(s->ds) != CLV_I64) return CLV_OK;
  clv_shape positions_shape = out;
  positions_shape.dim[0] = 1;
  positions_shape.rank -= positions_shape.rank > 0;
  if (clv_shape_equal(&y, &positions_shape)) return CLV_OK;
  return clv_session_fail_at(
      b->config, s->key_pos, err,
      "%s: %s has labels of %s, one per %s, and the last layer ('%s') gives %s: it must give the "
      "classes of each %s, as the head '%s' does",
      s->key, get_labels_file(s), format_record_shape(y, found_shape_text, sizeof found_shape_text),
      y.rank > 1 ? "place" : "record", get_last_layer(b)->name,
      format_record_shape(out, wanted_shape_text, sizeof wanted_shape_text),
      y.rank > 1 ? "place" : "record", y.rank > 1 ? "token" : "sequence");
}

static clv_code check_largest_class(const clv_blueprint *b, const data_set *s, clv_err *err) {
  int64_t smallest_class, largest_class;
  size_t record_index;
  char record_text[48] = "";
  const clv_shape *out = &get_last_layer(b)->shape;
  /* index of the dimension of the output that has the classes */
  int class_dim = clv_dataset_y_shape(s->ds, 1).rank;
  if (!clv_dataset_label_range(s->ds, &smallest_class, &largest_class) || out->rank <= class_dim ||
      largest_class < out->dim[class_dim])
    return CLV_OK;
  long long n_outputs = out->dim[class_dim];
  if (clv_dataset_largest_label(s->ds, &record_index))
    snprintf(record_text, sizeof record_text, " (record %zu)", record_index);
  if (largest_class > INT32_MAX)
    return clv_session_fail_at(b->config, s->key_pos, err,
                               "%s: %s: labels go up to %lld%s, which is the number of no class: "
                               "the last layer has %lld outputs",
                               s->key, get_labels_file(s), (long long)largest_class, record_text,
                               n_outputs);
  return clv_session_fail_at(
      b->config, s->key_pos, err,
      "%s: %s: labels go up to %lld%s, and the last layer has %lld outputs: it "
      "needs %lld, one per class",
      s->key, get_labels_file(s), (long long)largest_class, record_text, n_outputs,
      (long long)largest_class + 1);
}

bool clv_is_numeric_name(const char *name) {
  size_t n = strspn(name, "0123456789");
  return n && !name[n];
}

const clv_attr_spec *clv_plan_find_labels_attr(const clv_session_config *c) {
  for (size_t i = 0; c->model.hf && i < c->model.n_attrs; i++)
    if (strcmp(c->model.attrs[i].key, "labels") == 0) return &c->model.attrs[i];
  return NULL;
}

/* Refuses a head that has outputs for which the data have no class. If the labels are numbers, the
 * data may lack the highest classes by chance, so note_labels (run_data.c) only prints a note. */
static clv_code check_head_size(const clv_blueprint *b, const data_set *s, clv_err *err) {
  const clv_attr_spec *a = clv_plan_find_labels_attr(b->config);
  size_t n = clv_dataset_class_count(s->ds), n_numeric_class_names = 0;
  char first_name[100], last_name[100];
  while (n_numeric_class_names < n &&
         clv_is_numeric_name(clv_dataset_class_name(s->ds, n_numeric_class_names)))
    n_numeric_class_names++;
  if (!n || !a || a->int_value <= (int64_t)n) return CLV_OK;
  return clv_session_fail_at(
      b->config, a->pos, err,
      "labels: %lld, and %s has %zu classes, '%s' to '%s'%s: write labels: %zu%s",
      (long long)a->int_value, s->key, n,
      clv_text_truncate(clv_dataset_class_name(s->ds, 0), first_name, sizeof first_name),
      clv_text_truncate(clv_dataset_class_name(s->ds, n - 1), last_name, sizeof last_name),
      n_numeric_class_names == n ? " in the order of their names as texts, not as numbers" : "", n,
      n_numeric_class_names == n ? ", or give the data a record of each class that is missing"
                                 : "");
}

static clv_code check_target_shape(const clv_blueprint *b, const data_set *s, clv_err *err) {
  char found_shape_text[160], wanted_shape_text[160];
  clv_shape y = clv_dataset_y_shape(s->ds, 1), out = get_last_layer(b)->shape;
  if (clv_dataset_target_count(s->ds)) return clv_targets_check(b->config, s->ds, s->key, err);
  if (clv_dataset_y_dtype(s->ds) != CLV_F32 || !clv_dataset_has_labels(s->ds)) return CLV_OK;
  out.dim[0] = 1;
  if (clv_shape_equal(&y, &out)) return CLV_OK;
  return clv_session_fail_at(b->config, s->key_pos, err,
                             "%s: %s has labels of %s, and the last layer ('%s') gives %s: "
                             "loss.kind %s compares number by "
                             "number, so both need the same shape (classes go with cross_entropy)",
                             s->key, get_labels_file(s),
                             format_record_shape(y, found_shape_text, sizeof found_shape_text),
                             get_last_layer(b)->name,
                             format_record_shape(out, wanted_shape_text, sizeof wanted_shape_text),
                             clv_loss_name(b->config->loss.kind));
}

static clv_code check_probabilities(const clv_blueprint *b, const data_set *s, clv_err *err) {
  char first_fault[CLV_SCAN_TEXT_BYTES];
  clv_loss_kind loss_kind = b->config->loss.kind;
  if (clv_loss_row_of(loss_kind)->task != CLV_TASK_LABELS) return CLV_OK;
  if (clv_dataset_has_labels_in_range(s->ds, 0, 1, first_fault)) return CLV_OK;
  return clv_session_fail_at(b->config, s->key_pos, err,
                             "%s: %s, and loss.kind %s needs labels from 0 to 1 (mse takes any "
                             "number)",
                             s->key, first_fault, clv_loss_name(loss_kind));
}

/* ---- checks that token numbers fit the rows of embeddings ------------------------------------ */

static bool reads_input(const clv_blueprint *b, const clv_node *node, const char *input) {
  const clv_node *source_node = &b->full_graph->nodes[node->in[0]];
  return source_node->op == CLV_OP_INPUT && strcmp(source_node->name, input) == 0;
}

/* Refuses a tokenizer that has more tokens than the embedding has rows: the tokenizer is of another
 * model, or of a later version. */
static clv_code check_tokenizer(const clv_blueprint *b, const data_set *s, const clv_node *node,
                                clv_err *err) {
  int64_t vocab_size = clv_dataset_vocab_size(s->ds);
  const clv_data_config *d = &b->config->data;
  if (vocab_size <= node->attrs.rows) return CLV_OK;
  return clv_session_fail_at(b->config, d->tokenizer.pos, err,
                             "data.tokenizer.file: %s has %lld tokens, and the embedding '%s' has "
                             "rows: %lld: tokens and weights are not of one model",
                             d->tokenizer.file, (long long)vocab_size, node->name,
                             (long long)node->attrs.rows);
}

/* True if the embedding reads its first row, whatever numbers the input has (see embedding.c). */
static bool always_reads_row_0(const clv_node *node) {
  return node->attrs.column < 0 && node->attrs.minus >= 0;
}

static bool is_token_input(const char *input) {
  return strcmp(input, "ids") == 0 || strcmp(input, "input") == 0;
}

/* True if a number of the range is below 0 or above `max`. Returns this number and the index of its
 * record. */
static bool has_number_outside(const clv_data_range *r, int64_t max, size_t *ret_record,
                               long long *ret_number) {
  bool is_negative = r->min < 0;
  *ret_record = is_negative ? r->min_at : r->max_at;
  *ret_number = is_negative ? r->min : r->max;
  return is_negative || r->max > max;
}

static clv_code check_embedding_rows(const clv_blueprint *b, const data_set *s, size_t k,
                                     const clv_node *node, clv_err *err) {
  const clv_attrs *a = &node->attrs;
  clv_data_columns columns = {a->column, a->minus};
  clv_data_range range;
  size_t record_index;
  long long row_number;
  char column_text[80] = "";
  if (!clv_dataset_input_range(s->ds, k, columns, &range)) return CLV_OK;
  if (!has_number_outside(&range, a->rows - 1, &record_index, &row_number)) return CLV_OK;
  if (a->minus >= 0)
    snprintf(column_text, sizeof column_text, " (its column %lld less column %lld)",
             (long long)a->column, (long long)a->minus);
  else if (a->column >= 0)
    snprintf(column_text, sizeof column_text, " (its column %lld)", (long long)a->column);
  return clv_session_fail_at(b->config, s->key_pos, err,
                             "%s: %s: record %zu has the number %lld%s, and the embedding '%s' has "
                             "rows: %lld, which takes 0 to %lld",
                             s->key, get_records_file(s, k), record_index, row_number, column_text,
                             node->name, (long long)a->rows, (long long)a->rows - 1);
}

static clv_code check_embeddings(const clv_blueprint *b, const data_set *s, size_t k,
                                 clv_err *err) {
  const char *input = clv_dataset_input(s->ds, k, 1).name;
  for (int i = 0; i < b->full_graph->n_nodes; i++) {
    const clv_node *node = &b->full_graph->nodes[i];
    if (node->op != CLV_OP_EMBEDDING || !reads_input(b, node, input)) continue;
    if (always_reads_row_0(node)) continue;
    if (is_token_input(input)) CLV_TRY(check_tokenizer(b, s, node, err));
    CLV_TRY(clv_index_check(b, s->ds, k, node, err));
    CLV_TRY(check_embedding_rows(b, s, k, node, err));
  }
  return CLV_OK;
}

/* ---- checks of the lengths of sequences ------------------------------------------------------ */

static int64_t get_sequence_limit(const clv_blueprint *b, const char *input) {
  for (int i = 0; i < b->full_graph->n_nodes; i++)
    if (b->full_graph->nodes[i].op == CLV_OP_INPUT &&
        strcmp(b->full_graph->nodes[i].name, input) == 0)
      return clv_graph_length_limit(b->full_graph, i);
  return 0;
}

static clv_code check_lengths(const clv_blueprint *b, const data_set *s, size_t k, clv_err *err) {
  const char *input = clv_dataset_input(s->ds, k, 1).name;
  int64_t n_positions = get_sequence_limit(b, input);
  clv_data_range range;
  size_t record_index;
  long long length;
  if (!n_positions || !clv_dataset_input_range(s->ds, k, CLV_ALL_COLUMNS, &range)) return CLV_OK;
  if (!has_number_outside(&range, n_positions, &record_index, &length)) return CLV_OK;
  return clv_session_fail_at(
      b->config, s->key_pos, err,
      "%s: %s: record %zu has the length %lld, and its sequence %lld places: "
      "'%s' is how many of them are no padding",
      s->key, get_records_file(s, k), record_index, length, (long long)n_positions, input);
}

static clv_code check_inputs(const clv_blueprint *b, const data_set *s, clv_err *err) {
  for (size_t k = 0; k < clv_dataset_input_count(s->ds); k++) {
    CLV_TRY(check_embeddings(b, s, k, err));
    CLV_TRY(check_lengths(b, s, k, err));
  }
  return CLV_OK;
}

/* ---- checks of the padding of sequences ------------------------------------------------------ */

/* Message about a record whose padding does not follow the rule of the model. fault: what is wrong;
 * remedy: what the user can do. */
typedef struct pad_message {
  const char *fault, *remedy;
} pad_message;

static const pad_message pad_inside_message = {
    "is a pad, and the record has the length",
    "this model numbers places without pads, here all are numbered: take pads out of texts, and "
    "give data.inputs lengths where texts are shorter"};
static const pad_message pad_last_message = {
    "has its last token that is no pad, and the record has the length",
    "head: sequence scores that token in transformers, and the last of the length here: let no "
    "text end with the pad, fill with it behind the length alone, and give data.inputs lengths "
    "where texts are shorter"};
static const pad_message pad_alone_message = {
    "has its first pad, with no token before or behind it, and the record has the length",
    "head: sequence scores that place in transformers: leave the record out, or let its length be "
    "1"};
static const pad_message pad_id_message = {
    "has its last number, and the record has the length",
    "no token is that number, so head: sequence scores the last place in transformers, pad or not: "
    "let pad_token_id be the token that fills texts"};

static const pad_message *find_pad_message(clv_pad_rule rule, int64_t token,
                                           const clv_pad_fault *f) {
  if (rule == CLV_PADS_NOT_INSIDE) return &pad_inside_message;
  if (f->is_empty) return &pad_alone_message;
  return token == CLV_PAD_NOT_A_TOKEN ? &pad_id_message : &pad_last_message;
}

static clv_code check_pads(const clv_blueprint *b, const data_set *s, clv_pad_rule rule,
                           int64_t token, clv_err *err) {
  clv_pad_fault fault;
  if (clv_dataset_has_valid_pads(s->ds, rule, token, &fault)) return CLV_OK;
  const pad_message *t = find_pad_message(rule, token, &fault);
  return clv_session_fail_at(b->config, s->key_pos, err,
                             "%s: %s: record %zu, place %lld %s %lld (pad_token_id of model.hf is "
                             "%lld): %s",
                             s->key, get_records_file(s, 0), fault.record,
                             (long long)fault.position, t->fault, (long long)fault.length,
                             (long long)CLV_MAX(token, -1), t->remedy);
}

static clv_code check_labels_shifted(const clv_blueprint *b, const data_set *s, clv_err *err) {
  int64_t ignored_label = (int64_t)b->config->loss.ignore_index;
  clv_label_shift m = clv_dataset_label_shift(s->ds, ignored_label);
  if (!clv_labels_are_own_tokens(&m)) return CLV_OK;
  return clv_session_fail_at(
      b->config, s->key_pos, err,
      "%s: %s: %zu of %zu labels are the token of their own place, not the next: transformers "
      "shifts the labels of head: causal, and here none are: let each place have the token of the "
      "next one, and the last place %lld",
      s->key, get_labels_file(s), m.n_same_position, m.n_comparable, (long long)ignored_label);
}

static clv_code check_padding(const clv_blueprint *b, const data_set *s, clv_err *err) {
  clv_model_padding padding = clv_model_padding_of(b->config);
  if (padding.skips_padding_positions)
    CLV_TRY(check_pads(b, s, CLV_PADS_NOT_INSIDE, padding.padding_token, err));
  if (padding.scores_last_token)
    CLV_TRY(check_pads(b, s, CLV_PADS_END_AT_TOKEN, padding.padding_token, err));
  return padding.shifts_labels ? check_labels_shifted(b, s, err) : CLV_OK;
}

static clv_code check_set(const clv_blueprint *b, const data_set *s, clv_err *err) {
  if (!s->ds) return CLV_OK;
  CLV_TRY(check_label_positions(b, s, err));
  CLV_TRY(check_largest_class(b, s, err));
  CLV_TRY(clv_class_names_check(b, s->ds, s->key, s->key_pos, err));
  CLV_TRY(check_head_size(b, s, err));
  CLV_TRY(check_target_shape(b, s, err));
  CLV_TRY(check_probabilities(b, s, err));
  CLV_TRY(check_inputs(b, s, err));
  return check_padding(b, s, err);
}

/* ---- checks that layers can train on the sizes of micro-batches ------------------------------ */

/* Checks that each layer can train on `n_records` records together. The error names the layer and
 * the reason. */
static clv_code check_trainable(const clv_blueprint *b, size_t n_records, clv_err *err) {
  CLV_AUTO(clv_graph_freep) clv_graph *g = NULL;
  CLV_TRY(clv_graph_slice(b->full_graph, b->stages[0].first_layer,
                          b->stages[b->n_stages - 1].last_layer, &g, err));
  CLV_TRY(clv_graph_set_batch(g, (int64_t)n_records, err));
  return clv_graph_check_training(g, err);
}

/* Returns the size of the smallest micro-batch of a batch of n records. */
static clv_code find_smallest_micro_batch(const clv_blueprint *b, size_t n, size_t *ret,
                                          clv_err *err) {
  CLV_AUTO(clv_freep) size_t *sizes = NULL;
  CLV_TRY(clv_alloc(b->micro_batches, sizeof *sizes, &sizes, err));
  size_t n_micro_batches = clv_chunk_sizes(n, b->micro_batches, sizes);
  *ret = sizes[n_micro_batches - 1];
  return CLV_OK;
}

static clv_code check_batch(const clv_blueprint *b, size_t n, const char *batch_name,
                            const char *remedy, clv_err *err) {
  const clv_session_config *c = b->config;
  size_t smallest_micro_batch = 0;
  clv_err reason;
  CLV_TRY(find_smallest_micro_batch(b, n, &smallest_micro_batch, err));
  if (check_trainable(b, smallest_micro_batch, &reason) == CLV_OK) return CLV_OK;
  return clv_session_fail_at(
      c, c->pipeline.pos.column ? c->pipeline.pos : c->train.pos, err,
      "%s has %zu record%s, and its smallest micro-batch %zu (train.batch: %llu, "
      "pipeline.micro_batches: %u): %s; %s",
      batch_name, n, CLV_S(n), smallest_micro_batch, (unsigned long long)c->train.batch,
      b->micro_batches, reason.text, remedy);
}

/* Checks the sizes of all batches, also of the short last batch of an epoch, unless the run ends
 * before this batch. */
static clv_code check_batches(const clv_blueprint *b, size_t n_records, clv_err *err) {
  const clv_train_config *t = &b->config->train;
  size_t n_full_batches = n_records / t->batch, n_left_records = n_records % t->batch;
  if (n_full_batches)
    CLV_TRY(check_batch(b, t->batch, "a batch", "set fewer micro-batches or a larger train.batch",
                        err));
  bool reaches_last_batch = !t->max_steps || t->max_steps > n_full_batches;
  if (!n_left_records || t->drop_last || !reaches_last_batch) return CLV_OK;
  return check_batch(b, n_left_records, "the last batch of an epoch",
                     "set train.drop_last: true, or another train.batch", err);
}

clv_code clv_run_data_check_fit(const clv_run_data *d, const clv_blueprint *b, clv_err *err) {
  const clv_data_config *c = &b->config->data;
  const data_set train = {d->train, "data.train", &c->train, c->train_pos};
  const data_set test = {d->test, "data.test", &c->test, c->test_pos};
  if (d->train && d->test) CLV_TRY(check_same_shapes(b, &train, &test, err));
  CLV_TRY(check_set(b, &train, err));
  CLV_TRY(check_set(b, &test, err));
  if (d->train) CLV_TRY(clv_targets_check_labelled(b->config, d, err));
  return d->train ? check_batches(b, d->train_rows.n, err) : CLV_OK;
}
