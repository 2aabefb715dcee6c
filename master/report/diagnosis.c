/* SPDX-License-Identifier: Apache-2.0
 *
 * Why a session is as fast as it is, from where its compute thread's time went. It computes, waits
 * for the cores, or has nothing to compute; the latter is somebody's doing: of the link whose
 * packet ended the wait, and if that link was at work meanwhile it is the link that is slow, not
 * who is behind it.
 */
#include <stdio.h>
#include <string.h>

#include "master/report/status_text_int.h"

#define HALF 0.5       /* of a wait that a reason must explain to be named */
#define WORTH_IT 0.10  /* a share that is worth a word */
#define LONGER 2.0     /* times what is still about as long */
#define FAR 0.005      /* seconds there and back: no network of one house */
#define ALL_OF_IT 0.97 /* of the time */
#define NAMES 3        /* of sessions in a line */
#define TENSORS 65536  /* bytes to a wait, from which on the way may be what takes long */

/* ---- who ------------------------------------------------------------------------------------- */

/* The same session at another worker, from 0 on; NULL behind the last. */
static const clv_status_session *part_elsewhere(const clv_status_view *view,
                                                const clv_status_session *s, uint32_t *at,
                                                const clv_status_worker **ret_where) {
  for (; *at < view->n_workers; ++*at) {
    const clv_status_worker *w = &view->workers[*at];
    for (uint32_t k = 0; k < w->n_sessions; k++) {
      if (&w->sessions[k] == s || strcmp(w->sessions[k].id, s->id) != 0) continue;
      *ret_where = w;
      ++*at;
      return &w->sessions[k];
    }
  }
  return NULL;
}

static double at_work(const clv_status_session *s) { return s ? s->busy + s->for_cores : 0; }

/* The part of it at another worker that is most at work; NULL: there is none. */
static const clv_status_session *busiest_elsewhere(const clv_status_view *view,
                                                   const clv_status_session *s,
                                                   const clv_status_worker **ret_where) {
  const clv_status_session *busiest = NULL;
  const clv_status_worker *w;
  uint32_t at = 0;
  for (const clv_status_session *p; (p = part_elsewhere(view, s, &at, &w)) != NULL;) {
    if (busiest && at_work(p) <= at_work(busiest)) continue;
    busiest = p;
    *ret_where = w;
  }
  return busiest;
}

static const clv_status_session *part_at(const clv_status_view *view, const clv_status_session *s,
                                         const char *worker) {
  const clv_status_worker *w;
  uint32_t at = 0;
  for (const clv_status_session *p; (p = part_elsewhere(view, s, &at, &w)) != NULL;)
    if (strcmp(w->name, worker) == 0) return p;
  return NULL;
}

/* The module there that is next to one of ours, the one in front first; NULL: there is none. */
static const clv_status_module *neighbour(const clv_status_session *s,
                                          const clv_status_session *there) {
  const clv_status_module *next = NULL;
  for (uint32_t i = 0; there && i < s->n_modules; i++)
    for (uint32_t k = 0; k < there->n_modules; k++) {
      const clv_status_module *m = &there->modules[k];
      if (m->is_stage && m->index + 1 == s->modules[i].index) return m;
      if (m->is_stage && m->index == s->modules[i].index + 1) next = m;
    }
  return next;
}

/* "stage s2 waits for s1 on worker-1 71 %", "waiting for the master 71 %". */
static void who_waits(const clv_status_view *view, const clv_status_session *s,
                      const clv_status_link *l, clv_bytes *out) {
  const clv_status_module *m = l->peer[0] ? neighbour(s, part_at(view, s, l->peer)) : NULL;
  const clv_status_module *ours = s->n_modules == 1 && s->modules[0].name ? &s->modules[0] : NULL;
  if (!l->peer[0])
    clv_bytes_puts(out, "waiting for the master");
  else if (ours)
    clv_bytes_printf(out, "%s %s waits for ", status_module_kind(ours), ours->name);
  else
    clv_bytes_puts(out, "waiting for ");
  if (m) clv_bytes_printf(out, "%s on ", m->name);
  clv_bytes_printf(out, "%s %d %%", l->peer, status_percent(l->awaited));
}

