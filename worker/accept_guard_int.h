/* SPDX-License-Identifier: Apache-2.0
 *
 * Interface of accept_guard.c. Any thread.
 */
#ifndef CLEAVE_WORKER_ACCEPT_GUARD_INT_H
#define CLEAVE_WORKER_ACCEPT_GUARD_INT_H

#include "worker/service/service.h"

/* Times that it has turned connections away. */
uint64_t clv_accept_guard_sheds(void);

/* From now on at most `limit` connections to the service are open at once, as `connections` counts
 * them; one more is closed as soon as it is there. service NULL: no limit, before the service is
 * closed: WAITS until nobody counts any more. */
void clv_accept_guard_limit(clv_service *service, unsigned (*connections)(const clv_service *),
                            uint64_t limit);

#endif
