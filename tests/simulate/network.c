/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/simulate/network.h"

#include "common/net/link/link_int.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MS UINT64_C(1000000)
enum { MOST_CUTS = 12 }; /* cuts in a run; the pauses between redials grow with each */

/* One side of a stream. It is freed with the network: a run has a few hundred. */
typedef struct end {
  sim_network *network;
  struct end *other, *next;
  clv_lane *lane; /* NULL: it has not begun, or has ended */
  uint32_t place, index;
  bool dialled, ended, closing, last_said;
  bool gone;        /* its place was killed */
  uint64_t last_at; /* arrival time of its last message, so that messages stay in order */
  const clv_lane_acceptor *acceptor;
  const char *uri;
} end;

typedef enum event_kind { MESSAGE, LOST, TAKEN, ACCEPT, CLOSE, ENDED, JOB, CALL } event_kind;

typedef struct event {
  uint64_t at, order;
  event_kind kind;
  end *to;
  clv_rpc_job *job;
  void (*happen)(void *user);
  void *user;
  clv_code code;
  const char *text;   /* static text */
  struct event *next; /* next event of a list of jobs */
  size_t len;
  unsigned char bytes[]; /* [len] content of a message */
} event;

struct sim_network {
  sim_network_options o;
  sim_random random;
  uint64_t now, order;
  event **events; /* heap, by time */
  size_t n_events, cap_events;
  end *ends;
  event *undone; /* jobs of killed places, freed at the end */
  bool dead[SIM_MOST_PLACES];
  struct dialling *diallings;
  sim_network_counts counts;
  bool is_over; /* the network is being freed */
};

/* ---- what happens ---------------------------------------------------------------------------- */

static bool sooner(const event *a, const event *b) {
  return a->at != b->at ? a->at < b->at : a->order < b->order;
}

static void *or_abort(void *memory) {
  if (!memory) abort();
  return memory;
}

static void push(sim_network *n, event *e) {
  if (n->n_events == n->cap_events) {
    n->cap_events = n->cap_events ? 2 * n->cap_events : 64;
    n->events = or_abort(realloc(n->events, n->cap_events * sizeof(event *)));
  }
  e->at = CLV_MAX(e->at, n->now);
  e->order = n->order++;
  size_t i = n->n_events++;
  for (; i && sooner(e, n->events[(i - 1) / 2]); i = (i - 1) / 2)
    n->events[i] = n->events[(i - 1) / 2];
  n->events[i] = e;
}

static event *pop(sim_network *n) {
  event *first = n->events[0], *moved = n->events[--n->n_events];
  size_t i = 0;
  for (size_t child; (child = 2 * i + 1) < n->n_events; i = child) {
    if (child + 1 < n->n_events && sooner(n->events[child + 1], n->events[child])) child++;
    if (sooner(moved, n->events[child])) break;
    n->events[i] = n->events[child];
  }
  n->events[i] = moved;
  return first;
}

static event *new_event(event_kind kind, end *to, uint64_t at, size_t len) {
  event *e = or_abort(calloc(1, sizeof *e + len));
  e->kind = kind;
  e->to = to;
  e->at = at;
  e->len = len;
  return e;
}

/* Most delays are short, some long. */
uint64_t sim_network_delay(sim_network *n) {
  static const uint32_t most_us[] = {50, 50, 500, 500, 3000, 30000};
  if (n->o.calm) return 0;
  return 1000 * (uint64_t)(1 + sim_below(&n->random, most_us[sim_below(&n->random, 6)]));
}

void sim_network_at(sim_network *n, uint64_t at, void (*happen)(void *user), void *user) {
  event *e = new_event(CALL, NULL, at, 0);
  e->happen = happen;
  e->user = user;
  push(n, e);
}

uint64_t sim_network_due(const sim_network *n) {
  return n->n_events ? n->events[0]->at : UINT64_MAX;
}

void sim_network_pass(sim_network *n, uint64_t until) {
  n->now = CLV_MAX(n->now, CLV_MIN(until, sim_network_due(n)));
}

uint64_t sim_network_now(const sim_network *n) { return n->now; }
static uint64_t now_of(void *network) { return ((sim_network *)network)->now; }
clv_clock sim_network_clock(sim_network *n) { return (clv_clock){now_of, n}; }
sim_network_counts sim_network_count(const sim_network *n) { return n->counts; }

/* ---- streams --------------------------------------------------------------------------------- */

