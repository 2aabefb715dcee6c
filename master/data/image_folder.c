/* SPDX-License-Identifier: Apache-2.0
 *
 * The index of an image folder. It keeps only names, so a million images need some tens of
 * megabytes. clv_image_folder_scan is the main function; clv_images_open calls it.
 *
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include "master/data/image_int.h"

enum { MAX_FOLDER_DEPTH = 16, MAX_PATH_BYTES = 4096 };

void clv_image_folder_done(clv_image_folder *f) {
  if (!f) return;
  free(f->root);
  clv_bytes_done(&f->names);
  free(f->paths);
  free(f->labels);
  free(f->classes);
  free(f->first_stray_file);
  *f = (clv_image_folder){0};
}

void clv_image_folder_limit(clv_image_folder *f, size_t limit) {
  if (!limit || limit >= f->n) return;
  for (size_t i = 0; i < limit; i++) {
    size_t from = i * f->n / limit;
    f->paths[i] = f->paths[from];
    f->labels[i] = f->labels[from];
  }
  f->n = limit;
}

/* ---- growing the lists of an index ----------------------------------------------------------- */

static clv_code grow_list(void *list_address, size_t old_cap, size_t new_cap, size_t element_bytes,
                          clv_err *err) {
  size_t bytes;
  void *new_list =
      clv_mul_size(new_cap, element_bytes, &bytes) ? realloc(*(void **)list_address, bytes) : NULL;
  if (!new_list)
    return clv_fail(err, CLV_EXHAUSTED, "no memory for the names of more than %zu files", old_cap);
  *(void **)list_address = new_list;
  return CLV_OK;
}

static clv_code add_name(clv_image_folder *f, const char *name, size_t *ret_offset, clv_err *err) {
  *ret_offset = f->names.len;
  clv_bytes_add(&f->names, name, strlen(name) + 1);
  return f->names.failed
             ? clv_fail(err, CLV_EXHAUSTED, "no memory for the names of %zu files", f->n)
             : CLV_OK;
}

static clv_code add_class(clv_image_folder *f, const char *name, clv_err *err) {
  if (f->n_classes == f->class_cap) {
    size_t cap = f->class_cap ? 2 * f->class_cap : 64;
    CLV_TRY(grow_list(&f->classes, f->class_cap, cap, sizeof *f->classes, err));
    f->class_cap = cap;
  }
  return add_name(f, name, &f->classes[f->n_classes++], err);
}

static clv_code add_image(clv_image_folder *f, const char *path, uint32_t label, clv_err *err) {
  if (f->n == UINT32_MAX)
    return clv_fail(err, CLV_EXHAUSTED, "%s: more than %u images", f->root, UINT32_MAX);
  if (f->n == f->cap) {
    size_t cap = f->cap ? 2 * f->cap : 1024;
    CLV_TRY(grow_list(&f->paths, f->cap, cap, sizeof *f->paths, err));
    CLV_TRY(grow_list(&f->labels, f->cap, cap, sizeof *f->labels, err));
    f->cap = cap;
  }
  f->labels[f->n] = label;
  return add_name(f, path, &f->paths[f->n++], err);
}

/* ---- reading the folders --------------------------------------------------------------------- */

static void close_dir(DIR **d) {
  if (*d) closedir(*d);
}

static clv_code open_dir(const char *path, DIR **ret, clv_err *err) {
  *ret = opendir(path);
  if (*ret) return CLV_OK;
  return clv_fail(err, errno == ENOENT ? CLV_NOT_FOUND : CLV_INVALID, "image folder %s: %s", path,
                  strerror(errno));
}

/* Returns the next entry whose name does not begin with a dot; NULL: the folder has no more. */
static const struct dirent *next_entry(DIR *d) {
  const struct dirent *e;
  do e = readdir(d);
  while (e && e->d_name[0] == '.');
  return e;
}

/* True for a folder, and for a link to a folder, which torchvision follows as well. */
static bool is_folder(DIR *d, const struct dirent *e) {
  struct stat st;
  if (e->d_type == DT_DIR) return true;
  if (e->d_type != DT_LNK && e->d_type != DT_UNKNOWN) return false;
  return fstatat(dirfd(d), e->d_name, &st, 0) == 0 && S_ISDIR(st.st_mode);
}

static bool is_image(const char *name) {
  static const char *const suffixes[] = {".png", ".jpg", ".jpeg"};
  size_t n = strlen(name);
  for (size_t i = 0; i < CLV_COUNT(suffixes); i++) {
    size_t m = strlen(suffixes[i]);
    if (n > m && strcasecmp(name + n - m, suffixes[i]) == 0) return true;
  }
  return false;
}

static clv_code join_path(const char *folder, const char *name, char path[MAX_PATH_BYTES],
                          clv_err *err) {
  int n = snprintf(path, MAX_PATH_BYTES, "%s/%s", folder, name);
  if (n >= 0 && n < MAX_PATH_BYTES) return CLV_OK;
  return clv_fail(err, CLV_INVALID, "%.200s/...: a path of more than %d bytes", folder,
                  MAX_PATH_BYTES);
}

/* Counts a file that is not used, so that commands can report how many there are and name the
 * first. */
static clv_code add_stray_file(clv_image_folder *f, const char *path, clv_err *err) {
  f->n_stray_files++;
  if (f->first_stray_file && strcmp(f->first_stray_file, path) <= 0) return CLV_OK;
  free(f->first_stray_file);
  f->first_stray_file = NULL;
  return clv_strdup(path, &f->first_stray_file, err);
}

