/* SPDX-License-Identifier: Apache-2.0
 *
 * Copies the certificate and key with which the worker serves and dials.
 */
#include <stdlib.h>
#include <string.h>

#include "worker/service/service_int.h"

clv_code clv_service_copy_pem(clv_service *s, clv_rpc_pem *ret, clv_err *err) {
  *ret = (clv_rpc_pem){0};
  pthread_mutex_lock(&s->lock);
  clv_code code = clv_rpc_pem_copy(&s->pem, ret, err);
  pthread_mutex_unlock(&s->lock);
  return code;
}