static void name_of(const clv_status_session *s, const clv_status_worker *w, clv_bytes *out) {
  if (s->n_modules == 1 && s->modules[0].name)
    clv_bytes_printf(out, "%s %s on ", status_module_kind(&s->modules[0]), s->modules[0].name);
  clv_bytes_puts(out, w->name);
}

static const clv_status_link *most_awaited(const clv_status_session *s, double *ret_sum) {
  const clv_status_link *most = NULL;
  *ret_sum = 0;
  for (uint32_t i = 0; i < s->n_links; i++) {
    const clv_status_link *l = &s->links[i];
    *ret_sum += l->awaited;
    if (l->awaited > 0 && (!most || l->awaited > most->awaited)) most = l;
  }
  return most;
}

/* ---- why ------------------------------------------------------------------------------------- */

static void round_trip(const clv_status_link *l, const char *before, clv_bytes *out) {
  char text[STATUS_TEXT_BYTES];
  if (l->round_trip_s > 0)
    clv_bytes_printf(out, "%s%s round trip", before, status_format_time(l->round_trip_s, text));
}

/* The link is at work for most of the wait: its speed, each way that matters. */
static bool slow_link(const clv_status_link *l, clv_bytes *out) {
  char rate[STATUS_TEXT_BYTES];
  const char *comma = "";
  if (l->receiving + l->sending < HALF * l->awaited) return false;
  clv_bytes_puts(out, ": link ");
  if (l->receiving >= WORTH_IT && l->link_in_per_s > 0) {
    clv_bytes_printf(out, "%s in", status_format_rate(l->link_in_per_s, rate));
    comma = ", ";
  }
  if (l->sending >= WORTH_IT && l->link_out_per_s > 0) {
    clv_bytes_printf(out, "%s%s out", comma, status_format_rate(l->link_out_per_s, rate));
    comma = ", ";
  }
  round_trip(l, comma, out);
  return true;
}

/* Waits that are about as long as a round trip, and together most of the time: more of it than
 * another part of the session is at work, on whose host a PING may only stand in line. */
static bool far_away(const clv_status_view *view, const clv_status_session *s,
                     const clv_status_link *most, clv_bytes *out) {
  char text[STATUS_TEXT_BYTES];
  const clv_status_worker *where;
  double waits = 0, trips = 0;
  for (uint32_t i = 0; i < s->n_links; i++) {
    const clv_status_link *l = &s->links[i];
    waits += l->awaits_per_s;
    double of_this = l->awaits_per_s * l->round_trip_s;
    if (of_this <= LONGER * l->awaited) trips += of_this; /* else they are shorter than one */
  }
  if (trips < HALF * s->idle || most->round_trip_s < FAR) return false;
  if (trips < at_work(busiest_elsewhere(view, s, &where))) return false;
  clv_bytes_printf(out, ": %s round trip, %.*f waits a second",
                   status_format_time(most->round_trip_s, text), waits < 10, waits);
  return true;
}

/* Another part of the session has its hands full, and who we wait for may be waiting for it. */
static bool busy_elsewhere(const clv_status_view *view, const clv_status_session *s,
                           clv_bytes *out) {
  const clv_status_worker *where = NULL;
  const clv_status_session *busiest = busiest_elsewhere(view, s, &where);
  if (!busiest || at_work(busiest) < HALF) return false;
  bool queued = busiest->for_cores > busiest->busy;
  clv_bytes_printf(out, "waiting %d %%: ", status_percent(s->idle));
  name_of(busiest, where, out);
  clv_bytes_printf(out, queued ? " waits for the cores there %d %%" : " computes %d %%",
                   status_percent(queued ? busiest->for_cores : busiest->busy));
  return true;
}

/* "3.0 MiB on the way here, link 12 Mbit/s in": the rate is left out where none has been
 * measured. */
