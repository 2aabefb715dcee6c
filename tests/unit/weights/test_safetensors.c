/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests the safetensors reader and writer: exact bytes, round trips, every rule of the reader,
 * damage at every position, and files made and read by Python.
 */
#include "tests/unit/weights/weights_test.h"

static const float w_data[6] = {1, -2, 3.5f, 0, 1e-30f, 6};
static const int64_t n_data[1] = {-7};
static const uint8_t m_data[3] = {0, 1, 255};
static const uint16_t h_data[2] = {0x3c00, 0xc000};

#define SOME_TENSORS                                                                           \
  {                                                                                            \
    {"mask", CLV_U8, CLV_SHAPE(3), m_data}, {"fc.weight", CLV_F32, CLV_SHAPE(2, 3), w_data},   \
        {"bn.num_batches_tracked", CLV_I64, {.rank = 0}, n_data},                              \
        {"half", CLV_F16, CLV_SHAPE(1, 2), h_data}, {"empty", CLV_F32, CLV_SHAPE(0, 4), NULL}, \
  }

static clv_bytes encode_sample(const clv_weights_tensor *t, size_t n) {
  clv_bytes b = {0};
  clv_err err;
  clv_kv metadata[] = {{"note", "a \"quoted\" \\ \xc3\xa9"}};
  assert_ok(clv_weights_encode(t, n, metadata, 1, &b, &err), &err);
  return b;
}

/* The bytes are those that the format's own writer makes: the header is padded to 8 bytes, and
 * tensors are sorted by falling alignment, then by name. */
static void encoded_bytes_match_the_reference_layout(void **state) {
  (void)state;
  clv_weights_tensor t[] = {{"b", CLV_U8, CLV_SHAPE(3), m_data},
                            {"z", CLV_F32, CLV_SHAPE(2, 3), w_data},
                            {"a", CLV_F32, {.rank = 0}, w_data + 2}};
  static const char header[] =
      "{\"__metadata__\":{\"format\":\"pt\"},"
      "\"a\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]},"
      "\"z\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[4,28]},"
      "\"b\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[28,31]}}";
  CLV_AUTO(clv_bytes_done) clv_bytes b = {0};
  clv_err err;
  assert_ok(clv_weights_encode(t, 3, NULL, 0, &b, &err), &err);
  uint64_t n;
  memcpy(&n, b.data, 8);
  assert_int_equal(n, (sizeof header - 1 + 7) / 8 * 8);
  assert_memory_equal(b.data + 8, header, sizeof header - 1);
  for (size_t i = sizeof header - 1; i < n; i++) assert_int_equal(b.data[8 + i], ' ');
  const char *data = b.data + 8 + n;
  assert_int_equal(b.len, 8 + n + 31);
  assert_memory_equal(data, w_data + 2, 4);
  assert_memory_equal(data + 4, w_data, 24);
  assert_memory_equal(data + 28, m_data, 3);
}

static void check_sample_tensors(const clv_weights_file *f) {
  assert_int_equal(clv_weights_n_entries(f), 5);
  const clv_weights_entry *e = clv_weights_find_entry(f, "fc.weight");
  assert_non_null(e);
  assert_int_equal(e->dtype, CLV_F32);
  assert_true(clv_shape_equal(&e->shape, &CLV_SHAPE(2, 3)));
  assert_memory_equal(e->data, w_data, 24);
  e = clv_weights_find_entry(f, "bn.num_batches_tracked");
  assert_int_equal(e->shape.rank, 0);
  assert_memory_equal(e->data, n_data, 8);
  assert_memory_equal(clv_weights_find_entry(f, "mask")->data, m_data, 3);
  assert_memory_equal(clv_weights_find_entry(f, "half")->data, h_data, 4);
  assert_int_equal(clv_weights_find_entry(f, "empty")->bytes, 0);
  assert_null(clv_weights_find_entry(f, "nothing"));
  assert_string_equal(clv_weights_find_metadata(f, "format"), "pt");
  assert_string_equal(clv_weights_find_metadata(f, "note"), "a \"quoted\" \\ \xc3\xa9");
  assert_null(clv_weights_find_metadata(f, "other"));
  for (size_t i = 1; i < 5; i++)
    assert_true(strcmp(clv_weights_entries(f)[i - 1].name, clv_weights_entries(f)[i].name) < 0);
}

