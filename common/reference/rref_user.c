/* SPDX-License-Identifier: Apache-2.0
 *
 * The user's side: handles, and those that were passed on.
 */

#include "common/reference/rref_int.h"

enum { ASKS = 6 }; /* in a lease, for a value that the owner has said to send */

/* A handle that was made here is for nothing in particular: context and value are its KEEP's. */
static clv_rref_use use_of(const clv_rrefs *t, const clv_rref_handle *h) {
  clv_rref_use u = {.ref = h->ref, .fork = h->record.id, .owner = h->owner, .node = t->env.self};
  if (h->made_here) return u;
  u.context = h->context;
  u.value = h->value;
  return u;
}

/* ---- handles --------------------------------------------------------------------------------- */

static clv_code handle_new(clv_rrefs *t, const clv_rref_message *m, uint32_t owner, uint32_t parent,
                           clv_rref_handle **ret, clv_err *err) {
  clv_rref_handle *h;
  CLV_TRY(clv_rref_make(t, &t->handle_slab, &t->handles, m->fork, &h, err));
  h->ref = m->ref;
  h->key = m->key;
  h->owner = owner;
  h->parent = parent;
  h->context = m->context;
  h->value = m->value;
  clv_rref_ring_init(&h->children);
  clv_rref_tie(t, &t->peers[owner]);
  clv_rref_ring_add(&t->peers[owner].handles, &h->of_peer);
  *ret = h;
  return CLV_OK;
}

static void handle_free(clv_rrefs *t, clv_rref_handle *h) {
  clv_rref_post_cancel(t, &h->join);
  clv_rref_post_cancel(t, &h->leave);
  clv_rref_ring_remove(&h->of_peer);
  clv_rref_drop(&t->handle_slab, &t->handles, h);
}

/* A released handle takes its next step, if nothing is in its way. */
static void go_on(clv_rrefs *t, clv_rref_handle *h) {
  if (!h->released || h->state == RREF_JOINING || !clv_rref_ring_empty(&h->children)) return;
  if (h->state == RREF_JOINED) {
    h->state = RREF_LEAVING;
    clv_rref_post_new(t, &h->leave, CLV_RREF_DELETE, h->owner);
  } else if (h->state != RREF_LEAVING && !clv_rref_posted(&h->accept)) {
    handle_free(t, h);
  }
}

static void notify_parent(clv_rrefs *t, clv_rref_handle *h) {
  if (h->parent == RREF_NOBODY) return;
  clv_rref_post_new(t, &h->accept, CLV_RREF_ACCEPT, h->parent);
  h->parent = RREF_NOBODY;
}

static void want_no_more(clv_rrefs *t, clv_rref_handle *h) {
  h->wants = false;
  clv_rref_ring_remove(&h->fetching);
  clv_rref_post_cancel(t, &h->fetch);
}

static void give_value(clv_rrefs *t, clv_rref_handle *h, clv_tensor *tensor,
                       const clv_rref_failure *why) {
  clv_rref_use use = use_of(t, h);
  want_no_more(t, h);
  t->env.value(t->env.user, &use, tensor, why);
}

/* The owner does not know the handle, or not any more. */
static void fail(clv_rrefs *t, clv_rref_handle *h, clv_code code) {
  bool joining = h->state == RREF_JOINING;
  h->state = RREF_FAILED;
  h->failed = clv_rref_refusal(code);
  clv_rref_post_cancel(t, &h->join);
  clv_rref_post_cancel(t, &h->fetch);
  clv_rref_post_cancel(t, &h->leave);
  clv_rref_ring_remove(&h->of_peer);
  notify_parent(t, h);
  clv_rref_use use = use_of(t, h);
  if (joining && h->made_here) t->env.joined(t->env.user, &use, h->failed);
  if (h->wants)
    give_value(t, h, NULL, h->failed); /* and so it has not been released */
  else
    go_on(t, h);
}

void clv_rref_handles_fail(clv_rrefs *t, clv_rref_peer *p, uint64_t before_ns, clv_code code) {
  for (clv_rref_ring *r = p->handles.next, *next; r != &p->handles; r = next) {
    next = r->next;
    clv_rref_handle *h = RREF_OF(clv_rref_handle, of_peer, r);
    bool meant = h->state == RREF_JOINED && h->joined_ns < before_ns;
    if (meant || before_ns == UINT64_MAX) fail(t, h, code);
  }
}

