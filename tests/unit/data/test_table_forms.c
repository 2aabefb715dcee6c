/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests unusual tables: lines of JSON, databases, dates, odd cells, and files that are no tables.
 * Each refusal names file, line and column, or record, and what to do.
 */
#include <dlfcn.h>
#include <math.h>

#include "master/data/dataset_int.h"
#include "tests/unit/data/data_test.h"
#include "tests/unit/must.h"

static const clv_column_options column_options[] = {{.name = "x", .missing = CLV_MISSING_MEAN},
                                                    {.name = "y", .use = CLV_COLUMN_CATEGORY},
                                                    {.name = "t", .use = CLV_COLUMN_TARGET},
                                                    {.name = "id", .use = CLV_COLUMN_ID}};

static clv_dataset_options make_options(const char *path, const char *query) {
  return (clv_dataset_options){.format = CLV_FORMAT_TABLE,
                               .inputs_path = path,
                               .table = {.columns = column_options,
                                         .n_columns = CLV_COUNT(column_options),
                                         .query = query,
                                         .query_seconds = 60,
                                         .query_rows = 3}};
}

/* A file of one record. want: expected error; NULL: the file is accepted, and the column x of the
 * record has the value `x`. */
typedef struct odd_file {
  const char *name, *text, *want;
  double x;
} odd_file;

static void assert_odd_file(const odd_file *f) {
  clv_dataset *ds = NULL;
  clv_err err = {0};
  const clv_dataset_options o =
      make_options(write_scratch_file(f->name, f->text, strlen(f->text)), NULL);
  clv_code code = clv_dataset_open(&o, &ds, &err);
  if (f->want) {
    if (code == CLV_OK || !strstr(err.text, f->want))
      fail_msg("%s: '%s', wanted '%s'", f->text, code == CLV_OK ? "no error" : err.text, f->want);
    return;
  }
  if (code != CLV_OK) fail_msg("%s: %s", f->text, err.text);
  assert_int_equal(ds->count, 1);
  assert_true(ds->table->columns[0].numbers[0] == f->x);
  clv_dataset_free(ds);
}

/* ---- tables as CSV --------------------------------------------------------------------------- */

#define HEADER "x,y,t,id\n"

static const odd_file csv_files[] = {
    {"a.csv", HEADER "1e-3,a,b,c\n", NULL, 0.001},
    {"a.csv", HEADER "  -7 ,a,b,c", NULL, -7},
    {"a.csv", HEADER "+.5,a,b,c\r\n\r\n\r\n", NULL, 0.5},
    {"a.csv", "\"x\",\"y\",\"t\",\"id\"\n\"1\",\"a\",\"b\",\"c\"\n", NULL, 1},
    {"a.csv", "id,t,y,x\nc,b,a,3\n", NULL, 3},
    {"a.csv", HEADER "1 234,a,b,c\n", "a.csv:2:1: column 'x' has '1 234', which is no number", 0},
    {"a.csv", HEADER "1'234,a,b,c\n", "column 'x' has '1'234', which is no number", 0},
    {"a.csv", HEADER "\"1,234.5\",a,b,c\n", "marks of thousands have to go", 0},
    {"a.csv", HEADER "1.234.567,a,b,c\n", "column 'x' has '1.234.567'", 0},
    {"a.csv", HEADER "5 %,a,b,c\n", "column 'x' has '5 %'", 0},
    {"a.csv", HEADER "<0.01,a,b,c\n", "column 'x' has '<0.01'", 0},
    {"a.csv",
     HEADER "\xe2\x88\x92"
            "5,a,b,c\n",
     "a.csv:2:1: column 'x' has '??"
     "?5'",
     0},
    {"a.csv", HEADER "\xef\xbc\x95,a,b,c\n",
     "column 'x' has '??"
     "?', which is no number",
     0},
    {"a.csv", HEADER "#DIV/0!,a,b,c\n", "column 'x' has '#DIV/0!'", 0},
    {"a.csv", HEADER "=1+1,a,b,c\n", "column 'x' has '=1+1'", 0},
    {"a.csv", HEADER "1_000,a,b,c\n", "column 'x' has '1_000'", 0},
    {"a.csv", HEADER "--1,a,b,c\n", "column 'x' has '--1'", 0},
    {"a.csv", HEADER "1e,a,b,c\n", "column 'x' has '1e'", 0},
    {"a.csv", HEADER "Inf,a,b,c\n", "column 'x' has 'Inf'", 0},
    {"a.csv", HEADER "1,a,b,c\n1,a,b\n", "a.csv:3:1: this record has 3 fields, the header has 4",
     0},
    {"a.csv", HEADER "1,a,b,c,\n", "a.csv:2:1: this record has more than 4 fields", 0},
    {"a.csv", HEADER "1,\"a\" ,b,c\n",
     "a.csv:2:6: a comma or the line's end is expected after quotes", 0},
    {"a.csv", HEADER "1,\"a,b,c\n2,d,e,f\n", "a.csv:2:3: these quotes have no end", 0},
    {"a.csv", "x,y,t,id,\n1,a,b,c,\n",
     "a.csv:1:10: a column has no name, as the row numbers of pandas", 0},
    {"a.csv", "x,y,t,id,y\n1,a,b,c,d\n", "a.csv:1:10: the header has 'y' twice: rename one", 0},
    {"a.csv", "X,y,t,id\n1,a,b,c\n", "a.csv:1:1: the header has 'X', which data.table.columns", 0},
    {"a.csv", " x,y,t,id\n1,a,b,c\n", "the header has ' x', which", 0},
    {"a.csv", "\xef\xbb\xbf" HEADER "2,a,b,c\n", NULL, 2},
    {"a.csv", "\xff\xfex\0,\0y\0", "its text is UTF-16", 0},
    {"a.csv", "x,y,t,id\r1,a,b,c\r", "a.csv:1: its lines end with CR alone", 0},
    {"a.csv",
     "x,Gr\xf6\xdf"
     "e\n",
     "a.csv:1:3: this name of a column is not UTF-8: convert the file", 0},
    {"a.csv", "{\n  \"x\": 1\n}\n", "a.csv:1:1: this is JSON", 0},
    {"a.csv", "sep=;\nx;y;t;id\n1;a;b;c\n", "a.csv:1:1: this line is for Excel alone: delete it",
     0},
    {"a.csv", "x y t id\n1 a b c\n", "a.csv:1:1: the header has 'x y t id', which", 0},
    {"a.csv", "{\"x\":1}\n", "a.csv:1:1: this is JSON: lines of JSON are in files named .jsonl", 0},
    {"a.csv", "PK\x03\x04zip",
     "a.csv: is a workbook (.xlsx, .ods) or an archive: save the sheet as CSV", 0},
    {"a.csv", "\xd0\xcf\x11\xe0old", "a.csv: is a workbook of old Excel", 0},
    {"a.csv", "PAR1....", "a.csv: is Parquet: convert it", 0},
    {"a.csv", "<!DOCTYPE html><html>", "a.csv: is HTML: save the table itself", 0},
    {"a.csv", "BZh91AY", "a.csv: is compressed by bzip2", 0},
    {"a.csv", "\n\n\n", "a.csv:1:1: no header: the file is empty", 0},
    {"a.csv", HEADER "1,\xe4,b,c\n",
     "a.csv:2:3: column 'y' has '?', which is not UTF-8: convert the file", 0},
    {"a.csv", HEADER "1,,b,c\n", "a.csv:2:3: column 'y' has no value here: set its `missing`", 0},
    {"a.csv", HEADER "1,a,,c\n", "a.csv:2:5: the target 't' is missing", 0},
    {"a.csv", HEADER "1,a,a/b,c\n", "a.csv:2:5: column 't' has 'a/b', a class's name", 0},
    {"a.tsv", "x\ty\tt\tid\n1,5\ta\tb\tc\n",
     "a.tsv:2:1: column 'x' has '1,5', which is no number: set data.table.decimal", 0},
};

