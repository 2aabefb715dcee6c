/* SPDX-License-Identifier: Apache-2.0
 *
 * dist: what master and worker share. A *link* is one session's two-way message stream to another
 * process (a control lane and k bulk lanes, tensors in chunks, checksums, credit). A *module* is a
 * graph with its parameters, plans and optimiser. A *node* holds the modules of one session in this
 * process; it runs their calls in distributed autograd contexts on one compute thread and passes
 * values and gradients on over links.
 *
 * Threads: links call their events on rpc queue threads, where nothing computes or blocks; a node's
 * packets are all handled on the thread that runs clv_node_run or clv_node_help.
 */
#ifndef CLEAVE_DIST_H
#define CLEAVE_DIST_H

#include "common/graph/graph.h"
#include "common/optim/optim.h"
#include "common/rpc/rpc.h"
#include "common/wire/wire.h"

/* ---- accounts ----------------------------------------------------------------------------------
 *
 * What is in use of each quota, by a session, by all sessions of an identity, by a whole worker:
 * what is charged to one is charged to those above it as well. Any thread; a charge is an atomic
 * addition. */

typedef enum clv_quota {
  CLV_QUOTA_SESSIONS,
  CLV_QUOTA_BYTES,   /* of tensors, free ones in pools too, of modules and of records */
  CLV_QUOTA_TENSORS, /* free ones in pools too */
  CLV_QUOTA_CALLS,   /* of contexts: that wait or run */
  CLV_QUOTAS
} clv_quota;

typedef struct clv_account clv_account;

typedef struct clv_account_options {
  clv_account *above;          /* a reference is taken; NULL: none */
  const char *of;              /* whose it is, for messages; static, as the keys */
  uint64_t most[CLV_QUOTAS];   /* 0: no limit here */
  const char *key[CLV_QUOTAS]; /* of worker.yaml, that raises it; NULL: none does */
  bool shared;                 /* with strangers: messages do not say how much is in use */
} clv_account_options;

clv_code clv_account_new(const clv_account_options *options, clv_account **ret,
                         clv_err *err) CLV_USE_RESULT;
clv_account *clv_account_ref(clv_account *a);
/* What is still charged to it goes from those above, with the last reference. NULL is allowed. */
void clv_account_unref(clv_account *a);
void clv_account_unrefp(clv_account **a);

/* All or nothing. CLV_EXHAUSTED names the quota that is over, what is in use of it, and the key. */
clv_code clv_account_charge(clv_account *a, clv_quota q, uint64_t n, clv_err *err) CLV_USE_RESULT;
void clv_account_discharge(clv_account *a, clv_quota q, uint64_t n);
uint64_t clv_account_used(const clv_account *a, clv_quota q);
/* Another quota from now on; 0 is none. What is in use over it stays. Any thread. */
void clv_account_limit(clv_account *a, clv_quota q, uint64_t most);

/* ---- pooled tensors and packets -------------------------------------------------------------- */

/* Tensors of one session, reused by size: after warm-up no memory is taken. Counts against a quota:
 * over it, tensors that are free are given back first, of all pools that share it. */
typedef struct clv_pool clv_pool;

/* With an account of its own. */
clv_code clv_pool_new(size_t max_bytes, size_t max_tensors, clv_pool **ret,
                      clv_err *err) CLV_USE_RESULT;
/* Charges `account`, which nothing else charges with bytes or tensors; a reference is taken. */
clv_code clv_pool_new_of(clv_account *account, clv_pool **ret, clv_err *err) CLV_USE_RESULT;
clv_pool *clv_pool_ref(clv_pool *pool);
/* The pool goes when the last of its packets and the caller have let go of it. NULL is allowed. */
void clv_pool_unref(clv_pool *pool);
/* A tensor with one reference for the caller; unref it as any other. CLV_EXHAUSTED over the
 * quota. */
clv_code clv_pool_tensor(clv_pool *pool, clv_dtype dtype, const clv_shape *shape, clv_tensor **ret,
                         clv_err *err) CLV_USE_RESULT;
