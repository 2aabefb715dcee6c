/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests what a plan computes: gradients of graphs with branches against finite differences, the
 * same bits for every cut and every mixture of layouts, frozen parameters, accumulation, calls in
 * flight.
 */
#include "tests/unit/graph/plan_test.h"

#include <math.h>

/* ---- gradients compared with finite differences ---------------------------------------------- */

/* Returns a graph whose values have several consumers, with one node that reads a value twice, a
 * flatten and a reshape. */
static clv_graph *make_branches(void) {
  int x;
  clv_graph *g = make_graph(CLV_F64, CLV_SHAPE(3, 2, 5, 4), &x);
  int a = add_conv(g, 0, x, 4, 3, 1);
  int b = add_plain(g, CLV_OP_TANH, 1, a);
  int c = add_conv(g, 2, b, 4, 1, 0);
  int d = add_node(g, CLV_OP_ADD, 3, b, c, NULL, 0);
  int e = add_node(g, CLV_OP_ADD, 4, d, d, NULL, 0);
  int f = add_plain(g, CLV_OP_BATCHNORM, 5, e);
  int h = add_node(g, CLV_OP_ADD, 6, f, b, NULL, 0);
  clv_attr_value shape = {.key = CLV_ATTR_SHAPE, .n_ints = 3, .ints = {8, 5, 2}};
  int i = add_node(g, CLV_OP_RESHAPE, 7, h, -1, &shape, 1);
  int j = add_pool(g, CLV_OP_AVGPOOL, 8, i, 2);
  int k = add_plain(g, CLV_OP_FLATTEN, 9, j);
  int l = add_linear(g, 10, k, 3);
  int m = add_plain(g, CLV_OP_SIGMOID, 11, l);
  int n = add_node(g, CLV_OP_ADD, 12, m, l, NULL, 0); /* l is used by the output and by m */
  int target;
  clv_shape t = CLV_SHAPE(3, 3);
  assert_ok(clv_graph_add_input(g, "target", CLV_F64, &t, &target, err));
  add_node(g, CLV_OP_MSE, 13, n, target, NULL, 0);
  return g;
}

static double compute_loss(rig *r, clv_call *c) {
  run_forward(r, c);
  return *(double *)(void *)r->out;
}

/* Returns d loss / d *at by central differences. */
static double compute_difference(rig *r, clv_call *c, double *at) {
  const double h = 1e-5;
  double value = *at, loss_above, loss_below;
  *at = value + h;
  r->plan->is_cache_current = false;
  loss_above = compute_loss(r, c);
  *at = value - h;
  loss_below = compute_loss(r, c);
  *at = value;
  return (loss_above - loss_below) / (2 * h);
}

static void check_differences(rig *r, clv_call *c, double *values, const double *got, size_t n,
                              const char *what) {
  for (size_t i = 0; i < n; i++) {
    double want = compute_difference(r, c, &values[i]);
    if (fabs(want - got[i]) > 1e-8 + 1e-6 * fabs(want))
      fail_msg("%s[%zu]: %.12g, finite differences give %.12g", what, i, got[i], want);
  }
}

static void gradients_match_finite_differences(void **state) {
  (void)state;
  rig r = make_rig(make_branches(), &(rig_options){.backend = clv_backend_ref()});
  clv_call *c;
  *(double *)(void *)r.dout = 1;
  run_step(&r);
  assert_ok(clv_plan_call_get(r.plan, &c, err));
  for (int i = 0; i < r.params->n; i++) {
    const clv_param *p = &r.params->list[i];
    if (p->trainable)
      check_differences(&r, c, (double *)(void *)(r.parameter_block + p->offset),
                        (double *)(void *)(r.gradient_block + p->offset), p->n, p->name);
  }
  for (int i = 0; i < r.n_in; i++)
    check_differences(&r, c, (double *)(void *)r.in[i], (double *)(void *)r.din[i],
                      r.input_bytes[i] / sizeof(double), i ? "target" : "input");
  clv_plan_call_put(r.plan, c);
  free_rig(&r);
}

/* A value has three consumers, whose gradients are 1e8, -1e8 and 1, in this order. Added in f32
 * from the last to the first, they make (1 - 1e8) + 1e8 = 0; in any other order they make 1. */
