/* SPDX-License-Identifier: Apache-2.0
 *
 * The status of workers as JSON, one object per worker and line. The keys are stable;
 * deploy/STATUS.md lists them.
 */
#include <math.h>
#include <stdio.h>

#include "master/report/status_text_int.h"

typedef unsigned long long ull;

static void text(clv_bytes *out, const char *key, const char *value) {
  clv_bytes_printf(out, ",\"%s\":", key);
  clv_bytes_json(out, value ? value : "");
}

static void text_or_null(clv_bytes *out, const char *key, const char *value) {
  if (value)
    text(out, key, value);
  else
    clv_bytes_printf(out, ",\"%s\":null", key);
}

static void count(clv_bytes *out, const char *key, uint64_t value) {
  clv_bytes_printf(out, ",\"%s\":%llu", key, (ull)value);
}

static void count_or_null(clv_bytes *out, const char *key, uint64_t value, bool known) {
  if (known)
    count(out, key, value);
  else
    clv_bytes_printf(out, ",\"%s\":null", key);
}

static void number(clv_bytes *out, const char *key, double value) {
  char digits[CLV_JSON_NUMBER];
  clv_bytes_printf(out, ",\"%s\":%s", key, clv_json_number(value, 6, digits));
}

/* A number under its name and under the name that it had before 0.9. */
static void renamed_number(clv_bytes *out, const char *key, const char *was, double value) {
  number(out, key, value);
  number(out, was, value);
}

static void put_boolean(clv_bytes *out, const char *key, bool value) {
  clv_bytes_printf(out, ",\"%s\":%s", key, value ? "true" : "false");
}

static void last_error(clv_bytes *out, const clv_status_last_error *t) {
  if (!t->text || !t->text[0]) {
    clv_bytes_puts(out, ",\"last_error\":null");
    return;
  }
  clv_bytes_puts(out, ",\"last_error\":{\"text\":");
  clv_bytes_json(out, t->text);
  number(out, "age_s", t->age_s);
  clv_bytes_puts(out, "}");
}

static void module(clv_bytes *out, const clv_status_module *m) {
  clv_bytes_printf(out, "{\"module\":%u", m->index);
  text_or_null(out, "name", m->name);
  text_or_null(out, "stage", m->is_stage ? m->name : NULL);
  text_or_null(out, "device", m->device && m->device[0] ? m->device : NULL);
  count(out, "steps", m->steps);
  count(out, "forwards", m->forwards);
  count(out, "backwards", m->backwards);
  count(out, "evaluations", m->evals);
  number(out, "calls_per_s", m->calls_per_s);
  number(out, "computing", m->computing);
  clv_bytes_puts(out, "}");
}

static void link_object(clv_bytes *out, const clv_status_link *l) {
  clv_bytes_puts(out, "{\"peer\":");
  clv_bytes_json(out, l->peer[0] ? l->peer : "master");
  number(out, "round_trip_ms", l->round_trip_s > 0 ? 1e3 * l->round_trip_s : NAN);
  count(out, "bytes_in", l->bytes_in);
  count(out, "bytes_out", l->bytes_out);
  number(out, "in_bytes_per_s", l->in_per_s);
  number(out, "out_bytes_per_s", l->out_per_s);
  count(out, "frames_in", l->frames_in);
  count(out, "frames_out", l->frames_out);
  count(out, "tensors_in", l->tensors_in);
  count(out, "tensors_out", l->tensors_out);
  count(out, "missing_bytes_in", l->missing_in);
  count(out, "missing_bytes_out", l->missing_out);
  number(out, "receiving", l->receiving);
  number(out, "sending", l->sending);
  number(out, "link_in_bytes_per_s", l->link_in_per_s > 0 ? l->link_in_per_s : NAN);
  number(out, "link_out_bytes_per_s", l->link_out_per_s > 0 ? l->link_out_per_s : NAN);
  renamed_number(out, "waiting", "awaited", l->waiting_share);
  renamed_number(out, "waits_per_s", "awaits_per_s", l->awaits_per_s);
  clv_bytes_puts(out, "}");
}

