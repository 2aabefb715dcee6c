/* SPDX-License-Identifier: Apache-2.0
 *
 * Writes the status of workers as text: a paragraph per worker, and below it one per session, which
 * begins with the diagnosis. Items that are 0 for most users are written only if they are not 0.
 */
#include <stdio.h>
#include <string.h>

#include "master/report/status_text_int.h"

enum {
  SESSION_INDENT = 2,
  DETAIL_INDENT = 4,
  MIN_WIDTH = 20,
  MIN_BAR_CELLS = 10,
  MAX_BAR_CELLS = 40,
  MAX_SHOWN_MODULES = 8
};

typedef unsigned long long ull;

/* ---- the text of a session ------------------------------------------------------------------- */

static void add_modules(clv_line_wrap *f, const clv_status_session *s) {
  for (uint32_t i = 0; i < s->n_modules && i < MAX_SHOWN_MODULES; i++) {
    const clv_status_module *m = &s->modules[i];
    char evals_text[48] = "";
    if (m->n_evals)
      snprintf(evals_text, sizeof evals_text, ", %llu evaluation%s", (ull)m->n_evals,
               CLV_S(m->n_evals));
    status_begin_line(f, DETAIL_INDENT);
    bool shows_device = m->device && m->device[0] && strcmp(m->device, "cpu") != 0;
    const char *on = shows_device ? " on " : "", *device = shows_device ? m->device : "";
    if (m->name)
      status_add_item(f, "%s %s%s%s", status_module_kind(m), m->name, on, device);
    else
      status_add_item(f, "module %u%s%s", m->index, on, device);
    status_add_item(f, "%llu step%s, %llu forward, %llu backward%s", (ull)m->n_steps,
                    CLV_S(m->n_steps), (ull)m->n_forwards, (ull)m->n_backwards, evals_text);
    status_add_item(f, "%.1f calls/s", m->calls_per_s);
    status_end_line(f);
  }
  if (s->n_modules <= MAX_SHOWN_MODULES) return;
  status_begin_line(f, DETAIL_INDENT);
  status_add_item(f, "and %u more module%s", s->n_modules - MAX_SHOWN_MODULES,
                  CLV_S(s->n_modules - MAX_SHOWN_MODULES));
  status_end_line(f);
}

static void add_in_flight(clv_line_wrap *f, const clv_status_link *l) {
  char in[STATUS_TEXT_BYTES], out[STATUS_TEXT_BYTES];
  if (l->frames_in + l->frames_out)
    status_add_item(f, "queued %llu in, %llu out", (ull)l->frames_in, (ull)l->frames_out);
  if (l->tensors_in)
    status_add_item(f, "coming: %llu tensor%s, %s to go", (ull)l->tensors_in, CLV_S(l->tensors_in),
                    clv_format_size(l->missing_bytes_in, in, sizeof in));
  if (l->tensors_out || l->missing_bytes_out)
    status_add_item(f, "leaving: %s to go", clv_format_size(l->missing_bytes_out, out, sizeof out));
}

static void add_outages(clv_line_wrap *f, const clv_status_link *l) {
  char age[STATUS_TEXT_BYTES], duration_text[STATUS_TEXT_BYTES], now[STATUS_TEXT_BYTES];
  if (l->outage_s > 0)
    status_add_item(f, "NO CONNECTION for %s", status_format_time(l->outage_s, now));
  if (l->n_outages)
    status_add_item(f, "%llu outage%s, the last of %s %s ago", (ull)l->n_outages,
                    CLV_S(l->n_outages), status_format_time(l->last_outage_s, duration_text),
                    status_format_time(l->last_outage_age_s, age));
}

static void add_link(clv_line_wrap *f, const clv_status_link *l) {
  char in[STATUS_TEXT_BYTES], out[STATUS_TEXT_BYTES], total_in[STATUS_TEXT_BYTES],
      total_out[STATUS_TEXT_BYTES], rtt[STATUS_TEXT_BYTES];
  status_begin_line(f, DETAIL_INDENT);
  status_add_item(f, "link to %s%s", l->peer[0] ? "" : "the master", l->peer);
  if (l->round_trip_s > 0)
    status_add_item(f, l->round_trip_s < STATUS_SILENCE_S ? "%s round trip" : "no answer for %s",
                    status_format_time(l->round_trip_s, rtt));
  status_add_item(f, "in %s (%s)", status_format_rate(l->bytes_in_per_s, in),
                  clv_format_size(l->bytes_in, total_in, sizeof total_in));
  status_add_item(f, "out %s (%s)", status_format_rate(l->bytes_out_per_s, out),
                  clv_format_size(l->bytes_out, total_out, sizeof total_out));
  add_in_flight(f, l);
  add_outages(f, l);
  status_end_line(f);
}

