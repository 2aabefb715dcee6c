/* SPDX-License-Identifier: Apache-2.0
 *
 * The internals of libcleave: records and functions that only master/api uses. The program makes
 * every call, so this process records the tape, which says which value came from which call. The
 * library sends nodes the calls to compute, the receivers of values, and the calls that take part
 * in a backward pass.
 *
 * The files, from the lowest layer up; a file calls only lower ones (tests/check-circles):
 *
 *   error.c, id_table.c, failures.c   errors and tensors of callers; ids; failures of other nodes
 *   state_tables.c                 states of peers, modules and contexts as tables
 *   runtime.c, incarnations.c      lock, clock, nodes by name, the jobs; which workers are present
 *   send.c                         frames to nodes, failures of contexts, the unsent final step
 *   tape.c, context_end.c          contexts and values as records; how contexts end
 *   forget.c                       frees calls that no later backward can reach
 *   module_unload.c, group_members.c  how modules are unloaded and leave their optimisers
 *   lost_nodes.c                   fails all that uses a lost node
 *   wait.c                         waiting for nodes; runs the jobs that are due
 *   recompute_blocks.c, adapters.c changes of a module's graph by its options
 *   context.c, module.c, module_load.c  opening and loading: may wait
 *   param_groups.c, optimizer.c, step.c  groups of parameters, votes, decisions
 *   state_requests.c, state_dict.c, state_pieces.c  state by name and in pieces
 *   call.c, reference_fetch.c      leaves, calls, delivery of their inputs; values at other nodes
 *   outputs.c                      modules with several outputs
 *   backward.c                     the walk over the tape
 *   events.c, links.c, may_send.c  answers of nodes; links; the check before a tensor is sent
 *   future.c, operations.c         records of operations in progress; the table of operations
 *   await.c, blocking.c            running operations; the blocking and the asynchronous functions
 *   workers.c, runtime_open.c, runtime_close.c  sessions; opening and closing a runtime
 *
 * core calls master/api/extra only through pointers that extra registers: a table of functions when
 * the first reference is kept (api_kept_ops), operations, the callbacks of futures, and records
 * that are freed with the runtime (api_attachment).
 *
 * Functions that can fail return cleave_status and take `cleave_error *error` (NULL allowed) last.
 * One lock guards everything behind a runtime. It is held for microseconds. Packets are sent under
 * the lock, so that a context's calls are sent in the order in which they were made.
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
  API_MAX_NODES = 64,          /* nodes of a session; a set of nodes has one bit for each */
  API_MAX_MODULES = 255,       /* modules of a runtime; index 255 in a frame means all modules */
  API_DEVICE_NAME_BYTES = 32,  /* bytes of a device's name */
  API_DEVICE_LIST_BYTES = 256, /* bytes of a list of device names */
};
typedef uint64_t api_node_set; /* bit i: node i of the runtime */
#define NODE_BIT(index) ((api_node_set)1 << (index))

/* ---- copies of the program's tensors --------------------------------------------------------- */

/* Copies the caller's tensor into a tensor of the pool. */
cleave_status api_copy_tensor_in(clv_pool *pool, const cleave_tensor *from, clv_tensor **ret,
                                 cleave_error *error);
cleave_status api_copy_tensor_out(const clv_tensor *from, cleave_tensor *ret, cleave_error *error);
cleave_status api_copy_shape_in(int rank, const int64_t *dims, clv_shape *ret, cleave_error *error);

/* ---- a table from ids to records ------------------------------------------------------------- */

/* Hash table with open addressing and linear probing. Id 0 marks a free slot. The table never
 * shrinks. */
typedef struct api_id_table {
  uint64_t *ids;
  void **entries;
  size_t cap, n; /* cap: number of slots, a power of two or 0; n: number of entries */
} api_id_table;

clv_code api_id_table_put(api_id_table *t, uint64_t id, void *entry, clv_err *err) CLV_USE_RESULT;
void *api_id_table_get(const api_id_table *t, uint64_t id); /* NULL: no such id */
void api_id_table_remove(api_id_table *t, uint64_t id);
/* Returns the next entry, in no particular order; NULL: there are no more. *at: 0 before the first
 * call. A caller that removes an entry starts again at 0, because removal moves other entries. */
void *api_id_table_next(const api_id_table *t, size_t *at);
void api_id_table_free(api_id_table *t);

/* ---- nodes of a session ---------------------------------------------------------------------- */

/* A node of the session. Node 0 is the master itself: it has no link, and its packets go to
 * cleave_runtime.node. */
typedef struct api_peer {
  cleave_runtime *runtime;
  uint32_t index;
  const char *name;
  const clv_remote_spec *spec;
  clv_rpc_channel *channel;
  clv_link *link;
  clv_wire_id incarnation;
  clv_wire_limits limits;
  uint32_t peer_timeout_ms;  /* silence after which the link to the peer is given up */
  uint32_t protocol_version; /* version of the protocol that the peer uses */
  api_peer_state state;
  bool has_session; /* a session is open at the worker */
  bool has_module;  /* a module was loaded at the peer */
  /* features of the worker's version */
  bool supports_state_files, supports_row_cache, supports_state_pieces, supports_fixed_modules,
      supports_ties, supports_ema;
  bool supports_bf16_weights, supports_kept_refs, supports_bf16_values;
  uint64_t last_packet_ns; /* monotonic time of the peer's last packet */
  /* monotonic time since which the peer reports that it redials a lost link to another worker, ns;
   * 0: it reports no such link */
  uint64_t mending_since_ns;
  char device[API_DEVICE_NAME_BYTES];  /* device that "auto" means at the peer */
  char devices[API_DEVICE_LIST_BYTES]; /* all devices of the peer: "cpu, cuda:0" */
  /* error of the peer's last loss, which functions that need the peer return */
  cleave_error loss_error;
  clv_link_counts last_link_counts; /* counters of the link at the last cleave_measure */
  /* number of times that the peer was lost and has rejoined (incarnations_int.h) */
  uint32_t n_rejoins;
  char wire_name[CLEAVE_NAME + 1]; /* name of the peer in frames, once it has rejoined */
  uint64_t connect_deadline_ns; /* monotonic time at which connecting must be done; 0: not begun */
  /* bytes sent and received over the peer's links that have ended */
  uint64_t closed_links_bytes_sent, closed_links_bytes_received;
  uint32_t n_modules_loading; /* number of modules that are being loaded at the peer */
} api_peer;

/* True if the peer is not in the state PEER_PRESENT. The runtime sends no frames to such a peer. */
static inline bool api_is_peer_lost(const api_peer *p) { return p->state != PEER_PRESENT; }

