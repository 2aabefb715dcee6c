/* SPDX-License-Identifier: Apache-2.0
 *
 * Status: reports the resources, the activity and the sessions of a worker.
 */
#include "common/net/wire/unary_int.h"

#include <string.h>

/* The scan counts for each of our structs the size of protobuf-c's and 32 bytes. */
_Static_assert(sizeof(clv_wire_session_status) <= sizeof(Cleave__V1__SessionStatus) + 32, "room");
_Static_assert(sizeof(clv_wire_link_status) <= sizeof(Cleave__V1__LinkStatus) + 32, "room");
_Static_assert(sizeof(clv_wire_device_status) <= sizeof(Cleave__V1__DeviceStatus) + 32, "room");
_Static_assert(sizeof(clv_wire_module_status) <= sizeof(Cleave__V1__ModuleStatus) + 32, "room");

clv_code clv_wire_status_request_decode(const clv_piece *pieces, size_t n_pieces,
                                        clv_wire_status_request *ret, clv_err *err) {
  CLV_AUTO(clv_wire_mem_freep) clv_wire_mem *mem = NULL;
  Cleave__V1__StatusRequest *from;
  CLV_TRY(
      clv_wire_unpack(&cleave__v1__status_request__descriptor, pieces, n_pieces, &mem, &from, err));
  clv_wire_status_request m = {.all_sessions = from->session.len == 0,
                               .newest_protocol = from->protocol};
  if (!m.all_sessions) CLV_TRY(clv_decode_id(from->session, "session id", &m.session_id, err));
  m.mem = clv_steal(&mem);
  *ret = m;
  return CLV_OK;
}

clv_code clv_wire_status_request_encode(const clv_wire_status_request *message, clv_bytes *ret,
                                        clv_err *err) {
  Cleave__V1__StatusRequest to = CLEAVE__V1__STATUS_REQUEST__INIT;
  if (!message->all_sessions)
    to.session = clv_proto_bytes(&message->session_id, sizeof message->session_id);
  to.protocol = message->newest_protocol;
  return clv_wire_pack(&to.base, ret, err);
}

/* ---- decoding the reply of Status ------------------------------------------------------------ */

static clv_wire_last_error decode_last_error(const Cleave__V1__Trouble *from) {
  if (!from) return (clv_wire_last_error){.text = ""};
  return (clv_wire_last_error){from->text, from->age_ms};
}

static clv_code decode_modules(const Cleave__V1__SessionStatus *from, clv_wire_module_status *to,
                               clv_err *err) {
  for (size_t i = 0; i < from->n_modules; i++) {
    const Cleave__V1__ModuleStatus *s = from->modules[i];
    CLV_TRY(clv_check_count(strlen(s->name), CLV_WIRE_NAME, "bytes of module name", err));
    CLV_TRY(clv_check_count(strlen(s->device), CLV_WIRE_NAME, "bytes of module device", err));
    to[i] = (clv_wire_module_status){.module_index = s->module,
                                     .n_steps = s->steps,
                                     .n_forwards = s->forwards,
                                     .n_backwards = s->backwards,
                                     .n_evals = s->evals,
                                     .compute_ns = s->compute_ns,
                                     .module_name = s->name,
                                     .device_name = s->device};
  }
  return CLV_OK;
}

static clv_code decode_devices(const Cleave__V1__StatusReply *from, clv_wire_device_status *to,
                               clv_err *err) {
  for (size_t i = 0; i < from->n_devices; i++) {
    const Cleave__V1__DeviceStatus *s = from->devices[i];
    CLV_TRY(clv_check_count(strlen(s->name), CLV_WIRE_NAME, "bytes of device name", err));
    CLV_TRY(clv_check_count(strlen(s->kind), CLV_WIRE_NAME, "bytes of device kind", err));
    to[i] = (clv_wire_device_status){s->name,         s->kind,         s->isa,
                                     s->memory_bytes, s->memory_limit, s->total_bytes};
  }
  return CLV_OK;
}

