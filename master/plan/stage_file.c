/* SPDX-License-Identifier: Apache-2.0
 *
 * Opens the files of stages' initial weights: clv_stage_file_open opens one file,
 * clv_stage_folder_open a folder. One file may serve several stages, so it may have more tensors
 * than a stage needs. A tensor that no stage has is refused. Otherwise a state_dict of another
 * network, whose first names and shapes agree, would be loaded in part.
 */
#include <stdlib.h>
#include <string.h>

#include "master/plan/plan.h"

/* Lists the tensors that a stage needs. starts_run: the weights are initial ones, so adapters may
 * be missing from the file and then start from the seed. Otherwise tensors that checkpoints omit
 * may be missing (clv_is_param_checkpointed). */
static clv_code list_wanted_tensors(const clv_params *params, bool starts_run,
                                    const clv_stage_spec *spec, clv_weights_want **ret,
                                    clv_err *err) {
  clv_weights_want *wanted_tensors;
  CLV_TRY(clv_alloc((size_t)params->n, sizeof *wanted_tensors, &wanted_tensors, err));
  for (int i = 0; i < params->n; i++) {
    const clv_param *p = &params->list[i];
    bool is_optional =
        starts_run ? clv_name_is_of_adapter(p->name) : !clv_is_param_checkpointed(spec, p);
    wanted_tensors[i] = (clv_weights_want){p->name, p->dtype, p->shape, is_optional};
  }
  *ret = wanted_tensors;
  return CLV_OK;
}

clv_code clv_stage_find_tensors(const clv_blueprint *b, uint32_t stage, const clv_weights_file *f,
                                unsigned flags, const clv_weights_entry ***ret, clv_err *err) {
  const clv_params *params = b->stages[stage].params;
  CLV_AUTO(clv_freep) clv_weights_want *wanted = NULL;
  CLV_AUTO(clv_freep) const clv_weights_entry **found_entries = NULL;
  CLV_TRY(list_wanted_tensors(params, flags & CLV_WEIGHTS_ALLOW_NO_COUNTS,
                              &b->config->stages[stage], &wanted, err));
  CLV_TRY(clv_alloc((size_t)params->n, sizeof *found_entries, &found_entries, err));
  CLV_TRY(clv_weights_match_tensors(f, wanted, (size_t)params->n, flags, found_entries, err));
  *ret = clv_steal(&found_entries);
  return CLV_OK;
}

/* Lists the tensors of the full model. A tied tensor is listed under its own name as well, because
 * old files have a tensor of this name. */
static clv_code list_model_tensors(const clv_params *full_params, clv_weights_want **ret,
                                   size_t *ret_n, clv_err *err) {
  clv_weights_want *model_tensors;
  size_t n = (size_t)full_params->n;
  *ret_n = n + (size_t)full_params->n_ties;
  CLV_TRY(clv_alloc(*ret_n, sizeof *model_tensors, &model_tensors, err));
  for (size_t i = 0; i < *ret_n; i++) {
    const clv_param *p = i < n ? &full_params->list[i] : &full_params->ties[i - n].param;
    model_tensors[i] = (clv_weights_want){p->name, p->dtype, p->shape, i >= n};
  }
  *ret = model_tensors;
  return CLV_OK;
}

/* ---- comparing tied tensors ------------------------------------------------------------------ */

enum { MAX_CHUNK_VALUES = 1 << 18 };

/* Two tied tensors, of a file or of a folder. */
typedef struct tied_pair {
  const clv_weights_file *file;
  const clv_weights_entry *entry[2];
  clv_weights_folder *folder;
  size_t folder_indexes[2];
  clv_weights_want wanted[2];
} tied_pair;

static clv_code read_tied_values(const tied_pair *t, int pair_index, size_t first, size_t n,
                                 void *dst, clv_err *err) {
  if (t->file)
    return clv_weights_read_range(t->file, t->entry[pair_index], first * 4, dst, n * 4, err);
  return clv_weights_folder_read_tensor_range(t->folder, t->folder_indexes[pair_index],
                                              &t->wanted[pair_index], first, n, dst, err);
}

