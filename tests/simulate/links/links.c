/* SPDX-License-Identifier: Apache-2.0
 *
 * Two links of one process over the simulated network: random packets both ways, with tensors of
 * sizes about the limits of frames and chunks, credit that runs out, quotas that are too small,
 * PINGs, ABORTs, cut lanes. Everything follows from a seed.
 *
 *   links [--runs N] [--seed S] [--trace]
 *
 * What is held to:
 *   once, whole, equal   each packet arrives once, with the bits that were sent
 *   in order             of what needs no chunks, and of announcements; an ABORT overtakes what
 *                        waits, and nothing else overtakes
 *   mended               where links have a lease, connections that are lost change nothing of this
 *   one end              after a cut, or a close, each side says so once and sends nothing more
 *   nothing is lost      at the end all tensors and packets are back in their pools, and where
 *                        nothing was cut the credit is whole
 */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/net/link/link_int.h"
#include "tests/simulate/network.h"

enum { MOST_SENT = 48, SIDES = 2, KIB = 1024 };
#define MS UINT64_C(1000000)

/* A packet that a side has sent; its number is the frame's context. */
typedef struct sent {
  clv_frame_kind kind;
  uint32_t n_tensors;
  uint32_t bytes[CLV_WIRE_TENSORS];
  uint64_t total;
  bool gone;      /* the link took it */
  bool chunked;   /* its tensors come in chunks */
  bool announced; /* a CALL: that it comes */
  uint32_t arrived, first_waiting;
} sent;

typedef struct side {
  clv_link *link;
  clv_account *account;
  clv_pool *pool;
  uint64_t credit;
  bool tight; /* there is no room for all that may come */
  sent sent[MOST_SENT];
  uint32_t n_sent, n_wanted;
  uint32_t in_order; /* the last number of the peer that came in order */
  uint32_t closed, held;
} side;

/* A packet that its receiver keeps for a while. */
typedef struct kept {
  side *by;
  clv_packet *packet;
} kept;

static struct {
  uint64_t seed, digest, packets, refused, waited, cuts, aborts;
  uint64_t mended;
  bool trace, failed, cut, mends;
  sim_random random;
  sim_network *network;
  side sides[SIDES];
} w;

static void complain(const char *fmt, ...) CLV_PRINTF(1, 2);
static void complain(const char *fmt, ...) {
  if (w.failed) return;
  w.failed = true;
  printf("seed %" PRIu64 " at %.3f ms: ", w.seed, (double)sim_network_now(w.network) / 1e6);
  va_list args;
  va_start(args, fmt);
  vprintf(fmt, args);
  va_end(args);
  printf("\n");
}

static void trace(const char *fmt, ...) CLV_PRINTF(1, 2);
static void trace(const char *fmt, ...) {
  if (!w.trace) return;
  printf("%12.6f ms  ", (double)sim_network_now(w.network) / 1e6);
  va_list args;
  va_start(args, fmt);
  vprintf(fmt, args);
  va_end(args);
  printf("\n");
}

static uint32_t random_below(uint32_t n) { return sim_below(&w.random, n); }
static uint32_t number_of(const side *s) { return (uint32_t)(s - w.sides); }
static side *other(const side *s) { return &w.sides[1 - number_of(s)]; }

static void note(uint64_t fact) { w.digest = (w.digest ^ fact) * UINT64_C(0x100000001b3); }

static void must(clv_code code, const clv_err *err) {
  if (code != CLV_OK) complain("%s (%s)", err->text, err->where);
}

/* ---- tensors --------------------------------------------------------------------------------- */

static sim_random bits_of(const side *from, uint32_t number, uint32_t slot) {
  return (sim_random){w.seed << 24 ^ number_of(from) << 20 ^ number << 4 ^ slot};
}

static clv_tensor *make_tensor(const side *from, uint32_t number, uint32_t slot, uint32_t bytes) {
  clv_tensor *t = NULL;
  clv_err err;
  sim_random r = bits_of(from, number, slot);
  must(clv_tensor_new(CLV_F32, &CLV_SHAPE(bytes / 4), &t, &err), &err);
  if (t) memset(t->data, (int)sim_below(&r, 256), bytes);
  for (uint32_t i = 0; t && i < bytes; i += 256) {
    uint64_t word = sim_next(&r);
    memcpy((char *)t->data + i, &word, CLV_MIN(bytes - i, (uint32_t)sizeof word));
  }
  return t;
}

