/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests that work which repeats is recorded as a graph and replayed on the simulated device. A
 * replay must give the bits that the operations give when they are enqueued one by one, although a
 * replay repeats the recorded arguments: a value that changes from step to step, such as the step
 * number, must not be an argument. Work that cannot be recorded is enqueued operation by operation.
 */
#include "kernels/steps/steps.h"
#include "tests/gpu/sim.h"
#include "tests/long.h"
#include "tests/sanitized.h"
#include "tests/unit/graph/graph_test.h"

enum { BATCH = 6, SMALL_BATCH = 4, OUT = 5, CALLS = 2 };

/* Options of the network, as bits. DRAW_...: the network has layers that draw random numbers;
 * RECOMPUTE: the backward recomputes the forward. */
enum { DRAW_DROPOUT = 1, DRAW_ATTENTION = 2, DRAW_CHAIN = 4, DRAW_ALL = 7, RECOMPUTE = 8 };

typedef struct bench {
  clv_backend *b;
  clv_graph *graph;
  clv_params *params;
  clv_recorder *recorder;
  clv_plan *full_batch_plan, *small_batch_plan;
  char *parameter_block, *moment_block, *gradient_blocks[2]; /* blocks of values in device memory */
} bench;

/* ---- a small network ------------------------------------------------------------------------- */

/* Adds self-attention over 4 steps. has_dropout: its attention weights have dropout. */
static int add_attention(clv_graph *g, uint32_t layer, int at, bool has_dropout) {
  clv_attr_value steps = {.key = CLV_ATTR_SHAPE, .n_ints = 2, .ints = {4, -1}};
  clv_attr_value values[] = {make_int_attr(CLV_ATTR_HEADS, 2),
                             make_real_attr(CLV_ATTR_P, has_dropout ? 0.5 : 0)};
  clv_attrs attrs;
  at = add_node(g, CLV_OP_RESHAPE, layer, at, -1, &steps, 1);
  int in[] = {at, at, at}, node;
  assert_ok(clv_attrs_parse(CLV_OP_ATTENTION, values, 2, &attrs, err));
  assert_ok(clv_graph_add(g, CLV_OP_ATTENTION, &attrs, "attention", layer + 1, in, 3, &node, err));
  return node;
}

/* Returns a network: a convolution, batchnorm, relu, attention, linear. waits_on_host: the
 * convolution is replaced by an op that waits on the host. draws: bits DRAW_DROPOUT (adds a dropout
 * with a kernel of its own), DRAW_CHAIN (adds a dropout in a chain of fused ops), DRAW_ATTENTION
 * (attention has dropout) and RECOMPUTE. */
static clv_graph *make_network(bool waits_on_host, unsigned draws) {
  clv_attr_value half = make_real_attr(CLV_ATTR_P, 0.5), out = make_int_attr(CLV_ATTR_OUT, OUT);
  clv_shape image = CLV_SHAPE(BATCH, 2, 4, 4);
  clv_graph *g;
  int at;
  assert_ok(clv_graph_new(&g, err));
  assert_ok(clv_graph_add_input(g, "x", CLV_F32, &image, &at, err));
  at = waits_on_host ? add_plain(g, CLV_OP_WAIT, 1, at) : add_conv(g, 1, at, 3, 3, 1);
  at = add_plain(g, CLV_OP_BATCHNORM, 2, at);
  at = add_plain(g, CLV_OP_RELU, 3, at);
  if (draws & DRAW_DROPOUT) at = add_node(g, CLV_OP_DROPOUT, 4, at, -1, &half, 1);
  at = add_plain(g, CLV_OP_FLATTEN, 5, at);
  at = add_attention(g, 6, at, draws & DRAW_ATTENTION);
  at = add_plain(g, CLV_OP_FLATTEN, 8, at);
  if (draws & DRAW_CHAIN) at = add_dropout(g, 9, at, 0.25);
  at = add_plain(g, CLV_OP_SIGMOID, 10, at);
  g->output_node = add_node(g, CLV_OP_LINEAR, 11, at, -1, &out, 1);
  for (int i = 1; draws & RECOMPUTE && i < g->n_nodes; i++)
    g->nodes[i].recompute_block = 1 + (uint32_t)i / 6;
  return g;
}

