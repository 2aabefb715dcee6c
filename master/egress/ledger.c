/* SPDX-License-Identifier: Apache-2.0
 *
 * Parses and formats the lines of a ledger. Call clv_ledger_extend with the bytes of a file, and
 * again with those that were appended to it, then clv_ledger_find for each key or tensor that must
 * be secret. clv_ledger_format_new_lines formats the lines that the file lacks, and
 * clv_ledger_compact formats the lines that a full file must keep; ledger_file.c writes both to the
 * file. A line is "KIND MARK DATE IDENTITY". MARK is the
 * digest of an item: the first half of an HMAC-SHA256, in hex, under the salt in the file's first
 * line, so the same key has different digests on two hosts. A line "rows MARKS DATE IDENTITY" has
 * the digests of several rows, each the first quarter of an HMAC-SHA256, with nothing between them.
 */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "master/egress/egress_int.h"

#define HEAD_LINE_PREFIX "cleave ledger 1 "
enum {
  SALT_HEX_DIGITS = 64,
  HEAD_LINE_LEN = sizeof HEAD_LINE_PREFIX - 1 + SALT_HEX_DIGITS,
  DATE_LEN = CLV_LEDGER_DATE_BYTES - 1,
  /* most entries that are sorted apart from the others: adding one moves this many at most */
  MAX_NEW_ENTRIES = 4096
};

static const char *const kind_names[] = {[CLV_LEDGER_KEY] = "key",
                                         [CLV_LEDGER_RUN] = "run",
                                         [CLV_LEDGER_WEIGHTS] = "weights",
                                         [CLV_LEDGER_ROW] = "rows"};

/* A digest of a line of the file, with the date and identity of the line. A line "rows" yields one
 * entry for each digest. */
typedef struct ledger_line {
  clv_ledger_kind kind;
  /* digest; a line "rows" has only the first CLV_LEDGER_ROW_DIGEST_BYTES bytes of each digest, the
   * other bytes are 0 */
  uint8_t digest[CLV_LEDGER_DIGEST_BYTES];
  /* index, among all digests of the file, of the first digest on the same line of the file */
  size_t first_index;
  size_t date_at;     /* offset, in `text` of the ledger, of DATE_LEN bytes without a NUL */
  size_t identity_at; /* offset, in `text` of the ledger, of identity_len bytes without a NUL */
  size_t identity_len;
} ledger_line;

struct clv_ledger {
  clv_bytes text; /* the complete lines, and during clv_ledger_extend what follows them */
  size_t n_text_lines;
  clv_sha256 salt;
  /* the file has no head line (the first line, with the salt) yet; clv_ledger_new has drawn a
   * salt */
  bool lacks_head_line;
  /* [n] the first n_old and the others are each sorted by kind, digest and first_index; all
   * indexes of the first n_old are lower than those of the others */
  ledger_line *lines;
  size_t n, n_old, cap, n_rows;
};

static size_t digest_bytes(clv_ledger_kind kind) {
  return kind == CLV_LEDGER_ROW ? CLV_LEDGER_ROW_DIGEST_BYTES : CLV_LEDGER_DIGEST_BYTES;
}

void clv_ledger_free(clv_ledger *l) {
  if (!l) return;
  clv_bytes_done(&l->text);
  free(l->lines);
  free(l);
}

void clv_ledger_freep(clv_ledger **l) { clv_ledger_free(*l); }

/* ---- reading the ledger ---------------------------------------------------------------------- */

/* Advances *p past `word` and a space. Returns false if the text begins with another word. */
static bool skip_word(const char **p, const char *end, const char *word) {
  size_t len = strlen(word);
  if ((size_t)(end - *p) <= len || memcmp(*p, word, len) != 0 || (*p)[len] != ' ') return false;
  *p += len + 1;
  return true;
}

static bool parse_kind(const char **p, const char *end, clv_ledger_kind *ret) {
  for (int k = CLV_LEDGER_KEY; k < CLV_LEDGER_KINDS; k++)
    if (skip_word(p, end, kind_names[k])) return *ret = (clv_ledger_kind)k, true;
  return false;
}

static bool parse_digest(const char **p, const char *end, size_t bytes, uint8_t *ret) {
  char hex[2 * CLV_LEDGER_DIGEST_BYTES + 1];
  if ((size_t)(end - *p) <= 2 * bytes) return false;
  memcpy(hex, *p, 2 * bytes);
  hex[2 * bytes] = '\0';
  *p += 2 * bytes;
  return clv_hex_parse(hex, ret, bytes);
}

