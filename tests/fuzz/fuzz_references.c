/* SPDX-License-Identifier: Apache-2.0
 *
 * Fuzzes the state machine of references against hostile peers. The input is a list of messages and
 * of operations of the node itself, with few ids, so that they concern the same references.
 * Whatever arrives, the table neither crashes nor leaks.
 */
#include <stdlib.h>
#include <string.h>

#include "common/engine/reference/rref_int.h"
#include "tests/fuzz/never.h"

enum { NODES = 4, SELF = 1, IDS = 7 };
#define SECOND UINT64_C(1000000000)

typedef struct input {
  const uint8_t *at, *input_end;
} input;

static uint8_t next_byte(input *in) { return in->at < in->input_end ? *in->at++ : 0; }

typedef struct node {
  clv_rrefs *t;
  clv_tensor *tensor;
} node;

static void check_sent_message(node *n, const clv_rref_result *r) {
  const clv_rref_message *m = &r->message;
  (void)n;
  NEVER(r->to >= NODES || r->to == SELF || m->kind >= CLV_RREF_KINDS);
  NEVER(m->tensor && m->kind != CLV_RREF_VALUE);
}
/* Settles the values of some new objects at once. Messages of the input settle the other values. */
static void settle_some_values(node *n, const clv_rref_result *r) {
  if (r->handle.value % 2) clv_rrefs_settle_entry(n->t, r->handle.ref, n->tensor, NULL, 0);
}
static void fetch_some_values(node *n, const clv_rref_result *r) {
  clv_err ignored;
  if (r->handle.value % 2) (void)!clv_rrefs_fetch_value(n->t, r->handle.fork, 0, &ignored);
}
static void release_some_handles(node *n, const clv_rref_result *r) {
  clv_err ignored;
  NEVER(!r->tensor == !r->failure);
  if (r->handle.value % 2) (void)!clv_rrefs_release_handle(n->t, r->handle.fork, 0, &ignored);
}
static void ignore_result(node *n, const clv_rref_result *r) {
  (void)n;
  NEVER(r->kind == CLV_RREF_RESULT_UNUSED && !r->failure);
}

static void take_results(node *n) {
  static void (*const on[CLV_RREF_RESULTS])(node *, const clv_rref_result *) = {
      [CLV_RREF_RESULT_SEND] = check_sent_message,
      [CLV_RREF_RESULT_CREATE] = settle_some_values,
      [CLV_RREF_RESULT_USED] = fetch_some_values,
      [CLV_RREF_RESULT_JOINED] = ignore_result,
      [CLV_RREF_RESULT_FETCHED] = release_some_handles,
      [CLV_RREF_RESULT_UNUSED] = ignore_result,
      [CLV_RREF_RESULT_FREED] = ignore_result};
  clv_rref_result r;
  while (clv_rrefs_next_result(n->t, &r)) on[r.kind](n, &r);
}

/* Asserts that no event came in a state for which the state tables exclude the event. */
static void check_visits(const clv_rref_visits *v) {
  for (clv_rref_machine m = 0; m < RREF_MACHINES; m++)
    for (uint8_t s = 0; s < clv_rref_n_states(m); s++)
      for (uint8_t f = 0; f < clv_rref_n_events(m); f++)
        NEVER(v->n[m][s][f] && clv_rref_cell_of(m, s, f)->rule == RREF_IMPOSSIBLE);
}

static void deliver_frame(node *n, input *in, uint64_t now) {
  static const clv_rref_failure failure = {CLV_NOT_FOUND, "none", "", false};
  uint32_t from = next_byte(in) % (NODES + 1);
  clv_rref_message m = {.kind = (clv_rref_kind)(next_byte(in) % (CLV_RREF_KINDS + 1)),
                        .number = next_byte(in) | (uint64_t)next_byte(in) << 7,
                        .ref = next_byte(in) % IDS,
                        .fork = next_byte(in) % IDS,
                        .key = next_byte(in) % 2};
  uint8_t bits = next_byte(in);
  m.owner = bits % (NODES + 1);
  m.is_before_join = bits & 8;
  m.context = m.value = bits >> 4;
  if (bits & 16) m.failure = &failure;
  if (bits & 32) m.tensor = n->tensor;
  clv_rrefs_receive_message(n->t, from, &m, now);
}

static void do_random_operation(node *n, input *in, uint64_t now) {
  clv_err ignored;
  uint8_t what = next_byte(in), to = next_byte(in) % NODES;
  uint64_t a = next_byte(in) % IDS, b = next_byte(in) % IDS;
  clv_rref_new_ids new_ids = {a, b, 1};
  clv_rref_pass_args passing = {b, to, what >> 4, what >> 4};
  switch (what % 6) {
    case 0:
      (void)!clv_rrefs_new_owned(n->t, &new_ids, n->tensor, now, &ignored);
      break;
    case 1:
      (void)!clv_rrefs_new_kept(n->t, &new_ids, to, 1, what >> 4, now, &ignored);
      break;
    case 2:
      (void)!clv_rrefs_pass_handle(n->t, a, &passing, now, &ignored);
      break;
    case 3:
      (void)!clv_rrefs_fetch_value(n->t, a, now, &ignored);
      break;
    case 4:
      (void)!clv_rrefs_release_handle(n->t, a, now, &ignored);
      break;
    default:
      clv_rrefs_settle_entry(n->t, a, n->tensor, NULL, now);
  }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  node n = {0};
  clv_pool *pool;
  clv_err err;
  clv_shape scalar = {0};
  input in = {data, data + size};
  uint64_t now = SECOND;
  clv_rref_visits visits = {0};
  clv_rrefs_options o = {
      .n_nodes = NODES, .self = SELF, .lease_ns = 20 * SECOND, .retry_ns = SECOND / 20};
  if (clv_pool_new(1 << 24, 64, &pool, &err) != CLV_OK) return 0;
  o.pool = pool;
  NEVER(clv_tensor_new(CLV_I64, &scalar, &n.tensor, &err) != CLV_OK);
  NEVER(clv_rrefs_new(&o, &n.t, &err) != CLV_OK);
  n.t->visits = &visits;
  while (in.at < in.input_end) {
    uint8_t kind = next_byte(&in);
    if (kind < 160)
      deliver_frame(&n, &in, now);
    else if (kind < 240)
      do_random_operation(&n, &in, now);
    else
      clv_rrefs_tick(n.t, now += (uint64_t)next_byte(&in) * SECOND / 10);
    if (kind % 8) take_results(&n); /* results are taken only after a few inputs */
  }
  check_visits(&visits);
  clv_rrefs_free(n.t);
  clv_tensor_unref(n.tensor);
  clv_pool_unref(pool);
  return 0;
}
