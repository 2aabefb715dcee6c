/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests contexts in the master's own node: the tests send packets to the node and check the packets
 * that reach the program.
 */
#include <stdio.h>

#include "tests/unit/engine/engine_test.h"

enum { BATCH = 4, WIDTH = 3, MAX_SEEN = 256 };

/* A node with two modules (linear, batchnorm), and all packets that reached its program. */
typedef struct fixture {
  clv_pool *pool;
  clv_session_node *node;
  clv_packet *seen_packets[MAX_SEEN];
  uint32_t n_seen, n_wanted;
} fixture;

static void keep_packet(void *user, clv_packet *p) {
  fixture *f = user;
  assert_true(f->n_seen < MAX_SEEN);
  f->seen_packets[f->n_seen++] = p;
  if (f->n_seen >= f->n_wanted) clv_node_interrupt(f->node);
}

static void add_module(fixture *f, uint32_t index, clv_op op) {
  clv_err err = {0};
  clv_module_options so = make_module_options(make_one_layer_graph(op, BATCH, WIDTH), index);
  clv_module *module;
  assert_ok(clv_module_new(&so, &module, &err));
  assert_ok(clv_node_add_module(f->node, module, &err));
}

static int set_up(void **state) {
  clv_err err = {0};
  fixture *f = calloc(1, sizeof *f);
  assert_non_null(f);
  assert_ok(clv_pool_new(64 << 20, 4096, &f->pool, &err));
  clv_node_options o = {.pool = f->pool, .user = f, .on_program = keep_packet};
  assert_ok(clv_node_new(&o, &f->node, &err));
  add_module(f, 0, CLV_OP_LINEAR);
  add_module(f, 1, CLV_OP_BATCHNORM);
  *state = f;
  return 0;
}

static void free_seen_packets(fixture *f) {
  while (f->n_seen) clv_packet_free(f->seen_packets[--f->n_seen]);
}

static int tear_down(void **state) {
  fixture *f = *state;
  free_seen_packets(f);
  clv_node_free(f->node);
  clv_pool_unref(f->pool);
  free(f);
  return 0;
}

/* Runs the node until `wanted` packets have reached the program. */
static void run_until_packets(fixture *f, uint32_t wanted) {
  f->n_wanted = wanted;
  if (f->n_seen >= wanted) return;
  clv_node_clear_interrupt(f->node);
  assert_true(clv_node_run_until(f->node, clv_now_ns() + 10000000000u));
}

static clv_tensor *make_tensor(fixture *f, float first_value) {
  clv_err err = {0};
  clv_tensor *t;
  assert_ok(clv_pool_alloc_tensor(f->pool, CLV_F32, &CLV_SHAPE(BATCH, WIDTH), &t, &err));
  for (size_t i = 0; i < t->n; i++) ((float *)t->data)[i] = first_value + (float)i;
  return t;
}

static void post_call(fixture *f, uint64_t context, uint64_t id, uint64_t arg, clv_tensor *leaf) {
  clv_err err = {0};
  clv_packet *p;
  assert_ok(clv_packet_new_call(f->pool, context, id, 0, true, &p, &err));
  assert_ok(clv_packet_add_arg(p, arg, true, leaf, &err));
  assert_ok(clv_node_send_to(f->node, "", p, &err));
  assert_ok(clv_packet_new_deliver(f->pool, context, id, "", &p, &err));
  assert_ok(clv_node_send_to(f->node, "", p, &err));
}

static void post_gradient(fixture *f, uint64_t context, uint64_t value, clv_tensor *t) {
  clv_err err = {0};
  clv_packet *p;
  assert_ok(clv_packet_new_gradient(f->pool, context, 1, value, 0, "", t, &p, &err));
  assert_ok(clv_node_send_to(f->node, "", p, &err));
}

static void post_end(fixture *f, uint64_t context) {
  clv_err err = {0};
  clv_packet *p;
  assert_ok(clv_packet_new_end_context(f->pool, context, 9, &p, &err));
  assert_ok(clv_node_send_to(f->node, "", p, &err));
}

