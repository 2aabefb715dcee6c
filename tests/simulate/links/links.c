/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests two links of one process over the simulated network: random packets in both directions,
 * with tensors whose sizes are near the limits of frames and chunks, credit that runs out, quotas
 * that are too small, PINGs, ABORTs, cut lanes. Everything follows from a seed.
 *
 *   links [--runs N] [--seed S] [--trace]
 *
 * The program checks:
 *   once, whole, equal   each packet arrives once, with the bits that were sent
 *   in order             packets without chunks, and announcements, arrive in order; an ABORT
 *                        overtakes waiting packets, and no other packet overtakes
 *   mended               if links have a lease, lost connections change none of these results
 *   one end              after a cut or a close each side reports one end and sends nothing more
 *   nothing is lost      at the end all tensors and packets are back in their pools, and if nothing
 *                        was cut all credit has been returned
 */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/net/link/link_int.h"
#include "tests/simulate/network.h"

enum { MAX_SENT = 48, SIDES = 2, KIB = 1024 };
#define MS UINT64_C(1000000)

/* A packet that a side has sent. Its number, by which the receiver knows it, is sent as the frame's
 * context id. */
typedef struct sent_packet {
  clv_frame_kind kind;
  uint32_t n_tensors;
  uint32_t bytes[CLV_WIRE_TENSORS];
  uint64_t total_bytes;
  bool is_accepted;    /* the link accepted the packet */
  bool has_chunks;     /* the packet's tensors are sent in chunks */
  bool is_announced;   /* the receiver was told that this CALL comes, before its tensors arrived */
  uint32_t n_arrivals; /* how often the packet has arrived; must be 1 at the end */
  /* number of the first packet that waited in the send queue when this packet was sent */
  uint32_t first_unsent;
} sent_packet;

typedef struct side {
  clv_link *link;
  clv_account *account;
  clv_pool *pool;
  uint64_t credit;
  bool has_small_quota; /* the side's quota is too small for all packets that it may receive */
  sent_packet sent_packets[MAX_SENT];
  uint32_t n_sent, n_to_send;
  uint32_t last_in_order;   /* number of the peer's last packet that arrived in order */
  uint32_t n_close_reports; /* how often the link has reported that it is closed */
  uint32_t n_kept_packets;  /* received packets that are not freed yet */
} side;

/* A received packet that is freed only after a random time, as by a slow receiver. */
typedef struct kept_packet {
  side *receiver;
  clv_packet *packet;
} kept_packet;

static struct {
  uint64_t seed, run_digest, n_packets, n_refused, n_sent_behind_queue, n_cuts, n_aborts;
  uint64_t n_reset_streams;
  bool prints_trace, has_failed, was_cut, repairs_links;
  sim_random rng;
  sim_network *network;
  side sides[SIDES];
} test_run;

static void report_fault(const char *fmt, ...) CLV_PRINTF(1, 2);
static void report_fault(const char *fmt, ...) {
  if (test_run.has_failed) return;
  test_run.has_failed = true;
  printf("seed %" PRIu64 " at %.3f ms: ", test_run.seed,
         (double)sim_network_now(test_run.network) / 1e6);
  va_list args;
  va_start(args, fmt);
  vprintf(fmt, args);
  va_end(args);
  printf("\n");
}

static void print_trace(const char *fmt, ...) CLV_PRINTF(1, 2);
static void print_trace(const char *fmt, ...) {
  if (!test_run.prints_trace) return;
  printf("%12.6f ms  ", (double)sim_network_now(test_run.network) / 1e6);
  va_list args;
  va_start(args, fmt);
  vprintf(fmt, args);
  va_end(args);
  printf("\n");
}

static uint32_t draw_below(uint32_t n) { return sim_draw_below(&test_run.rng, n); }
static uint32_t index_of_side(const side *s) { return (uint32_t)(s - test_run.sides); }
static side *other_side(const side *s) { return &test_run.sides[1 - index_of_side(s)]; }

static void add_to_digest(uint64_t number) {
  test_run.run_digest = (test_run.run_digest ^ number) * UINT64_C(0x100000001b3);
}

