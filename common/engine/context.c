/* SPDX-License-Identifier: Apache-2.0
 *
 * The records of the engine: creating and finding contexts and values, tombstones of contexts that
 * have ended, node names, and reasons of failures.
 */
#include "common/engine/context_int.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CONTEXT_BUCKETS = 1024, VALUE_BUCKETS = 8192 };

clv_code clv_contexts_slab_alloc(clv_contexts *e, clv_slab *s, void *ret_pp, clv_err *err) {
  return clv_slab_alloc(e->env.pool, s, ret_pp, err);
}

clv_module *clv_contexts_module(const clv_contexts *e, uint32_t module) {
  return module < CLV_MODULE_ALL ? e->env.modules[module] : NULL;
}

clv_module *clv_contexts_module_of_frame(const clv_contexts *e, const clv_frame *f) {
  clv_module *m = clv_contexts_module(e, f->module);
  return m && m->o.generation == f->module_generation ? m : NULL;
}

/* ---- reasons of failures, and names of nodes ------------------------------------------------- */

/* Reason used when there is no memory to record one. Static: not counted, never freed. */
static clv_shared_err no_memory = {
    .refs = 1,
    .code = CLV_EXHAUSTED,
    .text =
        "the quota of bytes is used up: no memory is left to name the request "
        "(limits.session_bytes, allow[].bytes or memory_limit in a "
        "worker's worker.yaml)"};

clv_shared_err clv_shared_err_context_ended = {
    .refs = 1, .code = CLV_CANCELLED, .text = "its context ended before the value was computed"};

static bool is_static_error(const clv_shared_err *c) {
  return c == &no_memory || c == &clv_shared_err_context_ended;
}

clv_shared_err *clv_shared_err_new(clv_contexts *e, const clv_err *why, const char *hop) {
  clv_shared_err *c;
  clv_err ignored;
  if (clv_contexts_slab_alloc(e, &e->errors, &c, &ignored) != CLV_OK) return &no_memory;
  /* temporary frame, in which the text of the reason is cut and cleaned as for sending */
  clv_frame text;
  clv_frame_set_failure(&text, why->code, why->text, hop);
  c->refs = 1;
  c->code = why->code;
  memcpy(c->text, text.failure.text, sizeof c->text);
  memcpy(c->hop, text.failure.detected_at, sizeof c->hop);
  memcpy(c->offending_value, why->offending_value, sizeof c->offending_value);
  return c;
}

clv_shared_err *clv_shared_err_new_in_module(clv_contexts *e, const clv_err *why, uint32_t module) {
  char hop[CLV_WIRE_NAME + 1];
  snprintf(hop, sizeof hop, "module %u%s%s", module, why->failed_op[0] ? ", " : "", why->failed_op);
  return clv_shared_err_new(e, why, hop);
}

clv_shared_err *clv_shared_err_from_frame(clv_contexts *e, const clv_frame *f) {
  clv_err why = {.code = f->failure.code};
  snprintf(why.text, sizeof why.text, "%s", f->failure.text);
  /* failure.offending_value is empty if the frame came from another process */
  memcpy(why.offending_value, f->failure.offending_value, sizeof why.offending_value);
  return clv_shared_err_new(e, &why, f->failure.detected_at);
}

void clv_shared_err_to_frame(const clv_shared_err *why, clv_frame *f) {
  clv_frame_set_failure(f, why->code, why->text, why->hop);
  memcpy(f->failure.offending_value, why->offending_value, sizeof f->failure.offending_value);
}

clv_shared_err *clv_shared_err_ref(clv_shared_err *c) {
  if (!is_static_error(c)) c->refs++;
  return c;
}

void clv_shared_err_unref(clv_contexts *e, clv_shared_err *c) {
  if (c && !is_static_error(c) && --c->refs == 0) clv_slab_recycle(&e->errors, c);
}

clv_code clv_contexts_index_of_name(clv_contexts *e, const char *name, uint32_t *ret,
                                    clv_err *err) {
  uint32_t i = 0;
  while (i < e->n_names && strcmp(e->names[i], name) != 0) i++;
  if (i == MAX_NAMES)
    return clv_fail(err, CLV_EXHAUSTED, "more than %d workers are named in this session",
                    MAX_NAMES - 1);
  if (i == e->n_names) snprintf(e->names[e->n_names++], sizeof *e->names, "%s", name);
  *ret = i;
  return CLV_OK;
}

/* ---- finding contexts and values ------------------------------------------------------------- */

static uint32_t get_bucket_index(uint64_t id, uint32_t n) {
  return (uint32_t)((id * 0x9e3779b97f4a7c15u) >> 40) % n;
}

static clv_context *find_context(const clv_contexts *e, uint64_t id) {
  clv_context *c = e->context_buckets[get_bucket_index(id, CONTEXT_BUCKETS)];
  while (c && c->id != id) c = c->next_in_bucket;
  return c;
}

