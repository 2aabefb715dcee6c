/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests valid frames: what the encoder writes is read back the same by our decoder, by protobuf-c
 * and by Python's protobuf, in any order, in any pieces, with unknown fields.
 */
#include "tests/unit/wire/wire_test.h"

#include "cleave/v1/cleave.pb-c.h"

#include <unistd.h>

static void assert_same_backward(const clv_frame *a, const clv_frame *b) {
  assert_int_equal(a->backward.retains_graph, b->backward.retains_graph);
  assert_int_equal(a->backward.needs_vote, b->backward.needs_vote);
  assert_int_equal(a->backward.more_follow, b->backward.more_follow);
  assert_int_equal(a->backward.n_needed_calls, b->backward.n_needed_calls);
  assert_int_equal(a->backward.n_grad_targets, b->backward.n_grad_targets);
  assert_int_equal(a->backward.n_peers, b->backward.n_peers);
  for (uint32_t i = 0; i < a->backward.n_needed_calls; i++) {
    const clv_needed_call *p = &a->backward.needed_calls[i], *q = &b->backward.needed_calls[i];
    assert_true(p->call_id == q->call_id && p->n_contributions == q->n_contributions);
    assert_true(p->n_grad_targets == q->n_grad_targets && p->root_gradient == q->root_gradient);
  }
  for (uint32_t i = 0; i < a->backward.n_grad_targets; i++) {
    const clv_target *p = &a->backward.grad_targets[i], *q = &b->backward.grad_targets[i];
    assert_true(p->value_id == q->value_id && p->input_index == q->input_index);
    assert_true(p->contribution_index == q->contribution_index && p->to_peer == q->to_peer);
  }
  for (uint32_t i = 0; i < a->backward.n_peers; i++)
    assert_string_equal(a->backward.peer_names[i], b->backward.peer_names[i]);
}

static void assert_same_tensors(const clv_frame *a, const clv_frame *b) {
  assert_int_equal(a->n_tensors, b->n_tensors);
  for (uint32_t i = 0; i < a->n_tensors; i++) {
    assert_int_equal(a->tensors[i].dtype, b->tensors[i].dtype);
    assert_true(clv_shape_equal(&a->tensors[i].shape, &b->tensors[i].shape));
    assert_int_equal(a->tensors[i].bytes, b->tensors[i].bytes);
    assert_int_equal(a->tensors[i].crc32c, b->tensors[i].crc32c);
    assert_int_equal(a->tensors[i].transfer_id, b->tensors[i].transfer_id);
  }
}

static void assert_same_call(const clv_frame *a, const clv_frame *b) {
  assert_int_equal(a->call.runs_after_call, b->call.runs_after_call);
  assert_int_equal(a->call.n_args, b->call.n_args);
  for (uint32_t i = 0; i < a->call.n_args; i++) {
    assert_int_equal(a->call.args[i].value_id, b->call.args[i].value_id);
    assert_int_equal(a->call.args[i].needs_grad, b->call.args[i].needs_grad);
    assert_int_equal(a->call.args[i].is_inline, b->call.args[i].is_inline);
  }
}

static void assert_same_step(const clv_frame *a, const clv_frame *b) {
  assert_true(a->commit.scale == b->commit.scale && a->commit.lr == b->commit.lr);
  assert_int_equal(a->commit.applies_step, b->commit.applies_step);
  assert_int_equal(a->commit.n_group_lrs, b->commit.n_group_lrs);
  assert_memory_equal(a->commit.group_lrs, b->commit.group_lrs, sizeof a->commit.group_lrs);
  assert_int_equal(a->vote.is_finite, b->vote.is_finite);
}

static void assert_same_texts(const clv_frame *a, const clv_frame *b) {
  assert_int_equal(a->failure.code, b->failure.code);
  assert_string_equal(a->failure.text, b->failure.text);
  assert_string_equal(a->failure.detected_at, b->failure.detected_at);
  assert_int_equal(a->state.part, b->state.part);
  assert_int_equal(a->state.item_index, b->state.item_index);
  assert_int_equal(a->state.n_items, b->state.n_items);
  assert_string_equal(a->state.item_or_file_name, b->state.item_or_file_name);
  assert_string_equal(a->state.device_name, b->state.device_name);
  assert_int_equal(a->state.file_bytes, b->state.file_bytes);
  assert_memory_equal(&a->state.file_sha256, &b->state.file_sha256, sizeof a->state.file_sha256);
}

static void assert_same_reference(const clv_frame *a, const clv_frame *b) {
  assert_true(a->reference.ref_id == b->reference.ref_id &&
              a->reference.fork_id == b->reference.fork_id);
  assert_true(a->reference.ref_key == b->reference.ref_key &&
              a->reference.message_number == b->reference.message_number);
  assert_true(a->reference.owner_lacks_fork == b->reference.owner_lacks_fork &&
              a->reference.is_for_owner == b->reference.is_for_owner);
  assert_string_equal(a->reference.node_name, b->reference.node_name);
}

