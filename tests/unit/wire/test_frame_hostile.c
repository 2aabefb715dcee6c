/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests invalid frames: each is refused with a text that says why, the outputs do not change, and
 * nothing is read outside the given bytes. The bytes are alone on the heap, so that address
 * sanitizer sees such a read.
 */
#include "tests/unit/wire/wire_test.h"

#include "cleave/v1/cleave.pb-c.h"

/* Decodes a copy of the bytes. On failure, outputs must not change. */
static clv_code decode_copy(const void *bytes, size_t len, const clv_wire_limits *limits,
                            clv_err *err) {
  void *copy = malloc(len ? len : 1);
  memcpy(copy, bytes, len);
  clv_frame frame, unchanged;
  clv_payload payload = {91, 92, 93};
  memset(&frame, 0xa5, sizeof frame);
  memset(&unchanged, 0xa5, sizeof unchanged);
  clv_code code = clv_frame_decode(&(clv_piece){copy, len}, 1, limits, &frame, &payload, err);
  if (code != CLV_OK) {
    assert_memory_equal(&frame, &unchanged, sizeof frame);
    assert_int_equal(payload.piece_index + payload.offset + payload.len, 91 + 92 + 93);
  }
  free(copy);
  return code;
}

static clv_code decode_bundle(const clv_bytes *b, clv_err *err) {
  clv_bundle before;
  clv_frame frame;
  clv_payload payload;
  clv_wire_limits limits = clv_wire_limits_default();
  return clv_frame_decode_last(&(clv_piece){b->data, b->len}, 1, &limits, &before, &frame, &payload,
                               err);
}

/* Returns `n` frames of 2 bytes without a last frame. */
static clv_bytes make_pings(uint32_t n) {
  uint8_t prefix[CLV_WIRE_BUNDLE_PREFIX];
  const uint8_t ping[] = {8, CLV_PING};
  clv_bytes b = {0};
  for (uint32_t i = 0; i < n; i++) {
    clv_bytes_add(&b, prefix, clv_frame_write_bundle_prefix(prefix, sizeof ping));
    clv_bytes_add(&b, ping, sizeof ping);
  }
  return b;
}

static void nested_or_too_many_bundled_frames_are_refused(void **state) {
  clv_err err = {0};
  clv_bundle before;
  clv_frame frame;
  clv_payload payload;
  uint8_t prefix[CLV_WIRE_BUNDLE_PREFIX];
  clv_wire_limits limits = clv_wire_limits_default();
  (void)state;
  CLV_AUTO(clv_bytes_done) clv_bytes most = make_pings(CLV_WIRE_BUNDLED);
  assert_ok(decode_bundle(&most, &err));
  CLV_AUTO(clv_bytes_done) clv_bytes more = make_pings(CLV_WIRE_BUNDLED + 1);
  assert_int_equal(decode_bundle(&more, &err), CLV_INVALID);
  assert_non_null(strstr(err.text, "more than 15 frames before one"));
  assert_int_equal(
      clv_frame_decode(&(clv_piece){most.data, most.len}, 1, &limits, &frame, &payload, &err),
      CLV_INVALID);
  CLV_AUTO(clv_bytes_done) clv_bytes nested = {0}, inner = make_pings(1);
  clv_bytes_add(&nested, prefix, clv_frame_write_bundle_prefix(prefix, inner.len));
  clv_bytes_add(&nested, inner.data, inner.len);
  clv_piece piece = {nested.data, nested.len};
  assert_ok(clv_frame_decode_last(&piece, 1, &limits, &before, &frame, &payload, &err));
  assert_int_equal(clv_frame_decode_preceding(&piece, 1, &before.frame_positions[0], &limits,
                                              &frame, &payload, &err),
                   CLV_INVALID);
  assert_non_null(strstr(err.text, "contains another frame"));
  nested.len -= 2; /* the length of the nested frame exceeds the message */
  assert_int_equal(decode_bundle(&nested, &err), CLV_INVALID);
}

static clv_wire_limits get_default_limits(void) { return clv_wire_limits_default(); }

/* ---- bytes that are not a Frame ----------------------------------------------------------------
 */

typedef struct bad_bytes {
  const char *bytes;
  size_t len;
  const char *error_part; /* part of the error's text */
} bad_bytes;
#define BYTES(text) text, sizeof(text) - 1

