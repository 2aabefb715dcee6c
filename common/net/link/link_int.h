/* SPDX-License-Identifier: Apache-2.0
 *
 * Internals of a link. The files, lowest first; each calls only those above it in this list:
 *
 *   crc.c            CRC32C of a tensor from those of its chunks
 *   transport_rpc.c  gRPC as the transport of lanes; does not know links
 *   lane_log.c       messages of a lane that the peer has not acknowledged
 *   frame_writer.c   encodes frames and passes them to the streams of the lanes
 *   recv_window.c    counts received bytes and returns them to the peer as CREDIT
 *   packet.c         packets; packet_frames.c makes those of contexts
 *   device_copy.c    progress of a tensor's copy from a device, and the queues that wait for it
 *   pace.c           congestion window: decides which chunk is sent when, without clock or network
 *   send_queue.c     packets and chunks that wait for credit, the window or a device copy
 *   progress.c       advances device copies and wakes the send queues
 *   reassembly.c     assembles received chunks to complete packets
 *   link_state.c     states of a link, from its first lane to its end
 *   counters.c       counters and load of a link
 *   received.c       counts received messages and acknowledges them
 *   lane.c           handles the frames of a stream, by the state of its lane
 *   dial.c           dials the lanes of a link
 *   redial.c         dials lanes again that have lost their connection, or ends the link
 *   link.c           sends, opens and closes
 *   link_rpc.c       dials and accepts links over gRPC
 *
 * A link is one logical stream over 1 + k streams, each on a connection of its own. Lane 0 carries
 * all frames but CHUNK and the PINGs sent in one message with a chunk, so that an ABORT overtakes a
 * large tensor. The bulk lanes carry the chunks, in turn. Chunks and the head that names them
 * arrive in any order: the first of them makes the entry in the table of reassembly.c, and the
 * packet is delivered once all its tensors are complete.
 *
 * The sender queues the chunks of a tensor before its head, and both sides sum each chunk while it
 * is sent or received. So no pass over the whole tensor precedes or follows the transfer.
 *
 * Locks: that of a link, then that of its recv_window or its writer. None is held over a callback.
 */
#ifndef CLEAVE_LINK_INT_H
#define CLEAVE_LINK_INT_H

#include <pthread.h>

#include "common/net/link/link.h"

enum {
  MAX_LANES = 1 + CLV_WIRE_LANES,
  MAX_PARTIAL = 512,
  /* most separate ranges of received bytes of one tensor, whose chunks may arrive in any order */
  MAX_SPANS = 512,
  INITIAL_SPANS = 64, /* spans that a table entry allocates at first, and keeps for later tensors */
  /* number of entries of the reassembly table whose spans are allocated when the link is made */
  PREALLOC_PARTIAL = 32,
  MAX_SPARE_MESSAGES = 256,   /* free messages that a link keeps */
  PREALLOC_MESSAGES = 96,     /* messages that are allocated when the link is made */
  MESSAGE_BATCH = 32,         /* messages that are allocated when none is free */
  HEAD_BYTES = 1024,          /* encoded size of most frames, without payload */
  COALESCED_BYTES = 16 << 10, /* bytes of frames that are held back for the next message */
  /* Limit of the packets received from a peer and not freed yet: several times those of one
   * step. */
  MAX_PACKETS = 2 * CLV_WIRE_CONTRIBUTIONS,
  CLOSE_TIMEOUT_MS = 500,    /* wait for the peer to end its side of a lane */
  CANCEL_TIMEOUT_MS = 10000, /* wait for the end of a cancelled lane */
  /* shortest wait for a packet that n_node_waits counts; longer than any gap between two frames
   * of one burst */
  LONG_WAIT_NS = 1000000,
  PING_INTERVAL_MS = 100,   /* least time between two PINGs of clv_link_ping_async */
  MAX_UNSENT = MAX_PACKETS, /* messages on the control lane that the transport has not accepted */
  MAX_LOGGED = 1 << 16,     /* messages of a lane that the peer has not acknowledged */
  ACK_MESSAGES = 32,        /* received messages of a lane that wait for an ACK, at most */
  ATTACH_TIMEOUT_MS = 5000, /* time for a redial: connect, TLS and ATTACHED */
  REFUSED_MS = 3000,        /* clv_link_options.refusal_timeout_ms, if that is 0 */
  /* pause before the third redial; the second comes at once; doubles up to REDIAL_MAX_MS */
  REDIAL_FIRST_MS = 200,
  REDIAL_MAX_MS = 2000,
  /* silence after which the dialling side replaces a connection, unless limits.peer_timeout is
   * shorter. A connection falls silent when a NAT forgets it or an address changes; the link
   * continues. */
  SILENT_MS = 3000,
  STABLE_MS = 1000,     /* a connection that lasted this long ends the pauses between redials */
  INITIAL_CHUNKS = 256, /* capacity of the queue of chunks when it is first allocated */
  MAX_PROBES = 256,     /* open PINGs about chunks: more than a window needs, also with 16 lanes */
  INITIAL_WINDOW = 1 << 20, /* bytes of chunks in flight until the first PONG about chunks */
  /* smallest window: one chunk in flight, one whose PONG is awaited */
  MIN_WINDOW = 2 * CLV_WIRE_CHUNK_BYTES,
  MAX_WINDOW = 256 << 20,
  /* size of a tensor from which received bytes are copied past the cache, because the first ones
   * would have left the L2 cache before a thread computes with them */
  PAST_CACHE_BYTES = 4 << 20,
};

