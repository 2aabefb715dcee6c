/* SPDX-License-Identifier: Apache-2.0
 *
 * Interface of accept_guard.c. Any thread.
 */
#ifndef CLEAVE_WORKER_ACCEPT_GUARD_INT_H
#define CLEAVE_WORKER_ACCEPT_GUARD_INT_H

#include <stdint.h>

/* Times that it has turned connections away for want of descriptors or, as common/net/tls says, of
 * places, or has let one go for another. */
uint64_t clv_accept_guard_sheds(void);

#endif
