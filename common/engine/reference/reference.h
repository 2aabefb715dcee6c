/* SPDX-License-Identifier: Apache-2.0
 *
 * References that outlive their context (PROTOCOL.md 12): which node owns a value, which nodes may
 * use it, and when it can be freed. A state machine for one node of one session: no thread, no
 * I/O, no clock and no callbacks. Inputs are functions that take the time. Their results are
 * queued, and the caller takes all of them with clv_rrefs_next_result after each input or after a
 * few.
 *
 * The owner of a reference holds an *entry*: the value, or the error in its place, and the set of
 * *forks*, one for each handle of any node. A user holds a *handle*, named by its fork. Handles
 * that it passed on, and that the owner does not know yet, are its *children*. The value is freed
 * with the last fork. Four rules make that safe:
 *
 *   - a handle asks the owner to add its fork, and is dropped only after the owner has answered;
 *   - a handle is not dropped before the owner has answered for each of its children;
 *   - a message is numbered by its sender for its receiver, sent until it is acknowledged, and
 *     handled once, however often and in whatever order it arrives;
 *   - a node that sends nothing for a lease counts as lost: its forks, and what waited for it, are
 *     dropped.
 *
 * The states of each record, and the actions of every event in them, are the tables of
 * rref_tables.c.
 *
 * Ids are never reused. A node must show the reference's random key to have a fork added, and the
 * fork to get the value. A FORK or a FETCH with is_before_join is parked for a lease, and then
 * refused with CLV_NOT_FOUND, if its reference or fork does not exist, belongs to another node or
 * is not known yet. The sender cannot tell these cases apart. Other messages about such a record
 * are answered at once: a FETCH without is_before_join, and a RENEW of a node without forks, are
 * CLV_NOT_FOUND; a DELETE is CLV_OK, because the fork is gone.
 *
 * Memory: records come from slabs charged to the session's quota. Results are made from records
 * when they are taken, so no result needs memory and none is lost for want of it. A result that is
 * cancelled before it is taken is not returned, and a message that is due twice is returned once.
 * One thread at a time.
 */
#ifndef CLEAVE_REFERENCE_H
#define CLEAVE_REFERENCE_H

#include "common/net/fair/fair.h"
#include "common/net/wire/wire.h"

#define RREF_NO_NODE UINT32_MAX

typedef enum clv_rref_kind {
  CLV_RREF_ACK,  /* acknowledges the message with number `number` */
  CLV_RREF_KEEP, /* to the owner: make an entry for value `value` of context `context` */
  CLV_RREF_USE,  /* to the node that a handle is passed to: the handle */
  CLV_RREF_FORK, /* to the owner: the sender has a handle, so add its fork */
  /* to the node that passed a handle on: the owner has answered for the handle */
  CLV_RREF_ACCEPT,
  CLV_RREF_DELETE, /* to the owner: the sender has dropped the handle */
  /* to a node with which the sender has handles or children: renews the sender's lease */
  CLV_RREF_RENEW,
  CLV_RREF_FETCH, /* to the owner: send VALUE when the value exists */
  CLV_RREF_VALUE, /* to a user: the value or its failure; not numbered, not acknowledged */
  CLV_RREF_KINDS
} clv_rref_kind;

/* Reason why a value does not exist. */
typedef struct clv_rref_failure {
  clv_code code;
  char text[CLV_WIRE_TEXT + 1], hop[CLV_WIRE_NAME + 1];
  bool is_lease_expiry; /* the owner sent nothing for a lease */
} clv_rref_failure;

typedef struct clv_rref_message {
  clv_rref_kind kind;
  uint64_t number; /* number of the message, from 1; 0: not numbered (VALUE) */
  uint64_t ref, fork;
  uint64_t key;        /* random key of the reference; in KEEP, USE, FORK */
  uint32_t owner;      /* number of the owner's node; in USE */
  bool is_before_join; /* the owner may not know the fork yet; in FETCH and USE */
  /* KEEP: the value to keep; USE: the value that the handle becomes at the receiver; 0 and 0:
   * none */
  uint64_t context, value;
  clv_tensor *tensor; /* VALUE: the tensor, or NULL and a failure */
  /* VALUE: why there is no value; ACK: why the acknowledged message was refused; NULL: no
   * failure */
  const clv_rref_failure *failure;
} clv_rref_message;

/* A handle, and the value of a context that the handle becomes; context and value 0: no value. */
typedef struct clv_rref_use {
  uint64_t ref, fork;
  uint32_t owner, node; /* owner: node of the value; node: node that has the handle */
  uint64_t context, value;
} clv_rref_use;

typedef struct clv_rrefs_options {
  /* memory quota of the records; the caller owns the pool, which outlives the table */
  clv_pool *pool;
  uint32_t n_nodes, self; /* nodes are numbered 0..n_nodes - 1; self: number of this node */
  uint64_t lease_ns, retry_ns;
} clv_rrefs_options;

typedef struct clv_rrefs clv_rrefs;

clv_code clv_rrefs_new(const clv_rrefs_options *options, clv_rrefs **ret,
                       clv_err *err) CLV_USE_RESULT;
/* frees the table and the results that were not taken; NULL is allowed */
void clv_rrefs_free(clv_rrefs *t);