static void require_success(clv_code code, const clv_err *err) {
  if (code != CLV_OK) report_fault("%s (%s)", err->text, err->where);
}

/* ---- tensors of the packets ------------------------------------------------------------------ */

static sim_random make_tensor_rng(const side *from, uint32_t number, uint32_t slot) {
  return (sim_random){test_run.seed << 24 ^ index_of_side(from) << 20 ^ number << 4 ^ slot};
}

static clv_tensor *make_tensor(const side *from, uint32_t number, uint32_t slot, uint32_t bytes) {
  clv_tensor *t = NULL;
  clv_err err;
  sim_random r = make_tensor_rng(from, number, slot);
  require_success(clv_tensor_new(CLV_F32, &CLV_SHAPE(bytes / 4), &t, &err), &err);
  if (t) memset(t->data, (int)sim_draw_below(&r, 256), bytes);
  for (uint32_t i = 0; t && i < bytes; i += 256) {
    uint64_t word = sim_draw_number(&r);
    memcpy((char *)t->data + i, &word, CLV_MIN(bytes - i, (uint32_t)sizeof word));
  }
  return t;
}

static bool is_equal(const clv_tensor *t, const side *from, uint32_t number, uint32_t slot) {
  clv_tensor *expected = make_tensor(from, number, slot, from->sent_packets[number].bytes[slot]);
  bool equal = expected && t->bytes == expected->bytes && t->dtype == CLV_F32 &&
               t->shape.rank == 1 && memcmp(t->data, expected->data, t->bytes) == 0;
  clv_tensor_unref(expected);
  return equal;
}

static uint32_t draw_bytes(void) {
  static const uint32_t sizes[] = {4,         2000,      32 * KIB,  64 * KIB, 64 * KIB,
                                   256 * KIB, 256 * KIB, 512 * KIB, 700 * KIB};
  uint32_t bytes = sizes[draw_below(CLV_COUNT(sizes))], distance = 4 * draw_below(3);
  return draw_below(2) ? bytes + distance : bytes - CLV_MIN(distance, bytes - 4);
}

/* ---- receiving packets ----------------------------------------------------------------------- */

static void release_kept_packet(void *user) {
  kept_packet *k = user;
  k->receiver->n_kept_packets--;
  clv_packet_free(k->packet);
  free(k);
}

static void keep_packet(side *receiver, clv_packet *p) {
  kept_packet *k = calloc(1, sizeof *k);
  if (!k) abort();
  *k = (kept_packet){receiver, p};
  receiver->n_kept_packets++;
  sim_network_call_at(test_run.network,
                      sim_network_now(test_run.network) + draw_below(4) * MS + draw_below(1000),
                      release_kept_packet, k);
}

/* Asserts that a packet arrives in order. Only packets whose tensors are sent in chunks, and an
 * ABORT, may overtake others. */
static void check_order(side *to, uint32_t number, const sent_packet *s) {
  if (s->kind == CLV_ABORT) return;
  if (number < to->last_in_order)
    report_fault("packet %u came behind %u", number, to->last_in_order);
  to->last_in_order = number;
}

/* Asserts that an ABORT has overtaken the packets that were queued when it was sent. */
static void check_overtaking(const side *from, uint32_t number, const sent_packet *s) {
  for (uint32_t i = s->first_unsent; s->kind == CLV_ABORT && i < number; i++)
    if (from->sent_packets[i].kind != CLV_ABORT && from->sent_packets[i].is_accepted &&
        from->sent_packets[i].n_arrivals)
      report_fault("ABORT %u waited for packet %u", number, i);
}

static void check_tensors(const side *to, uint32_t number, const sent_packet *s,
                          const clv_packet *p) {
  if (p->is_over_quota) {
    test_run.n_refused++;
    if (!to->has_small_quota)
      report_fault("packet %u was refused: %s", number, p->frame.failure.text);
    return;
  }
  if (p->frame.n_tensors != s->n_tensors) report_fault("packet %u has lost tensors", number);
  for (uint32_t i = 0; i < p->frame.n_tensors && !test_run.has_failed; i++)
    if (!is_equal(p->tensor[i], other_side(to), number, i))
      report_fault("tensor %u of packet %u is not what was sent", i, number);
}

