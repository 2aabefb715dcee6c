/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests that the end of a context retains the calls that compute kept values (values that outlive
 * the context), and frees all others. Retained calls run when their inputs arrive, and values that
 * another node needs for a kept value are sent to it.
 */
#include <stdio.h>

#include "tests/unit/engine/contexts_test.h"

enum { MODULE_A = 0, MODULE_B = 2, STATISTICS_MODULE = 1, KEPT_REF_ID = 900, LEAF_ID = 29 };

typedef struct received_results {
  uint32_t n_kept, n_ended, n_values;
  uint64_t n_calls_left; /* number of retained calls that the last ENDED reports */
  clv_code failure_code;
  char failure_text[CLV_WIRE_TEXT + 1];
  float first_number; /* first number of the kept value */
} received_results;

static void record_result(engine *w, clv_result *r) {
  received_results *h = w->user;
  const clv_frame *f = r->packet ? &r->packet->frame : NULL;
  if (r->kind == CLV_RESULT_KEPT) {
    h->n_kept++;
    h->failure_code = r->failure ? r->failure->code : CLV_OK;
    if (r->failure) snprintf(h->failure_text, sizeof h->failure_text, "%s", r->failure->text);
    if (r->tensor) h->first_number = *(const float *)r->tensor->data;
  }
  h->n_values += f && f->kind == CLV_VALUE;
  h->n_ended += f && f->kind == CLV_ENDED;
  if (f && f->kind == CLV_ENDED) h->n_calls_left = f->step;
  if (r->packet) clv_packet_free(r->packet);
}

static void handle_packet(engine *w, clv_packet *p) {
  clv_err err = {0};
  assert_ok(engine_handle_packet(w, p, &err));
}

static clv_packet *make_call(engine *w, uint64_t id, uint32_t module, uint64_t arg_id) {
  clv_err err = {0};
  clv_packet *p;
  assert_ok(clv_packet_new_call(w->pool, 1, id, module, true, &p, &err));
  assert_ok(clv_packet_add_arg(p, arg_id, true, NULL, &err));
  return p;
}

static void send_call(engine *w, uint64_t id, uint32_t module, uint64_t arg_id) {
  handle_packet(w, make_call(w, id, module, arg_id));
}

static void keep_value(engine *w, uint64_t value) {
  clv_err err = {0};
  assert_ok(clv_contexts_keep_value(w->contexts, KEPT_REF_ID, 1, value, &err));
  engine_run_work(w, false);
}

static clv_packet *make_end(engine *w) {
  clv_err err = {0};
  clv_packet *p;
  assert_ok(clv_packet_new_end_context(w->pool, 1, 70, &p, &err));
  return p;
}

static void send_leaf(engine *w, uint64_t value) {
  clv_err err = {0};
  clv_packet *p;
  CLV_AUTO(clv_tensor_unrefp) clv_tensor *x = engine_make_tensor(w, 1);
  assert_ok(clv_packet_new_value(w->pool, 1, value, "", x, &p, &err));
  handle_packet(w, p);
}

static void send_abort(engine *w) {
  clv_err err = {0};
  clv_packet *p;
  assert_ok(clv_packet_new(w->pool, CLV_ABORT, &p, &err));
  p->frame.context = 1;
  clv_frame_set_failure(&p->frame, CLV_UNAVAILABLE, "a worker was lost", "w2");
  handle_packet(w, p);
}

static uint64_t count_forwards(const engine *w, uint32_t module) {
  return w->modules[module]->counts.forwards;
}

/* Sends call 30 of module A over leaf 29, call 31 of module B over value 30, and call 32 of module
 * A over leaf 29. Value 31 is kept; leaf 29 has not arrived. */
static void begin_calls(engine *w) {
  engine_open(w, 0);
  send_call(w, 30, MODULE_A, LEAF_ID);
  send_call(w, 31, MODULE_B, 30);
  send_call(w, 32, MODULE_A, LEAF_ID);
}

