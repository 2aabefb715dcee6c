/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests the search for cuts: against all ways to cut, simulated one by one, and against results
 * known beforehand.
 */
#include "tests/unit/sched/sched_test.h"

enum { MAX_LAYERS = 64, MAX_RESULTS = 3 };

/* Layers, each with its time for a batch. A micro-batch takes its share of that time plus a fixed
 * time. */
typedef struct chain {
  uint32_t n_layers, n_stages; /* n_stages: number of stages, of which the loss is the last */
  double forward_s[MAX_LAYERS], input_s[MAX_LAYERS], weight_s[MAX_LAYERS], output_bytes[MAX_LAYERS];
  double stage_speed[CLV_SCHED_STAGES], latency_s, bytes_per_s, fixed_s;
  bool sends_input_gradient_first;
  uint32_t possible_cuts[MAX_LAYERS], min_layers[CLV_SCHED_STAGES], max_layers[CLV_SCHED_STAGES];
  uint32_t micro_batch_choices[8];
} chain;

static void fill_costs(const void *user, const uint32_t *last, uint32_t choice,
                       clv_sched_costs *ret) {
  const chain *c = user;
  double m = c->micro_batch_choices[choice];
  *ret = (clv_sched_costs){.sends_input_gradient_first = c->sends_input_gradient_first};
  for (uint32_t s = 0, first = 0; s + 1 < c->n_stages; first = last[s++] + 1) {
    for (uint32_t i = first; i <= last[s]; i++) {
      ret->forward_seconds[s] += (c->forward_s[i] / m + c->fixed_s) / c->stage_speed[s];
      ret->input_grad_seconds[s] += (c->input_s[i] / m + c->fixed_s) / c->stage_speed[s];
      ret->weight_grad_seconds[s] += (c->weight_s[i] / m + c->fixed_s) / c->stage_speed[s];
    }
    ret->latency_seconds[s] = c->latency_s;
    ret->serialise_forward_seconds[s] = ret->serialise_backward_seconds[s] =
        c->output_bytes[last[s]] / m / c->bytes_per_s;
  }
}

/* Makes a chain of layers that take equal time, and returns the problem of cutting it. Each
 * boundary between layers is a possible cut. */
static clv_sched_cuts make_problem(chain *c, uint32_t layers, uint32_t stages, uint32_t ranks) {
  clv_sched_cuts p = {.kind = CLV_SCHED_1F1B,
                      .computes_window = true,
                      .n_layers = layers,
                      .n_cut_places = layers - 1,
                      .cut_places = c->possible_cuts,
                      .min_cut_layers = c->min_layers,
                      .max_cut_layers = c->max_layers,
                      .micro_batch_counts = c->micro_batch_choices,
                      .n_micro_batch_counts = 1,
                      .compute_costs = fill_costs,
                      .user = c};
  *c = (chain){.n_layers = layers,
               .n_stages = stages + 1,
               .bytes_per_s = 1,
               .sends_input_gradient_first = true};
  for (uint32_t i = 0; i < layers; i++) c->forward_s[i] = c->input_s[i] = c->weight_s[i] = 1;
  for (uint32_t i = 0; i < layers; i++) c->possible_cuts[i] = i;
  for (uint32_t s = 0; s < stages; s++) c->stage_speed[s] = 1;
  for (uint32_t s = 0; s < stages; s++) c->max_layers[s] = layers - 1;
  c->micro_batch_choices[0] = 4;
  p.shape = make_shape(stages, ranks, 1);
  p.shape.n_stages++;
  p.shape.stage_rank[stages] = 0; /* puts the loss on the rank of the first stage */
  return p;
}

static uint32_t search_cuts(const clv_sched_cuts *p, clv_sched_split ret[MAX_RESULTS],
                            clv_sched_search *report) {
  uint32_t n = 0;
  ok(clv_sched_search_cuts(p, MAX_RESULTS, ret, &n, report, err));
  return n;
}

/* ---- comparison with an exhaustive search ---------------------------------------------------- */

typedef struct exhaustive_search {
  const clv_sched_cuts *p;
  double best_seconds[MAX_RESULTS]; /* best times, each of other cuts; the shortest time first */
} exhaustive_search;

static void keep_best_seconds(exhaustive_search *search, double seconds) {
  for (int i = 0; i < MAX_RESULTS; i++)
    if (seconds < search->best_seconds[i]) {
      double replaced_seconds = search->best_seconds[i];
      search->best_seconds[i] = seconds;
      seconds = replaced_seconds;
    }
}

