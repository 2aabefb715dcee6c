/* SPDX-License-Identifier: Apache-2.0
 *
 * Folders of pretrained weights (clv_weights_folder_open, _match, _read). A node reads only its own
 * tensors. When a file is opened, its header is compared with the index.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/model/weights/weights_int.h"

static const char weights_file_name[] = "model.safetensors";
enum { LABEL_BYTES = 512, MAX_LISTED_UNMATCHED = 12, PART_BYTES = 1 << 16 };

/* A safetensors file of the folder. Only `name` is set until the file is opened. */
typedef struct part {
  const char *name;
  char label[LABEL_BYTES];
  clv_weights_fd fd;
  clv_weights_file_stamp opened_stamp; /* stamp of the file when it was opened */
  clv_weights_file *file;
} part;

struct clv_weights_folder {
  char *label;
  int dir_fd; /* descriptor of the folder; AT_FDCWD: the caller gave the path of a single file */
  clv_weights_guard guard;
  bool has_index_file, is_single_file;
  clv_weights_index index; /* index of the tensors; for a single file, made from its header */
  part *file_parts;        /* [index.n_files] safetensors files of the folder */
};

void clv_weights_folder_close(clv_weights_folder *f) {
  if (!f) return;
  for (size_t i = 0; f->file_parts && i < f->index.n_files; i++) {
    clv_weights_fd_close(&f->file_parts[i].fd);
    clv_weights_close(f->file_parts[i].file);
  }
  free(f->file_parts);
  clv_weights_index_clear(&f->index);
  clv_weights_closefd(&f->dir_fd);
  free(f->label);
  free(f);
}

void clv_weights_folder_closep(clv_weights_folder **f) {
  clv_weights_folder_close(*f);
  *f = NULL;
}

const char *clv_weights_folder_file_name(const clv_weights_folder *f, size_t i) {
  if (f->has_index_file && i == 0) return CLV_INDEX_NAME;
  i -= f->has_index_file;
  return i < f->index.n_files ? f->index.file_names[i] : NULL;
}

/* ---- opening files --------------------------------------------------------------------------- */

/* Opens a file, lets the caller's guard check it, and reads its header, all with one descriptor. */
static clv_code open_part(clv_weights_folder *f, part *p, clv_err *err) {
  snprintf(p->label, sizeof p->label, f->is_single_file ? "%.300s" : "%.300s/%.150s", f->label,
           p->name);
  CLV_TRY(clv_weights_fd_open(f->dir_fd, p->name, p->label, &p->fd, err));
  CLV_TRY(clv_weights_read_stamp(p->fd.fd, p->label, &p->opened_stamp, err));
  if (f->guard.check_file) CLV_TRY(f->guard.check_file(f->guard.user, p->name, p->fd.fd, err));
  CLV_TRY(clv_weights_open_header(&p->fd, &p->file, err));
  return clv_weights_check_stamp(p->fd.fd, p->label, &p->opened_stamp, err);
}

static bool is_listed_for_file(const clv_weights_index *x, const char *name, size_t file) {
  const char *const *at =
      bsearch(&name, x->tensor_names, x->n, sizeof *x->tensor_names, clv_weights_compare_names);
  return at && x->file_index[at - x->tensor_names] == file;
}

/* Checks that the index and the file have the same tensors. */
static clv_code check_part_against_index(const clv_weights_folder *f, size_t k, clv_err *err) {
  const clv_weights_index *x = &f->index;
  const part *p = &f->file_parts[k];
  for (size_t i = 0; i < x->n; i++)
    if (x->file_index[i] == k && !clv_weights_find_entry(p->file, x->tensor_names[i]))
      return clv_fail(err, CLV_DATA_LOSS, "%s: has no tensor '%.100s', although the index lists it",
                      p->label, x->tensor_names[i]);
  for (size_t i = 0; i < clv_weights_n_entries(p->file); i++) {
    const char *name = clv_weights_entries(p->file)[i].name;
    if (!is_listed_for_file(x, name, k))
      return clv_fail(err, CLV_DATA_LOSS,
                      "%s: has tensor '%.100s', which the index does not list for this file",
                      p->label, name);
  }
  return CLV_OK;
}

