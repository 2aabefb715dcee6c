/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests tables of texts: CSV and JSON lines give the same rows of tokens and the same classes, and
 * an error in them has its position.
 */
#include <sys/resource.h>

#include "master/data/text_int.h"
#include "tests/unit/data/data_test.h"
#include "tests/unit/must.h"

static const char vocabulary[] = "[PAD]\n[UNK]\n[CLS]\n[SEP]\na\n##b\nb\n,\n\"\n";

static clv_dataset_options make_options(const char *path) {
  return (clv_dataset_options){
      .format = CLV_FORMAT_TEXT,
      .inputs_path = path,
      .holds_tokens = true,
      .text = {.column = "text",
               .label = "label",
               .max_tokens = 6,
               .tokenizer = write_scratch_file("vocab.txt", vocabulary, sizeof vocabulary - 1)}};
}

static clv_dataset *open_table(const char *name, const char *text, bool is_gzipped) {
  const char *path = is_gzipped ? write_gzip_file(name, text, strlen(text))
                                : write_scratch_file(name, text, strlen(text));
  clv_dataset_options o = make_options(path);
  clv_dataset *ds = NULL;
  clv_err err;
  must(clv_dataset_open(&o, &ds, &err), &err);
  return ds;
}

static void assert_same_rows(clv_dataset *ds) {
  static const int64_t want[3][6] = {{2, 4, 5, 6, 3, 0}, {2, 4, 7, 8, 6, 3}, {2, 1, 3, 0, 0, 0}},
                       labels[] = {1, 0, 1};
  static const uint32_t index[] = {0, 1, 2};
  CLV_AUTO(clv_tensor_unrefp) clv_tensor *x = NULL, *y = NULL;
  clv_err err;
  clv_shape x_shape = clv_dataset_x_shape(ds, 3), y_shape = clv_dataset_y_shape(ds, 3);
  assert_int_equal(clv_dataset_count(ds), 3);
  assert_true(clv_shape_equal(&x_shape, &CLV_SHAPE(3, 6)));
  must(clv_tensor_new(CLV_I64, &x_shape, &x, &err), &err);
  must(clv_tensor_new(CLV_I64, &y_shape, &y, &err), &err);
  must(clv_batch_fill(ds, index, 3, x, y, &err), &err);
  assert_memory_equal(x->data, want, sizeof want);
  assert_memory_equal(y->data, labels, sizeof labels);
  assert_int_equal(clv_dataset_class_count(ds), 2);
  assert_string_equal(clv_dataset_class_name(ds, 0), "k");
  assert_string_equal(clv_dataset_class_name(ds, 1), "x y");
  assert_int_equal(clv_dataset_truncated_count(ds), 1);
  clv_dataset_free(ds);
}

static void csv_and_gzipped_csv_give_the_same_rows(void **state) {
  (void)state;
  assert_same_rows(open_table(
      "a.csv", "label,more,text\r\nx y,1,ab b\r\n\r\nk,,\"a,\"\"b\nb a a a\"\r\nx y,,z", false));
  assert_same_rows(
      open_table("a.csv.gz", "\xef\xbb\xbftext,label\nab b,x y\n\"a,\"\"b\nb\",k\nz,x y\n", true));
}

static void jsonl_gives_the_same_rows_as_csv(void **state) {
  (void)state;
  assert_same_rows(open_table(
      "a.jsonl",
      "{\"text\": [\"ab\", \"b\"], \"label\": \"x y\", \"n\": [1]}\n\n"
      "{\"label\": \"k\", \"text\": \"a,\\\"b\\nb\"}\r\n{\"text\": \"z\", \"label\": \"x y\"}",
      false));
}

static void end_and_pad_token_options_are_applied(void **state) {
  (void)state;
  clv_dataset_options o = make_options(write_scratch_file("b.csv", "text,label\na,k\n", 15));
  CLV_AUTO(clv_text_rows_done) clv_text_rows r = {0};
  clv_err err = {0};
  o.text.omits_first_and_last = true;
  o.text.pad = "b";
  must(clv_text_rows_open(&r, &o, &err), &err);
  assert_int_equal(clv_text_rows_capacity(&r), 6);
  must(clv_text_rows_add(&r, (int32_t[]){4}, 1, &err), &err);
  assert_memory_equal(r.at, ((int32_t[]){4, 6, 6, 6, 6, 6}), 24);
  clv_text_rows_done(&r);
  o.text.omits_first_and_last = false;
  o.text.max_tokens = 2;
  expect_error(CLV_INVALID, "max_tokens: 2 leaves no room", clv_text_rows_open(&r, &o, &err), &err);
  clv_text_rows_done(&r);
  o.text.last = "[END]";
  expect_error(CLV_INVALID, "data.tokenizer.last: ", clv_text_rows_open(&r, &o, &err), &err);
  clv_text_rows_done(&r);
  o.text.tokenizer = "tests/golden/tokens/gpt2.json";
  o.text.last = o.text.pad = NULL;
  expect_error(CLV_INVALID, "data.tokenizer.pad: name the token", clv_text_rows_open(&r, &o, &err),
               &err);
}

