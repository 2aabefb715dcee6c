/* SPDX-License-Identifier: Apache-2.0
 *
 * Frames come in. A frame meets its context's state (context_table.c); its handler records facts.
 * DROP and PREPARE wait for the CALLs that were sent before them. A frame that steps, takes back,
 * ends or reads waits until no work is ready or runs, and all frames behind it do: what it finds
 * does not depend on when work ends.
 */
#include "common/engine/context_int.h"

/* ---- the engine ------------------------------------------------------------------------------ */

clv_code clv_contexts_new(const clv_contexts_env *env, clv_contexts **ret, clv_err *err) {
  clv_contexts *e = NULL;
  clv_code code = clv_contexts_alloc_tables(env, &e, err);
  if (code == CLV_OK)
    *ret = e;
  else
    clv_contexts_free(e);
  return code;
}

void clv_contexts_free(clv_contexts *e) {
  if (!e) return;
  while (e->waiting_changes) clv_change_free(e, e->waiting_changes);
  for (clv_context *c = e->open; c; c = c->next) clv_context_clear(e, c);
  for (clv_packet *p; (p = clv_packet_list_take(&e->held)) != NULL;) clv_packet_free(p);
  clv_outbox_free(e);
  clv_copies_done(e);
  clv_contexts_free_tables(e);
}

/* ---- ends ------------------------------------------------------------------------------------ */

/* One that never came here leaves a tombstone as well: its frames may still be on their way. */
static clv_code on_end(clv_contexts *e, clv_packet *p, clv_err *err) {
  clv_context *c;
  clv_err ignored;
  if (clv_context_get_or_create(e, p->frame.context, &c, &ignored) == CLV_OK)
    return clv_context_end(e, c, &p->frame, err);
  return clv_context_send_ended(e, &p->frame, 0, NULL, err);
}

static clv_code on_abort(clv_contexts *e, clv_packet *p, clv_err *err) {
  clv_context *c;
  clv_err ignored;
  (void)err;
  if (p->frame.context && clv_context_get_or_create(e, p->frame.context, &c, &ignored) == CLV_OK)
    clv_context_abort(e, c, &p->frame);
  while (!p->frame.context && e->open) clv_context_abort(e, e->open, &p->frame);
  return CLV_OK;
}

/* ---- frames that wait for CALLs -------------------------------------------------------------- */

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

static const struct {
  clv_context_handler *handle;
  clv_context_event fact;
} handlers[CLV_FRAME_KINDS] = {
    [CLV_CALL] = {clv_on_call, CONTEXT_CALL},
    [CLV_DELIVER] = {clv_on_deliver, CONTEXT_DELIVER},
    [CLV_VALUE] = {clv_on_value, CONTEXT_VALUE},
    [CLV_DROP] = {clv_on_drop, CONTEXT_DROP},
    [CLV_SPARE] = {clv_on_spare, CONTEXT_SPARE},
    [CLV_PREPARE] = {clv_on_prepare, CONTEXT_PREPARE},
    [CLV_GRADIENT] = {clv_on_gradient, CONTEXT_GRADIENT},
    [CLV_APPLY] = {clv_on_apply, CONTEXT_APPLY},
    [CLV_REVERT] = {clv_on_revert, CONTEXT_REVERT},
};

static void count_late(clv_contexts *e) {
  __atomic_store_n(&e->counts.late_frames, e->counts.late_frames + 1, __ATOMIC_RELAXED);
}

/* What an end has spared may wait for it. */
static clv_code after_end(clv_contexts *e, clv_context *c, clv_packet *p, clv_err *err) {
  if (!clv_context_needs_frame(e, c, &p->frame)) {
    count_late(e);
    return CLV_OK;
  }
  clv_code code = handlers[p->frame.kind].handle(e, c, p, err);
  clv_context_end_if_complete(e, c);
  return code;
}

/* A fact meets its context. */
static clv_code record(clv_contexts *e, clv_context *c, clv_packet *p, clv_err *err) {
  clv_frame_kind kind = p->frame.kind;
  switch (clv_context_on_event(e, c, handlers[kind].fact)->action) {
    case CELL_RECORD:
      return handlers[kind].handle(e, c, p, err);
    case CELL_GIVE:
      return after_end(e, c, p, err);
    case CELL_REPEAT:
      clv_context_resend_failure(e, c);
      return CLV_OK;
    case CELL_COUNT:
      count_late(e);
      return CLV_OK;
    default:
      return CLV_OK;
  }
}

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
    clv_code code = record(e, c, p, err);
    clv_packet_free(p);
    CLV_TRY(code);
  }
  return CLV_OK;
}

