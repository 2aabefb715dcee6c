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

/* Maximum number of bounds and of simulated instructions: each takes a second or two. */
enum { BOUNDS = 300000, WORK = 24000000, WINDOW_TRIES = 12 };

typedef struct way {
  double bound;
  uint32_t cuts, choice; /* index into the list of cuts */
} way;

typedef struct search {
  const clv_sched_cuts *c;
  uint32_t n; /* number of cuts of a way */
  uint32_t *places, n_places;
  /* Range of layers for each cut, narrowed by the ranges of the others. */
  uint32_t least[CLV_SCHED_STAGES], most[CLV_SCHED_STAGES];
  uint16_t *cuts; /* [n_cuts][n] layers */
  uint32_t n_cuts, max_cuts;
  way *ways;
  clv_sched_split *best; /* [few], ascending */
  uint32_t few, n_best;
  uint64_t work;
  clv_sched_costs costs;
  clv_sched_search report;
} search;

static void search_done(search *s) {
  free(s->places);
  free(s->cuts);
  free(s->ways);
}

/* ---- one way to cut -------------------------------------------------------------------------- */

static uint32_t first_backward(const clv_sched_cuts *c, const uint32_t *last) {
  uint32_t s = 0, n = c->shape.n_stages - 1;
  if (c->first_learning >= c->n_layers) return n;
  while (s < n && last[s] < c->first_learning) s++;
  return s;
}

static double pass(const clv_sched_shape *shape, const clv_sched_costs *c, uint32_t edge,
                   bool back) {
  if (!sched_crosses(shape, edge)) return 0;
  return c->latency[edge] + (back ? c->serialise_b : c->serialise_f)[edge];
}

/* Lower bounds for each stage, in seconds. */
typedef struct stage_bounds {
  double head[CLV_SCHED_STAGES]; /* earliest arrival of the first micro-batch */
  double rest[CLV_SCHED_STAGES]; /* from a forward's end to the end of that micro-batch */
  double tail[CLV_SCHED_STAGES]; /* time that must follow the last backward */
} stage_bounds;

/* Computes the bounds. apart: a stage sends the input gradient before it computes weight gradients.
 */
static void find_stage_bounds(const clv_sched_shape *shape, const clv_sched_costs *c, bool apart,
                              stage_bounds *w) {
  uint32_t n = shape->n_stages;
  double back = 0; /* seconds from a gradient's arrival to the end of the step */
  for (uint32_t s = 0; s < n; s++) {
    double down = s ? pass(shape, c, s - 1, true) + back : 0;
    bool more = s && sched_learns(shape, s - 1);
    w->head[s] = s ? w->head[s - 1] + c->forward[s - 1] + pass(shape, c, s - 1, false) : 0;
    w->tail[s] = more ? fmax(down - (apart ? c->weight[s] : 0), 0) : 0;
    if (sched_learns(shape, s)) back = c->input[s] + c->weight[s] + w->tail[s];
  }
  w->rest[n - 1] = sched_learns(shape, n - 1) ? back : 0;
  for (uint32_t s = n - 1; s-- > 0;)
    w->rest[s] = pass(shape, c, s, false) + c->forward[s + 1] + w->rest[s + 1];
}

static double work_of(const clv_sched_shape *shape, const clv_sched_costs *c, uint32_t s) {
  return c->forward[s] + (sched_learns(shape, s) ? c->input[s] + c->weight[s] : 0);
}

/* Returns a lower bound for any order of a synchronous step: each rank, and each link in each
 * direction, does all its work after the first micro-batch has arrived and before the last one's
 * return to the first stage. */
static double bound_of(const clv_sched_shape *shape, const clv_sched_costs *c, bool split) {
  double busy[CLV_SCHED_RANKS] = {0}, before[CLV_SCHED_RANKS], after[CLV_SCHED_RANKS];
  stage_bounds w;
  find_stage_bounds(shape, c, split || c->input_first, &w);
  double m = shape->n_micro, bound = c->forward[0] + w.rest[0];
  for (uint32_t r = 0; r < shape->n_ranks; r++) before[r] = after[r] = INFINITY;
  for (uint32_t s = 0; s < shape->n_stages; s++) {
    uint32_t r = shape->rank[s];
    busy[r] += work_of(shape, c, s);
    before[r] = fmin(before[r], w.head[s]);
    after[r] = fmin(after[r], split ? 0 : w.tail[s]);
    if (!sched_crosses(shape, s)) continue;
    double down = m - 1, f = down * c->serialise_f[s], b = down * c->serialise_b[s];
    bound = fmax(bound, w.head[s] + c->forward[s] + f + w.rest[s]);
    if (sched_learns(shape, s)) bound = fmax(bound, w.head[s] + c->forward[s] + b + w.rest[s]);
  }
  for (uint32_t r = 0; r < shape->n_ranks; r++)
    if (busy[r] > 0) bound = fmax(bound, before[r] + m * busy[r] + after[r]);
  return bound;
}

