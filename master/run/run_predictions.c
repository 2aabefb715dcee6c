/* SPDX-License-Identifier: Apache-2.0
 *
 * Writes predictions to a file (clv_predictions_write): NumPy's format with the names in a second
 * file, CSV (RFC 4180) or JSON lines. The id of a record is its cell in the id column of a table,
 * the path of its image, or otherwise the number of the record.
 */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "master/run/run_int.h"

/* ---- probabilities of outputs ---------------------------------------------------------------- */

static void apply_softmax_to_row(const float *x, size_t n, float *ret) {
  double max_output = -INFINITY, sum = 0;
  for (size_t k = 0; k < n; k++) max_output = fmax(max_output, (double)x[k]);
  for (size_t k = 0; k < n; k++) sum += exp((double)x[k] - max_output);
  for (size_t k = 0; k < n; k++) ret[k] = (float)(exp((double)x[k] - max_output) / sum);
}

clv_code clv_predictions_compute_probabilities(const clv_tensor *outputs, clv_loss_kind loss,
                                               clv_tensor **ret, clv_err *err) {
  const clv_loss_row *row = clv_loss_row_of(loss);
  size_t width = (size_t)outputs->shape.dim[outputs->shape.rank - 1];
  const float *x = outputs->data;
  if (row->task == CLV_TASK_NUMBERS)
    return clv_fail(err, CLV_INVALID, "--probabilities: %s predicts numbers, which have none",
                    row->name);
  CLV_TRY(clv_tensor_new(CLV_F32, &outputs->shape, ret, err));
  float *p = (*ret)->data;
  bool is_softmax = row->task == CLV_TASK_CLASSES && loss != CLV_LOSS_NLL;
  for (size_t at = 0; is_softmax && at < outputs->n; at += width)
    apply_softmax_to_row(x + at, width, p + at);
  for (size_t i = 0; !is_softmax && i < outputs->n; i++)
    p[i] = loss == CLV_LOSS_NLL               ? (float)exp((double)x[i])
           : loss == CLV_LOSS_BCE_WITH_LOGITS ? (float)(1 / (1 + exp(-(double)x[i])))
                                              : x[i];
  return CLV_OK;
}

/* Computes the probabilities p [n] from the outputs x [n] of one target in one row. */
static void compute_target_probabilities(const clv_target_spec *s, const float *x, float *p) {
  size_t n = clv_target_width(s);
  bool is_softmax = s->n_classes && s->kind != CLV_LOSS_NLL;
  if (is_softmax) apply_softmax_to_row(x, n, p);
  for (size_t i = 0; !is_softmax && i < n; i++)
    p[i] = s->kind == CLV_LOSS_NLL               ? (float)exp((double)x[i])
           : s->kind == CLV_LOSS_BCE_WITH_LOGITS ? (float)(1 / (1 + exp(-(double)x[i])))
                                                 : x[i];
}

clv_code clv_run_compute_probabilities(const clv_session_config *c, const clv_tensor *outputs,
                                       clv_tensor **ret, clv_err *err) {
  if (!c->loss.n_targets)
    return clv_predictions_compute_probabilities(outputs, c->loss.kind, ret, err);
  const float *x = outputs->data;
  CLV_TRY(clv_tensor_new(CLV_F32, &outputs->shape, ret, err));
  float *p = (*ret)->data;
  for (int64_t row = 0; row < outputs->shape.dim[0]; row++)
    for (size_t k = 0; k < c->loss.n_targets; k++) {
      size_t width = clv_target_width(&c->loss.targets[k]);
      compute_target_probabilities(&c->loss.targets[k], x, p);
      x += width;
      p += width;
    }
  return CLV_OK;
}

/* ---- ids and predicted classes of records ---------------------------------------------------- */

static size_t count_rows(const clv_predictions *r) { return (size_t)r->outputs->shape.dim[0]; }

static size_t outputs_per_row(const clv_predictions *r) {
  size_t rows = count_rows(r);
  return rows ? r->outputs->n / rows : 0;
}

static const float *outputs_of_row(const clv_predictions *r, size_t row) {
  return (const float *)r->outputs->data + row * outputs_per_row(r);
}

/* Returns the values that are written: the outputs, or their probabilities. */
static const clv_tensor *values_to_print(const clv_predictions *r) {
  return r->probabilities ? r->probabilities : r->outputs;
}

