/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests which packets wake the thread of a node. A packet that lets work run wakes the thread at
 * once; other packets are deferred until the next packet or a delay. Most nodes here have no thread
 * and run on the test's clock; one has a thread.
 */
#include <pthread.h>
#include <unistd.h>

#include "common/engine/inbox_int.h"
#include "tests/unit/engine/engine_test.h"

enum { ROWS = 4, COLUMNS = 3, LEAF = 10, CALLED = 11, KINDS = 64 };

typedef struct fixture {
  clv_pool *pool;
  clv_session_node *node;
  uint64_t now_ns, context;
  uint32_t called_module;    /* index of the module that post_call calls */
  uint32_t n_answers[KINDS]; /* number of answers of each kind */
  unsigned n_waits;
  bool interrupts_wait, is_past_end, polls_without_thread;
  clv_packet *arriving_packet; /* packet that arrives during the first wait; NULL: none */
} fixture;

static uint64_t read_clock(void *user) { return ((fixture *)user)->now_ns; }

static void count_answer(void *user, clv_packet *p) {
  ((fixture *)user)->n_answers[p->frame.kind]++;
  clv_packet_free(p);
}

static void add_module(fixture *f, uint32_t index, bool is_final) {
  clv_err err = {0};
  clv_module_options so =
      make_module_options(make_one_layer_graph(CLV_OP_LINEAR, ROWS, COLUMNS), index);
  clv_module *module;
  so.has_no_revert = is_final;
  assert_ok(clv_module_new(&so, &module, &err));
  assert_ok(clv_node_add_module(f->node, module, &err));
}

/* Makes a node with two linear layers: module 0, whose steps cannot be rolled back (has_no_revert),
 * and module 1, whose steps can. */
static void make_node(fixture *f, clv_node_options o) {
  clv_err err = {0};
  assert_ok(clv_pool_new((size_t)64 << 20, 4096, &f->pool, &err));
  o.pool = f->pool;
  o.user = f;
  o.on_program = count_answer;
  assert_ok(clv_node_new(&o, &f->node, &err));
  add_module(f, 0, true);
  add_module(f, 1, false);
}

/* Makes a node that has no thread and has been idle for long. */
static int set_up(void **state) {
  fixture *f = calloc(1, sizeof *f);
  assert_non_null(f);
  f->now_ns = 1000;
  f->context = 7;
  make_node(f, (clv_node_options){.clock = {read_clock, f}});
  assert_false(clv_node_poll(f->node));
  *state = f;
  return 0;
}

static int tear_down(void **state) {
  fixture *f = *state;
  clv_node_free(f->node);
  clv_pool_unref(f->pool);
  free(f);
  return 0;
}

/* ---- packets that the tests send to the node ------------------------------------------------- */

static clv_tensor *make_tensor_of_ones(fixture *f, int64_t rows) {
  clv_err err = {0};
  clv_tensor *t;
  assert_ok(clv_pool_alloc_tensor(f->pool, CLV_F32, &CLV_SHAPE(rows, COLUMNS), &t, &err));
  for (size_t i = 0; i < t->n; i++) ((float *)t->data)[i] = 1;
  return t;
}

static void post_call(fixture *f, bool has_tensor) {
  clv_err err = {0};
  clv_packet *p;
  CLV_AUTO(clv_tensor_unrefp) clv_tensor *t = make_tensor_of_ones(f, ROWS);
  assert_ok(clv_packet_new_call(f->pool, f->context, CALLED, f->called_module, true, &p, &err));
  assert_ok(clv_packet_add_arg(p, LEAF, true, has_tensor ? t : NULL, &err));
  assert_ok(clv_packet_add_delivery(p, "", &err));
  clv_node_post(f->node, p);
}

static void post_value(fixture *f, int64_t rows) {
  clv_err err = {0};
  clv_packet *p;
  CLV_AUTO(clv_tensor_unrefp) clv_tensor *t = make_tensor_of_ones(f, rows);
  assert_ok(clv_packet_new_value(f->pool, f->context, LEAF, "", t, &p, &err));
  clv_node_post(f->node, p);
}

static void post_deliver(fixture *f, uint64_t value) {
  clv_err err = {0};
  clv_packet *p;
  assert_ok(clv_packet_new_deliver(f->pool, f->context, value, "", &p, &err));
  clv_node_post(f->node, p);
}

