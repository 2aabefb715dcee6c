/* SPDX-License-Identifier: Apache-2.0
 *
 * Decides which packets must wake the compute thread. Most frames only record an event. Those that
 * make work ready, or whose answer a peer waits for, wake the thread, and the others are handled
 * with them.
 */
#ifndef CLEAVE_WAKE_INT_H
#define CLEAVE_WAKE_INT_H

#include "common/engine/context_int.h"

/* The bit of a frame kind in a set of kinds. */
#define CLV_KIND_BIT(kind) ((uint64_t)1 << (kind))

/* True if the packet can wait for a later packet: it would make no work ready, neither alone nor
 * together with a queued packet of a kind in `queued`, and no peer waits for its answer. Only reads
 * the engine. Any thread, while no packet is handled. */
bool clv_contexts_packet_can_wait(clv_contexts *e, uint64_t queued, const clv_packet *p);

#endif
