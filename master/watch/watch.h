/* SPDX-License-Identifier: Apache-2.0
 *
 * watch: observes workers and a run from outside. `doctor` tests everything that a run needs,
 * `status` asks workers for their present state, `cache` lists or deletes their caches, and the
 * metrics port shows the numbers of a run to Prometheus.
 */
#ifndef CLEAVE_WATCH_H
#define CLEAVE_WATCH_H

#include "common/base/cli/cli.h"
#include "master/train/train.h"

/* Runs the command doctor: prints the result of each check and returns the exit code. */
clv_exit_code clv_run_doctor(const clv_session_config *config, const clv_run_options *o);
/* Asks each node for the device that computes its stages, stores the answers in the blueprint and
 * appends a line for each stage to `out`. BLOCKS for one answer of each worker. CLV_NOT_FOUND: a
 * worker lacks a device or the cache that the session needs; earlier answers stay stored. */
clv_code clv_query_device_kinds(clv_blueprint *b, bool json, clv_bytes *out,
                                clv_err *err) CLV_USE_RESULT;
/* Runs the command cache: prints the caches of this identity on the workers' disks.
 * o->delete_caches: deletes them. Returns the exit code. */
clv_exit_code clv_show_caches(const clv_session_config *config, const clv_run_options *o);
/* Callback that sets *ret to the state of a session's sealed (encrypted) copies of checkpoints,
 * with the text of an error in `text`. Returns false if the session has none. */
typedef bool clv_find_escrow_fn(const clv_session_config *config, clv_status_escrow *ret,
                                char text[CLV_ERR_TEXT]);
/* Runs the command status and returns the exit code. */
clv_exit_code clv_show_status(const clv_session_config *config, const clv_run_options *o,
                              clv_find_escrow_fn *find_escrow);

/* ---- metrics port of a run (metrics.c) ------------------------------------------------------- */

/* The port of a run at which Prometheus reads metrics. */
typedef struct clv_run_metrics clv_run_metrics;
/* Opens the port of metrics.listen. Without that key *ret stays NULL, which the functions below
 * accept and ignore. */
clv_code clv_run_metrics_open(const clv_session_config *config, clv_run_metrics **ret,
                              clv_err *err) CLV_USE_RESULT;
void clv_run_metrics_close(clv_run_metrics *m); /* call before the trainer is closed */
void clv_run_metrics_attach(clv_run_metrics *m, clv_trainer *t, uint64_t target_steps);
/* Forgets the trainer, which may then be closed. Waits for a scrape that uses the trainer. */
void clv_run_metrics_detach(clv_run_metrics *m);
/* Stores that a worker was lost, and that the run recovers. */
void clv_run_metrics_note_lost_worker(clv_run_metrics *m);
/* Stores that the run trains again, duration_ns after a worker was lost. */
void clv_run_metrics_note_recovery(clv_run_metrics *m, uint64_t duration_ns);
void clv_run_metrics_note_step(clv_run_metrics *m, uint64_t step, const clv_step_result *s);
void clv_run_metrics_note_checkpoint(clv_run_metrics *m, uint64_t step, uint64_t duration_ns);
/* Stores the progress of checkpoint.escrow, which makes sealed copies: the step of the newest copy,
 * its size, the time at which it was complete (size and time are 0 if another process made the
 * copy), and the number of copies that have failed. */
void clv_run_metrics_note_escrow(clv_run_metrics *m, uint64_t step, uint64_t bytes,
                                 uint64_t wall_ms, uint64_t n_failures);
/* Warns on standard error if other machines can read the port. */
void clv_run_metrics_warn(const clv_session_config *config);

#endif
