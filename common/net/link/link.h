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

/* ---- packets and their tensors --------------------------------------------------------------- */

typedef struct clv_link clv_link;

/* Progress of the copy of a tensor from a device to host memory: how many of its first bytes are
 * copied. Reference-counted, thread-safe. */
typedef struct clv_device_copy clv_device_copy;
clv_code clv_device_copy_new(clv_device_copy **ret, clv_err *err) CLV_USE_RESULT;
clv_device_copy *clv_device_copy_ref(clv_device_copy *c);
void clv_device_copy_unref(clv_device_copy *c); /* NULL is allowed */
/* Resets the progress to 0 bytes, to reuse the object for another copy. False: another reference
 * exists, and nothing is changed. */
bool clv_device_copy_try_reset(clv_device_copy *c);
/* records that the first `bytes` are copied */
void clv_device_copy_advance(clv_device_copy *c, size_t bytes);
/* ends the copy with the error `why` */
void clv_device_copy_fail(clv_device_copy *c, const clv_err *why);

/* A frame with its tensors. A packet has one owner at a time. A function documented as "takes the
 * packet" owns it from the call on, also when it fails. */
typedef struct clv_packet {
  clv_frame frame;
  clv_tensor *tensor[CLV_WIRE_TENSORS]; /* [frame.n_tensors], a reference to each */
  /* Link that received the packet; NULL: the packet was made in this process. A caller may read the
   * link's address and name (clv_link_peer_name) until the packet is freed. */
  clv_link *received_by;
  /* Copies from a device that still fill the tensor of the same index, a reference to each; NULL:
   * the tensor is complete. */
  clv_device_copy *device_copy[CLV_WIRE_TENSORS];
  /* The fields below are private to the link. */
  uint32_t sending_tensor_index; /* index of the tensor that is being sent in chunks */
  bool has_transfer_id;          /* the tensor at sending_tensor_index has a transfer id */
  size_t bytes_queued; /* bytes of the tensor at sending_tensor_index that are queued so far */
  clv_pool *pool;
  /* gets credit_bytes back when the packet is freed; NULL: made in this process */
  struct clv_recv_window *recv_window;
  uint64_t completed_ns; /* time when all tensors were received, ns */
  uint64_t credit_bytes;
  /* CRC32C of each tensor, computed by the link that received it */
  uint32_t crc32c[CLV_WIRE_TENSORS];
  /* announces a CALL whose tensors follow in chunks; keeps the CALL's position in frame order */
  bool is_announcement;
  bool was_announced; /* the packet is a complete CALL, which an announcement preceded */
  /* send in one message with the link's next packet, or by clv_link_flush */
  bool coalesces_with_next;
  /* the packet's tensors were over the quota and dropped; frame.failure has the error */
  bool is_over_quota;
  struct clv_packet *next;
} clv_packet;

clv_code clv_packet_new(clv_pool *pool, clv_frame_kind kind, clv_packet **ret,
                        clv_err *err) CLV_USE_RESULT;
/* Adds a tensor and takes a reference to it. The link that sends the packet fills in the transfer
 * id and the CRC32C of the tensor's head. */
void clv_packet_add_tensor(clv_packet *p, clv_tensor *t);
/* As clv_packet_add_tensor, for a tensor that `copy` is still copying to host memory. Takes a
 * reference to `copy`; NULL: the tensor is complete. The link sends each chunk once its bytes are
 * copied, in order. */
void clv_packet_add_tensor_being_copied(clv_packet *p, clv_tensor *t, clv_device_copy *copy);
void clv_packet_free(clv_packet *p); /* returns it to its pool; NULL is allowed */
void clv_packet_freep(clv_packet **p);

/* Preallocates packets for `n_in_flight` calls between forward and backward, so that a step
 * allocates no packet. */
clv_code clv_pool_reserve_packets(clv_pool *p, uint32_t n_in_flight, clv_err *err) CLV_USE_RESULT;

/* ---- frames of contexts ------------------------------------------------------------------------
 *
 * Packets that the program which owns a context sends to the nodes of its modules (PROTOCOL.md 6).
 * Ids of calls and values grow in program order. `to` names a worker; "" is the master. A node
 * creates a context when it receives the first frame that names it. */

/* Makes a CALL. is_training: the node keeps the tensors that backward needs, and uses dropout and
 * batch statistics. */
clv_code clv_packet_new_call(clv_pool *pool, uint64_t context, uint64_t call, uint32_t module,
                             bool is_training, clv_packet **ret, clv_err *err) CLV_USE_RESULT;
