/* SPDX-License-Identifier: Apache-2.0
 *
 * Main function of the programs: from argv to the exit code.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include "common/base/cli/cli_int.h"

bool clv_cli_is_log_json(const clv_cli_line *line, bool in_file) {
  return line->log_format ? line->log_format == CLV_LOG_AS_JSON : in_file;
}

static int report_usage(const clv_cli_line *line, const char *text) {
  const char *of = line->command ? line->command->name : line->group ? line->group : "";
  clv_notice(CLV_LOG_ERROR, "usage", "%s\nTry '%s%s%s --help'.", text, line->cli->name,
             *of ? " " : "", of);
  return CLV_EXIT_USAGE;
}

int clv_cli_usage(const clv_cli_line *line, const char *fmt, ...) {
  char text[CLV_ERR_TEXT];
  va_list ap;
  va_start(ap, fmt);
  vsnprintf(text, sizeof text, fmt, ap);
  va_end(ap);
  return report_usage(line, text);
}

/* error: the errno of the failed write; 0: not known, because an earlier write failed. */
static int report_unwritable(int error) {
  clv_notice(CLV_LOG_ERROR, "failed", "standard output cannot be written%s%s", error ? ": " : "",
             error ? strerrordesc_np(error) : "");
  return CLV_EXIT_FAILED;
}

static int print(const clv_bytes *text) {
  errno = 0;
  if (text->failed || fwrite(text->data, 1, text->len, stdout) != text->len || fflush(stdout))
    return report_unwritable(errno);
  return CLV_EXIT_OK;
}

static bool reader_has_left(void) {
  struct pollfd out = {.fd = STDOUT_FILENO, .events = POLLOUT};
  return poll(&out, 1, 0) == 1 && (out.revents & POLLERR);
}

/* Reports a failed write to standard output, such as a full disk. A closed pipe (`head`) is no
 * error. */
static int check_stdout_written(int outcome) {
  int error = fflush(stdout) != 0 ? errno : 0;
  bool failed = error || ferror(stdout);
  return failed && outcome == CLV_EXIT_OK && !reader_has_left() ? report_unwritable(error)
                                                                : outcome;
}

/* Opens /dev/null for closed standard streams. Otherwise the first file or connection would get the
 * number of such a stream, and printed text would go into it. A stream for output is opened for
 * reading and the reverse, so that using it fails. */
static void fill_standard_streams(void) {
  for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
    if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", fd ? O_RDONLY : O_WRONLY) < 0) return;
}

/* Prevents core files, and access to memory by other processes of this user, because memory holds
 * keys, records and weights. Called first, before any key is in memory. */
static void forbid_core_dumps(void) {
  setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
  prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
}

static int print_help_or_version(const clv_cli_line *line) {
  CLV_AUTO(clv_bytes_done) clv_bytes text = {0};
  if (line->version)
    clv_bytes_printf(&text, "%s %s\n", line->cli->name, CLV_VERSION);
  else
    clv_cli_help(line, &text);
  return print(&text);
}

int clv_cli_main(const clv_cli *cli, int argc, char *const *argv, void *args) {
  clv_cli_line *line = args;
  clv_err err;
  forbid_core_dumps();
  fill_standard_streams();
  clv_log_set_program(cli->name);
  clv_code code = clv_cli_parse(cli, argc, argv, args, &err);
  clv_log_set(line->verbose ? CLV_LOG_DEBUG : CLV_LOG_WARN, clv_cli_is_log_json(line, false));
  if (code != CLV_OK) return report_usage(line, err.text);
  if (line->help || line->version) return print_help_or_version(line);
  return check_stdout_written(line->command->run(args));
}

/* ---- the commands of every program ----------------------------------------------------------- */

int clv_cli_run_completion(void *args) {
  const clv_cli_line *line = args;
  CLV_AUTO(clv_bytes_done) clv_bytes text = {0};
  (strcmp(line->words[0], "zsh") == 0 ? clv_cli_zsh : clv_cli_bash)(line->cli, &text);
  return print(&text);
}

static int report_page_error(const clv_cli_line *line) {
  CLV_AUTO(clv_bytes_done) clv_bytes all = {0};
  clv_bytes_puts(&all, line->cli->name);
  for (size_t i = 0; i < line->cli->n_pages; i++)
    clv_bytes_printf(&all, ", %s", line->cli->pages[i].name);
  return clv_cli_usage(line, "there is no page '%.100s'; there are %s", line->words[0], all.data);
}

int clv_cli_run_man(void *args) {
  const clv_cli_line *line = args;
  CLV_AUTO(clv_bytes_done) clv_bytes text = {0};
  clv_err err;
  if (!line->n_words || strcmp(line->words[0], line->cli->name) == 0) {
    clv_cli_man(line->cli, &text);
    return print(&text);
  }
  for (size_t i = 0; i < line->cli->n_pages; i++) {
    const clv_cli_page *page = &line->cli->pages[i];
    if (strcmp(page->name, line->words[0]) != 0) continue;
    if (page->write(&text, &err) != CLV_OK) return clv_exit_report(CLV_EXIT_FAILED, &err);
    return print(&text);
  }
  return report_page_error(line);
}
