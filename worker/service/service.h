/* SPDX-License-Identifier: Apache-2.0
 *
 * The service of a worker: the methods that masters, other workers and observers call. The service
 * holds the sessions, checks which identity may call which method, loads modules, and attaches
 * streams to their sessions. Each session has one compute thread and a memory pool of its own.
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

/* Opens the port config->listen and serves. The caller owns `config` and the backends in
 * other_backends; they must outlive the service. */
clv_code clv_service_open(const clv_worker_config *config, const clv_backends *other_backends,
                          const clv_tls_identity *identity, clv_rpc_runtime *runtime,
                          clv_service **ret, clv_err *err) CLV_USE_RESULT;

/* Returns the backend that computes modules which name no device. */
const clv_backend *clv_service_backend(const clv_service *s);

/* Returns the port on which the service listens. */
unsigned clv_service_port(const clv_service *s);

/* Counts the open sessions, and the open contexts of all sessions. */
void clv_service_count_sessions(clv_service *s, unsigned *ret_n_sessions, unsigned *ret_n_contexts);

/* Closes sessions whose master has left or whose lease has expired, and does other periodic work.
 * The main thread calls this a few times a second. */
void clv_service_tick(clv_service *s);

/* Applies another configuration, which the service then owns, and other certificates for
 * handshakes. Open sessions keep their limits and peers. But sessions one of whose identities is no
 * longer allowed end after the next step, or within a minute. On failure nothing changes, and the
 * caller keeps *config. */
clv_code clv_service_reload(clv_service *s, clv_worker_config **config,
                            const clv_tls_identity *identity, clv_err *err) CLV_USE_RESULT;

/* Ends, at the next tick, the sessions of an identity whose certificate is revoked, and the
 * sessions with a link that this identity has dialled. */
void clv_service_revoke(clv_service *s, const char *uri);
/* Counts a reload that failed before clv_service_reload was called. */
void clv_service_count_failed_reload(clv_service *s);

/* True if the service accepts new sessions. Appends a line to *ret: "ready", or the reason why not.
 * Any thread. */
bool clv_service_is_ready(clv_service *s, clv_bytes *ret);
/* Appends the metrics as text for Prometheus. n_shed: value of clv_accept_guard_shed_count. Any
 * thread. */
void clv_service_write_metrics(clv_service *s, uint64_t n_shed, clv_bytes *ret);

/* Refuses new sessions, and waits until all open sessions are closed, for at most timeout_ms.
 * BLOCKS. */
void clv_service_drain(clv_service *s, unsigned timeout_ms);

/* Closes all sessions and frees the service. BLOCKS. NULL is allowed. */
void clv_service_close(clv_service *s);

/* Sets the last error that Status shows to observers and, unless `identity` is NULL, to this
 * identity. The text must name no path. */
void clv_service_set_last_error(clv_service *s, const char *identity, const char *fmt, ...)
    CLV_PRINTF(3, 4);

#endif
