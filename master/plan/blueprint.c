/* SPDX-License-Identifier: Apache-2.0
 *
 * Makes the blueprint of a session: cuts the model into stages, marks frozen parameters, and makes
 * the egress table. clv_blueprint_new_of_inputs is the main function; the commands call it by
 * clv_blueprint_new_of_data.
 */
#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/model/models/models.h"
#include "master/plan/plan_int.h"

enum { MAX_EVAL_MICRO_BATCHES = CLV_EVAL_WINDOW };

static const char *get_loss_op_name(const clv_session_config *c) {
  return clv_loss_name(c->loss.kind);
}

static clv_model_inputs make_batch_inputs(const clv_model_inputs *record_inputs, int64_t n) {
  clv_model_inputs ret = *record_inputs;
  for (size_t i = 0; i < ret.n; i++)
    if (ret.inputs[i].shape.rank > 0) ret.inputs[i].shape.dim[0] = n;
  return ret;
}

void clv_blueprint_free(clv_blueprint *b) {
  if (!b) return;
  for (uint32_t i = 0; b->stages && i <= b->n_stages; i++) {
    clv_graph_free(b->stages[i].graph);
    clv_params_free(b->stages[i].params);
  }
  free(b->stages);
  free(b->egress);
  free(b->is_worker_used);
  for (int k = 0; b->known_reasons && k < b->full_graph->n_nodes; k++) free(b->known_reasons[k]);
  free(b->known_reasons);
  clv_moved_layers_done(&b->moved_layers);
  clv_graph_free(b->full_graph);
  free(b);
}

void clv_blueprint_freep(clv_blueprint **b) {
  clv_blueprint_free(*b);
  *b = NULL;
}

/* ---- making the stages of a blueprint -------------------------------------------------------- */

static clv_code mark_frozen_params(const clv_session_config *c, const clv_stage_spec *spec,
                                   clv_stage_plan *s, bool *is_glob_used) {
  for (int i = 0; i < s->params->n; i++) {
    clv_param *p = &s->params->list[i];
    if (!p->trainable) continue;
    p->frozen = spec->freeze || clv_is_param_frozen_by_lora(&spec->lora, p->name);
    for (size_t g = 0; g < c->train.freeze.n; g++) {
      if (fnmatch(c->train.freeze.items[g], p->name, 0) != 0) continue;
      p->frozen = true;
      is_glob_used[g] = true;
    }
    s->n_learning_params += !p->frozen;
  }
  return CLV_OK;
}

static clv_code check_globs_used(const clv_session_config *c, const bool *is_glob_used,
                                 clv_err *err) {
  for (size_t g = 0; g < c->train.freeze.n; g++)
    if (!is_glob_used[g])
      return clv_session_fail_at(c, c->train.freeze_pos, err,
                                 "train.freeze: '%s' matches no parameter (`cleave-master plan` "
                                 "lists their names)",
                                 c->train.freeze.items[g]);
  return CLV_OK;
}

/* True if stages i and i + 1 are at different workers. */
static bool is_cut_between_workers(const clv_blueprint *b, uint32_t i) {
  int from = b->stages[i].worker, to = b->stages[i + 1].worker;
  return from >= 0 && to >= 0 && from != to;
}

/* True if a stage at one of the two workers sends its output directly to a stage at the other. The
 * workers then have a link, and all tensors between them use this link. */
static bool are_at_linked_workers(const clv_blueprint *b, int worker_a, int worker_b) {
  for (uint32_t i = 0; i + 1 < b->n_stages; i++) {
    int from = b->stages[i].worker, to = b->stages[i + 1].worker;
    bool is_this_pair =
        (from == worker_a && to == worker_b) || (from == worker_b && to == worker_a);
    if (is_this_pair && b->config->stages[i].transfer == CLV_TRANSFER_DIRECT) return true;
  }
  return false;
}