static void assert_same(const clv_frame *a, const clv_frame *b) {
  assert_int_equal(a->kind, b->kind);
  assert_same_tensors(a, b);
  /* compares phase, ids, step, micro-batch, module and flags, between which there is no padding */
  assert_memory_equal(
      &a->backward_pass_number, &b->backward_pass_number,
      offsetof(clv_frame, flags) + sizeof a->flags - offsetof(clv_frame, backward_pass_number));
  assert_int_equal(a->has_vote, b->has_vote);
  assert_int_equal(a->has_failure, b->has_failure);
  assert_string_equal(a->to, b->to);
  assert_same_call(a, b);
  assert_memory_equal(&a->attach, &b->attach, sizeof a->attach);
  assert_int_equal(a->attached.credit_bytes, b->attached.credit_bytes);
  assert_int_equal(a->attached.n_received, b->attached.n_received);
  assert_memory_equal(&a->ack, &b->ack, sizeof a->ack);
  assert_same_step(a, b);
  assert_int_equal(a->credit.bytes, b->credit.bytes);
  assert_memory_equal(&a->chunk, &b->chunk, sizeof a->chunk);
  assert_same_texts(a, b);
  assert_same_reference(a, b);
  assert_int_equal(a->n_value_ids, b->n_value_ids);
  if (a->kind == CLV_PREPARE)
    assert_same_backward(a, b);
  else
    assert_memory_equal(a->value_ids, b->value_ids, sizeof a->value_ids);
}

static void decode_and_compare(const clv_piece *pieces, size_t n, const clv_frame *expected,
                               size_t payload_len) {
  clv_err err = {0};
  clv_frame got;
  clv_payload payload;
  clv_wire_limits limits = clv_wire_limits_default();
  assert_ok(clv_frame_decode(pieces, n, &limits, &got, &payload, &err));
  assert_same(expected, &got);
  assert_int_equal(payload.len, payload_len);
  uint8_t copy[4096];
  clv_payload_copy(pieces, &payload, 0, payload.len, copy);
  for (size_t i = 0; i < payload_len; i++) assert_int_equal(copy[i], (uint8_t)(i * 7 + 3));
}

static void every_frame_kind_round_trips(void **state) {
  (void)state;
  for (int kind = CLV_ATTACH; kind < CLV_FRAME_KINDS; kind = get_next_kind(kind)) {
    clv_frame f = make_sample_frame((clv_frame_kind)kind);
    size_t len = get_sample_payload_len(f.kind);
    CLV_AUTO(clv_bytes_done) clv_bytes all = encode_whole(&f, len);
    decode_and_compare(&(clv_piece){all.data, all.len}, 1, &f, len);
  }
}

static void any_two_pieces_decode_the_same(void **state) {
  (void)state;
  for (int kind = CLV_ATTACH; kind < CLV_FRAME_KINDS; kind = get_next_kind(kind)) {
    clv_frame f = make_sample_frame((clv_frame_kind)kind);
    size_t len = get_sample_payload_len(f.kind);
    CLV_AUTO(clv_bytes_done) clv_bytes all = encode_whole(&f, len);
    for (size_t cut = 0; cut <= all.len; cut++) {
      /* Each part is a separate heap block, so that address sanitizer detects reads beyond it. */
      char *a = malloc(cut + 1), *b = malloc(all.len - cut + 1);
      memcpy(a, all.data, cut);
      memcpy(b, all.data + cut, all.len - cut);
      clv_piece pieces[] = {{NULL, 0}, {a, cut}, {NULL, 0}, {b, all.len - cut}, {NULL, 0}};
      decode_and_compare(pieces, 5, &f, len);
      free(a);
      free(b);
    }
  }
}

static void single_byte_pieces_decode_the_same(void **state) {
  (void)state;
  for (int kind = CLV_ATTACH; kind < CLV_FRAME_KINDS; kind = get_next_kind(kind)) {
    clv_frame f = make_sample_frame((clv_frame_kind)kind);
    size_t len = get_sample_payload_len(f.kind);
    CLV_AUTO(clv_bytes_done) clv_bytes all = encode_whole(&f, len);
    clv_piece *pieces = calloc(all.len, sizeof *pieces);
    for (size_t i = 0; i < all.len; i++) pieces[i] = (clv_piece){all.data + i, 1};
    decode_and_compare(pieces, all.len, &f, len);
    free(pieces);
  }
}

static void add_earlier_frame(clv_bytes *message, const clv_frame *f, size_t payload) {
  uint8_t prefix[CLV_WIRE_BUNDLE_PREFIX];
  CLV_AUTO(clv_bytes_done) clv_bytes one = encode_whole(f, payload);
  clv_bytes_add(message, prefix, clv_frame_write_bundle_prefix(prefix, one.len));
  clv_bytes_add(message, one.data, one.len);
}

/* Decodes a message that is cut into two pieces at `cut_position`. Checks that it has n earlier
 * frames, that the second of them equals `second`, and that the last frame is of `last_kind` (0:
 * there is none). */
static void check_bundle(const clv_bytes *message, size_t cut_position, const clv_frame *second,
                         size_t payload_of_second, uint32_t n, clv_frame_kind last_kind) {
  clv_err err = {0};
  clv_bundle earlier_frames;
  clv_frame got;
  clv_payload payload;
  clv_wire_limits limits = clv_wire_limits_default();
  clv_piece pieces[] = {{message->data, cut_position},
                        {message->data + cut_position, message->len - cut_position}};
  assert_ok(clv_frame_decode_last(pieces, 2, &limits, &earlier_frames, &got, &payload, &err));
  assert_int_equal(earlier_frames.n_frames, n);
  assert_int_equal(got.kind, last_kind);
  assert_ok(clv_frame_decode_preceding(pieces, 2, &earlier_frames.frame_positions[1], &limits, &got,
                                       &payload, &err));
  assert_same(second, &got);
  assert_int_equal(payload.len, payload_of_second);
  uint8_t copy[4096];
  clv_payload_copy(pieces, &payload, 0, payload.len, copy);
  for (size_t i = 0; i < payload.len; i++) assert_int_equal(copy[i], (uint8_t)(i * 7 + 3));
}

