/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests the parser of command lines with a small table of commands and options, and the help texts
 * that are made from that table.
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
  clv_cli_line command_line;
  bool is_fast, is_deep;
  uint64_t count_option;
  double pace_option, tempo_option;
  const char *output;
  int colour_choice;
  clv_cli_list set_options, limited_list;
} arguments;

static const char *const colours[] = {"red", "green", NULL};

static int do_nothing(void *args) {
  (void)args;
  return 0;
}

/* clang-format off */
static const clv_cli_command commands[] = {
    {.name = "run", .args = "PLAN.yaml", .doc = "run a plan", .paragraphs = "One.\n\nTwo.", .run = do_nothing},
    {.name = "box open", .args = "[NAME]", .doc = "open the box", .run = do_nothing},
    {.name = "box close", .args = "NAME...", .doc = "close boxes", .run = do_nothing},
};
static const clv_cli_option options[] = {
    {.name = "fast", .key = 'f', .kind = CLV_CLI_FLAG, .commands = "run", .offset = offsetof(arguments, is_fast), .doc = "hurry"},
    {.name = "deep", .key = 'd', .kind = CLV_CLI_FLAG, .offset = offsetof(arguments, is_deep), .doc = "go deep"},
    {.name = "count", .kind = CLV_CLI_NUMBER, .arg = "N", .commands = "run, box open", .min = 2, .max = 9,
     .offset = offsetof(arguments, count_option), .doc = "so many"},
    {.name = "pace", .kind = CLV_CLI_REAL, .arg = "S", .commands = "run", .low = 0.1, .high = 3600,
     .offset = offsetof(arguments, pace_option), .doc = "seconds"},
    {.name = "out", .key = 'o', .kind = CLV_CLI_TEXT, .arg = "FILE", .commands = "run", .offset = offsetof(arguments, output), .doc = "where"},
    {.name = "colour", .kind = CLV_CLI_CHOICE, .arg = "C", .choices = colours, .commands = "box",
     .offset = offsetof(arguments, colour_choice), .doc = "what it's painted"},
    {.name = "set", .key = 's', .kind = CLV_CLI_TEXTS, .arg = "K=V", .commands = "run", .offset = offsetof(arguments, set_options), .doc = "override"},
    {.name = "few", .kind = CLV_CLI_TEXTS, .arg = "X", .max = 2, .commands = "run", .offset = offsetof(arguments, limited_list), .doc = "two"},
    {.name = "tempo", .kind = CLV_CLI_REAL, .arg = "S", .commands = "run", .needs = "pace", .low = 0, .high = 9,
     .offset = offsetof(arguments, tempo_option), .doc = "with --pace: tempo"},
    {.name = "force", .kind = CLV_CLI_FLAG, .commands = "box close", .offset = offsetof(arguments, is_fast), .doc = "by force", .is_required = true},
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
static clv_code parse_words(const char *text, arguments *a, clv_err *err) {
  static char copy[512];
  char *argv[64] = {"prog"};
  int argc = 1;
  snprintf(copy, sizeof copy, "%s", text);
  for (char *at = copy, *word; *text && (word = strsep(&at, " ")) != NULL;) argv[argc++] = word;
  *a = (arguments){0};
  return clv_cli_parse(&cli, argc, argv, a, err);
}

static arguments *parse_valid(const char *text) {
  static arguments a;
  clv_err err = {0};
  if (parse_words(text, &a, &err) != CLV_OK) fail_msg("%s: %s", text, err.text);
  return &a;
}

static void parse_invalid(const char *text, const char *message) {
  arguments a;
  clv_err err = {0};
  assert_int_equal(parse_words(text, &a, &err), CLV_INVALID);
  assert_string_equal(err.text, message);
}

static void option_values_parse_in_every_form(void **state) {
  (void)state;
  assert_true(parse_valid("run p --pace=0.5")->pace_option == 0.5 &&
              parse_valid("run p --pace 3600")->pace_option == 3600);
  arguments *a = parse_valid("run p.yaml --count=3 -fd -o x --set a=b -sc=d --se e=f");
  assert_string_equal(a->command_line.command->name, "run");
  assert_int_equal(a->command_line.n_words, 1);
  assert_string_equal(a->command_line.words[0], "p.yaml");
  assert_true(a->is_fast && a->is_deep && a->count_option == 3 && a->set_options.n == 3);
  assert_string_equal(a->output, "x");
  assert_string_equal(a->set_options.items[1], "c=d");
  assert_string_equal(a->set_options.items[2], "e=f");
  /* an option may stand before the command; if --out is given twice, the last value counts */
  a = parse_valid("--count 9 run --out=a --out=b p.yaml");
  assert_true(a->count_option == 9 && strcmp(a->output, "b") == 0);
  a = parse_valid("run -- -f");
  assert_false(a->is_fast);
  assert_string_equal(a->command_line.words[0], "-f");
  a = parse_valid("run -"); /* "-" alone is an argument, not an option */
  assert_string_equal(a->command_line.words[0], "-");
  a = parse_valid("run x --out --fast"); /* the value of an option may begin with "--" */
  assert_string_equal(a->output, "--fast");
  a = parse_valid("run x --out=");
  assert_string_equal(a->output, "");
}

static void two_word_commands_are_parsed(void **state) {
  (void)state;
  arguments *a = parse_valid("box open");
  assert_string_equal(a->command_line.command->name, "box open");
  assert_int_equal(a->command_line.n_words, 0);
  assert_int_equal(a->colour_choice, 0);
  a = parse_valid("box --colour green open mine --count=2");
  assert_int_equal(a->colour_choice, 2);
  assert_string_equal(a->command_line.words[0], "mine");
  assert_int_equal(parse_valid("box close a b c d --force")->command_line.n_words, 4);
  parse_invalid("box", "box: a command is needed: open or close");
  parse_invalid("box clsoe", "unknown command 'box clsoe'; did you mean 'box close'?");
  parse_invalid("box frobnicate", "unknown command 'box frobnicate'; there are open or close");
  parse_invalid("bx open", "unknown command 'bx'; did you mean 'box'?");
  parse_invalid("", "a command is needed: run, box, completion or man");
}

static void option_mistakes_are_named(void **state) {
  (void)state;
  parse_invalid("run p --coutn=3", "there is no option --coutn; did you mean --count?");
  parse_invalid("run p --xylophone", "there is no option --xylophone");
  parse_invalid("run p -x", "there is no option -x");
  parse_invalid("run p -fast", "there is no option -a; long options start with two dashes");
  parse_invalid("run p --f", "--f is ambiguous: --fast or --few");
  parse_invalid("run p --fast=yes", "--fast takes no value");
  parse_invalid("run p --out", "--out needs a value: --out=FILE");
  parse_invalid("run p -o", "--out needs a value: --out=FILE");
  parse_invalid("run p --count=1", "--count: 1 is out of range, from 2 to 9");
  parse_invalid("run p --count=-3", "--count: -3 is out of range, from 2 to 9");
  parse_invalid("run p --count=3x", "--count: '3x' is not a whole number, from 2 to 9");
  parse_invalid("run p --count=", "--count: '' is not a whole number, from 2 to 9");
  parse_invalid("run p --count=-", "--count: '-' is not a whole number, from 2 to 9");
  assert_true(parse_valid("run p --tempo=1 --pace=2")->tempo_option == 1);
  parse_invalid("run p --tempo=1",
                "--tempo has an effect with --pace alone: add --pace, or leave --tempo out");
  parse_invalid("run p --count=99999999999999999999",
                "--count: 99999999999999999999 is out of range, from 2 to 9");
  parse_invalid("run p --pace=0.01", "--pace: 0.01 is out of range, from 0.1 to 3600");
  parse_invalid("run p --pace=1e9", "--pace: '1e9' is not a number, from 0.1 to 3600");
  parse_invalid("run p --pace=nan", "--pace: 'nan' is not a number, from 0.1 to 3600");
  parse_invalid("run p --pace=.", "--pace: '.' is not a number, from 0.1 to 3600");
  parse_invalid("run p --pace=-1", "--pace: '-1' is not a number, from 0.1 to 3600");
  parse_invalid("box open --colour=gren",
                "--colour: 'gren' is not one of red|green; did you mean 'green'?");
  parse_invalid("run p --few=1 --few=2 --few=3", "--few may be given at most 2 times");
  parse_invalid("run p --colour=red", "--colour does not belong to run but to box");
  parse_invalid("box open --fast", "--fast does not belong to box open but to run");
  parse_invalid("box close a", "box close needs --force");
  parse_invalid("run", "run: an argument is missing: prog run PLAN.yaml");
  parse_invalid("run a b", "run: unexpected argument 'b': prog run PLAN.yaml");
  parse_invalid("box close --force", "box close: an argument is missing: prog box close NAME...");
  parse_invalid("completion tcsh", "completion: 'tcsh' is not one of bash|zsh");
  parse_invalid("run p --=3", "there is no option --");
}

/* --log-format takes effect even if it follows the faulty option. */
static void log_format_is_read_even_after_an_error(void **state) {
  (void)state;
  arguments a;
  clv_err err;
  assert_int_equal(parse_words("run p --nonsense --log-format json", &a, &err), CLV_INVALID);
  assert_non_null(strstr(err.text, "--nonsense"));
  assert_int_equal(a.command_line.log_format, CLV_LOG_AS_JSON);
  assert_true(clv_cli_is_log_json(&a.command_line, false));
  assert_false(clv_cli_is_log_json(&parse_valid("run p --log-format=text")->command_line, true));
  assert_true(clv_cli_is_log_json(&parse_valid("run p")->command_line, true));
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
  assert_string_equal(err.text,
                      "more than 64 words on the command line: quote a path that contains spaces");
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
  /* argc is 0, so argv has no program name */
  assert_int_equal(clv_cli_parse(&cli, 0, argv, &a, &err), CLV_INVALID);
}

static void help_needs_no_other_arguments(void **state) {
  (void)state;
  assert_true(parse_valid("--help")->command_line.help);
  assert_null(parse_valid("--help")->command_line.command);
  /* --help needs no argument PLAN.yaml */
  assert_true(parse_valid("run --help")->command_line.help);
  assert_string_equal(parse_valid("-h box close")->command_line.command->name, "box close");
  assert_string_equal(parse_valid("box --help")->command_line.group, "box");
  assert_true(parse_valid("--version")->command_line.version);
  parse_invalid("rnu --help", "unknown command 'rnu'; did you mean 'run'?");
}

static const char *get_text(clv_bytes *b) {
  assert_false(b->failed);
  return b->data;
}

static void help_lists_the_options_of_its_command(void **state) {
  (void)state;
  CLV_AUTO(clv_bytes_done) clv_bytes run = {0};
  CLV_AUTO(clv_bytes_done) clv_bytes group = {0};
  CLV_AUTO(clv_bytes_done) clv_bytes all = {0};
  clv_cli_help(&parse_valid("run --help")->command_line, &run);
  const char *text = get_text(&run);
  assert_non_null(strstr(text, "Usage: prog run [OPTION...] PLAN.yaml"));
  assert_non_null(strstr(text, "Run a plan.\n\nOne.\n\nTwo.\n"));
  assert_non_null(strstr(text, "-f, --fast"));
  assert_non_null(strstr(text, "--count=N"));
  assert_non_null(strstr(text, "-d, --deep"));
  assert_non_null(strstr(text, "--log-format"));
  assert_null(strstr(text, "--colour"));
  assert_null(strstr(text, "--force"));
  clv_cli_help(&parse_valid("box --help")->command_line, &group);
  assert_non_null(strstr(get_text(&group), "box open [NAME]"));
  assert_null(strstr(group.data, "run a plan"));
  clv_cli_help(&parse_valid("--help")->command_line, &all);
  assert_non_null(strstr(get_text(&all), "box close NAME...         close boxes"));
  assert_non_null(strstr(all.data, "  130  interrupted"));
  assert_null(strstr(all.data, "--colour"));
  for (const char *line = all.data; *line; line += strcspn(line, "\n") + 1)
    assert_true(strcspn(line, "\n") <= 90);
}

static void manual_page_escapes_roff_markup(void **state) {
  (void)state;
  CLV_AUTO(clv_bytes_done) clv_bytes man = {0};
  clv_cli_man(&cli, &man);
  const char *text = get_text(&man);
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
