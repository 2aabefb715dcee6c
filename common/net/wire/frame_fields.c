/* SPDX-License-Identifier: Apache-2.0
 *
 * Field tables of frames, which repeat proto/cleave/v1/cleave.proto.
 */
#include "common/net/wire/frame_int.h"

_Static_assert(
    CLV_FRAME_KINDS == 48 && CLV_WIRE_PROTOCOL == 9,
    "a new frame kind needs a new CLV_WIRE_PROTOCOL, or a capability without which it is "
    "never sent; both lines here change");
_Static_assert(sizeof(clv_frame_kind) == sizeof(uint32_t) && sizeof(clv_code) == sizeof(uint32_t) &&
                   sizeof(clv_attach_role) == sizeof(uint32_t) &&
                   sizeof(clv_state_kind) == sizeof(uint32_t) &&
                   sizeof(clv_dtype) == sizeof(uint32_t),
               "the tables read and write enums as FIELD_U32");

#define AT(member) offsetof(clv_frame, member)
#define HEAD_AT(member) offsetof(clv_tensor_head, member)

const clv_field clv_frame_fields[FRAME_FIELDS] = {
    [1] = {.name = "kind", .type = FIELD_U32, .offset = AT(kind)},
    [2] = {.name = "context", .type = FIELD_U64, .offset = AT(context)},
    [3] = {.name = "message", .type = FIELD_U64, .offset = AT(message_id)},
    [4] = {.name = "phase", .type = FIELD_U32, .offset = AT(backward_pass_number)},
    [5] = {.name = "step", .type = FIELD_U64, .offset = AT(step)},
    [6] = {.name = "micro_batch", .type = FIELD_U32, .offset = AT(micro_batch)},
    [8] = {.name = "module", .type = FIELD_U32, .offset = AT(module)},
    [9] = {.name = "flags", .type = FIELD_U32, .offset = AT(flags)},
    [10] = {.name = "upstream", .type = FIELD_UPSTREAM, .offset = AT(value_ids)},
    [12] = {.name = "tensors", .type = FIELD_TENSOR, .offset = AT(tensors)},
    [13] = {.name = "reply_to", .type = FIELD_U64, .offset = AT(reply_to)},
    [15] = {.name = "payload", .type = FIELD_PAYLOAD},
    [16] = {.name = "attach", .type = FIELD_BODY, .offset = AT(attach), .size = BODY_ATTACH},
    [17] = {.name = "attached", .type = FIELD_BODY, .offset = AT(attached), .size = BODY_ATTACHED},
    [18] = {.name = "commit", .type = FIELD_BODY, .offset = AT(commit), .size = BODY_COMMIT},
    [19] = {.name = "vote", .type = FIELD_BODY, .offset = AT(vote), .size = BODY_VOTE},
    [20] = {.name = "failure", .type = FIELD_BODY, .offset = AT(failure), .size = BODY_FAILURE},
    [21] = {.name = "credit", .type = FIELD_BODY, .offset = AT(credit), .size = BODY_CREDIT},
    [22] = {.name = "chunk", .type = FIELD_BODY, .offset = AT(chunk), .size = BODY_CHUNK},
    [23] = {.name = "state", .type = FIELD_BODY, .offset = AT(state), .size = BODY_STATE},
    [24] = {.name = "call", .type = FIELD_BODY, .offset = AT(call), .size = BODY_CALL},
    [25] = {.name = "backward", .type = FIELD_BODY, .offset = AT(backward), .size = BODY_BACKWARD},
    [26] = {.name = "to", .type = FIELD_TEXT, .offset = AT(to), .size = CLV_WIRE_NAME + 1},
    [27] = {.name = "measure", .type = FIELD_BODY, .offset = AT(measure), .size = BODY_MEASURE},
    [28] = {.name = "reference",
            .type = FIELD_BODY,
            .offset = AT(reference),
            .size = BODY_REFERENCE},
    [29] = {.name = "order", .type = FIELD_U32, .offset = AT(contribution_index)},
    [30] = {.name = "before", .type = FIELD_BUNDLED},
    [31] = {.name = "generation", .type = FIELD_U32, .offset = AT(module_generation)},
    [32] = {.name = "cached", .type = FIELD_BODY, .offset = AT(cached), .size = BODY_CACHED},
    [33] = {.name = "ack", .type = FIELD_BODY, .offset = AT(ack), .size = BODY_ACK},
};

const clv_field clv_tensor_fields[TENSOR_FIELDS] = {
    [1] = {.name = "dtype", .type = FIELD_U32, .offset = HEAD_AT(dtype)},
    [2] = {.name = "dims", .type = FIELD_DIMS, .offset = HEAD_AT(shape)},
    [3] = {.name = "bytes", .type = FIELD_U64, .offset = HEAD_AT(bytes)},
    [4] = {.name = "crc32c", .type = FIELD_FIXED32, .offset = HEAD_AT(crc32c)},
    [5] = {.name = "transfer", .type = FIELD_U64, .offset = HEAD_AT(transfer_id)},
};

