/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads pages from lines of JSON. A line is an object with the words of a page and their boxes and
 * labels. Its keys may come in any order, so the reader first stores all values, and checks at the
 * end of the line that each word has a box, and a label if labels are read.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/json/json.h"
#include "master/data/record_lines_int.h"
#include "master/data/page_int.h"

void clv_page_reader_done(clv_page_reader *l) {
  if (!l) return;
  clv_bytes_done(&l->line_texts);
  clv_bytes_done(&l->last_text);
  clv_bytes_done(&l->label);
  clv_bytes_done(&l->file);
  clv_bytes_done(&l->other_members);
  clv_ids_done(&l->words);
  clv_ids_done(&l->names);
  clv_ids_done(&l->boxes);
  free(l->word_list);
  free(l->labels);
}

/* ---- words, boxes and labels of a line ------------------------------------------------------- */

/* Stores the text that was read last, l->last_text, in l->line_texts, and adds its offset to `to`.
 * at: position of the text in the line, for messages. */
static clv_code store_text(clv_page_reader *l, clv_json *j, size_t at, clv_ids *to, clv_err *err) {
  size_t offset = l->line_texts.len;
  if (l->last_text.failed)
    return clv_fail(err, CLV_EXHAUSTED, "out of memory for a text of a line");
  if (memchr(l->last_text.data, 0, l->last_text.len))
    return clv_json_fail(j, at, err, "a text without NUL is expected");
  if (to->n == CLV_MAX_WORDS || offset > INT32_MAX)
    return clv_json_fail(j, at, err, "more than %d words", CLV_MAX_WORDS);
  clv_bytes_add(&l->line_texts, l->last_text.data, l->last_text.len);
  clv_bytes_add(&l->line_texts, "", 1);
  return clv_ids_add(to, (int32_t)offset, err);
}

static clv_code read_word(clv_page_reader *l, clv_json *j, clv_err *err) {
  size_t at = j->at;
  CLV_TRY(clv_json_read_text(j, &l->last_text, err));
  return store_text(l, j, at, &l->words, err);
}

static clv_code read_label(clv_page_reader *l, clv_json *j, clv_err *err) {
  size_t at = j->at;
  if (clv_json_skip_null(j)) return clv_ids_add(&l->names, -1, err);
  CLV_TRY(clv_read_class_name(j, &l->last_text, err));
  return store_text(l, j, at, &l->names, err);
}

/* Reads a box, the four numbers x0, y0, x1, y1. */
static clv_code read_box(clv_page_reader *l, clv_json *j, clv_err *err) {
  size_t at = j->at, n = 0;
  int64_t box[4] = {0};
  bool has_more = true;
  CLV_TRY(clv_json_open(j, CLV_JSON_LIST, err));
  for (;; n++) {
    CLV_TRY(clv_json_next(j, CLV_JSON_LIST, n, &has_more, err));
    if (!has_more) break;
    if (n == 4) return clv_json_fail(j, at, err, "a box has four numbers, and this one more");
    CLV_TRY(clv_json_read_integer(j, 0, CLV_MAX_BOX_COORDINATE, &box[n], err));
    CLV_TRY(clv_ids_add(&l->boxes, (int32_t)box[n], err));
  }
  if (n < 4) return clv_json_fail(j, at, err, "a box has four numbers, and this one %zu", n);
  if (box[0] <= box[2] && box[1] <= box[3]) return CLV_OK;
  return clv_json_fail(j, at, err, "this box ends before it begins: x0, y0, x1, y1 are expected");
}

typedef clv_code read_item_fn(clv_page_reader *l, clv_json *j, clv_err *err);

static clv_code read_json_list(clv_page_reader *l, clv_json *j, read_item_fn *read_item,
                               clv_err *err) {
  clv_json_kind kind;
  bool has_more = true;
  CLV_TRY(clv_json_open(j, CLV_JSON_LIST, err));
  for (size_t n = 0;; n++) {
    CLV_TRY(clv_json_next(j, CLV_JSON_LIST, n, &has_more, err));
    if (!has_more) return CLV_OK;
    CLV_TRY(clv_json_peek(j, &kind, err)); /* skips spaces, so that messages name the position of
                                            * the value */
    CLV_TRY(read_item(l, j, err));
  }
}

