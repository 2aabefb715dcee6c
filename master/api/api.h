/* SPDX-License-Identifier: Apache-2.0
 *
 * libcleave for the other folders of this repository: the public functions of cleave.h, and
 * functions that make the library's objects from internal types, such as a clv_session_config,
 * instead of texts.
 */
#ifndef CLEAVE_API_H
#define CLEAVE_API_H

#include "common/model/config/config.h"
#include "common/model/graph/graph.h"
#include "common/model/weights/weights.h"
#include "master/api/cleave.h"

/* Loads a session file for a command that needs only its workers. Also accepts the session file of
 * a program, which lacks the keys that say what is trained and how. */
clv_code cleave_config_load(const char *path, const clv_config_overrides *overrides,
                            clv_session_config **ret, clv_err *err) CLV_USE_RESULT;

/* number of bulk lanes (lanes that carry large tensors in chunks) of each link of a session */
enum { CLEAVE_BULK_LANES = 4 };
/* As cleave_open, but with a configuration of the caller, which must outlive the runtime.
 * n_bulk_lanes: number of bulk lanes of each link; 0: chunks use lane 0 as well. */
cleave_status cleave_open_config(const clv_session_config *config, uint32_t n_bulk_lanes,
                                 const cleave_options *options, cleave_runtime **ret_runtime,
                                 cleave_error *error) CLEAVE_RESULT;

/* Checks that no artifact of the worker (a file of weights on its disk) is a file of weights that
 * the session declares `secret: true`. Hashes the secret files and compares the hashes with the
 * artifacts in `hello`. CLV_DATA_LOSS, with the position in the session file: the worker has such
 * an artifact, or a secret file is missing or damaged. */
struct clv_wire_hello_reply;
clv_code cleave_secrets_check(const clv_session_config *config,
                              const struct clv_wire_hello_reply *hello,
                              clv_err *err) CLV_USE_RESULT;

/* Counts of a runtime's objects, for a monitoring thread. cleave_inspect and cleave_inspect_link
 * are cheap and must not run during cleave_close. */
typedef struct cleave_holding {
  uint64_t contexts, values; /* numbers of open contexts, and of values on the tape */
  uint64_t memory_bytes;     /* memory of tensors and modules in this process */
  int64_t certificate_end;   /* seconds since 1970; 0: no certificate */
} cleave_holding;
void cleave_inspect(cleave_runtime *runtime, cleave_holding *ret);

typedef struct cleave_link_status {
  const char *worker;
  uint64_t bytes_out, bytes_in;
  /* bytes of tensors that the receiver has not reported as received; bytes of tensors that are not
   * received completely (bytes_out and bytes_in of clv_link_load) */
  uint64_t pending_out, pending_in;
  uint64_t packets_out; /* packets that wait to be sent */
  uint64_t packets_in;  /* packets that were received and not handled yet */
  double round_trip_s;  /* round-trip time of the last PING; 0: none yet */
  /* number of reconnects after a loss of a connection; bytes that were sent again after reconnects,
   * which bytes_out does not count */
  uint64_t reconnects, resent_bytes;
  double silent_s; /* seconds since the last packet from the worker; 0: none yet */
} cleave_link_status;
/* Fills *ret for the link to worker `node`, numbered from 1 as for cleave_node_name. Returns false
 * if there is no such worker. */
bool cleave_inspect_link(cleave_runtime *runtime, uint32_t node, cleave_link_status *ret);

/* BLOCKS for one gRPC call. Asks worker `node` for the bytes that it has sent over each of its
 * links in this session, including headers and messages without tensors. Calls `report` for each
 * link. peer: name of the worker at the other end; "": the master. */
typedef void cleave_link_report(void *user, const char *worker, const char *peer, uint64_t bytes);
clv_code cleave_ask_links(cleave_runtime *runtime, uint32_t node, uint64_t timeout_ms,
                          cleave_link_report *report, void *user, clv_err *err) CLV_USE_RESULT;

/* Sets the keys of a graph's layers, from which initial weights and dropout masks are drawn. A
 * key derives from the session's seed, the layer's number, and the network's seed or, if that
 * seed is 0, the network's name. The keys of a layer's second and later nodes also derive from
 * the node's name. */
/* `seed` in clv_layer_keys for the network of a session file */
enum { CLEAVE_SESSION_NETWORK = 1 };
clv_code clv_layer_keys(const clv_key *session, const char *network_name, uint64_t seed,
                        clv_graph *g, clv_err *err) CLV_USE_RESULT;

