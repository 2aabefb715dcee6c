/* SPDX-License-Identifier: Apache-2.0
 *
 * Writing a checkpoint. Each file is written durably, and the manifest comes last. If the process
 * or the machine stops at any time, either the manifest and all files that it lists exist, or the
 * folder is no checkpoint.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "common/model/weights/weights_int.h"

/* Name of a parameter, and the stage whose file contains it. */
typedef struct parameter_stage {
  char *parameter;
  uint32_t stage;
} parameter_stage;

struct clv_checkpoint_writer {
  char *run_dir, *path;
  uint64_t step;
  uint32_t n_stages, n_stages_written;
  bool *is_stage_written; /* [stages] the files of the stage have been added */
  bool is_committed;
  clv_manifest_file files[CLV_CHECKPOINT_MAX_FILES];
  size_t n_files;
  parameter_stage *parameter_stages;
  size_t n_parameter_stages;
  uint64_t total_bytes;   /* size of all parameters and buffers, in bytes */
  uint32_t current_stage; /* stage whose two files are being written; NO_STAGE: none */
  bool current_is_optimizer;
  char current_file_name[CLV_STAGE_NAME_BYTES];
  /* called before the manifest gets the name MANIFEST.json; NULL: not called */
  clv_file_check_fn *check_manifest;
  void *check_manifest_user;
};

#define NO_STAGE UINT32_MAX

void clv_checkpoint_writer_free(clv_checkpoint_writer *w) {
  if (!w) return;
  for (size_t i = 0; i < w->n_parameter_stages; i++) free(w->parameter_stages[i].parameter);
  for (size_t i = 0; i < w->n_files; i++) {
    free(w->files[i].keeper_identity);
    free(w->files[i].kept_file_name);
  }
  free(w->parameter_stages);
  free(w->is_stage_written);
  free(w->run_dir);
  free(w->path);
  free(w);
}

void clv_checkpoint_writer_freep(clv_checkpoint_writer **w) {
  clv_checkpoint_writer_free(*w);
  *w = NULL;
}

/* ---- beginning a checkpoint ------------------------------------------------------------------ */

static clv_code make_folder(const clv_checkpoint_writer *w, clv_err *err) {
  CLV_FAILPOINT("checkpoint.begin");
  CLV_TRY(clv_mkdirs(w->run_dir, err));
  if (mkdir(w->path, 0755) == 0) return clv_weights_sync_dir(w->run_dir, err);
  if (errno != EEXIST) return clv_fail(err, CLV_PRECONDITION, "%s: %s", w->path, strerror(errno));
  CLV_AUTO(clv_checkpoint_freep) clv_checkpoint *there = NULL;
  if (clv_checkpoint_load(w->path, &there, NULL) == CLV_OK)
    return clv_fail(err, CLV_EXISTS, "%s: is complete already: resume from it or remove it",
                    w->path);
  return clv_weights_clear_dir(w->path, err);
}

clv_code clv_checkpoint_begin(const char *run_dir, uint64_t step, uint32_t stages,
                              clv_checkpoint_writer **ret, clv_err *err) {
  CLV_AUTO(clv_checkpoint_writer_freep) clv_checkpoint_writer *w = NULL;
  CLV_AUTO(clv_bytes_done) clv_bytes path = {0};
  if (stages < 1 || stages > CLV_CHECKPOINT_MAX_STAGES)
    return clv_fail(err, CLV_INVALID, "%u stages, expected 1..%d", stages,
                    CLV_CHECKPOINT_MAX_STAGES);
  if (step > INT64_MAX)
    return clv_fail(err, CLV_INVALID, "step %llu is over 2^63 - 1", (unsigned long long)step);
  CLV_TRY(clv_alloc(1, sizeof *w, &w, err));
  w->step = step;
  w->n_stages = stages;
  w->current_stage = NO_STAGE;
  CLV_TRY(clv_strdup(run_dir, &w->run_dir, err));
  CLV_TRY(clv_alloc(stages, sizeof *w->is_stage_written, &w->is_stage_written, err));
  clv_bytes_printf(&path, "%s/checkpoint-%llu", run_dir, (unsigned long long)step);
  if (path.failed) return clv_fail(err, CLV_EXHAUSTED, "out of memory");
  w->path = clv_steal(&path.data);
  CLV_TRY(make_folder(w, err));
  *ret = clv_steal(&w);
  return CLV_OK;
}

/* ---- files of a checkpoint ------------------------------------------------------------------- */

static clv_code file_path(const clv_checkpoint_writer *w, const char *name, clv_bytes *ret,
                          clv_err *err) {
  clv_bytes_printf(ret, "%s/%s", w->path, name);
  return ret->failed ? clv_fail(err, CLV_EXHAUSTED, "out of memory") : CLV_OK;
}

