/* SPDX-License-Identifier: Apache-2.0
 *
 * Scanning, unpacking and packing of unary messages.
 */
#include "common/net/wire/unary_int.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- memory of a message --------------------------------------------------------------------- */

static void *alloc_from_block(void *allocator_data, size_t bytes) {
  clv_wire_mem *mem = allocator_data;
  size_t padded = clv_align_up(bytes, 16);
  if (padded < bytes || padded > mem->block_bytes - mem->used_bytes) return NULL;
  void *p = mem->block + mem->used_bytes;
  mem->used_bytes += padded;
  return p;
}

static void ignore_free(void *allocator_data, void *p) {
  (void)allocator_data, (void)p; /* memory is freed with its block */
}

clv_code clv_wire_mem_new(size_t bytes, clv_wire_mem **ret, clv_err *err) {
  clv_wire_mem *mem;
  size_t total;
  if (!clv_add_size(bytes, sizeof *mem, &total))
    return clv_fail(err, CLV_EXHAUSTED, "%zu bytes overflow", bytes);
  CLV_TRY(clv_alloc(total, 1, &mem, err));
  mem->block_bytes = bytes;
  mem->allocator = (ProtobufCAllocator){alloc_from_block, ignore_free, mem};
  *ret = mem;
  return CLV_OK;
}

void clv_wire_mem_freep(clv_wire_mem **mem) {
  free(*mem);
  *mem = NULL;
}

void clv_wire_message_clear(void *message) {
  if (message) clv_wire_mem_freep(message);
}

clv_code clv_wire_mem_alloc(clv_wire_mem *mem, size_t n, size_t size, void *ret_pp, clv_err *err) {
  size_t bytes;
  void *p = clv_mul_size(n, size, &bytes) ? alloc_from_block(mem, bytes) : NULL;
  if (!p) return clv_fail(err, CLV_EXHAUSTED, "%zu items of %zu bytes do not fit", n, size);
  memset(p, 0, bytes);
  *(void **)ret_pp = p;
  return CLV_OK;
}

/* ---- unpacking and packing messages ---------------------------------------------------------- */

/* Returns the message in one piece: its own memory, or a copy in mem. */
static clv_code join_pieces(clv_wire_cursor c, clv_wire_mem *mem, const uint8_t **ret,
                            clv_err *err) {
  if (c.n_pieces == 1) {
    *ret = c.piece_data;
    return CLV_OK;
  }
  uint8_t *copy;
  CLV_TRY(clv_wire_mem_alloc(mem, c.message_end, 1, &copy, err));
  CLV_TRY(clv_cursor_copy(&c, c.message_end, copy, err));
  *ret = copy;
  return CLV_OK;
}

clv_code clv_wire_unpack(const ProtobufCMessageDescriptor *type, const clv_piece *pieces,
                         size_t n_pieces, clv_wire_mem **ret_mem, void *ret_message, clv_err *err) {
  return clv_wire_unpack_large(type, pieces, n_pieces, CLV_WIRE_UNARY_MAX, ret_mem, ret_message,
                               err);
}

clv_code clv_wire_unpack_large(const ProtobufCMessageDescriptor *type, const clv_piece *pieces,
                               size_t n_pieces, size_t max_bytes, clv_wire_mem **ret_mem,
                               void *ret_message, clv_err *err) {
  clv_wire_cursor c;
  size_t bytes;
  const uint8_t *data;
  CLV_AUTO(clv_wire_mem_freep) clv_wire_mem *mem = NULL;
  CLV_TRY(clv_cursor_init(&c, pieces, n_pieces, max_bytes, err));
  CLV_TRY(clv_wire_scan(c, type, &bytes, err));
  CLV_TRY(
      clv_wire_mem_new(bytes + (n_pieces == 1 ? 0 : clv_align_up(c.message_end, 16)), &mem, err));
  CLV_TRY(join_pieces(c, mem, &data, err));
  ProtobufCMessage *message = protobuf_c_message_unpack(type, &mem->allocator, c.message_end, data);
  if (!message) return clv_fail(err, CLV_INVALID, "not a %s", type->name);
  *ret_mem = clv_steal(&mem);
  *(void **)ret_message = message;
  return CLV_OK;
}

typedef struct bytes_buffer {
  ProtobufCBuffer base;
  clv_bytes *bytes;
} bytes_buffer;

static void append_bytes(ProtobufCBuffer *buffer, size_t len, const uint8_t *data) {
  clv_bytes_add(((bytes_buffer *)(void *)buffer)->bytes, data, len);
}

clv_code clv_wire_pack(const ProtobufCMessage *message, clv_bytes *ret, clv_err *err) {
  bytes_buffer buffer = {.base = {append_bytes}, .bytes = ret};
  ret->len = 0;
  protobuf_c_message_pack_to_buffer(message, &buffer.base);
  return ret->failed ? clv_fail(err, CLV_EXHAUSTED, "out of memory for a message") : CLV_OK;
}

/* ---- decoding and checking fields ------------------------------------------------------------ */

clv_code clv_decode_id(ProtobufCBinaryData data, const char *what, clv_wire_id *ret, clv_err *err) {
  if (data.len != sizeof ret->bytes)
    return clv_fail(err, CLV_INVALID, "%s of %zu bytes; it must have %zu", what, data.len,
                    sizeof ret->bytes);
  memcpy(ret->bytes, data.data, sizeof ret->bytes);
  return CLV_OK;
}

clv_code clv_decode_sha256(ProtobufCBinaryData data, const char *what, clv_sha256 *ret,
                           clv_err *err) {
  if (data.len != sizeof ret->bytes)
    return clv_fail(err, CLV_INVALID, "%s of %zu bytes; a SHA-256 has %zu", what, data.len,
                    sizeof ret->bytes);
  memcpy(ret->bytes, data.data, sizeof ret->bytes);
  return CLV_OK;
}

clv_code clv_check_name(const char *text, const char *what, clv_err *err) {
  size_t len = strlen(text);
  if (len < 1 || len > CLV_WIRE_NAME)
    return clv_fail(err, CLV_INVALID, "%s of %zu bytes; it must have 1 to %d", what, len,
                    CLV_WIRE_NAME);
  return CLV_OK;
}

clv_code clv_check_count(size_t n, size_t limit, const char *what, clv_err *err) {
  if (n > limit) return clv_fail(err, CLV_EXHAUSTED, "%zu %s; the limit is %zu", n, what, limit);
  return CLV_OK;
}

clv_code clv_check_finite(double number, const char *what, clv_err *err) {
  if (!isfinite(number)) return clv_fail(err, CLV_INVALID, "%s of %g is not finite", what, number);
  return CLV_OK;
}

ProtobufCBinaryData clv_proto_bytes(const void *data, size_t len) {
  return (ProtobufCBinaryData){len, (uint8_t *)(uintptr_t)data};
}

char *clv_text_or_empty(const char *text) { return (char *)(uintptr_t)(text ? text : ""); }

clv_code clv_alloc_proto_array(clv_wire_mem *mem, size_t n, size_t size, void *ret_array,
                               void *ret_items, clv_err *err) {
  char *items;
  void **array;
  CLV_TRY(clv_wire_mem_alloc(mem, n, size, &items, err));
  CLV_TRY(clv_wire_mem_alloc(mem, n, sizeof *array, &array, err));
  for (size_t i = 0; i < n; i++) array[i] = items + i * size;
  *(void **)ret_array = array;
  *(void **)ret_items = items;
  return CLV_OK;
}
