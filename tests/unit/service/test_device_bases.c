/* SPDX-License-Identifier: Apache-2.0
 *
 * Tensors of artifacts in a device's memory: once on each for all who take them, brought there by
 * parts, and zeroed before the device gets its memory back.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
// after the above
#include <cmocka.h>

#include "tests/unit/far.h"
#include "worker/store/store.h"

enum { N = 3000, BYTES = N * 4, LONG = CLV_BASE_CHUNK_BYTES / 4 + N };

static clv_err err;

/* Source of a base that counts requests for parts. Fails while `refusals` are left. */
typedef struct source {
  int fills, refusals;
} source;

static clv_code fill(void *user, size_t first, size_t n, void *to, clv_err *e) {
  source *s = user;
  s->fills++;
  if (s->refusals-- > 0) return clv_fail(e, CLV_DATA_LOSS, "it is damaged");
  for (size_t i = 0; i < n; i++) ((float *)to)[i] = (float)(first + i + 7);
  return CLV_OK;
}

/* Asserts that x has the numbers that `fill` writes. */
static void is_filled(const float *x, size_t n) {
  for (size_t i = 0; i < n; i++)
    if (x[i] != (float)(i + 7)) fail_msg("number %zu is %g", i, (double)x[i]);
}

static clv_base_key key_of(const clv_backend *home, int64_t n) {
  return (clv_base_key){.owner = "a",
                        .artifact = {{1}},
                        .name = "w",
                        .dtype = CLV_F32,
                        .shape = CLV_SHAPE(n),
                        .backend = home};
}

static clv_bases *open_bases(void) {
  clv_bases *b = NULL;
  assert_int_equal(clv_bases_new(&b, &err), CLV_OK);
  return b;
}

static const clv_backend *device(int number) { return far_device(clv_backend_ref(), number); }

static clv_tensor *acquire_tensor(clv_bases *b, const clv_backend *home, int64_t n, source *s) {
  const clv_base_key key = key_of(home, n);
  clv_tensor *t = NULL;
  if (clv_bases_acquire(b, &key, NULL, fill, s, &t, &err) != CLV_OK) fail_msg("%s", err.text);
  assert_ptr_equal(t->device, home);
  return t;
}

static void is_filled_there(const clv_tensor *t) {
  float *host = malloc(t->bytes);
  assert_int_equal(clv_backend_get(t->device, host, t->data, t->bytes, &err), CLV_OK);
  is_filled(host, t->n);
  free(host);
}

static size_t device_bytes_left(void) {
  size_t left, total;
  assert_int_equal(device(0)->memory->room(device(0), &left, &total, &err), CLV_OK);
  return left;
}

/* The base is filled in parts, and a second request waits for it. */
static void base_is_stored_once_per_device(void **state) {
  (void)state;
  clv_bases *b = open_bases();
  source s = {0};
  size_t before = device_bytes_left();
  clv_tensor *here = acquire_tensor(b, NULL, N, &s),
             *first = acquire_tensor(b, device(0), LONG, &s);
  assert_int_equal(s.fills, 3);
  assert_int_equal(far.asked, 0);
  size_t by = before - device_bytes_left();
  clv_tensor *second = acquire_tensor(b, device(0), LONG, &s),
             *other = acquire_tensor(b, device(1), LONG, &s);
  assert_ptr_equal(first->data, second->data);
  assert_ptr_not_equal(first->data, other->data);
  assert_int_equal(before - device_bytes_left(), 2 * by);
  assert_int_equal(s.fills, 5);
  is_filled_there(first);
  is_filled_there(other);
  clv_tensor_unref(first);
  is_filled_there(second);
  clv_tensor_unref(second);
  clv_tensor_unref(other);
  assert_int_equal(device_bytes_left(), before);
  assert_int_equal(far.asked, 0);
  is_filled(here->data, N);
  clv_tensor_unref(here);
  assert_int_equal(clv_bases_bytes(b), 0);
  clv_bases_free(b);
}

static int given;

static void look_and_give(const clv_backend *b, void *p) {
  char all[BYTES];
  assert_int_equal(clv_backend_get(b, all, p, BYTES, &err), CLV_OK);
  for (size_t i = 0; i < BYTES; i++) assert_int_equal(all[i], 0);
  given++;
  far_give(b, p);
}

static void freed_device_memory_is_zeroed(void **state) {
  (void)state;
  clv_bases *b = open_bases();
  clv_backend looking = *device(0);
  clv_backend_memory memory = *looking.memory;
  source s = {0};
  memory.give = look_and_give;
  looking.memory = &memory;
  clv_tensor_unref(acquire_tensor(b, &looking, N, &s));
  assert_int_equal(given, 1);
  clv_bases_free(b);
}

/* Three failures: no memory; a damaged file; the device is lost when the copy is waited for. */
static void failed_acquire_frees_device_memory(void **state) {
  static const clv_code codes[] = {CLV_EXHAUSTED, CLV_DATA_LOSS, CLV_INTERNAL};
  (void)state;
  clv_bases *b = open_bases();
  const clv_base_key key = key_of(device(0), N);
  clv_tensor *t = NULL;
  size_t before = device_bytes_left();
  for (int i = 0; i < 3; i++) {
    source s = {.refusals = i == 1};
    far.fail_take = i == 0;
    far.fail_finish = i == 2;
    assert_int_equal(clv_bases_acquire(b, &key, NULL, fill, &s, &t, &err), codes[i]);
    assert_int_equal(device_bytes_left(), before);
    assert_int_equal(clv_bases_bytes(b), 0);
  }
  clv_bases_free(b);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(base_is_stored_once_per_device),
      cmocka_unit_test(freed_device_memory_is_zeroed),
      cmocka_unit_test(failed_acquire_frees_device_memory),
  };
  return cmocka_run_group_tests_name("device_bases", tests, NULL, NULL);
}