static void tensors_and_metadata_round_trip(void **state) {
  (void)state;
  clv_weights_tensor t[] = SOME_TENSORS;
  CLV_AUTO(clv_bytes_done) clv_bytes b = encode_sample(t, CLV_COUNT(t)), stored = {0};
  CLV_AUTO(clv_weights_closep) clv_weights_file *m = NULL, *f = NULL;
  clv_err err;
  clv_sha256 digest, digest_of_bytes;
  uint64_t bytes;
  clv_kv meta[] = {{"note", "a \"quoted\" \\ \xc3\xa9"}};
  assert_ok(clv_weights_open_memory(b.data, b.len, "memory", &m, &err), &err);
  check_sample_tensors(m);
  assert_ok(
      clv_weights_write_file(at("w.safetensors"), t, CLV_COUNT(t), meta, 1, &digest, &bytes, &err),
      &err);
  assert_int_equal(bytes, b.len);
  assert_int_equal(access(at("w.safetensors.tmp"), F_OK), -1);
  assert_ok(clv_file_read(at("w.safetensors"), 1 << 20, &stored, &err), &err);
  assert_int_equal(stored.len, b.len);
  assert_memory_equal(stored.data, b.data, b.len);
  assert_ok(clv_weights_open(at("w.safetensors"), 0, &f, &err), &err);
  check_sample_tensors(f);
  assert_ok(clv_sha256_of(b.data, b.len, &digest_of_bytes, &err), &err);
  assert_memory_equal(&digest, &digest_of_bytes, sizeof digest);
  assert_memory_equal(clv_weights_digest(f), &digest_of_bytes, sizeof digest);
  assert_memory_equal(clv_weights_digest(m), &digest_of_bytes, sizeof digest);
  assert_int_equal((uintptr_t)clv_weights_find_entry(f, "bn.num_batches_tracked")->data % 64, 0);
}

static void tensor_order_does_not_change_the_bytes(void **state) {
  (void)state;
  clv_weights_tensor t[] = SOME_TENSORS;
  CLV_AUTO(clv_bytes_done) clv_bytes b = encode_sample(t, CLV_COUNT(t));
  for (size_t k = 1; k < CLV_COUNT(t); k++) {
    clv_weights_tensor first_tensor = t[0];
    memmove(t, t + 1, sizeof t - sizeof *t);
    t[CLV_COUNT(t) - 1] = first_tensor;
    CLV_AUTO(clv_bytes_done) clv_bytes c = encode_sample(t, CLV_COUNT(t));
    assert_int_equal(c.len, b.len);
    assert_memory_equal(c.data, b.data, b.len);
  }
}

static void file_without_tensors_round_trips(void **state) {
  (void)state;
  CLV_AUTO(clv_bytes_done) clv_bytes b = {0};
  CLV_AUTO(clv_weights_closep) clv_weights_file *f = NULL;
  clv_err err;
  assert_ok(clv_weights_encode(NULL, 0, NULL, 0, &b, &err), &err);
  assert_ok(clv_weights_open_memory(b.data, b.len, "none", &f, &err), &err);
  assert_int_equal(clv_weights_n_entries(f), 0);
  assert_null(clv_weights_find_entry(f, "x"));
}

/* ---- safetensors files that are refused ------------------------------------------------------ */

#define ENTRY(dtype, shape, begin, end) \
  "{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":[" #begin "," #end "]}"

