/* SPDX-License-Identifier: Apache-2.0
 *
 * bf16_test: compares plans in bf16 of a graph, of its parts, and of its ops one by one.
 */
#ifndef CLEAVE_BF16_TEST_H
#define CLEAVE_BF16_TEST_H

#include <math.h>

#include "tests/sanitized.h"
#include "tests/unit/graph/plan_test.h"

/* Truncates f32 values to numbers that bf16 represents exactly. */
static inline void truncate_to_bf16(char *values, size_t bytes) {
  for (uint32_t bits; bytes >= sizeof bits; bytes -= sizeof bits, values += sizeof bits) {
    memcpy(&bits, values, sizeof bits);
    bits &= 0xffff0000u;
    memcpy(values, &bits, sizeof bits);
  }
}

static inline double compute_distance(const void *a, const void *b, size_t bytes) {
  const float *x = a, *y = b;
  double difference = 0, norm = 0;
  for (size_t i = 0; i < bytes / sizeof *x; i++) {
    difference += ((double)x[i] - y[i]) * ((double)x[i] - y[i]);
    norm += (double)y[i] * y[i];
  }
  return sqrt(difference / norm);
}

static inline void assert_near(const void *a, const void *b, size_t bytes, double low, double high,
                               const char *what) {
  double error = compute_distance(a, b, bytes);
  if (!(error >= low && error <= high))
    fail_msg("%s: relative error %g, should be within %g..%g", what, error, low, high);
}

/* Sizes of the graph of make_wide_graph. Under thread sanitizer, which is slow, images and channels
 * are fewer, but still whole tiles. A test whose device is slow defines WIDE_IMAGE before it
 * includes this header. */
#ifndef WIDE_IMAGE
#define WIDE_IMAGE 10
#endif
enum {
  WIDE_SIDE = CLV_THREAD_SANITIZED ? 4 : WIDE_IMAGE,
  WIDE_CHANNELS = CLV_THREAD_SANITIZED ? 16 : 32
};

/* Returns a graph whose channels fill whole tiles. The outputs of its convolutions are read by
 * batchnorms, with and without relu, and by two ops at once. */
static inline clv_graph *make_wide_graph(int64_t batch) {
  int x, y;
  clv_graph *g = make_graph(CLV_F32, CLV_SHAPE(batch, 3, WIDE_SIDE, WIDE_SIDE), &x);
  x = add_plain(g, CLV_OP_RELU, 2, add_conv_and_batchnorm(g, 0, x, WIDE_CHANNELS, 3));
  y = add_plain(g, CLV_OP_RELU, 5, add_conv_and_batchnorm(g, 3, x, 2 * WIDE_CHANNELS, 1));
  y = add_plain(g, CLV_OP_RELU, 8, add_conv_and_batchnorm(g, 6, y, 2 * WIDE_CHANNELS, 3));
  y = add_node(g, CLV_OP_ADD, 11, add_conv_and_batchnorm(g, 9, y, WIDE_CHANNELS, 1), x, NULL, 0);
  x = add_plain(g, CLV_OP_RELU, 12, y);
  y = add_conv(g, 14, add_pool(g, CLV_OP_MAXPOOL, 13, x, 2), 3 * WIDE_CHANNELS / 2, 3, 1);
  x = add_node(g, CLV_OP_ADD, 16, add_plain(g, CLV_OP_GELU, 15, y), y, NULL, 0);
  x = add_conv_and_batchnorm(g, 17, x, WIDE_CHANNELS, 1);
  x = add_plain(g, CLV_OP_FLATTEN, 20, add_plain(g, CLV_OP_GLOBALAVGPOOL, 19, x));
  add_linear(g, 21, x, 7);
  return g;
}

typedef clv_graph *graph_fn(int64_t batch);

static graph_fn *const graphs[] = {make_wide_graph, make_residual_graph};

static inline rig make_slice(const rig *whole, uint32_t first, uint32_t last, bool is_split) {
  clv_graph *part;
  assert_ok(clv_graph_slice(whole->g, first, last, &part, err));
  return make_rig(part, &(rig_options){.backend = whole->plan->backend,
                                       .is_bf16 = true,
                                       .has_split_backward = is_split,
                                       .has_transient_weights = is_split});
}

