/* SPDX-License-Identifier: Apache-2.0
 *
 * Runs one training forward and backward of a model of Hugging Face in each way that Cleave
 * supports (padded or packed, whole or cut):
 *
 *   hf_ways FOLDER HEAD LABELS SEED IN.safetensors OUT.safetensors
 *
 * FOLDER has its config.json, and IN is as for hf_step. The model runs padded and, if it reads
 * lengths, packed, each as one part and cut into two parts at several layers, by the CPU backend in
 * f32. SEED chooses the layers. Two parts must give the bits of one part; otherwise the error names
 * layer and tensor. OUT gets "y" and the gradients "grad.NAME" of three runs of one part: "f64." by
 * the reference in f64, "padded." and "packed.", whose y has only rows of real positions.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/model/graph/graph_int.h"
#include "common/model/hf/hf.h"
#include "common/model/weights/weights.h"

enum { MAX_TENSORS = 4096, MAX_CUTS = 6, EXTRA_ROWS = 2 };

typedef struct output {
  clv_weights_tensor tensors[MAX_TENSORS];
  char names[MAX_TENSORS][128];
  size_t n;
} output;

/* The file IN with its records, and the model's graph without values of parameters. */
typedef struct model {
  const clv_weights_file *file;
  clv_graph *graph;
  uint32_t n_layers;
  int64_t n_records, n_positions; /* n_positions: length of a padded record; 0: images */
  const int64_t *lengths;         /* [n_records]; NULL: the model reads none */
} model;

/* One part of the model in one of its ways: padded, packed or in f64. It is not freed before the
 * program ends, because `output` points to it. */
typedef struct part {
  clv_graph *graph;
  clv_params *params;
  clv_plan *plan;
  clv_call *call;
  clv_dtype dtype;
  bool is_packed;
  /* a packed part: which inputs, and whether y, have a row for each position */
  bool in_has_positions[CLV_MAX_INPUTS], y_has_positions;
  /* din[0]: gradient of in[0], in a part behind a cut */
  void *in[CLV_MAX_INPUTS], *din[CLV_MAX_INPUTS];
  int n_in;
  char *parameter_block, *gradient_block, *y, *dy;
  size_t y_bytes;
} part;

/* ---- reading tensors of the file IN ---------------------------------------------------------- */

static clv_code find_tensor(const clv_weights_file *f, const char *prefix, const char *name,
                            const clv_weights_entry **ret, clv_err *err) {
  char full[160];
  snprintf(full, sizeof full, "%s%s", prefix, name);
  *ret = clv_weights_find_entry(f, full);
  return *ret ? CLV_OK : clv_fail(err, CLV_NOT_FOUND, "no tensor %s", full);
}

/* Copies `n` values. For a part in f64, converts f32 to f64. */
static void copy_values(clv_dtype dtype, const void *from, clv_dtype from_dtype, size_t n,
                        void *to) {
  if (from_dtype == dtype || from_dtype == CLV_I64) {
    memcpy(to, from, n * (from_dtype == CLV_F32 ? sizeof(float) : sizeof(double)));
    return;
  }
  for (size_t i = 0; i < n; i++) ((double *)to)[i] = (double)((const float *)from)[i];
}

/* Copies a tensor [N, S, ...] or [N, ...] of records. has_rows: a packed part gets only the rows
 * [S] of positions that are no padding. */
static void copy_records(const model *m, const part *p, const clv_weights_entry *e, bool has_rows,
                         void *to) {
  size_t size = e->dtype == CLV_F32 ? sizeof(float) : sizeof(int64_t);
  size_t to_size = e->dtype == CLV_F32 && p->dtype == CLV_F32 ? sizeof(float) : sizeof(int64_t);
  size_t n = e->bytes / size;
  if (!p->is_packed || !has_rows) {
    copy_values(p->dtype, e->data, e->dtype, n, to);
    return;
  }
  size_t width = n / (size_t)(m->n_records * m->n_positions), row = 0;
  for (int64_t r = 0; r < m->n_records; r++)
    for (int64_t s = 0; s < m->lengths[r]; s++, row++)
      copy_values(p->dtype, (const char *)e->data + (size_t)(r * m->n_positions + s) * width * size,
                  e->dtype, width, (char *)to + row * width * to_size);
}

