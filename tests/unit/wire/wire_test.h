/* SPDX-License-Identifier: Apache-2.0
 *
 * Functions that the tests of the wire share: one valid frame of every kind, a payload for it, and
 * a reading of our own peak memory.
 */
#ifndef CLEAVE_WIRE_TEST_H
#define CLEAVE_WIRE_TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/net/wire/wire.h"

/* Fails the test with the error's text unless the call succeeds. */
#define assert_ok(call)                                                       \
  do {                                                                        \
    clv_code code_ = (call);                                                  \
    if (code_ != CLV_OK) fail_msg("%s: %s (%s)", #call, err.text, err.where); \
  } while (0)

/* Asserts that the call fails with the code `wanted` and a text that contains `part`. */
#define assert_fails(call, wanted, part)                                                         \
  do {                                                                                           \
    clv_code code_ = (call);                                                                     \
    if (code_ != (wanted) || !strstr(err.text, (part)))                                          \
      fail_msg("%s gave %d \"%s\", not %d \"%s\"", #call, (int)code_, err.text, (wanted), part); \
  } while (0)

/* Returns the next kind of frame that has a sample, because some numbers of kinds are not used. */
static inline int get_next_kind(int kind) {
  return kind == CLV_ATTACHED ? CLV_ABORT : kind == CLV_STATE_FILE ? CLV_ACK : kind + 1;
}

static inline void fill_attach(clv_frame *f) {
  for (int i = 0; i < CLV_WIRE_ID_BYTES; i++) {
    f->attach.session_id.bytes[i] = (uint8_t)(i + 1);
    f->attach.incarnation.bytes[i] = (uint8_t)(200 - i);
  }
  f->attach.attempt_number = 9;
  f->attach.lane_index = 1;
  f->attach.n_lanes = 2;
  f->attach.role = CLV_ATTACH_PEER;
  snprintf(f->attach.session_owner, sizeof f->attach.session_owner, "spiffe://test/master");
  f->attach.connection_number = 3;
  f->attach.n_received = 1 << 30;
}

static inline void fill_call_sample(clv_frame *f) {
  f->micro_batch = 3;
  f->flags = CLV_FLAG_TRAINING;
  f->call.runs_after_call = UINT64_MAX - 1;
  f->call.n_args = 3;
  f->call.args[0] = (clv_arg){.value_id = UINT64_MAX, .needs_grad = true};
  f->call.args[1] = (clv_arg){.is_inline = true};
  f->call.args[2] = (clv_arg){.value_id = 78, .needs_grad = true, .is_inline = true};
  f->n_tensors = 2;
  f->tensors[0] = (clv_tensor_head){CLV_F32, CLV_SHAPE(2, 3), 24, 0, 0xdeadbeef};
  f->tensors[1] = (clv_tensor_head){CLV_I64, CLV_SHAPE(5), 40, 0, 0x12345678};
}

static inline void fill_drop(clv_frame *f) {
  f->n_value_ids = 3;
  f->value_ids[0] = 1;
  f->value_ids[1] = UINT64_MAX;
  f->value_ids[2] = (uint64_t)1 << 40;
}

static inline void fill_prepare(clv_frame *f) {
  f->backward.retains_graph = f->backward.needs_vote = f->backward.more_follow = true;
  f->backward.n_skipped_phases = 2;
  f->backward.n_needed_calls = 3;
  f->backward.needed_calls[0] =
      (clv_needed_call){.call_id = 80, .root_gradient = 1, .n_grad_targets = 2};
  f->backward.needed_calls[1] = (clv_needed_call){.call_id = 79, .n_contributions = 1};
  f->backward.needed_calls[2] =
      (clv_needed_call){.call_id = UINT64_MAX, .n_contributions = 7, .n_grad_targets = 1};
  f->backward.n_grad_targets = 3;
  f->backward.grad_targets[0] = (clv_target){.value_id = 79, .to_peer = 2};
  f->backward.grad_targets[1] =
      (clv_target){.value_id = 78, .input_index = 1, .contribution_index = 4095};
  f->backward.grad_targets[2] =
      (clv_target){.value_id = 1, .input_index = 7, .contribution_index = 1, .to_peer = 1};
  f->backward.n_peers = 2;
  strcpy(f->backward.peer_names[0], "worker-2");
  strcpy(f->backward.peer_names[1], "w3");
}

static inline void fill_finished(clv_frame *f) {
  f->has_vote = f->vote.is_finite = true;
  f->n_tensors = 1;
  f->tensors[0] = (clv_tensor_head){CLV_F64, CLV_SHAPE(4), 32, 0, 0x0badcafe};
}

static inline void fill_apply(clv_frame *f) {
  f->commit.scale = 0.125f;
  f->commit.lr = 1e-3f;
  f->commit.applies_step = true;
  f->commit.n_group_lrs = 3;
  f->commit.group_lrs[0] = 0.5f;
  f->commit.group_lrs[2] = -2;
}

static inline void fill_state(clv_frame *f) {
  f->state.part = CLV_STATE_OPTIMIZER;
  if (f->kind >= CLV_STATE_SAVE) {
    strcpy(f->state.item_or_file_name, "front-3.adam");
    f->state.file_bytes = 1 << 20;
    memset(&f->state.file_sha256, 0xa5, sizeof f->state.file_sha256);
    return;
  }
  f->state.n_items = 7;
  if (f->kind != CLV_STATE_ITEM && f->kind != CLV_STATE_PUT) return;
  f->state.item_index = 6;
  strcpy(f->state.item_or_file_name, "exp_avg:conv1.weight");
  if (f->kind == CLV_STATE_ITEM) strcpy(f->state.device_name, "cpu");
  f->n_tensors = 1;
  f->tensors[0] = (clv_tensor_head){CLV_F32, CLV_SHAPE(4, 4), 64, 0, 0x01020304};
}

static inline void fill_ack(clv_frame *f) {
  f->ack.n_lanes = 3;
  f->ack.n_received[0] = 0;
  f->ack.n_received[1] = 300;
  f->ack.n_received[2] = UINT64_MAX;
}

static inline void fill_reference(clv_frame *f) {
  f->reference.ref_id = UINT64_MAX - 2;
  f->reference.fork_id = 0x0001000000000007;
  f->reference.ref_key = 0x8000000000000001;
  f->reference.message_number = f->kind == CLV_REF_VALUE ? 0 : 1 << 20;
  f->reference.owner_lacks_fork = f->kind == CLV_REF_USE || f->kind == CLV_REF_FETCH;
  f->reference.is_for_owner = f->kind == CLV_REF_USE;
  strcpy(f->reference.node_name, "worker-3");
  strcpy(f->to, "worker-2");
  f->has_failure = f->kind == CLV_REF_ACK;
  if (f->has_failure) clv_frame_set_failure(f, CLV_NOT_FOUND, "no such reference", "");
  if (f->kind != CLV_REF_VALUE) return;
  f->n_tensors = 1;
  f->tensors[0] = (clv_tensor_head){CLV_F32, CLV_SHAPE(3), 12, 0, 0x0badcafe};
}

static inline clv_frame make_sample_frame(clv_frame_kind kind) {
  clv_frame f = {.kind = kind,
                 .context = 0x0102030405060708,
                 .message_id = 77,
                 .backward_pass_number = 3,
                 .step = 123456789012,
                 .module = 2,
                 .reply_to = 300};
  if (kind == CLV_ATTACH) fill_attach(&f);
  if (kind == CLV_ATTACHED) {
    f.attached.credit_bytes = 64 << 20;
    f.attached.n_received = 1 << 20;
  }
  if (kind == CLV_CREDIT) f.credit.bytes = 1 << 20;
  if (kind == CLV_CHUNK) {
    f.chunk.transfer_id = 5;
    f.chunk.offset = 1 << 18;
    f.chunk.total_bytes = 1 << 20;
  }
  if ((kind >= CLV_STATE_GET && kind <= CLV_STATE_DONE) ||
      (kind >= CLV_STATE_SAVE && kind <= CLV_STATE_FILE))
    fill_state(&f);
  if (kind == CLV_ACK) fill_ack(&f);
  if (kind == CLV_CALL) fill_call_sample(&f);
  if (kind == CLV_DELIVER || kind == CLV_VALUE || kind == CLV_GRADIENT) strcpy(f.to, "worker-2");
  if (kind == CLV_VALUE) f.has_failure = true;
  if (kind == CLV_ABORT || kind == CLV_ERROR || kind == CLV_VALUE)
    clv_frame_set_failure(&f, CLV_DATA_LOSS, "checksum of tensor 1 — wrong", "worker-2/module 1");
  if (kind == CLV_DROP || kind == CLV_SPARE) fill_drop(&f);
  if (kind == CLV_PREPARE) fill_prepare(&f);
  if (kind == CLV_GRADIENT) {
    f.contribution_index = 2;
    f.n_tensors = 1;
    f.tensors[0] = (clv_tensor_head){CLV_F32, CLV_SHAPE(4), 16, 0, 0x0badcafe};
  }
  if (kind == CLV_FINISHED) fill_finished(&f);
  if (kind == CLV_APPLY) fill_apply(&f);
  if (kind >= CLV_REF_KEEP && kind <= CLV_REF_ACK) fill_reference(&f);
  return f;
}

/* Returns the size in bytes of the payload of make_sample_frame(kind). */
static inline size_t get_sample_payload_len(clv_frame_kind kind) {
  if (kind == CLV_CHUNK) return 1000;
  clv_frame f = make_sample_frame(kind);
  size_t len = 0;
  for (uint32_t i = 0; i < f.n_tensors; i++) len += (size_t)f.tensors[i].bytes;
  return len;
}

/* Returns a whole message: head, and payload_len bytes of payload. The caller frees it with
 * clv_bytes_done. */
static inline clv_bytes encode_whole(const clv_frame *f, size_t payload_len) {
  clv_err err = {0};
  clv_bytes all = {0};
  assert_ok(clv_frame_encode(f, payload_len, &all, &err));
  for (size_t i = 0; i < payload_len; i++) {
    char byte = (char)(i * 7 + 3);
    clv_bytes_add(&all, &byte, 1);
  }
  return all;
}

/* Resets the peak of resident memory. Returns false if the kernel does not allow it. */
static inline bool reset_memory_peak(void) {
  FILE *f = fopen("/proc/self/clear_refs", "w");
  if (!f) return false;
  bool ok = fputs("5", f) >= 0;
  return fclose(f) == 0 && ok;
}

/* Returns a line of /proc/self/status in bytes. "VmHWM:" is the peak since reset_memory_peak. */
static inline size_t read_status_bytes(const char *key) {
  char line[256];
  size_t kib = 0;
  FILE *f = fopen("/proc/self/status", "r");
  assert_non_null(f);
  while (fgets(line, sizeof line, f))
    if (strncmp(line, key, strlen(key)) == 0) kib = strtoull(line + strlen(key), NULL, 10);
  fclose(f);
  return kib << 10;
}

static inline clv_wire_id make_id(uint8_t first_byte) {
  clv_wire_id id;
  for (int i = 0; i < CLV_WIRE_ID_BYTES; i++) id.bytes[i] = (uint8_t)(first_byte + i);
  return id;
}

static inline clv_sha256 make_digest(uint8_t byte) {
  clv_sha256 d;
  memset(d.bytes, byte, sizeof d.bytes);
  return d;
}

/* A message in two pieces, cut in the middle, so that every test also joins pieces. */
typedef struct halves {
  clv_piece pieces[2];
} halves;
static inline halves cut_in_half(const clv_bytes *b) {
  size_t at = b->len / 2;
  return (halves){{{b->data, at}, {b->data + at, b->len - at}}};
}

#endif
