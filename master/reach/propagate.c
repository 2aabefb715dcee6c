/* SPDX-License-Identifier: Apache-2.0
 *
 * Computes one step of the analysis (reach_propagate): from the elements of an input, the elements
 * that this input contributes to an output; or backwards, from the elements of an output's
 * gradient, the elements that this gradient contributes to an input's gradient. Each element of the
 * result is a sum of elements of the source; the op's relation (reach_relation) says of which.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "master/reach/reach_int.h"

/* ---- indexes of the source along one axis ---------------------------------------------------- */

typedef struct index_run {
  int64_t first, step, n;
} index_run;

/* Returns those of the n indexes first, first + step, ... that are within 0..extent - 1. */
static index_run clip_run(int64_t first, int64_t step, int64_t n, int64_t extent) {
  int64_t n_skipped = first < 0 ? (-first + step - 1) / step : 0;
  first += n_skipped * step;
  n = CLV_MIN(n - n_skipped, first < extent ? (extent - 1 - first) / step + 1 : 0);
  return (index_run){first, step, CLV_MAX(n, 0)};
}

static int64_t greatest_common_divisor(int64_t a, int64_t b) {
  while (b) {
    int64_t remainder = a % b;
    a = b;
    b = remainder;
  }
  return a;
}

/* Returns the windows (outputs of a convolution or pooling) that read index x: all w with
 * w * stride - pad + u * dilation = x for some index u of the kernel. The indexes u of two such
 * windows differ by a multiple of kernel_period, and the windows by a multiple of `step`. */
static index_run get_reading_windows(const reach_axis *a, int64_t x, int64_t extent) {
  int64_t divisor = greatest_common_divisor(a->stride, a->dilation), u = 0,
          kernel_period = a->stride / divisor;
  while (u < CLV_MIN(a->kernel, kernel_period) && (x + a->pad - u * a->dilation) % a->stride) u++;
  if (u == CLV_MIN(a->kernel, kernel_period)) return (index_run){0};
  int64_t n = (a->kernel - 1 - u) / kernel_period + 1, step = a->dilation / divisor;
  /* the last window that reads x reads it at the smallest such u */
  int64_t last = (x + a->pad - u * a->dilation) / a->stride;
  return clip_run(last - (n - 1) * step, step, n, extent);
}

static index_run get_window_indexes(const reach_axis *a, int64_t x, int64_t extent) {
  return clip_run(x * a->stride - a->pad, a->dilation, a->kernel, extent);
}

static index_run get_head_indexes(const reach_axis *a, bool is_backward, int64_t x) {
  int64_t head_index = x / a->a, at = x % a->a;
  if (is_backward) return (index_run){head_index * a->b * a->a + at, a->a, a->b};
  return (index_run){head_index / a->b * a->a + at, 1, 1};
}

static index_run get_block_indexes(int64_t target_block_size, int64_t source_block_size,
                                   int64_t x) {
  return (index_run){x / target_block_size * source_block_size, 1, source_block_size};
}

/* Returns the index of the source whose element a flip or roll moves to index x; backwards, the
 * index to which the flip or roll moves the element at x. */
static index_run get_flipped_or_rolled_index(const reach_axis *a, bool is_backward, int64_t x,
                                             int64_t extent) {
  int64_t at = is_backward ? (x - a->a) * a->b : a->a + a->b * x;
  return (index_run){(at % extent + extent) % extent, 1, 1};
}

/* Returns the inputs that output x of a resize reads or, if is_backward, the outputs that read
 * input x. */
static index_run get_resampled_indexes(const reach_axis *a, bool is_backward, int64_t x,
                                       int64_t extent) {
  const clv_resample *r = &a->resample;
  int axis = (int)a->a;
  clv_taps t = clv_taps_of(r, axis, is_backward ? 0 : x);
  if (!is_backward) return clip_run(t.first, 1, t.w[1] > 0 ? t.n : 1, extent);
  int64_t end, first = clv_first_reading_output(r, axis, x, &end), n = 0;
  for (int64_t o = first; o < end; o++) {
    t = clv_taps_of(r, axis, o);
    if (clv_tap_weight(&t, x) > 0 && !n++) first = o;
  }
  return clip_run(first, 1, n, extent);
}

