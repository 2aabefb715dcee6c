/* SPDX-License-Identifier: Apache-2.0
 *
 * One small table, and all that is made of it.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/cli/cli_int.h"

typedef struct arguments {
  clv_cli_line line;
  bool fast, deep;
  uint64_t count;
  double pace;
  const char *out;
  int colour;
  clv_cli_list sets, few;
} arguments;

static const char *const colours[] = {"red", "green", NULL};

static int nothing(void *args) {
  (void)args;
  return 0;
}

/* clang-format off */
static const clv_cli_command commands[] = {
    {.name = "run", .args = "PLAN.yaml", .doc = "run a plan", .paragraphs = "One.\n\nTwo.", .run = nothing},
    {.name = "box open", .args = "[NAME]", .doc = "open the box", .run = nothing},
    {.name = "box close", .args = "NAME...", .doc = "close boxes", .run = nothing},
};
static const clv_cli_option options[] = {
    {.name = "fast", .key = 'f', .kind = CLV_CLI_FLAG, .commands = "run", .offset = offsetof(arguments, fast), .doc = "hurry"},
    {.name = "deep", .key = 'd', .kind = CLV_CLI_FLAG, .offset = offsetof(arguments, deep), .doc = "go deep"},
    {.name = "count", .kind = CLV_CLI_NUMBER, .arg = "N", .commands = "run, box open", .min = 2, .max = 9,
     .offset = offsetof(arguments, count), .doc = "so many"},
    {.name = "pace", .kind = CLV_CLI_REAL, .arg = "S", .commands = "run", .low = 0.1, .high = 3600,
     .offset = offsetof(arguments, pace), .doc = "seconds"},
    {.name = "out", .key = 'o', .kind = CLV_CLI_TEXT, .arg = "FILE", .commands = "run", .offset = offsetof(arguments, out), .doc = "where"},
    {.name = "colour", .kind = CLV_CLI_CHOICE, .arg = "C", .choices = colours, .commands = "box",
     .offset = offsetof(arguments, colour), .doc = "what it's painted"},
    {.name = "set", .key = 's', .kind = CLV_CLI_TEXTS, .arg = "K=V", .commands = "run", .offset = offsetof(arguments, sets), .doc = "override"},
    {.name = "few", .kind = CLV_CLI_TEXTS, .arg = "X", .max = 2, .commands = "run", .offset = offsetof(arguments, few), .doc = "two"},
    {.name = "force", .kind = CLV_CLI_FLAG, .commands = "box close", .offset = offsetof(arguments, fast), .doc = "by force", .required = true},
};
/* clang-format on */
static const clv_cli cli = {.name = "prog",
                            .doc = "a program",
                            .about = "It is.\n\n'Quoted' and .dotted.",
                            .commands = commands,
                            .n_commands = CLV_COUNT(commands),
                            .options = options,
                            .n_options = CLV_COUNT(options),
                            .see_also = "other(1)"};

/* Parses words separated by a space. Two spaces enclose an empty word. */
static clv_code parse(const char *text, arguments *a, clv_err *err) {
  static char copy[512];
  char *argv[64] = {"prog"};
  int argc = 1;
  snprintf(copy, sizeof copy, "%s", text);
  for (char *at = copy, *word; *text && (word = strsep(&at, " ")) != NULL;) argv[argc++] = word;
  *a = (arguments){0};
  return clv_cli_parse(&cli, argc, argv, a, err);
}

static arguments *good(const char *text) {
  static arguments a;
  clv_err err = {0};
  if (parse(text, &a, &err) != CLV_OK) fail_msg("%s: %s", text, err.text);
  return &a;
}

static void bad(const char *text, const char *message) {
  arguments a;
  clv_err err = {0};
  assert_int_equal(parse(text, &a, &err), CLV_INVALID);
  assert_string_equal(err.text, message);
}

