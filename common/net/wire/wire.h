/* SPDX-License-Identifier: Apache-2.0
 *
 * wire: converts the messages of proto/cleave/v1 to plain structs and back. No I/O and no
 * transport. A decoder's input comes from a peer that may be hostile, on both sides: counts, sizes,
 * sums, enum ranges and text are checked before use, and a refused message costs at most 64 KiB of
 * memory. proto/PROTOCOL.md is the specification.
 *
 * Ownership: encoders keep no reference to the struct that they are given. clv_frame has no
 * pointers. The other decoded structs point into memory of their own (first field), which
 * clv_wire_message_clear frees; they never point into the caller's pieces.
 *
 * Threads: no state; different objects may be used from different threads at once.
 * Errors of every decoder: CLV_INVALID (malformed, out of range), CLV_EXHAUSTED (over a limit, or
 * out of memory), CLV_UNIMPLEMENTED (a protocol version that is refused).
 */
#ifndef CLEAVE_WIRE_H
#define CLEAVE_WIRE_H

#include "common/base/base.h"
#include "common/base/settings/settings.h"
#include "common/base/tensor/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
  CLV_WIRE_PROTOCOL = 9,
  CLV_WIRE_PROTOCOL_MIN = 8, /* oldest protocol of a peer that is not refused */
  /* first protocol with ACK frames, by which a link outlives its connections */
  CLV_WIRE_PROTOCOL_WITH_ACKS = 9,
  CLV_WIRE_ID_BYTES = 16,         /* session ids and incarnations */
  CLV_WIRE_INLINE_MAX = 64 << 10, /* bytes of all tensors of a frame with inline tensors */
  /* the usual chunk; Limits.chunk_bytes is the largest accepted */
  CLV_WIRE_CHUNK_BYTES = 256 << 10,
  CLV_WIRE_UNARY_MAX = 256 << 10,   /* bytes of any message that is not a Frame */
  CLV_WIRE_MIN_MESSAGE = 512 << 10, /* bytes of a message that every side accepts */
  CLV_WIRE_BUNDLED = 15,            /* most frames in a message besides its last one */
  /* most bytes of the prefix (tag and length) of each frame in a message except the last one */
  CLV_WIRE_BUNDLE_PREFIX = 8,
  CLV_WIRE_HEAD_MAX = 32 << 10,  /* bytes of a Frame without its payload */
  CLV_WIRE_TENSORS = 16,         /* tensors of one frame; inputs and outputs of one module */
  CLV_WIRE_UPSTREAM = 64,        /* values of one DROP */
  CLV_WIRE_NAME = 128,           /* bytes of a name, NUL not counted */
  CLV_WIRE_TEXT = 256,           /* bytes of any other string */
  CLV_WIRE_URI = 256,            /* bytes of a peer's identity */
  CLV_WIRE_MODULES = 255,        /* modules of a session, 0..254; 255 means all of them */
  CLV_WIRE_POSITIONS = 1 << 20,  /* positions in the execution order of a context at a node */
  CLV_WIRE_CONTRIBUTIONS = 4096, /* gradients summed for one value in a phase; calls in flight */
  CLV_WIRE_LANES = 16,           /* bulk lanes */
  CLV_WIRE_NODES = 2048,         /* nodes of one module's graph */
  CLV_WIRE_NODE_INPUTS = 16,     /* inputs of one node */
  CLV_WIRE_ATTRS = 16,           /* attributes of one node */
  CLV_WIRE_ATTR_NUMBERS = 128,   /* real numbers of one attribute */
  CLV_WIRE_ATTR_INTS = 16,       /* integers of one attribute */
  CLV_WIRE_PARAMS = 4096,        /* parameters of one module; also frozen names and State.count */
  CLV_WIRE_PEERS = 64,     /* identities of peers that one OpenSession lists; peers of one module */
  CLV_WIRE_LIST = 64,      /* entries of a list: capabilities, libraries, devices, artifacts */
  CLV_WIRE_SESSIONS = 256, /* sessions in one Status reply */
  /* links of a session in a Status reply: 1 to its master, 16 each way to workers */
  CLV_WIRE_LINKS = 33,
  CLV_WIRE_ARGS = 8,          /* arguments of one CALL */
  CLV_WIRE_NEEDED_CALLS = 16, /* calls of one PREPARE */
  CLV_WIRE_TARGETS = 32,      /* targets of one PREPARE */
  CLV_WIRE_PREPARE_PEERS = 8, /* nodes that one PREPARE names as destinations of gradients */
  CLV_WIRE_GROUPS = 15,       /* parameter groups besides group 0; their rates in one Commit */
  /* limit, per session at a node, of the references owned, of their users and of the references
   * used */
  CLV_WIRE_REFS = 65536,
  CLV_WIRE_REF_PARKED = 4096, /* messages kept about references that the node does not know yet */
  /* limit of the messages about references that are in flight: from the oldest to the newest */
  CLV_WIRE_REF_WINDOW = 1024,
  /* default lease in milliseconds: a node that sends nothing for this time loses its references */
  CLV_WIRE_REF_LEASE_MS = 300000,
  CLV_WIRE_REF_LEASE_MIN_MS = 1000,
  CLV_WIRE_REF_LEASE_MAX_MS = 86400000,
  CLV_WIRE_CACHES = 64,          /* caches of one identity at a worker */
  CLV_WIRE_KEPT_FILES = 512,     /* files of state in one KeptReply */
  CLV_WIRE_KEPT_BYTES = 1 << 20, /* bytes of a file of state that one KeptRequest reads */
  CLV_WIRE_KEPT_REPLY_MAX = CLV_WIRE_KEPT_BYTES + CLV_WIRE_UNARY_MAX, /* bytes of a KeptReply */
  CLV_WIRE_CACHED_MAX_S = 31536000, /* most seconds that an unused cache is kept: a year */
};
/* Record numbers of a cache are below this. */
#define CLV_WIRE_RECORDS ((uint64_t)1 << 32)
#define CLV_WIRE_BYTES_MAX ((uint64_t)1 << 50) /* limit of any count of bytes that a peer states */