static clv_sched_shape shape_for(const clv_sched_cuts *c, const uint32_t *last, uint32_t n_micro) {
  clv_sched_shape shape = c->shape;
  shape.n_micro = n_micro;
  shape.n_accumulate = 0;
  shape.first_backward = first_backward(c, last);
  return shape;
}

static clv_code evaluate(const clv_sched_cuts *c, clv_sched_costs *costs, clv_sched_split *split,
                         clv_err *err) {
  CLV_AUTO(clv_sched_freep) clv_sched *s = NULL;
  clv_sched_run run;
  split->n_micro = c->micros[split->choice];
  clv_sched_options o = {.kind = c->kind,
                         .shape = shape_for(c, split->last, split->n_micro),
                         .window = c->window,
                         .costs = costs};
  c->costs(c->user, split->last, split->choice, costs);
  if (c->window_fits) CLV_TRY(clv_sched_window(&o.shape, costs, &o.window, err));
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
  return evaluate(c, costs, split, err);
}

/* ---- the best ones --------------------------------------------------------------------------- */

static bool same_cuts(const search *s, const clv_sched_split *a, const clv_sched_split *b) {
  return memcmp(a->last, b->last, s->n * sizeof *a->last) == 0;
}

static void put(search *s, uint32_t at, const clv_sched_split *split) {
  for (; at > 0 && s->best[at - 1].seconds > split->seconds; at--) s->best[at] = s->best[at - 1];
  s->best[at] = *split;
}

/* Adds a split to the best ones, unless the same cuts are there with a shorter time. */
static void add_best(search *s, const clv_sched_split *split) {
  for (uint32_t i = 0; i < s->n_best; i++) {
    if (!same_cuts(s, &s->best[i], split)) continue;
    if (split->seconds < s->best[i].seconds) put(s, i, split);
    return;
  }
  if (s->n_best < s->few)
    put(s, s->n_best++, split);
  else if (split->seconds < s->best[s->few - 1].seconds)
    put(s, s->few - 1, split);
}

static double worst(const search *s) {
  return s->n_best < s->few ? INFINITY : s->best[s->few - 1].seconds;
}

static clv_code simulate(search *s, clv_sched_split *split, clv_err *err) {
  uint64_t micro = s->c->micros[split->choice];
  s->work +=
      micro * s->c->shape.n_stages * s->c->shape.n_stages * (s->c->window_fits ? WINDOW_TRIES : 1);
  s->report.simulated++;
  return evaluate(s->c, &s->costs, split, err);
}

/* ---- all ways to cut ------------------------------------------------------------------------- */

static bool may_be(const search *s, uint32_t cut, uint32_t place) {
  return place >= s->least[cut] && place <= s->most[cut];
}

/* Counts the ways to cut at these places. The number may exceed 2^64, so it is a double. */
static clv_code count_ways(const search *s, const uint32_t *places, uint32_t n, double *ret,
                           clv_err *err) {
  CLV_AUTO(clv_freep)
  double *ways = NULL; /* [place] ways to put the cuts so far with the last one at this place */
  CLV_TRY(clv_alloc((size_t)n + 1, sizeof *ways, &ways, err));
  *ret = 1;
  for (uint32_t cut = 0; cut < s->n; cut++) {
    double before = cut == 0;
    *ret = 0;
    for (uint32_t i = 0; i < n; i++) {
      double old = ways[i];
      ways[i] = may_be(s, cut, places[i]) ? before : 0;
      *ret += ways[i];
      before += cut ? old : 0;
    }
  }
  return CLV_OK;
}

static void list_cuts(search *s, uint32_t cut, uint32_t from, uint16_t *made) {
  if (cut == s->n) {
    if (s->n_cuts < s->max_cuts)
      memcpy(s->cuts + (size_t)s->n_cuts++ * s->n, made, s->n * sizeof *made);
    return;
  }
  for (uint32_t i = from; i + (s->n - cut) <= s->n_places; i++) {
    if (!may_be(s, cut, s->places[i])) continue;
    made[cut] = (uint16_t)s->places[i];
    list_cuts(s, cut + 1, i + 1, made);
  }
}