static void post_prepare(fixture *f) {
  clv_err err = {0};
  clv_packet *p;
  assert_ok(clv_packet_new_prepare(f->pool, f->context, 1, 1, false, false, false, &p, &err));
  assert_ok(clv_packet_add_needed_call(p, CALLED, 1, 0, &err));
  assert_ok(clv_packet_add_target(p, 0, LEAF, "", 0, &err));
  clv_node_post(f->node, p);
}

static void post_gradient(fixture *f) {
  clv_err err = {0};
  clv_packet *p;
  CLV_AUTO(clv_tensor_unrefp) clv_tensor *t = make_tensor_of_ones(f, ROWS);
  assert_ok(clv_packet_new_gradient(f->pool, f->context, 1, CALLED, 0, "", t, &p, &err));
  clv_node_post(f->node, p);
}

static void post_drop(fixture *f, uint64_t value) {
  clv_err err = {0};
  clv_packet *p;
  assert_ok(clv_packet_new_drop(f->pool, f->context, 0, &value, 1, &p, &err));
  clv_node_post(f->node, p);
}

static void post_end(fixture *f, bool has_step) {
  clv_err err = {0};
  clv_packet *p;
  assert_ok(clv_packet_new_end_context(f->pool, f->context, 1, &p, &err));
  if (has_step) clv_packet_set_end_commit(p, 1, 0.1f, true);
  clv_node_post(f->node, p);
}

/* ---- nodes without a thread, on the test's clock --------------------------------------------- */

static void assert_node_waits(fixture *f) {
  assert_true(clv_node_due_ns(f->node) == f->now_ns + CLV_COALESCE_NS);
}

static void assert_node_wakes(fixture *f) {
  assert_true(clv_node_due_ns(f->node) == 0);
  assert_true(clv_node_poll(f->node));
  assert_true(clv_node_due_ns(f->node) == UINT64_MAX);
}

static uint64_t count_values(const fixture *f) {
  clv_context_counts c;
  clv_node_context_count(f->node, &c);
  return c.values;
}

static void polled_node_handles_packets_until_stopped(void **state) {
  fixture *f = *state;
  assert_false(clv_node_poll(f->node));
  assert_true(clv_node_due_ns(f->node) == UINT64_MAX);
  post_end(f, false);
  assert_node_wakes(f);
  assert_int_equal(f->n_answers[CLV_ENDED], 1);
  post_end(f, false);
  clv_node_stop(f->node);
  assert_false(clv_node_poll(f->node));
  assert_int_equal(f->n_answers[CLV_ENDED], 1);
}

/* A training step of a module in the middle of a pipeline needs two wake-ups of the node, however
 * far apart its frames arrive. */
static void pipeline_step_needs_two_wakeups(void **state) {
  fixture *f = *state;
  for (uint32_t i = 1; i <= 3; i++, f->context++) {
    post_call(f, false);
    assert_node_waits(f);
    post_value(f, ROWS);
    assert_node_wakes(f);
    assert_int_equal(f->n_answers[CLV_VALUE], i);
    assert_int_equal(f->n_answers[CLV_ENDED], i - 1);
    post_prepare(f);
    assert_node_waits(f);
    post_gradient(f);
    assert_node_wakes(f);
    assert_int_equal(f->n_answers[CLV_FINISHED], i);
    post_end(f, true);
    assert_node_waits(f);
  }
  f->now_ns += CLV_COALESCE_NS;
  assert_true(clv_node_due_ns(f->node) <= f->now_ns);
  assert_true(clv_node_poll(f->node));
  assert_int_equal(f->n_answers[CLV_ENDED], 3);
}

static void value_before_its_call_wakes_the_node(void **state) {
  fixture *f = *state;
  post_value(f, ROWS);
  assert_node_waits(f);
  post_call(f, false); /* the call can run, because its argument arrived before the CALL */
  assert_node_wakes(f);
  post_gradient(f);
  assert_node_waits(f);
  post_prepare(f);
  assert_node_wakes(f);
  assert_int_equal(f->n_answers[CLV_FINISHED], 1);
}

