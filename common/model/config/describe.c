/* SPDX-License-Identifier: Apache-2.0
 *
 * Documents made of the schema tables: a commented example file, a JSON Schema, and examples for
 * messages.
 */
#include <stdio.h>
#include <string.h>

#include "common/model/config/schema_int.h"

/* ---- writing comments of the example file ---------------------------------------------------- */

typedef struct example {
  const clv_schema *schema;
  clv_bytes *out;
  int indent;
  bool is_commented_out; /* keys are written as comments, with '#' in front */
} example;

static void write_example_keys(example *x, const char *prefix);

/* Writes a text as '#' comments, wrapped between words before column 100. */
static void write_comment(example *x, const char *text) {
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

static void write_example_doc(example *x, const clv_row *row) {
  char text[600], expected[256];
  bool has_inner_keys =
      row->kind == CLV_ROW_SECTION || row->kind == CLV_ROW_MAP || row->kind == CLV_ROW_LIST;
  clv_row_describe_expected(row, expected, sizeof expected);
  if (has_inner_keys)
    snprintf(text, sizeof text, "%s", row->doc);
  else
    snprintf(text, sizeof text, "%s (%s)", row->doc, expected);
  write_comment(x, text);
}

/* ---- an example for a message ---------------------------------------------------------------- */

void clv_row_write_inner_example(const clv_schema *schema, const clv_row *row, clv_bytes *out) {
  char inner_prefix[CLV_PATH_MAX];
  const char *comma = "";
  clv_row_write_inner_prefix(row, inner_prefix);
  clv_bytes_puts(out, "{");
  for (size_t i = 0; i < schema->n_rows; i++) {
    if (!schema->rows[i].required || !clv_row_key(&schema->rows[i], inner_prefix)) continue;
    clv_bytes_puts(out, comma);
    clv_row_write_example(schema, &schema->rows[i], out);
    comma = ", ";
  }
  clv_bytes_puts(out, "}");
}

void clv_row_write_example(const clv_schema *schema, const clv_row *row, clv_bytes *out) {
  const char *dot = strrchr(row->path, '.');
  bool is_list = row->kind == CLV_ROW_LIST && !row->example;
  bool needs_braces = is_list || row->kind == CLV_ROW_SECTION;
  clv_bytes_printf(out, "%s: ", dot ? dot + 1 : row->path);
  if (is_list) clv_bytes_puts(out, "[");
  if (needs_braces)
    clv_row_write_inner_example(schema, row, out);
  else
    clv_bytes_puts(out, row->example        ? row->example
                        : row->default_text ? row->default_text
                        : row->sample       ? row->sample
                                            : "...");
  if (is_list) clv_bytes_puts(out, "]");
}

/* ---- the example file ------------------------------------------------------------------------ */

/* Writes the keys inside a section, or inside a sample entry of a list or map. */
static void write_example_inner_keys(example *x, const clv_row *row) {
  char inner_prefix[CLV_PATH_MAX];
  int indent = x->indent;
  bool entries = row->kind == CLV_ROW_LIST && row->sample && !x->is_commented_out;
  clv_row_write_inner_prefix(row, inner_prefix);
  x->is_commented_out |= entries;
  if (row->kind != CLV_ROW_SECTION) {
    x->indent += 2;
    clv_bytes_printf(x->out, "%*s%s%s%s\n", x->indent, "", x->is_commented_out ? "#" : "",
                     row->kind == CLV_ROW_LIST ? "-" : row->sample,
                     row->kind == CLV_ROW_LIST ? "" : ":");
  }
  x->indent += 2;
  write_example_keys(x, inner_prefix);
  x->indent = indent;
  if (entries) clv_bytes_puts(x->out, row->sample);
}

static void write_example_key(example *x, const clv_row *row, const char *key) {
  bool was_commented_out = x->is_commented_out;
  bool is_nested =
      row->kind == CLV_ROW_SECTION || row->kind == CLV_ROW_MAP || row->kind == CLV_ROW_LIST;
  const char *value = row->default_text ? row->default_text : row->sample;
  if (x->indent == 0) clv_bytes_puts(x->out, "\n");
  write_example_doc(x, row);
  if (row->kind == CLV_ROW_ATTRS) return;
  x->is_commented_out |= row->is_commented_out || (!is_nested && !row->required &&
                                                   !row->default_text && !row->is_in_example);
  clv_bytes_printf(x->out, "%*s%s%s:", x->indent, "", x->is_commented_out ? "#" : "", key);
  clv_bytes_printf(x->out, is_nested ? "\n" : " %s\n", value);
  if (is_nested) write_example_inner_keys(x, row);
  x->is_commented_out = was_commented_out;
}

static void write_example_keys(example *x, const char *prefix) {
  for (size_t i = 0; i < x->schema->n_rows; i++) {
    const char *key = clv_row_key(&x->schema->rows[i], prefix);
    if (key) write_example_key(x, &x->schema->rows[i], key);
  }
}

void clv_schema_write_example(const clv_schema *schema, clv_bytes *ret) {
  example x = {.schema = schema, .out = ret};
  write_comment(&x, schema->doc);
  write_example_keys(&x, "");
}

/* ---- writing the JSON Schema ----------------------------------------------------------------- */

typedef struct json {
  const clv_schema *schema;
  clv_bytes *out;
} json;

static void write_json_map(const json *j, const char *prefix);

static void write_json_text(const json *j, const char *name, const char *text) {
  clv_bytes_printf(j->out, ",\"%s\":", name);
  clv_bytes_add_json(j->out, text);
}

static void write_json_number(const json *j, const char *name, double value) {
  char text[32];
  clv_double_to_text(value, text);
  clv_bytes_printf(j->out, ",\"%s\":%s", name, text);
}

static void write_json_entry_counts(const json *j, const clv_row *row) {
  const char *suffix = row->kind == CLV_ROW_MAP ? "Properties" : "Items";
  if (row->min) clv_bytes_printf(j->out, ",\"min%s\":%llu", suffix, (unsigned long long)row->min);
  if (row->max) clv_bytes_printf(j->out, ",\"max%s\":%llu", suffix, (unsigned long long)row->max);
}

static void write_json_bounds(const json *j, const clv_row *row) {
  if (row->kind == CLV_ROW_INT)
    clv_bytes_printf(j->out, ",\"minimum\":%llu,\"maximum\":%llu", (unsigned long long)row->min,
                     (unsigned long long)row->max);
  if (row->kind != CLV_ROW_NUMBER && row->kind != CLV_ROW_NUMBERS) return;
  write_json_number(j, row->excludes_low ? "exclusiveMinimum" : "minimum", row->low);
  if (row->high < 1e300) write_json_number(j, "maximum", row->high);
}

static void write_json_enum(const json *j, const clv_row *row) {
  const char *comma = "";
  clv_bytes_puts(j->out, ",\"enum\":[");
  for (const char *const *name = row->names; *name; name++) {
    if (!**name) continue;
    clv_bytes_puts(j->out, comma);
    clv_bytes_add_json(j->out, *name);
    comma = ",";
  }
  clv_bytes_puts(j->out, "]");
}

/* Writes the alternatives of a value that may name a target: one of the names, or one with the
 * target in it. */
static void write_json_enum_with_target(const json *j, const clv_row *row) {
  const char *separator = "";
  clv_bytes_puts(j->out, ",\"anyOf\":[{\"type\":\"string\"");
  write_json_enum(j, row);
  clv_bytes_puts(j->out, "},{\"pattern\":\"^validation\\\\..+\\\\.(");
  for (const char *const *name = row->names; *name; name++) {
    const char *metric = strchr(*name, '.');
    if (!metric) continue;
    clv_bytes_printf(j->out, "%s%s", separator, metric + 1);
    separator = "|";
  }
  clv_bytes_puts(j->out, ")$\"}]");
}

static void write_json_names(const json *j, const clv_row *row) {
  (row->target_offset ? write_json_enum_with_target : write_json_enum)(j, row);
}

static void write_json_nested(const json *j, const clv_row *row) {
  char inner_prefix[CLV_PATH_MAX];
  clv_row_write_inner_prefix(row, inner_prefix);
  if (row->kind == CLV_ROW_SECTION) {
    write_json_map(j, inner_prefix);
    return;
  }
  write_json_entry_counts(j, row);
  if (row->kind == CLV_ROW_MAP) {
    clv_bytes_puts(j->out, ",\"propertyNames\":{\"type\":\"string\"");
    const char *pattern = clv_format_pattern(row->format);
    if (pattern) write_json_text(j, "pattern", pattern);
    clv_bytes_puts(j->out, "},\"additionalProperties\":{\"type\":\"object\"");
  } else {
    clv_bytes_puts(j->out, ",\"items\":{\"type\":\"object\"");
  }
  write_json_map(j, inner_prefix);
  clv_bytes_puts(j->out, "}");
}

/* Writes the JSON Schema of a key whose value is a number or one of the row's words. */
static void write_json_number_or_word(const json *j, const clv_row *row) {
  clv_bytes_puts(j->out, "{\"anyOf\":[{\"type\":\"integer\"");
  write_json_bounds(j, row);
  clv_bytes_puts(j->out, "},{\"type\":\"string\"");
  write_json_enum(j, row);
  clv_bytes_puts(j->out, "}]");
}

static void write_json_row(const json *j, const clv_row *row) {
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
  const clv_row_kind kind = row->kind;
  const char *pattern = clv_format_pattern(row->format);
  bool takes_bool = kind == CLV_ROW_TEXT && row->format == CLV_FORMAT_FOLDER;
  if (kind == CLV_ROW_INT && row->names)
    write_json_number_or_word(j, row);
  else
    clv_bytes_printf(j->out, "{\"type\":%s", takes_bool ? "[\"string\",\"boolean\"]" : types[kind]);
  write_json_text(j, "description", row->doc);
  bool has_words = kind == CLV_ROW_INT && row->names;
  if (!has_words && (kind == CLV_ROW_INT || kind == CLV_ROW_NUMBER)) write_json_bounds(j, row);
  if (kind == CLV_ROW_ENUM) write_json_names(j, row);
  if (kind == CLV_ROW_TEXT && pattern) write_json_text(j, "pattern", pattern);
  if (kind == CLV_ROW_RANGE) write_json_text(j, "pattern", "^[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}$");
  if (kind == CLV_ROW_SEED) write_json_text(j, "pattern", "^([0-9A-Fa-f]{32}|[0-9]{1,20})$");
  if (kind == CLV_ROW_TEXTS || kind == CLV_ROW_NUMBERS) {
    write_json_entry_counts(j, row);
    clv_bytes_printf(j->out, ",\"items\":{\"type\":\"%s\"",
                     kind == CLV_ROW_TEXTS ? "string" : "number");
    write_json_bounds(j, row);
    if (row->names) write_json_enum(j, row);
    if (row->format != CLV_FORMAT_ANY) write_json_text(j, "pattern", pattern);
    clv_bytes_puts(j->out, "}");
  }
  if (kind == CLV_ROW_SECTION || kind == CLV_ROW_LIST || kind == CLV_ROW_MAP)
    write_json_nested(j, row);
  clv_bytes_puts(j->out, "}");
}

/* Writes the JSON Schema of the key of row i. If the next row has the same path, both rows become
 * alternatives of the value. Returns the number of rows used, 1 or 2. */
static size_t write_json_property(const json *j, size_t i, const char *key) {
  const clv_row *row = &j->schema->rows[i];
  bool has_two_rows = clv_row_has_scalar_form(j->schema, row);
  clv_bytes_add_json(j->out, key);
  clv_bytes_puts(j->out, has_two_rows ? ":{\"anyOf\":[" : ":");
  write_json_row(j, row);
  if (has_two_rows) {
    clv_bytes_puts(j->out, ",");
    write_json_row(j, row + 1);
    clv_bytes_puts(j->out, "]}");
  }
  return has_two_rows ? 2 : 1;
}

/* Writes a property for the old name of a key, so that editors show it as deprecated. */
static void write_json_deprecated_property(const json *j, const clv_row *row) {
  clv_bytes_add_json(j->out, row->old_name);
  clv_bytes_puts(j->out, ":{\"deprecated\":true");
  write_json_text(j, "description", "Name before 0.9 of the key below.");
  clv_bytes_puts(j->out, "},");
}

static void write_json_required(const json *j, const char *prefix) {
  const char *comma = "";
  clv_bytes_puts(j->out, ",\"required\":[");
  for (size_t i = 0; i < j->schema->n_rows; i++) {
    const char *key = clv_row_key(&j->schema->rows[i], prefix);
    if (!key || !j->schema->rows[i].required) continue;
    clv_bytes_puts(j->out, comma);
    clv_bytes_add_json(j->out, key);
    comma = ",";
  }
  clv_bytes_puts(j->out, "]");
}

/* Writes the members of a JSON Schema for an object: properties, required keys, additional keys.
 * The caller has written the '{' and the type. */
static void write_json_map(const json *j, const char *prefix) {
  const char *comma = "";
  bool attrs = false;
  clv_bytes_puts(j->out, ",\"properties\":{");
  for (size_t i = 0; i < j->schema->n_rows;) {
    const char *key = clv_row_key(&j->schema->rows[i], prefix);
    bool has_own_property = key && j->schema->rows[i].kind != CLV_ROW_ATTRS;
    attrs |= key && !has_own_property;
    if (has_own_property) clv_bytes_puts(j->out, comma), comma = ",";
    if (has_own_property && j->schema->rows[i].old_name)
      write_json_deprecated_property(j, &j->schema->rows[i]);
    i += has_own_property ? write_json_property(j, i, key) : 1;
  }
  clv_bytes_puts(j->out, "}");
  write_json_required(j, prefix);
  clv_bytes_puts(j->out, attrs ? ",\"additionalProperties\":{\"type\":[\"number\",\"string\","
                                 "\"boolean\",\"array\"],\"items\":{\"type\":\"integer\"}}"
                               : ",\"additionalProperties\":false");
}

void clv_schema_write_json_schema(const clv_schema *schema, clv_bytes *ret) {
  json j = {.schema = schema, .out = ret};
  clv_bytes_puts(ret, "{\"$schema\":\"https://json-schema.org/draft/2020-12/schema\"");
  write_json_text(&j, "title", schema->title);
  write_json_text(&j, "description", schema->doc);
  clv_bytes_puts(ret, ",\"type\":\"object\"");
  write_json_map(&j, "");
  clv_bytes_puts(ret, "}\n");
}
