/* SPDX-License-Identifier: Apache-2.0
 *
 * watch: what is seen of workers and of a run from outside. `doctor` tries everything before a run,
 * `status` asks workers what they do, `cache` what they keep, and Prometheus reads the numbers of a
 * run.
 */
#ifndef CLEAVE_WATCH_H
#define CLEAVE_WATCH_H

#include "common/base/cli/cli.h"
#include "master/train/train.h"

/* Each prints what a person wants to see, reports errors on stderr and returns the exit code. */
clv_exit_code clv_run_doctor(const clv_session_config *config, const clv_run_options *o);
/* What each stage's node says of the device that computes it: noted in the blueprint, and a line
 * each. Asks the workers, and BLOCKS as long as they may take to answer. CLV_NOT_FOUND: one of them
 * lacks what the session wants of it; what was noted before stays. */
clv_code clv_query_device_kinds(clv_blueprint *b, bool json, clv_bytes *out,
                                clv_err *err) CLV_USE_RESULT;
/* What workers keep on their disks of caches of this identity; with delete_caches it is gone. */
clv_exit_code clv_show_caches(const clv_session_config *config, const clv_run_options *o);
clv_exit_code clv_show_status(const clv_session_config *config, const clv_run_options *o);

/* ---- metrics (metrics.c) --------------------------------------------------------------------- */

/* The port of `metrics.listen`; without that *ret stays NULL, which all the others take. */
typedef struct clv_run_metrics clv_run_metrics;
clv_code clv_run_metrics_open(const clv_session_config *config, clv_run_metrics **ret,
                              clv_err *err) CLV_USE_RESULT;
void clv_run_metrics_close(clv_run_metrics *m); /* before the trainer is closed */
void clv_run_metrics_attach(clv_run_metrics *m, clv_trainer *t, uint64_t target_steps);
void clv_run_metrics_step(clv_run_metrics *m, uint64_t step, const clv_step_result *s);
void clv_run_metrics_checkpoint(clv_run_metrics *m, uint64_t step, uint64_t took_ns);
/* On standard error, if others than this machine could read them. */
void clv_run_metrics_warn(const clv_session_config *config);

#endif
