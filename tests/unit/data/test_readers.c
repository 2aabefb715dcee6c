/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests the readers of IDX and .npy: every element type, every kind of damage, and real files.
 * Expected values are written by hand or made by Python.
 */
#include <sys/stat.h>

#include "master/data/reader_int.h"
#include "tests/unit/data/data_test.h"

#define FASHION "/usr/share/datasets/fashion-mnist/"

static void idx_reads_every_element_type(void **state) {
  (void)state;
  static const struct {
    uint8_t type, raw_bytes[16];
    size_t len;
    clv_dtype dtype;
    double wanted_values[2];
  } cases[] = {
      {0x08, {7, 255}, 2, CLV_U8, {7, 255}},
      {0x09, {0x80, 5}, 2, CLV_I32, {-128, 5}},
      {0x0b, {0xff, 0xfe, 0x01, 0x02}, 4, CLV_I32, {-2, 258}},
      {0x0c, {0x80, 0, 0, 1, 0, 1, 0, 0}, 8, CLV_I32, {-2147483647.0, 65536}},
      {0x0d, {0x3f, 0xc0, 0, 0, 0xc0, 0x20, 0, 0}, 8, CLV_F32, {1.5, -2.5}},
      {0x0e,
       {0x3f, 0xf8, 0, 0, 0, 0, 0, 0, 0xc0, 0x04, 0, 0, 0, 0, 0, 0},
       16,
       CLV_F64,
       {1.5, -2.5}},
  };
  for (size_t i = 0; i < CLV_COUNT(cases); i++) {
    CLV_AUTO(clv_bytes_done)
    clv_bytes b =
        make_idx_bytes(cases[i].type, 1, (uint32_t[]){2}, cases[i].raw_bytes, cases[i].len);
    CLV_AUTO(clv_tensor_unrefp) clv_tensor *t = NULL;
    clv_err err;
    assert_ok(clv_idx_parse(b.data, b.len, "case", 0, &t, &err), &err);
    assert_int_equal(t->dtype, cases[i].dtype);
    assert_true(clv_shape_equal(&t->shape, &CLV_SHAPE(2)));
    for (int k = 0; k < 2; k++) {
      double v = t->dtype == CLV_U8    ? ((uint8_t *)t->data)[k]
                 : t->dtype == CLV_I32 ? ((int32_t *)t->data)[k]
                 : t->dtype == CLV_F32 ? (double)((float *)t->data)[k]
                                       : ((double *)t->data)[k];
      assert_true(v == cases[i].wanted_values[k]);
    }
  }
}

static void assert_idx_result(const char *name, const void *data, size_t len, clv_code code,
                              const char *says) {
  clv_tensor *t = NULL;
  clv_err err;
  const char *path = write_scratch_file(name, data, len);
  assert_int_equal(clv_idx_read(path, 0, &t, &err), code);
  assert_null(t);
  assert_says(&err, name);
  assert_says(&err, says);
}

static void damaged_idx_is_refused(void **state) {
  (void)state;
  uint8_t pixels[24] = {1, 2, 3};
  CLV_AUTO(clv_bytes_done)
  clv_bytes good = make_idx_bytes(8, 3, (uint32_t[]){2, 3, 4}, pixels, sizeof pixels);
  clv_tensor *t = NULL;
  clv_err err;
  assert_int_equal(clv_idx_read(at("absent.idx"), 0, &t, &err), CLV_NOT_FOUND);
  assert_says(&err, "absent.idx");
  assert_int_equal(clv_idx_read(scratch, 0, &t, &err), CLV_INVALID);
  assert_says(&err, "not a regular file");

  assert_idx_result("png.idx", "\x89PNG\r\n", 6, CLV_INVALID, "found 89 50 4e 47");
  assert_idx_result("type.idx", "\0\0\7\1\0\0\0\0", 8, CLV_INVALID, "unknown IDX type 0x07");
  assert_idx_result("rank.idx", "\0\0\10\11", 4, CLV_INVALID, "rank 9 is outside 1..8");
  assert_idx_result("rank0.idx", "\0\0\10\0", 4, CLV_INVALID, "rank 0 is outside 1..8");
  for (size_t cut = 0; cut < good.len; cut++)
    assert_idx_result("cut.idx", good.data, cut, CLV_DATA_LOSS, "truncated");
  assert_idx_result("cut.idx", good.data, 39, CLV_DATA_LOSS, "[2, 3, 4] of u8, 40 bytes");
  clv_bytes_puts(&good, "xyz");
  assert_idx_result("long.idx", good.data, good.len, CLV_DATA_LOSS, "3 trailing bytes");
  assert_idx_result("huge.idx", "\0\0\16\3\377\377\377\377\377\377\377\377\377\377\377\377", 16,
                    CLV_INVALID, "overflows");
}

