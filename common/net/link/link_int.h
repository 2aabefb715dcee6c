/* SPDX-License-Identifier: Apache-2.0
 *
 * The inside of a link. Files, lowest first; each calls only those above its line:
 *
 *   crc.c            sums of parts
 *   transport_rpc.c  gRPC as the transport of lanes, which knows no link
 *   frame_writer.c   encodes frames and writes them to the streams of the lanes
 *   recv_window.c    counts received bytes, and returns them to the peer as CREDIT
 *   packet.c         packets; packet_frames.c fills in those of contexts
 *   device_copy.c    how much of a tensor is copied from a device, and which queues wait for it
 *   pace.c           congestion window: decides which chunk is sent when, without clock or network
 *   send_queue.c     packets and chunks that wait for credit, pace or a device copy
 *   progress.c       advances device copies and wakes the send queues
 *   reassembly.c     puts received chunks together to whole packets
 *   link_state.c           states of a link, from its first lane to its end
 *   counters.c          counters and load of a link
 *   lane.c           receives the frames of a stream, by the state of its lane
 *   link.c           makes, dials and closes links
 *   link_rpc.c       makes and accepts links over gRPC
 *
 * One logical stream over 1 + k streams, each on a connection of its own. Lane 0 carries every
 * frame that is not about chunks, so that an ABORT overtakes a large tensor; the bulk lanes share
 * the chunks, one after the other. Chunks and the head they belong to arrive in any order:
 * whichever comes first makes the entry in `partial`, and the packet is delivered when all its
 * tensors are whole.
 *
 * The chunks of a tensor are queued before its head, so that each is summed when it leaves, or as
 * it comes, and no pass over the whole tensor stands before or after the transfer.
 *
 * Locks: a link's, then its recv_window's or its writer's; none is held over a call out.
 */
#ifndef CLEAVE_LINK_INT_H
#define CLEAVE_LINK_INT_H

#include <pthread.h>

#include "common/net/link/link.h"

enum {
  MAX_LANES = 1 + CLV_WIRE_LANES,
  MAX_PARTIAL = 512,
  MAX_SPANS = 512,       /* of one tensor on its way: chunks may come in any order */
  KEPT_SPANS = 64,       /* memory for these is reused from tensor to tensor */
  PREALLOC_PARTIAL = 32, /* tensors that may be on their way before memory is taken for spans */
  KEPT_HEADS = 16,
  PREALLOC_HEADS = 6,
  HEAD_BYTES = 512, /* of most frames */
  /* Packets of a peer that are not freed yet: the work of a step, several times over. */
  MAX_PACKETS = 2 * CLV_WIRE_CONTRIBUTIONS,
  CLOSE_TIMEOUT_MS = 500,    /* for the peer to end its side of a lane */
  CANCEL_TIMEOUT_MS = 10000, /* for a cancelled lane to be gone */
  LONG_WAIT_NS = 1000000,    /* what lies between two frames of one burst is shorter */
  ASK_MS = 100,              /* between two PINGs of clv_link_ping_async */
  MAX_UNSENT = MAX_PACKETS,  /* frames on the control lane that the peer does not take */
  INITIAL_CHUNKS = 256,      /* memory for these is taken with the first */
  MAX_PROBES = 256,          /* more than a window has, also on 16 lanes */
  FIRST_WINDOW = 1 << 20,    /* bytes of chunks on their way, before anything is known */
  LEAST_WINDOW = 2 * CLV_WIRE_CHUNK_BYTES, /* one on its way while the other is reported */
  MOST_WINDOW = 256 << 20,
};

/* ---- transport_rpc.c ------------------------------------------------------------------------- */

extern const clv_transport clv_transport_rpc;

/* For clv_link_start; `dial` is read until it returns. `events` are those of each stream, with a
 * lane for their user. */
clv_code clv_dialler_rpc(clv_rpc_runtime *runtime, const clv_link_dial *dial,
                         const clv_rpc_stream_events *events, clv_dialler *ret,
                         clv_err *err) CLV_USE_RESULT;

/* ---- frame_writer.c -------------------------------------------------------------------------- */