/* ---- results that the caller takes ----------------------------------------------------------- */

typedef enum clv_rref_result_kind {
  CLV_RREF_RESULT_SEND, /* send `message` to node `to`, another node */
  /* a reference of this node needs the value of handle.context: the caller calls
   * clv_rrefs_settle_entry, now or later */
  CLV_RREF_RESULT_CREATE,
  CLV_RREF_RESULT_USED, /* `handle` was passed to this node */
  /* the owner answered for a handle that was created here; failure NULL: the owner keeps the
   * value */
  CLV_RREF_RESULT_JOINED,
  CLV_RREF_RESULT_FETCHED, /* the value that `handle` fetched: `tensor` or `failure` */
  /* `handle` was passed to its node, which will not use it; `failure`: why */
  CLV_RREF_RESULT_UNUSED,
  CLV_RREF_RESULT_FREED, /* the entry of handle.ref was freed, because it has no forks */
  CLV_RREF_RESULTS
} clv_rref_result_kind;

typedef struct clv_rref_result {
  clv_rref_result_kind kind;
  uint32_t to;              /* in SEND: number of the receiving node */
  clv_rref_message message; /* in SEND: the message */
  /* handle that the result is about, in all kinds but SEND. CREATE sets only its ref, context and
   * value; FREED sets only its ref */
  clv_rref_use handle;
  clv_tensor *tensor; /* in FETCHED: the value, or NULL */
  const clv_rref_failure *failure;
} clv_rref_result;

/* Takes the oldest result; false: none. Input functions may be called between two calls; the next
 * calls return their results too. Tensor and failure of a SEND are valid until the next call of an
 * input function or of clv_rrefs_next_result; those of other results until the next
 * clv_rrefs_next_result. */
bool clv_rrefs_next_result(clv_rrefs *t, clv_rref_result *ret);

/* ---- inputs of the state machine ------------------------------------------------------------- */

/* Ids of a new reference and of the fork of its first handle, and the random key. The ids must not
 * be in use. */
typedef struct clv_rref_new_ids {
  uint64_t ref, fork, key;
} clv_rref_new_ids;

/* Makes a reference to `tensor`, owned by this node. CLV_EXISTS: an id is 0 or in use;
 * CLV_EXHAUSTED: too many references, or no memory. Result: JOINED. */
clv_code clv_rrefs_new_owned(clv_rrefs *t, const clv_rref_new_ids *b, clv_tensor *tensor,
                             uint64_t now_ns, clv_err *err) CLV_USE_RESULT;
/* Makes a reference to a value of a context at node `owner`, which may be this node. Result:
 * JOINED. Fails as clv_rrefs_new_owned does. */
clv_code clv_rrefs_new_kept(clv_rrefs *t, const clv_rref_new_ids *b, uint32_t owner,
                            uint64_t context, uint64_t value, uint64_t now_ns,
                            clv_err *err) CLV_USE_RESULT;
/* Settles an entry with a tensor (takes a new reference), or (tensor NULL) with a copy of `why`.
 * Does nothing if the entry is settled already or freed. */
void clv_rrefs_settle_entry(clv_rrefs *t, uint64_t ref, clv_tensor *tensor,
                            const clv_rref_failure *why, uint64_t now_ns);
/* Arguments for passing a handle to node `to`. child_fork: fork of the new handle. */
typedef struct clv_rref_pass_args {
  uint64_t child_fork;
  uint32_t to;
  uint64_t context, value; /* value of a context that the new handle becomes at node `to` */
} clv_rref_pass_args;

/* Passes a handle on. CLV_NOT_FOUND: there is no handle `fork`, or it was released; other codes:
 * why the handle failed. clv_rrefs_fetch_value and clv_rrefs_release_handle fail in the same
 * cases. */
clv_code clv_rrefs_pass_handle(clv_rrefs *t, uint64_t fork, const clv_rref_pass_args *what,
                               uint64_t now_ns, clv_err *err) CLV_USE_RESULT;
/* Asks the owner for the value of a handle. Result: FETCHED, once, unless the handle is released
 * first. */
clv_code clv_rrefs_fetch_value(clv_rrefs *t, uint64_t fork, uint64_t now_ns,
                               clv_err *err) CLV_USE_RESULT;
clv_code clv_rrefs_release_handle(clv_rrefs *t, uint64_t fork, uint64_t now_ns,
                                  clv_err *err) CLV_USE_RESULT;

/* Handles a message of any content. Ignores or refuses a message that is impossible or that node
 * `from` may not send. */
void clv_rrefs_receive_message(clv_rrefs *t, uint32_t from, const clv_rref_message *m,
                               uint64_t now_ns);

/* Returns the time at which clv_rrefs_tick must be called next; UINT64_MAX: no timer runs. */
uint64_t clv_rrefs_due_ns(const clv_rrefs *t);
void clv_rrefs_tick(clv_rrefs *t, uint64_t now_ns);

typedef struct clv_rref_counts {
  uint32_t n_entries, n_forks, n_handles, n_children, n_parked, n_unacknowledged;
} clv_rref_counts;
void clv_rrefs_count(const clv_rrefs *t, clv_rref_counts *ret);

#endif