static bool on_its_way(const clv_status_link *l, clv_bytes *out) {
  char size[STATUS_TEXT_BYTES], rate[STATUS_TEXT_BYTES];
  bool in = l->missing_in > 0;
  double per_s = in ? l->link_in_per_s : l->link_out_per_s;
  if (!l->missing_in && !l->missing_out) return false;
  clv_format_size(in ? l->missing_in : l->missing_out, size, sizeof size);
  clv_bytes_printf(out, "%s on the way %s", size, in ? "here" : "there");
  if (per_s > 0)
    clv_bytes_printf(out, ", link %s %s", status_format_rate(per_s, rate), in ? "in" : "out");
  return true;
}

/* Tensors of a chunk or less come and go between, and nobody knows how long they were on their
 * way. */
static bool who_knows(const clv_status_link *l, clv_bytes *out) {
  char in[STATUS_TEXT_BYTES], sent[STATUS_TEXT_BYTES];
  if (l->in_per_s + l->out_per_s <= TENSORS * l->awaits_per_s) return false;
  if (l->missing_in + l->missing_out > TENSORS) { /* now it is the link */
    clv_bytes_puts(out, ": ");
    on_its_way(l, out);
    round_trip(l, ", ", out);
    return true;
  }
  clv_bytes_printf(out, ": %s in, %s out", status_format_rate(l->in_per_s, in),
                   status_format_rate(l->out_per_s, sent));
  round_trip(l, ", ", out);
  clv_bytes_printf(out, "; %s or the link is slow",
                   l->peer[0] ? "it takes its time" : "it computes, reads data");
  return true;
}

/* Neither the link nor anybody else that can be seen. */
static void describe_unknown_reason(const clv_status_view *view, const clv_status_session *s,
                                    const clv_status_link *l, clv_bytes *out) {
  double ignored;
  const clv_status_session *there = l->peer[0] ? part_at(view, s, l->peer) : NULL;
  const clv_status_link *next = there ? most_awaited(there, &ignored) : NULL;
  if (next && next->awaited >= HALF * there->idle && !next->peer[0]) {
    clv_bytes_puts(out, ", which itself waits for the master");
    return;
  }
  if (who_knows(l, out)) return;
  clv_bytes_printf(out, ": %s (link in use %d %%",
                   l->peer[0] ? "it takes its time" : "it computes or reads data",
                   status_percent(l->receiving + l->sending));
  round_trip(l, ", ", out);
  clv_bytes_puts(out, ")");
}

/* ---- phases ---------------------------------------------------------------------------------- */

/* Those that have the cores, the first few of them by name. */
static void queued(const clv_status_worker *w, const clv_status_session *s, clv_bytes *out) {
  CLV_AUTO(clv_bytes_done) clv_bytes names = {0};
  uint32_t n = 0;
  for (uint32_t i = 0; i < w->n_sessions; i++) {
    const clv_status_session *o = &w->sessions[i];
    if (o == s || o->busy < WORTH_IT || ++n > NAMES) continue;
    clv_bytes_printf(&names, "%s%s", n > 1 ? ", " : "", o->name);
  }
  clv_bytes_printf(out, "waiting for the cores %d %%: ", status_percent(s->for_cores));
  if (!n)
    clv_bytes_puts(out, "somebody else's session computes");
  else
    clv_bytes_printf(out, "session%s %s%s compute%s", n > 1 ? "s" : "", names.data,
                     n > NAMES ? ", ..." : "", n > 1 ? "" : "s");
}

/* Nothing has come that would have ended the wait. Who owes it is known when there is one link,
 * when one of them has something on its way, or does not even answer. */
static const clv_status_link *link_waited_for(const clv_status_session *s) {
  const clv_status_link *found = s->n_links == 1 ? &s->links[0] : NULL, *silent = NULL;
  for (uint32_t i = 0; i < s->n_links; i++) {
    const clv_status_link *l = &s->links[i];
    if (l->missing_in + l->missing_out) found = l;
    if (l->round_trip_s >= STATUS_SILENCE_S && (!silent || l->round_trip_s > silent->round_trip_s))
      silent = l;
  }
  return silent ? silent : found;
}

