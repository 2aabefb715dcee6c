/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests work that an executor computes on a thread of its own. The work gives the same bits as on
 * the node's thread, its failures reach the program, and the node can be freed while it runs.
 */
#include <unistd.h>

#include "common/engine/context_int.h"
#include "tests/unit/engine/threaded_node_test.h"

enum { STEPS = 5, MAX_WORK = 16 };

/* The executor of a node: a thread that computes the work of its queue. */
typedef struct computer {
  clv_session_node *node;
  pthread_t thread;
  pthread_mutex_t lock;
  pthread_cond_t changed;
  clv_work *queued_work[MAX_WORK];
  uint32_t n, n_work_ended;
  bool must_stop, work_fails, is_paused;
} computer;

typedef struct fixture {
  threaded_node n;
  computer computer;
} fixture;

/* ---- the executor: a thread that computes for the node --------------------------------------- */

static void queue_work(void *user, clv_work *work) {
  computer *c = user;
  pthread_mutex_lock(&c->lock);
  assert_true(c->n < MAX_WORK);
  c->queued_work[c->n++] = work;
  pthread_cond_broadcast(&c->changed);
  pthread_mutex_unlock(&c->lock);
}

static void end_at_once(void *user, clv_work *work) {
  computer *c = user;
  clv_err why;
  c->n_work_ended++;
  clv_node_work_ended(c->node, work, clv_work_compute(work, &why), &why);
}

static void compute_work(computer *c, clv_work *work) {
  clv_err why;
  bool fails = c->work_fails;
  c->n_work_ended++;
  pthread_mutex_unlock(&c->lock);
  clv_code code =
      fails ? clv_fail(&why, CLV_UNAVAILABLE, "the device is gone") : clv_work_compute(work, &why);
  clv_node_work_ended(c->node, work, code, &why);
  pthread_mutex_lock(&c->lock);
}

static void *run_computer(void *user) {
  computer *c = user;
  pthread_mutex_lock(&c->lock);
  while (!c->must_stop || c->n) {
    if (c->n && !c->is_paused)
      compute_work(c, c->queued_work[--c->n]);
    else
      pthread_cond_wait(&c->changed, &c->lock);
  }
  pthread_mutex_unlock(&c->lock);
  return NULL;
}

static void set_flag(computer *c, bool *flag, bool value) {
  pthread_mutex_lock(&c->lock);
  *flag = value;
  pthread_cond_broadcast(&c->changed);
  pthread_mutex_unlock(&c->lock);
}

static void wait_for_work(computer *c) {
  pthread_mutex_lock(&c->lock);
  while (!c->n) pthread_cond_wait(&c->changed, &c->lock);
  pthread_mutex_unlock(&c->lock);
}

/* ---- training steps of a node with a compute thread ------------------------------------------ */

static void begin_fixture(fixture *w, void (*start_work)(void *, clv_work *)) {
  clv_err err = {0};
  *w = (fixture){
      .computer = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER}};
  make_threaded_node(&w->n, (clv_node_options){.user = &w->n,
                                               .on_program = record_answer,
                                               .executor = {&w->computer, start_work}});
  w->computer.node = w->n.node;
  for (uint32_t i = 0; i < MODULES; i++) {
    clv_module_options so =
        make_module_options(make_one_layer_graph(CLV_OP_LINEAR, ROWS, COLUMNS), i);
    clv_module *module;
    assert_ok(clv_module_new(&so, &module, &err));
    assert_ok(clv_node_add_module(w->n.node, module, &err));
  }
  start_node(&w->n);
  assert_int_equal(pthread_create(&w->computer.thread, NULL, run_computer, &w->computer), 0);
}

static void free_node(fixture *w) {
  clv_node_free(clv_steal(&w->n.node));
  set_flag(&w->computer, &w->computer.must_stop, true);
  pthread_join(w->computer.thread, NULL);
  assert_int_equal(clv_account_usage(clv_pool_account(w->n.pool), CLV_QUOTA_CALLS), 0);
  clv_pool_unref(w->n.pool);
}

/* Returns a hash of the modules' state after STEPS training steps. *ret_computed: number of pieces
 * of work that the executor was given. */