static const struct {
  const char *json_header;
  size_t n_data_bytes;
  clv_code wanted_code;
  const char *message;
} bad_files[] = {
    {"", 0, CLV_DATA_LOSS, "starts with '{'"},
    {" {}", 0, CLV_DATA_LOSS, "starts with '{'"},
    {"[1]", 0, CLV_DATA_LOSS, "starts with '{'"},
    {"{\"a\":", 0, CLV_DATA_LOSS, "bad JSON"},
    {"{} x", 0, CLV_DATA_LOSS, "after the end of the JSON"},
    {"{}", 4, CLV_DATA_LOSS, "trailing bytes: its tensors take 0 bytes, the file has 4"},
    {"{\"a\":" ENTRY("F32", "[1]", 0, 4) ",\"a\":" ENTRY("F32", "[1]", 4, 8) "}", 8, CLV_DATA_LOSS,
     "duplicate"},
    {"{\"a\":" ENTRY("F32", "[2]", 0, 4) "}", 4, CLV_DATA_LOSS,
     "tensor 'a': [2] of F32 takes 8 bytes, its offsets hold 4"},
    {"{\"a\":" ENTRY("F32", "[1]", 4, 8) "}", 8, CLV_DATA_LOSS, "a hole"},
    {"{\"a\":" ENTRY("F32", "[2]", 0, 8) ",\"b\":" ENTRY("F32", "[2]", 4, 12) "}", 12,
     CLV_DATA_LOSS, "tensor 'b' begins at 4, the one before it ends at 8: an overlap"},
    {"{\"a\":" ENTRY("F32", "[1]", 0, 4) ",\"b\":" ENTRY("F32", "[1]", 0, 4) "}", 4, CLV_DATA_LOSS,
     "an overlap"},
    {"{\"a\":" ENTRY("F32", "[1]", 0, 4) ",\"b\":" ENTRY("F32", "[1]", 8, 12) "}", 12,
     CLV_DATA_LOSS, "a hole"},
    {"{\"a\":" ENTRY("F32", "[2]", 0, 8) "}", 4, CLV_DATA_LOSS, "truncated"},
    {"{\"a\":" ENTRY("F32", "[0]", 0, 0) ",\"b\":" ENTRY("F32", "[0]", 0, 0) "}", 0, CLV_DATA_LOSS,
     "share an offset"},
    {"{\"a\":" ENTRY("F33", "[1]", 0, 4) "}", 4, CLV_DATA_LOSS, "unknown dtype 'F33'"},
    {"{\"a\":" ENTRY("F4", "[2]", 0, 1) "}", 1, CLV_UNIMPLEMENTED, "smaller than a byte"},
    {"{\"a\":" ENTRY("U8", "[1,1,1,1,1,1,1,1,1]", 0, 1) "}", 1, CLV_DATA_LOSS,
     "rank 9, the limit is 8"},
    {"{\"a\":" ENTRY("F32", "[4611686018427387904,4]", 0, 0) "}", 0, CLV_DATA_LOSS, "overflows"},
    {"{\"a\":" ENTRY("F64", "[4294967296,536870912]", 0, 0) "}", 0, CLV_DATA_LOSS, "overflows"},
    {"{\"a\":" ENTRY("F32", "[-1]", 0, 4) "}", 4, CLV_DATA_LOSS, "extent 0 is not an integer"},
    {"{\"a\":" ENTRY("F32", "[1.0]", 0, 4) "}", 4, CLV_DATA_LOSS, "extent 0 is not an integer"},
    {"{\"a\":" ENTRY("F32", "1", 0, 4) "}", 4, CLV_DATA_LOSS, "'shape' is missing or not a list"},
    {"{\"a\":" ENTRY("F32", "[1]", 4, 0) "}", 4, CLV_DATA_LOSS, "0 <= begin <= end"},
    {"{\"a\":" ENTRY("F32", "[1]", -4, 0) "}", 4, CLV_DATA_LOSS, "0 <= begin <= end"},
    {"{\"a\":" ENTRY("F32", "[1]", 0, 99999999999999999999) "}", 4, CLV_DATA_LOSS, "bad JSON"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4,4]}}", 4, CLV_DATA_LOSS,
     "data_offsets"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1]}}", 4, CLV_DATA_LOSS, "exactly dtype, shape"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4],\"x\":1}}", 4, CLV_DATA_LOSS,
     "exactly dtype, shape"},
    {"{\"a\":{\"dtype\":4,\"shape\":[1],\"data_offsets\":[0,4]}}", 4, CLV_DATA_LOSS, "'dtype'"},
    {"{\"a\":[]}", 0, CLV_DATA_LOSS, "exactly dtype, shape"},
    {"{\"\":" ENTRY("U8", "[1]", 0, 1) "}", 1, CLV_DATA_LOSS, "name is empty"},
    {"{\"a\\nb\":" ENTRY("U8", "[1]", 0, 1) "}", 1, CLV_DATA_LOSS, "control characters"},
    {"{\"a\\u009b\":" ENTRY("U8", "[1]", 0, 1) "}", 1, CLV_DATA_LOSS, "control characters"},
    {"{\"a\\u0000b\":" ENTRY("U8", "[1]", 0, 1) "}", 1, CLV_DATA_LOSS, "bad JSON"},
    {"{\"\xff\":" ENTRY("U8", "[1]", 0, 1) "}", 1, CLV_DATA_LOSS, "bad JSON"},
    {"{\"__metadata__\":[]}", 0, CLV_DATA_LOSS, "'__metadata__' is not an object"},
    {"{\"__metadata__\":{\"a\":1}}", 0, CLV_DATA_LOSS, "metadata 'a' is not a string"},
};

