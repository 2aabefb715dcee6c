/* SPDX-License-Identifier: Apache-2.0
 *
 * The inside of a link. Files, lowest first; each calls only those above its line:
 *
 *   crc.c            sums of parts
 *   transport_rpc.c  gRPC as the transport of lanes, which knows no link
 *   outlet.c         what leaves a link, frame by frame, through the streams of its lanes
 *   receipt.c        what the peer has sent and not been given back; CREDIT
 *   packet.c         packets; packet_frames.c: those of contexts, filled in
 *   pace.c           which chunk may leave when, without clock or network
 *   departures.c     packets and chunks that wait, and the credit they wait for
 *   incoming.c       tensors that come in chunks, whole packets
 *   life.c           from the first lane of a link to its end
 *   count.c          what a link tells of itself
 *   lane.c           what a stream says: a frame is a fact, by the state of its lane
 *   link.c           making, dialling, closing
 *   link_rpc.c       the same over gRPC, whose streams speak to lanes
 *
 * One logical stream over 1 + k streams, each on a connection of its own. Lane 0 carries every
 * frame that is not about chunks, so that an ABORT overtakes a large tensor; the bulk lanes share
 * the chunks, one after the other. Chunks and the head they belong to arrive in any order:
 * whichever comes first makes the entry in `incoming`, and the packet is delivered when all its
 * tensors are whole.
 *
 * The chunks of a tensor are queued before its head, so that each is summed when it leaves, or as
 * it comes, and no pass over the whole tensor stands before or after the transfer.
 *
 * Locks: a link's, then its receipt's or its outlet's; none is held over a call out.
 */
#ifndef CLEAVE_LINK_INT_H
#define CLEAVE_LINK_INT_H

#include <pthread.h>

#include "common/net/link/link.h"

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

/* ---- transport_rpc.c ------------------------------------------------------------------------- */

extern const clv_transport clv_transport_rpc;

/* For clv_link_start; `dial` is read until it returns. `events` are those of each stream, with a
 * lane for their user. */
clv_code clv_dialler_rpc(clv_rpc_runtime *runtime, const clv_link_dial *dial,
                         const clv_rpc_stream_events *events, clv_dialler *ret,
                         clv_err *err) CLV_USE_RESULT;

/* ---- outlet.c -------------------------------------------------------------------------------- */

/* A stream, by what carries it; zero: none. */
typedef struct clv_stream {
  const clv_transport *of;
  void *is;
} clv_stream;

clv_stream clv_stream_ref(clv_stream s);
void clv_stream_unref(clv_stream *s);

/* Counted: a packet that is freed when its link has gone still says so here. */
typedef struct clv_outlet {
  pthread_mutex_t lock;
  int refs;
  char peer[CLV_WIRE_NAME + 1];
  clv_stream streams[MAX_LANES];
  bool shut, broken; /* nothing leaves any more; broken: the link has not heard of it yet */
  clv_code code;     /* why */
  char text[CLV_ERR_TEXT];
  clv_bytes heads[KEPT_HEADS]; /* encode buffers, reused */
  size_t n_heads;
  uint32_t n_unsent; /* messages on lane 0 that the transport has not accepted; atomic */
  uint64_t bytes_out, messages_out; /* atomic */
} clv_outlet;

clv_code clv_outlet_new(const char *peer, clv_outlet **ret, clv_err *err) CLV_USE_RESULT;
clv_outlet *clv_outlet_ref(clv_outlet *o);
void clv_outlet_unref(clv_outlet *o); /* NULL is allowed */

/* The stream of a lane; a reference is taken. Cancelled when the outlet is shut already. */
void clv_outlet_put(clv_outlet *o, uint32_t index, clv_stream s);
void clv_outlet_drop(clv_outlet *o, uint32_t index); /* it has ended */

/* Bytes of a tensor as a piece, which takes over a reference to it. */
clv_rpc_piece clv_outlet_piece(clv_tensor *t, size_t offset, size_t len);

/* One frame on one lane: the encoded head is copied by the transport, payload pieces go by
 * reference. pieces[0] is filled in here; pieces[1..n_payload] hold `payload` bytes and are taken
 * over in all cases. CLV_UNAVAILABLE without a stream. */
clv_code clv_outlet_send(clv_outlet *o, uint32_t index, const clv_frame *f, clv_rpc_piece *pieces,
                         size_t n_payload, size_t payload, clv_err *err) CLV_USE_RESULT;
