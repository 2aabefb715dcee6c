/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests tables that are larger than memory: they are the same as tables in memory, to the bit;
 * their cells are read once; and a cache that is stale is made again, a damaged one is refused.
 */
#include <dirent.h>
#include <math.h>
#include <sys/stat.h>
#include <unistd.h>

#include "master/data/cells_int.h"
#include "master/data/dataset_int.h"
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
    {.name = "cost", .use = CLV_COLUMN_ID},
    {.name = "admitted",
     .use = CLV_COLUMN_DATE,
     .missing = CLV_MISSING_MEAN,
     .parts = 1u << CLV_DATE_YEAR},
};
#define TABLES "tests/golden/table/"

/* folder: folder of the cache; NULL: the table is in memory. */
static clv_dataset_options make_options(const char *path, const char *folder) {
  return (clv_dataset_options){
      .format = CLV_FORMAT_TABLE,
      .inputs_path = path,
      .reads_groups = true,
      .text = {.group = "smoker"},
      .table = {.columns = columns,
                .n_columns = CLV_COUNT(columns),
                .ignores_others = true,
                .query = strstr(path, ".db") ? "SELECT * FROM train ORDER BY record" : NULL,
                .query_seconds = 60,
                .query_rows = 1000,
                .cache_folder = folder,
                .is_on_disk = true,
                .block_bytes = 100}};
}

static clv_dataset *open_table(const clv_dataset_options *o) {
  clv_dataset *ds = NULL;
  clv_err err;
  must(clv_dataset_open(o, &ds, &err), &err);
  return ds;
}

/* A table that was split, learnt and encoded. */
typedef struct run {
  clv_dataset *ds;
  clv_subset train, validation;
  clv_learnt *learnt;
  clv_bytes text; /* what was learnt, as JSON */
} run;

/* limit: records to keep; 0: all. */
static run make_run(const clv_dataset_options *o, size_t limit) {
  run r = {.ds = open_table(o)};
  clv_err err;
  must(clv_dataset_limit(r.ds, limit, CLV_SPLIT_STRATIFIED, 5, &err), &err);
  must(clv_subset_split(r.ds, 0.3, CLV_SPLIT_STRATIFIED, 7, &r.train, &r.validation, &err), &err);
  must(clv_dataset_learn(r.ds, &r.train, &r.learnt, &err), &err);
  must(clv_learnt_write(r.learnt, &r.text, &err), &err);
  must(clv_dataset_encode(r.ds, r.learnt, &err), &err);
  return r;
}

static void run_done(run *r) {
  clv_dataset_free(r->ds);
  clv_subset_done(&r->train);
  clv_subset_done(&r->validation);
  clv_learnt_free(r->learnt);
  clv_bytes_done(&r->text);
}

static void assert_same_tensor(const clv_tensor *a, const clv_tensor *b, size_t count) {
  size_t row = a->bytes / (size_t)a->shape.dim[0];
  assert_int_equal(row, b->bytes / (size_t)b->shape.dim[0]);
  assert_memory_equal(a->data, b->data, count * row);
}

static void assert_same_facts(const run *a, const run *b) {
  clv_err err;
  for (size_t i = 0; i < clv_dataset_column_count(a->ds); i++) {
    clv_column_facts f, g;
    must(clv_dataset_column_facts(a->ds, &a->train, i, &f, &err), &err);
    must(clv_dataset_column_facts(b->ds, &b->train, i, &g, &err), &err);
    assert_int_equal(f.n_missing, g.n_missing);
    assert_int_equal(f.n_distinct, g.n_distinct);
    assert_int_equal(f.suspicion, g.suspicion);
    assert_true((isnan(f.low) && isnan(g.low)) || (f.low == g.low && f.high == g.high));
    assert_true(f.correlation == g.correlation);
  }
}

static void assert_same_runs(const run *a, const run *b) {
  assert_int_equal(a->ds->count, b->ds->count);
  assert_string_equal(a->text.data, b->text.data);
  assert_int_equal(a->train.n, b->train.n);
  assert_memory_equal(a->train.index, b->train.index, a->train.n * sizeof *a->train.index);
  assert_same_tensor(a->ds->inputs, b->ds->inputs, a->ds->count);
  assert_same_tensor(a->ds->labels, b->ds->labels, a->ds->count);
  assert_memory_equal(a->ds->groups, b->ds->groups, a->ds->count * sizeof *a->ds->groups);
  for (size_t i = 0; i < a->ds->count; i++)
    assert_string_equal(clv_dataset_record_id(a->ds, i), clv_dataset_record_id(b->ds, i));
  assert_same_facts(a, b);
}

