/* SPDX-License-Identifier: Apache-2.0
 *
 * egress: decides which tensors the master may send to workers (gate, policy, ledger) and records
 * the tensors that it has sent (the record DIR/egress.jsonl).
 *
 * The record is a write-ahead log. Before the first byte of a tensor is sent, a line on the disk
 * grants an *allowance*, which names the receiver, the tensor and the largest number of bytes. A
 * later line *settles* the allowance with the number of bytes that were sent. An allowance that no
 * line settles counts in full, so the record never reports fewer bytes than were sent, even after a
 * crash of the process or the machine.
 *
 * The master calls clv_egress_open when a command begins, clv_egress_flow_new for each kind of
 * tensor, clv_egress_set_step_bytes and clv_egress_write_ahead before each step, clv_egress_charge
 * before each tensor and clv_egress_close at the end. clv_egress_read and clv_egress_write_page
 * show a record.
 *
 * The file has one JSON object per line. The keys of each event are in the order of the table in
 * record_line.c. Each line names its attempt, because commands that run at the same time write
 * interleaved lines. Readers ignore a truncated last line. If the file is removed during a command,
 * the record can no longer be written and the master sends no further tensor.
 *
 * Threads: any thread may call clv_egress_charge; one thread makes all other calls of a record.
 */
#ifndef CLEAVE_EGRESS_H
#define CLEAVE_EGRESS_H

#include "common/base/base.h"
#include "common/base/tensor/tensor.h"
#include "common/model/config/config.h"
#include "master/api/api.h"
#include "master/reach/reach.h"

#define CLV_EGRESS_FILE "egress.jsonl"
#define CLV_EGRESS_MASTER \
  "master" /* the master's name in the field `from` of a line; a worker has its own name there */

enum {
  CLV_EGRESS_RECORD_VERSION = 1,
  CLV_EGRESS_MAX_NAME = 128,  /* most bytes of a name, without NUL */
  CLV_EGRESS_MAX_TEXT = 256,  /* bytes of a path or an identity, without NUL */
  CLV_EGRESS_MAX_LINE = 8192, /* bytes of a line, without its newline */
  /* most attempts, rows, hops (transfers from worker to worker) or open allowances in a summary */
  CLV_EGRESS_MAX_ROWS = 65536,
  /* most training steps whose bytes one allowance (a grant of bytes) covers */
  CLV_EGRESS_MAX_STEPS = 64,
  /* age in ms of an allowance (a grant of bytes) at which the record takes back its unused bytes */
  CLV_EGRESS_ALLOWANCE_MS = 10000,
};

/* ---- lines of the egress record -------------------------------------------------------------- */

typedef enum clv_egress_event {
  CLV_EGRESS_ATTEMPT = 1, /* a command began */
  /* an allowance: grants a number of bytes of a tensor, which may be sent after this line */
  CLV_EGRESS_ALLOW,
  CLV_EGRESS_SETTLE, /* reports the bytes that were sent under an allowance (a grant of bytes) */
  /* direct transfer: a worker reports how many bytes it has sent to another worker */
  CLV_EGRESS_HOP,
  /* result of the look, which tries, before anything is sent, to reconstruct a few records from the
   * tensors that would be sent */
  CLV_EGRESS_LOOK,
  CLV_EGRESS_END,   /* the command ended normally; each allowance has its SETTLE line */
  CLV_EGRESS_EVENTS /* number of events, plus 1, because the first event is 1 */
} clv_egress_event;

typedef enum clv_egress_kind {
  CLV_EGRESS_INPUT =
      1, /* "input": records, unchanged or changed only by layers that do not mix their elements */
  /* "tokens": one vector per token; lines of the record use this kind, rows of the egress table
   * never do */
  CLV_EGRESS_TOKENS,
  CLV_EGRESS_LABELS,
  CLV_EGRESS_ACTIVATION,
  CLV_EGRESS_GRADIENT,
  CLV_EGRESS_WEIGHTS, /* parameters and buffers of a stage, sent by name */
  CLV_EGRESS_STATE,   /* state of an optimiser, sent by name */
  CLV_EGRESS_FAILURE, /* report of a failed context, sent to the workers */
  CLV_EGRESS_CACHED,  /* activation rows that the worker stores on its disk, and the row numbers */
  CLV_EGRESS_KINDS    /* number of kinds, plus 1, because the first kind is 1 */
} clv_egress_kind;

/* Returns the name of a kind in lines and pages, such as "activation". */
const char *clv_egress_kind_name(clv_egress_kind kind);
/* Returns true for WEIGHTS and STATE, whose tensors are sent by name and have no batch
 * dimension. */
bool clv_egress_is_state(clv_egress_kind kind);

/* Key of a row of the egress record: sender, receiver and tensor. Allowances whose keys are equal
 * in all fields belong to one row. */
typedef struct clv_egress_key {
  /* sender: "master", or a worker that sends directly to another worker, so that the tensor does
   * not pass the master */
  char from[CLV_EGRESS_MAX_NAME + 1];
  /* name and identity of the worker that receives the tensor */
  char to[CLV_EGRESS_MAX_NAME + 1], identity[CLV_EGRESS_MAX_TEXT + 1];
  uint64_t kind;                       /* kind of the tensor, a clv_egress_kind */
  char stage[CLV_EGRESS_MAX_NAME + 1]; /* stage that the input, output or state belongs to */
  char name[CLV_EGRESS_MAX_NAME + 1]; /* name of a tensor of WEIGHTS or STATE; "" for other kinds */
  char dtype[8];
  /* shape of a sample, without the batch; WEIGHTS and STATE: shape of the tensor */
  clv_shape shape;
  /* the tensor has random numbers in place of records, because a trial of `micro_batches: auto`
   * sends it */
  bool has_random_values;
} clv_egress_key;

