/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests that each function of cleave.h refuses a NULL argument with an error that names the
 * argument. Each function is called with each of its pointers NULL in turn, in a process of its
 * own. The other pointers point to zeros, which the function must not have read before it refuses.
 * tests/nulls.py writes the table of functions from the header.
 */
#include "master/api/cleave.h"
#include "tests/unit/must.h"

#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

static max_align_t zeros[256];
static void *const anything = zeros;
static cleave_error error;

static void any_callback(void *user, cleave_future future, const cleave_error *why) {
  (void)user, (void)future, (void)why;
}

typedef struct null_call {
  const char *function, *argument;
  cleave_status (*call)(void);
} null_call;

#include "nulls.inc"

enum { REFUSES_BY_NAME, DOES_NOT_REFUSE_BY_NAME, DIES };

static int check_refusal(const null_call *c) {
  char wanted[80];
  snprintf(wanted, sizeof wanted, "the argument %s is NULL", c->argument);
  bool is_refused = c->call() == CLEAVE_INVALID && error.status == CLEAVE_INVALID;
  return is_refused && strcmp(error.text, wanted) == 0 ? REFUSES_BY_NAME : DOES_NOT_REFUSE_BY_NAME;
}

static int describe_outcome(const null_call *c) {
  int status;
  fflush(NULL);
  pid_t child = fork();
  assert_true(child >= 0);
  if (child == 0) {
    signal(SIGSEGV, SIG_DFL); /* cmocka's handler would end the test in the child */
    alarm(5);
    _exit(check_refusal(c));
  }
  assert_int_equal(waitpid(child, &status, 0), child);
  return WIFSIGNALED(status) ? DIES : WEXITSTATUS(status);
}

static void null_argument_error_names_the_argument(void **state) {
  (void)state;
  uint32_t n_bad = 0;
  for (size_t i = 0; i < CLV_COUNT(null_calls); i++) {
    const null_call *c = &null_calls[i];
    int what = describe_outcome(c);
    if (what)
      print_error("%s with %s NULL %s\n", c->function, c->argument,
                  what == DIES ? "dies" : "does not say so");
    n_bad += what != REFUSES_BY_NAME;
  }
  assert_int_equal(n_bad, 0);
}

/* Functions without a status return a value for a NULL argument, such as 0 or "". */
static void getters_accept_null(void **state) {
  (void)state;
  cleave_link_totals counts = {.bytes_up = 1};
  cleave_get_link_totals(NULL, &counts);
  assert_true(counts.bytes_up == 0);
  cleave_get_link_totals(NULL, NULL);
  assert_null(cleave_node_name(NULL, 0));
  assert_null(cleave_module_name(NULL));
  assert_null(cleave_module_node(NULL));
  assert_null(cleave_module_device(NULL));
  assert_null(cleave_module_weight_name(NULL, 0));
  assert_null(cleave_parallel_module(NULL, 0));
  assert_int_equal(cleave_parallel_text(NULL, NULL, 0), 0);
  assert_int_equal(cleave_state_count(NULL, CLEAVE_STATE_WEIGHTS), 0);
  assert_int_equal(cleave_tensor_count(NULL), 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(null_argument_error_names_the_argument),
      cmocka_unit_test(getters_accept_null),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
