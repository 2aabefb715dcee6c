/* SPDX-License-Identifier: Apache-2.0
 *
 * Counter of connections that accept_guard.c has shed. Any thread.
 */
#ifndef CLEAVE_WORKER_ACCEPT_GUARD_INT_H
#define CLEAVE_WORKER_ACCEPT_GUARD_INT_H

#include <stdint.h>

/* Returns how often connections were closed at once: the number of times that descriptors were
 * short, each of which may have closed several connections, plus the number of connections that
 * common/net/tls closed because limits.connections was reached. */
uint64_t clv_accept_guard_shed_count(void);

#endif
