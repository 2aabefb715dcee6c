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

/* True if the command accepts the option; command NULL: true if all commands accept it. */
bool clv_cli_option_applies(const clv_cli_option *option, const clv_cli_command *command);

/* The first word of a command's name: clv_cli_first_word returns its length, clv_cli_is_grouped
 * whether a second word follows, clv_cli_starts_with whether it is `word`. */
size_t clv_cli_first_word(const clv_cli_command *command);
bool clv_cli_is_grouped(const clv_cli_command *command);
bool clv_cli_starts_with(const clv_cli_command *command, const char *word);
bool clv_cli_same_group(const clv_cli_command *a, const clv_cli_command *b);
/* True if no command before i has the same first word. */
bool clv_cli_starts_group(const clv_cli *cli, size_t i);

/* ---- synopses of arguments, such as "SESSION.yaml [NAME]" ------------------------------------ */

typedef enum clv_cli_completion {
  CLV_COMPLETE_NOTHING,
  CLV_COMPLETE_FILES, /* offer files whose names end in `suffix` */
  CLV_COMPLETE_FOLDERS,
  CLV_COMPLETE_WORDS, /* offer the words in `name`, which '|' separates */
  CLV_COMPLETE_KEYS,  /* offer the words that the option's `keys` writes */
} clv_cli_completion;

typedef struct clv_cli_arg {
  char name[CLV_CLI_NAME];
  bool is_optional, is_repeated;
  clv_cli_completion completion;
  const char *suffix; /* end of the file names to offer, such as ".yaml"; "": any */
  void (*keys)(clv_bytes *out);
} clv_cli_arg;

/* Reads the next argument of a text such as "SESSION.yaml [NAME]" and advances *at. False: there is
 * none. */
bool clv_cli_next_arg(const char **at, clv_cli_arg *ret);

/* Describes the value of an option: its choices joined by '|', or its `arg`. */
void clv_cli_value_of(const clv_cli_option *option, clv_cli_arg *ret);

/* Appends the forms of an option: "-v, --verbose" or " --trace=FILE". */
void clv_cli_option_forms(const clv_cli_option *option, clv_bytes *out);

/* Appends a text with a capital and a full stop: "Takes it." for "takes it". */
void clv_cli_capitalize(const char *text, clv_bytes *out);

/* Reads the next paragraph of a text and advances *at. False: there is none. */
bool clv_cli_paragraph(const char **at, clv_bytes *ret);

/* ---- documents made from the rows, appended to *out ------------------------------------------ */

/* Appends the manual page of the program, as man(7) text. */
void clv_cli_man(const clv_cli *cli, clv_bytes *out);
/* Append the completion script of the program for bash, for zsh. */
void clv_cli_bash(const clv_cli *cli, clv_bytes *out);
void clv_cli_zsh(const clv_cli *cli, clv_bytes *out);

/* ---- the commands of every program (main.c) -------------------------------------------------- */

int clv_cli_run_completion(void *args);
int clv_cli_run_man(void *args);

#endif
