/* SPDX-License-Identifier: Apache-2.0
 *
 * Client side: dialling with a readable reason of failure, unary calls, opening streams.
 *
 * gRPC reports to watchers of a channel only that it failed; the reason is in the status of calls.
 * So after a failure the channel makes one probe call, which fails at once in this process, to get
 * the text. A failed gRPC channel is destroyed, because gRPC would keep dialling in the
 * background.
 */
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include <grpc/support/alloc.h>

#include "common/net/rpc/stream_int.h"

/* POLL_MS: how often a wait checks for an interrupt, and the time that calls get before the cancel
 * hook of their thread (clv_rpc_set_cancel_hook) stops them; GRACE_MS: time that calls get after an
 * interrupt of the process */
enum { POLL_MS = 50, GRACE_MS = 1000 };

struct clv_rpc_channel {
  clv_rpc_runtime *runtime;
  char *target_address;
  clv_rpc_limits limits;
  grpc_channel_credentials *credentials;
  rpc_identity *server_identity;
  const bool *connect_stop_flag; /* as in clv_rpc_channel_options */
  pthread_mutex_t lock;          /* guards the fields below */
  grpc_channel *grpc_handle;
  bool is_connecting;
};

/* ---- making and freeing channels ------------------------------------------------------------- */

static clv_code check_target(const char *target, clv_err *err) {
  const char *colon = target ? strrchr(target, ':') : NULL;
  char *end = NULL;
  long port = colon ? strtol(colon + 1, &end, 10) : 0;
  if (!colon || colon == target || *end != '\0' || port < 1 || port > 65535)
    return clv_fail(err, CLV_INVALID, "address '%s' is not HOST:PORT (or [IPv6]:PORT)",
                    target ? target : "");
  if (memchr(target, '/', (size_t)(colon - target)))
    return clv_fail(err, CLV_INVALID, "address '%s' must be HOST:PORT, not a URL", target);
  return CLV_OK;
}

static clv_code init_channel(clv_rpc_channel *channel, const clv_rpc_channel_options *options,
                             clv_err *err) {
  CLV_TRY(rpc_limits_fill_and_check(&channel->limits, err));
  CLV_TRY(clv_strdup(options->target_address, &channel->target_address, err));
  rpc_pem pem;
  CLV_TRY(rpc_pem_init(&pem, &options->pem, err));
  clv_code code = rpc_pem_check_once(channel->runtime, &pem, err);
  if (code == CLV_OK)
    code = rpc_client_credentials(&pem, options->expected_uri, &channel->credentials,
                                  &channel->server_identity, err);
  rpc_pem_clear(&pem);
  return code;
}

clv_code clv_rpc_channel_new(clv_rpc_runtime *runtime, const clv_rpc_channel_options *options,
                             clv_rpc_channel **ret_channel, clv_err *err) {
  CLV_TRY(check_target(options->target_address, err));
  if (!options->expected_uri || options->expected_uri[0] == '\0')
    return clv_fail(err, CLV_INVALID, "no identity is given that '%s' must prove",
                    options->target_address);
  CLV_AUTO(clv_rpc_channel_freep) clv_rpc_channel *channel = NULL;
  CLV_TRY(clv_alloc(1, sizeof(*channel), &channel, err));
  channel->runtime = runtime;
  channel->limits = options->limits;
  channel->connect_stop_flag = options->connect_stop_flag;
  pthread_mutex_init(&channel->lock, NULL);
  CLV_TRY(init_channel(channel, options, err));
  *ret_channel = clv_steal(&channel);
  return CLV_OK;
}

void clv_rpc_channel_free(clv_rpc_channel *channel) {
  if (!channel) return;
  rpc_cancel_streams_of(channel->runtime, channel, CLV_CANCELLED, "the channel was closed");
  if (channel->grpc_handle) grpc_channel_destroy(channel->grpc_handle);
  if (channel->credentials) grpc_channel_credentials_release(channel->credentials);
  rpc_identity_unref(channel->server_identity);
  pthread_mutex_destroy(&channel->lock);
  free(channel->target_address);
  free(channel);
}

void clv_rpc_channel_freep(clv_rpc_channel **channel) {
  clv_rpc_channel_free(*channel);
  *channel = NULL;
}