static bool parse_date(const char **p, const char *end, const char **ret) {
  static const char pattern[] = "dddd-dd-dd ";
  if ((size_t)(end - *p) < sizeof pattern) return false;
  for (size_t i = 0; pattern[i]; i++)
    if (pattern[i] == 'd' ? !isdigit((unsigned char)(*p)[i]) : (*p)[i] != pattern[i]) return false;
  *ret = *p;
  *p += sizeof pattern - 1;
  return true;
}

/* Returns true if the text is valid as an identity: 1 to CLV_LEDGER_MAX_IDENTITY bytes without
 * control characters, because commands print identities. */
static bool is_valid_identity(const char *text, size_t len) {
  for (size_t i = 0; i < len; i++)
    if ((unsigned char)text[i] < 0x20 || text[i] == 0x7f) return false;
  return len >= 1 && len <= CLV_LEDGER_MAX_IDENTITY;
}

/* Grows l->lines if it is full, so that one more entry fits. */
static clv_code reserve_line(clv_ledger *l, clv_err *err) {
  size_t new_cap = l->cap ? 2 * l->cap : 64;
  if (l->n < l->cap) return CLV_OK;
  ledger_line *grown = realloc(l->lines, new_cap * sizeof *grown);
  if (!grown) return clv_fail(err, CLV_EXHAUSTED, "out of memory for %zu lines", new_cap);
  l->lines = grown;
  l->cap = new_cap;
  return CLV_OK;
}

static clv_code parse_head_line(clv_ledger *l, const char *line, size_t len, clv_err *err) {
  char hex[SALT_HEX_DIGITS + 1] = "";
  bool is_valid =
      len == HEAD_LINE_LEN && memcmp(line, HEAD_LINE_PREFIX, sizeof HEAD_LINE_PREFIX - 1) == 0;
  if (is_valid) memcpy(hex, line + sizeof HEAD_LINE_PREFIX - 1, SALT_HEX_DIGITS);
  if (is_valid && clv_sha256_parse(hex, &l->salt)) return CLV_OK;
  return clv_fail(err, CLV_DATA_LOSS, "this is not the head line of a ledger of version 1");
}

/* Parses the kind and the digests of a line, adds an entry to l->lines for each digest, and
 * advances *p past the digests and a space. *ret_fits false: the text does not begin with a kind
 * and its digests. */
static clv_code parse_digests(clv_ledger *l, const char **p, const char *end, bool *ret_fits,
                              clv_err *err) {
  clv_ledger_kind kind;
  const size_t first_index = l->n;
  *ret_fits = parse_kind(p, end, &kind);
  while (*ret_fits && (l->n == first_index || (kind == CLV_LEDGER_ROW && **p != ' '))) {
    CLV_TRY(reserve_line(l, err));
    l->lines[l->n] = (ledger_line){.kind = kind, .first_index = first_index};
    *ret_fits = parse_digest(p, end, digest_bytes(kind), l->lines[l->n].digest);
    l->n++;
    l->n_rows += kind == CLV_LEDGER_ROW;
  }
  if (*ret_fits) *ret_fits = *(*p)++ == ' ';
  return CLV_OK;
}

static clv_code parse_line(clv_ledger *l, const char *line, size_t len, clv_err *err) {
  const char *p = line, *end = line + len, *date = NULL;
  size_t i = l->n;
  bool is_valid;
  if (line == l->text.data) return parse_head_line(l, line, len, err);
  CLV_TRY(parse_digests(l, &p, end, &is_valid, err));
  if (!is_valid || !parse_date(&p, end, &date) || !is_valid_identity(p, (size_t)(end - p)))
    return clv_fail(err, CLV_DATA_LOSS, "this is not a line of a ledger (KIND MARK DATE IDENTITY)");
  for (; i < l->n; i++) {
    l->lines[i].date_at = (size_t)(date - l->text.data);
    l->lines[i].identity_at = (size_t)(p - l->text.data);
    l->lines[i].identity_len = (size_t)(end - p);
  }
  return CLV_OK;
}

/* Parses the complete lines from byte `at` of the text on, and removes the rest. The last line may
 * be truncated or consist of NUL bytes, because the machine may have crashed while a command added
 * to the file. NUL bytes before a complete line are an error. */