/* ---- records of modules ---------------------------------------------------------------------- */

/* A weight that the program gave, kept until the module is loaded at its node. */
typedef struct api_pending_weight {
  char *name;
  clv_tensor *tensor;
} api_pending_weight;

/* Settings of an optimiser for the parameters of one group. */
typedef struct api_optimizer_group {
  clv_optim_config optim;
  clv_lr_schedule schedule;
} api_optimizer_group;

struct cleave_module {
  cleave_runtime *runtime;
  /* index of the module in the runtime; number of this load among the loads at the index: `module`
   * and `generation` in frames */
  uint32_t index, generation;
  uint64_t load_number; /* number in the order of loading, from 1 */
  uint32_t n_contexts;  /* contexts that have used the module and are not freed */
  /* number of kept values (cleave_keep) that the module computes, plus operations in progress that
   * use the module; above 0: the record is not freed */
  uint32_t n_kept_refs;
  uint64_t unload_message_id; /* id of the UNLOAD that its node has not answered; 0: none */
  char name[CLEAVE_NAME + 1], device[API_DEVICE_NAME_BYTES];
  uint32_t node;
  uint32_t n_rejoins_at_load; /* n_rejoins of its node's peer when the module was loaded there */
  clv_graph *graph;
  clv_params *params;
  /* [params->n_ties] module that owns each tied parameter; NULL: this module itself */
  cleave_module **tie_owners;
  /* names of parameters that get initial values; names of frozen parameters; `params` owns the
   * texts */
  const char **initialized_param_names, **frozen_param_names;
  /* [n_inputs] index of each input node in the graph */
  int input_node_indexes[CLV_MAX_INPUTS];
  uint32_t n_frozen_params, n_initialized_params; /* numbers of names in these two lists */
  uint32_t n_trained_params; /* number of parameters that are trainable and not frozen */
  uint32_t n_inputs, n_threads, max_calls_in_flight;
  /* backend of the module, if it is at the master; NULL: it is at a worker */
  const clv_backend *backend;
  bool accepts_only_local_inputs, copies_inputs, is_released, was_called, needs_input_grads;
  bool has_given_weights;  /* the program gave weights when it loaded the module */
  bool has_secret_weights; /* cleave_module_options.weights_are_secret */
  uint64_t seed;           /* cleave_module_options.seed */
  /* The last attempt to load the module has failed with an unknown outcome, so the node may have
   * any generation from first_attempt_generation to the present one. */
  bool may_be_at_node;
  uint32_t first_attempt_generation;
  /* [n_direct_to] cleave_module_options.direct_to; NULL: as the session file says */
  const char **direct_to;
  uint32_t n_direct_to;
  bool computes_in_bf16, allows_tf32, is_frozen_set_final, stores_frozen_as_bf16;
  char *artifact_name; /* name of the worker's artifact that has the module's weights; NULL: none */
  clv_sha256 artifact_sha256;
  api_module_state state;
  /* [n_pending_weights] weights to send once the module is loaded */
  api_pending_weight *pending_weights;
  size_t n_pending_weights;
  /* the next use of the module loads it again; set only in state PLACED */
  bool needs_reload;
  bool resets_moments; /* the reload starts with optimiser moments of 0 */
  /* [0]: weights, [1]: moments; [n_saved_state_items[i]] items saved during a reload */
  struct api_state_item *saved_state[2];
  uint32_t n_saved_state_items[2];
  struct cleave_optimizer *optimizer; /* optimiser that steps the module; NULL: none */
  /* [n_groups] settings of the parameter groups, by the group numbers of the module's node. The
   * unstepped group (parameters that no step changes), which is number 0 if it exists, has the
   * settings of group 1. */
  const api_optimizer_group *groups[CLV_OPTIM_MAX_GROUPS];
  uint32_t n_groups;
  /* [params->n] 1 + group number of each parameter; 0: in no group. NULL without an optimiser */
  uint8_t *param_group_numbers;
  /* some trainable parameters are in no group; at the node these form group 0, which no step
   * changes */
  bool has_unstepped_group;
  /* number of steps and writes that have changed the module's parameters */
  uint64_t weights_version;
  /* [n_outputs] modules that each take one output out of the joined output of this module
   * (outputs.c), and are released with this module; all NULL: this module has one output */
  cleave_module *output_modules[CLV_MAX_OUTPUTS];
  uint32_t n_outputs; /* at least 1 */
  /* of an output module: name of the module whose output it takes, and index of that output; "": a
   * module of the program */
  char output_owner_name[CLEAVE_NAME + 1];
  uint32_t output_index;
};

/* Returns the name of the module as the program loaded it, and in *ret_output_index the index of
 * the output. For an output module (outputs.c) these are the name of the module with several
 * outputs, and the index of the output. */
static inline const char *api_program_module_name(const cleave_module *m,
                                                  uint32_t *ret_output_index) {
  *ret_output_index = m->output_index;
  return m->output_owner_name[0] ? m->output_owner_name : m->name;
}

/* Makes a module. Takes ownership of the graph. network_name: name from which the layers' keys are
 * derived; NULL: the module's own name. */
cleave_status api_module_new(cleave_runtime *rt, const cleave_module_options *o,
                             const char *network_name, clv_graph *graph, cleave_module **ret,
                             cleave_error *error) CLEAVE_RESULT;
/* Derives the keys of a graph's layers. */
cleave_status api_derive_keys(const cleave_runtime *rt, const char *network_name, uint64_t seed,
                              clv_graph *g, cleave_error *error) CLEAVE_RESULT;
/* BLOCKS. Loads the module at its node, if it is not there. Called with the runtime's lock held,
 * which is released during the load. */
cleave_status api_module_place(cleave_module *m, bool needs_input_grads, uint64_t deadline_ms,
                               cleave_error *error);
/* Checks that the module has a parameter or buffer `name`, with the dtype and shape of t (NULL:
 * any). */
cleave_status api_check_weight(const cleave_module *m, const char *name, const cleave_tensor *t,
                               cleave_error *error);
/* BLOCKS. Loads the module: sends LoadModule to its worker, or makes the module at the master's own
 * node. Called without the runtime's lock. */
cleave_status api_load_module(cleave_module *m, uint64_t deadline_ms, cleave_error *error);

/* ---- records of contexts and values ---------------------------------------------------------- */

/* Record of a kept reference, looked up by its id. After the program has released the reference,
 * the record stays while leaves of contexts, or the entry of the master's own node, need it. */
