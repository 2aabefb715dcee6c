/* SPDX-License-Identifier: Apache-2.0 */
#include "common/wire/frame_int.h"

/* A changed list of kinds changes what peers understand. */
_Static_assert(
    CLV_FRAME_KINDS == 39 && CLV_WIRE_PROTOCOL == 4,
    "a new frame kind needs a new CLV_WIRE_PROTOCOL, or a capability without which it is "
    "never sent; both lines here change");
_Static_assert(sizeof(clv_frame_kind) == sizeof(uint32_t) && sizeof(clv_code) == sizeof(uint32_t) &&
                   sizeof(clv_attach_role) == sizeof(uint32_t) &&
                   sizeof(clv_state_what) == sizeof(uint32_t) &&
                   sizeof(clv_dtype) == sizeof(uint32_t),
               "the tables read and write enums as FIELD_U32");

#define AT(member) offsetof(clv_frame, member)
#define HEAD_AT(member) offsetof(clv_tensor_head, member)

const field clv_frame_fields[FRAME_FIELDS] = {
    [1] = {"kind", FIELD_U32, AT(kind), 0},
    [2] = {"context", FIELD_U64, AT(context), 0},
    [3] = {"message", FIELD_U64, AT(message), 0},
    [4] = {"phase", FIELD_U32, AT(phase), 0},
    [5] = {"step", FIELD_U64, AT(step), 0},
    [6] = {"micro_batch", FIELD_U32, AT(micro_batch), 0},
    [8] = {"module", FIELD_U32, AT(module), 0},
    [9] = {"flags", FIELD_U32, AT(flags), 0},
    [10] = {"upstream", FIELD_UPSTREAM, AT(upstream), 0},
    [12] = {"tensors", FIELD_TENSOR, AT(tensors), 0},
    [13] = {"reply_to", FIELD_U64, AT(reply_to), 0},
    [15] = {"payload", FIELD_PAYLOAD, 0, 0},
    [16] = {"attach", FIELD_BODY, AT(attach), BODY_ATTACH},
    [17] = {"attached", FIELD_BODY, AT(attached), BODY_ATTACHED},
    [18] = {"commit", FIELD_BODY, AT(commit), BODY_COMMIT},
    [19] = {"vote", FIELD_BODY, AT(vote), BODY_VOTE},
    [20] = {"failure", FIELD_BODY, AT(failure), BODY_FAILURE},
    [21] = {"credit", FIELD_BODY, AT(credit), BODY_CREDIT},
    [22] = {"chunk", FIELD_BODY, AT(chunk), BODY_CHUNK},
    [23] = {"state", FIELD_BODY, AT(state), BODY_STATE},
    [24] = {"call", FIELD_BODY, AT(call), BODY_CALL},
    [25] = {"backward", FIELD_BODY, AT(backward), BODY_BACKWARD},
    [26] = {"to", FIELD_TEXT, AT(to), CLV_WIRE_NAME + 1},
    [27] = {"measure", FIELD_BODY, AT(measure), BODY_MEASURE},
    [28] = {"reference", FIELD_BODY, AT(reference), BODY_REFERENCE},
};

const field clv_tensor_fields[TENSOR_FIELDS] = {
    [1] = {"dtype", FIELD_U32, HEAD_AT(dtype), 0},
    [2] = {"dims", FIELD_DIMS, HEAD_AT(shape), 0},
    [3] = {"bytes", FIELD_U64, HEAD_AT(bytes), 0},
    [4] = {"crc32c", FIELD_FIXED32, HEAD_AT(crc32c), 0},
    [5] = {"transfer", FIELD_U64, HEAD_AT(transfer), 0},
};

