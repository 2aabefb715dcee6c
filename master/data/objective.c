/* SPDX-License-Identifier: Apache-2.0
 *
 * Objectives of language modelling: labels that follow from the tokens. The choice of masked tokens
 * depends only on seed, epoch and record, so a resumed run masks the same tokens.
 */
#include <string.h>

#include "master/data/dataset_int.h"

static const uint32_t mask_rng_stream = 0xfffffff3u;

enum {
  /* RNG block of draw_one_position, larger than any position, because position i uses block i */
  SINGLE_DRAW_RNG_BLOCK = 1 << 30
};

/* True if position i of a row is a token of the text: neither the first or last special token nor a
 * pad. */
static bool is_text_token(const clv_dataset *ds, int64_t i, int64_t length) {
  return i >= ds->token_info.has_first && i < length - ds->token_info.has_last;
}

/* Returns the label of position i: the next token (causal) or the token itself (masked);
 * ds->ignored_label: the position has no label. */
static int64_t find_label(const clv_dataset *ds, const int32_t *row, int64_t i, int64_t length) {
  if (ds->objective == CLV_OBJECTIVE_CAUSAL) return i + 1 < length ? row[i + 1] : ds->ignored_label;
  return is_text_token(ds, i, length) ? row[i] : ds->ignored_label;
}

static clv_code make_labels(clv_dataset *ds, const clv_tensor *ids, const clv_tensor *lengths,
                            clv_err *err) {
  int64_t n = ids->shape.dim[0], n_positions = ids->shape.dim[1];
  ds->y_shape = ids->shape;
  CLV_TRY(clv_tensor_new(CLV_I64, &ds->y_shape, &ds->labels, err));
  int64_t *out = ds->labels->data;
  for (int64_t r = 0; r < n; r++) {
    const int32_t *row = (const int32_t *)ids->data + r * n_positions;
    int64_t length = ((const int32_t *)lengths->data)[r];
    for (int64_t i = 0; i < n_positions; i++) *out++ = find_label(ds, row, i, length);
  }
  ds->label_max = ds->token_info.count - 1;
  return CLV_OK;
}

clv_code clv_dataset_set_objective(clv_dataset *ds, const clv_dataset_options *o,
                                   clv_token_info token_info, const clv_tensor *ids,
                                   const clv_tensor *lengths, clv_err *err) {
  ds->token_info = token_info;
  ds->ignored_label = o->ignored_label ? *o->ignored_label : CLV_LABEL_IGNORED;
  ds->objective = o->skips_labels ? CLV_OBJECTIVE_LABELS : o->objective;
  while (ds->token_input < o->n_named_inputs && strcmp(o->names[ds->token_input], "ids") != 0)
    ds->token_input++;
  if (ds->objective == CLV_OBJECTIVE_LABELS) return CLV_OK;
  if (o->n_named_inputs && ds->token_input == o->n_named_inputs)
    return clv_fail(err, CLV_INVALID, "to model a language, records need the input 'ids'");
  return make_labels(ds, ids, lengths, err);
}

/* ---- masking tokens -------------------------------------------------------------------------- */

static bool is_drawn_with_probability(uint32_t random_word, double probability) {
  return random_word < probability * 4294967296.0;
}

static int64_t map_to_index(uint32_t random_word, size_t n) {
  return (int64_t)(((uint64_t)random_word * n) >> 32);
}

/* Returns the token that replaces a masked token in the input. It is never a pad, because some
 * models number positions by pads. */
static int64_t choose_replacement(const clv_dataset *ds, const uint32_t random_words[4],
                                  int64_t token) {
  if (is_drawn_with_probability(random_words[1], 0.8)) return ds->token_info.mask;
  int64_t random_token = map_to_index(random_words[2], (size_t)ds->token_info.count);
  return is_drawn_with_probability(random_words[1], 0.9) && random_token != ds->token_info.pad_token
             ? random_token
             : token;
}

/* Draws one of the labelled positions, for a record in which no position was drawn for masking.
 * Returns n_positions if no position has a label. */
static size_t draw_one_position(const clv_dataset *ds, const clv_rng_key *key,
                                const int64_t *labels, size_t n_positions) {
  uint32_t random_words[4];
  size_t n = 0, i = 0;
  for (size_t k = 0; k < n_positions; k++) n += labels[k] != ds->ignored_label;
  if (!n) return n_positions;
  clv_rng_block(key, SINGLE_DRAW_RNG_BLOCK, random_words);
  for (size_t n_left = (size_t)map_to_index(random_words[0], n) + 1;; i++) {
    n_left -= labels[i] != ds->ignored_label;
    if (!n_left) return i;
  }
}

void clv_dataset_mask_tokens(const clv_dataset *ds, const clv_draw_seed *draw, uint32_t record,
                             int64_t *ids, int64_t *labels) {
  size_t n_positions = (size_t)ds->y_shape.dim[1], n_masked = 0, single_position;
  uint32_t random_words[4];
  clv_rng_key key = {.seed = draw ? draw->seed : 0,
                     .step = draw ? draw->epoch : UINT64_MAX,
                     .layer = mask_rng_stream,
                     .micro_batch = record};
  for (size_t i = 0; i < n_positions && !n_masked; i++) {
    clv_rng_block(&key, (uint32_t)i, random_words);
    n_masked += labels[i] != ds->ignored_label && is_drawn_with_probability(random_words[0], 0.15);
  }
  single_position = n_masked ? n_positions : draw_one_position(ds, &key, labels, n_positions);
  for (size_t i = 0; i < n_positions; i++) {
    if (labels[i] == ds->ignored_label) continue;
    clv_rng_block(&key, (uint32_t)i, random_words);
    if (i == single_position || is_drawn_with_probability(random_words[0], 0.15))
      ids[i] = choose_replacement(ds, random_words, ids[i]);
    else
      labels[i] = ds->ignored_label;
  }
}
