/* SPDX-License-Identifier: Apache-2.0
 *
 * The hash table from ids to records (api_id_table).
 */
#include <stdlib.h>

#include "master/api/core/core_int.h"

/* Returns the slot at which the search for an id begins. Ids are consecutive, and a multiplication
 * spreads them over the table (Fibonacci hashing, Knuth 6.4). */
static size_t first_probed_slot(const api_id_table *t, uint64_t id) {
  return (size_t)((id * UINT64_C(0x9e3779b97f4a7c15)) >> 20) & (t->cap - 1);
}

static size_t find_slot(const api_id_table *t, uint64_t id) {
  size_t i = first_probed_slot(t, id);
  while (t->ids[i] && t->ids[i] != id) i = (i + 1) & (t->cap - 1);
  return i;
}

static clv_code grow_table(api_id_table *t, clv_err *err) {
  api_id_table grown_table = {.cap = t->cap ? 2 * t->cap : 256, .n = t->n};
  CLV_TRY(clv_alloc(grown_table.cap, sizeof *grown_table.ids, &grown_table.ids, err));
  clv_code code =
      clv_alloc(grown_table.cap, sizeof *grown_table.entries, &grown_table.entries, err);
  if (code != CLV_OK) {
    free(grown_table.ids);
    return code;
  }
  for (size_t i = 0; i < t->cap; i++) {
    if (!t->ids[i]) continue;
    size_t at = find_slot(&grown_table, t->ids[i]);
    grown_table.ids[at] = t->ids[i];
    grown_table.entries[at] = t->entries[i];
  }
  api_id_table_free(t);
  *t = grown_table;
  return CLV_OK;
}

clv_code api_id_table_put(api_id_table *t, uint64_t id, void *entry, clv_err *err) {
  if (2 * (t->n + 1) > t->cap) CLV_TRY(grow_table(t, err));
  size_t i = find_slot(t, id);
  t->n += !t->ids[i];
  t->ids[i] = id;
  t->entries[i] = entry;
  return CLV_OK;
}

void *api_id_table_get(const api_id_table *t, uint64_t id) {
  if (!t->cap || !id) return NULL;
  size_t i = find_slot(t, id);
  return t->ids[i] ? t->entries[i] : NULL;
}

/* Removes an entry. Moves later entries of the probe sequence into the gap, because a search ends
 * at the first free slot. */
void api_id_table_remove(api_id_table *t, uint64_t id) {
  if (!t->cap || !id) return;
  size_t freed_slot = find_slot(t, id), slot_mask = t->cap - 1;
  if (!t->ids[freed_slot]) return;
  t->n--;
  for (size_t i = (freed_slot + 1) & slot_mask; t->ids[i]; i = (i + 1) & slot_mask) {
    size_t wanted_slot = first_probed_slot(t, t->ids[i]);
    if (((i - wanted_slot) & slot_mask) < ((i - freed_slot) & slot_mask)) continue;
    t->ids[freed_slot] = t->ids[i];
    t->entries[freed_slot] = t->entries[i];
    freed_slot = i;
  }
  t->ids[freed_slot] = 0;
}

void *api_id_table_next(const api_id_table *t, size_t *at) {
  while (*at < t->cap && !t->ids[*at]) ++*at;
  return *at < t->cap ? t->entries[(*at)++] : NULL;
}

void api_id_table_free(api_id_table *t) {
  if (!t) return;
  free(t->ids);
  free(t->entries);
  *t = (api_id_table){0};
}
