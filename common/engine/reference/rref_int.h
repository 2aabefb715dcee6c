/* SPDX-License-Identifier: Apache-2.0
 *
 * References from within: the records of a node, and what the files need of each other. Each file
 * calls those above it in this header alone:
 *
 *   rref_record.c  rings, maps, records, the queue of results
 *   rref_tables.c  the state machines: what each event does in each state
 *   rref_post.c    numbered messages: sent until acknowledged, handled once
 *   rref_owner.c   entries, forks, and what waits for either
 *   rref_user.c    handles and their children
 *   rref_result.c  makes messages and results from records
 *   rref.c         the inputs
 */
#ifndef CLEAVE_RREF_INT_H
#define CLEAVE_RREF_INT_H

#include <stddef.h>

#include "common/engine/reference/reference.h"

/* ---- records --------------------------------------------------------------------------------- */

/* results: how many of the queue are made from it; gone: it is given back after the last. */
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

/* A place in a circle; of a record that is in none, next is NULL. */
typedef struct clv_rref_list {
  struct clv_rref_list *prev, *next;
} clv_rref_list;

#define RREF_OF(type, member, pointer) ((type *)(void *)((char *)(pointer)-offsetof(type, member)))

/* From what a result or a message to this node itself is made. */
typedef enum clv_rref_source {
  RREF_FROM_POST,
  RREF_FROM_PEER, /* an ACK */
  RREF_FROM_FORK, /* VALUE */
  RREF_CREATE,    /* of an entry, as the next */
  RREF_FREED,
  RREF_USED, /* of a handle, as the next two */
  RREF_JOIN_RESULT,
  RREF_FETCHED,
  RREF_FORK_UNUSED,
  RREF_CHILD_UNUSED,
} clv_rref_source;

/* A place in the queue of results, part of what the result is made from. */
typedef struct clv_rref_queue_entry {
  clv_rref_list at;
  clv_rref_source source;
  clv_code code; /* of JOINED_OR_NOT and what is UNUSED */
} clv_rref_queue_entry;

/* A numbered message on its way, part of the record that it is made from. */
typedef struct clv_rref_post {
  clv_rref_list at; /* of its receiver's outbox, in ascending numbers */
  clv_rref_queue_entry out;
  clv_rref_kind kind;
  bool of_fork; /* a USE by the owner itself: the record is a fork, else a child */
  uint8_t state;
  uint32_t to;
  uint64_t number, due_ns, wait_ns;
} clv_rref_post;

typedef struct clv_rref_entry {
  clv_rref_record record;
  uint64_t key, context, value; /* of which context's value it is */
  clv_tensor *tensor;           /* neither this nor failed: not there yet */
  clv_rref_failure *failed;
  clv_rref_list forks;
  clv_rref_queue_entry create, freed;
} clv_rref_entry;

typedef struct clv_rref_fork {
  clv_rref_record record;
  clv_rref_entry *entry;
  uint32_t node;
  clv_rref_list of_entry, of_peer;
  clv_rref_post use; /* when it was passed by the owner itself */
  clv_rref_queue_entry answer, unused;
  uint64_t context, value;
} clv_rref_fork;

typedef struct clv_rref_handle {
  clv_rref_record record; /* its fork */
  uint64_t ref, key;
  uint32_t owner, parent; /* who gets ACCEPT when the owner knows, or RREF_NO_NODE */
  bool wants_value, is_created_here;
  uint64_t context, value, joined_ns;
  uint64_t fetch_ns; /* the owner knows that it is wanted; asked again then, if it has not come */
  clv_rref_list of_peer, fetching, children;
  clv_rref_post join_post, fetch_post, accept_post, delete_post;
  const clv_rref_failure *failed; /* a refusal */
  clv_rref_queue_entry report, fetched;
  clv_tensor *tensor; /* what `fetched` reports: this or why not */
  clv_rref_failure *fetch_failure;
} clv_rref_handle;

typedef struct clv_rref_child {
  clv_rref_record record; /* the fork of the handle that was passed */
  clv_rref_handle *parent;
  clv_rref_list of_parent, of_peer;
  clv_rref_post use;
  clv_rref_queue_entry unused;
  uint64_t ref, context, value;
  uint32_t owner;
} clv_rref_child;

