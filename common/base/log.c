/* SPDX-License-Identifier: Apache-2.0
 *
 * Log lines and notices on standard error.
 */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "common/base/base.h"

enum { MAX_TEXT_BYTES = 2048 };

static _Atomic int log_level = CLV_LOG_INFO;
static _Atomic bool log_json, log_journal;
static _Atomic(const char *) log_name = "cleave";

static const struct {
  const char *name;
  int priority; /* priority of the level in syslog */
} levels[] = {[CLV_LOG_ERROR] = {"error", 3},
              [CLV_LOG_WARN] = {"warn", 4},
              [CLV_LOG_INFO] = {"info", 6},
              [CLV_LOG_DEBUG] = {"debug", 7}};

const char *clv_log_level_name(clv_log_level level) { return levels[level].name; }

/* True if standard error is the journal. Compares the stream, because child processes inherit
 * $JOURNAL_STREAM and may have another standard error. */
static bool is_journal(void) {
  unsigned long long device, inode;
  struct stat st;
  const char *stream = getenv("JOURNAL_STREAM");
  return stream && sscanf(stream, "%llu:%llu", &device, &inode) == 2 &&
         fstat(STDERR_FILENO, &st) == 0 && st.st_dev == (dev_t)device && st.st_ino == (ino_t)inode;
}

void clv_log_set(clv_log_level level, bool as_json) {
  atomic_store(&log_level, (int)level);
  atomic_store(&log_json, as_json);
  atomic_store(&log_journal, is_journal());
}

void clv_log_set_program(const char *name) { atomic_store(&log_name, name); }

char *clv_time_text(uint64_t wall_ms, char text[32]) {
  time_t seconds = (time_t)(wall_ms / 1000);
  struct tm tm;
  gmtime_r(&seconds, &tm);
  size_t n = strftime(text, 32, "%Y-%m-%dT%H:%M:%S", &tm);
  snprintf(text + n, 32 - n, ".%03dZ", (int)(wall_ms % 1000));
  return text;
}

static void add_json(clv_bytes *line, clv_log_level level, const char *event, const char *text) {
  char stamp[32];
  clv_bytes_printf(line, "{\"time\":\"%s\",\"level\":\"%s\",\"event\":",
                   clv_time_text(clv_wall_ms(), stamp), levels[level].name);
  clv_bytes_add_json(line, event);
  clv_bytes_puts(line, ",\"message\":");
  clv_bytes_add_json(line, text);
  clv_bytes_puts(line, "}\n");
}

/* Replaces control characters, because file names and arguments may contain any. */
static void add_text(clv_bytes *line, const char *start, const char *text) {
  clv_bytes_puts(line, start);
  clv_text_sanitize_utf8(text, line);
  clv_bytes_puts(line, "\n");
}

/* Writes a line with one call, so that lines of threads do not mix. `start`: beginning of the text
 * form. */
static void write_line(clv_log_level level, const char *event, const char *start,
                       const char *text) {
  CLV_AUTO(clv_bytes_done) clv_bytes line = {0};
  if (atomic_load_explicit(&log_journal, memory_order_relaxed))
    clv_bytes_printf(&line, "<%d>", levels[level].priority);
  if (atomic_load_explicit(&log_json, memory_order_relaxed))
    add_json(&line, level, event, text);
  else
    add_text(&line, start, text);
  if (!line.failed) fwrite(line.data, 1, line.len, stderr);
}

static void log_line(clv_log_level level, const char *event, const char *line_start,
                     const char *fmt, va_list ap) {
  char text[MAX_TEXT_BYTES], stamp[32], start[128];
  vsnprintf(text, sizeof text, fmt, ap);
  snprintf(start, sizeof start, "%s %-5s %s%s", clv_time_text(clv_wall_ms(), stamp),
           levels[level].name, line_start, *line_start && *text ? " " : "");
  write_line(level, event, start, text);
}

static bool is_level_enabled(clv_log_level level) {
  return (int)level <= atomic_load_explicit(&log_level, memory_order_relaxed);
}

void clv_log(clv_log_level level, const char *fmt, ...) {
  if (!is_level_enabled(level)) return;
  va_list ap;
  va_start(ap, fmt);
  log_line(level, "log", "", fmt, ap);
  va_end(ap);
}

void clv_log_event(clv_log_level level, const char *event, const char *fmt, ...) {
  if (!is_level_enabled(level)) return;
  va_list ap;
  va_start(ap, fmt);
  log_line(level, event, event, fmt, ap);
  va_end(ap);
}

void clv_notice(clv_log_level level, const char *event, const char *fmt, ...) {
  char text[MAX_TEXT_BYTES], start[64];
  va_list ap;
  va_start(ap, fmt);
  vsnprintf(text, sizeof text, fmt, ap);
  va_end(ap);
  snprintf(start, sizeof start, "%s: ", atomic_load(&log_name));
  write_line(level, event, start, text);
}

void clv_notify(clv_notifier to, const char *fmt, ...) {
  char text[MAX_TEXT_BYTES];
  va_list ap;
  if (!to.notify) return;
  va_start(ap, fmt);
  vsnprintf(text, sizeof text, fmt, ap);
  va_end(ap);
  to.notify(to.user, text);
}