/* ---- declarations of transport_rpc.c --------------------------------------------------------- */

extern const clv_transport clv_transport_rpc;

/* Makes a dialler over gRPC for clv_link_start. Copies `dial`. Each stream gets a copy of `events`
 * with its lane as `user`. */
clv_code clv_dialler_make_grpc(clv_rpc_runtime *runtime, const clv_link_dial *dial,
                               const clv_rpc_stream_events *events, clv_dialler *ret,
                               clv_err *err) CLV_USE_RESULT;

/* ---- streams of a transport ------------------------------------------------------------------ */

/* A stream and the transport that carries it. All zero: no stream. */
typedef struct clv_stream {
  const clv_transport *transport;
  void *handle;
} clv_stream;

clv_stream clv_stream_ref(clv_stream s);
void clv_stream_unref(clv_stream *s);

/* ---- declarations of lane_log.c -------------------------------------------------------------- */

/* A message of a lane, kept until the peer has acknowledged it. */
typedef struct clv_logged_message {
  struct clv_logged_message *next;
  /* the encoded frame without its payload, head_len bytes, then frames that were held back for this
   * message */
  clv_bytes head;
  size_t head_len;
  clv_tensor *payload_tensors[CLV_WIRE_TENSORS]; /* [n_payload_tensors], a reference to each */
  uint32_t n_payload_tensors;
  /* range of payload[0] that is sent; all other tensors of the payload are sent completely */
  size_t first_tensor_offset, first_tensor_len;
  size_t message_bytes; /* size of the message, bytes */
  bool is_removed; /* acknowledged while a thread passes it to the stream; that thread frees it */
} clv_logged_message;

/* Log of a lane. The counters count messages of the lane since the begin of the link. */
typedef struct clv_lane_log {
  /* list of the messages that are not acknowledged, oldest first */
  clv_logged_message *first, *last;
  clv_logged_message *next_to_pass; /* next message to pass to the stream; NULL: none */
  /* message that a thread passes to the stream now; NULL: none */
  clv_logged_message *message_in_hand;
  uint64_t n_appended, n_sent, n_acked;
  uint64_t n_accepted;            /* messages that the transport has accepted; atomic */
  clv_stream stream;              /* present stream of the lane; zero: none */
  uint64_t connection_number;     /* number of the connection of `stream` */
  uint64_t min_connection_number; /* lowest number of a connection that may attach */
  /* the stream is attached at both sides, so messages may be passed */
  bool is_stream_attached;
  bool is_passing_messages; /* a thread passes messages to the stream */
} clv_lane_log;

/* Appends a message to be sent. */
void clv_lane_log_append(clv_lane_log *g, clv_logged_message *m);
/* clv_lane_log_take_next returns the next message to pass to the stream, NULL: none. It stays in
 * the log. clv_lane_log_finish_message follows when the stream has taken it, and returns the
 * message if it was removed meanwhile, else NULL. */
clv_logged_message *clv_lane_log_take_next(clv_lane_log *g);
clv_logged_message *clv_lane_log_finish_message(clv_lane_log *g);
/* Moves the first `received` messages of the lane to the list *removed. CLV_INVALID: fewer were
 * sent. */
clv_code clv_lane_log_remove_acked(clv_lane_log *g, uint64_t received, clv_logged_message **removed,
                                   clv_err *err) CLV_USE_RESULT;
/* Begins with another stream, behind the first `received` messages. *ret_resent_bytes: bytes that
 * are sent again. CLV_PRECONDITION: the peer had acknowledged more. */
clv_code clv_lane_log_continue_after(clv_lane_log *g, uint64_t received,
                                     clv_logged_message **removed, uint64_t *ret_resent_bytes,
                                     clv_err *err) CLV_USE_RESULT;
/* Moves all messages to the list *removed. */
void clv_lane_log_clear(clv_lane_log *g, clv_logged_message **removed);

/* ---- declarations of frame_writer.c ---------------------------------------------------------- */

/* Frame writer of a link: encodes frames, logs them and passes them to the streams of the lanes.
 * Reference-counted, because a packet that is freed after its link still sends CREDIT here. */
typedef struct clv_frame_writer {
  pthread_mutex_t lock;
  int refs;
  char peer_name[CLV_WIRE_NAME + 1];
  clv_lane_log lane_logs[MAX_LANES];
  /* is_shut: the writer refuses to send. is_broken: a send has failed, so the writer refuses to
   * send until the link has ended. */
  bool is_shut, is_broken;
  /* the peer sends no ACKs, so a message leaves the log as soon as the transport has accepted it */
  bool forgets_accepted_messages;
  clv_code end_code; /* why the writer is shut, with `end_text` */
  char end_text[CLV_ERR_TEXT];
  clv_logged_message *free_messages;            /* list of free messages */
  size_t n_free_messages, n_allocated_messages; /* number of free messages, and of all messages */
  clv_bytes held_frames; /* frames held back for the next message of lane 0, encoded */
  /* n_held_frames: frames held back; n_held_acks: ACKs among them. A flush sends no ACKs alone. */
  uint32_t n_held_frames, n_held_acks;
  uint64_t bytes_out, messages_out, resent_bytes; /* sent so far, and sent again; atomic */
} clv_frame_writer;

