/* SPDX-License-Identifier: Apache-2.0
 *
 * clv_schema_write: writes a config struct as YAML, from which loading makes a struct with the same
 * bits. It writes all values, including defaults, and leaves out values that were not given and
 * have no default. clv_schema_write_lines writes one line per key.
 */
#include <stdio.h>
#include <string.h>

#include "common/model/config/schema_int.h"

enum { WRAP_COLUMN = 88 };

typedef struct writer {
  const clv_schema *schema;
  clv_bytes *out;
  int indent;               /* spaces before the next key */
  bool opens_list_entry;    /* the next key is the first of a list entry, so "- " precedes it */
  bool is_in_braces;        /* the writer is inside {...} */
  bool is_first_item;       /* nothing has been written yet inside {...} or [...] */
  bool is_one_line_per_key; /* each key is on one line, which is never wrapped */
  /* keys that name a file, folder or address, and seeds, are left out */
  bool omits_private_keys;
} writer;

static void write_map(writer *w, const char *prefix, const char *base);

static size_t current_column(const writer *w) {
  size_t n = 0;
  while (n < w->out->len && w->out->data[w->out->len - 1 - n] != '\n') n++;
  return n;
}

static void write_separator(writer *w) {
  if (!w->is_first_item) clv_bytes_puts(w->out, ",");
  if (!w->is_first_item && !w->is_one_line_per_key && current_column(w) > WRAP_COLUMN)
    clv_bytes_printf(w->out, "\n%*s", w->indent + 4, "");
  else if (!w->is_first_item)
    clv_bytes_puts(w->out, " ");
  w->is_first_item = false;
}

static void write_key(writer *w, const char *key) {
  if (w->is_in_braces) {
    write_separator(w);
  } else {
    clv_bytes_printf(w->out, "%*s%s", w->opens_list_entry ? w->indent - 2 : w->indent, "",
                     w->opens_list_entry ? "- " : "");
    w->opens_list_entry = false;
  }
  clv_bytes_printf(w->out, "%s:", key);
}

static void end_line(writer *w) {
  if (!w->is_in_braces) clv_bytes_puts(w->out, "\n");
}

/* ---- writing single values ------------------------------------------------------------------- */

/* True if a text can be written without quotes, because a YAML reader takes it neither for a
 * number, a boolean or null nor for syntax. */
static bool needs_no_quotes(const char *text) {
  static const char *const yaml_words[] = {"true", "false", "null", "yes", "no",
                                           "on",   "off",   "y",    "n"};
  for (size_t i = 0; i < CLV_COUNT(yaml_words); i++)
    if (strcasecmp(text, yaml_words[i]) == 0) return false;
  const char *first = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ/";
  if (!text[0] || !strchr(first, text[0])) return false;
  for (; *text; text++)
    if (!strchr(first, *text) && !strchr("0123456789._-", *text)) return false;
  return true;
}

/* Returns the length of the character at p, and its code, if YAML readers may refuse it or take it
 * for a line break: control characters, line and paragraph separators, byte order mark, U+FFFE,
 * U+FFFF. Returns 0 for other characters. */
static size_t unsafe_char_len(const unsigned char *p, unsigned *ret_code) {
  *ret_code = *p;
  if (p[0] < 0x20 || p[0] == 0x7f) return 1;
  *ret_code = p[1];
  if (p[0] == 0xc2 && p[1] < 0xa0) return 2;
  if ((p[0] != 0xe2 && p[0] != 0xef) || !p[1] || !p[2]) return 0;
  unsigned code = (p[0] & 0x0fu) << 12 | (p[1] & 0x3fu) << 6 | (p[2] & 0x3fu);
  *ret_code = code;
  return code == 0x2028 || code == 0x2029 || code == 0xfeff || code >= 0xfffe ? 3 : 0;
}

