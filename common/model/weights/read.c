/* SPDX-License-Identifier: Apache-2.0
 *
 * The safetensors reader. Format: u64 little-endian header length, that many bytes of JSON, data.
 * Source: github.com/huggingface/safetensors, README "Format". For hostile files the reader checks
 * in this order: the header length against the file, the JSON, each entry, and all ranges against
 * each other and the file. Only then does it allocate memory for the data.
 */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

#include "common/model/weights/weights_int.h"

/* MAX_TOKENS: a tensor of rank 8 has 25 JSON tokens, and most tensors have fewer, which leaves room
 * for metadata. */
enum { PREFIX_BYTES = 8, MAX_TOKENS = CLV_WEIGHTS_MAX_TENSORS * 25, DATA_ALIGN = 64 };

/* An entry, and the range of its bytes, counted from the end of the header. */
typedef struct ranged_entry {
  clv_weights_entry e;
  uint64_t data_begin, data_end;
} ranged_entry;

struct clv_weights_file {
  char *label;
  json_t *header_root; /* parsed header, which owns names and metadata */
  const json_t *metadata;
  clv_weights_entry *entries; /* [n] sorted by name */
  size_t n;
  size_t file_bytes;
  /* memory with the contents of the file; NULL: a lazy file, or the caller's memory */
  void *file_memory;
  clv_sha256 digest;
  clv_weights_fd fd; /* the open file, for a lazy file; fd -1: the data are in memory */
  clv_weights_file_stamp hashed_stamp; /* stamp of a lazy file when it was hashed */
  /* file with the data of entries with is_ema; NULL: no such file */
  clv_weights_file *averages;
};

void clv_weights_close(clv_weights_file *f) {
  if (!f) return;
  json_decref(f->header_root);
  clv_weights_fd_close(&f->fd);
  clv_weights_close(f->averages);
  free(f->entries);
  free(f->file_memory);
  free(f->label);
  free(f);
}

void clv_weights_closep(clv_weights_file **f) {
  clv_weights_close(*f);
  *f = NULL;
}

size_t clv_weights_n_entries(const clv_weights_file *f) { return f->n; }
const clv_weights_entry *clv_weights_entries(const clv_weights_file *f) { return f->entries; }
const char *clv_weights_name_for_errors(const clv_weights_file *f) { return f->label; }
const clv_sha256 *clv_weights_digest(const clv_weights_file *f) { return &f->digest; }
uint64_t clv_weights_file_bytes(const clv_weights_file *f) { return f->file_bytes; }

const char *clv_weights_find_metadata(const clv_weights_file *f, const char *key) {
  return json_string_value(json_object_get(f->metadata, key));
}

static int compare_name(const void *name, const void *entry) {
  return strcmp(name, ((const clv_weights_entry *)entry)->name);
}

const clv_weights_entry *clv_weights_find_entry(const clv_weights_file *f, const char *name) {
  return f->n ? bsearch(name, f->entries, f->n, sizeof *f->entries, compare_name) : NULL;
}

/* ---- the header's entry of one tensor -------------------------------------------------------- */

static clv_code parse_type(const json_t *v, const char *tensor_label, ranged_entry *p,
                           size_t *ret_size, clv_err *err) {
  const char *name;
  CLV_TRY(clv_weights_json_get_text(v, "dtype", tensor_label, &name, err));
  const clv_weights_type *type = clv_weights_type_find(name);
  if (!type)
    return clv_fail(err, CLV_DATA_LOSS, "%s: unknown dtype '%.32s': save it as F32 or BF16",
                    tensor_label, name);
  if (!type->bytes)
    return clv_fail(err, CLV_UNIMPLEMENTED, "%s: dtype %s is smaller than a byte and is not read",
                    tensor_label, name);
  p->e.type_name = type->name;
  p->e.dtype = type->dtype;
  *ret_size = type->bytes;
  return CLV_OK;
}

static clv_code parse_shape(const json_t *v, const char *tensor_label, clv_shape *ret,
                            clv_err *err) {
  const json_t *shape = json_object_get(v, "shape");
  size_t rank = json_array_size(shape);
  if (!json_is_array(shape))
    return clv_fail(err, CLV_DATA_LOSS, "%s: 'shape' is missing or not a list", tensor_label);
  if (rank > CLV_MAX_RANK)
    return clv_fail(err, CLV_DATA_LOSS, "%s: rank %zu, the limit is %d", tensor_label, rank,
                    CLV_MAX_RANK);
  *ret = (clv_shape){.rank = (int)rank};
  for (size_t i = 0; i < rank; i++) {
    const json_t *d = json_array_get(shape, i);
    if (!json_is_integer(d) || json_integer_value(d) < 0)
      return clv_fail(err, CLV_DATA_LOSS,
                      "%s: extent %zu is not an integer >= 0; copy the file again", tensor_label,
                      i);
    ret->dim[i] = json_integer_value(d);
  }
  return CLV_OK;
}