static clv_code open_part_once(clv_weights_folder *f, size_t k, clv_err *err) {
  part *p = &f->file_parts[k];
  if (p->file) return CLV_OK;
  clv_code code = open_part(f, p, err);
  if (code == CLV_OK) code = check_part_against_index(f, k, err);
  if (code == CLV_OK) return CLV_OK;
  clv_weights_closep(&p->file);
  clv_weights_fd_close(&p->fd);
  return code;
}

/* ---- opening the folder ---------------------------------------------------------------------- */

static clv_code make_file_parts(clv_weights_folder *f, clv_err *err) {
  CLV_TRY(clv_alloc(f->index.n_files, sizeof *f->file_parts, &f->file_parts, err));
  for (size_t i = 0; i < f->index.n_files; i++) f->file_parts[i].name = f->index.file_names[i];
  for (size_t i = 0; i < f->index.n_files; i++) f->file_parts[i].fd.fd = -1;
  return CLV_OK;
}

static clv_code open_index(clv_weights_folder *f, clv_weights_fd *fd, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes text = {0};
  f->has_index_file = true;
  if (f->guard.check_file) CLV_TRY(f->guard.check_file(f->guard.user, CLV_INDEX_NAME, fd->fd, err));
  CLV_TRY(clv_weights_fd_read_all(fd, CLV_WEIGHTS_MAX_HEADER, &text, err));
  CLV_TRY(clv_weights_index_parse(text.data, text.len, fd->label, &f->index, err));
  return make_file_parts(f, err);
}

/* Opens the folder's only safetensors file, and makes an index from the names in its header. */
static clv_code open_weights_file(clv_weights_folder *f, const char *name, clv_err *err) {
  clv_weights_index *x = &f->index;
  x->n_files = 1;
  CLV_TRY(clv_alloc(1, sizeof *x->file_names, &x->file_names, err));
  x->file_names[0] = name;
  CLV_TRY(make_file_parts(f, err));
  CLV_TRY(open_part(f, &f->file_parts[0], err));
  const clv_weights_file *file = f->file_parts[0].file;
  x->n = clv_weights_n_entries(file);
  CLV_TRY(clv_alloc(x->n, sizeof *x->tensor_names, &x->tensor_names, err));
  CLV_TRY(clv_alloc(x->n, sizeof *x->file_index, &x->file_index, err));
  for (size_t i = 0; i < x->n; i++) x->tensor_names[i] = clv_weights_entries(file)[i].name;
  return CLV_OK;
}

static clv_code open_weights_or_index(clv_weights_folder *f, clv_err *err) {
  CLV_AUTO(clv_weights_fd_close) clv_weights_fd fd = {.fd = -1};
  char label[LABEL_BYTES];
  struct stat st;
  if (fstatat(f->dir_fd, weights_file_name, &st, AT_SYMLINK_NOFOLLOW) == 0)
    return open_weights_file(f, weights_file_name, err);
  snprintf(label, sizeof label, "%.300s/%s", f->label, CLV_INDEX_NAME);
  clv_code code = clv_weights_fd_open(f->dir_fd, CLV_INDEX_NAME, label, &fd, err);
  if (code == CLV_NOT_FOUND)
    return clv_fail(err, CLV_NOT_FOUND, "%.300s: has neither %s nor %s", f->label,
                    weights_file_name, CLV_INDEX_NAME);
  CLV_TRY(code);
  return open_index(f, &fd, err);
}

/* Opens a single file by its path. Until the file is open its name is the path; afterwards it is
 * the label. */
static clv_code open_path_as_file(clv_weights_folder *f, const char *path, clv_err *err) {
  f->is_single_file = true;
  clv_code code = open_weights_file(f, path, err);
  if (f->file_parts) f->file_parts[0].name = f->label;
  if (f->index.file_names) f->index.file_names[0] = f->label;
  return code;
}

clv_code clv_weights_folder_open(const char *path, const char *label, clv_weights_guard guard,
                                 clv_weights_folder **ret, clv_err *err) {
  CLV_AUTO(clv_weights_folder_closep) clv_weights_folder *f = NULL;
  CLV_TRY(clv_alloc(1, sizeof *f, &f, err));
  f->dir_fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  int error_number = f->dir_fd < 0 ? errno : 0;
  f->guard = guard;
  CLV_TRY(clv_strdup(label, &f->label, err));
  if (error_number && error_number != ENOTDIR)
    return clv_fail(err, error_number == ENOENT ? CLV_NOT_FOUND : CLV_INVALID, "%.300s: %s", label,
                    strerror(error_number));
  if (error_number) f->dir_fd = AT_FDCWD;
  CLV_TRY(error_number ? open_path_as_file(f, path, err) : open_weights_or_index(f, err));
  *ret = clv_steal(&f);
  return CLV_OK;
}