static void oversized_idx_is_refused_before_allocation(void **state) {
  (void)state;
  uint8_t pixels[24] = {0};
  CLV_AUTO(clv_bytes_done)
  clv_bytes good = make_idx_bytes(8, 1, (uint32_t[]){24}, pixels, sizeof pixels);
  clv_tensor *t = NULL;
  clv_err err;
  assert_int_equal(clv_idx_parse(good.data, good.len, "f", 23, &t, &err), CLV_EXHAUSTED);
  assert_says(&err, "takes 24 bytes, the limit is 23");
  /* A few bytes of gzip that claim 4 GiB are refused before memory is allocated. */
  CLV_AUTO(clv_bytes_done)
  clv_bytes claim = make_idx_bytes(8, 1, (uint32_t[]){0xffffffffu}, pixels, sizeof pixels);
  const char *path = write_gzip_file("claim.gz", claim.data, claim.len);
  uint64_t before = clv_alloc_count();
  assert_int_equal(clv_idx_read(path, 0, &t, &err), CLV_DATA_LOSS);
  assert_says(&err, "cannot unpack to more than");
  assert_true(clv_alloc_count() - before <= 2);
}

static void gzipped_idx_is_read_and_damage_refused(void **state) {
  (void)state;
  uint8_t pixels[5000];
  for (size_t i = 0; i < sizeof pixels; i++) pixels[i] = (uint8_t)(i * 2654435761u >> 13);
  CLV_AUTO(clv_bytes_done)
  clv_bytes b = make_idx_bytes(8, 2, (uint32_t[]){50, 100}, pixels, sizeof pixels);
  CLV_AUTO(clv_tensor_unrefp) clv_tensor *t = NULL;
  clv_err err;
  const char *path = write_gzip_file("good.gz", b.data, b.len);
  assert_ok(clv_idx_read(path, 0, &t, &err), &err);
  assert_memory_equal(t->data, pixels, sizeof pixels);

  CLV_AUTO(clv_bytes_done) clv_bytes stored = {0};
  assert_ok(clv_file_read(path, 1 << 20, &stored, &err), &err);
  clv_tensor *none = NULL;
  for (size_t cut = 2; cut < stored.len; cut += 97) {
    assert_int_equal(clv_idx_parse(stored.data, cut, "cut", 0, &none, &err), CLV_DATA_LOSS);
    assert_says(&err, "truncated");
  }
  stored.data[stored.len / 2] ^= 0x40;
  assert_int_equal(clv_idx_parse(stored.data, stored.len, "bit", 0, &none, &err), CLV_DATA_LOSS);
  stored.data[stored.len / 2] ^= 0x40;
  stored.data[stored.len - 6] ^= 1; /* damages the CRC at the end */
  assert_int_equal(clv_idx_parse(stored.data, stored.len, "crc", 0, &none, &err), CLV_DATA_LOSS);
  assert_says(&err, "damaged gzip data");

  path = write_gzip_file("short.gz", b.data, b.len - 1);
  assert_int_equal(clv_idx_read(path, 0, &none, &err), CLV_DATA_LOSS);
  assert_says(&err, "5000 bytes of data declared, 4999 found");
  clv_bytes_puts(&b, "x");
  path = write_gzip_file("more.gz", b.data, b.len);
  assert_int_equal(clv_idx_read(path, 0, &none, &err), CLV_DATA_LOSS);
  assert_says(&err, "trailing bytes");
  assert_null(none);
}

/* A file may consist of several gzip members, as `cat` joins them. Bytes after the last member that
 * are no gzip are an error. */