static void odd_csv_files_are_read_or_refused(void **state) {
  (void)state;
  for (size_t i = 0; i < CLV_COUNT(csv_files); i++) assert_odd_file(&csv_files[i]);
}

static void header_of_10000_columns_is_read(void **state) {
  (void)state;
  enum { COLUMNS = 10000 };
  CLV_AUTO(clv_bytes_done) clv_bytes text = {0};
  for (int i = 0; i < COLUMNS; i++) clv_bytes_printf(&text, "c%d,", i);
  clv_bytes_puts(&text, HEADER);
  for (int i = 0; i < COLUMNS; i++) clv_bytes_puts(&text, "0,");
  clv_bytes_puts(&text, "4,a,b,c\n");
  clv_dataset_options o = make_options(write_scratch_file("wide.csv", text.data, text.len), NULL);
  clv_dataset *ds = NULL;
  clv_err err;
  o.table.ignores_unlisted_columns = true;
  must(clv_dataset_open(&o, &ds, &err), &err);
  assert_true(ds->table->columns[0].numbers[0] == 4);
  clv_dataset_free(ds);
  o.table.ignores_unlisted_columns = false;
  expect_error(CLV_INVALID, "wide.csv:1:1: the header has 'c0'", clv_dataset_open(&o, &ds, &err),
               &err);
}

/* ---- tables as lines of JSON ----------------------------------------------------------------- */