/* Runs y = A(A(x)) and a training step: two forwards; two backwards, which a PREPARE in two frames
 * requests; the vote of module A on the step; the step. */
static void run_context(fixture *f, uint64_t context) {
  clv_err err = {0};
  clv_packet *p;
  CLV_AUTO(clv_tensor_unrefp) clv_tensor *x = make_tensor(f, 1), *dy = make_tensor(f, 2);
  /* the CALL is sent before the value that it takes as its argument */
  post_call(f, context, 12, 11, NULL);
  post_call(f, context, 11, 10, x);
  run_until_packets(f, 2);
  assert_int_equal(f->seen_packets[0]->frame.kind, CLV_VALUE);
  assert_int_equal(f->seen_packets[0]->frame.message_id + f->seen_packets[1]->frame.message_id, 23);
  assert_ok(clv_packet_new_prepare(f->pool, context, 1, 2, false, true, true, &p, &err));
  assert_ok(clv_packet_add_needed_call(p, 12, 1, 0, &err));
  assert_ok(clv_packet_add_target(p, 0, 11, "", 0, &err));
  assert_ok(clv_node_send_to(f->node, "", p, &err));
  assert_ok(clv_packet_new_prepare(f->pool, context, 1, 2, false, true, false, &p, &err));
  assert_ok(clv_packet_add_needed_call(p, 11, 1, 0, &err));
  assert_ok(clv_packet_add_target(p, 0, 10, "", 4, &err));
  assert_ok(clv_node_send_to(f->node, "", p, &err));
  post_gradient(f, context, 12, dy);
  run_until_packets(f, 4);
  assert_int_equal(f->seen_packets[2]->frame.kind, CLV_GRADIENT);
  assert_int_equal(f->seen_packets[2]->frame.message_id, 10);
  assert_int_equal(f->seen_packets[2]->frame.contribution_index, 4);
  assert_int_equal(f->seen_packets[3]->frame.kind, CLV_FINISHED);
  assert_true(f->seen_packets[3]->frame.has_vote && f->seen_packets[3]->frame.vote.is_finite);
  assert_int_equal(f->seen_packets[3]->tensor[0]->n, 2);
  assert_ok(clv_packet_new_apply(f->pool, context, 21, CLV_MODULE_ALL, 1, 1e-9f, true, &p, &err));
  assert_ok(clv_node_send_to(f->node, "", p, &err));
  post_end(f, context);
  run_until_packets(f, 6);
  assert_int_equal(f->seen_packets[4]->frame.kind, CLV_APPLIED);
  assert_int_equal(f->seen_packets[4]->frame.reply_to, 21);
  assert_int_equal(f->seen_packets[5]->frame.kind, CLV_ENDED);
  free_seen_packets(f);
}

static void context_at_the_master_runs_to_its_end(void **state) { run_context(*state, 5); }

static void nothing_is_allocated_after_warm_up(void **state) {
  fixture *f = *state;
  uint64_t n_allocations = 0;
  size_t bytes = 0;
  /* more contexts than the node has tombstones (notes of ended contexts) */
  for (uint64_t i = 1; i <= 3000; i++) {
    if (i == 2100) n_allocations = clv_alloc_count(), bytes = clv_pool_charged_bytes(f->pool);
    run_context(f, i);
  }
  assert_int_equal(clv_alloc_count(), n_allocations);
  assert_int_equal(clv_pool_charged_bytes(f->pool), bytes);
  clv_context_counts counts;
  clv_node_context_count(f->node, &counts);
  assert_int_equal(counts.contexts + counts.values + counts.calls_waiting, 0);
}

/* Compares value and input gradient of a call with those that the test computes directly, in the
 * same order of operations. */
