/* SPDX-License-Identifier: Apache-2.0
 *
 * One call at the server: checks identity, limits and permission, then starts a stream, passes a
 * unary request to the handler threads or refuses the call.
 *
 * `holds` counts the batches in flight and the functions that use the call; the last drop frees it.
 * A stream takes over the gRPC call and reports its end.
 */
#include <grpc/support/alloc.h>
#include <stdlib.h>
#include <string.h>

#include "common/net/rpc/server_int.h"

typedef struct incoming {
  clv_rpc_server *server;
  grpc_call *call; /* NULL after a stream has taken it over */
  rpc_peer_entry *entry;
  clv_rpc_peer peer;
  char *uri;
  char *address; /* allocated by gRPC */
  char method[RPC_TEXT];
  uint64_t connection;
  int cancelled;
  bool is_gone; /* copy of `cancelled` that the handler reads; atomic */
  atomic_uint holds;
  rpc_tag close_tag, recv_tag, done_tag;
  const clv_rpc_unary *row;
  grpc_byte_buffer *request;
  clv_rpc_job job;
} incoming;

/* ---- end ------------------------------------------------------------------------------------- */

static void finish(incoming *in, bool cancelled) {
  clv_rpc_server *server = in->server;
  if (in->entry && rpc_peers_end_call(&server->peers, in->entry, cancelled))
    rpc_cut_connection(in->address);
  if (in->request) grpc_byte_buffer_destroy(in->request);
  if (in->call) grpc_call_unref(in->call);
  gpr_free(in->address);
  free(in->uri);
  free(in);
  atomic_fetch_sub(&server->active_calls, 1);
  rpc_server_drop_object(server);
}

static void drop(incoming *in) {
  if (atomic_fetch_sub_explicit(&in->holds, 1, memory_order_acq_rel) == 1)
    finish(in, in->cancelled != 0);
}

static void close_event(rpc_tag *tag, bool ok) {
  (void)ok;
  incoming *in = RPC_OWNER(tag, incoming, close_tag);
  if (in->cancelled) __atomic_store_n(&in->is_gone, true, __ATOMIC_RELAXED);
  drop(in);
}

static void done_event(rpc_tag *tag, bool ok) {
  (void)ok; /* false: the peer no longer wants the answer */
  drop(RPC_OWNER(tag, incoming, done_tag));
}

static void stream_ended(void *arg, bool cancelled) { finish(arg, cancelled); }

/* Starts a batch, which has a hold of its own until it ends. */
static void start_held(incoming *in, const grpc_op *ops, size_t n, rpc_tag *tag) {
  atomic_fetch_add_explicit(&in->holds, 1, memory_order_relaxed);
  if (!rpc_start(in->call, ops, n, tag)) drop(in);
}

static void watch_close(incoming *in) {
  grpc_op op = {.op = GRPC_OP_RECV_CLOSE_ON_SERVER};
  op.data.recv_close_on_server.cancelled = &in->cancelled;
  start_held(in, &op, 1, &in->close_tag);
}

/* ---- answers --------------------------------------------------------------------------------- */

/* Sends the status, and the reply if there is one. Takes over the memory of the reply. */
static void answer(incoming *in, clv_code code, const char *text, clv_bytes *reply) {
  char clean[RPC_TEXT];
  rpc_text(clean, text, strlen(text));
  grpc_slice details = grpc_slice_from_copied_string(clean);
  grpc_byte_buffer *message = NULL;
  grpc_op ops[3] = {{.op = GRPC_OP_SEND_INITIAL_METADATA}, {.op = GRPC_OP_SEND_STATUS_FROM_SERVER}};
  ops[1].data.send_status_from_server.status = rpc_status(code);
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
  start_held(in, ops, n, &in->done_tag);
  if (message) grpc_byte_buffer_destroy(message); /* the batch holds references to its slices */
  grpc_slice_unref(details);
}

