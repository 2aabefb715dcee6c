/* SPDX-License-Identifier: Apache-2.0
 *
 * Fuzzes every decoder of the wire. The first byte of an input picks the decoder, the second says
 * how the rest, the message, is cut into pieces. An accepted message is encoded and decoded again
 * to the same frame.
 */
#include "common/net/wire/wire.h"
#include "tests/fuzz/never.h"

#include <stdlib.h>
#include <string.h>

enum { PIECES = 64 };

typedef struct input {
  clv_piece pieces[PIECES];
  size_t n;
} input;

/* Cuts the input into pieces of `step` bytes, and a last one with the rest; step 0: one piece. Each
 * is a separate heap block, so that address sanitizer detects reads beyond its end. */
static input cut_input(const uint8_t *data, size_t size, size_t step) {
  input in = {.n = 0};
  while (size || !in.n) {
    size_t n = step && in.n + 1 < PIECES && size > step ? step : size;
    void *copy = malloc(n ? n : 1);
    if (n) memcpy(copy, data, n);
    in.pieces[in.n++] = (clv_piece){copy, n};
    data += n;
    size -= n;
  }
  return in;
}

static void free_input(input *in) {
  for (size_t i = 0; i < in->n; i++) free((void *)(uintptr_t)in->pieces[i].data);
}

static void assert_holds(bool holds) { NEVER(!holds); }

static void check_encoding(const input *in, const clv_frame *read, clv_payload payload) {
  clv_frame frame = *read, parsed_again;
  clv_payload payload_again;
  clv_wire_limits limits = clv_wire_limits_default();
  clv_err err;
  uint8_t *bytes = malloc(payload.len + 1);
  clv_payload_copy(in->pieces, &payload, 0, payload.len, bytes);
  assert_holds(clv_payload_crc32c(in->pieces, &payload, 0, payload.len) ==
               clv_crc32c(0, bytes, payload.len));
  CLV_AUTO(clv_freep) uint8_t *past_cache = malloc(payload.len + 1);
  assert_holds(past_cache && clv_payload_copy_past_cache(in->pieces, &payload, past_cache) ==
                                 clv_crc32c(0, bytes, payload.len));
  assert_holds(memcmp(past_cache, bytes, payload.len) == 0);
  size_t at = 0, total = 0;
  for (clv_piece piece; clv_payload_next_piece(in->pieces, &payload, &at, &piece);)
    total += piece.len;
  assert_holds(total == payload.len);

  clv_bytes head = {0}, head_again = {0};
  assert_holds(clv_frame_encode(&frame, payload.len, &head, &err) == CLV_OK);
  clv_piece pieces[] = {{head.data, head.len}, {bytes, payload.len}};
  assert_holds(clv_frame_decode(pieces, 2, &limits, &parsed_again, &payload_again, &err) == CLV_OK);
  assert_holds(parsed_again.kind == frame.kind && parsed_again.context == frame.context);
  assert_holds(parsed_again.n_tensors == frame.n_tensors &&
               parsed_again.n_value_ids == frame.n_value_ids);
  assert_holds(memcmp(parsed_again.value_ids, frame.value_ids, sizeof frame.value_ids) == 0);
  assert_holds(payload_again.len == payload.len);
  assert_holds(clv_frame_encode(&parsed_again, payload.len, &head_again, &err) == CLV_OK);
  assert_holds(head_again.len == head.len && memcmp(head_again.data, head.data, head.len) == 0);
  clv_bytes_done(&head);
  clv_bytes_done(&head_again);
  free(bytes);
}

/* Decodes the last frame of a message and the frames before it. Accepted frames must encode
 * again. */
static void fuzz_frame(const input *in) {
  clv_frame frame, earlier_frame;
  clv_payload payload, earlier_payload;
  clv_bundle before;
  clv_wire_limits limits = clv_wire_limits_default();
  clv_err err;
  if (clv_frame_decode_last(in->pieces, in->n, &limits, &before, &frame, &payload, &err) != CLV_OK)
    return;
  assert_holds(before.n_frames <= CLV_WIRE_BUNDLED && (before.n_frames || frame.kind));
  assert_holds((clv_frame_decode(in->pieces, in->n, &limits, &earlier_frame, &earlier_payload,
                                 &err) == CLV_OK) == !before.n_frames);
  for (uint32_t i = 0; i < before.n_frames; i++)
    if (clv_frame_decode_preceding(in->pieces, in->n, &before.frame_positions[i], &limits,
                                   &earlier_frame, &earlier_payload, &err) == CLV_OK)
      check_encoding(in, &earlier_frame, earlier_payload);
  if (frame.kind) check_encoding(in, &frame, payload);
}

/* Decodes a message. An accepted message must encode again; encoding may fail only if unknown
 * fields, which decoding drops, had used up the memory budget. */
#define UNARY(m)                                                              \
  static void fuzz_##m(const input *in) {                                     \
    clv_wire_##m message = {0};                                               \
    clv_bytes bytes = {0};                                                    \
    clv_err err;                                                              \
    if (clv_wire_##m##_decode(in->pieces, in->n, &message, &err) == CLV_OK) { \
      clv_code code = clv_wire_##m##_encode(&message, &bytes, &err);          \
      assert_holds(code == CLV_OK || code == CLV_EXHAUSTED);                  \
    }                                                                         \
    clv_wire_message_clear(&message);                                         \
    clv_bytes_done(&bytes);                                                   \
  }
