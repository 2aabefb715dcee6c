/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests a worker's node and its link to the master, over a transport that records the sent frames.
 * If a value cannot be sent, the node sends an error in its place, whether the value is for the
 * master or for another worker.
 */
#include <stdio.h>

#include "common/engine/node_int.h"
#include "common/net/link/link_int.h"
#include "tests/unit/engine/engine_test.h"

enum { CREDIT_BYTES = 1 << 20, UNSENDABLE_BYTES = 2 << 20, MAX_SENT = 64, CONTEXT = 7, VALUE = 10 };

static struct {
  clv_pool *pool;
  clv_link *link;
  clv_session_node *node;
  clv_frame sent_frames[MAX_SENT];
  uint32_t n_sent, n_refused;
} w;

/* ---- a transport that records the frames of the link ----------------------------------------- */

static void record_frame(const clv_rpc_piece *pieces, size_t n) {
  clv_err err = {0};
  clv_piece message_pieces[2 + CLV_WIRE_TENSORS];
  clv_frame last_frame;
  clv_payload payload;
  clv_bundle earlier_frames;
  clv_wire_limits limits = clv_wire_limits_default();
  for (size_t i = 0; i < n; i++) message_pieces[i] = (clv_piece){pieces[i].data, pieces[i].len};
  assert_ok(clv_frame_decode_last(message_pieces, n, &limits, &earlier_frames, &last_frame,
                                  &payload, &err));
  assert_true(w.n_sent + earlier_frames.n_frames < MAX_SENT);
  for (uint32_t i = 0; i < earlier_frames.n_frames; i++)
    assert_ok(clv_frame_decode_preceding(message_pieces, n, &earlier_frames.frame_positions[i],
                                         &limits, &w.sent_frames[w.n_sent++], &payload, &err));
  if (last_frame.kind) w.sent_frames[w.n_sent++] = last_frame;
}

static clv_code keep_sent_frame(void *stream, const clv_rpc_piece *pieces, size_t n, clv_err *err) {
  (void)stream, (void)err;
  record_frame(pieces, n);
  for (size_t i = 0; i < n; i++)
    if (pieces[i].release_owner) pieces[i].release_owner(pieces[i].owner);
  return CLV_OK;
}
static void ignore_close(void *stream) { (void)stream; }
static void ignore_cancel(void *stream, clv_code code, const char *text) {
  (void)stream, (void)code, (void)text;
}
static bool refuse_defer(void *stream, clv_rpc_job *job) {
  (void)stream, (void)job;
  return false;
}
static const clv_transport transport = {.send = keep_sent_frame,
                                        .close = ignore_close,
                                        .cancel = ignore_cancel,
                                        .defer = refuse_defer,
                                        .ref = ignore_close,
                                        .unref = ignore_close};

/* ---- a link to a worker ---------------------------------------------------------------------- */

static void ignore_packet(void *user, clv_link *link, clv_packet *p) {
  (void)user, (void)link;
  clv_packet_free(p);
}
static void ignore_end(void *user, clv_link *link, clv_code code, const char *text) {
  (void)user, (void)link, (void)code, (void)text;
}

static int set_up(void **state) {
  clv_err err = {0};
  (void)state;
  memset(&w, 0, sizeof w);
  assert_ok(clv_pool_new((size_t)64 << 20, 4096, &w.pool, &err));
  clv_link_options o = {.peer_name = "the master",
                        .pool = w.pool,
                        .accept_limits = clv_wire_limits_default(),
                        .initial_send_credit = CREDIT_BYTES,
                        .events = {.on_packet = ignore_packet, .on_closed = ignore_end}};
  assert_ok(clv_link_new(&o, &w.link, &err));
  clv_send_queue_set_lanes(w.link->send_queue, 1);
  clv_frame_writer_attach_stream(w.link->writer, 0, 0, (clv_stream){&transport, &w});
  assert_ok(clv_frame_writer_resume_lane(w.link->writer, 0, 0, 0, &err));
  clv_node_options n = {.pool = w.pool};
  assert_ok(clv_node_new(&n, &w.node, &err));
  clv_node_set_master(w.node, w.link);
  return 0;
}

static int tear_down(void **state) {
  (void)state;
  clv_link_end(w.link, CLV_OK, "over");
  clv_node_free(w.node);
  clv_link_unref(w.link);
  clv_pool_unref(w.pool);
  return 0;
}

static clv_tensor *make_large_tensor(void) {
  clv_err err = {0};
  clv_tensor *t;
  assert_ok(clv_pool_alloc_tensor(w.pool, CLV_U8, &CLV_SHAPE(UNSENDABLE_BYTES), &t, &err));
  memset(t->data, 1, t->bytes);
  return t;
}

/* ---- values that cannot be sent -------------------------------------------------------------- */

static void assert_failure_frame(const clv_frame *f, clv_frame_kind kind) {
  assert_string_equal(clv_frame_kind_name(f->kind), clv_frame_kind_name(kind));
  assert_int_equal(f->failure.code, CLV_EXHAUSTED);
  assert_non_null(strstr(f->failure.text, "limits.receive_window"));
}