static void refuse(incoming *in, rpc_refusal refusal, const clv_err *err) {
  if (refusal == RPC_DISCONNECT) rpc_cut_connection(in->address);
  if (refusal != RPC_REPLY) {
    grpc_call_cancel(in->call, NULL);
    drop(in);
    return;
  }
  watch_close(in);
  answer(in, err->code, err->text, NULL);
  drop(in);
}

/* ---- unary ----------------------------------------------------------------------------------- */

static clv_code handle(incoming *in, clv_bytes *reply, clv_err *err) {
  clv_iov fixed[RPC_MAX_PIECES];
  const clv_iov *pieces = NULL;
  size_t n = 0;
  CLV_AUTO(clv_freep) void *heap = NULL;
  CLV_TRY(rpc_pieces(in->request, fixed, &pieces, &n, &heap, err));
  CLV_TRY(in->row->handle(in->server->options.user, &in->peer, pieces, n, reply, err));
  if (reply->failed || reply->len > in->server->options.limits.max_message)
    return clv_fail(err, CLV_EXHAUSTED, "the reply does not fit a message");
  return CLV_OK;
}

static void handle_and_answer(incoming *in) {
  CLV_AUTO(clv_bytes_done) clv_bytes reply = {0};
  clv_err err = {0};
  clv_code code = handle(in, &reply, &err);
  answer(in, code, code == CLV_OK ? "" : err.text, code == CLV_OK ? &reply : NULL);
}

/* Runs a handler. The identity's next request is queued behind those of others; it runs here only
 * if the server is being freed. */
static void run_handler(clv_rpc_job *job) {
  while (job) {
    incoming *in = RPC_OWNER(job, incoming, job);
    clv_rpc_server *server = in->server;
    handle_and_answer(in);
    job = rpc_peers_handled(&server->peers, in->entry);
    if (job && rpc_pool_put(&server->pool, job)) job = NULL;
    drop(in);
  }
}

static clv_code queue_handler(incoming *in, clv_err *err) {
  clv_rpc_server *server = in->server;
  size_t limit = in->row->max_request ? in->row->max_request : server->options.limits.max_message;
  size_t len = grpc_byte_buffer_length(in->request);
  if (len > limit)
    return clv_fail(err, CLV_EXHAUSTED, "request of %zu bytes, the limit is %zu", len, limit);
  in->job.run = run_handler;
  rpc_admission admission = rpc_peers_handle(&server->peers, in->entry, &in->job);
  if (admission == RPC_LATER) return CLV_OK;
  if (admission == RPC_NOW && rpc_pool_put(&server->pool, &in->job)) return CLV_OK;
  atomic_fetch_add(&server->refused_by_limit, 1);
  return clv_fail(err, CLV_EXHAUSTED,
                  "too many requests of this identity are waiting: try again later");
}

static void report_message(void *arg, size_t bytes) {
  const incoming *in = arg;
  if (in->server->options.took_message) in->server->options.took_message(in->connection, bytes);
}

static void request_event(rpc_tag *tag, bool ok) {
  incoming *in = RPC_OWNER(tag, incoming, recv_tag);
  if (in->request) report_message(in, grpc_byte_buffer_length(in->request));
  clv_err err = {0};
  clv_code code = CLV_OK;
  if (!ok || !in->request)
    code = clv_fail(&err, CLV_INVALID, "the request is missing");
  else
    code = queue_handler(in, &err); /* a queued job takes over the hold of this event */
  if (code == CLV_OK) return;
  answer(in, code, err.text, NULL);
  drop(in);
}

static void start_unary(incoming *in) {
  watch_close(in);
  grpc_op op = {.op = GRPC_OP_RECV_MESSAGE};
  op.data.recv_message.recv_message = &in->request;
  start_held(in, &op, 1, &in->recv_tag);
  drop(in);
}

/* ---- streams --------------------------------------------------------------------------------- */

