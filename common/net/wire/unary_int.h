/* SPDX-License-Identifier: Apache-2.0
 *
 * Unary messages are unpacked by protobuf-c, which trusts its input: it recurses without a limit
 * and can turn one byte into seventy. So clv_wire_scan first walks a message by its descriptor. It
 * refuses malformed, deeply nested or too numerous fields, and adds up the memory that unpacking
 * takes. Then one block of that size is allocated for protobuf-c and the plain structs.
 */
#ifndef CLEAVE_WIRE_UNARY_INT_H
#define CLEAVE_WIRE_UNARY_INT_H

#include "common/net/wire/cursor_int.h"

#include "cleave/v1/cleave.pb-c.h"

enum {
  CLV_SCAN_DEPTH = 8,         /* limit of nested messages; the schema nests 5 deep */
  CLV_SCAN_FIELDS = 64 << 10, /* limit of the fields of a message, nested ones included */
  /* memory for unpacking, in addition to twice the message's length */
  CLV_SCAN_BUDGET = 640 << 10,
};

/* Returns the most memory that unpacking `c` as `type` and converting it takes. Allocates
 * nothing. */
clv_code clv_wire_scan(clv_wire_cursor c, const ProtobufCMessageDescriptor *type, size_t *ret_bytes,
                       clv_err *err) CLV_USE_RESULT;

/* Block of fixed size for allocations that are freed together. */
struct clv_wire_mem {
  size_t used_bytes, block_bytes; /* bytes of `block` in use, and in all */
  ProtobufCAllocator allocator;
  _Alignas(max_align_t) unsigned char block[];
};

clv_code clv_wire_mem_new(size_t bytes, clv_wire_mem **ret, clv_err *err) CLV_USE_RESULT;
void clv_wire_mem_freep(clv_wire_mem **mem);

/* Allocates n zeroed items of `size` bytes. CLV_EXHAUSTED: the block is full. */
clv_code clv_wire_mem_alloc(clv_wire_mem *mem, size_t n, size_t size, void *ret_pp,
                            clv_err *err) CLV_USE_RESULT;

/* Scans and unpacks a message. *ret_message is stored in *ret_mem. */
clv_code clv_wire_unpack(const ProtobufCMessageDescriptor *type, const clv_piece *pieces,
                         size_t n_pieces, clv_wire_mem **ret_mem, void *ret_message,
                         clv_err *err) CLV_USE_RESULT;

/* As clv_wire_unpack, for a message of up to max_bytes. */
clv_code clv_wire_unpack_large(const ProtobufCMessageDescriptor *type, const clv_piece *pieces,
                               size_t n_pieces, size_t max_bytes, clv_wire_mem **ret_mem,
                               void *ret_message, clv_err *err) CLV_USE_RESULT;

/* Replaces *ret with the packed message. */
clv_code clv_wire_pack(const ProtobufCMessage *message, clv_bytes *ret,
                       clv_err *err) CLV_USE_RESULT;

/* ---- converting and checking fields ---------------------------------------------------------- */

clv_code clv_decode_id(ProtobufCBinaryData data, const char *what, clv_wire_id *ret,
                       clv_err *err) CLV_USE_RESULT;
clv_code clv_decode_sha256(ProtobufCBinaryData data, const char *what, clv_sha256 *ret,
                           clv_err *err) CLV_USE_RESULT;
/* Checks that a name has 1 to CLV_WIRE_NAME bytes. */
clv_code clv_check_name(const char *text, const char *what, clv_err *err) CLV_USE_RESULT;
clv_code clv_check_count(size_t n, size_t limit, const char *what, clv_err *err) CLV_USE_RESULT;
clv_code clv_check_finite(double number, const char *what, clv_err *err) CLV_USE_RESULT;

ProtobufCBinaryData clv_proto_bytes(const void *data, size_t len);
char *clv_text_or_empty(const char *text); /* returns `text`, or "" for NULL */

/* Allocates an array of n pointers to n zeroed items of `size` bytes, for a repeated message field
 * of protobuf-c. mem must have CLV_ENCODED_ARRAY_BYTES left. */
#define CLV_ENCODED_ARRAY_BYTES(n, type) ((size_t)(n) * (sizeof(void *) + sizeof(type) + 64) + 64)
clv_code clv_alloc_proto_array(clv_wire_mem *mem, size_t n, size_t size, void *ret_array,
                               void *ret_items, clv_err *err) CLV_USE_RESULT;

/* ---- messages that other messages contain ---------------------------------------------------- */

/* Messages of cleave.proto that are fields of other messages. _encode fills the protobuf struct
 * from the clv_ struct; _decode checks the protobuf struct and fills the clv_ struct. */
void clv_limits_encode(const clv_wire_limits *limits, Cleave__V1__Limits *ret);
clv_code clv_limits_decode(const Cleave__V1__Limits *limits, clv_wire_limits *ret,
                           clv_err *err) CLV_USE_RESULT;
/* Memory that an encoded About points to, besides the caller's strings. */
typedef struct clv_about_parts {
  Cleave__V1__About about;
  Cleave__V1__Limits limits;
} clv_about_parts;

clv_code clv_about_encode(const clv_wire_about *about, clv_wire_mem *mem, clv_about_parts *parts,
                          clv_err *err) CLV_USE_RESULT;
clv_code clv_about_decode(const Cleave__V1__About *about, clv_wire_mem *mem, clv_wire_about *ret,
                          clv_err *err) CLV_USE_RESULT;
clv_code clv_artifact_decode(const Cleave__V1__Artifact *artifact, clv_wire_artifact *ret,
                             clv_err *err) CLV_USE_RESULT;
void clv_artifact_encode(const clv_wire_artifact *artifact, Cleave__V1__Artifact *ret);

#endif
