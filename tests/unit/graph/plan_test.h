/* SPDX-License-Identifier: Apache-2.0
 *
 * plan_test: makes a plan with memory for its parameters, inputs, outputs and gradients, and runs
 * training steps through it.
 */
#ifndef CLEAVE_PLAN_TEST_H
#define CLEAVE_PLAN_TEST_H

#include "common/model/graph/plan_int.h"
#include "tests/unit/graph/graph_test.h"

static const clv_rng_key step_key = {.seed = 9, .step = 3, .micro_batch = 1};

/* A plan with its parameters, inputs, outputs and gradients in host memory. */
typedef struct rig {
  clv_graph *g;
  clv_params *params;
  clv_plan *plan;
  char *parameter_block, *gradient_block, *out, *dout;
  char *in[CLV_MAX_INPUTS], *din[CLV_MAX_INPUTS];
  size_t input_bytes[CLV_MAX_INPUTS], output_bytes;
  int n_in;
} rig;

typedef struct rig_options {
  const clv_backend *backend;
  bool is_evaluation, has_split_backward, has_transient_weights, is_bf16;
  bool has_no_input_grad[CLV_MAX_INPUTS];
  const char *frozen_params[4];
  int n_threads; /* number of threads; 0 means one */
} rig_options;

static inline void *allocate(size_t bytes) {
  void *p;
  assert_ok(clv_alloc_aligned(bytes, &p, err));
  memset(p, 0xFF, bytes); /* fills the memory with NaN, whose bytes are 0xFF */
  return p;
}

/* Draws numbers in [-1, 1) of the buffer's dtype, or class indices 0, 1, 2, 0... */
static inline void fill_with_random(void *dst, clv_dtype dtype, size_t n, uint32_t stream) {
  clv_rng_key key = {.seed = 77, .layer = stream};
  float *f = allocate(n * sizeof *f);
  clv_rng_uniform(&key, -1, 1, f, n);
  for (size_t i = 0; i < n; i++) {
    if (dtype == CLV_F32) ((float *)dst)[i] = f[i];
    if (dtype == CLV_F64) ((double *)dst)[i] = f[i];
    if (dtype == CLV_I64) ((int64_t *)dst)[i] = (int64_t)(i % 3);
  }
  free(f);
}

static inline size_t get_bytes(const clv_node *n) {
  return clv_layout_numel(&n->shape, 1) * clv_dtype_size(n->dtype);
}

static inline void allocate_rig_memory(rig *r) {
  const clv_node *out = &r->g->nodes[r->g->output_node];
  for (int i = 0; i < r->g->n_nodes; i++) {
    const clv_node *n = &r->g->nodes[i];
    if (n->op != CLV_OP_INPUT) continue;
    size_t bytes = r->input_bytes[r->n_in] = get_bytes(n);
    r->in[r->n_in] = allocate(bytes);
    r->din[r->n_in] = allocate(bytes);
    fill_with_random(r->in[r->n_in], n->dtype, bytes / clv_dtype_size(n->dtype), (uint32_t)r->n_in);
    r->n_in++;
  }
  r->output_bytes = get_bytes(out);
  r->out = allocate(r->output_bytes);
  r->dout = allocate(r->output_bytes);
  fill_with_random(r->dout, out->dtype, r->output_bytes / clv_dtype_size(out->dtype), 100);
  r->gradient_block = allocate(r->params->gradient_bytes);
  r->parameter_block = allocate(r->params->total_bytes);
  clv_params_init(r->g, r->params, r->parameter_block);
}

/* Makes a rig with a plan of the graph. The rig owns the graph: free_rig frees both. */
static inline rig make_rig(clv_graph *g, const rig_options *o) {
  rig r = {.g = g};
  clv_plan_options po = {.backend = o->backend,
                         .dtype = g->nodes[g->output_node].dtype,
                         .batch = g->nodes[0].shape.dim[0],
                         .training = !o->is_evaluation,
                         .threads = CLV_MAX(o->n_threads, 1),
                         .bf16 = o->is_bf16,
                         .split_backward = o->has_split_backward,
                         .transient_weights = o->has_transient_weights};
  assert_ok(clv_params_make(g, &r.params, err));
  for (int i = 0; i < 4 && o->frozen_params[i]; i++)
    ((clv_param *)(uintptr_t)clv_params_find(r.params, o->frozen_params[i]))->frozen = true;
  for (int i = 0, k = 0; i < g->n_nodes; i++)
    if (g->nodes[i].op == CLV_OP_INPUT) {
      po.needs_input_grad[k] = g->nodes[i].dtype != CLV_I64 && !o->has_no_input_grad[k];
      po.batches[k] = g->nodes[i].shape.dim[0];
      k++;
    }
  clv_params_update_ties(r.params);
  assert_ok(clv_plan_new(g, r.params, &po, &r.plan, err));
  allocate_rig_memory(&r);
  return r;
}