typedef struct api_kept_ref {
  clv_ref_ids ids;
  uint32_t owner_node;   /* node that keeps the value */
  uint64_t value_id;     /* id of the value in the context that made it */
  cleave_module *module; /* module that computes it; NULL: a leaf of the program */
  char context_name[64]; /* name of the context that made the value */
  clv_dtype dtype;
  clv_shape shape;
  /* context whose end waits for the owner's answer; NULL: the owner has answered */
  struct api_context *awaiting_context;
  bool is_confirmed;         /* the owner has answered that it keeps the value */
  bool is_released;          /* the program has no handle any more */
  bool owner_lacks_value;    /* the owner has freed the value, or never had it */
  bool is_fetching;          /* a fetch is in progress */
  bool has_failed;           /* the reference has failed, and `failure` is set */
  bool last_fetch_succeeded; /* the last fetch brought a value */
  uint32_t n_leaves;         /* leaves of contexts that refer to the kept value (cleave_keep) */
  uint32_t n_waiters;        /* functions that wait for a fetch */
  uint64_t n_fetches_done;   /* completed fetches */
  /* result of the last fetch; NULL: there is none, or no function waits for it */
  clv_tensor *fetched_value;
  cleave_error fetch_error; /* why the last fetch failed */
  cleave_error failure;     /* why the reference has failed; set if has_failed */
} api_kept_ref;

/* A value of a context: a leaf or the output of a call. */
typedef struct api_value {
  uint64_t id;
  struct api_context *context;
  cleave_module *module;  /* module that was called; NULL: a leaf */
  api_kept_ref *kept_ref; /* kept reference of a leaf; NULL: a tensor of the program */
  /* of a leaf of cached rows: module whose output rows the worker has cached; NULL: another
   * value */
  const cleave_module *cached_rows_module;
  clv_dtype dtype;
  clv_shape shape;
  /* the program gets the value rounded to bf16: local_tensor is bf16, `dtype` f32 */
  bool is_fetched_as_bf16;
  /* nodes that compute the value, have it, or are being sent it */
  api_node_set nodes_with_value;
  /* nodes that are sent the value once a module is loaded there */
  api_node_set nodes_awaiting_module;
  bool needs_grad;  /* backward computes the gradient of the value */
  bool is_released; /* the program has no handle any more */
  bool has_failed;  /* the value will never exist; `failure` says why */
  /* the node was asked (by DELIVER or CALL) to send the value to the master */
  bool is_deliver_sent;
  bool is_received; /* the value has come from its node */
  /* the master's own node waits for the value, not only the program */
  bool is_awaited_by_master_node;
  bool are_saved_tensors_freed; /* a backward without `retain` has covered the call */
  bool had_backward;            /* some backward pass has covered the call */
  /* the value is kept when its context ends, because a kept value (cleave_keep) depends on it */
  bool is_retained;
  /* the program has called cleave_keep for the value, so the record of the value stays */
  bool is_kept;
  /* a kept value (cleave_keep) that depends on this value is computed at another node */
  bool is_needed_by_peer;
  uint32_t n_waiters; /* functions that wait for the value */
  cleave_error failure;
  clv_tensor *local_tensor; /* tensor of the value; NULL: this process does not have it */
  uint32_t n_args;
  struct api_value *args[CLV_MAX_INPUTS];
  /* call whose backward must run before this call (cleave_call_options.after); NULL: none */
  struct api_value *runs_after_backward_of;
  /* calls that run after this call's backward, which has not begun */
  uint32_t n_calls_after_backward;
  /* number of the last sweep (a walk of forget.c, which frees values) in which another value needed
   * this one */
  uint64_t last_needed_sweep;
  uint32_t call_number; /* number of its CALL among the context's calls to the node, from 1 */
  /* n_node_drives_begun of the runtime when the call was made. While it is the same in the runtime,
   * no thread has run the master's node since the call. */
  uint64_t n_node_drives_begun;
  uint64_t weights_version; /* weights_version of the module when the call was made */
  /* The fields below belong to the last backward pass that reached the value. */
  uint32_t last_pass_number; /* number of the last pass that reached the value */
  /* number of contributions: gradients whose sum is the gradient of the value */
  uint32_t n_contributions;
  /* number of contributions that have arrived so far */
  uint32_t n_contributions_received;
  float root_weight;        /* initial gradient of a root; 0: not a root */
  uint32_t last_root_index; /* index of the last root that depends on the value */
  /* next value of the same api_call_group, or of a list of values to free */
  struct api_value *next_in_list;
  /* [n_args] for each input: index of this call's contribution in the sum that is the input's
   * gradient */
  uint32_t contribution_indexes[CLV_MAX_INPUTS];
  /* The fields below belong to a leaf. */
  /* [contributions_cap] gradients received in this pass, in the order in which they are added */
  clv_tensor **contributions;
  uint32_t contributions_cap;
  clv_tensor *gradient;
  /* next older value of the same context; in the free list: next free record */
  struct api_value *older_value;
} api_value;