static void gradients_are_added_from_the_last_consumer(void **state) {
  (void)state;
  static const float weights[] = {1e8f, -1e8f, 1};
  static const char *const names[] = {"0.weight", "1.weight", "2.weight"};
  int x, branches[3];
  clv_graph *g = make_graph(CLV_F32, CLV_SHAPE(1, 1), &x);
  for (uint32_t i = 0; i < 3; i++) branches[i] = add_linear(g, i, x, 1);
  int a = add_node(g, CLV_OP_ADD, 3, branches[0], branches[1], NULL, 0);
  add_node(g, CLV_OP_ADD, 4, a, branches[2], NULL, 0);
  rig r = make_rig(g, &(rig_options){.backend = clv_backend_ref()});
  *(float *)(void *)r.dout = 1;
  for (int i = 0; i < 3; i++)
    memcpy(r.parameter_block + clv_params_find(r.params, names[i])->offset, &weights[i],
           sizeof weights[i]);
  run_step(&r);
  assert_true(*(float *)(void *)r.din[0] == 0);
  free_rig(&r);
}

/* ---- equal bits of a graph and of its parts -------------------------------------------------- */

/* Asserts that parameters and gradients of `part` equal those of the same names in `whole`. */
static void assert_same_params(const rig *whole, const rig *part) {
  for (int i = 0; i < part->params->n; i++) {
    const clv_param *p = &part->params->list[i], *q = clv_params_find(whole->params, p->name);
    if (p->trainable)
      assert_same_bytes(part->gradient_block + p->offset, whole->gradient_block + q->offset,
                        p->bytes, p->name);
    assert_same_bytes(part->parameter_block + p->offset, whole->parameter_block + q->offset,
                      p->bytes, p->name);
  }
}

static rig make_slice(const clv_graph *g, uint32_t first, uint32_t last, const clv_backend *backend,
                      bool is_evaluation) {
  clv_graph *part;
  assert_ok(clv_graph_slice(g, first, last, &part, err));
  rig_options o = {.backend = backend, .is_evaluation = is_evaluation, .has_split_backward = true};
  /* only the parts split the backward; the uncut plan computes weight gradients with input
   * gradients */
  return make_rig(part, &o);
}

static void check_every_cut(const clv_backend *backend, bool is_evaluation, int64_t batch) {
  rig whole = make_rig(make_chain_graph(CLV_F32, batch),
                       &(rig_options){.backend = backend, .is_evaluation = is_evaluation});
  run_step(&whole);
  for (uint32_t cut = 1; cut < CHAIN_LAYERS; cut++) {
    rig a = make_slice(whole.g, 0, cut - 1, backend, is_evaluation);
    rig b = make_slice(whole.g, cut, CHAIN_LAYERS - 1, backend, is_evaluation);
    clv_call *c;
    memcpy(a.in[0], whole.in[0], a.input_bytes[0]);
    memcpy(b.dout, whole.dout, b.output_bytes);
    assert_ok(clv_plan_call_get(a.plan, &c, err));
    run_forward(&a, c);
    memcpy(b.in[0], a.out, a.output_bytes);
    run_step(&b);
    assert_same_bytes(b.out, whole.out, b.output_bytes, "output");
    if (!is_evaluation) {
      memcpy(a.dout, b.din[0], a.output_bytes);
      run_backward_input(&a, c, false);
      run_backward_weight(&a, c, false);
      assert_same_bytes(a.din[0], whole.din[0], a.input_bytes[0], "input gradient");
      assert_same_params(&whole, &a);
      assert_same_params(&whole, &b);
    }
    clv_plan_call_put(a.plan, c);
    free_rig(&a);
    free_rig(&b);
  }
  free_rig(&whole);
}

static void every_cut_gives_the_same_bits_on_ref(void **state) {
  (void)state;
  check_every_cut(clv_backend_ref(), false, 5);
  check_every_cut(clv_backend_ref(), true, 5);
}

static void every_cut_gives_the_same_bits_on_cpu(void **state) {
  (void)state;
  check_every_cut(clv_backend_cpu(), false, 5);
  check_every_cut(clv_backend_cpu(), true, 5);
}

/* ---- kernels with blocked memory layouts ----------------------------------------------------- */

/* A kernel of ref with a blocked memory layout around it. Convolutions and tanh compute in blocks
 * of 8 channels, other ops row-major. Batchnorm's weight gradient is fused, weights are read from
 * the cache only, and softmax is left to ref. The arithmetic is that of ref, so the bits must be
 * equal. */
typedef struct blocked_kernel {
  clv_kernel base;
  clv_node_desc d;
  clv_kernel *ref_kernel;
  /* copies of the tensors in row-major order */
  char *in[CLV_MAX_IN], *out, *dout, *din[CLV_MAX_IN];
} blocked_kernel;

static int n_refreshes;

static size_t get_weight_bytes(const blocked_kernel *k) {
  return k->d.n_params ? clv_layout_numel(&k->d.param[0], 1) * clv_dtype_size(k->d.dtype) : 0;
}