static inline void free_rig(rig *r) {
  clv_plan_free(r->plan);
  clv_params_free(r->params);
  clv_graph_free(r->g);
  free(r->parameter_block);
  free(r->gradient_block);
  free(r->out);
  free(r->dout);
  for (int i = 0; i < r->n_in; i++) {
    free(r->in[i]);
    free(r->din[i]);
  }
}

/* Copies parameters and gradients to the backend's memory, and back. */
static inline void copy_to_backend_memory(rig *r, char **ret_block, char **ret_grads) {
  const clv_backend *b = r->plan->backend;
  *ret_block = r->parameter_block;
  *ret_grads = r->gradient_block;
  if (!b->memory) return;
  assert_ok(clv_backend_allocate(b, r->params->total_bytes, ret_block, err));
  assert_ok(clv_backend_allocate(b, r->params->gradient_bytes, ret_grads, err));
  assert_ok(clv_backend_put(b, *ret_block, r->parameter_block, r->params->total_bytes, err));
  assert_ok(clv_backend_put(b, *ret_grads, r->gradient_block, r->params->gradient_bytes, err));
  r->plan->is_cache_current = false;
}

static inline void copy_from_backend_memory(rig *r, char *block, char *grads) {
  const clv_backend *b = r->plan->backend;
  if (!b->memory) return;
  assert_ok(clv_backend_get(b, r->parameter_block, block, r->params->total_bytes, err));
  assert_ok(clv_backend_get(b, r->gradient_block, grads, r->params->gradient_bytes, err));
  clv_backend_free_memory(b, block);
  clv_backend_free_memory(b, grads);
}

static inline clv_code try_forward(rig *r, clv_call *c, clv_err *why) {
  char *block, *grads;
  copy_to_backend_memory(r, &block, &grads);
  clv_code code = clv_plan_forward(r->plan, c, block, 1, (const void *const *)r->in, true, r->out,
                                   &step_key, why);
  copy_from_backend_memory(r, block, grads);
  return code;
}

static inline void run_forward(rig *r, clv_call *c) { assert_ok(try_forward(r, c, err)); }

static inline clv_code try_backward_input(rig *r, clv_call *c, bool accumulate, clv_err *why) {
  char *block, *grads;
  copy_to_backend_memory(r, &block, &grads);
  if (r->plan->backend->memory) assert_ok(clv_plan_refresh_weights(r->plan, c, block, 1, err));
  clv_code code = clv_plan_backward_input(r->plan, c, block, r->dout, (void *const *)r->din, grads,
                                          accumulate, why);
  copy_from_backend_memory(r, block, grads);
  return code;
}

static inline void run_backward_input(rig *r, clv_call *c, bool accumulate) {
  assert_ok(try_backward_input(r, c, accumulate, err));
}

static inline void run_backward_weight(rig *r, clv_call *c, bool accumulate) {
  char *block, *grads;
  copy_to_backend_memory(r, &block, &grads);
  assert_ok(clv_plan_backward_weight(r->plan, c, block, grads, accumulate, err));
  copy_from_backend_memory(r, block, grads);
}

/* Fills the scratch with NaN, because another call may overwrite the scratch before the next phase
 * of this call. */
static inline void fill_scratch_with_nan(rig *r) {
  assert_ok(
      clv_backend_fill(r->plan->backend, r->plan->scratch, 0xFF, r->plan->info.scratch_bytes, err));
}

static inline void run_step(rig *r) {
  clv_call *c;
  assert_ok(clv_plan_call_get(r->plan, &c, err));
  fill_scratch_with_nan(r);
  run_forward(r, c);
  if (r->plan->options.training) {
    fill_scratch_with_nan(r);
    run_backward_input(r, c, false);
    fill_scratch_with_nan(r);
    run_backward_weight(r, c, false);
  }
  clv_plan_call_put(r->plan, c);
}

static inline void assert_same_bytes(const void *a, const void *b, size_t bytes, const char *what) {
  if (memcmp(a, b, bytes)) fail_msg("%s differs", what);
}

static inline void *get_gradient(const rig *r, const char *name) {
  const clv_param *p = clv_params_find(r->params, name);
  assert_non_null(p);
  return r->gradient_block + p->offset;
}

#endif
