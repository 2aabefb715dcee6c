/* SPDX-License-Identifier: Apache-2.0
 *
 * The inside of a link: its life and lanes (link.c), what leaves (link_send.c), how fast chunks do
 * (link_pace.c), what comes (link_receive.c), what it tells of itself (link_count.c).
 *
 * One logical stream over 1 + k gRPC streams, each on a connection of its own. Lane 0 carries every
 * frame that is not about chunks, so that an ABORT overtakes a large tensor; the bulk lanes share
 * the chunks in turn. Chunks and the head they belong to arrive in any order: whichever comes first
 * makes the entry in `incoming`, and the packet is delivered when all its tensors are whole.
 *
 * The chunks of a tensor are queued before its head, so that each is summed when it leaves, or as
 * it comes, and no pass over the whole tensor stands before or after the transfer.
 */
#ifndef CLEAVE_LINK_INT_H
#define CLEAVE_LINK_INT_H

#include <pthread.h>

#include "common/link/link.h"

enum {
  MAX_LANES = 1 + CLV_WIRE_LANES,
  MAX_INCOMING = 512,
  MAX_SPANS = 512,     /* of one tensor on its way: chunks may come in any order */
  FEW_SPANS = 64,      /* memory for these is reused from tensor to tensor */
  READY_INCOMING = 32, /* tensors that may be on their way before memory is taken for spans */
  KEPT_HEADS = 16,
  READY_HEADS = 6,
  HEAD_BYTES = 512, /* of most frames */
  /* Packets of a peer that are not freed yet: the work of a step, several times over. */
  MAX_PACKETS = 2 * CLV_WIRE_CONTRIBUTIONS,
  POLITE_CLOSE_MS = 500,    /* for the peer to end its side of a lane */
  CUT_MS = 10000,           /* for a cancelled lane to be gone */
  LONG_WAIT_NS = 1000000,   /* what lies between two frames of one burst is shorter */
  ASK_MS = 100,             /* between two PINGs of clv_link_ask */
  MAX_UNSENT = MAX_PACKETS, /* frames on the control lane that the peer does not take */
  FEW_CHUNKS = 256,         /* memory for these is taken with the first */
  MAX_PROBES = 256,         /* more than a window has, also on 16 lanes */
  FIRST_WINDOW = 1 << 20,   /* bytes of chunks on their way, before anything is known */
  LEAST_WINDOW = 2 * CLV_WIRE_CHUNK_BYTES, /* one on its way while the other is reported */
  MOST_WINDOW = 256 << 20,
};

typedef struct clv_lane {
  clv_link *link; /* NULL until ATTACH is understood (accepting side) */
  clv_rpc_stream *stream;
  uint32_t index;
  bool dialled, attached;
  const clv_lane_acceptor *acceptor;
  char uri[CLV_WIRE_URI + 1];
} clv_lane;

/* Bytes [from, to) of a tensor that a chunk has claimed. */
typedef struct clv_span {
  uint64_t from, to;
} clv_span;

/* A tensor on its way in. `packet` is NULL until its head has come. */
typedef struct clv_incoming {
  uint64_t transfer, total, received;
  clv_tensor *tensor; /* NULL: over the quota; its bytes are dropped */
  clv_packet *packet;
  uint32_t slot, crc32c;
  clv_span *spans; /* [n_spans] apart from each other, in order; kept by the place in the table */
  size_t n_spans, cap_spans;
} clv_incoming;

/* Part of a tensor that waits for its turn. */
typedef struct clv_chunk {
  clv_tensor *tensor;
  uint64_t transfer, offset;
  size_t len;
} clv_chunk;

/* A chunk, its lane, and the numbers of PINGs to send before it on lane 0 and behind it; 0:
 * none. */
typedef struct clv_departure {
  clv_chunk chunk;
  uint32_t index;
  uint64_t before, behind;
} clv_departure;

/* A PING behind chunks: its PONG reports the first `until` bytes of the lane. */
typedef struct clv_probe {
  uint64_t number, until, at; /* at: when it was sent, ns */
  uint64_t in_flight;         /* bytes of chunks on their way then */
  uint32_t lane;
} clv_probe;

#define PROBE_BIT (UINT64_C(1) << 63) /* in the message of a PING that reports chunks */

/* Of what link_pace.c decides; guarded by the link's lock. Bytes are those of chunks. */
typedef struct clv_pace {
  clv_chunk *chunks; /* a ring */
  size_t first, n_chunks, cap_chunks;
  uint32_t next_lane;
  uint64_t window, in_flight;
  uint64_t kept; /* the window while it is closed to measure the way; else 0 */
  uint64_t sent[MAX_LANES], probed[MAX_LANES], reported[MAX_LANES];
  uint64_t settled[MAX_LANES]; /* sent when no probe was open: taken for arrived */
  clv_probe probes[MAX_PROBES];
  uint32_t n_probes;
  uint64_t last_probe;
  uint64_t shortest, shortest_before, period_began, changed; /* ns */
  bool sending;                                              /* `job` is on its way */
  clv_rpc_job job;
} clv_pace;

