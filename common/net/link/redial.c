/* SPDX-License-Identifier: Apache-2.0
 *
 * Lost connections of a link: the dialling side dials the lanes again, and both sides end the link
 * when a lane stays lost for the link's lease. One thread of a dialled link does that
 * (clv_link_start_redials); the accepting side and simulations call clv_link_redial_or_end.
 *
 * A lost lane is dialled at once, and once more if that fails, then after pauses of 0.2 s to 2 s. A
 * host that is silent, or that cannot be reached, is dialled until the lease is over. The link ends
 * sooner if the host refuses each connection for refusal_timeout_ms, because then no process
 * listens there. It ends at once if the peer refuses ATTACH, because then the peer does not have
 * the link any more.
 */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "common/net/link/link_int.h"

#define NS_PER_MS UINT64_C(1000000)

/* ---- finding the work that is due ------------------------------------------------------------ */

/* Work that a link has to do now. */
typedef struct due_work {
  bool ends_link; /* the link must end, for the reason end_text */
  char end_text[CLV_ERR_TEXT];
  bool must_redial;                             /* a lost lane must be dialled again now */
  uint32_t n_late_lanes, late_lanes[MAX_LANES]; /* lanes whose ATTACHED is overdue */
  uint64_t next_work_ns;                        /* time at which there is more to do, ns */
} due_work;

static bool is_lane_lost(const clv_lane_slot *s) { return s->lost_since_ns && !s->has_stream; }

/* Ends the link if a lane is lost for too long. The caller holds the lock. */
static void end_if_lease_expired(clv_link *l, const clv_lane_slot *s, uint64_t now, due_work *d) {
  if (!s->lost_since_ns) return;
  uint64_t lease_end_ns = s->lost_since_ns + l->lease_ms * NS_PER_MS;
  d->next_work_ns = CLV_MIN(d->next_work_ns, lease_end_ns);
  if (now < lease_end_ns || d->ends_link) return;
  d->ends_link = true;
  snprintf(d->end_text, sizeof d->end_text,
           "%.200s; not connected again within %g s (limits.lease)%s%.120s", l->lost_text,
           (double)l->lease_ms / 1e3, l->redials.failure_text[0] ? ": " : "",
           l->redials.failure_text);
}

/* Ends the link if the peer's host has refused each redial for refusal_timeout_ms, the last one
 * included. The caller holds the lock. */
static void end_if_refused_too_long(clv_link *l, due_work *d) {
  const clv_redials *r = &l->redials;
  bool has_timed_out =
      r->last_refused_ns - r->refused_since_ns >= l->refusal_timeout_ms * NS_PER_MS;
  if (!r->refused_since_ns || !has_timed_out || d->ends_link) return;
  d->ends_link = true;
  snprintf(d->end_text, sizeof d->end_text, "%.200s; its host refuses connections: %.200s",
           l->lost_text, r->failure_text);
}

/* Finds out whether the ATTACHED of this lane is overdue. The caller holds the lock. */
static void find_late_lane(clv_lane_slot *s, uint32_t index, uint64_t now, due_work *d) {
  if (!s->attach_deadline_ns) return;
  if (now < s->attach_deadline_ns) {
    d->next_work_ns = CLV_MIN(d->next_work_ns, s->attach_deadline_ns);
    return;
  }
  s->attach_deadline_ns = 0;
  d->late_lanes[d->n_late_lanes++] = index;
}

/* Decides whether a lost lane must be dialled now, and when the next redial is due. The caller
 * holds the lock. */
static void find_due_redials(clv_link *l, bool has_lost_lane, uint64_t now, due_work *d) {
  clv_redials *r = &l->redials;
  if (!has_lost_lane || !l->dialler.dial_stream) return;
  if (now < r->next_redial_ns) {
    d->next_work_ns = CLV_MIN(d->next_work_ns, r->next_redial_ns);
    return;
  }
  d->must_redial = true;
  r->next_redial_ns = now + r->redial_pause_ms * NS_PER_MS;
  /* time of the last redial: the link ends if that one is refused, too */
  uint64_t last_redial_ns = r->refused_since_ns + l->refusal_timeout_ms * NS_PER_MS;
  if (r->refused_since_ns && now < last_redial_ns)
    r->next_redial_ns = CLV_MIN(r->next_redial_ns, last_redial_ns);
  r->redial_pause_ms = r->redial_pause_ms ? CLV_MIN(2 * r->redial_pause_ms, (uint64_t)REDIAL_MAX_MS)
                                          : REDIAL_FIRST_MS;
}

