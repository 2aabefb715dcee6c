/* SPDX-License-Identifier: Apache-2.0
 *
 * The commands on a session file: they parse the file with the options of the command line, install
 * the signal handlers and call the function of master/run or master/watch.
 */
#include <signal.h>
#include <stdatomic.h>
#include <unistd.h>

#include "master/history/history.h"
#include "master/master_int.h"

/* How the first signal asked the command to stop (CLV_INTERRUPTED or CLV_ASKED_TO_STOP); 0: no
 * signal yet. Atomic, because a signal may interrupt any thread, also those of gRPC. */
static _Atomic(int) interrupted;
/* true: the command has no state to save, so the first signal ends the process at once; set before
 * the signal handlers are installed */
static bool has_nothing_to_finish;
_Static_assert(ATOMIC_INT_LOCK_FREE == 2, "a handler may not wait");

static void on_interrupt(int signal, siginfo_t *info, void *context) {
  (void)signal;
  (void)context;
  bool is_stop_request = clv_is_stop_request(info);
  if ((interrupted || has_nothing_to_finish) && !is_stop_request)
    /* a second signal, or a first one with has_nothing_to_finish, ends the process at once */
    _exit(CLV_EXIT_INTERRUPTED);
  clv_interrupt();
  if (!interrupted) interrupted = is_stop_request ? CLV_ASKED_TO_STOP : CLV_INTERRUPTED;
}

static void catch_signals(void) {
  struct sigaction signal_action = {.sa_sigaction = on_interrupt, .sa_flags = SA_SIGINFO};
  sigaction(SIGINT, &signal_action, NULL);
  sigaction(SIGTERM, &signal_action, NULL);
  signal_action = (struct sigaction){.sa_handler = SIG_IGN};
  sigaction(SIGPIPE, &signal_action, NULL);
}

typedef clv_exit_code session_command(const clv_session_config *config, const clv_run_options *o);

typedef clv_code session_loader(const char *path, const clv_config_overrides *overrides,
                                clv_session_config **ret, clv_err *err);

static int run_with_loader(clv_master_arguments *a, session_loader *load_session,
                           session_command *command) {
  clv_err err;
  CLV_AUTO(clv_session_config_freep) clv_session_config *config = NULL;
  clv_config_overrides overrides = {
      .env = (const char *const *)environ, .sets = a->sets.items, .n_sets = a->sets.n};
  if (load_session(a->line.words[0], &overrides, &config, &err) != CLV_OK)
    return clv_exit_report(CLV_EXIT_CONFIG, &err);
  a->run.log_json = clv_cli_is_log_json(&a->line, config->log.json);
  clv_log_set(a->line.verbose ? CLV_LOG_DEBUG : CLV_LOG_WARN, a->run.log_json);
  a->run.interrupted = &interrupted;
  clv_open_files_raise();
  catch_signals();
  return command(config, &a->run);
}

static int run_with_session(clv_master_arguments *a, session_command *command) {
  return run_with_loader(a, clv_session_config_load, command);
}

static int run_with_checkpoint(clv_master_arguments *a, session_command *command) {
  if (!clv_is_checkpoint_name(a->run.checkpoint))
    return clv_cli_usage(&a->line, "--checkpoint: '%s' is not the number of a step, latest or best",
                         a->run.checkpoint);
  return run_with_session(a, command);
}

int clv_cmd_train(void *args) {
  const clv_master_arguments *a = args;
  if (a->run.checkpoint && !a->run.resume)
    return clv_cli_usage(&a->line, "train takes --checkpoint with --resume alone");
  if (a->run.fresh && a->run.resume)
    return clv_cli_usage(&a->line,
                         "--fresh starts over and --resume continues the run: leave one out");
  return run_with_checkpoint(args, clv_run_train);
}
int clv_cmd_eval(void *args) { return run_with_checkpoint(args, clv_run_eval); }
int clv_cmd_predict(void *args) { return run_with_checkpoint(args, clv_run_predict); }

static int run_without_cleanup(void *args, session_command *command) {
  has_nothing_to_finish = true;
  return run_with_session(args, command);
}

int clv_cmd_check(void *args) { return run_without_cleanup(args, clv_run_check); }
int clv_cmd_doctor(void *args) { return run_without_cleanup(args, clv_run_doctor); }

