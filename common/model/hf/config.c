/* SPDX-License-Identifier: Apache-2.0
 *
 * clv_hf_config_parse: reads a config.json by the table of its keys (config_keys.c), and checks the
 * keys against each other.
 */
#include <string.h>

#include "common/model/hf/config_int.h"

enum {
  ENCODERS = 1u << CLV_HF_BERT | 1u << CLV_HF_ROBERTA | 1u << CLV_HF_XLM_ROBERTA |
             1u << CLV_HF_CAMEMBERT | 1u << CLV_HF_LAYOUTLM,
  LAYOUTLM = 1u << CLV_HF_LAYOUTLM,
  DISTILBERT = 1u << CLV_HF_DISTILBERT,
  VIT = 1u << CLV_HF_VIT,
  GPT2 = 1u << CLV_HF_GPT2,
  QWEN2 = 1u << CLV_HF_QWEN2,
  LLAMA = 1u << CLV_HF_LLAMA,
  QWEN3 = 1u << CLV_HF_QWEN3
};

/* Reads the family from model_type, wherever in the file it is. */
static clv_code find_family(hf_config_reader *r, clv_err *err) {
  static const hf_row type_row = {.key = "model_type"};
  bool more = true, found = false;
  CLV_TRY(clv_json_open(&r->j, CLV_JSON_OBJECT, err));
  for (size_t k = 0; more; k++) {
    CLV_AUTO(clv_bytes_done) clv_bytes key = {0};
    CLV_TRY(clv_json_next(&r->j, CLV_JSON_OBJECT, k, &more, err));
    if (!more) break;
    CLV_TRY(clv_json_read_key(&r->j, &key, err));
    bool is_type_key = key.len && clv_hf_row_has_key(&type_row, key.data, key.len);
    r->key = type_row.key;
    CLV_TRY(is_type_key ? clv_hf_read_family(r, &type_row, err) : clv_json_skip(&r->j, err));
    found |= is_type_key;
  }
  CLV_TRY(clv_json_end(&r->j, err));
  if (found) return CLV_OK;
  return clv_fail(err, CLV_INVALID, "%.200s: the key model_type is missing", r->j.label);
}

/* Refuses ignored keys that the table has, because they are not skipped. */
static clv_code check_ignored(const hf_config_reader *r, const hf_table *t, clv_err *err) {
  for (size_t i = 0; r->ignored && i < r->ignored->n; i++) {
    const char *name = r->ignored->names[i];
    if (clv_hf_find_row(t, name, strlen(name)) >= 0)
      return clv_fail(err, CLV_INVALID,
                      "%.200s: model.ignore_keys lists '%.60s', which is known and not ignored: "
                      "take it out of the list",
                      r->j.label, name);
  }
  return CLV_OK;
}

/* Sets the fields of all keys of the family to their defaults. */
static void set_defaults(const hf_table *t, clv_hf_config *c) {
  for (size_t i = 0; i < t->n; i++) {
    const hf_row *at = &t->rows[i];
    void *to = (char *)c + at->offset;
    if (at->primary_key || !(at->families & t->family)) continue;
    if (at->read == clv_hf_read_real || at->read == clv_hf_read_real_or_null)
      *(double *)to = at->default_value;
    else if (at->read == clv_hf_read_bool)
      *(bool *)to = at->default_value != 0;
    else if (at->read == clv_hf_read_activation)
      *(clv_op *)to = (clv_op)at->default_value;
    else if (at->read == clv_hf_read_integer || at->read == clv_hf_read_integer_or_null ||
             at->read == clv_hf_read_padding || at->read == clv_hf_read_labels ||
             at->read == clv_hf_read_window)
      *(int64_t *)to = (int64_t)at->default_value;
  }
}

static bool has_seen_key(const hf_table *t, const bool seen[HF_MAX_ROWS], const char *key) {
  for (size_t i = 0; i < t->n; i++)
    if (seen[i] && (strcmp(t->rows[i].key, key) == 0 ||
                    (t->rows[i].primary_key && strcmp(t->rows[i].primary_key, key) == 0)))
      return true;
  return false;
}

static clv_code check_required(const hf_config_reader *r, const hf_table *t,
                               const bool seen[HF_MAX_ROWS], clv_err *err) {
  for (size_t i = 0; i < t->n; i++)
    if (t->rows[i].is_required && t->rows[i].families & t->family &&
        !has_seen_key(t, seen, t->rows[i].key))
      return clv_fail(err, CLV_INVALID, "%.200s: the key %s is missing, which a %s needs",
                      r->j.label, t->rows[i].key, clv_hf_family_name(r->c->family));
  return CLV_OK;
}

/* ---- checks that concern several keys -------------------------------------------------------- */

