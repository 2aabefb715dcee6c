/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests tensors of artifacts, files of weights at a worker, in memory: one copy for all users, in
 * pages that cannot be written, freed with the last user. test_device_bases tests the copies on
 * devices.
 */
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
// cmocka.h requires the headers above
#include <cmocka.h>

#include "worker/store/store.h"

enum { N = 3000, BYTES = N * 4 };

static clv_err err;

static clv_shared_tensor_key make_key(const char *owner, const char *name) {
  return (clv_shared_tensor_key){
      .owner = owner, .artifact = {{1}}, .name = name, .dtype = CLV_F32, .shape = CLV_SHAPE(N)};
}

/* Source of the values of a tensor that modules share. Counts the requests for parts, fails while
 * n_refusals_left is above 0, and waits while is_slow. */
typedef struct source {
  int n_fills, n_refusals_left;
  bool is_slow, has_started;
} source;

static clv_code fill_values(void *user, size_t first, size_t n, void *to, clv_err *e) {
  source *s = user;
  s->n_fills++;
  __atomic_store_n(&s->has_started, true, __ATOMIC_RELEASE);
  while (__atomic_load_n(&s->is_slow, __ATOMIC_ACQUIRE)) usleep(1000);
  if (s->n_refusals_left-- > 0) return clv_fail(e, CLV_DATA_LOSS, "it is damaged");
  for (size_t i = 0; i < n; i++) ((float *)to)[i] = (float)(first + i + 7);
  return CLV_OK;
}

/* Asserts that x has the numbers that `fill_values` writes. */
static void assert_filled(const float *x, size_t n) {
  for (size_t i = 0; i < n; i++)
    if (x[i] != (float)(i + 7)) fail_msg("number %zu is %g", i, (double)x[i]);
}

static clv_tensor *acquire_tensor(clv_shared_tensors *b, const char *owner, const char *name,
                                  source *s) {
  const clv_shared_tensor_key key = make_key(owner, name);
  clv_tensor *t = NULL;
  if (clv_shared_tensors_acquire(b, &key, NULL, fill_values, s, &t, &err) != CLV_OK)
    fail_msg("%s", err.text);
  return t;
}

static clv_shared_tensors *open_bases(void) {
  clv_shared_tensors *b = NULL;
  assert_int_equal(clv_shared_tensors_new(&b, &err), CLV_OK);
  return b;
}

static void same_key_shares_one_copy(void **state) {
  (void)state;
  clv_shared_tensors *b = open_bases();
  source s = {0};
  clv_tensor *first = acquire_tensor(b, "a", "w", &s), *second = acquire_tensor(b, "a", "w", &s);
  assert_ptr_equal(first->data, second->data);
  assert_int_equal(s.n_fills, 1);
  assert_int_equal(clv_shared_tensors_bytes(b), BYTES);
  clv_tensor *tensor_of_other_owner = acquire_tensor(b, "b", "w", &s),
             *tensor_of_other_name = acquire_tensor(b, "a", "v", &s);
  assert_ptr_not_equal(tensor_of_other_owner->data, first->data);
  assert_ptr_not_equal(tensor_of_other_name->data, first->data);
  assert_int_equal(s.n_fills, 3);
  clv_tensor_unref(first);
  assert_filled(second->data, N);
  clv_tensor_unref(second);
  assert_int_equal(clv_shared_tensors_bytes(b), 2 * BYTES);
  clv_tensor_unref(tensor_of_other_owner);
  clv_tensor_unref(tensor_of_other_name);
  assert_int_equal(clv_shared_tensors_bytes(b), 0);
  clv_shared_tensors_free(b);
}

/* A request for a tensor whose key differs in any field gets another copy. */
static void different_key_gets_its_own_copy(void **state) {
  (void)state;
  clv_shared_tensors *b = open_bases();
  source s = {0};
  clv_tensor *t = acquire_tensor(b, "", "w", &s), *other_tensors[3];
  clv_shared_tensor_key key[3] = {make_key("", "w"), make_key("", "w"), make_key("", "w")};
  key[0].artifact.bytes[31] = 1;
  key[1].dtype = CLV_I32;
  key[2].shape = CLV_SHAPE(N / 2, 2);
  for (int i = 0; i < 3; i++) {
    assert_int_equal(
        clv_shared_tensors_acquire(b, &key[i], NULL, fill_values, &s, &other_tensors[i], &err),
        CLV_OK);
    assert_ptr_not_equal(other_tensors[i]->data, t->data);
    clv_tensor_unref(other_tensors[i]);
  }
  clv_tensor_unref(t);
  clv_shared_tensors_free(b);
}

static void write_to_a_base_kills_the_process(void **state) {
  (void)state;
  clv_shared_tensors *b = open_bases();
  source s = {0};
  clv_tensor *t = acquire_tensor(b, "a", "w", &s);
  pid_t child = fork();
  if (!child) {
    signal(SIGSEGV, SIG_DFL);
    *(volatile char *)t->data = 1;
    _exit(0);
  }
  int status;
  assert_int_equal(waitpid(child, &status, 0), child);
  /* a sanitizer reports the fault and exits */
  assert_true(WIFSIGNALED(status) || WEXITSTATUS(status) != 0);
  clv_tensor_unref(t);
  clv_shared_tensors_free(b);
}

typedef struct acquiring_thread {
  clv_shared_tensors *b;
  source *s;
  clv_code result_code;
  clv_tensor *t;
} acquiring_thread;

static void *acquire_in_thread(void *user) {
  acquiring_thread *k = user;
  const clv_shared_tensor_key key = make_key("a", "w");
  clv_err why;
  k->result_code = clv_shared_tensors_acquire(k->b, &key, NULL, fill_values, k->s, &k->t, &why);
  return NULL;
}

static bool has_caller_left(void *user) {
  (void)user;
  return true;
}

static void waiter_during_a_fill_can_leave_or_take_over(void **state) {
  (void)state;
  clv_shared_tensors *b = open_bases();
  source s = {.is_slow = true, .n_refusals_left = 1}, waiting_source = {0};
  acquiring_thread k = {.b = b, .s = &s};
  pthread_t thread;
  clv_tensor *t = NULL;
  const clv_shared_tensor_key key = make_key("a", "w");
  const clv_cancel_hook caller_left_hook = {has_caller_left, NULL};
  assert_int_equal(pthread_create(&thread, NULL, acquire_in_thread, &k), 0);
  while (!__atomic_load_n(&s.has_started, __ATOMIC_ACQUIRE)) usleep(1000);
  assert_int_equal(clv_shared_tensors_acquire(b, &key, &caller_left_hook, fill_values,
                                              &waiting_source, &t, &err),
                   CLV_CANCELLED);
  assert_int_equal(waiting_source.n_fills, 0);
  __atomic_store_n(&s.is_slow, false, __ATOMIC_RELEASE);
  /* the waiting request fills the tensor from its own source after the first request has failed */
  t = acquire_tensor(b, "a", "w", &waiting_source);
  pthread_join(thread, NULL);
  assert_int_equal(k.result_code, CLV_DATA_LOSS);
  assert_int_equal(waiting_source.n_fills, 1);
  clv_tensor_unref(t);
  assert_int_equal(clv_shared_tensors_bytes(b), 0);
  clv_shared_tensors_free(b);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(same_key_shares_one_copy),
      cmocka_unit_test(different_key_gets_its_own_copy),
      cmocka_unit_test(write_to_a_base_kills_the_process),
      cmocka_unit_test(waiter_during_a_fill_can_leave_or_take_over),
  };
  return cmocka_run_group_tests_name("bases", tests, NULL, NULL);
}
