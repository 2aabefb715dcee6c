/* SPDX-License-Identifier: Apache-2.0
 *
 * plan --suggest-cuts: finds the best layers for each node and the best number of micro-batches
 * (clv_suggest_cuts). It keeps the nodes and their order, the loss, the schedule, and stages with
 * weights of their own. profile.c measures the layers, link_options.c parses links and speeds, and
 * the simulator (common/model/sched) compares the cuts.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "master/plan/suggest_int.h"

enum { PASS_FORWARD, PASS_INPUT, PASS_WEIGHT, N_PASSES };
/* a step that takes at most this multiple of the best time counts as equally fast */
static const double MAX_EQUAL_TIME_RATIO = 1.02;
/* Seconds that a node spends on a micro-batch outside its layers, in each direction: frames, locks,
 * wake-ups. Measured over loopback: three nodes with tiny layers take 0.22 ms more for each
 * micro-batch. */
static const double HANDLING_OVERHEAD_S = 0.0001;

static void free_cut_plan(clv_cut_plan *w) {
  free(w->stages);
  clv_bytes_done(&w->yaml);
}

static void free_cut_search(clv_cut_search *c) {
  for (uint32_t i = 0; i < c->n_profiles; i++) clv_profile_free(c->profiles[i]);
  for (uint32_t i = 0; i < MAX_SUGGESTIONS; i++) free_cut_plan(&c->best_plans[i]);
  free_cut_plan(&c->session_plan);
  free(c->micro_batch_choices);
  free(c->time_sums);
  free(c->crossing_bytes);
  free(c->cut_layers);
  free(c->min_cut_layers);
  free(c->max_cut_layers);
  clv_bytes_done(&c->notes);
}

/* ---- times of layers ------------------------------------------------------------------------- */

static double *get_running_sums(const clv_cut_search *c, uint32_t profile, uint32_t choice,
                                int pass) {
  size_t row = ((size_t)profile * c->n_choices + choice) * N_PASSES + (size_t)pass;
  return c->time_sums + row * (c->cuts.n_layers + 1);
}

static void sum_layer_times(const clv_cut_search *c, uint32_t profile, uint32_t choice) {
  double samples_per_micro_batch =
      (double)c->b->config->train.batch / c->micro_batch_choices[choice];
  double *running_sums[N_PASSES];
  for (int i = 0; i < N_PASSES; i++) running_sums[i] = get_running_sums(c, profile, choice, i);
  for (uint32_t layer = 0; layer < c->cuts.n_layers; layer++) {
    clv_plan_times t = clv_profile_times(c->profiles[profile], layer, samples_per_micro_batch);
    running_sums[PASS_FORWARD][layer + 1] = running_sums[PASS_FORWARD][layer] + t.forward_seconds;
    running_sums[PASS_INPUT][layer + 1] = running_sums[PASS_INPUT][layer] + t.input_grad_seconds;
    running_sums[PASS_WEIGHT][layer + 1] = running_sums[PASS_WEIGHT][layer] + t.weight_grad_seconds;
  }
}

/* Measures the layers once for each number of threads that a stage uses. */
static clv_code measure_layer_times(clv_cut_search *c, clv_err *err) {
  for (uint32_t s = 0; s < c->b->n_stages; s++) {
    int threads = (int)c->b->config->stages[s].threads;
    uint32_t p = 0;
    while (p < c->n_profiles && c->profiles[p]->threads != threads) p++;
    c->stage_profile_indexes[s] = p;
    if (p < c->n_profiles) continue;
    CLV_TRY(clv_profile_new(c->b, threads, &c->profiles[p], err));
    c->n_profiles++;
  }
  return CLV_OK;
}

static clv_code make_running_sums(clv_cut_search *c, clv_err *err) {
  const clv_profile *p = c->profiles[0];
  uint64_t batch = c->b->config->train.batch;
  CLV_AUTO(clv_freep) size_t *sizes = NULL;
  CLV_TRY(clv_alloc(c->b->micro_batches, sizeof *sizes, &sizes, err));
  uint32_t n_session_micro_batches = (uint32_t)clv_chunk_sizes(batch, c->b->micro_batches, sizes);
  CLV_TRY(clv_list_micro_batch_choices(batch, p->sample_counts[p->n_sizes - 1],
                                       n_session_micro_batches, &c->micro_batch_choices,
                                       &c->n_choices, err));
  while (c->micro_batch_choices[c->session_plan.split.micros_choice] != n_session_micro_batches)
    c->session_plan.split.micros_choice++;
  CLV_TRY(clv_alloc((size_t)c->n_profiles * c->n_choices * N_PASSES,
                    (p->n_layers + 1) * sizeof(double), &c->time_sums, err));
  for (uint32_t i = 0; i < c->n_profiles; i++)
    for (uint32_t k = 0; k < c->n_choices; k++) sum_layer_times(c, i, k);
  return CLV_OK;
}

