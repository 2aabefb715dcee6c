/* SPDX-License-Identifier: Apache-2.0
 *
 * Finding, checking and deleting checkpoints. A checkpoint is opened as a folder descriptor, and
 * its files relative to that, by plain names and without following links. The digest of a file is
 * computed over the same bytes that the caller gets.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/model/weights/weights_int.h"

enum { MAX_MANIFEST_BYTES = 4 << 20, MAX_STATE_BYTES = 16 << 20, MAX_SHOWN_STEPS = 8 };

struct clv_checkpoint {
  char *path;
  int dir_fd;
  clv_manifest manifest;
  clv_trainer_state state;
  json_t *state_root;
  clv_kv *state_extra;
  bool uses_ema; /* opened files of parameters have averages in place of the parameters */
};

void clv_checkpoint_free(clv_checkpoint *c) {
  if (!c) return;
  clv_weights_closefd(&c->dir_fd);
  clv_manifest_clear(&c->manifest);
  json_decref(c->state_root);
  free(c->state_extra);
  free(c->path);
  free(c);
}

void clv_checkpoint_freep(clv_checkpoint **c) {
  clv_checkpoint_free(*c);
  *c = NULL;
}

const char *clv_checkpoint_path(const clv_checkpoint *c) { return c->path; }
const clv_manifest *clv_checkpoint_manifest(const clv_checkpoint *c) { return &c->manifest; }
const clv_trainer_state *clv_checkpoint_state(const clv_checkpoint *c) { return &c->state; }

/* ---- files of a checkpoint ------------------------------------------------------------------- */

static void make_file_label(const clv_checkpoint *c, const char *name, char label[512]) {
  snprintf(label, 512, "%.300s/%s", c->path, name);
}

static clv_code open_listed_file(const clv_checkpoint *c, const char *name, const char *label,
                                 clv_weights_fd *ret, const clv_manifest_file **ret_file,
                                 clv_err *err) {
  const clv_manifest_file *f = clv_manifest_find(&c->manifest, name);
  if (!f) return clv_fail(err, CLV_NOT_FOUND, "%s: is not in the manifest", label);
  if (f->keeper_identity)
    return clv_fail(
        err, CLV_PRECONDITION,
        "%s: is not here but at the worker '%.200s', as '%s': `cleave-master checkpoint "
        "gather SESSION.yaml` fetches it",
        label, f->keeper_identity, f->kept_file_name);
  CLV_AUTO(clv_weights_fd_close) clv_weights_fd fd = {.fd = -1};
  if (clv_weights_fd_open(c->dir_fd, name, label, &fd, err) != CLV_OK)
    return clv_fail(err, CLV_DATA_LOSS, "%s: is in the manifest, but cannot be opened", label);
  if (fd.size != f->bytes)
    return clv_fail(err, CLV_DATA_LOSS, "%s: %zu bytes, the manifest says %llu", label, fd.size,
                    (unsigned long long)f->bytes);
  *ret = fd;
  *ret_file = f;
  fd.fd = -1;
  return CLV_OK;
}

static clv_code compare_digest(const clv_sha256 *found, const clv_manifest_file *f,
                               const char *label, clv_err *err) {
  if (memcmp(found, &f->sha256, sizeof *found) == 0) return CLV_OK;
  char actual[65], expected[65];
  clv_sha256_hex(found, actual);
  clv_sha256_hex(&f->sha256, expected);
  return clv_fail(err, CLV_DATA_LOSS,
                  "%s: damaged: SHA-256 is %.12s..., the manifest says %.12s...: restore the file",
                  label, actual, expected);
}

/* Compares length and digest of a file with the manifest, without loading the file into memory. */
static clv_code verify_file(const clv_checkpoint *c, const char *name, clv_err *err) {
  CLV_AUTO(clv_weights_fd_close) clv_weights_fd fd = {.fd = -1};
  const clv_manifest_file *f = NULL;
  clv_sha256 digest;
  char label[512];
  make_file_label(c, name, label);
  CLV_TRY(open_listed_file(c, name, label, &fd, &f, err));
  CLV_TRY(clv_sha256_fd(fd.fd, fd.size, NULL, label, &digest, err));
  return compare_digest(&digest, f, label, err);
}

