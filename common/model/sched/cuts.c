/* SPDX-License-Identifier: Apache-2.0
 *
 * clv_sched_search_cuts: search for the best ways to cut a chain. First it computes a lower bound
 * of the time of every way to cut, with a few additions for each. Then it simulates the ways in the
 * order of their bounds, until a bound is above the times found.
 */
#include "common/model/sched/sched_int.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Limits of the work of a search. MAX_BOUNDS: number of lower bounds that it computes;
 * MAX_INSTRUCTIONS: number of instructions that it simulates. Each of the two takes one or two
 * seconds. WINDOW_TRIES: number of windows that clv_sched_find_window simulates for a way to
 * cut. */
enum { MAX_BOUNDS = 300000, MAX_INSTRUCTIONS = 24000000, WINDOW_TRIES = 12 };

/* A way to cut the chain, with a number of micro-batches. */
typedef struct way {
  double lower_bound_seconds;
  /* cuts_index: index into search.cut_layers; micros_choice: index into micro_batch_counts of
   * clv_sched_cuts */
  uint32_t cuts_index, micros_choice;
} way;

typedef struct search {
  const clv_sched_cuts *c;
  uint32_t n; /* number of cuts in each way to cut */
  uint32_t *cut_places, n_cut_places;
  /* Range of layers for each cut, narrowed so that the other cuts have room. */
  uint32_t min_cut_layer[CLV_SCHED_STAGES], max_cut_layer[CLV_SCHED_STAGES];
  uint16_t *cut_layers;      /* [n_ways][n] layers behind which each way cuts */
  uint32_t n_ways, max_ways; /* max_ways: capacity of cut_layers and ways */
  way *ways;
  clv_sched_split *best_splits; /* [max_best_splits] best ways found so far, fastest first */
  uint32_t max_best_splits, n_best_splits;
  /* estimate over all simulations so far; the search ends early above MAX_INSTRUCTIONS */
  uint64_t n_instructions_simulated;
  clv_sched_costs costs;
  clv_sched_search statistics;
} search;

static void search_clear(search *s) {
  free(s->cut_places);
  free(s->cut_layers);
  free(s->ways);
}

/* ---- one way to cut -------------------------------------------------------------------------- */

static uint32_t find_first_backward(const clv_sched_cuts *c, const uint32_t *last) {
  uint32_t s = 0, n = c->shape.n_stages - 1;
  if (c->first_trained_layer >= c->n_layers) return n;
  while (s < n && last[s] < c->first_trained_layer) s++;
  return s;
}

static double transfer_seconds(const clv_sched_shape *shape, const clv_sched_costs *c,
                               uint32_t edge, bool is_backward) {
  if (!is_cross_rank_edge(shape, edge)) return 0;
  return c->latency_seconds[edge] +
         (is_backward ? c->serialise_backward_seconds : c->serialise_forward_seconds)[edge];
}

/* Lower bounds of times for each stage, in seconds. */
typedef struct stage_bounds {
  /* time until the first micro-batch arrives at the stage */
  double arrival_bound[CLV_SCHED_STAGES];
  /* time from the end of a micro-batch's forward at the stage to the end of the last gradient of
   * this micro-batch at any stage */
  double after_forward_bound[CLV_SCHED_STAGES];
  /* time from the end of the stage's last backward to the end of the round */
  double after_backward_bound[CLV_SCHED_STAGES];
} stage_bounds;

/* Computes the bounds of all stages. input_grad_first: a stage sends the input gradient before it
 * computes weight gradients. */
static void compute_stage_time_bounds(const clv_sched_shape *shape, const clv_sched_costs *c,
                                      bool input_grad_first, stage_bounds *w) {
  uint32_t n = shape->n_stages;
  /* time from the arrival of a gradient at stage s to the end of the step */
  double back_seconds = 0;
  for (uint32_t s = 0; s < n; s++) {
    double return_seconds = s ? transfer_seconds(shape, c, s - 1, true) + back_seconds : 0;
    bool previous_is_trained = s && is_trained_stage(shape, s - 1);
    w->arrival_bound[s] = s ? w->arrival_bound[s - 1] + c->forward_seconds[s - 1] +
                                  transfer_seconds(shape, c, s - 1, false)
                            : 0;
    w->after_backward_bound[s] =
        previous_is_trained
            ? fmax(return_seconds - (input_grad_first ? c->weight_grad_seconds[s] : 0), 0)
            : 0;
    if (is_trained_stage(shape, s))
      back_seconds =
          c->input_grad_seconds[s] + c->weight_grad_seconds[s] + w->after_backward_bound[s];
  }
  w->after_forward_bound[n - 1] = is_trained_stage(shape, n - 1) ? back_seconds : 0;
  for (uint32_t s = n - 1; s-- > 0;)
    w->after_forward_bound[s] = transfer_seconds(shape, c, s, false) + c->forward_seconds[s + 1] +
                                w->after_forward_bound[s + 1];
}

