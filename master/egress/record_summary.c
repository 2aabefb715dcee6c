/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads a record and sums up its lines: clv_egress_read and clv_egress_read_text, for the page and
 * the command `egress`. The lines must be consistent: attempts and allowances have numbers without
 * a gap, a SETTLE follows its allowance and has no more bytes than the allowance, an END has the
 * sums of its attempt.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "master/egress/egress_int.h"

enum { MAX_FILE_BYTES = 1 << 30 };

/* An allowance, a grant of bytes, for which no SETTLE line (the bytes sent) was read so far. */
typedef struct open_allowance_sum {
  uint64_t attempt, id, bytes;
  size_t row; /* index in `rows` of the summary */
} open_allowance_sum;

typedef struct record_reader {
  clv_egress_summary summary;
  open_allowance_sum *open_allowances;
  size_t n_open_allowances, cap_open_allowances, cap_attempts, cap_rows, cap_hops;
} record_reader;

void clv_egress_summary_done(clv_egress_summary *b) {
  if (!b) return;
  free(b->attempts);
  free(b->rows);
  free(b->hops);
  *b = (clv_egress_summary){0};
}

static void reader_done(record_reader *r) {
  clv_egress_summary_done(&r->summary);
  free(r->open_allowances);
}

bool egress_is_same_key(const clv_egress_key *a, const clv_egress_key *b) {
  return a->kind == b->kind && a->has_random_values == b->has_random_values &&
         strcmp(a->name, b->name) == 0 && strcmp(a->stage, b->stage) == 0 &&
         strcmp(a->to, b->to) == 0 && strcmp(a->from, b->from) == 0 &&
         strcmp(a->identity, b->identity) == 0 && strcmp(a->dtype, b->dtype) == 0 &&
         clv_shape_equal(&a->shape, &b->shape);
}

/* Grows a list of n elements if it is full, so that one more element fits. */
static clv_code reserve_element(void *list_address, size_t n, size_t *cap, size_t size,
                                clv_err *err) {
  void **list = list_address;
  if (n < *cap) return CLV_OK;
  if (n >= CLV_EGRESS_MAX_ROWS)
    return clv_fail(err, CLV_EXHAUSTED,
                    "the record has more than %d attempts, rows, hops or open allowances",
                    CLV_EGRESS_MAX_ROWS);
  size_t new_cap = CLV_MAX(2 * *cap, (size_t)16);
  void *grown = reallocarray(*list, new_cap, size);
  if (!grown) return clv_fail(err, CLV_EXHAUSTED, "out of memory");
  *list = grown;
  *cap = new_cap;
  return CLV_OK;
}

/* Adds `bytes` to *sum. CLV_DATA_LOSS: the sum exceeds INT64_MAX. */
static clv_code add_bytes_checked(uint64_t *sum, uint64_t bytes, clv_err *err) {
  if (*sum > INT64_MAX - bytes) return clv_fail(err, CLV_DATA_LOSS, "the sum is out of range");
  *sum += bytes;
  return CLV_OK;
}

static bool is_from_master(const clv_egress_row_sum *row) {
  return strcmp(row->key.from, CLV_EGRESS_MASTER) == 0;
}

static clv_egress_attempt *find_attempt(const record_reader *r, const clv_egress_line *l) {
  return &r->summary.attempts[l->attempt - 1];
}

/* ---- adding one line of the record to the sums ----------------------------------------------- */

static clv_code add_attempt(record_reader *r, const clv_egress_line *l, clv_err *err) {
  clv_egress_summary *b = &r->summary;
  if (l->start.version != CLV_EGRESS_RECORD_VERSION)
    return clv_fail(err, CLV_DATA_LOSS,
                    "the record has version %llu, this program reads version %d",
                    (unsigned long long)l->start.version, CLV_EGRESS_RECORD_VERSION);
  if (l->attempt != b->n_attempts + 1)
    return clv_fail(err, CLV_DATA_LOSS, "attempt %llu after %zu", (unsigned long long)l->attempt,
                    b->n_attempts);
  CLV_TRY(reserve_element(&b->attempts, b->n_attempts, &r->cap_attempts, sizeof *b->attempts, err));
  b->attempts[b->n_attempts++] = (clv_egress_attempt){.start_line = *l};
  return CLV_OK;
}

static clv_code find_row(record_reader *r, const clv_egress_line *l, size_t *ret, clv_err *err) {
  clv_egress_summary *b = &r->summary;
  size_t attempt = l->attempt - 1;
  for (*ret = 0; *ret < b->n_rows; ++*ret)
    if (b->rows[*ret].attempt == attempt &&
        egress_is_same_key(&b->rows[*ret].key, &l->allowance.key))
      return CLV_OK;
  CLV_TRY(reserve_element(&b->rows, b->n_rows, &r->cap_rows, sizeof *b->rows, err));
  b->rows[b->n_rows] = (clv_egress_row_sum){.attempt = attempt, .key = l->allowance.key};
  memcpy(b->rows[b->n_rows++].first_time, l->at, sizeof l->at);
  return CLV_OK;
}