/* ---- rows of values that a worker caches (cached_rows.c) ------------------------------------- */

/* Rows of the output of `from`, a module at the master, that the worker of `to` caches on its
 * disk. */
typedef struct cleave_cached {
  const cleave_module *from, *to;
  clv_sha256 key; /* digest that identifies the cache at the worker */
  /* records: number of records in the data; each of record_numbers is smaller; keep_s: seconds for
   * which the worker keeps the cache while no session uses it */
  uint64_t records, keep_s;
  const int64_t *record_numbers; /* [n] record number of each row */
  size_t n;
} cleave_cached;

/* Checks that the worker can cache the rows. CLEAVE_UNIMPLEMENTED: the worker keeps no cache for
 * this identity. */
cleave_status cleave_cached_check(const cleave_cached *cached, cleave_error *error) CLEAVE_RESULT;
/* Makes a leaf of the cached rows, without a gradient, which only modules at the worker of `to` can
 * use. values: the rows, which are sent to the worker and cached there; NULL: the worker has them
 * already. Does not wait for the worker: if it refuses the rows, later functions that use the leaf
 * return its error. */
cleave_status cleave_leaf_cached(cleave_runtime *runtime, cleave_context context,
                                 const cleave_cached *cached, const cleave_tensor *values,
                                 cleave_reference *ret_reference,
                                 cleave_error *error) CLEAVE_RESULT;
/* BLOCKS for one gRPC call. *ret_rows: number of rows that the worker has cached under
 * cached->key. */
clv_code cleave_cache_count(const cleave_cached *cached, uint64_t timeout_ms, uint64_t *ret_rows,
                            clv_err *err) CLV_USE_RESULT;
/* BLOCKS for one gRPC call. The worker deletes the cache. *ret_rows: number of rows that it had. */
clv_code cleave_cache_end(const cleave_cached *cached, uint64_t timeout_ms, uint64_t *ret_rows,
                          clv_err *err) CLV_USE_RESULT;

/* Makes the nodes of the optimiser's modules keep a moving average of each parameter that the
 * optimiser updates, as the item "<param>.ema" of optimiser state. decay, warmup: ema and
 * ema_warmup of clv_optim_config. Call it before these modules are placed. */
cleave_status cleave_optimizer_set_ema(cleave_runtime *runtime, cleave_optimizer *optimizer,
                                       double decay, bool warmup,
                                       cleave_error *error) CLEAVE_RESULT;

/* Kind of state that only cleave_state_load_by_digest takes. The worker loads the averages
 * "<param>.ema" of a file of optimiser state into the parameters. Parameters without an average,
 * and buffers, stay as they are. */
enum { CLEAVE_STATE_EMA = 5 };

/* As cleave_state_load_at_worker, but the worker refuses a file with another digest before it
 * writes an item. */
cleave_status cleave_state_load_by_digest(cleave_runtime *runtime, cleave_module *module,
                                          cleave_state_kind kind, const char *name,
                                          const clv_sha256 *digest, uint64_t deadline_ms,
                                          cleave_state_file *ret_file,
                                          cleave_error *error) CLEAVE_RESULT;

/* ---- files that a worker keeps (kept.c) ------------------------------------------------------ */

/* Connection to a worker, to list, read and delete what it keeps for this identity: caches and
 * files of state. It needs no session, so it also reaches a worker that the session's stages do not
 * use any more. Every function below BLOCKS for its gRPC calls. Several threads may use one
 * connection. */
typedef struct cleave_kept_client cleave_kept_client;

/* Dials a worker of the configuration, with the configuration's identity. The configuration must
 * outlive the result. timeout_ms: deadline of each call; 0: limits.connect_timeout of the
 * configuration. */
clv_code cleave_kept_open(const clv_session_config *config, const clv_remote_spec *worker,
                          unsigned timeout_ms, cleave_kept_client **ret,
                          clv_err *err) CLV_USE_RESULT;
void cleave_kept_close(cleave_kept_client *k); /* NULL is allowed */
void cleave_kept_closep(cleave_kept_client **k);

