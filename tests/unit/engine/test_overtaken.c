/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests the order of work in the engine. A step must not overtake work that became ready before it.
 * A call that fails must not keep another context from restoring running statistics. The end of a
 * context must not overtake a step that has begun. A packet for which a caller waits must not be
 * deferred.
 */
#include "common/engine/wake_int.h"
#include "tests/unit/engine/contexts_test.h"

typedef struct received_results {
  uint32_t n_aborts, n_gradients;
} received_results;

static void count_result(engine *w, clv_result *r) {
  received_results *h = w->user;
  h->n_aborts += r->packet->frame.kind == CLV_ABORT;
  h->n_gradients += r->packet->frame.kind == CLV_GRADIENT;
  clv_packet_free(r->packet);
}

static void handle_packet(engine *w, clv_packet *p) {
  clv_err err = {0};
  assert_ok(engine_handle_packet(w, p, &err));
}

static clv_packet *make_call(engine *w, uint64_t context, uint64_t id, uint32_t module,
                             uint64_t arg_id, clv_tensor *leaf) {
  clv_err err = {0};
  clv_packet *p;
  assert_ok(clv_packet_new_call(w->pool, context, id, module, true, &p, &err));
  assert_ok(clv_packet_add_arg(p, arg_id, true, leaf, &err));
  return p;
}

static void send_prepare(engine *w, uint64_t context, uint64_t id, uint64_t target) {
  clv_err err = {0};
  clv_packet *p;
  assert_ok(clv_packet_new_prepare(w->pool, context, 1, 1, false, true, false, &p, &err));
  assert_ok(clv_packet_add_needed_call(p, id, 1, 0, &err));
  if (target) assert_ok(clv_packet_add_target(p, 0, target, "", 0, &err));
  handle_packet(w, p);
}

static void send_gradient(engine *w, uint64_t context, uint64_t id, uint32_t position_in_sum,
                          clv_tensor *t) {
  clv_err err = {0};
  clv_packet *p;
  assert_ok(clv_packet_new_gradient(w->pool, context, 1, id, position_in_sum, "", t, &p, &err));
  handle_packet(w, p);
}

/* The step of context 2 is queued after the forward of context 1. The backward of context 1, which
 * is ready once that forward has run, must run before that step. */
static void step_does_not_overtake_a_ready_backward(void **state) {
  received_results h = {0};
  engine w = {.on_result = count_result, .user = &h};
  clv_err err = {0};
  clv_packet *p;
  (void)state;
  engine_open(&w, 0);
  clv_tensor *x = engine_make_tensor(&w, 1), *dy = engine_make_tensor(&w, 2);
  handle_packet(&w, make_call(&w, 2, 20, 0, 0, x));
  send_prepare(&w, 2, 20, 0);
  send_gradient(&w, 2, 20, 0, dy);
  handle_packet(&w, make_call(&w, 1, 30, 0, 29, NULL));
  send_prepare(&w, 1, 30, 29);
  send_gradient(&w, 1, 30, 0, dy);
  assert_ok(clv_packet_new_apply(w.pool, 2, 90, CLV_MODULE_ALL, 1, 0.5f, true, &p, &err));
  handle_packet(&w, p);
  assert_ok(clv_packet_new_value(w.pool, 1, 29, "", x, &p, &err));
  handle_packet(&w, p);
  assert_int_equal(h.n_aborts, 0);
  assert_int_equal(h.n_gradients, 1);
  assert_int_equal(w.modules[0]->steps, 1);
  clv_tensor_unref(x);
  clv_tensor_unref(dy);
  engine_close(&w);
}

/* A step that has started gives the weights a new version, even if an ABORT of its context arrives
 * while the step runs. */