typedef struct clv_egress_line {
  clv_egress_event event;
  char at[32];      /* time of the line, such as "2026-01-31T12:00:00.000Z" */
  uint64_t attempt; /* number of the attempt that wrote the line, from 1 */
  union {
    struct {
      uint64_t version;
      char command[16]; /* command of the attempt: train, eval or predict */
      char session[CLV_EGRESS_MAX_NAME + 1], run[CLV_EGRESS_MAX_TEXT + 1];
      /* path and digest of the policy; "": no policy */
      char policy[CLV_EGRESS_MAX_TEXT + 1], policy_sha256[65];
      char approver[CLV_EGRESS_MAX_TEXT + 1]; /* signer of the policy; "": not signed */
      char table_sha256[65];                  /* digest of egress.table when the attempt begins */
      uint64_t removed_bytes; /* bytes of a truncated last line that the attempt removed; 0: none */
    } start;
    struct {
      uint64_t id; /* number of the allowance (the grant of bytes) in its attempt, from 1 */
      clv_egress_key key;
      uint64_t bytes;      /* most bytes that may leave under the allowance */
      char expires_at[32]; /* latest time at which the record takes back the unused bytes */
    } allowance;
    struct {
      uint64_t id, n_tensors, bytes;
    } settlement;
    struct {
      char from[CLV_EGRESS_MAX_NAME + 1], to[CLV_EGRESS_MAX_NAME + 1];
      uint64_t bytes; /* bytes of all messages that the sending worker sent to the receiving one */
      char by[16];    /* "worker": the sending worker has reported `bytes` itself */
    } hop;
    struct {
      /* number of records on which the look, the measurement of what sent tensors show, has run */
      uint64_t n_records;
      /* result of each attack of the look: the share of pixels, tokens and so on that it could read
       * ("0.82"), "not applicable" or "not looked at". features and groups are "" if a release
       * before 0.9 wrote the line */
      char pixels[16], tokens[16], labels[16], features[16], groups[16];
    } look;
    struct {
      uint64_t code;             /* exit code of the command */
      uint64_t n_tensors, bytes; /* tensors and bytes that left the master in this attempt */
    } attempt_end;
  };
} clv_egress_line;

/* Parses one line, without its newline. Accepts a line only if clv_egress_line_format would write
 * the same bytes. CLV_DATA_LOSS: the line is invalid; the message names the wrong field. */
clv_code clv_egress_line_parse(const char *text, size_t len, clv_egress_line *ret,
                               clv_err *err) CLV_USE_RESULT;
/* Appends a line with its newline to `out`. */
void clv_egress_line_format(const clv_egress_line *l, clv_bytes *out);

/* ---- writing the egress record --------------------------------------------------------------- */

/* Writer of the record for one command. */
typedef struct clv_egress_record clv_egress_record;
/* Flow: the tensors of one row of the record, and their balance, the bytes that may still leave.
 * Owned by the record. */
typedef struct clv_egress_flow clv_egress_flow;

/* Opens or creates the file, removes a truncated last line, appends an ATTEMPT line with
 * start_line->start and starts the thread that writes allowances (grants of bytes) before flows
 * need them. CLV_DATA_LOSS: the file is no valid record. On failure *ret is not set. */
clv_code clv_egress_open(const char *path, const clv_egress_line *start_line,
                         clv_egress_record **ret, clv_err *err) CLV_USE_RESULT;
/* Settles all allowances (writes how many bytes were sent), writes the END line and frees the
 * record, even if writing fails. The caller must have stopped all calls of clv_egress_charge. NULL
 * is allowed. */
clv_code clv_egress_close(clv_egress_record *r, uint64_t exit_code, clv_err *err);

/* Makes the flow of a row of the record: its tensors and their balance, the bytes that may still be
 * sent. has_one_tensor: each clv_egress_set_step_bytes announces one tensor, and
 * clv_egress_write_ahead writes its allowance. Otherwise the record's thread also writes the next
 * allowance whenever half of one is used. */
clv_code clv_egress_flow_new(clv_egress_record *r, const clv_egress_key *key, bool has_one_tensor,
                             clv_egress_flow **ret, clv_err *err) CLV_USE_RESULT;
/* Sets the bytes that the flow needs for one step, one batch of an evaluation, or its one tensor.
 * If its balance (the bytes that may still be sent) is smaller, the next clv_egress_write_ahead
 * writes an allowance. */
void clv_egress_set_step_bytes(clv_egress_flow *f, uint64_t step_bytes);
/* Writes an allowance (a grant of bytes) for each flow whose balance is smaller than the bytes that
 * its next step sends. BLOCKS for a write and an fdatasync. */
clv_code clv_egress_write_ahead(clv_egress_record *r, clv_err *err) CLV_USE_RESULT;

/* Takes `bytes` from the balance of the flow; call before a tensor is sent. If the balance is too
 * small, because no tensor was expected or the allowance was taken back, the call writes an
 * allowance and BLOCKS as clv_egress_write_ahead does. Otherwise it allocates no memory and takes
 * no lock. On an error the record cannot be written any more, and the caller must not send the
 * tensor. */
clv_code clv_egress_charge(clv_egress_flow *f, uint64_t bytes, clv_err *err) CLV_USE_RESULT;

/* Appends a LOOK line, with the result of the look (the measurement of what sent tensors show), to
 * the record. Call before the first allowance. */
void clv_egress_note_look(clv_egress_record *r, const clv_egress_line *look);

/* Appends a HOP line to the record: worker `from` reports that it has sent `bytes` bytes directly
 * to worker `to`. */
void clv_egress_note_direct_transfer(clv_egress_record *r, const char *from, const char *to,
                                     uint64_t bytes);

/* ---- reading an egress record ---------------------------------------------------------------- */