/* Came before what it is about, or is about nothing. */
typedef struct clv_rref_parked {
  clv_rref_list at;
  clv_rref_kind kind;
  uint32_t from;
  uint64_t number, ref, fork, key, until_ns;
} clv_rref_parked;

typedef struct clv_rref_peer {
  uint32_t node;
  uint64_t heard_ns, renewed_ns;
  uint64_t last_number;                 /* of what was posted to it */
  uint64_t highest;                     /* number that came from it */
  uint64_t ack_first, ack_last;         /* between these are those that an ACK is owed for */
  uint8_t answers[CLV_WIRE_REF_WINDOW]; /* of the last so many: 0 none, 1 + code; and ACK_OWED */
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
  clv_rref_peer *peers; /* [o.n_nodes] */
  clv_rref_list fetching, parked;
  clv_rref_list results, to_self; /* queues, first come first */
  clv_tensor *last_tensor;        /* what the last result holds */
  clv_rref_failure *last_failure;
  uint32_t n_posts;
  clv_rref_visits *visits; /* for tests; NULL: not counted */
};

/* ---- rref_record.c --------------------------------------------------------------------------- */

void clv_rref_list_init(clv_rref_list *r);
bool clv_rref_list_is_empty(const clv_rref_list *r);
void clv_rref_list_add(clv_rref_list *r, clv_rref_list *place); /* at its end */
void clv_rref_list_remove(clv_rref_list *place);                /* from whatever it is in, if any */

void *clv_rref_record_find(const clv_rref_map *map, uint64_t id); /* or NULL */
clv_code clv_rref_record_new(clv_rrefs *t, clv_slab *s, clv_rref_map *map, uint64_t id,
                             void *ret_pp, clv_err *err) CLV_USE_RESULT;
/* Out of the map; given back now, or when the last result that is made from it has been taken. */
void clv_rref_record_drop(clv_slab *s, clv_rref_map *map, void *record);
void clv_rref_record_result_taken(clv_slab *s, void *record); /* a result that was made from it */

/* To the end of the queue, unless it stands there. A message goes to a node, and if that is this
 * one to the other queue; a report is of a record. */
void clv_rref_queue_message(clv_rrefs *t, clv_rref_queue_entry *out, clv_rref_source source,
                            uint32_t to);
void clv_rref_queue_report(clv_rrefs *t, clv_rref_queue_entry *out, clv_rref_source source,
                           clv_rref_record *of);
/* if it stands there */
void clv_rref_unqueue_report(clv_rref_queue_entry *out, clv_rref_record *of);

void clv_rref_tick_by(clv_rrefs *t, uint64_t at_ns);
const clv_rref_failure *clv_rref_refusal(clv_code code); /* the same text for every peer */
/* Of what may be gone later. Without memory it says so instead. */
clv_rref_failure *clv_rref_failure_copy(const clv_rref_failure *why);
void clv_rref_failure_free(clv_rref_failure *copy);

/* ---- rref_tables.c ----------------------------------------------------------------------------
 *
 * Each machine is a table: state x event -> next state and actions, in their order. What stands in
 * no cell cannot happen; it does nothing and is CLV_INTERNAL. The first state of each is that of
 * a record which is not there, or not yet. */

typedef enum clv_rref_entry_state {
  RREF_ENTRY_NONE,
  RREF_ENTRY_EXPECTED, /* the value is not there yet */
  RREF_ENTRY_VALUE,
  RREF_ENTRY_FAILURE, /* and never will be */
  RREF_ENTRY_STATES
} clv_rref_entry_state;

typedef enum clv_rref_entry_event {
  RREF_ENTRY_KEPT,      /* KEEP came */
  RREF_ENTRY_OWNED,     /* the node has the value */
  RREF_ENTRY_SETTLED,   /* the value is there */
  RREF_ENTRY_FAILED,    /* the value never will be */
  RREF_ENTRY_FORKED,    /* FORK came, with its key if there is an entry */
  RREF_ENTRY_WRONG_KEY, /* FORK came with another key */
  RREF_ENTRY_UNUSED,    /* by the last fork */
  RREF_ENTRY_EVENTS
} clv_rref_entry_event;

