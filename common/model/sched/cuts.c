/* SPDX-License-Identifier: Apache-2.0
 *
 * clv_sched_search_cuts: search for the best ways to cut a chain. It computes a lower bound of the
 * time of every way to cut, which costs a few additions, and simulates the ways in the order of
 * their bounds until the bounds are worse than the times found.
 */
#include "common/model/sched/sched_int.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Maximum number of bounds computed, and of instructions simulated. Each takes a second or two in
 * all. */
enum { BOUNDS = 300000, WORK = 24000000, WINDOW_TRIES = 12 };

typedef struct way {
  double bound;
  uint32_t cuts, choice; /* cuts: index into search.cuts; choice: index into micros */
} way;

typedef struct search {
  const clv_sched_cuts *c;
  uint32_t n; /* number of cuts in each way to cut */
  uint32_t *places, n_places;
  /* Range of layers for each cut, narrowed so that the other cuts have room. */
  uint32_t least[CLV_SCHED_STAGES], most[CLV_SCHED_STAGES];
  uint16_t *cuts; /* [n_cuts][n] layers behind which each way cuts */
  uint32_t n_cuts, max_cuts;
  way *ways;
  clv_sched_split *best_splits; /* [max_best] best ways found so far, fastest first */
  uint32_t max_best, n_best;
  uint64_t work_done;
  clv_sched_costs costs;
  clv_sched_search report;
} search;

static void search_done(search *s) {
  free(s->places);
  free(s->cuts);
  free(s->ways);
}

/* ---- one way to cut -------------------------------------------------------------------------- */

static uint32_t find_first_backward(const clv_sched_cuts *c, const uint32_t *last) {
  uint32_t s = 0, n = c->shape.n_stages - 1;
  if (c->first_learning >= c->n_layers) return n;
  while (s < n && last[s] < c->first_learning) s++;
  return s;
}

static double transfer_seconds(const clv_sched_shape *shape, const clv_sched_costs *c,
                               uint32_t edge, bool back) {
  if (!is_cross_rank_edge(shape, edge)) return 0;
  return c->latency[edge] + (back ? c->serialise_b : c->serialise_f)[edge];
}

/* Lower bounds of times for each stage, in seconds. */
typedef struct stage_bounds {
  double head[CLV_SCHED_STAGES]; /* time until the first micro-batch arrives at the stage */
  /* time from the end of the stage's forward to the end of that micro-batch's last gradient */
  double rest[CLV_SCHED_STAGES];
  /* time from the end of the stage's last backward to the end of the round */
  double tail[CLV_SCHED_STAGES];
} stage_bounds;

/* Computes the bounds of all stages. apart: a stage sends the input gradient before it computes
 * weight gradients. */
static void find_stage_bounds(const clv_sched_shape *shape, const clv_sched_costs *c, bool apart,
                              stage_bounds *w) {
  uint32_t n = shape->n_stages;
  double back = 0; /* time from the arrival of a gradient at stage s to the end of the step */
  for (uint32_t s = 0; s < n; s++) {
    double down = s ? transfer_seconds(shape, c, s - 1, true) + back : 0;
    bool more = s && is_trained_stage(shape, s - 1);
    w->head[s] =
        s ? w->head[s - 1] + c->forward[s - 1] + transfer_seconds(shape, c, s - 1, false) : 0;
    w->tail[s] = more ? fmax(down - (apart ? c->weight[s] : 0), 0) : 0;
    if (is_trained_stage(shape, s)) back = c->input[s] + c->weight[s] + w->tail[s];
  }
  w->rest[n - 1] = is_trained_stage(shape, n - 1) ? back : 0;
  for (uint32_t s = n - 1; s-- > 0;)
    w->rest[s] = transfer_seconds(shape, c, s, false) + c->forward[s + 1] + w->rest[s + 1];
}

static double stage_seconds(const clv_sched_shape *shape, const clv_sched_costs *c, uint32_t s) {
  return c->forward[s] + (is_trained_stage(shape, s) ? c->input[s] + c->weight[s] : 0);
}

/* Returns a lower bound of the time of a synchronous step, for any order of instructions. It
 * follows from this: each rank, and each link in each direction, does all its work between the
 * arrival of its first micro-batch and the return of its last one to the first stage. */