static bool is_equal(const clv_tensor *t, const side *from, uint32_t number, uint32_t slot) {
  clv_tensor *expected = make_tensor(from, number, slot, from->sent[number].bytes[slot]);
  bool equal = expected && t->bytes == expected->bytes && t->dtype == CLV_F32 &&
               t->shape.rank == 1 && memcmp(t->data, expected->data, t->bytes) == 0;
  clv_tensor_unref(expected);
  return equal;
}

static uint32_t draw_bytes(void) {
  static const uint32_t about[] = {4,         2000,      32 * KIB,  64 * KIB, 64 * KIB,
                                   256 * KIB, 256 * KIB, 512 * KIB, 700 * KIB};
  uint32_t bytes = about[random_below(CLV_COUNT(about))], aside = 4 * random_below(3);
  return random_below(2) ? bytes + aside : bytes - CLV_MIN(aside, bytes - 4);
}

/* ---- what arrives ---------------------------------------------------------------------------- */

static void release_memory(void *user) {
  kept *k = user;
  k->by->held--;
  clv_packet_free(k->packet);
  free(k);
}

static void keep(side *by, clv_packet *p) {
  kept *k = calloc(1, sizeof *k);
  if (!k) abort();
  *k = (kept){by, p};
  by->held++;
  sim_network_at(w.network, sim_network_now(w.network) + random_below(4) * MS + random_below(1000),
                 release_memory, k);
}

/* Nothing but what comes in chunks, and an ABORT, is out of order. */
static void check_order(side *to, uint32_t number, const sent *s) {
  if (s->kind == CLV_ABORT) return;
  if (number < to->in_order) complain("packet %u came behind %u", number, to->in_order);
  to->in_order = number;
}

/* What waited when it was sent comes behind it. */
static void check_overtaking(const side *from, uint32_t number, const sent *s) {
  for (uint32_t i = s->first_waiting; s->kind == CLV_ABORT && i < number; i++)
    if (from->sent[i].kind != CLV_ABORT && from->sent[i].gone && from->sent[i].arrived)
      complain("ABORT %u waited for packet %u", number, i);
}

static void check_tensors(const side *to, uint32_t number, const sent *s, const clv_packet *p) {
  if (p->is_over_quota) {
    w.refused++;
    if (!to->tight) complain("packet %u was refused: %s", number, p->frame.failure.text);
    return;
  }
  if (p->frame.n_tensors != s->n_tensors) complain("packet %u has lost tensors", number);
  for (uint32_t i = 0; i < p->frame.n_tensors && !w.failed; i++)
    if (!is_equal(p->tensor[i], other(to), number, i))
      complain("tensor %u of packet %u is not what was sent", i, number);
}

static void on_packet(void *user, clv_link *link, clv_packet *p) {
  side *to = user, *from = other(to);
  uint32_t number = (uint32_t)p->frame.context;
  note(number << 2 | (uint32_t)p->is_announcement << 1 | number_of(to));
  note(sim_network_now(w.network));
  trace("%u: %s %u%s", number_of(to), clv_frame_kind_name(p->frame.kind), number,
        p->is_announcement ? " is coming"
        : p->is_over_quota ? " refused"
                           : "");
  if (link != to->link || p->received_by != link)
    complain("packet %u came by another link", number);
  if (number == 0 || number > from->n_sent) {
    complain("packet %u was never sent", number);
    clv_packet_free(p);
    return;
  }
  sent *s = &from->sent[number];
  if (p->is_announcement) {
    if (s->announced || s->arrived) complain("packet %u is announced late", number);
    s->announced = true;
  } else {
    if (s->arrived++) complain("packet %u came twice", number);
    if (p->was_announced != s->announced) complain("packet %u was not announced", number);
    check_tensors(to, number, s, p);
    check_overtaking(from, number, s);
  }
  if (p->is_announcement || !s->chunked) check_order(to, number, s);
  keep(to, p);
}