/* Lists the inputs of the stage's graph that are inputs of the model. is_behind_cut: another stage
 * precedes this one, so the first input of the graph is the value that crosses the cut, and is
 * skipped. */
static void find_model_inputs(const clv_blueprint *b, bool is_behind_cut, clv_stage_plan *s) {
  for (int i = is_behind_cut; i < s->graph->n_nodes && s->graph->nodes[i].op == CLV_OP_INPUT; i++)
    for (uint32_t k = 0; k < b->inputs.n; k++)
      if (strcmp(s->graph->nodes[i].name, b->inputs.inputs[k].name) == 0)
        s->model_inputs[s->n_model_inputs++] = k;
}

/* Makes the graph of the full model for packed sequences. The caller cuts it into stages. */
static clv_code make_packed_graph(clv_blueprint *b, clv_graph **ret, clv_err *err) {
  const clv_session_config *c = b->config;
  clv_err reason;
  if (clv_graph_pack_sequences(b->full_graph, ret, &reason) != CLV_OK)
    return clv_session_fail_at(c, c->data.packed_pos, err,
                               "data.packed: %s (text and documents have an input lengths, which "
                               "data.inputs names, and a model by hf reads it)",
                               reason.text);
  for (int k = 0; k < (int)b->inputs.n; k++)
    if (clv_graph_length_limit(b->full_graph, k)) b->lengths_input = k;
  b->max_positions = clv_graph_length_limit(b->full_graph, b->lengths_input);
  return CLV_OK;
}

static clv_code make_stages(clv_blueprint *b, clv_err *err) {
  const clv_session_config *c = b->config;
  uint32_t first_layers[CLV_MAX_STAGES], last_layers[CLV_MAX_STAGES];
  const clv_model_inputs inputs = make_batch_inputs(&b->inputs, b->micro_size);
  CLV_AUTO(clv_graph_freep) clv_graph *packed = NULL;
  CLV_TRY(
      clv_model_make_graph_of_inputs(c, &inputs, &b->full_graph, first_layers, last_layers, err));
  CLV_TRY(clv_adapters_add_to_graph(b, first_layers, last_layers, err));
  if (c->data.packed) CLV_TRY(make_packed_graph(b, &packed, err));
  CLV_TRY(clv_inputs_check(b, err));
  CLV_AUTO(clv_freep) bool *is_glob_used = NULL;
  CLV_TRY(clv_alloc(c->train.freeze.n, sizeof *is_glob_used, &is_glob_used, err));
  bool has_learning_stage = false;
  for (uint32_t i = 0; i < b->n_stages; i++) {
    clv_stage_plan *s = &b->stages[i];
    const clv_stage_spec *spec = &c->stages[i];
    CLV_TRY(clv_graph_slice(packed ? packed : b->full_graph, first_layers[i], last_layers[i],
                            &s->graph, err));
    find_model_inputs(b, i > 0, s);
    CLV_TRY(clv_params_make(s->graph, &s->params, err));
    CLV_TRY(clv_adapters_check(b, i, err));
    CLV_TRY(clv_stage_check_new_params(b, i, err));
    CLV_TRY(mark_frozen_params(c, spec, s, is_glob_used));
    if (spec->lora.base_type == CLV_COMPUTE_BF16)
      clv_params_convert_frozen_to_bf16(s->graph, s->params);
    clv_params_fix_frozen(s->params);
    s->first_layer = first_layers[i];
    s->last_layer = last_layers[i];
    s->planned_worker = spec->worker;
    s->worker = clv_session_worker_in_use(c, spec->worker);
    s->input_needs_grad = has_learning_stage;
    s->has_backward = has_learning_stage || s->n_learning_params;
    has_learning_stage |= s->n_learning_params > 0;
  }
  CLV_TRY(clv_ties_apply(b, err));
  for (uint32_t i = 0; i + 1 < b->n_stages; i++)
    b->stages[i].sends_directly =
        is_cut_between_workers(b, i) &&
        are_at_linked_workers(b, b->stages[i].worker, b->stages[i + 1].worker);
  if (!has_learning_stage)
    return clv_session_fail_at(c, c->train.freeze_pos, err,
                               "nothing learns: every parameter is frozen");
  CLV_TRY(clv_release_check(b, err));
  return check_globs_used(c, is_glob_used, err);
}