static void invalid_headers_are_refused(void **state) {
  (void)state;
  for (size_t i = 0; i < CLV_COUNT(bad_files); i++) {
    CLV_AUTO(clv_bytes_done)
    clv_bytes b = make_raw_file(bad_files[i].json_header, bad_files[i].n_data_bytes);
    clv_weights_file *f = NULL;
    clv_err err = {0};
    clv_code code = clv_weights_open_memory(b.data, b.len, "bad.st", &f, &err);
    if (code != bad_files[i].wanted_code)
      fail_msg("%s: %s (%s)", bad_files[i].json_header, clv_code_name(code), err.text);
    assert_null(f);
    assert_says(&err, "bad.st");
    assert_says(&err, bad_files[i].message);
    const char *path = write_scratch_file("bad.st", b.data, b.len);
    assert_int_equal(clv_weights_open(path, 0, &f, &err), bad_files[i].wanted_code);
    assert_says(&err, bad_files[i].message);
  }
}

static void oversized_or_deep_headers_are_refused(void **state) {
  (void)state;
  clv_weights_file *f = NULL;
  clv_err err;
  CLV_AUTO(clv_bytes_done) clv_bytes b = {0}, deep = {0}, many = {0};
  uint64_t n = CLV_WEIGHTS_MAX_HEADER + 1;
  clv_bytes_add(&b, &n, 8);
  clv_bytes_puts(&b, "{}");
  assert_int_equal(clv_weights_open_memory(b.data, b.len, "f", &f, &err), CLV_DATA_LOSS);
  assert_says(&err, "header of 16777217 bytes, the limit is 16777216");
  memset(b.data, 0xff, 8);
  assert_int_equal(clv_weights_open_memory(b.data, b.len, "f", &f, &err), CLV_DATA_LOSS);

  n = 300000;
  clv_bytes_add(&deep, &n, 8);
  clv_bytes_puts(&deep, "{\"a\":");
  while (deep.len < 8 + n) clv_bytes_puts(&deep, "[");
  assert_int_equal(clv_weights_open_memory(deep.data, deep.len, "f", &f, &err), CLV_DATA_LOSS);
  assert_says(&err, "maximum parsing depth reached");

  n = 4000000;
  clv_bytes_add(&many, &n, 8);
  clv_bytes_puts(&many, "{\"a\":[0");
  while (many.len < 8 + n) clv_bytes_puts(&many, ",0");
  assert_int_equal(clv_weights_open_memory(many.data, many.len, "f", &f, &err), CLV_EXHAUSTED);
  assert_says(&err, "tokens");
  assert_null(f);
}

static void file_with_too_many_tensors_is_refused(void **state) {
  (void)state;
  CLV_AUTO(clv_bytes_done) clv_bytes h = {0}, b = {0};
  for (int i = 0; i <= CLV_WEIGHTS_MAX_TENSORS + 1; i++)
    clv_bytes_printf(&h, "%s\"%d\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[%d,%d]}",
                     i ? "," : "{", i, i, i + 1);
  clv_bytes_puts(&h, "}");
  b = make_raw_file(h.data, CLV_WEIGHTS_MAX_TENSORS + 2);
  clv_weights_file *f = NULL;
  clv_err err;
  assert_int_equal(clv_weights_open_memory(b.data, b.len, "f", &f, &err), CLV_EXHAUSTED);
  assert_says(&err, "the limit is 65536");
}

static void links_folders_and_pipes_are_refused(void **state) {
  (void)state;
  clv_weights_tensor t[] = SOME_TENSORS;
  CLV_AUTO(clv_bytes_done) clv_bytes b = encode_sample(t, CLV_COUNT(t));
  clv_weights_file *f = NULL;
  clv_err err;
  write_scratch_file("real", b.data, b.len);
  assert_int_equal(symlink(at("real"), at("link")), 0);
  assert_int_equal(clv_weights_open(at("link"), 0, &f, &err), CLV_INVALID);
  assert_says(&err, "symbolic link");
  assert_int_equal(clv_weights_open(at("absent"), 0, &f, &err), CLV_NOT_FOUND);
  assert_int_equal(clv_weights_open(scratch, 0, &f, &err), CLV_INVALID);
  assert_int_equal(mkfifo(at("pipe"), 0600), 0);
  assert_int_equal(clv_weights_open(at("pipe"), 0, &f, &err), CLV_INVALID);
  assert_says(&err, "not a regular file");
  assert_int_equal(clv_weights_open(at("real"), 10, &f, &err), CLV_EXHAUSTED);
}

