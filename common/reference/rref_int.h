/* SPDX-License-Identifier: Apache-2.0
 *
 * The table of references from within: its records, and what its files need of each other.
 */
#ifndef CLEAVE_RREF_INT_H
#define CLEAVE_RREF_INT_H

#include <stddef.h>

#include "common/reference/reference.h"

/* ---- records --------------------------------------------------------------------------------- */

typedef struct clv_rref_record {
  struct clv_rref_record *next;
  uint64_t id;
} clv_rref_record;

typedef struct clv_rref_map {
  clv_rref_record **buckets; /* [cap], a power of two, or 0 */
  uint32_t cap, n;
} clv_rref_map;

/* A place in a circle; of a record that is in none, next is NULL. */
typedef struct clv_rref_ring {
  struct clv_rref_ring *prev, *next;
} clv_rref_ring;

#define RREF_OF(type, member, pointer) ((type *)(void *)((char *)(pointer)-offsetof(type, member)))

/* A numbered message on its way, part of the record that it is made from. */
typedef struct clv_rref_post {
  clv_rref_ring at; /* of its receiver's outbox, in ascending numbers */
  clv_rref_kind kind;
  bool of_fork; /* a USE said by the owner itself: the record is a fork, else a child */
  bool sent;
  uint32_t to;
  uint64_t number, due_ns, wait_ns;
} clv_rref_post;

typedef struct clv_rref_entry {
  clv_rref_record record;
  uint64_t key;
  clv_tensor *tensor; /* neither this nor failed: not there yet */
  clv_rref_failure *failed;
  clv_rref_ring forks;
} clv_rref_entry;

typedef struct clv_rref_fork {
  clv_rref_record record;
  clv_rref_entry *entry;
  uint32_t node;
  bool wants; /* a FETCH waits for the value */
  clv_rref_ring of_entry, of_peer;
  clv_rref_post use; /* when it was passed by the owner itself */
  uint64_t context, value;
} clv_rref_fork;

typedef enum clv_rref_state {
  RREF_JOINING, /* the owner has not answered yet */
  RREF_JOINED,
  RREF_LEAVING, /* the owner is told that it goes */
  RREF_LEFT,
  RREF_FAILED, /* the owner does not know it */
} clv_rref_state;

typedef struct clv_rref_handle {
  clv_rref_record record; /* its fork */
  uint64_t ref, key;
  uint32_t owner, parent; /* who has to be told when the owner knows, or RREF_NOBODY */
  clv_rref_state state;
  bool released, wants;
  bool made_here;
  uint64_t context, value, joined_ns;
  uint64_t fetch_ns; /* the owner knows that it is wanted; asked again then, if it has not come */
  clv_rref_ring of_peer, fetching, children;
  clv_rref_post join, fetch, accept, leave;
  const clv_rref_failure *failed; /* a refusal */
} clv_rref_handle;

typedef struct clv_rref_child {
  clv_rref_record record; /* the fork of the handle that was passed */
  clv_rref_handle *parent;
  clv_rref_ring of_parent, of_peer;
  clv_rref_post use;
  uint64_t context, value;
} clv_rref_child;

/* Came before what it is about, or is about nothing. */
typedef struct clv_rref_parked {
  clv_rref_ring at;
  clv_rref_kind kind;
  uint32_t from;
  uint64_t number, ref, fork, key, until_ns;
} clv_rref_parked;

/* A message to this node itself. */
typedef struct clv_rref_loop {
  struct clv_rref_loop *next;
  clv_rref_message m;
  clv_rref_failure failure;
} clv_rref_loop;

typedef struct clv_rref_peer {
  uint32_t node;
  uint64_t heard_ns, renewed_ns;
  uint64_t last_number;                 /* of what was posted to it */
  uint64_t highest;                     /* number that came from it */
  uint8_t answers[CLV_WIRE_REF_WINDOW]; /* of the last so many: 0 none, 1 + code */
  clv_rref_ring outbox, forks, handles, children;
  clv_rref_post renew;
} clv_rref_peer;

struct clv_rrefs {
  clv_rrefs_env env;
  uint64_t now, due;
  clv_slab entry_slab, fork_slab, handle_slab, child_slab, parked_slab, loop_slab;
  clv_rref_map entries, forks, handles, children;
  clv_rref_peer *peers; /* [env.n_nodes] */
  clv_rref_ring fetching, parked;
  clv_rref_loop *loop_first, *loop_last;
  uint32_t depth; /* of outward functions, by way of callbacks */
  uint32_t n_posts;
};