/* Returns the gRPC channel, and creates it if needed. The caller holds the lock. */
static grpc_channel *get_or_create_grpc_channel(clv_rpc_channel *channel) {
  if (channel->grpc_handle) return channel->grpc_handle;
  rpc_args args = {.n = 0};
  rpc_args_add_common(&args, &channel->limits);
  rpc_args_add_client(&args);
  grpc_channel_args list = {args.n, args.args};
  channel->grpc_handle = grpc_channel_create(channel->target_address, channel->credentials, &list);
  return channel->grpc_handle;
}

/* Destroys a failed gRPC channel, so that it stops dialling. False: there is none, or a connect is
 * in progress. The caller holds the lock. */
static bool destroy_failed_channel(clv_rpc_channel *channel) {
  if (!channel->grpc_handle || channel->is_connecting ||
      grpc_channel_check_connectivity_state(channel->grpc_handle, 0) !=
          GRPC_CHANNEL_TRANSIENT_FAILURE)
    return false;
  grpc_channel_destroy(channel->grpc_handle);
  channel->grpc_handle = NULL;
  return true;
}

/* ---- unary calls ----------------------------------------------------------------------------- */

typedef struct unary_call {
  grpc_metadata_array initial_metadata, trailing_metadata;
  grpc_byte_buffer *reply;
  grpc_status_code status;
  grpc_slice status_details;
} unary_call;

/* ---- waiting for a call, and cancelling it --------------------------------------------------- */

static _Thread_local const clv_cancel_hook *hook_of_thread;

const clv_cancel_hook *clv_rpc_set_cancel_hook(const clv_cancel_hook *hook) {
  const clv_cancel_hook *before = hook_of_thread;
  hook_of_thread = hook;
  return before;
}

bool clv_rpc_has_cancel_hook(void) { return hook_of_thread; }

static bool is_stop_requested(void) {
  return hook_of_thread && hook_of_thread->should_stop(hook_of_thread->user);
}

clv_code clv_rpc_check_cancel_hook(clv_err *err) {
  if (is_stop_requested()) return clv_fail(err, CLV_CANCELLED, "interrupted");
  return clv_interrupt_check(err);
}

/* True if a call that has taken `ms` so far gets no more time. */
static bool is_call_interrupted(uint64_t ms) {
  if (ms >= POLL_MS && is_stop_requested()) return true;
  return clv_ms_since_interrupt() > GRACE_MS && ms >= GRACE_MS;
}

/* Waits for the end of a call. After an interrupt, the call still gets GRACE_MS, counted from the
 * later of the interrupt and the begin of the call. Then it is cancelled. So a worker that answers
 * still learns that the session has ended. */
static void await_call(grpc_call *call, grpc_completion_queue *queue) {
  uint64_t began = clv_now_ns();
  bool is_cancelled = false;
  while (grpc_completion_queue_pluck(queue, call, rpc_deadline_in_ms(POLL_MS), NULL).type ==
         GRPC_QUEUE_TIMEOUT) {
    if (is_cancelled || !is_call_interrupted((clv_now_ns() - began) / 1000000u)) continue;
    grpc_call_cancel_with_status(call, GRPC_STATUS_CANCELLED, "interrupted", NULL);
    is_cancelled = true;
  }
}

/* Runs the batch of `call` to its end on this thread. */
static clv_code run_batch(grpc_call *call, grpc_completion_queue *queue, const grpc_op *ops,
                          size_t n, clv_err *err) {
  grpc_call_error call_error = grpc_call_start_batch(call, ops, n, call, NULL);
  if (call_error != GRPC_CALL_OK)
    return clv_fail(err, CLV_INTERNAL, "gRPC refused a call: %s",
                    grpc_call_error_to_string(call_error));
  await_call(call, queue);
  return CLV_OK;
}

static clv_code copy_reply(grpc_byte_buffer *buffer, clv_bytes *reply, clv_err *err) {
  clv_iov fixed[RPC_MAX_PIECES];
  const clv_iov *pieces = NULL;
  size_t n = 0;
  CLV_AUTO(clv_freep) void *heap = NULL;
  if (!buffer) return clv_fail(err, CLV_INTERNAL, "the server ended the call without a reply");
  CLV_TRY(rpc_buffer_list_pieces(buffer, fixed, &pieces, &n, &heap, err));
  reply->len = 0;
  for (size_t i = 0; i < n; i++) clv_bytes_add(reply, pieces[i].data, pieces[i].len);
  if (reply->failed) return clv_fail(err, CLV_EXHAUSTED, "no memory for the reply");
  return CLV_OK;
}