/* A stream and the transport that carries it; zero: none. */
typedef struct clv_stream {
  const clv_transport *of;
  void *is;
} clv_stream;

clv_stream clv_stream_ref(clv_stream s);
void clv_stream_unref(clv_stream *s);

/* Frame writer of a link: encodes frames and hands them to the streams of the lanes.
 * Reference-counted, because a packet that is freed after its link still grants credit here. */
typedef struct clv_frame_writer {
  pthread_mutex_t lock;
  int refs;
  char peer[CLV_WIRE_NAME + 1];
  clv_stream streams[MAX_LANES];
  bool shut, broken; /* shut: refuses to send; broken: shut, and the link is not notified yet */
  clv_code code;     /* reason of shut */
  char text[CLV_ERR_TEXT];
  clv_bytes heads[KEPT_HEADS]; /* encode buffers, reused */
  size_t n_heads;
  uint32_t n_unsent; /* messages on lane 0 that the transport has not accepted; atomic */
  uint64_t bytes_out, messages_out; /* atomic */
} clv_frame_writer;

clv_code clv_frame_writer_new(const char *peer, clv_frame_writer **ret,
                              clv_err *err) CLV_USE_RESULT;
clv_frame_writer *clv_frame_writer_ref(clv_frame_writer *o);
void clv_frame_writer_unref(clv_frame_writer *o); /* NULL is allowed */

/* Sets the stream of a lane and takes a reference. Cancels the stream when the writer is shut. */
void clv_frame_writer_attach(clv_frame_writer *o, uint32_t index, clv_stream s);
void clv_frame_writer_detach(clv_frame_writer *o, uint32_t index); /* the stream has ended */

/* A piece of `len` bytes of the tensor. Takes over a reference to the tensor. */
clv_rpc_piece clv_frame_writer_piece(clv_tensor *t, size_t offset, size_t len);

/* One frame on one lane: the encoded head is copied by the transport, payload pieces go by
 * reference. pieces[0] is filled in here; pieces[1..n_payload] hold `payload` bytes and are taken
 * over in all cases. CLV_UNAVAILABLE without a stream. */
clv_code clv_frame_writer_send(clv_frame_writer *o, uint32_t index, const clv_frame *f,
                               clv_rpc_piece *pieces, size_t n_payload, size_t payload,
                               clv_err *err) CLV_USE_RESULT;
clv_code clv_frame_writer_send_plain(clv_frame_writer *o, const clv_frame *f,
                                     clv_err *err) CLV_USE_RESULT;
/* Keeps a frame of lane 0 to send it in one message with the next frame there, in front of it, or
 * with clv_frame_writer_flush. False: the caller has to send it by itself. Copies the pieces, which
 * stay the caller's. */
bool clv_frame_writer_coalesce(clv_frame_writer *o, const clv_frame *f,
                               const clv_rpc_piece *payload, size_t n_payload,
                               size_t bytes) CLV_USE_RESULT;
void clv_frame_writer_flush(clv_frame_writer *o);
void clv_frame_writer_sent(clv_frame_writer *o); /* the transport has accepted a frame of lane 0 */
bool clv_frame_writer_defer(clv_frame_writer *o, clv_rpc_job *job) CLV_USE_RESULT;

/* Shuts the writer: later sends fail, and all streams are closed (CLV_OK) or cancelled (other
 * codes). Only the first call counts. */
void clv_frame_writer_shut(clv_frame_writer *o, clv_code code, const char *text);
/* Cancels the streams that have not ended. Their lanes receive the end. */
void clv_frame_writer_cancel(clv_frame_writer *o, clv_code code, const char *text);
/* Cancels all streams after a failed send. Does nothing if the writer is already shut or broken. */
void clv_frame_writer_fail(clv_frame_writer *o, const clv_err *why);
clv_code clv_frame_writer_refuse(clv_frame_writer *o,
                                 clv_err *err) CLV_USE_RESULT; /* says why it is shut */

/* ---- device_copy.c --------------------------------------------------------------------------- */

struct clv_send_queue;

/* A send queue that waits until the first `bytes` are copied, or until the copy has failed. */
typedef struct clv_copy_waiter {
  struct clv_copy_waiter *next;
  struct clv_send_queue *of;
  size_t bytes;
} clv_copy_waiter;