static void values_and_gradients_match_direct_computation(void **state) {
  fixture *f = *state;
  clv_err err = {0};
  clv_packet *p;
  CLV_AUTO(clv_tensor_unrefp) clv_tensor *x = make_tensor(f, 1), *dy = make_tensor(f, 2);
  clv_state_item w, b;
  assert_true(clv_module_state_item(clv_node_module(f->node, 0), CLV_STATE_WEIGHTS, 0, &w));
  assert_true(clv_module_state_item(clv_node_module(f->node, 0), CLV_STATE_WEIGHTS, 1, &b));
  post_call(f, 7, 11, 10, x);
  assert_ok(clv_packet_new_prepare(f->pool, 7, 1, 1, false, false, false, &p, &err));
  assert_ok(clv_packet_add_needed_call(p, 11, 1, 0, &err));
  assert_ok(clv_packet_add_target(p, 0, 10, "", 0, &err));
  assert_ok(clv_node_send_to(f->node, "", p, &err));
  post_gradient(f, 7, 11, dy);
  run_until_packets(f, 3);
  const float *y = f->seen_packets[0]->tensor[0]->data, *dx = f->seen_packets[1]->tensor[0]->data;
  for (int r = 0; r < BATCH; r++)
    for (int c = 0; c < WIDTH; c++) {
      double want = ((float *)b.data)[c], wanted_dx = 0;
      for (int k = 0; k < WIDTH; k++) {
        want += (double)((float *)x->data)[r * WIDTH + k] * ((float *)w.data)[c * WIDTH + k];
        wanted_dx += (double)((float *)dy->data)[r * WIDTH + k] * ((float *)w.data)[k * WIDTH + c];
      }
      assert_float_equal(y[r * WIDTH + c], want, 1e-4);
      assert_float_equal(dx[r * WIDTH + c], wanted_dx, 1e-4);
    }
}

/* ---- frames of a context in any order -------------------------------------------------------- */

static uint64_t draw_below(uint64_t *seed, uint64_t n) {
  *seed = *seed * 6364136223846793005u + 1442695040888963407u;
  return (*seed >> 33) % n;
}

static void fill_random_call(fixture *f, clv_packet *p, uint64_t *seed) {
  clv_err err = {0};
  p->frame.module = draw_below(seed, 12) == 0 ? 3 : (uint32_t)draw_below(seed, 2);
  p->frame.call.runs_after_call = draw_below(seed, 4) ? 0 : 1 + draw_below(seed, 12);
  uint32_t n = draw_below(seed, 20) == 0 ? 2 : 1;
  for (uint32_t i = 0; i < n; i++) {
    CLV_AUTO(clv_tensor_unrefp) clv_tensor *x = draw_below(seed, 3) ? NULL : make_tensor(f, 0);
    assert_ok(clv_packet_add_arg(p, 1 + draw_below(seed, 12), draw_below(seed, 4) > 0, x, &err));
  }
}

static void fill_random_prepare(clv_packet *p, uint64_t *seed) {
  clv_err err = {0};
  p->frame.backward.retains_graph = draw_below(seed, 2);
  p->frame.backward.needs_vote = draw_below(seed, 2);
  p->frame.backward.more_follow = draw_below(seed, 6) == 0;
  for (uint64_t i = draw_below(seed, 4); i-- > 0;) {
    float root_gradient = draw_below(seed, 8) == 0 ? 0.5f : 0;
    assert_ok(clv_packet_add_needed_call(p, 1 + draw_below(seed, 12), (uint32_t)draw_below(seed, 3),
                                         root_gradient, &err));
    if (draw_below(seed, 2))
      assert_ok(clv_packet_add_target(p, draw_below(seed, 10) == 0, 1 + draw_below(seed, 12),
                                      draw_below(seed, 5) ? "" : "w2",
                                      (uint32_t)draw_below(seed, 3), &err));
  }
}

/* Draws whether to announce a CALL, as a link does while the CALL's tensors are still arriving.
 * Returns false if the CALL itself must not follow, as if its tensors never arrived. */
