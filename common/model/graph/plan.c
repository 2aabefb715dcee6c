/* SPDX-License-Identifier: Apache-2.0
 *
 * Building and freeing a plan. clv_plan_new copies the graph, binds its parameters, finds the nodes
 * that the output depends on and those that need a gradient, and then calls the writers of steps
 * and memory (see plan_int.h). The functions in front add buffers and steps for those writers.
 */
#include "common/model/graph/plan_int.h"

#include <stdlib.h>
#include <string.h>

/* ---- adding buffers and steps to a plan ------------------------------------------------------ */

static clv_code grow_array(void *array_pp, int n, int *cap, size_t item_bytes, clv_err *err) {
  void *old_array, *new_array;
  if (n < *cap) return CLV_OK;
  /* cannot overflow: 4096 nodes make far fewer than 2^30 buffers or steps */
  int cap_new = *cap ? *cap * 2 : 64;
  memcpy(&old_array, array_pp, sizeof old_array);
  CLV_TRY(clv_alloc((size_t)cap_new, item_bytes, &new_array, err));
  if (n) memcpy(new_array, old_array, (size_t)n * item_bytes);
  free(old_array);
  memcpy(array_pp, &new_array, sizeof new_array);
  *cap = cap_new;
  return CLV_OK;
}

clv_code clv_plan_buf_new(clv_plan *p, size_t bytes, int space, int *ret, clv_err *err) {
  CLV_TRY(grow_array(&p->bufs, p->n_bufs, &p->cap_bufs, sizeof *p->bufs, err));
  p->bufs[p->n_bufs] = (clv_plan_buf){.space = space,
                                      .memory_root = p->n_bufs,
                                      .first_step = p->n_steps,
                                      .last_step = p->n_steps,
                                      .bytes = bytes};
  *ret = p->n_bufs++;
  return CLV_OK;
}

void clv_plan_extend_lifetime(clv_plan *p, int buf) {
  if (buf >= 0) p->bufs[buf].last_step = CLV_MAX(p->bufs[buf].last_step, p->n_steps);
}

clv_code clv_plan_add_step(clv_plan *p, const clv_plan_step *step, clv_err *err) {
  CLV_TRY(grow_array(&p->steps, p->n_steps, &p->cap_steps, sizeof *p->steps, err));
  p->steps[p->n_steps++] = *step;
  return CLV_OK;
}

clv_plan_step clv_plan_make_bare_step(clv_plan_step_fn *run, const char *verb, int node) {
  clv_plan_step s = {.run = run, .step_name = verb, .node = node, .src = -1, .dst = -1};
  s.scratch = s.cache = s.recomputed_in0 = s.out = s.saved_buf = -1;
  for (int i = 0; i < CLV_MAX_IN; i++) s.din[i] = s.in[i] = -1;
  for (int i = 0; i < CLV_MAX_PARAMS; i++) s.discard_bufs[i] = -1;
  return s;
}

clv_code clv_plan_add_scratch(clv_plan *p, int node, clv_plan_step *step, clv_err *err) {
  size_t bytes = p->nodes[node].kernel->scratch_bytes;
  if (bytes) CLV_TRY(clv_plan_buf_new(p, bytes, SPACE_SCRATCH, &step->scratch, err));
  return CLV_OK;
}

clv_code clv_plan_add_weight_buf(clv_plan *p, int node, clv_plan_step *step, clv_err *err) {
  const clv_kernel *k = p->nodes[node].kernel;
  if (!p->options.transient_weights || !k->refresh || !k->cache_bytes) return CLV_OK;
  return clv_plan_buf_new(p, k->cache_bytes, SPACE_SCRATCH, &step->cache, err);
}

int clv_plan_layout_for_rank(const clv_shape *shape, int block) {
  return shape->rank == 4 ? block : 1;
}

clv_code clv_plan_add_value_buf(clv_plan *p, int node, int block, int *ret, clv_err *err) {
  const clv_node *n = &p->graph->nodes[node];
  size_t size = clv_layout_is_bf16(block) ? sizeof(uint16_t) : clv_dtype_size(n->dtype);
  size_t bytes = clv_layout_numel(&n->shape, block) * size;
  return clv_plan_buf_new(p, bytes, SPACE_SCRATCH, ret, err);
}