/* Returns the indexes along an axis of the source (which has `extent` indexes) whose elements the
 * op uses for the target's elements at index x. */
static index_run get_source_indexes(const reach_axis *a, bool is_backward, int64_t x,
                                    int64_t extent) {
  switch (a->index_relation) {
    case REACH_SHIFT:
      return clip_run(is_backward ? x - a->a : x + a->a, 1, 1, extent);
    case REACH_WINDOW:
      return is_backward ? get_reading_windows(a, x, extent) : get_window_indexes(a, x, extent);
    case REACH_TRANSPOSED_WINDOW:
      return is_backward ? get_window_indexes(a, x, extent) : get_reading_windows(a, x, extent);
    case REACH_CAUSAL:
      return is_backward ? clip_run(x, 1, extent, extent) : clip_run(0, 1, x + 1, extent);
    case REACH_BLOCKS:
      return is_backward ? get_block_indexes(a->b, a->a, x) : get_block_indexes(a->a, a->b, x);
    case REACH_FLIP_OR_ROLL:
      return get_flipped_or_rolled_index(a, is_backward, x, extent);
    case REACH_RESAMPLED:
      return get_resampled_indexes(a, is_backward, x, extent);
    case REACH_HEADS:
      return get_head_indexes(a, is_backward, x);
    default:
      return clip_run(x, 1, 1, extent);
  }
}

static int get_target_axis(const reach_axis *a, bool is_backward) {
  return is_backward ? a->in : a->out;
}
static int get_source_axis(const reach_axis *a, bool is_backward) {
  return is_backward ? a->out : a->in;
}

/* ---- the sum of elements that makes one element of the result -------------------------------- */

/* The sum of source elements that makes one element of the result, as far as elements have been
 * added. */
typedef struct element_sum {
  uint32_t first_set, last_set; /* sets of places of the first and of the last added element */
  /* set of all places of the elements added so far; from the second different set on the union is
   * under construction in the pool instead (is_union_open) */
  uint32_t union_set;
  unsigned flags; /* union of the kinds of the elements, and REACH_FLAG_TOKEN */
  int64_t n;      /* number of added elements that have places */
  bool has_places, has_several_sets, is_union_open;
  bool is_all_zero; /* all added elements are zero */
  bool has_element; /* some element was added */
} element_sum;

static void add_to_union(reach_set_pool *p, element_sum *b, uint32_t set_number) {
  if (!b->is_union_open) reach_pool_add_set(p, b->union_set);
  reach_pool_add_set(p, set_number);
  b->is_union_open = b->has_several_sets = true;
}

static uint32_t take_union(reach_set_pool *p, element_sum *b) {
  if (b->is_union_open) b->union_set = reach_pool_take_set(p);
  b->is_union_open = false;
  return b->union_set;
}

/* Adds n equal elements to a sum. */
static void add_to_element_sum(reach_set_pool *p, element_sum *b, reach_element e, int64_t n) {
  if (e == REACH_ABSENT_ELEMENT) return;
  uint32_t set_number = reach_element_set(e);
  b->has_element = true;
  b->is_all_zero &= (e & REACH_FLAG_ZERO) != 0;
  b->flags |= e & (REACH_KIND_MASK | REACH_FLAG_TOKEN);
  if (!set_number) return;
  b->n += n;
  if (!b->has_places) b->first_set = b->last_set = b->union_set = set_number;
  if (set_number != b->first_set && set_number != b->last_set) add_to_union(p, b, set_number);
  b->last_set = set_number;
  b->has_places = true;
}

/* True if the op sums along the source's sibling_axis, the axis along which elements with the same
 * places are different sums of these places. */
static bool sums_siblings(const reach_step *s) {
  int axis = s->from->sibling_axis;
  const reach_relation *r = s->relation;
  if (!axis || s->from->shape.dim[axis] < 2) return false;
  for (int i = 0; i < r->n; i++)
    if (get_source_axis(&r->axes[i], s->is_backward) == axis)
      return r->axes[i].index_relation == REACH_BLOCKS &&
             (s->is_backward ? r->axes[i].a : r->axes[i].b) > 1;
  return true;
}

/* Largest fraction of outputs that may sum a single place, among the outputs for which dropout
 * keeps any place. Of n places with c elements each, dropout with rate p drops a place with
 * probability l = p^c (place_loss_chance), all places with l^n (all_loss_chance), and all but one
 * with n * (1 - l) * l^(n - 1) (single_place_chance). */
