/* SPDX-License-Identifier: Apache-2.0
 *
 * Declarations shared by the files of this folder. C-core returns a `rpc_tag` from a completion
 * queue for each finished batch; the tag is embedded in the object that the batch belongs to.
 *
 * Locks do not nest. None is held over a callback, or over a call into gRPC that may release
 * slices.
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
  RPC_TEXT = 256,      /* bytes of a text sent to or received from a peer, NUL included */
  RPC_MAX_PIECES = 32, /* pieces of a received message that need no allocation */
  RPC_MAX_MESSAGE = 1 << 30,
};

/* Tag of a batch. `ok` is false when the operation failed; for receives, when the call is over. */
typedef struct rpc_tag {
  void (*run)(struct rpc_tag *tag, bool ok);
} rpc_tag;

#define RPC_OWNER(ptr, type, field) ((type *)(void *)((char *)(ptr)-offsetof(type, field)))

/* ---- declarations of handlers.c -------------------------------------------------------------- */

/* Thread pool with a bounded queue of jobs. Runs unary handlers and deferred sends. */
typedef struct rpc_pool {
  pthread_mutex_t lock;
  pthread_cond_t wake_threads;
  clv_rpc_job *first_job, *last_job;
  unsigned n_waiting_jobs, max_waiting_jobs, n_threads;
  bool is_stopping;
  pthread_t threads[64];
} rpc_pool;

clv_code rpc_pool_init(rpc_pool *pool, unsigned n_threads, unsigned max_waiting,
                       clv_err *err) CLV_USE_RESULT;
void rpc_pool_stop(rpc_pool *pool); /* runs the queued jobs, then joins the threads */
/* false: the queue is full, or the pool is ending */
bool rpc_pool_add_job(rpc_pool *pool, clv_rpc_job *job);

/* ---- declarations of runtime.c --------------------------------------------------------------- */

struct clv_rpc_runtime {
  grpc_completion_queue *queue;
  grpc_completion_queue *admission_queue; /* queue of new calls; its thread does not poll sockets */
  pthread_t admission_thread;
  bool has_admission_thread;
  pthread_t threads[64]; /* threads[0] leads, the others help */
  unsigned n_threads;
  atomic_uint spin_us;
  /* computations between clv_rpc_begin_computation and clv_rpc_end_computation */
  atomic_uint n_computations;
  atomic_uint n_active_helpers;           /* helpers that read events from the queue now */
  atomic_uint_fast64_t handling_since_ns; /* start of the leader's current callback; 0: none runs */
  pthread_mutex_t lock;                   /* guards the fields below */
  pthread_cond_t wake_helpers;            /* wakes helpers */
  unsigned n_helpers_called;              /* helpers woken that have not started yet */
  bool is_stopping;
  clv_rpc_stream *streams;
  rpc_pool sender_pool; /* threads that run the jobs of clv_rpc_stream_defer */
  bool is_sender_pool_started;
  clv_sha256 checked_pem_digest; /* digest of the text that rpc_pem_check_once checked last */
  bool has_checked_pem;
};

/* Starts a batch whose end runs tag->run(tag, ok) on a queue thread. False: C-core refused it,
 * because of a bug in this folder or because the call is over. The caller reverts its
 * bookkeeping. */
bool rpc_start_batch(grpc_call *call, const grpc_op *ops, size_t n, rpc_tag *tag);

/* Show the order of memory accesses to the thread sanitizer, which cannot see into gRPC. Call
 * rpc_tsan_release before gRPC gets `it` (a tag or a callback's argument), and rpc_tsan_acquire
 * when gRPC returns it. */
void rpc_tsan_release(void *it);
void rpc_tsan_acquire(void *it);

/* Cancels every open stream of `owner` (a channel or a server; NULL: of all). */
void rpc_cancel_streams_of(clv_rpc_runtime *runtime, const void *owner, clv_code code,
                           const char *text);

gpr_timespec rpc_deadline_in_ms(unsigned ms);
gpr_timespec rpc_no_deadline(void);

/* Converts a gRPC status to a clv_code. */
clv_code rpc_code_of_status(grpc_status_code status);
/* Converts a clv_code to a gRPC status. Codes that gRPC lacks become a similar one. */
grpc_status_code rpc_status_of_code(clv_code code);

/* ---- declarations of bytes.c ----------------------------------------------------------------- */

/* Returns the pieces of `buffer` in *ret_pieces. They point into the buffer. The array of pieces is
 * `fixed` if they fit there, else *ret_heap, which the caller frees. CLV_UNIMPLEMENTED: the message
 * is compressed. */