/* The earlier frames of a bundle may be encoded before its last frame, after it, or without one. */
static void bundled_frames_round_trip(void **state) {
  clv_frame end = make_sample_frame(CLV_END_CONTEXT), value = make_sample_frame(CLV_VALUE),
            call = make_sample_frame(CLV_CALL);
  size_t end_payload_len = get_sample_payload_len(CLV_END_CONTEXT),
         value_payload_len = get_sample_payload_len(CLV_VALUE),
         call_payload_len = get_sample_payload_len(CLV_CALL);
  CLV_AUTO(clv_bytes_done) clv_bytes message = {0};
  (void)state;
  add_earlier_frame(&message, &end, end_payload_len);
  add_earlier_frame(&message, &value, value_payload_len);
  check_bundle(&message, 3, &value, value_payload_len, 2, 0);
  CLV_AUTO(clv_bytes_done) clv_bytes last = encode_whole(&call, call_payload_len);
  clv_bytes_add(&message, last.data, last.len);
  add_earlier_frame(&message, &end, end_payload_len);
  for (size_t cut = 0; cut <= message.len; cut++)
    check_bundle(&message, cut, &value, value_payload_len, 3, CLV_CALL);
}

static clv_frame make_largest_prepare(void) {
  clv_frame prepare = make_sample_frame(CLV_PREPARE);
  prepare.backward.n_needed_calls = CLV_WIRE_NEEDED_CALLS;
  prepare.backward.n_grad_targets = CLV_WIRE_TARGETS;
  prepare.backward.n_peers = CLV_WIRE_PREPARE_PEERS;
  for (uint32_t i = 0; i < CLV_WIRE_NEEDED_CALLS; i++)
    prepare.backward.needed_calls[i] = (clv_needed_call){UINT64_MAX - i, 4096, 2, 1};
  for (uint32_t i = 0; i < CLV_WIRE_TARGETS; i++)
    prepare.backward.grad_targets[i] =
        (clv_target){UINT64_MAX, i % 2 + 6, 4095, CLV_WIRE_PREPARE_PEERS};
  for (uint32_t i = 0; i < CLV_WIRE_PREPARE_PEERS; i++) {
    memset(prepare.backward.peer_names[i], 'p', CLV_WIRE_NAME);
    prepare.backward.peer_names[i][CLV_WIRE_NAME] = 0;
  }
  return prepare;
}

/* Lists and names of maximum size fit in the encoder's buffer. */
static void the_largest_frames_round_trip(void **state) {
  (void)state;
  clv_frame call = make_sample_frame(CLV_CALL);
  call.call.n_args = call.n_tensors = CLV_WIRE_ARGS;
  for (uint32_t i = 0; i < CLV_WIRE_ARGS; i++) {
    call.call.args[i] = (clv_arg){.value_id = UINT64_MAX, .needs_grad = true, .is_inline = true};
    call.tensors[i] = (clv_tensor_head){CLV_U8, CLV_SHAPE(1, 1, 1, 1, 1, 1, 1, (int64_t)1 << 50),
                                        (uint64_t)1 << 50, i + 1, ~0u};
  }
  clv_wire_limits limits = clv_wire_limits_default();
  limits.session_bytes = UINT64_MAX;
  clv_err err = {0};
  clv_frame got;
  clv_payload payload;
  CLV_AUTO(clv_bytes_done) clv_bytes all = encode_whole(&call, 0);
  assert_ok(clv_frame_decode(&(clv_piece){all.data, all.len}, 1, &limits, &got, &payload, &err));
  assert_same(&call, &got);

  clv_frame drop = make_sample_frame(CLV_DROP);
  drop.n_value_ids = CLV_WIRE_UPSTREAM;
  for (uint32_t i = 0; i < CLV_WIRE_UPSTREAM; i++) drop.value_ids[i] = UINT64_MAX - i;
  CLV_AUTO(clv_bytes_done) clv_bytes drops = encode_whole(&drop, 0);
  decode_and_compare(&(clv_piece){drops.data, drops.len}, 1, &drop, 0);

  const clv_frame prepare = make_largest_prepare();
  clv_frame apply = make_sample_frame(CLV_APPLY);
  apply.commit.n_group_lrs = CLV_WIRE_GROUPS;
  for (uint32_t i = 0; i < CLV_WIRE_GROUPS; i++) apply.commit.group_lrs[i] = -1e-38f * (float)i;
  CLV_AUTO(clv_bytes_done) clv_bytes applied = encode_whole(&apply, 0);
  decode_and_compare(&(clv_piece){applied.data, applied.len}, 1, &apply, 0);

  CLV_AUTO(clv_bytes_done) clv_bytes prepared = encode_whole(&prepare, 0);
  decode_and_compare(&(clv_piece){prepared.data, prepared.len}, 1, &prepare, 0);
}

static void root_gradient_round_trips_any_finite_number(void **state) {
  (void)state;
  static const float roots[] = {0.25f, -3, 1e-40f, 3.4e38f, 0};
  for (size_t i = 0; i < CLV_COUNT(roots); i++) {
    clv_frame f = make_sample_frame(CLV_PREPARE);
    f.backward.needed_calls[1].root_gradient = roots[i];
    CLV_AUTO(clv_bytes_done) clv_bytes all = encode_whole(&f, 0);
    decode_and_compare(&(clv_piece){all.data, all.len}, 1, &f, 0);
  }
}

