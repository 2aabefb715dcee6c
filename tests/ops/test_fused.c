/* SPDX-License-Identifier: Apache-2.0
 *
 * Compares a batchnorm kernel with a tail (fused add and relu) with the separate ops: the same
 * bits, forward and backward, in every layout, for every number of threads, and in place if the
 * kernel allows it.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
/* cmocka.h requires the headers above */
#include <cmocka.h>

#include "kernels/kernels.h"
#include "tests/long.h"

typedef struct setup {
  clv_shape shape;
  int channel_block, n_threads;
  bool has_add, is_training, is_in_place, has_accumulation;
} setup;

enum { VALUES = 4, RESULTS = 7 };

/* Results of a run: out; gradients of x, of the other input, of weight and of bias; running mean
 * and variance. */
typedef struct results {
  float *v[RESULTS];
  size_t n[RESULTS];
} results;

static void *allocate_memory(size_t bytes) {
  clv_err err;
  void *p;
  if (clv_alloc_aligned(bytes, &p, &err) != CLV_OK) fail_msg("%s", err.text);
  memset(p, 0xFF, bytes); /* bytes 0xFF are NaN */
  return p;
}

/* Draws multiples of 0.5, so that some outputs are exactly 0. has_nan: one value is NaN. */
static float *draw_values(const setup *s, uint32_t stream, bool has_nan) {
  size_t n = clv_layout_numel(&s->shape, 1);
  float *row = allocate_memory(n * sizeof *row);
  clv_err err;
  clv_rng_normal(&(clv_rng_key){.seed = 3, .layer = stream}, 0, 1, row, n);
  for (size_t i = 0; i < n; i++) row[i] = roundf(row[i] * 2) / 2;
  if (has_nan) row[n / 3] = NAN;
  float *p = allocate_memory(clv_layout_numel(&s->shape, s->channel_block) * sizeof *p);
  assert_int_equal(clv_backend_cpu()->reorder(clv_backend_cpu(), &s->shape, CLV_F32, row, 1, p,
                                              s->channel_block, &err),
                   CLV_OK);
  free(row);
  return p;
}

/* ---- preparing one kernel -------------------------------------------------------------------- */

static clv_kernel *prepare_kernel(const setup *s, clv_op op, unsigned tail, int n_in) {
  clv_node_desc d = {.op = op,
                     .attrs = {.eps = 1e-5, .momentum = 0.1},
                     .dtype = CLV_F32,
                     .n_in = n_in,
                     .out = s->shape,
                     .training = s->is_training,
                     .threads = s->n_threads,
                     .tail = tail};
  clv_kernel *k;
  clv_err err;
  for (int i = 0; i < n_in; i++) {
    d.in[i] = s->shape;
    d.in_dtype[i] = CLV_F32;
    d.offered_block[i] = s->channel_block;
    d.need_dx[i] = true;
  }
  if (op == CLV_OP_BATCHNORM) {
    d.n_params = 5;
    for (int i = 0; i < 4; i++) d.param[i] = CLV_SHAPE(s->shape.dim[1]);
    d.need_dw = true;
  }
  if (clv_backend_cpu()->prepare(clv_backend_cpu(), &d, &k, &err) != CLV_OK)
    fail_msg("%s", err.text);
  assert_int_equal(k->in_block[0], s->channel_block);
  assert_int_equal(k->out_block, s->channel_block);
  return k;
}

static void run_kernel(clv_code (*fn)(clv_kernel *, const clv_kernel_args *, clv_err *),
                       clv_kernel *k, const clv_kernel_args *a) {
  clv_err err;
  if (fn(k, a, &err) != CLV_OK) fail_msg("%s", err.text);
}

/* ---- fused and separate kernels -------------------------------------------------------------- */

typedef struct memory {
  float *x, *other_input, *dout;
  int64_t n_tracked_batches;
  void *saved_memory, *scratch_memory;
} memory;

static void allocate_results(const setup *s, results *r) {
  size_t n_elements = clv_layout_numel(&s->shape, s->channel_block),
         n_channels = (size_t)s->shape.dim[1];
  for (int i = 0; i < RESULTS; i++) {
    r->n[i] = i < 3 ? n_elements : n_channels;
    r->v[i] = allocate_memory(r->n[i] * sizeof(float));
    for (size_t c = 0; i >= 3 && c < n_channels; c++) r->v[i][c] = 1;
  }
}

