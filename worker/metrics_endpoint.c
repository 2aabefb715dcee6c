/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/metrics_endpoint_int.h"

#include <stdatomic.h>
#include <stdlib.h>

#include "common/base/http/http.h"
#include "common/base/metrics/metrics.h"
#include "worker/accept_guard_int.h"

struct clv_metrics_endpoint {
  clv_http *http;
  /* service whose metrics are reported; NULL: the service is not open yet */
  clv_service *_Atomic service;
};

static unsigned write_metrics_page(void *user, clv_bytes *out) {
  clv_service *service = ((clv_metrics_endpoint *)user)->service;
  if (service) clv_service_write_metrics(service, clv_accept_guard_shed_count(), out);
  clv_metrics_process("cleave-worker", out);
  return 200;
}

static unsigned write_ready_page(void *user, clv_bytes *out) {
  clv_service *service = ((clv_metrics_endpoint *)user)->service;
  if (service) return clv_service_is_ready(service, out) ? 200 : 503;
  clv_bytes_puts(out, "starting\n");
  return 503;
}

clv_code clv_metrics_endpoint_open(const clv_worker_config *c, clv_metrics_endpoint **ret,
                                   clv_err *err) {
  static const clv_http_page pages[] = {
      {.path = "/metrics", .type = CLV_METRICS_TYPE, .write = write_metrics_page},
      {.path = "/healthz", .type = CLV_HTTP_TEXT, .write = clv_http_health},
      {.path = "/readyz", .type = CLV_HTTP_TEXT, .write = write_ready_page},
  };
  CLV_AUTO(clv_metrics_endpoint_closep) clv_metrics_endpoint *p = NULL;
  if (!c->metrics.listen) return CLV_OK;
  CLV_TRY(clv_alloc(1, sizeof *p, &p, err));
  clv_http_options o = {
      .listen = c->metrics.listen, .pages = pages, .n_pages = CLV_COUNT(pages), .user = p};
  if (clv_http_open(&o, &p->http, err) != CLV_OK) return clv_err_prefix(err, "metrics.listen");
  clv_log_event(CLV_LOG_INFO, "metrics", "listen=%s port=%u", c->metrics.listen,
                clv_http_port(p->http));
  *ret = clv_steal(&p);
  return CLV_OK;
}

void clv_metrics_endpoint_set_ready(clv_metrics_endpoint *p, clv_service *service) {
  if (p) p->service = service;
}

void clv_metrics_endpoint_closep(clv_metrics_endpoint **p) {
  if (*p) clv_http_close((*p)->http);
  free(*p);
  *p = NULL;
}
