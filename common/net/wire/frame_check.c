/* SPDX-License-Identifier: Apache-2.0
 *
 * Rules about complete frames. clv_frame_decode and clv_frame_encode call clv_frame_check.
 */
#include "common/net/wire/frame_int.h"

#include <math.h>
#include <string.h>

/* Required and optional parts of a frame of each kind. */
typedef struct kind_rule {
  const char *kind_name;
  /* bits of the bodies that a frame must have, and of those that it may have */
  unsigned required_bodies, allowed_bodies;
  bool needs_context, needs_message_id, may_name_worker;
  uint32_t min_tensors, max_tensors;
} kind_rule;

static const kind_rule rules[CLV_FRAME_KINDS] = {
    [CLV_ATTACH] = {.kind_name = "ATTACH", .required_bodies = BODY_ATTACH},
    [CLV_ATTACHED] = {.kind_name = "ATTACHED", .required_bodies = BODY_ATTACHED},
    [CLV_ABORT] = {.kind_name = "ABORT", .required_bodies = BODY_FAILURE},
    [CLV_CREDIT] = {.kind_name = "CREDIT", .required_bodies = BODY_CREDIT},
    [CLV_CHUNK] = {.kind_name = "CHUNK", .required_bodies = BODY_CHUNK},
    [CLV_ERROR] = {.kind_name = "ERROR", .required_bodies = BODY_FAILURE},
    [CLV_STATE_GET] = {.kind_name = "STATE_GET", .required_bodies = BODY_STATE},
    [CLV_STATE_ITEM] = {.kind_name = "STATE_ITEM",
                        .required_bodies = BODY_STATE,
                        .min_tensors = 1,
                        .max_tensors = 1},
    [CLV_STATE_PUT] = {.kind_name = "STATE_PUT",
                       .required_bodies = BODY_STATE,
                       .min_tensors = 1,
                       .max_tensors = 1},
    [CLV_STATE_DONE] = {.kind_name = "STATE_DONE", .required_bodies = BODY_STATE},
    [CLV_PING] = {.kind_name = "PING"},
    [CLV_PONG] = {.kind_name = "PONG", .allowed_bodies = BODY_MEASURE},
    [CLV_END_CONTEXT] = {.kind_name = "END_CONTEXT",
                         .allowed_bodies = BODY_COMMIT,
                         .needs_context = true},
    [CLV_ENDED] = {.kind_name = "ENDED", .needs_context = true, .max_tensors = 1},
    [CLV_CALL] = {.kind_name = "CALL",
                  .required_bodies = BODY_CALL,
                  .needs_context = true,
                  .max_tensors = CLV_WIRE_ARGS,
                  .needs_message_id = true,
                  .may_name_worker = true},
    [CLV_DELIVER] = {.kind_name = "DELIVER",
                     .needs_context = true,
                     .needs_message_id = true,
                     .may_name_worker = true},
    [CLV_VALUE] = {.kind_name = "VALUE",
                   .allowed_bodies = BODY_FAILURE | BODY_CACHED,
                   .needs_context = true,
                   .max_tensors = 2, /* two tensors only with `cached` */
                   .needs_message_id = true,
                   .may_name_worker = true},
    [CLV_DROP] = {.kind_name = "DROP", .needs_context = true},
    [CLV_SPARE] = {.kind_name = "SPARE", .needs_context = true},
    [CLV_PREPARE] = {.kind_name = "PREPARE",
                     .required_bodies = BODY_BACKWARD,
                     .needs_context = true},
    [CLV_GRADIENT] = {.kind_name = "GRADIENT",
                      .needs_context = true,
                      .max_tensors = 1,
                      .needs_message_id = true,
                      .may_name_worker = true},
    [CLV_FINISHED] = {.kind_name = "FINISHED",
                      .allowed_bodies = BODY_VOTE,
                      .needs_context = true,
                      .max_tensors = 1},
    [CLV_APPLY] = {.kind_name = "APPLY",
                   .required_bodies = BODY_COMMIT,
                   .needs_context = true,
                   .needs_message_id = true},
    [CLV_APPLIED] = {.kind_name = "APPLIED", .needs_context = true},
    [CLV_REVERT] = {.kind_name = "REVERT", .needs_context = true, .needs_message_id = true},
    [CLV_UNLOAD] = {.kind_name = "UNLOAD", .needs_message_id = true},
    [CLV_UNLOADED] = {.kind_name = "UNLOADED"},
    [CLV_STATE_SAVE] = {.kind_name = "STATE_SAVE",
                        .required_bodies = BODY_STATE,
                        .needs_message_id = true},
    [CLV_STATE_LOAD] = {.kind_name = "STATE_LOAD",
                        .required_bodies = BODY_STATE,
                        .needs_message_id = true},
    [CLV_STATE_REMOVE] = {.kind_name = "STATE_REMOVE",
                          .required_bodies = BODY_STATE,
                          .needs_message_id = true},
    [CLV_STATE_FILE] = {.kind_name = "STATE_FILE", .required_bodies = BODY_STATE},
    [CLV_ACK] = {.kind_name = "ACK", .required_bodies = BODY_ACK},
    [CLV_REF_KEEP] = {.kind_name = "REF_KEEP",
                      .required_bodies = BODY_REFERENCE,
                      .needs_context = true,
                      .needs_message_id = true,
                      .may_name_worker = true},
    [CLV_REF_USE] = {.kind_name = "REF_USE",
                     .required_bodies = BODY_REFERENCE,
                     .needs_context = true,
                     .needs_message_id = true,
                     .may_name_worker = true},
    [CLV_REF_FORK] = {.kind_name = "REF_FORK",
                      .required_bodies = BODY_REFERENCE,
                      .may_name_worker = true},
    [CLV_REF_ACCEPT] = {.kind_name = "REF_ACCEPT",
                        .required_bodies = BODY_REFERENCE,
                        .may_name_worker = true},
    [CLV_REF_DELETE] = {.kind_name = "REF_DELETE",
                        .required_bodies = BODY_REFERENCE,
                        .may_name_worker = true},
    [CLV_REF_FETCH] = {.kind_name = "REF_FETCH",
                       .required_bodies = BODY_REFERENCE,
                       .may_name_worker = true},
    [CLV_REF_VALUE] = {.kind_name = "REF_VALUE",
                       .required_bodies = BODY_REFERENCE,
                       .allowed_bodies = BODY_FAILURE,
                       .max_tensors = 1,
                       .may_name_worker = true},
    [CLV_REF_RENEW] = {.kind_name = "REF_RENEW",
                       .required_bodies = BODY_REFERENCE,
                       .may_name_worker = true},
    [CLV_REF_ACK] = {.kind_name = "REF_ACK",
                     .required_bodies = BODY_REFERENCE,
                     .allowed_bodies = BODY_FAILURE,
                     .may_name_worker = true},
};

