/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests tensors of artifacts, files of weights at a worker, in a device's memory: each device has
 * one copy for all its users, filled in parts, and zeroed before the device gets its memory back.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
// cmocka.h requires the headers above
#include <cmocka.h>

#include "tests/unit/far.h"
#include "worker/store/store.h"

enum { N = 3000, BYTES = N * 4, N_CHUNKED = CLV_SHARED_TENSOR_CHUNK_BYTES / 4 + N };

static clv_err err;

/* Source of the values of a tensor that modules share. Counts the requests for parts, and fails
 * while n_refusals_left is above 0. */
typedef struct source {
  int n_fills, n_refusals_left;
} source;

static clv_code fill_values(void *user, size_t first, size_t n, void *to, clv_err *e) {
  source *s = user;
  s->n_fills++;
  if (s->n_refusals_left-- > 0) return clv_fail(e, CLV_DATA_LOSS, "it is damaged");
  for (size_t i = 0; i < n; i++) ((float *)to)[i] = (float)(first + i + 7);
  return CLV_OK;
}

/* Asserts that x has the numbers that `fill_values` writes. */
static void assert_filled(const float *x, size_t n) {
  for (size_t i = 0; i < n; i++)
    if (x[i] != (float)(i + 7)) fail_msg("number %zu is %g", i, (double)x[i]);
}

static clv_shared_tensor_key make_key(const clv_backend *backend, int64_t n) {
  return (clv_shared_tensor_key){.owner = "a",
                                 .artifact = {{1}},
                                 .name = "w",
                                 .dtype = CLV_F32,
                                 .shape = CLV_SHAPE(n),
                                 .backend = backend};
}

static clv_shared_tensors *open_bases(void) {
  clv_shared_tensors *b = NULL;
  assert_int_equal(clv_shared_tensors_new(&b, &err), CLV_OK);
  return b;
}

static const clv_backend *get_device(int number) {
  return far_get_device(clv_backend_ref(), number);
}

static clv_tensor *acquire_tensor(clv_shared_tensors *b, const clv_backend *backend, int64_t n,
                                  source *s) {
  const clv_shared_tensor_key key = make_key(backend, n);
  clv_tensor *t = NULL;
  if (clv_shared_tensors_acquire(b, &key, NULL, fill_values, s, &t, &err) != CLV_OK)
    fail_msg("%s", err.text);
  assert_ptr_equal(t->device, backend);
  return t;
}

static void assert_filled_on_device(const clv_tensor *t) {
  float *values = malloc(t->bytes);
  assert_int_equal(clv_backend_get(t->device, values, t->data, t->bytes, &err), CLV_OK);
  assert_filled(values, t->n);
  free(values);
}

static size_t get_device_bytes_in_use(void) {
  size_t free_bytes, total;
  assert_int_equal(get_device(0)->memory->get_free_bytes(get_device(0), &free_bytes, &total, &err),
                   CLV_OK);
  return free_bytes;
}

/* The shared tensor is filled in parts. A second request for the same tensor waits for the first.
 */
static void base_is_stored_once_per_device(void **state) {
  (void)state;
  clv_shared_tensors *b = open_bases();
  source s = {0};
  size_t bytes_before = get_device_bytes_in_use();
  clv_tensor *host_tensor = acquire_tensor(b, NULL, N, &s),
             *first = acquire_tensor(b, get_device(0), N_CHUNKED, &s);
  assert_int_equal(s.n_fills, 3);
  assert_int_equal(far.n_unfinished, 0);
  size_t tensor_bytes = bytes_before - get_device_bytes_in_use();
  clv_tensor *same_tensor = acquire_tensor(b, get_device(0), N_CHUNKED, &s),
             *tensor_of_other_device = acquire_tensor(b, get_device(1), N_CHUNKED, &s);
  assert_ptr_equal(first->data, same_tensor->data);
  assert_ptr_not_equal(first->data, tensor_of_other_device->data);
  assert_int_equal(bytes_before - get_device_bytes_in_use(), 2 * tensor_bytes);
  assert_int_equal(s.n_fills, 5);
  assert_filled_on_device(first);
  assert_filled_on_device(tensor_of_other_device);
  clv_tensor_unref(first);
  assert_filled_on_device(same_tensor);
  clv_tensor_unref(same_tensor);
  clv_tensor_unref(tensor_of_other_device);
  assert_int_equal(get_device_bytes_in_use(), bytes_before);
  assert_int_equal(far.n_unfinished, 0);
  assert_filled(host_tensor->data, N);
  clv_tensor_unref(host_tensor);
  assert_int_equal(clv_shared_tensors_bytes(b), 0);
  clv_shared_tensors_free(b);
}

static int n_freed;

static void check_and_free(const clv_backend *b, void *p) {
  char bytes[BYTES];
  assert_int_equal(clv_backend_get(b, bytes, p, BYTES, &err), CLV_OK);
  for (size_t i = 0; i < BYTES; i++) assert_int_equal(bytes[i], 0);
  n_freed++;
  far_free(b, p);
}

static void freed_device_memory_is_zeroed(void **state) {
  (void)state;
  clv_shared_tensors *b = open_bases();
  clv_backend observed_backend = *get_device(0);
  clv_backend_memory memory = *observed_backend.memory;
  source s = {0};
  memory.free = check_and_free;
  observed_backend.memory = &memory;
  clv_tensor_unref(acquire_tensor(b, &observed_backend, N, &s));
  assert_int_equal(n_freed, 1);
  clv_shared_tensors_free(b);
}

/* Tests three failures: no memory; a damaged file; the device is lost while the copy is waited for.
 */
static void failed_acquire_frees_device_memory(void **state) {
  static const clv_code codes[] = {CLV_EXHAUSTED, CLV_DATA_LOSS, CLV_INTERNAL};
  (void)state;
  clv_shared_tensors *b = open_bases();
  const clv_shared_tensor_key key = make_key(get_device(0), N);
  clv_tensor *t = NULL;
  size_t before = get_device_bytes_in_use();
  for (int i = 0; i < 3; i++) {
    source s = {.n_refusals_left = i == 1};
    far.failing_allocation = i == 0;
    far.failing_finish = i == 2;
    assert_int_equal(clv_shared_tensors_acquire(b, &key, NULL, fill_values, &s, &t, &err),
                     codes[i]);
    assert_int_equal(get_device_bytes_in_use(), before);
    assert_int_equal(clv_shared_tensors_bytes(b), 0);
  }
  clv_shared_tensors_free(b);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(base_is_stored_once_per_device),
      cmocka_unit_test(freed_device_memory_is_zeroed),
      cmocka_unit_test(failed_acquire_frees_device_memory),
  };
  return cmocka_run_group_tests_name("device_bases", tests, NULL, NULL);
}
