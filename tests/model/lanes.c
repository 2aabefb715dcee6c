/* SPDX-License-Identifier: Apache-2.0
 *
 * Models the log of a lane. A dialler sends messages to an acceptor over streams that break. Each
 * lane has a log of the messages that the acceptor has not acknowledged, with the cursors
 * `last_message_sent` and `last_acked`. A new stream begins with ATTACH {again}, which the acceptor
 * answers with ATTACHED {received}. ACKs of all lanes travel on lane 0, outside its log.
 * PROTOCOL.md has the table of functions.
 *
 * A broken stream may still deliver the messages in flight, until the acceptor has noticed its end.
 */
#include "tests/model/model.h"

#include <string.h>

enum { LANES = 2, STREAMS = 5, ACKS = 2, NOTHING = 255 };

enum { IDLE, ATTACHING, OPEN, ENDED }; /* states of a dialler's lane */

/* One stream of a lane. Messages last_delivered + 1 to last_sent are in flight. */
typedef struct stream {
  /* messages in flight to the acceptor. is_dialled: the dialler has opened the stream */
  uint8_t is_dialled, is_attach_in_flight, last_delivered, last_sent, is_end_in_flight;
  /* number `received` in the ATTACHED that is in flight; NOTHING: no ATTACHED is in flight */
  uint8_t attached_in_flight;
  uint8_t is_read; /* true: the acceptor reads messages from this stream */
  /* true: the stream is cut or replaced, so that nothing more is sent on it */
  uint8_t is_broken;
  uint8_t has_noticed_end;
} stream;

typedef struct lane {
  /* state of the dialler. stream_number: number of its present stream. Messages up to last_freed
   * are no longer in its log */
  uint8_t dialler_state, stream_number, last_message_sent, last_acked, last_freed;
  /* state of the acceptor. taken_stream, pending_stream: numbers of streams; 0: none */
  uint8_t n_received, taken_stream, pending_stream;
  uint8_t n_delivered;   /* messages that the engine received; only the model counts them */
  stream s[STREAMS + 1]; /* index: the stream's number, from 1 */
} lane;

typedef struct state {
  lane l[LANES];
  /* acknowledgements in flight on the present stream of lane 0 */
  uint8_t acks_in_flight[ACKS][LANES], n_acks;
  uint8_t is_expired; /* true: the acceptor has ended the link */
  uint8_t is_message_repeated, is_message_lost, is_freed_message_needed, is_older_stream_taken;
} state;

static struct { uint8_t n_lanes, n_messages, n_streams; } size;

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

static void set_initial_state(void *ret) {
  state *s = ret;
  for (int i = 0; i < LANES; i++)
    for (int k = 0; k <= STREAMS; k++) s->l[i].s[k].attached_in_flight = NOTHING;
}

#define FOR_EACH_LANE(i) for (uint8_t i = 0; i < size.n_lanes; i++)
#define FOR_EACH_STREAM(k, l) for (uint8_t k = 1; k <= (l)->stream_number; k++)

/* ---- transitions of the dialler -------------------------------------------------------------- */

static void dial_stream(model_walk *w, const void *from) {
  FOR_EACH_LANE(i) {
    state s = *(const state *)from;
    lane *l = &s.l[i];
    if (l->dialler_state != IDLE || l->stream_number == size.n_streams) continue;
    l->stream_number++;
    l->dialler_state = ATTACHING;
    l->s[l->stream_number].is_dialled = l->s[l->stream_number].is_attach_in_flight = 1;
    model_add_successor(w, &s, i);
  }
}