static const bad_bytes malformed_cases[] = {
    {BYTES(""), "unknown frame kind 0"},
    {BYTES("\x08"), "runs past the end"},
    {BYTES("\x08\x80"), "runs past the end"},
    {BYTES("\x08\x2e"), "unknown frame kind 46"},
    {BYTES("\x08\x03"), "unknown frame kind 3"},
    {BYTES("\x08\x07"), "unknown frame kind 7"},
    {BYTES("\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"), "more than 32 bits"},
    {BYTES("\x10\xff\xff\xff\xff\xff\xff\xff\xff\xff\x02"), "more than 64 bits"},
    {BYTES("\x10\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"), "more than 64 bits"},
    {BYTES("\x00\x01"), "field number 0"},
    {BYTES("\x80\x80\x80\x80\x80\x01\x01"), "outside 1.."},
    {BYTES("\x0b"), "wire type 3"}, /* a group (wire type 3), which is not supported */
    {BYTES("\x0c"), "wire type 4"},
    {BYTES("\x0e"), "wire type 6"},
    {BYTES("\x0a\x01\x01"), "kind has wire type 2"},
    {BYTES("\x0d\x01\x01\x01\x01"), "kind has wire type 5"},
    {BYTES("\x7a\x05"
           "abc"),
     "3 are left"},
    {BYTES("\x7a\xff\xff\xff\xff\xff\xff\xff\xff\x7f"), "9223372036854775807"},
    {BYTES("\x7a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"), "18446744073709551615"},
    {BYTES("\x7a\x01"
           "a\x7a\x01"
           "b"),
     "more than one payload"},
    {BYTES("\x7a\x00\x7a\x00"), "more than one payload"},
    {BYTES("\x72\x05"
           "ab"),
     "2 are left"},                               /* unknown field of bytes */
    {BYTES("\x71\x05\x05"), "runs past the end"}, /* unknown field of 64 bits */
    {BYTES("\x75\x05\x05"), "runs past the end"}, /* unknown field of 32 bits */
    {BYTES("\x52\x07"
           "1234567"),
     "runs past the end"}, /* upstream, packed, 7 bytes */
    {BYTES("\x51"
           "1234567"),
     "runs past the end"}, /* upstream, 7 bytes */
    /* the extent is truncated by the end of the tensor's head */
    {BYTES("\x62\x03\x08\x01\x10"), "tensor 0: "},
    /* packed extents that exceed their tensor's head */
    {BYTES("\x62\x02\x12\x05"), "5 bytes at byte 4; 0 are left"},
    /* a number that exceeds its list */
    {BYTES("\x62\x03\x12\x01\x80\x10\x01"), "runs past the end"},
    {BYTES("\x62\x0b\x10\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01"),
     "dimension 0 of 92233720368547758"},
    {BYTES("\x62\x0b\x12\x09\x01\x01\x01\x01\x01\x01\x01\x01\x01"), "more than 8 dimensions"},
    {BYTES("\x82\x01\x03\x0a\x01"
           "x"),
     "session of 1 bytes"},
    {BYTES("\xa2\x01\x03\x12\x01\n"), "text is a control character"},
    {BYTES("\xa2\x01\x03\x12\x01\0"), "text is a control character"},
    {BYTES("\xa2\x01\x03\x12\x01\x7f"), "text is a control character"},
    {BYTES("\xa2\x01\x03\x12\x01\x80"), "not UTF-8"},
    /* a UTF-8 encoding that is longer than necessary */
    {BYTES("\xa2\x01\x04\x12\x02\xc0\xaf"), "not UTF-8"},
    {BYTES("\xa2\x01\x04\x12\x02\xc2\x85"), "not UTF-8"},     /* U+0085, a control character */
    {BYTES("\xa2\x01\x05\x12\x03\xed\xa0\x80"), "not UTF-8"}, /* the encoding of a surrogate */
    /* a UTF-8 encoding that is longer than necessary */
    {BYTES("\xa2\x01\x05\x12\x03\xe0\x80\x80"), "not UTF-8"},
    {BYTES("\xa2\x01\x06\x12\x04\xf4\x90\x80\x80"), "not UTF-8"}, /* above U+10FFFF */
    {BYTES("\xa2\x01\x04\x12\x02\xe2\x82"), "not UTF-8"},         /* the last character is cut */
    {BYTES("\xa2\x01\x05\x12\x03\xe2\x82\x41"), "not UTF-8"},
};

static void malformed_bytes_are_refused(void **state) {
  (void)state;
  clv_wire_limits limits = get_default_limits();
  for (size_t i = 0; i < CLV_COUNT(malformed_cases); i++) {
    clv_err err = {0};
    clv_code code = decode_copy(malformed_cases[i].bytes, malformed_cases[i].len, &limits, &err);
    if (code != CLV_INVALID || !strstr(err.text, malformed_cases[i].error_part))
      fail_msg("case %zu: %d \"%s\", not \"%s\"", i, (int)code, err.text,
               malformed_cases[i].error_part);
  }
}

static void truncated_frames_are_refused(void **state) {
  (void)state;
  clv_wire_limits limits = get_default_limits();
  for (int kind = CLV_ATTACH; kind < CLV_FRAME_KINDS; kind = get_next_kind(kind)) {
    clv_frame f = make_sample_frame((clv_frame_kind)kind);
    size_t payload_len = get_sample_payload_len(f.kind);
    CLV_AUTO(clv_bytes_done) clv_bytes all = encode_whole(&f, payload_len);
    for (size_t len = 0; len < all.len; len++) {
      clv_err err = {0};
      clv_code code = decode_copy(all.data, len, &limits, &err);
      /* Missing payload is refused, except for kinds that may have no tensors. */
      if (payload_len && kind != CLV_GRADIENT && kind != CLV_FINISHED)
        assert_int_not_equal(code, CLV_OK);
    }
  }
}

static void flipped_bits_never_crash_the_decoder(void **state) {
  (void)state;
  clv_wire_limits limits = get_default_limits();
  for (int kind = CLV_ATTACH; kind < CLV_FRAME_KINDS; kind = get_next_kind(kind)) {
    clv_frame f = make_sample_frame((clv_frame_kind)kind);
    CLV_AUTO(clv_bytes_done) clv_bytes all = encode_whole(&f, get_sample_payload_len(f.kind));
    for (size_t bit = 0; bit < all.len * 8; bit++) {
      clv_err err = {0};
      all.data[bit / 8] = (char)(all.data[bit / 8] ^ (1 << (bit % 8)));
      (void)!decode_copy(all.data, all.len, &limits, &err);
      all.data[bit / 8] = (char)(all.data[bit / 8] ^ (1 << (bit % 8)));
    }
  }
}

/* ---- well-formed frames that break a rule
 * -------------------------------------------------------- */

typedef struct bad_frame {
  clv_frame_kind frame_kind;
  void (*damage)(clv_frame *f);
  size_t payload_len; /* bytes of payload; SAMPLE_LEN: as many as the sample has */
  const char *error_part;
} bad_frame;
#define SAMPLE_LEN SIZE_MAX

#define DAMAGE(name, statement) \
  static void name(clv_frame *f) { statement; }
DAMAGE(nothing, (void)f)
DAMAGE(no_context, f->context = 0)
DAMAGE(no_message, f->message_id = 0)
DAMAGE(big_module, f->module = CLV_WIRE_MODULES + 1)
DAMAGE(odd_flags, f->flags = 2)
DAMAGE(flags_here, f->flags = CLV_FLAG_DELIVER)
DAMAGE(unsaid_to, f->flags = 0; strcpy(f->to, "w"))
DAMAGE(upstream_here, f->n_value_ids = 1)
DAMAGE(no_tensors, f->n_tensors = 0)
DAMAGE(tensor_too_many, f->n_tensors = 2)
DAMAGE(wrong_bytes, f->tensors[1].bytes = 41)
DAMAGE(wrong_dtype, f->tensors[1].dtype = (clv_dtype)99)
DAMAGE(dims_overflow, f->tensors[0].shape = CLV_SHAPE(1ll << 31, 1ll << 31, 1ll << 31))
DAMAGE(dims_wrap_to_bytes, f->tensors[0].shape = CLV_SHAPE(1ll << 62, 4, 6))
DAMAGE(huge, f->tensors[0] = ((clv_tensor_head){CLV_U8, CLV_SHAPE(1ll << 51), 1ull << 51, 7, 0}))
DAMAGE(mixed, f->tensors[1].transfer_id = 4)
DAMAGE(same_transfer, f->tensors[0].transfer_id = f->tensors[1].transfer_id = 4)
DAMAGE(empty_transfer, f->tensors[0] = ((clv_tensor_head){CLV_U8, CLV_SHAPE(0), 0, 7, 0});
       f->tensors[1].transfer_id = 8)
