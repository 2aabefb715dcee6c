/* SPDX-License-Identifier: Apache-2.0 */
#include "common/graph/plan_int.h"

#include <stdlib.h>
#include <string.h>

/* What the caller brought to one execution. */
typedef struct frame {
  clv_plan *p;
  clv_call *c;
  char *params, *grads;
  void *out;
  void *const *din;
  bool accumulate;
} frame;

/* ---- lifetime ---------------------------------------------------------------------------------- */

static clv_graph *copy_graph(const clv_graph *g, clv_err *err) {
  clv_graph *copy;
  if (clv_graph_new(&copy, err) != CLV_OK) return NULL;
  if (clv_alloc((size_t)g->n_nodes, sizeof *copy->nodes, &copy->nodes, err) != CLV_OK)
    return clv_graph_free(copy);
  memcpy(copy->nodes, g->nodes, (size_t)g->n_nodes * sizeof *g->nodes);
  copy->n_nodes = copy->cap = g->n_nodes;
  copy->output = g->output;
  return copy;
}

static clv_code plan_fill(clv_plan *p, const clv_graph *g, const clv_params *params, clv_err *err) {
  p->graph = copy_graph(g, err);
  if (!p->graph) return CLV_EXHAUSTED;
  if (p->o.dtype != CLV_F32)
    for (int i = 0; i < p->graph->n_nodes; i++)
      if (p->graph->nodes[i].dtype == CLV_F32) p->graph->nodes[i].dtype = p->o.dtype;
  CLV_TRY(clv_graph_set_batch(p->graph, p->o.batch, err));
  CLV_TRY(clv_alloc((size_t)g->n_nodes, sizeof *p->nodes, &p->nodes, err));
  CLV_TRY(clv_alloc((size_t)g->n_nodes, sizeof *p->values, &p->values, err));
  CLV_TRY(clv_plan_build(p, params, err));
  return clv_plan_lay_out(p, err);
}

clv_code clv_plan_new(const clv_graph *g, const clv_params *params, const clv_plan_options *options,
                      clv_plan **ret, clv_err *err) {
  CLV_AUTO(clv_plan_freep) clv_plan *p = NULL;
  CLV_TRY(clv_alloc(1, sizeof *p, &p, err));
  p->o = *options;
  CLV_TRY(plan_fill(p, g, params, err));
  *ret = clv_steal(&p);
  return CLV_OK;
}

static void call_free(clv_call *c) {
  free(c->block);
  free(c);
}

clv_plan *clv_plan_free(clv_plan *p) {
  if (!p) return NULL;
  for (int i = 0; p->nodes && i < p->graph->n_nodes; i++)
    if (p->nodes[i].kernel) p->nodes[i].kernel->free(p->nodes[i].kernel);
  for (clv_call *c = p->free_calls, *next; c; c = next) {
    next = c->next;
    call_free(c);
  }
  clv_graph_free(p->graph);
  free(p->nodes);
  free(p->values);
  free(p->buffers);
  free(p->forward.items);
  free(p->backward.items);
  free(p->weight.items);
  free(p->scratch);
  free(p->kernel_scratch_block);
  free(p->cache);
  free(p->dummy);
  free(p);
  return NULL;
}

void clv_plan_freep(clv_plan **p) { *p = clv_plan_free(*p); }

const clv_plan_info *clv_plan_get_info(const clv_plan *p) { return &p->info; }

clv_code clv_plan_call_get(clv_plan *p, clv_call **ret, clv_err *err) {
  clv_call *c = p->free_calls;
  if (c) {
    p->free_calls = c->next;
    *ret = c;
    return CLV_OK;
  }
  CLV_TRY(clv_alloc(1, sizeof *c, &c, err));
  clv_code code = clv_alloc_aligned(p->info.call_bytes, &c->block, err);
  if (code != CLV_OK) {
    free(c);
    return code;
  }
  *ret = c;
  return CLV_OK;
}

void clv_plan_call_put(clv_plan *p, clv_call *c) {
  if (!c) return;
  c->next = p->free_calls;
  p->free_calls = c;
}

/* ---- execution ---------------------------------------------------------------------------------- */

static void *resolve(const frame *f, int index) {
  if (index < 0) return NULL;
  const buffer *b = &f->p->buffers[index];
  switch (b->place) {
    case PLACE_SCRATCH: return (char *)f->p->scratch + b->offset;
    case PLACE_CALL: return (char *)f->c->block + b->offset;
    case PLACE_INPUT: return (void *)(uintptr_t)f->c->in[b->index];
    case PLACE_OUTPUT: return f->out;
    case PLACE_DOUT: return (void *)(uintptr_t)f->c->dout;
    case PLACE_DIN: return f->din ? f->din[b->index] : NULL;
    case PLACE_NONE: break;
  }
  return NULL;
}

static void param_args(const frame *f, const node_state *s, clv_kernel_args *a) {
  for (int k = 0; k < CLV_MAX_PARAMS; k++)
    if (s->has_param[k]) a->param[k] = f->params + s->param_offset[k];
  if (!s->weight || !f->grads) return;
  /* A frozen parameter beside one that learns: its gradient is computed into a dummy and dropped. */
  for (int k = 0; k <= CLV_SLOT_BIAS; k++)
    if (s->has_param[k])
      a->dparam[k] = s->learns[k] ? (void *)(f->grads + s->param_offset[k]) : f->p->dummy;
}