/* ---- the command sweep ----------------------------------------------------------------------- */

/* Sets the fields of the sweep's options that the parser of the command line has not set: session
 * file, lists of options, output format and interrupt flag. */
static const clv_sweep_options *fill_sweep_options(clv_master_arguments *a) {
  clv_sweep_options *o = &a->sweep;
  o->session = a->line.words[0];
  o->sets = &a->sets;
  o->grids = &a->grids;
  o->randoms = &a->randoms;
  o->format = a->csv ? CLV_SWEEP_CSV : a->run.json ? CLV_SWEEP_JSON : CLV_SWEEP_TABLE;
  o->interrupted = &interrupted;
  return o;
}

int clv_cmd_sweep(void *args) {
  clv_master_arguments *a = args;
  if (a->csv && a->run.json) return clv_cli_usage(&a->line, "sweep prints --csv or --json");
  clv_log_set(a->line.verbose ? CLV_LOG_DEBUG : CLV_LOG_WARN, clv_cli_is_log_json(&a->line, false));
  clv_open_files_raise();
  catch_signals();
  return clv_sweep_run(fill_sweep_options(a));
}

/* ---- the command plan ------------------------------------------------------------------------ */

int clv_cmd_plan(void *args) {
  clv_master_arguments *a = args;
  a->run.links = a->links.items;
  a->run.n_links = a->links.n;
  a->run.speeds = a->speeds.items;
  a->run.n_speeds = a->speeds.n;
  if (a->run.suggest_cuts && a->run.schedule)
    return clv_cli_usage(&a->line,
                         "plan draws a schedule or suggests cuts: --schedule or --suggest-cuts");
  if (a->run.ask_workers && (a->run.suggest_cuts || a->run.schedule))
    return clv_cli_usage(&a->line, "--ask goes with a plan alone");
  if (!a->run.suggest_cuts && (a->links.n || a->speeds.n))
    return clv_cli_usage(&a->line, "--link and --speed belong to plan --suggest-cuts");
  if (!a->run.schedule && a->run.out)
    return clv_cli_usage(&a->line, "--output %s: plan writes a file with --schedule alone",
                         a->run.out);
  bool has_sweep = clv_sweep_is_requested(fill_sweep_options(a));
  if (has_sweep && (a->run.suggest_cuts || a->run.schedule || a->run.ask_workers))
    return clv_cli_usage(&a->line, "--grid, --random and --folds go with a plan alone");
  int code = run_without_cleanup(a, clv_run_plan);
  return code == CLV_EXIT_OK && has_sweep ? (int)clv_sweep_plan(&a->sweep) : code;
}

int clv_cmd_cache(void *args) { return run_with_loader(args, cleave_config_load, clv_show_caches); }

static clv_exit_code show_status(const clv_session_config *config, const clv_run_options *o) {
  return clv_show_status(config, o, clv_run_read_escrow_status);
}

int clv_cmd_status(void *args) { return run_with_loader(args, cleave_config_load, show_status); }

/* Runs a command on the checkpoints of a run. The command uses only the workers and the run folder
 * of the session file. */
static int run_with_step(clv_master_arguments *a, session_command *command) {
  if (!clv_is_checkpoint_name(a->run.checkpoint))
    return clv_cli_usage(&a->line, "--step: '%s' is not the number of a step, latest or best",
                         a->run.checkpoint);
  a->run.force = a->is_forced;
  return run_with_loader(a, cleave_config_load, command);
}

int clv_cmd_checkpoint_ls(void *args) {
  return run_with_loader(args, cleave_config_load, clv_run_checkpoint_ls);
}

int clv_cmd_checkpoint_verify(void *args) { return run_with_step(args, clv_run_checkpoint_verify); }
int clv_cmd_checkpoint_gather(void *args) { return run_with_step(args, clv_run_checkpoint_gather); }

int clv_cmd_checkpoint_rm(void *args) {
  const clv_master_arguments *a = args;
  if (!a->run.checkpoint == !a->run.orphans)
    return clv_cli_usage(&a->line, "checkpoint rm takes --step or --orphans");
  return run_with_step(args, clv_run_checkpoint_rm);
}