static clv_code refresh_blocked_weights(clv_kernel *b, const clv_kernel_args *a, clv_err *err) {
  (void)err;
  n_refreshes++;
  memcpy(a->cache, a->param[0], get_weight_bytes((blocked_kernel *)b));
  return CLV_OK;
}

static void reorder_values(const blocked_kernel *k, const clv_shape *shape, const void *src,
                           int from, void *dst, int to) {
  if (!src || !dst) return;
  if (shape->rank == 4)
    assert_ok(
        clv_backend_ref()->reorder(clv_backend_ref(), shape, k->d.dtype, src, from, dst, to, err));
  else
    memcpy(dst, src, clv_layout_numel(shape, 1) * clv_dtype_size(k->d.dtype));
}

static clv_kernel_args make_row_major_args(blocked_kernel *k, const clv_kernel_args *a) {
  clv_kernel_args inner = *a;
  for (int i = 0; i < k->d.n_in; i++) {
    reorder_values(k, &k->d.in[i], a->in[i], k->base.in_block[i], k->in[i], 1);
    inner.in[i] = k->in[i];
    inner.din[i] = a->din[i] ? k->din[i] : NULL;
  }
  reorder_values(k, &k->d.out, a->dout, k->base.out_block, k->dout, 1);
  if (a->cache) inner.param[0] = a->cache;
  inner.dout = a->dout ? k->dout : NULL;
  inner.out = k->out;
  return inner;
}

static clv_code run_blocked_forward(clv_kernel *b, const clv_kernel_args *a, clv_err *err) {
  blocked_kernel *k = (blocked_kernel *)b;
  clv_kernel_args inner = make_row_major_args(k, a);
  memset(a->scratch, 0xFF, b->scratch_bytes);
  CLV_TRY(k->ref_kernel->forward(k->ref_kernel, &inner, err));
  reorder_values(k, &k->d.out, k->out, 1, a->out, b->out_block);
  return CLV_OK;
}

static clv_code run_blocked_backward_input(clv_kernel *b, const clv_kernel_args *a, clv_err *err) {
  blocked_kernel *k = (blocked_kernel *)b;
  clv_kernel_args inner = make_row_major_args(k, a);
  reorder_values(k, &k->d.out, a->out, b->out_block, k->out, 1);
  memset(a->scratch, 0xFF, b->scratch_bytes);
  if (k->ref_kernel->backward_input)
    CLV_TRY(k->ref_kernel->backward_input(k->ref_kernel, &inner, err));
  for (int i = 0; i < k->d.n_in; i++)
    reorder_values(k, &k->d.in[i], inner.din[i], 1, a->din[i], b->in_block[i]);
  if (b->fused_grads) CLV_TRY(k->ref_kernel->backward_weight(k->ref_kernel, &inner, err));
  return CLV_OK;
}

static clv_code run_blocked_backward_weight(clv_kernel *b, const clv_kernel_args *a, clv_err *err) {
  blocked_kernel *k = (blocked_kernel *)b;
  clv_kernel_args inner = make_row_major_args(k, a);
  return k->ref_kernel->backward_weight(k->ref_kernel, &inner, err);
}

static void free_blocked_kernel(clv_kernel *b) {
  blocked_kernel *k = (blocked_kernel *)b;
  k->ref_kernel->free(k->ref_kernel);
  for (int i = 0; i < CLV_MAX_IN; i++) {
    free(k->in[i]);
    free(k->din[i]);
  }
  free(k->out);
  free(k->dout);
  free(k);
}

static clv_code prepare_blocked_kernel(const clv_backend *b, const clv_node_desc *d,
                                       clv_kernel **ret, clv_err *err) {
  (void)b;
  blocked_kernel *k;
  if (d->op == CLV_OP_SOFTMAX || d->tail) return CLV_UNIMPLEMENTED;
  CLV_TRY(clv_alloc(1, sizeof *k, &k, err));
  k->d = *d;
  CLV_TRY(clv_backend_ref()->prepare(clv_backend_ref(), d, &k->ref_kernel, err));
  k->base = *k->ref_kernel;
  bool is_conv = d->op == CLV_OP_CONV2D, has_weights = d->n_params > 0;
  int block = (is_conv || d->op == CLV_OP_TANH) && d->out.rank == 4 ? 8 : 1;
  k->base.fused_grads = d->op == CLV_OP_BATCHNORM && d->need_dw;
  k->base.refresh = has_weights ? refresh_blocked_weights : NULL;
  k->base.forward = run_blocked_forward;
  k->base.backward_input = run_blocked_backward_input;
  k->base.backward_weight = k->base.fused_grads ? NULL : run_blocked_backward_weight;
  k->base.free = free_blocked_kernel;
  k->base.cache_bytes = has_weights ? get_weight_bytes(k) : 0;
  k->base.scratch_bytes = 1000;
  k->base.out_block = block;
  /* the kernel works on copies, so the plan must know whether another node reads dout */
  k->base.din_in_place_mask = 1;
  for (int i = 0; i < CLV_MAX_IN; i++) {
    k->base.in_block[i] = block;
    if (i >= d->n_in) continue;
    k->in[i] = allocate(clv_layout_numel(&d->in[i], 1) * 8);
    k->din[i] = allocate(clv_layout_numel(&d->in[i], 1) * 8);
  }
  k->out = allocate(clv_layout_numel(&d->out, 1) * 8);
  k->dout = allocate(clv_layout_numel(&d->out, 1) * 8);
  *ret = &k->base;
  return CLV_OK;
}