static double stage_seconds(const clv_sched_shape *shape, const clv_sched_costs *c, uint32_t s) {
  return c->forward_seconds[s] +
         (is_trained_stage(shape, s) ? c->input_grad_seconds[s] + c->weight_grad_seconds[s] : 0);
}

/* Returns a lower bound of the time of a synchronous step, for any order of instructions. It
 * follows from this: each rank, and each link in each direction, does all its work between the
 * arrival of its first micro-batch and the return of its last one to the first stage. */
static double lower_bound(const clv_sched_shape *shape, const clv_sched_costs *c,
                          bool splits_backward) {
  double busy_seconds[CLV_SCHED_RANKS] = {0}, min_arrival[CLV_SCHED_RANKS],
         min_return[CLV_SCHED_RANKS];
  stage_bounds w;
  compute_stage_time_bounds(shape, c, splits_backward || c->sends_input_gradient_first, &w);
  double m = shape->n_micro_batches, bound = c->forward_seconds[0] + w.after_forward_bound[0];
  for (uint32_t r = 0; r < shape->n_ranks; r++) min_arrival[r] = min_return[r] = INFINITY;
  for (uint32_t s = 0; s < shape->n_stages; s++) {
    uint32_t r = shape->stage_rank[s];
    busy_seconds[r] += stage_seconds(shape, c, s);
    min_arrival[r] = fmin(min_arrival[r], w.arrival_bound[s]);
    min_return[r] = fmin(min_return[r], splits_backward ? 0 : w.after_backward_bound[s]);
    if (!is_cross_rank_edge(shape, s)) continue;
    double n_others = m - 1, f = n_others * c->serialise_forward_seconds[s],
           b = n_others * c->serialise_backward_seconds[s];
    bound = fmax(bound, w.arrival_bound[s] + c->forward_seconds[s] + f + w.after_forward_bound[s]);
    if (is_trained_stage(shape, s))
      bound =
          fmax(bound, w.arrival_bound[s] + c->forward_seconds[s] + b + w.after_forward_bound[s]);
  }
  for (uint32_t r = 0; r < shape->n_ranks; r++)
    if (busy_seconds[r] > 0)
      bound = fmax(bound, min_arrival[r] + m * busy_seconds[r] + min_return[r]);
  return bound;
}

static clv_sched_shape shape_of_cuts(const clv_sched_cuts *c, const uint32_t *last,
                                     uint32_t n_micro) {
  clv_sched_shape shape = c->shape;
  shape.n_micro_batches = n_micro;
  shape.n_accumulate = 0;
  shape.first_backward_stage = find_first_backward(c, last);
  return shape;
}

static clv_code simulate_split(const clv_sched_cuts *c, clv_sched_costs *costs,
                               clv_sched_split *split, clv_err *err) {
  CLV_AUTO(clv_sched_freep) clv_sched *s = NULL;
  clv_sched_run run;
  split->n_micro_batches = c->micro_batch_counts[split->micros_choice];
  clv_sched_options o = {.kind = c->kind,
                         .shape = shape_of_cuts(c, split->last_layers, split->n_micro_batches),
                         .window = c->window,
                         .costs = costs};
  c->compute_costs(c->user, split->last_layers, split->micros_choice, costs);
  if (c->computes_window) CLV_TRY(clv_sched_find_window(&o.shape, costs, &o.window, err));
  o.window = CLV_MIN(o.window, o.shape.n_micro_batches);
  CLV_TRY(clv_sched_make(&o, &s, err));
  CLV_TRY(clv_sched_simulate(s, costs, false, &run, err));
  split->window = o.window;
  split->seconds = run.seconds;
  split->bubble = run.bubble;
  clv_sched_run_clear(&run, s);
  return CLV_OK;
}