#define OTHER_KEYS ",\"y\":\"a\",\"t\":\"b\",\"id\":\"c\"}\n"
static const odd_file json_files[] = {
    {"a.jsonl", "{\"x\":1.5" OTHER_KEYS, NULL, 1.5},
    {"a.ndjson", "{\"x\":-2e1" OTHER_KEYS, NULL, -20},
    {"a.jsonl", "{\"x\":\"3\"" OTHER_KEYS, NULL, 3},
    {"a.jsonl", "\xef\xbb\xbf{\"x\":4" OTHER_KEYS, NULL, 4},
    {"a.jsonl", "\r\n  \n{\"x\":5" OTHER_KEYS "\n\n", NULL, 5},
    {"a.jsonl", "{\"id\":7,\"t\":1,\"y\":true,\"x\":6}", NULL, 6},
    {"a.jsonl", " { \"x\" : 7 , \"y\" : \"\\u00e4\\n\" , \"t\":\"b\", \"id\":\"c\" } ", NULL, 7},
    {"a.jsonl", "", "a.jsonl: no records", 0},
    {"a.jsonl", "{}\n", "a.jsonl:1:1: column 'y' has no value here", 0},
    {"a.jsonl", "[1,2]\n", "a.jsonl:1:1: an object is expected here, found a list", 0},
    {"a.jsonl", "[{\"x\":1" OTHER_KEYS, "a.jsonl:1:1: an object is expected here, found a list", 0},
    {"a.jsonl", "3\n", "a.jsonl:1:1: an object is expected here, found a number", 0},
    {"a.jsonl", HEADER, "a.jsonl:1:1: no JSON value begins here", 0},
    {"a.jsonl", "{\"x\":1", "a.jsonl:1:7: ',' or '}' is expected here", 0},
    {"a.jsonl", "{\"x\":1,\"y\":\"a\",\"t\":\"b\",\"id\":\"c\"} {}\n",
     "a.jsonl:1:34: unexpected text after the value", 0},
    {"a.jsonl", "{\"x\":1,}\n", "a.jsonl:1:8: no JSON value begins here", 0},
    {"a.jsonl", "{x:1}\n", "a.jsonl:1:2: no JSON value begins here", 0},
    {"a.jsonl", "{'x':1}\n", "a.jsonl:1:2: no JSON value begins here", 0},
    {"a.jsonl", "{\"x\":NaN" OTHER_KEYS,
     "a.jsonl:1:6: NaN is no value of JSON: a missing one is null", 0},
    {"a.jsonl", "{\"x\":-Infinity" OTHER_KEYS, "a.jsonl:1:6: -Infinity is no value of JSON", 0},
    {"a.jsonl", "{\"x\":None" OTHER_KEYS, "a.jsonl:1:6: None is no value of JSON", 0},
    {"a.jsonl", "{\"x\":True" OTHER_KEYS,
     "True is no value of JSON: a missing one is null, truth is true or false", 0},
    {"a.jsonl", "{\"x\":01" OTHER_KEYS, "a.jsonl:1:6: a number is not valid", 0},
    {"a.jsonl", "{\"x\":1e999" OTHER_KEYS, "a.jsonl:1:6: 1e999 is too large", 0},
    {"a.jsonl", "{\"x\":[1]" OTHER_KEYS, "a.jsonl:1:6: column 'x' has a list, and a cell is a text",
     0},
    {"a.jsonl", "{\"x\":1,\"y\":{\"z\":1},\"t\":\"b\",\"id\":\"c\"}\n",
     "a.jsonl:1:12: column 'y' has an object, and", 0},
    {"a.jsonl", "{\"x\":1,\"x\":2" OTHER_KEYS, "a.jsonl:1:8: the key 'x' is there twice", 0},
    {"a.jsonl", "{\"x\":1,\"\\u0078\":2" OTHER_KEYS, "the key 'x' is there twice", 0},
    {"a.jsonl", "{\"z\":1,\"x\":2" OTHER_KEYS,
     "a.jsonl:1:2: this record has 'z', which data.table.columns does not", 0},
    {"a.jsonl", "{\"x\":\"1,5\"" OTHER_KEYS,
     "column 'x' has '1,5', which is no number: set data.table.decimal", 0},
    {"a.jsonl", "{\"x\":true" OTHER_KEYS, "a.jsonl:1:6: column 'x' has 'true', which is no number",
     0},
    {"a.jsonl", "{\"x\":1,\"y\":\"a\",\"t\":null,\"id\":\"c\"}\n",
     "a.jsonl:1:20: the target 't' is missing", 0},
    {"a.jsonl", "{\"x\":1,\"y\":\"a\",\"id\":\"c\"}\n", "a.jsonl:1:1: the target 't' is missing",
     0},
    {"a.jsonl", "{\"x\":1,\"y\":null,\"t\":\"b\",\"id\":\"c\"}\n",
     "a.jsonl:1:12: column 'y' has no value here", 0},
    {"a.jsonl", "{\"x\":1,\"y\":\"a\",\"t\":\"b\",\"id\":null}\n",
     "a.jsonl:1:29: the id 'id' is missing", 0},
    {"a.jsonl", "{\"x\":1,\"y\":\"a\",\"t\":\"b\"}\n", "a.jsonl:1:1: the id 'id' is missing", 0},
    {"a.jsonl", "{\"y\":\"a\",\"t\":\"b\",\"id\":\"c\"}\n", "no record has 'x', but 'y', 't', 'id'",
     0},
    {"a.jsonl", "{\"x\":1,\"y\":\"\\u0000\",\"t\":\"b\",\"id\":\"c\"}\n",
     "column 'y' has '', which has a NUL byte", 0},
    {"a.jsonl", "{\"x\":1,\"\\u0000\":2" OTHER_KEYS, "a.jsonl:1:8: this key has a NUL", 0},
    {"a.jsonl", "{\"x\":1,\"y\":\"\xe4\",\"t\":\"b\"}\n", "a.jsonl:1:13: not UTF-8", 0},
    {"a.jsonl", "{\"x\":1,\"y\":\"\\ud800\"}\n", "half a surrogate pair", 0},
    {"a.jsonl", "{\"x\":1" OTHER_KEYS "{\"x\":2,\"y\":\"a\"\n",
     "a.jsonl:2:15: ',' or '}' is expected here", 0},
    {"a.jsonl", "{\"x\":1" OTHER_KEYS "{\"x\":2,\"w\":1" OTHER_KEYS,
     "a.jsonl:2:8: this record has 'w'", 0},
    {"a.jsonl", "\xff\xfe{\0\"\0", "its text is UTF-16", 0},
};