/* True if the conversion from layout `from` to layout `to` takes two reorder steps, because type
 * (f32, bf16) and block size both differ. *ret_block: the layout between the two steps. */
static bool needs_middle_layout(int from, int to, int *ret_block) {
  *ret_block = clv_layout_f32(clv_layout_is_bf16(from) ? from : to);
  return clv_layout_is_bf16(from) != clv_layout_is_bf16(to) &&
         !clv_layout_is_channels_last(from | to) && clv_layout_block(from) != clv_layout_block(to);
}

clv_code clv_plan_convert_layout(clv_plan *p, int node, clv_plan_layout_buf from,
                                 clv_plan_layout_buf to, clv_err *err) {
  clv_plan_layout_buf middle;
  if (needs_middle_layout(from.layout, to.layout, &middle.layout)) {
    CLV_TRY(clv_plan_add_value_buf(p, node, middle.layout, &middle.buf, err));
    CLV_TRY(clv_plan_convert_layout(p, node, from, middle, err));
    from = middle;
  }
  bool is_copy = from.layout == to.layout;
  clv_plan_step s = clv_plan_make_bare_step(is_copy ? clv_plan_run_copy : clv_plan_run_reorder,
                                            is_copy ? "copy" : "reorder", node);
  s.src = from.buf;
  s.dst = to.buf;
  s.src_layout = from.layout;
  s.dst_layout = to.layout;
  s.n = p->bufs[from.buf].bytes;
  clv_plan_extend_lifetime(p, from.buf);
  clv_plan_extend_lifetime(p, to.buf);
  return clv_plan_add_step(p, &s, err);
}

/* ---- nodes that are computed and get gradients ----------------------------------------------- */

static clv_code copy_params(clv_plan *p, const clv_params *params, clv_err *err) {
  size_t n = (size_t)params->n, n_ties = (size_t)params->n_ties;
  CLV_TRY(clv_alloc(1, sizeof *p->params, &p->params, err));
  *p->params = *params;
  p->params->list = NULL;
  p->params->ties = NULL;
  CLV_TRY(clv_alloc(n, sizeof *params->list, &p->params->list, err));
  CLV_TRY(clv_alloc(n_ties, sizeof *params->ties, &p->params->ties, err));
  if (n) memcpy(p->params->list, params->list, n * sizeof *params->list);
  if (n_ties) memcpy(p->params->ties, params->ties, n_ties * sizeof *params->ties);
  return CLV_OK;
}

static bool has_expected_dtype(const clv_plan *p, const clv_param *q, const clv_slot *slot) {
  const clv_node *n = &p->graph->nodes[q->node];
  bool is_bf16_weight = q->dtype == CLV_BF16 && q->frozen && n->op == CLV_OP_LINEAR &&
                        q->slot == CLV_SLOT_WEIGHT && !slot->is_i64;
  return is_bf16_weight || q->dtype == (slot->is_i64 ? CLV_I64 : n->dtype);
}

static clv_code set_slot_param(clv_plan *p, const clv_param *q, clv_err *err) {
  clv_slot slots[CLV_MAX_PARAMS];
  int n = q->node >= 0 && q->node < p->graph->n_nodes
              ? clv_node_get_slots(p->graph, &p->graph->nodes[q->node], slots)
              : 0;
  if (q->slot < 0 || q->slot >= n || !clv_shape_equal(&q->shape, &slots[q->slot].shape) ||
      !has_expected_dtype(p, q, &slots[q->slot]))
    return clv_fail(err, CLV_INVALID, "parameter '%s' is not one of this graph", q->name);
  p->nodes[q->node].slot_params[q->slot] = q;
  p->nodes[q->node].is_trained |= p->options.training && q->trainable && !q->frozen;
  return CLV_OK;
}

