/* SPDX-License-Identifier: Apache-2.0
 *
 * The certificate and key with which the worker serves and dials: owned copies.
 */
#include <stdlib.h>
#include <string.h>

#include "worker/service/service_int.h"

void clv_service_pem_done(clv_rpc_pem *pem) {
  if (!pem) return;
  if (pem->key) explicit_bzero((char *)(uintptr_t)pem->key, strlen(pem->key));
  free((char *)(uintptr_t)pem->ca);
  free((char *)(uintptr_t)pem->cert);
  free((char *)(uintptr_t)pem->key);
  *pem = (clv_rpc_pem){0};
}

clv_code clv_service_copy_pem(const clv_rpc_pem *from, clv_rpc_pem *ret, clv_err *err) {
  char *ca = NULL, *cert = NULL, *key = NULL;
  clv_code code = clv_strdup(from->ca, &ca, err);
  if (code == CLV_OK) code = clv_strdup(from->cert, &cert, err);
  if (code == CLV_OK) code = clv_strdup(from->key, &key, err);
  clv_rpc_pem pem = {ca, cert, key};
  if (code != CLV_OK) {
    clv_service_pem_done(&pem);
    return code;
  }
  clv_service_pem_done(ret);
  *ret = pem;
  return CLV_OK;
}

clv_code clv_service_pem(clv_service *s, clv_rpc_pem *ret, clv_err *err) {
  *ret = (clv_rpc_pem){0};
  pthread_mutex_lock(&s->lock);
  clv_code code = clv_service_copy_pem(&s->pem, ret, err);
  pthread_mutex_unlock(&s->lock);
  return code;
}
