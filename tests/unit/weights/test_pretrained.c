/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests folders of pretrained weights: single files or several with an index, tensor names of older
 * versions, 16-bit numbers, and hostile folders.
 */
#include <fcntl.h>
#include <math.h>

#include "common/model/weights/weights_int.h"
#include "tests/unit/weights/weights_test.h"

static const clv_weights_guard no_guard = {0};
static const float numbers[4] = {1, -2, 0.5f, 65504};

static void write_weights_file(const char *name, const clv_weights_tensor *t, size_t n) {
  CLV_AUTO(clv_bytes_done) clv_bytes b = {0};
  clv_err err;
  assert_ok(clv_weights_encode(t, n, NULL, 0, &b, &err), &err);
  write_scratch_file(name, b.data, b.len);
}

/* Makes the empty folder NAME. */
static const char *make_folder(const char *name) {
  const char *path = at(name);
  assert_int_equal(mkdir(path, 0755), 0);
  return path;
}

static void write_text_file(const char *name, const char *text) {
  write_scratch_file(name, text, strlen(text));
}

static clv_code open_folder(const char *path, clv_weights_folder **ret, clv_err *err) {
  return clv_weights_folder_open(path, "FOLDER", no_guard, ret, err);
}

static void assert_refused(const char *path, clv_code code, const char *text) {
  clv_weights_folder *f = NULL;
  clv_err err;
  assert_int_equal(open_folder(path, &f, &err), code);
  assert_says(&err, text);
  assert_null(f);
}

/* ---- index files of pretrained weights ------------------------------------------------------- */

static void assert_index_refused(const char *text, clv_code code, const char *says) {
  CLV_AUTO(clv_weights_index_clear) clv_weights_index x = {0};
  clv_err err;
  assert_int_equal(clv_weights_index_parse(text, strlen(text), "index", &x, &err), code);
  assert_says(&err, says);
}

static void hostile_indexes_are_refused(void **state) {
  (void)state;
  static const char *const files[] = {
      "../a.safetensors", "/etc/a.safetensors", "b/a.safetensors", "..", ".safetensors", "a.bin",
      "a\\nb.safetensors"};
  for (size_t i = 0; i < CLV_COUNT(files); i++) {
    char text[200];
    snprintf(text, sizeof text, "{\"weight_map\":{\"w\":\"%s\"}}", files[i]);
    assert_index_refused(text, CLV_DATA_LOSS, "tensor 'w'");
  }
  assert_index_refused("{\"weight_map\":{\"w\":7}}", CLV_DATA_LOSS, "not a string");
  assert_index_refused("{\"weight_map\":{}}", CLV_DATA_LOSS, "empty");
  assert_index_refused("{\"weight_map\":[]}", CLV_DATA_LOSS, "not an object");
  assert_index_refused("[]", CLV_DATA_LOSS, "starts with");
  assert_index_refused("{\"weight_map\":{\"\":\"a.safetensors\"}}", CLV_DATA_LOSS, "name is empty");
  assert_index_refused("{\"weight_map\":{\"a\":\"a.safetensors\",\"a\":\"b.safetensors\"}}",
                       CLV_DATA_LOSS, "duplicate");
  assert_index_refused("{\"metadata\":3,\"weight_map\":{\"a\":\"a.safetensors\"}}", CLV_DATA_LOSS,
                       "metadata");
  assert_index_refused(
      "{\"metadata\":{\"total_size\":-1},\"weight_map\":{\"a\":\"a.safetensors\"}}", CLV_DATA_LOSS,
      "total_size");
  assert_index_refused(
      "{\"metadata\":{\"total_size\":1e300},\"weight_map\":{\"a\":\"a.safetensors\"}}",
      CLV_DATA_LOSS, "total_size");
}

static void index_with_too_many_tensors_is_refused(void **state) {
  (void)state;
  CLV_AUTO(clv_bytes_done) clv_bytes text = {0};
  CLV_AUTO(clv_weights_index_clear) clv_weights_index x = {0};
  clv_err err;
  clv_bytes_puts(&text, "{\"weight_map\":{");
  for (int i = 0; i <= CLV_WEIGHTS_MAX_TENSORS; i++)
    clv_bytes_printf(&text, "%s\"t%d\":\"a.safetensors\"", i ? "," : "", i);
  clv_bytes_puts(&text, "}}");
  assert_int_equal(clv_weights_index_parse(text.data, text.len, "index", &x, &err), CLV_EXHAUSTED);
  assert_says(&err, "limit is 65536");
}

/* ---- names of tensors in pretrained files ---------------------------------------------------- */

static void assert_found_as(const char *const *names, size_t n, const char *want, const char *as) {
  size_t at = 0;
  clv_err err;
  assert_ok(clv_weights_find_name(names, n, want, "x", &at, &err), &err);
  if (!as) assert_true(at == CLV_WEIGHTS_NONE);
  if (as) assert_true(at != CLV_WEIGHTS_NONE);
  if (as) assert_string_equal(names[at], as);
}

