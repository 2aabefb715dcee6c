/* SPDX-License-Identifier: Apache-2.0
 *
 * Runs stages of a session in this process for the look: their graph, their initial weights or
 * those of a checkpoint, and a plan. look_front.c and look_head.c call it.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "master/plan/look_int.h"

/* a dropout of this probability or more drops nearly all values */
static const double NEARLY_ALL_DROPOUT_RATE = 0.9;

void clv_look_set_skipped(clv_look_result *ret, const clv_err *why) {
  ret->state = CLV_LOOK_COULD_NOT_RUN;
  snprintf(ret->reason, sizeof ret->reason, "%.*s", (int)sizeof ret->reason - 1, why->text);
}

uint32_t clv_look_find_last_worker_stage(const clv_blueprint *b) {
  uint32_t last_stage = b->n_stages;
  for (uint32_t i = 0; i < b->n_stages; i++)
    if (b->stages[i].worker >= 0) last_stage = i;
  return last_stage;
}

void clv_look_part_done(clv_look_part *p) {
  if (!p) return;
  if (p->plan) clv_plan_call_put(p->plan, p->call);
  clv_plan_free(p->plan);
  clv_params_free(p->params);
  clv_graph_free(p->graph);
  free(p->weights_block);
  free(p->output);
  *p = (clv_look_part){0};
}

/* ---- weights of the stages ------------------------------------------------------------------- */

static clv_code read_param(const clv_look_part *part, const clv_weights_file *f,
                           const clv_weights_entry *e, const clv_param *as, clv_err *err) {
  const clv_param *p = clv_params_find(part->params, as->name);
  if (!e || !p) return CLV_OK;
  char *to = part->weights_block + p->offset;
  if (e->dtype != CLV_BF16) return clv_weights_read_range_as(f, e, p->dtype, 0, to, p->n, err);
  CLV_AUTO(clv_freep) uint16_t *bf16_values = NULL;
  CLV_TRY(clv_alloc(p->n, sizeof *bf16_values, &bf16_values, err));
  CLV_TRY(clv_weights_read_range(f, e, 0, bf16_values, p->n * sizeof *bf16_values, err));
  for (size_t i = 0; i < p->n; i++) ((float *)to)[i] = clv_bf16_value(bf16_values[i]);
  return CLV_OK;
}

static clv_code read_found_params(const clv_blueprint *b, const clv_look_part *part, uint32_t stage,
                                  const clv_weights_file *f,
                                  const clv_weights_entry **found_entries, clv_err *err) {
  const clv_params *params = b->stages[stage].params;
  for (int k = 0; k < params->n; k++)
    CLV_TRY(read_param(part, f, found_entries[k], &params->list[k], err));
  return CLV_OK;
}

static clv_code read_file_weights(const clv_blueprint *b, const clv_look_part *part, uint32_t stage,
                                  clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes notes = {0};
  CLV_AUTO(clv_weights_closep) clv_weights_file *f = NULL;
  CLV_AUTO(clv_freep) const clv_weights_entry **found = NULL;
  CLV_TRY(clv_stage_file_open(b, stage, &f, &found, &notes, err));
  return read_found_params(b, part, stage, f, found, err);
}

static clv_code read_adapters(const clv_blueprint *b, const clv_look_part *part, uint32_t stage,
                              clv_err *err) {
  CLV_AUTO(clv_weights_closep) clv_weights_file *f = NULL;
  CLV_AUTO(clv_freep) const clv_weights_entry **found = NULL;
  CLV_TRY(clv_stage_adapters_open(b, stage, &f, &found, err));
  return read_found_params(b, part, stage, f, found, err);
}

static clv_code read_folder_weights(const clv_blueprint *b, const clv_look_part *part,
                                    uint32_t stage, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes notes = {0};
  CLV_AUTO(clv_stage_folder_done) clv_stage_folder f = {0};
  CLV_TRY(clv_stage_folder_open(b, stage, &f, &notes, err));
  for (size_t i = 0; i < f.n; i++) {
    const clv_param *p = clv_params_find(part->params, f.wanted_tensors[i].name);
    if (!p || f.folder_indexes[i] == CLV_WEIGHTS_NONE) continue;
    clv_weights_want wanted_tensor = f.wanted_tensors[i];
    wanted_tensor.dtype = p->dtype;
    CLV_TRY(clv_weights_folder_read_tensor(f.folder, f.folder_indexes[i], &wanted_tensor,
                                           part->weights_block + p->offset, err));
  }
  return CLV_OK;
}

