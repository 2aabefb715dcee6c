/* SPDX-License-Identifier: Apache-2.0
 *
 * IDX, the format of MNIST: 00 00 type rank, then one big-endian u32 per extent, then the elements,
 * big-endian and row-major. Source: Y. LeCun, "The MNIST database", file formats.
 */
#include "master/data/reader_int.h"

static const clv_element_type element_types[] = {
    {.name = "u8",
     .idx_type = 0x08,
     .bytes = 1,
     .dtype = CLV_U8,
     .convert = clv_convert_copy_1_byte},
    {.name = "i8", .idx_type = 0x09, .bytes = 1, .dtype = CLV_I32, .convert = clv_convert_from_i8},
    {.name = "i16",
     .idx_type = 0x0b,
     .bytes = 2,
     .dtype = CLV_I32,
     .convert = clv_convert_from_i16},
    {.name = "i32",
     .idx_type = 0x0c,
     .bytes = 4,
     .dtype = CLV_I32,
     .convert = clv_convert_copy_4_bytes},
    {.name = "f32",
     .idx_type = 0x0d,
     .bytes = 4,
     .dtype = CLV_F32,
     .convert = clv_convert_copy_4_bytes},
    {.name = "f64",
     .idx_type = 0x0e,
     .bytes = 8,
     .dtype = CLV_F64,
     .convert = clv_convert_copy_8_bytes},
};

static const clv_element_type *find_element_type(uint8_t type_code) {
  for (size_t i = 0; i < CLV_COUNT(element_types); i++)
    if (element_types[i].idx_type == type_code) return &element_types[i];
  return NULL;
}

static uint32_t read_be32(const uint8_t *p) {
  return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

static clv_code check_magic(const clv_byte_source *s, const uint8_t *m, clv_err *err) {
  if (m[0] || m[1])
    return clv_fail(err, CLV_INVALID,
                    "%.200s: wrong magic: an IDX file starts with 00 00 <type> <rank> (images: 00 "
                    "00 08 03), found %02x %02x %02x %02x%s",
                    clv_byte_source_label(s), m[0], m[1], m[2], m[3],
                    clv_wrong_format_hint(clv_byte_source_label(s), m, 4));
  if (!find_element_type(m[2]))
    return clv_fail(err, CLV_INVALID,
                    "%s: unknown IDX type 0x%02x; known: 08 u8, 09 i8, 0b i16, 0c i32, 0d f32, "
                    "0e f64",
                    clv_byte_source_label(s), m[2]);
  if (m[3] < 1 || m[3] > CLV_MAX_RANK)
    return clv_fail(err, CLV_INVALID, "%s: IDX rank %d is outside 1..%d; is it an IDX file?",
                    clv_byte_source_label(s), m[3], CLV_MAX_RANK);
  return CLV_OK;
}

static clv_code read_idx(clv_byte_source *s, size_t max_bytes, clv_tensor **ret, bool *ret_is_bool,
                         clv_err *err) {
  (void)ret_is_bool;
  uint8_t magic[4], extents[4 * CLV_MAX_RANK];
  CLV_TRY(clv_byte_source_read_header(s, "IDX magic", magic, sizeof magic, err));
  CLV_TRY(check_magic(s, magic, err));
  size_t extent_bytes = 4u * magic[3];
  CLV_TRY(clv_byte_source_read_header(s, "IDX extents", extents, extent_bytes, err));
  clv_array_header h = {.element = find_element_type(magic[2]),
                        .shape.rank = magic[3],
                        .bytes = sizeof magic + extent_bytes,
                        .is_big_endian = true};
  for (int i = 0; i < h.shape.rank; i++) h.shape.dim[i] = read_be32(extents + 4 * i);
  return clv_byte_source_read_tensor(s, &h, max_bytes, ret, err);
}

clv_code clv_idx_parse(const void *data, size_t len, const char *label, size_t max_bytes,
                       clv_tensor **ret, clv_err *err) {
  CLV_AUTO(clv_byte_source_freep) clv_byte_source *s = NULL;
  CLV_TRY(clv_byte_source_open_memory(data, len, label, &s, err));
  return read_idx(s, max_bytes, ret, NULL, err);
}

static bool has_idx_magic(const uint8_t *head, size_t n) { return n >= 4 && !head[0] && !head[1]; }

const clv_array_reader clv_array_reader_idx = {
    .magic = "IDX (00 00 <type> <rank>)", .has_format = has_idx_magic, .read = read_idx};
