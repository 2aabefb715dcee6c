/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLEAVE_SERVICE_INT_H
#define CLEAVE_SERVICE_INT_H

#include <pthread.h>

#include "common/engine/engine.h"
#include "worker/service/service.h"
#include "worker/store/store.h"

/* MAX_PEER_LINKS: links to other workers that a session may have dialled, and links that it may
 * have accepted */
enum { MAX_SESSIONS = 256, MAX_PEER_LINKS = 16 };

/* Reason why a session was refused, derived from the error code. */
typedef enum clv_refusal {
  REFUSED_DRAINING, /* the worker is draining */
  REFUSED_EXISTS,   /* a session of this id is open, or a newer attempt was registered */
  REFUSED_OTHER,    /* any other reason, mostly a quota */
  N_REFUSALS
} clv_refusal;

typedef struct clv_session clv_session;

/* The last error of a session, an identity or the worker. */
typedef struct clv_last_error {
  char text[CLV_WIRE_TEXT + 1]; /* printable ASCII */
  uint64_t at_ns;               /* monotonic time of the error; 0: no error */
} clv_last_error;

/* A link of a session to another worker. */
typedef struct clv_peer_link {
  char name[CLV_WIRE_NAME + 1]; /* name of the other worker in `peers` of worker.yaml */
  clv_link *link;
  /* the certificate of the worker that dialled this link is revoked; links that this worker has
   * dialled do not use this field */
  bool is_revoked;
} clv_peer_link;

/* Counters of the work done for sessions. They only grow. */
typedef struct clv_work_counts {
  uint64_t n_forwards, n_backwards, n_steps;
  uint64_t compute_ns;   /* time in forwards and backwards */
  uint64_t idle_ns;      /* time in which the compute thread had nothing to do */
  uint64_t core_wait_ns; /* time in which the compute thread waited for cores that others used */
  uint64_t n_wakeups;    /* times that the compute thread slept and was woken */
  uint64_t n_graph_launches;  /* launches of CUDA graphs */
  uint64_t n_graph_fallbacks; /* pieces of work that could not be captured as a CUDA graph */
  /* bytes of values and gradients that were copied between modules on the same device */
  uint64_t within_device_bytes;
  uint64_t between_devices_bytes; /* bytes that were copied directly from one device to another */
  /* bytes that were copied from device to device through host memory */
  uint64_t through_host_bytes;
} clv_work_counts;

/* Bytes and messages on all links to the master, or on all links to one peer. */
typedef struct clv_link_traffic {
  uint64_t bytes_in, bytes_out;           /* bytes received and sent */
  uint64_t n_messages_in, n_messages_out; /* messages received and sent */
} clv_link_traffic;

/* Traffic of the links to the master, or to one peer, summed over all ended sessions. */
typedef struct clv_link_traffic_total {
  char *peer_name;                /* name of the peer in worker.yaml; "": the master */
  clv_link_traffic ended_traffic; /* traffic of ended sessions */
} clv_link_traffic_total;

/* The settings that a reload may change. A reference-counted snapshot. */
typedef struct clv_worker_settings {
  int n_refs; /* number of references; atomic */
  const clv_worker_config *config;
  clv_worker_config *owned_config; /* config, if this snapshot owns it; NULL: owned by the caller */
  clv_wire_limits limits;          /* the limits in `config`, as Hello reports them */
} clv_worker_settings;

enum { MAX_CPU_DEVICES = 8, MAX_OTHER_DEVICES = 16, MAX_DEVICES = 25 };

/* An identity that is or was in `allow`. Kept until the service is closed. */
typedef struct clv_member {
  char *identity;       /* URI in the identity's certificate */
  clv_account *account; /* account that all sessions of the identity are charged to */
  size_t tenant_number; /* number by which the scheduler knows the identity */
  /* receive window that the identity's last Hello granted, bytes; 0: none. The service's lock
   * guards this field and those below it */
  uint64_t receive_window_bytes;
  uint32_t protocol;          /* protocol version of the identity's last Hello; 0: none */
  clv_last_error last_error;  /* last error of a call or session of the identity */
  clv_work_counts ended_work; /* work done for the ended sessions of the identity */
} clv_member;

