/* SPDX-License-Identifier: Apache-2.0
 *
 * The manual page, as man(7) text.
 */
#include <ctype.h>
#include <string.h>

#include "common/base/cli/cli_int.h"

static void heading(clv_bytes *out, const char *name) { clv_bytes_printf(out, ".SH %s\n", name); }

static void bold(clv_bytes *out, const char *text) {
  clv_bytes_puts(out, "\\fB");
  clv_bytes_roff(out, text);
  clv_bytes_puts(out, "\\fR");
}

static void text_line(clv_bytes *out, const char *text) {
  clv_bytes_roff(out, text);
  clv_bytes_puts(out, "\n");
}

static void sentence(clv_bytes *out, const char *text) {
  CLV_AUTO(clv_bytes_done) clv_bytes one = {0};
  clv_cli_capitalize(text, &one);
  if (!one.failed) text_line(out, one.data);
}

static void paragraphs(clv_bytes *out, const char *text) {
  CLV_AUTO(clv_bytes_done) clv_bytes one = {0};
  for (bool first = true; clv_cli_paragraph(&text, &one); first = false) {
    if (!first) clv_bytes_puts(out, ".PP\n");
    text_line(out, one.data);
  }
}

static void option(const clv_cli_option *o, clv_bytes *out) {
  clv_cli_arg all;
  clv_bytes_puts(out, ".TP\n");
  if (o->key) clv_bytes_printf(out, "\\fB\\-%c\\fR, ", o->key);
  clv_bytes_puts(out, "\\fB\\-\\-");
  clv_bytes_roff(out, o->name);
  clv_bytes_puts(out, "\\fR");
  if (o->arg) clv_bytes_printf(out, "=\\fI%s\\fR", o->arg);
  clv_bytes_puts(out, "\n");
  sentence(out, o->doc);
  clv_cli_value_of(o, &all);
  if (o->kind == CLV_CLI_CHOICE) clv_bytes_printf(out, "One of %s.\n", all.name);
  if (o->kind == CLV_CLI_TEXTS) clv_bytes_puts(out, "May be repeated.\n");
  if (o->required) clv_bytes_puts(out, "Required.\n");
}

/* Writes the options of the command alone; NULL: those of all commands. */
static void options(const clv_cli *cli, const clv_cli_command *command, clv_bytes *out) {
  for (size_t i = 0; i < clv_cli_n_options(cli); i++) {
    const clv_cli_option *o = clv_cli_option_at(cli, i);
    if ((!command || o->commands) && clv_cli_option_applies(o, command)) option(o, out);
  }
}

static void synopsis(const clv_cli *cli, const clv_cli_command *c, clv_bytes *out) {
  bold(out, cli->name);
  clv_bytes_puts(out, " ");
  bold(out, c->name);
  clv_bytes_puts(out, " [\\fIOPTION\\fR...]");
  if (c->args) {
    clv_bytes_puts(out, " \\fI");
    clv_bytes_roff(out, c->args);
    clv_bytes_puts(out, "\\fR");
  }
  clv_bytes_puts(out, "\n");
}

static void synopses(const clv_cli *cli, clv_bytes *out) {
  heading(out, "SYNOPSIS");
  for (size_t i = 0; i < clv_cli_n_commands(cli); i++) {
    if (i) clv_bytes_puts(out, ".br\n");
    synopsis(cli, clv_cli_command_at(cli, i), out);
  }
}

static void commands(const clv_cli *cli, clv_bytes *out) {
  heading(out, "COMMANDS");
  for (size_t i = 0; i < clv_cli_n_commands(cli); i++) {
    const clv_cli_command *c = clv_cli_command_at(cli, i);
    clv_bytes_puts(out, ".SS ");
    clv_bytes_roff(out, c->name);
    clv_bytes_puts(out, "\n");
    sentence(out, c->doc);
    if (c->more) {
      clv_bytes_puts(out, ".PP\n");
      paragraphs(out, c->more);
    }
    options(cli, c, out);
  }
}

static void exits(const clv_cli *cli, clv_bytes *out) {
  heading(out, "EXIT STATUS");
  for (size_t i = 0; i < clv_exit_n_rows; i++) {
    const clv_exit_row *e = &clv_exit_rows[i];
    if (cli->worker && !e->worker) continue;
    clv_bytes_printf(out, ".TP\n\\fB%d\\fR\n", e->code);
    sentence(out, e->doc);
  }
  clv_bytes_puts(out, ".PP\n");
  text_line(out, "EXIT-CODES.md, among the documents, has reasons and what to do for each.");
}

static void environment(clv_bytes *out) {
  heading(out, "ENVIRONMENT");
  clv_bytes_puts(out, ".TP\n\\fBCLEAVE_\\fISECTION\\fB__\\fIKEY\\fR\n");
  text_line(out,
            "Overrides a key of the configuration file, as in CLEAVE_TRAIN__BATCH=64; --set is "
            "stronger.");
  clv_bytes_puts(out, ".TP\n\\fBJOURNAL_STREAM\\fR\n");
  text_line(out, "Set by systemd: lines on standard error then start with their priority.");
}

void clv_cli_man(const clv_cli *cli, clv_bytes *out) {
  CLV_AUTO(clv_bytes_done) clv_bytes title = {0};
  for (const char *p = cli->name; *p; p++)
    clv_bytes_printf(&title, "%c", toupper((unsigned char)*p));
  clv_bytes_puts(out, ".TH ");
  clv_bytes_roff(out, title.data ? title.data : "");
  clv_bytes_printf(out, " 1 \"\" \"Cleave %s\" \"Cleave\"\n", CLV_VERSION);
  heading(out, "NAME");
  clv_bytes_roff(out, cli->name);
  clv_bytes_puts(out, " \\- ");
  text_line(out, cli->doc);
  synopses(cli, out);
  heading(out, "DESCRIPTION");
  paragraphs(out, cli->about);
  commands(cli, out);
  heading(out, "OPTIONS OF EVERY COMMAND");
  options(cli, NULL, out);
  exits(cli, out);
  environment(out);
  heading(out, "SEE ALSO");
  clv_bytes_printf(out, "%s\n", cli->see_also);
}