static void on_closed(void *user, clv_link *link, clv_code code, const char *text) {
  side *s = user;
  (void)link;
  trace("%u: closed, %s (%s)", number_of(s), text, clv_code_name(code));
  if (s->closed++) complain("side %u says twice that it has ended", number_of(s));
}

/* ---- what is sent ---------------------------------------------------------------------------- */

static clv_packet *make_packet(side *from, uint32_t number, sent *s) {
  clv_packet *p = NULL;
  clv_err err;
  uint64_t id = number;
  s->kind = random_below(8) == 0   ? CLV_ABORT
            : random_below(4) == 0 ? CLV_DROP
            : random_below(3)      ? CLV_VALUE
                                   : CLV_CALL;
  s->n_tensors = s->kind == CLV_VALUE ? 1 : s->kind == CLV_CALL ? 1 + random_below(3) : 0;
  if (s->kind == CLV_VALUE || s->kind == CLV_ABORT)
    must(clv_packet_new(from->pool, s->kind, &p, &err), &err);
  else if (s->kind == CLV_DROP)
    must(clv_packet_new_drop(from->pool, number, 0, &id, 1, &p, &err), &err);
  else
    must(clv_packet_new_call(from->pool, number, id, 0, true, &p, &err), &err);
  p->frame.context = number;
  if (s->kind == CLV_VALUE) p->frame.message = id;
  if (s->kind == CLV_ABORT) clv_frame_set_failure(&p->frame, CLV_ABORTED, "as drawn", "");
  return p;
}

static void add_tensors(side *from, uint32_t number, sent *s, clv_packet *p) {
  clv_err err;
  for (uint32_t i = 0; i < s->n_tensors; i++) {
    s->bytes[i] = draw_bytes();
    s->total += s->bytes[i];
    clv_tensor *t = make_tensor(from, number, i, s->bytes[i]);
    if (s->kind == CLV_CALL)
      must(clv_packet_add_arg(p, number, false, t, &err), &err);
    else
      clv_packet_add_tensor(p, t);
    clv_tensor_unref(t);
  }
  s->chunked = s->total > CLV_WIRE_INLINE_MAX;
}

/* What the peer can never have room for is refused, and nothing else. */
static clv_code expected(const side *from, const sent *s) {
  uint64_t most = other(from)->credit;
  if (from->closed) return CLV_UNAVAILABLE;
  if (s->total > most || (s->chunked && s->total > most - CLV_WIRE_INLINE_MAX))
    return CLV_EXHAUSTED;
  return CLV_OK;
}

static void send_packet(side *from) {
  clv_err err = {0};
  uint32_t number = ++from->n_sent;
  sent *s = &from->sent[number];
  clv_packet *p = make_packet(from, number, s);
  add_tensors(from, number, s, p);
  const clv_packet *waits = from->link->send_queue->first;
  s->first_waiting = waits ? (uint32_t)waits->frame.context : number;
  w.aborts += s->kind == CLV_ABORT && waits;
  clv_code wanted = expected(from, s), code = clv_link_send(from->link, p, &err);
  trace("%u: sends %s %u, %" PRIu64 " bytes%s", number_of(from), clv_frame_kind_name(s->kind),
        number, s->total, code == CLV_OK ? "" : ": refused");
  s->gone = code == CLV_OK;
  w.packets += s->gone;
  w.waited += from->link->send_queue->first != NULL;
  bool too_early = w.cut && code == CLV_UNAVAILABLE; /* a lane has ended, the link not yet */
  if (code != wanted && !too_early)
    complain("packet %u: %s instead of %s: %s", number, clv_code_name(code), clv_code_name(wanted),
             err.text);
}

static void act(void *user) {
  side *s = user;
  if (random_below(5) == 0) clv_link_ping_async(s->link);
  for (uint32_t n = 1 + random_below(4); n && s->n_sent < s->n_wanted; n--) send_packet(s);
  if (s->n_sent == s->n_wanted) return;
  sim_network_at(w.network, sim_network_now(w.network) + random_below(3) * MS + random_below(1000),
                 act, s);
}

