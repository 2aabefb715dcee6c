/* SPDX-License-Identifier: Apache-2.0
 *
 * Start, receive and end of a stream. A stream has three tags: send (stream_send.c), recv (one
 * RECV_MESSAGE at a time, started again when on_message has returned) and end (the status on a
 * client, the close on a server).
 */
#include <grpc/support/alloc.h>
#include <stdlib.h>
#include <string.h>

#include "common/net/rpc/stream_int.h"

static void on_recv_batch(rpc_tag *tag, bool ok);
static void on_end_batch(rpc_tag *tag, bool ok);

clv_code rpc_stream_new(clv_rpc_runtime *runtime, const void *owner, grpc_call *call, bool server,
                        size_t max_message, clv_rpc_stream **ret_stream, clv_err *err) {
  clv_rpc_stream *stream = NULL;
  CLV_TRY(clv_alloc(1, sizeof(*stream), &stream, err));
  atomic_init(&stream->refs, 1);
  stream->runtime = runtime;
  stream->owner = owner;
  stream->call = call;
  stream->is_server = server;
  stream->max_message_bytes = max_message;
  stream->send_tag.run = rpc_stream_on_sent;
  stream->recv_tag.run = on_recv_batch;
  stream->end_tag.run = on_end_batch;
  stream->status_details = grpc_empty_slice();
  grpc_metadata_array_init(&stream->initial_metadata);
  grpc_metadata_array_init(&stream->trailing_metadata);
  pthread_mutex_init(&stream->lock, NULL);
  rpc_runtime_add_stream(runtime, stream);
  *ret_stream = stream;
  return CLV_OK;
}

clv_rpc_stream *clv_rpc_stream_ref(clv_rpc_stream *stream) {
  atomic_fetch_add_explicit(&stream->refs, 1, memory_order_relaxed);
  return stream;
}

void clv_rpc_stream_unref(clv_rpc_stream *stream) {
  if (!stream || atomic_fetch_sub_explicit(&stream->refs, 1, memory_order_acq_rel) != 1) return;
  rpc_stream_free_send_nodes(stream);
  grpc_metadata_array_destroy(&stream->initial_metadata);
  grpc_metadata_array_destroy(&stream->trailing_metadata);
  grpc_slice_unref(stream->status_details);
  gpr_free((void *)(uintptr_t)stream->error_string);
  pthread_mutex_destroy(&stream->lock);
  free(stream);
}

/* ---- ending a stream ------------------------------------------------------------------------- */

/* Returns how the stream ended, for on_closed. */
static clv_code read_end_status(const clv_rpc_stream *stream, char text[RPC_TEXT]) {
  if (stream->ends_by_half_close) {
    rpc_copy_printable(text, stream->cancel_text, strlen(stream->cancel_text));
    return stream->cancel_code;
  }
  if (!stream->is_server) {
    rpc_copy_printable(text, GRPC_SLICE_START_PTR(stream->status_details),
                       GRPC_SLICE_LENGTH(stream->status_details));
    bool lost = stream->status == GRPC_STATUS_UNAVAILABLE || stream->status == GRPC_STATUS_UNKNOWN;
    lost = lost && rpc_translate_end_text(stream->peer_timeout_ms, text);
    return lost ? CLV_UNAVAILABLE : rpc_code_of_status(stream->status);
  }
  if (!stream->grpc_cancelled_flag && stream->cancel_code == CLV_OK) {
    text[0] = '\0';
    return CLV_OK;
  }
  bool is_own_cancel = stream->cancel_code != CLV_OK;
  const char *why = is_own_cancel ? stream->cancel_text
                                  : "the peer cancelled the stream or its connection was lost";
  rpc_copy_printable(text, why, strlen(why));
  return is_own_cancel ? stream->cancel_code : CLV_CANCELLED;
}

/* Ends a stream without holds: releases the call, calls on_closed and drops the library's
 * reference. */
static void finish_stream(clv_rpc_stream *stream) {
  rpc_stream_drop_queued_messages(stream);
  grpc_call_unref(stream->call);
  char text[RPC_TEXT];
  clv_code code = read_end_status(stream, text);
  if (stream->events.on_closed) stream->events.on_closed(stream->events.user, stream, code, text);
  rpc_runtime_remove_stream(stream->runtime, stream);
  if (stream->on_stream_ended)
    stream->on_stream_ended(stream->callback_arg,
                            stream->grpc_cancelled_flag && stream->cancel_code == CLV_OK);
  clv_rpc_stream_unref(stream);
}

bool rpc_stream_hold_call(clv_rpc_stream *stream) {
  pthread_mutex_lock(&stream->lock);
  bool is_alive = !stream->is_call_released;
  if (is_alive) stream->n_holds++;
  pthread_mutex_unlock(&stream->lock);
  return is_alive;
}

