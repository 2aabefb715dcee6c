/* SPDX-License-Identifier: Apache-2.0
 *
 * Shared by the encoder and the decoder of frames: the field tables, which repeat the .proto file,
 * and the rules of the frame kinds.
 */
#ifndef CLEAVE_WIRE_FRAME_INT_H
#define CLEAVE_WIRE_FRAME_INT_H

#include "common/net/wire/cursor_int.h"

typedef enum clv_field_type {
  FIELD_UNKNOWN, /* no field has this number; the decoder skips it */
  FIELD_U32,
  FIELD_U64,
  FIELD_BOOL,
  FIELD_FIXED32,
  FIELD_FLOAT,
  FIELD_BYTES,    /* exactly `size` bytes, or none */
  FIELD_TEXT,     /* char[size], NUL-terminated */
  FIELD_DIMS,     /* a clv_shape */
  FIELD_UPSTREAM, /* value ids of a Frame (its field `upstream`) */
  FIELD_TENSOR,   /* heads of the tensors of a Frame */
  FIELD_PAYLOAD,  /* bytes of the tensors of a Frame */
  FIELD_BODY, /* a body of a Frame, such as `call`; clv_field.size is its bit in enum frame_body */
  FIELD_FIXED64,
  FIELD_ARGS,         /* args of a call */
  FIELD_PEERS,        /* peers of a backward */
  FIELD_NEEDED_CALLS, /* calls of a backward */
  FIELD_TARGETS,      /* targets of a needed call */
  FIELD_RATES,        /* more learning rates of a commit */
  FIELD_RECEIVED,     /* counters of an ack, one for each lane */
  FIELD_BUNDLED,      /* a frame that precedes the last one of a message */
  FIELD_TYPES
} clv_field_type;

typedef struct clv_field {
  const char *name;
  clv_field_type type;
  /* offset of the value in its struct: clv_frame, clv_tensor_head, clv_arg, clv_needed_call or
   * clv_target */
  size_t offset;
  size_t size;
} clv_field;

enum {
  FRAME_FIELDS = 34,
  BODY_FIRST = 16,
  N_BODIES = 18,
  BODY_FIELDS = 10,
  TENSOR_FIELDS = 6,
  ARG_FIELDS = 4,
  NEEDED_CALL_FIELDS = 5,
  TARGET_FIELDS = 5,
};
extern const clv_field clv_frame_fields[FRAME_FIELDS]; /* by number of the field */
/* by bit of the body, then by number of the field */
extern const clv_field clv_body_fields[N_BODIES][BODY_FIELDS];
extern const clv_field clv_tensor_fields[TENSOR_FIELDS]; /* by number of the field */
extern const clv_field clv_arg_fields[ARG_FIELDS];
extern const clv_field clv_needed_call_fields[NEEDED_CALL_FIELDS];
extern const clv_field clv_target_fields[TARGET_FIELDS];

/* Bits of the bodies of a Frame: bit i is the body with field number BODY_FIRST + i. Unused field
 * numbers have no enumerator. */
enum frame_body {
  BODY_ATTACH = 1u << 0,
  BODY_ATTACHED = 1u << 1,
  BODY_COMMIT = 1u << 2,
  BODY_VOTE = 1u << 3,
  BODY_FAILURE = 1u << 4,
  BODY_CREDIT = 1u << 5,
  BODY_CHUNK = 1u << 6,
  BODY_STATE = 1u << 7,
  BODY_CALL = 1u << 8,
  BODY_BACKWARD = 1u << 9,
  BODY_MEASURE = 1u << 11,
  BODY_REFERENCE = 1u << 12,
  BODY_CACHED = 1u << 16,
  BODY_ACK = 1u << 17,
};

/* Returns the bits of the bodies of a frame that was not decoded: bodies that its kind needs, and
 * bodies of its has_ flags. */
unsigned clv_frame_body_bits(const clv_frame *frame);

/* Sets the has_ flags from the decoded bodies. */
void clv_frame_set_has_flags(clv_frame *frame, unsigned bodies);

/* Checks every rule about a complete frame in PROTOCOL.md. bodies: bits of the bodies that are
 * present. limits NULL: only the protocol's own limits. */
clv_code clv_frame_check(const clv_frame *frame, unsigned bodies, size_t payload_len,
                         const clv_wire_limits *limits, clv_err *err) CLV_USE_RESULT;

#endif