/* A connection is lost; both sides mend it. More may be lost meanwhile. */
static void lose(void *user) {
  uint32_t left = (uint32_t)(uintptr_t)user;
  w.mended += sim_network_reset(w.network, 0, 1, random_below(w.sides[0].link->n_lanes));
  trace("a connection is lost");
  if (left)
    sim_network_at(w.network,
                   sim_network_now(w.network) + random_below(20) * MS + random_below(1000), lose,
                   (void *)(uintptr_t)(left - 1));
}

static void cut(void *user) {
  (void)user;
  w.cut = sim_network_cut(w.network, 0, 1, random_below(w.sides[0].link->n_lanes)) > 0;
  w.cuts += w.cut;
  trace("a lane is cut");
}

/* ---- a run ----------------------------------------------------------------------------------- */

static clv_code find_link(void *user, const clv_frame *attach, const char *uri, clv_link **ret,
                          clv_err *err) {
  (void)attach, (void)uri, (void)err;
  *ret = clv_link_ref(((side *)user)->link);
  return CLV_OK;
}

static clv_link_options options_of(side *s) {
  clv_wire_limits accept = clv_wire_limits_default();
  accept.credit_bytes = s->credit;
  return (clv_link_options){.clock = sim_network_clock(w.network),
                            .peer_name = number_of(s) ? "zero" : "one",
                            .pool = s->pool,
                            .accept_limits = accept,
                            .send_credit = other(s)->credit,
                            .quota_fails_packet = s->tight,
                            .lease_ms = w.mends ? 60000 : 0,
                            .events = {.user = s, .on_packet = on_packet, .on_closed = on_closed}};
}

static void make_side(side *s) {
  static const uint32_t credits[] = {200, 400, 900, 4096, 65536};
  clv_err err;
  s->credit = KIB * (uint64_t)credits[random_below(CLV_COUNT(credits))];
  s->tight = random_below(4) == 0;
  s->n_wanted = random_below(MOST_SENT - 1);
  clv_account_options a = {.owner_in_messages = "a side",
                           .limit = {[CLV_QUOTA_BYTES] = s->tight ? 900 * KIB : 0}};
  must(clv_account_new(&a, &s->account, &err), &err);
  must(clv_pool_new_for_account(s->account, &s->pool, &err), &err);
}

static void join(const clv_lane_acceptor *acceptor) {
  clv_err err;
  side *near = &w.sides[0], *far = &w.sides[1];
  clv_link_options here = options_of(near), there = options_of(far);
  clv_link_dial d = {.attach_role = CLV_ATTACH_MASTER, .bulk_lanes = random_below(4), .epoch = 1};
  must(clv_link_new(&there, &far->link, &err), &err);
  clv_dialler dialler = sim_network_dialler(w.network, 0, 1, acceptor, "spiffe://test/zero");
  must(clv_link_start(&here, &d, &dialler, &near->link, &err), &err);
  while (!(clv_link_is_attached(near->link) && clv_link_is_attached(far->link)) &&
         sim_network_due(w.network) != UINT64_MAX)
    sim_network_step(w.network);
  if (!clv_link_is_attached(near->link)) complain("the lanes were not attached");
}

static void run_dry(void) {
  while (!w.failed && sim_network_due(w.network) != UINT64_MAX) sim_network_step(w.network);
}

/* All has been said and let go. */
static void check_rest(const side *s) {
  clv_link_load load;
  const side *peer = other(s);
  clv_link_get_load(s->link, &load);
  if (s->held || load.frames_in) complain("side %u holds what came", number_of(s));
  if (w.cut) return;
  if (load.tensors_in || load.bytes_in) complain("side %u waits for tensors", number_of(s));
  if (load.frames_out || load.tensors_out || load.bytes_out)
    complain("side %u has %" PRIu64 " frames, %" PRIu64 " tensors, %" PRIu64 " bytes to send",
             number_of(s), load.frames_out, load.tensors_out, load.bytes_out);
  for (uint32_t i = 1; i <= s->n_sent; i++)
    if (s->sent[i].gone != (s->sent[i].arrived == 1)) complain("packet %u did not arrive", i);
  if (s->link->n_pings != s->link->n_pongs) complain("a PING was not answered");
  if (s->link->send_queue->granted_credit != peer->credit ||
      s->link->send_queue->available_credit + peer->link->recv_window->unreturned_bytes !=
          peer->credit ||
      peer->link->recv_window->unreturned_bytes != peer->link->recv_window->unsent_credit)
    complain("side %u has lost credit", number_of(s));
  if (s->closed) complain("side %u has ended by itself", number_of(s));
}