static double lower_bound(const clv_sched_shape *shape, const clv_sched_costs *c, bool split) {
  double busy[CLV_SCHED_RANKS] = {0}, before[CLV_SCHED_RANKS], after[CLV_SCHED_RANKS];
  stage_bounds w;
  find_stage_bounds(shape, c, split || c->input_first, &w);
  double m = shape->n_micro, bound = c->forward[0] + w.rest[0];
  for (uint32_t r = 0; r < shape->n_ranks; r++) before[r] = after[r] = INFINITY;
  for (uint32_t s = 0; s < shape->n_stages; s++) {
    uint32_t r = shape->rank[s];
    busy[r] += stage_seconds(shape, c, s);
    before[r] = fmin(before[r], w.head[s]);
    after[r] = fmin(after[r], split ? 0 : w.tail[s]);
    if (!is_cross_rank_edge(shape, s)) continue;
    double down = m - 1, f = down * c->serialise_f[s], b = down * c->serialise_b[s];
    bound = fmax(bound, w.head[s] + c->forward[s] + f + w.rest[s]);
    if (is_trained_stage(shape, s)) bound = fmax(bound, w.head[s] + c->forward[s] + b + w.rest[s]);
  }
  for (uint32_t r = 0; r < shape->n_ranks; r++)
    if (busy[r] > 0) bound = fmax(bound, before[r] + m * busy[r] + after[r]);
  return bound;
}

static clv_sched_shape make_shape(const clv_sched_cuts *c, const uint32_t *last, uint32_t n_micro) {
  clv_sched_shape shape = c->shape;
  shape.n_micro = n_micro;
  shape.n_accumulate = 0;
  shape.first_backward = find_first_backward(c, last);
  return shape;
}

static clv_code simulate_split(const clv_sched_cuts *c, clv_sched_costs *costs,
                               clv_sched_split *split, clv_err *err) {
  CLV_AUTO(clv_sched_freep) clv_sched *s = NULL;
  clv_sched_run run;
  split->n_micro = c->micros[split->choice];
  clv_sched_options o = {.kind = c->kind,
                         .shape = make_shape(c, split->last, split->n_micro),
                         .window = c->window,
                         .costs = costs};
  c->costs(c->user, split->last, split->choice, costs);
  if (c->computes_window) CLV_TRY(clv_sched_window(&o.shape, costs, &o.window, err));
  o.window = CLV_MIN(o.window, o.shape.n_micro);
  CLV_TRY(clv_sched_make(&o, &s, err));
  CLV_TRY(clv_sched_simulate(s, costs, false, &run, err));
  split->window = o.window;
  split->seconds = run.seconds;
  split->bubble = run.bubble;
  clv_sched_run_done(&run, s);
  return CLV_OK;
}

clv_code clv_sched_split_evaluate(const clv_sched_cuts *c, clv_sched_split *split, clv_err *err) {
  CLV_AUTO(clv_freep) clv_sched_costs *costs = NULL;
  CLV_TRY(clv_alloc(1, sizeof *costs, &costs, err));
  return simulate_split(c, costs, split, err);
}

/* ---- the best ones --------------------------------------------------------------------------- */

static bool has_same_cuts(const search *s, const clv_sched_split *a, const clv_sched_split *b) {
  return memcmp(a->last, b->last, s->n * sizeof *a->last) == 0;
}

static void insert_best(search *s, uint32_t at, const clv_sched_split *split) {
  for (; at > 0 && s->best_splits[at - 1].seconds > split->seconds; at--)
    s->best_splits[at] = s->best_splits[at - 1];
  s->best_splits[at] = *split;
}

/* Adds a split to the best splits, unless the same cuts are among them with a shorter time. */
static void add_best(search *s, const clv_sched_split *split) {
  for (uint32_t i = 0; i < s->n_best; i++) {
    if (!has_same_cuts(s, &s->best_splits[i], split)) continue;
    if (split->seconds < s->best_splits[i].seconds) insert_best(s, i, split);
    return;
  }
  if (s->n_best < s->max_best)
    insert_best(s, s->n_best++, split);
  else if (split->seconds < s->best_splits[s->max_best - 1].seconds)
    insert_best(s, s->max_best - 1, split);
}

/* Returns the time below which a split enters the best splits. */
static double seconds_to_beat(const search *s) {
  return s->n_best < s->max_best ? INFINITY : s->best_splits[s->max_best - 1].seconds;
}

static clv_code count_and_simulate(search *s, clv_sched_split *split, clv_err *err) {
  uint64_t micro = s->c->micros[split->choice];
  s->work_done += micro * s->c->shape.n_stages * s->c->shape.n_stages *
                  (s->c->computes_window ? WINDOW_TRIES : 1);
  s->report.n_simulated++;
  return simulate_split(s->c, &s->costs, split, err);
}