size_t clv_pool_bytes(const clv_pool *pool); /* charged now: tensors, free ones too, and modules */
clv_account *clv_pool_account(const clv_pool *pool);

/* For main, before the first thread: freed memory up to the size of the transport's buffers stays
 * with the process. Otherwise each tensor's worth of them is unmapped, mapped and cleared anew. */
void clv_keep_memory(void);

typedef struct clv_link clv_link;

/* A frame with its tensors. Owned by one place at a time; handing it to a function documented as
 * "takes the packet" gives it away in all cases. */
typedef struct clv_packet {
  clv_frame frame;
  clv_tensor *tensor[CLV_WIRE_TENSORS]; /* frame.n_tensors of them, a reference each */
  /* private */
  clv_pool *pool;
  clv_link *from;      /* gets `credit` bytes back when the packet is freed */
  uint64_t arrived_ns; /* when it was whole */
  uint64_t credit;
  uint32_t crc32c[CLV_WIRE_TENSORS]; /* of the bytes that came, for the link that received them */
  bool head; /* of a CALL whose tensors are on their way: it has its place in the order of frames */
  bool headed;  /* the same CALL, whole */
  bool refused; /* its tensors were over the quota and are not here; frame.failure says which */
  struct clv_packet *next;
} clv_packet;

clv_code clv_packet_new(clv_pool *pool, clv_frame_kind kind, clv_packet **ret,
                        clv_err *err) CLV_USE_RESULT;
/* Adds a tensor (a reference is taken). The sender's link fills in its head. */
void clv_packet_add(clv_packet *p, clv_tensor *t);
void clv_packet_free(clv_packet *p); /* back to its pool; NULL is allowed */
void clv_packet_freep(clv_packet **p);

/* ---- frames of contexts ------------------------------------------------------------------------
 *
 * What the program that owns a context sends to the nodes of its modules (PROTOCOL.md 6). Ids of
 * calls and values grow in program order. `to` names a worker; "" is the master. A context is made
 * at a node by the first frame that names it. */

/* training: keep what backward needs, dropout and batch statistics are on. */
clv_code clv_packet_call(clv_pool *pool, uint64_t context, uint64_t call, uint32_t module,
                         bool training, clv_packet **ret, clv_err *err) CLV_USE_RESULT;
/* The next argument. `here` NULL: the value of that id is at the node or comes to it. CLV_EXHAUSTED
 * over CLV_WIRE_ARGS. */
clv_code clv_packet_arg(clv_packet *call, uint64_t value, bool needs_grad, clv_tensor *here,
                        clv_err *err) CLV_USE_RESULT;
/* Its value goes to `to` as soon as it is there. */
clv_code clv_packet_call_deliver(clv_packet *call, const char *to, clv_err *err) CLV_USE_RESULT;

clv_code clv_packet_deliver(clv_pool *pool, uint64_t context, uint64_t value, const char *to,
                            clv_packet **ret, clv_err *err) CLV_USE_RESULT;
clv_code clv_packet_value(clv_pool *pool, uint64_t context, uint64_t value, const char *to,
                          clv_tensor *t, clv_packet **ret, clv_err *err) CLV_USE_RESULT;
/* Up to CLV_WIRE_UPSTREAM ids. calls: CALLs of this context sent to that node so far (a CALL whose
 * tensors come in chunks may be overtaken); 0 = don't wait for any. */
clv_code clv_packet_drop(clv_pool *pool, uint64_t context, uint64_t calls, const uint64_t *values,
                         uint32_t n, clv_packet **ret, clv_err *err) CLV_USE_RESULT;

/* phase: 1 for the first backward pass of the context, then 2, ... calls: it waits for that many of
 * the node's CALLs, up to the last one it names. more: other PREPAREs of the same phase follow (a
 * frame holds CLV_WIRE_NEEDED calls, CLV_WIRE_TARGETS targets and CLV_WIRE_HOPS names); flags of
 * all of them are the same. Calls of a module run in the order in which they are named. */