struct clv_session {
  clv_service *service;
  clv_worker_settings *settings; /* settings that were the newest when the session was opened */
  /* references held by the service's table, by each link and by each handler that runs; atomic */
  int n_refs;
  clv_wire_id id;
  uint64_t epoch;     /* number of the attempt within its run */
  uint64_t opened_ms; /* monotonic time when the session was opened */
  /* no later attempt continues the session, as of a program on cleave.h */
  bool is_only_attempt;
  uint64_t send_window_bytes; /* initial send window towards the owner, bytes */
  clv_member *member;         /* entry of the owner: account and counters */
  /* memory account of the session on each device; its parent is the device's memory account */
  clv_account *device_accounts[MAX_DEVICES];
  uint32_t owner_protocol;      /* protocol version of the owner when it opened the session */
  char owner[CLV_WIRE_URI + 1]; /* identity that opened the session */
  char name[CLV_WIRE_NAME + 1]; /* name of the session, for logs and status */
  char **peer_identities;       /* identities of the workers that may attach to the session */
  uint32_t n_peer_identities;
  clv_wire_limits granted_limits; /* limits that the worker has reported to the master */
  uint32_t reference_lease_ms;    /* time for which references of a lost node are kept */
  /* number of extra connections for large tensors, of the owner's link and of each link dialled to
   * a peer */
  uint32_t n_bulk_lanes;
  /* largest number of threads of a module of the session; under the service's lock */
  unsigned max_module_threads;

  pthread_mutex_t loading_lock; /* held during a LoadModule; taken before `lock` */
  pthread_mutex_t lock;         /* guards the links, is_closing and the creation of the node */
  clv_pool *pool;               /* memory of the session's tensors */
  clv_share *share;             /* share of the cores */
  clv_session_node *node;       /* NULL before the first LoadModule */
  pthread_t compute_thread;
  bool has_compute_thread;
  /* NULL: the master has not attached, or the session is closed */
  clv_link *master_link;
  clv_peer_link dialled_links[MAX_PEER_LINKS];  /* links that this worker has dialled */
  clv_peer_link accepted_links[MAX_PEER_LINKS]; /* links that other workers have dialled */
  uint32_t n_dialled_links, n_accepted_links;
  /* last error of the session that is not a failure of its node; under `lock` */
  clv_last_error last_error;
  /* the session is being closed, or the next tick closes it because the master's link has ended */
  bool is_closing;
  /* part of this session's work that ended_work of its owner's entry (member) already includes, so
   * that the next addition has the growth alone; under the service's lock */
  clv_work_counts work_in_totals;
  /* part of the session's traffic that the service's traffic_totals include already, in the first
   * half of the array, [2 * CLV_N_LINK_TRAFFIC]; the second half is scratch memory of totals.c;
   * under the service's lock */
  clv_link_traffic *traffic_in_totals;
  char abort_text[CLV_ERR_TEXT]; /* reason why the session is closed or evicted */
  /* an identity of the session is no longer allowed, so the session must end. Only clv_service_tick
   * uses this field and those below it */
  bool eviction_pending;
  /* monotonic time at which a draining worker first found the master not connected; 0: the master
   * is connected, or the worker is not draining */
  uint64_t detached_since_ms;
  uint64_t abort_sent_ms; /* time of the ABORT to the session's master; 0: not sent */
  uint64_t eviction_began_ms;
  uint64_t steps_at_eviction_start; /* step count of the session at eviction_began_ms */
};

/* A device of the worker. */
typedef struct clv_device {
  char name[24]; /* name in LoadModule and status, such as "cuda:0" */
  const clv_backend *backend;
  clv_account *account; /* account that the memory of modules on the device is charged to */
  size_t memory_bytes;  /* bytes of device memory; 0: the device uses host memory */
} clv_device;

typedef struct clv_state_writer clv_state_writer;

