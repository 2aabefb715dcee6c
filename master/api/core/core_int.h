/* SPDX-License-Identifier: Apache-2.0
 *
 * The inside of libcleave. The tape (which value came from which call) lives here, in the program
 * that makes every call; nodes are told what to run, what to hand on and what takes part in a
 * backward pass.
 *
 * The files, the lowest first; a file calls only lower ones (tests/check-circles):
 *
 *   error.c, id_table.c, failures.c   errors and tensors of callers, ids, what failed elsewhere
 *   state_tables.c                       states of peers, modules and contexts as tables
 *   runtime.c, incarnations.c      lock, clock, nodes by name, due jobs; which workers are there
 *   send.c                         frames to nodes, failures of contexts, the held step
 *   tape.c, context_end.c          contexts and values as records; how contexts end
 *   module_unload.c, group_members.c        how modules end, and leave their optimisers
 *   lost_nodes.c                       what fails with a node
 *   wait.c                         waiting for nodes; runs the due jobs
 *   context.c, module.c, module_load.c   opening and loading: may wait
 *   param_groups.c, optimizer.c, step.c  groups of parameters, votes, decisions
 *   state_requests.c, state_dict.c, state_pieces.c  state by name, and in pieces
 *   call.c, reference_fetch.c            leaves, calls, what has to be sent; values at other nodes
 *   backward.c                     the walk over the tape
 *   events.c, links.c, may_send.c  what nodes answer; links; what may leave this process
 *   future.c, operations.c         records of what is waited for; the table of operations
 *   await.c, blocking.c            running operations; the functions that wait, in both forms
 *   workers.c, runtime_open.c, runtime_close.c   sessions; a runtime's begin and end
 *
 * master/api/extra registers what core calls of it: a table of functions with the first kept
 * reference (api_kept_ops), operations, the callbacks of futures, and records that are freed with
 * the runtime (api_attachment).
 *
 * Here functions that can fail return cleave_status and take `cleave_error *error` (NULL allowed)
 * last. Everything behind a runtime is guarded by its one lock, held for microseconds: packets are
 * sent under it, so that a context's calls leave in the order in which they were made.
 */
#ifndef CLEAVE_CORE_INT_H
#define CLEAVE_CORE_INT_H

#include <pthread.h>

#include "common/model/config/config.h"
#include "common/engine/engine.h"
#include "common/model/models/models.h"
#include "common/net/tls/tls.h"
#include "master/api/core/error_int.h"
#include "master/api/core/state_tables_int.h"

enum {
  API_MAX_NODES = 64,    /* one bit each in the sets of nodes */
  API_MAX_MODULES = 255, /* 255 itself means all */
  API_BULK_LANES = 4,
  API_DEVICE_NAME = 32, /* bytes of a device's name */
  API_DEVICE_LIST = 256,
};
typedef uint64_t api_node_set;
#define NODE_BIT(index) ((api_node_set)1 << (index))

/* ---- tensors --------------------------------------------------------------------------------- */

/* A pooled copy of the caller's tensor. */
cleave_status api_copy_tensor_in(clv_pool *pool, const cleave_tensor *from, clv_tensor **ret,
                                 cleave_error *error);
cleave_status api_copy_tensor_out(const clv_tensor *from, cleave_tensor *ret, cleave_error *error);
cleave_status api_copy_shape_in(int rank, const int64_t *dims, clv_shape *ret, cleave_error *error);

/* ---- a table from ids to things -------------------------------------------------------------- */

/* Open addressing, linear probing; id 0 marks a free slot. Grows to the most that was ever open. */
typedef struct api_id_table {
  uint64_t *ids;
  void **things;
  size_t cap, n; /* cap: a power of two, or 0 */
} api_id_table;

clv_code api_id_table_put(api_id_table *t, uint64_t id, void *thing, clv_err *err) CLV_USE_RESULT;
void *api_id_table_get(const api_id_table *t, uint64_t id); /* NULL when it is not there */
void api_id_table_remove(api_id_table *t, uint64_t id);
/* The things one by one, in no order: *at is 0 for the first; NULL behind the last. Whoever removes
 * one begins again: others may have moved. */
