/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLEAVE_SERVICE_INT_H
#define CLEAVE_SERVICE_INT_H

#include <pthread.h>

#include "common/engine/engine.h"
#include "worker/service/service.h"
#include "worker/store/store.h"

enum { MAX_SESSIONS = 256, MAX_PEER_LINKS = 16 };

/* Reason why a session was refused, derived from the error code. */
typedef enum clv_refusal { REFUSED_DRAINING, REFUSED_EXISTS, REFUSED_QUOTA, REFUSALS } clv_refusal;

typedef struct clv_session clv_session;

/* The last error of a session, an identity or the worker. */
typedef struct clv_last_error {
  char text[CLV_WIRE_TEXT + 1]; /* printable ASCII */
  uint64_t at_ns;               /* monotonic time; 0: no error */
} clv_last_error;

/* A link to or from another worker, with its name in worker.yaml. */
typedef struct clv_peer_link {
  char name[CLV_WIRE_NAME + 1];
  clv_link *link;
  bool is_revoked; /* the certificate that the peer dialled with is revoked */
} clv_peer_link;

/* Counters of the work done for sessions. They only grow. */
typedef struct clv_work_counts {
  uint64_t forwards, backwards, steps, compute_ns, idle_ns, share_ns, wakes;
  /* CUDA graphs that ran again, and work that could not be recorded as one */
  uint64_t replays, not_recorded;
  /* bytes copied between modules within a device, between devices, and through host memory */
  uint64_t device_bytes, peer_bytes, host_bytes;
} clv_work_counts;

/* Bytes and messages on all links to the master, or on all links to one peer. */
typedef struct clv_link_traffic {
  uint64_t in, out; /* bytes received and sent */
  uint64_t messages_in, messages_out;
} clv_link_traffic;

/* Traffic of the links to the master, or to one peer, summed over all ended sessions. */
typedef struct clv_link_traffic_total {
  char *peer; /* name of the peer; "": the master */
  clv_link_traffic ended_counts;
} clv_link_traffic_total;

/* The settings that a reload may change. A reference-counted snapshot. */
typedef struct clv_worker_settings {
  int refs;
  const clv_worker_config *config;
  clv_worker_config *owned_config; /* config, if this snapshot owns it; NULL: owned by the caller */
  clv_wire_limits limits;
} clv_worker_settings;

enum { MAX_CPU_DEVICES = 8, MAX_OTHER_DEVICES = 16, MAX_DEVICES = 25 };

/* An identity that is or was in `allow`. Kept until the service is closed. */
typedef struct clv_member {
  char *identity;
  clv_account *account;
  size_t tenant; /* number of the identity's tenant in the scheduler */
  /* receive window that its last Hello granted, bytes; 0: none. The service's lock guards this
   * field and those below it */
  uint64_t receive_window_bytes;
  uint32_t protocol;            /* protocol of the identity's last Hello; 0: none */
  clv_last_error last_error;    /* last error of a call or session of the identity */
  clv_work_counts ended_counts; /* counters of the ended sessions of the identity */
} clv_member;

struct clv_session {
  clv_service *service;
  clv_worker_settings *settings; /* settings that were the newest when the session was opened */
  /* references held by the table, by each link and by each handler that runs */
  int refs;
  clv_wire_id id;
  uint64_t epoch, opened_ms;
  bool is_only_attempt; /* no later attempt continues the session, as of a program on cleave.h */
  uint64_t send_window_bytes; /* initial send window towards the owner, bytes */
  clv_member *member;         /* identity that opened the session */
  /* account of the session on each device; its parent is the device's account */
  clv_account *device_accounts[MAX_DEVICES];
  uint32_t owner_protocol; /* protocol that the owner spoke when it opened the session */
  char owner[CLV_WIRE_URI + 1], name[CLV_WIRE_NAME + 1];
  char **peers; /* identities of peers that may attach */
  uint32_t n_peers;
  clv_wire_limits granted_limits;
  uint32_t reference_lease_ms;
  /* number of extra connections for large tensors, of the owner's link and of each link dialled to
   * a peer */
  uint32_t n_bulk_lanes;
  /* largest number of threads of a module of the session; under the service's lock */
  unsigned max_module_threads;

