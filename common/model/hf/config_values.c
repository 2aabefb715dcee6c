/* SPDX-License-Identifier: Apache-2.0
 *
 * Readers of one value of a config.json. Each is the `read` of rows of a table (config_int.h).
 */
#include <stdio.h>
#include <string.h>

#include "common/model/hf/config_int.h"

/* ---- readers of values ----------------------------------------------------------------------- */

static void *address_of_field(const hf_config_reader *r, const hf_row *at) {
  return (char *)r->target_struct + at->offset;
}

/* Skips white space and returns the offset of the next value in the text. */
size_t clv_hf_skip_to_value(hf_config_reader *r) {
  clv_json_kind kind;
  clv_err err;
  clv_code code = clv_json_peek(&r->j, &kind, &err); /* only to step over white space */
  (void)code;
  return r->j.at;
}

clv_code clv_hf_expect_kind(hf_config_reader *r, clv_json_kind kind, clv_err *err) {
  static const char *const nouns[] = {
      [CLV_JSON_NULL] = "null",        [CLV_JSON_BOOL] = "true or false",
      [CLV_JSON_NUMERAL] = "a number", [CLV_JSON_TEXT] = "a text",
      [CLV_JSON_LIST] = "a list",      [CLV_JSON_OBJECT] = "an object"};
  size_t from = clv_hf_skip_to_value(r);
  clv_json_kind found;
  CLV_TRY(clv_json_peek(&r->j, &found, err));
  return found == kind ? CLV_OK
                       : clv_json_fail(&r->j, from, err, "%s is %s, and %s is expected here",
                                       r->key, nouns[found], nouns[kind]);
}

clv_code clv_hf_fail_unknown(const hf_config_reader *r, size_t from, const clv_bytes *value,
                             const hf_refusal *refusals, size_t n, const char *known,
                             clv_err *err) {
  const char *text = value->len ? value->data : "";
  for (size_t i = 0; i < n; i++)
    if (strcmp(text, refusals[i].value) == 0)
      return clv_json_fail(&r->j, from, err, "%s '%s' is refused: %s", r->key, text,
                           refusals[i].reason);
  return clv_json_fail(&r->j, from, err, "%s '%.40s' is not known; there are %s", r->key, text,
                       known);
}

clv_code clv_hf_read_integer(hf_config_reader *r, const hf_row *at, clv_err *err) {
  size_t from = clv_hf_skip_to_value(r);
  clv_err why;
  if (clv_json_read_integer(&r->j, (int64_t)at->low, (int64_t)at->high, address_of_field(r, at),
                            &why) == CLV_OK)
    return CLV_OK;
  return clv_json_fail(&r->j, from, err, "%s is a whole number from %.0f to %.0f", r->key, at->low,
                       at->high);
}

/* Reads a whole number; null keeps the default. */
clv_code clv_hf_read_integer_or_null(hf_config_reader *r, const hf_row *at, clv_err *err) {
  return clv_json_skip_null(&r->j) ? CLV_OK : clv_hf_read_integer(r, at, err);
}

clv_code clv_hf_read_window(hf_config_reader *r, const hf_row *at, clv_err *err) {
  if (!clv_json_skip_null(&r->j)) return clv_hf_read_integer(r, at, err);
  *(int64_t *)address_of_field(r, at) = 0;
  return CLV_OK;
}

/* Reads pad_token_id. A negative number is not a token, but names a row of the token table, counted
 * from the table's end. */
clv_code clv_hf_read_padding(hf_config_reader *r, const hf_row *at, clv_err *err) {
  int64_t *to = address_of_field(r, at);
  if (clv_json_skip_null(&r->j)) {
    *to = -1;
    return CLV_OK;
  }
  CLV_TRY(clv_hf_read_integer(r, at, err));
  if (*to < 0) *to = HF_COUNTS_FROM_END;
  return CLV_OK;
}

clv_code clv_hf_read_num_labels(hf_config_reader *r, const hf_row *at, clv_err *err) {
  hf_row into = *at;
  void *before = r->target_struct;
  into.offset = offsetof(hf_config_reader, num_labels);
  if (clv_json_skip_null(&r->j)) return CLV_OK;
  r->target_struct = r;
  clv_code code = clv_hf_read_integer(r, &into, err);
  r->target_struct = before;
  return code;
}

