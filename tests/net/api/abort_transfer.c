/* SPDX-License-Identifier: Apache-2.0
 *
 * Fails a context on purpose while one of its tensors, of MIB MiB, is in flight to WORKER.
 *   abort_transfer SESSION.yaml WORKER MIB AFTER_MS
 * Prints `started NS` when the call with this tensor has returned. After AFTER_MS, prints `aborted
 * NS` and makes a call that fails, then prints `ended MS`: how long closing the context took. NS:
 * the monotonic clock of this machine.
 */
#include <time.h>

#include "api_int.h"

static uint64_t now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * UINT64_C(1000000000) + (uint64_t)t.tv_nsec;
}

static void print_line(const char *label, uint64_t number) {
  printf("%s %llu\n", label, (unsigned long long)number);
  fflush(stdout);
}

/* Loads a table of two rows at this node. A call for the third row fails, so ABORT is sent to every
 * other node. */
static bool load_failing_table(cleave_module **ret) {
  cleave_module_options o = {.size = sizeof o, .name = "table", .at = "master", .seed = 1};
  cleave_input in = CLEAVE_INPUT(CLEAVE_I64, 1, 1);
  MUST(cleave_load_layers(rt, &o, "[{op: embedding, rows: 2, out: 1}]", &in, ret, e));
  MUST(cleave_module_place(rt, *ret, false, 0, e));
  return true;
}

static bool load_wide_module(const char *at, int64_t width, cleave_module **ret) {
  cleave_module_options o = {.size = sizeof o, .name = "large", .at = at, .seed = 1};
  cleave_input in = CLEAVE_INPUT(CLEAVE_F32, 1, width);
  MUST(cleave_load_layers(rt, &o, "[{op: mean, dim: 1}]", &in, ret, e));
  MUST(cleave_module_place(rt, *ret, false, 0, e));
  return true;
}

static bool send_large(cleave_context c, cleave_module *m, int64_t width) {
  float *numbers = calloc((size_t)width, sizeof *numbers);
  cleave_tensor t = CLEAVE_TENSOR_F32(numbers, 1, width);
  cleave_reference in, out;
  CHECK(numbers);
  MUST(cleave_leaf(rt, c, &t, false, &in, e));
  free(numbers);
  MUST(cleave_call(rt, c, m, &in, 1, &out, e));
  return true;
}

static bool call_failing_row(cleave_context c, cleave_module *table) {
  int64_t row = 2;
  cleave_tensor t = {.dtype = CLEAVE_I64, .rank = 2, .shape = {1, 1}, .data = &row}, got = {0};
  cleave_reference in, out;
  MUST(cleave_leaf(rt, c, &t, false, &in, e));
  MUST(cleave_call(rt, c, table, &in, 1, &out, e));
  REFUSED(cleave_to_here(rt, out, 0, &got, e), CLEAVE_INVALID,
          "row number of sample 0, place 0, is outside 0..1 (2)");
  return true;
}

static bool abort_during_transfer(const char *at, int64_t width, unsigned after_ms) {
  cleave_module *large, *table;
  cleave_context c;
  cleave_error e;
  DO(load_wide_module(at, width, &large));
  DO(load_failing_table(&table));
  DO(open_context(&c));
  DO(send_large(c, large, width));
  print_line("started", now_ns());
  usleep(after_ms * 1000);
  print_line("aborted", now_ns());
  DO(call_failing_row(c, table));
  uint64_t close_begin_ns = now_ns();
  (void)!cleave_context_close(rt, c, 0, &e); /* returns the failure of the context */
  print_line("ended", (now_ns() - close_begin_ns) / 1000000);
  return true;
}

int main(int argc, char **argv) {
  cleave_options o = {.size = sizeof o, .deadline_ms = 60000};
  cleave_error e = {0};
  if (argc != 5) return 2;
  if (cleave_open(argv[1], &o, &rt, &e) != CLEAVE_OK) {
    fprintf(stderr, "%s\n", e.text);
    return 1;
  }
  bool ok = abort_during_transfer(argv[2], atoll(argv[3]) << 18, (unsigned)atoi(argv[4]));
  if (!ok) fprintf(stderr, "%s\n", why);
  fflush(stdout);
  _exit(ok ? 0 : 1); /* cleave_close would wait for the rest of the transfer */
}
