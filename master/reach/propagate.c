/* SPDX-License-Identifier: Apache-2.0
 *
 * Computes one step (reach_propagate): the elements of an input's share in an output, or backwards,
 * of an output's gradient in that of an input. Each is made of a bundle of elements, which a
 * relation names.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "master/reach/reach_int.h"

/* ---- indexes along one axis ------------------------------------------------------------------ */

typedef struct run {
  int64_t first, step, n;
} run;

/* Indexes first, first + step, ... within 0..extent - 1. */
static run within(int64_t first, int64_t step, int64_t n, int64_t extent) {
  int64_t skip = first < 0 ? (-first + step - 1) / step : 0;
  first += skip * step;
  n = CLV_MIN(n - skip, first < extent ? (extent - 1 - first) / step + 1 : 0);
  return (run){first, step, CLV_MAX(n, 0)};
}

static int64_t common(int64_t a, int64_t b) {
  while (b) {
    int64_t rest = a % b;
    a = b;
    b = rest;
  }
  return a;
}

/* All w with w stride - pad + u dilation = x for some u of the kernel. Stride and dilation
 * determine the distance of the u, and thus that of the w. */
static run windows_of(const reach_axis *a, int64_t x, int64_t extent) {
  int64_t apart = common(a->stride, a->dilation), u = 0, next = a->stride / apart;
  while (u < CLV_MIN(a->kernel, next) && (x + a->pad - u * a->dilation) % a->stride) u++;
  if (u == CLV_MIN(a->kernel, next)) return (run){0};
  int64_t n = (a->kernel - 1 - u) / next + 1, step = a->dilation / apart;
  int64_t last = (x + a->pad - u * a->dilation) / a->stride; /* the first u has the last window */
  return within(last - (n - 1) * step, step, n, extent);
}

static run taps_of(const reach_axis *a, int64_t x, int64_t extent) {
  return within(x * a->stride - a->pad, a->dilation, a->kernel, extent);
}

static run heads_of(const reach_axis *a, bool back, int64_t x) {
  int64_t head = x / a->a, at = x % a->a;
  if (back) return (run){head * a->b * a->a + at, a->a, a->b};
  return (run){head / a->b * a->a + at, 1, 1};
}

static run blocks_of(int64_t own, int64_t other, int64_t x) {
  return (run){x / own * other, 1, other};
}

/* Indexes of the source, of this extent, from which index x of the target is made. */
static run sources(const reach_axis *a, bool back, int64_t x, int64_t extent) {
  switch (a->kind) {
    case REACH_SHIFT:
      return within(back ? x - a->a : x + a->a, 1, 1, extent);
    case REACH_WINDOW:
      return back ? windows_of(a, x, extent) : taps_of(a, x, extent);
    case REACH_TRANSPOSED_WINDOW:
      return back ? taps_of(a, x, extent) : windows_of(a, x, extent);
    case REACH_CAUSAL:
      return back ? within(x, 1, extent, extent) : within(0, 1, x + 1, extent);
    case REACH_BLOCKS:
      return back ? blocks_of(a->b, a->a, x) : blocks_of(a->a, a->b, x);
    case REACH_HEADS:
      return heads_of(a, back, x);
    default:
      return within(x, 1, 1, extent);
  }
}

static int own_axis(const reach_axis *a, bool back) { return back ? a->in : a->out; }
static int other_axis(const reach_axis *a, bool back) { return back ? a->out : a->in; }

/* ---- a bundle -------------------------------------------------------------------------------- */

/* State of a sum of elements. `whole` is the set of all places of the elements so far, except those
 * that are painted into the pool; painting begins with the second set. */
typedef struct bundle {
  uint32_t first, last, whole;
  unsigned flags; /* kinds and REACH_TOKEN */
  int64_t n;      /* number of elements that have places */
  bool any, several, painted, zero, found;
} bundle;

static void paint(reach_pool *p, bundle *b, uint32_t set) {
  if (!b->painted) reach_pool_add(p, b->whole);
  reach_pool_add(p, set);
  b->painted = b->several = true;
}

static uint32_t whole_of(reach_pool *p, bundle *b) {
  if (b->painted) b->whole = reach_pool_take(p);
  b->painted = false;
  return b->whole;
}

/* Adds n equal elements. */
static void add_to_bundle(reach_pool *p, bundle *b, reach_element e, int64_t n) {
  if (e == REACH_ABSENT) return;
  uint32_t set = reach_set_of(e);
  b->found = true;
  b->zero &= (e & REACH_ZERO) != 0;
  b->flags |= e & (REACH_KINDS | REACH_TOKEN);
  if (!set) return;
  b->n += n;
  if (!b->any) b->first = b->last = b->whole = set;
  if (set != b->first && set != b->last) paint(p, b, set);
  b->last = set;
  b->any = true;
}