clv_code clv_hf_read_real(hf_config_reader *r, const hf_row *at, clv_err *err) {
  size_t from = clv_hf_skip_to_value(r);
  clv_err why;
  double *to = address_of_field(r, at);
  if (clv_json_read_real(&r->j, to, &why) == CLV_OK && *to >= at->low && *to <= at->high)
    return CLV_OK;
  return clv_json_fail(&r->j, from, err, "%s is a number from %g to %g", r->key, at->low, at->high);
}

clv_code clv_hf_read_real_or_null(hf_config_reader *r, const hf_row *at, clv_err *err) {
  return clv_json_skip_null(&r->j) ? CLV_OK : clv_hf_read_real(r, at, err);
}

clv_code clv_hf_read_bool(hf_config_reader *r, const hf_row *at, clv_err *err) {
  CLV_TRY(clv_hf_expect_kind(r, CLV_JSON_BOOL, err));
  return clv_json_read_bool(&r->j, address_of_field(r, at), err);
}

/* Reads null, a number for all channels, or a list of a number for each. */
clv_code clv_hf_read_channels(hf_config_reader *r, const hf_row *at, clv_err *err) {
  clv_hf_channels *to = (void *)((char *)r->target_struct + at->offset);
  clv_json_kind kind;
  size_t from = clv_hf_skip_to_value(r);
  bool more = true;
  if (clv_json_skip_null(&r->j)) return CLV_OK;
  CLV_TRY(clv_json_peek(&r->j, &kind, err));
  if (kind == CLV_JSON_NUMERAL) {
    to->n = 1;
    return clv_json_read_real(&r->j, &to->at[0], err);
  }
  CLV_TRY(clv_hf_expect_kind(r, CLV_JSON_LIST, err));
  CLV_TRY(clv_json_open(&r->j, CLV_JSON_LIST, err));
  for (to->n = 0;; to->n++) {
    CLV_TRY(clv_json_next(&r->j, CLV_JSON_LIST, to->n, &more, err));
    if (!more) return CLV_OK;
    if (to->n == CLV_COUNT(to->at))
      return clv_json_fail(&r->j, from, err, "%s has more than %zu channels", r->key, to->n);
    CLV_TRY(clv_json_read_real(&r->j, &to->at[to->n], err));
  }
}

clv_code clv_hf_read_bool_or_null(hf_config_reader *r, const hf_row *at, clv_err *err) {
  return clv_json_skip_null(&r->j) ? CLV_OK : clv_hf_read_bool(r, at, err);
}

static const struct {
  const char *name;
  clv_op op;
} activations[] = {{"gelu", CLV_OP_GELU},
                   {"gelu_new", CLV_OP_GELU_TANH},
                   {"gelu_pytorch_tanh", CLV_OP_GELU_TANH},
                   {"gelu_fast", CLV_OP_GELU_TANH},
                   {"relu", CLV_OP_RELU},
                   {"silu", CLV_OP_SILU},
                   {"swish", CLV_OP_SILU},
                   {"tanh", CLV_OP_TANH},
                   {"sigmoid", CLV_OP_SIGMOID}};

clv_code clv_hf_read_activation(hf_config_reader *r, const hf_row *at, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes text = {0};
  char known[160] = "";
  size_t from = clv_hf_skip_to_value(r), used = 0;
  CLV_TRY(clv_hf_expect_kind(r, CLV_JSON_TEXT, err));
  CLV_TRY(clv_json_read_text(&r->j, &text, err));
  for (size_t i = 0; i < CLV_COUNT(activations); i++) {
    const char *name = activations[i].name;
    if (text.len == strlen(name) && memcmp(text.data, name, text.len) == 0) {
      *(clv_op *)address_of_field(r, at) = activations[i].op;
      return CLV_OK;
    }
    used += (size_t)snprintf(known + used, sizeof known - used, "%s%s", used ? ", " : "", name);
  }
  return clv_hf_fail_unknown(r, from, &text, NULL, 0, known, err);
}

