/* SPDX-License-Identifier: Apache-2.0
 *
 * What the files of this folder share. A `rpc_tag` is what C-core hands back from a completion
 * queue: every batch names one, embedded in the object it belongs to.
 *
 * Order of locks: none nests in another, and none is held over a call into gRPC that may release
 * slices or over a callback.
 */
#ifndef CLEAVE_RPC_INT_H
#define CLEAVE_RPC_INT_H

#include <grpc/byte_buffer.h>
#include <grpc/grpc.h>
#include <grpc/grpc_security.h>
#include <grpc/slice.h>
#include <pthread.h>
#include <stdatomic.h>

#include "common/net/rpc/rpc.h"

enum {
  RPC_TEXT = 256,      /* bytes of a text that travels to or from a peer, NUL included */
  RPC_MAX_PIECES = 32, /* pieces of a received message kept without an allocation */
  RPC_MAX_MESSAGE = 1 << 30,
};

/* `ok` is false when the operation failed (for receives: when the call is over). */
typedef struct rpc_tag {
  void (*run)(struct rpc_tag *tag, bool ok);
} rpc_tag;

#define RPC_OWNER(ptr, type, field) ((type *)(void *)((char *)(ptr)-offsetof(type, field)))

/* ---- handlers.c ------------------------------------------------------------------------------ */

/* Threads that run unary handlers or deferred sends, and the bounded queue in front of them. */
typedef struct rpc_pool {
  pthread_mutex_t lock;
  pthread_cond_t wake;
  clv_rpc_job *head, *tail;
  unsigned waiting, max_waiting, n_threads;
  bool stop;
  pthread_t threads[64];
} rpc_pool;

clv_code rpc_pool_init(rpc_pool *pool, unsigned n_threads, unsigned max_waiting,
                       clv_err *err) CLV_USE_RESULT;
void rpc_pool_done(rpc_pool *pool);                  /* runs what waits, then joins */
bool rpc_pool_put(rpc_pool *pool, clv_rpc_job *job); /* false when the queue is full */

/* ---- runtime.c ------------------------------------------------------------------------------- */

struct clv_rpc_runtime {
  grpc_completion_queue *queue;
  grpc_completion_queue *admissions; /* new calls; never polls */
  pthread_t admitter;
  bool admitting;
  pthread_t threads[64]; /* the first leads, the others help */
  unsigned n_threads;
  atomic_uint spin_us;
  atomic_uint busy;                       /* open clv_rpc_busy_enter brackets */
  atomic_uint helping;                    /* helpers at the queue right now */
  atomic_uint_fast64_t handling_since_ns; /* of the leader's current event, 0 if none */
  pthread_mutex_t lock;                   /* guards the rest */
  pthread_cond_t wake;                    /* of helpers */
  unsigned wanted;                        /* helpers called and not yet come */
  bool stop;
  clv_rpc_stream *streams;
  rpc_pool senders; /* for clv_rpc_stream_defer */
  bool sending;
};

/* Start a batch whose end runs tag->run(tag, ok) on a queue thread. A refusal by C-core is a
 * mistake of this folder or a call that is over; the caller undoes its book-keeping. */
bool rpc_start(grpc_call *call, const grpc_op *ops, size_t n, rpc_tag *tag);

/* Tell the thread sanitizer, which cannot see into gRPC, that what happened before `it` was handed
 * over happened before it was taken: a tag, with its event; what a callback is given, by that. */
void rpc_tsan_release(void *it);
void rpc_tsan_acquire(void *it);

/* End every stream that `owner` (a channel or a server) opened and that still lives. */
void rpc_cancel_owned(clv_rpc_runtime *runtime, const void *owner, clv_code code, const char *text);

gpr_timespec rpc_deadline(unsigned ms);
gpr_timespec rpc_forever(void);

/* A gRPC status as one of our codes. */
clv_code rpc_code(grpc_status_code status);
grpc_status_code rpc_status(clv_code code); /* what is ours alone becomes one of its */