static bool is_known_kind(clv_frame_kind kind) {
  return kind >= CLV_ATTACH && kind < CLV_FRAME_KINDS && rules[kind].kind_name;
}

const char *clv_frame_kind_name(clv_frame_kind kind) {
  return is_known_kind(kind) ? rules[kind].kind_name : "?";
}

unsigned clv_frame_body_bits(const clv_frame *f) {
  if (!is_known_kind(f->kind)) return 0;
  unsigned flag_bodies = (f->has_commit ? BODY_COMMIT : 0u) | (f->has_vote ? BODY_VOTE : 0u) |
                         (f->has_failure ? BODY_FAILURE : 0u) |
                         (f->has_measure ? BODY_MEASURE : 0u) | (f->has_cached ? BODY_CACHED : 0u);
  return rules[f->kind].required_bodies | (rules[f->kind].allowed_bodies & flag_bodies);
}

void clv_frame_set_has_flags(clv_frame *f, unsigned bodies) {
  unsigned optional_bodies = rules[f->kind].allowed_bodies & bodies;
  f->has_commit = optional_bodies & BODY_COMMIT;
  f->has_vote = optional_bodies & BODY_VOTE;
  f->has_failure = optional_bodies & BODY_FAILURE;
  f->has_measure = optional_bodies & BODY_MEASURE;
  f->has_cached = optional_bodies & BODY_CACHED;
}

/* ---- checks of bodies, a function for each body ---------------------------------------------- */

static clv_code check_byte_count(uint64_t bytes, const char *what, clv_err *err) {
  if (bytes > CLV_WIRE_BYTES_MAX)
    return clv_fail(err, CLV_INVALID, "%s of %llu is over the limit of %llu", what,
                    (unsigned long long)bytes, (unsigned long long)CLV_WIRE_BYTES_MAX);
  return CLV_OK;
}

