/* SPDX-License-Identifier: Apache-2.0
 *
 * link: one session's two-way stream of messages to another process: a control lane and k bulk
 * lanes, tensors in chunks, checksums, credit and pace; and *packets*, which are frames with their
 * tensors.
 *
 * Threads: links call their events on the threads of their transport (gRPC's queue threads), where
 * nothing computes or blocks. Every function may be called from any thread, but those that BLOCK
 * not from one of these. No lock of a link is held while an event, or a function of the transport,
 * runs. Sizes are bytes, times nanoseconds of the clock that was handed in, unless a name says
 * otherwise.
 */
#ifndef CLEAVE_LINK_H
#define CLEAVE_LINK_H

#include "common/net/fair/fair.h"
#include "common/net/rpc/rpc.h"
#include "common/net/wire/wire.h"

/* ---- packets --------------------------------------------------------------------------------- */

typedef struct clv_link clv_link;

/* Progress of the copy of a tensor from a device to the host's memory: how many of its first bytes
 * are there. Reference-counted; any thread. */
typedef struct clv_device_copy clv_device_copy;
clv_code clv_device_copy_new(clv_device_copy **ret, clv_err *err) CLV_USE_RESULT;
clv_device_copy *clv_device_copy_ref(clv_device_copy *c);
void clv_device_copy_unref(clv_device_copy *c); /* NULL is allowed */
/* Resets it to no bytes, for another copy. False: others have a reference, and it is as it was. */
bool clv_device_copy_try_reset(clv_device_copy *c);
void clv_device_copy_advance(clv_device_copy *c, size_t bytes);    /* the first `bytes` are there */
void clv_device_copy_fail(clv_device_copy *c, const clv_err *why); /* no more bytes will come */

/* A frame with its tensors. Owned by one place at a time; handing it to a function documented as
 * "takes the packet" gives it away in all cases. */
typedef struct clv_packet {
  clv_frame frame;
  clv_tensor *tensor[CLV_WIRE_TENSORS]; /* frame.n_tensors of them, a reference each */
  /* What it came by, NULL for one that was made here: which link it was, and its name
   * (clv_link_peer), may be asked for as long as the packet is there. */
  clv_link *from;
  /* Copy of a tensor that is sent while it is copied; NULL: the tensor is complete. A reference
   * each. */
  clv_device_copy *device_copy[CLV_WIRE_TENSORS];
  /* private */
  uint32_t at; /* the tensor that leaves in chunks now, */
  bool begun;  /* which has its number, */
  size_t left; /* and how many bytes of it have left */
  clv_pool *pool;
  struct clv_recv_window *recv_window; /* gets `credit` bytes back when the packet is freed */
  uint64_t arrived_ns;                 /* when it was whole */
  uint64_t credit;
  uint32_t crc32c[CLV_WIRE_TENSORS]; /* of the bytes that came, for the link that received them */
  bool head; /* of a CALL whose tensors are on their way: it has its place in the order of frames */
  bool headed;    /* the same CALL, whole */
  bool with_next; /* leaves with the next one of its link, or with clv_link_flush */
  bool refused;   /* its tensors were over the quota and are not here; frame.failure says which */
  struct clv_packet *next;
} clv_packet;

clv_code clv_packet_new(clv_pool *pool, clv_frame_kind kind, clv_packet **ret,
                        clv_err *err) CLV_USE_RESULT;
/* Adds a tensor (a reference is taken). The sender's link fills in its head. */
void clv_packet_add(clv_packet *p, clv_tensor *t);
/* As clv_packet_add, of a tensor that `copy` is still bringing to the host's memory (a reference is
 * taken; NULL: the tensor is complete). The link sends each chunk when its bytes are there, in
 * order. */
void clv_packet_add_copied(clv_packet *p, clv_tensor *t, clv_device_copy *copy);
void clv_packet_free(clv_packet *p); /* back to its pool; NULL is allowed */
void clv_packet_freep(clv_packet **p);

/* Packets for `in_flight` calls between forward and backward, so that none is made in the middle of
 * a step. */
clv_code clv_pool_reserve_packets(clv_pool *p, uint32_t in_flight, clv_err *err) CLV_USE_RESULT;

/* ---- frames of contexts ------------------------------------------------------------------------
 *
 * What the program that owns a context sends to the nodes of its modules (PROTOCOL.md 6). Ids of
 * calls and values grow in program order. `to` names a worker; "" is the master. A context is made
 * at a node by the first frame that names it. */