void *api_id_table_next(const api_id_table *t, size_t *at);
void api_id_table_done(api_id_table *t);

/* ---- nodes ----------------------------------------------------------------------------------- */

/* Node 0 is the master itself: no link, its packets go through `node` of the runtime. */
typedef struct api_peer {
  cleave_runtime *runtime;
  uint32_t index;
  const char *name;
  const clv_remote_spec *spec;
  clv_rpc_channel *channel;
  clv_link *link;
  clv_wire_id incarnation;
  clv_wire_limits limits;
  uint32_t peer_timeout_ms; /* of its link */
  api_peer_state state;
  bool opened, has_module, keeps_files, keeps_rows, gives_pieces, fixes, ties, narrows;
  uint64_t heard_ns;             /* when its last packet came */
  char device[API_DEVICE_NAME];  /* what "auto" means there, */
  char devices[API_DEVICE_LIST]; /* and what it has: "cpu, cuda:0" */
  cleave_error why_lost;         /* the last time */
  clv_link_counts measured;      /* at the last cleave_measure */
  uint32_t n_returns;            /* times that it was lost and has come back (incarnations_int.h) */
  char wire[CLEAVE_NAME + 1];    /* its name in frames after that */
  uint64_t answer_by; /* monotonic ns until which connecting must be done; 0: not yet known */
  uint64_t bytes_up, bytes_down; /* over the links that it had */
  uint32_t loading;              /* modules on their way there */
} api_peer;

/* The runtime sends nothing to a lost peer. */
static inline bool api_is_lost(const api_peer *p) { return p->state != PEER_PRESENT; }

/* ---- modules --------------------------------------------------------------------------------- */

typedef struct api_pending_weight {
  char *name;
  clv_tensor *tensor;
} api_pending_weight;

/* Settings of an optimiser for some parameters of some modules. */
typedef struct api_optimizer_group {
  clv_optim_config optim;
  clv_lr_schedule schedule;
} api_optimizer_group;

struct cleave_module {
  cleave_runtime *runtime;
  uint32_t index, generation; /* `module` on the wire */
  uint64_t number;            /* in the order of loading */
  uint32_t contexts, keeps;   /* that need it (life_int.h); kept values that are its */
  uint64_t unload;            /* the message that told its node, 0: it has answered */
  char name[CLEAVE_NAME + 1], device[API_DEVICE_NAME];
  uint32_t node, n_returns; /* and how often that had come back when it was given the module */
  clv_graph *graph;
  clv_params *params;
  cleave_module **owners;       /* [params->n_ties] of what is tied; NULL: in the same graph */
  const char **fresh, **frozen; /* names inside params */
  int inputs[CLV_MAX_INPUTS];   /* nodes of the graph */
  uint32_t n_frozen, n_fresh, n_learning, n_inputs, threads, in_flight;
  const clv_backend *backend; /* of a module at the master */
  bool local_only, any_device, released, called, input_grads;
  bool given;             /* it was loaded with weights */
  bool may_be_at_node;    /* though the last attempt to load it there has failed: */
  uint32_t attempts_from; /* in this generation, or a later one */
  const char **direct_to; /* names of peers; NULL: as the session says */
  uint32_t n_direct_to;
  bool bf16, tf32, fixed, frozen_bf16;
  char *artifact;
  clv_sha256 artifact_sha256;
  api_module_state state;
  api_pending_weight *weights; /* until it is placed */
  size_t n_weights;
  bool needs_reload;              /* before its next use; of one that is PLACED */
  bool resets_moments;            /* then with moments of 0 */
  struct api_state_item *held[2]; /* [n_held] weights, moments, while it is loaded again */
  uint32_t n_held[2];
  struct cleave_optimizer *optimizer; /* NULL: none of its parameters is in one */
  const api_optimizer_group
      *groups[CLV_OPTIM_MAX_GROUPS]; /* [n_groups], as its node numbers them */
  uint32_t n_groups;
  uint8_t *group_of; /* [params->n] 1 + number of the group; 0: in none. With an optimiser alone */
  bool hold_rest;    /* some that learn are in none: group 0 stands for them, nobody is in it */
  uint64_t changes;  /* of its parameters, by steps and writes */
};