clv_code rpc_buffer_list_pieces(grpc_byte_buffer *buffer, clv_iov fixed[RPC_MAX_PIECES],
                                const clv_iov **ret_pieces, size_t *ret_n, void **ret_heap,
                                clv_err *err) CLV_USE_RESULT;

/* Copies at most RPC_TEXT - 1 bytes of text. Bytes that are not printable ASCII become '?'. */
void rpc_copy_printable(char dst[RPC_TEXT], const void *src, size_t len);

/* ---- declarations of credentials.c ----------------------------------------------------------- */

/* PEM text of one side; owns its strings. */
typedef struct rpc_pem {
  char *ca, *cert, *key;
} rpc_pem;

clv_code rpc_pem_init(rpc_pem *dst, const clv_rpc_pem *src, clv_err *err) CLV_USE_RESULT;
void rpc_pem_clear(rpc_pem *pem); /* wipes the key */

/* Checks that gRPC can make a TLS server from the PEM text. CLV_INVALID: it is not readable, or the
 * key does not match the leaf certificate. */
clv_code rpc_pem_check(const clv_rpc_pem *pem, clv_err *err) CLV_USE_RESULT;

/* As rpc_pem_check, but accepts the text that the last successful call had without another check. A
 * process mostly has one text for all its channels, and a check takes milliseconds. */
clv_code rpc_pem_check_once(clv_rpc_runtime *runtime, const rpc_pem *pem,
                            clv_err *err) CLV_USE_RESULT;

/* Result of the check that a client makes of the server's identity in a handshake, for the error
 * text. */
typedef struct rpc_identity rpc_identity;

/* Makes client credentials that accept a server only if its chain ends in pem->ca and its only URI
 * is `expected_uri`. *ret_identity is reference-counted; release it with rpc_identity_unref. */
clv_code rpc_client_credentials(const rpc_pem *pem, const char *expected_uri,
                                grpc_channel_credentials **ret_credentials,
                                rpc_identity **ret_identity, clv_err *err) CLV_USE_RESULT;
void rpc_identity_unref(rpc_identity *identity);

/* Fails with CLV_UNAUTHENTICATED and the reason if the last handshake failed because of the
 * server's identity. */
clv_code rpc_identity_check(rpc_identity *identity, clv_err *err) CLV_USE_RESULT;
void rpc_identity_reset(rpc_identity *identity);
/* True if the expected server has connected since rpc_identity_reset. */
bool rpc_identity_is_proved(rpc_identity *identity);

/* Certificates of a server. They can be replaced while it runs. */
typedef struct rpc_server_certs {
  pthread_mutex_t lock;
  rpc_pem pem;
  bool needs_fetch; /* gRPC has not fetched the present `pem` yet */
} rpc_server_certs;

clv_code rpc_server_certs_init(rpc_server_certs *certs, const clv_rpc_pem *pem,
                               clv_err *err) CLV_USE_RESULT;
void rpc_server_certs_clear(rpc_server_certs *certs);
clv_code rpc_server_certs_replace(rpc_server_certs *certs, const clv_rpc_pem *pem,
                                  clv_err *err) CLV_USE_RESULT;

/* Makes server credentials. `certs` must outlive them. NULL: gRPC refused. */
grpc_server_credentials *rpc_server_credentials(rpc_server_certs *certs);

/* Returns the only URI of the peer of `call`; the caller frees it. CLV_UNAUTHENTICATED: no or
 * several URIs. */
clv_code rpc_peer_uri(grpc_call *call, char **ret_uri, clv_err *err) CLV_USE_RESULT;

/* ---- declarations of args.c ------------------------------------------------------------------ */

enum { RPC_MAX_ARGS = 32 };

typedef struct rpc_args {
  grpc_arg args[RPC_MAX_ARGS];
  size_t n;
} rpc_args;

/* Fills in the defaults of `limits`. CLV_INVALID: a value is out of range. */
clv_code rpc_limits_fill_and_check(clv_rpc_limits *limits, clv_err *err) CLV_USE_RESULT;

enum { RPC_MIN_PEER_TIMEOUT_MS = 1000 };

/* Replaces gRPC's text for a lost connection by one for users. False: `text` is about something
 * else, and is not changed. */
bool rpc_translate_end_text(unsigned peer_timeout_ms, char text[RPC_TEXT]);

/* Adds the arguments of both sides: sizes, keepalive, flow control, no compression. */
void rpc_args_add_common(rpc_args *args, const clv_rpc_limits *limits);
/* Adds the memory quota of a server. Near its limit gRPC accepts no new connections and resets
 * streams. */
void rpc_args_add_quota(rpc_args *args, grpc_resource_quota *quota);
void rpc_args_add_client(rpc_args *args);
/* Adds the arguments of a server. options->limits must have its defaults filled in. */
void rpc_args_add_server(rpc_args *args, const clv_rpc_server_options *options);

