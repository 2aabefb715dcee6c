/* SPDX-License-Identifier: Apache-2.0
 *
 * Containers of records: maps by id, circular lists, and the queue of results. A record with queued
 * results stays allocated after its removal from the map, until the results are taken.
 */
#include "common/engine/reference/rref_int.h"

#include <stdlib.h>
#include <string.h>

enum { INITIAL_BUCKETS = 64 };

/* ---- lists and maps of records --------------------------------------------------------------- */

void clv_rref_list_init(clv_rref_list *r) { r->prev = r->next = r; }

bool clv_rref_list_is_empty(const clv_rref_list *r) { return r->next == r; }

void clv_rref_list_add(clv_rref_list *r, clv_rref_list *place) {
  place->prev = r->prev;
  place->next = r;
  r->prev->next = place;
  r->prev = place;
}

void clv_rref_list_remove(clv_rref_list *place) {
  if (!place->next) return;
  place->prev->next = place->next;
  place->next->prev = place->prev;
  place->prev = place->next = NULL;
}

static clv_rref_record **get_bucket(const clv_rref_map *map, uint64_t id) {
  return &map->buckets[(uint32_t)((id * 0x9e3779b97f4a7c15u) >> 32) & (map->cap - 1)];
}

void *clv_rref_record_find(const clv_rref_map *map, uint64_t id) {
  clv_rref_record *r = map->cap ? *get_bucket(map, id) : NULL;
  while (r && r->id != id) r = r->next;
  return r;
}

/* Doubles the buckets of a map. Fails without memory; the map then works on, with longer chains. */
static clv_code grow_map(clv_rref_map *map, clv_err *err) {
  clv_rref_map larger = {.cap = map->cap ? 2 * map->cap : INITIAL_BUCKETS, .n = map->n};
  CLV_TRY(clv_alloc(larger.cap, sizeof *larger.buckets, &larger.buckets, err));
  for (uint32_t i = 0; i < map->cap; i++) {
    for (clv_rref_record *r = map->buckets[i], *next; r; r = next) {
      next = r->next;
      clv_rref_record **to = get_bucket(&larger, r->id);
      r->next = *to;
      *to = r;
    }
  }
  free(map->buckets);
  *map = larger;
  return CLV_OK;
}

clv_code clv_rref_record_new(clv_rrefs *t, clv_slab *s, clv_rref_map *map, uint64_t id,
                             void *ret_pp, clv_err *err) {
  clv_rref_record *r;
  clv_err ignored;
  if (!id || clv_rref_record_find(map, id))
    return clv_fail(err, CLV_EXISTS, "id %llu is 0 or taken", (unsigned long long)id);
  if (!map->cap) CLV_TRY(grow_map(map, err));
  CLV_TRY(clv_slab_alloc(t->o.pool, s, &r, err));
  if (map->n >= map->cap) (void)!grow_map(map, &ignored);
  clv_rref_record **bucket = get_bucket(map, id);
  r->id = id;
  r->next = *bucket;
  *bucket = r;
  map->n++;
  *(void **)ret_pp = r;
  return CLV_OK;
}

void clv_rref_record_drop(clv_slab *s, clv_rref_map *map, void *record) {
  clv_rref_record *r = record, **at = get_bucket(map, r->id);
  while (*at != r) at = &(*at)->next;
  *at = r->next;
  map->n--;
  r->is_dropped = true;
  if (!r->n_queued_results) clv_slab_recycle(s, r);
}

/* ---- the queue of results -------------------------------------------------------------------- */

static bool is_queued(const clv_rref_queue_entry *out) { return out->link.next != NULL; }

void clv_rref_queue_message(clv_rrefs *t, clv_rref_queue_entry *out, clv_rref_source source,
                            uint32_t to) {
  if (is_queued(out)) return;
  out->source = source;
  clv_rref_list_add(to == t->o.self ? &t->to_self : &t->results, &out->link);
}

void clv_rref_queue_report(clv_rrefs *t, clv_rref_queue_entry *out, clv_rref_source source,
                           clv_rref_record *of) {
  if (is_queued(out)) return;
  out->source = source;
  clv_rref_list_add(&t->results, &out->link);
  of->n_queued_results++;
}

void clv_rref_unqueue_report(clv_rref_queue_entry *out, clv_rref_record *of) {
  if (!is_queued(out)) return;
  clv_rref_list_remove(&out->link);
  of->n_queued_results--;
}

void clv_rref_record_result_taken(clv_slab *s, void *record) {
  clv_rref_record *r = record;
  if (!--r->n_queued_results && r->is_dropped) clv_slab_recycle(s, r);
}

/* ---- the time of the next tick, and failures ------------------------------------------------- */

void clv_rref_schedule_tick(clv_rrefs *t, uint64_t at_ns) { t->due_ns = CLV_MIN(t->due_ns, at_ns); }

static const clv_rref_failure no_memory = {
    CLV_EXHAUSTED, "no memory left in the session for the text of an error", "", false};

clv_rref_failure *clv_rref_failure_copy(const clv_rref_failure *why) {
  clv_rref_failure *copy;
  clv_err ignored;
  if (clv_alloc(1, sizeof *copy, &copy, &ignored) != CLV_OK) return (clv_rref_failure *)&no_memory;
  *copy = *why;
  return copy;
}

void clv_rref_failure_free(clv_rref_failure *copy) {
  if (copy != &no_memory) free(copy);
}

const clv_rref_failure *clv_rref_failure_of_code(clv_code code) {
  static const clv_rref_failure refusals[] = {
      {.code = CLV_NOT_FOUND,
       .text = "no such reference; or it belongs to another node, or was freed because this node "
               "was silent for a lease"},
      {.code = CLV_EXISTS, .text = "a reference of this id exists"},
      {.code = CLV_EXHAUSTED, .text = "too many references, or no memory left in the session"},
      {.code = CLV_UNAVAILABLE,
       .text = "the owner of the reference has sent nothing for a lease",
       .is_lease_expiry = true},
  };
  for (size_t i = 0; i < CLV_COUNT(refusals); i++)
    if (refusals[i].code == code) return &refusals[i];
  return &refusals[0];
}
