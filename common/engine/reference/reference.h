/* SPDX-License-Identifier: Apache-2.0
 *
 * References that outlive their context (PROTOCOL.md 12): who owns a value, who may use it, and
 * when it can go. A state machine for one node of one session: no thread, no I/O and no clock of
 * its own, and it calls nobody. Inputs are functions that take the time; what comes of them stands
 * in a queue, from which the caller takes all with clv_rrefs_next after each input or a few.
 *
 * The owner of a reference holds an *entry*: the value, or the error that stands for it, and the
 * set of *forks*, one for each handle anywhere. A user holds a *handle*, named by its fork; handles
 * that it passed on and whose owner has not heard of them yet are its *children*. The value goes
 * when the last fork does. What makes that safe:
 *
 *   - a handle asks the owner to add its fork and is given up only after the owner has answered;
 *   - a handle is not given up before the owner has answered for each of its children;
 *   - a message is numbered by its sender for its receiver, sent until it is acknowledged, and
 *     handled once, however often and in whatever order it comes;
 *   - a node that has not been heard of for a lease is gone: its forks, and what waited for it,
 *     too.
 *
 * The states of each and what every event does in them are the tables of rref_tables.c.
 *
 * Ids are never given out twice. A node has to show the reference's key, drawn at random with it,
 * to have a fork added, and the fork itself to get the value. What does not exist, is somebody
 * else's or comes too early waits for a lease, all alike, and is then CLV_NOT_FOUND.
 *
 * Memory: records come from slabs charged to the session's quota. Results are made from records
 * when they are taken, so none is ever lost for want of memory, and none takes any: what is
 * cancelled before it is taken does not come, and of a message that is due twice there is one. One
 * thread at a time.
 */
#ifndef CLEAVE_REFERENCE_H
#define CLEAVE_REFERENCE_H

#include "common/net/fair/fair.h"
#include "common/net/wire/wire.h"

#define RREF_NO_NODE UINT32_MAX

typedef enum clv_rref_kind {
  CLV_RREF_ACK,    /* of message `number` */
  CLV_RREF_KEEP,   /* to the owner: make an entry of value `value` of `context` */
  CLV_RREF_USE,    /* to whom a handle is passed */
  CLV_RREF_FORK,   /* to the owner: I have a handle */
  CLV_RREF_ACCEPT, /* to who passed it: the owner knows of it, or it will not be used */
  CLV_RREF_DELETE, /* to the owner: I have no handle any more */
  CLV_RREF_RENEW,  /* to who holds something for me: I am here */
  CLV_RREF_FETCH,  /* to the owner: VALUE follows when it is there */
  CLV_RREF_VALUE,  /* to a user; not numbered */
  CLV_RREF_KINDS
} clv_rref_kind;

/* Why there is no value. */
typedef struct clv_rref_failure {
  clv_code code;
  char text[CLV_WIRE_TEXT + 1], hop[CLV_WIRE_NAME + 1];
  bool is_lease_expiry; /* nothing was said: the owner has not been heard of for a lease */
} clv_rref_failure;

typedef struct clv_rref_message {
  clv_rref_kind kind;
  uint64_t number; /* from 1 */
  uint64_t ref, fork;
  uint64_t key;                    /* KEEP, USE, FORK */
  uint32_t owner;                  /* USE */
  bool is_before_join;             /* FETCH, USE: the owner does not know the fork yet */
  uint64_t context, value;         /* KEEP: what is kept; USE: what it is for */
  clv_tensor *tensor;              /* VALUE: this or a failure */
  const clv_rref_failure *failure; /* also of an ACK: it was refused */
} clv_rref_message;

/* A handle and what it is for: a value of a context, or 0 and 0. */
typedef struct clv_rref_use {
  uint64_t ref, fork;
  uint32_t owner, node; /* node: where the handle is */
  uint64_t context, value;
} clv_rref_use;

typedef struct clv_rrefs_options {
  clv_pool *pool;         /* borrowed, longer than the table */
  uint32_t n_nodes, self; /* nodes are 0..n_nodes - 1 */
  uint64_t lease_ns, retry_ns;
} clv_rrefs_options;

typedef struct clv_rrefs clv_rrefs;

