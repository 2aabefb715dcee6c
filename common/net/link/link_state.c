/* SPDX-License-Identifier: Apache-2.0
 *
 * States of a link. lane.c, link.c and the transport report events through clv_link_on_event. An
 * action changes the link under its lock; calls to other parts follow after the lock is released.
 *
 * NEW: no lane has joined. The first JOINS enters ATTACHING, an end enters ENDED.
 *
 * ATTACHING: some lanes have joined, not all are attached. The last ATTACHED enters OPEN, an end
 * enters ENDING.
 *
 * OPEN: all lanes are attached; packets flow. A further lane is refused. JOINS with a higher number
 * of the connection waits until the present connection of the lane has ended. ATTACHED of a
 * connection that has left its lane changes nothing, here and in MENDING. LOST enters MENDING,
 * or is refused if the link has no lease (lane.c then ends the link); an end enters ENDING.
 *
 * MENDING: some lanes have lost their connection. Messages for them stay in their logs, packets
 * flow on the others. JOINS with a higher number of the connection joins the lane again. The last
 * ATTACHED enters OPEN, an end enters ENDING. redial.c ends the link when a lane stays lost.
 *
 * ENDING: the link has ended, and streams are being closed or cancelled. New lanes are refused. The
 * end of the last lane enters ENDED.
 *
 * ENDED: no lane is left. Every event but another end is refused.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/net/link/link_int.h"

/* interval in which a wait polls the cancellation hook of its thread */
enum { POLL_NS = 50000000 };

/* ---- actions for events ---------------------------------------------------------------------- */

typedef clv_code state_action(clv_link *l, clv_link_event_args *n, clv_err *err);

static clv_code refuse_event(clv_link *l, clv_link_event_args *n, clv_err *err) {
  if (l->state >= CLV_LINK_ENDING)
    return clv_fail(err, CLV_PRECONDITION, "the link is closing, lane %u came too late",
                    n->lane_index);
  if (n->lane_index >= MAX_LANES || n->lane_index >= n->n_lanes)
    return clv_fail(err, CLV_PRECONDITION, "lane %u is out of range: the peer states %u lanes",
                    n->lane_index, n->n_lanes);
  if (l->n_lanes != n->n_lanes)
    return clv_fail(err, CLV_PRECONDITION, "lane %u states %u lanes, but the link has %u",
                    n->lane_index, n->n_lanes, l->n_lanes);
  return clv_fail(err, CLV_PRECONDITION, "lane %u is already attached", n->lane_index);
}

static clv_code join_lane(clv_link *l, clv_link_event_args *n, clv_err *err) {
  if (n->lane_index >= MAX_LANES || n->lane_index >= n->n_lanes ||
      l->lanes[n->lane_index].has_stream || (l->n_lanes && l->n_lanes != n->n_lanes))
    return refuse_event(l, n, err);
  if (n->connection_number)
    return clv_fail(err, CLV_NOT_FOUND, "lane %u has no earlier connection", n->lane_index);
  CLV_FAILPOINT("link.join_lane");
  l->n_lanes = n->n_lanes;
  l->lanes[n->lane_index].has_stream = true;
  if (n->lane) n->lane->has_joined = true;
  l->n_lanes_with_stream++;
  l->state = CLV_LINK_ATTACHING;
  return CLV_OK;
}

/* Returns the stream of the lane that waits for a slot, with a reference, and clears the slot. */
static clv_stream take_waiting_stream(clv_lane_slot *s) {
  const clv_lane *waiting = clv_steal(&s->waiting_lane);
  return waiting ? clv_stream_ref(waiting->stream) : (clv_stream){0};
}

/* Joins a lane again over a new connection, or lets it wait for the end of the present one. Refuses
 * a connection whose number is not above that of the last one. */
static clv_code join_again(clv_link *l, clv_link_event_args *n, clv_err *err) {
  clv_lane_slot *s = &l->lanes[n->lane_index < MAX_LANES ? n->lane_index : 0];
  if (n->lane_index >= l->n_lanes || l->n_lanes != n->n_lanes || !n->connection_number ||
      !l->lease_ms)
    return refuse_event(l, n, err);
  if (n->connection_number <= s->connection_number)
    return clv_fail(err, CLV_PRECONDITION, "connection %llu of lane %u is older than %llu",
                    (unsigned long long)n->connection_number, n->lane_index,
                    (unsigned long long)s->connection_number);
  CLV_FAILPOINT("link.join_again");
  s->connection_number = n->connection_number;
  n->must_wait = s->has_stream;
  if (n->must_wait) {
    n->replaced_stream = take_waiting_stream(s);
    s->waiting_lane = n->lane;
    return CLV_OK;
  }
  s->has_stream = true;
  s->joined_connection_number = n->connection_number;
  if (n->lane) n->lane->has_joined = true;
  l->n_lanes_with_stream++;
  return CLV_OK;
}

