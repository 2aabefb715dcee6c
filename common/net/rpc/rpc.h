/* SPDX-License-Identifier: Apache-2.0
 *
 * rpc: opaque bytes between two processes over mutual TLS, on gRPC C-core: unary calls and two-way
 * streams. The only folder that sees gRPC; it knows nothing of protobuf, sessions or tensors.
 *
 * Threads. A runtime owns a few queue threads. Stream callbacks, `authorize` and `on_stream` run on
 * them, those of different streams side by side: they must neither block nor compute (hand the work
 * to a thread of your own). Unary handlers run on the server's handler threads and may take their
 * time. Every function below may be called from any thread, callbacks included, except those marked
 * BLOCKS (never from a queue thread). No lock is held while a callback runs.
 *
 * Lifetimes. runtime > servers, channels > streams, calls. Free in the opposite order. Streams are
 * counted; the library keeps its own reference until on_closed has returned.
 *
 * Identity. A peer is the ONE URI subject alternative name of its verified leaf certificate. None
 * or several: refused with CLV_UNAUTHENTICATED, whatever else the certificate says.
 */
#ifndef CLEAVE_RPC_H
#define CLEAVE_RPC_H

#include "common/base/base.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- bytes ----------------------------------------------------------------------------------- */

/* A piece of a received message, valid until the callback or handler that got it returns. */
typedef struct clv_iov {
  const void *data;
  size_t len; /* bytes */
} clv_iov;

/* A piece of a message to send. With `release` set the bytes are not copied: `data` must stay
 * unchanged until release(owner) is called, exactly once per piece, whatever becomes of the message
 * (sent, refused, cancelled, connection lost); it runs on any thread, possibly inside
 * clv_rpc_stream_send and possibly after on_closed, and must not block nor call into rpc. With
 * `release` NULL the bytes are copied before clv_rpc_stream_send returns. */
typedef struct clv_rpc_piece {
  const void *data;
  size_t len; /* bytes, may be 0 */
  void (*release)(void *owner);
  void *owner;
} clv_rpc_piece;

/* Total bytes of n pieces. */
size_t clv_iov_bytes(const clv_iov *iov, size_t n);

/* Copy `len` bytes from `offset` of the n pieces into dst; false if they are not all there. */
bool clv_iov_copy(const clv_iov *iov, size_t n, size_t offset, void *dst, size_t len);

/* ---- runtime (process lifetime) -------------------------------------------------------------- */

typedef struct clv_rpc_runtime clv_rpc_runtime;

typedef struct clv_rpc_runtime_options {
  unsigned queue_threads; /* 2..64, 0 = 2: one leads, the others help when there is much to do */
  unsigned spin_us;       /* 0 = never spin; at most 1000 */
} clv_rpc_runtime_options;

/* Starts gRPC and the queue threads. The TLS floor must be installed before the first runtime. */
clv_code clv_rpc_runtime_new(const clv_rpc_runtime_options *options, clv_rpc_runtime **ret_runtime,
                             clv_err *err) CLV_USE_RESULT;

/* BLOCKS. All servers and channels of the runtime must have been freed. NULL is allowed. */
void clv_rpc_runtime_free(clv_rpc_runtime *runtime);
void clv_rpc_runtime_freep(clv_rpc_runtime **runtime);

/* After an event the leading queue thread polls for at most `spin_us` before it sleeps: a wake-up
 * costs 30 to 50 us. Give 0 where compute threads and queue threads do not fit the cores. */
void clv_rpc_runtime_set_spin(clv_rpc_runtime *runtime, unsigned spin_us);

/* Nested brackets around compute: while any is open nobody spins. Cheap (one atomic add). */
void clv_rpc_busy_enter(clv_rpc_runtime *runtime);
void clv_rpc_busy_leave(clv_rpc_runtime *runtime);

/* ---- credentials ----------------------------------------------------------------------------- */