static void write_text(clv_bytes *out, const char *text) {
  unsigned code;
  if (needs_no_quotes(text)) {
    clv_bytes_puts(out, text);
    return;
  }
  clv_bytes_puts(out, "\"");
  for (const unsigned char *p = (const unsigned char *)text; *p;) {
    size_t n = unsafe_char_len(p, &code);
    if (n)
      clv_bytes_printf(out, "\\u%04x", code);
    else if (*p == '"' || *p == '\\')
      clv_bytes_printf(out, "\\%c", *p);
    else
      clv_bytes_add(out, p, 1);
    p += n ? n : 1;
  }
  clv_bytes_puts(out, "\"");
}

static void write_number(clv_bytes *out, double value) {
  char text[32];
  clv_double_to_text(value, text);
  clv_bytes_puts(out, text);
}

static void write_quantity(clv_bytes *out, clv_row_kind kind, uint64_t value) {
  char text[32];
  if (kind == CLV_ROW_INT) snprintf(text, sizeof text, "%llu", (unsigned long long)value);
  if (kind == CLV_ROW_SIZE) clv_size_to_text(value, text);
  if (kind == CLV_ROW_DURATION) clv_duration_to_text(value, text);
  clv_bytes_puts(out, text);
}

static void write_whole_number(clv_bytes *out, const clv_row *row, uint64_t value) {
  const char *word = clv_row_word_of_value(row, value);
  if (word)
    clv_bytes_puts(out, word);
  else
    write_quantity(out, row->kind, value);
}

static void write_list(writer *w, const clv_row *row, const void *at) {
  const clv_text_list *texts = at;
  const clv_number_list *numbers = at;
  bool outer_is_first = w->is_first_item;
  w->is_first_item = true;
  clv_bytes_puts(w->out, "[");
  for (size_t i = 0; i < texts->n; i++) {
    write_separator(w);
    if (row->kind == CLV_ROW_TEXTS)
      write_text(w->out, texts->items[i]);
    else
      write_number(w->out, numbers->items[i]);
  }
  clv_bytes_puts(w->out, "]");
  w->is_first_item = outer_is_first;
}

static void write_ints(writer *w, const clv_attr_spec *attr) {
  bool outer_is_first = w->is_first_item;
  w->is_first_item = true;
  clv_bytes_puts(w->out, "[");
  for (size_t i = 0; i < attr->n_ints; i++) {
    write_separator(w);
    clv_bytes_printf(w->out, "%lld", (long long)attr->ints[i]);
  }
  clv_bytes_puts(w->out, "]");
  w->is_first_item = outer_is_first;
}

static void write_attr(writer *w, const clv_attr_spec *a) {
  if (a->kind == CLV_ATTR_INT) clv_bytes_printf(w->out, "%lld", (long long)a->int_value);
  if (a->kind == CLV_ATTR_FLOAT) write_number(w->out, a->float_value);
  if (a->kind == CLV_ATTR_BOOL) clv_bytes_puts(w->out, a->bool_value ? "true" : "false");
  if (a->kind == CLV_ATTR_TEXT) write_text(w->out, a->text);
  if (a->kind == CLV_ATTR_INTS) write_ints(w, a);
}

static void write_attrs(writer *w, const clv_attr_spec *attrs, size_t n) {
  for (const clv_attr_spec *a = attrs; a < attrs + n; a++) {
    write_key(w, a->key);
    clv_bytes_puts(w->out, " ");
    write_attr(w, a);
    end_line(w);
  }
}

/* ---- rows of the schema as YAML -------------------------------------------------------------- */

static bool is_value_given(const clv_row *row, const char *base) {
  const void *at = base + row->offset;
  switch (row->kind) {
    case CLV_ROW_ENUM:
      return row->names[*(const int *)at][0] != '\0';
    case CLV_ROW_TEXT:
    case CLV_ROW_PATH:
      return *(char *const *)at != NULL;
    case CLV_ROW_TEXTS:
    case CLV_ROW_NUMBERS:
      return row->required || ((const clv_text_list *)at)->n > 0;
    case CLV_ROW_RANGE:
      return ((const clv_layer_range *)at)->is_given;
    case CLV_ROW_SEED:
      return ((const clv_seed *)at)->is_given;
    case CLV_ROW_LIST:
    case CLV_ROW_MAP:
    case CLV_ROW_ATTRS:
      return *(const size_t *)(const void *)(base + row->count_offset) > 0;
    default:
      return true;
  }
}

