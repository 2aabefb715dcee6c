/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests how pages become windows of tokens with boxes, lengths and labels. Classes are sorted, or
 * in the order of the session. An error in a line has its position.
 */
#include <sys/stat.h>

#include "master/data/page_int.h"
#include "tests/unit/data/data_test.h"
#include "tests/unit/must.h"

static const char vocabulary[] = "[PAD]\n[UNK]\n[CLS]\n[SEP]\na\n##b\nb\nc\n";
static const char *const names[] = {"ids", "boxes", "lengths"};

static clv_dataset_options make_options(const char *path) {
  return (clv_dataset_options){
      .format = CLV_FORMAT_DOCUMENTS,
      .inputs_path = path,
      .n_named_inputs = 3,
      .names = names,
      .text = {.max_tokens = 6,
               .tokenizer = write_scratch_file("vocab.txt", vocabulary, sizeof vocabulary - 1)},
      .pages = {.stride = 1}};
}

static clv_dataset_options make_options_of_text(const char *name, const char *text) {
  return make_options(write_scratch_file(name, text, strlen(text)));
}

static clv_dataset *open_pages(const clv_dataset_options *o) {
  clv_dataset *ds = NULL;
  clv_err err;
  must(clv_dataset_open(o, &ds, &err), &err);
  return ds;
}

/* A page of the words ab, b, c, ab, which becomes two windows: the second one begins with the last
 * token of the first, c. Then a page of one word. */
static const char two_pages[] =
    "{\"file\": \"x.pdf\", \"page\": 1, \"words\": [\"ab\", \"b\", \"c\", \"ab\"], \"label\": "
    "\"k\","
    " \"boxes\": [[1,2,3,4],[5,6,7,8],[9,9,9,9],[0,0,1000,1000]],"
    " \"labels\": [\"name\", \"other\", null, \"date\"]}\n\n"
    "{\"labels\": [\"other\"], \"boxes\": [[2,2,2,2]], \"words\": [\"c\"], \"label\": 7}\n";

static void read_all_windows(const clv_dataset *ds, clv_tensor *x[3], clv_tensor **y, size_t n) {
  static const uint32_t index[] = {0, 1, 2};
  clv_err err;
  clv_shape y_shape = clv_dataset_y_shape(ds, n);
  for (size_t k = 0; k < 3; k++) {
    clv_data_input in = clv_dataset_input(ds, k, n);
    assert_int_equal(in.dtype, CLV_I64);
    must(clv_tensor_new(in.dtype, &in.shape, &x[k], &err), &err);
  }
  must(clv_tensor_new(CLV_I64, &y_shape, y, &err), &err);
  must(clv_batch_fill_inputs(ds, NULL, index, n, x, *y, &err), &err);
}

static void word_label_is_on_its_first_token(void **state) {
  (void)state;
  static const int64_t ids[] = {2, 4, 5, 6, 7, 3, 2, 7, 4, 5, 3, 0, 2, 7, 3, 0, 0, 0},
                       lengths[] = {6, 5, 3},
                       labels[] = {-100, 1,    -100, 2,    -100, -100, -100, -100, 0,
                                   -100, -100, -100, -100, 2,    -100, -100, -100, -100},
                       first_boxes[] = {0, 0, 0, 0, 1, 2, 3, 4, 1, 2, 3, 4};
  clv_dataset_options o = make_options_of_text("a.jsonl", two_pages);
  CLV_AUTO(clv_dataset_freep) clv_dataset *ds = open_pages(&o);
  CLV_AUTO(clv_tensor_unrefp)
  clv_tensor *ids_of = NULL, *boxes = NULL, *lengths_of = NULL, *y = NULL;
  clv_tensor *x[3];
  assert_int_equal(clv_dataset_count(ds), 3);
  assert_int_equal(clv_dataset_class_count(ds), 3);
  assert_string_equal(clv_dataset_class_name(ds, 0), "date");
  assert_string_equal(clv_dataset_class_name(ds, 1), "name");
  assert_string_equal(clv_dataset_class_name(ds, 2), "other");
  read_all_windows(ds, x, &y, 3);
  ids_of = x[0];
  boxes = x[1];
  lengths_of = x[2];
  assert_memory_equal(ids_of->data, ids, sizeof ids);
  assert_memory_equal(lengths_of->data, lengths, sizeof lengths);
  assert_memory_equal(boxes->data, first_boxes, sizeof first_boxes);
  assert_int_equal(((int64_t *)boxes->data)[4 * 5 + 2], 1000);
  assert_memory_equal(y->data, labels, sizeof labels);
  clv_page_counts n = clv_dataset_page_counts(ds);
  assert_int_equal(n.n_pages, 2);
  assert_int_equal(n.n_words, 5);
  assert_int_equal(n.n_windows, 3);
  assert_int_equal(n.n_long_pages, 1);
  assert_int_equal(clv_dataset_vocab_size(ds), 8);
}

