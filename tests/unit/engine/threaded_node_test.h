/* SPDX-License-Identifier: Apache-2.0
 *
 * Runs a node in a thread of its own, for tests that post frames to it and wait for its answers.
 * The node has MODULES modules on [ROWS, COLUMNS], each of which takes the output of the one
 * before.
 */
#ifndef CLEAVE_THREADED_NODE_TEST_H
#define CLEAVE_THREADED_NODE_TEST_H

#include <pthread.h>
#include <stdio.h>
#include <time.h>

#include "tests/unit/engine/engine_test.h"

enum { ROWS = 4, COLUMNS = 3, MODULES = 2, LEAF = 10, KINDS = 64 };

typedef struct threaded_node {
  clv_pool *pool;
  clv_session_node *node;
  pthread_t thread;
  pthread_mutex_t lock;
  pthread_cond_t answers_changed_cond;
  uint32_t n_answers[KINDS]; /* number of answers of each kind */
  char last_error[CLV_WIRE_TEXT + 1];
} threaded_node;

/* Counts an answer and frees it. user: the threaded_node. */
static inline void record_answer(void *user, clv_packet *p) {
  threaded_node *n = user;
  pthread_mutex_lock(&n->lock);
  n->n_answers[p->frame.kind]++;
  if (clv_frame_is_failure(&p->frame))
    snprintf(n->last_error, sizeof n->last_error, "%s", p->frame.failure.text);
  pthread_cond_broadcast(&n->answers_changed_cond);
  pthread_mutex_unlock(&n->lock);
  clv_packet_free(p);
}

static inline void wait_for(threaded_node *n, clv_frame_kind kind, uint32_t n_wanted) {
  struct timespec deadline;
  int r = 0;
  clock_gettime(CLOCK_REALTIME, &deadline);
  deadline.tv_sec += 60;
  pthread_mutex_lock(&n->lock);
  while (r == 0 && n->n_answers[kind] < n_wanted)
    r = pthread_cond_timedwait(&n->answers_changed_cond, &n->lock, &deadline);
  pthread_mutex_unlock(&n->lock);
  if (r)
    fail_msg("%s %u of %u: %s", clv_frame_kind_name(kind), n->n_answers[kind], n_wanted,
             n->last_error);
}

/* Makes the node, without modules. o: options besides the pool. */
static inline void make_threaded_node(threaded_node *n, clv_node_options o) {
  clv_err err = {0};
  *n = (threaded_node){.lock = PTHREAD_MUTEX_INITIALIZER,
                       .answers_changed_cond = PTHREAD_COND_INITIALIZER};
  assert_ok(clv_pool_new((size_t)64 << 20, 4096, &n->pool, &err));
  o.pool = n->pool;
  assert_ok(clv_node_new(&o, &n->node, &err));
}

static inline void *run_node(void *user) {
  clv_node_run(user);
  return NULL;
}

static inline void start_node(threaded_node *n) {
  assert_int_equal(pthread_create(&n->thread, NULL, run_node, n->node), 0);
}

static inline void stop_node(threaded_node *n) {
  clv_node_stop(n->node);
  pthread_join(n->thread, NULL);
}

/* ---- frames of a training step --------------------------------------------------------------- */

static inline uint64_t get_output_id(uint32_t module) { return LEAF + 1 + module; }

static inline clv_tensor *make_tensor(threaded_node *n, uint32_t first) {
  clv_err err = {0};
  clv_tensor *t;
  assert_ok(clv_pool_alloc_tensor(n->pool, CLV_F32, &CLV_SHAPE(ROWS, COLUMNS), &t, &err));
  for (size_t i = 0; i < t->n; i++) ((float *)t->data)[i] = (float)(first + i) / 8;
  return t;
}

/* Sends a CALL of each module; each module takes the output of the module before. */
static inline void post_calls(threaded_node *n, uint32_t context) {
  clv_err err = {0};
  clv_packet *p;
  CLV_AUTO(clv_tensor_unrefp) clv_tensor *x = make_tensor(n, context);
  for (uint32_t i = 0; i < MODULES; i++) {
    assert_ok(clv_packet_new_call(n->pool, context, get_output_id(i), i, true, &p, &err));
    assert_ok(clv_packet_add_arg(p, i ? get_output_id(i - 1) : LEAF, true, i ? NULL : x, &err));
    if (i == MODULES - 1) assert_ok(clv_packet_add_delivery(p, "", &err));
    clv_node_post(n->node, p);
  }
}

static inline void post_backward(threaded_node *n, uint32_t context, bool has_vote) {
  clv_err err = {0};
  clv_packet *p;
  CLV_AUTO(clv_tensor_unrefp) clv_tensor *dy = make_tensor(n, 1);
  assert_ok(clv_packet_new_prepare(n->pool, context, 1, MODULES, false, has_vote, false, &p, &err));
  for (uint32_t i = MODULES; i-- > 0;) {
    assert_ok(clv_packet_add_needed_call(p, get_output_id(i), 1, 0, &err));
    if (i) assert_ok(clv_packet_add_target(p, 0, get_output_id(i - 1), "", 0, &err));
  }
  clv_node_post(n->node, p);
  assert_ok(clv_packet_new_gradient(n->pool, context, 1, get_output_id(MODULES - 1), 0, "", dy, &p,
                                    &err));
  clv_node_post(n->node, p);
}

static inline void post_end(threaded_node *n, uint32_t context) {
  clv_err err = {0};
  clv_packet *p;
  assert_ok(clv_packet_new_end_context(n->pool, context, context, &p, &err));
  clv_packet_set_end_commit(p, 1, 0.1f, true);
  clv_node_post(n->node, p);
}

/* Runs training step i (from 1) in context i, up to its END_CONTEXT. */
static inline void run_step(threaded_node *n, uint32_t i, bool has_vote) {
  post_calls(n, i);
  wait_for(n, CLV_VALUE, i);
  post_backward(n, i, has_vote);
  wait_for(n, CLV_FINISHED, i);
  post_end(n, i);
}

/* Waits until the steps have run. ENDED may arrive before a step that END_CONTEXT requested has
 * run, so this function reads the state, which waits for the step. */
static inline void wait_for_steps(threaded_node *n) {
  clv_err err = {0};
  clv_packet *p;
  uint32_t n_before = n->n_answers[CLV_STATE_DONE];
  for (uint32_t i = 0; i < MODULES; i++) {
    assert_ok(clv_packet_new_state_get(n->pool, 0, 80 + i, i, CLV_STATE_WEIGHTS, &p, &err));
    clv_node_post(n->node, p);
  }
  wait_for(n, CLV_STATE_DONE, n_before + MODULES);
}

static inline uint64_t hash_state(const threaded_node *n) {
  clv_err err = {0};
  uint64_t hash = 14695981039346656037u;
  clv_state_item item;
  for (uint32_t m = 0; m < MODULES; m++)
    for (uint32_t i = 0;
         clv_module_state_item(clv_node_module(n->node, m), CLV_STATE_WEIGHTS, i, &item); i++) {
      uint8_t bytes[ROWS * COLUMNS * sizeof(float)];
      assert_in_range(item.bytes, 1, sizeof bytes);
      assert_ok(clv_state_item_get(&item, bytes, &err));
      for (size_t b = 0; b < item.bytes; b++) hash = (hash ^ bytes[b]) * 1099511628211u;
    }
  return hash;
}

#endif
