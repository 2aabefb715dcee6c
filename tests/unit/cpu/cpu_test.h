/* SPDX-License-Identifier: Apache-2.0
 *
 * Runs one node on the cpu backend. Inputs are converted to the layouts that the kernel wants,
 * outputs are filled with NaN before the run, and results are converted back to row-major.
 */
#ifndef CLEAVE_TESTS_CPU_TEST_H
#define CLEAVE_TESTS_CPU_TEST_H

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/kernels.h"

typedef struct node {
  clv_node_desc d;
  clv_kernel *k;
  clv_kernel_args a;
  int64_t n_tracked_batches;
} node;

static inline size_t count_elements(const clv_shape *s) { return clv_layout_numel(s, 1); }

static inline void *allocate_bytes(size_t bytes) {
  clv_err err;
  void *p = NULL;
  if (clv_alloc_aligned(bytes + 64, &p, &err) != CLV_OK) fail_msg("%s", err.text);
  memset(p, 0xff, bytes + 64); /* fills the memory with NaN, whose bytes are 0xff */
  return p;
}

static inline float *allocate_floats(size_t n) { return allocate_bytes(n * sizeof(float)); }

static inline void draw_normal(float *x, size_t n, uint32_t stream) {
  clv_rng_normal(&(clv_rng_key){.seed = 3, .layer = stream}, 0, 1, x, n);
}

static inline void ok(clv_code code, const clv_err *err) {
  if (code != CLV_OK) fail_msg("%s: %s", clv_code_name(code), err->text);
}

/* Copies row-major values to a new buffer, in the layout with blocks of `b` channels. */
static inline float *copy_to_layout(const clv_shape *shape, const float *row_major, int b) {
  float *x = allocate_floats(clv_layout_numel(shape, b));
  clv_err err;
  if (b == 1)
    memcpy(x, row_major, count_elements(shape) * sizeof *x);
  else
    ok(clv_backend_cpu()->reorder(clv_backend_cpu(), shape, CLV_F32, row_major, 1, x, b, &err),
       &err);
  return x;
}

/* Returns a row-major copy of x. Fails the test if a padding lane is not zero. */
static inline float *copy_to_row_major(const clv_shape *shape, const float *x, int b) {
  float *row_major = allocate_floats(count_elements(shape));
  clv_err err;
  if (b == 1) {
    memcpy(row_major, x, count_elements(shape) * sizeof *x);
    return row_major;
  }
  ok(clv_backend_cpu()->reorder(clv_backend_cpu(), shape, CLV_F32, x, b, row_major, 1, &err), &err);
  float *padded_copy = copy_to_layout(shape, row_major, b);
  for (size_t i = 0; i < clv_layout_numel(shape, b); i++)
    if (padded_copy[i] != x[i] && !(isnan(padded_copy[i]) && isnan(x[i])))
      fail_msg("element %zu in block %d is %g; its padding should be 0", i, b, x[i]);
  free(padded_copy);
  return row_major;
}

/* Returns the number of parameters of type float. Batchnorm has four: weight, bias and two running
 * statistics. Its integer counter of batches is not included. */
static inline int count_float_params(const clv_node_desc *d) {
  return d->op == CLV_OP_BATCHNORM ? CLV_SLOT_TRACKED : d->n_params;
}
static inline int count_trained_params(const clv_node_desc *d) {
  return d->op == CLV_OP_BATCHNORM ? CLV_SLOT_MEAN : d->n_params;
}

static inline void *make_row_numbers(const clv_node_desc *d) {
  int64_t *row_numbers = allocate_bytes(count_elements(&d->in[0]) * sizeof *row_numbers);
  for (size_t i = 0; i < count_elements(&d->in[0]); i++)
    row_numbers[i] = (int64_t)(i * i % (size_t)d->attrs.rows);
  return row_numbers;
}

/* Prepares a node. Fills its inputs, its output gradient (dout) and its parameters with random
 * numbers, which are the same at every call. */