typedef struct api_context {
  uint64_t id;
  char name[64];
  api_context_state state;
  bool is_evaluation;  /* calls use evaluation mode, and there is no backward */
  bool records_events; /* nodes send their events at the end of the context */
  /* after END_CONTEXT the nodes still hold the calls that kept values (cleave_keep) depend on */
  bool keeps_needed_calls;
  bool has_final_step; /* a step that cannot be reverted was decided in the context */
  /* number of calls that must run after a backward that has not begun
   * (cleave_call_options.after) */
  uint32_t n_calls_awaiting_backward;
  uint64_t rng_step;  /* step number of the RNG position; 0: the context's number */
  uint32_t n_waiters; /* functions of the program that wait within the context */
  /* number of kept values (cleave_keep) whose owner has not answered */
  uint32_t n_unconfirmed_kept_values;
  uint64_t end_resend_ns;          /* monotonic time at which END_CONTEXT is sent again */
  uint64_t end_resend_interval_ns; /* delay between two sendings of END_CONTEXT */
  api_value *newest_value;
  api_node_set nodes_used;  /* nodes that were sent something of the context */
  api_node_set nodes_ended; /* nodes that have freed all they held for the context */
  /* nodes that have freed all but what kept values (cleave_keep) need */
  api_node_set nodes_keeping_calls;
  /* nodes that were lost and have rejoined since the context used them */
  api_node_set nodes_since_restarted;
  /* number of calls sent to each node; each new call gets its call_number from this counter.
   * PREPARE and DROP carry such a number, and the node first waits until it has that many calls. */
  uint32_t n_calls_sent[API_MAX_NODES];
  uint32_t last_pass_number; /* number of the last backward pass */
  /* last backward pass in which each node took part */
  uint32_t last_pass_number_at_node[API_MAX_NODES];
  bool is_backward_running;
  bool has_used_module[API_MAX_MODULES]; /* for each module: the context has sent something to it */
  uint32_t n_module_calls[API_MAX_MODULES]; /* calls of each module so far */
  /* nodes that take part in the running pass; nodes of this pass that have sent FINISHED */
  api_node_set nodes_in_pass, nodes_finished_pass;
  uint32_t n_leaf_gradients_missing;  /* gradients of leaves, not received yet */
  bool has_gradient[API_MAX_MODULES]; /* a backward has reached parameters of the module */
  clv_tensor *votes[API_MAX_NODES];   /* sums of squared gradients in each node's last FINISHED */
  /* nodes whose last vote (FINISHED) reports a gradient that is not finite */
  api_node_set nodes_with_nonfinite_gradients;
  /* nodes to which the program has written gradients since their last vote (FINISHED) */
  api_node_set nodes_with_written_gradients;
  /* number of answers to APPLY or REVERT that have not arrived */
  uint32_t n_step_answers_missing;
  /* id of the first message of the present decision; answers to earlier messages are ignored */
  uint64_t first_apply_message_id;
  uint64_t step_deadline_ms; /* deadline of the step, as the program gave it; 0: the runtime's */
  uint64_t decision_deadline_ns;     /* monotonic time at which the step is given up */
  api_node_set nodes_sent_apply;     /* nodes that were sent APPLY since the last decision */
  bool has_reverted_step;            /* a step was reverted after cleave_step had returned */
  bool has_stepped[API_MAX_MODULES]; /* the module has taken its step */
  /* the module has stepped by cleave_step_at, so calls keep the weights that they used */
  bool has_stepped_at_position[API_MAX_MODULES];
  bool has_forgotten_calls; /* the program has forgotten calls, so each pass ends with a sweep */
  bool has_failed;          /* `failure` is set, and the context can only be ended */
  cleave_error failure;
  char failure_hop[CLV_WIRE_NAME + 1]; /* place of the failure, as the failed node wrote it */
  struct api_context *next;            /* next record of the free list */
} api_context;

/* An item of a module's state, or a gradient. */
typedef struct api_state_item {
  char name[CLV_WIRE_NAME + 1];
  clv_tensor *tensor;
} api_state_item;

void api_state_items_free(api_state_item *items, uint32_t n); /* NULL is allowed */

/* A request in progress: a STATE_GET, a STATE_PUT or a frame about a state file. */
typedef struct api_state_request {
  uint64_t id;
  uint32_t node;
  const char *item_name; /* name of the item to store in `item_tensor`; NULL: none */
  clv_tensor *item_tensor;
  api_state_item *items; /* [n_items_expected] receives the items; NULL: they are not stored */
  /* number of items received so far; number of items in the complete answer */
  uint32_t n_items_received, n_items_expected;
  bool is_for_file;
  uint64_t file_bytes;                /* size of the state file, as its node reports */
  clv_sha256 file_sha256;             /* digest of the state file, as its node reports */
  char device[API_DEVICE_NAME_BYTES]; /* device that computed `item_tensor`, as its node reports */
  bool is_answered, has_failed;
  bool may_have_fewer_items; /* `n_items_expected` is a maximum until the answer gives the number */
  cleave_error failure;
  struct api_state_request *next;
} api_state_request;

struct cleave_optimizer {
  cleave_runtime *runtime;
  double clip_norm;        /* norm to which larger gradients are clipped; 0: no clipping */
  cleave_module **modules; /* [n_modules] in the order of loading, in which the norm is summed */
  size_t n_modules;
  api_optimizer_group *groups; /* [n_groups] in the program's order */
  size_t n_groups;
  uint64_t n_steps_decided; /* number of steps decided so far */
  bool cannot_revert;       /* nodes keep no copies to revert its steps (no_rollback) */
  bool is_released;         /* the program has no handle any more */
  bool is_decision_pending; /* nodes have not answered its last step */
  struct cleave_optimizer *next;
};

/* List of the calls of a backward pass that have the same last_root_index: the last root that
 * depends on each of these calls. */
typedef struct api_call_group {
  api_value *first_call, *last_call;
} api_call_group;

/* A failure with its full text, and the text and place that this process has sent to nodes instead,
 * because the full text may quote secrets. */
typedef struct api_redacted_error {
  cleave_error full_error;
  char sent_text[CLV_WIRE_TEXT + 1], hop[CLV_WIRE_NAME + 1]; /* text as sent; hop: place as sent */
  uint64_t context;                                          /* id of the context that failed */
} api_redacted_error;

enum { API_MAX_REDACTED_ERRORS = 16 };

/* Clock, randomness and network of a runtime. If it is zeroed, the runtime uses the machine's clock
 * and randomness, and connects to workers over mutual TLS. A simulation passes its own
 * functions. */
typedef struct api_platform {
  void *user;
  clv_clock clock;
  clv_code (*fill_random_bytes)(void *user, void *ret, size_t len, clv_err *err);
  /* Calls a method of the worker, in place of clv_rpc_call_unary. request and reply are encoded. */
  clv_code (*call_worker)(void *user, const char *worker, const char *method,
                          const clv_bytes *request, uint64_t timeout_ms, clv_bytes *reply,
                          clv_err *err);
  /* Opens a link with all lanes attached, in place of clv_link_open. */
  clv_code (*open_link)(void *user, const char *worker, const clv_link_options *options,
                        const clv_link_dial *dial, clv_link **ret, clv_err *err);
  bool (*wait)(void *user, uint64_t until_ns); /* clv_node_options.wait of the master's node */
  clv_executor executor;                       /* clv_node_options.executor of that node */
  uint32_t n_bulk_lanes;                       /* bulk lanes of each link */
  const clv_backend *backend;                  /* backend of modules at the master; NULL: cpu */
  clv_backends other_backends;                 /* backends of other devices of the master */
} api_platform;

struct api_future; /* future_int.h */

/* Functions of kept_refs.c that contexts, calls and events use. All are called with the runtime's
 * lock held. */