static clv_code check_attach(const clv_frame *f, size_t payload_len, clv_err *err) {
  (void)payload_len;
  if (f->attach.n_lanes > CLV_WIRE_LANES || f->attach.lane_index > f->attach.n_lanes)
    return clv_fail(err, CLV_INVALID, "lane %u of %u; at most %d lanes", f->attach.lane_index,
                    f->attach.n_lanes, CLV_WIRE_LANES);
  if (f->attach.role != CLV_ATTACH_MASTER && f->attach.role != CLV_ATTACH_PEER)
    return clv_fail(err, CLV_INVALID, "unknown role %u", (unsigned)f->attach.role);
  return CLV_OK;
}

static clv_code check_attached(const clv_frame *f, size_t payload_len, clv_err *err) {
  (void)payload_len;
  return check_byte_count(f->attached.credit_bytes, "first credit", err);
}

static clv_code check_commit(const clv_frame *f, size_t payload_len, clv_err *err) {
  (void)payload_len;
  if (!isfinite(f->commit.scale) || !isfinite(f->commit.lr))
    return clv_fail(err, CLV_INVALID, "scale %g and learning rate %g must be finite",
                    (double)f->commit.scale, (double)f->commit.lr);
  if (f->commit.n_group_lrs > CLV_WIRE_GROUPS)
    return clv_fail(err, CLV_INVALID, "%u more learning rates; at most %d", f->commit.n_group_lrs,
                    CLV_WIRE_GROUPS);
  for (uint32_t i = 0; i < f->commit.n_group_lrs; i++)
    if (!isfinite(f->commit.group_lrs[i]))
      return clv_fail(err, CLV_INVALID, "the learning rate of group %u is %g; it must be finite",
                      i + 1, (double)f->commit.group_lrs[i]);
  if (f->commit.step_position > CLV_WIRE_POSITIONS ||
      (f->commit.step_position && f->kind != CLV_APPLY))
    return clv_fail(err, CLV_INVALID, "position %u; at most %d, and of an APPLY alone",
                    f->commit.step_position, CLV_WIRE_POSITIONS);
  if (f->commit.step_position && !f->commit.applies_step)
    return clv_fail(err, CLV_INVALID, "position %u is set, but apply is false",
                    f->commit.step_position);
  return CLV_OK;
}

static clv_code check_failure(const clv_frame *f, size_t payload_len, clv_err *err) {
  (void)payload_len;
  if (f->failure.code < CLV_CANCELLED || f->failure.code > CLV_UNAUTHENTICATED)
    return clv_fail(err, CLV_INVALID, "code %u is outside 1..16", (unsigned)f->failure.code);
  CLV_TRY(clv_text_check(f->failure.text, strlen(f->failure.text), "failure.text", err));
  return clv_text_check(f->failure.detected_at, strlen(f->failure.detected_at), "failure.hop", err);
}

static clv_code check_credit(const clv_frame *f, size_t payload_len, clv_err *err) {
  (void)payload_len;
  return check_byte_count(f->credit.bytes, "credit", err);
}

static clv_code check_chunk(const clv_frame *f, size_t payload_len, clv_err *err) {
  if (f->chunk.transfer_id == 0) return clv_fail(err, CLV_INVALID, "transfer id 0 in a CHUNK");
  if (payload_len == 0) return clv_fail(err, CLV_INVALID, "a CHUNK without bytes");
  if (f->chunk.offset > f->chunk.total_bytes ||
      payload_len > f->chunk.total_bytes - f->chunk.offset)
    return clv_fail(err, CLV_INVALID, "%zu bytes at offset %llu run past the total of %llu",
                    payload_len, (unsigned long long)f->chunk.offset,
                    (unsigned long long)f->chunk.total_bytes);
  return check_byte_count(f->chunk.total_bytes, "chunk.total", err);
}