clv_code clv_checkpoint_read_file(const clv_checkpoint *c, const char *name, clv_bytes *ret,
                                  clv_err *err) {
  CLV_AUTO(clv_weights_fd_close) clv_weights_fd fd = {.fd = -1};
  CLV_AUTO(clv_bytes_done) clv_bytes data = {0};
  const clv_manifest_file *f = NULL;
  clv_sha256 digest;
  char label[512];
  make_file_label(c, name, label);
  CLV_TRY(open_listed_file(c, name, label, &fd, &f, err));
  CLV_TRY(clv_weights_fd_read_all(&fd, SIZE_MAX / 2, &data, err));
  CLV_TRY(clv_sha256_of(data.data, data.len, &digest, err));
  CLV_TRY(compare_digest(&digest, f, label, err));
  clv_bytes_done(ret);
  *ret = data;
  data = (clv_bytes){0};
  return CLV_OK;
}

void clv_checkpoint_use_ema(clv_checkpoint *c) { c->uses_ema = true; }
bool clv_checkpoint_uses_ema(const clv_checkpoint *c) { return c->uses_ema; }

static clv_code open_stage(const clv_checkpoint *c, const char *kind, uint32_t stage, bool is_lazy,
                           clv_weights_file **ret, clv_err *err) {
  CLV_AUTO(clv_weights_fd_close) clv_weights_fd fd = {.fd = -1};
  CLV_AUTO(clv_weights_closep) clv_weights_file *w = NULL;
  const clv_manifest_file *f = NULL;
  char label[512], name[CLV_STAGE_NAME_BYTES];
  if (stage >= c->manifest.stages)
    return clv_fail(err, CLV_INVALID, "%s: stage %u is outside 0..%u", c->path, stage,
                    c->manifest.stages - 1);
  make_file_label(c, clv_stage_file_name(kind, stage, c->manifest.stages, name), label);
  CLV_TRY(open_listed_file(c, name, label, &fd, &f, err));
  CLV_TRY(is_lazy ? clv_weights_open_lazy_fd(&fd, &w, err) : clv_weights_open_fd(&fd, 0, &w, err));
  CLV_TRY(compare_digest(clv_weights_digest(w), f, label, err));
  *ret = clv_steal(&w);
  return CLV_OK;
}

static clv_code open_model(const clv_checkpoint *c, uint32_t stage, bool is_lazy,
                           clv_weights_file **ret, clv_err *err) {
  CLV_AUTO(clv_weights_closep) clv_weights_file *model = NULL, *averages = NULL;
  CLV_TRY(open_stage(c, "model", stage, is_lazy, &model, err));
  if (c->uses_ema) {
    CLV_TRY(open_stage(c, "optimizer", stage, is_lazy, &averages, err));
    clv_weights_take_ema(model, &averages);
  }
  *ret = clv_steal(&model);
  return CLV_OK;
}

clv_code clv_checkpoint_open_model(const clv_checkpoint *c, uint32_t stage, clv_weights_file **ret,
                                   clv_err *err) {
  return open_model(c, stage, false, ret, err);
}

clv_code clv_checkpoint_open_optimizer(const clv_checkpoint *c, uint32_t stage,
                                       clv_weights_file **ret, clv_err *err) {
  return open_stage(c, "optimizer", stage, false, ret, err);
}

clv_code clv_checkpoint_open_model_lazy(const clv_checkpoint *c, uint32_t stage,
                                        clv_weights_file **ret, clv_err *err) {
  return open_model(c, stage, true, ret, err);
}

clv_code clv_checkpoint_open_optimizer_lazy(const clv_checkpoint *c, uint32_t stage,
                                            clv_weights_file **ret, clv_err *err) {
  return open_stage(c, "optimizer", stage, true, ret, err);
}

/* ---- opening a folder ------------------------------------------------------------------------ */

