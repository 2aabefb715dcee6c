/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests the lease of references step by step: api_lease SESSION.yaml A B C [single] executes the
 * commands that test_lease.py writes to its standard input, and answers each. A, B and C are
 * workers. A owns values of 4 MiB that B uses. Each value needs an output of C, so it cannot be
 * computed while the runner has stopped C.
 */
#include "api_int.h"

enum { ROWS = 1024, IN = 6, WIDE = 1024, SLOTS = 6 };

/* `source` at worker C feeds `wide` at A. A keeps the value of `wide`, and `narrow` at B reads it.
 * `wider` is at A, too, and needs more memory than `wide`. */
static cleave_module *source, *wide, *wider, *narrow;

/* A value that A keeps, and its use at B. */
static struct slot {
  cleave_context owner_context, use_context; /* contexts of A's calls and of B's call */
  cleave_kept kept_value;
  /* value that `narrow` computes at B; in a slot that begin_at_owner filled: value of `wide` at
   * A */
  cleave_reference value;
} slots[SLOTS];

/* Loads a module for a batch of one row. Memory for more rows is allocated at its first call. */
static bool load_one_row_module(const char *name, const char *at, const char *layers, int64_t in,
                                cleave_module **ret) {
  cleave_module_options o = {.size = sizeof o, .name = name, .at = at, .seed = 7};
  cleave_input input = CLEAVE_INPUT(CLEAVE_F32, 1, in);
  MUST(cleave_load_layers(rt, &o, layers, &input, ret, e));
  MUST(cleave_module_place(rt, *ret, false, 0, e));
  return true;
}

static bool load_modules(const char *at_c) {
  DO(load_one_row_module("source", at_c, "[{op: linear, out: 6}, {op: tanh}]", IN, &source));
  DO(load_one_row_module("wide", at_a, "[{op: linear, out: 1024}, {op: tanh}]", IN, &wide));
  DO(load_one_row_module("wider", at_a, "[{op: linear, out: 2048}]", IN, &wider));
  DO(load_one_row_module("narrow", at_b, "[{op: linear, out: 2}]", WIDE, &narrow));
  return true;
}

/* Opens a context whose calls keep nothing for a backward. */
static bool open_evaluation_context(cleave_context *ret) {
  cleave_context_options o = {.size = sizeof o, .name = "spring", .evaluation = true};
  MUST(cleave_context_open(rt, &o, ret, e));
  return true;
}

/* Calls `source` with random numbers that depend on the slot's index. Then calls `wide` with the
 * output of `source`, which the worker of `source` sends to the node of `wide`. */
static bool call_wide_module(cleave_context c, const struct slot *s, cleave_reference *ret) {
  float numbers[ROWS * IN];
  cleave_reference x, y;
  fill_with_random(numbers, ROWS * IN, (unsigned)(s - slots));
  DO(make_leaf(c, numbers, ROWS, IN, false, &x));
  MUST(cleave_call(rt, c, source, &x, 1, &y, e));
  MUST(cleave_call(rt, c, wide, &y, 1, ret, e));
  return true;
}

static bool use_kept_value(struct slot *s) {
  cleave_reference y, u;
  DO(open_evaluation_context(&s->owner_context));
  DO(call_wide_module(s->owner_context, s, &y));
  MUST(cleave_keep(rt, y, &s->kept_value, e));
  DO(open_evaluation_context(&s->use_context));
  MUST(cleave_kept_use(rt, s->use_context, s->kept_value, &u, e));
  MUST(cleave_call(rt, s->use_context, narrow, &u, 1, &s->value, e));
  return true;
}

/* Ends both contexts of a slot and releases its kept value, without waiting for the answer of a
 * worker that is lost or silent. */
static bool end_context(struct slot *s) {
  (void)!cleave_context_end(rt, s->use_context, NULL);
  MUST(cleave_context_end(rt, s->owner_context, e));
  MUST(cleave_kept_release(rt, s->kept_value, e));
  return true;
}

static bool is_same_tensor(cleave_tensor *a, cleave_tensor *b) {
  size_t n = cleave_tensor_count(a);
  CHECK(n == cleave_tensor_count(b) && memcmp(a->data, b->data, 4 * n) == 0);
  cleave_tensor_free(a);
  cleave_tensor_free(b);
  return true;
}

/* True if the kept value equals the value that the same calls compute now. */
static bool is_kept_value_unchanged(struct slot *s) {
  cleave_context c;
  cleave_reference y;
  cleave_tensor got = {0}, wanted = {0};
  MUST(cleave_kept_fetch(rt, s->kept_value, 0, &got, e));
  DO(open_evaluation_context(&c));
  DO(call_wide_module(c, s, &y));
  MUST(cleave_to_here(rt, y, 0, &wanted, e));
  DO(close_context(c));
  return is_same_tensor(&got, &wanted);
}

static bool is_kept_value_freed(struct slot *s) {
  cleave_tensor t = {0};
  REFUSED(cleave_kept_fetch(rt, s->kept_value, 0, &t, e), CLEAVE_NOT_FOUND, "silent for a lease");
  return true;
}

/* True if the call of `narrow` with the kept value has the same result as a call of `narrow` with a
 * leaf of the same numbers. */
