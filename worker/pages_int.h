/* SPDX-License-Identifier: Apache-2.0
 *
 * The page port of worker.yaml's `metrics.listen`: /metrics, /healthz, /readyz.
 */
#ifndef CLEAVE_WORKER_PAGES_INT_H
#define CLEAVE_WORKER_PAGES_INT_H

#include "worker/service/service.h"

typedef struct clv_pages clv_pages;

/* Opens before the service does, so that an address that is taken ends the start-up early; it is
 * not ready until clv_pages_show. Without such an address *ret stays NULL, which the others
 * take. */
clv_code clv_pages_open(const clv_worker_config *config, clv_pages **ret,
                        clv_err *err) CLV_USE_RESULT;
void clv_pages_show(clv_pages *p, clv_service *service);
/* BLOCKS. Before the service is closed; *p becomes NULL. For CLV_AUTO. */
void clv_pages_closep(clv_pages **p);

#endif
