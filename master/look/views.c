/* SPDX-License-Identifier: Apache-2.0
 *
 * Makes the views of a tensor. Layers may have moved the places of a record to any dimension.
 */
#include <string.h>

#include "master/look/look_int.h"

typedef struct view_list {
  const clv_look_tensor *t;
  clv_look_view *list; /* [CLV_LOOK_MAX_VIEWS] views made so far */
  size_t n;
} view_list;

/* Adds a view. extent: number of rows, columns and channels; step: distances between their
 * values. */
static void add_view(view_list *v, size_t skip, const size_t extent[3], const size_t step[3]) {
  if (v->n == CLV_LOOK_MAX_VIEWS || !extent[0] || !extent[1] || !extent[2]) return;
  v->list[v->n++] = (clv_look_view){.values = v->t->values,
                                    .record = v->t->record,
                                    .first = v->t->first + skip,
                                    .row = step[0],
                                    .column = step[1],
                                    .channel = step[2],
                                    .n_rows = extent[0],
                                    .n_columns = extent[1],
                                    .n_channels = extent[2]};
}

static size_t get_dim(const clv_look_tensor *t, int k) { return (size_t)t->shape.dim[k]; }

/* Returns the number of values of a record in the dimensions after k. */
static size_t count_values_after(const clv_look_tensor *t, int k) {
  size_t n = 1;
  while (++k < t->shape.rank) n *= get_dim(t, k);
  return n;
}

static size_t count_values(const clv_look_tensor *t) { return count_values_after(t, -1); }

bool clv_look_record_view(const clv_look_tensor *t, clv_look_view *ret) {
  clv_look_view list[CLV_LOOK_MAX_VIEWS];
  view_list v = {t, list, 0};
  bool is_image = t->shape.rank == 3;
  if (!is_image && t->shape.rank != 2) return false;
  size_t rows = is_image ? get_dim(t, 1) : 1, columns = get_dim(t, is_image ? 2 : 1);
  add_view(&v, 0, (size_t[]){rows, columns, get_dim(t, 0)}, (size_t[]){columns, 1, rows * columns});
  if (!v.n || rows * columns < CLV_LOOK_MIN_PLACES) return false;
  *ret = list[0];
  return true;
}

/* ---- views as grids -------------------------------------------------------------------------- */

/* Arranges `places` places as a grid with the proportions of the records; false: they make no such
 * grid. */
static bool find_grid(size_t places, const clv_look_view *records, size_t *rows, size_t *columns) {
  *rows = 1;
  *columns = places;
  if (records->n_rows == 1) return true;
  for (size_t h = 1; h <= places; h++)
    if (places % h == 0 && h * records->n_columns == places / h * records->n_rows)
      return *rows = h, *columns = places / h, true;
  return false;
}

/* Adds the views of `places` places in a row, `step` values apart. The first place may be a class
 * token instead of a place of the record. If the places make no grid, they may be the columns or
 * the rows of the records. */
static void add_places(view_list *v, const clv_look_view *records, size_t places, size_t step,
                       size_t channels, size_t channel) {
  size_t rows, columns, n = v->n;
  for (size_t skip = 0; skip < 2 && skip < places; skip++)
    if (find_grid(places - skip, records, &rows, &columns))
      add_view(v, skip * step, (size_t[]){rows, columns, channels},
               (size_t[]){columns * step, step, channel});
  if (v->n > n) return;
  if (places && records->n_columns % places == 0)
    add_view(v, 0, (size_t[]){1, places, channels}, (size_t[]){0, step, channel});
  if (places && records->n_rows % places == 0)
    add_view(v, 0, (size_t[]){places, 1, channels}, (size_t[]){step, 0, channel});
}

size_t clv_look_grid_views(const clv_look_tensor *t, const clv_look_view *records,
                           clv_look_view ret[CLV_LOOK_MAX_VIEWS]) {
  view_list v = {t, ret, 0};
  if (t->shape.rank == 3) {
    size_t a = get_dim(t, 0), b = get_dim(t, 1), c = get_dim(t, 2);
    add_view(&v, 0, (size_t[]){b, c, a}, (size_t[]){c, 1, b * c});
    if (a * records->n_columns == b * records->n_rows)
      add_view(&v, 0, (size_t[]){a, b, c}, (size_t[]){b * c, c, 1});
  }
  if (t->shape.rank == 2) {
    add_places(&v, records, get_dim(t, 1), 1, get_dim(t, 0), get_dim(t, 1));
    add_places(&v, records, get_dim(t, 0), get_dim(t, 1), get_dim(t, 1), 1);
  }
  return v.n;
}

/* ---- views as sequences ---------------------------------------------------------------------- */

static void add_sequence(view_list *v, size_t n_tokens, size_t places, size_t step, size_t channels,
                         size_t channel) {
  size_t skip = places > n_tokens && places - n_tokens <= 4 ? places - n_tokens : 0;
  if (places < 2) return;
  add_view(v, 0, (size_t[]){1, places, channels}, (size_t[]){0, step, channel});
  if (skip)
    add_view(v, skip * step, (size_t[]){1, n_tokens, channels}, (size_t[]){0, step, channel});
}

size_t clv_look_sequence_views(const clv_look_tensor *t, size_t n_tokens,
                               clv_look_view ret[CLV_LOOK_MAX_VIEWS]) {
  view_list v = {t, ret, 0};
  size_t all = count_values(t);
  int last = t->shape.rank - 1;
  add_view(&v, 0, (size_t[]){1, 1, all}, (size_t[]){0, 0, 1});
  if (t->shape.rank > 1) {
    add_sequence(&v, n_tokens, get_dim(t, 0), count_values_after(t, 0), count_values_after(t, 0),
                 1);
    add_sequence(&v, n_tokens, get_dim(t, last), 1, all / CLV_MAX(get_dim(t, last), (size_t)1),
                 get_dim(t, last));
  } else if (n_tokens > 1 && all % n_tokens == 0) {
    add_sequence(&v, n_tokens, n_tokens, all / n_tokens, all / n_tokens, 1);
    add_sequence(&v, n_tokens, n_tokens, 1, all / n_tokens, n_tokens);
  }
  return v.n;
}
