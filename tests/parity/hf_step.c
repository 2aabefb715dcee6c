/* SPDX-License-Identifier: Apache-2.0
 *
 * Runs training steps of a model of Hugging Face on the CPU backend, each from a file of its own:
 *
 *   hf_step FOLDER HEAD LABELS IN.safetensors OUT.safetensors [IN OUT]...
 *
 * FOLDER has its config.json. IN holds the parameters by their names, "input.ids" (or
 * "input.pixels"), "input.boxes" and "input.lengths" where there are such, and "dy", the gradient
 * of the output. OUT gets "y" and the gradients as "grad.NAME". Where IN has "step", the number of
 * steps taken, and moments "exp_avg.NAME" and "exp_avg_sq.NAME", OUT also gets the parameters
 * after one step of AdamW as "after.NAME".
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/model/hf/hf.h"
#include "common/model/optim/optim.h"
#include "common/model/weights/weights.h"

enum { MAX_TENSORS = 4096 };
static const double RATE = 1e-3, DECAY = 0.01;

typedef struct model {
  clv_graph *graph;
  clv_params *params;
  clv_plan *plan;
  clv_call *call;
  clv_optim *optimizer;
  void *in[CLV_MAX_INPUTS];
  int n_in;
  char *parameter_block, *gradient_block, *y, *dy;
} model;

typedef struct output {
  clv_weights_tensor tensors[MAX_TENSORS];
  char names[MAX_TENSORS][128];
  size_t n;
} output;

static clv_code add_tensor(output *o, const char *prefix, const clv_param *p, const char *from,
                           clv_err *err) {
  if (o->n == MAX_TENSORS) return clv_fail(err, CLV_EXHAUSTED, "more than %d tensors", MAX_TENSORS);
  snprintf(o->names[o->n], sizeof o->names[0], "%s%s", prefix, p->name);
  o->tensors[o->n] = (clv_weights_tensor){o->names[o->n], p->dtype, p->shape, from + p->offset};
  o->n++;
  return CLV_OK;
}

/* ---- reading the model ----------------------------------------------------------------------- */

/* Adds an input with this name and its shape in the file. Sets *ret to its node; -1: the file has
 * no such input. */
static clv_code add_named_input(model *m, const clv_weights_file *f, const char *name, int *ret,
                                clv_err *err) {
  char full[32];
  size_t bytes;
  snprintf(full, sizeof full, "input.%s", name);
  const clv_weights_entry *e = clv_weights_find_entry(f, full);
  *ret = -1;
  if (!e) return CLV_OK;
  CLV_TRY(clv_shape_bytes(&e->shape, e->dtype, &bytes, err));
  CLV_TRY(clv_alloc(bytes, 1, &m->in[m->n_in++], err));
  return clv_graph_add_input(m->graph, name, e->dtype, &e->shape, ret, err);
}

static clv_code add_layers(model *m, char *const *argv, const clv_weights_file *f, clv_err *err) {
  clv_hf_config c;
  clv_hf_inputs in;
  uint32_t layer = 0;
  int head = 0;
  while (head < CLV_HF_HEADS && strcmp(argv[2], clv_hf_head_name((clv_hf_head)head))) head++;
  if (head == CLV_HF_HEADS) return clv_fail(err, CLV_INVALID, "no head '%s'", argv[2]);
  CLV_TRY(clv_hf_config_read(argv[1], NULL, &c, err));
  CLV_TRY(clv_graph_new(&m->graph, err));
  CLV_TRY(add_named_input(m, f, clv_hf_takes_tokens(&c) ? "ids" : "pixels", &in.records, err));
  CLV_TRY(add_named_input(m, f, "boxes", &in.boxes, err));
  CLV_TRY(add_named_input(m, f, "lengths", &in.lengths, err));
  CLV_TRY(clv_hf_add_layers(&c, (clv_hf_head)head, atoll(argv[3]), &in, m->graph, &layer,
                            &m->graph->output_node, err));
  return clv_params_make(m->graph, &m->params, err);
}