static clv_code decode_link(const Cleave__V1__LinkStatus *from, clv_wire_link_status *to,
                            clv_err *err) {
  if (strlen(from->peer) > CLV_WIRE_NAME)
    return clv_fail(err, CLV_INVALID, "a link to a name of more than %d bytes", CLV_WIRE_NAME);
  *to = (clv_wire_link_status){.peer_name = from->peer,
                               .bytes_in = from->bytes_in,
                               .bytes_out = from->bytes_out,
                               .round_trip_us = from->round_trip_us,
                               .frames_in = from->frames_in,
                               .frames_out = from->frames_out,
                               .tensors_in = from->tensors_in,
                               .tensors_out = from->tensors_out,
                               .missing_bytes_in = from->missing_bytes_in,
                               .missing_bytes_out = from->missing_bytes_out,
                               .received_bytes = from->received_bytes,
                               .receiving_ns = from->receiving_ns,
                               .sent_bytes = from->sent_bytes,
                               .sending_ns = from->sending_ns,
                               .last_pong_ns = from->measured_ns,
                               .n_node_waits = from->awaits,
                               .node_wait_ns = from->awaited_ns,
                               .n_outages = from->outages,
                               .last_outage_age_ms = from->last_outage_age_ms,
                               .last_outage_ms = from->last_outage_ms,
                               .current_outage_ms = from->outage_ms};
  return CLV_OK;
}

static clv_code decode_session(const Cleave__V1__SessionStatus *from, clv_wire_mem *mem,
                               clv_wire_session_status *ret, clv_err *err) {
  CLV_TRY(clv_check_count(from->n_modules, CLV_WIRE_MODULES, "modules", err));
  CLV_TRY(clv_check_count(from->n_links, CLV_WIRE_LINKS, "links", err));
  *ret = (clv_wire_session_status){.attempt_number = from->epoch,
                                   .bytes_in = from->bytes_in,
                                   .bytes_out = from->bytes_out,
                                   .memory_bytes = from->memory_bytes,
                                   .session_name = from->name,
                                   .owner_identity = from->identity,
                                   .n_contexts = from->contexts,
                                   .is_attached = from->attached,
                                   .n_held_values = from->values,
                                   .n_waiting_calls = from->calls_waiting,
                                   .n_late_frames = from->late_frames,
                                   .n_references_owned = from->references_owned,
                                   .n_references_used = from->references_used,
                                   .n_references_pending = from->references_pending,
                                   .age_ms = from->age_ms,
                                   .memory_limit = from->memory_limit,
                                   .busy_ns = from->busy_ns,
                                   .idle_ns = from->idle_ns,
                                   .share_wait_ns = from->turn_ns,
                                   .n_modules = (uint32_t)from->n_modules,
                                   .n_links = (uint32_t)from->n_links,
                                   .last_error = decode_last_error(from->last_error)};
  CLV_TRY(clv_decode_id(from->session, "session id", &ret->session_id, err));
  CLV_TRY(clv_wire_mem_alloc(mem, from->n_modules, sizeof *ret->modules, &ret->modules, err));
  CLV_TRY(clv_wire_mem_alloc(mem, from->n_links, sizeof *ret->links, &ret->links, err));
  CLV_TRY(decode_modules(from, ret->modules, err));
  for (size_t i = 0; i < from->n_links; i++)
    CLV_TRY(decode_link(from->links[i], &ret->links[i], err));
  return CLV_OK;
}

clv_code clv_wire_status_reply_decode(const clv_piece *pieces, size_t n_pieces,
                                      clv_wire_status_reply *ret, clv_err *err) {
  CLV_AUTO(clv_wire_mem_freep) clv_wire_mem *mem = NULL;
  Cleave__V1__StatusReply *from;
  CLV_TRY(
      clv_wire_unpack(&cleave__v1__status_reply__descriptor, pieces, n_pieces, &mem, &from, err));
  CLV_TRY(clv_check_count(from->n_sessions, CLV_WIRE_SESSIONS, "sessions", err));
  CLV_TRY(clv_check_count(from->n_devices, CLV_WIRE_LIST, "devices", err));
  clv_wire_status_reply m = {.uptime_ms = from->uptime_ms,
                             .rss_bytes = from->rss_bytes,
                             .is_draining = from->draining,
                             .caller_sees_all = from->sees_all,
                             .has_about = from->about != NULL,
                             .about = {.software = "", .isa = ""},
                             .worker_name = from->worker,
                             .device_name = from->device,
                             .n_cores = from->cores,
                             .n_open_sessions = from->open_sessions,
                             .n_connections = from->connections,
                             .max_connections = from->max_connections,
                             .n_sessions_left_out = from->left_out,
                             .memory_bytes = from->memory_bytes,
                             .memory_limit = from->memory_limit,
                             .n_handshake_failures = from->handshake_failures,
                             .certificate_expiry_s = from->certificate_ends,
                             .last_error = decode_last_error(from->last_error),
                             .n_sessions = (uint32_t)from->n_sessions,
                             .n_devices = (uint32_t)from->n_devices};
  if (from->about) CLV_TRY(clv_about_decode(from->about, mem, &m.about, err));
  CLV_TRY(clv_decode_id(from->incarnation, "incarnation", &m.incarnation, err));
  CLV_TRY(clv_wire_mem_alloc(mem, from->n_sessions, sizeof *m.sessions, &m.sessions, err));
  CLV_TRY(clv_wire_mem_alloc(mem, from->n_devices, sizeof *m.devices, &m.devices, err));
  CLV_TRY(decode_devices(from, m.devices, err));
  for (size_t i = 0; i < from->n_sessions; i++)
    CLV_TRY(decode_session(from->sessions[i], mem, &m.sessions[i], err));
  m.mem = clv_steal(&mem);
  *ret = m;
  return CLV_OK;
}