static void started_step_raises_the_version_despite_abort(void **state) {
  received_results h = {0};
  engine w = {.on_result = count_result, .user = &h};
  clv_err err = {0};
  clv_packet *p;
  (void)state;
  engine_open(&w, 7);
  w.holds_started_work = true;
  clv_tensor *x = engine_make_tensor(&w, 1);
  p = make_call(&w, 1, 30, 0, 0, x);
  clv_packet_set_execution_positions(p, 1, 2, 3, false);
  handle_packet(&w, p);
  engine_run_work(&w, true);
  send_prepare(&w, 1, 30, 0);
  engine_run_work(&w, true);
  send_gradient(&w, 1, 30, 0, x);
  engine_run_work(&w, true);
  uint64_t version = w.modules[0]->version;
  assert_ok(clv_packet_new_planned_step(w.pool, 1, 60, 0, 4, false, 0.125f, &p, &err));
  handle_packet(&w, p);
  assert_int_equal(w.n_started_work, 1);
  /* a gradient that arrives after its backward has run fails the context */
  send_gradient(&w, 1, 30, 3, x);
  engine_run_work(&w, true);
  assert_int_equal(h.n_aborts, 1);
  assert_int_equal(w.modules[0]->version, version + 1);
  assert_int_equal(w.modules[0]->steps, 1);
  clv_tensor_unref(x);
  engine_close(&w);
}

static float get_running_mean(const engine *w) {
  const clv_module *m = w->modules[1];
  return *(const float *)((const char *)m->block + m->params->buffer_offset);
}

static void failed_call_does_not_block_statistics_revert(void **state) {
  enum { MAX_TENSORS = 8192 };
  received_results h = {0};
  engine w = {.on_result = count_result, .user = &h};
  clv_err err = {0};
  clv_packet *p;
  static clv_tensor *held_tensors[MAX_TENSORS];
  uint32_t n = 0;
  (void)state;
  engine_open(&w, 0);
  clv_tensor *x = engine_make_tensor(&w, 1);
  float mean_before = get_running_mean(&w);
  handle_packet(&w, make_call(&w, 1, 30, 1, 0, x));
  assert_true(get_running_mean(&w) != mean_before);
  p = make_call(&w, 2, 31, 1, 0, x);
  while (n < MAX_TENSORS && clv_pool_alloc_tensor(w.pool, CLV_F32, &CLV_SHAPE(ROWS, COLUMNS),
                                                  &held_tensors[n], &err) == CLV_OK)
    n++;
  assert_true(n < MAX_TENSORS);
  handle_packet(&w, p);
  while (n) clv_tensor_unref(held_tensors[--n]);
  assert_ok(clv_packet_new(w.pool, CLV_ABORT, &p, &err));
  p->frame.context = 1;
  handle_packet(&w, p);
  assert_true(get_running_mean(&w) == mean_before);
  clv_tensor_unref(x);
  engine_close(&w);
}

static void packet_with_a_waiter_is_not_deferred(void **state) {
  received_results h = {0};
  engine w = {.on_result = count_result, .user = &h};
  clv_err err = {0};
  clv_packet *p;
  (void)state;
  engine_open(&w, 0);
  clv_tensor *x = engine_make_tensor(&w, 1);
  /* call 30 waits for value 29; call 31 is queued after call 30 */
  handle_packet(&w, make_call(&w, 1, 30, 1, 29, NULL));
  handle_packet(&w, make_call(&w, 2, 31, 1, 0, x));
  assert_ok(clv_packet_new_end_context(w.pool, 1, 70, &p, &err));
  clv_packet_set_end_commit(p, 1, 0.25f, true);
  assert_false(clv_contexts_packet_can_wait(w.contexts, 0, p));
  handle_packet(&w, p);
  assert_ok(clv_packet_new_apply(w.pool, 2, 90, 1, 1, 0.5f, false, &p, &err));
  assert_false(clv_contexts_packet_can_wait(w.contexts, 0, p));
  handle_packet(&w, p);
  clv_tensor_unref(x);
  engine_close(&w);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(step_does_not_overtake_a_ready_backward),
      cmocka_unit_test(started_step_raises_the_version_despite_abort),
      cmocka_unit_test(failed_call_does_not_block_statistics_revert),
      cmocka_unit_test(packet_with_a_waiter_is_not_deferred),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