/* True if the sum contains the axis along which elements with the same places are different sums.
 * */
static bool sums_siblings(const reach_step *s) {
  int axis = s->from->siblings;
  const reach_relation *r = s->relation;
  if (!axis || s->from->shape.dim[axis] < 2) return false;
  for (int i = 0; i < r->n; i++)
    if (other_axis(&r->axis[i], s->back) == axis)
      return r->axis[i].kind == REACH_BLOCKS && (s->back ? r->axis[i].a : r->axis[i].b) > 1;
  return true;
}

/* The largest share of outputs that may sum a single place, of those to which dropout leaves any.
 * Of n places with c elements each, at a rate p, dropout leaves out a place with probability l =
 * p^c, all of them with l^n, and all but one with n (1 - l) l^(n - 1). */
static const double MOST_ALONE = 0.02;

static bool leaves_two(double rate, int64_t places, int64_t copies) {
  double lost = pow(rate, (double)copies), n = (double)places;
  double none = pow(lost, n), alone = n * (1 - lost) * pow(lost, n - 1);
  return rate <= 0 || alone <= MOST_ALONE * (1 - none);
}

static bool survives(const reach_step *s, const bundle *b, uint32_t set) {
  bool bare = b->flags & REACH_UNMIXED;
  int64_t places = bare ? CLV_MIN(reach_set_count(s->pool, set), b->n) : b->n;
  int64_t copies = bare ? CLV_MAX(CLV_MIN(b->n / places, s->from->copies), 1) : 1;
  if (!(b->flags & (REACH_UNMIXED | REACH_MIXED))) return true; /* hidden already */
  return leaves_two(s->from->dropped, places, copies);
}

static bool sums_two(const reach_step *s, const bundle *b, uint32_t set) {
  if (s->scalar) return s->several;
  if (b->several) return true;
  bool mixed = !(b->flags & REACH_UNMIXED) || (b->flags & REACH_TOKEN) || s->labels;
  return mixed && sums_siblings(s) && (s->labels || reach_set_count(s->pool, set) > 1);
}

/* Element of a layer that mixes: it does not matter which of many places it has. */
static uint32_t clipped(const reach_step *s, unsigned flags, uint32_t set) {
  bool hidden = !(flags & (REACH_UNMIXED | REACH_MIXED));
  if (s->labels || s->widest) return hidden ? (uint32_t)REACH_FULL : set;
  bool wide =
      !(flags & REACH_UNMIXED) && 2 * (int64_t)reach_set_count(s->pool, set) >= s->pool->places;
  return wide ? (uint32_t)REACH_FULL : set;
}

/* Element of a layer that sums two places. */
static unsigned mixed(clv_reach_layer layer, unsigned flags) {
  if (layer == CLV_REACH_SECRET) return (flags & REACH_TOKEN) | REACH_HIDDEN;
  if (layer == CLV_REACH_AT_WORKER || !(flags & REACH_UNMIXED)) return flags;
  return (flags & ~(unsigned)REACH_UNMIXED) | REACH_MIXED;
}

static reach_element finish(reach_step *s, bundle *b, uint32_t set) {
  if (!set) return b->zero && !s->constant ? REACH_NOTHING : REACH_CONSTANT;
  if (s->weighs) {
    bool lone = !s->scalar && !survives(s, b, set), two = !lone && sums_two(s, b, set);
    s->thinned |= lone;
    s->sums &= two;
    s->sums_none &= !two;
    if (two) b->flags = mixed(s->layer, b->flags);
  }
  return reach_make_element(clipped(s, b->flags, set), b->flags);
}

/* ---- extents --------------------------------------------------------------------------------- */

static const reach_axis *axis_of(const reach_step *s, int own) {
  for (int i = 0; i < s->relation->n; i++) {
    const reach_axis *a = &s->relation->axis[i];
    if (own_axis(a, s->back) == own && (s->back || a->kind != REACH_FIXED)) return a;
  }
  return NULL;
}

/* True if all indexes of the target along an axis have the same sources, so that one is stored. */
static bool is_alike(const reach_step *s, const reach_axis *a, int own) {
  int other = other_axis(a, s->back);
  if (a->kind == REACH_FIXED || s->from->kept[other] > 1) return false;
  for (int64_t x = 0; x < s->to.dim[own]; x++)
    if (!sources(a, s->back, x, s->from->shape.dim[other]).n) return false;
  return true;
}