static void invalid_writes_are_refused(void **state) {
  (void)state;
  char long_name[600];
  memset(long_name, 'n', 513);
  long_name[513] = '\0';
  clv_bytes none = {0};
  clv_err err;
  const struct {
    clv_weights_tensor t[2];
    const char *message;
  } cases[] = {
      {{{"a", CLV_F32, CLV_SHAPE(1), w_data}, {"a", CLV_U8, CLV_SHAPE(1), w_data}}, "used twice"},
      {{{"", CLV_F32, CLV_SHAPE(1), w_data}, {"b", CLV_U8, CLV_SHAPE(1), w_data}}, "UTF-8"},
      {{{"a\tb", CLV_F32, CLV_SHAPE(1), w_data}, {"b", CLV_U8, CLV_SHAPE(1), w_data}}, "UTF-8"},
      {{{"\xc0\x80", CLV_F32, CLV_SHAPE(1), w_data}, {"b", CLV_U8, CLV_SHAPE(1), w_data}}, "UTF-8"},
      {{{"\xe0\x80\xaf", CLV_F32, CLV_SHAPE(1), w_data}, {"b", CLV_U8, CLV_SHAPE(1), w_data}},
       "UTF-8"},
      {{{"\xed\xa0\x80", CLV_F32, CLV_SHAPE(1), w_data}, {"b", CLV_U8, CLV_SHAPE(1), w_data}},
       "UTF-8"},
      {{{long_name, CLV_F32, CLV_SHAPE(1), w_data}, {"b", CLV_U8, CLV_SHAPE(1), w_data}}, "512"},
      {{{"__metadata__", CLV_F32, CLV_SHAPE(1), w_data}, {"b", CLV_U8, CLV_SHAPE(1), w_data}},
       "__metadata__"},
      {{{"a", CLV_F32, CLV_SHAPE(-1), w_data}, {"b", CLV_U8, CLV_SHAPE(1), w_data}}, "negative"},
      {{{"a", 99, CLV_SHAPE(1), w_data}, {"b", CLV_U8, CLV_SHAPE(1), w_data}}, "dtype 99"},
      {{{"a", CLV_F32, CLV_SHAPE(0), NULL}, {"b", CLV_F32, CLV_SHAPE(0), NULL}}, "share"},
  };
  for (size_t i = 0; i < CLV_COUNT(cases); i++) {
    assert_int_equal(clv_weights_encode(cases[i].t, 2, NULL, 0, &none, &err), CLV_INVALID);
    assert_says(&err, cases[i].message);
    assert_int_equal(clv_weights_write_file(at("x"), cases[i].t, 2, NULL, 0, NULL, NULL, &err),
                     CLV_INVALID);
    assert_int_equal(access(at("x"), F_OK), -1);
  }
  clv_kv equal_keys[] = {{"k", "1"}, {"k", "2"}}, reserved_key[] = {{"format", "tf"}},
         invalid_text[] = {{"k", "\xff"}};
  assert_int_equal(clv_weights_encode(NULL, 0, equal_keys, 2, &none, &err), CLV_INVALID);
  assert_int_equal(clv_weights_encode(NULL, 0, reserved_key, 1, &none, &err), CLV_INVALID);
  assert_int_equal(clv_weights_encode(NULL, 0, invalid_text, 1, &none, &err), CLV_INVALID);
  assert_null(none.data);
  assert_int_equal(clv_weights_write_file(at("no/folder"), NULL, 0, NULL, 0, NULL, NULL, &err),
                   CLV_PRECONDITION);
}

/* ---- damaged safetensors files --------------------------------------------------------------- */

/* True if both files have the same names, types, shapes and bytes. */
static bool is_same_content(const clv_weights_file *a, const clv_weights_file *b) {
  if (clv_weights_n_entries(a) != clv_weights_n_entries(b)) return false;
  for (size_t i = 0; i < clv_weights_n_entries(a); i++) {
    const clv_weights_entry *x = &clv_weights_entries(a)[i], *y = &clv_weights_entries(b)[i];
    if (strcmp(x->name, y->name) || x->dtype != y->dtype ||
        !clv_shape_equal(&x->shape, &y->shape) || (x->bytes && memcmp(x->data, y->data, x->bytes)))
      return false;
  }
  return true;
}

static clv_bytes make_larger_file(void) {
  static float values[4096];
  for (size_t i = 0; i < CLV_COUNT(values); i++) values[i] = (float)i;
  clv_weights_tensor t[] = {{"conv1.weight", CLV_F32, CLV_SHAPE(16, 1, 5, 5), values},
                            {"conv1.bias", CLV_F32, CLV_SHAPE(16), values},
                            {"fc.weight", CLV_F32, CLV_SHAPE(10, 256), values},
                            {"fc.bias", CLV_F32, CLV_SHAPE(10), values},
                            {"bn.num_batches_tracked", CLV_I64, {.rank = 0}, values}};
  return encode_sample(t, CLV_COUNT(t));
}

