/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests the table of a node's references when memory is short. tests/faults tests what several
 * nodes do.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/engine/reference/rref_int.h"

enum { KIB = 1024, QUOTA = 1024 * KIB, RETRY_NS = 1000, LEASE_NS = 1000000 };

/* A node that is alone in its session. Counts the results that its table of references returns. */
typedef struct node {
  clv_pool *pool;
  clv_rrefs *table;
  clv_tensor *last_value;
  unsigned n_joined, n_values, n_freed;
} node;

static void on_result(node *n, const clv_rref_result *r) {
  switch (r->kind) {
    case CLV_RREF_RESULT_JOINED:
      if (r->failure) fail_msg("refused: %s", r->failure->text);
      n->n_joined++;
      return;
    case CLV_RREF_RESULT_FETCHED:
      assert_null(r->failure);
      n->last_value = r->tensor;
      n->n_values++;
      return;
    case CLV_RREF_RESULT_FREED:
      n->n_freed++;
      return;
    default:
      fail_msg("result %d, of a node that is alone", (int)r->kind);
  }
}

static void take_results(node *n) {
  clv_rref_result r;
  while (clv_rrefs_next_result(n->table, &r)) on_result(n, &r);
}

static void make_node(node *n) {
  clv_err err;
  *n = (node){0};
  assert_int_equal(clv_pool_new(QUOTA, 16, &n->pool, &err), CLV_OK);
  clv_rrefs_options o = {.pool = n->pool, .n_nodes = 1, .lease_ns = LEASE_NS, .retry_ns = RETRY_NS};
  assert_int_equal(clv_rrefs_new(&o, &n->table, &err), CLV_OK);
}

static void free_node(node *n) {
  clv_rrefs_free(n->table);
  clv_pool_unref(n->pool);
}

static void assert_empty(const node *n) {
  clv_rref_counts c;
  clv_rrefs_count(n->table, &c);
  assert_int_equal(
      c.n_entries + c.n_forks + c.n_handles + c.n_children + c.n_parked + c.n_unacknowledged, 0);
}

/* Keeps a tensor while the pool has `left` bytes. Returns false if there was no memory. */
static bool keep_with_memory_left(node *n, size_t left, const clv_rref_new_ids *b, clv_tensor *v) {
  clv_err err;
  assert_int_equal(clv_pool_charge(n->pool, QUOTA - left, &err), CLV_OK);
  clv_code code = clv_rrefs_new_owned(n->table, b, v, 1, &err);
  clv_pool_discharge(n->pool, QUOTA - left);
  if (code != CLV_OK) assert_int_equal(code, CLV_EXHAUSTED);
  return code == CLV_OK;
}

/* Whichever allocation fails, a kept value is stored completely or refused completely. */
static void kept_reference_has_its_value_or_is_refused(void **state) {
  const clv_rref_new_ids b = {1, 2, 3};
  const clv_shape scalar = {0};
  unsigned n_kept = 0, n_refused = 0;
  clv_tensor *v;
  clv_err err;
  (void)state;
  assert_int_equal(clv_tensor_new(CLV_F32, &scalar, &v, &err), CLV_OK);
  for (size_t left = 0; left <= 128 * KIB; left += KIB) {
    node n;
    make_node(&n);
    if (keep_with_memory_left(&n, left, &b, v)) {
      n_kept++;
      assert_int_equal(clv_rrefs_fetch_value(n.table, b.fork, 2, &err), CLV_OK);
      for (uint64_t now = 3; now < LEASE_NS; now += RETRY_NS) clv_rrefs_tick(n.table, now);
      take_results(&n);
      assert_int_equal(n.n_values, 1);
      assert_ptr_equal(n.last_value, v);
      assert_int_equal(clv_rrefs_release_handle(n.table, b.fork, LEASE_NS, &err), CLV_OK);
    } else {
      n_refused++;
    }
    take_results(&n);
    assert_int_equal(n.n_joined, n.n_values);
    assert_int_equal(n.n_freed, n.n_values);
    assert_empty(&n);
    free_node(&n);
  }
  assert_true(n_kept > 0);
  assert_true(n_refused > 0);
  clv_tensor_unref(v);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(kept_reference_has_its_value_or_is_refused)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
