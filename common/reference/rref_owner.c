/* SPDX-License-Identifier: Apache-2.0
 *
 * The owner's side: entries, who uses them, and what waits for either.
 */
#include <stdlib.h>

#include "common/reference/rref_int.h"

static const clv_rref_failure no_memory = {
    CLV_EXHAUSTED, "no memory left in the session for the text of an error", ""};

void clv_rref_entry_forget(clv_rref_entry *e) {
  clv_tensor_unref(e->tensor);
  if (e->failed != &no_memory) free(e->failed);
}

static void entry_free(clv_rrefs *t, clv_rref_entry *e) {
  clv_rref_entry_forget(e);
  clv_rref_drop(&t->entry_slab, &t->entries, e);
}

static clv_code entry_new(clv_rrefs *t, uint64_t ref, uint64_t key, clv_rref_entry **ret,
                          clv_err *err) {
  CLV_TRY(clv_rref_make(t, &t->entry_slab, &t->entries, ref, ret, err));
  (*ret)->key = key;
  clv_rref_ring_init(&(*ret)->forks);
  return CLV_OK;
}

clv_code clv_rref_fork_new(clv_rrefs *t, clv_rref_entry *e, uint64_t id, uint32_t node,
                           clv_rref_fork **ret, clv_err *err) {
  CLV_TRY(clv_rref_make(t, &t->fork_slab, &t->forks, id, ret, err));
  clv_rref_fork *f = *ret;
  f->entry = e;
  f->node = node;
  f->use.of_fork = true;
  clv_rref_tie(t, &t->peers[node]);
  clv_rref_ring_add(&e->forks, &f->of_entry);
  clv_rref_ring_add(&t->peers[node].forks, &f->of_peer);
  return CLV_OK;
}

static void drop_fork(clv_rrefs *t, clv_rref_fork *f) {
  clv_rref_post_cancel(t, &f->use);
  clv_rref_ring_remove(&f->of_entry);
  clv_rref_ring_remove(&f->of_peer);
  clv_rref_drop(&t->fork_slab, &t->forks, f);
}

void clv_rref_fork_free(clv_rrefs *t, clv_rref_fork *f) {
  if (!f) return;
  clv_rref_entry *e = f->entry;
  drop_fork(t, f);
  if (!clv_rref_ring_empty(&e->forks)) return;
  uint64_t ref = e->record.id;
  entry_free(t, e);
  t->env.freed(t->env.user, ref);
}

/* The fork that a node shows, if it is its own. */
static clv_rref_fork *fork_of(const clv_rrefs *t, uint32_t node, const clv_rref_message *m) {
  clv_rref_fork *f = clv_rref_find(&t->forks, m->fork);
  return f && f->node == node && f->entry->record.id == m->ref ? f : NULL;
}

/* ---- values ---------------------------------------------------------------------------------- */

static void send_value(clv_rrefs *t, uint32_t to, uint64_t ref, uint64_t fork, clv_tensor *tensor,
                       const clv_rref_failure *why) {
  clv_rref_message m = {
      .kind = CLV_RREF_VALUE, .ref = ref, .fork = fork, .tensor = tensor, .failure = why};
  clv_rref_send(t, to, &m);
}

static void serve(clv_rrefs *t, clv_rref_fork *f) {
  const clv_rref_entry *e = f->entry;
  f->wants = !e->tensor && !e->failed;
  if (!f->wants) send_value(t, f->node, e->record.id, f->record.id, e->tensor, e->failed);
}

static clv_rref_failure *copy_of(const clv_rref_failure *why) {
  clv_rref_failure *copy;
  clv_err ignored;
  if (clv_alloc(1, sizeof *copy, &copy, &ignored) != CLV_OK) return (clv_rref_failure *)&no_memory;
  *copy = *why;
  return copy;
}

