/* SPDX-License-Identifier: Apache-2.0
 *
 * The files beside a tokenizer.json from which transformers takes more settings of the tokenizer:
 * tokenizer_config.json and special_tokens_map.json. Only the tokenizer.json has an effect. Each
 * key of the other files has a row, which compares its value with the tokenizer.json or says why
 * the key can be skipped. A key without a row is refused, unless the session lists it.
 * deploy/CHECKPOINTS.md has a table that is made of these rows (test_hf_keys).
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "master/tokens/tokens_int.h"

enum { MAX_FILE_BYTES = 16 << 20 };

#define SAVE_AGAIN_ADVICE "save both files again by save_pretrained of transformers"

/* A settings file that is being read, and the tokenizer that the settings must fit. */
typedef struct settings_reader {
  clv_json j;
  const clv_tokenizer *t;
  const clv_tokenizer_options *options;
  const char *key; /* the key whose value is being read */
  size_t at;       /* byte where the key begins */
} settings_reader;

typedef struct setting_row {
  /* names of keys, separated by blanks; "*_token": all keys that end with _token and have no row of
   * their own */
  const char *keys;
  clv_code (*read)(settings_reader *s, const struct setting_row *row, clv_err *err);
  const char *reason; /* why the value is skipped, or refused if the check fails */
} setting_row;

static clv_code fail_at_key(settings_reader *s, clv_err *err, const char *what) {
  return clv_json_fail(&s->j, s->at, err, "%s %s", s->key, what);
}

/* ---- comparing special tokens with the tokenizer.json ---------------------------------------- */

static clv_code check_is_added(settings_reader *s, const clv_bytes *token, clv_err *err) {
  if (token->len && clv_vocab_find(&s->t->added_tokens, token->data, token->len)) return CLV_OK;
  return clv_json_fail(&s->j, s->at, err,
                       "%s is '%.60s', which is no added token of tokenizer.json, so transformers "
                       "adds it to the tokens: " SAVE_AGAIN_ADVICE,
                       s->key, token->len ? token->data : "");
}

/* A token that is a JSON object, in added_tokens_decoder or as the value of another key. */
typedef struct token_object {
  clv_bytes content;
  /* sets of CLV_ADDED_... bits: flags for which the object has a key, and flags that are true */
  uint8_t given_flags, flags;
} token_object;

static void token_object_done(token_object *t) { clv_bytes_done(&t->content); }

/* Reads a token as an object: {"content": ..., "lstrip": ...}. */
static clv_code read_token_object(settings_reader *s, token_object *ret, clv_err *err) {
  static const char *const names[] = {"content",    "lstrip",  "rstrip", "single_word",
                                      "normalized", "special", "__type"};
  static const uint8_t flag_bits[] = {
      0, CLV_ADDED_LSTRIP, CLV_ADDED_RSTRIP, CLV_ADDED_SINGLE_WORD, CLV_ADDED_NORMALIZED, 0, 0};
  uint32_t seen_flags = 0;
  bool has_more = true, flag_value;
  int key_index;
  CLV_TRY(clv_json_open(&s->j, CLV_JSON_OBJECT, err));
  for (size_t n = 0;; n++) {
    CLV_TRY(clv_json_next(&s->j, CLV_JSON_OBJECT, n, &has_more, err));
    if (!has_more) return CLV_OK;
    CLV_TRY(clv_json_find_key(&s->j, names, CLV_COUNT(names), &seen_flags, &key_index, err));
    if (key_index < 0) return fail_at_key(s, err, "has a token with a key that is not known");
    if (key_index == 0) CLV_TRY(clv_json_read_text(&s->j, &ret->content, err));
    if (key_index > 0 && !flag_bits[key_index]) CLV_TRY(clv_json_skip(&s->j, err));
    if (!flag_bits[key_index]) continue;
    CLV_TRY(clv_json_read_bool(&s->j, &flag_value, err));
    ret->given_flags |= flag_bits[key_index];
    if (flag_value) ret->flags |= flag_bits[key_index];
  }
}

/* Reads a token: null, a text or an object. */
static clv_code read_token_name(settings_reader *s, clv_err *err) {
  CLV_AUTO(token_object_done) token_object t = {0};
  clv_json_kind kind;
  CLV_TRY(clv_json_peek(&s->j, &kind, err));
  if (kind == CLV_JSON_NULL) return clv_json_skip(&s->j, err);
  if (kind == CLV_JSON_OBJECT)
    CLV_TRY(read_token_object(s, &t, err));
  else
    CLV_TRY(clv_json_read_text(&s->j, &t.content, err));
  return check_is_added(s, &t.content, err);
}