/* Capability: the worker applies OpenSession's reference_lease_ms. Other workers ignore that
 * field. */
#define CLV_CAPABILITY_REFERENCE_LEASE "reference_lease"
/* a worker without this capability keeps moments of frozen parameters */
#define CLV_CAPABILITY_FIXED "fixed"
/* a worker without this capability would train tied parameters as two */
#define CLV_CAPABILITY_TIES "ties"
/* a worker without this capability would store frozen weights as f32 */
#define CLV_CAPABILITY_FROZEN_BF16 "frozen_bf16"
/* a worker without this capability refuses CLV_FLAG_BF16, and inputs and gradients that are bf16 */
#define CLV_CAPABILITY_BF16_VALUES "bf16_values"
/* a worker without this capability would ignore `ema` of an optimiser and keep no averages */
#define CLV_CAPABILITY_EMA "ema"
/* a worker without this capability would end the stream at a STATE_SAVE */
#define CLV_CAPABILITY_STATE_FILES "state_files"
/* a worker without this capability would take a VALUE of a cache for another value */
#define CLV_CAPABILITY_CACHED "cached"
/* a worker without this capability does not have the method Kept */
#define CLV_CAPABILITY_KEPT "kept"
/* a worker without this capability would take a piece of an item for the complete item */
#define CLV_CAPABILITY_STATE_PIECES "state_pieces"

#define CLV_METHOD_HELLO "/cleave.v1.Worker/Hello"
#define CLV_METHOD_OPEN_SESSION "/cleave.v1.Worker/OpenSession"
#define CLV_METHOD_CLOSE_SESSION "/cleave.v1.Worker/CloseSession"
#define CLV_METHOD_LOAD_MODULE "/cleave.v1.Worker/LoadModule"
#define CLV_METHOD_STATUS "/cleave.v1.Worker/Status"
#define CLV_METHOD_KEPT "/cleave.v1.Worker/Kept"
#define CLV_METHOD_SESSION "/cleave.v1.Worker/Session"
#define CLV_METHOD_HEALTH_CHECK "/grpc.health.v1.Health/Check"
#define CLV_METHOD_HEALTH_WATCH "/grpc.health.v1.Health/Watch"
#define CLV_METHOD_REFLECTION "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"

