/* SPDX-License-Identifier: Apache-2.0
 *
 * service: the methods of a worker. It holds the sessions, checks which identity may call which
 * method, loads modules and attaches streams to their sessions. Each session has one compute
 * thread and a memory pool of its own.
 *
 * Threads: the program's main thread calls clv_service_tick; everything else runs on rpc's
 * threads.
 */
#ifndef CLEAVE_SERVICE_H
#define CLEAVE_SERVICE_H

#include "common/model/config/config.h"
#include "common/net/rpc/rpc.h"
#include "common/net/tls/tls.h"
#include "common/net/wire/wire.h"
#include "kernels/kernels.h"

typedef struct clv_service clv_service;

/* Returns the bytes that gRPC may use at this worker for connections, calls and messages in
 * flight. */
size_t clv_service_transport_memory(const clv_worker_config *config);

/* Binds config->listen and serves. The caller owns config and `other_backends`; both must outlive
 * the service. */
clv_code clv_service_open(const clv_worker_config *config, const clv_backends *other_backends,
                          const clv_tls_identity *identity, clv_rpc_runtime *runtime,
                          clv_service **ret, clv_err *err) CLV_USE_RESULT;

/* Returns the backend of modules that name no device. */
const clv_backend *clv_service_backend(const clv_service *s);

unsigned clv_service_port(const clv_service *s);

/* Counts the open sessions and their contexts. */
void clv_service_count(clv_service *s, unsigned *ret_sessions, unsigned *ret_contexts);

/* Closes sessions whose master has left or whose lease has expired, and does other periodic work.
 * Call a few times a second. */
void clv_service_tick(clv_service *s);

/* Applies another worker.yaml, taking *config on success, and other certificates for handshakes.
 * Sessions keep their limits and peers, but those with an identity that is no longer allowed end at
 * the next step boundary, or within a minute. On failure nothing changes. */
clv_code clv_service_reload(clv_service *s, clv_worker_config **config,
                            const clv_tls_identity *identity, clv_err *err) CLV_USE_RESULT;

/* Ends the sessions of an identity whose certificate is revoked, and those with a link that it has
 * dialled, at the next tick. */
void clv_service_revoke(clv_service *s, const char *uri);
/* Counts a reload that failed before clv_service_reload was called. */
void clv_service_reload_failed(clv_service *s);

/* True if the service accepts new sessions; otherwise appends the reason to *ret, as a line. Any
 * thread. */
bool clv_service_is_ready(clv_service *s, clv_bytes *ret);
/* Appends the metrics as text for Prometheus. shed: number of connections closed for want of
 * descriptors or connections. Any thread. */
void clv_service_metrics(clv_service *s, uint64_t n_shed, clv_bytes *ret);

/* Refuses new sessions, and waits until the open ones are closed or deadline_ms is over. BLOCKS. */
void clv_service_drain(clv_service *s, unsigned deadline_ms);

/* Closes all sessions and frees the service. BLOCKS. NULL is allowed. */
void clv_service_close(clv_service *s);

/* Sets the last error that status shows to `identity` (NULL: none) and to observers. The text must
 * name no path. */
void clv_service_set_last_error(clv_service *s, const char *identity, const char *fmt, ...)
    CLV_PRINTF(3, 4);

#endif