static void start_stream(incoming *in) {
  clv_rpc_server *server = in->server;
  const clv_rpc_server_options *options = &server->options;
  clv_rpc_stream *stream = NULL;
  clv_err err = {0};
  if (rpc_stream_new(server->runtime, server, in->call, true, options->limits.max_message, &stream,
                     &err) != CLV_OK) {
    refuse(in, RPC_REPLY, &err);
    return;
  }
  in->call = NULL;
  clv_rpc_stream_events events = {0};
  rpc_stream_start_server(stream, report_message, stream_ended, in);
  clv_code code = options->on_stream(options->user, in->method, &in->peer, stream, &events, &err);
  if (code == CLV_OK)
    rpc_stream_accept(stream, &events);
  else
    rpc_stream_refuse(stream, code, err.text);
}

/* ---- admission ------------------------------------------------------------------------------- */

static clv_code check_call(incoming *in, rpc_refusal *ret_refusal, clv_err *err) {
  clv_rpc_server *server = in->server;
  clv_code code = rpc_peer_uri(in->call, &in->uri, err);
  if (code != CLV_OK) {
    atomic_fetch_add(&server->unauthenticated, 1);
    return code;
  }
  in->peer = (clv_rpc_peer){in->uri, in->address, &in->is_gone};
  code = rpc_peers_begin_call(&server->peers, in->uri, &in->entry, ret_refusal, err);
  if (code != CLV_OK) {
    atomic_fetch_add(&server->refused_by_limit, 1);
    return code;
  }
  code = server->options.authorize
             ? server->options.authorize(server->options.user, &in->peer, in->method, err)
             : clv_fail(err, CLV_DENIED,
                        "the server has no list of allowed peers, so every call is denied");
  if (code != CLV_OK) atomic_fetch_add(&server->denied, 1);
  return code;
}

static const clv_rpc_unary *find_unary(const clv_rpc_server_options *options, const char *method) {
  for (size_t i = 0; i < options->n_unary; i++)
    if (strcmp(options->unary[i].method, method) == 0) return &options->unary[i];
  return NULL;
}

static bool is_stream(const clv_rpc_server_options *options, const char *method) {
  for (size_t i = 0; i < options->n_stream_methods; i++)
    if (strcmp(options->stream_methods[i], method) == 0) return true;
  return false;
}

static clv_code new_incoming(clv_rpc_server *server, grpc_call *call, grpc_slice method,
                             incoming **ret_in, clv_err *err) {
  incoming *in = NULL;
  CLV_TRY(clv_alloc(1, sizeof(*in), &in, err));
  in->server = server;
  in->call = call;
  in->address = grpc_call_get_peer(call);
  if (server->options.connection) {
    in->connection = server->options.connection(in->address);
    server->options.took_call(in->connection);
  }
  rpc_text(in->method, GRPC_SLICE_START_PTR(method), GRPC_SLICE_LENGTH(method));
  in->close_tag.run = close_event;
  in->recv_tag.run = request_event;
  in->done_tag.run = done_event;
  atomic_init(&in->holds, 1);
  *ret_in = in;
  return CLV_OK;
}

void rpc_server_admit(clv_rpc_server *server, grpc_call *call, grpc_slice method) {
  atomic_fetch_add(&server->calls, 1);
  incoming *in = NULL;
  clv_err err = {0};
  if (new_incoming(server, call, method, &in, &err) != CLV_OK) {
    grpc_call_unref(call); /* cancels the call */
    rpc_server_drop_object(server);
    return;
  }
  atomic_fetch_add(&server->active_calls, 1);
  const clv_rpc_server_options *options = &server->options;
  rpc_refusal refusal = RPC_REPLY;
  if (check_call(in, &refusal, &err) != CLV_OK) {
    refuse(in, refusal, &err);
  } else if ((in->row = find_unary(options, in->method)) != NULL) {
    start_unary(in);
  } else if (is_stream(options, in->method)) {
    start_stream(in);
  } else {
    clv_fail(&err, CLV_UNIMPLEMENTED, "there is no method %s", in->method);
    refuse(in, RPC_REPLY, &err);
  }
}
