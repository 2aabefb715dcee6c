/* SPDX-License-Identifier: Apache-2.0
 *
 * Admission of connections: the callbacks of common/net/tls. One function, decide_admission in
 * admission.c, decides on every caller with a valid certificate, including revocation. Calls on an
 * open connection are checked by worker/service/methods.c.
 */
#ifndef CLEAVE_WORKER_ADMISSION_INT_H
#define CLEAVE_WORKER_ADMISSION_INT_H

#include "worker/service/service.h"

/* Allocates entries for the identities of `config`, so that clv_admission_open with it cannot
 * fail. */
clv_code clv_admission_prepare(const clv_worker_config *config, clv_err *err) CLV_USE_RESULT;
/* Decides on connections from now on by allow, limits.identity_connections and limits.connections
 * of `config`, which it copies. Call before the port is opened, and again after a reload:
 * identities keep the connections they hold. */
clv_code clv_admission_open(const clv_worker_config *config, clv_err *err) CLV_USE_RESULT;
/* Stops admission control. Call it after the listening port is closed. */
void clv_admission_close(void);

/* Makes the newest refusal the last error that Status reports. Called periodically by the main
 * thread. */
void clv_admission_report(clv_service *service);

#endif