static void joined(clv_rrefs *t, clv_rref_handle *h) {
  clv_rref_use use = use_of(t, h);
  h->state = RREF_JOINED;
  h->joined_ns = t->now;
  notify_parent(t, h);
  if (h->made_here) t->env.joined(t->env.user, &use, NULL);
  go_on(t, h);
}

/* ---- children -------------------------------------------------------------------------------- */

static void child_free(clv_rrefs *t, clv_rref_child *c) {
  clv_rref_handle *h = c->parent;
  clv_rref_post_cancel(t, &c->use);
  clv_rref_ring_remove(&c->of_parent);
  clv_rref_ring_remove(&c->of_peer);
  clv_rref_drop(&t->child_slab, &t->children, c);
  go_on(t, h);
}

static void child_failed(clv_rrefs *t, clv_rref_child *c, clv_code code) {
  clv_rref_use use = {c->parent->ref, c->record.id, c->parent->owner,
                      c->use.to,      c->context,   c->value};
  t->env.unused(t->env.user, &use, clv_rref_refusal(code));
  child_free(t, c);
}

void clv_rref_children_fail(clv_rrefs *t, clv_rref_peer *p) {
  while (!clv_rref_ring_empty(&p->children))
    child_failed(t, RREF_OF(clv_rref_child, of_peer, p->children.next), CLV_UNAVAILABLE);
}

/* ---- posts ----------------------------------------------------------------------------------- */

static void fill_handle(const clv_rref_handle *h, clv_rref_message *ret) {
  ret->ref = h->ref;
  ret->fork = h->record.id;
  ret->key = h->key;
  ret->context = h->context;
  ret->value = h->value;
}

static void fill_fetch(const clv_rref_handle *h, clv_rref_message *ret) {
  ret->ref = h->ref;
  ret->fork = h->record.id;
  ret->early = h->state == RREF_JOINING;
}

static void fill_use(const clv_rrefs *t, const clv_rref_post *post, clv_rref_message *ret) {
  const clv_rref_fork *f = RREF_OF(const clv_rref_fork, use, post);
  const clv_rref_child *c = RREF_OF(const clv_rref_child, use, post);
  ret->early = !post->of_fork;
  ret->ref = post->of_fork ? f->entry->record.id : c->parent->ref;
  ret->fork = post->of_fork ? f->record.id : c->record.id;
  ret->key = post->of_fork ? f->entry->key : c->parent->key;
  ret->owner = post->of_fork ? t->env.self : c->parent->owner;
  ret->context = post->of_fork ? f->context : c->context;
  ret->value = post->of_fork ? f->value : c->value;
}

void clv_rref_fill(const clv_rrefs *t, const clv_rref_post *post, clv_rref_message *ret) {
  if (post->kind == CLV_RREF_USE)
    fill_use(t, post, ret);
  else if (post->kind == CLV_RREF_KEEP || post->kind == CLV_RREF_FORK)
    fill_handle(RREF_OF(const clv_rref_handle, join, post), ret);
  else if (post->kind == CLV_RREF_FETCH)
    fill_fetch(RREF_OF(const clv_rref_handle, fetch, post), ret);
  else if (post->kind == CLV_RREF_ACCEPT)
    fill_handle(RREF_OF(const clv_rref_handle, accept, post), ret);
  else if (post->kind == CLV_RREF_DELETE)
    fill_handle(RREF_OF(const clv_rref_handle, leave, post), ret);
}

static void join_answered(clv_rrefs *t, clv_rref_post *post, clv_code code) {
  clv_rref_handle *h = RREF_OF(clv_rref_handle, join, post);
  if (code == CLV_OK)
    joined(t, h);
  else
    fail(t, h, code);
}

static void accept_answered(clv_rrefs *t, clv_rref_post *post, clv_code code) {
  (void)code;
  go_on(t, RREF_OF(clv_rref_handle, accept, post));
}

static void leave_answered(clv_rrefs *t, clv_rref_post *post, clv_code code) {
  (void)code;
  clv_rref_handle *h = RREF_OF(clv_rref_handle, leave, post);
  h->state = RREF_LEFT;
  go_on(t, h);
}

/* Without the value the owner is asked again in a while; at once it may not know the handle yet. */
static void fetch_answered(clv_rrefs *t, clv_rref_post *post, clv_code code) {
  clv_rref_handle *h = RREF_OF(clv_rref_handle, fetch, post);
  if (code != CLV_OK && h->state == RREF_JOINED) {
    give_value(t, h, NULL, clv_rref_refusal(code));
    return;
  }
  h->fetch_ns = t->now + (code == CLV_OK ? t->env.lease_ns / ASKS : t->env.retry_ns);
  clv_rref_wake_by(t, h->fetch_ns);
}

