/* SPDX-License-Identifier: Apache-2.0
 *
 * clv_hf_config_parse: reading of a config.json by a table. A row of the table is a key: the
 * families that have it, the field that receives its value, the values allowed, and the default,
 * which is that of the family's class in transformers. Keys that change a formula in a way that the
 * graph does not support have rows too, which refuse such values. A second name of a key has its
 * own row, with `primary_key` set. Other keys are skipped, as transformers skips them;
 * deploy/CHECKPOINTS.md lists those that transformers writes, and why they are harmless.
 */
#include <stdio.h>
#include <string.h>

#include "common/model/hf/hf_int.h"
#include "common/base/json/json.h"

enum { MAX_LABELS = 1 << 20, MAX_ROWS = 96, COUNTS_FROM_END = -2 };

enum {
  BERT = 1u << CLV_HF_BERT,
  ROBERTA = 1u << CLV_HF_ROBERTA,
  LAYOUTLM = 1u << CLV_HF_LAYOUTLM,
  VIT = 1u << CLV_HF_VIT,
  GPT2 = 1u << CLV_HF_GPT2,
  LLAMA = 1u << CLV_HF_LLAMA,
  QWEN2 = 1u << CLV_HF_QWEN2,
  ENCODERS = BERT | ROBERTA | LAYOUTLM,
  DECODERS = LLAMA | QWEN2,
  ALL = ENCODERS | VIT | GPT2 | DECODERS
};

/* Contents of the key rope_scaling or rope_parameters; theta 0: not given. */
typedef struct hf_rope {
  bool is_given;
  double theta;
} hf_rope;

typedef struct row row;
typedef struct hf_text {
  clv_json j;
  clv_hf_config *c;
  const char *key;     /* key whose value is being read */
  void *target_struct; /* struct that the offsets of the rows refer to */
  int64_t num_labels;  /* value of num_labels; 0: not given */
  hf_rope rope_scaling, rope_parameters;
} hf_text;

struct row {
  const char *key;
  unsigned families;
  clv_code (*read)(hf_text *r, const row *at, clv_err *err);
  /* offset of the field in *hf_text.target_struct, which is a clv_hf_config for the top-level
   * keys */
  size_t offset;
  double low, high, default_value;
  bool is_required; /* the key must be given, because it has no default */
  /* why another value is refused, for the message; NULL: values are not refused */
  const char *refusal_reason;
  /* primary name of the key, if `key` is its second name; NULL: `key` is the primary name */
  const char *primary_key;
};

/* ---- values ---------------------------------------------------------------------------------- */

static void *address_of_field(const hf_text *r, const row *at) {
  return (char *)r->target_struct + at->offset;
}

/* Skips white space and returns the offset of the next value in the text. */
static size_t skip_to_value(hf_text *r) {
  clv_json_kind kind;
  clv_err err;
  clv_code code = clv_json_peek(&r->j, &kind, &err); /* only to step over white space */
  (void)code;
  return r->j.at;
}

static clv_code read_whole(hf_text *r, const row *at, clv_err *err) {
  size_t from = skip_to_value(r);
  clv_err why;
  if (clv_json_read_integer(&r->j, (int64_t)at->low, (int64_t)at->high, address_of_field(r, at),
                            &why) == CLV_OK)
    return CLV_OK;
  return clv_json_fail(&r->j, from, err, "%s is a whole number from %.0f to %.0f", r->key, at->low,
                       at->high);
}

/* Reads a whole number; null keeps the default. */
static clv_code read_whole_or_null(hf_text *r, const row *at, clv_err *err) {
  return clv_json_skip_null(&r->j) ? CLV_OK : read_whole(r, at, err);
}

/* Reads pad_token_id. A negative number is not a token, but names a row of the token table, counted
 * from the table's end. */
static clv_code read_padding(hf_text *r, const row *at, clv_err *err) {
  int64_t *to = address_of_field(r, at);
  if (clv_json_skip_null(&r->j)) {
    *to = -1;
    return CLV_OK;
  }
  CLV_TRY(read_whole(r, at, err));
  if (*to < 0) *to = COUNTS_FROM_END;
  return CLV_OK;
}

static clv_code read_num_labels(hf_text *r, const row *at, clv_err *err) {
  row into = *at;
  void *before = r->target_struct;
  into.offset = offsetof(hf_text, num_labels);
  if (clv_json_skip_null(&r->j)) return CLV_OK;
  r->target_struct = r;
  clv_code code = read_whole(r, &into, err);
  r->target_struct = before;
  return code;
}

