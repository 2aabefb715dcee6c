/* SPDX-License-Identifier: Apache-2.0
 *
 * Functions that readers and writers share: names, files, JSON (see weights_int.h).
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/model/weights/weights_int.h"

/* ---- names of files -------------------------------------------------------------------------- */

char *clv_stage_file_name(const char *kind, uint32_t stage, uint32_t stages,
                          char buf[CLV_STAGE_NAME_BYTES]) {
  snprintf(buf, CLV_STAGE_NAME_BYTES, "%.9s-%05u-of-%05u.safetensors", kind, stage + 1, stages);
  return buf;
}

/* ---- element types and names ----------------------------------------------------------------- */

static const clv_weights_type types[] = {
    {.name = "F32", .bytes = 4, .dtype = CLV_F32},
    {.name = "F64", .bytes = 8, .dtype = CLV_F64},
    {.name = "F16", .bytes = 2, .dtype = CLV_F16},
    {.name = "BF16", .bytes = 2, .dtype = CLV_BF16},
    {.name = "I64", .bytes = 8, .dtype = CLV_I64},
    {.name = "I32", .bytes = 4, .dtype = CLV_I32},
    {.name = "U8", .bytes = 1, .dtype = CLV_U8},
    {.name = "BOOL", .bytes = 1},
    {.name = "I8", .bytes = 1},
    {.name = "I16", .bytes = 2},
    {.name = "U16", .bytes = 2},
    {.name = "U32", .bytes = 4},
    {.name = "U64", .bytes = 8},
    {.name = "C64", .bytes = 8},
    {.name = "F8_E4M3", .bytes = 1},
    {.name = "F8_E5M2", .bytes = 1},
    {.name = "F8_E8M0", .bytes = 1},
    {.name = "F8_E4M3FNUZ", .bytes = 1},
    {.name = "F8_E5M2FNUZ", .bytes = 1},
    {.name = "F4"},
    {.name = "F6_E2M3"},
    {.name = "F6_E3M2"},
};

const clv_weights_type *clv_weights_type_find(const char *name) {
  for (size_t i = 0; i < CLV_COUNT(types); i++)
    if (strcmp(types[i].name, name) == 0) return &types[i];
  return NULL;
}

const clv_weights_type *clv_weights_type_of(clv_dtype dtype) {
  for (size_t i = 0; i < CLV_COUNT(types); i++)
    if (dtype && types[i].dtype == dtype) return &types[i];
  return NULL;
}

static bool is_valid_text(const char *text, bool allow_control) {
  uint32_t code_point;
  for (size_t n; *text; text += n) {
    n = clv_utf8_decode(text, SIZE_MAX, &code_point);
    if (n == 0 || (!allow_control && clv_is_control(code_point))) return false;
  }
  return true;
}

bool clv_weights_is_utf8(const char *text) { return is_valid_text(text, true); }
bool clv_weights_is_printable(const char *text) { return is_valid_text(text, false); }

bool clv_weights_is_name(const char *name) {
  size_t n = strnlen(name, CLV_WEIGHTS_MAX_NAME + 1);
  return n >= 1 && n <= CLV_WEIGHTS_MAX_NAME && is_valid_text(name, false);
}