/* ---- times of tensors on links --------------------------------------------------------------- */

/* Computes the time that a tensor takes between two nodes (worker index; -1: the master). Between
 * two workers the tensor takes a direct hop (is_direct), or else two links, one after the other. */
static void compute_tensor_times(const clv_cut_search *c, int from_node, int to, bool is_direct,
                                 double bytes, double *ret_latency_s, double *ret_serialise_s) {
  const clv_link_estimates *l = c->links;
  int lower_node = CLV_MIN(from_node, to), higher_node = CLV_MAX(from_node, to);
  *ret_latency_s = *ret_serialise_s = 0;
  if (from_node == to) return;
  const clv_link_estimate *a = lower_node < 0 ? &l->worker_links[higher_node]
                               : is_direct
                                   ? &l->hops[(size_t)lower_node * l->n + (size_t)higher_node]
                                   : &l->worker_links[lower_node];
  *ret_latency_s = a->latency_s;
  *ret_serialise_s = bytes / a->bytes_per_s;
  if (lower_node < 0 || is_direct) return;
  const clv_link_estimate *b = &l->worker_links[higher_node];
  *ret_latency_s += b->latency_s + fmin(*ret_serialise_s, bytes / b->bytes_per_s);
  *ret_serialise_s = fmax(*ret_serialise_s, bytes / b->bytes_per_s);
}

static void fill_costs(const void *user, const uint32_t *last_layers, uint32_t choice,
                       clv_sched_costs *ret) {
  const clv_cut_search *c = user;
  uint32_t n = c->b->n_stages;
  for (uint32_t s = 0, first_layer = 0; s < n; first_layer = last_layers[s++] + 1) {
    double t[N_PASSES];
    const clv_stage_plan *stage = &c->b->stages[s];
    double speed = c->links->speeds[stage->worker < 0 ? c->links->n : (size_t)stage->worker];
    for (int i = 0; i < N_PASSES; i++) {
      const double *running_sums = get_running_sums(c, c->stage_profile_indexes[s], choice, i);
      t[i] = (running_sums[last_layers[s] + 1] - running_sums[first_layer]) / speed;
    }
    ret->forward_seconds[s] = HANDLING_OVERHEAD_S + t[PASS_FORWARD];
    ret->input_grad_seconds[s] = HANDLING_OVERHEAD_S + t[PASS_INPUT];
    if (c->b->config->stages[s].recompute) ret->input_grad_seconds[s] += t[PASS_FORWARD];
    ret->weight_grad_seconds[s] = t[PASS_WEIGHT];
    ret->step_seconds[s] = 0;
    compute_tensor_times(c, stage->worker, stage[1].worker, stage->sends_directly,
                         c->crossing_bytes[last_layers[s]] / c->micro_batch_choices[choice],
                         &ret->latency_seconds[s], &ret->serialise_forward_seconds[s]);
    ret->serialise_backward_seconds[s] = ret->serialise_forward_seconds[s];
  }
  ret->forward_seconds[n] = ret->input_grad_seconds[n] = ret->weight_grad_seconds[n] =
      ret->step_seconds[n] = 0;
  ret->sends_input_gradient_first = true;
  ret->latency_seconds[n] = ret->serialise_forward_seconds[n] = ret->serialise_backward_seconds[n] =
      0;
}

/* ---- the schedule with which the search compares cuts ---------------------------------------- */

static void set_search_schedule(clv_cut_search *c) {
  const clv_session_config *config = c->b->config;
  const char *rank_names[CLV_SCHED_RANKS];
  clv_pipeline_kind kind = config->pipeline.schedule;
  bool is_simulated = kind == CLV_PIPE_NAIVE || kind == CLV_PIPE_GPIPE || kind == CLV_PIPE_1F1B ||
                      kind == CLV_PIPE_ZB_H1;
  if (!is_simulated)
    clv_bytes_printf(&c->notes, "times are those of 1f1b, not of %s\n", clv_pipeline_name(kind));
  kind = is_simulated ? kind : CLV_PIPE_1F1B;
  c->cuts.kind = (clv_sched_kind)kind;
  clv_pipeline_list_ranks(c->b, &c->cuts.shape, rank_names);
  c->cuts.computes_window =
      kind == CLV_PIPE_1F1B && (config->pipeline.window == CLV_WINDOW_AUTO || !is_simulated);
  if (kind == CLV_PIPE_1F1B || kind == CLV_PIPE_ZB_H1)
    c->cuts.window = clv_pipeline_initial_window(config);
  c->cuts.micro_batch_counts = c->micro_batch_choices;
  c->cuts.n_micro_batch_counts = c->n_choices;
  c->cuts.cut_places = c->cut_layers;
  c->cuts.min_cut_layers = c->min_cut_layers;
  c->cuts.max_cut_layers = c->max_cut_layers;
  c->cuts.compute_costs = fill_costs;
  c->cuts.user = c;
}