static const double MAX_SINGLE_PLACE_SHARE = 0.02;

static bool leaves_two_places(double dropout_rate, int64_t n_places, int64_t n_elements_per_place) {
  double place_loss_chance = pow(dropout_rate, (double)n_elements_per_place), n = (double)n_places;
  double all_loss_chance = pow(place_loss_chance, n),
         single_place_chance = n * (1 - place_loss_chance) * pow(place_loss_chance, n - 1);
  return dropout_rate <= 0 || single_place_chance <= MAX_SINGLE_PLACE_SHARE * (1 - all_loss_chance);
}

static bool is_safe_from_dropout(const reach_step *s, const element_sum *b, uint32_t set_number) {
  bool is_unmixed = b->flags & REACH_FLAG_UNMIXED;
  int64_t n_places = is_unmixed ? CLV_MIN(reach_set_place_count(s->pool, set_number), b->n) : b->n;
  int64_t n_elements_per_place =
      is_unmixed ? CLV_MAX(CLV_MIN(b->n / n_places, s->from->n_elements_per_place), 1) : 1;
  /* secret weights hide the elements already, so it does not matter how many places dropout
   * leaves */
  if (!(b->flags & (REACH_FLAG_UNMIXED | REACH_FLAG_MIXED))) return true;
  return leaves_two_places(s->from->dropout_rate, n_places, n_elements_per_place);
}

static bool sums_two_places(const reach_step *s, const element_sum *b, uint32_t set_number) {
  if (s->has_one_output) return s->has_several_inputs;
  if (b->has_several_sets) return true;
  bool can_be_different_sums =
      !(b->flags & REACH_FLAG_UNMIXED) || (b->flags & REACH_FLAG_TOKEN) || s->places_are_outputs;
  return can_be_different_sums && sums_siblings(s) &&
         (s->places_are_outputs || reach_set_place_count(s->pool, set_number) > 1);
}

/* Returns the set of places to store for an element. The set of all places replaces the set of an
 * element that every path mixes, if it has at least half of the places. In the analysis of labels
 * and in the widest profile it replaces, instead, the set of an element that secret weights hide.
 * In both cases it does not matter which places the element has. */
static uint32_t choose_stored_set(const reach_step *s, unsigned flags, uint32_t set_number) {
  bool is_hidden = !(flags & (REACH_FLAG_UNMIXED | REACH_FLAG_MIXED));
  if (s->places_are_outputs || s->is_widest)
    return is_hidden ? (uint32_t)REACH_FULL_SET : set_number;
  bool is_wide = !(flags & REACH_FLAG_UNMIXED) &&
                 2 * (int64_t)reach_set_place_count(s->pool, set_number) >= s->pool->n_places;
  return is_wide ? (uint32_t)REACH_FULL_SET : set_number;
}

/* Returns the flags of an element after a layer that sums at least two places of elements with
 * these flags. */
static unsigned get_flags_after_layer(clv_weight_secrecy weight_secrecy, unsigned flags) {
  if (weight_secrecy == CLV_WEIGHTS_SECRET) return (flags & REACH_FLAG_TOKEN) | REACH_FLAG_HIDDEN;
  if (weight_secrecy == CLV_WEIGHTS_AT_WORKER || !(flags & REACH_FLAG_UNMIXED)) return flags;
  return (flags & ~(unsigned)REACH_FLAG_UNMIXED) | REACH_FLAG_MIXED;
}

static reach_element finish_element(reach_step *s, element_sum *b, uint32_t set_number) {
  if (!set_number)
    return b->is_all_zero && !s->has_bias ? REACH_ZERO_ELEMENT : REACH_CONSTANT_ELEMENT;
  if (s->has_weights) {
    bool is_often_single = !s->has_one_output && !is_safe_from_dropout(s, b, set_number),
         has_two_places = !is_often_single && sums_two_places(s, b, set_number);
    s->is_thinned_by_dropout |= is_often_single;
    s->sums_two_places &= has_two_places;
    s->never_sums_two_places &= !has_two_places;
    if (has_two_places) b->flags = get_flags_after_layer(s->weight_secrecy, b->flags);
  }
  return reach_make_element(choose_stored_set(s, b->flags, set_number), b->flags);
}