typedef struct api_kept_ops {
  /* Decrements n_leaves of the reference, because a leaf that refers to it is being freed. */
  void (*release_leaf)(cleave_runtime *rt, api_kept_ref *k);
  /* Makes the owner send the kept value (cleave_keep) of leaf v to a node that needs it. */
  cleave_status (*deliver_value)(cleave_runtime *rt, api_value *v, uint32_t node,
                                 cleave_error *error);
  /* Begins to fetch the kept value (cleave_keep); f ends when it has arrived. */
  cleave_status (*begin_fetch)(cleave_runtime *rt, api_kept_ref *k, struct api_future *f,
                               cleave_error *error);
  /* Waits until the owners of the context's kept values (cleave_keep) have answered. */
  void (*await_owners)(cleave_runtime *rt, api_context *c, uint64_t until_ns);
  /* Lets the context end without the answers of the owners of its kept values (cleave_keep). */
  void (*stop_awaiting_owners)(cleave_runtime *rt, api_context *c);
  /* Sends each node the ids of its calls that the context's kept values (cleave_keep) depend on.
   * Returns false if there are no such calls. */
  bool (*send_needed_calls)(cleave_runtime *rt, api_context *c);
  /* Marks the context's unconfirmed kept values as failed, because owners may receive the failure
   * of the context before the request to keep a value. */
  void (*on_context_failed)(cleave_runtime *rt, const api_context *c);
  /* Marks the kept values (cleave_keep) at a lost node as failed. */
  void (*on_node_failed)(cleave_runtime *rt, uint32_t node, const cleave_error *failure);
  /* Handles a REF_ frame by which the master's own node answers the program. */
  void (*on_owner_answer)(cleave_runtime *rt, const clv_packet *p);
  /* Lists the kept references that the program has not released. */
  void (*report_leaks)(cleave_runtime *rt, cleave_leaks *l);
  void (*free_refs)(cleave_runtime *rt);
} api_kept_ops;

/* Weights that are about to be written to a module, or that were read from a module. */
typedef struct api_noted_values {
  cleave_runtime *runtime;
  /* module of the weights; NULL if are_read_values, because the program may have released the
   * module */
  const cleave_module *module;
  uint32_t node; /* node of the module */
  const cleave_named_tensor *items;
  size_t n;
  bool are_read_values;
} api_noted_values;

/* Gate of a program's runtime (extra/open.c). It permits or refuses what is sent, by the rows that
 * the program has declared and by the policy of the host. may_send.c asks the gate about each
 * tensor and each failure, before it asks the program's own may_send. The functions are called with
 * the runtime's lock, unless their comments say otherwise. */
typedef struct api_gate {
  void *user;
  /* Permits or refuses the tensor by its declared row (cleave_declare) and the policy. */
  cleave_status (*check_tensor)(void *user, const cleave_sending *sending, cleave_error *error);
  /* Counts a tensor that all hooks permit, for the limits of the policy. If charge_tensor fails,
   * the tensor is not sent. */
  cleave_status (*charge_tensor)(void *user, const cleave_sending *sending, cleave_error *error);
  /* Compares what a tensor shows with the declared row (cleave_declare) that permits it, after
   * `check_tensor` has permitted the tensor. v: value of a module at the master that is sent, or
   * value of a module at a worker whose gradient is sent. The first argument is `owner`. If the
   * gate is off, this pointer and the two above are NULL. */
  cleave_status (*judge_tensor)(void *owner, const api_value *v, const cleave_sending *sending,
                                cleave_error *error);
  /* Add to the ledger of this host the keys of layers and the values that the module's worker will
   * know, before they are sent. For a module at the master the functions keep samples of the
   * values, which are looked up in the ledger later. note_values is also called for values that the
   * program has read from the module's node (are_read_values). The first argument is `owner`, and
   * the runtime's lock is not held. NULL: a command of cleave-master uses the runtime. */
  cleave_status (*note_module)(void *owner, const cleave_module *m, cleave_error *error);
  cleave_status (*note_values)(void *owner, const api_noted_values *values, cleave_error *error);
  /* called when all contexts are closed, before the links end; NULL: nothing is done then */
  void (*before_close)(void *owner, cleave_runtime *rt);
  void *owner;                     /* object that owns `user` */
  void (*free_owner)(void *owner); /* called after all links have ended */
} api_gate;

/* First member of a record of master/api/extra that is freed with its runtime. */
typedef struct api_attachment {
  struct api_attachment *next;
  void (*free)(struct api_attachment *a);
} api_attachment;

/* A job: work that the runtime repeats from time to time, such as sending END_CONTEXT again.
 * runtime_open.c registers the jobs, and each thread that waits for nodes runs those that are due
 * (wait.c). Both functions are called with the runtime's lock held. */
typedef struct api_job {
  /* Does the work that is due. Returns the time of the next run, monotonic ns; UINT64_MAX: none. */
  uint64_t (*before_sleep)(cleave_runtime *rt);
  void (*after_sleep)(cleave_runtime *rt); /* called after a sleep; NULL: nothing is done then */
} api_job;
enum { API_MAX_JOBS = 8 };
extern const api_job api_step_job, api_context_end_job, api_broken_link_job;

struct cleave_runtime {
  api_platform platform;
  const clv_session_config *config;
  clv_session_config *own_config; /* `config` if the runtime frees it; NULL: the caller owns it */
  api_gate gate;                  /* gate of a program; all zeros: a command uses the runtime */
  cleave_status (*may_send)(void *user, const cleave_sending *sending, cleave_error *error);
  void (*on_event)(void *user, cleave_context context, const cleave_event *event);
  bool (*is_interrupted)(void *user); /* cleave_options.interrupted; NULL: none */
  uint64_t refusal_timeout_ms;        /* cleave_options.refused_ms */
  clv_notifier on_notice;             /* cleave_options.on_notice of the program, with its user */
  /* limits the rate of log lines that workers cause; reports suppressed lines to
   * api_on_suppressed_logs */
  clv_log_limiter worker_log_limiter;
  /* last failures whose text was replaced before they were sent; failure number n is at index n %
   * API_MAX_REDACTED_ERRORS */
  api_redacted_error redacted_errors[API_MAX_REDACTED_ERRORS];
  uint64_t n_redacted_errors;
  void *user;
  uint64_t deadline_ms;
  bool sends_directly;                       /* the session says `transfer: direct` */
  bool sends_via_master, is_single_threaded; /* as in cleave_options */
  unsigned max_local_threads; /* largest number of compute threads of a module at the master */
  clv_tls_identity *identity;
  clv_rpc_runtime *rpc;
  clv_pool *pool;
  clv_session_node *node;
  pthread_t node_thread;
  /* false: the master's node has no thread of its own; threads that wait run it, one at a time */
  bool has_node_thread;
  bool is_node_driven_by_caller;
  /* number of times that a waiting thread has begun to run the master's node */
  uint64_t n_node_drives_begun;
  api_peer *peers; /* [n_peers] nodes of the session, the master first */
  uint32_t n_peers;
  clv_wire_id session_id; /* id of the session at all workers */
  uint64_t epoch;         /* number of the attempt that the session belongs to */
  bool cannot_resume;     /* the session is not that of a run, so no later attempt continues it */
  clv_key seed;

