/* SPDX-License-Identifier: Apache-2.0
 *
 * The status of workers as JSON, one object per worker and line. The keys are stable;
 * deploy/STATUS.md lists them.
 */
#include <math.h>
#include <stdio.h>

#include "master/report/status_text_int.h"

typedef unsigned long long ull;

static void put_text(clv_bytes *out, const char *key, const char *value) {
  clv_bytes_printf(out, ",\"%s\":", key);
  clv_bytes_add_json(out, value ? value : "");
}

static void put_text_or_null(clv_bytes *out, const char *key, const char *value) {
  if (value)
    put_text(out, key, value);
  else
    clv_bytes_printf(out, ",\"%s\":null", key);
}

static void put_count(clv_bytes *out, const char *key, uint64_t value) {
  clv_bytes_printf(out, ",\"%s\":%llu", key, (ull)value);
}

static void put_count_or_null(clv_bytes *out, const char *key, uint64_t value, bool is_known) {
  if (is_known)
    put_count(out, key, value);
  else
    clv_bytes_printf(out, ",\"%s\":null", key);
}

static void put_number(clv_bytes *out, const char *key, double value) {
  char digits[CLV_JSON_NUMBER_BYTES];
  clv_bytes_printf(out, ",\"%s\":%s", key, clv_json_number(value, 6, digits));
}

/* Appends a number under its name and under the name that the number had before version 0.9. */
static void put_renamed_number(clv_bytes *out, const char *key, const char *old_key, double value) {
  put_number(out, key, value);
  put_number(out, old_key, value);
}

static void put_boolean(clv_bytes *out, const char *key, bool value) {
  clv_bytes_printf(out, ",\"%s\":%s", key, value ? "true" : "false");
}

static void put_last_error(clv_bytes *out, const clv_status_last_error *t) {
  if (!t->text || !t->text[0]) {
    clv_bytes_puts(out, ",\"last_error\":null");
    return;
  }
  clv_bytes_puts(out, ",\"last_error\":{\"text\":");
  clv_bytes_add_json(out, t->text);
  put_number(out, "age_s", t->age_s);
  clv_bytes_puts(out, "}");
}

static void put_module(clv_bytes *out, const clv_status_module *m) {
  clv_bytes_printf(out, "{\"module\":%u", m->index);
  put_text_or_null(out, "name", m->name);
  put_text_or_null(out, "stage", m->is_stage ? m->name : NULL);
  put_text_or_null(out, "device", m->device && m->device[0] ? m->device : NULL);
  put_count(out, "steps", m->n_steps);
  put_count(out, "forwards", m->n_forwards);
  put_count(out, "backwards", m->n_backwards);
  put_count(out, "evaluations", m->n_evals);
  put_number(out, "calls_per_s", m->calls_per_s);
  put_number(out, "computing", m->computing_share);
  clv_bytes_puts(out, "}");
}

static void put_link(clv_bytes *out, const clv_status_link *l) {
  clv_bytes_puts(out, "{\"peer\":");
  clv_bytes_add_json(out, l->peer[0] ? l->peer : "master");
  put_number(out, "round_trip_ms", l->round_trip_s > 0 ? 1e3 * l->round_trip_s : NAN);
  put_count(out, "bytes_in", l->bytes_in);
  put_count(out, "bytes_out", l->bytes_out);
  put_number(out, "in_bytes_per_s", l->bytes_in_per_s);
  put_number(out, "out_bytes_per_s", l->bytes_out_per_s);
  put_count(out, "frames_in", l->frames_in);
  put_count(out, "frames_out", l->frames_out);
  put_count(out, "tensors_in", l->tensors_in);
  put_count(out, "tensors_out", l->tensors_out);
  put_count(out, "missing_bytes_in", l->missing_bytes_in);
  put_count(out, "missing_bytes_out", l->missing_bytes_out);
  put_number(out, "receiving", l->receiving_share);
  put_number(out, "sending", l->sending_share);
  put_number(out, "link_in_bytes_per_s",
             l->transfer_bytes_in_per_s > 0 ? l->transfer_bytes_in_per_s : NAN);
  put_number(out, "link_out_bytes_per_s",
             l->transfer_bytes_out_per_s > 0 ? l->transfer_bytes_out_per_s : NAN);
  put_renamed_number(out, "waiting", "awaited", l->waiting_share);
  put_renamed_number(out, "waits_per_s", "awaits_per_s", l->waits_per_s);
  put_count(out, "outages", l->n_outages);
  put_number(out, "last_outage_age_s", l->n_outages ? l->last_outage_age_s : NAN);
  put_number(out, "last_outage_s", l->n_outages ? l->last_outage_s : NAN);
  put_number(out, "outage_s", l->outage_s);
  clv_bytes_puts(out, "}");
}