static const clv_backend *get_blocked_backend(void) {
  static clv_backend backend;
  backend = *clv_backend_ref();
  backend.name = "blocked";
  backend.prepare = prepare_blocked_kernel;
  return &backend;
}

/* Returns a graph like make_branches(), in f32 and without the loss. */
static clv_graph *make_blocked_branches(bool ends_in_conv) {
  int x;
  clv_graph *g = make_graph(CLV_F32, CLV_SHAPE(3, 5, 6, 4), &x);
  int a = add_conv(g, 0, x, 11, 3, 1);
  int b = add_plain(g, CLV_OP_TANH, 1, a);
  int c = add_conv(g, 2, b, 11, 3, 1);
  int d = add_plain(g, CLV_OP_BATCHNORM, 3, c);
  int e = add_node(g, CLV_OP_ADD, 4, d, b, NULL, 0);
  int f = add_plain(g, CLV_OP_RELU, 5, e);
  int h = add_node(g, CLV_OP_ADD, 6, f, b, NULL, 0);
  if (ends_in_conv) {
    add_conv(g, 7, h, 3, 3, 1);
    return g;
  }
  int i = add_plain(g, CLV_OP_FLATTEN, 7, b), j = add_linear(g, 8, i, 4);
  int k = add_plain(g, CLV_OP_FLATTEN, 9, h), l = add_linear(g, 10, k, 4);
  int m = add_node(g, CLV_OP_ADD, 11, j, l, NULL, 0);
  add_plain(g, CLV_OP_SOFTMAX, 12, m);
  return g;
}

static void blocked_layouts_give_the_same_bits(void **state) {
  (void)state;
  for (int variant = 0; variant < 4; variant++) {
    int ends_in_conv = variant & 1;
    rig_options o = {.backend = get_blocked_backend(), .has_split_backward = variant & 2};
    rig a =
        make_rig(make_blocked_branches(ends_in_conv), &(rig_options){.backend = clv_backend_ref()});
    rig b = make_rig(make_blocked_branches(ends_in_conv), &o);
    run_step(&a);
    run_step(&b);
    assert_same_bytes(a.out, b.out, a.output_bytes, "output");
    assert_same_bytes(a.din[0], b.din[0], a.input_bytes[0], "input gradient");
    assert_same_bytes(a.gradient_block, b.gradient_block, a.params->trainable_bytes, "gradients");
    assert_same_bytes(a.parameter_block, b.parameter_block, a.params->total_bytes,
                      "parameters and statistics");
    assert_int_equal(clv_plan_get_info(a.plan)->reorders_forward, 0);
    /* Reorders in forward: the input for layer 0, layer 2 for 3, and layer 1 for 4 and the layers
     * after it; with a convolution at the end also its input and its output. In backward: each
     * gradient whose two layers have different layouts. */
    assert_int_equal(clv_plan_get_info(b.plan)->reorders_forward, ends_in_conv ? 5 : 3);
    assert_int_equal(clv_plan_get_info(b.plan)->reorders_backward, ends_in_conv ? 6 : 5);
    free_rig(&a);
    free_rig(&b);
  }
}

static void every_cut_gives_the_same_bits_in_blocked_layout(void **state) {
  (void)state;
  check_every_cut(get_blocked_backend(), false, 4);
}

/* The number of reorders that `plan` prints equals the number that run. */
static void planned_reorder_count_matches_execution(void **state) {
  (void)state;
  const clv_backend *backends[] = {clv_backend_cpu(), clv_backend_ref()};
  for (size_t i = 0; i < CLV_COUNT(backends); i++) {
    rig r = make_rig(make_chain_graph(CLV_F32, 6), &(rig_options){.backend = backends[i]});
    const clv_plan_info *info = clv_plan_get_info(r.plan);
    run_step(&r);
    uint64_t before = backends[i]->reorder_count();
    run_step(&r);
    assert_int_equal(backends[i]->reorder_count() - before,
                     info->reorders_forward + info->reorders_backward);
    free_rig(&r);
  }
}