/* What is wrong with a CALL is said once, when it is whole. */
static void on_head(clv_contexts *e, clv_packet *p) {
  clv_context *c;
  clv_err ignored;
  if (clv_context_get_or_create(e, p->frame.context, &c, &ignored) != CLV_OK) return;
  if (clv_context_on_event(e, c, CONTEXT_CALL_ANNOUNCED)->action == CELL_RECORD)
    (void)!clv_on_call_announcement(e, c, p, &ignored);
}

static bool have_to_wait(const clv_context *c, const clv_frame *f) {
  bool counts = f->kind == CLV_DROP || f->kind == CLV_PREPARE;
  return counts && c->state != CONTEXT_ENDED && (c->waiting || !have_calls(c, f->step));
}

static clv_code on_frame(clv_contexts *e, clv_packet *p, bool *ret_kept, clv_err *err) {
  clv_context *c;
  CLV_TRY(clv_context_get_or_create(e, p->frame.context, &c, err));
  if (have_to_wait(c, &p->frame)) return wait_for_calls(c, p, ret_kept, err);
  CLV_TRY(record(e, c, p, err));
  return p->frame.kind == CLV_CALL ? release_waiting(e, c, err) : CLV_OK;
}

/* ---- STATE_ frames, UNLOAD ------------------------------------------------------------------- */

/* A result at once, or behind what the module's queue has. */
static clv_code on_state(clv_contexts *e, clv_packet *p, bool *ret_kept, clv_err *err) {
  CLV_TRY(clv_change_defer_packet(e, p, ret_kept, err));
  if (!*ret_kept) clv_outbox_add_state_frame(e, p);
  *ret_kept = true;
  return CLV_OK;
}

/* ---- in -------------------------------------------------------------------------------------- */

static bool is_of_module(clv_frame_kind kind) {
  return kind == CLV_STATE_GET || kind == CLV_STATE_PUT || kind == CLV_UNLOAD ||
         (kind >= CLV_STATE_SAVE && kind <= CLV_STATE_REMOVE);
}

static clv_code take(clv_contexts *e, clv_packet *p, bool *ret_kept, clv_err *err) {
  clv_frame_kind kind = p->frame.kind;
  if (kind == CLV_END_CONTEXT) return on_end(e, p, err);
  if (kind == CLV_ABORT) return on_abort(e, p, err);
  if (is_of_module(kind)) return on_state(e, p, ret_kept, err);
  if (!handlers[kind].handle)
    return clv_fail(err, CLV_UNIMPLEMENTED, "%s has no place here", clv_frame_kind_name(kind));
  if (!p->is_announcement) return on_frame(e, p, ret_kept, err);
  on_head(e, p);
  return CLV_OK;
}

/* Whether it has to find everything done that came before it. */
static bool waits_for_work(const clv_frame *f) {
  switch (f->kind) {
    case CLV_APPLY:
      return !f->commit.position;
    case CLV_REVERT:
    case CLV_END_CONTEXT:
    case CLV_ABORT:
    case CLV_STATE_GET:
    case CLV_STATE_PUT:
    case CLV_UNLOAD:
    case CLV_STATE_SAVE:
    case CLV_STATE_LOAD:
    case CLV_STATE_REMOVE:
      return true;
    default:
      return false;
  }
}

clv_code clv_contexts_handle_packet(clv_contexts *e, clv_packet *p, bool *ret_kept, clv_err *err) {
  *ret_kept = e->held.first || e->due || (e->n_work && waits_for_work(&p->frame));
  if (!*ret_kept) return take(e, p, ret_kept, err);
  clv_packet_list_add(&e->held, p);
  return CLV_OK;
}

bool clv_contexts_handle_held_frame(clv_contexts *e) {
  clv_packet *p = e->held.first;
  clv_err err;
  bool kept = false;
  if (!p || e->due || (e->n_work && waits_for_work(&p->frame))) return false;
  clv_packet_list_take(&e->held);
  if (take(e, p, &kept, &err) != CLV_OK)
    clv_outbox_refuse(e, p, &err);
  else if (!kept)
    clv_packet_free(p);
  return true;
}