/* Takes the graph. network: whose layers they are, for their keys; NULL: the module itself. */
cleave_status api_module_new(cleave_runtime *rt, const cleave_module_options *o,
                             const char *network, clv_graph *graph, cleave_module **ret,
                             cleave_error *error) CLEAVE_RESULT;
/* The keys of a graph's layers. */
cleave_status api_derive_keys(const cleave_runtime *rt, const char *network, uint64_t seed,
                              clv_graph *g, cleave_error *error) CLEAVE_RESULT;
/* BLOCKS with the lock held (it is let go while the module travels): the module is at its node. */
cleave_status api_module_place(cleave_module *m, bool input_grads, uint64_t deadline_ms,
                               cleave_error *error);
/* Is there such a parameter or buffer, and does *t, unless NULL, have its dtype and shape? */
cleave_status api_check_weight(const cleave_module *m, const char *name, const cleave_tensor *t,
                               cleave_error *error);
/* Without the lock. */
cleave_status api_load_module(cleave_module *m, uint64_t deadline_ms, cleave_error *error);

/* ---- contexts and values --------------------------------------------------------------------- */

/* The program's handle of a reference that outlives its context; found by the reference's id. The
 * record stays after its release for as long as values of contexts, or this node's entry, need
 * it. */
typedef struct api_kept_ref {
  clv_ref_ids ids;
  uint32_t owner;
  uint64_t value;        /* of the context it was made in */
  cleave_module *module; /* whose output it is; NULL: a leaf of the program */
  char made_in[64];      /* the context */
  clv_dtype dtype;
  clv_shape shape;
  struct api_context *context; /* whose end waits for the owner's answer; NULL: it has come */
  bool confirmed, released, gone, fetching, failed;
  bool there;           /* it has been fetched */
  uint32_t uses, users; /* values that stand for it; functions that wait for it */
  uint64_t fetches;     /* that are done */
  clv_tensor *got;      /* by the last of them, or */
  cleave_error not_got; /* why not */
  cleave_error failure; /* of the reference itself, or of its owner */
} api_kept_ref;

typedef struct api_value {
  uint64_t id;
  struct api_context *context;
  cleave_module *module;       /* NULL: a leaf */
  api_kept_ref *kept;          /* what a leaf stands for, NULL: for a tensor of the program */
  const cleave_module *row_of; /* or rows of its output, which a worker keeps */
  clv_dtype dtype;
  clv_shape shape;
  api_node_set at;          /* nodes that make it, have it, or are being sent it */
  api_node_set send_later;  /* nodes it is to be sent to once they have a module */
  bool needs_grad;          /* backward gets to it */
  bool released, failed;    /* no handle any more; failure says why it will not come */
  bool deliver_sent;        /* DELIVER to the master is in flight */
  bool node_wants;          /* the master's own node waits for it as well */
  bool saved_tensors_freed; /* by a backward without retain */
  bool passed;              /* some backward went over it */
  bool is_retained;         /* at the end of its context, because a kept value needs it, */
  bool needed_by_peer;      /* which another node makes */
  uint32_t fetching;        /* who waits for it */
  cleave_error failure;
  clv_tensor *here; /* at the program: a leaf's own, or fetched */
  uint32_t n_args;
  struct api_value *args[CLV_MAX_INPUTS];
  struct api_value *after; /* its node runs it after the backward of this one */
  uint32_t n_followers;    /* calls that run after this one's backward, until it begins */
  uint32_t number;         /* of the CALL among those its node was sent, from 1 */
  uint64_t n_helped;       /* of the runtime, when it was called */
  uint64_t changes;        /* of the module, when it was called */
  /* of the backward pass in progress */
  uint32_t phase, contributions, arrived;
  float root;                     /* what its gradient starts with, 0: it is no root */
  uint32_t group;                 /* the last of the roots that depend on it */
  struct api_value *next_needed;  /* of the group, descending id */
  uint32_t order[CLV_MAX_INPUTS]; /* place of each input's gradient in the sum of that input's */
  /* of a leaf */
  clv_tensor **parts; /* [parts_cap] contributions of this pass in their order */
  uint32_t parts_cap;
  clv_tensor *gradient;
  struct api_value *older; /* in its context; among free ones: the next */
} api_value;

