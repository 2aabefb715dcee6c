/* SPDX-License-Identifier: Apache-2.0
 *
 * Which frames can wait without waking the compute thread: a CALL whose inputs are missing, a
 * frame for a CALL that has not arrived, a PREPARE before its gradients, DROP, and the end of a
 * context whose step is shorter than a wake-up and that no peer waits for. In doubt a frame wakes
 * the thread, which costs a wake-up and nothing else.
 */
#include "common/engine/wake_int.h"

enum {
  LARGE_BYTES = 64 << 10, /* tensors hold receive credit of their link until handled */
  /* bytes of gradients: such a step takes 10 us, a wake-up 30 to 50 us */
  SMALL_STEP_BYTES = 64 << 10,
};

/* For each kind, the queued kinds with which it may make work ready that neither makes ready
 * alone. */
static const uint64_t meets[CLV_FRAME_KINDS] = {
    [CLV_CALL] = CLV_KIND_BIT(CLV_VALUE),
    [CLV_DELIVER] = CLV_KIND_BIT(CLV_VALUE),
    [CLV_VALUE] = CLV_KIND_BIT(CLV_CALL) | CLV_KIND_BIT(CLV_DELIVER),
    [CLV_PREPARE] = CLV_KIND_BIT(CLV_GRADIENT),
    [CLV_GRADIENT] = CLV_KIND_BIT(CLV_PREPARE),
};

_Static_assert((int)CLV_FRAME_KINDS <= 64, "a bit for each kind");

typedef bool waits(clv_contexts *e, const clv_context *c, const clv_packet *p);

/* True for a CALL that waits for an input and that no other call waits for. */
static bool call_waits(clv_contexts *e, const clv_context *c, const clv_packet *p) {
  const clv_frame *f = &p->frame;
  bool missing = p->is_announcement;
  for (uint32_t i = 0; i < f->call.n_args && !p->is_announcement; i++) {
    const clv_value *v = c ? clv_context_find_value(e, c, f->call.args[i].value) : NULL;
    if (v && v->failed) return false;
    missing |= !f->call.args[i].here && !(v && v->tensor);
  }
  return missing && !(c && c->deferred_frames);
}

static bool deliver_waits(clv_contexts *e, const clv_context *c, const clv_packet *p) {
  const clv_value *v = c ? clv_context_find_value(e, c, p->frame.message) : NULL;
  return !v || !(v->tensor || v->failed);
}

static bool value_waits(clv_contexts *e, const clv_context *c, const clv_packet *p) {
  const clv_value *v = c ? clv_context_find_value(e, c, p->frame.message) : NULL;
  return !v || (!v->uses && !v->deliveries);
}

static bool drop_waits(clv_contexts *e, const clv_context *c, const clv_packet *p) {
  (void)e, (void)c, (void)p;
  return true;
}

/* True if each call of the PREPARE still waits for inputs or gradients. */
static bool prepare_waits(clv_contexts *e, const clv_context *c, const clv_packet *p) {
  const clv_frame *f = &p->frame;
  for (uint32_t i = 0; i < f->backward.n_calls; i++) {
    const clv_needed *n = &f->backward.calls[i];
    const clv_value *v = c ? clv_context_find_value(e, c, n->call) : NULL;
    bool begun = v && v->producer && v->producer->progress > CALL_READY;
    if (v && (v->received_gradients || v->failed)) return false;
    if (begun && !n->contributions) return false;
  }
  return f->backward.n_calls && !(c && c->failed);
}

/* True if the backward pass of the call has not begun at this node. */
static bool gradient_waits(clv_contexts *e, const clv_context *c, const clv_packet *p) {
  const clv_value *v = c ? clv_context_find_value(e, c, p->frame.message) : NULL;
  return !v || !v->producer || !v->producer->is_in_pass;
}

/* True if the steps are final and short, so that no peer waits for them. */
static bool steps_wait(const clv_context *c, const clv_frame *f, uint32_t module) {
  size_t bytes = 0;
  if (f->commit.position) return false;
  for (const clv_module_gradient *g = c->gradients; g; g = g->next) {
    if (module != CLV_MODULE_ALL && module != g->module) continue;
    if (!g->mod->o.has_no_revert) return false;
    bytes += g->block->bytes;
  }
  return bytes <= SMALL_STEP_BYTES;
}

/* True for an APPLY that steps modules. Without a step, the master waits for the answer at once. */
static bool apply_waits(clv_contexts *e, const clv_context *c, const clv_packet *p) {
  (void)e;
  return c && c->gradients && steps_wait(c, &p->frame, p->frame.module);
}

/* True for END_CONTEXT with a step and without a trace: a master that waits for the end sends it in
 * another way. False while calls wait, because the end may let other calls run. */
static bool end_waits(clv_contexts *e, const clv_context *c, const clv_packet *p) {
  if (e->counts.calls_waiting) return false;
  return c && p->frame.has_commit && !c->trace && steps_wait(c, &p->frame, CLV_MODULE_ALL);
}

static waits *const waiting[CLV_FRAME_KINDS] = {
    [CLV_CALL] = call_waits,   [CLV_DELIVER] = deliver_waits, [CLV_VALUE] = value_waits,
    [CLV_DROP] = drop_waits,   [CLV_PREPARE] = prepare_waits, [CLV_GRADIENT] = gradient_waits,
    [CLV_APPLY] = apply_waits, [CLV_END_CONTEXT] = end_waits, [CLV_SPARE] = drop_waits,
};

static size_t bytes_of(const clv_packet *p) {
  size_t bytes = 0;
  for (uint32_t i = 0; i < p->frame.n_tensors; i++)
    if (p->tensor[i]) bytes += p->tensor[i]->bytes;
  return bytes;
}

bool clv_contexts_can_wait(clv_contexts *e, uint64_t queued, const clv_packet *p) {
  const clv_frame *f = &p->frame;
  if (!waiting[f->kind] || p->is_over_quota || f->has_failure || (queued & meets[f->kind]))
    return false;
  if (bytes_of(p) > LARGE_BYTES) return false;
  return waiting[f->kind](e, clv_context_find(e, f->context), p);
}