static void handled_packets_count_for_later_wakeups(void **state) {
  fixture *f = *state;
  post_deliver(f, LEAF);
  post_drop(f, 99);
  post_gradient(f);
  assert_node_waits(f);
  f->now_ns += CLV_COALESCE_NS;
  assert_true(clv_node_poll(f->node));
  post_value(f, ROWS); /* a DELIVER waits for this value */
  assert_node_wakes(f);
  assert_int_equal(f->n_answers[CLV_VALUE], 1);
  post_deliver(f, LEAF);
  assert_node_wakes(f);
  post_call(f, false); /* the CALL's argument, LEAF, is there already */
  assert_node_wakes(f);
  assert_int_equal(f->n_answers[CLV_VALUE], 3);
  post_prepare(f); /* the gradient for which this backward waits has arrived */
  assert_node_wakes(f);
  assert_int_equal(f->n_answers[CLV_FINISHED], 1);
}

/* A root is a call whose output is the loss. If the PREPARE of its backward arrives before the
 * input of its forward, forward and backward together need one wake-up. */
static void root_forward_and_backward_need_one_wakeup(void **state) {
  fixture *f = *state;
  clv_err err = {0};
  clv_packet *p;
  post_call(f, false);
  assert_ok(clv_packet_new_prepare(f->pool, f->context, 1, 1, false, false, false, &p, &err));
  assert_ok(clv_packet_add_needed_call(p, CALLED, 0, 1, &err));
  clv_node_post(f->node, p);
  assert_node_waits(f);
  post_value(f, ROWS);
  assert_node_wakes(f);
  assert_int_equal(f->n_answers[CLV_VALUE], 1);
  /* the backward ran and failed, because the loss is no scalar */
  assert_int_equal(f->n_answers[CLV_ABORT], 1);
}

static void prepare_for_a_finished_root_wakes_the_node(void **state) {
  fixture *f = *state;
  clv_err err = {0};
  clv_packet *p;
  post_call(f, true);
  assert_node_wakes(f);
  assert_ok(clv_packet_new_prepare(f->pool, f->context, 1, 1, false, false, false, &p, &err));
  assert_ok(clv_packet_add_needed_call(p, CALLED, 0, 1, &err));
  clv_node_post(f->node, p);
  assert_node_wakes(f);
}

static void many_bytes_or_packets_wake_the_node(void **state) {
  fixture *f = *state;
  post_value(f, 100000);
  assert_node_wakes(f);
  for (int i = 1; i < CLV_COALESCE_PACKETS; i++) {
    post_drop(f, LEAF);
    assert_node_waits(f);
  }
  post_drop(f, LEAF);
  assert_node_wakes(f);
}

/* A value and the DROP that frees the value are handled after the delay CLV_COALESCE_NS, without a
 * further packet. */
static void deferred_packets_are_handled_after_the_delay(void **state) {
  fixture *f = *state;
  post_value(f, ROWS);
  assert_node_waits(f);
  f->now_ns += CLV_COALESCE_NS;
  assert_true(clv_node_poll(f->node));
  assert_int_equal(count_values(f), 1);
  post_drop(f, LEAF);
  assert_node_waits(f);
  f->now_ns += CLV_COALESCE_NS;
  assert_true(clv_node_due_ns(f->node) <= f->now_ns);
  assert_true(clv_node_poll(f->node));
  assert_int_equal(count_values(f), 0);
}

static void post_apply(fixture *f) {
  clv_err err = {0};
  clv_packet *p;
  assert_ok(
      clv_packet_new_apply(f->pool, f->context, 5, f->called_module, 1, 0.1f, true, &p, &err));
  clv_node_post(f->node, p);
}

/* If a step cannot be rolled back, the program sends END_CONTEXT right after its APPLY. The node
 * defers such an APPLY, so that APPLY and END_CONTEXT need one wake-up. */
static void final_step_is_deferred_until_its_end_context(void **state) {
  fixture *f = *state;
  for (uint32_t i = 0; i < 2; i++, f->context++) {
    f->called_module = i;
    post_call(f, true);
    assert_node_wakes(f);
    post_prepare(f);
    post_gradient(f);
    assert_node_wakes(f);
    post_apply(f);
    if (i == 0)
      assert_node_waits(f);
    else
      assert_node_wakes(f);
    post_end(f, false);
    assert_node_wakes(f);
    assert_int_equal(f->n_answers[CLV_APPLIED], i + 1);
    assert_int_equal(f->n_answers[CLV_ENDED], i + 1);
  }
}