static void on_packet(void *user, clv_link *link, clv_packet *p) {
  side *to = user, *from = other_side(to);
  uint32_t number = (uint32_t)p->frame.context;
  add_to_digest(number << 2 | (uint32_t)p->is_announcement << 1 | index_of_side(to));
  add_to_digest(sim_network_now(test_run.network));
  print_trace("%u: %s %u%s", index_of_side(to), clv_frame_kind_name(p->frame.kind), number,
              p->is_announcement ? " is coming"
              : p->is_over_quota ? " refused"
                                 : "");
  if (link != to->link || p->received_by != link)
    report_fault("packet %u came by another link", number);
  if (number == 0 || number > from->n_sent) {
    report_fault("packet %u was never sent", number);
    clv_packet_free(p);
    return;
  }
  sent_packet *s = &from->sent_packets[number];
  if (p->is_announcement) {
    if (s->is_announced || s->n_arrivals) report_fault("packet %u is announced late", number);
    s->is_announced = true;
  } else {
    if (s->n_arrivals++) report_fault("packet %u came twice", number);
    if (p->was_announced != s->is_announced) report_fault("packet %u was not announced", number);
    check_tensors(to, number, s, p);
    check_overtaking(from, number, s);
  }
  if (p->is_announcement || !s->has_chunks) check_order(to, number, s);
  keep_packet(to, p);
}

static void on_closed(void *user, clv_link *link, clv_code code, const char *text) {
  side *s = user;
  (void)link;
  print_trace("%u: closed, %s (%s)", index_of_side(s), text, clv_code_name(code));
  if (s->n_close_reports++) report_fault("side %u says twice that it has ended", index_of_side(s));
}

/* ---- sending packets ------------------------------------------------------------------------- */

static clv_packet *make_packet(side *from, uint32_t number, sent_packet *s) {
  clv_packet *p = NULL;
  clv_err err;
  uint64_t id = number;
  s->kind = draw_below(8) == 0   ? CLV_ABORT
            : draw_below(4) == 0 ? CLV_DROP
            : draw_below(3)      ? CLV_VALUE
                                 : CLV_CALL;
  s->n_tensors = s->kind == CLV_VALUE ? 1 : s->kind == CLV_CALL ? 1 + draw_below(3) : 0;
  if (s->kind == CLV_VALUE || s->kind == CLV_ABORT)
    require_success(clv_packet_new(from->pool, s->kind, &p, &err), &err);
  else if (s->kind == CLV_DROP)
    require_success(clv_packet_new_drop(from->pool, number, 0, &id, 1, &p, &err), &err);
  else
    require_success(clv_packet_new_call(from->pool, number, id, 0, true, &p, &err), &err);
  p->frame.context = number;
  if (s->kind == CLV_VALUE) p->frame.message_id = id;
  if (s->kind == CLV_ABORT) clv_frame_set_failure(&p->frame, CLV_ABORTED, "as drawn", "");
  return p;
}

static void add_tensors(side *from, uint32_t number, sent_packet *s, clv_packet *p) {
  clv_err err;
  for (uint32_t i = 0; i < s->n_tensors; i++) {
    s->bytes[i] = draw_bytes();
    s->total_bytes += s->bytes[i];
    clv_tensor *t = make_tensor(from, number, i, s->bytes[i]);
    if (s->kind == CLV_CALL)
      require_success(clv_packet_add_arg(p, number, false, t, &err), &err);
    else
      clv_packet_add_tensor(p, t);
    clv_tensor_unref(t);
  }
  s->has_chunks = s->total_bytes > CLV_WIRE_INLINE_MAX;
}

/* Returns the expected result of sending a packet: refused if the peer can never have memory for
 * it, otherwise accepted. */