static void renamed_tensors_are_found(void **state) {
  (void)state;
  static const char *const names[] = {"bert.a.LayerNorm.beta", "bert.a.LayerNorm.gamma",
                                      "bert.a.weight",         "cls.bias",
                                      "layoutlm.b.weight",     "wte.weight"};
  assert_found_as(names, 6, "bert.a.weight", "bert.a.weight");
  assert_found_as(names, 6, "a.weight", "bert.a.weight");
  assert_found_as(names, 6, "a.LayerNorm.weight", "bert.a.LayerNorm.gamma");
  assert_found_as(names, 6, "bert.a.LayerNorm.bias", "bert.a.LayerNorm.beta");
  assert_found_as(names, 6, "b.weight", "layoutlm.b.weight");
  assert_found_as(names, 6, "transformer.wte.weight", "wte.weight");
  assert_found_as(names, 6, "model.wte.bias", NULL);
  assert_found_as(names, 6, "classifier.weight", NULL);
}

/* transformers saves the bias of a tied decoder under the head's name. */
static void tied_decoder_bias_is_found_under_its_head(void **state) {
  (void)state;
  static const char *const names[] = {"cls.predictions.bias", "x.bias"};
  static const char *const both_names[] = {"lm_head.bias", "lm_head.decoder.bias"};
  assert_found_as(names, 2, "cls.predictions.decoder.bias", "cls.predictions.bias");
  assert_found_as(names, 2, "x.encoder.bias", NULL);
  assert_found_as(names, 2, "cls.predictions.decoder.weight", NULL);
  assert_found_as(both_names, 2, "lm_head.decoder.bias", "lm_head.decoder.bias");
}

static void ambiguous_tensor_name_is_refused(void **state) {
  (void)state;
  static const char *const names[] = {"bert.a", "model.a"};
  size_t at;
  clv_err err;
  assert_int_equal(clv_weights_find_name(names, 2, "a", "x", &at, &err), CLV_INVALID);
  assert_says(&err, "'bert.a' and 'model.a' could both be 'a'");
  assert_found_as(names, 2, "model.a", "model.a");
}

static void derived_and_new_names_are_recognized(void **state) {
  (void)state;
  static const char *const new_layers[] = {"classifier", "bert.pooler"};
  assert_true(clv_weights_is_derived("bert.embeddings.position_ids"));
  assert_true(clv_weights_is_derived("h.0.attn.bias"));
  assert_true(clv_weights_is_derived("h.0.attn.masked_bias"));
  assert_false(clv_weights_is_derived("h.0.attn.c_attn.bias"));
  assert_false(clv_weights_is_derived("other_position_ids"));
  assert_true(clv_weights_is_newly_initialised("classifier.weight", new_layers, 2));
  assert_true(clv_weights_is_newly_initialised("classifier", new_layers, 2));
  assert_false(clv_weights_is_newly_initialised("classifier2.weight", new_layers, 2));
  assert_false(clv_weights_is_newly_initialised("bert.weight", new_layers, 2));
}

/* ---- reading tensors of pretrained files ----------------------------------------------------- */

static void f16_and_bf16_numbers_become_f32(void **state) {
  (void)state;
  static const uint16_t f16_bits[6] = {0x3c00, 0xc000, 0x0001, 0x7bff, 0xfc00, 0x8000};
  static const uint16_t bf16_bits[3] = {0x3f80, 0xc000, 0x7f80};
  static const float f32_of_f16[6] = {1, -2, 0x1p-24f, 65504, -INFINITY, -0.0f};
  static const float f32_of_bf16[3] = {1, -2, INFINITY};
  clv_weights_tensor t[] = {{"h", CLV_F16, CLV_SHAPE(6), f16_bits},
                            {"b", CLV_BF16, CLV_SHAPE(1, 3), bf16_bits}};
  const char *path = make_folder("halves");
  CLV_AUTO(clv_weights_folder_closep) clv_weights_folder *f = NULL;
  float got[6];
  clv_err err;
  write_weights_file("halves/model.safetensors", t, 2);
  assert_ok(open_folder(path, &f, &err), &err);
  clv_weights_want want[] = {{"h", CLV_F32, CLV_SHAPE(6), false},
                             {"b", CLV_F32, CLV_SHAPE(3), false}};
  size_t found[2];
  assert_ok(clv_weights_folder_match_tensors(f, want, 2, NULL, 0, found, &err), &err);
  assert_ok(clv_weights_folder_read_tensor(f, found[0], &want[0], got, &err), &err);
  assert_memory_equal(got, f32_of_f16, sizeof f32_of_f16);
  assert_ok(clv_weights_folder_read_tensor(f, found[1], &want[1], got, &err), &err);
  assert_memory_equal(got, f32_of_bf16, sizeof f32_of_bf16);
  want[0].shape = CLV_SHAPE(2, 3);
  assert_int_equal(clv_weights_folder_check_tensor(f, found[0], &want[0], &err), CLV_INVALID);
  assert_says(&err, "expected f32 [2, 3], found F16 [6]");
}

