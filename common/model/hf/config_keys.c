/* SPDX-License-Identifier: Apache-2.0
 *
 * The keys of config.json, in transformers 5 and in the files that older versions wrote. A row says
 * which families have the key, which field receives its value, the values allowed, and the default,
 * which is that of the family's class in transformers. Keys that would change a formula in a way
 * that the graph does not support have rows that refuse such values; rows of clv_hf_skip say why a
 * value can be skipped. A key without a row is refused. deploy/CHECKPOINTS.md has a table that is
 * made of these rows (test_hf_keys).
 */
#include "common/model/hf/config_int.h"

enum {
  BERT = 1u << CLV_HF_BERT,
  ROBERTAS = 1u << CLV_HF_ROBERTA | 1u << CLV_HF_XLM_ROBERTA | 1u << CLV_HF_CAMEMBERT,
  LAYOUTLM = 1u << CLV_HF_LAYOUTLM,
  DISTILBERT = 1u << CLV_HF_DISTILBERT,
  VIT = 1u << CLV_HF_VIT,
  GPT2 = 1u << CLV_HF_GPT2,
  LLAMA = 1u << CLV_HF_LLAMA,
  MISTRAL = 1u << CLV_HF_MISTRAL,
  QWEN2 = 1u << CLV_HF_QWEN2,
  QWEN3 = 1u << CLV_HF_QWEN3,
  PHI3 = 1u << CLV_HF_PHI3,
  ENCODERS = BERT | ROBERTAS | LAYOUTLM, /* families whose keys have the names of BERT's keys */
  DECODERS = LLAMA | MISTRAL | QWEN2 | QWEN3 | PHI3,
  ALL = (1u << CLV_HF_FAMILIES) - 1,
  OLD_NAMES = DISTILBERT | GPT2 /* families with names of their own for the keys of sizes */
};

#define AT(member) offsetof(clv_hf_config, member)
#define WHOLE(KEY, FAMILIES, MEMBER, HIGH)                                                         \
  {                                                                                                \
    .key = KEY, .families = FAMILIES, .read = clv_hf_read_integer, .offset = AT(MEMBER), .low = 1, \
    .high = HIGH, .is_required = true                                                              \
  }
/* Row for the second name that transformers accepts for a key of GPT-2 or DistilBERT. */
#define SECOND_NAME(KEY, FAMILY, NAME, MEMBER, HIGH)                                             \
  {                                                                                              \
    .key = KEY, .families = FAMILY, .read = clv_hf_read_integer, .offset = AT(MEMBER), .low = 1, \
    .high = HIGH, .primary_key = NAME                                                            \
  }
#define LIMIT(FAMILIES, FALLBACK)                                                        \
  {                                                                                      \
    .key = "max_position_embeddings", .families = FAMILIES, .read = clv_hf_read_integer, \
    .offset = AT(max_positions), .low = 1, .high = MOST_ROWS, .default_value = FALLBACK, \
    .reason = "angles have no table; the limit of rope_type dynamic and llama3"          \
  }
#define SHARE(KEY, FAMILIES, MEMBER, FALLBACK)                                        \
  {                                                                                   \
    .key = KEY, .families = FAMILIES, .read = clv_hf_read_real, .offset = AT(MEMBER), \
    .high = 0.999, .default_value = FALLBACK                                          \
  }
#define EPS(KEY, FAMILIES, FALLBACK)                                                             \
  {                                                                                              \
    .key = KEY, .families = FAMILIES, .read = clv_hf_read_real, .offset = AT(eps), .low = 1e-30, \
    .high = 1, .default_value = FALLBACK                                                         \
  }
#define ACTIVATION(KEY, FAMILIES, OP)                                                           \
  {                                                                                             \
    .key = KEY, .families = FAMILIES, .read = clv_hf_read_activation, .offset = AT(activation), \
    .default_value = OP,                                                                        \
    .reason =                                                                                   \
        "gelu, gelu_new, gelu_pytorch_tanh, gelu_fast, relu, silu, swish, tanh, "               \
        "sigmoid; another is refused"                                                           \
  }
