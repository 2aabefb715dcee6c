/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests the attempts of sessions that have been at a worker, before and after its restart.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
// cmocka.h requires the headers above
#include <cmocka.h>

#include "worker/store/store.h"

static char folder[] = "/tmp/clv-epochs-XXXXXX";
static clv_err err;

static clv_epochs *open_epochs(const char *dir) {
  clv_epochs *e = NULL;
  if (clv_epochs_open(dir, &e, &err) != CLV_OK) fail_msg("%s", err.text);
  return e;
}

static clv_code register_session(clv_epochs *e, const char *identity, uint8_t session,
                                 uint64_t epoch, uint8_t config, bool *ret_changed) {
  uint8_t id[16] = {session};
  return clv_epochs_register(e, identity, id, epoch, &(clv_sha256){{config}}, ret_changed, &err);
}

static void older_epoch_is_refused_after_a_restart(void **state) {
  (void)state;
  bool has_changed;
  clv_epochs *e = open_epochs(folder);
  assert_int_equal(register_session(e, "spiffe://a/m", 1, 3, 1, &has_changed), CLV_OK);
  assert_int_equal(register_session(e, "spiffe://b/m", 1, 1, 1, &has_changed),
                   CLV_OK); /* a session of another identity with the same id */
  assert_int_equal(register_session(e, "spiffe://a/m", 2, 1, 1, &has_changed), CLV_OK);
  clv_epochs_free(e);
  e = open_epochs(folder); /* opens the folder again, as a restarted worker does */
  assert_int_equal(register_session(e, "spiffe://a/m", 1, 2, 1, &has_changed), CLV_PRECONDITION);
  assert_non_null(strstr(err.text, "attempt 2 of this session is refused: attempt 3, a newer one"));
  assert_int_equal(register_session(e, "spiffe://a/m", 1, 3, 1, &has_changed), CLV_OK);
  assert_false(has_changed);
  assert_int_equal(register_session(e, "spiffe://a/m", 1, 3, 2, &has_changed), CLV_PRECONDITION);
  assert_non_null(strstr(err.text, "another configuration"));
  assert_int_equal(register_session(e, "spiffe://a/m", 1, 4, 2, &has_changed), CLV_OK);
  assert_true(has_changed);
  clv_epochs_free(e);
}

static void remembered_sessions_per_identity_are_bounded(void **state) {
  (void)state;
  bool has_changed;
  clv_epochs *e = open_epochs(NULL);
  assert_int_equal(register_session(e, "spiffe://b/m", 1, 2, 1, &has_changed), CLV_OK);
  for (int i = 0; i < 100; i++)
    assert_int_equal(register_session(e, "spiffe://a/m", (uint8_t)i, 2, 1, &has_changed), CLV_OK);
  assert_int_equal(register_session(e, "spiffe://a/m", 36, 1, 1, &has_changed), CLV_PRECONDITION);
  assert_int_equal(register_session(e, "spiffe://b/m", 1, 1, 1, &has_changed), CLV_PRECONDITION);
  /* the oldest session of this identity was forgotten */
  assert_int_equal(register_session(e, "spiffe://a/m", 35, 1, 1, &has_changed), CLV_OK);
  clv_epochs_free(e);
}