static void put_session(clv_bytes *out, const clv_status_view *view, const clv_status_worker *w,
                        const clv_status_session *s) {
  CLV_AUTO(clv_bytes_done) clv_bytes diagnosis = {0};
  clv_status_diagnosis(view, w, s, &diagnosis);
  clv_bytes_puts(out, "{\"session\":");
  clv_bytes_add_json(out, s->name);
  put_text(out, "id", s->id);
  put_text(out, "identity", s->identity);
  put_count(out, "epoch", s->epoch);
  put_number(out, "age_s", s->age_s);
  put_boolean(out, "attached", s->is_attached);
  put_text(out, "diagnosis", diagnosis.data);
  put_number(out, "computing", s->busy_share);
  put_number(out, "waiting", s->idle_share);
  put_renamed_number(out, "waiting_for_cores", "waiting_for_turn", s->core_wait_share);
  put_count(out, "contexts", s->n_contexts);
  put_count(out, "values", s->n_values);
  put_count(out, "references", s->n_kept_references);
  put_count(out, "references_used", s->n_used_references);
  put_count(out, "references_pending", s->n_pending_references);
  put_count(out, "calls_waiting", s->n_waiting_calls);
  put_count(out, "late_frames", s->n_late_frames);
  put_count(out, "bytes_in", s->bytes_in);
  put_count(out, "bytes_out", s->bytes_out);
  put_count(out, "memory_bytes", s->memory);
  put_count(out, "memory_limit_bytes", s->memory_limit);
  put_last_error(out, &s->last_error);
  clv_bytes_puts(out, ",\"modules\":[");
  for (uint32_t i = 0; i < s->n_modules; i++) {
    if (i) clv_bytes_puts(out, ",");
    put_module(out, &s->modules[i]);
  }
  clv_bytes_puts(out, "],\"links\":[");
  for (uint32_t i = 0; i < s->n_links; i++) {
    if (i) clv_bytes_puts(out, ",");
    put_link(out, &s->links[i]);
  }
  clv_bytes_puts(out, "]}");
}

static void put_devices(clv_bytes *out, const clv_status_worker *w) {
  clv_bytes_puts(out, ",\"devices\":[");
  for (uint32_t i = 0; i < w->n_devices; i++) {
    clv_bytes_puts(out, i ? ",{\"device\":" : "{\"device\":");
    clv_bytes_add_json(out, w->devices[i].name);
    put_text(out, "kind", w->devices[i].kind);
    put_text(out, "isa", w->devices[i].isa);
    put_count(out, "total_bytes", w->devices[i].memory_total);
    put_count(out, "memory_bytes", w->devices[i].memory);
    put_count(out, "memory_limit_bytes", w->devices[i].memory_limit);
    clv_bytes_puts(out, "}");
  }
  clv_bytes_puts(out, "]");
}

static void put_worker_numbers(clv_bytes *out, const clv_status_worker *w) {
  put_text(out, "name", w->own_name);
  put_text(out, "software", w->software);
  put_count(out, "protocol", w->protocol_version);
  put_number(out, "uptime_s", w->uptime_s);
  put_text(out, "device", w->device);
  put_text(out, "isa", w->isa);
  put_text(out, "libraries", w->libraries);
  put_count(out, "cores", w->n_cores);
  put_boolean(out, "draining", w->is_draining);
  put_count_or_null(out, "resident_bytes", w->resident_bytes, w->sees_all);
  put_count(out, "memory_bytes", w->memory);
  put_count(out, "memory_limit_bytes", w->memory_limit);
  put_count(out, "session_limit_bytes", w->session_limit);
  put_count(out, "sessions_open", w->n_open_sessions);
  put_count(out, "sessions_limit", w->max_sessions);
  put_count(out, "sessions_left_out", w->n_omitted_sessions);
  put_count_or_null(out, "connections", w->n_connections, w->sees_all);
  put_count_or_null(out, "connections_limit", w->max_connections, w->sees_all);
  put_count_or_null(out, "handshake_failures", w->n_handshake_failures, w->sees_all);
  put_number(out, "certificate_days", w->has_certificate ? w->certificate_days : NAN);
  put_boolean(out, "sees_all_sessions", w->sees_all);
  put_renamed_number(out, "interval_s", "over_s", w->interval_s);
  put_devices(out, w);
  put_last_error(out, &w->last_error);
}

static void put_escrow(clv_bytes *out, const clv_status_escrow *e) {
  if (!e) {
    clv_bytes_puts(out, ",\"escrow\":null");
    return;
  }
  clv_bytes_printf(out, ",\"escrow\":{\"has_copy\":%s", e->has_copy ? "true" : "false");
  put_count_or_null(out, "step", e->step, e->has_copy);
  put_count_or_null(out, "bytes", e->bytes, e->has_copy);
  put_number(out, "age_s", e->has_copy ? e->age_s : NAN);
  put_last_error(out, &e->last_error);
  clv_bytes_puts(out, "}");
}

static void put_worker(clv_bytes *out, const clv_status_view *view, const clv_status_worker *w) {
  bool ok = w->has_outcome && !w->error;
  clv_bytes_puts(out, "{\"worker\":");
  clv_bytes_add_json(out, w->name);
  put_text(out, "address", w->address);
  put_boolean(out, "ok", ok);
  put_text(out, "error", ok ? "" : w->error ? w->error : "it has not answered yet");
  put_text(out, "fix", ok ? "" : w->fix);
  put_escrow(out, view->escrow);
  if (ok) put_worker_numbers(out, w);
  clv_bytes_puts(out, ",\"sessions\":[");
  for (uint32_t i = 0; ok && i < w->n_sessions; i++) {
    if (i) clv_bytes_puts(out, ",");
    put_session(out, view, w, &w->sessions[i]);
  }
  clv_bytes_puts(out, "]}\n");
}

void clv_status_json(const clv_status_view *view, clv_bytes *out) {
  for (uint32_t i = 0; i < view->n_workers; i++) put_worker(out, view, &view->workers[i]);
}
