/* SPDX-License-Identifier: Apache-2.0
 *
 * sweep: trains one session file at several points, each a run of its own in a child process. A
 * point is a value for each swept key; with folds, each point has one run per fold. All points are
 * checked before the first run starts. A sweep that was killed continues: finished runs are not
 * repeated.
 *
 * Files: RUN_DIR/NAME.sweep/sweep.jsonl has the points, NAME.sweep/RUN.txt what a run printed, and
 * the runs are RUN_DIR/NAME-001, NAME-002 and so on, or NAME-001-fold-1 with folds.
 *
 * Threads: call these functions from one thread at a time.
 */
#ifndef CLEAVE_SWEEP_H
#define CLEAVE_SWEEP_H

#include "common/base/cli/cli.h"

typedef enum clv_sweep_format {
  CLV_SWEEP_TABLE,
  CLV_SWEEP_JSON, /* an object per line */
  CLV_SWEEP_CSV
} clv_sweep_format;

/* Options of the command line. All texts are caller-owned. */
typedef struct clv_sweep_options {
  const char *session;       /* path of the session file */
  const clv_cli_list *sets;  /* values of --set for all runs, "train.batch=64" */
  const clv_cli_list *grids; /* values of --grid, "KEY=V1,V2": points are all combinations */
  /* values of --random: "KEY=LOW..HIGH", "KEY=log:LOW..HIGH" or "KEY=V1,V2" */
  const clv_cli_list *randoms;
  uint64_t n_points; /* number of random points; 0: not given */
  uint64_t seed;     /* seed of the random points */
  uint64_t folds;    /* folds of the cross-validation of each point; 0: none */
  uint64_t jobs;     /* most runs at a time; 0: 1 */
  clv_sweep_format format;
  /* a signal handler sets this: no further run begins, and present runs end after a checkpoint */
  const _Atomic(int) *interrupted;
} clv_sweep_options;

/* True if an option asks for several runs. */
bool clv_sweep_is_requested(const clv_sweep_options *o);

/* Trains all points that are not finished, prints a table of them, the best first, and prints
 * errors itself. Returns the exit code of the command: that of the first run that failed, if one
 * did. BLOCKS until all runs have ended. */
clv_exit_code clv_sweep_run(const clv_sweep_options *o);

/* For `plan`: prints the points, the bytes that all runs send together, and how often each record
 * is sent. Starts no run. */
clv_exit_code clv_sweep_plan(const clv_sweep_options *o);

#endif