static void settle(clv_rrefs *t, clv_rref_entry *e, clv_tensor *tensor,
                   const clv_rref_failure *why) {
  if (e->tensor || e->failed) return;
  if (tensor)
    e->tensor = clv_tensor_ref(tensor);
  else
    e->failed = copy_of(why);
  for (clv_rref_ring *r = e->forks.next; r != &e->forks; r = r->next) {
    clv_rref_fork *f = RREF_OF(clv_rref_fork, of_entry, r);
    if (f->wants) serve(t, f);
  }
}

void clv_rrefs_settle(clv_rrefs *t, uint64_t ref, clv_tensor *tensor, const clv_rref_failure *why,
                      uint64_t now_ns) {
  clv_rref_enter(t, now_ns);
  clv_rref_entry *e = clv_rref_find(&t->entries, ref);
  if (e) settle(t, e, tensor, why);
  clv_rref_leave(t);
}

/* ---- what comes too early -------------------------------------------------------------------- */

static bool is_parked(const clv_rrefs *t, uint32_t from, const clv_rref_message *m) {
  for (const clv_rref_ring *r = t->parked.next; r != &t->parked; r = r->next) {
    const clv_rref_parked *k = RREF_OF(const clv_rref_parked, at, r);
    if (k->from == from && k->number == m->number) return true;
  }
  return false;
}

/* What finds no place is sent again. */
static int park(clv_rrefs *t, uint32_t from, const clv_rref_message *m) {
  clv_rref_parked *k;
  clv_err ignored;
  if (is_parked(t, from, m)) return RREF_PARKED;
  if (clv_slab_take_from(t->env.pool, &t->parked_slab, &k, &ignored) != CLV_OK) return RREF_PARKED;
  *k = (clv_rref_parked){.kind = m->kind,
                         .from = from,
                         .number = m->number,
                         .ref = m->ref,
                         .fork = m->fork,
                         .key = m->key,
                         .until_ns = t->now + t->env.lease_ns};
  clv_rref_ring_add(&t->parked, &k->at);
  clv_rref_wake_by(t, k->until_ns);
  return RREF_PARKED;
}

static void unpark(clv_rrefs *t, clv_rref_parked *k) {
  clv_rref_ring_remove(&k->at);
  clv_slab_give(&t->parked_slab, k);
}

/* FETCHes of a fork that is known now. */
static void unpark_fetches(clv_rrefs *t, clv_rref_fork *f) {
  for (clv_rref_ring *r = t->parked.next, *next; r != &t->parked; r = next) {
    next = r->next;
    clv_rref_parked *k = RREF_OF(clv_rref_parked, at, r);
    bool same = k->fork == f->record.id && k->ref == f->entry->record.id;
    if (k->kind != CLV_RREF_FETCH || k->from != f->node || !same) continue;
    uint64_t number = k->number;
    unpark(t, k);
    clv_rref_answer(t, f->node, number, CLV_OK);
    serve(t, f);
    return;
  }
}

static int add_fork(clv_rrefs *t, clv_rref_entry *e, uint32_t from, uint64_t id) {
  clv_rref_fork *f;
  clv_err why;
  if (clv_rref_fork_new(t, e, id, from, &f, &why) != CLV_OK)
    return why.code == CLV_EXISTS ? CLV_NOT_FOUND : why.code;
  unpark_fetches(t, f);
  return CLV_OK;
}

static void unpark_forks(clv_rrefs *t, clv_rref_entry *e) {
  for (clv_rref_ring *r = t->parked.next; r != &t->parked;) {
    clv_rref_parked k = *RREF_OF(clv_rref_parked, at, r);
    clv_rref_ring *next = r->next;
    if (k.kind == CLV_RREF_FORK && k.ref == e->record.id && k.key == e->key) {
      unpark(t, RREF_OF(clv_rref_parked, at, r));
      clv_rref_answer(t, k.from, k.number, (clv_code)add_fork(t, e, k.from, k.fork));
      next = t->parked.next; /* its FETCH may have gone, too */
    }
    r = next;
  }
}

