/* SPDX-License-Identifier: Apache-2.0
 *
 * Handling packets and ends of work at a node: most frames are for the engine of contexts, some
 * read or write state, some are for references. Then the results of the engine are sent.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/engine/node_int.h"

/* ---- frames that read or write state --------------------------------------------------------- */

static clv_code make_answer(clv_session_node *n, const clv_frame *to, clv_frame_kind kind,
                            clv_tensor *tensor, const clv_frame *state, clv_packet **ret,
                            clv_err *err) {
  clv_packet *p;
  CLV_TRY(clv_packet_new(n->o.pool, kind, &p, err));
  p->frame.context = to->context;
  p->frame.message_id = ++n->next_message;
  p->frame.reply_to = to->message_id;
  p->frame.module = to->module;
  p->frame.module_generation = to->module_generation;
  p->frame.state = state->state;
  if (tensor) clv_packet_add_tensor(p, tensor);
  *ret = p;
  return CLV_OK;
}

static clv_code send_answer(clv_session_node *n, const clv_frame *to, clv_frame_kind kind,
                            const clv_frame *state, clv_err *err) {
  clv_packet *p;
  CLV_TRY(make_answer(n, to, kind, NULL, state, &p, err));
  return clv_node_send_to_program(n, p, err);
}

static clv_code find_module(clv_session_node *n, const clv_frame *f, clv_module **ret,
                            clv_err *err) {
  *ret = clv_contexts_module_of_frame(n->contexts, f);
  if (*ret) return CLV_OK;
  return clv_fail(err, CLV_NOT_FOUND, "module %u (generation %u) is not loaded at this node",
                  f->module, f->module_generation);
}

static bool get_state_item(clv_session_node *n, clv_module *m, const clv_frame *f, uint32_t index,
                           clv_state_item *ret) {
  if (f->state.part != CLV_STATE_GRADIENTS)
    return clv_module_state_item(m, f->state.part, index, ret);
  return clv_contexts_gradient_item(n->contexts, f->context, f->module, index, ret);
}

/* Makes an answer with memory for a copy of the item, because the state may change before the
 * answer is sent. */
static clv_code make_item_answer(clv_session_node *n, const clv_module *m, const clv_frame *to,
                                 const clv_state_item *item, const clv_state_transfer *r,
                                 clv_packet **ret, clv_err *err) {
  CLV_AUTO(clv_tensor_unrefp) clv_tensor *t = NULL;
  CLV_TRY(clv_pool_alloc_tensor(n->o.pool, item->dtype, &item->shape, &t, err));
  clv_frame state = {.state = {.part = to->state.part,
                               .item_index = (uint32_t)(item - r->items),
                               .n_items = r->n,
                               .piece_offset = to->state.piece_offset,
                               .piece_length = to->state.piece_length}};
  snprintf(state.state.item_or_file_name, sizeof state.state.item_or_file_name, "%s", item->name);
  snprintf(state.state.device_name, sizeof state.state.device_name, "%s", clv_module_device(m));
  return make_answer(n, to, CLV_STATE_ITEM, t, &state, ret, err);
}

/* Longest piece of state in bytes: a longer piece could exceed the receiver's window and never be
 * sent. */
enum { MAX_PIECE_BYTES = 16 << 20 };

static clv_code find_piece(clv_module *m, const clv_frame *f, clv_state_transfer *r, clv_err *err) {
  clv_state_item item;
  if (f->state.piece_length > MAX_PIECE_BYTES)
    return clv_fail(err, CLV_INVALID, "a piece of %llu bytes; at most %d",
                    (unsigned long long)f->state.piece_length, MAX_PIECE_BYTES);
  CLV_TRY(clv_module_state_find(m, f->state.part, f->state.item_or_file_name, &item, err));
  CLV_TRY(clv_module_check_readable(m, &item, err));
  CLV_TRY(clv_alloc(1, sizeof *r->items, &r->items, err));
  r->n = 1;
  return clv_state_item_part(&item, f->state.piece_offset, f->state.piece_length, r->items, err);
}

/* Lists the items that a STATE_GET reads: a piece of one item, or all items that are not
 * withheld. */