static clv_code read_real(hf_text *r, const row *at, clv_err *err) {
  size_t from = skip_to_value(r);
  clv_err why;
  double *to = address_of_field(r, at);
  if (clv_json_read_real(&r->j, to, &why) == CLV_OK && *to >= at->low && *to <= at->high)
    return CLV_OK;
  return clv_json_fail(&r->j, from, err, "%s is a number from %g to %g", r->key, at->low, at->high);
}

static clv_code read_real_or_null(hf_text *r, const row *at, clv_err *err) {
  return clv_json_skip_null(&r->j) ? CLV_OK : read_real(r, at, err);
}

static clv_code read_bool(hf_text *r, const row *at, clv_err *err) {
  return clv_json_read_bool(&r->j, address_of_field(r, at), err);
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

static clv_code read_activation(hf_text *r, const row *at, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes text = {0};
  char known[160] = "";
  size_t from = skip_to_value(r), used = 0;
  CLV_TRY(clv_json_read_text(&r->j, &text, err));
  for (size_t i = 0; i < CLV_COUNT(activations); i++) {
    const char *name = activations[i].name;
    if (text.len == strlen(name) && memcmp(text.data, name, text.len) == 0) {
      *(clv_op *)address_of_field(r, at) = activations[i].op;
      return CLV_OK;
    }
    used += (size_t)snprintf(known + used, sizeof known - used, "%s%s", used ? ", " : "", name);
  }
  return clv_json_fail(&r->j, from, err, "%s '%.40s' is not known; there are %s", r->key,
                       text.len ? text.data : "", known);
}

/* Reads id2label: stores its number of entries, which is the number of classes. */
static clv_code read_labels(hf_text *r, const row *at, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes key = {0};
  size_t from = skip_to_value(r);
  int64_t n = 0;
  if (clv_json_skip_null(&r->j)) return CLV_OK;
  CLV_TRY(clv_json_open(&r->j, CLV_JSON_OBJECT, err));
  for (bool more = true; more; n += more) {
    CLV_TRY(clv_json_next(&r->j, CLV_JSON_OBJECT, (size_t)n, &more, err));
    if (!more) break;
    CLV_TRY(clv_json_read_key(&r->j, &key, err));
    CLV_TRY(clv_json_skip(&r->j, err));
  }
  if (n < 1 || n > MAX_LABELS)
    return clv_json_fail(&r->j, from, err, "%s names %lld classes: 1 to %d are possible", r->key,
                         (long long)n, MAX_LABELS);
  *(int64_t *)address_of_field(r, at) = n;
  return CLV_OK;
}

/* ---- keys that are refused ------------------------------------------------------------------- */

static clv_code fail_refused(hf_text *r, size_t from, const row *at, const char *found,
                             clv_err *err) {
  return clv_json_fail(&r->j, from, err, "%s is %s: %s", r->key, found, at->refusal_reason);
}

static clv_code require_bool(hf_text *r, const row *at, bool wanted, clv_err *err) {
  size_t from = skip_to_value(r);
  bool found;
  CLV_TRY(clv_json_read_bool(&r->j, &found, err));
  return found == wanted ? CLV_OK : fail_refused(r, from, at, found ? "true" : "false", err);
}
static clv_code require_false(hf_text *r, const row *at, clv_err *err) {
  return require_bool(r, at, false, err);
}
static clv_code require_true(hf_text *r, const row *at, clv_err *err) {
  return require_bool(r, at, true, err);
}

static clv_code require_null(hf_text *r, const row *at, clv_err *err) {
  size_t from = skip_to_value(r);
  return clv_json_skip_null(&r->j) ? CLV_OK : fail_refused(r, from, at, "given", err);
}

/* Accepts only null and {}. */
static clv_code require_empty(hf_text *r, const row *at, clv_err *err) {
  size_t from = skip_to_value(r);
  bool more;
  if (clv_json_skip_null(&r->j)) return CLV_OK;
  CLV_TRY(clv_json_open(&r->j, CLV_JSON_OBJECT, err));
  CLV_TRY(clv_json_next(&r->j, CLV_JSON_OBJECT, 0, &more, err));
  return more ? fail_refused(r, from, at, "not empty", err) : CLV_OK;
}

/* Accepts only null and one text: the first word of the row's refusal_reason. */
static clv_code require_word(hf_text *r, const row *at, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes text = {0};
  size_t from = skip_to_value(r), len = strcspn(at->refusal_reason, " ");
  if (clv_json_skip_null(&r->j)) return CLV_OK;
  CLV_TRY(clv_json_read_text(&r->j, &text, err));
  if (text.len == len && memcmp(text.data, at->refusal_reason, len) == 0) return CLV_OK;
  return clv_json_fail(&r->j, from, err, "%s '%.40s': only %s", r->key, text.len ? text.data : "",
                       at->refusal_reason);
}

/* Accepts only null and a list of texts that require_word accepts. */
static clv_code require_words(hf_text *r, const row *at, clv_err *err) {
  bool more = true;
  if (clv_json_skip_null(&r->j)) return CLV_OK;
  CLV_TRY(clv_json_open(&r->j, CLV_JSON_LIST, err));
  for (size_t n = 0; more; n++) {
    CLV_TRY(clv_json_next(&r->j, CLV_JSON_LIST, n, &more, err));
    if (more) CLV_TRY(require_word(r, at, err));
  }
  return CLV_OK;
}

/* Accepts only null and the number 1. */
static clv_code require_number_one(hf_text *r, const row *at, clv_err *err) {
  size_t from = skip_to_value(r);
  double found = 1;
  if (!clv_json_skip_null(&r->j)) CLV_TRY(clv_json_read_real(&r->j, &found, err));
  return found == 1 ? CLV_OK : fail_refused(r, from, at, "not 1", err);
}

static clv_code read_rope(hf_text *r, const row *at, clv_err *err);

/* ---- the table ------------------------------------------------------------------------------- */

#define AT(member) offsetof(clv_hf_config, member)
#define WHOLE(KEY, FAMILIES, MEMBER, HIGH)                                                \
  {                                                                                       \
    .key = KEY, .families = FAMILIES, .read = read_whole, .offset = AT(MEMBER), .low = 1, \
    .high = HIGH, .is_required = true                                                     \
  }
/* Row for the second name that transformers accepts for a key of GPT-2. */
#define SECOND_NAME(KEY, NAME, MEMBER, HIGH)                                          \
  {                                                                                   \
    .key = KEY, .families = GPT2, .read = read_whole, .offset = AT(MEMBER), .low = 1, \
    .high = HIGH, .primary_key = NAME                                                 \
  }
#define SHARE(KEY, FAMILIES, MEMBER, FALLBACK)                                                \
  {                                                                                           \
    .key = KEY, .families = FAMILIES, .read = read_real, .offset = AT(MEMBER), .high = 0.999, \
    .default_value = FALLBACK                                                                 \
  }
#define TRUTH(KEY, FAMILIES, MEMBER, FALLBACK)                                            \
  {                                                                                       \
    .key = KEY, .families = FAMILIES, .read = read_bool, .offset = AT(MEMBER), .high = 1, \
    .default_value = FALLBACK                                                             \
  }

enum { MOST_WIDTH = 1 << 16, MOST_INNER = 1 << 20, MOST_ROWS = 1 << 24, MOST_LAYERS = 240 };

/* clang-format off */
static const row rows[] = {
    WHOLE("vocab_size", ALL & ~VIT, vocabulary, MOST_ROWS),
    WHOLE("hidden_size", ALL & ~GPT2, hidden_size, MOST_WIDTH),
    WHOLE("n_embd", GPT2, hidden_size, MOST_WIDTH),
    WHOLE("num_hidden_layers", ALL & ~GPT2, n_layers, MOST_LAYERS),
    WHOLE("n_layer", GPT2, n_layers, MOST_LAYERS),
    WHOLE("num_attention_heads", ALL & ~GPT2, n_heads, 4096),
    WHOLE("n_head", GPT2, n_heads, 4096),
    WHOLE("intermediate_size", ALL & ~GPT2, inner_size, MOST_INNER),
    {.key = "n_inner", .families = GPT2, .read = read_whole_or_null, .offset = AT(inner_size),
     .low = 1, .high = MOST_INNER},
    WHOLE("max_position_embeddings", ENCODERS, max_positions, MOST_ROWS),
    WHOLE("n_positions", GPT2, max_positions, MOST_ROWS),
    WHOLE("max_2d_position_embeddings", LAYOUTLM, max_box_positions, MOST_ROWS),
    WHOLE("type_vocab_size", ENCODERS, n_token_types, MOST_ROWS),
    WHOLE("image_size", VIT, image_size, 1 << 14),
    WHOLE("patch_size", VIT, patch_size, 1 << 14),
    WHOLE("num_channels", VIT, channels, 1 << 10),
    {.key = "num_key_value_heads", .families = QWEN2, .read = read_whole_or_null,
     .offset = AT(n_kv_heads), .low = 1, .high = 4096, .is_required = true},
    {.key = "num_key_value_heads", .families = LLAMA, .read = read_whole_or_null,
     .offset = AT(n_kv_heads), .low = 1, .high = 4096},
    SECOND_NAME("hidden_size", "n_embd", hidden_size, MOST_WIDTH),
    SECOND_NAME("num_hidden_layers", "n_layer", n_layers, MOST_LAYERS),
    SECOND_NAME("num_attention_heads", "n_head", n_heads, 4096),
    SECOND_NAME("max_position_embeddings", "n_positions", max_positions, MOST_ROWS),
    {.key = "head_dim", .families = DECODERS, .read = read_whole_or_null,
     .offset = AT(head_width), .low = 1, .high = 4096},
    {.key = "pad_token_id", .families = GPT2 | DECODERS, .read = read_padding,
     .offset = AT(padding_token), .low = -1, .high = MOST_ROWS, .default_value = -1},
    {.key = "pad_token_id", .families = BERT | LAYOUTLM, .read = read_padding,
     .offset = AT(padding_token), .low = -1, .high = MOST_ROWS, .default_value = 0},
    {.key = "pad_token_id", .families = ROBERTA, .read = read_padding, .offset = AT(padding_token),
     .low = 0, .high = MOST_ROWS, .default_value = 1},
    {.key = "num_labels", .families = ALL, .read = read_num_labels, .low = 1, .high = MAX_LABELS},
    {.key = "id2label", .families = ALL, .read = read_labels, .offset = AT(labels),
     .default_value = 2},

    SHARE("hidden_dropout_prob", ENCODERS | VIT, hidden_dropout, 0.1),
    SHARE("resid_pdrop", GPT2, hidden_dropout, 0.1),
    SHARE("embd_pdrop", GPT2, embedding_dropout, 0.1),
    SHARE("attention_probs_dropout_prob", ENCODERS | VIT, attention_dropout, 0.1),
    SHARE("attn_pdrop", GPT2, attention_dropout, 0.1),
    SHARE("attention_dropout", DECODERS, attention_dropout, 0),
    {.key = "classifier_dropout", .families = BERT | ROBERTA | GPT2 | DECODERS,
     .read = read_real_or_null, .offset = AT(head_dropout), .high = 0.999, .default_value = -1},
    {.key = "layer_norm_eps", .families = ENCODERS | VIT, .read = read_real, .offset = AT(eps),
     .low = 1e-30, .high = 1, .default_value = 1e-12},
    {.key = "layer_norm_epsilon", .families = GPT2, .read = read_real, .offset = AT(eps),
     .low = 1e-30, .high = 1, .default_value = 1e-5},
    {.key = "rms_norm_eps", .families = DECODERS, .read = read_real, .offset = AT(eps),
     .low = 1e-30, .high = 1, .default_value = 1e-6},
    {.key = "initializer_range", .families = ALL, .read = read_real, .offset = AT(init_deviation),
     .high = 10, .default_value = 0.02},
    {.key = "hidden_act", .families = ENCODERS | VIT, .read = read_activation,
     .offset = AT(activation), .default_value = CLV_OP_GELU},
    {.key = "activation_function", .families = GPT2, .read = read_activation,
     .offset = AT(activation), .default_value = CLV_OP_GELU_TANH},
    {.key = "hidden_act", .families = DECODERS, .read = read_activation,
     .offset = AT(activation), .default_value = CLV_OP_SILU},
    TRUTH("tie_word_embeddings", ENCODERS | GPT2, is_head_tied, true),
    TRUTH("tie_word_embeddings", DECODERS, is_head_tied, false),
    TRUTH("qkv_bias", VIT, qkv_bias, true),
    TRUTH("attention_bias", LLAMA, qkv_bias, false),
    TRUTH("mlp_bias", LLAMA, inner_bias, false),

    {.key = "rope_theta", .families = DECODERS, .read = read_real, .offset = AT(rope_base), .low = 1,
     .high = 1e12, .default_value = 10000},
    {.key = "rope_parameters", .families = DECODERS, .read = read_rope,
     .offset = offsetof(hf_text, rope_parameters)},
    {.key = "rope_scaling", .families = DECODERS, .read = read_rope,
     .offset = offsetof(hf_text, rope_scaling)},
    {.key = "partial_rotary_factor", .families = DECODERS, .read = require_number_one,
     .refusal_reason = "all of a head is turned"},

    {.key = "position_embedding_type", .families = ENCODERS, .read = require_word,
     .refusal_reason = "absolute positions can be had"},
    {.key = "layer_types", .families = DECODERS, .read = require_words,
     .refusal_reason = "full_attention can be had"},
    {.key = "per_layer_config", .families = ALL, .read = require_empty,
     .refusal_reason = "all layers have the same sizes"},
    {.key = "is_encoder_decoder", .families = ALL, .read = require_false,
     .refusal_reason = "there is no second network"},
    {.key = "use_sliding_window", .families = QWEN2, .read = require_false,
     .refusal_reason = "attention sees all places before"},
    {.key = "is_decoder", .families = ENCODERS, .read = require_false,
     .refusal_reason = "an encoder sees places on both sides"},
    {.key = "add_cross_attention", .families = BERT | ROBERTA | GPT2, .read = require_false,
     .refusal_reason = "there is no second network to attend to"},
    {.key = "scale_attn_weights", .families = GPT2, .read = require_true,
     .refusal_reason = "scores are divided by sqrt(width)"},
    {.key = "scale_attn_by_inverse_layer_idx", .families = GPT2, .read = require_false,
     .refusal_reason = "scores are divided by sqrt(width) alone"},
    {.key = "pruned_heads", .families = ALL, .read = require_empty,
     .refusal_reason = "all layers have all heads"},
    {.key = "quantization_config", .families = ALL, .read = require_null,
     .refusal_reason =
         "its weights are no numbers of f32, f16 or bf16; take the model before that"},
};
/* clang-format on */

/* ---- rotary positions ------------------------------------------------------------------------ */

#define ROPE_DEFAULT "default rotary positions can be had"

static const row rope_rows[] = {
    {.key = "rope_theta",
     .read = read_real,
     .offset = offsetof(hf_rope, theta),
     .low = 1,
     .high = 1e12},
    {.key = "rope_type", .read = require_word, .refusal_reason = ROPE_DEFAULT},
    {.key = "type", .read = require_word, .refusal_reason = ROPE_DEFAULT},
    {.key = "partial_rotary_factor",
     .read = require_number_one,
     .refusal_reason = "all of a head is turned"},
};

static clv_code read_object(hf_text *r, const row *list, size_t n, unsigned family,
                            bool seen[MAX_ROWS], clv_err *err);

/* Reads rope_parameters or rope_scaling. Skips keys that belong to other types of rotary positions,
 * as transformers does. */
static clv_code read_rope(hf_text *r, const row *at, clv_err *err) {
  bool seen[MAX_ROWS] = {0};
  hf_rope *rope = (hf_rope *)(void *)((char *)r + at->offset);
  void *before = r->target_struct;
  if (clv_json_skip_null(&r->j)) return CLV_OK;
  r->target_struct = rope;
  clv_code code = read_object(r, rope_rows, CLV_COUNT(rope_rows), 0, seen, err);
  r->target_struct = before;
  for (size_t i = 0; i < CLV_COUNT(rope_rows); i++) rope->is_given |= seen[i];
  return code;
}

/* ---- the file -------------------------------------------------------------------------------- */

static int find_key_row(const row *list, size_t n, unsigned family, const clv_bytes *key) {
  for (size_t i = 0; i < n; i++)
    if ((list[i].families & family) == family && strlen(list[i].key) == key->len &&
        memcmp(list[i].key, key->data, key->len) == 0)
      return (int)i;
  return -1;
}

/* Reads the value of the key in row i. If the file has the key and its second name, their values
 * must be equal. */
static clv_code read_row_value(hf_text *r, const row *list, size_t n, unsigned family, int i,
                               bool seen[MAX_ROWS], clv_err *err) {
  const row *at = &list[i], *other = NULL;
  size_t from = skip_to_value(r);
  for (size_t k = 0; k < n; k++) {
    bool same = at->primary_key ? strcmp(list[k].key, at->primary_key) == 0
                                : list[k].primary_key && strcmp(list[k].primary_key, at->key) == 0;
    if (same && seen[k] && (list[k].families & family) == family) other = &list[k];
  }
  r->key = at->key;
  if (!other) return at->read(r, at, err);
  int64_t before = *(int64_t *)address_of_field(r, at);
  CLV_TRY(at->read(r, at, err));
  if (*(int64_t *)address_of_field(r, at) == before) return CLV_OK;
  return clv_json_fail(
      &r->j, from, err, "%s is %lld and %s is %lld: they name one number, keep one", at->key,
      (long long)*(int64_t *)address_of_field(r, at), other->key, (long long)before);
}

static clv_code skip_unknown_key(hf_text *r, size_t from, const clv_bytes *key, clv_err *err) {
  clv_json_kind kind;
  CLV_TRY(clv_json_peek(&r->j, &kind, err));
  if (r->target_struct == r->c || kind != CLV_JSON_OBJECT) return clv_json_skip(&r->j, err);
  return clv_json_fail(&r->j, from, err,
                       "'%.40s' has rotary positions of its own: all layers have the same",
                       key->len ? key->data : "");
}

/* Reads one `key: value` of a JSON object. */
static clv_code read_member(hf_text *r, const row *list, size_t n, unsigned family,
                            bool seen[MAX_ROWS], clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes key = {0};
  size_t from = skip_to_value(r);
  CLV_TRY(clv_json_read_key(&r->j, &key, err));
  int i = key.len ? find_key_row(list, n, family, &key) : -1;
  if (i < 0) return skip_unknown_key(r, from, &key, err);
  if (seen[i]) return clv_json_fail(&r->j, from, err, "'%s' stands here twice", list[i].key);
  CLV_TRY(read_row_value(r, list, n, family, i, seen, err));
  seen[i] = true;
  return CLV_OK;
}

static clv_code read_object(hf_text *r, const row *list, size_t n, unsigned family,
                            bool seen[MAX_ROWS], clv_err *err) {
  bool more = true;
  CLV_TRY(clv_json_open(&r->j, CLV_JSON_OBJECT, err));
  for (size_t k = 0; more; k++) {
    CLV_TRY(clv_json_next(&r->j, CLV_JSON_OBJECT, k, &more, err));
    if (more) CLV_TRY(read_member(r, list, n, family, seen, err));
  }
  return CLV_OK;
}

static clv_code read_family(hf_text *r, const row *at, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes text = {0};
  char known[160] = "";
  size_t from = skip_to_value(r), used = 0;
  (void)at;
  CLV_TRY(clv_json_read_text(&r->j, &text, err));
  for (int f = 0; f < CLV_HF_FAMILIES; f++) {
    const char *name = clv_hf_family_name((clv_hf_family)f);
    if (text.len == strlen(name) && memcmp(text.data, name, text.len) == 0) {
      r->c->family = (clv_hf_family)f;
      return CLV_OK;
    }
    used += (size_t)snprintf(known + used, sizeof known - used, "%s%s", used ? ", " : "", name);
  }
  return clv_json_fail(&r->j, from, err, "model_type '%.40s' is not known; there are %s",
                       text.len ? text.data : "", known);
}

static clv_code find_family(hf_text *r, clv_err *err) {
  static const row only = {.key = "model_type", .read = read_family};
  bool seen[MAX_ROWS] = {0};
  CLV_TRY(read_object(r, &only, 1, 0, seen, err));
  CLV_TRY(clv_json_end(&r->j, err));
  if (seen[0]) return CLV_OK;
  return clv_fail(err, CLV_INVALID, "%.200s: the key model_type is missing", r->j.label);
}

/* Sets the fields of all keys of the family to their defaults. */
static void set_defaults(clv_hf_config *c) {
  for (size_t i = 0; i < CLV_COUNT(rows); i++) {
    void *to = (char *)c + rows[i].offset;
    if (rows[i].primary_key || !(rows[i].families >> c->family & 1)) continue;
    if (rows[i].read == read_real || rows[i].read == read_real_or_null)
      *(double *)to = rows[i].default_value;
    else if (rows[i].read == read_bool)
      *(bool *)to = rows[i].default_value != 0;
    else if (rows[i].read == read_activation)
      *(clv_op *)to = (clv_op)rows[i].default_value;
    else if (rows[i].read == read_whole || rows[i].read == read_whole_or_null ||
             rows[i].read == read_padding || rows[i].read == read_labels)
      *(int64_t *)to = (int64_t)rows[i].default_value;
  }
}

static bool has_seen_key(const bool seen[MAX_ROWS], const char *key) {
  for (size_t i = 0; i < CLV_COUNT(rows); i++)
    if (seen[i] && (strcmp(rows[i].key, key) == 0 ||
                    (rows[i].primary_key && strcmp(rows[i].primary_key, key) == 0)))
      return true;
  return false;
}

static clv_code check_required(const hf_text *r, const bool seen[MAX_ROWS], clv_err *err) {
  for (size_t i = 0; i < CLV_COUNT(rows); i++)
    if (rows[i].is_required && rows[i].families >> r->c->family & 1 &&
        !has_seen_key(seen, rows[i].key))
      return clv_fail(err, CLV_INVALID, "%.200s: the key %s is missing, which a %s needs",
                      r->j.label, rows[i].key, clv_hf_family_name(r->c->family));
  return CLV_OK;
}

/* ---- checks across keys ---------------------------------------------------------------------- */

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
  if (c->family == CLV_HF_ROBERTA && c->max_positions < c->padding_token + 2)
    return clv_fail(err, CLV_INVALID,
                    "%.200s: max_position_embeddings is %lld: it must be at least 2 more than "
                    "pad_token_id, which is %lld",
                    label, (long long)c->max_positions, (long long)c->padding_token);
  return CLV_OK;
}