clv_code clv_packet_prepare(clv_pool *pool, uint64_t context, uint32_t phase, uint64_t calls,
                            bool retain, bool vote, bool more, clv_packet **ret,
                            clv_err *err) CLV_USE_RESULT;
/* A needed call, then its targets. root: what its gradient starts with, 0 unless it is a root.
 * CLV_EXHAUSTED when the frame is full. */
clv_code clv_packet_need(clv_packet *prepare, uint64_t call, uint32_t contributions, float root,
                         clv_err *err) CLV_USE_RESULT;
clv_code clv_packet_target(clv_packet *prepare, uint32_t slot, uint64_t value, const char *to,
                           uint32_t order, clv_err *err) CLV_USE_RESULT;
/* t NULL: nothing flows. */
clv_code clv_packet_gradient(clv_pool *pool, uint64_t context, uint32_t phase, uint64_t value,
                             uint32_t order, const char *to, clv_tensor *t, clv_packet **ret,
                             clv_err *err) CLV_USE_RESULT;

/* Places in the order of the context at the call's node, from 1, each given to one thing: the
 * forward, the backward (0: none), the gradients of parameters (0: with the rest of the
 * backward). */
void clv_packet_call_positions(clv_packet *call, uint32_t position, uint32_t input_position,
                               uint32_t weight_position, bool old_weights);

enum { CLV_MODULE_ALL = 255 };
/* As clv_packet_apply of one module, at its position in the context; not answered, FINISHED of
 * the pass follows. keep: for calls with `old_weights`. */
clv_code clv_packet_planned_step(clv_pool *pool, uint64_t context, uint64_t message,
                                 uint32_t module, uint32_t position, bool keep, float lr,
                                 clv_packet **ret, clv_err *err) CLV_USE_RESULT;
/* module or CLV_MODULE_ALL. message: answered by APPLIED with this reply_to. lr: the rate of group
 * 0. apply false: the gradients of the context are dropped. */
clv_code clv_packet_apply(clv_pool *pool, uint64_t context, uint64_t message, uint32_t module,
                          float scale, float lr, bool apply, clv_packet **ret,
                          clv_err *err) CLV_USE_RESULT;
/* The rates of groups 1..n. CLV_EXHAUSTED over CLV_WIRE_GROUPS. */
clv_code clv_packet_more_lrs(clv_packet *apply, const float *lrs, uint32_t n,
                             clv_err *err) CLV_USE_RESULT;
clv_code clv_packet_revert(clv_pool *pool, uint64_t context, uint64_t message, clv_packet **ret,
                           clv_err *err) CLV_USE_RESULT;
/* With the decision on its step, for all modules that have gradients in it, each of one group: as
 * clv_packet_apply, but ENDED is the only answer. */
void clv_packet_end_commit(clv_packet *end, float scale, float lr, bool apply);
clv_code clv_packet_end_context(clv_pool *pool, uint64_t context, uint64_t message,
                                clv_packet **ret, clv_err *err) CLV_USE_RESULT;
/* References that outlive their context (PROTOCOL.md 12), said by the program to its own node:
 * posted to it, never sent. The ids are new ones, `key` is drawn at random. Answers come to
 * on_driver: REF_ACK when the owner has answered for a handle that was made here, REF_VALUE for
 * what was fetched, REF_DELETE when a reference of this node is gone. */
typedef struct clv_ref_ids {
  uint64_t ref, fork, key; /* fork: of the first handle, which is the program's */
} clv_ref_ids;

/* Of the value of a context at its owner, or of a tensor of this process (context 0). */
clv_code clv_packet_ref_keep(clv_pool *pool, const clv_ref_ids *ids, const char *owner,
                             uint64_t context, uint64_t value, clv_tensor *own, clv_packet **ret,
                             clv_err *err) CLV_USE_RESULT;
/* The value `value` of a context at `to` is what the handle `ids->fork` stands for; child: a new
 * id. */
clv_code clv_packet_ref_use(clv_pool *pool, const clv_ref_ids *ids, uint64_t child, const char *to,
                            uint64_t context, uint64_t value, clv_packet **ret,
                            clv_err *err) CLV_USE_RESULT;