static void per_page_label_applies_to_each_window(void **state) {
  (void)state;
  clv_dataset_options o = make_options_of_text("b.jsonl", two_pages);
  static const int64_t want[] = {1, 1, 0};
  clv_tensor *x[3];
  CLV_AUTO(clv_tensor_unrefp) clv_tensor *y = NULL;
  o.pages.has_label_per_page = true;
  CLV_AUTO(clv_dataset_freep) clv_dataset *ds = open_pages(&o);
  assert_string_equal(clv_dataset_class_name(ds, 0), "7");
  assert_string_equal(clv_dataset_class_name(ds, 1), "k");
  read_all_windows(ds, x, &y, 3);
  assert_memory_equal(y->data, want, sizeof want);
  for (size_t k = 0; k < 3; k++) clv_tensor_unref(x[k]);
}

static void configured_label_order_sets_class_numbers(void **state) {
  (void)state;
  static const char *const label_order[] = {"other", "name", "date", "more"},
                           *const equal_labels[] = {"a", "a"};
  clv_dataset_options o = make_options_of_text("c.jsonl", two_pages);
  clv_dataset *none = NULL;
  clv_err err;
  o.pages.labels = label_order;
  o.pages.n_labels = 4;
  CLV_AUTO(clv_dataset_freep) clv_dataset *ds = open_pages(&o);
  assert_int_equal(clv_dataset_class_count(ds), 4);
  assert_string_equal(clv_dataset_class_name(ds, 0), "other");
  assert_string_equal(clv_dataset_class_name(ds, 3), "more");
  o.pages.n_labels = 2;
  expect_error(CLV_INVALID, "c.jsonl:1: the class 'date' is not in data.documents.labels",
               clv_dataset_open(&o, &none, &err), &err);
  o.pages.labels = equal_labels;
  expect_error(CLV_INVALID, "has 'a' twice", clv_dataset_open(&o, &none, &err), &err);
}

static void windows_without_labels_are_left_out(void **state) {
  (void)state;
  static const char lines[] =
      "{\"words\": [\"a\"], \"boxes\": [[0,0,1,1]], \"labels\": [null]}\n"
      "{\"words\": [\"\", \"a\"], \"boxes\": [[0,0,1,1],[0,0,1,1]], \"labels\": [\"x\", \"y\"]}\n"
      "{\"words\": [], \"boxes\": [], \"labels\": []}\n";
  clv_dataset_options o = make_options_of_text("d.jsonl", lines);
  CLV_AUTO(clv_dataset_freep) clv_dataset *ds = open_pages(&o);
  assert_int_equal(clv_dataset_count(ds), 1);
  assert_int_equal(clv_dataset_page_counts(ds).n_unlabelled_windows, 2);
  assert_int_equal(clv_dataset_page_counts(ds).n_words_without_tokens, 1);
  o.skips_labels = true;
  CLV_AUTO(clv_dataset_freep) clv_dataset *all = open_pages(&o);
  assert_int_equal(clv_dataset_count(all), 3);
  assert_false(clv_dataset_has_labels(all));
}

/* Without labels, the dataset has the windows of both pages, and keeps for each position the word
 * from which its token was made. */
