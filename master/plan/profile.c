/* SPDX-License-Identifier: Apache-2.0
 *
 * Measures the time of each layer of the uncut model on this machine (clv_profile_new). It runs the
 * plan of the full model on arbitrary numbers, with a full batch and with halves of it, since the
 * time of a layer is not proportional to its samples. Each time is the median of a few repetitions.
 */
#include <stdlib.h>
#include <string.h>

#include "master/plan/plan_int.h"

enum { MIN_REPETITIONS = 3, MAX_REPETITIONS = 9 };
/* a measurement ends when it has taken this many seconds and has at least MIN_REPETITIONS runs */
static const double MIN_MEASURED_S = 0.25;

/* A graph, its plan, and the memory that the plan uses. */
typedef struct layer_benchmark {
  clv_graph *graph;
  clv_params *params;
  clv_plan *plan;
  clv_call *call;
  void *weights, *gradients, *x[CLV_MAX_INPUTS], *dx[CLV_MAX_INPUTS], *out, *dout;
  clv_plan_times *times; /* times of the layers in each repetition, [MAX_REPETITIONS][n_nodes] */
} layer_benchmark;

static void free_layer_benchmark(layer_benchmark *m) {
  if (m->plan) clv_plan_call_put(m->plan, m->call);
  clv_plan_free(m->plan);
  clv_params_free(m->params);
  clv_graph_free(m->graph);
  for (int i = 0; i < CLV_MAX_INPUTS; i++) {
    free(m->x[i]);
    free(m->dx[i]);
  }
  free(m->weights);
  free(m->gradients);
  free(m->out);
  free(m->dout);
  free(m->times);
}

/* Copies the full model for n samples, and freezes the parameters that the session freezes. */
static clv_code copy_model(const clv_blueprint *b, int64_t n, layer_benchmark *m, clv_err *err) {
  CLV_TRY(clv_graph_slice(b->full_graph, 0, b->stages[b->n_stages - 1].last_layer, &m->graph, err));
  CLV_TRY(clv_graph_set_batch(m->graph, n, err));
  CLV_TRY(clv_params_make(m->graph, &m->params, err));
  for (uint32_t s = 0; s < b->n_stages; s++)
    for (int i = 0; i < b->stages[s].params->n; i++) {
      const clv_param *stage_param = &b->stages[s].params->list[i];
      for (int k = 0; k < m->params->n; k++)
        if (strcmp(m->params->list[k].name, stage_param->name) == 0)
          m->params->list[k].frozen = stage_param->frozen;
    }
  clv_params_update_ties(m->params);
  return CLV_OK;
}

/* Allocates a value and fills it: floats with small numbers of both signs, integers (tokens,
 * classes, lengths) with `integer_value`. */
static clv_code fill_value(const clv_node *n, uint32_t rng_stream, int64_t integer_value,
                           void **ret, clv_err *err) {
  size_t bytes;
  clv_rng_key key = {.layer = rng_stream};
  CLV_TRY(clv_shape_bytes(&n->shape, n->dtype, &bytes, err));
  CLV_TRY(clv_alloc_aligned(bytes, ret, err));
  memset(*ret, 0, bytes);
  for (size_t i = 0; n->dtype == CLV_I64 && i < bytes / sizeof integer_value; i++)
    ((int64_t *)*ret)[i] = integer_value;
  if (n->dtype == CLV_F32) clv_rng_uniform(&key, -1, 1, *ret, bytes / sizeof(float));
  return CLV_OK;
}

static clv_code alloc_memory(layer_benchmark *m, clv_err *err) {
  uint32_t input_index = 0;
  const clv_node *out = &m->graph->nodes[m->graph->output_node];
  CLV_TRY(clv_alloc_aligned(m->params->total_bytes, &m->weights, err));
  CLV_TRY(clv_alloc_aligned(m->params->gradient_bytes, &m->gradients, err));
  clv_params_init(m->graph, m->params, m->weights);
  for (int i = 0; i < m->graph->n_nodes; i++) {
    if (m->graph->nodes[i].op != CLV_OP_INPUT) continue;
    CLV_TRY(fill_value(&m->graph->nodes[i], input_index, clv_graph_length_limit(m->graph, i),
                       &m->x[input_index], err));
    input_index++;
  }
  CLV_TRY(fill_value(out, CLV_MAX_INPUTS, 0, &m->out, err));
  CLV_TRY(fill_value(out, CLV_MAX_INPUTS + 1, 0, &m->dout, err));
  return clv_alloc((size_t)m->graph->n_nodes * MAX_REPETITIONS, sizeof *m->times, &m->times, err);
}

static clv_code run_benchmark_once(layer_benchmark *m, clv_err *err) {
  const clv_rng_key key = {.step = 1};
  CLV_TRY(clv_plan_forward(m->plan, m->call, m->weights, 1, (const void *const *)m->x, true, m->out,
                           &key, err));
  CLV_TRY(clv_plan_backward_input(m->plan, m->call, m->weights, m->dout, m->dx, m->gradients, false,
                                  err));
  return clv_plan_backward_weight(m->plan, m->call, m->weights, m->gradients, false, err);
}

static clv_code measure_repeatedly(layer_benchmark *m, size_t *ret_n, clv_err *err) {
  uint64_t begin_ns = 0;
  size_t n = 0;
  CLV_TRY(clv_plan_call_get(m->plan, &m->call, err));
  /* this run is not measured, because it touches new memory and packs the weights */
  CLV_TRY(run_benchmark_once(m, err));
  for (begin_ns = clv_now_ns(); n < MAX_REPETITIONS; n++) {
    bool is_long_enough = (double)(clv_now_ns() - begin_ns) * 1e-9 > MIN_MEASURED_S;
    if (n >= MIN_REPETITIONS && is_long_enough) break;
    clv_plan_set_timing(m->plan, m->times + n * (size_t)m->graph->n_nodes);
    CLV_TRY(run_benchmark_once(m, err));
  }
  *ret_n = n;
  return CLV_OK;
}