/* Checks that a file named `name` may be added to the checkpoint. */
static clv_code check_new_file(const clv_checkpoint_writer *w, const char *name, clv_err *err) {
  if (w->is_committed)
    return clv_fail(err, CLV_PRECONDITION, "%s: the checkpoint is committed", w->path);
  if (!clv_weights_is_file_name(name) || strcmp(name, CLV_MANIFEST_NAME) == 0)
    return clv_fail(err, CLV_INVALID, "'%.140s' is not a plain file name of 1..%d of A-Za-z0-9._-",
                    name, CLV_CHECKPOINT_MAX_NAME);
  if (w->n_files == CLV_COUNT(w->files))
    return clv_fail(err, CLV_EXHAUSTED, "a checkpoint holds at most %zu files",
                    CLV_COUNT(w->files));
  for (size_t i = 0; i < w->n_files; i++)
    if (strcmp(w->files[i].name, name) == 0)
      return clv_fail(err, CLV_EXISTS, "'%s' is in the checkpoint already", name);
  return CLV_OK;
}

static void add_to_manifest(clv_checkpoint_writer *w, const char *name, uint64_t bytes,
                            const clv_sha256 *digest) {
  clv_manifest_file *f = &w->files[w->n_files++];
  strcpy(f->name, name);
  f->bytes = bytes;
  f->sha256 = *digest;
}

clv_code clv_checkpoint_add_file(clv_checkpoint_writer *w, const char *name, const void *data,
                                 size_t len, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes path = {0};
  clv_sha256 digest;
  CLV_TRY(check_new_file(w, name, err));
  CLV_TRY(file_path(w, name, &path, err));
  CLV_TRY(clv_sha256_of(data, len, &digest, err));
  CLV_FAILPOINT("checkpoint.add_file");
  CLV_TRY(clv_file_write_durable(path.data, data, len, 0644, err));
  add_to_manifest(w, name, len, &digest);
  return CLV_OK;
}

clv_code clv_checkpoint_add_state(clv_checkpoint_writer *w, const clv_trainer_state *state,
                                  clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes text = {0};
  CLV_TRY(clv_state_format(state, &text, err));
  return clv_checkpoint_add_file(w, CLV_STATE_NAME, text.data, text.len, err);
}

/* ---- files of stages ------------------------------------------------------------------------- */

static clv_code record_parameter_stages(clv_checkpoint_writer *w, uint32_t stage,
                                        const clv_weights_tensor *model, size_t n, clv_err *err) {
  size_t total, bytes;
  if (!clv_add_size(w->n_parameter_stages, n, &total) ||
      !clv_mul_size(CLV_MAX(total, (size_t)1), sizeof *w->parameter_stages, &bytes))
    return clv_fail(err, CLV_EXHAUSTED, "too many tensors");
  parameter_stage *grown = realloc(w->parameter_stages, bytes);
  if (!grown) return clv_fail(err, CLV_EXHAUSTED, "out of memory");
  w->parameter_stages = grown;
  for (size_t i = 0; i < n; i++) {
    CLV_TRY(clv_shape_bytes(&model[i].shape, model[i].dtype, &bytes, err));
    CLV_TRY(clv_strdup(model[i].name, &w->parameter_stages[w->n_parameter_stages].parameter, err));
    w->parameter_stages[w->n_parameter_stages++].stage = stage;
    w->total_bytes += bytes;
  }
  return CLV_OK;
}

static clv_code check_stage(const clv_checkpoint_writer *w, uint32_t stage, bool is_optimizer,
                            clv_err *err) {
  if (stage >= w->n_stages)
    return clv_fail(err, CLV_INVALID, "stage %u is outside 0..%u", stage, w->n_stages - 1);
  if (w->is_stage_written[stage])
    return clv_fail(err, CLV_EXISTS, "stage %u is in the checkpoint already", stage);
  if (w->current_stage == (is_optimizer ? stage : NO_STAGE)) return CLV_OK;
  return clv_fail(err, CLV_PRECONDITION, "the %s of stage %u is not what comes next",
                  is_optimizer ? "optimiser" : "model", stage);
}

/* Sets w->current_file_name, and records the tensors of a model for the index. */
static clv_code set_current_file_name(clv_checkpoint_writer *w, uint32_t stage, bool is_optimizer,
                                      const clv_weights_tensor *tensors, size_t n, clv_err *err) {
  CLV_TRY(check_stage(w, stage, is_optimizer, err));
  clv_stage_file_name(is_optimizer ? "optimizer" : "model", stage, w->n_stages,
                      w->current_file_name);
  CLV_TRY(check_new_file(w, w->current_file_name, err));
  return is_optimizer ? CLV_OK : record_parameter_stages(w, stage, tensors, n, err);
}

