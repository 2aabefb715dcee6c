/* SPDX-License-Identifier: Apache-2.0
 *
 * Simulates a network and a clock (network.h).
 */
#include "tests/simulate/network.h"

#include "common/net/link/link_int.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MS UINT64_C(1000000)
enum { MAX_CUTS = 12 }; /* cuts in a run; each cut makes the pauses between redials longer */

/* One side of a stream. It is freed with the network, because a run has only a few hundred. */
typedef struct stream_end {
  sim_network *network;
  struct stream_end *other_end, *next;
  clv_lane *lane; /* lane of the stream; NULL: the lane has not begun, or has ended */
  uint32_t place, lane_index;
  bool has_dialled, has_ended, is_closing, has_queued_end;
  bool is_place_killed;     /* the place of this side was killed */
  uint64_t last_arrival_ns; /* arrival time of its last message, so that messages stay in order */
  const clv_lane_acceptor *acceptor;
  const char *uri;
} stream_end;

/* LOST: the connection of a stream is lost. TAKEN: gRPC would have accepted a sent message. ACCEPT:
 * a dialled stream arrives. CLOSE: the peer closed. ENDED: a side learns that its stream has ended.
 * JOB, CALL: work that a lane, or the simulation, has asked the network to run at this time. */
typedef enum event_kind { MESSAGE, LOST, TAKEN, ACCEPT, CLOSE, ENDED, JOB, CALL } event_kind;

typedef struct event {
  uint64_t at_ns, sequence;
  event_kind kind;
  stream_end *to;
  clv_rpc_job *job;
  void (*callback)(void *user);
  void *user;
  clv_code end_code;
  const char *end_text; /* text in static memory */
  struct event *next;   /* next event in killed_jobs */
  size_t len;
  unsigned char bytes[]; /* [len] content of a message */
} event;

struct sim_network {
  sim_network_options o;
  sim_random random;
  uint64_t now_ns, sequence;
  event **event_heap; /* binary heap, ordered by time */
  size_t n_queued_events, cap_events;
  stream_end *ends;
  event *killed_jobs; /* jobs of killed places, freed with the network */
  bool is_place_dead[SIM_MAX_PLACES];
  struct dialling *diallings;
  sim_network_counts counts;
  bool is_being_freed;
};

/* ---- the queue of events --------------------------------------------------------------------- */

static bool is_earlier(const event *a, const event *b) {
  return a->at_ns != b->at_ns ? a->at_ns < b->at_ns : a->sequence < b->sequence;
}

static void *abort_if_null(void *memory) {
  if (!memory) abort();
  return memory;
}

static void add_event(sim_network *n, event *e) {
  if (n->n_queued_events == n->cap_events) {
    n->cap_events = n->cap_events ? 2 * n->cap_events : 64;
    n->event_heap = abort_if_null(realloc(n->event_heap, n->cap_events * sizeof(event *)));
  }
  e->at_ns = CLV_MAX(e->at_ns, n->now_ns);
  e->sequence = n->sequence++;
  size_t i = n->n_queued_events++;
  for (; i && is_earlier(e, n->event_heap[(i - 1) / 2]); i = (i - 1) / 2)
    n->event_heap[i] = n->event_heap[(i - 1) / 2];
  n->event_heap[i] = e;
}

static event *take_first_event(sim_network *n) {
  event *first = n->event_heap[0], *last_event = n->event_heap[--n->n_queued_events];
  size_t i = 0;
  for (size_t child; (child = 2 * i + 1) < n->n_queued_events; i = child) {
    if (child + 1 < n->n_queued_events &&
        is_earlier(n->event_heap[child + 1], n->event_heap[child]))
      child++;
    if (is_earlier(last_event, n->event_heap[child])) break;
    n->event_heap[i] = n->event_heap[child];
  }
  n->event_heap[i] = last_event;
  return first;
}

static event *new_event(event_kind kind, stream_end *to, uint64_t at_ns, size_t len) {
  event *e = abort_if_null(calloc(1, sizeof *e + len));
  e->kind = kind;
  e->to = to;
  e->at_ns = at_ns;
  e->len = len;
  return e;
}

