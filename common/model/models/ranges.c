/* SPDX-License-Identifier: Apache-2.0
 *
 * Ranges of the stages in the model (clv_stages_find_layers, clv_range_find_layers). An end of a
 * range is the number of a layer, the name of a layer, or the name of a block. A block contains all
 * layers whose names begin with its name and a dot ("layer3" is "layer3.0.conv1" to
 * "layer3.5.relu"). The graph of a model has first its inputs and then a node for each layer.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/model/models/models_int.h"

uint32_t clv_model_n_inputs(const clv_graph *g) {
  uint32_t n = 0;
  while (n < (uint32_t)g->n_nodes && g->nodes[n].op == CLV_OP_INPUT) n++;
  return n;
}

static uint32_t count_layers(const clv_graph *g) {
  return (uint32_t)g->n_nodes - clv_model_n_inputs(g);
}

static const char *name_without_prefix(const clv_graph *g, const char *name) {
  size_t len = strlen(g->name_prefix);
  return name + (strncmp(name, g->name_prefix, len) == 0 ? len : 0);
}

const char *clv_layer_name(const clv_graph *g, uint32_t layer) {
  return name_without_prefix(g, g->nodes[layer + clv_model_n_inputs(g)].name);
}

/* ---- blocks of layers ------------------------------------------------------------------------ */

static bool is_in_block(const char *layer, const char *block, size_t len) {
  return strncmp(layer, block, len) == 0 && (layer[len] == '\0' || layer[len] == '.');
}

bool clv_block_find_layers(const clv_graph *g, const char *block, uint32_t *ret_first,
                           uint32_t *ret_last) {
  bool found = false;
  block = name_without_prefix(g, block);
  for (uint32_t i = 0; i < count_layers(g); i++) {
    if (!is_in_block(clv_layer_name(g, i), block, strlen(block))) continue;
    if (!found) *ret_first = i;
    *ret_last = i;
    found = true;
  }
  return found;
}

/* Returns the length of the name of the smallest block that contains both layers; 0: no block does.
 */
static size_t common_block_len(const clv_graph *g, uint32_t a, uint32_t b) {
  const char *name = clv_layer_name(g, a);
  for (size_t len = strlen(name); len > 0; len--)
    if (name[len] == '.' && is_in_block(clv_layer_name(g, b), name, len)) return len;
  return 0;
}

/* Writes the name of the largest block whose last layer (step 1) or first layer (step -1) is this
 * layer. */
static const char *boundary_block_name(const clv_graph *g, uint32_t layer, int step, char *buf,
                                       size_t size) {
  const char *name = clv_layer_name(g, layer);
  int64_t neighbour = (int64_t)layer + step;
  bool has_neighbour = neighbour >= 0 && neighbour < count_layers(g);
  size_t shared = has_neighbour ? common_block_len(g, layer, (uint32_t)neighbour) : 0;
  /* the block's name continues behind the dot of the shared block */
  size_t len = shared ? shared + 1 : 0;
  while (name[len] && name[len] != '.') len++;
  snprintf(buf, size, "%.*s", (int)len, name);
  return buf;
}

/* Writes a layer for a message: "layer 82 ('layer3')", or only the number if the layer has no other
 * name. */
static const char *describe_layer(const clv_graph *g, uint32_t layer, int step, char *buf,
                                  size_t size) {
  char name[CLV_NAME_MAX], number[16];
  snprintf(number, sizeof number, "%" PRIu32, layer);
  bool has_other_name = strcmp(boundary_block_name(g, layer, step, name, sizeof name), number) != 0;
  snprintf(buf, size, has_other_name ? "layer %s ('%s')" : "layer %s", number, name);
  return buf;
}

/* ---- messages about unknown names ------------------------------------------------------------ */

