/* SPDX-License-Identifier: Apache-2.0
 *
 * Measures training steps of ResNet50 in one plan: mean squared error, SGD, and a batch that is not
 * divided into micro-batches.
 *
 * usage: bench_resnet BATCH SIZE THREADS [bf16]
 * commands: steps N     milliseconds of each of N steps
 *           cpu N       milliseconds of processor time of this process for each of N steps
 *           rss         resident memory in MiB before the plan was made, and its maximum
 *           profile N   milliseconds per step of each op and phase, on standard error; then []
 *           describe    the plan's steps and the last loss, on standard error; then []
 */
#include <string.h>
#include <time.h>

#include "common/engine/engine.h"
#include "common/model/optim/optim.h"
#include "tests/bench/networks_int.h"
#include "tests/bench/profile_int.h"

typedef struct bench {
  int64_t batch_size, image_size;
  clv_graph *graph;
  clv_params *params;
  clv_plan *module_plan;
  clv_optim *optimizer;
  char *parameter_block, *gradient_block;
  float *x, *target, loss;
  uint64_t weights_version;
  double idle_memory_mib;
} bench;

/* ---- one training step ----------------------------------------------------------------------- */

static void allocate(size_t bytes, void *ret_pp) {
  clv_err err;
  must(clv_alloc_aligned(bytes, ret_pp, &err), &err);
}

static void make_optimizer(bench *b) {
  clv_optim_config config = {.kind = CLV_OPTIM_SGD, .lr = 0.05};
  clv_optim_span span = {.n = b->params->trainable_bytes / sizeof(float)};
  clv_err err;
  must(clv_optim_new(&config, 1, b->params->trainable_bytes, &span, 1, clv_backend_cpu(),
                     &b->optimizer, &err),
       &err);
}

static void make_data(bench *b) {
  size_t n = (size_t)(b->batch_size * 3 * b->image_size * b->image_size),
         classes = (size_t)b->batch_size * NET_CLASSES;
  allocate(n * sizeof(float), &b->x);
  allocate(classes * sizeof(float), &b->target);
  clv_rng_normal(&(clv_rng_key){.seed = 1}, 0, 1, b->x, n);
  memset(b->target, 0, classes * sizeof(float));
  for (size_t i = 0; i < (size_t)b->batch_size; i++)
    b->target[i * NET_CLASSES + i * 37 % NET_CLASSES] = 1;
}

static void open_bench(bench *b, int threads, bool is_bf16) {
  clv_err err;
  clv_plan_options po = {.backend = profiled_backend(),
                         .dtype = CLV_F32,
                         .batch = b->batch_size,
                         .training = true,
                         .threads = threads,
                         .bf16 = is_bf16,
                         .transient_weights = true};
  b->graph = net_make_resnet50(b->batch_size, b->image_size);
  must(clv_params_make(b->graph, &b->params, &err), &err);
  must(clv_plan_new(b->graph, b->params, &po, &b->module_plan, &err), &err);
  allocate(b->params->total_bytes, &b->parameter_block);
  allocate(b->params->trainable_bytes, &b->gradient_block);
  clv_params_init(b->graph, b->params, b->parameter_block);
  make_optimizer(b);
  make_data(b);
}

static void run_step(bench *b) {
  const void *in[] = {b->x, b->target};
  void *din[] = {NULL, NULL};
  const float one = 1;
  const double lr = 0.05;
  clv_call *c;
  clv_err err;
  must(clv_plan_call_get(b->module_plan, &c, &err), &err);
  must(clv_plan_forward(b->module_plan, c, b->parameter_block, b->weights_version, in, true,
                        &b->loss, NULL, &err),
       &err);
  must(clv_plan_backward_input(b->module_plan, c, b->parameter_block, &one, din, b->gradient_block,
                               false, &err),
       &err);
  must(clv_plan_backward_weight(b->module_plan, c, b->parameter_block, b->gradient_block, false,
                                &err),
       &err);
  clv_plan_call_put(b->module_plan, c);
  uint64_t begin = clv_now_ns();
  clv_optim_step(b->optimizer, (float *)b->parameter_block, (const float *)b->gradient_block, &lr,
                 1);
  profile_add_time("optimiser", begin);
  b->weights_version++;
}

/* ---- commands of bench.py on standard input -------------------------------------------------- */

static double read_clock_ms(clockid_t clock) {
  struct timespec t;
  clock_gettime(clock, &t);
  return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

static void measure_steps(bench *b, unsigned n, clockid_t clock) {
  double *ms = allocate_samples(n);
  for (unsigned i = 0; i < n; i++) {
    double begin = read_clock_ms(clock);
    run_step(b);
    ms[i] = read_clock_ms(clock) - begin;
  }
  print_list(ms, n);
  free(ms);
}

static double read_memory_mib(const char *key) {
  char line[256];
  double kib = 0;
  FILE *f = fopen("/proc/self/status", "r");
  if (!f) exit_with_message("/proc/self/status cannot be read");
  while (fgets(line, sizeof line, f))
    if (!strncmp(line, key, strlen(key))) kib = atof(line + strlen(key));
  fclose(f);
  return kib / 1024;
}

static void print_profile(bench *b, unsigned n) {
  profile_reset();
  for (unsigned i = 0; i < n; i++) run_step(b);
  profile_print(stderr, n);
  print_list(NULL, 0);
}

static void print_plan(bench *b) {
  clv_bytes text = {0};
  clv_plan_describe(b->module_plan, &text);
  fwrite(text.data, 1, text.len, stderr);
  clv_bytes_done(&text);
  fprintf(stderr, "loss %.9g\n", b->loss);
  print_list(NULL, 0);
}

int main(int argc, char **argv) {
  static bench b;
  char line[128];
  unsigned n;
  if (argc != 4 && !(argc == 5 && !strcmp(argv[4], "bf16")))
    exit_with_message("usage: bench_resnet BATCH SIZE THREADS [bf16]");
  b.batch_size = atol(argv[1]);
  b.image_size = atol(argv[2]);
  clv_tune_malloc(); /* tunes malloc as the main function of cleave-master does */
  b.idle_memory_mib = read_memory_mib("VmRSS:");
  open_bench(&b, atoi(argv[3]), argc == 5);
  printf("ready\n");
  fflush(stdout);
  while (fgets(line, sizeof line, stdin)) {
    if (sscanf(line, "steps %u", &n) == 1)
      measure_steps(&b, n, CLOCK_MONOTONIC);
    else if (sscanf(line, "cpu %u", &n) == 1)
      measure_steps(&b, n, CLOCK_PROCESS_CPUTIME_ID);
    else if (sscanf(line, "profile %u", &n) == 1)
      print_profile(&b, n);
    else if (!strncmp(line, "rss", 3))
      print_list((double[]){b.idle_memory_mib, read_memory_mib("VmHWM:")}, 2);
    else if (!strncmp(line, "describe", 8))
      print_plan(&b);
    else
      exit_with_message("unknown command");
  }
  return 0;
}
