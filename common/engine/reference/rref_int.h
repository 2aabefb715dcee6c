/* SPDX-License-Identifier: Apache-2.0
 *
 * The inside of references: the records of a node, and the functions that the files share. Each
 * file calls only the files above it in this list:
 *
 *   rref_record.c  circular lists, maps, records, the queue of results
 *   rref_tables.c  the state machines: actions of each event in each state
 *   rref_post.c    numbered messages: sent until acknowledged, handled once
 *   rref_owner.c   entries, forks, parked messages
 *   rref_user.c    handles and their children
 *   rref_result.c  makes messages and results from records
 *   rref.c         the inputs
 */
#ifndef CLEAVE_RREF_INT_H
#define CLEAVE_RREF_INT_H

#include <stddef.h>

#include "common/engine/reference/reference.h"

/* ---- records --------------------------------------------------------------------------------- */

/* results: queued results that are made from the record; is_dropped: freed after the last of
 * them. */
typedef struct clv_rref_record {
  struct clv_rref_record *next;
  uint64_t id;
  uint8_t state, results;
  bool is_dropped;
} clv_rref_record;

typedef struct clv_rref_map {
  clv_rref_record **buckets; /* [cap], a power of two, or 0 */
  uint32_t cap, n;
} clv_rref_map;

/* Link of a circular list; next is NULL if not in a list. */
typedef struct clv_rref_list {
  struct clv_rref_list *prev, *next;
} clv_rref_list;

#define RREF_OF(type, member, pointer) ((type *)(void *)((char *)(pointer)-offsetof(type, member)))

/* Kind of record from which a result, or a message to this node itself, is made. */
typedef enum clv_rref_source {
  RREF_FROM_POST,
  RREF_FROM_PEER, /* ACK */
  RREF_FROM_FORK, /* VALUE */
  RREF_CREATE,    /* of an entry, as RREF_FREED */
  RREF_FREED,
  RREF_USED, /* of a handle, as RREF_JOIN_RESULT and RREF_FETCHED */
  RREF_JOIN_RESULT,
  RREF_FETCHED,
  RREF_FORK_UNUSED,
  RREF_CHILD_UNUSED,
} clv_rref_source;

/* An entry in the queue of results, embedded in the record that the result is made from. */
typedef struct clv_rref_queue_entry {
  clv_rref_list at;
  clv_rref_source source;
  clv_code code; /* code of a JOINED or UNUSED result */
} clv_rref_queue_entry;

/* A numbered message that is not acknowledged, embedded in the record that it is made from. */
typedef struct clv_rref_post {
  clv_rref_list at; /* in its receiver's outbox, by ascending number */
  clv_rref_queue_entry out;
  clv_rref_kind kind;
  bool of_fork; /* USE sent by the owner itself: the record is a fork; else a child */
  uint8_t state;
  uint32_t to;
  uint64_t number, due_ns, wait_ns;
} clv_rref_post;

typedef struct clv_rref_entry {
  clv_rref_record record;
  uint64_t key, context, value; /* id and context of the value */
  clv_tensor *tensor;           /* the value; NULL and `failed` NULL: not settled */
  clv_rref_failure *failed;
  clv_rref_list forks;
  clv_rref_queue_entry create, freed;
} clv_rref_entry;

typedef struct clv_rref_fork {
  clv_rref_record record;
  clv_rref_entry *entry;
  uint32_t node;
  clv_rref_list of_entry, of_peer;
  clv_rref_post use; /* the USE, if the owner itself passed it */
  clv_rref_queue_entry answer, unused;
  uint64_t context, value;
} clv_rref_fork;

