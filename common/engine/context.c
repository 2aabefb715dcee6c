/* SPDX-License-Identifier: Apache-2.0
 *
 * Contexts, values and calls as records: making, finding, freeing, and the tombstones of contexts
 * that have ended.
 */
#include "common/engine/context_int.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CONTEXT_BUCKETS = 1024, VALUE_BUCKETS = 8192 };

clv_code clv_slab_take(clv_contexts *e, clv_slab *s, void *ret_pp, clv_err *err) {
  return clv_slab_take_from(e->env.pool, s, ret_pp, err);
}

/* ---- errors and names ------------------------------------------------------------------------ */

/* What stands for a reason when there is no memory left for one. Never counted, never freed. */
static clv_shared_err no_memory = {
    .refs = 1,
    .code = CLV_EXHAUSTED,
    .text =
        "the quota of bytes is used up, and none is left to say of what "
        "(limits.session_bytes, allow[].bytes or memory_limit in a "
        "worker's worker.yaml)"};

const clv_shared_err clv_shared_err_ended = {
    .refs = 1, .code = CLV_CANCELLED, .text = "its context ended before the value was there"};

clv_shared_err *clv_shared_err_of(clv_contexts *e, const clv_err *why, const char *hop) {
  clv_shared_err *c;
  clv_err ignored;
  if (clv_slab_take(e, &e->errors, &c, &ignored) != CLV_OK) return &no_memory;
  clv_frame text; /* cut and cleaned as a peer would have it */
  clv_frame_set_failure(&text, why->code, why->text, hop);
  c->refs = 1;
  c->code = why->code;
  memcpy(c->text, text.failure.text, sizeof c->text);
  memcpy(c->hop, text.failure.hop, sizeof c->hop);
  memcpy(c->element, why->element, sizeof c->element);
  return c;
}

clv_shared_err *clv_shared_err_at(clv_contexts *e, const clv_err *why, uint32_t module) {
  char hop[CLV_WIRE_NAME + 1];
  snprintf(hop, sizeof hop, "module %u%s%s", module, why->place[0] ? ", " : "", why->place);
  return clv_shared_err_of(e, why, hop);
}

void clv_shared_err_put(const clv_shared_err *why, clv_frame *f) {
  clv_frame_set_failure(f, why->code, why->text, why->hop);
  memcpy(f->failure.element, why->element, sizeof f->failure.element);
}

clv_shared_err *clv_shared_err_ref(clv_shared_err *c) {
  if (c != &no_memory) c->refs++;
  return c;
}

void clv_shared_err_unref(clv_contexts *e, clv_shared_err *c) {
  if (c && c != &no_memory && --c->refs == 0) clv_slab_give(&e->errors, c);
}

clv_code clv_name_index(clv_contexts *e, const char *name, uint32_t *ret, clv_err *err) {
  uint32_t i = 0;
  while (i < e->n_names && strcmp(e->names[i], name) != 0) i++;
  if (i == MAX_NAMES)
    return clv_fail(err, CLV_EXHAUSTED, "more than %d workers are named in this session",
                    MAX_NAMES - 1);
  if (i == e->n_names) snprintf(e->names[e->n_names++], sizeof *e->names, "%s", name);
  *ret = i;
  return CLV_OK;
}

/* ---- finding --------------------------------------------------------------------------------- */

static uint32_t bucket_of(uint64_t id, uint32_t n) {
  return (uint32_t)((id * 0x9e3779b97f4a7c15u) >> 40) % n;
}

static clv_context *find_context(const clv_contexts *e, uint64_t id) {
  clv_context *c = e->context_buckets[bucket_of(id, CONTEXT_BUCKETS)];
  while (c && c->id != id) c = c->next_in_bucket;
  return c;
}

clv_value *clv_context_value(clv_contexts *e, const clv_context *c, uint64_t id) {
  clv_value *v = e->value_buckets[bucket_of(id, VALUE_BUCKETS)];
  while (v && (v->id != id || v->ctx != c)) v = v->next_in_bucket;
  return v;
}

