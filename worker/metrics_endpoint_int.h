/* SPDX-License-Identifier: Apache-2.0
 *
 * The metrics endpoint of worker.yaml's `metrics.listen`: /metrics, /healthz, /readyz.
 */
#ifndef CLEAVE_WORKER_METRICS_ENDPOINT_INT_H
#define CLEAVE_WORKER_METRICS_ENDPOINT_INT_H

#include "worker/service/service.h"

typedef struct clv_metrics_endpoint clv_metrics_endpoint;

/* Opens the endpoint. Call before the service is opened, so that an address in use ends the
 * start-up early. The endpoint is not ready until clv_metrics_endpoint_set_ready. If worker.yaml
 * has no metrics.listen, *ret stays NULL, which the other functions allow. */
clv_code clv_metrics_endpoint_open(const clv_worker_config *config, clv_metrics_endpoint **ret,
                                   clv_err *err) CLV_USE_RESULT;
void clv_metrics_endpoint_set_ready(clv_metrics_endpoint *p, clv_service *service);
/* Closes the endpoint and sets *p to NULL. BLOCKS. Call before the service is closed. Usable with
 * CLV_AUTO. */
void clv_metrics_endpoint_closep(clv_metrics_endpoint **p);

#endif