/* ---- bytes.c --------------------------------------------------------------------------------- */

/* The pieces of `buffer`, borrowed from it, in *ret_pieces: `fixed` if they fit, else memory in
 * *ret_heap for the caller to free. CLV_UNIMPLEMENTED for a compressed message. */
clv_code rpc_pieces(grpc_byte_buffer *buffer, clv_iov fixed[RPC_MAX_PIECES],
                    const clv_iov **ret_pieces, size_t *ret_n, void **ret_heap,
                    clv_err *err) CLV_USE_RESULT;

/* Printable text of at most RPC_TEXT-1 bytes: what is not printable ASCII becomes '?'. */
void rpc_text(char dst[RPC_TEXT], const void *src, size_t len);

/* ---- credentials.c --------------------------------------------------------------------------- */

/* The PEM text of one side, owned. */
typedef struct rpc_pem {
  char *ca, *cert, *key;
} rpc_pem;

clv_code rpc_pem_init(rpc_pem *dst, const clv_rpc_pem *src, clv_err *err) CLV_USE_RESULT;
void rpc_pem_done(rpc_pem *pem); /* wipes the key */

/* CLV_INVALID unless gRPC can build a TLS server from it: readable, and key and leaf match. */
clv_code rpc_pem_check(const clv_rpc_pem *pem, clv_err *err) CLV_USE_RESULT;

/* What a client found out about the server's identity, kept for the error text. */
typedef struct rpc_identity rpc_identity;

/* Client credentials that accept only a server whose chain ends in pem->ca and whose one URI is
 * `expected_uri`. *ret_identity is counted: drop it with rpc_identity_unref. */
clv_code rpc_client_credentials(const rpc_pem *pem, const char *expected_uri,
                                grpc_channel_credentials **ret_credentials,
                                rpc_identity **ret_identity, clv_err *err) CLV_USE_RESULT;
void rpc_identity_unref(rpc_identity *identity);

/* CLV_UNAUTHENTICATED and the reason if the last handshake failed over the identity. */
clv_code rpc_identity_result(rpc_identity *identity, clv_err *err) CLV_USE_RESULT;
void rpc_identity_reset(rpc_identity *identity);
bool rpc_identity_passed(rpc_identity *identity); /* the expected server was seen since the reset */

/* Certificates of a server that can be exchanged while it runs. */
typedef struct rpc_server_certs {
  pthread_mutex_t lock;
  rpc_pem pem;
  bool changed; /* since gRPC last fetched them */
} rpc_server_certs;

clv_code rpc_server_certs_init(rpc_server_certs *certs, const clv_rpc_pem *pem,
                               clv_err *err) CLV_USE_RESULT;
void rpc_server_certs_done(rpc_server_certs *certs);
clv_code rpc_server_certs_swap(rpc_server_certs *certs, const clv_rpc_pem *pem,
                               clv_err *err) CLV_USE_RESULT;

/* `certs` must outlive the credentials. NULL when gRPC refuses. */
grpc_server_credentials *rpc_server_credentials(rpc_server_certs *certs);

/* The one URI of the peer of `call`, to be freed, or CLV_UNAUTHENTICATED. */
clv_code rpc_peer_uri(grpc_call *call, char **ret_uri, clv_err *err) CLV_USE_RESULT;

/* ---- args.c ---------------------------------------------------------------------------------- */

enum { RPC_MAX_ARGS = 32 };

typedef struct rpc_args {
  grpc_arg arg[RPC_MAX_ARGS];
  size_t n;
} rpc_args;

/* Fill in the defaults of `limits`, or CLV_INVALID. */
clv_code rpc_limits_check(clv_rpc_limits *limits, clv_err *err) CLV_USE_RESULT;

enum { RPC_MIN_PEER_TIMEOUT_MS = 1000 };

