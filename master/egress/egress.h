/* SPDX-License-Identifier: Apache-2.0
 *
 * egress: the record of what left, DIR/egress.jsonl. It is written ahead: before the first byte of
 * a tensor leaves, an *allowance* on the disk says where such bytes may go and how many at most.
 * What left under it *settles* it afterwards. An allowance that nothing settles counts in full, so
 * the record never says less than what left, whatever ended the process or the machine.
 *
 * The file has a JSON object a line, with the keys of its event in the order of the table in
 * line.c. Each line names its attempt; those of commands that run at once stand between each other.
 * A last line that was cut short is no line.
 *
 * Threads: clv_egress_take may be called by any; the rest of a record belongs to one.
 */
#ifndef CLEAVE_EGRESS_H
#define CLEAVE_EGRESS_H

#include "common/base/base.h"
#include "common/tensor/tensor.h"

#define CLV_EGRESS_FILE "egress.jsonl"
#define CLV_EGRESS_MASTER "master" /* as `from`; workers have their names */

enum {
  CLV_EGRESS_VERSION = 1,
  CLV_EGRESS_NAME = 128,        /* bytes of a text, NUL not counted; as the next */
  CLV_EGRESS_TEXT = 256,        /* paths and identities; cut at their front */
  CLV_EGRESS_LINE = 8192,       /* bytes of a line */
  CLV_EGRESS_ROWS = 65536,      /* of a book; as the next */
  CLV_EGRESS_STEPS = 64,        /* that an allowance covers at most */
  CLV_EGRESS_PERIOD_MS = 10000, /* after which what is left of one is taken back */
};

/* ---- lines ----------------------------------------------------------------------------------- */

typedef enum clv_egress_event {
  CLV_EGRESS_ATTEMPT = 1, /* a command began */
  CLV_EGRESS_ALLOW,       /* these bytes may leave from here on */
  CLV_EGRESS_SETTLE,      /* this is what did */
  CLV_EGRESS_HOP,         /* what a worker says that it sent to another one */
  CLV_EGRESS_END,         /* the command ended in good order; all is settled */
  CLV_EGRESS_EVENTS
} clv_egress_event;

typedef enum clv_egress_kind {
  CLV_EGRESS_INPUT = 1, /* "input": records as they are */
  CLV_EGRESS_TOKENS,    /* "tokens": one vector each */
  CLV_EGRESS_LABELS,
  CLV_EGRESS_ACTIVATION,
  CLV_EGRESS_GRADIENT,
  CLV_EGRESS_WEIGHTS, /* parameters and buffers, by name */
  CLV_EGRESS_STATE,   /* of an optimiser, by name */
  CLV_EGRESS_FAILURE, /* what a worker is told of one */
  CLV_EGRESS_KINDS
} clv_egress_kind;

const char *clv_egress_kind_name(clv_egress_kind kind); /* "activation" */

/* Which tensors; two allowances are of one row when all of this is equal. */
typedef struct clv_egress_what {
  char from[CLV_EGRESS_NAME + 1]; /* "master", or the worker that sends: what the master had planned
                                     and no gate has seen */
  char to[CLV_EGRESS_NAME + 1], identity[CLV_EGRESS_TEXT + 1]; /* of the worker that receives */
  uint64_t kind;                                               /* clv_egress_kind */
  char stage[CLV_EGRESS_NAME + 1]; /* whose input, output or state it is */
  char name[CLV_EGRESS_NAME + 1];  /* of WEIGHTS and STATE; else "" */
  char dtype[8];
  clv_shape shape; /* of a sample, without the batch; WEIGHTS and STATE: of the tensor */
  bool random;     /* made of random numbers in place of records (trials of micro_batches: auto) */
} clv_egress_what;

typedef struct clv_egress_line {
  clv_egress_event event;
  char at[32];      /* "2026-01-31T12:00:00.000Z" */
  uint64_t attempt; /* 1.. */
  union {
    struct {
      uint64_t version;
      char command[16]; /* train, eval, predict */
      char session[CLV_EGRESS_NAME + 1], run[CLV_EGRESS_TEXT + 1];
      char policy[CLV_EGRESS_TEXT + 1], policy_sha256[65]; /* its file; "": there is none */
      char approver[CLV_EGRESS_TEXT + 1];                  /* who signed it; "": nobody */
      char table_sha256[65];                               /* of egress.table as it is now */
      uint64_t cut; /* bytes of a last line that was cut short, taken away */
    } begun;
    struct {
      uint64_t id; /* 1.., of the attempt */
      clv_egress_what what;
      uint64_t bytes; /* at most */
      char until[32]; /* about then what is not used is taken back, if it has not been before */
    } allow;
    struct {
      uint64_t id, tensors, bytes;
    } settle;
    struct {
      char from[CLV_EGRESS_NAME + 1], to[CLV_EGRESS_NAME + 1];
      uint64_t bytes; /* of messages and all that they carry */
      char by[16];    /* "worker": it says so itself */
    } hop;
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
clv_code clv_egress_flow_new(clv_egress_record *r, const clv_egress_what *what, bool once,
                             clv_egress_flow **ret, clv_err *err) CLV_USE_RESULT;
/* A step, a batch of an evaluation or the tensor has so many bytes of it, from now on. */
void clv_egress_expect(clv_egress_flow *f, uint64_t step_bytes);
/* BLOCKS for a write and an fdatasync. Allows all that is expected and not allowed yet. */
clv_code clv_egress_ahead(clv_egress_record *r, clv_err *err) CLV_USE_RESULT;

/* Before a tensor leaves. BLOCKS, as clv_egress_ahead does, only where nothing was expected or its
 * allowance has become old; takes no memory and no lock otherwise. An error: the record cannot be
 * written, now or ever again, and the tensor must stay. */
clv_code clv_egress_take(clv_egress_flow *f, uint64_t bytes, clv_err *err) CLV_USE_RESULT;

/* What worker `from` says that it has sent to `to`, messages included. */
void clv_egress_hop(clv_egress_record *r, const char *from, const char *to, uint64_t bytes);

/* ---- reading --------------------------------------------------------------------------------- */

typedef struct clv_egress_attempt {
  clv_egress_line begun;
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
  clv_egress_what what;
  uint64_t tensors, settled; /* bytes that left */
  uint64_t open;             /* bytes that may have left besides: allowed and not settled */
  char first[32], last[32];  /* when the first allowance was written, and the last line */
} clv_egress_row_sum;

typedef struct clv_egress_hop_sum {
  size_t attempt; /* index */
  clv_egress_line line;
} clv_egress_hop_sum;

typedef struct clv_egress_book {
  clv_egress_attempt *attempts;
  clv_egress_row_sum *rows; /* in the order of their first allowance */
  clv_egress_hop_sum *hops;
  size_t n_attempts, n_rows, n_hops;
  uint64_t total; /* bytes that left the master in all attempts */
  size_t whole;   /* bytes of whole lines; what follows was cut short */
  size_t cut;     /* bytes of it */
} clv_egress_book;

/* The record of a run folder. CLV_NOT_FOUND: there is none; CLV_DATA_LOSS with path and line. */
clv_code clv_egress_read(const char *path, clv_egress_book *ret, clv_err *err) CLV_USE_RESULT;
/* The same of text; `label` names it. */
clv_code clv_egress_read_text(const void *data, size_t len, const char *label, clv_egress_book *ret,
                              clv_err *err) CLV_USE_RESULT;
void clv_egress_book_done(clv_egress_book *b); /* frees and zeroes */

#endif
