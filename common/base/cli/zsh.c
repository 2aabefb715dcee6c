/* SPDX-License-Identifier: Apache-2.0
 *
 * Writes the completion script of zsh, which uses zsh's function _arguments.
 */
#include <string.h>

#include "common/base/cli/cli_int.h"

/* Writes a sentence escaped for '...' and [...]. */
static void write_quoted(clv_bytes *out, const char *text) {
  for (; *text; text++) {
    if (*text == '\'')
      clv_bytes_puts(out, "'\\''");
    else if (strchr("[]\\:", *text))
      clv_bytes_printf(out, "\\%c", *text);
    else
      clv_bytes_add(out, text, 1);
  }
}

/* Writes an argument with its completion, such as ":SESSION.yaml:_files -g "*.yaml"". */
static void add_action(const clv_cli_arg *arg, clv_bytes *out) {
  clv_bytes_puts(out, ":");
  write_quoted(out, arg->name);
  clv_bytes_puts(out, ":");
  if (arg->completion == CLV_COMPLETE_FILES && *arg->suffix)
    clv_bytes_printf(out, "_files -g \"*%s\"", arg->suffix);
  else if (arg->completion == CLV_COMPLETE_FILES)
    clv_bytes_puts(out, "_files");
  else if (arg->completion == CLV_COMPLETE_FOLDERS)
    clv_bytes_puts(out, "_files -/");
  if (arg->completion == CLV_COMPLETE_KEYS) {
    clv_bytes_puts(out, "compadd -S \"\" --");
    arg->keys(out);
  }
  if (arg->completion != CLV_COMPLETE_WORDS) return;
  clv_bytes_puts(out, "(");
  for (const char *p = arg->name; *p; p++) clv_bytes_printf(out, "%c", *p == '|' ? ' ' : *p);
  clv_bytes_puts(out, ")");
}

/* Writes one form of an option, as one argument of _arguments. */
static void add_form(const clv_cli_option *o, const char *form, clv_bytes *out) {
  clv_bytes_printf(out, " '%s%s%s[", o->kind == CLV_CLI_TEXTS ? "*" : "", form,
                   o->kind == CLV_CLI_FLAG ? ""
                   : form[1] == '-'        ? "="
                                           : "+");
  write_quoted(out, o->doc);
  clv_bytes_puts(out, "]");
  if (o->kind != CLV_CLI_FLAG) {
    clv_cli_arg value;
    clv_cli_value_of(o, &value);
    add_action(&value, out);
  }
  clv_bytes_puts(out, "'");
}

static void add_option(const clv_cli_option *o, clv_bytes *out) {
  CLV_AUTO(clv_bytes_done) clv_bytes form = {0};
  clv_bytes_printf(&form, "--%s", o->name);
  add_form(o, form.data, out);
  const char key[] = {'-', o->key, '\0'};
  if (o->key) add_form(o, key, out);
}

/* Writes the options of command c and those of all commands; c NULL: only those of all commands. */
static void add_options(const clv_cli *cli, const clv_cli_command *c, clv_bytes *out) {
  for (size_t i = 0; i < clv_cli_n_options(cli); i++) {
    const clv_cli_option *o = clv_cli_option_at(cli, i);
    if (clv_cli_option_applies(o, c)) add_option(o, out);
  }
}

static void add_arguments(const clv_cli *cli, const clv_cli_command *c, clv_bytes *out) {
  const char *at = c->args;
  clv_cli_arg arg;
  clv_bytes_puts(out, "_arguments -s");
  add_options(cli, c, out);
  for (int i = 1; clv_cli_next_arg(&at, &arg); i++) {
    if (arg.is_repeated)
      clv_bytes_puts(out, " '*");
    else
      clv_bytes_printf(out, " '%d%s", i, arg.is_optional ? ":" : "");
    add_action(&arg, out);
    clv_bytes_puts(out, "'");
  }
}

/* Writes an item "name:sentence" of a list for _describe. */
static void add_described(const char *name, const char *doc, clv_bytes *out) {
  clv_bytes_printf(out, " '%s:", name);
  write_quoted(out, doc);
  clv_bytes_puts(out, "'");
}

static void add_first_words(const clv_cli *cli, clv_bytes *out) {
  clv_bytes_puts(out, "  local -a commands=(");
  for (size_t i = 0; i < clv_cli_n_commands(cli); i++) {
    const clv_cli_command *c = clv_cli_command_at(cli, i);
    char word[CLV_CLI_NAME] = "";
    strncat(word, c->name, CLV_MIN(clv_cli_first_word(c), sizeof word - 1));
    if (clv_cli_starts_group(cli, i))
      add_described(word, clv_cli_is_grouped(c) ? "its verbs" : c->doc, out);
  }
  clv_bytes_puts(out, ")\n");
}

static void add_group(const clv_cli *cli, size_t i, clv_bytes *out) {
  const clv_cli_command *first = clv_cli_command_at(cli, i);
  size_t n = clv_cli_first_word(first);
  clv_bytes_printf(out, "    %.*s)\n      local -a verbs=(", (int)n, first->name);
  for (size_t k = i; k < clv_cli_n_commands(cli); k++) {
    const clv_cli_command *c = clv_cli_command_at(cli, k);
    if (clv_cli_same_group(first, c)) add_described(c->name + n + 1, c->doc, out);
  }
  clv_bytes_puts(out,
                 ")\n      if ((CURRENT == 2)); then _describe verb verbs; return; fi\n"
                 "      shift words; ((CURRENT--))\n      case $words[1] in\n");
  for (size_t k = i; k < clv_cli_n_commands(cli); k++) {
    const clv_cli_command *c = clv_cli_command_at(cli, k);
    if (!clv_cli_same_group(first, c)) continue;
    clv_bytes_printf(out, "        %s) ", c->name + n + 1);
    add_arguments(cli, c, out);
    clv_bytes_puts(out, " ;;\n");
  }
  clv_bytes_puts(out, "      esac ;;\n");
}

void clv_cli_zsh(const clv_cli *cli, clv_bytes *out) {
  clv_bytes_printf(out, "#compdef %s\n# zsh completion, as `%s completion zsh` prints it\n",
                   cli->name, cli->name);
  clv_bytes_printf(out, "_%s() {\n  local curcontext=$curcontext state line\n", cli->name);
  clv_bytes_puts(out, "  typeset -A opt_args\n");
  add_first_words(cli, out);
  clv_bytes_puts(out, "  _arguments -C -s -A \"-*\"");
  add_options(cli, NULL, out);
  clv_bytes_puts(out,
                 " '1:command:->command' '*::argument:->argument' && return\n"
                 "  if [[ $state == command ]]; then _describe command commands; return; fi\n"
                 "  case $words[1] in\n");
  for (size_t i = 0; i < clv_cli_n_commands(cli); i++) {
    const clv_cli_command *c = clv_cli_command_at(cli, i);
    if (clv_cli_is_grouped(c)) {
      if (clv_cli_starts_group(cli, i)) add_group(cli, i, out);
      continue;
    }
    clv_bytes_printf(out, "    %s) ", c->name);
    add_arguments(cli, c, out);
    clv_bytes_puts(out, " ;;\n");
  }
  /* A file in a folder of fpath is the body of the function at its first call; any other file is
   * sourced. */
  clv_bytes_printf(
      out, "  esac\n}\nif [[ $funcstack[1] == _%s ]]; then _%s \"$@\"; else compdef _%s %s; fi\n",
      cli->name, cli->name, cli->name, cli->name);
}