static void concatenated_gzip_members_are_read(void **state) {
  (void)state;
  CLV_AUTO(clv_bytes_done) clv_bytes b = make_idx_bytes(8, 1, (uint32_t[]){4}, "abcd", 4);
  CLV_AUTO(clv_bytes_done) clv_bytes one = {0}, two = {0};
  CLV_AUTO(clv_tensor_unrefp) clv_tensor *t = NULL;
  clv_err err;
  assert_ok(clv_file_read(write_gzip_file("1.gz", b.data, 6), 4096, &one, &err), &err);
  assert_ok(clv_file_read(write_gzip_file("2.gz", b.data + 6, b.len - 6), 4096, &two, &err), &err);
  clv_bytes_add(&one, two.data, two.len);
  assert_ok(clv_idx_parse(one.data, one.len, "joined", 0, &t, &err), &err);
  assert_memory_equal(t->data, "abcd", 4);
  clv_tensor *none = NULL;
  clv_bytes_puts(&one, "garbage");
  assert_int_equal(clv_idx_parse(one.data, one.len, "tail", 0, &none, &err), CLV_DATA_LOSS);
}

static const struct {
  const char *type_descr;
  clv_dtype dtype;
  size_t len;
  uint8_t raw_bytes[16];
  double wanted_values[2];
} types_of_npy[] = {
    {"|u1", CLV_U8, 2, {9, 200}, {9, 200}},
    {"|b1", CLV_U8, 2, {0, 1}, {0, 1}},
    {"|i1", CLV_I32, 2, {0xff, 3}, {-1, 3}},
    {"<i4", CLV_I32, 8, {0xfe, 0xff, 0xff, 0xff, 0, 1, 0, 0}, {-2, 256}},
    {"<i8", CLV_I64, 16, {1, 0, 0, 0, 1, 0, 0, 0, 5}, {4294967297.0, 5}},
    {"<f4", CLV_F32, 8, {0, 0, 0xc0, 0x3f, 0, 0, 0x20, 0xc0}, {1.5, -2.5}},
    {"<f8", CLV_F64, 16, {0, 0, 0, 0, 0, 0, 0xf8, 0x3f, 0, 0, 0, 0, 0, 0, 4, 0xc0}, {1.5, -2.5}},
    {"<i2", CLV_I32, 4, {0xfe, 0xff, 0, 1}, {-2, 256}},
    {"<u2", CLV_I32, 4, {0xfe, 0xff, 0, 1}, {65534, 256}},
    {"<u4", CLV_I64, 8, {0xfe, 0xff, 0xff, 0xff, 0, 1, 0, 0}, {4294967294.0, 256}},
    {"<u8", CLV_I64, 16, {1, 0, 0, 0, 1, 0, 0, 0, 5}, {4294967297.0, 5}},
    {"<f2", CLV_F32, 4, {0, 0x3e, 0, 0xc1}, {1.5, -2.5}},
    {"<f2", CLV_F32, 4, {1, 0, 0xff, 0x7b}, {0x1p-24, 65504}},
    {"=u2", CLV_I32, 4, {0xfe, 0xff, 0, 1}, {65534, 256}},
    {">u2", CLV_I32, 4, {0xff, 0xfe, 1, 0}, {65534, 256}},
    {">f2", CLV_F32, 4, {0x3e, 0, 0xc1, 0}, {1.5, -2.5}},
    {">i4", CLV_I32, 8, {0xff, 0xff, 0xff, 0xfe, 0, 0, 1, 0}, {-2, 256}},
    {">i8", CLV_I64, 16, {0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 5}, {4294967297.0, 5}},
    {">f4", CLV_F32, 8, {0x3f, 0xc0, 0, 0, 0xc0, 0x20, 0, 0}, {1.5, -2.5}},
    {">f8", CLV_F64, 16, {0x3f, 0xf8, 0, 0, 0, 0, 0, 0, 0xc0, 4}, {1.5, -2.5}},
};

