/* SPDX-License-Identifier: Apache-2.0
 *
 * Reading the tables: a program's own rows and those that every program has.
 */
#ifndef CLEAVE_CLI_INT_H
#define CLEAVE_CLI_INT_H

#include "common/base/cli/cli.h"

size_t clv_cli_n_options(const clv_cli *cli);
const clv_cli_option *clv_cli_option_at(const clv_cli *cli, size_t i);
size_t clv_cli_n_commands(const clv_cli *cli);
const clv_cli_command *clv_cli_command_at(const clv_cli *cli, size_t i);

/* Whether it is taken there; command NULL: everywhere. */
bool clv_cli_option_applies(const clv_cli_option *option, const clv_cli_command *command);

/* Length of the first word of a command's name; whether there is a second one; whether it is
 * `word`. */
size_t clv_cli_first_word(const clv_cli_command *command);
bool clv_cli_is_grouped(const clv_cli_command *command);
bool clv_cli_starts_with(const clv_cli_command *command, const char *word);
bool clv_cli_same_group(const clv_cli_command *a, const clv_cli_command *b);
/* Command i has a first word that none before it has. */
bool clv_cli_starts_group(const clv_cli *cli, size_t i);

/* ---- argument synopses ----------------------------------------------------------------------- */

typedef enum clv_cli_completion {
  CLV_COMPLETE_NOTHING,
  CLV_COMPLETE_FILES, /* whose names end in `suffix` */
  CLV_COMPLETE_FOLDERS,
  CLV_COMPLETE_WORDS, /* those of `name`, separated by '|' */
  CLV_COMPLETE_KEYS,  /* those of `keys` */
} clv_cli_completion;

typedef struct clv_cli_arg {
  char name[CLV_CLI_NAME];
  bool optional, repeated;
  clv_cli_completion offer;
  const char *suffix; /* ".yaml"; "" = any */
  void (*keys)(clv_bytes *out);
} clv_cli_arg;

/* The next of "SESSION.yaml [NAME]": false at the end. *at moves on. */
bool clv_cli_next_arg(const char **at, clv_cli_arg *ret);

/* What stands for an option's value: choices joined by '|', or `arg`. */
void clv_cli_value_of(const clv_cli_option *option, clv_cli_arg *ret);

/* "-v, --verbose", "    --trace=FILE". */
void clv_cli_option_forms(const clv_cli_option *option, clv_bytes *out);

/* "Takes it." of "takes it". */
void clv_cli_capitalize(const char *text, clv_bytes *out);

/* The paragraphs of a text one by one: false at the end. */
bool clv_cli_paragraph(const char **at, clv_bytes *ret);

/* ---- documents made from the rows, appended to *out ------------------------------------------ */

void clv_cli_man(const clv_cli *cli, clv_bytes *out);  /* the program's manual page, man(7) text */
void clv_cli_bash(const clv_cli *cli, clv_bytes *out); /* completion scripts */
void clv_cli_zsh(const clv_cli *cli, clv_bytes *out);

/* ---- the commands of every program (main.c) -------------------------------------------------- */

int clv_cli_run_completion(void *args);
int clv_cli_run_man(void *args);

#endif
