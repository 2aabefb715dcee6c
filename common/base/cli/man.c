/* SPDX-License-Identifier: Apache-2.0
 *
 * Writes the manual page of a program, as man(7) text.
 */
#include <ctype.h>
#include <string.h>

#include "common/base/cli/cli_int.h"

static void write_heading(clv_bytes *out, const char *name) {
  clv_bytes_printf(out, ".SH %s\n", name);
}

static void write_bold(clv_bytes *out, const char *text) {
  clv_bytes_puts(out, "\\fB");
  clv_bytes_add_roff(out, text);
  clv_bytes_puts(out, "\\fR");
}

static void write_text_line(clv_bytes *out, const char *text) {
  clv_bytes_add_roff(out, text);
  clv_bytes_puts(out, "\n");
}

static void write_sentence(clv_bytes *out, const char *text) {
  CLV_AUTO(clv_bytes_done) clv_bytes one = {0};
  clv_cli_capitalize(text, &one);
  if (!one.failed) write_text_line(out, one.data);
}

static void write_paragraphs(clv_bytes *out, const char *text) {
  CLV_AUTO(clv_bytes_done) clv_bytes one = {0};
  for (bool first = true; clv_cli_paragraph(&text, &one); first = false) {
    if (!first) clv_bytes_puts(out, ".PP\n");
    write_text_line(out, one.data);
  }
}

static void write_option(const clv_cli_option *o, clv_bytes *out) {
  clv_cli_arg value;
  clv_bytes_puts(out, ".TP\n");
  if (o->key) clv_bytes_printf(out, "\\fB\\-%c\\fR, ", o->key);
  clv_bytes_puts(out, "\\fB\\-\\-");
  clv_bytes_add_roff(out, o->name);
  clv_bytes_puts(out, "\\fR");
  if (o->arg) clv_bytes_printf(out, "=\\fI%s\\fR", o->arg);
  clv_bytes_puts(out, "\n");
  write_sentence(out, o->doc);
  clv_cli_value_of(o, &value);
  if (o->kind == CLV_CLI_CHOICE) clv_bytes_printf(out, "One of %s.\n", value.name);
  if (o->kind == CLV_CLI_TEXTS) clv_bytes_puts(out, "May be repeated.\n");
  if (o->is_required) clv_bytes_puts(out, "Required.\n");
}

/* Writes the options that belong to this command; NULL: those that belong to all commands. */
static void write_options(const clv_cli *cli, const clv_cli_command *command, clv_bytes *out) {
  for (size_t i = 0; i < clv_cli_n_options(cli); i++) {
    const clv_cli_option *o = clv_cli_option_at(cli, i);
    if ((!command || o->commands) && clv_cli_option_applies(o, command)) write_option(o, out);
  }
}

static void write_synopsis(const clv_cli *cli, const clv_cli_command *c, clv_bytes *out) {
  write_bold(out, cli->name);
  clv_bytes_puts(out, " ");
  write_bold(out, c->name);
  clv_bytes_puts(out, " [\\fIOPTION\\fR...]");
  if (c->args) {
    clv_bytes_puts(out, " \\fI");
    clv_bytes_add_roff(out, c->args);
    clv_bytes_puts(out, "\\fR");
  }
  clv_bytes_puts(out, "\n");
}

static void write_synopses(const clv_cli *cli, clv_bytes *out) {
  write_heading(out, "SYNOPSIS");
  for (size_t i = 0; i < clv_cli_n_commands(cli); i++) {
    if (i) clv_bytes_puts(out, ".br\n");
    write_synopsis(cli, clv_cli_command_at(cli, i), out);
  }
}

static void write_commands(const clv_cli *cli, clv_bytes *out) {
  write_heading(out, "COMMANDS");
  for (size_t i = 0; i < clv_cli_n_commands(cli); i++) {
    const clv_cli_command *c = clv_cli_command_at(cli, i);
    clv_bytes_puts(out, ".SS ");
    clv_bytes_add_roff(out, c->name);
    clv_bytes_puts(out, "\n");
    write_sentence(out, c->doc);
    if (c->paragraphs) {
      clv_bytes_puts(out, ".PP\n");
      write_paragraphs(out, c->paragraphs);
    }
    write_options(cli, c, out);
  }
}

static void write_exit_codes(const clv_cli *cli, clv_bytes *out) {
  write_heading(out, "EXIT STATUS");
  for (size_t i = 0; i < clv_exit_n_rows; i++) {
    const clv_exit_row *e = &clv_exit_rows[i];
    if (cli->is_worker && !e->used_by_worker) continue;
    clv_bytes_printf(out, ".TP\n\\fB%d\\fR\n", e->code);
    write_sentence(out, e->doc);
  }
  clv_bytes_puts(out, ".PP\n");
  write_text_line(out, "EXIT-CODES.md, among the documents, has reasons and what to do for each.");
}

static void write_environment(clv_bytes *out) {
  write_heading(out, "ENVIRONMENT");
  clv_bytes_puts(out, ".TP\n\\fBCLEAVE_\\fISECTION\\fB__\\fIKEY\\fR\n");
  write_text_line(
      out,
      "Overrides a key of the configuration file, as in CLEAVE_TRAIN__BATCH=64; --set is "
      "stronger.");
  clv_bytes_puts(out, ".TP\n\\fBJOURNAL_STREAM\\fR\n");
  write_text_line(out, "Set by systemd: lines on standard error then start with their priority.");
}

void clv_cli_man(const clv_cli *cli, clv_bytes *out) {
  CLV_AUTO(clv_bytes_done) clv_bytes title = {0};
  for (const char *p = cli->name; *p; p++)
    clv_bytes_printf(&title, "%c", toupper((unsigned char)*p));
  clv_bytes_puts(out, ".TH ");
  clv_bytes_add_roff(out, title.data ? title.data : "");
  clv_bytes_printf(out, " 1 \"\" \"Cleave %s\" \"Cleave\"\n", CLV_VERSION);
  write_heading(out, "NAME");
  clv_bytes_add_roff(out, cli->name);
  clv_bytes_puts(out, " \\- ");
  write_text_line(out, cli->doc);
  write_synopses(cli, out);
  write_heading(out, "DESCRIPTION");
  write_paragraphs(out, cli->about);
  write_commands(cli, out);
  write_heading(out, "OPTIONS OF EVERY COMMAND");
  write_options(cli, NULL, out);
  write_exit_codes(cli, out);
  write_environment(out);
  write_heading(out, "SEE ALSO");
  clv_bytes_printf(out, "%s\n", cli->see_also);
}
