/* SPDX-License-Identifier: Apache-2.0
 *
 * Messages of grpc.health.v1.
 */
#include "common/net/wire/unary_int.h"

#include "grpc/health/v1/health.pb-c.h"

#include <string.h>

_Static_assert(CLV_HEALTH_NO_SERVICE ==
                   (int)GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__SERVING_STATUS__SERVICE_UNKNOWN,
               "clv_health follows ServingStatus");

clv_code clv_wire_health_request_decode(const clv_piece *pieces, size_t n_pieces,
                                        char service[CLV_WIRE_NAME + 1], clv_err *err) {
  CLV_AUTO(clv_wire_mem_freep) clv_wire_mem *mem = NULL;
  Grpc__Health__V1__HealthCheckRequest *from;
  CLV_TRY(clv_wire_unpack(&grpc__health__v1__health_check_request__descriptor, pieces, n_pieces,
                          &mem, &from, err));
  size_t len = strlen(from->service);
  if (len) CLV_TRY(clv_check_name(from->service, "service name", err));
  memcpy(service, from->service, len + 1);
  return CLV_OK;
}

clv_code clv_wire_health_reply_encode(clv_health status, clv_bytes *ret, clv_err *err) {
  Grpc__Health__V1__HealthCheckResponse to = GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__INIT;
  to.status = (Grpc__Health__V1__HealthCheckResponse__ServingStatus)status;
  return clv_wire_pack(&to.base, ret, err);
}

clv_code clv_wire_health_request_encode(const char *service, clv_bytes *ret, clv_err *err) {
  Grpc__Health__V1__HealthCheckRequest to = GRPC__HEALTH__V1__HEALTH_CHECK_REQUEST__INIT;
  to.service = clv_text_or_empty(service);
  return clv_wire_pack(&to.base, ret, err);
}

clv_code clv_wire_health_reply_decode(const clv_piece *pieces, size_t n_pieces,
                                      clv_health *ret_status, clv_err *err) {
  CLV_AUTO(clv_wire_mem_freep) clv_wire_mem *mem = NULL;
  Grpc__Health__V1__HealthCheckResponse *from;
  CLV_TRY(clv_wire_unpack(&grpc__health__v1__health_check_response__descriptor, pieces, n_pieces,
                          &mem, &from, err));
  if ((unsigned)from->status > CLV_HEALTH_NO_SERVICE)
    return clv_fail(err, CLV_INVALID, "unknown health status %d", (int)from->status);
  *ret_status = (clv_health)from->status;
  return CLV_OK;
}
