/* SPDX-License-Identifier: Apache-2.0
 *
 * One call at the server: checks identity, limits and permission, then starts a stream, passes a
 * unary request to the handler threads or refuses the call.
 *
 * `n_holds` counts the batches in flight and the functions that use the call; the last drop frees
 * it. A stream takes over the gRPC call and reports its end.
 */
#include <grpc/support/alloc.h>
#include <stdlib.h>
#include <string.h>

#include "common/net/rpc/server_int.h"

typedef struct incoming_call {
  clv_rpc_server *server;
  grpc_call *call; /* NULL after a stream has taken it over */
  rpc_peer_entry *peer_entry;
  clv_rpc_peer peer;
  char *peer_uri;
  char *peer_address; /* address of the peer, memory of gRPC */
  char method[RPC_TEXT];
  uint64_t connection_number;
  int grpc_cancelled_flag;
  bool is_cancelled; /* copy of grpc_cancelled_flag that the handler reads; atomic */
  atomic_uint n_holds;
  rpc_tag close_tag, recv_tag, answer_tag;
  const clv_rpc_unary *unary_method;
  grpc_byte_buffer *request;
  clv_rpc_job handler_job;
} incoming_call;

/* ---- ending a call --------------------------------------------------------------------------- */

static void release_call(incoming_call *in, bool cancelled) {
  clv_rpc_server *server = in->server;
  if (in->peer_entry && rpc_peers_end_call(&server->peers, in->peer_entry, cancelled))
    rpc_cut_connection(in->peer_address);
  if (in->request) grpc_byte_buffer_destroy(in->request);
  if (in->call) grpc_call_unref(in->call);
  gpr_free(in->peer_address);
  free(in->peer_uri);
  free(in);
  atomic_fetch_sub(&server->n_active_calls, 1);
  rpc_server_end_slot_or_call(server);
}

static void drop_call_hold(incoming_call *in) {
  if (atomic_fetch_sub_explicit(&in->n_holds, 1, memory_order_acq_rel) == 1)
    release_call(in, in->grpc_cancelled_flag != 0);
}

static void on_close(rpc_tag *tag, bool ok) {
  (void)ok;
  incoming_call *in = RPC_OWNER(tag, incoming_call, close_tag);
  if (in->grpc_cancelled_flag) __atomic_store_n(&in->is_cancelled, true, __ATOMIC_RELAXED);
  drop_call_hold(in);
}

static void on_answer_sent(rpc_tag *tag, bool ok) {
  (void)ok; /* false: the peer no longer wants the answer */
  drop_call_hold(RPC_OWNER(tag, incoming_call, answer_tag));
}

static void on_stream_ended(void *arg, bool cancelled) { release_call(arg, cancelled); }

/* Starts a batch, which has a hold of its own until it ends. */
static void start_batch(incoming_call *in, const grpc_op *ops, size_t n, rpc_tag *tag) {
  atomic_fetch_add_explicit(&in->n_holds, 1, memory_order_relaxed);
  if (!rpc_start_batch(in->call, ops, n, tag)) drop_call_hold(in);
}

static void watch_for_cancellation(incoming_call *in) {
  grpc_op op = {.op = GRPC_OP_RECV_CLOSE_ON_SERVER};
  op.data.recv_close_on_server.cancelled = &in->grpc_cancelled_flag;
  start_batch(in, &op, 1, &in->close_tag);
}

/* ---- answers to calls ------------------------------------------------------------------------ */

/* Sends the status, and the reply if there is one. Takes over the memory of the reply. */
static void send_answer(incoming_call *in, clv_code code, const char *text, clv_bytes *reply) {
  char printable_text[RPC_TEXT];
  rpc_copy_printable(printable_text, text, strlen(text));
  grpc_slice details = grpc_slice_from_copied_string(printable_text);
  grpc_byte_buffer *message = NULL;
  grpc_op ops[3] = {{.op = GRPC_OP_SEND_INITIAL_METADATA}, {.op = GRPC_OP_SEND_STATUS_FROM_SERVER}};
  ops[1].data.send_status_from_server.status = rpc_status_of_code(code);
  ops[1].data.send_status_from_server.status_details = &details;
  size_t n = 2;
  if (reply) {
    grpc_slice slice = grpc_empty_slice();
    if (reply->data)
      slice = grpc_slice_new_with_user_data(reply->data, reply->len, free, reply->data);
    *reply = (clv_bytes){0};
    message = grpc_raw_byte_buffer_create(&slice, 1);
    grpc_slice_unref(slice);
    ops[n].op = GRPC_OP_SEND_MESSAGE;
    ops[n++].data.send_message.send_message = message;
  }
  start_batch(in, ops, n, &in->answer_tag);
  if (message) grpc_byte_buffer_destroy(message); /* the batch holds references to its slices */
  grpc_slice_unref(details);
}

