/* SPDX-License-Identifier: Apache-2.0
 *
 * Makes packets of the frames of contexts. The master calls these functions, one for each kind of
 * frame.
 */
#include "common/net/link/link_int.h"

#include <stdio.h>
#include <string.h>

static clv_code new_context_packet(clv_pool *pool, clv_frame_kind kind, uint64_t context,
                                   uint64_t message_id, clv_packet **ret, clv_err *err) {
  CLV_TRY(clv_packet_new(pool, kind, ret, err));
  (*ret)->frame.context = context;
  (*ret)->frame.message_id = message_id;
  return CLV_OK;
}

static clv_code new_packet_to_node(clv_pool *pool, clv_frame_kind kind, uint64_t context,
                                   uint64_t message_id, const char *to, clv_packet **ret,
                                   clv_err *err) {
  if (strlen(to) > CLV_WIRE_NAME)
    return clv_fail(err, CLV_INVALID, "the node name has %zu bytes, the limit is %d", strlen(to),
                    CLV_WIRE_NAME);
  CLV_TRY(new_context_packet(pool, kind, context, message_id, ret, err));
  snprintf((*ret)->frame.to, sizeof(*ret)->frame.to, "%s", to);
  return CLV_OK;
}

clv_code clv_packet_new_call(clv_pool *pool, uint64_t context, uint64_t call, uint32_t module,
                             bool is_training, clv_packet **ret, clv_err *err) {
  CLV_TRY(new_context_packet(pool, CLV_CALL, context, call, ret, err));
  (*ret)->frame.module = module;
  (*ret)->frame.flags = is_training ? CLV_FLAG_TRAINING : 0;
  return CLV_OK;
}

clv_code clv_packet_add_arg(clv_packet *call, uint64_t value, bool needs_grad,
                            clv_tensor *own_tensor, clv_err *err) {
  clv_frame *f = &call->frame;
  if (f->call.n_args == CLV_WIRE_ARGS)
    return clv_fail(err, CLV_EXHAUSTED, "a call has at most %d arguments", CLV_WIRE_ARGS);
  f->call.args[f->call.n_args++] = (clv_arg){value, needs_grad, own_tensor != NULL};
  if (own_tensor) clv_packet_add_tensor(call, own_tensor);
  return CLV_OK;
}

clv_code clv_packet_add_delivery(clv_packet *call, const char *to, clv_err *err) {
  if (strlen(to) > CLV_WIRE_NAME)
    return clv_fail(err, CLV_INVALID, "the node name has %zu bytes, the limit is %d", strlen(to),
                    CLV_WIRE_NAME);
  call->frame.flags |= CLV_FLAG_DELIVER;
  snprintf(call->frame.to, sizeof call->frame.to, "%s", to);
  return CLV_OK;
}

clv_code clv_packet_new_deliver(clv_pool *pool, uint64_t context, uint64_t value, const char *to,
                                clv_packet **ret, clv_err *err) {
  return new_packet_to_node(pool, CLV_DELIVER, context, value, to, ret, err);
}

clv_code clv_packet_new_value(clv_pool *pool, uint64_t context, uint64_t value, const char *to,
                              clv_tensor *t, clv_packet **ret, clv_err *err) {
  CLV_TRY(new_packet_to_node(pool, CLV_VALUE, context, value, to, ret, err));
  clv_packet_add_tensor(*ret, t);
  return CLV_OK;
}

static clv_code new_packet_of_values(clv_pool *pool, clv_frame_kind kind, uint64_t context,
                                     const uint64_t *values, uint32_t n, clv_packet **ret,
                                     clv_err *err) {
  if (n > CLV_WIRE_UPSTREAM)
    return clv_fail(err, CLV_EXHAUSTED, "%u values in one %s frame, the limit is %d", n,
                    clv_frame_kind_name(kind), CLV_WIRE_UPSTREAM);
  CLV_TRY(new_context_packet(pool, kind, context, 0, ret, err));
  (*ret)->frame.n_value_ids = n;
  memcpy((*ret)->frame.value_ids, values, n * sizeof *values);
  return CLV_OK;
}

clv_code clv_packet_new_drop(clv_pool *pool, uint64_t context, uint64_t n_calls,
                             const uint64_t *values, uint32_t n, clv_packet **ret, clv_err *err) {
  CLV_TRY(new_packet_of_values(pool, CLV_DROP, context, values, n, ret, err));
  (*ret)->frame.step = n_calls;
  return CLV_OK;
}

clv_code clv_packet_new_spare(clv_pool *pool, uint64_t context, const uint64_t *values, uint32_t n,
                              clv_packet **ret, clv_err *err) {
  return new_packet_of_values(pool, CLV_SPARE, context, values, n, ret, err);
}