/* Most delays are short, some long. */
uint64_t sim_network_draw_delay(sim_network *n) {
  static const uint32_t max_us[] = {50, 50, 500, 500, 3000, 30000};
  if (n->o.has_no_delays) return 0;
  return 1000 * (uint64_t)(1 + sim_draw_below(&n->random, max_us[sim_draw_below(&n->random, 6)]));
}

void sim_network_call_at(sim_network *n, uint64_t at_ns, void (*callback)(void *user), void *user) {
  event *e = new_event(CALL, NULL, at_ns, 0);
  e->callback = callback;
  e->user = user;
  add_event(n, e);
}

uint64_t sim_network_next_event_ns(const sim_network *n) {
  return n->n_queued_events ? n->event_heap[0]->at_ns : UINT64_MAX;
}

void sim_network_advance(sim_network *n, uint64_t until_ns) {
  n->now_ns = CLV_MAX(n->now_ns, CLV_MIN(until_ns, sim_network_next_event_ns(n)));
}

uint64_t sim_network_now(const sim_network *n) { return n->now_ns; }
static uint64_t read_clock(void *network) { return ((sim_network *)network)->now_ns; }
clv_clock sim_network_get_clock(sim_network *n) { return (clv_clock){read_clock, n}; }
sim_network_counts sim_network_get_counts(const sim_network *n) { return n->counts; }

/* ---- streams of messages --------------------------------------------------------------------- */

/* Draws the arrival time of a message, which is not before that of the previous message of the
 * stream. */
static uint64_t draw_arrival(stream_end *from) {
  sim_network *n = from->network;
  uint64_t arrival_ns = n->now_ns + sim_network_draw_delay(n);
  return from->last_arrival_ns = CLV_MAX(from->last_arrival_ns, arrival_ns);
}

static clv_code stream_send(void *stream, const clv_rpc_piece *pieces, size_t n, clv_err *err) {
  stream_end *from = stream;
  size_t len = 0, offset = 0;
  for (size_t i = 0; i < n; i++) len += pieces[i].len;
  bool is_open = !from->has_ended && !from->is_closing;
  event *e = is_open ? new_event(MESSAGE, from->other_end, draw_arrival(from), len) : NULL;
  for (size_t i = 0; i < n; i++) {
    if (is_open && pieces[i].len) memcpy(e->bytes + offset, pieces[i].data, pieces[i].len);
    offset += pieces[i].len;
    if (pieces[i].release_owner) pieces[i].release_owner(pieces[i].owner);
  }
  if (!is_open) return clv_fail(err, CLV_UNAVAILABLE, "the stream has ended");
  add_event(from->network, e);
  uint64_t accepted_ns = from->network->now_ns + sim_network_draw_delay(from->network) / 4;
  add_event(from->network, new_event(TAKEN, from, accepted_ns, 0));
  return CLV_OK;
}

static void schedule_end(stream_end *e, uint64_t end_ns, clv_code code, const char *text) {
  event *end_event = new_event(ENDED, e, end_ns, 0);
  end_event->end_code = code;
  end_event->end_text = text;
  add_event(e->network, end_event);
}

static void stream_close(void *stream) {
  stream_end *from = stream;
  if (from->has_ended || from->is_closing) return;
  from->is_closing = true;
  add_event(from->network, new_event(CLOSE, from->other_end, draw_arrival(from), 0));
}

/* Drops the messages in flight from this side. end_text: reason. */
static void stream_cancel(void *stream, clv_code code, const char *text) {
  stream_end *from = stream;
  sim_network *n = from->network;
  if (from->has_ended || from->has_queued_end) return;
  if (n->o.prints_messages)
    printf("%12.6f ms  %u: cancels lane %u: %s\n", (double)n->now_ns / 1e6, from->place,
           from->lane_index, text);
  from->has_queued_end = from->is_closing = true;
  schedule_end(from, n->now_ns, code, "cancelled here");
  schedule_end(from->other_end, n->now_ns + sim_network_draw_delay(n),
               from->has_dialled ? CLV_CANCELLED : code,
               "the peer cancelled the stream or its connection was lost");
}

static bool stream_defer(void *stream, clv_rpc_job *job) {
  stream_end *from = stream;
  event *e =
      new_event(JOB, from, from->network->now_ns + sim_network_draw_delay(from->network) / 8, 0);
  e->job = job;
  add_event(from->network, e);
  return true;
}

static void stream_keep(void *stream) { (void)stream; }