/* PEM text, NUL-terminated; copied by whoever takes it. */
typedef struct clv_rpc_pem {
  const char *ca;   /* one or more certificates that the peer's chain must end in */
  const char *cert; /* own leaf first, then intermediates */
  const char *key;
} clv_rpc_pem;

/* ---- streams --------------------------------------------------------------------------------- */

typedef struct clv_rpc_stream clv_rpc_stream;

typedef struct clv_rpc_peer {
  const char *uri;     /* verified identity, e.g. "spiffe://hospital/master" */
  const char *address; /* "ipv4:10.0.0.7:41212"; for people, proves nothing */
  const bool *gone;    /* of a unary call; atomic: it has left, or its deadline has passed */
} clv_rpc_peer;

/* Callbacks of one stream, all on queue threads. */
typedef struct clv_rpc_stream_events {
  void *user;

  /* One whole message. Serial per stream; the next message is asked for when it returns, so a slow
   * receiver is felt by the sender through HTTP/2 flow control. Required. */
  void (*on_message)(void *user, clv_rpc_stream *stream, const clv_iov *pieces, size_t n);

  /* A message of `bytes` has been accepted by the transport. May run beside on_message and beside
   * itself. Optional. */
  void (*on_sent)(void *user, clv_rpc_stream *stream, size_t bytes);

  /* Server only: the client will send no more messages (or is gone; on_closed tells). Optional:
   * without it the stream is closed in turn, after its queued messages. */
  void (*on_half_closed)(void *user, clv_rpc_stream *stream);

  /* Exactly once, last: no callback of this stream runs beside it or comes after it. CLV_OK after
   * an orderly end. `text` is the peer's, or names the transport's trouble. Required. */
  void (*on_closed)(void *user, clv_rpc_stream *stream, clv_code code, const char *text);
} clv_rpc_stream_events;

clv_rpc_stream *clv_rpc_stream_ref(clv_rpc_stream *stream);
void clv_rpc_stream_unref(clv_rpc_stream *stream); /* NULL is allowed */

/* Queue one message made of n pieces (n may be 0: an empty message). Never blocks; messages leave
 * in the order of the calls. Takes over every piece in all cases, also when it fails.
 * CLV_PRECONDITION after clv_rpc_stream_close; CLV_UNAVAILABLE (or the code of the cancel) on an
 * ended stream; CLV_INVALID for more bytes than the max_message of this side. */
clv_code clv_rpc_stream_send(clv_rpc_stream *stream, const clv_rpc_piece *pieces, size_t n,
                             clv_err *err) CLV_USE_RESULT;

/* Have these bytes, which are copied, go behind those of the next message, whoever sends it, or by
 * themselves with clv_rpc_stream_flush: at most CLV_RPC_COALESCED times, and 16 KiB, in a message.
 * False: there is no room for them, or the stream has ended; nothing has changed.
 * clv_rpc_stream_flush: whether there were any. */
enum { CLV_RPC_COALESCED = 15 };
bool clv_rpc_stream_coalesce(clv_rpc_stream *stream, const clv_iov *pieces,
                             size_t n) CLV_USE_RESULT;
bool clv_rpc_stream_flush(clv_rpc_stream *stream);

/* Work for a thread of the runtime, embedded in what it is about. */
typedef struct clv_rpc_job {
  void (*run)(struct clv_rpc_job *job);
  struct clv_rpc_job *next;
} clv_rpc_job;

/* Have job->run(job) called soon on a sender thread of the stream's runtime: summing and encrypting
 * a large tensor is not for a thread that has other things to do. False, and no call, when too much
 * waits already. The stream may end meanwhile. */
bool clv_rpc_stream_defer(clv_rpc_stream *stream, clv_rpc_job *job) CLV_USE_RESULT;

/* Bytes accepted by clv_rpc_stream_send that the transport has not accepted yet. */
size_t clv_rpc_stream_queued_bytes(clv_rpc_stream *stream);

/* After the queued messages: client: half close (messages still arrive until the server ends);
 * server: end with CLV_OK. Idempotent. */
void clv_rpc_stream_close(clv_rpc_stream *stream);