  const api_job *jobs[API_MAX_JOBS]; /* [n_jobs] in the order of their registration */
  uint32_t n_jobs;
  const api_kept_ops *kept_ops; /* functions of kept_refs.c; NULL: the program has kept nothing */

  pthread_mutex_t lock;
  pthread_cond_t state_changed_cond;
  pthread_cond_t futures_thread_cond; /* the thread of futures sleeps on it */
  /* number of threads of the program that wait for futures; these threads advance all futures */
  uint32_t n_awaiting_threads;
  bool needs_wake; /* sleeping threads must be woken, because of an answer of a node */
  uint64_t next_id, next_context_id, n_value_sweeps;
  api_id_table values, contexts, futures, kept_refs;
  struct api_futures *futures_state; /* future_int.h */
  api_value *value_free_list;
  api_context *context_free_list;
  api_state_request *state_requests;
  cleave_module *modules[API_MAX_MODULES]; /* NULL: the index is free */
  uint32_t n_modules;                      /* 1 + the highest index of a module so far */
  /* [index] generation that the next module load at the index gets */
  uint32_t next_generations[API_MAX_MODULES];
  uint64_t last_load_number;
  cleave_optimizer *optimizers;
  api_attachment *attached_objects;
  /* Context whose step some node has not answered; NULL: none. Calls wait for it, so that the step
   * can still be reverted. */
  api_context *undecided_context;
  bool is_reverting;           /* the step of undecided_context has failed, and nodes revert it */
  uint64_t revert_deadline_ns; /* monotonic deadline of the answers to REVERT */
  /* Context of a final step that is decided and will be sent before the next packet; NULL: there is
   * no such step. */
  api_context *unsent_step_context;
  cleave_optimizer *unsent_step_optimizer;
  bool is_unsent_step_applied;
  double unsent_step_scale;
  api_call_group *call_groups;
  uint32_t call_groups_cap;
  cleave_error deferred_error; /* failure of a step whose context has ended; status OK: none */
  uint32_t n_ending_contexts;  /* number of contexts whose END_CONTEXT some node has not answered */
  uint32_t n_end_waiters;      /* number of functions that wait until n_ending_contexts falls */
  /* monotonic time at which some context's END_CONTEXT is sent again; 0: never */
  uint64_t end_resend_ns;
  /* A worker's report that its link to another worker, its neighbour, has ended. It is held back
   * until broken_link_wait_until_ns: if the neighbour is lost, its own link to the master shows
   * that soon, with a better reason. status OK: no report. */
  cleave_error broken_link_error;
  uint32_t broken_link_worker; /* node that has sent the report */
  /* the neighbour; equal to broken_link_worker: the report named no neighbour */
  uint32_t broken_link_neighbour;
  uint64_t broken_link_wait_until_ns;
  /* monotonic time before which no deadline passes, because the process was stopped (SIGSTOP) */
  uint64_t deadlines_paused_until_ns;
  /* Outages, in which some link of a worker has no connection, do not count towards deadlines.
   * total_outage_ns: total time of ended outages; outage_since_ns: begin of the present one; 0:
   * none */
  uint64_t total_outage_ns, outage_since_ns;
};

void api_lock(cleave_runtime *rt);
void api_unlock(cleave_runtime *rt);
void api_unlockp(cleave_runtime **rt); /* unlocks *rt; for CLV_AUTO */
/* Takes the runtime's lock for the rest of the block. */
#define LOCKED(rt)                                      \
  CLV_AUTO(api_unlockp) cleave_runtime *locked_ = (rt); \
  api_lock(locked_)

/* As cleave_open_config, but uses the platform of the caller. platform->user must outlive the
 * runtime. */
cleave_status api_open_on_platform(const api_platform *platform, const clv_session_config *config,
                                   const cleave_options *options, cleave_runtime **ret_runtime,
                                   cleave_error *error) CLEAVE_RESULT;
/* True if the options list the worker, or list no workers. */
bool api_is_worker_wanted(const cleave_options *o, const char *worker);
/* api_now returns the monotonic time of the platform in ns. api_fill_random writes `len` random
 * bytes that cannot be guessed. */
uint64_t api_now(const cleave_runtime *rt);
clv_code api_fill_random(const cleave_runtime *rt, void *ret, size_t len,
                         clv_err *err) CLV_USE_RESULT;

/* api_deadline_ns returns the deadline that is deadline_ms from now (0: the runtime's deadline_ms).
 * api_is_deadline_over returns whether a deadline has passed. Deadlines are times of a clock that
 * stops during outages (api_update_outage_clock). */
uint64_t api_deadline_ns(const cleave_runtime *rt, uint64_t deadline_ms);
bool api_is_deadline_over(const cleave_runtime *rt, uint64_t until_ns);
/* Returns the monotonic time at which a deadline passes if there is no outage until then. */
uint64_t api_deadline_monotonic_ns(const cleave_runtime *rt, uint64_t until_ns);
/* Stops the clock of the deadlines while some lost link is being redialled, else restarts it. Each
 * thread that waits calls this repeatedly. With the runtime's lock held. */
void api_update_outage_clock(cleave_runtime *rt);
/* Asks workers whether they are redialling lost links to each other. Asks all workers if
 * `all_workers` is true, else those that have reported such a link before. Later calls of
 * api_update_outage_clock use the answers. With the runtime's lock held. */
void api_ask_about_outages(cleave_runtime *rt, bool all_workers);
/* Registers a job, which each thread that waits for nodes runs when it is due (wait.c). `job` must
 * be static. */
void api_add_job(cleave_runtime *rt, const api_job *job);
/* Add and remove a record that is freed with the runtime. With the runtime's lock held. */
void api_attach(cleave_runtime *rt, api_attachment *a, void (*free)(api_attachment *a));
void api_detach(cleave_runtime *rt, api_attachment *a);
/* With the runtime's lock held: sleeps until another thread calls api_wake. If the master's own
 * node has no thread, runs the node on this thread meanwhile. False: `until_ns` has passed. */
bool api_sleep(cleave_runtime *rt, uint64_t until_ns);
/* As api_sleep, for the thread of futures: api_wake ends it only while no thread of the program
 * awaits a future. */
