/* SPDX-License-Identifier: Apache-2.0
 *
 * Shared by the programs that test futures: their modules, one of which is slow, and functions that
 * start operations and wait for them.
 */
#ifndef CLEAVE_TEST_API_FUTURES_INT_H
#define CLEAVE_TEST_API_FUTURES_INT_H

#include "api_int.h"

/* delay of the slow module's forward; longer than all other operations of a test take */
enum { SLOW_FORWARD_MS = 300 };

static cleave_module *slow_module, *embedding;
static net small_network;
static cleave_optimizer *optimizer;
static bool is_single_threaded;

static inline bool load_modules(void) {
  cleave_module_options o = {.size = sizeof o, .name = "picks", .at = at_a, .seed = 7};
  cleave_input rows = CLEAVE_INPUT(CLEAVE_I64, 4);
  MUST(cleave_load_layers(rt, &o, "[{op: embedding, rows: 4, out: 6}]", &rows, &embedding, e));
  DO(load_module("slow", at_b, "[{op: wait, forward_ms: 300, input_ms: 1, weight_ms: 1}]", 2,
                 &slow_module));
  DO(make_network("net", at_b, &small_network));
  cleave_module *all[] = {small_network.a, small_network.b};
  cleave_group g = {.modules = all, .n_modules = 2, .kind = CLEAVE_SGD, .lr = 0.1};
  MUST(cleave_optimizer_new(rt, &g, 1, 0, &optimizer, e));
  MUST(cleave_module_place(rt, slow_module, true, 0, e));
  return true;
}

static inline bool wait_for_future(cleave_future f) {
  MUST(cleave_future_wait(rt, f, 0, e));
  return true;
}

static inline bool release_future(cleave_future f) {
  MUST(cleave_future_release(rt, f, e));
  return true;
}

static inline bool start_backward(cleave_context c, cleave_reference root, bool retain,
                                  cleave_future *ret) {
  const cleave_backward_options o = {.size = sizeof o, .retain = retain};
  MUST(cleave_backward_async(rt, c, &root, 1, &o, ret, e));
  return true;
}

/* Runs x -> slow -> loss, and returns the reference to the slow module's value. */
static inline bool call_slow_module(cleave_context c, cleave_reference *ret_y,
                                    cleave_reference *ret_loss) {
  static const float x[8] = {1, 2, 3, 4, 5, 6, 7, 8}, zeros[8];
  cleave_reference in, target;
  DO(make_leaf(c, x, 4, 2, true, &in));
  DO(make_leaf(c, zeros, 4, 2, false, &target));
  MUST(cleave_call(rt, c, slow_module, &in, 1, ret_y, e));
  MUST(
      cleave_call(rt, c, small_network.loss, (cleave_reference[]){*ret_y, target}, 2, ret_loss, e));
  return true;
}

static inline bool is_same_tensor(const cleave_tensor *a, const cleave_tensor *b) {
  size_t n = cleave_tensor_count(a);
  CHECK(n == cleave_tensor_count(b) && memcmp(a->data, b->data, 4 * n) == 0);
  return true;
}

static inline bool read_state_by_future(cleave_module *m, cleave_state *ret) {
  cleave_future f;
  MUST(cleave_state_read_async(rt, m, CLEAVE_STATE_WEIGHTS, 0, &f, e));
  DO(wait_for_future(f));
  MUST(cleave_future_state(rt, f, ret, e));
  return release_future(f);
}

#endif
