/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads decoded bytes in order from a source: a file or memory, plain or gzip. Gzip data are
 * inflated piece by piece into the caller's buffer, so a small file never inflates into more memory
 * than its reader asked for.
 */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include "master/data/reader_int.h"

const char *clv_wrong_format_hint(const char *label, const void *head, size_t len) {
  static const char *const suffixes[] = {".csv", ".tsv", ".txt"};
  const unsigned char *p = head;
  size_t n = strlen(label);
  bool text = len > 0;
  if (len >= 4 && memcmp(p, "\x93NUM", 4) == 0) return "; it is a .npy file: data.format: npy";
  if (len >= 4 && !p[0] && !p[1] && p[2] >= 8 && p[2] <= 0x0e)
    return "; it seems to be an IDX file: data.format: idx";
  for (size_t i = 0; i < len; i++)
    text = text && ((p[i] >= ' ' && p[i] <= '~') || (p[i] >= '\t' && p[i] <= '\r'));
  for (size_t i = 0; i < CLV_COUNT(suffixes); i++)
    text = text || (n > 4 && strcasecmp(label + n - 4, suffixes[i]) == 0);
  return text ? "; it seems to be a CSV: data.format: table reads one with a header" : "";
}

enum {
  STORED_CHUNK_BYTES = 65536,
  /* Largest ratio of decoded to compressed bytes of Deflate (zlib's technical details, "maximum
   * compression factor"). A larger declared size is refused before memory is allocated. */
  MAX_DEFLATE_RATIO = 1032,
};

struct clv_byte_source {
  char *label;
  int fd;                /* descriptor of the file; -1: the source is memory */
  const uint8_t *memory; /* [n_memory_bytes_left] bytes that were not read yet */
  size_t n_memory_bytes_left;
  uint64_t stored_bytes;  /* bytes of the file or memory; if gzip, the compressed bytes */
  uint64_t decoded_bytes; /* decoded bytes that were read so far */
  /* bytes of the smallest array that is mapped instead of read; 0: depends on memory and max_bytes
   * (find_min_mapped_bytes) */
  size_t min_mapped_bytes;
  bool maps_read_only; /* mapped arrays are read-only; false: the caller may move records in them */
  bool is_compressed, is_inflating, has_ended;
  z_stream z;
  uint8_t chunk[STORED_CHUNK_BYTES];
};

static void source_free(clv_byte_source *s) {
  if (!s) return;
  if (s->is_inflating) inflateEnd(&s->z);
  if (s->fd >= 0) close(s->fd);
  free(s->label);
  free(s);
}

void clv_byte_source_freep(clv_byte_source **s) {
  source_free(*s);
  *s = NULL;
}

const char *clv_byte_source_label(const clv_byte_source *s) { return s->label; }

static clv_code read_stored_bytes(clv_byte_source *s, void *dst, size_t n, size_t *ret_n_read,
                                  clv_err *err) {
  size_t n_read = 0;
  if (s->fd < 0) {
    n_read = CLV_MIN(n, s->n_memory_bytes_left);
    if (n_read) {
      memcpy(dst, s->memory, n_read);
      s->memory += n_read;
      s->n_memory_bytes_left -= n_read;
    }
  }
  while (s->fd >= 0 && n_read < n) {
    ssize_t r = read(s->fd, (uint8_t *)dst + n_read, n - n_read);
    if (r < 0 && errno == EINTR) continue;
    if (r < 0) return clv_fail(err, CLV_DATA_LOSS, "%s: read: %s", s->label, strerror(errno));
    if (r == 0) break;
    n_read += (size_t)r;
  }
  *ret_n_read = n_read;
  return CLV_OK;
}

static clv_code source_new(const char *label, clv_byte_source **ret, clv_err *err) {
  CLV_AUTO(clv_byte_source_freep) clv_byte_source *s = NULL;
  CLV_TRY(clv_alloc(1, sizeof *s, &s, err));
  s->fd = -1;
  CLV_TRY(clv_strdup(label, &s->label, err));
  *ret = clv_steal(&s);
  return CLV_OK;
}

static clv_code start_inflate(clv_byte_source *s, clv_err *err) {
  s->is_compressed = true;
  if (inflateInit2(&s->z, 15 + 16) != Z_OK)
    return clv_fail(err, CLV_EXHAUSTED, "%s: no memory to decompress", s->label);
  s->is_inflating = true;
  return CLV_OK;
}

static bool is_gzip(const uint8_t *head, size_t n) {
  return n >= 2 && head[0] == 0x1f && head[1] == 0x8b;
}