clv_code clv_packet_ref_fetch(clv_pool *pool, const clv_ref_ids *ids, clv_packet **ret,
                              clv_err *err) CLV_USE_RESULT;
clv_code clv_packet_ref_release(clv_pool *pool, const clv_ref_ids *ids, clv_packet **ret,
                                clv_err *err) CLV_USE_RESULT;

/* what: of a module's state; context: for CLV_STATE_GRADIENTS, else 0. */
clv_code clv_packet_state_get(clv_pool *pool, uint64_t context, uint64_t message, uint32_t module,
                              clv_state_what what, clv_packet **ret, clv_err *err) CLV_USE_RESULT;

/* ---- what a context did ------------------------------------------------------------------------
 *
 * With CLV_FLAG_TRACE on its first CALL a context's ENDED carries i64 [n, CLV_TRACE_COLUMNS]: a row
 * for each thing done here, rows of zeros behind. Times are of the node's monotonic clock,
 * nanoseconds. */

typedef enum clv_trace_kind {
  CLV_TRACE_NONE,
  CLV_TRACE_FORWARD, /* computing; of a call */
  CLV_TRACE_BACKWARD,
  CLV_TRACE_INPUT,  /* the first part of a backward whose second has a position of its own, */
  CLV_TRACE_WEIGHT, /* and that one */
  CLV_TRACE_STEP,
  CLV_TRACE_VALUE_OUT, /* handed to a link; of a value: BEGIN == END, no module */
  CLV_TRACE_VALUE_IN,  /* came whole */
  CLV_TRACE_GRADIENT_OUT,
  CLV_TRACE_GRADIENT_IN,
  CLV_TRACE_KINDS
} clv_trace_kind;

enum {
  CLV_TRACE_KIND,
  CLV_TRACE_MODULE,
  CLV_TRACE_MICRO,
  CLV_TRACE_BEGIN,
  CLV_TRACE_END,
  CLV_TRACE_BYTES,
  CLV_TRACE_VERSION, /* of the weights: of a call those it used, of a step those it made */
  CLV_TRACE_VALUE,   /* the call's, or what travels */
  CLV_TRACE_COLUMNS
};

/* ---- links ----------------------------------------------------------------------------------- */

typedef struct clv_link_counts {
  uint64_t bytes_in, bytes_out; /* of messages, framing included, TLS not */
  uint64_t tensors_in, tensors_out;
  uint64_t round_trip_ns; /* last PING, 0 before */
  int64_t
      clock_ahead_ns; /* of the peer's monotonic clock before ours, at the quickest PING so far */
  /* Tensors that came in chunks, and the time in which some were on their way; what the peer said
   * of its side in its last answer to a PING. Their quotient is the rate of a link that is the
   * bottleneck. */
  uint64_t received_bytes, receiving_ns, peer_received_bytes, peer_receiving_ns;
  uint64_t peer_measured_ns; /* when it said so, monotonic; 0: never yet */
  /* How long a node had nothing to do until a packet of this link came, and how often that was a
   * millisecond or more. */
  uint64_t awaited_ns, awaits;
} clv_link_counts;

/* What is on its way at this moment. */
typedef struct clv_link_load {
  uint64_t frames_in, frames_out;   /* come and not freed; not yet taken by the transport */
  uint64_t tensors_in, tensors_out; /* in chunks, some of which are still missing */
  uint64_t bytes_in, bytes_out;     /* of tensors: still missing; not known to have arrived */
} clv_link_load;

typedef struct clv_link_events {
  void *user;
  /* A whole packet with all its tensors, checksums verified; the receiver takes it. Queue
   * thread. */
  void (*on_packet)(void *user, clv_link *link, clv_packet *packet);
  /* Optional: asked before any packet with tensors or a failure leaves, and may change the failure;
   * a refusal is what clv_link_send returns. The one place where tensors and texts leave a process:
   * the master's egress table is enforced here. */
  clv_code (*may_send)(void *user, clv_link *link, clv_packet *packet, clv_err *err);
  /* Once, when the control lane or any bulk lane has ended, or a message was malformed. */
  void (*on_closed)(void *user, clv_link *link, clv_code code, const char *text);
} clv_link_events;