/* Finds the name of a layer or block that is most similar to `name`. *ret "": none is similar. */
static clv_code suggest_name(const clv_graph *g, const char *name, char *ret, size_t size,
                             clv_err *err) {
  CLV_AUTO(clv_freep) const char **names = NULL;
  CLV_AUTO(clv_freep) char *texts = NULL;
  size_t n = 0, max_names = (size_t)count_layers(g) * (CLV_NAME_MAX / 2);
  CLV_TRY(clv_alloc(max_names, sizeof *names, &names, err));
  CLV_TRY(clv_alloc(max_names, CLV_NAME_MAX, &texts, err));
  for (uint32_t i = 0; i < count_layers(g); i++)
    for (const char *full_name = clv_layer_name(g, i), *dot = full_name; dot;
         dot = strchr(dot + 1, '.')) {
      size_t len =
          strchr(dot + 1, '.') ? (size_t)(strchr(dot + 1, '.') - full_name) : strlen(full_name);
      if (i && is_in_block(clv_layer_name(g, i - 1), full_name, len)) continue;
      names[n] = texts + n * CLV_NAME_MAX;
      snprintf(texts + n++ * CLV_NAME_MAX, CLV_NAME_MAX, "%.*s", (int)len, full_name);
    }
  const char *suggestion = clv_did_you_mean(name, names, n);
  snprintf(ret, size, "%s", suggestion ? suggestion : "");
  return CLV_OK;
}

/* Lists the names of the outermost blocks, "conv1, bn1, ... layer4, fc", as many as fit the buffer.
 */
static void list_top_blocks(const clv_graph *g, char *ret, size_t size) {
  char name[CLV_NAME_MAX];
  size_t used = 0;
  uint32_t first, last = 0;
  ret[0] = '\0';
  for (uint32_t i = 0; i < count_layers(g); i = last + 1) {
    snprintf(name, sizeof name, "%.*s", (int)strcspn(clv_layer_name(g, i), "."),
             clv_layer_name(g, i));
    if (!clv_block_find_layers(g, name, &first, &last) || used + strlen(name) + 8 > size) {
      snprintf(ret + used, size - used, ", ...");
      return;
    }
    used += (size_t)snprintf(ret + used, size - used, "%s%s", used ? ", " : "", name);
  }
}

/* Writes "; a range is written 0..3" if `name` looks like "0-3" and starts with an existing layer;
 * otherwise "". */
static void suggest_range_syntax(const clv_graph *g, const char *name, char *ret, size_t size) {
  char begin[CLV_NAME_MAX];
  uint32_t first, last;
  size_t len = strcspn(name, "-");
  snprintf(begin, sizeof begin, "%.*s", (int)len, name);
  ret[0] = '\0';
  if (!len || !name[len] || !name[len + 1]) return;
  if (begin[strspn(begin, "0123456789")] && !clv_block_find_layers(g, begin, &first, &last)) return;
  snprintf(ret, size, "; a range is written %s..%s", begin, name + len + 1);
}

static clv_code fail_unknown_name(const clv_session_config *c, const clv_graph *g,
                                  const clv_stage_spec *s, clv_config_pos pos, const char *name,
                                  clv_err *err) {
  char suggestion[CLV_NAME_MAX] = "", top_blocks[160], range[CLV_NAME_MAX + 40];
  suggest_range_syntax(g, name, range, sizeof range);
  if (!range[0]) CLV_TRY(suggest_name(g, name, suggestion, sizeof suggestion, err));
  list_top_blocks(g, top_blocks, sizeof top_blocks);
  return clv_session_fail_at(
      c, pos, err, "stage '%.64s': the model has no layer or block '%s'%s%s%s%s; it has %s",
      s->name, name, range, suggestion[0] ? ", did you mean '" : "", suggestion,
      suggestion[0] ? "'?" : "", top_blocks);
}

/* ---- ends of stages -------------------------------------------------------------------------- */

/* Returns the nearest layer in direction `step` behind which the model can be cut: only one value
 * crosses there, and the cut is not inside the block that contains the refused cut; -1: there is
 * none. block_len: length of the name of that block. */