clv_code clv_frame_writer_new(const char *peer, clv_frame_writer **ret,
                              clv_err *err) CLV_USE_RESULT;
clv_frame_writer *clv_frame_writer_ref(clv_frame_writer *o);
void clv_frame_writer_unref(clv_frame_writer *o); /* NULL is allowed */

/* Sets the stream of a lane and takes a reference to it. Messages are passed to it after
 * clv_frame_writer_resume_lane. connection: its number within the lane; a stream whose end was
 * reported already is ignored. Cancels the stream if the writer is shut. */
void clv_frame_writer_attach_stream(clv_frame_writer *o, uint32_t index, uint64_t connection,
                                    clv_stream s);
/* Passes the messages of the lane to its stream, from behind the first `received` ones. Errors:
 * those of clv_lane_log_continue_after. */
clv_code clv_frame_writer_resume_lane(clv_frame_writer *o, uint32_t index, uint64_t connection,
                                      uint64_t received, clv_err *err) CLV_USE_RESULT;
/* call after the end of the stream */
void clv_frame_writer_detach_stream(clv_frame_writer *o, uint32_t index, uint64_t connection);
/* Forgets the first `received` messages of a lane. CLV_INVALID: fewer were sent. */
clv_code clv_frame_writer_remove_acked(clv_frame_writer *o, uint32_t index, uint64_t received,
                                       clv_err *err) CLV_USE_RESULT;

/* Returns a piece of `len` bytes of the tensor. Takes over a reference to the tensor. */
clv_rpc_piece clv_rpc_piece_of_tensor(clv_tensor *t, size_t offset, size_t len);

/* Sends one frame on one lane, now or once the lane has a stream. pieces[0] is not used;
 * pieces[1..n_payload] are complete tensors, or one piece of a tensor, hold `payload` bytes and are
 * taken over in all cases. */
clv_code clv_frame_writer_send(clv_frame_writer *o, uint32_t index, const clv_frame *f,
                               clv_rpc_piece *pieces, size_t n_payload, size_t payload,
                               clv_err *err) CLV_USE_RESULT;
/* As clv_frame_writer_send, with another frame without payload in the message. The peer handles
 * `before` first, once it has received the whole message. NULL: none. */
clv_code clv_frame_writer_send_with_preceding(clv_frame_writer *o, uint32_t index,
                                              const clv_frame *before, const clv_frame *f,
                                              clv_rpc_piece *pieces, size_t n_payload,
                                              size_t payload, clv_err *err) CLV_USE_RESULT;
clv_code clv_frame_writer_send_without_payload(clv_frame_writer *o, const clv_frame *f,
                                               clv_err *err) CLV_USE_RESULT;
/* Sends ATTACH or ATTACHED, the first frame of a stream. It is not part of the lane's log. */
clv_code clv_stream_send_first_frame(clv_stream s, const clv_frame *f, clv_err *err) CLV_USE_RESULT;
/* Holds a frame of lane 0 back. It is sent in one message with the next frame of lane 0, and before
 * that frame, or by clv_frame_writer_flush. A flush sends nothing while only ACKs are held back.
 * Copies the pieces, which stay the caller's. False: the frame was not held back and the caller has
 * to send it. */
bool clv_frame_writer_hold_back(clv_frame_writer *o, const clv_frame *f,
                                const clv_rpc_piece *payload, size_t n_payload,
                                size_t bytes) CLV_USE_RESULT;
void clv_frame_writer_flush(clv_frame_writer *o);
/* Counts a message of a lane that the transport has accepted. */
void clv_frame_writer_record_accepted(clv_frame_writer *o, uint32_t index);
/* Returns the messages of lane 0 that the transport has not accepted. */
uint64_t clv_frame_writer_n_unaccepted(clv_frame_writer *o);
bool clv_frame_writer_defer_job(clv_frame_writer *o, clv_rpc_job *job) CLV_USE_RESULT;

/* Shuts the writer: later sends fail, and all streams are closed after their messages (CLV_OK) or
 * cancelled (other codes). Only the first call counts. */
void clv_frame_writer_shut(clv_frame_writer *o, clv_code code, const char *text);
/* Cancels the streams that have not ended. Their lanes receive clv_lane_on_ended. */
void clv_frame_writer_cancel_all_streams(clv_frame_writer *o, clv_code code, const char *text);
/* Cancels the stream of one lane, so that its end is reported soon, also when the connection is
 * silent. */