static clv_code parse_offsets(const json_t *v, const char *tensor_label, ranged_entry *p,
                              clv_err *err) {
  const json_t *o = json_object_get(v, "data_offsets");
  const json_t *begin = json_array_get(o, 0), *end = json_array_get(o, 1);
  if (json_array_size(o) != 2 || !json_is_integer(begin) || !json_is_integer(end) ||
      json_integer_value(begin) < 0 || json_integer_value(end) < json_integer_value(begin))
    return clv_fail(err, CLV_DATA_LOSS, "%s: 'data_offsets' is not two integers 0 <= begin <= end",
                    tensor_label);
  p->data_begin = (uint64_t)json_integer_value(begin);
  p->data_end = (uint64_t)json_integer_value(end);
  return CLV_OK;
}

static clv_code parse_entry(const char *name, const json_t *v, const char *label, ranged_entry *p,
                            clv_err *err) {
  char tensor_label[256], shape[160];
  size_t size = 0, n, bytes;
  if (!clv_weights_is_name(name))
    return clv_fail(err, CLV_DATA_LOSS,
                    "%s: a tensor's name is empty, over %d bytes or holds control characters",
                    label, CLV_WEIGHTS_MAX_NAME);
  snprintf(tensor_label, sizeof tensor_label, "%.120s: tensor '%.100s'", label, name);
  if (!json_is_object(v) || json_object_size(v) != 3)
    return clv_fail(err, CLV_DATA_LOSS, "%s: expected exactly dtype, shape and data_offsets",
                    tensor_label);
  CLV_TRY(parse_type(v, tensor_label, p, &size, err));
  CLV_TRY(parse_shape(v, tensor_label, &p->e.shape, err));
  CLV_TRY(parse_offsets(v, tensor_label, p, err));
  clv_shape_format(&p->e.shape, shape, sizeof shape);
  if (clv_shape_numel(&p->e.shape, &n, NULL) != CLV_OK || !clv_mul_size(n, size, &bytes))
    return clv_fail(err, CLV_DATA_LOSS, "%s: shape %s overflows", tensor_label, shape);
  if (bytes != p->data_end - p->data_begin)
    return clv_fail(err, CLV_DATA_LOSS, "%s: %s of %s takes %zu bytes, its offsets hold %llu",
                    tensor_label, shape, p->e.type_name, bytes,
                    (unsigned long long)(p->data_end - p->data_begin));
  p->e.name = name;
  p->e.bytes = bytes;
  return CLV_OK;
}

/* ---- the complete header --------------------------------------------------------------------- */

static clv_code check_metadata(const json_t *metadata, const char *label, clv_err *err) {
  const char *key;
  json_t *v;
  if (!json_is_object(metadata))
    return clv_fail(err, CLV_DATA_LOSS, "%s: '__metadata__' is not an object", label);
  json_object_foreach((json_t *)metadata, key, v) {
    if (!json_is_string(v))
      return clv_fail(err, CLV_DATA_LOSS, "%s: metadata '%.80s' is not a string", label, key);
  }
  return CLV_OK;
}

static int compare_ranges(const void *a, const void *b) {
  const ranged_entry *x = a, *y = b;
  if (x->data_begin != y->data_begin) return x->data_begin < y->data_begin ? -1 : 1;
  if (x->data_end != y->data_end) return x->data_end < y->data_end ? -1 : 1;
  return strcmp(x->e.name, y->e.name);
}

static int compare_entries(const void *a, const void *b) {
  return strcmp(((const clv_weights_entry *)a)->name, ((const clv_weights_entry *)b)->name);
}

/* Checks that the ranges of all tensors cover the data without hole or overlap. Refuses two empty
 * tensors at one offset, because their order is undefined, so that the same tensors could make two
 * different files. */