static void call_predecessor_id_round_trips(void **state) {
  (void)state;
  static const uint64_t ids[] = {0, 1, 77, UINT64_MAX};
  for (size_t i = 0; i < CLV_COUNT(ids); i++) {
    clv_frame f = make_sample_frame(CLV_CALL);
    f.call.runs_after_call = ids[i];
    CLV_AUTO(clv_bytes_done) clv_bytes all = encode_whole(&f, 64);
    decode_and_compare(&(clv_piece){all.data, all.len}, 1, &f, 64);
  }
}

/* ---- protobuf-c as an independent reader and writer -------------------------------------------
 */

static Cleave__V1__Frame *read_with_protobuf_c(const clv_bytes *all) {
  Cleave__V1__Frame *m = cleave__v1__frame__unpack(NULL, all->len, (const uint8_t *)all->data);
  assert_non_null(m);
  assert_int_equal(m->base.n_unknown_fields, 0);
  return m;
}

static void protobuf_c_reads_a_call(void **state) {
  (void)state;
  clv_frame f = make_sample_frame(CLV_CALL);
  CLV_AUTO(clv_bytes_done) clv_bytes all = encode_whole(&f, 64);
  Cleave__V1__Frame *m = read_with_protobuf_c(&all);
  assert_int_equal(m->kind, CLEAVE__V1__FRAME_KIND__CALL);
  assert_int_equal(m->context, f.context);
  assert_int_equal(m->message, 77);
  assert_int_equal(m->phase, 3);
  assert_int_equal(m->step, 123456789012);
  assert_int_equal(m->micro_batch, 3);
  assert_int_equal(m->module, 2);
  assert_int_equal(m->flags, 1);
  assert_int_equal(m->reply_to, 300);
  assert_int_equal(m->n_tensors, 2);
  assert_int_equal(m->tensors[0]->dtype, CLV_F32);
  assert_int_equal(m->tensors[0]->n_dims, 2);
  assert_int_equal(m->tensors[0]->dims[1], 3);
  assert_int_equal(m->tensors[0]->crc32c, 0xdeadbeef);
  assert_int_equal(m->tensors[1]->bytes, 40);
  assert_non_null(m->call);
  assert_true(m->call->after == UINT64_MAX - 1);
  assert_int_equal(m->call->n_args, 3);
  assert_true(m->call->args[0]->value == UINT64_MAX && m->call->args[0]->needs_grad);
  assert_true(m->call->args[1]->here && !m->call->args[1]->needs_grad);
  assert_int_equal(m->payload.len, 64);
  assert_int_equal(m->payload.data[63], (uint8_t)(63 * 7 + 3));
  cleave__v1__frame__free_unpacked(m, NULL);
}

/* The position at which a gradient is added has its own field. */
static void protobuf_c_reads_a_gradient(void **state) {
  (void)state;
  clv_frame f = make_sample_frame(CLV_GRADIENT), got;
  CLV_AUTO(clv_bytes_done) clv_bytes all = encode_whole(&f, 16);
  Cleave__V1__Frame *m = read_with_protobuf_c(&all);
  assert_int_equal(m->order, 2);
  assert_int_equal(m->micro_batch, 0);
  m->micro_batch = UINT32_MAX;
  uint8_t repacked[512];
  assert_true(cleave__v1__frame__get_packed_size(m) <= sizeof repacked);
  clv_piece piece = {repacked, cleave__v1__frame__pack(m, repacked)};
  cleave__v1__frame__free_unpacked(m, NULL);
  clv_wire_limits limits = clv_wire_limits_default();
  clv_payload payload;
  clv_err err = {0};
  assert_ok(clv_frame_decode(&piece, 1, &limits, &got, &payload, &err));
  assert_int_equal(got.contribution_index, 2);
}

static void protobuf_c_reads_a_step(void **state) {
  (void)state;
  clv_frame f = make_sample_frame(CLV_DROP);
  CLV_AUTO(clv_bytes_done) clv_bytes drop = encode_whole(&f, 0);
  Cleave__V1__Frame *m = read_with_protobuf_c(&drop);
  assert_int_equal(m->n_upstream, 3);
  assert_memory_equal(m->upstream, f.value_ids, 3 * sizeof(uint64_t));
  cleave__v1__frame__free_unpacked(m, NULL);

  f = make_sample_frame(CLV_PREPARE);
  f.backward.needed_calls[0].root_gradient = 0.25f;
  CLV_AUTO(clv_bytes_done) clv_bytes prepare = encode_whole(&f, 0);
  m = read_with_protobuf_c(&prepare);
  assert_non_null(m->backward);
  assert_true(m->backward->calls[0]->root == 0.25f && m->backward->calls[1]->root == 0);
  assert_int_equal(m->backward->calls[0]->n_targets, 2);
  assert_int_equal(m->backward->calls[0]->targets[1]->order, 4095);
  assert_string_equal(m->backward->peers[1], "w3");
  cleave__v1__frame__free_unpacked(m, NULL);

  f = make_sample_frame(CLV_APPLY);
  CLV_AUTO(clv_bytes_done) clv_bytes apply = encode_whole(&f, 0);
  m = read_with_protobuf_c(&apply);
  assert_non_null(m->commit);
  assert_true(m->commit->scale == 0.125f && m->commit->lr == 1e-3f && m->commit->apply);
  assert_int_equal(m->commit->n_more_lrs, 3);
  assert_true(m->commit->more_lrs[0] == 0.5f && m->commit->more_lrs[1] == 0);
  assert_true(m->commit->more_lrs[2] == -2);
  cleave__v1__frame__free_unpacked(m, NULL);
}