clv_code clv_rrefs_new(const clv_rrefs_options *options, clv_rrefs **ret,
                       clv_err *err) CLV_USE_RESULT;
void clv_rrefs_free(clv_rrefs *t); /* with results that nobody took; NULL is allowed */

/* ---- results --------------------------------------------------------------------------------- */

typedef enum clv_rref_result_kind {
  CLV_RREF_RESULT_SEND,    /* `message` to node `to`, which is another one */
  CLV_RREF_RESULT_CREATE,  /* the value is wanted: clv_rrefs_settle gives it, now or later */
  CLV_RREF_RESULT_USED,    /* `handle` was passed to this node */
  CLV_RREF_RESULT_JOINED,  /* the owner's answer for a handle made here; no failure: it is kept */
  CLV_RREF_RESULT_FETCHED, /* by `handle`: the tensor or the failure */
  CLV_RREF_RESULT_UNUSED,  /* `handle` was passed on and has not arrived: the failure */
  CLV_RREF_RESULT_FREED,   /* the entry of handle.ref; nobody uses it any more */
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

/* Takes the oldest result; false: there is none. Inputs may be called between two of these calls:
 * what comes of them is taken by the next ones. A message's tensor and failure are borrowed until
 * an input or the next call; those of the others until the next call. */
bool clv_rrefs_next(clv_rrefs *t, clv_rref_result *ret);

/* ---- inputs ---------------------------------------------------------------------------------- */

/* A reference with its first handle. The ids are new ones. */
typedef struct clv_rref_new_ids {
  uint64_t ref, fork, key;
} clv_rref_new_ids;

/* Of this value, here. CLV_EXISTS: an id is 0 or taken; CLV_EXHAUSTED: too many, or no memory. The
 * result is JOINED. */
clv_code clv_rrefs_own(clv_rrefs *t, const clv_rref_new_ids *b, clv_tensor *tensor, uint64_t now_ns,
                       clv_err *err) CLV_USE_RESULT;
/* Of a value of a context at its owner, which may be this node. JOINED comes of it. Errors as
 * above. */
clv_code clv_rrefs_keep(clv_rrefs *t, const clv_rref_new_ids *b, uint32_t owner, uint64_t context,
                        uint64_t value, uint64_t now_ns, clv_err *err) CLV_USE_RESULT;
/* The value of an entry is there, or (tensor NULL) never will be, and why; a reference is taken, or
 * a copy. What is settled or gone stays as it is. */
void clv_rrefs_settle(clv_rrefs *t, uint64_t ref, clv_tensor *tensor, const clv_rref_failure *why,
                      uint64_t now_ns);
/* A handle of its own for a node, which may be any; child: its fork. */
typedef struct clv_rref_pass_args {
  uint64_t child;
  uint32_t to;
  uint64_t context, value; /* what it is for */
} clv_rref_pass_args;

/* Passes a handle on. CLV_NOT_FOUND: there is no handle `fork`, or it was released; or what made it
 * fail. So it is with the next two. */
clv_code clv_rrefs_pass(clv_rrefs *t, uint64_t fork, const clv_rref_pass_args *what,
                        uint64_t now_ns, clv_err *err) CLV_USE_RESULT;
/* FETCHED comes of it, once, unless the handle is released before. */
clv_code clv_rrefs_fetch(clv_rrefs *t, uint64_t fork, uint64_t now_ns, clv_err *err) CLV_USE_RESULT;
clv_code clv_rrefs_release(clv_rrefs *t, uint64_t fork, uint64_t now_ns,
                           clv_err *err) CLV_USE_RESULT;

/* Of any content: what is out of place or not `from`'s to send is ignored or refused. */
void clv_rrefs_receive(clv_rrefs *t, uint32_t from, const clv_rref_message *m, uint64_t now_ns);

/* When clv_rrefs_tick wants to be called; UINT64_MAX: not before something else happens. */
uint64_t clv_rrefs_due_ns(const clv_rrefs *t);
void clv_rrefs_tick(clv_rrefs *t, uint64_t now_ns);

typedef struct clv_rref_counts {
  uint32_t owned, forks, used, passing, parked, unacknowledged;
} clv_rref_counts;
void clv_rrefs_count(const clv_rrefs *t, clv_rref_counts *ret);

#endif