/* Draws the shares of the time as a bar of n_cells letters, such as "[######==>>>>>>>>  ]". dst:
 * [n_cells + 3]. */
static void draw_bar(const clv_status_session *s, unsigned n_cells, char *dst) {
  const struct {
    double share;
    char letter;
  } bar_parts[] = {{s->busy_share, '#'},
                   {s->core_wait_share, '='},
                   {s->idle_share, status_is_idle(s) ? '.' : '>'}};
  double sum = 0;
  unsigned at = 0;
  dst[0] = '[';
  for (size_t i = 0; i < CLV_COUNT(bar_parts); i++) {
    sum += (double)to_percent(bar_parts[i].share) / 100;
    for (unsigned end = (unsigned)(CLV_MIN(sum, 1.0) * n_cells + 0.5); at < end; at++)
      dst[1 + at] = bar_parts[i].letter;
  }
  while (at < n_cells) dst[1 + at++] = ' ';
  dst[1 + n_cells] = ']';
  dst[2 + n_cells] = '\0';
}

static void add_shares(clv_line_wrap *f, const clv_status_session *s) {
  char bar[MAX_BAR_CELLS + 3];
  draw_bar(s, CLV_MIN(CLV_MAX(f->width / 4, (unsigned)MIN_BAR_CELLS), (unsigned)MAX_BAR_CELLS),
           bar);
  status_begin_line(f, DETAIL_INDENT);
  status_add_item(f, "%s", bar);
  status_add_item(f, "# computes %d %%", to_percent(s->busy_share));
  status_add_item(f, "%s %d %%", status_is_idle(s) ? ". idle" : "> waits",
                  to_percent(s->idle_share));
  status_add_item(f, "= for the cores %d %%", to_percent(s->core_wait_share));
  status_end_line(f);
}

static void add_last_error(clv_line_wrap *f, unsigned indent, const clv_status_last_error *t) {
  char age[STATUS_TEXT_BYTES], head[64];
  if (!t->text || !t->text[0]) return;
  snprintf(head, sizeof head, "! %s ago:", status_format_time(t->age_s, age));
  status_begin_line(f, indent);
  status_add_words(f, head);
  status_add_words(f, t->text);
  status_end_line(f);
}

static void add_session_resources(clv_line_wrap *f, const clv_status_session *s) {
  char memory_text[STATUS_TEXT_BYTES], limit_text[STATUS_TEXT_BYTES];
  status_begin_line(f, DETAIL_INDENT);
  status_add_item(f, "contexts %llu", (ull)s->n_contexts);
  status_add_item(f, "values %llu", (ull)s->n_values);
  status_add_item(f, "references %llu kept, %llu used", (ull)s->n_kept_references,
                  (ull)s->n_used_references);
  if (s->n_pending_references) status_add_item(f, "%llu not settled", (ull)s->n_pending_references);
  status_add_item(f, "calls waiting %llu", (ull)s->n_waiting_calls);
  if (s->n_late_frames) status_add_item(f, "late frames %llu", (ull)s->n_late_frames);
  status_add_item(f, "memory %s of %s", clv_format_size(s->memory, memory_text, sizeof memory_text),
                  clv_format_size(s->memory_limit, limit_text, sizeof limit_text));
  status_end_line(f);
}

static void add_details(clv_line_wrap *f, const clv_status_session *s) {
  if (s->n_modules) add_shares(f, s);
  add_modules(f, s);
  for (uint32_t i = 0; i < s->n_links; i++) add_link(f, &s->links[i]);
  add_session_resources(f, s);
}

static void add_session(clv_line_wrap *f, const clv_status_view *view, const clv_status_worker *w,
                        const clv_status_session *s) {
  CLV_AUTO(clv_bytes_done) clv_bytes diagnosis = {0};
  char age[STATUS_TEXT_BYTES];
  clv_status_diagnosis(view, w, s, &diagnosis);
  status_begin_line(f, SESSION_INDENT);
  status_add_item(f, "session %s", s->name);
  status_add_item(f, "of %s", s->identity);
  status_add_item(f, "%s old", status_format_time(s->age_s, age));
  if (s->epoch > 1) status_add_item(f, "epoch %llu", (ull)s->epoch);
  status_end_line(f);
  status_begin_line(f, DETAIL_INDENT);
  status_add_words(f, diagnosis.data ? diagnosis.data : "");
  status_end_line(f);
  if (!f->is_brief) add_details(f, s);
  add_last_error(f, DETAIL_INDENT, &s->last_error);
}