/* Checks a file name, which must not be a path: the worker chooses the folder. */
static clv_code check_file_name(const clv_frame *f, clv_err *err) {
  if (f->kind < CLV_STATE_SAVE || f->kind > CLV_STATE_FILE) return CLV_OK;
  if (f->state.part == CLV_STATE_GRADIENTS)
    return clv_fail(err, CLV_INVALID, "gradients cannot be in a state file");
  if (!clv_is_file_name(f->state.item_or_file_name))
    return clv_fail(err, CLV_INVALID,
                    "the name of a file of state is 1..%d of [A-Za-z0-9._-], no dot first",
                    CLV_FILE_NAME);
  return check_byte_count(f->state.file_bytes, "state.bytes", err);
}

/* Checks a STATE_ frame about a piece of an item (part of its bytes): the item has a name, and a
 * tensor that carries the piece has as many bytes as the frame states. */
static clv_code check_state_piece(const clv_frame *f, clv_err *err) {
  const clv_tensor_head *t = f->n_tensors ? &f->tensors[0] : NULL;
  bool asks_for_piece = f->kind == CLV_STATE_GET,
       carries_piece = f->kind == CLV_STATE_ITEM || f->kind == CLV_STATE_PUT;
  CLV_TRY(check_byte_count(f->state.piece_offset, "state.offset", err));
  CLV_TRY(check_byte_count(f->state.piece_length, "state.length", err));
  if (!f->state.piece_length && !f->state.piece_offset) return CLV_OK;
  if (!f->state.piece_length || !(asks_for_piece || carries_piece) ||
      !f->state.item_or_file_name[0] || f->state.part == CLV_STATE_GRADIENTS)
    return clv_fail(err, CLV_INVALID,
                    "a piece of %llu bytes, in a frame or item that cannot have pieces",
                    (unsigned long long)f->state.piece_length);
  if (carries_piece && !(t && t->dtype == CLV_U8 && t->bytes == f->state.piece_length))
    return clv_fail(err, CLV_INVALID, "a piece of %llu bytes, but its tensor has another size",
                    (unsigned long long)f->state.piece_length);
  return CLV_OK;
}

static clv_code check_state(const clv_frame *f, size_t payload_len, clv_err *err) {
  (void)payload_len;
  bool is_item = f->kind == CLV_STATE_ITEM || f->kind == CLV_STATE_PUT;
  bool is_gradients = f->state.part == CLV_STATE_GRADIENTS;
  bool is_ema =
      f->state.part == CLV_STATE_EMA && (f->kind == CLV_STATE_LOAD || f->kind == CLV_STATE_FILE);
  if (f->state.part != CLV_STATE_WEIGHTS && f->state.part != CLV_STATE_OPTIMIZER && !is_gradients &&
      !is_ema)
    return clv_fail(err, CLV_INVALID, "unknown kind of state %u", (unsigned)f->state.part);
  if (is_gradients && f->kind == CLV_STATE_PUT && !f->context)
    return clv_fail(err, CLV_INVALID, "a STATE_PUT of a gradient without its context");
  if (f->state.n_items > CLV_WIRE_PARAMS || (is_item && f->state.item_index >= f->state.n_items))
    return clv_fail(err, CLV_INVALID, "state item %u of %u; at most %d", f->state.item_index,
                    f->state.n_items, CLV_WIRE_PARAMS);
  if (is_item && !f->state.item_or_file_name[0])
    return clv_fail(err, CLV_INVALID, "a state item without a name");
  CLV_TRY(check_file_name(f, err));
  CLV_TRY(check_state_piece(f, err));
  CLV_TRY(clv_text_check(f->state.device_name, strlen(f->state.device_name), "state.device", err));
  return clv_text_check(f->state.item_or_file_name, strlen(f->state.item_or_file_name),
                        "state.name", err);
}

/* Checks that the positions of a call's parts ascend. */
static clv_code check_positions(const clv_frame *f, clv_err *err) {
  uint32_t position = f->call.forward_position, input = f->call.input_grad_position,
           weight = f->call.weight_grad_position;
  bool is_input_ascending =
      input <= CLV_WIRE_POSITIONS && (!input || (position && position < input));
  bool is_weight_ascending = weight <= CLV_WIRE_POSITIONS && (!weight || (input && input < weight));
  if (position <= CLV_WIRE_POSITIONS && is_input_ascending && is_weight_ascending) return CLV_OK;
  return clv_fail(err, CLV_INVALID, "positions %u, %u and %u; they ascend to at most %d", position,
                  input, weight, CLV_WIRE_POSITIONS);
}