clv_code clv_weights_folder_check_files(clv_weights_folder *f, clv_err *err) {
  for (size_t k = 0; k < f->index.n_files; k++) CLV_TRY(open_part_once(f, k, err));
  return CLV_OK;
}

/* ---- matching parameters with tensors -------------------------------------------------------- */

static clv_code fail_missing(const clv_weights_folder *f, clv_name_list *l, clv_err *err) {
  const char *suggestion = clv_did_you_mean(l->first_name, f->index.tensor_names, f->index.n);
  clv_name_list_add_rest(l);
  if (l->text.failed) return clv_fail(err, CLV_EXHAUSTED, "out of memory");
  return clv_fail(err, CLV_INVALID, "%.120s: %zu missing tensors: %s%s%s%s", f->label, l->n,
                  l->text.data, suggestion ? " (did you mean '" : "", suggestion ? suggestion : "",
                  suggestion ? "'?)" : "");
}

/* Refuses a match in which two parameters would be read from one tensor. */
static clv_code check_no_tensor_shared(const clv_weights_folder *f, const clv_weights_want *want,
                                       const size_t *found, size_t n, clv_err *err) {
  CLV_AUTO(clv_freep) const char **taken = NULL;
  CLV_TRY(clv_alloc(f->index.n, sizeof *taken, &taken, err));
  for (size_t i = 0; i < n; i++) {
    if (found[i] == CLV_WEIGHTS_NONE) continue;
    if (taken[found[i]])
      return clv_fail(err, CLV_INVALID, "%.120s: '%.90s' and '%.90s' would both be '%.90s'",
                      f->label, taken[found[i]], want[i].name, f->index.tensor_names[found[i]]);
    taken[found[i]] = want[i].name;
  }
  return CLV_OK;
}

clv_code clv_weights_folder_match_tensors(const clv_weights_folder *f, const clv_weights_want *want,
                                          size_t n, const char *const *fresh, size_t n_fresh,
                                          size_t *ret_found, clv_err *err) {
  CLV_AUTO(clv_name_list_clear) clv_name_list missing = {0};
  for (size_t i = 0; i < n; i++) {
    ret_found[i] = CLV_WEIGHTS_NONE;
    if (clv_weights_is_newly_initialised(want[i].name, fresh, n_fresh)) continue;
    CLV_TRY(clv_weights_find_name(f->index.tensor_names, f->index.n, want[i].name, f->label,
                                  &ret_found[i], err));
    bool can_be_missing =
        want[i].is_optional || clv_weights_is_batch_counter(want[i].dtype, &want[i].shape);
    if (ret_found[i] == CLV_WEIGHTS_NONE && !can_be_missing)
      clv_name_list_add(&missing, want[i].name);
  }
  if (missing.n) return fail_missing(f, &missing, err);
  return check_no_tensor_shared(f, want, ret_found, n, err);
}

clv_code clv_weights_folder_list_unmatched(const clv_weights_folder *f,
                                           const clv_weights_want *want, size_t n, clv_bytes *out,
                                           size_t *ret_n, clv_err *err) {
  CLV_AUTO(clv_name_list_clear) clv_name_list unmatched = {.max_quoted = MAX_LISTED_UNMATCHED};
  CLV_AUTO(clv_freep) bool *is_used = NULL;
  CLV_TRY(clv_alloc(f->index.n, sizeof *is_used, &is_used, err));
  for (size_t i = 0; i < n; i++) {
    size_t at = CLV_WEIGHTS_NONE;
    clv_code code =
        clv_weights_find_name(f->index.tensor_names, f->index.n, want[i].name, f->label, &at, NULL);
    if (code == CLV_OK && at != CLV_WEIGHTS_NONE) is_used[at] = true;
  }
  for (size_t i = 0; i < f->index.n; i++)
    if (!is_used[i] && !clv_weights_is_derived(f->index.tensor_names[i]))
      clv_name_list_add(&unmatched, f->index.tensor_names[i]);
  clv_name_list_add_rest(&unmatched);
  if (unmatched.n) clv_bytes_puts(out, unmatched.text.data);
  *ret_n = unmatched.n;
  return CLV_OK;
}