DAMAGE(large_inline, f->tensors[0] = ((clv_tensor_head){CLV_U8, CLV_SHAPE(65536), 65536, 0, 0}))
DAMAGE(lane_beyond, f->attach.lane_index = 3)
DAMAGE(many_lanes, f->attach.n_lanes = CLV_WIRE_LANES + 1)
DAMAGE(odd_role, f->attach.role = (clv_attach_role)3)
DAMAGE(first_credit, f->attached.credit_bytes = CLV_WIRE_BYTES_MAX + 1)
DAMAGE(nan_scale, f->commit.scale = 0.0f / 0.0f)
DAMAGE(infinite_lr, f->commit.lr = 1e38f * 10)
DAMAGE(nan_more_lr, f->commit.group_lrs[1] = 0.0f / 0.0f)
DAMAGE(infinite_more_lr, f->commit.group_lrs[2] = -1e38f * 10)
DAMAGE(code_zero, f->failure.code = CLV_OK)
DAMAGE(code_seventeen, f->failure.code = (clv_code)17)
DAMAGE(newline, f->failure.text[3] = '\n')
DAMAGE(credit_high, f->credit.bytes = UINT64_MAX)
DAMAGE(transfer_zero, f->chunk.transfer_id = 0)
DAMAGE(beyond_total, f->chunk.offset = (1 << 20) - 999)
DAMAGE(offset_wraps, f->chunk.offset = UINT64_MAX - 500)
DAMAGE(total_high, f->chunk.total_bytes = UINT64_MAX)
DAMAGE(what_zero, f->state.part = (clv_state_kind)0)
DAMAGE(what_five, f->state.part = (clv_state_kind)5)
DAMAGE(put_gradients, f->state.part = CLV_STATE_GRADIENTS; f->context = 0)
DAMAGE(index_high, f->state.item_index = 7)
DAMAGE(of_a_path, strcpy(f->state.item_or_file_name, "../x"))
DAMAGE(of_a_dot, strcpy(f->state.item_or_file_name, ".x"))
DAMAGE(of_a_blank, strcpy(f->state.item_or_file_name, "a b"))
DAMAGE(of_gradients, f->state.part = CLV_STATE_GRADIENTS)
DAMAGE(large_file, f->state.file_bytes = CLV_WIRE_BYTES_MAX + 1)
DAMAGE(count_high, f->state.n_items = CLV_WIRE_PARAMS + 1)
DAMAGE(nameless, f->state.item_or_file_name[0] = 0)
DAMAGE(no_value, f->call.args[0].value_id = 0)
DAMAGE(no_args, f->call.n_args = 0; f->n_tensors = 0)
DAMAGE(none_here, f->call.args[1].is_inline = false; f->call.args[1].value_id = 5)
DAMAGE(all_here, f->call.args[0].is_inline = true)
DAMAGE(to_somebody, strcpy(f->to, "worker-2"))
DAMAGE(to_newline, strcpy(f->to, "worker\n2"))
DAMAGE(value_and_failure, f->n_tensors = 1;
       f->tensors[0] = ((clv_tensor_head){CLV_F32, CLV_SHAPE(1), 4, 0, 0}))
DAMAGE(no_failure, f->has_failure = false)
DAMAGE(unvoted, f->has_vote = false)
DAMAGE(late_contribution, f->contribution_index = 4096)
DAMAGE(no_phase, f->backward_pass_number = 0)
DAMAGE(no_call, f->backward.needed_calls[1].call_id = 0)
DAMAGE(many_contributions, f->backward.needed_calls[1].n_contributions = 4097)
DAMAGE(nan_root, f->backward.needed_calls[0].root_gradient = 0.0f / 0.0f)
DAMAGE(infinite_root, f->backward.needed_calls[2].root_gradient = -1e38f * 10)
DAMAGE(target_of_nothing, f->backward.grad_targets[2].value_id = 0)
DAMAGE(target_slot, f->backward.grad_targets[1].input_index = CLV_WIRE_ARGS)
DAMAGE(target_twice,
       f->backward.grad_targets[1].input_index = f->backward.grad_targets[0].input_index)
DAMAGE(target_peer, f->backward.grad_targets[0].to_peer = 3)
DAMAGE(target_order, f->backward.grad_targets[2].contribution_index = 4096)
DAMAGE(peer_nameless, f->backward.peer_names[1][0] = 0)
DAMAGE(no_number, f->reference.message_number = 0)
DAMAGE(a_number, f->reference.message_number = 1)
DAMAGE(no_ref, f->reference.ref_id = 0)
DAMAGE(no_fork, f->reference.fork_id = 0)
DAMAGE(early, f->reference.owner_lacks_fork = true)
DAMAGE(yours, f->reference.is_for_owner = true)
DAMAGE(node_newline, strcpy(f->reference.node_name, "w\n"))
DAMAGE(drop_tensor, f->n_tensors = 0)