/* Checks that two tied tensors have the same values. The first one is the owner's. */
static clv_code check_same_values(const tied_pair *t, clv_err *err) {
  CLV_AUTO(clv_freep) char *chunks = NULL;
  size_t n, chunk_bytes = (size_t)MAX_CHUNK_VALUES * 4;
  CLV_TRY(clv_shape_numel(&t->wanted[0].shape, &n, err));
  CLV_TRY(clv_alloc(2, chunk_bytes, &chunks, err));
  for (size_t at = 0, n_chunk_values; at < n; at += n_chunk_values) {
    n_chunk_values = CLV_MIN(n - at, (size_t)MAX_CHUNK_VALUES);
    for (int i = 0; i < 2; i++)
      CLV_TRY(read_tied_values(t, i, at, n_chunk_values, chunks + chunk_bytes * (size_t)i, err));
    if (memcmp(chunks, chunks + chunk_bytes, n_chunk_values * 4) != 0)
      return clv_fail(err, CLV_INVALID,
                      "'%.90s' and '%.90s' have other values there, and are one parameter here: "
                      "untie them (tie_word_embeddings: false in config.json)",
                      t->wanted[0].name, t->wanted[1].name);
  }
  return CLV_OK;
}

static void fill_tied_pair(const clv_params *full_params, int tie, tied_pair *t) {
  const clv_param *p[] = {&full_params->list[full_params->ties[tie].owner_index],
                          &full_params->ties[tie].param};
  for (int i = 0; i < 2; i++)
    t->wanted[i] = (clv_weights_want){p[i]->name, p[i]->dtype, p[i]->shape, true};
}

static clv_code check_ties_of_file(const clv_params *full_params, const clv_weights_file *f,
                                   clv_err *err) {
  for (int i = 0; i < full_params->n_ties; i++) {
    tied_pair t = {.file = f};
    fill_tied_pair(full_params, i, &t);
    bool are_both_present = true;
    for (int k = 0; k < 2; k++) {
      const clv_weights_entry *e = t.entry[k] = clv_weights_find_entry(f, t.wanted[k].name);
      are_both_present &=
          e && e->dtype == CLV_F32 && clv_shape_equal(&e->shape, &t.wanted[k].shape);
    }
    if (are_both_present) CLV_TRY(check_same_values(&t, err));
  }
  return CLV_OK;
}

static clv_code check_ties_of_folder(const clv_params *full_params, clv_weights_folder *f,
                                     clv_err *err) {
  for (int i = 0; i < full_params->n_ties; i++) {
    tied_pair t = {.folder = f};
    fill_tied_pair(full_params, i, &t);
    CLV_TRY(clv_weights_folder_match_tensors(f, t.wanted, 2, NULL, 0, t.folder_indexes, err));
    if (t.folder_indexes[0] == CLV_WEIGHTS_NONE || t.folder_indexes[1] == CLV_WEIGHTS_NONE)
      continue;
    for (int k = 0; k < 2; k++)
      CLV_TRY(clv_weights_folder_check_tensor(f, t.folder_indexes[k], &t.wanted[k], err));
    CLV_TRY(check_same_values(&t, err));
  }
  return CLV_OK;
}

/* ---- opening one file of initial weights ----------------------------------------------------- */

static clv_code refuse_unknown_tensors(const clv_blueprint *b, const clv_weights_file *f,
                                       clv_err *err) {
  CLV_AUTO(clv_params_freep) clv_params *full_params = NULL;
  CLV_AUTO(clv_freep) clv_weights_want *model_tensors = NULL;
  size_t n;
  CLV_TRY(clv_params_make(b->full_graph, &full_params, err));
  CLV_TRY(list_model_tensors(full_params, &model_tensors, &n, err));
  CLV_TRY(clv_weights_check_no_extra(f, model_tensors, n, err));
  return check_ties_of_file(full_params, f, err);
}

static clv_code check_digest(const clv_stage_spec *spec, const clv_weights_file *f, clv_err *err) {
  clv_sha256 expected_digest;
  bool is_same = !spec->weights_sha256 ||
                 !clv_sha256_parse(spec->weights_sha256, &expected_digest) ||
                 memcmp(&expected_digest, clv_weights_digest(f), sizeof expected_digest) == 0;
  if (is_same) return CLV_OK;
  return clv_fail(err, CLV_DATA_LOSS, "%s has another SHA-256 than the session says",
                  spec->weights_file);
}

/* Appends one line about the parameters that the file lacks and that start at 0, such as
 * num_batches_tracked. */