static clv_code make_loss(clv_blueprint *b, clv_dtype label_dtype, clv_err *err) {
  const clv_session_config *c = b->config;
  clv_stage_plan *s = &b->stages[b->n_stages];
  const clv_graph *last = b->stages[b->n_stages - 1].graph;
  const clv_node *out = &last->nodes[last->output_node];
  clv_err reason;
  if (out->max_positions && c->loss.kind != CLV_LOSS_CROSS_ENTROPY)
    return clv_session_fail_at(c, c->data.packed_pos, err,
                               "data.packed: loss %s counts the places of pads; cross_entropy "
                               "ignores them",
                               get_loss_op_name(c));
  if (clv_session_make_loss_graph(c, &out->shape, b->micro_size * CLV_MAX(out->max_positions, 1),
                                  &s->graph, &reason) != CLV_OK)
    return clv_session_fail_at(c, c->loss.pos, err, "loss %s: %s", get_loss_op_name(c),
                               reason.text);
  s->graph->nodes[0].max_positions = s->graph->nodes[1].max_positions = out->max_positions;
  /* with several targets the data have f32 labels; the trainer converts labels that are classes to
   * i64 */
  clv_dtype loss_dtype = c->loss.n_targets ? CLV_F32 : s->graph->nodes[1].dtype;
  if (loss_dtype != label_dtype)
    return clv_session_fail_at(c, c->loss.pos, err, "loss %s needs %s labels, the data have %s",
                               get_loss_op_name(c), clv_dtype_name(loss_dtype),
                               clv_dtype_name(label_dtype));
  CLV_TRY(clv_params_make(s->graph, &s->params, err));
  s->planned_worker = c->loss.worker;
  s->worker = clv_session_worker_in_use(c, c->loss.worker);
  s->input_needs_grad = s->has_backward = true;
  return CLV_OK;
}

/* ---- making the egress table ----------------------------------------------------------------- */

/* Returns the findings of a row of the egress table: the ways in which a worker can read records or
 * labels from its tensor. Labels that are sent to the loss have the finding LABELS; predictions
 * that are sent to the loss have the findings of an activation. */
static clv_findings get_row_findings(const clv_blueprint *b, clv_egress_kind kind, uint32_t stage,
                                     uint32_t input) {
  if (kind == CLV_EGRESS_LABELS) return CLV_FINDING_LABELS;
  if (kind == CLV_EGRESS_INPUT) return clv_privacy_input_findings(b, stage, input);
  if (kind == CLV_EGRESS_ACTIVATION || (kind == CLV_EGRESS_CACHED && !input))
    return b->stages[stage].output_findings;
  return kind == CLV_EGRESS_GRADIENT ? b->stages[stage].gradient_findings : CLV_FINDING_MIXED;
}

/* Returns the number of hiding layers (layers that mix by secret weights) between the records or
 * labels and the tensor of a row; 0 for records and labels themselves. */
static uint32_t count_hiding_layers_before(const clv_blueprint *b, const clv_egress_row *r) {
  if (r->kind == CLV_EGRESS_INPUT || r->kind == CLV_EGRESS_LABELS)
    return r->findings ? 0 : CLV_POLICY_NO_PATH;
  if (r->kind == CLV_EGRESS_GRADIENT) return b->stages[r->stage].n_head_layers;
  bool is_value_row =
      r->kind == CLV_EGRESS_ACTIVATION || (r->kind == CLV_EGRESS_CACHED && !r->input);
  return is_value_row ? b->stages[r->stage].n_front_layers : CLV_POLICY_NO_PATH;
}

