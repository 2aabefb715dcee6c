/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests a column of texts in a table. The texts become the same tokens as texts of the format
 * `text`, and each text stays with the labels and the other inputs of its record.
 */
#include "master/data/dataset_int.h"
#include "tests/unit/data/data_test.h"
#include "tests/unit/must.h"

enum { MAX_RECORDS = 8, WIDTH = 6 };

static const char vocabulary[] = "[PAD]\n[UNK]\n[CLS]\n[SEP]\na\n##b\nb\n,\n\"\n";
static const char *const input_names[] = {"lengths", "ids"};
static const clv_column_options text_columns[] = {
    {.name = "text", .use = CLV_COLUMN_TEXT},
    {.name = "label", .use = CLV_COLUMN_TARGET},
};
static const char texts[] =
    "label,more,text\r\nx y,1,ab b\r\n\r\nk,,\"a,\"\"b\nb a a a\"\r\nx y,,z\r\nk,3, b \r\n";

static clv_dataset_options make_options(clv_data_format format, const char *name,
                                        const char *text) {
  return (clv_dataset_options){
      .format = format,
      .inputs_path = write_scratch_file(name, text, strlen(text)),
      .holds_tokens = true,
      .text = {.column = "text",
               .label = "label",
               .max_tokens = WIDTH,
               .tokenizer = write_scratch_file("vocab.txt", vocabulary, sizeof vocabulary - 1)},
      .table = {.columns = text_columns,
                .n_columns = CLV_COUNT(text_columns),
                .ignores_unlisted_columns = true}};
}

static clv_dataset *open_set(const clv_dataset_options *o) {
  clv_dataset *ds = NULL;
  clv_err err;
  must(clv_dataset_open(o, &ds, &err), &err);
  return ds;
}

static clv_learnt *learn(const clv_dataset *ds) {
  CLV_AUTO(clv_subset_done) clv_subset all = {0};
  clv_learnt *l = NULL;
  clv_err err;
  must(clv_subset_all(ds, &all, &err), &err);
  must(clv_dataset_learn(ds, &all, &l, &err), &err);
  return l;
}

static clv_dataset *open_table(const clv_dataset_options *o) {
  clv_dataset *ds = open_set(o);
  CLV_AUTO(clv_learnt_freep) clv_learnt *l = learn(ds);
  clv_err err;
  must(clv_dataset_encode(ds, l, &err), &err);
  return ds;
}

/* A batch of the first n records: all inputs, and the labels. */
typedef struct batch {
  clv_tensor *x[CLV_DATA_MAX_INPUTS], *y;
} batch;

static batch fill_batch(const clv_dataset *ds, size_t n) {
  static const uint32_t index[MAX_RECORDS] = {0, 1, 2, 3, 4, 5, 6, 7};
  batch b = {{NULL}, NULL};
  clv_err err;
  clv_shape y_shape = clv_dataset_y_shape(ds, n);
  for (size_t k = 0; k < clv_dataset_input_count(ds); k++) {
    clv_data_input in = clv_dataset_input(ds, k, n);
    must(clv_tensor_new(in.dtype, &in.shape, &b.x[k], &err), &err);
  }
  must(clv_tensor_new(clv_dataset_y_dtype(ds), &y_shape, &b.y, &err), &err);
  must(clv_batch_fill_inputs(ds, NULL, index, n, b.x, b.y, &err), &err);
  return b;
}

static void batch_done(batch *b) {
  for (size_t k = 0; k < CLV_DATA_MAX_INPUTS; k++) clv_tensor_unref(b->x[k]);
  clv_tensor_unref(b->y);
}

static void assert_same_tensors(const clv_tensor *a, const clv_tensor *b) {
  assert_int_equal(a->dtype, b->dtype);
  assert_true(clv_shape_equal(&a->shape, &b->shape));
  assert_memory_equal(a->data, b->data, a->bytes);
}

static void assert_same_batches(const clv_dataset *one, const clv_dataset *other) {
  size_t n = clv_dataset_count(one);
  assert_int_equal(clv_dataset_count(other), n);
  assert_int_equal(clv_dataset_input_count(one), clv_dataset_input_count(other));
  CLV_AUTO(batch_done) batch a = fill_batch(one, n), b = fill_batch(other, n);
  for (size_t k = 0; k < clv_dataset_input_count(one); k++) {
    assert_string_equal(clv_dataset_input(one, k, 1).name, clv_dataset_input(other, k, 1).name);
    assert_same_tensors(a.x[k], b.x[k]);
  }
  assert_same_tensors(a.y, b.y);
}