static void end_context_retains_calls_of_kept_values(void **state) {
  received_results h = {0};
  engine w = {.on_result = record_result, .user = &h};
  (void)state;
  begin_calls(&w);
  keep_value(&w, 31);
  handle_packet(&w, make_end(&w));
  assert_int_equal(h.n_kept, 0);
  assert_int_equal(h.n_ended, 1);
  assert_int_equal(h.n_calls_left, 2);
  send_leaf(&w, LEAF_ID);
  assert_int_equal(h.n_kept, 1);
  assert_int_equal(h.failure_code, CLV_OK);
  assert_int_equal(count_forwards(&w, MODULE_A), 1); /* call 32 was dropped */
  assert_int_equal(count_forwards(&w, MODULE_B), 1);
  assert_int_equal(h.n_ended, 2);
  assert_int_equal(h.n_calls_left, 0);
  assert_int_equal(w.contexts->counts.contexts, 0);
  assert_int_equal(w.contexts->counts.values, 0);
  assert_int_equal(w.contexts->counts.calls_waiting, 0);
  engine_close(&w);
}

static void end_context_without_kept_values_frees_all(void **state) {
  received_results h = {0};
  engine w = {.on_result = record_result, .user = &h};
  (void)state;
  begin_calls(&w);
  handle_packet(&w, make_end(&w));
  assert_int_equal(h.n_ended, 1);
  assert_int_equal(h.n_calls_left, 0);
  assert_int_equal(w.contexts->counts.values, 0);
  send_leaf(&w, LEAF_ID);
  assert_int_equal(count_forwards(&w, MODULE_A), 0);
  engine_close(&w);
}

/* Another node needs a value after the end of the context, so the program names the value in a
 * SPARE frame. The value is then sent to that node. */
static void retained_value_is_sent_to_the_other_node(void **state) {
  received_results h = {0};
  engine w = {.on_result = record_result, .user = &h};
  clv_err err = {0};
  clv_packet *p;
  (void)state;
  begin_calls(&w);
  for (uint64_t id = 30; id <= 32; id += 2) {
    assert_ok(clv_packet_new_deliver(w.pool, 1, id, "w2", &p, &err));
    handle_packet(&w, p);
  }
  assert_ok(clv_packet_new_spare(w.pool, 1, (const uint64_t[]){30}, 1, &p, &err));
  handle_packet(&w, p);
  handle_packet(&w, make_end(&w));
  assert_int_equal(h.n_calls_left, 1);
  send_leaf(&w, LEAF_ID);
  assert_int_equal(h.n_values, 1);
  assert_int_equal(count_forwards(&w, MODULE_A), 1);
  assert_int_equal(h.n_calls_left, 0);
  engine_close(&w);
}

/* A retained call runs although its context has ended, because its value is kept. It waits only for
 * its inputs, not for a call that was to run before it and was dropped, nor for a backward that
 * will not come. */
static void retained_call_waits_only_for_its_inputs(void **state) {
  received_results h = {0};
  engine w = {.on_result = record_result, .user = &h};
  (void)state;
  engine_open(&w, 0);
  send_call(&w, 30, MODULE_A, LEAF_ID);
  clv_packet *p = make_call(&w, 31, MODULE_B, LEAF_ID);
  p->frame.call.runs_after_call = 30;
  clv_packet_set_execution_positions(p, 7, 8, 9, false);
  handle_packet(&w, p);
  keep_value(&w, 31);
  handle_packet(&w, make_end(&w));
  send_leaf(&w, LEAF_ID);
  assert_int_equal(h.n_kept, 1);
  assert_int_equal(h.failure_code, CLV_OK);
  assert_int_equal(count_forwards(&w, MODULE_A), 0);
  assert_int_equal(h.n_ended, 2);
  engine_close(&w);
}

/* A call is retained even if only its announcement has arrived, because its tensors are in flight.
 * Its other input arrives before the CALL. */