static void npy_reads_every_element_type(void **state) {
  (void)state;
  for (size_t i = 0; i < CLV_COUNT(types_of_npy); i++) {
    char dict[128];
    snprintf(dict, sizeof dict, "{'descr': '%s', 'fortran_order': False, 'shape': (2,), }",
             types_of_npy[i].type_descr);
    CLV_AUTO(clv_bytes_done)
    clv_bytes b = make_npy_bytes(dict, types_of_npy[i].raw_bytes, types_of_npy[i].len);
    CLV_AUTO(clv_tensor_unrefp) clv_tensor *t = NULL;
    clv_err err;
    assert_ok(clv_npy_parse(b.data, b.len, "case", 0, &t, &err), &err);
    assert_int_equal(t->dtype, types_of_npy[i].dtype);
    for (int k = 0; k < 2; k++) {
      double v = t->dtype == CLV_U8    ? ((uint8_t *)t->data)[k]
                 : t->dtype == CLV_I32 ? ((int32_t *)t->data)[k]
                 : t->dtype == CLV_I64 ? (double)((int64_t *)t->data)[k]
                 : t->dtype == CLV_F32 ? (double)((float *)t->data)[k]
                                       : ((double *)t->data)[k];
      assert_true(v == types_of_npy[i].wanted_values[k]);
    }
  }
}

static const struct {
  const char *header_dict, *message;
} refused_by_npy[] = {
    {"{'descr': '<U3', 'fortran_order': False, 'shape': (2,), }", "return_inverse"},
    {"{'descr': '|S3', 'fortran_order': False, 'shape': (2,), }", "return_inverse"},
    {"{'descr': '<c8', 'fortran_order': False, 'shape': (1,), }", "a.imag"},
    {"{'descr': '<M8[ns]', 'fortran_order': False, 'shape': (1,), }", "dates"},
    {"{'descr': '<m8[s]', 'fortran_order': False, 'shape': (1,), }", "spans of time"},
    {"{'descr': '|V8', 'fortran_order': False, 'shape': (1,), }", "bytes without a type"},
    {"{'descr': '<f16', 'fortran_order': False, 'shape': (1,), }", "a.astype('f8')"},
    {"{'descr': '<x4', 'fortran_order': False, 'shape': (2,), }", "'<x4' is not known"},
    {"{'descr': 'i4', 'fortran_order': False, 'shape': (2,), }", "'i4' is not known"},
    {"{'descr': '', 'fortran_order': False, 'shape': (2,), }", "'' is not known"},
    {"{'descr': '<u8', 'fortran_order': False, 'shape': (1,), }",
     "element 0 is 18376663423120507393"},
    {"{'descr': '<u8', 'fortran_order': False, 'shape': (1,), }", "return_inverse=True)"},
    {"{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (2,), }", "a['a']"},
    {"{'descr': [(('title', 'a'), '<f4')], 'shape': (2,), }", "save each field"},
    {"{'descr': '|O', 'fortran_order': False, 'shape': (2,), }", "would run code"},
    {"{'descr': '|O', 'fortran_order': False, 'shape': (2,), }", "allow_pickle=True"},
    {"{'descr': '<f4', 'shape': (2,), }", "lacks 'fortran_order'"},
    {"{'descr': '<f4', 'fortran_order': False, }", "lacks 'shape'"},
    {"{'fortran_order': False, 'shape': (2,), }", "lacks 'descr'"},
    {"{'descr': '<f4', 'fortran_order': False, 'shape': (2,), 'x': 1}", "unknown key 'x'"},
    {"{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': (2,)}", "only once"},
    {"{'descr': '<f4', 'fortran_order': False, 'shape': (2,), 'shape': (2,)}", "only once"},
    {"{'descr': '<f4', 'fortran_order': False, 'fortran_order': False}", "only once"},
    {"{'descr': '<f4', 'fortran_order': 0, 'shape': (2,)}", "True or False"},
    {"{'descr': '<f4', 'fortran_order': False, 'shape': (-2,)}", "an extent"},
    {"{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999,)}", "an extent"},
    {"{'descr': '<f4', 'fortran_order': False, 'shape': (1,1,1,1,1,1,1,1,1)}", "limit of 8"},
    {"{'descr': '<f4', 'fortran_order': False, 'shape': [2]}", "a tuple"},
    {"{'descr': '<f4', 'fortran_order': False, 'shape': (2 2)}", "',' or ')'"},
    {"{'descr': '<f4' 'fortran_order': False}", "',' or '}'"},
    {"{descr: '<f4'}", "a quoted key"},
    {"{'descr' '<f4'}", "':'"},
    {"('descr')", "'{'"},
    {"{'descr': '<f4', 'fortran_order': False, 'shape': (2,)} x", "end of the header"},
};

