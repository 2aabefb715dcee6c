/* SPDX-License-Identifier: Apache-2.0
 *
 * Runs random programs over a master and three workers on a simulated network and clock. Everything
 * follows from a seed: the program, how long each message takes, which connection is cut or which
 * worker dies, and when.
 *
 *   simulate [--first S] [--runs N] [--seed S] [--cuts N] [--trace]
 *
 * --cuts: runs of each seed in which connections are lost; 0: one for each message of its program.
 *
 * Each program runs with all its modules at the master, then over the workers on a network without
 * delays and on a network with random delays. For many seeds it also runs with delays and with a
 * lane that is cut or a worker that dies. For every eighth seed two workers compute in memory that
 * the host cannot touch (far.h). The program checks:
 *   the same bits  statuses and numbers are those of the run at the master, whatever the delays;
 *                  after a fault too, for everything that does not depend on the lost lane or
 *                  worker
 *   clean errors   after a fault: UNAVAILABLE and the like with the name of the lost worker, only
 *                  for operations that need it
 *   in time        no call waits much longer than the notice of a loss may take
 *   mended         connections that are lost, at any message, change neither statuses nor numbers
 *   no leak        when all is closed no node holds a context, a reference or a tensor
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/long.h"
#include "tests/simulate/judge.h"
#include "tests/simulate/world.h"

static struct {
  bool prints_trace;
  uint64_t n_lines, n_messages, n_faults, n_errors, n_bytes, n_cuts;
  uint64_t n_cut_runs; /* runs with a cut connection, for each seed */
} totals = {.n_cut_runs = 2};

/* ---- one run of a program -------------------------------------------------------------------- */

static void print_line(void *user, const sim_record *r, const sim_line *l) {
  (void)user;
  printf("%12.6f ms  line %zu: %s%s", (double)l->ended_ns / 1e6, (size_t)(l - r->lines),
         l->description, l->is_skipped ? ", which has no ground" : "");
  if (l->n_bytes)
    printf(", numbers %08x", (unsigned)clv_crc32c(0, r->number_bytes + l->at, l->n_bytes));
  if (l->result.status != CLEAVE_OK)
    printf(": %s at '%s' %s: %s", cleave_status_name(l->result.status), l->result.node,
           l->result.place, l->result.text);
  printf("\n");
}

static bool report_fault(uint64_t seed, const char *run_name, const char *text) {
  printf("not ok seed %" PRIu64 ", %s: %s\n", seed, run_name, text);
  return false;
}

static const char *describe_conditions(const sim_conditions *w) {
  static const char *const faults[] = {"delays", "a lane is cut", "a worker dies"};
  static char cut_text[80];
  snprintf(cut_text, sizeof cut_text,
           "connections are lost at message %" PRIu64 ", then each %" PRIu64, w->first_cut_message,
           w->cut_interval);
  return w->has_no_workers      ? "at home"
         : w->has_no_delays     ? "undisturbed"
         : w->first_cut_message ? cut_text
                                : faults[w->fault.kind];
}

/* Closes the runtime. Returns false if objects were leaked or the close failed. */
static bool close_runtime(cleave_runtime *rt, char *text, size_t len, bool has_fault) {
  cleave_leaks leaks;
  cleave_error e = {0};
  cleave_status status = cleave_close(rt, 0, &leaks, &e);
  text[0] = '\0';
  if (status != CLEAVE_OK && !has_fault) snprintf(text, len, "close: %s", e.text);
  if (leaks.text[0]) snprintf(text, len, "left open: %s", leaks.text);
  return !text[0];
}

static uint64_t n_messages_of_run;