static clv_plan *make_plan(const bench *t, int64_t batch) {
  clv_plan_options o = {.backend = t->b,
                        .dtype = CLV_F32,
                        .batch = batch,
                        .training = true,
                        .needs_input_grad = {true},
                        .threads = 1,
                        .split_backward = true,
                        .recorder = t->recorder};
  clv_plan *plan;
  assert_ok(clv_plan_new(t->graph, t->params, &o, &plan, err));
  return plan;
}

static char *allocate_zeros(const bench *t, size_t bytes) {
  char *p;
  assert_ok(clv_backend_allocate(t->b, bytes, &p, err));
  return p;
}

static bench set_up(const clv_sim_options *o, bool uses_recorder, bool waits_on_host,
                    unsigned draws) {
  bench t = {0};
  assert_ok(clv_cuda_open(clv_sim_make_vendor(o), 0, &t.b, err));
  if (uses_recorder) assert_ok(clv_recorder_new(t.b, &t.recorder, err));
  t.graph = make_network(waits_on_host, draws);
  assert_ok(clv_params_make(t.graph, &t.params, err));
  t.full_batch_plan = make_plan(&t, BATCH);
  t.small_batch_plan = make_plan(&t, SMALL_BATCH);
  char *drawn = malloc(t.params->total_bytes);
  clv_params_init(t.graph, t.params, drawn);
  t.parameter_block = allocate_zeros(&t, t.params->total_bytes);
  assert_ok(clv_backend_put(t.b, t.parameter_block, drawn, t.params->total_bytes, err));
  free(drawn);
  t.moment_block = allocate_zeros(&t, t.params->trainable_bytes);
  for (int i = 0; i < 2; i++) t.gradient_blocks[i] = allocate_zeros(&t, t.params->trainable_bytes);
  return t;
}

static void tear_down(bench *t) {
  clv_plan_free(t->full_batch_plan);
  clv_plan_free(t->small_batch_plan);
  clv_record_counts c;
  clv_recorder_count(t->recorder, &c);
  assert_int_equal(c.bytes, 0);
  clv_recorder_free(t->recorder);
  char *const all[] = {t->parameter_block, t->moment_block, t->gradient_blocks[0],
                       t->gradient_blocks[1]};
  for (size_t i = 0; i < CLV_COUNT(all); i++) clv_backend_free_memory(t->b, all[i]);
  clv_params_free(t->params);
  clv_graph_free(t->graph);
  clv_cuda_close(t->b);
  assert_int_equal(clv_sim_count_leaks(), 0);
}

/* ---- training of the small network ----------------------------------------------------------- */

/* Results of a training step that are copied to the host. */
typedef struct step_results {
  float out[BATCH * OUT], din[BATCH * 2 * 16];
} step_results;

static void draw_normal(uint32_t stream, float *dst, size_t n) {
  clv_rng_key key = {.seed = 3, .layer = stream};
  clv_rng_normal(&key, 0, 1, dst, n);
}

static void run_forward(const bench *t, clv_plan *plan, clv_call *c, const clv_rng_key *key,
                        step_results *ret) {
  float x[BATCH * 2 * 16];
  const void *in[] = {x};
  draw_normal(1, x, CLV_COUNT(x));
  assert_ok(
      clv_plan_forward(plan, c, t->parameter_block, key->step, in, false, ret->out, key, err));
}

static void run_backward(const bench *t, clv_plan *plan, clv_call *c, char *grads, bool accumulate,
                         step_results *ret) {
  float dout[BATCH * OUT];
  void *din[] = {ret->din};
  draw_normal(2, dout, CLV_COUNT(dout));
  assert_ok(
      clv_plan_backward_input(plan, c, t->parameter_block, dout, din, grads, accumulate, err));
  assert_ok(clv_plan_backward_weight(plan, c, t->parameter_block, grads, accumulate, err));
}

