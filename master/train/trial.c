/* SPDX-License-Identifier: Apache-2.0
 *
 * Chooses the number of micro-batches for pipeline.micro_batches: auto. The master takes a few
 * steps with 1, 4 and 16 micro-batches, in separate sessions and on random numbers, so no record
 * leaves. The weights of these steps are drawn from a seed that is discarded, because a worker
 * could compute the run's weights from known inputs. The simulator then predicts the time of a
 * step for each number of micro-batches, with times of stages and links interpolated between the
 * trials. The smallest number within 2 % of the best step is chosen.
 */
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "master/train/train_int.h"

enum { N_TRIALS = 3, STEPS_PER_TRIAL = 4 };
static const uint64_t trial_micro_batches[N_TRIALS] = {1, 4, 16};
/* largest permitted ratio of the predicted duration of the chosen step to that of the quickest */
static const double MAX_STEP_SLOWDOWN = 1.02;

/* ---- running one trial ----------------------------------------------------------------------- */

/* A trial with one number of micro-batches. `config` is a copy of the session's and points at the
 * same texts. */
typedef struct trial {
  clv_session_config config;
  clv_blueprint *blueprint;
  clv_trainer *trainer;
  clv_batch batch;
  clv_sched_costs quickest_costs; /* times of stages and links in the quickest step */
  double quickest_s;              /* duration of the quickest step */
  /* code of the first measurement that failed, whose error is `err`; CLV_OK: none failed */
  clv_code code;
  clv_err err;
} trial;

static void free_trial(trial *t) {
  clv_trainer_close(t->trainer);
  clv_blueprint_free(t->blueprint);
  for (size_t k = 0; k < t->batch.n_inputs; k++) clv_tensor_unref(t->batch.inputs[k]);
  clv_tensor_unref(t->batch.y);
}

/* Makes a tensor of random numbers; an i64 tensor (tokens, classes) has `integer_value` in every
 * element. */
static clv_code make_random_tensor(const clv_node *n, int64_t batch, int64_t integer_value,
                                   clv_tensor **ret, clv_err *err) {
  clv_shape shape = n->shape;
  const clv_rng_key key = {.layer = 1};
  shape.dim[0] = batch;
  /* The input has packed sequences. The loader gives such an input padded, so the random batch has
   * the padded shape, with sequences of the largest length. */
  if (n->max_positions) {
    memmove(shape.dim + 2, shape.dim + 1, (size_t)(shape.rank++ - 1) * sizeof *shape.dim);
    shape.dim[1] = n->max_positions;
  }
  CLV_TRY(clv_tensor_new(n->dtype, &shape, ret, err));
  for (size_t i = 0; n->dtype == CLV_I64 && i < (*ret)->n; i++)
    ((int64_t *)(*ret)->data)[i] = integer_value;
  if (n->dtype == CLV_F32) clv_rng_uniform(&key, 0, 1, (*ret)->data, (*ret)->bytes / sizeof(float));
  return CLV_OK;
}

/* Makes a batch of random numbers, with sequences of the largest length. */
static clv_code make_random_batch(const clv_blueprint *b, int64_t n, clv_batch *ret, clv_err *err) {
  const clv_node labels = clv_blueprint_labels_node(b);
  for (size_t k = 0; k < b->inputs.n; k++, ret->n_inputs++)
    CLV_TRY(make_random_tensor(&b->full_graph->nodes[k], n,
                               clv_graph_length_limit(b->full_graph, (int)k), &ret->inputs[k],
                               err));
  ret->n = (size_t)n;
  return make_random_tensor(&labels, n, 0, &ret->y, err);
}

/* Callback of the trainer after each step: stores the costs (times of stages and links) of the
 * quickest step. The first step does not count, because nodes make plans in it. */
static void on_measured_step(void *user, clv_trainer *trainer, const clv_placed_schedule *l) {
  trial *t = user;
  clv_sched_costs costs;
  double seconds;
  clv_err reason;
  if (trainer->n_committed_steps < 2 || t->code != CLV_OK) return;
  t->code = clv_step_meter_measure(t->trainer, l, &costs, &t->err);
  if (t->code != CLV_OK) return;
  /* Event times come from the workers, so they may be impossible; such a step does not count. */
  if (clv_sched_round_seconds(l->sched, &costs, &seconds, &reason) != CLV_OK ||
      seconds >= t->quickest_s)
    return;
  t->quickest_s = seconds;
  t->quickest_costs = costs;
}

static clv_code take_trial_steps(trial *t, clv_err *err) {
  const clv_step_result *results;
  uint32_t n_done;
  for (int i = 0; i < STEPS_PER_TRIAL; i++) {
    CLV_TRY(clv_trainer_step(t->trainer, &t->batch, true, &n_done, &results, err));
    if (t->code != CLV_OK) return *err = t->err, t->code;
  }
  return CLV_OK;
}

