/* SPDX-License-Identifier: Apache-2.0
 *
 * Contexts end: with END_CONTEXT, which spares what kept values need, or with ABORT, which spares
 * nothing and leaves its failure to them.
 */
#include "common/engine/context_int.h"

clv_code clv_context_send_ended(clv_contexts *e, const clv_frame *end, uint32_t n_spared,
                                clv_tensor *trace, clv_err *err) {
  clv_packet *reply;
  CLV_TRY(clv_packet_new(e->env.pool, CLV_ENDED, &reply, err));
  if (trace) clv_packet_add(reply, trace);
  reply->frame.context = end->context;
  reply->frame.message = ++*e->env.next_message;
  reply->frame.reply_to = end->message;
  reply->frame.step = n_spared;
  clv_exit_send(e, reply);
  return CLV_OK;
}

static void bury(clv_contexts *e, clv_context *c) {
  clv_context_forget_buffers(e, c->id, CLV_MODULE_ALL);
  clv_context_empty(e, c);
  clv_context_bury(e, c);
}

/* The decision on its step comes first; a failed context says its failure again. */
static void last_step(clv_contexts *e, clv_context *c, const clv_frame *end) {
  clv_action action = clv_context_meets(e, c, CONTEXT_APPLY)->action;
  if (action == CELL_REPEAT) clv_context_fail_again(e, c);
  if (action == CELL_RECORD) clv_context_last_step(e, c, end);
}

/* What the context holds besides goes at once. */
static uint32_t spare(clv_contexts *e, clv_context *c, const clv_frame *end) {
  clv_strands_free(e, c);
  c->pass = PASS_NONE;
  uint32_t n = clv_context_spare(e, c);
  clv_order_free(e, c);
  clv_context_forget_gradients(e, c, CLV_MODULE_ALL);
  clv_context_forget_frames(c);
  c->end_message = end->message;
  c->restores = end->has_commit && !end->commit.apply;
  return n;
}

clv_code clv_context_end(clv_contexts *e, clv_context *c, const clv_frame *end, clv_err *err) {
  bool open = c->state == CONTEXT_OPEN || c->state == CONTEXT_FAILED;
  if (end->has_commit && open) last_step(e, c, end);
  CLV_AUTO(clv_tensor_unrefp) clv_tensor *trace = open ? clv_context_trace(c) : NULL;
  uint32_t left = c->state == CONTEXT_OPEN ? spare(e, c, end) : clv_context_n_spared(c);
  bool spares = left && c->state == CONTEXT_OPEN;
  clv_action action = clv_context_meets(e, c, spares ? CONTEXT_END_SPARES : CONTEXT_END)->action;
  if (action == CELL_SETTLE) c->trace = clv_tensor_unref(c->trace);
  if (action == CELL_END) {
    bury(e, c);
    left = 0;
  }
  bool answers = action == CELL_SETTLE || action == CELL_END || action == CELL_REPEAT;
  return answers ? clv_context_send_ended(e, end, left, trace, err) : CLV_OK;
}

static void answer_again(clv_contexts *e, const clv_context *c) {
  const clv_frame end = {.context = c->id, .message = c->end_message};
  clv_err ignored; /* its END_CONTEXT comes again */
  (void)!clv_context_send_ended(e, &end, 0, NULL, &ignored);
}

void clv_context_end_if_spared_all(clv_contexts *e, clv_context *c) {
  if (c->state != CONTEXT_ENDING || !clv_context_spared_all(e, c)) return;
  if (clv_context_meets(e, c, CONTEXT_SPARED)->action != CELL_END) return;
  if (c->restores) clv_context_restore_buffers(e, c->id, CLV_MODULE_ALL);
  bury(e, c);
  answer_again(e, c);
}

void clv_context_abort(clv_contexts *e, clv_context *c, const clv_frame *f) {
  bool owes = c->state == CONTEXT_ENDING;
  if (clv_context_meets(e, c, CONTEXT_ABORT)->action != CELL_END) return;
  if (!c->failed && f->failure.code) c->failed = clv_shared_err_in(e, f);
  clv_context_restore_buffers(e, c->id, CLV_MODULE_ALL);
  bury(e, c);
  if (owes) answer_again(e, c);
}