/* The learning rate decreases from step to step. */
static void run_optimizer(const bench *t, uint64_t step, const char *grads) {
  clv_optim_config c = {.kind = CLV_OPTIM_SGD, .lr = 0.1, .momentum = 0.9};
  float *moments[CLV_OPTIM_MAX_MOMENTS] = {(float *)(void *)t->moment_block};
  const clv_extent all_values = {0, t->params->trainable_bytes / sizeof(float)};
  clv_step_args a;
  clv_step_prepare(&c, (int64_t)step + 1, 0.1 / (double)(step + 1), 0.5, &a);
  t->b->step(t->b, &a, (float *)(void *)t->parameter_block, (const float *)(const void *)grads,
             moments, &all_values, 1);
}

/* Takes a step: two calls whose gradients are added up in one of two blocks. Every third step has
 * the smaller batch. */
static void run_step(const bench *t, uint64_t step, step_results ret[CALLS]) {
  clv_plan *plan = step % 3 == 2 ? t->small_batch_plan : t->full_batch_plan;
  char *grads = t->gradient_blocks[step % 5 == 4];
  clv_call *c[CALLS];
  for (uint32_t i = 0; i < CALLS; i++) {
    const clv_rng_key key = {.step = step, .micro_batch = i};
    assert_ok(clv_plan_call_get(plan, &c[i], err));
    run_forward(t, plan, c[i], &key, &ret[i]);
  }
  /* odd steps begin with the backward of the first call, even steps with that of the last */
  for (uint32_t i = 0; i < CALLS; i++) {
    uint32_t at = step & 1 ? i : CALLS - 1 - i;
    run_backward(t, plan, c[at], grads, i > 0, &ret[at]);
  }
  for (uint32_t i = CALLS; i-- > 0;) clv_plan_call_put(plan, c[i]);
  run_optimizer(t, step, grads);
}

enum { STEPS = 16 };

typedef struct outcome {
  step_results of[STEPS][CALLS];
  char *parameter_block;
  size_t bytes;
  clv_record_counts recorder_counts;
  clv_sim_counts device_counts;
} outcome;

static outcome *train_with(const clv_sim_options *o, bool uses_recorder, bool waits_on_host,
                           unsigned draws) {
  bench t = set_up(o, uses_recorder, waits_on_host, draws);
  outcome *ret = calloc(1, sizeof *ret);
  assert_non_null(ret);
  for (uint64_t step = 0; step < STEPS; step++) run_step(&t, step, ret->of[step]);
  ret->bytes = t.params->total_bytes;
  ret->parameter_block = malloc(ret->bytes);
  assert_ok(clv_backend_get(t.b, ret->parameter_block, t.parameter_block, ret->bytes, err));
  clv_recorder_count(t.recorder, &ret->recorder_counts);
  ret->device_counts = clv_sim_get_counts();
  tear_down(&t);
  return ret;
}

static outcome *train_all_random(const clv_sim_options *o, bool uses_recorder, bool waits_on_host) {
  return train_with(o, uses_recorder, waits_on_host, DRAW_ALL);
}

static void free_outcome(outcome *o) {
  free(o->parameter_block);
  free(o);
}

static void assert_same_outcome(const outcome *a, const outcome *b, const char *label) {
  for (int i = 0; i < STEPS; i++)
    if (memcmp(a->of[i], b->of[i], sizeof a->of[i])) fail_msg("%s: step %d differs", label, i);
  if (memcmp(a->parameter_block, b->parameter_block, a->bytes))
    fail_msg("%s: the parameters differ", label);
}

/* Returns the outcome of the training without graphs, which is compared with other trainings.
 * Trains at the first call; later calls return the same outcome. */
static const outcome *train_without_graphs(void) {
  static outcome *cached;
  if (!cached) cached = train_all_random(&(clv_sim_options){0}, false, false);
  return cached;
}

/* ---- replays of recorded training steps ------------------------------------------------------ */

