/* SPDX-License-Identifier: Apache-2.0
 *
 * Explains the speed of a session at a worker by how its compute thread spent its time: computing,
 * waiting for the cores, or without work. A wait without work is counted for the link whose packet
 * ended it. If large tensors were in flight on this link for most of the wait, the link is slow;
 * otherwise the peer at the link's other end is slow. The text and the JSON of `status` call
 * clv_status_diagnosis, the only function for other files, for each session.
 *
 * A session has a part at each of its workers: a clv_status_session.
 */
#include <stdio.h>
#include <string.h>

#include "master/report/status_text_int.h"

#define MIN_EXPLAINED_SHARE 0.5 /* fraction of a wait that a reason must explain to be reported */
#define MIN_REPORTED_SHARE 0.10 /* smallest fraction of the time that is reported */
#define MAX_EQUAL_FACTOR 2.0    /* durations that differ by at most this factor count as equal */
#define FAR_ROUND_TRIP_S 0.005  /* round-trip time in s from which a peer counts as remote */
#define ALL_TIME_SHARE 0.97     /* fraction that counts as all of the time */
#define MAX_LISTED_SESSIONS 3   /* most names of sessions in a line */
/* bytes per wait above which the transfer of the bytes may be the reason for the wait */
#define LARGE_WAIT_BYTES 65536

/* ---- parts of a session ---------------------------------------------------------------------- */

/* Finds the next part of the session that s belongs to. Searches from worker *at on, skips s
 * itself, and moves *at behind the worker of the part. NULL: there is none. *ret_worker: worker of
 * the part. */
static const clv_status_session *next_peer_session(const clv_status_view *view,
                                                   const clv_status_session *s, uint32_t *at,
                                                   const clv_status_worker **ret_worker) {
  for (; *at < view->n_workers; ++*at) {
    const clv_status_worker *w = &view->workers[*at];
    for (uint32_t k = 0; k < w->n_sessions; k++) {
      if (&w->sessions[k] == s || strcmp(w->sessions[k].id, s->id) != 0) continue;
      *ret_worker = w;
      ++*at;
      return &w->sessions[k];
    }
  }
  return NULL;
}

/* Returns the share of the time in which s computes or waits for cores; 0 if s is NULL. */
static double busy_or_core_wait_share(const clv_status_session *s) {
  return s ? s->busy_share + s->core_wait_share : 0;
}

/* Returns the busiest of the other parts of the session that s belongs to; NULL: there is none. */
static const clv_status_session *find_busiest_peer_session(const clv_status_view *view,
                                                           const clv_status_session *s,
                                                           const clv_status_worker **ret_worker) {
  const clv_status_session *busiest_session = NULL;
  const clv_status_worker *w;
  uint32_t at = 0;
  for (const clv_status_session *p; (p = next_peer_session(view, s, &at, &w)) != NULL;) {
    if (busiest_session && busy_or_core_wait_share(p) <= busy_or_core_wait_share(busiest_session))
      continue;
    busiest_session = p;
    *ret_worker = w;
  }
  return busiest_session;
}

/* Returns the part at worker `worker` of the session that s belongs to; NULL: there is none. */
static const clv_status_session *find_session_at_worker(const clv_status_view *view,
                                                        const clv_status_session *s,
                                                        const char *worker) {
  const clv_status_worker *w;
  uint32_t at = 0;
  for (const clv_status_session *p; (p = next_peer_session(view, s, &at, &w)) != NULL;)
    if (strcmp(w->name, worker) == 0) return p;
  return NULL;
}

/* Returns the stage of `peer_session` that is directly before a stage of s, else one that is
 * directly after; NULL: there is none. */
static const clv_status_module *find_neighbour_stage(const clv_status_session *s,
                                                     const clv_status_session *peer_session) {
  const clv_status_module *next = NULL;
  for (uint32_t i = 0; peer_session && i < s->n_modules; i++)
    for (uint32_t k = 0; k < peer_session->n_modules; k++) {
      const clv_status_module *m = &peer_session->modules[k];
      if (m->is_stage && m->index + 1 == s->modules[i].index) return m;
      if (m->is_stage && m->index == s->modules[i].index + 1) next = m;
    }
  return next;
}