/* Reads id2label: stores its number of entries, which is the number of classes. */
clv_code clv_hf_read_labels(hf_config_reader *r, const hf_row *at, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes key = {0};
  size_t from = clv_hf_skip_to_value(r);
  int64_t n = 0;
  if (clv_json_skip_null(&r->j)) return CLV_OK;
  CLV_TRY(clv_hf_expect_kind(r, CLV_JSON_OBJECT, err));
  CLV_TRY(clv_json_open(&r->j, CLV_JSON_OBJECT, err));
  for (bool more = true; more; n += more) {
    CLV_TRY(clv_json_next(&r->j, CLV_JSON_OBJECT, (size_t)n, &more, err));
    if (!more) break;
    CLV_TRY(clv_json_read_key(&r->j, &key, err));
    CLV_TRY(clv_json_skip(&r->j, err));
  }
  if (n < 1 || n > HF_MAX_LABELS)
    return clv_json_fail(&r->j, from, err, "%s names %lld classes: 1 to %d are possible", r->key,
                         (long long)n, HF_MAX_LABELS);
  *(int64_t *)address_of_field(r, at) = n;
  return CLV_OK;
}

#define GEMMA                                                                                    \
  "its norms multiply by 1 + weight, and its embeddings by sqrt(hidden_size). "                  \
  "Save it as a llama: add 1 to the weights of norms, multiply embed_tokens by that root, keep " \
  "the head's weight as it is (tie_word_embeddings: false)"
#define TWO_NETWORKS "it has a second network: take a family that is one network"
#define EXPERTS "its layers choose among experts: take a model of the family without them"
#define DISTANCES "its attention has vectors of distances: take bert, roberta or distilbert"

static const hf_refusal refused_families[] = {
    {"gemma", GEMMA},
    {"gemma2", "its scores are capped, and layers have windows: take llama, mistral or qwen3"},
    {"gemma3", "it reads images as well: take llama, mistral or qwen3"},
    {"gemma3_text", "its layers have windows and two kinds of angles: take llama or qwen3"},
    {"albert", "its layers share one set of weights: take bert or distilbert"},
    {"electra", "its embeddings have a width of their own: take bert or roberta"},
    {"deberta", DISTANCES},
    {"deberta-v2", DISTANCES},
    {"mpnet", DISTANCES},
    {"layoutlmv2", "it reads images as well: take layoutlm"},
    {"layoutlmv3", "it reads images as well: take layoutlm"},
    {"t5", TWO_NETWORKS},
    {"bart", TWO_NETWORKS},
    {"mixtral", EXPERTS},
    {"qwen2_moe", EXPERTS},
    {"qwen3_moe", EXPERTS},
    {"phi", "it turns a part of each head: take phi3"},
    {"gpt_neox", "it turns a part of each head, and adds both halves of a block: take llama"},
};

clv_code clv_hf_read_family(hf_config_reader *r, const hf_row *at, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes text = {0};
  char known[160] = "";
  size_t from = clv_hf_skip_to_value(r), used = 0;
  (void)at;
  CLV_TRY(clv_hf_expect_kind(r, CLV_JSON_TEXT, err));
  CLV_TRY(clv_json_read_text(&r->j, &text, err));
  for (int f = 0; f < CLV_HF_FAMILIES; f++) {
    const char *name = clv_hf_family_name((clv_hf_family)f);
    if (text.len == strlen(name) && memcmp(text.data, name, text.len) == 0) {
      r->c->family = (clv_hf_family)f;
      return CLV_OK;
    }
    used += (size_t)snprintf(known + used, sizeof known - used, "%s%s", used ? ", " : "", name);
  }
  return clv_hf_fail_unknown(r, from, &text, refused_families, CLV_COUNT(refused_families), known,
                             err);
}

/* ---- keys that are refused ------------------------------------------------------------------- */

static clv_code fail_refused(hf_config_reader *r, size_t from, const hf_row *at, const char *found,
                             clv_err *err) {
  return clv_json_fail(&r->j, from, err, "%s is %s: %s", r->key, found, at->reason);
}