void clv_frame_writer_cancel_lane_stream(clv_frame_writer *o, uint32_t index, const char *text);
/* Cancels all streams after a failed send. Does nothing if the writer is already shut or broken. */
void clv_frame_writer_break(clv_frame_writer *o, const clv_err *why);
/* True if a send has failed. `text` [CLV_ERR_TEXT] is then the reason. */
bool clv_frame_writer_is_broken(clv_frame_writer *o, char *text);
/* Fills *err with CLV_UNAVAILABLE and the reason why the writer is shut. Returns the code. */
clv_code clv_frame_writer_end_error(clv_frame_writer *o, clv_err *err) CLV_USE_RESULT;

/* ---- declarations of device_copy.c ----------------------------------------------------------- */

struct clv_send_queue;

/* A send queue that waits until the first `bytes` of a tensor are copied, or until the copy has
 * failed. */
typedef struct clv_copy_waiter {
  struct clv_copy_waiter *next;
  struct clv_send_queue *send_queue;
  size_t awaited_bytes;
} clv_copy_waiter;

/* Makes `a` wait for its bytes. True: the bytes are copied or the copy has failed, so `a` does not
 * wait. */
bool clv_device_copy_add_waiter(clv_device_copy *c, clv_copy_waiter *a);
/* Ends the wait of `a`. False: `a` did not wait, or clv_device_copy_take_due_waiter has returned
 * it. */
bool clv_device_copy_remove_waiter(clv_device_copy *c, clv_copy_waiter *a);
/* clv_device_copy_set_progress stores that the first `bytes` are copied, or why the copy failed.
 * clv_device_copy_take_due_waiter then returns each send queue to wake, NULL at the end. */
void clv_device_copy_set_progress(clv_device_copy *c, size_t bytes, const clv_err *failure);
struct clv_send_queue *clv_device_copy_take_due_waiter(clv_device_copy *c);
/* Returns the failure of the copy. CLV_OK: the first `bytes` are copied, or the copy has not
 * failed. */
clv_code clv_device_copy_check_failure(clv_device_copy *c, size_t bytes,
                                       clv_err *err) CLV_USE_RESULT;

/* ---- declarations of recv_window.c ----------------------------------------------------------- */

/* Receive window of a link: bytes of tensors received and not yet returned as CREDIT.
 * Reference-counted; each received packet has a reference. */
typedef struct clv_recv_window {
  pthread_mutex_t lock;
  int refs;
  clv_frame_writer *writer;
  uint64_t limit_bytes;      /* bytes of tensors that this side accepts at once */
  uint64_t unreturned_bytes; /* bytes of tensors received for which no CREDIT was sent */
  uint64_t unsent_credit; /* part of unreturned_bytes that is free again; CREDIT is not sent yet */
  uint32_t n_packets;     /* packets received and not freed yet */
  /* memory of the link, freed with the window, because packets still read the link's name */
  void *link_memory;
} clv_recv_window;

/* Makes a window of limit_bytes. Takes over `memory`, the block of the link, if it succeeds. */
clv_code clv_recv_window_new(clv_frame_writer *writer, uint64_t limit_bytes, void *memory,
                             clv_recv_window **ret, clv_err *err) CLV_USE_RESULT;
clv_recv_window *clv_recv_window_ref(clv_recv_window *r);
void clv_recv_window_unref(clv_recv_window *r); /* NULL is allowed */

/* Counts one more received packet. CLV_EXHAUSTED: the peer has sent more than MAX_PACKETS that are
 * not freed. ignores_limit: count the packet even then. */
clv_code clv_recv_window_add_packet(clv_recv_window *r, bool ignores_limit,
                                    clv_err *err) CLV_USE_RESULT;
/* Counts `bytes` of tensors that the peer sends. CLV_EXHAUSTED: more than the credit granted to
 * it. */
clv_code clv_recv_window_consume(clv_recv_window *r, uint64_t bytes, clv_err *err) CLV_USE_RESULT;
/* Uncounts a packet that is freed and adds its bytes to unsent_credit. Sends all of unsent_credit
 * as CREDIT once it is a quarter of limit_bytes, or once it equals unreturned_bytes and is more
 * than an inline message holds. */
void clv_recv_window_return_bytes(clv_recv_window *r, uint64_t bytes); /* NULL is allowed */

/* ---- declarations of pace.c ------------------------------------------------------------------ */

/* Part of a tensor that waits to be sent. */
typedef struct clv_chunk {
  clv_tensor *tensor;
  uint64_t transfer_id, offset;
  size_t len;
} clv_chunk;

/* A chunk to send and its lane. ping_id_before, ping_id_with_chunk: ids of the PINGs to send before
 * it on lane 0 and in its own message; 0: no PING. */
typedef struct clv_chunk_send {
  clv_chunk chunk;
  uint32_t lane_index;
  uint64_t ping_id_before, ping_id_with_chunk;
} clv_chunk_send;

/* A PING sent with or after chunks. Its PONG confirms that the peer has received the first
 * confirmed_bytes bytes of the lane. */
typedef struct clv_probe {
  uint64_t ping_id;         /* id of the PING */
  uint64_t confirmed_bytes; /* bytes of the lane that the PONG confirms as received */
  uint64_t sent_ns;         /* time at which the PING was sent */
  uint64_t in_flight;       /* bytes of chunks in flight when the PING was sent */
  uint32_t lane_index;
} clv_probe;