/* True: the bytes are there or the copy has failed, and `a` was not queued. False: it waits. */
bool clv_device_copy_wait(clv_device_copy *c, clv_copy_waiter *a);
/* True: `a` was waiting and is taken out. False: it did not wait, or clv_device_copy_next_waiter
 * has returned it. */
bool clv_device_copy_cancel_wait(clv_device_copy *c, clv_copy_waiter *a);
/* _record notes that the first `bytes` are copied, or why the copy failed. _next_waiter then
 * returns each send queue to wake, NULL at the end. */
void clv_device_copy_record(clv_device_copy *c, size_t bytes, const clv_err *failure);
struct clv_send_queue *clv_device_copy_next_waiter(clv_device_copy *c);
/* The failure of the copy, unless the first `bytes` are there or may still come. */
clv_code clv_device_copy_check(clv_device_copy *c, size_t bytes, clv_err *err) CLV_USE_RESULT;

/* ---- recv_window.c --------------------------------------------------------------------------- */

/* Receive window of a link: bytes of tensors received and not yet returned as CREDIT.
 * Reference-counted; each received packet has a reference. */
typedef struct clv_recv_window {
  pthread_mutex_t lock;
  int refs;
  clv_frame_writer *writer;
  uint64_t limit;          /* bytes of tensors that this side accepts at once */
  uint64_t used_bytes;     /* of tensors received, for which no CREDIT was sent */
  uint64_t credit_pending; /* of these, bytes that are free again; CREDIT is not sent yet */
  uint32_t n_packets;      /* received and not freed yet */
  void *memory;            /* of the link, freed with the window: packets read the link's name */
} clv_recv_window;

/* Takes `memory` when it succeeds. */
clv_code clv_recv_window_new(clv_frame_writer *writer, uint64_t most, void *memory,
                             clv_recv_window **ret, clv_err *err) CLV_USE_RESULT;
clv_recv_window *clv_recv_window_ref(clv_recv_window *r);
void clv_recv_window_unref(clv_recv_window *r); /* NULL is allowed */

/* Counts one packet more. CLV_EXHAUSTED over MAX_PACKETS, unless `anyway`. */
clv_code clv_recv_window_add_packet(clv_recv_window *r, bool anyway, clv_err *err) CLV_USE_RESULT;
/* Counts `bytes` that the peer sends. CLV_EXHAUSTED over what the peer was granted. */
clv_code clv_recv_window_consume(clv_recv_window *r, uint64_t bytes, clv_err *err) CLV_USE_RESULT;
/* Returns the bytes of a packet that is freed. Bundles grants: sends CREDIT when a quarter of the
 * limit is pending, or when all that is used is. */
void clv_recv_window_release(clv_recv_window *r, uint64_t bytes); /* NULL is allowed */

/* ---- pace.c ---------------------------------------------------------------------------------- */

/* Part of a tensor that waits until it may leave. */
typedef struct clv_chunk {
  clv_tensor *tensor;
  uint64_t transfer, offset;
  size_t len;
} clv_chunk;

/* A chunk, its lane, and the numbers of PINGs to send before it on lane 0 and behind it; 0:
 * none. */
typedef struct clv_chunk_send {
  clv_chunk chunk;
  uint32_t index;
  uint64_t before, after;
} clv_chunk_send;

/* A PING behind chunks: its PONG reports the first `until` bytes of the lane. */
typedef struct clv_probe {
  uint64_t number, until, at; /* at: when it was sent, ns */
  uint64_t in_flight;         /* bytes of chunks on their way then */
  uint32_t lane;
} clv_probe;

#define PROBE_BIT (UINT64_C(1) << 63) /* in the message of a PING that reports chunks */

/* Bytes are those of chunks. One thread at a time. */
typedef struct clv_pace {
  clv_chunk *chunks; /* a ring */
  size_t first, n_chunks, cap_chunks;
  uint32_t n_lanes, next_lane;
  uint64_t window, in_flight;
  uint64_t kept; /* the window while it is closed to measure the way; else 0 */
  uint64_t sent[MAX_LANES], probed[MAX_LANES], reported[MAX_LANES];
  uint64_t settled[MAX_LANES]; /* sent when no probe was open: taken for arrived */
  clv_probe probes[MAX_PROBES];
  uint32_t n_probes;
  uint64_t last_probe;
  uint64_t shortest, shortest_before, period_began, changed; /* ns */
} clv_pace;