static clv_code compare_token(settings_reader *s, const setting_row *row, clv_err *err) {
  (void)row;
  return read_token_name(s, err);
}

/* Compares tokens with the added tokens. The value is null, a list of tokens, or an object with a
 * token for each name. */
static clv_code compare_tokens(settings_reader *s, const setting_row *row, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes name = {0};
  clv_json_kind kind;
  bool has_more = true;
  (void)row;
  CLV_TRY(clv_json_peek(&s->j, &kind, err));
  if (kind == CLV_JSON_NULL) return clv_json_skip(&s->j, err);
  if (kind != CLV_JSON_OBJECT) kind = CLV_JSON_LIST;
  CLV_TRY(clv_json_open(&s->j, kind, err));
  for (size_t n = 0; has_more; n++) {
    CLV_TRY(clv_json_next(&s->j, kind, n, &has_more, err));
    if (has_more && kind == CLV_JSON_OBJECT) CLV_TRY(clv_json_read_key(&s->j, &name, err));
    if (has_more) CLV_TRY(read_token_name(s, err));
  }
  return CLV_OK;
}

/* Checks that the list has all added tokens, because the library transformers treats a token that
 * the list lacks as an ordinary token. */
static clv_code check_all_tokens_listed(settings_reader *s, size_t n, clv_err *err) {
  if (n == s->t->added_tokens.n) return CLV_OK;
  return clv_json_fail(&s->j, s->at, err,
                       "%s lists %zu tokens, and tokenizer.json adds %zu: " SAVE_AGAIN_ADVICE,
                       s->key, n, s->t->added_tokens.n);
}

/* Compares added_tokens_decoder, an object of tokens by id: {"7": {"content": ...}, ...}. */
static clv_code compare_decoder(settings_reader *s, const setting_row *row, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes number = {0};
  bool has_more = true;
  CLV_TRY(clv_json_open(&s->j, CLV_JSON_OBJECT, err));
  for (size_t n = 0;; n++) {
    CLV_AUTO(token_object_done) token_object t = {0};
    CLV_TRY(clv_json_next(&s->j, CLV_JSON_OBJECT, n, &has_more, err));
    if (!has_more) return check_all_tokens_listed(s, n, err);
    s->at = s->j.at;
    CLV_TRY(clv_json_read_key(&s->j, &number, err));
    CLV_TRY(read_token_object(s, &t, err));
    CLV_TRY(check_is_added(s, &t.content, err));
    const clv_vocab_entry *e = clv_vocab_find(&s->t->added_tokens, t.content.data, t.content.len);
    char *end, *from = number.len ? number.data : "";
    bool is_same_id = strtoll(from, &end, 10) == e->id && end != from && !*end;
    if (!is_same_id || (e->flags & t.given_flags) != t.flags)
      return clv_json_fail(&s->j, s->at, err, "%s, '%.60s': %s: " SAVE_AGAIN_ADVICE, s->key,
                           t.content.data, row->reason);
  }
}

/* ---- comparing settings with the normalizer and the pre_tokenizer ---------------------------- */

static clv_code compare_flag(settings_reader *s, bool has_step, bool expected,
                             const setting_row *row, clv_err *err) {
  bool found;
  if (clv_json_skip_null(&s->j)) return CLV_OK;
  CLV_TRY(clv_json_read_bool(&s->j, &found, err));
  if (has_step ? found == expected : !found) return CLV_OK;
  return clv_json_fail(&s->j, s->at, err, "%s is %s: %s: " SAVE_AGAIN_ADVICE, s->key,
                       found ? "true" : "false", row->reason);
}

static clv_code compare_lower_case(settings_reader *s, const setting_row *row, clv_err *err) {
  clv_bert_options bert_flags;
  bool has_step = clv_normalizer_find_bert(s->t, &bert_flags);
  return compare_flag(s, has_step, has_step && bert_flags.lowers, row, err);
}

static clv_code compare_cjk(settings_reader *s, const setting_row *row, clv_err *err) {
  clv_bert_options bert_flags;
  bool has_step = clv_normalizer_find_bert(s->t, &bert_flags);
  return compare_flag(s, has_step, has_step && bert_flags.spaces_cjk, row, err);
}

/* Accepts null, which has the same meaning here and in a BertNormalizer: strip accents if and only
 * if text is converted to lower case. */