/* ---- making and running a part of the model -------------------------------------------------- */

/* Records which values have a row for each position. Then clears max_positions, because the graph
 * that a node loads has only numbers of rows. */
static void strip_positions(part *p) {
  int k = 0;
  p->y_has_positions = p->graph->nodes[p->graph->output_node].max_positions > 0;
  for (int i = 0; i < p->graph->n_nodes; i++) {
    clv_node *n = &p->graph->nodes[i];
    if (n->op == CLV_OP_INPUT) p->in_has_positions[k++] = n->max_positions > 0;
    n->max_positions = 0;
  }
}

static clv_code allocate_inputs(part *p, clv_err *err) {
  for (int i = 0; i < p->graph->n_nodes; i++) {
    const clv_node *n = &p->graph->nodes[i];
    size_t bytes;
    if (n->op != CLV_OP_INPUT) continue;
    CLV_TRY(clv_shape_bytes(&n->shape, n->dtype, &bytes, err));
    CLV_TRY(clv_alloc(bytes, 1, &p->in[p->n_in], err));
    memset(p->in[p->n_in++], 0, bytes);
  }
  return CLV_OK;
}

/* Sets the addresses of tied parameters whose values are in `front`, the part before the cut. */
static clv_code find_tied_values(part *p, const part *front, clv_err *err) {
  for (int i = 0; i < p->params->n_ties; i++) {
    clv_tie *t = &p->params->ties[i];
    if (t->owner_index >= 0) continue;
    const char *owner = p->graph->nodes[t->param.node].tie_owner;
    const clv_param *q =
        front ? clv_params_first_of_node(front->graph, front->params, owner) : NULL;
    if (!q) return clv_fail(err, CLV_NOT_FOUND, "no part has '%s'", owner);
    t->param.owner_data = front->parameter_block + q->offset;
  }
  return CLV_OK;
}

/* Makes a part that runs a copy of the graph. front: the part before the cut; NULL: none. */
static clv_code make_part(const model *m, const clv_graph *from, clv_dtype dtype, bool is_packed,
                          const part *front, part *p, clv_err *err) {
  clv_plan_options o = {.backend = clv_backend_cpu(),
                        .dtype = dtype,
                        .training = true,
                        .threads = 1,
                        .batch = from->nodes[0].shape.dim[0],
                        .needs_input_grad = {front != NULL}};
  clv_graph *g;
  CLV_TRY(clv_graph_clone(from, &g, err));
  *p = (part){.graph = g, .dtype = dtype, .is_packed = is_packed};
  strip_positions(p);
  CLV_TRY(clv_params_make(g, &p->params, err));
  CLV_TRY(find_tied_values(p, front, err));
  for (int i = 0, k = 0; i < g->n_nodes; i++)
    if (g->nodes[i].op == CLV_OP_INPUT) o.batches[k++] = g->nodes[i].shape.dim[0];
  CLV_TRY(clv_alloc(p->params->total_bytes + 1, 1, &p->parameter_block, err));
  CLV_TRY(clv_alloc(p->params->gradient_bytes + 1, 1, &p->gradient_block, err));
  for (int i = 0; i < p->params->n; i++) {
    const clv_weights_entry *e;
    CLV_TRY(find_tensor(m->file, "", p->params->list[i].name, &e, err));
    copy_values(dtype, e->data, e->dtype, p->params->list[i].n,
                p->parameter_block + p->params->list[i].offset);
  }
  CLV_TRY(clv_plan_new(g, p->params, &o, &p->plan, err));
  CLV_TRY(clv_plan_call_get(p->plan, &p->call, err));
  CLV_TRY(clv_shape_bytes(clv_plan_output_shape(p->plan), dtype, &p->y_bytes, err));
  CLV_TRY(clv_alloc(p->y_bytes, 1, &p->y, err));
  CLV_TRY(clv_alloc(p->y_bytes, 1, &p->dy, err));
  memset(p->dy, 0, p->y_bytes);
  CLV_TRY(allocate_inputs(p, err));
  return front ? clv_alloc(front->y_bytes, 1, &p->din[0], err) : CLV_OK;
}

/* Fills the part's inputs and dy from the file, except the values that another part computes: the
 * first input of a part behind a cut, and dy of a part before a cut. */