/* Adds the next argument of a CALL: the tensor `own_tensor` of this process or, if that is NULL,
 * the value with the id `value`, which the node has or will receive. CLV_EXHAUSTED: more than
 * CLV_WIRE_ARGS arguments. */
clv_code clv_packet_add_arg(clv_packet *call, uint64_t value, bool needs_grad,
                            clv_tensor *own_tensor, clv_err *err) CLV_USE_RESULT;
/* Makes the node deliver the CALL's value to `to` as soon as it is computed. */
clv_code clv_packet_add_delivery(clv_packet *call, const char *to, clv_err *err) CLV_USE_RESULT;

clv_code clv_packet_new_deliver(clv_pool *pool, uint64_t context, uint64_t value, const char *to,
                                clv_packet **ret, clv_err *err) CLV_USE_RESULT;
clv_code clv_packet_new_value(clv_pool *pool, uint64_t context, uint64_t value, const char *to,
                              clv_tensor *t, clv_packet **ret, clv_err *err) CLV_USE_RESULT;
/* Makes a DROP of up to CLV_WIRE_UPSTREAM values. n_calls: number of CALLs of this context sent to
 * that node so far. The node receives all of them before it drops the values, because later frames
 * may overtake a CALL in chunks. 0: the node waits for no CALL. */
clv_code clv_packet_new_drop(clv_pool *pool, uint64_t context, uint64_t n_calls,
                             const uint64_t *values, uint32_t n, clv_packet **ret,
                             clv_err *err) CLV_USE_RESULT;

/* Makes a SPARE, which is sent to a node before END_CONTEXT. It names the values of that node which
 * a kept value of another node needs. The node does not free them with the context. */
clv_code clv_packet_new_spare(clv_pool *pool, uint64_t context, const uint64_t *values, uint32_t n,
                              clv_packet **ret, clv_err *err) CLV_USE_RESULT;

/* Makes a PREPARE, for a backward pass. phase: 1 for the first backward pass of the context, then
 * 2, ... n_calls: the node first waits for that many CALLs of the context, up to the last one that
 * the frame names. more_follow: other PREPAREs of this phase follow with the same flags, because a
 * frame holds CLV_WIRE_NEEDED_CALLS calls, CLV_WIRE_TARGETS targets and CLV_WIRE_PREPARE_PEERS
 * names. The backward of a module's calls runs in the order in which the frame names the calls. */
clv_code clv_packet_new_prepare(clv_pool *pool, uint64_t context, uint32_t phase, uint64_t n_calls,
                                bool retains_graph, bool needs_vote, bool more_follow,
                                clv_packet **ret, clv_err *err) CLV_USE_RESULT;
/* clv_packet_add_needed_call adds a call to a PREPARE; clv_packet_add_target adds a destination of
 * a gradient of the call added last. root_gradient: start value of the call's gradient; 0: the call
 * is not a root. CLV_EXHAUSTED: the frame is full. */
clv_code clv_packet_add_needed_call(clv_packet *prepare, uint64_t call, uint32_t n_contributions,
                                    float root_gradient, clv_err *err) CLV_USE_RESULT;
clv_code clv_packet_add_target(clv_packet *prepare, uint32_t slot, uint64_t value, const char *to,
                               uint32_t contribution_index, clv_err *err) CLV_USE_RESULT;
/* Makes a GRADIENT with one contribution to the gradient of a value. contribution_index: number by
 * which the contributions to a gradient are sorted before they are summed. t NULL: the value has no
 * gradient. */
clv_code clv_packet_new_gradient(clv_pool *pool, uint64_t context, uint32_t phase, uint64_t value,
                                 uint32_t contribution_index, const char *to, clv_tensor *t,
                                 clv_packet **ret, clv_err *err) CLV_USE_RESULT;

/* Sets the positions of a call in the execution order of its context at this node. Positions begin
 * at 1 and are unique. They are: forward, backward (0: none), gradients of parameters (0: computed
 * with the backward). */
void clv_packet_set_execution_positions(clv_packet *call, uint32_t position,
                                        uint32_t input_position, uint32_t weight_position,
                                        bool uses_old_weights);

enum { CLV_MODULE_ALL = 255 }; /* number that stands for all modules of the node, in an APPLY */
/* Makes an APPLY as clv_packet_new_apply, for one module, at its position in the execution order of
 * the context. The node answers with FINISHED of the backward pass, and not with APPLIED.
 * saves_weights: the node saves the weights before the step, for calls with uses_old_weights. */
