/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads a text file record by record, such as a table or lines of pages. So reading needs only the
 * memory of the longest record, however large a gzip file becomes when it is inflated.
 */
#include <stdlib.h>
#include <string.h>

#include "master/data/record_lines_int.h"
#include "master/data/reader_int.h"

enum { PIECE_BYTES = 65536 };

/* State of the CSV parser before a byte, by the same rules as in clv_csv_read_field. */
typedef enum csv_state { AT_FIELD_BEGIN, IN_UNQUOTED, IN_QUOTES, AFTER_QUOTE } csv_state;

struct clv_record_lines {
  clv_byte_source *source;
  char separator;    /* between the fields of CSV; 0: lines of JSON */
  size_t max_bytes;  /* most bytes to read, > 0 */
  size_t bytes_read; /* bytes of records returned so far */
  size_t n_lines;    /* lines read so far */
  csv_state state;
  /* at: bytes of `piece` (the part of the file that was read last) that were returned already;
   * n_piece_bytes: bytes of `piece` that are filled */
  size_t at, n_piece_bytes;
  clv_bytes record;
  char piece[PIECE_BYTES];
};

void clv_record_lines_freep(clv_record_lines **l) {
  if (!*l) return;
  clv_byte_source_freep(&(*l)->source);
  clv_bytes_done(&(*l)->record);
  free(*l);
  *l = NULL;
}

static csv_state next_state(csv_state state, char c, char separator) {
  if (state == IN_QUOTES) return c == '"' ? AFTER_QUOTE : IN_QUOTES;
  if (c == separator) return AT_FIELD_BEGIN;
  if (state == AT_FIELD_BEGIN && c == '"') return IN_QUOTES;
  return state == AFTER_QUOTE && c == '"' ? IN_QUOTES : IN_UNQUOTED;
}

/* ---- encodings of text ----------------------------------------------------------------------- */

size_t clv_bom_length(const char *text, size_t len) {
  return len >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0 ? 3 : 0;
}

static clv_code check_encoding(const clv_record_lines *l, clv_err *err) {
  const char *name = clv_text_utf16_or_32(l->piece, l->n_piece_bytes);
  if (!name) return CLV_OK;
  return clv_fail(err, CLV_INVALID,
                  "%.200s: its text is %s, and UTF-8 is expected: convert it with iconv -f %s -t "
                  "UTF-8",
                  clv_byte_source_label(l->source), name, name);
}

/* True if the first line ends with \r alone, as in files of old Macintoshes. In CSV a quoted field
 * may contain \r. In JSON a \r between tokens is a space, so it ends a line only if another record
 * follows. */
static bool ends_in_cr(const clv_record_lines *l) {
  csv_state state = AT_FIELD_BEGIN;
  for (size_t i = 0; i + 1 < l->n_piece_bytes; i++) {
    char c = l->piece[i], next_char = l->piece[i + 1];
    bool is_in_quotes = l->separator && state == IN_QUOTES;
    if (c == '\n' && !is_in_quotes) return false;
    if (c == '\r' && !is_in_quotes &&
        (l->separator ? next_char != '\n' && next_char != '\r' : next_char == '{'))
      return true;
    state = next_state(state, c, l->separator);
  }
  return false;
}

static clv_code check_line_ends(const clv_record_lines *l, clv_err *err) {
  if (!ends_in_cr(l)) return CLV_OK;
  return clv_fail(err, CLV_INVALID,
                  "%.200s:1: its lines end with CR alone, and LF or CR LF is expected: convert it "
                  "with tr '\\r' '\\n'",
                  clv_byte_source_label(l->source));
}

/* ---- pieces of the file ---------------------------------------------------------------------- */

static clv_code fill_piece(clv_record_lines *l, clv_err *err) {
  l->at = 0;
  return clv_byte_source_read(l->source, l->piece, PIECE_BYTES, &l->n_piece_bytes, err);
}

static clv_code fail_too_large(const clv_record_lines *l, clv_err *err) {
  return clv_fail(err, CLV_EXHAUSTED, "%.200s: has more than %zu bytes",
                  clv_byte_source_label(l->source), l->max_bytes);
}

static clv_code open_source(clv_byte_source **s, char separator, size_t max_bytes,
                            clv_record_lines **ret, clv_err *err) {
  CLV_AUTO(clv_record_lines_freep) clv_record_lines *l = NULL;
  CLV_TRY(clv_alloc(1, sizeof *l, &l, err));
  l->source = clv_steal(s);
  l->separator = separator;
  l->max_bytes = max_bytes;
  CLV_TRY(fill_piece(l, err));
  CLV_TRY(check_encoding(l, err));
  CLV_TRY(check_line_ends(l, err));
  l->at = clv_bom_length(l->piece, l->n_piece_bytes);
  *ret = clv_steal(&l);
  return CLV_OK;
}

clv_code clv_record_lines_open(const char *path, char separator, size_t max_bytes,
                               clv_record_lines **ret, clv_err *err) {
  CLV_AUTO(clv_byte_source_freep) clv_byte_source *s = NULL;
  CLV_TRY(clv_byte_source_open(path, &s, err));
  return open_source(&s, separator, max_bytes, ret, err);
}

clv_code clv_record_lines_open_memory(const char *text, size_t len, const char *label,
                                      char separator, clv_record_lines **ret, clv_err *err) {
  CLV_AUTO(clv_byte_source_freep) clv_byte_source *s = NULL;
  CLV_TRY(clv_byte_source_open_memory(text, len, label, &s, err));
  return open_source(&s, separator, SIZE_MAX, ret, err);
}

