/* SPDX-License-Identifier: Apache-2.0
 *
 * Dispatch of frames. Each frame is an event for the state of its context (context_table.c); the
 * handler of the frame records further events. DROP and PREPARE wait for the CALLs that were sent
 * before them. Frames that make a step without a position, revert a step, end a context, or read or
 * write state wait until no work is ready or runs, and later frames wait behind them. So the
 * results of these frames do not depend on the time at which work ends.
 */
#include "common/engine/context_int.h"

/* ---- making the engine ----------------------------------------------------------------------- */

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
  for (clv_context *c = e->open_contexts; c; c = c->next) clv_context_clear(e, c);
  for (clv_packet *p; (p = clv_packet_list_take(&e->held_frames)) != NULL;) clv_packet_free(p);
  clv_outbox_free(e);
  clv_copies_free(e);
  clv_contexts_free_tables(e);
}

/* ---- handling END_CONTEXT and ABORT ---------------------------------------------------------- */

/* Handles END_CONTEXT. An unknown context becomes a tombstone as well, because frames of it may
 * still be in flight. */
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
  while (!p->frame.context && e->open_contexts) clv_context_abort(e, e->open_contexts, &p->frame);
  return CLV_OK;
}

/* ---- frames that wait for CALLs -------------------------------------------------------------- */

/* Queues a DROP or PREPARE until the CALLs that were sent before it have arrived. */
static clv_code wait_for_calls(clv_context *c, clv_packet *p, bool *ret_kept, clv_err *err) {
  if (c->n_deferred_frames == MAX_WAITING_FRAMES)
    return clv_fail(err, CLV_EXHAUSTED, "more than %d frames of one context wait for CALLs",
                    MAX_WAITING_FRAMES);
  p->next = NULL;
  if (c->last_deferred_frame)
    c->last_deferred_frame->next = p;
  else
    c->deferred_frames = p;
  c->last_deferred_frame = p;
  c->n_deferred_frames++;
  *ret_kept = true;
  return CLV_OK;
}