static clv_kernel_args make_norm_args(const memory *m, results *r, float *weight, float *bias) {
  return (clv_kernel_args){
      .in = {m->x},
      .param = {weight, bias, r->v[5], r->v[6], (void *)(uintptr_t)&m->n_tracked_batches},
      .saved = m->saved_memory,
      .scratch = m->scratch_memory,
      .out = r->v[0],
      .dparam = {r->v[3], r->v[4]}};
}

static void run_unfused(const setup *s, memory *m, results *r, float *weight, float *bias) {
  clv_kernel *norm = prepare_kernel(s, CLV_OP_BATCHNORM, 0, 1);
  clv_kernel *add = prepare_kernel(s, CLV_OP_ADD, 0, 2),
             *relu = prepare_kernel(s, CLV_OP_RELU, 0, 1);
  size_t bytes = r->n[0] * sizeof(float);
  float *y = allocate_memory(bytes), *z = allocate_memory(bytes), *dz = allocate_memory(bytes);
  m->saved_memory = allocate_memory(norm->saved_bytes);
  m->scratch_memory = allocate_memory(norm->scratch_bytes);
  clv_kernel_args a = make_norm_args(m, r, weight, bias);
  a.accumulate = s->has_accumulation;
  a.out = y;
  run_kernel(norm->forward, norm, &a);
  if (s->has_add)
    run_kernel(add->forward, add, &(clv_kernel_args){.in = {y, m->other_input}, .out = z});
  run_kernel(relu->forward, relu, &(clv_kernel_args){.in = {s->has_add ? z : y}, .out = r->v[0]});
  run_kernel(relu->backward_input, relu,
             &(clv_kernel_args){.out = r->v[0], .dout = m->dout, .din = {dz}});
  memcpy(r->v[2], dz, bytes);
  a.dout = dz;
  a.din[0] = r->v[1];
  run_kernel(norm->backward_input, norm, &a);
  clv_kernel *kernels[] = {norm, add, relu};
  for (int i = 0; i < 3; i++) kernels[i]->free(kernels[i]);
  free(y);
  free(z);
  free(dz);
  free(m->saved_memory);
  free(m->scratch_memory);
}

/* Asserts that the kernel recomputes the output with the same bits. Then drops the output, because
 * backward runs without it. */
static void check_recompute(clv_kernel *k, clv_kernel_args *a, const results *r) {
  clv_kernel_args recompute_args = *a;
  recompute_args.out = allocate_memory(r->n[0] * sizeof(float));
  run_kernel(k->recompute, k, &recompute_args);
  assert_memory_equal(recompute_args.out, r->v[0], r->n[0] * sizeof(float));
  free(recompute_args.out);
  a->out = NULL;
}

/* Runs the fused kernel, in place if the setup says so: a gradient shares the memory of dout where
 * the kernel allows it. */
static void check_in_place(const setup *s, memory *m, results *r, float *weight, float *bias) {
  unsigned tail = s->has_add ? CLV_TAIL_ADD | CLV_TAIL_RELU : CLV_TAIL_RELU;
  clv_kernel *k = prepare_kernel(s, CLV_OP_BATCHNORM, tail, s->has_add ? 2 : 1);
  int shares_dout = s->has_add ? 1 : 0;
  float *dout = allocate_memory(r->n[0] * sizeof(float));
  memcpy(dout, m->dout, r->n[0] * sizeof(float));
  assert_int_equal(k->din_in_place_mask, 1u << shares_dout);
  assert_int_equal(k->saved_flags, s->has_add ? CLV_SAVE_IN0 | CLV_SAVE_OUT : CLV_SAVE_IN0);
  m->saved_memory = allocate_memory(k->saved_bytes);
  m->scratch_memory = allocate_memory(k->scratch_bytes);
  clv_kernel_args a = make_norm_args(m, r, weight, bias);
  a.accumulate = s->has_accumulation;
  a.in[1] = s->has_add ? m->other_input : NULL;
  run_kernel(k->forward, k, &a);
  if (!s->has_add) check_recompute(k, &a, r);
  a.in[1] = NULL;
  a.dout = dout;
  a.din[0] = r->v[1];
  a.din[1] = s->has_add ? r->v[2] : NULL;
  if (s->is_in_place) a.din[shares_dout] = dout;
  run_kernel(k->backward_input, k, &a);
  if (s->is_in_place) memcpy(r->v[1 + shares_dout], dout, r->n[0] * sizeof(float));
  k->free(k);
  free(dout);
  free(m->saved_memory);
  free(m->scratch_memory);
}