/* training: keep what backward needs, dropout and batch statistics are on. */
clv_code clv_packet_call(clv_pool *pool, uint64_t context, uint64_t call, uint32_t module,
                         bool training, clv_packet **ret, clv_err *err) CLV_USE_RESULT;
/* The next argument. `here` NULL: the value of that id is at the node or comes to it. CLV_EXHAUSTED
 * over CLV_WIRE_ARGS. */
clv_code clv_packet_add_arg(clv_packet *call, uint64_t value, bool needs_grad, clv_tensor *here,
                            clv_err *err) CLV_USE_RESULT;
/* Its value goes to `to` as soon as it is there. */
clv_code clv_packet_add_delivery(clv_packet *call, const char *to, clv_err *err) CLV_USE_RESULT;

clv_code clv_packet_deliver(clv_pool *pool, uint64_t context, uint64_t value, const char *to,
                            clv_packet **ret, clv_err *err) CLV_USE_RESULT;
clv_code clv_packet_value(clv_pool *pool, uint64_t context, uint64_t value, const char *to,
                          clv_tensor *t, clv_packet **ret, clv_err *err) CLV_USE_RESULT;
/* Up to CLV_WIRE_UPSTREAM ids. calls: CALLs of this context sent to that node so far (a CALL whose
 * tensors come in chunks may be overtaken); 0 = don't wait for any. */
clv_code clv_packet_drop(clv_pool *pool, uint64_t context, uint64_t calls, const uint64_t *values,
                         uint32_t n, clv_packet **ret, clv_err *err) CLV_USE_RESULT;

/* Before END_CONTEXT: values that the node makes and a kept one elsewhere needs. */
clv_code clv_packet_spare(clv_pool *pool, uint64_t context, const uint64_t *values, uint32_t n,
                          clv_packet **ret, clv_err *err) CLV_USE_RESULT;

/* phase: 1 for the first backward pass of the context, then 2, ... calls: it waits for that many of
 * the node's CALLs, up to the last one it names. more: other PREPAREs of the same phase follow (a
 * frame holds CLV_WIRE_NEEDED calls, CLV_WIRE_TARGETS targets and CLV_WIRE_HOPS names); flags of
 * all of them are the same. Calls of a module run in the order in which they are named. */
clv_code clv_packet_prepare(clv_pool *pool, uint64_t context, uint32_t phase, uint64_t calls,
                            bool retain, bool vote, bool more, clv_packet **ret,
                            clv_err *err) CLV_USE_RESULT;
/* A needed call, then its targets. root: what its gradient starts with, 0 unless it is a root.
 * CLV_EXHAUSTED when the frame is full. */
clv_code clv_packet_add_needed_call(clv_packet *prepare, uint64_t call, uint32_t contributions,
                                    float root, clv_err *err) CLV_USE_RESULT;
clv_code clv_packet_add_target(clv_packet *prepare, uint32_t slot, uint64_t value, const char *to,
                               uint32_t order, clv_err *err) CLV_USE_RESULT;
/* t NULL: nothing flows. */
clv_code clv_packet_gradient(clv_pool *pool, uint64_t context, uint32_t phase, uint64_t value,
                             uint32_t order, const char *to, clv_tensor *t, clv_packet **ret,
                             clv_err *err) CLV_USE_RESULT;

/* Places in the order of the context at the call's node, from 1, each given to one thing: the
 * forward, the backward (0: none), the gradients of parameters (0: with the rest of the
 * backward). */
void clv_packet_set_positions(clv_packet *call, uint32_t position, uint32_t input_position,
                              uint32_t weight_position, bool old_weights);

enum { CLV_MODULE_ALL = 255 };
/* As clv_packet_apply of one module, at its position in the context; not answered, FINISHED of
 * the pass follows. keep: for calls with `old_weights`. */
clv_code clv_packet_planned_step(clv_pool *pool, uint64_t context, uint64_t message,
                                 uint32_t module, uint32_t position, bool keep, float lr,
                                 clv_packet **ret, clv_err *err) CLV_USE_RESULT;
/* module or CLV_MODULE_ALL. message: answered by APPLIED with this reply_to. lr: the rate of group
 * 0. apply false: the gradients of the context are dropped. */