/* ---- other cuts written as a session file ---------------------------------------------------- */

/* The session with other cuts; all other settings are the session's. */
typedef struct session_variant {
  clv_session_config config;
  clv_stage_spec *stages;
  clv_layer_spec *layers;
  clv_blueprint *b;
  clv_placed_schedule *l;
} session_variant;

static void free_session_variant(session_variant *v) {
  clv_placed_schedule_free(v->l);
  clv_blueprint_free(v->b);
  free(v->stages);
  free(v->layers);
}

static clv_code copy_stages(const clv_session_config *from, session_variant *v, clv_err *err) {
  size_t n = 0;
  for (size_t i = 0; i < from->n_stages; i++) n += from->stages[i].n_layers;
  CLV_TRY(clv_alloc(from->n_stages, sizeof *v->stages, &v->stages, err));
  CLV_TRY(clv_alloc(n, sizeof *v->layers, &v->layers, err));
  memcpy(v->stages, from->stages, from->n_stages * sizeof *v->stages);
  n = 0;
  for (size_t i = 0; i < from->n_stages; i++)
    for (size_t k = 0; k < from->stages[i].n_layers; k++)
      v->layers[n++] = from->stages[i].layers[k];
  v->config = *from;
  v->config.stages = v->stages;
  return CLV_OK;
}

static clv_code make_session_variant(const clv_cut_search *c, const clv_sched_split *split,
                                     session_variant *v, clv_err *err) {
  const clv_blueprint *b = c->b;
  CLV_TRY(copy_stages(b->config, v, err));
  for (uint32_t s = 0, first_layer = 0; s < b->n_stages;
       first_layer = split->last_layers[s++] + 1) {
    clv_stage_spec *to = &v->stages[s];
    if (to->range.is_given) {
      to->range =
          (clv_layer_range){.is_given = true, .first = first_layer, .last = split->last_layers[s]};
    } else {
      to->layers = &v->layers[first_layer];
      to->n_layers = split->last_layers[s] + 1 - first_layer;
    }
  }
  v->config.pipeline.micro_batches = split->n_micro_batches;
  v->config.pipeline.schedule = (clv_pipeline_kind)c->cuts.kind;
  return clv_blueprint_new_of_inputs(&v->config, &b->inputs, clv_blueprint_labels_node(b).dtype,
                                     &v->b, err);
}

/* Appends the key `stages` of a session file that has the new cuts. */
static clv_code write_stages(const session_variant *v, clv_bytes *out, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes text = {0};
  CLV_TRY(clv_session_config_write(&v->config, &text, err));
  const char *yaml_begin = text.data ? strstr(text.data, "\nstages:\n") : NULL;
  if (!yaml_begin)
    return clv_fail(err, CLV_EXHAUSTED, "out of memory for the stages of the new cuts");
  const char *yaml_end = yaml_begin + strlen("\nstages:\n");
  while (*yaml_end == ' ')
    yaml_end += strcspn(yaml_end, "\n") + (yaml_end[strcspn(yaml_end, "\n")] == '\n');
  clv_bytes_add(out, yaml_begin + 1, (size_t)(yaml_end - yaml_begin - 1));
  return CLV_OK;
}

static clv_code describe_plan(const clv_cut_search *c, clv_cut_plan *w, clv_err *err) {
  CLV_AUTO(free_session_variant) session_variant v = {0};
  CLV_AUTO(clv_freep) clv_sched_costs *costs = NULL;
  uint32_t n = c->b->n_stages, m = w->split.n_micro_batches;
  CLV_TRY(clv_alloc(1, sizeof *costs, &costs, err));
  CLV_TRY(clv_alloc(n, sizeof *w->stages, &w->stages, err));
  CLV_TRY(make_session_variant(c, &w->split, &v, err));
  fill_costs(c, w->split.last_layers, w->split.micros_choice, costs);
  CLV_TRY(clv_placed_schedule_new(v.b, m, 1, w->split.window, costs, &v.l, err));
  for (uint32_t s = 0; s < n; s++) {
    bool is_learning = v.b->stages[s].has_backward;
    w->stages[s] = (clv_cut_stage){
        .first_layer = s ? w->split.last_layers[s - 1] + 1 : 0,
        .last_layer = w->split.last_layers[s],
        .busy_s =
            m * (costs->forward_seconds[s] +
                 (is_learning ? costs->input_grad_seconds[s] + costs->weight_grad_seconds[s] : 0)),
        .sent_bytes = c->crossing_bytes[w->split.last_layers[s]],
        .send_s = m * costs->serialise_forward_seconds[s]};
    CLV_TRY(clv_stage_memory_bytes(v.b, s, CLV_MAX(v.l->report.max_live_micros[s], 1u),
                                   &w->stages[s].memory_bytes, err));
  }
  return write_stages(&v, &w->yaml, err);
}