/* ---- the text of a worker -------------------------------------------------------------------- */

static void add_missing_worker(clv_line_wrap *f, const clv_status_worker *w) {
  status_begin_line(f, 0);
  status_add_item(f, "%s", w->name);
  status_add_item(f, "%s", w->address);
  status_add_item(f, "%s",
                  !w->has_outcome  ? "asking"
                  : w->was_refused ? "REFUSES US"
                                   : "DOES NOT ANSWER");
  status_end_line(f);
  if (!w->has_outcome) return;
  status_begin_line(f, SESSION_INDENT);
  status_add_words(f, w->error);
  status_end_line(f);
  if (!w->fix || !w->fix[0]) return;
  status_begin_line(f, SESSION_INDENT);
  status_add_words(f, "fix:");
  status_add_words(f, w->fix);
  status_end_line(f);
}

static void add_memory(clv_line_wrap *f, const clv_status_worker *w) {
  char used_text[STATUS_TEXT_BYTES], limit_text[STATUS_TEXT_BYTES],
      resident_text[STATUS_TEXT_BYTES];
  uint64_t limit_bytes = w->memory_limit ? w->memory_limit : w->session_limit;
  status_add_item(f, "memory %s (limit %s%s)",
                  clv_format_size(w->memory, used_text, sizeof used_text),
                  clv_format_size(limit_bytes, limit_text, sizeof limit_text),
                  w->memory_limit ? "" : " a session");
  if (w->sees_all)
    status_add_item(f, "resident %s",
                    clv_format_size(w->resident_bytes, resident_text, sizeof resident_text));
}

/* Lists the devices of a worker. Omits a single device without a limit, because add_memory has
 * shown its memory in the line above. */
static void add_devices(clv_line_wrap *f, const clv_status_worker *w) {
  char used_text[STATUS_TEXT_BYTES], limit_text[STATUS_TEXT_BYTES];
  for (uint32_t i = 0; i < w->n_devices; i++) {
    const clv_status_device *d = &w->devices[i];
    uint64_t limit_bytes = d->memory_limit ? d->memory_limit : d->memory_total;
    if (w->n_devices == 1 && !limit_bytes) return;
    if (i == 0) status_begin_line(f, SESSION_INDENT);
    bool has_details = d->memory_total && d->isa && d->isa[0];
    status_add_item(f, "device %s%s%s%s%s%s: %s%s%s", d->name, has_details ? " (" : "",
                    has_details ? d->kind : "", has_details ? ", " : "", has_details ? d->isa : "",
                    has_details ? ")" : "", clv_format_size(d->memory, used_text, sizeof used_text),
                    limit_bytes ? " of " : "",
                    limit_bytes ? clv_format_size(limit_bytes, limit_text, sizeof limit_text) : "");
  }
  if (w->n_devices) status_end_line(f);
}

static void add_certificate(clv_line_wrap *f, const clv_status_worker *w) {
  double days = w->certificate_days;
  char remaining_text[STATUS_TEXT_BYTES];
  if (!w->has_certificate) return;
  if (days < 0)
    status_add_item(f, "CERTIFICATE HAS EXPIRED");
  else
    status_add_item(f, "%s ends in %s", days < 7 ? "CERTIFICATE" : "certificate",
                    status_format_time(86400 * days, remaining_text));
}

static void add_worker_details(clv_line_wrap *f, const clv_status_worker *w) {
  char up[STATUS_TEXT_BYTES];
  status_begin_line(f, SESSION_INDENT);
  status_add_item(f, "%s", w->software);
  if (w->protocol_version) status_add_item(f, "protocol %u", w->protocol_version);
  status_add_item(f, "up %s", status_format_time(w->uptime_s, up));
  if (w->n_cores)
    status_add_item(f, "%s, %u core%s, %s", w->device, w->n_cores, CLV_S(w->n_cores), w->isa);
  if (w->libraries && w->libraries[0]) status_add_item(f, "%s", w->libraries);
  status_end_line(f);
  status_begin_line(f, SESSION_INDENT);
  add_memory(f, w);
  status_add_item(f, "sessions %u (limit %u%s)", w->n_open_sessions, w->max_sessions,
                  w->sees_all ? " an identity" : "");
  if (w->sees_all)
    status_add_item(f, "connections %u (limit %u)", w->n_connections, w->max_connections);
  add_certificate(f, w);
  if (w->sees_all && w->n_handshake_failures)
    status_add_item(f, "failed handshakes %llu", (ull)w->n_handshake_failures);
  status_end_line(f);
  add_devices(f, w);
}

