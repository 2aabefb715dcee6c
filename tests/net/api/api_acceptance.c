/* SPDX-License-Identifier: Apache-2.0
 *
 * Runs acceptance tests of the C API that no other program of this folder covers. The arguments
 * choose between tests of the graphs that modules can form and tests of faults.
 *   api_acceptance SESSION.yaml A B         graphs; prints a digest as api_program does
 *   api_acceptance SESSION.yaml A B PID     faults: PID is B's process
 *   api_acceptance SESSION.yaml A B hold N  fills A and B with N MiB each, prints `holding` and
 *                                           waits to be killed
 */
#include <pthread.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

#include "api_int.h"

static bool call_module(cleave_context c, cleave_module *m, cleave_reference in,
                        cleave_reference *ret) {
  MUST(cleave_call(rt, c, m, &in, 1, ret, e));
  return true;
}

static bool fetch_value(cleave_reference r, cleave_tensor *ret) {
  MUST(cleave_to_here(rt, r, 0, ret, e));
  return true;
}

/* ---- graphs of modules: chains, joins and frozen modules ------------------------------------- */

/* Runs x -> a -> b -> a -> b, where module a is at node A and b at B, so that the gradients of two
 * calls of each module add up. All weights are the identity, so both calls have the same output
 * gradient, and each sum is twice the gradient of one call. */
static bool chain_a_b_a_b_adds_gradients_of_both_rounds(void) {
  cleave_module *m[2], *loss;
  cleave_context c;
  cleave_reference x, t, output, l;
  cleave_tensor g = {0}, y = {0}, gradient_of_one_round = {0};
  float numbers[12], target[12], identity[9] = {1, 0, 0, 0, 1, 0, 0, 0, 1};
  cleave_tensor w = CLEAVE_TENSOR_F32(identity, 3, 3);
  fill_with_random(numbers, 12, 61);
  fill_with_random(target, 12, 62);
  DO(load_module("round a", at_a, "[{op: linear, out: 3, bias: false}]", 3, &m[0]));
  DO(load_module("round b", at_b, "[{op: linear, out: 3, bias: false}]", 3, &m[1]));
  DO(load_loss("round loss", "master", 3, &loss));
  for (int i = 0; i < 2; i++) MUST(cleave_weight_write(rt, m[i], "0.weight", &w, 0, e));
  for (int rounds = 1; rounds <= 2; rounds++) {
    DO(open_context(&c));
    DO(make_leaf(c, numbers, 4, 3, false, &x));
    DO(make_leaf(c, target, 4, 3, false, &t));
    output = x;
    for (int i = 0; i < 2 * rounds; i++) DO(call_module(c, m[i % 2], output, &output));
    MUST(cleave_call(rt, c, loss, (cleave_reference[]){output, t}, 2, &l, e));
    DO(backward(c, l, false));
    DO(fetch_value(output, &y));
    CHECK(memcmp(y.data, numbers, sizeof numbers) == 0);
    for (int i = 0; i < 2; i++) {
      DO(read_gradient(c, m[i], "0.weight", rounds == 1 && i == 0 ? &gradient_of_one_round : &g));
      const float *got = rounds == 1 && i == 0 ? gradient_of_one_round.data : g.data;
      for (int k = 0; k < 9; k++)
        CHECK(is_near(got[k], (float)rounds * ((float *)gradient_of_one_round.data)[k]));
    }
    DO(close_context(c));
  }
  add_to_digest(&g);
  cleave_tensor_free(&g);
  cleave_tensor_free(&y);
  cleave_tensor_free(&gradient_of_one_round);
  return true;
}

static bool load_sum_module(cleave_module **ret) {
  static const int64_t shape[] = {4, 5};
  cleave_graph *g;
  int in[2];
  MUST(cleave_graph_new(&g, e));
  MUST(cleave_graph_input(g, "left", CLEAVE_F32, shape, 2, &in[0], e));
  MUST(cleave_graph_input(g, "right", CLEAVE_F32, shape, 2, &in[1], e));
  MUST(cleave_graph_op(g, "add", NULL, NULL, in, 2, NULL, e));
  cleave_module_options o = {.size = sizeof o, .name = "sum", .at = at_a};
  MUST(cleave_load_graph(rt, &o, g, ret, e));
  cleave_graph_free(g);
  return true;
}