static void note_missing_counts(const clv_blueprint *b, uint32_t stage, const clv_weights_file *f,
                                const clv_weights_entry *const *found_entries, clv_bytes *notes) {
  const clv_params *params = b->stages[stage].params;
  const char *first_missing_name = NULL;
  int n = 0;
  for (int i = 0; i < params->n; i++) {
    if (found_entries[i] || clv_name_is_of_adapter(params->list[i].name)) continue;
    if (!first_missing_name) first_missing_name = params->list[i].name;
    n++;
  }
  if (!n) return;
  if (notes->len) clv_bytes_puts(notes, "\n");
  clv_bytes_printf(notes, "stage '%s': %s has no '%s'", b->config->stages[stage].name,
                   clv_weights_name_for_errors(f), first_missing_name);
  if (n > 1) clv_bytes_printf(notes, " and %d more", n - 1);
  clv_bytes_printf(notes, "; %s 0, as in PyTorch", n > 1 ? "they are" : "it is");
}

clv_code clv_stage_file_open(const clv_blueprint *b, uint32_t stage, clv_weights_file **ret,
                             const clv_weights_entry ***ret_entries, clv_bytes *notes,
                             clv_err *err) {
  const clv_stage_spec *spec = &b->config->stages[stage];
  CLV_AUTO(clv_weights_closep) clv_weights_file *f = NULL;
  clv_err reason;
  clv_code code = clv_weights_open_lazy(spec->weights_file, &f, &reason);
  if (code == CLV_OK) code = check_digest(spec, f, &reason);
  if (code == CLV_OK) code = refuse_unknown_tensors(b, f, &reason);
  if (code == CLV_OK)
    code = clv_stage_find_tensors(
        b, stage, f,
        CLV_WEIGHTS_ALLOW_UNEXPECTED | CLV_WEIGHTS_ALLOW_NO_COUNTS | CLV_WEIGHTS_ALLOW_NARROWING,
        ret_entries, &reason);
  if (code != CLV_OK) { /* the message points at the line of the session that names the file */
    clv_session_fail_at(b->config, spec->weights_pos, err, "stage '%s': %s", spec->name,
                        reason.text);
    if (err) err->code = CLV_DATA_LOSS;
    return CLV_DATA_LOSS;
  }
  note_missing_counts(b, stage, f, *ret_entries, notes);
  *ret = clv_steal(&f);
  return CLV_OK;
}

/* ---- opening a folder of initial weights ----------------------------------------------------- */

void clv_stage_folder_done(clv_stage_folder *f) {
  if (!f) return;
  clv_weights_folder_close(f->folder);
  clv_manifest_clear(&f->manifest);
  free(f->folder_indexes);
  free(f->wanted_tensors);
  *f = (clv_stage_folder){0};
}

static clv_code check_listed_file(void *user, const char *name, int fd, clv_err *err) {
  return clv_artifact_check(user, name, fd, err);
}

/* Opens the folder. If the session gives a digest, it must be that of the folder's list of files,
 * and each file is compared with this list. */
static clv_code open_folder(const clv_stage_spec *spec, clv_stage_folder *f, clv_err *err) {
  const char *path = spec->weights_folder;
  clv_weights_guard guard = {0};
  clv_sha256 wanted, found_entries;
  if (spec->weights_sha256 && clv_sha256_parse(spec->weights_sha256, &wanted)) {
    CLV_TRY(clv_artifact_read(path, path, &f->manifest, &found_entries, err));
    if (memcmp(&wanted, &found_entries, sizeof wanted) != 0)
      return clv_fail(err, CLV_DATA_LOSS, "%s/%s has another SHA-256 than the session says", path,
                      CLV_ARTIFACT_NAME);
    guard = (clv_weights_guard){check_listed_file, &f->manifest};
  }
  return clv_weights_folder_open(path, path, guard, &f->folder, err);
}

bool clv_stage_is_param_new(const clv_stage_spec *spec, const char *parameter) {
  return clv_weights_is_newly_initialised(parameter, (const char *const *)spec->weights_new.items,
                                          spec->weights_new.n);
}

static clv_code match_folder(const clv_stage_spec *spec, clv_stage_folder *f, clv_err *err) {
  CLV_TRY(clv_alloc(f->n, sizeof *f->folder_indexes, &f->folder_indexes, err));
  CLV_TRY(clv_weights_folder_match_tensors(f->folder, f->wanted_tensors, f->n,
                                           (const char *const *)spec->weights_new.items,
                                           spec->weights_new.n, f->folder_indexes, err));
  for (size_t i = 0; i < f->n; i++)
    if (f->folder_indexes[i] != CLV_WEIGHTS_NONE)
      CLV_TRY(clv_weights_folder_check_tensor(f->folder, f->folder_indexes[i],
                                              &f->wanted_tensors[i], err));
  return CLV_OK;
}

