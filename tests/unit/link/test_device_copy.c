/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests tensors that are sent while they are still copied from a device: each chunk is sent when
 * its bytes have arrived, and the bytes are those of a tensor that is sent when it is complete.
 */
#include <stdio.h>

#include "common/net/link/link_int.h"
#include "tests/unit/engine/engine_test.h"

enum {
  CHUNK_BYTES = CLV_WIRE_CHUNK_BYTES,
  N_CHUNKS = 3,
  LAST_CHUNK_BYTES = 100,
  LARGE_BYTES = 2 * CHUNK_BYTES + LAST_CHUNK_BYTES,
  SMALL_BYTES = 40
};
enum { MAX_SENT_BYTES = 2 * LARGE_BYTES };

/* ---- a transport that records the calls of the link ------------------------------------------ */

typedef struct fake_transport {
  int n_references, n_sent, n_cancels;
  size_t len;
  uint8_t bytes[MAX_SENT_BYTES];
  char cancel_text[CLV_ERR_TEXT];
} fake_transport;

static clv_code fake_send(void *stream, const clv_rpc_piece *pieces, size_t n, clv_err *err) {
  fake_transport *f = stream;
  (void)err;
  f->n_sent++;
  for (size_t i = 0; i < n; i++) {
    assert_true(f->len + pieces[i].len <= MAX_SENT_BYTES);
    memcpy(f->bytes + f->len, pieces[i].data, pieces[i].len);
    f->len += pieces[i].len;
    if (pieces[i].release_owner) pieces[i].release_owner(pieces[i].owner);
  }
  return CLV_OK;
}
static void fake_close(void *stream) { (void)stream; }
static void fake_cancel(void *stream, clv_code code, const char *text) {
  fake_transport *f = stream;
  (void)code;
  if (!f->n_cancels++) snprintf(f->cancel_text, sizeof f->cancel_text, "%s", text);
}
static bool fake_defer(void *stream, clv_rpc_job *job) {
  (void)stream, (void)job;
  return false;
}
static void fake_ref(void *stream) { ((fake_transport *)stream)->n_references++; }
static void fake_unref(void *stream) { ((fake_transport *)stream)->n_references--; }
static const clv_transport transport = {.send = fake_send,
                                        .close = fake_close,
                                        .cancel = fake_cancel,
                                        .defer = fake_defer,
                                        .ref = fake_ref,
                                        .unref = fake_unref};

/* ---- a link with one lane -------------------------------------------------------------------- */

static struct {
  clv_pool *pool;
  clv_link *link;
  clv_device_copy *device_copy;
  fake_transport fake_stream;
} w;

static void on_packet(void *user, clv_link *link, clv_packet *p) {
  (void)user, (void)link;
  clv_packet_free(p);
}
static void on_closed(void *user, clv_link *link, clv_code code, const char *text) {
  (void)user, (void)link, (void)code, (void)text;
}

static void begin_link(void) {
  clv_err err = {0};
  memset(&w, 0, sizeof w);
  assert_ok(clv_pool_new(8 << 20, 64, &w.pool, &err));
  const clv_link_options o = {.peer_name = "peer",
                              .pool = w.pool,
                              .accept_limits = clv_wire_limits_default(),
                              .initial_send_credit = 4 << 20,
                              .events = {.on_packet = on_packet, .on_closed = on_closed}};
  assert_ok(clv_link_new(&o, &w.link, &err));
  clv_frame_writer_attach_stream(w.link->writer, 0, 0, (clv_stream){&transport, &w.fake_stream});
  assert_ok(clv_frame_writer_resume_lane(w.link->writer, 0, 0, 0, &err));
  clv_send_queue_set_lanes(w.link->send_queue, 1);
  assert_ok(clv_device_copy_new(&w.device_copy, &err));
}

static void end_link(void) {
  clv_link_end(w.link, CLV_OK, "over");
  clv_frame_writer_detach_stream(w.link->writer, 0, 0);
  clv_link_unref(w.link);
  clv_device_copy_unref(w.device_copy);
  assert_int_equal(w.fake_stream.n_references, 0);
  clv_pool_unref(w.pool);
}

static void fill_tensor(clv_tensor *t, size_t from, size_t to) {
  for (size_t i = from; i < to; i++) ((uint8_t *)t->data)[i] = (uint8_t)(i * 7 + i / CHUNK_BYTES);
}

/* Sends a tensor on the link. copy: the copy from its device, which is not complete; NULL: the
 * tensor is in host memory. */
static clv_tensor *send_value(size_t bytes, clv_device_copy *copy) {
  clv_err err = {0};
  clv_tensor *t;
  clv_packet *p;
  assert_ok(clv_pool_alloc_tensor(w.pool, CLV_U8, &CLV_SHAPE((int64_t)bytes), &t, &err));
  memset(t->data, 0xee, bytes);
  if (!copy) fill_tensor(t, 0, bytes);
  assert_ok(clv_packet_new(w.pool, CLV_VALUE, &p, &err));
  p->frame.context = p->frame.message_id = 3;
  clv_packet_add_tensor_being_copied(p, t, copy);
  assert_ok(clv_link_send(w.link, p, &err));
  return t;
}

