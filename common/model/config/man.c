/* SPDX-License-Identifier: Apache-2.0
 *
 * Manual pages of section 5 made of the schema tables (every key, its values and its default), and
 * words for completion.
 */
#include <ctype.h>
#include <string.h>

#include "common/model/config/schema_int.h"

/* Writes a row's path for readers: "workers{}.address" as workers.NAME.address, "model.*" as
 * model.KEY, other paths unchanged. */
static void write_shown_path(clv_bytes *out, const char *path) {
  for (const char *p = path; *p; p++) {
    if (strncmp(p, "{}", 2) == 0) {
      clv_bytes_puts(out, ".NAME");
      p++;
    } else if (*p == '*') {
      clv_bytes_puts(out, "KEY");
    } else {
      clv_bytes_add(out, p, 1);
    }
  }
}

/* Writes a sentence on a line of its own, with a capital letter and a full stop. */
static void write_sentence(clv_bytes *out, const char *text) {
  CLV_AUTO(clv_bytes_done) clv_bytes one = {0};
  clv_bytes_puts(&one, text);
  if (one.failed || one.len == 0) return;
  one.data[0] = (char)toupper((unsigned char)one.data[0]);
  clv_bytes_add_roff(out, one.data);
  clv_bytes_puts(out, one.data[one.len - 1] == '.' ? "\n" : ".\n");
}

static void write_key(const clv_row *row, clv_bytes *out) {
  char expected[256];
  CLV_AUTO(clv_bytes_done) clv_bytes path = {0};
  bool nested =
      row->kind == CLV_ROW_SECTION || row->kind == CLV_ROW_MAP || row->kind == CLV_ROW_LIST;
  write_shown_path(&path, row->path);
  if (path.failed) return;
  clv_bytes_puts(out, ".TP\n\\fB");
  clv_bytes_add_roff(out, path.data);
  clv_bytes_puts(out, row->required ? "\\fR (required)\n" : "\\fR\n");
  write_sentence(out, row->doc);
  clv_row_describe_expected(row, expected, sizeof expected);
  if (!nested) write_sentence(out, expected);
  if (row->old_name) clv_bytes_printf(out, "Called\n\\fB%s\\fR before 0.9.\n", row->old_name);
  if (!row->default_text) return;
  clv_bytes_puts(out, "Default:\n\\fB");
  clv_bytes_add_roff(out, row->default_text);
  clv_bytes_puts(out, "\\fR.\n");
}

static void write_title(const clv_schema *schema, clv_bytes *out) {
  clv_bytes_puts(out, ".TH CLEAVE\\-");
  for (const char *p = schema->title; *p; p++)
    clv_bytes_printf(out, "%c", toupper((unsigned char)*p));
  clv_bytes_printf(out, " 5 \"\" \"Cleave %s\" \"Cleave\"\n", CLV_VERSION);
  clv_bytes_printf(out, ".SH NAME\ncleave\\-%s \\- configuration of %s\n", schema->title,
                   schema->subject);
}

static void write_overriding_section(clv_bytes *ret) {
  clv_bytes_puts(ret, ".PP\n");
  write_sentence(
      ret,
      "what is stronger: defaults, then the file, then the environment, then --set; of what is "
      "logged and in which form --verbose and --log-format decide");
  clv_bytes_puts(ret, ".PP\n");
  write_sentence(
      ret,
      "a path that starts with ${CREDENTIALS_DIRECTORY}/ names a credential that systemd gave "
      "the program (LoadCredential=); these are copied when the service starts, so new ones "
      "need a restart");
  clv_bytes_puts(ret, ".PP\n");
  write_sentence(ret, "`cleave-master init --all` writes a file with all of these keys, commented");
}

void clv_schema_write_man_page(const clv_schema *schema, clv_bytes *ret) {
  write_title(schema, ret);
  clv_bytes_puts(ret, ".SH DESCRIPTION\n");
  write_sentence(ret, schema->doc);
  if (!schema->ignores_overrides) write_overriding_section(ret);
  clv_bytes_puts(ret, ".SH KEYS\n");
  for (size_t i = 0; i < schema->n_rows; i++) write_key(&schema->rows[i], ret);
  clv_bytes_puts(ret, ".SH SEE ALSO\ncleave\\-master(1), cleave\\-worker(1), cleave\\-ops(7)\n");
}

/* ---- words for --set ------------------------------------------------------------------------- */

static void write_key_words(const clv_row *row, clv_bytes *out) {
  static const char *const flags[] = {"true", "false", NULL};
  const char *const *values = row->kind == CLV_ROW_BOOL ? flags : row->names;
  for (; values && *values; values++)
    if (**values) clv_bytes_printf(out, " %s=%s", row->path, *values);
  if (row->kind != CLV_ROW_BOOL && row->kind != CLV_ROW_ENUM)
    clv_bytes_printf(out, " %s=", row->path);
}

void clv_schema_write_completions(const clv_schema *schema, clv_bytes *ret) {
  for (size_t i = 0; i < schema->n_rows; i++) {
    const clv_row *row = &schema->rows[i];
    bool is_single_value =
        row->kind != CLV_ROW_SECTION && row->kind != CLV_ROW_LIST && row->kind != CLV_ROW_MAP;
    if (is_single_value && !strpbrk(row->path, "[{*")) write_key_words(row, ret);
  }
}
