/* SPDX-License-Identifier: Apache-2.0
 *
 * Which frames can wait without waking the compute thread: a CALL whose inputs are missing, a frame
 * for a CALL that has not arrived, a PREPARE whose gradients have not arrived, DROP, SPARE, and an
 * END_CONTEXT for which no peer waits, if the step that it makes is shorter than a wake-up. In
 * doubt a frame wakes the thread, which costs only the wake-up.
 */
#include "common/engine/wake_int.h"

enum {
  /* a packet with more bytes wakes the thread, because it holds receive credit of its link until it
   * is handled */
  LARGE_BYTES = 64 << 10,
  /* bytes of gradients up to which a step counts as short: it then takes 10 us, but a wake-up 30 to
   * 50 us */
  SMALL_STEP_BYTES = 64 << 10,
};

/* For each frame kind, the kinds with which it may together make work ready, although neither frame
 * does so alone. */
static const uint64_t kinds_ready_together[CLV_FRAME_KINDS] = {
    [CLV_CALL] = CLV_KIND_BIT(CLV_VALUE),
    [CLV_DELIVER] = CLV_KIND_BIT(CLV_VALUE),
    [CLV_VALUE] = CLV_KIND_BIT(CLV_CALL) | CLV_KIND_BIT(CLV_DELIVER),
    [CLV_PREPARE] = CLV_KIND_BIT(CLV_GRADIENT),
    [CLV_GRADIENT] = CLV_KIND_BIT(CLV_PREPARE),
};

_Static_assert((int)CLV_FRAME_KINDS <= 64, "a bit for each kind");

typedef bool wait_predicate(clv_contexts *e, const clv_context *c, const clv_packet *p);

/* True for a CALL that lacks an input, unless a DROP or PREPARE of its context waits for CALLs. */
static bool can_call_frame_wait(clv_contexts *e, const clv_context *c, const clv_packet *p) {
  const clv_frame *f = &p->frame;
  bool is_input_missing = p->is_announcement;
  for (uint32_t i = 0; i < f->call.n_args && !p->is_announcement; i++) {
    const clv_value *v = c ? clv_context_find_value(e, c, f->call.args[i].value_id) : NULL;
    if (v && v->failure) return false;
    is_input_missing |= !f->call.args[i].is_inline && !(v && v->tensor);
  }
  return is_input_missing && !(c && c->deferred_frames);
}

static bool can_deliver_frame_wait(clv_contexts *e, const clv_context *c, const clv_packet *p) {
  const clv_value *v = c ? clv_context_find_value(e, c, p->frame.message_id) : NULL;
  return !v || !(v->tensor || v->failure);
}

static bool can_value_frame_wait(clv_contexts *e, const clv_context *c, const clv_packet *p) {
  const clv_value *v = c ? clv_context_find_value(e, c, p->frame.message_id) : NULL;
  return !v || (!v->uses && !v->deliveries);
}

static bool can_drop_frame_wait(clv_contexts *e, const clv_context *c, const clv_packet *p) {
  (void)e, (void)c, (void)p;
  return true;
}

/* True if no backward of the calls in a PREPARE can start yet: none has failed or received a
 * gradient, and each that has run needs a gradient. */
static bool can_prepare_frame_wait(clv_contexts *e, const clv_context *c, const clv_packet *p) {
  const clv_frame *f = &p->frame;
  for (uint32_t i = 0; i < f->backward.n_needed_calls; i++) {
    const clv_needed_call *n = &f->backward.needed_calls[i];
    const clv_value *v = c ? clv_context_find_value(e, c, n->call_id) : NULL;
    bool has_begun = v && v->producer && v->producer->call_state > CALL_READY;
    if (v && (v->received_gradients || v->failure)) return false;
    if (has_begun && !n->n_contributions) return false;
  }
  return f->backward.n_needed_calls && !(c && c->failure);
}

/* True if the call that a GRADIENT is for has not arrived, or is in no backward pass. */
static bool can_gradient_frame_wait(clv_contexts *e, const clv_context *c, const clv_packet *p) {
  const clv_value *v = c ? clv_context_find_value(e, c, p->frame.message_id) : NULL;
  return !v || !v->producer || !v->producer->is_in_pass;
}

/* True if the optimiser steps with the gradients of `module` (CLV_MODULE_ALL: of all modules)
 * cannot be reverted and are short, so that no peer waits for them. */
static bool can_steps_wait(const clv_context *c, const clv_frame *f, uint32_t module) {
  size_t bytes = 0;
  if (f->commit.step_position) return false;
  for (const clv_module_gradient *g = c->gradients; g; g = g->next) {
    if (module != CLV_MODULE_ALL && module != g->module) continue;
    if (!g->mod->o.has_no_revert) return false;
    bytes += g->block->bytes;
  }
  return bytes <= SMALL_STEP_BYTES;
}

/* True for an APPLY that makes steps which can wait. An APPLY without a step wakes the thread,
 * because the master waits for its answer. */
static bool can_apply_frame_wait(clv_contexts *e, const clv_context *c, const clv_packet *p) {
  (void)e;
  return c && c->gradients && can_steps_wait(c, &p->frame, p->frame.module);
}

/* True if an END_CONTEXT can wait: its step can wait, and the context has no trace, so the master
 * does not wait for the answer. False while any call waits, because the end of the context may let
 * that call run. */
static bool can_end_frame_wait(clv_contexts *e, const clv_context *c, const clv_packet *p) {
  if (e->counts.calls_waiting) return false;
  return c && p->frame.has_commit && !c->trace && can_steps_wait(c, &p->frame, CLV_MODULE_ALL);
}

static wait_predicate *const wait_predicates[CLV_FRAME_KINDS] = {
    [CLV_CALL] = can_call_frame_wait,       [CLV_DELIVER] = can_deliver_frame_wait,
    [CLV_VALUE] = can_value_frame_wait,     [CLV_DROP] = can_drop_frame_wait,
    [CLV_PREPARE] = can_prepare_frame_wait, [CLV_GRADIENT] = can_gradient_frame_wait,
    [CLV_APPLY] = can_apply_frame_wait,     [CLV_END_CONTEXT] = can_end_frame_wait,
    [CLV_SPARE] = can_drop_frame_wait,
};

static size_t get_tensor_bytes(const clv_packet *p) {
  size_t bytes = 0;
  for (uint32_t i = 0; i < p->frame.n_tensors; i++)
    if (p->tensor[i]) bytes += p->tensor[i]->bytes;
  return bytes;
}

bool clv_contexts_packet_can_wait(clv_contexts *e, uint64_t queued, const clv_packet *p) {
  const clv_frame *f = &p->frame;
  if (!wait_predicates[f->kind] || p->is_over_quota || f->has_failure ||
      (queued & kinds_ready_together[f->kind]))
    return false;
  if (get_tensor_bytes(p) > LARGE_BYTES) return false;
  return wait_predicates[f->kind](e, clv_context_find(e, f->context), p);
}