static void announced_call_is_retained_until_complete(void **state) {
  received_results h = {0};
  engine w = {.on_result = record_result, .user = &h};
  (void)state;
  engine_open(&w, 0);
  send_call(&w, 30, MODULE_A, LEAF_ID);
  clv_packet *announcement = make_call(&w, 31, MODULE_B, 30);
  announcement->is_announcement = true;
  handle_packet(&w, announcement);
  keep_value(&w, 31);
  handle_packet(&w, make_end(&w));
  send_leaf(&w, LEAF_ID);
  assert_int_equal(h.n_kept, 0);
  clv_packet *complete_call = make_call(&w, 31, MODULE_B, 30);
  complete_call->was_announced = true;
  handle_packet(&w, complete_call);
  assert_int_equal(h.n_kept, 1);
  assert_int_equal(h.failure_code, CLV_OK);
  assert_int_equal(h.n_calls_left, 0);
  assert_int_equal(w.contexts->counts.values, 0);
  engine_close(&w);
}

/* A leaf that arrives with a CALL after the end of the context is for that call only. */
static void leaf_after_the_end_is_freed_with_its_call(void **state) {
  received_results h = {0};
  engine w = {.on_result = record_result, .user = &h};
  clv_err err = {0};
  (void)state;
  engine_open(&w, 0);
  clv_packet *announcement = make_call(&w, 31, MODULE_B, LEAF_ID), *complete_call;
  announcement->is_announcement = true;
  handle_packet(&w, announcement);
  keep_value(&w, 31);
  handle_packet(&w, make_end(&w));
  assert_int_equal(h.n_calls_left, 1);
  CLV_AUTO(clv_tensor_unrefp) clv_tensor *x = engine_make_tensor(&w, 1);
  assert_ok(clv_packet_new_call(w.pool, 1, 31, MODULE_B, true, &complete_call, &err));
  assert_ok(clv_packet_add_arg(complete_call, LEAF_ID, true, x, &err));
  complete_call->was_announced = true;
  handle_packet(&w, complete_call);
  assert_int_equal(h.n_kept, 1);
  assert_int_equal(h.n_ended, 2);
  assert_int_equal(w.contexts->counts.values, 0);
  x = clv_tensor_unref(x);
  engine_close(&w);
}

/* A step that END_CONTEXT requests is queued after the calls that the ended context retains. */
static void step_does_not_overtake_a_retained_call(void **state) {
  received_results h = {0}, results_without_retained = {0};
  engine w = {.on_result = record_result, .user = &results_without_retained};
  (void)state;
  begin_calls(&w);
  keep_value(&w, 31);
  send_leaf(&w, LEAF_ID);
  engine_close(&w);
  w = (engine){.on_result = record_result, .user = &h};
  begin_calls(&w);
  keep_value(&w, 31);
  clv_packet *p = make_end(&w);
  clv_packet_set_end_commit(p, 1, 0.25f, true);
  handle_packet(&w, p);
  send_leaf(&w, LEAF_ID);
  assert_int_equal(h.n_kept, 1);
  assert_true(h.first_number == results_without_retained.first_number);
  engine_close(&w);
}

static float get_running_mean(const engine *w) {
  const clv_module *m = w->modules[STATISTICS_MODULE];
  return *(const float *)((const char *)m->block + m->params->buffer_offset);
}

/* An END_CONTEXT that restores running statistics also undoes the changes that retained calls make
 * to them later. */
static void statistics_revert_after_retained_calls(void **state) {
  received_results h = {0};
  engine w = {.on_result = record_result, .user = &h};
  (void)state;
  engine_open(&w, 0);
  float mean_before = get_running_mean(&w);
  send_call(&w, 30, STATISTICS_MODULE, LEAF_ID);
  keep_value(&w, 30);
  clv_packet *p = make_end(&w);
  clv_packet_set_end_commit(p, 1, 0, false);
  handle_packet(&w, p);
  send_leaf(&w, LEAF_ID);
  assert_int_equal(h.n_kept, 1);
  assert_true(get_running_mean(&w) == mean_before);
  engine_close(&w);
}

/* If calls run one at a time, a retained call runs after the calls of other contexts that were
 * queued before it. */