typedef struct clv_rref_handle {
  clv_rref_record record; /* record.id is its fork */
  uint64_t ref, key;
  /* parent: node that receives ACCEPT when the owner has answered, or RREF_NO_NODE */
  uint32_t owner, parent;
  bool wants_value, is_created_here;
  uint64_t context, value, joined_ns;
  uint64_t fetch_ns; /* time to repeat a FETCH that the owner has acknowledged */
  clv_rref_list of_peer, fetching, children;
  clv_rref_post join_post, fetch_post, accept_post, delete_post;
  const clv_rref_failure *failed; /* why the owner refused it, or NULL */
  clv_rref_queue_entry report, fetched;
  clv_tensor *tensor; /* value that `fetched` reports; NULL: `fetch_failure` */
  clv_rref_failure *fetch_failure;
} clv_rref_handle;

typedef struct clv_rref_child {
  clv_rref_record record; /* record.id is the fork of the passed handle */
  clv_rref_handle *parent;
  clv_rref_list of_parent, of_peer;
  clv_rref_post use;
  clv_rref_queue_entry unused;
  uint64_t ref, context, value;
  uint32_t owner;
} clv_rref_child;

/* A message that arrived before the record it names, or that names none. */
typedef struct clv_rref_parked {
  clv_rref_list at;
  clv_rref_kind kind;
  uint32_t from;
  uint64_t number, ref, fork, key, until_ns;
} clv_rref_parked;

typedef struct clv_rref_peer {
  uint32_t node;
  uint64_t heard_ns, renewed_ns;
  uint64_t last_number;         /* last number posted to the peer */
  uint64_t highest;             /* highest number received from the peer */
  uint64_t ack_first, ack_last; /* range of numbers for which an ACK is owed */
  /* answers to the last numbers: 0: none; else 1 + code, with ACK_OWED */
  uint8_t answers[CLV_WIRE_REF_WINDOW];
  clv_rref_list outbox, forks, handles, children;
  clv_rref_post renew;
  clv_rref_queue_entry ack;
} clv_rref_peer;

typedef struct clv_rref_visits clv_rref_visits;

struct clv_rrefs {
  clv_rrefs_options o;
  uint64_t now, due;
  clv_slab entry_slab, fork_slab, handle_slab, child_slab, parked_slab;
  clv_rref_map entries, forks, handles, children;
  clv_rref_peer *peers; /* [o.n_nodes]; indexed by node */
  clv_rref_list fetching, parked;
  clv_rref_list results, to_self; /* queues in order of arrival */
  clv_tensor *last_tensor;        /* tensor and failure of the last result taken */
  clv_rref_failure *last_failure;
  uint32_t n_posts;
  clv_rref_visits *visits; /* for tests; NULL: not counted */
};

/* ---- rref_record.c --------------------------------------------------------------------------- */

void clv_rref_list_init(clv_rref_list *r);
bool clv_rref_list_is_empty(const clv_rref_list *r);
void clv_rref_list_add(clv_rref_list *r, clv_rref_list *place); /* at the end of the list */
void clv_rref_list_remove(clv_rref_list *place);                /* from its list, if it is in one */

void *clv_rref_record_find(const clv_rref_map *map, uint64_t id); /* NULL: no such record */
clv_code clv_rref_record_new(clv_rrefs *t, clv_slab *s, clv_rref_map *map, uint64_t id,
                             void *ret_pp, clv_err *err) CLV_USE_RESULT;
/* Removes a record from its map. It is freed now, or after the last result made from it is
 * taken. */
void clv_rref_record_drop(clv_slab *s, clv_rref_map *map, void *record);
/* call after each result made from the record */
void clv_rref_record_result_taken(clv_slab *s, void *record);

/* Appends to the queue, unless already queued. A message to this node itself is added to the other
 * queue; a report belongs to a record. */
void clv_rref_queue_message(clv_rrefs *t, clv_rref_queue_entry *out, clv_rref_source source,
                            uint32_t to);
void clv_rref_queue_report(clv_rrefs *t, clv_rref_queue_entry *out, clv_rref_source source,
                           clv_rref_record *of);
/* removes a queued report; does nothing if not queued */
void clv_rref_unqueue_report(clv_rref_queue_entry *out, clv_rref_record *of);