static void add_row(clv_blueprint *b, clv_egress_kind kind, uint32_t stage, uint32_t input,
                    int worker, const clv_node *value, bool is_relayed, const char *fmt, ...)
    CLV_PRINTF(8, 9);

static void add_row(clv_blueprint *b, clv_egress_kind kind, uint32_t stage, uint32_t input,
                    int worker, const clv_node *value, bool is_relayed, const char *fmt, ...) {
  clv_egress_row *r = &b->egress[b->n_egress++];
  *r = (clv_egress_row){.kind = kind,
                        .stage = stage,
                        .input = input,
                        .worker = worker,
                        .is_relayed = is_relayed,
                        .findings = get_row_findings(b, kind, stage, input),
                        .dtype = CLV_F32};
  r->n_hiding_layers = count_hiding_layers_before(b, r);
  va_list ap;
  va_start(ap, fmt);
  vsnprintf(r->name, sizeof r->name, fmt, ap);
  va_end(ap);
  if (!value) return;
  size_t bytes = 0;
  r->dtype = value->dtype;
  r->shape = value->shape;
  r->max_positions = value->max_positions;
  clv_shape step_shape = value->shape;
  if (step_shape.rank)
    step_shape.dim[0] = (int64_t)b->config->train.batch * CLV_MAX(r->max_positions, 1);
  if (clv_shape_bytes(&step_shape, r->dtype, &bytes, NULL) == CLV_OK) r->bytes_per_step = bytes;
}

static const clv_node *get_output_node(const clv_stage_plan *s) {
  return &s->graph->nodes[s->graph->output_node];
}

/* True if the master's process passes the output of stage i to the next stage, and passes the
 * gradient of the output back. */
static bool is_sent_via_master(const clv_blueprint *b, uint32_t i) {
  int from = b->stages[i].planned_worker, to = b->stages[i + 1].planned_worker;
  return from < 0 || to < 0 || (from != to && !b->stages[i].sends_directly);
}

/* Appends "layer 3", or "3 values" if several values cross the cut behind stage i. */
static void format_crossing(const clv_blueprint *b, uint32_t i, char *buf, size_t size) {
  uint32_t n = clv_blueprint_list_cut_values(b, i, NULL);
  if (n > 1)
    snprintf(buf, size, "%u values", n);
  else
    snprintf(buf, size, "layer %u", b->stages[i].last_layer);
}

/* Adds the rows of a cached stage: its outputs with their record numbers, sent once, and the record
 * numbers alone, sent in later epochs. */
static void add_cache_rows(clv_blueprint *b) {
  const char *name = b->config->stages[0].name;
  const clv_node record_numbers = {.dtype = CLV_I64, .shape = CLV_SHAPE(b->micro_size)};
  add_row(b, CLV_EGRESS_CACHED, 0, 0, b->stages[1].planned_worker, get_output_node(&b->stages[0]),
          false, "CACHED activation of stage '%.40s', once", name);
  add_row(b, CLV_EGRESS_CACHED, 0, 1, b->stages[1].planned_worker, &record_numbers, false,
          "CACHED: numbers of its records");
}

static void add_hop_rows(clv_blueprint *b, uint32_t i) {
  const clv_stage_plan *from = &b->stages[i], *to = &b->stages[i + 1];
  const char *name = b->config->stages[i].name;
  size_t first = b->n_egress;
  char crossing_text[24];
  if (!is_sent_via_master(b, i)) return;
  if (b->has_cache && i == 0) add_cache_rows(b);
  format_crossing(b, i, crossing_text, sizeof crossing_text);
  if (to->planned_worker >= 0)
    add_row(b, CLV_EGRESS_ACTIVATION, i, 0, to->planned_worker, get_output_node(from),
            from->planned_worker >= 0,
            b->has_cache && i == 0 ? "activation of stage '%.40s' (test, eval)%.0s"
                                   : "activation of stage '%.40s' (%s)",
            name, crossing_text);
  if (from->planned_worker >= 0 && to->input_needs_grad)
    add_row(b, CLV_EGRESS_GRADIENT, i, 0, from->planned_worker, get_output_node(from),
            to->planned_worker >= 0, "gradient for stage '%.40s' (%s)", name, crossing_text);
  while (first < b->n_egress)
    b->egress[first++].n_values = clv_blueprint_list_cut_values(b, i, NULL);
}

