/* SPDX-License-Identifier: Apache-2.0
 *
 * What the readers and writers share: element types, name rules, files opened without following
 * links, durable writing, and JSON with the checks ours needs. Stays inside common/model/weights.
 */
#ifndef CLEAVE_WEIGHTS_INT_H
#define CLEAVE_WEIGHTS_INT_H

#include <jansson.h>
#include <sys/stat.h>
#include <time.h>

#include "common/model/weights/weights.h"

/* ---- element types and names ----------------------------------------------------------------- */

typedef struct clv_weights_type {
  const char *name; /* as safetensors spells it */
  size_t bytes;     /* per element; 0: below a byte, known but not read */
  clv_dtype dtype;  /* 0: none of ours */
} clv_weights_type;

const clv_weights_type *clv_weights_type_find(const char *name); /* NULL when unknown */
const clv_weights_type *clv_weights_type_of(clv_dtype dtype);    /* NULL when unknown */

/* Valid UTF-8 without control characters, 1..CLV_WEIGHTS_MAX_NAME bytes. */
bool clv_weights_is_name(const char *name);
/* Valid UTF-8 of any length. */
bool clv_weights_is_utf8(const char *text);
/* The same without control characters. */
bool clv_weights_is_printable(const char *text);
/* [A-Za-z0-9._-]{1,128}, neither "." nor "..". */
bool clv_weights_is_file_name(const char *name);

/* ---- files ----------------------------------------------------------------------------------- */

/* A file opened for reading. Release with clv_weights_fd_done. */
typedef struct clv_weights_fd {
  int fd; /* -1: none */
  size_t size;
  const char *label; /* borrowed: the name for messages */
} clv_weights_fd;

/* Opens `name` below dir_fd (or AT_FDCWD) with O_NOFOLLOW; regular files only. */
clv_code clv_weights_fd_open(int dir_fd, const char *name, const char *label, clv_weights_fd *ret,
                             clv_err *err) CLV_USE_RESULT;
void clv_weights_fd_done(clv_weights_fd *f);
/* Exactly n bytes from where the last read ended. */
clv_code clv_weights_fd_read(clv_weights_fd *f, void *dst, size_t n, clv_err *err) CLV_USE_RESULT;
/* Exactly n bytes from `at`, wherever that was. */
clv_code clv_weights_fd_pread(const clv_weights_fd *f, void *dst, size_t n, uint64_t at,
                              clv_err *err) CLV_USE_RESULT;

/* What changes with every write to a file. */
typedef struct clv_weights_file_stamp {
  off_t size;
  struct timespec mtime, ctime;
} clv_weights_file_stamp;
clv_code clv_weights_read_stamp(int fd, const char *label, clv_weights_file_stamp *ret,
                                clv_err *err) CLV_USE_RESULT;
/* CLV_DATA_LOSS: it was written to since, with its old length or not. */
clv_code clv_weights_check_stamp(int fd, const char *label, const clv_weights_file_stamp *was,
                                 clv_err *err) CLV_USE_RESULT;

/* The whole file, which must not be over max_bytes. */
clv_code clv_weights_fd_read_all(clv_weights_fd *f, size_t max_bytes, clv_bytes *ret,
                                 clv_err *err) CLV_USE_RESULT;

/* A safetensors file from an open descriptor (nothing read from it yet). */
clv_code clv_weights_open_fd(clv_weights_fd *fd, size_t max_bytes, clv_weights_file **ret,
                             clv_err *err) CLV_USE_RESULT;

/* As clv_weights_open_lazy; takes the descriptor on success. */
clv_code clv_weights_open_lazy_fd(clv_weights_fd *fd, clv_weights_file **ret,
                                  clv_err *err) CLV_USE_RESULT;

/* The same without its data: entries say where they lie (at), and their digest is not known. */
clv_code clv_weights_open_header(clv_weights_fd *fd, clv_weights_file **ret,
                                 clv_err *err) CLV_USE_RESULT;

/* Removes the plain files of a checkpoint folder, which is not followed if it is a link; what is
 * no folder, or in it no file, stays. */
clv_code clv_weights_clear_dir(const char *path, clv_err *err) CLV_USE_RESULT;
clv_code clv_weights_sync_dir(const char *path, clv_err *err) CLV_USE_RESULT;
void clv_weights_closefd(int *fd); /* for CLV_AUTO */

/* ---- JSON ------------------------------------------------------------------------------------ */

/* Bytes to an object: duplicate keys, more than max_tokens values and anything but spaces and line
 * ends after the object are CLV_DATA_LOSS. */
clv_code clv_weights_json(const void *data, size_t len, size_t max_tokens, const char *label,
                          json_t **ret, clv_err *err) CLV_USE_RESULT;
