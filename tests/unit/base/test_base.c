/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests the small parts of common/base: errors, sizes, files, texts, digests, random numbers,
 * limits of memory, and loaded libraries.
 */
#include <fcntl.h>
#include <limits.h>
#include <math.h>
#include <openssl/crypto.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/base/base.h"

static void error_keeps_first_line_and_prefixes(void **state) {
  (void)state;
  clv_err err;
  assert_int_equal(clv_fail(&err, CLV_RANGE, "%d is above %d", 7, 5), CLV_RANGE);
  assert_string_equal(err.text, "7 is above 5");
  assert_non_null(strstr(err.where, "test_base.c:"));
  assert_int_equal(clv_err_prefix(&err, "module %d", 3), CLV_RANGE);
  assert_string_equal(err.text, "module 3: 7 is above 5");
  for (int i = 0; i < 100; i++) clv_err_prefix(&err, "a long prefix that repeats");
  assert_true(strlen(err.text) < sizeof err.text);
  assert_int_equal(clv_fail(NULL, CLV_EXISTS, "nobody listens"), CLV_EXISTS);
  assert_string_equal(clv_code_name(CLV_DATA_LOSS), "data loss");
  assert_string_equal(clv_code_name((clv_code)99), "unknown");
}

static void sizes_refuse_overflow(void **state) {
  (void)state;
  size_t r = 1;
  assert_true(clv_mul_size(3, 5, &r));
  assert_int_equal(r, 15);
  assert_false(clv_mul_size(SIZE_MAX, 2, &r));
  assert_false(clv_add_size(SIZE_MAX, 1, &r));
  assert_int_equal(r, 15);
  void *p;
  assert_int_equal(clv_alloc(SIZE_MAX / 2, 3, &p, NULL), CLV_EXHAUSTED);
  assert_int_equal(clv_alloc_aligned(SIZE_MAX - 5, &p, NULL), CLV_EXHAUSTED);
  assert_int_equal(clv_align_up(65, 64), 128);
}

static void sizes_with_units_parse_and_junk_is_refused(void **state) {
  (void)state;
  static const struct {
    const char *text;
    uint64_t value;
  } sizes[] = {
      {"64MiB", 64u << 20}, {"1.5 GiB", 1610612736u}, {"250", 250}, {"1k", 1000}, {"2Ki", 2048}};
  uint64_t v;
  for (size_t i = 0; i < CLV_COUNT(sizes); i++) {
    assert_int_equal(clv_parse_size(sizes[i].text, &v, NULL), CLV_OK);
    assert_int_equal(v, sizes[i].value);
  }
  static const char *const bad[] = {"", "-1", "x", "1e400", "12 parsecs", "nan", "inf", " 1"};
  for (size_t i = 0; i < CLV_COUNT(bad); i++)
    assert_int_not_equal(clv_parse_size(bad[i], &v, NULL), CLV_OK);
  assert_int_equal(clv_parse_duration("1.5s", &v, NULL), CLV_OK);
  assert_int_equal(v, 1500);
  char buf[32];
  assert_string_equal(clv_format_size(1610612736u, buf, sizeof buf), "1.5 GiB");
}

static void nearest_word_is_suggested(void **state) {
  (void)state;
  static const char *const words[] = {"optimizer", "momentum", "epochs", "lr"};
  assert_string_equal(clv_did_you_mean("optimiser", words, 4), "optimizer");
  assert_string_equal(clv_did_you_mean("epoch", words, 4), "epochs");
  assert_null(clv_did_you_mean("zebra", words, 4));
  /* a name is suggested only if more than half of its letters agree */
  assert_null(clv_did_you_mean("foo", (const char *const[]){"log"}, 1));
  assert_string_equal(clv_did_you_mean("lot", (const char *const[]){"log"}, 1), "log");
  const char *const ops[] = {"mse", "bias", "relu"};
  assert_null(clv_did_you_mean("dense", ops, 3));
  assert_null(clv_did_you_mean("units", ops, 3));
  assert_string_equal(clv_did_you_mean("ReLU", ops, 3), "relu");
}