static clv_kernel_args args_of(const frame *f, const step *st) {
  const node_state *s = &f->p->nodes[st->node];
  clv_kernel_args a = {.out = resolve(f, st->out),
                       .dout = resolve(f, st->dout),
                       .cache = (char *)f->p->cache + s->cache_offset,
                       .saved = (char *)f->c->block + s->saved_offset,
                       .scratch = f->p->kernel_scratch_block,
                       .accumulate = f->accumulate,
                       .key = f->c->key};
  a.key.layer = f->p->graph->nodes[st->node].layer << 4;
  for (int k = 0; k < CLV_MAX_IN; k++) {
    a.in[k] = resolve(f, st->in[k]);
    a.din[k] = resolve(f, st->din[k]);
  }
  param_args(f, s, &a);
  return a;
}

typedef clv_code (*kernel_fn)(clv_kernel *k, const clv_kernel_args *a, clv_err *err);
typedef kernel_fn pick_fn(const clv_kernel *k);

static kernel_fn pick_forward(const clv_kernel *k) { return k->forward; }
static kernel_fn pick_input(const clv_kernel *k) { return k->backward_input; }
static kernel_fn pick_weight(const clv_kernel *k) { return k->backward_weight; }

static clv_code run_other(const frame *f, const step *st, clv_err *err) {
  const clv_node *n = &f->p->graph->nodes[st->node];
  void *src = resolve(f, st->src), *dst = resolve(f, st->dst);
  if (st->kind == STEP_REORDER)
    return f->p->o.backend->reorder(&n->shape, n->dtype, src, st->src_block, dst, st->dst_block, err);
  size_t bytes = f->p->buffers[st->src].bytes;
  if (st->kind == STEP_COPY)
    memcpy(dst, src, bytes);
  else
    f->p->o.backend->add(n->dtype, dst, src, bytes / clv_dtype_size(n->dtype));
  return CLV_OK;
}

static clv_code run_steps(const frame *f, const step_list *l, pick_fn *pick, clv_err *err) {
  for (int i = 0; i < l->n; i++) {
    const step *st = &l->items[i];
    if (st->kind != STEP_KERNEL) {
      CLV_TRY(run_other(f, st, err));
      continue;
    }
    clv_kernel *k = f->p->nodes[st->node].kernel;
    clv_kernel_args a = args_of(f, st);
    clv_code code = pick(k)(k, &a, err);
    if (code != CLV_OK) return clv_err_prefix(err, "layer %s", f->p->graph->nodes[st->node].name);
  }
  return CLV_OK;
}

static clv_code refresh(const frame *f, uint64_t version, clv_err *err) {
  clv_plan *p = f->p;
  if (p->version == version) return CLV_OK;
  for (int i = 0; i < p->forward.n; i++) {
    const step *st = &p->forward.items[i];
    clv_kernel *k = st->kind == STEP_KERNEL ? p->nodes[st->node].kernel : NULL;
    if (!k || !k->refresh) continue;
    clv_kernel_args a = args_of(f, st);
    CLV_TRY(k->refresh(k, &a, err));
  }
  p->version = version;
  return CLV_OK;
}

static void take_inputs(clv_plan *p, clv_call *c, const void *const *in, bool keep) {
  for (int i = 0; i < p->n_inputs; i++) {
    c->in[i] = in[i];
    if (keep || !p->input_saved[i]) continue;
    void *copy = (char *)c->block + p->input_copy[i];
    memcpy(copy, in[i], p->buffers[p->values[p->inputs[i]].buffer].bytes);
    c->in[i] = copy;
  }
}

clv_code clv_plan_forward(clv_plan *p, clv_call *c, void *param_block, uint64_t param_version,
                          const void *const *in, bool keep_inputs, void *out,
                          const clv_rng_key *key, clv_err *err) {
  frame f = {.p = p, .c = c, .params = param_block, .out = out};
  c->key = *key;
  c->dout = NULL;
  take_inputs(p, c, in, keep_inputs);
  CLV_TRY(refresh(&f, param_version, err));
  return run_steps(&f, &p->forward, pick_forward, err);
}

clv_code clv_plan_backward_input(clv_plan *p, clv_call *c, void *param_block, const void *dout,
                                 void *const *din, void *grad_block, bool accumulate,
                                 clv_err *err) {
  frame f = {.p = p, .c = c, .params = param_block, .grads = grad_block, .din = din,
             .accumulate = accumulate};
  c->dout = dout;
  return run_steps(&f, &p->backward, pick_input, err);
}

clv_code clv_plan_backward_weight(clv_plan *p, clv_call *c, void *param_block, void *grad_block,
                                  bool accumulate, clv_err *err) {
  frame f = {.p = p, .c = c, .params = param_block, .grads = grad_block, .accumulate = accumulate};
  return run_steps(&f, &p->weight, pick_weight, err);
}

void clv_plan_describe(const clv_plan *p, clv_bytes *out) {
  static const char *const kinds[] = {"kernel", "reorder", "add", "copy"};
  const struct { const char *name; const step_list *l; } parts[] = {
      {"forward", &p->forward}, {"input gradients", &p->backward}, {"weight gradients", &p->weight}};
  for (size_t k = 0; k < CLV_COUNT(parts); k++) {
    clv_bytes_printf(out, "%s\n", parts[k].name);
    for (int i = 0; i < parts[k].l->n; i++) {
      const step *st = &parts[k].l->items[i];
      const clv_node *n = &p->graph->nodes[st->node];
      const clv_kernel *kernel = st->kind == STEP_KERNEL ? p->nodes[st->node].kernel : NULL;
      clv_bytes_printf(out, "  %-8s %-12s %-14s %s", kinds[st->kind], n->name, clv_op_name(n->op),
                       kernel && kernel->impl ? kernel->impl : "");
      if (kernel)
        clv_bytes_printf(out, " [%d -> %d]\n", kernel->in_block[0], kernel->out_block);
      else
        clv_bytes_printf(out, " [%d -> %d]\n", st->src_block, st->dst_block);
    }
  }
}