#define PROBE_BIT (UINT64_C(1) << 63) /* bit of the message id that marks a PING about chunks */

/* Congestion window of a link and the chunks that wait for it. Counts bytes of chunks. The caller
 * (the send queue) holds its own lock; not thread-safe. */
typedef struct clv_pace {
  clv_chunk *chunks; /* circular list of cap_chunks entries; n_chunks of them, from `first` */
  size_t first, n_chunks, cap_chunks;
  uint32_t n_lanes, next_lane;
  uint64_t window, in_flight;
  /* window to restore after the round trip was measured with a closed window; 0: the window is not
   * closed */
  uint64_t window_before_closing;
  uint64_t sent_bytes[MAX_LANES], probed_bytes[MAX_LANES], confirmed_bytes[MAX_LANES];
  /* value of `sent_bytes` when the last pause ended: these bytes are assumed to be received */
  uint64_t assumed_bytes[MAX_LANES];
  clv_probe probes[MAX_PROBES];
  uint32_t n_probes;
  uint64_t last_ping_id;
  uint64_t empty_path_probed_ns; /* when the last PING on lane 0 was sent; 0: none was */
  /* ns; the two minima are the shortest round trips of this measuring period and the one before */
  uint64_t min_rtt_ns, prev_min_rtt_ns, rtt_period_start_ns, window_changed_ns;
} clv_pace;

void clv_pace_init(clv_pace *p);
void clv_pace_clear(clv_pace *p); /* drops the waiting chunks; queue none afterwards */
/* Queues a chunk and takes a reference to its tensor. */
clv_code clv_pace_queue_chunk(clv_pace *p, const clv_chunk *c, clv_err *err) CLV_USE_RESULT;
/* Removes the next chunk that may be sent now; the caller takes over its reference. False: there is
 * none, or the window is full. */
bool clv_pace_take_next_chunk(clv_pace *p, uint64_t now, clv_chunk_send *ret);
/* Handles the PONG to a probe. CLV_INVALID: no such probe is open. */
clv_code clv_pace_handle_pong(clv_pace *p, uint64_t number, uint64_t now,
                              clv_err *err) CLV_USE_RESULT;
/* Returns the bytes of chunks that were sent and that no PONG has confirmed; 0 if no probe is open,
 * because then no PONG will come. */
uint64_t clv_pace_bytes_in_flight(const clv_pace *p);

/* ---- declarations of send_queue.c ------------------------------------------------------------ */

/* Send queue of a link: packets and chunks that wait for credit, for the congestion window or for a
 * device copy. Reference-counted; each of its queued jobs has a reference. */
typedef struct clv_send_queue {
  pthread_mutex_t lock;
  int refs;
  clv_frame_writer *writer;
  clv_clock clock;
  bool has_ended; /* the queued packets were dropped, new ones are refused */
  /* available_credit: bytes of tensors that may be sent now; granted_credit: bytes that the peer
   * grants when nothing is in flight */
  uint64_t available_credit, granted_credit;
  clv_packet *first, *last; /* queue of packets that wait for credit or behind another packet */
  /* is_packet_job_active: packet_job is queued or runs; is_chunk_job_queued: chunk_job is queued
   * and has not begun to run */
  bool is_packet_job_active, is_chunk_job_queued;
  /* packet that waits for a device copy, of which nothing or a part is sent; NULL: none */
  clv_packet *suspended_packet;
  /* waiter for the device copy of suspended_packet; references the send queue while it waits */
  clv_copy_waiter copy_waiter;
  /* packet_job sends the queued packets, chunk_job the chunks */
  clv_rpc_job packet_job, chunk_job;
  uint64_t last_transfer_id, tensors_out; /* last transfer id; tensors sent so far; atomic */
  clv_pace pace;
} clv_send_queue;

clv_code clv_send_queue_new(clv_frame_writer *writer, const clv_clock *clock, uint64_t credit,
                            clv_send_queue **ret, clv_err *err) CLV_USE_RESULT;
clv_send_queue *clv_send_queue_ref(clv_send_queue *d);
void clv_send_queue_unref(clv_send_queue *d); /* NULL is allowed */

/* Set the number of lanes, and the credit that the peer grants when it attaches. */
void clv_send_queue_set_lanes(clv_send_queue *d, uint32_t n_lanes);
void clv_send_queue_set_credit(clv_send_queue *d, uint64_t credit);
/* As clv_link_send: takes the packet, sends it now, queues it or refuses it. */
clv_code clv_send_queue_send(clv_send_queue *d, clv_packet *p, clv_err *err) CLV_USE_RESULT;
/* Adds `bytes` of credit and starts the job that sends packets which waited for it. */
void clv_send_queue_add_credit(clv_send_queue *d, uint64_t bytes);
/* Handles the PONG to a probe and starts the job that sends chunks which waited for it. */
clv_code clv_send_queue_handle_pong(clv_send_queue *d, uint64_t number,
                                    clv_err *err) CLV_USE_RESULT;
/* Resumes sending after the device copy that d->copy_waiter waited for has advanced or failed.
 * Consumes the reference of d->copy_waiter. */
