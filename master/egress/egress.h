/* SPDX-License-Identifier: Apache-2.0
 *
 * egress: the record of what left, DIR/egress.jsonl. It is written ahead: before the first byte of
 * a tensor leaves, an *allowance* on the disk says where such bytes may go and how many at most.
 * What left under it *settles* it afterwards. An allowance that nothing settles counts in full, so
 * the record never says less than what left, whatever ended the process or the machine.
 *
 * The file has a JSON object a line, with the keys of its event in the order of the table in
 * record_line.c. Each line names its attempt; those of commands that run at once stand between each
 * other. A last line that was cut short is no line. A file that was removed takes no lines: then
 * nothing may leave.
 *
 * Threads: clv_egress_charge may be called by any; the rest of a record belongs to one.
 */
#ifndef CLEAVE_EGRESS_H
#define CLEAVE_EGRESS_H

#include "common/base/base.h"
#include "common/base/tensor/tensor.h"
#include "common/model/config/config.h"
#include "master/api/api.h"

#define CLV_EGRESS_FILE "egress.jsonl"
#define CLV_EGRESS_MASTER "master" /* as `from`; workers have their names */

enum {
  CLV_EGRESS_VERSION = 1,
  CLV_EGRESS_MAX_NAME = 128,       /* bytes of a text, NUL not counted; as the next */
  CLV_EGRESS_MAX_TEXT = 256,       /* paths and identities; cut at their front */
  CLV_EGRESS_MAX_LINE = 8192,      /* bytes of a line */
  CLV_EGRESS_MAX_ROWS = 65536,     /* of a book; as the next */
  CLV_EGRESS_MAX_STEPS = 64,       /* that an allowance covers at most */
  CLV_EGRESS_ALLOWANCE_MS = 10000, /* after which what is left of one is taken back */
};

/* ---- lines ----------------------------------------------------------------------------------- */

typedef enum clv_egress_event {
  CLV_EGRESS_ATTEMPT = 1, /* a command began */
  CLV_EGRESS_ALLOW,       /* these bytes may leave from here on */
  CLV_EGRESS_SETTLE,      /* this is what did */
  CLV_EGRESS_HOP,         /* what a worker says that it sent to another one */
  CLV_EGRESS_LOOK,        /* what was read of a few records, before anything left */
  CLV_EGRESS_END,         /* the command ended in good order; all is settled */
  CLV_EGRESS_EVENTS
} clv_egress_event;

typedef enum clv_egress_kind {
  CLV_EGRESS_INPUT = 1, /* "input": records as they are, or where nothing has mixed them */
  CLV_EGRESS_TOKENS,    /* "tokens": one vector each; a word of the record alone, no row has it */
  CLV_EGRESS_LABELS,
  CLV_EGRESS_ACTIVATION,
  CLV_EGRESS_GRADIENT,
  CLV_EGRESS_WEIGHTS, /* parameters and buffers, by name */
  CLV_EGRESS_STATE,   /* of an optimiser, by name */
  CLV_EGRESS_FAILURE, /* what a worker is told of one */
  CLV_EGRESS_CACHED,  /* rows of activations that it keeps on its disk, and their numbers */
  CLV_EGRESS_KINDS
} clv_egress_kind;

const char *clv_egress_kind_name(clv_egress_kind kind); /* "activation" */
/* WEIGHTS or STATE, which are sent by name and have no samples. */
bool clv_egress_is_state(clv_egress_kind kind);

/* Which tensors; two allowances are of one row when all of this is equal. */
typedef struct clv_egress_key {
  /* "master", or the worker that sends: what the master had planned and no gate has seen */
  char from[CLV_EGRESS_MAX_NAME + 1];
  /* of the worker that receives */
  char to[CLV_EGRESS_MAX_NAME + 1], identity[CLV_EGRESS_MAX_TEXT + 1];
  uint64_t kind;                       /* clv_egress_kind */
  char stage[CLV_EGRESS_MAX_NAME + 1]; /* whose input, output or state it is */
  char name[CLV_EGRESS_MAX_NAME + 1];  /* of WEIGHTS and STATE; else "" */
  char dtype[8];
  clv_shape shape; /* of a sample, without the batch; WEIGHTS and STATE: of the tensor */
  bool random;     /* made of random numbers in place of records (trials of micro_batches: auto) */
} clv_egress_key;