static clv_code find_items(clv_session_node *n, clv_module *m, const clv_frame *f,
                           clv_state_transfer *r, clv_err *err) {
  clv_state_item item;
  uint32_t count = 0;
  if (f->state.piece_length) return find_piece(m, f, r, err);
  while (get_state_item(n, m, f, count, &item)) count++;
  CLV_TRY(clv_alloc(CLV_MAX(count, 1u), sizeof *r->items, &r->items, err));
  for (uint32_t i = 0; i < count; i++)
    if (get_state_item(n, m, f, i, &item) && !item.is_withheld) r->items[r->n++] = item;
  return CLV_OK;
}

static clv_code add_answers(clv_session_node *n, const clv_module *m, const clv_frame *f,
                            clv_state_transfer *r, clv_err *err) {
  const clv_frame done = {.state = {.part = f->state.part, .n_items = r->n}};
  clv_packet *p;
  CLV_TRY(clv_alloc(CLV_MAX(r->n, 1u), sizeof *r->host_data, &r->host_data, err));
  for (uint32_t i = 0; i < r->n; i++) {
    CLV_TRY(make_item_answer(n, m, f, &r->items[i], r, &p, err));
    r->host_data[i] = p->tensor[0]->data;
    clv_packet_list_add(&r->answers, p);
  }
  CLV_TRY(make_answer(n, f, CLV_STATE_DONE, NULL, &done, &p, err));
  clv_packet_list_add(&r->answers, p);
  return CLV_OK;
}

static void transfer_clear(clv_state_transfer *r) {
  if (!r) return;
  for (clv_packet *p; (p = clv_packet_list_take(&r->answers)) != NULL;) clv_packet_free(p);
  free(r->items);
  free(r->host_data);
}

static clv_code send_state_done(clv_session_node *n, const clv_frame *to, uint32_t count,
                                clv_err *err) {
  clv_frame done = {.state = {.part = to->state.part, .n_items = count}};
  return send_answer(n, to, CLV_STATE_DONE, &done, err);
}

/* Sends the items of a module in host memory one after the other. */
static clv_code send_items(clv_session_node *n, const clv_module *m, const clv_frame *f,
                           const clv_state_transfer *r, clv_err *err) {
  for (uint32_t i = 0; i < r->n; i++) {
    CLV_AUTO(clv_packet_freep) clv_packet *p = NULL;
    CLV_TRY(make_item_answer(n, m, f, &r->items[i], r, &p, err));
    CLV_TRY(clv_state_item_get(&r->items[i], p->tensor[0]->data, err));
    CLV_TRY(clv_node_send_to_program(n, clv_steal(&p), err));
  }
  return send_state_done(n, f, r->n, err);
}

/* Starts a transfer of state as work of the module. Takes the items, the memory and the answers in
 * *r. */
static clv_code start_transfer(clv_session_node *n, clv_state_transfer *r, bool *ret_kept,
                               clv_err *err) {
  CLV_TRY(clv_contexts_transfer_state(n->contexts, r, err));
  *r = (clv_state_transfer){0};
  *ret_kept = true;
  return CLV_OK;
}

static clv_code on_state_get(clv_session_node *n, clv_packet *p, bool *ret_kept, clv_err *err) {
  CLV_AUTO(transfer_clear) clv_state_transfer r = {.request = p};
  clv_module *m;
  CLV_TRY(find_module(n, &p->frame, &m, err));
  CLV_TRY(find_items(n, m, &p->frame, &r, err));
  if (!m->o.backend->memory) return send_items(n, m, &p->frame, &r, err);
  CLV_TRY(add_answers(n, m, &p->frame, &r, err));
  return start_transfer(n, &r, ret_kept, err);
}

