/* SPDX-License-Identifier: Apache-2.0
 *
 * Admission of connections, by callbacks of common/net/tls. The function decide_admission in
 * admission.c decides whether a caller with a valid certificate may connect, and refuses revoked
 * certificates. worker/service/methods.c decides on each call of an admitted caller.
 */
#ifndef CLEAVE_WORKER_ADMISSION_INT_H
#define CLEAVE_WORKER_ADMISSION_INT_H

#include "worker/service/service.h"

/* Allocates entries for the identities in `allow` of `config`, so that clv_admission_open with this
 * configuration cannot run out of memory. */
clv_code clv_admission_prepare(const clv_worker_config *config, clv_err *err) CLV_USE_RESULT;
/* Starts admission control by `allow`, limits.identity_connections and limits.connections of
 * `config`, whose values it copies. Call before the port is opened. Call again with the new
 * configuration after a reload; open connections stay open. */
clv_code clv_admission_open(const clv_worker_config *config, clv_err *err) CLV_USE_RESULT;
/* Stops admission control. Call it after the listening port is closed. */
void clv_admission_close(void);

/* Makes the newest refused connection the last error that Status reports. The main thread calls
 * this periodically. */
void clv_admission_report(clv_service *service);

#endif
