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

/* Acceptance test 11. B is killed between backward and step: A's weights do not change, the error
 * names B, and A continues alone. Either the step fails or the next call does, depending on when
 * the loss is noticed. */
static bool worker_killed_before_the_step_leaves_the_other_unchanged(pid_t pid) {
  net n;
  cleave_context c;
  cleave_reference loss, x, y;
  cleave_optimizer *sgd;
  cleave_tensor before = {0}, after = {0};
  float numbers[12];
  fill_with_random(numbers, 12, 1);
  DO(make_network("killed", at_a, &n));
  cleave_module *both[] = {n.a, n.b};
  cleave_group group = {.modules = both, .n_modules = 2, .lr = 0.5};
  MUST(cleave_optimizer_new(rt, &group, 1, 0, &sgd, e));
  DO(read_weight(n.a, "0.weight", &before));
  DO(open_context(&c));
  DO(run_network(&n, c, 3, NULL, NULL, &loss));
  DO(backward(c, loss, false));
  CHECK(kill(pid, SIGKILL) == 0);
  cleave_error error = {0};
  cleave_status stepped = cleave_step(rt, sgd, c, 0, NULL, NULL);
  CHECK(stepped == CLEAVE_OK || stepped == CLEAVE_UNAVAILABLE);
  DO(read_weight(n.a, "0.weight", &after));
  CHECK(memcmp(before.data, after.data, 60) == 0);
  CHECK(cleave_backward(rt, c, &loss, 1, false, 0, &error) == CLEAVE_UNAVAILABLE);
  CHECK(strcmp(error.node, at_b) == 0 && strstr(error.text, "was lost"));
  CHECK(cleave_context_close(rt, c, 0, NULL) == CLEAVE_UNAVAILABLE);
  DO(open_context(&c));
  DO(make_leaf(c, numbers, 4, 3, false, &x));
  MUST(cleave_rpc_sync(rt, c, n.a, &x, 1, 0, &y, &after, e));
  REFUSED(cleave_call(rt, c, n.b, &y, 1, &y, e), CLEAVE_UNAVAILABLE, "was lost");
  cleave_tensor_free(&before);
  cleave_tensor_free(&after);
  return close_context(c);
}

typedef struct waiting {
  cleave_reference y;
  cleave_status status;
} waiting;

static void *wait_for_value(void *user) {
  waiting *w = user;
  cleave_tensor t = {0};
  w->status = cleave_to_here(rt, w->y, 0, &t, NULL);
  cleave_tensor_free(&t);
  return NULL;
}

/* Worker B is stopped by SIGSTOP. A fetch ends at its deadline, and closing the context ends a
 * fetch that waits. */
