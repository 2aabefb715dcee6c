/* SPDX-License-Identifier: Apache-2.0
 *
 * weights_int: functions that readers and writers share: element types, rules for names, files
 * opened without following links, durable writing, JSON with strict checks. Other folders do not
 * include it.
 */
#ifndef CLEAVE_WEIGHTS_INT_H
#define CLEAVE_WEIGHTS_INT_H

#include <jansson.h>
#include <sys/stat.h>
#include <time.h>

#include "common/model/weights/weights.h"

/* ---- element types and names ----------------------------------------------------------------- */

typedef struct clv_weights_type {
  const char *name; /* name of the type in safetensors files */
  size_t bytes;     /* bytes of an element; 0: smaller than a byte, which is not supported */
  clv_dtype dtype;  /* type of the values; 0: clv_dtype does not have it */
} clv_weights_type;

/* returns NULL for an unknown type */
const clv_weights_type *clv_weights_type_find(const char *name);
/* returns NULL for an unknown type */
const clv_weights_type *clv_weights_type_of(clv_dtype dtype);

/* True for valid UTF-8 without control characters, 1..CLV_WEIGHTS_MAX_NAME bytes. */
bool clv_weights_is_name(const char *name);
/* True for valid UTF-8 of any length. */
bool clv_weights_is_utf8(const char *text);
/* True for valid UTF-8 of any length without control characters. */
bool clv_weights_is_printable(const char *text);
/* True for [A-Za-z0-9._-]{1,128}, except "." and "..". */
bool clv_weights_is_file_name(const char *name);

/* ---- files opened for reading ---------------------------------------------------------------- */

/* A file opened for reading. Release with clv_weights_fd_close. */
typedef struct clv_weights_fd {
  int fd; /* descriptor; -1: no file is open */
  size_t size;
  const char *label; /* name of the file in messages, caller-owned */
} clv_weights_fd;

/* Opens the regular file `name` in folder dir_fd (or AT_FDCWD) with O_NOFOLLOW. CLV_INVALID: it is
 * a link or no regular file. */
clv_code clv_weights_fd_open(int dir_fd, const char *name, const char *label, clv_weights_fd *ret,
                             clv_err *err) CLV_USE_RESULT;
void clv_weights_fd_close(clv_weights_fd *f);
/* Reads exactly n bytes from the file's current position on. CLV_DATA_LOSS: the file is shorter. */
clv_code clv_weights_fd_read(clv_weights_fd *f, void *dst, size_t n, clv_err *err) CLV_USE_RESULT;
/* Reads exactly n bytes from offset `at` on. CLV_DATA_LOSS: the file is shorter. */
clv_code clv_weights_fd_pread(const clv_weights_fd *f, void *dst, size_t n, uint64_t at,
                              clv_err *err) CLV_USE_RESULT;

/* Size and times of a file. Every write to the file changes at least one of them. */
typedef struct clv_weights_file_stamp {
  off_t size;
  struct timespec mtime, ctime;
} clv_weights_file_stamp;
clv_code clv_weights_read_stamp(int fd, const char *label, clv_weights_file_stamp *ret,
                                clv_err *err) CLV_USE_RESULT;
/* Checks that the file's stamp is still `expected`. CLV_DATA_LOSS: the file was written since. */
clv_code clv_weights_check_stamp(int fd, const char *label, const clv_weights_file_stamp *expected,
                                 clv_err *err) CLV_USE_RESULT;

/* Reads the complete file. CLV_EXHAUSTED: the file is larger than max_bytes. */
clv_code clv_weights_fd_read_all(clv_weights_fd *f, size_t max_bytes, clv_bytes *ret,
                                 clv_err *err) CLV_USE_RESULT;

/* As clv_weights_open, but for an open file, from which nothing has been read yet. */
clv_code clv_weights_open_fd(clv_weights_fd *fd, size_t max_bytes, clv_weights_file **ret,
                             clv_err *err) CLV_USE_RESULT;

/* As clv_weights_open_lazy, but for an open file. On success the result owns its descriptor. */
clv_code clv_weights_open_lazy_fd(clv_weights_fd *fd, clv_weights_file **ret,
                                  clv_err *err) CLV_USE_RESULT;

/* Replaces the data of each tensor of `f` by its average in the file *averages, if this file has an
 * average of the same type and shape. *averages must be lazy if `f` is, and otherwise in memory.
 * `f` takes ownership of *averages and sets it to NULL. */
void clv_weights_take_ema(clv_weights_file *f, clv_weights_file **averages);

/* As clv_weights_open_fd, but reads only the header. So `data` of the entries is NULL, and
 * clv_weights_digest is not set. */
clv_code clv_weights_open_header(clv_weights_fd *fd, clv_weights_file **ret,
                                 clv_err *err) CLV_USE_RESULT;

/* Removes the regular files of a checkpoint folder, and leaves folders inside it. Does nothing if
 * `path` is a link or no folder. */
clv_code clv_weights_clear_dir(const char *path, clv_err *err) CLV_USE_RESULT;
clv_code clv_weights_sync_dir(const char *path, clv_err *err) CLV_USE_RESULT;
void clv_weights_closefd(int *fd); /* for CLV_AUTO */

/* ---- strict parsing of JSON ------------------------------------------------------------------ */

/* Parses a JSON object. CLV_DATA_LOSS: wrong JSON, duplicate keys, or anything but spaces and line
 * ends behind the object; CLV_EXHAUSTED: more than max_tokens brackets, commas and colons. */
clv_code clv_weights_json_parse(const void *data, size_t len, size_t max_tokens, const char *label,
                                json_t **ret, clv_err *err) CLV_USE_RESULT;