/* ---- extents of the result ------------------------------------------------------------------- */

static const reach_axis *find_axis(const reach_step *s, int target_axis) {
  for (int i = 0; i < s->relation->n; i++) {
    const reach_axis *a = &s->relation->axes[i];
    if (get_target_axis(a, s->is_backward) == target_axis &&
        (s->is_backward || a->index_relation != REACH_FIXED))
      return a;
  }
  return NULL;
}

/* True if all indexes of the target along an axis have the same sources, so that only one index is
 * stored. */
static bool has_same_sources(const reach_step *s, const reach_axis *a, int target_axis) {
  int source_axis = get_source_axis(a, s->is_backward);
  if (a->index_relation == REACH_FIXED || s->from->stored_extents[source_axis] > 1) return false;
  for (int64_t x = 0; x < s->to.dim[target_axis]; x++)
    if (!get_source_indexes(a, s->is_backward, x, s->from->shape.dim[source_axis]).n) return false;
  return true;
}

static void set_stored_extents(const reach_step *s, reach_value *ret) {
  for (int i = 0; i < CLV_MAX_RANK; i++) {
    const reach_axis *a = i < s->to.rank ? find_axis(s, i) : NULL;
    ret->stored_extents[i] = a && !has_same_sources(s, a, i) ? s->to.dim[i] : 1;
  }
}

/* ---- one step from source to result ---------------------------------------------------------- */

/* Finds the source elements whose sum is the target element at `index`: a run of indexes along each
 * axis of the source. Of equal source elements only one is stored; *ret_n_equal_elements says how
 * many elements each stored element of the runs stands for. False: there are no source elements. */
static bool find_source_runs(const reach_step *s, const int64_t *index, index_run ret[CLV_MAX_RANK],
                             int64_t *ret_n_equal_elements) {
  int64_t n_equal_elements[CLV_MAX_RANK];
  bool has_sources = true;
  for (int i = 0; i < s->from->shape.rank; i++) {
    ret[i] = (index_run){0, 1, s->from->stored_extents[i]};
    n_equal_elements[i] = s->from->shape.dim[i] / s->from->stored_extents[i];
  }
  for (int i = 0; i < s->relation->n; i++) {
    const reach_axis *a = &s->relation->axes[i];
    int target_axis = get_target_axis(a, s->is_backward),
        source_axis = get_source_axis(a, s->is_backward);
    int64_t x = a->index_relation == REACH_FIXED && !s->is_backward ? a->a : index[target_axis];
    if (a->index_relation == REACH_FIXED && s->is_backward) {
      has_sources &= x == a->a;
      continue;
    }
    index_run r = get_source_indexes(a, s->is_backward, x, s->from->shape.dim[source_axis]);
    has_sources &= r.n > 0;
    ret[source_axis] = s->from->stored_extents[source_axis] > 1 ? r : (index_run){0, 1, 1};
    n_equal_elements[source_axis] = s->from->stored_extents[source_axis] > 1 ? 1 : r.n;
  }
  *ret_n_equal_elements = 1;
  for (int i = 0; i < s->from->shape.rank; i++) *ret_n_equal_elements *= n_equal_elements[i];
  return has_sources;
}

/* Adds the elements of `from` in `runs` to the sum b. */
static void add_runs(const reach_step *s, const reach_value *from, const index_run *runs,
                     const int64_t *strides, int64_t n_equal_elements, element_sum *b) {
  int64_t at[CLV_MAX_RANK] = {0}, extents[CLV_MAX_RANK], index_strides[CLV_MAX_RANK];
  size_t first = 0;
  for (int i = 0; i < from->shape.rank; i++) {
    first += (size_t)(runs[i].first * strides[i]);
    extents[i] = runs[i].n;
    index_strides[i] = runs[i].step * strides[i];
  }
  do
    add_to_element_sum(s->pool, b,
                       from->elements[first + reach_offset(at, index_strides, from->shape.rank)],
                       n_equal_elements);
  while (reach_charge_work(s->pool, 1) && reach_advance_index(at, extents, from->shape.rank));
}

