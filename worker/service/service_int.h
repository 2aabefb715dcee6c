/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLEAVE_SERVICE_INT_H
#define CLEAVE_SERVICE_INT_H

#include <pthread.h>

#include "common/engine/engine.h"
#include "worker/service/service.h"
#include "worker/store/store.h"

enum { MAX_SESSIONS = 256, MAX_PEER_LINKS = 16 };

/* Why a session was not opened, as far as codes tell. */
typedef enum clv_refusal { REFUSED_DRAINING, REFUSED_EXISTS, REFUSED_QUOTA, REFUSALS } clv_refusal;

typedef struct clv_session clv_session;

/* What went wrong last. */
typedef struct clv_last_error {
  char text[CLV_WIRE_TEXT + 1]; /* printable ASCII */
  uint64_t at_ns;               /* monotonic; 0: nothing did */
} clv_last_error;

/* A link to or from another worker, under its name in worker.yaml. */
typedef struct clv_peer_link {
  char name[CLV_WIRE_NAME + 1];
  clv_link *link;
} clv_peer_link;

/* What sessions have done; numbers that only grow. */
typedef struct clv_work_counts {
  uint64_t forwards, backwards, steps, compute_ns, idle_ns, share_ns, wakes;
  uint64_t replays, not_recorded;                /* of clv_module_counts */
  uint64_t device_bytes, peer_bytes, host_bytes; /* see clv_module_counts */
} clv_work_counts;

typedef struct clv_edge_counts {
  uint64_t in, out; /* bytes */
  uint64_t messages_in, messages_out;
} clv_edge_counts;

typedef struct clv_edge_total {
  char *peer; /* "": the master */
  clv_edge_counts ended;
} clv_edge_total;

/* What a reload may change. */
typedef struct clv_worker_settings {
  int refs;
  const clv_worker_config *config;
  clv_worker_config *owned_config; /* the same, or NULL: somebody else's */
  clv_wire_limits limits;
} clv_worker_settings;

enum { MAX_CPU_DEVICES = 8, MAX_OTHER_DEVICES = 16, MAX_DEVICES = 25 };

/* An identity that is or was in `allow`. */
typedef struct clv_member {
  char *identity;
  clv_account *account;
  size_t tenant;             /* of the scheduler */
  uint64_t credit;           /* what its last Hello grants; under the service's lock, as the next */
  clv_last_error last_error; /* that concerned it */
  clv_work_counts ended;     /* of its sessions that have ended */
} clv_member;

struct clv_session {
  clv_service *service;
  clv_worker_settings *settings; /* under which it was opened */
  int refs;                      /* the table, every link, every handler at work on it */
  clv_wire_id id;
  uint64_t epoch, opened_ms;
  uint64_t send_credit;                /* towards the owner, at first */
  clv_member *member;                  /* the owner */
  clv_account *on_device[MAX_DEVICES]; /* its part of each device's memory */
  char owner[CLV_WIRE_URI + 1], name[CLV_WIRE_NAME + 1];
  char **peers; /* identities that may attach */
  uint32_t n_peers;
  clv_wire_limits granted;
  uint32_t reference_lease_ms;
  unsigned threads; /* of its largest module; under the service's lock */

  pthread_mutex_t loading; /* held through a LoadModule, before `lock` */
  pthread_mutex_t lock;    /* links, node creation */
  clv_pool *pool;
  clv_share *share;
  clv_session_node *node; /* made by the first LoadModule */
  pthread_t compute;
  bool has_compute_thread;
  clv_link *master;
  clv_peer_link out[MAX_PEER_LINKS], in[MAX_PEER_LINKS];
  uint32_t n_out, n_in;
  clv_last_error last_error; /* beside what its node has told; under lock */
  bool
      is_closing; /* the master's link has ended, to be closed by the next tick; or it is being closed */
  clv_work_counts
      counts_in_totals; /* of what follows the service's totals know, as the next; under its lock */
  clv_edge_counts *edges_in_totals;
  char abort_text[CLV_ERR_TEXT];
  bool
      eviction_pending; /* somebody in it is not allowed any more; by clv_service_tick alone, as the next */
  uint64_t abort_sent_ms;                     /* when its master heard that it ends; 0: not yet */
  uint64_t eviction_began_ms, eviction_steps; /* since when, and what it had stepped then */
};

typedef struct clv_device {
  char name[24];
  const clv_backend *backend;
  clv_account *account; /* of its modules' memory */
  size_t total;         /* bytes of memory of its own; 0: it has none */
} clv_device;