static void every_truncation_is_refused(void **state) {
  (void)state;
  CLV_AUTO(clv_bytes_done) clv_bytes b = make_larger_file();
  assert_true(b.len > 8192);
  for (size_t cut = 0; cut < b.len; cut += cut < 600 ? 1 : 512 - cut % 512) {
    clv_weights_file *f = NULL;
    clv_err err;
    assert_int_equal(clv_weights_open_memory(b.data, cut, "cut", &f, &err), CLV_DATA_LOSS);
    assert_says(&err, "truncated");
    if (cut < 600 && cut % 37) continue;
    assert_int_equal(clv_weights_open(write_scratch_file("cut", b.data, cut), 0, &f, &err),
                     CLV_DATA_LOSS);
    assert_null(f);
  }
}

/* The header has no checksum: a flipped bit is refused, or the file is valid but its digest
 * differs. */
static void bit_flips_are_refused_or_change_the_digest(void **state) {
  (void)state;
  CLV_AUTO(clv_bytes_done) clv_bytes b = make_larger_file();
  CLV_AUTO(clv_weights_closep) clv_weights_file *good = NULL;
  clv_err err;
  CLV_AUTO(clv_bytes_done) clv_bytes copy = {0};
  clv_bytes_add(&copy, b.data, b.len);
  assert_ok(clv_weights_open_memory(b.data, b.len, "good", &good, &err), &err);
  size_t n_refused = 0, n_equal = 0, n_detected = 0;
  for (uint32_t i = 0; i < 10000; i++) {
    uint32_t w[4];
    clv_rng_block(&(clv_rng_key){.seed = 42}, i, w);
    size_t bit = (i % 2 ? w[0] % (b.len * 8) : w[0] % (700 * 8)); /* half of them in the header */
    CLV_AUTO(clv_weights_closep) clv_weights_file *f = NULL;
    copy.data[bit / 8] ^= (char)(1 << bit % 8);
    if (clv_weights_open_memory(copy.data, copy.len, "flip", &f, &err) != CLV_OK) {
      n_refused++;
    } else if (memcmp(clv_weights_digest(f), clv_weights_digest(good), sizeof(clv_sha256)) != 0) {
      n_detected++;
      n_equal += is_same_content(f, good);
    } else {
      fail_msg("flip of bit %zu went unnoticed", bit);
    }
    copy.data[bit / 8] ^= (char)(1 << bit % 8);
  }
  assert_int_equal(n_refused + n_detected, 10000);
  assert_true(n_refused > 1000);
  assert_true(n_equal < n_detected);
}

/* ---- matching a file's tensors with the tensors that a caller wants -------------------------- */

/* number of tensors in make_larger_file() */
enum { N_WANTED = 5 };
static const clv_weights_want wanted[N_WANTED] = {
    {"fc.weight", CLV_F32, {2, {10, 256}}, false},
    {"fc.bias", CLV_F32, {1, {10}}, false},
    {"conv1.weight", CLV_F32, {4, {16, 1, 5, 5}}, false},
    {"conv1.bias", CLV_F32, {1, {16}}, false},
    {"bn.num_batches_tracked", CLV_I64, {.rank = 0}, false}};

/* Opens the larger file. Copies the list of wanted tensors, for tests to change. */
static clv_weights_file *open_larger_file(clv_bytes *b, clv_weights_want *want) {
  clv_weights_file *f = NULL;
  clv_err err;
  *b = make_larger_file();
  memcpy(want, wanted, sizeof wanted);
  assert_ok(clv_weights_open_memory(b->data, b->len, "model.safetensors", &f, &err), &err);
  return f;
}

static void wanted_tensors_match_and_extra_ones_are_named(void **state) {
  (void)state;
  CLV_AUTO(clv_bytes_done) clv_bytes b = {0};
  clv_weights_want want[N_WANTED];
  CLV_AUTO(clv_weights_closep) clv_weights_file *f = open_larger_file(&b, want);
  const clv_weights_entry *found[8] = {0};
  clv_err err;
  assert_ok(clv_weights_match_tensors(f, want, 5, 0, found, &err), &err);
  for (int i = 0; i < 5; i++) assert_string_equal(found[i]->name, want[i].name);

  assert_int_equal(clv_weights_match_tensors(f, want, 2, 0, found, &err), CLV_INVALID);
  assert_says(&err,
              "model.safetensors: 3 unexpected tensors: 'bn.num_batches_tracked', "
              "'conv1.bias', 'conv1.weight'");
  assert_ok(clv_weights_match_tensors(f, want, 2, CLV_WEIGHTS_ALLOW_UNEXPECTED, found, &err), &err);

  assert_ok(clv_weights_check_no_extra(f, want, 5, &err), &err);
  assert_int_equal(clv_weights_check_no_extra(f, want, 4, &err), CLV_INVALID);
  assert_says(&err, "1 tensors that the model does not have: 'bn.num_batches_tracked'");
  want[0].name = "weight";
  assert_int_equal(clv_weights_check_no_extra(f, want, 5, &err), CLV_INVALID);
  assert_says(&err, "1 tensors that the model does not have: 'fc.weight' (the model has 'weight')");
}

