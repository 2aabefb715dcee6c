/* SPDX-License-Identifier: Apache-2.0
 *
 * Finds weights of secret files that hide nothing, because each output passes on one input, or all
 * outputs are the same sum: an identity, a permutation, a matrix of one number. It also finds
 * transforms that anybody knows (public_rows.c). clv_blueprint_find_plain_weights reads the files
 * of the master's layers, and notes the reason in b->known_reasons, as known_layers.c does for
 * layers that a worker knows.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "master/plan/plan_int.h"

/* Fewest effective values of a row. A row has (sum of squares)^2 / (sum of 4th powers) effective
 * values: 1 if one value alone differs from 0, n if n values are equally large. */
static const double MIN_EFFECTIVE = 1.1;
enum { CHUNK_VALUES = 65536 }; /* values to read at once */

static const char PLAIN[] = "has values in its file that pass single inputs on, or one sum alone";
static const char PUBLIC[] =
    "has rows in its file that follow from a few numbers, as those of a cosine transform: anybody "
    "may know them";

typedef struct row_statistics {
  /* effective values of the row with the fewest; rows of zeros do not count */
  double fewest_effective;
  float low, high; /* smallest and largest of all values */
  /* number of values added of the current row; number of values of each row */
  size_t n_in_row, row_length;
  double squares, fourths;
} row_statistics;

static void add_values(row_statistics *r, const float *values, size_t n) {
  for (size_t i = 0; i < n; i++) {
    double square = (double)values[i] * (double)values[i];
    r->low = fminf(r->low, values[i]);
    r->high = fmaxf(r->high, values[i]);
    r->squares += square;
    r->fourths += square * square;
    if (++r->n_in_row < r->row_length) continue;
    if (r->fourths > 0)
      r->fewest_effective = fmin(r->fewest_effective, r->squares * r->squares / r->fourths);
    r->n_in_row = 0;
    r->squares = r->fourths = 0;
  }
}

/* File or folder from which the values of a parameter are read. */
typedef struct source {
  const clv_weights_file *file;
  const clv_weights_entry *entry;
  const clv_stage_folder *folder;
  size_t at; /* index of the parameter in the lists `wanted` and `folder_index` of `folder` */
} source;

static clv_code read_values(const source *s, uint64_t first, float *dst, size_t n, clv_err *err) {
  if (s->file)
    return clv_weights_read_range_as(s->file, s->entry, CLV_F32, (size_t)first, dst, n, err);
  return clv_weights_folder_read_tensor_range(s->folder->folder, s->folder->folder_index[s->at],
                                              &s->folder->wanted[s->at], (size_t)first, n, dst,
                                              err);
}

/* *ret_why: why the weights hide nothing, or NULL. */
static clv_code find_why_not_hiding(const source *s, const clv_param *p, const char **ret_why,
                                    clv_err *err) {
  CLV_AUTO(clv_freep) float *chunk = NULL;
  CLV_AUTO(clv_row_forms_freep) clv_row_forms *forms = NULL;
  uint64_t n = 1;
  for (int d = 0; d < p->shape.rank; d++) n *= (uint64_t)p->shape.dim[d];
  row_statistics r = {.fewest_effective = INFINITY,
                      .low = INFINITY,
                      .high = -INFINITY,
                      .row_length = (size_t)(n / (uint64_t)p->shape.dim[0])};
  CLV_TRY(clv_alloc(CHUNK_VALUES, sizeof *chunk, &chunk, err));
  CLV_TRY(clv_row_forms_new((size_t)p->shape.dim[0], r.row_length, &forms, err));
  for (uint64_t first = 0; first < n; first += CHUNK_VALUES) {
    size_t part = (size_t)CLV_MIN(n - first, (uint64_t)CHUNK_VALUES);
    CLV_TRY(read_values(s, first, chunk, part, err));
    add_values(&r, chunk, part);
    clv_row_forms_add(forms, chunk, part);
  }
  bool is_plain = r.row_length > 1 && n > r.row_length &&
                  (r.fewest_effective < MIN_EFFECTIVE || r.low == r.high);
  *ret_why = is_plain ? PLAIN : clv_row_forms_are_public(forms) ? PUBLIC : NULL;
  return CLV_OK;
}

/* Marks the layer of a parameter as known to workers, so that it hides nothing, if the op of the
 * layer mixes its inputs by weights, but the values of the parameter do not mix them. */
static clv_code note_if_not_hiding(clv_blueprint *b, uint32_t stage, const clv_param *p,
                                   const source *s, clv_err *err) {
  const char *name = b->stages[stage].graph->nodes[p->node].name;
  const char *why;
  if (p->shape.rank < 2 || p->dtype != CLV_F32) return CLV_OK;
  for (int k = 0; k < b->full_graph->n_nodes; k++) {
    const clv_op_def *def = clv_op_def_of(b->full_graph->nodes[k].op);
    if (b->known_reasons[k] || !def || def->mixing == CLV_MIXES_NOTHING) continue;
    if (strcmp(b->full_graph->nodes[k].name, name) != 0) continue;
    CLV_TRY(find_why_not_hiding(s, p, &why, err));
    return why ? clv_strdup(why, &b->known_reasons[k], err) : CLV_OK;
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
  clv_err ignored;
  if (clv_stage_file_open(b, stage, &f, &found, &notes, &ignored) != CLV_OK) return CLV_OK;
  for (int i = 0; i < params->n; i++)
    if (found[i])
      CLV_TRY(note_if_not_hiding(b, stage, &params->list[i],
                                 &(source){.file = f, .entry = found[i]}, err));
  return CLV_OK;
}

static clv_code check_stage_folder(clv_blueprint *b, uint32_t stage, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes notes = {0};
  CLV_AUTO(clv_stage_folder_done) clv_stage_folder f = {0};
  clv_err ignored;
  if (clv_stage_folder_open(b, stage, &f, &notes, &ignored) != CLV_OK) return CLV_OK;
  for (size_t i = 0; i < f.n; i++) {
    const clv_param *p = clv_params_find(b->stages[stage].params, f.wanted[i].name);
    if (p && f.folder_index[i] != CLV_WEIGHTS_NONE)
      CLV_TRY(note_if_not_hiding(b, stage, p, &(source){.folder = &f, .at = i}, err));
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
