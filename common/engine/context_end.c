/* SPDX-License-Identifier: Apache-2.0
 *
 * Ends of contexts: END_CONTEXT retains what kept values depend on; ABORT retains nothing and fails
 * these values. Both are handled only after all work has ended, and no work becomes ready until the
 * records that are not retained are freed (the states are in context_table.c).
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
  clv_outbox_send(e, reply);
  return CLV_OK;
}

static void make_tombstone(clv_contexts *e, clv_context *c) {
  clv_context_forget_buffers(e, c->id, CLV_MODULE_ALL);
  clv_context_clear(e, c);
  clv_context_make_tombstone(e, c);
}

/* Frees everything but what kept values depend on. The state is ENDING already, so retained calls
 * may become ready here. */
static void retain_needed(clv_contexts *e, clv_context *c, const clv_frame *end) {
  clv_backward_queues_free(e, c);
  c->pass = PASS_NONE;
  clv_context_free_unretained(e, c);
  clv_order_free(e, c);
  clv_context_forget_gradients(e, c, CLV_MODULE_ALL);
  clv_context_forget_frames(c);
  c->trace = clv_tensor_unref(c->trace);
  c->end_message = end->message;
  c->restores_buffers = end->has_commit && !end->commit.apply;
}

/* Decides on the step of a closing context, then frees the context or what it does not retain.
 * Returns the number of retained calls. */
static uint32_t close_context(clv_contexts *e, clv_context *c, const clv_frame *end) {
  if (end->has_commit && !c->failed) clv_context_apply_at_end(e, c, end);
  uint32_t left = c->failed ? 0 : clv_context_mark_retained(e, c);
  clv_action action =
      clv_context_on_event(e, c, left ? CONTEXT_END_RETAINS : CONTEXT_RETAINED_DONE)->action;
  if (action == CELL_SETTLE) retain_needed(e, c, end);
  if (action == CELL_END) make_tombstone(e, c);
  return left;
}

clv_code clv_context_end(clv_contexts *e, clv_context *c, const clv_frame *end, clv_err *err) {
  CLV_AUTO(clv_tensor_unrefp) clv_tensor *trace = NULL;
  uint32_t left = 0;
  if (end->has_commit && c->failed) clv_context_resend_failure(e, c);
  clv_action action = clv_context_on_event(e, c, CONTEXT_END)->action;
  if (action == CELL_REPEAT) left = clv_context_n_retained(c);
  if (action == CELL_BEGIN) {
    trace = clv_context_trace_rows(c);
    left = close_context(e, c, end);
  }
  bool answers = action == CELL_BEGIN || action == CELL_REPEAT;
  return answers ? clv_context_send_ended(e, end, left, trace, err) : CLV_OK;
}

static void send_second_ended(clv_contexts *e, const clv_context *c) {
  const clv_frame end = {.context = c->id, .message = c->end_message};
  clv_err ignored; /* without memory the answer is lost; the master repeats END_CONTEXT */
  (void)!clv_context_send_ended(e, &end, 0, NULL, &ignored);
}

void clv_context_end_if_complete(clv_contexts *e, clv_context *c) {
  if (c->state != CONTEXT_ENDING || !clv_context_drop_unneeded(e, c)) return;
  if (clv_context_on_event(e, c, CONTEXT_RETAINED_DONE)->action != CELL_END) return;
  if (c->restores_buffers) clv_context_restore_buffers(e, c->id, CLV_MODULE_ALL);
  make_tombstone(e, c);
  send_second_ended(e, c);
}

void clv_context_abort(clv_contexts *e, clv_context *c, const clv_frame *f) {
  bool owes = c->state == CONTEXT_ENDING;
  if (clv_context_on_event(e, c, CONTEXT_ABORT)->action != CELL_END) return;
  if (!c->failed && f->failure.code) c->failed = clv_shared_err_from_frame(e, f);
  clv_context_restore_buffers(e, c->id, CLV_MODULE_ALL);
  make_tombstone(e, c);
  if (owes) send_second_ended(e, c);
}