typedef struct clv_egress_attempt {
  clv_egress_line start_line;
  bool has_look; /* true: the attempt has a LOOK line, which is in `look` */
  /* LOOK line of the attempt: what the measurement before the run has found */
  clv_egress_line look;
  /* true: the command has ended, and `end` is set; false: it still runs or was killed */
  bool has_ended;
  clv_egress_line end; /* END line of the attempt */
  uint64_t bytes;      /* most bytes that left the master: settled bytes plus unsettled_bytes */
  /* bytes of allowances (grants of bytes) without a SETTLE line, counted in full */
  uint64_t unsettled_bytes;
  uint64_t n_tensors; /* number of tensors sent under allowances that have a SETTLE line */
  /* last_id: number of the last allowance; n_open_allowances: number of allowances without a SETTLE
   * line, which reports the bytes sent */
  uint64_t last_id, n_open_allowances;
} clv_egress_attempt;

/* Sums over all allowances of one attempt that have the same key. */
typedef struct clv_egress_row_sum {
  size_t attempt; /* index in `attempts` of the summary */
  clv_egress_key key;
  /* tensors and bytes that were sent under allowances with a SETTLE line */
  uint64_t n_tensors, settled_bytes;
  /* bytes of allowances without a SETTLE line (the report of the bytes sent); some of these bytes
   * may have been sent, too */
  uint64_t unsettled_bytes;
  /* times of the first allowance and of the last line of the row */
  char first_time[32], last_time[32];
} clv_egress_row_sum;

typedef struct clv_egress_hop_sum {
  size_t attempt; /* index in `attempts` of the summary */
  clv_egress_line line;
} clv_egress_hop_sum;

typedef struct clv_egress_summary {
  clv_egress_attempt *attempts;
  /* [n_rows] sums of each row, in the order in which the rows first appear in the file */
  clv_egress_row_sum *rows;
  clv_egress_hop_sum *hops;
  size_t n_attempts, n_rows, n_hops;
  uint64_t total_bytes;  /* bytes that left the master in all attempts */
  size_t complete_bytes; /* bytes of the complete lines at the beginning of the file */
  /* bytes of a truncated last line, behind the complete lines; 0: there is none */
  size_t truncated_bytes;
} clv_egress_summary;

/* Reads and checks the record at `path`. CLV_NOT_FOUND: no such file; CLV_DATA_LOSS: a line is
 * invalid; the message names path and line. Free *ret with clv_egress_summary_done. */
clv_code clv_egress_read(const char *path, clv_egress_summary *ret, clv_err *err) CLV_USE_RESULT;
/* As clv_egress_read, but reads `len` bytes at `data`. Errors name `label` as the path. */
clv_code clv_egress_read_text(const void *data, size_t len, const char *label,
                              clv_egress_summary *ret, clv_err *err) CLV_USE_RESULT;
void clv_egress_summary_done(clv_egress_summary *b); /* frees the lists of *b and zeroes *b */

/* ---- the page, a report of an egress record -------------------------------------------------- */

typedef enum clv_egress_format {
  CLV_EGRESS_PLAIN_TEXT,
  CLV_EGRESS_HTML,
  CLV_EGRESS_JSON
} clv_egress_format;

/* Writes the report of a record for the person responsible for the data: what left, to which
 * worker, when and under which policy. Formats: text for a terminal, a single HTML file without
 * links, or one JSON object per line. `run` is the run's name in the report. The record may come
 * from an untrusted source: its texts are escaped and shown without control characters. */
clv_code clv_egress_write_page(const clv_egress_summary *b, const char *run, clv_egress_format form,
                               clv_bytes *out, clv_err *err) CLV_USE_RESULT;

/* ---- findings: ways to read records or labels from a tensor (findings.c) --------------------- */

/* A finding: a way in which a tensor that the master sends reveals records or labels to a worker
 * that knows the session file. Each finding is one bit; a worse finding has the greater number.
 * master/plan/privacy.c finds them, and plan, gate, policy and egress record use them. */
typedef enum clv_finding {
  CLV_FINDING_MIXED = 0, /* no finding; this is no proof that the tensor is safe */
  CLV_FINDING_PICTURE =
      1, /* each element depends on fewer than half of the positions of a record */
  CLV_FINDING_FRONT_KNOWN =
      /* on some path of layers from the records, all layers that mix elements have weights that a
       * worker may know */
  2,
  CLV_FINDING_TOKENS = 4,           /* one vector per token */
  CLV_FINDING_RAW_INPUT = 8,        /* no layer on some path from the records mixes elements */
  CLV_FINDING_LABELS_READABLE = 16, /* a gradient from which a worker can compute a label */
  CLV_FINDING_LABELS = 32,          /* the labels themselves */
} clv_finding;

/* A set of findings, one bit each. Of two sets with different worst findings, the set with the
 * worse finding is the greater number. */
typedef unsigned clv_findings;
enum { CLV_FINDINGS_TEXT_BYTES = 80 }; /* most bytes that clv_findings_format writes, with NUL */

/* Formats the words of a set, the worst first: "RAW INPUT, PICTURE"; "" for the empty set. Returns
 * buf. */
const char *clv_findings_format(clv_findings f, char buf[CLV_FINDINGS_TEXT_BYTES]);
/* Returns the ways in which records can be read from a value. r: which elements of the value depend
 * on which parts of a record. */
clv_findings clv_reach_findings(const clv_reach *r);
/* Returns the worst finding of a set; CLV_FINDING_MIXED for the empty set. */
clv_finding clv_worst_finding(clv_findings f);
/* Returns those findings of `f` that `privacy` in the session file does not permit; 0: it permits
 * all. */
clv_findings clv_privacy_forbidden_findings(const clv_session_config *c, clv_findings f);

/* ---- the policy of the host (policy.c) ------------------------------------------------------- */

#define CLV_POLICY_FOLDER "/etc/cleave"
#define CLV_POLICY_FILE "egress.policy.yaml"
#define CLV_POLICY_SIGNATURE CLV_POLICY_FILE ".sig"
#define CLV_POLICY_CA "approver-ca.pem"