/* If a value cannot be sent, the node sends an ABORT instead. In turn, the value is for the master
 * and for worker w2, which the node reaches only through the master. */
static void unsendable_value_aborts_its_context(void **state) {
  static const char *const to[] = {"", "w2"};
  (void)state;
  for (uint32_t i = 0; i < CLV_COUNT(to); i++) {
    clv_err err = {0};
    clv_packet *p;
    CLV_AUTO(clv_tensor_unrefp) clv_tensor *t = make_large_tensor();
    assert_ok(clv_packet_new_value(w.pool, CONTEXT, VALUE + i, "", t, &p, &err));
    clv_node_post(w.node, p);
    assert_ok(clv_packet_new_deliver(w.pool, CONTEXT, VALUE + i, to[i], &p, &err));
    clv_node_post(w.node, p);
    assert_true(clv_node_poll(w.node));
    assert_int_equal(w.n_sent, i + 1);
    assert_failure_frame(&w.sent_frames[i], CLV_ABORT);
    assert_int_equal(w.sent_frames[i].context, CONTEXT);
  }
}

/* A value that could not be sent fails at its own node, too: the backward is answered by an ABORT
 * and does not wait. */
static void unsendable_value_fails_the_context_locally(void **state) {
  clv_err err = {0};
  clv_packet *p;
  CLV_AUTO(clv_tensor_unrefp) clv_tensor *t = make_large_tensor();
  (void)state;
  assert_ok(clv_packet_new_value(w.pool, CONTEXT, VALUE, "", t, &p, &err));
  clv_node_post(w.node, p);
  assert_ok(clv_packet_new_deliver(w.pool, CONTEXT, VALUE, "", &p, &err));
  clv_node_post(w.node, p);
  assert_ok(clv_packet_new_prepare(w.pool, CONTEXT, 1, 0, false, true, false, &p, &err));
  clv_node_post(w.node, p);
  (void)clv_node_poll(w.node);
  assert_int_equal(w.n_sent, 2);
  for (uint32_t i = 0; i < w.n_sent; i++) assert_failure_frame(&w.sent_frames[i], CLV_ABORT);
}

static void add_module(int64_t columns) {
  clv_err err = {0};
  clv_module *module;
  clv_module_options so = make_module_options(make_one_layer_graph(CLV_OP_LINEAR, 1, columns), 0);
  assert_ok(clv_module_new(&so, &module, &err));
  assert_ok(clv_node_add_module(w.node, module, &err));
}

/* Two values are retained after the end of their context, because another worker needs them. They
 * cannot be sent, so the node reports a failure. */
static void unsendable_retained_value_is_reported(void **state) {
  clv_err err = {0};
  clv_packet *p;
  clv_module *module;
  const int64_t columns = UNSENDABLE_BYTES / (int64_t)sizeof(float);
  const uint64_t calls[] = {VALUE + 1, VALUE + 3};
  clv_module_options so = make_module_options(make_one_layer_graph(CLV_OP_TANH, 1, columns), 0);
  CLV_AUTO(clv_tensor_unrefp) clv_tensor *x = NULL;
  (void)state;
  so.is_trainable = false;
  assert_ok(clv_module_new(&so, &module, &err));
  assert_ok(clv_node_add_module(w.node, module, &err));
  assert_ok(clv_pool_alloc_tensor(w.pool, CLV_F32, &CLV_SHAPE(1, columns), &x, &err));
  memset(x->data, 0, x->bytes);
  for (int i = 0; i < 2; i++) {
    assert_ok(clv_packet_new_call(w.pool, CONTEXT, calls[i], 0, false, &p, &err));
    assert_ok(clv_packet_add_arg(p, calls[i] - 1, false, NULL, &err));
    assert_ok(clv_packet_add_delivery(p, "w2", &err));
    clv_node_post(w.node, p);
  }
  assert_ok(clv_packet_new_spare(w.pool, CONTEXT, calls, 2, &p, &err));
  clv_node_post(w.node, p);
  assert_ok(clv_packet_new_end_context(w.pool, CONTEXT, 80, &p, &err));
  clv_node_post(w.node, p);
  assert_ok(clv_packet_new_value(w.pool, CONTEXT, VALUE, "", x, &p, &err));
  clv_node_post(w.node, p);
  (void)clv_node_poll(w.node);
  assert_int_equal(w.node->contexts->impossible_event.code, CLV_OK);
  assert_int_equal(w.n_sent, 2);
  assert_int_equal(w.sent_frames[0].kind, CLV_ENDED);
  assert_int_equal(w.sent_frames[0].step, 2);
  assert_failure_frame(&w.sent_frames[1], CLV_ABORT);
}

static clv_code refuse_everything(void *user, clv_link *link, clv_packet *p, clv_err *err) {
  (void)user, (void)link, (void)p;
  w.n_refused++;
  return clv_fail(err, CLV_DENIED, "it may not leave");
}