clv_code clv_context_value_made(clv_contexts *e, clv_context *c, uint64_t id, clv_value **ret,
                                clv_err *err) {
  *ret = clv_context_value(e, c, id);
  if (*ret) return CLV_OK;
  clv_value *v;
  CLV_TRY(clv_slab_take(e, &e->values, &v, err));
  clv_value **bucket = &e->value_buckets[bucket_of(id, VALUE_BUCKETS)];
  v->id = id;
  v->ctx = c;
  v->next_in_bucket = *bucket;
  *bucket = v;
  v->next = c->values;
  v->at = &c->values;
  if (v->next) v->next->at = &v->next;
  c->values = v;
  __atomic_store_n(&e->counts.values, e->values.used, __ATOMIC_RELAXED);
  *ret = v;
  return CLV_OK;
}

/* ---- freeing --------------------------------------------------------------------------------- */

void clv_call_release(clv_contexts *e, clv_context_call *c) {
  if (!c) return;
  for (uint32_t i = 0; i < c->n_in; i++) c->in[i] = clv_tensor_unref(c->in[i]);
  if (c->plan) clv_module_call_put(c->plan, c->state);
  c->state = NULL;
  clv_old_weights_unref(e, c->weights);
  c->weights = NULL;
}

/* Who leads and who follows ends with the same context. */
static void leave_leader(clv_context_call *c) {
  for (clv_context_call *f = c->followers; f; f = f->next_follower) f->leader = NULL;
  if (!c->leader) return;
  clv_context_call **at = &c->leader->followers;
  while (*at != c) at = &(*at)->next_follower;
  *at = c->next_follower;
}

void clv_call_has_come(clv_context_call *c) {
  clv_context_call **at = &c->out->ctx->coming;
  if (!c->on_its_way) return;
  while (*at != c) at = &(*at)->next_coming;
  *at = c->next_coming;
  c->on_its_way = false;
}

void clv_call_has_run(clv_contexts *e, clv_context_call *c) {
  if (c->charged) clv_account_discharge(clv_pool_account(e->env.pool), CLV_QUOTA_CALLS, 1);
  c->charged = false;
}

static void call_free(clv_contexts *e, clv_context_call *c) {
  clv_call_has_come(c);
  clv_call_has_run(e, c);
  leave_leader(c);
  if (c->n_missing)
    __atomic_store_n(&e->counts.calls_waiting, e->counts.calls_waiting - 1, __ATOMIC_RELAXED);
  clv_queue_leave(e, c);
  clv_order_leave_call(c);
  clv_call_release(e, c);
  clv_shared_err_unref(e, c->failed);
  c->out->ctx->n_calls--;
  clv_slab_give(&e->calls, c);
}

void clv_value_free(clv_contexts *e, clv_value *v) {
  if (!v) return;
  clv_value **in_bucket = &e->value_buckets[bucket_of(v->id, VALUE_BUCKETS)];
  while (*in_bucket != v) in_bucket = &(*in_bucket)->next_in_bucket;
  *in_bucket = v->next_in_bucket;
  *v->at = v->next;
  if (v->next) v->next->at = v->at;
  for (clv_delivery *d = v->deliveries, *next; d; d = next) {
    next = d->next;
    if (d->keep) e->env.kept(e->env.user, d->keep, NULL, &clv_shared_err_ended);
    clv_slab_give(&e->deliveries, d);
  }
  if (v->maker) call_free(e, v->maker);
  clv_value_forget_gradients(e, v, UINT32_MAX);
  clv_tensor_unref(v->tensor);
  clv_shared_err_unref(e, v->failed);
  clv_slab_give(&e->values, v);
  __atomic_store_n(&e->counts.values, e->values.used, __ATOMIC_RELAXED);
}

void clv_strands_free(clv_contexts *e, clv_context *c) {
  if (!c) return;
  for (clv_strand *s = c->strands, *next; s; s = next) {
    next = s->next;
    for (clv_context_call *k = s->first; k; k = k->next_needed) k->needed = false;
    clv_slab_give(&e->strands, s);
  }
  c->strands = NULL;
  c->n_needed = 0;
}

static void free_gradients(clv_contexts *e, clv_context *c) {
  for (clv_module_gradient *g = c->gradients, *next; g; g = next) {
    next = g->next;
    clv_tensor_unref(g->block);
    clv_old_weights_unref(e, g->previous);
    clv_slab_give(&e->gradients, g);
  }
  c->gradients = NULL;
}