/* The tensors that the person responsible for the data permits to leave this host. A policy refuses
 * every other tensor. */
typedef struct clv_policy clv_policy;

/* value of n_hiding_layers for a tensor that depends on neither records nor labels */
#define CLV_POLICY_NO_PATH UINT32_MAX

/* A tensor as the policy checks it, before anything is sent and again when it is sent. */
typedef struct clv_policy_tensor {
  const char *name; /* name of the tensor in messages */
  clv_egress_kind kind;
  clv_findings findings; /* findings of the tensor */
  /* number of hiding layers (layers that mix by secret weights) at the master between the records
   * or labels and the tensor, on the path with the fewest such layers; CLV_POLICY_NO_PATH: the
   * tensor depends on neither */
  uint32_t n_hiding_layers;
  const char *worker, *identity; /* name and identity of the receiver */
  clv_dtype dtype;
  clv_shape shape; /* shape with the batch dimension, except WEIGHTS and STATE, which have none */
} clv_policy_tensor;

/* Opens the policy of this host, CLV_POLICY_FOLDER/CLV_POLICY_FILE. *ret NULL: this host has no
 * policy. Root must own the file and its folder, and no other user may be able to write to them. If
 * the process runs as root, the policy must also have a signature (common/net/tls) of a certificate
 * under CLV_POLICY_CA. CLV_INVALID: a policy exists but fails one of these checks. No environment
 * variable, option or session key changes the path. */
clv_code clv_policy_find(clv_policy **ret, clv_err *err) CLV_USE_RESULT;
void clv_policy_free(clv_policy *p); /* NULL is allowed */
void clv_policy_freep(clv_policy **p);

/* Return the policy's path, the SHA-256 of its bytes and its signer, for `plan` and the record.
 * Each returns "" if p is NULL; the signer is also "" if the policy is not signed. */
const char *clv_policy_path(const clv_policy *p);
const char *clv_policy_sha256(const clv_policy *p);
const char *clv_policy_approver(const clv_policy *p);

/* Checks a planned tensor before anything is sent. CLV_INVALID: the policy does not permit the
 * tensor; the text names the line of the policy. p NULL permits everything. */
clv_code clv_policy_check_tensor(const clv_policy *p, const clv_policy_tensor *t,
                                 clv_err *err) CLV_USE_RESULT;
/* Checks `bytes`, the planned bytes of an epoch, against bytes_per_epoch. CLV_INVALID: the bytes
 * exceed this limit. p NULL permits everything. */
clv_code clv_policy_check_epoch(const clv_policy *p, uint64_t bytes, clv_err *err) CLV_USE_RESULT;

/* Checks that a layer may move from the master to a worker in a run that resumes with another cut.
 * CLV_INVALID: no pattern of the policy's list `release` matches the layer's name. p NULL permits
 * everything. */
clv_code clv_policy_check_release(const clv_policy *p, const char *layer, const char *worker,
                                  clv_err *err) CLV_USE_RESULT;

/* Result of one attack of the look (the measurement before a run): the share of pixels, tokens,
 * labels, features or label groups that it could reconstruct from the tensors that would be
 * sent. */
typedef struct clv_policy_look_result {
  int reader; /* number of the attack: 0 pixels, 1 tokens, 2 labels, 3 features, 4 label groups */
  /* share that the attack could reconstruct, 0..1; negative: the look did not run the attack */
  double share;
  const char *why_not_run; /* reason why the attack did not run; used if `share` is negative */
} clv_policy_look_result;
/* Checks the result of an attack against the policy's max_read. CLV_INVALID: the share exceeds the
 * limit, or there is a limit and the attack did not run. p NULL permits everything. */
clv_code clv_policy_check_look_result(const clv_policy *p, const clv_policy_look_result *r,
                                      clv_err *err) CLV_USE_RESULT;
/* Returns the policy's max_read for an attack of the look, the largest share that the attack may
 * read; 1: there is no limit or no policy. reader: number of the attack, as in
 * clv_policy_look_result. */
double clv_policy_max_read_share(const clv_policy *p, int reader);

/* Checks that programs on libcleave may connect to workers. CLV_INVALID: the policy refuses
 * programs, or it limits what the look may read, because the look does not run for programs. p NULL
 * permits everything. */
clv_code clv_policy_check_programs(const clv_policy *p, clv_err *err) CLV_USE_RESULT;

/* Begins an epoch of the policy's limit bytes_per_epoch. bytes: bytes that an earlier attempt has
 * sent in the same epoch, with which the count begins; 0: none. */
void clv_policy_begin_epoch(clv_policy *p, uint64_t bytes);
/* Checks a tensor before it is sent and adds its bytes to the sum of the epoch. The bytes of a
 * refused tensor are not added. Any thread may call clv_policy_charge. */
clv_code clv_policy_charge(clv_policy *p, const clv_policy_tensor *t, uint64_t bytes,
                           clv_err *err) CLV_USE_RESULT;
/* Returns true if clv_policy_charge has refused a tensor. The command then exits with the code of a
 * configuration error. */
bool clv_policy_has_refused(const clv_policy *p);

/* ---- rows of the egress table (table_row.c) -------------------------------------------------- */

#define CLV_LOSS_NAME "(loss)" /* name of the loss module; no stage may have this name */

/* Row of the egress table: a tensor that the master sends for each micro-batch. The blueprint sets
 * kind and findings (what the tensor shows); plan, policy, gate and record read both. */
