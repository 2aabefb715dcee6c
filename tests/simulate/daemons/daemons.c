/* SPDX-License-Identifier: Apache-2.0
 *
 * Runs the random programs of the simulation over real daemons and mutual TLS, where the test does
 * not control how long anything takes. Usage:
 *   daemons SESSION.yaml FIRST COUNT [loss]      replay: COUNT = 1
 * Each program runs with all its modules at the master and over workers w1, w2 and w3, with the
 * same statuses and bits. With `loss` it runs once more, while a worker is killed at a random
 * moment and started again a little later: the line "ask kill 2" on standard output asks the runner
 * (test_daemons.py) to kill w2, "ask start 2" to start it again, and the runner answers each with a
 * line. That run is checked as the simulation checks its own runs (judge.h).
 */
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/simulate/judge.h"

#define MS UINT64_C(1000000)

enum { DEADLINE_MS = 20000, MAX_DOWN_MS = 400, NOTICE_MS = 10000 };

static const char *session;
static struct { uint64_t lines, bytes, losses, errors; } totals;

static bool report_fault(uint64_t seed, const char *run_name, const char *text) {
  printf("not ok seed %" PRIu64 ", %s: %s\n", seed, run_name, text);
  return false;
}

/* ---- one run of a program -------------------------------------------------------------------- */

/* A run of a program: its runtime, and the fault that happens during the run, if any. */
typedef struct run {
  cleave_runtime *rt;
  sim_random pause_rng;
  sim_fault fault;
  pthread_t fault_thread;
  bool is_good;
} run;

static void sleep_ns(uint64_t ns) { usleep((useconds_t)(ns / 1000)); }

static void pause_program(void *user) {
  run *r = user;
  if (sim_draw_below(&r->pause_rng, 6) == 0) sleep_ns(sim_draw_number(&r->pause_rng) % MS);
}

static bool ask_runner(const char *action, uint32_t worker) {
  char line[64];
  printf("ask %s %u\n", action, worker);
  fflush(stdout);
  return fgets(line, sizeof line, stdin) != NULL;
}

/* Main of the thread that kills the worker and starts it again. On entry, fault.at counts from the
 * begin of the run and fault.restart_ns from the kill. Sets fault.at to the absolute time of the
 * kill. */
static void *cause_fault(void *user) {
  run *r = user;
  uint64_t down_ns = r->fault.restart_ns;
  sleep_ns(r->fault.at);
  r->fault.at = clv_now_ns();
  r->is_good = ask_runner("kill", r->fault.a);
  sleep_ns(down_ns);
  r->is_good &= ask_runner("start", r->fault.a);
  return NULL;
}

/* Waits until the worker runs again and the runtime has noticed the loss, even if the program has
 * already let the worker rejoin. The link ends a moment before the runtime notices. */
static void wait_for_notice(void *user) {
  run *r = user;
  cleave_link_measure m;
  cleave_error e;
  if (!r->fault.kind) return;
  pthread_join(r->fault_thread, NULL);
  for (int i = 0; i < NOTICE_MS / 100; i++) {
    cleave_status status = cleave_measure(r->rt, r->fault.a, 100, &m, &e);
    if (status == CLEAVE_OK || strstr(e.text, "was lost")) break;
    if (status == CLEAVE_UNAVAILABLE) sleep_ns(MS);
  }
}

/* Returns the options with which the program of a seed opens its runtime. */
static cleave_options make_options(uint64_t seed, bool is_at_master) {
  static const char *const no_workers[] = {""};
  sim_random rng = {seed * 77 + 5};
  cleave_options o = {.size = sizeof o, .deadline_ms = DEADLINE_MS};
  o.via_master = sim_draw_below(&rng, 3) == 0;
  o.single_thread = sim_draw_below(&rng, 2);
  if (is_at_master) o.workers = no_workers;
  return o;
}

static bool close_runtime(const run *r, char *text, size_t len) {
  cleave_leaks leaks;
  cleave_error e = {0};
  cleave_status status = cleave_close(r->rt, 0, &leaks, &e);
  text[0] = '\0';
  if (status != CLEAVE_OK && !r->fault.kind) snprintf(text, len, "close: %s", e.text);
  if (leaks.text[0]) snprintf(text, len, "left open: %s", leaks.text);
  return !text[0];
}

