/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests the C API under faults and over many steps. Usage:
 *   api_faults SESSION.yaml A B PID        faults: PID is B's process
 *   api_faults SESSION.yaml A B 0 STEPS    memory and time over many steps
 */
#include <pthread.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

#include "api_int.h"

/* The sanitizers keep freed memory, so memory is not measured with them. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { SANITIZED = 1 };
#else
enum { SANITIZED = 0 };
#endif

/* ---- workers that are killed or stopped ------------------------------------------------------ */

/* B is killed between backward and step: A's weights do not change, the error names B, and A
 * continues alone. Either the step fails or the next call does, depending on when the master
 * notices the loss. */
static bool worker_killed_before_the_step_leaves_the_other_unchanged(pid_t pid) {
  net n;
  cleave_context c;
  cleave_reference loss, x, y;
  cleave_optimizer *sgd;
  cleave_tensor weight_before = {0}, weight_after = {0};
  float numbers[12];
  fill_with_random(numbers, 12, 1);
  DO(make_network("killed", at_a, &n));
  cleave_module *both[] = {n.a, n.b};
  cleave_group group = {.modules = both, .n_modules = 2, .lr = 0.5};
  MUST(cleave_optimizer_new(rt, &group, 1, 0, &sgd, e));
  DO(read_weight(n.a, "0.weight", &weight_before));
  DO(open_context(&c));
  DO(run_network(&n, c, 3, NULL, NULL, &loss));
  DO(backward(c, loss, false));
  CHECK(kill(pid, SIGKILL) == 0);
  cleave_error error = {0};
  cleave_status step_status = cleave_step(rt, sgd, c, 0, NULL, NULL);
  CHECK(step_status == CLEAVE_OK || step_status == CLEAVE_UNAVAILABLE);
  DO(read_weight(n.a, "0.weight", &weight_after));
  CHECK(memcmp(weight_before.data, weight_after.data, 60) == 0);
  CHECK(cleave_backward(rt, c, &loss, 1, false, 0, &error) == CLEAVE_UNAVAILABLE);
  CHECK(strcmp(error.node, at_b) == 0 && strstr(error.text, "was lost"));
  CHECK(cleave_context_close(rt, c, 0, NULL) == CLEAVE_UNAVAILABLE);
  DO(open_context(&c));
  DO(make_leaf(c, numbers, 4, 3, false, &x));
  MUST(cleave_rpc_sync(rt, c, n.a, &x, 1, 0, &y, &weight_after, e));
  REFUSED(cleave_call(rt, c, n.b, &y, 1, &y, e), CLEAVE_UNAVAILABLE, "was lost");
  cleave_tensor_free(&weight_before);
  cleave_tensor_free(&weight_after);
  return close_context(c);
}

typedef struct value_wait {
  cleave_reference y;
  cleave_status status;
} value_wait;

static void *wait_for_value(void *user) {
  value_wait *w = user;
  cleave_tensor t = {0};
  w->status = cleave_to_here(rt, w->y, 0, &t, NULL);
  cleave_tensor_free(&t);
  return NULL;
}

/* Worker B is stopped by SIGSTOP. One fetch ends at its deadline. Another fetch, in a thread, ends
 * when the context is closed. */
static bool deadlines_and_closing_end_a_wait(pid_t pid) {
  net n;
  cleave_context c;
  cleave_reference x, y;
  cleave_tensor out = {0};
  float numbers[20];
  struct timespec begin_time, end_time;
  pthread_t thread;
  fill_with_random(numbers, 20, 1);
  DO(make_network("slow", at_a, &n));
  DO(open_context(&c));
  DO(make_leaf(c, numbers, 4, 5, false, &x));
  MUST(cleave_rpc_sync(rt, c, n.b, &x, 1, 0, &y, &out, e));
  DO(stop_process_and_threads(pid));
  MUST(cleave_call(rt, c, n.b, &x, 1, &y, e));
  clock_gettime(CLOCK_MONOTONIC, &begin_time);
  REFUSED(cleave_to_here(rt, y, 300, &out, e), CLEAVE_DEADLINE, "slow b");
  clock_gettime(CLOCK_MONOTONIC, &end_time);
  double seconds = (double)(end_time.tv_sec - begin_time.tv_sec) +
                   (double)(end_time.tv_nsec - begin_time.tv_nsec) / 1e9;
  CHECK(seconds >= 0.3 && seconds < 2);
  value_wait w = {.y = y};
  CHECK(pthread_create(&thread, NULL, wait_for_value, &w) == 0);
  usleep(100000);
  REFUSED(cleave_context_close(rt, c, 300, e), CLEAVE_DEADLINE, "not every node");
  pthread_join(thread, NULL);
  CHECK(w.status == CLEAVE_CANCELLED);
  CHECK(kill(pid, SIGCONT) == 0);
  DO(open_context(&c)); /* the session continues after the fault */
  DO(make_leaf(c, numbers, 4, 5, false, &x));
  MUST(cleave_rpc_sync(rt, c, n.b, &x, 1, 0, NULL, &out, e));
  cleave_tensor_free(&out);
  return close_context(c);
}

/* Worker B is stopped and cannot answer APPLY, the request to change its weights by the step. A's
 * weights are restored, and B's weights, too, when B continues. */
