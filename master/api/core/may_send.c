/* SPDX-License-Identifier: Apache-2.0
 *
 * Decides whether a tensor may leave this process. Describes it as a cleave_sending, and asks the
 * gate and the program's may_send before the link sends it. For a failure, only its code and its
 * place are sent.
 */
#include <stdio.h>
#include <string.h>

#include "master/api/core/state_requests_int.h"

static clv_code fail_closed_context(clv_err *err) {
  return clv_fail(err, CLV_CANCELLED, "its context has been closed");
}

/* Returns the index of the input whose value is tensor number `tensor_index` in a CALL. */
static uint32_t find_input_index(const clv_frame *f, uint32_t tensor_index) {
  uint32_t n_inline_inputs = 0;
  for (uint32_t i = 0; i < f->call.n_args; i++)
    if (f->call.args[i].is_inline && n_inline_inputs++ == tensor_index) return i;
  return 0;
}

static const char *find_module_name(const cleave_runtime *rt, uint32_t index) {
  return index < rt->n_modules && rt->modules[index] ? rt->modules[index]->name : "";
}

/* Describes a value or a gradient that is about to be sent. Fails if its context has been
 * closed. */
static clv_code describe_value(const cleave_runtime *rt, const clv_frame *f, uint32_t tensor_index,
                               cleave_sending *ret, clv_err *err) {
  const api_value *v = api_id_table_get(&rt->values, f->message_id);
  if (!v) return fail_closed_context(err);
  bool is_gradient = f->kind == CLV_GRADIENT;
  ret->kind = is_gradient ? CLEAVE_SENDING_GRADIENT
              : v->module ? CLEAVE_SENDING_VALUE
                          : CLEAVE_SENDING_LEAF;
  ret->module = v->module ? api_program_module_name(v->module, &ret->input) : "";
  if (!f->has_cached || !v->cached_rows_module) return CLV_OK;
  ret->kind = CLEAVE_SENDING_CACHED;
  ret->module = v->cached_rows_module->name;
  ret->input = tensor_index + 1 == f->n_tensors;
  return CLV_OK;
}

/* Describes a kept value (cleave_keep). If this process has no record of the value, it is relaying
 * the value from one worker to another. */
static void describe_kept_value(const cleave_runtime *rt, const clv_frame *f, cleave_sending *ret) {
  const api_kept_ref *k = api_id_table_get(&rt->kept_refs, f->reference.ref_id);
  ret->kind = k && !k->module ? CLEAVE_SENDING_LEAF : CLEAVE_SENDING_VALUE;
  ret->module = k && k->module ? api_program_module_name(k->module, &ret->input) : "";
}

/* Describes a piece of a state item: sets dtype and shape to those of the complete item. */
static void describe_state_piece(const cleave_runtime *rt, const clv_frame *f,
                                 cleave_sending *ret) {
  const cleave_module *m = f->module < rt->n_modules ? rt->modules[f->module] : NULL;
  clv_dtype dtype;
  clv_shape shape;
  if (!f->state.piece_length || !m) return;
  if (!api_find_state_item_spec(m, (cleave_state_kind)f->state.part, f->state.item_or_file_name,
                                &dtype, &shape))
    return;
  ret->dtype = (cleave_dtype)dtype;
  ret->rank = shape.rank;
  memcpy(ret->shape, shape.dim, sizeof ret->shape);
}