/* protobuf-c decodes each kind of frame and encodes it again, and the result must mean the same.
 * protobuf-c writes lists of numbers and lengths in its own way, so this checks the tables in both
 * directions. */
static void protobuf_c_rewrites_every_kind(void **state) {
  (void)state;
  for (int kind = CLV_ATTACH; kind < CLV_FRAME_KINDS; kind = get_next_kind(kind)) {
    clv_frame f = make_sample_frame((clv_frame_kind)kind);
    size_t len = get_sample_payload_len(f.kind);
    CLV_AUTO(clv_bytes_done) clv_bytes all = encode_whole(&f, len);
    Cleave__V1__Frame *m = read_with_protobuf_c(&all);
    uint8_t *again = malloc(cleave__v1__frame__get_packed_size(m));
    size_t n = cleave__v1__frame__pack(m, again);
    decode_and_compare(&(clv_piece){again, n}, 1, &f, len);
    free(again);
    cleave__v1__frame__free_unpacked(m, NULL);
  }
}

/* ---- fields in any order, unknown or repeated ------------------------------------------------ */

typedef struct encoded_field {
  const char *data;
  size_t len;
} encoded_field;

static size_t read_varint(const char *data, size_t *at) {
  size_t value = 0;
  for (unsigned shift = 0;; shift += 7) {
    uint8_t byte = (uint8_t)data[(*at)++];
    value |= (size_t)(byte & 0x7f) << shift;
    if (byte < 0x80) return value;
  }
}

/* Splits an encoded frame into its top-level fields. */
static size_t split_fields(const clv_bytes *all, encoded_field *parts) {
  size_t n = 0, at = 0;
  while (at < all->len) {
    size_t field_start = at, tag = read_varint(all->data, &at);
    if ((tag & 7) == 0) read_varint(all->data, &at);
    if ((tag & 7) == 1) at += 8;
    if ((tag & 7) == 5) at += 4;
    if ((tag & 7) == 2) {
      size_t len = read_varint(all->data, &at);
      at += len;
    }
    parts[n++] = (encoded_field){all->data + field_start, at - field_start};
  }
  return n;
}

/* Rotates the fields, but keeps the order of the two tensors, because the order within a repeated
 * field matters. */
static size_t rotate_fields(const encoded_field *parts, size_t n, size_t offset,
                            clv_piece *pieces) {
  size_t n_pieces = 0;
  for (size_t i = 0; i < n; i++) {
    encoded_field p = parts[(i + offset) % n];
    if ((uint8_t)p.data[0] != 0x62) pieces[n_pieces++] = (clv_piece){p.data, p.len};
  }
  for (size_t i = 0; i < n; i++)
    if ((uint8_t)parts[i].data[0] == 0x62)
      pieces[n_pieces++] = (clv_piece){parts[i].data, parts[i].len};
  return n_pieces;
}

static void field_order_does_not_change_the_frame(void **state) {
  (void)state;
  clv_frame f = make_sample_frame(CLV_CALL);
  CLV_AUTO(clv_bytes_done) clv_bytes all = encode_whole(&f, 64);
  encoded_field parts[64];
  size_t n = split_fields(&all, parts);
  assert_true(n > 12);
  for (size_t rotate = 0; rotate < n; rotate++) {
    clv_piece pieces[64];
    size_t used = rotate_fields(parts, n, rotate, pieces);
    decode_and_compare(pieces, used, &f, 64);
  }
}

static void unknown_fields_are_skipped(void **state) {
  (void)state;
  static const char unknown[] =
      "\xa0\x06\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01" /* field 100, a varint */
      "\x72\x03"
      "abc" /* field 14, bytes */
      "\xa9\x06"
      "12345678" /* field 101 of 64 bits */
      "\xb5\x06"
      "1234" /* field 102 of 32 bits */
      "\xfa\xff\xff\xff\x0f\x02"
      "zz"; /* a field with the largest field number */
  for (int kind = CLV_ATTACH; kind < CLV_FRAME_KINDS; kind = get_next_kind(kind)) {
    clv_frame f = make_sample_frame((clv_frame_kind)kind);
    size_t len = get_sample_payload_len(f.kind);
    CLV_AUTO(clv_bytes_done) clv_bytes all = encode_whole(&f, len);
    encoded_field parts[64];
    clv_piece pieces[129];
    size_t n = split_fields(&all, parts), used = 0;
    for (size_t i = 0; i < n; i++) {
      pieces[used++] = (clv_piece){unknown, sizeof unknown - 1};
      pieces[used++] = (clv_piece){parts[i].data, parts[i].len};
    }
    pieces[used++] = (clv_piece){unknown, sizeof unknown - 1};
    decode_and_compare(pieces, used, &f, len);
  }
}

