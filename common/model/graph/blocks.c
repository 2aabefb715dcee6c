/* SPDX-License-Identifier: Apache-2.0
 *
 * Marking of recompute blocks (clv_node.recompute_block). All nodes below one name form a block,
 * unless a number follows the name: then the nodes of each number form a block ("encoder.layer"
 * stands for the blocks "encoder.layer.0", "encoder.layer.1" and so on).
 */
#include <ctype.h>
#include <string.h>

#include "common/model/graph/graph_int.h"

static const char *name_without_prefix(const clv_graph *g, int node) {
  const char *name = g->nodes[node].name;
  size_t prefix = strlen(g->name_prefix);
  return prefix && strncmp(name, g->name_prefix, prefix) == 0 ? name + prefix : name;
}

clv_code clv_graph_mark_recompute(clv_graph *g, int first, int last, uint32_t number,
                                  clv_err *err) {
  for (int i = first; i <= last; i++) {
    if (g->nodes[i].op == CLV_OP_INPUT) continue;
    if (g->nodes[i].recompute_block)
      return clv_fail(err, CLV_EXISTS, "layer '%s' is in another block already",
                      name_without_prefix(g, i));
    g->nodes[i].recompute_block = number;
  }
  return CLV_OK;
}

/* Finds the number in a node's name that follows the first name_len bytes and a dot, and sets *ret
 * to it. Returns its number of digits; 0: there is no number. */
static size_t find_number_after_name(const char *node, size_t name_len, const char **ret) {
  size_t n = 0;
  *ret = node + name_len + 1;
  if (node[name_len] != '.') return 0;
  while (isdigit((unsigned char)(*ret)[n])) n++;
  return (*ret)[n] == '.' || !(*ret)[n] ? n : 0;
}

/* Returns true if a number follows the first name_len bytes in the names of all nodes first to
 * last. */
static bool has_numbers_after_name(const clv_graph *g, size_t name_len, int first, int last) {
  const char *unused;
  for (int i = first; i <= last; i++)
    if (!find_number_after_name(name_without_prefix(g, i), name_len, &unused)) return false;
  return true;
}

/* Returns the last of the consecutive nodes from `at`, up to `last`, whose names have the same
 * number (see find_number_after_name) as the name of `at`. */
static int last_node_with_same_number(const clv_graph *g, size_t name_len, int at, int last) {
  const char *number, *other;
  size_t n = find_number_after_name(name_without_prefix(g, at), name_len, &number);
  while (at < last) {
    size_t len = find_number_after_name(name_without_prefix(g, at + 1), name_len, &other);
    if (len != n || memcmp(number, other, n)) break;
    at++;
  }
  return at;
}

clv_code clv_graph_mark_recompute_blocks(clv_graph *g, const char *name, int first, int last,
                                         uint32_t *n_blocks, clv_err *err) {
  size_t prefix = strlen(g->name_prefix), len = strlen(name);
  if (prefix && strncmp(name, g->name_prefix, prefix) == 0) len -= prefix;
  bool has_numbers = has_numbers_after_name(g, len, first, last);
  for (int i = first, end; i <= last; i = end + 1) {
    end = has_numbers ? last_node_with_same_number(g, len, i, last) : last;
    CLV_TRY(clv_graph_mark_recompute(g, i, end, ++*n_blocks, err));
  }
  return CLV_OK;
}