static const char *value_name(const clv_predictions *r) {
  return r->probabilities ? "probability" : "output";
}

/* Returns true if each row of outputs predicts one class: an output per class, or one binary
 * output. */
static bool has_predicted_class(const clv_predictions *r) {
  if (!clv_loss_has_accuracy(r->loss) || r->outputs->shape.rank != 2 || !outputs_per_row(r))
    return false;
  bool is_binary = clv_loss_row_of(r->loss)->task == CLV_TASK_LABELS;
  return !is_binary || outputs_per_row(r) == 1;
}

static size_t predicted_class(const clv_predictions *r, size_t row) {
  const float *output = outputs_of_row(r, row);
  if (outputs_per_row(r) == 1 && clv_loss_row_of(r->loss)->task == CLV_TASK_LABELS)
    return clv_is_positive_output(r->loss, output[0]);
  return clv_argmax_row(output, outputs_per_row(r));
}

static const char *class_name(const clv_predictions *r, size_t class) {
  return class < r->classes->n ? r->classes->names[class] : NULL;
}

/* Returns the id of a record: its cell in the id column of a table, or the path of its image. NULL:
 * the number of the record is its id. */
static const char *find_record_id(const clv_predictions *r, size_t row) {
  const char *id = clv_dataset_record_id(r->data, r->index[row]);
  return id ? id : clv_dataset_image_path(r->data, r->index[row]);
}

/* ---- lines of CSV, one per record ------------------------------------------------------------ */

/* Appends the names of the columns with values, such as "output_cat", or "low_output_cat" with the
 * prefix "low_". */
static void append_csv_column_names(clv_bytes *out, const clv_predictions *r, const char *prefix) {
  for (size_t k = 0; k < outputs_per_row(r); k++) {
    CLV_AUTO(clv_bytes_done) clv_bytes column = {0};
    if (has_predicted_class(r) && outputs_per_row(r) > 1 && class_name(r, k))
      clv_bytes_printf(&column, "%s%s_%s", prefix, value_name(r), class_name(r, k));
    else
      clv_bytes_printf(&column, "%s%s_%zu", prefix, value_name(r), k);
    clv_bytes_puts(out, ",");
    clv_predictions_add_csv_text(out, column.data ? column.data : "");
  }
}

static void append_csv_header(clv_bytes *out, const clv_predictions *r) {
  if (r->n_targets) {
    clv_bytes_puts(out, "id");
    clv_target_predictions_add_header(out, r);
    clv_bytes_puts(out, "\n");
    return;
  }
  clv_bytes_puts(out, has_predicted_class(r) ? "id,class" : "id");
  if (has_predicted_class(r) && r->classes->n) clv_bytes_puts(out, ",name");
  append_csv_column_names(out, r, "");
  if (r->low) append_csv_column_names(out, r, "low_");
  if (r->high) append_csv_column_names(out, r, "high_");
  clv_bytes_puts(out, "\n");
}

/* Appends the numbers of a row of `t`; nothing if t is NULL. */
static void append_csv_numbers(clv_bytes *out, const clv_predictions *r, const clv_tensor *t,
                               size_t row) {
  char number[CLV_JSON_NUMBER_BYTES];
  const float *values = t ? (const float *)t->data + row * outputs_per_row(r) : NULL;
  for (size_t k = 0; values && k < outputs_per_row(r); k++)
    clv_bytes_printf(out, ",%s", clv_format_number("%.9g", (double)values[k], number));
}

static void append_csv_record(clv_bytes *out, const clv_predictions *r, size_t row) {
  const char *id = find_record_id(r, row);
  if (id)
    clv_predictions_add_csv_text(out, id);
  else
    clv_bytes_printf(out, "%u", r->index[row]);
  if (r->n_targets) {
    clv_target_predictions_add_csv(out, r, row);
    clv_bytes_puts(out, "\n");
    return;
  }
  if (has_predicted_class(r)) clv_bytes_printf(out, ",%zu", predicted_class(r, row));
  if (has_predicted_class(r) && r->classes->n) {
    const char *name = class_name(r, predicted_class(r, row));
    clv_bytes_puts(out, ",");
    clv_predictions_add_csv_text(out, name ? name : "");
  }
  append_csv_numbers(out, r, values_to_print(r), row);
  append_csv_numbers(out, r, r->low, row);
  append_csv_numbers(out, r, r->high, row);
  clv_bytes_puts(out, "\n");
}

