/* SPDX-License-Identifier: Apache-2.0
 *
 * The elements of values. They are stored once along axes where they are equal, and merged where
 * several paths lead to them.
 */
#include <stdlib.h>
#include <string.h>

#include "master/reach/reach_int.h"

enum { MAX_ELEMENTS = 1 << 23 }; /* of a value; a larger value is stored as one element */

size_t reach_value_count(const reach_value *v) {
  size_t n = 1;
  for (int i = 0; i < v->shape.rank; i++) n *= (size_t)v->kept[i];
  return n;
}

clv_code reach_value_alloc(reach_value *v, clv_err *err) {
  v->borrowed = false;
  return clv_alloc(reach_value_count(v), sizeof *v->element, &v->element, err);
}

void reach_value_done(reach_value *v) {
  if (!v->borrowed) free(v->element);
  *v = (reach_value){0};
}

clv_code reach_value_fill(reach_value *v, const clv_shape *shape, reach_element e, clv_err *err) {
  clv_shape own = *shape;
  *v = (reach_value){.shape = own};
  for (int i = 0; i < CLV_MAX_RANK; i++) v->kept[i] = 1;
  CLV_TRY(reach_value_alloc(v, err));
  v->element[0] = e;
  return CLV_OK;
}

void reach_value_steps(const reach_value *v, int64_t ret[CLV_MAX_RANK]) {
  int64_t step = 1;
  for (int i = v->shape.rank; i-- > 0; step *= v->kept[i]) ret[i] = v->kept[i] > 1 ? step : 0;
}

bool reach_next_index(int64_t *index, const int64_t *extents, int rank) {
  for (int i = rank; i-- > 0; index[i] = 0)
    if (++index[i] < extents[i]) return true;
  return false;
}

size_t reach_offset(const int64_t *index, const int64_t *steps, int rank) {
  int64_t at = 0;
  for (int i = 0; i < rank; i++) at += index[i] * steps[i];
  return (size_t)at;
}

/* ---- alike ----------------------------------------------------------------------------------- */

static void around(const reach_value *v, int axis, size_t *outer, size_t *inner) {
  *outer = *inner = 1;
  for (int i = 0; i < axis; i++) *outer *= (size_t)v->kept[i];
  for (int i = axis + 1; i < v->shape.rank; i++) *inner *= (size_t)v->kept[i];
}

static bool alike(const reach_value *v, int axis) {
  size_t outer, inner, n = (size_t)v->kept[axis];
  around(v, axis, &outer, &inner);
  for (size_t o = 0; o < outer; o++)
    for (size_t i = inner; i < n * inner; i++)
      if (v->element[o * n * inner + i] != v->element[o * n * inner + i - inner]) return false;
  return true;
}

static void keep_first(reach_value *v, int axis) {
  size_t outer, inner, n = (size_t)v->kept[axis];
  around(v, axis, &outer, &inner);
  for (size_t o = 1; o < outer; o++)
    memmove(v->element + o * inner, v->element + o * n * inner, inner * sizeof *v->element);
  v->kept[axis] = 1;
}

void reach_compress(reach_value *v) {
  for (int i = 0; i < v->shape.rank && !v->borrowed; i++)
    if (v->kept[i] > 1 && alike(v, i)) keep_first(v, i);
}

/* ---- another shape --------------------------------------------------------------------------- */

/* Replaces all elements by the most exposed and narrowest one. */
static reach_element worst_of(const reach_pool *p, const reach_value *v) {
  reach_element worst = REACH_ABSENT;
  for (size_t i = 0; i < reach_value_count(v); i++)
    worst = reach_choose_path(p, REACH_EXPOSED, worst, v->element[i]);
  return worst;
}

static int siblings_in(const reach_value *from, const clv_shape *shape) {
  int s = from->siblings, last = from->shape.rank - 1;
  if (shape->rank == 2 && s) return 1;
  if (s == 1 && shape->dim[1] == from->shape.dim[1]) return 1;
  return s == last && shape->dim[shape->rank - 1] == from->shape.dim[last] ? shape->rank - 1 : 0;
}

static bool is_large(const clv_shape *shape) {
  int64_t n = 1;
  for (int i = 1; i < shape->rank; i++) {
    n *= shape->dim[i];
    if (n > MAX_ELEMENTS) return true;
  }
  return false;
}

