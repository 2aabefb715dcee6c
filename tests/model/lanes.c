/* SPDX-License-Identifier: Apache-2.0
 *
 * The log of a lane. A dialler sends messages to an acceptor over streams that break. Each lane has
 * a log of what the acceptor has not acknowledged, with the cursors `sent` and `acked`; a new
 * stream begins with ATTACH {again}, which the acceptor answers with ATTACHED {received}. ACKs of
 * all lanes travel on lane 0, outside its log. PROTOCOL.md has the table of functions.
 *
 * A broken stream may still hand over what was on its way, until the acceptor has seen its end.
 */
#include "tests/model/model.h"

#include <string.h>

enum { LANES = 2, STREAMS = 5, ACKS = 2, NOTHING = 255 };

enum { IDLE, ATTACHING, OPEN, ENDED }; /* states of a dialler's lane */

/* One stream of a lane. Messages from+1 to `to` are in flight. */
typedef struct stream {
  /* to the acceptor: DIAL arrived; ATTACH, and the end, are in flight */
  uint8_t is_dialled, attach_on_way, from, to, end_on_way;
  /* an ATTACHED in flight: its `received`; NOTHING: none */
  uint8_t attached_on_way;
  uint8_t is_taken; /* true: the acceptor reads from it */
  /* true: no more messages are put on it */
  uint8_t is_broken;
  uint8_t is_seen_closed;
} stream;

typedef struct lane {
  /* dialler; again: number of its stream; messages up to `freed` are no longer in its log */
  uint8_t phase, again, sent, acked, freed;
  /* acceptor; taken, pending: numbers of streams, 0: none */
  uint8_t received, taken, pending;
  uint8_t delivered;     /* messages that the engine received; only the model counts them */
  stream s[STREAMS + 1]; /* [again] streams, from 1 */
} lane;

typedef struct state {
  lane l[LANES];
  /* acknowledgements in flight on the present stream of lane 0 */
  uint8_t acks[ACKS][LANES], n_acks;
  uint8_t is_expired; /* true: the acceptor has ended the link */
  uint8_t is_twice, is_lost, is_freed_needed, is_old_taken;
} state;

static struct { uint8_t lanes, messages, streams; } size;

static const char *const breaks[] = {
    "answer_before_the_end", "log_freed_when_sent", "resume_at_sent",          "resume_at_acked",
    "old_stream_taken",      "cut_is_an_end",       "ack_before_the_delivery", "lease_forgets"};
enum {
  ANSWER_BEFORE_END,
  FREED_WHEN_SENT,
  RESUME_AT_SENT,
  RESUME_AT_ACKED,
  OLD_STREAM_TAKEN,
  CUT_IS_END,
  ACK_BEFORE_DELIVERY,
  LEASE_FORGETS
};

static void start(void *ret) {
  state *s = ret;
  for (int i = 0; i < LANES; i++)
    for (int k = 0; k <= STREAMS; k++) s->l[i].s[k].attached_on_way = NOTHING;
}

#define FOR_EACH_LANE(i) for (uint8_t i = 0; i < size.lanes; i++)
#define FOR_EACH_STREAM(k, l) for (uint8_t k = 1; k <= (l)->again; k++)

/* ---- the dialler ----------------------------------------------------------------------------- */

static void dial(model_walk *w, const void *from) {
  FOR_EACH_LANE(i) {
    state s = *(const state *)from;
    lane *l = &s.l[i];
    if (l->phase != IDLE || l->again == size.streams) continue;
    l->again++;
    l->phase = ATTACHING;
    l->s[l->again].is_dialled = l->s[l->again].attach_on_way = 1;
    model_next(w, &s, i);
  }
}

/* The dialler notices that its stream is broken, or gives up waiting for ATTACHED. */
static void lose_stream(model_walk *w, const void *from) {
  FOR_EACH_LANE(i) {
    state s = *(const state *)from;
    lane *l = &s.l[i];
    if (l->phase != ATTACHING && l->phase != OPEN) continue;
    if (l->phase == OPEN && !l->s[l->again].is_broken) continue;
    /* the last stream never breaks, so that a link can finish */
    if (l->again == size.streams) continue;
    l->phase = IDLE;
    l->s[l->again].is_broken = 1;
    l->s[l->again].attached_on_way = NOTHING;
    if (i == 0) s.n_acks = 0, memset(s.acks, 0, sizeof s.acks);
    model_next(w, &s, i);
  }
}