/* Checks that each tensor of a CALL belongs to an argument. */
static clv_code check_call(const clv_frame *f, size_t payload_len, clv_err *err) {
  (void)payload_len;
  uint32_t n_inline = 0;
  if (f->call.n_args > CLV_WIRE_ARGS)
    return clv_fail(err, CLV_INVALID, "more than %d arguments", CLV_WIRE_ARGS);
  for (uint32_t i = 0; i < f->call.n_args; i++) {
    n_inline += f->call.args[i].is_inline;
    if (!f->call.args[i].value_id && !f->call.args[i].is_inline)
      return clv_fail(err, CLV_INVALID, "argument %u has neither a tensor nor a value id", i);
  }
  if (!f->call.n_args || n_inline != f->n_tensors)
    return clv_fail(err, CLV_INVALID, "%u arguments, %u of them inline, but %u tensors",
                    f->call.n_args, n_inline, f->n_tensors);
  return check_positions(f, err);
}

static clv_code check_needed_calls(const clv_frame *f, uint32_t index, uint32_t first,
                                   clv_err *err) {
  const clv_needed_call *call = &f->backward.needed_calls[index];
  if (!call->call_id) return clv_fail(err, CLV_INVALID, "needed call %u has id 0", index);
  if (!isfinite(call->root_gradient))
    return clv_fail(err, CLV_INVALID, "needed call %u: a root that starts with %g", index,
                    (double)call->root_gradient);
  if (call->n_contributions > CLV_WIRE_CONTRIBUTIONS)
    return clv_fail(err, CLV_INVALID, "needed call %u: %u contributions; at most %d", index,
                    call->n_contributions, CLV_WIRE_CONTRIBUTIONS);
  for (uint32_t i = first; i < first + call->n_grad_targets; i++) {
    const clv_target *t = &f->backward.grad_targets[i];
    if (!t->value_id || t->input_index >= CLV_WIRE_ARGS || t->to_peer > f->backward.n_peers ||
        t->contribution_index >= CLV_WIRE_CONTRIBUTIONS)
      return clv_fail(err, CLV_INVALID,
                      "needed call %u: target of value %llu, slot %u, peer %u of %u, order %u",
                      index, (unsigned long long)t->value_id, t->input_index, t->to_peer,
                      f->backward.n_peers, t->contribution_index);
    for (uint32_t j = first; j < i; j++)
      if (f->backward.grad_targets[j].input_index == t->input_index)
        return clv_fail(err, CLV_INVALID, "needed call %u: slot %u has two targets", index,
                        t->input_index);
  }
  return CLV_OK;
}

static clv_code check_backward(const clv_frame *f, size_t payload_len, clv_err *err) {
  (void)payload_len;
  uint32_t first = 0;
  if (f->backward.n_needed_calls > CLV_WIRE_NEEDED_CALLS ||
      f->backward.n_grad_targets > CLV_WIRE_TARGETS || f->backward.n_peers > CLV_WIRE_PREPARE_PEERS)
    return clv_fail(err, CLV_INVALID, "%u calls, %u targets and %u peers; at most %d, %d and %d",
                    f->backward.n_needed_calls, f->backward.n_grad_targets, f->backward.n_peers,
                    CLV_WIRE_NEEDED_CALLS, CLV_WIRE_TARGETS, CLV_WIRE_PREPARE_PEERS);
  if (!f->backward_pass_number) return clv_fail(err, CLV_INVALID, "phase 0; the first is 1");
  for (uint32_t i = 0; i < f->backward.n_needed_calls; i++) {
    if (f->backward.needed_calls[i].n_grad_targets > f->backward.n_grad_targets - first)
      return clv_fail(err, CLV_INVALID, "more targets than the frame has");
    CLV_TRY(check_needed_calls(f, i, first, err));
    first += f->backward.needed_calls[i].n_grad_targets;
  }
  for (uint32_t i = 0; i < f->backward.n_peers; i++) {
    const char *name = f->backward.peer_names[i];
    if (!name[0]) return clv_fail(err, CLV_INVALID, "peer %u without a name", i);
    CLV_TRY(clv_text_check(name, strlen(name), "backward.peers", err));
  }
  return CLV_OK;
}

/* Checks a frame about references. REF_VALUE has no number; REF_RENEW and REF_ACK name no
 * reference. */