clv_code clv_packet_apply(clv_pool *pool, uint64_t context, uint64_t message, uint32_t module,
                          float scale, float lr, bool apply, clv_packet **ret,
                          clv_err *err) CLV_USE_RESULT;
/* The rates of groups 1..n. CLV_EXHAUSTED over CLV_WIRE_GROUPS. */
clv_code clv_packet_set_group_lrs(clv_packet *apply, const float *lrs, uint32_t n,
                                  clv_err *err) CLV_USE_RESULT;
clv_code clv_packet_revert(clv_pool *pool, uint64_t context, uint64_t message, clv_packet **ret,
                           clv_err *err) CLV_USE_RESULT;
/* With the decision on its step, for all modules that have gradients in it, each of one group: as
 * clv_packet_apply, but ENDED is the only answer. */
void clv_packet_set_end_commit(clv_packet *end, float scale, float lr, bool apply);
clv_code clv_packet_end_context(clv_pool *pool, uint64_t context, uint64_t message,
                                clv_packet **ret, clv_err *err) CLV_USE_RESULT;
/* References that outlive their context (PROTOCOL.md 12), said by the program to its own node:
 * posted to it, never sent. The ids are new ones, `key` is drawn at random. Answers come to
 * on_program: REF_ACK when the owner has answered for a handle that was made here, REF_VALUE for
 * what was fetched, REF_DELETE when a reference of this node is gone. */
typedef struct clv_ref_ids {
  uint64_t ref, fork, key; /* fork: of the first handle, which is the program's */
} clv_ref_ids;

/* Of the value of a context at its owner, or of a tensor of this process (context 0). */
clv_code clv_packet_ref_keep(clv_pool *pool, const clv_ref_ids *ids, const char *owner,
                             uint64_t context, uint64_t value, clv_tensor *own, clv_packet **ret,
                             clv_err *err) CLV_USE_RESULT;
/* The value `value` of a context at `to` is what the handle `ids->fork` stands for; child: a new
 * id. */
clv_code clv_packet_ref_use(clv_pool *pool, const clv_ref_ids *ids, uint64_t child, const char *to,
                            uint64_t context, uint64_t value, clv_packet **ret,
                            clv_err *err) CLV_USE_RESULT;
clv_code clv_packet_ref_fetch(clv_pool *pool, const clv_ref_ids *ids, clv_packet **ret,
                              clv_err *err) CLV_USE_RESULT;
clv_code clv_packet_ref_release(clv_pool *pool, const clv_ref_ids *ids, clv_packet **ret,
                                clv_err *err) CLV_USE_RESULT;

/* what: of a module's state; context: for CLV_STATE_GRADIENTS, else 0. */
clv_code clv_packet_state_get(clv_pool *pool, uint64_t context, uint64_t message, uint32_t module,
                              clv_state_kind what, clv_packet **ret, clv_err *err) CLV_USE_RESULT;

/* ---- links ----------------------------------------------------------------------------------- */

typedef struct clv_link_counts {
  uint64_t bytes_in, bytes_out;       /* of messages, framing included, TLS not */
  uint64_t messages_in, messages_out; /* a message carries 1 to 16 frames */
  uint64_t tensors_in, tensors_out;
  uint64_t round_trip_ns; /* last PING, 0 before */
  int64_t
      clock_ahead_ns; /* of the peer's monotonic clock before ours, at the quickest PING so far */
  /* Tensors that came in chunks, and the time in which some were on their way; what the peer said
   * of its side in its last answer to a PING. Their quotient is the rate of a link that is the
   * bottleneck. */
  uint64_t received_bytes, receiving_ns, peer_received_bytes, peer_receiving_ns;
  uint64_t peer_measured_ns; /* when it said so, monotonic; 0: never yet */
  /* How long a node had nothing to do until a packet of this link came, and how often that was a
   * millisecond or more. */
  uint64_t awaited_ns, awaits;
} clv_link_counts;

/* What is on its way at this moment. */
typedef struct clv_link_load {
  uint64_t frames_in, frames_out;   /* come and not freed; not yet taken by the transport */
  uint64_t tensors_in, tensors_out; /* in chunks, some of which are still missing */
  uint64_t bytes_in, bytes_out;     /* of tensors: still missing; not known to have arrived */
} clv_link_load;