static const bad_frame broken_frames[] = {
    {CLV_REF_KEEP, no_context, SAMPLE_LEN, "context id 0"},
    {CLV_REF_USE, no_message, SAMPLE_LEN, "message id 0"},
    {CLV_REF_FORK, no_number, SAMPLE_LEN, "number 0"},
    {CLV_REF_ACK, no_number, SAMPLE_LEN, "number 0"},
    {CLV_REF_FETCH, no_number, SAMPLE_LEN, "number 0"},
    {CLV_REF_VALUE, a_number, SAMPLE_LEN, "number 1"},
    {CLV_REF_DELETE, no_ref, SAMPLE_LEN, "an id of 0"},
    {CLV_REF_ACCEPT, no_fork, SAMPLE_LEN, "an id of 0"},
    {CLV_REF_KEEP, early, SAMPLE_LEN, "`early` or `yours`"},
    {CLV_REF_FETCH, yours, SAMPLE_LEN, "`early` or `yours`"},
    {CLV_REF_RENEW, node_newline, SAMPLE_LEN, "byte 1 (0x0a)"},
    {CLV_REF_VALUE, drop_tensor, 0, "either one tensor or the failure"},
    {CLV_REF_ACK, code_seventeen, SAMPLE_LEN, "code 17 is outside"},
    {CLV_ENDED, no_context, SAMPLE_LEN, "context id 0"},
    {CLV_PING, big_module, SAMPLE_LEN, "module 256"},
    {CLV_CALL, odd_flags, SAMPLE_LEN, "unknown flags 0x2"},
    {CLV_PING, odd_flags, SAMPLE_LEN, "unknown flags 0x2"},
    {CLV_VALUE, flags_here, SAMPLE_LEN, "flags do not belong here"},
    {CLV_CALL, unsaid_to, SAMPLE_LEN, "`to` does not belong here"},
    {CLV_FINISHED, upstream_here, SAMPLE_LEN, "upstream ids do not belong here"},
    {CLV_STATE_ITEM, no_tensors, 0, "0 tensors; 1 to 1"},
    {CLV_STATE_PUT, no_tensors, 0, "0 tensors; 1 to 1"},
    {CLV_GRADIENT, tensor_too_many, 16, "2 tensors; 0 to 1"},
    {CLV_FINISHED, tensor_too_many, 32, "2 tensors; 0 to 1"},
    {CLV_CALL, wrong_bytes, SAMPLE_LEN, "tensor 1: [5] of i64 is 40 bytes, not 41"},
    {CLV_CALL, wrong_dtype, SAMPLE_LEN, "tensor 1: unknown dtype 99"},
    {CLV_CALL, dims_overflow, SAMPLE_LEN, "overflow"},
    {CLV_CALL, dims_wrap_to_bytes, SAMPLE_LEN, "overflow"},
    {CLV_CALL, huge, 0, "over the limit of 1125899906842624"},
    {CLV_CALL, mixed, 24, "both in the payload and in chunks"},
    {CLV_CALL, same_transfer, 0, "same transfer id"},
    {CLV_CALL, empty_transfer, 0, "empty but has a transfer id"},
    {CLV_CALL, large_inline, 65536 + 40, "65576 bytes of tensors in the frame itself"},
    {CLV_CALL, nothing, 63, "the payload is 63 bytes, its tensors are 64"},
    {CLV_CALL, nothing, 0, "the payload is 0 bytes"},
    {CLV_PING, nothing, 1, "the payload is 1 bytes, its tensors are 0"},
    {CLV_ATTACH, lane_beyond, SAMPLE_LEN, "lane 3 of 2"},
    {CLV_ATTACH, many_lanes, SAMPLE_LEN, "at most 16 lanes"},
    {CLV_ATTACH, odd_role, SAMPLE_LEN, "unknown role 3"},
    {CLV_ATTACHED, first_credit, SAMPLE_LEN, "first credit"},
    {CLV_APPLY, nan_scale, SAMPLE_LEN, "must be finite"},
    {CLV_APPLY, infinite_lr, SAMPLE_LEN, "must be finite"},
    {CLV_APPLY, nan_more_lr, SAMPLE_LEN, "the learning rate of group 2 is "},
    {CLV_APPLY, infinite_more_lr, SAMPLE_LEN, "the learning rate of group 3 is -inf"},
    {CLV_ERROR, code_zero, SAMPLE_LEN, "code 0 is outside"},
    {CLV_ABORT, code_seventeen, SAMPLE_LEN, "code 17 is outside"},
    {CLV_ABORT, newline, SAMPLE_LEN, "byte 3 (0x0a) of "},
    {CLV_CREDIT, credit_high, SAMPLE_LEN, "credit of 18446744073709551615"},
    {CLV_CHUNK, transfer_zero, SAMPLE_LEN, "transfer id 0"},
    {CLV_CHUNK, beyond_total, SAMPLE_LEN, "1000 bytes at offset 1047577 run past"},
    {CLV_CHUNK, offset_wraps, SAMPLE_LEN, "run past the total"},
    {CLV_CHUNK, total_high, SAMPLE_LEN, "chunk.total"},
    {CLV_CHUNK, nothing, 0, "a CHUNK without bytes"},
    {CLV_STATE_GET, what_zero, SAMPLE_LEN, "unknown kind of state 0"},
    {CLV_STATE_DONE, what_five, SAMPLE_LEN, "unknown kind of state 5"},
    {CLV_STATE_PUT, put_gradients, 0, "a STATE_PUT of a gradient without its context"},
    {CLV_STATE_ITEM, index_high, SAMPLE_LEN, "state item 7 of 7"},
    {CLV_STATE_GET, count_high, SAMPLE_LEN, "at most 4096"},
    {CLV_STATE_PUT, nameless, SAMPLE_LEN, "without a name"},
    {CLV_STATE_SAVE, nameless, SAMPLE_LEN, "[A-Za-z0-9._-]"},
    {CLV_STATE_LOAD, of_a_path, SAMPLE_LEN, "[A-Za-z0-9._-]"},
    {CLV_STATE_REMOVE, of_a_dot, SAMPLE_LEN, "no dot first"},
    {CLV_STATE_FILE, of_a_blank, SAMPLE_LEN, "[A-Za-z0-9._-]"},
    {CLV_STATE_SAVE, of_gradients, SAMPLE_LEN, "gradients cannot be in a state file"},
    {CLV_STATE_FILE, large_file, SAMPLE_LEN, "state.bytes of "},
    {CLV_CALL, no_context, SAMPLE_LEN, "CALL: context id 0"},
    {CLV_CALL, no_message, SAMPLE_LEN, "message id 0"},
    {CLV_CALL, no_value, SAMPLE_LEN, "argument 0 has neither a tensor nor a value id"},
    {CLV_CALL, no_args, 0, "0 arguments"},
    {CLV_CALL, none_here, SAMPLE_LEN, "1 of them inline, but 2 tensors"},
    {CLV_CALL, all_here, SAMPLE_LEN, "3 of them inline, but 2 tensors"},
    {CLV_CALL, upstream_here, SAMPLE_LEN, "upstream ids do not belong here"},
    {CLV_CALL, to_somebody, SAMPLE_LEN, "`to` does not belong here"},
    {CLV_PING, to_somebody, SAMPLE_LEN, "`to` does not belong here"},
    {CLV_DELIVER, no_message, SAMPLE_LEN, "message id 0"},
    {CLV_DELIVER, to_newline, SAMPLE_LEN, "byte 6 (0x0a)"},
    {CLV_VALUE, value_and_failure, 4, "either one tensor or the failure"},
    {CLV_VALUE, no_failure, SAMPLE_LEN, "either one tensor or the failure"},
    {CLV_VALUE, code_zero, SAMPLE_LEN, "code 0 is outside"},
    {CLV_DROP, no_context, SAMPLE_LEN, "context id 0"},
    {CLV_SPARE, no_context, SAMPLE_LEN, "context id 0"},
    {CLV_GRADIENT, late_contribution, SAMPLE_LEN, "contribution 4096"},
    {CLV_GRADIENT, no_message, SAMPLE_LEN, "message id 0"},
    {CLV_FINISHED, unvoted, SAMPLE_LEN, "a tensor without a vote"},
    {CLV_APPLY, no_message, SAMPLE_LEN, "message id 0"},
    {CLV_REVERT, no_context, SAMPLE_LEN, "context id 0"},
    {CLV_PREPARE, no_phase, SAMPLE_LEN, "phase 0"},
    {CLV_PREPARE, no_call, SAMPLE_LEN, "needed call 1 has id 0"},
    {CLV_PREPARE, many_contributions, SAMPLE_LEN, "needed call 1: 4097 contributions"},
    {CLV_PREPARE, nan_root, SAMPLE_LEN, "needed call 0: a root that starts with "},
    {CLV_PREPARE, infinite_root, SAMPLE_LEN, "needed call 2: a root that starts with -inf"},
    {CLV_PREPARE, target_of_nothing, SAMPLE_LEN, "needed call 2: target of value 0"},
    {CLV_PREPARE, target_slot, SAMPLE_LEN, "slot 8"},
    {CLV_PREPARE, target_twice, SAMPLE_LEN, "slot 0 has two targets"},
    {CLV_PREPARE, target_peer, SAMPLE_LEN, "peer 3 of 2"},
    {CLV_PREPARE, target_order, SAMPLE_LEN, "order 4096"},
    {CLV_PREPARE, peer_nameless, SAMPLE_LEN, "peer 1 without a name"},
};

