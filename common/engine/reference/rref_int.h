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

/* ---- records of references ------------------------------------------------------------------- */

/* Head of every record. n_queued_results: number of queued results that will be made from the
 * record. is_dropped: the record was removed from its map, and is freed after the last of these
 * results. */
typedef struct clv_rref_record {
  struct clv_rref_record *next;
  uint64_t id;
  uint8_t state, n_queued_results;
  bool is_dropped;
} clv_rref_record;

typedef struct clv_rref_map {
  clv_rref_record **buckets; /* [cap] chains of records; cap is a power of two, or 0 */
  uint32_t cap, n;
} clv_rref_map;

/* Head or member of a circular list; next is NULL if a member is in no list. */
typedef struct clv_rref_list {
  struct clv_rref_list *prev, *next;
} clv_rref_list;

#define RREF_OF(type, member, pointer) ((type *)(void *)((char *)(pointer)-offsetof(type, member)))

/* Record and purpose from which a result, or a message to this node itself, is made. */
typedef enum clv_rref_source {
  RREF_FROM_POST,      /* numbered message, made from a post */
  RREF_FROM_PEER,      /* message ACK to a peer, made from the record of that peer */
  RREF_FROM_FORK,      /* message VALUE to the node of a fork, made from the record of that fork */
  RREF_CREATE_RESULT,  /* result CREATE, made from an entry */
  RREF_FREED_RESULT,   /* result FREED, made from an entry */
  RREF_USED_RESULT,    /* result USED, made from a handle */
  RREF_JOIN_RESULT,    /* result JOINED, made from a handle */
  RREF_FETCHED_RESULT, /* result FETCHED, made from a handle */
  RREF_FORK_UNUSED_RESULT,  /* result UNUSED, made from a fork */
  RREF_CHILD_UNUSED_RESULT, /* result UNUSED, made from a child */
} clv_rref_source;

/* An entry in the queue of results, embedded in the record that the result is made from. */
typedef struct clv_rref_queue_entry {
  clv_rref_list link;
  clv_rref_source source;
  clv_code code; /* code of a JOINED or UNUSED result */
} clv_rref_queue_entry;

/* A numbered message that is not acknowledged, embedded in the record that it is made from. */
typedef struct clv_rref_post {
  clv_rref_list link; /* link in the outbox of the receiving peer, by ascending number */
  clv_rref_queue_entry out;
  clv_rref_kind kind;
  /* the post is a USE from the owner itself, and is part of a fork record; false: a USE is part of
   * a child record */
  bool is_from_owner;
  uint8_t state;
  uint32_t to;
  uint64_t number, due_ns, wait_ns;
} clv_rref_post;

typedef struct clv_rref_entry {
  clv_rref_record record;
  uint64_t key, context, value; /* id and context of the value that the entry keeps */
  clv_tensor *tensor;           /* the value; tensor and failure both NULL: not settled */
  clv_rref_failure *failure;
  clv_rref_list forks;
  clv_rref_queue_entry create, freed;
} clv_rref_entry;

typedef struct clv_rref_fork {
  clv_rref_record record;
  clv_rref_entry *entry;
  uint32_t node;
  clv_rref_list entry_link, peer_link;
  clv_rref_post use; /* post of the USE, if the owner itself passed the handle */
  clv_rref_queue_entry answer, unused;
  uint64_t context, value;
} clv_rref_fork;

typedef struct clv_rref_handle {
  clv_rref_record record; /* record.id is the id of the handle's fork */
  uint64_t ref, key;
  /* parent: node that passed the handle and receives ACCEPT when the owner has answered;
   * RREF_NO_NODE: none */
  uint32_t owner, parent;
  bool wants_value, is_created_here;
  uint64_t context, value, joined_ns;
  uint64_t fetch_ns; /* time at which FETCH is sent again, although the owner has acknowledged it */
  clv_rref_list peer_link, fetching, children;
  clv_rref_post join_post, fetch_post, accept_post, delete_post;
  /* why the handle failed: the owner refused it, forgot it or is lost; NULL: it has not failed */
  const clv_rref_failure *failure;
  clv_rref_queue_entry report, fetched;
  /* value that the result `fetched` reports; NULL: the result reports fetch_failure */
  clv_tensor *tensor;
  clv_rref_failure *fetch_failure;
} clv_rref_handle;

