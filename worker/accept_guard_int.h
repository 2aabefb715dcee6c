/* SPDX-License-Identifier: Apache-2.0
 *
 * The counter of accept_guard.c. Any thread.
 */
#ifndef CLEAVE_WORKER_ACCEPT_GUARD_INT_H
#define CLEAVE_WORKER_ACCEPT_GUARD_INT_H

#include <stdint.h>

/* Returns how often connections were closed or not accepted: because descriptors were short, or
 * because limits.connections was reached (common/net/tls). */
uint64_t clv_accept_guard_shed_count(void);

#endif