/* A frame as protobuf-c writes it, without any check. */
typedef struct packed_frame {
  uint8_t bytes[128 << 10];
  size_t len;
} packed_frame;

static void fill_tensor_heads(const clv_frame *f, Cleave__V1__TensorHead *heads,
                              uint64_t (*dims)[8]) {
  for (uint32_t i = 0; i < f->n_tensors; i++) {
    const clv_tensor_head *head = &f->tensors[i];
    cleave__v1__tensor_head__init(&heads[i]);
    heads[i].dtype = (uint32_t)head->dtype;
    heads[i].n_dims = (size_t)head->shape.rank;
    heads[i].dims = dims[i];
    for (int d = 0; d < head->shape.rank; d++) dims[i][d] = (uint64_t)head->shape.dim[d];
    heads[i].bytes = head->bytes;
    heads[i].crc32c = head->crc32c;
    heads[i].transfer = head->transfer_id;
  }
}

/* The bodies that frames of any kind can have, with the arrays of pointers that protobuf-c needs.
 */
typedef struct bodies {
  Cleave__V1__Attach attach;
  Cleave__V1__Attached attached;
  Cleave__V1__Commit commit;
  Cleave__V1__Vote vote;
  Cleave__V1__Failure failure;
  Cleave__V1__Credit credit;
  Cleave__V1__Ack ack;
  Cleave__V1__Chunk chunk;
  Cleave__V1__State state;
  Cleave__V1__Reference reference;
  Cleave__V1__Call call;
  Cleave__V1__Arg args[CLV_WIRE_ARGS], *arg_list[CLV_WIRE_ARGS];
  Cleave__V1__Backward backward;
  Cleave__V1__NeededCall calls[CLV_WIRE_NEEDED_CALLS], *call_list[CLV_WIRE_NEEDED_CALLS];
  Cleave__V1__Target targets[CLV_WIRE_TARGETS], *target_list[CLV_WIRE_TARGETS];
  char *peer_names[CLV_WIRE_PREPARE_PEERS];
} bodies;

static void fill_call(const clv_frame *f, bodies *b) {
  cleave__v1__call__init(&b->call);
  for (uint32_t i = 0; i < f->call.n_args; i++) {
    cleave__v1__arg__init(&b->args[i]);
    b->args[i].value = f->call.args[i].value_id;
    b->args[i].needs_grad = f->call.args[i].needs_grad;
    b->args[i].here = f->call.args[i].is_inline;
    b->arg_list[i] = &b->args[i];
  }
  b->call.after = f->call.runs_after_call;
  b->call.n_args = f->call.n_args;
  b->call.args = b->arg_list;
}

static void fill_backward(const clv_frame *f, bodies *b) {
  cleave__v1__backward__init(&b->backward);
  for (uint32_t i = 0; i < f->backward.n_grad_targets; i++) {
    const clv_target *from = &f->backward.grad_targets[i];
    cleave__v1__target__init(&b->targets[i]);
    b->targets[i].slot = from->input_index;
    b->targets[i].value = from->value_id;
    b->targets[i].to = from->to_peer;
    b->targets[i].order = from->contribution_index;
    b->target_list[i] = &b->targets[i];
  }
  for (uint32_t i = 0, first = 0; i < f->backward.n_needed_calls; i++) {
    const clv_needed_call *from = &f->backward.needed_calls[i];
    cleave__v1__needed_call__init(&b->calls[i]);
    b->calls[i].call = from->call_id;
    b->calls[i].contributions = from->n_contributions;
    b->calls[i].root = from->root_gradient;
    b->calls[i].n_targets = from->n_grad_targets;
    b->calls[i].targets = b->target_list + first;
    b->call_list[i] = &b->calls[i];
    first += from->n_grad_targets;
  }
  for (uint32_t i = 0; i < f->backward.n_peers; i++)
    b->peer_names[i] = (char *)(uintptr_t)f->backward.peer_names[i];
  b->backward.n_peers = f->backward.n_peers;
  b->backward.peers = b->peer_names;
  b->backward.n_calls = f->backward.n_needed_calls;
  b->backward.calls = b->call_list;
}

