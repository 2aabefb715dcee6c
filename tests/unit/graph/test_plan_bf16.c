/* SPDX-License-Identifier: Apache-2.0
 *
 * Convolutions in bf16: against ref on numbers that bf16 holds exactly, and the same bits however a
 * graph is cut or its ops are taken together.
 */
#include "tests/unit/graph/plan_test.h"

#include <math.h>

static bool lacks_bf16(void) {
  clv_err why;
  if (clv_backend_cpu()->check_bf16(clv_backend_cpu(), &why) == CLV_OK) return false;
  print_message("because %s\n", why.text);
  return true;
}

/* Less than half of bf16's last place is off: what it holds exactly stays. */
static void make_exact(char *values, size_t bytes) {
  for (uint32_t bits; bytes >= sizeof bits; bytes -= sizeof bits, values += sizeof bits) {
    memcpy(&bits, values, sizeof bits);
    bits &= 0xffff0000u;
    memcpy(values, &bits, sizeof bits);
  }
}

static double distance(const void *a, const void *b, size_t bytes) {
  const float *x = a, *y = b;
  double off = 0, all = 0;
  for (size_t i = 0; i < bytes / sizeof *x; i++) {
    off += ((double)x[i] - y[i]) * ((double)x[i] - y[i]);
    all += (double)y[i] * y[i];
  }
  return sqrt(off / all);
}

static void near(const void *a, const void *b, size_t bytes, double low, double high,
                 const char *what) {
  double error = distance(a, b, bytes);
  if (!(error >= low && error <= high))
    fail_msg("%s: relative error %g, should be within %g..%g", what, error, low, high);
}

/* ---- one convolution ------------------------------------------------------------------------- */

typedef struct conv_case {
  int64_t c, k, kernel, stride, pad, side;
} conv_case;

static const conv_case convs[] = {
    {3, 64, 7, 2, 3, 17},  {32, 64, 1, 1, 0, 9}, {64, 32, 3, 1, 1, 8}, {32, 48, 3, 2, 1, 9},
    {64, 128, 1, 2, 0, 7}, {16, 16, 5, 1, 2, 8}, {24, 40, 3, 1, 1, 6}, {16, 32, 7, 1, 3, 9},
};

static rig conv_rig(const conv_case *c, const clv_backend *backend) {
  int x;
  clv_graph *g = new_graph(CLV_F32, CLV_SHAPE(3, c->c, c->side, c->side), &x);
  clv_attr_value v[] = {int_attr(CLV_ATTR_OUT, c->k), int_attr(CLV_ATTR_KERNEL, c->kernel),
                        int_attr(CLV_ATTR_STRIDE, c->stride), int_attr(CLV_ATTR_PAD, c->pad)};
  add_node(g, CLV_OP_CONV2D, 0, x, -1, v, 4);
  rig r = rig_new(g, &(rig_options){.backend = backend, .bf16 = true, .split_backward = true});
  make_exact(r.in[0], r.in_bytes[0]);
  make_exact(r.dout, r.out_bytes);
  make_exact(r.block, r.params->total_bytes);
  return r;
}

/* Sums are f32 and products exact; the output alone is rounded, by at most one part in 256. */
static void convolution(void **state) {
  (void)state;
  if (lacks_bf16()) skip();
  for (size_t i = 0; i < CLV_COUNT(convs); i++) {
    rig a = conv_rig(&convs[i], clv_backend_cpu()), b = conv_rig(&convs[i], clv_backend_ref());
    step(&a);
    step(&b);
    near(a.out, b.out, a.out_bytes, 1e-4, 1.0 / 256, "output");
    near(a.din[0], b.din[0], a.in_bytes[0], 0, 1e-5, "input gradient");
    near(a.grads, b.grads, a.params->trainable_bytes, 0, 1e-5, "weight gradient");
    rig_done(&a);
    rig_done(&b);
  }
}

/* ---- networks -------------------------------------------------------------------------------- */

/* Channels in whole tiles; convolutions read by batchnorms with and without relu, by two
 * ops at once. */