static void damaged_epochs_file_is_located(void **state) {
  (void)state;
#define ID "0123456789abcdef0123456789abcdef"
#define FIRST "cleave-epochs 1\n"
#define REST " " ID " " ID ID " spiffe://a/m\n"
#define BYTES(text) text, sizeof text - 1
  static const struct {
    const char *text;
    size_t len;
    const char *error;
  } cases[] = {
      {BYTES(""), "epochs:1: not 'cleave-epochs 1'"},
      {BYTES("cleave-epochs 1"), "epochs:1: "},
      {BYTES("cleave-epochs 2\n"), "epochs:1: "},
      {BYTES(FIRST "3 " ID " " ID ID " spiffe://a/m more\n"), "epochs:2: not an epoch"},
      {BYTES(FIRST "3 " ID " " ID ID "\n"), "epochs:2: not an epoch"},
      {BYTES(FIRST "3 " ID " " ID ID " \n"), "epochs:2: not an epoch"},
      {BYTES(FIRST "0" REST), "epochs:2: not an epoch"},
      {BYTES(FIRST "99999999999999999999" REST), "epochs:2: not an epoch"},
      {BYTES(FIRST "-3" REST), "epochs:2: not an epoch"},
      {BYTES(FIRST "03" REST), "epochs:2: not an epoch"},
      {BYTES(FIRST " 3" REST), "epochs:2: not an epoch"},
      {BYTES(FIRST "3 x" REST), "epochs:2: not an epoch"},
      {BYTES(FIRST "3 " ID " " ID " spiffe://a/m\n"), "epochs:2: not an epoch"},
      {BYTES(FIRST "\n3" REST), "epochs:2: not an epoch"},
      {BYTES(FIRST "3" REST "\0\0\0\n"), "epochs:3: not an epoch"},
      {BYTES(FIRST "3 " ID " " ID ID " spiffe://a/m\0\n"), "epochs:2: not an epoch"},
      {BYTES(FIRST "3" REST "3 " ID " " ID ID " spiffe://b/mas"), "epochs:3: the line has no end"},
      {BYTES(FIRST "3" REST "2" REST), "epochs:3: a line before has the epoch of this session"},
  };
  for (size_t i = 0; i < CLV_COUNT(cases); i++) {
    char text[512];
    clv_epochs *e = open_epochs(NULL);
    memcpy(text, cases[i].text, cases[i].len);
    assert_int_equal(clv_epochs_parse(e, text, cases[i].len, "epochs", &err), CLV_DATA_LOSS);
    if (!strstr(err.text, cases[i].error)) fail_msg("case %zu: %s", i, err.text);
    clv_epochs_free(e);
  }
}

/* Two identities may use the same session id; the file then has a line for each of them. */
static void epochs_of_identities_are_read(void **state) {
  (void)state;
  char text[] = FIRST "3" REST "2 " ID " " ID ID " spiffe://b/m\n";
  clv_epochs *e = open_epochs(NULL);
  assert_int_equal(clv_epochs_parse(e, text, strlen(text), "epochs", &err), CLV_OK);
  clv_epochs_free(e);
}

static void missing_folder_is_named(void **state) {
  (void)state;
  clv_epochs *e = NULL;
  assert_int_not_equal(clv_epochs_open("/nowhere/at/all", &e, &err), CLV_OK);
  assert_non_null(strstr(err.text, "state_dir '/nowhere/at/all' does not exist; make it with"));
  assert_int_not_equal(clv_epochs_open("/dev/null", &e, &err), CLV_OK);
  assert_non_null(strstr(err.text, "state_dir '/dev/null' is not a folder; name one"));
}

/* A check writes nothing, and finds what an open would. */
static void check_reads_the_file_that_is_there(void **state) {
  (void)state;
  char path[64];
  snprintf(path, sizeof path, "%s/epochs", folder);
  unlink(path);
  assert_int_equal(clv_epochs_check(NULL, &err), CLV_OK);
  assert_int_equal(clv_epochs_check(folder, &err), CLV_OK);
  assert_int_equal(access(path, F_OK), -1);
  assert_int_equal(clv_file_write_durable(path, BYTES("no epochs\n"), 0600, &err), CLV_OK);
  assert_int_equal(clv_epochs_check(folder, &err), CLV_DATA_LOSS);
  assert_non_null(strstr(err.text, "/epochs:1: not 'cleave-epochs 1'"));
}

static int make_folder(void **state) {
  (void)state;
  return mkdtemp(folder) ? 0 : -1;
}

static int remove_folder(void **state) {
  (void)state;
  char path[64];
  snprintf(path, sizeof path, "%s/epochs", folder);
  unlink(path);
  return rmdir(folder);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(older_epoch_is_refused_after_a_restart),
      cmocka_unit_test(remembered_sessions_per_identity_are_bounded),
      cmocka_unit_test(damaged_epochs_file_is_located),
      cmocka_unit_test(epochs_of_identities_are_read),
      cmocka_unit_test(missing_folder_is_named),
      cmocka_unit_test(check_reads_the_file_that_is_there),
  };
  return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
