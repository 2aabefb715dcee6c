/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests the memory of plans: nothing is allocated after warm-up, lifetimes do not overlap, small
 * networks stay small. Also tests what a plan refuses.
 */
#include "tests/unit/graph/plan_test.h"

/* ---- a malloc that counts its calls -----------------------------------------------------------
 * The linker prefers functions that the program defines to those of the C library, for shared
 * libraries too. A build with a sanitizer defines none, because the sanitizer has its own. */

static _Atomic unsigned long n_allocations;

#if !CLV_SANITIZED
extern void *__libc_malloc(size_t), *__libc_calloc(size_t, size_t), *__libc_realloc(void *, size_t),
    *__libc_memalign(size_t, size_t);

void *malloc(size_t n) {
  n_allocations++;
  return __libc_malloc(n);
}

void *calloc(size_t n, size_t size) {
  n_allocations++;
  return __libc_calloc(n, size);
}

void *realloc(void *p, size_t n) {
  n_allocations++;
  return __libc_realloc(p, n);
}

void *aligned_alloc(size_t alignment, size_t n) {
  n_allocations++;
  return __libc_memalign(alignment, n);
}

int posix_memalign(void **ret, size_t alignment, size_t n) {
  n_allocations++;
  *ret = __libc_memalign(alignment, n);
  return *ret ? 0 : 12;
}
#endif

static void steps_after_warm_up_allocate_nothing(void **state) {
  (void)state;
  const clv_backend *backends[] = {clv_backend_ref(), clv_backend_cpu()};
  for (size_t i = 0; i < CLV_COUNT(backends); i++) {
    rig r = make_rig(make_chain_graph(CLV_F32, 8), &(rig_options){.backend = backends[i]});
    for (int k = 0; k < 3; k++) run_step(&r);
    uint64_t n_allocations_before = clv_alloc_count();
    unsigned long n_mallocs_before = n_allocations;
    for (int k = 0; k < 5; k++) run_step(&r);
    assert_int_equal(clv_alloc_count(), n_allocations_before);
    assert_int_equal(n_allocations, n_mallocs_before);
    free_rig(&r);
  }
#if !CLV_SANITIZED
  assert_true(n_allocations > 0); /* checks that allocations are counted */
#endif
}

/* ---- placement of a plan's buffers ----------------------------------------------------------- */

static void check_overlaps(const clv_plan *p) {
  for (int i = 0; i < p->n_bufs; i++)
    for (int j = i + 1; j < p->n_bufs; j++) {
      const clv_plan_buf *a = &p->bufs[i], *b = &p->bufs[j];
      if (a->memory_root != i || b->memory_root != j || a->space != b->space ||
          a->space > SPACE_CALL)
        continue;
      bool are_live_at_once = a->first_step <= b->last_step && b->first_step <= a->last_step;
      bool do_overlap = a->offset < b->offset + b->bytes && b->offset < a->offset + a->bytes;
      assert_false(are_live_at_once && do_overlap);
      size_t space_bytes = a->space == SPACE_CALL ? p->info.call_bytes : p->info.scratch_bytes;
      assert_true(a->offset + a->bytes <= space_bytes && a->offset % 64 == 0);
    }
}

static void live_buffers_do_not_overlap(void **state) {
  (void)state;
  const clv_backend *backends[] = {clv_backend_ref(), clv_backend_cpu()};
  for (size_t i = 0; i < CLV_COUNT(backends); i++)
    for (int variant = 0; variant < 4; variant++) {
      rig_options o = {
          .backend = backends[i], .is_evaluation = variant & 1, .has_split_backward = variant & 2};
      o.has_transient_weights = variant & 1;
      rig chain = make_rig(make_chain_graph(CLV_F32, 8), &o),
          residual = make_rig(make_residual_graph(4), &o);
      check_overlaps(chain.plan);
      check_overlaps(residual.plan);
      free_rig(&chain);
      free_rig(&residual);
    }
}

/* An evaluation of twenty linear layers, each followed by relu, has two activations at a time,
 * because relu works in place. */
static void evaluation_reuses_two_activation_buffers(void **state) {
  (void)state;
  int x;
  clv_graph *g = make_graph(CLV_F32, CLV_SHAPE(16, 64), &x);
  for (uint32_t i = 0; i < 40; i += 2) {
    x = add_linear(g, i, x, 64);
    x = add_plain(g, CLV_OP_RELU, i + 1, x);
  }
  rig r = make_rig(g, &(rig_options){.backend = clv_backend_ref(), .is_evaluation = true});
  const clv_plan_info *info = clv_plan_get_info(r.plan);
  assert_int_equal(info->call_bytes, 0);
  assert_int_equal(info->scratch_bytes, 2 * 16 * 64 * 4);
  assert_int_equal(info->n_steps_forward, 40); /* the last step writes to the caller's memory */
  assert_int_equal(info->n_steps_backward, 0);
  run_step(&r);
  free_rig(&r);
}