/* ---- all ways to cut ------------------------------------------------------------------------- */

static bool is_allowed_place(const search *s, uint32_t cut, uint32_t place) {
  return place >= s->least[cut] && place <= s->most[cut];
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
    double before = cut == 0;
    *ret = 0;
    for (uint32_t i = 0; i < n; i++) {
      double old = ways[i];
      ways[i] = is_allowed_place(s, cut, places[i]) ? before : 0;
      *ret += ways[i];
      before += cut ? old : 0;
    }
  }
  return CLV_OK;
}

static void enumerate_cuts(search *s, uint32_t cut, uint32_t from, uint16_t *partial_cuts) {
  if (cut == s->n) {
    if (s->n_cuts < s->max_cuts)
      memcpy(s->cuts + (size_t)s->n_cuts++ * s->n, partial_cuts, s->n * sizeof *partial_cuts);
    return;
  }
  for (uint32_t i = from; i + (s->n - cut) <= s->n_places; i++) {
    if (!is_allowed_place(s, cut, s->places[i])) continue;
    partial_cuts[cut] = (uint16_t)s->places[i];
    enumerate_cuts(s, cut + 1, i + 1, partial_cuts);
  }
}

static void get_last_layers(const search *s, uint32_t cuts, uint32_t *last) {
  for (uint32_t i = 0; i < s->n; i++) last[i] = s->cuts[(size_t)cuts * s->n + i];
  last[s->n] = s->c->n_layers - 1;
}

static double bound_of_cut(search *s, const uint32_t *last, uint32_t choice) {
  clv_sched_shape shape = make_shape(s->c, last, s->c->micros[choice]);
  s->c->costs(s->c->user, last, choice, &s->costs);
  return lower_bound(&shape, &s->costs, s->c->kind == CLV_SCHED_ZB_H1);
}

static int compare_bounds(const void *a, const void *b) {
  const way *x = a, *y = b;
  if (x->bound != y->bound) return x->bound < y->bound ? -1 : 1;
  if (x->cuts != y->cuts) return x->cuts < y->cuts ? -1 : 1;
  return x->choice < y->choice ? -1 : x->choice > y->choice;
}

static clv_code try_all(search *s, clv_err *err) {
  size_t n = 0, all = (size_t)s->n_cuts * s->c->n_micros;
  clv_sched_split split;
  CLV_TRY(clv_alloc(all, sizeof *s->ways, &s->ways, err));
  for (uint32_t i = 0; i < s->n_cuts; i++)
    for (uint32_t k = 0; k < s->c->n_micros; k++, n++) {
      get_last_layers(s, i, split.last);
      s->ways[n] = (way){.bound = bound_of_cut(s, split.last, k), .cuts = i, .choice = k};
    }
  qsort(s->ways, all, sizeof *s->ways, compare_bounds);
  for (n = 0; n < all && s->ways[n].bound < seconds_to_beat(s); n++) {
    if (s->work_done > WORK) {
      s->report.is_optimal = false;
      return CLV_OK;
    }
    get_last_layers(s, s->ways[n].cuts, split.last);
    split.choice = s->ways[n].choice;
    CLV_TRY(count_and_simulate(s, &split, err));
    add_best(s, &split);
  }
  return CLV_OK;
}

/* ---- subsets of the places ------------------------------------------------------------------- */

/* Chooses about n of the possible places, evenly spaced, and in addition the ends of each cut's
 * range. */
static uint32_t choose_spaced_places(const search *s, uint32_t n, uint32_t *ret) {
  const clv_sched_cuts *c = s->c;
  uint32_t count = 0;
  for (uint32_t i = 0; i < c->n_places; i++) {
    bool even = (uint64_t)(i + 1) * n / c->n_places > (uint64_t)i * n / c->n_places, fixed = false;
    for (uint32_t cut = 0; cut < s->n; cut++)
      fixed |= s->least[cut] == c->places[i] || s->most[cut] == c->places[i];
    if (even || fixed) ret[count++] = c->places[i];
  }
  return count;
}

/* Narrows the range of each cut, so that the cuts before and behind it have room. */
static void set_limits(search *s) {
  for (uint32_t i = 0; i < s->n; i++)
    s->least[i] = CLV_MAX(s->c->least[i], i ? s->least[i - 1] + 1 : 0);
  for (uint32_t i = s->n; i-- > 0;) {
    s->most[i] = s->c->most[i];
    if (i + 1 < s->n) s->most[i] = CLV_MIN(s->most[i], CLV_MAX(s->most[i + 1], 1u) - 1);
  }
}