clv_code clv_packet_new_planned_step(clv_pool *pool, uint64_t context, uint64_t message_id,
                                     uint32_t module, uint32_t position, bool saves_weights,
                                     float lr, clv_packet **ret, clv_err *err) CLV_USE_RESULT;
/* Makes an APPLY for one module or CLV_MODULE_ALL. message_id: id of the APPLY, which the answer
 * APPLIED names. lr: learning rate of parameter group 0. applies_step false: the node drops the
 * gradients of the context. */
clv_code clv_packet_new_apply(clv_pool *pool, uint64_t context, uint64_t message_id,
                              uint32_t module, float scale, float lr, bool applies_step,
                              clv_packet **ret, clv_err *err) CLV_USE_RESULT;
/* Sets the learning rates of parameter groups 1..n of an APPLY. CLV_EXHAUSTED: more than
 * CLV_WIRE_GROUPS groups. */
clv_code clv_packet_set_group_lrs(clv_packet *apply, const float *lrs, uint32_t n,
                                  clv_err *err) CLV_USE_RESULT;
clv_code clv_packet_new_revert(clv_pool *pool, uint64_t context, uint64_t message_id,
                               clv_packet **ret, clv_err *err) CLV_USE_RESULT;
/* Adds the decision on the step to END_CONTEXT, for all modules with gradients in the context, each
 * with one parameter group. As clv_packet_new_apply, but ENDED is the only answer. */
void clv_packet_set_end_commit(clv_packet *end, float scale, float lr, bool applies_step);
clv_code clv_packet_new_end_context(clv_pool *pool, uint64_t context, uint64_t message_id,
                                    clv_packet **ret, clv_err *err) CLV_USE_RESULT;
/* References that outlive their context (PROTOCOL.md 12). The program posts these packets to its
 * own node and never sends them. It chooses new ids and draws random_key. The node answers
 * through on_program: REF_ACK when the owner has acknowledged a handle that was made here,
 * REF_VALUE with a fetched value, REF_DELETE when a reference of this node is gone. */
typedef struct clv_ref_ids {
  /* ref_id: the reference; fork_id: the handle on it that the program holds (its fork, as in
   * PyTorch's RRef); random_key: drawn at random, proves that the reference was passed on */
  uint64_t ref_id, fork_id, random_key;
} clv_ref_ids;

/* Makes a REF_KEEP, by which the node makes a reference to a value of a context at node `owner`, or
 * to the tensor `own_tensor` of this process (context 0). */
clv_code clv_packet_new_ref_keep(clv_pool *pool, const clv_ref_ids *ids, const char *owner,
                                 uint64_t context, uint64_t value, clv_tensor *own_tensor,
                                 clv_packet **ret, clv_err *err) CLV_USE_RESULT;
/* Binds value `value` of a context at node `to` to the reference that the program holds by the
 * handle `ids->fork_id`. new_fork_id: a new id, for the handle of that node. */
clv_code clv_packet_new_ref_use(clv_pool *pool, const clv_ref_ids *ids, uint64_t new_fork_id,
                                const char *to, uint64_t context, uint64_t value, clv_packet **ret,
                                clv_err *err) CLV_USE_RESULT;
clv_code clv_packet_new_ref_fetch(clv_pool *pool, const clv_ref_ids *ids, clv_packet **ret,
                                  clv_err *err) CLV_USE_RESULT;
clv_code clv_packet_new_ref_release(clv_pool *pool, const clv_ref_ids *ids, clv_packet **ret,
                                    clv_err *err) CLV_USE_RESULT;

/* Makes a STATE_GET. what: the part of the module's state to read; context: the context whose
 * gradients are read for CLV_STATE_GRADIENTS, else 0. */
clv_code clv_packet_new_state_get(clv_pool *pool, uint64_t context, uint64_t message_id,
                                  uint32_t module, clv_state_kind what, clv_packet **ret,
                                  clv_err *err) CLV_USE_RESULT;

/* ---- links between two nodes ----------------------------------------------------------------- */

