/* SPDX-License-Identifier: Apache-2.0
 *
 * Layers that are divided over several nodes: loads the parts of their graph as modules, and calls
 * them.
 */
#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "master/api/extra/parallel_int.h"

enum { MAX_CHAIN_NAME_BYTES = 100 }; /* longest name of a chain */

static void chain_free(cleave_parallel *p) {
  if (!p) return;
  clv_divided_chain_free(p->division);
  clv_params_free(p->params);
  clv_graph_free(p->undivided_graph);
  free(p->modules);
  free(p);
}

static void free_attached_chain(api_attachment *a) { chain_free((cleave_parallel *)a); }

static uint32_t count_segment_modules(const cleave_parallel *p, const clv_chain_segment *s) {
  return s->is_sharded ? p->division->n_parts : 1;
}

/* ---- the parameters of one part of divided layers -------------------------------------------- */

/* Parameters of one part of a divided layer, with values cut from those of the undivided layers. */
typedef struct part_weights {
  clv_params *params; /* parameters of the part's graph */
  char *weights_block;
  cleave_named_tensor *list; /* [params->n] values of the parameters */
  const char **frozen;
  size_t n_frozen;
} part_weights;

static void free_part_weights(part_weights *w) {
  clv_params_free(w->params);
  free(w->weights_block);
  free(w->list);
  free(w->frozen);
}

static void cut_weight(const cleave_parallel *p, const clv_param *own, uint32_t k,
                       char *undivided_weights, part_weights *w) {
  const clv_param *of = clv_params_find(p->params, own->name);
  clv_tensor_part part = {of->shape, own->shape, k, clv_dtype_size(own->dtype)};
  cleave_named_tensor *to = &w->list[own - w->params->list];
  clv_tensor_part_copy(&part, undivided_weights + of->offset, w->weights_block + own->offset,
                       false);
  *to = (cleave_named_tensor){own->name,
                              {.dtype = (cleave_dtype)own->dtype,
                               .rank = own->shape.rank,
                               .data = w->weights_block + own->offset}};
  memcpy(to->tensor.shape, own->shape.dim, sizeof to->tensor.shape);
}

static bool is_param_frozen(const cleave_parallel_options *o, const clv_param *p) {
  for (size_t i = 0; p->trainable && i < o->n_frozen; i++)
    if (fnmatch(o->frozen[i], p->name, 0) == 0) return true;
  return false;
}

static clv_code cut_weights(const cleave_parallel *p, const cleave_parallel_options *o,
                            const clv_graph *g, uint32_t k, char *undivided_weights,
                            part_weights *w, clv_err *err) {
  CLV_TRY(clv_params_make(g, &w->params, err));
  size_t n = (size_t)w->params->n;
  CLV_TRY(clv_alloc(w->params->total_bytes, 1, &w->weights_block, err));
  CLV_TRY(clv_alloc(n, sizeof *w->list, &w->list, err));
  CLV_TRY(clv_alloc(n, sizeof *w->frozen, &w->frozen, err));
  for (size_t i = 0; i < n; i++) {
    cut_weight(p, &w->params->list[i], k, undivided_weights, w);
    if (is_param_frozen(o, &w->params->list[i])) w->frozen[w->n_frozen++] = w->params->list[i].name;
  }
  return CLV_OK;
}

/* ---- loading the modules of a chain ---------------------------------------------------------- */

/* Loads the module of part k of a segment (consecutive layers that are all divided or all
 * undivided). The module gets its part of the initial values. Its keys derive from its own name,
 * because with the key of the undivided layer its node could draw the initial values of the other
 * parts. */
static cleave_status load_module(cleave_parallel *p, const cleave_parallel_options *o,
                                 uint32_t segment_index, uint32_t k, char *undivided_weights,
                                 cleave_error *error) {
  CLV_AUTO(free_part_weights) part_weights w = {0};
  const clv_chain_segment *s = &p->division->segments[segment_index];
  char name[CLEAVE_NAME + 1];
  clv_graph *graph_copy;
  snprintf(name, sizeof name, s->is_sharded ? "%s.%u.%u" : "%s.%u", p->name, segment_index, k);
  TRY(cut_weights(p, o, s->part_graphs[k], k, undivided_weights, &w, &err));
  TRY(api_graph_copy(s->part_graphs[k], &graph_copy, &err));
  cleave_module_options m = {.size = sizeof m,
                             .name = name,
                             .at = s->is_sharded ? o->nodes[k] : o->at,
                             .threads = o->threads,
                             .in_flight = o->in_flight,
                             .seed = s->is_sharded ? 0 : o->seed,
                             .weights = w.list,
                             .n_weights = (size_t)w.params->n,
                             .frozen = w.frozen,
                             .n_frozen = w.n_frozen};
  TRY_API(api_module_new(p->runtime, &m, s->is_sharded ? NULL : p->name, graph_copy,
                         &p->modules[p->n_modules], error));
  p->n_modules++;
  return CLEAVE_OK;
}