/* Appends "stage s2 waits for s1 on worker-1 71 %" or "waiting for the master 71 %". */
static void describe_who_waits(const clv_status_view *view, const clv_status_session *s,
                               const clv_status_link *l, clv_bytes *out) {
  const clv_status_module *m =
      l->peer[0] ? find_neighbour_stage(s, find_session_at_worker(view, s, l->peer)) : NULL;
  const clv_status_module *waiting_module =
      s->n_modules == 1 && s->modules[0].name ? &s->modules[0] : NULL;
  if (!l->peer[0])
    clv_bytes_puts(out, "waiting for the master");
  else if (waiting_module)
    clv_bytes_printf(out, "%s %s waits for ", status_module_kind(waiting_module),
                     waiting_module->name);
  else
    clv_bytes_puts(out, "waiting for ");
  if (m) clv_bytes_printf(out, "%s on ", m->name);
  clv_bytes_printf(out, "%s %d %%", l->peer, to_percent(l->waiting_share));
}

/* Appends the name of a part of the session: its module, if it has only one, and its worker. */
static void append_session_name(const clv_status_session *s, const clv_status_worker *w,
                                clv_bytes *out) {
  if (s->n_modules == 1 && s->modules[0].name)
    clv_bytes_printf(out, "%s %s on ", status_module_kind(&s->modules[0]), s->modules[0].name);
  clv_bytes_puts(out, w->name);
}

/* Returns the link with the largest waiting_share; NULL: all are 0. *ret_sum: the sum of
 * waiting_share over all links. */
static const clv_status_link *find_most_awaited_link(const clv_status_session *s, double *ret_sum) {
  const clv_status_link *most_awaited_link = NULL;
  *ret_sum = 0;
  for (uint32_t i = 0; i < s->n_links; i++) {
    const clv_status_link *l = &s->links[i];
    *ret_sum += l->waiting_share;
    if (l->waiting_share > 0 &&
        (!most_awaited_link || l->waiting_share > most_awaited_link->waiting_share))
      most_awaited_link = l;
  }
  return most_awaited_link;
}

/* ---- reasons of a wait ----------------------------------------------------------------------- */

/* Appends the text `prefix` and the round-trip time of the link; nothing if the time was not
 * measured yet. */
static void append_round_trip(const clv_status_link *l, const char *prefix, clv_bytes *out) {
  char text[STATUS_TEXT_BYTES];
  if (l->round_trip_s > 0)
    clv_bytes_printf(out, "%s%s round trip", prefix, status_format_time(l->round_trip_s, text));
}

/* Appends the speed of the link, if large tensors were in flight on the link for most of the wait.
 * Returns false and appends nothing otherwise. */
static bool explain_by_slow_link(const clv_status_link *l, clv_bytes *out) {
  char rate[STATUS_TEXT_BYTES];
  const char *separator = "";
  if (l->receiving_share + l->sending_share < MIN_EXPLAINED_SHARE * l->waiting_share) return false;
  clv_bytes_puts(out, ": link ");
  if (l->receiving_share >= MIN_REPORTED_SHARE && l->transfer_bytes_in_per_s > 0) {
    clv_bytes_printf(out, "%s in", status_format_rate(l->transfer_bytes_in_per_s, rate));
    separator = ", ";
  }
  if (l->sending_share >= MIN_REPORTED_SHARE && l->transfer_bytes_out_per_s > 0) {
    clv_bytes_printf(out, "%s%s out", separator,
                     status_format_rate(l->transfer_bytes_out_per_s, rate));
    separator = ", ";
  }
  append_round_trip(l, separator, out);
  return true;
}

/* Appends the round-trip time, if the waits are about as long as a round trip and round trips
 * explain most of the idle time. Returns false and appends nothing otherwise. Also returns false if
 * another part of the session is busy for longer than the round trips take, because PINGs may then
 * have waited on its busy host. most_awaited_link: the link with the largest waiting_share. */
