/* SPDX-License-Identifier: Apache-2.0
 *
 * rpc: messages of opaque bytes between two processes over mutual TLS, on gRPC C-core: unary calls
 * and bidirectional streams. Only this folder calls gRPC; it does not know protobuf, sessions or
 * tensors.
 *
 * Threads. A runtime owns a few queue threads. They run the stream callbacks, `authorize` and
 * `on_stream`, those of different streams concurrently. These callbacks must neither block nor
 * compute; they pass work to a thread of the program. Unary handlers run on the server's handler
 * threads and may block. Every function below may be called from any thread, callbacks included,
 * except that functions marked BLOCKS must not be called from a queue thread. No lock is held while
 * a callback runs.
 *
 * Lifetimes. A runtime outlives its servers and channels, these outlive their streams and calls.
 * Free in the opposite order. Streams are reference-counted; the library keeps a reference until
 * on_closed has returned.
 *
 * Identity. The identity of a peer is the only URI among the subject alternative names of its
 * verified leaf certificate. A certificate with no URI or with several is refused with
 * CLV_UNAUTHENTICATED, regardless of its other contents.
 */
#ifndef CLEAVE_RPC_H
#define CLEAVE_RPC_H

#include "common/base/base.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- pieces of messages ---------------------------------------------------------------------- */

/* A piece of a received message, valid until the callback or handler that got it returns. */
typedef struct clv_iov {
  const void *data;
  size_t len; /* length in bytes */
} clv_iov;

/* A piece of a message to send. release_owner not NULL: the bytes are not copied, and `data` must
 * not change until release_owner(owner) is called. It is called exactly once for each piece, also
 * when the message is refused or cancelled or the connection is lost. It may run on any thread,
 * inside clv_rpc_stream_send or after on_closed, and must neither block nor call rpc. release_owner
 * NULL: the bytes are copied before clv_rpc_stream_send returns. */
typedef struct clv_rpc_piece {
  const void *data;
  size_t len; /* length in bytes, may be 0 */
  void (*release_owner)(void *owner);
  void *owner;
} clv_rpc_piece;

/* Total bytes of n pieces. */
size_t clv_iov_bytes(const clv_iov *iov, size_t n);

/* Copies `len` bytes from `offset` of the n pieces to dst. False: the pieces have fewer bytes. */
bool clv_iov_copy(const clv_iov *iov, size_t n, size_t offset, void *dst, size_t len);

/* ---- runtime (process lifetime) -------------------------------------------------------------- */

typedef struct clv_rpc_runtime clv_rpc_runtime;

typedef struct clv_rpc_runtime_options {
  /* number of queue threads, 2 to 64; 0 means 2. One thread leads, the others help under load. */
  unsigned n_queue_threads;
  /* how long the leading queue thread polls before it sleeps, at most 1000; 0: not at all */
  unsigned spin_us;
} clv_rpc_runtime_options;

/* Returns the version of the gRPC that this process runs, as "1.51.1"; static text. Stores the path
 * of its file. */
const char *clv_rpc_library_version(char *ret_path, size_t len);
/* Starts gRPC and the queue threads. Install the TLS floor (clv_tls) before the first runtime. */
clv_code clv_rpc_runtime_new(const clv_rpc_runtime_options *options, clv_rpc_runtime **ret_runtime,
                             clv_err *err) CLV_USE_RESULT;

/* BLOCKS. Call after all servers and channels of the runtime are freed. NULL is allowed. */
void clv_rpc_runtime_free(clv_rpc_runtime *runtime);
void clv_rpc_runtime_freep(clv_rpc_runtime **runtime);

/* Sets how long the leading queue thread polls after an event before it sleeps. A wake-up from
 * sleep costs 30 to 50 us. Use 0 if compute threads and queue threads together outnumber the
 * cores. */
void clv_rpc_runtime_set_spin(clv_rpc_runtime *runtime, unsigned spin_us);

/* clv_rpc_begin_computation marks the begin of a computation, clv_rpc_end_computation its end;
 * computations may overlap. The leading queue thread does not spin during a computation. Cost: one
 * atomic addition. */
void clv_rpc_begin_computation(clv_rpc_runtime *runtime);
void clv_rpc_end_computation(clv_rpc_runtime *runtime);

/* ---- certificates and keys ------------------------------------------------------------------- */

/* PEM text, NUL-terminated. Each function that takes it copies the text, except
 * clv_rpc_pem_clear. */