static clv_code add_allowance(record_reader *r, const clv_egress_line *l, clv_err *err) {
  clv_egress_attempt *a = find_attempt(r, l);
  size_t at;
  if (l->allowance.id != a->last_id + 1)
    return clv_fail(err, CLV_DATA_LOSS, "allowance %llu after %llu",
                    (unsigned long long)l->allowance.id, (unsigned long long)a->last_id);
  CLV_TRY(find_row(r, l, &at, err));
  CLV_TRY(reserve_element(&r->open_allowances, r->n_open_allowances, &r->cap_open_allowances,
                          sizeof *r->open_allowances, err));
  clv_egress_row_sum *row = &r->summary.rows[at];
  CLV_TRY(add_bytes_checked(&row->unsettled_bytes, l->allowance.bytes, err));
  if (is_from_master(row)) {
    CLV_TRY(add_bytes_checked(&r->summary.total_bytes, l->allowance.bytes, err));
    /* cannot overflow, because the sum is at most total_bytes, which add_bytes_checked has
     * checked */
    a->unsettled_bytes += l->allowance.bytes;
    a->bytes += l->allowance.bytes;
  }
  memcpy(row->last_time, l->at, sizeof l->at);
  r->open_allowances[r->n_open_allowances++] =
      (open_allowance_sum){l->attempt, l->allowance.id, l->allowance.bytes, at};
  a->last_id = l->allowance.id;
  a->n_open_allowances++;
  return CLV_OK;
}

/* Finds the open allowance that a SETTLE names and removes it from r->open_allowances. Searches
 * from the end, because a SETTLE usually names a recent allowance. */
static clv_code remove_open_allowance(record_reader *r, const clv_egress_line *l,
                                      open_allowance_sum *ret, clv_err *err) {
  size_t i = r->n_open_allowances;
  while (i && (r->open_allowances[i - 1].id != l->settlement.id ||
               r->open_allowances[i - 1].attempt != l->attempt))
    i--;
  if (!i || l->settlement.bytes > r->open_allowances[i - 1].bytes)
    return clv_fail(
        err, CLV_DATA_LOSS,
        "allowance %llu is settled, but was not allowed, was settled before or is smaller",
        (unsigned long long)l->settlement.id);
  *ret = r->open_allowances[i - 1];
  r->open_allowances[i - 1] = r->open_allowances[--r->n_open_allowances];
  return CLV_OK;
}

static clv_code settle_allowance(record_reader *r, const clv_egress_line *l, clv_err *err) {
  clv_egress_attempt *a = find_attempt(r, l);
  open_allowance_sum o = {0};
  CLV_TRY(remove_open_allowance(r, l, &o, err));
  clv_egress_row_sum *row = &r->summary.rows[o.row];
  CLV_TRY(add_bytes_checked(&row->n_tensors, l->settlement.n_tensors, err));
  CLV_TRY(add_bytes_checked(&row->settled_bytes, l->settlement.bytes, err));
  row->unsettled_bytes -= o.bytes;
  memcpy(row->last_time, l->at, sizeof l->at);
  a->n_open_allowances--;
  if (!is_from_master(row)) return CLV_OK;
  a->unsettled_bytes -= o.bytes;
  a->bytes -= o.bytes - l->settlement.bytes;
  r->summary.total_bytes -= o.bytes - l->settlement.bytes;
  return add_bytes_checked(&a->n_tensors, l->settlement.n_tensors, err);
}

static clv_code add_hop(record_reader *r, const clv_egress_line *l, clv_err *err) {
  clv_egress_summary *b = &r->summary;
  CLV_TRY(reserve_element(&b->hops, b->n_hops, &r->cap_hops, sizeof *b->hops, err));
  b->hops[b->n_hops++] = (clv_egress_hop_sum){.attempt = l->attempt - 1, .line = *l};
  return CLV_OK;
}

static clv_code set_look(record_reader *r, const clv_egress_line *l, clv_err *err) {
  clv_egress_attempt *a = find_attempt(r, l);
  if (a->has_look)
    return clv_fail(err, CLV_DATA_LOSS, "attempt %llu has a second look",
                    (unsigned long long)l->attempt);
  a->has_look = true;
  a->look = *l;
  return CLV_OK;
}