/* Adds all images in the folder `relative_path` of the root and below it, unsorted. */
static clv_code add_images_in_folder(clv_image_folder *f, const char *relative_path, uint32_t label,
                                     int depth, clv_err *err) {
  CLV_AUTO(clv_freep) char *path = NULL;
  CLV_AUTO(close_dir) DIR *d = NULL;
  if (depth > MAX_FOLDER_DEPTH)
    return clv_fail(err, CLV_INVALID,
                    "%s/%.100s...: more than %d folders deep; does a link lead back up?", f->root,
                    relative_path, MAX_FOLDER_DEPTH);
  CLV_TRY(clv_alloc(MAX_PATH_BYTES, 1, &path, err));
  CLV_TRY(join_path(f->root, relative_path, path, err));
  CLV_TRY(open_dir(path, &d, err));
  for (const struct dirent *e; (e = next_entry(d));) {
    CLV_TRY(join_path(relative_path, e->d_name, path, err));
    if (is_folder(d, e))
      CLV_TRY(add_images_in_folder(f, path, label, depth + 1, err));
    else if (is_image(e->d_name))
      CLV_TRY(add_image(f, path, label, err));
    else
      CLV_TRY(add_stray_file(f, path, err));
  }
  return CLV_OK;
}

/* ---- order of the images --------------------------------------------------------------------- */

static int compare_names(const void *a, const void *b, void *names) {
  return strcmp((const char *)names + *(const size_t *)a, (const char *)names + *(const size_t *)b);
}

/* Compares the folders of two paths first: "x/2.png" comes before "x/a/1.png" and "x-y/1.png". */
static int compare_by_folder(const void *a, const void *b, void *names) {
  const char *p = (const char *)names + *(const size_t *)a;
  const char *q = (const char *)names + *(const size_t *)b;
  size_t n = (size_t)(strrchr(p, '/') - p), m = (size_t)(strrchr(q, '/') - q);
  int order = memcmp(p, q, CLV_MIN(n, m));
  if (!order && n != m) return n < m ? -1 : 1;
  return order ? order : strcmp(p + n, q + n);
}

static clv_code find_classes(clv_image_folder *f, clv_err *err) {
  CLV_AUTO(close_dir) DIR *d = NULL;
  CLV_TRY(open_dir(f->root, &d, err));
  for (const struct dirent *e; (e = next_entry(d));)
    CLV_TRY((is_folder(d, e) ? add_class : add_stray_file)(f, e->d_name, err));
  if (!f->n_classes)
    return clv_fail(err, CLV_INVALID,
                    "image folder %s has no folders in it: images go into one folder per class, as "
                    "in %s/cat/1.png",
                    f->root, f->root);
  qsort_r(f->classes, f->n_classes, sizeof *f->classes, compare_names, f->names.data);
  return CLV_OK;
}

static clv_code sort_images(clv_image_folder *f, size_t n_images_before, const char *folder_label,
                            clv_err *err) {
  if (f->n == n_images_before)
    return clv_fail(err, CLV_INVALID, "image folder %s: %s has no .png, .jpg or .jpeg: add some%s",
                    f->root, folder_label, f->n_classes ? ", or take the folder away" : "");
  qsort_r(f->paths + n_images_before, f->n - n_images_before, sizeof *f->paths, compare_by_folder,
          f->names.data);
  return CLV_OK;
}

static clv_code list_images_of_class(clv_image_folder *f, uint32_t label, clv_err *err) {
  CLV_AUTO(clv_freep) char *name = NULL; /* a copy, because f->names moves when it grows */
  size_t n_images_before = f->n;
  CLV_TRY(clv_strdup(f->names.data + f->classes[label], &name, err));
  CLV_TRY(add_images_in_folder(f, name, label, 1, err));
  char folder_label[300];
  snprintf(folder_label, sizeof folder_label, "class '%.280s'", name);
  return sort_images(f, n_images_before, folder_label, err);
}

clv_code clv_image_folder_scan(const char *root, bool is_unlabelled, clv_image_folder *ret,
                               clv_err *err) {
  CLV_AUTO(clv_image_folder_done) clv_image_folder f = {0};
  CLV_TRY(clv_strdup(root, &f.root, err));
  if (is_unlabelled) {
    CLV_TRY(add_images_in_folder(&f, ".", 0, 0, err));
    CLV_TRY(sort_images(&f, 0, "it", err));
  } else {
    CLV_TRY(find_classes(&f, err));
  }
  for (size_t i = 0; i < f.n_classes; i++) CLV_TRY(list_images_of_class(&f, (uint32_t)i, err));
  *ret = f;
  f = (clv_image_folder){0};
  return CLV_OK;
}

clv_code clv_image_folder_list(const char *root, const char *names, const size_t *paths, size_t n,
                               clv_image_folder *ret, clv_err *err) {
  CLV_AUTO(clv_image_folder_done) clv_image_folder f = {0};
  CLV_TRY(clv_strdup(root, &f.root, err));
  for (size_t i = 0; i < n; i++) CLV_TRY(add_image(&f, names + paths[i], 0, err));
  *ret = f;
  f = (clv_image_folder){0};
  return CLV_OK;
}

/* ---- paths in a folder ----------------------------------------------------------------------- */

bool clv_image_is_path_inside(const char *path) {
  if (*path == '/') return false;
  for (const char *part = path; part; part = strchr(part, '/')) {
    part += *part == '/';
    if (strncmp(part, "..", 2) == 0 && (part[2] == '/' || !part[2])) return false;
  }
  return true;
}

bool clv_image_is_file(const char *folder, const char *path) {
  CLV_AUTO(clv_bytes_done) clv_bytes full_path = {0};
  struct stat st;
  clv_bytes_printf(&full_path, "%s/%s", folder, path);
  return !full_path.failed && stat(full_path.data, &st) == 0 && S_ISREG(st.st_mode);
}