static void on_attached(model_walk *w, const void *from) {
  FOR_EACH_LANE(i) {
    state s = *(const state *)from;
    lane *l = &s.l[i];
    stream *at = &l->s[l->again];
    if (l->phase != ATTACHING || at->attached_on_way == NOTHING) continue;
    uint8_t received = at->attached_on_way;
    if (received > l->acked && !model_has_break(RESUME_AT_ACKED)) l->acked = received;
    if (l->acked > l->freed) l->freed = l->acked;
    if (!model_has_break(RESUME_AT_SENT)) l->sent = l->acked;
    at->from = at->to = l->sent;
    at->attached_on_way = NOTHING;
    l->phase = OPEN;
    model_next(w, &s, i);
  }
}

static void send_message(model_walk *w, const void *from) {
  FOR_EACH_LANE(i) {
    state s = *(const state *)from;
    lane *l = &s.l[i];
    if (l->phase != OPEN || l->sent == size.messages || l->s[l->again].is_broken) continue;
    s.is_freed_needed |= l->sent < l->freed;
    l->s[l->again].to = ++l->sent;
    if (model_has_break(FREED_WHEN_SENT)) l->freed = l->sent;
    model_next(w, &s, i);
  }
}

static void on_ack(model_walk *w, const void *from) {
  state s = *(const state *)from;
  if (!s.n_acks || s.l[0].phase != OPEN) return;
  FOR_EACH_LANE(i) {
    lane *l = &s.l[i];
    if (s.acks[0][i] > l->acked) l->acked = s.acks[0][i];
    if (l->acked > l->freed) l->freed = l->acked;
    if (l->phase == OPEN && l->sent < l->acked) l->sent = l->acked;
  }
  memmove(s.acks[0], s.acks[1], sizeof s.acks[0]);
  memset(s.acks[--s.n_acks], 0, sizeof s.acks[0]);
  model_next(w, &s, 0);
}

/* Ends the lane with status OK, when everything is acknowledged. */
static void end_lane(model_walk *w, const void *from) {
  FOR_EACH_LANE(i) {
    state s = *(const state *)from;
    lane *l = &s.l[i];
    if (l->phase != OPEN || l->acked != size.messages || l->s[l->again].is_broken) continue;
    FOR_EACH_LANE(k) if (s.l[k].acked != size.messages) goto next;
    l->phase = ENDED;
    l->s[l->again].end_on_way = 1;
    model_next(w, &s, i);
  next:;
  }
}

/* The acceptor does not have the link any more, so the dialler ends it. */
static void on_not_found(model_walk *w, const void *from) {
  state s = *(const state *)from;
  if (!s.is_expired) return;
  FOR_EACH_LANE(i) {
    lane *l = &s.l[i];
    if (l->phase != ATTACHING || !l->s[l->again].is_seen_closed) continue;
    FOR_EACH_LANE(k) s.l[k].phase = ENDED;
    model_next(w, &s, i);
    return;
  }
}

/* ---- the acceptor ---------------------------------------------------------------------------- */

static void answer(lane *l, uint8_t again) {
  l->taken = again;
  l->pending = 0;
  l->s[again].is_taken = 1;
  if (!l->s[again].is_broken) l->s[again].attached_on_way = l->received;
}

static void on_attach(model_walk *w, const void *from) {
  FOR_EACH_LANE(i) FOR_EACH_STREAM(k, &((const state *)from)->l[i]) {
    state s = *(const state *)from;
    lane *l = &s.l[i];
    if (!l->s[k].attach_on_way) continue;
    l->s[k].attach_on_way = 0;
    bool is_old = k <= l->taken || k <= l->pending;
    if (s.is_expired || (is_old && !model_has_break(OLD_STREAM_TAKEN))) {
      l->s[k].is_broken = l->s[k].is_seen_closed = 1;
      model_next(w, &s, i);
      continue;
    }
    s.is_old_taken |= is_old;
    bool has_old = l->taken && !l->s[l->taken].is_seen_closed;
    if (l->taken) l->s[l->taken].is_broken = 1;
    if (l->pending) l->s[l->pending].is_broken = l->s[l->pending].is_seen_closed = 1;
    if (has_old && !model_has_break(ANSWER_BEFORE_END))
      l->pending = k;
    else
      answer(l, k);
    model_next(w, &s, i);
  }
}

/* A stream delivers its next message. Message numbers are the model's own; the acceptor only
 * counts. */
static void deliver(model_walk *w, const void *from) {
  FOR_EACH_LANE(i) FOR_EACH_STREAM(k, &((const state *)from)->l[i]) {
    state s = *(const state *)from;
    lane *l = &s.l[i];
    stream *at = &l->s[k];
    if (!at->is_taken || at->is_seen_closed || at->from == at->to || s.is_expired) continue;
    at->from++;
    s.is_twice |= at->from <= l->delivered;
    s.is_lost |= at->from > l->delivered + 1;
    l->delivered++;
    l->received++;
    model_next(w, &s, i);
  }
}

