/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests the writer of files of state: the order of its files, and files that are withdrawn while
 * they wait, while they are written and while the disk syncs them. This test plays the disk: a file
 * is synced when the test lets it.
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

#include "worker/service/service_int.h"

enum { N = 1 << 20, SAVES = 6 };

static char folder[] = "/tmp/clv-writer-XXXXXX";
static clv_err err;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static bool is_disk_blocked; /* fsync of a file waits until this is false */
static int n_syncing;        /* calls of fsync that wait */
static char done_order[SAVES + 1];
static int n_done;

int fsync(int fd) {
  (void)fd;
  pthread_mutex_lock(&lock);
  n_syncing++;
  pthread_cond_broadcast(&changed);
  while (is_disk_blocked) pthread_cond_wait(&changed, &lock);
  n_syncing--;
  pthread_mutex_unlock(&lock);
  return 0;
}

static void set_blocked(bool blocked) {
  pthread_mutex_lock(&lock);
  is_disk_blocked = blocked;
  pthread_cond_broadcast(&changed);
  pthread_mutex_unlock(&lock);
}

static void wait_until_disk_syncs(void) {
  pthread_mutex_lock(&lock);
  while (!n_syncing) pthread_cond_wait(&changed, &lock);
  pthread_mutex_unlock(&lock);
}

static void record_done(clv_state_save *save) {
  pthread_mutex_lock(&lock);
  assert_true(n_done < SAVES);
  done_order[n_done++] = save->name[0];
  pthread_cond_broadcast(&changed);
  pthread_mutex_unlock(&lock);
}

static void wait_for_done(int n) {
  pthread_mutex_lock(&lock);
  while (n_done < n) pthread_cond_wait(&changed, &lock);
  pthread_mutex_unlock(&lock);
}

/* ---- a worker with two sessions -------------------------------------------------------------- */

typedef struct fixture {
  clv_allow_spec allow_specs[2];
  clv_worker_config config;
  clv_service service;
  clv_session session_a, session_b;
  clv_weights_tensor weights_list;
  clv_state_save saves[SAVES];
} fixture;

static void begin_service(fixture *f) {
  *f = (fixture){.allow_specs = {{.identity = "spiffe://a", .state_bytes = 1 << 30},
                                 {.identity = "spiffe://b", .state_bytes = 1 << 30}}};
  n_done = 0;
  memset(done_order, 0, sizeof done_order);
  f->config.allow = f->allow_specs;
  f->config.n_allow = 2;
  f->config.log.lines_per_minute = 1;
  pthread_mutex_init(&f->service.lock, NULL);
  assert_int_equal(clv_settings_new(&f->config, &f->service.settings, &err), CLV_OK);
  assert_int_equal(clv_states_open(folder, &f->service.state_files, &err), CLV_OK);
  assert_int_equal(clv_state_writer_new(&f->service, &f->service.state_writer, &err), CLV_OK);
  f->session_a.settings = f->session_b.settings = f->service.settings;
  strcpy(f->session_a.owner, "spiffe://a");
  strcpy(f->session_b.owner, "spiffe://b");
  f->weights_list = (clv_weights_tensor){
      .name = "w", .dtype = CLV_F32, .shape = CLV_SHAPE(N), .data = calloc(N, 4)};
}

static void add_save(fixture *f, int i, const clv_session *s, const char *name) {
  f->saves[i] =
      (clv_state_save){.name = name, .list = &f->weights_list, .n = 1, .on_done = record_done};
  assert_int_equal(clv_state_writer_add(f->service.state_writer, s, &f->saves[i], &err), CLV_OK);
}

static bool is_on_disk(fixture *f, const char *owner, const char *name) {
  CLV_AUTO(clv_state_list_done) clv_state_list l = {0};
  assert_int_equal(clv_states_list(f->service.state_files, owner, name, "", &l, &err), CLV_OK);
  return l.n == 1;
}

static void end_service(fixture *f) {
  clv_state_writer_free(f->service.state_writer);
  clv_states_free(f->service.state_files);
  clv_settings_unref(f->service.settings);
  pthread_mutex_destroy(&f->service.lock);
  free((void *)(uintptr_t)f->weights_list.data);
  char command[128];
  snprintf(command, sizeof command, "test -z \"$(find %s -name '*.tmp')\"", folder);
  assert_int_equal(system(command), 0);
}