static void use_answered(clv_rrefs *t, clv_rref_post *post, clv_code code) {
  if (code == CLV_OK) return; /* ACCEPT or DELETE follows */
  if (!post->of_fork) {
    child_failed(t, RREF_OF(clv_rref_child, use, post), code);
    return;
  }
  clv_rref_fork *f = RREF_OF(clv_rref_fork, use, post);
  clv_rref_use use = {f->entry->record.id, f->record.id, t->env.self, f->node,
                      f->context,          f->value};
  t->env.unused(t->env.user, &use, clv_rref_refusal(code));
  clv_rref_fork_free(t, f);
}

void clv_rref_answered(clv_rrefs *t, clv_rref_post *post, clv_code code) {
  static void (*const answered[CLV_RREF_KINDS])(clv_rrefs *, clv_rref_post *, clv_code) = {
      [CLV_RREF_KEEP] = join_answered,     [CLV_RREF_FORK] = join_answered,
      [CLV_RREF_ACCEPT] = accept_answered, [CLV_RREF_DELETE] = leave_answered,
      [CLV_RREF_USE] = use_answered,       [CLV_RREF_FETCH] = fetch_answered,
  };
  answered[post->kind](t, post, code);
}

/* ---- messages -------------------------------------------------------------------------------- */

int clv_rref_on_use(clv_rrefs *t, uint32_t from, const clv_rref_message *m) {
  clv_rref_handle *h;
  clv_err why;
  if (m->owner >= t->env.n_nodes) return CLV_NOT_FOUND;
  bool of_owner = m->owner == from && !m->early;
  if (handle_new(t, m, m->owner, of_owner ? RREF_NOBODY : from, &h, &why) != CLV_OK)
    return why.code;
  clv_rref_use use = use_of(t, h);
  if (of_owner) { /* which has added the fork itself */
    h->state = RREF_JOINED;
    h->joined_ns = t->now;
  } else {
    clv_rref_post_new(t, &h->join, CLV_RREF_FORK, h->owner);
  }
  t->env.used(t->env.user, &use);
  return CLV_OK;
}

int clv_rref_on_accept(clv_rrefs *t, uint32_t from, const clv_rref_message *m) {
  clv_rref_child *c = clv_rref_find(&t->children, m->fork);
  if (c && c->use.to == from && c->parent->ref == m->ref) child_free(t, c);
  return CLV_OK;
}

void clv_rref_on_value(clv_rrefs *t, uint32_t from, const clv_rref_message *m) {
  clv_rref_handle *h = clv_rref_find(&t->handles, m->fork);
  if (!h || h->owner != from || h->ref != m->ref || !h->wants || !m->tensor == !m->failure) return;
  give_value(t, h, m->tensor, m->failure);
}

/* ---- fetching -------------------------------------------------------------------------------- */

void clv_rref_fetch_again(clv_rrefs *t) {
  for (clv_rref_ring *r = t->fetching.next, *next; r != &t->fetching; r = next) {
    next = r->next;
    clv_rref_handle *h = RREF_OF(clv_rref_handle, fetching, r);
    if (clv_rref_posted(&h->fetch)) continue;
    if (h->fetch_ns <= t->now)
      clv_rref_post_new(t, &h->fetch, CLV_RREF_FETCH, h->owner);
    else
      clv_rref_wake_by(t, h->fetch_ns);
  }
}

/* ---- what the node says ---------------------------------------------------------------------- */

static clv_code find(clv_rrefs *t, uint64_t fork, clv_rref_handle **ret, clv_err *err) {
  clv_rref_handle *h = clv_rref_find(&t->handles, fork);
  if (!h || h->released)
    return clv_fail(err, CLV_NOT_FOUND, "handle %llx is not here, or was released",
                    (unsigned long long)fork);
  *ret = h;
  return CLV_OK;
}

static clv_code find_whole(clv_rrefs *t, uint64_t fork, clv_rref_handle **ret, clv_err *err) {
  clv_rref_handle *h = NULL;
  CLV_TRY(find(t, fork, &h, err));
  if (h->state == RREF_FAILED) return clv_fail(err, h->failed->code, "%s", h->failed->text);
  *ret = h;
  return CLV_OK;
}

static clv_code keep(clv_rrefs *t, const clv_rref_birth *b, uint32_t owner, uint64_t context,
                     uint64_t value, clv_err *err) {
  clv_rref_handle *h;
  clv_rref_message m = {
      .ref = b->ref, .fork = b->fork, .key = b->key, .context = context, .value = value};
  CLV_TRY(handle_new(t, &m, owner, RREF_NOBODY, &h, err));
  h->made_here = true;
  clv_rref_post_new(t, &h->join, CLV_RREF_KEEP, owner);
  return CLV_OK;
}