static void on_closed(model_walk *w, const void *from) {
  FOR_EACH_LANE(i) FOR_EACH_STREAM(k, &((const state *)from)->l[i]) {
    state s = *(const state *)from;
    lane *l = &s.l[i];
    stream *at = &l->s[k];
    if (at->is_seen_closed || !at->is_taken) continue;
    bool is_end = at->end_on_way && at->from == at->to;
    if (!at->is_broken && !is_end) continue;
    at->is_seen_closed = 1;
    if (is_end || model_has_break(CUT_IS_END)) s.is_lost |= l->delivered != size.messages;
    at->from = at->to = at->end_on_way = 0;
    if (l->pending && k == l->taken) answer(l, l->pending);
    model_next(w, &s, i);
  }
}

static void send_ack(model_walk *w, const void *from) {
  state s = *(const state *)from;
  const lane *first = &s.l[0];
  const stream *at = &first->s[first->taken];
  if (s.n_acks == ACKS || !first->taken || at->is_broken || first->phase != OPEN) return;
  FOR_EACH_LANE(i) {
    const lane *l = &s.l[i];
    const stream *now = &l->s[l->taken];
    bool early = model_has_break(ACK_BEFORE_DELIVERY) && now->from < now->to;
    s.acks[s.n_acks][i] = (uint8_t)(l->received + early);
  }
  if (s.n_acks && memcmp(s.acks[0], s.acks[1], sizeof s.acks[0]) == 0) return;
  s.n_acks++;
  model_next(w, &s, 0);
}

/* ---- the environment ------------------------------------------------------------------------- */

/* The network cuts a stream. Messages in flight may still arrive. */
static void cut(model_walk *w, const void *from) {
  FOR_EACH_LANE(i) FOR_EACH_STREAM(k, &((const state *)from)->l[i]) {
    state s = *(const state *)from;
    stream *at = &s.l[i].s[k];
    if (!at->is_dialled || at->is_broken || k == size.streams) continue;
    at->is_broken = 1;
    at->attached_on_way = NOTHING;
    model_next(w, &s, i);
  }
}

/* No lane has had a stream for limits.lease: the acceptor ends the link. */
static void expire(model_walk *w, const void *from) {
  state s = *(const state *)from;
  if (s.is_expired) return;
  FOR_EACH_LANE(i) {
    const lane *l = &s.l[i];
    if (!l->taken || l->pending || !l->s[l->taken].is_seen_closed || l->received == size.messages)
      return;
  }
  if (model_has_break(LEASE_FORGETS)) {
    FOR_EACH_LANE(i) s.l[i].received = s.l[i].taken = 0;
  } else {
    s.is_expired = 1;
  }
  model_next(w, &s, 0);
}

static const model_step steps[] = {
    {"lanes.dial", dial},
    {"lanes.lose_stream", lose_stream},
    {"lanes.on_attached", on_attached},
    {"lanes.send_message", send_message},
    {"lanes.on_ack", on_ack},
    {"lanes.end_lane", end_lane},
    {"lanes.on_not_found", on_not_found},
    {"lanes.on_attach", on_attach},
    {"lanes.deliver", deliver},
    {"lanes.on_closed", on_closed},
    {"lanes.send_ack", send_ack},
    {"lanes.cut", cut},
    {"lanes.expire", expire},
};

static const char *violation(const void *at) {
  const state *s = at;
  if (s->is_lost) return "a message is lost";
  if (s->is_twice) return "a message is delivered twice";
  if (s->is_freed_needed) return "a message has left the log before it was acknowledged";
  if (s->is_old_taken) return "an older stream takes the place of a newer one";
  FOR_EACH_LANE(i) {
    if (s->l[i].acked > s->l[i].received) return "a message is acknowledged before it is delivered";
    if (s->l[i].received > size.messages) return "a message is delivered twice";
  }
  return NULL;
}

/* True if the link has ended on both sides, with all messages or because its lease has passed. */
static bool may_stop(const void *at) {
  const state *s = at;
  FOR_EACH_LANE(i) {
    if (s->l[i].phase != ENDED) return false;
    if (s->l[i].received != size.messages && !s->is_expired) return false;
  }
  return true;
}

const model *model_of_lanes(int scale, int variant) {
  static model m = {.name = "lanes",
                    .bytes = sizeof(state),
                    .steps = steps,
                    .n_steps = sizeof steps / sizeof *steps,
                    .start = start,
                    .violation = violation,
                    .may_stop = may_stop,
                    .breaks = breaks,
                    .n_breaks = sizeof breaks / sizeof *breaks};
  /* one lane with more streams and messages, or two lanes with fewer */
  size.lanes = variant ? 2 : 1;
  size.messages = (uint8_t)(variant ? 1 + scale : 2 + 4 * scale);
  size.streams = (uint8_t)(variant ? 2 + scale : 3 + 2 * scale);
  return &m;
}