static void table_gives_the_batches_of_the_format_text(void **state) {
  (void)state;
  for (size_t i = 0; i < 3; i++) {
    clv_dataset_options o = make_options(CLV_FORMAT_TEXT, "a.csv", texts);
    o.n_named_inputs = i == 1 ? CLV_COUNT(input_names) : 0;
    o.holds_tokens = !o.n_named_inputs;
    o.names = input_names;
    if (i == 2) { /* this tokenizer keeps blanks at the ends of a text as tokens */
      o.text.tokenizer = "tests/golden/tokens/gpt2.json";
      o.text.pad = "!";
    }
    clv_dataset *text = open_set(&o);
    o.format = CLV_FORMAT_TABLE;
    clv_dataset *table = open_table(&o);
    assert_same_batches(text, table);
    assert_true(clv_dataset_truncated_count(table) > 0);
    assert_int_equal(clv_dataset_truncated_count(table), clv_dataset_truncated_count(text));
    assert_int_equal(clv_dataset_vocab_size(table), clv_dataset_vocab_size(text));
    for (size_t k = 0; k < 2; k++)
      assert_string_equal(clv_dataset_class_name(table, k), clv_dataset_class_name(text, k));
    clv_dataset_free(text);
    clv_dataset_free(table);
  }
}

/* Returns the token of a record that follows [CLS]. */
static int64_t first_token(const clv_dataset *ds, size_t record) {
  CLV_AUTO(batch_done) batch b = fill_batch(ds, record + 1);
  return ((const int64_t *)b.x[0]->data)[record * WIDTH + 1];
}

static void texts_stay_beside_their_labels(void **state) {
  (void)state;
  static const uint32_t kept[] = {1, 2};
  clv_err err;
  clv_dataset_options o =
      make_options(CLV_FORMAT_TABLE, "a.csv", "text,label\na a a a a a,k\nb,\nb,k\n\"\"\"\",k\n");
  o.skips_broken = true;
  clv_dataset *ds = open_table(&o);
  assert_int_equal(clv_dataset_count(ds), 3);
  assert_int_equal(clv_dataset_broken_records(ds)->n, 1);
  assert_int_equal(first_token(ds, 1), 6);
  assert_int_equal(first_token(ds, 2), 8);
  clv_dataset_free(ds);
  ds = open_set(&o);
  must(clv_dataset_keep_records(ds, &(clv_subset){(uint32_t *)(uintptr_t)kept, 2}, &err), &err);
  CLV_AUTO(clv_learnt_freep) clv_learnt *l = learn(ds);
  must(clv_dataset_encode(ds, l, &err), &err);
  assert_int_equal(clv_dataset_count(ds), 2);
  assert_int_equal(first_token(ds, 0), 6);
  assert_int_equal(first_token(ds, 1), 8);
  assert_int_equal(clv_dataset_truncated_count(ds), 0);
  clv_dataset_free(ds);
  o.limit = 2;
  ds = open_table(&o);
  assert_int_equal(clv_dataset_count(ds), 2);
  clv_dataset_free(ds);
}

static void assert_refused(clv_dataset_options o, clv_code want, const char *text) {
  clv_dataset *ds = NULL;
  clv_err err;
  clv_code code = clv_dataset_open(&o, &ds, &err);
  expect_error(want, text, code, &err);
}

static void missing_texts_are_refused_or_replaced(void **state) {
  (void)state;
  static const char lines[] =
      "{\"text\": \"b\", \"label\": \"k\"}\n{\"label\": \"k\"}\n{\"text\": null, \"label\": "
      "\"m\"}\n";
  clv_err err;
  clv_dataset_options o = make_options(CLV_FORMAT_TABLE, "a.jsonl", lines);
  assert_refused(o, CLV_INVALID, "a.jsonl:2:1: column 'text' has no text here: give it one");
  clv_column_options columns[] = {text_columns[0], text_columns[1]};
  columns[0].missing = CLV_MISSING_VALUE;
  columns[0].value = "a";
  o.table.columns = columns;
  clv_dataset *ds = open_table(&o);
  assert_int_equal(first_token(ds, 0), 6);
  assert_int_equal(first_token(ds, 1), 4);
  assert_int_equal(first_token(ds, 2), 4);
  CLV_AUTO(clv_learnt_freep) clv_learnt *l = learn(ds), *read = NULL;
  CLV_AUTO(clv_bytes_done) clv_bytes text = {0};
  clv_dataset_free(ds);
  must(clv_learnt_write(l, &text, &err), &err);
  must(clv_learnt_parse(text.data, text.len, "table.json", &read, &err), &err);
  ds = open_set(&o);
  must(clv_dataset_encode(ds, read, &err), &err);
  clv_dataset_free(ds);
  columns[0].value = "";
  ds = open_set(&o);
  clv_code code = clv_dataset_encode(ds, read, &err);
  expect_error(CLV_DATA_LOSS, "column 'text' is not read as the run's training read it", code,
               &err);
  clv_dataset_free(ds);
}