clv_code clv_outlet_send_plain(clv_outlet *o, const clv_frame *f, clv_err *err) CLV_USE_RESULT;
/* A frame of lane 0 that leaves with the next one there, in front of it, or with
 * clv_outlet_flush. False: it has to leave by itself. Pieces are copied, and stay the caller's. */
bool clv_outlet_enclose(clv_outlet *o, const clv_frame *f, const clv_rpc_piece *payload,
                        size_t n_payload, size_t bytes) CLV_USE_RESULT;
void clv_outlet_flush(clv_outlet *o);
void clv_outlet_sent(clv_outlet *o); /* the transport has accepted a frame of lane 0 */
bool clv_outlet_defer(clv_outlet *o, clv_rpc_job *job) CLV_USE_RESULT;

/* Nothing leaves any more, and every stream ends: closed for CLV_OK, else cancelled. Once. */
void clv_outlet_shut(clv_outlet *o, clv_code code, const char *text);
/* Streams that have not ended are cancelled, of which their lanes hear. */
void clv_outlet_cut(clv_outlet *o, clv_code code, const char *text);
/* The same unless it is shut: something that had to leave could not. */
void clv_outlet_break(clv_outlet *o, const clv_err *why);
clv_code clv_outlet_refuse(clv_outlet *o, clv_err *err) CLV_USE_RESULT; /* says why it is shut */

/* ---- coming.c -------------------------------------------------------------------------------- */

struct clv_departures;

/* Who waits until the first `bytes` are there, or is known that they will not be. */
typedef struct clv_awaiting {
  struct clv_awaiting *next;
  struct clv_departures *of;
  size_t bytes;
} clv_awaiting;

/* True: that is known, and nobody waits. */
bool clv_coming_await(clv_coming *c, clv_awaiting *a);
/* True: it waits no more. False: it did not, or clv_coming_due has had it. */
bool clv_coming_forget(clv_coming *c, clv_awaiting *a);
/* So many are there; the others will not be. Then, each once, who has waited for that; NULL:
 * nobody. */
void clv_coming_set(clv_coming *c, size_t bytes, const clv_err *failure);
struct clv_departures *clv_coming_due(clv_coming *c);
/* CLV_OK where the first `bytes` are there, or may still come. */
clv_code clv_coming_check(clv_coming *c, size_t bytes, clv_err *err) CLV_USE_RESULT;

/* ---- receipt.c ------------------------------------------------------------------------------- */

/* What the peer has sent and not been given back. Counted: each packet that came holds it. */
typedef struct clv_receipt {
  pthread_mutex_t lock;
  int refs;
  clv_outlet *outlet;
  uint64_t most;      /* bytes of tensors this side accepts at once */
  uint64_t held, due; /* due: free again, CREDIT for it has not left */
  uint32_t n_packets; /* received and not freed yet */
  void *memory;       /* goes with it: of the link, whose name packets may ask for */
} clv_receipt;

/* Takes `memory` when it succeeds. */
clv_code clv_receipt_new(clv_outlet *outlet, uint64_t most, void *memory, clv_receipt **ret,
                         clv_err *err) CLV_USE_RESULT;
clv_receipt *clv_receipt_ref(clv_receipt *r);
void clv_receipt_unref(clv_receipt *r); /* NULL is allowed */

/* One packet more; CLV_EXHAUSTED over MAX_PACKETS, unless it is `anyway` counted. */
clv_code clv_receipt_count(clv_receipt *r, bool anyway, clv_err *err) CLV_USE_RESULT;
/* So many bytes come. CLV_EXHAUSTED over what the peer was granted. */
clv_code clv_receipt_hold(clv_receipt *r, uint64_t bytes, clv_err *err) CLV_USE_RESULT;
/* A packet with `bytes` of tensors is free again. Grants are bundled: a CREDIT frame leaves when a
 * quarter of what this side accepts is due, or all that is held, if that is over what it may hold
 * back. */
void clv_receipt_back(clv_receipt *r, uint64_t bytes);

/* ---- pace.c ---------------------------------------------------------------------------------- */

/* Part of a tensor that waits until it may leave. */
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
  uint64_t before, after;
} clv_departure;

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
void clv_pace_drop(clv_pace *p); /* what waits; nothing more may come */
/* A chunk waits; its tensor gets a reference. */
clv_code clv_pace_queue(clv_pace *p, const clv_chunk *c, clv_err *err) CLV_USE_RESULT;
/* The chunk that may leave now, which is the caller's. False: there is none. */
bool clv_pace_next(clv_pace *p, uint64_t now, clv_departure *ret);
/* The PONG to a probe. CLV_INVALID: none such is open. */
clv_code clv_pace_report(clv_pace *p, uint64_t number, uint64_t now, clv_err *err) CLV_USE_RESULT;
/* Bytes of chunks on their way, as far as probes ask for them. */
uint64_t clv_pace_on_the_way(const clv_pace *p);