clv_context *clv_context_find(const clv_contexts *e, uint64_t id) {
  clv_context *c = find_context(e, id);
  return c && c->state != CONTEXT_ENDED ? c : NULL;
}

clv_value *clv_context_find_value(clv_contexts *e, const clv_context *c, uint64_t id) {
  clv_value *v = e->value_buckets[get_bucket_index(id, VALUE_BUCKETS)];
  while (v && (v->id != id || v->ctx != c)) v = v->next_in_bucket;
  return v;
}

clv_code clv_context_get_or_create_value(clv_contexts *e, clv_context *c, uint64_t id,
                                         clv_value **ret, clv_err *err) {
  *ret = clv_context_find_value(e, c, id);
  if (*ret) return CLV_OK;
  clv_value *v;
  CLV_TRY(clv_contexts_slab_alloc(e, &e->values, &v, err));
  clv_value **bucket = &e->value_buckets[get_bucket_index(id, VALUE_BUCKETS)];
  v->id = id;
  v->ctx = c;
  v->next_in_bucket = *bucket;
  *bucket = v;
  v->next = c->values;
  v->prev_next = &c->values;
  if (v->next) v->next->prev_next = &v->next;
  c->values = v;
  __atomic_store_n(&e->counts.values, e->values.n_records_used, __ATOMIC_RELAXED);
  *ret = v;
  return CLV_OK;
}

void clv_value_unlink(clv_contexts *e, clv_value *v) {
  clv_value **in_bucket = &e->value_buckets[get_bucket_index(v->id, VALUE_BUCKETS)];
  while (*in_bucket != v) in_bucket = &(*in_bucket)->next_in_bucket;
  *in_bucket = v->next_in_bucket;
  *v->prev_next = v->next;
  if (v->next) v->next->prev_next = v->prev_next;
  clv_slab_recycle(&e->values, v);
  __atomic_store_n(&e->counts.values, e->values.n_records_used, __ATOMIC_RELAXED);
}

/* ---- making and freeing contexts ------------------------------------------------------------- */

clv_code clv_context_get_or_create(clv_contexts *e, uint64_t id, clv_context **ret, clv_err *err) {
  clv_context *c = *ret = find_context(e, id);
  if (c) return CLV_OK;
  if (e->n_open == MAX_CONTEXTS)
    return clv_fail(err, CLV_EXHAUSTED, "more than %d contexts are open in this session",
                    MAX_CONTEXTS);
  CLV_TRY(clv_contexts_slab_alloc(e, &e->contexts, &c, err));
  clv_context **bucket = &e->context_buckets[get_bucket_index(id, CONTEXT_BUCKETS)];
  c->id = id;
  c->next_in_bucket = *bucket;
  *bucket = c;
  c->next = e->open_contexts;
  c->prev_next = &e->open_contexts;
  if (c->next) c->next->prev_next = &c->next;
  e->open_contexts = c;
  __atomic_store_n(&e->counts.contexts, ++e->n_open, __ATOMIC_RELAXED);
  *ret = c;
  return CLV_OK;
}

void clv_context_mark_dirty(clv_contexts *e, clv_context *c) {
  if (c->is_dirty) return;
  c->is_dirty = true;
  c->next_dirty = e->dirty_contexts;
  e->dirty_contexts = c;
}

static void unmark_dirty(clv_contexts *e, clv_context *c) {
  clv_context **at = &e->dirty_contexts;
  if (!c->is_dirty) return;
  while (*at != c) at = &(*at)->next_dirty;
  *at = c->next_dirty;
  c->is_dirty = false;
}

static void unlink_context(clv_contexts *e, clv_context *c) {
  clv_context **in_bucket = &e->context_buckets[get_bucket_index(c->id, CONTEXT_BUCKETS)];
  while (*in_bucket != c) in_bucket = &(*in_bucket)->next_in_bucket;
  *in_bucket = c->next_in_bucket;
}

static void free_oldest_tombstone(clv_contexts *e) {
  clv_context *oldest = e->first_tombstone;
  e->first_tombstone = oldest->next;
  e->n_tombstones--;
  unlink_context(e, oldest);
  clv_slab_recycle(&e->contexts, oldest);
}

void clv_context_make_tombstone(clv_contexts *e, clv_context *c) {
  unmark_dirty(e, c);
  *c->prev_next = c->next;
  if (c->next) c->next->prev_next = c->prev_next;
  __atomic_store_n(&e->counts.contexts, --e->n_open, __ATOMIC_RELAXED);
  c->next = NULL;
  if (e->last_tombstone)
    e->last_tombstone->next = c;
  else
    e->first_tombstone = c;
  e->last_tombstone = c;
  if (++e->n_tombstones > MAX_TOMBSTONES) free_oldest_tombstone(e);
}