static clv_code describe_packet(const cleave_runtime *rt, const clv_packet *p,
                                uint32_t tensor_index, cleave_sending *ret, clv_err *err) {
  const clv_frame *f = &p->frame;
  const clv_tensor *t = p->tensor[tensor_index];
  ret->dtype = (cleave_dtype)t->dtype;
  ret->rank = t->shape.rank;
  memcpy(ret->shape, t->shape.dim, sizeof ret->shape);
  ret->bytes = t->bytes;
  ret->relayed = p->received_by != NULL;
  if (f->kind == CLV_VALUE || f->kind == CLV_GRADIENT)
    return describe_value(rt, f, tensor_index, ret, err);
  if (f->kind == CLV_REF_VALUE) {
    describe_kept_value(rt, f, ret);
    return CLV_OK;
  }
  ret->kind = f->kind == CLV_CALL ? CLEAVE_SENDING_LEAF : CLEAVE_SENDING_WEIGHTS;
  if (f->kind == CLV_STATE_PUT) {
    ret->name = f->state.item_or_file_name;
    ret->optimizer = f->state.part == CLV_STATE_OPTIMIZER;
    if (f->state.part == CLV_STATE_GRADIENTS) ret->kind = CLEAVE_SENDING_GRADIENT;
    describe_state_piece(rt, f, ret);
  }
  ret->module = find_module_name(rt, f->module);
  if (f->kind == CLV_CALL) ret->input = find_input_index(f, tensor_index);
  return CLV_OK;
}

/* ---- asking the gate and the program --------------------------------------------------------- */

static clv_code convert_hook_error(const cleave_error *why, clv_err *err) {
  return clv_fail(err, why->status ? (clv_code)why->status : CLV_DENIED, "%s", why->text);
}

static clv_code ask_program(const cleave_runtime *rt, const cleave_sending *sending, clv_err *err) {
  cleave_error why = {.status = CLEAVE_OK};
  if (rt->may_send && rt->may_send(rt->user, sending, &why) != CLEAVE_OK)
    return convert_hook_error(&why, err);
  return CLV_OK;
}

/* Calls judge_tensor of the gate for the value of a module at the master, or for the gradient of a
 * value of a module at a worker. Does nothing for a relayed tensor, because all tensors from which
 * a worker computed it have passed the gate before. */
static clv_code judge_tensor(const cleave_runtime *rt, const clv_frame *f,
                             const cleave_sending *sending, clv_err *err) {
  cleave_error why = {.status = CLEAVE_OK};
  bool is_value = f->kind == CLV_VALUE, is_gradient = f->kind == CLV_GRADIENT;
  const api_value *v =
      is_value || is_gradient ? api_id_table_get(&rt->values, f->message_id) : NULL;
  if (!rt->gate.judge_tensor || !v || !v->module || sending->relayed) return CLV_OK;
  if (is_value ? v->module->node != 0 : v->module->node == 0) return CLV_OK;
  if (rt->gate.judge_tensor(rt->gate.owner, v, sending, &why) != CLEAVE_OK)
    return convert_hook_error(&why, err);
  return CLV_OK;
}

static clv_code ask_gate(const cleave_runtime *rt, const clv_frame *f,
                         const cleave_sending *sending, clv_err *err) {
  cleave_error why = {.status = CLEAVE_OK};
  if (!rt->gate.check_tensor) return CLV_OK;
  if (rt->gate.check_tensor(rt->gate.user, sending, &why) != CLEAVE_OK)
    return convert_hook_error(&why, err);
  return judge_tensor(rt, f, sending, err);
}

static clv_code charge_tensor(const cleave_runtime *rt, const cleave_sending *sending,
                              clv_err *err) {
  cleave_error why = {.status = CLEAVE_OK};
  if (!rt->gate.charge_tensor || rt->gate.charge_tensor(rt->gate.user, sending, &why) == CLEAVE_OK)
    return CLV_OK;
  return convert_hook_error(&why, err);
}

/* ---- failures that are about to be sent ------------------------------------------------------ */

static const api_peer *find_packet_sender(const cleave_runtime *rt, const clv_packet *p) {
  uint32_t i = rt->n_peers - 1;
  while (i && (!p->received_by || rt->peers[i].link != p->received_by)) i--;
  return &rt->peers[i];
}

/* Replaces a module's name in the place of a failure by `module N`, because workers know modules by
 * number. Returns the module; NULL: the place names none. */
static const cleave_module *replace_module_name(const cleave_runtime *rt, clv_frame *f) {
  unsigned number;
  if (sscanf(f->failure.detected_at, "module %u", &number) == 1)
    return number < rt->n_modules ? rt->modules[number] : NULL;
  uint32_t i = 0;
  while (i < rt->n_modules && strcmp(find_module_name(rt, i), f->failure.detected_at) != 0) i++;
  if (!f->failure.detected_at[0] || i == rt->n_modules) return NULL;
  snprintf(f->failure.detected_at, sizeof f->failure.detected_at, "module %u", i);
  return rt->modules[i];
}