static bool send_random_announcement(fixture *f, clv_packet *p, uint64_t *seed) {
  clv_err err = {0};
  clv_packet *announcement;
  if (draw_below(seed, 3)) return true;
  assert_ok(clv_packet_new(f->pool, CLV_CALL, &announcement, &err));
  announcement->frame = p->frame;
  announcement->frame.n_tensors = 0;
  announcement->is_announcement = p->was_announced = true;
  assert_ok(clv_node_send_to(f->node, "", announcement, &err));
  return draw_below(seed, 4) > 0;
}

static void send_random_frame(fixture *f, uint64_t first_context, uint64_t *seed) {
  static const clv_frame_kind kinds[] = {CLV_CALL,        CLV_CALL,     CLV_CALL,  CLV_DELIVER,
                                         CLV_VALUE,       CLV_DROP,     CLV_SPARE, CLV_PREPARE,
                                         CLV_PREPARE,     CLV_GRADIENT, CLV_APPLY, CLV_REVERT,
                                         CLV_END_CONTEXT, CLV_GRADIENT, CLV_ABORT, CLV_STATE_GET};
  clv_err err = {0};
  clv_packet *p;
  clv_frame_kind kind = kinds[draw_below(seed, CLV_COUNT(kinds))];
  bool ends_context = kind == CLV_END_CONTEXT || kind == CLV_ABORT;
  if (ends_context && draw_below(seed, 4)) return;
  assert_ok(clv_packet_new(f->pool, kind, &p, &err));
  p->frame.context = first_context + draw_below(seed, 4);
  p->frame.message_id = 1 + draw_below(seed, 12);
  p->frame.flags = draw_below(seed, 5) ? CLV_FLAG_TRAINING : 0;
  if (kind == CLV_DROP || kind == CLV_PREPARE)
    p->frame.step = draw_below(seed, 6) ? 0 : draw_below(seed, 40);
  if (kind == CLV_PREPARE || kind == CLV_GRADIENT)
    p->frame.backward_pass_number = 1 + (uint32_t)draw_below(seed, 3);
  if (kind == CLV_GRADIENT) p->frame.contribution_index = (uint32_t)draw_below(seed, 3);
  if (kind == CLV_CALL) fill_random_call(f, p, seed);
  if (kind == CLV_CALL && !send_random_announcement(f, p, seed)) {
    clv_packet_free(p);
    return;
  }
  if (kind == CLV_PREPARE) fill_random_prepare(p, seed);
  if (kind == CLV_DROP || kind == CLV_SPARE)
    p->frame.value_ids[p->frame.n_value_ids++] = 1 + draw_below(seed, 12);
  if (kind == CLV_VALUE || (kind == CLV_GRADIENT && draw_below(seed, 4))) {
    CLV_AUTO(clv_tensor_unrefp) clv_tensor *t = make_tensor(f, 0);
    clv_packet_add_tensor(p, t);
  }
  if (kind == CLV_APPLY) {
    p->frame.module = CLV_MODULE_ALL;
    p->frame.commit.applies_step = draw_below(seed, 4) > 0;
  }
  if (kind == CLV_STATE_GET)
    p->frame.state.part = draw_below(seed, 2) ? CLV_STATE_GRADIENTS : CLV_STATE_OPTIMIZER;
  if (kind == CLV_ABORT) clv_frame_set_failure(&p->frame, CLV_ABORTED, "by chance", "");
  assert_ok(clv_node_send_to(f->node, "", p, &err));
}