static void files_are_written_durably_and_read_back(void **state) {
  (void)state;
  char dir[] = "/tmp/cleave-base-XXXXXX", path[64];
  assert_non_null(mkdtemp(dir));
  snprintf(path, sizeof path, "%s/a", dir);
  assert_int_equal(clv_file_write_durable(path, "hello", 5, 0600, NULL), CLV_OK);
  CLV_AUTO(clv_bytes_done) clv_bytes b = {0};
  assert_int_equal(clv_file_read(path, 5, &b, NULL), CLV_OK);
  assert_string_equal(b.data, "hello");
  assert_int_equal(clv_file_read(path, 4, &b, NULL), CLV_EXHAUSTED);
  assert_int_equal(clv_file_read(dir, 100, &b, NULL), CLV_INVALID);
  struct stat st;
  assert_int_equal(stat(path, &st), 0);
  assert_int_equal(st.st_mode & 0777, 0600);
  unlink(path);
  assert_int_equal(clv_file_read(path, 5, &b, NULL), CLV_NOT_FOUND);
  snprintf(path, sizeof path, "%s/none/a", dir);
  assert_int_equal(clv_file_write_durable(path, "x", 1, 0600, NULL), CLV_PRECONDITION);
  rmdir(dir);
}

static void json_text_is_escaped(void **state) {
  (void)state;
  CLV_AUTO(clv_bytes_done) clv_bytes b = {0};
  clv_bytes_add_json(&b, "a\"b\\c\n\x01");
  assert_string_equal(b.data, "\"a\\\"b\\\\c\\u000a\\u0001\"");
  b.len = 0;
  /* DEL and CSI are escaped, because terminals obey them */
  clv_bytes_add_json(&b, "\x7f\xc2\x9b\xc2\xa0\xc3\xb6\x9b");
  assert_string_equal(b.data, "\"\\u007f\\u009b\xc2\xa0\xc3\xb6\\ufffd\"");
}

static void control_characters_do_not_reach_a_terminal(void **state) {
  (void)state;
  CLV_AUTO(clv_bytes_done) clv_bytes b = {0};
  clv_text_sanitize_utf8(
      "a\033[31mb\tc\nd\re\x7f"
      "f\xc2\x9bg\x9bh \xc3\xb6\xe2\x82\xac\xe2\x9b\x94",
      &b);
  assert_string_equal(b.data, "a?[31mb\tc\nd?e?f?g?h \xc3\xb6\xe2\x82\xac\xe2\x9b\x94");
}

