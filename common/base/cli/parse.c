/* SPDX-License-Identifier: Apache-2.0
 *
 * Parser: command line to struct. Options may stand before the command, so the parser checks at the
 * end whether they belong to it. After an error it still reads the rest of the line, because
 * --log-format may follow and decides the form of the error. The first error is reported.
 */
#include <stdlib.h>
#include <stdio.h>
#include <string.h>
#include <errno.h>

#include "common/base/cli/cli_int.h"

typedef struct parser {
  const clv_cli *cli;
  int argc, next_arg; /* argv[next_arg] is the argument to read next */
  char *const *argv;
  char *args; /* struct of the program's arguments; NULL: values are not stored */
  clv_cli_line *line;
  const clv_cli_command *command; /* command of the line; NULL: not known yet */
  bool is_given[CLV_CLI_OPTIONS];
  bool has_ended_options; /* `--` was read: all further arguments are words */
} parser;

/* ---- values of options ----------------------------------------------------------------------- */

static clv_code read_number(const clv_cli_option *o, uint64_t *at, const char *text, clv_err *err) {
  char *end, range[64];
  uint64_t max = o->max ? o->max : UINT64_MAX;
  bool is_negative = text[0] == '-';
  const char *digits = text + is_negative;
  int n = snprintf(range, sizeof range, "from %llu", (unsigned long long)o->min);
  if (o->max) snprintf(range + n, sizeof range - (size_t)n, " to %llu", (unsigned long long)max);
  errno = 0;
  unsigned long long v = strtoull(digits, &end, 10);
  if (end == digits || *end || digits[0] < '0' || digits[0] > '9')
    return clv_fail(err, CLV_INVALID, "--%s: '%s' is not a whole number, %s", o->name, text, range);
  if (errno || is_negative || v < o->min || v > max)
    return clv_fail(err, CLV_INVALID, "--%s: %s is out of range, %s", o->name, text, range);
  *at = v;
  return CLV_OK;
}

static clv_code read_real(const clv_cli_option *o, double *at, const char *text, clv_err *err) {
  char *end;
  double v = strtod(text, &end);
  bool is_decimal = end != text && !*end && strspn(text, "0123456789.") == strlen(text);
  if (!is_decimal)
    return clv_fail(err, CLV_INVALID, "--%s: '%s' is not a number, from %g to %g", o->name, text,
                    o->low, o->high);
  if (v < o->low || v > o->high)
    return clv_fail(err, CLV_INVALID, "--%s: %s is out of range, from %g to %g", o->name, text,
                    o->low, o->high);
  *at = v;
  return CLV_OK;
}

static clv_code read_choice(const clv_cli_option *o, int *at, const char *text, clv_err *err) {
  size_t n = 0;
  for (; o->choices[n]; n++)
    if (strcmp(o->choices[n], text) == 0) {
      *at = (int)n + 1;
      return CLV_OK;
    }
  clv_cli_arg all;
  clv_cli_value_of(o, &all);
  const char *nearest = clv_did_you_mean(text, o->choices, n);
  return clv_fail(err, CLV_INVALID, "--%s: '%s' is not one of %s%s%s%s", o->name, text, all.name,
                  nearest ? "; did you mean '" : "", nearest ? nearest : "", nearest ? "'?" : "");
}

static clv_code read_text(const clv_cli_option *o, clv_cli_list *list, const char *text,
                          clv_err *err) {
  size_t max = o->max && o->max < CLV_CLI_LIST ? (size_t)o->max : CLV_CLI_LIST;
  if (list->n == max)
    return clv_fail(err, CLV_INVALID, "--%s may be given at most %zu times", o->name, max);
  list->items[list->n++] = text;
  return CLV_OK;
}

static clv_code read_value(parser *p, size_t index, const char *text, clv_err *err) {
  const clv_cli_option *o = clv_cli_option_at(p->cli, index);
  if (!p->args) return CLV_OK;
  void *at = p->args + o->offset;
  p->is_given[index] = true;
  switch (o->kind) {
    case CLV_CLI_FLAG:
      *(bool *)at = true;
      return CLV_OK;
    case CLV_CLI_NUMBER:
      return read_number(o, at, text, err);
    case CLV_CLI_REAL:
      return read_real(o, at, text, err);
    case CLV_CLI_CHOICE:
      return read_choice(o, at, text, err);
    case CLV_CLI_TEXTS:
      return read_text(o, at, text, err);
    default:
      *(const char **)at = text;
      return CLV_OK;
  }
}

/* ---- reading the options of a command line --------------------------------------------------- */