clv_code reach_reshape(reach_pool *p, const reach_value *from, const clv_shape *shape,
                       reach_value *ret, clv_err *err) {
  int64_t index[CLV_MAX_RANK] = {0}, steps[CLV_MAX_RANK];
  bool one = reach_value_count(from) == 1;
  if (one || is_large(shape)) {
    CLV_TRY(reach_value_fill(ret, shape, worst_of(p, from), err));
    ret->siblings = siblings_in(from, shape);
    return CLV_OK;
  }
  *ret = (reach_value){.shape = *shape, .siblings = siblings_in(from, shape)};
  memcpy(ret->kept, shape->dim, sizeof ret->kept);
  CLV_TRY(reach_value_alloc(ret, err));
  reach_value_steps(from, steps);
  for (size_t i = 0; i < reach_value_count(ret); i++) {
    ret->element[i] = from->element[reach_offset(index, steps, from->shape.rank)];
    reach_next_index(index, from->shape.dim, from->shape.rank);
  }
  (void)reach_charge_work(p, reach_value_count(ret));
  reach_compress(ret);
  return CLV_OK;
}

/* ---- several paths --------------------------------------------------------------------------- */

/* The worst kind of the element's paths is the lowest bit. */
static int64_t level(reach_element e) {
  uint32_t kinds = e & REACH_KINDS;
  return kinds & (~kinds + 1);
}

static bool is_worse(const reach_pool *p, reach_profile profile, reach_element a, reach_element b) {
  int64_t exposed = level(a) - level(b);
  int64_t count =
      (int64_t)reach_set_count(p, reach_set_of(a)) - reach_set_count(p, reach_set_of(b));
  int64_t first = profile == REACH_EXPOSED ? exposed : profile == REACH_NARROW ? count : -count;
  return first ? first < 0 : exposed + count < 0;
}

/* Chooses between constants and paths: a constant is no path if there is another one, but constants
 * alone are a path. */
reach_element reach_choose_path(const reach_pool *p, reach_profile profile, reach_element a,
                                reach_element b) {
  if (a == REACH_ABSENT || b == REACH_ABSENT) return a == REACH_ABSENT ? b : a;
  if (!reach_set_of(a) && !reach_set_of(b)) return a & b;
  if (!reach_set_of(a) || !reach_set_of(b)) return reach_set_of(a) ? a : b;
  return is_worse(p, profile, b, a) ? b : a;
}

static reach_element merge_elements(const reach_pool *p, reach_profile profile, bool product,
                                    reach_element a, reach_element b) {
  bool zero = a == REACH_NOTHING || b == REACH_NOTHING;
  return product && zero ? REACH_NOTHING : reach_choose_path(p, profile, a, b);
}

/* True if any element has places. The merge of a constant and another value has the siblings of the
 * other value. */
static bool has_path(const reach_value *v) {
  for (size_t i = 0; i < reach_value_count(v); i++)
    if (reach_is_path(v->element[i])) return true;
  return false;
}

static int siblings_of(const reach_value *a, const reach_value *b) {
  if (!has_path(a)) return b->siblings;
  if (!has_path(b)) return a->siblings;
  return a->siblings == b->siblings ? a->siblings : 0;
}

clv_code reach_merge(reach_pool *p, reach_profile profile, bool product, reach_value *to,
                     reach_value *other, clv_err *err) {
  int64_t index[CLV_MAX_RANK] = {0}, a[CLV_MAX_RANK], b[CLV_MAX_RANK];
  reach_value made = {.shape = other->shape};
  if (!to->element) {
    *to = *other;
    *other = (reach_value){0};
    return CLV_OK;
  }
  made.siblings = siblings_of(to, other);
  made.dropped = CLV_MAX(to->dropped, other->dropped);
  made.copies = to->dropped <= 0      ? other->copies
                : other->dropped <= 0 ? to->copies
                                      : CLV_MIN(to->copies, other->copies);
  for (int i = 0; i < made.shape.rank; i++) made.kept[i] = CLV_MAX(to->kept[i], other->kept[i]);
  CLV_TRY(reach_value_alloc(&made, err));
  reach_value_steps(to, a);
  reach_value_steps(other, b);
  for (size_t i = 0; i < reach_value_count(&made); i++) {
    made.element[i] =
        merge_elements(p, profile, product, to->element[reach_offset(index, a, made.shape.rank)],
                       other->element[reach_offset(index, b, made.shape.rank)]);
    reach_next_index(index, made.kept, made.shape.rank);
  }
  (void)reach_charge_work(p, reach_value_count(&made));
  reach_value_done(to);
  reach_value_done(other);
  reach_compress(&made);
  *to = made;
  return CLV_OK;
}