static clv_code fill_records(const model *m, part *p, bool is_front, bool is_back, clv_err *err) {
  const clv_weights_entry *e;
  for (int i = 0, k = 0; i < p->graph->n_nodes; i++) {
    const clv_node *n = &p->graph->nodes[i];
    if (n->op != CLV_OP_INPUT || (k++ == 0 && is_back)) continue;
    CLV_TRY(find_tensor(m->file, "input.", n->name, &e, err));
    copy_records(m, p, e, p->in_has_positions[k - 1], p->in[k - 1]);
  }
  if (is_front) return CLV_OK;
  CLV_TRY(find_tensor(m->file, "", "dy", &e, err));
  copy_records(m, p, e, p->y_has_positions, p->dy);
  return CLV_OK;
}

static clv_code run_forward(part *p, clv_err *err) {
  clv_rng_key key = {0};
  return clv_plan_forward(p->plan, p->call, p->parameter_block, 1, (const void *const *)p->in, true,
                          p->y, &key, err);
}

static clv_code run_backward(part *p, clv_err *err) {
  CLV_TRY(clv_plan_backward_input(p->plan, p->call, p->parameter_block, p->dy, p->din,
                                  p->gradient_block, false, err));
  return clv_plan_backward_weight(p->plan, p->call, p->parameter_block, p->gradient_block, false,
                                  err);
}

/* ---- running the model as two parts ---------------------------------------------------------- */

/* Returns the gradient of the parameter `name`, or of the tied parameter `name`. NULL: the part has
 * neither. */
static const char *find_gradient(const part *p, const char *name) {
  const clv_param *q = clv_params_find(p->params, name);
  for (int i = 0; !q && i < p->params->n_ties; i++)
    if (strcmp(p->params->ties[i].param.name, name) == 0) q = &p->params->ties[i].param;
  return q ? p->gradient_block + q->gradient_offset : NULL;
}

static clv_code compare_gradient(const part *whole, const part *front, const part *back,
                                 const clv_param *of, clv_err *err) {
  const char *found = find_gradient(front, of->name);
  if (!found) found = find_gradient(back, of->name);
  if (!found) return clv_fail(err, CLV_NOT_FOUND, "neither part has %s", of->name);
  if (memcmp(found, whole->gradient_block + of->gradient_offset, of->bytes) == 0) return CLV_OK;
  return clv_fail(err, CLV_INTERNAL, "the gradient of %s has other bits", of->name);
}

/* Runs the graph g as two parts, cut behind `layer`. Fails unless output and gradients have the
 * bits of `whole`, which is one part. */
static clv_code compare_cut(const model *m, const clv_graph *g, const part *whole, uint32_t layer,
                            clv_err *err) {
  part front, back;
  CLV_AUTO(clv_graph_freep) clv_graph *before = NULL, *behind = NULL;
  CLV_TRY(clv_graph_slice(g, 0, layer, &before, err));
  CLV_TRY(make_part(m, before, whole->dtype, whole->is_packed, NULL, &front, err));
  CLV_TRY(clv_graph_slice(g, layer + 1, m->n_layers - 1, &behind, err));
  CLV_TRY(make_part(m, behind, whole->dtype, whole->is_packed, &front, &back, err));
  CLV_TRY(fill_records(m, &front, true, false, err));
  CLV_TRY(fill_records(m, &back, false, true, err));
  CLV_TRY(run_forward(&front, err));
  memcpy(back.in[0], front.y, front.y_bytes);
  CLV_TRY(run_forward(&back, err));
  CLV_TRY(run_backward(&back, err));
  memcpy(front.dy, back.din[0], front.y_bytes);
  CLV_TRY(run_backward(&front, err));
  if (back.y_bytes != whole->y_bytes || memcmp(back.y, whole->y, whole->y_bytes) != 0)
    return clv_fail(err, CLV_INTERNAL, "the output has other bits");
  for (int i = 0; i < whole->params->n; i++)
    CLV_TRY(compare_gradient(whole, &front, &back, &whole->params->list[i], err));
  for (int i = 0; i < whole->params->n_ties; i++)
    CLV_TRY(compare_gradient(whole, &front, &back, &whole->params->ties[i].param, err));
  return CLV_OK;
}

