/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests that modules can be unloaded from a node: an UNLOAD waits for earlier calls, is refused
 * while changes are pending, and leaves no memory behind.
 */
#include "common/engine/node_int.h"
#include "tests/unit/engine/engine_test.h"

enum { BATCH = 2, WIDTH = 3, LARGE_WIDTH = 50, MAX_SEEN = 64 };

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

static clv_code add_module_with_width(fixture *f, clv_op op, uint32_t index, uint32_t generation,
                                      int64_t width) {
  clv_err err = {0};
  clv_module *module;
  clv_module_options o = make_module_options(make_one_layer_graph(op, BATCH, width), index);
  o.generation = generation;
  o.optimizer.momentum = 0.9;
  o.is_trainable = op == CLV_OP_LINEAR;
  assert_ok(clv_module_new(&o, &module, &err));
  return clv_node_add_module(f->node, module, &err);
}

static clv_code add_module(fixture *f, clv_op op, uint32_t index, uint32_t generation) {
  return add_module_with_width(f, op, index, generation, WIDTH);
}

static int set_up(void **state) {
  clv_err err = {0};
  fixture *f = calloc(1, sizeof *f);
  assert_non_null(f);
  assert_ok(clv_pool_new(64 << 20, 4096, &f->pool, &err));
  clv_node_options o = {.pool = f->pool, .user = f, .on_program = keep_packet};
  assert_ok(clv_node_new(&o, &f->node, &err));
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
  assert_int_equal(clv_account_usage(clv_pool_account(f->pool), CLV_QUOTA_CALLS), 0);
  clv_pool_unref(f->pool);
  free(f);
  return 0;
}

/* Runs the node until `more` further packets have reached the program. Returns the last packet's
 * frame. */
static const clv_frame *run_until_packets(fixture *f, uint32_t more) {
  f->n_wanted = f->n_seen + more;
  clv_node_clear_interrupt(f->node);
  assert_true(clv_node_run_until(f->node, clv_now_ns() + 10000000000u));
  return &f->seen_packets[f->n_seen - 1]->frame;
}

static void send_packet(fixture *f, clv_packet *p, uint32_t generation) {
  clv_err err = {0};
  p->frame.module_generation = generation;
  assert_ok(clv_node_send_to(f->node, "", p, &err));
}

static void send_unload(fixture *f, uint32_t index, uint32_t generation) {
  clv_err err = {0};
  clv_packet *p;
  assert_ok(clv_packet_new(f->pool, CLV_UNLOAD, &p, &err));
  p->frame.module = index;
  p->frame.message_id = 77;
  send_packet(f, p, generation);
}

static void send_call_with_width(fixture *f, uint64_t context, uint64_t id, uint32_t generation,
                                 bool has_delivery, int64_t width) {
  clv_err err = {0};
  clv_packet *p;
  clv_tensor *t;
  assert_ok(clv_pool_alloc_tensor(f->pool, CLV_F32, &CLV_SHAPE(BATCH, width), &t, &err));
  for (size_t i = 0; i < t->n; i++) ((float *)t->data)[i] = (float)i;
  assert_ok(clv_packet_new_call(f->pool, context, id, 0, true, &p, &err));
  assert_ok(clv_packet_add_arg(p, id + 1000, true, t, &err));
  clv_tensor_unref(t);
  if (has_delivery) assert_ok(clv_packet_add_delivery(p, "", &err));
  send_packet(f, p, generation);
}

static void send_call(fixture *f, uint64_t context, uint64_t id, uint32_t generation,
                      bool has_delivery) {
  send_call_with_width(f, context, id, generation, has_delivery, WIDTH);
}

/* Sends the PREPARE of one call's backward, and the output gradient of the call. The PREPARE asks
 * for a vote: whether all gradients are finite. */
