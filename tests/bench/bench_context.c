/* SPDX-License-Identifier: Apache-2.0
 *
 * Measures training steps of programs on the public API. Each step opens a context, calls its
 * modules, runs backward, steps the optimiser, reads the loss and closes the context.
 *
 * usage: bench_context mlp|lstm SESSION.yaml [final]
 *   mlp    seed 002's network: linear 16-8 and relu at the master, linear 8-1 and sigmoid at w1,
 *          bce, SGD
 *   lstm   seed 001's network: encoder at w1, decoder at w2, classifier and loss at w3, Adam
 *   final  promises only what PyTorch promises: a step cannot be rolled back, the program does not
 *          wait for the end of a context, and its one thread does the work of its node
 * commands: steps N   milliseconds of each of N steps
 *           parts N   milliseconds of call, backward, step, loss and close, for each of N steps
 */
#include "master/api/cleave.h"

#include <string.h>

#include "tests/bench/bench_int.h"

enum {
  MAX_PARTS = 3,
  BATCH = 32,
  BATCHES = 10,
  TIME = 20,
  WORDS = 100,
  CLASSES = 10,
  SECTIONS = 5
};

typedef struct part {
  const char *at, *layers;
  cleave_input input;
} part;

typedef struct task {
  const char *name;
  part module_parts[MAX_PARTS];
  size_t n_parts;
  const char *loss, *loss_at;
  cleave_input prediction_input;
  cleave_group optimizer_group; /* optimiser settings; its list of modules is filled later */
} task;

static const task tasks[] = {
    {.name = "mlp",
     .module_parts = {{"master", "[{op: linear, out: 8}, {op: relu}]",
                       CLEAVE_INPUT(CLEAVE_F32, BATCH, 16)},
                      {"w1", "[{op: linear, out: 1}, {op: sigmoid}]",
                       CLEAVE_INPUT(CLEAVE_F32, BATCH, 8)}},
     .n_parts = 2,
     .loss = "bce",
     .loss_at = "master",
     .prediction_input = CLEAVE_INPUT(CLEAVE_F32, BATCH, 1),
     .optimizer_group = {.kind = CLEAVE_SGD, .lr = 0.5}},
    {.name = "lstm",
     .module_parts = {{"w1", "[{op: embedding, rows: 100, out: 32}, {op: lstm, out: 64}]",
                       CLEAVE_INPUT(CLEAVE_I64, BATCH, TIME)},
                      {"w2", "[{op: lstm, out: 64}, {op: linear, out: 32}]",
                       CLEAVE_INPUT(CLEAVE_F32, BATCH, TIME, 64)},
                      {"w3", "[{op: mean, dim: 1}, {op: linear, out: 10}]",
                       CLEAVE_INPUT(CLEAVE_F32, BATCH, TIME, 32)}},
     .n_parts = 3,
     .loss = "cross_entropy",
     .loss_at = "w3",
     .prediction_input = CLEAVE_INPUT(CLEAVE_F32, BATCH, CLASSES),
     .optimizer_group = {.kind = CLEAVE_ADAM, .lr = 0.001}},
};

typedef struct bench {
  const task *task;
  bool has_final_steps;
  cleave_runtime *rt;
  cleave_module *modules[MAX_PARTS], *loss;
  cleave_optimizer *optimizer;
  cleave_tensor x[BATCHES], y[BATCHES], loss_value;
  size_t n_steps_run;
} bench;

static cleave_error e;

static void require_success(cleave_status status) {
  if (status == CLEAVE_OK) return;
  fprintf(stderr, "bench_context: %s %s: %s\n", e.node, e.place, e.text);
  exit(1);
}

/* ---- random data; the PyTorch program of the comparison draws its own of the same shapes ----- */

static uint32_t draw_bits(void) {
  static uint32_t state = 40;
  state = state * 1664525u + 1013904223u;
  return state >> 8;
}

static cleave_tensor make_numbers(size_t n) {
  float *list;
  clv_err err;
  must(clv_alloc(n, sizeof *list, &list, &err), &err);
  for (size_t i = 0; i < n; i++) list[i] = (float)draw_bits() * 0x1p-24f;
  return (cleave_tensor){.dtype = CLEAVE_F32, .data = list};
}

static cleave_tensor make_classes(size_t n, uint32_t below) {
  int64_t *list;
  clv_err err;
  must(clv_alloc(n, sizeof *list, &list, &err), &err);
  for (size_t i = 0; i < n; i++) list[i] = draw_bits() % below;
  return (cleave_tensor){.dtype = CLEAVE_I64, .data = list};
}

static void set_shape(cleave_tensor *t, int rank, int64_t columns) {
  t->rank = rank;
  t->shape[0] = BATCH;
  t->shape[1] = columns;
}

