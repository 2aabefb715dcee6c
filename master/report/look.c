/* SPDX-License-Identifier: Apache-2.0
 *
 * A look into workers as text: a paragraph per worker, below it one per session, which begins with
 * the verdict. Names in front, numbers behind them, what is zero and always would be is left out.
 */
#include <stdio.h>
#include <string.h>

#include "master/report/look_int.h"

enum { SESSION = 2, INSIDE = 4, LEAST_WIDTH = 20, LEAST_BAR = 10, MOST_BAR = 40, MODULES = 8 };

typedef unsigned long long ull;

/* ---- a session ------------------------------------------------------------------------------- */

static void modules(look_flow *f, const clv_look_session *s) {
  for (uint32_t i = 0; i < s->n_modules && i < MODULES; i++) {
    const clv_look_module *m = &s->modules[i];
    char evals[48] = "";
    if (m->evals)
      snprintf(evals, sizeof evals, ", %llu evaluation%s", (ull)m->evals, CLV_S(m->evals));
    look_begin(f, INSIDE);
    if (m->name)
      look_item(f, "%s %s", look_kind(m), m->name);
    else
      look_item(f, "module %u", m->index);
    look_item(f, "%llu step%s, %llu forward, %llu backward%s", (ull)m->steps, CLV_S(m->steps),
              (ull)m->forwards, (ull)m->backwards, evals);
    look_item(f, "%.1f calls/s", m->calls_per_s);
    look_end(f);
  }
  if (s->n_modules <= MODULES) return;
  look_begin(f, INSIDE);
  look_item(f, "and %u more module%s", s->n_modules - MODULES, CLV_S(s->n_modules - MODULES));
  look_end(f);
}

static void on_its_way(look_flow *f, const clv_look_link *l) {
  char in[LOOK_SHORT], out[LOOK_SHORT];
  if (l->frames_in + l->frames_out)
    look_item(f, "queued %llu in, %llu out", (ull)l->frames_in, (ull)l->frames_out);
  if (l->tensors_in)
    look_item(f, "coming: %llu tensor%s, %s to go", (ull)l->tensors_in, CLV_S(l->tensors_in),
              clv_format_size(l->missing_in, in, sizeof in));
  if (l->tensors_out || l->missing_out)
    look_item(f, "leaving: %s to go", clv_format_size(l->missing_out, out, sizeof out));
}

static void link_line(look_flow *f, const clv_look_link *l) {
  char in[LOOK_SHORT], out[LOOK_SHORT], all_in[LOOK_SHORT], all_out[LOOK_SHORT], rtt[LOOK_SHORT];
  look_begin(f, INSIDE);
  look_item(f, "link to %s%s", l->peer[0] ? "" : "the master", l->peer);
  if (l->round_trip_s > 0)
    look_item(f, l->round_trip_s < LOOK_SILENCE ? "%s round trip" : "no answer for %s",
              look_time(l->round_trip_s, rtt));
  look_item(f, "in %s (%s)", look_rate(l->in_per_s, in),
            clv_format_size(l->bytes_in, all_in, sizeof all_in));
  look_item(f, "out %s (%s)", look_rate(l->out_per_s, out),
            clv_format_size(l->bytes_out, all_out, sizeof all_out));
  on_its_way(f, l);
  look_end(f);
}

/* "[######>>>>>>>>>>==....]", each share in its letter. */
static void bar(const clv_look_session *s, unsigned cells, char *dst) {
  const struct {
    double share;
    char letter;
  } parts[] = {{s->busy, '#'}, {s->turn, '='}, {s->idle, look_is_idle(s) ? '.' : '>'}};
  double sum = 0;
  unsigned at = 0;
  dst[0] = '[';
  for (size_t i = 0; i < CLV_COUNT(parts); i++) {
    sum += (double)look_percent(parts[i].share) / 100;
    for (unsigned end = (unsigned)(CLV_MIN(sum, 1.0) * cells + 0.5); at < end; at++)
      dst[1 + at] = parts[i].letter;
  }
  while (at < cells) dst[1 + at++] = ' ';
  dst[1 + cells] = ']';
  dst[2 + cells] = '\0';
}

