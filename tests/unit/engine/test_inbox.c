/* SPDX-License-Identifier: Apache-2.0
 *
 * A node without threads and sleep: polled, or with a world of its own that runs while it waits.
 */
#include "tests/unit/engine/engine_test.h"

typedef struct world {
  clv_session_node *node;
  uint64_t now;
  unsigned waits, answers;
  bool kicks, over;
  clv_packet *arrives; /* at the end of the first wait */
} world;

static uint64_t now_of(void *user) { return ((world *)user)->now; }

static bool pass_time(void *user, uint64_t until_ns) {
  world *w = user;
  w->waits++;
  if (w->arrives)
    clv_node_post(w->node, clv_steal(&w->arrives));
  else if (w->kicks)
    clv_node_kick(w->node);
  else if (!w->over)
    w->now = until_ns;
  return !w->over;
}

static void on_driver(void *user, clv_packet *p) {
  ((world *)user)->answers++;
  clv_packet_free(p);
}

static clv_packet *an_end(clv_pool *pool) {
  clv_packet *p;
  clv_err err;
  assert_ok(clv_packet_end_context(pool, 7, 1, &p, &err));
  return p;
}

static void test_a_node_is_polled(void **state) {
  world w = {.now = 1000};
  clv_err err;
  clv_pool *pool;
  (void)state;
  assert_ok(clv_pool_new((size_t)1 << 30, 1024, &pool, &err));
  clv_node_options o = {.pool = pool, .clock = {now_of, &w}, .user = &w, .on_driver = on_driver};
  assert_ok(clv_node_new(&o, &w.node, &err));
  assert_false(clv_node_poll(w.node));
  assert_true(clv_node_due(w.node) == UINT64_MAX);
  clv_node_post(w.node, an_end(pool));
  assert_true(clv_node_due(w.node) == 0);
  assert_true(clv_node_poll(w.node));
  assert_int_equal(w.answers, 1);
  clv_node_post(w.node, an_end(pool));
  clv_node_stop(w.node);
  assert_false(clv_node_poll(w.node));
  assert_int_equal(w.answers, 1);
  clv_node_free(w.node);
  clv_pool_unref(pool);
}

static void test_a_world_runs_while_it_waits(void **state) {
  world w = {.now = 1000};
  clv_err err;
  clv_pool *pool;
  (void)state;
  assert_ok(clv_pool_new((size_t)1 << 30, 1024, &pool, &err));
  clv_node_options o = {.pool = pool,
                        .clock = {now_of, &w},
                        .user = &w,
                        .on_driver = on_driver,
                        .wait = pass_time,
                        .wait_user = &w};
  assert_ok(clv_node_new(&o, &w.node, &err));
  w.arrives = an_end(pool);
  assert_false(clv_node_help(w.node, 5000)); /* its time has come */
  assert_int_equal(w.answers, 1);
  assert_int_equal(w.waits, 2);
  assert_true(w.now == 5000);
  w.kicks = true;
  assert_true(clv_node_help(w.node, 9000));
  assert_true(clv_node_help(w.node, 9000)); /* at once: nobody has unkicked it */
  assert_int_equal(w.waits, 3);
  clv_node_unkick(w.node);
  w.kicks = false;
  w.over = true;
  assert_false(clv_node_help(w.node, 9000));
  assert_int_equal(w.waits, 4);
  clv_node_free(w.node);
  clv_pool_unref(pool);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_a_node_is_polled),
      cmocka_unit_test(test_a_world_runs_while_it_waits),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