typedef struct clv_egress_row {
  char name[160]; /* "activation of stage 'a' (layer 2)" */
  /* INPUT, LABELS, ACTIVATION, GRADIENT, WEIGHTS, STATE or CACHED */
  clv_egress_kind kind;
  clv_findings findings; /* all findings of the tensor */
  /* part of `findings` that only the look, the measurement before the run, has found */
  clv_findings look_findings;
  uint32_t stage; /* index of the stage in the session; n_stages: the loss */
  /* INPUT, LABELS: index of the module's input; CACHED: 0 for the rows, 1 for their numbers */
  uint32_t input;
  uint32_t n_values; /* number of values that cross the cut together in this tensor */
  int worker;        /* index of the receiver in the session's workers */
  clv_dtype dtype;
  clv_shape shape; /* dim 0 is the largest micro-batch; WEIGHTS: [] */
  /* bytes of all micro-batches of a full step; WEIGHTS: bytes of all weights */
  uint64_t bytes_per_step;
  int64_t max_positions; /* most positions of a packed sequence; 0: not packed */
  bool is_relayed;       /* the master receives the value from another worker and forwards it */
  bool is_for_spare;     /* `worker` gets the tensor only in place of a worker that was lost */
  /* number of hiding layers at the master, as n_hiding_layers of clv_policy_tensor */
  uint32_t n_hiding_layers;
} clv_egress_row;

/* Returns the kind under which the record counts a tensor of a row. An activation that shows RAW
 * INPUT counts as "input", one that shows TOKENS as "tokens". A policy, in contrast, is compared
 * with the kind of the row. */
clv_egress_kind clv_egress_record_kind(clv_egress_kind kind, clv_findings findings);
/* Returns the row as a clv_policy_tensor, whose texts belong to the row and the session. */
clv_policy_tensor clv_egress_row_tensor(const clv_session_config *c, const clv_egress_row *r);

/* ---- the gate, which each sent tensor passes (gate.c) ---------------------------------------- */

/* Flow of a row of the egress table (the balance of bytes that may still be sent), and the sizes of
 * its tensors. */
typedef struct clv_row_flow {
  /* flow of the row; NULL for WEIGHTS, because each piece of state has its own flow
   * (clv_state_flow) */
  clv_egress_flow *flow;
  uint64_t sample_bytes;   /* bytes of a sample; packed sequences: bytes of the longest one */
  uint64_t position_bytes; /* bytes per position of packed sequences; 0: not packed */
} clv_row_flow;

/* Flow (balance of bytes that may still be sent) of one piece of a stage's state: a parameter, a
 * buffer or an optimiser's tensor. */
typedef struct clv_state_flow {
  clv_egress_flow *flow;
  uint32_t stage;
  bool is_optimizer_state; /* the piece is state of the optimiser, not a parameter or buffer */
  char name[CLV_EGRESS_MAX_NAME + 1];
} clv_state_flow;

/* The data with which the gate compares each tensor that is about to be sent. All pointers are
 * caller-owned. The caller sets every field before the first tensor is sent, but may add pieces to
 * state_flows later. The gate uses state_flows, n_state_flows and next_state_flow for WEIGHTS
 * alone, so the caller adds pieces on the one thread that sends state. */
typedef struct clv_gate {
  const clv_session_config *config;
  const clv_egress_row *rows; /* [n_rows] the egress table */
  size_t n_rows;
  clv_row_flow *flows; /* [n_rows] flow (balance of bytes that may still be sent) of each row */
  /* [config->n_workers] flow (balance of bytes) of the failure reports to each worker. The gate
   * refuses reports to a worker whose element is NULL, and all reports if the array is NULL */
  clv_egress_flow **failure_flows;
  clv_state_flow *state_flows; /* [n_state_flows] the pieces of state that may be sent */
  /* next_state_flow: index in state_flows at which the next search begins, because pieces are sent
   * in order */
  size_t n_state_flows, next_state_flow;
  int64_t max_samples; /* most samples that a tensor may have */
  /* findings that the look (the measurement before the run) has found but is not certain of; `plan`
   * prints them and the gate ignores them */
  clv_findings uncertain_findings;
  clv_policy *policy; /* policy of the host; NULL: none */
} clv_gate;

/* Decides whether a tensor may leave the master. Callback of cleave_options.may_send, whose user is
 * the clv_gate. In order: finds the row of the tensor, compares dtype and shape, checks the
 * findings against the session's privacy, asks the policy, which counts the bytes, takes the bytes
 * from the record's allowance. If the allowance is too small, the function first writes the next
 * one and waits for the disk. A FAILURE has no row, so its bytes are only taken from the record's
 * allowance. Returns CLEAVE_OK if all checks pass. CLEAVE_DENIED: one of the checks refused the
 * tensor; error->text has the reason. Other codes: the record cannot be written. Any thread may
 * call it, but only one at a time, because next_state_flow has no lock: the runtime holds the
 * runtime's lock during the call. */
cleave_status clv_gate_check_sending(void *gate, const cleave_sending *s, cleave_error *error);

/* ---- the gate of programs on libcleave (program_gate.c) -------------------------------------- */

/* Gate of a program on libcleave: the rows (kinds of tensors) that the program has declared with
 * cleave_declare, the policy of the host and the record of the program. Not thread-safe: calls hold
 * the runtime's lock. */
typedef struct clv_program_gate clv_program_gate;

/* Makes a gate. All pointers are caller-owned and must outlive the gate. policy NULL: no policy;
 * record NULL: no record. */
clv_code clv_program_gate_new(const clv_session_config *config, clv_policy *policy,
                              clv_egress_record *record, clv_program_gate **ret,
                              clv_err *err) CLV_USE_RESULT;
void clv_program_gate_free(clv_program_gate *g); /* NULL is allowed */
/* Adds a row to the gate, as cleave_declare says. CLV_DENIED: the policy does not permit the
 * row. */
clv_code clv_program_gate_declare(clv_program_gate *g, const cleave_declaration *declaration,
                                  clv_err *err) CLV_USE_RESULT;
/* Begins an epoch of the policy's limit bytes_per_epoch. */
void clv_program_gate_begin_epoch(clv_program_gate *g);
/* Decides whether a tensor or a failure may be sent. CLEAVE_DENIED: the tensor has no row but needs
 * one, the policy does not permit the tensor, or an earlier tensor was refused. */