/* Sessions refuse these columns earlier, with their line. */
static void second_text_and_image_beside_a_text_are_refused(void **state) {
  (void)state;
  clv_column_options columns[] = {{.name = "text", .use = CLV_COLUMN_TEXT},
                                  {.name = "label", .use = CLV_COLUMN_TARGET},
                                  {.name = "scan", .use = CLV_COLUMN_FILE}};
  clv_dataset_options o =
      make_options(CLV_FORMAT_TABLE, "a.csv", "scan,text,label\n1,a,k\n3,b,m\n");
  o.table.columns = columns;
  o.table.n_columns = CLV_COUNT(columns);
  assert_refused(o, CLV_PRECONDITION,
                 "a.csv: column 'text' has texts and column 'scan' images; a record has one");
  columns[2].use = CLV_COLUMN_TEXT;
  assert_refused(o, CLV_PRECONDITION,
                 "a.csv: columns 'text' and 'scan' have texts, the limit is 1");
}

static void text_is_an_input_beside_others(void **state) {
  (void)state;
  static const char *const names[] = {"input", "site", "ids"};
  static const clv_column_options columns[] = {{.name = "text", .use = CLV_COLUMN_TEXT},
                                               {.name = "label", .use = CLV_COLUMN_TARGET},
                                               {.name = "age"},
                                               {.name = "site", .use = CLV_COLUMN_INDEX}};
  clv_dataset_options o = make_options(CLV_FORMAT_TABLE, "a.csv",
                                       "age,text,site,label\n1,a,p,k\n3,b,q,k\n5,\"\"\"\",p,m\n");
  o.table.columns = columns;
  o.table.n_columns = CLV_COUNT(columns);
  assert_refused(o, CLV_PRECONDITION, "has texts beside other inputs; name the input 'ids'");
  o.holds_tokens = false;
  o.names = &input_names[1];
  o.n_named_inputs = 1;
  clv_dataset *ds = open_table(&o);
  assert_int_equal(clv_dataset_input_count(ds), CLV_COUNT(names));
  for (size_t k = 0; k < CLV_COUNT(names); k++)
    assert_string_equal(clv_dataset_input(ds, k, 1).name, names[k]);
  CLV_AUTO(batch_done) batch b = fill_batch(ds, 3);
  const int64_t *site = b.x[1]->data, *ids = b.x[2]->data;
  assert_true(site[0] == 0 && site[1] == 1 && site[2] == 0);
  assert_true(ids[1] == 4 && ids[WIDTH + 1] == 6 && ids[2 * WIDTH + 1] == 8);
  clv_dataset_free(ds);
}

static void facts_of_a_text_count_its_tokens(void **state) {
  (void)state;
  CLV_AUTO(clv_subset_done) clv_subset rows = {0};
  clv_column_facts f;
  clv_err err;
  clv_column_options columns[] = {text_columns[0], text_columns[1]};
  clv_dataset_options o = make_options(CLV_FORMAT_TABLE, "a.csv",
                                       "text,label\na b,k\na b,k\nNA,k\na a a a a a,k\nb,m\n");
  columns[0].missing = CLV_MISSING_VALUE;
  columns[0].value = "";
  o.table.columns = columns;
  clv_dataset *ds = open_table(&o);
  must(clv_subset_all(ds, &rows, &err), &err);
  must(clv_dataset_column_facts(ds, &rows, 0, &f, &err), &err);
  assert_true(f.n_missing == 1 && f.n_distinct == 3 && f.low == 3 && f.high == WIDTH);
  assert_int_equal(f.suspicion, CLV_COLUMN_IS_FINE);
  clv_dataset_free(ds);
}

static void wrong_texts_are_located(void **state) {
  (void)state;
  assert_refused(make_options(CLV_FORMAT_TABLE, "a.csv", "text,label\na,k\n\xe4,k\n"), CLV_INVALID,
                 "a.csv:3:1: column 'text' has '?', which is not UTF-8");
  assert_refused(
      make_options(CLV_FORMAT_TABLE, "a.jsonl", "{\"text\": [\"a\"], \"label\": \"k\"}\n"),
      CLV_INVALID, "a.jsonl:1:10: column 'text' has a list");
  clv_dataset_options o = make_options(CLV_FORMAT_TABLE, "a.csv", texts);
  o.holds_tokens = false;
  assert_refused(o, CLV_PRECONDITION, "the first layer must be an embedding");
  o.holds_tokens = true;
  o.text.max_tokens = 2;
  assert_refused(o, CLV_INVALID, "data.text.max_tokens: 2 leaves no room for a text");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(table_gives_the_batches_of_the_format_text),
      cmocka_unit_test(texts_stay_beside_their_labels),
      cmocka_unit_test(missing_texts_are_refused_or_replaced),
      cmocka_unit_test(second_text_and_image_beside_a_text_are_refused),
      cmocka_unit_test(text_is_an_input_beside_others),
      cmocka_unit_test(facts_of_a_text_count_its_tokens),
      cmocka_unit_test(wrong_texts_are_located),
  };
  return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}