typedef struct clv_rpc_pem {
  const char *ca;   /* CA certificates; the peer's chain must end in one of them */
  const char *cert; /* own leaf certificate first, then intermediates */
  const char *key;
} clv_rpc_pem;

/* Replaces *ret, zeroed or an earlier copy, by a copy. CLV_EXHAUSTED: *ret is unchanged. */
clv_code clv_rpc_pem_copy(const clv_rpc_pem *from, clv_rpc_pem *ret, clv_err *err) CLV_USE_RESULT;
/* wipes and frees a copy and zeroes *pem; NULL is allowed */
void clv_rpc_pem_clear(clv_rpc_pem *pem);

/* ---- streams of messages --------------------------------------------------------------------- */

typedef struct clv_rpc_stream clv_rpc_stream;

typedef struct clv_rpc_peer {
  const char *uri;     /* verified identity, e.g. "spiffe://hospital/master" */
  const char *address; /* "ipv4:10.0.0.7:41212"; for messages only, proves nothing */
  /* atomic flag of a unary call: the caller has cancelled or disconnected, or its deadline has
   * passed */
  const bool *is_cancelled;
} clv_rpc_peer;

/* Callbacks of one stream, all called on queue threads. */
typedef struct clv_rpc_stream_events {
  void *user;

  /* Receives one complete message. Calls of one stream are serial. The next message is requested
   * when the callback returns, so HTTP/2 flow control slows down a sender whose receiver is slow.
   * Required. */
  void (*on_message)(void *user, clv_rpc_stream *stream, const clv_iov *pieces, size_t n);

  /* The transport has accepted a message of `bytes`. May run concurrently with on_message and with
   * itself. Optional. */
  void (*on_sent)(void *user, clv_rpc_stream *stream, size_t bytes);

  /* Server only. The client will send no more messages, or has disconnected; on_closed reports
   * which. Optional: without it the stream is closed after its queued messages. */
  void (*on_half_closed)(void *user, clv_rpc_stream *stream);

  /* Called exactly once, as the last callback of the stream; no other runs concurrently. CLV_OK
   * after an orderly end. `text` is the peer's text, or the reason of a transport error.
   * Required. */
  void (*on_closed)(void *user, clv_rpc_stream *stream, clv_code code, const char *text);
} clv_rpc_stream_events;

clv_rpc_stream *clv_rpc_stream_ref(clv_rpc_stream *stream);
void clv_rpc_stream_unref(clv_rpc_stream *stream); /* NULL is allowed */

/* Queues one message made of n pieces (n = 0: an empty message). Never blocks; messages are sent in
 * the order of the calls. Takes over every piece in all cases. Errors: CLV_PRECONDITION after
 * clv_rpc_stream_close; CLV_UNAVAILABLE, or the code of the cancel, on an ended stream; CLV_INVALID
 * for more bytes than max_message_bytes of this side. */
clv_code clv_rpc_stream_send(clv_rpc_stream *stream, const clv_rpc_piece *pieces, size_t n,
                             clv_err *err) CLV_USE_RESULT;

/* Job for a thread of the runtime. Embedded in the object that it works on. */
typedef struct clv_rpc_job {
  void (*run)(struct clv_rpc_job *job);
  struct clv_rpc_job *next;
} clv_rpc_job;

/* Runs job->run(job) soon on a sender thread of the stream's runtime; meant for the checksums and
 * encryption of a large tensor. The stream may end before. False: too many jobs wait, and the job
 * will not run. */
bool clv_rpc_stream_defer(clv_rpc_stream *stream, clv_rpc_job *job) CLV_USE_RESULT;

/* Returns the bytes accepted by clv_rpc_stream_send and not yet accepted by the transport. */
size_t clv_rpc_stream_queued_bytes(clv_rpc_stream *stream);

/* Closes the stream after its queued messages. A client half-closes: it still receives messages
 * until the server ends the stream. A server ends the stream with CLV_OK. Idempotent. */
void clv_rpc_stream_close(clv_rpc_stream *stream);

/* Ends the stream now and drops queued messages. The peer receives `code` and `text` from a server,
 * CANCELLED from a client. on_closed of this side gets `code` and `text`. With CLV_CANCELLED it
 * is called at once, even if the connection is silent; a server then sends no `text`. No effect on
 * an ended stream. */
void clv_rpc_stream_cancel(clv_rpc_stream *stream, clv_code code, const char *text);

/* ---- limits of both sides -------------------------------------------------------------------- */

