/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests lines on standard error in both forms, text and JSON, captured in a file.
 */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/base/base.h"

static int saved_fd = -1;

/* Redirects standard error to a file. is_journal: sets $JOURNAL_STREAM to that file. */
static void begin_capture(clv_log_level level, bool is_json, bool is_journal) {
  char path[] = "/tmp/cleave-log-XXXXXX", stream[64];
  struct stat st;
  int fd = mkstemp(path);
  assert_true(fd >= 0);
  unlink(path);
  saved_fd = dup(STDERR_FILENO);
  dup2(fd, STDERR_FILENO);
  close(fd);
  fstat(STDERR_FILENO, &st);
  snprintf(stream, sizeof stream, "%llu:%llu", (unsigned long long)st.st_dev,
           (unsigned long long)st.st_ino);
  if (is_journal) setenv("JOURNAL_STREAM", stream, 1);
  clv_log_set(level, is_json);
}

static char *end_capture(void) {
  static char text[8192];
  fflush(stderr);
  ssize_t n = pread(STDERR_FILENO, text, sizeof text - 1, 0);
  dup2(saved_fd, STDERR_FILENO);
  close(saved_fd);
  unsetenv("JOURNAL_STREAM");
  clv_log_set(CLV_LOG_INFO, false);
  text[n < 0 ? 0 : n] = '\0';
  return text;
}

/* Returns the line without its time. */
static const char *skip_time(const char *line) {
  assert_true(strlen(line) > 25 && line[10] == 'T' && line[23] == 'Z');
  return line + 25;
}

static void text_lines_have_level_and_event(void **state) {
  (void)state;
  begin_capture(CLV_LOG_INFO, false, false);
  clv_log(CLV_LOG_INFO, "%d sessions", 3);
  assert_string_equal(skip_time(end_capture()), "info  3 sessions\n");
  begin_capture(CLV_LOG_INFO, false, false);
  clv_log_event(CLV_LOG_WARN, "ready", "port=%d", 7);
  clv_log_event(CLV_LOG_WARN, "stopped", "%s", "");
  char *text = end_capture();
  assert_memory_equal(skip_time(text), "warn  ready port=7\n", 19);
  assert_string_equal(skip_time(strchr(text, '\n') + 1), "warn  stopped\n");
  begin_capture(CLV_LOG_ERROR, false, false);
  clv_log(CLV_LOG_WARN, "not wanted");
  clv_log_event(CLV_LOG_DEBUG, "x", "not wanted");
  clv_notice(CLV_LOG_INFO, "note", "said at any level");
  assert_string_equal(end_capture(), "cleave: said at any level\n");
}

static void json_lines_escape_their_text(void **state) {
  (void)state;
  begin_capture(CLV_LOG_DEBUG, true, false);
  clv_notice(CLV_LOG_ERROR, "failed", "a \"quote\"\nand \x01 and \xff");
  const char *text = end_capture();
  assert_memory_equal(text, "{\"time\":\"", 9);
  assert_string_equal(text + 9 + 24,
                      "\",\"level\":\"error\",\"event\":\"failed\",\"message\":\"a "
                      "\\\"quote\\\"\\u000aand \\u0001 and \\ufffd\"}\n");
  begin_capture(CLV_LOG_DEBUG, true, false);
  clv_log(CLV_LOG_DEBUG, "x");
  assert_non_null(
      strstr(end_capture(), "\"level\":\"debug\",\"event\":\"log\",\"message\":\"x\"}\n"));
}

static void journal_lines_start_with_a_priority(void **state) {
  (void)state;
  static const char *const starts[] = {"<3>", "<4>", "<6>", "<7>"};
  for (int level = CLV_LOG_ERROR; level <= CLV_LOG_DEBUG; level++) {
    begin_capture(CLV_LOG_DEBUG, level % 2, true);
    clv_log((clv_log_level)level, "x");
    assert_memory_equal(end_capture(), starts[level], 3);
  }
  /* $JOURNAL_STREAM names the stream of another process, so standard error is no journal */
  setenv("JOURNAL_STREAM", "1:2", 1);
  begin_capture(CLV_LOG_DEBUG, true, false);
  clv_log(CLV_LOG_ERROR, "x");
  assert_memory_equal(end_capture(), "{", 1);
}

static void long_messages_are_truncated(void **state) {
  (void)state;
  char text[6000];
  memset(text, 'a', sizeof text);
  text[sizeof text - 1] = '\0';
  text[2046] = '\xc3'; /* the text is cut inside this character */
  text[2047] = '\xa4';
  begin_capture(CLV_LOG_DEBUG, true, false);
  clv_log(CLV_LOG_ERROR, "%s", text);
  const char *line = end_capture();
  assert_non_null(strstr(line, "aaa\\ufffd\"}\n"));
  assert_null(strchr(line, '\xc3'));
}

static void json_replaces_invalid_utf8(void **state) {
  (void)state;
  static const struct {
    const char *text, *json;
  } cases[] = {{"\xc3\xa4\xe2\x82\xac\xf0\x9f\x8c\x8d", "\"\xc3\xa4\xe2\x82\xac\xf0\x9f\x8c\x8d\""},
               /* a UTF-8 encoding that is longer than necessary is invalid */
               {"\xc0\xaf", "\"\\ufffd\\ufffd\""},
               /* the encoding of a surrogate is invalid */
               {"\xed\xa0\x80", "\"\\ufffd\\ufffd\\ufffd\""},
               /* a code point above U+10FFFF is invalid */
               {"\xf4\x90\x80\x80", "\"\\ufffd\\ufffd\\ufffd\\ufffd\""},
               /* the last character is cut */
               {"a\xe2\x82", "\"a\\ufffd\\ufffd\""},
               {"\x80z", "\"\\ufffdz\""}};
  for (size_t i = 0; i < CLV_COUNT(cases); i++) {
    CLV_AUTO(clv_bytes_done) clv_bytes out = {0};
    clv_bytes_add_json(&out, cases[i].text);
    assert_string_equal(out.data, cases[i].json);
  }
}

static void roff_markup_is_escaped(void **state) {
  (void)state;
  CLV_AUTO(clv_bytes_done) clv_bytes out = {0};
  clv_bytes_add_roff(&out, ".TH a-b\n'x \\n `y` ^~ .z");
  assert_string_equal(out.data, "\\&.TH a\\-b\n\\&\\(aqx \\en \\(gay\\(ga \\(ha\\(ti .z");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(text_lines_have_level_and_event),
      cmocka_unit_test(json_lines_escape_their_text),
      cmocka_unit_test(journal_lines_start_with_a_priority),
      cmocka_unit_test(long_messages_are_truncated),
      cmocka_unit_test(json_replaces_invalid_utf8),
      cmocka_unit_test(roff_markup_is_escaped),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