/* ---- order and withdrawal of files ----------------------------------------------------------- */

static void identities_take_turns(void **state) {
  fixture f;
  (void)state;
  begin_service(&f);
  set_blocked(true);
  add_save(&f, 0, &f.session_a, "1");
  wait_until_disk_syncs();
  add_save(&f, 1, &f.session_a, "2");
  add_save(&f, 2, &f.session_a, "3");
  add_save(&f, 3, &f.session_b, "4");
  assert_int_equal(clv_state_writer_counts(f.service.state_writer).n_pending, 4);
  set_blocked(false);
  wait_for_done(4);
  assert_string_equal(done_order, "1423");
  for (int i = 0; i < 4; i++) {
    assert_int_equal(f.saves[i].code, CLV_OK);
    assert_true(f.saves[i].bytes > N * 4);
  }
  const clv_state_writes w = clv_state_writer_counts(f.service.state_writer);
  assert_true(w.n_written == 4 && w.n_failed == 0 && w.last_write_ns > 0);
  assert_true(is_on_disk(&f, "spiffe://a", "1") && is_on_disk(&f, "spiffe://b", "4"));
  end_service(&f);
}

/* The session's copy is freed as soon as the file is withdrawn, although the disk still syncs. */
static void withdrawn_file_is_dropped_and_its_copy_is_freed(void **state) {
  fixture f;
  (void)state;
  begin_service(&f);
  set_blocked(true);
  add_save(&f, 0, &f.session_a, "x");
  wait_until_disk_syncs();
  add_save(&f, 1, &f.session_a, "y");
  clv_state_writer_withdraw(f.service.state_writer, &f.saves[0]);
  clv_state_writer_withdraw(f.service.state_writer, &f.saves[1]);
  memset((void *)(uintptr_t)f.weights_list.data, 1, N * 4);
  free((void *)(uintptr_t)f.weights_list.data);
  memset(f.saves, 0xff, sizeof f.saves);
  f.weights_list.data = calloc(N, 4);
  set_blocked(false);
  add_save(&f, 2, &f.session_b, "z");
  wait_for_done(1);
  assert_string_equal(done_order, "z");
  assert_false(is_on_disk(&f, "spiffe://a", "x"));
  assert_false(is_on_disk(&f, "spiffe://a", "y"));
  end_service(&f);
}

/* Files are withdrawn at any moment, also while they are written; nothing is reported
 * afterwards. */
static void files_are_withdrawn_at_any_moment(void **state) {
  fixture f;
  (void)state;
  begin_service(&f);
  for (int i = 0; i < 40; i++) {
    int n_done_before = n_done;
    add_save(&f, 0, &f.session_a, "w");
    usleep((useconds_t)(i * 100));
    clv_state_writer_withdraw(f.service.state_writer, &f.saves[0]);
    memset(&f.saves[0], 0xff, sizeof f.saves[0]);
    pthread_mutex_lock(&lock);
    assert_in_range(n_done - n_done_before, 0, 1);
    n_done = 0;
    pthread_mutex_unlock(&lock);
  }
  end_service(&f);
}

static void stopping_worker_drops_waiting_files(void **state) {
  fixture f;
  (void)state;
  begin_service(&f);
  set_blocked(true);
  add_save(&f, 0, &f.session_a, "p");
  wait_until_disk_syncs();
  add_save(&f, 1, &f.session_b, "q");
  clv_state_writer_withdraw(f.service.state_writer, &f.saves[0]);
  clv_state_writer_withdraw(f.service.state_writer, &f.saves[1]);
  set_blocked(false);
  end_service(&f);
  assert_int_equal(n_done, 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(identities_take_turns),
      cmocka_unit_test(withdrawn_file_is_dropped_and_its_copy_is_freed),
      cmocka_unit_test(files_are_withdrawn_at_any_moment),
      cmocka_unit_test(stopping_worker_drops_waiting_files),
  };
  if (!mkdtemp(folder)) return 1;
  int failed = cmocka_run_group_tests(tests, NULL, NULL);
  char command[64];
  snprintf(command, sizeof command, "rm -r %s", folder);
  return system(command) == 0 ? failed : 1;
}
