/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests how clv_tune_malloc sets malloc, in processes of their own: malloc keeps its settings.
 */
#include <malloc.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/net/fair/fair.h"
#include "tests/sanitized.h"
#include "tests/unit/scratch.h"

enum { THREADS = 8 };
static pthread_barrier_t all_have_allocated;

static void *allocate(void *unused) {
  void *volatile block = malloc(4096);
  pthread_barrier_wait(&all_have_allocated);
  free(block);
  return unused;
}

/* Returns the number of arenas that malloc has (`<heap nr=` in its own report). */
static int count_arenas(void) {
  char *report = NULL;
  size_t len = 0;
  int n = 0;
  FILE *f = open_memstream(&report, &len);
  malloc_info(0, f);
  fclose(f);
  for (const char *at = report; (at = strstr(at, "<heap nr=")) != NULL; at++) n++;
  free(report);
  return n;
}

/* Returns the number of arenas that threads which allocate at once make in a tuned process. */
static int count_arenas_of_tuned_process(const char *environment) {
  int status;
  pid_t child = fork();
  assert_true(child >= 0);
  if (child == 0) {
    pthread_t threads[THREADS];
    if (environment) setenv("MALLOC_ARENA_MAX", environment, 1);
    clv_tune_malloc();
    pthread_barrier_init(&all_have_allocated, NULL, THREADS);
    for (int i = 0; i < THREADS; i++) pthread_create(&threads[i], NULL, allocate, NULL);
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    _exit(count_arenas());
  }
  assert_int_equal(waitpid(child, &status, 0), child);
  assert_true(WIFEXITED(status));
  return WEXITSTATUS(status);
}

static void threads_share_two_arenas(void **state) {
  (void)state;
  if (CLV_SANITIZED) skip(); /* a sanitizer has its own malloc */
  assert_int_equal(count_arenas_of_tuned_process(NULL), 2);
}

static void limit_of_the_environment_counts(void **state) {
  (void)state;
  if (CLV_SANITIZED) skip(); /* a sanitizer has its own malloc */
  /* malloc reads the variable when the process begins, so the fork has malloc's default number */
  assert_true(count_arenas_of_tuned_process("64") > 2);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(threads_share_two_arenas),
      cmocka_unit_test(limit_of_the_environment_counts),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