void clv_send_queue_resume_after_copy(clv_send_queue *d);
/* Stops sending and drops the packets and chunks that wait. */
void clv_send_queue_end(clv_send_queue *d);
/* Adds the bytes and frames that wait or are in flight to *load. */
void clv_send_queue_add_load(clv_send_queue *d, clv_link_load *load);

/* ---- declarations of reassembly.c ------------------------------------------------------------ */

/* Bytes [from, to) of a tensor that a chunk has claimed. */
typedef struct clv_span {
  uint64_t from, to;
} clv_span;

/* A tensor of which a part was received. */
typedef struct clv_partial_tensor {
  /* claimed_bytes: bytes of received chunks; copied_bytes: bytes of these that are copied */
  uint64_t transfer_id, total_bytes, claimed_bytes, copied_bytes;
  clv_tensor *tensor; /* the tensor; NULL: it is over the quota, so its bytes are dropped */
  clv_packet *packet;
  uint32_t tensor_index, crc32c;
  clv_span *spans; /* [n_spans] disjoint, ascending; the memory stays with the table entry */
  size_t n_spans, cap_spans;
} clv_partial_tensor;

/* State of a tensor that is received in parts. reassembly.c has a paragraph for each state and the
 * table of actions. */
typedef enum clv_partial_tensor_state {
  CLV_PARTIAL_NONE,     /* no part was received */
  CLV_PARTIAL_HEADLESS, /* bytes were received, the head was not */
  CLV_PARTIAL_BYTES,    /* all bytes were received, the head was not */
  CLV_PARTIAL_HEADED,   /* the head was received, bytes are missing */
  CLV_PARTIAL_COMPLETE, /* head and all bytes were received; the packet waits for other tensors */
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
  clv_link *link; /* link to which received packets belong */
  clv_clock clock;
  bool quota_fails_packet;
  clv_err quota_error; /* error of the last tensor that was over the quota */
  clv_partial_tensor partial_tensors[MAX_PARTIAL];
  size_t n_partial_tensors;
  uint64_t tensors_in; /* tensors received so far; atomic */
  uint64_t received_bytes, receiving_ns;
  /* start of the transfers now in progress; valid while n_partial_tensors > 0 */
  uint64_t receiving_since_ns;
} clv_reassembly;

clv_code clv_reassembly_init(clv_reassembly *a, const clv_link_options *o, clv_link *link,
                             clv_recv_window *recv_window, clv_err *err) CLV_USE_RESULT;
/* frees the packets that wait for tensors */
void clv_reassembly_free_waiting_packets(clv_reassembly *a);
/* frees all memory; also after a failed clv_reassembly_init, or without one */
void clv_reassembly_clear(clv_reassembly *a);

clv_partial_tensor_state clv_reassembly_state(clv_reassembly *a, uint64_t transfer);
/* Handles a CHUNK. *ret is the packet that this chunk completes, else NULL. */
clv_code clv_reassembly_add_chunk(clv_reassembly *a, const clv_frame *f, const clv_piece *pieces,
                                  const clv_payload *payload, clv_packet **ret,
                                  clv_err *err) CLV_USE_RESULT;
/* Makes the packet of a frame. *ret_head is the announcement of a CALL whose tensors come in
 * chunks, else NULL. The caller delivers it before it calls clv_reassembly_add_packet. */
clv_code clv_reassembly_new_packet(clv_reassembly *a, const clv_frame *f, clv_packet **ret_packet,
                                   clv_packet **ret_head, clv_err *err) CLV_USE_RESULT;
/* Takes the packet, and returns it in *ret if all its tensors are received; else *ret is NULL. */
clv_code clv_reassembly_add_packet(clv_reassembly *a, clv_packet *p, const clv_piece *pieces,
                                   const clv_payload *payload, clv_packet **ret,
                                   clv_err *err) CLV_USE_RESULT;
/* Returns the bytes of tensors received in chunks, and the time in which at least one tensor was in
 * transfer. */
void clv_reassembly_get_received_counts(clv_reassembly *a, uint64_t *ret_bytes, uint64_t *ret_ns);
void clv_reassembly_add_load(clv_reassembly *a, clv_link_load *load);

/* ---- declarations of link_state.c ------------------------------------------------------------ */

/* State of a link. link_state.c has a paragraph for each state and the table of actions. */
typedef enum clv_link_state {
  CLV_LINK_NEW,       /* no lane has joined */
  CLV_LINK_ATTACHING, /* not all lanes are attached */
  CLV_LINK_OPEN,      /* all lanes are attached */
  CLV_LINK_MENDING,   /* a lane has lost its connection and is dialled again */
  CLV_LINK_ENDING,    /* the link has ended, some lanes have not */
  CLV_LINK_ENDED,     /* no lane is left */
  CLV_LINK_STATES
} clv_link_state;
typedef enum clv_link_state_event {
  CLV_LINK_LANE_JOINS,    /* this side dials a lane, or the peer's lane sends ATTACH */
  CLV_LINK_LANE_ATTACHED, /* a lane is attached */
  CLV_LINK_LANE_LOST,     /* a lane has lost its connection */
  CLV_LINK_ENDS, /* a lane ends, a message violates the protocol, or the owner closes the link */
  CLV_LINK_LANE_ENDED, /* a lane has ended; CLV_LINK_ENDS was reported before */
  CLV_LINK_STATE_EVENTS
} clv_link_state_event;

