/* SPDX-License-Identifier: Apache-2.0
 *
 * Internals of a stream, shared by stream.c (start, receive, end) and stream_send.c (send queue).
 *
 * `n_holds` counts the batches in flight and the functions that use `call` now. The stream ends
 * when its final batch (status or close) has completed and the last hold is dropped. Only then the
 * call is released and on_closed runs. Callbacks run under a hold, so none runs concurrently with
 * or after on_closed.
 */
#ifndef CLEAVE_RPC_STREAM_INT_H
#define CLEAVE_RPC_STREAM_INT_H

#include "common/net/rpc/rpc_int.h"

/* One queued message. Reused, so that a steady stream allocates none. */
typedef struct rpc_send_node {
  struct rpc_send_node *next;
  grpc_byte_buffer *buffer;
  size_t bytes;
} rpc_send_node;

/* MAX_SPARE_NODES: send nodes that a stream keeps. NODE_BATCH: nodes allocated when none is left,
 * so that a larger burst allocates once, not for each message. */
enum { MAX_SPARE_NODES = 128, NODE_BATCH = 48 };

/* State of the sending side. At most one send batch is in flight. */
typedef enum rpc_send_state {
  SEND_BEFORE_ACCEPT, /* server stream before rpc_stream_accept */
  SEND_IDLE,          /* no batch in flight */
  SEND_BUSY,          /* a message or the initial metadata is in flight */
  SEND_CLOSING,       /* the half close or the status is in flight, or done */
} rpc_send_state;

struct clv_rpc_stream {
  atomic_uint refs;
  clv_rpc_runtime *runtime;
  const void *owner;
  clv_rpc_stream *next, **prev_link; /* list of the runtime, guarded by its lock */
  /* rpc_cancel_streams_of has visited the stream; guarded by the runtime's lock */
  bool is_visited_by_cancel;

  bool is_server;
  size_t max_message_bytes;
  unsigned peer_timeout_ms; /* client only: time after which a silent peer is lost, ms */
  clv_rpc_stream_events events;
  /* server only: called for each received message, and when the stream has ended */
  void (*on_message_received)(void *callback_arg, size_t bytes);
  void (*on_stream_ended)(void *callback_arg, bool cancelled);
  void *callback_arg; /* passed to on_message_received and on_stream_ended */

  rpc_tag send_tag, recv_tag, end_tag;
  grpc_byte_buffer *received_buffer;
  /* client only: metadata from the server */
  grpc_metadata_array initial_metadata, trailing_metadata;
  grpc_status_code status;   /* client only: status of the call */
  grpc_slice status_details; /* client only: text of the status */
  /* client only: gRPC's description of a failure */
  const char *error_string;
  /* server only: not 0 if the call was cancelled; set by gRPC */
  int grpc_cancelled_flag;

  pthread_mutex_t lock; /* guards everything below */
  grpc_call *call;
  unsigned n_holds;
  bool is_final_batch_done; /* the final batch has completed */
  /* the last hold was dropped after the final batch, so the call is released */
  bool is_call_released;
  rpc_send_state send_state;
  bool needs_close;
  bool ends_by_half_close; /* client only: cancelled, and the half close tells the server */
  clv_code cancel_code;    /* code of clv_rpc_stream_cancel; CLV_OK: not called */
  char cancel_text[RPC_TEXT];
  rpc_send_node *first_queued, *last_queued, *node_in_flight, *spare_nodes;
  unsigned n_spare_nodes;
  size_t queued_bytes;
};

/* rpc_runtime_add_stream adds a stream to the list of the runtime's streams;
 * rpc_runtime_remove_stream removes it. Both are in runtime.c. */
void rpc_runtime_add_stream(clv_rpc_runtime *runtime, clv_rpc_stream *stream);
void rpc_runtime_remove_stream(clv_rpc_runtime *runtime, clv_rpc_stream *stream);

/* Takes a hold on the stream's call. False: the call is released. Pair each success with
 * rpc_stream_release_call, which may end the stream. */
bool rpc_stream_hold_call(clv_rpc_stream *stream);
void rpc_stream_release_call(clv_rpc_stream *stream);

/* Starts the next send batch, if none is in flight. */
void rpc_stream_send_next(clv_rpc_stream *stream);
void rpc_stream_on_sent(rpc_tag *tag, bool ok);

/* Drops queued messages, except the one in flight, and releases their pieces. */
void rpc_stream_drop_queued_messages(clv_rpc_stream *stream);
void rpc_stream_free_send_nodes(clv_rpc_stream *stream);

#endif
