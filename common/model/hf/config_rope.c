/* SPDX-License-Identifier: Apache-2.0
 *
 * Keys of rope_parameters and rope_scaling, which say by which angles rotary positions turn queries
 * and keys.
 */
#include <stdio.h>
#include <string.h>

#include "common/model/hf/config_int.h"

enum { MOST_POSITIONS = 1 << 24 };

static const char *const kinds[CLV_HF_ROPE_KINDS] = {"default", "linear", "dynamic", "llama3"};

#define TAKE_OUT                                                                                \
  "; if the model was trained without it, as those of Qwen were, take it out and give records " \
  "of at most original_max_position_embeddings"
static const hf_refusal refused_kinds[] = {
    {"yarn", "it mixes angles with divided ones, and multiplies scores" TAKE_OUT},
    {"longrope", "each pair of a head has a factor of its own" TAKE_OUT},
    {"proportional", "it turns a part of each head: take a model that turns all of it"},
    {"mrope", "a position is one number: take a model without images"},
};

static clv_code read_kind(hf_config_reader *r, const hf_row *at, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes text = {0};
  char known[96] = "";
  size_t from = clv_hf_skip_to_value(r), used = 0;
  if (clv_json_skip_null(&r->j)) return CLV_OK;
  CLV_TRY(clv_hf_expect_kind(r, CLV_JSON_TEXT, err));
  CLV_TRY(clv_json_read_text(&r->j, &text, err));
  for (int k = 0; k < CLV_HF_ROPE_KINDS; k++) {
    if (text.len == strlen(kinds[k]) && memcmp(text.data, kinds[k], text.len) == 0) {
      *(int64_t *)(void *)((char *)r->target_struct + at->offset) = k;
      return CLV_OK;
    }
    used += (size_t)snprintf(known + used, sizeof known - used, "%s%s", used ? ", " : "", kinds[k]);
  }
  return clv_hf_fail_unknown(r, from, &text, refused_kinds, CLV_COUNT(refused_kinds), known, err);
}

#define AT(member) offsetof(hf_rope, member)
#define FACTOR(KEY, MEMBER, LOW, REASON)                                                  \
  {                                                                                       \
    .key = KEY, .read = clv_hf_read_real_or_null, .offset = AT(scale.MEMBER), .low = LOW, \
    .high = 1e6, .reason = REASON                                                         \
  }
static const hf_row rope_rows[] = {
    {.key = "rope_theta",
     .read = clv_hf_read_real,
     .offset = AT(theta),
     .low = 1,
     .high = 1e12,
     .reason = "counts before rope_theta outside"},
    {.key = "rope_type",
     .read = read_kind,
     .offset = AT(kind),
     .reason = "default, linear, dynamic, llama3; yarn and any other are refused"},
    {.key = "type",
     .read = read_kind,
     .offset = AT(old_kind),
     .reason = "the old name of rope_type, which counts before it"},
    FACTOR("factor", factor, 1e-6, "of linear and llama3; dynamic has none up to its limit"),
    FACTOR("low_freq_factor", low_freq_factor, 1e-6, "of llama3"),
    FACTOR("high_freq_factor", high_freq_factor, 1e-6, "of llama3"),
    {.key = "original_max_position_embeddings",
     .read = clv_hf_read_integer_or_null,
     .offset = AT(scale.original_positions),
     .low = 1,
     .high = MOST_POSITIONS,
     .reason = "of llama3"},
    {.key = "partial_rotary_factor",
     .read = clv_hf_require_one,
     .reason = "all of a head is turned"},
    {.key = "attention_factor beta_fast beta_slow mscale mscale_all_dim truncate short_factor "
            "long_factor",
     .read = clv_hf_skip,
     .reason = "transformers reads them with rope_type yarn and longrope only"},
};

hf_table clv_hf_rope_table(void) {
  return (hf_table){rope_rows, CLV_COUNT(rope_rows), 0, "rope_parameters"};
}

/* Fails if `number`, the value of `key` that rotary positions of this kind need, is not given. */
static clv_code check_given(const hf_config_reader *r, double number, const char *key,
                            const char *kind, clv_err *err) {
  if (number > 0) return CLV_OK;
  return clv_fail(err, CLV_INVALID, "%.200s: the key %s is missing, which rope_type %s needs",
                  r->j.label, key, kind);
}

clv_code clv_hf_apply_rope(hf_config_reader *r, clv_err *err) {
  const hf_rope *from = r->rope_scaling.is_given ? &r->rope_scaling : &r->rope_parameters;
  clv_hf_rope rope = from->scale;
  if (!from->is_given) return CLV_OK;
  if (from->theta > 0) r->c->rope_base = from->theta;
  rope.kind = (clv_hf_rope_kind)(from->kind >= 0 ? from->kind : CLV_MAX(from->old_kind, 0));
  const char *name = kinds[rope.kind];
  if (rope.kind == CLV_HF_ROPE_LINEAR || rope.kind == CLV_HF_ROPE_LLAMA3)
    CLV_TRY(check_given(r, rope.factor, "factor", name, err));
  if (rope.kind == CLV_HF_ROPE_DYNAMIC || !rope.original_positions)
    rope.original_positions = r->c->max_positions;
  r->c->rope = rope;
  if (rope.kind != CLV_HF_ROPE_LLAMA3) return CLV_OK;
  CLV_TRY(check_given(r, rope.low_freq_factor, "low_freq_factor", name, err));
  CLV_TRY(check_given(r, rope.high_freq_factor, "high_freq_factor", name, err));
  if (rope.low_freq_factor < rope.high_freq_factor) return CLV_OK;
  return clv_fail(err, CLV_INVALID, "%.200s: low_freq_factor is %g, not below high_freq_factor %g",
                  r->j.label, rope.low_freq_factor, rope.high_freq_factor);
}
