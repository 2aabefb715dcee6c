/* SPDX-License-Identifier: Apache-2.0
 *
 * Computes the memory of a stage (clv_stage_usage_compute). It makes the stage's plan as the node
 * makes it: with the processor's backend, or, if the session or the node names a device, with a dry
 * run of the device's backend. For a device it makes two plans: one without workspace for
 * libraries, and one with the largest workspace that libraries may use.
 */
#include <stdio.h>
#include <string.h>

#include "kernels/cuda/dryrun/dryrun.h"
#include "master/plan/plan_int.h"

void clv_blueprint_set_device(clv_blueprint *b, uint32_t stage, const char *device) {
  char *name = b->stages[stage].device;
  snprintf(name, CLV_STAGE_DEVICE_NAME_BYTES, "%.*s", CLV_STAGE_DEVICE_NAME_BYTES - 1, device);
}

const char *clv_stage_device(const clv_blueprint *b, uint32_t stage) {
  const char *reported_device = b->stages[stage].device;
  return reported_device[0] ? reported_device : b->config->stages[stage].device;
}

/* True if the parameter is a frozen weight of the worker's artifact (file of weights at the
 * worker). The module copies such a weight neither as it is nor in another layout. */
static bool is_shared_with_worker(const clv_blueprint *b, uint32_t i, const clv_param *p) {
  const clv_stage_spec *s = &b->config->stages[i];
  return s->weights_artifact && p->is_fixed && !clv_name_is_of_adapter(p->name) &&
         !clv_stage_is_param_new(s, p->name);
}

static bool has_shared_weights(const clv_blueprint *b, uint32_t i) {
  const clv_params *p = b->stages[i].params;
  for (int k = 0; k < p->n; k++)
    if (is_shared_with_worker(b, i, &p->list[k])) return true;
  return false;
}

/* ---- the execution plan of a stage ----------------------------------------------------------- */

/* Size, number and purpose of the calls of a stage. */
typedef struct stage_calls {
  int64_t batch_samples;
  uint32_t n_live_calls; /* number of calls that exist at once */
  bool is_training;
} stage_calls;

static clv_code make_plan(const clv_backend *backend, const clv_blueprint *b, uint32_t i,
                          const stage_calls *calls, clv_plan **ret, clv_err *err) {
  const clv_stage_plan *s = &b->stages[i];
  const clv_session_config *c = b->config;
  bool computes_bf16 =
      backend->memory ? c->train.dtype == CLV_COMPUTE_BF16 : clv_blueprint_is_bf16(b);
  bool has_transient_weights =
      (calls->is_training && calls->n_live_calls <= 1) || has_shared_weights(b, i);
  clv_plan_options po = {.backend = backend,
                         .dtype = CLV_F32,
                         .batch = calls->batch_samples,
                         .training = calls->is_training,
                         .threads = (int)c->stages[i].threads,
                         .bf16 = computes_bf16,
                         .tf32 = backend->memory && c->stages[i].tf32,
                         .transient_weights = has_transient_weights};
  for (int k = 0, input = 0; k < s->graph->n_nodes; k++)
    if (s->graph->nodes[k].op == CLV_OP_INPUT)
      po.batches[input++] = s->graph->nodes[k].shape.dim[0] * calls->batch_samples / b->micro_size;
  po.needs_input_grad[0] = calls->is_training && s->input_needs_grad;
  po.split_backward = s->input_needs_grad || calls->n_live_calls > 1;
  backend->set_threads(po.threads);
  return clv_plan_new(s->graph, s->params, &po, ret, err);
}

/* ---- memory that is not part of the plan ----------------------------------------------------- */

static size_t count_node_bytes(const clv_node *n) {
  size_t bytes = 0;
  return clv_shape_bytes(&n->shape, n->dtype, &bytes, NULL) == CLV_OK ? bytes : 0;
}

static size_t count_input_bytes(const clv_graph *g) {
  size_t bytes = 0;
  for (int k = 0; k < g->n_nodes; k++)
    if (g->nodes[k].op == CLV_OP_INPUT) bytes += count_node_bytes(&g->nodes[k]);
  return bytes;
}

/* Returns the bytes of activations. A stage that recomputes keeps the inputs of all calls, and the
 * activations of one call. */
static size_t count_activation_bytes(const clv_blueprint *b, uint32_t i, size_t call_bytes,
                                     uint32_t n_live_micro_batches) {
  if (!b->config->stages[i].recompute) return n_live_micro_batches * call_bytes;
  return call_bytes + n_live_micro_batches * count_input_bytes(b->stages[i].graph);
}

/* ---- memory of a stage on a device ----------------------------------------------------------- */

static const clv_node *get_output_node(const clv_stage_plan *s) {
  return &s->graph->nodes[s->graph->output_node];
}

/* Returns the bytes of values on a device. An output stays on the device until it is no longer
 * needed, and the gradient of the input until it is sent. */
static size_t count_value_bytes(const clv_blueprint *b, uint32_t i, uint32_t n_live_micro_batches) {
  const clv_stage_plan *s = &b->stages[i];
  size_t gradient_bytes = s->input_needs_grad ? count_node_bytes(&s->graph->nodes[0]) : 0;
  return n_live_micro_batches * count_node_bytes(get_output_node(s)) + gradient_bytes;
}