clv_code clv_byte_source_open_memory(const void *data, size_t len, const char *label,
                                     clv_byte_source **ret, clv_err *err) {
  CLV_AUTO(clv_byte_source_freep) clv_byte_source *s = NULL;
  CLV_TRY(source_new(label, &s, err));
  s->memory = data;
  s->n_memory_bytes_left = s->stored_bytes = len;
  if (is_gzip(data, len)) CLV_TRY(start_inflate(s, err));
  *ret = clv_steal(&s);
  return CLV_OK;
}

static clv_code open_regular_file(clv_byte_source *s, const char *path, clv_err *err) {
  /* O_NONBLOCK keeps the open of a named pipe from blocking. */
  s->fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (s->fd < 0)
    return clv_fail(err, errno == ENOENT ? CLV_NOT_FOUND : CLV_INVALID, "data file %s: %s", path,
                    strerror(errno));
  struct stat st;
  if (fstat(s->fd, &st) != 0)
    return clv_fail(err, CLV_INVALID, "data file %s: %s", path, strerror(errno));
  if (!S_ISREG(st.st_mode))
    return clv_fail(err, CLV_INVALID, "data file %s: not a regular file", path);
  s->stored_bytes = (uint64_t)st.st_size;
  return CLV_OK;
}

clv_code clv_byte_source_open(const char *path, clv_byte_source **ret, clv_err *err) {
  CLV_AUTO(clv_byte_source_freep) clv_byte_source *s = NULL;
  CLV_TRY(source_new(path, &s, err));
  CLV_TRY(open_regular_file(s, path, err));
  uint8_t head[2];
  ssize_t n = pread(s->fd, head, sizeof head, 0);
  if (n > 0 && is_gzip(head, (size_t)n)) CLV_TRY(start_inflate(s, err));
  *ret = clv_steal(&s);
  return CLV_OK;
}

/* Inflates some bytes into the caller's buffer (z.next_out). A gzip file may have several members;
 * CLV_DATA_LOSS: other data follow them. */
static clv_code inflate_chunk(clv_byte_source *s, clv_err *err) {
  if (s->z.avail_in == 0) {
    size_t n_read;
    CLV_TRY(read_stored_bytes(s, s->chunk, sizeof s->chunk, &n_read, err));
    s->z.next_in = s->chunk;
    s->z.avail_in = (uInt)n_read;
    if (n_read == 0)
      return clv_fail(
          err, CLV_DATA_LOSS,
          "%s: truncated: the gzip data end in the middle (%llu bytes stored); copy the file again",
          s->label, (unsigned long long)s->stored_bytes);
  }
  int z = inflate(&s->z, Z_NO_FLUSH);
  if (z == Z_STREAM_END) {
    if (s->z.avail_in == 0) {
      size_t n_read;
      CLV_TRY(read_stored_bytes(s, s->chunk, sizeof s->chunk, &n_read, err));
      s->z.next_in = s->chunk;
      s->z.avail_in = (uInt)n_read;
    }
    s->has_ended = s->z.avail_in == 0;
    if (!s->has_ended) inflateReset(&s->z);
    return CLV_OK;
  }
  if (z != Z_OK)
    return clv_fail(err, CLV_DATA_LOSS, "%s: damaged gzip data: %s", s->label,
                    s->z.msg ? s->z.msg : "no progress");
  return CLV_OK;
}

clv_code clv_byte_source_read(clv_byte_source *s, void *dst, size_t n, size_t *ret_n_read,
                              clv_err *err) {
  size_t n_read = 0;
  if (!s->is_compressed) {
    CLV_TRY(read_stored_bytes(s, dst, n, &n_read, err));
  } else {
    while (n_read < n && !s->has_ended) {
      uInt n_free_bytes = (uInt)CLV_MIN(n - n_read, (size_t)1 << 30);
      s->z.next_out = (uint8_t *)dst + n_read;
      s->z.avail_out = n_free_bytes;
      CLV_TRY(inflate_chunk(s, err));
      n_read += n_free_bytes - s->z.avail_out;
    }
  }
  s->decoded_bytes += n_read;
  *ret_n_read = n_read;
  return CLV_OK;
}

clv_code clv_byte_source_read_header(clv_byte_source *s, const char *what, void *dst, size_t n,
                                     clv_err *err) {
  size_t n_read;
  CLV_TRY(clv_byte_source_read(s, dst, n, &n_read, err));
  if (n_read == 0 && strstr(what, "magic"))
    return clv_fail(err, CLV_DATA_LOSS, "%s: truncated: the file is empty; copy it again",
                    s->label);
  if (n_read < n)
    return clv_fail(err, CLV_DATA_LOSS,
                    "%s: truncated %s: %zu bytes expected here, %zu found; copy the file again",
                    s->label, what, n, n_read);
  return CLV_OK;
}

