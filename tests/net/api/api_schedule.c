/* SPDX-License-Identifier: Apache-2.0
 *
 * Runs random schedules through the C API, one after another in one runtime. A schedule gives each
 * call a position in its node's order of work. If this order can run, the weights after the step
 * are those of calls without positions, bit for bit. With damaged positions the context fails,
 * waits until its deadline, or gives these weights as well, and the next context is not affected.
 *
 * Usage: PROGRAM SESSION A B direct|via_master|alone threads|single N [SEED] runs N valid and N
 * damaged schedules.
 */
#include "api_pipeline_int.h"

enum { STAGES = 4, MICRO_BATCHES = 6, WIDTH = 5, ROWS = 4, STEP_TIMEOUT_MS = 400 };

typedef struct positions {
  uint32_t forward_position, backward_position, weight_position;
} positions;

/* A chain of n stages and, as modules[n], the loss. */
typedef struct pipeline {
  uint32_t n, n_micro_batches;
  const char *at[STAGES + 1];
  cleave_module *modules[STAGES + 1];
  cleave_optimizer *optimizer;
  cleave_state initial_weights[STAGES], trained_weights[STAGES];
} pipeline;

typedef struct schedule {
  positions of[STAGES + 1][MICRO_BATCHES];
  bool has_recompute[STAGES];
} schedule;

static uint64_t state = 1;

static uint32_t draw_below(uint32_t below) {
  state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
  return (uint32_t)(state >> 33) % below;
}

/* ---- the trained pipelines ------------------------------------------------------------------- */

static bool read_state(const pipeline *p, cleave_state *ret) {
  for (uint32_t i = 0; i < p->n; i++)
    MUST(cleave_state_read(rt, p->modules[i], CLEAVE_STATE_WEIGHTS, 0, &ret[i], e));
  return true;
}

static bool write_initial_weights(const pipeline *p) {
  for (uint32_t i = 0; i < p->n; i++)
    MUST(cleave_state_write(rt, p->modules[i], CLEAVE_STATE_WEIGHTS, p->initial_weights[i].items,
                            p->initial_weights[i].n, 0, e));
  return true;
}

static bool is_same_state(const pipeline *p, const cleave_state *a, const cleave_state *b) {
  for (uint32_t i = 0; i < p->n; i++)
    for (size_t k = 0; k < a[i].n; k++) {
      const cleave_tensor *x = &a[i].items[k].tensor, *y = &b[i].items[k].tensor;
      size_t bytes = cleave_tensor_count(x) * (x->dtype == CLEAVE_I64 ? 8 : 4);
      if (memcmp(x->data, y->data, bytes) != 0) return false;
    }
  return true;
}

static void free_states(const pipeline *p, cleave_state *list) {
  for (uint32_t i = 0; i < p->n; i++) cleave_state_free(&list[i]);
}

/* Layers of the stages. They include normalisation and dropout, and one stage's backward reads its
 * weights. */
static const char *const layers[STAGES] = {
    "[{op: linear, out: 5}, {op: batchnorm}, {op: tanh}]",
    "[{op: linear, out: 5}, {op: relu}, {op: dropout, p: 0.25}]",
    "[{op: linear, out: 5}, {op: linear, out: 5}]",
    "[{op: tanh}, {op: linear, out: 5}, {op: batchnorm}]",
};

static bool make_pipeline(uint32_t number, uint32_t n, uint32_t n_micro_batches, const char *places,
                          pipeline *p) {
  char name[64];
  *p = (pipeline){.n = n, .n_micro_batches = n_micro_batches};
  for (uint32_t i = 0; i <= n; i++) {
    p->at[i] = places[i] == 'a' ? at_a : places[i] == 'b' ? at_b : "master";
    snprintf(name, sizeof name, "pipeline %u, stage %u", number, i);
    if (i < n)
      DO(load_module(name, p->at[i], layers[i], WIDTH, &p->modules[i]));
    else
      DO(load_loss(name, p->at[i], WIDTH, &p->modules[i]));
  }
  cleave_group all = {.modules = p->modules, .n_modules = n, .lr = 0.1, .no_rollback = true};
  MUST(cleave_optimizer_new(rt, &all, 1, 0, &p->optimizer, e));
  return read_state(p, p->initial_weights);
}

/* ---- one training step ----------------------------------------------------------------------- */

