/* SPDX-License-Identifier: Apache-2.0
 *
 * Names of schedule kinds and instructions, checks of shapes and costs, creation of schedules, and
 * the bubble formulas of the literature.
 */
#include "common/model/sched/sched_int.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct {
  const char *name;
  bool is_async;
} kinds[CLV_SCHED_KINDS] = {
    [CLV_SCHED_NAIVE] = {"naive", false},
    [CLV_SCHED_GPIPE] = {"gpipe", false},
    [CLV_SCHED_1F1B] = {"1f1b", false},
    [CLV_SCHED_INTERLEAVED] = {"interleaved", false},
    [CLV_SCHED_ZB_H1] = {"zb-h1", false},
    [CLV_SCHED_PIPEDREAM] = {"pipedream", true},
    [CLV_SCHED_PIPEDREAM_2BW] = {"pipedream-2bw", true},
    [CLV_SCHED_CUSTOM] = {"custom", false},
};

const char *const clv_instr_names[CLV_INSTR_KINDS] = {
    [CLV_INSTR_FORWARD] = "F", [CLV_INSTR_BACKWARD] = "B", [CLV_INSTR_INPUT] = "I",
    [CLV_INSTR_WEIGHT] = "W",  [CLV_INSTR_SEND_F] = "sf",  [CLV_INSTR_RECV_F] = "rf",
    [CLV_INSTR_SEND_B] = "sb", [CLV_INSTR_RECV_B] = "rb",  [CLV_INSTR_STEP] = "S",
};

const char *clv_sched_name(clv_sched_kind kind) {
  return (unsigned)kind < CLV_SCHED_KINDS ? kinds[kind].name : "unknown";
}

bool clv_sched_is_async(clv_sched_kind kind) {
  return (unsigned)kind < CLV_SCHED_KINDS && kinds[kind].is_async;
}

uint32_t clv_sched_micro_batches_per_step(clv_sched_kind kind, const clv_sched_shape *shape) {
  if (!clv_sched_is_async(kind)) return 0;
  return kind == CLV_SCHED_PIPEDREAM ? 1 : shape->n_accumulate;
}

const char *clv_instr_text(const clv_instr *i, char buf[SCHED_INSTR_TEXT]) {
  const char *name = i->kind < CLV_INSTR_KINDS ? clv_instr_names[i->kind] : "?";
  snprintf(buf, SCHED_INSTR_TEXT, "%s%u", name, (unsigned)i->micro_batch);
  return buf;
}

/* ---- checks of shapes and costs -------------------------------------------------------------- */

static clv_code check_count_range(const char *what, uint32_t value, uint32_t low, uint32_t high,
                                  clv_err *err) {
  if (value >= low && value <= high) return CLV_OK;
  return clv_fail(err, CLV_INVALID, "%u %s: %u to %u are possible", value, what, low, high);
}

clv_code clv_sched_shape_check(const clv_sched_shape *shape, clv_err *err) {
  CLV_TRY(check_count_range("stages", shape->n_stages, 1, CLV_SCHED_STAGES, err));
  CLV_TRY(check_count_range("ranks", shape->n_ranks, 1, CLV_SCHED_RANKS, err));
  CLV_TRY(check_count_range("micro-batches", shape->n_micro_batches, 1, CLV_SCHED_MICROS, err));
  CLV_TRY(check_count_range("as the first stage that goes back", shape->first_backward_stage, 0,
                            shape->n_stages, err));
  CLV_TRY(check_count_range("micro-batches per step", shape->n_accumulate, 0,
                            shape->n_micro_batches, err));
  for (uint32_t s = 0; s < shape->n_stages; s++)
    if (shape->stage_rank[s] >= shape->n_ranks)
      return clv_fail(err, CLV_INVALID, "stage %u is at rank %u, and there are %u ranks", s,
                      shape->stage_rank[s], shape->n_ranks);
  return CLV_OK;
}

clv_code clv_sched_costs_check(const clv_sched_shape *shape, const clv_sched_costs *c,
                               clv_err *err) {
  const struct {
    const char *name;
    const double *value;
  } cost_lists[] = {{"forward", c->forward_seconds},
                    {"input gradient", c->input_grad_seconds},
                    {"weight gradient", c->weight_grad_seconds},
                    {"step", c->step_seconds},
                    {"latency", c->latency_seconds},
                    {"time on the link", c->serialise_forward_seconds},
                    {"time on the link back", c->serialise_backward_seconds}};
  for (size_t i = 0; i < CLV_COUNT(cost_lists); i++)
    for (uint32_t s = 0; s < shape->n_stages; s++)
      if (!(cost_lists[i].value[s] >= 0 && cost_lists[i].value[s] <= 1e9))
        return clv_fail(err, CLV_INVALID, "the %s of stage %u is %g s: 0 to 1e9 are possible",
                        cost_lists[i].name, s, cost_lists[i].value[s]);
  return CLV_OK;
}