static bool explain_by_distance(const clv_status_view *view, const clv_status_session *s,
                                const clv_status_link *most_awaited_link, clv_bytes *out) {
  char text[STATUS_TEXT_BYTES];
  const clv_status_worker *busiest_worker;
  double waits_per_s = 0, round_trip_share = 0;
  for (uint32_t i = 0; i < s->n_links; i++) {
    const clv_status_link *l = &s->links[i];
    waits_per_s += l->waits_per_s;
    double link_round_trip_share = l->waits_per_s * l->round_trip_s;
    /* waits that are much shorter than a round trip have another reason than the distance */
    if (link_round_trip_share <= MAX_EQUAL_FACTOR * l->waiting_share)
      round_trip_share += link_round_trip_share;
  }
  if (round_trip_share < MIN_EXPLAINED_SHARE * s->idle_share ||
      most_awaited_link->round_trip_s < FAR_ROUND_TRIP_S)
    return false;
  if (round_trip_share <
      busy_or_core_wait_share(find_busiest_peer_session(view, s, &busiest_worker)))
    return false;
  clv_bytes_printf(out, ": %s round trip, %.*f waits a second",
                   status_format_time(most_awaited_link->round_trip_s, text), waits_per_s < 10,
                   waits_per_s);
  return true;
}

/* Appends the name and the load of the busiest other part of the session, because the awaited peer
 * may be waiting for it. Returns false and appends nothing if no other part is busy. */
static bool explain_by_busy_session(const clv_status_view *view, const clv_status_session *s,
                                    clv_bytes *out) {
  const clv_status_worker *busiest_worker = NULL;
  const clv_status_session *busiest_session = find_busiest_peer_session(view, s, &busiest_worker);
  if (!busiest_session || busy_or_core_wait_share(busiest_session) < MIN_EXPLAINED_SHARE)
    return false;
  bool is_queued = busiest_session->core_wait_share > busiest_session->busy_share;
  clv_bytes_printf(out, "waiting %d %%: ", to_percent(s->idle_share));
  append_session_name(busiest_session, busiest_worker, out);
  clv_bytes_printf(
      out, is_queued ? " waits for the cores there %d %%" : " computes %d %%",
      to_percent(is_queued ? busiest_session->core_wait_share : busiest_session->busy_share));
  return true;
}

/* Appends the bytes of large tensors in flight and, if it was measured, the rate of the link: "3.0
 * MiB still to receive, link 12 Mbit/s in". Returns false and appends nothing if no large tensor is
 * in flight. */
static bool describe_in_flight(const clv_status_link *l, clv_bytes *out) {
  char size[STATUS_TEXT_BYTES], rate[STATUS_TEXT_BYTES];
  bool is_receiving = l->missing_bytes_in > 0;
  double bytes_per_s = is_receiving ? l->transfer_bytes_in_per_s : l->transfer_bytes_out_per_s;
  if (!l->missing_bytes_in && !l->missing_bytes_out) return false;
  clv_format_size(is_receiving ? l->missing_bytes_in : l->missing_bytes_out, size, sizeof size);
  clv_bytes_printf(out, "%s still to %s", size, is_receiving ? "receive" : "send");
  if (bytes_per_s > 0)
    clv_bytes_printf(out, ", link %s %s", status_format_rate(bytes_per_s, rate),
                     is_receiving ? "in" : "out");
  return true;
}

/* Appends that the peer or the link may be slow, if many bytes of small tensors were transferred
 * per wait. A small tensor fits in one chunk, and its transfer time is not measured. Returns false
 * and appends nothing otherwise. */