static int64_t find_nearest_cut(const clv_graph *g, uint32_t layer, int step, size_t block_len) {
  int64_t at = (int64_t)layer + step;
  int unused[CLV_MAX_NODES];
  for (; at >= 0 && at + 1 < count_layers(g); at += step)
    if (clv_graph_find_crossing_nodes(g, (uint32_t)at, unused) == 1 &&
        common_block_len(g, (uint32_t)at, (uint32_t)at + 1) < CLV_MAX(block_len, 1))
      return at;
  return -1;
}

static clv_code fail_no_cut(const clv_session_config *c, const clv_graph *g,
                            const clv_stage_spec *s, uint32_t layer, const int crossing_nodes[2],
                            clv_err *err) {
  char where[96], cut_before[CLV_NAME_MAX] = "", cut_after[CLV_NAME_MAX] = "";
  size_t block_len = common_block_len(g, layer, layer + 1);
  int64_t cut_layer_before = find_nearest_cut(g, layer, -1, block_len),
          cut_layer_after = find_nearest_cut(g, layer, 1, block_len);
  snprintf(where, sizeof where, block_len ? "inside block '%.*s'" : "where branches are open%.*s",
           (int)block_len, block_len ? clv_layer_name(g, layer) : "");
  if (cut_layer_before >= 0)
    boundary_block_name(g, (uint32_t)cut_layer_before, 1, cut_before, sizeof cut_before);
  if (cut_layer_after >= 0)
    boundary_block_name(g, (uint32_t)cut_layer_after, 1, cut_after, sizeof cut_after);
  return clv_session_fail_at(
      c, s->layers_pos, err,
      "stage '%.64s' ends %s, where two values would cross, of '%s' and '%s'; end it with %s%s%s",
      s->name, where, g->nodes[crossing_nodes[0]].name, g->nodes[crossing_nodes[1]].name,
      cut_before, cut_before[0] && cut_after[0] ? " or " : "", cut_after);
}

/* ---- ranges of stages ------------------------------------------------------------------------ */

static clv_code find_range_end(const clv_session_config *c, const clv_graph *g,
                               const clv_stage_spec *s, clv_config_pos pos, const char *name,
                               uint64_t number, bool is_end, uint64_t *ret, clv_err *err) {
  uint32_t begin = 0, end = 0;
  *ret = number;
  if (!name[0]) return CLV_OK;
  if (!clv_block_find_layers(g, name, &begin, &end))
    return fail_unknown_name(c, g, s, pos, name, err);
  *ret = is_end ? end : begin;
  return CLV_OK;
}

/* Fails because a layer number of the range is too large. The text lists the outermost blocks if
 * layers have names. */
static clv_code fail_out_of_range(const clv_session_config *c, const clv_graph *g,
                                  const clv_stage_spec *s, clv_config_pos pos, uint64_t first,
                                  uint64_t last, clv_err *err) {
  char top_blocks[160];
  bool has_names = strcmp(clv_layer_name(g, 0), "0") != 0;
  list_top_blocks(g, top_blocks, sizeof top_blocks);
  return clv_session_fail_at(c, pos, err,
                             "stage '%.64s': layers %" PRIu64 "..%" PRIu64
                             ": the model has layers 0..%" PRIu32
                             "%s%s; up to its end it is %" PRIu64 "..%" PRIu32,
                             s->name, first, last, count_layers(g) - 1,
                             has_names ? ", by name " : "", has_names ? top_blocks : "",
                             first < count_layers(g) ? first : UINT64_C(0), count_layers(g) - 1);
}

