/* SPDX-License-Identifier: Apache-2.0
 *
 * Removes uniform columns from the input of a layer (reach_drop_uniform_columns). The places of an
 * element are the values of the record from which it is computed. A layer whose weights are shared
 * by many positions, such as a convolution, reads columns: a channel, or one value of each window.
 * A column that has the same places at all positions, such as the mean of an image, is a constant
 * of the record. Like a bias it shifts the outputs of all positions, and does not hide their
 * differences.
 *
 * A column with the same places at two or more positions, such as a summary of each row, hides as
 * little: the column shifts the outputs of these positions equally. Beside values that are not
 * mixed yet (REACH_FLAG_UNMIXED), each such element is left out. Beside values that known weights
 * have mixed, elements with all places stay, because choose_stored_set (propagate.c) gives all
 * elements of more places than it lists the same set. If all elements are hidden by secret weights,
 * all stay, because leaving elements out would show nothing more.
 */
#include <stdlib.h>
#include <string.h>

#include "master/reach/reach_int.h"

/* Returns the distance between positions along an axis: one weight reads the indexes that differ
 * by a multiple of that distance. 0: the axis has no positions, so each index has a weight of
 * its own. */
static int64_t get_position_distance(const reach_step *s, int axis) {
  for (int i = 0; i < s->relation->n; i++) {
    const reach_axis *a = &s->relation->axes[i];
    if (a->in != axis || a->index_relation == REACH_BLOCKS || a->index_relation == REACH_FIXED)
      continue;
    if (a->index_relation != REACH_CAUSAL && s->to.dim[a->out] < 2) return 0;
    return a->index_relation == REACH_WINDOW ? a->stride : 1;
  }
  return 0;
}

/* Describes how elements form columns: the elements of a column have the same indexes along axes
 * without positions, and the same index within a window. */
typedef struct reach_columns {
  int64_t position_distances[CLV_MAX_RANK], column_extents[CLV_MAX_RANK];
} reach_columns;

static size_t count_columns(const reach_step *s, reach_columns *ret) {
  size_t n = 1;
  for (int i = 0; i < s->from->shape.rank; i++) {
    int64_t stored_extent = s->from->stored_extents[i];
    ret->position_distances[i] = get_position_distance(s, i);
    ret->column_extents[i] = ret->position_distances[i]
                                 ? CLV_MIN(ret->position_distances[i], stored_extent)
                                 : stored_extent;
    n *= (size_t)ret->column_extents[i];
  }
  return n;
}

static size_t get_column_index(const reach_columns *c, const int64_t *index, int rank) {
  int64_t at = 0;
  for (int i = 0; i < rank; i++)
    at = at * c->column_extents[i] +
         (c->position_distances[i] ? index[i] % c->column_extents[i] : index[i]);
  return (size_t)at;
}

/* Returns how many elements, at different positions of a column, one stored element represents. */
static int64_t count_represented_elements(const reach_step *s, const reach_columns *c) {
  int64_t n = 1;
  for (int i = 0; i < s->from->shape.rank; i++)
    if (c->position_distances[i] && s->from->stored_extents[i] == 1)
      n *= (s->from->shape.dim[i] - 1) / c->position_distances[i] + 1;
  return n;
}

typedef struct reach_column {
  uint32_t set_number; /* set of the column's last element with places */
  int64_t n;           /* number of the column's elements with places */
  /* true: elements of the column have different sets, or fewer than two have places */
  bool has_several_sets;
} reach_column;

static void find_column_sets(const reach_step *s, const reach_columns *c, size_t n_columns,
                             reach_column *columns) {
  int64_t index[CLV_MAX_RANK] = {0}, n_represented = count_represented_elements(s, c);
  for (size_t i = 0, n = reach_value_element_count(s->from); i < n; i++) {
    reach_column *column = &columns[get_column_index(c, index, s->from->shape.rank)];
    reach_element e = s->from->elements[i];
    if (reach_element_has_places(e)) {
      column->has_several_sets |= column->n && reach_element_set(e) != column->set_number;
      column->set_number = reach_element_set(e);
      column->n += n_represented;
    }
    reach_advance_index(index, s->from->stored_extents, s->from->shape.rank);
  }
  for (size_t i = 0; i < n_columns; i++) columns[i].has_several_sets |= columns[i].n < 2;
}

/* ---- columns that are the same at some positions --------------------------------------------- */

/* Returns a key for each element, made of its column and its set, so that elements of a column with
 * the same places have equal keys. */
static uint64_t *list_element_keys(const reach_step *s, const reach_columns *c) {
  size_t n = reach_value_element_count(s->from);
  int64_t index[CLV_MAX_RANK] = {0};
  uint64_t *keys = calloc(n, sizeof *keys);
  for (size_t i = 0; keys && i < n; i++) {
    keys[i] = (uint64_t)get_column_index(c, index, s->from->shape.rank) << 32 |
              reach_element_set(s->from->elements[i]);
    reach_advance_index(index, s->from->stored_extents, s->from->shape.rank);
  }
  return keys;
}