typedef enum clv_rref_fork_state {
  RREF_FORK_NONE,
  RREF_FORK_OFFERED, /* USE is on its way */
  RREF_FORK_OFFERED_ASKED,
  RREF_FORK_KNOWN, /* to its user */
  RREF_FORK_ASKED, /* and its user waits for the value */
  RREF_FORK_STATES
} clv_rref_fork_state;

typedef enum clv_rref_fork_event {
  RREF_FORK_ADDED,         /* KEEP or FORK came */
  RREF_FORK_PASSED,        /* by the owner itself */
  RREF_FORK_FETCH,         /* came; the value, or the error, is there */
  RREF_FORK_FETCH_EARLY,   /* FETCH came, from who does not know whether there is a fork */
  RREF_FORK_FETCH_PENDING, /* FETCH came; the value is not there yet */
  RREF_FORK_SETTLED,
  RREF_FORK_USE_ACKED,   /* USE was acknowledged */
  RREF_FORK_USE_REFUSED, /* USE was */
  RREF_FORK_DELETED,     /* DELETE came */
  RREF_FORK_LOST,        /* its user was silent for a lease */
  RREF_FORK_EVENTS
} clv_rref_fork_event;

typedef enum clv_rref_handle_state {
  RREF_NONE,
  RREF_JOINING, /* the owner has not answered yet */
  RREF_JOINED,
  RREF_FAILED,           /* the owner does not know it */
  RREF_JOINING_RELEASED, /* and the owner has not answered */
  RREF_JOINED_RELEASED,  /* waits for its children */
  RREF_LEAVING,          /* DELETE is on its way */
  RREF_ENDED,            /* nothing of it at its owner; waits for its children and its ACCEPT */
  RREF_HANDLE_STATES
} clv_rref_handle_state;

typedef enum clv_rref_handle_event {
  RREF_KEPT,                /* by this node, at an owner */
  RREF_OWNED,               /* by this node */
  RREF_RECEIVED,            /* USE came, from who is not the owner */
  RREF_RECEIVED_FROM_OWNER, /* USE came from the owner, which has added the fork */
  RREF_PASS,                /* the node passes it on */
  RREF_FETCH,               /* the node wants the value */
  RREF_RELEASE,             /* the node is done with it */
  RREF_JOIN_ACKED,          /* KEEP or FORK was acknowledged */
  RREF_JOIN_REFUSED,        /* KEEP or FORK was */
  RREF_FETCH_ACKED,         /* FETCH was acknowledged */
  RREF_FETCH_REFUSED,       /* FETCH was refused */
  RREF_VALUE_CAME,          /* or the error, and it is wanted */
  RREF_DELETE_ACKED,        /* DELETE was acknowledged */
  RREF_CHILDLESS,           /* nobody waits for it but who passed it */
  RREF_NO_WAITERS,          /* and not even they */
  RREF_OWNER_FORGOT,        /* RENEW was refused, sent after the owner's answer */
  RREF_OWNER_LOST,          /* silent for a lease */
  RREF_HANDLE_EVENTS
} clv_rref_handle_event;

typedef enum clv_rref_child_state {
  RREF_CHILD_NONE,
  RREF_CHILD_OFFERED, /* USE is on its way */
  RREF_CHILD_TAKEN,   /* USE was acknowledged, ACCEPT has not come */
  RREF_CHILD_STATES
} clv_rref_child_state;

typedef enum clv_rref_child_event {
  RREF_CHILD_PASSED,
  RREF_CHILD_USE_ACKED,   /* USE was acknowledged */
  RREF_CHILD_USE_REFUSED, /* USE was */
  RREF_CHILD_ACCEPTED,    /* ACCEPT came */
  RREF_CHILD_LOST,        /* its receiver was silent for a lease */
  RREF_CHILD_EVENTS
} clv_rref_child_event;

