/* SPDX-License-Identifier: Apache-2.0
 *
 * Builds graphs node by node, and from texts in the syntax of session files. To read a text, the
 * functions insert it into the text of a session file and parse that. So the text means the same as
 * in a session file, and errors give line and column.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "master/api/core/core_int.h"

_Static_assert((int)CLV_LAYER_COLUMNS == CLV_PARALLEL_COLUMNS &&
                   (int)CLV_LAYER_ROWS == CLV_PARALLEL_ROWS,
               "the words of the file are those of divisions");

struct cleave_graph {
  clv_graph *graph;
  uint32_t n_ops;
  /* [n_outputs] graph nodes whose values are outputs; n_outputs 0: only the value of the last op is
   * an output */
  int outputs[CLV_MAX_OUTPUTS];
  int n_outputs;
};

const clv_graph *api_unwrap_graph(const cleave_graph *g) { return g->graph; }

const int *api_graph_outputs(const cleave_graph *g, int *ret_n_outputs) {
  *ret_n_outputs = g->n_outputs;
  return g->outputs;
}

cleave_status cleave_graph_of(const clv_graph *graph, cleave_graph **ret_graph,
                              cleave_error *error) {
  cleave_graph *g;
  TRY(clv_alloc(1, sizeof *g, &g, &err));
  clv_err err;
  if (api_graph_copy(graph, &g->graph, &err) != CLV_OK) {
    free(g);
    return api_convert_error(error, &err);
  }
  *ret_graph = g;
  return CLEAVE_OK;
}

/* ---- filling in keys that a program's session file lacks ------------------------------------- */

static bool has_key(const char *text, const char *key) {
  size_t len = strlen(key);
  for (const char *line = text; line; line = strchr(line, '\n')) {
    if (*line == '\n') line++;
    if (strncmp(line, key, len) == 0 && line[len] == ':') return true;
  }
  return false;
}

/* Values of the keys that a session file requires and a program does not use: data, loss and
 * optimiser. They override these keys of the file. Stages cannot be overridden, so they are
 * appended to the text, which leaves the positions in errors as they are in the file. */
static const char *const placeholder_settings[] = {
    "data.format=npy",   "data.train=[none, none]",  "loss.kind=mse",
    "train.batch=65536", "train.optimizer.kind=sgd", "train.optimizer.lr=1",
};

static clv_code parse_session_text(const char *path, const char *text,
                                   const clv_config_overrides *more_overrides,
                                   clv_session_config **ret, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes session_text = {0};
  CLV_AUTO(clv_freep) const char **sets = NULL;
  size_t n = CLV_COUNT(placeholder_settings),
         n_more_settings = more_overrides ? more_overrides->n_sets : 0;
  clv_bytes_puts(&session_text, text);
  if (!has_key(text, "stages"))
    clv_bytes_puts(&session_text, "\nstages: [{name: none, at: master, layers: [{op: relu}]}]\n");
  if (session_text.failed) return clv_fail(err, CLV_EXHAUSTED, "out of memory");
  CLV_TRY(clv_alloc(n + n_more_settings, sizeof *sets, &sets, err));
  memcpy(sets, placeholder_settings, sizeof placeholder_settings);
  if (n_more_settings) memcpy(sets + n, more_overrides->sets, n_more_settings * sizeof *sets);
  clv_config_overrides overrides = {.env = more_overrides ? more_overrides->env : NULL,
                                    .sets = sets,
                                    .n_sets = n + n_more_settings};
  return clv_session_config_parse(path, session_text.data, session_text.len, &overrides, ret, err);
}

cleave_status api_read_config(const char *path, const char *text, clv_session_config **ret,
                              cleave_error *error) {
  TRY(parse_session_text(path, text, NULL, ret, &err));
  return CLEAVE_OK;
}

clv_code cleave_config_load(const char *path, const clv_config_overrides *overrides,
                            clv_session_config **ret, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes text = {0};
  clv_err ignored_err;
  if (clv_session_config_load(path, overrides, ret, err) == CLV_OK) return CLV_OK;
  if (clv_file_read(path, 1 << 20, &text, &ignored_err) != CLV_OK || !text.data) return err->code;
  bool is_session_file = has_key(text.data, "data") && has_key(text.data, "stages") &&
                         has_key(text.data, "train") && has_key(text.data, "loss");
  bool is_program =
      !is_session_file && strstr(text.data, "version") && strlen(text.data) == text.len;
  return is_program ? parse_session_text(path, text.data, overrides, ret, err) : err->code;
}