/* ---- encoding the reply of Status ------------------------------------------------------------ */

static size_t reply_encoding_bytes(const clv_wire_status_reply *m) {
  size_t room = CLV_ENCODED_ARRAY_BYTES(m->n_sessions, Cleave__V1__SessionStatus) +
                CLV_ENCODED_ARRAY_BYTES(m->n_sessions, Cleave__V1__Trouble) +
                CLV_ENCODED_ARRAY_BYTES(m->n_devices, Cleave__V1__DeviceStatus) +
                CLV_ENCODED_ARRAY_BYTES(m->about.n_libraries, Cleave__V1__Library);
  for (uint32_t i = 0; i < m->n_sessions; i++)
    room += CLV_ENCODED_ARRAY_BYTES(m->sessions[i].n_modules, Cleave__V1__ModuleStatus) +
            CLV_ENCODED_ARRAY_BYTES(m->sessions[i].n_links, Cleave__V1__LinkStatus);
  return room;
}

/* Returns NULL if there is no error to report. */
static Cleave__V1__Trouble *encode_last_error(const clv_wire_last_error *from,
                                              Cleave__V1__Trouble *to) {
  if (!from->text || !from->text[0]) return NULL;
  cleave__v1__trouble__init(to);
  to->text = clv_text_or_empty(from->text);
  to->age_ms = from->age_ms;
  return to;
}

static void encode_module(const clv_wire_module_status *from, Cleave__V1__ModuleStatus *to) {
  cleave__v1__module_status__init(to);
  to->module = from->module_index;
  to->steps = from->n_steps;
  to->forwards = from->n_forwards;
  to->backwards = from->n_backwards;
  to->evals = from->n_evals;
  to->compute_ns = from->compute_ns;
  to->name = clv_text_or_empty(from->module_name);
  to->device = clv_text_or_empty(from->device_name);
}

static clv_code encode_devices(const clv_wire_status_reply *from, clv_wire_mem *mem,
                               Cleave__V1__StatusReply *to, clv_err *err) {
  Cleave__V1__DeviceStatus *devices;
  CLV_TRY(
      clv_alloc_proto_array(mem, from->n_devices, sizeof *devices, &to->devices, &devices, err));
  for (uint32_t i = 0; i < from->n_devices; i++) {
    cleave__v1__device_status__init(&devices[i]);
    devices[i].name = clv_text_or_empty(from->devices[i].name);
    devices[i].kind = clv_text_or_empty(from->devices[i].kind);
    devices[i].isa = clv_text_or_empty(from->devices[i].isa);
    devices[i].total_bytes = from->devices[i].total_memory_bytes;
    devices[i].memory_bytes = from->devices[i].used_memory_bytes;
    devices[i].memory_limit = from->devices[i].memory_limit;
  }
  to->n_devices = from->n_devices;
  return CLV_OK;
}

static void encode_link(const clv_wire_link_status *from, Cleave__V1__LinkStatus *to) {
  cleave__v1__link_status__init(to);
  to->peer = clv_text_or_empty(from->peer_name);
  to->bytes_in = from->bytes_in;
  to->bytes_out = from->bytes_out;
  to->round_trip_us = from->round_trip_us;
  to->frames_in = from->frames_in;
  to->frames_out = from->frames_out;
  to->tensors_in = from->tensors_in;
  to->tensors_out = from->tensors_out;
  to->missing_bytes_in = from->missing_bytes_in;
  to->missing_bytes_out = from->missing_bytes_out;
  to->received_bytes = from->received_bytes;
  to->receiving_ns = from->receiving_ns;
  to->sent_bytes = from->sent_bytes;
  to->sending_ns = from->sending_ns;
  to->measured_ns = from->last_pong_ns;
  to->awaits = from->n_node_waits;
  to->awaited_ns = from->node_wait_ns;
  to->outages = from->n_outages;
  to->last_outage_age_ms = from->last_outage_age_ms;
  to->last_outage_ms = from->last_outage_ms;
  to->outage_ms = from->current_outage_ms;
}

