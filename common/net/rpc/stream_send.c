/* SPDX-License-Identifier: Apache-2.0
 *
 * Send queue of a stream: messages, one of them in flight at a time. The thread that changes
 * `send_state` from SEND_IDLE to SEND_BUSY, under the lock, starts the batch after it has released
 * the lock. The event of the batch starts the next message. Batches start without the lock because
 * gRPC may release slices inside the start, which calls the release_owner of pieces.
 */
#include <grpc/slice_buffer.h>
#include <stdlib.h>
#include <string.h>

#include "common/net/rpc/stream_int.h"

static grpc_slice_buffer *slice_buffer_of(rpc_send_node *node) {
  return &node->buffer->data.raw.slice_buffer;
}

static void free_node(rpc_send_node *node) {
  if (!node) return;
  if (node->buffer) grpc_byte_buffer_destroy(node->buffer);
  free(node);
}

static grpc_slice make_slice(const clv_rpc_piece *piece) {
  if (!piece->release_owner) return grpc_slice_from_copied_buffer(piece->data, piece->len);
  return grpc_slice_new_with_user_data((void *)(uintptr_t)piece->data, piece->len,
                                       piece->release_owner, piece->owner);
}

/* Releases pieces that did not become slices. */
static void release_pieces(const clv_rpc_piece *pieces, size_t n) {
  for (size_t i = 0; i < n; i++)
    if (pieces[i].release_owner) pieces[i].release_owner(pieces[i].owner);
}

static rpc_send_node *take_spare_node(clv_rpc_stream *stream) {
  pthread_mutex_lock(&stream->lock);
  rpc_send_node *node = stream->spare_nodes;
  if (node) {
    stream->spare_nodes = node->next;
    stream->n_spare_nodes--;
  }
  pthread_mutex_unlock(&stream->lock);
  return node;
}

static clv_code new_node(rpc_send_node **ret_node, clv_err *err) {
  rpc_send_node *node;
  CLV_TRY(clv_alloc(1, sizeof(*node), &node, err));
  node->buffer = grpc_raw_byte_buffer_create(NULL, 0);
  *ret_node = node;
  return CLV_OK;
}

static clv_code take_send_node(clv_rpc_stream *stream, rpc_send_node **ret_node, clv_err *err) {
  rpc_send_node *node = take_spare_node(stream);
  for (int i = 0; !node && i < NODE_BATCH; i++) {
    rpc_send_node *spare;
    CLV_TRY(new_node(&spare, err));
    pthread_mutex_lock(&stream->lock);
    spare->next = stream->spare_nodes;
    stream->spare_nodes = spare;
    stream->n_spare_nodes++;
    pthread_mutex_unlock(&stream->lock);
  }
  if (!node) node = take_spare_node(stream);
  /* makes one more, because other threads have taken the new ones */
  if (!node) CLV_TRY(new_node(&node, err));
  node->next = NULL;
  *ret_node = node;
  return CLV_OK;
}

/* Returns a node to the free list and releases the slices of its message. */
static void recycle_node(clv_rpc_stream *stream, rpc_send_node *node) {
  grpc_slice_buffer_reset_and_unref(slice_buffer_of(node));
  pthread_mutex_lock(&stream->lock);
  bool is_kept = stream->n_spare_nodes < MAX_SPARE_NODES;
  if (is_kept) {
    node->next = stream->spare_nodes;
    stream->spare_nodes = node;
    stream->n_spare_nodes++;
  }
  pthread_mutex_unlock(&stream->lock);
  if (!is_kept) free_node(node);
}

void rpc_stream_free_send_nodes(clv_rpc_stream *stream) {
  for (rpc_send_node *node; (node = stream->spare_nodes) != NULL;) {
    stream->spare_nodes = node->next;
    free_node(node);
  }
}

void rpc_stream_drop_queued_messages(clv_rpc_stream *stream) {
  pthread_mutex_lock(&stream->lock);
  rpc_send_node *list = stream->first_queued;
  stream->first_queued = stream->last_queued = NULL;
  for (rpc_send_node *node = list; node; node = node->next) stream->queued_bytes -= node->bytes;
  pthread_mutex_unlock(&stream->lock);
  while (list) {
    rpc_send_node *node = list;
    list = node->next;
    recycle_node(stream, node);
  }
}

/* Fails with the reason if the stream refuses to send. The caller holds the lock. */
static clv_code check_can_send(const clv_rpc_stream *stream, clv_err *err) {
  if (stream->cancel_code != CLV_OK)
    return clv_fail(err, stream->cancel_code, "the stream was cancelled: %s", stream->cancel_text);
  if (stream->is_final_batch_done || stream->is_call_released)
    return clv_fail(err, CLV_UNAVAILABLE, "the stream has ended");
  if (stream->needs_close || stream->send_state == SEND_CLOSING)
    return clv_fail(err, CLV_PRECONDITION, "the stream was closed for sending");
  return CLV_OK;
}