static unsigned count_lines(const char *text) {
  unsigned n = 1;
  for (; *text; text++) n += *text == '\n';
  return n;
}

/* Converts the position in an error about a generated text to the position in `own_text`, the
 * caller's text. This text begins after `n_bytes_before` bytes of the first line. If the error is
 * outside the caller's text, its position is removed. */
static cleave_status map_error_positions(cleave_status status, const char *name,
                                         const char *own_text, size_t n_bytes_before,
                                         cleave_error *error) {
  unsigned line = 0, column = 0;
  char text[CLV_ERR_TEXT], place[80] = "";
  size_t n = strlen(name);
  int n_bytes_parsed = 0;
  if (status == CLEAVE_OK || !error || strncmp(error->text, name, n) != 0 ||
      sscanf(error->text + n, ":%u:%u: %n", &line, &column, &n_bytes_parsed) != 2 ||
      !n_bytes_parsed)
    return status;
  snprintf(text, sizeof text, "%s", error->text + n + n_bytes_parsed);
  if (own_text && line <= count_lines(own_text) && (line > 1 || column > n_bytes_before))
    snprintf(place, sizeof place, "%s:%u:%zu: ", name, line,
             column - (line > 1 ? 0 : n_bytes_before));
  snprintf(error->text, sizeof error->text, "%s%.*s", place,
           (int)(sizeof error->text - sizeof place), text);
  return status;
}

/* ---- attributes of ops ----------------------------------------------------------------------- */

static clv_code read_attribute(const clv_session_config *c, clv_op op, const clv_attr_spec *a,
                               clv_attr_value *ret, clv_err *err) {
  clv_err why;
  clv_attr_value v = {0};
  if (clv_op_attr_find(op, a->key, &v.key, &why) != CLV_OK)
    return clv_session_fail_at(c, a->pos, err, "%s", why.text);
  if (a->kind == CLV_ATTR_TEXT || (a->kind == CLV_ATTR_INTS && a->n_ints > CLV_MAX_RANK))
    return clv_session_fail_at(c, a->pos, err, "%s: a number, true, false, or at most %d integers",
                               a->key, CLV_MAX_RANK);
  v.is_number = a->kind == CLV_ATTR_FLOAT;
  v.number = a->float_value;
  v.n_ints = a->kind == CLV_ATTR_FLOAT ? 0 : a->kind == CLV_ATTR_INTS ? (int)a->n_ints : 1;
  v.ints[0] = a->kind == CLV_ATTR_BOOL ? a->bool_value : a->int_value;
  if (a->kind == CLV_ATTR_INTS && a->n_ints) memcpy(v.ints, a->ints, a->n_ints * sizeof *a->ints);
  if (clv_op_attr_check(op, &v, &why) != CLV_OK)
    return clv_session_fail_at(c, a->pos, err, "%s", why.text);
  *ret = v;
  return CLV_OK;
}

static clv_code add_layer(const clv_session_config *c, const clv_layer_spec *spec, const char *name,
                          uint32_t layer_index, const int *in, int n_in, clv_graph *g, int *ret,
                          clv_err *err) {
  enum { MAX_ATTRIBUTES = 32 };
  clv_op op;
  clv_attrs attrs;
  clv_attr_value values[MAX_ATTRIBUTES];
  clv_err why;
  if (clv_op_find(spec->op, &op, &why) != CLV_OK)
    return clv_session_fail_at(c, spec->op_pos, err, "%s", why.text);
  if (spec->from.n)
    return clv_session_fail_at(c, spec->from_pos, err,
                               "from: belongs to session files; a program gives a layer its inputs "
                               "with cleave_graph_op");
  if (spec->n_attrs > MAX_ATTRIBUTES)
    return clv_session_fail_at(c, spec->pos, err, "%zu attributes; at most %d", spec->n_attrs,
                               MAX_ATTRIBUTES);
  for (size_t i = 0; i < spec->n_attrs; i++)
    CLV_TRY(read_attribute(c, op, &spec->attrs[i], &values[i], err));
  clv_code code = clv_attrs_parse(op, values, (int)spec->n_attrs, &attrs, &why);
  if (code == CLV_OK) code = clv_graph_add(g, op, &attrs, name, layer_index, in, n_in, ret, &why);
  if (code != CLV_OK) return clv_session_fail_at(c, spec->pos, err, "%s", why.text);
  if (spec->tied && clv_graph_tie_param(g, *ret, spec->tied, false, &why) != CLV_OK)
    return clv_session_fail_at(c, spec->tied_pos, err, "tied: %s", why.text);
  return CLV_OK;
}

