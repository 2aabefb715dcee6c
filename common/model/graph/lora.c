/* SPDX-License-Identifier: Apache-2.0
 *
 * clv_graph_add_lora: insertion of low-rank adapters next to linear layers, with peft's names for
 * their parameters. The scale is applied between A and B, because a row has only r values there.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/model/graph/graph_int.h"

typedef struct rewrite {
  const clv_graph *source;
  uint32_t first_layer, last_layer;
  const clv_lora *lora;
  clv_graph *to;
  /* [source->n_nodes] for each node of `source`, the node of `to` whose value replaces its value */
  int *new_nodes;
} rewrite;

/* ---- names of adapters and modules ----------------------------------------------------------- */

bool clv_name_is_of_adapter(const char *name) {
  const char *at = strstr(name, ".lora_");
  return at && (at[6] == 'A' || at[6] == 'B') && (at[7] == '\0' || at[7] == '.');
}

bool clv_name_is_in_module(const char *name, const char *path) {
  size_t len = strlen(path);
  for (const char *at = name; at; at = strchr(at, '.')) {
    at += at != name;
    if (strncmp(at, path, len) == 0 && (at[len] == '\0' || at[len] == '.')) return true;
  }
  return false;
}

static bool name_matches_target(const char *name, const char *target) {
  size_t n = strlen(name), len = strlen(target);
  if (n < len || strcmp(name + n - len, target) != 0) return false;
  return n == len || name[n - len - 1] == '.';
}

static bool is_in_layer_range(const rewrite *w, const clv_node *n) {
  return n->op != CLV_OP_INPUT && n->layer >= w->first_layer && n->layer <= w->last_layer;
}

static bool gets_adapter(const rewrite *w, const clv_node *n) {
  bool is_target = false;
  for (size_t i = 0; i < w->lora->n_targets; i++)
    is_target |= name_matches_target(n->name, w->lora->targets[i]);
  return is_target && is_in_layer_range(w, n);
}

/* ---- checks of the targets ------------------------------------------------------------------- */

static const char *last_name_part(const char *name) {
  const char *dot = strrchr(name, '.');
  return dot ? dot + 1 : name;
}

static bool is_in_name_list(const char *const *list, size_t n, const char *name) {
  for (size_t i = 0; i < n; i++)
    if (strcmp(list[i], name) == 0) return true;
  return false;
}

enum { MAX_SHOWN_NAMES = 8 };

static clv_code fail_unknown_target(const rewrite *w, const char *target, clv_err *err) {
  CLV_AUTO(clv_freep) const char **names = NULL;
  CLV_AUTO(clv_bytes_done) clv_bytes list = {0};
  size_t n = 0;
  CLV_TRY(clv_alloc((size_t)w->source->n_nodes, sizeof *names, &names, err));
  for (int i = 0; i < w->source->n_nodes; i++) {
    const clv_node *node = &w->source->nodes[i];
    const char *name = last_name_part(node->name);
    if (!is_in_layer_range(w, node) || node->op != CLV_OP_LINEAR || is_in_name_list(names, n, name))
      continue;
    if (n < MAX_SHOWN_NAMES) clv_bytes_printf(&list, "%s%s", n ? ", " : "", name);
    if (n == MAX_SHOWN_NAMES) clv_bytes_puts(&list, "...");
    names[n++] = name;
  }
  const char *suggestion = clv_did_you_mean(target, names, n);
  if (suggestion)
    return clv_fail(err, CLV_NOT_FOUND, "no layer here has the name '%.64s', did you mean '%s'?",
                    target, suggestion);
  if (!n)
    return clv_fail(err, CLV_NOT_FOUND,
                    "no layer here has the name '%.64s', and none is a linear layer", target);
  return clv_fail(err, CLV_NOT_FOUND, "no layer here has the name '%.64s'; the linear ones are %s",
                  target, list.failed ? "others" : (const char *)list.data);
}

static clv_code check_target(const rewrite *w, const char *target, clv_err *err) {
  bool found = false;
  for (int i = 0; i < w->source->n_nodes; i++) {
    const clv_node *n = &w->source->nodes[i];
    if (!is_in_layer_range(w, n) || !name_matches_target(n->name, target)) continue;
    if (n->op != CLV_OP_LINEAR)
      return clv_fail(err, CLV_INVALID, "'%s' is of op %s: adapters belong to linear layers",
                      n->name, clv_op_name(n->op));
    found = true;
  }
  return found ? CLV_OK : fail_unknown_target(w, target, err);
}

static clv_code check_targets(const rewrite *w, clv_err *err) {
  for (size_t i = 0; i < w->lora->n_targets; i++)
    CLV_TRY(check_target(w, w->lora->targets[i], err));
  return CLV_OK;
}

/* ---- adding the nodes of adapters ------------------------------------------------------------ */

static clv_attr_value make_int_attr(clv_attr_key key, int64_t v) {
  return (clv_attr_value){.key = key, .n_ints = 1, .ints = {v}};
}