static clv_code check_ranges(ranged_entry *p, size_t n, uint64_t data_bytes, const char *label,
                             clv_err *err) {
  uint64_t at = 0;
  qsort(p, n, sizeof *p, compare_ranges);
  for (size_t i = 0; i < n; i++) {
    if (p[i].data_begin != at)
      return clv_fail(err, CLV_DATA_LOSS,
                      "%.120s: tensor '%.100s' begins at %llu, the one before it ends at %llu: %s",
                      label, p[i].e.name, (unsigned long long)p[i].data_begin,
                      (unsigned long long)at, p[i].data_begin > at ? "a hole" : "an overlap");
    if (i && p[i].data_end == at && p[i - 1].data_begin == at)
      return clv_fail(err, CLV_DATA_LOSS,
                      "%.120s: empty tensors '%.100s' and '%.100s' share an offset", label,
                      p[i - 1].e.name, p[i].e.name);
    at = p[i].data_end;
  }
  if (at != data_bytes)
    return clv_fail(err, CLV_DATA_LOSS, "%s: %s: its tensors take %llu bytes, the file has %llu",
                    label, at > data_bytes ? "truncated" : "trailing bytes", (unsigned long long)at,
                    (unsigned long long)data_bytes);
  return CLV_OK;
}

/* Parses all entries of the header f->header_root to p[*ret_n], and checks each of them. */
static clv_code parse_entries(clv_weights_file *f, ranged_entry *p, size_t *ret_n, clv_err *err) {
  const char *key;
  json_t *v;
  size_t n = 0;
  json_object_foreach(f->header_root, key, v) {
    if (strcmp(key, "__metadata__") == 0) {
      CLV_TRY(check_metadata(v, f->label, err));
      f->metadata = v;
    } else {
      CLV_TRY(parse_entry(key, v, f->label, &p[n++], err));
    }
  }
  *ret_n = n;
  return CLV_OK;
}

static clv_code parse_header(clv_weights_file *f, const void *header, size_t len,
                             uint64_t data_bytes, ranged_entry **ret, clv_err *err) {
  CLV_TRY(clv_weights_json_parse(header, len, MAX_TOKENS, f->label, &f->header_root, err));
  size_t keys = json_object_size(f->header_root);
  if (keys > CLV_WEIGHTS_MAX_TENSORS + 1)
    return clv_fail(err, CLV_EXHAUSTED, "%s: %zu tensors, the limit is %d", f->label, keys,
                    CLV_WEIGHTS_MAX_TENSORS);
  CLV_AUTO(clv_freep) ranged_entry *p = NULL;
  CLV_TRY(clv_alloc(keys, sizeof *p, &p, err));
  CLV_TRY(parse_entries(f, p, &f->n, err));
  CLV_TRY(check_ranges(p, f->n, data_bytes, f->label, err));
  *ret = clv_steal(&p);
  return CLV_OK;
}

/* Sets f->entries from the parsed entries. data: start of the tensors' data in memory; NULL: they
 * stay in the file. */
static clv_code set_entries(clv_weights_file *f, const ranged_entry *p, size_t header_len,
                            const uint8_t *data, clv_err *err) {
  CLV_TRY(clv_alloc(f->n, sizeof *f->entries, &f->entries, err));
  for (size_t i = 0; i < f->n; i++) {
    f->entries[i] = p[i].e;
    f->entries[i].at = PREFIX_BYTES + header_len + p[i].data_begin;
    f->entries[i].data = data ? data + p[i].data_begin : NULL;
  }
  qsort(f->entries, f->n, sizeof *f->entries, compare_entries);
  return CLV_OK;
}

/* Reads the length of the header from the file's first 8 bytes, and checks it against the file's
 * size. */
static clv_code read_header_length(const uint8_t prefix[PREFIX_BYTES], size_t size,
                                   const char *label, size_t *ret, clv_err *err) {
  uint64_t n = 0;
  for (int i = PREFIX_BYTES - 1; i >= 0; i--) n = n << 8 | prefix[i];
  if (n > CLV_WEIGHTS_MAX_HEADER)
    return clv_fail(err, CLV_DATA_LOSS,
                    "%s: not safetensors, or damaged: header of %llu bytes, the limit is %d; is it "
                    "the right file?",
                    label, (unsigned long long)n, CLV_WEIGHTS_MAX_HEADER);
  if (n > size - PREFIX_BYTES)
    return clv_fail(err, CLV_DATA_LOSS,
                    "%s: truncated: header of %llu bytes declared, %zu bytes follow", label,
                    (unsigned long long)n, size - PREFIX_BYTES);
  *ret = (size_t)n;
  return CLV_OK;
}

static clv_code make_weights_file(const char *label, size_t size, clv_weights_file **ret,
                                  clv_err *err) {
  CLV_AUTO(clv_weights_closep) clv_weights_file *f = NULL;
  if (size < PREFIX_BYTES)
    return clv_fail(err, CLV_DATA_LOSS,
                    "%s: truncated: %zu bytes, a safetensors file has 10 or "
                    "more",
                    label, size);
  CLV_TRY(clv_alloc(1, sizeof *f, &f, err));
  f->fd.fd = -1;
  CLV_TRY(clv_strdup(label, &f->label, err));
  f->file_bytes = size;
  *ret = clv_steal(&f);
  return CLV_OK;
}