static void unsupported_npy_headers_are_refused(void **state) {
  (void)state;
  for (size_t i = 0; i < CLV_COUNT(refused_by_npy); i++) {
    CLV_AUTO(clv_bytes_done)
    clv_bytes b = make_npy_bytes(refused_by_npy[i].header_dict, "\1\2\3\4\5\6\7\xff", 8);
    clv_tensor *t = NULL;
    clv_err err;
    assert_int_equal(clv_npy_parse(b.data, b.len, "f.npy", 0, &t, &err), CLV_INVALID);
    assert_says(&err, "f.npy");
    assert_says(&err, refused_by_npy[i].message);
  }
}

/* A file in Fortran order stores the first index contiguously. The test's element [i, j, k] of [2,
 * 3, 4] is 100 i + 10 j + k. */
static void fortran_order_npy_is_transposed(void **state) {
  (void)state;
  int16_t file_values[24];
  for (int i = 0; i < 2; i++)
    for (int j = 0; j < 3; j++)
      for (int k = 0; k < 4; k++)
        file_values[i + 2 * (j + 3 * k)] = (int16_t)(100 * i + 10 * j + k);
  CLV_AUTO(clv_bytes_done)
  clv_bytes b = make_npy_bytes("{'descr': '<i2', 'fortran_order': True, 'shape': (2, 3, 4), }",
                               file_values, sizeof file_values);
  CLV_AUTO(clv_tensor_unrefp) clv_tensor *t = NULL;
  clv_err err;
  assert_ok(clv_npy_parse(b.data, b.len, "f.npy", 0, &t, &err), &err);
  assert_true(clv_shape_equal(&t->shape, &CLV_SHAPE(2, 3, 4)));
  for (int i = 0; i < 24; i++)
    assert_int_equal(((int32_t *)t->data)[i], 100 * (i / 12) + 10 * (i / 4 % 3) + i % 4);
}

static void damaged_npy_is_refused(void **state) {
  (void)state;
  CLV_AUTO(clv_bytes_done)
  clv_bytes b = make_npy_bytes("{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }",
                               "123456781234567812345678", 24);
  clv_tensor *t = NULL;
  clv_err err;
  for (size_t cut = 0; cut < b.len; cut++) {
    assert_int_equal(clv_npy_parse(b.data, cut, "cut", 0, &t, &err), CLV_DATA_LOSS);
    assert_says(&err, "truncated");
  }
  clv_bytes_puts(&b, "!");
  assert_int_equal(clv_npy_parse(b.data, b.len, "long", 0, &t, &err), CLV_DATA_LOSS);
  assert_says(&err, "1 trailing bytes");
  b.data[6] = 4;
  assert_int_equal(clv_npy_parse(b.data, b.len, "v4", 0, &t, &err), CLV_INVALID);
  assert_says(&err, "version 4.0");
  b.data[0] = 'x';
  assert_int_equal(clv_npy_parse(b.data, b.len, "bad", 0, &t, &err), CLV_INVALID);
  assert_says(&err, "wrong magic");
  uint8_t long_header[12] = {0x93, 'N', 'U', 'M', 'P', 'Y', 2, 0, 0, 0, 0, 1};
  assert_int_equal(clv_npy_parse(long_header, 12, "h", 0, &t, &err), CLV_INVALID);
  assert_says(&err, "the limit is 65536");
  assert_null(t);
}

/* Asserts that each of ten classes has the same number of records. */
static void assert_classes(const clv_tensor *y, size_t n) {
  size_t per_class[10] = {0};
  for (size_t i = 0; i < y->n; i++) per_class[((uint8_t *)y->data)[i]]++;
  for (int c = 0; c < 10; c++) assert_int_equal(per_class[c], n);
}

/* True if a file of the scratch folder is mapped into this process. */
static bool is_mapped(const char *path) {
  CLV_AUTO(clv_bytes_done) clv_bytes maps = {0};
  FILE *f = fopen("/proc/self/maps", "r");
  char line[1024];
  assert_non_null(f);
  while (fgets(line, sizeof line, f)) clv_bytes_puts(&maps, line);
  fclose(f);
  return strstr(maps.data, path) != NULL;
}

