/* SPDX-License-Identifier: Apache-2.0
 *
 * Messages of Status; part of wire.h, which includes this file.
 */
#ifndef CLEAVE_WIRE_STATUS_INT_H
#define CLEAVE_WIRE_STATUS_INT_H

typedef struct clv_wire_status_request {
  clv_wire_mem *mem;
  bool all_sessions;
  clv_wire_id session; /* session to report, unless all_sessions is set */
  uint32_t protocol;   /* newest protocol that the caller reads; 0: CLV_WIRE_PROTOCOL_MIN */
} clv_wire_status_request;

typedef struct clv_wire_module_status {
  uint32_t module;
  uint64_t steps, forwards, backwards, evals, compute_ns;
  const char *name;   /* the program's name of the module; may be empty */
  const char *device; /* device that computes the module; empty: an older worker */
} clv_wire_module_status;

/* Last error of a session or of the worker. text NULL or "": none so far. */
typedef struct clv_wire_last_error {
  const char *text;
  uint64_t age_ms;
} clv_wire_last_error;

/* One link of a session. The fields are those of LinkStatus in cleave.proto. */
typedef struct clv_wire_link_status {
  const char *peer; /* name of the peer; "" is the master */
  uint64_t bytes_in, bytes_out, round_trip_us;
  uint64_t frames_in, frames_out, tensors_in, tensors_out, missing_bytes_in, missing_bytes_out;
  uint64_t received_bytes, receiving_ns, sent_bytes, sending_ns, measured_ns, n_awaits, awaited_ns;
  uint64_t outages, last_outage_age_ms, last_outage_ms, outage_ms;
} clv_wire_link_status;

typedef struct clv_wire_device_status {
  const char *name, *kind, *isa;
  uint64_t memory_bytes, memory_limit; /* used by all sessions; 0: no limit */
  uint64_t total_bytes;                /* memory of the device; 0: it uses host memory */
} clv_wire_device_status;

typedef struct clv_wire_session_status {
  clv_wire_id session;
  uint64_t epoch, bytes_in, bytes_out, memory_bytes;
  const char *name, *identity;
  uint32_t n_contexts, n_modules, n_links;
  bool attached;
  uint64_t n_values, calls_waiting, late_frames;
  uint64_t references_owned, references_used, references_pending;
  uint64_t age_ms, memory_limit, busy_ns, idle_ns, share_wait_ns;
  clv_wire_module_status *modules;
  clv_wire_link_status *links;
  clv_wire_last_error last_error;
} clv_wire_session_status;

typedef struct clv_wire_status_reply {
  clv_wire_mem *mem;
  clv_wire_id incarnation;
  uint64_t uptime_ms, rss_bytes;
  bool draining, sees_all;
  bool has_about; /* `about` is there; an older worker omits it and the fields after it */
  clv_wire_about about;
  const char *worker, *device;
  uint32_t cores, open_sessions, connections, max_connections, n_left_out;
  uint64_t memory_bytes, memory_limit, handshake_failures, certificate_ends;
  clv_wire_last_error last_error;
  uint32_t n_sessions, n_devices;
  clv_wire_session_status *sessions;
  clv_wire_device_status *devices;
} clv_wire_status_reply;

#endif