/* A worker that nobody reaches may be the end of a chain in which this session waits. */
static void who_is_gone(const clv_status_view *view, clv_bytes *out) {
  for (uint32_t i = 0; i < view->n_workers; i++)
    if (view->workers[i].asked && view->workers[i].error && !view->workers[i].refused)
      clv_bytes_printf(out, "; %s does not answer", view->workers[i].name);
}

static void describe_open_wait(const clv_status_view *view, const clv_status_session *s,
                               clv_bytes *out) {
  char text[STATUS_TEXT_BYTES];
  const clv_status_link *l = link_waited_for(s);
  clv_bytes_puts(out, "waiting");
  if (l) clv_bytes_printf(out, " for %s", l->peer[0] ? l->peer : "the master");
  clv_bytes_printf(out, " %d %%: ", status_percent(s->idle));
  if (l && l->round_trip_s >= STATUS_SILENCE_S)
    clv_bytes_printf(out, "nothing has come, not even an answer for %s",
                     status_format_time(l->round_trip_s, text));
  else if (!l || !on_its_way(l, out))
    clv_bytes_puts(out, "nothing has come");
  if (l && l->round_trip_s < STATUS_SILENCE_S) round_trip(l, ", ", out);
  if (s->calls_waiting)
    clv_bytes_printf(out, ", %llu call%s for values", (unsigned long long)s->calls_waiting,
                     s->calls_waiting == 1 ? " waits" : "s wait");
  if (!l || l->round_trip_s < STATUS_SILENCE_S) who_is_gone(view, out); /* else it has been said */
}

bool status_is_idle(const clv_status_session *s) {
  double calls = 0;
  for (uint32_t i = 0; i < s->n_modules; i++) calls += s->modules[i].calls_per_s;
  return !s->contexts && calls == 0 && s->busy < WORTH_IT && s->for_cores < WORTH_IT;
}

static void idle(const clv_status_session *s, clv_bytes *out) {
  char text[STATUS_TEXT_BYTES];
  clv_bytes_puts(out, "idle: its master asks for nothing");
  if (s->n_links && s->links[0].round_trip_s >= STATUS_SILENCE_S)
    clv_bytes_printf(out, ", and has not answered for %s",
                     status_format_time(s->links[0].round_trip_s, text));
}

static void waiting(const clv_status_view *view, const clv_status_session *s, clv_bytes *out) {
  double ended;
  const clv_status_link *l = most_awaited(s, &ended);
  CLV_AUTO(clv_bytes_done) clv_bytes why = {0};
  if (!l || s->idle - ended > l->awaited) { /* the wait in progress is nobody's yet */
    describe_open_wait(view, s, out);
    return;
  }
  bool link_itself = slow_link(l, &why) || far_away(view, s, l, &why);
  if (!link_itself && busy_elsewhere(view, s, out)) return;
  if (!link_itself) describe_unknown_reason(view, s, l, &why);
  who_waits(view, s, l, out);
  clv_bytes_puts(out, why.data ? why.data : "");
}

static void computing(const clv_status_view *view, const clv_status_worker *w,
                      const clv_status_session *s, clv_bytes *out) {
  clv_bytes_printf(out, "computing %d %%", status_percent(s->busy));
  if (s->busy >= ALL_OF_IT || (s->idle < WORTH_IT && s->for_cores < WORTH_IT)) return;
  clv_bytes_puts(out, ", ");
  if (s->for_cores > s->idle)
    queued(w, s, out);
  else
    waiting(view, s, out);
}

void clv_status_diagnosis(const clv_status_view *view, const clv_status_worker *w,
                          const clv_status_session *s, clv_bytes *out) {
  if (!s->attached)
    clv_bytes_puts(out, "no master is attached; the session is closed when its lease is over");
  else if (!s->n_modules)
    clv_bytes_puts(out, "nothing is loaded yet");
  else if (status_is_idle(s))
    idle(s, out);
  else if (s->busy >= s->idle && s->busy >= s->for_cores)
    computing(view, w, s, out);
  else if (s->for_cores >= s->idle)
    queued(w, s, out);
  else
    waiting(view, s, out);
}