void clv_rref_unpark_late(clv_rrefs *t) {
  while (!clv_rref_ring_empty(&t->parked)) {
    clv_rref_parked *k = RREF_OF(clv_rref_parked, at, t->parked.next);
    if (k->until_ns > t->now) {
      clv_rref_wake_by(t, k->until_ns);
      return;
    }
    uint32_t from = k->from;
    uint64_t number = k->number;
    unpark(t, k);
    clv_rref_answer(t, from, number, CLV_NOT_FOUND);
  }
}

void clv_rref_unpark_of(clv_rrefs *t, uint32_t node) {
  for (clv_rref_ring *r = t->parked.next, *next; r != &t->parked; r = next) {
    next = r->next;
    clv_rref_parked *k = RREF_OF(clv_rref_parked, at, r);
    if (k->from == node) unpark(t, k);
  }
}

/* ---- messages -------------------------------------------------------------------------------- */

int clv_rref_on_keep(clv_rrefs *t, uint32_t from, const clv_rref_message *m) {
  clv_rref_entry *e;
  clv_rref_fork *f;
  clv_err why;
  if (entry_new(t, m->ref, m->key, &e, &why) != CLV_OK) return why.code;
  if (clv_rref_fork_new(t, e, m->fork, from, &f, &why) != CLV_OK) {
    entry_free(t, e);
    return why.code;
  }
  unpark_forks(t, e);
  unpark_fetches(t, f);
  t->env.create(t->env.user, m->ref, m->context, m->value);
  return CLV_OK;
}

int clv_rref_on_fork(clv_rrefs *t, uint32_t from, const clv_rref_message *m) {
  clv_rref_entry *e = clv_rref_find(&t->entries, m->ref);
  return e && e->key == m->key ? add_fork(t, e, from, m->fork) : park(t, from, m);
}

int clv_rref_on_delete(clv_rrefs *t, uint32_t from, const clv_rref_message *m) {
  clv_rref_fork *f = fork_of(t, from, m);
  if (f) clv_rref_fork_free(t, f);
  return CLV_OK;
}

/* A node that has nothing here any more learns it. */
int clv_rref_on_renew(clv_rrefs *t, uint32_t from, const clv_rref_message *m) {
  (void)m;
  return clv_rref_ring_empty(&t->peers[from].forks) ? CLV_NOT_FOUND : CLV_OK;
}

int clv_rref_on_fetch(clv_rrefs *t, uint32_t from, const clv_rref_message *m) {
  clv_rref_fork *f = fork_of(t, from, m);
  if (!f) return m->early ? park(t, from, m) : CLV_NOT_FOUND;
  serve(t, f);
  return CLV_OK;
}

/* ---- what the node says ---------------------------------------------------------------------- */

/* All at once instead of by a KEEP to this node itself, which may be late: the value has its
 * place. */
static clv_code own(clv_rrefs *t, const clv_rref_birth *b, clv_tensor *tensor, clv_err *err) {
  clv_rref_entry *e;
  clv_rref_fork *f;
  CLV_TRY(entry_new(t, b->ref, b->key, &e, err));
  e->tensor = clv_tensor_ref(tensor);
  clv_code code = clv_rref_fork_new(t, e, b->fork, t->env.self, &f, err);
  if (code == CLV_OK) {
    code = clv_rref_handle_own(t, b, err);
    if (code != CLV_OK) drop_fork(t, f);
  }
  if (code != CLV_OK) entry_free(t, e);
  return code;
}

clv_code clv_rrefs_own(clv_rrefs *t, const clv_rref_birth *b, clv_tensor *tensor, uint64_t now_ns,
                       clv_err *err) {
  clv_rref_enter(t, now_ns);
  clv_code code = own(t, b, tensor, err);
  clv_rref_leave(t);
  return code;
}
