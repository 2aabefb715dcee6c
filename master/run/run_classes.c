/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads and writes the class names of a run: a file in the run folder with one name per line, in
 * the order of the class numbers. `train` writes it; `eval`, `predict` and `export` read it.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "master/run/run_int.h"

enum { MAX_CLASSES_FILE_BYTES = 16 << 20, MAX_CLASS_NAME_LEN = 255 };

void clv_classes_free(clv_classes *c) {
  if (!c) return;
  free(c->text);
  free(c->names);
  *c = (clv_classes){0};
}

/* Returns true if `name` can be a class name, which is the name of a folder of images. Hidden
 * folders are not classes. */
static bool is_valid_class_name(const char *name) {
  size_t n = strlen(name);
  for (const char *p = name; *p; p++)
    if ((unsigned char)*p < 0x20 || *p == 0x7f || *p == '/') return false;
  return n && n <= MAX_CLASS_NAME_LEN && name[0] != '.';
}

static clv_code fail_damaged_line(const char *label, size_t line_number, const char *fault,
                                  clv_err *err) {
  return clv_fail(err, CLV_DATA_LOSS, "%s is damaged: line %zu %s", label, line_number, fault);
}

static clv_code split_into_class_names(clv_classes *c, size_t len, const char *label,
                                       clv_err *err) {
  char *at = c->text, *end = c->text + len;
  for (; at < end; c->n++) {
    char *line_end = memchr(at, '\n', (size_t)(end - at));
    if (!line_end) return fail_damaged_line(label, c->n + 1, "has no end", err);
    *line_end = '\0';
    c->names[c->n] = at;
    if (strlen(at) != (size_t)(line_end - at) || !is_valid_class_name(at))
      CLV_TRY(fail_damaged_line(label, c->n + 1, "is no name of a class", err));
    at = line_end + 1;
  }
  return c->n ? CLV_OK : fail_damaged_line(label, 1, "is missing", err);
}

static int compare_names(const void *a, const void *b) {
  return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Fails if a class name occurs twice. */
static clv_code check_names_unique(const clv_classes *c, const char *label, clv_err *err) {
  CLV_AUTO(clv_freep) const char **sorted = NULL;
  CLV_TRY(clv_alloc(c->n, sizeof *sorted, &sorted, err));
  for (size_t i = 0; i < c->n; i++) sorted[i] = c->names[i];
  qsort(sorted, c->n, sizeof *sorted, compare_names);
  for (size_t i = 1; i < c->n; i++)
    if (strcmp(sorted[i - 1], sorted[i]) == 0)
      return clv_fail(err, CLV_DATA_LOSS, "%s is damaged: the class '%.80s' comes twice", label,
                      sorted[i]);
  return CLV_OK;
}

clv_code clv_classes_parse(const char *text, size_t len, const char *label, clv_classes *ret,
                           clv_err *err) {
  CLV_AUTO(clv_classes_free) clv_classes c = {0};
  size_t n_lines = 1;
  for (size_t i = 0; i < len; i++) n_lines += text[i] == '\n';
  CLV_TRY(clv_alloc(len + 1, 1, &c.text, err));
  CLV_TRY(clv_alloc(n_lines, sizeof *c.names, &c.names, err));
  if (len) memcpy(c.text, text, len);
  CLV_TRY(split_into_class_names(&c, len, label, err));
  CLV_TRY(check_names_unique(&c, label, err));
  *ret = c;
  c = (clv_classes){0};
  return CLV_OK;
}

static clv_code append_classes_path(const char *dir, clv_bytes *ret, clv_err *err) {
  clv_bytes_printf(ret, "%s/" CLV_RUN_CLASSES_FILE, dir);
  return ret->failed ? clv_fail(err, CLV_EXHAUSTED, "out of memory") : CLV_OK;
}

clv_code clv_classes_read(const char *dir, clv_classes *ret, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes path = {0}, text = {0};
  CLV_TRY(append_classes_path(dir, &path, err));
  clv_code code = clv_file_read(path.data, MAX_CLASSES_FILE_BYTES, &text, err);
  if (code == CLV_NOT_FOUND) return CLV_OK; /* a run whose classes have no names writes no file */
  CLV_TRY(code);
  return clv_classes_parse(text.data, text.len, path.data, ret, err);
}

static clv_code write_classes(const char *dir, const clv_dataset *d, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes path = {0}, text = {0};
  for (size_t i = 0; i < clv_dataset_class_count(d); i++) {
    const char *name = clv_dataset_class_name(d, i);
    if (!is_valid_class_name(name))
      return clv_fail(err, CLV_INVALID,
                      "the folder of class %zu has a control character in its name: rename it", i);
    clv_bytes_printf(&text, "%s\n", name);
  }
  if (text.failed) return clv_fail(err, CLV_EXHAUSTED, "out of memory");
  CLV_TRY(append_classes_path(dir, &path, err));
  return clv_file_write_durable(path.data, text.data, text.len, 0644, err);
}

/* Returns the text with which messages name the source of the class names. */
static const char *class_name_source(const clv_session_config *c) {
  const clv_format_row *f = clv_format_row_of(c->data.format);
  return f->class_list && c->data.documents.labels.n ? f->class_list : f->classes;
}

clv_code clv_run_compare_classes(const clv_run *r, const clv_classes *c, const clv_dataset *d,
                                 const char *label, clv_err *err) {
  size_t n = clv_dataset_class_count(d);
  if (!n || !c->n) return CLV_OK;
  for (size_t i = 0; i < CLV_MIN(n, c->n); i++)
    if (strcmp(c->names[i], clv_dataset_class_name(d, i)) != 0)
      return clv_fail(
          err, CLV_DATA_LOSS,
          "class %zu is '%s' in the run that was trained, and '%s' in %s: %s must be the "
          "same",
          i, c->names[i], clv_dataset_class_name(d, i), label, class_name_source(r->config));
  if (n == c->n) return CLV_OK;
  return clv_fail(err, CLV_DATA_LOSS,
                  "the run was trained on %zu classes, and %s has %zu: %s must be the same", c->n,
                  label, n, class_name_source(r->config));
}

clv_code clv_run_write_classes(const clv_run *r, clv_err *err) {
  CLV_AUTO(clv_classes_free) clv_classes c = {0};
  if (!clv_dataset_class_count(r->data.train)) return CLV_OK;
  if (r->o->resume) {
    CLV_TRY(clv_classes_read(r->dir.data, &c, err));
    CLV_TRY(clv_run_compare_classes(r, &c, r->data.train, "data.train", err));
  }
  return c.n ? CLV_OK : write_classes(r->dir.data, r->data.train, err);
}