static void session(clv_bytes *out, const clv_status_view *view, const clv_status_worker *w,
                    const clv_status_session *s) {
  CLV_AUTO(clv_bytes_done) clv_bytes diagnosis = {0};
  clv_status_diagnosis(view, w, s, &diagnosis);
  clv_bytes_puts(out, "{\"session\":");
  clv_bytes_json(out, s->name);
  text(out, "id", s->id);
  text(out, "identity", s->identity);
  count(out, "epoch", s->epoch);
  number(out, "age_s", s->age_s);
  put_boolean(out, "attached", s->attached);
  text(out, "diagnosis", diagnosis.data);
  number(out, "computing", s->busy);
  number(out, "waiting", s->idle);
  renamed_number(out, "waiting_for_cores", "waiting_for_turn", s->waiting_for_cores);
  count(out, "contexts", s->contexts);
  count(out, "values", s->values);
  count(out, "references", s->references);
  count(out, "references_used", s->references_used);
  count(out, "references_pending", s->references_pending);
  count(out, "calls_waiting", s->calls_waiting);
  count(out, "late_frames", s->late_frames);
  count(out, "bytes_in", s->bytes_in);
  count(out, "bytes_out", s->bytes_out);
  count(out, "memory_bytes", s->memory);
  count(out, "memory_limit_bytes", s->memory_limit);
  last_error(out, &s->last_error);
  clv_bytes_puts(out, ",\"modules\":[");
  for (uint32_t i = 0; i < s->n_modules; i++) {
    if (i) clv_bytes_puts(out, ",");
    module(out, &s->modules[i]);
  }
  clv_bytes_puts(out, "],\"links\":[");
  for (uint32_t i = 0; i < s->n_links; i++) {
    if (i) clv_bytes_puts(out, ",");
    link_object(out, &s->links[i]);
  }
  clv_bytes_puts(out, "]}");
}

static void devices(clv_bytes *out, const clv_status_worker *w) {
  clv_bytes_puts(out, ",\"devices\":[");
  for (uint32_t i = 0; i < w->n_devices; i++) {
    clv_bytes_puts(out, i ? ",{\"device\":" : "{\"device\":");
    clv_bytes_json(out, w->devices[i].name);
    text(out, "kind", w->devices[i].kind);
    text(out, "isa", w->devices[i].isa);
    count(out, "total_bytes", w->devices[i].total);
    count(out, "memory_bytes", w->devices[i].memory);
    count(out, "memory_limit_bytes", w->devices[i].memory_limit);
    clv_bytes_puts(out, "}");
  }
  clv_bytes_puts(out, "]");
}

static void numbers(clv_bytes *out, const clv_status_worker *w) {
  text(out, "name", w->said);
  text(out, "software", w->software);
  count(out, "protocol", w->protocol);
  number(out, "uptime_s", w->uptime_s);
  text(out, "device", w->device);
  text(out, "isa", w->isa);
  count(out, "cores", w->cores);
  put_boolean(out, "draining", w->draining);
  count_or_null(out, "resident_bytes", w->resident, w->sees_all);
  count(out, "memory_bytes", w->memory);
  count(out, "memory_limit_bytes", w->memory_limit);
  count(out, "session_limit_bytes", w->session_limit);
  count(out, "sessions_open", w->open_sessions);
  count(out, "sessions_limit", w->max_sessions);
  count(out, "sessions_left_out", w->sessions_omitted);
  count_or_null(out, "connections", w->connections, w->sees_all);
  count_or_null(out, "connections_limit", w->max_connections, w->sees_all);
  count_or_null(out, "handshake_failures", w->handshake_failures, w->sees_all);
  number(out, "certificate_days", w->has_certificate ? w->certificate_days : NAN);
  put_boolean(out, "sees_all_sessions", w->sees_all);
  renamed_number(out, "interval_s", "over_s", w->interval_s);
  devices(out, w);
  last_error(out, &w->last_error);
}

static void worker(clv_bytes *out, const clv_status_view *view, const clv_status_worker *w) {
  bool ok = w->asked && !w->error;
  clv_bytes_puts(out, "{\"worker\":");
  clv_bytes_json(out, w->name);
  text(out, "address", w->address);
  put_boolean(out, "ok", ok);
  text(out, "error", ok ? "" : w->error ? w->error : "it has not answered yet");
  text(out, "fix", ok ? "" : w->fix);
  if (ok) numbers(out, w);
  clv_bytes_puts(out, ",\"sessions\":[");
  for (uint32_t i = 0; ok && i < w->n_sessions; i++) {
    if (i) clv_bytes_puts(out, ",");
    session(out, view, w, &w->sessions[i]);
  }
  clv_bytes_puts(out, "]}\n");
}

void clv_status_json(const clv_status_view *view, clv_bytes *out) {
  for (uint32_t i = 0; i < view->n_workers; i++) worker(out, view, &view->workers[i]);
}