/* Appends a line with the parameters that start from the seed. */
static void note_params_from_seed(const clv_stage_spec *spec, const clv_stage_folder *f,
                                  clv_bytes *notes) {
  size_t n = 0;
  for (size_t i = 0; i < f->n; i++) {
    if (f->folder_indexes[i] != CLV_WEIGHTS_NONE ||
        clv_name_is_of_adapter(f->wanted_tensors[i].name))
      continue;
    if (n++ == 0)
      clv_bytes_printf(notes,
                       "%sstage '%s': not from %s, but from the seed: ", notes->len ? "\n" : "",
                       spec->name, spec->weights_folder);
    clv_bytes_printf(notes, "%s%s", n > 1 ? ", " : "", f->wanted_tensors[i].name);
  }
}

/* True if an earlier stage uses the same folder, so that `notes` has a line about the unused
 * tensors of the folder already. */
static bool has_noted_folder(const clv_session_config *c, uint32_t stage) {
  for (uint32_t i = 0; i < stage; i++)
    if (c->stages[i].weights_folder &&
        strcmp(c->stages[i].weights_folder, c->stages[stage].weights_folder) == 0)
      return true;
  return false;
}

static clv_code note_unused_tensors(const clv_blueprint *b, const clv_stage_spec *spec,
                                    const clv_stage_folder *f, clv_bytes *notes, clv_err *err) {
  CLV_AUTO(clv_params_freep) clv_params *all = NULL;
  CLV_AUTO(clv_freep) clv_weights_want *model_tensors = NULL;
  CLV_AUTO(clv_bytes_done) clv_bytes names = {0};
  size_t n, n_model_tensors;
  CLV_TRY(clv_params_make(b->full_graph, &all, err));
  CLV_TRY(list_model_tensors(all, &model_tensors, &n_model_tensors, err));
  CLV_TRY(clv_weights_folder_list_unmatched(f->folder, model_tensors, n_model_tensors, &names, &n,
                                            err));
  CLV_TRY(check_ties_of_folder(all, f->folder, err));
  if (n)
    clv_bytes_printf(notes, "%s%s has %zu tensor%s that the model does not have: %s",
                     notes->len ? "\n" : "", spec->weights_folder, n, CLV_S(n), names.data);
  return CLV_OK;
}

clv_code clv_stage_folder_open(const clv_blueprint *b, uint32_t stage, clv_stage_folder *ret,
                               clv_bytes *notes, clv_err *err) {
  const clv_stage_spec *spec = &b->config->stages[stage];
  CLV_AUTO(clv_stage_folder_done) clv_stage_folder f = {.n = (size_t)b->stages[stage].params->n};
  clv_err reason;
  clv_code code = open_folder(spec, &f, &reason);
  if (code == CLV_OK)
    code = list_wanted_tensors(b->stages[stage].params, true, NULL, &f.wanted_tensors, &reason);
  if (code == CLV_OK) code = match_folder(spec, &f, &reason);
  if (code == CLV_OK && !has_noted_folder(b->config, stage))
    code = note_unused_tensors(b, spec, &f, notes, &reason);
  if (code != CLV_OK) {
    clv_session_fail_at(
        b->config, spec->weights_pos, err, "stage '%s': %s%s", spec->name, reason.text,
        strstr(reason.text, "missing tensors") ? "; list what starts from the seed in weights.new"
                                               : "");
    if (err) err->code = CLV_DATA_LOSS;
    return CLV_DATA_LOSS;
  }
  note_params_from_seed(spec, &f, notes);
  *ret = f;
  f = (clv_stage_folder){0};
  return CLV_OK;
}

clv_code clv_stage_check_new_params(const clv_blueprint *b, uint32_t stage, clv_err *err) {
  const clv_stage_spec *spec = &b->config->stages[stage];
  const clv_params *params = b->stages[stage].params;
  for (size_t k = 0; k < spec->weights_new.n; k++) {
    const char *const prefix[] = {spec->weights_new.items[k]};
    bool is_prefix_used = false;
    for (int i = 0; i < params->n && !is_prefix_used; i++)
      is_prefix_used = clv_weights_is_newly_initialised(params->list[i].name, prefix, 1);
    if (!is_prefix_used)
      return clv_session_fail_at(b->config, spec->weights_new_pos, err,
                                 "stage '%s' has no parameter that begins with '%s'", spec->name,
                                 prefix[0]);
  }
  return CLV_OK;
}
