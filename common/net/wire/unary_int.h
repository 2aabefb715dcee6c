/* SPDX-License-Identifier: Apache-2.0
 *
 * Unary messages go through protobuf-c, which believes whatever it is given: it recurses without a
 * limit and can position one byte into seventy. So a message is first walked by its descriptor
 * (clv_wire_scan), which refuses what is malformed, nested or numerous beyond the schema, and adds
 * up the memory that unpacking will take. Only then one block of that size is taken, and protobuf-c
 * and the plain structs live in it together.
 */
#ifndef CLEAVE_WIRE_UNARY_INT_H
#define CLEAVE_WIRE_UNARY_INT_H

#include "common/net/wire/cursor_int.h"

#include "cleave/v1/cleave.pb-c.h"

enum {
  CLV_SCAN_DEPTH = 8,          /* the schema nests 5 deep */
  CLV_SCAN_FIELDS = 64 << 10,  /* of one message with all it contains */
  CLV_SCAN_BUDGET = 640 << 10, /* bytes beyond twice the message's own length */
};

/* The memory that unpacking `c` as `type` and converting it takes at most. Allocates nothing. */
clv_code clv_wire_scan(clv_wire_cursor c, const ProtobufCMessageDescriptor *type, size_t *ret_bytes,
                       clv_err *err) CLV_USE_RESULT;

/* A block of fixed size from which memory is only taken; freed as a whole. */
struct clv_wire_mem {
  size_t used, size; /* bytes of `block` */
  ProtobufCAllocator allocator;
  _Alignas(max_align_t) unsigned char block[];
};

clv_code clv_wire_mem_new(size_t bytes, clv_wire_mem **ret, clv_err *err) CLV_USE_RESULT;
void clv_wire_mem_freep(clv_wire_mem **mem);

/* n zeroed items of `size` bytes. CLV_EXHAUSTED when the block has no room. */
clv_code clv_wire_mem_alloc(clv_wire_mem *mem, size_t n, size_t size, void *ret_pp,
                            clv_err *err) CLV_USE_RESULT;

/* Scan and unpack: *ret_message lives in *ret_mem. */
clv_code clv_wire_unpack(const ProtobufCMessageDescriptor *type, const clv_piece *pieces,
                         size_t n_pieces, clv_wire_mem **ret_mem, void *ret_message,
                         clv_err *err) CLV_USE_RESULT;

/* Replace *ret by the packed message. */
clv_code clv_wire_pack(const ProtobufCMessage *message, clv_bytes *ret,
                       clv_err *err) CLV_USE_RESULT;

/* ---- fields, both ways --------------------------------------------------------------------- */

clv_code clv_get_id(ProtobufCBinaryData data, const char *what, clv_wire_id *ret,
                    clv_err *err) CLV_USE_RESULT;
clv_code clv_get_sha256(ProtobufCBinaryData data, const char *what, clv_sha256 *ret,
                        clv_err *err) CLV_USE_RESULT;
clv_code clv_get_name(const char *text, const char *what, clv_err *err) CLV_USE_RESULT;
clv_code clv_check_count(size_t n, size_t limit, const char *what, clv_err *err) CLV_USE_RESULT;
clv_code clv_check_finite(double number, const char *what, clv_err *err) CLV_USE_RESULT;

ProtobufCBinaryData clv_put_bytes(const void *data, size_t len);
char *clv_put_text(const char *text); /* NULL becomes "" */

/* An array of n pointers to n items of `size` bytes, for a repeated message field of protobuf-c;
 * the items are zeroed. mem has room: the caller asked for it with CLV_PUT_ARRAY_BYTES. */
#define CLV_PUT_ARRAY_BYTES(n, type) ((size_t)(n) * (sizeof(void *) + sizeof(type) + 64) + 64)
clv_code clv_put_array(clv_wire_mem *mem, size_t n, size_t size, void *ret_array, void *ret_items,
                       clv_err *err) CLV_USE_RESULT;

/* ---- messages that several others contain -------------------------------------------------- */

void clv_limits_put(const clv_wire_limits *limits, Cleave__V1__Limits *ret);
clv_code clv_limits_get(const Cleave__V1__Limits *limits, clv_wire_limits *ret,
                        clv_err *err) CLV_USE_RESULT;
/* What an encoded About points to, beside the caller's strings. */
typedef struct clv_about_parts {
  Cleave__V1__About about;
  Cleave__V1__Limits limits;
} clv_about_parts;

clv_code clv_about_put(const clv_wire_about *about, clv_wire_mem *mem, clv_about_parts *parts,
                       clv_err *err) CLV_USE_RESULT;
clv_code clv_about_get(const Cleave__V1__About *about, clv_wire_mem *mem, clv_wire_about *ret,
                       clv_err *err) CLV_USE_RESULT;
clv_code clv_artifact_get(const Cleave__V1__Artifact *artifact, clv_wire_artifact *ret,
                          clv_err *err) CLV_USE_RESULT;
void clv_artifact_put(const clv_wire_artifact *artifact, Cleave__V1__Artifact *ret);

#endif
