/* SPDX-License-Identifier: Apache-2.0
 *
 * Closes sessions of programs that have ended without closing them, such as a notebook whose kernel
 * was killed. A session outlives its connections for limits.lease, and counts against the quotas of
 * its identity until then. When a quota refuses a session or a module of a program,
 * clv_session_close_abandoned closes an abandoned session of the same identity and the same session
 * name, and its caller tries again.
 *
 * A session counts as abandoned if two conditions hold. Its master is a program on cleave.h, whose
 * session no later attempt continues. And the master's connections have been closed for
 * ABANDONED_MS, although a program that still runs dials again at once. A connection that is only
 * silent counts as closed after limits.peer_timeout.
 */
#include <string.h>
#include <time.h>

#include "worker/service/service_int.h"

/* ABANDONED_MS: time without a connection after which a session counts as abandoned. POLL_MS:
 * interval at which clv_session_close_abandoned checks the sessions. */
enum { ABANDONED_MS = 2000, POLL_MS = 50 };

/* Returns for how long the session has had no connection of its master, ms; 0: the session has a
 * connection, or is being closed. Caller holds s->lock. */
static uint64_t get_detached_ms(const clv_session *s, uint64_t now_ms) {
  clv_link_counts c;
  if (s->is_closing) return 0;
  if (!s->master_link) return now_ms - s->opened_ms;
  if (!clv_link_is_mending(s->master_link)) return 0;
  clv_link_get_counts(s->master_link, &c);
  return c.current_outage_ns / 1000000u;
}

static bool is_of_same_program(const clv_session *a, const clv_session *b) {
  return a != b && a->is_only_attempt && b->is_only_attempt && strcmp(a->owner, b->owner) == 0 &&
         strcmp(a->name, b->name) == 0;
}

/* Returns the session of the same program that has been without its master's connection for the
 * longest time, with a new reference; NULL: none. *ret_ms: that time, ms. */
static clv_session *find_detached_session(const clv_session *newer_session, uint64_t *ret_ms) {
  clv_service *v = newer_session->service;
  clv_session *longest_detached = NULL;
  *ret_ms = 0;
  pthread_mutex_lock(&v->lock);
  uint64_t now_ms = clv_now_ns() / 1000000u;
  for (uint32_t i = 0; i < v->n_sessions; i++) {
    clv_session *s = v->sessions[i];
    if (!is_of_same_program(s, newer_session)) continue;
    pthread_mutex_lock(&s->lock);
    uint64_t ms = get_detached_ms(s, now_ms);
    pthread_mutex_unlock(&s->lock);
    if (ms <= *ret_ms) continue;
    *ret_ms = ms;
    longest_detached = s;
  }
  if (longest_detached) clv_session_ref(longest_detached);
  pthread_mutex_unlock(&v->lock);
  return longest_detached;
}

bool clv_session_close_abandoned(const clv_session *newer_session) {
  for (unsigned waited_ms = 0; waited_ms <= ABANDONED_MS; waited_ms += POLL_MS) {
    uint64_t ms;
    CLV_AUTO(clv_session_unrefp)
    clv_session *old_session = find_detached_session(newer_session, &ms);
    if (!old_session) return false;
    if (ms >= ABANDONED_MS) {
      clv_session_close(old_session, "its program has ended, and a newer one has taken its place");
      return true;
    }
    nanosleep(&(struct timespec){0, POLL_MS * 1000 * 1000}, NULL);
  }
  return false;
}
