/* SPDX-License-Identifier: Apache-2.0
 *
 * Frames that are valid: what the encoder writes is read back the same by our decoder, by
 * protobuf-c and by Python's protobuf, in any order, in any pieces, with fields nobody knows.
 */
#include "tests/unit/wire/wire_test.h"

#include "cleave/v1/cleave.pb-c.h"

#include <unistd.h>

static void assert_same_backward(const clv_frame *a, const clv_frame *b) {
  assert_int_equal(a->backward.retain, b->backward.retain);
  assert_int_equal(a->backward.vote, b->backward.vote);
  assert_int_equal(a->backward.more, b->backward.more);
  assert_int_equal(a->backward.n_calls, b->backward.n_calls);
  assert_int_equal(a->backward.n_targets, b->backward.n_targets);
  assert_int_equal(a->backward.n_peers, b->backward.n_peers);
  for (uint32_t i = 0; i < a->backward.n_calls; i++) {
    const clv_needed *p = &a->backward.calls[i], *q = &b->backward.calls[i];
    assert_true(p->call == q->call && p->contributions == q->contributions);
    assert_true(p->n_targets == q->n_targets && p->root == q->root);
  }
  for (uint32_t i = 0; i < a->backward.n_targets; i++) {
    const clv_target *p = &a->backward.targets[i], *q = &b->backward.targets[i];
    assert_true(p->value == q->value && p->slot == q->slot);
    assert_true(p->order == q->order && p->to == q->to);
  }
  for (uint32_t i = 0; i < a->backward.n_peers; i++)
    assert_string_equal(a->backward.peers[i], b->backward.peers[i]);
}

