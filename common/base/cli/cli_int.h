/* SPDX-License-Identifier: Apache-2.0
 *
 * Internals of cli: access to the rows of a program together with the rows that every program
 * has.
 */
#ifndef CLEAVE_CLI_INT_H
#define CLEAVE_CLI_INT_H

#include "common/base/cli/cli.h"

size_t clv_cli_n_options(const clv_cli *cli);
const clv_cli_option *clv_cli_option_at(const clv_cli *cli, size_t i);
size_t clv_cli_n_commands(const clv_cli *cli);
const clv_cli_command *clv_cli_command_at(const clv_cli *cli, size_t i);

/* True if the command accepts the option; command NULL: if all commands do. */
bool clv_cli_option_applies(const clv_cli_option *option, const clv_cli_command *command);

/* First word of a command's name: its length; true if a second word follows; true if it is
 * `word`. */
size_t clv_cli_first_word(const clv_cli_command *command);
bool clv_cli_is_grouped(const clv_cli_command *command);
bool clv_cli_starts_with(const clv_cli_command *command, const char *word);
bool clv_cli_same_group(const clv_cli_command *a, const clv_cli_command *b);
/* True if no command before i has the same first word. */
bool clv_cli_starts_group(const clv_cli *cli, size_t i);

/* ---- argument synopses ----------------------------------------------------------------------- */

typedef enum clv_cli_completion {
  CLV_COMPLETE_NOTHING,
  CLV_COMPLETE_FILES, /* with names that end in `suffix` */
  CLV_COMPLETE_FOLDERS,
  CLV_COMPLETE_WORDS, /* the words of `name`, separated by '|' */
  CLV_COMPLETE_KEYS,  /* the words that `keys` writes */
} clv_cli_completion;

typedef struct clv_cli_arg {
  char name[CLV_CLI_NAME];
  bool optional, repeated;
  clv_cli_completion offer;
  const char *suffix; /* ".yaml"; "": any */
  void (*keys)(clv_bytes *out);
} clv_cli_arg;

/* Reads the next argument of "SESSION.yaml [NAME]" and advances *at. False: the end. */
bool clv_cli_next_arg(const char **at, clv_cli_arg *ret);

/* Describes the value of an option: choices joined by '|', or `arg`. */
void clv_cli_value_of(const clv_cli_option *option, clv_cli_arg *ret);

/* Appends "-v, --verbose" or "    --trace=FILE". */
void clv_cli_option_forms(const clv_cli_option *option, clv_bytes *out);

/* Appends "Takes it." for "takes it". */
void clv_cli_capitalize(const char *text, clv_bytes *out);

/* Reads the next paragraph of a text. False: the end. */
bool clv_cli_paragraph(const char **at, clv_bytes *ret);

/* ---- documents made from the rows, appended to *out ------------------------------------------ */

void clv_cli_man(const clv_cli *cli, clv_bytes *out);  /* man(7) text */
void clv_cli_bash(const clv_cli *cli, clv_bytes *out); /* completion scripts */
void clv_cli_zsh(const clv_cli *cli, clv_bytes *out);

/* ---- the commands of every program (main.c) -------------------------------------------------- */

int clv_cli_run_completion(void *args);
int clv_cli_run_man(void *args);

#endif