cleave_status clv_program_gate_check(void *gate, const cleave_sending *s, cleave_error *error);
/* True if the program has declared findings (what the tensor shows) for the tensor's row.
 * clv_program_gate_compare_findings then compares the declared findings with those that the rules
 * of master/plan give. */
bool clv_program_gate_has_declared_findings(const clv_program_gate *g, const cleave_sending *s);
/* Compares the findings that the program has declared for the tensor's row with measured_findings,
 * which the rules of master/plan give. reason: first reason for measured_findings; "": none.
 * CLEAVE_DENIED: the row declares too few findings, or more hiding layers than n_hiding_layers; no
 * tensor is sent any more. */
cleave_status clv_program_gate_compare_findings(clv_program_gate *g, const cleave_sending *s,
                                                clv_findings measured_findings,
                                                uint32_t n_hiding_layers, const char *reason,
                                                cleave_error *error);
/* Counts a tensor that is about to be sent, for the policy's epoch and in the record.
 * CLEAVE_DENIED: bytes_per_epoch is used up. Other codes: the record cannot be written. */
cleave_status clv_program_gate_charge(void *gate, const cleave_sending *s, cleave_error *error);

/* ---- the ledger (ledger.c, ledger_file.c) ----------------------------------------------------
 *
 * The ledger lists the layer keys and weights that a worker has received, over all sessions and
 * runs of this user on this host. The ledger is a file of keyed digests with mode 0600. Its folder
 * is the first of these that is set: $STATE_DIRECTORY (its first path), $XDG_STATE_HOME/cleave and
 * $HOME/.local/state/cleave. */

enum {
  CLV_LEDGER_MAX_BYTES = 64 << 20, /* largest size of the ledger's file */
  CLV_LEDGER_DIGEST_BYTES = 16,    /* bytes of the keyed digest in a line */
  CLV_LEDGER_DATE_BYTES = 11,      /* bytes of a date, "2026-11-28" with the NUL */
  CLV_LEDGER_MAX_IDENTITY = 2048,  /* bytes of an identity, NUL not counted */
  CLV_LEDGER_ROW_DIGEST_BYTES = 8, /* bytes of the keyed digest of a row */
  CLV_LEDGER_MAX_ROWS = 1 << 20,   /* most rows in the file; a file with more is compacted */
  CLV_LEDGER_MAX_COMPACTED_ROWS = 1 << 19, /* rows that a compacted file has at most */
};

typedef enum clv_ledger_kind {
  CLV_LEDGER_KEY = 1, /* key of a layer, from which initial values and dropout are drawn */
  /* name of a parameter in a run; stands for all values that the parameter learns in the run */
  CLV_LEDGER_RUN,
  CLV_LEDGER_WEIGHTS, /* values of a tensor */
  CLV_LEDGER_ROW,     /* values of a row or column of a tensor, up to a constant factor */
  CLV_LEDGER_KINDS    /* number of kinds, plus 1, because the first kind is 1 */
} clv_ledger_kind;

/* A key or a tensor that is about to be sent to a worker, in the form in which the ledger lists
 * it. */
typedef struct clv_ledger_item {
  clv_ledger_kind kind;
  clv_sha256 of;        /* digest of the key, of the parameter's name, or of the values */
  const char *identity; /* identity of the worker; caller-owned */
} clv_ledger_item;

/* Result of a search: identity of the worker that received the item first, and the date. */
typedef struct clv_ledger_entry {
  char identity[CLV_LEDGER_MAX_IDENTITY + 1], date[CLV_LEDGER_DATE_BYTES];
} clv_ledger_entry;

typedef struct clv_ledger clv_ledger; /* contents of the ledger's file when it was read */

/* Reads the ledger. A missing file reads as an empty ledger. CLV_PRECONDITION: the file cannot be
 * read; CLV_INVALID: other users may write to it; CLV_DATA_LOSS: it is damaged. The error text
 * names the file and says what helps. */
clv_code clv_ledger_open(clv_ledger **ret, clv_err *err) CLV_USE_RESULT;
clv_code clv_ledger_new(clv_ledger **ret, clv_err *err) CLV_USE_RESULT; /* an empty ledger */
/* Adds `len` bytes of a ledger's file, which follow those that the ledger has. An incomplete last
 * line is ignored, so its bytes are to be passed again when the line is complete. Errors name
 * `label` as the path, and leave a ledger that can only be freed. */
clv_code clv_ledger_extend(clv_ledger *l, const char *text, size_t len, const char *label,
                           clv_err *err) CLV_USE_RESULT;
void clv_ledger_free(clv_ledger *l); /* NULL is allowed */
void clv_ledger_freep(clv_ledger **l);
size_t clv_ledger_count(const clv_ledger *l);       /* number of items, rows included */
size_t clv_ledger_count_bytes(const clv_ledger *l); /* bytes of all complete lines */
/* Returns true if the complete lines have these bytes from byte `at` on. */
bool clv_ledger_has_bytes(const clv_ledger *l, size_t at, const char *text, size_t len);
size_t clv_ledger_count_rows(const clv_ledger *l); /* number of rows among the items */
/* Finds the worker that received an item first. *ret_found false: no worker has received the
 * item. */
clv_code clv_ledger_find(const clv_ledger *l, clv_ledger_kind kind, const clv_sha256 *of,
                         clv_ledger_entry *ret, bool *ret_found, clv_err *err) CLV_USE_RESULT;
/* Formats lines for those items that the ledger does not have yet. CLV_INVALID: an identity is too
 * long or has control characters. */
clv_code clv_ledger_format_new_lines(const clv_ledger *l, const clv_ledger_item *items, size_t n,
                                     clv_bytes *out, clv_err *err) CLV_USE_RESULT;
/* Formats a compacted ledger: it has only the first of several lines with the same kind and digest,
 * so that clv_ledger_find has the same results. If the ledger has more than
 * CLV_LEDGER_MAX_COMPACTED_ROWS rows, the compacted ledger omits a half, three quarters and so on
 * of the rows, chosen by their digests. Fewer rows of a tensor can then be recognised. */