#define TWO_FILES                                                                     \
  "{\"weight_map\":{\"bert.a.weight\":\"1.safetensors\",\"cls.x\":\"1.safetensors\"," \
  "\"bert.b.gamma\":\"2.safetensors\",\"position_ids\":\"2.safetensors\"}}"

static const char *make_two_files(const char *name) {
  char path[64];
  const char *folder = make_folder(name);
  clv_weights_tensor first_file[] = {{"bert.a.weight", CLV_F32, CLV_SHAPE(2, 2), numbers},
                                     {"cls.x", CLV_F32, CLV_SHAPE(1), numbers}};
  clv_weights_tensor second_file[] = {{"bert.b.gamma", CLV_F32, CLV_SHAPE(1, 1, 4), numbers},
                                      {"position_ids", CLV_F32, CLV_SHAPE(1), numbers}};
  snprintf(path, sizeof path, "%s/1.safetensors", name);
  write_weights_file(path, first_file, 2);
  snprintf(path, sizeof path, "%s/2.safetensors", name);
  write_weights_file(path, second_file, 2);
  snprintf(path, sizeof path, "%s/%s", name, CLV_INDEX_NAME);
  write_text_file(path, TWO_FILES);
  return folder;
}

/* Records the names of the files that were opened. */
static clv_code record_file_name(void *user, const char *name, int fd, clv_err *err) {
  (void)fd, (void)err;
  clv_bytes_printf(user, "%s ", name);
  return CLV_OK;
}

static void only_needed_files_are_opened(void **state) {
  (void)state;
  CLV_AUTO(clv_bytes_done) clv_bytes opened_files = {0}, left = {0};
  CLV_AUTO(clv_weights_folder_closep) clv_weights_folder *f = NULL;
  const clv_weights_want want[] = {{"b.weight", CLV_F32, CLV_SHAPE(4), false},
                                   {"head.weight", CLV_F32, CLV_SHAPE(4), false}};
  static const char *const fresh[] = {"head"};
  clv_weights_guard guard = {record_file_name, &opened_files};
  size_t found[2], n;
  float got[4];
  clv_err err;
  assert_ok(clv_weights_folder_open(make_two_files("two"), "FOLDER", guard, &f, &err), &err);
  assert_int_equal(clv_weights_folder_match_tensors(f, want, 2, NULL, 0, found, &err), CLV_INVALID);
  assert_says(&err, "FOLDER: 1 missing tensors: 'head.weight'");
  assert_ok(clv_weights_folder_match_tensors(f, want, 2, fresh, 1, found, &err), &err);
  assert_true(found[1] == CLV_WEIGHTS_NONE);
  assert_ok(clv_weights_folder_read_tensor(f, found[0], &want[0], got, &err), &err);
  assert_memory_equal(got, numbers, sizeof got);
  assert_string_equal(opened_files.data, "model.safetensors.index.json 2.safetensors ");
  assert_ok(clv_weights_folder_list_unmatched(f, want, 2, &left, &n, &err), &err);
  assert_int_equal(n, 2);
  assert_string_equal(left.data, "'bert.a.weight', 'cls.x'");
  assert_string_equal(clv_weights_folder_file_name(f, 0), CLV_INDEX_NAME);
  assert_string_equal(clv_weights_folder_file_name(f, 2), "2.safetensors");
  assert_null(clv_weights_folder_file_name(f, 3));
}

static clv_code read_first_tensor(const char *path, clv_err *err) {
  CLV_AUTO(clv_weights_folder_closep) clv_weights_folder *f = NULL;
  clv_weights_want want = {"bert.a.weight", CLV_F32, CLV_SHAPE(2, 2), false};
  size_t found;
  float got[4];
  CLV_TRY(open_folder(path, &f, err));
  CLV_TRY(clv_weights_folder_match_tensors(f, &want, 1, NULL, 0, &found, err));
  return clv_weights_folder_read_tensor(f, found, &want, got, err);
}