static bool describe_small_tensors(const clv_status_link *l, clv_bytes *out) {
  char in[STATUS_TEXT_BYTES], sent[STATUS_TEXT_BYTES];
  if (l->bytes_in_per_s + l->bytes_out_per_s <= LARGE_WAIT_BYTES * l->waits_per_s) return false;
  if (l->missing_bytes_in + l->missing_bytes_out >
      LARGE_WAIT_BYTES) { /* a large tensor is in flight now */
    clv_bytes_puts(out, ": ");
    describe_in_flight(l, out);
    append_round_trip(l, ", ", out);
    return true;
  }
  clv_bytes_printf(out, ": %s in, %s out", status_format_rate(l->bytes_in_per_s, in),
                   status_format_rate(l->bytes_out_per_s, sent));
  append_round_trip(l, ", ", out);
  clv_bytes_printf(out, "; %s or the link is slow",
                   l->peer[0] ? "it takes its time" : "it computes, reads data");
  return true;
}

/* Appends what is known of a wait that neither the link nor a busy part of the session explains. */
static void describe_unknown_reason(const clv_status_view *view, const clv_status_session *s,
                                    const clv_status_link *l, clv_bytes *out) {
  double ignored_sum;
  const clv_status_session *peer_session =
      l->peer[0] ? find_session_at_worker(view, s, l->peer) : NULL;
  const clv_status_link *next =
      peer_session ? find_most_awaited_link(peer_session, &ignored_sum) : NULL;
  if (next && next->waiting_share >= MIN_EXPLAINED_SHARE * peer_session->idle_share &&
      !next->peer[0]) {
    clv_bytes_puts(out, ", which itself waits for the master");
    return;
  }
  if (describe_small_tensors(l, out)) return;
  clv_bytes_printf(out, ": %s (link in use %d %%",
                   l->peer[0] ? "it takes its time" : "it computes or reads data",
                   to_percent(l->receiving_share + l->sending_share));
  append_round_trip(l, ", ", out);
  clv_bytes_puts(out, ")");
}

/* ---- states of a session --------------------------------------------------------------------- */

/* Describes a session that waits for cores, and names the first few sessions that use them. */
static void describe_queued(const clv_status_worker *w, const clv_status_session *s,
                            clv_bytes *out) {
  CLV_AUTO(clv_bytes_done) clv_bytes names = {0};
  uint32_t n = 0;
  for (uint32_t i = 0; i < w->n_sessions; i++) {
    const clv_status_session *o = &w->sessions[i];
    if (o == s || o->busy_share < MIN_REPORTED_SHARE || ++n > MAX_LISTED_SESSIONS) continue;
    clv_bytes_printf(&names, "%s%s", n > 1 ? ", " : "", o->name);
  }
  clv_bytes_printf(out, "waiting for the cores %d %%: ", to_percent(s->core_wait_share));
  if (!n)
    clv_bytes_puts(out, "a session of another identity computes");
  else
    clv_bytes_printf(out, "session%s %s%s compute%s", n > 1 ? "s" : "", names.data,
                     n > MAX_LISTED_SESSIONS ? ", ..." : "", n > 1 ? "" : "s");
}

/* Guesses the link whose packet will end the present wait; NULL: unknown. Returns a link whose peer
 * does not answer PINGs, else a link with a large tensor in flight, else the only link. */
static const clv_status_link *find_awaited_link(const clv_status_session *s) {
  const clv_status_link *awaited_link = s->n_links == 1 ? &s->links[0] : NULL, *silent_link = NULL;
  for (uint32_t i = 0; i < s->n_links; i++) {
    const clv_status_link *l = &s->links[i];
    if (l->missing_bytes_in + l->missing_bytes_out) awaited_link = l;
    if (l->round_trip_s >= STATUS_SILENCE_S &&
        (!silent_link || l->round_trip_s > silent_link->round_trip_s))
      silent_link = l;
  }
  return silent_link ? silent_link : awaited_link;
}

/* Appends the workers that do not answer, because this session may wait for one of them through
 * other nodes. */
static void append_unreachable(const clv_status_view *view, clv_bytes *out) {
  for (uint32_t i = 0; i < view->n_workers; i++)
    if (view->workers[i].has_outcome && view->workers[i].error && !view->workers[i].was_refused)
      clv_bytes_printf(out, "; %s does not answer", view->workers[i].name);
}