/* End now, dropping what is queued; the peer sees `code` and `text` (from a server), or CANCELLED
 * (from a client). on_closed of this side gets `code` and `text`. No effect on an ended stream. */
void clv_rpc_stream_cancel(clv_rpc_stream *stream, clv_code code, const char *text);

/* ---- limits of both sides -------------------------------------------------------------------- */

typedef struct clv_rpc_limits {
  size_t max_message; /* bytes, both directions; 0 = 8 MiB; at most 1 GiB */
  unsigned
      peer_timeout_ms; /* a peer that is silent for so long, pings too, is given up; 0 = 60 000 */
} clv_rpc_limits;

/* ---- client ---------------------------------------------------------------------------------- */

typedef struct clv_rpc_channel clv_rpc_channel;

typedef struct clv_rpc_channel_options {
  const char *target;       /* "host:port", "10.0.0.7:7443", "[::1]:7443" */
  const char *expected_uri; /* identity the server must prove before a byte of a request leaves */
  clv_rpc_pem pem;
  clv_rpc_limits limits;
} clv_rpc_channel_options;

/* A channel is one TCP connection of its own (two channels to one target never share). Nothing is
 * dialled yet. CLV_INVALID for unusable PEM text or a malformed target. */
clv_code clv_rpc_channel_new(clv_rpc_runtime *runtime, const clv_rpc_channel_options *options,
                             clv_rpc_channel **ret_channel, clv_err *err) CLV_USE_RESULT;
void clv_rpc_channel_free(clv_rpc_channel *channel); /* NULL is allowed; open streams live on */
void clv_rpc_channel_freep(clv_rpc_channel **channel);

/* BLOCKS. Dial and wait until TLS and HTTP/2 stand. Fails at the first failed attempt with its
 * reason: CLV_NOT_FOUND name not resolved; CLV_UNAVAILABLE refused, unreachable, closed;
 * CLV_UNAUTHENTICATED certificates (either side's) or another identity than expected; CLV_DEADLINE
 * nothing happened within deadline_ms. A failed channel stops dialling until the next connect (no
 * hidden retries); how often to try is the caller's policy. One thread at a time per channel. */
clv_code clv_rpc_channel_connect(clv_rpc_channel *channel, unsigned deadline_ms,
                                 clv_err *err) CLV_USE_RESULT;

/* BLOCKS. One unary call; dials when needed. `reply` is replaced. The code is the server's. */
clv_code clv_rpc_call(clv_rpc_channel *channel, const char *method, const void *request, size_t len,
                      unsigned deadline_ms, clv_bytes *reply, clv_err *err) CLV_USE_RESULT;

/* Open a two-way stream (no deadline; a silent peer is found after peer_timeout_ms). Returns at
 * once with a reference for the caller; what goes wrong later comes through on_closed, which may
 * run before this function returns. */
clv_code clv_rpc_stream_open(clv_rpc_channel *channel, const char *method,
                             const clv_rpc_stream_events *events, clv_rpc_stream **ret_stream,
                             clv_err *err) CLV_USE_RESULT;

/* ---- server ---------------------------------------------------------------------------------- */

typedef struct clv_rpc_server clv_rpc_server;

/* Fill *reply and return CLV_OK, or fill *err: its text (short, no paths, no data) goes to the
 * peer. */
typedef clv_code clv_rpc_handler(void *user, const clv_rpc_peer *peer, const clv_iov *request,
                                 size_t n, clv_bytes *reply, clv_err *err);

typedef struct clv_rpc_unary {
  const char *method; /* "/cleave.v1.Worker/Hello", static */
  size_t max_request; /* bytes; larger ones get CLV_EXHAUSTED; 0 = limits.max_message */
  clv_rpc_handler *handle;
} clv_rpc_unary;

