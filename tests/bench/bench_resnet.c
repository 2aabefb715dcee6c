/* SPDX-License-Identifier: Apache-2.0
 *
 * Training steps of ResNet50 in one plan: mean squared error, SGD, the batch in one piece.
 *
 * usage: bench_resnet BATCH SIZE THREADS [bf16]
 * commands: steps N     milliseconds of each of N steps
 *           cpu N       the same in processor time of this process
 *           rss         MiB resident before the plan was made, and at most
 *           profile N   milliseconds a step of each op and phase, on standard error; then []
 *           describe    the plan's steps and the last loss, on standard error; then []
 */
#include <string.h>
#include <time.h>

#include "common/engine/engine.h"
#include "common/model/optim/optim.h"
#include "tests/bench/networks_int.h"
#include "tests/bench/profile_int.h"

typedef struct bench {
  int64_t batch, size;
  clv_graph *graph;
  clv_params *params;
  clv_plan *plan;
  clv_optim *optim;
  char *block, *grads;
  float *x, *target, loss;
  uint64_t version;
  double idle_mib;
} bench;

/* ---- one step -------------------------------------------------------------------------------- */

static void take(size_t bytes, void *ret_pp) {
  clv_err err;
  must(clv_alloc_aligned(bytes, ret_pp, &err), &err);
}

static void optim_open(bench *b) {
  clv_optim_config config = {.kind = CLV_OPTIM_SGD, .lr = 0.05};
  clv_optim_span span = {.n = b->params->trainable_bytes / sizeof(float)};
  clv_err err;
  must(clv_optim_new(&config, 1, b->params->trainable_bytes, &span, 1, clv_backend_cpu(), &b->optim,
                     &err),
       &err);
}

static void data_open(bench *b) {
  size_t n = (size_t)(b->batch * 3 * b->size * b->size), classes = (size_t)b->batch * NET_CLASSES;
  take(n * sizeof(float), &b->x);
  take(classes * sizeof(float), &b->target);
  clv_rng_normal(&(clv_rng_key){.seed = 1}, 0, 1, b->x, n);
  memset(b->target, 0, classes * sizeof(float));
  for (size_t i = 0; i < (size_t)b->batch; i++)
    b->target[i * NET_CLASSES + i * 37 % NET_CLASSES] = 1;
}

static void bench_open(bench *b, int threads, bool bf16) {
  clv_err err;
  clv_plan_options po = {.backend = profiled_backend(),
                         .dtype = CLV_F32,
                         .batch = b->batch,
                         .training = true,
                         .threads = threads,
                         .bf16 = bf16,
                         .transient_weights = true};
  b->graph = net_resnet50(b->batch, b->size);
  must(clv_params_make(b->graph, &b->params, &err), &err);
  must(clv_plan_new(b->graph, b->params, &po, &b->plan, &err), &err);
  take(b->params->total_bytes, &b->block);
  take(b->params->trainable_bytes, &b->grads);
  clv_params_init(b->graph, b->params, b->block);
  optim_open(b);
  data_open(b);
}

static void step(bench *b) {
  const void *in[] = {b->x, b->target};
  void *din[] = {NULL, NULL};
  const float one = 1;
  const double lr = 0.05;
  clv_call *c;
  clv_err err;
  must(clv_plan_call_get(b->plan, &c, &err), &err);
  must(clv_plan_forward(b->plan, c, b->block, b->version, in, true, &b->loss, NULL, &err), &err);
  must(clv_plan_backward_input(b->plan, c, b->block, &one, din, b->grads, false, &err), &err);
  must(clv_plan_backward_weight(b->plan, c, b->block, b->grads, false, &err), &err);
  clv_plan_call_put(b->plan, c);
  uint64_t begin = clv_now_ns();
  clv_optim_step(b->optim, (float *)b->block, (const float *)b->grads, &lr, 1);
  profile_note("optimiser", begin);
  b->version++;
}

/* ---- commands -------------------------------------------------------------------------------- */

static double clock_ms(clockid_t clock) {
  struct timespec t;
  clock_gettime(clock, &t);
  return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

static void steps(bench *b, unsigned n, clockid_t clock) {
  double *ms = samples_new(n);
  for (unsigned i = 0; i < n; i++) {
    double begin = clock_ms(clock);
    step(b);
    ms[i] = clock_ms(clock) - begin;
  }
  answer(ms, n);
  free(ms);
}

static double resident_mib(const char *key) {
  char line[256];
  double kib = 0;
  FILE *f = fopen("/proc/self/status", "r");
  if (!f) die("/proc/self/status cannot be read");
  while (fgets(line, sizeof line, f))
    if (!strncmp(line, key, strlen(key))) kib = atof(line + strlen(key));
  fclose(f);
  return kib / 1024;
}

static void profile(bench *b, unsigned n) {
  profile_reset();
  for (unsigned i = 0; i < n; i++) step(b);
  profile_print(stderr, n);
  answer(NULL, 0);
}

static void describe(bench *b) {
  clv_bytes text = {0};
  clv_plan_describe(b->plan, &text);
  fwrite(text.data, 1, text.len, stderr);
  clv_bytes_done(&text);
  fprintf(stderr, "loss %.9g\n", b->loss);
  answer(NULL, 0);
}

int main(int argc, char **argv) {
  static bench b;
  char line[128];
  unsigned n;
  if (argc != 4 && !(argc == 5 && !strcmp(argv[4], "bf16")))
    die("usage: bench_resnet BATCH SIZE THREADS [bf16]");
  b.batch = atol(argv[1]);
  b.size = atol(argv[2]);
  clv_tune_malloc(); /* as main of cleave-master does */
  b.idle_mib = resident_mib("VmRSS:");
  bench_open(&b, atoi(argv[3]), argc == 5);
  printf("ready\n");
  fflush(stdout);
  while (fgets(line, sizeof line, stdin)) {
    if (sscanf(line, "steps %u", &n) == 1)
      steps(&b, n, CLOCK_MONOTONIC);
    else if (sscanf(line, "cpu %u", &n) == 1)
      steps(&b, n, CLOCK_PROCESS_CPUTIME_ID);
    else if (sscanf(line, "profile %u", &n) == 1)
      profile(&b, n);
    else if (!strncmp(line, "rss", 3))
      answer((double[]){b.idle_mib, resident_mib("VmHWM:")}, 2);
    else if (!strncmp(line, "describe", 8))
      describe(&b);
    else
      die("unknown command");
  }
  return 0;
}
