/* SPDX-License-Identifier: Apache-2.0
 *
 * Finds weights in the files of the master's layers that hide nothing although the files are
 * secret: the values do not mix the layer's inputs, or are publicly known (clv_plain_values).
 * clv_blueprint_find_plain_weights reads these files, and notes the reason in b->known_reasons, as
 * known_layers.c does for layers that a worker knows.
 */
#include <stdlib.h>
#include <string.h>

#include "master/plan/plan_int.h"

enum { CHUNK_VALUES = 65536 }; /* number of values to read at once */

/* File or folder from which the values of a parameter are read. */
typedef struct weights_source {
  const clv_weights_file *file;
  const clv_weights_entry *entry;
  const clv_stage_folder *folder;
  size_t at; /* index of the parameter in the folder's `wanted_tensors` and `folder_indexes` */
} weights_source;

static clv_code read_values(const weights_source *s, uint64_t first, float *dst, size_t n,
                            clv_err *err) {
  if (s->file)
    return clv_weights_read_range_as(s->file, s->entry, CLV_F32, (size_t)first, dst, n, err);
  return clv_weights_folder_read_tensor_range(s->folder->folder, s->folder->folder_indexes[s->at],
                                              &s->folder->wanted_tensors[s->at], (size_t)first, n,
                                              dst, err);
}

/* Finds why the weights hide nothing. *ret_why: the reason; NULL: the weights hide the inputs of
 * their layer. */
static clv_code find_why_not_hiding(const weights_source *s, const clv_param *p,
                                    const char **ret_why, clv_err *err) {
  CLV_AUTO(clv_freep) float *chunk = NULL;
  CLV_AUTO(clv_plain_values_done) clv_plain_values values = {0};
  CLV_TRY(clv_alloc(CHUNK_VALUES, sizeof *chunk, &chunk, err));
  CLV_TRY(clv_plain_values_begin(&values, &p->shape, err));
  for (uint64_t first = 0; first < values.n_values; first += CHUNK_VALUES) {
    size_t n_chunk_values = (size_t)CLV_MIN(values.n_values - first, (uint64_t)CHUNK_VALUES);
    CLV_TRY(read_values(s, first, chunk, n_chunk_values, err));
    clv_plain_values_add(&values, chunk, n_chunk_values);
  }
  *ret_why = clv_plain_values_reason(&values);
  return CLV_OK;
}

/* Marks the layer of a parameter as known to workers, so that it hides nothing, if the op of the
 * layer mixes its inputs by weights, but the values of the parameter do not mix them. */
static clv_code note_if_not_hiding(clv_blueprint *b, uint32_t stage, const clv_param *p,
                                   const weights_source *s, clv_err *err) {
  const char *name = b->stages[stage].graph->nodes[p->node].name;
  const char *why_not_hiding;
  if (p->shape.rank < 2 || p->dtype != CLV_F32) return CLV_OK;
  for (int k = 0; k < b->full_graph->n_nodes; k++) {
    const clv_op_def *def = clv_op_def_of(b->full_graph->nodes[k].op);
    if (b->known_reasons[k] || !def || def->mixing == CLV_MIXES_NOTHING) continue;
    if (strcmp(b->full_graph->nodes[k].name, name) != 0) continue;
    CLV_TRY(find_why_not_hiding(s, p, &why_not_hiding, err));
    return why_not_hiding ? clv_strdup(why_not_hiding, &b->known_reasons[k], err) : CLV_OK;
  }
  return CLV_OK;
}

/* Checks the parameters in the file of a stage. Ignores a file that cannot be read, because
 * clv_stage_file_open refuses it for the session. */
static clv_code check_stage_file(clv_blueprint *b, uint32_t stage, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes notes = {0};
  CLV_AUTO(clv_weights_closep) clv_weights_file *f = NULL;
  CLV_AUTO(clv_freep) const clv_weights_entry **found = NULL;
  const clv_params *params = b->stages[stage].params;
  clv_err ignored_err;
  if (clv_stage_file_open(b, stage, &f, &found, &notes, &ignored_err) != CLV_OK) return CLV_OK;
  for (int i = 0; i < params->n; i++)
    if (found[i])
      CLV_TRY(note_if_not_hiding(b, stage, &params->list[i],
                                 &(weights_source){.file = f, .entry = found[i]}, err));
  return CLV_OK;
}

static clv_code check_stage_folder(clv_blueprint *b, uint32_t stage, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes notes = {0};
  CLV_AUTO(clv_stage_folder_done) clv_stage_folder f = {0};
  clv_err ignored;
  if (clv_stage_folder_open(b, stage, &f, &notes, &ignored) != CLV_OK) return CLV_OK;
  for (size_t i = 0; i < f.n; i++) {
    const clv_param *p = clv_params_find(b->stages[stage].params, f.wanted_tensors[i].name);
    if (p && f.folder_indexes[i] != CLV_WEIGHTS_NONE)
      CLV_TRY(note_if_not_hiding(b, stage, p, &(weights_source){.folder = &f, .at = i}, err));
  }
  return CLV_OK;
}

clv_code clv_blueprint_find_plain_weights(clv_blueprint *b, clv_err *err) {
  for (uint32_t i = 0; i < b->n_stages; i++) {
    const clv_stage_spec *spec = &b->config->stages[i];
    if (b->stages[i].worker >= 0 || !spec->weights_secret) continue;
    if (spec->weights_file) CLV_TRY(check_stage_file(b, i, err));
    if (spec->weights_folder) CLV_TRY(check_stage_folder(b, i, err));
  }
  return CLV_OK;
}