typedef struct api_context {
  uint64_t id;
  char name[64];
  api_context_state state;
  bool evaluation, events;
  bool spares; /* its end leaves what kept values need to be computed */
  bool final_step;
  uint32_t n_windowed; /* calls that wait for the backward of another one, which has not begun */
  uint64_t step;
  uint32_t users;                     /* functions that wait for something of it */
  uint32_t keeping;                   /* of its values, until their owners have answered */
  uint64_t ends_due_ns, ends_wait_ns; /* when its end is said again, and how long after that */
  api_value *newest;
  api_node_set nodes, ended, sparing; /* sparing: its end has been answered for all but that */
  api_node_set left;                  /* nodes of which it used an earlier incarnation */
  uint32_t calls[API_MAX_NODES];      /* sent to each node: PREPARE waits there for as many */
  uint32_t phase;
  uint32_t phase_at[API_MAX_NODES]; /* the last one that the node had a part in */
  bool running;                     /* a backward pass */
  bool uses[API_MAX_MODULES];       /* modules that it has sent something to */
  uint32_t called[API_MAX_MODULES]; /* calls of each module so far */
  api_node_set expected, finished;
  uint32_t leaf_due; /* gradients of leaves still to come */
  bool has_gradient[API_MAX_MODULES];
  clv_tensor *votes[API_MAX_NODES]; /* sums of squares of the node's last FINISHED */
  api_node_set not_finite, written; /* nodes that said so in it; that got gradients since */
  uint32_t applying;                /* APPLIED still to come, */
  uint64_t applying_from;           /* as answers to this message or a later one */
  uint64_t step_ms;                 /* the step's deadline, */
  uint64_t decide_by;               /* when the step is given up */
  api_node_set moved;               /* nodes that have been sent APPLY since the last decision */
  bool undone;                      /* its step failed after cleave_step had returned */
  bool stepped[API_MAX_MODULES];    /* modules that have had their step, */
  bool planned[API_MAX_MODULES];    /* inside the context: its calls keep the weights they used */
  bool failed;
  cleave_error failure;
  char failed_at[CLV_WIRE_NAME + 1]; /* the hop, as the node that failed wrote it */
  struct api_context *next;          /* free ones */
} api_context;

typedef struct api_state_item {
  char name[CLV_WIRE_NAME + 1];
  clv_tensor *tensor;
} api_state_item;

void api_state_items_done(api_state_item *items, uint32_t n); /* NULL is allowed */

/* STATE_GET, STATE_PUT, or a frame about a file of state, on its way. */
typedef struct api_state_request {
  uint64_t id;
  uint32_t node;
  const char *wanted; /* name of the item to keep, NULL: none */
  clv_tensor *found;
  api_state_item *items; /* [count] to be filled, NULL: none */
  uint32_t got, count;
  bool of_file;
  uint64_t bytes; /* of the file, as its node says */
  clv_sha256 sha256;
  char device[API_DEVICE_NAME]; /* that `found` was computed with, as its node says */
  bool answered, failed, fewer; /* fewer: `count` is the most there may be, the answer says */
  cleave_error failure;
  struct api_state_request *next;
} api_state_request;

struct cleave_optimizer {
  cleave_runtime *runtime;
  double clip_norm;
  cleave_module **modules; /* in the order of loading, which is that of the norm's sum */
  size_t n_modules;
  api_optimizer_group *groups; /* [n_groups] in the program's order */
  size_t n_groups;
  uint64_t steps;
  bool final;
  bool released, undecided; /* its last step is on its way */
  struct cleave_optimizer *next;
};

/* The calls of a backward pass that the same root is the last to depend on. */
typedef struct api_call_group {
  api_value *first, *last;
} api_call_group;

/* A failure, and the text without secrets that was sent in its place. */
typedef struct api_redacted_error {
  cleave_error whole;
  char as[CLV_WIRE_TEXT + 1], hop[CLV_WIRE_NAME + 1];
  uint64_t context;
} api_redacted_error;