static void make_batches(bench *b) {
  bool has_words = b->task->module_parts[0].input.dtype == CLEAVE_I64;
  for (size_t i = 0; i < BATCHES; i++) {
    b->x[i] =
        has_words ? make_classes((size_t)BATCH * TIME, WORDS) : make_numbers((size_t)BATCH * 16);
    b->y[i] = has_words ? make_classes(BATCH, CLASSES) : make_numbers(BATCH);
    set_shape(&b->x[i], 2, has_words ? TIME : 16);
    set_shape(&b->y[i], has_words ? 1 : 2, 1);
    for (size_t k = 0; !has_words && k < BATCH; k++)
      ((float *)b->y[i].data)[k] = ((float *)b->y[i].data)[k] < 0.5f ? 0 : 1;
  }
}

/* ---- the measured program -------------------------------------------------------------------- */

static void open_program(bench *b, const char *session) {
  const task *t = b->task;
  static const char *const names[MAX_PARTS] = {"first", "second", "third"};
  cleave_options options = {.size = sizeof options, .single_thread = b->has_final_steps};
  require_success(cleave_open(session, &options, &b->rt, &e));
  for (size_t i = 0; i < t->n_parts; i++) {
    cleave_module_options o = {
        .size = sizeof o, .name = names[i], .at = t->module_parts[i].at, .seed = 40};
    require_success(cleave_load_layers(b->rt, &o, t->module_parts[i].layers,
                                       &t->module_parts[i].input, &b->modules[i], &e));
  }
  cleave_module_options o = {.size = sizeof o, .name = "loss", .at = t->loss_at};
  require_success(cleave_load_loss(b->rt, &o, t->loss, &t->prediction_input, &b->loss, &e));
  cleave_group group = t->optimizer_group;
  group.modules = b->modules;
  group.n_modules = t->n_parts;
  group.no_rollback = b->has_final_steps;
  require_success(cleave_optimizer_new(b->rt, &group, 1, 0, &b->optimizer, &e));
  make_batches(b);
}

static void close_context(bench *b, cleave_context c) {
  require_success(b->has_final_steps ? cleave_context_end(b->rt, c, &e)
                                     : cleave_context_close(b->rt, c, 0, &e));
}

static void run_step(bench *b, uint64_t clock[SECTIONS + 1]) {
  cleave_context c;
  cleave_reference at, both[2], loss;
  cleave_step_result step_result;
  size_t batch = b->n_steps_run++ % BATCHES;
  clock[0] = clv_now_ns();
  require_success(cleave_context_open(b->rt, NULL, &c, &e));
  require_success(cleave_leaf(b->rt, c, &b->x[batch], false, &at, &e));
  for (size_t i = 0; i < b->task->n_parts; i++)
    require_success(cleave_call(b->rt, c, b->modules[i], &at, 1, &at, &e));
  both[0] = at;
  require_success(cleave_leaf(b->rt, c, &b->y[batch], false, &both[1], &e));
  require_success(cleave_call(b->rt, c, b->loss, both, 2, &loss, &e));
  clock[1] = clv_now_ns();
  require_success(cleave_backward(b->rt, c, &loss, 1, false, 0, &e));
  clock[2] = clv_now_ns();
  require_success(cleave_step(b->rt, b->optimizer, c, 0, &step_result, &e));
  if (!step_result.applied) exit_with_message("a step was not applied");
  clock[3] = clv_now_ns();
  require_success(cleave_to_here(b->rt, loss, 0, &b->loss_value, &e));
  clock[4] = clv_now_ns();
  close_context(b, c);
  clock[5] = clv_now_ns();
}

static void measure_steps(bench *b, unsigned n) {
  double *ms = allocate_samples(n);
  uint64_t clock[SECTIONS + 1];
  for (unsigned i = 0; i < n; i++) {
    run_step(b, clock);
    ms[i] = (double)(clock[SECTIONS] - clock[0]) / 1e6;
  }
  print_list(ms, n);
  free(ms);
}

static void measure_sections(bench *b, unsigned n) {
  uint64_t clock[SECTIONS + 1];
  for (unsigned i = 0; i < n; i++) {
    run_step(b, clock);
    printf(i ? ", [" : "[[");
    for (int k = 0; k < SECTIONS; k++)
      printf("%s%.9g", k ? ", " : "", (double)(clock[k + 1] - clock[k]) / 1e6);
    printf("]");
  }
  printf("]\n");
  fflush(stdout);
}

int main(int argc, char **argv) {
  static bench b;
  char line[128];
  unsigned n;
  b.has_final_steps = argc == 4 && strcmp(argv[3], "final") == 0;
  for (size_t i = 0; argc == 3 + b.has_final_steps && i < CLV_COUNT(tasks); i++)
    if (strcmp(argv[1], tasks[i].name) == 0) b.task = &tasks[i];
  if (!b.task) exit_with_message("usage: bench_context mlp|lstm SESSION.yaml [final]");
  open_program(&b, argv[2]);
  printf("ready\n");
  fflush(stdout);
  while (fgets(line, sizeof line, stdin)) {
    if (sscanf(line, "steps %u", &n) == 1)
      measure_steps(&b, n);
    else if (sscanf(line, "parts %u", &n) == 1)
      measure_sections(&b, n);
    else
      exit_with_message("unknown command");
  }
  return cleave_close(b.rt, 0, NULL, NULL) == CLEAVE_OK ? 0 : 1;
}