static void odd_json_lines_are_read_or_refused(void **state) {
  (void)state;
  for (size_t i = 0; i < CLV_COUNT(json_files); i++) assert_odd_file(&json_files[i]);
}

static void keys_that_json_lacks_are_missing_values(void **state) {
  (void)state;
  static const char text[] =
      "{\"x\":1" OTHER_KEYS
      "{\"id\":\"d\",\"t\":\"e\",\"y\":\"f\"}\n"
      "{\"x\":" OTHER_KEYS "{\"x\":null,\"y\":\"a\",\"t\":\"b\",\"id\":\"g\"}\n";
  clv_dataset_options o = make_options(write_scratch_file("a.jsonl", text, strlen(text)), NULL);
  o.skips_broken = true;
  clv_dataset *ds = NULL;
  clv_err err;
  must(clv_dataset_open(&o, &ds, &err), &err);
  const double *x = ds->table->columns[0].numbers;
  assert_int_equal(ds->count, 3);
  assert_true(x[0] == 1 && isnan(x[1]) && isnan(x[2]));
  assert_string_equal(clv_dataset_record_id(ds, 2), "g");
  assert_int_equal(clv_dataset_broken_records(ds)->n, 1);
  clv_dataset_free(ds);
}

/* A key of JSON that no column has may be a mistake, even in a single record. So `skip`, which
 * leaves out broken records, does not apply, and the whole table is refused. */
static void unknown_keys_are_never_skipped(void **state) {
  (void)state;
  static const char text[] = "{\"x\":1" OTHER_KEYS "{\"w\":1" OTHER_KEYS;
  clv_dataset_options o = make_options(write_scratch_file("a.jsonl", text, strlen(text)), NULL);
  clv_dataset *ds = NULL;
  clv_err err;
  o.skips_broken = true;
  expect_error(CLV_INVALID, "a.jsonl:2:2: this record has 'w'", clv_dataset_open(&o, &ds, &err),
               &err);
  static const char quotes[] = HEADER "1,a,b,c\n2,\"a,b,c\n3,a,b,c\n";
  o.inputs_path = write_scratch_file("q.csv", quotes, strlen(quotes));
  expect_error(CLV_INVALID, "q.csv:3:3: these quotes have no end", clv_dataset_open(&o, &ds, &err),
               &err);
}

/* ---- tables of an SQLite database ------------------------------------------------------------ */

/* Runs statements on a new database. SQLite is the library that the reader loads, too. */
static const char *make_database(const char *name, const char *sql) {
  const char *path = at(name);
  void *library = dlopen("libsqlite3.so.0", RTLD_NOW), *db = NULL;
  assert_non_null(library);
  int (*sqlite_open)(const char *, void **), (*sqlite_close)(void *);
  int (*sqlite_exec)(void *, const char *, void *, void *, char **);
  *(void **)&sqlite_open = dlsym(library, "sqlite3_open");
  *(void **)&sqlite_close = dlsym(library, "sqlite3_close");
  *(void **)&sqlite_exec = dlsym(library, "sqlite3_exec");
  unlink(path);
  assert_int_equal(sqlite_open(path, &db), 0);
  assert_int_equal(sqlite_exec(db, sql, NULL, NULL, NULL), 0);
  assert_int_equal(sqlite_close(db), 0);
  return path;
}

#define TABLE                                                                         \
  "CREATE TABLE p(x, y, t, id); INSERT INTO p VALUES(1.5, 'a', 'b', 'c');"            \
  "CREATE TABLE odd(x, y, t, id); INSERT INTO odd VALUES(1, x'00ff', 'b', 'c');"      \
  "CREATE TABLE null_id(x, y, t, id); INSERT INTO null_id VALUES(1, 'a', 'b', NULL);" \
  "CREATE VIEW v AS SELECT * FROM p; CREATE VIEW evil AS SELECT load_extension('x') AS x;"

/* want: expected error of the query; NULL: the query reads one record, whose column x has the value
 * `x`. */