static bool deadlines_and_closing_end_a_wait(pid_t pid) {
  net n;
  cleave_context c;
  cleave_reference x, y;
  cleave_tensor out = {0};
  float numbers[20];
  struct timespec begin, end;
  pthread_t thread;
  fill_with_random(numbers, 20, 1);
  DO(make_network("slow", at_a, &n));
  DO(open_context(&c));
  DO(make_leaf(c, numbers, 4, 5, false, &x));
  MUST(cleave_rpc_sync(rt, c, n.b, &x, 1, 0, &y, &out, e));
  DO(stop_process_and_threads(pid));
  MUST(cleave_call(rt, c, n.b, &x, 1, &y, e));
  clock_gettime(CLOCK_MONOTONIC, &begin);
  REFUSED(cleave_to_here(rt, y, 300, &out, e), CLEAVE_DEADLINE, "slow b");
  clock_gettime(CLOCK_MONOTONIC, &end);
  double seconds =
      (double)(end.tv_sec - begin.tv_sec) + (double)(end.tv_nsec - begin.tv_nsec) / 1e9;
  CHECK(seconds >= 0.3 && seconds < 2);
  waiting w = {.y = y};
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

/* Worker B is stopped and cannot answer APPLY. A's weights are restored, and B's weights, too, when
 * B continues. */
static bool unanswered_step_is_rolled_back(pid_t pid) {
  net n;
  cleave_context c;
  cleave_reference loss;
  cleave_optimizer *sgd;
  cleave_step_result done;
  cleave_tensor a = {0}, b = {0}, after = {0};
  DO(make_network("late", "master", &n));
  cleave_module *both[] = {n.a, n.b};
  cleave_group group = {.modules = both, .n_modules = 2, .lr = 0.5, .momentum = 0.9};
  MUST(cleave_optimizer_new(rt, &group, 1, 0, &sgd, e));
  DO(read_weight(n.a, "0.weight", &a));
  DO(read_weight(n.b, "0.weight", &b));
  DO(open_context(&c));
  DO(run_network(&n, c, 3, NULL, NULL, &loss));
  DO(backward(c, loss, false));
  DO(stop_process_and_threads(pid));
  MUST(cleave_step(rt, sgd, c, 200, &done, e));
  CHECK(done.number == 1);
  DO(read_weight(n.a, "0.weight", &after));
  CHECK(kill(pid, SIGCONT) == 0);
  CHECK(memcmp(a.data, after.data, 60) == 0);
  DO(read_weight(n.b, "0.weight", &after));
  CHECK(memcmp(b.data, after.data, 40) == 0);
  REFUSED(cleave_context_close(rt, c, 0, e), CLEAVE_DEADLINE, "took the step");
  DO(open_context(&c)); /* repeats the step, which now succeeds */
  DO(run_network(&n, c, 3, NULL, NULL, &loss));
  DO(backward(c, loss, false));
  MUST(cleave_step(rt, sgd, c, 0, &done, e));
  CHECK(done.number == 1);
  DO(close_context(c));
  DO(read_weight(n.a, "0.weight", &after));
  CHECK(memcmp(a.data, after.data, 60) != 0);
  cleave_tensor_free(&a);
  cleave_tensor_free(&b);
  cleave_tensor_free(&after);
  return true;
}

/* ---- memory over many steps ------------------------------------------------------------------ */

static long get_resident_kb(void) {
  long pages = 0, skip = 0;
  FILE *f = fopen("/proc/self/statm", "r");
  if (f && fscanf(f, "%ld %ld", &skip, &pages) != 2) pages = 0;
  if (f) fclose(f);
  return pages * 4;
}

/* Lets api_soak.py measure the memory of all processes. The script answers with a line when it has
 * measured. */
static void wait_for_measurement(const char *when) {
  char line[16];
  printf("%s\n", when);
  fflush(stdout);
  if (!fgets(line, sizeof line, stdin)) return;
}

static bool run_many_steps(long steps) {
  net n;
  cleave_optimizer *sgd;
  struct timespec begin, end;
  long warm_kb = 0;
  DO(make_network("many", "master", &n));
  cleave_module *both[] = {n.a, n.b};
  cleave_group group = {.modules = both, .n_modules = 2, .lr = 0.01};
  MUST(cleave_optimizer_new(rt, &group, 1, 0, &sgd, e));
  for (long i = 0; i < steps; i++) {
    cleave_context c;
    cleave_reference loss;
    if (i == steps / 5) {
      wait_for_measurement("warm");
      warm_kb = get_resident_kb();
      clock_gettime(CLOCK_MONOTONIC, &begin);
    }
    DO(open_context(&c));
    DO(run_network(&n, c, (unsigned)i % 7, NULL, NULL, &loss));
    DO(backward(c, loss, false));
    MUST(cleave_step(rt, sgd, c, 0, NULL, e));
    DO(close_context(c));
  }
  clock_gettime(CLOCK_MONOTONIC, &end);
  wait_for_measurement("done");
  double seconds =
      (double)(end.tv_sec - begin.tv_sec) + (double)(end.tv_nsec - begin.tv_nsec) / 1e9;
  printf("%.0f us per step, resident %+ld KiB over %ld steps\n",
         1e6 * seconds / (double)(steps - steps / 5), get_resident_kb() - warm_kb,
         steps - steps / 5);
  CHECK(SANITIZED || get_resident_kb() - warm_kb < 1024);
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
    cleave_leaks left;
    print_result(run_many_steps(atol(argv[5])), "memory_stays_flat_over_many_steps");
    snprintf(why, sizeof why, "see the report");
    print_result(cleave_close(rt, 0, &left, NULL) == CLEAVE_OK &&
                     left.contexts + left.references + left.futures == 0,
                 "close_finds_nothing_left");
    printf("%u contexts, %u references, %u futures left open\n", left.contexts, left.references,
           left.futures);
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