typedef struct clv_link_events {
  void *user;
  /* A whole packet with all its tensors, checksums verified; the receiver takes it. Queue
   * thread. */
  void (*on_packet)(void *user, clv_link *link, clv_packet *packet);
  /* Optional: asked before any packet with tensors or a failure leaves, and may change the failure;
   * a refusal is what clv_link_send returns. The one place where tensors and texts leave a process:
   * the master's egress table is enforced here. */
  clv_code (*may_send)(void *user, clv_link *link, clv_packet *packet, clv_err *err);
  /* Once, when the control lane or any bulk lane has ended, or a message was malformed. */
  void (*on_closed)(void *user, clv_link *link, clv_code code, const char *text);
} clv_link_events;

typedef struct clv_link_options {
  clv_clock clock;         /* zero: the machine's, and only then anything blocks */
  const char *peer_name;   /* for messages */
  clv_pool *pool;          /* received tensors; referenced by the link */
  clv_wire_limits accept;  /* what this side accepts */
  uint64_t send_credit;    /* bytes of tensors the peer lets be in flight; ATTACHED replaces it */
  bool quota_fails_packet; /* tensors over the pool's quota fail their packet, not the link */
  clv_link_events events;
} clv_link_options;

/* Accepting side: a link without lanes; they join by the ATTACH of an accepted stream. One
 * reference for the caller. The events may come until on_closed has, and for packets a little
 * longer. */
clv_code clv_link_new(const clv_link_options *options, clv_link **ret, clv_err *err) CLV_USE_RESULT;

/* What the first frame on each lane says, and to whom the machine's transport goes. */
typedef struct clv_link_dial {
  const char *address, *identity; /* of the peer; these four are clv_link_open's */
  clv_rpc_pem pem;
  clv_rpc_limits limits;
  clv_wire_id session, incarnation;
  uint64_t epoch;
  const char *owner;   /* of the session, for CLV_ATTACH_PEER; else NULL */
  uint32_t bulk_lanes; /* 0: chunks share the control lane */
  clv_attach_role role;
  unsigned timeout_ms;
} clv_link_dial;

/* BLOCKS. Dialling side: connect 1 + bulk_lanes streams, ATTACH each, wait for all ATTACHED. What
 * `dial` points to is read during the call alone. Errors: those of clv_rpc_channel_connect, what
 * the peer refused it with, CLV_BAD_ANSWER for an answer that makes no sense, CLV_DEADLINE. */
clv_code clv_link_open(clv_rpc_runtime *runtime, const clv_link_options *options,
                       const clv_link_dial *dial, clv_link **ret, clv_err *err) CLV_USE_RESULT;

clv_link *clv_link_ref(clv_link *link);
void clv_link_unref(clv_link *link); /* NULL is allowed */
void clv_link_unrefp(clv_link **link);

/* Ends every lane and gives up the connections; on_closed comes with CLV_OK if it has not come yet.
 * By one thread, and not beside clv_link_open. BLOCKS until the lanes have ended, unless a clock
 * was handed in: then they end when their streams do. NULL is allowed. */
void clv_link_close(clv_link *link);

/* Takes the packet. Never blocks: large packets, and what is over the credit, wait inside the link
 * in order, holding their tensors, and leave by a thread of the transport's; an ABORT waits for
 * nothing. What may_send says; CLV_UNAVAILABLE once the link has ended; CLV_EXHAUSTED for more
 * bytes than the peer's whole credit; else what the transport says of a frame that left at once. */
clv_code clv_link_send(clv_link *link, clv_packet *packet, clv_err *err) CLV_USE_RESULT;
/* What was sent with `with_next` set leaves now. Whoever sets it sees to that before it waits. */
void clv_link_flush(clv_link *link);

void clv_link_count(clv_link *link, clv_link_counts *ret);
void clv_link_measure_load(clv_link *link, clv_link_load *ret);
/* A PING whose PONG clv_link_count shows, unless one is out or the last has just left. Nobody else
 * may PING over this link then. */
void clv_link_ping_async(clv_link *link);
/* The same; a PING that has been out for `ms` ends the link with CLV_UNAVAILABLE and `text`. */
void clv_link_ping_or_end(clv_link *link, unsigned ms, const char *text);
const char *clv_link_peer(const clv_link *link);
/* Whether a message of the peer that makes no sense has ended the link; for on_closed. */
bool clv_link_has_violation(const clv_link *link);