/* Published vectors: FIPS 180-2 ("abc"); RFC 3720 B.4 for CRC32C. */
static void digests_match_published_vectors(void **state) {
  (void)state;
  clv_sha256 d, parsed_digest;
  char hex[65];
  assert_int_equal(clv_sha256_of("abc", 3, &d, NULL), CLV_OK);
  clv_sha256_hex(&d, hex);
  assert_string_equal(hex, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  assert_true(clv_sha256_parse(hex, &parsed_digest));
  assert_memory_equal(&d, &parsed_digest, sizeof d);
  hex[10] = 'g';
  assert_false(clv_sha256_parse(hex, &parsed_digest));
  uint8_t zeros[32] = {0}, bytes_of_ff[32];
  memset(bytes_of_ff, 0xff, sizeof bytes_of_ff);
  assert_int_equal(clv_crc32c(0, zeros, 32), 0x8a9136aau);
  assert_int_equal(clv_crc32c(0, bytes_of_ff, 32), 0x62a8ab43u);
  assert_int_equal(clv_crc32c(clv_crc32c(0, zeros, 10), zeros + 10, 22), 0x8a9136aau);
}

/* Expected values are from Python: hashlib.sha256(b"layer\0" + seed + b"abc"), hmac.new. */
static void derived_keys_match_python_hashlib(void **state) {
  (void)state;
  clv_err err;
  clv_key seed, key, other;
  clv_sha256 secret = {{0}}, digest;
  char hex[65];
  for (int i = 0; i < 16; i++) seed.bytes[i] = (uint8_t)i;
  assert_int_equal(clv_key_derive("layer", &seed, "abc", 3, &key, &err), CLV_OK);
  clv_hex(key.bytes, sizeof key.bytes, hex);
  assert_string_equal(hex, "2303b30d0bc27bec54fa447832a4cd2a");
  assert_int_equal(clv_key_derive("laye", &seed, "abc", 3, &other, &err), CLV_OK);
  assert_memory_not_equal(&key, &other, sizeof key);
  assert_int_equal(clv_key_derive("layer", &seed, NULL, 0, &other, &err), CLV_OK);
  assert_memory_not_equal(&key, &other, sizeof key);
  assert_int_equal(clv_key_derive("layer", &seed, hex, 65, &other, &err), CLV_INTERNAL);
  for (int i = 0; i < 20; i++) secret.bytes[i] = 0x0b; /* key of test case 1 of RFC 4231 */
  assert_int_equal(clv_hmac_sha256(&secret, "Hi There", 8, &digest, &err), CLV_OK);
  clv_sha256_hex(&digest, hex);
  assert_string_equal(hex, "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
}

static void invalid_hex_is_refused_and_leaves_the_output(void **state) {
  (void)state;
  uint8_t bytes[3] = {7, 7, 7};
  assert_true(clv_hex_parse("00aFf1", bytes, 3) && bytes[1] == 0xaf && bytes[2] == 0xf1);
  assert_false(clv_hex_parse("00aff", bytes, 3));
  assert_false(clv_hex_parse("00aff12", bytes, 3));
  assert_false(clv_hex_parse("00affg", bytes, 3));
  /* the output still has the bytes from before the refused text */
  assert_int_equal(bytes[2], 0xf1);
}

/* Each byte of both halves of a key changes the random numbers that the key draws. */
static void every_key_byte_changes_the_random_numbers(void **state) {
  (void)state;
  clv_key key = {{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}};
  uint32_t words_before[4], words_after[4];
  clv_rng_key rng = clv_rng_key_of(&key);
  assert_true(rng.seed == 0x0807060504030201 && rng.seed_high == 0x100f0e0d0c0b0a09);
  clv_rng_block(&rng, 5, words_before);
  for (int i = 0; i < 16; i++) {
    key.bytes[i] ^= 0x80;
    rng = clv_rng_key_of(&key);
    clv_rng_block(&rng, 5, words_after);
    assert_memory_not_equal(words_before, words_after, sizeof words_before);
    key.bytes[i] ^= 0x80;
  }
}

static void random_numbers_depend_on_their_key_alone(void **state) {
  (void)state;
  clv_rng_key key = {.seed = 7, .step = 3, .micro_batch = 1, .layer = 5};
  float a[64], b[64];
  clv_rng_uniform(&key, 0, 1, a, 64);
  clv_rng_uniform(&key, 0, 1, b, 64);
  assert_memory_equal(a, b, sizeof a);
  clv_rng_key others[] = {key, key, key, key};
  others[0].seed++, others[1].step++, others[2].micro_batch++, others[3].layer++;
  for (int i = 0; i < 4; i++) {
    clv_rng_uniform(&others[i], 0, 1, b, 64);
    assert_memory_not_equal(a, b, sizeof a);
  }
  uint32_t w[4];
  clv_rng_block(&key, 2, w);
  /* a block has 4 words, so element 9 is from word 1 of block 2 */
  assert_true(a[9] == (float)(w[1] >> 8) * 0x1p-24f);
}

static void random_numbers_in_pieces_equal_one_draw(void **state) {
  (void)state;
  clv_rng_key key = {.seed = 3, .layer = 2};
  float all[64], pieces[64];
  clv_rng_normal(&key, 0, 2, all, 64);
  clv_rng_normal_from(&key, 0, 0, 2, pieces, 24);
  clv_rng_normal_from(&key, 24, 0, 2, pieces + 24, 40);
  assert_memory_equal(all, pieces, sizeof all);
  clv_rng_uniform(&key, -1, 1, all, 64);
  clv_rng_uniform_from(&key, 0, -1, 1, pieces, 4);
  clv_rng_uniform_from(&key, 4, -1, 1, pieces + 4, 60);
  assert_memory_equal(all, pieces, sizeof all);
}

/* ---- memory limit of the host, random numbers, texts and files ------------------------------- */

static char host[64];

static void write_host_file(const char *path, const char *text) {
  char buf[256];
  clv_err err;
  snprintf(buf, sizeof buf, "mkdir -p $(dirname %s/%s)", host, path);
  assert_int_equal(system(buf), 0);
  snprintf(buf, sizeof buf, "%s/%s", host, path);
  assert_int_equal(clv_file_write_durable(buf, text, strlen(text), 0600, &err), CLV_OK);
}

static void assert_host_memory(uint64_t bytes, const char *name) {
  clv_host_memory m;
  clv_host_memory_read(host, &m);
  assert_true(m.bytes == bytes);
  assert_string_equal(m.source, name);
}

static void memory_limit_is_the_hosts_or_the_cgroups(void **state) {
  (void)state;
  char hidden_path[80];
  strcpy(host, "/tmp/cleave-unit-XXXXXX");
  assert_non_null(mkdtemp(host));
  assert_host_memory(0, "this host's memory");
  write_host_file("proc/meminfo", "MemFree: 7 kB\nMemTotal:       4096 kB\n");
  assert_host_memory(4 << 20, "this host's memory");
  write_host_file("proc/self/cgroup", "0::/a/b\n");
  write_host_file("sys/fs/cgroup/a/b/memory.max", "max\n");
  assert_host_memory(4 << 20, "this host's memory");
  write_host_file("sys/fs/cgroup/a/memory.max", "1048576\n");
  assert_host_memory(1 << 20, "the control group's memory.max");
  write_host_file("proc/self/cgroup", "9:memory,cpu:/x\n1:name=systemd:/\n");
  write_host_file("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  assert_host_memory(4 << 20, "this host's memory");
  write_host_file("sys/fs/cgroup/memory/x/memory.limit_in_bytes", "65536\n");
  assert_host_memory(65536, "the control group's memory.limit_in_bytes");
  snprintf(hidden_path, sizeof hidden_path, "rm -r %s", host);
  assert_int_equal(system(hidden_path), 0);
}

static void distributions_have_the_expected_moments(void **state) {
  (void)state;
  enum { N = 200000 };
  static float x[N];
  clv_rng_key key = {.seed = 11};
  double sum = 0, squares = 0;
  clv_rng_normal(&key, 2, 3, x, N);
  for (int i = 0; i < N; i++) sum += x[i], squares += (double)x[i] * x[i];
  assert_true(fabs(sum / N - 2) < 0.03);
  assert_true(fabs(sqrt(squares / N - 4) - 3) < 0.03);
  clv_rng_uniform(&key, -1, 1, x, N);
  for (int i = 0; i < N; i++) assert_true(x[i] >= -1 && x[i] < 1);
}

static size_t encode_utf8(uint32_t point, unsigned char ret[4]) {
  size_t n = point < 0x80 ? 1 : point < 0x800 ? 2 : point < 0x10000 ? 3 : 4;
  for (size_t i = n; i-- > 1; point >>= 6) ret[i] = (unsigned char)(0x80 | (point & 0x3f));
  ret[0] = (unsigned char)(n == 1 ? point : (0xf00u >> n & 0xff) | point);
  return n;
}

static void utf8_decoder_accepts_only_valid_characters(void **state) {
  static const char *const others[] = {"\x80",
                                       "\xc0\xaf",
                                       "\xc1\xbf",
                                       "\xe0\x9f\xbf",
                                       "\xf0\x8f\xbf\xbf",
                                       "\xf4\x90\x80\x80",
                                       "\xf5\x80\x80\x80",
                                       "\xff",
                                       "\xc3",
                                       "\xe2\x82"};
  uint32_t got = 7;
  (void)state;
  for (uint32_t point = 0; point <= 0x10ffff; point++) {
    unsigned char text[4];
    size_t n = encode_utf8(point, text);
    bool is_surrogate = point >= 0xd800 && point <= 0xdfff;
    assert_int_equal(clv_utf8_decode(text, n, &got), is_surrogate ? 0 : n);
    if (!is_surrogate) assert_int_equal(got, point);
    if (n > 1) assert_int_equal(clv_utf8_decode(text, n - 1, &got), 0);
  }
  got = 7;
  for (size_t i = 0; i < CLV_COUNT(others); i++)
    assert_int_equal(clv_utf8_decode(others[i], SIZE_MAX, &got), 0);
  assert_int_equal(got, 7);
}

static void permutations_hold_every_number_once(void **state) {
  (void)state;
  enum { N = 1000 };
  uint32_t p[N], q[N];
  char seen[N] = {0};
  clv_rng_key key = {.seed = 1};
  clv_rng_permutation(&key, p, N);
  for (int i = 0; i < N; i++) {
    assert_true(p[i] < N && !seen[p[i]]);
    seen[p[i]] = 1;
  }
  key.step = 1;
  clv_rng_permutation(&key, q, N);
  assert_memory_not_equal(p, q, sizeof p);
}

static void long_texts_are_truncated_with_dots(void **state) {
  (void)state;
  char dst[8], text[600];
  clv_err err;
  assert_string_equal(clv_text_truncate("1234567", dst, sizeof dst), "1234567");
  assert_string_equal(clv_text_truncate("12345678", dst, sizeof dst), "1234...");
  assert_string_equal(clv_text_truncate("123\xc3\xa4"
                                        "5678",
                                        dst, sizeof dst),
                      "123..."); /* the text is 123ä5678; the cut does not split the character ä */
  assert_string_equal(clv_text_truncate("", dst, sizeof dst), "");
  memset(text, 'x', sizeof text - 1);
  text[sizeof text - 1] = '\0';
  clv_fail(&err, CLV_INVALID, "%s", text);
  assert_int_equal(strlen(err.text), CLV_ERR_TEXT - 1);
  assert_string_equal(err.text + CLV_ERR_TEXT - 5, "x...");
  clv_fail(&err, CLV_INVALID, "%.479s", text);
  assert_string_equal(err.text + CLV_ERR_TEXT - 5, "xxxx");
  clv_err_prefix(&err, "here");
  assert_string_equal(err.text + CLV_ERR_TEXT - 5, "x...");
}

static void loaded_libraries_are_found_by_name_and_address(void **state) {
  char path_by_name[512], path_by_address[512];
  const void *address;
  unsigned long (*function)(void) = OpenSSL_version_num;
  (void)state;
  memcpy(&address, &function, sizeof address);
  assert_true(clv_library_file_named("libcrypto", path_by_name, sizeof path_by_name));
  assert_true(clv_library_file_of(address, path_by_address, sizeof path_by_address));
  assert_string_equal(path_by_name, path_by_address);
  /* "libcrypt" is only a prefix of the name libcrypto, so no library is found */
  assert_false(clv_library_file_named("libcrypt", path_by_name, sizeof path_by_name));
  assert_string_equal(path_by_name, "");
  /* an address on the stack belongs to no library */
  assert_false(clv_library_file_of(&function, path_by_address, sizeof path_by_address));
  assert_true(clv_is_file_of_wheel("/v/site-packages/cleave_runtime.libs/libssl-1f.so.3"));
  assert_true(clv_is_file_of_wheel("/v/site-packages/cleave/lib/libopenblas.so.0"));
  assert_false(clv_is_file_of_wheel("/usr/lib/cleave/libssl.so.3"));
}

/* Runs after all functions that were registered by atexit. The threads of a runtime that was not
 * closed compute digests then, too. */
__attribute__((destructor)) static void compute_digest_at_exit(void) {
  clv_sha256 digest;
  if (clv_sha256_of("abc", 3, &digest, NULL) == CLV_OK) return;
  fputs("no digest can be computed while the process exits\n", stderr);
  _exit(1);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(error_keeps_first_line_and_prefixes),
      cmocka_unit_test(sizes_refuse_overflow),
      cmocka_unit_test(sizes_with_units_parse_and_junk_is_refused),
      cmocka_unit_test(nearest_word_is_suggested),
      cmocka_unit_test(files_are_written_durably_and_read_back),
      cmocka_unit_test(json_text_is_escaped),
      cmocka_unit_test(control_characters_do_not_reach_a_terminal),
      cmocka_unit_test(digests_match_published_vectors),
      cmocka_unit_test(derived_keys_match_python_hashlib),
      cmocka_unit_test(invalid_hex_is_refused_and_leaves_the_output),
      cmocka_unit_test(long_texts_are_truncated_with_dots),
      cmocka_unit_test(every_key_byte_changes_the_random_numbers),
      cmocka_unit_test(random_numbers_depend_on_their_key_alone),
      cmocka_unit_test(random_numbers_in_pieces_equal_one_draw),
      cmocka_unit_test(memory_limit_is_the_hosts_or_the_cgroups),
      cmocka_unit_test(distributions_have_the_expected_moments),
      cmocka_unit_test(permutations_hold_every_number_once),
      cmocka_unit_test(utf8_decoder_accepts_only_valid_characters),
      cmocka_unit_test(loaded_libraries_are_found_by_name_and_address),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