typedef struct clv_link_options {
  const char *peer_name;   /* for messages */
  clv_pool *pool;          /* received tensors; referenced by the link */
  clv_wire_limits accept;  /* what this side accepts */
  uint64_t send_credit;    /* bytes of tensors the peer lets be in flight */
  bool quota_fails_packet; /* tensors over the pool's quota fail their packet, not the link */
  clv_link_events events;
} clv_link_options;

/* Accepting side: a link without lanes; lanes join through clv_lane_accept. */
clv_code clv_link_new(const clv_link_options *options, clv_link **ret, clv_err *err) CLV_USE_RESULT;

typedef struct clv_link_dial {
  const char *address, *identity; /* of the peer */
  clv_rpc_pem pem;
  clv_rpc_limits limits;
  clv_wire_id session, incarnation;
  uint64_t epoch;
  const char *owner;   /* of the session, for CLV_ATTACH_PEER; else NULL */
  uint32_t bulk_lanes; /* 0: chunks share the control lane */
  clv_attach_role role;
  unsigned timeout_ms;
} clv_link_dial;

/* BLOCKS. Dialling side: connect 1 + bulk_lanes streams, ATTACH each, wait for all ATTACHED. */
clv_code clv_link_open(clv_rpc_runtime *runtime, const clv_link_options *options,
                       const clv_link_dial *dial, clv_link **ret, clv_err *err) CLV_USE_RESULT;

clv_link *clv_link_ref(clv_link *link);
void clv_link_unref(clv_link *link); /* NULL is allowed */
void clv_link_unrefp(clv_link **link);

/* Ends every lane and gives up the connections; on_closed comes with CLV_OK if it has not come yet.
 * By one thread, and not beside clv_link_open. */
void clv_link_close(clv_link *link);

/* Takes the packet. Never blocks: large packets, and what is over the credit, wait inside the link
 * in order, holding their tensors, and leave by a thread of rpc's; an ABORT waits for nothing.
 * CLV_UNAVAILABLE once the link has closed. */
clv_code clv_link_send(clv_link *link, clv_packet *packet, clv_err *err) CLV_USE_RESULT;

void clv_link_count(clv_link *link, clv_link_counts *ret);
void clv_link_measure_load(clv_link *link, clv_link_load *ret);
/* A PING whose PONG clv_link_count shows, unless one is out or the last has just left. Nobody else
 * may PING over this link then. */
void clv_link_ask(clv_link *link);
const char *clv_link_peer(const clv_link *link);
/* Whether a message of the peer that makes no sense has ended the link; for on_closed. */
bool clv_link_refused(const clv_link *link);

/* BLOCKS. One PING and its PONG; the round trip in nanoseconds. One caller at a time. */
clv_code clv_link_ping(clv_link *link, unsigned timeout_ms, uint64_t *ret_ns,
                       clv_err *err) CLV_USE_RESULT;

/* Accepting side, for rpc's on_stream: the first frame of a stream must be ATTACH. find_link
 * returns the session's link (with a reference) or refuses; `deliver` is the limit for the rest. */
typedef struct clv_lane_acceptor {
  void *user;
  clv_code (*find_link)(void *user, const clv_frame *attach, const char *peer_uri,
                        clv_link **ret_link, clv_err *err);
} clv_lane_acceptor;

clv_code clv_lane_accept(const clv_lane_acceptor *acceptor, const clv_rpc_peer *peer,
                         clv_rpc_stream *stream, clv_rpc_stream_events *ret_events,
                         clv_err *err) CLV_USE_RESULT;

/* ---- modules as data ------------------------------------------------------------------------- */

/* The memory behind a LoadModule's graph. Start with {0}; the graph must outlive it. */
typedef struct clv_module_message {
  clv_wire_node *nodes; /* [n_nodes], as the following */
  uint32_t (*inputs)[CLV_MAX_IN];
  clv_wire_attr (*attrs)[CLV_WIRE_ATTRS];
  clv_attr_value (*values)[CLV_WIRE_ATTRS];
  clv_key *keys;
  uint32_t output;
  clv_wire_spec specs[CLV_MAX_INPUTS];
  uint32_t n_specs;
} clv_module_message;