/* A pool gives back what is free before it goes over its quota: then only what is asked for is
 * left. */
static bool has_all_tensors(side *s) {
  enum { LITTLE = 512 };
  clv_err err;
  clv_tensor *t = NULL;
  clv_account_set_limit(s->account, CLV_QUOTA_BYTES, LITTLE);
  clv_code code = clv_pool_alloc_tensor(s->pool, CLV_U8, &CLV_SHAPE(LITTLE), &t, &err);
  clv_tensor_unref(t);
  return code == CLV_OK && clv_account_usage(s->account, CLV_QUOTA_BYTES) == LITTLE;
}

static void end_side(side *s) {
  clv_link_unref(s->link);
  if (!has_all_tensors(s)) complain("side %u has not given back all tensors", number_of(s));
  clv_pool_unref(s->pool);
  clv_account_unref(s->account);
}

static void exchange_packets(void) {
  for (int i = 0; i < SIDES; i++) act(&w.sides[i]);
  uint64_t soon = sim_network_now(w.network) + random_below(40) * MS + random_below(1000);
  if (w.mends)
    sim_network_at(w.network, soon, lose, (void *)(uintptr_t)random_below(12));
  else if (random_below(3) == 0)
    sim_network_at(w.network, soon, cut, NULL);
  run_dry();
  for (int i = 0; i < SIDES && !w.failed; i++) check_rest(&w.sides[i]);
  clv_link_close(w.sides[random_below(SIDES)].link);
  run_dry();
  for (int i = 0; i < SIDES && !w.failed; i++)
    if (w.sides[i].closed != 1 || w.sides[i].link->state != CLV_LINK_ENDED)
      complain("side %u has not ended", i);
}

static uint64_t run(uint64_t seed) {
  clv_lane_acceptor acceptor = {&w.sides[1], find_link};
  w.seed = w.random.state = seed;
  w.digest = UINT64_C(0xcbf29ce484222325);
  w.cut = false;
  w.mends = random_below(2);
  memset(w.sides, 0, sizeof w.sides);
  sim_network_options o = {.seed = seed, .calm = random_below(16) == 0, .trace = w.trace};
  w.network = sim_network_new(&o);
  for (int i = 0; i < SIDES; i++) make_side(&w.sides[i]);
  join(&acceptor);
  if (!w.failed) exchange_packets();
  if (w.failed) return 0; /* what is left behind does not matter any more */
  sim_network_free(w.network);
  w.network = sim_network_new(&o); /* for the time in complaints */
  for (int i = 0; i < SIDES; i++) end_side(&w.sides[i]);
  sim_network_free(w.network);
  return w.digest;
}

int main(int argc, char **argv) {
  uint64_t runs = 250, seed = 0;
  for (int i = 1; i < argc; i++) {
    if (strcmp(argv[i], "--trace") == 0) w.trace = true;
    if (strcmp(argv[i], "--runs") == 0 && i + 1 < argc) runs = strtoull(argv[++i], NULL, 10);
    if (strcmp(argv[i], "--seed") == 0 && i + 1 < argc) seed = strtoull(argv[++i], NULL, 10);
  }
  uint64_t first = seed ? seed : 1, last = seed ? seed : runs;
  for (uint64_t s = first; s <= last && !w.failed; s++) {
    uint64_t digest = run(s);
    if (s % 64 == 0 && !w.failed && run(s) != digest)
      printf("seed %" PRIu64 " does not repeat itself\n", s), w.failed = true;
  }
  if (w.failed) return 1;
  printf("%" PRIu64 " runs: %" PRIu64 " packets, %" PRIu64 " sent while some waited, %" PRIu64
         " refused for want of room, %" PRIu64 " ABORTs past others, %" PRIu64 " cuts, %" PRIu64
         " mended\n",
         last - first + 1, w.packets, w.waited, w.refused, w.aborts, w.cuts, w.mended);
  return 0;
}
