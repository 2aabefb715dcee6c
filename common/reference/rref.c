/* SPDX-License-Identifier: Apache-2.0
 *
 * The table of a node's references: records, and the way of messages that are for itself.
 */
#include "common/reference/rref_int.h"

#include <stdlib.h>
#include <string.h>

enum { FEW_BUCKETS = 64, MOST_LOOPS = 4 * CLV_WIRE_REFS };

/* ---- rings and maps -------------------------------------------------------------------------- */

void clv_rref_ring_init(clv_rref_ring *r) { r->prev = r->next = r; }

bool clv_rref_ring_empty(const clv_rref_ring *r) { return r->next == r; }

void clv_rref_ring_add(clv_rref_ring *r, clv_rref_ring *place) {
  place->prev = r->prev;
  place->next = r;
  r->prev->next = place;
  r->prev = place;
}

void clv_rref_ring_remove(clv_rref_ring *place) {
  if (!place->next) return;
  place->prev->next = place->next;
  place->next->prev = place->prev;
  place->prev = place->next = NULL;
}

static clv_rref_record **bucket_of(const clv_rref_map *map, uint64_t id) {
  return &map->buckets[(uint32_t)((id * 0x9e3779b97f4a7c15u) >> 32) & (map->cap - 1)];
}

void *clv_rref_find(const clv_rref_map *map, uint64_t id) {
  clv_rref_record *r = map->cap ? *bucket_of(map, id) : NULL;
  while (r && r->id != id) r = r->next;
  return r;
}

/* Without memory for more buckets the chains grow instead. */
static clv_code widen(clv_rref_map *map, clv_err *err) {
  clv_rref_map wider = {.cap = map->cap ? 2 * map->cap : FEW_BUCKETS, .n = map->n};
  CLV_TRY(clv_alloc(wider.cap, sizeof *wider.buckets, &wider.buckets, err));
  for (uint32_t i = 0; i < map->cap; i++) {
    for (clv_rref_record *r = map->buckets[i], *next; r; r = next) {
      next = r->next;
      clv_rref_record **to = bucket_of(&wider, r->id);
      r->next = *to;
      *to = r;
    }
  }
  free(map->buckets);
  *map = wider;
  return CLV_OK;
}

clv_code clv_rref_make(clv_rrefs *t, clv_slab *s, clv_rref_map *map, uint64_t id, void *ret_pp,
                       clv_err *err) {
  clv_rref_record *r;
  clv_err ignored;
  if (!id || clv_rref_find(map, id))
    return clv_fail(err, CLV_EXISTS, "id %llx is 0 or taken", (unsigned long long)id);
  if (!map->cap) CLV_TRY(widen(map, err));
  CLV_TRY(clv_slab_take_from(t->env.pool, s, &r, err));
  if (map->n >= map->cap) (void)!widen(map, &ignored);
  clv_rref_record **bucket = bucket_of(map, id);
  r->id = id;
  r->next = *bucket;
  *bucket = r;
  map->n++;
  *(void **)ret_pp = r;
  return CLV_OK;
}

void clv_rref_drop(clv_slab *s, clv_rref_map *map, void *record) {
  clv_rref_record *r = record, **at = bucket_of(map, r->id);
  while (*at != r) at = &(*at)->next;
  *at = r->next;
  map->n--;
  clv_slab_give(s, r);
}

/* ---- the table ------------------------------------------------------------------------------- */

static void init_peer(clv_rref_peer *p, uint32_t node) {
  p->node = node;
  clv_rref_ring_init(&p->outbox);
  clv_rref_ring_init(&p->forks);
  clv_rref_ring_init(&p->handles);
  clv_rref_ring_init(&p->children);
}

clv_code clv_rrefs_new(const clv_rrefs_env *env, clv_rrefs **ret, clv_err *err) {
  clv_rrefs *t;
  CLV_TRY(clv_alloc(1, sizeof *t, &t, err));
  t->env = *env;
  t->due = UINT64_MAX;
  t->entry_slab = clv_slab_of(sizeof(clv_rref_entry), CLV_WIRE_REFS, "references");
  t->fork_slab = clv_slab_of(sizeof(clv_rref_fork), CLV_WIRE_REFS, "users of references");
  t->handle_slab = clv_slab_of(sizeof(clv_rref_handle), CLV_WIRE_REFS, "uses of references");
  t->child_slab = clv_slab_of(sizeof(clv_rref_child), CLV_WIRE_REFS, "references being passed on");
  t->parked_slab = clv_slab_of(sizeof(clv_rref_parked), CLV_WIRE_REF_PARKED,
                               "messages about unknown references");
  t->loop_slab = clv_slab_of(sizeof(clv_rref_loop), MOST_LOOPS, "messages to the node itself");
  clv_rref_ring_init(&t->fetching);
  clv_rref_ring_init(&t->parked);
  clv_code code = clv_alloc(env->n_nodes, sizeof *t->peers, &t->peers, err);
  if (code != CLV_OK) {
    clv_rrefs_free(t);
    return code;
  }
  for (uint32_t i = 0; i < env->n_nodes; i++) init_peer(&t->peers[i], i);
  *ret = t;
  return CLV_OK;
}