static clv_code read_page_label(clv_page_reader *l, clv_json *j, clv_err *err) {
  size_t at = j->at;
  CLV_TRY(clv_read_class_name(j, &l->label, err));
  if (!memchr(l->label.data, 0, l->label.len)) return CLV_OK;
  return clv_json_fail(j, at, err, "a text without NUL is expected");
}

/* ---- reading a line -------------------------------------------------------------------------- */

/* Keys that a line may have. A line that an earlier prediction printed has probabilities, too. */
enum {
  KEY_WORDS,
  KEY_BOXES,
  KEY_LABELS,
  KEY_LABEL,
  KEY_PROBABILITIES,
  KEY_PROBABILITY,
  KEY_FILE_NAME,
  N_KEYS
};
static const char *const page_keys[N_KEYS] = {"words",         "boxes",       "labels", "label",
                                              "probabilities", "probability", "file"};

static uint32_t get_required_keys(clv_page_label_kind label_kind) {
  uint32_t key_set = 1u << KEY_WORDS | 1u << KEY_BOXES;
  if (label_kind == CLV_PAGES_WORD_LABELS) key_set |= 1u << KEY_LABELS;
  return label_kind == CLV_PAGES_PAGE_LABELS ? key_set | 1u << KEY_LABEL : key_set;
}

/* Reads the name of the page's file. Ignores a value that is not a text. */
static clv_code read_file_name(clv_page_reader *l, clv_json *j, clv_err *err) {
  clv_json_kind kind;
  CLV_TRY(clv_json_peek(j, &kind, err));
  return kind == CLV_JSON_TEXT ? clv_json_read_text(j, &l->file, err) : clv_json_skip(j, err);
}

static clv_code read_value(clv_page_reader *l, clv_json *j, int key_index, clv_err *err) {
  static read_item_fn *const item_readers[] = {
      [KEY_WORDS] = read_word, [KEY_BOXES] = read_box, [KEY_LABELS] = read_label};
  if (key_index == KEY_FILE_NAME) return read_file_name(l, j, err);
  if (key_index < 0 || !(get_required_keys(l->label_kind) & 1u << key_index))
    return clv_json_skip(j, err);
  return key_index == KEY_LABEL ? read_page_label(l, j, err)
                                : read_json_list(l, j, item_readers[key_index], err);
}

static clv_code check_line(const clv_page_reader *l, const clv_json *j, uint32_t seen_keys,
                           clv_err *err) {
  clv_key_list present_keys;
  size_t n_words = l->words.n;
  for (int k = 0; k < N_KEYS; k++)
    if (get_required_keys(l->label_kind) & ~seen_keys & 1u << k)
      return clv_fail(err, CLV_INVALID, "%s: has no '%s', but %s", l->location, page_keys[k],
                      clv_key_list_of_object(j, &present_keys));
  if (l->line_texts.failed || l->label.failed || l->file.failed || l->other_members.failed)
    return clv_fail(err, CLV_EXHAUSTED, "%s: no memory for its words", l->location);
  if (l->boxes.n != 4 * n_words)
    return clv_fail(err, CLV_INVALID, "%s: has %zu words and %zu boxes", l->location, n_words,
                    l->boxes.n / 4);
  if (l->label_kind == CLV_PAGES_WORD_LABELS && l->names.n != n_words)
    return clv_fail(err, CLV_INVALID, "%s: has %zu words and %zu labels", l->location, n_words,
                    l->names.n);
  return CLV_OK;
}

/* Stores the text of a member of the JSON object, so that predictions can print it again.
 * member_begin: position at which the member starts. */
static void store_other_member(clv_page_reader *l, const clv_json *j, size_t member_begin) {
  const char *from = j->text + member_begin;
  size_t n_spaces = strspn(from, " \t\r");
  if (l->other_members.len) clv_bytes_puts(&l->other_members, ",");
  clv_bytes_add(&l->other_members, from + n_spaces, j->at - member_begin - n_spaces);
}