static clv_code compare_accents(settings_reader *s, const setting_row *row, clv_err *err) {
  clv_bert_options bert_flags;
  bool has_step = clv_normalizer_find_bert(s->t, &bert_flags);
  return compare_flag(s, has_step, has_step && bert_flags.strips_accents, row, err);
}

/* Refuses null for a Unigram model that puts a space before a text, because transformers' Unigram
 * tokenizers, such as XLM-R's, take null for false. All other tokenizers take null for the
 * default. */
static clv_code compare_prefix_space(settings_reader *s, const setting_row *row, clv_err *err) {
  int prefix_space = clv_pre_tokenizer_prefix_space(s->t);
  bool is_null = clv_json_skip_null(&s->j);
  if (is_null && s->t->model == CLV_TOKEN_MODEL_UNIGRAM && prefix_space > 0)
    return clv_json_fail(&s->j, s->at, err, "%s is null: %s: " SAVE_AGAIN_ADVICE, s->key,
                         row->reason);
  if (is_null) return CLV_OK;
  if (prefix_space < 0) return clv_json_skip(&s->j, err);
  return compare_flag(s, true, prefix_space > 0, row, err);
}

/* ---- checking settings without the tokenizer.json -------------------------------------------- */

static clv_code require_false_value(settings_reader *s, const setting_row *row, clv_err *err) {
  bool found;
  if (clv_json_skip_null(&s->j)) return CLV_OK;
  CLV_TRY(clv_json_read_bool(&s->j, &found, err));
  return found ? clv_json_fail(&s->j, s->at, err, "%s is true: %s", s->key, row->reason) : CLV_OK;
}

static clv_code require_right_side(settings_reader *s, const setting_row *row, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes text = {0};
  if (clv_json_skip_null(&s->j)) return CLV_OK;
  CLV_TRY(clv_json_read_text(&s->j, &text, err));
  if (text.len == 5 && memcmp(text.data, "right", 5) == 0) return CLV_OK;
  return clv_json_fail(&s->j, s->at, err, "%s is '%.20s', not right: %s", s->key,
                       text.len ? text.data : "", row->reason);
}

static clv_code skip_setting(settings_reader *s, const setting_row *row, clv_err *err) {
  (void)row;
  return clv_json_skip(&s->j, err);
}

static const setting_row setting_rows[] = {
    {"do_lower_case", compare_lower_case, "the BertNormalizer of tokenizer.json says otherwise"},
    {"strip_accents", compare_accents, "the BertNormalizer of tokenizer.json says otherwise"},
    {"tokenize_chinese_chars", compare_cjk, "the BertNormalizer of tokenizer.json says otherwise"},
    {"add_prefix_space", compare_prefix_space,
     "the ByteLevel or Metaspace of tokenizer.json says otherwise"},
    {"added_tokens_decoder", compare_decoder,
     "a token is missing, or has another number or other flags in tokenizer.json"},
    {"additional_special_tokens extra_special_tokens model_specific_special_tokens", compare_tokens,
     "one is no added token of tokenizer.json"},
    {"*_token", compare_token, "it is no added token of tokenizer.json"},
    {"split_special_tokens", require_false_value, "special tokens in a text are one token"},
    {"truncation_side", require_right_side, "texts are cut at their end"},
    {"fix_mistral_regex", require_false_value, "the pattern is that of tokenizer.json"},
    {"add_bos_token add_eos_token", skip_setting, "the post_processor of tokenizer.json says it"},
    {"padding_side", skip_setting, "rows are filled at their end, and lengths say what counts"},
    {"model_max_length max_length max_len stride truncation_strategy padding pad_to_multiple_of "
     "pad_token_type_id pad_token_label",
     skip_setting, "data.text says how wide rows are, and lengths what counts"},
    {"clean_up_tokenization_spaces spaces_between_special_tokens errors trim_offsets", skip_setting,
     "numbers do not become text"},
    {"chat_template response_template chat_control_tokens use_default_system_prompt", skip_setting,
     "records are texts, not dialogues"},
    {"tokenizer_class tokenizer_file name_or_path special_tokens_map_file full_tokenizer_file "
     "processor_class backend init_inputs is_local local_files_only trust_remote_code "
     "model_input_names from_slow slow_tokenizer_class use_fast device_map transformers_version "
     "tokenizer_type",
     skip_setting, "how a program finds or runs the class"},
    {"do_basic_tokenize never_split sp_model_kwargs legacy vocab_file merges_file", skip_setting,
     "read without a tokenizer.json only"},
};