static due_work find_due_work(clv_link *l) {
  due_work d = {.next_work_ns = UINT64_MAX};
  bool has_lost_lane = false;
  d.ends_link = clv_frame_writer_is_broken(l->writer, d.end_text);
  pthread_mutex_lock(&l->lock);
  uint64_t now = clv_clock_now(&l->clock);
  if (l->state != CLV_LINK_MENDING) {
    d.ends_link &= l->state < CLV_LINK_ENDING;
    pthread_mutex_unlock(&l->lock);
    return d;
  }
  for (uint32_t i = 0; i < l->n_lanes; i++) {
    end_if_lease_expired(l, &l->lanes[i], now, &d);
    find_late_lane(&l->lanes[i], i, now, &d);
    has_lost_lane |= is_lane_lost(&l->lanes[i]);
  }
  end_if_refused_too_long(l, &d);
  if (!d.ends_link) find_due_redials(l, has_lost_lane, now, &d);
  pthread_mutex_unlock(&l->lock);
  return d;
}

/* ---- dialling lost lanes --------------------------------------------------------------------- */

/* Begins a redial of lane `index`, if it is lost. Returns the number of the connection; 0: it is
 * not lost. */
static uint64_t begin_redial(clv_link *l, uint32_t index) {
  uint64_t connection = 0;
  pthread_mutex_lock(&l->lock);
  clv_lane_slot *s = &l->lanes[index];
  if (l->state == CLV_LINK_MENDING && index < l->n_lanes && is_lane_lost(s)) {
    connection = s->connection_number + 1;
    s->attach_deadline_ns = clv_clock_now(&l->clock) + ATTACH_TIMEOUT_MS * NS_PER_MS;
  }
  pthread_mutex_unlock(&l->lock);
  return connection;
}

/* Dials the lost lanes. Stops at the first failure, because the other lanes have the same peer. */
static void redial_lanes(clv_link *l) {
  for (uint32_t i = 0; i < MAX_LANES; i++) {
    clv_err err;
    uint64_t connection = begin_redial(l, i);
    if (connection && clv_link_dial_lane(l, i, connection, &err) != CLV_OK) return;
  }
}

uint64_t clv_link_redial_or_end(clv_link *l) {
  due_work d = find_due_work(l);
  if (d.ends_link) {
    clv_link_end(l, CLV_UNAVAILABLE, d.end_text);
    return UINT64_MAX;
  }
  for (uint32_t i = 0; i < d.n_late_lanes; i++)
    clv_frame_writer_cancel_lane_stream(l->writer, d.late_lanes[i], "no answer to ATTACH");
  if (!d.must_redial) return d.next_work_ns;
  redial_lanes(l);
  return clv_clock_now(&l->clock);
}

/* ---- the thread that redials ----------------------------------------------------------------- */

/* Waits until a lane is lost, or until `until_ns` while the link is mending. False: the link has
 * ended. */
static bool wait_for_work(clv_link *l, uint64_t until_ns) {
  struct timespec ts = {(time_t)(until_ns / 1000000000u), (long)(until_ns % 1000000000u)};
  pthread_mutex_lock(&l->lock);
  uint64_t n_losses = l->redials.n_losses;
  while (l->state < CLV_LINK_ENDING && n_losses == l->redials.n_losses_seen) {
    if (l->state != CLV_LINK_MENDING)
      pthread_cond_wait(&l->redials.wake_thread, &l->lock);
    else if (pthread_cond_timedwait(&l->redials.wake_thread, &l->lock, &ts) != 0)
      break;
    n_losses = l->redials.n_losses;
  }
  l->redials.n_losses_seen = n_losses;
  bool is_link_running = l->state < CLV_LINK_ENDING;
  pthread_mutex_unlock(&l->lock);
  return is_link_running;
}

static void *run_redials(void *link) {
  uint64_t next = 0;
  while (wait_for_work(link, next)) next = clv_link_redial_or_end(link);
  return NULL;
}

clv_code clv_link_start_redials(clv_link *l, clv_err *err) {
  if (!l->lease_ms || l->clock.now_ns) return CLV_OK;
  if (pthread_create(&l->redials.thread, NULL, run_redials, l) != 0)
    return clv_fail(err, CLV_EXHAUSTED, "no thread for connecting again to %s", l->peer_name);
  l->redials.has_thread = true;
  return CLV_OK;
}

void clv_link_stop_redials(clv_link *l) {
  if (!l->redials.has_thread) return;
  pthread_join(l->redials.thread, NULL);
  l->redials.has_thread = false;
}