const clv_field clv_body_fields[N_BODIES][BODY_FIELDS] = {
    /* fields of the part `attach` of a frame */
    {
        [1] = {.name = "session",
               .type = FIELD_BYTES,
               .offset = AT(attach.session_id),
               .size = CLV_WIRE_ID_BYTES},
        [2] = {.name = "epoch", .type = FIELD_U64, .offset = AT(attach.attempt_number)},
        [3] = {.name = "incarnation",
               .type = FIELD_BYTES,
               .offset = AT(attach.incarnation),
               .size = CLV_WIRE_ID_BYTES},
        [4] = {.name = "lane", .type = FIELD_U32, .offset = AT(attach.lane_index)},
        [5] = {.name = "lanes", .type = FIELD_U32, .offset = AT(attach.n_lanes)},
        [6] = {.name = "role", .type = FIELD_U32, .offset = AT(attach.role)},
        [7] = {.name = "owner",
               .type = FIELD_TEXT,
               .offset = AT(attach.session_owner),
               .size = CLV_WIRE_URI + 1},
        [8] = {.name = "again", .type = FIELD_U64, .offset = AT(attach.connection_number)},
        [9] = {.name = "received", .type = FIELD_U64, .offset = AT(attach.n_received)},
    },
    /* fields of the part `attached` of a frame */
    {
        [1] = {.name = "credit_bytes", .type = FIELD_U64, .offset = AT(attached.credit_bytes)},
        [2] = {.name = "received", .type = FIELD_U64, .offset = AT(attached.n_received)},
    },
    /* fields of the part `commit` of a frame */
    {
        [2] = {.name = "scale", .type = FIELD_FLOAT, .offset = AT(commit.scale)},
        [3] = {.name = "lr", .type = FIELD_FLOAT, .offset = AT(commit.lr)},
        [4] = {.name = "apply", .type = FIELD_BOOL, .offset = AT(commit.applies_step)},
        [5] = {.name = "more_lrs", .type = FIELD_RATES, .offset = AT(commit.group_lrs)},
        [6] = {.name = "position", .type = FIELD_U32, .offset = AT(commit.step_position)},
        [7] = {.name = "keep", .type = FIELD_BOOL, .offset = AT(commit.saves_weights)},
    },
    /* fields of the part `vote` of a frame */
    {
        [1] = {.name = "finite", .type = FIELD_BOOL, .offset = AT(vote.is_finite)},
    },
    /* fields of the part `failure` of a frame */
    {
        [1] = {.name = "code", .type = FIELD_U32, .offset = AT(failure.code)},
        [2] = {.name = "text",
               .type = FIELD_TEXT,
               .offset = AT(failure.text),
               .size = CLV_WIRE_TEXT + 1},
        [3] = {.name = "hop",
               .type = FIELD_TEXT,
               .offset = AT(failure.detected_at),
               .size = CLV_WIRE_NAME + 1},
    },
    /* fields of the part `credit` of a frame */
    {[1] = {.name = "bytes", .type = FIELD_U64, .offset = AT(credit.bytes)}},
    /* fields of the part `chunk` of a frame */
    {
        [1] = {.name = "transfer", .type = FIELD_U64, .offset = AT(chunk.transfer_id)},
        [2] = {.name = "offset", .type = FIELD_U64, .offset = AT(chunk.offset)},
        [3] = {.name = "total", .type = FIELD_U64, .offset = AT(chunk.total_bytes)},
    },
    /* fields of the part `state` of a frame */
    {
        [1] = {.name = "what", .type = FIELD_U32, .offset = AT(state.part)},
        [2] = {.name = "name",
               .type = FIELD_TEXT,
               .offset = AT(state.item_or_file_name),
               .size = CLV_WIRE_NAME + 1},
        [3] = {.name = "index", .type = FIELD_U32, .offset = AT(state.item_index)},
        [4] = {.name = "count", .type = FIELD_U32, .offset = AT(state.n_items)},
        [5] = {.name = "device",
               .type = FIELD_TEXT,
               .offset = AT(state.device_name),
               .size = CLV_WIRE_NAME + 1},
        [6] = {.name = "bytes", .type = FIELD_U64, .offset = AT(state.file_bytes)},
        [7] = {.name = "sha256",
               .type = FIELD_BYTES,
               .offset = AT(state.file_sha256),
               .size = sizeof(clv_sha256)},
        [8] = {.name = "offset", .type = FIELD_U64, .offset = AT(state.piece_offset)},
        [9] = {.name = "length", .type = FIELD_U64, .offset = AT(state.piece_length)},
    },
    /* fields of the part `call` of a frame */
    {
        [1] = {.name = "args", .type = FIELD_ARGS, .offset = AT(call.args)},
        [2] = {.name = "after", .type = FIELD_FIXED64, .offset = AT(call.runs_after_call)},
        [3] = {.name = "position", .type = FIELD_U32, .offset = AT(call.forward_position)},
        [4] = {.name = "input_position", .type = FIELD_U32, .offset = AT(call.input_grad_position)},
        [5] = {.name = "weight_position",
               .type = FIELD_U32,
               .offset = AT(call.weight_grad_position)},
        [6] = {.name = "old_weights", .type = FIELD_BOOL, .offset = AT(call.uses_old_weights)},
    },
    /* fields of the part `backward` of a frame */
    {
        [1] = {.name = "retain", .type = FIELD_BOOL, .offset = AT(backward.retains_graph)},
        [2] = {.name = "vote", .type = FIELD_BOOL, .offset = AT(backward.needs_vote)},
        [3] = {.name = "more", .type = FIELD_BOOL, .offset = AT(backward.more_follow)},
        [4] = {.name = "peers", .type = FIELD_PEERS, .offset = AT(backward.peer_names)},
        [5] = {.name = "calls", .type = FIELD_NEEDED_CALLS, .offset = AT(backward.needed_calls)},
        [7] = {.name = "skipped", .type = FIELD_U32, .offset = AT(backward.n_skipped_phases)},
    },
    /* no body: field 26 of a Frame is `to` */
    {[1] = {.name = NULL, .type = FIELD_UNKNOWN}},
    /* fields of the part `measure` of a frame */
    {
        [1] = {.name = "clock_ns", .type = FIELD_U64, .offset = AT(measure.clock_ns)},
        [2] = {.name = "received_bytes", .type = FIELD_U64, .offset = AT(measure.received_bytes)},
        [3] = {.name = "receiving_ns", .type = FIELD_U64, .offset = AT(measure.receiving_ns)},
        [4] = {.name = "mending_links", .type = FIELD_U32, .offset = AT(measure.n_mending_links)},
    },
    /* fields of the part `reference` of a frame */
    {
        [1] = {.name = "ref", .type = FIELD_FIXED64, .offset = AT(reference.ref_id)},
        [2] = {.name = "fork", .type = FIELD_FIXED64, .offset = AT(reference.fork_id)},
        [3] = {.name = "key", .type = FIELD_FIXED64, .offset = AT(reference.ref_key)},
        [4] = {.name = "number", .type = FIELD_U64, .offset = AT(reference.message_number)},
        [5] = {.name = "early", .type = FIELD_BOOL, .offset = AT(reference.owner_lacks_fork)},
        [6] = {.name = "yours", .type = FIELD_BOOL, .offset = AT(reference.is_for_owner)},
        [7] = {.name = "node",
               .type = FIELD_TEXT,
               .offset = AT(reference.node_name),
               .size = CLV_WIRE_NAME + 1},
    },
    /* no bodies: fields 29 to 31 of a Frame are `order`, `before` and `generation` */
    {[1] = {.name = NULL, .type = FIELD_UNKNOWN}},
    {[1] = {.name = NULL, .type = FIELD_UNKNOWN}},
    {[1] = {.name = NULL, .type = FIELD_UNKNOWN}},
    /* fields of the part `cached` of a frame */
    {
        [1] = {.name = "key",
               .type = FIELD_BYTES,
               .offset = AT(cached.key),
               .size = sizeof(clv_sha256)},
        [2] = {.name = "records", .type = FIELD_U64, .offset = AT(cached.n_records)},
        [3] = {.name = "keep_s", .type = FIELD_U64, .offset = AT(cached.keep_s)},
    },
    /* fields of the part `ack` of a frame */
    {
        [1] = {.name = "received", .type = FIELD_RECEIVED, .offset = AT(ack.n_received)},
    },
};