/* ---- reading the files ----------------------------------------------------------------------- */

static bool has_key(const setting_row *row, const char *key, size_t len) {
  static const char key_suffix[] = "_token";
  size_t n = sizeof key_suffix - 1;
  if (row->keys[0] == '*') return len > n && memcmp(key + len - n, key_suffix, n) == 0;
  for (const char *at = row->keys; at;) {
    size_t key_len = strcspn(at, " ");
    if (key_len == len && memcmp(at, key, len) == 0) return true;
    at = at[key_len] ? at + key_len + 1 : NULL;
  }
  return false;
}

/* Finds the row of a key. A row that names the key takes precedence over the row "*_token",
 * wherever they are in the table. */
static const setting_row *find_setting_row(const char *key, size_t len) {
  const setting_row *found = NULL;
  for (size_t i = 0; i < CLV_COUNT(setting_rows); i++)
    if (has_key(&setting_rows[i], key, len) && (!found || setting_rows[i].keys[0] != '*'))
      found = &setting_rows[i];
  return found;
}

static clv_code read_setting(settings_reader *s, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes key = {0};
  const clv_json_keys ignored_keys = {s->options->ignored_keys, s->options->n_ignored_keys};
  s->at = s->j.at;
  CLV_TRY(clv_json_read_key(&s->j, &key, err));
  s->key = key.len ? key.data : "";
  const setting_row *row = find_setting_row(s->key, key.len);
  if (row) return row->read(s, row, err);
  if (clv_json_keys_have(&ignored_keys, s->key, key.len)) return clv_json_skip(&s->j, err);
  return clv_json_fail(&s->j, s->at, err,
                       "'%.60s' is not known, and may change the tokens: if it does not, list it "
                       "in model.ignore_keys of the session, or take it out",
                       s->key);
}

clv_code clv_tokenizer_check_settings(const clv_tokenizer *t, const char *text, size_t len,
                                      const char *label, const clv_tokenizer_options *options,
                                      clv_err *err) {
  settings_reader s = {.j = {.label = label, .text = text, .len = len}, .t = t, .options = options};
  bool has_more = true;
  CLV_TRY(clv_json_open(&s.j, CLV_JSON_OBJECT, err));
  for (size_t n = 0; has_more; n++) {
    CLV_TRY(clv_json_next(&s.j, CLV_JSON_OBJECT, n, &has_more, err));
    if (has_more) CLV_TRY(read_setting(&s, err));
  }
  return clv_json_end(&s.j, err);
}

/* Checks the file `name` of the folder, if there is one. */
static clv_code check_file(const clv_tokenizer *t, const char *folder, size_t folder_len,
                           const char *name, const clv_tokenizer_options *options, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes path = {0}, text = {0};
  clv_bytes_printf(&path, "%.*s%s", (int)folder_len, folder, name);
  if (path.failed) return clv_fail(err, CLV_EXHAUSTED, "out of memory");
  clv_code code = clv_file_read(path.data, MAX_FILE_BYTES, &text, err);
  if (code == CLV_NOT_FOUND) return CLV_OK;
  if (code != CLV_OK) return code;
  return clv_tokenizer_check_settings(t, text.len ? text.data : "", text.len, path.data, options,
                                      err);
}

clv_code clv_tokenizer_check_folder(const clv_tokenizer *t, const char *path,
                                    const clv_tokenizer_options *options, clv_err *err) {
  static const char tokenizer_file_name[] = "tokenizer.json";
  const char *slash = strrchr(path, '/');
  size_t folder_len = slash ? (size_t)(slash + 1 - path) : 0;
  if (strcmp(path + folder_len, tokenizer_file_name) != 0) return CLV_OK;
  CLV_TRY(check_file(t, path, folder_len, "tokenizer_config.json", options, err));
  return check_file(t, path, folder_len, "special_tokens_map.json", options, err);
}

bool clv_tokenizer_describe_setting(size_t i, clv_tokenizer_setting *ret) {
  if (i >= CLV_COUNT(setting_rows)) return false;
  const setting_row *row = &setting_rows[i];
  const char *outcome = row->read == skip_setting          ? "harmless"
                        : row->read == require_false_value ? "refused unless false"
                        : row->read == require_right_side  ? "refused unless right"
                                                           : "refused where";
  *ret = (clv_tokenizer_setting){row->keys, outcome, row->reason};
  return true;
}