static clv_code open_optimizer(model *m, clv_err *err) {
  CLV_AUTO(clv_freep) clv_optim_span *spans = NULL;
  clv_optim_config c = clv_optimizer_row_of(CLV_OPTIM_ADAMW)->defaults;
  c.kind = CLV_OPTIM_ADAMW;
  c.weight_decay = DECAY;
  CLV_TRY(clv_alloc((size_t)m->params->n, sizeof *spans, &spans, err));
  for (int i = 0; i < m->params->n; i++)
    spans[i] = (clv_optim_span){m->params->list[i].offset, m->params->list[i].n, 0};
  return clv_optim_new(&c, 1, m->params->trainable_bytes, spans, (size_t)m->params->n,
                       clv_backend_cpu(), &m->optimizer, err);
}

static clv_code open_model(char *const *argv, model *m, clv_err *err) {
  CLV_AUTO(clv_weights_closep) clv_weights_file *f = NULL;
  size_t n_y;
  CLV_TRY(clv_weights_open(argv[4], 0, &f, err));
  CLV_TRY(add_layers(m, argv, f, err));
  clv_plan_options o = {.backend = clv_backend_cpu(),
                        .dtype = CLV_F32,
                        .training = true,
                        .threads = 1,
                        .batch = m->graph->nodes[0].shape.dim[0]};
  CLV_TRY(clv_plan_new(m->graph, m->params, &o, &m->plan, err));
  CLV_TRY(clv_plan_call_get(m->plan, &m->call, err));
  CLV_TRY(clv_shape_bytes(&m->graph->nodes[m->graph->output_node].shape, CLV_F32, &n_y, err));
  CLV_TRY(clv_alloc(n_y, 1, &m->y, err));
  CLV_TRY(clv_alloc(n_y, 1, &m->dy, err));
  CLV_TRY(clv_alloc(m->params->total_bytes, 1, &m->parameter_block, err));
  CLV_TRY(clv_alloc(m->params->gradient_bytes, 1, &m->gradient_block, err));
  return open_optimizer(m, err);
}

/* ---- a training step ------------------------------------------------------------------------- */

/* Copies a tensor from the file, which must have it with this type and shape. */
static clv_code copy_tensor(const clv_weights_file *f, const char *prefix, const char *name,
                            clv_dtype dtype, const clv_shape *shape, void *to, clv_err *err) {
  char full[160];
  snprintf(full, sizeof full, "%s%s", prefix, name);
  clv_weights_want want = {full, dtype, *shape, false};
  const clv_weights_entry *found;
  CLV_TRY(clv_weights_match_tensors(f, &want, 1, CLV_WEIGHTS_ALLOW_UNEXPECTED, &found, err));
  memcpy(to, found->data, found->bytes);
  return CLV_OK;
}

static clv_code copy_all_tensors(const clv_weights_file *f, const char *prefix, const model *m,
                                 char *to, clv_err *err) {
  for (int i = 0; i < m->params->n; i++) {
    const clv_param *p = &m->params->list[i];
    CLV_TRY(copy_tensor(f, prefix, p->name, p->dtype, &p->shape, to + p->offset, err));
  }
  return CLV_OK;
}

static clv_code add_all_tensors(output *to, const char *prefix, const model *m, const char *from,
                                clv_err *err) {
  for (int i = 0; i < m->params->n; i++)
    CLV_TRY(add_tensor(to, prefix, &m->params->list[i], from, err));
  return CLV_OK;
}

/* Adds the gradient of each tied parameter to that of the parameter with which it shares values. */
static void add_tied_gradients(model *m) {
  for (int i = 0; i < m->params->n_ties; i++) {
    const clv_tie *t = &m->params->ties[i];
    clv_backend_cpu()->add(clv_backend_cpu(), CLV_F32,
                           m->gradient_block + m->params->list[t->owner_index].gradient_offset,
                           m->gradient_block + t->param.gradient_offset, t->param.n);
  }
}