static clv_code parse_lines(clv_ledger *l, size_t at, const char *label, clv_err *err) {
  const char *text = l->text.data, *end;
  for (; (end = memchr(text + at, '\n', l->text.len - at)); l->n_text_lines++) {
    size_t len = (size_t)(end - (text + at)), line_number = l->n_text_lines + 1;
    if (memchr(text + at, '\0', len))
      return clv_fail(err, CLV_DATA_LOSS, "%s:%zu: NUL bytes stand before complete lines", label,
                      line_number);
    if (parse_line(l, text + at, len, err) != CLV_OK)
      return clv_err_prefix(err, "%s:%zu", label, line_number);
    at += len + 1;
  }
  l->text.len = at;
  return CLV_OK;
}

static int compare_by_digest(const void *a, const void *b) {
  const ledger_line *x = a, *y = b;
  if (x->kind != y->kind) return x->kind < y->kind ? -1 : 1;
  int order = memcmp(x->digest, y->digest, sizeof x->digest);
  if (order) return order;
  return x->first_index < y->first_index ? -1 : x->first_index > y->first_index;
}

/* Merges the sorted entries from `begin` and from `middle` on into one sorted run. */
static clv_code merge_entries(clv_ledger *l, size_t begin, size_t middle, clv_err *err) {
  CLV_AUTO(clv_freep) ledger_line *later = NULL;
  size_t n_earlier = middle - begin, n_later = l->n - middle;
  if (!n_earlier || !n_later) return CLV_OK;
  CLV_TRY(clv_alloc(n_later, sizeof *later, &later, err));
  memcpy(later, l->lines + middle, n_later * sizeof *later);
  ledger_line *earlier = l->lines + begin;
  for (size_t to = n_earlier + n_later; n_later;) {
    bool is_earlier_last =
        n_earlier && compare_by_digest(&earlier[n_earlier - 1], &later[n_later - 1]) > 0;
    earlier[--to] = is_earlier_last ? earlier[--n_earlier] : later[--n_later];
  }
  return CLV_OK;
}

static clv_code merge_all_entries(clv_ledger *l, clv_err *err) {
  CLV_TRY(merge_entries(l, 0, l->n_old, err));
  l->n_old = l->n;
  return CLV_OK;
}

/* Sorts the entries from `first` on into the others. */
static clv_code sort_new_entries(clv_ledger *l, size_t first, clv_err *err) {
  if (l->n > first) qsort(l->lines + first, l->n - first, sizeof *l->lines, compare_by_digest);
  CLV_TRY(merge_entries(l, l->n_old, first, err));
  return l->n - l->n_old > MAX_NEW_ENTRIES ? merge_all_entries(l, err) : CLV_OK;
}

clv_code clv_ledger_new(clv_ledger **ret, clv_err *err) {
  CLV_AUTO(clv_ledger_freep) clv_ledger *l = NULL;
  CLV_TRY(clv_alloc(1, sizeof *l, &l, err));
  CLV_TRY(clv_random_bytes(&l->salt, sizeof l->salt, err));
  l->lacks_head_line = true;
  *ret = clv_steal(&l);
  return CLV_OK;
}

clv_code clv_ledger_extend(clv_ledger *l, const char *text, size_t len, const char *label,
                           clv_err *err) {
  const size_t at = l->text.len, first = l->n;
  if (len > CLV_LEDGER_MAX_BYTES - at)
    return clv_fail(err, CLV_EXHAUSTED, "%s has more than %d MiB", label,
                    CLV_LEDGER_MAX_BYTES >> 20);
  clv_bytes_add(&l->text, len ? text : "", len);
  if (l->text.failed) return clv_fail(err, CLV_EXHAUSTED, "out of memory for %s", label);
  CLV_TRY(parse_lines(l, at, label, err));
  l->lacks_head_line = !l->text.len;
  return sort_new_entries(l, first, err);
}

size_t clv_ledger_count_bytes(const clv_ledger *l) { return l->text.len; }

bool clv_ledger_has_bytes(const clv_ledger *l, size_t at, const char *text, size_t len) {
  return at <= l->text.len && len <= l->text.len - at && memcmp(l->text.data + at, text, len) == 0;
}

/* ---- finding an item in the ledger ----------------------------------------------------------- */

size_t clv_ledger_count(const clv_ledger *l) { return l->n; }

size_t clv_ledger_count_rows(const clv_ledger *l) { return l->n_rows; }

static clv_code compute_line_digest(const clv_ledger *l, clv_ledger_kind kind, const clv_sha256 *of,
                                    ledger_line *ret, clv_err *err) {
  clv_sha256 digest;
  uint8_t key_bytes[1 + sizeof *of] = {(uint8_t)kind};
  memcpy(key_bytes + 1, of, sizeof *of);
  CLV_TRY(clv_hmac_sha256(&l->salt, key_bytes, sizeof key_bytes, &digest, err));
  *ret = (ledger_line){.kind = kind};
  memcpy(ret->digest, &digest, digest_bytes(kind));
  return CLV_OK;
}