enum { API_MAX_REDACTED = 16 };

/* What a runtime stands in besides its session. Zeroed: the machine's clock and randomness, and
 * workers that are called and dialled over mutual TLS. A simulation hands in its own. */
typedef struct api_platform {
  void *user;
  clv_clock clock;
  clv_code (*random_bytes)(void *user, void *ret, size_t len, clv_err *err);
  /* Instead of clv_rpc_call: a method of the worker, as encoded for the wire. */
  clv_code (*call)(void *user, const char *worker, const char *method, const clv_bytes *request,
                   uint64_t timeout_ms, clv_bytes *reply, clv_err *err);
  /* Instead of clv_link_open, with all lanes attached. */
  clv_code (*open_link)(void *user, const char *worker, const clv_link_options *options,
                        const clv_link_dial *dial, clv_link **ret, clv_err *err);
  bool (*wait)(void *user, uint64_t until_ns); /* as in clv_node_options */
  clv_executor executor;                       /* the same */
  const clv_backend *backend;                  /* of stages at the master; NULL: cpu */
  clv_backends others;                         /* that the master has beside it */
} api_platform;

struct api_future; /* future_int.h */

/* References that outlive their context (kept_refs.c), as contexts, calls and events use them. All
 * with the lock. */
typedef struct api_kept_ops {
  void (*unuse)(cleave_runtime *rt, api_kept_ref *k); /* a value that stood for it is freed */
  /* Sends the value that stands for a kept one to a node as the node needs it. */
  cleave_status (*bring)(cleave_runtime *rt, api_value *v, uint32_t node, cleave_error *error);
  cleave_status (*fetch)(cleave_runtime *rt, api_kept_ref *k, struct api_future *f,
                         cleave_error *error);
  /* Waits until the owners of what is kept of a context have answered. */
  void (*wait)(cleave_runtime *rt, api_context *c, uint64_t until_ns);
  void (*leave)(cleave_runtime *rt, api_context *c); /* its end no longer waits for them */
  /* Tells the nodes what kept values of the context may need of them. False: nothing. */
  bool (*spare)(cleave_runtime *rt, api_context *c);
  /* Owners may hear that a context has failed before they hear what to keep. */
  void (*context_failed)(cleave_runtime *rt, const api_context *c);
  void (*node_failed)(cleave_runtime *rt, uint32_t node, const cleave_error *failure);
  /* Takes a REF_ frame by which the master's own node answers the program. */
  void (*on_answer)(cleave_runtime *rt, const clv_packet *p);
  void (*report)(cleave_runtime *rt, cleave_leaks *l);
  void (*free)(cleave_runtime *rt);
} api_kept_ops;

/* The first member of a record that is freed with its runtime; of things that core does not
 * know. */
typedef struct api_attachment {
  struct api_attachment *next;
  void (*free)(struct api_attachment *a);
} api_attachment;

/* Work that is due from time to time: its owner registers it (api_add_job), and each thread that
 * waits for nodes does it (wait.c). Both with the lock. */
typedef struct api_job {
  /* Does what is due. Returns the time of the next run, monotonic ns; UINT64_MAX: none. */
  uint64_t (*before_sleep)(cleave_runtime *rt);
  void (*after_sleep)(cleave_runtime *rt); /* NULL: nothing */
} api_job;
enum { API_MAX_JOBS = 8 };
extern const api_job api_step_job, api_context_end_job, api_broken_link_job;

struct cleave_runtime {
  api_platform platform;
  const clv_session_config *config;
  clv_session_config *own_config; /* NULL: the caller's */
  cleave_status (*may_send)(void *user, const cleave_sending *what, cleave_error *error);
  void (*on_event)(void *user, cleave_context context, const cleave_event *event);
  clv_notifier notice; /* the program's on_notice */
  /* of workers, unasked; it tells api_on_suppressed_logs */
  clv_log_limiter complaints;
  /* the last ones: number n is at n % API_MAX_REDACTED */
  api_redacted_error redacted[API_MAX_REDACTED];
  uint64_t n_redacted;
  void *user;
  uint64_t deadline_ms;
  bool direct, via_master, single_thread;
  unsigned local_threads; /* of the largest module here */
  clv_tls_identity *identity;
  clv_rpc_runtime *rpc;
  clv_pool *pool;
  clv_session_node *node;
  pthread_t node_thread;
  bool driving; /* there is such a thread; otherwise whoever waits drives, one at a time */
  bool helping;
  uint64_t n_helped; /* times that a thread of the program has begun to help */
  api_peer *peers;
  uint32_t n_peers;
  clv_wire_id session;
  uint64_t epoch;
  bool single; /* a session that nobody goes on with */
  clv_key seed;