static const clv_transport transport = {.send = stream_send,
                                        .close = stream_close,
                                        .cancel = stream_cancel,
                                        .defer = stream_defer,
                                        .ref = stream_keep,
                                        .unref = stream_keep};

/* ---- links that are repaired ----------------------------------------------------------------- */

/* A link that has lost a lane and is being repaired. Holds a reference to the link. */
typedef struct link_repair {
  sim_network *network;
  const stream_end *lost_end;
  clv_link *link;
} link_repair;

/* Redials the lost lanes of a link. Outside the simulation, a thread of the link does this. */
static void redial_lost_lanes(void *user) {
  link_repair *m = user;
  uint64_t due_ns = m->lost_end->is_place_killed || m->network->is_being_freed
                        ? UINT64_MAX
                        : clv_link_redial_or_end(m->link);
  if (due_ns != UINT64_MAX) {
    sim_network_call_at(m->network, CLV_MAX(due_ns, m->network->now_ns + 1000), redial_lost_lanes,
                        m);
    return;
  }
  clv_link_unref(m->link);
  free(m);
}

static void handle_end(stream_end *e, clv_code code, const char *text) {
  clv_lane *lane = clv_steal(&e->lane);
  if (e->has_ended) return;
  e->has_ended = true;
  if (!lane) return;
  clv_link *link = lane->link && lane->link->lease_ms ? clv_link_ref(lane->link) : NULL;
  clv_lane_on_ended(lane, code, text);
  if (!link) return;
  link_repair *m = abort_if_null(calloc(1, sizeof *m));
  *m = (link_repair){e->network, e, link};
  sim_network_call_at(e->network, e->network->now_ns, redial_lost_lanes, m);
}

/* Ends this side of a stream after the peer has closed the stream. The peer learns of the end after
 * it has received the messages that this side sent before. */
static void end_after_close(stream_end *e) {
  if (e->has_ended) return;
  e->is_closing = true;
  schedule_end(e->other_end, draw_arrival(e), CLV_OK, "");
  handle_end(e, CLV_OK, "");
}

static void accept_stream(stream_end *e) {
  clv_err err;
  if (e->has_ended) return;
  if (clv_lane_new(e->acceptor, e->uri, &transport, e, &e->lane, &err) != CLV_OK) abort();
}

static void print_frame(const sim_network *n, const event *e, const clv_frame *f) {
  printf(
      "%12.6f ms  %u -> %u lane %u: %s, context %llu, message %llu, reference %llx by %llx, of %zu "
      "bytes\n",
      (double)n->now_ns / 1e6, e->to->other_end->place, e->to->place, e->to->lane_index,
      clv_frame_kind_name(f->kind), (unsigned long long)f->context,
      (unsigned long long)f->message_id, (unsigned long long)f->reference.ref_id,
      (unsigned long long)f->reference.fork_id, e->len);
}

/* Prints the frames of a message. The last frame comes first, because the earlier frames waited to
 * be sent together with it. */
static void print_event(const sim_network *n, const event *e) {
  clv_bundle before;
  clv_frame f;
  clv_payload payload;
  clv_wire_limits limits = clv_wire_limits_default();
  clv_piece piece = {e->bytes, e->len};
  clv_err err;
  if (n->o.prints_messages && e->kind == ENDED)
    printf("%12.6f ms  %u: lane %u to %u has ended (%s): %s\n", (double)n->now_ns / 1e6,
           e->to->place, e->to->lane_index, e->to->other_end->place, clv_code_name(e->end_code),
           e->end_text);
  if (!n->o.prints_messages || e->kind != MESSAGE) return;
  if (clv_frame_decode_last(&piece, 1, &limits, &before, &f, &payload, &err) != CLV_OK) return;
  if (f.kind) print_frame(n, e, &f);
  for (uint32_t i = before.n_frames; i-- > 0;)
    if (clv_frame_decode_preceding(&piece, 1, &before.frame_positions[i], &limits, &f, &payload,
                                   &err) == CLV_OK)
      print_frame(n, e, &f);
}

/* Lets one side of a stream lose its connection, which this side soon notices. lose_messages then
 * drops the messages in flight to this side. */