static void add_worker_answer(clv_line_wrap *f, const clv_status_worker *w) {
  status_begin_line(f, 0);
  status_add_item(f, "%s", w->name);
  status_add_item(f, "%s", w->address);
  if (w->own_name[0] && strcmp(w->own_name, w->name) != 0)
    status_add_item(f, "calls itself %s", w->own_name);
  if (w->is_draining) status_add_item(f, "DRAINING: takes no new sessions");
  if (f->is_brief && w->certificate_days < 7) add_certificate(f, w);
  if (w->must_upgrade)
    status_add_item(f, "speaks protocol %u: a lost connection ends its link; upgrade it",
                    w->protocol_version);
  status_end_line(f);
  if (!f->is_brief) add_worker_details(f, w);
  add_last_error(f, SESSION_INDENT, &w->last_error);
}

/* Writes how many open sessions the text does not describe: those of other identities, and those
 * that did not fit the answer. */
static void add_count_of_unseen_sessions(clv_line_wrap *f, const clv_status_worker *w) {
  uint32_t n_reported = w->n_sessions + w->n_omitted_sessions;
  uint32_t n_other_sessions = w->n_open_sessions - CLV_MIN(n_reported, w->n_open_sessions);
  status_begin_line(f, SESSION_INDENT);
  if (!w->n_sessions && !n_other_sessions)
    status_add_item(f, w->sees_all ? "no session is open" : "no session of yours is open");
  if (n_other_sessions)
    status_add_item(f, "%u session%s of others", n_other_sessions, CLV_S(n_other_sessions));
  if (w->n_omitted_sessions)
    status_add_item(f, "%u more that did not fit the answer", w->n_omitted_sessions);
  if (!w->n_sessions || n_other_sessions || w->n_omitted_sessions) status_end_line(f);
}

static void add_worker(clv_line_wrap *f, const clv_status_view *view, const clv_status_worker *w) {
  if (!w->has_outcome || w->error) {
    add_missing_worker(f, w);
    return;
  }
  add_worker_answer(f, w);
  for (uint32_t i = 0; i < w->n_sessions; i++) add_session(f, view, w, &w->sessions[i]);
  add_count_of_unseen_sessions(f, w);
}

static void add_escrow(clv_line_wrap *f, const clv_status_escrow *e) {
  char size[STATUS_TEXT_BYTES], age[STATUS_TEXT_BYTES];
  status_begin_line(f, 0);
  if (e->has_copy)
    status_add_item(f, "escrow: a sealed copy of checkpoint-%llu, %s, %s old", (ull)e->step,
                    clv_format_size(e->bytes, size, sizeof size),
                    status_format_time(e->age_s, age));
  else
    status_add_item(f, "escrow: no sealed copy of a checkpoint yet");
  status_end_line(f);
  add_last_error(f, SESSION_INDENT, &e->last_error);
}

static void draw_status(const clv_status_view *view, unsigned width, bool is_brief,
                        clv_bytes *out) {
  clv_line_wrap f = {
      .out = out, .width = CLV_MAX(width, (unsigned)MIN_WIDTH), .is_brief = is_brief};
  uint32_t n = 0;
  double interval_s = 0;
  char text[STATUS_TEXT_BYTES];
  for (uint32_t i = 0; i < view->n_workers; i++) {
    const clv_status_worker *w = &view->workers[i];
    n += w->has_outcome && !w->error;
    if (!w->error) interval_s = CLV_MAX(interval_s, w->interval_s);
  }
  status_begin_line(&f, 0);
  status_add_item(&f, "%s", view->clock);
  status_add_item(&f, "%s: %u of %u %s", view->title, n, view->n_workers,
                  view->n_workers == 1 ? "worker answers" : "workers answer");
  if (n) status_add_item(&f, "rates and shares over %s", status_format_time(interval_s, text));
  status_end_line(&f);
  if (view->escrow) add_escrow(&f, view->escrow);
  for (uint32_t i = 0; i < view->n_workers; i++) {
    clv_bytes_puts(out, "\n");
    add_worker(&f, view, &view->workers[i]);
  }
  if (!is_brief) return;
  clv_bytes_puts(out, "\n");
  status_begin_line(&f, 0);
  status_add_words(&f, "(in short, to fit the window: a higher one shows all)");
  status_end_line(&f);
}

void clv_status_text(const clv_status_view *view, unsigned width, clv_bytes *out) {
  draw_status(view, width, false, out);
}

void clv_status_brief_text(const clv_status_view *view, unsigned width, clv_bytes *out) {
  draw_status(view, width, true, out);
}