/* A piece of a received message. A message has one or more pieces of any size, also empty ones. */
typedef struct clv_piece {
  const void *data;
  size_t len; /* length in bytes */
} clv_piece;

typedef struct clv_wire_id {
  uint8_t bytes[CLV_WIRE_ID_BYTES];
} clv_wire_id;

/* The Limits message: limits of one side. A field is 0 only if the peer omitted it. */
typedef struct clv_wire_limits {
  uint32_t sessions, tensors, concurrent_calls;
  uint64_t session_bytes, message_bytes, chunk_bytes, credit_bytes;
  uint32_t peer_timeout_ms;
} clv_wire_limits;

/* Returns the default limits: 8 sessions, 4096 tensors, 64 calls, 64 GiB, 64 MiB, 1 MiB, 64 MiB, 60
 * s. */
clv_wire_limits clv_wire_limits_default(void);

/* Checks that what this side sends in one message fits the peer's limits: a chunk, a frame with its
 * prefix, a unary message. CLV_UNAVAILABLE names the limit. A limit of 0 is not stated, and
 * passes. */
clv_code clv_wire_limits_check(const clv_wire_limits *theirs, clv_err *err) CLV_USE_RESULT;

/* Returns the peer timeout of a link: the shorter of the two, at least 1 s. theirs 0: not
 * stated. */
uint32_t clv_wire_shorter_timeout(uint32_t ours_ms, uint32_t theirs_ms);

/* ---- frames of the session stream ------------------------------------------------------------ */

typedef enum clv_frame_kind {
  CLV_ATTACH = 1,
  CLV_ATTACHED,
  CLV_ABORT = 8, /* protocol 1 used the numbers 3 to 7 */
  CLV_CREDIT,
  CLV_CHUNK,
  CLV_ERROR,
  CLV_STATE_GET,
  CLV_STATE_ITEM,
  CLV_STATE_PUT,
  CLV_STATE_DONE,
  CLV_PING,
  CLV_PONG,
  CLV_END_CONTEXT,
  CLV_ENDED,
  CLV_CALL,
  CLV_DELIVER,
  CLV_VALUE,
  CLV_DROP,
  CLV_PREPARE,
  CLV_GRADIENT,
  CLV_FINISHED,
  CLV_APPLY,
  CLV_APPLIED,
  CLV_REVERT,
  CLV_REF_KEEP,
  CLV_REF_USE,
  CLV_REF_FORK,
  CLV_REF_ACCEPT,
  CLV_REF_DELETE,
  CLV_REF_FETCH,
  CLV_REF_VALUE,
  CLV_REF_RENEW,
  CLV_REF_ACK,
  CLV_SPARE,
  CLV_UNLOAD,
  CLV_UNLOADED,
  CLV_STATE_SAVE, /* STATE_SAVE to STATE_FILE need CLV_CAPABILITY_STATE_FILES */
  CLV_STATE_LOAD,
  CLV_STATE_REMOVE,
  CLV_STATE_FILE,
  CLV_ACK = 47,
  CLV_FRAME_KINDS /* one more than the last kind */
} clv_frame_kind;

/* returns the name of a kind, such as "CALL"; "?": no such kind */
const char *clv_frame_kind_name(clv_frame_kind kind);

enum {
  CLV_FLAG_TRAINING = 1u << 0,
  CLV_FLAG_DELIVER = 1u << 2,
  CLV_FLAG_RECOMPUTE = 1u << 3,
  CLV_FLAG_TRACE = 1u << 4,
  CLV_FLAG_BF16 = 1u << 5, /* the master gets the call's value in bf16 */
};
typedef enum clv_attach_role { CLV_ATTACH_MASTER = 1, CLV_ATTACH_PEER = 2 } clv_attach_role;
typedef enum clv_state_kind {
  CLV_STATE_WEIGHTS = 1,
  CLV_STATE_OPTIMIZER,
  CLV_STATE_GRADIENTS = 4, /* gradients of parameters in one context */
  CLV_STATE_EMA = 5,       /* only STATE_LOAD: parameters, read from averages in a file */
} clv_state_kind;