static void lose_stream_soon(stream_end *e) {
  sim_network *n = e->network;
  if (e->has_ended || e->has_queued_end) return;
  e->is_closing = e->has_queued_end = true;
  uint64_t delay_ns = sim_draw_below(&n->random, 8) ? sim_network_draw_delay(n)
                                                    : sim_draw_below(&n->random, 1000) * MS;
  schedule_end(e, n->now_ns + delay_ns, e->has_dialled ? CLV_UNAVAILABLE : CLV_CANCELLED,
               "the connection was lost");
}

static void lose_messages(sim_network *n) {
  for (size_t i = 0; i < n->n_queued_events; i++) {
    event *m = n->event_heap[i];
    if (m->to && m->to->is_closing && m->to->has_queued_end && m->kind == MESSAGE) m->kind = LOST;
  }
}

static void reset_connection(stream_end *e) {
  lose_stream_soon(e);
  lose_stream_soon(e->other_end);
  lose_messages(e->network);
}

/* True if the link is open. A link that is still being opened ends if any of its connections is
 * lost. */
static bool is_link_open(const stream_end *e) {
  const clv_link *l = e->lane ? e->lane->link : NULL;
  return l && (l->state == CLV_LINK_OPEN || l->state == CLV_LINK_MENDING);
}

static void deliver_message(sim_network *n, const event *e) {
  clv_iov piece = {e->bytes, e->len};
  uint64_t number = ++n->counts.n_messages, n_after_first_cut = number - n->o.first_cut_message;
  bool is_cut =
      n->o.first_cut_message && number >= n->o.first_cut_message && n->counts.n_cuts < MAX_CUTS &&
      (n->o.cut_interval ? n_after_first_cut % n->o.cut_interval == 0 : n_after_first_cut == 0) &&
      is_link_open(e->to) && is_link_open(e->to->other_end);
  n->counts.n_cuts += is_cut;
  bool is_lost_before = is_cut && sim_draw_below(&n->random, 2);
  if (is_lost_before) reset_connection(e->to);
  if (!is_lost_before) clv_lane_on_message(e->to->lane, &piece, 1);
  if (is_cut && !is_lost_before) reset_connection(e->to);
}

static void handle_event(sim_network *n, event *e) {
  stream_end *to = e->to;
  if (e->kind == CALL) {
    e->callback(e->user);
  } else if (to->is_place_killed) {
    return;
  } else if (e->kind == JOB) {
    e->job->run(e->job);
  } else if (e->kind == ENDED) {
    handle_end(to, e->end_code, e->end_text);
  } else if (e->kind == CLOSE) {
    end_after_close(to);
  } else if (e->kind == ACCEPT) {
    accept_stream(to);
  } else if (e->kind == TAKEN && to->lane) {
    clv_lane_on_sent(to->lane);
  } else if (e->kind == MESSAGE && to->lane) {
    deliver_message(n, e);
  }
}

void sim_network_run_event(sim_network *n) {
  event *e = take_first_event(n);
  n->now_ns = e->at_ns;
  n->counts.n_events++;
  print_event(n, e);
  if (e->kind == JOB && e->to->is_place_killed) {
    e->next = n->killed_jobs;
    n->killed_jobs = e;
    return;
  }
  handle_event(n, e);
  free(e);
}

/* ---- dialling streams ------------------------------------------------------------------------ */

typedef struct dialling {
  sim_network *network;
  uint32_t from_place, to_place;
  const clv_lane_acceptor *acceptor;
  const char *uri;
  struct dialling *next;
} dialling;

static stream_end *new_end(sim_network *n, uint32_t place, uint32_t index) {
  stream_end *e = abort_if_null(calloc(1, sizeof *e));
  e->network = n;
  e->place = place;
  e->lane_index = index;
  e->is_place_killed = n->is_place_dead[place];
  e->next = n->ends;
  return n->ends = e;
}

static clv_code dial(void *user, uint32_t index, clv_lane *lane, const bool *stop,
                     void **ret_stream, clv_err *err) {
  const dialling *d = user;
  sim_network *n = d->network;
  (void)stop, (void)err;
  stream_end *own_end = new_end(n, d->from_place, index),
             *peer_end = new_end(n, d->to_place, index);
  own_end->other_end = peer_end;
  peer_end->other_end = own_end;
  own_end->has_dialled = true;
  own_end->lane = lane;
  peer_end->acceptor = d->acceptor;
  peer_end->uri = d->uri;
  if (n->is_place_dead[d->to_place])
    schedule_end(own_end, n->now_ns + sim_network_draw_delay(n), CLV_UNAVAILABLE, CLV_RPC_REFUSED);
  add_event(n, new_event(ACCEPT, peer_end, draw_arrival(own_end), 0));
  *ret_stream = own_end;
  return CLV_OK;
}

