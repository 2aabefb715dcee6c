/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests that the tables of keys in deploy/CHECKPOINTS.md equal those of the code. Each is between
 * <!-- NAME --> and <!-- /NAME --> on the page. With CLV_WRITE_TABLES=1 the test writes the tables
 * to the page.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "common/model/hf/hf.h"
#include "common/model/weights/weights.h"
#include "master/tokens/tokens.h"
#include "tests/unit/must.h"

enum { MAX_LINES = 256, MAX_NAMES_IN_A_LINE = 16, ALL_FAMILIES = (1 << CLV_HF_FAMILIES) - 1 };
static const char page_path[] = "deploy/CHECKPOINTS.md";

/* A line of a table: keys with the same outcome, such as "done" or "refused", and the families that
 * have them. */
typedef struct line {
  char names[1024], outcome_text[400];
  unsigned families;
  int n_names;
} line;

typedef struct table {
  line lines[MAX_LINES];
  size_t n;
} table;

static void add_name(table *t, const char *name, size_t len, unsigned families,
                     const char *outcome_text) {
  line *found_line = NULL;
  for (size_t i = 0; i < t->n; i++)
    if (t->lines[i].families == families && strcmp(t->lines[i].outcome_text, outcome_text) == 0 &&
        t->lines[i].n_names < MAX_NAMES_IN_A_LINE)
      found_line = &t->lines[i];
  if (!found_line) {
    assert_true(t->n < MAX_LINES);
    found_line = &t->lines[t->n++];
    *found_line = (line){.families = families};
    snprintf(found_line->outcome_text, sizeof found_line->outcome_text, "%s", outcome_text);
  }
  size_t used = strlen(found_line->names);
  snprintf(found_line->names + used, sizeof found_line->names - used, "%s`%.*s`", used ? ", " : "",
           (int)len, name);
  found_line->n_names++;
}

/* Adds a row of the code's table of keys. outcome: such as "done", or "refused unless", which
 * `word` completes. */
static void add_row(table *t, const char *names, unsigned families, const char *outcome,
                    const char *word, const char *reason) {
  char outcome_text[400];
  snprintf(outcome_text, sizeof outcome_text, "%s%s%s%s%s%s", outcome, word ? " `" : "",
           word ? word : "", word ? "`" : "", reason ? ": " : "", reason ? reason : "");
  for (const char *at = names; at;) {
    size_t len = strcspn(at, " ");
    add_name(t, at, len, families, outcome_text);
    at = at[len] ? at + len + 1 : NULL;
  }
}

static void append_families(unsigned families, clv_bytes *out) {
  int n = 0, n_absent = 0;
  for (int f = 0; f < CLV_HF_FAMILIES; f++) n_absent += !(families >> f & 1);
  bool lists_exceptions = n_absent && n_absent <= 4;
  if (!n_absent || lists_exceptions) clv_bytes_puts(out, lists_exceptions ? "all but " : "all");
  for (int f = 0; n_absent && f < CLV_HF_FAMILIES; f++)
    if ((families >> f & 1) != lists_exceptions)
      clv_bytes_printf(out, "%s%s", n++ ? ", " : "", clv_hf_family_name((clv_hf_family)f));
}

static void append_table(const table *t, bool has_families, clv_bytes *out) {
  clv_bytes_puts(out, has_families ? "| key | families | what becomes of it |\n|---|---|---|\n"
                                   : "| key | what becomes of it |\n|---|---|\n");
  for (size_t i = 0; i < t->n; i++) {
    clv_bytes_printf(out, "| %s | ", t->lines[i].names);
    if (has_families) append_families(t->lines[i].families, out);
    clv_bytes_printf(out, "%s%s |\n", has_families ? " | " : "", t->lines[i].outcome_text);
  }
}

/* Joins lines with the same keys and the same outcome, because the code has a row for each default
 * of a key. */
static void join_lines(table *t) {
  size_t n = 0;
  for (size_t i = 0; i < t->n; i++) {
    line *equal_line = NULL;
    for (size_t k = 0; k < n && !equal_line; k++)
      if (strcmp(t->lines[k].names, t->lines[i].names) == 0 &&
          strcmp(t->lines[k].outcome_text, t->lines[i].outcome_text) == 0)
        equal_line = &t->lines[k];
    if (equal_line)
      equal_line->families |= t->lines[i].families;
    else
      t->lines[n++] = t->lines[i];
  }
  t->n = n;
}

static void make_key_table(bool (*describe)(size_t i, clv_hf_key *ret), bool has_families,
                           clv_bytes *out) {
  static table t;
  clv_hf_key k;
  t.n = 0;
  for (size_t i = 0; describe(i, &k); i++) {
    char second_name_text[96];
    snprintf(second_name_text, sizeof second_name_text,
             "a second name of `%s`; refused where both differ",
             k.primary_key ? k.primary_key : "");
    add_row(&t, k.names, k.families, k.outcome, k.word,
            k.primary_key ? second_name_text : k.reason);
  }
  join_lines(&t);
  append_table(&t, has_families, out);
}

