/* SPDX-License-Identifier: Apache-2.0
 *
 * Work that an executor computes on a thread of its own: the same bits as on the node's, failures
 * that reach the program, and a node that goes while work is out.
 */
#include <pthread.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#include "common/engine/context_int.h"
#include "tests/unit/engine/engine_test.h"

enum { ROWS = 4, COLUMNS = 3, MODULES = 2, LEAF = 10, STEPS = 5, MOST = 16, KINDS = 64 };

/* A thread that computes the work it is given. */
typedef struct computer {
  clv_session_node *node;
  pthread_t thread;
  pthread_mutex_t lock;
  pthread_cond_t changed;
  clv_work *queued_work[MOST];
  uint32_t n, n_work_ended;
  bool must_stop, work_fails, is_paused;
} computer;

typedef struct world {
  clv_pool *pool;
  clv_session_node *node;
  pthread_t thread;
  pthread_mutex_t lock;
  pthread_cond_t changed;
  uint32_t n_answers[KINDS]; /* number of answers of each kind */
  char last_error[CLV_WIRE_TEXT + 1];
  computer computer;
} world;

/* ---- the executor ---------------------------------------------------------------------------- */

static void queue_work(void *user, clv_work *work) {
  computer *c = user;
  pthread_mutex_lock(&c->lock);
  assert_true(c->n < MOST);
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

static void set_flag(computer *c, bool *what, bool value) {
  pthread_mutex_lock(&c->lock);
  *what = value;
  pthread_cond_broadcast(&c->changed);
  pthread_mutex_unlock(&c->lock);
}

static void wait_for_work(computer *c) {
  pthread_mutex_lock(&c->lock);
  while (!c->n) pthread_cond_wait(&c->changed, &c->lock);
  pthread_mutex_unlock(&c->lock);
}

/* ---- a node with a thread -------------------------------------------------------------------- */

static void record_answer(void *user, clv_packet *p) {
  world *w = user;
  pthread_mutex_lock(&w->lock);
  w->n_answers[p->frame.kind]++;
  if (clv_frame_is_failure(&p->frame))
    snprintf(w->last_error, sizeof w->last_error, "%s", p->frame.failure.text);
  pthread_cond_broadcast(&w->changed);
  pthread_mutex_unlock(&w->lock);
  clv_packet_free(p);
}

static void wait_for(world *w, clv_frame_kind kind, uint32_t n) {
  struct timespec late;
  int r = 0;
  clock_gettime(CLOCK_REALTIME, &late);
  late.tv_sec += 60;
  pthread_mutex_lock(&w->lock);
  while (r == 0 && w->n_answers[kind] < n) r = pthread_cond_timedwait(&w->changed, &w->lock, &late);
  pthread_mutex_unlock(&w->lock);
  assert_int_equal(r, 0);
}

static void *run_node(void *user) {
  clv_node_run(user);
  return NULL;
}

static void begin_world(world *w, void (*starts)(void *, clv_work *)) {
  clv_err err = {0};
  *w = (world){.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};
  w->computer.lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
  w->computer.changed = (pthread_cond_t)PTHREAD_COND_INITIALIZER;
  assert_ok(clv_pool_new((size_t)64 << 20, 4096, &w->pool, &err));
  clv_node_options o = {
      .pool = w->pool, .user = w, .on_program = record_answer, .executor = {&w->computer, starts}};
  assert_ok(clv_node_new(&o, &w->node, &err));
  w->computer.node = w->node;
  for (uint32_t i = 0; i < MODULES; i++) {
    clv_module_options so =
        make_module_options(make_one_layer_graph(CLV_OP_LINEAR, ROWS, COLUMNS), i);
    clv_module *module;
    assert_ok(clv_module_new(&so, &module, &err));
    assert_ok(clv_node_add_module(w->node, module, &err));
  }
  assert_int_equal(pthread_create(&w->thread, NULL, run_node, w->node), 0);
  assert_int_equal(pthread_create(&w->computer.thread, NULL, run_computer, &w->computer), 0);
}

static void stop_node(world *w) {
  clv_node_stop(w->node);
  pthread_join(w->thread, NULL);
}

static void free_node(world *w) {
  clv_node_free(clv_steal(&w->node));
  set_flag(&w->computer, &w->computer.must_stop, true);
  pthread_join(w->computer.thread, NULL);
  assert_int_equal(clv_account_usage(clv_pool_account(w->pool), CLV_QUOTA_CALLS), 0);
  clv_pool_unref(w->pool);
}

/* ---- a step ---------------------------------------------------------------------------------- */

static uint64_t get_output_id(uint32_t module) { return LEAF + 1 + module; }

static clv_tensor *make_tensor(world *w, uint32_t first) {
  clv_err err = {0};
  clv_tensor *t;
  assert_ok(clv_pool_alloc_tensor(w->pool, CLV_F32, &CLV_SHAPE(ROWS, COLUMNS), &t, &err));
  for (size_t i = 0; i < t->n; i++) ((float *)t->data)[i] = (float)(first + i) / 8;
  return t;
}

/* Sends a call of each module; each takes the output of the one before. */
static void post_calls(world *w, uint32_t context) {
  clv_err err = {0};
  clv_packet *p;
  CLV_AUTO(clv_tensor_unrefp) clv_tensor *x = make_tensor(w, context);
  for (uint32_t i = 0; i < MODULES; i++) {
    assert_ok(clv_packet_new_call(w->pool, context, get_output_id(i), i, true, &p, &err));
    assert_ok(clv_packet_add_arg(p, i ? get_output_id(i - 1) : LEAF, true, i ? NULL : x, &err));
    if (i == MODULES - 1) assert_ok(clv_packet_add_delivery(p, "", &err));
    clv_node_post(w->node, p);
  }
}

static void post_backward(world *w, uint32_t context) {
  clv_err err = {0};
  clv_packet *p;
  CLV_AUTO(clv_tensor_unrefp) clv_tensor *dy = make_tensor(w, 1);
  assert_ok(clv_packet_new_prepare(w->pool, context, 1, MODULES, false, false, false, &p, &err));
  for (uint32_t i = MODULES; i-- > 0;) {
    assert_ok(clv_packet_add_needed_call(p, get_output_id(i), 1, 0, &err));
    if (i) assert_ok(clv_packet_add_target(p, 0, get_output_id(i - 1), "", 0, &err));
  }
  clv_node_post(w->node, p);
  assert_ok(clv_packet_new_gradient(w->pool, context, 1, get_output_id(MODULES - 1), 0, "", dy, &p,
                                    &err));
  clv_node_post(w->node, p);
}

static void post_end(world *w, uint32_t context) {
  clv_err err = {0};
  clv_packet *p;
  assert_ok(clv_packet_new_end_context(w->pool, context, context, &p, &err));
  clv_packet_set_end_commit(p, 1, 0.1f, true);
  clv_node_post(w->node, p);
}

/* A step of an END_CONTEXT may still run when ENDED arrives; a request for state waits for it. */
static void post_state_get(world *w) {
  clv_err err = {0};
  clv_packet *p;
  for (uint32_t i = 0; i < MODULES; i++) {
    assert_ok(clv_packet_new_state_get(w->pool, 0, 80 + i, i, CLV_STATE_WEIGHTS, &p, &err));
    clv_node_post(w->node, p);
  }
}

static uint64_t hash_state(world *w) {
  uint64_t hash = 14695981039346656037u;
  clv_state_item item;
  for (uint32_t m = 0; m < MODULES; m++)
    for (uint32_t i = 0;
         clv_module_state_item(clv_node_module(w->node, m), CLV_STATE_WEIGHTS, i, &item); i++)
      for (size_t b = 0; b < item.bytes; b++)
        hash = (hash ^ ((const uint8_t *)item.data)[b]) * 1099511628211u;
  return hash;
}

/* Returns a hash of the state after some steps. *ret_computed: number of pieces of work that the
 * executor was given. */
static uint64_t hash_training(void (*starts)(void *, clv_work *), uint32_t *ret_computed) {
  world w;
  begin_world(&w, starts);
  for (uint32_t i = 1; i <= STEPS; i++) {
    post_calls(&w, i);
    wait_for(&w, CLV_VALUE, i);
    post_backward(&w, i);
    wait_for(&w, CLV_FINISHED, i);
    post_end(&w, i);
  }
  post_state_get(&w);
  wait_for(&w, CLV_STATE_DONE, MODULES);
  assert_int_equal(w.n_answers[CLV_ENDED], STEPS);
  stop_node(&w);
  uint64_t bits = hash_state(&w);
  *ret_computed = w.computer.n_work_ended;
  assert_string_equal(w.last_error, "");
  free_node(&w);
  return bits;
}

/* ---- tests ----------------------------------------------------------------------------------- */

/* Work per step: a forward and two backward parts for each module, the end of the pass if it
 * computes, and the change of parameters. */
static void executor_thread_gives_the_same_bits(void **state) {
  uint32_t none, on_thread, at_once;
  (void)state;
  uint64_t want = hash_training(NULL, &none);
  assert_int_equal(none, 0);
  assert_true(hash_training(queue_work, &on_thread) == want);
  assert_true(hash_training(end_at_once, &at_once) == want);
  assert_in_range(on_thread, STEPS * (3 * MODULES + 1), STEPS * (3 * MODULES + 2));
  assert_int_equal(at_once, on_thread);
}

static void executor_error_fails_the_value(void **state) {
  world w;
  (void)state;
  begin_world(&w, queue_work);
  set_flag(&w.computer, &w.computer.work_fails, true);
  post_calls(&w, 1);
  wait_for(&w, CLV_VALUE, 1);
  stop_node(&w);
  assert_non_null(strstr(w.last_error, "the device is gone"));
  free_node(&w);
}

/* All modules wait for one leaf, start together, and end before the node checks for ended work. */
static void simultaneous_completions_are_all_handled(void **state) {
  clv_err err = {0};
  clv_packet *p;
  world w;
  (void)state;
  begin_world(&w, end_at_once);
  CLV_AUTO(clv_tensor_unrefp) clv_tensor *x = make_tensor(&w, 1);
  for (uint32_t i = 0; i < MODULES; i++) {
    assert_ok(clv_packet_new_call(w.pool, 1, get_output_id(i), i, true, &p, &err));
    assert_ok(clv_packet_add_arg(p, LEAF, true, NULL, &err));
    assert_ok(clv_packet_add_delivery(p, "", &err));
    clv_node_post(w.node, p);
  }
  assert_ok(clv_packet_new_value(w.pool, 1, LEAF, "", x, &p, &err));
  clv_node_post(w.node, p);
  wait_for(&w, CLV_VALUE, MODULES);
  stop_node(&w);
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
  pthread_t other;
  world w;
  (void)state;
  begin_world(&w, queue_work);
  set_flag(&w.computer, &w.computer.is_paused, true);
  post_calls(&w, 1);
  wait_for_work(&w.computer);
  stop_node(&w);
  assert_int_equal(pthread_create(&other, NULL, release_held_work, &w.computer), 0);
  clv_node_free(clv_steal(&w.node));
  assert_int_equal(w.computer.n_work_ended, 1);
  pthread_join(other, NULL);
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