void clv_rref_tick_by(clv_rrefs *t, uint64_t at_ns);
const clv_rref_failure *clv_rref_refusal(clv_code code); /* same text for every peer */
/* Copies a failure. Without memory returns a static one that says so. */
clv_rref_failure *clv_rref_failure_copy(const clv_rref_failure *why);
void clv_rref_failure_free(clv_rref_failure *copy);

/* ---- rref_tables.c ----------------------------------------------------------------------------
 *
 * Each machine is a table: state x event -> next state and actions, in their order. What stands in
 * no cell cannot happen; it does nothing and is CLV_INTERNAL. The first state of each is that of
 * a record which is not there, or not yet. */

typedef enum clv_rref_entry_state {
  RREF_ENTRY_NONE,
  RREF_ENTRY_EXPECTED, /* the value is not settled */
  RREF_ENTRY_VALUE,
  RREF_ENTRY_FAILURE, /* the value has failed */
  RREF_ENTRY_STATES
} clv_rref_entry_state;

typedef enum clv_rref_entry_event {
  RREF_ENTRY_KEPT,      /* KEEP arrived */
  RREF_ENTRY_OWNED,     /* this node made the reference with its value */
  RREF_ENTRY_SETTLED,   /* the value exists */
  RREF_ENTRY_FAILED,    /* the value failed */
  RREF_ENTRY_FORKED,    /* FORK arrived, with the right key if there is an entry */
  RREF_ENTRY_WRONG_KEY, /* FORK arrived with a wrong key */
  RREF_ENTRY_UNUSED,    /* the last fork was freed */
  RREF_ENTRY_EVENTS
} clv_rref_entry_event;

typedef enum clv_rref_fork_state {
  RREF_FORK_NONE,
  RREF_FORK_OFFERED, /* USE is not acknowledged */
  RREF_FORK_OFFERED_ASKED,
  RREF_FORK_KNOWN, /* its user knows it */
  RREF_FORK_ASKED, /* its user waits for the value */
  RREF_FORK_STATES
} clv_rref_fork_state;

typedef enum clv_rref_fork_event {
  RREF_FORK_ADDED,  /* KEEP or FORK arrived */
  RREF_FORK_PASSED, /* the owner itself passed it */
  RREF_FORK_FETCH,  /* FETCH arrived; the value or its failure exists */
  /* FETCH arrived from a node that does not know whether the fork exists */
  RREF_FORK_FETCH_EARLY,
  RREF_FORK_FETCH_PENDING, /* FETCH arrived; the value is not settled */
  RREF_FORK_SETTLED,
  RREF_FORK_USE_ACKED,   /* USE was acknowledged */
  RREF_FORK_USE_REFUSED, /* USE was refused */
  RREF_FORK_DELETED,     /* DELETE arrived */
  RREF_FORK_LOST,        /* its user's lease expired */
  RREF_FORK_EVENTS
} clv_rref_fork_event;

typedef enum clv_rref_handle_state {
  RREF_NONE,
  RREF_JOINING, /* the owner has not answered */
  RREF_JOINED,
  RREF_FAILED,           /* the owner does not know the handle */
  RREF_JOINING_RELEASED, /* released, and the owner has not answered */
  RREF_JOINED_RELEASED,  /* released; waits for its children */
  RREF_LEAVING,          /* DELETE is not acknowledged */
  RREF_ENDED,            /* the owner has no fork of it; waits for its children and its ACCEPT */
  RREF_HANDLE_STATES
} clv_rref_handle_state;