  pthread_mutex_t loading_lock; /* held during a LoadModule; taken before `lock` */
  pthread_mutex_t lock;         /* guards the links, is_closing and the creation of the node */
  clv_pool *pool;
  clv_share *share;
  clv_session_node *node; /* NULL before the first LoadModule */
  pthread_t compute_thread;
  bool has_compute_thread;
  clv_link *master_link;
  /* links to other workers: out: this worker dialled them; in: the other worker dialled them */
  clv_peer_link out[MAX_PEER_LINKS], in[MAX_PEER_LINKS];
  uint32_t n_out, n_in;
  /* last error of the session, unless its node has recorded it; under `lock` */
  clv_last_error last_error;
  /* the session is being closed, or the next tick closes it because the master's link has ended */
  bool is_closing;
  /* counts_in_totals: work that the service's totals already include; traffic_in_totals: traffic of
   * links that they include; both under the service's lock */
  clv_work_counts counts_in_totals;
  clv_link_traffic *traffic_in_totals;
  char abort_text[CLV_ERR_TEXT];
  /* an identity of the session is no longer allowed, so the session must end. Only clv_service_tick
   * uses this field and those below it */
  bool eviction_pending;
  uint64_t detached_ms;   /* first time while draining without the master's connection; 0: none */
  uint64_t abort_sent_ms; /* time of the ABORT to the session's master; 0: not sent */
  /* start of the eviction, and the session's step count at that time */
  uint64_t eviction_began_ms, eviction_steps;
};

typedef struct clv_device {
  char name[24];
  const clv_backend *backend;
  clv_account *account; /* account that is charged with the memory of modules */
  size_t memory_bytes;  /* bytes of device memory; 0: the device uses host memory */
} clv_device;

typedef struct clv_state_writer clv_state_writer;

struct clv_service {
  /* configuration at the start, for settings that a reload cannot change */
  const clv_worker_config *config;
  clv_worker_settings *settings; /* newest settings; under `lock` */
  clv_rpc_runtime *runtime;
  clv_rpc_server *server;
  clv_rpc_pem pem; /* credentials for dialling peers; owned copies */
  clv_wire_id incarnation;
  clv_lane_acceptor acceptor;
  uint64_t started_ms;
  /* refused callers without an identity that are logged already */
  uint64_t n_refused_without_identity;
  clv_account *all_sessions_account; /* account of all sessions together */
  clv_backends other_backends;       /* backends other than the processor */
  /* devices of the worker; the first computes the modules that name no device */
  clv_device devices[MAX_DEVICES];
  uint32_t n_devices;
  /* identities that are or were allowed; the table is under `lock`, and its entries are freed with
   * the service */
  clv_member **members;
  size_t n_members;
  clv_fair_scheduler *scheduler;
  clv_epochs *epochs;
  clv_states *state_files; /* files of state; NULL: worker.yaml has no state_dir */
  /* thread that writes the files of state; NULL: worker.yaml has no state_dir */
  clv_state_writer *state_writer;
  clv_caches *caches;                 /* caches of rows; NULL: worker.yaml has no state_dir */
  clv_shared_tensors *shared_tensors; /* shared tensors of all sessions */
  /* time of the last eviction of expired caches; for clv_service_tick alone */
  uint64_t caches_swept_ms;
  /* bytes of the rows that were stored in caches, and that were read from them; atomic */
  uint64_t cache_bytes_stored, cache_bytes_read;
  /* a session was freed since memory was last returned to the system; atomic */
  bool has_freed_session;
  /* time when memory was last returned to the system; for clv_service_tick alone */
  uint64_t memory_returned_ms;
  bool is_draining;
  int64_t certificate_end;
  clv_last_error last_error; /* newest last error of all identities */
  /* protects the tables, pem, is_draining, certificate_end and last errors */
  pthread_mutex_t lock;
  clv_session *sessions[MAX_SESSIONS];
  uint32_t n_sessions;
  /* Counters for metrics; under `lock`. */
  uint64_t reloads, failed_reloads, refused[REFUSALS];
  /* totals of the links to the master and to each peer that is or was in worker.yaml */
  clv_link_traffic_total **traffic_totals;
  size_t n_traffic_totals;
};

extern const clv_rpc_unary clv_service_methods[];
extern const size_t clv_service_n_methods;

clv_code clv_service_authorize(void *user, const clv_rpc_peer *peer, const char *method,
                               clv_err *err);