/* ---- inside: rref.c -------------------------------------------------------------------------- */

void clv_rref_ring_init(clv_rref_ring *r);
bool clv_rref_ring_empty(const clv_rref_ring *r);
void clv_rref_ring_add(clv_rref_ring *r, clv_rref_ring *place); /* at its end */
void clv_rref_ring_remove(clv_rref_ring *place);                /* from whatever it is in, if any */

void *clv_rref_find(const clv_rref_map *map, uint64_t id); /* or NULL */
clv_code clv_rref_make(clv_rrefs *t, clv_slab *s, clv_rref_map *map, uint64_t id, void *ret_pp,
                       clv_err *err) CLV_USE_RESULT;
void clv_rref_drop(clv_slab *s, clv_rref_map *map, void *record);

/* Every outward function begins and ends with these: the end of the outermost one delivers what is
 * for this node itself. */
void clv_rref_enter(clv_rrefs *t, uint64_t now_ns);
void clv_rref_leave(clv_rrefs *t);
void clv_rref_send(clv_rrefs *t, uint32_t to, const clv_rref_message *m);
void clv_rref_wake_by(clv_rrefs *t, uint64_t at_ns);
const clv_rref_failure *clv_rref_refusal(clv_code code); /* the same text for every peer */

/* ---- rref_post.c ----------------------------------------------------------------------------- */

/* Before something that ties this node to a peer is noted. */
void clv_rref_tie(clv_rrefs *t, clv_rref_peer *p);
void clv_rref_post_new(clv_rrefs *t, clv_rref_post *post, clv_rref_kind kind, uint32_t to);
void clv_rref_post_cancel(clv_rrefs *t, clv_rref_post *post); /* if it is on its way */
bool clv_rref_posted(const clv_rref_post *post);
/* The verdict on a numbered message of a peer. */
void clv_rref_answer(clv_rrefs *t, uint32_t to, uint64_t number, clv_code code);

/* ---- rref_owner.c ---------------------------------------------------------------------------- */

enum { RREF_PARKED = 100 }; /* instead of a code: the answer comes later */

clv_code clv_rref_fork_new(clv_rrefs *t, clv_rref_entry *e, uint64_t id, uint32_t node,
                           clv_rref_fork **ret, clv_err *err) CLV_USE_RESULT;
void clv_rref_fork_free(clv_rrefs *t, clv_rref_fork *f); /* and its entry with the last one */
int clv_rref_on_keep(clv_rrefs *t, uint32_t from, const clv_rref_message *m);
int clv_rref_on_fork(clv_rrefs *t, uint32_t from, const clv_rref_message *m);
int clv_rref_on_delete(clv_rrefs *t, uint32_t from, const clv_rref_message *m);
int clv_rref_on_renew(clv_rrefs *t, uint32_t from, const clv_rref_message *m);
int clv_rref_on_fetch(clv_rrefs *t, uint32_t from, const clv_rref_message *m);
void clv_rref_unpark_late(clv_rrefs *t);              /* what has waited long enough */
void clv_rref_unpark_of(clv_rrefs *t, uint32_t node); /* all of it */
void clv_rref_entry_forget(clv_rref_entry *e);        /* what it holds, at the table's end */

/* ---- rref_user.c ----------------------------------------------------------------------------- */

/* The handle of an entry that was made here, with its fork. joined is told. */
clv_code clv_rref_handle_own(clv_rrefs *t, const clv_rref_birth *b, clv_err *err) CLV_USE_RESULT;
void clv_rref_fill(const clv_rrefs *t, const clv_rref_post *post, clv_rref_message *ret);
/* The answer to a post that was made from a record of a user. */
void clv_rref_answered(clv_rrefs *t, clv_rref_post *post, clv_code code);
int clv_rref_on_use(clv_rrefs *t, uint32_t from, const clv_rref_message *m);
int clv_rref_on_accept(clv_rrefs *t, uint32_t from, const clv_rref_message *m);
void clv_rref_on_value(clv_rrefs *t, uint32_t from, const clv_rref_message *m);
void clv_rref_fetch_again(clv_rrefs *t); /* those that are due */
/* Handles that the owner had answered for before `before_ns` fail; UINT64_MAX: all. */
void clv_rref_handles_fail(clv_rrefs *t, clv_rref_peer *p, uint64_t before_ns, clv_code code);
void clv_rref_children_fail(clv_rrefs *t, clv_rref_peer *p);

#endif
