/* SPDX-License-Identifier: Apache-2.0
 *
 * Takes over what a program left that ended without closing its session, as a notebook does whose
 * kernel is killed. A session outlives its connections for limits.lease, so until then it counts
 * against the quotas of its identity. When a quota refuses a session or a module of a program,
 * clv_session_make_room closes the abandoned session of the same identity and the same session
 * name, and the caller tries again.
 *
 * A session counts as abandoned if its master is a program, which no later attempt continues, and
 * if its connections are closed and were not made again within ABANDONED_MS. A program that lives
 * dials again at once. A connection that is only silent counts as closed after limits.peer_timeout.
 */
#include <string.h>
#include <time.h>

#include "worker/service/service_int.h"

enum { ABANDONED_MS = 2000, STEP_MS = 50 };

/* Returns for how long the session has had no connection of its master, ms; 0: it has one, or is
 * being closed. Caller holds s->lock. */
static uint64_t detached_ms(const clv_session *s, uint64_t now_ms) {
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

/* Returns the session of the same program that was detached first, with a new reference; NULL:
 * there is none. */
static clv_session *find_detached(const clv_session *newer, uint64_t *ret_ms) {
  clv_service *v = newer->service;
  clv_session *found = NULL;
  *ret_ms = 0;
  pthread_mutex_lock(&v->lock);
  uint64_t now_ms = clv_now_ns() / 1000000u;
  for (uint32_t i = 0; i < v->n_sessions; i++) {
    clv_session *s = v->sessions[i];
    if (!is_of_same_program(s, newer)) continue;
    pthread_mutex_lock(&s->lock);
    uint64_t ms = detached_ms(s, now_ms);
    pthread_mutex_unlock(&s->lock);
    if (ms <= *ret_ms) continue;
    *ret_ms = ms;
    found = s;
  }
  if (found) clv_session_ref(found);
  pthread_mutex_unlock(&v->lock);
  return found;
}

bool clv_session_make_room(const clv_session *newer) {
  for (unsigned waited_ms = 0; waited_ms <= ABANDONED_MS; waited_ms += STEP_MS) {
    uint64_t ms;
    CLV_AUTO(clv_session_unrefp) clv_session *old = find_detached(newer, &ms);
    if (!old) return false;
    if (ms >= ABANDONED_MS) {
      clv_session_close(old, "its program has ended, and a newer one has taken its place");
      return true;
    }
    nanosleep(&(struct timespec){0, STEP_MS * 1000 * 1000}, NULL);
  }
  return false;
}