static clv_code choose_places(search *s, clv_err *err) {
  const clv_sched_cuts *c = s->c;
  double ways, most = (double)BOUNDS / c->n_micros;
  CLV_TRY(clv_alloc((size_t)c->n_places + 1, sizeof *s->places, &s->places, err));
  CLV_TRY(count_ways(s, c->places, c->n_places, &ways, err));
  if (ways < 1)
    return clv_fail(err, CLV_NOT_FOUND, "%u layers with %u places to cut make no %u stages",
                    c->n_layers, c->n_places, s->n + 1);
  s->report.n_possible = (uint64_t)fmin(ways * c->n_micros, 1e18);
  s->report.is_optimal = ways <= most;
  for (uint32_t n = c->n_places;; n = n * 9 / 10) {
    s->n_places = choose_spaced_places(s, n, s->places);
    CLV_TRY(count_ways(s, s->places, s->n_places, &ways, err));
    if (ways <= most || n <= s->n) break;
  }
  s->max_cuts = (uint32_t)fmin(ways, most);
  return clv_alloc((size_t)s->max_cuts * s->n + 1, sizeof *s->cuts, &s->cuts, err);
}

/* Simulates the split `from` with cut `cut` at `place` (cut n: no change) and another number of
 * micro-batches. Stores it in *best if it is faster than *best. */
static clv_code try_change(search *s, const clv_sched_split *from, uint32_t cut, uint32_t place,
                           uint32_t choice, clv_sched_split *best, clv_err *err) {
  clv_sched_split other = *from;
  if (cut < s->n) other.last[cut] = place;
  other.choice = choice;
  if (s->work_done > 2 * (uint64_t)WORK || bound_of_cut(s, other.last, choice) >= best->seconds)
    return CLV_OK;
  CLV_TRY(count_and_simulate(s, &other, err));
  if (other.seconds < best->seconds) *best = other;
  return CLV_OK;
}

static clv_code move_cut(search *s, uint32_t cut, clv_sched_split *at, clv_err *err) {
  const clv_sched_cuts *c = s->c;
  const clv_sched_split from = *at;
  for (uint32_t i = 0; i < c->n_places; i++) {
    uint32_t place = c->places[i];
    bool later = cut == 0 || place > from.last[cut - 1];
    if (later && place < from.last[cut + 1] && is_allowed_place(s, cut, place))
      CLV_TRY(try_change(s, &from, cut, place, from.choice, at, err));
  }
  return CLV_OK;
}

/* Improves each of the best splits: moves one cut at a time, or changes the number of
 * micro-batches, as long as the time falls. */
static clv_code improve_best(search *s, clv_err *err) {
  for (uint32_t i = 0, n = s->n_best; i < n; i++) {
    clv_sched_split at = s->best_splits[i];
    double before;
    do {
      before = at.seconds;
      for (uint32_t cut = 0; cut < s->n; cut++) CLV_TRY(move_cut(s, cut, &at, err));
      const clv_sched_split from = at;
      for (uint32_t k = 0; k < s->c->n_micros; k++)
        CLV_TRY(try_change(s, &from, s->n, 0, k, &at, err));
    } while (at.seconds < before);
    add_best(s, &at);
  }
  return CLV_OK;
}

clv_code clv_sched_search_cuts(const clv_sched_cuts *c, uint32_t few, clv_sched_split *ret,
                               uint32_t *ret_n, clv_sched_search *ret_search, clv_err *err) {
  CLV_AUTO(search_done) search s = {.c = c, .best_splits = ret, .max_best = few};
  uint16_t partial_cuts[CLV_SCHED_STAGES];
  if (c->shape.n_stages < 2 || !c->n_layers || c->n_layers > UINT16_MAX + 1 || !c->n_micros)
    return clv_fail(err, CLV_INVALID,
                    "cannot cut %u layers into %u stages with %u choices of micro-batches: at "
                    "least 2 stages, 1 layer and 1 choice are needed, and at most %d layers",
                    c->n_layers, c->shape.n_stages, c->n_micros, UINT16_MAX + 1);
  s.n = c->shape.n_stages - 2;
  set_limits(&s);
  CLV_TRY(choose_places(&s, err));
  enumerate_cuts(&s, 0, 0, partial_cuts);
  CLV_TRY(try_all(&s, err));
  if (!s.report.is_optimal) CLV_TRY(improve_best(&s, err));
  *ret_n = s.n_best;
  *ret_search = s.report;
  return CLV_OK;
}
