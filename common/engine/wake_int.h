/* SPDX-License-Identifier: Apache-2.0
 *
 * Which packets have to wake the thread that handles them. Most frames only record a event; those
 * that let something run, or are waited for, wake it, and the others ride with them.
 */
#ifndef CLEAVE_WAKE_INT_H
#define CLEAVE_WAKE_INT_H

#include "common/engine/context_int.h"

/* The bit of a kind in a set of them. */
#define CLV_KIND_BIT(kind) ((uint64_t)1 << (kind))

/* Whether the packet may wait for another one: nothing runs for it with what is here, nor with any
 * of the kinds `queued`, and nobody waits for its answer. Only reads; to be asked while nothing
 * handles packets, by any thread. */
bool clv_contexts_can_wait(clv_contexts *e, uint64_t queued, const clv_packet *p);

#endif