/* As count_csv_bytes, but faster, because it does not parse quotes. Returns 0 if the rest of the
 * line in this piece has a quote, or is within quotes. */
static size_t count_unquoted_bytes(clv_record_lines *l, bool *ret_has_ended) {
  const char *from = l->piece + l->at;
  size_t n = l->n_piece_bytes - l->at;
  const char *line_end = memchr(from, '\n', n);
  if (line_end) n = (size_t)(line_end - from) + 1;
  if (l->state == IN_QUOTES || memchr(from, '"', n)) return 0;
  *ret_has_ended = line_end != NULL;
  l->n_lines += line_end != NULL;
  l->state = line_end || from[n - 1] == l->separator ? AT_FIELD_BEGIN : IN_UNQUOTED;
  return n;
}

/* Returns the number of bytes from the current byte of `piece` to the end of the CSV record (then
 * *ret_has_ended is true), or to the end of the piece. */
static size_t count_csv_bytes(clv_record_lines *l, bool *ret_has_ended) {
  size_t i = l->at, n_unquoted = count_unquoted_bytes(l, ret_has_ended);
  if (n_unquoted) return n_unquoted;
  while (i < l->n_piece_bytes && !*ret_has_ended) {
    char c = l->piece[i++];
    *ret_has_ended = c == '\n' && l->state != IN_QUOTES;
    l->n_lines += c == '\n';
    l->state = *ret_has_ended ? AT_FIELD_BEGIN : next_state(l->state, c, l->separator);
  }
  return i - l->at;
}

static size_t count_line_bytes(clv_record_lines *l, bool *ret_has_ended) {
  const char *from = l->piece + l->at, *line_end = memchr(from, '\n', l->n_piece_bytes - l->at);
  *ret_has_ended = line_end != NULL;
  l->n_lines += line_end != NULL;
  return line_end ? (size_t)(line_end - from) + 1 : l->n_piece_bytes - l->at;
}

/* ---- skipping empty lines -------------------------------------------------------------------- */

/* True if byte i of `piece` may be in an empty line. In CSV only \r before \n may, because spaces
 * are a field; in JSON lines spaces may. */
static bool is_blank_byte(const clv_record_lines *l, size_t i) {
  char c = l->piece[i];
  if (l->separator) return c == '\r' && i + 1 < l->n_piece_bytes && l->piece[i + 1] == '\n';
  return c == '\r' || c == ' ' || c == '\t';
}

/* Returns the number of bytes from the current byte of `piece` to the end of the last empty line
 * before a record. Counts these lines in l->n_lines. */
static size_t count_empty_line_bytes(clv_record_lines *l) {
  size_t end = l->at;
  for (size_t i = end; i < l->n_piece_bytes; i++) {
    if (l->piece[i] == '\n') {
      end = i + 1;
      l->n_lines++;
    } else if (!is_blank_byte(l, i)) {
      break;
    }
  }
  return end - l->at;
}

/* Skips all empty lines at once, because returning each of them as a record would be thirty times
 * as slow. */
static clv_code skip_empty_lines(clv_record_lines *l, clv_err *err) {
  do {
    if (l->at == l->n_piece_bytes) CLV_TRY(fill_piece(l, err));
    size_t n = count_empty_line_bytes(l);
    if (n > l->max_bytes - l->bytes_read) return fail_too_large(l, err);
    l->at += n;
    l->bytes_read += n;
  } while (l->n_piece_bytes && l->at == l->n_piece_bytes);
  return CLV_OK;
}

/* ---- returning records ----------------------------------------------------------------------- */

static clv_code append_bytes(clv_record_lines *l, size_t n, size_t line, clv_err *err) {
  const char *label = clv_byte_source_label(l->source);
  if (l->record.len + n > CLV_TEXT_RECORD_MAX)
    return clv_fail(
        err, CLV_EXHAUSTED, "%.200s:%zu: this record has more than %d bytes, the limit of one%s",
        label, line, CLV_TEXT_RECORD_MAX,
        l->state == IN_QUOTES ? " (do its quotes have no end?)" : ": split it into several");
  if (n > l->max_bytes - l->bytes_read) return fail_too_large(l, err);
  clv_bytes_add(&l->record, l->piece + l->at, n);
  l->at += n;
  l->bytes_read += n;
  return l->record.failed ? clv_fail(err, CLV_EXHAUSTED, "%.200s: no memory for a record", label)
                          : CLV_OK;
}

clv_code clv_record_lines_next(clv_record_lines *l, clv_text_record *ret, bool *ret_has_more,
                               clv_err *err) {
  bool end = false;
  CLV_TRY(skip_empty_lines(l, err));
  size_t line = l->n_lines;
  l->record.len = 0;
  clv_bytes_add(&l->record, "", 0);
  l->state = AT_FIELD_BEGIN;
  while (!end) {
    if (l->at == l->n_piece_bytes) CLV_TRY(fill_piece(l, err));
    if (!l->n_piece_bytes) break;
    CLV_TRY(append_bytes(l, (l->separator ? count_csv_bytes : count_line_bytes)(l, &end), line + 1,
                         err));
  }
  *ret_has_more = l->record.len > 0;
  *ret = (clv_text_record){l->record.data, l->record.len, line};
  return CLV_OK;
}
