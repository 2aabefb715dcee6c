/* SPDX-License-Identifier: Apache-2.0
 *
 * Messages of OpenSession and CloseSession.
 */
#include "common/net/wire/unary_int.h"

static clv_code decode_reference_lease(uint32_t ms, uint32_t *ret, clv_err *err) {
  if (ms && (ms < CLV_WIRE_REF_LEASE_MIN_MS || ms > CLV_WIRE_REF_LEASE_MAX_MS))
    return clv_fail(err, CLV_INVALID, "a reference lease of %u ms; it is %d to %d", ms,
                    CLV_WIRE_REF_LEASE_MIN_MS, CLV_WIRE_REF_LEASE_MAX_MS);
  *ret = ms ? ms : CLV_WIRE_REF_LEASE_MS;
  return CLV_OK;
}

clv_code clv_wire_open_request_decode(const clv_piece *pieces, size_t n_pieces,
                                      clv_wire_open_request *ret, clv_err *err) {
  CLV_AUTO(clv_wire_mem_freep) clv_wire_mem *mem = NULL;
  Cleave__V1__OpenSessionRequest *from;
  CLV_TRY(clv_wire_unpack(&cleave__v1__open_session_request__descriptor, pieces, n_pieces, &mem,
                          &from, err));
  clv_wire_open_request m = {
      .attempt_number = from->epoch,
      .session_name = from->name,
      .n_lanes = from->lanes,
      .is_only_attempt = from->single,
      .n_peer_identities = (uint32_t)from->n_peer_identities,
      .peer_identities = (const char **)from->peer_identities,
  };
  if (!from->epoch) return clv_fail(err, CLV_INVALID, "epoch 0; the first attempt is 1");
  CLV_TRY(clv_check_count(from->n_peer_identities, CLV_WIRE_PEERS, "peer identities", err));
  CLV_TRY(clv_check_count(from->lanes, CLV_WIRE_LANES, "lanes", err));
  CLV_TRY(clv_check_name(from->name, "session name", err));
  CLV_TRY(clv_decode_id(from->session, "session id", &m.session_id, err));
  CLV_TRY(clv_decode_sha256(from->config_digest, "config_digest", &m.config_digest, err));
  CLV_TRY(decode_reference_lease(from->reference_lease_ms, &m.reference_lease_ms, err));
  m.mem = clv_steal(&mem);
  *ret = m;
  return CLV_OK;
}

clv_code clv_wire_open_request_encode(const clv_wire_open_request *message, clv_bytes *ret,
                                      clv_err *err) {
  Cleave__V1__OpenSessionRequest to = CLEAVE__V1__OPEN_SESSION_REQUEST__INIT;
  to.session = clv_proto_bytes(&message->session_id, sizeof message->session_id);
  to.epoch = message->attempt_number;
  to.name = clv_text_or_empty(message->session_name);
  to.n_peer_identities = message->n_peer_identities;
  to.peer_identities = (char **)(uintptr_t)message->peer_identities;
  to.lanes = message->n_lanes;
  to.config_digest = clv_proto_bytes(&message->config_digest, sizeof message->config_digest);
  to.single = message->is_only_attempt;
  to.reference_lease_ms = message->reference_lease_ms;
  CLV_TRY(clv_wire_pack(&to.base, ret, err));
  CLV_AUTO(clv_wire_message_clear) clv_wire_open_request back = {0};
  return clv_wire_open_request_decode(&(clv_piece){ret->data, ret->len}, 1, &back, err);
}

clv_code clv_wire_open_reply_decode(const clv_piece *pieces, size_t n_pieces,
                                    clv_wire_open_reply *ret, clv_err *err) {
  CLV_AUTO(clv_wire_mem_freep) clv_wire_mem *mem = NULL;
  Cleave__V1__OpenSessionReply *from;
  clv_wire_open_reply m = {0};
  CLV_TRY(clv_wire_unpack(&cleave__v1__open_session_reply__descriptor, pieces, n_pieces, &mem,
                          &from, err));
  CLV_TRY(clv_decode_id(from->incarnation, "incarnation", &m.incarnation, err));
  CLV_TRY(clv_limits_decode(from->granted, &m.granted_limits, err));
  m.mem = clv_steal(&mem);
  *ret = m;
  return CLV_OK;
}

clv_code clv_wire_open_reply_encode(const clv_wire_open_reply *message, clv_bytes *ret,
                                    clv_err *err) {
  Cleave__V1__OpenSessionReply to = CLEAVE__V1__OPEN_SESSION_REPLY__INIT;
  Cleave__V1__Limits limits;
  clv_limits_encode(&message->granted_limits, &limits);
  to.incarnation = clv_proto_bytes(&message->incarnation, sizeof message->incarnation);
  to.granted = &limits;
  CLV_TRY(clv_wire_pack(&to.base, ret, err));
  CLV_AUTO(clv_wire_message_clear) clv_wire_open_reply back = {0};
  return clv_wire_open_reply_decode(&(clv_piece){ret->data, ret->len}, 1, &back, err);
}

clv_code clv_wire_close_request_decode(const clv_piece *pieces, size_t n_pieces,
                                       clv_wire_close_request *ret, clv_err *err) {
  CLV_AUTO(clv_wire_mem_freep) clv_wire_mem *mem = NULL;
  Cleave__V1__CloseSessionRequest *from;
  CLV_TRY(clv_wire_unpack(&cleave__v1__close_session_request__descriptor, pieces, n_pieces, &mem,
                          &from, err));
  clv_wire_close_request m = {.attempt_number = from->epoch};
  CLV_TRY(clv_decode_id(from->session, "session id", &m.session_id, err));
  m.mem = clv_steal(&mem);
  *ret = m;
  return CLV_OK;
}

clv_code clv_wire_close_request_encode(const clv_wire_close_request *message, clv_bytes *ret,
                                       clv_err *err) {
  Cleave__V1__CloseSessionRequest to = CLEAVE__V1__CLOSE_SESSION_REQUEST__INIT;
  to.session = clv_proto_bytes(&message->session_id, sizeof message->session_id);
  to.epoch = message->attempt_number;
  CLV_TRY(clv_wire_pack(&to.base, ret, err));
  CLV_AUTO(clv_wire_message_clear) clv_wire_close_request back = {0};
  return clv_wire_close_request_decode(&(clv_piece){ret->data, ret->len}, 1, &back, err);
}

clv_code clv_wire_close_reply_decode(const clv_piece *pieces, size_t n_pieces,
                                     clv_wire_close_reply *ret, clv_err *err) {
  clv_wire_mem *mem;
  Cleave__V1__CloseSessionReply *from;
  CLV_TRY(clv_wire_unpack(&cleave__v1__close_session_reply__descriptor, pieces, n_pieces, &mem,
                          &from, err));
  *ret = (clv_wire_close_reply){
      .mem = mem,
      .bytes_in = from->bytes_in,
      .bytes_out = from->bytes_out,
      .n_forwards = from->forwards,
      .n_backwards = from->backwards,
  };
  return CLV_OK;
}

clv_code clv_wire_close_reply_encode(const clv_wire_close_reply *message, clv_bytes *ret,
                                     clv_err *err) {
  Cleave__V1__CloseSessionReply to = CLEAVE__V1__CLOSE_SESSION_REPLY__INIT;
  to.bytes_in = message->bytes_in;
  to.bytes_out = message->bytes_out;
  to.forwards = message->n_forwards;
  to.backwards = message->n_backwards;
  return clv_wire_pack(&to.base, ret, err);
}