/* ---- departures.c ---------------------------------------------------------------------------- */

/* Packets and chunks that wait until they may leave. Counted: its jobs hold it. */
typedef struct clv_departures {
  pthread_mutex_t lock;
  int refs;
  clv_outlet *outlet;
  clv_clock clock;
  bool ended;                        /* nothing leaves any more */
  uint64_t credit_left, credit_full; /* bytes of tensors we may send */
  clv_packet *first, *last;          /* wait for credit, or behind those that do */
  bool draining, sending;            /* the jobs are on their way or at work */
  clv_packet *parked;                /* has begun to leave, and waits for bytes of its tensors */
  clv_awaiting awaiting;             /* these; it holds a reference meanwhile */
  clv_rpc_job drain, send;
  uint64_t next_transfer, tensors_out; /* atomic */
  clv_pace pace;
} clv_departures;

clv_code clv_departures_new(clv_outlet *outlet, const clv_clock *clock, uint64_t credit,
                            clv_departures **ret, clv_err *err) CLV_USE_RESULT;
clv_departures *clv_departures_ref(clv_departures *d);
void clv_departures_unref(clv_departures *d); /* NULL is allowed */

/* How many lanes there are, and what the peer grants. */
void clv_departures_lanes(clv_departures *d, uint32_t n_lanes);
void clv_departures_grant(clv_departures *d, uint64_t credit);
/* Takes the packet; as clv_link_send. */
clv_code clv_departures_send(clv_departures *d, clv_packet *p, clv_err *err) CLV_USE_RESULT;
/* The peer has freed `bytes`: packets that waited for them leave. */
void clv_departures_credit(clv_departures *d, uint64_t bytes);
/* The PONG to a probe: chunks that waited for it leave. */
clv_code clv_departures_report(clv_departures *d, uint64_t number, clv_err *err) CLV_USE_RESULT;
/* What it has waited for, with a reference to itself, is known. */
void clv_departures_go_on(clv_departures *d);
/* Nothing leaves any more; what waited is dropped. */
void clv_departures_end(clv_departures *d);
/* Adds what waits and what is on its way. */
void clv_departures_load(clv_departures *d, clv_link_load *load);

/* ---- incoming.c ------------------------------------------------------------------------------ */

/* Bytes [from, to) of a tensor that a chunk has claimed. */
typedef struct clv_span {
  uint64_t from, to;
} clv_span;

/* A tensor on its way in. `packet` is NULL until its head has come. */
typedef struct clv_incoming {
  uint64_t transfer, total, claimed, received; /* claimed: by chunks that are being copied, too */
  clv_tensor *tensor;                          /* NULL: over the quota; its bytes are dropped */
  clv_packet *packet;
  uint32_t slot, crc32c;
  clv_span *spans; /* [n_spans] apart from each other, in order; kept by the place in the table */
  size_t n_spans, cap_spans;
} clv_incoming;

/* By what has come of it. The action for each fact stands in a table in incoming.c. */
typedef enum clv_incoming_state {
  CLV_INCOMING_NONE,     /* nothing */
  CLV_INCOMING_HEADLESS, /* bytes, and not its head */
  CLV_INCOMING_BYTES,    /* all bytes, and not its head */
  CLV_INCOMING_HEADED,   /* its head; bytes are missing */
  CLV_INCOMING_WHOLE,    /* all of it; the packet waits for other tensors */
  CLV_INCOMING_STATES
} clv_incoming_state;
typedef enum clv_incoming_fact {
  CLV_INCOMING_HEAD,
  CLV_INCOMING_CHUNK,
  CLV_INCOMING_FACTS
} clv_incoming_fact;

typedef struct clv_arrivals {
  pthread_mutex_t lock;
  clv_receipt *receipt;
  clv_pool *pool;
  clv_link *link; /* whose packets say that they came from it */
  clv_clock clock;
  bool quota_fails_packet;
  clv_err refusal; /* of the last tensor that was over the quota */
  clv_incoming in[MAX_INCOMING];
  size_t n_in;
  uint64_t tensors_in; /* atomic */
  uint64_t received_bytes, receiving_ns;
  uint64_t receiving_since; /* chunks, 0: none on their way */
} clv_arrivals;

clv_code clv_arrivals_init(clv_arrivals *a, const clv_link_options *o, clv_link *link,
                           clv_receipt *receipt, clv_err *err) CLV_USE_RESULT;
