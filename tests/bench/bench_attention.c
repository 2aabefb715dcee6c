/* SPDX-License-Identifier: Apache-2.0
 *
 * Measures the op attention alone: forward and backward with dropout, on one thread. Queries, keys
 * and values are [N, T, heads * width], as the layers before attention write them. P is the
 * probability of dropout.
 *
 * usage: bench_attention N T HEADS WIDTH P
 * commands: steps N   milliseconds of each of N steps
 */
#include <string.h>

#include "kernels/kernels.h"
#include "kernels/ops/ops.h"
#include "tests/bench/bench_int.h"

enum { Q, K, V, INPUTS };

typedef struct bench {
  clv_kernel *kernel;
  clv_kernel_args args;
  size_t n_values; /* number of values of each input, and of the output */
} bench;

static void *allocate_zeroed(size_t bytes) {
  void *p;
  clv_err err;
  must(clv_alloc_aligned(bytes, &p, &err), &err);
  memset(p, 0, bytes);
  return p;
}

static float *draw_floats(size_t n, uint32_t stream) {
  float *x = allocate_zeroed(n * sizeof *x);
  clv_rng_key key = {.seed = 7, .layer = stream};
  clv_rng_uniform(&key, -1, 1, x, n);
  return x;
}

static void prepare_kernel(bench *b, const clv_node_desc *d) {
  clv_err err;
  must(clv_backend_cpu()->prepare(clv_backend_cpu(), d, &b->kernel, &err), &err);
  b->args = (clv_kernel_args){.out = allocate_zeroed(b->n_values * sizeof(float)),
                              .saved = allocate_zeroed(b->kernel->saved_bytes),
                              .scratch = allocate_zeroed(b->kernel->scratch_bytes),
                              .dout = draw_floats(b->n_values, INPUTS),
                              .key = {.seed = 3}};
  for (uint32_t i = 0; i < INPUTS; i++) {
    b->args.in[i] = draw_floats(b->n_values, i);
    b->args.din[i] = allocate_zeroed(b->n_values * sizeof(float));
  }
}

static void open_kernel(bench *b, const int64_t *extent, double p) {
  const clv_shape shape = CLV_SHAPE(extent[0], extent[1], extent[2] * extent[3]);
  clv_node_desc d = {.op = CLV_OP_ATTENTION,
                     .attrs = {.heads = extent[2], .p = p},
                     .dtype = CLV_F32,
                     .n_in = INPUTS,
                     .out = shape,
                     .training = true,
                     .threads = 1};
  for (int i = 0; i < INPUTS; i++) {
    d.in[i] = shape;
    d.in_dtype[i] = CLV_F32;
    d.offered_block[i] = 1;
    d.need_dx[i] = true;
  }
  b->n_values = clv_layout_numel(&shape, 1);
  prepare_kernel(b, &d);
}

static void measure_steps(bench *b, unsigned n) {
  double *ms = allocate_samples(n);
  clv_err err;
  for (unsigned i = 0; i < n; i++) {
    uint64_t begin = clv_now_ns();
    b->args.key.step++;
    must(b->kernel->forward(b->kernel, &b->args, &err), &err);
    must(b->kernel->backward_input(b->kernel, &b->args, &err), &err);
    ms[i] = (double)(clv_now_ns() - begin) / 1e6;
  }
  print_list(ms, n);
  free(ms);
}

int main(int argc, char **argv) {
  static bench b;
  char line[128];
  int64_t extent[4];
  unsigned n;
  if (argc != 6) exit_with_message("usage: bench_attention N T HEADS WIDTH P");
  for (int i = 0; i < 4; i++) extent[i] = atoll(argv[i + 1]);
  open_kernel(&b, extent, atof(argv[5]));
  printf("ready\n");
  fflush(stdout);
  while (fgets(line, sizeof line, stdin)) {
    if (sscanf(line, "steps %u", &n) != 1) exit_with_message("unknown command");
    measure_steps(&b, n);
  }
  b.kernel->free(b.kernel);
  return 0;
}