  const api_job *jobs[API_MAX_JOBS]; /* [n_jobs] in the order of their registration */
  uint32_t n_jobs;
  const api_kept_ops *keeper; /* NULL: nothing has been kept */

  pthread_mutex_t lock;
  pthread_cond_t changed;
  bool wake; /* what a node answered may end somebody's sleep */
  uint64_t next_id, next_context;
  api_id_table values, contexts, futures, kepts;
  struct api_futures *open; /* future_int.h */
  api_value *free_values;
  api_context *free_contexts;
  api_state_request *requests;
  cleave_module *modules[API_MAX_MODULES]; /* NULL: that index is free */
  uint32_t n_modules;                      /* 1 + the highest index so far */
  uint32_t generations[API_MAX_MODULES];   /* the next of each index */
  uint64_t n_loaded;
  cleave_optimizer *optimizers;
  api_attachment *attachments;
  api_context
      *deciding; /* its step is on its way: calls wait, so that it can still be taken back */
  bool undoing;  /* it has failed, and nodes go back: until they have answered, or */
  uint64_t undo_by;
  api_context
      *stepping; /* its final step has been decided and not sent: it leaves with what comes next */
  cleave_optimizer *stepping_by;
  bool stepping_apply;
  double stepping_scale;
  api_call_group *groups;
  uint32_t groups_cap;
  cleave_error late; /* of a step whose context has been given up; status OK: none */
  uint32_t n_ending;
  uint32_t n_awaiting;  /* who waits until there are fewer of them */
  uint64_t ends_due_ns; /* when the end of some context is said again, 0: of none */
  /* What a worker said of its session; if it is that a neighbour is gone, that one's own link says
   * so within moments, and better. status OK: nothing. */
  cleave_error broken;
  uint32_t broken_at, broken_to; /* the worker, its neighbour; the same: it did not say who */
  uint64_t broken_until;
  uint64_t hear_until_ns; /* deadlines are not judged before: the process was stopped */
};

void api_lock(cleave_runtime *rt);
void api_unlock(cleave_runtime *rt);
void api_unlockp(cleave_runtime **rt); /* for CLV_AUTO */
/* The lock for the rest of the block. */
#define LOCKED(rt)                                      \
  CLV_AUTO(api_unlockp) cleave_runtime *locked_ = (rt); \
  api_lock(locked_)

/* As cleave_open_config, in that world; its `user` outlives the runtime. */
cleave_status api_open_on_platform(const api_platform *platform, const clv_session_config *config,
                                   const cleave_options *options, cleave_runtime **ret_runtime,
                                   cleave_error *error) CLEAVE_RESULT;
/* The world's time, and bytes nobody can guess. */
uint64_t api_now(const cleave_runtime *rt);
clv_code api_random(const cleave_runtime *rt, void *ret, size_t len, clv_err *err) CLV_USE_RESULT;

/* Monotonic end of a deadline given in ms (0: the runtime's), and whether it has passed. */
uint64_t api_deadline_ns(const cleave_runtime *rt, uint64_t deadline_ms);
bool api_is_expired(const cleave_runtime *rt, uint64_t until_ns);
void api_add_job(cleave_runtime *rt, const api_job *job);
/* With the lock. */
void api_attach(cleave_runtime *rt, api_attachment *a, void (*free)(api_attachment *a));
void api_detach(cleave_runtime *rt, api_attachment *a);
/* With the lock: sleep until something changed, or see to the master's own node meanwhile where
 * that has no thread; false when `until_ns` has passed. */
