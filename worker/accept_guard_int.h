/* SPDX-License-Identifier: Apache-2.0
 *
 * The counter of accept_guard.c. Any thread.
 */
#ifndef CLEAVE_WORKER_ACCEPT_GUARD_INT_H
#define CLEAVE_WORKER_ACCEPT_GUARD_INT_H

#include <stdint.h>

/* Times that connections were closed: for want of descriptors, over limits.connections
 * (common/net/tls), or to make room for another one. */
uint64_t clv_accept_guard_sheds(void);

#endif