/* Finds the item, or the piece of it, that a STATE_PUT writes, for a module on a device. */
static clv_code find_written_item(clv_session_node *n, clv_module *m, const clv_packet *p,
                                  clv_state_item *ret, clv_err *err) {
  const clv_frame *f = &p->frame;
  const clv_tensor *t = p->tensor[0];
  clv_state_item complete_item;
  if (f->state.part == CLV_STATE_GRADIENTS)
    CLV_TRY(clv_contexts_find_gradient_item(n->contexts, f, &complete_item, err));
  else
    CLV_TRY(
        clv_module_state_find(m, f->state.part, f->state.item_or_file_name, &complete_item, err));
  *ret = complete_item;
  if (!f->state.piece_length || f->state.part == CLV_STATE_GRADIENTS)
    return clv_state_item_check(ret, t->dtype, &t->shape, err);
  CLV_TRY(
      clv_state_item_part(&complete_item, f->state.piece_offset, f->state.piece_length, ret, err));
  return clv_state_item_check(ret, CLV_U8, &CLV_SHAPE((int64_t)t->bytes), err);
}

static clv_code write_item_as_work(clv_session_node *n, clv_module *m, clv_packet *p, bool is_last,
                                   bool *ret_kept, clv_err *err) {
  CLV_AUTO(transfer_clear) clv_state_transfer r = {.request = p, .n = 1, .is_write = true};
  const clv_frame *f = &p->frame;
  const clv_frame done = {.state = {.part = f->state.part, .n_items = f->state.n_items}};
  clv_packet *answer_packet;
  CLV_TRY(clv_alloc(1, sizeof *r.items, &r.items, err));
  CLV_TRY(clv_alloc(1, sizeof *r.host_data, &r.host_data, err));
  CLV_TRY(find_written_item(n, m, p, r.items, err));
  r.host_data[0] = p->tensor[0]->data;
  if (is_last) {
    CLV_TRY(make_answer(n, f, CLV_STATE_DONE, NULL, &done, &answer_packet, err));
    clv_packet_list_add(&r.answers, answer_packet);
  }
  if (f->state.part != CLV_STATE_GRADIENTS) clv_contexts_note_state_written(n->contexts, f->module);
  return start_transfer(n, &r, ret_kept, err);
}

static clv_code set_state_item(clv_session_node *n, clv_module *m, const clv_packet *p,
                               clv_err *err) {
  const clv_frame *f = &p->frame;
  const clv_tensor *t = p->tensor[0];
  clv_state_item item;
  if (f->state.part == CLV_STATE_GRADIENTS) {
    CLV_TRY(clv_contexts_find_gradient_item(n->contexts, f, &item, err));
    return clv_state_item_set(&item, t->dtype, &t->shape, t->data, err);
  }
  clv_contexts_note_state_written(n->contexts, f->module);
  if (f->state.piece_length)
    return clv_module_state_set_part(m, f->state.part, f->state.item_or_file_name,
                                     f->state.piece_offset, f->state.piece_length, t->data, err);
  return clv_module_state_set(m, f->state.part, f->state.item_or_file_name, t->dtype, &t->shape,
                              t->data, err);
}

static clv_code on_state_put(clv_session_node *n, clv_packet *p, bool *ret_kept, clv_err *err) {
  clv_module *m;
  const clv_frame *f = &p->frame;
  CLV_TRY(find_module(n, f, &m, err));
  /* A large item comes in chunks on other lanes, and may be complete after the last item of the
   * STATE_PUT. A refused item counts as received. */
  uint32_t *n_received = &n->n_put_items[f->module][f->state.part];
  bool is_last = ++*n_received >= f->state.n_items;
  if (is_last) *n_received = 0;
  if (p->is_over_quota) return clv_fail(err, f->failure.code, "%s", f->failure.text);
  if (m->o.backend->memory) return write_item_as_work(n, m, p, is_last, ret_kept, err);
  CLV_TRY(set_state_item(n, m, p, err));
  return is_last ? send_state_done(n, f, f->state.n_items, err) : CLV_OK;
}

static clv_code on_unload(clv_session_node *n, clv_packet *p, clv_err *err) {
  clv_module *m;
  CLV_TRY(find_module(n, &p->frame, &m, err));
  CLV_TRY(clv_node_remove_module(n, p->frame.module, err));
  return send_answer(n, &p->frame, CLV_UNLOADED, &(clv_frame){0}, err);
}

static clv_code on_state_file(clv_session_node *n, clv_packet *p, bool *ret_kept, clv_err *err) {
  clv_module *m;
  clv_frame done = {0};
  CLV_TRY(find_module(n, &p->frame, &m, err));
  CLV_TRY(clv_node_on_state_file(n, m, p, &done, ret_kept, err));
  if (*ret_kept) return CLV_OK;
  return send_answer(n, &p->frame, CLV_STATE_FILE, &done, err);
}