bool api_sleep(cleave_runtime *rt, uint64_t until_ns);
void api_poll(cleave_runtime *rt); /* the same without sleeping */
/* Something has changed: whoever sleeps looks again. */
void api_wake(cleave_runtime *rt);

/* With the lock: to the node, whichever it is. Takes the packet. */
cleave_status api_send(cleave_runtime *rt, uint32_t node, clv_packet *p, cleave_error *error);
/* It may leave with the next packet to that node, if the caller's thread is the one that brings it
 * to the master's own node (cleave_options.single_thread): when it waits for something, everything
 * has left. */
cleave_status api_send_buffered(cleave_runtime *rt, uint32_t node, clv_packet *p,
                                cleave_error *error);

cleave_status api_packet_new(cleave_runtime *rt, clv_frame_kind kind, uint64_t context_id,
                             uint64_t message, clv_packet **ret, cleave_error *error);
int api_find_node(const cleave_runtime *rt, const char *name); /* -1: unknown */

/* What its node says of where the module computes; "": nothing. */
void api_module_set_device(cleave_module *m, const char *device);
cleave_status api_connect(cleave_runtime *rt, cleave_error *error);
cleave_status api_open_link(api_peer *p, cleave_error *error);
/* For links: asks the program's may_send about each tensor; leaves of a failure its code and place,
 * and tells may_send. */
clv_code api_may_send(void *user, clv_link *link, clv_packet *p, clv_err *err);
/* A failure that left as code and place may come back from who it reached: then it is once more the
 * one that it was, with its text. */
void api_restore_redacted(const cleave_runtime *rt, cleave_error *why);
/* Ends the sessions and their links; then, when nothing computes any more, the transport. */
void api_close_sessions(cleave_runtime *rt);
void api_runtime_free(cleave_runtime *rt);
void api_close_links(cleave_runtime *rt);
/* An answer of a node; takes the packet. Any thread, without the lock. */
void api_on_packet(api_peer *from, clv_packet *p);
void api_on_program_packet(void *user, clv_packet *p);
void api_on_suppressed_logs(void *user, const clv_log_entry *entry);

/* "; last heard of worker 'a' 900 ms ago, 'b' 3 ms ago": who keeps the others waiting. */
const char *api_describe_silence(const cleave_runtime *rt, char *buf, size_t len);

/* With the lock: whatever goes on with that node fails. */
void api_node_fail(cleave_runtime *rt, uint32_t node, const cleave_error *failure);
/* With the lock: the first failure of a context; other nodes are told. */
void api_context_fail(cleave_runtime *rt, api_context *c, const cleave_error *failure,
                      api_node_set notified);
void api_context_notify(cleave_runtime *rt, api_context *c, api_node_set notified);
cleave_status api_find_context(cleave_runtime *rt, cleave_context handle, api_context **ret,
                               cleave_error *error);
cleave_status api_find_value(cleave_runtime *rt, cleave_reference handle, api_value **ret,
                             cleave_error *error);
cleave_status api_new_value(cleave_runtime *rt, api_context *c, api_value **ret,
                            cleave_error *error);
void api_drop_value(cleave_runtime *rt, api_value *v);
void api_drop_values(cleave_runtime *rt, api_context *c);
void api_context_free(cleave_runtime *rt, api_context *c);
api_node_set api_lost_nodes(const cleave_runtime *rt);
cleave_status api_context_failure(const api_context *c, cleave_error *error);

void api_add_leak(cleave_leaks *l, const char *fmt, ...) CLV_PRINTF(2, 3);
void api_failure_from_frame(const api_peer *from, const clv_frame *f, cleave_error *ret);

/* A value's failure in a frame, with the worker in the text. */
void api_failure_to_frame(const api_value *v, clv_frame *ret);
/* With the lock: have the value brought to a node; to the program with node 0 and for_node
 * false. */
cleave_status api_deliver_value(cleave_runtime *rt, api_value *v, uint32_t node, bool for_node,
                                cleave_error *error);

/* With the lock, waits: STATE_PUT of items: [n], n above 0; context_id: of gradients, else 0. */
cleave_status api_state_put(cleave_module *m, clv_state_kind what, uint64_t context_id,
                            const api_state_item *items, uint32_t n, uint64_t until_ns,
                            cleave_error *error);