/* Checks that the layer can be divided into n_parts as its key `parallel` says. */
static clv_code check_layer_division(const clv_session_config *c, const clv_layer_spec *spec,
                                     const clv_graph *g, int node, uint32_t n_parts, clv_err *err) {
  clv_err why;
  if (spec->tied && n_parts)
    return clv_session_fail_at(c, spec->tied_pos, err,
                               "tied: layers of a network that is divided over nodes share no "
                               "parameter");
  if (spec->parallel == CLV_LAYER_WHOLE) return CLV_OK;
  if (!n_parts)
    return clv_session_fail_at(c, spec->parallel_pos, err,
                               "parallel: a module has one node, and a layer is divided over "
                               "several: cleave_parallel_load takes their names");
  if (clv_divide_check_node(g, node, (clv_parallel)spec->parallel, n_parts, &why) != CLV_OK)
    return clv_session_fail_at(c, spec->parallel_pos, err, "%s", why.text);
  return CLV_OK;
}

/* Text before a caller's layers, which makes them part of a session file. */
#define TEXT_BEFORE_LAYERS "stages: [{name: layers, at: master, layers: "

static cleave_status parse_layers(const char *layers, clv_session_config **ret,
                                  cleave_error *error) {
  CLV_AUTO(clv_bytes_done) clv_bytes text = {0};
  clv_bytes_printf(&text, TEXT_BEFORE_LAYERS "%s}]\nversion: 1\nname: layers\n", layers);
  if (text.failed) return api_fail(error, CLV_EXHAUSTED, "out of memory");
  return api_read_config("layers", text.data, ret, error);
}

/* Adds the layers of the first stage to g as a chain. divisions: [n_layers + 1] receives, for each
 * node of the graph, how its layer is divided into parts; node 0 is the input. */
static clv_code add_layer_chain(const clv_session_config *c, uint32_t first_layer, uint32_t n_parts,
                                clv_parallel *divisions, clv_graph *g, clv_err *err) {
  const clv_stage_spec *s = &c->stages[0];
  int last_node = 0;
  for (size_t i = 0; i < s->n_layers; i++) {
    CLV_TRY(add_layer(c, &s->layers[i], s->layers[i].name, first_layer + (uint32_t)i, &last_node, 1,
                      g, &last_node, err));
    CLV_TRY(check_layer_division(c, &s->layers[i], g, last_node, n_parts, err));
    divisions[last_node] = (clv_parallel)s->layers[i].parallel;
  }
  return CLV_OK;
}

static cleave_status build_layers_graph(const char *layers, const cleave_input *input,
                                        uint32_t first_layer, uint32_t n_parts,
                                        clv_parallel **ret_divisions, clv_graph **ret,
                                        cleave_error *error) {
  CLV_AUTO(clv_session_config_freep) clv_session_config *c = NULL;
  CLV_AUTO(clv_graph_freep) clv_graph *g = NULL;
  CLV_AUTO(clv_freep) clv_parallel *divisions = NULL;
  clv_shape shape;
  TRY_API(api_copy_shape_in(input->rank, input->shape, &shape, error));
  TRY_API(parse_layers(layers, &c, error));
  TRY(clv_alloc(c->stages[0].n_layers + 1, sizeof *divisions, &divisions, &err));
  TRY(clv_graph_new(&g, &err));
  TRY(clv_graph_add_input(g, "input", (clv_dtype)input->dtype, &shape, &(int){0}, &err));
  TRY(add_layer_chain(c, first_layer, n_parts, divisions, g, &err));
  *ret = clv_steal(&g);
  if (ret_divisions) *ret_divisions = clv_steal(&divisions);
  return CLEAVE_OK;
}

cleave_status api_graph_from_layers(const char *layers, const cleave_input *input,
                                    uint32_t first_layer, uint32_t n_parts,
                                    clv_parallel **ret_divisions, clv_graph **ret,
                                    cleave_error *error) {
  return map_error_positions(
      build_layers_graph(layers, input, first_layer, n_parts, ret_divisions, ret, error), "layers",
      layers, sizeof TEXT_BEFORE_LAYERS - 1, error);
}