/* Answers a STATE_SAVE whose file was written by another thread. False: p is another packet. */
static bool answer_saved_file(clv_session_node *n, clv_packet *p) {
  const clv_request c = clv_node_request_of_frame(&p->frame);
  clv_frame done = {0};
  clv_code code;
  clv_err err;
  if (!n->saves || !clv_node_take_saved(n, p, &done, &code, &err)) return false;
  if (code == CLV_OK) code = send_answer(n, &p->frame, CLV_STATE_FILE, &done, &err);
  if (code != CLV_OK) clv_node_refuse(n, &err, &c);
  clv_packet_free(p);
  return true;
}

static clv_code handle_state_frame(clv_session_node *n, clv_packet *p, bool *ret_kept,
                                   clv_err *err) {
  if (p->frame.kind >= CLV_STATE_SAVE) return on_state_file(n, p, ret_kept, err);
  if (p->frame.kind == CLV_UNLOAD) return on_unload(n, p, err);
  if (p->frame.kind == CLV_STATE_GET) return on_state_get(n, p, ret_kept, err);
  return on_state_put(n, p, ret_kept, err);
}

/* ---- results of the engine ------------------------------------------------------------------- */

static void handle_released_frame(clv_session_node *n, clv_packet *p) {
  const clv_request c = clv_node_request_of_frame(&p->frame);
  bool is_kept = false;
  clv_err err;
  if (handle_state_frame(n, p, &is_kept, &err) != CLV_OK) clv_node_refuse(n, &err, &c);
  if (!is_kept) clv_packet_free(p);
}

/* Answers a packet that the engine has refused. */
static void report_refusal(clv_session_node *n, clv_packet *p) {
  CLV_AUTO(clv_packet_freep) clv_packet *owned_packet = p;
  const clv_request c = clv_node_request_of_frame(&owned_packet->frame);
  clv_node_drop_file(n, p);
  clv_err err = {.code = p->frame.failure.code};
  snprintf(err.text, sizeof err.text, "%s", p->frame.failure.text);
  memcpy(err.offending_value, p->frame.failure.offending_value, sizeof err.offending_value);
  clv_node_refuse(n, &err, &c);
}

/* Takes all results of the engine: sends packets, handles released frames, reports refusals and
 * kept values. */
static void take_results(clv_session_node *n) {
  clv_result r;
  for (clv_work *w; (w = clv_contexts_take_device_work(n->contexts)) != NULL;)
    clv_node_post_device_work(n, w);
  clv_node_post_copies(n);
  while (clv_contexts_take_result(n->contexts, &r)) {
    if (r.kind == CLV_RESULT_SEND) clv_node_send(n, r.packet);
    if (r.kind == CLV_RESULT_STATE) handle_released_frame(n, r.packet);
    if (r.kind == CLV_RESULT_REFUSED) report_refusal(n, r.packet);
    if (r.kind == CLV_RESULT_KEPT) clv_node_on_kept_value(n, r.ref, r.tensor, r.failure);
    clv_result_clear(n->contexts, &r);
  }
}

/* Links are flushed before work that is likely to take longer than this, so that it does not delay
 * queued packets. */
enum { LONG_WORK_NS = 50000 };

static bool run_one(clv_session_node *n, clv_code *ret, clv_err *err) {
  if (n->work_ns > LONG_WORK_NS || clv_share_would_block(n->o.share)) clv_node_flush(n);
  uint64_t begin = clv_clock_now(&n->o.clock);
  bool has_run = clv_contexts_run_one(n->contexts, ret, err);
  if (has_run) n->work_ns = CLV_MAX(clv_clock_now(&n->o.clock) - begin, n->work_ns / 2);
  return has_run;
}

/* Takes results and runs ready work until there is none of either. Returns the first error. */
static clv_code run_engine(clv_session_node *n, clv_err *err) {
  clv_code code, first = CLV_OK;
  clv_err why;
  take_results(n);
  while (run_one(n, &code, &why) || clv_contexts_handle_held_frame(n->contexts)) {
    if (first == CLV_OK && code != CLV_OK) *err = why;
    if (first == CLV_OK) first = code;
    take_results(n);
  }
  return first;
}

