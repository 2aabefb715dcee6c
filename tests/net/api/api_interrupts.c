/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests cleave_options.interrupted while a worker is stopped, and that a forked child inherits no
 * connections. Run as api_interrupts SESSION.yaml A B PID: A and B are the nodes of the modules.
 * PID is the process of A's worker, which the test stops and continues.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>

#include "api_int.h"

enum { DEADLINE_MS = 8000, FLAG_DELAY_MS = 60, MAX_RETURN_MS = 250, MAX_CLOSE_MS = 900 };

static atomic_bool interrupt_flag;
static const char *session;
static pid_t worker;

/* ---- the interrupt function of the runtime --------------------------------------------------- */

static bool is_interrupted(void *user) {
  (void)user;
  return atomic_load(&interrupt_flag);
}

static double now_ms(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

/* Sets interrupt_flag after FLAG_DELAY_MS. */
static void *set_flag_later(void *user) {
  (void)user;
  usleep(FLAG_DELAY_MS * 1000);
  atomic_store(&interrupt_flag, true);
  return NULL;
}

/* Fails unless the call returns CLEAVE_CANCELLED within max_ms after interrupt_flag was set. */
#define INTERRUPTED(call, max_ms)                                                      \
  do {                                                                                 \
    pthread_t thread_;                                                                 \
    CHECK(pthread_create(&thread_, NULL, set_flag_later, NULL) == 0);                  \
    double began_ = now_ms();                                                          \
    cleave_error error_ = {0}, *e = &error_;                                           \
    cleave_status status_ = (call);                                                    \
    double took_ = now_ms() - began_;                                                  \
    pthread_join(thread_, NULL);                                                       \
    atomic_store(&interrupt_flag, false);                                              \
    snprintf(why, sizeof why, "line %d: %s after %.0f ms: %s", __LINE__,               \
             cleave_status_name(status_), took_, error_.text);                         \
    if (status_ != CLEAVE_CANCELLED || took_ > FLAG_DELAY_MS + (max_ms)) return false; \
  } while (0)

/* ---- interrupted calls ----------------------------------------------------------------------- */

static net small_network;
static cleave_module *unloaded_module;
static cleave_optimizer *optimizer;

static bool make_modules(void) {
  cleave_context c;
  cleave_reference loss;
  DO(make_network("small", "master", &small_network));
  DO(load_module("fresh", at_a, "[{op: linear, out: 2}]", 3, &unloaded_module));
  cleave_module *both[] = {small_network.a, small_network.b};
  const cleave_group g = {.modules = both, .n_modules = 2, .lr = 0.5};
  MUST(cleave_optimizer_new(rt, &g, 1, 0, &optimizer, e));
  DO(open_context(&c));
  DO(run_network(&small_network, c, 1, NULL, NULL, &loss));
  DO(backward(c, loss, false));
  return close_context(c);
}

static bool interrupt_ends_waits_for_values_and_modules(void) {
  const char *bias[] = {"0.bias"};
  float x[12] = {0};
  cleave_context c;
  cleave_reference in, y, loss;
  cleave_future f;
  cleave_tensor t = {0};
  bool is_ready = true;
  size_t index;
  cleave_link_measure m;
  DO(open_context(&c));
  DO(make_leaf(c, x, 4, 3, true, &in));
  DO(run_network(&small_network, c, 2, NULL, NULL, &loss));
  DO(stop_process_and_threads(worker));
  MUST(cleave_rpc_async(rt, c, small_network.a, &in, 1, &y, &f, e));
  INTERRUPTED(cleave_to_here(rt, y, 0, &t, e), MAX_RETURN_MS);
  INTERRUPTED(cleave_future_wait(rt, f, 0, e), MAX_RETURN_MS);
  INTERRUPTED(cleave_wait_any(rt, &f, 1, 0, &index, e), MAX_RETURN_MS);
  MUST(cleave_future_poll(rt, f, &is_ready, e));
  CHECK(!is_ready);
  INTERRUPTED(cleave_call(rt, c, unloaded_module, &in, 1, &y, e), MAX_RETURN_MS);
  INTERRUPTED(cleave_weight_read(rt, small_network.a, "0.bias", 0, &t, e), MAX_RETURN_MS);
  INTERRUPTED(cleave_measure(rt, 1, 0, &m, e), MAX_RETURN_MS);
  INTERRUPTED(cleave_backward(rt, c, &loss, 1, false, 0, e), MAX_RETURN_MS);
  CHECK(kill(worker, SIGCONT) == 0);
  MUST(cleave_wait(rt, f, 0, &t, e));
  cleave_tensor_free(&t);
  DO(close_context(c));
  DO(open_context(&c));
  DO(make_leaf(c, x, 4, 3, true, &in));
  /* loads the module, which the interrupted call could not load */
  MUST(cleave_call(rt, c, unloaded_module, &in, 1, &y, e));
  DO(stop_process_and_threads(worker));
  INTERRUPTED(cleave_context_close(rt, c, 0, e), MAX_RETURN_MS);
  INTERRUPTED(cleave_parameter_freeze(rt, unloaded_module, bias, 1, 0, e), MAX_RETURN_MS);
  CHECK(kill(worker, SIGCONT) == 0);
  MUST(cleave_parameter_freeze(rt, unloaded_module, bias, 1, 0, e));
  return true;
}

static bool interrupt_ends_open_and_close(void) {
  const cleave_options o = {
      .size = sizeof o, .deadline_ms = DEADLINE_MS, .interrupted = is_interrupted};
  cleave_runtime *other_runtime;
  cleave_context c;
  cleave_reference loss;
  DO(open_context(&c));
  DO(run_network(&small_network, c, 3, NULL, NULL, &loss));
  DO(stop_process_and_threads(worker));
  INTERRUPTED(cleave_open(session, &o, &other_runtime, e), MAX_RETURN_MS + 200);
  INTERRUPTED(cleave_close(rt, 0, NULL, e), MAX_CLOSE_MS);
  CHECK(kill(worker, SIGCONT) == 0);
  MUST(cleave_open(session, &o, &other_runtime, e));
  MUST(cleave_close(other_runtime, 0, NULL, e));
  return true;
}

/* ---- forked children ------------------------------------------------------------------------- */

/* Returns 1 if this process has a socket that is connected to another machine's or process's TCP
 * port, else 0. A forked child exits with this result. */
static int find_connected_socket(void) {
  for (int fd = 3; fd < 1024; fd++) {
    struct sockaddr_storage peer;
    socklen_t peer_bytes = sizeof peer;
    if (getpeername(fd, (struct sockaddr *)&peer, &peer_bytes) == 0 && peer.ss_family != AF_UNIX)
      return 1;
  }
  return 0;
}

/* Runs a step, which shows that the connections of this process still work. */
static bool run_one_step(void) {
  cleave_context c;
  cleave_reference loss;
  DO(open_context(&c));
  DO(run_network(&small_network, c, 4, NULL, NULL, &loss));
  DO(backward(c, loss, false));
  MUST(cleave_step(rt, optimizer, c, 0, NULL, e));
  return close_context(c);
}

static bool child_processes_inherit_no_connections(void) {
  int status = -1;
  CHECK(find_connected_socket() == 1);
  pid_t child = fork();
  if (child == 0) _exit(find_connected_socket());
  CHECK(child > 0 && waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  return run_one_step();
}

int main(int argc, char **argv) {
  const cleave_options o = {
      .size = sizeof o, .deadline_ms = DEADLINE_MS, .interrupted = is_interrupted};
  cleave_error e = {0};
  if (argc < 5) return 2;
  session = argv[1];
  at_a = argv[2];
  at_b = argv[3];
  worker = (pid_t)atoi(argv[4]);
  bool is_ready = cleave_open(session, &o, &rt, &e) == CLEAVE_OK && make_modules();
  if (e.text[0]) snprintf(why, sizeof why, "%.900s", e.text);
  print_result(is_ready, "open");
  if (!is_ready) return 1;
  print_result(child_processes_inherit_no_connections(), "child_processes_inherit_no_connections");
  print_result(interrupt_ends_waits_for_values_and_modules(), "waits_for_values_and_modules_end");
  (void)kill(worker, SIGCONT);
  if (n_failed) return 1;
  print_result(interrupt_ends_open_and_close(), "opening_and_closing_end");
  (void)kill(worker, SIGCONT);
  return n_failed != 0;
}