/* Draws the initial values of the undivided layers, and loads each module with its part of them. */
static cleave_status load_modules(cleave_parallel *p, const cleave_parallel_options *o,
                                  cleave_error *error) {
  CLV_AUTO(clv_freep) char *weights_block = NULL;
  const clv_divided_chain *d = p->division;
  TRY_API(api_derive_keys(p->runtime, p->name, o->seed, p->undivided_graph, error));
  TRY(clv_alloc(p->params->total_bytes, 1, &weights_block, &err));
  clv_params_init(p->undivided_graph, p->params, weights_block);
  TRY(clv_alloc((size_t)d->n_segments * d->n_parts, sizeof(cleave_module *), &p->modules, &err));
  for (uint32_t i = 0; i < d->n_segments; i++)
    for (uint32_t k = 0; k < count_segment_modules(p, &d->segments[i]); k++)
      TRY_API(load_module(p, o, i, k, weights_block, error));
  return CLEAVE_OK;
}

static cleave_status check_options(const cleave_parallel_options *o, cleave_error *error) {
  if (!o->name || !o->name[0] || strlen(o->name) > MAX_CHAIN_NAME_BYTES)
    return api_fail(error, CLV_INVALID, "divided layers need a name of 1 to %d bytes",
                    MAX_CHAIN_NAME_BYTES);
  if (o->n_nodes < 2 || o->n_nodes > CLV_MAX_IN || !o->nodes)
    return api_fail(error, CLV_INVALID, "'%s' is divided over %zu nodes; 2 to %d are possible",
                    o->name, o->n_nodes, CLV_MAX_IN);
  for (size_t k = 0; k < o->n_nodes; k++)
    if (!o->nodes[k]) return api_fail(error, CLV_INVALID, "'%s': nodes[%zu] is NULL", o->name, k);
  return CLEAVE_OK;
}

/* Checks that each name or glob matches a parameter to freeze. */
static cleave_status check_frozen(const cleave_parallel *p, const cleave_parallel_options *o,
                                  cleave_error *error) {
  for (size_t k = 0; k < o->n_frozen; k++) {
    bool has_match = false;
    for (int i = 0; i < p->params->n; i++)
      has_match |=
          p->params->list[i].trainable && !fnmatch(o->frozen[k], p->params->list[i].name, 0);
    if (!has_match)
      return api_fail(error, CLV_NOT_FOUND, "'%s' has no parameter '%s' to freeze", p->name,
                      o->frozen[k]);
  }
  return CLEAVE_OK;
}

static cleave_status divide_layers(cleave_parallel *p, const cleave_parallel_options *o,
                                   const char *layers, const cleave_input *input,
                                   cleave_error *error) {
  CLV_AUTO(clv_freep) clv_parallel *divisions = NULL;
  uint32_t n = (uint32_t)o->n_nodes;
  bool has_divided_layer = false;
  TRY_API(api_graph_from_layers(layers, input, o->first_layer, n, &divisions, &p->undivided_graph,
                                error));
  for (int i = 0; i < p->undivided_graph->n_nodes; i++)
    has_divided_layer |= divisions[i] != CLV_PARALLEL_NONE;
  if (!has_divided_layer)
    return api_fail(error, CLV_INVALID,
                    "'%s': no layer says `parallel: columns` or `parallel: rows`", p->name);
  TRY(clv_params_make(p->undivided_graph, &p->params, &err));
  TRY(clv_divide_chain(p->undivided_graph, divisions, n, &p->division, &err));
  return check_frozen(p, o, error);
}

/* Releases the modules of a load that failed. */
static void release_chain(cleave_parallel *p) {
  for (uint32_t i = 0; i < p->n_modules; i++)
    cleave_module_release(p->runtime, p->modules[i], NULL);
  chain_free(p);
}

static cleave_status fill_parallel(cleave_parallel *p, const cleave_parallel_options *o,
                                   const char *layers, const cleave_input *input,
                                   cleave_error *error) {
  snprintf(p->name, sizeof p->name, "%s", o->name);
  TRY_API(divide_layers(p, o, layers, input, error));
  return load_modules(p, o, error);
}

cleave_status cleave_parallel_load(cleave_runtime *runtime, const cleave_parallel_options *options,
                                   const char *layers, const cleave_input *input,
                                   cleave_parallel **ret_parallel, cleave_error *error) {
  NOT_NULL(runtime, options, layers, input, ret_parallel);
  COPY_OPTIONS_IN(cleave_parallel_options, o, options);
  cleave_parallel *p;
  TRY_API(check_options(&o, error));
  TRY(clv_alloc(1, sizeof *p, &p, &err));
  p->runtime = runtime;
  cleave_status status = fill_parallel(p, &o, layers, input, error);
  if (status != CLEAVE_OK) {
    release_chain(p);
    return status;
  }
  LOCKED(runtime);
  api_attach(runtime, &p->runtime_attachment, free_attached_chain);
  *ret_parallel = p;
  return CLEAVE_OK;
}

