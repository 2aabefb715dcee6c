/* SPDX-License-Identifier: Apache-2.0
 *
 * Functions that the programs api_pipeline, api_runtime and api_schedule share: reading arguments,
 * opening a runtime for one test, running the small network once, training steps.
 *
 * Usage of each: PROGRAM SESSION A B direct|via_master|alone threads|single [MODE ...]
 */
#ifndef CLEAVE_TEST_API_PIPELINE_INT_H
#define CLEAVE_TEST_API_PIPELINE_INT_H

#include <time.h>

#include "api_int.h"

static const char *session, *transfer;
static bool is_single_threaded; /* true: runtimes are opened without a thread of their own */

static const cleave_reference no_reference = {0};

/* ---- opening and closing runtimes ------------------------------------------------------------ */

static inline bool open_runtime(const cleave_options *options, cleave_runtime **ret) {
  cleave_options o = options ? *options : (cleave_options){.size = sizeof(cleave_options)};
  o.deadline_ms = 20000;
  MUST(cleave_open(session, &o, ret, e));
  return true;
}

/* Closes the runtime, and returns false if anything opened in it was not freed. */
static inline bool close_runtime(cleave_runtime *r) {
  cleave_leaks leaks;
  MUST(cleave_close(r, 0, &leaks, e));
  CHECK(leaks.contexts + leaks.references + leaks.futures == 0);
  return true;
}

/* Opens a runtime for one test, runs `body` and closes the runtime. If one of these fails, makes
 * the calling function return false. */
#define IN_RUNTIME(options, body)                                             \
  do {                                                                        \
    cleave_runtime *outer_ = rt;                                              \
    bool fine_ = open_runtime((options), &rt) && (body) && close_runtime(rt); \
    rt = outer_;                                                              \
    if (!fine_) return false;                                                 \
  } while (0)

static inline uint64_t now_ms(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * 1000u + (uint64_t)t.tv_nsec / 1000000u;
}

/* ---- one pass through the network, its gradients and weights --------------------------------- */

/* Runs x -> a -> b -> loss. The call of a waits until `after`, an earlier value of a, has had its
 * backward; no_reference: a does not wait. */
static inline bool run_network_after(const net *n, cleave_context c, unsigned seed,
                                     cleave_reference after, cleave_reference *ret_h,
                                     cleave_reference *ret_loss) {
  float x[12], t[8];
  fill_with_random(x, 12, seed);
  fill_with_random(t, 8, seed + 1);
  cleave_reference in, target, h, y;
  const cleave_call_options call_options = {.size = sizeof call_options, .after = after};
  DO(make_leaf(c, x, 4, 3, false, &in));
  DO(make_leaf(c, t, 4, 2, false, &target));
  MUST(cleave_call_with(rt, c, n->a, &in, 1, &call_options, &h, e));
  MUST(cleave_call(rt, c, n->b, &h, 1, &y, e));
  MUST(cleave_call(rt, c, n->loss, (cleave_reference[]){y, target}, 2, ret_loss, e));
  if (ret_h) *ret_h = h;
  return true;
}

static inline bool copy_gradient(cleave_context c, cleave_module *m, const char *name, float *to,
                                 size_t n) {
  cleave_tensor g = {0};
  DO(read_gradient(c, m, name, &g));
  CHECK(cleave_tensor_count(&g) == n);
  memcpy(to, g.data, n * sizeof *to);
  add_to_digest(&g);
  cleave_tensor_free(&g);
  return true;
}

static inline bool copy_weight(cleave_module *m, const char *name, float *to, size_t n) {
  cleave_tensor w = {0};
  DO(read_weight(m, name, &w));
  CHECK(cleave_tensor_count(&w) == n);
  memcpy(to, w.data, n * sizeof *to);
  add_to_digest(&w);
  cleave_tensor_free(&w);
  return true;
}

/* Weights, or gradients, of both modules of the small network. */
typedef struct numbers {
  float a[15], b[10];
} numbers;

static inline bool are_equal_numbers(const numbers *p, const numbers *q) {
  return memcmp(p, q, sizeof *p) == 0;
}

static inline bool copy_weights(const net *n, numbers *ret) {
  return copy_weight(n->a, "0.weight", ret->a, 15) && copy_weight(n->b, "0.weight", ret->b, 10);
}

/* ---- training steps, each in a context that is closed or ended afterwards -------------------- */

typedef enum ending { CLOSE, END } ending;

static inline bool train_steps(const net *n, cleave_optimizer *const *optimizers, int n_optimizers,
                               unsigned first_seed, int n_steps, ending context_ending) {
  for (int i = 0; i < n_steps; i++) {
    cleave_context c;
    cleave_reference loss;
    DO(open_context(&c));
    DO(run_network_after(n, c, first_seed + (unsigned)i, no_reference, NULL, &loss));
    DO(backward(c, loss, false));
    for (int k = 0; k < n_optimizers; k++) MUST(cleave_step(rt, optimizers[k], c, 0, NULL, e));
    if (context_ending == END)
      MUST(cleave_context_end(rt, c, e));
    else
      DO(close_context(c));
  }
  return true;
}

/* ---- running the tests ----------------------------------------------------------------------- */

/* Reads the program's arguments up to MODE. The program itself reads the arguments after MODE. */
static inline bool read_arguments(int argc, char **argv, const char **ret_mode) {
  if (argc < 6) return false;
  session = argv[1];
  at_a = argv[2];
  at_b = argv[3];
  transfer = argv[4];
  is_single_threaded = strcmp(argv[5], "single") == 0;
  *ret_mode = argc > 6 ? argv[6] : "";
  return true;
}

#endif