struct clv_service {
  /* configuration at the start, for settings that a reload cannot change */
  const clv_worker_config *config;
  clv_worker_settings *settings; /* newest settings; under `lock` */
  clv_rpc_runtime *runtime;
  clv_rpc_server *server;
  clv_rpc_pem pem;         /* credentials for serving and for dialling peers; owned copies */
  clv_wire_id incarnation; /* random id of this run of the daemon, which Hello reports */
  clv_lane_acceptor lane_acceptor;
  uint64_t started_ms; /* monotonic time when the service was opened */
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
  clv_fair_scheduler *scheduler; /* shares the cores between sessions */
  clv_epochs *epochs;            /* highest epoch of each session */
  clv_states *state_files;       /* files of state; NULL: worker.yaml has no state_dir */
  /* thread that writes the files of state; NULL: worker.yaml has no state_dir */
  clv_state_writer *state_writer;
  clv_caches *caches;                 /* caches of rows; NULL: worker.yaml has no state_dir */
  clv_shared_tensors *shared_tensors; /* shared tensors of all sessions */
  /* time of the last eviction of expired caches; for clv_service_tick alone */
  uint64_t caches_evicted_ms;
  /* bytes of the rows that were stored in caches, and that were read from them; atomic */
  uint64_t cache_bytes_stored, cache_bytes_read;
  /* a session was freed since memory was last returned to the system; atomic */
  bool has_freed_session;
  /* time when memory was last returned to the system; for clv_service_tick alone */
  uint64_t memory_returned_ms;
  bool is_draining;             /* the service accepts no new sessions */
  int64_t certificate_expiry_s; /* end of the certificate or of a CA above it, s since 1970 */
  clv_last_error last_error;    /* newest last error of all identities */
  /* guards the tables, pem, is_draining, certificate_expiry_s and last errors */
  pthread_mutex_t lock;
  clv_session *sessions[MAX_SESSIONS]; /* table of open sessions; under `lock` */
  uint32_t n_sessions;
  /* counters for metrics; under `lock` */
  uint64_t n_reloads, n_failed_reloads, n_refused_sessions[N_REFUSALS];
  /* totals of the links to the master and to each peer that is or was in worker.yaml */
  clv_link_traffic_total **traffic_totals;
  size_t n_traffic_totals;
};

/* Unary methods that the worker serves. */
extern const clv_rpc_unary clv_service_methods[];
extern const size_t clv_service_n_methods;

/* Callback of rpc. Returns CLV_DENIED unless the peer may call `method`. user: the service. */
clv_code clv_service_authorize(void *user, const clv_rpc_peer *peer, const char *method,
                               clv_err *err);
/* Copies the credentials in use, for dialling a peer, because a reload may replace them while the
 * worker dials. */
clv_code clv_service_copy_pem(clv_service *s, clv_rpc_pem *ret, clv_err *err) CLV_USE_RESULT;
/* Records the receive window and the protocol version that the last Hello of the identity `uri`
 * named. */
void clv_service_record_hello(clv_service *s, const char *uri, const clv_wire_about *about);
/* Returns the receive window that the last Hello of the identity `uri` granted: bytes of tensors
 * that may be in flight to it. Without a Hello, returns the default window. */
uint64_t clv_service_receive_window(clv_service *s, const char *uri);
/* Returns the protocol version of the last Hello of the identity `uri`. Without a Hello, returns
 * the newest version. */
uint32_t clv_service_protocol(clv_service *s, const char *uri);

/* ---- settings that a reload may change (settings.c) ------------------------------------------ */

/* Makes the settings that a configuration gives, with one reference. `config` must outlive them,
 * unless the caller sets owned_config. */
clv_code clv_settings_new(const clv_worker_config *config, clv_worker_settings **ret,
                          clv_err *err) CLV_USE_RESULT;
clv_worker_settings *clv_settings_ref(clv_worker_settings *s);
void clv_settings_unref(clv_worker_settings *s); /* NULL is allowed */
void clv_settings_unrefp(clv_worker_settings **s);
/* Returns the newest settings, with a new reference. */
clv_worker_settings *clv_service_ref_settings(clv_service *s);
/* Returns the entry of the identity `uri` in `allow`; NULL: none. */
const clv_allow_spec *clv_settings_find_allowed(const clv_worker_settings *s, const char *uri);
/* Returns the quota of an identity for files of state in the newest settings, bytes; 0: the
 * identity has no such quota, or is not in `allow`. */
uint64_t clv_service_state_quota(clv_service *v, const char *uri);
/* clv_service_find_member returns the member of the identity `uri`; clv_service_find_traffic_total
 * returns the total of the links to `peer` ("": the master). NULL: none. Caller holds the service's
 * lock. */
clv_member *clv_service_find_member(clv_service *s, const char *uri);
clv_link_traffic_total *clv_service_find_traffic_total(clv_service *s, const char *peer);
/* Makes a member for each identity in `allow` of `c`, and a traffic total for each peer in `c`,
 * unless the service has it already. So clv_settings_swap cannot fail afterwards. Caller holds the
 * service's lock, unless the service is being opened. */
clv_code clv_settings_prepare(clv_service *s, const clv_worker_config *c,
                              clv_err *err) CLV_USE_RESULT;
