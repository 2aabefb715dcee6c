/* SPDX-License-Identifier: Apache-2.0
 *
 * service: what a worker answers. It holds the sessions, checks who may call what, loads modules
 * and joins streams to their sessions. Each session has one compute thread and memory of its own.
 *
 * Threads: clv_service_tick is for the program's main thread; everything else runs on rpc's.
 */
#ifndef CLEAVE_SERVICE_H
#define CLEAVE_SERVICE_H

#include "common/model/config/config.h"
#include "common/net/rpc/rpc.h"
#include "common/net/tls/tls.h"
#include "common/net/wire/wire.h"
#include "kernels/kernels.h"

typedef struct clv_service clv_service;

/* Bytes that gRPC may take at this worker for connections, calls and messages on their way. */
size_t clv_service_transport_memory(const clv_worker_config *config);

/* Binds config->listen and serves. The config is borrowed and must outlive the service, as must the
 * backends that it has beside the processor's. */
clv_code clv_service_open(const clv_worker_config *config, const clv_backends *others,
                          const clv_tls_identity *identity, clv_rpc_runtime *runtime,
                          clv_service **ret, clv_err *err) CLV_USE_RESULT;

/* What a module is computed with that names no device. */
const clv_backend *clv_service_backend(const clv_service *s);

unsigned clv_service_port(const clv_service *s);

/* What is open now. */
void clv_service_count(clv_service *s, unsigned *ret_sessions, unsigned *ret_contexts);

/* Closes sessions whose master is gone or whose lease is over. Call a few times a second. */
void clv_service_tick(clv_service *s);

/* From now on another worker.yaml, of which *config is taken on success, and other certificates for
 * handshakes. Sessions keep their limits and peers, but those in which somebody is not allowed any
 * more end at the next step boundary, or in a minute. On failure nothing has changed. */
clv_code clv_service_reload(clv_service *s, clv_worker_config **config,
                            const clv_tls_identity *identity, clv_err *err) CLV_USE_RESULT;

/* A reload that came to nothing before clv_service_reload could be called. */
void clv_service_reload_failed(clv_service *s);

/* Whether it takes new sessions; why not is appended to *ret, as a line. Any thread. */
bool clv_service_is_ready(clv_service *s, clv_bytes *ret);
/* Numbers as text for Prometheus, appended. shed: connections that were turned away for want of
 * descriptors. Any thread. */
void clv_service_metrics(clv_service *s, uint64_t shed, clv_bytes *ret);

/* Takes no new sessions, waits until the open ones are closed or deadline_ms is over. BLOCKS. */
void clv_service_drain(clv_service *s, unsigned deadline_ms);

/* BLOCKS. Ends all sessions and frees. NULL is allowed. */
void clv_service_close(clv_service *s);

/* Something went wrong that concerns `identity` (NULL: nobody in particular): what status shows as
 * the last error to it and to observers. No paths. */
void clv_service_set_last_error(clv_service *s, const char *identity, const char *fmt, ...)
    CLV_PRINTF(3, 4);

#endif