static bool describe_generation_key(size_t i, clv_hf_key *ret) {
  return clv_hf_describe_other_key(CLV_HF_GENERATION, i, ret);
}

static bool describe_preprocessor_key(size_t i, clv_hf_key *ret) {
  return clv_hf_describe_other_key(CLV_HF_PREPROCESSOR, i, ret);
}

static void make_settings_table(clv_bytes *out) {
  static table t;
  clv_tokenizer_setting k;
  t.n = 0;
  for (size_t i = 0; clv_tokenizer_describe_setting(i, &k); i++) {
    char outcome_and_reason[400];
    snprintf(outcome_and_reason, sizeof outcome_and_reason, "%s %s", k.outcome, k.reason);
    bool joins_reason = strcmp(k.outcome, "refused where") == 0;
    add_row(&t, k.keys, 0, joins_reason ? outcome_and_reason : k.outcome, NULL,
            joins_reason ? NULL : k.reason);
  }
  append_table(&t, false, out);
}

static void make_peft_table(clv_bytes *out) {
  static table t;
  clv_peft_key_doc k;
  t.n = 0;
  for (size_t i = 0; clv_peft_describe_key(i, &k); i++)
    add_row(&t, k.name, 0, k.outcome, k.word, k.reason);
  append_table(&t, false, out);
}

/* Compares the part of the page between the marks of `name` with `want`, or, if `writes`, replaces
 * the part by `want`. */
static void check_part(clv_bytes *page, const char *name, const char *want, bool writes) {
  char begin[48], end[48];
  snprintf(begin, sizeof begin, "<!-- %s -->\n", name);
  snprintf(end, sizeof end, "<!-- /%s -->\n", name);
  char *part_start = strstr(page->data, begin), *part_end = strstr(page->data, end);
  if (!part_start || !part_end) {
    fail_msg("%s has no %s", page_path, begin);
    return;
  }
  part_start += strlen(begin);
  size_t len = strlen(want);
  if (writes) {
    clv_bytes out = {0};
    clv_bytes_printf(&out, "%.*s%s%s", (int)(part_start - page->data), page->data, want, part_end);
    clv_bytes_done(page);
    *page = out;
  } else if ((size_t)(part_end - part_start) != len || memcmp(part_start, want, len) != 0) {
    fail_msg(
        "%s: the table of %s is not that of the code, which is\n%s"
        "CLV_WRITE_TABLES=1 tests/unit/plan/test_hf_keys writes it there",
        page_path, name, want);
  }
}

static void tables_of_the_page_are_those_of_the_code(void **state) {
  CLV_AUTO(clv_bytes_done) clv_bytes page = {0}, keys = {0}, rope = {0}, peft = {0};
  CLV_AUTO(clv_bytes_done) clv_bytes generation = {0}, preprocessor = {0}, settings = {0};
  bool writes = getenv("CLV_WRITE_TABLES") != NULL;
  clv_err err;
  (void)state;
  must(clv_file_read(page_path, 1 << 20, &page, &err), &err);
  make_key_table(clv_hf_describe_key, true, &keys);
  make_key_table(clv_hf_describe_rope_key, false, &rope);
  make_key_table(describe_generation_key, false, &generation);
  make_key_table(describe_preprocessor_key, false, &preprocessor);
  make_settings_table(&settings);
  make_peft_table(&peft);
  check_part(&page, "config.json", keys.data, writes);
  check_part(&page, "rope", rope.data, writes);
  check_part(&page, clv_hf_other_file_name(CLV_HF_GENERATION), generation.data, writes);
  check_part(&page, clv_hf_other_file_name(CLV_HF_PREPROCESSOR), preprocessor.data, writes);
  check_part(&page, "tokenizer_config.json", settings.data, writes);
  check_part(&page, "adapter_config.json", peft.data, writes);
  if (writes) must(clv_file_write_durable(page_path, page.data, page.len, 0644, &err), &err);
}

/* If a family had two rows for a key, only the first would be used. */
static void each_key_has_one_row_for_a_family(void **state) {
  clv_hf_key a, b;
  (void)state;
  for (size_t i = 0; clv_hf_describe_key(i, &a); i++)
    for (size_t k = i + 1; clv_hf_describe_key(k, &b); k++) {
      char names[2048], *names_left = NULL;
      snprintf(names, sizeof names, "%s", a.names);
      if (!(a.families & b.families)) continue;
      for (char *name = strtok_r(names, " ", &names_left); name;
           name = strtok_r(NULL, " ", &names_left)) {
        char other_names[2048], *other_names_left = NULL;
        snprintf(other_names, sizeof other_names, "%s", b.names);
        for (char *n = strtok_r(other_names, " ", &other_names_left); n;
             n = strtok_r(NULL, " ", &other_names_left))
          if (strcmp(n, name) == 0) fail_msg("'%s' has two rows for one family", name);
      }
    }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(tables_of_the_page_are_those_of_the_code),
      cmocka_unit_test(each_key_has_one_row_for_a_family),
  };
  return cmocka_run_group_tests_name("hf_keys", tests, NULL, NULL);
}