/* A file of state at a worker. */
typedef struct cleave_kept_file {
  char name[CLV_FILE_NAME + 1];
  uint64_t bytes, age_s; /* age_s: seconds since the file was written */
  uint64_t version;      /* differs after each change of the file; never 0 */
  bool has_sha256;       /* the worker knows the digest */
  clv_sha256 sha256;
} cleave_kept_file;

/* A list of files of state. Start with {0}. */
typedef struct cleave_kept_files {
  cleave_kept_file *files; /* [n] by ascending name */
  size_t n;
  uint64_t used_bytes, quota_bytes; /* bytes of all files; their limit, allow[].state_bytes */
} cleave_kept_files;
void cleave_kept_files_done(cleave_kept_files *l);

/* Lists the files of state. name not NULL: that file alone, with its digest, which the worker
 * computes from its disk if it does not know it. A missing file gives an empty list.
 * CLV_UNIMPLEMENTED: the worker has no state_dir. */
clv_code cleave_kept_list(cleave_kept_client *k, const char *name, cleave_kept_files *ret,
                          clv_err *err) CLV_USE_RESULT;
/* Reads `length` bytes of a file from `offset`, in calls of at most 1 MiB. *version: 0, or the
 * version that the file must have; set to the version that was read. CLV_NOT_FOUND: this identity
 * has no such file there; CLV_RANGE: the range ends past the end of the file; CLV_ABORTED: the file
 * has another version, so it does not belong to the bytes that were read before. */
clv_code cleave_kept_read(cleave_kept_client *k, const char *name, uint64_t offset, void *data,
                          size_t length, uint64_t *version, clv_err *err) CLV_USE_RESULT;
/* Removes a file of state. CLV_NOT_FOUND: there is none. */
clv_code cleave_kept_remove(cleave_kept_client *k, const char *name, clv_err *err) CLV_USE_RESULT;
/* Lists all caches, and removes them if `remove` is set. The caller frees *ret with
 * clv_wire_message_clear. */
struct clv_wire_kept_reply;
clv_code cleave_kept_caches(cleave_kept_client *k, bool remove, struct clv_wire_kept_reply *ret,
                            clv_err *err) CLV_USE_RESULT;

/* True if the node in the error only passes on the failure of another worker, which the text names.
 * A worker or a module at the master passes a failure on if it lacks a value of the worker that has
 * failed. */
bool cleave_is_passed_on(const cleave_error *why);

/* ---- state in pieces (state_pieces.c) -------------------------------------------------------- */

/* Items of a module's state, in the order in which its node lists them. Start with {0}. */
typedef struct cleave_state_list {
  clv_weights_want *items; /* [n] items */
  char *names;             /* texts that the items' names point to */
  size_t n;
} cleave_state_list;
cleave_status cleave_state_list_of(const cleave_module *module, cleave_state_kind kind,
                                   cleave_state_list *ret, cleave_error *error) CLEAVE_RESULT;
void cleave_state_list_done(cleave_state_list *l);

/* Callback that copies bytes offset..offset + length - 1 of items[item]. A `take` callback receives
 * these bytes in `data`; a `give` callback writes them to `data`. */
typedef clv_code cleave_piece_move(void *user, size_t item, uint64_t offset, void *data,
                                   size_t length, clv_err *err);

/* BLOCK. Copy items of a module's state from its node to `take`, or from `give` to the node, in
 * pieces of at most 256 KiB, each item from its beginning to its end. This process holds at most a
 * thirty-second of all bytes at a time; this limit is at least 2 MiB and at most 16 MiB. The state
 * must not change before the function returns. Each piece has its own deadline. Items without bytes
 * are skipped. A worker that does not support pieces (0.6) sends all items at once and receives
 * them one by one: `length` is then the length of a complete item. */
cleave_status cleave_state_take(cleave_runtime *runtime, cleave_module *module,
                                cleave_state_kind kind, const clv_weights_want *items, size_t n,
                                cleave_piece_move *take, void *user,
                                cleave_error *error) CLEAVE_RESULT;
cleave_status cleave_state_give(cleave_runtime *runtime, cleave_module *module,
                                cleave_state_kind kind, const clv_weights_want *items, size_t n,
                                cleave_piece_move *give, void *user,
                                cleave_error *error) CLEAVE_RESULT;

/* Makes a cleave_graph from a copy of `graph`. Layers keep their numbers. */
cleave_status cleave_graph_of(const clv_graph *graph, cleave_graph **ret_graph,
                              cleave_error *error) CLEAVE_RESULT;

#endif
