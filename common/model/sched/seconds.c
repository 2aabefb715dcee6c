/* SPDX-License-Identifier: Apache-2.0
 *
 * clv_sched_simulate and clv_sched_round_seconds: check a schedule (check.c), then run its lists in
 * simulated time (simulate.c).
 */
#include "common/model/sched/sched_int.h"

clv_code clv_sched_simulate(const clv_sched *s, const clv_sched_costs *c, bool spans,
                            clv_sched_run *ret, clv_err *err) {
  CLV_TRY(clv_sched_check(s, NULL, err));
  CLV_TRY(clv_sched_costs_check(&s->shape, c, err));
  clv_sched_run run = {0};
  clv_code code = clv_sched_simulate_lists(s, c, spans, &run, err);
  if (code != CLV_OK) {
    clv_sched_run_clear(&run, s);
    return code;
  }
  *ret = run;
  return CLV_OK;
}

clv_code clv_sched_round_seconds(const clv_sched *s, const clv_sched_costs *c, double *ret,
                                 clv_err *err) {
  clv_sched_run run;
  CLV_TRY(clv_sched_simulate(s, c, false, &run, err));
  *ret = run.seconds;
  clv_sched_run_clear(&run, s);
  return CLV_OK;
}