/* An embedding between two other modules: its inputs, the word ids, have no gradient, but the rows
 * of its table do. Row 6, which is read twice, gets the sum of both gradients. */
static bool embedding_module_in_the_middle_has_gradients_of_its_rows(void) {
  cleave_module *first_module, *table_module, *sum_module, *last_module, *loss;
  cleave_context c;
  cleave_reference x, word_ids, t, h, rows, h_plus_rows, y, l;
  cleave_tensor g = {0};
  float numbers[12], target[8];
  int64_t word_numbers[4] = {6, 1, 6, 2};
  cleave_tensor word_tensor = CLEAVE_TENSOR_I64(word_numbers, 4);
  cleave_input word_input = CLEAVE_INPUT(CLEAVE_I64, 4);
  cleave_module_options o = {.size = sizeof o, .name = "table", .at = at_b, .seed = 7};
  fill_with_random(numbers, 12, 63);
  fill_with_random(target, 8, 64);
  DO(load_module("before table", at_a, "[{op: linear, out: 5}]", 3, &first_module));
  MUST(cleave_load_layers(rt, &o, "[{op: embedding, rows: 9, out: 5}]", &word_input, &table_module,
                          e));
  DO(load_sum_module(&sum_module));
  DO(load_module("behind table", at_b, "[{op: linear, out: 2}]", 5, &last_module));
  DO(load_loss("table loss", "master", 2, &loss));
  DO(open_context(&c));
  DO(make_leaf(c, numbers, 4, 3, true, &x));
  DO(make_leaf(c, target, 4, 2, false, &t));
  MUST(cleave_leaf(rt, c, &word_tensor, false, &word_ids, e));
  DO(call_module(c, first_module, x, &h));
  DO(call_module(c, table_module, word_ids, &rows));
  MUST(cleave_call(rt, c, sum_module, (cleave_reference[]){h, rows}, 2, &h_plus_rows, e));
  DO(call_module(c, last_module, h_plus_rows, &y));
  MUST(cleave_call(rt, c, loss, (cleave_reference[]){y, t}, 2, &l, e));
  DO(backward(c, l, false));
  DO(read_gradient(c, table_module, "0.weight", &g));
  add_to_digest(&g);
  float columns[5] = {0};
  for (int r = 0; r < 9; r++)
    for (int k = 0; k < 5; k++) {
      float d = ((float *)g.data)[5 * r + k];
      CHECK((d != 0) == (r == 6 || r == 1 || r == 2));
      columns[k] += d;
    }
  /* each row has the same output gradient, and the bias gradient is the sum over the batch */
  DO(read_gradient(c, first_module, "0.bias", &g));
  for (int k = 0; k < 5; k++) CHECK(is_near(columns[k], ((float *)g.data)[k]));
  cleave_tensor_free(&g);
  return close_context(c);
}

/* Loads a module that concatenates its first n inputs along the rows, and adds its last input to
 * the result. Each input has `width` columns and any number of rows. */
static bool load_join_module(int n, int64_t width, cleave_module **ret) {
  cleave_graph *g;
  int in[9], joined;
  MUST(cleave_graph_new(&g, e));
  for (int i = 0; i <= n; i++) {
    char name[16];
    snprintf(name, sizeof name, "x%d", i);
    MUST(cleave_graph_input(g, name, CLEAVE_F32, (int64_t[]){i < n ? 1 : n, width}, 2, &in[i], e));
  }
  MUST(cleave_graph_op(g, "concat", "{dim: 0}", NULL, in, n, &joined, e));
  MUST(cleave_graph_op(g, "add", NULL, NULL, (int[]){joined, in[n]}, 2, NULL, e));
  cleave_module_options o = {.size = sizeof o, .name = "joined", .at = at_b};
  MUST(cleave_load_graph(rt, &o, g, ret, e));
  cleave_graph_free(g);
  return true;
}

/* Sends a batch of 8 rows through module m in three parts of part_rows rows, and joins the outputs
 * by the module `join` before the loss. */