static rig make_linears(bool is_split) {
  int x;
  clv_graph *g = make_graph(CLV_F32, CLV_SHAPE(16, 64), &x);
  for (uint32_t i = 0; i < 8; i += 2) {
    x = add_linear(g, i, x, 64);
    x = add_plain(g, CLV_OP_RELU, i + 1, x);
  }
  return make_rig(g, &(rig_options){.backend = clv_backend_ref(), .has_split_backward = is_split});
}

/* Training saves one activation per relu, and the gradients that the weight part needs if it runs
 * later. */
static void training_saves_only_needed_activations(void **state) {
  (void)state;
  rig split_rig = make_linears(true), unsplit_rig = make_linears(false);
  size_t activation_bytes = 16 * 64 * 4;
  /* saved: 4 outputs of relu, a copy of the input, and 4 gradients of the linears' outputs; the
   * output of the last relu is freed once its gradient exists */
  assert_true(clv_plan_get_info(split_rig.plan)->call_bytes <= 9 * activation_bytes);
  assert_true(clv_plan_get_info(split_rig.plan)->call_bytes >= 8 * activation_bytes);
  assert_int_equal(clv_plan_get_info(unsplit_rig.plan)->call_bytes, 5 * activation_bytes);
  check_overlaps(split_rig.plan);
  check_overlaps(unsplit_rig.plan);
  free_rig(&split_rig);
  free_rig(&unsplit_rig);
}

/* ---- plans that are refused ------------------------------------------------------------------ */

static void invalid_plan_options_are_refused(void **state) {
  (void)state;
  clv_graph *g = make_chain_graph(CLV_F32, 4), *other = make_chain_graph(CLV_F64, 4);
  clv_params *p, *q;
  clv_plan *plan = NULL;
  assert_ok(clv_params_make(g, &p, err));
  assert_ok(clv_params_make(other, &q, err));
  clv_plan_options o = {
      .backend = clv_backend_ref(), .dtype = CLV_F32, .batch = 4, .training = true};
  o.batch = -1;
  assert_fails(clv_plan_new(g, p, &o, &plan, err), CLV_INVALID, "input input");
  o.batch = INT64_MAX;
  assert_fails(clv_plan_new(g, p, &o, &plan, err), CLV_INVALID, "outside");
  o.batch = 4;
  o.dtype = CLV_F64;
  assert_fails(clv_plan_new(g, p, &o, &plan, err), CLV_INVALID,
               "input 'input' is f32 in a plan for f64");
  o.dtype = CLV_I64;
  assert_fails(clv_plan_new(g, p, &o, &plan, err), CLV_INVALID, "not i64");
  o.dtype = CLV_F32;
  assert_fails(clv_plan_new(g, q, &o, &plan, err), CLV_INVALID,
               "parameter '0.weight' is not one of");
  p->n--;
  assert_fails(clv_plan_new(g, p, &o, &plan, err), CLV_INVALID, "parameter '10.bias' is missing");
  p->n++;
  int node = p->list[0].node;
  p->list[0].node = 1000;
  assert_fails(clv_plan_new(g, p, &o, &plan, err), CLV_INVALID, "not one of this graph");
  p->list[0].node = node;
  g->output_node = 99;
  assert_fails(clv_plan_new(g, p, &o, &plan, err), CLV_INVALID, "no output node 99");
  g->output_node = g->n_nodes - 1;
  clv_backend old_backend = *clv_backend_ref();
  old_backend.abi = 0;
  o.backend = &old_backend;
  assert_fails(clv_plan_new(g, p, &o, &plan, err), CLV_PRECONDITION, "another version");
  assert_null(plan);
  clv_params_free(p);
  clv_params_free(q);
  clv_graph_free(g);
  clv_graph_free(other);
}

/* Like PyTorch, a plan refuses to train batchnorm on one value per channel. The plan is refused
 * when it is made; an evaluation is permitted. */