static clv_code check_reference(const clv_frame *f, size_t payload_len, clv_err *err) {
  (void)payload_len;
  bool names_reference = f->kind != CLV_REF_RENEW && f->kind != CLV_REF_ACK;
  if ((f->kind == CLV_REF_VALUE) != (f->reference.message_number == 0))
    return clv_fail(err, CLV_INVALID,
                    "number %llu; it must be 0 in a REF_VALUE, and not 0 in other frames",
                    (unsigned long long)f->reference.message_number);
  if (names_reference && (!f->reference.ref_id || !f->reference.fork_id))
    return clv_fail(err, CLV_INVALID, "reference %llx with fork %llx: an id of 0",
                    (unsigned long long)f->reference.ref_id,
                    (unsigned long long)f->reference.fork_id);
  if ((f->reference.owner_lacks_fork && f->kind != CLV_REF_FETCH && f->kind != CLV_REF_USE) ||
      (f->reference.is_for_owner && f->kind != CLV_REF_USE))
    return clv_fail(err, CLV_INVALID, "`early` or `yours` does not belong here");
  return clv_text_check(f->reference.node_name, strlen(f->reference.node_name), "reference.node",
                        err);
}

/* Checks the tensors of a cached VALUE: record numbers, and optionally as many rows before them. */
static clv_code check_cached_rows(const clv_frame *f, size_t payload_len, clv_err *err) {
  (void)payload_len;
  if (f->cached.n_records < 1 || f->cached.n_records > CLV_WIRE_RECORDS)
    return clv_fail(err, CLV_INVALID, "a cache of %llu records; at most %llu",
                    (unsigned long long)f->cached.n_records, (unsigned long long)CLV_WIRE_RECORDS);
  if (f->cached.keep_s < 1 || f->cached.keep_s > CLV_WIRE_CACHED_MAX_S)
    return clv_fail(err, CLV_INVALID, "a cache is kept for %llu s; it is 1 to %d",
                    (unsigned long long)f->cached.keep_s, CLV_WIRE_CACHED_MAX_S);
  if (f->n_tensors < 1 || f->n_tensors > 2)
    return clv_fail(err, CLV_INVALID, "a VALUE of a cache has no record numbers");
  const clv_tensor_head *rows = &f->tensors[f->n_tensors - 1];
  if (rows->dtype != CLV_I64 || rows->shape.rank != 1 || rows->shape.dim[0] < 1)
    return clv_fail(err, CLV_INVALID, "record numbers must be i64 [n], at least one");
  if (f->n_tensors == 1) return CLV_OK;
  const clv_shape *values = &f->tensors[0].shape;
  if (values->rank < 1 || values->dim[0] != rows->shape.dim[0] || !f->tensors[0].bytes)
    return clv_fail(err, CLV_INVALID, "the rows are not one for each of the %lld record numbers",
                    (long long)rows->shape.dim[0]);
  return CLV_OK;
}

static clv_code check_ack(const clv_frame *f, size_t payload_len, clv_err *err) {
  (void)payload_len;
  if (f->ack.n_lanes && f->ack.n_lanes <= 1 + CLV_WIRE_LANES) return CLV_OK;
  return clv_fail(err, CLV_INVALID, "counters of %u lanes; 1 to %d", f->ack.n_lanes,
                  1 + CLV_WIRE_LANES);
}

typedef clv_code (*body_check)(const clv_frame *f, size_t payload_len, clv_err *err);

#define AT(body) [__builtin_ctz(body)]
/* Check of each body, indexed by the number of the body's bit; NULL: no check. */
static const body_check body_checks[N_BODIES] = {
    AT(BODY_ATTACH) = check_attach,      AT(BODY_ATTACHED) = check_attached,
    AT(BODY_COMMIT) = check_commit,      AT(BODY_FAILURE) = check_failure,
    AT(BODY_CREDIT) = check_credit,      AT(BODY_CHUNK) = check_chunk,
    AT(BODY_STATE) = check_state,        AT(BODY_CALL) = check_call,
    AT(BODY_BACKWARD) = check_backward,  AT(BODY_REFERENCE) = check_reference,
    AT(BODY_CACHED) = check_cached_rows, AT(BODY_ACK) = check_ack,
};
#undef AT