static void keep_extents(const reach_step *s, reach_value *ret) {
  for (int i = 0; i < CLV_MAX_RANK; i++) {
    const reach_axis *a = i < s->to.rank ? axis_of(s, i) : NULL;
    ret->kept[i] = a && !is_alike(s, a, i) ? s->to.dim[i] : 1;
  }
}

/* ---- the step -------------------------------------------------------------------------------- */

/* Finds the bundle of one target index: a run along each axis of the source. *ret_alike: number of
 * elements that each stored one in the runs stands for. */
static bool runs_of(const reach_step *s, const int64_t *index, run ret[CLV_MAX_RANK],
                    int64_t *ret_alike) {
  int64_t alike[CLV_MAX_RANK];
  bool any = true;
  for (int i = 0; i < s->from->shape.rank; i++) {
    ret[i] = (run){0, 1, s->from->kept[i]};
    alike[i] = s->from->shape.dim[i] / s->from->kept[i];
  }
  for (int i = 0; i < s->relation->n; i++) {
    const reach_axis *a = &s->relation->axis[i];
    int own = own_axis(a, s->back), other = other_axis(a, s->back);
    int64_t x = a->kind == REACH_FIXED && !s->back ? a->a : index[own];
    if (a->kind == REACH_FIXED && s->back) {
      any &= x == a->a;
      continue;
    }
    run r = sources(a, s->back, x, s->from->shape.dim[other]);
    any &= r.n > 0;
    ret[other] = s->from->kept[other] > 1 ? r : (run){0, 1, 1};
    alike[other] = s->from->kept[other] > 1 ? 1 : r.n;
  }
  *ret_alike = 1;
  for (int i = 0; i < s->from->shape.rank; i++) *ret_alike *= alike[i];
  return any;
}

/* Adds the bundle at `runs`. */
static void add_all(const reach_step *s, const reach_value *from, const run *runs,
                    const int64_t *steps, int64_t alike, bundle *b) {
  int64_t at[CLV_MAX_RANK] = {0}, extents[CLV_MAX_RANK], walk[CLV_MAX_RANK];
  size_t first = 0;
  for (int i = 0; i < from->shape.rank; i++) {
    first += (size_t)(runs[i].first * steps[i]);
    extents[i] = runs[i].n;
    walk[i] = runs[i].step * steps[i];
  }
  do
    add_to_bundle(s->pool, b, from->element[first + reach_offset(at, walk, from->shape.rank)],
                  alike);
  while (reach_charge_work(s->pool, 1) && reach_next_index(at, extents, from->shape.rank));
}

static reach_element gather(reach_step *s, const int64_t *index, const int64_t *steps) {
  run runs[CLV_MAX_RANK];
  bundle b = {.zero = true};
  int64_t alike;
  if (!runs_of(s, index, runs, &alike))
    return s->weighs || s->constant ? finish(s, &b, REACH_EMPTY) : REACH_ABSENT;
  add_all(s, s->from, runs, steps, alike, &b);
  if (s->whole && !b.any && b.flags) { /* of such columns alone */
    b = (bundle){.zero = true};
    add_all(s, s->whole, runs, steps, alike, &b);
  }
  uint32_t set = whole_of(s->pool, &b);
  return b.found ? finish(s, &b, set) : REACH_ABSENT;
}

/* True if the target sums all steps so far (backwards: from here on) and its elements differ in
 * nothing else. Each sum is then the previous one and the elements of one step. */
static bool grows(const reach_step *s, const reach_value *to) {
  const reach_axis *a = axis_of(s, 1);
  return a && a->kind == REACH_CAUSAL && to->kept[1] > 1 &&
         reach_value_count(to) == (size_t)to->kept[1];
}

static void grow(reach_step *s, const int64_t *steps, reach_value *ret) {
  bundle all = {.zero = true};
  int64_t n = ret->kept[1], inner[CLV_MAX_RANK], alike = 1;
  int rank = s->from->shape.rank;
  memcpy(inner, s->from->kept, sizeof inner);
  inner[1] = 1;
  for (int i = 2; i < rank; i++) alike *= s->from->shape.dim[i] / s->from->kept[i];
  for (int64_t i = 0; i < n; i++) {
    int64_t x = s->back ? n - 1 - i : i, at[CLV_MAX_RANK] = {0};
    do {
      size_t from = (size_t)(x * steps[1]) + reach_offset(at, steps, rank);
      add_to_bundle(s->pool, &all, s->from->element[from], alike);
    } while (reach_next_index(at, inner, rank));
    uint32_t set = whole_of(s->pool, &all);
    bundle now = all;
    int64_t index[CLV_MAX_RANK] = {0, x};
    bool none = s->whole && !set && now.flags; /* only columns that do not vary */
    ret->element[x] = none ? gather(s, index, steps) : finish(s, &now, set);
  }
  (void)reach_charge_work(s->pool, reach_value_count(s->from));
}