static void graph_replays_give_the_same_bits(void **state) {
  (void)state;
  const outcome *want = train_without_graphs();
  assert_int_equal(want->device_counts.n_captures + want->device_counts.n_graph_launches, 0);
  for (uint64_t seed = 0; seed < (!is_long() || CLV_THREAD_SANITIZED ? 2 : 6); seed++) {
    outcome *got = train_all_random(&(clv_sim_options){.seed = seed}, true, false);
    assert_same_outcome(want, got, "recorded");
    assert_true(got->recorder_counts.records_made >= 12 &&
                got->recorder_counts.records_made == got->device_counts.n_captures);
    assert_true(got->recorder_counts.replays > got->recorder_counts.launched_singly);
    assert_int_equal(got->recorder_counts.replays, got->device_counts.n_graph_launches);
    assert_int_equal(got->recorder_counts.keys_refused, 0);
    assert_true(got->recorder_counts.bytes >= 1024 * got->recorder_counts.records_made);
    free_outcome(got);
  }
}

static void recompute_with_graphs_gives_the_same_bits(void **state) {
  (void)state;
  const outcome *want = train_without_graphs();
  outcome *got = train_with(&(clv_sim_options){0}, true, false, DRAW_ALL | RECOMPUTE);
  assert_same_outcome(want, got, "computed again");
  assert_true(got->recorder_counts.replays > got->recorder_counts.launched_singly);
  free_outcome(got);
}

/* Asserts that at least two thirds of the outputs differ from those of the previous step for the
 * same input. */
static void check_new_random_numbers(unsigned draws) {
  bench t = set_up(&(clv_sim_options){0}, true, false, draws);
  float previous_output[BATCH * OUT];
  for (uint32_t i = 0; i < 8; i++) {
    const clv_rng_key key = {.step = i / 2 + ((uint64_t)(i > 6) << 40), .micro_batch = i % 2};
    clv_call *c;
    step_results results;
    int n_same = 0;
    assert_ok(clv_plan_call_get(t.full_batch_plan, &c, err));
    run_forward(&t, t.full_batch_plan, c, &key, &results);
    clv_plan_call_put(t.full_batch_plan, c);
    for (int k = 0; i && k < BATCH * OUT; k++) n_same += results.out[k] == previous_output[k];
    assert_true(n_same < BATCH * OUT / 3);
    memcpy(previous_output, results.out, sizeof previous_output);
  }
  clv_record_counts c;
  clv_recorder_count(t.recorder, &c);
  assert_int_equal(c.replays, 7);
  tear_down(&t);
}

/* Tests each random op as the only random op of the network, then all of them together. */
static void each_graph_replay_draws_new_random_numbers(void **state) {
  static const unsigned draws[] = {DRAW_DROPOUT, DRAW_ATTENTION, DRAW_CHAIN, DRAW_ALL};
  (void)state;
  for (size_t i = 0; i < CLV_COUNT(draws); i++) check_new_random_numbers(draws[i]);
}

static void failed_capture_falls_back_to_single_launches(void **state) {
  (void)state;
  const outcome *want = train_without_graphs();
  outcome *fully_recorded = train_all_random(&(clv_sim_options){0}, true, false);
  for (uint64_t k = 0; k < (CLV_THREAD_SANITIZED ? 3 : 12); k += !k || is_long() ? 1 : 5) {
    clv_sim_options o = {.seed = k, .no_graphs = !k, .failing_capture = k};
    outcome *got = train_all_random(&o, true, false);
    assert_same_outcome(want, got, "not recorded");
    assert_int_equal(got->recorder_counts.keys_refused,
                     k ? 1 : fully_recorded->recorder_counts.records_made);
    assert_true(k ? got->recorder_counts.replays > 0 : got->recorder_counts.replays == 0);
    free_outcome(got);
  }
  free_outcome(fully_recorded);
}

static void work_that_waits_on_the_host_is_not_captured(void **state) {
  (void)state;
  outcome *want = train_all_random(&(clv_sim_options){0}, false, true);
  outcome *got = train_all_random(&(clv_sim_options){0}, true, true);
  assert_same_outcome(want, got, "waiting");
  assert_true(got->recorder_counts.keys_refused > 0);
  free_outcome(want);
  free_outcome(got);
}

/* ---- calls of cuDNN in recordings ------------------------------------------------------------ */

static const clv_vendor *simulated_vendor;
static bool is_capturing, may_be_captured;