/* Makes new_settings the newest settings, and takes the caller's reference to them. Caller holds
 * the service's lock, unless the service is being opened. */
void clv_settings_swap(clv_service *v, clv_worker_settings *new_settings);
/* Frees the settings, members and traffic totals of the service. */
void clv_settings_done(clv_service *s);

/* ---- eviction of sessions (eviction.c) ------------------------------------------------------- */

/* Ends sessions one of whose identities is no longer allowed, after a step or within a minute.
 * Called by clv_service_tick. */
void clv_service_evict(clv_service *s);

/* ---- devices of the worker (devices.c) ------------------------------------------------------- */

/* Makes the table of devices. */
clv_code clv_service_open_devices(clv_service *s, clv_err *err) CLV_USE_RESULT;
void clv_service_close_devices(clv_service *s);
/* Finds a device by name. "" and "auto": the first device. CLV_INVALID: no such device. */
clv_code clv_service_find_device(const clv_service *s, const char *name, const clv_device **ret,
                                 clv_err *err) CLV_USE_RESULT;
/* True if no device with a lower number than i has the same backend. The devices cpu and cpu:1
 * share a backend. */
bool clv_service_is_first_with_backend(const clv_service *s, uint32_t i);

/* ---- accounts and quotas (quotas.c) ---------------------------------------------------------- */

/* Makes the account of all sessions together, the devices with their accounts, and the
 * scheduler. */
clv_code clv_service_open_accounts(clv_service *s, clv_err *err) CLV_USE_RESULT;
void clv_service_close_accounts(clv_service *s);
/* Returns memory_limit of worker.yaml in bytes; 0: no limit. */
uint64_t clv_settings_memory_limit(const clv_worker_settings *settings);
clv_code clv_service_new_identity_account(clv_service *s, clv_account **ret,
                                          clv_err *err) CLV_USE_RESULT;
clv_code clv_service_new_session_account(clv_session *s, clv_account **ret,
                                         clv_err *err) CLV_USE_RESULT;
/* Makes an account of the session for each device. Its parent is the device's account. */
clv_code clv_service_new_device_accounts(clv_session *s, clv_err *err) CLV_USE_RESULT;
/* Sets the quotas of all sessions together and of each identity by the newest settings. Caller
 * holds the service's lock, unless the service is being opened. */
void clv_service_set_quotas(clv_service *s);

/* ---- sessions (sessions.c) ------------------------------------------------------------------- */

/* Opens a session for the identity `uri` (open.c). ret_granted_limits: the session's limits. */
clv_code clv_session_open(clv_service *s, const char *uri, const clv_wire_open_request *request,
                          clv_wire_limits *ret_granted_limits, clv_err *err) CLV_USE_RESULT;
/* True if the session has this id and was opened by this identity. */
bool clv_session_has_id_and_owner(const clv_session *s, const clv_wire_id *id, const char *owner);
/* Returns the session with this id and epoch that `uri` has opened, with a new reference. A session
 * of another identity and a session that does not exist give the same error. */
clv_code clv_session_find(clv_service *s, const clv_wire_id *id, uint64_t epoch, const char *uri,
                          clv_session **ret, clv_err *err) CLV_USE_RESULT;
clv_session *clv_session_ref(clv_session *s);
void clv_session_unref(clv_session *s);
void clv_session_unrefp(clv_session **s);
/* Fills *ret with the bytes on all links of the session and its forwards and backwards. */
void clv_session_get_counts(clv_session *s, clv_wire_close_reply *ret);
/* Records that a module with n_threads compute threads has been loaded. */
void clv_session_record_threads(clv_session *s, unsigned n_threads);
/* Closes a session: removes it from the table, joins its thread, closes its links, and logs a line
 * with the reason. Does nothing if another thread has begun to close the session. BLOCKS. */
void clv_session_close(clv_session *s, const char *reason);

/* ---- links of a session (session_links.c) ---------------------------------------------------- */

/* Sends ABORT to the master with the reason why the session cannot continue. lost_peer: name of the
 * peer whose link ended; "": another reason. */
void clv_session_abort(clv_session *s, clv_code code, const char *why, const char *lost_peer);
/* Callback of the lane acceptor. Returns the link that a stream with the frame `attach` belongs to,
 * with a new reference. Makes the link if this is its first stream. user: the service. */
clv_code clv_session_find_link(void *user, const clv_frame *attach, const char *uri, clv_link **ret,
                               clv_err *err);