static clv_graph *wide_graph(int64_t batch) {
  int x, y;
  clv_graph *g = new_graph(CLV_F32, CLV_SHAPE(batch, 3, 10, 10), &x);
  x = add_plain(g, CLV_OP_RELU, 2, add_norm(g, 0, x, 32, 3));
  y = add_plain(g, CLV_OP_RELU, 5, add_norm(g, 3, x, 64, 1));
  y = add_plain(g, CLV_OP_RELU, 8, add_norm(g, 6, y, 64, 3));
  y = add_node(g, CLV_OP_ADD, 11, add_norm(g, 9, y, 32, 1), x, NULL, 0);
  x = add_plain(g, CLV_OP_RELU, 12, y);
  y = add_conv(g, 14, add_pool(g, CLV_OP_MAXPOOL, 13, x, 2), 48, 3, 1);
  x = add_node(g, CLV_OP_ADD, 16, add_plain(g, CLV_OP_GELU, 15, y), y, NULL, 0);
  x = add_norm(g, 17, x, 32, 1);
  x = add_plain(g, CLV_OP_FLATTEN, 20, add_plain(g, CLV_OP_GLOBALAVGPOOL, 19, x));
  add_linear(g, 21, x, 7);
  return g;
}

typedef clv_graph *graph_fn(int64_t batch);

static graph_fn *const graphs[] = {wide_graph, residual_graph};

static rig slice_of(const rig *whole, uint32_t first, uint32_t last, bool split) {
  clv_graph *part;
  assert_ok(clv_graph_slice(whole->g, first, last, &part, err));
  return rig_new(part, &(rig_options){.backend = clv_backend_cpu(),
                                      .bf16 = true,
                                      .split_backward = split,
                                      .transient_weights = split});
}

static void same_params(const rig *whole, const rig *part) {
  for (int i = 0; i < part->params->n; i++) {
    const clv_param *p = &part->params->list[i], *w = clv_params_find(whole->params, p->name);
    same(part->block + p->offset, whole->block + w->offset, p->bytes, p->name);
    if (p->trainable) same(part->grads + p->offset, whole->grads + w->offset, p->bytes, p->name);
  }
}

static void cut_at(const rig *whole, uint32_t cut, uint32_t last) {
  rig a = slice_of(whole, 0, cut - 1, cut % 2), b = slice_of(whole, cut, last, cut % 3);
  clv_call *c;
  memcpy(a.in[0], whole->in[0], a.in_bytes[0]);
  memcpy(b.dout, whole->dout, b.out_bytes);
  assert_ok(clv_plan_call_get(a.plan, &c, err));
  forward(&a, c);
  memcpy(b.in[0], a.out, a.out_bytes);
  step(&b);
  same(b.out, whole->out, b.out_bytes, "output");
  memcpy(a.dout, b.din[0], a.out_bytes);
  backward_input(&a, c, false);
  backward_weight(&a, c, false);
  same(a.din[0], whole->din[0], a.in_bytes[0], "input gradient");
  same_params(whole, &a);
  same_params(whole, &b);
  clv_plan_call_put(a.plan, c);
  rig_done(&a);
  rig_done(&b);
}

static void every_cut(void **state) {
  (void)state;
  clv_err why;
  if (lacks_bf16()) skip();
  for (size_t i = 0; i < CLV_COUNT(graphs); i++) {
    rig whole = rig_new(graphs[i](3), &(rig_options){.backend = clv_backend_cpu(), .bf16 = true});
    uint32_t last = whole.g->nodes[whole.g->n_nodes - 1].layer;
    int cuts = 0;
    step(&whole);
    for (uint32_t cut = 1; cut <= last; cut++) {
      clv_graph *part = NULL;
      if (clv_graph_slice(whole.g, cut, last, &part, &why) != CLV_OK) continue; /* inside a block */
      clv_graph_free(part);
      cut_at(&whole, cut, last);
      cuts++;
    }
    assert_true(cuts >= 8);
    rig_done(&whole);
  }
}

static clv_code apart_prepare(const clv_backend *b, const clv_node_desc *d, clv_kernel **ret,
                              clv_err *e) {
  (void)b;
  clv_node_desc alone = *d;
  if (d->tail) return CLV_UNIMPLEMENTED;
  alone.wanted_out = 0;
  memset(alone.wanted_din, 0, sizeof alone.wanted_din);
  return clv_backend_cpu()->prepare(clv_backend_cpu(), &alone, ret, e);
}