/* ---- calling a chain ------------------------------------------------------------------------- */

/* Values between two segments (groups of consecutive layers): one value, or one value for each
 * part. */
typedef struct segment_values {
  cleave_context context;
  cleave_reference values[CLV_MAX_IN];
  uint32_t n;
} segment_values;

/* Calls the modules of a segment, from modules[0] on. f: has the inputs, and receives the
 * outputs. */
static cleave_status call_segment(cleave_parallel *p, const clv_chain_segment *s,
                                  cleave_module **modules, segment_values *f, cleave_error *error) {
  cleave_reference outputs[CLV_MAX_IN] = {0};
  uint32_t n = count_segment_modules(p, s);
  const cleave_call_options o = {.size = sizeof o,
                                 .send_to = s->is_sharded ? cleave_module_node(modules[n]) : NULL};
  for (uint32_t k = 0; k < n; k++)
    TRY_API(cleave_call_with(p->runtime, f->context, modules[k], f->values, f->n, &o, &outputs[k],
                             error));
  memcpy(f->values, outputs, sizeof outputs);
  f->n = n;
  return CLEAVE_OK;
}

/* Releases intermediate values of a call. */
static cleave_status release_values(cleave_parallel *p, const segment_values *f,
                                    cleave_error *error) {
  for (uint32_t i = 0; i < f->n; i++)
    TRY_API(cleave_reference_release(p->runtime, f->values[i], error));
  return CLEAVE_OK;
}

cleave_status api_parallel_check(const cleave_runtime *rt, const cleave_parallel *p,
                                 cleave_error *error) {
  if (p->runtime != rt) return api_fail(error, CLV_INVALID, "'%s' is of another runtime", p->name);
  return CLEAVE_OK;
}

cleave_status cleave_parallel_call(cleave_runtime *runtime, cleave_context context,
                                   cleave_parallel *parallel, cleave_reference input,
                                   cleave_reference *ret_reference, cleave_error *error) {
  NOT_NULL(runtime, parallel, ret_reference);
  TRY_API(api_parallel_check(runtime, parallel, error));
  segment_values f = {.context = context, .values = {input}, .n = 1};
  cleave_module **at = parallel->modules;
  for (uint32_t i = 0; i < parallel->division->n_segments; i++) {
    segment_values previous_values = f;
    TRY_API(call_segment(parallel, &parallel->division->segments[i], at, &f, error));
    if (i) TRY_API(release_values(parallel, &previous_values, error));
    at += f.n;
  }
  *ret_reference = f.values[0];
  return CLEAVE_OK;
}

cleave_module *cleave_parallel_module(const cleave_parallel *parallel, size_t index) {
  return parallel && index < parallel->n_modules ? parallel->modules[index] : NULL;
}

static void describe_module(const cleave_parallel *p, const cleave_module *m, clv_bytes *out) {
  char own_shape[160], whole_shape[160];
  size_t bytes = 0;
  for (int i = 0; i < m->params->n; i++) bytes += m->params->list[i].bytes;
  clv_bytes_printf(out, "%s at %s: %zu bytes", m->name, cleave_module_node(m), bytes);
  for (int i = 0; i < m->params->n; i++) {
    const clv_param *q = &m->params->list[i],
                    *undivided_param = clv_params_find(p->params, q->name);
    bool is_divided = !clv_shape_equal(&q->shape, &undivided_param->shape);
    clv_bytes_printf(
        out, "%s %s %s%s%s", i ? "," : ":", q->name,
        clv_shape_format(&q->shape, own_shape, sizeof own_shape), is_divided ? " of " : "",
        is_divided ? clv_shape_format(&undivided_param->shape, whole_shape, sizeof whole_shape)
                   : "");
  }
  clv_bytes_puts(out, "\n");
}

size_t cleave_parallel_text(const cleave_parallel *parallel, char *ret_text, size_t size) {
  CLV_AUTO(clv_bytes_done) clv_bytes text = {0};
  for (uint32_t i = 0; parallel && i < parallel->n_modules; i++)
    describe_module(parallel, parallel->modules[i], &text);
  if (ret_text && size) snprintf(ret_text, size, "%s", text.len ? text.data : "");
  return text.len;
}

static void detach_chain(cleave_parallel *p) {
  LOCKED(p->runtime);
  api_detach(p->runtime, &p->runtime_attachment);
}

cleave_status cleave_parallel_release(cleave_runtime *runtime, cleave_parallel *parallel,
                                      cleave_error *error) {
  if (!parallel) return CLEAVE_OK;
  NOT_NULL(runtime);
  TRY_API(api_parallel_check(runtime, parallel, error));
  detach_chain(parallel);
  release_chain(parallel);
  return CLEAVE_OK;
}