static reach_element gather_element(reach_step *s, const int64_t *index, const int64_t *strides) {
  index_run runs[CLV_MAX_RANK];
  element_sum b = {.is_all_zero = true};
  int64_t n_equal_elements;
  if (!find_source_runs(s, index, runs, &n_equal_elements))
    return s->has_weights || s->has_bias ? finish_element(s, &b, REACH_EMPTY_SET)
                                         : REACH_ABSENT_ELEMENT;
  add_runs(s, s->from, runs, strides, n_equal_elements, &b);
  if (s->undropped_source && !b.has_places &&
      /* no other element has places, so the elements of the columns that reach_drop_uniform_columns
       * has left out count after all */
      b.flags) {
    b = (element_sum){.is_all_zero = true};
    add_runs(s, s->undropped_source, runs, strides, n_equal_elements, &b);
  }
  uint32_t set_number = take_union(s->pool, &b);
  return b.has_element ? finish_element(s, &b, set_number) : REACH_ABSENT_ELEMENT;
}

/* True if each element of the target sums the steps of a sequence up to its own step (backwards:
 * from its own step on), and the target's elements differ in nothing else. Then each sum is the
 * previous sum plus the elements of one step. */
static bool is_running_sum(const reach_step *s, const reach_value *to) {
  const reach_axis *a = find_axis(s, 1);
  return a && a->index_relation == REACH_CAUSAL && to->stored_extents[1] > 1 &&
         reach_value_element_count(to) == (size_t)to->stored_extents[1];
}

static void make_running_sums(reach_step *s, const int64_t *strides, reach_value *ret) {
  element_sum running_sum = {.is_all_zero = true};
  int64_t n = ret->stored_extents[1], inner_extents[CLV_MAX_RANK], n_equal_elements = 1;
  int rank = s->from->shape.rank;
  memcpy(inner_extents, s->from->stored_extents, sizeof inner_extents);
  inner_extents[1] = 1;
  for (int i = 2; i < rank; i++)
    n_equal_elements *= s->from->shape.dim[i] / s->from->stored_extents[i];
  for (int64_t i = 0; i < n; i++) {
    int64_t x = s->is_backward ? n - 1 - i : i, at[CLV_MAX_RANK] = {0};
    do {
      size_t from = (size_t)(x * strides[1]) + reach_offset(at, strides, rank);
      add_to_element_sum(s->pool, &running_sum, s->from->elements[from], n_equal_elements);
    } while (reach_advance_index(at, inner_extents, rank));
    uint32_t set_number = take_union(s->pool, &running_sum);
    element_sum sum_so_far = running_sum;
    int64_t index[CLV_MAX_RANK] = {0, x};
    /* only elements that reach_drop_uniform_columns has left out have places */
    bool counts_dropped = s->undropped_source && !set_number && sum_so_far.flags;
    ret->elements[x] = counts_dropped ? gather_element(s, index, strides)
                                      : finish_element(s, &sum_so_far, set_number);
  }
  (void)reach_charge_work(s->pool, reach_value_element_count(s->from));
}

static int find_sibling_axis(const reach_step *s) {
  if (s->has_weights)
    return (s->sums_two_places || sums_siblings(s)) && s->n_sums > 1 ? s->sums_axis : 0;
  /* dropout often leaves only the value of a single key, so the results are no sums and have no
   * sibling axis, an axis of different sums of the same places */
  if (!leaves_two_places(s->key_dropout_rate, s->from->shape.dim[1], 1)) return 0;
  for (int i = 0; i < s->relation->n; i++) {
    const reach_axis *a = &s->relation->axes[i];
    int target_axis = get_target_axis(a, s->is_backward);
    /* in a block of several elements each one is another sum of the same places (values of the
     * record) */
    if (a->index_relation == REACH_BLOCKS && (s->is_backward ? a->b : a->a) > 1) return target_axis;
    bool moves_index = a->index_relation == REACH_SAME || a->index_relation == REACH_SHIFT ||
                       a->index_relation == REACH_HEADS;
    if (moves_index && a->index_relation != REACH_FIXED &&
        get_source_axis(a, s->is_backward) == s->from->sibling_axis)
      return s->from->sibling_axis && s->to.dim[target_axis] > 1 ? target_axis : 0;
  }
  return 0;
}

