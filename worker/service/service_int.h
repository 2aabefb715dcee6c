/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLEAVE_SERVICE_INT_H
#define CLEAVE_SERVICE_INT_H

#include <pthread.h>

#include "common/dist/dist.h"
#include "worker/service/service.h"
#include "worker/store/store.h"

enum { MAX_SESSIONS = 256, MAX_PEER_LINKS = 16 };

/* Why a session was not opened, as far as codes tell. */
typedef enum refusal { REFUSED_DRAINING, REFUSED_EXISTS, REFUSED_QUOTA, REFUSALS } refusal;

typedef struct session session;

/* What went wrong last. */
typedef struct last_error {
  char text[CLV_WIRE_TEXT + 1]; /* printable ASCII */
  uint64_t at_ns;               /* monotonic; 0: nothing did */
} last_error;

/* A link to or from another worker, under its name in worker.yaml. */
typedef struct peer_link {
  char name[CLV_WIRE_NAME + 1];
  clv_link *link;
} peer_link;

/* What sessions have done; numbers that only grow. */
typedef struct work_counts {
  uint64_t forwards, backwards, steps, compute_ns, idle_ns, turn_ns;
} work_counts;

typedef struct edge_bytes {
  uint64_t in, out;
} edge_bytes;

struct session {
  clv_service *service;
  int refs; /* the table, every link, every handler at work on it */
  clv_wire_id id;
  uint64_t epoch, opened_ms;
  uint64_t send_credit; /* towards the owner, at first */
  size_t allowed;       /* the owner's entry of `allow` */
  char owner[CLV_WIRE_URI + 1], name[CLV_WIRE_NAME + 1];
  char **peers; /* identities that may attach */
  uint32_t n_peers;
  clv_wire_limits granted;
  uint32_t reference_lease_ms;
  unsigned threads; /* of its largest module; under the service's lock */

  pthread_mutex_t loading; /* held through a LoadModule, before `lock` */
  pthread_mutex_t lock;    /* links, node creation */
  clv_pool *pool;
  clv_seat *seat;
  clv_session_node *node; /* made by the first LoadModule */
  pthread_t compute;
  bool computing;
  clv_link *master;
  peer_link out[MAX_PEER_LINKS], in[MAX_PEER_LINKS];
  uint32_t n_out, n_in;
  last_error last_error; /* beside what its node has told; under lock */
  bool gone; /* the master's link has ended, to be closed by the next tick; or it is being closed */
  work_counts counted; /* of what follows the service's totals know, as the next; under its lock */
  edge_bytes *counted_edges;
  char why[CLV_ERR_TEXT];
};

struct clv_service {
  const clv_worker_config *config;
  clv_rpc_runtime *runtime;
  clv_rpc_server *server;
  clv_rpc_pem pem; /* for dialling peers; owned copies */
  clv_wire_id incarnation;
  clv_wire_limits limits;
  clv_lane_acceptor acceptor;
  uint64_t started_ms;
  uint64_t *credit;  /* [n_allow] what that identity's last Hello grants; under lock */
  uint64_t nameless; /* refused callers without an identity, as the audit has told */
  clv_account *total, **identities; /* [n_allow] */
  clv_turnstile *turnstile;
  clv_epochs *epochs;
  bool freed;          /* a session, since memory was last given back; atomic */
  uint64_t trimmed_ms; /* when that was; by clv_service_tick alone */
  bool draining;
  int64_t certificate_end;
  last_error last_error, *last_errors; /* of anybody; [n_allow] of that identity */
  pthread_mutex_t lock; /* the table, pem, draining, the certificate's end, last_errors */
  session *sessions[MAX_SESSIONS];
  uint32_t n_sessions;
  /* For metrics, under lock too. */
  uint64_t reloads, failed_reloads, refused[REFUSALS];
  work_counts *ended;      /* [n_allow] of sessions that have ended */
  edge_bytes *ended_edges; /* [1 + n_peers] the master's, then the peers' of worker.yaml */
};

extern const clv_rpc_unary clv_service_methods[];
extern const size_t clv_service_n_methods;

clv_code clv_service_authorize(void *user, const clv_rpc_peer *peer, const char *method,
                               clv_err *err);
