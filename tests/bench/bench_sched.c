/* SPDX-License-Identifier: Apache-2.0
 *
 * Simulates schedules of a pipeline: prints how long a training step should take, given the times
 * of its parts.
 *
 * usage: bench_sched
 * commands: seconds KIND WINDOW MICROS STAGES {RANK F I W STEP LATENCY TO BACK}...
 *   KIND: as in a session file. WINDOW: a number, 0 for the schedule kind's own, or `auto`. MICROS:
 *   number of micro-batches. For each stage: the rank (node) that computes the stage; the seconds
 *   of its forward, input gradient, weight gradient and step; then, for the link behind the stage,
 *   the seconds of latency one way and of sending a tensor forward and back.
 *   Prints the seconds of the step, the window, and the idle share of the ranks that compute.
 */
#include <string.h>

#include "common/model/sched/sched.h"
#include "tests/bench/bench_int.h"

static clv_sched_kind find_kind(const char *name) {
  for (int k = 0; k < CLV_SCHED_KINDS; k++)
    if (strcmp(clv_sched_name((clv_sched_kind)k), name) == 0) return (clv_sched_kind)k;
  exit_with_message("no such schedule");
}

static double read_number(void) {
  const char *word = strtok(NULL, " \n");
  char *end;
  if (!word) exit_with_message("too few numbers");
  double value = strtod(word, &end);
  if (*end) exit_with_message("not a number");
  return value;
}

static void read_stages(clv_sched_shape *shape, clv_sched_costs *c) {
  double *const cost[] = {c->forward_seconds,           c->input_grad_seconds,
                          c->weight_grad_seconds,       c->step_seconds,
                          c->latency_seconds,           c->serialise_forward_seconds,
                          c->serialise_backward_seconds};
  for (uint32_t i = 0; i < shape->n_stages; i++) {
    double rank = read_number();
    if (!(rank >= 0 && rank < CLV_SCHED_RANKS)) exit_with_message("no such rank");
    shape->stage_rank[i] = (uint16_t)rank;
    shape->n_ranks = CLV_MAX(shape->n_ranks, (uint32_t)rank + 1);
    for (size_t k = 0; k < CLV_COUNT(cost); k++) cost[k][i] = read_number();
  }
}

static void simulate_schedule(clv_sched_options *o, bool is_automatic) {
  clv_err err;
  CLV_AUTO(clv_sched_freep) clv_sched *s = NULL;
  clv_sched_run run;
  if (is_automatic) must(clv_sched_find_window(&o->shape, o->costs, &o->window, &err), &err);
  must(clv_sched_make(o, &s, &err), &err);
  must(clv_sched_simulate(s, o->costs, false, &run, &err), &err);
  print_list((double[]){run.seconds, o->window, run.bubble}, 3);
  clv_sched_run_clear(&run, s);
}

static void print_simulated_seconds(void) {
  /* the nodes of the project, too, send the input gradient before they compute the weight
   * gradient */
  clv_sched_costs costs = {.sends_input_gradient_first = true};
  clv_sched_options o = {.costs = &costs};
  const char *kind = strtok(NULL, " "), *window = strtok(NULL, " ");
  if (!kind || !window) exit_with_message("seconds KIND WINDOW ...");
  o.kind = find_kind(kind);
  o.window = (uint32_t)strtoul(window, NULL, 10);
  o.shape.n_micro_batches = (uint32_t)read_number();
  double stages = read_number();
  if (!(stages >= 1 && stages <= CLV_SCHED_STAGES)) exit_with_message("too many stages");
  o.shape.n_stages = (uint32_t)stages;
  read_stages(&o.shape, &costs);
  simulate_schedule(&o, strcmp(window, "auto") == 0);
}

int main(void) {
  static char line[1 << 16];
  printf("ready\n");
  fflush(stdout);
  while (fgets(line, sizeof line, stdin)) {
    const char *word = strtok(line, " ");
    if (!word || strcmp(word, "seconds") != 0) exit_with_message("unknown command");
    print_simulated_seconds();
  }
  return 0;
}