static clv_code fail_unknown(const parser *p, const char *name, clv_err *err) {
  const char *names[CLV_CLI_OPTIONS];
  size_t n = clv_cli_n_options(p->cli);
  for (size_t i = 0; i < n; i++) names[i] = clv_cli_option_at(p->cli, i)->name;
  const char *nearest = clv_did_you_mean(name, names, n);
  char shown_name[128];
  return clv_fail(err, CLV_INVALID, "there is no option --%s%s%s%s",
                  clv_text_truncate(name, shown_name, sizeof shown_name),
                  nearest ? "; did you mean --" : "", nearest ? nearest : "", nearest ? "?" : "");
}

/* Counts the options that start with `name` of n bytes, and returns the first two. An exact match
 * counts as the only one. command NULL: counts the options of all commands. */
static size_t count_options_with_prefix(const clv_cli *cli, const clv_cli_command *command,
                                        const char *name, size_t n, size_t found[2]) {
  size_t count = 0;
  for (size_t i = 0; i < clv_cli_n_options(cli); i++) {
    const clv_cli_option *o = clv_cli_option_at(cli, i);
    if (strncmp(o->name, name, n) != 0 || (command && !clv_cli_option_applies(o, command)))
      continue;
    if (o->name[n] == '\0') {
      found[0] = i;
      return 1;
    }
    if (count < 2) found[count] = i;
    count++;
  }
  return count;
}

/* Finds the option that `name` of n bytes means, full or shortened. Options of the command are
 * preferred. */
static clv_code find_long(const parser *p, const char *name, size_t n, size_t *ret, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes text = {0};
  size_t found[2] = {0, 0},
         count = n ? count_options_with_prefix(p->cli, p->command, name, n, found) : 0;
  if (count == 0 && n) count = count_options_with_prefix(p->cli, NULL, name, n, found);
  clv_bytes_add(&text, name, n);
  clv_bytes_puts(&text, "");
  if (text.failed) return clv_fail(err, CLV_EXHAUSTED, "no memory for a message");
  if (count == 0) return fail_unknown(p, text.data, err);
  if (count > 1)
    return clv_fail(err, CLV_INVALID, "--%s is ambiguous: --%s or --%s", text.data,
                    clv_cli_option_at(p->cli, found[0])->name,
                    clv_cli_option_at(p->cli, found[1])->name);
  *ret = found[0];
  return CLV_OK;
}

static clv_code next_value(parser *p, const clv_cli_option *o, const char **ret, clv_err *err) {
  if (p->next_arg >= p->argc)
    return clv_fail(err, CLV_INVALID, "--%s needs a value: --%s=%s", o->name, o->name, o->arg);
  *ret = p->argv[p->next_arg++];
  return CLV_OK;
}

static clv_code read_long(parser *p, const char *word, clv_err *err) {
  size_t n = strcspn(word, "="), index = 0;
  const char *value = word[n] ? word + n + 1 : NULL;
  CLV_TRY(find_long(p, word, n, &index, err));
  const clv_cli_option *o = clv_cli_option_at(p->cli, index);
  if (o->kind == CLV_CLI_FLAG && value)
    return clv_fail(err, CLV_INVALID, "--%s takes no value", o->name);
  if (o->kind != CLV_CLI_FLAG && !value) CLV_TRY(next_value(p, o, &value, err));
  return read_value(p, index, value ? value : "", err);
}

static bool find_short(const parser *p, char key, size_t *ret) {
  for (size_t i = 0; i < clv_cli_n_options(p->cli); i++)
    if (key && clv_cli_option_at(p->cli, i)->key == key) {
      *ret = i;
      return true;
    }
  return false;
}

/* Parses "-vn", "-sKEY=VALUE" or "-s" "KEY=VALUE". */
static clv_code read_short(parser *p, const char *letters, clv_err *err) {
  for (; *letters; letters++) {
    size_t index = 0;
    if (!find_short(p, *letters, &index))
      return clv_fail(err, CLV_INVALID, "there is no option -%c%s", *letters,
                      letters[1] ? "; long options start with two dashes" : "");
    const clv_cli_option *o = clv_cli_option_at(p->cli, index);
    if (o->kind == CLV_CLI_FLAG) {
      CLV_TRY(read_value(p, index, "", err));
      continue;
    }
    const char *value = letters + 1;
    if (!*value) CLV_TRY(next_value(p, o, &value, err));
    return read_value(p, index, value, err);
  }
  return CLV_OK;
}