typedef struct clv_rpc_limits {
  size_t max_message_bytes; /* bytes, both directions; 0: 8 MiB; at most 1 GiB */
  /* a peer that sends nothing, not even ping answers, for this time is lost; 0: 60,000 */
  unsigned peer_timeout_ms;
} clv_rpc_limits;

/* ---- client: channels and calls -------------------------------------------------------------- */

typedef struct clv_rpc_channel clv_rpc_channel;

typedef struct clv_rpc_channel_options {
  const char *target_address; /* "host:port", "10.0.0.7:7443", "[::1]:7443" */
  /* identity that the server must prove before this side sends a byte of a request */
  const char *expected_uri;
  clv_rpc_pem pem;
  clv_rpc_limits limits;
  /* atomic flag; when it turns true, a connect in progress fails with CLV_CANCELLED. NULL: no flag.
   * Has to outlive the channel. */
  const bool *connect_stop_flag;
} clv_rpc_channel_options;

/* Makes a channel. Each channel has one TCP connection of its own, never shared with another
 * channel. Does not dial. CLV_INVALID: the PEM text cannot be used, or the target is malformed. */
clv_code clv_rpc_channel_new(clv_rpc_runtime *runtime, const clv_rpc_channel_options *options,
                             clv_rpc_channel **ret_channel, clv_err *err) CLV_USE_RESULT;
/* NULL is allowed; open streams are cancelled */
void clv_rpc_channel_free(clv_rpc_channel *channel);
void clv_rpc_channel_freep(clv_rpc_channel **channel);

/* Part of the error text of a connect that the host of the peer has refused. */
#define CLV_RPC_REFUSED "no process listens on this address"

/* BLOCKS. Dials and waits until TLS and HTTP/2 are established. Fails at the first failed attempt:
 * CLV_NOT_FOUND: the name does not resolve; CLV_UNAVAILABLE: refused, unreachable or closed;
 * CLV_UNAUTHENTICATED: a certificate of either side was refused, or the identity is not the
 * expected one; CLV_DEADLINE: nothing happened within deadline_ms. A failed channel stops dialling
 * until the next connect; the caller decides how often to retry. One thread at a time for each
 * channel. */
clv_code clv_rpc_channel_connect(clv_rpc_channel *channel, unsigned deadline_ms,
                                 clv_err *err) CLV_USE_RESULT;

/* Sets a hook that the waits of this thread poll every 50 ms: connects, unary calls, and the
 * opening and closing of links. While it says stop they return CLV_CANCELLED, a unary call not
 * before it has had 50 ms. NULL: none. Returns the hook that was set before. */
const clv_cancel_hook *clv_rpc_set_cancel_hook(const clv_cancel_hook *hook);
/* CLV_CANCELLED: this thread's hook says that it shall stop waiting, or clv_interrupt_check does */
clv_code clv_rpc_check_cancel_hook(clv_err *err) CLV_USE_RESULT;
bool clv_rpc_has_cancel_hook(void); /* true if this thread has a cancel hook */

/* BLOCKS. Makes one unary call; dials if needed. Replaces `reply`. Returns the server's code. */
clv_code clv_rpc_call_unary(clv_rpc_channel *channel, const char *method, const void *request,
                            size_t len, unsigned deadline_ms, clv_bytes *reply,
                            clv_err *err) CLV_USE_RESULT;

/* Opens a bidirectional stream without a deadline; a silent peer is detected after peer_timeout_ms.
 * Returns at once with a reference for the caller. Later errors are reported by on_closed, which
 * may run before this function returns. */
clv_code clv_rpc_stream_open(clv_rpc_channel *channel, const char *method,
                             const clv_rpc_stream_events *events, clv_rpc_stream **ret_stream,
                             clv_err *err) CLV_USE_RESULT;

/* ---- server: handlers, limits and counters --------------------------------------------------- */

typedef struct clv_rpc_server clv_rpc_server;

/* Handles one unary call: fills *reply and returns CLV_OK, or fills *err. The peer receives the
 * text of *err, which must be short and contain no paths and no data. */
typedef clv_code clv_rpc_handler(void *user, const clv_rpc_peer *peer, const clv_iov *request,
                                 size_t n, clv_bytes *reply, clv_err *err);

typedef struct clv_rpc_unary {
  const char *method; /* "/cleave.v1.Worker/Hello", static */
  /* bytes; larger requests get CLV_EXHAUSTED; 0: limits.max_message_bytes */
  size_t max_request_bytes;
  clv_rpc_handler *handler;
} clv_rpc_unary;