static void weight_cache_is_refreshed_by_version(void **state) {
  (void)state;
  rig r = make_rig(make_chain_graph(CLV_F32, 3), &(rig_options){.backend = get_blocked_backend()});
  clv_call *c;
  char before[3 * 5 * 4];
  n_refreshes = 0;
  assert_ok(clv_plan_call_get(r.plan, &c, err));
  run_forward(&r, c);
  assert_int_equal(n_refreshes, 5);
  memcpy(before, r.out, sizeof before);
  const clv_param *p = clv_params_find(r.params, "10.weight");
  for (size_t i = 0; i < p->n; i++) ((float *)(void *)(r.parameter_block + p->offset))[i] *= 2;
  run_forward(&r, c); /* the version has not changed, so the kernels still use the old weights */
  assert_int_equal(n_refreshes, 5);
  assert_memory_equal(before, r.out, sizeof before);
  assert_ok(clv_plan_forward(r.plan, c, r.parameter_block, 2, (const void *const *)r.in, true,
                             r.out, &step_key, err));
  assert_int_equal(n_refreshes, 10);
  assert_memory_not_equal(before, r.out, sizeof before);
  clv_plan_call_put(r.plan, c);
  free_rig(&r);
}

static void check_transient_weights(clv_graph *make(int64_t batch), const char *weight_name,
                                    rig_options o) {
  rig cached = make_rig(make(3), &o);
  o.has_transient_weights = true;
  rig transient = make_rig(make(3), &o);
  for (int k = 0; k < 2; k++) {
    run_step(&cached);
    run_step(&transient);
    assert_same_bytes(cached.out, transient.out, cached.output_bytes, "output");
    assert_same_bytes(cached.din[0], transient.din[0], cached.input_bytes[0], "input gradient");
    assert_same_bytes(cached.gradient_block, transient.gradient_block,
                      cached.params->trainable_bytes, "gradients");
    float *w = (float *)(void *)(transient.parameter_block +
                                 clv_params_find(transient.params, weight_name)->offset);
    *w *= 2;
    memcpy(cached.parameter_block, transient.parameter_block, cached.params->total_bytes);
    cached.plan->is_cache_current = false;
  }
  /* with SSE4.1 alone the CPU backend converts no weights */
  assert_true(o.backend == clv_backend_cpu() ||
              clv_plan_get_info(cached.plan)->weight_cache_bytes > 0);
  assert_int_equal(clv_plan_get_info(transient.plan)->weight_cache_bytes, 0);
  assert_true(clv_plan_get_info(transient.plan)->backward_reads_params);
  free_rig(&cached);
  free_rig(&transient);
}

/* Its 32 channels are so many that oneDNN reads the weights in another format in each pass. */
static clv_graph *make_transposed_graph(int64_t batch) {
  int x;
  clv_graph *g = make_graph(CLV_F32, CLV_SHAPE(batch, 32, 6, 6), &x);
  clv_attr_value v[] = {make_int_attr(CLV_ATTR_OUT, 48), make_int_attr(CLV_ATTR_KERNEL, 3)};
  x = add_node(g, CLV_OP_CONV_TRANSPOSE2D, 0, x, -1, v, 2);
  add_conv(g, 1, x, 32, 3, 1);
  return g;
}

/* A plan may convert weights in each call instead of caching the converted ones. The bits are the
 * same, changed parameters take effect without a new version, and the cache has no memory. */
static void transient_weights_give_the_same_bits(void **state) {
  (void)state;
  const clv_backend *backends[] = {clv_backend_cpu(), get_blocked_backend()};
  for (int i = 0; i < 4; i++) {
    const rig_options o = {.backend = backends[i % 2], .has_split_backward = i / 2};
    check_transient_weights(make_residual_graph, "3.weight", o);
    check_transient_weights(make_transposed_graph, "0.weight", o);
  }
}

/* ---- the block of parameter gradients -------------------------------------------------------- */

static void gradients_accumulate_over_calls(void **state) {
  (void)state;
  rig r = make_rig(make_chain_graph(CLV_F32, 4), &(rig_options){.backend = get_blocked_backend()});
  size_t bytes = r.params->trainable_bytes, n = bytes / sizeof(float);
  float *gradient_of_one_call = allocate(bytes),
        *gradient_of_two_calls = (float *)(void *)r.gradient_block;
  clv_call *c;
  run_step(&r);
  memcpy(gradient_of_one_call, r.gradient_block, bytes);
  assert_ok(clv_plan_call_get(r.plan, &c, err));
  run_forward(&r, c);
  run_backward_input(&r, c, true);
  run_backward_weight(&r, c, true);
  for (size_t i = 0; i < n; i++)
    assert_true(gradient_of_two_calls[i] == gradient_of_one_call[i] + gradient_of_one_call[i]);
  clv_plan_call_put(r.plan, c);
  free(gradient_of_one_call);
  free_rig(&r);
}

