/* SPDX-License-Identifier: Apache-2.0
 *
 * config_int: the files that read config.json, from the lowest to the highest:
 *
 *   config_values.c   reads one value, or refuses it
 *   config_rope.c     the keys of rope_parameters and rope_scaling
 *   config_object.c   reads an object by a table, and refuses keys that the table lacks
 *   config_keys.c     the keys of config.json, with their families, defaults and reasons
 *   other_keys.c      the keys of generation_config.json and preprocessor_config.json
 *   other_files.c     reads these files
 *   config.c          reads the file, and checks keys against each other
 */
#ifndef CLEAVE_HF_CONFIG_INT_H
#define CLEAVE_HF_CONFIG_INT_H

#include "common/base/json/json.h"
#include "common/model/hf/hf_int.h"

enum { HF_MAX_LABELS = 1 << 20, HF_MAX_ROWS = 128, HF_COUNTS_FROM_END = -2 };

/* Keys for generating texts, which are in generation_config.json and in older config.json files. */
#define HF_GENERATION_KEYS                                                                \
  "_from_model_config assistant_confidence_threshold assistant_early_exit "               \
  "assistant_ensemble_weight assistant_lookbehind bad_words_ids begin_suppress_tokens "   \
  "cache_config cache_implementation compile_config constraints "                         \
  "continuous_batching_config disable_compile diversity_penalty do_sample dola_layers "   \
  "early_stopping encoder_no_repeat_ngram_size encoder_repetition_penalty "               \
  "epsilon_cutoff eta_cutoff exponential_decay_length_penalty force_words_ids "           \
  "forced_bos_token_id forced_eos_token_id guidance_scale is_assistant length_penalty "   \
  "low_memory max_cache_len max_length max_matching_ngram_size max_new_tokens max_time "  \
  "min_length min_new_tokens min_p no_repeat_ngram_size num_assistant_tokens "            \
  "num_assistant_tokens_schedule num_beam_groups num_beams num_return_sequences "         \
  "output_logits output_scores penalty_alpha prefill_chunk_size "                         \
  "prompt_lookup_num_tokens remove_invalid_values renormalize_logits repetition_penalty " \
  "return_dict_in_generate sequence_bias speculation_type stop_strings suppress_tokens "  \
  "target_lookbehind temperature token_healing top_h top_k top_p typical_p use_mtp "      \
  "watermarking_config"

/* Contents of the key rope_scaling or rope_parameters. */
typedef struct hf_rope {
  bool is_given;
  double theta; /* value of the key rope_theta; 0: not given */
  int64_t kind; /* clv_hf_rope_kind of the key rope_type; -1: not given */
  /* as kind, of the older key `type`, which is used if rope_type is not given; -1: not given */
  int64_t old_kind;
  clv_hf_rope scale; /* other numbers of the object; a field of 0 is not given */
} hf_rope;

typedef struct hf_row hf_row;

/* State of reading a config.json. */
typedef struct hf_config_reader {
  clv_json j;
  clv_hf_config *c;
  const clv_json_keys *ignored; /* keys without a row that are skipped */
  const char *key;              /* key whose value is being read */
  void *target_struct;          /* struct that the offsets of the rows refer to */
  int64_t num_labels;           /* value of num_labels; 0: not given */
  hf_rope rope_scaling, rope_parameters;
} hf_config_reader;

/* A row of a table of keys: a key, and how its value is read, refused or skipped. */
struct hf_row {
  /* name of the key; in a row whose values are skipped, the names of all keys with its reason,
   * separated by blanks */
  const char *key;
  unsigned families; /* bit 1 << f of each clv_hf_family f that has the key */
  clv_code (*read)(hf_config_reader *r, const hf_row *at, clv_err *err);
  bool is_rope; /* the value is an object with the keys of clv_hf_rope_table; `read` is not used */
  /* offset of the field in *hf_config_reader.target_struct, which is a clv_hf_config for the
   * top-level keys */
  size_t offset;
  double low, high, default_value;
  bool is_required; /* the key must be given, because it has no default */
  /* primary name of the key, if `key` is its second name; NULL: `key` is the primary name */
  const char *primary_key;
  /* the only text that is accepted, for clv_hf_require_word and _words */
  const char *word;
  /* why another value is refused, or why the value can be skipped; for other keys, a remark for
   * CHECKPOINTS.md. NULL: none */
  const char *reason;
};

typedef struct hf_table {
  const hf_row *rows;
  size_t n;
  unsigned family;   /* bit of the family whose rows are used; 0: the rows of all families are */
  const char *label; /* key of the object, for messages; "" for the file */
} hf_table;

/* Readers of one value, for hf_row.read. The first group stores the value in the row's field. */
clv_code clv_hf_read_integer(hf_config_reader *r, const hf_row *at, clv_err *err) CLV_USE_RESULT;
clv_code clv_hf_read_integer_or_null(hf_config_reader *r, const hf_row *at,
                                     clv_err *err) CLV_USE_RESULT;