static void fill_stream_bodies(const clv_frame *f, bodies *b) {
  cleave__v1__attach__init(&b->attach);
  b->attach.lane = f->attach.lane_index;
  b->attach.lanes = f->attach.n_lanes;
  b->attach.role = (Cleave__V1__AttachRole)f->attach.role;
  cleave__v1__attached__init(&b->attached);
  b->attached.credit_bytes = f->attached.credit_bytes;
  cleave__v1__credit__init(&b->credit);
  b->credit.bytes = f->credit.bytes;
  cleave__v1__ack__init(&b->ack);
  b->ack.n_received = f->ack.n_lanes;
  b->ack.received = (uint64_t *)(uintptr_t)f->ack.n_received;
  cleave__v1__chunk__init(&b->chunk);
  b->chunk.transfer = f->chunk.transfer_id;
  b->chunk.offset = f->chunk.offset;
  b->chunk.total = f->chunk.total_bytes;
}

static void fill_step(const clv_frame *f, bodies *b) {
  cleave__v1__commit__init(&b->commit);
  b->commit.scale = f->commit.scale;
  b->commit.lr = f->commit.lr;
  b->commit.n_more_lrs = f->commit.n_group_lrs;
  b->commit.more_lrs = (float *)(uintptr_t)f->commit.group_lrs;
  cleave__v1__vote__init(&b->vote);
  b->vote.finite = f->vote.is_finite;
  cleave__v1__failure__init(&b->failure);
  b->failure.code = (uint32_t)f->failure.code;
  b->failure.text = (char *)(uintptr_t)f->failure.text;
}

static void fill_named_bodies(const clv_frame *f, bodies *b) {
  cleave__v1__state__init(&b->state);
  b->state.what = (Cleave__V1__StateWhat)f->state.part;
  b->state.name = (char *)(uintptr_t)f->state.item_or_file_name;
  b->state.device = (char *)(uintptr_t)f->state.device_name;
  b->state.index = f->state.item_index;
  b->state.count = f->state.n_items;
  b->state.bytes = f->state.file_bytes;
  if (f->kind == CLV_STATE_FILE)
    b->state.sha256 = (ProtobufCBinaryData){32, (uint8_t *)(uintptr_t)f->state.file_sha256.bytes};
  cleave__v1__reference__init(&b->reference);
  b->reference.ref = f->reference.ref_id;
  b->reference.fork = f->reference.fork_id;
  b->reference.number = f->reference.message_number;
  b->reference.early = f->reference.owner_lacks_fork;
  b->reference.yours = f->reference.is_for_owner;
  b->reference.node = (char *)(uintptr_t)f->reference.node_name;
}

static void fill_head(const clv_frame *f, Cleave__V1__Frame *m) {
  m->kind = (Cleave__V1__FrameKind)f->kind;
  m->context = f->context;
  m->phase = f->backward_pass_number;
  m->to = (char *)(uintptr_t)f->to;
  m->message = f->message_id;
  m->micro_batch = f->micro_batch;
  m->order = f->contribution_index;
  m->module = f->module;
  m->flags = f->flags;
  m->n_upstream = f->n_value_ids;
  m->upstream = (uint64_t *)(uintptr_t)f->value_ids;
  m->n_tensors = f->n_tensors;
}

/* Fills in the bodies that frames of this kind have. */
static void fill_bodies(const clv_frame *f, bodies *b, Cleave__V1__Frame *m) {
  fill_stream_bodies(f, b);
  fill_step(f, b);
  fill_named_bodies(f, b);
  fill_call(f, b);
  if (f->kind == CLV_PREPARE) fill_backward(f, b);
  if (f->kind == CLV_ATTACH) m->attach = &b->attach;
  if (f->kind == CLV_ATTACHED) m->attached = &b->attached;
  if (f->kind == CLV_CALL) m->call = &b->call;
  if (f->kind == CLV_PREPARE) m->backward = &b->backward;
  if (f->kind == CLV_APPLY) m->commit = &b->commit;
  if (f->has_vote) m->vote = &b->vote;
  if (f->kind == CLV_ABORT || f->kind == CLV_ERROR || f->has_failure) m->failure = &b->failure;
  if (f->kind == CLV_CREDIT) m->credit = &b->credit;
  if (f->kind == CLV_CHUNK) m->chunk = &b->chunk;
  if (f->kind == CLV_ACK) m->ack = &b->ack;
  if ((f->kind >= CLV_STATE_GET && f->kind <= CLV_STATE_DONE) ||
      (f->kind >= CLV_STATE_SAVE && f->kind <= CLV_STATE_FILE))
    m->state = &b->state;
  if (f->kind >= CLV_REF_KEEP && f->kind <= CLV_REF_ACK) m->reference = &b->reference;
}

static void pack_unchecked(const clv_frame *f, size_t payload_len, packed_frame *ret) {
  Cleave__V1__Frame m = CLEAVE__V1__FRAME__INIT;
  Cleave__V1__TensorHead heads[CLV_WIRE_TENSORS], *pointers[CLV_WIRE_TENSORS];
  uint64_t dims[CLV_WIRE_TENSORS][8];
  static uint8_t payload[100 << 10];
  bodies all;
  for (size_t i = 0; i < CLV_WIRE_TENSORS; i++) pointers[i] = &heads[i];
  fill_tensor_heads(f, heads, dims);
  fill_head(f, &m);
  m.tensors = pointers;
  m.payload = (ProtobufCBinaryData){payload_len, payload};
  fill_bodies(f, &all, &m);
  assert_true(cleave__v1__frame__get_packed_size(&m) <= sizeof ret->bytes);
  ret->len = cleave__v1__frame__pack(&m, ret->bytes);
}

static void encoder_and_decoder_refuse_invalid_frames(void **state) {
  (void)state;
  static packed_frame packed;
  clv_wire_limits limits = get_default_limits();
  for (size_t i = 0; i < CLV_COUNT(broken_frames); i++) {
    const bad_frame *c = &broken_frames[i];
    clv_err encode_err = {0}, decode_err = {0};
    clv_frame f = make_sample_frame(c->frame_kind);
    CLV_AUTO(clv_bytes_done) clv_bytes head = {0};
    size_t len =
        c->payload_len == SAMPLE_LEN ? get_sample_payload_len(c->frame_kind) : c->payload_len;
    pack_unchecked(&f, get_sample_payload_len(c->frame_kind), &packed);
    if (decode_copy(packed.bytes, packed.len, &limits, &decode_err) != CLV_OK)
      fail_msg("case %zu unspoilt: %s", i, decode_err.text);
    c->damage(&f);
    pack_unchecked(&f, len, &packed);
    clv_code encode_code = clv_frame_encode(&f, len, &head, &encode_err);
    clv_code decode_code = decode_copy(packed.bytes, packed.len, &limits, &decode_err);
    if ((encode_code != CLV_INVALID && encode_code != CLV_EXHAUSTED) ||
        !strstr(encode_err.text, c->error_part))
      fail_msg("case %zu, encoding: %d \"%s\", not \"%s\"", i, (int)encode_code, encode_err.text,
               c->error_part);
    if ((decode_code != CLV_INVALID && decode_code != CLV_EXHAUSTED) ||
        !strstr(decode_err.text, c->error_part))
      fail_msg("case %zu, decoding: %d \"%s\", not \"%s\"", i, (int)decode_code, decode_err.text,
               c->error_part);
  }
}