static bool is_all_zero(const char *p, size_t n) {
  for (size_t i = 0; i < n; i++)
    if (p[i]) return false;
  return true;
}

/* The block of gradients starts as NaN. After the first micro-batch, gradients that no kernel has
 * written must be zero. */
static void check_frozen_parts(const clv_backend *backend) {
  static const char *const frozen[] = {"4.weight", "1.bias", "8.weight", "8.bias"};
  rig_options o = {.backend = backend};
  rig trained_rig = make_rig(make_chain_graph(CLV_F32, 4), &o);
  memcpy(o.frozen_params, frozen, sizeof frozen);
  rig frozen_rig = make_rig(make_chain_graph(CLV_F32, 4), &o);
  run_step(&trained_rig);
  run_step(&frozen_rig);
  size_t end = 0;
  for (int i = 0; i < frozen_rig.params->n; i++) {
    const clv_param *p = &frozen_rig.params->list[i];
    if (!p->trainable) continue;
    assert_true(is_all_zero(frozen_rig.gradient_block + end, p->offset - end));
    end = p->offset + p->bytes;
    if (p->frozen)
      assert_true(is_all_zero(frozen_rig.gradient_block + p->offset, p->bytes));
    else
      assert_same_bytes(frozen_rig.gradient_block + p->offset,
                        trained_rig.gradient_block + p->offset, p->bytes, p->name);
  }
  assert_true(
      is_all_zero(frozen_rig.gradient_block + end, frozen_rig.params->trainable_bytes - end));
  assert_same_bytes(frozen_rig.din[0], trained_rig.din[0], trained_rig.input_bytes[0],
                    "input gradient");
  /* a later micro-batch does not write this gradient */
  memset(get_gradient(&frozen_rig, "8.weight"), 0x11, 8);
  clv_call *c;
  assert_ok(clv_plan_call_get(frozen_rig.plan, &c, err));
  run_forward(&frozen_rig, c);
  run_backward_input(&frozen_rig, c, true);
  run_backward_weight(&frozen_rig, c, true);
  assert_memory_equal(get_gradient(&frozen_rig, "8.weight"), "\x11\x11\x11\x11\x11\x11\x11\x11", 8);
  clv_plan_call_put(frozen_rig.plan, c);
  free_rig(&trained_rig);
  free_rig(&frozen_rig);
}

static void frozen_parameters_get_no_gradient(void **state) {
  (void)state;
  check_frozen_parts(clv_backend_ref());
  check_frozen_parts(get_blocked_backend());
  check_frozen_parts(clv_backend_cpu());
}

/* Layers before the first trained layer have no backward steps. */
static void frozen_front_has_no_backward_steps(void **state) {
  (void)state;
  int x;
  clv_graph *g = make_graph(CLV_F32, CLV_SHAPE(4, 6), &x);
  x = add_linear(g, 0, x, 5);
  x = add_plain(g, CLV_OP_RELU, 1, x);
  x = add_linear(g, 2, x, 3);
  rig_options o = {.backend = clv_backend_ref(),
                   .has_no_input_grad = {true},
                   .frozen_params = {"0.weight", "0.bias"}};
  o.has_split_backward = true;
  rig r = make_rig(g, &o);
  run_step(&r);
  clv_bytes text = {0};
  clv_plan_describe(r.plan, &text);
  /* the only two steps: a copy of the caller's gradient, and the weight gradient of layer 2 */
  assert_int_equal(clv_plan_get_info(r.plan)->n_steps_backward, 2);
  assert_non_null(strstr(text.data, "backward_weight  2"));
  assert_null(strstr(text.data, "backward_input   2"));
  clv_bytes_done(&text);
  assert_true(is_all_zero(get_gradient(&r, "0.weight"), 5 * 6 * 4));
  assert_false(is_all_zero(get_gradient(&r, "2.weight"), 3 * 5 * 4));
  free_rig(&r);
}

/* An unused value costs nothing, and its parameters get no gradient. An input that the output does
 * not use gets zeros. */
