/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests that every function whose name says that it frees, closes, releases or stops accepts NULL.
 * Each function is called in a process of its own. tests/closers.py writes the table of functions
 * from the headers, so a new function cannot be forgotten.
 */
#include "tests/unit/must.h"

#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

typedef struct closer {
  const char *name;
  bool (*call_with_null)(
      void); /* calls the function with NULL; returns false if it reported an error */
} closer;

#include "closers.inc"

/* Calls the function in a child process. Returns what went wrong; NULL: nothing. */
static const char *describe_outcome(const closer *c) {
  int status;
  fflush(NULL);
  pid_t child = fork();
  assert_true(child >= 0);
  if (child == 0) {
    signal(SIGSEGV, SIG_DFL); /* cmocka's handler would end the test in the child */
    _exit(c->call_with_null() ? 0 : 1);
  }
  assert_int_equal(waitpid(child, &status, 0), child);
  if (WIFSIGNALED(status)) return "dies";
  return WEXITSTATUS(status) == 0 ? NULL : "fails";
}

static void every_close_function_accepts_null(void **state) {
  (void)state;
  uint32_t n_bad = 0;
  for (size_t i = 0; i < CLV_COUNT(closers); i++) {
    const char *what = describe_outcome(&closers[i]);
    if (what) print_error("%s(NULL) %s\n", closers[i].name, what);
    n_bad += what != NULL;
  }
  assert_int_equal(n_bad, 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_close_function_accepts_null),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
