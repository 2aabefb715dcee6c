/* SPDX-License-Identifier: Apache-2.0
 *
 * The journal: copies each line that a run prints to two files of its folder, log.txt as text and
 * log.jsonl as JSON. Also formats the JSON lines (clv_report_json).
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "master/report/report_int.h"

struct clv_journal {
  clv_sink text, json;
  clv_bytes line; /* buffer in which a line is made; reused for each line */
};

static char *make_path(const char *run_dir, const char *name) {
  clv_bytes path = {0};
  clv_bytes_printf(&path, "%s/%s", run_dir, name);
  return path.data; /* NULL: out of memory */
}

clv_code clv_journal_open(const char *run_dir, bool appends, clv_notifier notifier,
                          clv_journal **ret, clv_err *err) {
  clv_sink_start start = appends ? CLV_SINK_APPEND : CLV_SINK_EMPTY;
  CLV_AUTO(clv_journal_closep) clv_journal *j = NULL;
  CLV_TRY(clv_alloc(1, sizeof *j, &j, err));
  j->text.fd = j->json.fd = -1;
  CLV_TRY(clv_sink_open(make_path(run_dir, CLV_JOURNAL_TEXT), start, &j->text, err));
  CLV_TRY(clv_sink_open(make_path(run_dir, CLV_JOURNAL_JSON), start, &j->json, err));
  j->text.notifier = j->json.notifier = notifier;
  *ret = clv_steal(&j);
  return CLV_OK;
}

void clv_journal_close(clv_journal *j) {
  if (!j) return;
  clv_sink_close(&j->text);
  clv_sink_close(&j->json);
  clv_bytes_done(&j->line);
  free(j);
}

void clv_journal_closep(clv_journal **j) { clv_journal_close(*j); }

/* Writes j->line and a line end to s, and empties j->line. If memory ran out, drops the line. */
static void write_line(clv_journal *j, clv_sink *s) {
  clv_bytes_puts(&j->line, "\n");
  if (!j->line.failed) clv_sink_write(s, j->line.data, j->line.len);
  j->line.len = 0;
  j->line.failed = false;
}

void clv_journal_add(clv_journal *j, const char *text, const char *json_line) {
  if (!j) return;
  clv_bytes_puts(&j->line, text);
  write_line(j, &j->text);
  clv_bytes_puts(&j->line, json_line);
  write_line(j, &j->json);
}

/* ---- adding lines ---------------------------------------------------------------------------- */

void clv_report_json(clv_bytes *out, clv_log_level level, const char *text, const char *json) {
  char stamp[32];
  clv_bytes_printf(out, "{\"time\":\"%s\",\"level\":\"%s\",", clv_time_text(clv_wall_ms(), stamp),
                   clv_log_level_name(level));
  if (json) {
    clv_bytes_puts(out, json + 1);
    return;
  }
  clv_bytes_puts(out, "\"event\":\"note\",\"message\":");
  clv_bytes_add_json(out, text);
  clv_bytes_puts(out, "}");
}

void clv_report_notice(clv_journal *j, bool print_json, const char *text, const char *json) {
  CLV_AUTO(clv_bytes_done) clv_bytes line = {0};
  clv_report_json(&line, CLV_LOG_INFO, text, json);
  if (!line.failed) clv_journal_add(j, text, line.data);
  printf("%s\n", print_json && !line.failed ? line.data : text);
  fflush(stdout);
}
