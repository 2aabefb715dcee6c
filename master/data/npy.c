/* SPDX-License-Identifier: Apache-2.0
 *
 * NumPy's .npy: \x93NUMPY, version, header length, a Python dict literal with exactly the keys
 * descr, fortran_order and shape, then the elements. Source: numpy.lib.format. The header is read
 * by a cursor over a bounded copy of it; nothing in it is ever evaluated.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "master/data/reader_int.h"

enum { MAX_HEADER_BYTES = 65536 };

static const char magic_text[] = "\x93NUMPY";

/* Element types, without the byte order: '<', '>', '=' (native) or '|' (single bytes). */
static const clv_element_type element_types[] = {
    {.name = "u1", .bytes = 1, .dtype = CLV_U8, .convert = clv_convert_copy_1_byte},
    {.name = "b1", .bytes = 1, .dtype = CLV_U8, .convert = clv_convert_from_bool},
    {.name = "i1", .bytes = 1, .dtype = CLV_I32, .convert = clv_convert_from_i8},
    {.name = "i2", .bytes = 2, .dtype = CLV_I32, .convert = clv_convert_from_i16},
    {.name = "u2", .bytes = 2, .dtype = CLV_I32, .convert = clv_convert_from_u16},
    {.name = "i4", .bytes = 4, .dtype = CLV_I32, .convert = clv_convert_copy_4_bytes},
    {.name = "u4", .bytes = 4, .dtype = CLV_I64, .convert = clv_convert_from_u32},
    {.name = "i8", .bytes = 8, .dtype = CLV_I64, .convert = clv_convert_copy_8_bytes},
    {.name = "u8",
     .bytes = 8,
     .dtype = CLV_I64,
     .convert = clv_convert_copy_8_bytes,
     .is_u64 = true},
    {.name = "f2", .bytes = 2, .dtype = CLV_F32, .convert = clv_convert_from_f16},
    {.name = "f4", .bytes = 4, .dtype = CLV_F32, .convert = clv_convert_copy_4_bytes},
    {.name = "f8", .bytes = 8, .dtype = CLV_F64, .convert = clv_convert_copy_8_bytes},
};

/* Types that are not read, because the user must choose how to convert them, with the advice for
 * each. */
static const struct {
  char kind;
  const char *type_name, *advice;
} refused_types[] = {
    {'U', "texts", "number them: names, a = numpy.unique(a, return_inverse=True), then save a"},
    {'S', "texts", "number them: names, a = numpy.unique(a, return_inverse=True), then save a"},
    {'O', "Python objects",
     "they are pickled, and reading them would run code: load a file of your own with "
     "numpy.load(path, allow_pickle=True) and save a.astype('f4'), classes as a.astype('i8'); of "
     "texts names, a = numpy.unique(a.astype(str), return_inverse=True), then save a"},
    {'c', "complex numbers", "save both parts: a = numpy.stack([a.real, a.imag], -1).astype('f4')"},
    {'M', "dates", "make numbers of them: save (a - a.min()).astype('i8')"},
    {'m', "spans of time", "make numbers of them: a.astype('i8')"},
    {'V', "bytes without a type",
     "give them the type that they had, such as a.view(ml_dtypes.bfloat16).astype('f4'), then save "
     "a"},
    {'f', "floats of another size", "save a.astype('f8')"},
};

/* A header while it is parsed, with the values that were read so far. */
typedef struct header_parser {
  const char *label;
  const char *p, *end;
  clv_array_header array_header;
  bool has_order, has_shape;
} header_parser;

static void skip_space(header_parser *h) {
  while (h->p < h->end && (*h->p == ' ' || *h->p == '\n')) h->p++;
}

static bool take_char(header_parser *h, char c) {
  skip_space(h);
  if (h->p >= h->end || *h->p != c) return false;
  h->p++;
  return true;
}

static bool take_word(header_parser *h, const char *word) {
  size_t n = strlen(word);
  skip_space(h);
  if ((size_t)(h->end - h->p) < n || memcmp(h->p, word, n) != 0) return false;
  h->p += n;
  return true;
}

static clv_code fail_header(const header_parser *h, const char *expected, clv_err *err) {
  char found[24];
  size_t n = CLV_MIN((size_t)(h->end - h->p), sizeof found - 1);
  for (size_t i = 0; i < n; i++) found[i] = h->p[i] >= ' ' && h->p[i] <= '~' ? h->p[i] : '?';
  found[n] = '\0';
  return clv_fail(err, CLV_INVALID, "%s: bad .npy header: expected %s, found \"%s\"", h->label,
                  expected, found);
}