static void shares(look_flow *f, const clv_look_session *s) {
  char cells[MOST_BAR + 3];
  bar(s, CLV_MIN(CLV_MAX(f->width / 4, (unsigned)LEAST_BAR), (unsigned)MOST_BAR), cells);
  look_begin(f, INSIDE);
  look_item(f, "%s", cells);
  look_item(f, "# computes %d %%", look_percent(s->busy));
  look_item(f, "%s %d %%", look_is_idle(s) ? ". idle" : "> waits", look_percent(s->idle));
  look_item(f, "= for its turn %d %%", look_percent(s->turn));
  look_end(f);
}

static void trouble(look_flow *f, unsigned indent, const clv_look_trouble *t) {
  char age[LOOK_SHORT], head[64];
  if (!t->text || !t->text[0]) return;
  snprintf(head, sizeof head, "! %s ago:", look_time(t->age_s, age));
  look_begin(f, indent);
  look_words(f, head);
  look_words(f, t->text);
  look_end(f);
}

static void holds(look_flow *f, const clv_look_session *s) {
  char memory[LOOK_SHORT], limit[LOOK_SHORT];
  look_begin(f, INSIDE);
  look_item(f, "contexts %llu", (ull)s->contexts);
  look_item(f, "values %llu", (ull)s->values);
  look_item(f, "references %llu kept, %llu used", (ull)s->references, (ull)s->references_used);
  if (s->references_pending) look_item(f, "%llu not settled", (ull)s->references_pending);
  look_item(f, "calls waiting %llu", (ull)s->calls_waiting);
  if (s->late_frames) look_item(f, "late frames %llu", (ull)s->late_frames);
  look_item(f, "memory %s of %s", clv_format_size(s->memory, memory, sizeof memory),
            clv_format_size(s->memory_limit, limit, sizeof limit));
  look_end(f);
}

static void details(look_flow *f, const clv_look_session *s) {
  if (s->n_modules) shares(f, s);
  modules(f, s);
  for (uint32_t i = 0; i < s->n_links; i++) link_line(f, &s->links[i]);
  holds(f, s);
}

static void session(look_flow *f, const clv_look *look, const clv_look_worker *w,
                    const clv_look_session *s) {
  CLV_AUTO(clv_bytes_done) clv_bytes verdict = {0};
  char age[LOOK_SHORT];
  clv_look_verdict(look, w, s, &verdict);
  look_begin(f, SESSION);
  look_item(f, "session %s", s->name);
  look_item(f, "of %s", s->identity);
  look_item(f, "%s old", look_time(s->age_s, age));
  if (s->epoch > 1) look_item(f, "epoch %llu", (ull)s->epoch);
  look_end(f);
  look_begin(f, INSIDE);
  look_words(f, verdict.data ? verdict.data : "");
  look_end(f);
  if (!f->brief) details(f, s);
  trouble(f, INSIDE, &s->last_error);
}

/* ---- a worker -------------------------------------------------------------------------------- */

static void missing(look_flow *f, const clv_look_worker *w) {
  look_begin(f, 0);
  look_item(f, "%s", w->name);
  look_item(f, "%s", w->address);
  look_item(f, "%s", !w->asked ? "asking" : w->refused ? "REFUSES US" : "DOES NOT ANSWER");
  look_end(f);
  if (!w->asked) return;
  look_begin(f, SESSION);
  look_words(f, w->error);
  look_end(f);
  if (!w->fix || !w->fix[0]) return;
  look_begin(f, SESSION);
  look_words(f, "fix:");
  look_words(f, w->fix);
  look_end(f);
}

static void memory(look_flow *f, const clv_look_worker *w) {
  char used[LOOK_SHORT], limit[LOOK_SHORT], resident[LOOK_SHORT];
  uint64_t most = w->memory_limit ? w->memory_limit : w->session_limit;
  look_item(f, "memory %s (limit %s%s)", clv_format_size(w->memory, used, sizeof used),
            clv_format_size(most, limit, sizeof limit), w->memory_limit ? "" : " a session");
  if (w->sees_all)
    look_item(f, "resident %s", clv_format_size(w->resident, resident, sizeof resident));
}