/* Fills q->graph, q->keys and q->inputs with views into *m, which is released whatever is
 * returned. */
clv_code clv_module_message_make(const clv_graph *graph, clv_module_message *m,
                                 clv_wire_load_request *q, clv_err *err) CLV_USE_RESULT;
void clv_module_message_done(clv_module_message *m);

/* Settings of a group. final: as in clv_module_options. */
clv_wire_optimizer clv_module_message_optimizer(const clv_optim_config *optimizer, bool final);

/* ---- modules --------------------------------------------------------------------------------- */

/* Parameters that are stepped with settings and a rate of their own. */
typedef struct clv_module_group {
  clv_optim_config optimizer;
  const char *const *params; /* [n_params] exact names; they learn and are in no other group */
  uint32_t n_params;
} clv_module_group;

typedef struct clv_module_options {
  uint32_t index;   /* of the session's modules */
  const char *name; /* of the module, for people; NULL or up to CLV_WIRE_NAME bytes */
  clv_graph *graph; /* taken over */
  const clv_backend *backend;
  int threads;
  bool bf16;                  /* as in clv_plan_options */
  bool input_needs_grad;      /* the plan that is made ahead has the gradient of the first input */
  clv_optim_config optimizer; /* group 0: parameters that learn and are in none of `groups` */
  const clv_module_group *groups; /* [n_groups] groups 1.., of the same kind */
  uint32_t n_groups;              /* up to CLV_WIRE_GROUPS */
  bool hold_rest;                 /* nobody is in group 0: those parameters are not stepped */
  bool learns;                    /* false: no optimiser */
  bool final;                /* steps are not taken back: no copy of what they change is kept */
  uint32_t in_flight;        /* calls between forward and backward that memory is made ready for */
  const char *const *frozen; /* exact parameter names */
  uint32_t n_frozen;
  clv_pool
      *pool; /* charged with the module's memory while it is made; NULL: clv_node_add_module does */
  int64_t
      batch; /* the plan to train with so many samples is made, and charged, before any memory is
                    taken; 0: clv_module_warm makes it */
  const clv_waiter
      *waiter; /* for the module while it is made: CLV_CANCELLED when gone; NULL: none */
} clv_module_options;

typedef struct clv_module clv_module;

/* Parameters are initialised from the keys of the graph's nodes. The lists are not kept.
 * CLV_NOT_FOUND, CLV_INVALID,
 * CLV_EXISTS: a group names a parameter that does not exist, does not learn, is in two groups. */
clv_code clv_module_new(const clv_module_options *options, clv_module **ret,
                        clv_err *err) CLV_USE_RESULT;
void clv_module_free(clv_module *m);
void clv_module_freep(clv_module **m);

typedef struct clv_module_counts {
  uint64_t forwards, backwards, evals;
  uint64_t steps;   /* of the optimiser, those of an earlier run included */
  uint64_t stepped; /* times that it has stepped here, steps that were taken back included */
  uint64_t compute_ns;
  uint32_t most_versions; /* of the parameters alive at once, so far */
} clv_module_counts;

void clv_module_count(const clv_module *m, clv_module_counts *ret); /* any thread */
const char *clv_module_name(const clv_module *m);                   /* "": it has none */
const clv_graph *clv_module_graph(const clv_module *m);
const clv_params *clv_module_params(const clv_module *m);
size_t clv_module_bytes(const clv_module *m); /* parameters, moments, plans so far */

/* A named piece of a module's state, a view into its memory. */
typedef struct clv_state_item {
  char name[CLV_WIRE_NAME + 1];
  clv_dtype dtype;
  clv_shape shape;
  size_t bytes;
  void *data;
} clv_state_item;

/* WEIGHTS: parameters and buffers; OPTIMIZER: "<param>.exp_avg"..., and "step" (i64 scalar, as
 * data of 8 bytes). Items are numbered 0..n-1. */