/* As clv_weights_json_parse, for a file that people edit: skips a UTF-8 byte order mark at its
 * start, and refuses UTF-16 and UTF-32 by name. */
clv_code clv_weights_json_parse_edited(const void *data, size_t len, size_t max_tokens,
                                       const char *label, json_t **ret,
                                       clv_err *err) CLV_USE_RESULT;
void clv_weights_json_freep(json_t **root); /* for CLV_AUTO */
/* Reads the integer at `key` of the object. CLV_DATA_LOSS: it is missing, no integer or outside
 * 0..max. */
clv_code clv_weights_json_get_u64(const json_t *object, const char *key, uint64_t max,
                                  const char *label, uint64_t *ret, clv_err *err) CLV_USE_RESULT;
clv_code clv_weights_json_get_text(const json_t *object, const char *key, const char *label,
                                   const char **ret, clv_err *err) CLV_USE_RESULT;
/* Checks that the keys "format" and "version" of the object are `format` and `version`.
 * CLV_UNIMPLEMENTED: one of them differs; the error names the values found and expected. */
clv_code clv_weights_json_check_format(const json_t *object, const char *format, int version,
                                       const char *label, clv_err *err) CLV_USE_RESULT;
/* Checks that all keys of the object are in known[n]. CLV_DATA_LOSS: the text names the first
 * unknown key. */
clv_code clv_weights_json_check_keys(json_t *object, const char *const *known, size_t n,
                                     const char *label, clv_err *err) CLV_USE_RESULT;

/* ---- names of tensors ------------------------------------------------------------------------ */

/* List of names in a message: "'a', 'b', 'c' and 4 more". */
typedef struct clv_name_list {
  clv_bytes text;
  const char *first_name; /* first name added; NULL: none yet */
  size_t n;               /* number of names added */
  size_t max_quoted;      /* maximum number of names quoted; 0: 3 */
} clv_name_list;

void clv_name_list_clear(clv_name_list *l);
void clv_name_list_add(clv_name_list *l, const char *name);
void clv_name_list_add_rest(clv_name_list *l);

/* Finds the parameter `want` in names[n], which are sorted: under its own name, its name with or
 * without the prefix of a base model, or its old name (gamma, beta). *ret: the index;
 * CLV_WEIGHTS_NONE: not found. CLV_INVALID: two of the names could be meant. */
clv_code clv_weights_find_name(const char *const *names, size_t n, const char *want,
                               const char *label, size_t *ret, clv_err *err) CLV_USE_RESULT;

/* ---- folders of weights ---------------------------------------------------------------------- */

/* Index of a folder of weights: tells the file of each tensor. */
typedef struct clv_weights_index {
  json_t *root;              /* parsed JSON, which owns the texts */
  const char **tensor_names; /* [n] names of the tensors, sorted */
  uint32_t *file_index;      /* [n] index into file_names of the file with the tensor */
  /* [n_files] names of files without a path, which end in .safetensors, sorted */
  const char **file_names;
  size_t n, n_files;
} clv_weights_index;

void clv_weights_index_clear(clv_weights_index *x); /* frees the contents and zeroes *x */
/* compares two elements of tensor_names or file_names, for qsort and bsearch */
int clv_weights_compare_names(const void *a, const void *b);
/* Parses an index. CLV_DATA_LOSS: it is damaged, names a file by a path, or has no tensors;
 * CLV_EXHAUSTED: it is too large. */
clv_code clv_weights_index_parse(const void *data, size_t len, const char *label,
                                 clv_weights_index *ret, clv_err *err) CLV_USE_RESULT;

/* Opens all files of a folder and compares them with the index. */
clv_code clv_weights_folder_check_files(clv_weights_folder *f, clv_err *err) CLV_USE_RESULT;

/* True if the functions below can convert values of type `from` to type `to`, or both are equal. */
bool clv_weights_can_convert(clv_dtype from, clv_dtype to);
/* Converts n values from f16 or bf16 to f32. */
void clv_weights_to_f32(clv_dtype from, const void *src, size_t n, float *dst);
/* Converts n values from f16 or f32 to bf16, with rounding. */
void clv_weights_to_bf16(clv_dtype from, const void *src, size_t n, uint16_t *dst);

/* ---- files of checkpoint folders ------------------------------------------------------------- */

#define CLV_MANIFEST_NAME "MANIFEST.json"
#define CLV_STATE_NAME "trainer_state.json"
#define CLV_INDEX_NAME "model.safetensors.index.json"

/* Makes the text of MANIFEST.json. Its last line is the digest of the lines before it. */
clv_code clv_manifest_make_text(const clv_manifest *m, clv_bytes *ret, clv_err *err) CLV_USE_RESULT;

/* Makes the text of ARTIFACT.json, which has only the files and the digest line of a manifest. */
clv_code clv_artifact_make_text(const clv_manifest *m, clv_bytes *ret, clv_err *err) CLV_USE_RESULT;

enum { CLV_STAGE_NAME_BYTES = 48 };
/* Writes "model-00002-of-00003.safetensors" for stage 1 of 3; kind: "model" or "optimizer". */
char *clv_stage_file_name(const char *kind, uint32_t stage, uint32_t stages,
                          char buf[CLV_STAGE_NAME_BYTES]);

/* Make and parse the text of trainer_state.json. The strings of the parsed state belong to
 * *ret_root and *ret_extra, which the caller frees. */
clv_code clv_state_format(const clv_trainer_state *s, clv_bytes *ret, clv_err *err) CLV_USE_RESULT;
clv_code clv_state_parse(const void *data, size_t len, const char *label, clv_trainer_state *ret,
                         json_t **ret_root, clv_kv **ret_extra, clv_err *err) CLV_USE_RESULT;

#endif
