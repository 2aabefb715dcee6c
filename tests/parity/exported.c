/* SPDX-License-Identifier: Apache-2.0
 *
 * Runs one training forward and backward of an exported model, in f32 by the CPU backend or in f64
 * by the reference:
 *
 *   exported MODEL.yaml f32|f64 IN.safetensors OUT.safetensors INPUT...
 *
 * MODEL.yaml is the output of export_torch.py. IN holds the parameters, "input.NAME" for each
 * INPUT, and "dy", the gradient of the output; floats have the given type, integers are i64. The
 * program writes to OUT the output "y", the gradients as "grad.NAME" and the buffers after the
 * forward.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/model/models/models.h"
#include "common/model/weights/weights.h"

enum { MAX_TENSORS = 4096 };

typedef struct model {
  clv_graph *graph;
  clv_params *params;
  clv_plan *plan;
  clv_call *call;
  clv_dtype dtype;
  void *in[CLV_MAX_INPUTS];
  clv_model_inputs inputs;
  char *parameter_block, *gradient_block, *y, *dy;
} model;

typedef struct output {
  clv_weights_tensor tensors[MAX_TENSORS];
  char names[MAX_TENSORS][160];
  size_t n;
} output;

static clv_code add_tensor(output *o, const char *prefix, const clv_param *p, const char *data,
                           clv_err *err) {
  if (o->n == MAX_TENSORS) return clv_fail(err, CLV_EXHAUSTED, "more than %d tensors", MAX_TENSORS);
  snprintf(o->names[o->n], sizeof o->names[0], "%s%s", prefix, p->name);
  o->tensors[o->n] = (clv_weights_tensor){o->names[o->n], p->dtype, p->shape, data};
  o->n++;
  return CLV_OK;
}

/* Copies a tensor from the file, which must have it with this type and shape. */
static clv_code copy_tensor(const clv_weights_file *f, const char *name, clv_dtype dtype,
                            const clv_shape *shape, void *to, clv_err *err) {
  clv_weights_want want = {name, dtype, *shape, false};
  const clv_weights_entry *found;
  CLV_TRY(clv_weights_match_tensors(f, &want, 1, CLV_WEIGHTS_ALLOW_UNEXPECTED, &found, err));
  memcpy(to, found->data, found->bytes);
  return CLV_OK;
}

/* Describes each input by its type and shape in the file, and reads its values. */
static clv_code read_inputs(model *m, const clv_weights_file *f, char *const *names, int n,
                            clv_err *err) {
  for (int i = 0; i < n; i++) {
    char full[CLV_NAME_MAX + 8];
    size_t bytes;
    snprintf(full, sizeof full, "input.%s", names[i]);
    const clv_weights_entry *e = clv_weights_find_entry(f, full);
    if (!e || i == CLV_MAX_INPUTS) return clv_fail(err, CLV_NOT_FOUND, "no tensor %s", full);
    snprintf(m->inputs.inputs[i].name, CLV_NAME_MAX, "%s", names[i]);
    m->inputs.inputs[i].dtype = e->dtype == CLV_I64 ? CLV_I64 : CLV_F32;
    m->inputs.inputs[i].shape = e->shape;
    CLV_TRY(clv_shape_bytes(&e->shape, e->dtype, &bytes, err));
    CLV_TRY(clv_alloc(bytes, 1, &m->in[i], err));
    memcpy(m->in[i], e->data, bytes);
  }
  m->inputs.n = (size_t)n;
  return CLV_OK;
}

/* Reads the model file as a session of one stage, which has all layers. */
static clv_code make_graph(model *m, const char *path, clv_err *err) {
  CLV_AUTO(clv_session_config_freep) clv_session_config *c = NULL;
  CLV_AUTO(clv_bytes_done) clv_bytes yaml = {0}, text = {0};
  uint32_t first, last;
  CLV_TRY(clv_file_read(path, 64u << 20, &yaml, err));
  clv_bytes_printf(&text,
                   "version: 1\nname: parity\ndata: {format: npy, train: [x, y]}\n"
                   "loss: {kind: mse}\ntrain: {batch: 1, optimizer: {kind: sgd, lr: 1}}\n%.*s\n",
                   (int)yaml.len, (const char *)yaml.data);
  size_t n = 0;
  for (size_t i = 0; i + 5 < yaml.len; i++)
    n += memcmp((const char *)yaml.data + i, "{op: ", 5) == 0;
  clv_bytes_printf(&text, "stages:\n  - {name: all, at: master, layers: 0..%zu}\n", n - 1);
  if (text.failed) return clv_fail(err, CLV_EXHAUSTED, "out of memory");
  CLV_TRY(clv_session_config_parse("model", text.data, text.len, NULL, &c, err));
  return clv_model_make_graph_of_inputs(c, &m->inputs, &m->graph, &first, &last, err);
}