struct clv_service {
  const clv_worker_config *config; /* of the start: for what a reload does not change */
  clv_worker_settings *settings;   /* newest; under lock */
  clv_rpc_runtime *runtime;
  clv_rpc_server *server;
  clv_rpc_pem pem; /* for dialling peers; owned copies */
  clv_wire_id incarnation;
  clv_lane_acceptor acceptor;
  uint64_t started_ms;
  uint64_t
      n_refused_without_identity; /* refused callers without an identity, as the audit has told */
  clv_account *total;
  clv_backends others;             /* beside the processor's */
  clv_device devices[MAX_DEVICES]; /* the first is what a module gets that names none */
  uint32_t n_devices;
  clv_member **members; /* the table under lock; a member stays until the service ends */
  size_t n_members;
  clv_fair_scheduler *scheduler;
  clv_epochs *epochs;
  clv_states *states;             /* NULL: there is no state_dir */
  clv_caches *caches;             /* the same */
  clv_bases *bases;               /* of all sessions */
  uint64_t caches_swept_ms;       /* when what had expired last went; by clv_service_tick alone */
  uint64_t cached_in, cached_out; /* bytes of rows put there and read; atomic */
  bool session_freed;             /* a session, since memory was last given back; atomic */
  uint64_t memory_trimmed_ms;     /* when that was; by clv_service_tick alone */
  bool is_draining;
  int64_t certificate_end;
  clv_last_error last_error; /* of anybody */
  pthread_mutex_t lock;      /* the tables, pem, draining, the certificate's end, last errors */
  clv_session *sessions[MAX_SESSIONS];
  uint32_t n_sessions;
  /* For metrics, under lock too. */
  uint64_t reloads, failed_reloads, refused[REFUSALS];
  clv_edge_total **edges; /* of the master and all peers that are or were in worker.yaml */
  size_t n_edges;
};

extern const clv_rpc_unary clv_service_methods[];
extern const size_t clv_service_n_methods;

clv_code clv_service_authorize(void *user, const clv_rpc_peer *peer, const char *method,
                               clv_err *err);
/* A copy of the credentials in use, for dialling: a reload may come in between. */
clv_code clv_service_pem(clv_service *s, clv_rpc_pem *ret, clv_err *err) CLV_USE_RESULT;
/* What *ret held goes, unless there is no memory for the new one. */
clv_code clv_service_copy_pem(const clv_rpc_pem *from, clv_rpc_pem *ret,
                              clv_err *err) CLV_USE_RESULT;
void clv_service_pem_done(clv_rpc_pem *pem);
/* Bytes of tensors that may be on their way to `uri`, as its last Hello said. */
void clv_service_set_credit(clv_service *s, const char *uri, uint64_t bytes);
uint64_t clv_service_credit(clv_service *s, const char *uri);

/* settings.c */
clv_code clv_settings_new(const clv_worker_config *config, clv_worker_settings **ret,
                          clv_err *err) CLV_USE_RESULT;
clv_worker_settings *clv_settings_ref(clv_worker_settings *s);
void clv_settings_unref(clv_worker_settings *s); /* NULL is allowed */
void clv_settings_unrefp(clv_worker_settings **s);
clv_worker_settings *clv_service_settings(clv_service *s); /* the newest, with a reference */
/* Its entry of `allow`, or NULL. */
const clv_allow_spec *clv_settings_allowed(const clv_worker_settings *s, const char *uri);
/* Under the service's lock, all of these. NULL: was never there. */
clv_member *clv_service_member(clv_service *s, const char *uri);
clv_edge_total *clv_service_edge(clv_service *s, const char *peer);
/* Members and edges for all that `c` names; what cannot fail follows, when all that can is done. */
clv_code clv_settings_prepare(clv_service *s, const clv_worker_config *c,
                              clv_err *err) CLV_USE_RESULT;
void clv_settings_swap(clv_service *v, clv_worker_settings *next); /* takes the reference */
void clv_settings_done(clv_service *s);

/* eviction.c */
/* Sessions in which somebody is not allowed any more end at a step boundary, or in a minute. */
void clv_service_evict(clv_service *s);

/* devices.c */
clv_code clv_service_open_devices(clv_service *s, clv_err *err) CLV_USE_RESULT;
void clv_service_close_devices(clv_service *s);
clv_code clv_service_find_device(const clv_service *s, const char *name, const clv_device **ret,
                                 clv_err *err) CLV_USE_RESULT;
/* Whether devices before number i have another backend than it; cpu and cpu:1 share theirs. */
bool clv_service_is_first_of(const clv_service *s, uint32_t i);

/* quotas.c */
clv_code clv_service_open_accounts(clv_service *s, clv_err *err) CLV_USE_RESULT;
void clv_service_close_accounts(clv_service *s);
uint64_t clv_settings_memory(const clv_worker_settings *at); /* memory_limit; 0: none */
clv_code clv_service_new_identity_account(clv_service *s, clv_account **ret,
                                          clv_err *err) CLV_USE_RESULT;
clv_code clv_service_new_session_account(clv_session *s, clv_account **ret,
                                         clv_err *err) CLV_USE_RESULT;
/* Below the devices' own. */
clv_code clv_service_new_device_accounts(clv_session *s, clv_err *err) CLV_USE_RESULT;
/* Under the service's lock: what identities may use, by the newest settings. */
void clv_service_set_quotas(clv_service *s);

