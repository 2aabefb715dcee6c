/* SPDX-License-Identifier: Apache-2.0
 *
 * Documents made of the schema tables: a commented example file, a JSON Schema, and examples for
 * messages.
 */
#include <stdio.h>
#include <string.h>

#include "common/model/config/schema_int.h"

/* ---- example --------------------------------------------------------------------------------- */

typedef struct example {
  const clv_schema *schema;
  clv_bytes *out;
  int indent;
  bool commented; /* keys are commented out with '#' */
} example;

static void example_map(example *x, const char *prefix);

/* Writes "# text", wrapped between words before column 100. */
static void comment(example *x, const char *text) {
  int width = 96 - x->indent;
  while (*text) {
    size_t n = strlen(text);
    if ((int)n > width) {
      n = (size_t)width;
      while (n > 1 && text[n] != ' ') n--;
    }
    clv_bytes_printf(x->out, "%*s# %.*s\n", x->indent, "", (int)n, text);
    text += n;
    while (*text == ' ') text++;
  }
}

static void example_doc(example *x, const clv_row *row) {
  char text[600], expected[256];
  bool bare = row->kind == CLV_ROW_SECTION || row->kind == CLV_ROW_MAP || row->kind == CLV_ROW_LIST;
  clv_row_describe_expected(row, expected, sizeof expected);
  if (bare)
    snprintf(text, sizeof text, "%s", row->doc);
  else
    snprintf(text, sizeof text, "%s (%s)", row->doc, expected);
  comment(x, text);
}

/* ---- an example for a message ---------------------------------------------------------------- */

void clv_row_inner_example(const clv_schema *schema, const clv_row *row, clv_bytes *out) {
  char inner[CLV_PATH_MAX];
  const char *comma = "";
  clv_row_inner_prefix(row, inner);
  clv_bytes_puts(out, "{");
  for (size_t i = 0; i < schema->n_rows; i++) {
    if (!schema->rows[i].required || !clv_row_key(&schema->rows[i], inner)) continue;
    clv_bytes_puts(out, comma);
    clv_row_example(schema, &schema->rows[i], out);
    comma = ", ";
  }
  clv_bytes_puts(out, "}");
}

void clv_row_example(const clv_schema *schema, const clv_row *row, clv_bytes *out) {
  const char *dot = strrchr(row->path, '.');
  bool list = row->kind == CLV_ROW_LIST && !row->example;
  bool bare = list || row->kind == CLV_ROW_SECTION;
  clv_bytes_printf(out, "%s: ", dot ? dot + 1 : row->path);
  if (list) clv_bytes_puts(out, "[");
  if (bare)
    clv_row_inner_example(schema, row, out);
  else
    clv_bytes_puts(out, row->example   ? row->example
                        : row->initial ? row->initial
                        : row->sample  ? row->sample
                                       : "...");
  if (list) clv_bytes_puts(out, "]");
}

/* ---- the example file ------------------------------------------------------------------------ */

/* Writes the keys below a section, or below the sample entry of a list or map. */
static void example_inner(example *x, const clv_row *row) {
  char inner[CLV_PATH_MAX];
  int indent = x->indent;
  bool entries = row->kind == CLV_ROW_LIST && row->sample && !x->commented;
  clv_row_inner_prefix(row, inner);
  x->commented |= entries;
  if (row->kind != CLV_ROW_SECTION) {
    x->indent += 2;
    clv_bytes_printf(x->out, "%*s%s%s%s\n", x->indent, "", x->commented ? "#" : "",
                     row->kind == CLV_ROW_LIST ? "-" : row->sample,
                     row->kind == CLV_ROW_LIST ? "" : ":");
  }
  x->indent += 2;
  example_map(x, inner);
  x->indent = indent;
  if (entries) clv_bytes_puts(x->out, row->sample);
}

static void example_row(example *x, const clv_row *row, const char *key) {
  bool commented = x->commented;
  bool nested =
      row->kind == CLV_ROW_SECTION || row->kind == CLV_ROW_MAP || row->kind == CLV_ROW_LIST;
  const char *value = row->initial ? row->initial : row->sample;
  if (x->indent == 0) clv_bytes_puts(x->out, "\n");
  example_doc(x, row);
  if (row->kind == CLV_ROW_ATTRS) return;
  x->commented |=
      row->commented || (!nested && !row->required && !row->initial && !row->is_in_example);
  clv_bytes_printf(x->out, "%*s%s%s:", x->indent, "", x->commented ? "#" : "", key);
  clv_bytes_printf(x->out, nested ? "\n" : " %s\n", value);
  if (nested) example_inner(x, row);
  x->commented = commented;
}

