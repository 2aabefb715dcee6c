/* SPDX-License-Identifier: Apache-2.0
 *
 * Where to cut: against all ways to cut, judged one by one, and against ways known beforehand.
 */
#include "tests/unit/sched/sched_test.h"

enum { MOST_LAYERS = 64, FEW = 3 };

/* Layers with a time each; a micro-batch takes its share of it plus a fixed time. */
typedef struct chain {
  uint32_t n_layers, n_stages; /* including the loss */
  double forward[MOST_LAYERS], input[MOST_LAYERS], weight[MOST_LAYERS], bytes[MOST_LAYERS];
  double speed[CLV_SCHED_STAGES], latency, rate, fixed;
  bool input_first;
  uint32_t places[MOST_LAYERS], least[CLV_SCHED_STAGES], most[CLV_SCHED_STAGES];
  uint32_t micros[8];
} chain;

static void costs_of(const void *user, const uint32_t *last, uint32_t choice,
                     clv_sched_costs *ret) {
  const chain *c = user;
  double m = c->micros[choice];
  *ret = (clv_sched_costs){.sends_input_gradient_first = c->input_first};
  for (uint32_t s = 0, first = 0; s + 1 < c->n_stages; first = last[s++] + 1) {
    for (uint32_t i = first; i <= last[s]; i++) {
      ret->forward_seconds[s] += (c->forward[i] / m + c->fixed) / c->speed[s];
      ret->input_grad_seconds[s] += (c->input[i] / m + c->fixed) / c->speed[s];
      ret->weight_grad_seconds[s] += (c->weight[i] / m + c->fixed) / c->speed[s];
    }
    ret->latency_seconds[s] = c->latency;
    ret->serialise_forward_seconds[s] = ret->serialise_backward_seconds[s] =
        c->bytes[last[s]] / m / c->rate;
  }
}

/* Returns the problem: each boundary is a possible cut, and all layers take the same time. */
static clv_sched_cuts problem_of(chain *c, uint32_t layers, uint32_t stages, uint32_t ranks) {
  clv_sched_cuts p = {.kind = CLV_SCHED_1F1B,
                      .computes_window = true,
                      .n_layers = layers,
                      .n_cut_places = layers - 1,
                      .cut_places = c->places,
                      .min_cut_layers = c->least,
                      .max_cut_layers = c->most,
                      .micro_batch_counts = c->micros,
                      .n_micro_batch_counts = 1,
                      .compute_costs = costs_of,
                      .user = c};
  *c = (chain){.n_layers = layers, .n_stages = stages + 1, .rate = 1, .input_first = true};
  for (uint32_t i = 0; i < layers; i++) c->forward[i] = c->input[i] = c->weight[i] = 1;
  for (uint32_t i = 0; i < layers; i++) c->places[i] = i;
  for (uint32_t s = 0; s < stages; s++) c->speed[s] = 1;
  for (uint32_t s = 0; s < stages; s++) c->most[s] = layers - 1;
  c->micros[0] = 4;
  p.shape = shape_of(stages, ranks, 1);
  p.shape.n_stages++;
  p.shape.stage_rank[stages] = 0; /* the loss is on the rank of the first stage */
  return p;
}

static uint32_t search_for(const clv_sched_cuts *p, clv_sched_split ret[FEW],
                           clv_sched_search *report) {
  uint32_t n = 0;
  ok(clv_sched_search_cuts(p, FEW, ret, &n, report, err));
  return n;
}

/* ---- against all ways ------------------------------------------------------------------------ */

typedef struct brute {
  const clv_sched_cuts *p;
  double best[FEW]; /* best times of different cuts */
} brute;

static void keep(brute *b, double seconds) {
  for (int i = 0; i < FEW; i++)
    if (seconds < b->best[i]) {
      double worse = b->best[i];
      b->best[i] = seconds;
      seconds = worse;
    }
}

static void try_from(brute *b, clv_sched_split *split, uint32_t cut, uint32_t from) {
  const clv_sched_cuts *p = b->p;
  if (cut == p->shape.n_stages - 2) {
    double best = INFINITY;
    split->last_layers[cut] = p->n_layers - 1;
    for (split->micros_choice = 0; split->micros_choice < p->n_micro_batch_counts;
         split->micros_choice++) {
      ok(clv_sched_simulate_split(p, split, err));
      best = fmin(best, split->seconds);
    }
    keep(b, best);
    return;
  }
  for (uint32_t i = 0; i < p->n_cut_places; i++) {
    uint32_t at = p->cut_places[i];
    if (at < from || at < p->min_cut_layers[cut] || at > p->max_cut_layers[cut]) continue;
    split->last_layers[cut] = at;
    try_from(b, split, cut + 1, at + 1);
  }
}