typedef struct clv_rref_child {
  clv_rref_record record; /* record.id is the fork of the passed handle */
  clv_rref_handle *parent;
  clv_rref_list parent_link, peer_link;
  clv_rref_post use;
  clv_rref_queue_entry unused;
  uint64_t ref, context, value;
  uint32_t owner;
} clv_rref_child;

/* A FORK or FETCH that waits at the owner, because it may have arrived before what it needs: a FORK
 * of an unknown reference, or with a wrong key; a FETCH of an unknown fork whose FORK may still
 * arrive. It is handled once that has arrived, and refused when a lease is over. */
typedef struct clv_rref_parked {
  clv_rref_list link;
  clv_rref_kind kind;
  uint32_t from;
  uint64_t number, ref, fork, key, until_ns;
} clv_rref_parked;

typedef struct clv_rref_peer {
  uint32_t node;
  uint64_t last_message_ns, last_renew_ns; /* times of the last message received and RENEW sent */
  uint64_t last_number;                    /* last number posted to the peer */
  uint64_t highest_number;                 /* highest number received from the peer */
  uint64_t ack_first, ack_last; /* range of received numbers, some of which still need an ACK */
  /* answer to each of the last numbers received, at number % CLV_WIRE_REF_WINDOW; 0: not answered;
   * else 1 + code, plus ACK_OWED while an ACK must be sent */
  uint8_t answers[CLV_WIRE_REF_WINDOW];
  clv_rref_list outbox, forks, handles, children;
  clv_rref_post renew;
  clv_rref_queue_entry ack;
} clv_rref_peer;

typedef struct clv_rref_visits clv_rref_visits;

struct clv_rrefs {
  clv_rrefs_options o;
  uint64_t now_ns, due_ns; /* time of the last input; time of the next clv_rrefs_tick */
  clv_slab entry_slab, fork_slab, handle_slab, child_slab, parked_slab;
  clv_rref_map entries, forks, handles, children;
  clv_rref_peer *peers; /* [o.n_nodes] peer of each node number */
  clv_rref_list fetching, parked;
  /* results for the caller, and messages to this node itself, both in order of queueing */
  clv_rref_list results, to_self;
  /* tensor and failure of the last FETCHED result, freed by the next clv_rrefs_next_result */
  clv_tensor *last_tensor;
  clv_rref_failure *last_failure;
  uint32_t n_posts;
  clv_rref_visits *visits; /* number of uses of each table cell, for tests; NULL: not counted */
};

/* ---- declarations of rref_record.c ----------------------------------------------------------- */

void clv_rref_list_init(clv_rref_list *r);
bool clv_rref_list_is_empty(const clv_rref_list *r);
/* appends a member at the end of the list */
void clv_rref_list_add(clv_rref_list *r, clv_rref_list *place);
/* removes a member from its list, if it is in one */
void clv_rref_list_remove(clv_rref_list *place);

/* finds a record by id; NULL: there is none */
void *clv_rref_record_find(const clv_rref_map *map, uint64_t id);
clv_code clv_rref_record_new(clv_rrefs *t, clv_slab *s, clv_rref_map *map, uint64_t id,
                             void *ret_pp, clv_err *err) CLV_USE_RESULT;
/* Removes a record from its map. The record is freed at once, or after the last queued result that
 * is made from it. */
void clv_rref_record_drop(clv_slab *s, clv_rref_map *map, void *record);
/* Call after each result that was made from the record. */
void clv_rref_record_result_taken(clv_slab *s, void *record);

/* Append an entry to the queue of results, unless it is queued already. A message to this node
 * itself goes to the queue t->to_self. clv_rref_queue_report also counts the result in its
 * record. */
void clv_rref_queue_message(clv_rrefs *t, clv_rref_queue_entry *out, clv_rref_source source,
                            uint32_t to);