static clv_code read_word(parser *p, clv_err *err) {
  const char *word = p->argv[p->next_arg++];
  if (!p->has_ended_options && strcmp(word, "--") == 0) {
    p->has_ended_options = true;
    return CLV_OK;
  }
  if (!p->has_ended_options && strncmp(word, "--", 2) == 0) return read_long(p, word + 2, err);
  if (!p->has_ended_options && word[0] == '-' && word[1]) return read_short(p, word + 1, err);
  if (p->line->n_words == CLV_CLI_WORDS)
    return clv_fail(err, CLV_INVALID,
                    "more than %d words on the command line: quote a path that contains spaces",
                    CLV_CLI_WORDS);
  p->line->words[p->line->n_words++] = word;
  return CLV_OK;
}

/* ---- finding the command --------------------------------------------------------------------- */

static void remove_words(clv_cli_line *line, size_t n) {
  line->n_words -= n;
  memmove(line->words, line->words + n, line->n_words * sizeof line->words[0]);
}

/* Returns how many words of the line are the name of command c; 0: the line has another command. */
static size_t count_matching_words(const clv_cli_command *c, const clv_cli_line *line) {
  size_t n = clv_cli_first_word(c);
  if (!clv_cli_starts_with(c, line->words[0])) return 0;
  if (!c->name[n]) return 1;
  return line->n_words > 1 && strcmp(line->words[1], c->name + n + 1) == 0 ? 2 : 0;
}

/* Lists the first words of all commands, or the second words of a group, each once. */
static size_t list_candidates(const clv_cli *cli, const char *group,
                              char words[CLV_CLI_OPTIONS][CLV_CLI_NAME]) {
  size_t n = 0;
  for (size_t i = 0; i < clv_cli_n_commands(cli) && n < CLV_CLI_OPTIONS; i++) {
    const clv_cli_command *c = clv_cli_command_at(cli, i);
    size_t first = clv_cli_first_word(c);
    if (group && !clv_cli_starts_with(c, group)) continue;
    if (group)
      snprintf(words[n], CLV_CLI_NAME, "%s", c->name + first + (c->name[first] == ' '));
    else
      snprintf(words[n], CLV_CLI_NAME, "%.*s", (int)first, c->name);
    if (!n || strcmp(words[n], words[n - 1]) != 0) n++;
  }
  return n;
}

static clv_code fail_command(const clv_cli *cli, const clv_cli_line *line, clv_err *err) {
  char words[CLV_CLI_OPTIONS][CLV_CLI_NAME];
  const char *names[CLV_CLI_OPTIONS], *unknown_word = NULL;
  CLV_AUTO(clv_bytes_done) clv_bytes all = {0};
  size_t n = list_candidates(cli, line->group, words), at = line->group ? 1 : 0;
  if (line->n_words > at) unknown_word = line->words[at];
  for (size_t i = 0; i < n; i++) {
    names[i] = words[i];
    clv_bytes_printf(&all, "%s%s", i == 0 ? "" : i + 1 < n ? ", " : " or ", words[i]);
  }
  const char *nearest = unknown_word ? clv_did_you_mean(unknown_word, names, n) : NULL;
  const char *group = line->group ? line->group : "", *separator = line->group ? " " : "";
  if (nearest)
    return clv_fail(err, CLV_INVALID, "unknown command '%s%s%.100s'; did you mean '%s%s%s'?", group,
                    separator, unknown_word, group, separator, nearest);
  if (unknown_word)
    return clv_fail(err, CLV_INVALID, "unknown command '%s%s%.100s'; there are %s", group,
                    separator, unknown_word, all.data);
  return clv_fail(err, CLV_INVALID, "%s%sa command is needed: %s", group, *group ? ": " : "",
                  all.data);
}

static clv_code find_command(const clv_cli *cli, clv_cli_line *line, clv_err *err) {
  for (size_t i = 0; i < clv_cli_n_commands(cli) && line->n_words; i++) {
    const clv_cli_command *c = clv_cli_command_at(cli, i);
    size_t n = count_matching_words(c, line);
    if (clv_cli_is_grouped(c) && clv_cli_starts_with(c, line->words[0]))
      line->group = line->words[0];
    if (!n) continue;
    line->command = c;
    remove_words(line, n);
    return CLV_OK;
  }
  return fail_command(cli, line, err);
}

/* ---- checks that concern several arguments --------------------------------------------------- */

static bool is_option_given(const parser *p, const char *name) {
  for (size_t i = 0; i < clv_cli_n_options(p->cli); i++)
    if (p->is_given[i] && strcmp(clv_cli_option_at(p->cli, i)->name, name) == 0) return true;
  return false;
}