static int compare_keys(const void *a, const void *b) {
  uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
  return x < y ? -1 : x > y;
}

/* Sorts the keys, moves those that occur at least twice to the beginning of the list, each once,
 * and returns the number of these. */
static size_t keep_repeated_keys(uint64_t *keys, size_t n) {
  size_t n_kept = 0;
  qsort(keys, n, sizeof *keys, compare_keys);
  for (size_t i = 1; i < n; i++)
    if (keys[i] == keys[i - 1] && (!n_kept || keys[n_kept - 1] != keys[i]))
      keys[n_kept++] = keys[i];
  return n_kept;
}

typedef struct repeated_keys {
  uint64_t *keys; /* [n] sorted keys (list_element_keys) that occur at least twice */
  size_t n;
  bool includes_full; /* elements with all places (REACH_FULL_SET) are left out as well */
} repeated_keys;

static void repeated_keys_done(repeated_keys *r) { free(r->keys); }

static clv_code find_repeated_keys(const reach_step *s, const reach_columns *c, repeated_keys *ret,
                                   clv_err *err) {
  size_t n = reach_value_element_count(s->from);
  unsigned flags = 0;
  for (size_t i = 0; i < n; i++) flags |= s->from->elements[i] & REACH_KIND_MASK;
  if (!(flags & (REACH_FLAG_UNMIXED | REACH_FLAG_MIXED)) || !reach_charge_work(s->pool, 4 * n))
    return CLV_OK;
  ret->includes_full = flags & REACH_FLAG_UNMIXED;
  ret->keys = list_element_keys(s, c);
  if (!ret->keys) return clv_fail(err, CLV_EXHAUSTED, "out of memory");
  ret->n = keep_repeated_keys(ret->keys, n);
  return CLV_OK;
}

static bool is_repeated_element(const repeated_keys *r, size_t column, uint32_t set_number) {
  uint64_t key = (uint64_t)column << 32 | set_number;
  if (!r->n || (set_number == REACH_FULL_SET && !r->includes_full)) return false;
  return bsearch(&key, r->keys, r->n, sizeof key, compare_keys) != NULL;
}

/* Removes the places of uniform columns. The elements keep their kinds (REACH_KIND_MASK), because
 * places that known weights have mixed can still be known. *ret_has_dropped: an element with places
 * was left out; *ret_has_remaining: an element with places remains. */
static void remove_uniform_places(const reach_step *s, const reach_columns *c,
                                  const reach_column *columns, const repeated_keys *r,
                                  reach_value *ret, bool *ret_has_dropped,
                                  bool *ret_has_remaining) {
  int64_t index[CLV_MAX_RANK] = {0};
  *ret_has_dropped = *ret_has_remaining = false;
  for (size_t i = 0, n = reach_value_element_count(ret); i < n; i++) {
    reach_element e = s->from->elements[i];
    size_t column = get_column_index(c, index, ret->shape.rank);
    bool is_dropped =
        reach_element_has_places(e) &&
        (!columns[column].has_several_sets || is_repeated_element(r, column, reach_element_set(e)));
    ret->elements[i] = is_dropped ? reach_make_element(REACH_EMPTY_SET, e & REACH_FLAG_MASK) : e;
    *ret_has_dropped |= is_dropped;
    *ret_has_remaining |= reach_element_has_places(e) && !is_dropped;
    reach_advance_index(index, ret->stored_extents, ret->shape.rank);
  }
}

clv_code reach_drop_uniform_columns(reach_step *s, reach_value *ret, clv_err *err) {
  CLV_AUTO(repeated_keys_done) repeated_keys repeated = {0};
  CLV_AUTO(clv_freep) reach_column *columns = NULL;
  reach_columns c;
  bool has_dropped, has_remaining;
  size_t n = count_columns(s, &c);
  CLV_TRY(clv_alloc(n, sizeof *columns, &columns, err));
  find_column_sets(s, &c, n, columns);
  CLV_TRY(find_repeated_keys(s, &c, &repeated, err));
  *ret = (reach_value){.shape = s->from->shape,
                       .sibling_axis = s->from->sibling_axis,
                       .dropout_rate = s->from->dropout_rate,
                       .n_elements_per_place = s->from->n_elements_per_place};
  memcpy(ret->stored_extents, s->from->stored_extents, sizeof ret->stored_extents);
  CLV_TRY(reach_value_alloc(ret, err));
  remove_uniform_places(s, &c, columns, &repeated, ret, &has_dropped, &has_remaining);
  (void)reach_charge_work(s->pool, 2 * reach_value_element_count(ret));
  if (!has_dropped || !has_remaining) reach_value_done(ret);
  return CLV_OK;
}
