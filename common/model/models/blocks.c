/* SPDX-License-Identifier: Apache-2.0
 *
 * clv_stage_mark_recompute: marks the recompute blocks that stages[].recompute_blocks lists. An
 * entry is a range, which is one block, or a name (see common/model/graph/blocks.c).
 */
#include <string.h>

#include "common/model/models/models_int.h"

typedef struct marker {
  const clv_session_config *c;
  clv_graph *g;
  const clv_stage_spec *stage;
  uint32_t first_layer, last_layer; /* first and last layer of the stage */
  uint32_t n_blocks; /* number of recompute blocks marked so far, in all stages together */
} marker;

/* Marks layers first..last, which `entry` names, as one block or several. is_range: the entry is a
 * range, which makes one block. */
static clv_code mark_layers(marker *m, const char *entry, bool is_range, uint32_t first,
                            uint32_t last, clv_err *err) {
  int at = (int)clv_model_n_inputs(m->g), begin = (int)first + at, end = (int)last + at;
  clv_err why;
  clv_code code =
      is_range ? clv_graph_mark_recompute(m->g, begin, end, ++m->n_blocks, &why)
               : clv_graph_mark_recompute_blocks(m->g, entry, begin, end, &m->n_blocks, &why);
  if (code == CLV_OK) return CLV_OK;
  return clv_session_fail_at(m->c, m->stage->recompute_blocks_pos, err,
                             "stage '%s': recompute_blocks: '%s': %s", m->stage->name, entry,
                             why.text);
}

static clv_code fail_outside_stage(const marker *m, const char *entry, clv_err *err) {
  return clv_session_fail_at(m->c, m->stage->recompute_blocks_pos, err,
                             "stage '%s': recompute_blocks: '%s' is not within the stage, whose "
                             "layers are '%s' to '%s'",
                             m->stage->name, entry, clv_layer_name(m->g, m->first_layer),
                             clv_layer_name(m->g, m->last_layer));
}

/* Marks the layers of one entry of recompute_blocks. A range must be inside the stage. If the
 * entry is a name, marks only those of its layers that are inside the stage. */
static clv_code mark_recompute_entry(marker *m, const char *entry, clv_err *err) {
  clv_layer_range range;
  uint32_t first_layer, last_layer;
  if (!clv_layer_range_read(entry, &range))
    return clv_session_fail_at(m->c, m->stage->recompute_blocks_pos, err,
                               "stage '%s': recompute_blocks: '%s' is neither a layer or block nor "
                               "a range such as 0..3",
                               m->stage->name, entry);
  CLV_TRY(clv_range_find_layers(m->c, m->g, m->stage, m->stage->recompute_blocks_pos, &range,
                                &first_layer, &last_layer, err));
  if (strstr(entry, "..")) {
    if (first_layer < m->first_layer || last_layer > m->last_layer)
      return fail_outside_stage(m, entry, err);
    return mark_layers(m, entry, true, first_layer, last_layer, err);
  }
  first_layer = CLV_MAX(first_layer, m->first_layer);
  last_layer = CLV_MIN(last_layer, m->last_layer);
  return first_layer > last_layer ? fail_outside_stage(m, entry, err)
                                  : mark_layers(m, entry, false, first_layer, last_layer, err);
}

clv_code clv_stage_mark_recompute(const clv_session_config *c, clv_graph *g, const uint32_t *first,
                                  const uint32_t *last, clv_err *err) {
  marker m = {.c = c, .g = g};
  for (size_t i = 0; i < c->n_stages; i++) {
    m.stage = &c->stages[i];
    m.first_layer = first[i];
    m.last_layer = last[i];
    for (size_t k = 0; k < m.stage->recompute_blocks.n; k++)
      CLV_TRY(mark_recompute_entry(&m, m.stage->recompute_blocks.items[k], err));
  }
  return CLV_OK;
}