/* Opens the checkpoint's file of the weights of stage `checkpoint_stage`. CLV_UNIMPLEMENTED: a
 * worker keeps the file. */
static clv_code open_checkpoint_file(const clv_look_weights *w, uint32_t checkpoint_stage,
                                     clv_weights_file **ret, clv_err *err) {
  const clv_manifest_file *manifest_row =
      clv_manifest_find_stage(clv_checkpoint_manifest(w->checkpoint), checkpoint_stage, false);
  if (manifest_row && manifest_row->keeper_identity)
    return clv_fail(
        err, CLV_UNIMPLEMENTED,
        "the checkpoint's file '%s' is at its worker alone: `checkpoint gather` fetches "
        "it",
        manifest_row->name);
  return clv_checkpoint_open_model_lazy(w->checkpoint, checkpoint_stage, ret, err);
}

/* Reads those parameters of a stage that are in the checkpoint's file of stage `checkpoint_stage`.
 * stages: [params->n] stage of the checkpoint that has each parameter. */
static clv_code read_checkpoint_file(const clv_look_weights *w, const clv_look_part *part,
                                     const clv_params *params, const uint32_t *stages,
                                     uint32_t checkpoint_stage, clv_err *err) {
  CLV_AUTO(clv_weights_closep) clv_weights_file *f = NULL;
  for (int k = 0; k < params->n; k++) {
    const clv_param *p = &params->list[k];
    if (stages[k] != checkpoint_stage) continue;
    if (!f) CLV_TRY(open_checkpoint_file(w, checkpoint_stage, &f, err));
    const clv_weights_entry *e = clv_weights_find_entry(f, p->name);
    if (!e || !clv_shape_equal(&e->shape, &p->shape))
      return clv_fail(err, CLV_INVALID, "%s: '%.100s' has another shape than the session",
                      clv_weights_name_for_errors(f), p->name);
    CLV_TRY(read_param(part, f, e, p, err));
  }
  return CLV_OK;
}

/* Reads the weights of a stage from the checkpoint by name, because the checkpoint may have another
 * cut than the session. */
static clv_code read_checkpoint(const clv_look_weights *w, const clv_look_part *part,
                                uint32_t stage, clv_err *err) {
  const clv_params *params = w->b->stages[stage].params;
  CLV_AUTO(clv_freep) uint32_t *stages = NULL;
  CLV_TRY(clv_params_find_checkpoint_stages(params, w->checkpoint, &stages, err));
  for (int k = 0; k < params->n; k++)
    if (stages[k] == CLV_CHECKPOINT_NO_STAGE)
      return clv_fail(err, CLV_INVALID, "%s lacks '%.100s'", clv_checkpoint_path(w->checkpoint),
                      params->list[k].name);
  for (uint32_t i = 0; i < clv_checkpoint_manifest(w->checkpoint)->stages; i++)
    CLV_TRY(read_checkpoint_file(w, part, params, stages, i, err));
  return CLV_OK;
}

static clv_code read_stage_weights(const clv_look_weights *w, const clv_look_part *part,
                                   uint32_t stage, clv_err *err) {
  const clv_stage_spec *s = &w->b->config->stages[stage];
  if (s->weights_artifact)
    return clv_fail(err, CLV_UNIMPLEMENTED,
                    "stage '%.64s' begins with an artifact that its worker alone has", s->name);
  if (w->checkpoint) return read_checkpoint(w, part, stage, err);
  if (s->weights_file) CLV_TRY(read_file_weights(w->b, part, stage, err));
  if (s->weights_folder) CLV_TRY(read_folder_weights(w->b, part, stage, err));
  return s->lora.from ? read_adapters(w->b, part, stage, err) : CLV_OK;
}

/* ---- graph of the stages --------------------------------------------------------------------- */

