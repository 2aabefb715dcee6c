/* SPDX-License-Identifier: Apache-2.0
 *
 * The life of a link: lanes join it and are attached, one of them ends or somebody ends it, and all
 * are gone. What a fact changes is recorded under the lock; calls out come after it.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/net/link/link_int.h"

/* ---- facts ----------------------------------------------------------------------------------- */

typedef clv_code life_action(clv_link *l, clv_link_event_args *n, clv_err *err);

static clv_code refuse(clv_link *l, clv_link_event_args *n, clv_err *err) {
  (void)l;
  return clv_fail(err, CLV_PRECONDITION, "lane %u of %u is taken, out of range or too late",
                  n->index, n->lanes);
}

static clv_code join(clv_link *l, clv_link_event_args *n, clv_err *err) {
  if (n->index >= MAX_LANES || n->index >= n->lanes || l->lanes[n->index] ||
      (l->n_lanes && l->n_lanes != n->lanes))
    return refuse(l, n, err);
  l->n_lanes = n->lanes;
  l->lanes[n->index] = true;
  l->n_joined++;
  l->life = CLV_LINK_ATTACHING;
  return CLV_OK;
}

static clv_code attach(clv_link *l, clv_link_event_args *n, clv_err *err) {
  (void)n, (void)err;
  if (++l->n_attached == l->n_lanes) l->life = CLV_LINK_OPEN;
  return CLV_OK;
}

static clv_code end(clv_link *l, clv_link_event_args *n, clv_err *err) {
  (void)err;
  n->first = true;
  l->close_code = n->code;
  snprintf(l->close_text, sizeof l->close_text, "%s", n->text);
  l->life = l->n_joined ? CLV_LINK_ENDING : CLV_LINK_ENDED;
  return CLV_OK;
}

static clv_code lose(clv_link *l, clv_link_event_args *n, clv_err *err) {
  if (n->index >= MAX_LANES || !l->lanes[n->index]) return refuse(l, n, err);
  l->lanes[n->index] = false;
  if (--l->n_joined == 0) l->life = CLV_LINK_ENDED;
  return CLV_OK;
}

static clv_code pass(clv_link *l, clv_link_event_args *n, clv_err *err) {
  (void)l, (void)n, (void)err;
  return CLV_OK;
}

/* PROTOCOL.md 4: each lane once, all of the same number; if any lane ends, all are closed. */
static life_action *const actions[CLV_LINK_STATES][CLV_LINK_STATE_EVENTS] = {
    /*                       JOIN    ATTACHED END   GONE */
    [CLV_LINK_NEW] = {join, refuse, end, refuse},
    [CLV_LINK_ATTACHING] = {join, attach, end, refuse},
    [CLV_LINK_OPEN] = {refuse, refuse, end, refuse},
    [CLV_LINK_ENDING] = {refuse, pass, pass, lose},
    [CLV_LINK_ENDED] = {refuse, refuse, pass, refuse},
};

clv_code clv_link_on_event(clv_link *l, clv_link_state_event fact, clv_link_event_args *n,
                           clv_err *err) {
  pthread_mutex_lock(&l->lock);
  clv_code code = actions[l->life][fact](l, n, err);
  pthread_cond_broadcast(&l->changed);
  pthread_mutex_unlock(&l->lock);
  return code;
}

/* ---- the end --------------------------------------------------------------------------------- */

void clv_link_end(clv_link *l, clv_code code, const char *text) {
  clv_err never;
  clv_link_event_args n = {.code = code, .text = text};
  const clv_link_events *owner = &l->events;
  (void)!clv_link_on_event(l, CLV_LINK_ENDS, &n, &never); /* no state refuses it */
  if (!n.first) return;
  clv_send_queue_end(l->out);
  clv_reassembly_end(&l->in);
  clv_frame_writer_shut(l->writer, code, text);
  owner->on_closed(owner->user, l, code, text);
}

void clv_link_lane_ended(clv_link *l, uint32_t index) {
  clv_err never;
  clv_link_event_args n = {.index = index};
  clv_frame_writer_detach(l->writer, index);
  (void)!clv_link_on_event(l, CLV_LINK_LANE_ENDED, &n, &never);
}

void clv_link_hang_up(clv_link *l) {
  pthread_mutex_lock(&l->lock);
  clv_dialler d = l->dialler;
  l->dialler = (clv_dialler){0};
  pthread_mutex_unlock(&l->lock);
  if (d.hang_up) d.hang_up(d.user);
}

bool clv_link_wait(clv_link *l, uint64_t deadline_ns) {
  struct timespec ts = {(time_t)(deadline_ns / 1000000000u), (long)(deadline_ns % 1000000000u)};
  return !l->clock.now_ns && pthread_cond_timedwait(&l->changed, &l->lock, &ts) == 0;
}

/* ---- lifetime -------------------------------------------------------------------------------- */

static clv_code fill(clv_link *l, const clv_link_options *o, clv_err *err) {
  CLV_TRY(clv_frame_writer_new(o->peer_name, &l->writer, err));
  CLV_TRY(clv_send_queue_new(l->writer, &o->clock, o->send_credit, &l->out, err));
  CLV_TRY(clv_recv_window_new(l->writer, o->accept.credit_bytes, l, &l->recv_window, err));
  return clv_reassembly_init(&l->in, o, l, l->recv_window, err);
}

clv_code clv_link_new(const clv_link_options *o, clv_link **ret, clv_err *err) {
  clv_link *l;
  CLV_TRY(clv_alloc(1, sizeof *l, &l, err));
  pthread_mutex_init(&l->lock, NULL);
  pthread_condattr_t monotonic;
  pthread_condattr_init(&monotonic);
  pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
  pthread_cond_init(&l->changed, &monotonic);
  pthread_condattr_destroy(&monotonic);
  l->refs = 1;
  snprintf(l->peer, sizeof l->peer, "%s", o->peer_name);
  l->accept = o->accept;
  l->events = o->events;
  l->clock = o->clock;
  clv_code code = fill(l, o, err);
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

/* Its memory goes with its recv_window: packets that came by it may still be there. */
void clv_link_unref(clv_link *l) {
  if (!l || __atomic_fetch_sub(&l->refs, 1, __ATOMIC_ACQ_REL) != 1) return;
  clv_recv_window *recv_window = l->recv_window;
  clv_link_hang_up(l);
  clv_reassembly_done(&l->in);
  clv_send_queue_unref(l->out);
  clv_frame_writer_unref(l->writer);
  pthread_cond_destroy(&l->changed);
  pthread_mutex_destroy(&l->lock);
  if (!recv_window) free(l);
  clv_recv_window_unref(recv_window);
}

void clv_link_unrefp(clv_link **l) {
  clv_link_unref(*l);
  *l = NULL;
}

const char *clv_link_peer(const clv_link *l) { return l->peer; }
bool clv_link_has_violation(const clv_link *l) {
  return __atomic_load_n(&l->refused, __ATOMIC_RELAXED);
}