/* ---- medians of measured times --------------------------------------------------------------- */

static int compare_doubles(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return x < y ? -1 : x > y;
}

/* Returns the median of n numbers that are `stride` doubles apart. */
static double compute_median(const double *first_value, size_t stride, size_t n) {
  double sorted_values[MAX_REPETITIONS];
  for (size_t i = 0; i < n; i++) sorted_values[i] = first_value[i * stride];
  qsort(sorted_values, n, sizeof *sorted_values, compare_doubles);
  return n % 2 ? sorted_values[n / 2] : (sorted_values[n / 2 - 1] + sorted_values[n / 2]) / 2;
}

static void store_medians(const layer_benchmark *m, size_t n, clv_plan_times *ret) {
  size_t stride = (size_t)m->graph->n_nodes * (sizeof *m->times / sizeof(double));
  for (int i = 0; i < m->graph->n_nodes; i++) {
    clv_plan_times *t = &ret[m->graph->nodes[i].layer];
    if (m->graph->nodes[i].op == CLV_OP_INPUT) t = &ret[0];
    t->forward_seconds += compute_median(&m->times[i].forward_seconds, stride, n);
    t->input_grad_seconds += compute_median(&m->times[i].input_grad_seconds, stride, n);
    t->weight_grad_seconds += compute_median(&m->times[i].weight_grad_seconds, stride, n);
  }
}

static clv_code measure_times_of_batch(const clv_blueprint *b, int threads, int64_t n,
                                       clv_plan_times *ret, clv_err *err) {
  CLV_AUTO(free_layer_benchmark) layer_benchmark m = {0};
  size_t n_repetitions;
  clv_plan_options po = {.backend = clv_backend_cpu(),
                         .dtype = CLV_F32,
                         .batch = n,
                         .training = true,
                         .threads = threads,
                         .bf16 = clv_blueprint_is_bf16(b),
                         /* the backward is split into gradients of inputs and of weights, as in the
                          * stages of a pipeline, so that both are measured */
                         .split_backward = true};
  CLV_TRY(copy_model(b, n, &m, err));
  CLV_TRY(clv_plan_new(m.graph, m.params, &po, &m.plan, err));
  CLV_TRY(alloc_memory(&m, err));
  CLV_TRY(measure_repeatedly(&m, &n_repetitions, err));
  store_medians(&m, n_repetitions, ret);
  return CLV_OK;
}

/* ---- profiles for several batch sizes -------------------------------------------------------- */

clv_code clv_profile_new(const clv_blueprint *b, int threads, clv_profile **ret, clv_err *err) {
  CLV_AUTO(clv_profile_freep) clv_profile *p = NULL;
  int64_t n = (int64_t)b->config->train.batch;
  CLV_TRY(clv_alloc(1, sizeof *p, &p, err));
  p->threads = threads;
  p->n_layers = b->stages[b->n_stages - 1].last_layer + 1;
  for (; p->n_sizes < CLV_PROFILE_MAX_SIZES; n = (n + 1) / 2) {
    uint32_t k = p->n_sizes;
    CLV_TRY(clv_alloc(p->n_layers, sizeof *p->layer_times[k], &p->layer_times[k], err));
    clv_code code = measure_times_of_batch(b, threads, n, p->layer_times[k], err);
    /* batch norm cannot train on so few samples, so the profile has only the larger batch sizes */
    if (code == CLV_INVALID && k > 0) return *ret = clv_steal(&p), CLV_OK;
    CLV_TRY(code);
    p->sample_counts[p->n_sizes++] = n;
    if (n == 1) break;
  }
  *ret = clv_steal(&p);
  return CLV_OK;
}

void clv_profile_free(clv_profile *p) {
  if (!p) return;
  for (uint32_t k = 0; k < CLV_PROFILE_MAX_SIZES; k++) free(p->layer_times[k]);
  free(p);
}

void clv_profile_freep(clv_profile **p) {
  clv_profile_free(*p);
  *p = NULL;
}

double clv_interpolate_linearly(const int64_t *sizes, const double *values, uint32_t n, double at) {
  uint32_t k = 1;
  if (n == 1 || at >= (double)sizes[0]) return values[0];
  while (k + 1 < n && at < (double)sizes[k]) k++;
  if (at <= (double)sizes[k]) return values[k];
  double fraction = (at - (double)sizes[k]) / (double)(sizes[k - 1] - sizes[k]);
  return values[k] + fraction * (values[k - 1] - values[k]);
}

clv_plan_times clv_profile_times(const clv_profile *p, uint32_t layer, double n_samples) {
  double forward_times[CLV_PROFILE_MAX_SIZES], input_grad_times[CLV_PROFILE_MAX_SIZES],
      weight_grad_times[CLV_PROFILE_MAX_SIZES];
  for (uint32_t k = 0; k < p->n_sizes; k++) {
    forward_times[k] = p->layer_times[k][layer].forward_seconds;
    input_grad_times[k] = p->layer_times[k][layer].input_grad_seconds;
    weight_grad_times[k] = p->layer_times[k][layer].weight_grad_seconds;
  }
  return (clv_plan_times){
      .forward_seconds =
          clv_interpolate_linearly(p->sample_counts, forward_times, p->n_sizes, n_samples),
      .input_grad_seconds =
          clv_interpolate_linearly(p->sample_counts, input_grad_times, p->n_sizes, n_samples),
      .weight_grad_seconds =
          clv_interpolate_linearly(p->sample_counts, weight_grad_times, p->n_sizes, n_samples)};
}