static void forget_values(clv_rrefs *t) {
  for (uint32_t i = 0; i < t->entries.cap; i++)
    for (clv_rref_record *r = t->entries.buckets[i]; r; r = r->next)
      clv_rref_entry_forget((clv_rref_entry *)(void *)r);
  for (clv_rref_loop *l = t->loop_first; l; l = l->next) clv_tensor_unref(l->m.tensor);
}

void clv_rrefs_free(clv_rrefs *t) {
  if (!t) return;
  forget_values(t);
  clv_rref_map *const maps[] = {&t->entries, &t->forks, &t->handles, &t->children};
  for (size_t i = 0; i < CLV_COUNT(maps); i++) free(maps[i]->buckets);
  clv_slab *const slabs[] = {&t->entry_slab, &t->fork_slab,   &t->handle_slab,
                             &t->child_slab, &t->parked_slab, &t->loop_slab};
  for (size_t i = 0; i < CLV_COUNT(slabs); i++) clv_slab_done(slabs[i]);
  free(t->peers);
  free(t);
}

void clv_rrefs_count(const clv_rrefs *t, clv_rref_counts *ret) {
  *ret = (clv_rref_counts){.owned = t->entry_slab.used,
                           .forks = t->fork_slab.used,
                           .used = t->handle_slab.used,
                           .passing = t->child_slab.used,
                           .parked = t->parked_slab.used,
                           .unacknowledged = t->n_posts};
}

uint64_t clv_rrefs_due(const clv_rrefs *t) { return t->due; }

void clv_rref_wake_by(clv_rrefs *t, uint64_t at_ns) { t->due = CLV_MIN(t->due, at_ns); }

const clv_rref_failure *clv_rref_refusal(clv_code code) {
  static const clv_rref_failure refusals[] = {
      {.code = CLV_NOT_FOUND,
       .text = "no such reference, not yours, or let go when you were silent for a lease"},
      {.code = CLV_EXISTS, .text = "a reference of this id exists"},
      {.code = CLV_EXHAUSTED, .text = "too many references, or no memory left in the session"},
      {.code = CLV_UNAVAILABLE, .text = "the reference's owner has not been heard of for a lease"},
  };
  for (size_t i = 0; i < CLV_COUNT(refusals); i++)
    if (refusals[i].code == code) return &refusals[i];
  return &refusals[0];
}

/* ---- messages to this node itself ------------------------------------------------------------ */

/* What finds no memory is sent again, as what a network loses. */
static void send_to_self(clv_rrefs *t, const clv_rref_message *m) {
  clv_rref_loop *l;
  clv_err ignored;
  if (clv_slab_take_from(t->env.pool, &t->loop_slab, &l, &ignored) != CLV_OK) return;
  l->m = *m;
  if (m->tensor) clv_tensor_ref(m->tensor);
  if (m->failure) {
    l->failure = *m->failure;
    l->m.failure = &l->failure;
  }
  *(t->loop_last ? &t->loop_last->next : &t->loop_first) = l;
  t->loop_last = l;
}

void clv_rref_send(clv_rrefs *t, uint32_t to, const clv_rref_message *m) {
  if (to == t->env.self)
    send_to_self(t, m);
  else
    t->env.send(t->env.user, to, m);
}

void clv_rref_enter(clv_rrefs *t, uint64_t now_ns) {
  t->now = CLV_MAX(t->now, now_ns);
  t->depth++;
}

void clv_rref_leave(clv_rrefs *t) {
  while (t->depth == 1 && t->loop_first) {
    clv_rref_loop *l = t->loop_first;
    t->loop_first = l->next;
    if (!t->loop_first) t->loop_last = NULL;
    clv_rrefs_receive(t, t->env.self, &l->m, t->now);
    clv_tensor_unref(l->m.tensor);
    clv_slab_give(&t->loop_slab, l);
  }
  t->depth--;
}
