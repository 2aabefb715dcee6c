/* SPDX-License-Identifier: Apache-2.0
 *
 * Sorts the numbers of a column. The numbers of a table in memory are sorted in memory. A table on
 * disk may have too many numbers for that: parts that fit into memory are sorted one by one, and
 * then merged. Both ways give the same numbers in the same order, so what is learnt from them is
 * the same to the bit.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "master/data/cells_int.h"

enum {
  MAX_VALUES_IN_MEMORY = 8 << 20, /* numbers of a table on disk that are sorted in memory */
  BUFFER_VALUES = 8192
};

void clv_sorted_values_done(clv_sorted_values *s) {
  if (!s) return;
  free(s->memory);
  clv_tensor_unref(s->file);
  *s = (clv_sorted_values){0};
}

static int compare_doubles(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return x < y ? -1 : x > y;
}

/* Returns how many numbers are in memory at a time. */
static size_t get_max_values_in_memory(const clv_cell_table *t, size_t n) {
  size_t max_n = t->block_bytes ? t->block_bytes / sizeof(double) : MAX_VALUES_IN_MEMORY;
  return t->folder ? CLV_MAX(CLV_MIN(n, max_n), (size_t)1) : n;
}

/* ---- writing numbers to a file --------------------------------------------------------------- */

/* Numbers that are appended to a file through a buffer. */
typedef struct value_writer {
  clv_spill_file *spill;
  size_t n, n_total; /* n: numbers in the buffer; n_total: all numbers */
  double buffer[BUFFER_VALUES];
} value_writer;

static void value_writer_freep(value_writer **w) {
  if (*w) clv_spill_file_freep(&(*w)->spill);
  free(*w);
  *w = NULL;
}

static clv_code value_writer_new(const clv_cell_table *t, value_writer **ret, clv_err *err) {
  CLV_AUTO(value_writer_freep) value_writer *w = NULL;
  CLV_TRY(clv_alloc(1, sizeof *w, &w, err));
  CLV_TRY(clv_spill_file_new(t->folder, &w->spill, err));
  *ret = clv_steal(&w);
  return CLV_OK;
}

static clv_code flush_writer(value_writer *w, clv_err *err) {
  size_t n = w->n;
  w->n = 0;
  return clv_spill_file_append(w->spill, w->buffer, n * sizeof *w->buffer, err);
}

static clv_code put_value(value_writer *w, double v, clv_err *err) {
  if (w->n == BUFFER_VALUES) CLV_TRY(flush_writer(w, err));
  w->buffer[w->n++] = v;
  w->n_total++;
  return CLV_OK;
}

/* Maps the written file as the numbers of *ret, in place of the numbers that *ret had. */
static clv_code finish_writer(value_writer *w, clv_sorted_values *ret, clv_err *err) {
  clv_tensor *file = NULL;
  CLV_TRY(flush_writer(w, err));
  if (w->n_total)
    CLV_TRY(clv_spill_file_map(w->spill, CLV_F64, &CLV_SHAPE((int64_t)w->n_total), &file, err));
  clv_sorted_values_done(ret);
  *ret = (clv_sorted_values){.v = file ? file->data : NULL, .n = w->n_total, .file = file};
  return CLV_OK;
}

/* ---- merging sorted parts -------------------------------------------------------------------- */

/* The rest of a sorted part of a file. A heap of parts begins with the part whose next number is
 * smallest; among equal numbers, with the earlier part. */
typedef struct sorted_part {
  const double *at, *end;
} sorted_part;

static bool is_before(const sorted_part *a, const sorted_part *b) {
  return *a->at < *b->at || (*a->at == *b->at && a->at < b->at);
}

static void sift_down(sorted_part *heap, size_t n, size_t i) {
  for (size_t smallest;; i = smallest) {
    smallest = i;
    for (size_t child = 2 * i + 1; child <= 2 * i + 2 && child < n; child++)
      if (is_before(&heap[child], &heap[smallest])) smallest = child;
    if (smallest == i) return;
    sorted_part moved_part = heap[i];
    heap[i] = heap[smallest];
    heap[smallest] = moved_part;
  }
}

static clv_code merge_heap(sorted_part *heap, size_t n, value_writer *to, clv_err *err) {
  for (size_t i = n; i-- > 0;) sift_down(heap, n, i);
  while (n) {
    CLV_TRY(put_value(to, *heap->at++, err));
    if (heap->at == heap->end) *heap = heap[--n];
    sift_down(heap, n, 0);
  }
  return CLV_OK;
}

