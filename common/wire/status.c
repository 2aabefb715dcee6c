/* SPDX-License-Identifier: Apache-2.0
 *
 * Status: counters of a worker's sessions.
 */
#include "common/wire/unary_int.h"

clv_code clv_wire_status_request_decode(const clv_piece *pieces, size_t n_pieces,
                                        clv_wire_status_request *ret, clv_err *err) {
  CLV_AUTO(clv_wire_mem_freep) clv_wire_mem *mem = NULL;
  Cleave__V1__StatusRequest *from;
  CLV_TRY(
      clv_wire_unpack(&cleave__v1__status_request__descriptor, pieces, n_pieces, &mem, &from, err));
  clv_wire_status_request m = {.all = from->session.len == 0};
  if (!m.all) CLV_TRY(clv_get_id(from->session, "session id", &m.session, err));
  m.mem = clv_steal(&mem);
  *ret = m;
  return CLV_OK;
}

clv_code clv_wire_status_request_encode(const clv_wire_status_request *message, clv_bytes *ret,
                                        clv_err *err) {
  Cleave__V1__StatusRequest to = CLEAVE__V1__STATUS_REQUEST__INIT;
  if (!message->all) to.session = clv_put_bytes(&message->session, sizeof message->session);
  return clv_wire_pack(&to.base, ret, err);
}

/* ---- reply --------------------------------------------------------------------------------- */

static clv_code get_session(const Cleave__V1__SessionStatus *from, clv_wire_mem *mem,
                            clv_wire_session_status *ret, clv_err *err) {
  CLV_TRY(clv_check_count(from->n_stages, CLV_WIRE_MODULES, "stages", err));
  *ret = (clv_wire_session_status){
      .epoch = from->epoch,
      .bytes_in = from->bytes_in,
      .bytes_out = from->bytes_out,
      .memory_bytes = from->memory_bytes,
      .name = from->name,
      .contexts = from->contexts,
      .values = from->values,
      .calls_waiting = from->calls_waiting,
      .late_frames = from->late_frames,
      .n_stages = (uint32_t)from->n_stages,
  };
  CLV_TRY(clv_get_id(from->session, "session id", &ret->session, err));
  CLV_TRY(clv_wire_take(mem, from->n_stages, sizeof *ret->stages, &ret->stages, err));
  for (size_t i = 0; i < from->n_stages; i++) {
    const Cleave__V1__StageStatus *stage = from->stages[i];
    ret->stages[i] =
        (clv_wire_stage_status){stage->stage, stage->steps, stage->forwards, stage->backwards};
  }
  return CLV_OK;
}

clv_code clv_wire_status_reply_decode(const clv_piece *pieces, size_t n_pieces,
                                      clv_wire_status_reply *ret, clv_err *err) {
  CLV_AUTO(clv_wire_mem_freep) clv_wire_mem *mem = NULL;
  Cleave__V1__StatusReply *from;
  CLV_TRY(
      clv_wire_unpack(&cleave__v1__status_reply__descriptor, pieces, n_pieces, &mem, &from, err));
  CLV_TRY(clv_check_count(from->n_sessions, CLV_WIRE_SESSIONS, "sessions", err));
  clv_wire_status_reply m = {
      .uptime_ms = from->uptime_ms,
      .rss_bytes = from->rss_bytes,
      .draining = from->draining,
      .n_sessions = (uint32_t)from->n_sessions,
  };
  CLV_TRY(clv_get_id(from->incarnation, "incarnation", &m.incarnation, err));
  CLV_TRY(clv_wire_take(mem, from->n_sessions, sizeof *m.sessions, &m.sessions, err));
  for (size_t i = 0; i < from->n_sessions; i++)
    CLV_TRY(get_session(from->sessions[i], mem, &m.sessions[i], err));
  m.mem = clv_steal(&mem);
  *ret = m;
  return CLV_OK;
}

static size_t room_for_sessions(const clv_wire_status_reply *m) {
  size_t room = CLV_ROOM(m->n_sessions, Cleave__V1__SessionStatus);
  for (uint32_t i = 0; i < m->n_sessions; i++)
    room += CLV_ROOM(m->sessions[i].n_stages, Cleave__V1__StageStatus);
  return room;
}

static clv_code put_session(const clv_wire_session_status *from, clv_wire_mem *mem,
                            Cleave__V1__SessionStatus *to, clv_err *err) {
  Cleave__V1__StageStatus *stages;
  cleave__v1__session_status__init(to);
  CLV_TRY(clv_put_array(mem, from->n_stages, sizeof *stages, &to->stages, &stages, err));
  for (uint32_t i = 0; i < from->n_stages; i++) {
    cleave__v1__stage_status__init(&stages[i]);
    stages[i].stage = from->stages[i].stage;
    stages[i].steps = from->stages[i].steps;
    stages[i].forwards = from->stages[i].forwards;
    stages[i].backwards = from->stages[i].backwards;
  }
  to->session = clv_put_bytes(&from->session, sizeof from->session);
  to->epoch = from->epoch;
  to->name = clv_put_text(from->name);
  to->bytes_in = from->bytes_in;
  to->bytes_out = from->bytes_out;
  to->memory_bytes = from->memory_bytes;
  to->contexts = from->contexts;
  to->values = from->values;
  to->calls_waiting = from->calls_waiting;
  to->late_frames = from->late_frames;
  to->n_stages = from->n_stages;
  return CLV_OK;
}

clv_code clv_wire_status_reply_encode(const clv_wire_status_reply *message, clv_bytes *ret,
                                      clv_err *err) {
  CLV_AUTO(clv_wire_mem_freep) clv_wire_mem *mem = NULL;
  Cleave__V1__StatusReply to = CLEAVE__V1__STATUS_REPLY__INIT;
  Cleave__V1__SessionStatus *sessions;
  CLV_TRY(clv_wire_mem_new(room_for_sessions(message), &mem, err));
  CLV_TRY(clv_put_array(mem, message->n_sessions, sizeof *sessions, &to.sessions, &sessions, err));
  for (uint32_t i = 0; i < message->n_sessions; i++)
    CLV_TRY(put_session(&message->sessions[i], mem, &sessions[i], err));
  to.incarnation = clv_put_bytes(&message->incarnation, sizeof message->incarnation);
  to.uptime_ms = message->uptime_ms;
  to.draining = message->draining;
  to.rss_bytes = message->rss_bytes;
  to.n_sessions = message->n_sessions;
  CLV_TRY(clv_wire_pack(&to.base, ret, err));
  CLV_AUTO(clv_wire_done) clv_wire_status_reply back = {0};
  return clv_wire_status_reply_decode(&(clv_piece){ret->data, ret->len}, 1, &back, err);
}