static void missing_tensors_are_named(void **state) {
  (void)state;
  CLV_AUTO(clv_bytes_done) clv_bytes b = {0};
  clv_weights_want want[N_WANTED];
  CLV_AUTO(clv_weights_closep) clv_weights_file *f = open_larger_file(&b, want);
  const clv_weights_entry *found[8] = {0};
  clv_err err;
  want[1].name = "fc1.bias";
  assert_int_equal(clv_weights_match_tensors(f, want, 5, 0, found, &err), CLV_INVALID);
  assert_null(found[0]);
  assert_says(&err,
              "1 missing tensors: 'fc1.bias' (did you mean 'fc.bias'?); unexpected: "
              "'fc.bias'");
  want[1].name = "fc.bias";
  /* a count of batches, which may be missing if the caller allows it */
  want[4].name = "bn2.num_batches_tracked";
  unsigned match_flags = CLV_WEIGHTS_ALLOW_NO_COUNTS | CLV_WEIGHTS_ALLOW_UNEXPECTED;
  assert_int_equal(clv_weights_match_tensors(f, want, 5, CLV_WEIGHTS_ALLOW_UNEXPECTED, found, &err),
                   CLV_INVALID);
  assert_says(&err, "1 missing tensors: 'bn2.num_batches_tracked'");
  assert_ok(clv_weights_match_tensors(f, want, 5, match_flags, found, &err), &err);
  assert_null(found[4]);
  assert_string_equal(found[3]->name, "conv1.bias");
  want[4] = (clv_weights_want){"bn2.counts", CLV_I64, CLV_SHAPE(2),
                               false}; /* a tensor of several numbers is no count */
  assert_int_equal(clv_weights_match_tensors(f, want, 5, match_flags, found, &err), CLV_INVALID);
  assert_says(&err, "1 missing tensors: 'bn2.counts'");
  want[4] = (clv_weights_want){"bn.num_batches_tracked", CLV_I64, {.rank = 0}, false};
  clv_weights_want wanted_counts[] = {{"p1", 1, {0}, false},
                                      {"p2", 1, {0}, false},
                                      {"p3", 1, {0}, false},
                                      {"p4", 1, {0}, false},
                                      {"p5", 1, {0}, false}};
  assert_int_equal(clv_weights_match_tensors(f, wanted_counts, 5, 0, found, &err), CLV_INVALID);
  assert_says(&err,
              "5 missing tensors: 'p1', 'p2', 'p3' and 2 more; unexpected: "
              "'bn.num_batches_tracked', 'conv1.bias', 'conv1.weight' and 2 more");
}

static void mismatched_shape_or_dtype_is_named(void **state) {
  (void)state;
  CLV_AUTO(clv_bytes_done) clv_bytes b = {0};
  clv_weights_want want[N_WANTED];
  CLV_AUTO(clv_weights_closep) clv_weights_file *f = open_larger_file(&b, want);
  const clv_weights_entry *found[8] = {0};
  clv_err err;
  want[1] = (clv_weights_want){"fc.bias", CLV_F32, CLV_SHAPE(11), false};
  assert_int_equal(clv_weights_match_tensors(f, want, 5, 0, found, &err), CLV_INVALID);
  assert_says(&err, "tensor 'fc.bias': expected f32 [11], found f32 [10]");
  want[1] = (clv_weights_want){"fc.bias", CLV_F64, CLV_SHAPE(10), false};
  assert_int_equal(clv_weights_match_tensors(f, want, 5, 0, found, &err), CLV_INVALID);
  assert_says(&err, "expected f64 [10], found f32 [10]");
}

/* A tensor of a type that is valid in the format, but not supported here, is listed and never
 * matched. */