/* Compares two parts with `whole`, the undivided model, at MAX_CUTS cuts at most. Adds the number
 * of compared cuts to *n_cuts. */
static clv_code compare_cuts(const model *m, const clv_graph *g, const part *whole, int seed,
                             int *n_cuts, clv_err *err) {
  uint32_t cuts[CLV_MAX_NODES];
  int n = 0;
  for (uint32_t layer = 0; layer + 1 < m->n_layers; layer++)
    if (clv_graph_check_cut(g, layer, &(clv_err){0}) == CLV_OK) cuts[n++] = layer;
  int every = CLV_MAX(1, (n + MAX_CUTS - 1) / MAX_CUTS);
  for (int i = seed % every; i < n; i += every, ++*n_cuts)
    if (compare_cut(m, g, whole, cuts[i], err) != CLV_OK)
      return clv_err_prefix(err, "%s, cut behind layer %u", whole->is_packed ? "packed" : "padded",
                            cuts[i]);
  return CLV_OK;
}

/* ---- results that are written to OUT --------------------------------------------------------- */

/* Adds the gradient of each tied parameter to that of the parameter with which it shares values. */
static void add_tied_gradients(part *p) {
  for (int i = 0; i < p->params->n_ties; i++) {
    const clv_tie *t = &p->params->ties[i];
    char *to = p->gradient_block + p->params->list[t->owner_index].gradient_offset;
    const char *from = p->gradient_block + t->param.gradient_offset;
    for (size_t k = 0; k < t->param.n; k++)
      if (p->dtype == CLV_F64)
        ((double *)(void *)to)[k] += ((const double *)(const void *)from)[k];
      else
        ((float *)(void *)to)[k] += ((const float *)(const void *)from)[k];
  }
}

static clv_code add_tensor(output *o, const char *way, const char *kind, const char *name,
                           clv_dtype dtype, const clv_shape *shape, const void *data,
                           clv_err *err) {
  if (o->n == MAX_TENSORS) return clv_fail(err, CLV_EXHAUSTED, "more than %d tensors", MAX_TENSORS);
  snprintf(o->names[o->n], sizeof o->names[0], "%s.%s%s", way, kind, name);
  o->tensors[o->n] = (clv_weights_tensor){o->names[o->n], dtype, *shape, data};
  o->n++;
  return CLV_OK;
}

static clv_code add_results(output *o, const char *way, const part *p, clv_err *err) {
  clv_shape shape = *clv_plan_output_shape(p->plan);
  if (p->y_has_positions) shape.dim[0] -= EXTRA_ROWS;
  CLV_TRY(add_tensor(o, way, "", "y", p->dtype, &shape, p->y, err));
  for (int i = 0; i < p->params->n; i++) {
    const clv_param *q = &p->params->list[i];
    CLV_TRY(add_tensor(o, way, "grad.", q->name, p->dtype, &q->shape,
                       p->gradient_block + q->gradient_offset, err));
  }
  return CLV_OK;
}

/* ---- runs of the whole model: padded, packed, in f64 ----------------------------------------- */

static clv_code run_way(const model *m, const clv_graph *g, const char *way, clv_dtype dtype,
                        bool is_packed, int seed, output *o, int *n_cuts, clv_err *err) {
  part p;
  CLV_TRY(make_part(m, g, dtype, is_packed, NULL, &p, err));
  CLV_TRY(fill_records(m, &p, false, false, err));
  CLV_TRY(run_forward(&p, err));
  CLV_TRY(run_backward(&p, err));
  if (dtype == CLV_F32) CLV_TRY(compare_cuts(m, g, &p, seed, n_cuts, err));
  add_tied_gradients(&p);
  return add_results(o, way, &p, err);
}

/* Makes a copy of the graph over packed sequences, with EXTRA_ROWS rows that belong to no
 * sequence. */
static clv_code pack_graph(const model *m, clv_graph **ret, clv_err *err) {
  int64_t batches[CLV_MAX_INPUTS] = {0}, n_rows = EXTRA_ROWS;
  CLV_TRY(clv_graph_pack_sequences(m->graph, ret, err));
  for (int64_t r = 0; r < m->n_records; r++) n_rows += m->lengths[r];
  for (int i = 0, k = 0; i < (*ret)->n_nodes; i++)
    if ((*ret)->nodes[i].op == CLV_OP_INPUT)
      batches[k++] = (*ret)->nodes[i].max_positions ? n_rows : m->n_records;
  return clv_graph_set_batches(*ret, batches, err);
}

