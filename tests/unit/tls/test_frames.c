/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests which frames of a connection are too many: floods of each kind are refused at any cut of
 * their bytes; what honest clients send is never refused, for however long.
 */
#include "tests/unit/tls/fixture.h"

#include "common/net/tls/tls_int.h"

enum { MANY_FRAMES = 1000000 };

static clv_tls_frame_meter f;
static uint64_t now_ns;
static uint32_t stream_id;

static const char *add_frame(unsigned type, unsigned flags, uint32_t id, uint32_t len,
                             size_t piece_bytes) {
  static uint8_t bytes[9 + 16384];
  const uint8_t head[9] = {(uint8_t)(len >> 16), (uint8_t)(len >> 8), (uint8_t)len,
                           (uint8_t)type,        (uint8_t)flags,      (uint8_t)(id >> 24),
                           (uint8_t)(id >> 16),  (uint8_t)(id >> 8),  (uint8_t)id};
  memcpy(bytes, head, 9);
  const char *excess = NULL;
  for (size_t at = 0; at < 9 + len && !excess; at += piece_bytes)
    excess = clv_tls_frame_meter_charge(&f, bytes + at, CLV_MIN(piece_bytes, 9 + len - at), now_ns);
  return excess;
}

static void begin_frames(void) {
  now_ns = 5;
  stream_id = 1;
  clv_tls_frame_meter_init(&f, now_ns);
  assert_null(clv_tls_frame_meter_charge(&f, (const uint8_t *)"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
                                         24, now_ns));
}

/* Sends frames of one kind until they are refused. Returns how many. */
static unsigned send_until_refused(unsigned type, unsigned flags, uint32_t len, bool opens_streams,
                                   const char *wanted_text, size_t piece_bytes) {
  begin_frames();
  for (unsigned n = 1; n < MANY_FRAMES; n++) {
    if (opens_streams) stream_id += 2;
    const char *excess = add_frame(type, flags, stream_id, len, piece_bytes);
    if (!excess) continue;
    assert_string_equal(excess, wanted_text);
    return n;
  }
  return MANY_FRAMES;
}

static void test_each_flood_is_detected_at_its_limit(void **state) {
  (void)state;
  static const char *const control_text = "HTTP/2 frames that carry neither calls nor data";
  for (size_t piece_bytes = 1; piece_bytes < 100000; piece_bytes = piece_bytes * 7 + 2) {
    assert_int_equal(send_until_refused(1, 5, 30, true, "requests that are no calls", piece_bytes),
                     257);
    assert_int_equal(send_until_refused(1, 4, 0, true, "requests that are no calls", piece_bytes),
                     257);
    assert_int_equal(send_until_refused(4, 0, 0, false, control_text, piece_bytes), 1001);
    assert_int_equal(send_until_refused(6, 0, 8, false, control_text, piece_bytes), 1001);
    assert_int_equal(send_until_refused(3, 0, 4, false, control_text, piece_bytes), 1001);
    assert_int_equal(send_until_refused(2, 0, 5, true, control_text, piece_bytes), 1001);
    assert_int_equal(send_until_refused(7, 0, 512, false, control_text, piece_bytes), 334);
    assert_int_equal(send_until_refused(77, 0, 16384, false, control_text, piece_bytes), 16);
    assert_int_equal(send_until_refused(9, 0, 0, false, control_text, piece_bytes), 1001);
    assert_int_equal(
        send_until_refused(9, 0, 16384, false, "a block of headers above 64 KiB", piece_bytes), 5);
  }
  assert_int_equal(
      send_until_refused(8, 0, 4, false, "more WINDOW_UPDATE frames than data was sent", 64),
      100001);
  assert_int_equal(send_until_refused(0, 0, 1, false, "messages in pieces of a few bytes", 64),
                   200001);
  assert_int_equal(send_until_refused(0, 0, 0, false, "messages in pieces of a few bytes", 64),
                   200001);
}

/* The bytes of a header block are not counted any more once the block has ended. */
static void test_completed_header_blocks_are_not_counted(void **state) {
  (void)state;
  begin_frames();
  for (int i = 0; i < 200; i++) {
    assert_null(add_frame(1, 0, stream_id += 2, 16384, 4096));
    assert_null(add_frame(9, 0, stream_id, 16384, 4096));
    assert_null(add_frame(9, 4, stream_id, 16384, 4096));
    clv_tls_frame_meter_credit(&f, CLV_TLS_REQUESTS, 1);
  }
}

/* Normal traffic is never a flood: unlimited calls and messages, and the pings and window updates
 * of a day. */
static void test_normal_traffic_is_never_a_flood(void **state) {
  (void)state;
  begin_frames();
  for (int i = 0; i < MANY_FRAMES; i++) {
    if (i % 10 == 0) assert_null(add_frame(1, 4, stream_id += 2, 60, 4096));
    assert_null(add_frame(0, 0, stream_id, 20, 4096));
    assert_null(add_frame(0, 1, stream_id, 0, 4096));
    assert_null(add_frame(8, 0, 0, 4, 4096));
    clv_tls_frame_meter_credit_message(&f, 15);
    clv_tls_frame_meter_credit(&f, CLV_TLS_WINDOWS, 1);
    if (i % 10 == 0) clv_tls_frame_meter_credit(&f, CLV_TLS_REQUESTS, 1);
    if (i % 100 == 0) assert_null(add_frame(6, 0, 0, 8, 4096));
    now_ns += 1000000;
  }
  assert_int_equal(f.unread_bytes, 0);
}

/* Bytes that belong to no received message are counted. The count decreases slowly with time,
 * because calls may end early. */
static void test_unread_bytes_decrease_by_messages_and_time(void **state) {
  (void)state;
  begin_frames();
  for (int i = 0; i < 64; i++) assert_null(add_frame(0, 0, 1, 16384, 4096));
  assert_int_equal(f.unread_bytes, 1 << 20);
  clv_tls_frame_meter_credit_message(&f, (512 << 10) - 5);
  assert_int_equal(f.unread_bytes, 512 << 10);
  now_ns += 4000000000u;
  assert_null(add_frame(0, 0, 1, 0, 9));
  assert_int_equal(f.unread_bytes, 256 << 10);
  clv_tls_frame_meter_credit_message(&f, 1 << 30);
  assert_int_equal(f.unread_bytes, 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_each_flood_is_detected_at_its_limit),
      cmocka_unit_test(test_completed_header_blocks_are_not_counted),
      cmocka_unit_test(test_normal_traffic_is_never_a_flood),
      cmocka_unit_test(test_unread_bytes_decrease_by_messages_and_time),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