#define TRUTH(KEY, FAMILIES, MEMBER, FALLBACK)                                                   \
  {                                                                                              \
    .key = KEY, .families = FAMILIES, .read = clv_hf_read_bool, .offset = AT(MEMBER), .high = 1, \
    .default_value = FALLBACK                                                                    \
  }
#define PADDING(FAMILIES, LOW, FALLBACK)                                                   \
  {                                                                                        \
    .key = "pad_token_id", .families = FAMILIES, .read = clv_hf_read_padding,              \
    .offset = AT(padding_token), .low = LOW, .high = MOST_ROWS, .default_value = FALLBACK, \
    .reason = "its row learns nothing (not in gpt2), and records are compared with it"     \
  }
#define HARMLESS(FAMILIES, REASON, KEYS) \
  { .key = KEYS, .families = FAMILIES, .read = clv_hf_skip, .reason = REASON }
#define REFUSED(KEY, FAMILIES, HOW, REASON) \
  { .key = KEY, .families = FAMILIES, .read = HOW, .reason = REASON }

enum { MOST_WIDTH = 1 << 16, MOST_INNER = 1 << 20, MOST_ROWS = 1 << 24, MOST_LAYERS = 240 };

/* clang-format off */
static const hf_row rows[] = {
    {.key = "model_type", .families = ALL, .read = clv_hf_read_family,
     .reason = "a family that is not in this table is refused"},
    WHOLE("vocab_size", ALL & ~VIT, vocabulary, MOST_ROWS),
    WHOLE("hidden_size", ALL & ~OLD_NAMES, hidden_size, MOST_WIDTH),
    WHOLE("n_embd", GPT2, hidden_size, MOST_WIDTH),
    WHOLE("dim", DISTILBERT, hidden_size, MOST_WIDTH),
    WHOLE("num_hidden_layers", ALL & ~OLD_NAMES, n_layers, MOST_LAYERS),
    WHOLE("n_layer", GPT2, n_layers, MOST_LAYERS),
    WHOLE("n_layers", DISTILBERT, n_layers, MOST_LAYERS),
    WHOLE("num_attention_heads", ALL & ~OLD_NAMES, n_heads, 4096),
    WHOLE("n_head", GPT2, n_heads, 4096),
    WHOLE("n_heads", DISTILBERT, n_heads, 4096),
    WHOLE("intermediate_size", ALL & ~OLD_NAMES, inner_size, MOST_INNER),
    WHOLE("hidden_dim", DISTILBERT, inner_size, MOST_INNER),
    {.key = "n_inner", .families = GPT2, .read = clv_hf_read_integer_or_null,
     .offset = AT(inner_size), .low = 1, .high = MOST_INNER},
    WHOLE("max_position_embeddings", ENCODERS | DISTILBERT, max_positions, MOST_ROWS),
    WHOLE("n_positions", GPT2, max_positions, MOST_ROWS),
    LIMIT(LLAMA, 2048),
    LIMIT(MISTRAL, 131072),
    LIMIT(PHI3, 4096),
    LIMIT(QWEN2 | QWEN3, 32768),
    WHOLE("max_2d_position_embeddings", LAYOUTLM, max_box_positions, MOST_ROWS),
    WHOLE("type_vocab_size", ENCODERS, n_token_types, MOST_ROWS),
    WHOLE("image_size", VIT, image_size, 1 << 14),
    WHOLE("patch_size", VIT, patch_size, 1 << 14),
    WHOLE("num_channels", VIT, channels, 1 << 10),
    {.key = "num_key_value_heads", .families = MISTRAL | QWEN2 | QWEN3, .read = clv_hf_read_integer_or_null,
     .offset = AT(n_kv_heads), .low = 1, .high = 4096, .is_required = true},
    {.key = "num_key_value_heads", .families = LLAMA | PHI3, .read = clv_hf_read_integer_or_null,
     .offset = AT(n_kv_heads), .low = 1, .high = 4096},
    SECOND_NAME("hidden_size", GPT2, "n_embd", hidden_size, MOST_WIDTH),
    SECOND_NAME("num_hidden_layers", GPT2, "n_layer", n_layers, MOST_LAYERS),
    SECOND_NAME("num_attention_heads", GPT2, "n_head", n_heads, 4096),
    SECOND_NAME("max_position_embeddings", GPT2, "n_positions", max_positions, MOST_ROWS),
    SECOND_NAME("hidden_size", DISTILBERT, "dim", hidden_size, MOST_WIDTH),
    SECOND_NAME("num_hidden_layers", DISTILBERT, "n_layers", n_layers, MOST_LAYERS),
    SECOND_NAME("num_attention_heads", DISTILBERT, "n_heads", n_heads, 4096),
    {.key = "head_dim", .families = DECODERS & ~QWEN3, .read = clv_hf_read_integer_or_null,
     .offset = AT(head_width), .low = 1, .high = 4096},
    {.key = "head_dim", .families = QWEN3, .read = clv_hf_read_integer, .offset = AT(head_width),
     .low = 1, .high = 4096, .default_value = 128},
    PADDING(GPT2 | (DECODERS & ~PHI3), -1, -1),
    PADDING(PHI3, -1, 32000),
    PADDING(BERT | LAYOUTLM | DISTILBERT, -1, 0),
    PADDING(ROBERTAS, 0, 1),
    {.key = "num_labels", .families = ALL, .read = clv_hf_read_num_labels, .low = 1,
     .high = HF_MAX_LABELS, .reason = "counts before the size of id2label"},
    {.key = "id2label", .families = ALL, .read = clv_hf_read_labels, .offset = AT(labels),
     .default_value = 2,
     .reason = "refused where a head that is not new has the data's classes in another order"},
    {.key = "label2id", .families = ALL, .read = clv_hf_read_elsewhere,
     .reason = "read where id2label names no class"},

    SHARE("hidden_dropout_prob", ENCODERS, hidden_dropout, 0.1),
    SHARE("hidden_dropout_prob", VIT, hidden_dropout, 0),
    SHARE("dropout", DISTILBERT, hidden_dropout, 0.1),
    SHARE("resid_pdrop", GPT2, hidden_dropout, 0.1),
    SHARE("resid_pdrop", PHI3, hidden_dropout, 0),
    SHARE("embd_pdrop", GPT2, embedding_dropout, 0.1),
    SHARE("attention_probs_dropout_prob", ENCODERS, attention_dropout, 0.1),
    SHARE("attention_probs_dropout_prob", VIT, attention_dropout, 0),
    SHARE("attn_pdrop", GPT2, attention_dropout, 0.1),
    SHARE("attention_dropout", DISTILBERT, attention_dropout, 0.1),
    SHARE("attention_dropout", DECODERS, attention_dropout, 0),
    SHARE("seq_classif_dropout", DISTILBERT, head_dropout, 0.2),
    {.key = "classifier_dropout", .families = BERT | ROBERTAS | GPT2 | DECODERS,
     .read = clv_hf_read_real_or_null, .offset = AT(head_dropout), .high = 0.999,
     .default_value = -1},
    EPS("layer_norm_eps", ENCODERS | VIT, 1e-12),
    EPS("layer_norm_epsilon", GPT2, 1e-5),
    EPS("rms_norm_eps", DECODERS & ~PHI3, 1e-6),
    EPS("rms_norm_eps", PHI3, 1e-5),
    {.key = "initializer_range", .families = ALL, .read = clv_hf_read_real,
     .offset = AT(init_deviation), .high = 10, .default_value = 0.02},
    ACTIVATION("hidden_act", ENCODERS | VIT, CLV_OP_GELU),
    ACTIVATION("activation", DISTILBERT, CLV_OP_GELU),
    ACTIVATION("activation_function", GPT2, CLV_OP_GELU_TANH),
    ACTIVATION("hidden_act", DECODERS, CLV_OP_SILU),
    TRUTH("tie_word_embeddings", ENCODERS | DISTILBERT | GPT2, is_head_tied, true),
    TRUTH("tie_word_embeddings", DECODERS, is_head_tied, false),
    TRUTH("qkv_bias", VIT, qkv_bias, true),
    TRUTH("attention_bias", LLAMA | QWEN3, qkv_bias, false),
    TRUTH("mlp_bias", LLAMA, inner_bias, false),

    {.key = "rope_theta", .families = DECODERS, .read = clv_hf_read_real, .offset = AT(rope_base),
     .low = 1, .high = 1e12, .default_value = 10000},
    {.key = "rope_parameters", .families = DECODERS, .is_rope = true,
     .offset = offsetof(hf_config_reader, rope_parameters), .reason = "its keys are below"},
    {.key = "rope_scaling", .families = DECODERS, .is_rope = true,
     .offset = offsetof(hf_config_reader, rope_scaling),
     .reason = "replaces rope_parameters unless it is empty"},
    {.key = "sliding_window", .families = MISTRAL, .read = clv_hf_read_window, .offset = AT(window),
     .low = 1, .high = MOST_ROWS, .default_value = 4096,
     .reason = "refused where the session's records are longer"},
    {.key = "sliding_window", .families = PHI3, .read = clv_hf_read_window, .offset = AT(window),
     .low = 1, .high = MOST_ROWS, .reason = "refused where the session's records are longer"},

    REFUSED("partial_rotary_factor", DECODERS, clv_hf_require_one, "all of a head is turned"),
    REFUSED("rope_interleaved", DECODERS, clv_hf_require_false,
            "the halves of a head are turned, not its neighbours"),
    REFUSED("attention_bias", PHI3, clv_hf_require_false, "projections have no bias"),
    REFUSED("use_mrope", QWEN2, clv_hf_require_false, "a position is one number"),
    {.key = "position_embedding_type", .families = ENCODERS, .read = clv_hf_require_word,
     .word = "absolute", .reason = "distances have no vectors"},
    {.key = "layer_types", .families = DECODERS, .read = clv_hf_require_words,
     .word = "full_attention", .reason = "attention sees all places before"},
    REFUSED("use_sliding_window", QWEN2 | QWEN3, clv_hf_require_false,
            "attention sees all places before"),
    REFUSED("sinusoidal_pos_embds", DISTILBERT, clv_hf_require_false,
            "the table of positions learns"),
    REFUSED("per_layer_config", ALL, clv_hf_require_empty, "all layers have the same sizes"),
    REFUSED("pruned_heads", ALL, clv_hf_require_empty, "all layers have all heads"),
    REFUSED("is_encoder_decoder", ALL, clv_hf_require_false, "there is no second network"),
    REFUSED("is_decoder", ENCODERS | DISTILBERT | VIT, clv_hf_require_false,
            "an encoder sees places on both sides"),
    REFUSED("add_cross_attention", ALL, clv_hf_require_false,
            "there is no second network to attend to"),
    REFUSED("scale_attn_weights", GPT2, clv_hf_require_true, "scores are divided by sqrt(width)"),
    REFUSED("scale_attn_by_inverse_layer_idx", GPT2, clv_hf_require_false,
            "scores are divided by sqrt(width) alone"),
    REFUSED("quantization_config", ALL, clv_hf_require_null,
            "its weights are no numbers of f32, f16 or bf16; take the model before that"),

    HARMLESS(GPT2 | DECODERS, "a decoder is one whatever this says", "is_decoder"),
    HARMLESS(QWEN2 | QWEN3, "transformers reads it with use_sliding_window only",
             "sliding_window max_window_layers"),
    HARMLESS(GPT2, "of a head that is not built, or the order of a product",
             "summary_type summary_use_proj summary_activation summary_proj_to_labels "
             "summary_first_dropout reorder_and_upcast_attn"),
    HARMLESS(GPT2, "the size of a mask that is not stored", "n_ctx"),
    HARMLESS(GPT2, "transformers' class reads none of them", "n_special predict_special_tokens"),
    HARMLESS(VIT, "of heads that are not built", "pooler_act pooler_output_size encoder_stride"),
    HARMLESS(DISTILBERT, "of a head that is not built", "qa_dropout"),
    HARMLESS(DISTILBERT, "tie_word_embeddings says it", "tie_weights_"),
    HARMLESS(BERT, "transformers' class reads none of them",
             "directionality pooler_fc_size pooler_num_attention_heads pooler_num_fc_layers "
             "pooler_size_per_head pooler_type"),
    HARMLESS(PHI3, "transformers reads it with rope_type longrope only",
             "original_max_position_embeddings"),
    HARMLESS(PHI3, "transformers' class reads none of them", "embd_pdrop"),
    HARMLESS(LLAMA, "it says who wrote the file", "is_llama_config"),
    HARMLESS(LLAMA, "the session says how long records are", "max_sequence_length"),
    HARMLESS(ALL, "the same numbers in parts",
             "chunk_size_feed_forward pretraining_tp use_cache output_past gradient_checkpointing"),
    HARMLESS(ALL, "a file of weights says the type of its numbers, which become f32",
             "dtype torch_dtype use_bfloat16"),
    HARMLESS(ALL, "the session says what loss there is", "problem_type tf_legacy_loss"),
    HARMLESS(ALL, "id2label says it", "_num_labels"),
    HARMLESS(ALL, "of a second network, which is refused", "tie_encoder_decoder "
             "cross_attention_hidden_size decoder_start_token_id"),
    HARMLESS(ALL, "the tokenizer says it", "bos_token_id eos_token_id eos_token_ids sep_token_id cls_token_id "
             "mask_token_id unk_token_id tokenizer_class prefix"),
    HARMLESS(ALL, "how a program finds, runs or describes the model",
             "architectures transformers_version _name_or_path name_or_path _commit_hash "
             "return_dict output_hidden_states output_attentions torchscript attn_implementation "
             "_attn_implementation _attn_implementation_internal _attn_implementation_autoset "
             "experts_implementation _experts_implementation_internal finetuning_task "
             "task_specific_params xla_device language name transformers.js_config unsloth_fixed "
             "unsloth_version"),
    HARMLESS(ALL, "nothing is generated", HF_GENERATION_KEYS),
};
/* clang-format on */