/* Counts an outage that has ended. */
static void count_outage(clv_link *l, uint64_t now) {
  l->counts.n_outages++;
  l->counts.last_outage_ns = now - l->outage_since_ns;
  l->outage_ended_ns = now;
  l->outage_since_ns = 0;
}

/* True if the connection of an ATTACHED has left its lane. A thread that answers the ATTACH of a
 * waiting connection may report it after that connection has been lost. */
static bool has_left_lane(const clv_lane_slot *s, const clv_link_event_args *n) {
  return !s->has_stream || s->joined_connection_number != n->connection_number;
}

static clv_code attach_lane(clv_link *l, clv_link_event_args *n, clv_err *err) {
  clv_lane_slot *s = &l->lanes[n->lane_index];
  CLV_FAILPOINT("link.attach_lane");
  if (has_left_lane(s, n)) return CLV_OK;
  if (s->is_attached) return refuse_event(l, n, err);
  if (s->lost_since_ns) l->counts.n_reconnects++;
  s->is_attached = true;
  s->lost_since_ns = s->attach_deadline_ns = 0;
  s->attached_ns = clv_clock_now(&l->clock);
  if (++l->n_attached == l->n_lanes) {
    l->state = CLV_LINK_OPEN;
    if (l->outage_since_ns) count_outage(l, s->attached_ns);
  }
  return CLV_OK;
}

/* Records how a redial has failed. Counts as refused: no process listens, the host does not
 * accept our certificate, or the host does not prove its identity. */
static void record_failed_redial(clv_link *l, clv_code code, const char *text) {
  clv_redials *r = &l->redials;
  snprintf(r->failure_text, sizeof r->failure_text, "%s", text);
  bool is_refused = code == CLV_UNAUTHENTICATED || strstr(text, CLV_RPC_REFUSED);
  r->last_refused_ns = clv_clock_now(&l->clock);
  if (!is_refused || !r->refused_since_ns)
    r->refused_since_ns = is_refused ? r->last_refused_ns : 0;
}

/* Records the loss of an attached connection. The first redial comes at once, unless the connection
 * was lost soon after it had been made. */
static void record_lost_connection(clv_link *l, clv_lane_slot *s, const char *text) {
  clv_redials *r = &l->redials;
  uint64_t now = clv_clock_now(&l->clock);
  l->n_attached--;
  s->lost_since_ns = CLV_MAX(now, UINT64_C(1));
  if (!l->outage_since_ns) l->outage_since_ns = s->lost_since_ns;
  snprintf(l->lost_text, sizeof l->lost_text, "%s", text);
  if (now - s->attached_ns < (uint64_t)STABLE_MS * 1000000u) return;
  r->redial_pause_ms = r->next_redial_ns = r->refused_since_ns = 0;
  r->failure_text[0] = '\0';
}

/* Lets the connection that has waited for the slot join. */
static void join_waiting_lane(clv_lane_slot *s, clv_link_event_args *n) {
  clv_lane *ln = clv_steal(&s->waiting_lane);
  n->joining_stream = clv_stream_ref(ln->stream);
  n->connection_number = s->joined_connection_number = ln->connection_number;
  n->n_peer_received = ln->n_peer_received;
  ln->has_joined = true;
  __atomic_store_n(&ln->state, ln->lane_index ? CLV_LANE_BULK : CLV_LANE_CONTROL, __ATOMIC_RELAXED);
}

/* Removes the connection of a lane. A later connection that waits for this takes its place. */
static clv_code lose_lane(clv_link *l, clv_link_event_args *n, clv_err *err) {
  clv_lane_slot *s = &l->lanes[n->lane_index < MAX_LANES ? n->lane_index : 0];
  if (!l->lease_ms || n->lane_index >= MAX_LANES || !s->has_stream) return refuse_event(l, n, err);
  CLV_FAILPOINT("link.lose_lane");
  if (s->is_attached)
    record_lost_connection(l, s, n->end_text);
  else
    record_failed_redial(l, n->end_code, n->end_text);
  s->is_attached = false;
  s->attach_deadline_ns = 0;
  if (s->waiting_lane) {
    join_waiting_lane(s, n);
  } else {
    s->has_stream = false;
    l->n_lanes_with_stream--;
  }
  l->redials.n_losses++;
  l->state = CLV_LINK_MENDING;
  return CLV_OK;
}

