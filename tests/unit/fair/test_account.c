/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests quotas of a session, of an identity and of a worker: to which account memory is charged,
 * what a refusal says, and that unused memory of a pool never causes a refusal.
 */
#include <pthread.h>

#include "tests/unit/engine/engine_test.h"

enum { KIB = 1024 };

/* Accounts with quotas: a worker of 64 KiB, an identity of 32 KiB there, and two sessions of that
 * identity. */
typedef struct fixture {
  clv_account *worker_account, *identity_account;
  clv_pool *pools[2];
} fixture;

static int set_up(void **state) {
  clv_err err = {0};
  fixture *f = calloc(1, sizeof *f);
  clv_account_options worker = {.owner_in_messages = "all sessions of this worker",
                                .limits = {[CLV_QUOTA_BYTES] = 64 * KIB},
                                .limit_keys = {[CLV_QUOTA_BYTES] = "memory_limit"},
                                .is_shared = true};
  assert_non_null(f);
  assert_ok(clv_account_new(&worker, &f->worker_account, &err));
  clv_account_options identity = {
      .parent = f->worker_account,
      .owner_in_messages = "all sessions of this identity",
      .limits = {[CLV_QUOTA_BYTES] = 32 * KIB, [CLV_QUOTA_TENSORS] = 6, [CLV_QUOTA_CALLS] = 3},
      .limit_keys = {[CLV_QUOTA_BYTES] = "allow[].bytes", [CLV_QUOTA_TENSORS] = "allow[].tensors"}};
  assert_ok(clv_account_new(&identity, &f->identity_account, &err));
  for (int i = 0; i < 2; i++) {
    CLV_AUTO(clv_account_unrefp) clv_account *session_account = NULL;
    clv_account_options session = {.parent = f->identity_account,
                                   .owner_in_messages = "this session",
                                   .limits = {[CLV_QUOTA_BYTES] = 24 * KIB},
                                   .limit_keys = {[CLV_QUOTA_BYTES] = "limits.session_bytes"}};
    assert_ok(clv_account_new(&session, &session_account, &err));
    assert_ok(clv_pool_new_for_account(session_account, &f->pools[i], &err));
  }
  *state = f;
  return 0;
}

static int tear_down(void **state) {
  fixture *f = *state;
  for (int i = 0; i < 2; i++) clv_pool_unref(f->pools[i]);
  clv_account_unref(f->identity_account);
  clv_account_unref(f->worker_account);
  free(f);
  return 0;
}

static clv_tensor *make_tensor(clv_pool *pool, int64_t bytes) {
  clv_err err = {0};
  clv_tensor *t;
  assert_ok(clv_pool_alloc_tensor(pool, CLV_U8, &CLV_SHAPE(bytes), &t, &err));
  return t;
}

static void assert_refused(clv_pool *pool, int64_t bytes, const char *text) {
  clv_err err = {0};
  clv_tensor *t;
  assert_int_equal(clv_pool_alloc_tensor(pool, CLV_U8, &CLV_SHAPE(bytes), &t, &err), CLV_EXHAUSTED);
  assert_string_equal(err.text, text);
}

static uint64_t get_used_bytes(const clv_account *a) {
  return clv_account_usage(a, CLV_QUOTA_BYTES);
}

