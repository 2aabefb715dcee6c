/* SPDX-License-Identifier: Apache-2.0
 *
 * Which facts can wait: a CALL whose inputs are not here, what is for a CALL that is not here, a
 * PREPARE before its gradients, DROP, and the end of a context whose step takes less time than a
 * wake-up and which nobody waits for. Whoever is not sure says no: that costs a wake-up, no more.
 */
#include "common/engine/wake_int.h"

enum {
  LARGE_BYTES = 64 << 10,      /* tensors hold credit of their link until they are handled */
  SMALL_STEP_BYTES = 64 << 10, /* gradients: steps of 10 us, where a wake-up takes 30 to 50 */
};

/* With which kinds, queued before it, a frame may let something run that neither would alone. */
static const uint64_t meets[CLV_FRAME_KINDS] = {
    [CLV_CALL] = CLV_KIND_BIT(CLV_VALUE),
    [CLV_DELIVER] = CLV_KIND_BIT(CLV_VALUE),
    [CLV_VALUE] = CLV_KIND_BIT(CLV_CALL) | CLV_KIND_BIT(CLV_DELIVER),
    [CLV_PREPARE] = CLV_KIND_BIT(CLV_GRADIENT),
    [CLV_GRADIENT] = CLV_KIND_BIT(CLV_PREPARE),
};

_Static_assert((int)CLV_FRAME_KINDS <= 64, "a bit for each kind");

typedef bool waits(clv_contexts *e, const clv_context *c, const clv_packet *p);

/* It stands in its place and waits for an input; nothing waits for it to come. */
static bool call_waits(clv_contexts *e, const clv_context *c, const clv_packet *p) {
  const clv_frame *f = &p->frame;
  bool missing = p->is_announcement;
  for (uint32_t i = 0; i < f->call.n_args && !p->is_announcement; i++) {
    const clv_value *v = c ? clv_context_find_value(e, c, f->call.args[i].value) : NULL;
    if (v && v->failed) return false;
    missing |= !f->call.args[i].here && !(v && v->tensor);
  }
  return missing && !(c && c->waiting);
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

/* Each call has inputs or gradients to come. */
static bool prepare_waits(clv_contexts *e, const clv_context *c, const clv_packet *p) {
  const clv_frame *f = &p->frame;
  for (uint32_t i = 0; i < f->backward.n_calls; i++) {
    const clv_needed *n = &f->backward.calls[i];
    const clv_value *v = c ? clv_context_find_value(e, c, n->call) : NULL;
    bool begun = v && v->maker && v->maker->progress > CALL_READY;
    if (v && (v->got || v->failed)) return false;
    if (begun && !n->contributions) return false;
  }
  return f->backward.n_calls && !(c && c->failed);
}

/* Its pass has not begun here. */
static bool gradient_waits(clv_contexts *e, const clv_context *c, const clv_packet *p) {
  const clv_value *v = c ? clv_context_find_value(e, c, p->frame.message) : NULL;
  return !v || !v->maker || !v->maker->needed;
}

/* The steps that the decision means are final, so nobody waits for them, and soon taken. */
static bool steps_wait(const clv_context *c, const clv_frame *f, uint32_t module) {
  size_t bytes = 0;
  if (f->commit.position) return false;
  for (const clv_module_gradient *g = c->gradients; g; g = g->next) {
    if (module != CLV_MODULE_ALL && module != g->module) continue;
    if (!g->mod->o.final) return false;
    bytes += g->block->bytes;
  }
  return bytes <= SMALL_STEP_BYTES;
}

/* Where nothing is to be stepped, the answer is all that there is, and somebody waits for it. */
static bool apply_waits(clv_contexts *e, const clv_context *c, const clv_packet *p) {
  (void)e;
  return c && c->gradients && steps_wait(c, &p->frame, p->frame.module);
}

/* Who waits for an end says it without the step, or has the context traced. A call that has not run
 * may stand in the way of others, which its end lets run. */
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
