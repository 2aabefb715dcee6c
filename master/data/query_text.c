/* SPDX-License-Identifier: Apache-2.0
 *
 * Finds the words of an SQL query. Skips strings, names in quotes and comments, and counts
 * parentheses, to distinguish the ORDER BY of the query itself from that of a subquery.
 */
#include <ctype.h>
#include <string.h>
#include <strings.h>

#include "master/data/cell_source_int.h"

/* Functions that a query may call, sorted. They have no side effects, and none reads another file,
 * loads code or draws at random. */
static const char *const allowed_functions[] = {
    "abs",          "acos",         "asin",        "atan",      "atan2",      "avg",
    "ceil",         "ceiling",      "char",        "coalesce",  "concat",     "concat_ws",
    "cos",          "count",        "cume_dist",   "date",      "datetime",   "degrees",
    "dense_rank",   "exp",          "first_value", "floor",     "format",     "glob",
    "group_concat", "hex",          "ifnull",      "iif",       "instr",      "julianday",
    "lag",          "last_value",   "lead",        "length",    "like",       "likelihood",
    "likely",       "ln",           "log",         "log10",     "log2",       "lower",
    "ltrim",        "max",          "min",         "mod",       "nth_value",  "ntile",
    "nullif",       "percent_rank", "pow",         "power",     "printf",     "quote",
    "radians",      "rank",         "replace",     "round",     "row_number", "rtrim",
    "sign",         "sin",          "sqrt",        "strftime",  "string_agg", "substr",
    "substring",    "sum",          "tan",         "time",      "total",      "trim",
    "trunc",        "typeof",       "unicode",     "unixepoch", "unlikely",   "upper"};

bool clv_query_may_call(const char *function) {
  for (size_t i = 0; i < CLV_COUNT(allowed_functions); i++)
    if (strcasecmp(allowed_functions[i], function) == 0) return true;
  return false;
}

/* Returns the length of a string or a name in quotes; 0: its quote has no end. A doubled quote
 * stands for a single one within the string. */
static size_t get_quoted_length(const char *text) {
  char end_quote = *text == '[' ? ']' : *text;
  for (size_t i = 1; text[i]; i++) {
    if (text[i] != end_quote) continue;
    if (end_quote == ']' || text[i + 1] != end_quote) return i + 1;
    i++;
  }
  return 0;
}

static size_t get_comment_length(const char *text) {
  const char *end = NULL;
  if (strncmp(text, "--", 2) == 0) return strcspn(text, "\n");
  if (strncmp(text, "/*", 2) != 0) return 0;
  end = strstr(text + 2, "*/");
  return end ? (size_t)(end - text) + 2 : strlen(text);
}

static size_t get_word_length(const char *text) {
  size_t n = 0;
  while (isalnum((unsigned char)text[n]) || text[n] == '_' || text[n] == '$' ||
         (unsigned char)text[n] >= 0x80)
    n++;
  return n;
}

/* State while the words of a query are read. */
typedef struct query_scan {
  size_t depth;        /* number of open parentheses */
  bool is_after_order; /* the previous word was ORDER, outside of parentheses */
  bool has_order_by;   /* ORDER BY was outside of parentheses */
  bool has_ended;      /* a semicolon has ended the statement */
} query_scan;

static void note_query_word(query_scan *w, const char *text, size_t n) {
  bool is_by = n == 2 && strncasecmp(text, "by", 2) == 0;
  w->has_order_by = w->has_order_by || (w->is_after_order && is_by);
  w->is_after_order = !w->depth && n == 5 && strncasecmp(text, "order", 5) == 0;
}

/* Takes the token at `text` and updates the state. Returns its bytes; 0: a quote has no end. */
static size_t skip_token(query_scan *w, const char *text) {
  size_t comment_len = get_comment_length(text), word_len = get_word_length(text);
  if (comment_len) return comment_len;
  if (strchr(" \t\r\n\f", *text)) return 1;
  if (word_len) return note_query_word(w, text, word_len), word_len;
  w->is_after_order = false;
  w->depth += *text == '(';
  w->depth -= *text == ')' && w->depth;
  w->has_ended = w->has_ended || *text == ';';
  return strchr("'\"`[", *text) ? get_quoted_length(text) : 1;
}

clv_code clv_query_text_check(const char *sql, clv_err *err) {
  query_scan w = {0};
  for (size_t n; *sql; sql += n) {
    bool had_ended = w.has_ended;
    n = skip_token(&w, sql);
    if (!n) return clv_fail(err, CLV_INVALID, "quotes have no end: close them or double them");
    if (had_ended && !get_comment_length(sql) && !strchr(" \t\r\n\f;", *sql))
      return clv_fail(err, CLV_INVALID, "more than one statement: a query is one SELECT");
  }
  if (w.has_order_by) return CLV_OK;
  return clv_fail(err, CLV_INVALID,
                  "it has no ORDER BY, and without one the records have no order: end it with "
                  "ORDER BY and a key, such as ORDER BY patient");
}