const clv_allow_spec *clv_service_allowed(const clv_service *s, const char *uri);
/* The index of its entry, which must exist. */
size_t clv_service_allow_index(const clv_service *s, const char *uri);
/* A copy of the credentials in use, for dialling: a reload may come in between. */
clv_code clv_service_pem(clv_service *s, clv_rpc_pem *ret, clv_err *err) CLV_USE_RESULT;
void clv_service_pem_done(clv_rpc_pem *pem);
/* Bytes of tensors that may be on their way to `uri`, as its last Hello said. */
void clv_service_set_credit(clv_service *s, const char *uri, uint64_t bytes);
uint64_t clv_service_credit(clv_service *s, const char *uri);

/* quotas.c */
clv_code clv_service_open_accounts(clv_service *s, clv_err *err) CLV_USE_RESULT;
void clv_service_close_accounts(clv_service *s);
uint64_t clv_service_memory(const clv_service *s); /* memory_limit; 0: none */
clv_code clv_service_new_session_account(clv_service *s, size_t identity, clv_account **ret,
                                         clv_err *err) CLV_USE_RESULT;

/* sessions.c */
clv_code clv_session_open(clv_service *s, const char *uri, const clv_wire_open_request *request,
                          clv_wire_limits *ret_granted, clv_err *err) CLV_USE_RESULT;
/* The session, with a reference, if `uri` owns it and the epoch is right. A stranger's session and
 * one that does not exist give the same error. */
clv_code clv_session_find(clv_service *s, const clv_wire_id *id, uint64_t epoch, const char *uri,
                          session **ret, clv_err *err) CLV_USE_RESULT;
session *clv_session_ref(session *s);
void clv_session_unref(session *s);
void clv_session_unrefp(session **s);
void clv_session_counts(session *s, clv_wire_close_reply *ret);
/* A module of so many threads has been loaded. */
void clv_session_uses(session *s, unsigned threads);
/* Out of the table, threads joined, links closed; one audit line. BLOCKS. */
void clv_session_close(session *s, const char *reason);

/* session_links.c */
clv_code clv_session_find_link(void *user, const clv_frame *attach, const char *uri, clv_link **ret,
                               clv_err *err);
/* The node learns of all links known so far. Under s->lock. */
void clv_session_links(session *s);
clv_code clv_session_dial_peer(session *s, const char *name, clv_err *err) CLV_USE_RESULT;

/* snapshot.c */
void clv_session_set_last_error(session *s, const char *fmt, ...) CLV_PRINTF(2, 3);
/* One line in the log, which status shows as the last error of the session and of its owner. */
void clv_session_log_error(session *s, const char *fmt, ...) CLV_PRINTF(2, 3);
/* The session is out of the table, its node still there. */
void clv_session_keep_last_error(session *s, const char *reason);

/* totals.c */
/* Where an array of edges has the links with a peer: 0 for the master's, 1.. as worker.yaml lists
 * them. */
size_t clv_edge_of(const clv_worker_config *c, const char *peer);
refusal clv_refusal_of(clv_code code);
clv_code clv_totals_init(clv_service *s, clv_err *err) CLV_USE_RESULT;
void clv_totals_done(clv_service *s);
clv_code clv_session_count_totals_init(session *s, clv_err *err) CLV_USE_RESULT;
/* Under the service's lock: the totals know all that the session has done so far. */
void clv_session_count_totals(session *s);
/* The same added to what is there: *w, and edges [1 + n_peers]. */
void clv_session_add_work(session *s, work_counts *w, edge_bytes *edges);

/* load.c */
/* gone: atomic, true when the caller has left. */
clv_code clv_session_load(session *s, const clv_wire_load_request *request, const bool *gone,
                          clv_wire_load_reply *reply, clv_err *err) CLV_USE_RESULT;

/* snapshot.c: looking on */
/* Everything that is counted, at one moment: of the worker, of each session, of its modules and
 * links. Status answers with it, and whoever else wants numbers takes them from here. */
typedef struct clv_service_snapshot {
  clv_wire_status_reply status; /* what Status would say; its texts live as long as the snapshot */
  clv_rpc_server_counts calls;
  clv_tls_handshakes callers, peers;  /* with those who dialled this worker; whom it dialled */
  struct clv_snapshot_memory *memory; /* private */
} clv_service_snapshot;

/* viewer: whose eyes it is for: an observer's see all sessions, others' their own; NULL sees all.
 * only: that session, or NULL. Any thread but rpc's queue threads. Asks links for their round trip
 * as well, for the next snapshot to show. */
clv_code clv_service_snapshot_take(clv_service *s, const char *viewer, const clv_wire_id *only,
                                   clv_service_snapshot *ret, clv_err *err) CLV_USE_RESULT;
void clv_service_snapshot_done(clv_service_snapshot *snapshot); /* for CLV_AUTO; {0} is allowed */

#endif