static void body_unlike_the_frame_kind_is_refused(void **state) {
  (void)state;
  static const bad_bytes cases[] = {
      {BYTES("\x08\x01"), "ATTACH: `attach` is missing"},
      {BYTES("\x08\x1b\x10\x01\x18\x01"), "APPLY: `commit` is missing"},
      {BYTES("\x08\x08"), "ABORT: `failure` is missing"},
      {BYTES("\x08\x0a\x7a\x01"
             "a"),
       "CHUNK: `chunk` is missing"},
      {BYTES("\x08\x0e"), "STATE_PUT: `state` is missing"},
      {BYTES("\x08\x10\xaa\x01\x00"), "PING: `credit` does not belong here"},
      {BYTES("\x08\x09\xaa\x01\x00\x92\x01\x00"), "CREDIT: `commit` does not belong here"},
      {BYTES("\x08\x18\x62\x00\xca\x01\x00"), "`backward` together"},
      {BYTES("\x08\x18\xca\x01\x00\x62\x00"), "`backward` together"},
      {BYTES("\x08\x18\xca\x01\x00\x51"
             "12345678"),
       "`backward` together"},
      {BYTES("\x08\x18\x51"
             "12345678\xca\x01\x00"),
       "`backward` together"},
      {BYTES("\x08\x14\x10\x01\x18\x01"), "CALL: `call` is missing"},
      {BYTES("\x08\x18\x10\x01\x20\x01"), "PREPARE: `backward` is missing"},
      {BYTES("\x08\x10\x62\x02\x08\x05"), "PING: 1 tensors; 0 to 0 belong here"},
  };
  clv_wire_limits limits = get_default_limits();
  for (size_t i = 0; i < CLV_COUNT(cases); i++) {
    clv_err err = {0};
    assert_fails(decode_copy(cases[i].bytes, cases[i].len, &limits, &err), CLV_INVALID,
                 cases[i].error_part);
  }
}

/* ---- limits of the lists and of the bytes in a frame ----------------------------------------- */

/* Too many rates are refused whether they are packed or not, in one body or in two. */
static void too_many_learning_rates_are_refused(void **state) {
  (void)state;
  static const char zeros[4 * (CLV_WIRE_GROUPS + 1)];
  clv_err err = {0};
  clv_wire_limits limits = get_default_limits();
  CLV_AUTO(clv_bytes_done) clv_bytes many = {0};
  clv_bytes_add(&many, "\x08\x1b\x92\x01\x42\x2a\x40", 7);
  clv_bytes_add(&many, zeros, 64);
  assert_fails(decode_copy(many.data, many.len, &limits, &err), CLV_INVALID,
               "more than 15 learning");
  many.len = 0;
  clv_bytes_add(&many, "\x08\x1b\x10\x01\x18\x01\x92\x01\x3e\x2a\x3c", 11);
  clv_bytes_add(&many, zeros, 60);
  assert_ok(decode_copy(many.data, many.len, &limits, &err));
  clv_bytes_add(&many, "\x92\x01\x05\x2d\0\0\0\0", 8);
  assert_fails(decode_copy(many.data, many.len, &limits, &err), CLV_INVALID,
               "more than 15 learning");
  many.len = 0;
  clv_bytes_add(&many, "\x08\x1b\x92\x01\x05\x2a\x03\0\0\0", 10);
  assert_fails(decode_copy(many.data, many.len, &limits, &err), CLV_INVALID, "runs past the end");
}

static void encoder_refuses_too_many_learning_rates(void **state) {
  (void)state;
  clv_err err = {0};
  CLV_AUTO(clv_bytes_done) clv_bytes many = {0};
  clv_frame f = make_sample_frame(CLV_APPLY);
  f.commit.n_group_lrs = CLV_WIRE_GROUPS + 1;
  assert_fails(clv_frame_encode(&f, 0, &many, &err), CLV_INVALID, "16 more learning rates");
}

static void too_many_ids_or_tensors_are_refused(void **state) {
  (void)state;
  clv_err err = {0};
  clv_wire_limits limits = get_default_limits();
  CLV_AUTO(clv_bytes_done) clv_bytes many = {0};
  for (int i = 0; i < CLV_WIRE_UPSTREAM + 1; i++) clv_bytes_add(&many, "\x51\1\0\0\0\0\0\0\0", 9);
  assert_fails(decode_copy(many.data, many.len, &limits, &err), CLV_INVALID,
               "more than 64 upstream");
  many.len = 0;
  for (int i = 0; i < CLV_WIRE_TENSORS + 1; i++) clv_bytes_add(&many, "\x62\0", 2);
  assert_fails(decode_copy(many.data, many.len, &limits, &err), CLV_INVALID,
               "more than 16 tensors");
  many.len = 0;
  for (int i = 0; i < 20000; i++) clv_bytes_add(&many, "\x08\x10", 2);
  assert_fails(decode_copy(many.data, many.len, &limits, &err), CLV_EXHAUSTED,
               "besides the payload");
  many.len = 0;
  clv_bytes_add(&many, "\xa2\x01\x84\x02\x12\x81\x02", 7);
  for (int i = 0; i < 257; i++) clv_bytes_add(&many, "a", 1);
  assert_fails(decode_copy(many.data, many.len, &limits, &err), CLV_INVALID,
               "text of 257 bytes is over the limit of 256");
  many.len = 0;
  clv_bytes_add(&many, "\xd2\x01\x81\x01", 4);
  for (int i = 0; i < 129; i++) clv_bytes_add(&many, "a", 1);
  assert_fails(decode_copy(many.data, many.len, &limits, &err), CLV_INVALID,
               "to of 129 bytes is over the limit of 128");
  clv_frame f = make_sample_frame(CLV_DROP);
  f.n_value_ids = CLV_WIRE_UPSTREAM + 1;
  assert_fails(clv_frame_encode(&f, 0, &many, &err), CLV_INVALID, "65 upstream ids");
}