void clv_pace_init(clv_pace *p);
void clv_pace_clear(clv_pace *p); /* what waits; nothing more may come */
/* A chunk waits; its tensor gets a reference. */
clv_code clv_pace_queue(clv_pace *p, const clv_chunk *c, clv_err *err) CLV_USE_RESULT;
/* The chunk that may leave now, which is the caller's. False: there is none. */
bool clv_pace_next(clv_pace *p, uint64_t now, clv_chunk_send *ret);
/* The PONG to a probe. CLV_INVALID: none such is open. */
clv_code clv_pace_report(clv_pace *p, uint64_t number, uint64_t now, clv_err *err) CLV_USE_RESULT;
/* Bytes of chunks on their way, as far as probes ask for them. */
uint64_t clv_pace_in_flight(const clv_pace *p);

/* ---- send_queue.c ---------------------------------------------------------------------------- */

/* Send queue of a link: packets and chunks that wait for credit, for the pace or for a device copy.
 * Reference-counted; each of its jobs has a reference. */
typedef struct clv_send_queue {
  pthread_mutex_t lock;
  int refs;
  clv_frame_writer *writer;
  clv_clock clock;
  bool ended;                        /* sends nothing any more */
  uint64_t credit_left, credit_full; /* bytes of tensors we may send */
  clv_packet *first, *last;          /* wait for credit, or for those in front of them */
  bool draining, sending;            /* the job is queued or runs */
  clv_packet *partially_sent;        /* waits for bytes of its tensors */
  clv_copy_waiter awaiting;          /* for these bytes; owns a reference while it waits */
  clv_rpc_job drain, send;
  uint64_t next_transfer, tensors_out; /* atomic */
  clv_pace pace;
} clv_send_queue;

clv_code clv_send_queue_new(clv_frame_writer *writer, const clv_clock *clock, uint64_t credit,
                            clv_send_queue **ret, clv_err *err) CLV_USE_RESULT;
clv_send_queue *clv_send_queue_ref(clv_send_queue *d);
void clv_send_queue_unref(clv_send_queue *d); /* NULL is allowed */

/* Set the number of lanes, and the credit that the peer grants at the start. */
void clv_send_queue_lanes(clv_send_queue *d, uint32_t n_lanes);
void clv_send_queue_grant(clv_send_queue *d, uint64_t credit);
/* Takes the packet; as clv_link_send. */
clv_code clv_send_queue_send(clv_send_queue *d, clv_packet *p, clv_err *err) CLV_USE_RESULT;
/* Adds `bytes` of credit and sends packets that waited for it. */
void clv_send_queue_credit(clv_send_queue *d, uint64_t bytes);
/* Handles the PONG to a probe and sends chunks that waited for it. */
clv_code clv_send_queue_pong(clv_send_queue *d, uint64_t number, clv_err *err) CLV_USE_RESULT;
/* Resumes sending after the device copy that d->awaiting waited for has advanced or failed.
 * Consumes the reference of d->awaiting. */
void clv_send_queue_resume(clv_send_queue *d);
/* Stops sending and drops what waits. */
void clv_send_queue_end(clv_send_queue *d);
/* Adds the bytes and frames that wait or are in flight to *load. */
void clv_send_queue_load(clv_send_queue *d, clv_link_load *load);

/* ---- reassembly.c ---------------------------------------------------------------------------- */

/* Bytes [from, to) of a tensor that a chunk has claimed. */
typedef struct clv_span {
  uint64_t from, to;
} clv_span;

/* A tensor of which a part was received. `packet` is NULL until the head is received. */
typedef struct clv_partial_tensor {
  uint64_t transfer, total, claimed, received; /* claimed: by chunks that are being copied, too */
  clv_tensor *tensor;                          /* NULL: over the quota; its bytes are dropped */
  clv_packet *packet;
  uint32_t slot, crc32c;
  clv_span *spans; /* [n_spans] apart from each other, in order; kept by the place in the table */
  size_t n_spans, cap_spans;
} clv_partial_tensor;

