/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests futures of gradients, of state that is written and of modules that are placed:
 * api_futures_more SESSION.yaml A B [single] runs modules at the nodes A and B, and ends with a
 * digest of the results.
 */
#include "api_futures_int.h"

/* ---- gradients, state and modules ------------------------------------------------------------ */

static bool take_tensor_of_future(cleave_future f, cleave_tensor *ret) {
  DO(wait_for_future(f));
  MUST(cleave_future_tensor(rt, f, ret, e));
  return release_future(f);
}

/* Requests gradients while a backward still runs, so their futures wait for the backward. The step,
 * which is requested after the gradients, waits for these futures. */
static bool gradients_are_read_by_futures(void) {
  float numbers[5] = {1, 2, 3, 4, 5};
  cleave_tensor given_tensor = CLEAVE_TENSOR_F32(numbers, 5), got = {0}, received = {0};
  cleave_gradients gradients = {0};
  cleave_context c;
  cleave_reference loss;
  cleave_future backward_future, weight_gradient_future, list_future, write_future,
      bias_gradient_future, step_future;
  cleave_step_result step_result;
  DO(open_context(&c));
  DO(run_network(&small_network, c, 9, NULL, NULL, &loss));
  DO(start_backward(c, loss, false, &backward_future));
  MUST(cleave_gradient_async(rt, c, small_network.a, "0.weight", 0, &weight_gradient_future, e));
  MUST(cleave_gradients_read_async(rt, c, 0, &list_future, e));
  MUST(cleave_gradient_write_async(rt, c, small_network.a, "0.bias", &given_tensor, 0,
                                   &write_future, e));
  MUST(cleave_gradient_async(rt, c, small_network.a, "0.bias", 0, &bias_gradient_future, e));
  MUST(cleave_step_async(rt, optimizer, c, 0, &step_future, e));
  DO(take_tensor_of_future(bias_gradient_future, &got) && is_same_tensor(&got, &given_tensor));
  DO(take_tensor_of_future(weight_gradient_future, &got) &&
     read_gradient(c, small_network.a, "0.weight", &received) && is_same_tensor(&got, &received));
  add_to_digest(&got);
  DO(wait_for_future(list_future));
  MUST(cleave_future_gradients(rt, list_future, &gradients, e));
  CHECK(gradients.n == 5 && gradients.items[0].module == small_network.a &&
        gradients.items[4].leaf.id);
  DO(is_same_tensor(&gradients.items[0].tensor, &received));
  for (size_t i = 0; i < 4; i++) add_to_digest(&gradients.items[i].tensor);
  DO(wait_for_future(step_future) && wait_for_future(write_future));
  MUST(cleave_future_step_result(rt, step_future, &step_result, e));
  /* the norm includes the gradient that the program wrote, whose squares have the sum 55 */
  CHECK(step_result.applied && step_result.norm * step_result.norm > 55);
  REFUSED(cleave_future_gradients(rt, backward_future, &gradients, e), CLEAVE_INVALID,
          "brings no gradients");
  REFUSED(cleave_future_tensor(rt, write_future, &got, e), CLEAVE_INVALID, "brings no tensor");
  REFUSED(cleave_gradient_async(rt, c, small_network.a, "none", 0, &weight_gradient_future, e),
          CLEAVE_NOT_FOUND, "none");
  cleave_gradients_free(&gradients);
  cleave_tensor_free(&got);
  cleave_tensor_free(&received);
  DO(release_future(backward_future) && release_future(list_future) &&
     release_future(write_future) && release_future(step_future));
  return close_context(c);
}

/* Reading waits for a backward of 300 ms without blocking the program, and can be cancelled. */
static bool reading_gradients_does_not_block(void) {
  cleave_gradients gradients = {0};
  cleave_context c;
  cleave_reference y, loss;
  cleave_future backward_future, list_future, cancelled_future, expiring_future;
  bool is_ready = true;
  DO(open_context(&c));
  DO(call_slow_module(c, &y, &loss));
  DO(start_backward(c, loss, false, &backward_future));
  MUST(cleave_gradients_read_async(rt, c, 0, &list_future, e));
  MUST(cleave_gradients_read_async(rt, c, 0, &cancelled_future, e));
  MUST(cleave_gradients_read_async(rt, c, 20, &expiring_future, e));
  MUST(cleave_future_poll(rt, list_future, &is_ready, e));
  CHECK(!is_ready);
  MUST(cleave_future_cancel(rt, cancelled_future, e));
  REFUSED(cleave_future_wait(rt, cancelled_future, 0, e), CLEAVE_CANCELLED, "was cancelled");
  REFUSED(cleave_future_wait(rt, expiring_future, 0, e), CLEAVE_DEADLINE, "in time");
  DO(wait_for_future(list_future));
  MUST(cleave_future_gradients(rt, list_future, &gradients, e));
  CHECK(gradients.n == 2 && gradients.items[0].module == slow_module && gradients.items[1].leaf.id);
  cleave_gradients_free(&gradients);
  DO(release_future(backward_future) && release_future(list_future) &&
     release_future(cancelled_future) && release_future(expiring_future));
  return close_context(c);
}

