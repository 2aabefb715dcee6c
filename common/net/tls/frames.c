/* SPDX-License-Identifier: Apache-2.0
 *
 * Accounting of the HTTP/2 frames of an accepted connection. gRPC 1.51 answers many frames itself
 * (a GET, an unknown path, SETTINGS, PING), keeps memory for each until its answer is sent, and
 * reports none. So every frame is charged to a leaky bucket of its kind, and calls and messages
 * that gRPC delivers to the program are credited. A bucket that overflows ends the connection.
 *
 * Only the 9-byte header of each frame is read. Nothing is decoded or stored.
 */
#include <string.h>

#include "common/net/tls/tls_int.h"

enum {
  PREFACE = 24,
  FRAME_HEADER_BYTES = CLV_TLS_FRAME_HEAD,
  SMALL_FRAME_BYTES = 1024,
  MAX_HEADER_BLOCK = 64 << 10
};
/* bytes per second that are subtracted from a connection's unread bytes, because calls that end
 * early leave some bytes that gRPC never delivers */
enum { UNREAD_LEAKS_PER_S = 64 << 10 };

enum { DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE };
enum { CONTINUATION = 9, END_HEADERS = 4 };

/* Limits of the buckets. An honest client has at most 128 requests in flight. Its DATA frames below
 * 1 KiB count only until gRPC has delivered their message. It sends only a few other frames a
 * second. */
static const struct {
  uint32_t bucket_limit, leaks_per_s;
  const char *excess_text;
} buckets[CLV_TLS_BUCKETS] = {
    [CLV_TLS_REQUESTS] = {256, 20, "requests that are no calls"},
    [CLV_TLS_CONTROL] = {1000, 200, "HTTP/2 frames that carry neither calls nor data"},
    [CLV_TLS_WINDOWS] = {100000, 5000, "more WINDOW_UPDATE frames than data was sent"},
    [CLV_TLS_SMALL_DATA] = {200000, 1000, "messages in pieces of a few bytes"},
};

/* ---- leaky buckets of a connection ----------------------------------------------------------- */

static void leak_buckets(clv_tls_frame_meter *f, uint64_t now_ns) {
  uint64_t s = (now_ns - f->buckets_leaked_until_ns) / 1000000000u;
  if (s == 0) return;
  f->buckets_leaked_until_ns += s * 1000000000u;
  f->unread_bytes -= CLV_MIN(s * UNREAD_LEAKS_PER_S, f->unread_bytes);
  for (int i = 0; i < CLV_TLS_BUCKETS; i++) {
    uint64_t out = CLV_MIN(s, 1u << 20) * buckets[i].leaks_per_s;
    f->bucket_levels[i] -= (uint32_t)CLV_MIN(out, f->bucket_levels[i]);
  }
}

static const char *charge_bucket(clv_tls_frame_meter *f, clv_tls_bucket bucket, uint32_t amount) {
  f->bucket_levels[bucket] += amount;
  return f->bucket_levels[bucket] > buckets[bucket].bucket_limit ? buckets[bucket].excess_text
                                                                 : NULL;
}

void clv_tls_frame_meter_credit(clv_tls_frame_meter *f, clv_tls_bucket bucket, uint32_t amount) {
  f->bucket_levels[bucket] -= CLV_MIN(amount, f->bucket_levels[bucket]);
}

/* Credits a message that gRPC has delivered, with its 5-byte prefix. Up to 3 of the message's
 * frames are small: its last one, the empty frame that ends a stream, and one cut by a window. */
void clv_tls_frame_meter_credit_message(clv_tls_frame_meter *f, size_t bytes) {
  clv_tls_frame_meter_credit(f, CLV_TLS_SMALL_DATA, 3);
  f->unread_bytes -= CLV_MIN((uint64_t)bytes + 5, f->unread_bytes);
}

/* ---- charging the frames of a connection ----------------------------------------------------- */

/* Charges a HEADERS or CONTINUATION frame. Refuses a header block whose frames have more than
 * MAX_HEADER_BLOCK bytes together. */
static const char *charge_headers(clv_tls_frame_meter *f, unsigned type, unsigned flags,
                                  uint32_t stream, uint32_t len) {
  if (type == HEADERS) f->header_block_bytes = 0;
  f->header_block_bytes += len;
  if (f->header_block_bytes > MAX_HEADER_BLOCK) return "a block of headers above 64 KiB";
  if (flags & END_HEADERS) f->header_block_bytes = 0;
  if (type != HEADERS || stream <= f->last_stream_id) return charge_bucket(f, CLV_TLS_CONTROL, 1);
  f->last_stream_id = stream;
  return charge_bucket(f, CLV_TLS_REQUESTS, 1);
}

static const char *charge_frame(clv_tls_frame_meter *f) {
  const uint8_t *h = f->frame_header;
  uint32_t len = (uint32_t)h[0] << 16 | (uint32_t)h[1] << 8 | h[2];
  uint32_t stream =
      ((uint32_t)h[5] << 24 | (uint32_t)h[6] << 16 | (uint32_t)h[7] << 8 | h[8]) & 0x7fffffffu;
  unsigned type = h[3];
  f->bytes_to_skip = len;
  if (type == HEADERS || type == CONTINUATION) return charge_headers(f, type, h[4], stream, len);
  if (type == DATA) f->unread_bytes += len;
  if (type == DATA) return len < SMALL_FRAME_BYTES ? charge_bucket(f, CLV_TLS_SMALL_DATA, 1) : NULL;
  if (type == WINDOW_UPDATE) return charge_bucket(f, CLV_TLS_WINDOWS, 1);
  return charge_bucket(f, CLV_TLS_CONTROL, 1 + len / 256);
}

void clv_tls_frame_meter_init(clv_tls_frame_meter *f, uint64_t now_ns) {
  *f = (clv_tls_frame_meter){.bytes_to_skip = PREFACE, .buckets_leaked_until_ns = now_ns};
}

const char *clv_tls_frame_meter_charge(clv_tls_frame_meter *f, const uint8_t *data, size_t len,
                                       uint64_t now_ns) {
  const char *excess = NULL;
  leak_buckets(f, now_ns);
  while (len > 0 && !excess) {
    size_t n = f->bytes_to_skip ? CLV_MIN(len, f->bytes_to_skip)
                                : CLV_MIN(len, (size_t)(FRAME_HEADER_BYTES - f->n_header_bytes));
    if (f->bytes_to_skip) {
      f->bytes_to_skip -= (uint32_t)n;
    } else {
      memcpy(f->frame_header + f->n_header_bytes, data, n);
      f->n_header_bytes = (uint8_t)(f->n_header_bytes + n);
    }
    data += n;
    len -= n;
    if (f->n_header_bytes < FRAME_HEADER_BYTES) continue;
    f->n_header_bytes = 0;
    excess = charge_frame(f);
  }
  return excess;
}