/* Makes all floats of a graph f64. */
static void widen_graph(clv_graph *g) {
  g->dtype = CLV_F64;
  for (int i = 0; i < g->n_nodes; i++)
    if (g->nodes[i].dtype == CLV_F32) g->nodes[i].dtype = CLV_F64;
}

static clv_code run_all_ways(const model *m, int seed, output *o, clv_err *err) {
  CLV_AUTO(clv_graph_freep) clv_graph *packed = NULL;
  int n_cuts = 0;
  CLV_TRY(run_way(m, m->graph, "padded", CLV_F32, false, seed, o, &n_cuts, err));
  if (m->lengths) {
    CLV_TRY(pack_graph(m, &packed, err));
    CLV_TRY(run_way(m, packed, "packed", CLV_F32, true, seed, o, &n_cuts, err));
  }
  widen_graph(m->graph);
  CLV_TRY(run_way(m, m->graph, "f64", CLV_F64, false, seed, o, &n_cuts, err));
  printf("%d cuts\n", n_cuts);
  return CLV_OK;
}

/* ---- reading the model ----------------------------------------------------------------------- */

/* Adds an input with this name and its shape in the file. Sets *ret to its node; -1: the file has
 * no such input. */
static clv_code add_named_input(model *m, const char *name, int *ret, clv_err *err) {
  char full[32];
  snprintf(full, sizeof full, "input.%s", name);
  const clv_weights_entry *e = clv_weights_find_entry(m->file, full);
  *ret = -1;
  return e ? clv_graph_add_input(m->graph, name, e->dtype, &e->shape, ret, err) : CLV_OK;
}

static clv_code make_model(char *const *argv, model *m, clv_err *err) {
  clv_hf_config c;
  clv_hf_inputs in;
  int head = 0;
  while (head < CLV_HF_HEADS && strcmp(argv[2], clv_hf_head_name((clv_hf_head)head))) head++;
  if (head == CLV_HF_HEADS) return clv_fail(err, CLV_INVALID, "no head '%s'", argv[2]);
  CLV_TRY(clv_hf_config_read(argv[1], NULL, &c, err));
  CLV_TRY(clv_graph_new(&m->graph, err));
  CLV_TRY(add_named_input(m, clv_hf_takes_tokens(&c) ? "ids" : "pixels", &in.records, err));
  CLV_TRY(add_named_input(m, "boxes", &in.boxes, err));
  CLV_TRY(add_named_input(m, "lengths", &in.lengths, err));
  CLV_TRY(clv_hf_add_layers(&c, (clv_hf_head)head, atoll(argv[3]), &in, m->graph, &m->n_layers,
                            &m->graph->output_node, err));
  m->n_records = m->graph->nodes[0].shape.dim[0];
  if (in.lengths < 0) return CLV_OK;
  m->n_positions = m->graph->nodes[0].shape.dim[1];
  const clv_weights_entry *e;
  CLV_TRY(find_tensor(m->file, "input.", "lengths", &e, err));
  m->lengths = (const int64_t *)(const void *)e->data;
  return CLV_OK;
}

static clv_code run(int argc, char **argv, clv_err *err) {
  static output out;
  static model m;
  clv_weights_file *f = NULL;
  if (argc != 7) return clv_fail(err, CLV_INVALID, "hf_ways FOLDER HEAD LABELS SEED IN OUT");
  CLV_TRY(clv_weights_open(argv[5], 0, &f, err));
  m.file = f;
  CLV_TRY(make_model(argv, &m, err));
  CLV_TRY(run_all_ways(&m, atoi(argv[4]), &out, err));
  return clv_weights_write_file(argv[6], out.tensors, out.n, NULL, 0, NULL, NULL, err);
}

int main(int argc, char **argv) {
  clv_err err = {0};
  clv_backend_cpu()->set_threads(1);
  if (run(argc, argv, &err) == CLV_OK) return 0;
  fprintf(stderr, "hf_ways: %s\n", err.text);
  return 1;
}