/* An index that contradicts its files is refused. */
static void index_unlike_its_files_is_refused(void **state) {
  (void)state;
  static const char *const says[][2] = {
      {"{\"weight_map\":{\"bert.a.weight\":\"1.safetensors\"}}",
       "has tensor 'cls.x', which the index does not list"},
      {"{\"weight_map\":{\"bert.a.weight\":\"1.safetensors\",\"cls.x\":\"2.safetensors\"}}",
       "has tensor 'cls.x', which the index does not list for this file"},
      {"{\"weight_map\":{\"bert.a.weight\":\"1.safetensors\",\"cls.x\":\"1.safetensors\","
       "\"cls.y\":\"1.safetensors\"}}",
       "has no tensor 'cls.y'"},
      {"{\"weight_map\":{\"bert.a.weight\":\"2.safetensors\"}}", "has no tensor 'bert.a.weight'"},
      {"{\"weight_map\":{\"bert.a.weight\":\"3.safetensors\"}}", "FOLDER/3.safetensors"}};
  (void)make_two_files("lie");
  clv_err err;
  assert_ok(read_first_tensor(at("lie"), &err), &err);
  for (size_t i = 0; i < CLV_COUNT(says); i++) {
    write_text_file("lie/" CLV_INDEX_NAME, says[i][0]);
    assert_int_not_equal(read_first_tensor(at("lie"), &err), CLV_OK);
    assert_says(&err, says[i][1]);
  }
}

static void one_tensor_for_two_parameters_is_refused(void **state) {
  (void)state;
  CLV_AUTO(clv_weights_folder_closep) clv_weights_folder *f = NULL;
  const clv_weights_want want[] = {{"a.weight", CLV_F32, CLV_SHAPE(2, 2), false},
                                   {"bert.a.weight", CLV_F32, CLV_SHAPE(2, 2), false}};
  size_t found[2];
  clv_err err;
  assert_ok(open_folder(make_two_files("twice"), &f, &err), &err);
  assert_int_equal(clv_weights_folder_match_tensors(f, want, 2, NULL, 0, found, &err), CLV_INVALID);
  assert_says(&err, "'a.weight' and 'bert.a.weight' would both be 'bert.a.weight'");
}

static void file_changed_while_open_is_refused(void **state) {
  (void)state;
  CLV_AUTO(clv_weights_folder_closep) clv_weights_folder *f = NULL;
  const clv_weights_want want = {"a.weight", CLV_F32, CLV_SHAPE(2, 2), false};
  size_t found;
  float got[4];
  clv_err err;
  assert_ok(open_folder(make_two_files("changed"), &f, &err), &err);
  assert_ok(clv_weights_folder_match_tensors(f, &want, 1, NULL, 0, &found, &err), &err);
  assert_ok(clv_weights_folder_read_tensor(f, found, &want, got, &err), &err);
  struct timespec long_ago[2] = {{1000, 0}, {1000, 0}};
  assert_int_equal(utimensat(AT_FDCWD, at("changed/1.safetensors"), long_ago, 0), 0);
  assert_int_equal(clv_weights_folder_read_tensor(f, found, &want, got, &err), CLV_DATA_LOSS);
  assert_says(&err, "was changed while it was read");
}

static void links_and_invalid_folders_are_refused(void **state) {
  (void)state;
  assert_refused(make_folder("empty"), CLV_NOT_FOUND,
                 "has neither model.safetensors nor model.safetensors.i");
  assert_refused(at("nowhere"), CLV_NOT_FOUND, "FOLDER: No such file");
  write_text_file("plain", "x");
  assert_refused(at("plain"), CLV_DATA_LOSS, "FOLDER: truncated");
  make_folder("linked");
  assert_int_equal(symlink("/etc/passwd", at("linked/model.safetensors")), 0);
  assert_refused(at("linked"), CLV_INVALID, "is a symbolic link");
  make_folder("deep");
  assert_int_equal(mkdir(at("deep/model.safetensors"), 0755), 0);
  assert_refused(at("deep"), CLV_INVALID, "not a regular file");
  make_folder("overlap");
  CLV_AUTO(clv_bytes_done)
  clv_bytes b = make_raw_file(
      "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},"
      "\"b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[2,6]}}",
      6);
  write_scratch_file("overlap/model.safetensors", b.data, b.len);
  assert_refused(at("overlap"), CLV_DATA_LOSS,
                 "tensor 'b' begins at 2, the one before it ends at 4");
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(hostile_indexes_are_refused),
                                     cmocka_unit_test(index_with_too_many_tensors_is_refused),
                                     cmocka_unit_test(renamed_tensors_are_found),
                                     cmocka_unit_test(tied_decoder_bias_is_found_under_its_head),
                                     cmocka_unit_test(ambiguous_tensor_name_is_refused),
                                     cmocka_unit_test(derived_and_new_names_are_recognized),
                                     cmocka_unit_test(f16_and_bf16_numbers_become_f32),
                                     cmocka_unit_test(only_needed_files_are_opened),
                                     cmocka_unit_test(index_unlike_its_files_is_refused),
                                     cmocka_unit_test(one_tensor_for_two_parameters_is_refused),
                                     cmocka_unit_test(file_changed_while_open_is_refused),
                                     cmocka_unit_test(links_and_invalid_folders_are_refused)};
  return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}