clv_code clv_hf_read_padding(hf_config_reader *r, const hf_row *at, clv_err *err) CLV_USE_RESULT;
clv_code clv_hf_read_num_labels(hf_config_reader *r, const hf_row *at, clv_err *err) CLV_USE_RESULT;
clv_code clv_hf_read_labels(hf_config_reader *r, const hf_row *at, clv_err *err) CLV_USE_RESULT;
clv_code clv_hf_read_real(hf_config_reader *r, const hf_row *at, clv_err *err) CLV_USE_RESULT;
clv_code clv_hf_read_real_or_null(hf_config_reader *r, const hf_row *at,
                                  clv_err *err) CLV_USE_RESULT;
clv_code clv_hf_read_bool(hf_config_reader *r, const hf_row *at, clv_err *err) CLV_USE_RESULT;
clv_code clv_hf_read_bool_or_null(hf_config_reader *r, const hf_row *at,
                                  clv_err *err) CLV_USE_RESULT;
clv_code clv_hf_read_channels(hf_config_reader *r, const hf_row *at, clv_err *err) CLV_USE_RESULT;
clv_code clv_hf_read_family(hf_config_reader *r, const hf_row *at, clv_err *err) CLV_USE_RESULT;
clv_code clv_hf_read_activation(hf_config_reader *r, const hf_row *at, clv_err *err) CLV_USE_RESULT;
/* These readers accept only some values. The error for any other value quotes the row's reason. */
clv_code clv_hf_require_false(hf_config_reader *r, const hf_row *at, clv_err *err) CLV_USE_RESULT;
clv_code clv_hf_require_true(hf_config_reader *r, const hf_row *at, clv_err *err) CLV_USE_RESULT;
clv_code clv_hf_require_null(hf_config_reader *r, const hf_row *at, clv_err *err) CLV_USE_RESULT;
clv_code clv_hf_require_empty(hf_config_reader *r, const hf_row *at, clv_err *err) CLV_USE_RESULT;
clv_code clv_hf_require_word(hf_config_reader *r, const hf_row *at, clv_err *err) CLV_USE_RESULT;
clv_code clv_hf_require_words(hf_config_reader *r, const hf_row *at, clv_err *err) CLV_USE_RESULT;
clv_code clv_hf_require_one(hf_config_reader *r, const hf_row *at, clv_err *err) CLV_USE_RESULT;
/* Reads a number of positions; null: 0, which is no limit. */
clv_code clv_hf_read_window(hf_config_reader *r, const hf_row *at, clv_err *err) CLV_USE_RESULT;
/* Skips a value that another reader of the file takes. */
clv_code clv_hf_read_elsewhere(hf_config_reader *r, const hf_row *at, clv_err *err) CLV_USE_RESULT;
/* Accepts any value of a key that does not change the graph, and ignores the value. */
clv_code clv_hf_skip(hf_config_reader *r, const hf_row *at, clv_err *err) CLV_USE_RESULT;

/* A value that transformers has and the graph does not, with the reason and what to do instead. */
typedef struct hf_refusal {
  const char *value, *reason;
} hf_refusal;
/* Fails for a value of r->key that is not among `known`: with the reason of its refusal, if the
 * list has one, else with the known values. */
clv_code clv_hf_fail_unknown(const hf_config_reader *r, size_t from, const clv_bytes *value,
                             const hf_refusal *refusals, size_t n, const char *known, clv_err *err);

/* Skips white space and returns the offset of the next value in the text. */
size_t clv_hf_skip_to_value(hf_config_reader *r);
/* Checks that the next value is of this kind. CLV_INVALID: it is not; the text names the key. */
clv_code clv_hf_expect_kind(hf_config_reader *r, clv_json_kind kind, clv_err *err) CLV_USE_RESULT;

/* True if `key` is one of the names of the row. */
bool clv_hf_row_has_key(const hf_row *at, const char *key, size_t len);
/* Returns the index of the row with the key; -1: there is none. */
int clv_hf_find_row(const hf_table *t, const char *key, size_t len);
/* Reads an object. seen: a flag for each row, set where its key is given. */
clv_code clv_hf_read_object(hf_config_reader *r, const hf_table *t, bool seen[HF_MAX_ROWS],
                            clv_err *err) CLV_USE_RESULT;

/* Sets the config's rotary positions from rope_scaling, if it is given, else from rope_parameters.
 * CLV_INVALID: a number is missing that the kind needs. */
clv_code clv_hf_apply_rope(hf_config_reader *r, clv_err *err) CLV_USE_RESULT;

/* The keys of config.json that a family has (0: of all families), and those of rope_parameters and
 * rope_scaling. */
hf_table clv_hf_key_table(unsigned family);
hf_table clv_hf_rope_table(void);
hf_table clv_hf_other_table(clv_hf_other_file file);
/* As clv_hf_describe_key, of any table. */
bool clv_hf_describe_row(const hf_table *t, size_t i, clv_hf_key *ret);

#endif