typedef struct clv_egress_line {
  clv_egress_event event;
  char at[32];      /* "2026-01-31T12:00:00.000Z" */
  uint64_t attempt; /* 1.. */
  union {
    struct {
      uint64_t version;
      char command[16]; /* train, eval, predict */
      char session[CLV_EGRESS_MAX_NAME + 1], run[CLV_EGRESS_MAX_TEXT + 1];
      char policy[CLV_EGRESS_MAX_TEXT + 1], policy_sha256[65]; /* its file; "": there is none */
      char approver[CLV_EGRESS_MAX_TEXT + 1];                  /* who signed it; "": nobody */
      char table_sha256[65];                                   /* of egress.table as it is now */
      uint64_t cut; /* bytes of a last line that was cut short, taken away */
    } begun;
    struct {
      uint64_t id; /* 1.., of the attempt */
      clv_egress_key what;
      uint64_t bytes; /* at most */
      char until[32]; /* about then what is not used is taken back, if it has not been before */
    } allow;
    struct {
      uint64_t id, tensors, bytes;
    } settle;
    struct {
      char from[CLV_EGRESS_MAX_NAME + 1], to[CLV_EGRESS_MAX_NAME + 1];
      uint64_t bytes; /* of messages and all that they carry */
      char by[16];    /* "worker": it says so itself */
    } hop;
    struct {
      uint64_t records; /* that were looked at */
      /* "0.82", "not applicable", "not looked at"; the last two "" in records before 0.9 */
      char pixels[16], tokens[16], labels[16], features[16], groups[16];
    } look;
    struct {
      uint64_t code;           /* exit code of the command */
      uint64_t tensors, bytes; /* that left the master in this attempt */
    } end;
  };
} clv_egress_line;

/* One line, without its end; CLV_DATA_LOSS says where it is wrong. What is taken is formatted as
 * the same text again. */
clv_code clv_egress_line_parse(const char *text, size_t len, clv_egress_line *ret,
                               clv_err *err) CLV_USE_RESULT;
/* With its end. */
void clv_egress_line_format(const clv_egress_line *l, clv_bytes *out);

/* ---- writing --------------------------------------------------------------------------------- */

/* The record of one command. */
typedef struct clv_egress_record clv_egress_record;
/* The tensors of one row, with the bytes that may still leave. It is the record's. */
typedef struct clv_egress_flow clv_egress_flow;

/* Begins an attempt at the end of the file, which is made if it is not there; about: the `begun` of
 * it. A last line that was cut short is taken away. CLV_DATA_LOSS: what is there is no record.
 * Starts a thread. */
clv_code clv_egress_open(const char *path, const clv_egress_line *about, clv_egress_record **ret,
                         clv_err *err) CLV_USE_RESULT;
/* Settles all, writes the end, and frees the record whatever it returns. NULL is allowed. Nobody
 * may take any more. */
clv_code clv_egress_close(clv_egress_record *r, uint64_t exit_code, clv_err *err);

/* once: each expectation is for one tensor; else allowances are renewed ahead as they are used. */
clv_code clv_egress_flow_new(clv_egress_record *r, const clv_egress_key *what, bool once,
                             clv_egress_flow **ret, clv_err *err) CLV_USE_RESULT;
/* A step, a batch of an evaluation or the tensor has so many bytes of it, from now on. */
void clv_egress_expect(clv_egress_flow *f, uint64_t step_bytes);
/* BLOCKS for a write and an fdatasync. Allows all that is expected and not allowed yet. */
clv_code clv_egress_write_ahead(clv_egress_record *r, clv_err *err) CLV_USE_RESULT;

