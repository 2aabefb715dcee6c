/* SPDX-License-Identifier: Apache-2.0
 *
 * The inside of a stream, shared by stream.c (its life) and stream_send.c (its queue).
 *
 * `holds` counts the batches in flight and the functions that are using `call` right now. The
 * stream ends when its final batch (status or close) has come and no hold is left: then, and only
 * then, the call is dropped and on_closed runs. Callbacks run under a hold, so none can run beside
 * or after on_closed.
 */
#ifndef CLEAVE_RPC_STREAM_INT_H
#define CLEAVE_RPC_STREAM_INT_H

#include "common/net/rpc/rpc_int.h"

/* One queued message; recycled, so that a steady stream takes no memory of ours. */
typedef struct rpc_send_node {
  struct rpc_send_node *next;
  grpc_byte_buffer *buffer;
  size_t bytes;
} rpc_send_node;

/* Send nodes a stream keeps, and how many it makes when it has none: a burst larger than any before
 * it costs memory once, not once per message. */
enum { KEPT_NODES = 128, NODE_BATCH = 48, RPC_COALESCED_BYTES = 16 * 1024 };

/* What the sending side does at the moment; at most one send batch is out. */
typedef enum rpc_send_state {
  SEND_HELD,    /* a server stream not yet accepted */
  SEND_IDLE,    /* nothing out */
  SEND_BUSY,    /* a message or the initial metadata is out */
  SEND_CLOSING, /* the half close or the status is out, or done */
} rpc_send_state;

struct clv_rpc_stream {
  atomic_uint refs;
  clv_rpc_runtime *runtime;
  const void *owner;
  clv_rpc_stream *next, **prev_link; /* runtime's list, under its lock */
  bool notified;                     /* rpc_cancel_owned was here; under the runtime's lock */

  bool server;
  size_t max_message;
  unsigned peer_timeout_ms; /* client */
  clv_rpc_stream_events events;
  void (*took)(void *arg, size_t bytes); /* a message has come; a server's alone */
  void (*ended)(void *arg, bool cancelled);
  void *arg; /* of both */

  rpc_tag send_tag, recv_tag, end_tag;
  grpc_byte_buffer *received;
  grpc_metadata_array initial_metadata, trailing_metadata; /* client */
  grpc_status_code status;                                 /* client */
  grpc_slice details;                                      /* client */
  const char *error_string;                                /* client */
  int cancelled;                                           /* server */

  pthread_mutex_t lock; /* everything below */
  grpc_call *call;
  unsigned holds;
  bool ending; /* the final batch has come */
  bool over;   /* holds ran out after that; the call is gone */
  rpc_send_state sending;
  bool close_wanted;
  clv_code cancel_code; /* of clv_rpc_stream_cancel, CLV_OK if not called */
  char cancel_text[RPC_TEXT];
  rpc_send_node *head, *tail, *in_flight, *spare;
  unsigned n_spare;
  size_t queued_bytes;
  char *enclosed; /* [RPC_COALESCED_BYTES], made with the first: goes behind the next message */
  size_t enclosed_bytes;
  unsigned n_enclosed;
};

/* runtime.c */
void rpc_runtime_add(clv_rpc_runtime *runtime, clv_rpc_stream *stream);
void rpc_runtime_remove(clv_rpc_runtime *runtime, clv_rpc_stream *stream);

/* Take a hold if the call still exists; every success is paired with a drop, which may end the
 * stream. */
bool rpc_stream_hold(clv_rpc_stream *stream);
void rpc_stream_drop(clv_rpc_stream *stream);

/* Start what the sending side should do next, if it is idle. */
void rpc_stream_kick(clv_rpc_stream *stream);
void rpc_stream_send_done(rpc_tag *tag, bool ok);

/* Forget queued messages (not the one in flight), releasing their pieces. */
void rpc_stream_drop_queue(clv_rpc_stream *stream);
void rpc_stream_free_nodes(clv_rpc_stream *stream);

#endif