static clv_code end_link(clv_link *l, clv_link_event_args *n, clv_err *err) {
  (void)err;
  CLV_FAILPOINT("link.end_link");
  n->is_first_end = true;
  l->close_code = n->end_code;
  snprintf(l->close_text, sizeof l->close_text, "%s", n->end_text);
  l->state = l->n_lanes_with_stream ? CLV_LINK_ENDING : CLV_LINK_ENDED;
  return CLV_OK;
}

static clv_code remove_lane(clv_link *l, clv_link_event_args *n, clv_err *err) {
  if (n->lane_index >= MAX_LANES || !l->lanes[n->lane_index].has_stream)
    return refuse_event(l, n, err);
  CLV_FAILPOINT("link.remove_lane");
  l->lanes[n->lane_index].has_stream = false;
  if (--l->n_lanes_with_stream == 0) l->state = CLV_LINK_ENDED;
  return CLV_OK;
}

static clv_code ignore_event(clv_link *l, clv_link_event_args *n, clv_err *err) {
  (void)l, (void)n, (void)err;
  return CLV_OK;
}

/* Actions for each state and event. PROTOCOL.md 4: all lanes state the same number of lanes, each
 * lane joins once, and again after it has lost its connection. */
static state_action *const actions[CLV_LINK_STATES][CLV_LINK_STATE_EVENTS] = {
    /* JOINS ATTACHED LOST ENDS LANE_ENDED */
    [CLV_LINK_NEW] = {join_lane, refuse_event, refuse_event, end_link, refuse_event},
    [CLV_LINK_ATTACHING] = {join_lane, attach_lane, refuse_event, end_link, refuse_event},
    [CLV_LINK_OPEN] = {join_again, attach_lane, lose_lane, end_link, refuse_event},
    [CLV_LINK_MENDING] = {join_again, attach_lane, lose_lane, end_link, refuse_event},
    [CLV_LINK_ENDING] = {refuse_event, ignore_event, refuse_event, ignore_event, remove_lane},
    [CLV_LINK_ENDED] = {refuse_event, refuse_event, refuse_event, ignore_event, refuse_event},
};

clv_code clv_link_on_event(clv_link *l, clv_link_state_event event, clv_link_event_args *n,
                           clv_err *err) {
  pthread_mutex_lock(&l->lock);
  clv_code code = actions[l->state][event](l, n, err);
  __atomic_store_n(&l->is_mending, l->state == CLV_LINK_MENDING, __ATOMIC_RELAXED);
  pthread_cond_broadcast(&l->state_changed);
  if (event == CLV_LINK_LANE_LOST || event == CLV_LINK_ENDS)
    pthread_cond_signal(&l->redials.wake_thread);
  pthread_mutex_unlock(&l->lock);
  return code;
}

/* ---- ending a link --------------------------------------------------------------------------- */

/* Cancels the connections that waited for the end of earlier ones. */
static void cancel_waiting_lanes(clv_link *l, clv_code code, const char *text) {
  for (uint32_t i = 0; i < MAX_LANES; i++) {
    pthread_mutex_lock(&l->lock);
    clv_stream s = take_waiting_stream(&l->lanes[i]);
    pthread_mutex_unlock(&l->lock);
    if (s.transport) s.transport->cancel(s.handle, code == CLV_OK ? CLV_CANCELLED : code, text);
    clv_stream_unref(&s);
  }
}

void clv_link_end(clv_link *l, clv_code code, const char *text) {
  clv_err unused;
  clv_link_event_args n = {.end_code = code, .end_text = text};
  const clv_link_events *owner = &l->events;
  (void)!clv_link_on_event(l, CLV_LINK_ENDS, &n, &unused); /* no state refuses CLV_LINK_ENDS */
  if (!n.is_first_end) return;
  __atomic_store_n(&l->redials.is_stopping, true, __ATOMIC_RELAXED);
  clv_send_queue_end(l->send_queue);
  clv_reassembly_free_waiting_packets(&l->reassembly);
  clv_frame_writer_shut(l->writer, code, text);
  cancel_waiting_lanes(l, code, text);
  owner->on_closed(owner->user, l, code, text);
}

void clv_link_record_lane_end(clv_link *l, uint32_t index, uint64_t connection) {
  clv_err unused;
  clv_link_event_args n = {.lane_index = index};
  clv_frame_writer_detach_stream(l->writer, index, connection);
  (void)!clv_link_on_event(l, CLV_LINK_LANE_ENDED, &n, &unused);
}