/* Builds the graph of a model, or of a range of its layers. model_text: the keys of `model:` in
 * YAML flow syntax with the closing brace, such as "arch: mlp}". */
static cleave_status build_model_graph(const char *model_text, const char *layers,
                                       const cleave_input *input, clv_graph **ret,
                                       cleave_error *error) {
  CLV_AUTO(clv_session_config_freep) clv_session_config *c = NULL;
  CLV_AUTO(clv_bytes_done) clv_bytes text = {0};
  clv_shape shape;
  TRY_API(api_copy_shape_in(input->rank, input->shape, &shape, error));
  clv_bytes_printf(&text,
                   "model: {%s\nversion: 1\nname: model\n"
                   "stages: [{name: part, at: master, layers: %s}]\n",
                   model_text, layers ? layers : "0..0");
  if (text.failed) return api_fail(error, CLV_EXHAUSTED, "out of memory");
  TRY_API(api_read_config("model", text.data, &c, error));
  if (layers)
    TRY(clv_model_make_first_stage_graph(c, &shape, ret, &err));
  else
    TRY(clv_model_make_full_graph(c, &shape, ret, &err));
  return CLEAVE_OK;
}

cleave_status api_graph_from_arch(const char *arch_name, const char *attributes, const char *layers,
                                  const cleave_input *input, clv_graph **ret, cleave_error *error) {
  CLV_AUTO(clv_bytes_done) clv_bytes model = {0};
  const char *inner_attributes = attributes ? strchr(attributes, '{') : NULL;
  clv_bytes_printf(&model, "arch: %s%s%s", arch_name, inner_attributes ? ", " : "}",
                   inner_attributes ? inner_attributes + 1 : "");
  if (model.failed) return api_fail(error, CLV_EXHAUSTED, "out of memory");
  return map_error_positions(build_model_graph((const char *)model.data, layers, input, ret, error),
                             "model", NULL, 0, error);
}

/* Appends `text` in single quotes of YAML. */
static void add_quoted(clv_bytes *to, const char *text) {
  clv_bytes_printf(to, "'");
  for (; *text; text++) clv_bytes_printf(to, *text == '\'' ? "''" : "%c", *text);
  clv_bytes_printf(to, "'");
}

/* Appends the key `ignore_keys` to the text of a model, if the options list keys to ignore. */
static cleave_status add_ignore_keys(clv_bytes *to, const cleave_module_options *o,
                                     cleave_error *error) {
  for (size_t i = 0; i < o->n_ignore_keys; i++) {
    const char *key = o->ignore_keys ? o->ignore_keys[i] : NULL;
    if (!key || !*key || !clv_wire_is_text(key))
      return api_fail(error, CLV_INVALID,
                      "ignore_keys[%zu] is NULL, empty or has control characters: give the name of "
                      "a key of config.json",
                      i);
    clv_bytes_printf(to, i ? ", " : ", ignore_keys: [");
    add_quoted(to, key);
  }
  clv_bytes_printf(to, o->n_ignore_keys ? "]" : "");
  return CLEAVE_OK;
}

cleave_status api_graph_from_hf(const char *folder, const cleave_module_options *o,
                                const char *layers, const char *head, const cleave_input *input,
                                clv_graph **ret, cleave_error *error) {
  CLV_AUTO(clv_bytes_done) clv_bytes model = {0};
  if (!clv_wire_is_text(folder))
    return api_fail(error, CLV_INVALID, "a folder whose name has control characters");
  clv_bytes_printf(&model, "hf: ");
  add_quoted(&model, folder);
  TRY_API(add_ignore_keys(&model, o, error));
  clv_bytes_printf(&model, ", head: %s}", head ? head : "none");
  if (model.failed) return api_fail(error, CLV_EXHAUSTED, "out of memory");
  return map_error_positions(build_model_graph((const char *)model.data, layers, input, ret, error),
                             "model", NULL, 0, error);
}

/* ---- building graphs node by node ------------------------------------------------------------ */

cleave_status cleave_graph_new(cleave_graph **ret_graph, cleave_error *error) {
  NOT_NULL(ret_graph);
  cleave_graph *g;
  TRY(clv_alloc(1, sizeof *g, &g, &err));
  clv_err err;
  if (clv_graph_new(&g->graph, &err) != CLV_OK) {
    free(g);
    return api_convert_error(error, &err);
  }
  *ret_graph = g;
  return CLEAVE_OK;
}

