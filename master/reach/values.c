/* SPDX-License-Identifier: Apache-2.0
 *
 * Stores the elements of values: along an axis where all elements are equal, only one element.
 * Merges several paths that lead to one element.
 */
#include <stdlib.h>
#include <string.h>

#include "master/reach/reach_int.h"

/* most elements of a value; a larger value is stored as one element */
enum { MAX_ELEMENTS = 1 << 23 };

size_t reach_value_element_count(const reach_value *v) {
  size_t n = 1;
  for (int i = 0; i < v->shape.rank; i++) n *= (size_t)v->stored_extents[i];
  return n;
}

clv_code reach_value_alloc(reach_value *v, clv_err *err) {
  v->borrows_elements = false;
  return clv_alloc(reach_value_element_count(v), sizeof *v->elements, &v->elements, err);
}

void reach_value_done(reach_value *v) {
  if (!v->borrows_elements) free(v->elements);
  *v = (reach_value){0};
}

clv_code reach_value_fill(reach_value *v, const clv_shape *shape, reach_element e, clv_err *err) {
  clv_shape shape_copy = *shape;
  *v = (reach_value){.shape = shape_copy};
  for (int i = 0; i < CLV_MAX_RANK; i++) v->stored_extents[i] = 1;
  CLV_TRY(reach_value_alloc(v, err));
  v->elements[0] = e;
  return CLV_OK;
}

void reach_value_strides(const reach_value *v, int64_t ret[CLV_MAX_RANK]) {
  int64_t step = 1;
  for (int i = v->shape.rank; i-- > 0; step *= v->stored_extents[i])
    ret[i] = v->stored_extents[i] > 1 ? step : 0;
}

bool reach_advance_index(int64_t *index, const int64_t *extents, int rank) {
  for (int i = rank; i-- > 0; index[i] = 0)
    if (++index[i] < extents[i]) return true;
  return false;
}

size_t reach_offset(const int64_t *index, const int64_t *strides, int rank) {
  int64_t at = 0;
  for (int i = 0; i < rank; i++) at += index[i] * strides[i];
  return (size_t)at;
}

/* ---- axes along which all elements are equal ------------------------------------------------- */

static void get_outer_and_inner(const reach_value *v, int axis, size_t *n_outer, size_t *n_inner) {
  *n_outer = *n_inner = 1;
  for (int i = 0; i < axis; i++) *n_outer *= (size_t)v->stored_extents[i];
  for (int i = axis + 1; i < v->shape.rank; i++) *n_inner *= (size_t)v->stored_extents[i];
}

static bool is_uniform_along(const reach_value *v, int axis) {
  size_t n_outer, n_inner, n = (size_t)v->stored_extents[axis];
  get_outer_and_inner(v, axis, &n_outer, &n_inner);
  for (size_t o = 0; o < n_outer; o++)
    for (size_t i = n_inner; i < n * n_inner; i++)
      if (v->elements[o * n * n_inner + i] != v->elements[o * n * n_inner + i - n_inner])
        return false;
  return true;
}

static void keep_first_along(reach_value *v, int axis) {
  size_t n_outer, n_inner, n = (size_t)v->stored_extents[axis];
  get_outer_and_inner(v, axis, &n_outer, &n_inner);
  for (size_t o = 1; o < n_outer; o++)
    memmove(v->elements + o * n_inner, v->elements + o * n * n_inner,
            n_inner * sizeof *v->elements);
  v->stored_extents[axis] = 1;
}

void reach_compress_value(reach_value *v) {
  for (int i = 0; i < v->shape.rank && !v->borrows_elements; i++)
    if (v->stored_extents[i] > 1 && is_uniform_along(v, i)) keep_first_along(v, i);
}

/* ---- reshaping a value ----------------------------------------------------------------------- */

/* Returns the most exposed element of v; of equally exposed ones the narrowest. */
static reach_element find_worst_element(const reach_set_pool *p, const reach_value *v) {
  reach_element worst_element = REACH_ABSENT_ELEMENT;
  for (size_t i = 0; i < reach_value_element_count(v); i++)
    worst_element = reach_choose_path(p, REACH_PROFILE_EXPOSED, worst_element, v->elements[i]);
  return worst_element;
}

static int map_sibling_axis(const reach_value *from, const clv_shape *shape) {
  int s = from->sibling_axis, last_axis = from->shape.rank - 1;
  if (shape->rank == 2 && s) return 1;
  if (s == 1 && shape->dim[1] == from->shape.dim[1]) return 1;
  return s == last_axis && shape->dim[shape->rank - 1] == from->shape.dim[last_axis]
             ? shape->rank - 1
             : 0;
}

static bool exceeds_max_elements(const clv_shape *shape) {
  int64_t n = 1;
  for (int i = 1; i < shape->rank; i++) {
    n *= shape->dim[i];
    if (n > MAX_ELEMENTS) return true;
  }
  return false;
}