static clv_code fail_too_large(size_t bytes, clv_err *err) {
  char needed_text[24], max_text[24];
  return clv_fail(err, CLV_EXHAUSTED, "the layers need %s of memory, and a look takes at most %s",
                  clv_format_size(bytes, needed_text, sizeof needed_text),
                  clv_format_size(CLV_LOOK_MAX_MEMORY_BYTES, max_text, sizeof max_text));
}

static clv_code refuse_wait_layers(const clv_graph *g, clv_err *err) {
  for (int i = 0; i < g->n_nodes; i++)
    if (g->nodes[i].op == CLV_OP_WAIT)
      return clv_fail(err, CLV_UNIMPLEMENTED, "layer '%s' only waits", g->nodes[i].name);
  return CLV_OK;
}

/* True if the dropout drops nearly all values. The look runs such a dropout, because then nearly
 * all values that are sent bypass the dropout, for example through a residual connection. */
static bool drops_nearly_all_values(const clv_node *n) {
  return n->op == CLV_OP_DROPOUT && n->attrs.p >= NEARLY_ALL_DROPOUT_RATE;
}

/* True if the part must run as in training: batch norm uses the statistics of the batch, or a
 * dropout drops nearly all values. Weaker dropouts are not run. */
static bool must_run_as_training(const clv_graph *g) {
  for (int i = 0; i < g->n_nodes; i++)
    if (g->nodes[i].op == CLV_OP_BATCHNORM || drops_nearly_all_values(&g->nodes[i])) return true;
  return false;
}

clv_code clv_look_part_new(const clv_look_weights *w, uint32_t first_stage, uint32_t last_stage,
                           clv_look_part *ret, clv_err *err) {
  CLV_AUTO(clv_look_part_done)
  clv_look_part p = {.first_stage = first_stage, .last_stage = last_stage};
  const clv_blueprint *b = w->b;
  CLV_TRY(clv_graph_slice(b->full_graph, b->stages[first_stage].first_layer,
                          b->stages[last_stage].last_layer, &p.graph, err));
  CLV_TRY(refuse_wait_layers(p.graph, err));
  CLV_TRY(clv_layer_keys(w->seed, "", CLEAVE_SESSION_NETWORK, p.graph, err));
  CLV_TRY(clv_params_make(p.graph, &p.params, err));
  if (p.params->total_bytes > CLV_LOOK_MAX_MEMORY_BYTES)
    return fail_too_large(p.params->total_bytes, err);
  CLV_TRY(clv_alloc_aligned(CLV_MAX(p.params->total_bytes, (size_t)1), &p.weights_block, err));
  clv_params_init(p.graph, p.params, p.weights_block);
  for (uint32_t i = first_stage; i <= last_stage; i++) CLV_TRY(read_stage_weights(w, &p, i, err));
  p.runs_as_training = must_run_as_training(p.graph);
  *ret = p;
  p = (clv_look_part){0};
  return CLV_OK;
}

static const clv_param *find_owner(const clv_look_part *parts, size_t n, const char *name,
                                   char **ret_block) {
  for (size_t i = 0; i < n; i++) {
    const clv_param *p = clv_params_first_of_node(parts[i].graph, parts[i].params, name);
    *ret_block = parts[i].weights_block;
    if (p) return p;
  }
  return NULL;
}

clv_code clv_look_parts_connect_ties(clv_look_part *parts, size_t n, clv_err *err) {
  for (size_t i = 0; i < n; i++)
    for (int k = 0; k < parts[i].params->n_ties; k++) {
      clv_tie *t = &parts[i].params->ties[k];
      const char *owner_name = parts[i].graph->nodes[t->param.node].tie_owner;
      char *block;
      if (t->owner_index >= 0) continue;
      const clv_param *p = find_owner(parts, n, owner_name, &block);
      if (!p)
        return clv_fail(err, CLV_UNIMPLEMENTED,
                        "'%s' has the parameter of '%s', which the look does not load",
                        t->param.name, owner_name);
      t->param.owner_data = block + p->offset;
    }
  return CLV_OK;
}