clv_code clv_range_find_layers(const clv_session_config *c, const clv_graph *g,
                               const clv_stage_spec *s, clv_config_pos pos,
                               const clv_layer_range *range, uint32_t *ret_first,
                               uint32_t *ret_last, clv_err *err) {
  char begin[96], end[96];
  uint64_t first, last;
  CLV_TRY(find_range_end(c, g, s, pos, range->first_layer_name, range->first, false, &first, err));
  CLV_TRY(find_range_end(c, g, s, pos, range->last_layer_name, range->last, true, &last, err));
  if (first >= count_layers(g) || last >= count_layers(g))
    return fail_out_of_range(c, g, s, pos, first, last, err);
  if (last < first)
    return clv_session_fail_at(c, pos, err, "stage '%s' ends before it begins: %s to %s", s->name,
                               describe_layer(g, (uint32_t)first, -1, begin, sizeof begin),
                               describe_layer(g, (uint32_t)last, 1, end, sizeof end));
  *ret_first = (uint32_t)first;
  *ret_last = (uint32_t)last;
  return CLV_OK;
}

clv_code clv_stage_find_layers(const clv_session_config *c, const clv_graph *g, size_t stage,
                               uint32_t *ret_first, uint32_t *ret_last, clv_err *err) {
  const clv_stage_spec *s = &c->stages[stage];
  if (!s->range.is_given)
    return clv_session_fail_at(c, s->pos, err, "stage '%s' has no layers", s->name);
  return clv_range_find_layers(c, g, s, s->layers_pos, &s->range, ret_first, ret_last, err);
}

/* Checks that a stage begins where the one before it ended. */
static clv_code check_follows_previous(const clv_session_config *c, const clv_graph *g,
                                       const clv_stage_spec *s, uint32_t first, uint32_t at,
                                       clv_err *err) {
  char begin[96], next[96];
  if (first == at) return CLV_OK;
  if (at == count_layers(g))
    return clv_session_fail_at(c, s->layers_pos, err,
                               "stage '%s' comes behind the end of the model", s->name);
  return clv_session_fail_at(c, s->layers_pos, err, "stage '%s' starts with %s, but %s is next",
                             s->name, describe_layer(g, first, -1, begin, sizeof begin),
                             describe_layer(g, at, -1, next, sizeof next));
}

/* Checks that the values that cross the cut behind a stage can be joined into one tensor. */
static clv_code check_cut(const clv_session_config *c, const clv_graph *g, const clv_stage_spec *s,
                          uint32_t last, clv_err *err) {
  clv_err why;
  if (last + 1 == count_layers(g) || clv_graph_check_cut(g, last, &why) == CLV_OK) return CLV_OK;
  return clv_session_fail_at(c, s->layers_pos, err, "stage '%.64s': behind it %s", s->name,
                             why.text);
}

clv_code clv_stages_check_cuts(const clv_session_config *c, const clv_graph *g,
                               const uint32_t *last, clv_err *err) {
  for (size_t i = 0; i < c->n_stages; i++) CLV_TRY(check_cut(c, g, &c->stages[i], last[i], err));
  return CLV_OK;
}

clv_code clv_stage_check_single_output(const clv_session_config *c, const clv_graph *g,
                                       size_t stage, uint32_t last, clv_err *err) {
  int crossing_nodes[CLV_MAX_NODES];
  if (last + 1 < count_layers(g) && clv_graph_find_crossing_nodes(g, last, crossing_nodes) != 1)
    return fail_no_cut(c, g, &c->stages[stage], last, crossing_nodes, err);
  return CLV_OK;
}

clv_code clv_stages_find_layers(const clv_session_config *c, const clv_graph *g,
                                uint32_t *ret_first, uint32_t *ret_last, clv_err *err) {
  char end[96], model_end[96];
  uint32_t at = 0;
  for (size_t i = 0; i < c->n_stages; i++) {
    CLV_TRY(clv_stage_find_layers(c, g, i, &ret_first[i], &ret_last[i], err));
    CLV_TRY(check_follows_previous(c, g, &c->stages[i], ret_first[i], at, err));
    at = ret_last[i] + 1;
  }
  if (at == count_layers(g)) return clv_stages_check_cuts(c, g, ret_last, err);
  return clv_session_fail_at(
      c, c->model.pos, err, "the stages end with %s, the model with %s",
      describe_layer(g, at - 1, 1, end, sizeof end),
      describe_layer(g, count_layers(g) - 1, 1, model_end, sizeof model_end));
}