/* Adds the memory of the plan for evaluations, which exists beside the plan for training. */
static clv_code add_evaluation_memory(const clv_backend *backend, const clv_blueprint *b,
                                      uint32_t i, clv_stage_usage *f, clv_err *err) {
  const clv_session_config *c = b->config;
  const stage_calls calls = {b->eval_size, CLV_EVAL_WINDOW, false};
  CLV_AUTO(clv_plan_freep) clv_plan *plan = NULL;
  if (!c->data.test.n && !clv_data_has_validation(&c->data)) return CLV_OK;
  CLV_TRY(make_plan(backend, b, i, &calls, &plan, err));
  const clv_plan_info *info = clv_plan_get_info(plan);
  size_t bytes_per_sample =
      count_node_bytes(get_output_node(&b->stages[i])) / (size_t)b->micro_size;
  f->evaluation_bytes =
      calls.n_live_calls * (info->call_bytes + bytes_per_sample * (size_t)b->eval_size) +
      info->scratch_bytes + info->weight_cache_bytes + info->kernel_bytes;
  return CLV_OK;
}

static clv_code add_device_memory(const clv_backend *backend, const clv_blueprint *b, uint32_t i,
                                  uint32_t n_live_micro_batches, const clv_plan *plan,
                                  clv_stage_usage *f, clv_err *err) {
  const clv_params *p = b->stages[i].params;
  f->is_on_device = true;
  f->value_bytes = count_value_bytes(b, i, n_live_micro_batches);
  f->resident_bytes = p->total_bytes - p->buffer_offset + clv_plan_get_info(plan)->kernel_bytes;
  return add_evaluation_memory(backend, b, i, f, err);
}

/* Returns the most calls (forward and backward of a micro-batch) that exist at once. A device may
 * prepare a forward before the preceding backward has ended. */
static uint32_t count_max_live_calls(const clv_backend *backend, const clv_blueprint *b,
                                     uint32_t n_live_micro_batches) {
  return backend->memory
             ? CLV_MIN(n_live_micro_batches + 1, CLV_MAX(n_live_micro_batches, b->micro_batches))
             : n_live_micro_batches;
}

/* ---- memory of a stage in total -------------------------------------------------------------- */

static clv_code compute_on_backend(const clv_backend *backend, const clv_blueprint *b, uint32_t i,
                                   uint32_t n_live_micro_batches, uint32_t n_weight_versions,
                                   clv_stage_usage *ret, clv_err *err) {
  const clv_stage_plan *s = &b->stages[i];
  const stage_calls calls = {b->micro_size, n_live_micro_batches, true};
  const uint32_t n_live_calls = count_max_live_calls(backend, b, n_live_micro_batches);
  CLV_AUTO(clv_plan_freep) clv_plan *plan = NULL;
  CLV_TRY(make_plan(backend, b, i, &calls, &plan, err));
  const clv_plan_info *info = clv_plan_get_info(plan);
  *ret = (clv_stage_usage){
      .n_param_values = s->params->n_trainable_values,
      .weight_bytes = s->params->total_bytes,
      .old_weight_bytes = s->params->total_bytes * (n_weight_versions - 1),
      .optimizer_bytes = (clv_blueprint_moment_count(b) + 1) * s->params->trainable_bytes,
      .activation_bytes = count_activation_bytes(b, i, info->call_bytes, n_live_calls),
      .scratch_bytes = info->scratch_bytes,
      .cache_bytes = info->weight_cache_bytes,
      .n_reorders = info->reorders_refresh +
                    (int)b->micro_batches * (info->reorders_forward + info->reorders_backward)};
  if (backend->memory) CLV_TRY(add_device_memory(backend, b, i, n_live_calls, plan, ret, err));
  ret->total_bytes = ret->weight_bytes + ret->old_weight_bytes + ret->optimizer_bytes +
                     ret->activation_bytes + ret->scratch_bytes + ret->cache_bytes +
                     ret->value_bytes + ret->resident_bytes + ret->evaluation_bytes;
  for (int k = 0; k < s->graph->n_nodes; k++)
    ret->uses_ref_kernel[k] = clv_plan_node_uses_ref(plan, k);
  return CLV_OK;
}

static clv_code compute_in_dry_run(clv_cuda_dry_run_workspace workspace, const clv_blueprint *b,
                                   uint32_t i, uint32_t n_live_micro_batches,
                                   uint32_t n_weight_versions, clv_stage_usage *ret, clv_err *err) {
  CLV_AUTO(clv_cuda_dry_run_closep) clv_backend *dry_run_backend = NULL;
  CLV_TRY(clv_cuda_dry_run_open(workspace, &dry_run_backend, err));
  return compute_on_backend(dry_run_backend, b, i, n_live_micro_batches, n_weight_versions, ret,
                            err);
}

clv_code clv_stage_usage_compute(const clv_blueprint *b, uint32_t stage,
                                 uint32_t n_live_micro_batches, uint32_t n_weight_versions,
                                 clv_stage_usage *ret, clv_err *err) {
  clv_stage_usage usage_with_most_workspace;
  if (strncmp(clv_stage_device(b, stage), "cuda", 4) != 0)
    return compute_on_backend(clv_backend_cpu(), b, stage, n_live_micro_batches, n_weight_versions,
                              ret, err);
  CLV_TRY(compute_in_dry_run(CLV_CUDA_DRY_RUN_MIN, b, stage, n_live_micro_batches,
                             n_weight_versions, ret, err));
  CLV_TRY(compute_in_dry_run(CLV_CUDA_DRY_RUN_MAX, b, stage, n_live_micro_batches,
                             n_weight_versions, &usage_with_most_workspace, err));
  ret->max_workspace_bytes = usage_with_most_workspace.total_bytes -
                             CLV_MIN(usage_with_most_workspace.total_bytes, ret->total_bytes);
  return CLV_OK;
}

clv_code clv_stage_memory_bytes(const clv_blueprint *b, uint32_t stage,
                                uint32_t n_live_micro_batches, size_t *ret, clv_err *err) {
  clv_stage_usage usage;
  CLV_TRY(clv_stage_usage_compute(b, stage, n_live_micro_batches, 1, &usage, err));
  *ret = usage.total_bytes;
  return CLV_OK;
}