/* gRPC's words for the loss of a connection become ours; false: others, which stand. */
bool rpc_translate_end_text(unsigned peer_timeout_ms, char text[RPC_TEXT]);

/* What both sides set: sizes, keepalive, flow control, no compression. */
void rpc_args_common(rpc_args *args, const clv_rpc_limits *limits);
/* One account of memory for a server; near its end gRPC takes no new connections and resets
 * streams. */
void rpc_args_quota(rpc_args *args, grpc_resource_quota *quota);
void rpc_args_client(rpc_args *args);
void rpc_args_server(rpc_args *args, const clv_rpc_server_options *options); /* limits filled in */

/* ---- stream.c -------------------------------------------------------------------------------- */

/* A stream on `call`, which it takes over; one reference, the library's. */
clv_code rpc_stream_new(clv_rpc_runtime *runtime, const void *owner, grpc_call *call, bool server,
                        size_t max_message, clv_rpc_stream **ret_stream,
                        clv_err *err) CLV_USE_RESULT;

void rpc_stream_start_client(clv_rpc_stream *stream, const clv_rpc_stream_events *events);

/* Server: `took(arg, bytes)` is called for each message, and `ended(arg, stream ended by the peer)`
 * once, after on_closed. Starts listening for the end of the call; sends wait until _accept or
 * _refuse. */
void rpc_stream_start_server(clv_rpc_stream *stream, void (*took)(void *arg, size_t bytes),
                             void (*ended)(void *arg, bool cancelled), void *arg);
void rpc_stream_accept(clv_rpc_stream *stream, const clv_rpc_stream_events *events);
void rpc_stream_refuse(clv_rpc_stream *stream, clv_code code, const char *text);

/* ---- peers.c --------------------------------------------------------------------------------- */

/* What is known of one identity at a server; entries live while they have calls or a record. */
typedef struct rpc_peer_entry rpc_peer_entry;

typedef struct rpc_peers {
  pthread_mutex_t lock;
  rpc_peer_entry *bucket[64];
  unsigned n_entries;
  unsigned max_calls, max_cancels_per_second, cut_ms, max_handling, max_waiting;
  uint64_t cut_peers;
} rpc_peers;

void rpc_peers_init(rpc_peers *peers, const clv_rpc_server_options *options);
void rpc_peers_done(rpc_peers *peers);

typedef enum rpc_refusal {
  RPC_REPLY,      /* answer with a status */
  RPC_DISCONNECT, /* shut the connection as well: this call went over the rate */
  RPC_DROP,       /* one of a flood: not worth an answer */
} rpc_refusal;

/* Count one more call of `uri`, or CLV_EXHAUSTED (too many at once, or cut off) and in *ret_refusal
 * how to refuse it. */
clv_code rpc_peers_begin_call(rpc_peers *peers, const char *uri, rpc_peer_entry **ret_entry,
                              rpc_refusal *ret_refusal, clv_err *err) CLV_USE_RESULT;

/* A call ended. True if its peer has now cancelled so many that its connection is to be cut. */
bool rpc_peers_end_call(rpc_peers *peers, rpc_peer_entry *entry, bool cancelled_by_peer);

typedef enum rpc_admission {
  RPC_NOW,   /* put it before the handler threads */
  RPC_LATER, /* it waits, for rpc_peers_handled */
  RPC_NEVER, /* too many wait */
} rpc_admission;

rpc_admission rpc_peers_handle(rpc_peers *peers, rpc_peer_entry *entry, clv_rpc_job *job);
/* A request has been handled, and its call has not ended: the next one of the identity, or NULL. */
clv_rpc_job *rpc_peers_handled(rpc_peers *peers, rpc_peer_entry *entry);

/* Shut the TCP connection whose far end is `address` ("ipv4:10.0.0.7:41212"). */
void rpc_cut_connection(const char *address);
unsigned rpc_count_connections(unsigned port); /* to a port of ours */

#endif