/* Writes a tokenizer.json of the fuzzer's corpus, which ends in a NUL there. */
static const char *write_tokenizer_json(const char *name) {
  CLV_AUTO(clv_bytes_done) clv_bytes file = {0};
  char path[80];
  clv_err err;
  snprintf(path, sizeof path, "tests/fuzz/corpus/tokenizer/%s", name);
  must(clv_file_read(path, 1 << 20, &file, &err), &err);
  return write_scratch_file("tokenizer.json", file.data, strlen(file.data));
}

static void tokenizer_file_sets_ends_pad_and_truncation(void **state) {
  clv_dataset_options o = make_options("none.csv");
  CLV_AUTO(clv_text_rows_done) clv_text_rows r = {0};
  clv_err err = {0};
  (void)state;
  o.text.tokenizer = write_tokenizer_json("roberta_ends");
  o.text.pad = "ab";
  for (int i = 0; i < 3; i++) {
    o.text.omits_first_and_last = i == 1;
    o.text.last = i == 2 ? "ab" : NULL;
    must(clv_text_rows_open(&r, &o, &err), &err);
    assert_int_equal(r.first, i == 1 ? -1 : 256);
    assert_int_equal(r.last, i == 0 ? 258 : i == 1 ? -1 : 257);
    clv_text_rows_done(&r);
  }
  o.text.last = o.text.pad = NULL;
  o.text.tokenizer = write_tokenizer_json("filled");
  must(clv_text_rows_open(&r, &o, &err), &err);
  assert_int_equal(r.pad, 257);
  clv_text_rows_done(&r);
  o.text.pad = "ab";
  o.text.tokenizer = write_tokenizer_json("cut");
  expect_error(CLV_INVALID, "cuts texts at 5 tokens (truncation.max_length), and rows have 6: give",
               clv_text_rows_open(&r, &o, &err), &err);
  clv_text_rows_done(&r);
  o.text.max_tokens = 5;
  must(clv_text_rows_open(&r, &o, &err), &err);
}

static void assert_refused(const char *name, const char *text, const char *says) {
  clv_dataset_options o = make_options(write_scratch_file(name, text, strlen(text)));
  clv_dataset *ds = NULL;
  clv_err err = {0};
  expect_error(CLV_INVALID, says, clv_dataset_open(&o, &ds, &err), &err);
  assert_null(ds);
}

/* A quote without an end makes one record of all lines after it. `skip` must not leave out that
 * record, because the lines would be lost. */
static void unterminated_quotes_are_never_skipped(void **state) {
  (void)state;
  static const char text[] = "text,label\na,k\n\"b,k\na,k\na,k\n";
  clv_dataset_options o = make_options(write_scratch_file("q.csv", text, strlen(text)));
  clv_dataset *ds = NULL;
  clv_err err = {0};
  o.skips_broken = true;
  expect_error(CLV_INVALID, "q.csv:3:1: these quotes have no end", clv_dataset_open(&o, &ds, &err),
               &err);
}