static void last_scalar_wins_and_unpacked_lists_are_read(void **state) {
  (void)state;
  static const char gradient_bytes[] =
      "\x08\x0b\x08\x19"                             /* kind 11, then kind 25: GRADIENT */
      "\x10\x01\x18\x01\x18\x02\x20\x01"             /* context 1, message 1 then 2, phase 1 */
      "\x62\x09\x08\x05\x10\x02\x12\x01\x03\x18\x06" /* u8 [2, 3]: one dim unpacked, one packed */
      "\x7a\x06"
      "abcdef";
  static const char drop[] =
      "\x08\x17\x10\x01"                             /* DROP of context 1 */
      "\x51\x05\0\0\0\0\0\0\0\x51\x06\0\0\0\0\0\0\0" /* upstream 5, 6, not packed */
      "\x52\x08\x07\0\0\0\0\0\0\0";                  /* upstream 7, packed */
  static const char apply[] =
      "\x08\x1b\x10\x01\x18\x01\x92\x01\x14"     /* APPLY of context 1, with a commit */
      "\x2d\x00\x00\x80\x3f"                     /* rate 1, not packed */
      "\x2a\x08\x00\x00\x00\x40\x00\x00\x40\x40" /* rates 2 and 3, packed */
      "\x2d\x00\x00\x80\x40";                    /* rate 4, not packed */
  clv_err err = {0};
  clv_frame f;
  clv_payload payload;
  clv_wire_limits limits = clv_wire_limits_default();
  clv_piece piece = {gradient_bytes, sizeof gradient_bytes - 1};
  assert_ok(clv_frame_decode(&piece, 1, &limits, &f, &payload, &err));
  assert_int_equal(f.kind, CLV_GRADIENT);
  assert_int_equal(f.message_id, 2);
  assert_int_equal(f.tensors[0].shape.rank, 2);
  assert_int_equal(f.tensors[0].shape.dim[0], 2);
  assert_int_equal(f.tensors[0].shape.dim[1], 3);
  assert_int_equal(payload.len, 6);
  piece = (clv_piece){drop, sizeof drop - 1};
  assert_ok(clv_frame_decode(&piece, 1, &limits, &f, &payload, &err));
  assert_int_equal(f.n_value_ids, 3);
  for (uint64_t i = 0; i < 3; i++) assert_int_equal(f.value_ids[i], 5 + i);
  piece = (clv_piece){apply, sizeof apply - 1};
  assert_ok(clv_frame_decode(&piece, 1, &limits, &f, &payload, &err));
  assert_int_equal(f.commit.n_group_lrs, 4);
  for (int i = 0; i < 4; i++) assert_true(f.commit.group_lrs[i] == (float)(1 + i));
}

static void gradient_without_tensor_round_trips(void **state) {
  (void)state;
  clv_frame f = make_sample_frame(CLV_GRADIENT);
  f.n_tensors = 0;
  memset(f.tensors, 0, sizeof f.tensors);
  CLV_AUTO(clv_bytes_done) clv_bytes all = encode_whole(&f, 0);
  decode_and_compare(&(clv_piece){all.data, all.len}, 1, &f, 0);
}

static void value_with_a_tensor_round_trips(void **state) {
  (void)state;
  clv_frame f = make_sample_frame(CLV_VALUE);
  f.has_failure = false;
  memset(&f.failure, 0, sizeof f.failure);
  f.n_tensors = 1;
  f.tensors[0] = (clv_tensor_head){CLV_F32, CLV_SHAPE(4), 16, 0, 0x0badcafe};
  CLV_AUTO(clv_bytes_done) clv_bytes all = encode_whole(&f, 16);
  decode_and_compare(&(clv_piece){all.data, all.len}, 1, &f, 16);
}

/* tests/net/hostile/test_rules.py sends invalid cache fields to workers. */
static void invalid_cache_fields_are_refused(void **state) {
  (void)state;
  const clv_tensor_head rows = {CLV_F32, CLV_SHAPE(2, 1), 8, 0, 0},
                        record_numbers = {CLV_I64, CLV_SHAPE(2), 16, 0, 0},
                        one_row = {CLV_F32, CLV_SHAPE(1, 2), 8, 0, 0},
                        none = {CLV_F32, CLV_SHAPE(2, 0), 0, 0, 0},
                        f64_rows = {CLV_F64, CLV_SHAPE(2), 16, 0, 0},
                        matrix = {CLV_I64, CLV_SHAPE(2, 1), 16, 0, 0};
  const struct {
    uint64_t records, keep_s;
    uint32_t n;
    clv_tensor_head tensors[3];
    bool has_failure;
    const char *refusal_text;
  } bad_frames[] = {
      {0, 60, 1, {record_numbers}, false, "a cache of 0 records"},
      {CLV_WIRE_RECORDS + 1, 60, 1, {record_numbers}, false, "a cache of 4294967297 records"},
      {9, 0, 1, {record_numbers}, false, "kept for 0 s"},
      {9, UINT64_MAX, 1, {record_numbers}, false, "kept for 18446744073709551615 s"},
      {9, 60, 0, {record_numbers}, false, "no record numbers"},
      {9, 60, 3, {rows, rows, record_numbers}, false, "no record numbers"},
      {9, 60, 2, {rows, f64_rows}, false, "must be i64"},
      {9, 60, 2, {rows, matrix}, false, "must be i64"},
      {9, 60, 2, {one_row, record_numbers}, false, "not one for each of the 2"},
      {9, 60, 2, {none, record_numbers}, false, "not one for each of the 2"},
      {9, 60, 2, {rows, record_numbers}, true, "a VALUE of a cache cannot carry a failure"},
  };
  for (size_t i = 0; i < CLV_COUNT(bad_frames); i++) {
    CLV_AUTO(clv_bytes_done) clv_bytes head = {0};
    clv_err err = {0};
    clv_frame f = make_sample_frame(CLV_VALUE);
    size_t len = 0;
    f.has_failure = bad_frames[i].has_failure;
    f.has_cached = true;
    f.cached = (clv_wire_cached){{{7}}, bad_frames[i].records, bad_frames[i].keep_s};
    f.n_tensors = bad_frames[i].n;
    for (uint32_t k = 0; k < f.n_tensors; k++) len += bad_frames[i].tensors[k].bytes;
    memcpy(f.tensors, bad_frames[i].tensors, sizeof bad_frames[i].tensors);
    assert_fails(clv_frame_encode(&f, len, &head, &err), CLV_INVALID, bad_frames[i].refusal_text);
  }
}

