/* SPDX-License-Identifier: Apache-2.0
 *
 * Runs one training forward and backward of parts of a model on the CPU backend, from tensors in a
 * file:
 *
 *   stages MODEL N,C,H,W IN.safetensors OUT.safetensors RANGE...
 *
 * MODEL is the value of `model:` in a session file ("{arch: resnet18}"), for inputs of the given
 * shape; the ranges of layers are its stages. IN holds the parameters and, for part i, its input
 * "i.x" and the gradient of its output "i.dy". The parts do not feed each other: each reads its own
 * tensors from IN. OUT gets "i.y", "i.dx", the gradients as "grad.NAME" and the buffers as they are
 * afterwards.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/model/models/models.h"
#include "common/model/weights/weights.h"

enum { MAX_PARTS = 64, MAX_TENSORS = 2048 };

typedef struct output {
  clv_weights_tensor tensors[MAX_TENSORS];
  char names[MAX_TENSORS][128];
  size_t n;
} output;

static clv_code add_tensor(output *o, const char *prefix, const char *name, clv_dtype dtype,
                           const clv_shape *shape, const void *data, clv_err *err) {
  if (o->n == MAX_TENSORS) return clv_fail(err, CLV_EXHAUSTED, "more than %d tensors", MAX_TENSORS);
  snprintf(o->names[o->n], sizeof o->names[0], "%s%s", prefix, name);
  o->tensors[o->n] = (clv_weights_tensor){o->names[o->n], dtype, *shape, data};
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

/* Data of one part. It is not freed before the program ends, because `output` points to it. */
typedef struct part {
  clv_graph *graph;
  clv_params *params;
  clv_plan *plan;
  clv_call *call;
  char *parameter_block, *gradient_block, *x, *y, *dx, *dy;
} part;

static clv_code allocate_part(part *p, size_t n_x, size_t n_y, clv_err *err) {
  CLV_TRY(clv_alloc(p->params->total_bytes + 1, 1, &p->parameter_block, err));
  CLV_TRY(clv_alloc(p->params->gradient_bytes + 1, 1, &p->gradient_block, err));
  CLV_TRY(clv_alloc(n_x, 1, &p->x, err));
  CLV_TRY(clv_alloc(n_x, 1, &p->dx, err));
  CLV_TRY(clv_alloc(n_y, 1, &p->y, err));
  return clv_alloc(n_y, 1, &p->dy, err);
}

static clv_code open_part(const clv_graph *whole, uint32_t first, uint32_t last, part *p,
                          clv_err *err) {
  clv_plan_options o = {.backend = clv_backend_cpu(),
                        .dtype = CLV_F32,
                        .training = true,
                        .threads = 1,
                        .batch = whole->nodes[0].shape.dim[0],
                        .needs_input_grad = {true}};
  size_t n_x, n_y;
  CLV_TRY(clv_graph_slice(whole, first, last, &p->graph, err));
  const clv_node *in = &p->graph->nodes[0], *out = &p->graph->nodes[p->graph->output_node];
  CLV_TRY(clv_shape_bytes(&in->shape, CLV_F32, &n_x, err));
  CLV_TRY(clv_shape_bytes(&out->shape, CLV_F32, &n_y, err));
  CLV_TRY(clv_params_make(p->graph, &p->params, err));
  CLV_TRY(clv_plan_new(p->graph, p->params, &o, &p->plan, err));
  CLV_TRY(clv_plan_call_get(p->plan, &p->call, err));
  return allocate_part(p, n_x, n_y, err);
}

static clv_code run_forward_and_backward(part *p, clv_err *err) {
  clv_rng_key key = {0};
  void *din[] = {p->dx};
  CLV_TRY(clv_plan_forward(p->plan, p->call, p->parameter_block, 1, (const void *[]){p->x}, true,
                           p->y, &key, err));
  CLV_TRY(clv_plan_backward_input(p->plan, p->call, p->parameter_block, p->dy, din,
                                  p->gradient_block, false, err));
  return clv_plan_backward_weight(p->plan, p->call, p->parameter_block, p->gradient_block, false,
                                  err);
}