static bool run_joined_step(cleave_module *m, cleave_module *join, cleave_module *loss,
                            const int64_t *part_rows, cleave_tensor *ret_y, cleave_tensor *ret_g) {
  static float numbers[24], target[16], zeros[16];
  cleave_context c;
  cleave_reference x, in[4], y, t, l;
  cleave_place place;
  int64_t first_row = 0;
  fill_with_random(numbers, 24, 67);
  fill_with_random(target, 16, 68);
  DO(open_context(&c));
  for (int i = 0; i < 3; first_row += part_rows[i++]) {
    DO(make_leaf(c, numbers + 3 * first_row, part_rows[i], 3, false, &x));
    DO(call_module(c, m, x, &in[i]));
  }
  DO(make_leaf(c, zeros, 7, 2, false, &in[3]));
  REFUSED(
      cleave_call(rt, c, join, in, 4, &y, e), CLEAVE_INVALID,
      "module 'joined': layer 1: add needs two inputs of the same rank and batch size, whose other "
      "dimensions are equal or 1");
  DO(make_leaf(c, zeros, 8, 2, false, &in[3]));
  MUST(cleave_call(rt, c, join, in, 4, &y, e));
  DO(make_leaf(c, target, 8, 2, false, &t));
  MUST(cleave_call(rt, c, loss, (cleave_reference[]){y, t}, 2, &l, e));
  DO(backward(c, l, false));
  DO(fetch_value(y, ret_y));
  DO(read_gradient(c, m, "0.weight", ret_g));
  MUST(cleave_owner(rt, y, &place, e));
  CHECK(strcmp(place.node, at_b) == 0 && ret_y->rank == 2 && ret_y->shape[0] == 8);
  return close_context(c);
}

static bool batch_parts_of_any_sizes_are_joined(void) {
  static const int64_t rows[][3] = {{2, 3, 3}, {6, 1, 1}, {2, 3, 3}};
  cleave_module *m, *join, *loss;
  cleave_tensor y[3] = {{0}}, g[3] = {{0}};
  DO(load_module("parts", at_a, "[{op: linear, out: 2}]", 3, &m));
  DO(load_join_module(3, 2, &join));
  DO(load_loss("parts loss", "master", 2, &loss));
  for (int i = 0; i < 3; i++) DO(run_joined_step(m, join, loss, rows[i], &y[i], &g[i]));
  for (int i = 1; i < 3; i++)
    for (int k = 0; k < 16; k++) CHECK(is_near(((float *)y[i].data)[k], ((float *)y[0].data)[k]));
  for (int k = 0; k < 6; k++) CHECK(is_near(((float *)g[1].data)[k], ((float *)g[0].data)[k]));
  CHECK(memcmp(g[2].data, g[0].data, 6 * sizeof(float)) == 0);
  for (int i = 0; i < 3; i++)
    add_to_digest(&g[i]), cleave_tensor_free(&y[i]), cleave_tensor_free(&g[i]);
  return true;
}