_Static_assert(CLV_COUNT(rows) <= HF_MAX_ROWS, "one flag of `seen` each");

hf_table clv_hf_key_table(unsigned family) { return (hf_table){rows, CLV_COUNT(rows), family, ""}; }

/* ---- descriptions of the keys, for documents ------------------------------------------------- */

/* Returns the words for documents that say how a value of the row is treated. */
static const char *outcome_of(const hf_row *at) {
  static const struct {
    clv_code (*read)(hf_config_reader *r, const hf_row *at, clv_err *err);
    const char *outcome;
  } outcomes[] = {{clv_hf_skip, "harmless"},
                  {clv_hf_require_false, "refused unless false"},
                  {clv_hf_require_true, "refused unless true"},
                  {clv_hf_require_null, "refused unless null"},
                  {clv_hf_require_empty, "refused unless empty"},
                  {clv_hf_require_one, "refused unless 1"}};
  for (size_t i = 0; i < CLV_COUNT(outcomes); i++)
    if (outcomes[i].read == at->read) return outcomes[i].outcome;
  return "done";
}

bool clv_hf_describe_row(const hf_table *t, size_t i, clv_hf_key *ret) {
  if (i >= t->n) return false;
  const hf_row *at = &t->rows[i];
  *ret = (clv_hf_key){.names = at->key,
                      .families = at->families,
                      .outcome = at->word ? "refused unless" : outcome_of(at),
                      .word = at->word,
                      .reason = at->reason,
                      .primary_key = at->primary_key};
  return true;
}

bool clv_hf_describe_key(size_t i, clv_hf_key *ret) {
  hf_table t = clv_hf_key_table(0);
  return clv_hf_describe_row(&t, i, ret);
}

bool clv_hf_describe_rope_key(size_t i, clv_hf_key *ret) {
  hf_table t = clv_hf_rope_table();
  return clv_hf_describe_row(&t, i, ret);
}