#define ARG_AT(member) offsetof(clv_arg, member)
const clv_field clv_arg_fields[ARG_FIELDS] = {
    [1] = {.name = "value", .type = FIELD_FIXED64, .offset = ARG_AT(value_id)},
    [2] = {.name = "needs_grad", .type = FIELD_BOOL, .offset = ARG_AT(needs_grad)},
    [3] = {.name = "here", .type = FIELD_BOOL, .offset = ARG_AT(is_inline)},
};

#define NEEDED_AT(member) offsetof(clv_needed_call, member)
const clv_field clv_needed_call_fields[NEEDED_CALL_FIELDS] = {
    [1] = {.name = "call", .type = FIELD_FIXED64, .offset = NEEDED_AT(call_id)},
    [2] = {.name = "contributions", .type = FIELD_U32, .offset = NEEDED_AT(n_contributions)},
    [3] = {.name = "root", .type = FIELD_FLOAT, .offset = NEEDED_AT(root_gradient)},
    [4] = {.name = "targets", .type = FIELD_TARGETS},
};

#define TARGET_AT(member) offsetof(clv_target, member)
const clv_field clv_target_fields[TARGET_FIELDS] = {
    [1] = {.name = "slot", .type = FIELD_U32, .offset = TARGET_AT(input_index)},
    [2] = {.name = "value", .type = FIELD_FIXED64, .offset = TARGET_AT(value_id)},
    [3] = {.name = "to", .type = FIELD_U32, .offset = TARGET_AT(to_peer)},
    [4] = {.name = "order", .type = FIELD_U32, .offset = TARGET_AT(contribution_index)},
};