/* BLOCKS. One PING and its PONG; the round trip in nanoseconds. One caller at a time. */
clv_code clv_link_ping(clv_link *link, unsigned timeout_ms, uint64_t *ret_ns,
                       clv_err *err) CLV_USE_RESULT;

/* Accepting side: the first frame of a stream must be ATTACH. find_link returns the session's link
 * (with a reference) or refuses. */
typedef struct clv_lane_acceptor {
  void *user;
  clv_code (*find_link)(void *user, const clv_frame *attach, const char *peer_uri,
                        clv_link **ret_link, clv_err *err);
} clv_lane_acceptor;

/* For rpc's on_stream. */
clv_code clv_lane_accept(const clv_lane_acceptor *acceptor, const clv_rpc_peer *peer,
                         clv_rpc_stream *stream, clv_rpc_stream_events *ret_events,
                         clv_err *err) CLV_USE_RESULT;

/* ---- what carries lanes ------------------------------------------------------------------------
 *
 * A lane runs over one two-way stream of messages, of which a link knows what this table says.
 * clv_link_open and clv_lane_accept hand in gRPC's; a test hands in its own, with clv_link_start on
 * the dialling side and clv_lane_new on the accepting one, and calls the three inputs of a lane. No
 * lock of a link is held while a function of the table runs. */

typedef struct clv_transport {
  /* As clv_rpc_stream_send: takes over every piece in all cases, never blocks, keeps the order. */
  clv_code (*send)(void *stream, const clv_rpc_piece *pieces, size_t n, clv_err *err);
  /* As clv_rpc_stream_coalesce and clv_rpc_stream_flush; both may be NULL: then each frame is a
   * message. */
  bool (*enclose)(void *stream, const clv_iov *pieces, size_t n);
  bool (*flush)(void *stream);
  /* As clv_rpc_stream_close: half close after what was sent. */
  void (*close)(void *stream);
  /* As clv_rpc_stream_cancel: ends it now, with clv_lane_ended of this side to follow, later or
   * at once on another thread, never inside this call. */
  void (*cancel)(void *stream, clv_code code, const char *text);
  /* As clv_rpc_stream_defer: has job->run(job) called soon, not inside this call; false: it has
   * not and will not. */
  bool (*defer)(void *stream, clv_rpc_job *job);
  void (*ref)(void *stream);
  void (*unref)(void *stream);
} clv_transport;

typedef struct clv_lane clv_lane;

/* What a stream tells its lane. Messages of a lane come one at a time, as do they and its end;
 * `sent` may come beside them. */
void clv_lane_message(clv_lane *lane, const clv_iov *pieces, size_t n);
void clv_lane_sent(clv_lane *lane);                                   /* a message was taken */
void clv_lane_ended(clv_lane *lane, clv_code code, const char *text); /* once; the lane is gone */

/* The lane of an accepted stream, of which it takes a reference. `acceptor` must outlive it. */
clv_code clv_lane_new(const clv_lane_acceptor *acceptor, const char *peer_uri,
                      const clv_transport *transport, void *stream, clv_lane **ret,
                      clv_err *err) CLV_USE_RESULT;

/* How lanes are dialled. */
typedef struct clv_dialler {
  const clv_transport *transport; /* static */
  void *user;
  /* The stream of lane `index`, with a reference for the lane. Inputs may come before it
   * returns. */
  clv_code (*dial)(void *user, uint32_t index, clv_lane *lane, void **ret_stream, clv_err *err);
  void (*hang_up)(void *user); /* once, when nothing is dialled or sent any more; may be NULL */
} clv_dialler;

/* Dialling side: dials 1 + bulk_lanes lanes and sends ATTACH on each; does not wait for ATTACHED.
 * The dialler is taken, copied, in all cases. */
clv_code clv_link_start(const clv_link_options *options, const clv_link_dial *dial,
                        const clv_dialler *dialler, clv_link **ret, clv_err *err) CLV_USE_RESULT;
bool clv_link_is_attached(clv_link *link); /* all lanes are */
/* BLOCKS until all lanes are attached. What the peer refused it with, CLV_BAD_ANSWER for what makes
 * no sense, CLV_DEADLINE. */
clv_code clv_link_wait_attached(clv_link *link, unsigned timeout_ms, clv_err *err) CLV_USE_RESULT;

/* The compute thread slept so long until a packet of this link came. */
void clv_link_count_wait(clv_link *link, uint64_t ns);

#endif
