/* SPDX-License-Identifier: Apache-2.0
 *
 * The inside of the record: line.c has what a line is, read.c sums lines up, record.c writes ahead
 * and settles.
 */
#ifndef CLEAVE_EGRESS_INT_H
#define CLEAVE_EGRESS_INT_H

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

#endif
