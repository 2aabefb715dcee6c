/* SPDX-License-Identifier: Apache-2.0
 *
 * Ends of contexts: END_CONTEXT retains the records that kept values depend on; ABORT retains none,
 * and fails the kept values that are not computed. Both frames are handled only after all work has
 * ended, and no work becomes ready until the records that are not retained are freed (the states
 * are in context_table.c).
 */
#include "common/engine/context_int.h"

clv_code clv_context_send_ended(clv_contexts *e, const clv_frame *end, uint32_t n_spared,
                                clv_tensor *trace, clv_err *err) {
  clv_packet *reply;
  CLV_TRY(clv_packet_new(e->env.pool, CLV_ENDED, &reply, err));
  if (trace) clv_packet_add_tensor(reply, trace);
  reply->frame.context = end->context;
  reply->frame.message_id = ++*e->env.next_message;
  reply->frame.reply_to = end->message_id;
  reply->frame.step = n_spared;
  clv_outbox_send(e, reply);
  return CLV_OK;
}

static void end_context(clv_contexts *e, clv_context *c) {
  clv_context_forget_buffers(e, c->id, CLV_MODULE_ALL);
  clv_context_clear(e, c);
  clv_context_make_tombstone(e, c);
}

/* Frees all records of a context except those that kept values depend on. The state is ENDING
 * already, so retained calls may become ready here. */
static void free_all_but_retained(clv_contexts *e, clv_context *c, const clv_frame *end) {
  clv_backward_queues_free(e, c);
  c->pass_state = PASS_NONE;
  clv_context_free_unretained_values(e, c);
  clv_order_free(e, c);
  clv_context_forget_gradients(e, c, CLV_MODULE_ALL);
  clv_context_forget_frames(c);
  c->trace = clv_tensor_unref(c->trace);
  c->end_message_id = end->message_id;
  c->restores_buffers = end->has_commit && !end->commit.applies_step;
}

/* Applies or discards the step of a closing context, then frees the context, or the records that it
 * does not retain. Returns the number of retained calls. */
static uint32_t close_context(clv_contexts *e, clv_context *c, const clv_frame *end) {
  if (end->has_commit && !c->failure) clv_context_apply_at_end(e, c, end);
  uint32_t n_retained = c->failure ? 0 : clv_context_mark_retained(e, c);
  clv_action action =
      clv_context_on_event(e, c, n_retained ? CONTEXT_END_RETAINS : CONTEXT_RETAINED_DONE)->action;
  if (action == CELL_SETTLE) free_all_but_retained(e, c, end);
  if (action == CELL_END) end_context(e, c);
  return n_retained;
}

clv_code clv_context_end(clv_contexts *e, clv_context *c, const clv_frame *end, clv_err *err) {
  CLV_AUTO(clv_tensor_unrefp) clv_tensor *trace = NULL;
  uint32_t n_retained = 0;
  if (end->has_commit && c->failure) clv_context_resend_failure(e, c);
  clv_action action = clv_context_on_event(e, c, CONTEXT_END)->action;
  if (action == CELL_REPEAT) n_retained = clv_context_n_retained(c);
  if (action == CELL_BEGIN) {
    trace = clv_context_trace_rows(c);
    n_retained = close_context(e, c, end);
  }
  bool must_answer = action == CELL_BEGIN || action == CELL_REPEAT;
  return must_answer ? clv_context_send_ended(e, end, n_retained, trace, err) : CLV_OK;
}

static void send_final_ended(clv_contexts *e, const clv_context *c) {
  const clv_frame end = {.context = c->id, .message_id = c->end_message_id};
  clv_err ignored; /* without memory the answer is lost; the master repeats END_CONTEXT */
  (void)!clv_context_send_ended(e, &end, 0, NULL, &ignored);
}

void clv_context_end_if_complete(clv_contexts *e, clv_context *c) {
  if (c->state != CONTEXT_ENDING || !clv_context_free_unneeded_values(e, c)) return;
  if (clv_context_on_event(e, c, CONTEXT_RETAINED_DONE)->action != CELL_END) return;
  if (c->restores_buffers) clv_context_restore_buffers(e, c->id, CLV_MODULE_ALL);
  end_context(e, c);
  send_final_ended(e, c);
}

void clv_context_abort(clv_contexts *e, clv_context *c, const clv_frame *f) {
  bool owes_final_ended = c->state == CONTEXT_ENDING;
  if (clv_context_on_event(e, c, CONTEXT_ABORT)->action != CELL_END) return;
  if (!c->failure && f->failure.code) c->failure = clv_shared_err_from_frame(e, f);
  clv_context_restore_buffers(e, c->id, CLV_MODULE_ALL);
  end_context(e, c);
  if (owes_final_ended) send_final_ended(e, c);
}