/* sessions.c */
clv_code clv_session_open(clv_service *s, const char *uri, const clv_wire_open_request *request,
                          clv_wire_limits *ret_granted, clv_err *err) CLV_USE_RESULT;
/* The session, with a reference, if `uri` owns it and the epoch is right. A stranger's session and
 * one that does not exist give the same error. */
clv_code clv_session_find(clv_service *s, const clv_wire_id *id, uint64_t epoch, const char *uri,
                          clv_session **ret, clv_err *err) CLV_USE_RESULT;
clv_session *clv_session_ref(clv_session *s);
void clv_session_unref(clv_session *s);
void clv_session_unrefp(clv_session **s);
void clv_session_get_counts(clv_session *s, clv_wire_close_reply *ret);
/* A module of so many threads has been loaded. */
void clv_session_note_threads(clv_session *s, unsigned threads);
/* Out of the table, threads joined, links closed; one audit line. BLOCKS. */
void clv_session_close(clv_session *s, const char *reason);

/* session_links.c */
/* The master hears why its session cannot go on; `place`: who was lost, or "". */
void clv_session_abort(clv_session *s, clv_code code, const char *why, const char *place);
clv_code clv_session_find_link(void *user, const clv_frame *attach, const char *uri, clv_link **ret,
                               clv_err *err);
/* The node learns of all links known so far. Under s->lock. */
void clv_session_set_node_links(clv_session *s);
clv_code clv_session_dial_peer(clv_session *s, const char *name, clv_err *err) CLV_USE_RESULT;

/* snapshot.c */
void clv_session_set_last_error(clv_session *s, const char *fmt, ...) CLV_PRINTF(2, 3);
/* One line in the log, which status shows as the last error of the session and of its owner. */
void clv_session_log_error(clv_session *s, const char *fmt, ...) CLV_PRINTF(2, 3);
/* The session is out of the table, its node still there. */
void clv_session_keep_last_error(clv_session *s, const char *reason);

/* totals.c */
/* Where an array of edges, [CLV_EDGES], has the links with a peer: 0 for the master's (""), 1.. as
 * this worker.yaml lists them, and last those that it does not list any more. */
#define CLV_EDGES(config) (2 + (config)->n_peers)
size_t clv_edge_index(const clv_worker_config *c, const char *peer);
clv_refusal clv_refusal_of(clv_code code);
clv_code clv_session_count_totals_init(clv_session *s, clv_err *err) CLV_USE_RESULT;
/* Under the service's lock: the totals know all that the session has done so far. */
void clv_session_count_totals(clv_session *s);
/* The same added to what is there: *w, and edges [CLV_EDGES(c)]. */
void clv_session_add_work(clv_session *s, const clv_worker_config *c, clv_work_counts *w,
                          clv_edge_counts *edges);

/* artifact.c: the module that was made of the message begins with its artifact. backend: the
 * device's, of which the module's is a branch. */
clv_code clv_session_load_artifact(clv_session *s, const clv_wire_load_request *request,
                                   const clv_backend *backend, const clv_cancel_hook *waiter,
                                   clv_module *module, clv_err *err) CLV_USE_RESULT;

/* load_module.c */
/* The module of the message, charged to the pool; the message may go before it. node: where modules
 * are that it may be tied to; NULL: there is none yet. */
clv_code clv_load_make_module(const clv_wire_load_request *request, const clv_device *device,
                              clv_session_node *node, clv_pool *pool, const clv_cancel_hook *waiter,
                              clv_module **ret, clv_err *err) CLV_USE_RESULT;
/* Fills *reply, whose names are views into the module. */
clv_code clv_load_describe_module(clv_module *module, const clv_cancel_hook *waiter,
                                  clv_wire_load_reply *reply, clv_err *err) CLV_USE_RESULT;

/* states.c: what the node of the session keeps files with; zeroed without a state_dir. */
clv_state_files clv_session_files(clv_session *s);

/* caches.c: the same for caches. */
clv_row_caches clv_session_caches(clv_session *s);
/* The method Cached; whether it has caches for this identity; and what has expired goes. */
clv_code clv_service_on_cached(void *user, const clv_rpc_peer *peer, const clv_iov *request,
                               size_t n, clv_bytes *reply, clv_err *err) CLV_USE_RESULT;
bool clv_service_has_caches_for(const clv_service *s, const clv_worker_settings *now,
                                const char *uri);
void clv_service_evict_caches(clv_service *s);

/* load.c */
/* gone: atomic, true when the caller has left. *ret: the reply as encoded; of *reply the names are
 * not to be read any more. */
clv_code clv_session_load(clv_session *s, const clv_wire_load_request *request, const bool *gone,
                          clv_wire_load_reply *reply, clv_bytes *ret, clv_err *err) CLV_USE_RESULT;

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