/* ---- lines of JSON, one per record ----------------------------------------------------------- */

static void append_json_id(clv_bytes *out, const clv_predictions *r, size_t row) {
  const char *id = find_record_id(r, row);
  if (id)
    clv_bytes_add_json(out, id);
  else
    clv_bytes_printf(out, "%u", r->index[row]);
}

/* Appends the numbers of a row of `t` as a member; nothing if t is NULL. */
static void append_json_numbers(clv_bytes *out, const clv_predictions *r, const char *key,
                                const clv_tensor *t, size_t row) {
  char number[CLV_JSON_NUMBER_BYTES];
  if (!t) return;
  const float *values = (const float *)t->data + row * outputs_per_row(r);
  clv_bytes_printf(out, ",\"%s\":[", key);
  for (size_t k = 0; k < outputs_per_row(r); k++)
    clv_bytes_printf(out, "%s%s", k ? "," : "", clv_json_number((double)values[k], 9, number));
  clv_bytes_puts(out, "]");
}

static void append_json_record(clv_bytes *out, const clv_predictions *r, size_t row) {
  clv_bytes_puts(out, "{\"id\":");
  append_json_id(out, r, row);
  if (r->n_targets) {
    clv_target_predictions_add_json(out, r, row);
    clv_bytes_puts(out, "}\n");
    return;
  }
  if (has_predicted_class(r)) {
    const char *name = class_name(r, predicted_class(r, row));
    clv_bytes_printf(out, ",\"class\":%zu", predicted_class(r, row));
    if (name) clv_bytes_puts(out, ",\"name\":");
    if (name) clv_bytes_add_json(out, name);
  }
  append_json_numbers(out, r, r->probabilities ? "probabilities" : "outputs", values_to_print(r),
                      row);
  append_json_numbers(out, r, "low", r->low, row);
  append_json_numbers(out, r, "high", r->high, row);
  clv_bytes_puts(out, "}\n");
}

/* ---- writing files of predictions ------------------------------------------------------------ */

static void file_closep(FILE **f) {
  if (*f) fclose(*f);
}

static clv_code fail_unwritable_file(const char *path, clv_err *err) {
  return clv_fail(err, CLV_UNAVAILABLE, "%s: %s", path, strerror(errno));
}

static clv_code write_and_clear_line(FILE *f, clv_bytes *line, const char *path, clv_err *err) {
  if (line->failed) return clv_fail(err, CLV_EXHAUSTED, "out of memory");
  size_t n = line->len;
  line->len = 0;
  return fwrite(line->data, 1, n, f) == n ? CLV_OK : fail_unwritable_file(path, err);
}

typedef void record_writer(clv_bytes *out, const clv_predictions *r, size_t row);

/* The lines of a file of predictions. */
typedef struct line_format {
  record_writer *write_line; /* writes the line of a record or page */
  size_t n;                  /* number of lines without the header */
  bool has_header;           /* the file begins with a line of column names */
} line_format;

static clv_code write_lines(const clv_predictions *r, const line_format *l, const char *path,
                            clv_err *err) {
  int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  CLV_AUTO(file_closep) FILE *f = fd < 0 ? NULL : fdopen(fd, "w");
  CLV_AUTO(clv_bytes_done) clv_bytes line = {0};
  if (!f && fd >= 0) close(fd);
  if (!f) return fail_unwritable_file(path, err);
  if (l->has_header) append_csv_header(&line, r);
  for (size_t i = 0; i < l->n; i++) {
    l->write_line(&line, r, i);
    CLV_TRY(write_and_clear_line(f, &line, path, err));
  }
  return fflush(f) == 0 && fsync(fileno(f)) == 0 ? CLV_OK : fail_unwritable_file(path, err);
}

/* Writes through a temporary file, so that `path` is complete or unchanged. */
static clv_code write_text_file(const clv_predictions *r, const line_format *l, const char *path,
                                clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes temporary_path = {0};
  clv_bytes_printf(&temporary_path, "%s.tmp", path);
  if (temporary_path.failed) return clv_fail(err, CLV_EXHAUSTED, "out of memory");
  /* removes the file of a killed command, because other users may be able to read it */
  (void)!unlink(temporary_path.data);
  clv_code code = write_lines(r, l, temporary_path.data, err);
  if (code == CLV_OK && rename(temporary_path.data, path) != 0)
    code = fail_unwritable_file(path, err);
  if (code != CLV_OK) (void)!unlink(temporary_path.data);
  return code;
}