static void copy_range(clv_tensor *t, size_t from, size_t to) {
  fill_tensor(t, from, to);
  clv_device_copy_advance(w.device_copy, to);
}

/* Sends a small frame after a tensor. The frame must not overtake the tensor. */
static void send_small_frame(void) {
  clv_err err = {0};
  clv_packet *p;
  assert_ok(clv_packet_new_drop(w.pool, 3, 0, (const uint64_t[]){1}, 1, &p, &err));
  assert_ok(clv_link_send(w.link, p, &err));
}

/* ---- sending while the tensor is copied from its device -------------------------------------- */

static void chunk_is_sent_once_its_bytes_are_copied(void **state) {
  (void)state;
  begin_link();
  clv_tensor *t = send_value(LARGE_BYTES, w.device_copy);
  send_small_frame();
  assert_int_equal(w.fake_stream.n_sent, 0);
  copy_range(t, 0, CHUNK_BYTES - 1);
  assert_int_equal(w.fake_stream.n_sent, 0);
  copy_range(t, CHUNK_BYTES - 1, CHUNK_BYTES);
  assert_in_range(w.fake_stream.len, CHUNK_BYTES, CHUNK_BYTES + 100);
  copy_range(t, CHUNK_BYTES, 2 * CHUNK_BYTES);
  assert_in_range(w.fake_stream.len, 2 * CHUNK_BYTES, 2 * CHUNK_BYTES + 200);
  clv_link_load load = {0};
  clv_send_queue_add_load(w.link->send_queue, &load);
  assert_true(load.frames_out >= 2 && load.bytes_out >= LAST_CHUNK_BYTES);
  copy_range(t, 2 * CHUNK_BYTES, LARGE_BYTES);
  fake_transport sent_during_copy = w.fake_stream;
  clv_tensor_unref(t);
  end_link();

  begin_link();
  t = send_value(LARGE_BYTES, NULL);
  send_small_frame();
  assert_int_equal(w.fake_stream.n_sent, sent_during_copy.n_sent);
  assert_int_equal(w.fake_stream.len, sent_during_copy.len);
  assert_memory_equal(w.fake_stream.bytes, sent_during_copy.bytes, sent_during_copy.len);
  clv_tensor_unref(t);
  end_link();
}

static void small_tensor_is_sent_once_fully_copied(void **state) {
  (void)state;
  begin_link();
  clv_tensor *t = send_value(SMALL_BYTES, w.device_copy);
  copy_range(t, 0, SMALL_BYTES - 1);
  send_small_frame();
  assert_int_equal(w.fake_stream.n_sent, 0);
  copy_range(t, SMALL_BYTES - 1, SMALL_BYTES);
  assert_int_equal(w.fake_stream.n_sent, 2);
  clv_tensor_unref(t);
  end_link();
}

static void failed_device_copy_ends_the_link(void **state) {
  const clv_err device_loss = {.code = CLV_UNAVAILABLE, .text = "the device is gone"};
  (void)state;
  begin_link();
  clv_tensor *t = send_value(LARGE_BYTES, w.device_copy);
  copy_range(t, 0, CHUNK_BYTES);
  clv_device_copy_fail(w.device_copy, &device_loss);
  assert_int_equal(w.fake_stream.n_cancels, 1);
  assert_string_equal(w.fake_stream.cancel_text, "the device is gone");
  clv_tensor_unref(t);
  end_link();
}

/* If the link has ended, later reports of the copy (copied bytes or a failure) send nothing. */
static void link_end_during_a_copy_sends_nothing_more(void **state) {
  (void)state;
  begin_link();
  clv_tensor *t = send_value(LARGE_BYTES, w.device_copy);
  copy_range(t, 0, CHUNK_BYTES);
  clv_link_end(w.link, CLV_OK, "over");
  int n_sent_before = w.fake_stream.n_sent;
  copy_range(t, CHUNK_BYTES, LARGE_BYTES);
  assert_int_equal(w.fake_stream.n_sent, n_sent_before);
  /* the two references are those of the pool and of this test, so the link has released its own */
  assert_int_equal(t->refs, 2);
  clv_tensor_unref(t);
  assert_true(clv_device_copy_try_reset(w.device_copy));
  end_link();
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(chunk_is_sent_once_its_bytes_are_copied),
      cmocka_unit_test(small_tensor_is_sent_once_fully_copied),
      cmocka_unit_test(failed_device_copy_ends_the_link),
      cmocka_unit_test(link_end_during_a_copy_sends_nothing_more),
  };
  return cmocka_run_group_tests_name("device_copy", tests, NULL, NULL);
}