struct clv_link {
  pthread_mutex_t lock;
  pthread_cond_t changed; /* attached, closed, pong */
  int refs;
  char peer[CLV_WIRE_NAME + 1];
  clv_pool *pool;
  bool quota_fails_packet;
  clv_err refusal; /* of the last tensor that was over the quota */
  clv_wire_limits accept;
  clv_link_events events;

  clv_lane *lanes[MAX_LANES];
  clv_rpc_channel *channels[MAX_LANES]; /* dialling side */
  uint32_t n_lanes, n_attached;
  bool closed;
  clv_code close_code;
  bool refused; /* atomic: over a message that makes no sense */
  char close_text[CLV_ERR_TEXT];

  uint64_t credit_left, credit_full;        /* what we may send */
  uint64_t held_in, credit_due;             /* what the peer has sent and not been given back */
  clv_packet *pending_first, *pending_last; /* wait for credit or for their turn */
  bool draining;                            /* `drain` is on its way to them or at it */
  clv_rpc_job drain;
  uint64_t next_transfer;
  clv_pace pace;

  clv_incoming in[MAX_INCOMING];
  size_t n_in;
  uint32_t n_packets;          /* received and not freed yet */
  uint32_t n_unsent;           /* frames on lane 0 that the transport has not accepted; atomic */
  clv_bytes heads[KEPT_HEADS]; /* encode buffers, reused */
  size_t n_heads;

  clv_link_counts counts;
  uint64_t ping_sent_ns, pings, pongs;
  uint64_t quickest_ns;     /* PING so far */
  uint64_t receiving_since; /* chunks, 0: none on their way */
};

/* The first end of any lane ends the link: streams are cancelled, what waits is dropped. */
void clv_link_end(clv_link *l, clv_code code, const char *text);

/* One frame on one lane: the encoded head is copied by rpc, payload pieces go by reference.
 * pieces[0] is filled in here; pieces[1..n_payload] hold `payload` bytes and are taken over. */
clv_code clv_link_send_frame(clv_link *l, uint32_t index, const clv_frame *f, clv_rpc_piece *pieces,
                             size_t n_payload, size_t payload, clv_err *err) CLV_USE_RESULT;
clv_code clv_link_send_plain(clv_link *l, const clv_frame *f, clv_err *err) CLV_USE_RESULT;

void clv_link_release_tensor(void *tensor); /* of a piece */

/* Under the lock: the time in which chunks were on their way, until now. */
uint64_t clv_link_receiving_ns(const clv_link *l, uint64_t now);

void clv_link_pace_init(clv_pace *p);
void clv_link_pace_drop(clv_pace *p); /* what waits; nothing more may come */

/* A chunk waits for its turn; its tensor gets a reference. */
clv_code clv_link_pace_queue(clv_link *l, const clv_chunk *c, clv_err *err) CLV_USE_RESULT;

/* Under the lock: the chunk that may leave now, which is the caller's. False: there is none. */
bool clv_link_pace_next(clv_link *l, clv_departure *ret);

/* Bytes of chunks on their way, as far as probes ask for them. */
uint64_t clv_link_pace_on_the_way(const clv_pace *p);

/* Send what may leave now of the chunks that wait. */
clv_code clv_link_pace_send(clv_link *l, clv_err *err) CLV_USE_RESULT;

/* The PONG to a probe. */
clv_code clv_link_pace_report(clv_link *l, uint64_t number, clv_err *err) CLV_USE_RESULT;

/* The peer has freed `bytes`: packets that waited for them leave. */
void clv_link_credit_arrived(clv_link *l, uint64_t bytes);

/* A decoded frame of an attached lane. An error ends the link. */
clv_code clv_link_on_frame(clv_link *l, uint32_t index, const clv_frame *f, const clv_piece *pieces,
                           const clv_payload *payload, clv_err *err) CLV_USE_RESULT;

/* `bytes` of tensors received through the link are free again. Grants are bundled: a CREDIT frame
 * leaves when a quarter of what this side accepts is due. */
void clv_link_return_credit(clv_link *link, uint64_t bytes);

/* The part of a CRC32C that a chunk with the sum `crc` contributes when `bytes` follow it; the sum
 * of the whole is the exclusive or of all parts. */
uint32_t clv_crc32c_shift(uint32_t crc, uint64_t bytes);

#endif
