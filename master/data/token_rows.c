/* SPDX-License-Identifier: Apache-2.0
 *
 * Makes rows of tokens: adds special tokens and padding, truncates, and stores class names. texts.c
 * and pages.c call it.
 */
#include <stdlib.h>
#include <string.h>

#include "master/data/text_int.h"

enum { MAX_NAME_BYTES = 255 }; /* most bytes of a class name, as of a folder name */

/* Finds a special token: by `name`, or else by `default_name`, its usual name in a vocab.txt. If
 * both are NULL, *ret does not change: the caller has set it to the token of a tokenizer.json. */
static clv_code find_special_token(const clv_text_rows *r, const char *key, const char *name,
                                   const char *default_name, int32_t *ret, clv_err *err) {
  if (!name && !default_name) return CLV_OK;
  *ret = clv_tokenizer_token_id(r->tokenizer, name ? name : default_name);
  if (*ret >= 0) return CLV_OK;
  return clv_fail(err, CLV_INVALID,
                  "data.tokenizer.%s: %s has no token '%.80s': name one that it has", key, r->path,
                  name ? name : default_name);
}

static clv_code find_special_tokens(clv_text_rows *r, const clv_text_options *o, clv_err *err) {
  size_t n = strlen(o->tokenizer);
  bool is_vocab_txt = n < 5 || strcmp(o->tokenizer + n - 5, ".json") != 0;
  clv_tokenizer_end_settings ends = clv_tokenizer_get_end_settings(r->tokenizer);
  r->first = r->last = r->mask = -1;
  r->pad = ends.pad_id;
  if (!o->omits_first_and_last) {
    r->first = ends.before;
    r->last = ends.after;
    CLV_TRY(
        find_special_token(r, "first", o->first, is_vocab_txt ? "[CLS]" : NULL, &r->first, err));
    CLV_TRY(find_special_token(r, "last", o->last, is_vocab_txt ? "[SEP]" : NULL, &r->last, err));
  }
  CLV_TRY(find_special_token(r, "pad", o->pad, is_vocab_txt ? "[PAD]" : NULL, &r->pad, err));
  if (ends.max_tokens && (int64_t)r->width > ends.max_tokens)
    return clv_fail(err, CLV_INVALID,
                    "%s cuts texts at %lld tokens (truncation.max_length), and rows have %zu: give "
                    "max_tokens: %lld or less, or set truncation to null there",
                    r->path, (long long)ends.max_tokens, r->width, (long long)ends.max_tokens);
  if (r->pad < 0)
    return clv_fail(err, CLV_INVALID,
                    "data.tokenizer.pad: name the token of %s that pads rows, such as <pad> or "
                    "<|endoftext|>",
                    r->path);
  return CLV_OK;
}

static clv_code find_mask_token(clv_text_rows *r, const clv_dataset_options *o, clv_err *err) {
  size_t n = strlen(o->text.tokenizer);
  bool is_vocab_txt = n < 5 || strcmp(o->text.tokenizer + n - 5, ".json") != 0;
  if (o->objective != CLV_OBJECTIVE_MASKED) return CLV_OK;
  CLV_TRY(find_special_token(r, "mask", o->text.mask_token, is_vocab_txt ? "[MASK]" : NULL,
                             &r->mask, err));
  if (r->mask >= 0) return CLV_OK;
  return clv_fail(err, CLV_INVALID, "data.tokenizer.mask: name the token of %s that masks others",
                  r->path);
}

clv_code clv_text_rows_open(clv_text_rows *r, const clv_dataset_options *o, clv_err *err) {
  const clv_text_options *t = &o->text;
  *r = (clv_text_rows){.path = t->tokenizer,
                       .width = t->max_tokens,
                       .max_bytes = o->max_bytes ? o->max_bytes : CLV_DATA_MAX_BYTES,
                       .skips_broken = o->skips_broken,
                       .has_labels = !o->skips_labels && o->objective == CLV_OBJECTIVE_LABELS};
  CLV_TRY(clv_tokenizer_open(t->tokenizer, &t->tokenizer_options, &r->tokenizer, err));
  CLV_TRY(find_special_tokens(r, t, err));
  CLV_TRY(find_mask_token(r, o, err));
  r->path = o->inputs_path;
  if (clv_text_rows_capacity(r)) return CLV_OK;
  return clv_fail(
      err, CLV_INVALID, "data.%s.max_tokens: %zu leaves no room for a text",
      clv_format_row_of(o->format == CLV_FORMAT_TABLE ? CLV_FORMAT_TEXT : o->format)->name,
      r->width);
}

void clv_text_rows_done(clv_text_rows *r) {
  if (!r) return;
  clv_tokenizer_free(r->tokenizer);
  free(r->at);
  clv_bytes_done(&r->labels);
  clv_bytes_done(&r->groups);
  clv_ids_done(&r->lengths);
  clv_ids_done(&r->text_ids);
  clv_bytes_done(&r->cut_rows);
  clv_broken_records_done(&r->broken);
  *r = (clv_text_rows){0};
}

clv_token_info clv_text_rows_token_info(const clv_text_rows *r) {
  return (clv_token_info){.count = clv_tokenizer_vocab_size(r->tokenizer),
                          .mask = r->mask,
                          .pad_token = r->pad,
                          .has_first = r->first >= 0,
                          .has_last = r->last >= 0};
}