/* ---- converting elements --------------------------------------------------------------------- */

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "tensors are little-endian");

void clv_convert_copy_1_byte(const uint8_t *src, void *dst, size_t n) { memcpy(dst, src, n); }
void clv_convert_copy_4_bytes(const uint8_t *src, void *dst, size_t n) { memcpy(dst, src, n * 4); }
void clv_convert_copy_8_bytes(const uint8_t *src, void *dst, size_t n) { memcpy(dst, src, n * 8); }

void clv_convert_from_bool(const uint8_t *src, void *dst, size_t n) {
  for (size_t i = 0; i < n; i++) ((uint8_t *)dst)[i] = src[i] != 0;
}

void clv_convert_from_i8(const uint8_t *src, void *dst, size_t n) {
  for (size_t i = 0; i < n; i++) ((int32_t *)dst)[i] = (int8_t)src[i];
}

#define WIDEN(from, to)                         \
  do {                                          \
    to *out = dst;                              \
    for (size_t i = 0; i < n; i++) {            \
      from v;                                   \
      memcpy(&v, src + i * sizeof v, sizeof v); \
      out[i] = v;                               \
    }                                           \
  } while (0)

void clv_convert_from_i16(const uint8_t *src, void *dst, size_t n) { WIDEN(int16_t, int32_t); }
void clv_convert_from_u16(const uint8_t *src, void *dst, size_t n) { WIDEN(uint16_t, int32_t); }
void clv_convert_from_u32(const uint8_t *src, void *dst, size_t n) { WIDEN(uint32_t, int64_t); }

/* IEEE 754 half precision: 1 bit of sign, 5 of exponent, 10 of fraction. */
static float convert_half(uint16_t h) {
  int exponent = h >> 10 & 31;
  float fraction = (float)(h & 1023), value;
  if (exponent == 31)
    value = fraction != 0 ? NAN : INFINITY;
  else
    value = exponent ? ldexpf(1024 + fraction, exponent - 25) : ldexpf(fraction, -24);
  return h >> 15 ? -value : value;
}

void clv_convert_from_f16(const uint8_t *src, void *dst, size_t n) {
  for (size_t i = 0; i < n; i++)
    ((float *)dst)[i] = convert_half((uint16_t)(src[2 * i] | src[2 * i + 1] << 8));
}

static void swap_byte_order(uint8_t *at, size_t n, size_t element_bytes) {
  for (; n--; at += element_bytes)
    for (size_t i = 0; i < element_bytes / 2; i++) {
      uint8_t saved_byte = at[i];
      at[i] = at[element_bytes - 1 - i];
      at[element_bytes - 1 - i] = saved_byte;
    }
}

/* ---- making a tensor from a header and the data after it ------------------------------------- */

/* Compares the size that the header declares with the size of the file. Of a gzip file only an
 * upper limit of its decoded size is known. */
static clv_code check_declared_size(const clv_byte_source *s, const char *shape, const char *type,
                                    size_t total_bytes, clv_err *err) {
  uint64_t max_decoded_bytes = s->stored_bytes;
  if (s->is_compressed &&
      __builtin_mul_overflow(s->stored_bytes, (uint64_t)MAX_DEFLATE_RATIO, &max_decoded_bytes))
    max_decoded_bytes = UINT64_MAX;
  if (total_bytes > max_decoded_bytes)
    return clv_fail(err, CLV_DATA_LOSS,
                    "%s: truncated: its header declares %s of %s, %zu bytes with the header; "
                    "the file %s %llu; copy it again",
                    s->label, shape, type, total_bytes,
                    s->is_compressed ? "cannot unpack to more than" : "has",
                    (unsigned long long)max_decoded_bytes);
  if (!s->is_compressed && total_bytes < s->stored_bytes)
    return clv_fail(err, CLV_DATA_LOSS,
                    "%s: %llu trailing bytes: its header declares %s of %s, %zu bytes with the "
                    "header; the file has %llu",
                    s->label, (unsigned long long)(s->stored_bytes - total_bytes), shape, type,
                    total_bytes, (unsigned long long)s->stored_bytes);
  return CLV_OK;
}

/* Index, in a tensor in C order, of the next element of a file in Fortran order. */
typedef struct file_order_position {
  int rank;
  int64_t dim[CLV_MAX_RANK], at[CLV_MAX_RANK]; /* dim: extents; at: indexes of the next element */
  /* for each index, the elements to move by when it increases by 1 */
  size_t step[CLV_MAX_RANK];
  size_t offset; /* index of the next element in the tensor */
} file_order_position;