static clv_code set_slot_params(clv_plan *p, const clv_params *params, clv_err *err) {
  clv_slot slots[CLV_MAX_PARAMS];
  CLV_TRY(copy_params(p, params, err));
  for (int i = 0; i < params->n; i++) CLV_TRY(set_slot_param(p, &p->params->list[i], err));
  for (int i = 0; i < params->n_ties; i++)
    CLV_TRY(set_slot_param(p, &p->params->ties[i].param, err));
  for (int i = 0; i < p->graph->n_nodes; i++) {
    int n = clv_node_get_slots(p->graph, &p->graph->nodes[i], slots);
    for (int s = 0; s < n; s++)
      if (!p->nodes[i].slot_params[s])
        return clv_fail(err, CLV_INVALID, "parameter '%s.%s' is missing", p->graph->nodes[i].name,
                        slots[s].suffix);
  }
  return CLV_OK;
}

static clv_code add_plan_input(clv_plan *p, int node, clv_err *err) {
  const clv_node *n = &p->graph->nodes[node];
  clv_plan_node *q = &p->nodes[node];
  int i = p->n_inputs++;
  q->input_index = i;
  q->needs_grad = p->options.training && p->options.needs_input_grad[i];
  p->input_node[i] = node;
  p->input_copy_buf[i] = -1;
  if (n->dtype == CLV_I64 && q->needs_grad)
    return clv_fail(err, CLV_INVALID, "input '%s' holds integers and has no gradient", n->name);
  if (n->dtype != CLV_I64 && n->dtype != p->options.dtype)
    return clv_fail(err, CLV_INVALID, "input '%s' is %s in a plan for %s", n->name,
                    clv_dtype_name(n->dtype), clv_dtype_name(p->options.dtype));
  return clv_shape_bytes(&n->shape, n->dtype, &p->input_bytes[i], err);
}

static clv_code check_training(const clv_graph *g, int node, clv_err *err) {
  const clv_node *n = &g->nodes[node];
  const clv_op_def *def = clv_op_def_of(n->op);
  clv_op_site site;
  if (!def || !def->check_training) return CLV_OK;
  clv_node_get_site(g, n, &site);
  if (def->check_training(&site, err) != CLV_OK)
    return clv_err_prefix(err, "layer %s (%s)", n->name, def->name);
  return CLV_OK;
}

clv_code clv_graph_check_training(const clv_graph *g, clv_err *err) {
  for (int i = 0; i < g->n_nodes; i++) CLV_TRY(check_training(g, i, err));
  return CLV_OK;
}

/* Marks the nodes that the output depends on, then the nodes whose values need a gradient, and
 * checks the types of all nodes. */
static clv_code find_reachable_and_gradients(clv_plan *p, clv_err *err) {
  const clv_graph *g = p->graph;
  p->nodes[g->output_node].is_reachable = true;
  for (int i = g->output_node; i >= 0; i--)
    for (int j = 0; p->nodes[i].is_reachable && j < g->nodes[i].n_in; j++)
      p->nodes[g->nodes[i].in[j]].is_reachable = true;
  for (int i = 0; i < g->n_nodes; i++) {
    clv_plan_node *q = &p->nodes[i];
    q->saved_buf = q->input_index = q->grad_sum.buf = -1;
    for (int j = 0; j < CLV_MAX_IN; j++) q->in[j] = -1;
    if (g->nodes[i].op == CLV_OP_INPUT) {
      CLV_TRY(add_plan_input(p, i, err));
      continue;
    }
    const clv_op_def *def = clv_op_def_of(g->nodes[i].op);
    q->is_alias = def->is_alias || (def->is_identity_in_eval && !p->options.training);
    q->needs_grad = q->is_trained;
    for (int j = 0; j < g->nodes[i].n_in; j++)
      q->needs_grad |= p->nodes[g->nodes[i].in[j]].needs_grad;
    if (q->is_reachable && p->options.training) CLV_TRY(check_training(p->graph, i, err));
    if (g->nodes[i].dtype != p->options.dtype)
      return clv_fail(err, CLV_INVALID, "layer %s is %s in a plan for %s", g->nodes[i].name,
                      clv_dtype_name(g->nodes[i].dtype), clv_dtype_name(p->options.dtype));
  }
  return CLV_OK;
}

/* ---- zeroed ranges and sizes of a plan ------------------------------------------------------- */

static bool is_gradient_written(const clv_plan *p, const clv_param *q) {
  return p->options.training && q->trainable && !q->frozen && p->nodes[q->node].is_reachable;
}

