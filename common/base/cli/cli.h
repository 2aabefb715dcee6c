/* SPDX-License-Identifier: Apache-2.0
 *
 * cli: what the programs understand on their command line, as two tables: commands and options.
 * Parsing, --help of the program and of each command, the manual page and the completions of bash
 * and zsh all walk the same rows. The codes that programs exit with are a table here too.
 *
 * Ownership: tables and argv are borrowed and must outlive the parsed arguments. Threads: the start
 * of main. Nothing here exits.
 * Conventions are GNU's: long options may be shortened while they stay clear, --name=value and
 * --name value are the same, short ones may be joined (-vn), options and words come in any order,
 * `--` ends options.
 */
#ifndef CLEAVE_CLI_H
#define CLEAVE_CLI_H

#include "common/base/base.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- exit codes ------------------------------------------------------------------------------ */

/* EXIT-CODES.md has a section for each. */
typedef enum clv_exit_code {
  CLV_EXIT_OK = 0,
  CLV_EXIT_FAILED = 1,
  CLV_EXIT_USAGE = 2,
  CLV_EXIT_CONFIG = 3,
  CLV_EXIT_CONNECT = 4,
  CLV_EXIT_TIMEOUT = 5,
  CLV_EXIT_WORKER_LOST = 6,
  CLV_EXIT_DATA = 7,
  CLV_EXIT_CHECKPOINT = 8,
  CLV_EXIT_DIVERGED = 9,
  CLV_EXIT_BAD_ANSWER = 11,
  CLV_EXIT_INTERNAL = 70,
  CLV_EXIT_INTERRUPTED = 130,
} clv_exit_code;

typedef struct clv_exit_row {
  clv_exit_code code;
  bool points;     /* a message that ends a program with it names the section of EXIT-CODES.md */
  bool worker;     /* cleave-worker may end with it too */
  const char *doc; /* a few words */
} clv_exit_row;

extern const clv_exit_row clv_exit_rows[];
extern const size_t clv_exit_n_rows;

/* Say on standard error why the program ends (clv_notice, event "failed"), with where to read on
 * about the code. Returns the code. */
int clv_exit_report(clv_exit_code code, const clv_err *err);

/* ---- tables ---------------------------------------------------------------------------------- */

typedef enum clv_cli_kind {
  CLV_CLI_FLAG,   /* bool */
  CLV_CLI_NUMBER, /* uint64_t, from `min` to `max` */
  CLV_CLI_REAL,   /* double, from `low` to `high` */
  CLV_CLI_TEXT,   /* const char *; NULL when not given, the last one counts */
  CLV_CLI_CHOICE, /* int: 1 + the index into `choices`, 0 when not given */
  CLV_CLI_TEXTS,  /* clv_cli_list: may be repeated, up to `max` times (0: CLV_CLI_LIST) */
} clv_cli_kind;

enum { CLV_CLI_WORDS = 64, CLV_CLI_LIST = 256, CLV_CLI_OPTIONS = 128, CLV_CLI_NAME = 48 };

typedef struct clv_cli_list {
  const char *items[CLV_CLI_LIST];
  size_t n;
} clv_cli_list;

typedef struct clv_cli_option {
  const char *name; /* long form, without its dashes */
  char key;         /* short form; 0 = none */
  bool required;    /* by its commands */
  clv_cli_kind kind;
  const char *arg; /* FILE, N: how help names its value; says what completion offers (below) */
  /* "train, certs issue": those it belongs to; "certs": all that start so; NULL: all */
  const char *commands;
  size_t offset;              /* in the program's arguments */
  uint64_t min, max;          /* NUMBER (max 0: any), TEXTS */
  double low, high;           /* REAL */
  const char *const *choices; /* CHOICE, NULL-terminated */
  /* Of KEY=VALUE: words to offer, "a.b=" or "c=value", apart by spaces; NULL: none. */
  void (*keys)(clv_bytes *out);
  const char *doc; /* a few words, no capital, no full stop */
} clv_cli_option;

typedef struct clv_cli_command {
  const char *name; /* "train"; two words where commands have a common first one: "certs issue" */
  /* What follows: "SESSION.yaml", "[NAME]" may be left out, "NAME..." is one or more, "bash|zsh"
   * one of these. Completion offers files for names that end in .yaml, .pem or are FILE or PATH,
   * folders for DIR and RUN. */
  const char *args;
  const char *doc;  /* one line, no full stop */
  const char *more; /* paragraphs for help and the manual, apart by an empty line; NULL: none */
  int (*run)(void *args);
} clv_cli_command;

/* A manual page besides the program's own. */
typedef struct clv_cli_page {
  const char *name; /* "cleave-session.yaml" */
  unsigned section;
  clv_code (*write)(clv_bytes *out, clv_err *err);
} clv_cli_page;

typedef struct clv_cli {
  const char *name, *doc; /* "cleave-master", a line for NAME */
  const char *about;      /* paragraphs for DESCRIPTION, apart by an empty line */
  bool worker;            /* which exit codes */
  const clv_cli_command *commands;
  size_t n_commands;
  const clv_cli_option *options;
  size_t n_options;
  const clv_cli_page *pages;
  size_t n_pages;
  const char *see_also; /* roff: "cleave-worker(1), ..." */
} clv_cli;

/* What every program has: its arguments are a struct that starts with this. */
typedef struct clv_cli_line {
  const clv_cli *cli;
  const clv_cli_command *command;
  const char *group; /* without a command: the first word that several have in common, or NULL */
  const char *words[CLV_CLI_WORDS]; /* behind the command */
  size_t n_words;
  bool help, version, verbose;
  int log_format; /* 0 = not given, else one of CLV_LOG_AS_ */
} clv_cli_line;

enum { CLV_LOG_AS_TEXT = 1, CLV_LOG_AS_JSON = 2 };

/* ---- functions ------------------------------------------------------------------------------- */

/* argv into the zeroed struct at `args`. CLV_INVALID with a text for a person when something is
 * wrong; what was understood is in `args` also then, the command too where it is known. With --help
 * or --version nothing is wrong. */
clv_code clv_cli_parse(const clv_cli *cli, int argc, char *const *argv, void *args,
                       clv_err *err) CLV_USE_RESULT;

/* The whole way: parse, answer --help and --version, set the log's form, run the command; returns
 * the exit code. The commands `completion` and `man` are in every program. */
int clv_cli_main(const clv_cli *cli, int argc, char *const *argv, void *args);

/* A wrong use that the tables cannot tell: the text and where help is; returns CLV_EXIT_USAGE. */
int clv_cli_usage(const clv_cli_line *line, const char *fmt, ...) CLV_PRINTF(2, 3);

/* --log-format beats the file's log.json. */
bool clv_cli_is_log_json(const clv_cli_line *line, bool in_file);

/* What --help prints of the line's command, its group or the program, appended to *out. */
void clv_cli_help(const clv_cli_line *line, clv_bytes *out);

#ifdef __cplusplus
}
#endif
#endif