/* Adds a row for each model input that the master sends to the stage. */
static void add_input_rows(clv_blueprint *b, uint32_t i) {
  const clv_stage_plan *s = &b->stages[i];
  bool has_named_inputs = b->inputs.n > 1 || strcmp(b->inputs.inputs[0].name, "input") != 0;
  if (s->planned_worker < 0) return;
  for (uint32_t k = 0; k < s->n_model_inputs; k++) {
    uint32_t input = k + (i > 0);
    const clv_node *n = &s->graph->nodes[input];
    bool is_lengths = clv_privacy_input_findings(b, i, input) == CLV_FINDING_MIXED;
    add_row(b, CLV_EGRESS_INPUT, i, input, s->planned_worker, n, false,
            has_named_inputs ? "%s '%.40s'%s%.40s" : "%s%.0s%s%.40s",
            is_lengths ? "LENGTHS" : "RAW INPUT", n->name, i ? ", for stage " : "",
            i ? b->config->stages[i].name : "");
  }
}

/* True if a new run sends weights to the stage before its first step. */
static bool is_sent_initial_weights(const clv_blueprint *b, uint32_t i) {
  return clv_stage_has_master_weights(&b->config->stages[i]) || b->stages[i].adapter_folder;
}

size_t clv_blueprint_moment_count(const clv_blueprint *b) {
  clv_optim_config o = {.kind = b->config->train.optimizer.kind, .ema = b->config->train.ema};
  CLV_OPTIM_COPY(&o, &b->config->train.optimizer);
  return (size_t)clv_optim_count_moments(clv_optim_moment_mask(&o));
}

/* Returns the bytes of the optimiser's state of stage i as cleave_state_list_of lists it: the
 * moments of the learning parameters, and the number of steps. */
static uint64_t count_optimizer_bytes(const clv_blueprint *b, uint32_t i) {
  const clv_params *params = b->stages[i].params;
  size_t n_moments = clv_blueprint_moment_count(b);
  uint64_t bytes = 0;
  for (int k = 0; k < params->n; k++)
    if (params->list[k].trainable && !params->list[k].is_fixed) bytes += params->list[k].bytes;
  return n_moments && b->stages[i].n_learning_params ? n_moments * bytes + sizeof(int64_t) : 0;
}

static void add_state_rows(clv_blueprint *b, uint32_t i) {
  const char *name = b->config->stages[i].name;
  int worker = b->stages[i].planned_worker;
  uint64_t bytes = count_optimizer_bytes(b, i);
  if (worker < 0) return;
  add_row(b, CLV_EGRESS_WEIGHTS, i, 0, worker, NULL, false,
          is_sent_initial_weights(b, i) ? "weights of stage '%.40s' (start, resume, eval, predict)"
                                        : "weights of stage '%.40s' (resume, eval, predict)",
          name);
  b->egress[b->n_egress - 1].bytes_per_step = b->stages[i].params->total_bytes;
  if (!bytes) return;
  add_row(b, CLV_EGRESS_STATE, i, 0, worker, NULL, false, "optimiser of stage '%.40s' (resume)",
          name);
  b->egress[b->n_egress - 1].bytes_per_step = bytes;
}

/* Adds a copy of each row for each spare of the row's worker. A spare takes the place of a lost
 * worker and then gets the same tensors. */