/* Passes all links of the session to its node, the engine that runs its modules, if it has one.
 * Caller holds s->lock. */
void clv_session_set_node_links(clv_session *s);
/* Dials a link to the peer `name` of worker.yaml, unless the session has one already. BLOCKS. */
clv_code clv_session_dial_peer(clv_session *s, const char *name, clv_err *err) CLV_USE_RESULT;
/* Ends links to the master and accepted links that have had a lane without a connection for longer
 * than their lease. */
void clv_session_end_expired_links(clv_session *s);

/* ---- last errors (last_error.c) -------------------------------------------------------------- */

/* Sets the last error of the session. */
void clv_session_set_last_error(clv_session *s, const char *fmt, ...) CLV_PRINTF(2, 3);
/* Logs a line, and makes it the last error of the session, of its owner and of the worker. */
void clv_session_log_error(clv_session *s, const char *fmt, ...) CLV_PRINTF(2, 3);
/* Makes the last failure of a closing session's node the last error of the session's owner, if the
 * failure is at most 10 s old. Call after the session has left the table, while its node exists. */
void clv_session_keep_last_error(clv_session *s, const char *reason);

/* ---- counters of all sessions (totals.c) ----------------------------------------------------- */

/* Length of an array with a clv_link_traffic for each peer at the other end of a link. Index 0 is
 * for the links to the master, the next indices are for the links to the peers of worker.yaml, in
 * their order, and the last index is for the links to all other peers. */
#define CLV_N_LINK_TRAFFIC(config) (2 + (config)->n_peers)
/* Returns the index of a peer in such an array; peer "": the master. */
size_t clv_link_traffic_index(const clv_worker_config *c, const char *peer);
clv_refusal clv_refusal_from_code(clv_code code);
/* Allocates traffic_in_totals of the session. */
clv_code clv_session_init_totals(clv_session *s, clv_err *err) CLV_USE_RESULT;
/* Adds to the totals of the service and of the session's member the amounts by which the session's
 * counters have grown since the last call for this session. Caller holds the service's lock. */
void clv_session_add_to_totals(clv_session *s);
/* Adds the work of the session to *w, and the traffic of its links to
 * traffic[CLV_N_LINK_TRAFFIC(c)]. */
void clv_session_add_counts_to(clv_session *s, const clv_worker_config *c, clv_work_counts *w,
                               clv_link_traffic *traffic);

/* ---- loading from artifacts (artifact.c) ----------------------------------------------------- */

/* Loads the artifact that a LoadModule names into the module. backend: backend of the device, from
 * which clv_backend_branch has made the module's backend. */
clv_code clv_session_load_artifact(clv_session *s, const clv_wire_load_request *request,
                                   const clv_backend *backend, const clv_cancel_hook *cancel_hook,
                                   clv_module *module, clv_err *err) CLV_USE_RESULT;

/* ---- abandoned sessions (takeover.c) --------------------------------------------------------- */

/* Closes a session that a program has left when it ended, if the program had the identity and the
 * session name of newer_session. BLOCKS for at most 2 s, because a program that still runs dials
 * again within that time. False: no session was closed. */
bool clv_session_close_abandoned(const clv_session *newer_session);

/* ---- making modules (load_module.c) ---------------------------------------------------------- */

/* Makes the module that a LoadModule describes, and charges its memory to the pool. The module
 * keeps no pointer to the request. node: the node whose modules may own parameters that the module
 * is tied to; NULL: there is no node yet. */
clv_code clv_load_make_module(const clv_wire_load_request *request, const clv_device *device,
                              clv_session_node *node, clv_pool *pool,
                              const clv_cancel_hook *cancel_hook, clv_module **ret,
                              clv_err *err) CLV_USE_RESULT;
/* Fills *reply with the parameters, outputs and memory of the module. The names in *reply point
 * into the module. */
clv_code clv_load_describe_module(clv_module *module, const clv_cancel_hook *cancel_hook,
                                  clv_wire_load_reply *reply, clv_err *err) CLV_USE_RESULT;

/* ---- files of state (states.c) --------------------------------------------------------------- */

/* Returns the callbacks with which the session's node saves and loads files of state; all NULL
 * without a state_dir. */
clv_state_files clv_session_file_callbacks(clv_session *s);

/* ---- writer of files of state (state_writer.c) ----------------------------------------------- */

