/* SPDX-License-Identifier: Apache-2.0
 *
 * Checks that the test programs of the C API share, and the small network that most of them run.
 */
#ifndef CLEAVE_TEST_API_INT_H
#define CLEAVE_TEST_API_INT_H

#include <cleave.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static cleave_runtime *rt;
/* nodes at which the modules a and b are loaded: "master" or the name of a worker */
static const char *at_a, *at_b;
/* digest of the results by the hash FNV-1a */
static uint64_t digest = UINT64_C(14695981039346656037);
static char why[1024]; /* reason for the failure of the present test */
static int n_failed;

/* ---- checks and helper functions of the tests ------------------------------------------------ */

#define CHECK(condition)                                                      \
  do {                                                                        \
    if (!(condition)) {                                                       \
      snprintf(why, sizeof why, "%s:%d: %s", __FILE__, __LINE__, #condition); \
      return false;                                                           \
    }                                                                         \
  } while (0)
#define MUST(call)                                                                     \
  do {                                                                                 \
    cleave_error must_;                                                                \
    memset(&must_, 0, sizeof must_);                                                   \
    cleave_error *e = &must_;                                                          \
    if ((call) != CLEAVE_OK) {                                                         \
      snprintf(why, sizeof why, "line %d: %s at '%s' %s: %s", __LINE__,                \
               cleave_status_name(must_.status), must_.node, must_.place, must_.text); \
      return false;                                                                    \
    }                                                                                  \
  } while (0)
/* Fails the test unless the call is refused with status `wanted` and a text that contains
 * `part`. */
#define REFUSED(call, wanted, part)                                                            \
  do {                                                                                         \
    cleave_error refused_;                                                                     \
    memset(&refused_, 0, sizeof refused_);                                                     \
    cleave_error *e = &refused_;                                                               \
    if ((call) != (wanted) || refused_.status != (wanted) || !strstr(refused_.text, (part))) { \
      snprintf(why, sizeof why, "line %d: %s: '%s' lacks '%s'", __LINE__,                      \
               cleave_status_name(refused_.status), refused_.text, (part));                    \
      return false;                                                                            \
    }                                                                                          \
  } while (0)

static inline void add_to_digest(const cleave_tensor *t) {
  const unsigned char *bytes = t->data;
  for (size_t i = 0; i < cleave_tensor_count(t) * 4; i++)
    digest = (digest ^ bytes[i]) * UINT64_C(1099511628211);
}

static inline void fill_with_random(float *to, size_t n, unsigned seed) {
  for (size_t i = 0; i < n; i++) {
    seed = seed * 1664525u + 1013904223u;
    to[i] = (float)(seed >> 8) / (float)(1u << 23) - 1;
  }
}

static inline bool is_near(float a, float b) { return fabsf(a - b) <= 1e-5f * fmaxf(1, fabsf(b)); }

static inline bool load_module(const char *name, const char *at, const char *layers, int64_t in,
                               cleave_module **ret) {
  cleave_module_options o = {.size = sizeof o, .name = name, .at = at, .seed = 7};
  cleave_input input = CLEAVE_INPUT(CLEAVE_F32, 4, in);
  MUST(cleave_load_layers(rt, &o, layers, &input, ret, e));
  return true;
}

static inline bool load_loss(const char *name, const char *at, int64_t width, cleave_module **ret) {
  cleave_module_options o = {.size = sizeof o, .name = name, .at = at};
  cleave_input input = CLEAVE_INPUT(CLEAVE_F32, 4, width);
  MUST(cleave_load_loss(rt, &o, "mse", &input, ret, e));
  return true;
}

static inline bool make_leaf(cleave_context c, const float *numbers, int64_t rows, int64_t width,
                             bool needs_gradient, cleave_reference *ret) {
  cleave_tensor t = CLEAVE_TENSOR_F32(numbers, rows, width);
  MUST(cleave_leaf(rt, c, &t, needs_gradient, ret, e));
  return true;
}

static inline bool read_gradient(cleave_context c, cleave_module *m, const char *name,
                                 cleave_tensor *ret) {
  MUST(cleave_gradient(rt, c, m, name, 0, ret, e));
  return true;
}

#define DO(call)               \
  do {                         \
    if (!(call)) return false; \
  } while (0)

/* The small network: x [4, 3] -> a (linear to 5, tanh) -> b (linear to 2) -> mse with target [4,
 * 2]. */
typedef struct net {
  cleave_module *a, *b, *loss;
} net;

static inline bool make_network(const char *prefix, const char *loss_at, net *n) {
  char name[64];
  snprintf(name, sizeof name, "%s a", prefix);
  DO(load_module(name, at_a, "[{op: linear, out: 5}, {op: tanh}]", 3, &n->a));
  snprintf(name, sizeof name, "%s b", prefix);
  DO(load_module(name, at_b, "[{op: linear, out: 2}]", 5, &n->b));
  snprintf(name, sizeof name, "%s loss", prefix);
  return load_loss(name, loss_at, 2, &n->loss);
}

static inline bool run_network(const net *n, cleave_context c, unsigned seed,
                               cleave_reference *ret_x, cleave_reference *ret_y,
                               cleave_reference *ret_loss) {
  float x[12], t[8];
  fill_with_random(x, 12, seed);
  fill_with_random(t, 8, seed + 1);
  cleave_reference h, y, target, in;
  DO(make_leaf(c, x, 4, 3, true, &in));
  DO(make_leaf(c, t, 4, 2, false, &target));
  MUST(cleave_call(rt, c, n->a, &in, 1, &h, e));
  MUST(cleave_call(rt, c, n->b, &h, 1, &y, e));
  MUST(cleave_call(rt, c, n->loss, (cleave_reference[]){y, target}, 2, ret_loss, e));
  if (ret_x) *ret_x = in;
  if (ret_y) *ret_y = y;
  return true;
}

static inline bool open_context(cleave_context *c) {
  MUST(cleave_context_open(rt, NULL, c, e));
  return true;
}

static inline bool backward(cleave_context c, cleave_reference root, bool retain) {
  MUST(cleave_backward(rt, c, &root, 1, retain, 0, e));
  return true;
}

static inline cleave_status backward_weighted(cleave_context c, const cleave_reference *roots,
                                              const float *weights, size_t n, cleave_error *e) {
  const cleave_backward_options o = {.size = sizeof o, .weights = weights};
  return cleave_backward_with(rt, c, roots, n, &o, e);
}

static inline bool close_context(cleave_context c) {
  MUST(cleave_context_close(rt, c, 0, e));
  return true;
}

static inline bool read_weight(cleave_module *m, const char *name, cleave_tensor *ret) {
  MUST(cleave_weight_read(rt, m, name, 0, ret, e));
  return true;
}

/* Stops a process, and waits until all its threads have stopped, because SIGSTOP reaches each one
 * separately. */
static inline bool stop_process_and_threads(pid_t pid) {
  CHECK(kill(pid, SIGSTOP) == 0);
  usleep(100000);
  return true;
}

/* Opens the runtime of all tests from the arguments PROGRAM SESSION A B ...; A, B: nodes of the
 * modules. */
static inline bool open_session(char **argv) {
  cleave_options options = {.size = sizeof options, .deadline_ms = 20000};
  at_a = argv[2];
  at_b = argv[3];
  MUST(cleave_open(argv[1], &options, &rt, e));
  return true;
}

/* ---- running the tests ----------------------------------------------------------------------- */

typedef struct test {
  bool (*run_test)(void);
  const char *name;
} test;
#define TEST(f) \
  { f, #f }

/* Prints the result of a test as a line that the runner, a Python script, reads. */
static inline void print_result(bool ok, const char *name) {
  printf(ok ? "ok %s\n" : "not ok %s: %s\n", name, why);
  fflush(stdout);
  n_failed += !ok;
}

static inline int run_tests(const test *list, size_t n) {
  for (size_t i = 0; i < n; i++) {
    snprintf(why, sizeof why, "see the report");
    print_result(list[i].run_test(), list[i].name);
  }
  return n_failed != 0;
}
#define RUN_ALL(list) run_tests(list, sizeof list / sizeof *list)

static inline void print_digest(void) { printf("digest %016llx\n", (unsigned long long)digest); }

/* main of a program whose tests share one runtime. Arguments: PROGRAM SESSION A B ... */
static inline int run_tests_in_session(int argc, char **argv,
                                       bool (*open_runtime_function)(char **), const test *list,
                                       size_t n) {
  if (argc < 4) return 2;
  if (!open_runtime_function(argv)) {
    print_result(false, "open");
    return 1;
  }
  (void)run_tests(list, n);
  print_digest();
  print_result(cleave_close(rt, 0, NULL, NULL) == CLEAVE_OK, "close");
  return n_failed != 0;
}
#define RUN_SESSION(argc, argv, open, list) \
  run_tests_in_session(argc, argv, open, list, sizeof list / sizeof *list)

#endif