clv_code clv_sched_simulate_split(const clv_sched_cuts *c, clv_sched_split *split, clv_err *err) {
  CLV_AUTO(clv_freep) clv_sched_costs *costs = NULL;
  CLV_TRY(clv_alloc(1, sizeof *costs, &costs, err));
  return simulate_split(c, costs, split, err);
}

/* ---- the list of the best splits ------------------------------------------------------------- */

static bool has_same_cuts(const search *s, const clv_sched_split *a, const clv_sched_split *b) {
  return memcmp(a->last_layers, b->last_layers, s->n * sizeof *a->last_layers) == 0;
}

static void insert_best_split(search *s, uint32_t at, const clv_sched_split *split) {
  for (; at > 0 && s->best_splits[at - 1].seconds > split->seconds; at--)
    s->best_splits[at] = s->best_splits[at - 1];
  s->best_splits[at] = *split;
}

/* Adds a split to the best splits, unless the same cuts are among them with a shorter time. */
static void add_best_split(search *s, const clv_sched_split *split) {
  for (uint32_t i = 0; i < s->n_best_splits; i++) {
    if (!has_same_cuts(s, &s->best_splits[i], split)) continue;
    if (split->seconds < s->best_splits[i].seconds) insert_best_split(s, i, split);
    return;
  }
  if (s->n_best_splits < s->max_best_splits)
    insert_best_split(s, s->n_best_splits++, split);
  else if (split->seconds < s->best_splits[s->max_best_splits - 1].seconds)
    insert_best_split(s, s->max_best_splits - 1, split);
}

/* Returns the time below which a split enters the best splits. */
static double seconds_to_beat(const search *s) {
  return s->n_best_splits < s->max_best_splits ? INFINITY
                                               : s->best_splits[s->max_best_splits - 1].seconds;
}

static clv_code count_and_simulate(search *s, clv_sched_split *split, clv_err *err) {
  uint64_t micro = s->c->micro_batch_counts[split->micros_choice];
  s->n_instructions_simulated += micro * s->c->shape.n_stages * s->c->shape.n_stages *
                                 (s->c->computes_window ? WINDOW_TRIES : 1);
  s->statistics.n_simulated++;
  return simulate_split(s->c, &s->costs, split, err);
}

/* ---- all ways to cut ------------------------------------------------------------------------- */

static bool is_allowed_place(const search *s, uint32_t cut, uint32_t place) {
  return place >= s->min_cut_layer[cut] && place <= s->max_cut_layer[cut];
}

/* Counts the ways to cut the chain at the given places. The number may exceed 2^64, so it is a
 * double. */
static clv_code count_ways(const search *s, const uint32_t *places, uint32_t n, double *ret,
                           clv_err *err) {
  CLV_AUTO(clv_freep)
  /* [place] number of ways to place the cuts so far, the last of them at this place */
  double *ways = NULL;
  CLV_TRY(clv_alloc((size_t)n + 1, sizeof *ways, &ways, err));
  *ret = 1;
  for (uint32_t cut = 0; cut < s->n; cut++) {
    double n_before = cut == 0;
    *ret = 0;
    for (uint32_t i = 0; i < n; i++) {
      double previous_ways = ways[i];
      ways[i] = is_allowed_place(s, cut, places[i]) ? n_before : 0;
      *ret += ways[i];
      n_before += cut ? previous_ways : 0;
    }
  }
  return CLV_OK;
}

static void enumerate_cuts(search *s, uint32_t cut, uint32_t from, uint16_t *partial_cuts) {
  if (cut == s->n) {
    if (s->n_ways < s->max_ways)
      memcpy(s->cut_layers + (size_t)s->n_ways++ * s->n, partial_cuts, s->n * sizeof *partial_cuts);
    return;
  }
  for (uint32_t i = from; i + (s->n - cut) <= s->n_cut_places; i++) {
    if (!is_allowed_place(s, cut, s->cut_places[i])) continue;
    partial_cuts[cut] = (uint16_t)s->cut_places[i];
    enumerate_cuts(s, cut + 1, i + 1, partial_cuts);
  }
}

static void get_last_layers(const search *s, uint32_t cuts, uint32_t *last) {
  for (uint32_t i = 0; i < s->n; i++) last[i] = s->cut_layers[(size_t)cuts * s->n + i];
  last[s->n] = s->c->n_layers - 1;
}

