/* SPDX-License-Identifier: Apache-2.0
 *
 * Who may connect: the judgement behind common/net/tls's callbacks. One function, `judge` in
 * admission.c, answers for a certificate that is valid; whatever else may speak against a caller,
 * such as a revocation, belongs there. Calls on an open connection are judged by
 * worker/service/methods.c.
 */
#ifndef CLEAVE_WORKER_ADMISSION_INT_H
#define CLEAVE_WORKER_ADMISSION_INT_H

#include "worker/service/service.h"

/* Room for the identities of `config`, so that clv_admission_open with it cannot fail. */
clv_code clv_admission_prepare(const clv_worker_config *config, clv_err *err) CLV_USE_RESULT;
/* From now on connections are judged by allow, limits.identity_connections and limits.connections
 * of this configuration, which is copied. May be called again with another one: identities that
 * stay keep what they hold. First before the first connection. */
clv_code clv_admission_open(const clv_worker_config *config, clv_err *err) CLV_USE_RESULT;
/* Nobody is judged any more. Call when the port is closed. */
void clv_admission_close(void);

/* The newest refusal becomes the last error that status shows. Main thread, now and then. */
void clv_admission_report(clv_service *service);

#endif