static clv_code run_part(part *p, int index, const clv_weights_file *f, output *to, clv_err *err) {
  const clv_shape *in = &p->graph->nodes[0].shape;
  const clv_shape *out = &p->graph->nodes[p->graph->output_node].shape;
  char prefix[16], x[24], dy[24];
  snprintf(prefix, sizeof prefix, "%d.", index);
  snprintf(x, sizeof x, "%sx", prefix);
  snprintf(dy, sizeof dy, "%sdy", prefix);
  CLV_TRY(copy_tensor(f, x, CLV_F32, in, p->x, err));
  CLV_TRY(copy_tensor(f, dy, CLV_F32, out, p->dy, err));
  for (int i = 0; i < p->params->n; i++) {
    const clv_param *q = &p->params->list[i];
    CLV_TRY(copy_tensor(f, q->name, q->dtype, &q->shape, p->parameter_block + q->offset, err));
  }
  CLV_TRY(run_forward_and_backward(p, err));
  CLV_TRY(add_tensor(to, prefix, "y", CLV_F32, out, p->y, err));
  CLV_TRY(add_tensor(to, prefix, "dx", CLV_F32, in, p->dx, err));
  for (int i = 0; i < p->params->n; i++) {
    const clv_param *q = &p->params->list[i];
    const char *from = q->trainable ? p->gradient_block : p->parameter_block;
    CLV_TRY(add_tensor(to, q->trainable ? "grad." : "", q->name, q->dtype, &q->shape,
                       from + q->offset, err));
  }
  return CLV_OK;
}

/* Reads `model` as a session whose stages are the given ranges of layers. */
static clv_code read_model(const char *model, char *const *ranges, int n, const clv_shape *in,
                           clv_graph **ret, uint32_t *first, uint32_t *last, clv_err *err) {
  CLV_AUTO(clv_session_config_freep) clv_session_config *c = NULL;
  CLV_AUTO(clv_bytes_done) clv_bytes text = {0};
  clv_bytes_printf(&text,
                   "version: 1\nname: parity\ndata: {format: npy, train: [x, y]}\n"
                   "loss: {kind: mse}\ntrain: {batch: 1, optimizer: {kind: sgd, lr: 1}}\n"
                   "model: %s\nstages:\n",
                   model);
  for (int i = 0; i < n; i++)
    clv_bytes_printf(&text, "  - {name: s%d, at: master, layers: %s}\n", i, ranges[i]);
  if (text.failed) return clv_fail(err, CLV_EXHAUSTED, "out of memory");
  CLV_TRY(clv_session_config_parse("model", text.data, text.len, NULL, &c, err));
  return clv_model_make_graph(c, in, ret, first, last, err);
}

static clv_code run_all_parts(int argc, char **argv, clv_err *err) {
  static part parts[MAX_PARTS];
  static output out;
  CLV_AUTO(clv_weights_closep) clv_weights_file *f = NULL;
  CLV_AUTO(clv_graph_freep) clv_graph *whole = NULL;
  uint32_t first[MAX_PARTS], last[MAX_PARTS];
  long long d[4];
  int n = argc - 5;
  if (n < 1 || n > MAX_PARTS ||
      sscanf(argv[2], "%lld,%lld,%lld,%lld", &d[0], &d[1], &d[2], &d[3]) != 4)
    return clv_fail(err, CLV_INVALID, "stages MODEL N,C,H,W IN OUT RANGE...");
  clv_shape in = CLV_SHAPE(d[0], d[1], d[2], d[3]);
  CLV_TRY(read_model(argv[1], argv + 5, n, &in, &whole, first, last, err));
  CLV_TRY(clv_weights_open(argv[3], 0, &f, err));
  for (int i = 0; i < n; i++) {
    CLV_TRY(open_part(whole, first[i], last[i], &parts[i], err));
    CLV_TRY(run_part(&parts[i], i, f, &out, err));
  }
  return clv_weights_write_file(argv[4], out.tensors, out.n, NULL, 0, NULL, NULL, err);
}

int main(int argc, char **argv) {
  clv_err err = {0};
  clv_backend_cpu()->set_threads(1);
  if (run_all_parts(argc, argv, &err) == CLV_OK) return 0;
  fprintf(stderr, "stages: %s\n", err.text);
  return 1;
}