typedef struct clv_link_counts {
  uint64_t bytes_in, bytes_out;       /* bytes of messages, with framing, without TLS */
  uint64_t messages_in, messages_out; /* a message carries 1 to 16 frames */
  uint64_t tensors_in, tensors_out;
  /* round trip of the last answered PING, or time since an open PING was sent, if that is longer;
   * 0: none yet */
  uint64_t round_trip_ns;
  /* peer's monotonic clock minus ours, at the PING with the shortest round trip */
  int64_t clock_offset_ns;
  /* Bytes of tensors received in chunks, and the time in which at least one was in transfer; then
   * the same two counters of the peer, from its last PONG. If the link is the bottleneck, bytes
   * divided by time are its rate. */
  uint64_t received_bytes, receiving_ns, peer_received_bytes, peer_receiving_ns;
  uint64_t last_pong_ns; /* when the last PONG was received, monotonic ns; 0: none yet */
  /* Time in which a compute thread of a node was idle until a packet of this link was received, and
   * how often such a wait took a millisecond or more. */
  uint64_t node_wait_ns, n_node_waits;
  /* lanes that were connected again after a loss; bytes of messages that were sent again, which
   * bytes_out counts once */
  uint64_t n_reconnects, resent_bytes;
  /* Outages that have ended; an outage lasts from the first lost connection until all
   * connections are made again. Then the age of the last outage's end and its length; 0: there
   * was none. Then the time since which a connection is missing; 0: none is missing. */
  uint64_t n_outages, last_outage_age_ns, last_outage_ns, current_outage_ns;
} clv_link_counts;

/* Frames and tensors in transfer now. */
typedef struct clv_link_load {
  /* in: received and not freed; out: not yet accepted by the transport */
  uint64_t frames_in, frames_out;
  uint64_t tensors_in, tensors_out; /* sent or received in chunks, of which some are missing */
  /* bytes of tensors; in: not yet received; out: not yet reported by the peer as received */
  uint64_t bytes_in, bytes_out;
} clv_link_load;

typedef struct clv_link_events {
  void *user;
  /* Delivers a complete packet with all its tensors, after the checksums were compared. The callee
   * takes the packet. Called on a queue thread. */
  void (*on_packet)(void *user, clv_link *link, clv_packet *packet);
  /* Optional. Called before a packet with tensors or a failure is sent. May change the failure, or
   * refuse the packet: clv_link_send then returns the refusal. Tensors and error texts leave a
   * process only through this check; the master enforces its egress table here. */
  clv_code (*check_send)(void *user, clv_link *link, clv_packet *packet, clv_err *err);
  /* Called once, when the link has ended: the peer has ended it or violated the protocol, a lane
   * could not be connected again in time, or the link is closed. */
  void (*on_closed)(void *user, clv_link *link, clv_code code, const char *text);
  /* Optional. Returns how many other links of the session are mending. Each PONG reports the number
   * to the peer. Called on a queue thread. */
  uint32_t (*count_mending_links)(void *user);
} clv_link_events;

typedef struct clv_link_options {
  /* clock of the link; zero: the system's monotonic clock; with another clock no function blocks */
  clv_clock clock;
  const char *peer_name; /* name of the peer in messages */
  clv_pool *pool;        /* pool that allocates received tensors; the link takes a reference */
  clv_wire_limits accept_limits; /* limits of this side, to which received frames are checked */
  /* bytes of tensors that may be sent before CREDIT; ATTACHED replaces it */
  uint64_t initial_send_credit;
  bool quota_fails_packet; /* tensors over the pool's quota fail their packet, not the link */
  /* time for which a lane that has lost its connection is mended before the link ends, ms; 0: the
   * loss of a connection ends the link, and no ACK is sent or accepted */
  uint64_t lease_ms;
  /* dialling side: time for which the peer's host must refuse every redial before the link ends, in
   * ms; 0: 3000. One more redial is made at the end of this time, and must be refused too. */
  uint64_t refusal_timeout_ms;
  clv_link_events events;
} clv_link_options;

/* Accepting side: makes a link without lanes. Its lanes join by the ATTACH of accepted streams. The
 * caller gets one reference. Events may be called until on_closed has returned, on_packet a little
 * longer. */
clv_code clv_link_new(const clv_link_options *options, clv_link **ret, clv_err *err) CLV_USE_RESULT;

/* Address of the peer, and what this side sends in ATTACH on each lane. */
typedef struct clv_link_dial {
  /* address, identity, pem, limits and read_pem are used by clv_link_open alone */
  const char *peer_address, *peer_identity;
  clv_rpc_pem pem;
  clv_rpc_limits limits;
  /* Optional. Returns the certificates for a later connection, which may have been renewed, in
   * memory that clv_rpc_pem_clear frees. May be called until the link is closed. */
  clv_code (*read_pem)(void *user, clv_rpc_pem *ret, clv_err *err);
  void *pem_user;
  clv_wire_id session_id, incarnation;
  uint64_t attempt_number;
  const char *session_owner; /* identity that owns the session, for CLV_ATTACH_PEER; else NULL */
  uint32_t n_bulk_lanes;     /* number of bulk lanes; 0: chunks share the control lane */
  clv_attach_role attach_role;
  unsigned dial_timeout_ms;
} clv_link_dial;