clv_code clv_ledger_compact(clv_ledger *l, clv_bytes *out, clv_err *err) CLV_USE_RESULT;
/* Appends lines for new items to the file and returns when the lines are on the disk. Returns the
 * errors of clv_ledger_open, and CLV_PRECONDITION: the file cannot be written or locked, or is
 * full. */
clv_code clv_ledger_add(const clv_ledger_item *items, size_t n, clv_err *err) CLV_USE_RESULT;
/* Checks that lines can be added, and creates a missing file with its first line, the head line.
 * Returns the errors of clv_ledger_add. */
clv_code clv_ledger_check_writable(clv_err *err) CLV_USE_RESULT;

/* The ledger as a runtime has read it, for threads that add to it and look it up again and again.
 * Each call reads only lines that were added to the file since the last call, or all lines if the
 * file is another one. */
typedef struct clv_kept_ledger clv_kept_ledger;
clv_code clv_kept_ledger_new(clv_kept_ledger **ret, clv_err *err) CLV_USE_RESULT;
void clv_kept_ledger_free(clv_kept_ledger *k); /* NULL is allowed */
void clv_kept_ledger_freep(clv_kept_ledger **k);
/* As clv_ledger_add. */
clv_code clv_kept_ledger_add(clv_kept_ledger *k, const clv_ledger_item *items, size_t n,
                             clv_err *err) CLV_USE_RESULT;
/* Returns the ledger as the file is now, valid until clv_kept_ledger_unlock. Other threads that use
 * k wait until then. Returns the errors of clv_ledger_open; nothing is locked then. */
clv_code clv_kept_ledger_lock(clv_kept_ledger *k, const clv_ledger **ret,
                              clv_err *err) CLV_USE_RESULT;
void clv_kept_ledger_unlock(clv_kept_ledger *k);

/* ---- digests that name tensors in the ledger (weights_sample.c) ------------------------------ */

/* CLV_SAMPLE_PARTS: most parts of a sample. CLV_SAMPLE_PART_LEN: values of a part, which are
 * adjacent in the tensor. CLV_N_SPREAD_SUMS: real and imaginary parts of three complex sums. */
enum { CLV_SAMPLE_PARTS = 64, CLV_SAMPLE_PART_LEN = 64, CLV_N_SPREAD_SUMS = 6 };

/* Sums over all values of a tensor, which do not depend on the order of the values
 * (weights_sample.c). */
typedef struct clv_value_sums {
  size_t n; /* number of values added so far */
  /* real and imaginary parts of the sums over all values v, for k = 1, 2, 3 and w = 1.4:
   * z_k = sum of |v|^(i * k * w) and s_k = sum of sign(v) * |v|^(i * k * w) (weights_sample.c) */
  double unsigned_sums[CLV_N_SPREAD_SUMS], signed_sums[CLV_N_SPREAD_SUMS];
} clv_value_sums;

/* Sample of a tensor's values. The ledger derives the digests that name the tensor from this
 * sample. */
typedef struct clv_weights_sample {
  clv_dtype dtype;
  clv_shape shape;
  size_t n_values;           /* number of values of the tensor */
  size_t n_parts, part_len;  /* number of sampled parts; adjacent values in each part */
  clv_value_sums value_sums; /* sums over all values, if the sample has several parts */
  /* digests of rows and columns; NULL: no value was added yet */
  struct clv_row_digests *row_digests;
  size_t max_row_digests; /* most digests of rows, and most digests of columns */
  char values[CLV_SAMPLE_PARTS * CLV_SAMPLE_PART_LEN * sizeof(float)];
} clv_weights_sample;

/* Begins a sample; free it with clv_weights_sample_done. false: the tensor can hide nothing, since
 * its rank is below 2 or its type is no float, and there is nothing to free. */
bool clv_weights_sample_begin(clv_weights_sample *s, clv_dtype dtype, const clv_shape *shape);
/* Adds bytes of the tensor, from byte `offset` on. The caller adds each byte once, in any order. */
void clv_weights_sample_add(clv_weights_sample *s, uint64_t offset, const void *data, size_t len);
/* number of values that callers read and add at once; adding one value takes 15 ns */
enum { CLV_SAMPLE_CHUNK_VALUES = 65536 };
clv_code clv_weights_sample_digest(const clv_weights_sample *s, clv_sha256 *ret,
                                   clv_err *err) CLV_USE_RESULT;

enum { CLV_N_SPREAD_MEANS = 8 }; /* number of means that describe a distribution */

/* Description of the distribution of a tensor's values, independent of their order and scale. */
typedef struct clv_weights_moments {
  char kind[8];    /* "form": from the sample; "spread": from all values */
  size_t n_values; /* number of values of the tensor */
  /* means that describe the distribution, in units of the width of a cell (rounding interval).
   * clv_weights_moments_digest rounds the means down to whole cells, so that small differences of
   * weights do not change the digest */
  double means[CLV_N_SPREAD_MEANS];
} clv_weights_moments;

/* Computes the moments (means that describe the distribution) of the sample or, if uses_all_values,
 * of all values of the tensor. False: the values are too few or all 0, or, if uses_all_values, the
 * tensor has no more values than the sample. */
bool clv_weights_sample_moments(const clv_weights_sample *s, bool uses_all_values,
                                clv_weights_moments *ret);
/* most hashes of a tensor in the ledger: one made of its values, and one of each kind of moments
 * (form, spread) */
enum { CLV_SAMPLE_MAX_HASHES = 3 };

/* Returns the hashes under which the ledger stores a tensor that a worker has received. */
clv_code clv_weights_sample_hashes(const clv_weights_sample *s,
                                   clv_sha256 ret[CLV_SAMPLE_MAX_HASHES], size_t *ret_n,
                                   clv_err *err) CLV_USE_RESULT;