static void send_backward(fixture *f, uint64_t context, uint64_t id) {
  clv_err err = {0};
  clv_packet *p;
  clv_tensor *t;
  assert_ok(clv_pool_alloc_tensor(f->pool, CLV_F32, &CLV_SHAPE(BATCH, WIDTH), &t, &err));
  for (size_t i = 0; i < t->n; i++) ((float *)t->data)[i] = 1;
  assert_ok(clv_packet_new_prepare(f->pool, context, 1, 1, false, true, false, &p, &err));
  assert_ok(clv_packet_add_needed_call(p, id, 1, 0, &err));
  send_packet(f, p, 0);
  assert_ok(clv_packet_new_gradient(f->pool, context, 1, id, 0, "", t, &p, &err));
  clv_tensor_unref(t);
  send_packet(f, p, 0);
}

static void send_end(fixture *f, uint64_t context, bool has_step) {
  clv_err err = {0};
  clv_packet *p;
  assert_ok(clv_packet_new_end_context(f->pool, context, 9, &p, &err));
  if (has_step) clv_packet_set_end_commit(p, 1, 0.5f, true);
  send_packet(f, p, 0);
}

static void assert_answer(const clv_frame *f, clv_frame_kind kind, clv_code code) {
  assert_int_equal(f->kind, kind);
  assert_int_equal(clv_frame_is_failure(f) ? f->failure.code : CLV_OK, code);
}

/* ---- unloading modules ----------------------------------------------------------------------- */

/* Makes calls, a backward and a step that can be rolled back, unloads the module, and does the same
 * with a new module of the same index. */
static void repeated_load_and_unload_leaks_nothing(void **state) {
  fixture *f = *state;
  clv_module_counts work_counts;
  size_t bytes = 0;
  uint64_t context = 0;
  for (uint32_t g = 0; g < 2600; g++) { /* more contexts than the node remembers after their end */
    assert_int_equal(add_module(f, CLV_OP_LINEAR, 0, g), CLV_OK);
    send_call(f, ++context, 5, g, false);
    send_backward(f, context, 5);
    assert_answer(run_until_packets(f, 1), CLV_FINISHED, CLV_OK);
    send_end(f, context, true);
    send_unload(f, 0, g);
    assert_answer(run_until_packets(f, 2), CLV_UNLOADED, CLV_OK);
    assert_int_equal(f->seen_packets[1]->frame.kind, CLV_ENDED);
    assert_int_equal(f->seen_packets[2]->frame.reply_to, 77);
    assert_int_equal(f->seen_packets[2]->frame.module_generation, g);
    assert_null(clv_node_module(f->node, 0));
    free_seen_packets(f);
    if (g == 2500) bytes = clv_pool_charged_bytes(f->pool);
  }
  assert_int_equal(clv_pool_charged_bytes(f->pool), bytes);
  clv_node_count_work(f->node, &work_counts);
  assert_int_equal(work_counts.forwards, 2600);
  assert_int_equal(work_counts.steps_since_load, 2600);
}

/* The pool keeps freed tensors by size. Only the unloaded module used tensors of these sizes, so
 * unloading frees them. */
static void unload_frees_pooled_tensors_of_its_sizes(void **state) {
  fixture *f = *state;
  size_t bytes[2];
  for (uint32_t g = 0; g < 2; g++) {
    int64_t width = g ? LARGE_WIDTH : WIDTH;
    assert_int_equal(add_module_with_width(f, CLV_OP_TANH, 0, g, width), CLV_OK);
    send_call_with_width(f, 3 + g, 5, g, true, width);
    assert_answer(run_until_packets(f, 1), CLV_VALUE, CLV_OK);
    free_seen_packets(f);
    send_end(f, 3 + g, false);
    send_unload(f, 0, g);
    assert_answer(run_until_packets(f, 2), CLV_UNLOADED, CLV_OK);
    free_seen_packets(f);
    bytes[g] = clv_pool_charged_bytes(f->pool);
  }
  assert_int_equal(bytes[1], bytes[0]);
}