clv_code clv_weights_open_memory(const void *data, size_t len, const char *label,
                                 clv_weights_file **ret, clv_err *err) {
  CLV_AUTO(clv_weights_closep) clv_weights_file *f = NULL;
  CLV_AUTO(clv_freep) ranged_entry *p = NULL;
  const uint8_t *bytes = data;
  size_t header = 0;
  CLV_TRY(make_weights_file(label, len, &f, err));
  CLV_TRY(read_header_length(bytes, len, label, &header, err));
  CLV_TRY(parse_header(f, bytes + PREFIX_BYTES, header, len - PREFIX_BYTES - header, &p, err));
  CLV_TRY(set_entries(f, p, header, bytes + PREFIX_BYTES + header, err));
  CLV_TRY(clv_sha256_of(data, len, &f->digest, err));
  *ret = clv_steal(&f);
  return CLV_OK;
}

/* Reads the rest of the file behind its header into memory, so that the tensors' data are aligned,
 * sets the entries, and hashes the complete file. */
static clv_code load_tensor_data(clv_weights_file *f, clv_weights_fd *fd,
                                 const uint8_t prefix[PREFIX_BYTES], const void *header,
                                 size_t header_len, const ranged_entry *p, clv_err *err) {
  size_t before = PREFIX_BYTES + header_len, pad = (DATA_ALIGN - before % DATA_ALIGN) % DATA_ALIGN;
  CLV_TRY(clv_alloc_aligned(pad + fd->size, &f->file_memory, err));
  uint8_t *start = (uint8_t *)f->file_memory + pad;
  memcpy(start, prefix, PREFIX_BYTES);
  memcpy(start + PREFIX_BYTES, header, header_len);
  CLV_TRY(clv_weights_fd_read(fd, start + before, fd->size - before, err));
  CLV_TRY(set_entries(f, p, header_len, start + before, err));
  return clv_sha256_of(start, fd->size, &f->digest, err);
}

/* The part of a file before the tensors' data: its bytes, and the parsed entries. */
typedef struct file_header {
  uint8_t length_prefix[PREFIX_BYTES];
  char *json_text; /* [len] JSON text */
  size_t len;
  ranged_entry *p;
} file_header;

static void file_header_clear(file_header *h) {
  free(h->json_text);
  free(h->p);
}

static clv_code read_header(clv_weights_fd *fd, clv_weights_file *f, file_header *h, clv_err *err) {
  CLV_TRY(clv_weights_fd_read(fd, h->length_prefix, PREFIX_BYTES, err));
  CLV_TRY(read_header_length(h->length_prefix, fd->size, fd->label, &h->len, err));
  CLV_TRY(clv_alloc(h->len, 1, &h->json_text, err));
  CLV_TRY(clv_weights_fd_read(fd, h->json_text, h->len, err));
  return parse_header(f, h->json_text, h->len, fd->size - PREFIX_BYTES - h->len, &h->p, err);
}

clv_code clv_weights_open_fd(clv_weights_fd *fd, size_t max_bytes, clv_weights_file **ret,
                             clv_err *err) {
  CLV_AUTO(clv_weights_closep) clv_weights_file *f = NULL;
  CLV_AUTO(file_header_clear) file_header h = {0};
  if (max_bytes && fd->size > max_bytes)
    return clv_fail(err, CLV_EXHAUSTED, "%s: %zu bytes, the limit is %zu", fd->label, fd->size,
                    max_bytes);
  CLV_TRY(make_weights_file(fd->label, fd->size, &f, err));
  CLV_TRY(read_header(fd, f, &h, err));
  CLV_TRY(load_tensor_data(f, fd, h.length_prefix, h.json_text, h.len, h.p, err));
  *ret = clv_steal(&f);
  return CLV_OK;
}

clv_code clv_weights_open_header(clv_weights_fd *fd, clv_weights_file **ret, clv_err *err) {
  CLV_AUTO(clv_weights_closep) clv_weights_file *f = NULL;
  CLV_AUTO(file_header_clear) file_header h = {0};
  CLV_TRY(make_weights_file(fd->label, fd->size, &f, err));
  CLV_TRY(read_header(fd, f, &h, err));
  CLV_TRY(set_entries(f, h.p, h.len, NULL, err));
  *ret = clv_steal(&f);
  return CLV_OK;
}