/* ---- reading tensors ------------------------------------------------------------------------- */

/* Returns the shape without its leading extents of 1: [1, 1, 768] becomes [768]. */
static clv_shape drop_leading_ones(const clv_shape *s) {
  clv_shape r = {0};
  int k = 0;
  while (k < s->rank && s->dim[k] == 1) k++;
  for (; k < s->rank; k++) r.dim[r.rank++] = s->dim[k];
  return r;
}

static clv_code check_entry_fits(const part *p, const clv_weights_entry *e,
                                 const clv_weights_want *want, clv_err *err) {
  char wanted[160], found[160];
  clv_shape a = drop_leading_ones(&e->shape), b = drop_leading_ones(&want->shape);
  if (clv_weights_can_convert(e->dtype, want->dtype) && clv_shape_equal(&a, &b)) return CLV_OK;
  return clv_fail(err, CLV_INVALID, "%.120s: tensor '%.100s': expected %s %s, found %s %s",
                  p->label, e->name, clv_dtype_name(want->dtype),
                  clv_shape_format(&want->shape, wanted, sizeof wanted), e->type_name,
                  clv_shape_format(&e->shape, found, sizeof found));
}

static clv_code find_entry(clv_weights_folder *f, size_t i, const clv_weights_want *want,
                           const part **ret_part, const clv_weights_entry **ret, clv_err *err) {
  CLV_TRY(open_part_once(f, f->index.file_index[i], err));
  *ret_part = &f->file_parts[f->index.file_index[i]];
  *ret = clv_weights_find_entry((*ret_part)->file, f->index.tensor_names[i]);
  return check_entry_fits(*ret_part, *ret, want, err);
}

clv_code clv_weights_folder_check_tensor(clv_weights_folder *f, size_t i,
                                         const clv_weights_want *want, clv_err *err) {
  const part *p;
  const clv_weights_entry *e;
  return find_entry(f, i, want, &p, &e, err);
}

/* Reads n values from offset `at` of the file, and converts them to another type, a part at a time.
 */
static clv_code read_converted(const part *p, clv_dtype from, clv_dtype to, uint64_t at, void *dst,
                               size_t n, clv_err *err) {
  float buf[PART_BYTES / sizeof(float)];
  size_t size = clv_dtype_size(from);
  for (size_t done = 0; done < n;) {
    size_t n_part = CLV_MIN(n - done, sizeof buf / size);
    CLV_TRY(clv_weights_fd_pread(&p->fd, buf, size * n_part, at + size * done, err));
    if (to == CLV_BF16)
      clv_weights_to_bf16(from, buf, n_part, (uint16_t *)dst + done);
    else
      clv_weights_to_f32(from, buf, n_part, (float *)dst + done);
    done += n_part;
  }
  return CLV_OK;
}

clv_code clv_weights_folder_read_tensor_range(clv_weights_folder *f, size_t i,
                                              const clv_weights_want *want, size_t first, size_t n,
                                              void *dst, clv_err *err) {
  const part *p;
  const clv_weights_entry *e;
  CLV_TRY(find_entry(f, i, want, &p, &e, err));
  size_t size = clv_dtype_size(e->dtype), all = e->bytes / size;
  uint64_t at = e->at + (uint64_t)first * size;
  if (first > all || n > all - first)
    return clv_fail(err, CLV_INVALID, "%s: values %zu to %zu of tensor '%.100s', which has %zu",
                    p->label, first, first + n, e->name, all);
  CLV_TRY(e->dtype == want->dtype ? clv_weights_fd_pread(&p->fd, dst, n * size, at, err)
                                  : read_converted(p, e->dtype, want->dtype, at, dst, n, err));
  return clv_weights_check_stamp(p->fd.fd, p->label, &p->opened_stamp, err);
}

clv_code clv_weights_folder_read_tensor(clv_weights_folder *f, size_t i,
                                        const clv_weights_want *want, void *dst, clv_err *err) {
  size_t n;
  CLV_TRY(clv_shape_numel(&want->shape, &n, err));
  return clv_weights_folder_read_tensor_range(f, i, want, 0, n, dst, err);
}