static void unload_is_refused_while_a_context_used_it(void **state) {
  fixture *f = *state;
  assert_int_equal(add_module(f, CLV_OP_LINEAR, 0, 0), CLV_OK);
  send_call(f, 3, 5, 0, true);
  assert_answer(run_until_packets(f, 1), CLV_VALUE, CLV_OK);
  send_unload(f, 0, 0);
  assert_answer(run_until_packets(f, 1), CLV_ERROR, CLV_PRECONDITION);
  send_backward(f, 3, 5);
  assert_answer(run_until_packets(f, 1), CLV_FINISHED, CLV_OK);
  send_unload(f, 0, 0);
  assert_answer(run_until_packets(f, 1), CLV_ERROR, CLV_PRECONDITION);
  send_end(f, 3, false);
  send_unload(f, 0, 0);
  assert_answer(run_until_packets(f, 2), CLV_UNLOADED, CLV_OK);
}

/* While a context may still roll back the running statistics of a module, the node holds a backup
 * of them, and refuses to unload the module. */
static void unload_is_refused_while_statistics_may_revert(void **state) {
  fixture *f = *state;
  clv_err err = {0};
  clv_packet *p;
  assert_int_equal(add_module(f, CLV_OP_BATCHNORM, 0, 0), CLV_OK);
  send_call(f, 3, 5, 0, true);
  assert_answer(run_until_packets(f, 1), CLV_VALUE, CLV_OK);
  assert_ok(clv_packet_new(f->pool, CLV_DROP, &p, &err));
  p->frame.context = 3;
  p->frame.value_ids[p->frame.n_value_ids++] = 5;
  send_packet(f, p, 0);
  send_unload(f, 0, 0);
  assert_answer(run_until_packets(f, 1), CLV_ERROR, CLV_PRECONDITION);
  send_end(f, 3, false);
  send_unload(f, 0, 0);
  assert_answer(run_until_packets(f, 2), CLV_UNLOADED, CLV_OK);
}

static void late_frame_does_not_reach_a_newer_generation(void **state) {
  fixture *f = *state;
  clv_err err = {0};
  clv_packet *p;
  assert_int_equal(add_module(f, CLV_OP_LINEAR, 0, 4), CLV_OK);
  assert_int_equal(add_module(f, CLV_OP_LINEAR, 0, 5), CLV_EXISTS);
  send_unload(f, 0, 4);
  assert_answer(run_until_packets(f, 1), CLV_UNLOADED, CLV_OK);
  assert_int_equal(add_module(f, CLV_OP_LINEAR, 0, 4), CLV_PRECONDITION);
  assert_int_equal(add_module(f, CLV_OP_LINEAR, 0, 3), CLV_PRECONDITION);
  send_unload(f, 0, 4);
  assert_answer(run_until_packets(f, 1), CLV_ERROR, CLV_NOT_FOUND);
  assert_int_equal(add_module(f, CLV_OP_LINEAR, 0, UINT32_MAX), CLV_OK);
  send_call(f, 3, 5, 4, true);
  assert_answer(run_until_packets(f, 1), CLV_VALUE, CLV_NOT_FOUND);
  send_call(f, 3, 6, UINT32_MAX, true);
  assert_answer(run_until_packets(f, 1), CLV_VALUE, CLV_OK);
  assert_ok(clv_packet_new_state_get(f->pool, 0, 8, 0, CLV_STATE_WEIGHTS, &p, &err));
  send_packet(f, p, 4);
  assert_answer(run_until_packets(f, 1), CLV_ERROR, CLV_NOT_FOUND);
  assert_ok(clv_packet_new_apply(f->pool, 3, 8, 0, 1, 0.1f, true, &p, &err));
  send_packet(f, p, 4);
  assert_answer(run_until_packets(f, 1), CLV_ABORT, CLV_NOT_FOUND);
  send_end(f, 3, false);
  send_unload(f, 0, UINT32_MAX);
  assert_answer(run_until_packets(f, 2), CLV_UNLOADED, CLV_OK);
  assert_int_equal(add_module(f, CLV_OP_LINEAR, 0, UINT32_MAX), CLV_PRECONDITION);
}

/* UNLOAD waits for a call that was sent before it and waits for its input. A call that is sent
 * after UNLOAD keeps the module loaded. */