/* A cached value has record numbers alone, or record numbers and then their rows. */
static void cached_value_round_trips(void **state) {
  (void)state;
  clv_frame f = make_sample_frame(CLV_VALUE), got;
  const clv_tensor_head numbers = {CLV_I64, CLV_SHAPE(2), 16, 0, 7};
  clv_wire_limits limits = clv_wire_limits_default();
  clv_payload payload;
  clv_err err = {0};
  f.has_failure = false;
  memset(&f.failure, 0, sizeof f.failure);
  f.has_cached = true;
  f.cached = (clv_wire_cached){.key = {{1, 2, 3}}, .n_records = 1ull << 32, .keep_s = 31536000};
  for (f.n_tensors = 1; f.n_tensors <= 2; f.n_tensors++) {
    f.tensors[0] = (clv_tensor_head){CLV_F32, CLV_SHAPE(2, 3), 24, 0, 9};
    f.tensors[f.n_tensors - 1] = numbers;
    size_t len = f.n_tensors == 1 ? 16 : 40;
    CLV_AUTO(clv_bytes_done) clv_bytes all = encode_whole(&f, len);
    decode_and_compare(&(clv_piece){all.data, all.len}, 1, &f, len);
    assert_ok(clv_frame_decode(&(clv_piece){all.data, all.len}, 1, &limits, &got, &payload, &err));
    assert_true(got.has_cached && got.cached.n_records == 1ull << 32);
    assert_true(got.cached.keep_s == 31536000);
    assert_memory_equal(&got.cached.key, &f.cached.key, sizeof f.cached.key);
  }
}

static void chunked_tensor_heads_round_trip(void **state) {
  (void)state;
  clv_frame f = make_sample_frame(CLV_CALL);
  f.tensors[0] = (clv_tensor_head){CLV_F32, CLV_SHAPE(64, 1024, 1024), (uint64_t)256 << 20, 8, 1};
  f.tensors[1].transfer_id = 9;
  CLV_AUTO(clv_bytes_done) clv_bytes all = encode_whole(&f, 0);
  decode_and_compare(&(clv_piece){all.data, all.len}, 1, &f, 0);
}

static void encode_and_decode_allocate_nothing(void **state) {
  (void)state;
  clv_err err = {0};
  clv_frame f = make_sample_frame(CLV_CALL), got;
  clv_payload payload;
  clv_wire_limits limits = clv_wire_limits_default();
  CLV_AUTO(clv_bytes_done) clv_bytes head = {0};
  char body[64] = {0};
  assert_ok(clv_frame_encode(&f, 64, &head, &err));
  uint64_t before = clv_alloc_count(), begin = clv_now_ns();
  enum { ROUNDS = 100000 };
  for (int i = 0; i < ROUNDS; i++) {
    assert_ok(clv_frame_encode(&f, 64, &head, &err));
    clv_piece pieces[] = {{head.data, head.len}, {body, 64}};
    assert_ok(clv_frame_decode(pieces, 2, &limits, &got, &payload, &err));
  }
  print_message("encode and decode of a CALL: %.2f us\n",
                (double)(clv_now_ns() - begin) / 1e3 / ROUNDS);
  assert_int_equal(clv_alloc_count(), before);
}

/* ---- functions for payloads and failures ----------------------------------------------------- */

/* Copies payloads of lengths around that of a cache line to several offsets in a line, from pieces
 * that end within lines. */
static void copies_past_the_cache_are_complete(void **state) {
  (void)state;
  enum { MAX_LEN = 300, BUFFER_LEN = MAX_LEN + 128 };
  static uint8_t from[MAX_LEN], to[BUFFER_LEN];
  for (size_t i = 0; i < MAX_LEN; i++) from[i] = (uint8_t)(i * 7 + 3);
  for (size_t len = 0; len <= MAX_LEN; len += len < 140 ? 1 : 23)
    for (size_t at = 0; at < 64; at += 7) {
      size_t first_len = CLV_MIN(len, (size_t)77);
      clv_piece pieces[] = {{from, first_len}, {NULL, 0}, {from + first_len, len - first_len}};
      memset(to, 0, sizeof to);
      assert_int_equal(clv_payload_copy_past_cache(pieces, &(clv_payload){0, 0, len}, to + at),
                       clv_crc32c(0, from, len));
      assert_memory_equal(to + at, from, len);
      for (size_t i = 0; i < BUFFER_LEN; i++)
        if (i < at || i >= at + len) assert_int_equal(to[i], 0);
    }
}