/* Draws the arrival time of a message, after that of the message before. */
static uint64_t arrival(end *from) {
  sim_network *n = from->network;
  uint64_t at = n->now + sim_network_delay(n);
  return from->last_at = CLV_MAX(from->last_at, at);
}

static clv_code stream_send(void *stream, const clv_rpc_piece *pieces, size_t n, clv_err *err) {
  end *from = stream;
  size_t len = 0, at = 0;
  for (size_t i = 0; i < n; i++) len += pieces[i].len;
  bool open = !from->ended && !from->closing;
  event *e = open ? new_event(MESSAGE, from->other, arrival(from), len) : NULL;
  for (size_t i = 0; i < n; i++) {
    if (open && pieces[i].len) memcpy(e->bytes + at, pieces[i].data, pieces[i].len);
    at += pieces[i].len;
    if (pieces[i].release_owner) pieces[i].release_owner(pieces[i].owner);
  }
  if (!open) return clv_fail(err, CLV_UNAVAILABLE, "the stream has ended");
  push(from->network, e);
  uint64_t taken = from->network->now + sim_network_delay(from->network) / 4;
  push(from->network, new_event(TAKEN, from, taken, 0));
  return CLV_OK;
}

static void end_at(end *e, uint64_t at, clv_code code, const char *text) {
  event *last = new_event(ENDED, e, at, 0);
  last->code = code;
  last->text = text;
  push(e->network, last);
}

static void stream_close(void *stream) {
  end *from = stream;
  if (from->ended || from->closing) return;
  from->closing = true;
  push(from->network, new_event(CLOSE, from->other, arrival(from), 0));
}

/* Drops the messages in flight from this side. text: reason. */
static void stream_cancel(void *stream, clv_code code, const char *text) {
  end *from = stream;
  sim_network *n = from->network;
  if (from->ended || from->last_said) return;
  if (n->o.trace)
    printf("%12.6f ms  %u: cancels lane %u: %s\n", (double)n->now / 1e6, from->place, from->index,
           text);
  from->last_said = from->closing = true;
  end_at(from, n->now, code, "cancelled here");
  end_at(from->other, n->now + sim_network_delay(n), from->dialled ? CLV_CANCELLED : code,
         "the peer cancelled the stream or its connection was lost");
}

static bool stream_defer(void *stream, clv_rpc_job *job) {
  end *from = stream;
  event *e = new_event(JOB, from, from->network->now + sim_network_delay(from->network) / 8, 0);
  e->job = job;
  push(from->network, e);
  return true;
}

static void stream_keep(void *stream) { (void)stream; }

static const clv_transport transport = {.send = stream_send,
                                        .close = stream_close,
                                        .cancel = stream_cancel,
                                        .defer = stream_defer,
                                        .ref = stream_keep,
                                        .unref = stream_keep};

/* ---- links that are mended ------------------------------------------------------------------- */

/* A link that has lost a lane. Holds a reference to it. */
typedef struct mending {
  sim_network *network;
  const end *at;
  clv_link *link;
} mending;

/* Redials the lost lanes of a link, which its thread would do otherwise. */
static void tend(void *user) {
  mending *m = user;
  uint64_t due = m->at->gone || m->network->is_over ? UINT64_MAX : clv_link_redial_or_end(m->link);
  if (due != UINT64_MAX) {
    sim_network_at(m->network, CLV_MAX(due, m->network->now + 1000), tend, m);
    return;
  }
  clv_link_unref(m->link);
  free(m);
}

static void ended(end *e, clv_code code, const char *text) {
  clv_lane *lane = clv_steal(&e->lane);
  if (e->ended) return;
  e->ended = true;
  if (!lane) return;
  clv_link *link = lane->link && lane->link->lease_ms ? clv_link_ref(lane->link) : NULL;
  clv_lane_on_ended(lane, code, text);
  if (!link) return;
  mending *m = or_abort(calloc(1, sizeof *m));
  *m = (mending){e->network, e, link};
  sim_network_at(e->network, e->network->now, tend, m);
}

/* Ends this side after the peer has closed, when its own messages are sent. */
static void end_after_close(end *e) {
  if (e->ended) return;
  e->closing = true;
  end_at(e->other, arrival(e), CLV_OK, "");
  ended(e, CLV_OK, "");
}

static void accepted(end *e) {
  clv_err err;
  if (e->ended) return;
  if (clv_lane_new(e->acceptor, e->uri, &transport, e, &e->lane, &err) != CLV_OK) abort();
}