static void invalid_table_error_gives_line_and_column(void **state) {
  (void)state;
  assert_refused("e.csv", "", "e.csv:1:1: no header");
  assert_refused("h.csv", "text,label\n", "h.csv: no records");
  assert_refused("c.csv", "text,class\n", "c.csv:1:1: the header has no 'label'");
  assert_refused("t.csv", "text,label,text\n", "t.csv:1:1: the header has 'text' twice");
  assert_refused("q.csv", "text,label\nb,k\n\xc3\xa9,\"k\n", "q.csv:3:3: these quotes have no end");
  assert_refused("a.csv", "text,label\n\"a\"b,k\n",
                 "a.csv:2:4: a comma or the line's end is expected");
  assert_refused("f.csv", "text,label\na,k\nb\n",
                 "f.csv:3:1: this record has 1 field, the header has 2");
  assert_refused("m.csv", "text,label\na,k,c\n", "m.csv:2:1: this record has more than 2 fields");
  assert_refused("u.csv", "text,label\n\"a\nb\",k\na\xff,k\n", "u.csv:4: byte 1 is not UTF-8");
  assert_refused("l.csv", "text,label\na,\n", "l.csv:2: a class's name has 1 to 255 bytes");
  assert_refused("j.jsonl", "{\"text\": \"a\", \"label\": \"k\"}\n{\"text\": 1}\n",
                 "j.jsonl:2:10: a text is expected");
  assert_refused("k.jsonl", "{\"label\": \"k\"}\n",
                 "k.jsonl:1:1: has no 'text', but 'label': set data.text.column");
  assert_refused("n.jsonl", "{\"text\": \"k\"}\n", "n.jsonl:1:1: has no 'label', but 'text': set");
  assert_refused("o.csv", "id,comment,stars\n",
                 "no 'text', but 'id', 'comment', 'stars': set data.text.");
  assert_refused(
      "p.csv",
      "column_with_a_long_name_1,column_with_a_long_name_2,column_with_a_long_name_3,"
      "column_with_a_long_name_4,column_with_a_long_name_5,column_with_a_long_name_6,x,y\n",
      "column_with_a_long_name_6' and 2 more: set data.text.column");
  assert_refused("y.csv", "\n\r\nid,class\n",
                 "y.csv:3:1: the header has no 'text', but 'id', 'class'");
  assert_refused("z.csv", "text,label\n\n\r\n\nb\n", "z.csv:5:1: this record has 1 field,");
  assert_refused("z.jsonl", "\n \t\r\n  {\"text\": 1}\n", "z.jsonl:3:12: a text is expected");
  assert_refused("r.csv", "text,label\ra,k\rb,k\r", "r.csv:1: its lines end with CR alone");
  assert_refused("s.csv", "text,\"la\nbel\"\ra,k\r", "s.csv:1: its lines end with CR alone");
  assert_refused("r.jsonl",
                 "{\"text\": \"a\", \"label\": \"k\"}\r{\"text\": \"a\", \"label\": \"k\"}\r",
                 "tr '\\r' '\\n'");
  assert_refused("w.csv", "\xff\xfet\0e\0", "w.csv: its text is UTF-16, and UTF-8 is expected");
  assert_refused("x.tsv", "text\tlabel\n", "x.tsv: texts come as .csv or .jsonl");
}

/* A byte order mark is skipped at the start of a file, inside gzip, and at the start of a later
 * line, where two files were joined. */
static void byte_order_marks_are_skipped(void **state) {
  (void)state;
  static const char lines[] =
      "\xef\xbb\xbf{\"text\": [\"ab\", \"b\"], \"label\": \"x y\"}\n"
      "\xef\xbb\xbf{\"label\": \"k\", \"text\": \"a,\\\"b\\nb\"}\r\n"
      "{\"text\": \"z\", \"label\": \"x y\"}";
  assert_same_rows(open_table("m.jsonl", lines, false));
  assert_same_rows(open_table("m.jsonl.gz", lines, true));
  assert_same_rows(open_table(
      "m.csv", "\xef\xbb\xbf\"text\",label\nab b,x y\n\"a,\"\"b\nb\",k\nz,x y\n", false));
}

static void utf16_and_utf32_files_are_refused_by_name(void **state) {
  (void)state;
  static const char encoded_texts[][8] = {
      {'{', 0, '"', 0}, {0, '{', 0, '"'}, {(char)0xfe, (char)0xff, 0, 't'}};
  for (int i = 0; i < 3; i++) {
    clv_dataset_options o = make_options(write_scratch_file("w.jsonl", encoded_texts[i], 8));
    clv_dataset *ds = NULL;
    clv_err err = {0};
    expect_error(CLV_INVALID, "its text is UTF-16", clv_dataset_open(&o, &ds, &err), &err);
  }
  clv_dataset_options o = make_options(write_scratch_file("w.jsonl", "\xff\xfe\0\0{\0\0\0", 8));
  clv_dataset *ds = NULL;
  clv_err err = {0};
  expect_error(CLV_INVALID, "iconv -f UTF-32", clv_dataset_open(&o, &ds, &err), &err);
}

/* A file of 80 MiB of zeros, compressed by gzip, is one record. The reader refuses the record at
 * its limit of 16 MiB, and has then allocated less than 64 MiB. */