void api_sleep_as_futures_thread(cleave_runtime *rt, uint64_t until_ns);
/* As api_sleep, for functions of the program: also returns false if the program interrupts them. */
bool api_wait(cleave_runtime *rt, uint64_t until_ns);
bool api_is_interrupted(const cleave_runtime *rt); /* cleave_options.interrupted returns true */
/* Fails after api_wait has returned false: with CLV_DEADLINE, or with CLV_CANCELLED if the program
 * has interrupted the wait. */
cleave_status api_fail_late(const cleave_runtime *rt, cleave_error *error, const char *fmt, ...)
    CLV_PRINTF(3, 4);
/* Lets the program interrupt the connects and unary calls of this thread until the end of the
 * block. */
typedef struct api_interruptible {
  clv_cancel_hook hook;
  const clv_cancel_hook *previous_hook;
} api_interruptible;
void api_interruptible_begin(cleave_runtime *rt, api_interruptible *ret);
void api_interruptible_end(api_interruptible *i);
/* Runs the due jobs and the master's node as api_sleep does, but does not sleep. */
void api_poll(cleave_runtime *rt);
/* Wakes all threads that sleep in api_sleep, because something for which they wait may have
 * changed. */
void api_wake(cleave_runtime *rt);

/* With the runtime's lock held: sends a packet to a node, which may be the master's own. Takes
 * ownership of the packet, also on failure. */
cleave_status api_send(cleave_runtime *rt, uint32_t node, clv_packet *p, cleave_error *error);
/* As api_send, but the packet may wait for the next one to the node, if the caller's thread runs
 * the master's own node (cleave_options.single_thread). Before that thread sleeps, all buffered
 * packets are sent. */
cleave_status api_send_buffered(cleave_runtime *rt, uint32_t node, clv_packet *p,
                                cleave_error *error);

cleave_status api_packet_new(cleave_runtime *rt, clv_frame_kind kind, uint64_t context_id,
                             uint64_t message_id, clv_packet **ret, cleave_error *error);
int api_find_node(const cleave_runtime *rt, const char *name); /* -1: unknown */

/* Records the device that the module's node reports; "": not reported. */
void api_module_set_device(cleave_module *m, const char *device);
cleave_status api_connect(cleave_runtime *rt, cleave_error *error);
cleave_status api_open_link(api_peer *p, cleave_error *error);
/* Hook that each link calls before it sends a packet. Asks the gate and the program's may_send
 * about each tensor of the packet. If the packet has a failure, first replaces the failure's text
 * by code and place, and asks both about the failure as well. */
clv_code api_may_send(void *user, clv_link *link, clv_packet *p, clv_err *err);
/* Restores the full text of a failure that this process has sent as code and place, and that a node
 * has sent back. */
void api_restore_redacted_error(const cleave_runtime *rt, cleave_error *why);
/* Closes the sessions and their links. api_close_links frees the transport, after all computing has
 * ended. */
void api_close_sessions(cleave_runtime *rt);
void api_runtime_free(cleave_runtime *rt);
void api_close_links(cleave_runtime *rt);
/* Handles an answer of a node. Takes ownership of the packet. Called by any thread, without the
 * runtime's lock. */
void api_on_packet(api_peer *from, clv_packet *p);
void api_on_program_packet(void *user, clv_packet *p);
void api_on_suppressed_logs(void *user, const clv_log_entry *entry);

/* Writes when each worker was last heard of: "; last heard of worker 'a' 900 ms ago, 'b' 3 ms ago".
 * Returns buf. */
const char *api_describe_silence(const cleave_runtime *rt, char *buf, size_t len);

/* With the runtime's lock held: fails the contexts, requests and kept values that need the lost
 * node. */
void api_node_fail(cleave_runtime *rt, uint32_t node, const cleave_error *failure);
/* Records the first failure of a context and, unless a step is being decided, sends ABORT to nodes
 * not in `notified_nodes`. With the runtime's lock held. */
void api_context_fail(cleave_runtime *rt, api_context *c, const cleave_error *failure,
                      api_node_set notified_nodes);
void api_context_send_aborts(cleave_runtime *rt, api_context *c, api_node_set notified_nodes);
cleave_status api_find_context(cleave_runtime *rt, cleave_context handle, api_context **ret,
                               cleave_error *error);
cleave_status api_find_value(cleave_runtime *rt, cleave_reference handle, api_value **ret,
                             cleave_error *error);
cleave_status api_new_value(cleave_runtime *rt, api_context *c, api_value **ret,
                            cleave_error *error);
void api_drop_value(cleave_runtime *rt, api_value *v);
/* With the runtime's lock held: sends DROP to each node that has one of the values from `first` on,
 * linked by next_in_list. A node frees a value after the calls that use the value. (forget.c) */
cleave_status api_drop_values_at_nodes(cleave_runtime *rt, api_value *first, cleave_error *error);
/* With the runtime's lock held: frees, in this process and at all nodes, the released values of a
 * context on which no value with a handle depends. Does nothing while a backward runs or kept
 * values are unconfirmed, or if the context has failed. */
cleave_status api_forget_unneeded_values(cleave_runtime *rt, api_context *c, cleave_error *error);
void api_drop_values(cleave_runtime *rt, api_context *c);
void api_context_free(cleave_runtime *rt, api_context *c);
api_node_set api_lost_nodes(const cleave_runtime *rt);
/* Returns the failure of a context; CLEAVE_OK: it has none. */
cleave_status api_context_failure(const api_context *c, cleave_error *error);

void api_add_leak(cleave_leaks *l, const char *fmt, ...) CLV_PRINTF(2, 3);
/* Returns CLV_UNAVAILABLE for each code with which a link ends when its peer has stopped answering,
 * or answers that it does not have the session or the link any more, because it was restarted or
 * ends them. Returns other codes unchanged. */
clv_code api_get_loss_code(clv_code code);
void api_failure_from_frame(const api_peer *from, const clv_frame *f, cleave_error *ret);

/* Writes a value's failure into a frame, with the worker's name in the text. */
void api_failure_to_frame(const api_value *v, clv_frame *ret);
/* With the runtime's lock held: requests that a value be delivered to a node; with node 0 and
 * is_for_node false, to the program. */
cleave_status api_deliver_value(cleave_runtime *rt, api_value *v, uint32_t node, bool is_for_node,
                                cleave_error *error);

/* With the runtime's lock held: sends STATE_PUT of items, [n] with n above 0, and waits for the
 * answer. context_id: context of gradients; 0 for other state. */