/* Adds the bytes of the gradient block from *at to `start` to p->zeroed_ranges, if there are any.
 * *at: end of the last gradient so far that a kernel writes; start: begin of the next one. */
static void add_zeroed_range(clv_plan *p, size_t *at, size_t start) {
  if (start > *at) p->zeroed_ranges[p->n_zeroed_ranges++] = (clv_plan_range){*at, start - *at};
}

/* Finds the ranges of the gradient block that no kernel writes, which backward sets to 0. Relies on
 * parameters being in the order of their offsets, with ties behind them. */
static clv_code find_zeroed_ranges(clv_plan *p, clv_err *err) {
  size_t at = 0, n = (size_t)p->params->n, n_all = n + (size_t)p->params->n_ties;
  CLV_TRY(clv_alloc(n_all + 1, sizeof *p->zeroed_ranges, &p->zeroed_ranges, err));
  for (size_t i = 0; i < n_all; i++) {
    const clv_param *q = i < n ? &p->params->list[i] : &p->params->ties[i - n].param;
    if (!is_gradient_written(p, q)) continue;
    add_zeroed_range(p, &at, q->gradient_offset);
    at = q->gradient_offset + q->bytes;
  }
  add_zeroed_range(p, &at, p->params->gradient_bytes);
  return CLV_OK;
}

static void remove_dropped_steps(clv_plan *p) {
  int n = 0, phase = 0;
  for (int i = 0; i <= p->n_steps; i++) {
    for (; phase < PHASES && p->phase_end[phase] == i; phase++) p->phase_end[phase] = n;
    if (i < p->n_steps && !p->steps[i].is_dropped) p->steps[n++] = p->steps[i];
  }
  p->n_steps = n;
}

/* Bytes that oneDNN keeps for the kernels of a convolution and its gradients. Other ops need less.
 */
enum { KERNEL_OBJECT_BYTES = 22 << 10 };

static void set_plan_info(clv_plan *p) {
  clv_plan_info *info = &p->info;
  for (int i = 0; i < p->n_steps; i++) {
    bool is_forward = i < p->phase_end[PHASE_FORWARD];
    clv_plan_step_fn *run = p->steps[i].run;
    bool reads_params = run == clv_plan_run_backward_input || run == clv_plan_run_recompute ||
                        (run == clv_plan_run_forward && !is_forward);
    if (reads_params && p->nodes[p->steps[i].node].slot_params[0])
      info->backward_reads_params = true;
    if (p->steps[i].run == clv_plan_run_reorder)
      ++*(is_forward ? &info->reorders_forward : &info->reorders_backward);
  }
  for (int i = 0; i < p->graph->n_nodes; i++) {
    const clv_kernel *k = p->nodes[i].kernel;
    if (!k) continue;
    info->kernel_bytes += KERNEL_OBJECT_BYTES;
    info->reorders_refresh += k->refresh ? k->reorders_refresh : 0;
    info->reorders_forward += k->reorders_forward;
    info->reorders_backward += p->nodes[i].needs_grad ? k->reorders_backward : 0;
  }
  info->n_steps_forward = p->phase_end[PHASE_FORWARD];
  info->n_steps_backward = p->n_steps - info->n_steps_forward;
}

/* Builds the plan for a batch of 0 samples. It has no steps: gradients of parameters are 0, and a
 * scalar output, which is a mean over samples, is NaN. Fails in training if the graph has running
 * statistics, because 0 samples cannot update them. */
static clv_code build_empty_plan(clv_plan *p, clv_err *err) {
  for (int i = 0; i < p->params->n && p->options.training; i++) {
    const clv_param *q = &p->params->list[i];
    if (q->trainable) continue;
    const clv_node *n = &p->graph->nodes[q->node];
    return clv_fail(err, CLV_INVALID,
                    "layer %s (%s): a batch of 0 samples cannot update running statistics", n->name,
                    clv_op_name(n->op));
  }
  clv_shape *out = &p->graph->nodes[p->graph->output_node].shape;
  p->scalar_is_nan = !out->rank;
  if (out->rank) out->dim[0] = 0;
  return find_zeroed_ranges(p, err);
}