/* Applies keys that override other keys, wherever they are in the file, as transformers 5 does:
 * num_labels overrides the size of id2label, rope_scaling overrides rope_parameters, and rope_theta
 * inside either overrides the top-level rope_theta. */
static void apply_overriding_keys(hf_text *r) {
  const hf_rope *rope = r->rope_scaling.is_given ? &r->rope_scaling : &r->rope_parameters;
  if (r->num_labels) r->c->labels = r->num_labels;
  if (rope->theta > 0) r->c->rope_base = rope->theta;
}

/* Sets the fields that follow from the family or from other keys. */
static void derive_fields(clv_hf_config *c) {
  unsigned is = 1u << c->family;
  if (!c->inner_size) c->inner_size = 4 * c->hidden_size;
  if (!c->labels) c->labels = 2;
  c->padding_row = is & GPT2 ? -1 : c->padding_token;
  if (c->padding_token == COUNTS_FROM_END) c->padding_row = is & GPT2 ? -1 : c->vocabulary - 1;
  if (is & (ENCODERS | GPT2 | QWEN2)) c->qkv_bias = true;
  c->out_bias = is & (ENCODERS | VIT | GPT2) || (is & LLAMA && c->qkv_bias);
  if (is & (ENCODERS | VIT | GPT2)) c->inner_bias = true;
  if (is & ENCODERS) c->embedding_dropout = c->hidden_dropout;
  if (is & LAYOUTLM || (c->head_dropout < 0 && is & ENCODERS)) c->head_dropout = c->hidden_dropout;
  if (c->head_dropout < 0) c->head_dropout = 0.1;
  if (is & VIT) c->embedding_dropout = c->hidden_dropout;
}

clv_code clv_hf_config_parse(const char *label, const char *text, size_t len, clv_hf_config *ret,
                             clv_err *err) {
  _Static_assert(CLV_COUNT(rows) <= MAX_ROWS, "one of `seen` each");
  clv_hf_config c = {.padding_token = -1};
  hf_text r = {.j = {.label = label, .text = text, .len = len}, .c = &c, .target_struct = &c};
  bool seen[MAX_ROWS] = {0};
  CLV_TRY(find_family(&r, err));
  set_defaults(&c);
  r.j.at = 0;
  CLV_TRY(read_object(&r, rows, CLV_COUNT(rows), 1u << c.family, seen, err));
  CLV_TRY(check_required(&r, seen, err));
  apply_overriding_keys(&r);
  derive_fields(&c);
  CLV_TRY(check_sizes(&c, label, err));
  *ret = c;
  return CLV_OK;
}

clv_code clv_hf_config_read(const char *folder, clv_hf_config *ret, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes text = {0}, path = {0};
  CLV_TRY(clv_hf_config_read_text(folder, &path, &text, err));
  return clv_hf_config_parse(path.data, text.data ? text.data : "", text.len, ret, err);
}
