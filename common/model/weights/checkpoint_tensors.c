/* SPDX-License-Identifier: Apache-2.0
 *
 * Look-up of a checkpoint's tensors by name, over the files of all stages, for a session that cuts
 * the model at other places than the checkpoint. clv_checkpoint_find_stages reads only the index,
 * clv_checkpoint_open_tensors the headers of all files of a kind. The data stay in the files.
 */
#include <stdlib.h>
#include <string.h>

#include "common/model/weights/weights_int.h"

/* ---- look-up in the index -------------------------------------------------------------------- */

/* Returns the stage whose model file is `file`; CLV_CHECKPOINT_NO_STAGE: no stage. */
static uint32_t find_stage_of_file(const char *file, uint32_t stages) {
  char name[CLV_STAGE_NAME_BYTES];
  for (uint32_t i = 0; i < stages; i++)
    if (strcmp(clv_stage_file_name("model", i, stages, name), file) == 0) return i;
  return CLV_CHECKPOINT_NO_STAGE;
}

clv_code clv_checkpoint_find_stages(const clv_checkpoint *c, const char *const *names, size_t n,
                                    uint32_t *ret_stages, clv_err *err) {
  CLV_AUTO(clv_weights_index_clear) clv_weights_index x = {0};
  CLV_AUTO(clv_bytes_done) clv_bytes text = {0};
  CLV_AUTO(clv_freep) uint32_t *stage_of = NULL;
  CLV_TRY(clv_checkpoint_read_file(c, CLV_INDEX_NAME, &text, err));
  CLV_TRY(clv_weights_index_parse(text.data, text.len, CLV_INDEX_NAME, &x, err));
  CLV_TRY(clv_alloc(x.n_files, sizeof *stage_of, &stage_of, err));
  for (size_t k = 0; k < x.n_files; k++)
    stage_of[k] = find_stage_of_file(x.file_names[k], clv_checkpoint_manifest(c)->stages);
  for (size_t i = 0; i < n; i++) {
    const char **at =
        bsearch(&names[i], x.tensor_names, x.n, sizeof *x.tensor_names, clv_weights_compare_names);
    ret_stages[i] = at ? stage_of[x.file_index[at - x.tensor_names]] : CLV_CHECKPOINT_NO_STAGE;
  }
  return CLV_OK;
}

/* ---- look-up in the headers of the files ----------------------------------------------------- */

void clv_checkpoint_tensors_close(clv_checkpoint_tensors *t) {
  if (!t) return;
  for (uint32_t i = 0; t->files && i < t->n_files; i++) clv_weights_close(t->files[i]);
  free(t->files);
  free(t->tensors);
  *t = (clv_checkpoint_tensors){0};
}

static int compare_tensors(const void *a, const void *b) {
  const clv_checkpoint_tensor *x = a, *y = b;
  int order = strcmp(x->entry->name, y->entry->name);
  return order ? order : x->stage < y->stage ? -1 : x->stage > y->stage;
}

static clv_code open_files(const clv_checkpoint *c, bool is_optimizer, clv_checkpoint_tensors *t,
                           size_t *ret_n, clv_err *err) {
  t->n_files = clv_checkpoint_manifest(c)->stages;
  *ret_n = 0;
  CLV_TRY(clv_alloc(t->n_files, sizeof *t->files, &t->files, err));
  for (uint32_t i = 0; i < t->n_files; i++) {
    CLV_TRY(is_optimizer ? clv_checkpoint_open_optimizer_lazy(c, i, &t->files[i], err)
                         : clv_checkpoint_open_model_lazy(c, i, &t->files[i], err));
    *ret_n += clv_weights_n_entries(t->files[i]);
  }
  return CLV_OK;
}

static clv_code check_names_differ(const clv_checkpoint *c, const clv_checkpoint_tensors *t,
                                   clv_err *err) {
  for (size_t i = 1; i < t->n; i++)
    if (strcmp(t->tensors[i - 1].entry->name, t->tensors[i].entry->name) == 0)
      return clv_fail(err, CLV_DATA_LOSS,
                      "%s: '%.100s' is in the files of stage %u and of stage %u",
                      clv_checkpoint_path(c), t->tensors[i].entry->name, t->tensors[i - 1].stage,
                      t->tensors[i].stage);
  return CLV_OK;
}

clv_code clv_checkpoint_open_tensors(const clv_checkpoint *c, bool is_optimizer,
                                     clv_checkpoint_tensors *ret, clv_err *err) {
  CLV_AUTO(clv_checkpoint_tensors_close) clv_checkpoint_tensors t = {0};
  size_t n;
  CLV_TRY(open_files(c, is_optimizer, &t, &n, err));
  CLV_TRY(clv_alloc(n, sizeof *t.tensors, &t.tensors, err));
  for (uint32_t i = 0; i < t.n_files; i++) {
    const clv_weights_entry *e = clv_weights_entries(t.files[i]);
    for (size_t k = 0; k < clv_weights_n_entries(t.files[i]); k++)
      if (!is_optimizer || strcmp(e[k].name, CLV_STEP_NAME) != 0)
        t.tensors[t.n++] = (clv_checkpoint_tensor){&e[k], t.files[i], i};
  }
  if (t.n) qsort(t.tensors, t.n, sizeof *t.tensors, compare_tensors);
  CLV_TRY(check_names_differ(c, &t, err));
  *ret = t;
  t = (clv_checkpoint_tensors){0};
  return CLV_OK;
}

const clv_checkpoint_tensor *clv_checkpoint_tensors_find(const clv_checkpoint_tensors *t,
                                                         const char *name) {
  size_t low = 0, high = t->n;
  while (low < high) {
    size_t mid = low + (high - low) / 2;
    int order = strcmp(t->tensors[mid].entry->name, name);
    if (!order) return &t->tensors[mid];
    *(order < 0 ? &low : &high) = mid + (order < 0);
  }
  return NULL;
}

clv_code clv_checkpoint_tensors_read_step(const clv_checkpoint_tensors *t, uint32_t stage,
                                          int64_t *ret, clv_err *err) {
  const clv_weights_entry *e =
      stage < t->n_files ? clv_weights_find_entry(t->files[stage], CLV_STEP_NAME) : NULL;
  if (!e || e->dtype != CLV_I64 || e->bytes != sizeof *ret)
    return clv_fail(err, CLV_DATA_LOSS,
                    "the optimiser's file of stage %u has no '" CLV_STEP_NAME "'", stage);
  return clv_weights_read_range(t->files[stage], e, 0, ret, sizeof *ret, err);
}