static void unsupported_dtype_is_listed_but_not_matched(void **state) {
  (void)state;
  CLV_AUTO(clv_bytes_done)
  clv_bytes b = make_raw_file("{\"m\":" ENTRY("BOOL", "[4]", 0, 4) "}", 4);
  CLV_AUTO(clv_weights_closep) clv_weights_file *f = NULL;
  const clv_weights_entry *found;
  clv_err err;
  assert_ok(clv_weights_open_memory(b.data, b.len, "f", &f, &err), &err);
  assert_int_equal(clv_weights_find_entry(f, "m")->dtype, 0);
  assert_string_equal(clv_weights_find_entry(f, "m")->type_name, "BOOL");
  clv_weights_want want = {"m", CLV_U8, CLV_SHAPE(4), false};
  assert_int_equal(clv_weights_match_tensors(f, &want, 1, 0, &found, &err), CLV_INVALID);
  assert_says(&err, "expected u8 [4], found BOOL [4]");
}

/* ---- files read by Python -------------------------------------------------------------------- */

static const char python_check[] =
    "import json, struct, sys\n"
    "import numpy as np\n"
    "T = {'F32': '<f4', 'I64': '<i8', 'U8': '|u1', 'F16': '<f2'}\n"
    "b = open(sys.argv[1], 'rb').read()\n"
    "n, = struct.unpack('<Q', b[:8])\n"
    "assert n % 8 == 0\n"
    "h = json.loads(b[8:8 + n])\n"
    "assert h.pop('__metadata__') == {'format': 'pt', 'note': 'a \"quoted\" \\\\ \\u00e9'}\n"
    "d = b[8 + n:]\n"
    "def get(k):\n"
    "    e = h[k]; a, z = e['data_offsets']\n"
    "    return np.frombuffer(d[a:z], T[e['dtype']]).reshape(e['shape'])\n"
    "assert sorted(h) == ['bn.num_batches_tracked', 'empty', 'fc.weight', 'half', 'mask']\n"
    "assert (get('fc.weight') == np.array([[1, -2, 3.5], [0, 1e-30, 6]], 'f4')).all()\n"
    "assert get('bn.num_batches_tracked') == -7 and get('half').tolist() == [[1, -2]]\n"
    "assert get('mask').tolist() == [0, 1, 255] and get('empty').shape == (0, 4)\n"
    "a = np.arange(12, dtype='<f8').reshape(3, 4) / 7\n"
    "h = json.dumps({'x': {'dtype': 'F64', 'shape': [3, 4], 'data_offsets': [0, 96]}}).encode()\n"
    "open(sys.argv[2], 'wb').write(struct.pack('<Q', len(h)) + h + a.tobytes())\n";

static void files_are_exchanged_with_python(void **state) {
  (void)state;
  if (system("/usr/bin/python3 -c 'import numpy' 2>/dev/null") != 0) {
    print_message("because /usr/bin/python3 has no numpy\n");
    skip();
  }
  clv_weights_tensor t[] = SOME_TENSORS;
  CLV_AUTO(clv_bytes_done) clv_bytes b = encode_sample(t, CLV_COUNT(t));
  char command[700];
  write_scratch_file("ours", b.data, b.len);
  write_scratch_file("check.py", python_check, sizeof python_check - 1);
  snprintf(command, sizeof command, "/usr/bin/python3 %s %s %s", at("check.py"), at("ours"),
           at("theirs"));
  assert_int_equal(system(command), 0);
  CLV_AUTO(clv_weights_closep) clv_weights_file *f = NULL;
  clv_err err;
  assert_ok(clv_weights_open(at("theirs"), 0, &f, &err), &err);
  const clv_weights_entry *x = clv_weights_find_entry(f, "x");
  assert_int_equal(x->dtype, CLV_F64);
  for (int i = 0; i < 12; i++) {
    double v;
    memcpy(&v, (const char *)x->data + 8 * i, 8);
    assert_true(v == i / 7.0);
  }
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(encoded_bytes_match_the_reference_layout),
    cmocka_unit_test(tensors_and_metadata_round_trip),
    cmocka_unit_test(file_without_tensors_round_trips),
    cmocka_unit_test(tensor_order_does_not_change_the_bytes),
    cmocka_unit_test(invalid_headers_are_refused),
    cmocka_unit_test(oversized_or_deep_headers_are_refused),
    cmocka_unit_test(links_folders_and_pipes_are_refused),
    cmocka_unit_test(file_with_too_many_tensors_is_refused),
    cmocka_unit_test(invalid_writes_are_refused),
    cmocka_unit_test(every_truncation_is_refused),
    cmocka_unit_test(bit_flips_are_refused_or_change_the_digest),
    cmocka_unit_test(wanted_tensors_match_and_extra_ones_are_named),
    cmocka_unit_test(missing_tensors_are_named),
    cmocka_unit_test(mismatched_shape_or_dtype_is_named),
    cmocka_unit_test(unsupported_dtype_is_listed_but_not_matched),
    cmocka_unit_test(files_are_exchanged_with_python),
};

int main(void) { return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown); }