static void write_range_end(clv_bytes *out, uint64_t number, const char *name) {
  if (*name)
    clv_bytes_puts(out, name);
  else
    clv_bytes_printf(out, "%llu", (unsigned long long)number);
}

static void write_seed(clv_bytes *out, const clv_seed *seed) {
  char hex[33];
  uint64_t number = 0;
  for (int i = 8; i < 16; i++) number = number << 8 | seed->key.bytes[i];
  clv_hex(seed->key.bytes, sizeof seed->key.bytes, hex);
  if (seed->is_guessable)
    clv_bytes_printf(out, "%llu", (unsigned long long)number);
  else
    clv_bytes_printf(out, "\"%s\"", hex);
}

/* Writes the name of an enum's value. If the value names a target, the target comes after the first
 * part, as in "validation.died.auc". */
static void write_enum(writer *w, const clv_row *row, const void *at) {
  const char *name = row->names[*(const int *)at], *base = (const char *)at - row->offset;
  const char *target =
      row->target_offset ? *(char *const *)(const void *)(base + row->target_offset) : NULL;
  const char *metric = target ? strchr(name, '.') : NULL;
  CLV_AUTO(clv_bytes_done) clv_bytes text = {0};
  if (!metric) {
    clv_bytes_puts(w->out, name);
    return;
  }
  clv_bytes_printf(&text, "%.*s.%s%s", (int)(metric - name), name, target, metric);
  w->out->failed |= text.failed;
  if (!text.failed) write_text(w->out, text.data);
}

static void write_value(writer *w, const clv_row *row, const void *at) {
  const clv_layer_range *range = at;
  switch (row->kind) {
    case CLV_ROW_BOOL:
      clv_bytes_puts(w->out, *(const bool *)at ? "true" : "false");
      break;
    case CLV_ROW_NUMBER:
      write_number(w->out, *(const double *)at);
      break;
    case CLV_ROW_ENUM:
      write_enum(w, row, at);
      break;
    case CLV_ROW_TEXT:
    case CLV_ROW_PATH:
      write_text(w->out, *(char *const *)at);
      break;
    case CLV_ROW_TEXTS:
    case CLV_ROW_NUMBERS:
      write_list(w, row, at);
      break;
    case CLV_ROW_RANGE:
      write_range_end(w->out, range->first, range->first_layer_name);
      clv_bytes_puts(w->out, "..");
      write_range_end(w->out, range->last, range->last_layer_name);
      break;
    case CLV_ROW_SEED:
      write_seed(w->out, at);
      break;
    default:
      write_whole_number(w->out, row, *(const uint64_t *)at);
      break;
  }
}

/* Writes a section with the keys inside that are given. Writes nothing if none is given. */
static void write_section(writer *w, const clv_row *row, const char *base) {
  char inner_prefix[CLV_PATH_MAX];
  clv_row_write_inner_prefix(row, inner_prefix);
  clv_bytes_puts(w->out, "\n");
  size_t cut_at = w->out->len;
  w->indent += 2;
  write_map(w, inner_prefix, base);
  w->indent -= 2;
  if (w->out->failed || w->out->len > cut_at) return;
  while (cut_at > 0 && w->out->data[cut_at - 1] == '\n') cut_at--;
  while (cut_at > 0 && w->out->data[cut_at - 1] != '\n') cut_at--;
  w->out->len = cut_at;
  w->out->data[cut_at] = '\0';
}

/* True for a list of layers, whose entries are written on one line each. Entries of other lists
 * have a line for each key. */
