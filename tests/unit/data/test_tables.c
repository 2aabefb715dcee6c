/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests tables of numbers and words: they are encoded as scikit-learn encodes them, with statistics
 * and categories of the training records alone. An error in a table has its position.
 */
#include <math.h>

#include "master/data/dataset_int.h"
#include "tests/golden/golden_int.h"
#include "tests/unit/data/data_test.h"
#include "tests/unit/must.h"

static const clv_column_options columns[] = {
    {.name = "age", .missing = CLV_MISSING_MEAN, .has_indicator = true},
    {.name = "dose", .scale = CLV_SCALE_LOG},
    {.name = "grade", .scale = CLV_SCALE_QUANTILE, .missing = CLV_MISSING_MOST_FREQUENT},
    {.name = "weight", .scale = CLV_SCALE_MIN_MAX, .missing = CLV_MISSING_MEDIAN},
    {.name = "same"},
    {.name = "site", .use = CLV_COLUMN_CATEGORY, .missing = CLV_MISSING_OWN},
    {.name = "smoker", .use = CLV_COLUMN_BOOLEAN},
    {.name = "outcome", .use = CLV_COLUMN_TARGET},
    {.name = "cost", .use = CLV_COLUMN_IGNORED},
    {.name = "admitted",
     .use = CLV_COLUMN_DATE,
     .missing = CLV_MISSING_MEAN,
     .parts = 1u << CLV_DATE_YEAR | 1u << CLV_DATE_MONTH | 1u << CLV_DATE_WEEKDAY},
};

/* query: SQL query, if the file is a database; NULL: the file is a table of text. */
static clv_dataset_options make_options(const char *path, const char *query) {
  return (clv_dataset_options){.format = CLV_FORMAT_TABLE,
                               .inputs_path = path,
                               .table = {.columns = columns,
                                         .n_columns = CLV_COUNT(columns),
                                         .ignores_unlisted_columns = query != NULL,
                                         .query = query,
                                         .query_seconds = 60,
                                         .query_rows = 1000}};
}