static void print_frame(const sim_network *n, const event *e, const clv_frame *f) {
  printf(
      "%12.6f ms  %u -> %u lane %u: %s, context %llu, message %llu, reference %llx by %llx, of %zu "
      "bytes\n",
      (double)n->now / 1e6, e->to->other->place, e->to->place, e->to->index,
      clv_frame_kind_name(f->kind), (unsigned long long)f->context, (unsigned long long)f->message,
      (unsigned long long)f->reference.ref, (unsigned long long)f->reference.fork, e->len);
}

/* Prints the last frame of a message first, because the others were sent together with it. */
static void print_event(const sim_network *n, const event *e) {
  clv_bundle before;
  clv_frame f;
  clv_payload payload;
  clv_wire_limits limits = clv_wire_limits_default();
  clv_piece piece = {e->bytes, e->len};
  clv_err err;
  if (n->o.trace && e->kind == ENDED)
    printf("%12.6f ms  %u: lane %u to %u has ended (%s): %s\n", (double)n->now / 1e6, e->to->place,
           e->to->index, e->to->other->place, clv_code_name(e->code), e->text);
  if (!n->o.trace || e->kind != MESSAGE) return;
  if (clv_frame_decode_bundle(&piece, 1, &limits, &before, &f, &payload, &err) != CLV_OK) return;
  if (f.kind) print_frame(n, e, &f);
  for (uint32_t i = before.n; i-- > 0;)
    if (clv_frame_decode_bundled(&piece, 1, &before.frames[i], &limits, &f, &payload, &err) ==
        CLV_OK)
      print_frame(n, e, &f);
}

/* Loses a stream: the peer notices soon, and messages in flight are lost. */
static void lose_soon(end *e) {
  sim_network *n = e->network;
  if (e->ended || e->last_said) return;
  e->closing = e->last_said = true;
  uint64_t after =
      sim_below(&n->random, 8) ? sim_network_delay(n) : sim_below(&n->random, 1000) * MS;
  end_at(e, n->now + after, e->dialled ? CLV_UNAVAILABLE : CLV_CANCELLED,
         "the connection was lost");
}

static void lose_messages(sim_network *n) {
  for (size_t i = 0; i < n->n_events; i++) {
    event *m = n->events[i];
    if (m->to && m->to->closing && m->to->last_said && m->kind == MESSAGE) m->kind = LOST;
  }
}

static void reset(end *e) {
  lose_soon(e);
  lose_soon(e->other);
  lose_messages(e->network);
}

/* True if the link is open. A link that is still being opened ends with any of its connections. */
static bool was_opened(const end *e) {
  const clv_link *l = e->lane ? e->lane->link : NULL;
  return l && (l->state == CLV_LINK_OPEN || l->state == CLV_LINK_MENDING);
}

static void deliver(sim_network *n, const event *e) {
  clv_iov piece = {e->bytes, e->len};
  uint64_t number = ++n->counts.messages, behind = number - n->o.cut_at;
  bool is_cut = n->o.cut_at && number >= n->o.cut_at && n->counts.cuts < MOST_CUTS &&
                (n->o.cut_every ? behind % n->o.cut_every == 0 : behind == 0) &&
                was_opened(e->to) && was_opened(e->to->other);
  n->counts.cuts += is_cut;
  bool before = is_cut && sim_below(&n->random, 2);
  if (before) reset(e->to);
  if (!before) clv_lane_on_message(e->to->lane, &piece, 1);
  if (is_cut && !before) reset(e->to);
}

static void happen(sim_network *n, event *e) {
  end *to = e->to;
  if (e->kind == CALL) {
    e->happen(e->user);
  } else if (to->gone) {
    return;
  } else if (e->kind == JOB) {
    e->job->run(e->job);
  } else if (e->kind == ENDED) {
    ended(to, e->code, e->text);
  } else if (e->kind == CLOSE) {
    end_after_close(to);
  } else if (e->kind == ACCEPT) {
    accepted(to);
  } else if (e->kind == TAKEN && to->lane) {
    clv_lane_on_sent(to->lane);
  } else if (e->kind == MESSAGE && to->lane) {
    deliver(n, e);
  }
}

void sim_network_step(sim_network *n) {
  event *e = pop(n);
  n->now = e->at;
  n->counts.events++;
  print_event(n, e);
  if (e->kind == JOB && e->to->gone) {
    e->next = n->undone;
    n->undone = e;
    return;
  }
  happen(n, e);
  free(e);
}

/* ---- dialling -------------------------------------------------------------------------------- */

typedef struct dialling {
  sim_network *network;
  uint32_t from, to;
  const clv_lane_acceptor *acceptor;
  const char *uri;
  struct dialling *next;
} dialling;