static void unsendable_abort_is_not_retried(void **state) {
  clv_err err = {0};
  clv_packet *p;
  (void)state;
  w.link->events.check_send = refuse_everything;
  assert_ok(clv_packet_new_prepare(w.pool, CONTEXT, 1, 0, false, true, false, &p, &err));
  /* the PREPARE names a call that does not exist, so the node wants to send an ABORT */
  assert_ok(clv_packet_add_needed_call(p, VALUE, 0, 1, &err));
  clv_node_post(w.node, p);
  (void)clv_node_poll(w.node);
  assert_int_equal(w.n_refused, 1);
  assert_int_equal(w.n_sent, 0);
}

/* A request for state gets one answer, an error, however many items the state has. */
static void unsendable_state_gives_one_error(void **state) {
  clv_err err = {0};
  clv_packet *p;
  (void)state;
  add_module(1024); /* the weight of this module has 4 MiB */
  assert_ok(clv_packet_new_state_get(w.pool, 0, 80, 0, CLV_STATE_WEIGHTS, &p, &err));
  clv_node_post(w.node, p);
  assert_true(clv_node_poll(w.node));
  assert_int_equal(w.n_sent, 1);
  assert_failure_frame(&w.sent_frames[0], CLV_ERROR);
  assert_int_equal(w.sent_frames[0].reply_to, 80);
}

/* Sends the bias as an item of state to the node. is_refused: the item arrives without its tensor,
 * as if the pool had no memory for it. */
static void send_state_item(uint64_t message, bool is_refused) {
  clv_err err = {0};
  clv_packet *p;
  CLV_AUTO(clv_tensor_unrefp) clv_tensor *t = NULL;
  assert_ok(clv_pool_alloc_tensor(w.pool, CLV_F32, &CLV_SHAPE(3), &t, &err));
  memset(t->data, 0, t->bytes);
  assert_ok(clv_packet_new(w.pool, CLV_STATE_PUT, &p, &err));
  p->frame.message_id = message;
  p->frame.state = (typeof(p->frame.state)){.part = CLV_STATE_WEIGHTS, .n_items = 3};
  snprintf(p->frame.state.item_or_file_name, sizeof p->frame.state.item_or_file_name, "0.bias");
  p->is_over_quota = is_refused;
  if (is_refused)
    clv_frame_set_failure(&p->frame, CLV_EXHAUSTED, "no room; raise limits.receive_window", "");
  else
    clv_packet_add_tensor(p, t);
  clv_node_post(w.node, p);
  (void)clv_node_poll(w.node);
}

/* A refused item counts as received, so the next transfer of state is complete with its last
 * item. */
static void refused_state_item_counts_as_received(void **state) {
  (void)state;
  add_module(3);
  send_state_item(80, false);
  send_state_item(80, true);
  assert_int_equal(w.n_sent, 1);
  assert_failure_frame(&w.sent_frames[0], CLV_ERROR);
  send_state_item(80, false);
  uint32_t before = w.n_sent;
  send_state_item(81, false);
  send_state_item(81, false);
  assert_int_equal(w.n_sent, before);
  send_state_item(81, false);
  assert_int_equal(w.n_sent, before + 1);
  assert_int_equal(w.sent_frames[before].kind, CLV_STATE_DONE);
  assert_int_equal(w.sent_frames[before].reply_to, 81);
}

static void receive_message(clv_rref_message m) {
  m.ref = 3;
  m.key = 5;
  clv_rrefs_receive_message(w.node->references, 0, &m, clv_now_ns());
}

/* If a fetched value cannot be sent, the answer to the FETCH is a failure. */
static void unsendable_fetched_value_is_a_failure(void **state) {
  clv_err err = {0};
  const clv_rref_new_ids b = {.ref = 3, .fork = 4, .key = 5};
  (void)state;
  CLV_AUTO(clv_tensor_unrefp) clv_tensor *t = make_large_tensor();
  assert_ok(clv_rrefs_new_owned(w.node->references, &b, t, clv_now_ns(), &err));
  receive_message((clv_rref_message){.kind = CLV_RREF_FORK, .fork = 6, .number = 1});
  receive_message((clv_rref_message){.kind = CLV_RREF_FETCH, .fork = 6, .number = 2});
  clv_node_tick(w.node);
  uint32_t values = 0;
  for (uint32_t i = 0; i < w.n_sent; i++) {
    if (w.sent_frames[i].kind != CLV_REF_VALUE) continue;
    values++;
    assert_failure_frame(&w.sent_frames[i], CLV_REF_VALUE);
    assert_int_equal(w.sent_frames[i].reference.fork_id, 6);
  }
  assert_int_equal(values, 1);
}

int main(void) {
#define WORKER(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down)
  const struct CMUnitTest tests[] = {
      WORKER(unsendable_value_aborts_its_context),
      WORKER(unsendable_value_fails_the_context_locally),
      WORKER(unsendable_retained_value_is_reported),
      WORKER(unsendable_abort_is_not_retried),
      WORKER(unsendable_state_gives_one_error),
      WORKER(refused_state_item_counts_as_received),
      WORKER(unsendable_fetched_value_is_a_failure),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