UNARY(hello_request)
UNARY(hello_reply)
UNARY(open_request)
UNARY(open_reply)
UNARY(close_request)
UNARY(close_reply)
UNARY(load_request)
UNARY(load_reply)
UNARY(status_request)
UNARY(status_reply)
UNARY(kept_request)
UNARY(kept_reply)

/* Answers Hello as a peer whose newest protocol is *user. */
static clv_code answer_hello(void *user, const clv_bytes *request, clv_bytes *ret_reply,
                             clv_err *err) {
  const uint32_t *newest = user;
  CLV_AUTO(clv_wire_message_clear) clv_wire_hello_request q = {0};
  clv_piece piece = {request->data, request->len};
  (void)ret_reply;
  CLV_TRY(clv_wire_hello_request_decode(&piece, 1, &q, err));
  assert_holds(clv_wire_protocol_has_acks(q.about.protocol) || q.about.protocol < 9);
  if (q.about.protocol <= *newest) return CLV_OK;
  return clv_fail(err, CLV_UNIMPLEMENTED, "protocol %u", q.about.protocol);
}

/* Decodes a master's HELLO. Then exchanges a HELLO with the same content with peers of each
 * protocol version, old and new. */
static void fuzz_greeting(const input *in) {
  CLV_AUTO(clv_wire_message_clear) clv_wire_hello_request q = {0};
  clv_err err = {0};
  fuzz_hello_request(in);
  if (clv_wire_hello_request_decode(in->pieces, in->n, &q, &err) != CLV_OK) return;
  for (uint32_t newest = CLV_WIRE_PROTOCOL_MIN - 1; newest <= CLV_WIRE_PROTOCOL; newest++) {
    CLV_AUTO(clv_bytes_done) clv_bytes reply = {0};
    clv_code code = clv_wire_hello_exchange(&q.about, answer_hello, &newest, &reply, &err);
    assert_holds(code == CLV_EXHAUSTED ||
                 (code == CLV_OK ? newest >= CLV_WIRE_PROTOCOL_MIN : code == CLV_UNIMPLEMENTED));
  }
  for (uint32_t i = 0; i < q.about.n_capabilities; i++)
    assert_holds(clv_wire_has_capability(&q.about, q.about.capabilities[i]));
  assert_holds(!clv_wire_has_capability(&q.about, "\n"));
  uint32_t theirs = q.about.limits.peer_timeout_ms,
           shorter = clv_wire_shorter_timeout(15000, theirs);
  assert_holds(shorter >= 1000 && shorter <= 15000);
}

/* Decodes a worker's HELLO, looks up the worker's devices by name, as a master does, and checks the
 * worker's limits. */
static void fuzz_hello(const input *in) {
  static const char *const names[] = {"", "auto", "cpu", "cuda", "cuda:0"};
  clv_wire_hello_reply reply = {0};
  clv_err err = {0};
  fuzz_hello_reply(in);
  if (clv_wire_hello_reply_decode(in->pieces, in->n, &reply, &err) == CLV_OK) {
    for (size_t i = 0; i < CLV_COUNT(names); i++) {
      int at = clv_wire_find_device(&reply, names[i]);
      assert_holds(at >= -1 && at < (int)reply.n_devices);
      assert_holds(at != -1 || i > 1 || !reply.n_devices);
    }
    assert_holds(clv_wire_limits_check(&reply.about.limits, &err) == CLV_OK ||
                 strstr(err.text, "raise "));
  }
  clv_wire_message_clear(&reply);
}

static void fuzz_health(const input *in) {
  char service[CLV_WIRE_NAME + 1], parsed_again[CLV_WIRE_NAME + 1];
  CLV_AUTO(clv_bytes_done) clv_bytes bytes = {0};
  clv_piece piece;
  clv_health status, status_again;
  clv_err err;
  if (clv_wire_health_request_decode(in->pieces, in->n, service, &err) == CLV_OK) {
    assert_holds(clv_wire_health_request_encode(service, &bytes, &err) == CLV_OK);
    piece = (clv_piece){bytes.data, bytes.len};
    assert_holds(clv_wire_health_request_decode(&piece, 1, parsed_again, &err) == CLV_OK &&
                 !strcmp(service, parsed_again));
  }
  if (clv_wire_health_reply_decode(in->pieces, in->n, &status, &err) == CLV_OK) {
    assert_holds(clv_wire_health_reply_encode(status, &bytes, &err) == CLV_OK);
    piece = (clv_piece){bytes.data, bytes.len};
    assert_holds(clv_wire_health_reply_decode(&piece, 1, &status_again, &err) == CLV_OK);
    assert_holds(status == status_again);
  }
}

static void fuzz_reflection(const input *in) {
  clv_bytes reply = {0};
  clv_err err;
  if (clv_wire_answer_reflection(in->pieces, in->n, &reply, &err) == CLV_OK)
    assert_holds(reply.len > 0);
  clv_bytes_done(&reply);
}

static void (*const targets[])(const input *in) = {
    fuzz_frame,         fuzz_greeting,    fuzz_hello,        fuzz_open_request, fuzz_open_reply,
    fuzz_close_request, fuzz_close_reply, fuzz_load_request, fuzz_load_reply,   fuzz_status_request,
    fuzz_status_reply,  fuzz_health,      fuzz_reflection,   fuzz_kept_request, fuzz_kept_reply,
};

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  if (size < 2) return 0;
  input in = cut_input(data + 2, size - 2, data[1]);
  targets[data[0] % CLV_COUNT(targets)](&in);
  free_input(&in);
  return 0;
}