clv_code clv_packet_new_prepare(clv_pool *pool, uint64_t context, uint32_t phase, uint64_t n_calls,
                                bool retains_graph, bool needs_vote, bool more_follow,
                                clv_packet **ret, clv_err *err) {
  CLV_TRY(new_context_packet(pool, CLV_PREPARE, context, 0, ret, err));
  (*ret)->frame.backward_pass_number = phase;
  (*ret)->frame.step = n_calls;
  (*ret)->frame.backward.retains_graph = retains_graph;
  (*ret)->frame.backward.needs_vote = needs_vote;
  (*ret)->frame.backward.more_follow = more_follow;
  return CLV_OK;
}

clv_code clv_packet_add_needed_call(clv_packet *prepare, uint64_t call, uint32_t n_contributions,
                                    float root_gradient, clv_err *err) {
  clv_frame *f = &prepare->frame;
  if (f->backward.n_needed_calls == CLV_WIRE_NEEDED_CALLS)
    return clv_fail(err, CLV_EXHAUSTED, "a PREPARE has at most %d calls", CLV_WIRE_NEEDED_CALLS);
  f->backward.needed_calls[f->backward.n_needed_calls++] = (clv_needed_call){
      .call_id = call, .n_contributions = n_contributions, .root_gradient = root_gradient};
  return CLV_OK;
}

/* Returns the number of a name in the frame's list, from 1; 0 for the master. Adds the name if
 * needed. */
static clv_code find_or_add_name(clv_frame *f, const char *to, uint32_t *ret, clv_err *err) {
  uint32_t i = 0;
  *ret = 0;
  if (!to[0]) return CLV_OK;
  while (i < f->backward.n_peers && strcmp(f->backward.peer_names[i], to) != 0) i++;
  if (i == CLV_WIRE_PREPARE_PEERS || strlen(to) > CLV_WIRE_NAME)
    return clv_fail(err, CLV_EXHAUSTED, "a PREPARE has at most %d names of %d bytes",
                    CLV_WIRE_PREPARE_PEERS, CLV_WIRE_NAME);
  if (i == f->backward.n_peers)
    snprintf(f->backward.peer_names[f->backward.n_peers++], CLV_WIRE_NAME + 1, "%s", to);
  *ret = i + 1;
  return CLV_OK;
}

clv_code clv_packet_add_target(clv_packet *prepare, uint32_t slot, uint64_t value, const char *to,
                               uint32_t contribution_index, clv_err *err) {
  clv_frame *f = &prepare->frame;
  uint32_t index;
  if (f->backward.n_needed_calls == 0)
    return clv_fail(err, CLV_PRECONDITION, "add a needed call before its targets");
  if (f->backward.n_grad_targets == CLV_WIRE_TARGETS)
    return clv_fail(err, CLV_EXHAUSTED, "a PREPARE has at most %d targets", CLV_WIRE_TARGETS);
  CLV_TRY(find_or_add_name(f, to, &index, err));
  f->backward.grad_targets[f->backward.n_grad_targets++] =
      (clv_target){.value_id = value,
                   .input_index = slot,
                   .contribution_index = contribution_index,
                   .to_peer = index};
  f->backward.needed_calls[f->backward.n_needed_calls - 1].n_grad_targets++;
  return CLV_OK;
}

clv_code clv_packet_new_gradient(clv_pool *pool, uint64_t context, uint32_t phase, uint64_t value,
                                 uint32_t contribution_index, const char *to, clv_tensor *t,
                                 clv_packet **ret, clv_err *err) {
  CLV_TRY(new_packet_to_node(pool, CLV_GRADIENT, context, value, to, ret, err));
  (*ret)->frame.backward_pass_number = phase;
  (*ret)->frame.contribution_index = contribution_index;
  if (t) clv_packet_add_tensor(*ret, t);
  return CLV_OK;
}

clv_code clv_packet_new_apply(clv_pool *pool, uint64_t context, uint64_t message_id,
                              uint32_t module, float scale, float lr, bool applies_step,
                              clv_packet **ret, clv_err *err) {
  CLV_TRY(new_context_packet(pool, CLV_APPLY, context, message_id, ret, err));
  (*ret)->frame.module = module;
  (*ret)->frame.commit.scale = scale;
  (*ret)->frame.commit.lr = lr;
  (*ret)->frame.commit.applies_step = applies_step;
  return CLV_OK;
}