/* One input of a CALL. */
typedef struct clv_arg {
  uint64_t value_id; /* id of the value; 0, only with is_inline: no other call can use the tensor */
  bool needs_grad, is_inline;
} clv_arg;

/* Destination of the gradient of input `input_index`: the owner of value `value_id`, which adds
 * it as contribution `contribution_index`. */
typedef struct clv_target {
  uint64_t value_id;
  uint32_t input_index, contribution_index;
  /* peer that receives the gradient: backward.peer_names[to_peer - 1]; 0: the master */
  uint32_t to_peer;
} clv_target;

/* A call that takes part in a backward pass. Its targets follow those of the call before it. */
typedef struct clv_needed_call {
  uint64_t call_id;
  uint32_t n_contributions, n_grad_targets;
  float root_gradient; /* start value of its gradient; 0: the call is not a root */
} clv_needed_call;

/* A cache of rows that a VALUE reads or writes. */
typedef struct clv_wire_cached {
  clv_sha256 key;
  uint64_t n_records; /* row numbers are below this */
  uint64_t keep_s;    /* seconds that the cache is kept unused */
} clv_wire_cached;

/* One tensor of a frame. `bytes` equals the size of dtype and shape (checked). */
typedef struct clv_tensor_head {
  clv_dtype dtype;
  clv_shape shape;
  uint64_t bytes;
  /* id that the tensor's CHUNKs carry; 0: the tensor is inline in this frame's payload */
  uint64_t transfer_id;
  uint32_t crc32c; /* CRC32C of the tensor's bytes */
} clv_tensor_head;

/* A Frame without its payload. `kind` selects the bodies. Fields of other kinds are zero after
 * decoding and ignored by the encoder. A has_ flag is set if an optional body of the kind is
 * present: the commit of an END_CONTEXT, the vote of a FINISHED, the failure of a VALUE, a
 * REF_VALUE or a REF_ACK, the measure of a PONG, the cache of a VALUE. */