static bool has_empty_batch(const clv_plan *p) {
  return !p->graph->has_per_input_batches && !p->options.batch;
}

static clv_code build_plan(clv_plan *p, const clv_graph *g, const clv_params *params,
                           clv_err *err) {
  CLV_TRY(clv_graph_clone(g, &p->graph, err));
  if (g->has_per_input_batches)
    CLV_TRY(clv_graph_set_batches(p->graph, p->options.batches, err));
  else if (!has_empty_batch(p))
    CLV_TRY(clv_graph_set_batch(p->graph, p->options.batch, err));
  CLV_TRY(clv_alloc((size_t)g->n_nodes, sizeof *p->nodes, &p->nodes, err));
  CLV_TRY(set_slot_params(p, params, err));
  if (has_empty_batch(p)) return build_empty_plan(p, err);
  CLV_TRY(find_reachable_and_gradients(p, err));
  clv_plan_fuse(p);
  clv_plan_fuse_chains(p);
  clv_plan_fuse_forward(p);
  CLV_TRY(clv_plan_add_forward_steps(p, err));
  CLV_TRY(clv_plan_add_backward_steps(p, err));
  CLV_TRY(clv_plan_place_bufs(p, err));
  remove_dropped_steps(p);
  CLV_TRY(find_zeroed_ranges(p, err));
  set_plan_info(p);
  return CLV_OK;
}

clv_code clv_plan_new(const clv_graph *g, const clv_params *params, const clv_plan_options *options,
                      clv_plan **ret, clv_err *err) {
  CLV_AUTO(clv_plan_freep) clv_plan *p = NULL;
  if (g->output_node < 0 || g->output_node >= g->n_nodes)
    return clv_fail(err, CLV_INVALID, "the graph has no output node %d", g->output_node);
  if (!options->backend || options->backend->abi != CLV_KERNELS_ABI ||
      options->backend->size < sizeof(clv_backend))
    return clv_fail(err, CLV_PRECONDITION, "the backend was built for another version of Cleave");
  if (options->dtype != CLV_F32 && options->dtype != CLV_F64)
    return clv_fail(err, CLV_INVALID, "plans compute in f32 or f64, not %s",
                    clv_dtype_name(options->dtype));
  CLV_TRY(clv_alloc(1, sizeof *p, &p, err));
  p->options = *options;
  p->options.threads = CLV_MAX(options->threads, 1);
  if (options->bf16 && options->backend->check_bf16)
    CLV_TRY(options->backend->check_bf16(options->backend, err));
  if (options->tf32) CLV_TRY(clv_backend_check_tf32(options->backend, err));
  p->backend = options->dtype == CLV_F64 ? clv_backend_ref() : options->backend;
  if (p->backend != options->backend) p->options.recorder = NULL;
  p->backend->set_threads(p->options.threads);
  CLV_TRY(build_plan(p, g, params, err));
  *ret = clv_steal(&p);
  return CLV_OK;
}

clv_plan *clv_plan_free(clv_plan *p) {
  if (!p) return NULL;
  clv_recorder_free_records_of(p->options.recorder, p);
  for (clv_call *c = p->calls, *next; c; c = next) {
    next = c->next;
    clv_backend_free_memory(p->backend, c->memory);
    free(c);
  }
  for (int i = 0; p->nodes && i < p->graph->n_nodes; i++)
    if (p->nodes[i].kernel) p->nodes[i].kernel->free(p->nodes[i].kernel);
  clv_params_free(p->params);
  clv_graph_free(p->graph);
  free(p->nodes);
  free(p->bufs);
  free(p->steps);
  free(p->zeroed_ranges);
  clv_backend_free_memory(p->backend, p->scratch);
  clv_backend_free_memory(p->backend, p->weight_cache);
  free(p);
  return NULL;
}

void clv_plan_freep(clv_plan **p) { *p = clv_plan_free(*p); }

const clv_plan_info *clv_plan_get_info(const clv_plan *p) { return &p->info; }
const clv_shape *clv_plan_output_shape(const clv_plan *p) {
  return &p->graph->nodes[p->graph->output_node].shape;
}