static void add_spare_rows(clv_blueprint *b) {
  const clv_session_config *c = b->config;
  size_t n = b->n_egress;
  for (size_t k = 0; k < n; k++) {
    const clv_remote_spec *w = &c->workers[b->egress[k].worker];
    for (size_t i = 0; i < w->spares.n; i++) {
      clv_egress_row *r = &b->egress[b->n_egress++];
      *r = b->egress[k];
      r->is_for_spare = true;
      for (size_t j = 0; j < c->n_workers; j++)
        if (strcmp(c->workers[j].name, w->spares.items[i]) == 0) r->worker = (int)j;
    }
  }
}

static size_t count_max_spares(const clv_session_config *c) {
  size_t n_max_spares = 0;
  for (size_t i = 0; i < c->n_workers; i++)
    n_max_spares = CLV_MAX(n_max_spares, c->workers[i].spares.n);
  return n_max_spares;
}

bool clv_blueprint_is_row_in_use(const clv_blueprint *b, const clv_egress_row *r) {
  bool is_output_row = r->kind == CLV_EGRESS_ACTIVATION || r->kind == CLV_EGRESS_CACHED;
  return b->stages[r->stage + is_output_row].worker == r->worker;
}

clv_code clv_blueprint_make_egress_table(clv_blueprint *b, clv_err *err) {
  const clv_stage_plan *loss_stage = &b->stages[b->n_stages];
  size_t n_rows = 4 * (size_t)b->n_stages + 8;
  free(b->egress);
  b->n_egress = 0;
  for (uint32_t i = 0; i < b->n_stages; i++) n_rows += b->stages[i].n_model_inputs;
  CLV_TRY(
      clv_alloc(n_rows * (1 + count_max_spares(b->config)), sizeof *b->egress, &b->egress, err));
  for (uint32_t i = 0; i < b->n_stages; i++) add_input_rows(b, i);
  for (uint32_t i = 0; i < b->n_stages; i++) add_hop_rows(b, i);
  if (loss_stage->planned_worker >= 0)
    add_row(b, CLV_EGRESS_LABELS, b->n_stages, 1, loss_stage->planned_worker,
            &loss_stage->graph->nodes[1], false, "LABELS");
  for (uint32_t i = 0; i < b->n_stages; i++) add_state_rows(b, i);
  add_spare_rows(b);
  return CLV_OK;
}

/* ---- making the blueprint -------------------------------------------------------------------- */

static void set_batch_sizes(clv_blueprint *b) {
  const clv_train_config *t = &b->config->train;
  uint64_t m = CLV_MIN(b->config->pipeline.micro_batches, t->batch);
  if (m == CLV_MICRO_AUTO) m = 1; /* until a run chooses the number of micro-batches */
  b->micro_batches = (uint32_t)m;
  b->micro_size = (int64_t)((t->batch + m - 1) / m);
  b->eval_size = (int64_t)t->eval_batch;
  b->max_micro_batches = CLV_MAX(b->micro_batches, (uint32_t)MAX_EVAL_MICRO_BATCHES);
}

static bool is_on_master_cpu(const clv_stage_spec *s) {
  return s->worker < 0 && (strcmp(s->device, "auto") == 0 || strncmp(s->device, "cpu", 3) == 0);
}

/* Checks that this process can compute in the number type of the session (train.dtype). A worker
 * checks the type itself when it loads its stage. */
static clv_code check_dtype(const clv_session_config *c, clv_err *err) {
  bool has_master_cpu_stage = false;
  clv_err reason;
  for (size_t i = 0; i < c->n_stages; i++) has_master_cpu_stage |= is_on_master_cpu(&c->stages[i]);
  if (c->train.dtype != CLV_COMPUTE_BF16 || !has_master_cpu_stage) return CLV_OK;
  if (clv_backend_cpu()->check_bf16(clv_backend_cpu(), &reason) == CLV_OK) return CLV_OK;
  return clv_session_fail_at(c, c->train.dtype_pos, err, "master: %s", reason.text);
}