typedef struct clv_frame {
  clv_frame_kind kind;
  uint32_t backward_pass_number;
  uint64_t context, message_id, reply_to, step;
  uint32_t micro_batch, module, module_generation, flags;
  /* GRADIENT: number by which the contributions to a value's gradient are sorted before they are
   * summed */
  uint32_t contribution_index;
  bool has_commit, has_vote, has_failure, has_measure, has_cached;
  /* CALL, DELIVER, VALUE, GRADIENT, REF_*: name of a worker; "" is the master */
  char to[CLV_WIRE_NAME + 1];

  struct {
    clv_wire_id session_id, incarnation;
    uint64_t attempt_number; /* number of the session's attempt, from 1; `epoch` in cleave.proto */
    uint32_t lane_index, n_lanes;
    clv_attach_role role;
    /* CLV_ATTACH_PEER: identity that opened the session at the dialling side */
    char session_owner[CLV_WIRE_URI + 1];
    /* number of this connection of the lane: 0 for the first, higher for each later one */
    uint64_t connection_number;
    uint64_t n_received; /* messages of the lane that the dialling side has received so far */
  } attach;
  struct {
    uint64_t credit_bytes; /* first credit; without effect on a later connection of the lane */
    uint64_t n_received;   /* messages of the lane that the accepting side has received so far */
  } attached;
  struct {
    uint32_t n_lanes;
    uint64_t n_received[1 + CLV_WIRE_LANES]; /* messages received so far, of each lane */
  } ack;
  struct {
    float scale, lr;
    bool applies_step;
    uint32_t n_group_lrs;
    float group_lrs[CLV_WIRE_GROUPS]; /* learning rates of groups 1.. */
    /* position in the execution order of its context; 0: the APPLY follows the context's calls */
    uint32_t step_position;
    bool saves_weights; /* keep the weights before the step, for calls with `old_weights` */
  } commit;             /* body of APPLY and END_CONTEXT */
  struct {
    bool is_finite;
  } vote; /* body of FINISHED */
  struct {
    uint64_t bytes;
  } credit;
  struct {
    uint64_t transfer_id, offset, total_bytes;
  } chunk;
  struct {
    clv_code code;
    char text[CLV_WIRE_TEXT + 1], detected_at[CLV_WIRE_NAME + 1];
    char offending_value[CLV_ERR_VALUE]; /* clv_err.offending_value; not sent */
  } failure; /* body of ABORT, ERROR and VALUE; see clv_frame_set_failure */
  struct {
    clv_state_kind part;
    uint32_t item_index, n_items;
    char item_or_file_name[CLV_WIRE_NAME + 1];
    char device_name[CLV_WIRE_NAME + 1]; /* STATE_ITEM: device that computes with the item */
    uint64_t file_bytes;                 /* STATE_FILE: size of the file, whose digest is sha256 */
    /* STATE_LOAD: digest that the file must have; zeros: any */
    clv_sha256 file_sha256;
    /* bytes of one item that the frame has; length 0: the complete item */
    uint64_t piece_offset, piece_length;
  } state; /* body of the STATE_ frames */
  struct {
    uint32_t n_args;
    clv_arg args[CLV_WIRE_ARGS];
    /* id of a call of this context at the node, whose backward runs before this one's; 0: none */
    uint64_t runs_after_call;
    /* positions in the execution order of the context at its node; 0: none */
    uint32_t forward_position, input_grad_position, weight_grad_position;
    bool uses_old_weights; /* the call uses the weights before the last step of its context */
  } call;
  struct {
    uint64_t clock_ns, received_bytes, receiving_ns;
    uint32_t n_mending_links; /* the sender's links to other workers that have lost a connection */
  } measure;                  /* body of PONG */
  struct {
    /* ids of the reference and of the sender's handle on it, its fork; ref_key, drawn at random,
     * proves that the reference was passed to the sender */
    uint64_t ref_id, fork_id, ref_key;
    /* number of this message about references, counted by the sender for each receiver; REF_ACK:
     * the number acknowledged */
    uint64_t message_number;
    bool owner_lacks_fork; /* REF_USE, REF_FETCH: the owner does not know this handle yet */
    bool is_for_owner;     /* REF_USE: the receiver is the owner */
    /* REF_USE: name of the owner; in a frame that the master forwards: name of its sender */
    char node_name[CLV_WIRE_NAME + 1];
  } reference;            /* body of the REF_ frames */
  clv_wire_cached cached; /* body of a VALUE whose last tensor holds record numbers */

  uint32_t n_tensors, n_value_ids;
  /* A union, because thousands of frames may wait at a time and no frame has both structs. */
  union {
    struct {
      uint64_t value_ids[CLV_WIRE_UPSTREAM];
      clv_tensor_head tensors[CLV_WIRE_TENSORS];
    };
    struct {
      bool retains_graph, needs_vote, more_follow;
      /* number of backward passes without this node since its last PREPARE */
      uint32_t n_skipped_phases;
      uint32_t n_needed_calls, n_grad_targets, n_peers;
      clv_needed_call needed_calls[CLV_WIRE_NEEDED_CALLS];
      clv_target grad_targets[CLV_WIRE_TARGETS];
      char peer_names[CLV_WIRE_PREPARE_PEERS][CLV_WIRE_NAME + 1];
    } backward; /* body of PREPARE, which has neither upstream ids nor tensors */
  };
} clv_frame;

/* Position of a payload: `len` bytes from byte `offset` of pieces[piece]. */
typedef struct clv_payload {
  size_t piece_index, offset, len;
} clv_payload;

typedef struct clv_bundle {
  uint32_t n_frames; /* number of frames that precede the message's own frame, in order */
  clv_payload frame_positions[CLV_WIRE_BUNDLED];
} clv_bundle;

/* Writes the prefix of an encoded frame that precedes another one in a message. Returns its
 * length. */
size_t clv_frame_write_bundle_prefix(uint8_t prefix[CLV_WIRE_BUNDLE_PREFIX], size_t bytes);

/* Replaces *head with the frame's encoding, up to the tag and length of a payload of payload_len
 * bytes. head followed by the payload's bytes is one Frame. Reuses the memory of *head. CLV_INVALID
 * names the rule that the frame breaks; *head is then undefined. */
clv_code clv_frame_encode(const clv_frame *frame, size_t payload_len, clv_bytes *head,
                          clv_err *err) CLV_USE_RESULT;