static clv_code read_call_result(clv_rpc_channel *channel, const unary_call *u, clv_bytes *reply,
                                 clv_err *err) {
  if (u->status == GRPC_STATUS_OK) return copy_reply(u->reply, reply, err);
  if (u->status == GRPC_STATUS_UNAVAILABLE)
    CLV_TRY(rpc_identity_check(channel->server_identity, err));
  char text[RPC_TEXT];
  rpc_copy_printable(text, GRPC_SLICE_START_PTR(u->status_details),
                     GRPC_SLICE_LENGTH(u->status_details));
  return clv_fail(err, rpc_code_of_status(u->status), "%s: %s", channel->target_address, text);
}

static size_t make_unary_ops(unary_call *u, grpc_byte_buffer *request, grpc_op ops[6]) {
  memset(ops, 0, 6 * sizeof(*ops));
  size_t n = 0;
  ops[n++].op = GRPC_OP_SEND_INITIAL_METADATA;
  if (request) {
    ops[n].op = GRPC_OP_SEND_MESSAGE;
    ops[n++].data.send_message.send_message = request;
    ops[n].op = GRPC_OP_RECV_MESSAGE;
    ops[n++].data.recv_message.recv_message = &u->reply;
  }
  ops[n++].op = GRPC_OP_SEND_CLOSE_FROM_CLIENT;
  ops[n].op = GRPC_OP_RECV_INITIAL_METADATA;
  ops[n++].data.recv_initial_metadata.recv_initial_metadata = &u->initial_metadata;
  ops[n].op = GRPC_OP_RECV_STATUS_ON_CLIENT;
  ops[n].data.recv_status_on_client.trailing_metadata = &u->trailing_metadata;
  ops[n].data.recv_status_on_client.status = &u->status;
  ops[n++].data.recv_status_on_client.status_details = &u->status_details;
  return n;
}

static grpc_call *create_call(grpc_channel *channel, grpc_completion_queue *queue,
                              const char *method, gpr_timespec deadline) {
  grpc_slice method_slice = grpc_slice_from_copied_string(method);
  grpc_call *call =
      grpc_channel_create_call(channel, NULL, 0, queue, method_slice, NULL, deadline, NULL);
  grpc_slice_unref(method_slice);
  return call;
}

static void unary_call_init(unary_call *u) {
  *u = (unary_call){.status_details = grpc_empty_slice()};
  grpc_metadata_array_init(&u->initial_metadata);
  grpc_metadata_array_init(&u->trailing_metadata);
}

static void unary_call_clear(unary_call *u) {
  grpc_metadata_array_destroy(&u->initial_metadata);
  grpc_metadata_array_destroy(&u->trailing_metadata);
  grpc_slice_unref(u->status_details);
  if (u->reply) grpc_byte_buffer_destroy(u->reply);
}

static void destroy_queue(grpc_completion_queue *queue) {
  grpc_completion_queue_shutdown(queue);
  grpc_completion_queue_destroy(queue);
}

static void record_dialled_peer(grpc_call *call) {
  char *address = grpc_call_get_peer(call);
  rpc_fork_record_dialled_peer(address);
  gpr_free(address);
}

clv_code clv_rpc_call_unary(clv_rpc_channel *channel, const char *method, const void *request,
                            size_t len, unsigned deadline_ms, clv_bytes *reply, clv_err *err) {
  if (len > channel->limits.max_message_bytes)
    return clv_fail(err, CLV_INVALID, "request of %zu bytes, the limit is %zu", len,
                    channel->limits.max_message_bytes);
  unary_call u;
  unary_call_init(&u);
  grpc_slice slice = grpc_slice_from_copied_buffer(request, len);
  grpc_byte_buffer *message = grpc_raw_byte_buffer_create(&slice, 1);
  grpc_slice_unref(slice);
  grpc_completion_queue *queue = grpc_completion_queue_create_for_pluck(NULL);
  pthread_mutex_lock(&channel->lock);
  destroy_failed_channel(channel);
  grpc_call *call = create_call(get_or_create_grpc_channel(channel), queue, method,
                                rpc_deadline_in_ms(deadline_ms));
  pthread_mutex_unlock(&channel->lock);
  grpc_op ops[6];
  clv_code code = run_batch(call, queue, ops, make_unary_ops(&u, message, ops), err);
  if (code == CLV_OK) code = read_call_result(channel, &u, reply, err);
  if (code == CLV_OK) record_dialled_peer(call);
  grpc_call_unref(call);
  grpc_byte_buffer_destroy(message);
  destroy_queue(queue);
  unary_call_clear(&u);
  return code;
}