uint32_t clv_module_state_count(const clv_module *m, clv_state_what what);
bool clv_module_state_item(clv_module *m, clv_state_what what, uint32_t index, clv_state_item *ret);

/* Write one item by name: dtype and shape must agree. */
clv_code clv_module_state_set(clv_module *m, clv_state_what what, const char *name, clv_dtype dtype,
                              const clv_shape *shape, const void *data,
                              clv_err *err) CLV_USE_RESULT;

/* Make the training plan and its buffers for a batch size now, so that the first step is as fast as
 * the rest and memory problems show early. */
clv_code clv_module_warm(clv_module *m, int64_t batch, clv_err *err) CLV_USE_RESULT;

/* ---- turns to compute ---------------------------------------------------------------------------
 *
 * The nodes of a process that share its cores compute in turn: as many threads at once as there are
 * cores. Who waits is served by least virtual time, the time computed divided by the weight;
 * tenants first, then the shares of a tenant, one for each node. Time that a tenant or a share has
 * been idle is not made up for. A turn lasts until its share has nothing to do, or somebody else is
 * due. */

typedef struct clv_fair_scheduler clv_fair_scheduler;
typedef struct clv_share clv_share;

typedef struct clv_fair_scheduler_options {
  unsigned cores;
  size_t n_tenants;
  const uint64_t *weights;        /* [n_tenants], copied */
  uint64_t slice_ns;              /* a turn is not cut shorter for others */
  uint64_t (*now_ns)(void *user); /* NULL: clv_now_ns */
  void *user;
} clv_fair_scheduler_options;

clv_code clv_fair_scheduler_new(const clv_fair_scheduler_options *options, clv_fair_scheduler **ret,
                           clv_err *err) CLV_USE_RESULT;
/* One more tenant, and another weight for one: what it computes from then on counts by that. Any
 * thread. */
clv_code clv_fair_scheduler_add(clv_fair_scheduler *t, uint64_t weight, size_t *ret_tenant,
                           clv_err *err) CLV_USE_RESULT;
void clv_fair_scheduler_weigh(clv_fair_scheduler *t, size_t tenant, uint64_t weight);
void clv_fair_scheduler_free(clv_fair_scheduler *t); /* after its shares; NULL is allowed */

clv_code clv_share_new(clv_fair_scheduler *t, size_t tenant, clv_share **ret, clv_err *err) CLV_USE_RESULT;
void clv_share_free(clv_share *s); /* its thread must be done with it; NULL is allowed */

/* By one thread, with nothing of its own locked; without a share (NULL) nobody waits. BLOCKS until
 * it is this one's turn, with so many threads (those of all cores at most), or it is stopped:
 * false. To be called before each piece of work; costs next to nothing while nobody else waits. */
bool clv_share_take(clv_share *s, unsigned threads);
void clv_share_yield(clv_share *s); /* gives the turn away if somebody else is due; never waits */
void clv_share_release(clv_share *s); /* nothing to do: to be called before waiting for anything else */

/* From any thread. It gets no turn any more, and does not wait for one. */
void clv_share_stop(clv_share *s);

typedef struct clv_share_counts {
  uint64_t waited_ns, computed_ns, slices; /* wall time, what is in progress included */
} clv_share_counts;
void clv_share_count(clv_share *s, clv_share_counts *ret); /* any thread */

/* ---- nodes ----------------------------------------------------------------------------------- */

typedef struct clv_node_options {
  clv_pool *pool;
  uint16_t originator;         /* upper 16 bits of the message ids made here; the master is 0 */
  clv_rpc_runtime *runtime;    /* its spinning stops while a kernel runs; NULL allowed */
  clv_share *share;              /* that it computes from; NULL: whenever it likes. Outlives it */
  uint32_t reference_lease_ms; /* the same at all nodes of a session; 0: CLV_WIRE_REF_LEASE */
  /* On the master: VALUE, GRADIENT of a leaf, FINISHED, APPLIED, ENDED, STATE_*, ABORT, ERROR.
   * Called on the compute thread; takes the packet. On a worker NULL: such packets go to the
   * master's link. */
  void *user;
  void (*on_driver)(void *user, clv_packet *packet);
  clv_notifier notice; /* on the compute thread */
} clv_node_options;