static clv_dataset *open_table(const clv_dataset_options *o) {
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

/* Compares the input elements that encode a column with the elements of the golden file.
 * first_element: index of the column's first element in a record. */
static void assert_same_encoding(const golden *g, const clv_dataset *ds, const char *set,
                                 const char *column, size_t first_element) {
  golden_tensor want;
  size_t width = ds->elements_per_record;
  if (!golden_find_tensor(g, set, column, &want)) fail_msg("no golden %s.%s", set, column);
  size_t n_places = (size_t)want.shape.dim[1];
  assert_int_equal(ds->count, want.shape.dim[0]);
  for (size_t i = 0; i < want.n; i++) {
    double got =
        (double)((const float *)
                     ds->inputs->data)[i / n_places * width + first_element + i % n_places];
    double wanted = ((const double *)want.data)[i];
    if (!(fabs(got - wanted) <= 1e-6 * fmax(1, fabs(wanted))))
      fail_msg("%s.%s: record %zu, place %zu is %.9g, scikit-learn has %.9g", set, column,
               i / n_places, i % n_places, got, wanted);
  }
}

static void assert_golden_set(const golden *g, const clv_dataset *ds, const char *set) {
  static const struct {
    const char *column;
    size_t first_element;
  } encoded_columns[] = {{"age", 0},   {"missing", 1}, {"dose", 2},
                         {"grade", 3}, {"weight", 4},  {"same", 5},
                         {"site", 6},  {"smoker", 11}, {"admitted", 12}};
  assert_int_equal(ds->elements_per_record, 19);
  for (size_t i = 0; i < CLV_COUNT(encoded_columns); i++)
    assert_same_encoding(g, ds, set, encoded_columns[i].column, encoded_columns[i].first_element);
}

/* One form of the golden tables: paths of the training and the test table; queries, unless NULL,
 * that read them from a database. */
typedef struct golden_form {
  const char *train_path, *test_path, *train_query, *test_query;
} golden_form;

static void assert_golden_form(const golden_form *form) {
  golden g;
  clv_err err;
  CLV_AUTO(clv_bytes_done) clv_bytes text = {0}, text_of_read = {0};
  CLV_AUTO(clv_learnt_freep) clv_learnt *read_learnt = NULL;
  const clv_dataset_options train_options = make_options(form->train_path, form->train_query),
                            test_options = make_options(form->test_path, form->test_query);
  golden_open(&g, "tables");
  clv_dataset *train_path = open_table(&train_options), *test_path = open_table(&test_options);
  clv_learnt *l = learn(train_path);
  must(clv_learnt_write(l, &text, &err), &err);
  must(clv_learnt_parse(text.data, text.len, "table.json", &read_learnt, &err), &err);
  must(clv_learnt_write(read_learnt, &text_of_read, &err), &err);
  assert_string_equal(text.data, text_of_read.data);
  must(clv_dataset_encode(train_path, l, &err), &err);
  must(clv_dataset_encode(test_path, read_learnt, &err), &err);
  assert_golden_set(&g, train_path, "train");
  assert_golden_set(&g, test_path, "test");
  assert_int_equal(clv_dataset_class_count(test_path), 2);
  assert_string_equal(clv_dataset_class_name(test_path, 1), "well");
  clv_learnt_free(l);
  clv_dataset_free(train_path);
  clv_dataset_free(test_path);
  golden_close(&g);
}

static void records_are_encoded_as_scikit_learn_does(void **state) {
  (void)state;
#define TABLES "tests/golden/table/"
  static const golden_form forms[] = {
      {TABLES "train.csv", TABLES "test.csv", NULL, NULL},
      {TABLES "train.jsonl", TABLES "test.jsonl", NULL, NULL},
      {TABLES "tables.db", TABLES "tables.db", "SELECT * FROM train ORDER BY record",
       "SELECT * FROM test ORDER BY record"},
  };
  for (size_t i = 0; i < CLV_COUNT(forms); i++) assert_golden_form(&forms[i]);
}

/* ---- small tables ---------------------------------------------------------------------------- */

static const clv_column_options few_columns[] = {{.name = "x"},
                                                 {.name = "y", .use = CLV_COLUMN_CATEGORY},
                                                 {.name = "t", .use = CLV_COLUMN_TARGET},
                                                 {.name = "id", .use = CLV_COLUMN_ID}};

static clv_dataset_options make_few_options(const char *name, const char *text) {
  clv_dataset_options o = {.format = CLV_FORMAT_TABLE,
                           .inputs_path = write_scratch_file(name, text, strlen(text)),
                           .table = {.columns = few_columns, .n_columns = CLV_COUNT(few_columns)}};
  return o;
}

static void assert_refused(clv_dataset_options o, const char *want) {
  clv_dataset *ds = NULL;
  clv_err err;
  clv_code code = clv_dataset_open(&o, &ds, &err);
  expect_error(CLV_INVALID, want, code, &err);
}

static void wrong_cells_are_located(void **state) {
  (void)state;
  static const struct {
    const char *text, *want;
  } cases[] = {
      {"", "a.csv:1:1: no header"},
      {"x,y,t,id\n", "a.csv: no records"},
      {"x,y,t\n1,a,b\n", "a.csv:1:1: the header has no 'id', but 'x', 'y', 't'"},
      {"x;y;t;id\n1;a;b;c\n", "the header is one field, 'x;y;t;id': set data.table.separator"},
      {"x,y,t,id,x\n1,a,b,c,2\n", "the header has 'x' twice"},
      {"x,y,t,id,z\n1,a,b,c,2\n", "'z', which data.table.columns does not name"},
      {"x,y,t,id\n1,a,b,c\n\"1,5\",a,b,c\n",
       "a.csv:3:1: column 'x' has '1,5', which is no number: "
       "set data.table.decimal: comma"},
      {"x,y,t,id\n1,a,b,c\n0x1,a,b,c\n", "a.csv:3:1: column 'x' has '0x1'"},
      {"x,y,t,id\ninf,a,b,c\n", "column 'x' has 'inf'"},
      {"x,y,t,id\n1e999,a,b,c\n", "column 'x' has '1e999'"},
      {"x,y,t,id\n1,,b,c\n", "a.csv:2:3: column 'y' has no value here: set its `missing`"},
      {"x,y,t,id\n1,a,NA,c\n", "a.csv:2:5: the target 't' is missing"},
      {"x,y,t,id\n1,a,b\n", "a.csv:2:1: this record has 3 fields, the header has 4"},
      {"x,y,t,id\n1,a,b,c,d\n", "this record has more than 4 fields"},
      {"x,y,t,id\n1,\xe4,b,c\n", "a.csv:2:3: column 'y' has '?', which is not UTF-8"},
      {"x,y,t,id\n1,a,b/c,d\n", "a class's name has 1 to"},
      {"x,y,t,id\n1,\"a,b,c\n", "these quotes have no end"},
  };
  for (size_t i = 0; i < CLV_COUNT(cases); i++)
    assert_refused(make_few_options("a.csv", cases[i].text), cases[i].want);
}

static void broken_records_are_left_out_and_counted(void **state) {
  (void)state;
  clv_dataset_options o = make_few_options("a.csv", "x,y,t,id\n1,a,b,c\nx,a,b,d\n2,a,c,e\n");
  o.skips_broken = true;
  clv_dataset *ds = open_table(&o);
  assert_int_equal(clv_dataset_count(ds), 2);
  assert_int_equal(clv_dataset_broken_records(ds)->n, 1);
  assert_string_equal(clv_dataset_record_id(ds, 1), "e");
  assert_int_equal(clv_dataset_class_count(ds), 2);
  clv_dataset_free(ds);
}

static void equivalent_file_forms_are_read_alike(void **state) {
  (void)state;
  static const struct {
    const char *name, *text;
    char separator;
    bool has_decimal_comma;
  } cases[] = {
      {"a.csv", "\xef\xbb\xbfx,y,t,id\r\n 1.5 ,a,u,1\r\n\r\n-2e1,\"b\"\"\n\",v,2", 0, false},
      {"a.tsv", "id\tt\ty\tx\n1\tu\ta\t1.5\n2\tv\t\"b\"\"\n\"\t-20\n", 0, false},
      {"b.csv", "x;y;t;id\n1,5;a;u;1\n-20,0;\"b\"\"\n\";v;2\n", ';', true},
      {"c.csv", "x|y|t|id\n+1.5|a|u|1\n-20.|\"b\"\"\n\"|v|2\n", '|', false},
  };
  for (size_t i = 0; i < CLV_COUNT(cases); i++) {
    clv_dataset_options o = make_few_options(cases[i].name, cases[i].text);
    o.table.separator = cases[i].separator;
    o.table.has_decimal_comma = cases[i].has_decimal_comma;
    clv_dataset *ds = open_table(&o);
    const double *x = ds->table->columns[0].numbers;
    assert_int_equal(clv_dataset_count(ds), 2);
    assert_true(x[0] == 1.5 && x[1] == -20);
    assert_string_equal(ds->table->columns[1].names.text.data + 2, "b\"\n");
    assert_int_equal(clv_dataset_record_class(ds, 1), 1);
    clv_dataset_free(ds);
  }
}

static void unseen_classes_and_other_columns_are_refused(void **state) {
  (void)state;
  clv_err err;
  clv_dataset_options o = make_few_options("a.csv", "x,y,t,id\n1,a,u,1\n2,b,v,2\n");
  clv_dataset *ds = open_table(&o);
  CLV_AUTO(clv_learnt_freep) clv_learnt *l = learn(ds);
  clv_dataset_free(ds);
  o = make_few_options("b.csv", "x,y,t,id\n1,a,u,1\n2,c,w,2\n");
  ds = open_table(&o);
  clv_code code = clv_dataset_encode(ds, l, &err);
  expect_error(CLV_INVALID, "b.csv: record 1 has a class that no record of data.train has", code,
               &err);
  clv_dataset_free(ds);
  clv_column_options changed_columns[CLV_COUNT(few_columns)];
  memcpy(changed_columns, few_columns, sizeof few_columns);
  changed_columns[0].scale = CLV_SCALE_NONE;
  o.table.columns = changed_columns;
  ds = open_table(&o);
  code = clv_dataset_encode(ds, l, &err);
  expect_error(CLV_DATA_LOSS, "column 'x' is not read as the run's training read it", code, &err);
  clv_dataset_free(ds);
}

static void suspicious_columns_are_named(void **state) {
  (void)state;
  static const clv_column_options suspicious_columns[] = {
      {.name = "one"},
      {.name = "number"},
      {.name = "leak"},
      {.name = "word", .use = CLV_COLUMN_CATEGORY},
      {.name = "fine"},
      {.name = "t", .use = CLV_COLUMN_TARGET},
      {.name = "id", .use = CLV_COLUMN_ID}};
  static const clv_column_suspicion want[] = {CLV_COLUMN_IS_CONSTANT,    CLV_COLUMN_NAMES_RECORDS,
                                              CLV_COLUMN_REVEALS_TARGET, CLV_COLUMN_REVEALS_TARGET,
                                              CLV_COLUMN_IS_FINE,        CLV_COLUMN_IS_FINE,
                                              CLV_COLUMN_REPEATS_IDS};
  CLV_AUTO(clv_bytes_done) clv_bytes text = {0};
  CLV_AUTO(clv_subset_done) clv_subset rows = {0};
  clv_column_facts f;
  clv_err err;
  clv_bytes_puts(&text, "one,number,leak,word,fine,t,id\n");
  for (int i = 0; i < 40; i++)
    clv_bytes_printf(&text, "7,%d,%g,%s,%d,%s,p%d\n", 1000 + i, i % 2 + i * 1e-4,
                     i % 2 ? "ward" : "home", i * i % 7, i % 2 ? "ill" : "well", i / 2);
  clv_dataset_options o = {
      .format = CLV_FORMAT_TABLE,
      .inputs_path = write_scratch_file("a.csv", text.data, text.len),
      .table = {.columns = suspicious_columns, .n_columns = CLV_COUNT(suspicious_columns)}};
  clv_dataset *ds = open_table(&o);
  must(clv_subset_all(ds, &rows, &err), &err);
  for (size_t i = 0; i < CLV_COUNT(suspicious_columns); i++) {
    must(clv_dataset_column_facts(ds, &rows, i, &f, &err), &err);
    if (f.suspicion != want[i]) fail_msg("%s: %d, wanted %d", f.name, f.suspicion, want[i]);
  }
  clv_dataset_free(ds);
}

static void damaged_learnt_files_are_refused(void **state) {
  (void)state;
  clv_err err;
  clv_learnt *l = NULL;
  CLV_AUTO(clv_bytes_done) clv_bytes text = {0};
  clv_dataset_options o = make_few_options("a.csv", "x,y,t,id\n1,a,u,1\n2,b,v,2\n");
  clv_dataset *ds = open_table(&o);
  CLV_AUTO(clv_learnt_freep) clv_learnt *good = learn(ds);
  clv_dataset_free(ds);
  must(clv_learnt_write(good, &text, &err), &err);
  /* the line end at the end of the text may be missing, so n excludes that cut */
  for (size_t n = 0; n + 1 < text.len; n++) {
    clv_code code = clv_learnt_parse(text.data, n, "table.json", &l, &err);
    expect_error(CLV_INVALID, "table.json:", code, &err);
  }
  char *divisor = strstr(text.data, "\"divisor\":");
  divisor[strlen("\"divisor\":")] = '-';
  clv_code code = clv_learnt_parse(text.data, text.len, "table.json", &l, &err);
  expect_error(CLV_INVALID, "table.json:", code, &err);
}

/* ---- indexes and weights --------------------------------------------------------------------- */

static const char index_text[] = "x,y,w,t\n1,b,1,u\n2,a,0,v\n3,,3,u\n4,b,0.5,v\n";

static void indexes_number_values_unseen_and_missing_ones(void **state) {
  (void)state;
  static const clv_missing_rule rules[] = {CLV_MISSING_OWN, CLV_MISSING_MOST_FREQUENT,
                                           CLV_MISSING_VALUE, CLV_MISSING_VALUE};
  static const char *const values[] = {NULL, NULL, "a", "c"};
  static const int64_t missing[] = {3, 1, 0, 2};
  for (size_t i = 0; i < CLV_COUNT(rules); i++) {
    clv_column_options list[] = {
        {.name = "x"},
        {.name = "y", .use = CLV_COLUMN_INDEX, .missing = rules[i], .value = values[i]},
        {.name = "t", .use = CLV_COLUMN_TARGET}};
    clv_dataset_options o = make_few_options("a.csv", index_text);
    o.table = (clv_table_options){
        .columns = list, .n_columns = CLV_COUNT(list), .ignores_unlisted_columns = true};
    clv_dataset *train = open_table(&o);
    CLV_AUTO(clv_learnt_freep) clv_learnt *l = learn(train);
    clv_err err;
    must(clv_dataset_encode(train, l, &err), &err);
    const int64_t *index = train->named_inputs[1].data->data;
    clv_index_facts f;
    assert_int_equal(clv_dataset_input_count(train), 2);
    assert_string_equal(clv_dataset_input(train, 0, 1).name, "input");
    assert_int_equal(clv_dataset_input(train, 1, 4).dtype, CLV_I64);
    assert_int_equal(clv_dataset_input(train, 1, 4).shape.rank, 1);
    assert_true(index[0] == 1 && index[1] == 0 && index[2] == missing[i] && index[3] == 1);
    assert_true(clv_dataset_index_facts(train, 1, &f));
    assert_int_equal(f.n_rows, rules[i] == CLV_MISSING_OWN ? 4 : 3);
    assert_false(clv_dataset_index_facts(train, 0, &f));
    o = make_few_options("b.csv", "x,y,t\n1,unseen,u\n");
    o.table = (clv_table_options){.columns = list, .n_columns = CLV_COUNT(list)};
    clv_dataset *test = open_table(&o);
    must(clv_dataset_encode(test, l, &err), &err);
    assert_int_equal(((const int64_t *)test->named_inputs[1].data->data)[0], 2);
    clv_dataset_free(test);
    clv_dataset_free(train);
  }
}

static void weights_are_the_chances_of_records(void **state) {
  (void)state;
  static const clv_column_options list[] = {{.name = "x"},
                                            {.name = "w", .use = CLV_COLUMN_WEIGHT},
                                            {.name = "t", .use = CLV_COLUMN_TARGET}};
  CLV_AUTO(clv_subset_done) clv_subset all = {0};
  CLV_AUTO(clv_freep) double *sums = NULL;
  double *unused = NULL;
  clv_err err;
  clv_dataset_options o = make_few_options("a.csv", index_text);
  o.table = (clv_table_options){
      .columns = list, .n_columns = CLV_COUNT(list), .ignores_unlisted_columns = true};
  o.reads_weights = true;
  clv_dataset *ds = open_table(&o);
  CLV_AUTO(clv_learnt_freep) clv_learnt *l = learn(ds);
  must(clv_dataset_encode(ds, l, &err), &err);
  assert_int_equal(ds->elements_per_record, 1);
  must(clv_subset_all(ds, &all, &err), &err);
  must(clv_sampling_sums_of_column(ds, &all, &sums, &err), &err);
  assert_true(sums[0] == 1 && sums[1] == 1 && sums[2] == 4 && sums[3] == 4.5);
  all.index[0] = 1;
  all.n = 1;
  clv_code code = clv_sampling_sums_of_column(ds, &all, &unused, &err);
  expect_error(CLV_INVALID, "the column 'w' is 0 in all 1 training records", code, &err);
  clv_dataset_free(ds);
  o = make_few_options("b.csv", "x,w,t\n1,-0.5,u\n");
  o.table = (clv_table_options){.columns = list, .n_columns = CLV_COUNT(list)};
  o.reads_weights = true;
  assert_refused(o, "b.csv:2:3: column 'w' has '-0.5', and a weight is 0 or more");
  o = make_few_options("c.csv", "x,t\n1,u\n");
  o.table = (clv_table_options){.columns = list, .n_columns = CLV_COUNT(list)};
  clv_dataset_free(open_table(&o));
}

/* ---- drawing records by the classes of one of several targets -------------------------------- */

/* A table of 16 records. In target t, 8 records have class a, 4 class b and 4 no label. */
static const char drawn_text[] =
    "x,t,u\n1,a,1\n2,a,0\n3,,1\n4,b,1\n5,a,0\n6,b,1\n7,a,1\n8,,0\n"
    "9,a,1\n10,b,0\n11,a,1\n12,NA,1\n13,a,0\n14,b,1\n15,a,1\n16,,0\n";

static clv_dataset *open_drawn_table(const char *split_target) {
  static const clv_column_options list[] = {
      {.name = "x"},
      {.name = "t", .use = CLV_COLUMN_TARGET, .missing = CLV_MISSING_MASK},
      {.name = "u", .use = CLV_COLUMN_TARGET}};
  static const clv_target_option targets[] = {{"u", CLV_TASK_LABELS}, {"t", CLV_TASK_CLASSES}};
  clv_dataset_options o = make_few_options("drawn.csv", drawn_text);
  o.labels = CLV_LABEL_FLOAT;
  o.table = (clv_table_options){.columns = list,
                                .n_columns = CLV_COUNT(list),
                                .targets = targets,
                                .n_targets = CLV_COUNT(targets),
                                .split_target = split_target};
  return open_table(&o);
}

/* Fails unless 2 records of class a, 1 of class b and 1 without a label were taken. */
static void assert_share_of_each_class(const clv_dataset *ds, const clv_subset *taken) {
  size_t counts[3] = {0};
  assert_int_equal(taken->n, 4);
  for (size_t i = 0; i < taken->n; i++)
    counts[clv_dataset_target_class(ds, 1, taken->index[i]) + 1]++;
  assert_true(counts[0] == 1 && counts[1] == 2 && counts[2] == 1);
}

static void splits_and_folds_have_the_share_of_each_class_of_a_target(void **state) {
  (void)state;
  CLV_AUTO(clv_dataset_freep) clv_dataset *ds = open_drawn_table("t");
  CLV_AUTO(clv_dataset_freep) clv_dataset *other = open_drawn_table(NULL);
  clv_err err;
  assert_int_equal(clv_dataset_split_kind(ds, CLV_SPLIT_STRATIFIED), CLV_SPLIT_STRATIFIED);
  assert_int_equal(clv_dataset_split_kind(other, CLV_SPLIT_STRATIFIED), CLV_SPLIT_SHUFFLED);
  for (size_t fold = 0; fold <= 4; fold++) {
    CLV_AUTO(clv_subset_done) clv_subset rest = {0}, taken = {0};
    must(fold ? clv_subset_split_fold(ds, CLV_SPLIT_STRATIFIED, 4, fold, 7, &rest, &taken, &err)
              : clv_subset_split(ds, 0.25, CLV_SPLIT_STRATIFIED, 7, &rest, &taken, &err),
         &err);
    assert_share_of_each_class(ds, &taken);
  }
  must(clv_dataset_limit(ds, 4, CLV_SPLIT_STRATIFIED, 7, &err), &err);
  CLV_AUTO(clv_subset_done) clv_subset all = {0};
  must(clv_subset_all(ds, &all, &err), &err);
  assert_share_of_each_class(ds, &all);
}

static void records_are_drawn_by_the_classes_of_a_target(void **state) {
  (void)state;
  static const double weights[] = {1, 6}, no_weights[] = {1};
  CLV_AUTO(clv_dataset_freep) clv_dataset *ds = open_drawn_table(NULL);
  CLV_AUTO(clv_subset_done) clv_subset all = {0};
  CLV_AUTO(clv_freep) double *balanced = NULL;
  CLV_AUTO(clv_freep) double *weighed = NULL;
  double *unused = NULL;
  clv_err err;
  must(clv_subset_all(ds, &all, &err), &err);
  must(clv_sampling_sums_of_target(ds, &all, 1, NULL, 0, &balanced, &err), &err);
  must(clv_sampling_sums_of_target(ds, &all, 1, weights, 2, &weighed, &err), &err);
  /* records 0, 2 and 3 have class a, no label and class b */
  assert_true(fabs(balanced[0] - 1.0 / 8) < 1e-12);
  assert_true(fabs(balanced[2] - balanced[1] - 2.0 / 12) < 1e-12);
  assert_true(fabs(balanced[3] - balanced[2] - 1.0 / 4) < 1e-12);
  assert_true(weighed[0] == 1 && fabs(weighed[2] - weighed[1] - 32.0 / 12) < 1e-12);
  assert_true(fabs(weighed[3] - weighed[2] - 6) < 1e-12);
  clv_code code = clv_sampling_sums_of_target(ds, &all, 1, no_weights, 1, &unused, &err);
  expect_error(CLV_INVALID, "record 3 has class 1, and there are weights of 1 classes", code, &err);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(records_are_encoded_as_scikit_learn_does),
      cmocka_unit_test(wrong_cells_are_located),
      cmocka_unit_test(broken_records_are_left_out_and_counted),
      cmocka_unit_test(equivalent_file_forms_are_read_alike),
      cmocka_unit_test(unseen_classes_and_other_columns_are_refused),
      cmocka_unit_test(suspicious_columns_are_named),
      cmocka_unit_test(damaged_learnt_files_are_refused),
      cmocka_unit_test(indexes_number_values_unseen_and_missing_ones),
      cmocka_unit_test(weights_are_the_chances_of_records),
      cmocka_unit_test(splits_and_folds_have_the_share_of_each_class_of_a_target),
      cmocka_unit_test(records_are_drawn_by_the_classes_of_a_target),
  };
  return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}