/* Refuses tf32 for a stage on a CPU if the CPU backend cannot compute tf32. */
static clv_code check_tf32(const clv_session_config *c, clv_err *err) {
  clv_err reason;
  for (size_t i = 0; i < c->n_stages; i++) {
    const clv_stage_spec *s = &c->stages[i];
    if (!s->tf32 || !(is_on_master_cpu(s) || strncmp(s->device, "cpu", 3) == 0)) continue;
    if (clv_backend_check_tf32(clv_backend_cpu(), &reason) == CLV_OK) continue;
    return clv_session_fail_at(c, s->tf32_pos, err, "stage '%s': %s", s->name, reason.text);
  }
  return CLV_OK;
}

bool clv_blueprint_is_bf16(const clv_blueprint *b) {
  clv_err reason;
  return b->config->train.dtype == CLV_COMPUTE_BF16 &&
         clv_backend_cpu()->check_bf16(clv_backend_cpu(), &reason) == CLV_OK;
}

/* Marks the workers that may get a tensor: those of the stages, and their spares. */
static void mark_used_workers(clv_blueprint *b) {
  for (uint32_t i = 0; i <= b->n_stages; i++)
    if (b->stages[i].planned_worker >= 0) b->is_worker_used[b->stages[i].planned_worker] = true;
  for (size_t k = 0; k < b->n_egress; k++) b->is_worker_used[b->egress[k].worker] = true;
}

static clv_code fill_blueprint(clv_blueprint *b, clv_dtype label_dtype, clv_err *err) {
  const clv_session_config *c = b->config;
  CLV_TRY(clv_alloc(b->n_stages + 1, sizeof *b->stages, &b->stages, err));
  CLV_TRY(clv_alloc(c->n_workers, sizeof *b->is_worker_used, &b->is_worker_used, err));
  CLV_TRY(check_dtype(c, err));
  CLV_TRY(check_tf32(c, err));
  set_batch_sizes(b);
  CLV_TRY(make_stages(b, err));
  CLV_TRY(make_loss(b, label_dtype, err));
  clv_adapters_find_folders(b);
  CLV_TRY(clv_privacy_analyze(b, err));
  CLV_TRY(clv_privacy_check(b, err));
  CLV_TRY(clv_cache_check(b, err));
  b->has_cache = b->config->stages[0].cache;
  CLV_TRY(clv_blueprint_make_egress_table(b, err));
  mark_used_workers(b);
  return CLV_OK;
}

clv_code clv_blueprint_new_of_inputs(const clv_session_config *config,
                                     const clv_model_inputs *inputs, clv_dtype label_dtype,
                                     clv_blueprint **ret, clv_err *err) {
  if (config->n_stages == 0 || config->n_stages > CLV_MAX_STAGES)
    return clv_fail(err, CLV_INVALID, "%s: %zu stages, outside 1..%d: put more layers into each",
                    config->file, config->n_stages, CLV_MAX_STAGES);
  clv_blueprint *b;
  CLV_TRY(clv_alloc(1, sizeof *b, &b, err));
  b->config = config;
  b->inputs = *inputs;
  b->lengths_input = -1;
  b->n_stages = (uint32_t)config->n_stages;
  clv_code code = fill_blueprint(b, label_dtype, err);
  if (code != CLV_OK) {
    clv_blueprint_free(b);
    return code;
  }
  *ret = b;
  return CLV_OK;
}

clv_code clv_blueprint_new(const clv_session_config *config, const clv_shape *sample_shape,
                           clv_dtype label_dtype, clv_blueprint **ret, clv_err *err) {
  const clv_model_inputs inputs = clv_model_describe_input(config, sample_shape);
  return clv_blueprint_new_of_inputs(config, &inputs, label_dtype, ret, err);
}