static void unlabelled_dataset_keeps_pages_for_prediction(void **state) {
  (void)state;
  enum { NO = CLV_LABEL_IGNORED };
  static const int32_t word_indices[3][6] = {
      {NO, 0, NO, 1, NO, NO}, {NO, 2, 3, NO, NO, NO}, {NO, 0, NO, NO, NO, NO}};
  clv_dataset_options o = make_options_of_text("k.jsonl", two_pages);
  CLV_AUTO(clv_dataset_freep) clv_dataset *labelled = open_pages(&o);
  assert_int_equal(clv_dataset_kept_page_count(labelled), 0);
  o.skips_labels = true;
  CLV_AUTO(clv_dataset_freep) clv_dataset *ds = open_pages(&o);
  assert_int_equal(clv_dataset_kept_page_count(ds), 2);
  const clv_kept_page *p = clv_dataset_kept_page(ds, 0), *q = clv_dataset_kept_page(ds, 1);
  assert_string_equal(p->other_json_members, "\"file\": \"x.pdf\",\"page\": 1");
  assert_string_equal(q->other_json_members, "");
  assert_int_equal(p->n, 4);
  assert_string_equal(p->words[3].text, "ab");
  assert_int_equal(p->words[1].y1, 8);
  assert_true(p->first_record == 0 && p->n_records == 2 && q->first_record == 2 &&
              q->n_records == 1);
  for (size_t i = 0, n; i < 3; i++) {
    const int32_t *found_indices = clv_dataset_token_word_indices(ds, i, &n);
    assert_int_equal(n, 6);
    assert_memory_equal(found_indices, word_indices[i], sizeof word_indices[i]);
  }
}

static void only_requested_inputs_are_built(void **state) {
  (void)state;
  static const char *const two_inputs[] = {"lengths", "ids"}, *const unknown_inputs[] = {"ids",
                                                                                         "masks"};
  clv_dataset_options o = make_options_of_text("e.jsonl", two_pages);
  clv_dataset *none = NULL;
  clv_err err;
  o.n_named_inputs = 2;
  o.names = two_inputs;
  CLV_AUTO(clv_dataset_freep) clv_dataset *ds = open_pages(&o);
  assert_int_equal(clv_dataset_input_count(ds), 2);
  assert_int_equal(clv_dataset_input(ds, 0, 1).shape.rank, 1);
  assert_int_equal(clv_dataset_input(ds, 1, 1).shape.rank, 2);
  o.names = unknown_inputs;
  expect_error(CLV_INVALID, "no input 'masks'", clv_dataset_open(&o, &none, &err), &err);
}

static void folder_reads_every_jsonl_and_counts_other_files(void **state) {
  (void)state;
  char folder[512];
  snprintf(folder, sizeof folder, "%s", at("pages"));
  assert_int_equal(mkdir(folder, 0700), 0);
  write_scratch_file("pages/1.jsonl", two_pages, sizeof two_pages - 1);
  write_gzip_file("pages/2.jsonl.gz", two_pages, sizeof two_pages - 1);
  write_scratch_file("pages/README", "x", 1);
  clv_dataset_options o = make_options(folder);
  CLV_AUTO(clv_dataset_freep) clv_dataset *ds = open_pages(&o);
  assert_int_equal(clv_dataset_count(ds), 6);
  assert_int_equal(clv_dataset_page_counts(ds).n_stray_files, 1);
}

static void assert_refused(const char *text, const char *says) {
  clv_dataset_options o = make_options_of_text("r.jsonl", text);
  clv_dataset *ds = NULL;
  clv_err err = {0};
  expect_error(CLV_INVALID, says, clv_dataset_open(&o, &ds, &err), &err);
  assert_null(ds);
}

#define JSON_WORDS "{\"words\": [\"a\", \"b\"], "
#define JSON_BOXES "\"boxes\": [[0,0,1,1], [0,0,2,2]]"