static void retained_call_keeps_its_queue_position(void **state) {
  received_results h = {0};
  engine w = {.on_result = record_result, .user = &h};
  clv_err err = {0};
  clv_packet *p;
  (void)state;
  engine_open(&w, 0);
  clv_tensor *x = engine_make_tensor(&w, 1);
  for (uint64_t context = 2, id = 29; context <= 3; context++, id = 31) {
    assert_ok(clv_packet_new_call(w.pool, context, id, STATISTICS_MODULE, true, &p, &err));
    assert_ok(clv_packet_add_arg(p, context == 2 ? 28 : 0, false, context == 2 ? NULL : x, &err));
    handle_packet(&w, p);
  }
  send_call(&w, 30, STATISTICS_MODULE, LEAF_ID);
  keep_value(&w, 30);
  handle_packet(&w, make_end(&w));
  send_leaf(&w, LEAF_ID);
  assert_int_equal(count_forwards(&w, STATISTICS_MODULE), 0);
  assert_ok(clv_packet_new_end_context(w.pool, 2, 71, &p, &err));
  handle_packet(&w, p);
  assert_int_equal(count_forwards(&w, STATISTICS_MODULE), 2);
  assert_int_equal(h.n_kept, 1);
  assert_int_equal(h.failure_code, CLV_OK);
  clv_tensor_unref(x);
  engine_close(&w);
}

static void context_failure_fails_the_kept_reference(void **state) {
  received_results h = {0};
  engine w = {.on_result = record_result, .user = &h};
  (void)state;
  begin_calls(&w);
  keep_value(&w, 31);
  send_abort(&w);
  assert_int_equal(h.failure_code, CLV_UNAVAILABLE);
  assert_string_equal(h.failure_text, "a worker was lost");
  engine_close(&w);
}

/* A context may fail after its END_CONTEXT. The node then frees the retained calls and sends the
 * final answer to END_CONTEXT. */
static void failure_after_the_end_frees_retained_calls(void **state) {
  received_results h = {0};
  engine w = {.on_result = record_result, .user = &h};
  (void)state;
  begin_calls(&w);
  keep_value(&w, 31);
  handle_packet(&w, make_end(&w));
  handle_packet(&w, make_end(&w)); /* sends END_CONTEXT again */
  assert_int_equal(h.n_ended, 2);
  assert_int_equal(h.n_calls_left, 2);
  send_abort(&w);
  assert_int_equal(h.failure_code, CLV_UNAVAILABLE);
  assert_int_equal(h.n_ended, 3);
  assert_int_equal(h.n_calls_left, 0);
  assert_int_equal(w.contexts->counts.values, 0);
  engine_close(&w);
}

/* Frames that arrive late for a context do not change its retained calls. */
static void late_frames_do_not_affect_retained_calls(void **state) {
  received_results h = {0};
  engine w = {.on_result = record_result, .user = &h};
  (void)state;
  begin_calls(&w);
  keep_value(&w, 31);
  handle_packet(&w, make_end(&w));
  send_call(&w, 40, MODULE_A, LEAF_ID);
  send_leaf(&w, 39);
  assert_int_equal(w.contexts->counts.late_frames, 2);
  keep_value(&w, 41);
  assert_int_equal(h.failure_code, CLV_CANCELLED);
  send_leaf(&w, LEAF_ID);
  assert_int_equal(h.n_kept, 2);
  assert_int_equal(h.failure_code, CLV_OK);
  assert_int_equal(h.n_calls_left, 0);
  engine_close(&w);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(end_context_retains_calls_of_kept_values),
      cmocka_unit_test(end_context_without_kept_values_frees_all),
      cmocka_unit_test(retained_value_is_sent_to_the_other_node),
      cmocka_unit_test(retained_call_waits_only_for_its_inputs),
      cmocka_unit_test(announced_call_is_retained_until_complete),
      cmocka_unit_test(leaf_after_the_end_is_freed_with_its_call),
      cmocka_unit_test(step_does_not_overtake_a_retained_call),
      cmocka_unit_test(statistics_revert_after_retained_calls),
      cmocka_unit_test(retained_call_keeps_its_queue_position),
      cmocka_unit_test(context_failure_fails_the_kept_reference),
      cmocka_unit_test(failure_after_the_end_frees_retained_calls),
      cmocka_unit_test(late_frames_do_not_affect_retained_calls),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