static void try_cuts_from(exhaustive_search *b, clv_sched_split *split, uint32_t cut,
                          uint32_t first_layer) {
  const clv_sched_cuts *p = b->p;
  if (cut == p->shape.n_stages - 2) {
    double best_of_choices = INFINITY;
    split->last_layers[cut] = p->n_layers - 1;
    for (split->micros_choice = 0; split->micros_choice < p->n_micro_batch_counts;
         split->micros_choice++) {
      ok(clv_sched_simulate_split(p, split, err));
      best_of_choices = fmin(best_of_choices, split->seconds);
    }
    keep_best_seconds(b, best_of_choices);
    return;
  }
  for (uint32_t i = 0; i < p->n_cut_places; i++) {
    uint32_t at = p->cut_places[i];
    if (at < first_layer || at < p->min_cut_layers[cut] || at > p->max_cut_layers[cut]) continue;
    split->last_layers[cut] = at;
    try_cuts_from(b, split, cut + 1, at + 1);
  }
}

static void draw_problem(chain *c, clv_sched_cuts *p, uint64_t *state) {
  static const clv_sched_kind kinds[] = {CLV_SCHED_1F1B, CLV_SCHED_ZB_H1, CLV_SCHED_GPIPE,
                                         CLV_SCHED_NAIVE};
  p->kind = kinds[draw_below(state, 4)];
  p->computes_window = p->kind == CLV_SCHED_1F1B;
  p->n_micro_batch_counts = 1 + draw_below(state, 3);
  for (uint32_t i = 0; i < p->n_micro_batch_counts; i++) c->micro_batch_choices[i] = 1u << (2 * i);
  for (uint32_t i = 0; i < p->n_layers; i++) {
    c->forward_s[i] = draw_uniform(state, 0, 0.1);
    c->input_s[i] = draw_uniform(state, 0, 0.1);
    c->weight_s[i] = draw_uniform(state, 0, 0.1);
    c->output_bytes[i] = draw_uniform(state, 0, 1000);
  }
  p->first_trained_layer = draw_below(state, 3) ? 0 : draw_below(state, p->n_layers);
  c->stage_speed[draw_below(state, p->shape.n_stages - 1)] = draw_uniform(state, 1, 8);
  c->latency_s = draw_uniform(state, 0, 0.1);
  c->bytes_per_s = draw_uniform(state, 1000, 100000);
  c->fixed_s = draw_below(state, 2) ? 0.001 : 0;
  c->sends_input_gradient_first = draw_below(state, 2);
  if (draw_below(state, 2)) c->min_layers[0] = 1;
  if (draw_below(state, 3) == 0) p->n_cut_places--; /* removes the last possible cut */
}

static void assert_seconds(const clv_sched_split *found, double seconds, int round,
                           clv_sched_kind kind) {
  if (fabs(found->seconds - seconds) > 1e-12)
    fail_msg("round %d, %s: %.6f, not %.6f", round, clv_sched_name(kind), found->seconds, seconds);
}

static void test_search_finds_the_exhaustive_optimum(void **state) {
  uint64_t seed = 11;
  (void)state;
  for (int round = 0; round < 120; round++) {
    chain c;
    uint32_t stages = 2 + draw_below(&seed, 3), ranks = 1 + draw_below(&seed, stages), n;
    clv_sched_cuts p = make_problem(&c, stages + 3 + draw_below(&seed, 4), stages, ranks);
    clv_sched_split split, found[MAX_RESULTS];
    clv_sched_search report;
    exhaustive_search b = {.p = &p, .best_seconds = {INFINITY, INFINITY, INFINITY}};
    draw_problem(&c, &p, &seed);
    try_cuts_from(&b, &split, 0, 0);
    n = search_cuts(&p, found, &report);
    assert_true(report.is_optimal && report.n_simulated <= report.n_possible);
    for (uint32_t i = 0; i < n; i++) assert_seconds(&found[i], b.best_seconds[i], round, p.kind);
    assert_true(n == MAX_RESULTS || isinf(b.best_seconds[n]));
  }
}

/* ---- problems with known cuts ---------------------------------------------------------------- */

static void assert_cuts(const clv_sched_cuts *p, const uint32_t *want, uint32_t micros) {
  clv_sched_split found[MAX_RESULTS];
  clv_sched_search report;
  assert_true(search_cuts(p, found, &report) > 0);
  for (uint32_t i = 0; i + 2 < p->shape.n_stages; i++)
    assert_int_equal(found[0].last_layers[i], want[i]);
  assert_int_equal(found[0].n_micro_batches, micros);
}