static void certificate(look_flow *f, const clv_look_worker *w) {
  double days = w->certificate_days;
  char left[LOOK_SHORT];
  if (!w->has_certificate) return;
  if (days < 0)
    look_item(f, "CERTIFICATE HAS EXPIRED");
  else
    look_item(f, "%s ends in %s", days < 7 ? "CERTIFICATE" : "certificate",
              look_time(86400 * days, left));
}

static void itself(look_flow *f, const clv_look_worker *w) {
  char up[LOOK_SHORT];
  look_begin(f, SESSION);
  look_item(f, "%s", w->software);
  if (w->protocol) look_item(f, "protocol %u", w->protocol);
  look_item(f, "up %s", look_time(w->uptime_s, up));
  if (w->cores) look_item(f, "%s, %u core%s, %s", w->device, w->cores, CLV_S(w->cores), w->isa);
  look_end(f);
  look_begin(f, SESSION);
  memory(f, w);
  look_item(f, "sessions %u (limit %u%s)", w->open_sessions, w->max_sessions,
            w->sees_all ? " an identity" : "");
  if (w->sees_all) look_item(f, "connections %u (limit %u)", w->connections, w->max_connections);
  certificate(f, w);
  if (w->sees_all && w->handshake_failures)
    look_item(f, "failed handshakes %llu", (ull)w->handshake_failures);
  look_end(f);
}

static void answers(look_flow *f, const clv_look_worker *w) {
  look_begin(f, 0);
  look_item(f, "%s", w->name);
  look_item(f, "%s", w->address);
  if (w->said[0] && strcmp(w->said, w->name) != 0) look_item(f, "calls itself %s", w->said);
  if (w->draining) look_item(f, "DRAINING: takes no new sessions");
  if (f->brief && w->certificate_days < 7) certificate(f, w);
  look_end(f);
  if (!f->brief) itself(f, w);
  trouble(f, SESSION, &w->last_error);
}

/* Sessions that are there and not shown. */
static void unseen(look_flow *f, const clv_look_worker *w) {
  uint32_t seen = w->n_sessions + w->left_out;
  uint32_t others = w->open_sessions - CLV_MIN(seen, w->open_sessions);
  look_begin(f, SESSION);
  if (!w->n_sessions && !others)
    look_item(f, w->sees_all ? "no session is open" : "no session of yours is open");
  if (others) look_item(f, "%u session%s of others", others, CLV_S(others));
  if (w->left_out) look_item(f, "%u more that did not fit the answer", w->left_out);
  if (!w->n_sessions || others || w->left_out) look_end(f);
}

static void worker(look_flow *f, const clv_look *look, const clv_look_worker *w) {
  if (!w->asked || w->error) {
    missing(f, w);
    return;
  }
  answers(f, w);
  for (uint32_t i = 0; i < w->n_sessions; i++) session(f, look, w, &w->sessions[i]);
  unseen(f, w);
}

static void text_of(const clv_look *look, unsigned width, bool brief, clv_bytes *out) {
  look_flow f = {.out = out, .width = CLV_MAX(width, (unsigned)LEAST_WIDTH), .brief = brief};
  uint32_t n = 0;
  double over = 0;
  char text[LOOK_SHORT];
  for (uint32_t i = 0; i < look->n_workers; i++) {
    const clv_look_worker *w = &look->workers[i];
    n += w->asked && !w->error;
    if (!w->error) over = CLV_MAX(over, w->over_s);
  }
  look_begin(&f, 0);
  look_item(&f, "%s", look->clock);
  look_item(&f, "%s: %u of %u %s", look->title, n, look->n_workers,
            look->n_workers == 1 ? "worker answers" : "workers answer");
  if (n) look_item(&f, "rates and shares over %s", look_time(over, text));
  look_end(&f);
  for (uint32_t i = 0; i < look->n_workers; i++) {
    clv_bytes_puts(out, "\n");
    worker(&f, look, &look->workers[i]);
  }
  if (!brief) return;
  clv_bytes_puts(out, "\n");
  look_begin(&f, 0);
  look_words(&f, "(in short, to fit the window: a higher one shows all)");
  look_end(&f);
}

void clv_look_text(const clv_look *look, unsigned width, clv_bytes *out) {
  text_of(look, width, false, out);
}

void clv_look_brief(const clv_look *look, unsigned width, clv_bytes *out) {
  text_of(look, width, true, out);
}