static bool run_program(uint64_t seed, const char *run_name, bool is_at_master, sim_fault *fault,
                        sim_record *ret) {
  char text[1200];
  cleave_error e;
  run r = {.pause_rng = {seed * 3 + !is_at_master}, .fault = *fault, .is_good = true};
  cleave_options o = make_options(seed, is_at_master);
  if (cleave_open(session, &o, &r.rt, &e) != CLEAVE_OK) return report_fault(seed, run_name, e.text);
  sim_environment environment = {.runtime = r.rt,
                                 .is_all_at_master = is_at_master,
                                 .has_threads = !o.single_thread,
                                 .pause_program = is_at_master ? NULL : pause_program,
                                 .wait_for_notice = wait_for_notice,
                                 .user = &r};
  if (fault->kind && pthread_create(&r.fault_thread, NULL, cause_fault, &r) != 0) abort();
  sim_run_program(seed, &environment, ret);
  *fault = r.fault;
  if (!close_runtime(&r, text, sizeof text)) return report_fault(seed, run_name, text);
  return r.is_good || report_fault(seed, run_name, "nobody kills and starts workers");
}

/* ---- all runs of a seed ---------------------------------------------------------------------- */

static sim_record record_at_master, record_at_workers, record_with_loss;

static bool run_with_killed_worker(uint64_t seed) {
  char text[1000];
  sim_random rng = {seed * 91 + 7};
  uint64_t span_ns = record_at_workers.after_rejoin_ns - record_at_workers.lines[0].began_ns + 1;
  sim_fault f = {.kind = SIM_KILL,
                 .a = 1 + sim_draw_below(&rng, SIM_PLACES - 1),
                 .at = sim_draw_number(&rng) % span_ns,
                 .restart_ns = sim_draw_number(&rng) % (MAX_DOWN_MS * MS)};
  if (!run_program(seed, "a worker dies", false, &f, &record_with_loss)) return false;
  totals.losses++;
  for (size_t i = 0; i < record_with_loss.n; i++)
    totals.errors += record_with_loss.lines[i].result.status != CLEAVE_OK;
  return sim_is_explained_by_fault(&record_at_workers, &record_with_loss, &f, text, sizeof text) ||
         report_fault(seed, "a worker dies", text);
}

static bool run_seed(uint64_t seed, bool has_loss) {
  char text[400];
  sim_fault no_fault = {.kind = SIM_NO_FAULT};
  if (!run_program(seed, "at home", true, &no_fault, &record_at_master) ||
      !run_program(seed, "over workers", false, &no_fault, &record_at_workers))
    return false;
  if (!sim_is_same_record(&record_at_master, &record_at_workers, text, sizeof text))
    return report_fault(seed, "over workers", text);
  totals.lines += record_at_master.n;
  totals.bytes += record_at_master.n_number_bytes;
  return !has_loss || run_with_killed_worker(seed);
}

int main(int argc, char **argv) {
  if (argc < 4) return fprintf(stderr, "usage: daemons SESSION.yaml FIRST COUNT [loss]\n"), 64;
  uint64_t first_seed = strtoull(argv[2], NULL, 10), n_runs = strtoull(argv[3], NULL, 10),
           n_failures = 0;
  uint64_t begin_ns = clv_now_ns(), seed = first_seed;
  session = argv[1];
  for (; seed < first_seed + n_runs && n_failures < 10; seed++)
    n_failures += !run_seed(seed, argc > 4);
  double seconds = (double)(clv_now_ns() - begin_ns) / 1e9;
  printf("%" PRIu64 " programs (%.1f a second), %" PRIu64 " failed: %" PRIu64 " lines, %" PRIu64
         " bytes equal, %" PRIu64 " workers lost, %" PRIu64 " errors after that\n",
         seed - first_seed, (double)(seed - first_seed) / seconds, n_failures, totals.lines,
         totals.bytes, totals.losses, totals.errors);
  sim_record_free(&record_at_master);
  sim_record_free(&record_at_workers);
  sim_record_free(&record_with_loss);
  sim_free_programs();
  return n_failures != 0;
}