void clv_arrivals_end(clv_arrivals *a);  /* the packets of half-received tensors are freed */
void clv_arrivals_done(clv_arrivals *a); /* also after a failed or without an _init */

clv_incoming_state clv_arrivals_state(clv_arrivals *a, uint64_t transfer);
/* A CHUNK. *ret is a packet that is whole with it, else NULL. */
clv_code clv_arrivals_chunk(clv_arrivals *a, const clv_frame *f, const clv_piece *pieces,
                            const clv_payload *payload, clv_packet **ret,
                            clv_err *err) CLV_USE_RESULT;
/* A frame that is a packet, and of a CALL whose tensors come in chunks its announcement (else
 * NULL), which is to be delivered before clv_arrivals_take. */
clv_code clv_arrivals_packet(clv_arrivals *a, const clv_frame *f, clv_packet **ret_packet,
                             clv_packet **ret_head, clv_err *err) CLV_USE_RESULT;
/* Takes the packet, and gives it in *ret if it is whole. */
clv_code clv_arrivals_take(clv_arrivals *a, clv_packet *p, const clv_piece *pieces,
                           const clv_payload *payload, clv_packet **ret,
                           clv_err *err) CLV_USE_RESULT;
/* Bytes of tensors that came in chunks, and the time in which some were on their way. */
void clv_arrivals_measure(clv_arrivals *a, uint64_t *ret_bytes, uint64_t *ret_ns);
void clv_arrivals_load(clv_arrivals *a, clv_link_load *load);

/* ---- life.c ---------------------------------------------------------------------------------- */

/* The action for each fact stands in a table in life.c. */
typedef enum clv_life {
  CLV_LIFE_NEW,       /* no lane yet */
  CLV_LIFE_ATTACHING, /* not all lanes are attached */
  CLV_LIFE_OPEN,      /* all are */
  CLV_LIFE_ENDING,    /* it has ended, some lanes have not */
  CLV_LIFE_ENDED,     /* no lane is left */
  CLV_LIFE_STATES
} clv_life;
typedef enum clv_life_fact {
  CLV_LIFE_JOIN,     /* a lane is dialled, or says ATTACH */
  CLV_LIFE_ATTACHED, /* a lane is attached */
  CLV_LIFE_END,      /* of a lane, over a message, or because somebody wants it */
  CLV_LIFE_GONE,     /* a lane has ended; END was said before */
  CLV_LIFE_FACTS
} clv_life_fact;

/* What is to be known of a fact, and `first`: this END is the one. */
typedef struct clv_life_note {
  uint32_t index, lanes; /* JOIN, GONE; lanes: how many there will be */
  clv_code code;         /* END */
  const char *text;
  bool first;
} clv_life_note;

struct clv_link {
  pthread_mutex_t lock;   /* of what follows down to the next gap */
  pthread_cond_t changed; /* attached, ended, a lane gone, pong */
  clv_life life;
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
  clv_outlet *outlet;
  clv_receipt *receipt;
  clv_departures *out;
  clv_arrivals in;
};

/* Notes a fact; CLV_PRECONDITION where the table refuses it. */
clv_code clv_life_note_fact(clv_link *l, clv_life_fact fact, clv_life_note *n,
                            clv_err *err) CLV_USE_RESULT;
/* The first end of any lane ends the link: streams are cancelled, what waits is dropped. */
void clv_link_end(clv_link *l, clv_code code, const char *text);
/* A lane of it has ended. */
void clv_link_lose(clv_link *l, uint32_t index);
void clv_link_hang_up(clv_link *l);
/* Under the lock, BLOCKS until something has changed. False: it is later than `deadline_ns`, or
 * nobody may wait because a clock was handed in. */
bool clv_link_wait(clv_link *l, uint64_t deadline_ns);

/* ---- count.c --------------------------------------------------------------------------------- */

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

/* Of the dialling side. Holds the link. */
clv_code clv_lane_dialled(clv_link *l, uint32_t index, clv_lane **ret, clv_err *err) CLV_USE_RESULT;

/* A decoded frame of an attached lane. An error ends the link. */
clv_code clv_link_on_frame(clv_link *l, uint32_t index, const clv_frame *f, const clv_piece *pieces,
                           const clv_payload *payload, clv_err *err) CLV_USE_RESULT;

/* ---- crc.c ----------------------------------------------------------------------------------- */

/* The part of a CRC32C that a chunk with the sum `crc` contributes when `bytes` follow it; the sum
 * of the whole is the exclusive or of all parts. */
uint32_t clv_crc32c_shift(uint32_t crc, uint64_t bytes);

#endif