clv_code clv_rref_handle_own(clv_rrefs *t, const clv_rref_birth *b, clv_err *err) {
  clv_rref_handle *h;
  clv_rref_message m = {.ref = b->ref, .fork = b->fork, .key = b->key};
  CLV_TRY(handle_new(t, &m, t->env.self, RREF_NOBODY, &h, err));
  h->made_here = true;
  joined(t, h);
  return CLV_OK;
}

clv_code clv_rrefs_keep(clv_rrefs *t, const clv_rref_birth *b, uint32_t owner, uint64_t context,
                        uint64_t value, uint64_t now_ns, clv_err *err) {
  clv_rref_enter(t, now_ns);
  clv_code code = keep(t, b, owner, context, value, err);
  clv_rref_leave(t);
  return code;
}

/* The owner itself adds the fork at once: nobody need ask it. */
static clv_code pass_own(clv_rrefs *t, const clv_rref_handle *h, const clv_rref_passing *what,
                         clv_rref_post **ret, clv_err *err) {
  clv_rref_fork *f;
  clv_rref_entry *e = clv_rref_find(&t->entries, h->ref);
  if (!e) return clv_fail(err, CLV_NOT_FOUND, "reference %llx is gone", (unsigned long long)h->ref);
  CLV_TRY(clv_rref_fork_new(t, e, what->child, what->to, &f, err));
  f->context = what->context;
  f->value = what->value;
  *ret = &f->use;
  return CLV_OK;
}

static clv_code pass_other(clv_rrefs *t, clv_rref_handle *h, const clv_rref_passing *what,
                           clv_rref_post **ret, clv_err *err) {
  clv_rref_child *c;
  CLV_TRY(clv_rref_make(t, &t->child_slab, &t->children, what->child, &c, err));
  c->parent = h;
  c->context = what->context;
  c->value = what->value;
  clv_rref_tie(t, &t->peers[what->to]);
  clv_rref_ring_add(&h->children, &c->of_parent);
  clv_rref_ring_add(&t->peers[what->to].children, &c->of_peer);
  *ret = &c->use;
  return CLV_OK;
}

static clv_code pass(clv_rrefs *t, uint64_t fork, const clv_rref_passing *what, clv_err *err) {
  clv_rref_handle *h = NULL;
  clv_rref_post *use = NULL;
  CLV_TRY(find_whole(t, fork, &h, err));
  bool own = h->owner == t->env.self && h->state == RREF_JOINED;
  CLV_TRY((own ? pass_own(t, h, what, &use, err) : pass_other(t, h, what, &use, err)));
  clv_rref_post_new(t, use, CLV_RREF_USE, what->to);
  return CLV_OK;
}

clv_code clv_rrefs_pass(clv_rrefs *t, uint64_t fork, const clv_rref_passing *what, uint64_t now_ns,
                        clv_err *err) {
  clv_rref_enter(t, now_ns);
  clv_code code = pass(t, fork, what, err);
  clv_rref_leave(t);
  return code;
}

static clv_code fetch(clv_rrefs *t, uint64_t fork, clv_err *err) {
  clv_rref_handle *h = NULL;
  CLV_TRY(find_whole(t, fork, &h, err));
  if (h->wants) return CLV_OK;
  h->wants = true;
  clv_rref_ring_add(&t->fetching, &h->fetching);
  clv_rref_post_new(t, &h->fetch, CLV_RREF_FETCH, h->owner);
  return CLV_OK;
}

clv_code clv_rrefs_fetch(clv_rrefs *t, uint64_t fork, uint64_t now_ns, clv_err *err) {
  clv_rref_enter(t, now_ns);
  clv_code code = fetch(t, fork, err);
  clv_rref_leave(t);
  return code;
}

static clv_code release(clv_rrefs *t, uint64_t fork, clv_err *err) {
  clv_rref_handle *h = NULL;
  CLV_TRY(find(t, fork, &h, err));
  h->released = true;
  want_no_more(t, h);
  go_on(t, h);
  return CLV_OK;
}

clv_code clv_rrefs_release(clv_rrefs *t, uint64_t fork, uint64_t now_ns, clv_err *err) {
  clv_rref_enter(t, now_ns);
  clv_code code = release(t, fork, err);
  clv_rref_leave(t);
  return code;
}