static clv_code read_member(clv_page_reader *l, clv_json *j, uint32_t *seen_keys, clv_err *err) {
  size_t member_begin = j->at;
  int key_index;
  CLV_TRY(clv_json_find_key(j, page_keys, N_KEYS, seen_keys, &key_index, err));
  CLV_TRY(read_value(l, j, key_index, err));
  if ((key_index < 0 || key_index == KEY_FILE_NAME) && l->label_kind == CLV_PAGES_UNLABELLED)
    store_other_member(l, j, member_begin);
  return CLV_OK;
}

static clv_code parse_line(clv_page_reader *l, clv_json *j, clv_err *err) {
  uint32_t seen_keys = 0;
  bool has_more = true;
  l->words.n = l->names.n = l->boxes.n = l->line_texts.len = l->file.len = l->other_members.len = 0;
  CLV_TRY(clv_json_open(j, CLV_JSON_OBJECT, err));
  for (size_t n = 0;; n++) {
    CLV_TRY(clv_json_next(j, CLV_JSON_OBJECT, n, &has_more, err));
    if (!has_more) break;
    CLV_TRY(read_member(l, j, &seen_keys, err));
  }
  CLV_TRY(clv_json_end(j, err));
  return check_line(l, j, seen_keys, err);
}

static clv_code reserve_words(clv_page_reader *l, clv_err *err) {
  size_t n = l->words.n;
  if (n <= l->cap) return CLV_OK;
  free(l->word_list);
  free(l->labels);
  l->word_list = NULL;
  l->labels = NULL;
  l->cap = 0;
  CLV_TRY(clv_alloc(n, sizeof *l->word_list, &l->word_list, err));
  CLV_TRY(clv_alloc(n, sizeof *l->labels, &l->labels, err));
  l->cap = n;
  return CLV_OK;
}

static void set_page(clv_page_reader *l, clv_labelled_page *ret) {
  for (size_t i = 0; i < l->words.n; i++) {
    const int32_t *b = l->boxes.at + 4 * i;
    l->word_list[i] = (clv_page_word){l->line_texts.data + l->words.at[i], (uint16_t)b[0],
                                      (uint16_t)b[1], (uint16_t)b[2], (uint16_t)b[3]};
    if (l->names.n) l->labels[i] = l->names.at[i] < 0 ? NULL : l->line_texts.data + l->names.at[i];
  }
  *ret = (clv_labelled_page){
      .location = l->location,
      .page = {l->word_list, l->words.n},
      .labels = l->label_kind == CLV_PAGES_WORD_LABELS ? l->labels : NULL,
      .label = l->label_kind == CLV_PAGES_PAGE_LABELS ? l->label.data : NULL,
      .file = l->file.len ? l->file.data : NULL,
      .other_json_members = l->other_members.len ? l->other_members.data : NULL};
}

/* Finds the next line that is not empty. False: no such line is left. */
static bool find_next_line(clv_page_reader *l, clv_json *ret) {
  for (; l->at < l->len; l->line++) {
    const char *from = l->text + l->at, *line_end = memchr(from, '\n', l->len - l->at);
    size_t n = line_end ? (size_t)(line_end - from) : l->len - l->at;
    l->at += n + 1;
    size_t n_bom_bytes = clv_bom_length(from, n);
    from += n_bom_bytes;
    n -= n_bom_bytes;
    if (strspn(from, " \t\r") >= n) continue;
    *ret = (clv_json){.label = l->path, .text = from, .len = n, .lines_before = l->line++};
    return true;
  }
  return false;
}

clv_code clv_page_reader_next(clv_page_reader *l, clv_labelled_page *ret, bool *ret_has_more,
                              clv_err *err) {
  clv_json j;
  *ret_has_more = find_next_line(l, &j);
  if (!*ret_has_more) return CLV_OK;
  snprintf(l->location, sizeof l->location, "%.200s:%zu", l->path, l->line);
  CLV_TRY(parse_line(l, &j, err));
  CLV_TRY(reserve_words(l, err));
  set_page(l, ret);
  return CLV_OK;
}