void clv_rref_queue_report(clv_rrefs *t, clv_rref_queue_entry *out, clv_rref_source source,
                           clv_rref_record *of);
/* Removes a report from the queue of results; does nothing if it is not queued. */
void clv_rref_unqueue_report(clv_rref_queue_entry *out, clv_rref_record *of);

void clv_rref_schedule_tick(clv_rrefs *t, uint64_t at_ns);
/* returns the failure for a code; its text is the same for every peer */
const clv_rref_failure *clv_rref_failure_of_code(clv_code code);
/* Copies a failure. If there is no memory, returns a static failure that says so. */
clv_rref_failure *clv_rref_failure_copy(const clv_rref_failure *why);
void clv_rref_failure_free(clv_rref_failure *copy);

/* ---- rref_tables.c ----------------------------------------------------------------------------
 *
 * Each state machine is a table: a cell for a state and an event gives the next state, and the
 * actions in their order. An event without a cell is impossible: it does nothing, and returns
 * CLV_INTERNAL. The first state of each machine stands for a record that does not exist. */

typedef enum clv_rref_entry_state {
  RREF_ENTRY_NONE,
  RREF_ENTRY_EXPECTED, /* the entry waits for its value */
  RREF_ENTRY_VALUE,    /* the entry holds its value */
  RREF_ENTRY_FAILURE,  /* the entry holds the failure of its value */
  RREF_ENTRY_STATES
} clv_rref_entry_state;

typedef enum clv_rref_entry_event {
  RREF_ENTRY_KEPT,      /* KEEP arrived */
  RREF_ENTRY_OWNED,     /* this node made a reference to a tensor (clv_rrefs_new_owned) */
  RREF_ENTRY_SETTLED,   /* the value exists now */
  RREF_ENTRY_FAILED,    /* the value has failed now */
  RREF_ENTRY_FORKED,    /* FORK arrived, with the right key if there is an entry */
  RREF_ENTRY_WRONG_KEY, /* FORK arrived with a wrong key */
  RREF_ENTRY_UNUSED,    /* the last fork was freed */
  RREF_ENTRY_EVENTS
} clv_rref_entry_event;

typedef enum clv_rref_fork_state {
  RREF_FORK_NONE,
  RREF_FORK_OFFERED, /* the owner passed the handle, and its USE is not acknowledged */
  RREF_FORK_OFFERED_ASKED,
  RREF_FORK_KNOWN, /* the fork's user has the handle */
  RREF_FORK_ASKED, /* the fork's user has the handle and waits for the value */
  RREF_FORK_STATES
} clv_rref_fork_state;

typedef enum clv_rref_fork_event {
  RREF_FORK_ADDED,  /* KEEP or FORK arrived */
  RREF_FORK_PASSED, /* the owner itself passed the handle to another node */
  /* FETCH arrived; the value or its failure exists, or the fork is unknown and no FORK will add
   * it */
  RREF_FORK_FETCH,
  /* FETCH arrived for an unknown fork, from a node whose FORK may not have arrived yet */
  RREF_FORK_FETCH_EARLY,
  RREF_FORK_FETCH_PENDING, /* FETCH arrived; the value is not settled */
  RREF_FORK_SETTLED,
  RREF_FORK_USE_ACKED,   /* USE was acknowledged */
  RREF_FORK_USE_REFUSED, /* USE was refused */
  RREF_FORK_DELETED,     /* DELETE arrived */
  RREF_FORK_LOST,        /* the lease of the fork's user expired */
  RREF_FORK_EVENTS
} clv_rref_fork_event;

typedef enum clv_rref_handle_state {
  RREF_HANDLE_NONE,
  RREF_HANDLE_JOINING, /* KEEP or FORK was sent, and the owner has not answered */
  RREF_HANDLE_JOINED,
  RREF_HANDLE_FAILED,           /* the owner refused or forgot the handle, or is lost */
  RREF_HANDLE_JOINING_RELEASED, /* the handle was released before the owner answered */
  /* the handle was released, and waits for its children before DELETE is sent */
  RREF_HANDLE_JOINED_RELEASED,
  RREF_HANDLE_LEAVING, /* DELETE was sent and is not acknowledged */
  /* the owner has no fork of the handle; the record waits for its children and for the
   * acknowledgement of its ACCEPT */
  RREF_HANDLE_ENDED,
  RREF_HANDLE_STATES
} clv_rref_handle_state;