static uint64_t hash_training(void (*start_work)(void *, clv_work *), uint32_t *ret_computed) {
  fixture w;
  begin_fixture(&w, start_work);
  for (uint32_t i = 1; i <= STEPS; i++) run_step(&w.n, i, false);
  wait_for_steps(&w.n);
  assert_int_equal(w.n.n_answers[CLV_ENDED], STEPS);
  stop_node(&w.n);
  uint64_t bits = hash_state(&w.n);
  *ret_computed = w.computer.n_work_ended;
  assert_string_equal(w.n.last_error, "");
  free_node(&w);
  return bits;
}

/* ---- results of training, and the end of the executor's work --------------------------------- */

/* With an executor, training has the same bits as without. Each step gives the executor a forward
 * and two backward parts per module, and the change of the parameters; the end of a backward pass
 * may be one more piece of work. */
static void executor_thread_gives_the_same_bits(void **state) {
  uint32_t n_without_executor, n_on_thread, n_at_once;
  (void)state;
  uint64_t wanted_hash = hash_training(NULL, &n_without_executor);
  assert_int_equal(n_without_executor, 0);
  assert_true(hash_training(queue_work, &n_on_thread) == wanted_hash);
  assert_true(hash_training(end_at_once, &n_at_once) == wanted_hash);
  assert_in_range(n_on_thread, STEPS * (3 * MODULES + 1), STEPS * (3 * MODULES + 2));
  assert_int_equal(n_at_once, n_on_thread);
}

static void executor_error_fails_the_value(void **state) {
  fixture w;
  (void)state;
  begin_fixture(&w, queue_work);
  set_flag(&w.computer, &w.computer.work_fails, true);
  post_calls(&w.n, 1);
  wait_for(&w.n, CLV_VALUE, 1);
  stop_node(&w.n);
  assert_non_null(strstr(w.n.last_error, "the device is gone"));
  free_node(&w);
}

/* All modules wait for the same leaf, so their work starts together. All of it ends before the node
 * looks for ended work. */
static void simultaneous_completions_are_all_handled(void **state) {
  clv_err err = {0};
  clv_packet *p;
  fixture w;
  (void)state;
  begin_fixture(&w, end_at_once);
  CLV_AUTO(clv_tensor_unrefp) clv_tensor *x = make_tensor(&w.n, 1);
  for (uint32_t i = 0; i < MODULES; i++) {
    assert_ok(clv_packet_new_call(w.n.pool, 1, get_output_id(i), i, true, &p, &err));
    assert_ok(clv_packet_add_arg(p, LEAF, true, NULL, &err));
    assert_ok(clv_packet_add_delivery(p, "", &err));
    clv_node_post(w.n.node, p);
  }
  assert_ok(clv_packet_new_value(w.n.pool, 1, LEAF, "", x, &p, &err));
  clv_node_post(w.n.node, p);
  wait_for(&w.n, CLV_VALUE, MODULES);
  stop_node(&w.n);
  x = clv_tensor_unref(x);
  free_node(&w);
}

static void *release_held_work(void *user) {
  computer *c = user;
  usleep(50 * 1000);
  set_flag(c, &c->is_paused, false);
  return NULL;
}

/* Freeing the node waits for the executor's work, because that work uses the modules' memory. */
static void node_free_waits_for_executor_work(void **state) {
  pthread_t releasing_thread;
  fixture w;
  (void)state;
  begin_fixture(&w, queue_work);
  set_flag(&w.computer, &w.computer.is_paused, true);
  post_calls(&w.n, 1);
  wait_for_work(&w.computer);
  stop_node(&w.n);
  assert_int_equal(pthread_create(&releasing_thread, NULL, release_held_work, &w.computer), 0);
  clv_node_free(clv_steal(&w.n.node));
  assert_int_equal(w.computer.n_work_ended, 1);
  pthread_join(releasing_thread, NULL);
  free_node(&w);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(executor_thread_gives_the_same_bits),
      cmocka_unit_test(executor_error_fails_the_value),
      cmocka_unit_test(simultaneous_completions_are_all_handled),
      cmocka_unit_test(node_free_waits_for_executor_work),
  };
  return cmocka_run_group_tests_name("executor", tests, NULL, NULL);
}