clv_code clv_packet_new_planned_step(clv_pool *pool, uint64_t context, uint64_t message_id,
                                     uint32_t module, uint32_t position, bool saves_weights,
                                     float lr, clv_packet **ret, clv_err *err) {
  CLV_TRY(clv_packet_new_apply(pool, context, message_id, module, 1, lr, true, ret, err));
  (*ret)->frame.commit.step_position = position;
  (*ret)->frame.commit.saves_weights = saves_weights;
  return CLV_OK;
}

void clv_packet_set_execution_positions(clv_packet *call, uint32_t position,
                                        uint32_t input_position, uint32_t weight_position,
                                        bool uses_old_weights) {
  call->frame.call.forward_position = position;
  call->frame.call.input_grad_position = input_position;
  call->frame.call.weight_grad_position = weight_position;
  call->frame.call.uses_old_weights = uses_old_weights;
}

clv_code clv_packet_set_group_lrs(clv_packet *apply, const float *lrs, uint32_t n, clv_err *err) {
  if (n > CLV_WIRE_GROUPS)
    return clv_fail(err, CLV_EXHAUSTED,
                    "%u learning rates of further parameter groups, the limit is %d", n,
                    CLV_WIRE_GROUPS);
  apply->frame.commit.n_group_lrs = n;
  memcpy(apply->frame.commit.group_lrs, lrs, n * sizeof *lrs);
  return CLV_OK;
}

clv_code clv_packet_new_revert(clv_pool *pool, uint64_t context, uint64_t message_id,
                               clv_packet **ret, clv_err *err) {
  return new_context_packet(pool, CLV_REVERT, context, message_id, ret, err);
}

void clv_packet_set_end_commit(clv_packet *end, float scale, float lr, bool applies_step) {
  clv_frame *f = &end->frame;
  f->has_commit = true;
  f->commit.scale = scale;
  f->commit.lr = lr;
  f->commit.applies_step = applies_step;
}

clv_code clv_packet_new_end_context(clv_pool *pool, uint64_t context, uint64_t message_id,
                                    clv_packet **ret, clv_err *err) {
  return new_context_packet(pool, CLV_END_CONTEXT, context, message_id, ret, err);
}

/* ---- frames of references that outlive their context ----------------------------------------- */

static clv_code new_packet_of_ref(clv_pool *pool, clv_frame_kind kind, const clv_ref_ids *ids,
                                  clv_packet **ret, clv_err *err) {
  CLV_TRY(clv_packet_new(pool, kind, ret, err));
  (*ret)->frame.reference.ref_id = ids->ref_id;
  (*ret)->frame.reference.fork_id = ids->fork_id;
  (*ret)->frame.reference.ref_key = ids->random_key;
  return CLV_OK;
}

clv_code clv_packet_new_ref_keep(clv_pool *pool, const clv_ref_ids *ids, const char *owner,
                                 uint64_t context, uint64_t value, clv_tensor *own_tensor,
                                 clv_packet **ret, clv_err *err) {
  CLV_TRY(new_packet_of_ref(pool, CLV_REF_KEEP, ids, ret, err));
  snprintf((*ret)->frame.to, sizeof(*ret)->frame.to, "%s", owner);
  (*ret)->frame.context = context;
  (*ret)->frame.message_id = value;
  if (own_tensor) clv_packet_add_tensor(*ret, own_tensor);
  return CLV_OK;
}

clv_code clv_packet_new_ref_use(clv_pool *pool, const clv_ref_ids *ids, uint64_t new_fork_id,
                                const char *to, uint64_t context, uint64_t value, clv_packet **ret,
                                clv_err *err) {
  CLV_TRY(new_packet_of_ref(pool, CLV_REF_USE, ids, ret, err));
  snprintf((*ret)->frame.to, sizeof(*ret)->frame.to, "%s", to);
  (*ret)->frame.reply_to = new_fork_id;
  (*ret)->frame.context = context;
  (*ret)->frame.message_id = value;
  return CLV_OK;
}

clv_code clv_packet_new_ref_fetch(clv_pool *pool, const clv_ref_ids *ids, clv_packet **ret,
                                  clv_err *err) {
  return new_packet_of_ref(pool, CLV_REF_FETCH, ids, ret, err);
}

clv_code clv_packet_new_ref_release(clv_pool *pool, const clv_ref_ids *ids, clv_packet **ret,
                                    clv_err *err) {
  return new_packet_of_ref(pool, CLV_REF_DELETE, ids, ret, err);
}

clv_code clv_packet_new_state_get(clv_pool *pool, uint64_t context, uint64_t message_id,
                                  uint32_t module, clv_state_kind what, clv_packet **ret,
                                  clv_err *err) {
  CLV_TRY(new_context_packet(pool, CLV_STATE_GET, context, message_id, ret, err));
  (*ret)->frame.module = module;
  (*ret)->frame.state.part = what;
  return CLV_OK;
}