typedef enum clv_rref_post_state {
  RREF_POST_NONE,
  RREF_POST_BEHIND, /* the window: not sent yet */
  RREF_POST_SENT,
  RREF_POST_STATES
} clv_rref_post_state;

typedef enum clv_rref_post_event {
  RREF_POST_POSTED,      /* within the window */
  RREF_POST_OVER_WINDOW, /* posted, behind the window */
  RREF_POST_IN_WINDOW,   /* the window has come to it */
  RREF_POST_DUE,         /* not acknowledged in time */
  RREF_POST_ACKED,
  RREF_POST_CANCELLED,
  RREF_POST_EVENTS
} clv_rref_post_event;

/* What the cells do; each machine knows its own. */
typedef enum clv_rref_action {
  RREF_END, /* of a cell's actions */
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
  RREF_SEND_ACCEPT, /* if somebody waits for it */
  RREF_SEND_DELETE,
  RREF_ADD_CHILD, /* or a fork, if this node is the owner and has answered */
  RREF_NOTE_JOINED,
  RREF_CANCEL_OWNER_POSTS, /* nothing of it is on its way to the owner any more */
  RREF_CANCEL_FETCH,       /* the value is not wanted any more */
  RREF_REFETCH_SOON,
  RREF_REFETCH_LATER,
  RREF_REPORT_CREATE,
  RREF_REPORT_FREED,
  RREF_REPORT_USED,
  RREF_REPORT_JOINED,  /* if it was made here */
  RREF_REPORT_FAILURE, /* if the value is wanted */
  RREF_REPORT_VALUE,
  RREF_REPORT_UNUSED,
  RREF_TRANSMIT,
  RREF_UNLINK,
  RREF_CHECK, /* finds out whether CHILDLESS or QUIET is true */
  RREF_FREE,
  RREF_ACTIONS
} clv_rref_action;

