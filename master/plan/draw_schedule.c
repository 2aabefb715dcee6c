/* SPDX-License-Identifier: Apache-2.0
 *
 * plan --schedule: draws the instructions of a step before a run, and prints the micro-batches and
 * versions of weights that stages hold, and the time in which nodes are idle (bubble).
 */
#include <stdio.h>

#include "master/plan/plan.h"

enum { MAX_DRAWN_COLUMNS = 120, MAX_DRAWN_STEPS = 8 };

/* Makes the schedule that is drawn as text. The steps of an asynchronous schedule soon repeat the
 * same pattern, so at most MAX_DRAWN_STEPS steps are drawn. */
static clv_code make_drawn_schedule(const clv_blueprint *b, clv_placed_schedule **ret,
                                    clv_err *err) {
  uint32_t n_steps = CLV_MIN(clv_pipeline_steps_per_round(b->config), (uint32_t)MAX_DRAWN_STEPS);
  return clv_placed_schedule_new(b, b->micro_batches * n_steps, n_steps,
                                 clv_pipeline_initial_window(b->config), NULL, ret, err);
}

static void append_text_memory(const clv_blueprint *b, const clv_placed_schedule *l,
                               clv_bytes *out) {
  clv_bytes_printf(out, "%-16s %14s %10s %10s\n", "stage", "micro-batches", "versions",
                   "staleness");
  for (uint32_t i = 0; i < b->n_stages; i++)
    clv_bytes_printf(out, "%-16s %14u %10u %10u\n", b->config->stages[i].name,
                     l->report.max_live_micros[i], l->report.max_weight_versions[i],
                     l->report.max_staleness[i]);
  clv_bytes_puts(
      out,
      "micro-batches: kept at once between forward and backward; versions of the weights "
      "at once;\nstaleness: steps between the weights a gradient was made with and those "
      "it is applied to\n");
}

static clv_code append_text_bubble(const clv_placed_schedule *l, const clv_sched_costs *costs,
                                   clv_bytes *out, clv_err *err) {
  clv_sched_run simulated_run;
  CLV_TRY(clv_sched_simulate(l->sched, costs, false, &simulated_run, err));
  clv_bytes_printf(out, "bubble %.1f %% with equal stages and free links\n",
                   100 * simulated_run.bubble);
  clv_sched_run_clear(&simulated_run, l->sched);
  return CLV_OK;
}

static void append_json_schedule(const clv_blueprint *b, const clv_placed_schedule *l,
                                 clv_bytes *out) {
  CLV_AUTO(clv_bytes_done) clv_bytes text = {0};
  clv_sched_format(l->sched, &text);
  clv_bytes_printf(out, "{\"schedule\":\"%s\",\"micro_batches\":%u,\"bubble\":%.6f,\"stages\":[",
                   clv_sched_name(l->sched->kind), l->n_micro_batches, l->report.bubble);
  for (uint32_t i = 0; i < b->n_stages; i++) {
    clv_bytes_printf(out, "%s{\"name\":", i ? "," : "");
    clv_bytes_add_json(out, b->config->stages[i].name);
    clv_bytes_printf(out,
                     ",\"live_micro_batches\":%u,\"live\":%u,\"versions\":%u,\"staleness\":%u}",
                     l->report.max_live_micros[i], l->report.max_live_micros[i],
                     l->report.max_weight_versions[i], l->report.max_staleness[i]);
  }
  clv_bytes_puts(out, "],\"text\":");
  clv_bytes_add_json(out, text.data);
  clv_bytes_puts(out, "}\n");
}

clv_code clv_blueprint_draw_schedule(const clv_blueprint *b, bool json, clv_bytes *out,
                                     clv_bytes *ret_text, clv_err *err) {
  CLV_AUTO(clv_placed_schedule_freep) clv_placed_schedule *l = NULL;
  clv_sched_shape shape;
  clv_sched_costs costs;
  const char *rank_names[CLV_SCHED_RANKS];
  CLV_TRY(make_drawn_schedule(b, &l, err));
  clv_sched_format(l->sched, ret_text);
  if (json) {
    append_json_schedule(b, l, out);
    return CLV_OK;
  }
  clv_pipeline_list_ranks(b, &shape, rank_names);
  clv_pipeline_default_costs(b, &costs);
  CLV_TRY(clv_sched_draw(l->sched, &costs, false, MAX_DRAWN_COLUMNS, rank_names, out, err));
  clv_bytes_puts(out, "\n");
  append_text_memory(b, l, out);
  return append_text_bubble(l, &costs, out, err);
}