static clv_code check_bodies(const clv_frame *f, const kind_rule *rule, unsigned bodies,
                             size_t payload_len, clv_err *err) {
  for (unsigned i = 0; i < N_BODIES; i++) {
    unsigned bit = 1u << i;
    const char *name = clv_frame_fields[BODY_FIRST + i].name;
    if ((rule->required_bodies & bit) && !(bodies & bit))
      return clv_fail(err, CLV_INVALID, "`%s` is missing", name);
    if ((bodies & bit) && !((rule->required_bodies | rule->allowed_bodies) & bit))
      return clv_fail(err, CLV_INVALID, "`%s` does not belong here", name);
    if ((bodies & bit) && body_checks[i]) CLV_TRY(body_checks[i](f, payload_len, err));
  }
  return CLV_OK;
}

/* ---- checks of the tensors of a frame -------------------------------------------------------- */

static clv_code check_tensor(const clv_tensor_head *head, clv_err *err) {
  size_t bytes;
  if (!clv_dtype_size(head->dtype))
    return clv_fail(err, CLV_INVALID, "unknown dtype %u", (unsigned)head->dtype);
  CLV_TRY(clv_shape_bytes(&head->shape, head->dtype, &bytes, err));
  if (bytes != head->bytes) {
    char text[192];
    return clv_fail(err, CLV_INVALID, "%s of %s is %zu bytes, not %llu",
                    clv_shape_format(&head->shape, text, sizeof text), clv_dtype_name(head->dtype),
                    bytes, (unsigned long long)head->bytes);
  }
  return check_byte_count(head->bytes, "size", err);
}

/* Checks transfer ids. A tensor without bytes has no chunk, so it would wait forever. */
static clv_code check_transfer_ids(const clv_frame *f, clv_err *err) {
  for (uint32_t i = 0; i < f->n_tensors; i++) {
    const clv_tensor_head *head = &f->tensors[i];
    if ((head->transfer_id == 0) != (f->tensors[0].transfer_id == 0))
      return clv_fail(err, CLV_INVALID, "tensors both in the payload and in chunks");
    if (head->transfer_id && head->bytes == 0)
      return clv_fail(err, CLV_INVALID, "tensor %u is empty but has a transfer id", i);
    for (uint32_t j = 0; head->transfer_id && j < i; j++)
      if (f->tensors[j].transfer_id == head->transfer_id)
        return clv_fail(err, CLV_INVALID, "tensors %u and %u have the same transfer id", j, i);
  }
  return CLV_OK;
}

static clv_code check_tensors(const clv_frame *f, size_t payload_len, const clv_wire_limits *limits,
                              clv_err *err) {
  uint64_t sum = 0;
  for (uint32_t i = 0; i < f->n_tensors; i++) {
    clv_code code = check_tensor(&f->tensors[i], err);
    if (code != CLV_OK) {
      clv_err_prefix(err, "tensor %u", i);
      return code;
    }
    sum += f->tensors[i].bytes; /* at most 16 * 2^50, so no overflow */
  }
  CLV_TRY(check_transfer_ids(f, err));
  if (limits && (sum > limits->session_bytes || f->n_tensors > limits->tensors))
    return clv_fail(err, CLV_EXHAUSTED, "%u tensors of %llu bytes; the limit is %u of %llu",
                    f->n_tensors, (unsigned long long)sum, limits->tensors,
                    (unsigned long long)limits->session_bytes);
  if (f->n_tensors && f->tensors[0].transfer_id) sum = 0;
  if (sum > CLV_WIRE_INLINE_MAX)
    return clv_fail(err, CLV_INVALID, "%llu bytes of tensors in the frame itself; the limit is %d",
                    (unsigned long long)sum, CLV_WIRE_INLINE_MAX);
  if (f->kind != CLV_CHUNK && sum != payload_len)
    return clv_fail(err, CLV_INVALID, "the payload is %zu bytes, its tensors are %llu", payload_len,
                    (unsigned long long)sum);
  return CLV_OK;
}

/* ---- checks of complete frames --------------------------------------------------------------- */