static void assert_same(const clv_frame *a, const clv_frame *b) {
  assert_int_equal(a->kind, b->kind);
  assert_int_equal(a->n_tensors, b->n_tensors);
  for (uint32_t i = 0; i < a->n_tensors; i++) {
    assert_int_equal(a->tensors[i].dtype, b->tensors[i].dtype);
    assert_true(clv_shape_equal(&a->tensors[i].shape, &b->tensors[i].shape));
    assert_int_equal(a->tensors[i].bytes, b->tensors[i].bytes);
    assert_int_equal(a->tensors[i].crc32c, b->tensors[i].crc32c);
    assert_int_equal(a->tensors[i].transfer, b->tensors[i].transfer);
  }
  /* phase, ids, step, micro-batch, stage, flags: numbers without gaps between them */
  assert_memory_equal(&a->phase, &b->phase,
                      offsetof(clv_frame, has_commit) - offsetof(clv_frame, phase));
  assert_int_equal(a->has_commit, b->has_commit);
  assert_int_equal(a->has_vote, b->has_vote);
  assert_int_equal(a->has_failure, b->has_failure);
  assert_string_equal(a->to, b->to);
  assert_int_equal(a->call.n_args, b->call.n_args);
  for (uint32_t i = 0; i < a->call.n_args; i++) {
    assert_int_equal(a->call.args[i].value, b->call.args[i].value);
    assert_int_equal(a->call.args[i].needs_grad, b->call.args[i].needs_grad);
    assert_int_equal(a->call.args[i].here, b->call.args[i].here);
  }
  assert_memory_equal(&a->attach, &b->attach, sizeof a->attach);
  assert_int_equal(a->attached.credit_bytes, b->attached.credit_bytes);
  assert_int_equal(a->commit.step, b->commit.step);
  assert_true(a->commit.scale == b->commit.scale && a->commit.lr == b->commit.lr);
  assert_int_equal(a->commit.apply, b->commit.apply);
  assert_true(a->vote.grad_sq == b->vote.grad_sq && a->vote.finite == b->vote.finite);
  assert_int_equal(a->vote.has_digest, b->vote.has_digest);
  assert_memory_equal(&a->vote.digest, &b->vote.digest, sizeof a->vote.digest);
  assert_int_equal(a->credit.bytes, b->credit.bytes);
  assert_memory_equal(&a->chunk, &b->chunk, sizeof a->chunk);
  assert_int_equal(a->failure.code, b->failure.code);
  assert_string_equal(a->failure.text, b->failure.text);
  assert_string_equal(a->failure.hop, b->failure.hop);
  assert_int_equal(a->state.what, b->state.what);
  assert_int_equal(a->state.index, b->state.index);
  assert_int_equal(a->state.count, b->state.count);
  assert_string_equal(a->state.name, b->state.name);
  assert_memory_equal(a->presence, b->presence, sizeof a->presence);
  assert_int_equal(a->n_upstream, b->n_upstream);
  if (a->kind == CLV_PREPARE)
    assert_same_backward(a, b);
  else
    assert_memory_equal(a->upstream, b->upstream, sizeof a->upstream);
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

static void every_kind_round_trips(void **state) {
  (void)state;
  for (int kind = CLV_ATTACH; kind < CLV_FRAME_KINDS; kind++) {
    clv_frame f = sample_frame((clv_frame_kind)kind);
    size_t len = sample_payload_len(f.kind);
    CLV_AUTO(clv_bytes_done) clv_bytes all = encode_whole(&f, len);
    decode_and_compare(&(clv_piece){all.data, all.len}, 1, &f, len);
  }
}

static void any_cut_into_pieces_gives_the_same(void **state) {
  (void)state;
  for (int kind = CLV_ATTACH; kind < CLV_FRAME_KINDS; kind++) {
    clv_frame f = sample_frame((clv_frame_kind)kind);
    size_t len = sample_payload_len(f.kind);
    CLV_AUTO(clv_bytes_done) clv_bytes all = encode_whole(&f, len);
    for (size_t cut = 0; cut <= all.len; cut++) {
      /* Each part alone on the heap, so that a read beyond it is seen by the address sanitizer. */
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

static void single_bytes_give_the_same(void **state) {
  (void)state;
  clv_frame f = sample_frame(CLV_FORWARD);
  size_t len = sample_payload_len(f.kind);
  CLV_AUTO(clv_bytes_done) clv_bytes all = encode_whole(&f, len);
  clv_piece *pieces = calloc(all.len, sizeof *pieces);
  for (size_t i = 0; i < all.len; i++) pieces[i] = (clv_piece){all.data + i, 1};
  decode_and_compare(pieces, all.len, &f, len);
  free(pieces);
}

/* ---- protobuf-c as an independent reader and writer -------------------------------------------
 */

static void protobuf_c_reads_a_forward(void **state) {
  (void)state;
  clv_frame f = sample_frame(CLV_FORWARD);
  CLV_AUTO(clv_bytes_done) clv_bytes all = encode_whole(&f, 64);
  Cleave__V1__Frame *m = cleave__v1__frame__unpack(NULL, all.len, (const uint8_t *)all.data);
  assert_non_null(m);
  assert_int_equal(m->base.n_unknown_fields, 0);
  assert_int_equal(m->kind, CLEAVE__V1__FRAME_KIND__FORWARD);
  assert_int_equal(m->context, f.context);
  assert_int_equal(m->message, 77);
  assert_int_equal(m->phase, 3);
  assert_int_equal(m->step, 123456789012);
  assert_int_equal(m->micro_batch, 3);
  assert_int_equal(m->n_micro_batches, 4);
  assert_int_equal(m->stage, 2);
  assert_int_equal(m->flags, 3);
  assert_int_equal(m->reply_to, 300);
  assert_int_equal(m->n_upstream, 3);
  assert_memory_equal(m->upstream, f.upstream, 3 * sizeof(uint64_t));
  assert_int_equal(m->presence.len, 2);
  assert_memory_equal(m->presence.data, "\x02\x10", 2);
  assert_int_equal(m->n_tensors, 2);
  assert_int_equal(m->tensors[0]->dtype, CLV_F32);
  assert_int_equal(m->tensors[0]->n_dims, 2);
  assert_int_equal(m->tensors[0]->dims[1], 3);
  assert_int_equal(m->tensors[0]->crc32c, 0xdeadbeef);
  assert_int_equal(m->tensors[1]->bytes, 40);
  assert_non_null(m->commit);
  assert_true(m->commit->scale == 0.125f && m->commit->lr == 1e-3f && m->commit->apply);
  assert_int_equal(m->payload.len, 64);
  assert_int_equal(m->payload.data[63], (uint8_t)(63 * 7 + 3));
  cleave__v1__frame__free_unpacked(m, NULL);
}

/* Every kind: what protobuf-c writes of what it has read means the same to us. It writes lists of
 * numbers and lengths in its own way, so this checks the tables in both directions. */
static void protobuf_c_rewrites_every_kind(void **state) {
  (void)state;
  for (int kind = CLV_ATTACH; kind < CLV_FRAME_KINDS; kind++) {
    clv_frame f = sample_frame((clv_frame_kind)kind);
    size_t len = sample_payload_len(f.kind);
    CLV_AUTO(clv_bytes_done) clv_bytes all = encode_whole(&f, len);
    Cleave__V1__Frame *m = cleave__v1__frame__unpack(NULL, all.len, (const uint8_t *)all.data);
    assert_non_null(m);
    assert_int_equal(m->base.n_unknown_fields, 0);
    uint8_t *again = malloc(cleave__v1__frame__get_packed_size(m));
    size_t n = cleave__v1__frame__pack(m, again);
    decode_and_compare(&(clv_piece){again, n}, 1, &f, len);
    free(again);
    cleave__v1__frame__free_unpacked(m, NULL);
  }
}

/* ---- order, unknown fields, repetition --------------------------------------------------------
 */

typedef struct part {
  const char *data;
  size_t len;
} part;

static size_t read_varint(const char *data, size_t *at) {
  size_t value = 0;
  for (unsigned shift = 0;; shift += 7) {
    uint8_t byte = (uint8_t)data[(*at)++];
    value |= (size_t)(byte & 0x7f) << shift;
    if (byte < 0x80) return value;
  }
}

/* The top-level fields of an encoded frame, one by one. */
static size_t split_fields(const clv_bytes *all, part *parts) {
  size_t n = 0, at = 0;
  while (at < all->len) {
    size_t start = at, tag = read_varint(all->data, &at);
    if ((tag & 7) == 0) read_varint(all->data, &at);
    if ((tag & 7) == 1) at += 8;
    if ((tag & 7) == 5) at += 4;
    if ((tag & 7) == 2) {
      size_t len = read_varint(all->data, &at);
      at += len;
    }
    parts[n++] = (part){all->data + start, at - start};
  }
  return n;
}

static void any_order_gives_the_same(void **state) {
  (void)state;
  clv_frame f = sample_frame(CLV_FORWARD);
  CLV_AUTO(clv_bytes_done) clv_bytes all = encode_whole(&f, 64);
  part parts[64];
  size_t n = split_fields(&all, parts);
  assert_true(n > 12);
  for (size_t rotate = 0; rotate < n; rotate++) {
    clv_piece pieces[64];
    size_t used = 0;
    /* The two tensors keep their order: a repeated field's order is its meaning. */
    for (size_t i = 0; i < n; i++) {
      part p = parts[(i + rotate) % n];
      if ((uint8_t)p.data[0] != 0x62) pieces[used++] = (clv_piece){p.data, p.len};
    }
    for (size_t i = 0; i < n; i++)
      if ((uint8_t)parts[i].data[0] == 0x62)
        pieces[used++] = (clv_piece){parts[i].data, parts[i].len};
    decode_and_compare(pieces, used, &f, 64);
  }
}

static void unknown_fields_are_skipped(void **state) {
  (void)state;
  static const char unknown[] =
      "\xa0\x06\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01" /* 100: varint */
      "\x72\x03"
      "abc" /* 14: bytes */
      "\xa9\x06"
      "12345678" /* 101: 64 bits */
      "\xb5\x06"
      "1234" /* 102: 32 bits */
      "\xfa\xff\xff\xff\x0f\x02"
      "zz"; /* the largest number there is */
  for (int kind = CLV_ATTACH; kind < CLV_FRAME_KINDS; kind++) {
    clv_frame f = sample_frame((clv_frame_kind)kind);
    size_t len = sample_payload_len(f.kind);
    CLV_AUTO(clv_bytes_done) clv_bytes all = encode_whole(&f, len);
    part parts[64];
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

static void the_last_scalar_wins_and_lists_may_be_unpacked(void **state) {
  (void)state;
  static const char bytes[] =
      "\x08\x0b\x08\x04"                             /* kind 11, then kind 4: BACKWARD */
      "\x10\x01\x18\x01\x18\x02\x38\x01"             /* context 1, message 1 then 2, of 1 */
      "\x51\x05\0\0\0\0\0\0\0\x51\x06\0\0\0\0\0\0\0" /* upstream 5, 6, not packed */
      "\x62\x09\x08\x05\x10\x02\x12\x01\x03\x18\x06" /* u8 [2, 3]: one dim unpacked, one packed */
      "\x7a\x06"
      "abcdef";
  clv_err err = {0};
  clv_frame f;
  clv_payload payload;
  clv_wire_limits limits = clv_wire_limits_default();
  clv_piece piece = {bytes, sizeof bytes - 1};
  assert_ok(clv_frame_decode(&piece, 1, &limits, &f, &payload, &err));
  assert_int_equal(f.kind, CLV_BACKWARD);
  assert_int_equal(f.message, 2);
  assert_int_equal(f.n_upstream, 2);
  assert_int_equal(f.upstream[1], 6);
  assert_int_equal(f.tensors[0].shape.rank, 2);
  assert_int_equal(f.tensors[0].shape.dim[0], 2);
  assert_int_equal(f.tensors[0].shape.dim[1], 3);
  assert_int_equal(f.presence[0], 1);
  assert_int_equal(payload.len, 6);
}

static void presence_is_left_out_when_it_says_nothing(void **state) {
  (void)state;
  clv_err err = {0};
  clv_frame f = sample_frame(CLV_BACKWARD);
  CLV_AUTO(clv_bytes_done) clv_bytes sparse = {0}, plain = {0}, none = {0};
  assert_ok(clv_frame_encode(&f, 64, &sparse, &err));
  f.presence[0] = 3;
  f.presence[1] = 0;
  assert_ok(clv_frame_encode(&f, 64, &plain, &err));
  memset(f.presence, 0, sizeof f.presence);
  assert_ok(clv_frame_encode(&f, 64, &none, &err));
  assert_int_equal(plain.len, sparse.len - 4);
  assert_int_equal(none.len, plain.len);
  assert_memory_equal(none.data, plain.data, none.len);
}

static void a_gradient_may_be_wholly_absent(void **state) {
  (void)state;
  clv_frame f = sample_frame(CLV_BACKWARD);
  f.n_tensors = 0;
  memset(f.presence, 0, sizeof f.presence);
  memset(f.tensors, 0, sizeof f.tensors);
  CLV_AUTO(clv_bytes_done) clv_bytes all = encode_whole(&f, 0);
  decode_and_compare(&(clv_piece){all.data, all.len}, 1, &f, 0);
}

static void large_tensors_are_announced(void **state) {
  (void)state;
  clv_frame f = sample_frame(CLV_FORWARD);
  f.tensors[0] = (clv_tensor_head){CLV_F32, CLV_SHAPE(64, 1024, 1024), (uint64_t)256 << 20, 8, 1};
  f.tensors[1].transfer = 9;
  CLV_AUTO(clv_bytes_done) clv_bytes all = encode_whole(&f, 0);
  decode_and_compare(&(clv_piece){all.data, all.len}, 1, &f, 0);
}

static void the_hot_path_allocates_nothing(void **state) {
  (void)state;
  clv_err err = {0};
  clv_frame f = sample_frame(CLV_FORWARD), got;
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
  print_message("encode and decode of a FORWARD: %.2f us\n",
                (double)(clv_now_ns() - begin) / 1e3 / ROUNDS);
  assert_int_equal(clv_alloc_count(), before);
}

/* ---- payload and failure helpers --------------------------------------------------------------
 */

static void payload_helpers_walk_pieces(void **state) {
  (void)state;
  static const char text[] = "xx0123456789yy";
  clv_piece pieces[] = {{text, 5}, {text + 5, 0}, {text + 5, 4}, {text + 9, 5}};
  clv_payload payload = {0, 2, 10};
  char copy[11] = {0}, walked[11] = {0};
  clv_payload_copy(pieces, &payload, 0, 10, copy);
  assert_string_equal(copy, "0123456789");
  memset(copy, 0, sizeof copy);
  clv_payload_copy(pieces, &payload, 4, 3, copy);
  assert_string_equal(copy, "456");
  memset(copy, 0, sizeof copy);
  clv_payload_copy(pieces, &payload, 8, 100, copy); /* cut to the payload */
  assert_string_equal(copy, "89");
  clv_payload_copy(pieces, &payload, 10, 1, copy);
  assert_string_equal(copy, "89");
  assert_int_equal(clv_payload_crc32c(pieces, &payload, 1, 9), clv_crc32c(0, "123456789", 9));
  assert_int_equal(clv_payload_crc32c(pieces, &payload, 1, 9), 0xe3069283); /* RFC 3720's check */
  size_t at = 0, used = 0;
  clv_piece piece;
  while (clv_payload_next(pieces, &payload, &at, &piece)) {
    assert_true(piece.len > 0);
    memcpy(walked + used, piece.data, piece.len);
    used += piece.len;
  }
  assert_string_equal(walked, "0123456789");
}

static void failure_texts_are_made_acceptable(void **state) {
  (void)state;
  clv_frame f = {.kind = CLV_ERROR};
  char longer[CLV_WIRE_TEXT + 10];
  memset(longer, 'a', sizeof longer);
  memcpy(longer + CLV_WIRE_TEXT - 1, "\xc3\xa9", 3); /* does not fit whole, so not at all */
  clv_frame_set_failure(&f, CLV_INVALID, longer, "line\nbreak \xff \xe2\x82\xac");
  assert_int_equal(strlen(f.failure.text), CLV_WIRE_TEXT - 1);
  assert_string_equal(f.failure.hop, "line?break ? \xe2\x82\xac");
  CLV_AUTO(clv_bytes_done) clv_bytes all = encode_whole(&f, 0);
  decode_and_compare(&(clv_piece){all.data, all.len}, 1, &f, 0);
}

static void a_tensor_gives_its_head(void **state) {
  (void)state;
  clv_err err = {0};
  CLV_AUTO(clv_tensor_unrefp) clv_tensor *t = NULL;
  clv_shape shape = CLV_SHAPE(3, 3);
  assert_ok(clv_tensor_new(CLV_U8, &shape, &t, &err));
  memcpy(t->data, "123456789", 9);
  clv_tensor_head head;
  clv_tensor_head_of(t, &head);
  assert_int_equal(head.bytes, 9);
  assert_int_equal(head.crc32c, 0xe3069283);
  assert_int_equal(head.dtype, CLV_U8);
  assert_true(clv_shape_equal(&head.shape, &shape));
}

/* ---- Python ------------------------------------------------------------------------------------
 */

static void python_reads_and_writes_frames(void **state) {
  (void)state;
  if (system("protoc --version >/dev/null 2>&1") != 0) {
    print_message("skipped: no protoc\n");
    skip();
  }
  if (system("/usr/bin/python3 -c 'import google.protobuf' 2>/dev/null") != 0) {
    print_message("skipped: no python3-protobuf\n");
    skip();
  }
  char folder[] = "/tmp/clv-wire-XXXXXX", path[64], command[256];
  assert_non_null(mkdtemp(folder));
  clv_err err = {0};
  clv_frame f = sample_frame(CLV_FORWARD);
  CLV_AUTO(clv_bytes_done) clv_bytes all = encode_whole(&f, 64), back = {0};
  snprintf(path, sizeof path, "%s/frame", folder);
  assert_ok(clv_file_write_durable(path, all.data, all.len, 0600, &err));
  snprintf(command, sizeof command, "/usr/bin/python3 tests/unit/wire/frames.py %s", folder);
  assert_int_equal(system(command), 0);
  snprintf(path, sizeof path, "%s/again", folder);
  assert_ok(clv_file_read(path, 1 << 20, &back, &err));
  decode_and_compare(&(clv_piece){back.data, back.len}, 1, &f, 64);
  snprintf(command, sizeof command, "rm -rf %s", folder);
  assert_int_equal(system(command), 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_kind_round_trips),
      cmocka_unit_test(any_cut_into_pieces_gives_the_same),
      cmocka_unit_test(single_bytes_give_the_same),
      cmocka_unit_test(protobuf_c_reads_a_forward),
      cmocka_unit_test(protobuf_c_rewrites_every_kind),
      cmocka_unit_test(any_order_gives_the_same),
      cmocka_unit_test(unknown_fields_are_skipped),
      cmocka_unit_test(the_last_scalar_wins_and_lists_may_be_unpacked),
      cmocka_unit_test(presence_is_left_out_when_it_says_nothing),
      cmocka_unit_test(a_gradient_may_be_wholly_absent),
      cmocka_unit_test(large_tensors_are_announced),
      cmocka_unit_test(the_hot_path_allocates_nothing),
      cmocka_unit_test(payload_helpers_walk_pieces),
      cmocka_unit_test(failure_texts_are_made_acceptable),
      cmocka_unit_test(a_tensor_gives_its_head),
      cmocka_unit_test(python_reads_and_writes_frames),
  };
  return cmocka_run_group_tests_name("frame", tests, NULL, NULL);
}