/* Copies the credentials in use, for dialling, because a reload may replace them meanwhile. */
clv_code clv_service_pem(clv_service *s, clv_rpc_pem *ret, clv_err *err) CLV_USE_RESULT;
/* Records the last Hello of `uri`. */
void clv_service_note_hello(clv_service *s, const char *uri, const clv_wire_about *about);
/* Returns the receive window that the last Hello of `uri` granted: bytes of tensors that may be in
 * flight to it. */
uint64_t clv_service_receive_window(clv_service *s, const char *uri);
/* Returns the protocol of the last Hello of `uri`; without one the newest. */
uint32_t clv_service_protocol(clv_service *s, const char *uri);

/* ---- settings.c ------------------------------------------------------------------------------ */

clv_code clv_settings_new(const clv_worker_config *config, clv_worker_settings **ret,
                          clv_err *err) CLV_USE_RESULT;
clv_worker_settings *clv_settings_ref(clv_worker_settings *s);
void clv_settings_unref(clv_worker_settings *s); /* NULL is allowed */
void clv_settings_unrefp(clv_worker_settings **s);
/* returns the newest settings, with a new reference */
clv_worker_settings *clv_service_settings(clv_service *s);
/* Returns the entry of the identity `uri` in `allow`; NULL: none. */
const clv_allow_spec *clv_settings_allowed(const clv_worker_settings *s, const char *uri);
/* Returns the quota of files of state of an identity in the newest settings; 0: it has none, or is
 * not in `allow`. */
uint64_t clv_service_state_quota(clv_service *v, const char *uri);
/* Return the member of an identity, and the traffic total of a peer's name ("": the master); NULL:
 * none. The caller holds the service's lock. */
clv_member *clv_service_find_member(clv_service *s, const char *uri);
clv_link_traffic_total *clv_service_find_traffic_total(clv_service *s, const char *peer);
/* Makes a member for each identity in `allow` of `c`, and a traffic total for each peer in `c`,
 * unless they exist, so that clv_settings_swap cannot fail. Caller holds the service's lock, unless
 * the service is being opened. */
clv_code clv_settings_prepare(clv_service *s, const clv_worker_config *c,
                              clv_err *err) CLV_USE_RESULT;
/* Makes `next` the newest settings, and takes the caller's reference. */
void clv_settings_swap(clv_service *v, clv_worker_settings *next);
void clv_settings_done(clv_service *s);

/* ---- eviction.c ------------------------------------------------------------------------------ */

/* Ends sessions with an identity that is no longer allowed, at a step boundary or within a
 * minute. */
void clv_service_evict(clv_service *s);

/* ---- devices.c ------------------------------------------------------------------------------- */

clv_code clv_service_open_devices(clv_service *s, clv_err *err) CLV_USE_RESULT;
void clv_service_close_devices(clv_service *s);
clv_code clv_service_find_device(const clv_service *s, const char *name, const clv_device **ret,
                                 clv_err *err) CLV_USE_RESULT;
/* True if device number i is the first one with its backend: cpu and cpu:1 share a backend. */
bool clv_service_is_first_with_backend(const clv_service *s, uint32_t i);

/* ---- quotas.c -------------------------------------------------------------------------------- */

clv_code clv_service_open_accounts(clv_service *s, clv_err *err) CLV_USE_RESULT;
void clv_service_close_accounts(clv_service *s);
/* returns memory_limit in bytes; 0: none */
uint64_t clv_settings_memory_limit(const clv_worker_settings *settings);
clv_code clv_service_new_identity_account(clv_service *s, clv_account **ret,
                                          clv_err *err) CLV_USE_RESULT;
clv_code clv_service_new_session_account(clv_session *s, clv_account **ret,
                                         clv_err *err) CLV_USE_RESULT;
/* Makes the session's accounts below those of the devices. */
clv_code clv_service_new_device_accounts(clv_session *s, clv_err *err) CLV_USE_RESULT;
/* Sets the quotas of identities by the newest settings. Caller holds the service's lock. */
void clv_service_set_quotas(clv_service *s);

/* ---- sessions.c ------------------------------------------------------------------------------ */

clv_code clv_session_open(clv_service *s, const char *uri, const clv_wire_open_request *request,
                          clv_wire_limits *ret_granted, clv_err *err) CLV_USE_RESULT;