/* ---- handling frames and ends of work -------------------------------------------------------- */

static clv_code handle_context_frame(clv_session_node *n, clv_packet *p, bool *ret_kept,
                                     clv_err *err) {
  clv_err why;
  if (n->o.runtime) clv_rpc_begin_computation(n->o.runtime);
  clv_code code = clv_contexts_handle_packet(n->contexts, p, ret_kept, err);
  clv_code ran = run_engine(n, &why);
  if (n->o.runtime) clv_rpc_end_computation(n->o.runtime);
  if (code == CLV_OK && ran != CLV_OK) *err = why;
  return code == CLV_OK ? ran : code;
}

/* Handles a REF_ frame. The frame may ask the engine for a value, so the engine runs afterwards. */
static clv_code handle_reference_frame(clv_session_node *n, clv_packet *p, bool *ret_kept,
                                       clv_err *err) {
  clv_err why;
  clv_code code = clv_node_on_reference(n, p, ret_kept, err);
  clv_code ran = run_engine(n, &why);
  if (code == CLV_OK && ran != CLV_OK) *err = why;
  return code == CLV_OK ? ran : code;
}

/* Passes the result of ended work to the engine, and frees w->failure. */
static clv_code finish_work(clv_session_node *n, clv_work *w, clv_err *err) {
  clv_err *why = clv_steal(&w->failure), default_failure;
  if (w->code != CLV_OK && !why) (void)!clv_fail(&default_failure, w->code, "work has failed");
  clv_code code =
      clv_contexts_finish_work(n->contexts, w, w->code, why ? why : &default_failure, err);
  free(why);
  return code;
}

/* Refunds the share the time that the thread slept beyond the device's computing time, so that only
 * the device's time is charged. */
static void refund_slept_time(clv_session_node *n, const clv_work *w) {
  if (w->kind == WORK_COPY) return;
  uint64_t slept = n->slept_while_working_ns;
  n->slept_while_working_ns = 0;
  if (w->device_ns && slept > w->device_ns) clv_share_refund_time(n->o.share, slept - w->device_ns);
}

void clv_node_handle_work_end(clv_session_node *n, clv_work *w) {
  refund_slept_time(n, w);
  const clv_request c = {.kind = CLV_CALL, .context = w->ctx ? w->ctx->id : 0, .module = w->module};
  clv_err why, err;
  clv_code code = finish_work(n, w, &err), ran = run_engine(n, &why);
  if (code != CLV_OK) clv_node_refuse(n, &err, &c);
  if (ran != CLV_OK) clv_node_refuse(n, &why, &c);
}

void clv_node_drain_work(clv_session_node *n) {
  clv_err ignored;
  while (n->o.wait && clv_inbox_has_running_work(&n->inbox))
    if (!n->o.wait(n->o.wait_user, UINT64_MAX)) break;
  clv_inbox_wait_for_work(&n->inbox);
  for (clv_work *w; (w = clv_inbox_take_ended_work(&n->inbox)) != NULL;)
    (void)!finish_work(n, w, &ignored);
}

static clv_code handle_value_frame(clv_session_node *n, clv_packet *p, bool *ret_kept,
                                   clv_err *err) {
  if (p->frame.has_cached) CLV_TRY(clv_node_on_cached(n, p, err));
  return handle_context_frame(n, p, ret_kept, err);
}

/* Handlers of the frames that a node receives. ABORT from a worker is for the program, so it never
 * arrives here. */