/* Before a tensor leaves. BLOCKS, as clv_egress_write_ahead does, only where nothing was expected
 * or its allowance has become old; takes no memory and no lock otherwise. An error: the record
 * cannot be written, now or ever again, and the tensor must stay. */
clv_code clv_egress_charge(clv_egress_flow *f, uint64_t bytes, clv_err *err) CLV_USE_RESULT;

/* What the look has read: a LOOK. Before the first allowance. */
void clv_egress_record_look(clv_egress_record *r, const clv_egress_line *look);

/* What worker `from` says that it has sent to `to`, messages included. */
void clv_egress_record_hop(clv_egress_record *r, const char *from, const char *to, uint64_t bytes);

/* ---- reading --------------------------------------------------------------------------------- */

typedef struct clv_egress_attempt {
  clv_egress_line begun;
  bool looked;              /* `look` is there */
  clv_egress_line look;     /* a LOOK */
  bool ended;               /* `end` is there; else it runs, or was cut off */
  clv_egress_line end;      /* an END */
  uint64_t bytes;           /* that left the master: settled, or allowed and not settled */
  uint64_t open;            /* of these: not settled */
  uint64_t tensors;         /* settled ones */
  uint64_t last_id, n_open; /* allowances: number of the last; not settled */
} clv_egress_attempt;

/* One kind of tensor of one attempt. */
typedef struct clv_egress_row_sum {
  size_t attempt; /* index */
  clv_egress_key what;
  uint64_t tensors, settled; /* bytes that left */
  uint64_t open;             /* bytes that may have left besides: allowed and not settled */
  char first[32], last[32];  /* when the first allowance was written, and the last line */
} clv_egress_row_sum;

typedef struct clv_egress_hop_sum {
  size_t attempt; /* index */
  clv_egress_line line;
} clv_egress_hop_sum;

typedef struct clv_egress_summary {
  clv_egress_attempt *attempts;
  clv_egress_row_sum *rows; /* in the order of their first allowance */
  clv_egress_hop_sum *hops;
  size_t n_attempts, n_rows, n_hops;
  uint64_t total; /* bytes that left the master in all attempts */
  size_t whole;   /* bytes of whole lines; what follows was cut short */
  size_t cut;     /* bytes of it */
} clv_egress_summary;

/* The record of a run folder. CLV_NOT_FOUND: there is none; CLV_DATA_LOSS with path and line. */
clv_code clv_egress_read(const char *path, clv_egress_summary *ret, clv_err *err) CLV_USE_RESULT;
/* The same of text; `label` names it. */
clv_code clv_egress_read_text(const void *data, size_t len, const char *label,
                              clv_egress_summary *ret, clv_err *err) CLV_USE_RESULT;
void clv_egress_summary_done(clv_egress_summary *b); /* frees and zeroes */

/* ---- the page -------------------------------------------------------------------------------- */

typedef enum clv_egress_format {
  CLV_EGRESS_PLAIN_TEXT,
  CLV_EGRESS_HTML,
  CLV_EGRESS_JSON
} clv_egress_format;

/* What left, to whom, when and by which policy, for the person who answers for it: text for a
 * terminal, one HTML file that refers to nothing else, or one JSON object a line. run names it. The
 * book may be anybody's: its texts are shown without control characters, and escaped. */
clv_code clv_egress_page(const clv_egress_summary *b, const char *run, clv_egress_format form,
                         clv_bytes *out, clv_err *err) CLV_USE_RESULT;

/* ---- what a tensor shows (findings.c) -------------------------------------------------------- */

/* One finding: what a tensor that leaves shows of records or labels to a worker that knows the
 * session file. Each is a bit, a worse one is greater. Plan, gate, policy and record use this type;
 * master/plan/privacy.c says which layers hide something. */
typedef enum clv_finding {
  CLV_FINDING_MIXED = 0,            /* no finding, which is never proof of safety */
  CLV_FINDING_PICTURE = 1,          /* an element is made of fewer than half of the places */
  CLV_FINDING_FRONT_KNOWN = 2,      /* on some path only layers with known weights mix */
  CLV_FINDING_TOKENS = 4,           /* one vector per token */
  CLV_FINDING_RAW_INPUT = 8,        /* on some path nothing mixes */
  CLV_FINDING_LABELS_READABLE = 16, /* a gradient from which a label can be read off */
  CLV_FINDING_LABELS = 32,
} clv_finding;