static void refuse_call(incoming_call *in, rpc_refusal refusal, const clv_err *err) {
  if (refusal == RPC_REFUSAL_WITH_DISCONNECT) rpc_cut_connection(in->peer_address);
  if (refusal != RPC_REFUSAL_WITH_STATUS) {
    grpc_call_cancel(in->call, NULL);
    drop_call_hold(in);
    return;
  }
  watch_for_cancellation(in);
  send_answer(in, err->code, err->text, NULL);
  drop_call_hold(in);
}

/* ---- handling unary calls -------------------------------------------------------------------- */

static clv_code call_handler(incoming_call *in, clv_bytes *reply, clv_err *err) {
  clv_iov fixed[RPC_MAX_PIECES];
  const clv_iov *pieces = NULL;
  size_t n = 0;
  CLV_AUTO(clv_freep) void *heap = NULL;
  CLV_TRY(rpc_buffer_list_pieces(in->request, fixed, &pieces, &n, &heap, err));
  CLV_TRY(in->unary_method->handler(in->server->options.user, &in->peer, pieces, n, reply, err));
  if (reply->failed || reply->len > in->server->options.limits.max_message_bytes)
    return clv_fail(err, CLV_EXHAUSTED, "the reply does not fit a message");
  return CLV_OK;
}

static void handle_and_answer(incoming_call *in) {
  CLV_AUTO(clv_bytes_done) clv_bytes reply = {0};
  clv_err err = {0};
  clv_code code = call_handler(in, &reply, &err);
  send_answer(in, code, code == CLV_OK ? "" : err.text, code == CLV_OK ? &reply : NULL);
}

/* Runs a handler. The identity's next request is queued behind those of others; it runs here only
 * if the server is being freed. */
static void run_handler(clv_rpc_job *job) {
  while (job) {
    incoming_call *in = RPC_OWNER(job, incoming_call, handler_job);
    clv_rpc_server *server = in->server;
    handle_and_answer(in);
    job = rpc_peers_end_handling(&server->peers, in->peer_entry);
    if (job && rpc_pool_add_job(&server->handler_pool, job)) job = NULL;
    drop_call_hold(in);
  }
}

static clv_code queue_handler(incoming_call *in, clv_err *err) {
  clv_rpc_server *server = in->server;
  size_t limit = in->unary_method->max_request_bytes ? in->unary_method->max_request_bytes
                                                     : server->options.limits.max_message_bytes;
  size_t len = grpc_byte_buffer_length(in->request);
  if (len > limit)
    return clv_fail(err, CLV_EXHAUSTED, "request of %zu bytes, the limit is %zu", len, limit);
  in->handler_job.run = run_handler;
  rpc_admission admission =
      rpc_peers_begin_handling(&server->peers, in->peer_entry, &in->handler_job);
  if (admission == RPC_REQUEST_QUEUED) return CLV_OK;
  if (admission == RPC_REQUEST_ADMITTED &&
      rpc_pool_add_job(&server->handler_pool, &in->handler_job))
    return CLV_OK;
  atomic_fetch_add(&server->n_calls_refused, 1);
  return clv_fail(err, CLV_EXHAUSTED,
                  "too many requests of this identity are waiting: try again later");
}

static void report_delivered_message(void *arg, size_t bytes) {
  const incoming_call *in = arg;
  if (in->server->options.on_message_delivered)
    in->server->options.on_message_delivered(in->connection_number, bytes);
}

static void on_request(rpc_tag *tag, bool ok) {
  incoming_call *in = RPC_OWNER(tag, incoming_call, recv_tag);
  if (in->request) report_delivered_message(in, grpc_byte_buffer_length(in->request));
  clv_err err = {0};
  clv_code code = CLV_OK;
  if (!ok || !in->request)
    code = clv_fail(&err, CLV_INVALID, "the request is missing");
  else
    code = queue_handler(in, &err); /* a queued job takes over the hold of this event */
  if (code == CLV_OK) return;
  send_answer(in, code, err.text, NULL);
  drop_call_hold(in);
}

static void start_unary(incoming_call *in) {
  watch_for_cancellation(in);
  grpc_op op = {.op = GRPC_OP_RECV_MESSAGE};
  op.data.recv_message.recv_message = &in->request;
  start_batch(in, &op, 1, &in->recv_tag);
  drop_call_hold(in);
}