static double bound_of_way(search *s, const uint32_t *last, uint32_t choice) {
  clv_sched_shape shape = shape_of_cuts(s->c, last, s->c->micro_batch_counts[choice]);
  s->c->compute_costs(s->c->user, last, choice, &s->costs);
  return lower_bound(&shape, &s->costs, s->c->kind == CLV_SCHED_ZB_H1);
}

static int compare_lower_bounds(const void *a, const void *b) {
  const way *x = a, *y = b;
  if (x->lower_bound_seconds != y->lower_bound_seconds)
    return x->lower_bound_seconds < y->lower_bound_seconds ? -1 : 1;
  if (x->cuts_index != y->cuts_index) return x->cuts_index < y->cuts_index ? -1 : 1;
  return x->micros_choice < y->micros_choice ? -1 : x->micros_choice > y->micros_choice;
}

static clv_code simulate_all_ways(search *s, clv_err *err) {
  size_t n = 0, all = (size_t)s->n_ways * s->c->n_micro_batch_counts;
  clv_sched_split split;
  CLV_TRY(clv_alloc(all, sizeof *s->ways, &s->ways, err));
  for (uint32_t i = 0; i < s->n_ways; i++)
    for (uint32_t k = 0; k < s->c->n_micro_batch_counts; k++, n++) {
      get_last_layers(s, i, split.last_layers);
      s->ways[n] = (way){.lower_bound_seconds = bound_of_way(s, split.last_layers, k),
                         .cuts_index = i,
                         .micros_choice = k};
    }
  qsort(s->ways, all, sizeof *s->ways, compare_lower_bounds);
  for (n = 0; n < all && s->ways[n].lower_bound_seconds < seconds_to_beat(s); n++) {
    if (s->n_instructions_simulated > MAX_INSTRUCTIONS) {
      s->statistics.is_optimal = false;
      return CLV_OK;
    }
    get_last_layers(s, s->ways[n].cuts_index, split.last_layers);
    split.micros_choice = s->ways[n].micros_choice;
    CLV_TRY(count_and_simulate(s, &split, err));
    add_best_split(s, &split);
  }
  return CLV_OK;
}

/* ---- subsets of the places ------------------------------------------------------------------- */

/* Chooses about n of the possible places, evenly spaced, and in addition the ends of each cut's
 * range. */
static uint32_t choose_spaced_places(const search *s, uint32_t n, uint32_t *ret) {
  const clv_sched_cuts *c = s->c;
  uint32_t count = 0;
  for (uint32_t i = 0; i < c->n_cut_places; i++) {
    bool is_evenly_spaced =
             (uint64_t)(i + 1) * n / c->n_cut_places > (uint64_t)i * n / c->n_cut_places,
         is_range_end = false;
    for (uint32_t cut = 0; cut < s->n; cut++)
      is_range_end |=
          s->min_cut_layer[cut] == c->cut_places[i] || s->max_cut_layer[cut] == c->cut_places[i];
    if (is_evenly_spaced || is_range_end) ret[count++] = c->cut_places[i];
  }
  return count;
}

/* Narrows the range of each cut, so that the cuts before and behind it have room. */
static void narrow_cut_ranges(search *s) {
  for (uint32_t i = 0; i < s->n; i++)
    s->min_cut_layer[i] = CLV_MAX(s->c->min_cut_layers[i], i ? s->min_cut_layer[i - 1] + 1 : 0);
  for (uint32_t i = s->n; i-- > 0;) {
    s->max_cut_layer[i] = s->c->max_cut_layers[i];
    if (i + 1 < s->n)
      s->max_cut_layer[i] = CLV_MIN(s->max_cut_layer[i], CLV_MAX(s->max_cut_layer[i + 1], 1u) - 1);
  }
}