/* A set of findings. Of two sets the one with the worse finding is the greater number. */
typedef unsigned clv_findings;
enum { CLV_FINDINGS_TEXT = 80 }; /* bytes of the words of a set, with NUL */

/* The words of a set, the worst first: "RAW INPUT, PICTURE"; "" for the empty set. Returns buf. */
const char *clv_findings_words(clv_findings f, char buf[CLV_FINDINGS_TEXT]);
clv_finding clv_findings_worst(clv_findings f);
/* The findings that `privacy` in the session does not permit; 0: none. */
clv_findings clv_privacy_forbidden_findings(const clv_session_config *c, clv_findings f);

/* ---- the policy ------------------------------------------------------------------------------ */

#define CLV_POLICY_FOLDER "/etc/cleave"
#define CLV_POLICY_FILE "egress.policy.yaml"
#define CLV_POLICY_SIGNATURE CLV_POLICY_FILE ".sig"
#define CLV_POLICY_CA "approver-ca.pem"

/* What whoever answers for the data permits to leave. Everything else is refused. */
typedef struct clv_policy clv_policy;

#define CLV_POLICY_NO_PATH UINT32_MAX

typedef struct clv_policy_tensor {
  const char *name; /* for messages */
  clv_egress_kind kind;
  clv_findings shows;
  /* hiding layers at the master, of records or labels, on the path with the fewest; of what shows
   * neither: CLV_POLICY_NO_PATH */
  uint32_t layers_at_home;
  const char *worker, *identity; /* of whoever receives */
  clv_dtype dtype;
  clv_shape shape; /* with the samples, of which WEIGHTS and STATE have none */
} clv_policy_tensor;

/* The policy of this host; *ret NULL: there is none. It binds if root owns it and its folder and
 * nobody else may write there; run as root, if it is signed too (common/net/tls says how) by
 * somebody under CLV_POLICY_CA. CLV_INVALID: it is there, and is not in order. No environment,
 * option or session moves it. */
clv_code clv_policy_find(clv_policy **ret, clv_err *err) CLV_USE_RESULT;
void clv_policy_free(clv_policy *p); /* NULL is allowed, as in the next three */
void clv_policy_freep(clv_policy **p);

/* For `plan` and for the record: its path, the SHA-256 of its bytes, who signed it; "" each without
 * one. */
const char *clv_policy_path(const clv_policy *p);
const char *clv_policy_sha256(const clv_policy *p);
const char *clv_policy_approver(const clv_policy *p); /* "": nobody */

/* Before anything is sent. CLV_INVALID: what is not permitted, with the line of the policy. A NULL
 * policy permits everything, as in the next two. */
clv_code clv_policy_check_tensor(const clv_policy *p, const clv_policy_tensor *t,
                                 clv_err *err) CLV_USE_RESULT;
/* bytes: that an epoch will take. */
clv_code clv_policy_check_epoch(const clv_policy *p, uint64_t bytes, clv_err *err) CLV_USE_RESULT;

/* What a look has read of what leaves. */
typedef struct clv_policy_reading {
  int reader;      /* 0 pixels, 1 tokens, 2 labels, 3 features, 4 groups of labels */
  double figure;   /* 0..1; negative: it was not looked at */
  const char *why; /* it was not */
} clv_policy_reading;
clv_code clv_policy_check_reading(const clv_policy *p, const clv_policy_reading *r,
                                  clv_err *err) CLV_USE_RESULT;
/* What the reader may read at most; 1 without a limit or a policy. */
double clv_policy_max_read(const clv_policy *p, int reader);

/* An epoch begins, of which so many bytes have left already. */
void clv_policy_begin_epoch(clv_policy *p, uint64_t bytes);
/* A tensor is about to leave: it is permitted, and the bytes of its epoch with it. What is refused
 * is not counted. Any thread. */