static void ends_of(const search *s, uint32_t cuts, uint32_t *last) {
  for (uint32_t i = 0; i < s->n; i++) last[i] = s->cuts[(size_t)cuts * s->n + i];
  last[s->n] = s->c->n_layers - 1;
}

static double bound_at(search *s, const uint32_t *last, uint32_t choice) {
  clv_sched_shape shape = shape_for(s->c, last, s->c->micros[choice]);
  s->c->costs(s->c->user, last, choice, &s->costs);
  return bound_of(&shape, &s->costs, s->c->kind == CLV_SCHED_ZB_H1);
}

static int by_bound(const void *a, const void *b) {
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
      ends_of(s, i, split.last);
      s->ways[n] = (way){.bound = bound_at(s, split.last, k), .cuts = i, .choice = k};
    }
  qsort(s->ways, all, sizeof *s->ways, by_bound);
  for (n = 0; n < all && s->ways[n].bound < worst(s); n++) {
    if (s->work > WORK) {
      s->report.complete = false;
      return CLV_OK;
    }
    ends_of(s, s->ways[n].cuts, split.last);
    split.choice = s->ways[n].choice;
    CLV_TRY(simulate(s, &split, err));
    add_best(s, &split);
  }
  return CLV_OK;
}

/* ---- subsets of the places ------------------------------------------------------------------- */

/* Takes about n of the places, evenly spaced, and the limits of each cut. */
static uint32_t thin(const search *s, uint32_t n, uint32_t *ret) {
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

/* Narrows the range of each cut so that it leaves room for the cuts before and behind it. */
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
  s->report.possible = (uint64_t)fmin(ways * c->n_micros, 1e18);
  s->report.complete = ways <= most;
  for (uint32_t n = c->n_places;; n = n * 9 / 10) {
    s->n_places = thin(s, n, s->places);
    CLV_TRY(count_ways(s, s->places, s->n_places, &ways, err));
    if (ways <= most || n <= s->n) break;
  }
  s->max_cuts = (uint32_t)fmin(ways, most);
  return clv_alloc((size_t)s->max_cuts * s->n + 1, sizeof *s->cuts, &s->cuts, err);
}

/* Simulates `from` with another place of one cut, or another number of micro-batches; keeps it in
 * *best if it is faster. */
static clv_code try_change(search *s, const clv_sched_split *from, uint32_t cut, uint32_t place,
                           uint32_t choice, clv_sched_split *best, clv_err *err) {
  clv_sched_split other = *from;
  if (cut < s->n) other.last[cut] = place;
  other.choice = choice;
  if (s->work > 2 * (uint64_t)WORK || bound_at(s, other.last, choice) >= best->seconds)
    return CLV_OK;
  CLV_TRY(simulate(s, &other, err));
  if (other.seconds < best->seconds) *best = other;
  return CLV_OK;
}

static clv_code move_cut(search *s, uint32_t cut, clv_sched_split *at, clv_err *err) {
  const clv_sched_cuts *c = s->c;
  const clv_sched_split from = *at;
  for (uint32_t i = 0; i < c->n_places; i++) {
    uint32_t place = c->places[i];
    bool later = cut == 0 || place > from.last[cut - 1];
    if (later && place < from.last[cut + 1] && may_be(s, cut, place))
      CLV_TRY(try_change(s, &from, cut, place, from.choice, at, err));
  }
  return CLV_OK;
}

/* Moves the cuts of the best splits, one at a time, as long as the time falls. */
static clv_code refine(search *s, clv_err *err) {
  for (uint32_t i = 0, n = s->n_best; i < n; i++) {
    clv_sched_split at = s->best[i];
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
  CLV_AUTO(search_done) search s = {.c = c, .best = ret, .few = few};
  uint16_t made[CLV_SCHED_STAGES];
  if (c->shape.n_stages < 2 || !c->n_layers || c->n_layers > UINT16_MAX + 1 || !c->n_micros)
    return clv_fail(err, CLV_INVALID,
                    "cannot cut %u layers into %u stages with %u choices of micro-batches: at "
                    "least 2 stages, 1 layer and 1 choice are needed, and at most %d layers",
                    c->n_layers, c->shape.n_stages, c->n_micros, UINT16_MAX + 1);
  s.n = c->shape.n_stages - 2;
  set_limits(&s);
  CLV_TRY(choose_places(&s, err));
  list_cuts(&s, 0, 0, made);
  CLV_TRY(try_all(&s, err));
  if (!s.report.complete) CLV_TRY(refine(&s, err));
  *ret_n = s.n_best;
  *ret_search = s.report;
  return CLV_OK;
}
