/* SPDX-License-Identifier: Apache-2.0
 *
 * --help of the program, of a group of commands, and of one command with its own options.
 */
#include <string.h>

#include "common/base/cli/cli_int.h"

enum { DOC_COLUMN = 28, LINE_WIDTH = 90 };

/* Writes text in lines that begin at column `column`, broken between words. */
static void write_wrapped(clv_bytes *out, const char *text, size_t column) {
  size_t width = LINE_WIDTH - column;
  while (*text) {
    size_t n = strcspn(text, "\n");
    if (n > width) {
      n = width;
      while (n > 1 && text[n] != ' ') n--;
      if (n == 1) n = strcspn(text, " \n");
    }
    clv_bytes_add(out, text, n);
    text += n;
    text += strspn(text, " \n");
    if (*text) clv_bytes_printf(out, "\n%*s", (int)column, "");
  }
  clv_bytes_puts(out, "\n");
}

static void write_row(clv_bytes *out, const char *left, const char *doc) {
  clv_bytes_printf(out, "  %-*s", DOC_COLUMN - 2, left);
  if (strlen(left) > DOC_COLUMN - 4) clv_bytes_printf(out, "\n%*s", DOC_COLUMN, "");
  write_wrapped(out, doc, DOC_COLUMN);
}

static void write_paragraphs(clv_bytes *out, const char *text) {
  CLV_AUTO(clv_bytes_done) clv_bytes one = {0};
  while (clv_cli_paragraph(&text, &one)) {
    write_wrapped(out, one.data, 0);
    clv_bytes_puts(out, "\n");
  }
}

static void write_option_row(clv_bytes *out, const clv_cli_option *o) {
  CLV_AUTO(clv_bytes_done) clv_bytes left = {0}, doc = {0};
  if (!o->key) clv_bytes_puts(&left, "    ");
  clv_cli_option_forms(o, &left);
  clv_bytes_puts(&doc, o->doc);
  if (o->kind == CLV_CLI_CHOICE) {
    clv_cli_arg all;
    clv_cli_value_of(o, &all);
    clv_bytes_printf(&doc, " (%s)", all.name);
  }
  if (o->is_required) clv_bytes_puts(&doc, " (required)");
  write_row(out, left.data, doc.data);
}

/* Writes the options that belong to this command; NULL: those that belong to all commands. */
static void write_option_rows(const clv_cli *cli, const clv_cli_command *command, clv_bytes *out) {
  bool has_header = false;
  for (size_t i = 0; i < clv_cli_n_options(cli); i++) {
    const clv_cli_option *o = clv_cli_option_at(cli, i);
    if ((command && !o->commands) || !clv_cli_option_applies(o, command)) continue;
    if (!has_header) clv_bytes_puts(out, command ? "Options:\n" : "Options of every command:\n");
    has_header = true;
    write_option_row(out, o);
  }
  if (has_header) clv_bytes_puts(out, "\n");
}

static void write_synopsis(const clv_cli *cli, const clv_cli_command *c, clv_bytes *out) {
  clv_bytes_printf(out, "%s %s [OPTION...]%s%s\n", cli->name, c->name, c->args ? " " : "",
                   c->args ? c->args : "");
}

static void write_command_help(const clv_cli *cli, const clv_cli_command *c, clv_bytes *out) {
  clv_bytes_puts(out, "Usage: ");
  write_synopsis(cli, c, out);
  clv_bytes_puts(out, "\n");
  clv_cli_capitalize(c->doc, out);
  clv_bytes_puts(out, "\n\n");
  write_paragraphs(out, c->paragraphs);
  write_option_rows(cli, c, out);
  write_option_rows(cli, NULL, out);
}

static void write_command_rows(const clv_cli *cli, const char *group, clv_bytes *out) {
  clv_bytes_puts(out, "Commands:\n");
  for (size_t i = 0; i < clv_cli_n_commands(cli); i++) {
    const clv_cli_command *c = clv_cli_command_at(cli, i);
    CLV_AUTO(clv_bytes_done) clv_bytes left = {0};
    if (group && !clv_cli_starts_with(c, group)) continue;
    clv_bytes_printf(&left, "%s%s%s", c->name, c->args ? " " : "", c->args ? c->args : "");
    write_row(out, left.data, c->doc);
  }
}

static void write_exit_rows(const clv_cli *cli, clv_bytes *out) {
  clv_bytes_puts(out, "Exit codes (EXIT-CODES.md says what to do):\n");
  for (size_t i = 0; i < clv_exit_n_rows; i++) {
    const clv_exit_row *e = &clv_exit_rows[i];
    if (!cli->is_worker || e->used_by_worker) clv_bytes_printf(out, "  %3d  %s\n", e->code, e->doc);
  }
}

void clv_cli_help(const clv_cli_line *line, clv_bytes *out) {
  const clv_cli *cli = line->cli;
  if (line->command) {
    write_command_help(cli, line->command, out);
    return;
  }
  clv_bytes_printf(out, "Usage: %s %s%sCOMMAND [OPTION...]\n\n", cli->name,
                   line->group ? line->group : "", line->group ? " " : "");
  if (!line->group) write_paragraphs(out, cli->about);
  write_command_rows(cli, line->group, out);
  clv_bytes_printf(out, "\n`%s COMMAND --help` lists the options of a command.\n\n", cli->name);
  if (line->group) return;
  write_option_rows(cli, NULL, out);
  write_exit_rows(cli, out);
}