static void randomise(chain *c, clv_sched_cuts *p, uint64_t *state) {
  static const clv_sched_kind kinds[] = {CLV_SCHED_1F1B, CLV_SCHED_ZB_H1, CLV_SCHED_GPIPE,
                                         CLV_SCHED_NAIVE};
  p->kind = kinds[roll(state, 4)];
  p->computes_window = p->kind == CLV_SCHED_1F1B;
  p->n_micro_batch_counts = 1 + roll(state, 3);
  for (uint32_t i = 0; i < p->n_micro_batch_counts; i++) c->micros[i] = 1u << (2 * i);
  for (uint32_t i = 0; i < p->n_layers; i++) {
    c->forward[i] = uniform(state, 0, 0.1);
    c->input[i] = uniform(state, 0, 0.1);
    c->weight[i] = uniform(state, 0, 0.1);
    c->bytes[i] = uniform(state, 0, 1000);
  }
  p->first_trained_layer = roll(state, 3) ? 0 : roll(state, p->n_layers);
  c->speed[roll(state, p->shape.n_stages - 1)] = uniform(state, 1, 8);
  c->latency = uniform(state, 0, 0.1);
  c->rate = uniform(state, 1000, 100000);
  c->fixed = roll(state, 2) ? 0.001 : 0;
  c->input_first = roll(state, 2);
  if (roll(state, 2)) c->least[0] = 1;
  if (roll(state, 3) == 0) p->n_cut_places--; /* leaves out the last possible cut */
}

static void assert_takes(const clv_sched_split *found, double seconds, int round,
                         clv_sched_kind kind) {
  if (fabs(found->seconds - seconds) > 1e-12)
    fail_msg("round %d, %s: %.6f, not %.6f", round, clv_sched_name(kind), found->seconds, seconds);
}

static void test_search_finds_the_exhaustive_optimum(void **state) {
  uint64_t seed = 11;
  (void)state;
  for (int round = 0; round < 120; round++) {
    chain c;
    uint32_t stages = 2 + roll(&seed, 3), ranks = 1 + roll(&seed, stages), n;
    clv_sched_cuts p = problem_of(&c, stages + 3 + roll(&seed, 4), stages, ranks);
    clv_sched_split split, found[FEW];
    clv_sched_search report;
    brute b = {.p = &p, .best = {INFINITY, INFINITY, INFINITY}};
    randomise(&c, &p, &seed);
    try_from(&b, &split, 0, 0);
    n = search_for(&p, found, &report);
    assert_true(report.is_optimal && report.n_simulated <= report.n_possible);
    for (uint32_t i = 0; i < n; i++) assert_takes(&found[i], b.best[i], round, p.kind);
    assert_true(n == FEW || isinf(b.best[n]));
  }
}

/* ---- known beforehand ------------------------------------------------------------------------ */

static void expect_cuts(const clv_sched_cuts *p, const uint32_t *want, uint32_t micros) {
  clv_sched_split found[FEW];
  clv_sched_search report;
  assert_true(search_for(p, found, &report) > 0);
  for (uint32_t i = 0; i + 2 < p->shape.n_stages; i++)
    assert_int_equal(found[0].last_layers[i], want[i]);
  assert_int_equal(found[0].n_micro_batches, micros);
}

static void test_known_optimal_cuts_are_found(void **state) {
  chain c;
  clv_sched_cuts p = problem_of(&c, 12, 3, 3);
  (void)state;
  /* With many micro-batches the busiest node determines the time. */
  c.micros[0] = 64;
  expect_cuts(&p, (const uint32_t[]){3, 7}, 64); /* equal layers: thirds */
  c.speed[1] = 4;
  expect_cuts(&p, (const uint32_t[]){1, 9}, 64); /* 2, 8 and 2 layers; each stage takes 2 */
  c.least[0] = 4, c.least[1] = c.most[1] = 10;
  expect_cuts(&p, (const uint32_t[]){4, 10}, 64); /* the first stage keeps five of them */
  p = problem_of(&c, 12, 3, 3);
  for (uint32_t i = 0; i < 12; i++) c.bytes[i] = i == 2 || i == 8 ? 0 : 1000;
  expect_cuts(&p, (const uint32_t[]){2, 8}, 4); /* where few values cross */
}

