/* SPDX-License-Identifier: Apache-2.0
 *
 * Implements `predict --dropout-samples N`. The model computes the records N times with dropout on.
 * The prediction is the mean of the N outputs, and the interval is from the 2.5th to the 97.5th
 * percentile of these outputs, by linear interpolation, as numpy.percentile computes it. Source:
 * Gal and Ghahramani, Dropout as a Bayesian Approximation, 2016.
 */
#include <math.h>
#include <stdlib.h>

#include "master/run/run_int.h"

#define LOW_QUANTILE 0.025
#define HIGH_QUANTILE 0.975

static bool has_dropout(const clv_node *n) {
  bool may_drop =
      n->op == CLV_OP_DROPOUT || n->op == CLV_OP_ATTENTION || n->op == CLV_OP_STOCHASTIC_DEPTH;
  return may_drop && n->attrs.p > 0;
}

clv_code clv_run_check_dropout(const clv_run *r, clv_err *err) {
  const clv_graph *g = r->blueprint->full_graph;
  bool has_any_dropout = false;
  if (!r->o->dropout_samples) return CLV_OK;
  if (r->config->data.format == CLV_FORMAT_DOCUMENTS)
    return clv_fail(err, CLV_INVALID,
                    "--dropout-samples does not go with data.format: documents, whose predictions "
                    "are of pages: leave it out");
  for (int i = 0; i < g->n_nodes; i++) {
    has_any_dropout |= has_dropout(&g->nodes[i]);
    if (g->nodes[i].op == CLV_OP_BATCHNORM)
      return clv_fail(err, CLV_INVALID,
                      "--dropout-samples computes as in training, where batchnorm uses the records "
                      "of a batch: leave it out for this model");
  }
  return has_any_dropout
             ? CLV_OK
             : clv_fail(err, CLV_INVALID,
                        "--dropout-samples: no layer of the model has dropout: leave it out");
}

static int compare_floats(const void *a, const void *b) {
  float x = *(const float *)a, y = *(const float *)b;
  return x < y ? -1 : x > y;
}

double clv_percentile(const float *sorted, size_t n, double quantile) {
  double at = quantile * (double)(n - 1);
  size_t index_below = (size_t)at, index_above = CLV_MIN(index_below + 1, n - 1);
  double value_below = (double)sorted[index_below];
  return value_below + (at - (double)index_below) * ((double)sorted[index_above] - value_below);
}

/* Computes mean and interval of each output value over the n passes. */
static clv_code summarize_passes(clv_tensor *const *passes, size_t n, clv_interval_tensors *ret,
                                 clv_err *err) {
  CLV_AUTO(clv_freep) float *values = NULL;
  clv_tensor **ret_tensors[] = {&ret->mean, &ret->low, &ret->high};
  CLV_TRY(clv_alloc(n, sizeof *values, &values, err));
  for (size_t k = 0; k < CLV_COUNT(ret_tensors); k++)
    CLV_TRY(clv_tensor_new(CLV_F32, &passes[0]->shape, ret_tensors[k], err));
  for (size_t i = 0; i < passes[0]->n; i++) {
    double sum = 0;
    for (size_t k = 0; k < n; k++) {
      values[k] = ((const float *)passes[k]->data)[i];
      sum += (double)values[k];
    }
    qsort(values, n, sizeof *values, compare_floats);
    ((float *)ret->mean->data)[i] = (float)(sum / (double)n);
    ((float *)ret->low->data)[i] = (float)clv_percentile(values, n, LOW_QUANTILE);
    ((float *)ret->high->data)[i] = (float)clv_percentile(values, n, HIGH_QUANTILE);
  }
  return CLV_OK;
}

void clv_interval_tensors_done(clv_interval_tensors *t) {
  if (!t) return;
  clv_tensor_unref(t->mean);
  clv_tensor_unref(t->low);
  clv_tensor_unref(t->high);
  *t = (clv_interval_tensors){NULL};
}

/* Outputs of all passes with dropout. */
typedef struct pass_list {
  clv_tensor **list;
  size_t n;
} pass_list;

static void free_pass_outputs(pass_list *p) {
  for (size_t i = 0; i < p->n; i++) clv_tensor_unref(p->list[i]);
  free(p->list);
}

/* Computes all passes but the first. The caller has computed the first; its outputs are
 * `first_outputs`. */
static clv_code compute_passes(clv_run *r, clv_tensor *first_outputs, pass_list *ret,
                               clv_err *err) {
  clv_step_result ignored_result;
  CLV_TRY(clv_alloc((size_t)r->o->dropout_samples, sizeof(clv_tensor *), &ret->list, err));
  ret->list[ret->n++] = clv_tensor_ref(first_outputs);
  while (ret->n < r->o->dropout_samples) {
    clv_trainer_set_dropout_pass(r->trainer, ret->n + 1);
    CLV_TRY(clv_trainer_eval(r->trainer, r->data.test, &r->data.test_rows, NULL, &ignored_result,
                             &ret->list[ret->n], err));
    ret->n++;
  }
  return CLV_OK;
}

clv_code clv_run_sample_dropout(clv_run *r, clv_tensor **outputs, clv_interval_tensors *ret,
                                clv_err *err) {
  CLV_AUTO(free_pass_outputs) pass_list passes = {.n = 0};
  CLV_AUTO(clv_interval_tensors_done) clv_interval_tensors output_intervals = {NULL};
  CLV_TRY(compute_passes(r, *outputs, &passes, err));
  CLV_TRY(summarize_passes(passes.list, passes.n, &output_intervals, err));
  clv_tensor_unref(*outputs);
  /* the predicted class is computed from the mean outputs */
  *outputs = clv_tensor_ref(output_intervals.mean);
  for (size_t i = 0; r->o->probabilities && i < passes.n; i++) {
    clv_tensor *probabilities;
    CLV_TRY(clv_run_compute_probabilities(r->config, passes.list[i], &probabilities, err));
    clv_tensor_unref(passes.list[i]);
    passes.list[i] = probabilities;
  }
  return summarize_passes(passes.list, passes.n, ret, err);
}
