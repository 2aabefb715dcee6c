/* SPDX-License-Identifier: Apache-2.0
 *
 * Marks the graph nodes of a module whose forward runs again before their backward
 * (cleave_module_options.recompute_blocks).
 */
#include <stdio.h>
#include <string.h>

#include "master/api/core/recompute_blocks_int.h"

/* Finds the first and the last graph node of a block: the nodes whose name is `name`, or begins
 * with `name` and a dot. */
static bool find_block(const clv_graph *g, const char *name, size_t len, int *ret_first_node,
                       int *ret_last_node) {
  bool is_found = false;
  for (int i = 0; i < g->n_nodes; i++) {
    const char *node = g->nodes[i].name;
    if (g->nodes[i].op == CLV_OP_INPUT || strncmp(node, name, len) != 0) continue;
    if (node[len] && node[len] != '.') continue;
    if (!is_found) *ret_first_node = i;
    *ret_last_node = i;
    is_found = true;
  }
  return is_found;
}

static clv_code fail_no_block(const clv_graph *g, const char *name, clv_err *err) {
  const char *names[64];
  size_t n = 0;
  for (int i = 0; i < g->n_nodes && n < CLV_COUNT(names); i++)
    if (g->nodes[i].op != CLV_OP_INPUT) names[n++] = g->nodes[i].name;
  const char *suggestion = clv_did_you_mean(name, names, n);
  return clv_fail(err, CLV_NOT_FOUND, "there is no layer or block '%s'%s%s%s", name,
                  suggestion ? "; did you mean '" : "", suggestion ? suggestion : "",
                  suggestion ? "'?" : "");
}

static clv_code prefix_error_with_entry(const char *entry, clv_code code, clv_err *err) {
  return code == CLV_OK ? CLV_OK : clv_err_prefix(err, "'%s'", entry);
}

static clv_code mark_blocks_of_entry(clv_graph *g, const char *entry, uint32_t *n_blocks,
                                     clv_err *err) {
  const char *range_dots = strstr(entry, "..");
  int first, last, unused_index;
  if (!range_dots) {
    if (!find_block(g, entry, strlen(entry), &first, &last)) return fail_no_block(g, entry, err);
    return prefix_error_with_entry(
        entry, clv_graph_mark_recompute_blocks(g, entry, first, last, n_blocks, err), err);
  }
  if (!find_block(g, entry, (size_t)(range_dots - entry), &first, &unused_index) ||
      !find_block(g, range_dots + 2, strlen(range_dots + 2), &unused_index, &last))
    return fail_no_block(g, entry, err);
  if (first > last)
    return clv_fail(err, CLV_INVALID, "the layers of '%s' are the wrong way round", entry);
  return prefix_error_with_entry(entry, clv_graph_mark_recompute(g, first, last, ++*n_blocks, err),
                                 err);
}

cleave_status api_mark_recompute_blocks(cleave_module *m, const cleave_module_options *o,
                                        cleave_error *error) {
  uint32_t n_blocks = 0;
  clv_err err;
  for (size_t i = 0; i < o->n_recompute_blocks; i++)
    if (mark_blocks_of_entry(m->graph, o->recompute_blocks[i], &n_blocks, &err) != CLV_OK)
      return api_fail(error, err.code, "module '%s': recompute_blocks: %s", m->name, err.text);
  return CLEAVE_OK;
}