/* State of a tensor that is received in parts. The table of actions is in reassembly.c. */
typedef enum clv_partial_tensor_state {
  CLV_PARTIAL_NONE,     /* nothing */
  CLV_PARTIAL_HEADLESS, /* bytes, and not its head */
  CLV_PARTIAL_BYTES,    /* all bytes, and not its head */
  CLV_PARTIAL_HEADED,   /* its head; bytes are missing */
  CLV_PARTIAL_COMPLETE, /* all of it; the packet waits for other tensors */
  CLV_PARTIAL_STATES
} clv_partial_tensor_state;
typedef enum clv_partial_tensor_event {
  CLV_PARTIAL_HEAD,
  CLV_PARTIAL_CHUNK,
  CLV_PARTIAL_EVENTS
} clv_partial_tensor_event;

typedef struct clv_reassembly {
  pthread_mutex_t lock;
  clv_recv_window *recv_window;
  clv_pool *pool;
  clv_link *link; /* whose packets say that they came from it */
  clv_clock clock;
  bool quota_fails_packet;
  clv_err refusal; /* of the last tensor that was over the quota */
  clv_partial_tensor in[MAX_PARTIAL];
  size_t n_in;
  uint64_t tensors_in; /* atomic */
  uint64_t received_bytes, receiving_ns;
  uint64_t receiving_since; /* chunks, 0: none on their way */
} clv_reassembly;

clv_code clv_reassembly_init(clv_reassembly *a, const clv_link_options *o, clv_link *link,
                             clv_recv_window *recv_window, clv_err *err) CLV_USE_RESULT;
void clv_reassembly_end(clv_reassembly *a);  /* the packets of half-received tensors are freed */
void clv_reassembly_done(clv_reassembly *a); /* also after a failed or without an _init */

clv_partial_tensor_state clv_reassembly_state(clv_reassembly *a, uint64_t transfer);
/* A CHUNK. *ret is a packet that is whole with it, else NULL. */
clv_code clv_reassembly_add_chunk(clv_reassembly *a, const clv_frame *f, const clv_piece *pieces,
                                  const clv_payload *payload, clv_packet **ret,
                                  clv_err *err) CLV_USE_RESULT;
/* A frame that is a packet, and of a CALL whose tensors come in chunks its announcement (else
 * NULL), which is to be delivered before clv_reassembly_add_packet. */
clv_code clv_reassembly_new_packet(clv_reassembly *a, const clv_frame *f, clv_packet **ret_packet,
                                   clv_packet **ret_head, clv_err *err) CLV_USE_RESULT;
/* Takes the packet, and gives it in *ret if it is whole. */
clv_code clv_reassembly_add_packet(clv_reassembly *a, clv_packet *p, const clv_piece *pieces,
                                   const clv_payload *payload, clv_packet **ret,
                                   clv_err *err) CLV_USE_RESULT;
/* Bytes of tensors that came in chunks, and the time in which some were on their way. */
void clv_reassembly_measure(clv_reassembly *a, uint64_t *ret_bytes, uint64_t *ret_ns);
void clv_reassembly_load(clv_reassembly *a, clv_link_load *load);

/* ---- link_state.c ---------------------------------------------------------------------------- */

/* The action for each fact stands in a table in link_state.c. */
typedef enum clv_link_state {
  CLV_LINK_NEW,       /* no lane yet */
  CLV_LINK_ATTACHING, /* not all lanes are attached */
  CLV_LINK_OPEN,      /* all are */
  CLV_LINK_ENDING,    /* it has ended, some lanes have not */
  CLV_LINK_ENDED,     /* no lane is left */
  CLV_LINK_STATES
} clv_link_state;
typedef enum clv_link_state_event {
  CLV_LINK_LANE_JOINS,    /* a lane is dialled, or says ATTACH */
  CLV_LINK_LANE_ATTACHED, /* a lane is attached */
  CLV_LINK_ENDS,          /* of a lane, over a message, or because somebody wants it */
  CLV_LINK_LANE_ENDED,    /* a lane has ended; END was said before */
  CLV_LINK_STATE_EVENTS
} clv_link_state_event;