static clv_code expected_code(const side *from, const sent_packet *s) {
  uint64_t max_bytes = other_side(from)->credit;
  if (from->n_close_reports) return CLV_UNAVAILABLE;
  if (s->total_bytes > max_bytes ||
      (s->has_chunks && s->total_bytes > max_bytes - CLV_WIRE_INLINE_MAX))
    return CLV_EXHAUSTED;
  return CLV_OK;
}

static void send_packet(side *from) {
  clv_err err = {0};
  uint32_t number = ++from->n_sent;
  sent_packet *s = &from->sent_packets[number];
  clv_packet *p = make_packet(from, number, s);
  add_tensors(from, number, s, p);
  const clv_packet *first_waiting = from->link->send_queue->first;
  s->first_unsent = first_waiting ? (uint32_t)first_waiting->frame.context : number;
  test_run.n_aborts += s->kind == CLV_ABORT && first_waiting;
  clv_code expected = expected_code(from, s), code = clv_link_send(from->link, p, &err);
  print_trace("%u: sends %s %u, %" PRIu64 " bytes%s", index_of_side(from),
              clv_frame_kind_name(s->kind), number, s->total_bytes,
              code == CLV_OK ? "" : ": refused");
  s->is_accepted = code == CLV_OK;
  test_run.n_packets += s->is_accepted;
  test_run.n_sent_behind_queue += from->link->send_queue->first != NULL;
  /* the lane of a cut link has ended, but the link has not noticed the end yet */
  bool cut_is_unnoticed = test_run.was_cut && code == CLV_UNAVAILABLE;
  if (code != expected && !cut_is_unnoticed)
    report_fault("packet %u: %s instead of %s: %s", number, clv_code_name(code),
                 clv_code_name(expected), err.text);
}

static void send_some_packets(void *user) {
  side *s = user;
  if (draw_below(5) == 0) clv_link_ping_async(s->link);
  for (uint32_t n = 1 + draw_below(4); n && s->n_sent < s->n_to_send; n--) send_packet(s);
  if (s->n_sent == s->n_to_send) return;
  sim_network_call_at(test_run.network,
                      sim_network_now(test_run.network) + draw_below(3) * MS + draw_below(1000),
                      send_some_packets, s);
}

/* Loses one of the connections, which both sides repair. user: how many more connections to lose
 * later. */
static void lose_connection(void *user) {
  uint32_t n_left = (uint32_t)(uintptr_t)user;
  test_run.n_reset_streams +=
      sim_network_reset_lane(test_run.network, 0, 1, draw_below(test_run.sides[0].link->n_lanes));
  print_trace("a connection is lost");
  if (n_left)
    sim_network_call_at(test_run.network,
                        sim_network_now(test_run.network) + draw_below(20) * MS + draw_below(1000),
                        lose_connection, (void *)(uintptr_t)(n_left - 1));
}

static void cut_connection(void *user) {
  (void)user;
  test_run.was_cut = sim_network_close_lane(test_run.network, 0, 1,
                                            draw_below(test_run.sides[0].link->n_lanes)) > 0;
  test_run.n_cuts += test_run.was_cut;
  print_trace("a lane is cut");
}

/* ---- one run of a seed ----------------------------------------------------------------------- */

static clv_code find_link(void *user, const clv_frame *attach, const char *uri, clv_link **ret,
                          clv_err *err) {
  (void)attach, (void)uri, (void)err;
  *ret = clv_link_ref(((side *)user)->link);
  return CLV_OK;
}

static clv_link_options make_options(side *s) {
  clv_wire_limits accept = clv_wire_limits_default();
  accept.credit_bytes = s->credit;
  return (clv_link_options){.clock = sim_network_get_clock(test_run.network),
                            .peer_name = index_of_side(s) ? "zero" : "one",
                            .pool = s->pool,
                            .accept_limits = accept,
                            .initial_send_credit = other_side(s)->credit,
                            .quota_fails_packet = s->has_small_quota,
                            .lease_ms = test_run.repairs_links ? 60000 : 0,
                            .events = {.user = s, .on_packet = on_packet, .on_closed = on_closed}};
}