static bool unanswered_step_is_rolled_back(pid_t pid) {
  net n;
  cleave_context c;
  cleave_reference loss;
  cleave_optimizer *sgd;
  cleave_step_result step_result;
  cleave_tensor weight_of_a = {0}, weight_of_b = {0}, weight_after = {0};
  DO(make_network("late", "master", &n));
  cleave_module *both[] = {n.a, n.b};
  cleave_group group = {.modules = both, .n_modules = 2, .lr = 0.5, .momentum = 0.9};
  MUST(cleave_optimizer_new(rt, &group, 1, 0, &sgd, e));
  DO(read_weight(n.a, "0.weight", &weight_of_a));
  DO(read_weight(n.b, "0.weight", &weight_of_b));
  DO(open_context(&c));
  DO(run_network(&n, c, 3, NULL, NULL, &loss));
  DO(backward(c, loss, false));
  DO(stop_process_and_threads(pid));
  MUST(cleave_step(rt, sgd, c, 200, &step_result, e));
  CHECK(step_result.number == 1);
  DO(read_weight(n.a, "0.weight", &weight_after));
  CHECK(kill(pid, SIGCONT) == 0);
  CHECK(memcmp(weight_of_a.data, weight_after.data, 60) == 0);
  DO(read_weight(n.b, "0.weight", &weight_after));
  CHECK(memcmp(weight_of_b.data, weight_after.data, 40) == 0);
  REFUSED(cleave_context_close(rt, c, 0, e), CLEAVE_DEADLINE, "took the step");
  DO(open_context(&c)); /* repeats the step, which now succeeds */
  DO(run_network(&n, c, 3, NULL, NULL, &loss));
  DO(backward(c, loss, false));
  MUST(cleave_step(rt, sgd, c, 0, &step_result, e));
  CHECK(step_result.number == 1);
  DO(close_context(c));
  DO(read_weight(n.a, "0.weight", &weight_after));
  CHECK(memcmp(weight_of_a.data, weight_after.data, 60) != 0);
  cleave_tensor_free(&weight_of_a);
  cleave_tensor_free(&weight_of_b);
  cleave_tensor_free(&weight_after);
  return true;
}

/* ---- memory over many steps ------------------------------------------------------------------ */

static long get_resident_kb(void) {
  long resident_pages = 0, total_pages = 0;
  FILE *f = fopen("/proc/self/statm", "r");
  if (f && fscanf(f, "%ld %ld", &total_pages, &resident_pages) != 2) resident_pages = 0;
  if (f) fclose(f);
  return resident_pages * 4;
}

/* Lets api_soak.py measure the memory of all processes. The script answers with a line when it has
 * measured. */
static void wait_for_measurement(const char *label) {
  char line[16];
  printf("%s\n", label);
  fflush(stdout);
  if (!fgets(line, sizeof line, stdin)) return;
}

static bool run_many_steps(long n_steps) {
  net n;
  cleave_optimizer *sgd;
  struct timespec begin_time, end_time;
  long warmed_up_kb = 0;
  DO(make_network("many", "master", &n));
  cleave_module *both[] = {n.a, n.b};
  cleave_group group = {.modules = both, .n_modules = 2, .lr = 0.01};
  MUST(cleave_optimizer_new(rt, &group, 1, 0, &sgd, e));
  for (long i = 0; i < n_steps; i++) {
    cleave_context c;
    cleave_reference loss;
    if (i == n_steps / 5) {
      wait_for_measurement("warm");
      warmed_up_kb = get_resident_kb();
      clock_gettime(CLOCK_MONOTONIC, &begin_time);
    }
    DO(open_context(&c));
    DO(run_network(&n, c, (unsigned)i % 7, NULL, NULL, &loss));
    DO(backward(c, loss, false));
    MUST(cleave_step(rt, sgd, c, 0, NULL, e));
    DO(close_context(c));
  }
  clock_gettime(CLOCK_MONOTONIC, &end_time);
  wait_for_measurement("done");
  double seconds = (double)(end_time.tv_sec - begin_time.tv_sec) +
                   (double)(end_time.tv_nsec - begin_time.tv_nsec) / 1e9;
  printf("%.0f us per step, resident %+ld KiB over %ld steps\n",
         1e6 * seconds / (double)(n_steps - n_steps / 5), get_resident_kb() - warmed_up_kb,
         n_steps - n_steps / 5);
  CHECK(SANITIZED || get_resident_kb() - warmed_up_kb < 1024);
  return true;
}

int main(int argc, char **argv) {
  if (argc < 5) return 2;
  pid_t pid = (pid_t)atol(argv[4]);
  if (!open_session(argv)) {
    print_result(false, "open");
    return 1;
  }
  if (argc > 5) {
    cleave_leaks leaks;
    print_result(run_many_steps(atol(argv[5])), "memory_stays_flat_over_many_steps");
    snprintf(why, sizeof why, "see the report");
    print_result(cleave_close(rt, 0, &leaks, NULL) == CLEAVE_OK &&
                     leaks.contexts + leaks.references + leaks.futures == 0,
                 "close_finds_nothing_left");
    printf("%u contexts, %u references, %u futures left open\n", leaks.contexts, leaks.references,
           leaks.futures);
    return n_failed != 0;
  } else {
    print_result(deadlines_and_closing_end_a_wait(pid), "deadlines_and_closing_end_a_wait");
    print_result(unanswered_step_is_rolled_back(pid), "unanswered_step_is_rolled_back");
    print_result(worker_killed_before_the_step_leaves_the_other_unchanged(pid),
                 "worker_killed_before_the_step_leaves_the_other_unchanged");
  }
  (void)cleave_close(rt, 0, NULL, NULL);
  return n_failed != 0;
}