static bool has_same_digest(const ledger_line *a, const ledger_line *b) {
  return a->kind == b->kind && memcmp(a->digest, b->digest, sizeof a->digest) == 0;
}

/* Returns the first entry of [low, high), which is sorted, with the kind and digest of wanted_line;
 * NULL: there is none. */
static const ledger_line *find_line_between(const clv_ledger *l, size_t low, size_t high,
                                            const ledger_line *wanted_line) {
  const size_t end = high;
  while (low < high) {
    size_t middle = low + (high - low) / 2;
    if (compare_by_digest(&l->lines[middle], wanted_line) < 0)
      low = middle + 1;
    else
      high = middle;
  }
  return low < end && has_same_digest(&l->lines[low], wanted_line) ? &l->lines[low] : NULL;
}

clv_code clv_ledger_find(const clv_ledger *l, clv_ledger_kind kind, const clv_sha256 *of,
                         clv_ledger_entry *ret, bool *ret_found, clv_err *err) {
  ledger_line wanted_line;
  CLV_TRY(compute_line_digest(l, kind, of, &wanted_line, err));
  const ledger_line *line = find_line_between(l, 0, l->n_old, &wanted_line);
  if (!line) line = find_line_between(l, l->n_old, l->n, &wanted_line);
  *ret_found = line != NULL;
  if (!line) return CLV_OK;
  snprintf(ret->date, sizeof ret->date, "%.*s", DATE_LEN, l->text.data + line->date_at);
  snprintf(ret->identity, sizeof ret->identity, "%.*s", (int)line->identity_len,
           l->text.data + line->identity_at);
  return CLV_OK;
}

/* ---- writing lines of the ledger ------------------------------------------------------------- */

static bool has_line_between(const clv_ledger *l, size_t begin, size_t end,
                             const ledger_line *wanted_line, const char *identity) {
  const ledger_line *line = find_line_between(l, begin, end, wanted_line);
  size_t len = strlen(identity);
  for (; line && line < l->lines + end && has_same_digest(line, wanted_line); line++)
    if (line->identity_len == len && memcmp(l->text.data + line->identity_at, identity, len) == 0)
      return true;
  return false;
}

/* Returns true if the ledger has an entry with the kind and digest of wanted_line for the
 * identity. */
static bool has_line_for_identity(const clv_ledger *l, const ledger_line *wanted_line,
                                  const char *identity) {
  return has_line_between(l, 0, l->n_old, wanted_line, identity) ||
         has_line_between(l, l->n_old, l->n, wanted_line, identity);
}

static void put_head_line(const clv_ledger *l, clv_bytes *out) {
  char hex[SALT_HEX_DIGITS + 1];
  clv_sha256_hex(&l->salt, hex);
  clv_bytes_printf(out, HEAD_LINE_PREFIX "%s\n", hex);
}

static void put_digest(const ledger_line *line, clv_bytes *out) {
  char hex[2 * CLV_LEDGER_DIGEST_BYTES + 1];
  clv_hex(line->digest, digest_bytes(line->kind), hex);
  clv_bytes_puts(out, hex);
}

/* Appends the date, the identity and the newline of a line. */
static void put_date_and_identity(const clv_ledger *l, const ledger_line *line, clv_bytes *out) {
  clv_bytes_printf(out, " %.*s ", DATE_LEN, l->text.data + line->date_at);
  clv_bytes_add(out, l->text.data + line->identity_at, line->identity_len);
  clv_bytes_puts(out, "\n");
}

static void put_line(const clv_ledger *l, const ledger_line *line, clv_bytes *out) {
  clv_bytes_printf(out, "%s ", kind_names[line->kind]);
  put_digest(line, out);
  put_date_and_identity(l, line, out);
}

static void format_today(char text[CLV_LEDGER_DATE_BYTES]) {
  time_t now_s = (time_t)(clv_wall_ms() / 1000);
  struct tm tm;
  memcpy(text, "1970-01-01", CLV_LEDGER_DATE_BYTES);
  if (gmtime_r(&now_s, &tm)) (void)strftime(text, CLV_LEDGER_DATE_BYTES, "%Y-%m-%d", &tm);
}

/* Formats item *i as a line. If the item is a row of a tensor, the line also has the rows with the
 * same identity that follow the item in `items`. Advances *i past the formatted items. */