/* Input of a fact of a link; the table sets `first` if this END is the first. */
typedef struct clv_link_event_args {
  uint32_t index, lanes; /* JOIN, GONE; lanes: how many there will be */
  clv_code code;         /* END */
  const char *text;
  bool first;
} clv_link_event_args;

struct clv_link {
  pthread_mutex_t lock;   /* of what follows down to the next gap */
  pthread_cond_t changed; /* attached, ended, a lane gone, pong */
  clv_link_state life;
  bool lanes[MAX_LANES]; /* which there are */
  uint32_t n_lanes, n_joined, n_attached;
  clv_code close_code;
  char close_text[CLV_ERR_TEXT];
  uint64_t ping_sent_ns, pings, pongs;
  uint64_t quickest_ns; /* PING so far */
  clv_link_counts counts;

  int refs;
  char peer[CLV_WIRE_NAME + 1];
  bool refused; /* atomic: over a message that makes no sense */
  clv_clock clock;
  clv_wire_limits accept;
  clv_link_events events;
  clv_dialler dialler; /* dialling side, until it has hung up */
  clv_frame_writer *writer;
  clv_recv_window *recv_window;
  clv_send_queue *out;
  clv_reassembly in;
};

/* Notes a fact; CLV_PRECONDITION where the table refuses it. */
clv_code clv_link_on_event(clv_link *l, clv_link_state_event fact, clv_link_event_args *n,
                           clv_err *err) CLV_USE_RESULT;
/* The first end of any lane ends the link: streams are cancelled, what waits is dropped. */
void clv_link_end(clv_link *l, clv_code code, const char *text);
/* A lane of it has ended. */
void clv_link_lane_ended(clv_link *l, uint32_t index);
void clv_link_hang_up(clv_link *l);
/* Under the lock, BLOCKS until something has changed. False: it is later than `deadline_ns`, or
 * nobody may wait because a clock was handed in. */
bool clv_link_wait(clv_link *l, uint64_t deadline_ns);

/* ---- counters.c ------------------------------------------------------------------------------ */

/* A PING of the peer: what is measured here goes with the answer. */
clv_frame clv_link_pong(clv_link *l, const clv_frame *ping);
/* CLV_INVALID: it answers no PING that is out. */
clv_code clv_link_note_pong(clv_link *l, const clv_frame *pong, clv_err *err) CLV_USE_RESULT;

/* ---- lane.c ---------------------------------------------------------------------------------- */

/* The action for each kind of frame stands in a table in lane.c. */
typedef enum clv_lane_state {
  CLV_LANE_ACCEPTED, /* ATTACH is to come */
  CLV_LANE_DIALLED,  /* ATTACHED is to come */
  CLV_LANE_CONTROL,  /* attached, lane 0 */
  CLV_LANE_BULK,     /* attached, another */
  CLV_LANE_STATES
} clv_lane_state;

struct clv_lane {
  clv_link *link;    /* NULL until ATTACH is understood (accepting side) */
  clv_stream stream; /* accepting side */
  uint32_t index;
  clv_lane_state state;
  const clv_lane_acceptor *acceptor;
  char uri[CLV_WIRE_URI + 1];
};

/* Makes a lane of the dialling side. The lane takes a reference to the link. */
clv_code clv_lane_new_dialled(clv_link *l, uint32_t index, clv_lane **ret,
                              clv_err *err) CLV_USE_RESULT;

/* A decoded frame of an attached lane. An error ends the link. */
clv_code clv_link_on_frame(clv_link *l, uint32_t index, const clv_frame *f, const clv_piece *pieces,
                           const clv_payload *payload, clv_err *err) CLV_USE_RESULT;

/* ---- crc.c ----------------------------------------------------------------------------------- */

/* The part of a CRC32C that a chunk with the sum `crc` contributes when `bytes` follow it; the sum
 * of the whole is the exclusive or of all parts. */
uint32_t clv_crc32c_shift(uint32_t crc, uint64_t bytes);

#endif