/* Arguments of an event. The action of CLV_LINK_ENDS sets is_first_end if the link had not ended
 * before. */
typedef struct clv_link_event_args {
  uint32_t lane_index, n_lanes; /* lane of the event; number of lanes of the link */
  /* set for CLV_LINK_LANE_JOINS: the lane. NULL is allowed unless the present connection of the
   * lane has to end first. */
  struct clv_lane *lane;
  /* set for CLV_LINK_LANE_JOINS and CLV_LINK_LANE_ATTACHED: number of the connection (0: the
   * first) */
  uint64_t connection_number;
  /* set by CLV_LINK_LANE_JOINS: `lane` waits for the end of the present connection, and
   * replaced_stream (NULL: none) had waited for it */
  bool must_wait;
  clv_stream replaced_stream;
  /* set by CLV_LINK_LANE_LOST: stream of the lane that has waited and joins now, with a
   * reference, beside connection_number; zero: none */
  clv_stream joining_stream;
  /* number of received messages that the ATTACH of `joining_stream` reported */
  uint64_t n_peer_received;
  clv_code end_code; /* reason of CLV_LINK_ENDS, with `end_text` */
  const char *end_text;
  bool is_first_end;
} clv_link_event_args;

/* A lane of a link, over all its connections. */
typedef struct clv_lane_slot {
  bool has_stream;            /* the lane has a stream, dialled or accepted, that has not ended */
  bool is_attached;           /* both sides have attached the stream */
  uint64_t connection_number; /* highest number of a connection so far */
  uint64_t joined_connection_number; /* number of the connection that has or had the stream */
  uint64_t lost_since_ns;      /* when the last attached connection was lost; 0: it is attached */
  uint64_t attached_ns;        /* when the lane was last attached */
  uint64_t attach_deadline_ns; /* end of the time for ATTACHED of a redial; 0: none */
  /* accepted lane that waits for the end of the present connection; NULL: none */
  struct clv_lane *waiting_lane;
  uint64_t n_received; /* messages received over all connections; atomic */
  uint64_t n_acked;    /* received messages that were acknowledged; atomic */
} clv_lane_slot;

/* Redials of the dialling side of a link. */
typedef struct clv_redials {
  pthread_t thread;
  bool has_thread;
  pthread_cond_t wake_thread; /* signalled when a lane is lost and when the link ends */
  /* events LANE_LOST so far, and those that the thread has seen */
  uint64_t n_losses, n_losses_seen;
  uint64_t next_redial_ns;  /* no redial before this time */
  uint64_t redial_pause_ms; /* pause after the next failed redial */
  /* start of the time in which every redial was refused, ns; 0: the last one was not refused */
  uint64_t refused_since_ns;
  uint64_t last_refused_ns;        /* when the last redial was refused */
  bool is_stopping;                /* atomic: a redial in progress gives up */
  char failure_text[CLV_ERR_TEXT]; /* how the last redial failed; empty: none has since the loss */
} clv_redials;

struct clv_link {
  pthread_mutex_t lock;         /* guards the fields down to the empty line */
  pthread_cond_t state_changed; /* signalled by each event and each PONG */
  clv_link_state state;
  clv_lane_slot lanes[MAX_LANES];
  uint32_t n_lanes, n_lanes_with_stream, n_attached;
  clv_code close_code;
  char close_text[CLV_ERR_TEXT];
  char lost_text[CLV_ERR_TEXT]; /* how the last connection was lost */
  clv_redials redials;
  uint64_t ping_sent_ns, n_pings, n_pongs;
  uint64_t min_rtt_ns; /* shortest round trip of a PING so far; 0: none yet */
  /* start of the outage in progress, and end of the last outage, ns; 0: none */
  uint64_t outage_since_ns, outage_ended_ns;
  clv_link_counts counts;

  int refs;
  char peer_name[CLV_WIRE_NAME + 1];
  bool has_violation;   /* atomic: a message that violated the protocol ended the link */
  bool is_mending;      /* atomic: the state is CLV_LINK_MENDING */
  bool is_peer_mending; /* atomic: the last PONG reported other links that are mending */
  bool is_ack_due;      /* atomic: a packet with tensors is complete, so an ACK is due */
  uint64_t lease_ms;    /* time for mending a lane; 0: the loss of a lane ends the link, no ACKs */
  uint64_t refusal_timeout_ms; /* time of refusals after which the link ends */
  clv_clock clock;
  clv_wire_limits accept_limits;
  clv_link_events events;
  clv_dialler dialler; /* dialler of the dialling side; zeroed by clv_link_hang_up */
  /* contents of ATTACH, on the dialling side; address and pem are not kept */
  clv_link_dial dial_options;
  char session_owner[CLV_WIRE_URI + 1]; /* memory of dial_options.session_owner */
  clv_frame_writer *writer;
  clv_recv_window *recv_window;
  clv_send_queue *send_queue;
  clv_reassembly reassembly;
};