static void local_limits_are_enforced(void **state) {
  (void)state;
  clv_err err = {0};
  clv_frame f = make_sample_frame(CLV_CHUNK);
  CLV_AUTO(clv_bytes_done) clv_bytes all = encode_whole(&f, 1000);
  clv_wire_limits limits = get_default_limits();
  limits.message_bytes = all.len;
  limits.chunk_bytes = 1000;
  limits.session_bytes = 1 << 20;
  assert_ok(decode_copy(all.data, all.len, &limits, &err));
  limits.message_bytes = all.len - 1;
  assert_fails(decode_copy(all.data, all.len, &limits, &err), CLV_EXHAUSTED,
               "longer than the limit");
  limits = get_default_limits();
  limits.chunk_bytes = 999;
  assert_fails(decode_copy(all.data, all.len, &limits, &err), CLV_EXHAUSTED,
               "a chunk of 1000 bytes");
  limits = get_default_limits();
  limits.session_bytes = (1 << 20) - 1;
  assert_fails(decode_copy(all.data, all.len, &limits, &err), CLV_EXHAUSTED, "of 1048576");

  f = make_sample_frame(CLV_CALL);
  CLV_AUTO(clv_bytes_done) clv_bytes call = encode_whole(&f, 64);
  limits = get_default_limits();
  limits.session_bytes = 64;
  assert_ok(decode_copy(call.data, call.len, &limits, &err));
  limits.session_bytes = 63;
  assert_fails(decode_copy(call.data, call.len, &limits, &err), CLV_EXHAUSTED, "of 64 bytes");
  limits = get_default_limits();
  limits.tensors = 1;
  assert_fails(decode_copy(call.data, call.len, &limits, &err), CLV_EXHAUSTED, "2 tensors");
}

static void payload_over_the_chunk_limit_is_refused_unread(void **state) {
  (void)state;
  clv_err err = {0};
  clv_wire_limits limits = get_default_limits();
  CLV_AUTO(clv_bytes_done) clv_bytes all = {0};
  clv_bytes_add(&all, "\x08\x0a\x7a\x80\x80\x80\x01", 7); /* a field of 2 MiB */
  for (int i = 0; i < 2 << 10; i++) {
    char kib_of_zeros[1024] = {0};
    clv_bytes_add(&all, kib_of_zeros, sizeof kib_of_zeros);
  }
  assert_fails(decode_copy(all.data, all.len, &limits, &err), CLV_EXHAUSTED, "payload of 2097152");
}

/* Asserts that n times `item` are too many, in the body with the tag `body` of a frame in context
 * 1. kind: the encoded field with the frame's kind. */
static void assert_too_many(const char *kind, const char *body, const char *item, size_t item_len,
                            uint32_t n, const char *part) {
  clv_err err = {0};
  clv_wire_limits limits = get_default_limits();
  CLV_AUTO(clv_bytes_done) clv_bytes all = {0};
  size_t len = n * item_len;
  char size_bytes[] = {(char)(len | 0x80), (char)(len >> 7)};
  clv_bytes_puts(&all, kind);
  clv_bytes_puts(&all, "\x10\x01\x18\x01\x20\x01"); /* context, message and phase 1 */
  clv_bytes_puts(&all, body);
  clv_bytes_add(&all, size_bytes, 2);
  for (uint32_t i = 0; i < n; i++) clv_bytes_add(&all, item, item_len);
  assert_fails(decode_copy(all.data, all.len, &limits, &err), CLV_INVALID, part);
}

static void too_many_arguments_calls_or_peers_are_refused(void **state) {
  (void)state;
  static const char arg_bytes[] =
      "\x0a\x09\x09"
      "12345678";
  static const char needed_call_bytes[] =
      "\x2a\x09\x09"
      "12345678";
  static const char peer_bytes[] = "\x22\x02w2";
  assert_too_many("\x08\x14", "\xc2\x01", arg_bytes, 11, CLV_WIRE_ARGS + 1,
                  "more than 8 arguments");
  assert_too_many("\x08\x18", "\xca\x01", needed_call_bytes, 11, CLV_WIRE_NEEDED_CALLS + 1,
                  "more than 16 calls");
  assert_too_many("\x08\x18", "\xca\x01", peer_bytes, 4, CLV_WIRE_PREPARE_PEERS + 1,
                  "more than 8 peers");
}

static void too_many_call_targets_are_refused(void **state) {
  (void)state;
  static const char target_bytes[] =
      "\x22\x09\x11"
      "12345678";
  char call_bytes[512] = "\x2a"; /* one call with too many targets */
  size_t len = (CLV_WIRE_TARGETS + 1) * 11;
  call_bytes[1] = (char)(len | 0x80);
  call_bytes[2] = (char)(len >> 7);
  for (size_t i = 0; i <= CLV_WIRE_TARGETS; i++) memcpy(call_bytes + 3 + i * 11, target_bytes, 11);
  assert_too_many("\x08\x18", "\xca\x01", call_bytes, 3 + len, 1, "more than 32 targets");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(nested_or_too_many_bundled_frames_are_refused),
      cmocka_unit_test(malformed_bytes_are_refused),
      cmocka_unit_test(truncated_frames_are_refused),
      cmocka_unit_test(flipped_bits_never_crash_the_decoder),
      cmocka_unit_test(encoder_and_decoder_refuse_invalid_frames),
      cmocka_unit_test(body_unlike_the_frame_kind_is_refused),
      cmocka_unit_test(too_many_learning_rates_are_refused),
      cmocka_unit_test(encoder_refuses_too_many_learning_rates),
      cmocka_unit_test(too_many_ids_or_tensors_are_refused),
      cmocka_unit_test(local_limits_are_enforced),
      cmocka_unit_test(payload_over_the_chunk_limit_is_refused_unread),
      cmocka_unit_test(too_many_arguments_calls_or_peers_are_refused),
      cmocka_unit_test(too_many_call_targets_are_refused),
  };
  return cmocka_run_group_tests_name("frame_hostile", tests, NULL, NULL);
}