/* BLOCKS. Dialling side: connects 1 + n_bulk_lanes streams, sends ATTACH on each and waits for all
 * ATTACHED. Copies `dial`. A thread of the link then connects lost lanes again. Errors: those of
 * clv_rpc_channel_connect, the peer's refusal, CLV_BAD_ANSWER if the peer violated the protocol,
 * CLV_DEADLINE. */
clv_code clv_link_open(clv_rpc_runtime *runtime, const clv_link_options *options,
                       const clv_link_dial *dial, clv_link **ret, clv_err *err) CLV_USE_RESULT;

clv_link *clv_link_ref(clv_link *link);
void clv_link_unref(clv_link *link); /* NULL is allowed */
void clv_link_unrefp(clv_link **link);

/* Ends every lane and closes the connections. Reports on_closed with CLV_OK unless the link has
 * ended before. Call from one thread, not concurrently with clv_link_open. BLOCKS until the lanes
 * have ended, at most CLOSE_TIMEOUT_MS + CANCEL_TIMEOUT_MS; does not block if the link has a
 * caller's clock. NULL is allowed. */
void clv_link_close(clv_link *link);
/* Begins to end every lane, and returns at once. Call clv_link_close afterwards: several links
 * whose peers do not answer then end in the time of one. NULL is allowed. */
void clv_link_begin_close(clv_link *link);

/* Takes the packet and sends it; never blocks. Large packets, and those over the credit, are queued
 * in order with their tensors and sent by a thread of the transport. An ABORT without tensors
 * overtakes them. Errors: that of check_send; CLV_UNAVAILABLE once the link has ended;
 * CLV_EXHAUSTED for more bytes of tensors than the peer's credit can ever cover, which are its
 * whole credit less CLV_WIRE_INLINE_MAX, or an inline frame; an error of the transport for a frame
 * sent at once. */
clv_code clv_link_send(clv_link *link, clv_packet *packet, clv_err *err) CLV_USE_RESULT;
/* Sends the packets that were held back because of coalesces_with_next. A caller that sets
 * coalesces_with_next must call this function before it waits. */
void clv_link_flush(clv_link *link);

void clv_link_get_counts(clv_link *link, clv_link_counts *ret);
void clv_link_get_load(clv_link *link, clv_link_load *ret);
/* Sends a PING, unless one is open or the last was sent less than PING_INTERVAL_MS ago.
 * clv_link_get_counts returns the round trip. Do not combine with clv_link_ping on one link. */
void clv_link_ping_async(clv_link *link);
/* As clv_link_ping_async, and ends the link with CLV_UNAVAILABLE and `text` if a PING has no PONG
 * after `ms`. */
void clv_link_ping_or_end(clv_link *link, unsigned ms, const char *text);
/* Connects lost lanes again that are due (dialling side), and ends the link if a lane has been lost
 * for lease_ms. Returns when to call it again; UINT64_MAX: after the next loss. The accepting side
 * calls it now and then. A link of clv_link_open calls it by itself. */
uint64_t clv_link_redial_or_end(clv_link *link);
/* True while a lane has lost its connection and the link has not ended. */
bool clv_link_is_mending(const clv_link *link);
/* True if the peer's last PONG reported that it is mending another link of the session. */
bool clv_link_is_peer_mending(const clv_link *link);
const char *clv_link_peer_name(const clv_link *link);
/* True if the link has ended because a message of the peer violated the protocol. For on_closed. */
bool clv_link_has_violation(const clv_link *link);

/* BLOCKS. Sends a PING, waits for its PONG and returns the round trip in nanoseconds. One caller at
 * a time. CLV_DEADLINE: no PONG came in time. CLV_UNAVAILABLE: the link has ended. */
clv_code clv_link_ping(clv_link *link, unsigned timeout_ms, uint64_t *ret_ns,
                       clv_err *err) CLV_USE_RESULT;

/* Finds the link for an accepted stream. The first frame of a stream must be ATTACH. find_link
 * returns the link of the session with a reference, or refuses the stream. */