static clv_code begin_noted_capture(clv_cuda_stream *s, clv_err *why) {
  is_capturing = true;
  return simulated_vendor->capture_begin(s, why);
}

static clv_code end_noted_capture(clv_cuda_stream *s, clv_cuda_graph **ret, size_t *ret_bytes,
                                  clv_err *why) {
  is_capturing = false;
  return simulated_vendor->capture_end(s, ret, ret_bytes, why);
}

static clv_code refuse_lstm_in_capture(clv_cuda_stream *s, clv_cuda_lstm *l,
                                       const clv_cuda_lstm_args *a, clv_err *why) {
  if (is_capturing && !may_be_captured) return clv_fail(why, CLV_INTERNAL, "as planned");
  return simulated_vendor->lstm_forward(s, l, a, why);
}

enum { N_FORWARDS = 5, LSTM_OUT = BATCH * 4 * OUT };

/* Runs the same forward of an LSTM N_FORWARDS times over an input [BATCH, 4, 8]. Stores the outputs
 * of the last forward in ret. */
static void run_lstm(const clv_vendor *vendor, float ret[LSTM_OUT], clv_record_counts *counts) {
  clv_attr_value v[] = {make_int_attr(CLV_ATTR_OUT, OUT), make_int_attr(CLV_ATTR_LAYERS, 2)};
  clv_shape shape = CLV_SHAPE(BATCH, 4, 8);
  bench t = {0};
  int at;
  assert_ok(clv_cuda_open(vendor, 0, &t.b, err));
  assert_ok(clv_recorder_new(t.b, &t.recorder, err));
  assert_ok(clv_graph_new(&t.graph, err));
  assert_ok(clv_graph_add_input(t.graph, "x", CLV_F32, &shape, &at, err));
  t.graph->output_node = add_node(t.graph, CLV_OP_LSTM, 1, at, -1, v, 2);
  assert_ok(clv_params_make(t.graph, &t.params, err));
  t.full_batch_plan = make_plan(&t, BATCH);
  char *drawn = malloc(t.params->total_bytes);
  clv_params_init(t.graph, t.params, drawn);
  t.parameter_block = allocate_zeros(&t, t.params->total_bytes);
  assert_ok(clv_backend_put(t.b, t.parameter_block, drawn, t.params->total_bytes, err));
  free(drawn);
  for (uint64_t i = 0; i < N_FORWARDS; i++) {
    const clv_rng_key key = {.step = 1};
    float x[BATCH * 4 * 8];
    const void *in[] = {x};
    clv_call *c;
    draw_normal(1, x, CLV_COUNT(x));
    assert_ok(clv_plan_call_get(t.full_batch_plan, &c, err));
    assert_ok(
        clv_plan_forward(t.full_batch_plan, c, t.parameter_block, 1, in, false, ret, &key, err));
    clv_plan_call_put(t.full_batch_plan, c);
  }
  clv_recorder_count(t.recorder, counts);
  tear_down(&t);
}

static void library_call_that_fails_in_capture_runs_uncaptured(void **state) {
  float want[LSTM_OUT], got[LSTM_OUT];
  clv_record_counts counts_all, counts_parts;
  (void)state;
  simulated_vendor = clv_sim_make_vendor(&(clv_sim_options){0});
  clv_vendor v = *simulated_vendor;
  v.capture_begin = begin_noted_capture;
  v.capture_end = end_noted_capture;
  v.lstm_forward = refuse_lstm_in_capture;
  may_be_captured = true;
  run_lstm(&v, want, &counts_all);
  may_be_captured = false;
  run_lstm(&v, got, &counts_parts);
  assert_memory_equal(want, got, sizeof want);
  assert_int_equal(counts_all.keys_refused, 0);
  assert_int_equal(counts_all.replays, N_FORWARDS - 1);
  assert_int_equal(counts_parts.keys_refused, 1);
  assert_int_equal(counts_parts.launched_singly, N_FORWARDS);
}

/* ---- recorders of launches, used without a plan ---------------------------------------------- */

typedef struct work {
  const clv_backend *b;
  void *memory;
  int fill_byte, n_calls;
  bool has_pageable_copy;
} work;

