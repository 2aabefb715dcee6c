/* SPDX-License-Identifier: Apache-2.0
 *
 * Messages of Status; part of wire.h, which includes this file.
 */
#ifndef CLEAVE_WIRE_STATUS_INT_H
#define CLEAVE_WIRE_STATUS_INT_H

typedef struct clv_wire_status_request {
  clv_wire_mem *mem;
  bool all_sessions;
  clv_wire_id session_id;   /* session to report, unless all_sessions is set */
  uint32_t newest_protocol; /* newest protocol that the caller reads; 0: CLV_WIRE_PROTOCOL_MIN */
} clv_wire_status_request;

typedef struct clv_wire_module_status {
  uint32_t module_index;
  uint64_t n_steps, n_forwards, n_backwards, n_evals, compute_ns;
  const char *module_name; /* the program's name of the module; may be empty */
  const char *device_name; /* device that computes the module; empty: an older worker */
} clv_wire_module_status;

/* Last error of a session or of the worker. text NULL or "": none so far. */
typedef struct clv_wire_last_error {
  const char *text;
  uint64_t age_ms;
} clv_wire_last_error;

/* One link of a session. The fields are those of LinkStatus in cleave.proto. */
typedef struct clv_wire_link_status {
  const char *peer_name; /* name of the peer; "" is the master */
  uint64_t bytes_in, bytes_out, round_trip_us;
  uint64_t frames_in, frames_out, tensors_in, tensors_out, missing_bytes_in, missing_bytes_out;
  uint64_t received_bytes, receiving_ns, sent_bytes, sending_ns, last_pong_ns, n_node_waits,
      node_wait_ns;
  uint64_t n_outages, last_outage_age_ms, last_outage_ms, current_outage_ms;
} clv_wire_link_status;

typedef struct clv_wire_device_status {
  const char *name, *kind, *isa;
  uint64_t used_memory_bytes, memory_limit; /* used by all sessions; 0: no limit */
  uint64_t total_memory_bytes;              /* memory of the device; 0: it uses host memory */
} clv_wire_device_status;

typedef struct clv_wire_session_status {
  clv_wire_id session_id;
  uint64_t attempt_number, bytes_in, bytes_out, memory_bytes;
  const char *session_name, *owner_identity;
  uint32_t n_contexts, n_modules, n_links;
  bool is_attached;
  uint64_t n_held_values, n_waiting_calls, n_late_frames;
  uint64_t n_references_owned, n_references_used, n_references_pending;
  uint64_t age_ms, memory_limit, busy_ns, idle_ns, share_wait_ns;
  clv_wire_module_status *modules;
  clv_wire_link_status *links;
  clv_wire_last_error last_error;
} clv_wire_session_status;

typedef struct clv_wire_status_reply {
  clv_wire_mem *mem;
  clv_wire_id incarnation;
  uint64_t uptime_ms, rss_bytes;
  bool is_draining, caller_sees_all;
  bool has_about; /* `about` is there; an older worker omits it and the fields after it */
  clv_wire_about about;
  const char *worker_name, *device_name;
  uint32_t n_cores, n_open_sessions, n_connections, max_connections, n_sessions_left_out;
  uint64_t memory_bytes, memory_limit, n_handshake_failures, certificate_expiry_s;
  clv_wire_last_error last_error;
  uint32_t n_sessions, n_devices;
  clv_wire_session_status *sessions;
  clv_wire_device_status *devices;
} clv_wire_status_reply;

#endif