typedef enum clv_rref_handle_event {
  RREF_KEPT,                /* this node made it with KEEP */
  RREF_OWNED,               /* this node made it as the owner */
  RREF_RECEIVED,            /* USE arrived from a node that is not the owner */
  RREF_RECEIVED_FROM_OWNER, /* USE arrived from the owner, which has added the fork */
  RREF_PASS,                /* this node passes it on */
  RREF_FETCH,               /* this node fetches the value */
  RREF_RELEASE,             /* this node releases it */
  RREF_JOIN_ACKED,          /* KEEP or FORK was acknowledged */
  RREF_JOIN_REFUSED,        /* KEEP or FORK was refused */
  RREF_FETCH_ACKED,         /* FETCH was acknowledged */
  RREF_FETCH_REFUSED,       /* FETCH was refused */
  RREF_VALUE_CAME,          /* the value or its failure arrived, and is wanted */
  RREF_DELETE_ACKED,        /* DELETE was acknowledged */
  RREF_CHILDLESS,           /* has no children; may still owe ACCEPT */
  RREF_NO_WAITERS,          /* has no children and owes no ACCEPT */
  RREF_OWNER_FORGOT,        /* a RENEW that was sent after the owner's answer was refused */
  RREF_OWNER_LOST,          /* the owner's lease expired */
  RREF_HANDLE_EVENTS
} clv_rref_handle_event;

typedef enum clv_rref_child_state {
  RREF_CHILD_NONE,
  RREF_CHILD_OFFERED, /* USE is not acknowledged */
  RREF_CHILD_TAKEN,   /* USE was acknowledged, ACCEPT has not arrived */
  RREF_CHILD_STATES
} clv_rref_child_state;

typedef enum clv_rref_child_event {
  RREF_CHILD_PASSED,
  RREF_CHILD_USE_ACKED,   /* USE was acknowledged */
  RREF_CHILD_USE_REFUSED, /* USE was refused */
  RREF_CHILD_ACCEPTED,    /* ACCEPT arrived */
  RREF_CHILD_LOST,        /* its receiver's lease expired */
  RREF_CHILD_EVENTS
} clv_rref_child_event;

typedef enum clv_rref_post_state {
  RREF_POST_NONE,
  RREF_POST_BEHIND, /* behind the window, not sent */
  RREF_POST_SENT,
  RREF_POST_STATES
} clv_rref_post_state;

typedef enum clv_rref_post_event {
  RREF_POST_POSTED,      /* posted within the window */
  RREF_POST_OVER_WINDOW, /* posted, behind the window */
  RREF_POST_IN_WINDOW,   /* the window has reached it */
  RREF_POST_DUE,         /* not acknowledged in time */
  RREF_POST_ACKED,
  RREF_POST_CANCELLED,
  RREF_POST_EVENTS
} clv_rref_post_event;

/* Actions of cells. Each machine has functions for some of them. */
typedef enum clv_rref_action {
  RREF_END, /* end of a cell's actions */
  RREF_PARK,
  RREF_ADD_FORK,
  RREF_STORE_VALUE,
  RREF_STORE_FAILURE,
  RREF_SERVE_FORKS,
  RREF_UNPARK_FORKS,
  RREF_UNPARK_FETCH,
  RREF_SEND_VALUE,
  RREF_SEND_KEEP,
  RREF_SEND_FORK,
  RREF_SEND_USE,
  RREF_SEND_FETCH,
  RREF_SEND_ACCEPT, /* if `parent` waits for it */
  RREF_SEND_DELETE,
  RREF_ADD_CHILD, /* or a fork, if this node is the owner */
  RREF_NOTE_JOINED,
  RREF_CANCEL_OWNER_POSTS, /* cancels all messages to the owner */
  RREF_CANCEL_FETCH,       /* stops waiting for the value */
  RREF_REFETCH_SOON,
  RREF_REFETCH_LATER,
  RREF_REPORT_CREATE,
  RREF_REPORT_FREED,
  RREF_REPORT_USED,
  RREF_REPORT_JOINED,  /* if it was created here */
  RREF_REPORT_FAILURE, /* if the value is wanted */
  RREF_REPORT_VALUE,
  RREF_REPORT_UNUSED,
  RREF_TRANSMIT,
  RREF_UNLINK,
  RREF_CHECK, /* raises CHILDLESS or NO_WAITERS if true */
  RREF_FREE,
  RREF_ACTIONS
} clv_rref_action;