static file_order_position get_first_position(const clv_shape *shape) {
  file_order_position p = {.rank = shape->rank};
  size_t step = 1;
  for (int i = shape->rank; i-- > 0; step *= (size_t)shape->dim[i]) {
    p.dim[i] = shape->dim[i];
    p.step[i] = step;
  }
  return p;
}

/* Moves to the next element of the file. The first index changes fastest. */
static void move_to_next_position(file_order_position *p) {
  for (int i = 0; i < p->rank; i++) {
    p->offset += p->step[i];
    if (++p->at[i] < p->dim[i]) return;
    p->offset -= (size_t)p->dim[i] * p->step[i];
    p->at[i] = 0;
  }
}

static void scatter_elements(file_order_position *p, const uint8_t *from, size_t n,
                             size_t element_bytes, uint8_t *to) {
  for (size_t i = 0; i < n; i++, from += element_bytes, move_to_next_position(p))
    memcpy(to + p->offset * element_bytes, from, element_bytes);
}

static clv_code read_elements(clv_byte_source *s, const clv_array_header *h, clv_tensor *t,
                              clv_err *err) {
  uint8_t buf[32768], converted_elements[sizeof buf];
  const clv_element_type *e = h->element;
  size_t element_bytes = clv_dtype_size(t->dtype),
         max_elements = sizeof buf / CLV_MAX(element_bytes, (size_t)e->bytes);
  file_order_position p = get_first_position(&h->shape);
  for (size_t n_done = 0; n_done < t->n;) {
    size_t n = CLV_MIN(max_elements, t->n - n_done), n_read;
    CLV_TRY(clv_byte_source_read(s, buf, n * e->bytes, &n_read, err));
    if (n_read < n * e->bytes)
      return clv_fail(err, CLV_DATA_LOSS,
                      "%s: truncated: %zu bytes of data declared, %zu found after decompression",
                      s->label, t->n * e->bytes, n_done * e->bytes + n_read);
    if (h->is_big_endian) swap_byte_order(buf, n, e->bytes);
    e->convert(buf,
               h->is_fortran ? converted_elements : (uint8_t *)t->data + n_done * element_bytes, n);
    if (h->is_fortran) scatter_elements(&p, converted_elements, n, element_bytes, t->data);
    n_done += n;
  }
  return CLV_OK;
}

static clv_code check_u64_range(const clv_byte_source *s, const clv_tensor *t, clv_err *err) {
  for (size_t i = 0; i < t->n; i++)
    if (((const int64_t *)t->data)[i] < 0)
      return clv_fail(err, CLV_INVALID,
                      "%s: element %zu is %llu, and whole numbers are read up to 2^63 - 1: save "
                      "records as a.astype('f8'); number classes and ids: names, a = "
                      "numpy.unique(a, return_inverse=True), then save a",
                      s->label, i, (unsigned long long)((const int64_t *)t->data)[i]);
  return CLV_OK;
}

static clv_code check_no_extra_bytes(clv_byte_source *s, size_t total_bytes, clv_err *err) {
  uint8_t extra_byte;
  size_t n_read;
  CLV_TRY(clv_byte_source_read(s, &extra_byte, 1, &n_read, err));
  if (n_read)
    return clv_fail(err, CLV_DATA_LOSS,
                    "%s: trailing bytes: its header declares %zu bytes, and more follow", s->label,
                    total_bytes);
  return CLV_OK;
}

/* ---- arrays that are mapped into memory ------------------------------------------------------ */

/* A file that is mapped into memory (mmap). */
typedef struct file_mapping {
  void *begin;
  size_t len;
} file_mapping;

static void unmap(void *owner) {
  file_mapping *m = owner;
  munmap(m->begin, m->len);
  free(m);
}

void clv_byte_source_set_min_mapped_bytes(clv_byte_source *s, size_t bytes) {
  s->min_mapped_bytes = bytes;
}

/* Returns the size, in bytes, from which on an array is mapped instead of read: s->min_mapped_bytes
 * if it is set, else the smaller of max_bytes and half of the host's memory. */
static size_t find_min_mapped_bytes(const clv_byte_source *s, size_t max_bytes) {
  long n_pages = sysconf(_SC_PHYS_PAGES), page_bytes = sysconf(_SC_PAGESIZE);
  if (s->min_mapped_bytes) return s->min_mapped_bytes;
  if (n_pages <= 0 || page_bytes <= 0) return max_bytes;
  return CLV_MIN(max_bytes, (size_t)n_pages / 2 * (size_t)page_bytes);
}