cleave_status api_put_state_items(cleave_module *m, clv_state_kind state_kind, uint64_t context_id,
                                  const api_state_item *items, uint32_t n, uint64_t until_ns,
                                  cleave_error *error);

/* With the runtime's lock held: returns and clears deferred_error, the failure of a step whose
 * context has ended; CLEAVE_OK: there is none. */
cleave_status api_take_deferred_error(cleave_runtime *rt, cleave_error *error);
/* With the runtime's lock held: frees a context without waiters once all nodes have answered its
 * end. */
void api_context_free_if_ended(cleave_runtime *rt, api_context *c);
/* Call when all owners of the context's kept values (cleave_keep) have answered. Ends the context
 * if its end was pending for this. */
void api_context_on_owners_answered(cleave_runtime *rt, api_context *c);

clv_lr_schedule api_convert_lr_schedule(const cleave_schedule *s);
cleave_status api_check_lr_schedule(const cleave_schedule *s, cleave_error *error);
/* With the runtime's lock held: adds the parameters that the groups name to the optimiser. After a
 * failure the caller calls api_optimizer_remove_params, which removes those that were added. */
cleave_status api_optimizer_add_groups(cleave_optimizer *o, const cleave_group *groups,
                                       size_t n_groups, cleave_error *error);
void api_optimizer_remove_params(cleave_optimizer *o);
/* Writes the names of the parameters in group `group_number` of a module to ret_names,
 * [m->params->n]. Returns their number. The module must be in an optimiser. */
uint32_t api_group_param_names(const cleave_module *m, uint32_t group_number,
                               const char **ret_names);
void api_optimizer_free(cleave_optimizer *o);

/* With the runtime's lock held: sends the unsent final step (unsent_step_context), if there is
 * one. */
void api_flush_final_step(cleave_runtime *rt);
/* As api_flush_final_step, for a context that ends: if possible, sends a node the step and
 * END_CONTEXT in one message. *ret_sent_nodes: nodes that were sent both. */
void api_flush_step_and_ends(cleave_runtime *rt, api_context *c, api_node_set *ret_sent_nodes);

/* With the runtime's lock held: concludes the step of a context after every node has answered
 * it. */
void api_on_step_answered(cleave_runtime *rt, api_context *c);
/* With the runtime's lock held: refuses to change or read parameters while calls wait for a
 * backward that has not begun (cleave_call_options.after). Otherwise the change would wait for
 * these calls, and the backward could not begin before the change. */
cleave_status api_check_no_pending_backward(const cleave_runtime *rt, cleave_error *error);
/* With the runtime's lock held: reverts the pending step if it has failed or its deadline has
 * passed. Returns the monotonic time at which to call it again, in ns. */
uint64_t api_step_decision_advance(cleave_runtime *rt);
/* With the runtime's lock held: waits until no step is pending. If the step has failed, it has been
 * reverted when this returns, and its context has the error. */
cleave_status api_await_step_decision(cleave_runtime *rt, uint64_t until_ns, cleave_error *error);

/* Builds a graph from a text of layers. n_parts: number of parts into which layers may be divided;
 * 0: no layer may be divided, and ret_divisions is NULL. *ret_divisions: receives, for each node of
 * the graph, how it is divided; the caller frees it. */
cleave_status api_graph_from_layers(const char *layers, const cleave_input *input,
                                    uint32_t first_layer, uint32_t n_parts,
                                    clv_parallel **ret_divisions, clv_graph **ret,
                                    cleave_error *error);
/* Parses the session file of a program, and fills in the keys that only a training needs. */
cleave_status api_read_config(const char *path, const char *text, clv_session_config **ret,
                              cleave_error *error);
const clv_graph *api_unwrap_graph(const cleave_graph *g);
/* Returns the graph nodes that the program has named as outputs, [*ret_n_outputs]; *ret_n_outputs
 * 0: the program has named none. */
const int *api_graph_outputs(const cleave_graph *g, int *ret_n_outputs);
clv_code api_graph_copy(const clv_graph *from, clv_graph **ret, clv_err *err) CLV_USE_RESULT;
/* Builds the graph of a named architecture. layers: a range of its layers; NULL: all. */
cleave_status api_graph_from_arch(const char *arch_name, const char *attributes, const char *layers,
                                  const cleave_input *input, clv_graph **ret, cleave_error *error);

/* Builds the graph of a Hugging Face model. folder: folder of the model's config.json. o: options,
 * of which only ignore_keys is read. layers: a range of the model's layers; NULL: all. head: name
 * of the layers behind the last block; NULL: none. */
cleave_status api_graph_from_hf(const char *folder, const cleave_module_options *o,
                                const char *layers, const char *head, const cleave_input *input,
                                clv_graph **ret, cleave_error *error);
/* Adds the adapters of the options to the module's graph. (adapters.c) */
cleave_status api_adapters_add_to_graph(cleave_module *m, const cleave_module_options *o,
                                        cleave_error *error);
/* Freezes all parameters that do not belong to adapters, if the module has adapters. */
void api_adapters_freeze_base(cleave_module *m, const cleave_module_options *o);

/* Returns the learning rate of a group for the step that is being taken. */
double api_group_learning_rate(const cleave_optimizer *o, const api_optimizer_group *g);
/* With the runtime's lock held: sends the decision on a step to the modules at `nodes` that take
 * part in it. is_applied false: no module steps. scale: factor of the gradients, from clipping. */
cleave_status api_send_step_decision(cleave_optimizer *o, api_context *c, api_node_set nodes,
                                     bool is_applied, double scale, cleave_error *error);
/* Returns the learning rate of the first group `n_steps_ahead` steps from now. */
double api_learning_rate_after_steps(const cleave_optimizer *o, uint64_t n_steps_ahead);
/* With the runtime's lock held: sends APPLY of cleave_step_at to one module, with a position in the
 * context's schedule. */
cleave_status api_send_step_at(cleave_optimizer *o, api_context *c, const cleave_module *m,
                               uint64_t n_steps_ahead, uint32_t position, bool saves_weights,
                               cleave_error *error);
/* With the runtime's lock held: passes the events in a node's ENDED frame to the program's
 * on_event. */
void api_report_events(cleave_runtime *rt, const api_peer *from, const clv_packet *p);

/* ---- files that a worker keeps (kept.c) ------------------------------------------------------ */

/* Calls the method Kept of a worker. BLOCKS. */
clv_code api_call_kept_method(clv_rpc_channel *channel, const clv_wire_kept_request *request,
                              unsigned timeout_ms, clv_wire_kept_reply *ret,
                              clv_err *err) CLV_USE_RESULT;

#endif