typedef struct clv_lane_acceptor {
  void *user;
  clv_code (*find_link)(void *user, const clv_frame *attach, const char *peer_uri,
                        clv_link **ret_link, clv_err *err);
} clv_lane_acceptor;

/* Makes the lane of an accepted stream. Pass it to an rpc server as on_stream. */
clv_code clv_lane_accept(const clv_lane_acceptor *acceptor, const clv_rpc_peer *peer,
                         clv_rpc_stream *stream, clv_rpc_stream_events *ret_events,
                         clv_err *err) CLV_USE_RESULT;

/* ---- transport of lanes ------------------------------------------------------------------------
 *
 * A lane runs over one bidirectional stream of messages. A link uses the stream through the table
 * below. clv_link_open and clv_lane_accept use gRPC. A test passes its own table to clv_link_start
 * on the dialling side and to clv_lane_new on the accepting side, and calls the three inputs of a
 * lane. No lock of a link is held while a function of the table runs. */

typedef struct clv_transport {
  /* As clv_rpc_stream_send: takes over every piece in all cases, never blocks, keeps the order. */
  clv_code (*send)(void *stream, const clv_rpc_piece *pieces, size_t n, clv_err *err);
  /* As clv_rpc_stream_close: half close after the queued messages. */
  void (*close)(void *stream);
  /* As clv_rpc_stream_cancel: ends the stream now. clv_lane_on_ended of this side follows, later or
   * at once on another thread, never inside this call. With CLV_CANCELLED it follows at once, also
   * if the peer cannot be reached. */
  void (*cancel)(void *stream, clv_code code, const char *text);
  /* As clv_rpc_stream_defer: runs job->run(job) soon, not inside this call. False: the job will not
   * run. */
  bool (*defer)(void *stream, clv_rpc_job *job);
  void (*ref)(void *stream);
  void (*unref)(void *stream);
} clv_transport;

typedef struct clv_lane clv_lane;

/* Inputs of a lane, called by the transport. Messages of a lane and its end are delivered one at a
 * time; clv_lane_on_sent may be called concurrently with them. */
void clv_lane_on_message(clv_lane *lane, const clv_iov *pieces, size_t n);
void clv_lane_on_sent(clv_lane *lane); /* the transport has accepted a message */
/* called once, at the end of the stream; frees the lane */
void clv_lane_on_ended(clv_lane *lane, clv_code code, const char *text);

/* Makes the lane of an accepted stream and takes a reference to the stream. `acceptor` must outlive
 * the lane. */
clv_code clv_lane_new(const clv_lane_acceptor *acceptor, const char *peer_uri,
                      const clv_transport *transport, void *stream, clv_lane **ret,
                      clv_err *err) CLV_USE_RESULT;

/* Functions that dial the lanes of a link over a transport. */
typedef struct clv_dialler {
  const clv_transport *transport; /* functions of the transport, a static table */
  void *user;
  /* Dials the stream of lane `index`, and returns it with a reference for the lane. The lane may
   * receive inputs before the function returns. Called again for a lane that has lost its
   * connection; `stop` (atomic, else NULL) then turns true when the call should give up. An error
   * text with CLV_RPC_REFUSED says that no process listens at the peer's host. */
  clv_code (*dial_stream)(void *user, uint32_t index, clv_lane *lane, const bool *stop,
                          void **ret_stream, clv_err *err);
  /* frees `user` and its connections; called once, after the last dial; may be NULL */
  void (*hang_up)(void *user);
} clv_dialler;

/* Dialling side: dials 1 + n_bulk_lanes lanes and sends ATTACH on each; does not wait for ATTACHED.
 * Copies *dialler and takes over its `user`, also on failure. */
clv_code clv_link_start(const clv_link_options *options, const clv_link_dial *dial,
                        const clv_dialler *dialler, clv_link **ret, clv_err *err) CLV_USE_RESULT;
/* True once all lanes have been attached, until the link ends; also while a lane is being
 * mended. */
bool clv_link_is_attached(clv_link *link);
/* BLOCKS until all lanes are attached. Errors: the peer's refusal, CLV_BAD_ANSWER if the peer
 * violated the protocol, CLV_DEADLINE. */
clv_code clv_link_wait_attached(clv_link *link, unsigned timeout_ms, clv_err *err) CLV_USE_RESULT;

/* Adds the time `ns` in which a compute thread slept until it received a packet of this link. */
void clv_link_record_node_wait(clv_link *link, uint64_t ns);

#endif