clv_code clv_policy_charge(clv_policy *p, const clv_policy_tensor *t, uint64_t bytes,
                           clv_err *err) CLV_USE_RESULT;
/* Whether clv_policy_charge has refused a tensor, so that the configuration ended the run. */
bool clv_policy_has_refused(const clv_policy *p);

/* ---- rows of the egress table (table_row.c) -------------------------------------------------- */

#define CLV_LOSS_NAME "(loss)" /* module of the loss; no stage may be called so */

/* One tensor that the master sends, per micro-batch. The blueprint sets kind and shows once; plan,
 * policy, gate and record read them here. */
typedef struct clv_egress_row {
  char name[160]; /* "activation of stage 'a' (layer 2)" */
  /* what crosses: INPUT, LABELS, ACTIVATION, GRADIENT, WEIGHTS (of state, too) or CACHED */
  clv_egress_kind kind;
  clv_findings shows;
  clv_findings looked; /* those of them that the look alone has found */
  uint32_t stage;      /* index of the module in the session, the loss behind the last */
  uint32_t input;      /* INPUT, LABELS: of the module, in its order; CACHED: 1, numbers of rows */
  uint32_t n_values;   /* of a cut: the values that cross it together */
  int worker;          /* index of the receiver in the session's workers */
  clv_dtype dtype;
  clv_shape shape;         /* dim 0 is the largest micro-batch; WEIGHTS: [] */
  uint64_t bytes_per_step; /* all micro-batches of a full step; WEIGHTS: once, when pushed */
  int64_t places;          /* of clv_node: packed sequences have so many rows at most */
  bool relayed;            /* received from another worker, and passed on */
  uint32_t layers_at_home; /* hiding layers on its shortest path; or CLV_POLICY_NO_PATH */
} clv_egress_row;

/* The word of the record for what crosses and what it shows: an activation that shows RAW INPUT is
 * "input", one that shows TOKENS "tokens". Policies match the kind itself. */
clv_egress_kind clv_egress_record_kind(clv_egress_kind kind, clv_findings shows);
/* The row as a policy sees it. The texts are the row's and the session's. */
clv_policy_tensor clv_egress_row_tensor(const clv_session_config *c, const clv_egress_row *r);

/* ---- the gate (gate.c) ----------------------------------------------------------------------- */

/* The record's flow of the tensors of a row, and their sizes. */
typedef struct clv_row_flow {
  clv_egress_flow *flow; /* NULL: WEIGHTS, whose pieces have one each */
  uint64_t sample_bytes; /* bytes of a sample; of packed sequences at most */
  uint64_t place_bytes;  /* bytes of a place of packed sequences; 0: they are not packed */
} clv_row_flow;

/* The record's flow of one piece of a stage's state. */
typedef struct clv_state_flow {
  clv_egress_flow *flow;
  uint32_t stage;
  bool optimizer; /* state of the optimiser, no parameter */
  char name[CLV_EGRESS_MAX_NAME + 1];
} clv_state_flow;

/* What the gate compares a tensor with. All is the caller's, and set before a tensor is sent. */
typedef struct clv_gate {
  const clv_session_config *config;
  const clv_egress_row *rows; /* [n_rows] the egress table */
  size_t n_rows;
  clv_row_flow *flows;        /* [n_rows] */
  clv_egress_flow **failures; /* [config->n_workers] what each is sent of failures; NULL: nothing */
  clv_state_flow *states;     /* [n_states] pieces of state that are expected */
  size_t n_states, next_state; /* next_state: where the search begins, as pieces come in order */
  int64_t max_samples;         /* of a tensor */
  clv_findings uncertain;      /* of the look, which are printed and bind no session key */
  clv_policy *policy;          /* NULL: no policy */
} clv_gate;

/* Decides whether a tensor leaves the master: finds its row, compares dtype and shape, asks the
 * session's privacy, asks the policy, takes the bytes from the record's allowance. CLEAVE_DENIED
 * with the reason; the code of the record when that cannot be written. For cleave_options.may_send
 * with a clv_gate as user. Any thread. */