static void make_side(side *s) {
  static const uint32_t credits[] = {200, 400, 900, 4096, 65536};
  clv_err err;
  s->credit = KIB * (uint64_t)credits[draw_below(CLV_COUNT(credits))];
  s->has_small_quota = draw_below(4) == 0;
  s->n_to_send = draw_below(MAX_SENT - 1);
  clv_account_options a = {.owner_in_messages = "a side",
                           .limits = {[CLV_QUOTA_BYTES] = s->has_small_quota ? 900 * KIB : 0}};
  require_success(clv_account_new(&a, &s->account, &err), &err);
  require_success(clv_pool_new_for_account(s->account, &s->pool, &err), &err);
}

static void connect_sides(const clv_lane_acceptor *acceptor) {
  clv_err err;
  side *dialling_side = &test_run.sides[0], *accepting_side = &test_run.sides[1];
  clv_link_options dialling_options = make_options(dialling_side),
                   accepting_options = make_options(accepting_side);
  clv_link_dial d = {
      .attach_role = CLV_ATTACH_MASTER, .n_bulk_lanes = draw_below(4), .attempt_number = 1};
  require_success(clv_link_new(&accepting_options, &accepting_side->link, &err), &err);
  clv_dialler dialler =
      sim_network_make_dialler(test_run.network, 0, 1, acceptor, "spiffe://test/zero");
  require_success(clv_link_start(&dialling_options, &d, &dialler, &dialling_side->link, &err),
                  &err);
  while (
      !(clv_link_is_attached(dialling_side->link) && clv_link_is_attached(accepting_side->link)) &&
      sim_network_next_event_ns(test_run.network) != UINT64_MAX)
    sim_network_run_event(test_run.network);
  if (!clv_link_is_attached(dialling_side->link)) report_fault("the lanes were not attached");
}

static void run_all_events(void) {
  while (!test_run.has_failed && sim_network_next_event_ns(test_run.network) != UINT64_MAX)
    sim_network_run_event(test_run.network);
}

/* Asserts that no packet is in flight and that all credit has been returned. */
static void check_nothing_is_held(const side *s) {
  clv_link_load load;
  const side *peer = other_side(s);
  clv_link_get_load(s->link, &load);
  if (s->n_kept_packets || load.frames_in)
    report_fault("side %u holds what came", index_of_side(s));
  if (test_run.was_cut) return;
  if (load.tensors_in || load.bytes_in) report_fault("side %u waits for tensors", index_of_side(s));
  if (load.frames_out || load.tensors_out || load.bytes_out)
    report_fault("side %u has %" PRIu64 " frames, %" PRIu64 " tensors, %" PRIu64 " bytes to send",
                 index_of_side(s), load.frames_out, load.tensors_out, load.bytes_out);
  for (uint32_t i = 1; i <= s->n_sent; i++)
    if (s->sent_packets[i].is_accepted != (s->sent_packets[i].n_arrivals == 1))
      report_fault("packet %u did not arrive", i);
  if (s->link->n_pings != s->link->n_pongs) report_fault("a PING was not answered");
  if (s->link->send_queue->granted_credit != peer->credit ||
      s->link->send_queue->available_credit + peer->link->recv_window->unreturned_bytes !=
          peer->credit ||
      peer->link->recv_window->unreturned_bytes != peer->link->recv_window->unsent_credit)
    report_fault("side %u has lost credit", index_of_side(s));
  if (s->n_close_reports) report_fault("side %u has ended by itself", index_of_side(s));
}

/* True if all tensors have returned to the pool. Before a pool exceeds its quota it frees idle
 * blocks, so after this request only blocks in use are left. */
static bool has_no_used_tensors(side *s) {
  enum { SMALL_QUOTA = 512 };
  clv_err err;
  clv_tensor *t = NULL;
  clv_account_set_limit(s->account, CLV_QUOTA_BYTES, SMALL_QUOTA);
  clv_code code = clv_pool_alloc_tensor(s->pool, CLV_U8, &CLV_SHAPE(SMALL_QUOTA), &t, &err);
  clv_tensor_unref(t);
  return code == CLV_OK && clv_account_usage(s->account, CLV_QUOTA_BYTES) == SMALL_QUOTA;
}