/* Decodes one Frame from n_pieces pieces. Accepts any field order, fragmentation and unknown
 * fields. Allocates nothing. Three limits are checked: message_bytes bounds the frame, chunk_bytes
 * the payload of a CHUNK, and session_bytes the sum of the frame's tensors and the total of a CHUNK
 * (the caller may pass the rest of a quota as session_bytes). On success payload length and tensor
 * heads agree: inline tensors fill the payload exactly, in order. The caller checks checksums
 * (clv_payload_crc32c). */
clv_code clv_frame_decode(const clv_piece *pieces, size_t n_pieces, const clv_wire_limits *limits,
                          clv_frame *ret_frame, clv_payload *ret_payload,
                          clv_err *err) CLV_USE_RESULT;

/* As clv_frame_decode, for a message that may have other frames before its own. frame->kind is 0 if
 * the message has no frame of its own. clv_frame_decode_preceding then decodes one of the other
 * frames. */
clv_code clv_frame_decode_last(const clv_piece *pieces, size_t n, const clv_wire_limits *limits,
                               clv_bundle *ret_before, clv_frame *ret_frame,
                               clv_payload *ret_payload, clv_err *err) CLV_USE_RESULT;
clv_code clv_frame_decode_preceding(const clv_piece *pieces, size_t n, const clv_payload *frame,
                                    const clv_wire_limits *limits, clv_frame *ret_frame,
                                    clv_payload *ret_payload, clv_err *err) CLV_USE_RESULT;

/* Fills frame->failure. Cuts text and hop to their limits without splitting a character, and
 * replaces what decoders refuse (control characters, bytes that are not UTF-8) by '?'.
 * CLV_BAD_ANSWER, which exists in this process alone, becomes CLV_ABORTED. */
void clv_frame_set_failure(clv_frame *frame, clv_code code, const char *text, const char *hop);

bool clv_frame_is_failure(const clv_frame *frame); /* true if the frame reports a failure */

/* Reduces a failure to what may leave a master: its code and place, "invalid argument at module 3,
 * layer 0 (embedding), forward, step 17 (failure 1 of the master)". Reads the place from the hop,
 * as nodes write it, and removes all other text. `step` and `number`, by which the master finds the
 * full error, are added; 0: none. */
void clv_frame_redact_failure(clv_frame *frame, uint64_t step, uint64_t number);

/* Access bytes [from, from + len) of a payload; the range is cut to the payload. clv_payload_copy
 * copies them to dst, clv_payload_crc32c returns their CRC32C. clv_payload_next_piece returns the
 * next piece of the payload (*state starts at 0); false: no more pieces. */
void clv_payload_copy(const clv_piece *pieces, const clv_payload *payload, size_t from, size_t len,
                      void *dst);
/* Copies the payload to dst and returns its CRC32C. For a dst that is larger than the cache: its
 * bytes are in memory afterwards, not in the cache. */
uint32_t clv_payload_copy_past_cache(const clv_piece *pieces, const clv_payload *payload,
                                     void *dst);
uint32_t clv_payload_crc32c(const clv_piece *pieces, const clv_payload *payload, size_t from,
                            size_t len);
bool clv_payload_next_piece(const clv_piece *pieces, const clv_payload *payload, size_t *state,
                            clv_piece *ret_piece);

/* True for UTF-8 without control characters, the text that messages may contain. */
bool clv_wire_is_text(const char *text);

/* -- unary messages ---------------------------------------------------------------------------- */

/* Memory of a decoded struct; NULL for a struct built by hand. */
typedef struct clv_wire_mem clv_wire_mem;

typedef struct clv_wire_library {
  const char *name, *version;
} clv_wire_library;
typedef struct clv_wire_artifact {
  const char *name;
  clv_sha256 sha256;
} clv_wire_artifact;

typedef struct clv_wire_about {
  uint32_t protocol;
  uint32_t n_capabilities, n_libraries;
  const char **capabilities;
  clv_wire_library *libraries;
  clv_wire_limits limits;
  /* name of the software, and instruction set of the processor; never NULL after decoding, and
   * encoded as "" if NULL */
  const char *software, *isa;
  uint64_t unix_ms;
} clv_wire_about;