void cleave_graph_free(cleave_graph *graph) {
  if (!graph) return;
  clv_graph_free(graph->graph);
  free(graph);
}

cleave_status cleave_graph_input(cleave_graph *graph, const char *name, cleave_dtype dtype,
                                 const int64_t *shape, int rank, int *ret_node,
                                 cleave_error *error) {
  NOT_NULL(graph, name, shape, ret_node);
  clv_shape s;
  TRY_API(api_copy_shape_in(rank, shape, &s, error));
  TRY(clv_graph_add_input(graph->graph, name, (clv_dtype)dtype, &s, ret_node, &err));
  return CLEAVE_OK;
}

static cleave_status add_op(cleave_graph *graph, const char *op, const char *attributes,
                            const char *name, const int *inputs, int n_inputs, int *ret_node,
                            cleave_error *error) {
  CLV_AUTO(clv_session_config_freep) clv_session_config *c = NULL;
  CLV_AUTO(clv_bytes_done) clv_bytes layer = {0};
  const char *inner_attributes = attributes ? strchr(attributes, '{') : NULL;
  const char *first =
      inner_attributes ? inner_attributes + 1 + strspn(inner_attributes + 1, " \t\n") : "}";
  if (n_inputs < 1 || n_inputs > CLV_MAX_IN)
    return api_fail(error, CLV_INVALID, "%s with %d inputs; 1 to %d are possible", op, n_inputs,
                    CLV_MAX_IN);
  clv_bytes_printf(&layer, "[{op: %s%s%s]", op, *first == '}' ? "" : ", ", first);
  if (layer.failed) return api_fail(error, CLV_EXHAUSTED, "out of memory");
  TRY_API(parse_layers(layer.data, &c, error));
  int node;
  TRY(check_layer_division(c, &c->stages[0].layers[0], graph->graph, 0, 0, &err));
  TRY(add_layer(c, &c->stages[0].layers[0], name, graph->n_ops, inputs, n_inputs, graph->graph,
                &node, &err));
  graph->n_ops++;
  graph->graph->output_node = node;
  if (ret_node) *ret_node = node;
  return CLEAVE_OK;
}

cleave_status cleave_graph_op(cleave_graph *graph, const char *op, const char *attributes,
                              const char *name, const int *inputs, int n_inputs, int *ret_node,
                              cleave_error *error) {
  NOT_NULL(graph, op, inputs);
  return map_error_positions(add_op(graph, op, attributes, name, inputs, n_inputs, ret_node, error),
                             "layers", NULL, 0, error);
}

cleave_status cleave_graph_output(cleave_graph *graph, int node, cleave_error *error) {
  NOT_NULL(graph);
  const clv_graph *g = graph->graph;
  if (node < 0 || node >= g->n_nodes || g->nodes[node].op == CLV_OP_INPUT)
    return api_fail(error, CLV_INVALID, "output %d: %d is no op of this graph", graph->n_outputs,
                    node);
  if (graph->n_outputs == CLV_MAX_OUTPUTS)
    return api_fail(error, CLV_EXHAUSTED, "a module has at most %d outputs", CLV_MAX_OUTPUTS);
  graph->outputs[graph->n_outputs++] = node;
  return CLEAVE_OK;
}

clv_code api_graph_copy(const clv_graph *from, clv_graph **ret, clv_err *err) {
  CLV_AUTO(clv_graph_freep) clv_graph *g = NULL;
  int at;
  CLV_TRY(clv_graph_new(&g, err));
  for (int i = 0; i < from->n_nodes; i++) {
    const clv_node *n = &from->nodes[i];
    if (n->op == CLV_OP_INPUT)
      CLV_TRY(clv_graph_add_input(g, n->name, n->dtype, &n->shape, &at, err));
    else
      CLV_TRY(clv_graph_add(g, n->op, &n->attrs, n->name, n->layer, n->in, n->n_in, &at, err));
    g->nodes[at].key = n->key;
    g->nodes[at].recompute_block = n->recompute_block;
    memcpy(g->nodes[at].tie_owner, n->tie_owner, sizeof n->tie_owner);
    g->nodes[at].tie_owner_is_outside = n->tie_owner_is_outside;
  }
  g->output_node = from->output_node;
  *ret = clv_steal(&g);
  return CLV_OK;
}
