/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads cells of a query of an SQLite database. The file is opened read-only and as immutable, so
 * SQLite writes no file beside it. The query can select, read and call the functions of
 * query_text.c, and nothing else: the authorizer refuses every other action when the query is
 * compiled. Time, rows and memory have limits.
 *
 * The library is loaded when the first database is opened, so that other sessions do not pay for
 * it.
 */
#include <dlfcn.h>
#include <math.h>
#include <pthread.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

#include "master/data/cell_source_int.h"

enum {
  STEPS_BETWEEN_CHECKS = 10000, /* instructions of the query between two checks of the clock */
  MAX_SQL_BYTES = 65536,        /* most bytes of a query's text */
  MAX_EXPRESSION_DEPTH = 100,   /* most nested levels of an expression */
  MAX_UNION_PARTS = 50,         /* most parts of a UNION in a query */
  MAX_MESSAGE_BYTES = 200,      /* most bytes that messages show of SQLite's own messages */
};

/* most bytes of memory that the SQLite library may use; it needs most of them to sort records */
#define MAX_MEMORY_BYTES ((int64_t)4 << 30)

/* ---- loading the SQLite library -------------------------------------------------------------- */

#define SQLITE_LIBRARY "libsqlite3.so.0"
#define SQLITE_FUNCTIONS(F) \
  F(open_v2)                \
  F(close)                  \
  F(errmsg)                 \
  F(exec)                   \
  F(hard_heap_limit64)      \
  F(db_config)              \
  F(limit)                  \
  F(set_authorizer)         \
  F(progress_handler)       \
  F(prepare_v3)             \
  F(stmt_readonly)          \
  F(stmt_isexplain)         \
  F(bind_parameter_count)   \
  F(step)                   \
  F(finalize)               \
  F(column_count)           \
  F(column_name)            \
  F(column_type)            \
  F(column_double)          \
  F(column_text)            \
  F(column_bytes)

#define FUNCTION_FIELD(name) __typeof__(sqlite3_##name) *name;
static struct {
  pthread_once_t load_once;
  bool is_loaded;
  SQLITE_FUNCTIONS(FUNCTION_FIELD)
} sqlite = {.load_once = PTHREAD_ONCE_INIT};