static void unused_values_cost_nothing_and_get_no_gradient(void **state) {
  (void)state;
  int x, unused;
  clv_shape other = CLV_SHAPE(4, 2);
  clv_graph *g = make_graph(CLV_F32, CLV_SHAPE(4, 6), &x);
  assert_ok(clv_graph_add_input(g, "unused", CLV_F32, &other, &unused, err));
  int a = add_linear(g, 0, x, 5);
  int b = add_linear(g, 1, a, 5);
  add_linear(g, 2, b, 7);
  add_plain(g, CLV_OP_RELU, 3, unused);
  g->output_node = b;
  rig r = make_rig(g, &(rig_options){.backend = clv_backend_ref()});
  run_step(&r);
  assert_true(is_all_zero(r.din[1], r.input_bytes[1]));
  assert_false(is_all_zero(r.din[0], r.input_bytes[0]));
  assert_true(is_all_zero(get_gradient(&r, "2.weight"), 7 * 5 * 4));
  assert_false(is_all_zero(get_gradient(&r, "1.weight"), 5 * 5 * 4));
  assert_int_equal(clv_plan_get_info(r.plan)->n_steps_forward, 2);
  free_rig(&r);
}

/* ---- several calls of one plan --------------------------------------------------------------- */

/* Compares two micro-batches whose phases are interleaved with the same micro-batches run one after
 * the other. */
static void interleaved_calls_give_the_same_bits(void **state) {
  (void)state;
  for (int is_cpu = 0; is_cpu < 2; is_cpu++) {
    const clv_backend *backend = is_cpu ? clv_backend_cpu() : get_blocked_backend();
    rig_options o = {.backend = backend, .has_split_backward = true};
    rig a = make_rig(make_blocked_branches(false), &o);
    rig b = make_rig(make_blocked_branches(false), &o);
    clv_call *first_call, *second_call;
    run_step(&a);
    assert_ok(clv_plan_call_get(a.plan, &first_call, err));
    run_forward(&a, first_call);
    run_backward_input(&a, first_call, true);
    run_backward_weight(&a, first_call, true);
    clv_plan_call_put(a.plan, first_call);
    assert_ok(clv_plan_call_get(b.plan, &first_call, err));
    assert_ok(clv_plan_call_get(b.plan, &second_call, err));
    assert_ptr_not_equal(first_call, second_call);
    run_forward(&b, first_call);
    run_forward(&b, second_call);
    run_backward_input(&b, first_call, false);
    run_backward_input(&b, second_call, true);
    fill_scratch_with_nan(&b);
    run_backward_weight(&b, first_call, false);
    run_backward_weight(&b, second_call, true);
    clv_plan_call_put(b.plan, first_call);
    clv_plan_call_put(b.plan, second_call);
    assert_same_bytes(a.gradient_block, b.gradient_block, a.params->trainable_bytes, "gradients");
    assert_same_bytes(a.parameter_block, b.parameter_block, a.params->total_bytes, "statistics");
    free_rig(&a);
    free_rig(&b);
  }
}

/* If keep_inputs of clv_plan_forward is false, the caller may overwrite its inputs after forward.
 * The caller may overwrite the output's gradient after run_backward_input. */
static void caller_may_overwrite_inputs_after_forward(void **state) {
  (void)state;
  rig_options o = {.backend = clv_backend_ref(), .has_split_backward = true};
  rig a = make_rig(make_branches(), &o);
  rig b = make_rig(make_branches(), &o);
  clv_call *c;
  run_step(&a);
  assert_ok(clv_plan_call_get(b.plan, &c, err));
  assert_ok(clv_plan_forward(b.plan, c, b.parameter_block, 1, (const void *const *)b.in, false,
                             b.out, &step_key, err));
  for (int i = 0; i < b.n_in; i++) memset(b.in[i], 0xFF, b.input_bytes[i]);
  memset(b.out, 0xFF, b.output_bytes);
  run_backward_input(&b, c, false);
  memset(b.dout, 0xFF, b.output_bytes);
  run_backward_weight(&b, c, false);
  assert_same_bytes(a.gradient_block, b.gradient_block, a.params->trainable_bytes, "gradients");
  assert_same_bytes(a.din[0], b.din[0], a.input_bytes[0], "input gradient");
  clv_plan_call_put(b.plan, c);
  free_rig(&a);
  free_rig(&b);
}

/* run_backward_weight needs the gradient of the last layer's output, and backward needs that
 * output, which is in the caller's `out`. The caller may overwrite both before, so the plan saves
 * both. */