/* Makes all floats of a graph f64. */
static void widen_graph(clv_graph *g) {
  g->dtype = CLV_F64;
  for (int i = 0; i < g->n_nodes; i++)
    if (g->nodes[i].dtype == CLV_F32) g->nodes[i].dtype = CLV_F64;
}

static clv_code open_model(char *const *argv, int n, const clv_weights_file *f, model *m,
                           clv_err *err) {
  size_t n_y;
  m->dtype = strcmp(argv[2], "f64") ? CLV_F32 : CLV_F64;
  CLV_TRY(read_inputs(m, f, argv + 5, n, err));
  CLV_TRY(make_graph(m, argv[1], err));
  if (m->dtype == CLV_F64) widen_graph(m->graph);
  CLV_TRY(clv_params_make(m->graph, &m->params, err));
  clv_plan_options o = {.backend = clv_backend_cpu(),
                        .dtype = m->dtype,
                        .training = true,
                        .threads = 1,
                        .batch = m->graph->nodes[0].shape.dim[0]};
  CLV_TRY(clv_plan_new(m->graph, m->params, &o, &m->plan, err));
  CLV_TRY(clv_plan_call_get(m->plan, &m->call, err));
  CLV_TRY(clv_shape_bytes(clv_plan_output_shape(m->plan), m->dtype, &n_y, err));
  CLV_TRY(clv_alloc(n_y, 1, &m->y, err));
  CLV_TRY(clv_alloc(n_y, 1, &m->dy, err));
  CLV_TRY(clv_alloc(m->params->total_bytes + 1, 1, &m->parameter_block, err));
  return clv_alloc(m->params->gradient_bytes + 1, 1, &m->gradient_block, err);
}

/* Adds the gradient of each tied parameter to that of the parameter with which it shares values. */
static void add_tied_gradients(model *m) {
  for (int i = 0; i < m->params->n_ties; i++) {
    const clv_tie *t = &m->params->ties[i];
    char *to = m->gradient_block + m->params->list[t->owner_index].gradient_offset;
    const char *from = m->gradient_block + t->param.gradient_offset;
    for (size_t k = 0; k < t->param.n; k++)
      if (m->dtype == CLV_F64)
        ((double *)(void *)to)[k] += ((const double *)(const void *)from)[k];
      else
        ((float *)(void *)to)[k] += ((const float *)(const void *)from)[k];
  }
}

static clv_code run_model(model *m, const clv_weights_file *f, output *to, clv_err *err) {
  clv_rng_key key = {0};
  void *din[CLV_MAX_INPUTS] = {NULL};
  const clv_shape *out = clv_plan_output_shape(m->plan);
  CLV_TRY(copy_tensor(f, "dy", m->dtype, out, m->dy, err));
  for (int i = 0; i < m->params->n; i++) {
    const clv_param *p = &m->params->list[i];
    CLV_TRY(copy_tensor(f, p->name, p->dtype, &p->shape, m->parameter_block + p->offset, err));
  }
  CLV_TRY(clv_plan_forward(m->plan, m->call, m->parameter_block, 1, (const void *const *)m->in,
                           true, m->y, &key, err));
  CLV_TRY(clv_plan_backward_input(m->plan, m->call, m->parameter_block, m->dy, din,
                                  m->gradient_block, false, err));
  CLV_TRY(clv_plan_backward_weight(m->plan, m->call, m->parameter_block, m->gradient_block, false,
                                   err));
  add_tied_gradients(m);
  to->tensors[to->n++] = (clv_weights_tensor){"y", m->dtype, *out, m->y};
  for (int i = 0; i < m->params->n; i++) {
    const clv_param *p = &m->params->list[i];
    const char *data =
        p->trainable ? m->gradient_block + p->gradient_offset : m->parameter_block + p->offset;
    CLV_TRY(add_tensor(to, p->trainable ? "grad." : "", p, data, err));
  }
  return CLV_OK;
}

static clv_code run(int argc, char **argv, clv_err *err) {
  static model m; /* the model is not freed before the program ends */
  static output out;
  CLV_AUTO(clv_weights_closep) clv_weights_file *f = NULL;
  if (argc < 6) return clv_fail(err, CLV_INVALID, "exported MODEL.yaml f32|f64 IN OUT INPUT...");
  CLV_TRY(clv_weights_open(argv[3], 0, &f, err));
  CLV_TRY(open_model(argv, argc - 5, f, &m, err));
  CLV_TRY(run_model(&m, f, &out, err));
  return clv_weights_write_file(argv[4], out.tensors, out.n, NULL, 0, NULL, NULL, err);
}

int main(int argc, char **argv) {
  clv_err err = {0};
  clv_backend_cpu()->set_threads(1);
  if (run(argc, argv, &err) == CLV_OK) return 0;
  fprintf(stderr, "exported: %s\n", err.text);
  return 1;
}