/* Marks the file of w->current_file_name as being written. */
static void begin_stage_file(clv_checkpoint_writer *w, uint32_t stage, bool is_optimizer) {
  w->current_stage = stage;
  w->current_is_optimizer = is_optimizer;
}

static void end_stage_file(clv_checkpoint_writer *w) {
  if (!w->current_is_optimizer) return;
  w->is_stage_written[w->current_stage] = true;
  w->n_stages_written++;
  w->current_stage = NO_STAGE;
}

clv_code clv_checkpoint_begin_part(clv_checkpoint_writer *w, uint32_t stage, bool is_optimizer,
                                   const clv_weights_tensor *tensors, size_t n,
                                   clv_weights_writer **ret, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes path = {0};
  char number[24];
  CLV_TRY(set_current_file_name(w, stage, is_optimizer, tensors, n, err));
  snprintf(number, sizeof number, "%llu", (unsigned long long)w->step);
  CLV_TRY(file_path(w, w->current_file_name, &path, err));
  CLV_FAILPOINT("checkpoint.begin_part");
  CLV_TRY(clv_weights_writer_begin(path.data, tensors, n, &(clv_kv){"step", number}, 1, ret, err));
  begin_stage_file(w, stage, is_optimizer);
  return CLV_OK;
}

clv_code clv_checkpoint_end_part(clv_checkpoint_writer *w, clv_weights_writer *part, clv_err *err) {
  CLV_AUTO(clv_weights_writer_freep) clv_weights_writer *mine = part;
  clv_sha256 digest;
  uint64_t bytes;
  CLV_TRY(clv_weights_writer_finish(mine, &digest, &bytes, err));
  CLV_FAILPOINT("checkpoint.end_part");
  add_to_manifest(w, w->current_file_name, bytes, &digest);
  end_stage_file(w);
  return CLV_OK;
}

clv_code clv_checkpoint_add_kept(clv_checkpoint_writer *w, uint32_t stage, bool is_optimizer,
                                 const clv_weights_tensor *tensors, size_t n,
                                 const clv_manifest_file *at, clv_err *err) {
  CLV_AUTO(clv_freep) char *place = NULL, *kept = NULL;
  CLV_TRY(clv_strdup(at->keeper_identity, &place, err));
  CLV_TRY(clv_strdup(at->kept_file_name, &kept, err));
  CLV_TRY(set_current_file_name(w, stage, is_optimizer, tensors, n, err));
  CLV_FAILPOINT("checkpoint.add_kept");
  add_to_manifest(w, w->current_file_name, at->bytes, &at->sha256);
  w->files[w->n_files - 1].keeper_identity = clv_steal(&place);
  w->files[w->n_files - 1].kept_file_name = clv_steal(&kept);
  begin_stage_file(w, stage, is_optimizer);
  end_stage_file(w);
  return CLV_OK;
}

static clv_code add_tensors(clv_checkpoint_writer *w, uint32_t stage, bool is_optimizer,
                            const clv_weights_tensor *tensors, size_t n, clv_err *err) {
  clv_weights_writer *part;
  clv_code code = CLV_OK;
  CLV_TRY(clv_checkpoint_begin_part(w, stage, is_optimizer, tensors, n, &part, err));
  for (size_t i = 0; i < n && code == CLV_OK; i++) {
    size_t bytes;
    code = clv_shape_bytes(&tensors[i].shape, tensors[i].dtype, &bytes, err);
    if (code == CLV_OK) code = clv_weights_writer_put(part, i, 0, tensors[i].data, bytes, err);
  }
  if (code == CLV_OK) return clv_checkpoint_end_part(w, part, err);
  clv_weights_writer_free(part);
  return code;
}

clv_code clv_checkpoint_add_stage(clv_checkpoint_writer *w, uint32_t stage,
                                  const clv_weights_tensor *model, size_t n_model,
                                  const clv_weights_tensor *optimizer, size_t n_optimizer,
                                  clv_err *err) {
  CLV_TRY(add_tensors(w, stage, false, model, n_model, err));
  return add_tensors(w, stage, true, optimizer, n_optimizer, err);
}

/* ---- committing a checkpoint ----------------------------------------------------------------- */

static int compare_parameter_names(const void *a, const void *b) {
  return strcmp(((const parameter_stage *)a)->parameter, ((const parameter_stage *)b)->parameter);
}