typedef enum clv_rref_handle_event {
  RREF_HANDLE_KEPT,                /* this node made the handle, with KEEP to the owner */
  RREF_HANDLE_OWNED,               /* this node, which is the owner, made the handle */
  RREF_HANDLE_RECEIVED,            /* USE arrived from a node that is not the owner */
  RREF_HANDLE_RECEIVED_FROM_OWNER, /* USE arrived from the owner, which has added the fork */
  RREF_HANDLE_PASS,                /* this node passes the handle on */
  RREF_HANDLE_FETCH,               /* this node fetches the value */
  RREF_HANDLE_RELEASE,             /* this node releases the handle */
  RREF_HANDLE_JOIN_ACKED,          /* KEEP or FORK was acknowledged */
  RREF_HANDLE_JOIN_REFUSED,        /* KEEP or FORK was refused */
  RREF_HANDLE_FETCH_ACKED,         /* FETCH was acknowledged */
  RREF_HANDLE_FETCH_REFUSED,       /* FETCH was refused */
  /* the value or its failure arrived, and a FETCH waits for it */
  RREF_HANDLE_VALUE_ARRIVED,
  RREF_HANDLE_DELETE_ACKED, /* DELETE was acknowledged */
  /* the handle has no children; its ACCEPT is not acknowledged */
  RREF_HANDLE_HAS_NO_CHILDREN,
  /* the handle has no children and no ACCEPT that is not acknowledged */
  RREF_HANDLE_HAS_NO_WAITERS,
  /* the owner refused a RENEW that was sent after it had answered for the handle */
  RREF_HANDLE_OWNER_FORGOT,
  RREF_HANDLE_OWNER_LOST, /* the owner's lease expired */
  RREF_HANDLE_EVENTS
} clv_rref_handle_event;

typedef enum clv_rref_child_state {
  RREF_CHILD_NONE,
  RREF_CHILD_OFFERED, /* the child's USE is not acknowledged */
  RREF_CHILD_TAKEN,   /* USE was acknowledged, ACCEPT has not arrived */
  RREF_CHILD_STATES
} clv_rref_child_state;

typedef enum clv_rref_child_event {
  RREF_CHILD_PASSED,
  RREF_CHILD_USE_ACKED,   /* USE was acknowledged */
  RREF_CHILD_USE_REFUSED, /* USE was refused */
  RREF_CHILD_ACCEPTED,    /* ACCEPT arrived */
  RREF_CHILD_LOST,        /* the lease of the child's receiver expired */
  RREF_CHILD_EVENTS
} clv_rref_child_event;

typedef enum clv_rref_post_state {
  RREF_POST_NONE,
  RREF_POST_WAITING, /* the message waits until the window reaches its number */
  RREF_POST_SENT,
  RREF_POST_STATES
} clv_rref_post_state;

typedef enum clv_rref_post_event {
  RREF_POST_POSTED,      /* the message was posted, and is within the window */
  RREF_POST_OVER_WINDOW, /* the message was posted, but its number is above the window */
  RREF_POST_IN_WINDOW,   /* the window has reached the message */
  RREF_POST_DUE,         /* the message was not acknowledged in time */
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
  RREF_SEND_ACCEPT, /* sends ACCEPT to handle->parent, if there is one */
  RREF_SEND_DELETE,
  RREF_ADD_CHILD, /* adds a child, or, for a JOINED handle of this node's own entry, a fork */
  RREF_NOTE_JOINED,
  RREF_CANCEL_OWNER_POSTS, /* cancels all unacknowledged messages to the owner */
  RREF_CANCEL_FETCH,       /* stops waiting for the value of a FETCH */
  RREF_REFETCH_SOON,
  RREF_REFETCH_LATER,
  RREF_REPORT_CREATE,
  RREF_REPORT_FREED,
  RREF_REPORT_USED,
  RREF_REPORT_JOINED,  /* reports JOINED, if the handle was created here */
  RREF_REPORT_FAILURE, /* reports the failure as FETCHED, if a FETCH waits */
  RREF_REPORT_VALUE,
  RREF_REPORT_UNUSED,
  RREF_TRANSMIT,
  RREF_UNLINK,
  RREF_CHECK, /* applies the event HAS_NO_CHILDREN or HAS_NO_WAITERS, if its condition holds */
  RREF_FREE,
  RREF_ACTIONS
} clv_rref_action;