static void encode_session_numbers(const clv_wire_session_status *from,
                                   Cleave__V1__SessionStatus *to) {
  to->session = clv_proto_bytes(&from->session_id, sizeof from->session_id);
  to->epoch = from->attempt_number;
  to->name = clv_text_or_empty(from->session_name);
  to->identity = clv_text_or_empty(from->owner_identity);
  to->bytes_in = from->bytes_in;
  to->bytes_out = from->bytes_out;
  to->memory_bytes = from->memory_bytes;
  to->memory_limit = from->memory_limit;
  to->contexts = from->n_contexts;
  to->values = from->n_held_values;
  to->calls_waiting = from->n_waiting_calls;
  to->late_frames = from->n_late_frames;
  to->references_owned = from->n_references_owned;
  to->references_used = from->n_references_used;
  to->references_pending = from->n_references_pending;
  to->attached = from->is_attached;
  to->age_ms = from->age_ms;
  to->busy_ns = from->busy_ns;
  to->idle_ns = from->idle_ns;
  to->turn_ns = from->share_wait_ns;
}

static clv_code encode_session(const clv_wire_session_status *from, clv_wire_mem *mem,
                               Cleave__V1__Trouble *trouble, Cleave__V1__SessionStatus *to,
                               clv_err *err) {
  Cleave__V1__ModuleStatus *modules;
  Cleave__V1__LinkStatus *links;
  cleave__v1__session_status__init(to);
  CLV_TRY(
      clv_alloc_proto_array(mem, from->n_modules, sizeof *modules, &to->modules, &modules, err));
  CLV_TRY(clv_alloc_proto_array(mem, from->n_links, sizeof *links, &to->links, &links, err));
  for (uint32_t i = 0; i < from->n_modules; i++) encode_module(&from->modules[i], &modules[i]);
  for (uint32_t i = 0; i < from->n_links; i++) encode_link(&from->links[i], &links[i]);
  to->n_modules = from->n_modules;
  to->n_links = from->n_links;
  to->last_error = encode_last_error(&from->last_error, trouble);
  encode_session_numbers(from, to);
  return CLV_OK;
}

static void encode_worker(const clv_wire_status_reply *from, Cleave__V1__StatusReply *to) {
  to->incarnation = clv_proto_bytes(&from->incarnation, sizeof from->incarnation);
  to->uptime_ms = from->uptime_ms;
  to->draining = from->is_draining;
  to->sees_all = from->caller_sees_all;
  to->rss_bytes = from->rss_bytes;
  to->worker = clv_text_or_empty(from->worker_name);
  to->device = clv_text_or_empty(from->device_name);
  to->cores = from->n_cores;
  to->open_sessions = from->n_open_sessions;
  to->connections = from->n_connections;
  to->max_connections = from->max_connections;
  to->left_out = from->n_sessions_left_out;
  to->memory_bytes = from->memory_bytes;
  to->memory_limit = from->memory_limit;
  to->handshake_failures = from->n_handshake_failures;
  to->certificate_ends = from->certificate_expiry_s;
}

clv_code clv_wire_status_reply_encode(const clv_wire_status_reply *message, clv_bytes *ret,
                                      clv_err *err) {
  CLV_AUTO(clv_wire_mem_freep) clv_wire_mem *mem = NULL;
  Cleave__V1__StatusReply to = CLEAVE__V1__STATUS_REPLY__INIT;
  Cleave__V1__SessionStatus *sessions;
  Cleave__V1__Trouble *troubles, trouble;
  clv_about_parts about;
  CLV_TRY(clv_wire_mem_new(reply_encoding_bytes(message), &mem, err));
  CLV_TRY(clv_alloc_proto_array(mem, message->n_sessions, sizeof *sessions, &to.sessions, &sessions,
                                err));
  CLV_TRY(clv_wire_mem_alloc(mem, message->n_sessions, sizeof *troubles, &troubles, err));
  for (uint32_t i = 0; i < message->n_sessions; i++)
    CLV_TRY(encode_session(&message->sessions[i], mem, &troubles[i], &sessions[i], err));
  to.n_sessions = message->n_sessions;
  CLV_TRY(encode_devices(message, mem, &to, err));
  if (message->has_about) {
    CLV_TRY(clv_about_encode(&message->about, mem, &about, err));
    to.about = &about.about;
  }
  to.last_error = encode_last_error(&message->last_error, &trouble);
  encode_worker(message, &to);
  CLV_TRY(clv_wire_pack(&to.base, ret, err));
  CLV_AUTO(clv_wire_message_clear) clv_wire_status_reply back = {0};
  return clv_wire_status_reply_decode(&(clv_piece){ret->data, ret->len}, 1, &back, err);
}