static clv_attr_value make_real_attr(clv_attr_key key, double v) {
  return (clv_attr_value){.key = key, .is_number = true, .number = v};
}

/* Adds the node NAME.suffix to the adapter of the linear layer `n`. *at: in, the node that it
 * reads; out, the new node. */
static clv_code add_adapter_node(rewrite *w, const clv_node *n, clv_op op, const char *suffix,
                                 const clv_attr_value *values, int n_values, int *at,
                                 clv_err *err) {
  char name[2 * CLV_NAME_MAX];
  clv_attrs attrs;
  snprintf(name, sizeof name, "%s.%s", n->name, suffix);
  CLV_TRY(clv_attrs_parse(op, values, n_values, &attrs, err));
  CLV_TRY(clv_graph_add(w->to, op, &attrs, name, n->layer, at, 1, at, err));
  w->to->nodes[*at].recompute_block = n->recompute_block;
  return CLV_OK;
}

static clv_code add_adapter(rewrite *w, const clv_node *n, int *at, clv_err *err) {
  const clv_lora *l = w->lora;
  double scale = l->alpha / (l->rslora ? sqrt((double)l->r) : (double)l->r);
  clv_attr_value p = make_real_attr(CLV_ATTR_P, l->dropout),
                 factor = make_real_attr(CLV_ATTR_FACTOR, scale);
  clv_attr_value a[] = {make_int_attr(CLV_ATTR_OUT, l->r), make_int_attr(CLV_ATTR_BIAS, 0)};
  clv_attr_value b[] = {make_int_attr(CLV_ATTR_OUT, n->attrs.out), make_int_attr(CLV_ATTR_BIAS, 0),
                        make_int_attr(CLV_ATTR_INIT_ZERO, 1)};
  if (l->dropout > 0)
    CLV_TRY(add_adapter_node(w, n, CLV_OP_DROPOUT, "lora_dropout", &p, 1, at, err));
  CLV_TRY(add_adapter_node(w, n, CLV_OP_LINEAR, "lora_A", a, CLV_COUNT(a), at, err));
  if (scale != 1) CLV_TRY(add_adapter_node(w, n, CLV_OP_SCALE, "lora_scale", &factor, 1, at, err));
  return add_adapter_node(w, n, CLV_OP_LINEAR, "lora_B", b, CLV_COUNT(b), at, err);
}

/* Adds the adapter of the linear layer `n` and the sum of both outputs. *node: in, the copy of `n`
 * in the new graph; out, the sum. */
static clv_code add_adapter_sum(rewrite *w, const clv_node *n, int input, int *node, clv_err *err) {
  char name[2 * CLV_NAME_MAX];
  clv_attrs no_attrs = {0};
  int in[2] = {*node, input};
  CLV_TRY(add_adapter(w, n, &in[1], err));
  snprintf(name, sizeof name, "%s.lora_sum", n->name);
  CLV_TRY(clv_graph_add(w->to, CLV_OP_ADD, &no_attrs, name, n->layer, in, 2, node, err));
  w->to->nodes[*node].recompute_block = n->recompute_block;
  return CLV_OK;
}

static clv_code copy_node(rewrite *w, int i, clv_err *err) {
  const clv_node *n = &w->source->nodes[i];
  int in[CLV_MAX_IN], *at = &w->new_nodes[i];
  if (n->op == CLV_OP_INPUT)
    return clv_graph_add_input(w->to, n->name, n->dtype, &n->shape, at, err);
  for (int k = 0; k < n->n_in; k++) in[k] = w->new_nodes[n->in[k]];
  CLV_TRY(clv_graph_add(w->to, n->op, &n->attrs, n->name, n->layer, in, n->n_in, at, err));
  w->to->nodes[*at].key = n->key;
  w->to->nodes[*at].recompute_block = n->recompute_block;
  memcpy(w->to->nodes[*at].tie_owner, n->tie_owner, sizeof n->tie_owner);
  w->to->nodes[*at].tie_owner_is_outside = n->tie_owner_is_outside;
  return gets_adapter(w, n) ? add_adapter_sum(w, n, in[0], at, err) : CLV_OK;
}

clv_code clv_graph_add_lora(const clv_graph *g, uint32_t first_layer, uint32_t last_layer,
                            const clv_lora *lora, clv_graph **ret, clv_err *err) {
  CLV_AUTO(clv_graph_freep) clv_graph *to = NULL;
  CLV_AUTO(clv_freep) int *new_nodes = NULL;
  rewrite w = {.source = g, .first_layer = first_layer, .last_layer = last_layer, .lora = lora};
  CLV_TRY(check_targets(&w, err));
  CLV_TRY(clv_graph_new(&to, err));
  CLV_TRY(clv_alloc((size_t)g->n_nodes, sizeof *new_nodes, &new_nodes, err));
  w.to = to;
  w.new_nodes = new_nodes;
  to->dtype = g->dtype;
  for (int i = 0; i < g->n_nodes; i++) CLV_TRY(copy_node(&w, i, err));
  to->output_node = new_nodes[g->output_node];
  *ret = clv_steal(&to);
  return CLV_OK;
}