typedef enum clv_rref_rule {
  RREF_IMPOSSIBLE,
  RREF_DO,
  RREF_REFUSE,           /* refuses the event with the cell's `code` */
  RREF_REFUSE_AS_FAILED, /* refuses the event with the failure of the handle */
} clv_rref_rule;

typedef struct clv_rref_cell {
  uint8_t rule, next_state, code, actions[5]; /* RREF_END after the last, if there are fewer */
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

/* Arguments of an event for its actions, and results of the actions. */
typedef struct clv_rref_event_args {
  clv_code code; /* code of the answer that caused the event */
  clv_tensor *tensor;
  const clv_rref_failure *failure;
  const clv_rref_message *message; /* the message, for FORK and FETCH */
  uint32_t from;
  const clv_rref_pass_args *passing;
  /* results. is_refused: the cell refused the event; is_parked: the message waits, so its answer
   * follows later */
  bool is_refused, is_parked;
  clv_err *err;
} clv_rref_event_args;

typedef clv_code clv_rref_action_fn(clv_rrefs *t, void *record, clv_rref_event_args *given);

/* Applies an event to a record; record NULL: to a record that does not exist, whose *state is
 * the first state. Calls the functions in `action_fns` for the cell's actions, which may free the
 * record. Returns the code of a refusal, or of the first action that fails, which is the last
 * one called. */
clv_code clv_rref_on_event(clv_rrefs *t, clv_rref_machine m, clv_rref_action_fn *const *action_fns,
                           void *record, uint8_t *state, uint8_t event, clv_rref_event_args *given);

/* ---- declarations of rref_post.c ------------------------------------------------------------- */

/* Starts the lease of a peer, if it has none. Call before creating a record that depends on the
 * peer. */
void clv_rref_peer_start_lease(clv_rrefs *t, clv_rref_peer *p);
bool clv_rref_peer_has_lease(const clv_rref_peer *p);
void clv_rref_post_new(clv_rrefs *t, clv_rref_post *post, clv_rref_kind kind, uint32_t to);
/* cancels a message; does nothing if it is not active */
void clv_rref_post_cancel(clv_rrefs *t, clv_rref_post *post);
bool clv_rref_post_is_active(const clv_rref_post *post);
/* Ends the post whose number the peer has acknowledged, and returns it; NULL: there is no such
 * post. */
clv_rref_post *clv_rref_end_acked_post(clv_rrefs *t, clv_rref_peer *p, uint64_t number);
/* Sends again those posts to a peer that are due. */
void clv_rref_posts_resend(clv_rrefs *t, clv_rref_peer *p);
/* True if a received message is to be handled. False: it was handled already, or its number is
 * older than the window. */
bool clv_rref_is_new_message(clv_rrefs *t, clv_rref_peer *p, uint64_t number);
void clv_rref_queue_ack(clv_rrefs *t, uint32_t to, uint64_t number, clv_code code);
/* Takes the next number that needs an ACK, with its answer. False: there is none. */
bool clv_rref_next_ack(clv_rref_peer *p, uint64_t *ret_number, clv_code *ret_code);

/* ---- declarations of rref_owner.c ------------------------------------------------------------ */

/* returned in place of a clv_code: the message was parked, so its answer follows later */
enum { RREF_PARKED = 100 };

/* Makes an entry of this node for `tensor`, with its first fork. Queues no result. */
clv_code clv_rref_entry_new_owned(clv_rrefs *t, const clv_rref_new_ids *b, clv_tensor *tensor,
                                  clv_rref_fork **ret, clv_err *err) CLV_USE_RESULT;
void clv_rref_entry_undo(clv_rrefs *t, clv_rref_fork *f); /* undoes clv_rref_entry_new_owned */
void clv_rref_entry_settle(clv_rrefs *t, uint64_t ref, clv_tensor *tensor,
                           const clv_rref_failure *why);
/* Makes a fork of an entry of this node for the node what->to, and sends that node USE. */
clv_code clv_rref_fork_pass(clv_rrefs *t, uint64_t ref, const clv_rref_pass_args *what,
                            clv_err *err) CLV_USE_RESULT;
void clv_rref_fork_on_event(clv_rrefs *t, clv_rref_fork *f, clv_rref_fork_event event,
                            clv_code code);
int clv_rref_on_keep(clv_rrefs *t, uint32_t from, const clv_rref_message *m);
int clv_rref_on_fork(clv_rrefs *t, uint32_t from, const clv_rref_message *m);
int clv_rref_on_delete(clv_rrefs *t, uint32_t from, const clv_rref_message *m);
int clv_rref_on_renew(clv_rrefs *t, uint32_t from, const clv_rref_message *m);
int clv_rref_on_fetch(clv_rrefs *t, uint32_t from, const clv_rref_message *m);
/* refuses and frees the messages that have been parked for a lease */
void clv_rref_parked_expire(clv_rrefs *t);
/* frees all parked messages of a node */
void clv_rref_parked_drop_of_node(clv_rrefs *t, uint32_t node);
void clv_rref_forks_drop_lost(clv_rrefs *t, clv_rref_peer *p); /* frees all forks of a lost peer */
void clv_rref_entry_clear(clv_rref_entry *e); /* frees the value or failure of an entry */

/* ---- declarations of rref_user.c ------------------------------------------------------------- */

/* Make a handle: clv_rref_handle_new_owned for an entry of this node, clv_rref_handle_new_kept for
 * a value at `owner`, which is sent KEEP. */
clv_code clv_rref_handle_new_owned(clv_rrefs *t, const clv_rref_new_ids *b,
                                   clv_err *err) CLV_USE_RESULT;
clv_code clv_rref_handle_new_kept(clv_rrefs *t, const clv_rref_new_ids *b, uint32_t owner,
                                  uint64_t context, uint64_t value, clv_err *err) CLV_USE_RESULT;
/* Applies a request of this node to a handle. event: RREF_HANDLE_PASS, RREF_HANDLE_FETCH or
 * RREF_HANDLE_RELEASE; what: arguments of RREF_HANDLE_PASS. */
clv_code clv_rref_handle_request(clv_rrefs *t, uint64_t fork, clv_rref_handle_event event,
                                 const clv_rref_pass_args *what, clv_err *err) CLV_USE_RESULT;
/* Handles the acknowledgement of a numbered message; code: the receiver's answer. */
void clv_rref_on_ack(clv_rrefs *t, clv_rref_post *post, clv_code code);
int clv_rref_on_use(clv_rrefs *t, uint32_t from, const clv_rref_message *m);
int clv_rref_on_accept(clv_rrefs *t, uint32_t from, const clv_rref_message *m);
void clv_rref_on_value(clv_rrefs *t, uint32_t from, const clv_rref_message *m);
void clv_rref_fetches_resend(clv_rrefs *t); /* sends the FETCHes again that are due */
/* Fails the handles for which owner p answered before the time `before_ns`. Called after p refused
 * the RENEW sent at that time. */
void clv_rref_handles_fail_unknown(clv_rrefs *t, clv_rref_peer *p, uint64_t before_ns);
/* Fails all handles whose owner is the lost peer p, and all children passed to p. */
void clv_rref_handles_fail_lost(clv_rrefs *t, clv_rref_peer *p);
void clv_rref_handle_clear(clv_rref_handle *h); /* frees the fetched value or failure of a handle */

/* ---- declarations of rref_result.c ----------------------------------------------------------- */

/* Takes the next message from this node to itself; false: there is none. The message is valid until
 * the next call. */
bool clv_rref_next_to_self(clv_rrefs *t, clv_rref_message *ret);

#endif