static void exceeded_quota_is_named(void **state) {
  fixture *f = *state;
  clv_tensor *a = make_tensor(f->pools[0], 20 * KIB), *b = make_tensor(f->pools[1], 10 * KIB);
  assert_true(get_used_bytes(f->worker_account) == 30 * KIB &&
              get_used_bytes(f->identity_account) == 30 * KIB);
  assert_refused(
      f->pools[0], 5 * KIB,
      "5120 bytes more exceed the quota of this session: 20480 in use, the limit is 24576; "
      "raise limits.session_bytes in worker.yaml");
  assert_refused(
      f->pools[1], 3 * KIB,
      "3072 bytes more exceed the quota of all sessions of this identity: 30720 in use, the "
      "limit is 32768; raise allow[].bytes in worker.yaml");
  assert_int_equal(get_used_bytes(f->identity_account),
                   30 * KIB); /* the refused allocation is charged to no account */
  clv_tensor_unref(a);
  clv_tensor_unref(b);
  clv_pool_free_unused_tensors(f->pools[0]);
  clv_tensor_unref(make_tensor(f->pools[0], KIB));
  assert_int_equal(get_used_bytes(f->identity_account), 11 * KIB);
  assert_int_equal(clv_account_peak_usage(f->identity_account, CLV_QUOTA_BYTES), 30 * KIB);
}

static void idle_memory_of_one_session_is_given_to_another(void **state) {
  fixture *f = *state;
  /* the pool keeps the memory for the next allocation of that size */
  clv_tensor_unref(make_tensor(f->pools[0], 20 * KIB));
  assert_int_equal(clv_pool_charged_bytes(f->pools[0]), 20 * KIB);
  clv_tensor *b = make_tensor(f->pools[1], 20 * KIB);
  assert_int_equal(clv_pool_charged_bytes(f->pools[0]), 0);
  assert_int_equal(get_used_bytes(f->identity_account), 20 * KIB);
  assert_int_equal(clv_account_peak_usage(f->identity_account, CLV_QUOTA_BYTES), 20 * KIB);
  clv_tensor_unref(b);
}

static void tensors_are_counted_over_all_sessions(void **state) {
  fixture *f = *state;
  clv_tensor *t[6];
  for (int i = 0; i < 6; i++) t[i] = make_tensor(f->pools[i % 2], 16);
  assert_refused(
      f->pools[0], 16,
      "1 tensor more exceeds the quota of all sessions of this identity: 6 in use, the limit "
      "is 6; raise allow[].tensors in worker.yaml");
  clv_tensor_unref(t[1]);
  /* the quota counts tensors, so a tensor of another size and of the other session may replace
   * t[1] */
  t[1] = make_tensor(f->pools[0], 8);
  for (int i = 0; i < 6; i++) clv_tensor_unref(t[i]);
}

static void quota_errors_use_singular_and_plural(void **state) {
  fixture *f = *state;
  static const char *const wanted_texts[CLV_N_QUOTAS] = {
      [CLV_QUOTA_SESSIONS] = "1 session more exceeds the quota of x: 2 in use, the limit is 2",
      [CLV_QUOTA_BYTES] = "1 byte more exceeds the quota of x: 2 in use, the limit is 2",
      [CLV_QUOTA_TENSORS] = "1 tensor more exceeds the quota of x: 2 in use, the limit is 2",
      [CLV_QUOTA_CALLS] = "1 call more exceeds the quota of x: 2 in use, the limit is 2"};
  for (int is_shared = 0; is_shared < 2; is_shared++)
    for (clv_quota q = 0; q < CLV_N_QUOTAS; q++) {
      clv_err err = {0};
      CLV_AUTO(clv_account_unrefp) clv_account *a = NULL;
      clv_account_options o = {.parent = f->worker_account,
                               .owner_in_messages = "x",
                               .limits = {[0] = 0},
                               .is_shared = is_shared};
      o.limits[q] = 2;
      assert_ok(clv_account_new(&o, &a, &err));
      assert_ok(clv_account_charge(a, q, 2, &err));
      assert_int_equal(clv_account_charge(a, q, 1, &err), CLV_EXHAUSTED);
      size_t n = is_shared ? strcspn(wanted_texts[q], ":") : strlen(wanted_texts[q]);
      if (strlen(err.text) != n || strncmp(err.text, wanted_texts[q], n) != 0)
        fail_msg("%s", err.text);
      assert_int_equal(clv_account_charge(a, q, 3, &err), CLV_EXHAUSTED);
      assert_non_null(strstr(err.text, "s more exceed the quota"));
    }
}