typedef struct clv_rpc_server_options {
  const char *listen_address; /* "127.0.0.1:7443", "[::]:7443"; port 0 binds a free port */
  clv_rpc_pem pem;
  clv_rpc_limits limits;

  void *user; /* passed to the callbacks below that take a `user` */

  /* Called before any part of a call is read, for every method, health included. An error ends the
   * call with its code and text. NULL: every call is denied. */
  clv_code (*authorize)(void *user, const clv_rpc_peer *peer, const char *method, clv_err *err);

  /* Optional; set all three or none. `find_connection` returns the program's number of the
   * connection that carries a call; on_call_delivered and on_message_delivered report that gRPC has
   * delivered a call, or a message of it. Called on queue threads. */
  uint64_t (*find_connection)(const char *address);
  void (*on_call_delivered)(uint64_t connection);
  void (*on_message_delivered)(uint64_t connection, size_t bytes);

  const clv_rpc_unary *unary_methods; /* [n_unary_methods]; must outlive the server */
  size_t n_unary_methods;

  const char *const *stream_methods; /* [n_stream_methods]; must outlive the server */
  size_t n_stream_methods;

  /* Accepts a stream of an authorised peer. Fills *ret_events and returns CLV_OK, or refuses. Other
   * callbacks begin after the return; clv_rpc_stream_send already works. Take a reference to keep
   * `stream`. */
  clv_code (*on_stream)(void *user, const char *method, const clv_rpc_peer *peer,
                        clv_rpc_stream *stream, clv_rpc_stream_events *ret_events, clv_err *err);

  /* bytes that gRPC may use for connections, calls and messages; 0: no limit */
  size_t memory_limit;

  unsigned n_handler_threads; /* 0 means 4; one identity may use at most half of them */
  /* requests of one identity that wait for a handler thread; 0: 64 */
  unsigned max_waiting_unary_calls;
  unsigned max_calls_per_peer; /* concurrent unary calls and streams of one identity; 0: 64 */
  /* concurrent streams of one connection (an HTTP/2 setting); 0: 128 */
  unsigned max_streams_per_conn;
  /* cancelled or surplus calls of one identity before it is cut off; 0: 100 */
  unsigned max_cancels_per_second;
  unsigned cut_off_ms; /* how long a cut-off identity is refused; 0: 10,000 */
  /* connections without calls are closed after this time; 0: 15 minutes */
  unsigned idle_connection_timeout_ms;
  unsigned handshake_timeout_ms; /* limit for the TLS and HTTP/2 handshakes; 0: 3,000 */
} clv_rpc_server_options;

/* Makes a server, binds it and serves. CLV_UNAVAILABLE with the system's reason: the address cannot
 * be bound. CLV_INVALID: the PEM text or an option cannot be used. */
clv_code clv_rpc_server_new(clv_rpc_runtime *runtime, const clv_rpc_server_options *options,
                            clv_rpc_server **ret_server, clv_err *err) CLV_USE_RESULT;

unsigned clv_rpc_server_port(const clv_rpc_server *server);

/* Sets the certificates for handshakes from now on; open connections keep theirs. After a failure
 * the old certificates stay in use. */
clv_code clv_rpc_server_replace_certs(clv_rpc_server *server, const clv_rpc_pem *pem,
                                      clv_err *err) CLV_USE_RESULT;

typedef struct clv_rpc_server_counts {
  /* totals since the start of the server */
  uint64_t n_calls, n_calls_denied, n_calls_unauthenticated, n_calls_refused, n_cut_peers;
  unsigned n_active_calls; /* calls in progress now */
} clv_rpc_server_counts;

void clv_rpc_server_get_counts(clv_rpc_server *server, clv_rpc_server_counts *ret_counts);

/* Counts the open connections to the server's port by checking each descriptor of the process.
 * Slow: for status requests, not for loops. */
unsigned clv_rpc_server_count_connections(const clv_rpc_server *server);

/* BLOCKS. Stops accepting, lets calls and streams in progress end, cancels the others after
 * deadline_ms (with CLV_UNAVAILABLE) and returns when all have ended. CLV_DEADLINE: some were
 * cancelled. May be called again. */
clv_code clv_rpc_server_drain(clv_rpc_server *server, unsigned deadline_ms,
                              clv_err *err) CLV_USE_RESULT;

/* BLOCKS. Drains the server with a deadline of 0 ms, unless it was drained before, and frees it.
 * NULL is allowed. */
void clv_rpc_server_free(clv_rpc_server *server);
void clv_rpc_server_freep(clv_rpc_server **server);

#ifdef __cplusplus
}
#endif
#endif
