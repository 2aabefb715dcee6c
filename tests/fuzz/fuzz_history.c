/* SPDX-License-Identifier: Apache-2.0
 *
 * Fuzzes what other commands read of a run: its record, its lines of numbers and its output,
 * separated by NUL bytes, as files of a folder. `runs`, `log` and a reporter that resumes read
 * them. Printed text has no control characters but line ends and tabs; otherwise the target aborts.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "master/history/history_int.h"
#include "master/report/report.h"
#include "tests/fuzz/never.h"

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { FILES = 3, LAST_KEPT_STEP = 5 };
static const char *const names[FILES] = {"run.json", "metrics.jsonl", CLV_JOURNAL_TEXT};
static char home[] = "/dev/shm/cleave-fuzz-XXXXXX", run[64];

static void remove_run_files(void) {
  static const char *const other_files[] = {"pace.jsonl", "evaluations.jsonl"};
  char path[160];
  for (size_t i = 0; i < FILES + CLV_COUNT(other_files); i++) {
    snprintf(path, sizeof path, "%s/%s", run, i < FILES ? names[i] : other_files[i - FILES]);
    unlink(path);
  }
  rmdir(run);
  rmdir(home);
}

int LLVMFuzzerInitialize(int *argc, char ***argv) {
  (void)argc, (void)argv;
  NEVER(!mkdtemp(home));
  snprintf(run, sizeof run, "%s/r", home);
  return mkdir(run, 0700) || atexit(remove_run_files);
}

static void put_file(const char *name, const void *data, size_t len) {
  char path[160];
  snprintf(path, sizeof path, "%s/%s", run, name);
  int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  NEVER(fd < 0 || write(fd, data, len) != (ssize_t)len);
  close(fd);
}

/* Reads the folder. A folder with lines of numbers must count as the folder of a run. Returns true
 * if the run has ended for good. */
static bool check_run_entry(void) {
  CLV_AUTO(clv_run_entry_done) clv_run_entry e = {0};
  NEVER(clv_run_entry_read(run, &e, NULL) != CLV_OK);
  NEVER((e.state == CLV_STATE_DAMAGED) == (e.record.n_attempts > 0));
  int code = clv_run_entry_exit_code(&e);
  NEVER(code < 0 || code > 255);
  return e.state != CLV_STATE_ELSEWHERE;
}

static void run_history_commands(bool has_ended) {
  int code;
  NEVER(clv_history_print_runs(home, false, NULL) != CLV_OK);
  NEVER(clv_history_print_runs(run, true, NULL) != CLV_OK);
  NEVER(clv_history_print_log(run, has_ended, false, &code, NULL) != CLV_OK);
  /* the run folder lacks the file that `log` prints as JSON */
  NEVER(clv_history_print_log(run, false, true, &code, NULL) != CLV_NOT_FOUND);
}

/* Asserts that the text for a terminal, and the JSON for programs, are well formed. */
static void check_history_output(bool has_ended) {
  char *text = NULL;
  size_t len = 0;
  FILE *terminal = stdout, *memory = open_memstream(&text, &len);
  NEVER(!memory);
  stdout = memory;
  run_history_commands(has_ended);
  stdout = terminal;
  fclose(memory);
  for (size_t i = 0; i < len; i++) {
    unsigned char c = (unsigned char)text[i];
    NEVER((c < 0x20 && c != '\n' && c != '\t') || c == 0x7f);
    NEVER(c == 0xc2 && i + 1 < len && (unsigned char)text[i + 1] >= 0x80 &&
          (unsigned char)text[i + 1] < 0xa0);
  }
  free(text);
}

/* Resumes the report of the run. Its lines up to the resumed step must stay, and new lines
 * follow. */
static void resume_report(void) {
  clv_report_options o = {
      .run_dir = run, .last_kept_step = LAST_KEPT_STEP, .is_resumed = true, .steps_per_line = 1};
  clv_reporter *r;
  clv_err err;
  NEVER(clv_reporter_open(&o, &r, &err) != CLV_OK);
  clv_reporter_close(r);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  const uint8_t *at = data, *end = data + size;
  for (int i = 0; i < FILES; i++) {
    const uint8_t *nul = i + 1 < FILES && at < end ? memchr(at, '\0', (size_t)(end - at)) : NULL;
    size_t len = (size_t)((nul ? nul : end) - at);
    put_file(names[i], at, len);
    at += len + (nul != NULL);
  }
  check_history_output(check_run_entry());
  resume_report();
  return 0;
}