static clv_code run_trial(const clv_blueprint *b, clv_egress_record *record, uint64_t n_micro,
                          trial *t, clv_err *err) {
  int64_t batch = (int64_t)b->config->train.batch;
  t->quickest_s = INFINITY;
  t->config = *b->config;
  t->config.pipeline.micro_batches = n_micro;
  CLV_TRY(clv_random_bytes(&t->config.train.seed.key, sizeof(clv_key), err));
  /* a fixed window, so that the trainer chooses none: on_measured_step evaluates the measurements
   * of the steps */
  t->config.pipeline.window = CLV_WINDOW_TEXTBOOK;
  /* trials use 1f1b in place of an interleaved schedule, whose number of micro-batches must be a
   * multiple of the number of nodes */
  if (t->config.pipeline.schedule == CLV_PIPE_INTERLEAVED)
    t->config.pipeline.schedule = CLV_PIPE_1F1B;
  CLV_TRY(clv_blueprint_new_of_inputs(&t->config, &b->inputs, clv_blueprint_labels_node(b).dtype,
                                      &t->blueprint, err));
  t->blueprint->policy = b->policy;
  CLV_TRY(make_random_batch(b, batch, &t->batch, err));
  CLV_TRY(clv_trainer_open(t->blueprint, record, CLV_TRAINER_TRIAL, &t->trainer, err));
  t->trainer->step_meter.on_measured = on_measured_step;
  t->trainer->step_meter.on_measured_user = t;
  return take_trial_steps(t, err);
}

/* ---- the choice of the number of micro-batches ----------------------------------------------- */

/* Measurements of the trials from which the number of micro-batches is chosen. */
typedef struct trial_measurements {
  const clv_blueprint *b;
  uint32_t n; /* number of trials with a measured step */
  uint64_t n_micro[N_TRIALS];
  int64_t micro_samples[N_TRIALS]; /* samples of a micro-batch, descending */
  clv_sched_costs *costs; /* [n] times of stages and links, of each trial's quickest step */
} trial_measurements;

/* Estimates the costs (times of stages and links) of a micro-batch of `samples` samples, by
 * interpolation between the trials. */
static void interpolate_costs(const trial_measurements *c, double samples, clv_sched_costs *ret) {
  static const size_t field_offsets[] = {offsetof(clv_sched_costs, forward_seconds),
                                         offsetof(clv_sched_costs, input_grad_seconds),
                                         offsetof(clv_sched_costs, weight_grad_seconds),
                                         offsetof(clv_sched_costs, latency_seconds),
                                         offsetof(clv_sched_costs, serialise_forward_seconds),
                                         offsetof(clv_sched_costs, serialise_backward_seconds)};
  *ret = (clv_sched_costs){.sends_input_gradient_first = true};
  for (size_t f = 0; f < CLV_COUNT(field_offsets); f++)
    for (uint32_t s = 0; s <= c->b->n_stages; s++) {
      size_t offset = field_offsets[f] + s * sizeof(double);
      double trial_values[N_TRIALS];
      for (uint32_t k = 0; k < c->n; k++)
        memcpy(&trial_values[k], (const char *)&c->costs[k] + offset, sizeof *trial_values);
      trial_values[0] = clv_interpolate_linearly(c->micro_samples, trial_values, c->n, samples);
      memcpy((char *)ret + offset, trial_values, sizeof *trial_values);
    }
}

static clv_code predict_step_seconds(const trial_measurements *c, uint32_t n_micro, double *ret,
                                     clv_err *err) {
  const clv_session_config *config = c->b->config;
  const char *names[CLV_SCHED_RANKS];
  clv_sched_options o = {.kind = (clv_sched_kind)config->pipeline.schedule,
                         .window = clv_pipeline_initial_window(config)};
  CLV_AUTO(clv_sched_freep) clv_sched *s = NULL;
  clv_sched_costs costs;
  interpolate_costs(c, (double)config->train.batch / n_micro, &costs);
  clv_pipeline_list_ranks(c->b, &o.shape, names);
  o.shape.n_micro_batches = n_micro;
  o.shape.n_accumulate = 0;
  o.costs = &costs;
  if (o.kind == CLV_SCHED_1F1B && config->pipeline.window == CLV_WINDOW_AUTO)
    CLV_TRY(clv_sched_find_window(&o.shape, &costs, &o.window, err));
  CLV_TRY(clv_sched_make(&o, &s, err));
  return clv_sched_round_seconds(s, &costs, ret, err);
}

/* Output of the choice: a line on standard output, as JSON or text, and an entry of the journal. */
typedef struct choice_output {
  bool prints_json;
  clv_journal *journal;
} choice_output;