static void example_map(example *x, const char *prefix) {
  for (size_t i = 0; i < x->schema->n_rows; i++) {
    const char *key = clv_row_key(&x->schema->rows[i], prefix);
    if (key) example_row(x, &x->schema->rows[i], key);
  }
}

void clv_schema_example(const clv_schema *schema, clv_bytes *ret) {
  example x = {.schema = schema, .out = ret};
  comment(&x, schema->doc);
  example_map(&x, "");
}

/* ---- JSON Schema ----------------------------------------------------------------------------- */

typedef struct json {
  const clv_schema *schema;
  clv_bytes *out;
} json;

static void json_map(const json *j, const char *prefix);

static void json_text(const json *j, const char *name, const char *text) {
  clv_bytes_printf(j->out, ",\"%s\":", name);
  clv_bytes_json(j->out, text);
}

static void json_number(const json *j, const char *name, double value) {
  char text[32];
  clv_double_to_text(value, text);
  clv_bytes_printf(j->out, ",\"%s\":%s", name, text);
}

static void json_entry_counts(const json *j, const clv_row *row) {
  const char *what = row->kind == CLV_ROW_MAP ? "Properties" : "Items";
  if (row->min) clv_bytes_printf(j->out, ",\"min%s\":%llu", what, (unsigned long long)row->min);
  if (row->max) clv_bytes_printf(j->out, ",\"max%s\":%llu", what, (unsigned long long)row->max);
}

static void json_bounds(const json *j, const clv_row *row) {
  if (row->kind == CLV_ROW_INT)
    clv_bytes_printf(j->out, ",\"minimum\":%llu,\"maximum\":%llu", (unsigned long long)row->min,
                     (unsigned long long)row->max);
  if (row->kind != CLV_ROW_NUMBER && row->kind != CLV_ROW_NUMBERS) return;
  json_number(j, row->excludes_low ? "exclusiveMinimum" : "minimum", row->low);
  if (row->high < 1e300) json_number(j, "maximum", row->high);
}

static void json_enum(const json *j, const clv_row *row) {
  const char *comma = "";
  clv_bytes_puts(j->out, ",\"enum\":[");
  for (const char *const *name = row->names; *name; name++) {
    if (!**name) continue;
    clv_bytes_puts(j->out, comma);
    clv_bytes_json(j->out, *name);
    comma = ",";
  }
  clv_bytes_puts(j->out, "]");
}

static void json_nested(const json *j, const clv_row *row) {
  char inner[CLV_PATH_MAX];
  clv_row_inner_prefix(row, inner);
  if (row->kind == CLV_ROW_SECTION) {
    json_map(j, inner);
    return;
  }
  json_entry_counts(j, row);
  if (row->kind == CLV_ROW_MAP) {
    clv_bytes_puts(j->out, ",\"propertyNames\":{\"type\":\"string\"");
    json_text(j, "pattern", clv_format_pattern(row->format));
    clv_bytes_puts(j->out, "},\"additionalProperties\":{\"type\":\"object\"");
  } else {
    clv_bytes_puts(j->out, ",\"items\":{\"type\":\"object\"");
  }
  json_map(j, inner);
  clv_bytes_puts(j->out, "}");
}

/* Writes the schema of a number or of a word that stands for one. */
static void json_words(const json *j, const clv_row *row) {
  clv_bytes_puts(j->out, "{\"anyOf\":[{\"type\":\"integer\"");
  json_bounds(j, row);
  clv_bytes_puts(j->out, "},{\"type\":\"string\"");
  json_enum(j, row);
  clv_bytes_puts(j->out, "}]");
}