/* Everything a context holds; the record itself stays. */
static void empty_context(clv_contexts *e, clv_context *c) {
  clv_strands_free(e, c);
  c->active = c->collecting = false;
  while (c->values) clv_value_free(e, c->values);
  clv_order_free(e, c);
  c->trace = clv_tensor_unref(c->trace);
  c->n_trace = 0;
  free_gradients(e, c);
  clv_shared_err_unref(e, c->failed);
  c->failed = NULL;
  for (clv_packet *p = c->waiting, *next; p; p = next) {
    next = p->next;
    clv_packet_free(p);
  }
  c->waiting = c->waiting_last = NULL;
  c->n_waiting = 0;
}

static void unlink_context(clv_contexts *e, clv_context *c) {
  clv_context **in_bucket = &e->context_buckets[bucket_of(c->id, CONTEXT_BUCKETS)];
  while (*in_bucket != c) in_bucket = &(*in_bucket)->next_in_bucket;
  *in_bucket = c->next_in_bucket;
}

/* ---- opening and ending ---------------------------------------------------------------------- */

clv_code clv_context_open(clv_contexts *e, uint64_t id, clv_context **ret, clv_err *err) {
  clv_context *c = find_context(e, id);
  if (c) {
    *ret = c->ended ? NULL : c;
    return CLV_OK;
  }
  if (e->n_open == MAX_CONTEXTS)
    return clv_fail(err, CLV_EXHAUSTED, "more than %d contexts are open in this session",
                    MAX_CONTEXTS);
  CLV_TRY(clv_slab_take(e, &e->contexts, &c, err));
  clv_context **bucket = &e->context_buckets[bucket_of(id, CONTEXT_BUCKETS)];
  c->id = id;
  c->next_in_bucket = *bucket;
  *bucket = c;
  c->next = e->open;
  c->at = &e->open;
  if (c->next) c->next->at = &c->next;
  e->open = c;
  __atomic_store_n(&e->counts.contexts, ++e->n_open, __ATOMIC_RELAXED);
  *ret = c;
  return CLV_OK;
}

static void bury(clv_contexts *e, clv_context *c) {
  c->ended = true;
  c->next = NULL;
  if (e->tomb_last)
    e->tomb_last->next = c;
  else
    e->tomb_first = c;
  e->tomb_last = c;
  if (++e->n_tombs <= MAX_TOMBSTONES) return;
  clv_context *oldest = e->tomb_first;
  e->tomb_first = oldest->next;
  e->n_tombs--;
  unlink_context(e, oldest);
  clv_slab_give(&e->contexts, oldest);
}

static void end_context(clv_contexts *e, uint64_t id) {
  clv_err ignored;
  clv_context *c;
  /* One that never came here leaves a tombstone as well: its frames may still be on their way. */
  if (clv_context_open(e, id, &c, &ignored) != CLV_OK || !c) return;
  clv_context_forget_buffers(e, id, CLV_MODULE_ALL);
  empty_context(e, c);
  *c->at = c->next;
  if (c->next) c->next->at = c->at;
  __atomic_store_n(&e->counts.contexts, --e->n_open, __ATOMIC_RELAXED);
  bury(e, c);
}