static clv_code merge_parts(const clv_cell_table *t, const clv_sorted_values *parts,
                            size_t values_per_part, clv_sorted_values *ret, clv_err *err) {
  CLV_AUTO(value_writer_freep) value_writer *w = NULL;
  CLV_AUTO(clv_freep) sorted_part *heap = NULL;
  size_t n = 0;
  CLV_TRY(clv_alloc(parts->n / values_per_part + 1, sizeof *heap, &heap, err));
  for (size_t at = 0; at < parts->n; at += values_per_part)
    heap[n++] = (sorted_part){parts->v + at, parts->v + CLV_MIN(at + values_per_part, parts->n)};
  CLV_TRY(value_writer_new(t, &w, err));
  CLV_TRY(merge_heap(heap, n, w, err));
  return finish_writer(w, ret, err);
}

/* ---- sorting the numbers of a column --------------------------------------------------------- */

/* Reads at most max_n numbers that are not missing, from rows->index[*at] on, and sorts them. */
static size_t sort_part(const clv_cell_table *t, const clv_table_column *from,
                        const clv_subset *rows, size_t *at, double *v, size_t max_n) {
  size_t n = 0;
  for (; *at < rows->n && n < max_n; ++*at) {
    double number = from->numbers[clv_table_row(t, rows->index[*at])];
    if (!isnan(number)) v[n++] = number;
  }
  qsort(v, n, sizeof *v, compare_doubles);
  return n;
}

/* Sorts more numbers than fit into memory: sorts them part by part, then merges the parts. v:
 * [max_n] the first part, already sorted; then memory for the other parts. at: index in `rows` of
 * the first record after the first part. */
static clv_code sort_on_disk(const clv_cell_table *t, const clv_table_column *from,
                             const clv_subset *rows, size_t at, double *v, size_t max_n,
                             clv_sorted_values *ret, clv_err *err) {
  CLV_AUTO(value_writer_freep) value_writer *w = NULL;
  CLV_AUTO(clv_sorted_values_done) clv_sorted_values parts = {0};
  CLV_TRY(value_writer_new(t, &w, err));
  for (size_t n = max_n; n; n = sort_part(t, from, rows, &at, v, max_n)) {
    CLV_TRY(clv_spill_file_append(w->spill, v, n * sizeof *v, err));
    w->n_total += n;
  }
  CLV_TRY(finish_writer(w, &parts, err));
  return merge_parts(t, &parts, max_n, ret, err);
}

clv_code clv_sorted_values_make(const clv_cell_table *t, const clv_table_column *from,
                                const clv_subset *rows, clv_sorted_values *ret, clv_err *err) {
  CLV_AUTO(clv_freep) double *v = NULL;
  size_t max_n = get_max_values_in_memory(t, rows->n), at = 0;
  CLV_TRY(clv_alloc(max_n + 1, sizeof *v, &v, err));
  size_t n = sort_part(t, from, rows, &at, v, max_n);
  if (at < rows->n && n == max_n) return sort_on_disk(t, from, rows, at, v, max_n, ret, err);
  ret->v = ret->memory = clv_steal(&v);
  ret->n = n;
  return CLV_OK;
}

/* ---- adding the numbers that replace missing ones -------------------------------------------- */

static clv_code add_fills_on_disk(const clv_cell_table *t, clv_sorted_values *s, double fill,
                                  size_t n_fills, bool takes_log, clv_err *err) {
  CLV_AUTO(value_writer_freep) value_writer *w = NULL;
  CLV_TRY(value_writer_new(t, &w, err));
  for (size_t i = 0; i <= s->n; i++) {
    bool is_fill_next = n_fills && (i == s->n || fill < s->v[i]);
    for (; is_fill_next && n_fills; n_fills--)
      CLV_TRY(put_value(w, takes_log ? log1p(fill) : fill, err));
    if (i < s->n) CLV_TRY(put_value(w, takes_log ? log1p(s->v[i]) : s->v[i], err));
  }
  return finish_writer(w, s, err);
}

clv_code clv_sorted_values_add_fills(const clv_cell_table *t, clv_sorted_values *s, double fill,
                                     size_t n_fills, bool takes_log, clv_err *err) {
  if (!n_fills && !takes_log) return CLV_OK;
  if (!s->memory || s->n + n_fills > get_max_values_in_memory(t, s->n + n_fills))
    return add_fills_on_disk(t, s, fill, n_fills, takes_log, err);
  double *v = realloc(s->memory, (s->n + n_fills + 1) * sizeof *v);
  if (!v) return clv_fail(err, CLV_EXHAUSTED, "no memory for %zu numbers", s->n + n_fills);
  s->v = s->memory = v;
  for (size_t i = 0; i < n_fills; i++) v[s->n++] = fill;
  qsort(v, s->n, sizeof *v, compare_doubles);
  for (size_t i = 0; takes_log && i < s->n; i++) v[i] = log1p(v[i]);
  return CLV_OK;
}