static clv_code require_bool(hf_config_reader *r, const hf_row *at, bool wanted, clv_err *err) {
  size_t from = clv_hf_skip_to_value(r);
  bool found;
  CLV_TRY(clv_hf_expect_kind(r, CLV_JSON_BOOL, err));
  CLV_TRY(clv_json_read_bool(&r->j, &found, err));
  return found == wanted ? CLV_OK : fail_refused(r, from, at, found ? "true" : "false", err);
}
clv_code clv_hf_require_false(hf_config_reader *r, const hf_row *at, clv_err *err) {
  return require_bool(r, at, false, err);
}
clv_code clv_hf_require_true(hf_config_reader *r, const hf_row *at, clv_err *err) {
  return require_bool(r, at, true, err);
}

clv_code clv_hf_require_null(hf_config_reader *r, const hf_row *at, clv_err *err) {
  size_t from = clv_hf_skip_to_value(r);
  return clv_json_skip_null(&r->j) ? CLV_OK : fail_refused(r, from, at, "given", err);
}

/* Accepts only null and {}. */
clv_code clv_hf_require_empty(hf_config_reader *r, const hf_row *at, clv_err *err) {
  size_t from = clv_hf_skip_to_value(r);
  bool more;
  if (clv_json_skip_null(&r->j)) return CLV_OK;
  CLV_TRY(clv_hf_expect_kind(r, CLV_JSON_OBJECT, err));
  CLV_TRY(clv_json_open(&r->j, CLV_JSON_OBJECT, err));
  CLV_TRY(clv_json_next(&r->j, CLV_JSON_OBJECT, 0, &more, err));
  return more ? fail_refused(r, from, at, "not empty", err) : CLV_OK;
}

/* Accepts only null and the row's word. */
clv_code clv_hf_require_word(hf_config_reader *r, const hf_row *at, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes text = {0};
  size_t from = clv_hf_skip_to_value(r), len = strlen(at->word);
  if (clv_json_skip_null(&r->j)) return CLV_OK;
  CLV_TRY(clv_hf_expect_kind(r, CLV_JSON_TEXT, err));
  CLV_TRY(clv_json_read_text(&r->j, &text, err));
  if (text.len == len && memcmp(text.data, at->word, len) == 0) return CLV_OK;
  return clv_json_fail(&r->j, from, err, "%s '%.40s': only %s is supported: %s", r->key,
                       text.len ? text.data : "", at->word, at->reason);
}

/* Accepts only null and a list of texts that clv_hf_require_word accepts. */
clv_code clv_hf_require_words(hf_config_reader *r, const hf_row *at, clv_err *err) {
  bool more = true;
  if (clv_json_skip_null(&r->j)) return CLV_OK;
  CLV_TRY(clv_hf_expect_kind(r, CLV_JSON_LIST, err));
  CLV_TRY(clv_json_open(&r->j, CLV_JSON_LIST, err));
  for (size_t n = 0; more; n++) {
    CLV_TRY(clv_json_next(&r->j, CLV_JSON_LIST, n, &more, err));
    if (more) CLV_TRY(clv_hf_require_word(r, at, err));
  }
  return CLV_OK;
}

/* Accepts only null and the number 1. */
clv_code clv_hf_require_one(hf_config_reader *r, const hf_row *at, clv_err *err) {
  size_t from = clv_hf_skip_to_value(r);
  double found = 1;
  if (clv_json_skip_null(&r->j)) return CLV_OK;
  CLV_TRY(clv_hf_expect_kind(r, CLV_JSON_NUMERAL, err));
  CLV_TRY(clv_json_read_real(&r->j, &found, err));
  return found == 1 ? CLV_OK : fail_refused(r, from, at, "not 1", err);
}

clv_code clv_hf_skip(hf_config_reader *r, const hf_row *at, clv_err *err) {
  (void)at;
  return clv_json_skip(&r->j, err);
}

clv_code clv_hf_read_elsewhere(hf_config_reader *r, const hf_row *at, clv_err *err) {
  return clv_hf_skip(r, at, err);
}