static void append_node(clv_rpc_stream *stream, rpc_send_node *node) {
  if (stream->last_queued)
    stream->last_queued->next = node;
  else
    stream->first_queued = node;
  stream->last_queued = node;
  stream->queued_bytes += node->bytes;
}

static clv_code append_message(clv_rpc_stream *stream, rpc_send_node *node, clv_err *err) {
  pthread_mutex_lock(&stream->lock);
  clv_code code = check_can_send(stream, err);
  if (code == CLV_OK) append_node(stream, node);
  pthread_mutex_unlock(&stream->lock);
  return code;
}

clv_code clv_rpc_stream_send(clv_rpc_stream *stream, const clv_rpc_piece *pieces, size_t n,
                             clv_err *err) {
  size_t bytes = 0;
  clv_code code = CLV_OK;
  for (size_t i = 0; i < n && code == CLV_OK; i++)
    if (!clv_add_size(bytes, pieces[i].len, &bytes) || bytes > stream->max_message_bytes)
      code =
          clv_fail(err, CLV_INVALID, "message of more than %zu bytes", stream->max_message_bytes);
  rpc_send_node *node = NULL;
  if (code == CLV_OK) code = take_send_node(stream, &node, err);
  if (code != CLV_OK) {
    release_pieces(pieces, n);
    return code;
  }
  for (size_t i = 0; i < n; i++)
    grpc_slice_buffer_add(slice_buffer_of(node), make_slice(&pieces[i]));
  node->bytes = bytes;
  code = append_message(stream, node, err);
  if (code != CLV_OK) {
    recycle_node(stream, node);
    return code;
  }
  rpc_stream_send_next(stream);
  return CLV_OK;
}

size_t clv_rpc_stream_queued_bytes(clv_rpc_stream *stream) {
  pthread_mutex_lock(&stream->lock);
  size_t bytes = stream->queued_bytes;
  pthread_mutex_unlock(&stream->lock);
  return bytes;
}

/* Chooses the next batch. False: nothing to send, or a batch is in flight. The caller holds the
 * lock. */
static bool choose_batch(clv_rpc_stream *stream, grpc_op *op) {
  if (stream->send_state != SEND_IDLE || stream->is_final_batch_done ||
      (stream->cancel_code != CLV_OK && !stream->ends_by_half_close))
    return false;
  *op = (grpc_op){0};
  if (stream->first_queued) {
    op->op = GRPC_OP_SEND_MESSAGE;
    op->data.send_message.send_message = stream->first_queued->buffer;
    stream->node_in_flight = stream->first_queued;
    stream->first_queued = stream->first_queued->next;
    if (!stream->first_queued) stream->last_queued = NULL;
    stream->send_state = SEND_BUSY;
  } else if (stream->needs_close) {
    op->op = stream->is_server ? GRPC_OP_SEND_STATUS_FROM_SERVER : GRPC_OP_SEND_CLOSE_FROM_CLIENT;
    stream->send_state = SEND_CLOSING;
  } else {
    return false;
  }
  stream->n_holds++;
  return true;
}

void rpc_stream_send_next(clv_rpc_stream *stream) {
  grpc_op op;
  pthread_mutex_lock(&stream->lock);
  bool has_batch = choose_batch(stream, &op);
  pthread_mutex_unlock(&stream->lock);
  if (has_batch && !rpc_start_batch(stream->call, &op, 1, &stream->send_tag))
    rpc_stream_on_sent(&stream->send_tag, false);
}

/* Removes the message in flight after its batch has ended. */
static rpc_send_node *take_sent_node(clv_rpc_stream *stream) {
  pthread_mutex_lock(&stream->lock);
  rpc_send_node *node = NULL;
  if (stream->send_state == SEND_BUSY) {
    node = stream->node_in_flight;
    stream->node_in_flight = NULL;
    if (node) stream->queued_bytes -= node->bytes;
    stream->send_state = SEND_IDLE;
  }
  pthread_mutex_unlock(&stream->lock);
  return node;
}

void rpc_stream_on_sent(rpc_tag *tag, bool ok) {
  clv_rpc_stream *stream = RPC_OWNER(tag, clv_rpc_stream, send_tag);
  rpc_send_node *node = take_sent_node(stream);
  size_t bytes = node ? node->bytes : 0;
  if (node) recycle_node(stream, node);
  if (!ok) rpc_stream_drop_queued_messages(stream); /* the call is over; its end event follows */
  rpc_stream_send_next(stream);
  if (node && ok && stream->events.on_sent)
    stream->events.on_sent(stream->events.user, stream, bytes);
  rpc_stream_release_call(stream);
}