static void check_setup(const setup *s, int nan_input) {
  static const char *const names[RESULTS] = {"out",   "dx",           "dother",     "dweight",
                                             "dbias", "running_mean", "running_var"};
  size_t channels = (size_t)s->shape.dim[1];
  results a, b;
  float *weight = allocate_memory(channels * sizeof(float)),
        *bias = allocate_memory(channels * sizeof(float));
  clv_rng_uniform(&(clv_rng_key){.seed = 4}, -1, 1, weight, channels);
  clv_rng_uniform(&(clv_rng_key){.seed = 5}, -1, 1, bias, channels);
  bias[0] = weight[0] = 0; /* makes outputs of exactly 0, where the slope of relu changes */
  memory m = {draw_values(s, 1, nan_input == 1),
              draw_values(s, 2, nan_input == 2),
              draw_values(s, 3, nan_input == 3),
              0,
              NULL,
              NULL};
  allocate_results(s, &a);
  allocate_results(s, &b);
  run_unfused(s, &m, &a, weight, bias);
  check_in_place(s, &m, &b, weight, bias);
  for (int i = 0; i < RESULTS; i++)
    if ((i != 2 || s->has_add) && memcmp(a.v[i], b.v[i], a.n[i] * sizeof(float)))
      fail_msg("%s: block %d, %d threads, %s%s%s: not the bits of the ops apart", names[i],
               s->channel_block, s->n_threads, s->has_add ? "add, " : "",
               s->is_training ? "training" : "evaluation", s->is_in_place ? ", in place" : "");
  for (int i = 0; i < RESULTS; i++) {
    free(a.v[i]);
    free(b.v[i]);
  }
  free(m.x);
  free(m.other_input);
  free(m.dout);
  free(weight);
  free(bias);
}

/* Each setup runs without NaN, with a NaN in x, with one in the other input and with one in dout.
 * `make test` runs each setup with only one of these four inputs. */
static void fused_batchnorm_gives_the_same_bits(void **state) {
  (void)state;
  static const int blocks[] = {1, 8, 16, 1 | CLV_LAYOUT_CHANNELS_LAST};
  const clv_shape shapes[] = {CLV_SHAPE(3, 7, 4, 3), CLV_SHAPE(2, 17, 3, 3),
                              CLV_SHAPE(4, 32, 14, 14), CLV_SHAPE(4, 64, 4, 4)};
  int n = 0;
  for (size_t shape = 0; shape < CLV_COUNT(shapes); shape++)
    for (size_t block = 0; block < CLV_COUNT(blocks); block++)
      for (int option_bits = 0; option_bits < 32; option_bits++)
        for (int which = 0; which < VALUES; which++, n++) {
          if (!is_long() && ((size_t)option_bits + block + shape) % VALUES != (size_t)which)
            continue;
          setup s = {.shape = shapes[shape],
                     .channel_block = blocks[block],
                     .n_threads = option_bits & 1 ? 2 : 1,
                     .has_add = option_bits & 2,
                     .is_training = option_bits & 4,
                     .is_in_place = option_bits & 8,
                     .has_accumulation = option_bits & 16};
          check_setup(&s, which);
        }
  print_message("%d kernels with tails have the bits of the ops apart\n", n);
}

/* Only batchnorm supports a tail, an add or relu that the same kernel computes. The backend ref
 * supports none: prepare returns CLV_UNIMPLEMENTED to the plan. */
static void unsupported_tails_are_refused(void **state) {
  (void)state;
  clv_node_desc d = {.op = CLV_OP_RELU,
                     .dtype = CLV_F32,
                     .n_in = 1,
                     .in = {CLV_SHAPE(1, 2)},
                     .out = CLV_SHAPE(1, 2),
                     .tail = CLV_TAIL_RELU};
  clv_kernel *k;
  clv_err err;
  assert_int_equal(clv_backend_cpu()->prepare(clv_backend_cpu(), &d, &k, &err), CLV_UNIMPLEMENTED);
  d.op = CLV_OP_BATCHNORM;
  assert_int_equal(clv_backend_ref()->prepare(clv_backend_ref(), &d, &k, &err), CLV_UNIMPLEMENTED);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(fused_batchnorm_gives_the_same_bits),
      cmocka_unit_test(unsupported_tails_are_refused),
  };
  return cmocka_run_group_tests_name("fused", tests, NULL, NULL);
}