static bool run_world(uint64_t seed, const sim_conditions *conditions, sim_record *ret,
                      bool *ret_fault) {
  char text[1200];
  cleave_runtime *rt;
  cleave_error e;
  sim_world *w = sim_world_new(conditions);
  if (totals.prints_trace)
    printf("---- seed %" PRIu64 ", %s\n", seed, describe_conditions(conditions));
  if (sim_world_open_runtime(w, &rt, &e) != CLEAVE_OK) {
    sim_world_free(w, text, sizeof text);
    ret->n = 0;
    return conditions->fault.kind || report_fault(seed, describe_conditions(conditions), e.text);
  }
  sim_environment environment = {.runtime = rt,
                                 .is_all_at_master = conditions->has_no_workers,
                                 .clock = sim_world_get_clock(w),
                                 .pause_program = sim_world_pass_time,
                                 .wait_for_notice = sim_world_wait_for_notice,
                                 .count_backwards = sim_world_count_backwards,
                                 .use_as_intruder = sim_world_use_as_intruder,
                                 .report_line = totals.prints_trace ? print_line : NULL,
                                 .user = w};
  sim_run_program(seed, &environment, ret);
  bool is_good = true;
  sim_world_check_leftovers(w, text, sizeof text);
  if (text[0]) is_good = report_fault(seed, describe_conditions(conditions), text);
  if (!close_runtime(rt, text, sizeof text, conditions->fault.kind))
    is_good = report_fault(seed, describe_conditions(conditions), text);
  sim_counts c = sim_world_get_counts(w);
  *ret_fault = c.fault_happened;
  n_messages_of_run = c.n_messages;
  totals.n_cuts += c.n_cuts;
  totals.n_messages += c.n_messages;
  sim_world_free(w, text, sizeof text);
  return text[0] ? report_fault(seed, describe_conditions(conditions), text) : is_good;
}

/* ---- all runs of a seed ---------------------------------------------------------------------- */

static sim_record record_at_master, record_without_delays, record_with_delays, record_with_fault;

/* Longest time in ns for which a worker or a link is away. By then all waits for notice of the loss
 * have ended. */
static const uint64_t max_away_ns = UINT64_C(12000000000);

static sim_fault draw_fault(sim_random *rng, const sim_conditions *w, const sim_record *r) {
  uint64_t begin_ns = r->lines[0].began_ns, span_ns = r->after_rejoin_ns - begin_ns + 1;
  sim_fault f = {.kind = sim_draw_below(rng, 3) ? SIM_CUT : SIM_KILL,
                 .lane = sim_draw_below(rng, 5),
                 .at = begin_ns + sim_draw_number(rng) % span_ns};
  f.restart_ns = f.at + sim_draw_number(rng) % max_away_ns;
  f.a = 1 + sim_draw_below(rng, SIM_PLACES - 1);
  f.b = w->sends_via_master ? 0 : sim_draw_below(rng, SIM_PLACES);
  if (f.b == f.a) f.b = 0;
  return f;
}

static bool compare_records(uint64_t seed, const char *run_name, const sim_record *a,
                            const sim_record *b) {
  char text[400];
  if (sim_is_same_record(a, b, text, sizeof text)) return true;
  return report_fault(seed, run_name, text);
}

static bool run_with_fault(uint64_t seed, sim_conditions w, sim_random *rng) {
  char text[1000];
  bool fault_happened = false;
  w.fault = draw_fault(rng, &w, &record_with_delays);
  if (!run_world(seed, &w, &record_with_fault, &fault_happened)) return false;
  totals.n_faults += fault_happened;
  for (size_t i = 0; i < record_with_fault.n; i++)
    totals.n_errors += record_with_fault.lines[i].result.status != CLEAVE_OK;
  return sim_is_explained_by_fault(&record_with_delays, &record_with_fault, &w.fault, text,
                                   sizeof text) ||
         report_fault(seed, describe_conditions(&w), text);
}

/* Runs a seed in which message first_cut_message loses its connection and, unless cut_interval is
 * 0, each cut_interval-th message after it does, too. */
static bool run_with_cut(uint64_t seed, sim_conditions w, uint64_t first_cut_message,
                         uint64_t cut_interval) {
  bool ignored_fault;
  w.repairs_links = true;
  w.first_cut_message = first_cut_message;
  w.cut_interval = cut_interval;
  return run_world(seed, &w, &record_with_fault, &ignored_fault) &&
         compare_records(seed, describe_conditions(&w), &record_at_master, &record_with_fault);
}

static bool run_with_cuts(uint64_t seed, sim_conditions w, sim_random *rng, uint64_t n_messages) {
  bool is_good = true;
  for (uint64_t at = 1; !totals.n_cut_runs && is_good && at <= n_messages; at++)
    is_good = run_with_cut(seed, w, at, 0);
  for (uint64_t i = 0; i < totals.n_cut_runs && is_good && n_messages; i++)
    is_good = run_with_cut(seed, w, 1 + sim_draw_number(rng) % n_messages,
                           sim_draw_below(rng, 2) ? 0 : 5 + sim_draw_below(rng, 100));
  return is_good;
}