static clv_code check_scalar_fields(const clv_frame *f, const kind_rule *rule, clv_err *err) {
  if (rule->needs_context && f->context == 0) return clv_fail(err, CLV_INVALID, "context id 0");
  if (f->module > CLV_WIRE_MODULES)
    return clv_fail(err, CLV_INVALID, "module %u is over the limit of %d", f->module,
                    CLV_WIRE_MODULES);
  const uint32_t flags =
      CLV_FLAG_TRAINING | CLV_FLAG_DELIVER | CLV_FLAG_RECOMPUTE | CLV_FLAG_TRACE | CLV_FLAG_BF16;
  if (f->flags & ~flags) return clv_fail(err, CLV_INVALID, "unknown flags 0x%x", f->flags);
  if (f->flags && f->kind != CLV_CALL)
    return clv_fail(err, CLV_INVALID, "flags do not belong here");
  if (f->n_value_ids > CLV_WIRE_UPSTREAM || f->n_tensors > CLV_WIRE_TENSORS)
    return clv_fail(err, CLV_INVALID, "%u upstream ids and %u tensors; at most %d and %d",
                    f->n_value_ids, f->n_tensors, CLV_WIRE_UPSTREAM, CLV_WIRE_TENSORS);
  if (rule->needs_message_id && f->message_id == 0)
    return clv_fail(err, CLV_INVALID, "message id 0");
  bool has_no_delivery = f->kind == CLV_CALL && !(f->flags & CLV_FLAG_DELIVER);
  if (f->to[0] && (!rule->may_name_worker || has_no_delivery))
    return clv_fail(err, CLV_INVALID, "`to` does not belong here");
  CLV_TRY(clv_text_check(f->to, strlen(f->to), "to", err));
  if (f->kind == CLV_DROP || f->kind == CLV_SPARE) return CLV_OK;
  if (f->n_value_ids) return clv_fail(err, CLV_INVALID, "upstream ids do not belong here");
  return CLV_OK;
}

static clv_code check_kind_rule(const clv_frame *f, const kind_rule *rule, unsigned bodies,
                                size_t payload_len, const clv_wire_limits *limits, clv_err *err) {
  CLV_TRY(check_scalar_fields(f, rule, err));
  CLV_TRY(check_bodies(f, rule, bodies, payload_len, err));
  if (f->n_tensors < rule->min_tensors || f->n_tensors > rule->max_tensors)
    return clv_fail(err, CLV_INVALID, "%u tensors; %u to %u belong here", f->n_tensors,
                    rule->min_tensors, rule->max_tensors);
  bool is_value = f->kind == CLV_VALUE || f->kind == CLV_REF_VALUE;
  if ((bodies & BODY_CACHED) && (bodies & BODY_FAILURE))
    return clv_fail(err, CLV_INVALID, "a VALUE of a cache cannot carry a failure");
  if (is_value && !(bodies & BODY_CACHED) && f->n_tensors != ((bodies & BODY_FAILURE) ? 0u : 1u))
    return clv_fail(err, CLV_INVALID, "either one tensor or the failure belongs here");
  if (f->kind == CLV_FINISHED && f->n_tensors && !(bodies & BODY_VOTE))
    return clv_fail(err, CLV_INVALID, "a tensor without a vote");
  if (f->kind == CLV_GRADIENT && f->contribution_index >= CLV_WIRE_CONTRIBUTIONS)
    return clv_fail(err, CLV_INVALID, "contribution %u; at most %d", f->contribution_index,
                    CLV_WIRE_CONTRIBUTIONS);
  if (f->kind == CLV_CHUNK && limits &&
      (payload_len > limits->chunk_bytes || f->chunk.total_bytes > limits->session_bytes))
    return clv_fail(err, CLV_EXHAUSTED, "a chunk of %zu bytes of %llu; the limits are %llu of %llu",
                    payload_len, (unsigned long long)f->chunk.total_bytes,
                    (unsigned long long)limits->chunk_bytes,
                    (unsigned long long)limits->session_bytes);
  return check_tensors(f, payload_len, limits, err);
}

clv_code clv_frame_check(const clv_frame *f, unsigned bodies, size_t payload_len,
                         const clv_wire_limits *limits, clv_err *err) {
  if (!is_known_kind(f->kind))
    return clv_fail(err, CLV_INVALID, "unknown frame kind %u", (unsigned)f->kind);
  const kind_rule *rule = &rules[f->kind];
  clv_code code = check_kind_rule(f, rule, bodies, payload_len, limits, err);
  if (code != CLV_OK) clv_err_prefix(err, "%s", rule->kind_name);
  return code;
}
