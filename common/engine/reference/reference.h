/* SPDX-License-Identifier: Apache-2.0
 *
 * References that outlive their context (PROTOCOL.md 12): which node owns a value, which nodes may
 * use it, and when it can be freed. A state machine for one node of one session: no thread, no
 * I/O, no clock and no callbacks. Inputs are functions that take the time. Their results are
 * queued, and the caller takes all of them with clv_rrefs_next after each input or after a few.
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
 * fork to get the value. A message about a reference that does not exist, belongs to another node
 * or is not known yet is parked for a lease, and is CLV_NOT_FOUND afterwards. The sender cannot
 * tell these cases apart.
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
  CLV_RREF_ACK,  /* acknowledges message `number` */
  CLV_RREF_KEEP, /* to the owner: make an entry of value `value` of `context` */
  CLV_RREF_USE,  /* to the node that a handle is passed to */
  CLV_RREF_FORK, /* to the owner: the sender has a handle */
  /* to the node that passed it: the owner knows the handle, or it will not be used */
  CLV_RREF_ACCEPT,
  CLV_RREF_DELETE, /* to the owner: the sender has dropped the handle */
  CLV_RREF_RENEW,  /* to a node that holds something for the sender: renews the lease */
  CLV_RREF_FETCH,  /* to the owner: send VALUE when it exists */
  CLV_RREF_VALUE,  /* to a user; not numbered */
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
  uint64_t number; /* from 1 */
  uint64_t ref, fork;
  uint64_t key;                    /* KEEP, USE, FORK */
  uint32_t owner;                  /* USE */
  bool is_before_join;             /* FETCH, USE: the owner may not know the fork yet */
  uint64_t context, value;         /* KEEP: the value to keep; USE: the value that it becomes */
  clv_tensor *tensor;              /* VALUE: the tensor, or NULL and a failure */
  const clv_rref_failure *failure; /* why there is no value; for ACK: why the message was refused */
} clv_rref_message;

/* A handle, and the value of a context that it becomes; 0 and 0: none. */
typedef struct clv_rref_use {
  uint64_t ref, fork;
  uint32_t owner, node; /* node: the node that has the handle */
  uint64_t context, value;
} clv_rref_use;

typedef struct clv_rrefs_options {
  clv_pool *pool;         /* caller-owned; outlives the table */
  uint32_t n_nodes, self; /* nodes are 0..n_nodes - 1 */
  uint64_t lease_ns, retry_ns;
} clv_rrefs_options;

typedef struct clv_rrefs clv_rrefs;

clv_code clv_rrefs_new(const clv_rrefs_options *options, clv_rrefs **ret,
                       clv_err *err) CLV_USE_RESULT;
void clv_rrefs_free(clv_rrefs *t); /* also frees results that were not taken; NULL is allowed */

/* ---- results --------------------------------------------------------------------------------- */

typedef enum clv_rref_result_kind {
  CLV_RREF_RESULT_SEND,   /* send `message` to node `to`, another node */
  CLV_RREF_RESULT_CREATE, /* a reference needs the value: call clv_rrefs_settle, now or later */
  CLV_RREF_RESULT_USED,   /* `handle` was passed to this node */
  /* the owner answered for a handle created here; no failure: the value is kept */
  CLV_RREF_RESULT_JOINED,
  CLV_RREF_RESULT_FETCHED, /* `handle` fetched the tensor or the failure */
  CLV_RREF_RESULT_UNUSED,  /* `handle` was passed on and did not arrive: the failure */
  CLV_RREF_RESULT_FREED,   /* the entry of handle.ref was freed, because it has no forks */
  CLV_RREF_RESULTS
} clv_rref_result_kind;

typedef struct clv_rref_result {
  clv_rref_result_kind kind;
  uint32_t to;              /* SEND */
  clv_rref_message message; /* SEND */
  clv_rref_use handle;      /* the others; CREATE: ref, context and value; FREED: ref */
  clv_tensor *tensor;       /* FETCHED */
  const clv_rref_failure *failure;
} clv_rref_result;

/* Takes the oldest result; false: none. Inputs may be called between two calls: the next calls
 * return their results too. Tensor and failure of a message are valid until an input or the next
 * call; those of other results until the next call. */
bool clv_rrefs_next(clv_rrefs *t, clv_rref_result *ret);

/* ---- inputs ---------------------------------------------------------------------------------- */

/* Ids of a new reference and its first handle; none may be in use. */
typedef struct clv_rref_new_ids {
  uint64_t ref, fork, key;
} clv_rref_new_ids;

/* Makes a reference to `tensor`, owned by this node. CLV_EXISTS: an id is 0 or in use;
 * CLV_EXHAUSTED: too many references, or no memory. Result: JOINED. */
clv_code clv_rrefs_own(clv_rrefs *t, const clv_rref_new_ids *b, clv_tensor *tensor, uint64_t now_ns,
                       clv_err *err) CLV_USE_RESULT;
/* Makes a reference to a value of a context at `owner`, which may be this node. Result: JOINED.
 * Errors as clv_rrefs_own. */
clv_code clv_rrefs_keep(clv_rrefs *t, const clv_rref_new_ids *b, uint32_t owner, uint64_t context,
                        uint64_t value, uint64_t now_ns, clv_err *err) CLV_USE_RESULT;
/* Settles an entry with a tensor (takes a new reference), or (tensor NULL) with a copy of `why`.
 * Does nothing if it is settled already or freed. */
void clv_rrefs_settle(clv_rrefs *t, uint64_t ref, clv_tensor *tensor, const clv_rref_failure *why,
                      uint64_t now_ns);
/* A handle for another node; child: its fork. */
typedef struct clv_rref_pass_args {
  uint64_t child;
  uint32_t to;
  uint64_t context, value; /* value that the handle becomes there */
} clv_rref_pass_args;

/* Passes a handle on. CLV_NOT_FOUND: no handle `fork`, or it was released; other codes: why the
 * handle failed. Also for fetch and release. */
clv_code clv_rrefs_pass(clv_rrefs *t, uint64_t fork, const clv_rref_pass_args *what,
                        uint64_t now_ns, clv_err *err) CLV_USE_RESULT;
/* Fetches the value. Result: FETCHED, once, unless the handle is released first. */
clv_code clv_rrefs_fetch(clv_rrefs *t, uint64_t fork, uint64_t now_ns, clv_err *err) CLV_USE_RESULT;
clv_code clv_rrefs_release(clv_rrefs *t, uint64_t fork, uint64_t now_ns,
                           clv_err *err) CLV_USE_RESULT;

/* Handles a message of any content. Ignores or refuses one that is impossible or not allowed from
 * `from`. */
void clv_rrefs_receive(clv_rrefs *t, uint32_t from, const clv_rref_message *m, uint64_t now_ns);

/* Time of the next clv_rrefs_tick; UINT64_MAX: no timer runs. */
uint64_t clv_rrefs_due_ns(const clv_rrefs *t);
void clv_rrefs_tick(clv_rrefs *t, uint64_t now_ns);

typedef struct clv_rref_counts {
  uint32_t owned, forks, used, passing, parked, unacknowledged;
} clv_rref_counts;
void clv_rrefs_count(const clv_rrefs *t, clv_rref_counts *ret);

#endif