static void tables_on_disk_are_those_in_memory_to_the_bit(void **state) {
  (void)state;
  static const char *const paths[] = {TABLES "train.csv", TABLES "train.jsonl", TABLES "tables.db"};
  for (size_t i = 0; i < CLV_COUNT(paths); i++)
    for (size_t limit = 0; limit <= 40; limit += 40) {
      clv_dataset_options in_memory = make_options(paths[i], NULL),
                          on_disk = make_options(paths[i], at("cache"));
      run a = make_run(&in_memory, limit), b = make_run(&on_disk, limit);
      assert_null(a.ds->table->folder);
      assert_non_null(b.ds->table->folder);
      assert_same_runs(&a, &b);
      run_done(&a);
      run_done(&b);
    }
}

/* ---- stale and damaged caches ---------------------------------------------------------------- */

static const clv_column_options few[] = {{.name = "x"},
                                         {.name = "y", .use = CLV_COLUMN_CATEGORY},
                                         {.name = "t", .use = CLV_COLUMN_TARGET},
                                         {.name = "id", .use = CLV_COLUMN_ID}};

static clv_dataset_options make_few_options(const char *text, const char *folder) {
  return (clv_dataset_options){
      .format = CLV_FORMAT_TABLE,
      .inputs_path = write_scratch_file("a.csv", text, strlen(text)),
      .skips_broken = true,
      .table = {
          .columns = few, .n_columns = CLV_COUNT(few), .cache_folder = folder, .is_on_disk = true}};
}

/* Returns the number of caches in a folder. path: path of the one that was found last. */
static size_t count_caches(const char *folder, char path[600]) {
  size_t n = 0;
  DIR *dir = opendir(folder);
  assert_non_null(dir);
  for (struct dirent *f; (f = readdir(dir)) != NULL;) {
    if (f->d_name[0] == '.') continue;
    snprintf(path, 600, "%s/%s", folder, f->d_name);
    n++;
  }
  closedir(dir);
  return n;
}

static ino_t inode_of(const char *path) {
  struct stat st;
  assert_int_equal(stat(path, &st), 0);
  return st.st_ino;
}

static void caches_are_found_again_and_stale_ones_deleted(void **state) {
  (void)state;
  char path[600];
  const char *folder = at("found");
  clv_dataset_options o = make_few_options("x,y,t,id\n1,a,u,1\n2,b,v,2\nx,b,v,3\n", folder);
  clv_dataset *ds = open_table(&o);
  assert_int_equal(clv_dataset_broken(ds)->n, 1);
  clv_dataset_free(ds);
  assert_int_equal(count_caches(folder, path), 1);
  struct stat st;
  assert_int_equal(stat(path, &st), 0);
  assert_int_equal(st.st_mode & 0777, 0700);
  ino_t first = inode_of(path);
  ds = open_table(&o);
  assert_int_equal(inode_of(path), first);
  assert_int_equal(clv_dataset_broken(ds)->n, 1);
  assert_non_null(strstr(clv_dataset_broken(ds)->error_lines.data, "a.csv:4:1: column 'x'"));
  clv_dataset_free(ds);
  o.skips_labels = true;
  clv_dataset_free(open_table(&o));
  assert_int_equal(count_caches(folder, path), 2);
  o = make_few_options("x,y,t,id\n1,a,u,1\n2,b,v,2\n5,b,v,3\n6,b,v,4\n", folder);
  ds = open_table(&o);
  assert_int_equal(clv_dataset_count(ds), 4);
  clv_dataset_free(ds);
  assert_int_equal(count_caches(folder, path), 1);
}

/* Replaces `len` bytes of a file at an offset; data NULL: cuts the file there. */
static void change_file(const char *folder, const char *name, long offset, const void *data,
                        size_t len) {
  char path[700];
  snprintf(path, sizeof path, "%s/%s", folder, name);
  if (!data) {
    assert_int_equal(truncate(path, offset), 0);
    return;
  }
  FILE *f = fopen(path, "r+b");
  assert_non_null(f);
  assert_int_equal(fseek(f, offset, SEEK_SET), 0);
  assert_int_equal(fwrite(data, 1, len, f), len);
  assert_int_equal(fclose(f), 0);
}