typedef enum clv_rref_rule {
  RREF_IMPOSSIBLE,
  RREF_DO,
  RREF_REFUSE,           /* with `code` */
  RREF_REFUSE_AS_FAILED, /* with the failure of the handle */
} clv_rref_rule;

typedef struct clv_rref_cell {
  uint8_t rule, next, code, actions[5]; /* RREF_END after the last, if there are fewer */
} clv_rref_cell;

typedef enum clv_rref_machine {
  RREF_ENTRIES,
  RREF_FORKS,
  RREF_HANDLES,
  RREF_CHILDREN,
  RREF_POSTS,
  RREF_MACHINES
} clv_rref_machine;

enum { RREF_MAX_STATES = 8, RREF_MAX_EVENTS = 17 };

struct clv_rref_visits {
  uint32_t n[RREF_MACHINES][RREF_MAX_STATES][RREF_MAX_EVENTS];
};

const clv_rref_cell *clv_rref_cell_of(clv_rref_machine m, uint8_t state, uint8_t event);
uint8_t clv_rref_n_states(clv_rref_machine m);
uint8_t clv_rref_n_events(clv_rref_machine m);

/* Arguments and results of an event. */
typedef struct clv_rref_event_args {
  clv_code code; /* code of an answer */
  clv_tensor *tensor;
  const clv_rref_failure *failure;
  const clv_rref_message *message; /* FORK, FETCH */
  uint32_t from;
  const clv_rref_pass_args *passing;
  /* results: the cell refused; the message was parked, so the answer follows later */
  bool refused, parked;
  clv_err *err;
} clv_rref_event_args;

typedef clv_code clv_rref_action_fn(clv_rrefs *t, void *record, clv_rref_event_args *given);

/* Applies an event to a record, or to none: `state` is then the first state. Calls the cell's
 * actions from `doers`; the record may be freed afterwards. Returns the code of a refusal, or of
 * the first action that fails, which is the last one called. */
clv_code clv_rref_on_event(clv_rrefs *t, clv_rref_machine m, clv_rref_action_fn *const *doers,
                           void *record, uint8_t *state, uint8_t event, clv_rref_event_args *given);

/* ---- rref_post.c ----------------------------------------------------------------------------- */

/* Call before recording anything that depends on a peer: starts its lease. */
void clv_rref_peer_start_lease(clv_rrefs *t, clv_rref_peer *p);
bool clv_rref_peer_has_lease(const clv_rref_peer *p);
void clv_rref_post_new(clv_rrefs *t, clv_rref_post *post, clv_rref_kind kind, uint32_t to);
void clv_rref_post_cancel(clv_rrefs *t, clv_rref_post *post); /* does nothing if not active */
bool clv_rref_post_is_active(const clv_rref_post *post);
/* Ends the post of that number after the peer acknowledged it, and returns it; NULL: no such
 * post. */
clv_rref_post *clv_rref_post_acked(clv_rrefs *t, clv_rref_peer *p, uint64_t number);
void clv_rref_posts_resend(clv_rrefs *t, clv_rref_peer *p); /* resends those that are due */
/* False: the message was handled already, or is older than the window. */
bool clv_rref_is_new(clv_rrefs *t, clv_rref_peer *p, uint64_t number);
void clv_rref_queue_ack(clv_rrefs *t, uint32_t to, uint64_t number, clv_code code);
/* The next number for which an ACK is owed, and its answer. False: none. */
bool clv_rref_next_ack(clv_rref_peer *p, uint64_t *ret_number, clv_code *ret_code);

/* ---- rref_owner.c ---------------------------------------------------------------------------- */

enum { RREF_PARKED = 100 }; /* in place of a code: the answer follows later */