typedef struct clv_session_node clv_session_node;

clv_code clv_node_new(const clv_node_options *options, clv_session_node **ret,
                      clv_err *err) CLV_USE_RESULT;
/* No link may deliver into it any more, and clv_node_run must have returned. */
void clv_node_free(clv_session_node *n);

/* Takes the module, whatever it returns; its bytes count against the pool's quota. CLV_EXISTS:
 * there is a module of that index, or it is CLV_MODULE_ALL or above. */
clv_code clv_node_add_module(clv_session_node *n, clv_module *module, clv_err *err) CLV_USE_RESULT;
clv_module *clv_node_module(clv_session_node *n, uint32_t module); /* or NULL */

/* On a worker: the link to the master (a reference is taken; NULL: there is none any more). */
void clv_node_set_master(clv_session_node *n, clv_link *link);

/* The link to a worker by its name: there go packets for it (clv_node_send_to) and the values and
 * gradients of contexts that name it; what names somebody unknown goes to the master. Any
 * thread. */
clv_code clv_node_peer(clv_session_node *n, const char *name, clv_link *link,
                       clv_err *err) CLV_USE_RESULT;
/* Lets go of all of them, before their links are closed. */
void clv_node_forget_peers(clv_session_node *n);
/* To the worker `name`, or ("") to this node itself; takes the packet. Any thread. */
clv_code clv_node_send_to(clv_session_node *n, const char *name, clv_packet *packet,
                          clv_err *err) CLV_USE_RESULT;

/* Of references that outlive their context: values kept here, handles of values anywhere, and
 * messages about either that are not acknowledged yet. */
typedef struct clv_reference_counts {
  uint64_t owned, used, pending;
} clv_reference_counts;

typedef struct clv_context_counts {
  uint64_t contexts, values, calls_waiting, late_frames;
  clv_reference_counts references;
} clv_context_counts;
void clv_node_context_count(const clv_session_node *n, clv_context_counts *ret); /* any thread */

/* Queue a packet from any thread; takes it. */
void clv_node_post(clv_session_node *n, clv_packet *packet);

/* Handle queued packets on this thread until clv_node_stop. */
void clv_node_run(clv_session_node *n);
void clv_node_stop(clv_session_node *n);
/* Instead of clv_node_run: handle packets on this thread until clv_node_kick, which ends this call
 * or, since the last clv_node_unkick, the next one; false when deadline_ns (monotonic) passed
 * first. One thread at a time. */
bool clv_node_help(clv_session_node *n, uint64_t deadline_ns);
void clv_node_kick(clv_session_node *n); /* any thread */
void clv_node_unkick(clv_session_node *n);
/* How long clv_node_run or clv_node_help has had nothing to do, the wait in progress included. Any
 * thread. */
uint64_t clv_node_idle_ns(const clv_session_node *n);

/* Where its thread's time has gone since clv_node_run began, what is in progress included. */
typedef struct clv_node_times {
  uint64_t idle_ns; /* nothing to do */
  uint64_t share_ns; /* something to do, and other sessions before it: 0, all compute at once */
  uint64_t busy_ns; /* the rest */
} clv_node_times;
void clv_node_time(const clv_session_node *n, clv_node_times *ret); /* any thread */

/* What a node of a worker last told its master that had gone wrong. */
typedef struct clv_node_failure {
  uint64_t count; /* so far; 0: nothing */
  uint64_t at_ns; /* monotonic */
  clv_code code;
  char text[CLV_WIRE_TEXT + 1];
} clv_node_failure;
void clv_node_last_failure(clv_session_node *n, clv_node_failure *ret); /* any thread */

/* How long queue threads may poll beside so many compute threads of this process, microseconds: 0
 * where together they would not fit the cores. */
unsigned clv_spin_us(unsigned compute_threads);

#endif