static const struct {
  const char *query, *want;
  double x;
} queries[] = {
    {"SELECT * FROM p ORDER BY id", NULL, 1.5},
    {"select y, t, id, x * 2 AS x from p order\n by 1;", NULL, 3},
    {"WITH q AS (SELECT * FROM p ORDER BY x) SELECT * FROM q ORDER BY id -- end", NULL, 1.5},
    {"SELECT * FROM p UNION SELECT * FROM v ORDER BY id", NULL, 1.5},
    {"SELECT '1e400' AS \"or;der\", ';' AS [a;b], x, y, t, id FROM p ORDER BY 1", "'or;der', which",
     0},
    {"SELECT 1e400 AS x, y, t, id FROM p ORDER BY id",
     "record 1 of data.table.query: column 'x' has 'inf'", 0},
    {"SELECT max(x, 4) AS x, upper(y) AS y, t, id FROM p ORDER BY id", NULL, 4},
    {"SELECT p.*, row_number() OVER (ORDER BY id) AS n FROM p", "has no ORDER BY", 0},
    {"SELECT * FROM (SELECT * FROM p ORDER BY id)", "has no ORDER BY", 0},
    {"SELECT 'ORDER BY', * FROM p", "has no ORDER BY", 0},
    {"SELECT * FROM p -- ORDER BY id", "has no ORDER BY", 0},
    {"SELECT * FROM p /* ORDER BY id", "has no ORDER BY", 0},
    {"", "has no ORDER BY", 0},
    {"SELECT * FROM p ORDER BY id; SELECT 1", "more than one statement", 0},
    {"SELECT 'x FROM p ORDER BY id", "quotes have no end", 0},
    {"DELETE FROM p WHERE x IN (SELECT 1) ORDER BY id", "data.table.query: ", 0},
    {"INSERT INTO p SELECT * FROM p ORDER BY id", "data.table.query: INSERT is not permitted", 0},
    {"UPDATE p SET x = (SELECT x FROM p) ORDER BY id", "data.table.query: ", 0},
    {"CREATE TABLE n AS SELECT * FROM p ORDER BY id", "data.table.query: ", 0},
    {"ATTACH 'x.db' AS ORDER BY", "data.table.query: ", 0},
    {"PRAGMA table_info(p) ORDER BY 1", "data.table.query: ", 0},
    {"SELECT * FROM pragma_table_info('p') ORDER BY 1", " is not permitted: a query selects, reads",
     0},
    {"WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT * FROM n ORDER BY x",
     "WITH RECURSIVE is not permitted", 0},
    {"SELECT load_extension('x') AS x FROM p ORDER BY id",
     "data.table.query: the function load_extension is not permitted", 0},
    {"SELECT random() AS x FROM p ORDER BY id", "the function random is not permitted", 0},
    {"SELECT randomblob(9) AS x FROM p ORDER BY id", "the function randomblob is not permitted", 0},
    {"SELECT * FROM evil ORDER BY x", "data.table.query: ", 0},
    {"EXPLAIN SELECT * FROM p ORDER BY id", "is no SELECT", 0},
    {"VALUES(1, 2) ORDER BY 1", "data.table.query: ", 0},
    {"SELECT * FROM nobody ORDER BY id", "data.table.query: no such table: nobody", 0},
    {"SELECT nix FROM p ORDER BY id", "data.table.query: no such column: nix", 0},
    {"SELECT * FROM p WHERE x = ? ORDER BY id", "data.table.query: ", 0},
    {"SELECT * FROM p WHERE x = :x ORDER BY id", "data.table.query: ", 0},
    {"SELECT x, y, t, id, x FROM p ORDER BY id", "data.table.query: the header has 'x' twice", 0},
    {"SELECT y, t, id FROM p ORDER BY id",
     "data.table.query: the header has no 'x', but 'y', 't', 'id'", 0},
    {"SELECT * FROM odd ORDER BY id",
     "record 1 of data.table.query: column 'y' has bytes (a BLOB), and", 0},
    {"SELECT * FROM null_id ORDER BY x", "record 1 of data.table.query: the id 'id' is missing", 0},
    {"SELECT NULL AS x, y, NULL AS t, id FROM p ORDER BY id",
     "record 1 of data.table.query: the target 't' is missing", 0},
    {"SELECT a.* FROM p AS a, p AS b, sqlite_schema AS c, sqlite_schema AS d ORDER BY a.id",
     "has more than 3 records: end it with LIMIT, or raise data.table.query_rows", 0},
    {"SELECT * FROM p WHERE x = 99 ORDER BY id", "a.db: no records", 0},
    {"SELECT zeroblob(99999999) AS x FROM p ORDER BY id", "the function zeroblob is not permitted",
     0},
};

static void queries_are_read_or_refused(void **state) {
  (void)state;
  const char *path = make_database("a.db", TABLE);
  for (size_t i = 0; i < CLV_COUNT(queries); i++) {
    const clv_dataset_options o = make_options(path, queries[i].query);
    clv_dataset *ds = NULL;
    clv_err err = {0};
    clv_code code = clv_dataset_open(&o, &ds, &err);
    const char *want = queries[i].want;
    if (want && (code == CLV_OK || !strstr(err.text, want) || !strstr(err.text, "a.db: ")))
      fail_msg("%s: '%s', wanted '%s'", o.table.query, code ? err.text : "no error", want);
    if (!want && code != CLV_OK) fail_msg("%s: %s", o.table.query, err.text);
    if (!want) assert_true(ds->table->columns[0].numbers[0] == queries[i].x);
    clv_dataset_free(ds);
  }
}

static void assert_database_refused(const char *path, const char *query, const char *want) {
  const clv_dataset_options o = make_options(path, query);
  clv_dataset *ds = NULL;
  clv_err err;
  expect_error(CLV_INVALID, want, clv_dataset_open(&o, &ds, &err), &err);
}