static cleave_status call_micro_batch(const pipeline *p, const schedule *s, cleave_context c,
                                      uint32_t k, cleave_reference *ret_loss, cleave_error *e) {
  float data[2][ROWS * WIDTH];
  cleave_reference in[2];
  for (unsigned i = 0; i < 2; i++) {
    fill_with_random(data[i], ROWS * WIDTH, 10 * k + i);
    cleave_tensor t = CLEAVE_TENSOR_F32(data[i], ROWS, WIDTH);
    cleave_status status = cleave_leaf(rt, c, &t, false, &in[i], e);
    if (status != CLEAVE_OK) return status;
  }
  for (uint32_t i = 0; i <= p->n; i++) {
    const positions *t = &s->of[i][k];
    const cleave_call_options o = {.size = sizeof o,
                                   .send_to = i < p->n ? p->at[i + 1] : NULL,
                                   .to_program = i == p->n,
                                   .position = t->forward_position,
                                   .backward_position = t->backward_position,
                                   .weight_position = t->weight_position,
                                   .recompute = i < p->n && s->has_recompute[i]};
    cleave_status status =
        cleave_call_with(rt, c, p->modules[i], in, i == p->n ? 2 : 1, &o, ret_loss, e);
    if (status != CLEAVE_OK) return status;
    in[0] = *ret_loss;
  }
  return CLEAVE_OK;
}

static cleave_status train_in_context(const pipeline *p, const schedule *s, cleave_context c,
                                      uint64_t deadline_ms, cleave_error *e) {
  cleave_reference losses[MICRO_BATCHES];
  float loss_weights[MICRO_BATCHES];
  for (uint32_t k = 0; k < p->n_micro_batches; k++) {
    cleave_status status = call_micro_batch(p, s, c, k, &losses[k], e);
    if (status != CLEAVE_OK) return status;
    loss_weights[k] = 0.5f + (float)k;
  }
  const cleave_backward_options o = {
      .size = sizeof o, .weights = loss_weights, .deadline_ms = deadline_ms};
  cleave_status status = cleave_backward_with(rt, c, losses, p->n_micro_batches, &o, e);
  return status == CLEAVE_OK ? cleave_step(rt, p->optimizer, c, 0, NULL, e) : status;
}

/* Takes a step from the initial weights. A failure of the step is stored in *ret, and run_step
 * returns true nevertheless. */
static bool run_step(const pipeline *p, const schedule *s, uint64_t deadline_ms,
                     cleave_error *ret) {
  const cleave_context_options o = {.size = sizeof o, .step = 3};
  cleave_context c;
  memset(ret, 0, sizeof *ret);
  DO(write_initial_weights(p));
  MUST(cleave_context_open(rt, &o, &c, e));
  if (train_in_context(p, s, c, deadline_ms, ret) != CLEAVE_OK) {
    (void)!cleave_context_close(rt, c, 0, NULL);
    return true;
  }
  return close_context(c);
}

static bool trains_to_same_weights(const pipeline *p) {
  cleave_state weights_now[STAGES];
  DO(read_state(p, weights_now));
  bool is_same = is_same_state(p, weights_now, p->trained_weights);
  free_states(p, weights_now);
  CHECK(is_same);
  return true;
}

/* ---- random schedules ------------------------------------------------------------------------ */

typedef struct progress {
  /* counts per stage: micro-batches that have done this part */
  uint32_t forwards[STAGES + 1], input_gradients[STAGES + 1], weight_gradients[STAGES + 1];
  bool has_split_backward[STAGES + 1][MICRO_BATCHES];
  uint32_t last_position[3]; /* position of each node's last instruction */
} progress;

static uint32_t *get_last_position(progress *g, const char *at) {
  return &g->last_position[strcmp(at, "master") == 0 ? 0 : strcmp(at, at_a) == 0 ? 1 : 2];
}

/* Returns bits of what stage s may do next: 1 forward, 2 gradient of its input, 4 gradients of its
 * parameters. */
static uint32_t find_possible_work(const pipeline *p, const progress *g, uint32_t s) {
  uint32_t k = g->input_gradients[s], ret = 0;
  if (g->forwards[s] < p->n_micro_batches && (s == 0 || g->forwards[s - 1] > g->forwards[s]))
    ret |= 1;
  bool has_gradient = k < g->forwards[s] && (s == p->n || g->input_gradients[s + 1] > k);
  if (has_gradient && (g->has_split_backward[s][k] || g->weight_gradients[s] == k)) ret |= 2;
  if (g->weight_gradients[s] < k && g->has_split_backward[s][g->weight_gradients[s]]) ret |= 4;
  return ret;
}