/* Runs the action for an event. CLV_PRECONDITION: the event is not legal in this state. */
clv_code clv_link_on_event(clv_link *l, clv_link_state_event event, clv_link_event_args *n,
                           clv_err *err) CLV_USE_RESULT;
/* Ends the link, once: closes or cancels the streams, drops queued packets and reports
 * on_closed. */
void clv_link_end(clv_link *l, clv_code code, const char *text);
/* Records that a lane has ended. */
void clv_link_record_lane_end(clv_link *l, uint32_t index, uint64_t connection);
void clv_link_hang_up(clv_link *l);
/* BLOCKS until the link has changed. The caller holds the lock. False: `deadline_ns` has passed, or
 * the link has a caller's clock and may not block. */
bool clv_link_wait_for_change(clv_link *l, uint64_t deadline_ns);
/* As clv_link_wait_for_change. False also if the cancellation hook of this thread asks to stop
 * (clv_rpc_set_cancel_hook). */
bool clv_link_wait_unless_stopped(clv_link *l, uint64_t deadline_ns);

/* ---- declarations of counters.c -------------------------------------------------------------- */

/* Returns the PONG to a PING of the peer, with the receive counters and the clock of this side. */
clv_frame clv_link_make_pong(clv_link *l, const clv_frame *ping);
/* Handles a PONG. CLV_INVALID: it answers no open PING. */
clv_code clv_link_handle_pong(clv_link *l, const clv_frame *pong, clv_err *err) CLV_USE_RESULT;

/* ---- declarations of received.c -------------------------------------------------------------- */

/* Counts a message that was received on a lane and handled, and sends an ACK if one is due. */
clv_code clv_link_record_received(clv_link *l, uint32_t index, clv_err *err) CLV_USE_RESULT;
/* Handles an ACK. CLV_INVALID: it has counters of other lanes, or of messages that were not
 * sent. */
clv_code clv_link_handle_ack(clv_link *l, const clv_frame *f, clv_err *err) CLV_USE_RESULT;
uint64_t clv_link_n_received(clv_link *l, uint32_t index);

/* ---- declarations of lane.c ------------------------------------------------------------------ */

/* State of a lane. lane.c has the table of actions for each kind of frame. */
typedef enum clv_lane_state {
  CLV_LANE_ACCEPTED, /* waits for the peer's ATTACH */
  CLV_LANE_WAITING,  /* waits for the end of the lane's earlier connection */
  CLV_LANE_DIALLED,  /* waits for the peer's ATTACHED */
  CLV_LANE_CONTROL,  /* the lane is attached and is lane 0 */
  CLV_LANE_BULK,     /* the lane is attached and is a bulk lane */
  CLV_LANE_STATES
} clv_lane_state;

struct clv_lane {
  /* link of the lane; NULL: the lane was accepted, and ATTACH has not named its session yet */
  clv_link *link;
  clv_stream stream; /* stream of an accepted lane; zero for a dialled one */
  uint32_t lane_index;
  uint64_t connection_number; /* number of this connection of the lane */
  uint64_t n_peer_received;   /* messages that the peer had received when it sent ATTACH */
  bool has_joined; /* the lane of the link has this connection; guarded by the link's lock */
  bool is_attach_accepted; /* atomic: the transport has accepted ATTACH or ATTACHED */
  clv_lane_state state;    /* state of the lane; atomic */
  const clv_lane_acceptor *acceptor;
  char peer_uri[CLV_WIRE_URI + 1];
};

/* Makes a lane of the dialling side. The lane takes a reference to the link. */
clv_code clv_lane_new_dialled(clv_link *l, uint32_t index, uint64_t connection, clv_lane **ret,
                              clv_err *err) CLV_USE_RESULT;

/* Handles a decoded frame of an attached lane. The caller ends the link after an error. */
clv_code clv_link_on_frame(clv_link *l, uint32_t index, const clv_frame *f, const clv_piece *pieces,
                           const clv_payload *payload, clv_err *err) CLV_USE_RESULT;

/* ---- declarations of dial.c ------------------------------------------------------------------ */

/* Dials a lane of the link and sends ATTACH. The lane may have ended by the return of the function.
 * connection: its number, 0 for the first. */
clv_code clv_link_dial_lane(clv_link *l, uint32_t index, uint64_t connection,
                            clv_err *err) CLV_USE_RESULT;

/* ---- declarations of redial.c ---------------------------------------------------------------- */

/* Starts the thread that dials lost lanes again. Call once the link is open. */
clv_code clv_link_start_redials(clv_link *l, clv_err *err) CLV_USE_RESULT;
/* BLOCKS until the thread has ended. The link has ended before. */
void clv_link_stop_redials(clv_link *l);

/* ---- declarations of crc.c ------------------------------------------------------------------- */

/* Returns what a chunk with the CRC32C `crc` contributes to the CRC32C of its tensor when `bytes`
 * follow the chunk. The CRC32C of the tensor is the exclusive or of all contributions. */
uint32_t clv_crc32c_shift(uint32_t crc, uint64_t bytes);

#endif
