/* SPDX-License-Identifier: Apache-2.0
 *
 * Rate limit of log lines that peers cause. A peer that can cause one line can cause a million. So
 * each source (a peer and a kind of event) may write a number of lines a minute. Further lines are
 * counted, and the count is logged when the minute is over. A source that had lines dropped gets
 * DEFAULT_BURST lines in the next minute, regardless of its burst.
 *
 * The table is bounded. When it is full, the source whose minute began first is dropped and its
 * count is logged, so no line is dropped unreported.
 */
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "common/base/base.h"

enum { MINUTE_MS = 60000, DEFAULT_BURST = 10 };

/* Returns an FNV-1a hash of a source. It distinguishes sources whose texts are longer than the copy
 * in an entry. */
static uint64_t hash_of(const clv_log_source *s) {
  uint64_t h = 0xcbf29ce484222325u;
  for (const char *p = s->peer; *p; p++) h = (h ^ (uint8_t)*p) * 0x100000001b3u;
  h = (h ^ 0xff) * 0x100000001b3u;
  for (const char *p = s->event_kind; *p; p++) h = (h ^ (uint8_t)*p) * 0x100000001b3u;
  return h;
}

static bool is_entry_of_source(const clv_log_entry *e, uint64_t hash, const clv_log_source *s) {
  return e->is_used && e->hash == hash && strncmp(e->peer, s->peer, sizeof e->peer - 1) == 0 &&
         strcmp(e->event_kind, s->event_kind) == 0;
}

static void end_minute(const clv_log_limiter *l, clv_log_entry *e) {
  if (e->n_dropped) l->report_dropped(l->user, e);
  e->had_drops = e->n_dropped > 0;
  e->n_dropped = 0;
  e->n_written = 0;
}

/* Returns a free entry, or the one whose minute began first, after reporting it. */
static clv_log_entry *take_entry(clv_log_limiter *l) {
  clv_log_entry *oldest = &l->entries[0];
  for (size_t i = 0; i < CLV_COUNT(l->entries); i++) {
    if (!l->entries[i].is_used) return &l->entries[i];
    if (l->entries[i].began_ms < oldest->began_ms) oldest = &l->entries[i];
  }
  end_minute(l, oldest);
  return oldest;
}

static clv_log_entry *find_entry(clv_log_limiter *l, const clv_log_source *s, uint64_t now_ms) {
  uint64_t hash = hash_of(s);
  for (size_t i = 0; i < CLV_COUNT(l->entries); i++)
    if (is_entry_of_source(&l->entries[i], hash, s)) return &l->entries[i];
  clv_log_entry *e = take_entry(l);
  *e = (clv_log_entry){
      .is_used = true, .hash = hash, .began_ms = now_ms, .event_kind = s->event_kind};
  snprintf(e->peer, sizeof e->peer, "%s", s->peer);
  return e;
}

static void begin_minute(const clv_log_limiter *l, clv_log_entry *e, uint64_t now_ms) {
  end_minute(l, e);
  e->began_ms = now_ms;
}

static bool is_over_limit(const clv_log_entry *e, unsigned burst) {
  return e->n_written >= (e->had_drops || !burst ? DEFAULT_BURST : burst);
}

bool clv_log_limiter_pass(clv_log_limiter *l, clv_log_level level, const char *event,
                          const clv_log_source *s, uint64_t now_ms) {
  clv_log_entry *e = find_entry(l, s, now_ms);
  if (now_ms - e->began_ms >= MINUTE_MS) begin_minute(l, e, now_ms);
  e->level = level;
  e->event = event;
  if (is_over_limit(e, s->burst)) {
    e->n_dropped++;
    return false;
  }
  e->n_written++;
  return true;
}

void clv_log_limiter_tick(clv_log_limiter *l, uint64_t now_ms) {
  for (size_t i = 0; i < CLV_COUNT(l->entries); i++) {
    clv_log_entry *e = &l->entries[i];
    if (!e->is_used || now_ms - e->began_ms < MINUTE_MS) continue;
    bool is_quiet = e->n_written == 0 && !e->n_dropped;
    begin_minute(l, e, now_ms);
    if (is_quiet) e->is_used = false;
  }
}

/* ---- limiter of the process ------------------------------------------------------------------ */

/* Writes a number with commas, such as "1,288"; returns the text. */
static char *format_count(uint64_t n, char buf[32]) {
  char digits[24];
  int len = snprintf(digits, sizeof digits, "%llu", (unsigned long long)n), k = 0;
  for (int i = 0; i < len; i++) {
    if (i && (len - i) % 3 == 0) buf[k++] = ',';
    buf[k++] = digits[i];
  }
  buf[k] = '\0';
  return buf;
}

static void log_dropped(void *user, const clv_log_entry *e) {
  char count[32];
  (void)user;
  clv_log_event(e->level, e->event, "... and %s more like it in the last minute: %s of %s",
                format_count(e->n_dropped, count), e->event_kind, e->peer);
}

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static clv_log_limiter limiter = {.report_dropped = log_dropped};

void clv_log_limited(clv_log_level level, const char *event, const clv_log_source *s,
                     const char *fmt, ...) {
  char text[1024];
  va_list ap;
  va_start(ap, fmt);
  vsnprintf(text, sizeof text, fmt, ap);
  va_end(ap);
  pthread_mutex_lock(&lock);
  bool is_within_limit = clv_log_limiter_pass(&limiter, level, event, s, clv_now_ns() / 1000000u);
  pthread_mutex_unlock(&lock);
  if (is_within_limit && strcmp(event, "log") == 0)
    clv_log(level, "%s", text);
  else if (is_within_limit)
    clv_log_event(level, event, "%s", text);
}

void clv_log_limited_tick(void) {
  pthread_mutex_lock(&lock);
  clv_log_limiter_tick(&limiter, clv_now_ns() / 1000000u);
  pthread_mutex_unlock(&lock);
}