/* Makes an entry of this node, with its fork. Reports nothing. */
clv_code clv_rref_entry_own(clv_rrefs *t, const clv_rref_new_ids *b, clv_tensor *tensor,
                            clv_rref_fork **ret, clv_err *err) CLV_USE_RESULT;
void clv_rref_entry_undo(clv_rrefs *t, clv_rref_fork *f); /* undoes clv_rref_entry_own */
void clv_rref_entry_settle(clv_rrefs *t, uint64_t ref, clv_tensor *tensor,
                           const clv_rref_failure *why);
/* Makes a fork of the entry for the node that it is passed to. */
clv_code clv_rref_fork_pass(clv_rrefs *t, uint64_t ref, const clv_rref_pass_args *what,
                            clv_err *err) CLV_USE_RESULT;
void clv_rref_fork_on_event(clv_rrefs *t, clv_rref_fork *f, clv_rref_fork_event event,
                            clv_code code);
int clv_rref_on_keep(clv_rrefs *t, uint32_t from, const clv_rref_message *m);
int clv_rref_on_fork(clv_rrefs *t, uint32_t from, const clv_rref_message *m);
int clv_rref_on_delete(clv_rrefs *t, uint32_t from, const clv_rref_message *m);
int clv_rref_on_renew(clv_rrefs *t, uint32_t from, const clv_rref_message *m);
int clv_rref_on_fetch(clv_rrefs *t, uint32_t from, const clv_rref_message *m);
/* frees messages parked for a lease */
void clv_rref_parked_expire(clv_rrefs *t);
void clv_rref_parked_drop(clv_rrefs *t, uint32_t node);        /* frees all of a node */
void clv_rref_forks_drop_lost(clv_rrefs *t, clv_rref_peer *p); /* frees all of a node */
void clv_rref_entry_clear(clv_rref_entry *e); /* frees what it holds, when the table is freed */

/* ---- rref_user.c ----------------------------------------------------------------------------- */

/* Makes a handle for an entry of this node, or for a KEEP. */
clv_code clv_rref_handle_own(clv_rrefs *t, const clv_rref_new_ids *b, clv_err *err) CLV_USE_RESULT;
clv_code clv_rref_handle_keep(clv_rrefs *t, const clv_rref_new_ids *b, uint32_t owner,
                              uint64_t context, uint64_t value, clv_err *err) CLV_USE_RESULT;
/* PASS, FETCH or RELEASE. */
clv_code clv_rref_handle_input(clv_rrefs *t, uint64_t fork, clv_rref_handle_event event,
                               const clv_rref_pass_args *what, clv_err *err) CLV_USE_RESULT;
/* Handles the answer to a post of a record. */
void clv_rref_on_ack(clv_rrefs *t, clv_rref_post *post, clv_code code);
int clv_rref_on_use(clv_rrefs *t, uint32_t from, const clv_rref_message *m);
int clv_rref_on_accept(clv_rrefs *t, uint32_t from, const clv_rref_message *m);
void clv_rref_on_value(clv_rrefs *t, uint32_t from, const clv_rref_message *m);
void clv_rref_fetches_resend(clv_rrefs *t); /* resends due FETCHes */
/* Fails the handles that the owner had answered before `before_ns`, after it refused a RENEW. */
void clv_rref_handles_fail_unknown(clv_rrefs *t, clv_rref_peer *p, uint64_t before_ns);
/* fails all handles of a lost owner, and all children passed to it */
void clv_rref_handles_fail_lost(clv_rrefs *t, clv_rref_peer *p);
void clv_rref_handle_clear(clv_rref_handle *h); /* frees what it holds, when the table is freed */

/* ---- rref_result.c --------------------------------------------------------------------------- */

/* Takes the next message to this node itself; false: none. Valid until the next call, as in
 * results. */
bool clv_rref_next_to_self(clv_rrefs *t, clv_rref_message *ret);

#endif