static void option_values_parse_in_every_form(void **state) {
  (void)state;
  assert_true(good("run p --pace=0.5")->pace == 0.5 && good("run p --pace 3600")->pace == 3600);
  arguments *a = good("run p.yaml --count=3 -fd -o x --set a=b -sc=d --se e=f");
  assert_string_equal(a->line.command->name, "run");
  assert_int_equal(a->line.n_words, 1);
  assert_string_equal(a->line.words[0], "p.yaml");
  assert_true(a->fast && a->deep && a->count == 3 && a->sets.n == 3);
  assert_string_equal(a->out, "x");
  assert_string_equal(a->sets.items[1], "c=d");
  assert_string_equal(a->sets.items[2], "e=f");
  /* an option before the command; the last one counts */
  a = good("--count 9 run --out=a --out=b p.yaml");
  assert_true(a->count == 9 && strcmp(a->out, "b") == 0);
  a = good("run -- -f");
  assert_false(a->fast);
  assert_string_equal(a->line.words[0], "-f");
  a = good("run -"); /* "-" is a word */
  assert_string_equal(a->line.words[0], "-");
  a = good("run x --out --fast"); /* a value may begin like an option */
  assert_string_equal(a->out, "--fast");
  a = good("run x --out=");
  assert_string_equal(a->out, "");
}

static void two_word_commands_are_parsed(void **state) {
  (void)state;
  arguments *a = good("box open");
  assert_string_equal(a->line.command->name, "box open");
  assert_int_equal(a->line.n_words, 0);
  assert_int_equal(a->colour, 0);
  a = good("box --colour green open mine --count=2");
  assert_int_equal(a->colour, 2);
  assert_string_equal(a->line.words[0], "mine");
  assert_int_equal(good("box close a b c d --force")->line.n_words, 4);
  bad("box", "box: a command is needed: open or close");
  bad("box clsoe", "unknown command 'box clsoe'; did you mean 'box close'?");
  bad("box frobnicate", "unknown command 'box frobnicate'; there are open or close");
  bad("bx open", "unknown command 'bx'; did you mean 'box'?");
  bad("", "a command is needed: run, box, completion or man");
}

static void option_mistakes_are_named(void **state) {
  (void)state;
  bad("run p --coutn=3", "there is no option --coutn; did you mean --count?");
  bad("run p --xylophone", "there is no option --xylophone");
  bad("run p -x", "there is no option -x");
  bad("run p -fast", "there is no option -a; long options start with two dashes");
  bad("run p --f", "--f is ambiguous: --fast or --few");
  bad("run p --fast=yes", "--fast takes no value");
  bad("run p --out", "--out needs a value: --out=FILE");
  bad("run p -o", "--out needs a value: --out=FILE");
  bad("run p --count=1", "--count: 1 is out of range, from 2 to 9");
  bad("run p --count=-3", "--count: '-3' is not a whole number");
  bad("run p --count=3x", "--count: '3x' is not a whole number");
  bad("run p --count=", "--count: '' is not a whole number");
  bad("run p --count=99999999999999999999",
      "--count: 99999999999999999999 is out of range, from 2 to 9");
  bad("run p --pace=0.01", "--pace: 0.01 is out of range, from 0.1 to 3600");
  bad("run p --pace=1e9", "--pace: '1e9' is not a number, from 0.1 to 3600");
  bad("run p --pace=nan", "--pace: 'nan' is not a number, from 0.1 to 3600");
  bad("run p --pace=.", "--pace: '.' is not a number, from 0.1 to 3600");
  bad("run p --pace=-1", "--pace: '-1' is not a number, from 0.1 to 3600");
  bad("box open --colour=gren", "--colour: 'gren' is not one of red|green; did you mean 'green'?");
  bad("run p --few=1 --few=2 --few=3", "--few may be given at most 2 times");
  bad("run p --colour=red", "--colour does not belong to run but to box");
  bad("box open --fast", "--fast does not belong to box open but to run");
  bad("box close a", "box close needs --force");
  bad("run", "run: an argument is missing: prog run PLAN.yaml");
  bad("run a b", "run: unexpected argument 'b': prog run PLAN.yaml");
  bad("box close --force", "box close: an argument is missing: prog box close NAME...");
  bad("completion tcsh", "completion: 'tcsh' is not one of bash|zsh");
  bad("run p --=3", "there is no option --");
}

/* An option that follows the faulty one decides the form of the message. */
static void log_format_is_read_even_after_an_error(void **state) {
  (void)state;
  arguments a;
  clv_err err;
  assert_int_equal(parse("run p --nonsense --log-format json", &a, &err), CLV_INVALID);
  assert_non_null(strstr(err.text, "--nonsense"));
  assert_int_equal(a.line.log_format, CLV_LOG_AS_JSON);
  assert_true(clv_cli_is_log_json(&a.line, false));
  assert_false(clv_cli_is_log_json(&good("run p --log-format=text")->line, true));
  assert_true(clv_cli_is_log_json(&good("run p")->line, true));
}