/* ---- search for the best cuts ---------------------------------------------------------------- */

static clv_code evaluate_session_cuts(clv_cut_search *c, clv_err *err) {
  for (uint32_t s = 0; s < c->b->n_stages; s++)
    c->session_plan.split.last_layers[s] = c->b->stages[s].last_layer;
  CLV_TRY(clv_sched_simulate_split(&c->cuts, &c->session_plan.split, err));
  return describe_plan(c, &c->session_plan, err);
}

/* Keeps the cuts of *best_split, and sets the fewest micro-batches with which a step is about as
 * fast (MAX_EQUAL_TIME_RATIO). More micro-batches take more memory, and batch norm sees fewer
 * samples in each. */
static clv_code reduce_micro_batches(const clv_cut_search *c, clv_sched_split *best_split,
                                     clv_err *err) {
  clv_sched_split candidate = *best_split;
  for (candidate.micros_choice = 0; candidate.micros_choice < best_split->micros_choice;
       candidate.micros_choice++) {
    CLV_TRY(clv_sched_simulate_split(&c->cuts, &candidate, err));
    if (candidate.seconds <= MAX_EQUAL_TIME_RATIO * best_split->seconds) break;
  }
  if (candidate.micros_choice < best_split->micros_choice) *best_split = candidate;
  return CLV_OK;
}

/* Adds a plan of cuts to the result. If the session would refuse the plan, it is left out: returns
 * CLV_OK, and `reason` has the reason. */
static clv_code add_plan(clv_cut_search *c, const clv_sched_split *split, clv_err *reason) {
  clv_cut_plan *w = &c->best_plans[c->n_best_plans];
  w->split = *split;
  clv_code code = describe_plan(c, w, reason);
  if (code == CLV_OK) c->n_best_plans++;
  if (code != CLV_INVALID) return code;
  free_cut_plan(w);
  *w = (clv_cut_plan){0};
  return CLV_OK;
}

static clv_code find_best_plans(clv_cut_search *c, clv_err *err) {
  clv_sched_split best_splits[MAX_SUGGESTIONS];
  clv_code code = clv_sched_search_cuts(&c->cuts, MAX_SUGGESTIONS, best_splits, &c->n_best_plans,
                                        &c->search, err);
  if (code == CLV_NOT_FOUND)
    return clv_session_fail_at(
        c->b->config, c->b->config->stages[0].pos, err,
        "no other cuts to suggest: %u layers have %u place%s where one value "
        "crosses and a stage may end, which %u stages need in this order",
        c->cuts.n_layers, c->cuts.n_cut_places, c->cuts.n_cut_places == 1 ? "" : "s",
        c->b->n_stages);
  CLV_TRY(code);
  uint32_t n_found = c->n_best_plans;
  c->n_best_plans = 0;
  for (uint32_t i = 0; i < n_found; i++) {
    CLV_TRY(reduce_micro_batches(c, &best_splits[i], err));
    CLV_TRY(add_plan(c, &best_splits[i], err));
  }
  /* CLV_INVALID: all plans of cuts were left out; `err` has the reason of the last one */
  return c->n_best_plans ? CLV_OK : CLV_INVALID;
}

static clv_code find_and_print_plans(clv_cut_search *c, clv_err *err) {
  const clv_blueprint *b = c->b;
  c->cuts.n_layers = b->stages[b->n_stages - 1].last_layer + 1;
  if (b->n_stages < 2)
    return clv_session_fail_at(b->config, b->config->stages[0].pos, err,
                               "there is nothing to cut: the session has one stage; write a stage "
                               "for each node, in their order, with any layers");
  CLV_TRY(clv_cut_search_find_places(c, err));
  CLV_TRY(measure_layer_times(c, err));
  CLV_TRY(make_running_sums(c, err));
  set_search_schedule(c);
  CLV_TRY(evaluate_session_cuts(c, err));
  return find_best_plans(c, err);
}

clv_code clv_suggest_cuts(const clv_blueprint *b, const clv_link_estimates *links, bool json,
                          clv_bytes *out, clv_err *err) {
  CLV_AUTO(free_cut_search) clv_cut_search c = {.b = b, .links = links};
  CLV_TRY(find_and_print_plans(&c, err));
  clv_cut_search_print(&c, json, out);
  return CLV_OK;
}