static void payload_helpers_cross_piece_boundaries(void **state) {
  (void)state;
  static const char text[] = "xx0123456789yy";
  clv_piece pieces[] = {{text, 5}, {text + 5, 0}, {text + 5, 4}, {text + 9, 5}};
  clv_payload payload = {0, 2, 10};
  char copy[11] = {0}, copied_in_parts[11] = {0};
  clv_payload_copy(pieces, &payload, 0, 10, copy);
  assert_string_equal(copy, "0123456789");
  memset(copy, 0, sizeof copy);
  clv_payload_copy(pieces, &payload, 4, 3, copy);
  assert_string_equal(copy, "456");
  memset(copy, 0, sizeof copy);
  clv_payload_copy(pieces, &payload, 8, 100, copy); /* the copy is limited to the payload */
  assert_string_equal(copy, "89");
  clv_payload_copy(pieces, &payload, 10, 1, copy);
  assert_string_equal(copy, "89");
  assert_int_equal(clv_payload_crc32c(pieces, &payload, 1, 9), clv_crc32c(0, "123456789", 9));
  /* check value of RFC 3720 */
  assert_int_equal(clv_payload_crc32c(pieces, &payload, 1, 9), 0xe3069283);
  size_t at = 0, n_read = 0;
  clv_piece piece;
  while (clv_payload_next_piece(pieces, &payload, &at, &piece)) {
    assert_true(piece.len > 0);
    memcpy(copied_in_parts + n_read, piece.data, piece.len);
    n_read += piece.len;
  }
  assert_string_equal(copied_in_parts, "0123456789");
}

static void failure_texts_are_truncated_and_sanitized(void **state) {
  (void)state;
  clv_frame f = {.kind = CLV_ERROR};
  char longer[CLV_WIRE_TEXT + 10];
  memset(longer, 'a', sizeof longer);
  /* the character does not fit, so it is left out as a whole */
  memcpy(longer + CLV_WIRE_TEXT - 1, "\xc3\xa9", 3);
  clv_frame_set_failure(&f, CLV_INVALID, longer, "line\nbreak \xff \xe2\x82\xac");
  assert_int_equal(strlen(f.failure.text), CLV_WIRE_TEXT - 1);
  assert_string_equal(f.failure.detected_at, "line?break ? \xe2\x82\xac");
  CLV_AUTO(clv_bytes_done) clv_bytes all = encode_whole(&f, 0);
  decode_and_compare(&(clv_piece){all.data, all.len}, 1, &f, 0);
}

/* ---- frames read and written by Python ------------------------------------------------------- */

static void python_reads_and_writes_frames(void **state) {
  (void)state;
  if (system("protoc --version >/dev/null 2>&1") != 0) {
    print_message("because there is no protoc\n");
    skip();
  }
  if (system("/usr/bin/python3 -c 'import google.protobuf' 2>/dev/null") != 0) {
    print_message("because there is no python3-protobuf\n");
    skip();
  }
  char folder[] = "/tmp/clv-wire-XXXXXX", path[64], command[256];
  assert_non_null(mkdtemp(folder));
  clv_err err = {0};
  clv_frame frames[] = {make_sample_frame(CLV_CALL), make_sample_frame(CLV_DROP),
                        make_sample_frame(CLV_PREPARE), make_sample_frame(CLV_APPLY)};
  frames[2].backward.needed_calls[0].root_gradient = 0.25f;
  for (size_t i = 0; i < CLV_COUNT(frames); i++) {
    CLV_AUTO(clv_bytes_done)
    clv_bytes all = encode_whole(&frames[i], get_sample_payload_len(frames[i].kind));
    snprintf(path, sizeof path, "%s/%s", folder, clv_frame_kind_name(frames[i].kind));
    assert_ok(clv_file_write_durable(path, all.data, all.len, 0600, &err));
  }
  snprintf(command, sizeof command, "/usr/bin/python3 tests/unit/wire/frames.py %s", folder);
  assert_int_equal(system(command), 0);
  for (size_t i = 0; i < CLV_COUNT(frames); i++) {
    CLV_AUTO(clv_bytes_done) clv_bytes back = {0};
    snprintf(path, sizeof path, "%s/%s.again", folder, clv_frame_kind_name(frames[i].kind));
    assert_ok(clv_file_read(path, 1 << 20, &back, &err));
    decode_and_compare(&(clv_piece){back.data, back.len}, 1, &frames[i],
                       get_sample_payload_len(frames[i].kind));
  }
  snprintf(command, sizeof command, "rm -rf %s", folder);
  assert_int_equal(system(command), 0);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(every_frame_kind_round_trips),
    cmocka_unit_test(any_two_pieces_decode_the_same),
    cmocka_unit_test(single_byte_pieces_decode_the_same),
    cmocka_unit_test(bundled_frames_round_trip),
    cmocka_unit_test(the_largest_frames_round_trip),
    cmocka_unit_test(root_gradient_round_trips_any_finite_number),
    cmocka_unit_test(call_predecessor_id_round_trips),
    cmocka_unit_test(protobuf_c_reads_a_call),
    cmocka_unit_test(protobuf_c_reads_a_gradient),
    cmocka_unit_test(protobuf_c_reads_a_step),
    cmocka_unit_test(protobuf_c_rewrites_every_kind),
    cmocka_unit_test(field_order_does_not_change_the_frame),
    cmocka_unit_test(unknown_fields_are_skipped),
    cmocka_unit_test(last_scalar_wins_and_unpacked_lists_are_read),
    cmocka_unit_test(gradient_without_tensor_round_trips),
    cmocka_unit_test(value_with_a_tensor_round_trips),
    cmocka_unit_test(cached_value_round_trips),
    cmocka_unit_test(invalid_cache_fields_are_refused),
    cmocka_unit_test(chunked_tensor_heads_round_trip),
    cmocka_unit_test(encode_and_decode_allocate_nothing),
    cmocka_unit_test(payload_helpers_cross_piece_boundaries),
    cmocka_unit_test(copies_past_the_cache_are_complete),
    cmocka_unit_test(failure_texts_are_truncated_and_sanitized),
    cmocka_unit_test(python_reads_and_writes_frames),
};

int main(void) { return cmocka_run_group_tests_name("frame", tests, NULL, NULL); }