typedef enum clv_rref_rule {
  RREF_IMPOSSIBLE,
  RREF_DO,
  RREF_REFUSE,           /* with `code` */
  RREF_REFUSE_AS_FAILED, /* with what made the handle fail */
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

/* What comes with a event, and out of it. */
typedef struct clv_rref_event_args {
  clv_code code; /* of an answer */
  clv_tensor *tensor;
  const clv_rref_failure *failure;
  const clv_rref_message *message; /* FORK, FETCH */
  uint32_t from;
  const clv_rref_pass_args *passing;
  bool refused, parked; /* out: the cell refuses; the answer comes later */
  clv_err *err;
} clv_rref_event_args;

typedef clv_code clv_rref_action_fn(clv_rrefs *t, void *record, clv_rref_event_args *given);

/* A event about a record, or about none: then `state` is that of none. The actions come from
 * `doers`, by their numbers; the record may be gone afterwards. The code of the cell that refuses,
 * or of the action that fails, which is then the last. */
clv_code clv_rref_on_event(clv_rrefs *t, clv_rref_machine m, clv_rref_action_fn *const *doers,
                           void *record, uint8_t *state, uint8_t event, clv_rref_event_args *given);

/* ---- rref_post.c ----------------------------------------------------------------------------- */

/* Before something that ties this node to a peer is noted. */
void clv_rref_peer_start_lease(clv_rrefs *t, clv_rref_peer *p);
bool clv_rref_peer_has_lease(const clv_rref_peer *p);
void clv_rref_post_new(clv_rrefs *t, clv_rref_post *post, clv_rref_kind kind, uint32_t to);
void clv_rref_post_cancel(clv_rrefs *t, clv_rref_post *post); /* if it is on its way */
bool clv_rref_post_is_active(const clv_rref_post *post);
/* The post of that number to a peer, which has acknowledged it; or NULL. */
clv_rref_post *clv_rref_post_acked(clv_rrefs *t, clv_rref_peer *p, uint64_t number);
void clv_rref_posts_resend(clv_rrefs *t, clv_rref_peer *p); /* sends them again */
/* False: the message has been handled, or is older than any that may come. */
bool clv_rref_is_new(clv_rrefs *t, clv_rref_peer *p, uint64_t number);
void clv_rref_queue_ack(clv_rrefs *t, uint32_t to, uint64_t number, clv_code code);
/* The next number that an ACK is owed for, and the answer to it; false: none is any more. */
bool clv_rref_next_ack(clv_rref_peer *p, uint64_t *ret_number, clv_code *ret_code);

/* ---- rref_owner.c ---------------------------------------------------------------------------- */

enum { RREF_PARKED = 100 }; /* instead of a code: the answer comes later */

/* With its fork; nothing is reported. */
clv_code clv_rref_entry_own(clv_rrefs *t, const clv_rref_new_ids *b, clv_tensor *tensor,
                            clv_rref_fork **ret, clv_err *err) CLV_USE_RESULT;
void clv_rref_entry_undo(clv_rrefs *t, clv_rref_fork *f); /* the same, backwards */
void clv_rref_entry_settle(clv_rrefs *t, uint64_t ref, clv_tensor *tensor,
                           const clv_rref_failure *why);
/* Another one of the entry, for a node that it is passed to. */
clv_code clv_rref_fork_pass(clv_rrefs *t, uint64_t ref, const clv_rref_pass_args *what,
                            clv_err *err) CLV_USE_RESULT;
void clv_rref_fork_on_event(clv_rrefs *t, clv_rref_fork *f, clv_rref_fork_event event,
                            clv_code code);
int clv_rref_on_keep(clv_rrefs *t, uint32_t from, const clv_rref_message *m);
int clv_rref_on_fork(clv_rrefs *t, uint32_t from, const clv_rref_message *m);
int clv_rref_on_delete(clv_rrefs *t, uint32_t from, const clv_rref_message *m);
int clv_rref_on_renew(clv_rrefs *t, uint32_t from, const clv_rref_message *m);
int clv_rref_on_fetch(clv_rrefs *t, uint32_t from, const clv_rref_message *m);
void clv_rref_parked_expire(clv_rrefs *t);                     /* what has waited for a lease */
void clv_rref_parked_drop(clv_rrefs *t, uint32_t node);        /* all of a node's */
void clv_rref_forks_drop_lost(clv_rrefs *t, clv_rref_peer *p); /* all of a node's */
void clv_rref_entry_clear(clv_rref_entry *e); /* what it holds, at the table's end */

/* ---- rref_user.c ----------------------------------------------------------------------------- */

/* A handle for what was made here: an entry of this node, or a KEEP's. */
clv_code clv_rref_handle_own(clv_rrefs *t, const clv_rref_new_ids *b, clv_err *err) CLV_USE_RESULT;
clv_code clv_rref_handle_keep(clv_rrefs *t, const clv_rref_new_ids *b, uint32_t owner,
                              uint64_t context, uint64_t value, clv_err *err) CLV_USE_RESULT;
/* PASS, FETCH or RELEASE. */
clv_code clv_rref_handle_input(clv_rrefs *t, uint64_t fork, clv_rref_handle_event event,
                               const clv_rref_pass_args *what, clv_err *err) CLV_USE_RESULT;
/* The answer to a post that was made from a record. */
void clv_rref_on_ack(clv_rrefs *t, clv_rref_post *post, clv_code code);
int clv_rref_on_use(clv_rrefs *t, uint32_t from, const clv_rref_message *m);
int clv_rref_on_accept(clv_rrefs *t, uint32_t from, const clv_rref_message *m);
void clv_rref_on_value(clv_rrefs *t, uint32_t from, const clv_rref_message *m);
void clv_rref_fetches_resend(clv_rrefs *t); /* those that are due */
/* RENEW was refused: handles that the owner had answered for before `before_ns` have failed. */
void clv_rref_handles_fail_unknown(clv_rrefs *t, clv_rref_peer *p, uint64_t before_ns);
/* and what was passed to the node */
void clv_rref_handles_fail_lost(clv_rrefs *t, clv_rref_peer *p);
void clv_rref_handle_clear(clv_rref_handle *h); /* what it holds, as above */

/* ---- rref_result.c --------------------------------------------------------------------------- */

/* The next message to this node itself; false: there is none. Borrowed, as those of results. */
bool clv_rref_next_to_self(clv_rrefs *t, clv_rref_message *ret);

#endif
