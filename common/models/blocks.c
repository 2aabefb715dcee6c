/* SPDX-License-Identifier: Apache-2.0
 *
 * stages[].recompute_blocks: which layers are computed again for backward together. An entry is a
 * range, which is a block, or a name. What is called so is a block, too, unless it is numbered:
 * then each number is one ("encoder.layer" is "encoder.layer.0", "encoder.layer.1"...).
 */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "common/models/models_int.h"

typedef struct marker {
  const clv_session_config *c;
  clv_graph *g;
  const clv_stage_spec *stage;
  uint32_t first, last; /* layers of the stage */
  uint32_t n_blocks;    /* so far, of all stages */
} marker;

static clv_node *node_of(const marker *m, uint32_t layer) {
  return &m->g->nodes[layer + clv_model_n_inputs(m->g)];
}

/* Layers first..last, the next block. */
static clv_code mark(marker *m, const char *entry, uint32_t first, uint32_t last, clv_err *err) {
  m->n_blocks++;
  for (uint32_t i = first; i <= last; i++) {
    if (node_of(m, i)->recompute)
      return clv_session_fail_at(m->c, m->stage->recompute_blocks_pos, err,
                                 "stage '%s': recompute_blocks: layer '%s' of '%s' is in another "
                                 "block already",
                                 m->stage->name, clv_layer_name(m->g, i), entry);
    node_of(m, i)->recompute = m->n_blocks;
  }
  return CLV_OK;
}

/* The number behind `name` and a dot, as text; 0: there is none. */
static size_t number_after(const char *layer, size_t name, const char **ret) {
  size_t n = 0;
  *ret = layer + name + 1;
  if (layer[name] != '.') return 0;
  while (isdigit((unsigned char)(*ret)[n])) n++;
  return (*ret)[n] == '.' || !(*ret)[n] ? n : 0;
}

static bool is_numbered(const marker *m, size_t name, uint32_t first, uint32_t last) {
  const char *unused;
  for (uint32_t i = first; i <= last; i++)
    if (!number_after(clv_layer_name(m->g, i), name, &unused)) return false;
  return true;
}

/* The last layer that has the number of layer `at`, up to `last`. */
static uint32_t end_of(const marker *m, size_t name, uint32_t at, uint32_t last) {
  const char *number, *other;
  size_t n = number_after(clv_layer_name(m->g, at), name, &number);
  while (at < last) {
    size_t len = number_after(clv_layer_name(m->g, at + 1), name, &other);
    if (len != n || memcmp(number, other, n)) break;
    at++;
  }
  return at;
}

static clv_code mark_name(marker *m, const char *entry, uint32_t first, uint32_t last,
                          clv_err *err) {
  size_t prefix = strlen(m->g->prefix);
  bool named = prefix && strncmp(entry, m->g->prefix, prefix) == 0;
  size_t name = strlen(entry) - (named ? prefix : 0);
  if (!is_numbered(m, name, first, last)) return mark(m, entry, first, last, err);
  for (uint32_t i = first, end; i <= last; i = end + 1) {
    end = end_of(m, name, i, last);
    CLV_TRY(mark(m, entry, i, end, err));
  }
  return CLV_OK;
}

static clv_code outside(const marker *m, const char *entry, clv_err *err) {
  return clv_session_fail_at(m->c, m->stage->recompute_blocks_pos, err,
                             "stage '%s': recompute_blocks: '%s' is not within the stage, whose "
                             "layers are '%s' to '%s'",
                             m->stage->name, entry, clv_layer_name(m->g, m->first),
                             clv_layer_name(m->g, m->last));
}

/* A numbered name stands for those of its blocks that the stage has. */
static clv_code mark_entry(marker *m, const char *entry, clv_err *err) {
  clv_layer_range range;
  uint32_t first, last;
  if (!clv_layer_range_read(entry, &range))
    return clv_session_fail_at(m->c, m->stage->recompute_blocks_pos, err,
                               "stage '%s': recompute_blocks: '%s' is neither a layer or block nor "
                               "a range such as 0..3",
                               m->stage->name, entry);
  CLV_TRY(clv_stage_find(m->c, m->g, m->stage, m->stage->recompute_blocks_pos, &range, &first,
                         &last, err));
  if (strstr(entry, "..")) {
    if (first < m->first || last > m->last) return outside(m, entry, err);
    return mark(m, entry, first, last, err);
  }
  first = CLV_MAX(first, m->first);
  last = CLV_MIN(last, m->last);
  return first > last ? outside(m, entry, err) : mark_name(m, entry, first, last, err);
}

clv_code clv_stage_blocks(const clv_session_config *c, clv_graph *g, const uint32_t *first,
                          const uint32_t *last, clv_err *err) {
  marker m = {.c = c, .g = g};
  for (size_t i = 0; i < c->n_stages; i++) {
    m.stage = &c->stages[i];
    m.first = first[i];
    m.last = last[i];
    for (size_t k = 0; k < m.stage->recompute_blocks.n; k++)
      CLV_TRY(mark_entry(&m, m.stage->recompute_blocks.items[k], err));
  }
  return CLV_OK;
}