static void invalid_page_error_gives_line_and_column(void **state) {
  (void)state;
  assert_refused("", "r.jsonl: has no page");
  assert_refused("\n" JSON_WORDS "\"boxes\": [[0,0,1,1], [0,0,1001,1]], \"labels\": []}",
                 "r.jsonl:2:49: 1001 is no whole number from 0 to 1000");
  assert_refused(JSON_WORDS "\"boxes\": [[0,0,1,1], [0,5,1,1]]",
                 "r.jsonl:1:44: this box ends before it begins");
  assert_refused(JSON_WORDS "\"boxes\": [[0,0,1]",
                 "r.jsonl:1:33: a box has four numbers, and this one 3");
  assert_refused(JSON_WORDS "\"boxes\": [[0,0,1,1,1]", "a box has four numbers, and this one more");
  assert_refused(JSON_WORDS "\"boxes\": [[0,0,1,1]], \"labels\": [\"x\",\"y\"]}",
                 "r.jsonl:1: has 2 words and 1 boxes");
  assert_refused(JSON_WORDS JSON_BOXES "}", "r.jsonl:1: has no 'labels'");
  assert_refused(JSON_WORDS "\"labels\": [null, null]}", "r.jsonl:1: has no 'boxes'");
  assert_refused(JSON_WORDS JSON_BOXES ", \"labels\": [\"x\"]}",
                 "r.jsonl:1: has 2 words and 1 labels");
  assert_refused(JSON_WORDS JSON_BOXES ", \"labels\": [\"x\", -3]}",
                 "-3 is no whole number from 0 to 2147483647");
  assert_refused("{\"text\": \"a\", \"box\": []}", "r.jsonl:1: has no 'words', but 'text', 'box'");
  assert_refused(JSON_WORDS JSON_BOXES ", \"labels\": [\"x\", \"a/b\"]}",
                 "r.jsonl:1: a class's name has 1 to 255");
  assert_refused(JSON_WORDS JSON_BOXES ", " JSON_BOXES "}", "r.jsonl:1:");
  assert_refused("[1]", "r.jsonl:1:1: ");
  assert_refused("{\"words\": [\"a\\u0000\"]}", "r.jsonl:1:12: a text without NUL is expected");
}

/* Numbers as labels become names of classes, as for texts. A byte order mark is not part of the
 * first line. */
static void numeric_labels_become_class_names(void **state) {
  (void)state;
  clv_dataset_options o = make_options_of_text(
      "n.jsonl", "\xef\xbb\xbf" JSON_WORDS JSON_BOXES
                 ", \"labels\": [7, null]}\n" JSON_WORDS JSON_BOXES ", \"labels\": [\"x\", 12]}");
  CLV_AUTO(clv_dataset_freep) clv_dataset *ds = open_pages(&o);
  assert_int_equal(clv_dataset_class_count(ds), 3);
  assert_string_equal(clv_dataset_class_name(ds, 0), "12");
  assert_string_equal(clv_dataset_class_name(ds, 1), "7");
}

static void unsupported_document_files_are_refused(void **state) {
  (void)state;
  clv_dataset_options o = make_options(write_scratch_file("x.csv", "a,b\n", 4));
  clv_dataset *ds = NULL;
  clv_err err;
  expect_error(CLV_INVALID, "documents come as .jsonl", clv_dataset_open(&o, &ds, &err), &err);
  o = make_options(write_scratch_file("x.pdf", "%PDF-1.4\n", 9));
  expect_error(CLV_INVALID, "x.pdf: a file like this has no labels of words",
               clv_dataset_open(&o, &ds, &err), &err);
  o.pages.has_label_per_page = true;
  expect_error(CLV_INVALID, "x.pdf: has no label: it must be in a folder of its class",
               clv_dataset_open(&o, &ds, &err), &err);
  o.text.max_tokens = 2;
  expect_error(CLV_INVALID, "data.documents.max_tokens: 2 leaves no room",
               clv_dataset_open(&o, &ds, &err), &err);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(word_label_is_on_its_first_token),
      cmocka_unit_test(per_page_label_applies_to_each_window),
      cmocka_unit_test(configured_label_order_sets_class_numbers),
      cmocka_unit_test(windows_without_labels_are_left_out),
      cmocka_unit_test(unlabelled_dataset_keeps_pages_for_prediction),
      cmocka_unit_test(only_requested_inputs_are_built),
      cmocka_unit_test(folder_reads_every_jsonl_and_counts_other_files),
      cmocka_unit_test(invalid_page_error_gives_line_and_column),
      cmocka_unit_test(unsupported_document_files_are_refused),
      cmocka_unit_test(numeric_labels_become_class_names),
  };
  return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}