static const struct {
  clv_code (*handle)(clv_session_node *n, clv_packet *p, bool *ret_kept, clv_err *err);
  bool is_sent_by_workers; /* workers may send this kind to each other */
} handlers[CLV_FRAME_KINDS] = {
    [CLV_CALL] = {handle_context_frame, false},
    [CLV_DELIVER] = {handle_context_frame, false},
    [CLV_VALUE] = {handle_value_frame, true},
    [CLV_DROP] = {handle_context_frame, false},
    [CLV_SPARE] = {handle_context_frame, false},
    [CLV_PREPARE] = {handle_context_frame, false},
    [CLV_GRADIENT] = {handle_context_frame, true},
    [CLV_APPLY] = {handle_context_frame, false},
    [CLV_REVERT] = {handle_context_frame, false},
    [CLV_END_CONTEXT] = {handle_context_frame, false},
    [CLV_ABORT] = {handle_context_frame, false},
    [CLV_STATE_GET] = {handle_context_frame, false},
    [CLV_STATE_PUT] = {handle_context_frame, false},
    [CLV_UNLOAD] = {handle_context_frame, false},
    [CLV_STATE_SAVE] = {handle_context_frame, false},
    [CLV_STATE_LOAD] = {handle_context_frame, false},
    [CLV_STATE_REMOVE] = {handle_context_frame, false},
    [CLV_REF_KEEP] = {handle_reference_frame, false},
    [CLV_REF_USE] = {handle_reference_frame, false},
    [CLV_REF_FORK] = {handle_reference_frame, true},
    [CLV_REF_ACCEPT] = {handle_reference_frame, false},
    [CLV_REF_DELETE] = {handle_reference_frame, true},
    [CLV_REF_FETCH] = {handle_reference_frame, true},
    [CLV_REF_VALUE] = {handle_reference_frame, true},
    [CLV_REF_RENEW] = {handle_reference_frame, true},
    [CLV_REF_ACK] = {handle_reference_frame, true},
};

/* Checks that the sender of a packet may send frames of this kind: workers send each other values,
 * gradients and messages of references; everything else only the master sends. */
static clv_code check_sender(clv_session_node *n, const clv_packet *p, clv_err *err) {
  clv_frame_kind kind = p->frame.kind;
  if (!handlers[kind].handle)
    return clv_fail(err, CLV_UNIMPLEMENTED, "a node does not handle %s", clv_frame_kind_name(kind));
  if (n->o.on_program || !p->received_by || handlers[kind].is_sent_by_workers ||
      clv_node_is_master(n, p->received_by))
    return CLV_OK;
  return clv_fail(err, CLV_DENIED, "%s may not be sent by worker '%s', only by the master",
                  clv_frame_kind_name(kind), clv_link_peer_name(p->received_by));
}

void clv_node_handle(clv_session_node *n, clv_packet *p) {
  if (answer_saved_file(n, p)) return;
  const clv_request c = clv_node_request_of_frame(&p->frame);
  bool is_kept = false;
  clv_err err;
  clv_code code = check_sender(n, p, &err);
  if (code == CLV_OK) code = handlers[c.kind].handle(n, p, &is_kept, &err);
  take_results(n);
  if (code != CLV_OK) clv_node_refuse(n, &err, &c);
  if (!is_kept) clv_packet_free(p);
}

/* ---- initialising the engine of a node ------------------------------------------------------- */

clv_code clv_node_init_contexts(clv_session_node *n, clv_err *err) {
  clv_contexts_env env = {.pool = n->o.pool,
                          .share = n->o.share,
                          .clock = n->o.clock,
                          .next_message = &n->next_message,
                          .modules = n->modules,
                          .executor = clv_node_executor(n),
                          .has_program = n->o.on_program != NULL};
  clv_node_init_devices(n, &env);
  return clv_contexts_new(&env, &n->contexts, err);
}

void clv_node_context_count(const clv_session_node *n, clv_context_counts *ret) {
  const clv_context_counts *c = &n->contexts->counts;
  ret->contexts = __atomic_load_n(&c->contexts, __ATOMIC_RELAXED);
  ret->values = __atomic_load_n(&c->values, __ATOMIC_RELAXED);
  ret->calls_waiting = __atomic_load_n(&c->calls_waiting, __ATOMIC_RELAXED);
  ret->late_frames = __atomic_load_n(&c->late_frames, __ATOMIC_RELAXED);
  const clv_reference_counts *r = &n->reference_counts;
  ret->references.n_owned = __atomic_load_n(&r->n_owned, __ATOMIC_RELAXED);
  ret->references.n_used = __atomic_load_n(&r->n_used, __ATOMIC_RELAXED);
  ret->references.n_pending = __atomic_load_n(&r->n_pending, __ATOMIC_RELAXED);
}