clv_code reach_propagate_worst_case(reach_step *s, reach_value *ret, clv_err *err) {
  const reach_value *from = s->undropped_source ? s->undropped_source : s->from;
  reach_element worst_element = REACH_ABSENT_ELEMENT, narrowest_element = REACH_ABSENT_ELEMENT;
  s->sums_two_places = false;
  for (size_t i = 0; i < reach_value_element_count(from); i++) {
    worst_element =
        reach_choose_path(s->pool, REACH_PROFILE_EXPOSED, worst_element, from->elements[i]);
    narrowest_element =
        reach_choose_path(s->pool, REACH_PROFILE_NARROW, narrowest_element, from->elements[i]);
  }
  if (reach_element_has_places(worst_element))
    worst_element =
        reach_make_element(reach_element_set(narrowest_element), worst_element & REACH_FLAG_MASK);
  return reach_value_fill(ret, &s->to, worst_element, err);
}

static clv_code make_elements(reach_step *s, reach_value *ret, clv_err *err) {
  int64_t index[CLV_MAX_RANK] = {0}, strides[CLV_MAX_RANK];
  *ret = (reach_value){.shape = s->to};
  set_stored_extents(s, ret);
  if (!reach_charge_work(s->pool, reach_value_element_count(ret)))
    return reach_propagate_worst_case(s, ret, err);
  CLV_TRY(reach_value_alloc(ret, err));
  reach_value_strides(s->from, strides);
  if (is_running_sum(s, ret))
    make_running_sums(s, strides, ret);
  else
    for (size_t i = 0, n = reach_value_element_count(ret); i < n && !s->pool->exceeds_limits; i++) {
      ret->elements[i] = gather_element(s, index, strides);
      reach_advance_index(index, ret->stored_extents, s->to.rank);
    }
  if (s->pool->exceeds_limits) {
    reach_value_done(ret);
    return reach_propagate_worst_case(s, ret, err);
  }
  ret->sibling_axis = find_sibling_axis(s);
  reach_compress_value(ret);
  return CLV_OK;
}

/* Returns the number of elements that a place (pixel, step, token or feature) has in the source.
 * Dropout drops each of them independently. */
static int64_t count_elements_per_place(const reach_step *s) {
  int64_t n = 1, n_places = CLV_MAX(s->pool->n_places, 1);
  for (int i = 1; i < s->from->shape.rank; i++) n *= s->from->shape.dim[i];
  return CLV_MAX(n / n_places, 1);
}

/* Sets the dropout of the result, which the analysis of later layers reads. After a secret layer
 * that sums two places earlier dropout has no effect any more. */
static void set_result_dropout(const reach_step *s, reach_value *ret) {
  bool ends_dropout =
      s->has_weights && s->weight_secrecy == CLV_WEIGHTS_SECRET && s->sums_two_places;
  ret->dropout_rate =
      ends_dropout ? 0 : reach_combined_dropout_rate(s->from->dropout_rate, s->op_dropout_rate);
  ret->n_elements_per_place =
      s->from->dropout_rate > 0 ? s->from->n_elements_per_place : count_elements_per_place(s);
}

static clv_code propagate_elements(reach_step *s, reach_value *ret, clv_err *err) {
  if (s->relation->is_independent) return reach_value_fill(ret, &s->to, REACH_ZERO_ELEMENT, err);
  if (s->relation->is_reshape) return reach_reshape_value(s->pool, s->from, &s->to, ret, err);
  if (s->pool->exceeds_limits) return reach_propagate_worst_case(s, ret, err);
  reach_value varying_source = {0};
  const reach_value *from = s->from;
  if (s->has_weights && !s->is_backward && !s->is_widest)
    CLV_TRY(reach_drop_uniform_columns(s, &varying_source, err));
  if (varying_source.elements) s->undropped_source = from;
  if (varying_source.elements) s->from = &varying_source;
  clv_code code = make_elements(s, ret, err);
  reach_value_done(&varying_source);
  s->from = from;
  s->undropped_source = NULL;
  CLV_TRY(code);
  return s->pool->has_failed ? clv_fail(err, CLV_EXHAUSTED, "out of memory") : CLV_OK;
}

clv_code reach_propagate(reach_step *s, reach_value *ret, clv_err *err) {
  CLV_TRY(propagate_elements(s, ret, err));
  set_result_dropout(s, ret);
  return CLV_OK;
}