static void take_work(const pipeline *p, progress *g, uint32_t s, uint32_t kind, schedule *ret) {
  uint32_t position = ++*get_last_position(g, p->at[s]);
  if (kind == 1) ret->of[s][g->forwards[s]++].forward_position = position;
  if (kind == 4) ret->of[s][g->weight_gradients[s]++].weight_position = position;
  if (kind != 2) return;
  ret->of[s][g->input_gradients[s]].backward_position = position;
  g->weight_gradients[s] += !g->has_split_backward[s][g->input_gradients[s]++];
}

static void draw_schedule(const pipeline *p, schedule *ret) {
  progress g = {0};
  *ret = (schedule){0};
  for (uint32_t s = 0; s <= p->n; s++)
    for (uint32_t k = 0; k < p->n_micro_batches; k++) g.has_split_backward[s][k] = draw_below(2);
  for (uint32_t s = 0; s < p->n; s++) ret->has_recompute[s] = draw_below(4) == 0;
  for (;;) {
    uint32_t possible_work[3 * (STAGES + 1)][2], n = 0;
    for (uint32_t s = 0; s <= p->n; s++)
      for (uint32_t kind = 1; kind <= 4; kind *= 2)
        if (find_possible_work(p, &g, s) & kind)
          possible_work[n][0] = s, possible_work[n++][1] = kind;
    if (!n) return;
    uint32_t i = draw_below(n);
    take_work(p, &g, possible_work[i][0], possible_work[i][1], ret);
  }
}

static uint32_t *draw_position(const pipeline *p, schedule *s) {
  positions *t = &s->of[draw_below(p->n + 1)][draw_below(p->n_micro_batches)];
  uint32_t *const parts[] = {&t->forward_position, &t->backward_position, &t->weight_position};
  return parts[draw_below(3)];
}

static void damage_schedule(const pipeline *p, schedule *s) {
  uint32_t *a = draw_position(p, s), *b = draw_position(p, s), a_before = *a;
  switch (draw_below(5)) {
    case 0: /* swaps the positions of two instructions */
      *a = *b;
      *b = a_before;
      break;
    case 1: /* gives two instructions the same position */
      *a = *b;
      break;
    case 2: /* moves an instruction to a later position */
      *a += 1 + draw_below(3);
      break;
    case 3:
      *a = 0;
      break;
    default:
      *a = draw_below(1u << 21);
  }
}

/* ---- tests ----------------------------------------------------------------------------------- */

static pipeline pipelines[5];
static uint32_t n_schedules = 20;

static bool make_and_train_pipelines(void) {
  static const struct {
    uint32_t n, n_micro_batches;
    const char *places;
  } shapes[] = {{2, 4, "abm"}, {3, 6, "abab"}, {4, 3, "mabam"}, {3, 1, "bmaa"}, {4, 6, "aabbm"}};
  const schedule no_positions = {0};
  for (uint32_t i = 0; i < 5; i++) {
    pipeline *p = &pipelines[i];
    cleave_error e;
    DO(make_pipeline(i, shapes[i].n, shapes[i].n_micro_batches, shapes[i].places, p));
    DO(run_step(p, &no_positions, 0, &e));
    CHECK(e.status == CLEAVE_OK);
    DO(read_state(p, p->trained_weights));
    CHECK(!is_same_state(p, p->initial_weights, p->trained_weights));
  }
  return true;
}

static bool random_schedules_reach_the_same_weights(void) {
  for (uint32_t i = 0; i < n_schedules; i++) {
    const pipeline *p = &pipelines[i % 5];
    schedule s;
    cleave_error e;
    draw_schedule(p, &s);
    DO(run_step(p, &s, 0, &e));
    if (e.status != CLEAVE_OK) {
      snprintf(why, sizeof why, "schedule %u at '%s': %s", i, e.node, e.text);
      return false;
    }
    DO(trains_to_same_weights(p));
  }
  return true;
}

