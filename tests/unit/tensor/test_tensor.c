/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests shapes, data types and the memory of tensors and their views.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/tensor/tensor.h"

static void shape_sizes_are_counted_and_overflow_refused(void **state) {
  (void)state;
  size_t n;
  char buf[160];
  clv_err err;
  clv_shape s = CLV_SHAPE(2, 3, 4), scalar = {0}, overflowing = CLV_SHAPE(INT64_MAX, 4),
            negative = CLV_SHAPE(-1);
  assert_int_equal(clv_shape_numel(&s, &n, NULL), CLV_OK);
  assert_int_equal(n, 24);
  assert_int_equal(clv_shape_numel(&scalar, &n, NULL), CLV_OK);
  assert_int_equal(n, 1);
  assert_int_equal(clv_shape_numel(&overflowing, &n, &err), CLV_EXHAUSTED);
  assert_int_equal(clv_shape_numel(&negative, &n, &err), CLV_INVALID);
  assert_string_equal(clv_shape_format(&s, buf, sizeof buf), "[2, 3, 4]");
  clv_shape near_limit = CLV_SHAPE((int64_t)1 << 61);
  assert_int_equal(clv_shape_bytes(&near_limit, CLV_F64, &n, &err), CLV_EXHAUSTED);
  s.rank = 99;
  assert_int_equal(clv_shape_numel(&s, &n, &err), CLV_INVALID);
}

static void dtypes_have_names_and_sizes(void **state) {
  (void)state;
  clv_dtype d;
  for (int i = CLV_F32; i <= CLV_BF16; i++) {
    assert_true(clv_dtype_parse(clv_dtype_name((clv_dtype)i), &d));
    assert_int_equal(d, i);
  }
  assert_int_equal(clv_dtype_size((clv_dtype)0), 0);
  assert_int_equal(clv_dtype_size((clv_dtype)77), 0);
  assert_false(clv_dtype_parse("f31", &d));
}

static int released_weight;
static void count_release(void *owner) { released_weight += *(int *)owner; }

static void storage_is_released_with_its_last_view(void **state) {
  (void)state;
  static float data[12];
  int weight = 1;
  released_weight = 0;
  clv_shape full_shape = CLV_SHAPE(3, 4), row = CLV_SHAPE(4);
  clv_tensor *t, *v;
  assert_int_equal(clv_tensor_wrap(CLV_F32, &full_shape, data, count_release, &weight, &t, NULL),
                   CLV_OK);
  assert_int_equal(clv_tensor_view(t, 32, CLV_F32, &row, &v, NULL), CLV_OK);
  assert_ptr_equal(v->data, data + 8);
  clv_tensor *refused_view;
  clv_err err;
  assert_int_equal(clv_tensor_view(t, 36, CLV_F32, &row, &refused_view, &err), CLV_RANGE);
  assert_int_equal(clv_tensor_view(v, 4, CLV_F32, &row, &refused_view, &err), CLV_RANGE);
  t = clv_tensor_unref(t);
  assert_null(t);
  assert_int_equal(released_weight, 0);
  clv_tensor_unref(v);
  assert_int_equal(released_weight, 1);
}

static void new_tensors_are_aligned(void **state) {
  (void)state;
  clv_shape s = CLV_SHAPE(5);
  clv_tensor *t;
  assert_int_equal(clv_tensor_new(CLV_U8, &s, &t, NULL), CLV_OK);
  assert_int_equal((uintptr_t)t->data % 64, 0);
  assert_int_equal(t->n, 5);
  memset(t->data, 1, t->bytes);
  clv_tensor_unref(t);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(shape_sizes_are_counted_and_overflow_refused),
      cmocka_unit_test(dtypes_have_names_and_sizes),
      cmocka_unit_test(storage_is_released_with_its_last_view),
      cmocka_unit_test(new_tensors_are_aligned),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