/* ---- calls that become streams --------------------------------------------------------------- */

static void start_stream(incoming_call *in) {
  clv_rpc_server *server = in->server;
  const clv_rpc_server_options *options = &server->options;
  clv_rpc_stream *stream = NULL;
  clv_err err = {0};
  if (rpc_stream_new(server->runtime, server, in->call, true, options->limits.max_message_bytes,
                     &stream, &err) != CLV_OK) {
    refuse_call(in, RPC_REFUSAL_WITH_STATUS, &err);
    return;
  }
  in->call = NULL;
  clv_rpc_stream_events events = {0};
  rpc_stream_start_server(stream, report_delivered_message, on_stream_ended, in);
  clv_code code = options->on_stream(options->user, in->method, &in->peer, stream, &events, &err);
  if (code == CLV_OK)
    rpc_stream_accept(stream, &events);
  else
    rpc_stream_refuse(stream, code, err.text);
}

/* ---- admission of new calls ------------------------------------------------------------------ */

static clv_code check_call(incoming_call *in, rpc_refusal *ret_refusal, clv_err *err) {
  clv_rpc_server *server = in->server;
  clv_code code = rpc_peer_uri(in->call, &in->peer_uri, err);
  if (code != CLV_OK) {
    atomic_fetch_add(&server->n_calls_unauthenticated, 1);
    return code;
  }
  in->peer = (clv_rpc_peer){in->peer_uri, in->peer_address, &in->is_cancelled};
  code = rpc_peers_begin_call(&server->peers, in->peer_uri, &in->peer_entry, ret_refusal, err);
  if (code != CLV_OK) {
    atomic_fetch_add(&server->n_calls_refused, 1);
    return code;
  }
  code = server->options.authorize
             ? server->options.authorize(server->options.user, &in->peer, in->method, err)
             : clv_fail(err, CLV_DENIED,
                        "the server has no list of allowed peers, so every call is denied");
  if (code != CLV_OK) atomic_fetch_add(&server->n_calls_denied, 1);
  return code;
}

static const clv_rpc_unary *find_unary_method(const clv_rpc_server_options *options,
                                              const char *method) {
  for (size_t i = 0; i < options->n_unary_methods; i++)
    if (strcmp(options->unary_methods[i].method, method) == 0) return &options->unary_methods[i];
  return NULL;
}

static bool is_stream_method(const clv_rpc_server_options *options, const char *method) {
  for (size_t i = 0; i < options->n_stream_methods; i++)
    if (strcmp(options->stream_methods[i], method) == 0) return true;
  return false;
}

static clv_code new_incoming_call(clv_rpc_server *server, grpc_call *call, grpc_slice method,
                                  incoming_call **ret_in, clv_err *err) {
  incoming_call *in = NULL;
  CLV_TRY(clv_alloc(1, sizeof(*in), &in, err));
  in->server = server;
  in->call = call;
  in->peer_address = grpc_call_get_peer(call);
  if (server->options.find_connection) {
    in->connection_number = server->options.find_connection(in->peer_address);
    server->options.on_call_delivered(in->connection_number);
  }
  rpc_copy_printable(in->method, GRPC_SLICE_START_PTR(method), GRPC_SLICE_LENGTH(method));
  in->close_tag.run = on_close;
  in->recv_tag.run = on_request;
  in->answer_tag.run = on_answer_sent;
  atomic_init(&in->n_holds, 1);
  *ret_in = in;
  return CLV_OK;
}

void rpc_server_admit_call(clv_rpc_server *server, grpc_call *call, grpc_slice method) {
  atomic_fetch_add(&server->n_calls, 1);
  incoming_call *in = NULL;
  clv_err err = {0};
  if (new_incoming_call(server, call, method, &in, &err) != CLV_OK) {
    grpc_call_unref(call); /* cancels the call */
    rpc_server_end_slot_or_call(server);
    return;
  }
  atomic_fetch_add(&server->n_active_calls, 1);
  const clv_rpc_server_options *options = &server->options;
  rpc_refusal refusal = RPC_REFUSAL_WITH_STATUS;
  if (check_call(in, &refusal, &err) != CLV_OK) {
    refuse_call(in, refusal, &err);
  } else if ((in->unary_method = find_unary_method(options, in->method)) != NULL) {
    start_unary(in);
  } else if (is_stream_method(options, in->method)) {
    start_stream(in);
  } else {
    clv_fail(&err, CLV_UNIMPLEMENTED, "there is no method %s", in->method);
    refuse_call(in, RPC_REFUSAL_WITH_STATUS, &err);
  }
}