/* ---- declarations of stream.c ---------------------------------------------------------------- */

/* Makes a stream on `call` and takes over the call. The stream has one reference, which belongs to
 * this library until on_closed. */
clv_code rpc_stream_new(clv_rpc_runtime *runtime, const void *owner, grpc_call *call, bool server,
                        size_t max_message, clv_rpc_stream **ret_stream,
                        clv_err *err) CLV_USE_RESULT;

void rpc_stream_start_client(clv_rpc_stream *stream, const clv_rpc_stream_events *events);

/* Starts a server stream: listens for the end of the call. Calls on_message_received for each
 * received message of `bytes`, and on_stream_ended once, after on_closed. cancelled: the peer has
 * ended the stream. Sends wait until rpc_stream_accept or rpc_stream_refuse. */
void rpc_stream_start_server(clv_rpc_stream *stream,
                             void (*on_message_received)(void *arg, size_t bytes),
                             void (*on_stream_ended)(void *arg, bool cancelled), void *arg);
void rpc_stream_accept(clv_rpc_stream *stream, const clv_rpc_stream_events *events);
void rpc_stream_refuse(clv_rpc_stream *stream, clv_code code, const char *text);

/* ---- declarations of peers.c ----------------------------------------------------------------- */

/* Record of one identity at a server. Kept while the identity has calls, has wasted calls in the
 * current second or is refused for wasted calls. */
typedef struct rpc_peer_entry rpc_peer_entry;

typedef struct rpc_peers {
  pthread_mutex_t lock;
  rpc_peer_entry *buckets[64];
  unsigned n_entries;
  unsigned max_calls_per_peer, max_cancels_per_second, cut_off_ms, max_in_handlers_per_peer,
      max_waiting_per_peer;
  uint64_t n_cut_peers;
} rpc_peers;

void rpc_peers_init(rpc_peers *peers, const clv_rpc_server_options *options);
void rpc_peers_clear(rpc_peers *peers);

typedef enum rpc_refusal {
  RPC_REFUSAL_WITH_STATUS, /* the server answers with a status */
  /* the server answers, and closes the connection, because this call exceeded the rate */
  RPC_REFUSAL_WITH_DISCONNECT,
  /* the server cancels the call without an answer, because the identity exceeds the rate */
  RPC_REFUSAL_WITHOUT_ANSWER,
} rpc_refusal;

/* Counts one more call of `uri`. CLV_EXHAUSTED: the identity has too many calls at once, or is
 * refused for wasted calls; *ret_refusal tells how to refuse the call. A wasted call is one that
 * the peer cancelled or that was refused. */
clv_code rpc_peers_begin_call(rpc_peers *peers, const char *uri, rpc_peer_entry **ret_entry,
                              rpc_refusal *ret_refusal, clv_err *err) CLV_USE_RESULT;

/* Counts the end of a call. True: the peer has cancelled so many calls that its connection is to be
 * closed. */
bool rpc_peers_end_call(rpc_peers *peers, rpc_peer_entry *entry, bool cancelled_by_peer);

typedef enum rpc_admission {
  RPC_REQUEST_ADMITTED, /* the caller passes the request to the handler threads */
  RPC_REQUEST_QUEUED,   /* the request waits; rpc_peers_end_handling returns it */
  RPC_REQUEST_REFUSED,  /* the caller refuses the request, because too many wait */
} rpc_admission;

rpc_admission rpc_peers_begin_handling(rpc_peers *peers, rpc_peer_entry *entry, clv_rpc_job *job);
/* Counts the end of a request's handling, before its call ends. Returns the next waiting request of
 * the identity; NULL: none. */
clv_rpc_job *rpc_peers_end_handling(rpc_peers *peers, rpc_peer_entry *entry);

enum { RPC_ADDRESS_BYTES = 80 }; /* bytes of a peer address as text, its final zero included */
/* Writes the peer address of `fd` as gRPC spells it. False: `fd` is no connected IP socket. */
bool rpc_read_peer_address(int fd, char *text, size_t len);
/* Lists descriptors of the process in ret_fds, [max]. Returns how many. */
size_t rpc_list_fds(int *ret_fds, size_t max);
/* Makes children of this process close its connections to a peer that it has dialled. address: as
 * gRPC spells it; NULL is allowed. (fork.c) */
void rpc_fork_record_dialled_peer(const char *address);

/* Closes the TCP connection whose peer has the address `address` ("ipv4:10.0.0.7:41212"). */
void rpc_cut_connection(const char *address);
unsigned rpc_count_connections(unsigned port); /* connections accepted on this port */

#endif