/* With the lock: the failure of a step whose context had ended, once. */
cleave_status api_take_deferred_error(cleave_runtime *rt, cleave_error *error);
/* With the lock: a context that ended without anybody waiting is freed when all nodes have
 * answered. */
void api_context_free_if_ended(cleave_runtime *rt, api_context *c);
/* Nothing is kept any more that its owner has not answered for. */
void api_context_on_owners_answered(cleave_runtime *rt, api_context *c);

clv_lr_schedule api_convert_schedule(const cleave_schedule *s);
cleave_status api_check_schedule(const cleave_schedule *s, cleave_error *error);
/* With the lock: the parameters that the groups mean are this optimiser's. When it fails,
 * api_groups_leave undoes what has been done. */
cleave_status api_groups_join(cleave_optimizer *o, const cleave_group *groups, size_t n_groups,
                              cleave_error *error);
void api_groups_leave(cleave_optimizer *o);
/* ret_names: [m->params->n] of group `number` of a module in an optimiser; gives how many. */
uint32_t api_group_param_names(const cleave_module *m, uint32_t number, const char **ret_names);
void api_optimizer_free(cleave_optimizer *o);

/* With the lock: a final step that has not been sent goes before anything else does. */
void api_flush_final_step(cleave_runtime *rt);
/* The same with the end of its context: *ret_sent gets the nodes that have been told both. */
void api_flush_step_and_ends(cleave_runtime *rt, api_context *c, api_node_set *ret_sent);

/* With the lock: every node has answered to the steps of this context. */
void api_on_step_answered(cleave_runtime *rt, api_context *c);
/* With the lock: refuses to change or read parameters while calls wait for a backward that has not
 * begun: the change would wait for them, and the backward for the change. */
cleave_status api_check_no_window(const cleave_runtime *rt, cleave_error *error);
/* With the lock: a step on its way that has failed is taken back. When it has to be looked at
 * again. */
uint64_t api_decision_advance(cleave_runtime *rt);
/* With the lock: wait until no step is on its way. One that failed has been taken back then, which
 * its context says. */
cleave_status api_await_decision(cleave_runtime *rt, uint64_t until_ns, cleave_error *error);

/* Graph of a text of layers. n_parts: over how many nodes layers may be divided, and *ret_how, to
 * be freed, is how each node of the graph is; 0: none may be, and ret_how is NULL. */
cleave_status api_graph_from_layers(const char *layers, const cleave_input *input,
                                    uint32_t first_layer, uint32_t n_parts, clv_parallel **ret_how,
                                    clv_graph **ret, cleave_error *error);
/* What clv_session_config needs and a program does not is filled in. */
cleave_status api_read_config(const char *path, const char *text, clv_session_config **ret,
                              cleave_error *error);
const clv_graph *api_unwrap_graph(const cleave_graph *g);
clv_code api_graph_copy(const clv_graph *from, clv_graph **ret, clv_err *err) CLV_USE_RESULT;
/* layers: a range of them, or NULL for all. */
cleave_status api_graph_from_arch(const char *arch, const char *attributes, const char *layers,
                                  const cleave_input *input, clv_graph **ret, cleave_error *error);

/* The rate of the step that is being taken. */
double api_group_rate(const cleave_optimizer *o, const api_optimizer_group *g);
/* With the lock: the decision on a step, to all modules of these nodes that it is about. */
cleave_status api_send_decision(cleave_optimizer *o, api_context *c, api_node_set nodes, bool apply,
                                double scale, cleave_error *error);
/* Of the first group, after so many steps more. */
double api_rate_after(const cleave_optimizer *o, uint64_t ahead);
/* With the lock: APPLY with a position. */
cleave_status api_send_step_at(cleave_optimizer *o, api_context *c, const cleave_module *m,
                               uint64_t ahead, uint32_t position, bool keep, cleave_error *error);
/* With the lock: the rows of an ENDED go to on_event. */
void api_report_events(cleave_runtime *rt, const api_peer *from, const clv_packet *p);

#endif