/* The dialler notices that its stream is broken, or gives up waiting for ATTACHED. */
static void lose_stream(model_walk *w, const void *from) {
  FOR_EACH_LANE(i) {
    state s = *(const state *)from;
    lane *l = &s.l[i];
    if (l->dialler_state != ATTACHING && l->dialler_state != OPEN) continue;
    if (l->dialler_state == OPEN && !l->s[l->stream_number].is_broken) continue;
    /* the last stream never breaks, so that a link can finish */
    if (l->stream_number == size.n_streams) continue;
    l->dialler_state = IDLE;
    l->s[l->stream_number].is_broken = 1;
    l->s[l->stream_number].attached_in_flight = NOTHING;
    if (i == 0) s.n_acks = 0, memset(s.acks_in_flight, 0, sizeof s.acks_in_flight);
    model_add_successor(w, &s, i);
  }
}

static void on_attached(model_walk *w, const void *from) {
  FOR_EACH_LANE(i) {
    state s = *(const state *)from;
    lane *l = &s.l[i];
    stream *at = &l->s[l->stream_number];
    if (l->dialler_state != ATTACHING || at->attached_in_flight == NOTHING) continue;
    uint8_t n_received = at->attached_in_flight;
    if (n_received > l->last_acked && !model_has_active_break(RESUME_AT_ACKED))
      l->last_acked = n_received;
    if (l->last_acked > l->last_freed) l->last_freed = l->last_acked;
    if (!model_has_active_break(RESUME_AT_SENT)) l->last_message_sent = l->last_acked;
    at->last_delivered = at->last_sent = l->last_message_sent;
    at->attached_in_flight = NOTHING;
    l->dialler_state = OPEN;
    model_add_successor(w, &s, i);
  }
}

static void send_message(model_walk *w, const void *from) {
  FOR_EACH_LANE(i) {
    state s = *(const state *)from;
    lane *l = &s.l[i];
    if (l->dialler_state != OPEN || l->last_message_sent == size.n_messages ||
        l->s[l->stream_number].is_broken)
      continue;
    s.is_freed_message_needed |= l->last_message_sent < l->last_freed;
    l->s[l->stream_number].last_sent = ++l->last_message_sent;
    if (model_has_active_break(FREED_WHEN_SENT)) l->last_freed = l->last_message_sent;
    model_add_successor(w, &s, i);
  }
}

static void on_ack(model_walk *w, const void *from) {
  state s = *(const state *)from;
  if (!s.n_acks || s.l[0].dialler_state != OPEN) return;
  FOR_EACH_LANE(i) {
    lane *l = &s.l[i];
    if (s.acks_in_flight[0][i] > l->last_acked) l->last_acked = s.acks_in_flight[0][i];
    if (l->last_acked > l->last_freed) l->last_freed = l->last_acked;
    if (l->dialler_state == OPEN && l->last_message_sent < l->last_acked)
      l->last_message_sent = l->last_acked;
  }
  memmove(s.acks_in_flight[0], s.acks_in_flight[1], sizeof s.acks_in_flight[0]);
  memset(s.acks_in_flight[--s.n_acks], 0, sizeof s.acks_in_flight[0]);
  model_add_successor(w, &s, 0);
}

/* Ends a lane with status OK, when the acceptor has acknowledged all messages of all lanes. */
static void end_lane(model_walk *w, const void *from) {
  FOR_EACH_LANE(i) {
    state s = *(const state *)from;
    lane *l = &s.l[i];
    if (l->dialler_state != OPEN || l->last_acked != size.n_messages ||
        l->s[l->stream_number].is_broken)
      continue;
    FOR_EACH_LANE(k) if (s.l[k].last_acked != size.n_messages) goto next;
    l->dialler_state = ENDED;
    l->s[l->stream_number].is_end_in_flight = 1;
    model_add_successor(w, &s, i);
  next:;
  }
}

/* The acceptor does not have the link any more, so the dialler ends it. */
static void on_not_found(model_walk *w, const void *from) {
  state s = *(const state *)from;
  if (!s.is_expired) return;
  FOR_EACH_LANE(i) {
    lane *l = &s.l[i];
    if (l->dialler_state != ATTACHING || !l->s[l->stream_number].has_noticed_end) continue;
    FOR_EACH_LANE(k) s.l[k].dialler_state = ENDED;
    model_add_successor(w, &s, i);
    return;
  }
}

