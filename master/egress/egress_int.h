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

#endif