/* Parses a file that people edit: skips a byte order mark of UTF-8 at its begin. */
clv_code clv_weights_json_file(const void *data, size_t len, size_t max_tokens, const char *label,
                               json_t **ret, clv_err *err) CLV_USE_RESULT;
void clv_weights_jsonp(json_t **root); /* for CLV_AUTO */
/* The named non-negative integer, at most `most`. */
clv_code clv_weights_json_u64(const json_t *object, const char *key, uint64_t most,
                              const char *label, uint64_t *ret, clv_err *err) CLV_USE_RESULT;
clv_code clv_weights_json_text(const json_t *object, const char *key, const char *label,
                               const char **ret, clv_err *err) CLV_USE_RESULT;
/* Whether "format" and "version" are these; CLV_UNIMPLEMENTED says what was expected. */
clv_code clv_weights_json_format(const json_t *object, const char *format, int version,
                                 const char *label, clv_err *err) CLV_USE_RESULT;
/* CLV_DATA_LOSS naming the first key that is not among known[n]. */
clv_code clv_weights_json_only(json_t *object, const char *const *known, size_t n,
                               const char *label, clv_err *err) CLV_USE_RESULT;

/* ---- names ----------------------------------------------------------------------------------- */

/* "a, b, c and 4 more". */
typedef struct clv_name_list {
  clv_bytes text;
  const char *first;
  size_t n, most; /* names quoted; most 0: 3 */
} clv_name_list;

void clv_name_list_done(clv_name_list *l);
void clv_name_list_add(clv_name_list *l, const char *name);
void clv_name_list_end(clv_name_list *l);

/* Where names[n], which are sorted, have the parameter `want`, CLV_WEIGHTS_NONE if nowhere: by its
 * name; by that with or without the name of a base model before it; by the old names of norms.
 * CLV_INVALID: two of the names could be meant. */
clv_code clv_weights_find_name(const char *const *names, size_t n, const char *want,
                               const char *label, size_t *ret, clv_err *err) CLV_USE_RESULT;

/* ---- folders of weights ---------------------------------------------------------------------- */

/* Which file has which tensor. The texts live in root. */
typedef struct clv_weights_index {
  json_t *root;
  const char **names; /* [n], sorted */
  uint32_t *of;       /* [n] the place in files */
  const char **files; /* [n_files], sorted: plain names that end in .safetensors */
  size_t n, n_files;
} clv_weights_index;

void clv_weights_index_done(clv_weights_index *x);     /* frees and zeroes */
int clv_weights_compare(const void *a, const void *b); /* of such texts, for qsort and bsearch */
/* CLV_DATA_LOSS: damaged, with a path for a file or without tensors; CLV_EXHAUSTED: too large. */
clv_code clv_weights_index_parse(const void *data, size_t len, const char *label,
                                 clv_weights_index *ret, clv_err *err) CLV_USE_RESULT;

/* Opens all files of a folder and holds them against the index. */
clv_code clv_weights_folder_check_files(clv_weights_folder *f, clv_err *err) CLV_USE_RESULT;

/* Whether numbers of one type are read as another's; n of them, f16 or bf16, to f32. */
bool clv_weights_can_convert(clv_dtype from, clv_dtype to);
void clv_weights_to_f32(clv_dtype from, const void *src, size_t n, float *dst);
/* To bf16, from f16 or f32. */
void clv_weights_to_bf16(clv_dtype from, const void *src, size_t n, uint16_t *dst);

/* ---- checkpoint folders ---------------------------------------------------------------------- */

#define CLV_MANIFEST_NAME "MANIFEST.json"
#define CLV_STATE_NAME "trainer_state.json"
#define CLV_INDEX_NAME "model.safetensors.index.json"

/* Manifest text for m, with its own digest as the last line. */
clv_code clv_manifest_format(const clv_manifest *m, clv_bytes *ret, clv_err *err) CLV_USE_RESULT;

/* The same of a folder of weights: files alone, at step 0. */
clv_code clv_artifact_format(const clv_manifest *m, clv_bytes *ret, clv_err *err) CLV_USE_RESULT;

/* "model-00002-of-00003.safetensors" for stage 1 of 3; kind is "model" or "optimizer". */
enum { CLV_STAGE_NAME = 48 };
char *clv_stage_file_name(const char *kind, uint32_t stage, uint32_t stages,
                          char buf[CLV_STAGE_NAME]);

/* trainer_state.json. The parsed state's strings live in *ret_root and *ret_extra. */
clv_code clv_state_format(const clv_trainer_state *s, clv_bytes *ret, clv_err *err) CLV_USE_RESULT;
clv_code clv_state_parse(const void *data, size_t len, const char *label, clv_trainer_state *ret,
                         json_t **ret_root, clv_kv **ret_extra, clv_err *err) CLV_USE_RESULT;

#endif