static clv_code run_planned_work(void *user, clv_err *err) {
  work *w = user;
  char host[4] = {0};
  w->n_calls++;
  if (w->has_pageable_copy) CLV_TRY(clv_backend_put(w->b, w->memory, host, sizeof host, err));
  return clv_backend_fill(w->b, w->memory, w->fill_byte, 64, err);
}

static char get_first_byte(const work *w) {
  char host[64];
  assert_ok(clv_backend_get(w->b, host, w->memory, sizeof host, err));
  return host[63];
}

static void full_graph_cache_evicts_the_least_recently_used(void **state) {
  clv_backend *b;
  clv_recorder *r;
  clv_record_counts c;
  (void)state;
  assert_ok(clv_cuda_open(clv_sim_make_vendor(&(clv_sim_options){0}), 0, &b, err));
  assert_ok(clv_recorder_new(b, &r, err));
  work w = {.b = b, .fill_byte = 7};
  assert_ok(clv_backend_allocate(b, 64, &w.memory, err));
  for (uintptr_t i = 0; i < 6 * CLV_MAX_RECORDS; i++) {
    const clv_record_key key = {.owner = b, .kind = i % 2 ? 1 : 1 + i};
    assert_ok(clv_recorder_run(r, &key, run_planned_work, &w, err));
  }
  clv_recorder_count(r, &c);
  assert_int_equal(c.records_made, 1);
  assert_int_equal(c.replays, 3 * CLV_MAX_RECORDS);
  for (uintptr_t i = 0; i < 3 * (CLV_MAX_RECORDS + 1); i++) {
    const clv_record_key key = {.owner = b, .kind = 1 + i % (CLV_MAX_RECORDS + 1)};
    assert_ok(clv_recorder_run(r, &key, run_planned_work, &w, err));
  }
  clv_recorder_count(r, &c);
  assert_int_equal(c.bytes, 0);
  clv_recorder_free(r);
  clv_backend_free_memory(b, w.memory);
  clv_cuda_close(b);
  assert_int_equal(clv_sim_count_leaks(), 0);
}

static void work_with_host_copies_is_not_captured(void **state) {
  clv_backend *b;
  clv_recorder *r;
  clv_record_counts c;
  int64_t layer;
  (void)state;
  assert_ok(clv_cuda_open(clv_sim_make_vendor(&(clv_sim_options){0}), 0, &b, err));
  assert_ok(clv_recorder_new(b, &r, err));
  work w = {.b = b, .has_pageable_copy = true};
  assert_ok(clv_backend_allocate(b, 64, &w.memory, err));
  for (w.fill_byte = 1; w.fill_byte < 5; w.fill_byte++) {
    assert_ok(clv_recorder_run(r, &(clv_record_key){.owner = b}, run_planned_work, &w, err));
    assert_int_equal(get_first_byte(&w), w.fill_byte);
  }
  /* the failed capture must not have caused an error of the device */
  assert_ok(b->memory->finish(b, &layer, err));
  clv_recorder_count(r, &c);
  assert_int_equal(c.records_made, 0);
  assert_int_equal(c.keys_refused, 1);
  assert_int_equal(c.launched_singly, 4);
  clv_recorder_free(r);
  clv_backend_free_memory(b, w.memory);
  clv_cuda_close(b);
}

typedef struct memory_quota {
  size_t quota_bytes, charged_bytes;
} memory_quota;

static clv_code charge_bytes(void *user, size_t bytes, clv_err *why) {
  memory_quota *p = user;
  if (bytes > p->quota_bytes - p->charged_bytes) return clv_fail(why, CLV_EXHAUSTED, "as planned");
  p->charged_bytes += bytes;
  return CLV_OK;
}

static void return_bytes(void *user, size_t bytes) {
  ((memory_quota *)user)->charged_bytes -= bytes;
}

static bool is_simulated(void) {
  return strcmp(clv_sim_make_vendor(&(clv_sim_options){0})->name, "cuda-sim") == 0;
}

/* The quota suffices for two of three graphs, each with one launch, by the sizes that the device
 * reports. */
