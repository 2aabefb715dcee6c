/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests slabs: records begin as zeros, their number is limited, and a record that was returned is
 * poisoned.
 */
#include "tests/unit/engine/engine_test.h"

enum { MAX_RECORDS = 100, BYTES = 72, WRITTEN_BYTE = 0x11, POISON_BYTE = 0xdb };

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#define is_poisoned(at) (__asan_address_is_poisoned(at) != 0)
#define POISONS true
#else
#define is_poisoned(at) ((void)(at), false)
#define POISONS false
#endif

#ifdef CLV_FILLS_FREED
enum { FREED_VALUE = POISON_BYTE };
#else
enum { FREED_VALUE = WRITTEN_BYTE };
#endif

typedef struct fixture {
  clv_pool *pool;
  clv_slab slab;
} fixture;

static int set_up(void **state) {
  clv_err err = {0};
  fixture *f = calloc(1, sizeof *f);
  assert_non_null(f);
  assert_ok(clv_pool_new(1 << 20, 16, &f->pool, &err));
  f->slab = clv_slab_make(BYTES, MAX_RECORDS, "records");
  *state = f;
  return 0;
}

static int tear_down(void **state) {
  fixture *f = *state;
  clv_slab_clear(&f->slab);
  clv_pool_unref(f->pool);
  free(f);
  return 0;
}

static uint8_t *take_record(fixture *f) {
  clv_err err = {0};
  uint8_t *record;
  assert_ok(clv_slab_alloc(f->pool, &f->slab, &record, &err));
  return record;
}

static void recycled_record_is_zeroed(void **state) {
  fixture *f = *state;
  clv_err err = {0};
  uint8_t *records[MAX_RECORDS], *one_too_many;
  for (int round = 0; round < 2; round++) {
    for (int i = 0; i < MAX_RECORDS; i++) {
      records[i] = take_record(f);
      for (int k = 0; k < BYTES; k++) assert_int_equal(records[i][k], 0);
      memset(records[i], WRITTEN_BYTE, BYTES);
    }
    assert_int_equal(clv_slab_alloc(f->pool, &f->slab, &one_too_many, &err), CLV_EXHAUSTED);
    assert_non_null(strstr(err.text, "more than 100 records"));
    for (int i = 0; i < MAX_RECORDS; i++) clv_slab_recycle(&f->slab, records[i]);
    assert_int_equal(f->slab.n_records_used, 0);
  }
}

/* If a test reads a freed record, address sanitizer reports it. Without address sanitizer, the
 * bytes of the record have the value of the poison. */
static void freed_record_is_poisoned(void **state) {
  fixture *f = *state;
  uint8_t *freed_record = take_record(f), *used_record = take_record(f),
          *last_byte = freed_record + BYTES - 1;
  memset(freed_record, WRITTEN_BYTE, BYTES);
  memset(used_record, WRITTEN_BYTE, BYTES);
  assert_false(is_poisoned(freed_record));
  clv_slab_recycle(&f->slab, freed_record);
  assert_int_equal(is_poisoned(freed_record), POISONS);
  assert_int_equal(is_poisoned(last_byte), POISONS);
  if (!POISONS) assert_int_equal(*last_byte, FREED_VALUE);
  assert_false(is_poisoned(used_record));
  assert_ptr_equal(take_record(f), freed_record);
  assert_false(is_poisoned(last_byte));
  assert_int_equal(*last_byte, 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(recycled_record_is_zeroed, set_up, tear_down),
      cmocka_unit_test_setup_teardown(freed_record_is_poisoned, set_up, tear_down),
  };
  return cmocka_run_group_tests_name("slab", tests, NULL, NULL);
}
