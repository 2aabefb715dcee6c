/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads objects of a tokenizer.json by tables of their keys. A key that is not in the table may
 * need an unsupported feature, so it is refused. An object without a required key is refused, too.
 */
#include <string.h>

#include "master/tokens/tokenizer_file_int.h"

enum { MAX_OBJECT_KEYS = 16 };

bool clv_token_file_text_equals(const clv_token_file *f, const char *text) {
  return f->text.len == strlen(text) && memcmp(f->text.data, text, f->text.len) == 0;
}

/* Ignores the error of a malformed value, because the function that reads the value reports it. */
size_t clv_token_file_position(clv_token_file *f) {
  clv_json_kind kind;
  clv_err ignored_err;
  (void)!clv_json_peek(&f->j, &kind, &ignored_err);
  return f->j.at;
}

/* ---- reading the values of keys -------------------------------------------------------------- */

/* Stores the position of a value in *ret, and skips the value. */
static clv_code store_position(clv_token_file *f, clv_json *ret, clv_err *err) {
  *ret = f->j;
  return clv_json_skip(&f->j, err);
}

static clv_code read_codepoints(clv_token_file *f, clv_codepoints *ret, clv_err *err) {
  size_t at = clv_token_file_position(f);
  CLV_TRY(clv_json_read_text(&f->j, &f->text, err));
  if (f->text.len > CLV_TOKEN_MAX_STEP_BYTES)
    return clv_json_fail(&f->j, at, err, "a text of a step has %zu bytes, and %d are read",
                         f->text.len, CLV_TOKEN_MAX_STEP_BYTES);
  ret->n = 0;
  return clv_codepoints_from_utf8(ret, f->text.data, f->text.len, err);
}

static clv_code read_bytes(clv_token_file *f, clv_bytes *ret, clv_err *err) {
  ret->len = 0;
  return clv_json_skip_null(&f->j) ? CLV_OK : clv_json_read_text(&f->j, ret, err);
}

static clv_code read_real(clv_token_file *f, double *ret, clv_err *err) {
  *ret = 0;
  return clv_json_skip_null(&f->j) ? CLV_OK : clv_json_read_real(&f->j, ret, err);
}

static clv_code read_choice(clv_token_file *f, const clv_json_key_row *k, size_t *ret,
                            clv_err *err) {
  size_t at = clv_token_file_position(f);
  CLV_TRY(clv_json_read_text(&f->j, &f->text, err));
  for (*ret = 0; *ret < k->n_names; ++*ret)
    if (clv_token_file_text_equals(f, k->names[*ret])) return CLV_OK;
  return clv_json_fail(&f->j, at, err, "%s: '%.80s'", k->error_text, f->text.data);
}

static clv_code read_value(clv_token_file *f, const clv_json_key_row *k, void *to, clv_err *err) {
  switch (k->kind) {
    case CLV_KEY_POSITION:
      return store_position(f, to, err);
    case CLV_KEY_FLAG:
      return clv_json_read_bool(&f->j, to, err);
    case CLV_KEY_BYTES:
      return read_bytes(f, to, err);
    case CLV_KEY_CODEPOINTS:
      return read_codepoints(f, to, err);
    case CLV_KEY_INTEGER:
      return clv_json_read_integer(&f->j, 0, k->max_integer, to, err);
    case CLV_KEY_REAL:
      return read_real(f, to, err);
    case CLV_KEY_CHOICE:
      return read_choice(f, k, to, err);
    case CLV_KEY_SKIP:
      break;
  }
  return clv_json_skip(&f->j, err);
}

/* ---- reading objects by the tables of their keys --------------------------------------------- */

/* Refuses the unknown key at byte `at`, unless its value is null. object_name: name of the
 * object. */
static clv_code refuse_unknown_key(clv_token_file *f, const char *object_name, size_t at,
                                   clv_err *err) {
  if (clv_json_skip_null(&f->j)) return CLV_OK;
  clv_json from = f->j;
  from.at = at;
  CLV_TRY(clv_json_read_key(&from, &f->text, err));
  return clv_json_fail(&f->j, at, err, "the key '%.80s' of %s is not known here", f->text.data,
                       object_name);
}

clv_code clv_token_file_read_keys(clv_token_file *f, const char *object_name,
                                  const clv_json_key_row *keys, size_t n_keys, void *object,
                                  clv_err *err) {
  const char *names[MAX_OBJECT_KEYS];
  uint32_t seen_keys = 0;
  bool has_more = true;
  int key_index;
  for (size_t i = 0; i < n_keys; i++) names[i] = keys[i].name;
  CLV_TRY(clv_json_open(&f->j, CLV_JSON_OBJECT, err));
  size_t begin = f->j.at - 1;
  for (size_t n = 0;; n++) {
    CLV_TRY(clv_json_next(&f->j, CLV_JSON_OBJECT, n, &has_more, err));
    if (!has_more) break;
    size_t at = f->j.at;
    CLV_TRY(clv_json_find_key(&f->j, names, n_keys, &seen_keys, &key_index, err));
    CLV_TRY(key_index < 0
                ? refuse_unknown_key(f, object_name, at, err)
                : read_value(f, &keys[key_index], (char *)object + keys[key_index].offset, err));
  }
  for (size_t i = 0; i < n_keys; i++)
    if (!keys[i].is_optional && !(seen_keys >> i & 1))
      return clv_json_fail(&f->j, begin, err, "%s has no key '%s'", object_name, keys[i].name);
  return CLV_OK;
}

clv_code clv_token_file_read_keys_at(clv_token_file *f, const clv_json *at, const char *object_name,
                                     const clv_json_key_row *keys, size_t n_keys, void *object,
                                     clv_err *err) {
  clv_json saved_position = f->j;
  f->j = *at;
  CLV_TRY(clv_token_file_read_keys(f, object_name, keys, n_keys, object, err));
  f->j = saved_position;
  return CLV_OK;
}

clv_code clv_token_file_find_type(clv_token_file *f, const char *object_name, clv_err *err) {
  static const char *const names[] = {"type"};
  clv_json j = f->j;
  uint32_t seen_keys = 0;
  bool has_more = true;
  int key_index;
  CLV_TRY(clv_json_open(&j, CLV_JSON_OBJECT, err));
  for (size_t n = 0;; n++) {
    CLV_TRY(clv_json_next(&j, CLV_JSON_OBJECT, n, &has_more, err));
    if (!has_more) return clv_json_fail(&j, j.at, err, "%s has no key 'type'", object_name);
    CLV_TRY(clv_json_find_key(&j, names, 1, &seen_keys, &key_index, err));
    if (key_index == 0) return clv_json_read_text(&j, &f->text, err);
    CLV_TRY(clv_json_skip(&j, err));
  }
}