clv_code clv_blueprint_new_of_data(const clv_session_config *config, const clv_dataset *data,
                                   clv_blueprint **ret, clv_err *err) {
  clv_model_inputs inputs = {.n = clv_dataset_input_count(data)};
  for (size_t k = 0; k < inputs.n; k++) {
    clv_data_input in = clv_dataset_input(data, k, 1);
    snprintf(inputs.inputs[k].name, sizeof inputs.inputs[k].name, "%s", in.name);
    inputs.inputs[k].dtype = in.dtype;
    inputs.inputs[k].shape = in.shape;
  }
  return clv_blueprint_new_of_inputs(config, &inputs, clv_dataset_y_dtype(data), ret, err);
}

/* ---- the egress table as text ---------------------------------------------------------------- */

uint32_t clv_blueprint_list_cut_values(const clv_blueprint *b, uint32_t stage,
                                       const clv_node *ret[CLV_MAX_NODES]) {
  int nodes[CLV_MAX_NODES];
  int n = clv_graph_find_crossing_nodes(b->full_graph, b->stages[stage].last_layer, nodes);
  for (int i = 0; ret && i < n; i++) ret[i] = &b->full_graph->nodes[nodes[i]];
  return (uint32_t)n;
}

/* Appends a line for each value that crosses a cut, if several values cross the cut together. */
static void append_crossing_values(const clv_blueprint *b, const clv_egress_row *r,
                                   clv_bytes *out) {
  const clv_node *values[CLV_MAX_NODES];
  char shape_text[160];
  if (r->n_values < 2) return;
  clv_blueprint_list_cut_values(b, r->stage, values);
  for (uint32_t k = 0; k < r->n_values; k++)
    clv_bytes_printf(out, "  of layer %u '%s' | %s\n", values[k]->layer, values[k]->name,
                     clv_shape_format(&values[k]->shape, shape_text, sizeof shape_text));
}

/* Appends the name of a row in the words of release 0.1. A resumed run compares the table with that
 * of an older release, so the words must not change. */
static void append_row_name(const clv_blueprint *b, const clv_egress_row *r, clv_bytes *out) {
  if (r->kind != CLV_EGRESS_WEIGHTS)
    clv_bytes_puts(out, r->name);
  else
    clv_bytes_printf(
        out, "state of stage '%.40s' (%s)", b->config->stages[r->stage].name,
        is_sent_initial_weights(b, r->stage) ? "initial weights; resume" : "resume only");
}

void clv_blueprint_append_egress_text(const clv_blueprint *b, clv_bytes *out) {
  char shape_text[160], findings_buf[CLV_FINDINGS_TEXT_BYTES];
  for (size_t i = 0; i < b->n_egress; i++) {
    const clv_egress_row *r = &b->egress[i];
    if (r->kind == CLV_EGRESS_STATE)
      /* the optimiser's state has no line of its own, because the line of the stage's weights
       * covers it */
      continue;
    const clv_remote_spec *w = &b->config->workers[r->worker];
    const char *findings_text =
        r->kind == CLV_EGRESS_INPUT || r->kind == CLV_EGRESS_LABELS
            ? ""
            : clv_findings_format(r->findings & ~r->look_findings, findings_buf);
    append_row_name(b, r, out);
    clv_bytes_printf(out, " | %s | %s | %llu | %s %s%s%s%s%s\n",
                     r->kind == CLV_EGRESS_WEIGHTS
                         ? "parameters"
                         : clv_shape_format(&r->shape, shape_text, sizeof shape_text),
                     clv_dtype_name(r->dtype), (unsigned long long)r->bytes_per_step, w->name,
                     w->identity, r->is_for_spare ? " (spare)" : "",
                     r->is_relayed ? " (relayed)" : "", *findings_text ? " | " : "", findings_text);
    append_crossing_values(b, r, out);
  }
}