static end *new_end(sim_network *n, uint32_t place, uint32_t index) {
  end *e = or_abort(calloc(1, sizeof *e));
  e->network = n;
  e->place = place;
  e->index = index;
  e->gone = n->dead[place];
  e->next = n->ends;
  return n->ends = e;
}

static clv_code dial(void *user, uint32_t index, clv_lane *lane, const bool *stop,
                     void **ret_stream, clv_err *err) {
  const dialling *d = user;
  sim_network *n = d->network;
  (void)stop, (void)err;
  end *mine = new_end(n, d->from, index), *theirs = new_end(n, d->to, index);
  mine->other = theirs;
  theirs->other = mine;
  mine->dialled = true;
  mine->lane = lane;
  theirs->acceptor = d->acceptor;
  theirs->uri = d->uri;
  if (n->dead[d->to]) end_at(mine, n->now + sim_network_delay(n), CLV_UNAVAILABLE, CLV_RPC_REFUSED);
  push(n, new_event(ACCEPT, theirs, arrival(mine), 0));
  *ret_stream = mine;
  return CLV_OK;
}

clv_dialler sim_network_dialler(sim_network *n, uint32_t from, uint32_t to,
                                const clv_lane_acceptor *acceptor, const char *uri) {
  dialling *d = or_abort(calloc(1, sizeof *d));
  *d = (dialling){n, from, to, acceptor, uri, n->diallings};
  n->diallings = d;
  return (clv_dialler){.transport = &transport, .user = d, .dial_stream = dial};
}

/* ---- faults ---------------------------------------------------------------------------------- */

/* Loses a stream; the peer notices soon, or by its timeout. */
static void lose(end *e) {
  sim_network *n = e->network;
  bool silent = sim_below(&n->random, 4) == 0;
  uint64_t after = silent ? (1 + sim_below(&n->random, 10000)) * MS : sim_network_delay(n);
  e->last_said = true;
  end_at(e, n->now + after, e->dialled ? CLV_UNAVAILABLE : CLV_CANCELLED,
         "the peer cancelled the stream or its connection was lost");
}

unsigned sim_network_reset(sim_network *n, uint32_t a, uint32_t b, uint32_t index) {
  unsigned cut = 0;
  for (end *e = n->ends; e; e = e->next) {
    if (!e->dialled || e->index != index || e->ended || e->last_said) continue;
    if (!(e->place == a && e->other->place == b) && !(e->place == b && e->other->place == a))
      continue;
    reset(e);
    cut++;
  }
  return cut;
}

unsigned sim_network_cut(sim_network *n, uint32_t a, uint32_t b, uint32_t index) {
  unsigned cut = 0;
  for (end *e = n->ends; e; e = e->next) {
    bool between =
        (e->place == a && e->other->place == b) || (e->place == b && e->other->place == a);
    if (!between || e->index != index || e->ended || e->last_said) continue;
    e->closing = true;
    lose(e);
    cut++;
  }
  lose_messages(n);
  return cut;
}

void sim_network_kill(sim_network *n, uint32_t place) {
  n->dead[place] = true;
  for (end *e = n->ends; e; e = e->next) {
    e->gone |= e->place == place;
    if (e->place != place && e->other->place == place && !e->ended) lose(e);
  }
}

void sim_network_revive(sim_network *n, uint32_t place) { n->dead[place] = false; }

/* ---- its life -------------------------------------------------------------------------------- */

sim_network *sim_network_new(const sim_network_options *options) {
  sim_network *n = or_abort(calloc(1, sizeof *n));
  n->o = *options;
  n->random.state = options->seed;
  n->now = 1000 * MS; /* the clock starts at 1 s, because some code uses 0 for never */
  return n;
}

void sim_network_free(sim_network *n) {
  n->is_over = true;
  for (end *e = n->ends; e; e = e->next) ended(e, CLV_CANCELLED, "the end of the world");
  for (event *e = n->undone, *next; e; e = next) {
    next = e->next;
    e->job->run(e->job);
    free(e);
  }
  while (n->n_events) {
    event *e = pop(n);
    if (e->kind == JOB) e->job->run(e->job); /* a job is called by the thread that requested it */
    if (e->kind == CALL && e->happen == tend) tend(e->user);
    free(e);
  }
  for (end *e = n->ends, *next; e; e = next) {
    next = e->next;
    free(e);
  }
  for (dialling *d = n->diallings, *next; d; d = next) {
    next = d->next;
    free(d);
  }
  free(n->events);
  free(n);
}