static void damaged_caches_are_refused_by_name(void **state) {
  (void)state;
  static const int32_t large = 2, negative = -1;
  static const int64_t far = 1 << 20, inside = 1;
  static const struct {
    const char *name;
    long offset;
    const void *data;
    size_t len;
    const char *want;
  } cases[] = {
      {"column-0.npy", 140, NULL, 0, "column-0.npy: truncated"},
      {"column-1.npy", 128, &large, 4, "column-1.npy has the number of no value"},
      {"column-2.npy", 128, &negative, 4, "column-2.npy has the number of no value"},
      {"ids.npy", 136, &far, 8, "has ids that are no texts"},
      {"ids.npy", 136, &inside, 8, "has ids that are no texts"},
      {"id-texts.npy", 0, "x", 1, "id-texts.npy: wrong magic"},
      {"column-0.npy", 11, "'descr': '<f4'", 14, "column-0.npy"},
      {"cells.json", 11, "2", 1, "cells.json:1:"},
      {"cells.json", 20, NULL, 0, "cells.json:1:"},
      {"cells.json", 25, "0000000000", 10, "it is of another table, or of other rules"},
  };
  for (size_t i = 0; i < CLV_COUNT(cases); i++) {
    char folder[40], path[600];
    clv_dataset *ds = NULL;
    clv_err err;
    snprintf(folder, sizeof folder, "damaged%zu", i);
    clv_dataset_options o =
        make_few_options("x,y,t,id\n1,a,u,10\n2,b,v,20\n3,b,u,30\n", at(folder));
    clv_dataset_free(open_table(&o));
    assert_int_equal(count_caches(o.table.cache_folder, path), 1);
    change_file(path, cases[i].name, cases[i].offset, cases[i].data, cases[i].len);
    clv_code code = clv_dataset_open(&o, &ds, &err);
    expect_error(CLV_DATA_LOSS, cases[i].want, code, &err);
    assert_non_null(strstr(err.text, "delete its folder, and it is made again"));
  }
}

static void missing_numbers_of_a_damaged_cache_are_refused(void **state) {
  (void)state;
  static const double none = NAN;
  char path[600];
  clv_err err;
  clv_dataset_options o = make_few_options("x,y,t,id\n1,a,u,10\n2,b,v,20\n3,b,u,30\n", at("nan"));
  clv_dataset_free(open_table(&o));
  count_caches(o.table.cache_folder, path);
  change_file(path, "column-0.npy", 136, &none, 8);
  clv_dataset *ds = open_table(&o);
  CLV_AUTO(clv_subset_done) clv_subset all = {0};
  CLV_AUTO(clv_learnt_freep) clv_learnt *l = NULL;
  must(clv_subset_all(ds, &all, &err), &err);
  must(clv_dataset_learn(ds, &all, &l, &err), &err);
  clv_code code = clv_dataset_encode(ds, l, &err);
  expect_error(CLV_DATA_LOSS, "the cells of column 'x' in this cache are damaged, as in record 1",
               code, &err);
  clv_dataset_free(ds);
}

static void caches_of_others_are_refused(void **state) {
  (void)state;
  char path[600], file[700];
  clv_dataset *ds = NULL;
  clv_err err;
  clv_dataset_options o = make_few_options("x,y,t,id\n1,a,u,10\n2,b,v,20\n", at("open"));
  clv_dataset_free(open_table(&o));
  count_caches(o.table.cache_folder, path);
  snprintf(file, sizeof file, "%s/column-0.npy", path);
  assert_int_equal(chmod(file, 0644), 0);
  clv_code code = clv_dataset_open(&o, &ds, &err);
  expect_error(CLV_DATA_LOSS, "column-0.npy is not the user's alone (mode 0600)", code, &err);
  assert_int_equal(chmod(o.table.cache_folder, 0755), 0);
  code = clv_dataset_open(&o, &ds, &err);
  expect_error(CLV_PRECONDITION, "is to be the user's alone (mode 0700)", code, &err);
  assert_int_equal(chmod(o.table.cache_folder, 0700), 0);
}

static void errors_of_a_table_leave_no_cache(void **state) {
  (void)state;
  char path[600];
  clv_dataset *ds = NULL;
  clv_err err;
  clv_dataset_options o = make_few_options("x,y,t,id\n1,a,u,10\ny,b,v,20\n", at("errors"));
  o.skips_broken = false;
  clv_code code = clv_dataset_open(&o, &ds, &err);
  expect_error(CLV_INVALID, "a.csv:3:1: column 'x' has 'y', which is no number", code, &err);
  assert_int_equal(count_caches(o.table.cache_folder, path), 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(tables_on_disk_are_those_in_memory_to_the_bit),
      cmocka_unit_test(caches_are_found_again_and_stale_ones_deleted),
      cmocka_unit_test(damaged_caches_are_refused_by_name),
      cmocka_unit_test(missing_numbers_of_a_damaged_cache_are_refused),
      cmocka_unit_test(caches_of_others_are_refused),
      cmocka_unit_test(errors_of_a_table_leave_no_cache),
  };
  return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}
