/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests a link that ends while its lanes are dialled: the error states why the link ended, not that
 * the next lane could not be added.
 */
#include "common/net/link/link_int.h"
#include "tests/unit/engine/engine_test.h"

static const char end_reason[] = "the peer's certificate was revoked";

/* A link that was dialled; its first lane ends when a frame is sent on it. */
typedef struct dialled_link {
  clv_lane *first_lane;
  uint32_t n_dials, n_ends;
} dialled_link;

static clv_code end_first_lane(void *stream, const clv_rpc_piece *pieces, size_t n, clv_err *err) {
  dialled_link *d = stream;
  clv_lane *first = clv_steal(&d->first_lane);
  (void)err;
  for (size_t i = 0; i < n; i++)
    if (pieces[i].release_owner) pieces[i].release_owner(pieces[i].owner);
  if (first) clv_lane_on_ended(first, CLV_DENIED, end_reason);
  return CLV_OK;
}
static void do_nothing(void *stream) { (void)stream; }
static void ignore_cancel(void *stream, clv_code code, const char *text) {
  (void)stream, (void)code, (void)text;
}
static bool refuse_defer(void *stream, clv_rpc_job *job) {
  (void)stream, (void)job;
  return false;
}
static const clv_transport transport = {.send = end_first_lane,
                                        .close = do_nothing,
                                        .cancel = ignore_cancel,
                                        .defer = refuse_defer,
                                        .ref = do_nothing,
                                        .unref = do_nothing};

static clv_code count_dial(void *user, uint32_t index, clv_lane *lane, const bool *stop, void **ret,
                           clv_err *err) {
  dialled_link *d = user;
  (void)stop, (void)err;
  assert_int_equal(index, d->n_dials++);
  d->first_lane = lane;
  *ret = d;
  return CLV_OK;
}

static void ignore_packet(void *user, clv_link *link, clv_packet *p) {
  (void)user, (void)link;
  clv_packet_free(p);
}
static void count_end(void *user, clv_link *link, clv_code code, const char *text) {
  (void)link, (void)code, (void)text;
  ((dialled_link *)user)->n_ends++;
}

static void dial_error_names_what_ended_the_link(void **state) {
  dialled_link d = {0};
  clv_err err = {0};
  clv_link *link;
  clv_pool *pool;
  (void)state;
  assert_ok(clv_pool_new(1 << 20, 4096, &pool, &err));
  const clv_link_options o = {
      .peer_name = "worker 'w1'",
      .pool = pool,
      .accept_limits = clv_wire_limits_default(),
      .initial_send_credit = 1 << 20,
      .events = {.user = &d, .on_packet = ignore_packet, .on_closed = count_end}};
  const clv_link_dial to = {.n_bulk_lanes = 2, .attach_role = CLV_ATTACH_MASTER};
  const clv_dialler dialler = {&transport, &d, count_dial, NULL};
  assert_int_equal(clv_link_start(&o, &to, &dialler, &link, &err), CLV_UNAVAILABLE);
  assert_string_equal(err.text,
                      "the connection to worker 'w1' has ended: "
                      "the peer's certificate was revoked");
  assert_int_equal(d.n_dials, 1);
  clv_pool_unref(pool);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(dial_error_names_what_ended_the_link)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