static inline void prepare_node(node *n, const clv_node_desc *d) {
  clv_err err;
  memset(n, 0, sizeof *n);
  n->d = *d;
  n->d.dtype = CLV_F32;
  bool rows = d->op == CLV_OP_EMBEDDING;
  for (int i = 0; i < CLV_MAX_IN; i++) n->d.in_dtype[i] = rows ? CLV_I64 : CLV_F32;
  ok(clv_backend_cpu()->prepare(clv_backend_cpu(), &n->d, &n->k, &err), &err);
  clv_kernel_args *a = &n->a;
  a->refresh_for = CLV_FOR_FORWARD | CLV_FOR_BACKWARD;
  for (int i = 0; i < d->n_in; i++) {
    float *row_major = allocate_floats(count_elements(&d->in[i]));
    draw_normal(row_major, count_elements(&d->in[i]), 10 + (uint32_t)i);
    a->in[i] = rows ? make_row_numbers(d) : copy_to_layout(&d->in[i], row_major, n->k->in_block[i]);
    free(row_major);
    if (d->need_dx[i]) a->din[i] = allocate_floats(clv_layout_numel(&d->in[i], n->k->in_block[i]));
  }
  a->out = allocate_floats(clv_layout_numel(&d->out, n->k->out_block));
  float *dout = allocate_floats(count_elements(&d->out));
  draw_normal(dout, count_elements(&d->out), 20);
  a->dout = copy_to_layout(&d->out, dout, n->k->out_block);
  free(dout);
  for (int i = 0; i < count_float_params(d); i++) {
    a->param[i] = allocate_floats(count_elements(&d->param[i]));
    draw_normal(a->param[i], count_elements(&d->param[i]), 30 + (uint32_t)i);
    if (i == CLV_SLOT_VAR && d->op == CLV_OP_BATCHNORM)
      for (size_t j = 0; j < count_elements(&d->param[i]); j++)
        ((float *)a->param[i])[j] = 1 + fabsf(((float *)a->param[i])[j]);
    if (i < count_trained_params(d) && d->need_dw)
      a->dparam[i] = allocate_floats(count_elements(&d->param[i]));
  }
  if (d->op == CLV_OP_BATCHNORM) a->param[CLV_SLOT_TRACKED] = &n->n_tracked_batches;
  a->cache = allocate_bytes(n->k->cache_bytes);
  a->saved = allocate_bytes(n->k->saved_bytes);
  a->scratch = allocate_bytes(n->k->scratch_bytes);
  a->key = (clv_rng_key){.seed = 7, .step = 2, .micro_batch = 1, .layer = 5 << 4};
}

static inline void free_node(node *n) {
  for (int i = 0; i < CLV_MAX_IN; i++) {
    free((void *)(uintptr_t)n->a.in[i]);
    free(n->a.din[i]);
  }
  for (int i = 0; i < CLV_MAX_PARAMS; i++) free(n->a.dparam[i]);
  for (int i = 0; i < count_float_params(&n->d); i++) free(n->a.param[i]);
  free(n->a.out);
  free((void *)(uintptr_t)n->a.dout);
  free(n->a.cache);
  free(n->a.saved);
  free(n->a.scratch);
  n->k->free(n->k);
}

static inline void run_node(node *n) {
  clv_err err;
  clv_kernel *k = n->k;
  if (k->refresh) ok(k->refresh(k, &n->a, &err), &err);
  ok(k->forward(k, &n->a, &err), &err);
  memset(n->a.scratch, 0xff, k->scratch_bytes);
  if (k->backward_input) ok(k->backward_input(k, &n->a, &err), &err);
  memset(n->a.scratch, 0xff, k->scratch_bytes);
  if (k->backward_weight) ok(k->backward_weight(k, &n->a, &err), &err);
}

static inline float *copy_node_out(const node *n) {
  return copy_to_row_major(&n->d.out, n->a.out, n->k->out_block);
}
static inline float *copy_node_din(const node *n, int i) {
  return copy_to_row_major(&n->d.in[i], n->a.din[i], n->k->in_block[i]);
}

/* Asserts ||a - b|| <= 1e-5 ||b|| and no NaN. */
static inline void assert_near(const char *what, const float *a, const double *b, size_t n) {
  double difference = 0, norm = 0;
  for (size_t i = 0; i < n; i++) {
    difference += (a[i] - b[i]) * (a[i] - b[i]);
    norm += b[i] * b[i];
  }
  if (!(difference <= 1e-10 * norm))
    fail_msg("%s: relative distance %.3e over %zu values", what, sqrt(difference / norm), n);
}