#define FIND_FUNCTION(name) \
  ok &= (*(void **)&sqlite.name = dlsym(library, "sqlite3_" #name)) != NULL;
static void resolve_functions(void) {
  void *library = dlopen(SQLITE_LIBRARY, RTLD_NOW | RTLD_LOCAL);
  bool ok = library != NULL;
  if (!ok) return;
  SQLITE_FUNCTIONS(FIND_FUNCTION)
  sqlite.is_loaded = ok;
}

static clv_code load_library(clv_err *err) {
  pthread_once(&sqlite.load_once, resolve_functions);
  if (sqlite.is_loaded) return CLV_OK;
  return clv_fail(err, CLV_PRECONDITION,
                  SQLITE_LIBRARY
                  " does not load, and the table is a database: install libsqlite3-0");
}

/* ---- state of a query ------------------------------------------------------------------------ */

struct clv_query {
  sqlite3 *db;
  sqlite3_stmt *statement;
  uint64_t deadline_ns, max_rows;
  uint32_t max_seconds;
  bool has_timed_out, is_interrupted; /* why the progress handler has stopped the query */
  char denied_action[120];            /* action that the authorizer refused; "": none */
};

void clv_query_free(clv_query *q) {
  if (!q) return;
  if (q->statement) sqlite.finalize(q->statement);
  if (q->db) sqlite.close(q->db);
  free(q);
}

/* ---- what a query may do --------------------------------------------------------------------- */

/* Names, for messages, of the forbidden actions that people try first. Messages call any other
 * action "this statement". */
static const struct {
  int action;
  const char *name;
} action_names[] = {{SQLITE_ATTACH, "ATTACH"},
                    {SQLITE_PRAGMA, "PRAGMA"},
                    {SQLITE_INSERT, "INSERT"},
                    {SQLITE_UPDATE, "UPDATE"},
                    {SQLITE_DELETE, "DELETE"},
                    {SQLITE_RECURSIVE, "WITH RECURSIVE"},
                    {SQLITE_TRANSACTION, "BEGIN and COMMIT"}};

/* True for the tables through which a SELECT can run a PRAGMA. Newer SQLite libraries report such a
 * use as the reading of a table. */
static bool is_pragma_table(const char *name) {
  static const char prefix[] = "pragma_";
  return name && strncasecmp(name, prefix, sizeof prefix - 1) == 0;
}

/* Callback of SQLite for each action of a query. table: name of the table, for an action on a
 * table; function: name of the function, for SQLITE_FUNCTION. */
static int authorize_action(void *user, int action, const char *table, const char *function,
                            const char *database, const char *trigger) {
  clv_query *q = user;
  const char *name = "this statement";
  (void)database, (void)trigger;
  if (action == SQLITE_READ && is_pragma_table(table)) action = SQLITE_PRAGMA;
  if (action == SQLITE_SELECT || action == SQLITE_READ) return SQLITE_OK;
  if (action == SQLITE_FUNCTION && function && clv_query_may_call(function)) return SQLITE_OK;
  for (size_t i = 0; i < CLV_COUNT(action_names); i++)
    if (action_names[i].action == action) name = action_names[i].name;
  if (action == SQLITE_FUNCTION)
    snprintf(q->denied_action, sizeof q->denied_action, "the function %.60s",
             function ? function : "");
  else
    snprintf(q->denied_action, sizeof q->denied_action, "%s", name);
  return SQLITE_DENY;
}

/* Callback of SQLite during a query: stops the query when its time is over, or when the user has
 * interrupted the command. */
static int stop_at_deadline(void *user) {
  clv_query *q = user;
  q->has_timed_out = clv_now_ns() > q->deadline_ns;
  q->is_interrupted = clv_ms_since_interrupt() != 0;
  return q->has_timed_out || q->is_interrupted;
}

/* ---- opening a database ---------------------------------------------------------------------- */

/* Copies a text of the SQLite library for a message, shortened and printable. */
static const char *make_printable(const char *text, char printable_text[MAX_MESSAGE_BYTES]) {
  clv_text_truncate(text, printable_text, MAX_MESSAGE_BYTES);
  clv_text_to_printable(printable_text);
  return printable_text;
}

static clv_code fail_query(const clv_cell_source *s, const char *text, clv_err *err) {
  return clv_fail(err, CLV_INVALID, "%.200s: data.table.query: %s", s->path, text);
}

/* Fails with the reason why the SQLite library has stopped. */
static clv_code fail_library(const clv_cell_source *s, clv_err *err) {
  const clv_query *q = s->query;
  char text[MAX_MESSAGE_BYTES + 200], reason[MAX_MESSAGE_BYTES];
  if (q->is_interrupted) return clv_fail(err, CLV_CANCELLED, "%.200s: interrupted", s->path);
  make_printable(sqlite.errmsg(q->db), reason);
  if (q->has_timed_out)
    snprintf(text, sizeof text,
             "takes more than %u s: give it an index, or raise data.table.query_seconds",
             q->max_seconds);
  else if (q->denied_action[0])
    snprintf(text, sizeof text,
             "%s is not permitted: a query selects, reads tables of its own file and calls "
             "functions that depend on their arguments alone",
             q->denied_action);
  else
    snprintf(text, sizeof text, "%s", reason);
  return fail_query(s, text, err);
}

/* Fails if a file beside the database (-wal, -journal) has changes that SQLite has not yet written
 * into the database. */
static clv_code check_no_journal_changes(const char *path, clv_err *err) {
  static const char *const suffixes[] = {"-wal", "-journal"};
  for (size_t i = 0; i < CLV_COUNT(suffixes); i++) {
    CLV_AUTO(clv_bytes_done) clv_bytes name = {0};
    struct stat st;
    clv_bytes_printf(&name, "%s%s", path, suffixes[i]);
    if (name.failed) return clv_fail(err, CLV_EXHAUSTED, "out of memory");
    if (stat(name.data, &st) == 0 && st.st_size > 0)
      return clv_fail(err, CLV_INVALID,
                      "%.200s: %.200s has changes that are not in it: close the program that "
                      "writes it, or copy the database with sqlite3 FILE \".backup COPY\"",
                      path, name.data);
  }
  return CLV_OK;
}

/* Writes a URI with which SQLite opens the file read-only and as immutable. */
static clv_code make_uri(const char *path, clv_bytes *ret, clv_err *err) {
  clv_bytes_puts(ret, "file:");
  for (const char *c = path; *c; c++)
    if (strchr("?#%", *c))
      clv_bytes_printf(ret, "%%%02X", (unsigned)(unsigned char)*c);
    else
      clv_bytes_add(ret, c, 1);
  clv_bytes_puts(ret, "?mode=ro&immutable=1");
  return ret->failed ? clv_fail(err, CLV_EXHAUSTED, "out of memory") : CLV_OK;
}

/* Forbids a query everything but reading the database: sets options and limits of the SQLite
 * library, the authorizer and the time limit. Call this before the query is compiled. */
static bool restrict_database(clv_query *q) {
  static const struct {
    int key, value;
  } settings[] = {{SQLITE_DBCONFIG_DEFENSIVE, 1},
                  {SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0},
                  {SQLITE_DBCONFIG_ENABLE_TRIGGER, 0},
                  {SQLITE_DBCONFIG_ENABLE_LOAD_EXTENSION, 0},
                  {SQLITE_DBCONFIG_ENABLE_FTS3_TOKENIZER, 0},
                  {SQLITE_DBCONFIG_WRITABLE_SCHEMA, 0}},
    limits[] = {{SQLITE_LIMIT_LENGTH, CLV_TEXT_RECORD_MAX},
                {SQLITE_LIMIT_SQL_LENGTH, MAX_SQL_BYTES},
                {SQLITE_LIMIT_EXPR_DEPTH, MAX_EXPRESSION_DEPTH},
                {SQLITE_LIMIT_COMPOUND_SELECT, MAX_UNION_PARTS},
                {SQLITE_LIMIT_ATTACHED, 0},
                {SQLITE_LIMIT_VARIABLE_NUMBER, 0},
                {SQLITE_LIMIT_TRIGGER_DEPTH, 0},
                {SQLITE_LIMIT_WORKER_THREADS, 0}};
  bool ok = true;
  for (size_t i = 0; i < CLV_COUNT(settings); i++)
    ok &= sqlite.db_config(q->db, settings[i].key, settings[i].value, NULL) == SQLITE_OK;
  for (size_t i = 0; i < CLV_COUNT(limits); i++)
    sqlite.limit(q->db, limits[i].key, limits[i].value);
  sqlite.hard_heap_limit64(MAX_MEMORY_BYTES);
  /* records are sorted in memory, never in a temporary file */
  ok &= sqlite.exec(q->db, "PRAGMA temp_store = MEMORY", NULL, NULL, NULL) == SQLITE_OK;
  ok &= sqlite.set_authorizer(q->db, authorize_action, q) == SQLITE_OK;
  sqlite.progress_handler(q->db, STEPS_BETWEEN_CHECKS, stop_at_deadline, q);
  return ok;
}

static clv_code open_database(clv_cell_source *s, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes uri = {0};
  char reason[MAX_MESSAGE_BYTES];
  clv_query *q = s->query;
  CLV_TRY(check_no_journal_changes(s->path, err));
  CLV_TRY(make_uri(s->path, &uri, err));
  int flags = SQLITE_OPEN_READONLY | SQLITE_OPEN_URI | SQLITE_OPEN_NOMUTEX;
  if (sqlite.open_v2(uri.data, &q->db, flags, NULL) != SQLITE_OK || !restrict_database(q))
    return clv_fail(err, CLV_INVALID, "%.200s: is no SQLite database that can be read: %s", s->path,
                    make_printable(q->db ? sqlite.errmsg(q->db) : "no memory", reason));
  return CLV_OK;
}

static clv_code compile_query(clv_cell_source *s, const char *sql, clv_err *err) {
  clv_query *q = s->query;
  if (sqlite.prepare_v3(q->db, sql, -1, 0, &q->statement, NULL) != SQLITE_OK)
    return fail_library(s, err);
  if (!q->statement || !sqlite.stmt_readonly(q->statement) || sqlite.stmt_isexplain(q->statement) ||
      !sqlite.column_count(q->statement))
    return fail_query(s, "is no SELECT", err);
  if (sqlite.bind_parameter_count(q->statement))
    return fail_query(s, "has parameters (?, :name, @name), which have no values here", err);
  return CLV_OK;
}

/* ---- records of a query ---------------------------------------------------------------------- */

static clv_code start_next_record(clv_cell_source *s, bool *ret_has_more, clv_err *err) {
  clv_query *q = s->query;
  int code = sqlite.step(q->statement);
  *ret_has_more = code == SQLITE_ROW;
  if (code != SQLITE_ROW && code != SQLITE_DONE) {
    s->has_ended_early = true;
    return fail_library(s, err);
  }
  if (*ret_has_more && s->n_records == q->max_rows) {
    char text[120];
    snprintf(text, sizeof text,
             "has more than %llu records: end it with LIMIT, or raise data.table.query_rows",
             (unsigned long long)q->max_rows);
    return fail_query(s, text, err);
  }
  s->n_records += *ret_has_more;
  s->n_cells = 0;
  return CLV_OK;
}

/* Writes a number with the fewest digits from which the same double is read back. */
static void append_real(double v, clv_bytes *out) {
  char text[40];
  for (int n_digits = 15; n_digits <= 17; n_digits++) {
    snprintf(text, sizeof text, "%.*g", n_digits, v);
    if (strtod(text, NULL) == v) break;
  }
  clv_bytes_puts(out, text);
}

static clv_code read_cell(clv_cell_source *s, clv_source_cell *ret, bool *ret_has_more,
                          clv_err *err) {
  static const clv_cell_kind cell_kinds[] = {[SQLITE_INTEGER] = CLV_CELL_NUMBER,
                                             [SQLITE_FLOAT] = CLV_CELL_NUMBER,
                                             [SQLITE_TEXT] = CLV_CELL_TEXT,
                                             [SQLITE_BLOB] = CLV_CELL_OTHER,
                                             [SQLITE_NULL] = CLV_CELL_MISSING};
  *ret_has_more = s->n_cells < s->fields.n;
  if (!*ret_has_more) return CLV_OK;
  sqlite3_stmt *statement = s->query->statement;
  int column = (int)s->n_cells++, type = sqlite.column_type(statement, column);
  s->text.len = 0;
  clv_bytes_add(&s->text, "", 0);
  if (type == SQLITE_FLOAT) {
    append_real(sqlite.column_double(statement, column), &s->text);
  } else if (type == SQLITE_BLOB) {
    clv_bytes_puts(&s->text, "bytes (a BLOB)");
  } else if (type != SQLITE_NULL) {
    const unsigned char *text = sqlite.column_text(statement, column);
    int n = sqlite.column_bytes(statement, column);
    if (text) clv_bytes_add(&s->text, text, (size_t)n);
    s->text.failed |= !text;
  }
  if (s->text.failed) return clv_fail(err, CLV_EXHAUSTED, "%.200s: no memory for a cell", s->path);
  *ret = (clv_source_cell){cell_kinds[type], (size_t)column, s->text.data, s->text.len};
  return CLV_OK;
}

static clv_code fail_record(const clv_cell_source *s, const char *text, clv_err *err) {
  return clv_fail(err, CLV_INVALID, "%.200s: record %zu of data.table.query: %s", s->path,
                  s->n_records, text);
}

static clv_code fail_field(const clv_cell_source *s, size_t field, const char *text, clv_err *err) {
  (void)field;
  return fail_query(s, text, err);
}

static const clv_cell_reader sqlite_reader = {.start_next_record = start_next_record,
                                              .read_cell = read_cell,
                                              .fail_cell = fail_record,
                                              .fail_record = fail_record,
                                              .fail_field = fail_field};

static clv_code add_fields(clv_cell_source *s, clv_err *err) {
  clv_err reason;
  int n = sqlite.column_count(s->query->statement);
  for (int i = 0; i < n; i++) {
    const char *name = sqlite.column_name(s->query->statement, i);
    if (!name) return clv_fail(err, CLV_EXHAUSTED, "%.200s: no memory for columns", s->path);
    if (clv_fields_add(&s->fields, name, strlen(name), 0, &reason) != CLV_OK)
      return fail_query(s, reason.text, err);
  }
  return CLV_OK;
}

clv_code clv_cells_sqlite_open(clv_cell_source *s, const clv_table_options *o, clv_err *err) {
  clv_err reason;
  s->reader = &sqlite_reader;
  if (!o->query)
    return clv_fail(err, CLV_INVALID,
                    "%.200s: is an SQLite database: set data.table.query, such as SELECT * FROM "
                    "patients ORDER BY patient",
                    s->path);
  if (strlen(o->query) > MAX_SQL_BYTES) return fail_query(s, "has more than 65536 bytes", err);
  if (clv_query_text_check(o->query, &reason) != CLV_OK) return fail_query(s, reason.text, err);
  CLV_TRY(load_library(err));
  CLV_TRY(clv_alloc(1, sizeof *s->query, &s->query, err));
  s->query->max_seconds = o->query_seconds;
  s->query->max_rows = o->query_rows;
  s->query->deadline_ns = clv_now_ns() + (uint64_t)o->query_seconds * 1000000000u;
  CLV_TRY(open_database(s, err));
  CLV_TRY(compile_query(s, o->query, err));
  return add_fields(s, err);
}