static void shared_account_error_hides_usage_of_others(void **state) {
  fixture *f = *state;
  clv_err err = {0};
  CLV_AUTO(clv_account_unrefp) clv_account *stranger = NULL;
  clv_account_options o = {.parent = f->worker_account, .owner_in_messages = "a stranger"};
  assert_ok(clv_account_new(&o, &stranger, &err));
  assert_ok(clv_account_charge(stranger, CLV_QUOTA_BYTES, 60 * KIB, &err));
  assert_refused(
      f->pools[0], 5 * KIB,
      "5120 bytes more exceed the quota of all sessions of this worker; raise memory_limit in "
      "worker.yaml");
  clv_account_discharge(stranger, CLV_QUOTA_BYTES, 10 * KIB);
  assert_int_equal(get_used_bytes(f->worker_account), 50 * KIB);
}

static void freed_session_returns_all_its_charges(void **state) {
  fixture *f = *state;
  clv_err err = {0};
  clv_account *session_account = clv_pool_account(f->pools[1]);
  assert_ok(clv_account_charge(session_account, CLV_QUOTA_CALLS, 3, &err));
  assert_int_equal(clv_account_charge(session_account, CLV_QUOTA_CALLS, 1, &err), CLV_EXHAUSTED);
  assert_non_null(strstr(err.text, "1 call more"));
  assert_null(strstr(err.text, "worker.yaml")); /* no key of worker.yaml raises this limit */
  clv_tensor *t = make_tensor(f->pools[1], 7);
  clv_tensor_unref(t);
  clv_pool_unref(f->pools[1]);
  f->pools[1] = NULL;
  assert_int_equal(get_used_bytes(f->identity_account), 0);
  assert_int_equal(clv_account_usage(f->identity_account, CLV_QUOTA_CALLS), 0);
  assert_int_equal(clv_account_usage(f->identity_account, CLV_QUOTA_TENSORS), 0);
}

/* ---- accounts used by several threads -------------------------------------------------------- */

enum { THREADS = 4, ROUNDS = 2000 };

static void *allocate_and_free(void *user) {
  clv_pool *pool = user;
  clv_err err;
  for (int i = 0; i < ROUNDS; i++) {
    clv_tensor *t = NULL;
    clv_code code = clv_pool_alloc_tensor(pool, CLV_U8, &CLV_SHAPE(KIB * (1 + i % 7)), &t, &err);
    if (code == CLV_OK) clv_tensor_unref(t);
  }
  return NULL;
}

static void competing_sessions_stay_within_the_quota(void **state) {
  fixture *f = *state;
  pthread_t threads[THREADS];
  for (int i = 0; i < THREADS; i++)
    assert_int_equal(pthread_create(&threads[i], NULL, allocate_and_free, f->pools[i % 2]), 0);
  for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
  assert_true(get_used_bytes(f->identity_account) <= 32 * KIB);
  assert_int_equal(get_used_bytes(f->identity_account),
                   clv_pool_charged_bytes(f->pools[0]) + clv_pool_charged_bytes(f->pools[1]));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(exceeded_quota_is_named, set_up, tear_down),
      cmocka_unit_test_setup_teardown(idle_memory_of_one_session_is_given_to_another, set_up,
                                      tear_down),
      cmocka_unit_test_setup_teardown(tensors_are_counted_over_all_sessions, set_up, tear_down),
      cmocka_unit_test_setup_teardown(quota_errors_use_singular_and_plural, set_up, tear_down),
      cmocka_unit_test_setup_teardown(shared_account_error_hides_usage_of_others, set_up,
                                      tear_down),
      cmocka_unit_test_setup_teardown(freed_session_returns_all_its_charges, set_up, tear_down),
      cmocka_unit_test_setup_teardown(competing_sessions_stay_within_the_quota, set_up, tear_down),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