/* Reads a quoted string without escapes into buf. */
static bool take_string(header_parser *h, char *buf, size_t len) {
  skip_space(h);
  if (h->p >= h->end || (*h->p != '\'' && *h->p != '"')) return false;
  const char *start = h->p + 1;
  const char *closing_quote = memchr(start, *h->p, (size_t)(h->end - start));
  if (!closing_quote || (size_t)(closing_quote - start) >= len) return false;
  for (const char *c = start; c < closing_quote; c++)
    if (*c < ' ' || *c > '~' || *c == '\\') return false;
  memcpy(buf, start, (size_t)(closing_quote - start));
  buf[closing_quote - start] = '\0';
  h->p = closing_quote + 1;
  return true;
}

static clv_code refuse_type(const header_parser *h, const char *descr, clv_err *err) {
  char kind = descr[0] && strchr("<>=|", descr[0]) ? descr[1] : descr[0];
  for (size_t i = 0; kind && i < CLV_COUNT(refused_types); i++)
    if (refused_types[i].kind == kind)
      return clv_fail(err, CLV_INVALID, "%s: its elements are %s ('%s'), which are not read: %s",
                      h->label, refused_types[i].type_name, descr, refused_types[i].advice);
  return clv_fail(err, CLV_INVALID,
                  "%s: element type '%s' is not known; bool, integers and floats of up to 8 bytes "
                  "are read: save it with numpy.save(path, a.astype('f4'))",
                  h->label, descr);
}

/* Refuses a descr that is a list of fields: [('name', '<f4'), ...]. */
static clv_code refuse_structured_type(header_parser *h, clv_err *err) {
  char name[32];
  if (!take_char(h, '[') || !take_char(h, '(') || !take_string(h, name, sizeof name))
    snprintf(name, sizeof name, "NAME");
  return clv_fail(err, CLV_INVALID,
                  "%s: its elements are structured records of several fields, which are not read: "
                  "save each field as an array of its own, such as numpy.save(path, a['%s'])",
                  h->label, name);
}

static clv_code parse_descr(header_parser *h, clv_err *err) {
  char descr[32];
  if (h->array_header.element) return fail_header(h, "'descr' only once", err);
  skip_space(h);
  if (h->p < h->end && *h->p == '[') return refuse_structured_type(h, err);
  if (!take_string(h, descr, sizeof descr))
    return fail_header(h, "an element type such as '<f4'", err);
  h->array_header.is_big_endian = descr[0] == '>';
  for (size_t i = 0; descr[0] && strchr("<>=|", descr[0]) && i < CLV_COUNT(element_types); i++)
    if (strcmp(descr + 1, element_types[i].name) == 0) h->array_header.element = &element_types[i];
  return h->array_header.element ? CLV_OK : refuse_type(h, descr, err);
}

static clv_code parse_order(header_parser *h, clv_err *err) {
  if (h->has_order) return fail_header(h, "'fortran_order' only once", err);
  h->has_order = true;
  h->array_header.is_fortran = take_word(h, "True");
  if (h->array_header.is_fortran || take_word(h, "False")) return CLV_OK;
  return fail_header(h, "True or False", err);
}

static bool take_extent(header_parser *h, int64_t *ret) {
  int64_t v = 0;
  skip_space(h);
  const char *start = h->p;
  for (; h->p < h->end && *h->p >= '0' && *h->p <= '9'; h->p++)
    if (__builtin_mul_overflow(v, 10, &v) || __builtin_add_overflow(v, *h->p - '0', &v))
      return false;
  *ret = v;
  return h->p > start;
}

static clv_code parse_shape(header_parser *h, clv_err *err) {
  clv_shape *shape = &h->array_header.shape;
  if (h->has_shape) return fail_header(h, "'shape' only once", err);
  h->has_shape = true;
  if (!take_char(h, '(')) return fail_header(h, "a tuple of extents", err);
  while (!take_char(h, ')')) {
    if (shape->rank == CLV_MAX_RANK)
      return clv_fail(err, CLV_INVALID, "%s: rank is over the limit of %d", h->label, CLV_MAX_RANK);
    if (!take_extent(h, &shape->dim[shape->rank]))
      return fail_header(h, "an extent from 0 to 2^63 - 1", err);
    shape->rank++;
    if (take_char(h, ',')) continue;
    if (!take_char(h, ')')) return fail_header(h, "',' or ')'", err);
    break;
  }
  return CLV_OK;
}

static const struct {
  const char *key;
  clv_code (*parse)(header_parser *h, clv_err *err);
} keys[] = {{"descr", parse_descr}, {"fortran_order", parse_order}, {"shape", parse_shape}};

static clv_code parse_entry(header_parser *h, clv_err *err) {
  char key[32];
  if (!take_string(h, key, sizeof key)) return fail_header(h, "a quoted key", err);
  if (!take_char(h, ':')) return fail_header(h, "':'", err);
  for (size_t i = 0; i < CLV_COUNT(keys); i++)
    if (strcmp(key, keys[i].key) == 0) return keys[i].parse(h, err);
  return clv_fail(err, CLV_INVALID,
                  "%s: unknown key '%s' in the .npy header; known: descr, fortran_order, shape",
                  h->label, key);
}