static inline void assert_same_params(const rig *whole, const rig *part) {
  for (int i = 0; i < part->params->n; i++) {
    const clv_param *p = &part->params->list[i], *w = clv_params_find(whole->params, p->name);
    assert_same_bytes(part->parameter_block + p->offset, whole->parameter_block + w->offset,
                      p->bytes, p->name);
    if (p->trainable)
      assert_same_bytes(part->gradient_block + p->offset, whole->gradient_block + w->offset,
                        p->bytes, p->name);
  }
}

static inline void check_cut(const rig *whole, uint32_t cut, uint32_t last) {
  rig a = make_slice(whole, 0, cut - 1, cut % 2), b = make_slice(whole, cut, last, cut % 3);
  clv_call *c;
  memcpy(a.in[0], whole->in[0], a.input_bytes[0]);
  memcpy(b.dout, whole->dout, b.output_bytes);
  assert_ok(clv_plan_call_get(a.plan, &c, err));
  run_forward(&a, c);
  memcpy(b.in[0], a.out, a.output_bytes);
  run_step(&b);
  assert_same_bytes(b.out, whole->out, b.output_bytes, "output");
  memcpy(a.dout, b.din[0], a.output_bytes);
  run_backward_input(&a, c, false);
  run_backward_weight(&a, c, false);
  assert_same_bytes(a.din[0], whole->din[0], a.input_bytes[0], "input gradient");
  assert_same_params(whole, &a);
  assert_same_params(whole, &b);
  clv_plan_call_put(a.plan, c);
  free_rig(&a);
  free_rig(&b);
}

/* thread sanitizer is slow, so only each tenth cut is tested there */
enum { CUT_INTERVAL = CLV_THREAD_SANITIZED ? 10 : 1 };

/* Cuts the graph in two before each layer where a cut is possible. The two parts must give the same
 * bits as the uncut graph. */
static inline void check_whole_and_cut(const clv_backend *backend, graph_fn *graph, int at_least) {
  clv_err why;
  rig whole = make_rig(graph(3), &(rig_options){.backend = backend, .is_bf16 = true});
  uint32_t last = whole.g->nodes[whole.g->n_nodes - 1].layer;
  int n_cuts = 0;
  run_step(&whole);
  for (uint32_t cut = 1; cut <= last; cut += CUT_INTERVAL) {
    clv_graph *part = NULL;
    /* no cut is possible inside a residual block */
    if (clv_graph_slice(whole.g, cut, last, &part, &why) != CLV_OK) continue;
    clv_graph_free(part);
    check_cut(&whole, cut, last);
    n_cuts++;
  }
  assert_true(n_cuts >= (CLV_THREAD_SANITIZED ? 1 : at_least));
  free_rig(&whole);
}

static const clv_backend *backend_to_unfuse;

static inline clv_code prepare_unfused(const clv_backend *b, const clv_node_desc *d,
                                       clv_kernel **ret, clv_err *e) {
  (void)b;
  clv_node_desc single_op_desc = *d;
  if (d->tail || d->n_links) return CLV_UNIMPLEMENTED;
  single_op_desc.wanted_out = 0;
  memset(single_op_desc.wanted_din, 0, sizeof single_op_desc.wanted_din);
  return backend_to_unfuse->prepare(backend_to_unfuse, &single_op_desc, ret, e);
}

/* Returns a backend that runs each op by itself: nothing is fused, and no kernel writes a layout
 * for the next one. */
static inline clv_backend make_unfused_backend(const clv_backend *backend) {
  clv_backend unfused_backend = *backend;
  backend_to_unfuse = backend;
  unfused_backend.prepare = prepare_unfused;
  return unfused_backend;
}

static inline int count_steps(const rig *r, const char *step_name) {
  int n = 0;
  for (int i = 0; i < r->plan->n_steps; i++) n += !strcmp(r->plan->steps[i].step_name, step_name);
  return n;
}

#endif
