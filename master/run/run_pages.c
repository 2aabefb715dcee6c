/* SPDX-License-Identifier: Apache-2.0
 *
 * Writes predictions of documents as JSON lines: one page per line, with its words, in the format
 * of training pages. A word gets the label that the model predicts for one of its tokens. A page
 * gets the label predicted by the mean output over its windows (parts of a page that the model
 * reads one at a time).
 */
#include <math.h>

#include "master/run/run_int.h"

/* ---- the output rows of a page --------------------------------------------------------------- */

static size_t last_dimension_size(const clv_tensor *t) {
  return (size_t)t->shape.dim[t->shape.rank - 1];
}

/* Returns true if outputs have a shape from which page lines can be made: [windows, classes], or
 * [windows, S, classes] for labels of words. A window is a part of a page. */
static bool has_page_outputs(const clv_predictions *r) {
  const clv_shape *s = &r->outputs->shape;
  size_t n_positions = 0;
  if (s->rank < 2 || s->rank > 3 || !r->outputs->n) return false;
  if (s->rank == 3) (void)clv_dataset_token_word_indices(r->data, r->index[0], &n_positions);
  return s->rank == 2 || (size_t)s->dim[1] == n_positions;
}

/* Counts the pages that have outputs. Rows are in the order of records, and a limit on the records
 * takes the first ones, so the pages without outputs are the last ones. */
size_t clv_predictions_page_count(const clv_predictions *r) {
  size_t n = 0, n_pages = clv_dataset_kept_page_count(r->data),
         n_rows = (size_t)r->outputs->shape.dim[0];
  if (!n_pages || clv_loss_row_of(r->loss)->task != CLV_TASK_CLASSES || !has_page_outputs(r))
    return 0;
  while (n < n_pages && clv_dataset_kept_page(r->data, n)->first_record <= r->index[n_rows - 1])
    n++;
  return n;
}

typedef struct page_rows {
  size_t begin, end;
} page_rows;

static size_t find_first_row(const clv_predictions *r, size_t record) {
  size_t low_row = 0, high_row = (size_t)r->outputs->shape.dim[0];
  while (low_row < high_row) {
    size_t middle_row = low_row + (high_row - low_row) / 2;
    if (r->index[middle_row] < record)
      low_row = middle_row + 1;
    else
      high_row = middle_row;
  }
  return low_row;
}

static page_rows find_rows_of_page(const clv_predictions *r, const clv_kept_page *p) {
  return (page_rows){find_first_row(r, p->first_record),
                     find_first_row(r, p->first_record + p->n_records)};
}

/* ---- label of a word or page, with its probability ------------------------------------------- */

/* Returns the probability of class k: exp(x[k]) / (sum over j of exp(x[j])), or exp(x[k]) for the
 * loss nll, because its outputs are log-probabilities. */
static double compute_probability(const clv_predictions *r, const float *x, size_t k) {
  double sum = 0;
  if (r->loss == CLV_LOSS_NLL) return exp((double)x[k]);
  for (size_t j = 0; j < last_dimension_size(r->outputs); j++)
    sum += exp((double)x[j] - (double)x[k]);
  return 1 / sum;
}

static void append_json_label(clv_bytes *out, const clv_predictions *r, size_t class) {
  if (class < r->classes->n)
    clv_bytes_add_json(out, r->classes->names[class]);
  else
    clv_bytes_printf(out, "\"%zu\"", class);
}

static void append_json_probability(clv_bytes *out, double p) {
  char number_text[CLV_JSON_NUMBER_BYTES];
  clv_bytes_puts(out, clv_json_number(p, 6, number_text));
}

/* ---- labels of words ------------------------------------------------------------------------- */

/* Finds, for each word, the outputs of the token from which the word gets its label. ret: [p->n],
 * NULL for a word without such a token. */
static void find_outputs_of_words(const clv_predictions *r, const clv_kept_page *p,
                                  const float **ret) {
  page_rows rows = find_rows_of_page(r, p);
  size_t n, n_classes = last_dimension_size(r->outputs);
  for (size_t i = 0; i < p->n; i++) ret[i] = NULL;
  for (size_t row = rows.begin; row < rows.end; row++) {
    const int32_t *word_index_of_token = clv_dataset_token_word_indices(r->data, r->index[row], &n);
    const float *x = (const float *)r->outputs->data + row * n * n_classes;
    for (size_t k = 0; k < n; k++)
      if (word_index_of_token[k] >= 0) ret[word_index_of_token[k]] = x + k * n_classes;
  }
}

static void append_word_labels(clv_bytes *out, const clv_predictions *r, const clv_kept_page *p,
                               const float *const *word_outputs) {
  size_t n_classes = last_dimension_size(r->outputs);
  clv_bytes_puts(out, ",\"labels\":[");
  for (size_t i = 0; i < p->n; i++) {
    if (i) clv_bytes_puts(out, ",");
    if (word_outputs[i])
      append_json_label(out, r, clv_argmax_row(word_outputs[i], n_classes));
    else
      clv_bytes_puts(out, "null");
  }
  clv_bytes_puts(out, "],\"probabilities\":[");
  for (size_t i = 0; i < p->n; i++) {
    if (i) clv_bytes_puts(out, ",");
    append_json_probability(
        out, word_outputs[i] ? compute_probability(r, word_outputs[i],
                                                   clv_argmax_row(word_outputs[i], n_classes))
                             : (double)NAN);
  }
  clv_bytes_puts(out, "]");
}

static void append_word_probabilities(clv_bytes *out, const clv_predictions *r,
                                      const clv_kept_page *p) {
  CLV_AUTO(clv_freep) const float **word_outputs = NULL;
  out->failed |= clv_alloc(p->n, sizeof *word_outputs, &word_outputs, NULL) != CLV_OK;
  if (out->failed) return;
  find_outputs_of_words(r, p, word_outputs);
  append_word_labels(out, r, p, word_outputs);
}

/* ---- lines of pages -------------------------------------------------------------------------- */

static void append_page_label(clv_bytes *out, const clv_predictions *r, const clv_kept_page *p) {
  CLV_AUTO(clv_freep) float *mean_outputs = NULL;
  page_rows rows = find_rows_of_page(r, p);
  size_t n_classes = last_dimension_size(r->outputs);
  out->failed |= clv_alloc(n_classes, sizeof *mean_outputs, &mean_outputs, NULL) != CLV_OK;
  if (out->failed) return;
  for (size_t k = 0; k < n_classes; k++) {
    double sum = 0;
    for (size_t row = rows.begin; row < rows.end; row++)
      sum += (double)((const float *)r->outputs->data)[row * n_classes + k];
    mean_outputs[k] = (float)(sum / (double)(rows.end - rows.begin));
  }
  size_t class = clv_argmax_row(mean_outputs, n_classes);
  clv_bytes_puts(out, ",\"label\":");
  append_json_label(out, r, class);
  clv_bytes_puts(out, ",\"probability\":");
  append_json_probability(out, compute_probability(r, mean_outputs, class));
}

void clv_predictions_write_page(clv_bytes *out, const clv_predictions *r, size_t page) {
  const clv_kept_page *p = clv_dataset_kept_page(r->data, page);
  clv_bytes_printf(out, "{%s%s", p->other_json_members, p->other_json_members[0] ? "," : "");
  clv_page_write_json(out, &(clv_page){p->words, p->n});
  if (r->outputs->shape.rank == 3)
    append_word_probabilities(out, r, p);
  else
    append_page_label(out, r, p);
  clv_bytes_puts(out, "}\n");
}