static void files_that_are_no_database_or_in_use_are_refused(void **state) {
  (void)state;
  static const char query[] = "SELECT * FROM p ORDER BY id";
  const char *path = make_database("a.db", TABLE);
  assert_database_refused(path, NULL, "a.db: is an SQLite database: set data.table.query");
  write_scratch_file("a.db-wal", "x", 1);
  assert_database_refused(path, query,
                          "a.db-wal has changes that are not in it: close the program");
  unlink(at("a.db-wal"));
  assert_database_refused(write_scratch_file("b.db", HEADER, strlen(HEADER)), query,
                          "b.db: is no SQLite database, and data.table.query goes with one");
  static const char damaged[200] = "SQLite format 3";
  assert_database_refused(write_scratch_file("c.db", damaged, sizeof damaged), query,
                          "c.db: data.table.query: ");
}

static void database_with_special_characters_in_its_name_is_read(void **state) {
  (void)state;
  const clv_dataset_options o =
      make_options(make_database("a?b#c%2f &d.db", TABLE), "SELECT * FROM p ORDER BY id");
  clv_dataset *ds = NULL;
  clv_err err;
  must(clv_dataset_open(&o, &ds, &err), &err);
  clv_dataset_free(ds);
}

static void slow_query_is_stopped_at_its_time_limit(void **state) {
  (void)state;
  CLV_AUTO(clv_bytes_done) clv_bytes sql = {0};
  clv_dataset *ds = NULL;
  clv_err err;
  clv_bytes_puts(&sql, TABLE
                 "CREATE TABLE n(i); INSERT INTO n WITH RECURSIVE c(i) AS (SELECT 1 UNION ALL "
                 "SELECT i + 1 FROM c WHERE i < 60) SELECT i FROM c;");
  clv_dataset_options o = make_options(make_database("slow.db", sql.data),
                                       "SELECT sum(a.i * b.i * c.i * d.i) AS x, 'a' AS y, 'b' AS "
                                       "t, 'c' AS id FROM n a, n b, n c, n d ORDER BY 1");
  o.table.query_seconds = 0;
  o.skips_broken = true;
  expect_error(CLV_INVALID,
               "takes more than 0 s: give it an index, or raise data.table.query_seconds",
               clv_dataset_open(&o, &ds, &err), &err);
}

/* ---- dates in columns ------------------------------------------------------------------------ */

static const struct {
  const char *format, *text;
  double days; /* expected days since 1970-01-01; NaN: the text is no date */
} date_cases[] = {
    {NULL, "1970-01-01", 0},
    {NULL, "1969-12-31", -1},
    {NULL, "2000-02-29", 11016},
    {NULL, "1900-03-01", -25508},
    {NULL, "0001-01-01", -719162},
    {NULL, "9999-12-31", 2932896},
    {NULL, "1970-01-02T12:00", 1.5},
    {NULL, "1970-01-01 06:00:00", 0.25},
    {NULL, "1970-01-01T00:00:43.2Z", 0.0005},
    {NULL, "1970-01-01T02:00:00+02:00", 0},
    {NULL, "1970-01-01T00:00-0600", 0.25},
    {NULL, "1970-01-01T00:00,", NAN},
    {NULL, "1900-02-29", NAN},
    {NULL, "2024-13-01", NAN},
    {NULL, "2024-00-10", NAN},
    {NULL, "24-01-31", NAN},
    {NULL, "20240131", NAN},
    {NULL, "2024-01-31T24:00", NAN},
    {NULL, "2024-01-31x", NAN},
    {NULL, "2024-01-31T10", NAN},
    {NULL, "", NAN},
    {NULL, "1970-01-01T00:00+24:00", NAN},
    {NULL,
     "\xef\xbc\x92"
     "024-01-01",
     NAN},
    {"%d.%m.%Y", "31.1.1970", 30},
    {"%d.%m.%Y", "31.01.70", NAN},
    {"%d.%m.%Y", "31.02.1970", NAN},
    {"%m/%d/%Y", "1/31/1970", 30},
    {"%m/%d/%Y", "31/1/1970", NAN},
    {"%Y%m%d", "19700131", 30},
    {"%d %b %Y", "31 Jan 1970", 30},
    {"%d %B %Y", "1 FEBRUARY 1970", 31},
    {"%d-%b-%Y", "1-Mai-1970", NAN},
    {"%Y-%m-%d %H:%M:%S.%f", "1970-01-01 00:00:43.2", 0.0005},
    {"%Y", "1971", 365},
    {"100%% %Y", "100% 1970", 0},
    {"%Y-%m-%dT%H:%M%z", "1970-01-01T01:00+0100", 0},
};

static void dates_are_days_since_1970(void **state) {
  (void)state;
  for (size_t i = 0; i < CLV_COUNT(date_cases); i++) {
    double days = NAN;
    bool ok = clv_date_read_days(date_cases[i].text, strlen(date_cases[i].text),
                                 date_cases[i].format, &days);
    if (ok != !isnan(date_cases[i].days) || (ok && fabs(days - date_cases[i].days) > 1e-12))
      fail_msg("%s: %g, wanted %g", date_cases[i].text, ok ? days : NAN, date_cases[i].days);
    char text[CLV_DATE_TEXT_BYTES];
    if (ok && days == floor(days) && !date_cases[i].format && strlen(date_cases[i].text) == 10)
      assert_string_equal(clv_date_text(days, text), date_cases[i].text);
  }
}