void clv_sched_costs_set_equal(clv_sched_costs *c, double forward, double input, double weight) {
  memset(c, 0, sizeof *c);
  for (size_t s = 0; s < CLV_SCHED_STAGES; s++) {
    c->forward_seconds[s] = forward;
    c->input_grad_seconds[s] = input;
    c->weight_grad_seconds[s] = weight;
  }
}

void clv_sched_mark_timeless_stages(const clv_sched_shape *shape, const clv_sched_costs *c,
                                    bool *ret) {
  bool is_all_timeless = true;
  for (uint32_t s = 0; s < shape->n_stages; s++)
    is_all_timeless &= ret[s] =
        c->forward_seconds[s] + c->input_grad_seconds[s] + c->weight_grad_seconds[s] <= 0;
  if (is_all_timeless) memset(ret, 0, shape->n_stages * sizeof *ret);
}

/* ---- lists of instructions ------------------------------------------------------------------- */

clv_code clv_sched_new(clv_sched_kind kind, const clv_sched_shape *shape, uint32_t window,
                       clv_sched **ret, clv_err *err) {
  CLV_AUTO(clv_sched_freep) clv_sched *s = NULL;
  CLV_TRY(clv_alloc(1, sizeof *s, &s, err));
  s->kind = kind;
  s->shape = *shape;
  s->window = window;
  CLV_TRY(clv_alloc(shape->n_ranks, sizeof *s->instrs, &s->instrs, err));
  CLV_TRY(clv_alloc(shape->n_ranks, sizeof *s->n, &s->n, err));
  *ret = clv_steal(&s);
  return CLV_OK;
}

void clv_sched_free(clv_sched *s) {
  if (!s) return;
  for (uint32_t r = 0; s->instrs && r < s->shape.n_ranks; r++) free(s->instrs[r]);
  free(s->instrs);
  free(s->n);
  free(s);
}

void clv_sched_freep(clv_sched **s) { clv_sched_free(*s); }

clv_code clv_sched_add_instr(clv_sched *s, uint32_t rank, clv_instr_kind kind, uint32_t stage,
                             uint32_t micro, uint32_t weights_age, clv_err *err) {
  /* The capacity of a list is the power of two at or above its length, so it is not stored. */
  uint32_t n = s->n[rank];
  if ((n & (n - 1)) == 0) {
    clv_instr *new_list = realloc(s->instrs[rank], (n ? 2 * (size_t)n : 1) * sizeof *new_list);
    if (!new_list) return clv_fail(err, CLV_EXHAUSTED, "no memory for %u instructions", 2 * n);
    s->instrs[rank] = new_list;
  }
  s->instrs[rank][n] = (clv_instr){.kind = (uint8_t)kind,
                                   .weights_age = (uint8_t)weights_age,
                                   .stage = (uint16_t)stage,
                                   .micro_batch = micro};
  s->n[rank] = n + 1;
  return CLV_OK;
}

/* ---- the literature's numbers ---------------------------------------------------------------- */

double clv_sched_bubble_by_formula(clv_sched_kind kind, uint32_t ranks, uint32_t per_rank,
                                   uint32_t n_micro, bool input_first) {
  const double round_length[CLV_SCHED_KINDS] = {
      [CLV_SCHED_GPIPE] = n_micro,
      [CLV_SCHED_1F1B] = n_micro,
      [CLV_SCHED_INTERLEAVED] = (double)per_rank * n_micro,
      [CLV_SCHED_ZB_H1] = n_micro,
      [CLV_SCHED_PIPEDREAM] = n_micro,
      [CLV_SCHED_PIPEDREAM_2BW] = n_micro,
  };
  double other_ranks = ranks - 1.0, idle = input_first ? 2 * other_ranks : 3 * other_ranks;
  if ((unsigned)kind >= CLV_SCHED_CUSTOM || ranks == 0) return NAN;
  if (kind == CLV_SCHED_NAIVE)
    return input_first ? 2 * other_ranks / (2.0 * ranks + 1) : other_ranks / ranks;
  if (kind == CLV_SCHED_ZB_H1) idle = other_ranks;
  return round_length[kind] > 0 ? idle / (3 * round_length[kind] + idle) : NAN;
}

uint32_t clv_sched_pipeline_depth(const clv_sched_shape *shape, const bool *takes_no_time,
                                  uint32_t s) {
  uint32_t n = 0;
  for (; s < shape->n_stages; s++) n += !takes_no_time[s];
  return CLV_MAX(n, 1);
}