double clv_look_part_mac_count(const clv_look_part *p) {
  double n_macs = 0;
  for (int i = 0; i < p->params->n; i++) {
    const clv_param *q = &p->params->list[i];
    const clv_node *n = &p->graph->nodes[q->node];
    size_t n_values;
    if (q->shape.rank < 2 || n->op == CLV_OP_EMBEDDING) continue;
    if (clv_shape_numel(&n->shape, &n_values, NULL) != CLV_OK) continue;
    double n_positions = (double)n_values / (double)CLV_MAX(q->shape.dim[0], 1);
    n_macs += 2 * (double)q->n * CLV_MAX(n_positions / (double)CLV_MAX(n->shape.dim[0], 1), 1.0);
  }
  return n_macs;
}

uint32_t clv_look_part_list_inputs(const clv_blueprint *b, const clv_look_part *p,
                                   int ret[CLV_MAX_INPUTS]) {
  uint32_t n = 0;
  for (int i = 0; i < p->graph->n_nodes && n < CLV_MAX_INPUTS; i++) {
    if (p->graph->nodes[i].op != CLV_OP_INPUT) continue;
    ret[n] = -1;
    for (size_t k = 0; !(p->first_stage && !n) && k < b->inputs.n; k++)
      if (strcmp(p->graph->nodes[i].name, b->inputs.inputs[k].name) == 0) ret[n] = (int)k;
    n++;
  }
  return n;
}

/* ---- execution plan of the stages ------------------------------------------------------------ */

static void freeze_all_params(clv_look_part *p) {
  for (int i = 0; p->runs_as_training && !p->needs_input_grad && i < p->graph->n_nodes; i++)
    if (!drops_nearly_all_values(&p->graph->nodes[i])) p->graph->nodes[i].attrs.p = 0;
  for (int i = 0; i < p->params->n; i++) p->params->list[i].frozen = p->params->list[i].trainable;
  clv_params_update_ties(p->params);
}

clv_code clv_look_part_make_plan(clv_look_part *p, int64_t batch_size, clv_err *err) {
  size_t bytes;
  p->batch_size = batch_size;
  clv_plan_options po = {.backend = clv_backend_cpu(),
                         .dtype = CLV_F32,
                         .batch = batch_size,
                         .training = p->runs_as_training || p->needs_input_grad,
                         .needs_input_grad = {p->needs_input_grad},
                         .threads = 1};
  freeze_all_params(p);
  CLV_TRY(clv_graph_set_batch(p->graph, batch_size, err));
  CLV_TRY(clv_plan_new(p->graph, p->params, &po, &p->plan, err));
  const clv_plan_info *plan_info = clv_plan_get_info(p->plan);
  bytes = p->params->total_bytes + plan_info->call_bytes + plan_info->scratch_bytes +
          plan_info->weight_cache_bytes;
  if (bytes > CLV_LOOK_MAX_MEMORY_BYTES) return fail_too_large(bytes, err);
  const clv_node *out = &p->graph->nodes[p->graph->output_node];
  CLV_TRY(clv_shape_bytes(&out->shape, out->dtype, &bytes, err));
  return clv_alloc_aligned(CLV_MAX(bytes, (size_t)1), &p->output, err);
}

clv_code clv_look_part_forward(clv_look_part *p, const void *const *in, const clv_rng_key *key,
                               clv_err *err) {
  clv_plan_call_put(p->plan, clv_steal(&p->call));
  CLV_TRY(clv_plan_call_get(p->plan, &p->call, err));
  return clv_plan_forward(p->plan, p->call, p->weights_block, 1, in, true, p->output, key, err);
}

clv_code clv_look_part_backward(clv_look_part *p, const void *dout, void *din, clv_err *err) {
  CLV_AUTO(clv_freep) void *gradients = NULL;
  void *const input_grads[CLV_MAX_INPUTS] = {din};
  CLV_TRY(clv_alloc_aligned(CLV_MAX(p->params->gradient_bytes, (size_t)1), &gradients, err));
  CLV_TRY(clv_plan_backward_input(p->plan, p->call, p->weights_block, dout, input_grads, gradients,
                                  false, err));
  return clv_plan_backward_weight(p->plan, p->call, p->weights_block, gradients, false, err);
}