static bool frozen_module_in_the_middle_passes_gradients_on(void) {
  cleave_module *first_module, *middle_module, *loss;
  cleave_context c;
  cleave_reference x, t, h, y, l;
  cleave_tensor g = {0}, w = {0}, weight_after = {0};
  cleave_step_result step_result;
  cleave_optimizer *sgd, *refused_optimizer;
  float numbers[12], target[8];
  const char *all[] = {"*"};
  cleave_input input = CLEAVE_INPUT(CLEAVE_F32, 4, 5);
  cleave_module_options o = {
      .size = sizeof o, .name = "ice", .at = at_b, .seed = 7, .frozen = all, .n_frozen = 1};
  fill_with_random(numbers, 12, 65);
  fill_with_random(target, 8, 66);
  DO(load_module("before ice", at_a, "[{op: linear, out: 5}]", 3, &first_module));
  MUST(cleave_load_layers(rt, &o, "[{op: linear, out: 2}]", &input, &middle_module, e));
  DO(load_loss("ice loss", "master", 2, &loss));
  cleave_group group = {.modules = &first_module, .n_modules = 1, .lr = 0.1};
  cleave_group frozen_group = {.modules = &middle_module, .n_modules = 1, .lr = 0.1};
  MUST(cleave_optimizer_new(rt, &group, 1, 0, &sgd, e));
  REFUSED(cleave_optimizer_new(rt, &frozen_group, 1, 0, &refused_optimizer, e), CLEAVE_INVALID,
          "no parameter");
  DO(read_weight(middle_module, "0.weight", &w));
  DO(open_context(&c));
  DO(make_leaf(c, numbers, 4, 3, false, &x));
  DO(make_leaf(c, target, 4, 2, false, &t));
  DO(call_module(c, first_module, x, &h));
  DO(call_module(c, middle_module, h, &y));
  MUST(cleave_call(rt, c, loss, (cleave_reference[]){y, t}, 2, &l, e));
  DO(backward(c, l, false));
  DO(read_gradient(c, first_module, "0.weight", &g));
  add_to_digest(&g);
  REFUSED(cleave_gradient(rt, c, middle_module, "0.weight", 0, &g, e), CLEAVE_NOT_FOUND, "frozen");
  MUST(cleave_step(rt, sgd, c, 0, &step_result, e));
  CHECK(step_result.applied && step_result.norm > 0);
  DO(close_context(c));
  DO(read_weight(middle_module, "0.weight", &weight_after));
  CHECK(memcmp(w.data, weight_after.data, 40) == 0);
  cleave_tensor_free(&g);
  cleave_tensor_free(&w);
  cleave_tensor_free(&weight_after);
  return true;
}

/* ---- workers that are stopped or killed ------------------------------------------------------ */

/* B is stopped while it owns a value. Meanwhile A and the program use the reference to the value,
 * and a fetch waits. All values arrive when B continues. */
static bool references_are_used_before_their_owner_computes_them(pid_t pid) {
  cleave_module *owner_module, *user_module, *master_module;
  cleave_context c;
  cleave_reference x, y, z[2];
  cleave_future f;
  cleave_tensor out = {0}, got[3] = {{0}};
  float numbers[12];
  fill_with_random(numbers, 12, 71);
  DO(load_module("slow owner", at_b, "[{op: linear, out: 5}]", 3, &owner_module));
  DO(load_module("user", at_a, "[{op: relu}]", 5, &user_module));
  DO(load_module("home user", "master", "[{op: relu}]", 5, &master_module));
  DO(open_context(&c));
  DO(make_leaf(c, numbers, 4, 3, false, &x));
  /* loads the modules and waits for their first results, before B is stopped */
  MUST(cleave_rpc_sync(rt, c, owner_module, &x, 1, 0, &y, &out, e));
  MUST(cleave_rpc_sync(rt, c, user_module, &y, 1, 0, NULL, &got[0], e));
  MUST(cleave_rpc_sync(rt, c, master_module, &y, 1, 0, NULL, &got[0], e));
  DO(stop_process_and_threads(pid));
  DO(call_module(c, owner_module, x, &y));
  DO(call_module(c, user_module, y, &z[0]));
  DO(call_module(c, master_module, y, &z[1]));
  MUST(cleave_rpc_async(rt, c, user_module, &y, 1, NULL, &f, e));
  REFUSED(cleave_to_here(rt, y, 100, &got[0], e), CLEAVE_DEADLINE, "slow owner");
  REFUSED(cleave_wait(rt, f, 100, &got[0], e), CLEAVE_DEADLINE, "user");
  /* releases one reference to a value that does not exist yet; the other references to the value
   * must still work */
  MUST(cleave_reference_release(rt, z[0], e));
  CHECK(kill(pid, SIGCONT) == 0);
  DO(fetch_value(y, &got[0]));
  MUST(cleave_wait(rt, f, 0, &got[1], e));
  DO(fetch_value(z[1], &got[2]));
  CHECK(memcmp(out.data, got[0].data, 80) == 0);
  for (int i = 0; i < 20; i++) {
    float v = ((float *)out.data)[i], r = v > 0 ? v : 0;
    CHECK(((float *)got[1].data)[i] == r && ((float *)got[2].data)[i] == r);
  }
  cleave_tensor_free(&out);
  for (int i = 0; i < 3; i++) cleave_tensor_free(&got[i]);
  return close_context(c);
}

static void *kill_after_200_ms(void *user) {
  usleep(200000);
  kill(*(pid_t *)user, SIGKILL);
  return NULL;
}