static clv_code run_forward_and_backward(model *m, uint64_t version, clv_err *err) {
  clv_rng_key key = {0};
  void *din[CLV_MAX_INPUTS] = {NULL};
  CLV_TRY(clv_plan_forward(m->plan, m->call, m->parameter_block, version,
                           (const void *const *)m->in, true, m->y, &key, err));
  CLV_TRY(clv_plan_backward_input(m->plan, m->call, m->parameter_block, m->dy, din,
                                  m->gradient_block, false, err));
  CLV_TRY(clv_plan_backward_weight(m->plan, m->call, m->parameter_block, m->gradient_block, false,
                                   err));
  add_tied_gradients(m);
  clv_plan_call_put(m->plan, m->call);
  return clv_plan_call_get(m->plan, &m->call, err);
}

/* Runs a step of the optimiser over all parameters. First copies the optimiser's step count and
 * moments from the file. */
static clv_code run_optimizer_step(model *m, const clv_weights_file *f, clv_err *err) {
  clv_shape one = CLV_SHAPE(1);
  CLV_TRY(copy_tensor(f, "", "step", CLV_I64, &one, clv_optim_step_count(m->optimizer), err));
  for (int i = 0; i < clv_optim_n_moments(m->optimizer); i++) {
    char prefix[32];
    snprintf(prefix, sizeof prefix, "%s.", clv_optim_moment_name(m->optimizer, i));
    CLV_TRY(copy_all_tensors(f, prefix, m, (char *)clv_optim_moment(m->optimizer, i), err));
  }
  clv_optim_step(m->optimizer, (float *)m->parameter_block, (const float *)m->gradient_block, &RATE,
                 1);
  return CLV_OK;
}

static clv_code run_one_step(model *m, const char *given, const char *wanted, uint64_t version,
                             clv_err *err) {
  static output out;
  CLV_AUTO(clv_weights_closep) clv_weights_file *f = NULL;
  const clv_shape *shape = &m->graph->nodes[m->graph->output_node].shape;
  out.n = 0;
  CLV_TRY(clv_weights_open(given, 0, &f, err));
  for (int i = 0; i < m->n_in; i++)
    CLV_TRY(copy_tensor(f, "input.", m->graph->nodes[i].name, m->graph->nodes[i].dtype,
                        &m->graph->nodes[i].shape, m->in[i], err));
  CLV_TRY(copy_tensor(f, "", "dy", CLV_F32, shape, m->dy, err));
  CLV_TRY(copy_all_tensors(f, "", m, m->parameter_block, err));
  CLV_TRY(run_forward_and_backward(m, version, err));
  out.tensors[out.n++] = (clv_weights_tensor){"y", CLV_F32, *shape, m->y};
  CLV_TRY(add_all_tensors(&out, "grad.", m, m->gradient_block, err));
  if (clv_weights_find_entry(f, "step")) {
    CLV_TRY(run_optimizer_step(m, f, err));
    CLV_TRY(add_all_tensors(&out, "after.", m, m->parameter_block, err));
  }
  return clv_weights_write_file(wanted, out.tensors, out.n, NULL, 0, NULL, NULL, err);
}

static clv_code run_all_steps(int argc, char **argv, clv_err *err) {
  static model m; /* the model is not freed before the program ends */
  if (argc < 6 || argc % 2)
    return clv_fail(err, CLV_INVALID, "hf_step FOLDER HEAD LABELS IN OUT [IN OUT]...");
  CLV_TRY(open_model(argv, &m, err));
  for (int i = 4; i + 1 < argc; i += 2)
    CLV_TRY(run_one_step(&m, argv[i], argv[i + 1], (uint64_t)i, err));
  return CLV_OK;
}

int main(int argc, char **argv) {
  clv_err err = {0};
  clv_backend_cpu()->set_threads(1);
  if (run_all_steps(argc, argv, &err) == CLV_OK) return 0;
  fprintf(stderr, "hf_step: %s\n", err.text);
  return 1;
}