static void json_row(const json *j, const clv_row *row) {
  static const char *const types[CLV_ROW_KINDS] = {
      [CLV_ROW_SECTION] = "\"object\"",
      [CLV_ROW_MAP] = "\"object\"",
      [CLV_ROW_BOOL] = "\"boolean\"",
      [CLV_ROW_INT] = "\"integer\"",
      [CLV_ROW_NUMBER] = "\"number\"",
      [CLV_ROW_SIZE] = "[\"string\",\"integer\"]",
      [CLV_ROW_DURATION] = "\"string\"",
      [CLV_ROW_ENUM] = "\"string\"",
      [CLV_ROW_TEXT] = "\"string\"",
      [CLV_ROW_PATH] = "\"string\"",
      [CLV_ROW_TEXTS] = "\"array\"",
      [CLV_ROW_NUMBERS] = "\"array\"",
      [CLV_ROW_RANGE] = "\"string\"",
      [CLV_ROW_LIST] = "\"array\"",
      [CLV_ROW_SEED] = "[\"string\",\"integer\"]",
  };
  bool yes = row->kind == CLV_ROW_TEXT && row->format == CLV_FORMAT_FOLDER;
  if (row->kind == CLV_ROW_INT && row->names)
    json_words(j, row);
  else
    clv_bytes_printf(j->out, "{\"type\":%s", yes ? "[\"string\",\"boolean\"]" : types[row->kind]);
  json_text(j, "description", row->doc);
  bool worded = row->kind == CLV_ROW_INT && row->names;
  if (!worded && (row->kind == CLV_ROW_INT || row->kind == CLV_ROW_NUMBER)) json_bounds(j, row);
  if (row->kind == CLV_ROW_ENUM) json_enum(j, row);
  if (row->kind == CLV_ROW_TEXT && clv_format_pattern(row->format))
    json_text(j, "pattern", clv_format_pattern(row->format));
  if (row->kind == CLV_ROW_RANGE) json_text(j, "pattern", "^[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}$");
  if (row->kind == CLV_ROW_SEED) json_text(j, "pattern", "^([0-9A-Fa-f]{32}|[0-9]{1,20})$");
  if (row->kind == CLV_ROW_TEXTS || row->kind == CLV_ROW_NUMBERS) {
    json_entry_counts(j, row);
    clv_bytes_printf(j->out, ",\"items\":{\"type\":\"%s\"",
                     row->kind == CLV_ROW_TEXTS ? "string" : "number");
    json_bounds(j, row);
    if (row->names) json_enum(j, row);
    if (row->format != CLV_FORMAT_ANY) json_text(j, "pattern", clv_format_pattern(row->format));
    clv_bytes_puts(j->out, "}");
  }
  if (row->kind == CLV_ROW_SECTION || row->kind == CLV_ROW_LIST || row->kind == CLV_ROW_MAP)
    json_nested(j, row);
  clv_bytes_puts(j->out, "}");
}

/* Writes the schema of a key. Two rows with one path are two alternatives of its value. Returns the
 * number of rows used. */
static size_t json_property(const json *j, size_t i, const char *key) {
  const clv_row *row = &j->schema->rows[i];
  bool two = clv_row_has_second_form(j->schema, row);
  clv_bytes_json(j->out, key);
  clv_bytes_puts(j->out, two ? ":{\"anyOf\":[" : ":");
  json_row(j, row);
  if (two) {
    clv_bytes_puts(j->out, ",");
    json_row(j, row + 1);
    clv_bytes_puts(j->out, "]}");
  }
  return two ? 2 : 1;
}

/* The old name of a key, which editors then show as deprecated. */
static void json_old_property(const json *j, const clv_row *row) {
  clv_bytes_json(j->out, row->was);
  clv_bytes_puts(j->out, ":{\"deprecated\":true");
  json_text(j, "description", "Name before 0.9 of the key below.");
  clv_bytes_puts(j->out, "},");
}

static void json_required(const json *j, const char *prefix) {
  const char *comma = "";
  clv_bytes_puts(j->out, ",\"required\":[");
  for (size_t i = 0; i < j->schema->n_rows; i++) {
    const char *key = clv_row_key(&j->schema->rows[i], prefix);
    if (!key || !j->schema->rows[i].required) continue;
    clv_bytes_puts(j->out, comma);
    clv_bytes_json(j->out, key);
    comma = ",";
  }
  clv_bytes_puts(j->out, "]");
}

/* Writes the members of an object schema, whose '{' and type are already written. */
static void json_map(const json *j, const char *prefix) {
  const char *comma = "";
  bool attrs = false;
  clv_bytes_puts(j->out, ",\"properties\":{");
  for (size_t i = 0; i < j->schema->n_rows;) {
    const char *key = clv_row_key(&j->schema->rows[i], prefix);
    bool own = key && j->schema->rows[i].kind != CLV_ROW_ATTRS;
    attrs |= key && !own;
    if (own) clv_bytes_puts(j->out, comma), comma = ",";
    if (own && j->schema->rows[i].was) json_old_property(j, &j->schema->rows[i]);
    i += own ? json_property(j, i, key) : 1;
  }
  clv_bytes_puts(j->out, "}");
  json_required(j, prefix);
  clv_bytes_puts(j->out, attrs ? ",\"additionalProperties\":{\"type\":[\"number\",\"string\","
                                 "\"boolean\",\"array\"],\"items\":{\"type\":\"integer\"}}"
                               : ",\"additionalProperties\":false");
}

void clv_schema_json(const clv_schema *schema, clv_bytes *ret) {
  json j = {.schema = schema, .out = ret};
  clv_bytes_puts(ret, "{\"$schema\":\"https://json-schema.org/draft/2020-12/schema\"");
  json_text(&j, "title", schema->title);
  json_text(&j, "description", schema->doc);
  clv_bytes_puts(ret, ",\"type\":\"object\"");
  json_map(&j, "");
  clv_bytes_puts(ret, "}\n");
}