static bool is_use_correct(struct slot *s) {
  cleave_context c;
  cleave_reference x, y;
  cleave_tensor value = {0}, got = {0}, wanted = {0};
  MUST(cleave_to_here(rt, s->value, 0, &got, e));
  MUST(cleave_kept_fetch(rt, s->kept_value, 0, &value, e));
  DO(open_evaluation_context(&c));
  MUST(cleave_leaf(rt, c, &value, false, &x, e));
  MUST(cleave_call(rt, c, narrow, &x, 1, &y, e));
  MUST(cleave_to_here(rt, y, 0, &wanted, e));
  DO(close_context(c));
  cleave_tensor_free(&value);
  return is_same_tensor(&got, &wanted);
}

static bool is_unanswered_use_dropped(struct slot *s) {
  cleave_tensor t = {0};
  REFUSED(cleave_to_here(rt, s->value, 0, &t, e), CLEAVE_NOT_FOUND, "silent for a lease");
  return true;
}

static bool is_lost_user_reported(struct slot *s) {
  cleave_tensor t = {0};
  REFUSED(cleave_to_here(rt, s->value, 0, &t, e), CLEAVE_UNAVAILABLE, "was lost");
  return true;
}

/* Opens a context that runs at A alone. end_at_owner fetches the context's value later. */
static bool begin_at_owner(struct slot *s) {
  float numbers[IN];
  cleave_reference x;
  fill_with_random(numbers, IN, 5);
  DO(open_evaluation_context(&s->owner_context));
  DO(make_leaf(s->owner_context, numbers, 1, IN, false, &x));
  MUST(cleave_call(rt, s->owner_context, wide, &x, 1, &s->value, e));
  return true;
}

static bool end_at_owner(struct slot *s) {
  cleave_tensor t = {0};
  MUST(cleave_to_here(rt, s->value, 0, &t, e));
  cleave_tensor_free(&t);
  return close_context(s->owner_context);
}

static cleave_status call_with_more_rows(cleave_error *e) {
  cleave_context c;
  cleave_reference x, y;
  cleave_tensor t = {0};
  float numbers[ROWS * IN];
  fill_with_random(numbers, ROWS * IN, 9);
  bool ok = open_evaluation_context(&c) && make_leaf(c, numbers, ROWS, IN, false, &x);
  cleave_status status = ok ? cleave_call(rt, c, wider, &x, 1, &y, e) : CLEAVE_INTERNAL;
  if (status == CLEAVE_OK) status = cleave_to_here(rt, y, 0, &t, e);
  cleave_tensor_free(&t);
  (void)!cleave_context_close(rt, c, 0, NULL);
  return status;
}

/* True if A has no space for another large value because A stores a kept value that no node
 * uses. */
static bool is_owner_memory_full(struct slot *s) {
  (void)s;
  REFUSED(call_with_more_rows(e), CLEAVE_EXHAUSTED, "quota");
  return true;
}

static bool can_owner_allocate(struct slot *s) {
  (void)s;
  MUST(call_with_more_rows(e));
  return true;
}

/* True if the slot's handle is the only object that was not released. */
static bool closes_with_one_leaked_handle(struct slot *s) {
  cleave_leaks leaks;
  char line[200];
  snprintf(line, sizeof line, "kept reference %llu of module 'wide' at %s, context 'spring'\n",
           (unsigned long long)s->kept_value.id, at_a);
  (void)!cleave_close(rt, 0, &leaks, NULL);
  if (leaks.kept == 1 && strstr(leaks.text, line)) return true;
  snprintf(why, sizeof why, "%u kept: %.900s", leaks.kept, leaks.text);
  return false;
}

static bool closes_without_leaks(struct slot *s) {
  cleave_leaks leaks;
  (void)s;
  MUST(cleave_close(rt, 0, &leaks, e));
  CHECK(leaks.kept == 0);
  return true;
}

static const struct {
  const char *name;
  bool (*run)(struct slot *s);
} steps[] = {
    {"hold", use_kept_value},
    {"let_go", end_context},
    {"is_there", is_kept_value_unchanged},
    {"is_gone", is_kept_value_freed},
    {"was_used", is_use_correct},
    {"use_was_let_go", is_unanswered_use_dropped},
    {"user_was_lost", is_lost_user_reported},
    {"begin_at_owner", begin_at_owner},
    {"end_at_owner", end_at_owner},
    {"is_crowded", is_owner_memory_full},
    {"has_room", can_owner_allocate},
    {"leaves", closes_with_one_leaked_handle},
    {"leaves_nothing", closes_without_leaks},
};

static bool run_command(const char *name, unsigned slot) {
  for (size_t i = 0; i < sizeof steps / sizeof *steps; i++)
    if (strcmp(steps[i].name, name) == 0 && slot < SLOTS) return steps[i].run(&slots[slot]);
  snprintf(why, sizeof why, "no such step: %s %u", name, slot);
  return false;
}

int main(int argc, char **argv) {
  char line[64], name[32];
  unsigned slot;
  if (argc < 5) return 2;
  cleave_options o = {.size = sizeof o, .deadline_ms = 20000, .single_thread = argc > 5};
  cleave_error e = {0};
  at_a = argv[2];
  at_b = argv[3];
  bool is_ready = cleave_open(argv[1], &o, &rt, &e) == CLEAVE_OK && load_modules(argv[4]);
  if (e.status) snprintf(why, sizeof why, "%s: %s", cleave_status_name(e.status), e.text);
  print_result(is_ready, "open");
  while (is_ready && fgets(line, sizeof line, stdin)) {
    if (sscanf(line, "%31s %u", name, &slot) != 2) return 2;
    snprintf(why, sizeof why, "see the report");
    print_result(run_command(name, slot), name);
  }
  return n_failed != 0;
}