const field clv_body_fields[N_BODIES][BODY_FIELDS] = {
    /* attach */
    {
        [1] = {"session", FIELD_BYTES, AT(attach.session), CLV_WIRE_ID_BYTES},
        [2] = {"epoch", FIELD_U64, AT(attach.epoch), 0},
        [3] = {"incarnation", FIELD_BYTES, AT(attach.incarnation), CLV_WIRE_ID_BYTES},
        [4] = {"lane", FIELD_U32, AT(attach.lane), 0},
        [5] = {"lanes", FIELD_U32, AT(attach.lanes), 0},
        [6] = {"role", FIELD_U32, AT(attach.role), 0},
        [7] = {"owner", FIELD_TEXT, AT(attach.owner), CLV_WIRE_URI + 1},
    },
    /* attached */
    {[1] = {"credit_bytes", FIELD_U64, AT(attached.credit_bytes), 0}},
    /* commit */
    {
        [2] = {"scale", FIELD_FLOAT, AT(commit.scale), 0},
        [3] = {"lr", FIELD_FLOAT, AT(commit.lr), 0},
        [4] = {"apply", FIELD_BOOL, AT(commit.apply), 0},
        [5] = {"more_lrs", FIELD_RATES, AT(commit.more_lrs), 0},
        [6] = {"position", FIELD_U32, AT(commit.position), 0},
        [7] = {"keep", FIELD_BOOL, AT(commit.keep), 0},
    },
    /* vote */
    {
        [1] = {"finite", FIELD_BOOL, AT(vote.finite), 0},
        [2] = {"grad_sq", FIELD_DOUBLE, AT(vote.grad_sq), 0},
        [3] = {"digest", FIELD_DIGEST, AT(vote.digest), AT(vote.has_digest)},
    },
    /* failure */
    {
        [1] = {"code", FIELD_U32, AT(failure.code), 0},
        [2] = {"text", FIELD_TEXT, AT(failure.text), CLV_WIRE_TEXT + 1},
        [3] = {"hop", FIELD_TEXT, AT(failure.hop), CLV_WIRE_NAME + 1},
    },
    /* credit */
    {[1] = {"bytes", FIELD_U64, AT(credit.bytes), 0}},
    /* chunk */
    {
        [1] = {"transfer", FIELD_U64, AT(chunk.transfer), 0},
        [2] = {"offset", FIELD_U64, AT(chunk.offset), 0},
        [3] = {"total", FIELD_U64, AT(chunk.total), 0},
    },
    /* state */
    {
        [1] = {"what", FIELD_U32, AT(state.what), 0},
        [2] = {"name", FIELD_TEXT, AT(state.name), CLV_WIRE_NAME + 1},
        [3] = {"index", FIELD_U32, AT(state.index), 0},
        [4] = {"count", FIELD_U32, AT(state.count), 0},
    },
    /* call */
    {
        [1] = {"args", FIELD_ARGS, AT(call.args), 0},
        [2] = {"after", FIELD_FIXED64, AT(call.after), 0},
        [3] = {"position", FIELD_U32, AT(call.position), 0},
        [4] = {"input_position", FIELD_U32, AT(call.input_position), 0},
        [5] = {"weight_position", FIELD_U32, AT(call.weight_position), 0},
        [6] = {"old_weights", FIELD_BOOL, AT(call.old_weights), 0},
    },
    /* backward */
    {
        [1] = {"retain", FIELD_BOOL, AT(backward.retain), 0},
        [2] = {"vote", FIELD_BOOL, AT(backward.vote), 0},
        [3] = {"more", FIELD_BOOL, AT(backward.more), 0},
        [4] = {"peers", FIELD_PEERS, AT(backward.peers), 0},
        [5] = {"calls", FIELD_NEEDED, AT(backward.calls), 0},
    },
    /* the number of `to` */
    {[1] = {NULL, FIELD_UNKNOWN, 0, 0}},
    /* measure */
    {
        [1] = {"clock_ns", FIELD_U64, AT(measure.clock_ns), 0},
        [2] = {"received_bytes", FIELD_U64, AT(measure.received_bytes), 0},
        [3] = {"receiving_ns", FIELD_U64, AT(measure.receiving_ns), 0},
    },
    /* reference */
    {
        [1] = {"ref", FIELD_FIXED64, AT(reference.ref), 0},
        [2] = {"fork", FIELD_FIXED64, AT(reference.fork), 0},
        [3] = {"key", FIELD_FIXED64, AT(reference.key), 0},
        [4] = {"number", FIELD_U64, AT(reference.number), 0},
        [5] = {"early", FIELD_BOOL, AT(reference.early), 0},
        [6] = {"yours", FIELD_BOOL, AT(reference.yours), 0},
        [7] = {"node", FIELD_TEXT, AT(reference.node), CLV_WIRE_NAME + 1},
    },
};

#define ARG_AT(member) offsetof(clv_arg, member)
const field clv_arg_fields[ARG_FIELDS] = {
    [1] = {"value", FIELD_FIXED64, ARG_AT(value), 0},
    [2] = {"needs_grad", FIELD_BOOL, ARG_AT(needs_grad), 0},
    [3] = {"here", FIELD_BOOL, ARG_AT(here), 0},
};

#define NEEDED_AT(member) offsetof(clv_needed, member)
const field clv_needed_fields[NEEDED_FIELDS] = {
    [1] = {"call", FIELD_FIXED64, NEEDED_AT(call), 0},
    [2] = {"contributions", FIELD_U32, NEEDED_AT(contributions), 0},
    [3] = {"root", FIELD_FLOAT, NEEDED_AT(root), 0},
    [4] = {"targets", FIELD_TARGETS, 0, 0},
};

#define TARGET_AT(member) offsetof(clv_target, member)
const field clv_target_fields[TARGET_FIELDS] = {
    [1] = {"slot", FIELD_U32, TARGET_AT(slot), 0},
    [2] = {"value", FIELD_FIXED64, TARGET_AT(value), 0},
    [3] = {"to", FIELD_U32, TARGET_AT(to), 0},
    [4] = {"order", FIELD_U32, TARGET_AT(order), 0},
};