static const struct {
  clv_context_handler *handle;
  clv_context_event event;
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

static void count_late_frame(clv_contexts *e) {
  __atomic_store_n(&e->counts.late_frames, e->counts.late_frames + 1, __ATOMIC_RELAXED);
}

/* Handles a frame that arrives after END_CONTEXT, if a retained call needs it; else counts it as
 * late. */
static clv_code handle_frame_after_end(clv_contexts *e, clv_context *c, clv_packet *p,
                                       clv_err *err) {
  if (!clv_context_needs_frame(e, c, &p->frame)) {
    count_late_frame(e);
    return CLV_OK;
  }
  clv_code code = handlers[p->frame.kind].handle(e, c, p, err);
  clv_context_end_if_complete(e, c);
  return code;
}

/* Applies the event of a frame to its context, and does what the cell of the state table says. */
static clv_code handle_event(clv_contexts *e, clv_context *c, clv_packet *p, clv_err *err) {
  clv_frame_kind kind = p->frame.kind;
  switch (clv_context_on_event(e, c, handlers[kind].event)->action) {
    case CELL_RECORD:
      return handlers[kind].handle(e, c, p, err);
    case CELL_GIVE:
      return handle_frame_after_end(e, c, p, err);
    case CELL_REPEAT:
      clv_context_resend_failure(e, c);
      return CLV_OK;
    case CELL_COUNT:
      count_late_frame(e);
      return CLV_OK;
    default:
      return CLV_OK;
  }
}

/* True if the first `n` CALLs of the context have arrived completely. */
static bool has_received_first_calls(const clv_context *c, uint64_t n) {
  return c->calls_seen >= n && (!c->announced_calls || c->announced_calls->number > n);
}

/* Handles the deferred frames whose CALLs have arrived, in order of arrival, so a PREPARE never
 * overtakes a DROP. */
static clv_code handle_deferred_frames(clv_contexts *e, clv_context *c, clv_err *err) {
  while (c->deferred_frames && has_received_first_calls(c, c->deferred_frames->frame.step)) {
    clv_packet *p = c->deferred_frames;
    c->deferred_frames = p->next;
    if (!c->deferred_frames) c->last_deferred_frame = NULL;
    c->n_deferred_frames--;
    clv_code code = handle_event(e, c, p, err);
    clv_packet_free(p);
    CLV_TRY(code);
  }
  return CLV_OK;
}

/* Handles the announcement of a CALL. Ignores errors, because the handler of the complete CALL
 * reports them. */
static void on_announcement(clv_contexts *e, clv_packet *p) {
  clv_context *c;
  clv_err ignored;
  if (clv_context_get_or_create(e, p->frame.context, &c, &ignored) != CLV_OK) return;
  if (clv_context_on_event(e, c, CONTEXT_CALL_ANNOUNCED)->action == CELL_RECORD)
    (void)!clv_on_call_announcement(e, c, p, &ignored);
}

static bool must_wait_for_calls(const clv_context *c, const clv_frame *f) {
  bool counts = f->kind == CLV_DROP || f->kind == CLV_PREPARE;
  return counts && c->state != CONTEXT_ENDED &&
         (c->deferred_frames || !has_received_first_calls(c, f->step));
}

static clv_code on_frame(clv_contexts *e, clv_packet *p, bool *ret_kept, clv_err *err) {
  clv_context *c;
  CLV_TRY(clv_context_get_or_create(e, p->frame.context, &c, err));
  if (must_wait_for_calls(c, &p->frame)) return wait_for_calls(c, p, ret_kept, err);
  CLV_TRY(handle_event(e, c, p, err));
  return p->frame.kind == CLV_CALL ? handle_deferred_frames(e, c, err) : CLV_OK;
}

/* ---- handling STATE_ frames and UNLOAD ------------------------------------------------------- */

/* Turns a STATE_ frame into a result, at once or after the calls and changes before it in the
 * module's queue. */
static clv_code on_state_frame(clv_contexts *e, clv_packet *p, bool *ret_kept, clv_err *err) {
  CLV_TRY(clv_change_defer_packet(e, p, ret_kept, err));
  if (!*ret_kept) clv_outbox_add_state_frame(e, p);
  *ret_kept = true;
  return CLV_OK;
}

/* ---- handling a frame ------------------------------------------------------------------------ */

static bool is_module_frame(clv_frame_kind kind) {
  return kind == CLV_STATE_GET || kind == CLV_STATE_PUT || kind == CLV_UNLOAD ||
         (kind >= CLV_STATE_SAVE && kind <= CLV_STATE_REMOVE);
}

static clv_code handle_frame(clv_contexts *e, clv_packet *p, bool *ret_kept, clv_err *err) {
  clv_frame_kind kind = p->frame.kind;
  if (kind == CLV_END_CONTEXT) return on_end(e, p, err);
  if (kind == CLV_ABORT) return on_abort(e, p, err);
  if (is_module_frame(kind)) return on_state_frame(e, p, ret_kept, err);
  if (!handlers[kind].handle)
    return clv_fail(err, CLV_UNIMPLEMENTED, "a node does not handle %s", clv_frame_kind_name(kind));
  if (!p->is_announcement) return on_frame(e, p, ret_kept, err);
  on_announcement(e, p);
  return CLV_OK;
}

/* True for a frame that must not be handled before all earlier work is done. */
static bool must_wait_for_work(const clv_frame *f) {
  switch (f->kind) {
    case CLV_APPLY:
      return !f->commit.step_position;
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
  *ret_kept =
      e->held_frames.first || e->ready_changes || (e->n_work && must_wait_for_work(&p->frame));
  if (!*ret_kept) return handle_frame(e, p, ret_kept, err);
  clv_packet_list_add(&e->held_frames, p);
  return CLV_OK;
}

bool clv_contexts_handle_held_frame(clv_contexts *e) {
  clv_packet *p = e->held_frames.first;
  clv_err err;
  bool is_kept = false;
  if (!p || e->ready_changes || (e->n_work && must_wait_for_work(&p->frame))) return false;
  clv_packet_list_take(&e->held_frames);
  if (handle_frame(e, p, &is_kept, &err) != CLV_OK)
    clv_outbox_refuse(e, p, &err);
  else if (!is_kept)
    clv_packet_free(p);
  return true;
}