static void end_context_with_a_waiter_wakes_the_node(void **state) {
  fixture *f = *state;
  clv_err err = {0};
  clv_packet *p;
  post_call(f, true);
  assert_node_wakes(f);
  post_end(f, false);
  assert_node_wakes(f);
  assert_ok(clv_packet_new_call(f->pool, f->context + 1, CALLED, 0, true, &p, &err));
  p->frame.context = f->context + 1;
  p->frame.flags |= CLV_FLAG_TRACE;
  assert_ok(clv_packet_add_arg(p, LEAF, true, NULL, &err));
  clv_node_post(f->node, p);
  f->now_ns += CLV_COALESCE_NS;
  assert_true(clv_node_poll(f->node));
  assert_ok(clv_packet_new_end_context(f->pool, f->context + 1, 1, &p, &err));
  clv_packet_set_end_commit(p, 1, 0.1f, true);
  clv_node_post(f->node, p);
  assert_node_wakes(f);
  assert_int_equal(f->n_answers[CLV_ENDED], 2);
}

/* ---- random frames, deferred or not ---------------------------------------------------------- */

static uint64_t draw_below(uint64_t *seed, uint64_t n) {
  *seed = *seed * 6364136223846793005u + 1442695040888963407u;
  return (*seed >> 33) % n;
}

/* Returns a random packet about leaf 10 and calls 11 to 13, each of which takes the value before
 * it. */
static clv_packet *draw_packet(fixture *f, uint64_t context, uint64_t *seed) {
  clv_err err = {0};
  clv_packet *p;
  CLV_AUTO(clv_tensor_unrefp) clv_tensor *t = make_tensor_of_ones(f, ROWS);
  uint64_t call = CALLED + draw_below(seed, 3);
  switch (draw_below(seed, 7)) {
    case 0:
      assert_ok(clv_packet_new_value(f->pool, context, LEAF, "", t, &p, &err));
      return p;
    case 1:
      assert_ok(clv_packet_new_gradient(f->pool, context, 1, call, 0, "", t, &p, &err));
      return p;
    case 2:
      assert_ok(clv_packet_new_deliver(f->pool, context, LEAF + draw_below(seed, 4), "", &p, &err));
      return p;
    case 3:
      assert_ok(clv_packet_new_prepare(f->pool, context, 1, 0, draw_below(seed, 2),
                                       draw_below(seed, 2), false, &p, &err));
      assert_ok(clv_packet_add_needed_call(p, call, (uint32_t)draw_below(seed, 2), 0, &err));
      assert_ok(clv_packet_add_target(p, 0, call - 1, "", 0, &err));
      return p;
    case 4:
      assert_ok(clv_packet_new_drop(f->pool, context, 0, &call, 1, &p, &err));
      return p;
    default:
      assert_ok(clv_packet_new_call(f->pool, context, call, 0, true, &p, &err));
      assert_ok(clv_packet_add_arg(p, call - 1, true, draw_below(seed, 4) ? NULL : t, &err));
      if (draw_below(seed, 2)) assert_ok(clv_packet_add_delivery(p, "", &err));
      return p;
  }
}

static uint64_t count_runs(const fixture *f) {
  clv_module_counts c;
  clv_module_count(clv_node_module(f->node, 0), &c);
  return c.forwards + c.backwards + f->n_answers[CLV_VALUE] + f->n_answers[CLV_FINISHED] +
         f->n_answers[CLV_GRADIENT];
}

/* When the node handles deferred packets, alone or in pairs, no work becomes ready. Otherwise the
 * delay would hold up that work. */
static void deferred_packets_start_no_work(void **state) {
  fixture *f = *state;
  uint64_t seed = 11;
  uint32_t n_deferred = 0, n_with_work = 0;
  for (uint64_t i = 0; i < 20000; i++) {
    uint64_t n_runs_before = count_runs(f);
    do {
      clv_node_post(f->node, draw_packet(f, 100 + i / 20, &seed));
    } while (clv_node_due_ns(f->node) != 0 && draw_below(&seed, 3));
    bool is_deferred = clv_node_due_ns(f->node) != 0;
    assert_true(clv_node_poll(f->node));
    assert_true(!is_deferred || count_runs(f) == n_runs_before);
    n_deferred += is_deferred;
    n_with_work += count_runs(f) != n_runs_before;
    if (i % 20 != 19) continue;
    clv_packet *p;
    clv_err err = {0};
    assert_ok(clv_packet_new_end_context(f->pool, 100 + i / 20, 1, &p, &err));
    clv_node_post(f->node, p);
    assert_node_wakes(f);
  }
  assert_true(n_deferred > 1000 && n_with_work > 1000);
}