static void describe_open_wait(const clv_status_view *view, const clv_status_session *s,
                               clv_bytes *out) {
  char text[STATUS_TEXT_BYTES];
  const clv_status_link *l = find_awaited_link(s);
  clv_bytes_puts(out, "waiting");
  if (l) clv_bytes_printf(out, " for %s", l->peer[0] ? l->peer : "the master");
  clv_bytes_printf(out, " %d %%: ", to_percent(s->idle_share));
  if (l && l->round_trip_s >= STATUS_SILENCE_S)
    clv_bytes_printf(out, "nothing has come, not even an answer for %s",
                     status_format_time(l->round_trip_s, text));
  else if (!l || !describe_in_flight(l, out))
    clv_bytes_puts(out, "nothing has come");
  if (l && l->round_trip_s < STATUS_SILENCE_S) append_round_trip(l, ", ", out);
  if (s->n_waiting_calls)
    clv_bytes_printf(out, ", %llu call%s for values", (unsigned long long)s->n_waiting_calls,
                     s->n_waiting_calls == 1 ? " waits" : "s wait");
  if (!l || l->round_trip_s < STATUS_SILENCE_S)
    append_unreachable(view, out); /* not for a silent peer, which the text above names already */
}

bool status_is_idle(const clv_status_session *s) {
  double calls_per_s = 0;
  for (uint32_t i = 0; i < s->n_modules; i++) calls_per_s += s->modules[i].calls_per_s;
  return !s->n_contexts && calls_per_s == 0 && s->busy_share < MIN_REPORTED_SHARE &&
         s->core_wait_share < MIN_REPORTED_SHARE;
}

static void describe_idle(const clv_status_session *s, clv_bytes *out) {
  char text[STATUS_TEXT_BYTES];
  clv_bytes_puts(out, "idle: its master asks for nothing");
  if (s->n_links && s->links[0].round_trip_s >= STATUS_SILENCE_S)
    clv_bytes_printf(out, ", and has not answered for %s",
                     status_format_time(s->links[0].round_trip_s, text));
}

static void describe_waiting(const clv_status_view *view, const clv_status_session *s,
                             clv_bytes *out) {
  double ended_wait_share;
  const clv_status_link *l = find_most_awaited_link(s, &ended_wait_share);
  CLV_AUTO(clv_bytes_done) clv_bytes why = {0};
  /* most of the idle time is a wait that has not ended and so is in no waiting_share yet */
  if (!l || s->idle_share - ended_wait_share > l->waiting_share) {
    describe_open_wait(view, s, out);
    return;
  }
  bool is_link_the_reason = explain_by_slow_link(l, &why) || explain_by_distance(view, s, l, &why);
  if (!is_link_the_reason && explain_by_busy_session(view, s, out)) return;
  if (!is_link_the_reason) describe_unknown_reason(view, s, l, &why);
  describe_who_waits(view, s, l, out);
  clv_bytes_puts(out, why.data ? why.data : "");
}

static void describe_computing(const clv_status_view *view, const clv_status_worker *w,
                               const clv_status_session *s, clv_bytes *out) {
  clv_bytes_printf(out, "computing %d %%", to_percent(s->busy_share));
  if (s->busy_share >= ALL_TIME_SHARE ||
      (s->idle_share < MIN_REPORTED_SHARE && s->core_wait_share < MIN_REPORTED_SHARE))
    return;
  clv_bytes_puts(out, ", ");
  if (s->core_wait_share > s->idle_share)
    describe_queued(w, s, out);
  else
    describe_waiting(view, s, out);
}

void clv_status_diagnosis(const clv_status_view *view, const clv_status_worker *w,
                          const clv_status_session *s, clv_bytes *out) {
  if (!s->is_attached)
    clv_bytes_puts(out, "no master is attached; the session is closed when its lease is over");
  else if (!s->n_modules)
    clv_bytes_puts(out, "nothing is loaded yet");
  else if (status_is_idle(s))
    describe_idle(s, out);
  else if (s->busy_share >= s->idle_share && s->busy_share >= s->core_wait_share)
    describe_computing(view, w, s, out);
  else if (s->core_wait_share >= s->idle_share)
    describe_queued(w, s, out);
  else
    describe_waiting(view, s, out);
}