static void unload_waits_for_earlier_calls(void **state) {
  fixture *f = *state;
  clv_err err = {0};
  clv_packet *p;
  assert_int_equal(add_module(f, CLV_OP_LINEAR, 0, 0), CLV_OK);
  assert_ok(clv_packet_new_call(f->pool, 3, 5, 0, true, &p, &err));
  assert_ok(clv_packet_add_arg(p, 1000, true, NULL, &err));
  send_packet(f, p, 0);
  send_unload(f, 0, 0);
  send_end(f, 3, false); /* the end of context 3 removes its call from the queue */
  assert_int_equal(run_until_packets(f, 2)->kind, CLV_UNLOADED);
  assert_int_equal(f->seen_packets[0]->frame.kind, CLV_ENDED);
  assert_int_equal(add_module(f, CLV_OP_LINEAR, 0, 1), CLV_OK);
  assert_ok(clv_packet_new_call(f->pool, 4, 5, 0, true, &p, &err));
  assert_ok(clv_packet_add_arg(p, 1000, true, NULL, &err));
  send_packet(f, p, 1);
  send_unload(f, 0, 1);
  send_call(f, 5, 6, 1, true); /* this call waits until the module is unloaded */
  send_end(f, 4, false);
  assert_answer(run_until_packets(f, 3), CLV_VALUE, CLV_OK);
  assert_answer(&f->seen_packets[3]->frame, CLV_ERROR, CLV_PRECONDITION);
  send_end(f, 5, false);
  send_unload(f, 0, 1);
  assert_answer(run_until_packets(f, 2), CLV_UNLOADED, CLV_OK);
}

/* UNLOAD is queued after a call that waits for its input. A step and a REVERT are queued after
 * UNLOAD, and their contexts end before they run. */
static void unload_is_refused_while_a_change_is_pending(void **state) {
  fixture *f = *state;
  clv_err err = {0};
  clv_packet *p;
  for (uint32_t has_revert = 0; has_revert < 2; has_revert++) {
    clv_module_counts work_counts;
    assert_int_equal(add_module(f, CLV_OP_LINEAR, 0, has_revert), CLV_OK);
    uint64_t stepped_context = 2 * has_revert + 2, waiting_context = 2 * has_revert + 3;
    send_call(f, stepped_context, 5, has_revert, false);
    send_backward(f, stepped_context, 5);
    assert_answer(run_until_packets(f, 1), CLV_FINISHED, CLV_OK);
    assert_ok(clv_packet_new_call(f->pool, waiting_context, 5, 0, true, &p, &err));
    assert_ok(clv_packet_add_arg(p, 1000, true, NULL, &err));
    send_packet(f, p, has_revert);
    send_unload(f, 0, has_revert);
    if (has_revert) {
      assert_ok(clv_packet_new_revert(f->pool, stepped_context, 8, &p, &err));
      send_packet(f, p, 0);
    }
    send_end(f, stepped_context, !has_revert);
    assert_answer(run_until_packets(f, 1), CLV_ENDED, CLV_OK);
    send_end(f, waiting_context, false);
    assert_answer(run_until_packets(f, 2 + has_revert), CLV_ERROR, CLV_PRECONDITION);
    clv_node_count_work(f->node, &work_counts);
    assert_int_equal(work_counts.steps_since_load, 1);
    send_unload(f, 0, has_revert);
    assert_answer(run_until_packets(f, 1), CLV_UNLOADED, CLV_OK);
    free_seen_packets(f);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(repeated_load_and_unload_leaks_nothing, set_up, tear_down),
      cmocka_unit_test_setup_teardown(unload_frees_pooled_tensors_of_its_sizes, set_up, tear_down),
      cmocka_unit_test_setup_teardown(unload_is_refused_while_a_context_used_it, set_up, tear_down),
      cmocka_unit_test_setup_teardown(unload_is_refused_while_statistics_may_revert, set_up,
                                      tear_down),
      cmocka_unit_test_setup_teardown(late_frame_does_not_reach_a_newer_generation, set_up,
                                      tear_down),
      cmocka_unit_test_setup_teardown(unload_waits_for_earlier_calls, set_up, tear_down),
      cmocka_unit_test_setup_teardown(unload_is_refused_while_a_change_is_pending, set_up,
                                      tear_down),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