size_t clv_text_rows_capacity(const clv_text_rows *r) {
  size_t n_end_tokens = (size_t)(r->first >= 0) + (size_t)(r->last >= 0);
  return r->width > n_end_tokens ? r->width - n_end_tokens : 0;
}

static clv_code grow_rows(clv_text_rows *r, clv_err *err) {
  size_t new_cap = r->cap ? 2 * r->cap : 64, bytes, row_bytes = r->width * sizeof *r->at;
  void *new_tokens = NULL;
  if (r->n >= UINT32_MAX || r->n * row_bytes >= r->max_bytes)
    return clv_fail(err, CLV_EXHAUSTED, "%s: more than %zu records of %zu tokens", r->path, r->n,
                    r->width);
  if (clv_mul_size(new_cap, row_bytes, &bytes)) new_tokens = realloc(r->at, bytes);
  if (!new_tokens) return clv_fail(err, CLV_EXHAUSTED, "no memory for %zu rows of tokens", new_cap);
  r->at = new_tokens;
  r->cap = new_cap;
  return CLV_OK;
}

clv_code clv_text_rows_add(clv_text_rows *r, const int32_t *ids, size_t n, clv_err *err) {
  if (r->n == r->cap) CLV_TRY(grow_rows(r, err));
  int32_t *row = r->at + r->n * r->width;
  size_t row_len = 0;
  char is_cut = n > clv_text_rows_capacity(r);
  r->n_truncated += (size_t)is_cut;
  clv_bytes_add(&r->cut_rows, &is_cut, 1);
  if (r->cut_rows.failed) return clv_fail(err, CLV_EXHAUSTED, "no memory for rows of tokens");
  n = CLV_MIN(n, clv_text_rows_capacity(r));
  if (r->first >= 0) row[row_len++] = r->first;
  if (n) memcpy(row + row_len, ids, n * sizeof *row);
  row_len += n;
  if (r->last >= 0) row[row_len++] = r->last;
  CLV_TRY(clv_ids_add(&r->lengths, (int32_t)row_len, err));
  while (row_len < r->width) row[row_len++] = r->pad;
  r->n++;
  return CLV_OK;
}

clv_code clv_text_rows_add_text(clv_text_rows *r, const char *text, size_t len, clv_err *err) {
  r->text_ids.n = 0;
  CLV_TRY(clv_tokenizer_encode(r->tokenizer, text, len, &r->text_ids, err));
  return clv_text_rows_add(r, r->text_ids.at, r->text_ids.n, err);
}

void clv_text_rows_drop(clv_text_rows *r, size_t n, size_t n_truncated) {
  r->n = r->lengths.n = r->cut_rows.len = n;
  r->n_truncated = n_truncated;
}

void clv_text_rows_keep_only(clv_text_rows *r, const clv_subset *kept) {
  if (!r->n) return;
  r->n_truncated = 0;
  for (size_t i = 0; i < kept->n; i++) {
    size_t from = kept->index[i];
    memmove(r->at + i * r->width, r->at + from * r->width, r->width * sizeof *r->at);
    r->lengths.at[i] = r->lengths.at[from];
    r->cut_rows.data[i] = r->cut_rows.data[from];
    r->n_truncated += (size_t)r->cut_rows.data[i];
  }
  r->n = r->lengths.n = r->cut_rows.len = kept->n;
}

clv_code clv_read_class_name(clv_json *j, clv_bytes *ret, clv_err *err) {
  clv_json_kind kind;
  int64_t number;
  CLV_TRY(clv_json_peek(j, &kind, err));
  if (kind != CLV_JSON_NUMERAL) return clv_json_read_text(j, ret, err);
  CLV_TRY(clv_json_read_integer(j, 0, INT32_MAX, &number, err));
  ret->len = 0;
  clv_bytes_printf(ret, "%lld", (long long)number);
  return ret->failed ? clv_fail(err, CLV_EXHAUSTED, "no memory for a label") : CLV_OK;
}

clv_code clv_check_class_name(const char *name, size_t len, clv_err *err) {
  bool is_valid = len && len <= MAX_NAME_BYTES && name[0] != '.';
  for (size_t i = 0, n; is_valid && i < len; i += n) {
    uint32_t c = 0;
    n = clv_utf8_decode(name + i, len - i, &c);
    is_valid = n && !clv_is_control(c) && c != '/';
    n = CLV_MAX(n, (size_t)1);
  }
  if (is_valid) return CLV_OK;
  return clv_fail(err, CLV_INVALID,
                  "a class's name has 1 to %d bytes of UTF-8, no '/' and no control characters, "
                  "and does not begin with '.'",
                  MAX_NAME_BYTES);
}

clv_code clv_text_rows_set_label(clv_text_rows *r, const char *name, size_t len, clv_err *err) {
  CLV_TRY(clv_check_class_name(name, len, err));
  clv_bytes_add(&r->labels, name, len);
  clv_bytes_add(&r->labels, "", 1);
  return r->labels.failed ? clv_fail(err, CLV_EXHAUSTED, "no memory for labels") : CLV_OK;
}