clv_code clv_weights_open_labelled(const char *path, const char *label, size_t max_bytes,
                                   clv_weights_file **ret, clv_err *err) {
  CLV_AUTO(clv_weights_fd_close) clv_weights_fd fd = {.fd = -1};
  CLV_TRY(clv_weights_fd_open(AT_FDCWD, path, label, &fd, err));
  return clv_weights_open_fd(&fd, max_bytes, ret, err);
}

clv_code clv_weights_open(const char *path, size_t max_bytes, clv_weights_file **ret,
                          clv_err *err) {
  return clv_weights_open_labelled(path, path, max_bytes, ret, err);
}

/* ---- reading a file in parts ----------------------------------------------------------------- */

clv_code clv_weights_open_lazy_fd(clv_weights_fd *fd, clv_weights_file **ret, clv_err *err) {
  CLV_AUTO(clv_weights_closep) clv_weights_file *f = NULL;
  clv_weights_file_stamp stamp;
  clv_sha256 digest;
  CLV_TRY(clv_weights_read_stamp(fd->fd, fd->label, &stamp, err));
  CLV_TRY(clv_sha256_fd(fd->fd, fd->size, NULL, fd->label, &digest, err));
  CLV_TRY(clv_weights_open_header(fd, &f, err));
  CLV_TRY(clv_weights_check_stamp(fd->fd, fd->label, &stamp, err));
  f->digest = digest;
  f->hashed_stamp = stamp;
  f->fd = (clv_weights_fd){fd->fd, fd->size, f->label};
  fd->fd = -1;
  *ret = clv_steal(&f);
  return CLV_OK;
}

clv_code clv_weights_open_lazy(const char *path, clv_weights_file **ret, clv_err *err) {
  CLV_AUTO(clv_weights_fd_close) clv_weights_fd fd = {.fd = -1};
  CLV_TRY(clv_weights_fd_open(AT_FDCWD, path, path, &fd, err));
  return clv_weights_open_lazy_fd(&fd, ret, err);
}

void clv_weights_take_ema(clv_weights_file *f, clv_weights_file **averages) {
  char name[CLV_WEIGHTS_MAX_NAME + 8];
  f->averages = clv_steal(averages);
  for (size_t i = 0; i < f->n; i++) {
    clv_weights_entry *e = &f->entries[i];
    snprintf(name, sizeof name, "%s" CLV_EMA_SUFFIX, e->name);
    const clv_weights_entry *average = clv_weights_find_entry(f->averages, name);
    if (!average || average->dtype != e->dtype || !clv_shape_equal(&average->shape, &e->shape))
      continue;
    e->at = average->at;
    e->data = average->data;
    e->is_ema = true;
  }
}

clv_code clv_weights_read_range(const clv_weights_file *f, const clv_weights_entry *e,
                                uint64_t offset, void *dst, size_t n, clv_err *err) {
  if (offset > e->bytes || n > e->bytes - offset)
    return clv_fail(err, CLV_INVALID,
                    "%.120s: bytes %llu to %llu of tensor '%.100s', which has %zu", f->label,
                    (unsigned long long)offset, (unsigned long long)offset + n, e->name, e->bytes);
  if (e->data) {
    if (n) memcpy(dst, (const char *)e->data + offset, n);
    return CLV_OK;
  }
  if (e->is_ema) f = f->averages;
  CLV_TRY(clv_weights_fd_pread(&f->fd, dst, n, e->at + offset, err));
  return clv_weights_check_stamp(f->fd.fd, f->label, &f->hashed_stamp, err);
}

clv_code clv_weights_read_range_as(const clv_weights_file *f, const clv_weights_entry *e,
                                   clv_dtype wanted, size_t first, void *dst, size_t n,
                                   clv_err *err) {
  float chunk[4096];
  if (wanted == e->dtype) {
    size_t size = clv_dtype_size(wanted);
    return clv_weights_read_range(f, e, (uint64_t)first * size, dst, n * size, err);
  }
  if (wanted != CLV_BF16 || e->dtype != CLV_F32)
    return clv_fail(err, CLV_INVALID, "tensor '%.100s' is %s, not %s", e->name, e->type_name,
                    clv_dtype_name(wanted));
  for (size_t at = 0; at < n; at += CLV_COUNT(chunk)) {
    size_t count = CLV_MIN(n - at, CLV_COUNT(chunk));
    CLV_TRY(clv_weights_read_range(f, e, (uint64_t)(first + at) * sizeof *chunk, chunk,
                                   count * sizeof *chunk, err));
    clv_weights_to_bf16(CLV_F32, chunk, count, (uint16_t *)dst + at);
  }
  return CLV_OK;
}