static int siblings_of(const reach_step *s) {
  if (s->weighs) return (s->sums || sums_siblings(s)) && s->width > 1 ? s->width_axis : 0;
  if (!leaves_two(s->drops_keys, s->from->shape.dim[1], 1)) return 0; /* often of one key alone */
  for (int i = 0; i < s->relation->n; i++) {
    const reach_axis *a = &s->relation->axis[i];
    int own = own_axis(a, s->back);
    if (a->kind == REACH_BLOCKS && (s->back ? a->b : a->a) > 1) return own; /* scores of values */
    bool moves = a->kind == REACH_SAME || a->kind == REACH_SHIFT || a->kind == REACH_HEADS;
    if (moves && a->kind != REACH_FIXED && other_axis(a, s->back) == s->from->siblings)
      return s->from->siblings && s->to.dim[own] > 1 ? own : 0;
  }
  return 0;
}

clv_code reach_give_up(reach_step *s, reach_value *ret, clv_err *err) {
  const reach_value *from = s->whole ? s->whole : s->from;
  reach_element worst = REACH_ABSENT, narrow = REACH_ABSENT;
  s->sums = false;
  for (size_t i = 0; i < reach_value_count(from); i++) {
    worst = reach_choose_path(s->pool, REACH_EXPOSED, worst, from->element[i]);
    narrow = reach_choose_path(s->pool, REACH_NARROW, narrow, from->element[i]);
  }
  if (reach_is_path(worst)) worst = reach_make_element(reach_set_of(narrow), worst & REACH_FLAGS);
  return reach_value_fill(ret, &s->to, worst, err);
}

static clv_code make(reach_step *s, reach_value *ret, clv_err *err) {
  int64_t index[CLV_MAX_RANK] = {0}, steps[CLV_MAX_RANK];
  *ret = (reach_value){.shape = s->to};
  keep_extents(s, ret);
  if (!reach_charge_work(s->pool, reach_value_count(ret))) return reach_give_up(s, ret, err);
  CLV_TRY(reach_value_alloc(ret, err));
  reach_value_steps(s->from, steps);
  if (grows(s, ret))
    grow(s, steps, ret);
  else
    for (size_t i = 0, n = reach_value_count(ret); i < n && !s->pool->is_over_budget; i++) {
      ret->element[i] = gather(s, index, steps);
      reach_next_index(index, ret->kept, s->to.rank);
    }
  if (s->pool->is_over_budget) {
    reach_value_done(ret);
    return reach_give_up(s, ret, err);
  }
  ret->siblings = siblings_of(s);
  reach_compress(ret);
  return CLV_OK;
}

/* Most elements of a place in the dropped value, each of which dropout leaves out independently. */
static int64_t copies_of(const reach_step *s) {
  int64_t n = 1, places = CLV_MAX(s->pool->places, 1);
  for (int i = 1; i < s->from->shape.rank; i++) n *= s->from->shape.dim[i];
  return CLV_MAX(n / places, 1);
}

/* Sets the dropout of the result. A secret layer that sums two places ends it. */
static void mark_dropped(const reach_step *s, reach_value *ret) {
  bool ends = s->weighs && s->layer == CLV_REACH_SECRET && s->sums;
  ret->dropped = ends ? 0 : reach_dropped_twice(s->from->dropped, s->drops);
  ret->copies = s->from->dropped > 0 ? s->from->copies : copies_of(s);
}

static clv_code propagate_elements(reach_step *s, reach_value *ret, clv_err *err) {
  if (s->relation->none) return reach_value_fill(ret, &s->to, REACH_NOTHING, err);
  if (s->relation->reshapes) return reach_reshape(s->pool, s->from, &s->to, ret, err);
  if (s->pool->is_over_budget) return reach_give_up(s, ret, err);
  reach_value varying = {0};
  const reach_value *from = s->from;
  if (s->weighs && !s->back && !s->widest) CLV_TRY(reach_drop_uniform_columns(s, &varying, err));
  if (varying.element) s->whole = from;
  if (varying.element) s->from = &varying;
  clv_code code = make(s, ret, err);
  reach_value_done(&varying);
  s->from = from;
  s->whole = NULL;
  CLV_TRY(code);
  return s->pool->failed ? clv_fail(err, CLV_EXHAUSTED, "out of memory") : CLV_OK;
}

clv_code reach_propagate(reach_step *s, reach_value *ret, clv_err *err) {
  CLV_TRY(propagate_elements(s, ret, err));
  mark_dropped(s, ret);
  return CLV_OK;
}