/* Returns true if the elements have the same bytes in the file as in a tensor. */
static bool has_same_bytes(const clv_byte_source *s, const clv_array_header *h) {
  const clv_element_type *e = h->element;
  bool copies_bytes = e->convert == clv_convert_copy_1_byte ||
                      e->convert == clv_convert_copy_4_bytes ||
                      e->convert == clv_convert_copy_8_bytes;
  bool is_in_order = (!h->is_big_endian || e->bytes == 1) && !h->is_fortran;
  return s->fd >= 0 && !s->is_compressed && copies_bytes && is_in_order && h->bytes % e->bytes == 0;
}

static clv_code map_file(int fd, const char *label, int protection, size_t offset,
                         size_t total_bytes, clv_dtype dtype, const clv_shape *shape,
                         clv_tensor **ret, clv_err *err) {
  file_mapping *m;
  CLV_TRY(clv_alloc(1, sizeof *m, &m, err));
  m->len = total_bytes;
  m->begin = mmap(NULL, total_bytes, protection, MAP_PRIVATE | MAP_NORESERVE, fd, 0);
  if (m->begin == MAP_FAILED) {
    free(m);
    return clv_fail(err, CLV_EXHAUSTED, "%s: cannot be mapped: %s", label, strerror(errno));
  }
  clv_code code = clv_tensor_wrap(dtype, shape, (char *)m->begin + offset, unmap, m, ret, err);
  if (code != CLV_OK) unmap(m);
  return code;
}

/* Makes a tensor over the file. The kernel reads pages when a batch needs them and drops them when
 * memory is short. If the process moves records in the tensor, the changed pages stay in memory,
 * and the file does not change. */
static clv_code map_tensor(const clv_byte_source *s, const clv_array_header *h, size_t total_bytes,
                           clv_tensor **ret, clv_err *err) {
  int protection = s->maps_read_only ? PROT_READ : PROT_READ | PROT_WRITE;
  return map_file(s->fd, s->label, protection, h->bytes, total_bytes, h->element->dtype, &h->shape,
                  ret, err);
}

clv_code clv_map_tensor(int fd, const char *label, size_t offset, clv_dtype dtype,
                        const clv_shape *shape, clv_tensor **ret, clv_err *err) {
  size_t n;
  CLV_TRY(clv_shape_numel(shape, &n, err));
  return map_file(fd, label, PROT_READ, offset, offset + n * clv_dtype_size(dtype), dtype, shape,
                  ret, err);
}

void clv_byte_source_map_read_only(clv_byte_source *s) {
  s->min_mapped_bytes = 1;
  s->maps_read_only = true;
}

clv_code clv_byte_source_read_tensor(clv_byte_source *s, const clv_array_header *h,
                                     size_t max_bytes, clv_tensor **ret, clv_err *err) {
  char text[160];
  const clv_element_type *e = h->element;
  size_t n, bytes, total_bytes, decoded_size;
  clv_shape_format(&h->shape, text, sizeof text);
  if (clv_shape_numel(&h->shape, &n, NULL) != CLV_OK || !clv_mul_size(n, e->bytes, &bytes) ||
      !clv_mul_size(n, clv_dtype_size(e->dtype), &decoded_size) ||
      !clv_add_size(bytes, h->bytes, &total_bytes))
    return clv_fail(err, CLV_INVALID, "%s: the declared shape %s overflows", s->label, text);
  CLV_TRY(check_declared_size(s, text, e->name, total_bytes, err));
  if (max_bytes == 0) max_bytes = CLV_DATA_MAX_BYTES;
  CLV_AUTO(clv_tensor_unrefp) clv_tensor *t = NULL;
  if (n && decoded_size >= find_min_mapped_bytes(s, max_bytes) && has_same_bytes(s, h)) {
    CLV_TRY(map_tensor(s, h, total_bytes, &t, err));
    if (e->is_u64) CLV_TRY(check_u64_range(s, t, err));
    *ret = clv_steal(&t);
    return CLV_OK;
  }
  if (decoded_size > max_bytes)
    return clv_fail(err, CLV_EXHAUSTED, "%s: %s of %s takes %zu bytes, the limit is %zu", s->label,
                    text, e->name, decoded_size, max_bytes);
  CLV_TRY(clv_tensor_new(e->dtype, &h->shape, &t, err));
  CLV_TRY(read_elements(s, h, t, err));
  if (e->is_u64) CLV_TRY(check_u64_range(s, t, err));
  CLV_TRY(check_no_extra_bytes(s, total_bytes, err));
  *ret = clv_steal(&t);
  return CLV_OK;
}