/* Parses the name "checkpoint-<step>" of a folder. Returns false for any other spelling. */
static bool parse_folder_name(const char *name, uint64_t *ret_step) {
  static const char prefix[] = "checkpoint-";
  char rebuilt_name[48];
  if (strncmp(name, prefix, sizeof prefix - 1) != 0) return false;
  uint64_t step = strtoull(name + sizeof prefix - 1, NULL, 10);
  snprintf(rebuilt_name, sizeof rebuilt_name, "%s%llu", prefix, (unsigned long long)step);
  if (step > INT64_MAX || strcmp(name, rebuilt_name) != 0) return false;
  *ret_step = step;
  return true;
}

static clv_code read_manifest(clv_checkpoint *c, clv_err *err) {
  CLV_AUTO(clv_weights_fd_close) clv_weights_fd fd = {.fd = -1};
  CLV_AUTO(clv_bytes_done) clv_bytes text = {0};
  char label[512];
  uint64_t step;
  make_file_label(c, CLV_MANIFEST_NAME, label);
  clv_code code = clv_weights_fd_open(c->dir_fd, CLV_MANIFEST_NAME, label, &fd, err);
  if (code == CLV_NOT_FOUND)
    return clv_fail(err, CLV_DATA_LOSS, "%s: has no %s: it was never finished", c->path,
                    CLV_MANIFEST_NAME);
  CLV_TRY(code);
  CLV_TRY(clv_weights_fd_read_all(&fd, MAX_MANIFEST_BYTES, &text, err));
  CLV_TRY(clv_manifest_parse(text.data, text.len, label, &c->manifest, err));
  const char *slash = strrchr(c->path, '/');
  if (parse_folder_name(slash ? slash + 1 : c->path, &step) && step != c->manifest.step)
    return clv_fail(err, CLV_DATA_LOSS, "%s: the manifest is of step %llu", c->path,
                    (unsigned long long)c->manifest.step);
  return CLV_OK;
}

/* Checks that the manifest lists the files of every stage, the trainer's state and the index, and
 * that every listed file in the folder has the listed length and digest. */
static clv_code verify_listed_files(const clv_checkpoint *c, clv_err *err) {
  char name[CLV_STAGE_NAME_BYTES];
  static const char *const kinds[] = {"model", "optimizer"}, *const other_files[] = {
                                                                 CLV_STATE_NAME, CLV_INDEX_NAME};
  for (uint32_t i = 0; i < c->manifest.stages * 2; i++)
    if (!clv_manifest_find_stage(&c->manifest, i / 2, i % 2))
      return clv_fail(err, CLV_DATA_LOSS, "%s: the manifest lacks %s", c->path,
                      clv_stage_file_name(kinds[i % 2], i / 2, c->manifest.stages, name));
  for (size_t i = 0; i < CLV_COUNT(other_files); i++)
    if (!clv_manifest_find(&c->manifest, other_files[i]))
      return clv_fail(err, CLV_DATA_LOSS, "%s: the manifest lacks %s", c->path, other_files[i]);
  for (size_t i = 0; i < c->manifest.n_files; i++)
    if (!c->manifest.files[i].keeper_identity)
      CLV_TRY(verify_file(c, c->manifest.files[i].name, err));
  return CLV_OK;
}

static clv_code read_state(clv_checkpoint *c, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes text = {0};
  char label[512];
  make_file_label(c, CLV_STATE_NAME, label);
  CLV_TRY(clv_checkpoint_read_file(c, CLV_STATE_NAME, &text, err));
  if (text.len > MAX_STATE_BYTES)
    return clv_fail(err, CLV_EXHAUSTED, "%s: %zu bytes, the limit is %d", label, text.len,
                    MAX_STATE_BYTES);
  return clv_state_parse(text.data, text.len, label, &c->state, &c->state_root, &c->state_extra,
                         err);
}