static clv_code put_items(const clv_ledger *l, const clv_ledger_item *items, size_t n, size_t *i,
                          clv_bytes *out, clv_err *err) {
  const clv_ledger_item *item = &items[*i];
  char date[CLV_LEDGER_DATE_BYTES];
  bool has_begun_line = false;
  ledger_line line;
  if (!is_valid_identity(item->identity, strlen(item->identity)))
    return clv_fail(err, CLV_INVALID,
                    "a worker's identity has %zu bytes or control characters: the ledger takes 1 "
                    "to %d bytes without these",
                    strlen(item->identity), CLV_LEDGER_MAX_IDENTITY);
  format_today(date);
  do {
    CLV_TRY(compute_line_digest(l, item->kind, &items[*i].of, &line, err));
    if (has_line_for_identity(l, &line, item->identity)) continue;
    if (!has_begun_line) clv_bytes_printf(out, "%s ", kind_names[line.kind]);
    put_digest(&line, out);
    has_begun_line = true;
  } while (++*i < n && item->kind == CLV_LEDGER_ROW && items[*i].kind == CLV_LEDGER_ROW &&
           strcmp(items[*i].identity, item->identity) == 0);
  if (has_begun_line) clv_bytes_printf(out, " %s %s\n", date, item->identity);
  return CLV_OK;
}

clv_code clv_ledger_format_new_lines(const clv_ledger *l, const clv_ledger_item *items, size_t n,
                                     clv_bytes *out, clv_err *err) {
  if (l->lacks_head_line) put_head_line(l, out);
  for (size_t i = 0; i < n;) CLV_TRY(put_items(l, items, n, &i, out, err));
  return out->failed ? clv_fail(err, CLV_EXHAUSTED, "out of memory") : CLV_OK;
}

static int compare_by_file_order(const void *a, const void *b) {
  const ledger_line *x = *(const ledger_line *const *)a, *y = *(const ledger_line *const *)b;
  if (x->first_index != y->first_index) return x->first_index < y->first_index ? -1 : 1;
  return memcmp(x->digest, y->digest, sizeof x->digest);
}

/* Returns true if a compacted file keeps the row. If the ledger has too many rows, a compacted file
 * keeps only rows whose digests begin with enough zero bits, which are a half, a quarter and so on
 * of all rows. */
static bool is_in_compacted_file(const clv_ledger *l, const ledger_line *line) {
  uint32_t digest_prefix = 0;
  int shift = 0;
  while (l->n_rows >> shift > CLV_LEDGER_MAX_COMPACTED_ROWS) shift++;
  for (int i = 0; i < 4; i++) digest_prefix = digest_prefix << 8 | line->digest[i];
  return !shift || digest_prefix >> (32 - shift) == 0;
}

/* Formats the entries of kind ROW. Entries that the file had on one line stay on one line. */
static clv_code put_rows(const clv_ledger *l, clv_bytes *out, clv_err *err) {
  CLV_AUTO(clv_freep) const ledger_line **kept = NULL;
  size_t n = 0;
  CLV_TRY(clv_alloc(l->n_rows, sizeof *kept, &kept, err));
  for (size_t i = 0; i < l->n; i++) {
    const ledger_line *line = &l->lines[i];
    bool has_same_digest_as_previous = i && has_same_digest(&line[-1], line);
    if (line->kind == CLV_LEDGER_ROW && !has_same_digest_as_previous &&
        is_in_compacted_file(l, line))
      kept[n++] = line;
  }
  if (n) qsort(kept, n, sizeof *kept, compare_by_file_order);
  for (size_t i = 0; i < n; i++) {
    if (!i || kept[i]->first_index != kept[i - 1]->first_index)
      clv_bytes_printf(out, "%s ", kind_names[CLV_LEDGER_ROW]);
    put_digest(kept[i], out);
    if (i + 1 == n || kept[i + 1]->first_index != kept[i]->first_index)
      put_date_and_identity(l, kept[i], out);
  }
  return CLV_OK;
}

clv_code clv_ledger_compact(clv_ledger *l, clv_bytes *out, clv_err *err) {
  CLV_TRY(merge_all_entries(l, err));
  if (!l->lacks_head_line) put_head_line(l, out);
  for (size_t i = 0; i < l->n && l->lines[i].kind != CLV_LEDGER_ROW; i++)
    if (!i || !has_same_digest(&l->lines[i - 1], &l->lines[i])) put_line(l, &l->lines[i], out);
  if (l->n_rows) CLV_TRY(put_rows(l, out, err));
  return out->failed ? clv_fail(err, CLV_EXHAUSTED, "out of memory") : CLV_OK;
}