/* How far f32 itself goes when what it is given is cut to bf16. How much a graph makes of that is
 * its own, and the processor's whose sums it has; bf16 goes no further than a few times as far, and
 * not by chance next to nowhere. */
static void within_reach(const rig *a, const rig *f, const rig *cut) {
  double out = distance(cut->out, f->out, a->out_bytes);
  double grads = distance(cut->grads, f->grads, a->params->trainable_bytes);
  near(a->out, f->out, a->out_bytes, out / 50, 4 * out, "output");
  near(a->grads, f->grads, a->params->trainable_bytes, grads / 50, 4 * grads, "gradients");
}

/* Each op on its own, nothing written in bf16 for a neighbour; and the same numbers within bf16's
 * reach of f32's. */
static void the_same_apart(void **state) {
  (void)state;
  if (lacks_bf16()) skip();
  clv_backend apart = *clv_backend_cpu();
  apart.prepare = apart_prepare;
  for (size_t i = 0; i < CLV_COUNT(graphs); i++) {
    rig a = rig_new(graphs[i](3), &(rig_options){.backend = clv_backend_cpu(), .bf16 = true});
    rig b = rig_new(graphs[i](3), &(rig_options){.backend = &apart, .bf16 = true});
    rig f = rig_new(graphs[i](3), &(rig_options){.backend = clv_backend_cpu()});
    rig cut = rig_new(graphs[i](3), &(rig_options){.backend = clv_backend_cpu()});
    make_exact(cut.in[0], cut.in_bytes[0]);
    make_exact(cut.block, cut.params->trainable_bytes);
    step(&a);
    step(&b);
    step(&f);
    step(&cut);
    same(a.out, b.out, a.out_bytes, "output");
    same(a.din[0], b.din[0], a.in_bytes[0], "input gradient");
    same_params(&a, &b);
    within_reach(&a, &f, &cut);
    rig_done(&a);
    rig_done(&b);
    rig_done(&f);
    rig_done(&cut);
  }
}

static int steps_of(const rig *r, const char *verb) {
  int n = 0;
  for (int i = 0; i < r->plan->n_steps; i++) n += !strcmp(r->plan->steps[i].verb, verb);
  return n;
}

/* A value that only convolutions and their batchnorms see is never f32 in memory. */
static void nothing_is_converted_between(void **state) {
  (void)state;
  if (lacks_bf16()) skip();
  clv_bytes text = {0};
  rig r = rig_new(wide_graph(2), &(rig_options){.backend = clv_backend_cpu(), .bf16 = true});
  clv_plan_describe(r.plan, &text);
  assert_non_null(strstr(text.data, "block 16 bf16>16 bf16, 25.0 KiB in scratch, simd"));
  assert_int_equal(steps_of(&r, "reorder"), 8); /* at the input, the pool, and ops in f32 alone */
  clv_bytes_done(&text);
  rig_done(&r);
}

static clv_code never(const clv_backend *b, clv_err *e) {
  (void)b;
  return clv_fail(e, CLV_PRECONDITION, "not here");
}

static void refused_where_it_lacks(void **state) {
  (void)state;
  clv_backend none = *clv_backend_cpu();
  clv_graph *g = wide_graph(2);
  clv_params *params;
  clv_plan *plan = NULL;
  none.check_bf16 = never;
  clv_plan_options po = {.backend = &none, .dtype = CLV_F32, .batch = 2, .bf16 = true};
  assert_ok(clv_params_of(g, &params, err));
  clv_err why;
  assert_int_equal(clv_plan_new(g, params, &po, &plan, &why), CLV_PRECONDITION);
  assert_string_equal(why.text, "not here");
  clv_params_free(params);
  clv_graph_free(g);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(convolution),
      cmocka_unit_test(every_cut),
      cmocka_unit_test(the_same_apart),
      cmocka_unit_test(nothing_is_converted_between),
      cmocka_unit_test(refused_where_it_lacks),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