static void test_known_optimal_cuts_are_found(void **state) {
  chain c;
  clv_sched_cuts p = make_problem(&c, 12, 3, 3);
  (void)state;
  /* With many micro-batches the busiest node determines the time. */
  c.micro_batch_choices[0] = 64;
  /* the layers take equal time, so each stage gets a third */
  assert_cuts(&p, (const uint32_t[]){3, 7}, 64);
  c.stage_speed[1] = 4;
  /* 2, 8 and 2 layers, so that each stage takes 2 s */
  assert_cuts(&p, (const uint32_t[]){1, 9}, 64);
  c.min_layers[0] = 4, c.min_layers[1] = c.max_layers[1] = 10;
  /* the first stage must keep at least five of the layers */
  assert_cuts(&p, (const uint32_t[]){4, 10}, 64);
  p = make_problem(&c, 12, 3, 3);
  for (uint32_t i = 0; i < 12; i++) c.output_bytes[i] = i == 2 || i == 8 ? 0 : 1000;
  assert_cuts(&p, (const uint32_t[]){2, 8}, 4); /* the cuts are where few values cross */
}

/* More micro-batches help until their fixed time exceeds the bubble that they save. */
static void test_optimal_micro_batch_count_is_found(void **state) {
  (void)state;
  chain c;
  clv_sched_cuts p = make_problem(&c, 12, 2, 2);
  p.n_micro_batch_counts = 4;
  for (uint32_t i = 0; i < 4; i++) c.micro_batch_choices[i] = 1u << (2 * i);
  assert_cuts(&p, (const uint32_t[]){5}, 64);
  c.fixed_s = 0.05;
  assert_cuts(&p, (const uint32_t[]){5}, 4);
}

/* 7 cuts at 63 boundaries have 553 million combinations. The search tries only some of them, then
 * moves single cuts of the best one until no move makes it faster. */
static void test_huge_search_space_gives_a_local_optimum(void **state) {
  chain c;
  clv_sched_cuts p = make_problem(&c, 64, 8, 8);
  clv_sched_split found[MAX_RESULTS];
  clv_sched_search report;
  (void)state;
  c.forward_s[0] = 3, c.forward_s[40] = 2.5;
  uint32_t n = search_cuts(&p, found, &report);
  assert_true(n > 0 && !report.is_optimal && report.n_possible > 500000000);
  clv_sched_split equal_parts = {.micros_choice = 0};
  for (uint32_t i = 0; i < 8; i++) equal_parts.last_layers[i] = 8 * i + 7;
  ok(clv_sched_simulate_split(&p, &equal_parts, err));
  assert_true(found[0].seconds <= equal_parts.seconds);
  /* moving any single cut by one layer must not shorten the time */
  for (uint32_t cut = 0; cut < 7; cut++)
    for (int offset = -1; offset <= 1; offset += 2) {
      clv_sched_split other = found[0];
      other.last_layers[cut] += (uint32_t)offset;
      if (other.last_layers[cut] == other.last_layers[cut + 1]) continue;
      if (cut ? other.last_layers[cut] == other.last_layers[cut - 1] : other.last_layers[cut] > 63)
        continue;
      ok(clv_sched_simulate_split(&p, &other, err));
      assert_true(other.seconds >= found[0].seconds);
    }
}

/* 57 cuts at 59 boundaries have few combinations, and the search tries them all. */
static void test_nearly_full_cuts_are_enumerated(void **state) {
  chain c;
  clv_sched_cuts p = make_problem(&c, 60, 58, 58);
  clv_sched_split found[MAX_RESULTS];
  clv_sched_search report;
  (void)state;
  c.forward_s[10] = c.forward_s[20] = 0;
  assert_int_equal(search_cuts(&p, found, &report), MAX_RESULTS);
  assert_int_equal(report.n_possible, 59 * 58 / 2);
  c.max_layers[56] = 57;
  assert_int_equal(search_cuts(&p, found, &report), MAX_RESULTS);
  assert_int_equal(report.n_possible, 58);
}

static void test_impossible_cuts_are_not_found(void **state) {
  chain c;
  clv_sched_cuts p = make_problem(&c, 4, 3, 3);
  clv_sched_split found[MAX_RESULTS];
  clv_sched_search report;
  uint32_t n;
  clv_err err = {0};
  (void)state;
  p.n_cut_places = 1;
  assert_int_equal(clv_sched_search_cuts(&p, MAX_RESULTS, found, &n, &report, &err), CLV_NOT_FOUND);
  p = make_problem(&c, 4, 3, 3);
  c.min_layers[0] = 2, c.max_layers[1] = 2;
  assert_int_equal(clv_sched_search_cuts(&p, MAX_RESULTS, found, &n, &report, &err), CLV_NOT_FOUND);
  p.n_micro_batch_counts = 0;
  assert_int_equal(clv_sched_search_cuts(&p, MAX_RESULTS, found, &n, &report, &err), CLV_INVALID);
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