static inline void assert_same_bits(const char *what, const float *a, const float *b, size_t n) {
  for (size_t i = 0; i < n; i++)
    if (memcmp(&a[i], &b[i], sizeof *a))
      fail_msg("%s: element %zu is %.9g in one run and %.9g in the other", what, i, a[i], b[i]);
}

/* Asserts that two runs of a node have equal results, bit by bit. */
static inline void assert_same_results(const char *what, const node *x, const node *y) {
  float *a = copy_node_out(x), *b = copy_node_out(y);
  assert_same_bits(what, a, b, count_elements(&x->d.out));
  free(a);
  free(b);
  for (int i = 0; i < x->d.n_in; i++) {
    if (!x->a.din[i]) continue;
    a = copy_node_din(x, i);
    b = copy_node_din(y, i);
    assert_same_bits(what, a, b, count_elements(&x->d.in[i]));
    free(a);
    free(b);
  }
  for (int i = 0; i < CLV_MAX_PARAMS; i++)
    if (x->a.dparam[i])
      assert_same_bits(what, x->a.dparam[i], y->a.dparam[i], count_elements(&x->d.param[i]));
  for (int i = 0; i < count_float_params(&x->d); i++)
    if (x->a.param[i])
      assert_same_bits(what, x->a.param[i], y->a.param[i], count_elements(&x->d.param[i]));
}

/* ---- descriptions of nodes ------------------------------------------------------------------- */

static inline clv_node_desc make_conv_desc(int64_t n, int64_t c, int64_t h, int64_t w, int64_t k,
                                           int64_t kernel, int64_t stride, int64_t pad,
                                           int64_t groups) {
  clv_node_desc d = {.op = CLV_OP_CONV2D,
                     .n_in = 1,
                     .n_params = 2,
                     .training = true,
                     .need_dx = {true},
                     .need_dw = true,
                     .threads = 1,
                     .offered_block = {1, 1}};
  d.attrs = (clv_attrs){.out = k,
                        .kernel = {kernel, kernel},
                        .stride = {stride, stride},
                        .pad = {pad, pad},
                        .groups = groups,
                        .bias = true};
  d.in[0] = CLV_SHAPE(n, c, h, w);
  d.out = CLV_SHAPE(n, k, (h + 2 * pad - kernel) / stride + 1, (w + 2 * pad - kernel) / stride + 1);
  d.param[0] = CLV_SHAPE(k, c / groups, kernel, kernel);
  d.param[1] = CLV_SHAPE(k);
  return d;
}

static inline clv_node_desc make_linear_desc(int64_t rows, int64_t features, int64_t out) {
  clv_node_desc d = {.op = CLV_OP_LINEAR,
                     .n_in = 1,
                     .n_params = 2,
                     .training = true,
                     .need_dx = {true},
                     .need_dw = true,
                     .threads = 1,
                     .offered_block = {1, 1}};
  d.attrs = (clv_attrs){.out = out, .bias = true};
  d.in[0] = CLV_SHAPE(rows, features);
  d.out = CLV_SHAPE(rows, out);
  d.param[0] = CLV_SHAPE(out, features);
  d.param[1] = CLV_SHAPE(out);
  return d;
}

/* Describes a batchnorm or dropout over images. */
static inline clv_node_desc make_image_desc(clv_op op, int64_t n, int64_t c, int64_t h, int64_t w) {
  clv_node_desc d = {.op = op,
                     .n_in = 1,
                     .training = true,
                     .need_dx = {true},
                     .threads = 1,
                     .offered_block = {1, 1}};
  d.in[0] = d.out = CLV_SHAPE(n, c, h, w);
  d.attrs = (clv_attrs){.p = 0.25, .eps = 1e-5, .momentum = 0.1};
  if (op == CLV_OP_BATCHNORM) {
    d.need_dw = true;
    d.n_params = 5;
    for (int i = 0; i < 4; i++) d.param[i] = CLV_SHAPE(c);
  }
  return d;
}

/* Asserts that the kernel allocates no memory while it runs. */
static inline void check_no_memory_allocated(const clv_node_desc *d) {
  node x;
  prepare_node(&x, d);
  uint64_t before = clv_alloc_count();
  run_node(&x);
  x.a.accumulate = true;
  run_node(&x);
  assert_int_equal(clv_alloc_count(), before);
  free_node(&x);
}

#endif