static clv_code set_end(record_reader *r, const clv_egress_line *l, clv_err *err) {
  clv_egress_attempt *a = find_attempt(r, l);
  if (a->n_open_allowances || l->attempt_end.bytes != a->bytes ||
      l->attempt_end.n_tensors != a->n_tensors)
    return clv_fail(err, CLV_DATA_LOSS,
                    "the sums of the end differ from those of the lines before");
  a->has_ended = true;
  a->end = *l;
  return CLV_OK;
}

static clv_code handle_line(void *user, const char *text, size_t len, clv_err *err) {
  static clv_code (*const event_handlers[])(record_reader *, const clv_egress_line *, clv_err *) = {
      [CLV_EGRESS_ATTEMPT] = add_attempt,     [CLV_EGRESS_ALLOW] = add_allowance,
      [CLV_EGRESS_SETTLE] = settle_allowance, [CLV_EGRESS_HOP] = add_hop,
      [CLV_EGRESS_LOOK] = set_look,           [CLV_EGRESS_END] = set_end,
  };
  record_reader *r = user;
  clv_egress_line l;
  CLV_TRY(clv_egress_line_parse(text, len, &l, err));
  bool has_begun = l.attempt && l.attempt <= r->summary.n_attempts;
  if (l.event != CLV_EGRESS_ATTEMPT && (!has_begun || find_attempt(r, &l)->has_ended))
    return clv_fail(err, CLV_DATA_LOSS, "attempt %llu has not begun or has ended",
                    (unsigned long long)l.attempt);
  return event_handlers[l.event](r, &l, err);
}

/* ---- reading all lines of a record ----------------------------------------------------------- */

/* Returns true for a truncated line: it has no newline, or it has a NUL, because after a crash of
 * the machine a file may have its new length but not yet its bytes. */
static bool is_truncated_line(const char *line, size_t bytes_left, size_t *ret_len) {
  const char *end = memchr(line, '\n', bytes_left);
  *ret_len = end ? (size_t)(end - line) : bytes_left;
  return !end || memchr(line, '\0', *ret_len);
}

clv_code egress_for_each_line(const char *text, size_t len, const char *label, egress_line_fn *fn,
                              void *user, size_t *ret_complete_bytes, clv_err *err) {
  size_t at = 0, n;
  for (uint64_t line_number = 1; at < len && !is_truncated_line(text + at, len - at, &n);
       line_number++, at += n + 1)
    if (fn(user, text + at, n, err) != CLV_OK)
      return clv_err_prefix(err, "%s:%llu", label, (unsigned long long)line_number);
  *ret_complete_bytes = at;
  return CLV_OK;
}

clv_code clv_egress_read_text(const void *data, size_t len, const char *label,
                              clv_egress_summary *ret, clv_err *err) {
  CLV_AUTO(reader_done) record_reader r = {0};
  CLV_TRY(egress_for_each_line(data, len, label, handle_line, &r, &r.summary.complete_bytes, err));
  r.summary.truncated_bytes = len - r.summary.complete_bytes;
  *ret = r.summary;
  r.summary = (clv_egress_summary){0};
  return CLV_OK;
}

static void close_fd(int *fd) {
  if (*fd >= 0) close(*fd);
}

clv_code egress_read_file(int fd, const char *path, clv_bytes *ret, clv_err *err) {
  struct stat st;
  char buf[65536];
  if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode) || st.st_size > MAX_FILE_BYTES)
    return clv_fail(err, CLV_INVALID, "%s: not a regular file of %d bytes at most", path,
                    MAX_FILE_BYTES);
  while (ret->len < (size_t)st.st_size) {
    ssize_t n = pread(fd, buf, CLV_MIN(sizeof buf, (size_t)st.st_size - ret->len), (off_t)ret->len);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return clv_fail(err, CLV_DATA_LOSS, "%s: %s", path, strerror(errno));
    if (n == 0) break;
    clv_bytes_add(ret, buf, (size_t)n);
    if (ret->failed) return clv_fail(err, CLV_EXHAUSTED, "out of memory");
  }
  return CLV_OK;
}

clv_code clv_egress_read(const char *path, clv_egress_summary *ret, clv_err *err) {
  CLV_AUTO(close_fd) int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  CLV_AUTO(clv_bytes_done) clv_bytes text = {0};
  if (fd < 0)
    return clv_fail(err, errno == ENOENT ? CLV_NOT_FOUND : CLV_INVALID, "%s: %s", path,
                    strerror(errno));
  CLV_TRY(egress_read_file(fd, path, &text, err));
  clv_code code = clv_egress_read_text(text.data ? text.data : "", text.len, path, ret, err);
  if (code != CLV_DATA_LOSS || !err) return code;
  return clv_fail(err, code,
                  "%s: move the file away and keep it; the next attempt begins a new one",
                  err->text);
}