static clv_code check_heads(const clv_hf_config *c, const char *label, clv_err *err) {
  int64_t kv = c->n_kv_heads ? c->n_kv_heads : c->n_heads;
  if (!c->head_width && c->hidden_size % c->n_heads)
    return clv_fail(err, CLV_INVALID, "%.200s: %lld heads do not divide a width of %lld", label,
                    (long long)c->n_heads, (long long)c->hidden_size);
  if (c->n_heads % kv)
    return clv_fail(err, CLV_INVALID, "%.200s: %lld heads of keys do not divide %lld of queries",
                    label, (long long)kv, (long long)c->n_heads);
  return CLV_OK;
}

static clv_code check_sizes(const clv_hf_config *c, const char *label, clv_err *err) {
  CLV_TRY(check_heads(c, label, err));
  if (c->family == CLV_HF_VIT && c->image_size % c->patch_size)
    return clv_fail(err, CLV_INVALID, "%.200s: patches of %lld do not divide an image of %lld",
                    label, (long long)c->patch_size, (long long)c->image_size);
  if (c->padding_row >= c->vocabulary)
    return clv_fail(err, CLV_INVALID, "%.200s: pad_token_id is %lld, and vocab_size %lld", label,
                    (long long)c->padding_token, (long long)c->vocabulary);
  if (clv_hf_numbers_from_padding(c->family) && c->max_positions < c->padding_token + 2)
    return clv_fail(err, CLV_INVALID,
                    "%.200s: max_position_embeddings is %lld: it must be at least 2 more than "
                    "pad_token_id, which is %lld",
                    label, (long long)c->max_positions, (long long)c->padding_token);
  return CLV_OK;
}

/* Applies keys that override other keys, wherever they are in the file, as transformers 5 does:
 * num_labels overrides the size of id2label, and rope_scaling and rope_parameters override
 * rope_theta. */
static clv_code apply_overriding_keys(hf_config_reader *r, clv_err *err) {
  if (r->num_labels) r->c->labels = r->num_labels;
  return clv_hf_apply_rope(r, err);
}

/* Sets the fields that follow from the family or from other keys. */
static void derive_fields(clv_hf_config *c) {
  unsigned is = 1u << c->family;
  if (!c->inner_size) c->inner_size = 4 * c->hidden_size;
  if (!c->labels) c->labels = 2;
  c->padding_row = is & GPT2 ? -1 : c->padding_token;
  if (c->padding_token == HF_COUNTS_FROM_END) c->padding_row = is & GPT2 ? -1 : c->vocabulary - 1;
  if (is & (ENCODERS | GPT2 | QWEN2)) c->qkv_bias = true;
  c->out_bias = is & (ENCODERS | VIT | GPT2) || (is & (LLAMA | QWEN3) && c->qkv_bias);
  if (is & (ENCODERS | VIT | GPT2)) c->inner_bias = true;
  if (is & (ENCODERS | DISTILBERT | VIT)) c->embedding_dropout = c->hidden_dropout;
  if (is & LAYOUTLM || (c->head_dropout < 0 && is & ENCODERS)) c->head_dropout = c->hidden_dropout;
  if (c->head_dropout < 0) c->head_dropout = 0.1;
  if (is & DISTILBERT) c->eps = 1e-12;
}

clv_code clv_hf_config_parse(const char *label, const char *text, size_t len,
                             const clv_json_keys *ignored, clv_hf_config *ret, clv_err *err) {
  clv_hf_config c = {.padding_token = -1};
  hf_config_reader r = {.j = {.label = label, .text = text, .len = len},
                        .c = &c,
                        .ignored = ignored,
                        .target_struct = &c};
  bool seen[HF_MAX_ROWS] = {0};
  CLV_TRY(find_family(&r, err));
  hf_table keys = clv_hf_key_table(1u << c.family);
  CLV_TRY(check_ignored(&r, &keys, err));
  set_defaults(&keys, &c);
  r.j.at = 0;
  CLV_TRY(clv_hf_read_object(&r, &keys, seen, err));
  CLV_TRY(check_required(&r, &keys, seen, err));
  CLV_TRY(apply_overriding_keys(&r, err));
  derive_fields(&c);
  CLV_TRY(check_sizes(&c, label, err));
  *ret = c;
  return CLV_OK;
}

clv_code clv_hf_config_read(const char *folder, const clv_json_keys *ignored, clv_hf_config *ret,
                            clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes text = {0}, path = {0};
  clv_hf_config c;
  CLV_TRY(clv_hf_config_read_text(folder, &path, &text, err));
  CLV_TRY(clv_hf_config_parse(path.data, text.data ? text.data : "", text.len, ignored, &c, err));
  CLV_TRY(clv_hf_check_other_files(folder, ignored, err));
  *ret = c;
  return CLV_OK;
}