static bool state_is_written_by_futures(void) {
  float numbers[5] = {5, 4, 3, 2, 1};
  cleave_tensor given_tensor = CLEAVE_TENSOR_F32(numbers, 5), got = {0};
  cleave_state state_before = {0}, state_after = {0};
  cleave_future weight_future, state_future;
  DO(read_state_by_future(small_network.a, &state_before));
  MUST(cleave_weight_write_async(rt, small_network.a, "0.bias", &given_tensor, 0, &weight_future,
                                 e));
  DO(wait_for_future(weight_future) && read_weight(small_network.a, "0.bias", &got) &&
     is_same_tensor(&got, &given_tensor));
  MUST(cleave_state_write_async(rt, small_network.a, CLEAVE_STATE_WEIGHTS, state_before.items,
                                state_before.n, 0, &state_future, e));
  DO(read_state_by_future(small_network.a, &state_after));
  for (size_t i = 0; i < state_before.n; i++)
    DO(is_same_tensor(&state_before.items[i].tensor, &state_after.items[i].tensor));
  REFUSED(
      cleave_weight_write_async(rt, small_network.a, "none", &given_tensor, 0, &weight_future, e),
      CLEAVE_NOT_FOUND, "none");
  cleave_state_free(&state_before);
  cleave_state_free(&state_after);
  cleave_tensor_free(&got);
  return release_future(weight_future) && wait_for_future(state_future) &&
         release_future(state_future);
}

/* A module is placed before its first call, which then need not wait. A refusal by the node is the
 * future's error. */
static bool modules_are_placed_by_futures(void) {
  cleave_input input = CLEAVE_INPUT(CLEAVE_F32, 4, 3);
  cleave_module_options o = {.size = sizeof o, .name = "greedy", .at = at_b, .threads = 100000};
  cleave_module *m, *too_large;
  cleave_future f, refused_future;
  cleave_tensor got = {0};
  DO(load_module("ahead", at_b, "[{op: linear, out: 5}]", 3, &m));
  MUST(cleave_module_place_async(rt, m, true, 0, &f, e));
  DO(read_weight(m, "0.bias", &got) && wait_for_future(f) && release_future(f));
  MUST(cleave_module_place_async(rt, m, true, 0, &f, e)); /* the module is placed already */
  DO(wait_for_future(f) && release_future(f));
  MUST(cleave_module_release(rt, m, e));
  cleave_tensor_free(&got);
  if (strcmp(at_b, "master") == 0) return true;
  MUST(cleave_load_layers(rt, &o, "[{op: linear, out: 5}]", &input, &too_large, e));
  MUST(cleave_module_place_async(rt, too_large, true, 0, &refused_future, e));
  REFUSED(cleave_future_wait(rt, refused_future, 0, e), CLEAVE_EXHAUSTED, "threads for module");
  MUST(cleave_module_release(rt, too_large, e));
  return release_future(refused_future);
}

/* ---- running the tests ----------------------------------------------------------------------- */

static const struct {
  bool (*run)(void);
  const char *name;
} tests[] = {
    TEST(gradients_are_read_by_futures),
    TEST(reading_gradients_does_not_block),
    TEST(state_is_written_by_futures),
    TEST(modules_are_placed_by_futures),
};

int main(int argc, char **argv) {
  cleave_options o = {.size = sizeof o, .deadline_ms = 20000};
  cleave_leaks leaks;
  if (argc < 4) return 2;
  at_a = argv[2];
  at_b = argv[3];
  o.single_thread = is_single_threaded = argc > 4 && strcmp(argv[4], "single") == 0;
  bool is_ready = cleave_open(argv[1], &o, &rt, NULL) == CLEAVE_OK && load_modules();
  print_result(is_ready, "open");
  for (size_t i = 0; is_ready && i < sizeof tests / sizeof *tests; i++) {
    snprintf(why, sizeof why, "see the report");
    print_result(tests[i].run(), tests[i].name);
  }
  printf("digest %016llx\n", (unsigned long long)digest);
  bool is_closed = cleave_close(rt, 0, &leaks, NULL) == CLEAVE_OK;
  snprintf(why, sizeof why, "%.900s", leaks.text);
  print_result(is_closed && leaks.futures == 0 && leaks.contexts == 0, "nothing_is_left");
  return n_failed != 0;
}