static bool damaged_schedules_fail_or_reach_the_same_weights(void) {
  uint32_t n_not_run = 0, n_timed_out = 0;
  for (uint32_t i = 0; i < n_schedules; i++) {
    const pipeline *p = &pipelines[i % 5];
    schedule s;
    cleave_error e;
    draw_schedule(p, &s);
    damage_schedule(p, &s);
    uint64_t begin = now_ms();
    DO(run_step(p, &s, STEP_TIMEOUT_MS, &e));
    CHECK(now_ms() < begin + 10000); /* a damaged schedule ends by its deadline and does not hang */
    n_not_run += e.status != CLEAVE_OK;
    n_timed_out += e.status == CLEAVE_DEADLINE;
    if (e.status == CLEAVE_OK) DO(trains_to_same_weights(p));
  }
  printf("# damaged: %u refused or failed, %u of them by their deadline, %u ran\n", n_not_run,
         n_timed_out, n_schedules - n_not_run);
  CHECK(n_not_run > n_schedules / 4);
  return true;
}

static bool impossible_positions_are_refused(void) {
  static const positions bad[] = {{0, 1, 0},          {1, 0, 2},       {2, 2, 0},
                                  {3, 2, 0},          {1, 3, 3},       {(1 << 20) + 1, 0, 0},
                                  {1, UINT32_MAX, 0}, {1, 2, 1u << 21}};
  const pipeline *p = &pipelines[2]; /* this pipeline has stages at all nodes */
  const float x[ROWS * WIDTH] = {0};
  cleave_context c;
  DO(open_context(&c));
  for (uint32_t s = 0; s < p->n; s++)
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
      const cleave_call_options o = {.size = sizeof o,
                                     .position = bad[i].forward_position,
                                     .backward_position = bad[i].backward_position,
                                     .weight_position = bad[i].weight_position};
      cleave_reference in, out;
      DO(make_leaf(c, x, ROWS, WIDTH, false, &in));
      REFUSED(cleave_call_with(rt, c, p->modules[s], &in, 1, &o, &out, e), CLEAVE_INVALID,
              "they ascend to at most 1048576");
    }
  return close_context(c);
}

static bool load_module_with_optimizer(const char *name, bool is_final, double clip,
                                       cleave_module **ret, cleave_optimizer **ret_optimizer) {
  DO(load_module(name, at_a, layers[0], WIDTH, ret));
  cleave_group group = {.modules = ret, .n_modules = 1, .lr = 0.1, .no_rollback = is_final};
  MUST(cleave_optimizer_new(rt, &group, 1, clip, ret_optimizer, e));
  return true;
}

static bool steps_at_impossible_positions_are_refused(void) {
  cleave_module *final_module, *other_module, *clipped_module;
  cleave_optimizer *final_optimizer, *other_optimizer, *clipped_optimizer;
  const float x[ROWS * WIDTH] = {0};
  cleave_context c;
  cleave_reference in, out;
  double lr = 0;
  DO(load_module_with_optimizer("final", true, 0, &final_module, &final_optimizer));
  DO(load_module_with_optimizer("not final", false, 0, &other_module, &other_optimizer));
  DO(load_module_with_optimizer("clipped", true, 1, &clipped_module, &clipped_optimizer));
  DO(open_context(&c));
#define STEP(o, m, position) cleave_step_at(rt, o, c, m, 0, position, false, &lr, e)
  REFUSED(STEP(final_optimizer, final_module, 0), CLEAVE_INVALID, "counted from 1");
  REFUSED(STEP(final_optimizer, final_module, (1 << 20) + 1), CLEAVE_INVALID, "to 1048576");
  REFUSED(STEP(final_optimizer, other_module, 1), CLEAVE_PRECONDITION, "not of this optimiser");
  REFUSED(STEP(other_optimizer, other_module, 1), CLEAVE_PRECONDITION, "not final");
  REFUSED(STEP(clipped_optimizer, clipped_module, 1), CLEAVE_PRECONDITION, "no clipping");
  REFUSED(STEP(final_optimizer, final_module, 1), CLEAVE_PRECONDITION, "never called");
  CHECK(lr == 0);
  DO(make_leaf(c, x, ROWS, WIDTH, false, &in));
  MUST(cleave_call(rt, c, final_module, &in, 1, &out, e));
  MUST(STEP(final_optimizer, final_module, 1));
  CHECK(lr == 0.1);
  REFUSED(cleave_step(rt, final_optimizer, c, 0, NULL, e), CLEAVE_PRECONDITION, "");
  DO(close_context(c));
  REFUSED(STEP(final_optimizer, final_module, 1), CLEAVE_NOT_FOUND, "");
  cleave_optimizer *const all[] = {final_optimizer, other_optimizer, clipped_optimizer};
  for (int i = 0; i < 3; i++) cleave_optimizer_release(rt, all[i], NULL);
  return true;
}