cleave_status clv_gate_may_send(void *gate, const cleave_sending *s, cleave_error *error);

/* ---- the ledger (ledger.c, ledger_file.c) ----------------------------------------------------
 *
 * Which layers' keys and weights have reached a worker, in sessions and runs of this user on this
 * host. A file of digests, of mode 0600, in the first of these folders that is named: the first of
 * $STATE_DIRECTORY, $XDG_STATE_HOME/cleave, $HOME/.local/state/cleave. */

enum {
  CLV_LEDGER_MAX_BYTES = 64 << 20, /* of the file at most */
  CLV_LEDGER_MARK_BYTES = 16,      /* bytes that tell keys and tensors apart */
  CLV_LEDGER_DATE_BYTES = 11,      /* "2026-11-28" with the NUL */
  CLV_LEDGER_MAX_IDENTITY = 2048,  /* bytes of an identity, NUL not counted */
};

typedef enum clv_ledger_kind {
  CLV_LEDGER_KEY = 1, /* the key of a layer: its first values and its dropout */
  CLV_LEDGER_RUN,     /* a parameter in a run, whatever it has learned since */
  CLV_LEDGER_WEIGHTS, /* values of a tensor */
  CLV_LEDGER_KINDS
} clv_ledger_kind;

/* What is going to reach a worker. */
typedef struct clv_ledger_item {
  clv_ledger_kind kind;
  clv_sha256 of;        /* digest that names the key, parameter or tensor */
  const char *identity; /* of the worker; borrowed */
} clv_ledger_item;

/* What the ledger says: who had it first, and when. */
typedef struct clv_ledger_entry {
  char identity[CLV_LEDGER_MAX_IDENTITY + 1], date[CLV_LEDGER_DATE_BYTES];
} clv_ledger_entry;

typedef struct clv_ledger clv_ledger; /* as it was when it was read */

/* Reads the ledger; a file that is missing is an empty one. CLV_PRECONDITION: it cannot be read;
 * CLV_INVALID: others may write to it; CLV_DATA_LOSS: it is damaged. Texts name the file and what
 * helps. */
clv_code clv_ledger_open(clv_ledger **ret, clv_err *err) CLV_USE_RESULT;
/* Of [len] bytes; label stands for the path. *ret_whole: bytes of whole lines; a last one may be
 * cut short. */
clv_code clv_ledger_parse(const char *text, size_t len, const char *label, clv_ledger **ret,
                          size_t *ret_whole, clv_err *err) CLV_USE_RESULT;
void clv_ledger_free(clv_ledger *l); /* NULL is allowed */
void clv_ledger_freep(clv_ledger **l);
size_t clv_ledger_count(const clv_ledger *l); /* lines but the first */
clv_code clv_ledger_find(const clv_ledger *l, clv_ledger_kind kind, const clv_sha256 *of,
                         clv_ledger_entry *ret, bool *ret_found, clv_err *err) CLV_USE_RESULT;
/* Lines for the items that are not there yet. CLV_INVALID: an identity that fits no line. */
clv_code clv_ledger_format_new(const clv_ledger *l, const clv_ledger_item *items, size_t n,
                               clv_bytes *out, clv_err *err) CLV_USE_RESULT;
/* All of the ledger that clv_ledger_find tells: of each kind and mark the first line. */
clv_code clv_ledger_compact(const clv_ledger *l, clv_bytes *out, clv_err *err) CLV_USE_RESULT;
/* Adds them to the file and waits for the disk. Errors as of clv_ledger_open, and
 * CLV_PRECONDITION: the file cannot be written or locked, or is full. */
clv_code clv_ledger_add(const clv_ledger_item *items, size_t n, clv_err *err) CLV_USE_RESULT;
/* Can lines be added? A file that is missing gets its first line; errors as of clv_ledger_add. */
clv_code clv_ledger_check_writable(clv_err *err) CLV_USE_RESULT;

#endif