void clv_link_hang_up(clv_link *l) {
  pthread_mutex_lock(&l->lock);
  clv_dialler d = l->dialler;
  l->dialler = (clv_dialler){0};
  pthread_mutex_unlock(&l->lock);
  if (d.hang_up) d.hang_up(d.user);
}

bool clv_link_wait_for_change(clv_link *l, uint64_t deadline_ns) {
  struct timespec ts = {(time_t)(deadline_ns / 1000000000u), (long)(deadline_ns % 1000000000u)};
  return !l->clock.now_ns && pthread_cond_timedwait(&l->state_changed, &l->lock, &ts) == 0;
}

bool clv_link_wait_unless_stopped(clv_link *l, uint64_t deadline_ns) {
  clv_err ignored;
  if (!clv_rpc_has_cancel_hook() || l->clock.now_ns)
    return clv_link_wait_for_change(l, deadline_ns);
  uint64_t next_poll_ns = clv_clock_now(&l->clock) + POLL_NS;
  bool has_changed = clv_link_wait_for_change(l, CLV_MIN(next_poll_ns, deadline_ns));
  return has_changed ||
         (next_poll_ns < deadline_ns && clv_rpc_check_cancel_hook(&ignored) == CLV_OK);
}

/* ---- making and freeing links ---------------------------------------------------------------- */

static clv_code make_link_parts(clv_link *l, const clv_link_options *o, clv_err *err) {
  CLV_TRY(clv_frame_writer_new(o->peer_name, &l->writer, err));
  l->writer->forgets_accepted_messages = !o->lease_ms;
  CLV_TRY(clv_send_queue_new(l->writer, &o->clock, o->initial_send_credit, &l->send_queue, err));
  CLV_TRY(clv_recv_window_new(l->writer, o->accept_limits.credit_bytes, l, &l->recv_window, err));
  return clv_reassembly_init(&l->reassembly, o, l, l->recv_window, err);
}

clv_code clv_link_new(const clv_link_options *o, clv_link **ret, clv_err *err) {
  clv_link *l;
  CLV_TRY(clv_alloc(1, sizeof *l, &l, err));
  pthread_mutex_init(&l->lock, NULL);
  pthread_condattr_t monotonic_attr;
  pthread_condattr_init(&monotonic_attr);
  pthread_condattr_setclock(&monotonic_attr, CLOCK_MONOTONIC);
  pthread_cond_init(&l->state_changed, &monotonic_attr);
  pthread_cond_init(&l->redials.wake_thread, &monotonic_attr);
  pthread_condattr_destroy(&monotonic_attr);
  l->refs = 1;
  snprintf(l->peer_name, sizeof l->peer_name, "%s", o->peer_name);
  l->accept_limits = o->accept_limits;
  l->events = o->events;
  l->clock = o->clock;
  l->lease_ms = o->lease_ms;
  l->refusal_timeout_ms = o->refusal_timeout_ms ? o->refusal_timeout_ms : REFUSED_MS;
  clv_code code = make_link_parts(l, o, err);
  if (code != CLV_OK) {
    clv_link_unref(l);
    return code;
  }
  *ret = l;
  return CLV_OK;
}

clv_link *clv_link_ref(clv_link *l) {
  __atomic_fetch_add(&l->refs, 1, __ATOMIC_RELAXED);
  return l;
}

/* The link's block is freed with its receive window, because received packets may still read its
 * name. */
void clv_link_unref(clv_link *l) {
  if (!l || __atomic_fetch_sub(&l->refs, 1, __ATOMIC_ACQ_REL) != 1) return;
  clv_recv_window *recv_window = l->recv_window;
  clv_link_hang_up(l);
  clv_reassembly_clear(&l->reassembly);
  clv_send_queue_unref(l->send_queue);
  clv_frame_writer_unref(l->writer);
  pthread_cond_destroy(&l->state_changed);
  pthread_cond_destroy(&l->redials.wake_thread);
  pthread_mutex_destroy(&l->lock);
  if (!recv_window) free(l);
  clv_recv_window_unref(recv_window);
}

void clv_link_unrefp(clv_link **l) {
  clv_link_unref(*l);
  *l = NULL;
}

const char *clv_link_peer_name(const clv_link *l) { return l->peer_name; }
bool clv_link_is_mending(const clv_link *l) {
  return __atomic_load_n(&l->is_mending, __ATOMIC_RELAXED);
}
bool clv_link_is_peer_mending(const clv_link *l) {
  return __atomic_load_n(&l->is_peer_mending, __ATOMIC_RELAXED);
}
bool clv_link_has_violation(const clv_link *l) {
  return __atomic_load_n(&l->has_violation, __ATOMIC_RELAXED);
}
