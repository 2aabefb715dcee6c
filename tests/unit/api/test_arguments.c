/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests options that begin with their size: those of an older header, of a newer one, and of a
 * program that forgot the size. tests/e2e/test_nulls.c tests arguments that may not be NULL.
 */
#include "master/api/cleave.h"
#include "tests/unit/must.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

static cleave_runtime *rt;
static cleave_error e;

/* Context options of a program that was compiled with a later header, which has one more field. */
typedef struct newer_options {
  cleave_context_options known_fields;
  uint64_t newer_field;
} newer_options;

static void open_with_options(const void *options, bool *ret_opened) {
  cleave_context c;
  *ret_opened = cleave_context_open(rt, options, &c, &e) == CLEAVE_OK;
  if (*ret_opened) assert_int_equal(cleave_context_close(rt, c, 0, &e), CLEAVE_OK);
}

static void unknown_newer_fields_must_be_zero(void **state) {
  (void)state;
  bool has_opened;
  newer_options o = {.known_fields = {.size = sizeof o, .name = "spring"}};
  open_with_options(&o, &has_opened);
  assert_true(has_opened);
  o.newer_field = 1;
  open_with_options(&o, &has_opened);
  assert_false(has_opened);
  assert_int_equal(e.status, CLEAVE_UNIMPLEMENTED);
  assert_non_null(strstr(e.text, "cleave_context_options has "));
}

/* Options of a caller that was compiled with an older header end directly before or directly after
 * their field `name`. The library must not read fields beyond that size. */
static void fields_beyond_an_older_size_are_not_accessed(void **state) {
  (void)state;
  cleave_context c;
  cleave_leaks leaks;
  cleave_runtime *runtime;
  cleave_context_options o = {.size = offsetof(cleave_context_options, name), .name = "spring"};
  assert_int_equal(cleave_open_text("here.yaml", "version: 1\nname: alone\n", NULL, &runtime, &e),
                   CLEAVE_OK);
  assert_int_equal(cleave_context_open(runtime, &o, &c, &e), CLEAVE_OK);
  o.size = offsetof(cleave_context_options, evaluation);
  assert_int_equal(cleave_context_open(runtime, &o, &c, &e), CLEAVE_OK);
  assert_int_equal(cleave_close(runtime, 0, &leaks, &e), CLEAVE_OK);
  assert_int_equal(leaks.contexts, 2);
  assert_non_null(strstr(leaks.text, "'spring'"));
  assert_null(strstr(strstr(leaks.text, "'spring'") + 1, "'spring'"));
}

static void missing_size_is_refused_by_name(void **state) {
  (void)state;
  cleave_context c;
  cleave_runtime *runtime;
  cleave_module *m;
  cleave_input in = CLEAVE_INPUT(CLEAVE_F32, 2, 3);
  cleave_context_options oc = {.name = "spring"};
  cleave_module_options om = {.name = "front"};
  cleave_options o = {.single_thread = true};
  assert_int_equal(cleave_context_open(rt, &oc, &c, &e), CLEAVE_INVALID);
  assert_string_equal(e.text,
                      "cleave_context_options.size is 0: set it to sizeof(cleave_context_options)");
  assert_int_equal(cleave_load_layers(rt, &om, "[{op: relu}]", &in, &m, &e), CLEAVE_INVALID);
  assert_non_null(strstr(e.text, "cleave_module_options.size is 0"));
  assert_int_equal(cleave_open_text("here.yaml", "version: 1\nname: alone\n", &o, &runtime, &e),
                   CLEAVE_INVALID);
  assert_non_null(strstr(e.text, "cleave_options.size is 0"));
}

/* A session file with 64 workers is refused. If the options select 63 of these workers, the file is
 * accepted, and the call fails later, because the certificate files do not exist. */
static void the_64th_worker_is_refused_by_name(void **state) {
  (void)state;
  char text[16384];
  const char *worker_names[63];
  char names[63][8];
  cleave_runtime *none;
  int n = snprintf(text, sizeof text,
                   "version: 1\nname: many\n"
                   "tls: {ca: none.pem, cert: none.pem, key: none.key}\nworkers:\n");
  for (int i = 1; i <= 64; i++)
    n += snprintf(text + n, sizeof text - (size_t)n,
                  "  w%d: {address: \"127.0.0.1:1\", identity: \"spiffe://cleave/worker/w%d\"}\n",
                  i, i);
  assert_int_equal(cleave_open_text("here.yaml", text, NULL, &none, &e), CLEAVE_EXHAUSTED);
  assert_non_null(strstr(e.text, "worker 'w64' of here.yaml would have name number 64"));
  assert_non_null(strstr(e.text, "cleave_options.workers"));
  for (int i = 0; i < 63; i++) {
    snprintf(names[i], sizeof names[i], "w%d", i + 2);
    worker_names[i] = names[i];
  }
  cleave_options o = {.size = sizeof o, .workers = worker_names, .n_workers = 63};
  assert_int_not_equal(cleave_open_text("here.yaml", text, &o, &none, &e), CLEAVE_EXHAUSTED);
  assert_non_null(strstr(e.text, "none."));
}

static int open_runtime(void **state) {
  (void)state;
  return cleave_open_text("here.yaml", "version: 1\nname: alone\n", NULL, &rt, &e) != CLEAVE_OK;
}

static int close_runtime(void **state) {
  (void)state;
  return cleave_close(rt, 0, NULL, &e) != CLEAVE_OK;
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(unknown_newer_fields_must_be_zero),
      cmocka_unit_test(fields_beyond_an_older_size_are_not_accessed),
      cmocka_unit_test(missing_size_is_refused_by_name),
      cmocka_unit_test(the_64th_worker_is_refused_by_name),
  };
  return cmocka_run_group_tests(tests, open_runtime, close_runtime);
}