/* More micro-batches help until their fixed time exceeds the bubble that they save. */
static void test_optimal_micro_batch_count_is_found(void **state) {
  (void)state;
  chain c;
  clv_sched_cuts p = problem_of(&c, 12, 2, 2);
  p.n_micro_batch_counts = 4;
  for (uint32_t i = 0; i < 4; i++) c.micros[i] = 1u << (2 * i);
  expect_cuts(&p, (const uint32_t[]){5}, 64);
  c.fixed = 0.05;
  expect_cuts(&p, (const uint32_t[]){5}, 4);
}

/* 7 cuts of 63 boundaries have 553 million combinations, so only some are tried and cuts are
 * moved. */
static void test_huge_search_space_gives_a_local_optimum(void **state) {
  chain c;
  clv_sched_cuts p = problem_of(&c, 64, 8, 8);
  clv_sched_split found[FEW];
  clv_sched_search report;
  (void)state;
  c.forward[0] = 3, c.forward[40] = 2.5;
  uint32_t n = search_for(&p, found, &report);
  assert_true(n > 0 && !report.is_optimal && report.n_possible > 500000000);
  clv_sched_split even = {.micros_choice = 0};
  for (uint32_t i = 0; i < 8; i++) even.last_layers[i] = 8 * i + 7;
  ok(clv_sched_simulate_split(&p, &even, err));
  assert_true(found[0].seconds <= even.seconds);
  /* No single cut can be moved to a better boundary. */
  for (uint32_t cut = 0; cut < 7; cut++)
    for (int by = -1; by <= 1; by += 2) {
      clv_sched_split other = found[0];
      other.last_layers[cut] += (uint32_t)by;
      if (other.last_layers[cut] == other.last_layers[cut + 1]) continue;
      if (cut ? other.last_layers[cut] == other.last_layers[cut - 1] : other.last_layers[cut] > 63)
        continue;
      ok(clv_sched_simulate_split(&p, &other, err));
      assert_true(other.seconds >= found[0].seconds);
    }
}

/* 57 cuts of 59 boundaries have few combinations, which are all tried. */
static void test_nearly_full_cuts_are_enumerated(void **state) {
  chain c;
  clv_sched_cuts p = problem_of(&c, 60, 58, 58);
  clv_sched_split found[FEW];
  clv_sched_search report;
  (void)state;
  c.forward[10] = c.forward[20] = 0;
  assert_int_equal(search_for(&p, found, &report), FEW);
  assert_int_equal(report.n_possible, 59 * 58 / 2);
  c.most[56] = 57;
  assert_int_equal(search_for(&p, found, &report), FEW);
  assert_int_equal(report.n_possible, 58);
}

static void test_impossible_cuts_are_not_found(void **state) {
  chain c;
  clv_sched_cuts p = problem_of(&c, 4, 3, 3);
  clv_sched_split found[FEW];
  clv_sched_search report;
  uint32_t n;
  clv_err err = {0};
  (void)state;
  p.n_cut_places = 1;
  assert_int_equal(clv_sched_search_cuts(&p, FEW, found, &n, &report, &err), CLV_NOT_FOUND);
  p = problem_of(&c, 4, 3, 3);
  c.least[0] = 2, c.most[1] = 2;
  assert_int_equal(clv_sched_search_cuts(&p, FEW, found, &n, &report, &err), CLV_NOT_FOUND);
  p.n_micro_batch_counts = 0;
  assert_int_equal(clv_sched_search_cuts(&p, FEW, found, &n, &report, &err), CLV_INVALID);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_search_finds_the_exhaustive_optimum),
                                     cmocka_unit_test(test_known_optimal_cuts_are_found),
                                     cmocka_unit_test(test_optimal_micro_batch_count_is_found),
                                     cmocka_unit_test(test_huge_search_space_gives_a_local_optimum),
                                     cmocka_unit_test(test_nearly_full_cuts_are_enumerated),
                                     cmocka_unit_test(test_impossible_cuts_are_not_found)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
