/* SPDX-License-Identifier: Apache-2.0
 *
 * service: what a worker answers. It holds the sessions, checks who may call what, loads shards and
 * joins streams to their sessions. Each session has one compute thread and memory of its own.
 *
 * Threads: clv_service_tick is for the program's main thread; everything else runs on rpc's.
 */
#ifndef CLEAVE_SERVICE_H
#define CLEAVE_SERVICE_H

#include "common/config/config.h"
#include "common/rpc/rpc.h"
#include "common/tls/tls.h"

typedef struct clv_service clv_service;

/* Binds config->listen and serves. The config is borrowed and must outlive the service. */
clv_code clv_service_open(const clv_worker_config *config, const clv_tls_identity *identity,
                          clv_rpc_runtime *runtime, clv_service **ret, clv_err *err) CLV_USE_RESULT;

unsigned clv_service_port(const clv_service *s);

/* Closes sessions whose master is gone or whose lease is over. Call a few times a second. */
void clv_service_tick(clv_service *s);

/* New certificates for handshakes from now on. */
clv_code clv_service_reload(clv_service *s, const clv_tls_identity *identity,
                            clv_err *err) CLV_USE_RESULT;

/* Takes no new sessions, waits until the open ones are closed or deadline_ms is over. BLOCKS. */
void clv_service_drain(clv_service *s, unsigned deadline_ms);

/* BLOCKS. Ends all sessions and frees. NULL is allowed. */
void clv_service_close(clv_service *s);

#endif
