/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests fixed parameters, which are frozen for as long as their module exists: they need no memory
 * for gradients and moments, and the trained parameters get the same bits as beside parameters that
 * are frozen for a time.
 */
#include "tests/unit/engine/engine_test.h"

enum { BATCH = 4, WIDTH = 48, STEPS = 3, WEIGHT_BYTES = WIDTH * WIDTH * 4 };

/* Returns a linear layer followed by a batchnorm. */
static clv_graph *make_network(void) {
  clv_err err = {0};
  clv_graph *g = make_one_layer_graph(CLV_OP_LINEAR, BATCH, WIDTH);
  clv_attrs attrs;
  assert_ok(clv_attrs_parse(CLV_OP_BATCHNORM, NULL, 0, &attrs, &err));
  assert_ok(clv_graph_add(g, CLV_OP_BATCHNORM, &attrs, "1", 1, &(int){g->output_node}, 1,
                          &g->output_node, &err));
  return g;
}

typedef struct fixture {
  clv_pool *pool;
  clv_session_node *node;
  clv_packet *last_packet;
  size_t peak_pool_bytes; /* largest number of bytes that the pool had while gradients existed */
} fixture;

static void keep_packet(void *user, clv_packet *p) {
  fixture *f = user;
  clv_packet_free(f->last_packet);
  f->last_packet = p;
  clv_node_interrupt(f->node);
}

static void start_node(fixture *f, bool has_fixed_weights) {
  static const char *const weight[] = {"0.weight"};
  clv_err err = {0};
  clv_module *m;
  *f = (fixture){0};
  assert_ok(clv_pool_new(64 << 20, 4096, &f->pool, &err));
  clv_node_options o = {.pool = f->pool, .user = f, .on_program = keep_packet};
  assert_ok(clv_node_new(&o, &f->node, &err));
  clv_module_options so = make_module_options(make_network(), 0);
  so.optimizer = (clv_optim_config){
      .kind = CLV_OPTIM_ADAMW, .lr = 0.1, .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8};
  so.frozen = weight;
  so.n_frozen = 1;
  so.is_frozen_for_good = has_fixed_weights;
  assert_ok(clv_module_new(&so, &m, &err));
  assert_ok(clv_node_add_module(f->node, m, &err));
}

static void stop_node(fixture *f) {
  clv_packet_free(f->last_packet);
  clv_node_free(f->node);
  clv_pool_unref(f->pool);
}

static void send_packet(fixture *f, clv_packet *p) {
  clv_err err = {0};
  assert_ok(clv_node_send_to(f->node, "", p, &err));
}

static void wait_for_answer(fixture *f, clv_frame_kind kind) {
  clv_node_clear_interrupt(f->node);
  assert_true(clv_node_run_until(f->node, clv_now_ns() + 10000000000u));
  if (f->last_packet->frame.kind == CLV_ABORT) fail_msg("%s", f->last_packet->frame.failure.text);
  assert_int_equal(f->last_packet->frame.kind, kind);
}

static clv_tensor *make_tensor(fixture *f, uint64_t seed) {
  clv_err err = {0};
  clv_tensor *t;
  assert_ok(clv_pool_alloc_tensor(f->pool, CLV_F32, &CLV_SHAPE(BATCH, WIDTH), &t, &err));
  for (size_t i = 0; i < t->n; i++) ((float *)t->data)[i] = (float)((i * 7 + seed) % 13) - 6;
  return t;
}

static void run_step(fixture *f, uint64_t context) {
  clv_err err = {0};
  clv_packet *p;
  CLV_AUTO(clv_tensor_unrefp)
  clv_tensor *x = make_tensor(f, context), *dy = make_tensor(f, 2 * context);
  assert_ok(clv_packet_new_call(f->pool, context, 11, 0, true, &p, &err));
  assert_ok(clv_packet_add_arg(p, 0, false, x, &err));
  send_packet(f, p);
  assert_ok(clv_packet_new_prepare(f->pool, context, 1, 1, false, true, false, &p, &err));
  assert_ok(clv_packet_add_needed_call(p, 11, 1, 0, &err));
  send_packet(f, p);
  assert_ok(clv_packet_new_gradient(f->pool, context, 1, 11, 0, "", dy, &p, &err));
  send_packet(f, p);
  wait_for_answer(f, CLV_FINISHED);
  /* FINISHED has a sum of squared gradients for each trained parameter: the linear's bias, and the
   * batchnorm's weight and bias */
  assert_int_equal(f->last_packet->tensor[0]->n, 3);
  f->peak_pool_bytes = CLV_MAX(f->peak_pool_bytes, clv_pool_charged_bytes(f->pool));
  assert_ok(clv_packet_new_apply(f->pool, context, 21, 0, 1, 0.1f, true, &p, &err));
  send_packet(f, p);
  wait_for_answer(f, CLV_APPLIED);
}