static bool is_layer_list(const clv_row *row) {
  const char *tail = strrchr(row->path, '.');
  return tail && strcmp(tail, ".layers") == 0;
}

static void write_layer(writer *w, const char *inner_prefix, const char *entry) {
  clv_bytes_printf(w->out, "%*s- {", w->indent + 2, "");
  w->indent += 2;
  w->is_in_braces = w->is_first_item = true;
  write_map(w, inner_prefix, entry);
  w->is_in_braces = w->is_first_item = false;
  w->indent -= 2;
  clv_bytes_puts(w->out, "}\n");
}

static void write_entries(writer *w, const clv_row *row, const char *base) {
  char inner_prefix[CLV_PATH_MAX];
  const char *entries = *(char *const *)(const void *)(base + row->offset);
  size_t n = *(const size_t *)(const void *)(base + row->count_offset);
  clv_row_write_inner_prefix(row, inner_prefix);
  clv_bytes_puts(w->out, "\n");
  for (size_t i = 0; i < n; i++) {
    const char *entry = entries + i * row->entry_bytes;
    if (is_layer_list(row)) {
      write_layer(w, inner_prefix, entry);
      continue;
    }
    if (row->kind == CLV_ROW_MAP) {
      clv_bytes_printf(w->out, "%*s", w->indent + 2, "");
      write_text(w->out, *(char *const *)(const void *)(entry + sizeof(clv_config_pos)));
      clv_bytes_puts(w->out, ":\n");
    }
    w->opens_list_entry = row->kind == CLV_ROW_LIST;
    w->indent += 4;
    write_map(w, inner_prefix, entry);
    w->indent -= 4;
  }
}

/* Returns true if an optional section has nothing to write as a map: its key has the scalar form
 * ("recovery: off"), or a list of texts or a word that the section requires is not given. */
static bool is_section_absent(const writer *w, const clv_row *row, const char *base) {
  char inner_prefix[CLV_PATH_MAX];
  if (row->kind != CLV_ROW_SECTION || row->required) return false;
  if (clv_row_has_scalar_form(w->schema, row) && is_value_given(row + 1, base)) return true;
  clv_row_write_inner_prefix(row, inner_prefix);
  for (size_t i = 0; i < w->schema->n_rows; i++) {
    const clv_row *in = &w->schema->rows[i];
    if (!clv_row_key(in, inner_prefix) || !in->required) continue;
    if (in->kind == CLV_ROW_TEXTS && !((const clv_text_list *)(const void *)(base + in->offset))->n)
      return true;
    if (in->kind == CLV_ROW_ENUM && !is_value_given(in, base)) return true;
  }
  return false;
}

static bool is_private_key(const clv_row *row) {
  return row->is_place || row->kind == CLV_ROW_PATH || row->kind == CLV_ROW_SEED;
}

static void write_row(writer *w, const clv_row *row, const char *key, const char *base) {
  if (!is_value_given(row, base) || is_section_absent(w, row, base)) return;
  if (w->omits_private_keys && is_private_key(row)) return;
  if (row->kind == CLV_ROW_ATTRS) {
    write_attrs(w, *(clv_attr_spec *const *)(const void *)(base + row->offset),
                *(const size_t *)(const void *)(base + row->count_offset));
    return;
  }
  write_key(w, key);
  if (row->kind == CLV_ROW_SECTION) {
    write_section(w, row, base);
  } else if (row->kind == CLV_ROW_LIST || row->kind == CLV_ROW_MAP) {
    write_entries(w, row, base);
  } else {
    clv_bytes_puts(w->out, " ");
    write_value(w, row, base + row->offset);
    end_line(w);
  }
}

static void write_map(writer *w, const char *prefix, const char *base) {
  for (size_t i = 0; i < w->schema->n_rows; i++) {
    const char *key = clv_row_key(&w->schema->rows[i], prefix);
    if (key) write_row(w, &w->schema->rows[i], key, base);
  }
}