void rpc_stream_release_call(clv_rpc_stream *stream) {
  pthread_mutex_lock(&stream->lock);
  bool is_last_hold = --stream->n_holds == 0 && stream->is_final_batch_done;
  if (is_last_hold) stream->is_call_released = true;
  pthread_mutex_unlock(&stream->lock);
  if (is_last_hold) finish_stream(stream);
}

static void on_end_batch(rpc_tag *tag, bool ok) {
  (void)ok; /* the operations of the end batch always succeed */
  clv_rpc_stream *stream = RPC_OWNER(tag, clv_rpc_stream, end_tag);
  pthread_mutex_lock(&stream->lock);
  stream->is_final_batch_done = true;
  pthread_mutex_unlock(&stream->lock);
  rpc_stream_release_call(stream);
}

/* ---- receiving messages ---------------------------------------------------------------------- */

static void request_message(clv_rpc_stream *stream) {
  if (!rpc_stream_hold_call(stream)) return;
  grpc_op op = {.op = GRPC_OP_RECV_MESSAGE};
  op.data.recv_message.recv_message = &stream->received_buffer;
  if (!rpc_start_batch(stream->call, &op, 1, &stream->recv_tag)) rpc_stream_release_call(stream);
}

static void deliver_message(clv_rpc_stream *stream, grpc_byte_buffer *buffer) {
  clv_iov fixed[RPC_MAX_PIECES];
  const clv_iov *pieces = NULL;
  size_t n = 0;
  CLV_AUTO(clv_freep) void *heap = NULL;
  clv_err err;
  clv_code code = rpc_buffer_list_pieces(buffer, fixed, &pieces, &n, &heap, &err);
  if (code == CLV_OK)
    stream->events.on_message(stream->events.user, stream, pieces, n);
  else
    clv_rpc_stream_cancel(stream, code, err.text);
}

/* Handles the end of received messages. A client receives the server's half close with the status,
 * so only a server acts here. */
static void handle_half_close(clv_rpc_stream *stream) {
  if (!stream->is_server) return;
  if (stream->events.on_half_closed)
    stream->events.on_half_closed(stream->events.user, stream);
  else
    clv_rpc_stream_close(stream);
}

static void on_recv_batch(rpc_tag *tag, bool ok) {
  clv_rpc_stream *stream = RPC_OWNER(tag, clv_rpc_stream, recv_tag);
  grpc_byte_buffer *buffer = clv_steal(&stream->received_buffer);
  if (ok && buffer) {
    if (stream->on_message_received)
      stream->on_message_received(stream->callback_arg, grpc_byte_buffer_length(buffer));
    deliver_message(stream, buffer);
    grpc_byte_buffer_destroy(buffer);
    request_message(stream);
  } else {
    if (buffer) grpc_byte_buffer_destroy(buffer);
    handle_half_close(stream);
  }
  rpc_stream_release_call(stream);
}

/* ---- starting a stream ----------------------------------------------------------------------- */

void rpc_stream_start_client(clv_rpc_stream *stream, const clv_rpc_stream_events *events) {
  stream->events = *events;
  stream->send_state = SEND_IDLE;
  stream->n_holds = 2; /* one hold of the end batch, one of this function */
  grpc_op ops[3] = {{.op = GRPC_OP_SEND_INITIAL_METADATA},
                    {.op = GRPC_OP_RECV_INITIAL_METADATA},
                    {.op = GRPC_OP_RECV_STATUS_ON_CLIENT}};
  ops[1].data.recv_initial_metadata.recv_initial_metadata = &stream->initial_metadata;
  ops[2].data.recv_status_on_client.trailing_metadata = &stream->trailing_metadata;
  ops[2].data.recv_status_on_client.status = &stream->status;
  ops[2].data.recv_status_on_client.status_details = &stream->status_details;
  ops[2].data.recv_status_on_client.error_string = &stream->error_string;
  if (!rpc_start_batch(stream->call, ops, 3, &stream->end_tag)) {
    stream->status = GRPC_STATUS_INTERNAL;
    on_end_batch(&stream->end_tag, false);
  }
  request_message(stream);
  rpc_stream_release_call(stream);
}

void rpc_stream_start_server(clv_rpc_stream *stream,
                             void (*on_message_received)(void *arg, size_t bytes),
                             void (*on_stream_ended)(void *arg, bool cancelled), void *arg) {
  stream->on_message_received = on_message_received;
  stream->on_stream_ended = on_stream_ended;
  stream->callback_arg = arg;
  stream->send_state = SEND_BEFORE_ACCEPT;
  /* one hold of the end batch, one of the caller until rpc_stream_accept or rpc_stream_refuse */
  stream->n_holds = 2;
  grpc_op op = {.op = GRPC_OP_RECV_CLOSE_ON_SERVER};
  op.data.recv_close_on_server.cancelled = &stream->grpc_cancelled_flag;
  if (!rpc_start_batch(stream->call, &op, 1, &stream->end_tag))
    on_end_batch(&stream->end_tag, false);
}