static void oversized_record_is_refused_in_bounded_memory(void **state) {
  (void)state;
  static const char *const names[] = {"bomb.jsonl.gz", "bomb.csv.gz"};
  for (int i = 0; i < 2; i++) {
    CLV_AUTO(clv_freep) char *zeros = calloc(1 << 20, 1);
    gzFile f = gzopen(at(names[i]), "wb1");
    assert_non_null(f);
    for (int k = 0; k < 80; k++) assert_int_equal(gzwrite(f, zeros, 1 << 20), 1 << 20);
    assert_int_equal(gzclose(f), Z_OK);
    clv_dataset_options o = make_options(at(names[i]));
    clv_dataset *ds = NULL;
    clv_err err = {0};
    struct rusage before, after;
    getrusage(RUSAGE_SELF, &before);
    expect_error(CLV_EXHAUSTED, ":1: this record has more than 16777216 bytes, the limit of one",
                 clv_dataset_open(&o, &ds, &err), &err);
    getrusage(RUSAGE_SELF, &after);
    if (!CLV_SANITIZED) assert_true(after.ru_maxrss - before.ru_maxrss < 64 << 10);
  }
}

/* Returns the processor time in seconds for reading a table whose body has `len` bytes. */
static double measure_parse_seconds(const char *body, size_t len, const char *name) {
  static const char header[] = "text,label,more\na,k,\n";
  CLV_AUTO(clv_bytes_done) clv_bytes all = {0};
  struct rusage before, after;
  clv_dataset *ds = NULL;
  clv_err err = {0};
  clv_bytes_puts(&all, header);
  clv_bytes_puts(&all, body[0] == '\n' || body[0] == '\r' ? "" : "b,k,");
  clv_bytes_add(&all, body, len);
  clv_bytes_puts(&all, "\nb,k,\n");
  clv_dataset_options o = make_options(write_scratch_file(name, all.data, all.len));
  getrusage(RUSAGE_SELF, &before);
  must(clv_dataset_open(&o, &ds, &err), &err);
  getrusage(RUSAGE_SELF, &after);
  assert_in_range(clv_dataset_count(ds), 2, 3);
  clv_dataset_free(ds);
  return (double)(after.ru_utime.tv_sec - before.ru_utime.tv_sec) +
         1e-6 * (double)(after.ru_utime.tv_usec - before.ru_utime.tv_usec);
}

/* Reading 12 MiB of empty lines takes less than three times as long as one field of 12 MiB in
 * quotes, which is read byte by byte. Making a record for each empty line would take thirty times
 * as long. */
static void empty_lines_parse_as_fast_as_one_long_field(void **state) {
  (void)state;
  static const char *const line_ends[] = {"\n\n", "\r\n"};
  enum { BODY_BYTES = 12 << 20 };
  CLV_AUTO(clv_freep) char *text = malloc(BODY_BYTES);
  assert_non_null(text);
  memset(text, 'a', BODY_BYTES);
  text[0] = text[BODY_BYTES - 1] = '"';
  double field_seconds = measure_parse_seconds(text, BODY_BYTES, "field.csv");
  for (int k = 0; k < 2; k++) {
    for (size_t i = 0; i < BODY_BYTES; i++) text[i] = line_ends[k][i % 2];
    assert_true(measure_parse_seconds(text, BODY_BYTES, "empty.csv") < 3 * field_seconds);
  }
}

static void texts_without_embedding_or_class_loss_are_refused(void **state) {
  (void)state;
  clv_dataset_options o = make_options(write_scratch_file("b.csv", "text,label\na,k\n", 15));
  clv_dataset *ds = NULL;
  clv_err err = {0};
  o.holds_tokens = false;
  expect_error(CLV_PRECONDITION, "the first layer must be an embedding",
               clv_dataset_open(&o, &ds, &err), &err);
  o.holds_tokens = true;
  o.labels = CLV_LABEL_FLOAT;
  expect_error(CLV_PRECONDITION, "the loss cross_entropy or nll", clv_dataset_open(&o, &ds, &err),
               &err);
  o.skips_labels = true;
  must(clv_dataset_open(&o, &ds, &err), &err);
  assert_false(clv_dataset_has_labels(ds));
  clv_dataset_free(ds);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(csv_and_gzipped_csv_give_the_same_rows),
      cmocka_unit_test(jsonl_gives_the_same_rows_as_csv),
      cmocka_unit_test(end_and_pad_token_options_are_applied),
      cmocka_unit_test(tokenizer_file_sets_ends_pad_and_truncation),
      cmocka_unit_test(invalid_table_error_gives_line_and_column),
      cmocka_unit_test(unterminated_quotes_are_never_skipped),
      cmocka_unit_test(byte_order_marks_are_skipped),
      cmocka_unit_test(utf16_and_utf32_files_are_refused_by_name),
      cmocka_unit_test(oversized_record_is_refused_in_bounded_memory),
      cmocka_unit_test(empty_lines_parse_as_fast_as_one_long_field),
      cmocka_unit_test(texts_without_embedding_or_class_loss_are_refused),
  };
  return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}