/* ---- rows of a tensor that a worker has received (row_digests.c) ----------------------------- */

enum {
  /* most rows of a tensor, and most columns, whose digests the ledger stores */
  CLV_MAX_LEDGER_ROWS_PER_TENSOR = 128,
  /* most rows of a tensor, and most columns, whose digests are looked up in the ledger */
  CLV_MAX_LOOKED_UP_ROWS_PER_TENSOR = 4096,
  /* a layer counts as known if the points (clv_row_hash_points) of those of its rows that are in
   * the ledger add up to this number */
  CLV_ROW_MIN_POINTS = 4
};

typedef struct clv_row_digests clv_row_digests;

/* Digests of the rows, or of the columns, of a tensor. The ledger recognises the rows by these. */
typedef struct clv_row_hashes {
  const clv_sha256 *hashes; /* [n], ascending, distinct; owned by the sample */
  size_t n;
} clv_row_hashes;

/* Returns the digests of the rows, or of the columns, of a tensor whose values were all added to
 * the sample; n is 0 before that. CLV_EXHAUSTED: there was no memory for the digests. */
clv_code clv_weights_sample_row_hashes(const clv_weights_sample *s, bool is_by_column,
                                       clv_row_hashes *ret, clv_err *err) CLV_USE_RESULT;
/* Returns the points of a row whose digest is in the ledger: CLV_ROW_MIN_POINTS, or 1 for a short
 * row, whose digest may be equal by chance. */
size_t clv_row_hash_points(const clv_sha256 *row_hash);
/* Frees the digests of a sample. NULL and a sample of zeros are allowed. */
void clv_weights_sample_done(clv_weights_sample *s);

/* Computes the digest of the moments after each mean is rounded down to a whole cell (rounding
 * interval). If bit i of neighbour_bits is set, mean i counts in the neighbouring cell that is
 * nearest to the mean, because rounding of the weights may have moved the mean out of that cell.
 * *ret_is_near false: a mean whose bit is set is too far from the neighbouring cell. */
clv_code clv_weights_moments_digest(const clv_weights_moments *f, unsigned neighbour_bits,
                                    clv_sha256 *ret, bool *ret_is_near,
                                    clv_err *err) CLV_USE_RESULT;

/* ---- secret weights whose values hide nothing (plain_values.c) ------------------------------- */

/* Statistics of all values of a tensor. */
typedef struct clv_plain_values {
  /* smallest effective number of values of any row, except rows of zeros. A row with the values x
   * has (sum of x^2)^2 / (sum of x^4) effective values: 1 if one value alone is not 0, n if n
   * values are equally large. */
  double min_effective_values;
  float min_value, max_value; /* smallest and largest of all values */
  uint64_t n_values;          /* number of values of the tensor */
  /* number of values of the current row so far; number of values of each row */
  size_t n_in_row, row_length;
  /* sums of squares and of 4th powers over the current row */
  double squares_sum, fourth_powers_sum;
  /* tests whether the rows are those of a well-known transform */
  struct clv_public_row_test *row_test;
} clv_plain_values;

/* Begins the statistics of a tensor of rank 1 or more without an extent of 0. Free *p with
 * clv_plain_values_done. */
clv_code clv_plain_values_begin(clv_plain_values *p, const clv_shape *shape,
                                clv_err *err) CLV_USE_RESULT;
/* Adds n values. The caller adds all values of the tensor in order. */
void clv_plain_values_add(clv_plain_values *p, const float *values, size_t n);
/* Returns why the values hide nothing, for messages; NULL: no reason was found. */
const char *clv_plain_values_reason(clv_plain_values *p);
void clv_plain_values_done(clv_plain_values *p);

/* ---- lists of ledger items, and reasons why a worker knows a layer (ledger_names.c) ---------- */

/* Keys and tensors that are added to the ledger together. A zeroed struct is an empty list. */
typedef struct clv_ledger_list {
  clv_ledger_item *items;
  size_t n, cap;
} clv_ledger_list;
void clv_ledger_list_done(clv_ledger_list *l);
/* Adds one key or tensor to the list. `identity` is not copied. */
clv_code clv_ledger_list_add(clv_ledger_list *l, const char *identity, clv_ledger_kind kind,
                             const clv_sha256 *of, clv_err *err) CLV_USE_RESULT;
/* Adds to the list all digests under which the ledger stores a tensor. Call this when all values of
 * the tensor have been added to the sample `s`. */
clv_code clv_ledger_list_add_sample(clv_ledger_list *l, const char *identity,
                                    const clv_weights_sample *s, clv_err *err) CLV_USE_RESULT;

/* Computes the digest under which the ledger stores the key of a layer of a session's network
 * (CLEAVE_SESSION_NETWORK). seed: seed of the session; node: name of a second or later graph node
 * of the layer, "" for the first. */
clv_code clv_ledger_hash_layer_key(const clv_key *seed, uint32_t layer, const char *node,
                                   clv_sha256 *ret, clv_err *err) CLV_USE_RESULT;
/* Computes the digest under which the ledger stores the key of a module outside a session's
 * network. */
clv_code clv_ledger_hash_module_key(const clv_key *key, clv_sha256 *ret,
                                    clv_err *err) CLV_USE_RESULT;

/* Append to `reason` which worker knows the layer's key, or the values of the sample, and since
 * which date: "was at 'spiffe://...' in an earlier session, by its key (2026-01-31)". Append
 * nothing if no worker knows the key or the values. */
clv_code clv_ledger_explain_known_key(const clv_ledger *l, const clv_sha256 *of, clv_bytes *reason,
                                      clv_err *err) CLV_USE_RESULT;
clv_code clv_ledger_explain_known_sample(const clv_ledger *l, const clv_weights_sample *s,
                                         clv_bytes *reason, clv_err *err) CLV_USE_RESULT;

#endif