static bool run_seed(uint64_t seed) {
  static const uint64_t credits[] = {UINT64_C(1) << 20, UINT64_C(64) << 20};
  sim_random rng = {seed * 77 + 5};
  bool ignored_fault;
  sim_conditions w = {.seed = seed,
                      .prints_messages = totals.prints_trace,
                      .has_device_workers = seed % 8 == 0,
                      .sends_via_master = sim_draw_below(&rng, 3) == 0,
                      .credit_bytes = credits[sim_draw_below(&rng, 2)]};
  sim_conditions at_master = w, without_delays = w;
  at_master.has_no_workers = at_master.has_no_delays = without_delays.has_no_delays = true;
  bool is_good = run_world(seed, &at_master, &record_at_master, &ignored_fault) &&
                 run_world(seed, &without_delays, &record_without_delays, &ignored_fault) &&
                 compare_records(seed, "undisturbed", &record_at_master, &record_without_delays) &&
                 run_world(seed, &w, &record_with_delays, &ignored_fault) &&
                 compare_records(seed, "delays", &record_at_master, &record_with_delays);
  sim_random cut_rng = {seed * 91 + 3};
  is_good = is_good && run_with_cuts(seed, w, &cut_rng, n_messages_of_run);
  totals.n_lines += record_at_master.n;
  totals.n_bytes += record_at_master.n_number_bytes;
  return is_good && (sim_draw_below(&rng, 2) || run_with_fault(seed, w, &rng));
}

/* ---- all seeds ------------------------------------------------------------------------------- */

static bool read_options(int argc, char **argv, uint64_t *first_seed, uint64_t *n_runs) {
  for (int i = 1; i < argc; i++) {
    bool has_value = i + 1 < argc;
    if (strcmp(argv[i], "--runs") == 0 && has_value)
      *n_runs = strtoull(argv[++i], NULL, 10);
    else if (strcmp(argv[i], "--first") == 0 && has_value)
      *first_seed = strtoull(argv[++i], NULL, 10);
    else if (strcmp(argv[i], "--seed") == 0 && has_value)
      *first_seed = strtoull(argv[++i], NULL, 10), *n_runs = 1;
    else if (strcmp(argv[i], "--cuts") == 0 && has_value)
      totals.n_cut_runs = strtoull(argv[++i], NULL, 10);
    else if (strcmp(argv[i], "--trace") == 0)
      totals.prints_trace = true;
    else
      return false;
  }
  return true;
}

/* Seeds that failed once and that are beyond the seeds of `make test`. 6409: a worker that had
 * reported the failure of a context got no ABORT, and a kept value waited there for an input until
 * the deadline. 5854: a context could not be opened, and a statement on a gradient in it counted as
 * one, not two. */
static const uint64_t regression_seeds[] = {6409, 5854};

int main(int argc, char **argv) {
  uint64_t n_runs = is_long() ? 150 : 90, first_seed = 1, n_failures = 0;
  const char *n_runs_text = getenv("CLV_TEST_SIMULATE");
  if (n_runs_text) n_runs = strtoull(n_runs_text, NULL, 10);
  if (!read_options(argc, argv, &first_seed, &n_runs))
    return fprintf(stderr,
                   "usage: simulate [--first S] [--runs N] [--seed S] [--cuts N] [--trace]\n"),
           64;
  uint64_t begin_ns = clv_now_ns(), seed = first_seed;
  for (; seed < first_seed + n_runs && n_failures < 10; seed++) {
    if (run_seed(seed)) continue;
    n_failures++;
    printf("again: make simulate SIMULATE_ARGS='--seed %" PRIu64 " --trace'\n", seed);
  }
  for (size_t i = 0; i < CLV_COUNT(regression_seeds) && argc == 1; i++)
    if (!run_seed(regression_seeds[i])) n_failures++;
  double seconds = (double)(clv_now_ns() - begin_ns) / 1e9;
  printf("%" PRIu64 " runs (%.0f a second), %" PRIu64 " failed: %" PRIu64 " lines, %" PRIu64
         " bytes equal, %" PRIu64 " messages, %" PRIu64 " faults, %" PRIu64
         " errors after them, %" PRIu64 " connections lost and mended\n",
         seed - first_seed, (double)(seed - first_seed) / seconds, n_failures, totals.n_lines,
         totals.n_bytes, totals.n_messages, totals.n_faults, totals.n_errors, totals.n_cuts);
  printf("%s simulate\n", n_failures ? "not ok" : "ok");
  sim_record_free(&record_at_master);
  sim_record_free(&record_without_delays);
  sim_record_free(&record_with_delays);
  sim_record_free(&record_with_fault);
  sim_free_programs();
  sim_free_worlds();
  return n_failures != 0;
}