const clv_cell *clv_contexts_on_event(clv_contexts *e, uint64_t context, clv_state_machine machine,
                                      uint8_t *state, uint32_t event) {
  static const clv_cell impossible_cell = {.action = CELL_IMPOSSIBLE};
  const clv_cell *cell;
  clv_err why;
  if (clv_table_apply_event(e->env.transition_counts, machine, state, event, &cell, &why) == CLV_OK)
    return cell;
  if (e->impossible_event.code == CLV_OK) {
    e->impossible_event = why;
    e->impossible_event_context = context;
  }
  return &impossible_cell;
}

clv_action clv_step_on_event(clv_contexts *e, uint32_t module, uint64_t context,
                             clv_step_event event) {
  clv_module_queue *l = &e->queues[module];
  uint64_t of = context ? context : l->revertible_context_id;
  uint8_t previous_state = l->revertible_context_id ? STEP_OPEN : STEP_FINAL,
          next_state = previous_state;
  const clv_cell *cell = clv_contexts_on_event(e, of, MACHINE_STEP, &next_state, event);
  if (cell->action == CELL_IMPOSSIBLE || cell->action == CELL_IGNORE) return cell->action;
  l->revertible_context_id = next_state == STEP_OPEN ? of : 0;
  e->n_snapshots += (uint32_t)next_state - (uint32_t)previous_state;
  return cell->action;
}

/* ---- making and freeing the engine ----------------------------------------------------------- */

static void size_slabs(clv_contexts *e) {
  e->contexts = clv_slab_make(sizeof(clv_context), MAX_CONTEXTS + MAX_TOMBSTONES + 1, "contexts");
  e->values = clv_slab_make(sizeof(clv_value), MAX_CONTEXT_ITEMS, "values");
  e->calls = clv_slab_make(sizeof(clv_context_call), MAX_CONTEXT_ITEMS, "calls");
  e->deliveries = clv_slab_make(sizeof(clv_delivery), MAX_CONTEXT_ITEMS, "waiting deliveries");
  e->contributions =
      clv_slab_make(sizeof(clv_contribution), MAX_CONTEXT_ITEMS, "gradients of values");
  e->gradients =
      clv_slab_make(sizeof(clv_module_gradient), MAX_CONTEXT_ITEMS, "gradients of modules");
  e->errors = clv_slab_make(sizeof(clv_shared_err), MAX_CONTEXT_ITEMS, "errors");
  /* small slabs, so that a reason can still be recorded when the quota is nearly used up */
  e->errors.records_per_block = 4;
  e->changes = clv_slab_make(sizeof(clv_change), MAX_CHANGES, "waiting parameter changes");
  e->entries = clv_slab_make(sizeof(clv_queue_entry), MAX_CONTEXT_ITEMS,
                             "queue entries of parameter changes");
  e->backward_queue_slab =
      clv_slab_make(sizeof(clv_backward_queue), MAX_CONTEXT_ITEMS, "modules in backward passes");
  e->steps = clv_slab_make(sizeof(clv_planned_step), MAX_CONTEXT_ITEMS,
                           "steps that wait for their position");
  e->weights = clv_slab_make(sizeof(clv_old_weights), MAX_CONTEXT_ITEMS, "copies of weights");
  e->copies = clv_slab_make(sizeof(clv_copy), MAX_CONTEXT_ITEMS, "copies from devices");
  e->transfers = clv_slab_make(sizeof(clv_state_transfer), MAX_CONTEXT_ITEMS, "transfers of state");
}

static clv_code alloc_tables(clv_contexts *e, clv_err *err) {
  CLV_TRY(clv_alloc(CONTEXT_BUCKETS, sizeof *e->context_buckets, &e->context_buckets, err));
  CLV_TRY(clv_alloc(VALUE_BUCKETS, sizeof *e->value_buckets, &e->value_buckets, err));
  CLV_TRY(clv_alloc(MAX_NAMES, sizeof *e->names, &e->names, err));
  CLV_TRY(clv_alloc(CLV_MODULE_ALL, sizeof *e->queues, &e->queues, err));
  return clv_alloc(CLV_MODULE_ALL + 1, sizeof *e->work, &e->work, err);
}

clv_code clv_contexts_alloc_tables(const clv_contexts_env *env, clv_contexts **ret, clv_err *err) {
  clv_contexts *e;
  CLV_TRY(clv_alloc(1, sizeof *e, &e, err));
  e->env = *env;
  e->n_names = 1;
  size_slabs(e);
  *ret = e;
  return alloc_tables(e, err);
}

void clv_contexts_free_tables(clv_contexts *e) {
  clv_slab *const slabs[] = {
      &e->contexts,  &e->values,  &e->calls,   &e->deliveries, &e->contributions,
      &e->gradients, &e->errors,  &e->changes, &e->entries,    &e->backward_queue_slab,
      &e->steps,     &e->weights, &e->copies,  &e->transfers};
  for (size_t i = 0; i < CLV_COUNT(slabs); i++) clv_slab_clear(slabs[i]);
  free(e->context_buckets);
  free(e->value_buckets);
  free(e->names);
  free(e->queues);
  free(e->work);
  free(e);
}