static void end_side(side *s) {
  clv_link_unref(s->link);
  if (!has_no_used_tensors(s))
    report_fault("side %u has not given back all tensors", index_of_side(s));
  clv_pool_unref(s->pool);
  clv_account_unref(s->account);
}

static void exchange_packets(void) {
  for (int i = 0; i < SIDES; i++) send_some_packets(&test_run.sides[i]);
  uint64_t cut_ns = sim_network_now(test_run.network) + draw_below(40) * MS + draw_below(1000);
  if (test_run.repairs_links)
    sim_network_call_at(test_run.network, cut_ns, lose_connection,
                        (void *)(uintptr_t)draw_below(12));
  else if (draw_below(3) == 0)
    sim_network_call_at(test_run.network, cut_ns, cut_connection, NULL);
  run_all_events();
  for (int i = 0; i < SIDES && !test_run.has_failed; i++) check_nothing_is_held(&test_run.sides[i]);
  clv_link_close(test_run.sides[draw_below(SIDES)].link);
  run_all_events();
  for (int i = 0; i < SIDES && !test_run.has_failed; i++)
    if (test_run.sides[i].n_close_reports != 1 || test_run.sides[i].link->state != CLV_LINK_ENDED)
      report_fault("side %u has not ended", i);
}

static uint64_t run_seed(uint64_t seed) {
  clv_lane_acceptor acceptor = {&test_run.sides[1], find_link};
  test_run.seed = test_run.rng.rng_state = seed;
  test_run.run_digest = UINT64_C(0xcbf29ce484222325);
  test_run.was_cut = false;
  test_run.repairs_links = draw_below(2);
  memset(test_run.sides, 0, sizeof test_run.sides);
  sim_network_options o = {
      .seed = seed, .has_no_delays = draw_below(16) == 0, .prints_messages = test_run.prints_trace};
  test_run.network = sim_network_new(&o);
  for (int i = 0; i < SIDES; i++) make_side(&test_run.sides[i]);
  connect_sides(&acceptor);
  if (!test_run.has_failed) exchange_packets();
  if (test_run.has_failed) return 0; /* after a failed check, network and links are not freed */
  sim_network_free(test_run.network);
  /* the network's clock gives the time in reports of faults */
  test_run.network = sim_network_new(&o);
  for (int i = 0; i < SIDES; i++) end_side(&test_run.sides[i]);
  sim_network_free(test_run.network);
  return test_run.run_digest;
}

int main(int argc, char **argv) {
  uint64_t n_runs = 250, only_seed = 0;
  for (int i = 1; i < argc; i++) {
    if (strcmp(argv[i], "--trace") == 0) test_run.prints_trace = true;
    if (strcmp(argv[i], "--runs") == 0 && i + 1 < argc) n_runs = strtoull(argv[++i], NULL, 10);
    if (strcmp(argv[i], "--seed") == 0 && i + 1 < argc) only_seed = strtoull(argv[++i], NULL, 10);
  }
  uint64_t first_seed = only_seed ? only_seed : 1, last_seed = only_seed ? only_seed : n_runs;
  for (uint64_t s = first_seed; s <= last_seed && !test_run.has_failed; s++) {
    uint64_t digest = run_seed(s);
    if (s % 64 == 0 && !test_run.has_failed && run_seed(s) != digest)
      printf("seed %" PRIu64 " does not repeat itself\n", s), test_run.has_failed = true;
  }
  if (test_run.has_failed) return 1;
  printf("%" PRIu64 " runs: %" PRIu64 " packets, %" PRIu64 " sent while some waited, %" PRIu64
         " refused for want of room, %" PRIu64 " ABORTs past others, %" PRIu64 " cuts, %" PRIu64
         " mended\n",
         last_seed - first_seed + 1, test_run.n_packets, test_run.n_sent_behind_queue,
         test_run.n_refused, test_run.n_aborts, test_run.n_cuts, test_run.n_reset_streams);
  return 0;
}