/* Opens the folder and parses the manifest. */
static clv_code open_folder(const char *path, clv_checkpoint **ret, clv_err *err) {
  CLV_AUTO(clv_checkpoint_freep) clv_checkpoint *c = NULL;
  CLV_TRY(clv_alloc(1, sizeof *c, &c, err));
  c->dir_fd = -1;
  CLV_TRY(clv_strdup(path, &c->path, err));
  for (size_t n = strlen(c->path); n > 1 && c->path[n - 1] == '/'; n--) c->path[n - 1] = '\0';
  c->dir_fd = open(c->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
  if (c->dir_fd < 0)
    return clv_fail(err, errno == ENOENT ? CLV_NOT_FOUND : CLV_INVALID, "%s: %s", c->path,
                    strerror(errno));
  CLV_TRY(read_manifest(c, err));
  *ret = clv_steal(&c);
  return CLV_OK;
}

clv_code clv_checkpoint_load(const char *path, clv_checkpoint **ret, clv_err *err) {
  CLV_AUTO(clv_checkpoint_freep) clv_checkpoint *c = NULL;
  CLV_TRY(open_folder(path, &c, err));
  CLV_TRY(verify_listed_files(c, err));
  CLV_TRY(read_state(c, err));
  *ret = clv_steal(&c);
  return CLV_OK;
}

/* ---- the folders of a run -------------------------------------------------------------------- */

typedef struct step_list {
  uint64_t *steps; /* steps of the checkpoint folders, newest first */
  size_t n;
} step_list;

static void step_list_clear(step_list *l) { free(l->steps); }

static int compare_newest_first(const void *a, const void *b) {
  uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
  return x < y ? 1 : x > y ? -1 : 0;
}

static void dir_closep(DIR **dir) {
  if (*dir) closedir(*dir);
}

/* Fails because there is no such run folder. A relative path may be right in another folder, so the
 * message names the working directory. */
static clv_code fail_no_run_folder(const char *run_dir, clv_err *err) {
  char cwd[PATH_MAX];
  if (run_dir[0] == '/' || !getcwd(cwd, sizeof cwd))
    return clv_fail(err, CLV_NOT_FOUND, "run folder %s does not exist: train first", run_dir);
  return clv_fail(err, CLV_NOT_FOUND,
                  "run folder %s/%s does not exist: train first, or call the command where you "
                  "trained, because run.dir is relative to the present folder",
                  cwd, run_dir);
}

static clv_code list_steps(const char *run_dir, step_list *ret, clv_err *err) {
  CLV_AUTO(dir_closep) DIR *dir = opendir(run_dir);
  CLV_AUTO(step_list_clear) step_list l = {0};
  uint64_t step;
  if (!dir && errno == ENOENT) return fail_no_run_folder(run_dir, err);
  if (!dir) return clv_fail(err, CLV_INVALID, "run folder %s: %s", run_dir, strerror(errno));
  for (struct dirent *e; (e = readdir(dir));) {
    if (!parse_folder_name(e->d_name, &step)) continue;
    uint64_t *grown = reallocarray(l.steps, l.n + 1, sizeof *grown);
    if (!grown) return clv_fail(err, CLV_EXHAUSTED, "out of memory");
    l.steps = grown;
    l.steps[l.n++] = step;
  }
  if (l.n) qsort(l.steps, l.n, sizeof *l.steps, compare_newest_first);
  *ret = l;
  l = (step_list){0};
  return CLV_OK;
}

static clv_code path_of_step(const char *run_dir, uint64_t step, clv_bytes *ret, clv_err *err) {
  clv_bytes_printf(ret, "%s/checkpoint-%llu", run_dir, (unsigned long long)step);
  return ret->failed ? clv_fail(err, CLV_EXHAUSTED, "out of memory") : CLV_OK;
}

static clv_code load_checkpoint_of_step(const char *run_dir, uint64_t step, clv_checkpoint **ret,
                                        clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes path = {0};
  CLV_TRY(path_of_step(run_dir, step, &path, err));
  return clv_checkpoint_load(path.data, ret, err);
}

clv_code clv_checkpoint_read_manifest(const char *run_dir, uint64_t step, clv_manifest *ret,
                                      clv_err *err) {
  CLV_AUTO(clv_checkpoint_freep) clv_checkpoint *c = NULL;
  CLV_AUTO(clv_bytes_done) clv_bytes path = {0};
  CLV_TRY(path_of_step(run_dir, step, &path, err));
  CLV_TRY(open_folder(path.data, &c, err));
  *ret = c->manifest;
  c->manifest = (clv_manifest){0};
  return CLV_OK;
}

clv_code clv_checkpoint_load_before(const char *run_dir, uint64_t before, clv_checkpoint **ret,
                                    clv_bytes *reasons, clv_err *err) {
  CLV_AUTO(step_list_clear) step_list l = {0};
  CLV_AUTO(clv_bytes_done) clv_bytes why = {0};
  CLV_TRY(list_steps(run_dir, &l, err));
  clv_code code = CLV_NOT_FOUND;
  for (size_t i = 0; i < l.n && code != CLV_OK; i++) {
    clv_err refusal;
    if (l.steps[i] >= before) continue;
    code = load_checkpoint_of_step(run_dir, l.steps[i], ret, &refusal);
    if (code == CLV_OK) break;
    clv_bytes_printf(&why, "%scheckpoint-%llu refused: %s", why.len ? "; " : "",
                     (unsigned long long)l.steps[i], refusal.text);
    if (reasons)
      clv_bytes_printf(reasons, "checkpoint-%llu refused: %s\n", (unsigned long long)l.steps[i],
                       refusal.text);
  }
  if (why.failed) return clv_fail(err, CLV_EXHAUSTED, "out of memory");
  if (code == CLV_OK) return CLV_OK;
  if (!l.n)
    return clv_fail(err, CLV_NOT_FOUND, "run folder %s: no usable checkpoint: train first",
                    run_dir);
  return clv_fail(
      err, CLV_NOT_FOUND, "run folder %s: no usable checkpoint%s%s", run_dir,
      reasons ? ", all are refused: restore their files, or start over with --fresh" : ": ",
      reasons ? "" : why.data);
}

clv_code clv_checkpoint_load_latest(const char *run_dir, clv_checkpoint **ret, clv_bytes *reasons,
                                    clv_err *err) {
  return clv_checkpoint_load_before(run_dir, CLV_CHECKPOINT_NONE, ret, reasons, err);
}

clv_code clv_checkpoint_load_step(const char *run_dir, uint64_t step, clv_checkpoint **ret,
                                  clv_err *err) {
  CLV_AUTO(step_list_clear) step_list l = {0};
  CLV_AUTO(clv_bytes_done) clv_bytes there = {0};
  clv_code code = load_checkpoint_of_step(run_dir, step, ret, err);
  if (code != CLV_NOT_FOUND) return code;
  CLV_TRY(list_steps(run_dir, &l, err));
  for (size_t i = 0; i < CLV_MIN(l.n, (size_t)MAX_SHOWN_STEPS); i++)
    clv_bytes_printf(&there, "%s%llu", i ? ", " : "", (unsigned long long)l.steps[i]);
  return clv_fail(err, CLV_NOT_FOUND,
                  "run folder %s: there is no checkpoint of step %llu; there %s%s%s", run_dir,
                  (unsigned long long)step,
                  !there.len ? "is none"
                  : l.n == 1 ? "is one of step "
                             : "are those of steps ",
                  there.len ? there.data : "", l.n > MAX_SHOWN_STEPS ? " and more" : "");
}

/* ---- deleting old checkpoints ---------------------------------------------------------------- */

static clv_code remove_folder(const char *run_dir, uint64_t step, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes path = {0};
  CLV_TRY(path_of_step(run_dir, step, &path, err));
  CLV_FAILPOINT("checkpoint.prune");
  CLV_TRY(clv_weights_clear_dir(path.data, err));
  CLV_FAILPOINT("checkpoint.pruned");
  if (rmdir(path.data) != 0 && errno != ENOTEMPTY && errno != EEXIST && errno != ENOTDIR)
    return clv_fail(err, CLV_PRECONDITION, "%s: %s", path.data, strerror(errno));
  return CLV_OK;
}

clv_code clv_checkpoint_remove(const char *run_dir, uint64_t step, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes path = {0};
  CLV_TRY(path_of_step(run_dir, step, &path, err));
  return access(path.data, F_OK) == 0 ? remove_folder(run_dir, step, err) : CLV_OK;
}

static void drop_files_at_workers(const char *run_dir, uint64_t step, clv_checkpoint_drop_fn *drop,
                                  void *user) {
  CLV_AUTO(clv_manifest_clear) clv_manifest m = {0};
  if (drop && clv_checkpoint_read_manifest(run_dir, step, &m, NULL) == CLV_OK) drop(user, &m);
}

clv_code clv_checkpoint_prune(const char *run_dir, uint32_t keep, uint64_t protected_step,
                              clv_checkpoint_drop_fn *drop, void *user, clv_err *err) {
  CLV_AUTO(step_list_clear) step_list l = {0};
  CLV_TRY(list_steps(run_dir, &l, err));
  uint32_t n_kept = 0;
  for (size_t i = 0; i < l.n; i++) {
    CLV_AUTO(clv_checkpoint_freep) clv_checkpoint *c = NULL;
    bool can_keep_more = n_kept < CLV_MAX(keep, 1u);
    if (can_keep_more && load_checkpoint_of_step(run_dir, l.steps[i], &c, NULL) == CLV_OK) {
      n_kept++;
    } else if (n_kept && l.steps[i] != protected_step) {
      drop_files_at_workers(run_dir, l.steps[i], drop, user);
      CLV_TRY(remove_folder(run_dir, l.steps[i], err));
    }
  }
  return CLV_OK;
}

bool clv_checkpoint_has_any(const char *run_dir) {
  CLV_AUTO(step_list_clear) step_list l = {0};
  return list_steps(run_dir, &l, NULL) == CLV_OK && l.n > 0;
}

static bool has_manifest_file(const char *run_dir, uint64_t step) {
  CLV_AUTO(clv_bytes_done) clv_bytes path = {0};
  clv_bytes_printf(&path, "%s/checkpoint-%llu/" CLV_MANIFEST_NAME, run_dir,
                   (unsigned long long)step);
  return path.failed || access(path.data, F_OK) == 0;
}

bool clv_checkpoint_has_manifest(const char *run_dir) {
  CLV_AUTO(step_list_clear) step_list l = {0};
  bool has_manifest = false;
  if (list_steps(run_dir, &l, NULL) != CLV_OK) return false;
  for (size_t i = 0; i < l.n; i++) has_manifest |= has_manifest_file(run_dir, l.steps[i]);
  return has_manifest;
}

clv_code clv_checkpoint_peek(const char *run_dir, clv_checkpoint **ret, clv_err *err) {
  CLV_AUTO(clv_checkpoint_freep) clv_checkpoint *c = NULL;
  CLV_AUTO(clv_bytes_done) clv_bytes path = {0};
  uint64_t step;
  if (!clv_checkpoint_steps_with_manifest(run_dir, &step, 1))
    return clv_fail(err, CLV_NOT_FOUND, "run folder %s has no checkpoint", run_dir);
  CLV_TRY(path_of_step(run_dir, step, &path, err));
  CLV_TRY(open_folder(path.data, &c, err));
  CLV_TRY(read_state(c, err));
  *ret = clv_steal(&c);
  return CLV_OK;
}

size_t clv_checkpoint_steps_with_manifest(const char *run_dir, uint64_t *ret_steps,
                                          size_t max_steps) {
  CLV_AUTO(step_list_clear) step_list l = {0};
  if (list_steps(run_dir, &l, NULL) != CLV_OK) return 0;
  size_t n = 0;
  for (size_t i = 0; i < l.n && n < max_steps; i++)
    if (has_manifest_file(run_dir, l.steps[i])) ret_steps[n++] = l.steps[i];
  return n;
}

clv_code clv_checkpoint_list_steps(const char *run_dir, uint64_t **ret_steps, size_t *ret_n,
                                   clv_err *err) {
  CLV_AUTO(step_list_clear) step_list l = {0};
  CLV_TRY(list_steps(run_dir, &l, err));
  *ret_n = l.n;
  *ret_steps = clv_steal(&l.steps);
  return CLV_OK;
}

clv_code clv_checkpoint_remove_all(const char *run_dir, clv_err *err) {
  CLV_AUTO(step_list_clear) step_list l = {0};
  CLV_TRY(list_steps(run_dir, &l, err));
  for (size_t i = 0; i < l.n; i++) CLV_TRY(remove_folder(run_dir, l.steps[i], err));
  return CLV_OK;
}