/* ---- a node whose waits and clock are simulated by the test ---------------------------------- */

static bool pass_time(void *user, uint64_t until_ns) {
  fixture *f = user;
  f->n_waits++;
  if (f->arriving_packet)
    clv_node_post(f->node, clv_steal(&f->arriving_packet));
  else if (f->interrupts_wait)
    clv_node_interrupt(f->node);
  else if (!f->is_past_end)
    f->now_ns = until_ns;
  return !f->is_past_end;
}

static void wait_callback_runs_while_the_node_waits(void **state) {
  fixture f = {.now_ns = 1000};
  clv_err err = {0};
  (void)state;
  make_node(&f, (clv_node_options){.clock = {read_clock, &f}, .wait = pass_time, .wait_user = &f});
  assert_ok(clv_packet_new_end_context(f.pool, 7, 1, &f.arriving_packet, &err));
  /* the node has handled the deferred packet, because the delay has passed */
  assert_false(clv_node_run_until(f.node, 5000));
  assert_int_equal(f.n_answers[CLV_ENDED], 1);
  assert_int_equal(f.n_waits, 2);
  assert_true(f.now_ns == 5000);
  f.interrupts_wait = true;
  assert_true(clv_node_run_until(f.node, 9000));
  /* returns at once, because the wake-up flag is still set */
  assert_true(clv_node_run_until(f.node, 9000));
  assert_int_equal(f.n_waits, 3);
  clv_node_clear_interrupt(f.node);
  f.interrupts_wait = false;
  f.is_past_end = true;
  assert_false(clv_node_run_until(f.node, 9000));
  assert_int_equal(f.n_waits, 4);
  clv_node_free(f.node);
  clv_pool_unref(f.pool);
}

/* ---- a node that runs in its own thread ------------------------------------------------------ */

static void *run_node(void *user) {
  clv_node_run(user);
  return NULL;
}

static bool reaches_value_count(const fixture *f, uint64_t values) {
  for (int i = 0; i < 10000 && count_values(f) != values; i++) usleep(1000);
  return count_values(f) == values;
}

/* The node's thread handles deferred packets without another packet, both during its short wait and
 * after it has slept for long. */
static void node_thread_handles_deferred_packets_unprompted(void **state) {
  fixture f = {0};
  pthread_t thread;
  (void)state;
  make_node(&f, (clv_node_options){0});
  assert_int_equal(pthread_create(&thread, NULL, run_node, f.node), 0);
  for (int i = 0; i < 8; i++) {
    post_value(&f, ROWS);
    if (i % 2) usleep(CLV_COALESCE_NS / 1000 / 4);
    assert_true(reaches_value_count(&f, 1));
    post_drop(&f, LEAF);
    assert_true(reaches_value_count(&f, 0));
    if (i > 4) usleep(3 * CLV_COALESCE_NS / 1000);
  }
  clv_node_stop(f.node);
  pthread_join(thread, NULL);
  clv_node_times t;
  clv_node_time(f.node, &t);
  assert_true(t.wakes > 0);
  clv_node_free(f.node);
  clv_pool_unref(f.pool);
}

int main(void) {
#define POLLED(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down)
  const struct CMUnitTest tests[] = {
      POLLED(polled_node_handles_packets_until_stopped),
      POLLED(pipeline_step_needs_two_wakeups),
      POLLED(value_before_its_call_wakes_the_node),
      POLLED(handled_packets_count_for_later_wakeups),
      POLLED(root_forward_and_backward_need_one_wakeup),
      POLLED(prepare_for_a_finished_root_wakes_the_node),
      POLLED(many_bytes_or_packets_wake_the_node),
      POLLED(deferred_packets_are_handled_after_the_delay),
      POLLED(final_step_is_deferred_until_its_end_context),
      POLLED(end_context_with_a_waiter_wakes_the_node),
      POLLED(deferred_packets_start_no_work),
      cmocka_unit_test(wait_callback_runs_while_the_node_waits),
      cmocka_unit_test(node_thread_handles_deferred_packets_unprompted),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