static void caller_may_overwrite_last_output_and_gradient(void **state) {
  (void)state;
  rig_options o = {.backend = clv_backend_ref(), .has_split_backward = true};
  for (int end = 0; end < 2; end++) {
    rig r[2];
    for (int i = 0; i < 2; i++) {
      int x;
      clv_graph *g = make_graph(CLV_F32, CLV_SHAPE(4, 6), &x);
      x = add_linear(g, 0, x, 5);
      if (end) add_plain(g, CLV_OP_SIGMOID, 1, x);
      r[i] = make_rig(g, &o);
    }
    run_step(&r[0]);
    clv_call *c;
    assert_ok(clv_plan_call_get(r[1].plan, &c, err));
    run_forward(&r[1], c);
    assert_same_bytes(r[0].out, r[1].out, r[0].output_bytes, "output");
    memset(r[1].out, 0xFF, r[1].output_bytes);
    run_backward_input(&r[1], c, false);
    memset(r[1].dout, 0xFF, r[1].output_bytes);
    run_backward_weight(&r[1], c, false);
    assert_same_bytes(r[0].gradient_block, r[1].gradient_block, r[0].params->trainable_bytes,
                      "gradients");
    clv_plan_call_put(r[1].plan, c);
    free_rig(&r[0]);
    free_rig(&r[1]);
  }
}

/* If a graph has only views, such as flatten, its output and its input gradient are copies. */
static void flatten_only_graph_copies_value_and_gradient(void **state) {
  (void)state;
  int x;
  clv_graph *g = make_graph(CLV_F32, CLV_SHAPE(2, 3, 4), &x);
  add_plain(g, CLV_OP_FLATTEN, 0, x);
  rig r = make_rig(g, &(rig_options){.backend = clv_backend_ref()});
  run_step(&r);
  assert_memory_equal(r.out, r.in[0], r.output_bytes);
  assert_memory_equal(r.din[0], r.dout, r.output_bytes);
  free_rig(&r);
}

static clv_graph *make_loss_graph(void) {
  int in[2];
  clv_shape labels = CLV_SHAPE(4);
  clv_graph *g = make_graph(CLV_F32, CLV_SHAPE(4, 3), &in[0]);
  assert_ok(clv_graph_add_input(g, "target", CLV_I64, &labels, &in[1], err));
  add_node(g, CLV_OP_CROSS_ENTROPY, 0, in[0], in[1], NULL, 0);
  return g;
}

static void cross_entropy_matches_formula_and_checks_labels(void **state) {
  (void)state;
  rig r = make_rig(make_loss_graph(), &(rig_options){.backend = clv_backend_cpu()});
  clv_call *c;
  *(float *)(void *)r.dout = 1;
  run_step(&r);
  const float *x = (float *)(void *)r.in[0], *dx = (float *)(void *)r.din[0];
  double want = 0;
  for (int i = 0; i < 4; i++) {
    double sum = 0;
    for (int j = 0; j < 3; j++) sum += exp((double)x[i * 3 + j]);
    want += (log(sum) - (double)x[i * 3 + i % 3]) / 4;
    for (int j = 0; j < 3; j++)
      assert_true(fabs(dx[i * 3 + j] - (exp((double)x[i * 3 + j]) / sum - (j == i % 3)) / 4) <
                  1e-6);
  }
  assert_true(fabs(*(float *)(void *)r.out - want) < 1e-6);
  ((int64_t *)(void *)r.in[1])[2] = 3;
  assert_ok(clv_plan_call_get(r.plan, &c, err));
  assert_fails(
      clv_plan_forward(r.plan, c, NULL, 1, (const void *const *)r.in, true, r.out, &step_key, err),
      CLV_INVALID, "layer 0 (cross_entropy)");
  clv_plan_call_put(r.plan, c);
  free_rig(&r);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(gradients_match_finite_differences),
    cmocka_unit_test(gradients_are_added_from_the_last_consumer),
    cmocka_unit_test(every_cut_gives_the_same_bits_on_ref),
    cmocka_unit_test(every_cut_gives_the_same_bits_on_cpu),
    cmocka_unit_test(blocked_layouts_give_the_same_bits),
    cmocka_unit_test(every_cut_gives_the_same_bits_in_blocked_layout),
    cmocka_unit_test(planned_reorder_count_matches_execution),
    cmocka_unit_test(weight_cache_is_refreshed_by_version),
    cmocka_unit_test(transient_weights_give_the_same_bits),
    cmocka_unit_test(gradients_accumulate_over_calls),
    cmocka_unit_test(frozen_parameters_get_no_gradient),
    cmocka_unit_test(frozen_front_has_no_backward_steps),
    cmocka_unit_test(unused_values_cost_nothing_and_get_no_gradient),
    cmocka_unit_test(interleaved_calls_give_the_same_bits),
    cmocka_unit_test(caller_may_overwrite_inputs_after_forward),
    cmocka_unit_test(caller_may_overwrite_last_output_and_gradient),
    cmocka_unit_test(flatten_only_graph_copies_value_and_gradient),
    cmocka_unit_test(cross_entropy_matches_formula_and_checks_labels),
};

int main(void) { return cmocka_run_group_tests(tests, NULL, NULL); }