clv_code clv_contexts_new(const clv_contexts_env *env, clv_contexts **ret, clv_err *err) {
  clv_contexts *e;
  CLV_TRY(clv_alloc(1, sizeof *e, &e, err));
  e->env = *env;
  e->contexts = clv_slab_of(sizeof(clv_context), MAX_CONTEXTS + MAX_TOMBSTONES + 1, "contexts");
  e->values = clv_slab_of(sizeof(clv_value), MAX_CONTEXT_ITEMS, "values");
  e->calls = clv_slab_of(sizeof(clv_context_call), MAX_CONTEXT_ITEMS, "calls");
  e->deliveries = clv_slab_of(sizeof(clv_delivery), MAX_CONTEXT_ITEMS, "waiting deliveries");
  e->contributions =
      clv_slab_of(sizeof(clv_contribution), MAX_CONTEXT_ITEMS, "gradients of values");
  e->gradients =
      clv_slab_of(sizeof(clv_module_gradient), MAX_CONTEXT_ITEMS, "gradients of modules");
  e->errors = clv_slab_of(sizeof(clv_shared_err), MAX_CONTEXT_ITEMS, "errors");
  e->errors.block = 4; /* room to say what used the quota up, when little else is left */
  e->changes = clv_slab_of(sizeof(clv_change), MAX_CHANGES, "waiting changes of parameters");
  e->entries =
      clv_slab_of(sizeof(clv_queue_entry), MAX_CONTEXT_ITEMS, "turns of changes of parameters");
  e->strands = clv_slab_of(sizeof(clv_strand), MAX_CONTEXT_ITEMS, "modules in backward passes");
  e->steps =
      clv_slab_of(sizeof(clv_planned_step), MAX_CONTEXT_ITEMS, "steps that wait for their turn");
  e->weights = clv_slab_of(sizeof(clv_old_weights), MAX_CONTEXT_ITEMS, "copies of weights");
  e->n_names = 1;
  clv_code code = clv_alloc(CONTEXT_BUCKETS, sizeof *e->context_buckets, &e->context_buckets, err);
  if (code == CLV_OK)
    code = clv_alloc(VALUE_BUCKETS, sizeof *e->value_buckets, &e->value_buckets, err);
  if (code == CLV_OK) code = clv_alloc(MAX_NAMES, sizeof *e->names, &e->names, err);
  if (code == CLV_OK) code = clv_alloc(CLV_MODULE_ALL, sizeof *e->queues, &e->queues, err);
  if (code != CLV_OK) {
    clv_contexts_free(e);
    return code;
  }
  *ret = e;
  return CLV_OK;
}

void clv_contexts_free(clv_contexts *e) {
  if (!e) return;
  while (e->waiting_changes) clv_change_free(e, e->waiting_changes);
  for (clv_context *c = e->open; c; c = c->next) empty_context(e, c);
  clv_slab *const slabs[] = {&e->contexts,      &e->values,    &e->calls,  &e->deliveries,
                             &e->contributions, &e->gradients, &e->errors, &e->changes,
                             &e->entries,       &e->strands,   &e->steps,  &e->weights};
  for (size_t i = 0; i < CLV_COUNT(slabs); i++) clv_slab_done(slabs[i]);
  free(e->context_buckets);
  free(e->value_buckets);
  free(e->names);
  free(e->queues);
  free(e);
}

/* ---- sending --------------------------------------------------------------------------------- */

clv_code clv_context_packet(clv_contexts *e, clv_frame_kind kind, const clv_context *c,
                            uint64_t message, uint32_t name, clv_packet **ret, clv_err *err) {
  CLV_TRY(clv_packet_new(e->env.pool, kind, ret, err));
  (*ret)->frame.context = c->id;
  (*ret)->frame.message = message;
  memcpy((*ret)->frame.to, e->names[name], sizeof(*ret)->frame.to);
  return CLV_OK;
}

static void send_abort(clv_contexts *e, const clv_context *c) {
  clv_packet *p;
  clv_err ignored;
  if (clv_context_packet(e, CLV_ABORT, c, ++*e->env.next_message, 0, &p, &ignored) != CLV_OK)
    return;
  clv_shared_err_put(c->failed, &p->frame);
  e->env.emit(e->env.user, p);
}

void clv_context_fail(clv_contexts *e, clv_context *c, clv_shared_err *why) {
  if (c->failed)
    clv_shared_err_unref(e, why);
  else
    c->failed = why;
  clv_strands_free(e, c);
  c->active = c->collecting = false;
  send_abort(e, c);
}

void clv_context_fail_at(clv_contexts *e, clv_context *c, const clv_err *why, uint32_t module) {
  clv_context_fail(e, c, clv_shared_err_at(e, why, module));
}

/* ---- frames ---------------------------------------------------------------------------------- */

static clv_code on_end(clv_contexts *e, clv_packet *p, clv_err *err) {
  CLV_AUTO(clv_tensor_unrefp) clv_tensor *trace = NULL;
  clv_packet *reply;
  const clv_context *ctx = clv_context_find(e, p->frame.context);
  if (p->frame.has_commit) clv_context_last_step(e, &p->frame);
  if (ctx) trace = clv_context_trace(ctx);
  end_context(e, p->frame.context);
  CLV_TRY(clv_packet_new(e->env.pool, CLV_ENDED, &reply, err));
  if (trace) clv_packet_add(reply, trace);
  reply->frame.context = p->frame.context;
  reply->frame.message = ++*e->env.next_message;
  reply->frame.reply_to = p->frame.message;
  e->env.emit(e->env.user, reply);
  return clv_contexts_run(e, err); /* what stood behind its calls */
}