static void large_files_are_mapped_with_the_same_values(void **state) {
  (void)state;
  static const struct {
    const char *descr;
    bool is_fortran, is_mapped;
  } cases[] = {{"<f4", false, true},  {"<i8", false, true},  {"|u1", false, true},
               {"<u8", false, true},  {">f4", false, false}, {"<f4", true, false},
               {"<i2", false, false}, {"|b1", false, false}};
  static const uint8_t raw[48] = {1, 0, 1, 0, 1};
  for (size_t i = 0; i < CLV_COUNT(cases); i++) {
    CLV_AUTO(clv_byte_source_freep) clv_byte_source *s = NULL;
    CLV_AUTO(clv_tensor_unrefp) clv_tensor *t = NULL, *want = NULL;
    char dict[120];
    clv_err err;
    int size = cases[i].descr[2] - '0';
    snprintf(dict, sizeof dict, "{'descr': '%s', 'fortran_order': %s, 'shape': (3, 2), }",
             cases[i].descr, cases[i].is_fortran ? "True" : "False");
    CLV_AUTO(clv_bytes_done) clv_bytes b = make_npy_bytes(dict, raw, 6 * (size_t)size);
    const char *path = write_scratch_file("large.npy", b.data, b.len);
    assert_ok(clv_npy_parse(b.data, b.len, path, 0, &want, &err), &err);
    assert_ok(clv_byte_source_open(path, &s, &err), &err);
    clv_byte_source_set_min_mapped_bytes(s, 1);
    bool is_bool;
    assert_ok(clv_array_reader_npy.read(s, 1 << 20, &t, &is_bool, &err), &err);
    if (is_mapped(path) != cases[i].is_mapped) fail_msg("%s: mapped or not", dict);
    assert_int_equal(t->bytes, want->bytes);
    assert_memory_equal(t->data, want->data, t->bytes);
    ((uint8_t *)t->data)[0]++; /* changes the tensor in memory, which must not change the file */
    clv_tensor_unref(t);
    t = NULL;
    assert_false(is_mapped(path));
    assert_ok(clv_npy_read(path, 0, &t, &err), &err);
    assert_memory_equal(t->data, want->data, t->bytes);
  }
}

static void fashion_mnist_files_have_known_contents(void **state) {
  (void)state;
  if (access(FASHION "train-images-idx3-ubyte.gz", R_OK) != 0) {
    print_message("because dataset-fashion-mnist is not installed\n");
    skip();
  }
  CLV_AUTO(clv_tensor_unrefp) clv_tensor *x = NULL, *y = NULL, *tx = NULL, *ty = NULL;
  clv_err err;
  assert_ok(clv_idx_read(FASHION "train-images-idx3-ubyte.gz", 0, &x, &err), &err);
  assert_ok(clv_idx_read(FASHION "train-labels-idx1-ubyte.gz", 0, &y, &err), &err);
  assert_ok(clv_idx_read(FASHION "t10k-images-idx3-ubyte.gz", 0, &tx, &err), &err);
  assert_ok(clv_idx_read(FASHION "t10k-labels-idx1-ubyte.gz", 0, &ty, &err), &err);
  assert_true(clv_shape_equal(&x->shape, &CLV_SHAPE(60000, 28, 28)));
  assert_true(clv_shape_equal(&y->shape, &CLV_SHAPE(60000)));
  assert_true(clv_shape_equal(&tx->shape, &CLV_SHAPE(10000, 28, 28)));
  assert_true(clv_shape_equal(&ty->shape, &CLV_SHAPE(10000)));
  assert_memory_equal(y->data, "\11\0\0\3\0", 5);
  assert_classes(y, 6000);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(idx_reads_every_element_type),
      cmocka_unit_test(damaged_idx_is_refused),
      cmocka_unit_test(oversized_idx_is_refused_before_allocation),
      cmocka_unit_test(gzipped_idx_is_read_and_damage_refused),
      cmocka_unit_test(concatenated_gzip_members_are_read),
      cmocka_unit_test(npy_reads_every_element_type),
      cmocka_unit_test(unsupported_npy_headers_are_refused),
      cmocka_unit_test(damaged_npy_is_refused),
      cmocka_unit_test(fortran_order_npy_is_transposed),
      cmocka_unit_test(large_files_are_mapped_with_the_same_values),
      cmocka_unit_test(fashion_mnist_files_have_known_contents),
  };
  return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}