static void batchnorm_on_one_value_per_channel_is_refused(void **state) {
  (void)state;
  int x;
  clv_plan *plan = NULL;
  clv_params *p;
  clv_graph *g = make_graph(CLV_F32, CLV_SHAPE(1, 6), &x);
  add_plain(g, CLV_OP_BATCHNORM, 0, x);
  assert_ok(clv_params_make(g, &p, err));
  clv_plan_options o = {
      .backend = clv_backend_ref(), .dtype = CLV_F32, .batch = 1, .training = true};
  assert_fails(clv_plan_new(g, p, &o, &plan, err), CLV_INVALID,
               "layer 0 (batchnorm): Expected more than 1 value per channel when training, got "
               "input size [1, 6]");
  o.training = false;
  assert_ok(clv_plan_new(g, p, &o, &plan, err));
  clv_plan_free(plan);
  o.training = true;
  o.batch = 2;
  assert_ok(clv_plan_new(g, p, &o, &plan, err));
  clv_plan_free(plan);
  clv_params_free(p);
  clv_graph_free(g);
}

static void phases_out_of_order_are_refused(void **state) {
  (void)state;
  rig r = make_rig(make_chain_graph(CLV_F32, 4), &(rig_options){.backend = clv_backend_ref()});
  rig e = make_rig(make_chain_graph(CLV_F32, 4),
                   &(rig_options){.backend = clv_backend_ref(), .is_evaluation = true});
  const void *null_inputs[1] = {NULL};
  void *null_gradients[1] = {NULL};
  clv_call *c, *d;
  assert_ok(clv_plan_call_get(r.plan, &c, err));
  assert_ok(clv_plan_call_get(e.plan, &d, err));
#define BACK(rig, call, din)                                                                 \
  clv_plan_backward_input(rig.plan, call, rig.parameter_block, rig.dout, (void *const *)din, \
                          rig.gradient_block, false, err)
  assert_fails(BACK(r, c, r.din), CLV_PRECONDITION, "has no forward");
  assert_fails(
      clv_plan_forward(r.plan, c, r.parameter_block, 1, null_inputs, true, r.out, &step_key, err),
      CLV_INVALID, "input 'input' is missing");
  assert_fails(BACK(r, c, r.din), CLV_PRECONDITION, "has no forward");
  run_forward(&r, c);
  assert_fails(clv_plan_backward_weight(r.plan, c, r.parameter_block, r.gradient_block, false, err),
               CLV_PRECONDITION, "backward_weight must follow a backward_input");
  assert_fails(BACK(r, c, null_gradients), CLV_INVALID,
               "no buffer is given for the gradient of input 'input'");
  assert_ok(BACK(r, c, r.din));
  assert_fails(BACK(r, c, r.din), CLV_PRECONDITION, "is after backward_input");
  assert_ok(clv_plan_backward_weight(r.plan, c, r.parameter_block, r.gradient_block, false, err));
  assert_fails(clv_plan_backward_weight(r.plan, c, r.parameter_block, r.gradient_block, false, err),
               CLV_PRECONDITION, "is done");
  run_forward(&e, d);
  assert_fails(BACK(e, d, e.din), CLV_PRECONDITION, "for evaluation");
#undef BACK
  clv_plan_call_put(r.plan, c);
  clv_plan_call_put(r.plan, NULL);
  clv_call *reused_call;
  assert_ok(clv_plan_call_get(r.plan, &reused_call, err));
  assert_ptr_equal(reused_call, c);
  free_rig(&r);
  free_rig(&e); /* the plan frees calls that were not put back */
  assert_null(clv_plan_free(NULL));
}

/* The largest graph that a peer may send is planned in bounded time and memory. */
static void largest_graph_is_planned_in_bounded_time_and_memory(void **state) {
  (void)state;
  int x, previous;
  clv_graph *g = make_graph(CLV_F32, CLV_SHAPE(2, 8), &x);
  previous = x;
  for (uint32_t i = 0; i + 2 < CLV_MAX_NODES; i++) {
    int next = add_node(g, CLV_OP_ADD, i, x, previous, NULL, 0);
    previous = x;
    x = next;
  }
  uint64_t begin = clv_now_ns();
  rig r = make_rig(g, &(rig_options){.backend = clv_backend_ref()});
  assert_true(clv_now_ns() - begin < 20000000000u);
  assert_true(clv_plan_get_info(r.plan)->scratch_bytes < 4096);
  free_rig(&r);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(steps_after_warm_up_allocate_nothing),
      cmocka_unit_test(live_buffers_do_not_overlap),
      cmocka_unit_test(evaluation_reuses_two_activation_buffers),
      cmocka_unit_test(training_saves_only_needed_activations),
      cmocka_unit_test(invalid_plan_options_are_refused),
      cmocka_unit_test(batchnorm_on_one_value_per_channel_is_refused),
      cmocka_unit_test(phases_out_of_order_are_refused),
      cmocka_unit_test(largest_graph_is_planned_in_bounded_time_and_memory),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