clv_dialler sim_network_make_dialler(sim_network *n, uint32_t from, uint32_t to,
                                     const clv_lane_acceptor *acceptor, const char *uri) {
  dialling *d = abort_if_null(calloc(1, sizeof *d));
  *d = (dialling){n, from, to, acceptor, uri, n->diallings};
  n->diallings = d;
  return (clv_dialler){.transport = &transport, .user = d, .dial_stream = dial};
}

/* ---- faults of streams and places ------------------------------------------------------------ */

/* Lets one side of a stream lose its connection. This side notices the loss soon or, in one of four
 * cases, after up to 10 s. */
static void lose_stream(stream_end *e) {
  sim_network *n = e->network;
  bool is_silent = sim_draw_below(&n->random, 4) == 0;
  uint64_t delay_ns =
      is_silent ? (1 + sim_draw_below(&n->random, 10000)) * MS : sim_network_draw_delay(n);
  e->has_queued_end = true;
  schedule_end(e, n->now_ns + delay_ns, e->has_dialled ? CLV_UNAVAILABLE : CLV_CANCELLED,
               "the peer cancelled the stream or its connection was lost");
}

unsigned sim_network_reset_lane(sim_network *n, uint32_t a, uint32_t b, uint32_t index) {
  unsigned n_cut = 0;
  for (stream_end *e = n->ends; e; e = e->next) {
    if (!e->has_dialled || e->lane_index != index || e->has_ended || e->has_queued_end) continue;
    if (!(e->place == a && e->other_end->place == b) &&
        !(e->place == b && e->other_end->place == a))
      continue;
    reset_connection(e);
    n_cut++;
  }
  return n_cut;
}

unsigned sim_network_close_lane(sim_network *n, uint32_t a, uint32_t b, uint32_t index) {
  unsigned n_cut = 0;
  for (stream_end *e = n->ends; e; e = e->next) {
    bool is_between =
        (e->place == a && e->other_end->place == b) || (e->place == b && e->other_end->place == a);
    if (!is_between || e->lane_index != index || e->has_ended || e->has_queued_end) continue;
    e->is_closing = true;
    lose_stream(e);
    n_cut++;
  }
  lose_messages(n);
  return n_cut;
}

void sim_network_kill_place(sim_network *n, uint32_t place) {
  n->is_place_dead[place] = true;
  for (stream_end *e = n->ends; e; e = e->next) {
    e->is_place_killed |= e->place == place;
    if (e->place != place && e->other_end->place == place && !e->has_ended) lose_stream(e);
  }
}

void sim_network_revive_place(sim_network *n, uint32_t place) { n->is_place_dead[place] = false; }

/* ---- creating and freeing the network -------------------------------------------------------- */

sim_network *sim_network_new(const sim_network_options *options) {
  sim_network *n = abort_if_null(calloc(1, sizeof *n));
  n->o = *options;
  n->random.rng_state = options->seed;
  n->now_ns = 1000 * MS; /* the clock starts at 1 s, because some code uses 0 for never */
  return n;
}

void sim_network_free(sim_network *n) {
  n->is_being_freed = true;
  for (stream_end *e = n->ends; e; e = e->next)
    handle_end(e, CLV_CANCELLED, "the end of the world");
  for (event *e = n->killed_jobs, *next; e; e = next) {
    next = e->next;
    e->job->run(e->job);
    free(e);
  }
  while (n->n_queued_events) {
    event *e = take_first_event(n);
    /* runs the jobs that are still queued, because the lanes that queued them wait for them */
    if (e->kind == JOB) e->job->run(e->job);
    if (e->kind == CALL && e->callback == redial_lost_lanes) redial_lost_lanes(e->user);
    free(e);
  }
  for (stream_end *e = n->ends, *next; e; e = next) {
    next = e->next;
    free(e);
  }
  for (dialling *d = n->diallings, *next; d; d = next) {
    next = d->next;
    free(d);
  }
  free(n->event_heap);
  free(n);
}