/* Kind of a device: "cuda", "sm_90", "cuDNN 9.19.0". */
typedef struct clv_wire_device_kind {
  const char *kind, *isa, *libraries;
} clv_wire_device_kind;

typedef struct clv_wire_hello_request {
  clv_wire_mem *mem;
  clv_wire_about about;
} clv_wire_hello_request;

typedef struct clv_wire_hello_reply {
  clv_wire_mem *mem;
  clv_wire_about about;
  clv_wire_id incarnation;
  const char *worker_name;
  uint32_t n_cores, n_threads, n_devices, n_artifacts;
  const char **device_names;
  /* [n_devices]; never NULL after decoding: kinds that an older worker omits are derived from the
   * names. NULL: not encoded. */
  clv_wire_device_kind *device_kinds;
  clv_wire_artifact *artifacts;
} clv_wire_hello_reply;

/* Calls Hello with this side's newest protocol, and with each older one down to
 * CLV_WIRE_PROTOCOL_MIN while the peer answers CLV_UNIMPLEMENTED. `call` makes one call. If the
 * peer refuses all, the error is that of the newest. */
clv_code clv_wire_hello_exchange(const clv_wire_about *about,
                                 clv_code (*call)(void *user, const clv_bytes *request,
                                                  clv_bytes *reply, clv_err *err),
                                 void *user, clv_bytes *ret_reply, clv_err *err) CLV_USE_RESULT;
/* True if a link to a peer of this protocol outlives its connections: ACKs, a lease, redials. */
bool clv_wire_protocol_has_acks(uint32_t protocol);
bool clv_wire_has_capability(const clv_wire_about *about, const char *capability);

/* Returns the index of the device that a name selects; -1: none. "", "auto" and NULL select the
 * first that is not a CPU, else the first; "cuda" the first of NVIDIA's. */
int clv_wire_find_device(const clv_wire_hello_reply *h, const char *name);
/* true if the name is that of a CPU; reads the name alone */
bool clv_wire_device_is_cpu(const char *device);

typedef struct clv_wire_open_request {
  clv_wire_mem *mem;
  clv_wire_id session_id;
  uint64_t attempt_number;
  const char *session_name;
  uint32_t n_lanes, n_peer_identities;
  const char **peer_identities;
  clv_sha256 config_digest;
  bool is_only_attempt; /* no other attempt of the session will follow */
  /* lease of references, ms; 0: CLV_WIRE_REF_LEASE_MS; never 0 after decoding */
  uint32_t reference_lease_ms;
} clv_wire_open_request;
typedef struct clv_wire_open_reply {
  clv_wire_mem *mem;
  clv_wire_id incarnation;
  clv_wire_limits granted_limits;
} clv_wire_open_reply;
typedef struct clv_wire_close_request {
  clv_wire_mem *mem;
  clv_wire_id session_id;
  uint64_t attempt_number;
} clv_wire_close_request;
typedef struct clv_wire_close_reply {
  clv_wire_mem *mem;
  uint64_t bytes_in, bytes_out, n_forwards, n_backwards;
} clv_wire_close_reply;

#include "common/net/wire/load_int.h"

typedef enum clv_kept_verb { CLV_KEPT_LIST, CLV_KEPT_READ, CLV_KEPT_REMOVE } clv_kept_verb;
/* Data that a Kept request is about. CLV_KEPT_ALL: caches and files of state. */
typedef enum clv_kept_kind { CLV_KEPT_ALL, CLV_KEPT_CACHES, CLV_KEPT_FILES } clv_kept_kind;