/* A node's error names module and call by number only; the library puts their names into the
 * program's error. */
static bool failed_micro_batch_names_its_module(void) {
  cleave_module *m;
  cleave_optimizer *sgd;
  const float x[ROWS * WIDTH] = {0};
  float first_input[ROWS * 2] = {INFINITY};
  cleave_tensor first_tensor = CLEAVE_TENSOR_F32(first_input, ROWS, 2);
  cleave_context c;
  cleave_reference in, out;
  cleave_error failure;
  DO(load_module("the one that steps", at_b, "[{op: linear, out: 2}]", WIDTH, &m));
  cleave_group group = {.modules = &m, .n_modules = 1, .lr = 0.1, .no_rollback = true};
  MUST(cleave_optimizer_new(rt, &group, 1, 0, &sgd, e));
  DO(open_context(&c));
  DO(make_leaf(c, x, ROWS, WIDTH, false, &in));
  const cleave_call_options call_options = {
      .size = sizeof call_options, .position = 1, .backward_position = 2};
  MUST(cleave_call_with(rt, c, m, &in, 1, &call_options, &out, e));
  MUST(cleave_step_at(rt, sgd, c, m, 0, 3, false, NULL, e));
  const cleave_backward_options o = {.size = sizeof o, .gradients = &first_tensor};
  cleave_status status = cleave_backward_with(rt, c, &out, 1, &o, &failure);
  if (status == CLEAVE_OK) status = cleave_context_close(rt, c, 0, &failure);
  CHECK(status == CLEAVE_INVALID);
  CHECK(strstr(failure.text, "a gradient of module 'the one that steps' is not finite") != NULL);
  CHECK(strcmp(failure.place, "the one that steps") == 0);
  status = cleave_context_close(rt, c, 0, NULL);
  cleave_optimizer_release(rt, sgd, NULL);
  cleave_module_release(rt, m, NULL);
  return true;
}

static bool links_are_measured(void) {
  cleave_link_measure m;
  uint32_t workers = 0;
  REFUSED(cleave_measure(rt, 0, 0, &m, e), CLEAVE_INVALID, "node 0 is no worker");
  while (cleave_node_name(rt, workers + 1)) workers++;
  REFUSED(cleave_measure(rt, workers + 1, 0, &m, e), CLEAVE_INVALID, "is no worker");
  for (uint32_t i = 1; i <= workers; i++) {
    MUST(cleave_measure(rt, i, 0, &m, e));
    CHECK(m.round_trip_s > 0 && m.round_trip_s < 10 && m.up_bytes_s >= 0 && m.down_bytes_s >= 0);
  }
  return true;
}

static bool pipelines_train_after_failures(void) {
  for (uint32_t i = 0; i < 5; i++) {
    schedule s;
    cleave_error e;
    draw_schedule(&pipelines[i], &s);
    DO(run_step(&pipelines[i], &s, 0, &e));
    CHECK(e.status == CLEAVE_OK);
    DO(trains_to_same_weights(&pipelines[i]));
    free_states(&pipelines[i], pipelines[i].initial_weights);
    free_states(&pipelines[i], pipelines[i].trained_weights);
    cleave_optimizer_release(rt, pipelines[i].optimizer, NULL);
  }
  return true;
}

static const test tests[] = {
    TEST(make_and_train_pipelines),
    TEST(impossible_positions_are_refused),
    TEST(steps_at_impossible_positions_are_refused),
    TEST(failed_micro_batch_names_its_module),
    TEST(links_are_measured),
    TEST(random_schedules_reach_the_same_weights),
    TEST(damaged_schedules_fail_or_reach_the_same_weights),
    TEST(pipelines_train_after_failures),
};

int main(int argc, char **argv) {
  const char *number;
  if (!read_arguments(argc, argv, &number)) return 2;
  const cleave_options o = {.size = sizeof o, .single_thread = is_single_threaded};
  n_schedules = *number ? (uint32_t)atoi(number) : n_schedules;
  state = argc > 7 ? (uint64_t)atoll(argv[7]) : 1;
  if (!open_runtime(&o, &rt)) {
    print_result(false, "open");
    return 1;
  }
  (void)RUN_ALL(tests);
  print_result(close_runtime(rt), "close_finds_nothing_left");
  return n_failed != 0;
}