/* Counters of the thread that writes files of state. */
typedef struct clv_state_writes {
  uint64_t n_pending;     /* files that wait or are being written */
  uint64_t n_written;     /* files that were written */
  uint64_t n_failed;      /* files that could not be written; withdrawn files do not count */
  uint64_t last_write_ns; /* duration of the last write */
} clv_state_writes;

/* Starts the thread that writes files of state. */
clv_code clv_state_writer_new(clv_service *s, clv_state_writer **ret, clv_err *err) CLV_USE_RESULT;
/* Drops files that wait to be written, and joins the thread. Call after all nodes are freed. NULL
 * is allowed. */
void clv_state_writer_free(clv_state_writer *w);
/* Queues a file that the session's node saves. When the file is written or has failed, the writer's
 * thread calls save->on_done, unless the node has withdrawn the file. */
clv_code clv_state_writer_add(clv_state_writer *w, const clv_session *s, clv_state_save *save,
                              clv_err *err) CLV_USE_RESULT;
/* Withdraws a file that was queued. Afterwards the writer's thread does not use *save any more:
 * save->on_done has returned, or will not be called. BLOCKS until the thread has written the piece
 * of the file that it is writing, at most. */
void clv_state_writer_withdraw(clv_state_writer *w, const clv_state_save *save);
clv_state_writes clv_state_writer_counts(clv_state_writer *w);
/* Logs the result of an action on a file of state. verb: the action, such as "save". Of one owner
 * at most lines_per_minute such lines are logged a minute. */
void clv_service_log_state(const char *verb, const char *session, const char *owner,
                           const char *name, unsigned lines_per_minute, clv_code code,
                           const clv_err *err);

/* ---- caches (caches.c) ----------------------------------------------------------------------- */

/* Returns the callbacks with which the session's node stores and reads rows of caches; all NULL
 * without a state_dir. */
clv_row_caches clv_session_cache_callbacks(clv_session *s);
/* True if the identity `uri` may have caches by the newest settings. */
bool clv_service_has_caches_for(const clv_service *s, const clv_worker_settings *newest_settings,
                                const char *uri);
/* Deletes expired caches, at most once a second. Called by clv_service_tick. */
void clv_service_evict_caches(clv_service *s);

/* ---- the method Kept (kept.c) ---------------------------------------------------------------- */

/* Handles the method Kept: lists, reads and removes caches and files of state of the caller's
 * identity. user: the service. */
clv_code clv_service_on_kept(void *user, const clv_rpc_peer *peer, const clv_iov *request, size_t n,
                             clv_bytes *reply, clv_err *err) CLV_USE_RESULT;

/* ---- loading modules (load.c) ---------------------------------------------------------------- */

/* Loads a module. has_caller_left: atomic flag, true when the caller has left. Fills *reply, and
 * *ret with the encoded reply. Do not read the names in *reply afterwards, because the module may
 * be freed. */
clv_code clv_session_load_module(clv_session *s, const clv_wire_load_request *request,
                                 const bool *has_caller_left, clv_wire_load_reply *reply,
                                 clv_bytes *ret, clv_err *err) CLV_USE_RESULT;

/* ---- snapshots for Status and metrics (snapshot.c) ------------------------------------------- */

/* All numbers of the worker, of its sessions, and of their modules and links at one moment. The
 * reply to Status and the metrics are made from a snapshot. */
typedef struct clv_service_snapshot {
  /* reply to Status; its texts are valid as long as the snapshot */
  clv_wire_status_reply status;
  clv_rpc_server_counts call_counts;
  clv_tls_handshakes caller_handshakes; /* handshakes with callers */
  clv_tls_handshakes peer_handshakes;   /* handshakes with peers that this worker dialled */
  /* memory that the texts and arrays of `status` use; private to snapshot.c */
  struct clv_snapshot_buffers *memory;
} clv_service_snapshot;

/* Takes a snapshot. viewer_uri: identity that will read the snapshot. An observer sees all
 * sessions, another identity its own; NULL: all sessions. only_session_id: id of the one session to
 * include;
 * NULL: all. Also starts measuring the round-trip time of each link, for the next snapshot. Any
 * thread except rpc's queue threads. */
clv_code clv_service_snapshot_take(clv_service *s, const char *viewer_uri,
                                   const clv_wire_id *only_session_id, clv_service_snapshot *ret,
                                   clv_err *err) CLV_USE_RESULT;
/* Frees a snapshot, for CLV_AUTO. {0} is allowed. */
void clv_service_snapshot_done(clv_service_snapshot *snapshot);

#endif