static void forms_of_dates_are_checked(void **state) {
  (void)state;
  static const struct {
    const char *format, *want;
  } cases[] = {{"%d.%m.%Y", NULL},
               {"%d.%m.%y", "%y leaves the century open"},
               {"%d.%m", "it has no %Y"},
               {"%A %Y", "%A is none of %Y %m"},
               {"%Y %", "% is none of %Y %m"}};
  for (size_t i = 0; i < CLV_COUNT(cases); i++) {
    clv_err err;
    clv_code code = clv_date_check_format(cases[i].format, &err);
    if (cases[i].want)
      expect_error(CLV_PRECONDITION, cases[i].want, code, &err);
    else
      must(code, &err);
  }
  static const clv_column_options dates[] = {{.name = "d", .use = CLV_COLUMN_DATE},
                                             {.name = "t", .use = CLV_COLUMN_TARGET}};
  static const char text[] = "d,t\n2024-01-31,a\n31.01.2024,b\n";
  clv_dataset_options o = make_options(write_scratch_file("d.csv", text, strlen(text)), NULL);
  clv_dataset *ds = NULL;
  clv_err err;
  o.table.columns = dates;
  o.table.n_columns = CLV_COUNT(dates);
  expect_error(CLV_INVALID,
               "d.csv:3:1: column 'd' has '31.01.2024', which is no date of the form '2024-01-31': "
               "correct it, or set its `format`, such as \"%d.%m.%Y\"",
               clv_dataset_open(&o, &ds, &err), &err);
}

/* ---- splits by a column with the set or the time of a record --------------------------------- */

static const char *const in_training[] = {"train"}, *const in_validation[] = {"valid"},
                         *const in_test[] = {"test"};

static clv_dataset_options make_split_options(const char *text, clv_split_key key) {
  clv_dataset_options o = make_options(write_scratch_file("s.csv", text, strlen(text)), NULL);
  o.reads_groups = true;
  o.text.group = "s";
  o.split_key = key;
  o.set_values[CLV_SET_TRAINING] = (clv_set_values){in_training, 1};
  o.set_values[CLV_SET_VALIDATION] = (clv_set_values){in_validation, 1};
  o.set_values[CLV_SET_TEST] = (clv_set_values){in_test, 1};
  return o;
}

/* Splits a table and compares the x of the validation records with the list `want`, whose end is
 * 0. */
static void assert_validation(const clv_dataset_options *o, double fraction, clv_split_kind kind,
                              const double *want) {
  CLV_AUTO(clv_subset_done) clv_subset train = {0}, validation = {0};
  CLV_AUTO(clv_dataset_freep) clv_dataset *ds = NULL;
  clv_err err;
  must(clv_dataset_open(o, &ds, &err), &err);
  must(clv_subset_split(ds, fraction, kind, 1, &train, &validation, &err), &err);
  for (size_t i = 0; i < validation.n; i++)
    assert_true(ds->table->columns[0].numbers[validation.index[i]] == want[i]);
  assert_true(want[validation.n] == 0);
  assert_int_equal(train.n + validation.n, ds->count);
}

static void validation_by_time_has_the_latest_records(void **state) {
  (void)state;
  static const char dates[] =
      "x,y,t,id,s\n1,a,b,c,2024-03-01\n2,a,b,c,2019-01-01\n3,a,b,c,2024-03-01\n4,a,b,c,2020-01-01\n"
      "5,a,b,c,2021-01-01\n";
  static const char table_of_numbers[] =
      "x,y,t,id,s\n1,a,b,c,-5\n2,a,b,c,1e3\n3,a,b,c,-7\n4,a,b,c,0\n";
  clv_dataset_options o = make_split_options(dates, CLV_KEY_IS_TIME);
  /* records 1 and 3 have the same, latest day, so the validation half gets both */
  assert_validation(&o, 0.2, CLV_SPLIT_TIME, (const double[]){1, 3, 0});
  o = make_split_options(table_of_numbers, CLV_KEY_IS_TIME);
  assert_validation(&o, 0.5, CLV_SPLIT_TIME, (const double[]){2, 4, 0});
  static const struct {
    const char *text, *want;
  } bad_tables[] = {
      {"x,y,t,id,s\n1,a,b,c,1.2.2024\n",
       "s.csv:2:9: 's' (data.validation.column) has neither a number nor a date here: say as: "
       "date"},
      {"x,y,t,id,s\n1,a,b,c,\n", "s.csv:2:9: 's' (data.validation.column) has no value here"},
      {"x,y,t,id\n1,a,b,c\n",
       "the header has no 's', but 'x', 'y', 't', 'id': set data.validation.column"}};
  for (size_t i = 0; i < CLV_COUNT(bad_tables); i++) {
    clv_dataset *ds = NULL;
    clv_err err;
    o = make_split_options(bad_tables[i].text, CLV_KEY_IS_TIME);
    expect_error(CLV_INVALID, bad_tables[i].want, clv_dataset_open(&o, &ds, &err), &err);
  }
}