/* True if the session has this id and was opened by this identity. */
bool clv_session_has_id_and_owner(const clv_session *s, const clv_wire_id *id, const char *owner);
/* Returns a session with a new reference, if `uri` owns it and the epoch is right. A session of
 * another identity and one that does not exist give the same error. */
clv_code clv_session_find(clv_service *s, const clv_wire_id *id, uint64_t epoch, const char *uri,
                          clv_session **ret, clv_err *err) CLV_USE_RESULT;
clv_session *clv_session_ref(clv_session *s);
void clv_session_unref(clv_session *s);
void clv_session_unrefp(clv_session **s);
void clv_session_get_counts(clv_session *s, clv_wire_close_reply *ret);
/* Records that a module with `threads` threads has been loaded. */
void clv_session_record_threads(clv_session *s, unsigned threads);
/* Closes a session: removes it from the table, joins its thread, closes its links, logs one audit
 * line. BLOCKS. */
void clv_session_close(clv_session *s, const char *reason);

/* ---- session_links.c ------------------------------------------------------------------------- */

/* Sends ABORT to the master with the reason why the session cannot continue; lost_peer: name of the
 * lost peer, or "". */
void clv_session_abort(clv_session *s, clv_code code, const char *why, const char *lost_peer);
clv_code clv_session_find_link(void *user, const clv_frame *attach, const char *uri, clv_link **ret,
                               clv_err *err);
/* Gives all present links to the node. Caller holds s->lock. */
void clv_session_set_node_links(clv_session *s);
clv_code clv_session_dial_peer(clv_session *s, const char *name, clv_err *err) CLV_USE_RESULT;
/* Ends the accepted links of a session that have had a lane without connection for limits.lease. */
void clv_session_end_expired_links(clv_session *s);

/* ---- last_error.c ---------------------------------------------------------------------------- */

void clv_session_set_last_error(clv_session *s, const char *fmt, ...) CLV_PRINTF(2, 3);
/* Logs a line, and makes it the last error of the session and of its owner. */
void clv_session_log_error(clv_session *s, const char *fmt, ...) CLV_PRINTF(2, 3);
/* Keeps the last error of a closing session. Call after it left the table, while its node
 * exists. */
void clv_session_keep_last_error(clv_session *s, const char *reason);

/* ---- totals.c -------------------------------------------------------------------------------- */

/* Length of an array of clv_link_traffic. Index 0 is the links to the master, indices from 1 on are
 * those to the peers of worker.yaml, in order, and the last index is those to all other peers. */
#define CLV_N_LINK_TRAFFIC(config) (2 + (config)->n_peers)
size_t clv_link_traffic_index(const clv_worker_config *c, const char *peer);
clv_refusal clv_refusal_of(clv_code code);
clv_code clv_session_init_totals(clv_session *s, clv_err *err) CLV_USE_RESULT;
/* Adds to the service's totals the amounts by which the session's counters have grown since the
 * last call. Caller holds the service's lock. */
void clv_session_add_to_totals(clv_session *s);
/* Adds the session's counters that are not in the totals yet to *w and to traffic
 * [CLV_N_LINK_TRAFFIC(c)]. */
void clv_session_add_work(clv_session *s, const clv_worker_config *c, clv_work_counts *w,
                          clv_link_traffic *traffic);

/* Loads the artifact that a LoadModule names into its module. backend: the device's own backend,
 * from which clv_backend_branch made the module's backend. (artifact.c) */
clv_code clv_session_load_artifact(clv_session *s, const clv_wire_load_request *request,
                                   const clv_backend *backend, const clv_cancel_hook *waiter,
                                   clv_module *module, clv_err *err) CLV_USE_RESULT;

/* ---- takeover.c ------------------------------------------------------------------------------ */

/* Closes a session that an ended program of the same identity and session name has left. BLOCKS for
 * at most 2 s, until the program cannot be one that is dialling again. False: there is no such
 * session. */
bool clv_session_make_room(const clv_session *newer);

/* ---- load_module.c --------------------------------------------------------------------------- */

/* Makes the module that a LoadModule describes and charges it to the pool; keeps no pointer to the
 * request. node: the node whose modules may share parameters with it; NULL: none yet. */
clv_code clv_load_make_module(const clv_wire_load_request *request, const clv_device *device,
                              clv_session_node *node, clv_pool *pool, const clv_cancel_hook *waiter,
                              clv_module **ret, clv_err *err) CLV_USE_RESULT;