static clv_code parse_dict(header_parser *h, clv_err *err) {
  if (!take_char(h, '{')) return fail_header(h, "'{'", err);
  while (!take_char(h, '}')) {
    CLV_TRY(parse_entry(h, err));
    if (take_char(h, ',')) continue;
    if (!take_char(h, '}')) return fail_header(h, "',' or '}'", err);
    break;
  }
  skip_space(h);
  if (h->p != h->end) return fail_header(h, "the end of the header", err);
  if (!h->array_header.element || !h->has_order || !h->has_shape)
    return clv_fail(err, CLV_INVALID, "%s: the .npy header lacks '%s'", h->label,
                    !h->array_header.element ? "descr"
                    : !h->has_order          ? "fortran_order"
                                             : "shape");
  return CLV_OK;
}

/* Reads magic, version and length of the header. *ret_n_preamble_bytes: bytes before the text of
 * the header. */
static clv_code read_preamble(clv_byte_source *s, size_t *ret_len, size_t *ret_n_preamble_bytes,
                              clv_err *err) {
  uint8_t head[8], length_bytes[4] = {0};
  CLV_TRY(clv_byte_source_read_header(s, ".npy magic", head, sizeof head, err));
  if (memcmp(head, magic_text, 6) != 0)
    return clv_fail(err, CLV_INVALID,
                    "%.200s: wrong magic: a .npy file starts with 93 4e 55 4d 50 59, found %02x "
                    "%02x %02x %02x %02x %02x%s",
                    clv_byte_source_label(s), head[0], head[1], head[2], head[3], head[4], head[5],
                    clv_wrong_format_hint(clv_byte_source_label(s), head, sizeof head));
  if (head[6] < 1 || head[6] > 3 || head[7] != 0)
    return clv_fail(err, CLV_INVALID, "%s: .npy version %d.%d; 1.0, 2.0 and 3.0 are read",
                    clv_byte_source_label(s), head[6], head[7]);
  size_t width = head[6] == 1 ? 2 : 4;
  CLV_TRY(clv_byte_source_read_header(s, ".npy header length", length_bytes, width, err));
  size_t len = length_bytes[0] | (size_t)length_bytes[1] << 8 | (size_t)length_bytes[2] << 16 |
               (size_t)length_bytes[3] << 24;
  if (len > MAX_HEADER_BYTES)
    return clv_fail(err, CLV_INVALID, "%s: .npy header of %zu bytes, the limit is %d",
                    clv_byte_source_label(s), len, MAX_HEADER_BYTES);
  *ret_len = len;
  *ret_n_preamble_bytes = sizeof head + width;
  return CLV_OK;
}

static clv_code read_npy(clv_byte_source *s, size_t max_bytes, clv_tensor **ret, bool *ret_is_bool,
                         clv_err *err) {
  size_t len = 0, n_preamble_bytes = 0;
  CLV_TRY(read_preamble(s, &len, &n_preamble_bytes, err));
  CLV_AUTO(clv_freep) char *text = NULL;
  CLV_TRY(clv_alloc(len, 1, &text, err));
  CLV_TRY(clv_byte_source_read_header(s, ".npy header", text, len, err));
  header_parser h = {.label = clv_byte_source_label(s), .p = text, .end = text + len};
  CLV_TRY(parse_dict(&h, err));
  h.array_header.bytes = n_preamble_bytes + len;
  if (ret_is_bool) *ret_is_bool = h.array_header.element->convert == clv_convert_from_bool;
  return clv_byte_source_read_tensor(s, &h.array_header, max_bytes, ret, err);
}

clv_code clv_npy_parse(const void *data, size_t len, const char *label, size_t max_bytes,
                       clv_tensor **ret, clv_err *err) {
  CLV_AUTO(clv_byte_source_freep) clv_byte_source *s = NULL;
  CLV_TRY(clv_byte_source_open_memory(data, len, label, &s, err));
  return read_npy(s, max_bytes, ret, NULL, err);
}

clv_code clv_npy_map(const char *path, clv_tensor **ret, clv_err *err) {
  CLV_AUTO(clv_byte_source_freep) clv_byte_source *s = NULL;
  CLV_TRY(clv_byte_source_open(path, &s, err));
  clv_byte_source_map_read_only(s);
  return read_npy(s, SIZE_MAX, ret, NULL, err);
}

static bool has_npy_magic(const uint8_t *head, size_t n) {
  return n >= sizeof magic_text - 1 && memcmp(head, magic_text, sizeof magic_text - 1) == 0;
}

const clv_array_reader clv_array_reader_npy = {
    .magic = ".npy (93 4e 55 4d 50 59)", .has_format = has_npy_magic, .read = read_npy};