/* Writes NumPy's format 1.0: magic, version, header length, a Python dict, then the values. */
static clv_code write_npy(const char *path, const clv_tensor *t, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes header = {0}, file = {0};
  clv_bytes_puts(&header, "{'descr': '<f4', 'fortran_order': False, 'shape': (");
  for (int i = 0; i < t->shape.rank; i++)
    clv_bytes_printf(&header, "%lld,", (long long)t->shape.dim[i]);
  clv_bytes_puts(&header, "), }");
  while ((10 + header.len + 1) % 64) clv_bytes_puts(&header, " ");
  clv_bytes_puts(&header, "\n");
  uint8_t preamble[10] = {
      0x93, 'N', 'U', 'M', 'P', 'Y', 1, 0, (uint8_t)header.len, (uint8_t)(header.len >> 8)};
  clv_bytes_add(&file, preamble, sizeof preamble);
  clv_bytes_add(&file, header.data, header.len);
  clv_bytes_add(&file, t->data, t->bytes);
  if (file.failed) return clv_fail(err, CLV_EXHAUSTED, "out of memory");
  return clv_file_write_durable(path, file.data, file.len, 0600, err);
}

/* Writes PATH.low and PATH.high beside the NumPy file PATH, in the same format. */
static clv_code write_interval_files(const clv_predictions *r, const char *npy_path, clv_err *err) {
  const struct {
    const char *file_suffix;
    const clv_tensor *values;
  } files[] = {{"low", r->low}, {"high", r->high}};
  for (size_t i = 0; i < CLV_COUNT(files); i++) {
    CLV_AUTO(clv_bytes_done) clv_bytes path = {0};
    clv_bytes_printf(&path, "%s.%s", npy_path, files[i].file_suffix);
    if (path.failed) return clv_fail(err, CLV_EXHAUSTED, "out of memory");
    if (files[i].values) CLV_TRY(write_npy(path.data, files[i].values, err));
  }
  return CLV_OK;
}

/* Writes PATH.json for a NumPy file: the ids of the records and the names of the classes. */
static clv_code write_names_file(const clv_predictions *r, const char *npy_path, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes path = {0}, text = {0};
  clv_bytes_printf(&path, "%s.json", npy_path);
  clv_bytes_puts(&text, "{\"ids\":[");
  for (size_t row = 0; row < count_rows(r); row++) {
    if (row) clv_bytes_puts(&text, ",");
    append_json_id(&text, r, row);
  }
  clv_bytes_puts(&text, "],\"classes\":[");
  for (size_t i = 0; i < r->classes->n; i++) {
    if (i) clv_bytes_puts(&text, ",");
    clv_bytes_add_json(&text, r->classes->names[i]);
  }
  clv_bytes_puts(&text, "]");
  if (r->n_targets) clv_bytes_puts(&text, ",\"outputs\":");
  if (r->n_targets) clv_target_predictions_add_names(&text, r);
  clv_bytes_puts(&text, "}\n");
  if (path.failed || text.failed) return clv_fail(err, CLV_EXHAUSTED, "out of memory");
  return clv_file_write_durable(path.data, text.data, text.len, 0600, err);
}

clv_code clv_predictions_write(const clv_predictions *r, clv_predictions_format format,
                               const char *path, clv_err *err) {
  size_t n_rows = count_rows(r), n_pages = clv_predictions_page_count(r);
  const line_format csv_lines = {append_csv_record, n_rows, true},
                    json_lines = {append_json_record, n_rows, false},
                    page_lines = {clv_predictions_write_page, n_pages, false};
  if (format == CLV_PREDICTIONS_CSV) return write_text_file(r, &csv_lines, path, err);
  if (format == CLV_PREDICTIONS_JSONL)
    return write_text_file(r, n_pages ? &page_lines : &json_lines, path, err);
  CLV_TRY(write_npy(path, values_to_print(r), err));
  CLV_TRY(write_interval_files(r, path, err));
  bool has_names = r->classes->n || r->n_targets || (n_rows && find_record_id(r, 0));
  return has_names ? write_names_file(r, path, err) : CLV_OK;
}