static void abort_one(clv_contexts *e, uint64_t id) {
  clv_context_restore_buffers(e, id, CLV_MODULE_ALL);
  end_context(e, id);
}

static clv_code on_abort(clv_contexts *e, clv_packet *p, clv_err *err) {
  if (p->frame.context) abort_one(e, p->frame.context);
  while (!p->frame.context && e->open) abort_one(e, e->open->id);
  return clv_contexts_run(e, err);
}

/* DROP and PREPARE wait for the CALLs that were sent before them. */
static clv_code wait_for_calls(clv_context *c, clv_packet *p, bool *ret_kept, clv_err *err) {
  if (c->n_waiting == MAX_WAITING_FRAMES)
    return clv_fail(err, CLV_EXHAUSTED, "more than %d frames of one context wait for CALLs",
                    MAX_WAITING_FRAMES);
  p->next = NULL;
  if (c->waiting_last)
    c->waiting_last->next = p;
  else
    c->waiting = p;
  c->waiting_last = p;
  c->n_waiting++;
  *ret_kept = true;
  return CLV_OK;
}

static clv_context_handler *const handlers[CLV_FRAME_KINDS] = {
    [CLV_CALL] = clv_on_call,   [CLV_DELIVER] = clv_on_deliver, [CLV_VALUE] = clv_on_value,
    [CLV_DROP] = clv_on_drop,   [CLV_PREPARE] = clv_on_prepare, [CLV_GRADIENT] = clv_on_gradient,
    [CLV_APPLY] = clv_on_apply, [CLV_REVERT] = clv_on_revert,
};

/* Are the first `n` CALLs of the context here, tensors and all? */
static bool have_calls(const clv_context *c, uint64_t n) {
  return c->calls_seen >= n && (!c->coming || c->coming->number > n);
}

/* In the order in which they came: a PREPARE behind a DROP stays behind it. */
static clv_code release_waiting(clv_contexts *e, clv_context *c, clv_err *err) {
  while (c->waiting && have_calls(c, c->waiting->frame.step)) {
    clv_packet *p = c->waiting;
    c->waiting = p->next;
    if (!c->waiting) c->waiting_last = NULL;
    c->n_waiting--;
    clv_code code = handlers[p->frame.kind](e, c, p, err);
    clv_packet_free(p);
    CLV_TRY(code);
  }
  return CLV_OK;
}

clv_code clv_contexts_packet(clv_contexts *e, clv_packet *p, bool *ret_kept, clv_err *err) {
  clv_frame_kind kind = p->frame.kind;
  clv_context *c;
  *ret_kept = false;
  if (kind == CLV_END_CONTEXT) return on_end(e, p, err);
  if (kind == CLV_ABORT) return on_abort(e, p, err);
  if (!handlers[kind])
    return clv_fail(err, CLV_UNIMPLEMENTED, "%s has no place here", clv_frame_kind_name(kind));
  clv_code code = clv_context_open(e, p->frame.context, &c, err);
  if (p->head) { /* what is wrong is said once, when the CALL is whole */
    if (code == CLV_OK && c) (void)!clv_on_call_head(e, c, p, err);
    return CLV_OK;
  }
  CLV_TRY(code);
  if (!c) {
    __atomic_store_n(&e->counts.late_frames, e->counts.late_frames + 1, __ATOMIC_RELAXED);
    return CLV_OK;
  }
  if ((kind == CLV_DROP || kind == CLV_PREPARE) && (c->waiting || !have_calls(c, p->frame.step)))
    return wait_for_calls(c, p, ret_kept, err);
  CLV_TRY(handlers[kind](e, c, p, err));
  return kind == CLV_CALL ? release_waiting(e, c, err) : CLV_OK;
}

clv_context *clv_context_find(const clv_contexts *e, uint64_t id) {
  clv_context *c = find_context(e, id);
  return c && !c->ended ? c : NULL;
}