/* ---- connecting a channel -------------------------------------------------------------------- */

#define NOT_OUR_CA                                                                       \
  "the server's certificate is not from our CA, or not valid at this time: compare its " \
  "CA with tls.ca; `cleave-master doctor` says which"

/* Words in gRPC's and OpenSSL's texts, and the code and text for each; the first row that matches
 * counts. */
static const struct {
  const char *text_part;
  clv_code code;
  const char *user_text;
} dial_errors[] = {
    {.text_part = "CERTIFICATE_VERIFY_FAILED",
     .code = CLV_UNAUTHENTICATED,
     .user_text = NOT_OUR_CA},
    {.text_part = "certificate verify failed",
     .code = CLV_UNAUTHENTICATED,
     .user_text = NOT_OUR_CA},
    {.text_part = "alert certificate required",
     .code = CLV_UNAUTHENTICATED,
     .user_text = "the server wants a client certificate"},
    {.text_part = "alert",
     .code = CLV_UNAUTHENTICATED,
     .user_text = "the server refused the TLS handshake"},
    {.text_part = "andshake", .code = CLV_UNAUTHENTICATED, .user_text = "the TLS handshake failed"},
    {.text_part = "DNS resolution failed",
     .code = CLV_NOT_FOUND,
     .user_text = "the name cannot be resolved"},
    {.text_part = "Connection refused", .code = CLV_UNAVAILABLE, .user_text = CLV_RPC_REFUSED},
    {.text_part = "", .code = CLV_UNAVAILABLE, .user_text = "cannot connect"},
};

/* Reports the reason of a failed dial from gRPC's text. In TLS 1.3 a server checks our certificate
 * after our side of the handshake is over, and gRPC's server then just closes. So a close after a
 * passed identity check means that the server refused our certificate. */
static clv_code report_dial_error(clv_rpc_channel *channel, const char *text, clv_err *err) {
  if (rpc_identity_is_proved(channel->server_identity))
    return clv_fail(err, CLV_UNAUTHENTICATED,
                    "%s: the server closed the connection right after the TLS handshake, so it has "
                    "refused our certificate (%s)",
                    channel->target_address, text);
  size_t i = 0;
  while (!strstr(text, dial_errors[i].text_part)) i++;
  return clv_fail(err, dial_errors[i].code, "%s: %s (%s)", channel->target_address,
                  dial_errors[i].user_text, text);
}

/* Gets the reason of a failed dial from a call on the failed channel. CLV_OK: the call reached the
 * server. */
static clv_code find_dial_error(clv_rpc_channel *channel, grpc_channel *failed, clv_err *err) {
  CLV_TRY(rpc_identity_check(channel->server_identity, err));
  unary_call u;
  unary_call_init(&u);
  grpc_completion_queue *queue = grpc_completion_queue_create_for_pluck(NULL);
  grpc_call *call = create_call(failed, queue, "/cleave.Probe/Cause", rpc_deadline_in_ms(1000));
  grpc_op ops[6];
  clv_code code = run_batch(call, queue, ops, make_unary_ops(&u, NULL, ops), err);
  grpc_call_unref(call);
  destroy_queue(queue);
  if (code == CLV_OK && u.status == GRPC_STATUS_UNAVAILABLE) {
    char text[RPC_TEXT];
    rpc_copy_printable(text, GRPC_SLICE_START_PTR(u.status_details),
                       GRPC_SLICE_LENGTH(u.status_details));
    code = report_dial_error(channel, text, err);
  }
  unary_call_clear(&u);
  return code;
}

/* Waits until the state differs from `state`, or until the deadline. True: it differs. */
static bool wait_state_change(grpc_channel *dialled_channel, grpc_connectivity_state state,
                              gpr_timespec deadline) {
  grpc_completion_queue *queue = grpc_completion_queue_create_for_pluck(NULL);
  grpc_channel_watch_connectivity_state(dialled_channel, state, deadline, queue, queue);
  bool has_changed =
      grpc_completion_queue_pluck(queue, queue, rpc_no_deadline(), NULL).success != 0;
  destroy_queue(queue);
  return has_changed;
}