static void assert_same_state(fixture *a, fixture *b, clv_state_kind what) {
  clv_state_item one, other;
  clv_module *m = clv_node_module(a->node, 0), *of = clv_node_module(b->node, 0);
  for (uint32_t i = 0; clv_module_state_item(m, what, i, &one); i++) {
    uint32_t k = 0;
    while (clv_module_state_item(of, what, k, &other) && strcmp(one.name, other.name) != 0) k++;
    assert_string_equal(one.name, other.name);
    assert_memory_equal(one.data, other.data, one.bytes);
  }
}

static void fixed_parameters_have_no_gradients_or_moments(void **state) {
  (void)state;
  fixture frozen, fixed;
  start_node(&frozen, false);
  start_node(&fixed, true);
  clv_module *a = clv_node_module(frozen.node, 0), *b = clv_node_module(fixed.node, 0);
  /* the fixed weight needs no memory for its two moments */
  assert_int_equal(clv_module_bytes(a) - clv_module_bytes(b), 2 * WEIGHT_BYTES);
  for (uint64_t i = 1; i <= STEPS; i++) {
    run_step(&frozen, i);
    run_step(&fixed, i);
  }
  /* Fixed parameters save the memory of a gradient, and of a backup of their values and two
   * moments. */
  assert_true(frozen.peak_pool_bytes - fixed.peak_pool_bytes >= 3 * WEIGHT_BYTES);
  assert_int_equal(clv_module_state_count(a, CLV_STATE_OPTIMIZER), 2 * 4 + 1);
  assert_int_equal(clv_module_state_count(b, CLV_STATE_OPTIMIZER), 2 * 3 + 1);
  assert_same_state(&fixed, &frozen, CLV_STATE_WEIGHTS);
  assert_same_state(&fixed, &frozen, CLV_STATE_OPTIMIZER);
  stop_node(&frozen);
  stop_node(&fixed);
}

/* The block of a module has separate, aligned regions for trained parameters, fixed parameters and
 * buffers. */
static void layout_separates_trainable_fixed_and_buffers(void **state) {
  (void)state;
  clv_err err = {0};
  CLV_AUTO(clv_graph_freep) clv_graph *g = make_network();
  CLV_AUTO(clv_params_freep) clv_params *p = NULL;
  assert_ok(clv_params_make(g, &p, &err));
  size_t total_before = p->total_bytes, trainable_before = p->trainable_bytes;
  assert_int_equal(p->buffer_offset, trainable_before);
  p->list[0].frozen = true;
  clv_params_fix_frozen(p);
  assert_int_equal(p->total_bytes, total_before);
  assert_int_equal(p->buffer_offset, trainable_before);
  assert_int_equal(p->trainable_bytes, trainable_before - WEIGHT_BYTES);
  for (int i = 0; i < p->n; i++) {
    const clv_param *q = &p->list[i];
    size_t region_start = q->is_fixed ? p->trainable_bytes : q->trainable ? 0 : p->buffer_offset;
    size_t region_end = q->is_fixed    ? p->buffer_offset
                        : q->trainable ? p->trainable_bytes
                                       : p->total_bytes;
    assert_int_equal(q->is_fixed, i == 0);
    assert_true(q->offset % 64 == 0 && q->offset >= region_start &&
                q->offset + q->bytes <= region_end);
    for (int k = 0; k < i; k++)
      assert_true(p->list[k].offset + p->list[k].bytes <= q->offset ||
                  q->offset + q->bytes <= p->list[k].offset);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(fixed_parameters_have_no_gradients_or_moments),
      cmocka_unit_test(layout_separates_trainable_fixed_and_buffers),
  };
  return cmocka_run_group_tests_name("fixed", tests, NULL, NULL);
}