static void graph_over_the_memory_quota_is_not_kept(void **state) {
  const size_t graph_bytes = clv_sim_get_graph_bytes(1);
  memory_quota p = {.quota_bytes = 2 * graph_bytes + 1};
  const clv_record_account account = {&p, charge_bytes, return_bytes};
  clv_backend *b;
  clv_recorder *r;
  clv_record_counts c;
  (void)state;
  if (!is_simulated()) skip(); /* the size on a real device is known only after the capture */
  assert_ok(clv_cuda_open(clv_sim_make_vendor(&(clv_sim_options){0}), 0, &b, err));
  assert_ok(clv_recorder_new(b, &r, err));
  clv_recorder_set_account(r, &account);
  work w = {.b = b};
  assert_ok(clv_backend_allocate(b, 64, &w.memory, err));
  for (w.fill_byte = 1; w.fill_byte <= 12; w.fill_byte++) {
    const clv_record_key key = {.owner = b, .kind = (uintptr_t)w.fill_byte % 3};
    assert_ok(clv_recorder_run(r, &key, run_planned_work, &w, err));
  }
  clv_recorder_count(r, &c);
  assert_int_equal(c.records_made, 2);
  assert_int_equal(c.keys_refused, 1);
  assert_int_equal(p.charged_bytes, c.bytes);
  assert_int_equal(p.charged_bytes, 2 * graph_bytes);
  clv_recorder_free(r);
  assert_int_equal(p.charged_bytes, 0);
  clv_backend_free_memory(b, w.memory);
  clv_cuda_close(b);
  assert_int_equal(clv_sim_count_leaks(), 0);
}

/* Runs some work on a device that is lost after n_calls_before calls. Returns the work's error. */
static clv_code lose_device_after(uint64_t n_calls_before) {
  clv_backend *b;
  clv_recorder *r;
  clv_err why = {0};
  clv_code code = clv_cuda_open(
      clv_sim_make_vendor(&(clv_sim_options){.losing_call = n_calls_before}), 0, &b, &why);
  if (code != CLV_OK) return code;
  assert_ok(clv_recorder_new(b, &r, err));
  work w = {.b = b, .fill_byte = 3};
  code = clv_backend_allocate(b, 64, &w.memory, &why);
  for (int i = 0; i < 20 && code == CLV_OK; i++)
    code = clv_recorder_run(r, &(clv_record_key){.owner = b}, run_planned_work, &w, &why);
  clv_recorder_free(r);
  clv_backend_free_memory(b, w.memory);
  clv_cuda_close(b);
  assert_int_equal(clv_sim_count_leaks(), 0);
  return code;
}

static void lost_device_returns_unavailable(void **state) {
  int n_tried = 0, n_failed = 0;
  (void)state;
  if (!is_simulated()) skip(); /* a real device cannot be lost on demand */
  for (uint64_t n_calls_before = 1; n_calls_before < 60;
       n_calls_before += is_long() ? 1 : 6, n_tried++) {
    clv_code code = lose_device_after(n_calls_before);
    assert_true(code == CLV_OK || code == CLV_UNAVAILABLE);
    n_failed += code != CLV_OK;
  }
  assert_true(n_failed > n_tried / 2 && n_failed < n_tried);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(each_graph_replay_draws_new_random_numbers),
      cmocka_unit_test(graph_replays_give_the_same_bits),
      cmocka_unit_test(recompute_with_graphs_gives_the_same_bits),
      cmocka_unit_test(failed_capture_falls_back_to_single_launches),
      cmocka_unit_test(work_that_waits_on_the_host_is_not_captured),
      cmocka_unit_test(library_call_that_fails_in_capture_runs_uncaptured),
      cmocka_unit_test(full_graph_cache_evicts_the_least_recently_used),
      cmocka_unit_test(work_with_host_copies_is_not_captured),
      cmocka_unit_test(graph_over_the_memory_quota_is_not_kept),
      cmocka_unit_test(lost_device_returns_unavailable),
  };
  setenv("CLEAVE_TEST_OPS", "1", 1);
  return cmocka_run_group_tests(tests, NULL, NULL);
}