/* ---- transitions of the acceptor ------------------------------------------------------------- */

static void answer_attach(lane *l, uint8_t stream_number) {
  l->taken_stream = stream_number;
  l->pending_stream = 0;
  l->s[stream_number].is_read = 1;
  if (!l->s[stream_number].is_broken) l->s[stream_number].attached_in_flight = l->n_received;
}

static void on_attach(model_walk *w, const void *from) {
  FOR_EACH_LANE(i) FOR_EACH_STREAM(k, &((const state *)from)->l[i]) {
    state s = *(const state *)from;
    lane *l = &s.l[i];
    if (!l->s[k].is_attach_in_flight) continue;
    l->s[k].is_attach_in_flight = 0;
    bool is_old = k <= l->taken_stream || k <= l->pending_stream;
    if (s.is_expired || (is_old && !model_has_active_break(OLD_STREAM_TAKEN))) {
      l->s[k].is_broken = l->s[k].has_noticed_end = 1;
      model_add_successor(w, &s, i);
      continue;
    }
    s.is_older_stream_taken |= is_old;
    bool has_old = l->taken_stream && !l->s[l->taken_stream].has_noticed_end;
    if (l->taken_stream) l->s[l->taken_stream].is_broken = 1;
    if (l->pending_stream)
      l->s[l->pending_stream].is_broken = l->s[l->pending_stream].has_noticed_end = 1;
    if (has_old && !model_has_active_break(ANSWER_BEFORE_END))
      l->pending_stream = k;
    else
      answer_attach(l, k);
    model_add_successor(w, &s, i);
  }
}

/* A stream delivers its next message. Message numbers are the model's own; the acceptor only
 * counts. */
static void deliver_message(model_walk *w, const void *from) {
  FOR_EACH_LANE(i) FOR_EACH_STREAM(k, &((const state *)from)->l[i]) {
    state s = *(const state *)from;
    lane *l = &s.l[i];
    stream *at = &l->s[k];
    if (!at->is_read || at->has_noticed_end || at->last_delivered == at->last_sent || s.is_expired)
      continue;
    at->last_delivered++;
    s.is_message_repeated |= at->last_delivered <= l->n_delivered;
    s.is_message_lost |= at->last_delivered > l->n_delivered + 1;
    l->n_delivered++;
    l->n_received++;
    model_add_successor(w, &s, i);
  }
}

static void on_closed(model_walk *w, const void *from) {
  FOR_EACH_LANE(i) FOR_EACH_STREAM(k, &((const state *)from)->l[i]) {
    state s = *(const state *)from;
    lane *l = &s.l[i];
    stream *at = &l->s[k];
    if (at->has_noticed_end || !at->is_read) continue;
    bool is_end = at->is_end_in_flight && at->last_delivered == at->last_sent;
    if (!at->is_broken && !is_end) continue;
    at->has_noticed_end = 1;
    if (is_end || model_has_active_break(CUT_IS_END))
      s.is_message_lost |= l->n_delivered != size.n_messages;
    at->last_delivered = at->last_sent = at->is_end_in_flight = 0;
    if (l->pending_stream && k == l->taken_stream) answer_attach(l, l->pending_stream);
    model_add_successor(w, &s, i);
  }
}

static void send_ack(model_walk *w, const void *from) {
  state s = *(const state *)from;
  const lane *first = &s.l[0];
  const stream *at = &first->s[first->taken_stream];
  if (s.n_acks == ACKS || !first->taken_stream || at->is_broken || first->dialler_state != OPEN)
    return;
  FOR_EACH_LANE(i) {
    const lane *l = &s.l[i];
    const stream *now = &l->s[l->taken_stream];
    bool is_early =
        model_has_active_break(ACK_BEFORE_DELIVERY) && now->last_delivered < now->last_sent;
    s.acks_in_flight[s.n_acks][i] = (uint8_t)(l->n_received + is_early);
  }
  if (s.n_acks && memcmp(s.acks_in_flight[0], s.acks_in_flight[1], sizeof s.acks_in_flight[0]) == 0)
    return;
  s.n_acks++;
  model_add_successor(w, &s, 0);
}