void clv_schema_write(const clv_schema *schema, const void *base, clv_bytes *ret) {
  writer w = {.schema = schema, .out = ret};
  write_map(&w, "", base);
}

void clv_schema_write_public(const clv_schema *schema, const void *base, clv_bytes *ret) {
  writer w = {.schema = schema, .out = ret, .omits_private_keys = true};
  write_map(&w, "", base);
}

/* ---- writing a config with one line per key -------------------------------------------------- */

static void write_map_lines(writer *w, const char *prefix, const char *shown_path,
                            const char *base);

static void write_attr_lines(writer *w, const clv_row *row, const char *shown_path,
                             const char *base) {
  const clv_attr_spec *attrs = *(clv_attr_spec *const *)(const void *)(base + row->offset);
  size_t n = *(const size_t *)(const void *)(base + row->count_offset);
  for (size_t i = 0; i < n; i++) {
    clv_bytes_printf(w->out, "%s.%s: ", shown_path, attrs[i].key);
    write_attr(w, &attrs[i]);
    clv_bytes_puts(w->out, "\n");
  }
}

static void write_entry_lines(writer *w, const clv_row *row, const char *shown_path,
                              const char *base) {
  char inner_prefix[CLV_PATH_MAX];
  const char *entries = *(char *const *)(const void *)(base + row->offset);
  size_t n = *(const size_t *)(const void *)(base + row->count_offset);
  clv_row_write_inner_prefix(row, inner_prefix);
  for (size_t i = 0; i < n; i++) {
    const char *entry = entries + i * row->entry_bytes;
    CLV_AUTO(clv_bytes_done) clv_bytes path = {0};
    if (row->kind == CLV_ROW_MAP)
      clv_bytes_printf(&path, "%s.%s", shown_path,
                       *(char *const *)(const void *)(entry + sizeof(clv_config_pos)));
    else
      clv_bytes_printf(&path, "%s.%zu", shown_path, i);
    w->out->failed |= path.failed;
    if (!path.failed) write_map_lines(w, inner_prefix, path.data, entry);
  }
}

static void write_row_lines(writer *w, const clv_row *row, const char *shown_path,
                            const char *base) {
  char inner_prefix[CLV_PATH_MAX];
  if (!is_value_given(row, base) || is_section_absent(w, row, base)) return;
  if (row->kind == CLV_ROW_LIST || row->kind == CLV_ROW_MAP) {
    write_entry_lines(w, row, shown_path, base);
  } else if (row->kind == CLV_ROW_SECTION) {
    clv_row_write_inner_prefix(row, inner_prefix);
    write_map_lines(w, inner_prefix, shown_path, base);
  } else {
    clv_bytes_printf(w->out, "%s: ", shown_path);
    if (row->kind == CLV_ROW_SEED)
      clv_bytes_puts(w->out, "(secret)");
    else
      write_value(w, row, base + row->offset);
    clv_bytes_puts(w->out, "\n");
  }
}

static void write_map_lines(writer *w, const char *prefix, const char *shown_path,
                            const char *base) {
  for (size_t i = 0; i < w->schema->n_rows; i++) {
    const clv_row *row = &w->schema->rows[i];
    const char *key = clv_row_key(row, prefix);
    CLV_AUTO(clv_bytes_done) clv_bytes path = {0};
    if (!key) continue;
    clv_bytes_printf(&path, "%s%s%s", shown_path, *shown_path ? "." : "", key);
    w->out->failed |= path.failed;
    if (path.failed) continue;
    if (row->kind == CLV_ROW_ATTRS)
      write_attr_lines(w, row, shown_path, base);
    else
      write_row_lines(w, row, path.data, base);
  }
}

void clv_schema_write_lines(const clv_schema *schema, const void *base, clv_bytes *ret) {
  writer w = {.schema = schema, .out = ret, .is_one_line_per_key = true};
  write_map_lines(&w, "", "", base);
}