static void random_frame_order_leaves_no_state(void **state) {
  fixture *f = *state;
  clv_err err = {0};
  clv_packet *p;
  uint64_t seed = 7;
  for (int round = 0; round < 30000; round++) {
    send_random_frame(f, 1 + (uint64_t)round / 100 * 4, &seed);
    /* the answer to this last packet shows that the node has handled all packets before it */
    assert_ok(clv_packet_new_end_context(f->pool, 1u << 20, 9, &p, &err));
    assert_ok(clv_node_send_to(f->node, "", p, &err));
    run_until_packets(f, 1);
    while (f->seen_packets[f->n_seen - 1]->frame.context != 1u << 20)
      run_until_packets(f, f->n_seen + 1);
    free_seen_packets(f);
  }
  assert_ok(clv_packet_new(f->pool, CLV_ABORT, &p, &err));
  clv_frame_set_failure(&p->frame, CLV_ABORTED, "the end", "");
  assert_ok(clv_node_send_to(f->node, "", p, &err));
  assert_ok(clv_packet_new_end_context(f->pool, 1u << 20, 9, &p, &err));
  assert_ok(clv_node_send_to(f->node, "", p, &err));
  run_until_packets(f, 1);
  free_seen_packets(f);
  clv_context_counts counts;
  clv_node_context_count(f->node, &counts);
  assert_int_equal(counts.contexts + counts.values + counts.calls_waiting, 0);
}

static void delivery_to_unknown_worker_is_an_error(void **state) {
  fixture *f = *state;
  clv_err err = {0};
  clv_packet *p;
  CLV_AUTO(clv_tensor_unrefp) clv_tensor *x = make_tensor(f, 1);
  post_call(f, 8, 11, 10, x);
  assert_ok(clv_packet_new_deliver(f->pool, 8, 11, "w9", &p, &err));
  assert_ok(clv_node_send_to(f->node, "", p, &err));
  run_until_packets(f, 2);
  assert_int_equal(f->seen_packets[1]->frame.kind, CLV_ERROR);
  assert_non_null(strstr(f->seen_packets[1]->frame.failure.text, "'w9'"));
  assert_ok(clv_packet_new_deliver(f->pool, 8, 11, "w9", &p, &err));
  assert_int_equal(clv_node_send_to(f->node, "w9", p, &err), CLV_NOT_FOUND);
}

static void full_prepare_refuses_more_targets_and_calls(void **state) {
  fixture *f = *state;
  clv_err err = {0};
  clv_packet *p;
  char name[16];
  assert_ok(clv_packet_new_prepare(f->pool, 9, 1, 0, false, false, false, &p, &err));
  assert_int_equal(clv_packet_add_target(p, 0, 1, "", 0, &err), CLV_PRECONDITION);
  assert_ok(clv_packet_add_needed_call(p, 1, 0, true, &err));
  for (int i = 0; i < CLV_WIRE_PREPARE_PEERS; i++) {
    snprintf(name, sizeof name, "w%d", i);
    assert_ok(clv_packet_add_target(p, (uint32_t)i, 5, name, 0, &err));
  }
  assert_ok(clv_packet_add_target(p, 8, 5, "w3", 0, &err));
  assert_int_equal(clv_packet_add_target(p, 9, 5, "w99", 0, &err), CLV_EXHAUSTED);
  for (int i = 1; i < CLV_WIRE_NEEDED_CALLS; i++)
    assert_ok(clv_packet_add_needed_call(p, 9, 1, 0, &err));
  assert_int_equal(clv_packet_add_needed_call(p, 9, 1, 0, &err), CLV_EXHAUSTED);
  clv_packet_free(p);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(context_at_the_master_runs_to_its_end, set_up, tear_down),
      cmocka_unit_test_setup_teardown(nothing_is_allocated_after_warm_up, set_up, tear_down),
      cmocka_unit_test_setup_teardown(values_and_gradients_match_direct_computation, set_up,
                                      tear_down),
      cmocka_unit_test_setup_teardown(random_frame_order_leaves_no_state, set_up, tear_down),
      cmocka_unit_test_setup_teardown(delivery_to_unknown_worker_is_an_error, set_up, tear_down),
      cmocka_unit_test_setup_teardown(full_prepare_refuses_more_targets_and_calls, set_up,
                                      tear_down),
  };
  return cmocka_run_group_tests_name("context", tests, NULL, NULL);
}