static uint64_t find_frame_step(const cleave_runtime *rt, const clv_frame *f) {
  const api_context *c = f->context ? api_id_table_get(&rt->contexts, f->context) : NULL;
  return c && c->rng_step ? c->rng_step : f->context;
}

/* Stores a failure in rt->redacted_errors and returns its number. If the failure was stored before,
 * returns its earlier number, and sets the place in f to the place that was sent then. */
static uint64_t store_redacted_error(cleave_runtime *rt, clv_frame *f,
                                     const cleave_error *full_error) {
  for (uint64_t n = rt->n_redacted_errors;
       n > 0 && n + API_MAX_REDACTED_ERRORS > rt->n_redacted_errors; n--) {
    const api_redacted_error *t = &rt->redacted_errors[n % API_MAX_REDACTED_ERRORS];
    if (t->context != f->context || strcmp(t->full_error.text, full_error->text) != 0 ||
        strcmp(t->full_error.hop, full_error->hop) != 0)
      continue;
    memcpy(f->failure.detected_at, t->hop, sizeof f->failure.detected_at);
    return n;
  }
  api_redacted_error *t = &rt->redacted_errors[++rt->n_redacted_errors % API_MAX_REDACTED_ERRORS];
  *t = (api_redacted_error){.full_error = *full_error, .context = f->context};
  memcpy(t->hop, f->failure.detected_at, sizeof t->hop);
  return rt->n_redacted_errors;
}

/* Prepares a failure for sending: replaces its text by code and place, because the text may quote
 * secrets of the master or of another worker. Then asks the gate and may_send. */
static clv_code send_failure(const api_peer *to, clv_packet *p, clv_err *err) {
  cleave_runtime *rt = to->runtime;
  clv_frame *f = &p->frame;
  cleave_error full_error;
  api_failure_from_frame(find_packet_sender(rt, p), f, &full_error);
  const cleave_module *m = replace_module_name(rt, f);
  uint64_t number = store_redacted_error(rt, f, &full_error);
  clv_frame_redact_failure(f, find_frame_step(rt, f), number);
  snprintf(rt->redacted_errors[number % API_MAX_REDACTED_ERRORS].sent_text, CLV_WIRE_TEXT + 1, "%s",
           f->failure.text);
  cleave_sending sending = {.kind = CLEAVE_SENDING_FAILURE,
                            .worker = to->name,
                            .module = m ? api_program_module_name(m, &(uint32_t){0}) : "",
                            .name = "",
                            .relayed = p->received_by != NULL,
                            .bytes = strlen(f->failure.text)};
  CLV_TRY(ask_gate(rt, &p->frame, &sending, err));
  CLV_TRY(ask_program(rt, &sending, err));
  return charge_tensor(rt, &sending, err);
}

clv_code api_may_send(void *user, clv_link *link, clv_packet *p, clv_err *err) {
  api_peer *to = user;
  cleave_runtime *rt = to->runtime;
  (void)link;
  LOCKED(rt);
  if (clv_frame_is_failure(&p->frame)) CLV_TRY(send_failure(to, p, err));
  if (!rt->may_send && !rt->gate.check_tensor) return CLV_OK;
  /* A packet is sent with all its tensors or not at all, so a tensor is counted (charge_tensor)
   * only after all tensors are permitted. */
  cleave_sending sending[CLV_WIRE_TENSORS];
  for (uint32_t i = 0; i < p->frame.n_tensors; i++) {
    sending[i] = (cleave_sending){.worker = to->name, .name = ""};
    CLV_TRY(describe_packet(rt, p, i, &sending[i], err));
    CLV_TRY(ask_gate(rt, &p->frame, &sending[i], err));
    CLV_TRY(ask_program(rt, &sending[i], err));
  }
  for (uint32_t i = 0; i < p->frame.n_tensors; i++) CLV_TRY(charge_tensor(rt, &sending[i], err));
  return CLV_OK;
}