typedef struct clv_wire_kept_request {
  clv_wire_mem *mem;
  clv_kept_verb verb;
  clv_kept_kind kept_kind;
  bool has_cache_key, wants_digest; /* has_cache_key false: all caches of the caller */
  clv_sha256 cache_key;
  /* file_name: file of state; NULL or "": all files. after_file_name: only files whose names sort
   * behind this one; NULL or "": all. Never NULL after decoding. */
  const char *file_name, *after_file_name;
  /* range and version that a READ asks for; version 0: any */
  uint64_t range_offset, range_length, file_version;
} clv_wire_kept_request;
typedef struct clv_wire_cache_status {
  clv_sha256 cache_key;
  uint64_t n_records, n_rows, row_bytes, disk_bytes, unused_s, expires_in_s;
} clv_wire_cache_status;
typedef struct clv_wire_kept_file {
  const char *file_name;
  /* file_version: differs after each change of the file */
  uint64_t file_bytes, age_s, file_version;
  bool has_sha256;
  clv_sha256 sha256;
} clv_wire_kept_file;
typedef struct clv_wire_kept_reply {
  clv_wire_mem *mem;
  uint32_t n_caches, n_files; /* at most CLV_WIRE_CACHES and CLV_WIRE_KEPT_FILES */
  clv_wire_cache_status *caches;
  clv_wire_kept_file *files;
  bool has_more_files; /* the worker has more files, whose names sort after the last one here */
  const void *data;    /* [data_bytes] bytes that a READ returns */
  size_t data_bytes;
  uint64_t used_bytes, quota_bytes; /* use and limit of the quota of files of state */
} clv_wire_kept_reply;

#include "common/net/wire/status_int.h"

/* For each message m: clv_wire_m_encode replaces *ret with the encoding; clv_wire_m_decode fills
 * *ret_m from pieces. Release it with clv_wire_message_clear(ret_m), which suits CLV_AUTO:
 * CLV_AUTO(clv_wire_message_clear) clv_wire_hello_reply reply = {0}; */
#define CLV_WIRE_UNARY(m)                                                                         \
  clv_code clv_wire_##m##_encode(const clv_wire_##m *message, clv_bytes *ret, clv_err *err)       \
      CLV_USE_RESULT;                                                                             \
  clv_code clv_wire_##m##_decode(const clv_piece *pieces, size_t n_pieces, clv_wire_##m *ret_##m, \
                                 clv_err *err) CLV_USE_RESULT;
CLV_WIRE_UNARY(hello_request)
CLV_WIRE_UNARY(hello_reply)
CLV_WIRE_UNARY(open_request)
CLV_WIRE_UNARY(open_reply)
CLV_WIRE_UNARY(close_request)
CLV_WIRE_UNARY(close_reply)
CLV_WIRE_UNARY(load_request)
CLV_WIRE_UNARY(load_reply)
CLV_WIRE_UNARY(status_request)
CLV_WIRE_UNARY(status_reply)
CLV_WIRE_UNARY(kept_request)
CLV_WIRE_UNARY(kept_reply)
#undef CLV_WIRE_UNARY

/* Frees a decoded message. `message`: pointer to any struct above that begins with `mem`. */
void clv_wire_message_clear(void *message);

/* - health and reflection ---------------------------------------------------------------------- */

typedef enum clv_health {
  CLV_HEALTH_UNKNOWN = 0,
  CLV_HEALTH_SERVING,
  CLV_HEALTH_NOT_SERVING,
  CLV_HEALTH_NO_SERVICE,
} clv_health;

/* Decodes a HealthCheckRequest of grpc.health.v1: the name of a service; "" is the whole server. */
clv_code clv_wire_health_request_decode(const clv_piece *pieces, size_t n_pieces,
                                        char service[CLV_WIRE_NAME + 1],
                                        clv_err *err) CLV_USE_RESULT;
clv_code clv_wire_health_reply_encode(clv_health status, clv_bytes *ret,
                                      clv_err *err) CLV_USE_RESULT;
clv_code clv_wire_health_request_encode(const char *service, clv_bytes *ret,
                                        clv_err *err) CLV_USE_RESULT;
clv_code clv_wire_health_reply_decode(const clv_piece *pieces, size_t n_pieces,
                                      clv_health *ret_status, clv_err *err) CLV_USE_RESULT;

/* Makes the reply to one ServerReflectionRequest of grpc.reflection.v1alpha. Answers list_services,
 * file_by_filename and file_containing_symbol, and other requests with an ErrorResponse, which is
 * no error of this function. */
clv_code clv_wire_answer_reflection(const clv_piece *pieces, size_t n_pieces, clv_bytes *ret_reply,
                                    clv_err *err) CLV_USE_RESULT;

#ifdef __cplusplus
}
#endif
#endif
