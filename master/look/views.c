/* SPDX-License-Identifier: Apache-2.0
 *
 * Makes the views of a tensor: the ways in which attacks read the tensor as a grid or sequence.
 * Layers may have moved the places of a record to any dimension, so there are several views.
 */
#include <string.h>

#include "master/look/look_int.h"

typedef struct view_list {
  const clv_look_tensor *t;
  clv_look_view *list; /* [CLV_LOOK_MAX_VIEWS] views made so far */
  size_t n;
} view_list;

/* Adds a view. extents: number of rows, columns and channels; strides: distances between their
 * values. */
static void add_view(view_list *v, size_t n_skipped_values, const size_t extents[3],
                     const size_t strides[3]) {
  if (v->n == CLV_LOOK_MAX_VIEWS || !extents[0] || !extents[1] || !extents[2]) return;
  v->list[v->n++] = (clv_look_view){.values = v->t->values,
                                    .record_stride = v->t->record_stride,
                                    .first_index = v->t->first_index + n_skipped_values,
                                    .row_stride = strides[0],
                                    .column_stride = strides[1],
                                    .channel_stride = strides[2],
                                    .n_rows = extents[0],
                                    .n_columns = extents[1],
                                    .n_channels = extents[2]};
}

static size_t get_dim(const clv_look_tensor *t, int k) { return (size_t)t->shape.dim[k]; }

/* Returns the number of values of a record in the dimensions after k. */
static size_t count_values_after(const clv_look_tensor *t, int k) {
  size_t n = 1;
  while (++k < t->shape.rank) n *= get_dim(t, k);
  return n;
}

static size_t count_values(const clv_look_tensor *t) { return count_values_after(t, -1); }

bool clv_look_make_record_view(const clv_look_tensor *t, clv_look_view *ret) {
  clv_look_view list[CLV_LOOK_MAX_VIEWS];
  view_list v = {t, list, 0};
  bool is_image = t->shape.rank == 3;
  if (!is_image && t->shape.rank != 2) return false;
  size_t n_rows = is_image ? get_dim(t, 1) : 1, n_columns = get_dim(t, is_image ? 2 : 1);
  add_view(&v, 0, (size_t[]){n_rows, n_columns, get_dim(t, 0)},
           (size_t[]){n_columns, 1, n_rows * n_columns});
  if (!v.n || n_rows * n_columns < CLV_LOOK_MIN_PLACES) return false;
  *ret = list[0];
  return true;
}

/* ---- views as grids -------------------------------------------------------------------------- */

/* Arranges `n_places` places as a grid that has the same ratio of rows to columns as the records.
 * False: there is no such grid of n_places places. */
static bool find_grid(size_t n_places, const clv_look_view *records, size_t *ret_rows,
                      size_t *ret_columns) {
  *ret_rows = 1;
  *ret_columns = n_places;
  if (records->n_rows == 1) return true;
  for (size_t h = 1; h <= n_places; h++)
    if (n_places % h == 0 && h * records->n_columns == n_places / h * records->n_rows)
      return *ret_rows = h, *ret_columns = n_places / h, true;
  return false;
}

/* Adds the views of `n_places` places in a row, `place_stride` values apart. The first place may be
 * a class token instead of a place of the record. If the places cannot form a grid, one view takes
 * them as a single row of columns, and another as a single column of rows. */
static void add_grid_views(view_list *v, const clv_look_view *records, size_t n_places,
                           size_t place_stride, size_t n_channels, size_t channel_stride) {
  size_t n_rows, n_columns, n = v->n;
  for (size_t n_skipped_places = 0; n_skipped_places < 2 && n_skipped_places < n_places;
       n_skipped_places++)
    if (find_grid(n_places - n_skipped_places, records, &n_rows, &n_columns))
      add_view(v, n_skipped_places * place_stride, (size_t[]){n_rows, n_columns, n_channels},
               (size_t[]){n_columns * place_stride, place_stride, channel_stride});
  if (v->n > n) return;
  if (n_places && records->n_columns % n_places == 0)
    add_view(v, 0, (size_t[]){1, n_places, n_channels},
             (size_t[]){0, place_stride, channel_stride});
  if (n_places && records->n_rows % n_places == 0)
    add_view(v, 0, (size_t[]){n_places, 1, n_channels},
             (size_t[]){place_stride, 0, channel_stride});
}

size_t clv_look_make_grid_views(const clv_look_tensor *t, const clv_look_view *records,
                                clv_look_view ret[CLV_LOOK_MAX_VIEWS]) {
  view_list v = {t, ret, 0};
  if (t->shape.rank == 3) {
    size_t a = get_dim(t, 0), b = get_dim(t, 1), c = get_dim(t, 2);
    add_view(&v, 0, (size_t[]){b, c, a}, (size_t[]){c, 1, b * c});
    if (a * records->n_columns == b * records->n_rows)
      add_view(&v, 0, (size_t[]){a, b, c}, (size_t[]){b * c, c, 1});
  }
  if (t->shape.rank == 2) {
    add_grid_views(&v, records, get_dim(t, 1), 1, get_dim(t, 0), get_dim(t, 1));
    add_grid_views(&v, records, get_dim(t, 0), get_dim(t, 1), get_dim(t, 1), 1);
  }
  return v.n;
}

/* ---- views as sequences ---------------------------------------------------------------------- */

static void add_sequence_views(view_list *v, size_t n_tokens, size_t n_places, size_t place_stride,
                               size_t n_channels, size_t channel_stride) {
  size_t n_skipped_places =
      n_places > n_tokens && n_places - n_tokens <= 4 ? n_places - n_tokens : 0;
  if (n_places < 2) return;
  add_view(v, 0, (size_t[]){1, n_places, n_channels}, (size_t[]){0, place_stride, channel_stride});
  if (n_skipped_places)
    add_view(v, n_skipped_places * place_stride, (size_t[]){1, n_tokens, n_channels},
             (size_t[]){0, place_stride, channel_stride});
}

size_t clv_look_make_sequence_views(const clv_look_tensor *t, size_t n_tokens,
                                    clv_look_view ret[CLV_LOOK_MAX_VIEWS]) {
  view_list v = {t, ret, 0};
  size_t n_values = count_values(t);
  int last_axis = t->shape.rank - 1;
  add_view(&v, 0, (size_t[]){1, 1, n_values}, (size_t[]){0, 0, 1});
  if (t->shape.rank > 1) {
    add_sequence_views(&v, n_tokens, get_dim(t, 0), count_values_after(t, 0),
                       count_values_after(t, 0), 1);
    add_sequence_views(&v, n_tokens, get_dim(t, last_axis), 1,
                       n_values / CLV_MAX(get_dim(t, last_axis), (size_t)1), get_dim(t, last_axis));
  } else if (n_tokens > 1 && n_values % n_tokens == 0) {
    add_sequence_views(&v, n_tokens, n_tokens, n_values / n_tokens, n_values / n_tokens, 1);
    add_sequence_views(&v, n_tokens, n_tokens, 1, n_values / n_tokens, n_tokens);
  }
  return v.n;
}
