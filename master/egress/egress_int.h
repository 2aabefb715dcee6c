/* SPDX-License-Identifier: Apache-2.0
 *
 * The inside of the record: line.c has what a line is, read.c sums lines up, record.c writes ahead
 * and settles, page.c shows it. And of the policy: policy_file.c finds it, policy.c judges.
 */
#ifndef CLEAVE_EGRESS_INT_H
#define CLEAVE_EGRESS_INT_H

#include "common/model/config/config.h"
#include "master/egress/egress.h"

/* Are they of one row? */
bool egress_same(const clv_egress_what *a, const clv_egress_what *b);

/* Every whole line without its end. An error is prefixed with its number. */
typedef clv_code egress_line_fn(void *user, const char *line, size_t len, clv_err *err);
clv_code egress_each(const char *text, size_t len, const char *label, egress_line_fn *fn,
                     void *user, size_t *ret_whole, clv_err *err) CLV_USE_RESULT;

/* What the thread of a record does when it wakes: takes old allowances back and writes the next
 * ones. When it is to wake again, by clv_now_ns. */
uint64_t egress_tick(clv_egress_record *r);

/* What the file has now; a run may be writing on. */
clv_code egress_load(int fd, const char *path, clv_bytes *ret, clv_err *err) CLV_USE_RESULT;

/* ---- page (page.c; page_forms.c writes it) --------------------------------------------------- */

/* A line of the page: rows of weights that differ by name alone are one. */
typedef struct egress_shown {
  size_t attempt; /* index */
  const clv_egress_what *what;
  uint64_t names, tensors, settled, open;
  const char *first, *last;
} egress_shown;

enum { EGRESS_PARTIES = 256 }; /* workers with a line of their own */

typedef struct egress_party {
  const char *name, *identity;
  uint64_t settled, open;
} egress_party;

typedef struct egress_page {
  const clv_egress_book *book;
  const char *run;
  egress_shown *rows;              /* by attempt, as the next */
  const clv_egress_hop_sum **hops; /* [book->n_hops] */
  size_t n_rows, n_parties;
  egress_party parties[EGRESS_PARTIES + 1]; /* the last: all others */
} egress_page;

/* What is said in any form, without escapes. */
void egress_format_what(const egress_shown *r, clv_bytes *out);
void egress_format_bytes(uint64_t settled, uint64_t open, clv_bytes *out);
void egress_format_time(const clv_egress_attempt *a, clv_bytes *out);
void egress_format_policy(const clv_egress_attempt *a, clv_bytes *out);
void egress_format_look(const clv_egress_attempt *a, clv_bytes *out);

void egress_page_text(const egress_page *p, clv_bytes *out);
void egress_page_html(const egress_page *p, clv_bytes *out);
void egress_page_json(const egress_page *p, clv_bytes *out);

/* ---- policy ---------------------------------------------------------------------------------- */

struct clv_policy {
  clv_policy_config *config;
  char sha256[65];
  char approver[CLV_EGRESS_TEXT + 1];
  uint64_t left;    /* bytes of this epoch; atomic */
  bool has_refused; /* a tensor at the gate; atomic */
};

/* As clv_policy_find, of a folder. signed_only: without a signature it is not in order. */
clv_code clv_policy_open(const char *folder, bool signed_only, clv_policy **ret,
                         clv_err *err) CLV_USE_RESULT;

#endif