static void too_many_words_are_refused(void **state) {
  (void)state;
  char text[400] = "box close --force";
  for (int i = 0; i < CLV_CLI_WORDS + 1; i++) strcat(text, " a");
  char *argv[512];
  static arguments a;
  clv_err err;
  int argc = 0;
  argv[argc++] = "prog";
  for (char *at = text, *word; (word = strsep(&at, " ")) != NULL;) argv[argc++] = word;
  assert_int_equal(clv_cli_parse(&cli, argc, argv, &a, &err), CLV_INVALID);
  assert_string_equal(err.text, "more than 64 words");
}

static void too_many_list_values_are_refused(void **state) {
  (void)state;
  char *argv[512] = {"prog", "run"};
  static arguments a;
  clv_err err;
  int argc = 2;
  for (int i = 0; i < CLV_CLI_LIST + 1; i++) argv[argc++] = "-sa=b";
  assert_int_equal(clv_cli_parse(&cli, argc, argv, &a, &err), CLV_INVALID);
  assert_string_equal(err.text, "--set may be given at most 256 times");
  a = (arguments){0};
  assert_int_equal(clv_cli_parse(&cli, 0, argv, &a, &err), CLV_INVALID); /* without argv[0] */
}

static void help_needs_no_other_arguments(void **state) {
  (void)state;
  assert_true(good("--help")->line.help);
  assert_null(good("--help")->line.command);
  assert_true(good("run --help")->line.help); /* help needs no PLAN */
  assert_string_equal(good("-h box close")->line.command->name, "box close");
  assert_string_equal(good("box --help")->line.group, "box");
  assert_true(good("--version")->line.version);
  bad("rnu --help", "unknown command 'rnu'; did you mean 'run'?");
}

static const char *text_of(clv_bytes *b) {
  assert_false(b->failed);
  return b->data;
}

static void help_lists_the_options_of_its_command(void **state) {
  (void)state;
  CLV_AUTO(clv_bytes_done) clv_bytes run = {0};
  CLV_AUTO(clv_bytes_done) clv_bytes group = {0};
  CLV_AUTO(clv_bytes_done) clv_bytes all = {0};
  clv_cli_help(&good("run --help")->line, &run);
  const char *text = text_of(&run);
  assert_non_null(strstr(text, "Usage: prog run [OPTION...] PLAN.yaml"));
  assert_non_null(strstr(text, "Run a plan.\n\nOne.\n\nTwo.\n"));
  assert_non_null(strstr(text, "-f, --fast"));
  assert_non_null(strstr(text, "--count=N"));
  assert_non_null(strstr(text, "-d, --deep"));
  assert_non_null(strstr(text, "--log-format"));
  assert_null(strstr(text, "--colour"));
  assert_null(strstr(text, "--force"));
  clv_cli_help(&good("box --help")->line, &group);
  assert_non_null(strstr(text_of(&group), "box open [NAME]"));
  assert_null(strstr(group.data, "run a plan"));
  clv_cli_help(&good("--help")->line, &all);
  assert_non_null(strstr(text_of(&all), "box close NAME...         close boxes"));
  assert_non_null(strstr(all.data, "  130  interrupted"));
  assert_null(strstr(all.data, "--colour"));
  for (const char *line = all.data; *line; line += strcspn(line, "\n") + 1)
    assert_true(strcspn(line, "\n") <= 90);
}

static void manual_page_escapes_roff_markup(void **state) {
  (void)state;
  CLV_AUTO(clv_bytes_done) clv_bytes man = {0};
  clv_cli_man(&cli, &man);
  const char *text = text_of(&man);
  assert_non_null(strstr(text, ".TH PROG 1"));
  assert_non_null(strstr(text, "\\&\\(aqQuoted\\(aq and .dotted."));
  assert_non_null(strstr(text, "\\fB\\-\\-count\\fR=\\fIN\\fR\nSo many.\n"));
  assert_non_null(strstr(text, "What it\\(aqs painted.\nOne of red|green.\n"));
  assert_non_null(strstr(text, ".SS box close"));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(option_values_parse_in_every_form),
      cmocka_unit_test(two_word_commands_are_parsed),
      cmocka_unit_test(option_mistakes_are_named),
      cmocka_unit_test(log_format_is_read_even_after_an_error),
      cmocka_unit_test(too_many_words_are_refused),
      cmocka_unit_test(too_many_list_values_are_refused),
      cmocka_unit_test(help_needs_no_other_arguments),
      cmocka_unit_test(help_lists_the_options_of_its_command),
      cmocka_unit_test(manual_page_escapes_roff_markup),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