bool clv_weights_is_file_name(const char *name) {
  static const char allowed[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-";
  size_t n = strnlen(name, CLV_CHECKPOINT_MAX_NAME + 1);
  return n >= 1 && n <= CLV_CHECKPOINT_MAX_NAME && strspn(name, allowed) == n &&
         strcmp(name, ".") != 0 && strcmp(name, "..") != 0;
}

/* ---- opening and deleting files -------------------------------------------------------------- */

void clv_weights_closefd(int *fd) {
  if (*fd >= 0) close(*fd);
  *fd = -1;
}

void clv_weights_fd_close(clv_weights_fd *f) {
  if (f) clv_weights_closefd(&f->fd);
}

clv_code clv_weights_fd_open(int dir_fd, const char *name, const char *label, clv_weights_fd *ret,
                             clv_err *err) {
  /* O_NONBLOCK, because opening a named pipe would block without it. */
  CLV_AUTO(clv_weights_closefd)
  int fd = openat(dir_fd, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  if (fd < 0 && errno == ELOOP)
    return clv_fail(err, CLV_INVALID,
                    "%s: is a symbolic link, which is not followed: name its target", label);
  if (fd < 0)
    return clv_fail(err, errno == ENOENT ? CLV_NOT_FOUND : CLV_INVALID, "%s: %s", label,
                    strerror(errno));
  struct stat st;
  if (fstat(fd, &st) != 0) return clv_fail(err, CLV_INVALID, "%s: %s", label, strerror(errno));
  if (!S_ISREG(st.st_mode)) return clv_fail(err, CLV_INVALID, "%s: not a regular file", label);
  *ret = (clv_weights_fd){.fd = fd, .size = (size_t)st.st_size, .label = label};
  fd = -1;
  return CLV_OK;
}

clv_code clv_weights_fd_read(clv_weights_fd *f, void *dst, size_t n, clv_err *err) {
  for (size_t n_read = 0; n_read < n;) {
    ssize_t r = read(f->fd, (char *)dst + n_read, n - n_read);
    if (r < 0 && errno == EINTR) continue;
    if (r < 0) return clv_fail(err, CLV_DATA_LOSS, "%s: read: %s", f->label, strerror(errno));
    if (r == 0) return clv_fail(err, CLV_DATA_LOSS, "%s: shrank while it was read", f->label);
    n_read += (size_t)r;
  }
  return CLV_OK;
}

clv_code clv_weights_fd_pread(const clv_weights_fd *f, void *dst, size_t n, uint64_t at,
                              clv_err *err) {
  for (size_t n_read = 0; n_read < n;) {
    ssize_t r = pread(f->fd, (char *)dst + n_read, n - n_read, (off_t)(at + n_read));
    if (r < 0 && errno == EINTR) continue;
    if (r < 0) return clv_fail(err, CLV_DATA_LOSS, "%s: read: %s", f->label, strerror(errno));
    if (r == 0) return clv_fail(err, CLV_DATA_LOSS, "%s: shrank while it was read", f->label);
    n_read += (size_t)r;
  }
  return CLV_OK;
}

clv_code clv_weights_read_stamp(int fd, const char *label, clv_weights_file_stamp *ret,
                                clv_err *err) {
  struct stat st;
  if (fstat(fd, &st) != 0) return clv_fail(err, CLV_INVALID, "%s: %s", label, strerror(errno));
  *ret = (clv_weights_file_stamp){st.st_size, st.st_mtim, st.st_ctim};
  return CLV_OK;
}

static bool is_same_timespec(const struct timespec *a, const struct timespec *b) {
  return a->tv_sec == b->tv_sec && a->tv_nsec == b->tv_nsec;
}

clv_code clv_weights_check_stamp(int fd, const char *label, const clv_weights_file_stamp *expected,
                                 clv_err *err) {
  clv_weights_file_stamp now;
  CLV_TRY(clv_weights_read_stamp(fd, label, &now, err));
  if (now.size == expected->size && is_same_timespec(&now.mtime, &expected->mtime) &&
      is_same_timespec(&now.ctime, &expected->ctime))
    return CLV_OK;
  return clv_fail(err, CLV_DATA_LOSS, "%s: was changed while it was read", label);
}

clv_code clv_weights_fd_read_all(clv_weights_fd *f, size_t max_bytes, clv_bytes *ret,
                                 clv_err *err) {
  if (f->size > max_bytes)
    return clv_fail(err, CLV_EXHAUSTED, "%s: %zu bytes, the limit is %zu", f->label, f->size,
                    max_bytes);
  CLV_AUTO(clv_bytes_done) clv_bytes out = {0};
  CLV_TRY(clv_alloc(f->size + 1, 1, &out.data, err));
  out.len = f->size;
  out.cap = f->size + 1;
  CLV_TRY(clv_weights_fd_read(f, out.data, out.len, err));
  clv_bytes_done(ret);
  *ret = out;
  out = (clv_bytes){0};
  return CLV_OK;
}

/* Deletes the files of a checkpoint folder, the manifest first, so that a crash leaves an
 * unfinished checkpoint, not a damaged one. Returns an errno, or 0. */
static int clear_entries(DIR *dir) {
  int error_number = unlinkat(dirfd(dir), CLV_MANIFEST_NAME, 0) != 0 && errno != ENOENT ? errno : 0;
  for (struct dirent *e; !error_number && (e = readdir(dir));)
    if (clv_weights_is_file_name(e->d_name) && unlinkat(dirfd(dir), e->d_name, 0) != 0 &&
        errno != ENOENT && errno != EISDIR)
      error_number = errno;
  return error_number;
}

clv_code clv_weights_clear_dir(const char *path, clv_err *err) {
  int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
  if (fd < 0 && errno == ENOTDIR) return CLV_OK;
  DIR *dir = fd < 0 ? NULL : fdopendir(fd);
  int error_number = dir ? clear_entries(dir) : errno;
  if (dir)
    closedir(dir);
  else
    clv_weights_closefd(&fd);
  if (error_number)
    return clv_fail(err, CLV_PRECONDITION, "%s: removing an old checkpoint's files: %s", path,
                    strerror(error_number));
  return CLV_OK;
}

clv_code clv_weights_sync_dir(const char *path, clv_err *err) {
  CLV_AUTO(clv_weights_closefd) int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0 || fsync(fd) != 0)
    return clv_fail(err, CLV_PRECONDITION, "%s: fsync: %s", path, strerror(errno));
  return CLV_OK;
}

/* ---- parsing JSON ---------------------------------------------------------------------------- */

void clv_weights_json_freep(json_t **root) {
  json_decref(*root);
  *root = NULL;
}

/* Counts opening brackets, commas and colons outside strings. Every JSON value follows one of
 * these, so the count bounds the memory that the parser allocates. */
static size_t count_tokens(const char *p, size_t len) {
  size_t n = 0;
  bool is_in_string = false;
  for (size_t i = 0; i < len; i++) {
    if (is_in_string && p[i] == '\\') {
      i++;
    } else if (p[i] == '"') {
      is_in_string = !is_in_string;
    } else if (!is_in_string) {
      n += p[i] == '{' || p[i] == '[' || p[i] == ',' || p[i] == ':';
    }
  }
  return n;
}

clv_code clv_weights_json_parse(const void *data, size_t len, size_t max_tokens, const char *label,
                                json_t **ret, clv_err *err) {
  const char *text = data;
  json_error_t at;
  if (len == 0 || text[0] != '{')
    return clv_fail(err, CLV_DATA_LOSS, "%s: expected JSON that starts with '{'", label);
  size_t tokens = count_tokens(text, len);
  if (tokens > max_tokens)
    return clv_fail(err, CLV_EXHAUSTED, "%s: JSON of %zu tokens, the limit is %zu", label, tokens,
                    max_tokens);
  CLV_AUTO(clv_weights_json_freep)
  json_t *root = json_loadb(text, len, JSON_REJECT_DUPLICATES | JSON_DISABLE_EOF_CHECK, &at);
  if (!root)
    return clv_fail(err, CLV_DATA_LOSS, "%s: bad JSON at byte %d: %.200s", label, at.position,
                    at.text);
  for (size_t i = (size_t)at.position; i < len; i++)
    if (text[i] != ' ' && text[i] != '\n')
      return clv_fail(err, CLV_DATA_LOSS, "%s: byte 0x%02x after the end of the JSON", label,
                      (unsigned char)text[i]);
  *ret = clv_steal(&root);
  return CLV_OK;
}

clv_code clv_weights_json_parse_edited(const void *data, size_t len, size_t max_tokens,
                                       const char *label, json_t **ret, clv_err *err) {
  const char *text = data, *encoding = clv_text_utf16_or_32(data, len);
  if (encoding)
    return clv_fail(
        err, CLV_DATA_LOSS,
        "%s: its text is %s, and UTF-8 is expected: convert it with iconv -f %s -t UTF-8", label,
        encoding, encoding);
  size_t byte_order_mark_len = len >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0 ? 3 : 0;
  return clv_weights_json_parse(text + byte_order_mark_len, len - byte_order_mark_len, max_tokens,
                                label, ret, err);
}

clv_code clv_weights_json_get_u64(const json_t *object, const char *key, uint64_t max,
                                  const char *label, uint64_t *ret, clv_err *err) {
  const json_t *v = json_object_get(object, key);
  if (!json_is_integer(v))
    return clv_fail(err, CLV_DATA_LOSS, "%s: '%s' is %s, expected an integer", label, key,
                    v ? "not one" : "missing");
  json_int_t n = json_integer_value(v);
  if (n < 0 || (uint64_t)n > max)
    return clv_fail(err, CLV_DATA_LOSS, "%s: '%s' is %lld, expected 0..%llu", label, key,
                    (long long)n, (unsigned long long)max);
  *ret = (uint64_t)n;
  return CLV_OK;
}

clv_code clv_weights_json_get_text(const json_t *object, const char *key, const char *label,
                                   const char **ret, clv_err *err) {
  const json_t *v = json_object_get(object, key);
  if (!json_is_string(v))
    return clv_fail(err, CLV_DATA_LOSS, "%s: '%s' is %s, expected a string", label, key,
                    v ? "not one" : "missing");
  *ret = json_string_value(v);
  return CLV_OK;
}

clv_code clv_weights_json_check_keys(json_t *object, const char *const *known, size_t n,
                                     const char *label, clv_err *err) {
  const char *key;
  json_t *value;
  json_object_foreach(object, key, value) {
    size_t i = 0;
    while (i < n && strcmp(key, known[i]) != 0) i++;
    if (i == n) return clv_fail(err, CLV_DATA_LOSS, "%s: unknown key '%.80s'", label, key);
  }
  return CLV_OK;
}

clv_code clv_weights_json_check_format(const json_t *object, const char *format, int version,
                                       const char *label, clv_err *err) {
  const char *found = NULL;
  uint64_t number = 0;
  CLV_TRY(clv_weights_json_get_text(object, "format", label, &found, err));
  CLV_TRY(clv_weights_json_get_u64(object, "version", INT64_MAX, label, &number, err));
  if (strcmp(found, format) == 0 && number == (uint64_t)version) return CLV_OK;
  return clv_fail(err, CLV_UNIMPLEMENTED, "%s: format '%.40s' version %llu, expected %s %d", label,
                  found, (unsigned long long)number, format, version);
}
