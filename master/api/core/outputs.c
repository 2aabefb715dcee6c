/* SPDX-License-Identifier: Apache-2.0
 *
 * Modules with several outputs. A node computes one value for each call, so the module's graph ends
 * with the concatenation of its outputs, the joined value. For each output the library loads
 * another module at the same node, an output module, which takes the output out of the joined value
 * and has no parameters. A call of the module also calls its output modules. So each output is a
 * value that can be sent, fetched and kept separately, and the concatenation's backward gets the
 * sum of the outputs' gradients.
 */
#include <stdio.h>
#include <string.h>

#include "master/api/core/module_int.h"

typedef struct output_graphs {
  clv_graph *graphs[CLV_MAX_OUTPUTS]; /* [n] graph of each output module */
  int n;
} output_graphs;

static void free_output_graphs(output_graphs *g) {
  for (int k = 0; k < g->n; k++) clv_graph_free(g->graphs[k]);
}

/* Joins the outputs of the graph g, and makes the graphs of the output modules. name: name of the
 * module, for messages. */
static cleave_status join_outputs(const char *name, clv_graph *g, const int *outputs, int n,
                                  output_graphs *ret, cleave_error *error) {
  clv_err why;
  if (clv_graph_join_outputs(g, outputs, n, &why) != CLV_OK) {
    (void)clv_err_prefix(&why, "module '%s'", name ? name : "");
    return api_convert_error(error, &why);
  }
  for (; ret->n < n; ret->n++)
    TRY(clv_graph_take_output(g, outputs, ret->n, &ret->graphs[ret->n], &err));
  return CLEAVE_OK;
}

/* Makes the output module of output k. Takes ownership of the graph. */
static cleave_status make_output_module(cleave_module *m, const cleave_module_options *of,
                                        uint32_t k, clv_graph *graph, cleave_error *error) {
  char name[CLEAVE_NAME + 32];
  snprintf(name, sizeof name, "%s.output%u", m->name, k);
  if (strlen(name) > CLEAVE_NAME) {
    clv_graph_free(graph);
    return api_fail(error, CLV_INVALID,
                    "module '%s' has several outputs, so its name has at most %d bytes: the "
                    "modules of the outputs are called NAME.output0 and so on",
                    m->name, CLEAVE_NAME - 8);
  }
  const cleave_module_options o = {.size = sizeof o,
                                   .name = name,
                                   .at = of->at,
                                   .device = of->device,
                                   .threads = of->threads,
                                   .in_flight = of->in_flight,
                                   .direct_to = of->direct_to,
                                   .n_direct_to = of->n_direct_to};
  TRY_API(api_module_new(m->runtime, &o, NULL, graph, &m->output_modules[k], error));
  snprintf(m->output_modules[k]->output_owner_name, sizeof m->output_modules[k]->output_owner_name,
           "%s", m->name);
  m->output_modules[k]->output_index = k;
  return CLEAVE_OK;
}

/* Makes a module and its output modules. Takes ownership of the graphs. */
static cleave_status load_with_output_modules(cleave_runtime *rt, const cleave_module_options *o,
                                              clv_graph *graph, output_graphs *output_graph_list,
                                              cleave_module **ret, cleave_error *error) {
  cleave_module *m;
  TRY_API(api_module_new(rt, o, NULL, graph, &m, error));
  m->n_outputs = (uint32_t)output_graph_list->n;
  cleave_status status = CLEAVE_OK;
  for (uint32_t k = 0; k < m->n_outputs && status == CLEAVE_OK; k++)
    status = make_output_module(m, o, k, clv_steal(&output_graph_list->graphs[k]), error);
  if (status == CLEAVE_OK)
    *ret = m;
  else
    (void)cleave_module_release(rt, m, NULL);
  return status;
}

cleave_status cleave_load_graph(cleave_runtime *runtime, const cleave_module_options *options,
                                const cleave_graph *graph, cleave_module **ret_module,
                                cleave_error *error) {
  NOT_NULL(runtime, options, graph, ret_module);
  COPY_OPTIONS_IN(cleave_module_options, o, options);
  CLV_AUTO(clv_graph_freep) clv_graph *copy = NULL;
  output_graphs output_graph_list = {0};
  int n;
  const int *outputs = api_graph_outputs(graph, &n);
  TRY(api_graph_copy(api_unwrap_graph(graph), &copy, &err));
  if (n == 1) copy->output_node = outputs[0];
  if (n < 2) return api_module_new(runtime, &o, NULL, clv_steal(&copy), ret_module, error);
  cleave_status status = join_outputs(o.name, copy, outputs, n, &output_graph_list, error);
  if (status == CLEAVE_OK)
    status = load_with_output_modules(runtime, &o, clv_steal(&copy), &output_graph_list, ret_module,
                                      error);
  free_output_graphs(&output_graph_list);
  return status;
}

size_t cleave_output_count(const cleave_module *module) { return module ? module->n_outputs : 0; }
