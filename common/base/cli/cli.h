/* SPDX-License-Identifier: Apache-2.0
 *
 * cli: command lines as two tables, commands and options. Parsing, --help of the program and of
 * each command, the manual page and the completions of bash and zsh use the same rows. The exit
 * codes of programs are a table here too.
 *
 * Ownership: tables and argv must outlive the parsed arguments. Threads: call at the start of main.
 * No function exits the process.
 * Conventions are GNU's: long options may be shortened while they stay unique, --name=value and
 * --name value are the same, short options may be joined (-vn), options and words may come in any
 * order, `--` ends options.
 */
#ifndef CLEAVE_CLI_H
#define CLEAVE_CLI_H

#include "common/base/base.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- exit codes ------------------------------------------------------------------------------ */

/* Exit codes; EXIT-CODES.md has a section for each. */
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
  bool links_to_docs;  /* the last message of the program names the section of EXIT-CODES.md */
  bool used_by_worker; /* cleave-worker may end with this code, too; false: only cleave-master */
  const char *doc;     /* meaning of the code, in a few words */
} clv_exit_row;

extern const clv_exit_row clv_exit_rows[];
extern const size_t clv_exit_n_rows;

/* Reports on standard error why the program ends (clv_notice, event "failed"), and in which section
 * of EXIT-CODES.md its exit code is described. Returns the code. */
int clv_exit_report(clv_exit_code code, const clv_err *err);

/* ---- tables of commands and options ---------------------------------------------------------- */

typedef enum clv_cli_kind {
  CLV_CLI_FLAG,   /* stored as bool: true if the option is given */
  CLV_CLI_NUMBER, /* stored as uint64_t, from `min` to `max` */
  CLV_CLI_REAL,   /* stored as double, from `low` to `high` */
  /* stored as const char *; NULL: not given; if the option is repeated, the last value counts */
  CLV_CLI_TEXT,
  CLV_CLI_CHOICE, /* stored as int: 1 + the index into `choices`; 0: not given */
  /* stored as clv_cli_list: the option may be repeated, at most `max` times (0: CLV_CLI_LIST) */
  CLV_CLI_TEXTS,
} clv_cli_kind;

/* Limits. WORDS: words of a line; LIST: values of an option that may be repeated; OPTIONS: options
 * of a program, and also its commands; NAME: bytes of a word of a command, and of an argument's
 * name, with the NUL. */
enum { CLV_CLI_WORDS = 64, CLV_CLI_LIST = 256, CLV_CLI_OPTIONS = 128, CLV_CLI_NAME = 48 };

typedef struct clv_cli_list {
  const char *items[CLV_CLI_LIST];
  size_t n;
} clv_cli_list;

typedef struct clv_cli_option {
  const char *name; /* long form of the option, without its dashes */
  char key;         /* letter of the short form; 0: none */
  bool is_required; /* the commands that the option belongs to require it */
  /* name of the option without which this one has no effect, so that the line is refused without
   * it; NULL: none */
  const char *needs;
  clv_cli_kind kind;
  /* name of the value in help, such as FILE or N; selects what completion offers, as in
   * clv_cli_command.args */
  const char *arg;
  /* commands that the option belongs to: "train, certs issue"; "certs" means all that begin with
   * certs; NULL: all commands */
  const char *commands;
  size_t offset; /* offset of the value in the struct of the program's arguments */
  /* NUMBER: least and greatest value (max 0: no limit). TEXTS: `max` is how often the option may be
   * given (0: CLV_CLI_LIST) */
  uint64_t min, max;
  double low, high;           /* least and greatest value of a REAL */
  const char *const *choices; /* for CHOICE: the allowed words, NULL-terminated */
  /* Writes, for an option KEY=VALUE, the words to offer ("a.b=" or "c=value"), separated by spaces;
   * NULL: no words. */
  void (*keys)(clv_bytes *out);
  const char *doc; /* help text: a few words, no capital, no full stop */
} clv_cli_option;

typedef struct clv_cli_command {
  /* name of the command; two words if several commands share the first: "certs issue" */
  const char *name;
  /* Words after the command: "SESSION.yaml"; "[NAME]" is optional; "NAME..." is one or more;
   * "bash|zsh" is one of these words. Completion offers files for names that end in .yaml or .pem
   * or are FILE or PATH, and folders for DIR and RUN. */
  const char *args;
  const char *doc; /* one line of help, no full stop */
  /* paragraphs for help and the manual, separated by empty lines; NULL: none */
  const char *paragraphs;
  int (*run)(void *args);
} clv_cli_command;

/* A manual page of the program besides its own, such as that of a file format. */
typedef struct clv_cli_page {
  const char *name; /* name of the page: "cleave-session.yaml" */
  unsigned section;
  clv_code (*write)(clv_bytes *out, clv_err *err);
} clv_cli_page;

typedef struct clv_cli {
  /* name of the program, "cleave-master", and a line for the section NAME */
  const char *name, *doc;
  const char *about; /* paragraphs for the section DESCRIPTION, separated by empty lines */
  /* the program is cleave-worker: the manual lists only exit codes of workers */
  bool is_worker;
  const clv_cli_command *commands;
  size_t n_commands;
  const clv_cli_option *options;
  size_t n_options;
  const clv_cli_page *pages;
  size_t n_pages;
  const char *see_also; /* section SEE ALSO, as roff text: "cleave-worker(1), ..." */
} clv_cli;

/* Parsed line. The struct of a program's arguments begins with it. */
typedef struct clv_cli_line {
  const clv_cli *cli;
  const clv_cli_command *command;
  /* word that begins several commands, if the line has that word and not the rest of a command;
   * else NULL */
  const char *group;
  const char *words[CLV_CLI_WORDS]; /* the words after the command */
  size_t n_words;
  bool help, version, verbose;
  int log_format; /* value of --log-format: 0: not given; else one of CLV_LOG_AS_ */
} clv_cli_line;

enum { CLV_LOG_AS_TEXT = 1, CLV_LOG_AS_JSON = 2 };

/* ---- parsing and running command lines ------------------------------------------------------- */

/* Parses argv into the zeroed struct at `args`. CLV_INVALID with a text for the user; `args` then
 * has what was parsed, and the command if it is known. --help and --version suppress errors. */
clv_code clv_cli_parse(const clv_cli *cli, int argc, char *const *argv, void *args,
                       clv_err *err) CLV_USE_RESULT;

/* Runs a program: parses, answers --help and --version, sets the log's form, runs the command.
 * Returns the exit code. Adds the commands `completion` and `man` to every program. */
int clv_cli_main(const clv_cli *cli, int argc, char *const *argv, void *args);

/* Reports a wrong use that the tables cannot detect, and names the --help to read. Returns
 * CLV_EXIT_USAGE. */
int clv_cli_usage(const clv_cli_line *line, const char *fmt, ...) CLV_PRINTF(2, 3);

/* True if log lines are to be JSON. --log-format overrides in_file, the setting log.json of the
 * program's file. */
bool clv_cli_is_log_json(const clv_cli_line *line, bool in_file);

/* Appends the --help text of the line's command, its group or the program. */
void clv_cli_help(const clv_cli_line *line, clv_bytes *out);

#ifdef __cplusplus
}
#endif
#endif