typedef struct clv_rpc_server_options {
  const char *listen; /* "127.0.0.1:7443", "[::]:7443"; port 0 takes a free one */
  clv_rpc_pem pem;
  clv_rpc_limits limits;

  void *user; /* for the callbacks below that take one */

  /* Before anything of a call is read, for every method, health included. Anything but CLV_OK ends
   * the call with that code and err's text. NULL denies everybody. */
  clv_code (*authorize)(void *user, const clv_rpc_peer *peer, const char *method, clv_err *err);

  /* Optional, all or none: the connection that a call came on, as a number of the program's; that
   * the call was taken from gRPC; that a message of it was. On queue threads. */
  uint64_t (*connection)(const char *address);
  void (*took_call)(uint64_t connection);
  void (*took_message)(uint64_t connection, size_t bytes);

  const clv_rpc_unary *unary; /* [n_unary], kept by reference */
  size_t n_unary;

  const char *const *stream_methods; /* [n_stream_methods], kept by reference */
  size_t n_stream_methods;

  /* A stream of an authorised peer. Fill *ret_events and return CLV_OK (callbacks start after the
   * return; clv_rpc_stream_send already works), or refuse. Take a reference to keep `stream`. */
  clv_code (*on_stream)(void *user, const char *method, const clv_rpc_peer *peer,
                        clv_rpc_stream *stream, clv_rpc_stream_events *ret_events, clv_err *err);

  size_t memory; /* bytes gRPC may take for connections, calls and messages; 0: no limit */

  unsigned handler_threads;        /* 0 = 4; one identity has half of them at most */
  unsigned max_waiting_unary;      /* requests of an identity waiting for one; 0 = 64 */
  unsigned max_calls_per_peer;     /* unary calls and streams at once per identity; 0 = 64 */
  unsigned max_streams_per_conn;   /* HTTP/2 setting; 0 = 128 */
  unsigned max_cancels_per_second; /* or surplus calls, per identity, before it is cut; 0 = 100 */
  unsigned cut_ms;                 /* connection shut and calls refused this long; 0 = 10 000 */
  unsigned idle_connection_ms;     /* connections without calls are closed; 0 = 15 minutes */
  unsigned handshake_ms;           /* TLS and HTTP/2 must stand by then; 0 = 3 000 */
} clv_rpc_server_options;

/* Binds and serves. CLV_UNAVAILABLE with the system's reason when the address cannot be bound;
 * CLV_INVALID for unusable PEM text or options. */
clv_code clv_rpc_server_new(clv_rpc_runtime *runtime, const clv_rpc_server_options *options,
                            clv_rpc_server **ret_server, clv_err *err) CLV_USE_RESULT;

unsigned clv_rpc_server_port(const clv_rpc_server *server);

/* New certificates for handshakes from now on; standing connections keep theirs. On failure the old
 * ones stay in use. */
clv_code clv_rpc_server_reload(clv_rpc_server *server, const clv_rpc_pem *pem,
                               clv_err *err) CLV_USE_RESULT;

typedef struct clv_rpc_server_counts {
  uint64_t calls, denied, unauthenticated, refused_by_limit, cut_peers; /* since start */
  unsigned active_calls;                                                /* now */
} clv_rpc_server_counts;

void clv_rpc_server_count(clv_rpc_server *server, clv_rpc_server_counts *ret_counts);

/* Connections to its port that are open now, by looking at each descriptor of the process: for
 * people who ask, not for loops. */
unsigned clv_rpc_server_connections(const clv_rpc_server *server);

/* BLOCKS. Stop accepting, let calls and streams in progress end, cancel what is left after
 * deadline_ms (with CLV_UNAVAILABLE), return when all are gone. CLV_DEADLINE if some had to be
 * cancelled. Repeating is harmless. */
clv_code clv_rpc_server_drain(clv_rpc_server *server, unsigned deadline_ms,
                              clv_err *err) CLV_USE_RESULT;

/* BLOCKS. Drain with 0 ms if that was not done, then free. NULL is allowed. */
void clv_rpc_server_free(clv_rpc_server *server);
void clv_rpc_server_freep(clv_rpc_server **server);

#ifdef __cplusplus
}
#endif
#endif