static int compare_files(const void *a, const void *b) {
  return strcmp(((const clv_manifest_file *)a)->name, ((const clv_manifest_file *)b)->name);
}

static clv_code add_index(clv_checkpoint_writer *w, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes out = {0};
  char file[CLV_STAGE_NAME_BYTES];
  if (w->n_parameter_stages)
    qsort(w->parameter_stages, w->n_parameter_stages, sizeof *w->parameter_stages,
          compare_parameter_names);
  clv_bytes_printf(&out, "{\n  \"metadata\": {\"total_size\": %llu},\n  \"weight_map\": {",
                   (unsigned long long)w->total_bytes);
  for (size_t i = 0; i < w->n_parameter_stages; i++) {
    if (i && strcmp(w->parameter_stages[i - 1].parameter, w->parameter_stages[i].parameter) == 0)
      return clv_fail(err, CLV_INVALID, "tensor '%.100s' is in stage %u and in stage %u",
                      w->parameter_stages[i].parameter, w->parameter_stages[i - 1].stage,
                      w->parameter_stages[i].stage);
    clv_bytes_puts(&out, i ? ",\n    " : "\n    ");
    clv_bytes_add_json(&out, w->parameter_stages[i].parameter);
    clv_bytes_printf(&out, ": \"%s\"",
                     clv_stage_file_name("model", w->parameter_stages[i].stage, w->n_stages, file));
  }
  clv_bytes_puts(&out, "\n  }\n}\n");
  if (out.failed) return clv_fail(err, CLV_EXHAUSTED, "out of memory");
  return clv_checkpoint_add_file(w, CLV_INDEX_NAME, out.data, out.len, err);
}

static clv_code check_all_written(const clv_checkpoint_writer *w, const char *config_hash,
                                  clv_err *err) {
  clv_sha256 unused;
  bool has_state = false;
  for (size_t i = 0; i < w->n_files; i++)
    has_state |= strcmp(w->files[i].name, CLV_STATE_NAME) == 0;
  if (w->n_stages_written != w->n_stages)
    return clv_fail(err, CLV_PRECONDITION, "%s: %u of %u stages were added", w->path,
                    w->n_stages_written, w->n_stages);
  if (!has_state)
    return clv_fail(err, CLV_PRECONDITION, "%s: the trainer's state was not added", w->path);
  if (config_hash[0] && !clv_sha256_parse(config_hash, &unused))
    return clv_fail(err, CLV_INVALID, "config hash '%.70s' is not 64 hex digits", config_hash);
  return CLV_OK;
}

static clv_code write_checked_manifest(const char *folder, const clv_manifest *m,
                                       clv_file_check_fn *check, void *user, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes text = {0}, path = {0};
  CLV_TRY(clv_manifest_make_text(m, &text, err));
  clv_bytes_printf(&path, "%s/" CLV_MANIFEST_NAME, folder);
  if (path.failed) return clv_fail(err, CLV_EXHAUSTED, "out of memory");
  return clv_file_write_checked(path.data, text.data, text.len, 0644, check, user, err);
}

clv_code clv_manifest_write(const char *folder, const clv_manifest *m, clv_err *err) {
  return write_checked_manifest(folder, m, NULL, NULL, err);
}

void clv_checkpoint_writer_set_check(clv_checkpoint_writer *w, clv_file_check_fn *check,
                                     void *user) {
  w->check_manifest = check;
  w->check_manifest_user = user;
}

static clv_code write_manifest(clv_checkpoint_writer *w, const char *config_hash,
                               uint32_t protocol_version, clv_err *err) {
  clv_manifest m = {.step = w->step,
                    .stages = w->n_stages,
                    .protocol_version = protocol_version,
                    .files = w->files,
                    .n_files = w->n_files};
  strcpy(m.config_hash, config_hash);
  qsort(w->files, w->n_files, sizeof *w->files, compare_files);
  return write_checked_manifest(w->path, &m, w->check_manifest, w->check_manifest_user, err);
}

clv_code clv_checkpoint_commit(clv_checkpoint_writer *w, const char *config_hash,
                               uint32_t protocol_version, char **ret_path, clv_err *err) {
  CLV_AUTO(clv_freep) char *path = NULL;
  CLV_TRY(check_all_written(w, config_hash, err));
  CLV_TRY(clv_strdup(w->path, &path, err));
  CLV_TRY(add_index(w, err));
  CLV_FAILPOINT("checkpoint.commit");
  CLV_TRY(write_manifest(w, config_hash, protocol_version, err));
  CLV_FAILPOINT("checkpoint.committed");
  w->is_committed = true;
  if (ret_path) *ret_path = clv_steal(&path);
  return CLV_OK;
}
