/* SPDX-License-Identifier: Apache-2.0
 *
 * What two runs of a program must have in common.
 */
#ifndef CLEAVE_SIMULATE_JUDGE_H
#define CLEAVE_SIMULATE_JUDGE_H

#include "tests/simulate/world.h"

/* The same statuses and numbers; otherwise the first difference in text. */
bool sim_same(const sim_record *wanted, const sim_record *got, char *text, size_t len);
/* `got` is the run of `wanted` with the fault in it. */
bool sim_judge(const sim_record *wanted, const sim_record *got, const sim_fault *fault, char *text,
               size_t len);

#endif
