/* SPDX-License-Identifier: Apache-2.0
 *
 * Compares two runs of a program: which statuses and numbers must be equal, also after a fault.
 */
#ifndef CLEAVE_SIMULATE_JUDGE_H
#define CLEAVE_SIMULATE_JUDGE_H

#include "tests/simulate/world.h"

/* True if both records have the same statuses and numbers; otherwise writes the first difference to
 * text. */
bool sim_is_same_record(const sim_record *wanted, const sim_record *got, char *text, size_t len);
/* True if the fault explains all differences of `got`, the run with the fault, from `wanted`, the
 * run of the same program without it. Otherwise writes the first other difference to text. */
bool sim_is_explained_by_fault(const sim_record *wanted, const sim_record *got,
                               const sim_fault *fault, char *text, size_t len);

#endif