static clv_code wait_until_ready(clv_rpc_channel *channel, grpc_channel *dial,
                                 gpr_timespec deadline, unsigned deadline_ms, clv_err *err) {
  rpc_identity_reset(channel->server_identity);
  for (;;) {
    grpc_connectivity_state state = grpc_channel_check_connectivity_state(dial, 1);
    if (state == GRPC_CHANNEL_READY) return CLV_OK;
    if (state == GRPC_CHANNEL_TRANSIENT_FAILURE) CLV_TRY(find_dial_error(channel, dial, err));
    CLV_TRY(clv_rpc_check_cancel_hook(err));
    if (channel->connect_stop_flag && __atomic_load_n(channel->connect_stop_flag, __ATOMIC_RELAXED))
      return clv_fail(err, CLV_CANCELLED, "%s: not needed any more", channel->target_address);
    gpr_timespec soon = gpr_time_min(deadline, rpc_deadline_in_ms(POLL_MS));
    if (!wait_state_change(dial, state, soon) && gpr_time_cmp(soon, deadline) == 0)
      return clv_fail(err, CLV_DEADLINE, "%s: no connection within %u ms", channel->target_address,
                      deadline_ms);
  }
}

/* Replaces a failed gRPC channel by a new one, which dials at once. The failed one would wait
 * before its next attempt. */
static grpc_channel *replace_grpc_channel(clv_rpc_channel *channel) {
  pthread_mutex_lock(&channel->lock);
  grpc_channel_destroy(channel->grpc_handle);
  channel->grpc_handle = NULL;
  grpc_channel *dial = get_or_create_grpc_channel(channel);
  pthread_mutex_unlock(&channel->lock);
  return dial;
}

/* Connects, and tries once more if the server closed right after the handshake. A server that exits
 * at that moment looks like one that refused our certificate; the second attempt tells the two
 * apart. */
static clv_code connect_with_retry(clv_rpc_channel *channel, grpc_channel *dial,
                                   unsigned deadline_ms, clv_err *err) {
  gpr_timespec deadline = rpc_deadline_in_ms(deadline_ms);
  clv_code code = wait_until_ready(channel, dial, deadline, deadline_ms, err);
  if (code != CLV_UNAUTHENTICATED || !rpc_identity_is_proved(channel->server_identity)) return code;
  return wait_until_ready(channel, replace_grpc_channel(channel), deadline, deadline_ms, err);
}

clv_code clv_rpc_channel_connect(clv_rpc_channel *channel, unsigned deadline_ms, clv_err *err) {
  pthread_mutex_lock(&channel->lock);
  bool busy = channel->is_connecting;
  grpc_channel *dial = NULL;
  if (!busy) {
    destroy_failed_channel(channel);
    channel->is_connecting = true;
    dial = get_or_create_grpc_channel(channel);
  }
  pthread_mutex_unlock(&channel->lock);
  if (busy)
    return clv_fail(err, CLV_PRECONDITION, "%s: another thread is connecting",
                    channel->target_address);
  clv_code code = connect_with_retry(channel, dial, deadline_ms, err);
  pthread_mutex_lock(&channel->lock);
  channel->is_connecting = false;
  if (code != CLV_OK) {
    grpc_channel_destroy(channel->grpc_handle);
    channel->grpc_handle = NULL;
  }
  pthread_mutex_unlock(&channel->lock);
  return code;
}

clv_code clv_rpc_stream_open(clv_rpc_channel *channel, const char *method,
                             const clv_rpc_stream_events *events, clv_rpc_stream **ret_stream,
                             clv_err *err) {
  pthread_mutex_lock(&channel->lock);
  destroy_failed_channel(channel);
  grpc_call *call = create_call(get_or_create_grpc_channel(channel), channel->runtime->queue,
                                method, rpc_no_deadline());
  pthread_mutex_unlock(&channel->lock);
  clv_rpc_stream *stream = NULL;
  clv_code code = rpc_stream_new(channel->runtime, channel, call, false,
                                 channel->limits.max_message_bytes, &stream, err);
  if (code != CLV_OK) {
    grpc_call_unref(call);
    return code;
  }
  stream->peer_timeout_ms = channel->limits.peer_timeout_ms;
  /* a reference for the caller; the first one belongs to the library */
  *ret_stream = clv_rpc_stream_ref(stream);
  rpc_stream_start_client(stream, events);
  return CLV_OK;
}