static void sets_of_a_column_are_kept_apart(void **state) {
  (void)state;
  static const char text[] =
      "x,y,t,id,s\n1,a,b,c,train\n2,a,b,c,test\n3,a,b,c,valid\n4,a,b,c, train \n5,a,b,c,test\n";
  clv_dataset_options o = make_split_options(text, CLV_KEY_IS_SET);
  CLV_AUTO(clv_dataset_freep) clv_dataset *test = NULL;
  clv_dataset *ds = NULL;
  clv_err err;
  o.kept_set_bits = 1u << CLV_SET_TRAINING | 1u << CLV_SET_VALIDATION;
  assert_validation(&o, 0, CLV_SPLIT_COLUMN, (const double[]){3, 0});
  o.kept_set_bits = 1u << CLV_SET_TEST;
  o.skips_labels = true;
  must(clv_dataset_open(&o, &test, &err), &err);
  assert_int_equal(test->count, 2);
  assert_int_equal(clv_dataset_record_number(test, 1), 4);
  assert_int_equal(clv_dataset_other_set_count(test), 3);
  o = make_split_options("x,y,t,id,s\n1,a,b,c,train\n2,a,b,c,hold\n", CLV_KEY_IS_SET);
  expect_error(CLV_INVALID,
               "s.csv:3:9: 's' (data.validation.column) has 'hold', which is no value of",
               clv_dataset_open(&o, &ds, &err), &err);
  o = make_split_options("x,y,t,id,s\n1,a,b,c,train\n", CLV_KEY_IS_SET);
  o.kept_set_bits = 1u << CLV_SET_TEST;
  expect_error(CLV_INVALID, "s.csv: none of its 1 records is of the test set",
               clv_dataset_open(&o, &ds, &err), &err);
}

/* ---- records that occur twice ---------------------------------------------------------------- */

static clv_dataset *open_encoded(const char *text) {
  CLV_AUTO(clv_learnt_freep) clv_learnt *l = NULL;
  CLV_AUTO(clv_subset_done) clv_subset all = {0};
  const clv_dataset_options o = make_options(write_scratch_file("e.csv", text, strlen(text)), NULL);
  clv_dataset *ds = NULL;
  clv_err err;
  must(clv_dataset_open(&o, &ds, &err), &err);
  must(clv_subset_all(ds, &all, &err), &err);
  must(clv_dataset_learn(ds, &all, &l, &err), &err);
  must(clv_dataset_encode(ds, l, &err), &err);
  return ds;
}

static void duplicate_records_are_counted(void **state) {
  (void)state;
  CLV_AUTO(clv_dataset_freep)
  clv_dataset *ds = open_encoded(HEADER "1,a,u,p\n2,a,u,q\n1,a,v,r\n2,b,u,p\n1,a,u,s\n");
  CLV_AUTO(clv_subset_done) clv_subset all = {0};
  clv_duplicates d;
  clv_err err;
  must(clv_subset_all(ds, &all, &err), &err);
  must(clv_dataset_find_duplicates(ds, &all, ds, &all, false, &d, &err), &err);
  assert_true(d.n == 2 && d.n_with_other_label == 1 && d.record == 2 && d.equal_record == 0);
  must(clv_dataset_find_duplicates(ds, &all, ds, &all, true, &d, &err), &err);
  assert_true(d.n == 1 && d.record == 3 && d.equal_record == 0);
  clv_subset first_two = {.index = (uint32_t[]){0, 1}, .n = 2},
             last_two = {.index = (uint32_t[]){3, 4}, .n = 2};
  must(clv_dataset_find_duplicates(ds, &last_two, ds, &first_two, false, &d, &err), &err);
  assert_true(d.n == 1 && d.record == 4 && d.equal_record == 0 && d.n_with_other_label == 0);
  must(clv_dataset_find_duplicates(ds, &last_two, ds, &first_two, true, &d, &err), &err);
  assert_true(d.n == 1 && d.record == 3 && d.equal_record == 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(odd_csv_files_are_read_or_refused),
      cmocka_unit_test(header_of_10000_columns_is_read),
      cmocka_unit_test(odd_json_lines_are_read_or_refused),
      cmocka_unit_test(keys_that_json_lacks_are_missing_values),
      cmocka_unit_test(unknown_keys_are_never_skipped),
      cmocka_unit_test(queries_are_read_or_refused),
      cmocka_unit_test(files_that_are_no_database_or_in_use_are_refused),
      cmocka_unit_test(database_with_special_characters_in_its_name_is_read),
      cmocka_unit_test(slow_query_is_stopped_at_its_time_limit),
      cmocka_unit_test(dates_are_days_since_1970),
      cmocka_unit_test(forms_of_dates_are_checked),
      cmocka_unit_test(validation_by_time_has_the_latest_records),
      cmocka_unit_test(sets_of_a_column_are_kept_apart),
      cmocka_unit_test(duplicate_records_are_counted),
  };
  return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}