static void print_chosen_number(const trial_measurements *c, uint64_t n_micro, double step_s,
                                double single_micro_batch_s, const choice_output *v) {
  CLV_AUTO(clv_bytes_done) clv_bytes text = {0}, json = {0};
  clv_bytes_printf(&json,
                   "{\"event\":\"micro_batches\",\"micro_batches\":%llu,\"step_s\":%.6f,"
                   "\"step_of_1_s\":%.6f}",
                   (unsigned long long)n_micro, step_s, single_micro_batch_s);
  clv_bytes_printf(&text, "micro_batches: %llu, by trial steps with", (unsigned long long)n_micro);
  for (uint32_t k = 0; k < c->n; k++)
    clv_bytes_printf(&text, "%s %llu", k ? "," : "", (unsigned long long)c->n_micro[k]);
  clv_bytes_printf(
      &text,
      ": a step of %llu samples is expected to take %.1f ms, one of a single micro-batch %.1f",
      (unsigned long long)c->b->config->train.batch, 1e3 * step_s, 1e3 * single_micro_batch_s);
  if (text.failed || json.failed) return;
  printf("%s\n", v->prints_json ? json.data : text.data);
  fflush(stdout);
  clv_journal_add(v->journal, text.data, json.data);
}

static clv_code choose_n_micro_batches(const trial_measurements *c, const choice_output *v,
                                       uint64_t *ret, clv_err *err) {
  CLV_AUTO(clv_freep) uint32_t *n_micro = NULL;
  CLV_AUTO(clv_freep) double *seconds = NULL;
  uint32_t n, i = 0;
  double best_s = INFINITY;
  CLV_TRY(clv_list_micro_batch_choices(c->b->config->train.batch, c->micro_samples[c->n - 1], 0,
                                       &n_micro, &n, err));
  CLV_TRY(clv_alloc(n, sizeof *seconds, &seconds, err));
  for (uint32_t k = 0; k < n; k++) {
    /* the error is ignored: it means that the schedule cannot have this number of micro-batches */
    clv_err reason;
    if (predict_step_seconds(c, n_micro[k], &seconds[k], &reason) != CLV_OK) seconds[k] = INFINITY;
    best_s = fmin(best_s, seconds[k]);
  }
  while (i + 1 < n && !(seconds[i] <= MAX_STEP_SLOWDOWN * best_s)) i++;
  *ret = n_micro[i];
  print_chosen_number(c, n_micro[i], seconds[i], seconds[0], v);
  return CLV_OK;
}

clv_code clv_choose_micro_batches(const clv_blueprint *b, clv_egress_record *record,
                                  bool prints_json, clv_journal *journal, uint64_t *ret,
                                  clv_err *err) {
  CLV_AUTO(clv_freep) clv_sched_costs *costs = NULL;
  size_t sizes[16];
  trial_measurements c = {.b = b};
  CLV_TRY(clv_alloc(N_TRIALS, sizeof *costs, &costs, err));
  c.costs = costs;
  for (int i = 0; i < N_TRIALS; i++) {
    CLV_AUTO(free_trial) trial t = {0};
    uint64_t n_micro = trial_micro_batches[i];
    if (!clv_can_cut_batch(b->config->train.batch, n_micro, n_micro > 1 ? 2 : 1, sizes))
      break; /* batch norm needs at least two rows in each micro-batch */
    if (run_trial(b, record, n_micro, &t, err) != CLV_OK)
      return clv_err_prefix(err, "trial for micro_batches: auto");
    if (isinf(t.quickest_s)) continue;
    costs[c.n] = t.quickest_costs;
    c.n_micro[c.n] = n_micro;
    c.micro_samples[c.n++] = (int64_t)((b->config->train.batch + n_micro - 1) / n_micro);
  }
  if (!c.n)
    return clv_fail(err, CLV_UNAVAILABLE,
                    "micro_batches: auto: no trial step could be timed; give a number");
  return choose_n_micro_batches(&c, &(choice_output){prints_json, journal}, ret, err);
}

clv_code clv_read_micro_batches(const char *run_dir, uint64_t *ret, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes path = {0};
  CLV_AUTO(clv_session_config_freep) clv_session_config *stored_session = NULL;
  clv_bytes_printf(&path, "%s/session.effective.yaml", run_dir);
  if (path.failed) return clv_fail(err, CLV_EXHAUSTED, "out of memory");
  clv_code code = clv_session_config_load(path.data, NULL, &stored_session, err);
  if (code == CLV_OK && stored_session->pipeline.micro_batches != CLV_MICRO_AUTO) {
    *ret = stored_session->pipeline.micro_batches;
    return CLV_OK;
  }
  if (code == CLV_OK) clv_fail(err, CLV_NOT_FOUND, "%s: it says auto itself", path.data);
  return clv_err_prefix(err,
                        "pipeline.micro_batches is auto, and how many the run began with is not "
                        "to be had (give the number)");
}
