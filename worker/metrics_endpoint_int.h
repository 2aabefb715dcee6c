/* SPDX-License-Identifier: Apache-2.0
 *
 * The HTTP server at the address `metrics.listen` of worker.yaml. Its pages are /metrics, /healthz
 * and /readyz.
 */
#ifndef CLEAVE_WORKER_METRICS_ENDPOINT_INT_H
#define CLEAVE_WORKER_METRICS_ENDPOINT_INT_H

#include "worker/service/service.h"

typedef struct clv_metrics_endpoint clv_metrics_endpoint;

/* Opens the server. Call before the service is opened, so that the start fails early if the address
 * is in use. /readyz answers 503 until clv_metrics_endpoint_set_ready is called. If worker.yaml has
 * no metrics.listen, leaves *ret NULL, which the other functions allow. */
clv_code clv_metrics_endpoint_open(const clv_worker_config *config, clv_metrics_endpoint **ret,
                                   clv_err *err) CLV_USE_RESULT;
/* Makes /metrics and /readyz report the service. */
void clv_metrics_endpoint_set_ready(clv_metrics_endpoint *p, clv_service *service);
/* Closes the server and sets *p to NULL; for CLV_AUTO. BLOCKS. Call before the service is
 * closed. */
void clv_metrics_endpoint_closep(clv_metrics_endpoint **p);

#endif
