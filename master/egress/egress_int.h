/* SPDX-License-Identifier: Apache-2.0
 *
 * egress_int: internals of the record and the policy. Record: record_line.c parses and formats a
 * line, record_summary.c sums up the lines of a file, record.c writes allowances ahead and settles
 * them, page.c and page_formats.c write the report. Policy: policy_file.c finds and opens the
 * policy, policy.c checks tensors against it.
 */
#ifndef CLEAVE_EGRESS_INT_H
#define CLEAVE_EGRESS_INT_H

#include "common/model/config/config.h"
#include "master/egress/egress.h"

/* Returns true if all fields of both keys are equal. */
bool egress_is_same_key(const clv_egress_key *a, const clv_egress_key *b);

/* Calls fn with each complete line of the text, without the newline. An error of fn stops the loop
 * and is prefixed with `label` and the line number. *ret_complete_bytes: bytes of the complete
 * lines. */
typedef clv_code egress_line_fn(void *user, const char *line, size_t len, clv_err *err);
clv_code egress_for_each_line(const char *text, size_t len, const char *label, egress_line_fn *fn,
                              void *user, size_t *ret_complete_bytes, clv_err *err) CLV_USE_RESULT;

/* Takes back the unused bytes of old allowances and writes the allowances (grants of bytes) that
 * the record's flows need. The record's thread calls it each time it wakes. Returns the clv_now_ns
 * time at which the thread must wake again. */
uint64_t egress_renew_allowances(clv_egress_record *r);

/* Reads the present contents of a record's file. A run may append lines at the same time. */
clv_code egress_read_file(int fd, const char *path, clv_bytes *ret, clv_err *err) CLV_USE_RESULT;

/* ---- page, the report of an egress record (page.c; page_formats.c writes it) ----------------- */

/* A line of the page, the report of an egress record. Rows of weights or state that differ
 * only in name, dtype and shape are joined to one line. */
typedef struct egress_page_row {
  size_t attempt;            /* index in `attempts` of the summary */
  const clv_egress_key *key; /* key of the first row that was joined to the line */
  uint64_t n_rows;           /* number of rows that were joined to the line */
  uint64_t n_tensors, settled_bytes,
      unsettled_bytes; /* sums over the rows that were joined, as in clv_egress_row_sum */
  const char *first_time, *last_time; /* earliest and latest time of the rows that were joined */
} egress_page_row;

/* most receivers that the page lists; the others share one line */
enum { EGRESS_MAX_RECEIVERS = 256 };

typedef struct egress_receiver {
  const char *name, *identity;
  uint64_t settled_bytes, unsettled_bytes; /* bytes, as in clv_egress_row_sum */
} egress_receiver;

typedef struct egress_page {
  const clv_egress_summary *summary;
  const char *run;
  egress_page_row *rows;           /* [n_rows] lines of the page, sorted by attempt */
  const clv_egress_hop_sum **hops; /* [summary->n_hops] direct transfers, by attempt */
  size_t n_rows, n_receivers;
  egress_receiver receivers[EGRESS_MAX_RECEIVERS +
                            1]; /* last element: the sum of the receivers that are not listed */
} egress_page;

/* Format texts that are the same in the text, HTML and JSON page (page_texts.c). The caller escapes
 * the texts. */
void egress_format_tensor_name(const egress_page_row *r, clv_bytes *out);
void egress_format_bytes(uint64_t settled_bytes, uint64_t unsettled_bytes, clv_bytes *out);
void egress_format_time(const clv_egress_attempt *a, clv_bytes *out);
void egress_format_policy(const clv_egress_attempt *a, clv_bytes *out);
void egress_format_look(const clv_egress_attempt *a, clv_bytes *out);

void egress_write_text_page(const egress_page *p, clv_bytes *out);
void egress_write_html_page(const egress_page *p, clv_bytes *out);
void egress_write_json_page(const egress_page *p, clv_bytes *out);

/* ---- digests of rows, for the ledger (row_digests.c) ----------------------------------------- */

/* Adds values of a sample to the digests of its rows (row_digests.c). */
void clv_row_digests_add(clv_weights_sample *s, uint64_t offset, const void *data, size_t len);
void clv_row_digests_free(clv_row_digests *d); /* NULL is allowed */

/* ---- rows of weights that anybody knows (public_rows.c) -------------------------------------- */

/* Test whether the rows of a tensor follow from a few numbers, as those of a Hadamard or cosine
 * transform do, so that anybody may know them. The caller adds all values, then asks for the
 * result. */
typedef struct clv_public_row_test clv_public_row_test;
clv_code clv_public_row_test_new(size_t n_rows, size_t n_columns, clv_public_row_test **ret,
                                 clv_err *err) CLV_USE_RESULT;
/* Adds n values of the tensor. The caller adds all values in order. */
void clv_public_row_test_add(clv_public_row_test *t, const float *values, size_t n);
/* Returns true if the rows follow from a few numbers. */
bool clv_public_row_test_is_public(clv_public_row_test *t);
void clv_public_row_test_freep(clv_public_row_test **t);

/* ---- the policy of the host ------------------------------------------------------------------ */

struct clv_policy {
  clv_policy_config *config;
  char sha256[65];
  char approver[CLV_EGRESS_MAX_TEXT + 1];
  uint64_t sent_bytes; /* bytes charged in this epoch; atomic */
  bool has_refused;    /* true after clv_policy_charge has refused a tensor; atomic */
};

/* As clv_policy_find, but opens the policy of the folder at `path`. needs_signature: a policy
 * without a signature is an error. */
clv_code clv_policy_open(const char *path, bool needs_signature, clv_policy **ret,
                         clv_err *err) CLV_USE_RESULT;

#endif