clv_code reach_reshape_value(reach_set_pool *p, const reach_value *from, const clv_shape *shape,
                             reach_value *ret, clv_err *err) {
  int64_t index[CLV_MAX_RANK] = {0}, strides[CLV_MAX_RANK];
  bool is_single_element = reach_value_element_count(from) == 1;
  if (is_single_element || exceeds_max_elements(shape)) {
    CLV_TRY(reach_value_fill(ret, shape, find_worst_element(p, from), err));
    ret->sibling_axis = map_sibling_axis(from, shape);
    return CLV_OK;
  }
  *ret = (reach_value){.shape = *shape, .sibling_axis = map_sibling_axis(from, shape)};
  memcpy(ret->stored_extents, shape->dim, sizeof ret->stored_extents);
  CLV_TRY(reach_value_alloc(ret, err));
  reach_value_strides(from, strides);
  for (size_t i = 0; i < reach_value_element_count(ret); i++) {
    ret->elements[i] = from->elements[reach_offset(index, strides, from->shape.rank)];
    reach_advance_index(index, from->shape.dim, from->shape.rank);
  }
  (void)reach_charge_work(p, reach_value_element_count(ret));
  reach_compress_value(ret);
  return CLV_OK;
}

/* ---- merging several paths to an element ----------------------------------------------------- */

/* Returns the most exposed kind of the paths to an element, which is the lowest of its kind bits
 * (unmixed, mixed, hidden). A smaller number is more exposed. */
static int64_t get_exposure(reach_element e) {
  uint32_t kind_flags = e & REACH_KIND_MASK;
  return kind_flags & (~kind_flags + 1);
}

static bool is_worse(const reach_set_pool *p, reach_profile profile, reach_element a,
                     reach_element b) {
  int64_t exposure_difference = get_exposure(a) - get_exposure(b);
  int64_t place_count_difference = (int64_t)reach_set_place_count(p, reach_element_set(a)) -
                                   reach_set_place_count(p, reach_element_set(b));
  int64_t first_difference = profile == REACH_PROFILE_EXPOSED  ? exposure_difference
                             : profile == REACH_PROFILE_NARROW ? place_count_difference
                                                               : -place_count_difference;
  return first_difference ? first_difference < 0 : exposure_difference + place_count_difference < 0;
}

/* Returns the one of two elements that shows more of a record under `profile`. Returns a constant,
 * an element made of no place of the record, only if both are constants. */
reach_element reach_choose_path(const reach_set_pool *p, reach_profile profile, reach_element a,
                                reach_element b) {
  if (a == REACH_ABSENT_ELEMENT || b == REACH_ABSENT_ELEMENT)
    return a == REACH_ABSENT_ELEMENT ? b : a;
  if (!reach_element_set(a) && !reach_element_set(b)) return a & b;
  if (!reach_element_set(a) || !reach_element_set(b)) return reach_element_set(a) ? a : b;
  return is_worse(p, profile, b, a) ? b : a;
}

static reach_element merge_elements(const reach_set_pool *p, reach_profile profile, bool is_product,
                                    reach_element a, reach_element b) {
  bool has_zero = a == REACH_ZERO_ELEMENT || b == REACH_ZERO_ELEMENT;
  return is_product && has_zero ? REACH_ZERO_ELEMENT : reach_choose_path(p, profile, a, b);
}

/* True if any element of v has places (is made of pixels, steps, tokens or features). If one of two
 * merged values has no places, the result gets the sibling_axis of the value that has places. */
static bool has_path(const reach_value *v) {
  for (size_t i = 0; i < reach_value_element_count(v); i++)
    if (reach_element_has_places(v->elements[i])) return true;
  return false;
}

static int merge_sibling_axes(const reach_value *a, const reach_value *b) {
  if (!has_path(a)) return b->sibling_axis;
  if (!has_path(b)) return a->sibling_axis;
  return a->sibling_axis == b->sibling_axis ? a->sibling_axis : 0;
}

clv_code reach_merge_values(reach_set_pool *p, reach_profile profile, bool is_product,
                            reach_value *to, reach_value *other, clv_err *err) {
  int64_t index[CLV_MAX_RANK] = {0}, a[CLV_MAX_RANK], b[CLV_MAX_RANK];
  reach_value merged_value = {.shape = other->shape};
  if (!to->elements) {
    *to = *other;
    *other = (reach_value){0};
    return CLV_OK;
  }
  merged_value.sibling_axis = merge_sibling_axes(to, other);
  merged_value.dropout_rate = CLV_MAX(to->dropout_rate, other->dropout_rate);
  merged_value.n_elements_per_place =
      to->dropout_rate <= 0      ? other->n_elements_per_place
      : other->dropout_rate <= 0 ? to->n_elements_per_place
                                 : CLV_MIN(to->n_elements_per_place, other->n_elements_per_place);
  for (int i = 0; i < merged_value.shape.rank; i++)
    merged_value.stored_extents[i] = CLV_MAX(to->stored_extents[i], other->stored_extents[i]);
  CLV_TRY(reach_value_alloc(&merged_value, err));
  reach_value_strides(to, a);
  reach_value_strides(other, b);
  for (size_t i = 0; i < reach_value_element_count(&merged_value); i++) {
    merged_value.elements[i] = merge_elements(
        p, profile, is_product, to->elements[reach_offset(index, a, merged_value.shape.rank)],
        other->elements[reach_offset(index, b, merged_value.shape.rank)]);
    reach_advance_index(index, merged_value.stored_extents, merged_value.shape.rank);
  }
  (void)reach_charge_work(p, reach_value_element_count(&merged_value));
  reach_value_done(to);
  reach_value_done(other);
  reach_compress_value(&merged_value);
  *to = merged_value;
  return CLV_OK;
}