static clv_code check_options(const parser *p, clv_err *err) {
  const clv_cli_command *c = p->line->command;
  for (size_t i = 0; i < clv_cli_n_options(p->cli); i++) {
    const clv_cli_option *o = clv_cli_option_at(p->cli, i);
    bool is_applicable = clv_cli_option_applies(o, c);
    if (p->is_given[i] && !is_applicable)
      return clv_fail(err, CLV_INVALID, "--%s does not belong to %s but to %s", o->name, c->name,
                      o->commands);
    if (p->is_given[i] && o->needs && !is_option_given(p, o->needs))
      return clv_fail(err, CLV_INVALID,
                      "--%s has an effect with --%s alone: add --%s, or leave --%s out", o->name,
                      o->needs, o->needs, o->name);
    if (!p->is_given[i] && is_applicable && o->is_required)
      return clv_fail(err, CLV_INVALID, "%s needs --%s%s%s", c->name, o->name, o->arg ? "=" : "",
                      o->arg ? o->arg : "");
  }
  return CLV_OK;
}

static clv_code check_words(const parser *p, clv_err *err) {
  const clv_cli_command *c = p->line->command;
  const char *at = c->args;
  clv_cli_arg arg;
  size_t min_words = 0, max_words = 0;
  while (clv_cli_next_arg(&at, &arg)) {
    min_words += !arg.is_optional;
    max_words = arg.is_repeated ? CLV_CLI_WORDS : max_words + 1;
  }
  if (p->line->n_words < min_words)
    return clv_fail(err, CLV_INVALID, "%s: an argument is missing: %s %s %s", c->name, p->cli->name,
                    c->name, c->args);
  if (p->line->n_words > max_words)
    return clv_fail(err, CLV_INVALID, "%s: unexpected argument '%.100s': %s %s%s%s", c->name,
                    p->line->words[max_words], p->cli->name, c->name, c->args ? " " : "",
                    c->args ? c->args : "");
  return CLV_OK;
}

static clv_code check_choices(const parser *p, clv_err *err) {
  const char *at = p->line->command->args;
  clv_cli_arg arg;
  for (size_t i = 0; i < p->line->n_words && clv_cli_next_arg(&at, &arg); i++) {
    const char *word = p->line->words[i], *found = NULL;
    if (arg.completion != CLV_COMPLETE_WORDS) continue;
    for (const char *choice = arg.name; *choice && !found; choice += strspn(choice, "|")) {
      size_t n = strcspn(choice, "|");
      if (strlen(word) == n && strncmp(word, choice, n) == 0) found = choice;
      choice += n;
    }
    if (!found)
      return clv_fail(err, CLV_INVALID, "%s: '%.100s' is not one of %s", p->line->command->name,
                      word, arg.name);
  }
  return CLV_OK;
}

static clv_code check_line(const parser *p, clv_err *err) {
  CLV_TRY(check_options(p, err));
  CLV_TRY(check_words(p, err));
  return check_choices(p, err);
}

/* Finds the command before the options are parsed, because the meaning of an option depends on the
 * command, which may follow it. */
static const clv_cli_command *find_command_ahead(const clv_cli *cli, int argc, char *const *argv) {
  clv_cli_line line = {.cli = cli};
  parser p = {.cli = cli, .argc = argc, .next_arg = 1, .argv = argv, .line = &line};
  clv_err ignored_err;
  while (p.next_arg < argc) read_word(&p, &ignored_err);
  find_command(cli, &line, &ignored_err);
  return line.command;
}

/* Reads all arguments. Stores the first error in *err and reads on. */
static clv_code read_words(parser *p, clv_err *err) {
  clv_code code = CLV_OK;
  clv_err later_err;
  while (p->next_arg < p->argc) {
    clv_code word_code = read_word(p, code == CLV_OK ? err : &later_err);
    if (code == CLV_OK) code = word_code;
  }
  return code;
}

static bool asks_for_help(const clv_cli_line *line) {
  bool is_known_command =
      line->command || line->n_words == 0 || (line->group && line->n_words == 1);
  return is_known_command && (line->help || line->version);
}

clv_code clv_cli_parse(const clv_cli *cli, int argc, char *const *argv, void *args, clv_err *err) {
  if (clv_cli_n_options(cli) > CLV_CLI_OPTIONS || clv_cli_n_commands(cli) > CLV_CLI_OPTIONS)
    return clv_fail(err, CLV_INTERNAL, "more than %d rows in a table", CLV_CLI_OPTIONS);
  parser p = {.cli = cli, .argc = argc, .next_arg = 1, .argv = argv, .args = args, .line = args};
  clv_err ignored_err;
  p.command = find_command_ahead(cli, argc, argv);
  p.line->cli = cli;
  clv_code code = read_words(&p, err);
  clv_code found = find_command(cli, p.line, code == CLV_OK ? err : &ignored_err);
  if (asks_for_help(p.line)) return CLV_OK;
  if (code == CLV_OK) code = found;
  return code == CLV_OK ? check_line(&p, err) : code;
}