static clv_code choose_places(search *s, clv_err *err) {
  const clv_sched_cuts *c = s->c;
  double ways, way_limit = (double)MAX_BOUNDS / c->n_micro_batch_counts;
  CLV_TRY(clv_alloc((size_t)c->n_cut_places + 1, sizeof *s->cut_places, &s->cut_places, err));
  CLV_TRY(count_ways(s, c->cut_places, c->n_cut_places, &ways, err));
  if (ways < 1)
    return clv_fail(err, CLV_NOT_FOUND, "%u layers with %u places to cut make no %u stages",
                    c->n_layers, c->n_cut_places, s->n + 1);
  s->statistics.n_possible = (uint64_t)fmin(ways * c->n_micro_batch_counts, 1e18);
  s->statistics.is_optimal = ways <= way_limit;
  for (uint32_t n = c->n_cut_places;; n = n * 9 / 10) {
    s->n_cut_places = choose_spaced_places(s, n, s->cut_places);
    CLV_TRY(count_ways(s, s->cut_places, s->n_cut_places, &ways, err));
    if (ways <= way_limit || n <= s->n) break;
  }
  s->max_ways = (uint32_t)fmin(ways, way_limit);
  return clv_alloc((size_t)s->max_ways * s->n + 1, sizeof *s->cut_layers, &s->cut_layers, err);
}

/* Simulates the split `from` with cut `cut` at `place` (cut n: no change) and another number of
 * micro-batches. Stores it in *best if it is faster than *best. */
static clv_code simulate_change(search *s, const clv_sched_split *from, uint32_t cut,
                                uint32_t place, uint32_t choice, clv_sched_split *best,
                                clv_err *err) {
  clv_sched_split other = *from;
  if (cut < s->n) other.last_layers[cut] = place;
  other.micros_choice = choice;
  if (s->n_instructions_simulated > 2 * (uint64_t)MAX_INSTRUCTIONS ||
      bound_of_way(s, other.last_layers, choice) >= best->seconds)
    return CLV_OK;
  CLV_TRY(count_and_simulate(s, &other, err));
  if (other.seconds < best->seconds) *best = other;
  return CLV_OK;
}

static clv_code move_cut(search *s, uint32_t cut, clv_sched_split *at, clv_err *err) {
  const clv_sched_cuts *c = s->c;
  const clv_sched_split from = *at;
  for (uint32_t i = 0; i < c->n_cut_places; i++) {
    uint32_t place = c->cut_places[i];
    bool is_behind_previous = cut == 0 || place > from.last_layers[cut - 1];
    if (is_behind_previous && place < from.last_layers[cut + 1] && is_allowed_place(s, cut, place))
      CLV_TRY(simulate_change(s, &from, cut, place, from.micros_choice, at, err));
  }
  return CLV_OK;
}

/* Improves each of the best splits: moves one cut at a time, or changes the number of
 * micro-batches, as long as the time falls. */
static clv_code improve_best_splits(search *s, clv_err *err) {
  for (uint32_t i = 0, n = s->n_best_splits; i < n; i++) {
    clv_sched_split at = s->best_splits[i];
    double seconds_before;
    do {
      seconds_before = at.seconds;
      for (uint32_t cut = 0; cut < s->n; cut++) CLV_TRY(move_cut(s, cut, &at, err));
      const clv_sched_split from = at;
      for (uint32_t k = 0; k < s->c->n_micro_batch_counts; k++)
        CLV_TRY(simulate_change(s, &from, s->n, 0, k, &at, err));
    } while (at.seconds < seconds_before);
    add_best_split(s, &at);
  }
  return CLV_OK;
}

clv_code clv_sched_search_cuts(const clv_sched_cuts *c, uint32_t max_splits, clv_sched_split *ret,
                               uint32_t *ret_n, clv_sched_search *ret_search, clv_err *err) {
  CLV_AUTO(search_clear) search s = {.c = c, .best_splits = ret, .max_best_splits = max_splits};
  uint16_t partial_cuts[CLV_SCHED_STAGES];
  if (c->shape.n_stages < 2 || !c->n_layers || c->n_layers > UINT16_MAX + 1 ||
      !c->n_micro_batch_counts)
    return clv_fail(err, CLV_INVALID,
                    "cannot cut %u layers into %u stages with %u choices of micro-batches: at "
                    "least 2 stages, 1 layer and 1 choice are needed, and at most %d layers",
                    c->n_layers, c->shape.n_stages, c->n_micro_batch_counts, UINT16_MAX + 1);
  s.n = c->shape.n_stages - 2;
  narrow_cut_ranges(&s);
  CLV_TRY(choose_places(&s, err));
  enumerate_cuts(&s, 0, 0, partial_cuts);
  CLV_TRY(simulate_all_ways(&s, err));
  if (!s.statistics.is_optimal) CLV_TRY(improve_best_splits(&s, err));
  *ret_n = s.n_best_splits;
  *ret_search = s.statistics;
  return CLV_OK;
}