/* B is stopped in its part of the backward and killed 200 ms later. The backward's error arrives
 * long before the deadline of 20 s, and A's part of the context is aborted too. */
static bool worker_killed_in_backward_is_reported_before_the_deadline(pid_t pid) {
  net n;
  cleave_context c;
  cleave_reference x, y, loss;
  cleave_tensor out = {0};
  float numbers[12];
  struct timespec begin_time, end_time;
  pthread_t kill_thread;
  fill_with_random(numbers, 12, 73);
  DO(make_network("dying", at_a, &n));
  DO(open_context(&c));
  DO(run_network(&n, c, 3, NULL, NULL, &loss));
  DO(fetch_value(loss, &out));
  cleave_tensor_free(&out);
  DO(stop_process_and_threads(pid));
  CHECK(pthread_create(&kill_thread, NULL, kill_after_200_ms, &pid) == 0);
  cleave_error error = {0};
  clock_gettime(CLOCK_MONOTONIC, &begin_time);
  CHECK(cleave_backward(rt, c, &loss, 1, false, 0, &error) == CLEAVE_UNAVAILABLE);
  clock_gettime(CLOCK_MONOTONIC, &end_time);
  pthread_join(kill_thread, NULL);
  if (strcmp(error.node, at_b) != 0 || !strstr(error.text, "was lost")) {
    snprintf(why, sizeof why, "'%s' is to be lost, not '%s': %s", at_b, error.node, error.text);
    return false;
  }
  CHECK(end_time.tv_sec - begin_time.tv_sec < 5);
  CHECK(cleave_context_close(rt, c, 0, NULL) == CLEAVE_UNAVAILABLE);
  DO(open_context(&c));
  DO(make_leaf(c, numbers, 4, 3, false, &x));
  MUST(cleave_rpc_sync(rt, c, n.a, &x, 1, 0, &y, &out, e));
  cleave_tensor_free(&out);
  return close_context(c);
}

/* ---- a program that fills the memory of its workers and is killed ---------------------------- */

/* Opens N contexts, each with 1 MiB of values at A and at B. */
static bool fill_memory_of_workers(int n_contexts) {
  enum { WIDE = 64 << 10 };
  cleave_module *a, *b;
  cleave_tensor out = {0};
  static float numbers[4 * WIDE];
  DO(load_module("held a", at_a, "[{op: tanh}]", WIDE, &a));
  DO(load_module("held b", at_b, "[{op: tanh}]", WIDE, &b));
  for (int i = 0; i < n_contexts; i++) {
    cleave_context c;
    cleave_reference x, h, y;
    DO(open_context(&c));
    DO(make_leaf(c, numbers, 4, WIDE, true, &x));
    DO(call_module(c, a, x, &h));
    DO(call_module(c, b, h, &y));
    DO(fetch_value(y, &out));
  }
  cleave_tensor_free(&out);
  printf("holding\n");
  fflush(stdout);
  pause();
  return true;
}

static const test shapes[] = {
    TEST(chain_a_b_a_b_adds_gradients_of_both_rounds),
    TEST(embedding_module_in_the_middle_has_gradients_of_its_rows),
    TEST(batch_parts_of_any_sizes_are_joined),
    TEST(frozen_module_in_the_middle_passes_gradients_on),
};
static const struct {
  bool (*run)(pid_t);
  const char *name;
} faults[] = {
    TEST(references_are_used_before_their_owner_computes_them),
    TEST(worker_killed_in_backward_is_reported_before_the_deadline),
};

int main(int argc, char **argv) {
  if (argc < 4) return 2;
  if (!open_session(argv)) {
    print_result(false, "open");
    return 1;
  }
  if (argc > 5 && strcmp(argv[4], "hold") == 0) {
    if (!fill_memory_of_workers(atoi(argv[5]))) print_result(false, "hold");
  } else if (argc > 4) {
    pid_t pid = (pid_t)atol(argv[4]);
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++)
      print_result(faults[i].run(pid), faults[i].name);
  } else {
    (void)RUN_ALL(shapes);
    print_digest();
  }
  (void)cleave_close(rt, 0, NULL, NULL);
  return n_failed != 0;
}