/* ---- transitions of the network and of time -------------------------------------------------- */

/* The network cuts a stream. Messages in flight may still arrive. */
static void cut_stream(model_walk *w, const void *from) {
  FOR_EACH_LANE(i) FOR_EACH_STREAM(k, &((const state *)from)->l[i]) {
    state s = *(const state *)from;
    stream *at = &s.l[i].s[k];
    if (!at->is_dialled || at->is_broken || k == size.n_streams) continue;
    at->is_broken = 1;
    at->attached_in_flight = NOTHING;
    model_add_successor(w, &s, i);
  }
}

/* No lane has had a stream for the time of the lease, so the acceptor ends the link. */
static void expire_link(model_walk *w, const void *from) {
  state s = *(const state *)from;
  if (s.is_expired) return;
  FOR_EACH_LANE(i) {
    const lane *l = &s.l[i];
    if (!l->taken_stream || l->pending_stream || !l->s[l->taken_stream].has_noticed_end ||
        l->n_received == size.n_messages)
      return;
  }
  if (model_has_active_break(LEASE_FORGETS)) {
    FOR_EACH_LANE(i) s.l[i].n_received = s.l[i].taken_stream = 0;
  } else {
    s.is_expired = 1;
  }
  model_add_successor(w, &s, 0);
}

static const model_step steps[] = {
    {"lanes.dial", dial_stream},
    {"lanes.lose_stream", lose_stream},
    {"lanes.on_attached", on_attached},
    {"lanes.send_message", send_message},
    {"lanes.on_ack", on_ack},
    {"lanes.end_lane", end_lane},
    {"lanes.on_not_found", on_not_found},
    {"lanes.on_attach", on_attach},
    {"lanes.deliver", deliver_message},
    {"lanes.on_closed", on_closed},
    {"lanes.send_ack", send_ack},
    {"lanes.cut", cut_stream},
    {"lanes.expire", expire_link},
};

static const char *find_violation(const void *at) {
  const state *s = at;
  if (s->is_message_lost) return "a message is lost";
  if (s->is_message_repeated) return "a message is delivered twice";
  if (s->is_freed_message_needed) return "a message has left the log before it was acknowledged";
  if (s->is_older_stream_taken) return "an older stream takes the place of a newer one";
  FOR_EACH_LANE(i) {
    if (s->l[i].last_acked > s->l[i].n_received)
      return "a message is acknowledged before it is delivered";
    if (s->l[i].n_received > size.n_messages) return "a message is delivered twice";
  }
  return NULL;
}

/* True if the link has ended on both sides, with all messages or because its lease has passed. */
static bool may_end_here(const void *at) {
  const state *s = at;
  FOR_EACH_LANE(i) {
    if (s->l[i].dialler_state != ENDED) return false;
    if (s->l[i].n_received != size.n_messages && !s->is_expired) return false;
  }
  return true;
}

const model *make_lanes_model(int scale, int variant) {
  static model m = {.name = "lanes",
                    .state_bytes = sizeof(state),
                    .steps = steps,
                    .n_steps = sizeof steps / sizeof *steps,
                    .write_initial_state = set_initial_state,
                    .find_violation = find_violation,
                    .may_end_here = may_end_here,
                    .break_names = breaks,
                    .n_breaks = sizeof breaks / sizeof *breaks};
  /* one lane with more streams and messages, or two lanes with fewer */
  size.n_lanes = variant ? 2 : 1;
  size.n_messages = (uint8_t)(variant ? 1 + scale : 2 + 4 * scale);
  size.n_streams = (uint8_t)(variant ? 2 + scale : 3 + 2 * scale);
  return &m;
}