/* Starts a send batch that is not a queued message. The caller has taken a hold for the batch. */
static void start_send_batch(clv_rpc_stream *stream, const grpc_op *ops, size_t n) {
  if (!rpc_start_batch(stream->call, ops, n, &stream->send_tag))
    rpc_stream_on_sent(&stream->send_tag, false);
}

/* Starts the first send batch of a server stream in SEND_BEFORE_ACCEPT, with a hold of its own. */
static void start_first_send(clv_rpc_stream *stream, const grpc_op *ops, size_t n,
                             rpc_send_state state) {
  pthread_mutex_lock(&stream->lock);
  stream->send_state = state;
  stream->n_holds++;
  pthread_mutex_unlock(&stream->lock);
  start_send_batch(stream, ops, n);
}

void rpc_stream_accept(clv_rpc_stream *stream, const clv_rpc_stream_events *events) {
  stream->events = *events;
  grpc_op op = {.op = GRPC_OP_SEND_INITIAL_METADATA};
  start_first_send(stream, &op, 1, SEND_BUSY);
  request_message(stream);
  rpc_stream_release_call(stream);
}

static grpc_op make_status_op(clv_code code, grpc_slice *details) {
  grpc_op op = {.op = GRPC_OP_SEND_STATUS_FROM_SERVER};
  op.data.send_status_from_server.status = rpc_status_of_code(code);
  op.data.send_status_from_server.status_details = details;
  return op;
}

void rpc_stream_refuse(clv_rpc_stream *stream, clv_code code, const char *text) {
  char clean[RPC_TEXT];
  rpc_copy_printable(clean, text, strlen(text));
  grpc_slice details = grpc_slice_from_copied_string(clean);
  grpc_op ops[2] = {{.op = GRPC_OP_SEND_INITIAL_METADATA}, make_status_op(code, &details)};
  rpc_stream_drop_queued_messages(stream);
  start_first_send(stream, ops, 2, SEND_CLOSING);
  grpc_slice_unref(details);
  rpc_stream_release_call(stream);
}

void clv_rpc_stream_close(clv_rpc_stream *stream) {
  if (!stream) return;
  pthread_mutex_lock(&stream->lock);
  stream->needs_close = true;
  pthread_mutex_unlock(&stream->lock);
  rpc_stream_send_next(stream);
}

/* Ends the call of a cancelled stream. A server without a batch in flight sends a status, because
 * gRPC writes a status out even if the connection closes right after it, unlike a cancel. */
static void end_call(clv_rpc_stream *stream, bool sends_status) {
  if (stream->ends_by_half_close) {
    rpc_stream_send_next(stream);
    rpc_stream_release_call(stream);
    return;
  }
  if (!sends_status) {
    grpc_call_cancel_with_status(stream->call, rpc_status_of_code(stream->cancel_code),
                                 stream->cancel_text, NULL);
    rpc_stream_release_call(stream);
    return;
  }
  grpc_slice details = grpc_slice_from_copied_string(stream->cancel_text);
  grpc_op op = make_status_op(stream->cancel_code, &details);
  start_send_batch(stream, &op, 1);
  grpc_slice_unref(details);
}

/* Cancels once more a stream that was cancelled before, and that is waiting for the answer to its
 * half close or status. */
static void cancel_closing_stream(clv_rpc_stream *stream) {
  if (!rpc_stream_hold_call(stream)) return;
  grpc_call_cancel_with_status(stream->call, GRPC_STATUS_CANCELLED, stream->cancel_text, NULL);
  rpc_stream_release_call(stream);
}

/* A server cannot tell a client's cancel from a lost connection. So a client that has a reason and
 * no message in flight ends the stream by a half close, which the server answers at once. */
void clv_rpc_stream_cancel(clv_rpc_stream *stream, clv_code code, const char *text) {
  if (code == CLV_OK) code = CLV_CANCELLED;
  pthread_mutex_lock(&stream->lock);
  bool is_first_cancel =
      !stream->is_call_released && !stream->is_final_batch_done && stream->cancel_code == CLV_OK;
  /* the status would wait for the connection, which may be silent */
  bool sends_status = stream->is_server && stream->send_state == SEND_IDLE && code != CLV_CANCELLED;
  bool is_second_cancel =
      !is_first_cancel && code == CLV_CANCELLED && stream->cancel_code != CLV_OK;
  if (is_first_cancel) {
    stream->cancel_code = code;
    stream->ends_by_half_close =
        !stream->is_server && stream->send_state == SEND_IDLE && code != CLV_CANCELLED;
    stream->needs_close |= stream->ends_by_half_close;
    rpc_copy_printable(stream->cancel_text, text, strlen(text));
    stream->n_holds++;
    if (sends_status) stream->send_state = SEND_CLOSING;
  }
  pthread_mutex_unlock(&stream->lock);
  if (is_second_cancel) cancel_closing_stream(stream);
  if (!is_first_cancel) return;
  rpc_stream_drop_queued_messages(stream);
  end_call(stream, sends_status);
}
