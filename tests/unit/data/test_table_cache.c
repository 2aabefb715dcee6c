/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests tables that are cached on disk because they are larger than memory: their values are those
 * of tables in memory, to the bit; their cells are read once; a stale cache is made again and a
 * damaged cache is refused.
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
                .ignores_unlisted_columns = true,
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

/* A table that was split and encoded, with the means and categories that were learnt from its
 * training records. */
typedef struct run {
  clv_dataset *ds;
  clv_subset train, validation;
  clv_learnt *learnt;
  clv_bytes text; /* `learnt` as JSON */
} run;

/* Makes a run. limit: number of records to keep; 0: all. */
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

static void assert_same_inputs(const clv_dataset *a, const clv_dataset *b) {
  assert_int_equal(a->n_named_inputs, b->n_named_inputs);
  if (!a->n_named_inputs) assert_same_tensor(a->inputs, b->inputs, a->count);
  for (size_t k = 0; k < a->n_named_inputs; k++)
    assert_same_tensor(a->named_inputs[k].data, b->named_inputs[k].data, a->count);
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
  assert_same_inputs(a->ds, b->ds);
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

/* Options of the golden table with targets of each task, an index and weights. */
static clv_dataset_options make_target_options(const char *folder) {
  static const clv_column_options list[] = {
      {.name = "age", .missing = CLV_MISSING_MEAN},
      {.name = "site", .use = CLV_COLUMN_INDEX, .missing = CLV_MISSING_OWN},
      {.name = "cost", .use = CLV_COLUMN_ID},
      {.name = "same", .use = CLV_COLUMN_WEIGHT},
      {.name = "smoker", .use = CLV_COLUMN_TARGET},
      {.name = "dose", .use = CLV_COLUMN_TARGET},
      {.name = "outcome", .use = CLV_COLUMN_TARGET}};
  static const clv_target_option targets[] = {{.name = "outcome", .task = CLV_TASK_CLASSES},
                                              {.name = "smoker", .task = CLV_TASK_LABELS},
                                              {.name = "dose", .task = CLV_TASK_NUMBERS}};
  clv_dataset_options o = make_options(TABLES "train.csv", folder);
  o.labels = CLV_LABEL_FLOAT;
  o.reads_weights = true;
  o.table.columns = list;
  o.table.n_columns = CLV_COUNT(list);
  o.table.targets = targets;
  o.table.n_targets = CLV_COUNT(targets);
  return o;
}

static void several_targets_on_disk_are_those_in_memory_to_the_bit(void **state) {
  (void)state;
  for (size_t limit = 0; limit <= 40; limit += 40) {
    clv_dataset_options in_memory = make_target_options(NULL),
                        on_disk = make_target_options(at("targets"));
    run a = make_run(&in_memory, limit), b = make_run(&on_disk, limit);
    clv_err err;
    CLV_AUTO(clv_freep) double *sums = NULL;
    CLV_AUTO(clv_freep) double *same_sums = NULL;
    assert_non_null(b.ds->table->folder);
    assert_int_equal(a.ds->n_named_inputs, 2);
    assert_int_equal(a.ds->y_shape.dim[1], 3);
    assert_same_runs(&a, &b);
    must(clv_sampling_sums_of_column(a.ds, &a.train, &sums, &err), &err);
    must(clv_sampling_sums_of_column(b.ds, &b.train, &same_sums, &err), &err);
    assert_memory_equal(sums, same_sums, a.train.n * sizeof *sums);
    for (size_t k = 0; k < 3; k++)
      assert_int_equal(clv_dataset_target_class_count(a.ds, k),
                       clv_dataset_target_class_count(b.ds, k));
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

/* Returns the number of caches in a folder. path: receives the path of one of these caches. */
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
  assert_int_equal(clv_dataset_broken_records(ds)->n, 1);
  clv_dataset_free(ds);
  assert_int_equal(count_caches(folder, path), 1);
  struct stat st;
  assert_int_equal(stat(path, &st), 0);
  assert_int_equal(st.st_mode & 0777, 0700);
  ino_t first = inode_of(path);
  ds = open_table(&o);
  assert_int_equal(inode_of(path), first);
  assert_int_equal(clv_dataset_broken_records(ds)->n, 1);
  assert_non_null(
      strstr(clv_dataset_broken_records(ds)->error_lines.data, "a.csv:4:1: column 'x'"));
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
  static const double infinite = HUGE_VAL;
  static const struct {
    const char *name;
    long offset;
    const void *data;
    size_t len;
    const char *want;
  } cases[] = {
      {"column-0.npy", 140, NULL, 0, "column-0.npy: truncated"},
      {"column-0.npy", 128, &infinite, 8, "column-0.npy has the number of no value"},
      {"column-1.npy", 128, &large, 4, "column-1.npy has the number of no value"},
      {"column-2.npy", 128, &negative, 4, "column-2.npy has the number of no value"},
      {"ids.npy", 136, &far, 8, "has offsets in ids.npy that are of no texts"},
      {"ids.npy", 136, &inside, 8, "has offsets in ids.npy that are of no texts"},
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

/* Replaces a label of yes or no in the cache by 2. The cache is refused, because 2 is the number of
 * neither value. */
static void labels_that_are_not_yes_or_no_are_refused(void **state) {
  (void)state;
  static const double two = 2;
  char path[600];
  clv_dataset *ds = NULL;
  clv_err err;
  clv_dataset_options o = make_target_options(at("labels"));
  clv_dataset_free(open_table(&o));
  count_caches(o.table.cache_folder, path);
  change_file(path, "column-4.npy", 128, &two, 8);
  clv_code code = clv_dataset_open(&o, &ds, &err);
  expect_error(CLV_DATA_LOSS, "column-4.npy has the number of no value", code, &err);
}

/* Replaces a label that is a number in the cache by NaN. Only a target with `missing: mask` may
 * have NaN, so a scan reports the record. */
static void missing_numbers_of_targets_that_are_not_masked_are_found(void **state) {
  (void)state;
  static const double nan_label = (double)NAN;
  char path[600];
  CLV_AUTO(clv_scan_result_done) clv_scan_result found = {0};
  clv_err err;
  clv_dataset_options o = make_target_options(at("numbers"));
  clv_dataset_free(open_table(&o));
  count_caches(o.table.cache_folder, path);
  change_file(path, "column-5.npy", 128, &nan_label, 8);
  CLV_AUTO(clv_dataset_freep) clv_dataset *ds = open_table(&o);
  must(clv_dataset_scan(ds, &(clv_scan_options){0}, &found, &err), &err);
  assert_int_equal(found.not_finite_records.n, 1);
}

/* A session that reads a target as numbers does not use the cache that was made when the target was
 * read as yes or no. */
static void other_tasks_of_targets_have_another_cache(void **state) {
  (void)state;
  char path[600];
  clv_dataset *ds = NULL;
  clv_err err;
  clv_dataset_options o = make_target_options(at("tasks"));
  clv_dataset_free(open_table(&o));
  clv_target_option targets[3];
  memcpy(targets, o.table.targets, sizeof targets);
  targets[1].task = CLV_TASK_NUMBERS;
  o.table.targets = targets;
  clv_code code = clv_dataset_open(&o, &ds, &err);
  expect_error(CLV_INVALID, "column 'smoker' has 'yes', which is no number", code, &err);
  assert_int_equal(count_caches(o.table.cache_folder, path), 1);
}

/* ---- paths of images ------------------------------------------------------------------------- */

/* Writes a grey image of 1 x 1 pixels into the scratch folder. */
static void write_image(const char *name) {
  static const unsigned char image[] = {
      0x89, 0x50, 0x4e, 0x47, 0x0d, 0x0a, 0x1a, 0x0a, 0x00, 0x00, 0x00, 0x0d, 0x49, 0x48,
      0x44, 0x52, 0x00, 0x00, 0x00, 0x01, 0x00, 0x00, 0x00, 0x01, 0x08, 0x00, 0x00, 0x00,
      0x00, 0x3a, 0x7e, 0x9b, 0x55, 0x00, 0x00, 0x00, 0x0a, 0x49, 0x44, 0x41, 0x54, 0x78,
      0x9c, 0x63, 0x68, 0x00, 0x00, 0x00, 0x82, 0x00, 0x81, 0x77, 0xcd, 0x72, 0xb6, 0x00,
      0x00, 0x00, 0x00, 0x49, 0x45, 0x4e, 0x44, 0xae, 0x42, 0x60, 0x82};
  write_scratch_file(name, image, sizeof image);
}

static clv_dataset_options make_image_table_options(const char *text, const char *folder) {
  static const clv_column_options list[] = {{.name = "id", .use = CLV_COLUMN_ID},
                                            {.name = "scan", .use = CLV_COLUMN_FILE},
                                            {.name = "t", .use = CLV_COLUMN_TARGET}};
  clv_dataset_options o = make_few_options(text, folder);
  o.table.columns = list;
  o.table.n_columns = CLV_COUNT(list);
  o.table.block_bytes = 1;
  o.images.channels = 1;
  return o;
}

/* Returns the number of records of a table, and asserts the ids and paths of the rows. */
static size_t count_images(const clv_dataset_options *o) {
  clv_dataset *ds = open_table(o);
  size_t n = clv_dataset_count(ds);
  for (size_t i = 0; i < n; i++) {
    char want[20];
    snprintf(want, sizeof want, "%s.png", clv_dataset_record_id(ds, i));
    assert_string_equal(clv_table_text(ds->table, ds->table->path_offsets, i), want);
  }
  clv_dataset_free(ds);
  return n;
}

static void images_of_a_table_on_disk_come_and_go(void **state) {
  (void)state;
  enum { IMAGES = 40 /* more than two blocks of the cache, of 16 records each */ };
  CLV_AUTO(clv_bytes_done) clv_bytes text = {0};
  char path[600], name[20];
  clv_bytes_puts(&text, "id,scan,t\n");
  for (int i = 0; i < IMAGES; i++) {
    snprintf(name, sizeof name, "i%d.png", i);
    if (i != 7) write_image(name);
    clv_bytes_printf(&text, "i%d,%s,%d\n", i, name, i % 2);
  }
  assert_false(text.failed);
  clv_dataset_options o = make_image_table_options(text.data, at("images"));
  assert_int_equal(count_images(&o), IMAGES - 1);
  write_image("i7.png");
  assert_int_equal(count_images(&o), IMAGES);
  assert_int_equal(count_caches(o.table.cache_folder, path), 1);
  ino_t first = inode_of(path);
  assert_int_equal(count_images(&o), IMAGES);
  assert_int_equal(inode_of(path), first);
  assert_int_equal(unlink(at("i3.png")), 0);
  assert_int_equal(count_images(&o), IMAGES - 1);
}

static void paths_of_a_damaged_cache_stay_in_the_folder(void **state) {
  (void)state;
  char path[600];
  clv_dataset *ds = NULL;
  clv_err err;
  write_image("i0.png");
  write_image("i1.png");
  clv_dataset_options o =
      make_image_table_options("id,scan,t\ni0,i0.png,1\ni1,i1.png,0\n", at("leaves"));
  assert_int_equal(count_images(&o), 2);
  count_caches(o.table.cache_folder, path);
  change_file(path, "id-texts.npy", 131, "/", 1);
  clv_code code = clv_dataset_open(&o, &ds, &err);
  expect_error(CLV_DATA_LOSS, "has a path that leaves the folder of the images", code, &err);
  change_file(path, "paths.npy", 128, "\x01", 1);
  code = clv_dataset_open(&o, &ds, &err);
  expect_error(CLV_DATA_LOSS, "has offsets in paths.npy that are of no texts", code, &err);
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
      cmocka_unit_test(several_targets_on_disk_are_those_in_memory_to_the_bit),
      cmocka_unit_test(labels_that_are_not_yes_or_no_are_refused),
      cmocka_unit_test(missing_numbers_of_targets_that_are_not_masked_are_found),
      cmocka_unit_test(other_tasks_of_targets_have_another_cache),
      cmocka_unit_test(images_of_a_table_on_disk_come_and_go),
      cmocka_unit_test(paths_of_a_damaged_cache_stay_in_the_folder),
      cmocka_unit_test(caches_are_found_again_and_stale_ones_deleted),
      cmocka_unit_test(damaged_caches_are_refused_by_name),
      cmocka_unit_test(missing_numbers_of_a_damaged_cache_are_refused),
      cmocka_unit_test(caches_of_others_are_refused),
      cmocka_unit_test(errors_of_a_table_leave_no_cache),
  };
  return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}