/* Fills *reply. Its names are views into the module. */
clv_code clv_load_describe_module(clv_module *module, const clv_cancel_hook *waiter,
                                  clv_wire_load_reply *reply, clv_err *err) CLV_USE_RESULT;

/* ---- states.c -------------------------------------------------------------------------------- */

/* Returns the callbacks with which the session's node saves and loads files of state; all NULL
 * without a state_dir. */
clv_state_files clv_session_files(clv_session *s);

/* ---- state_writer.c -------------------------------------------------------------------------- */

typedef struct clv_state_writes {
  uint64_t pending; /* files that wait or are being written */
  /* files written, and files that could not be written; last_ns: duration of the last write */
  uint64_t written, failed, last_ns;
} clv_state_writes;

clv_code clv_state_writer_new(clv_service *s, clv_state_writer **ret, clv_err *err) CLV_USE_RESULT;
/* Drops files that wait, and joins the thread. Call after all nodes are freed. NULL is allowed. */
void clv_state_writer_free(clv_state_writer *w);
/* Queues a file of the session's node. Calls save->on_done on the writer's thread, unless the file
 * is withdrawn first. */
clv_code clv_state_writer_add(clv_state_writer *w, const clv_session *s, clv_state_save *save,
                              clv_err *err) CLV_USE_RESULT;
/* Ends the use of `save`: afterwards on_done has returned or will not be called. BLOCKS for a piece
 * of the file at most, not until it is durable. */
void clv_state_writer_withdraw(clv_state_writer *w, const clv_state_save *save);
clv_state_writes clv_state_writer_counts(clv_state_writer *w);
/* Logs the result of `verb` on a file of state, as one of at most `lines` lines a minute. */
void clv_service_log_state(const char *verb, const char *session, const char *owner,
                           const char *name, unsigned lines, clv_code code, const clv_err *err);

/* Returns the callbacks with which the session's node stores and reads rows of caches; all NULL
 * without a state_dir. (caches.c) */
clv_row_caches clv_session_caches(clv_session *s);
/* clv_service_has_caches_for tells whether an identity may have caches. clv_service_evict_caches
 * deletes expired caches. */
bool clv_service_has_caches_for(const clv_service *s, const clv_worker_settings *newest,
                                const char *uri);
void clv_service_evict_caches(clv_service *s);

/* Handles the method Kept: lists, reads and removes files of the caller's identity. (kept.c) */
clv_code clv_service_on_kept(void *user, const clv_rpc_peer *peer, const clv_iov *request, size_t n,
                             clv_bytes *reply, clv_err *err) CLV_USE_RESULT;

/* ---- load.c ---------------------------------------------------------------------------------- */

/* Loads a module. has_caller_left: atomic, true when the caller has left. *ret: the encoded reply;
 * do not read the names in *reply afterwards. */
clv_code clv_session_load(clv_session *s, const clv_wire_load_request *request,
                          const bool *has_caller_left, clv_wire_load_reply *reply, clv_bytes *ret,
                          clv_err *err) CLV_USE_RESULT;

/* ---- snapshot.c ------------------------------------------------------------------------------ */

/* All numbers of the worker, its sessions, their modules and links at one moment. Status and
 * metrics are made from it. */
typedef struct clv_service_snapshot {
  /* the reply to Status; its texts are valid as long as the snapshot */
  clv_wire_status_reply status;
  clv_rpc_server_counts calls;
  clv_tls_handshakes callers, peers; /* handshakes with callers, and with dialled peers */
  /* memory that the texts and arrays of `status` use; private to snapshot.c */
  struct clv_snapshot_memory *memory;
} clv_service_snapshot;

/* Takes a snapshot. viewer: identity that will read it. An observer sees all sessions, another
 * identity its own; NULL: all sessions. only: id of the one session to read; NULL: all. Any thread
 * except rpc's queue threads. Also starts a round-trip measurement on links, for the next
 * snapshot. */
clv_code clv_service_snapshot_take(clv_service *s, const char *viewer, const clv_wire_id *only,
                                   clv_service_snapshot *ret, clv_err *err) CLV_USE_RESULT;
/* frees the snapshot, for CLV_AUTO; {0} is allowed */
void clv_service_snapshot_done(clv_service_snapshot *snapshot);

#endif
