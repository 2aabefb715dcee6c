/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests the reader of config.json, with files as transformers writes them. A missing key gets the
 * default of its transformers class. A key that the graph does not support is refused by name, with
 * its position.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "common/model/hf/hf.h"
#include "tests/unit/files.h"
#include "tests/unit/must.h"

static const char bert_config[] =
    "{\"model_type\": \"bert\", \"vocab_size\": 50, \"hidden_size\": 16,\n"
    " \"num_hidden_layers\": 2, \"num_attention_heads\": 4, \"intermediate_size\": 24,\n"
    " \"max_position_embeddings\": 20, \"type_vocab_size\": 2";
static const char llama_config[] =
    "{\"model_type\": \"llama\", \"vocab_size\": 50, \"hidden_size\": 16,\n"
    " \"num_hidden_layers\": 2, \"num_attention_heads\": 4, \"intermediate_size\": 24";
static const char gpt2_config[] =
    "{\"model_type\": \"gpt2\", \"vocab_size\": 50, \"n_embd\": 16, \"n_layer\": 2, \"n_head\": "
    "4,\n"
    " \"n_positions\": 20";

static clv_code parse_config(const char *text, clv_hf_config *ret, clv_err *err) {
  return clv_hf_config_parse("f/config.json", text, strlen(text), NULL, ret, err);
}

/* Parses first_lines followed by last_lines and a closing brace. */
static clv_code parse_parts(const char *first_lines, const char *last_lines, clv_hf_config *ret,
                            clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes text = {0};
  clv_bytes_printf(&text, "%s%s%s}", first_lines, last_lines[0] ? ",\n " : "", last_lines);
  return parse_config(text.data, ret, err);
}

static void transformers_config_files_are_read(void **state) {
  (void)state;
  for (int f = 0; f < CLV_HF_FAMILIES; f++) {
    char folder[64];
    clv_hf_config c;
    clv_err err;
    snprintf(folder, sizeof folder, "tests/golden/hf/%s", clv_hf_family_name((clv_hf_family)f));
    must(clv_hf_config_read(folder, NULL, &c, &err), &err);
    assert_int_equal(c.family, f);
    assert_true(c.hidden_size == 16 && c.n_heads == 4 && c.n_layers == 2 && c.labels == 3);
    assert_true(c.inner_size == (c.family == CLV_HF_GPT2 ? 64 : 24));
    assert_true(c.init_deviation == 0.02 && !c.is_head_tied);
  }
}

static void missing_keys_have_their_class_defaults(void **state) {
  clv_hf_config c;
  clv_err err;
  (void)state;
  must(parse_parts(bert_config, "", &c, &err), &err);
  assert_true(c.eps == 1e-12 && c.hidden_dropout == 0.1 && c.attention_dropout == 0.1);
  assert_true(c.head_dropout == 0.1 && c.is_head_tied && c.labels == 2 &&
              c.activation == CLV_OP_GELU);
  assert_true(c.qkv_bias && c.out_bias && c.inner_bias);
  must(parse_parts(llama_config, "", &c, &err), &err);
  assert_true(c.eps == 1e-6 && c.rope_base == 10000 && !c.is_head_tied &&
              c.activation == CLV_OP_SILU);
  assert_true(!c.qkv_bias && !c.out_bias && !c.inner_bias && c.n_kv_heads == 0);
  must(parse_parts(gpt2_config, "", &c, &err), &err);
  assert_true(c.eps == 1e-5 && c.inner_size == 64 && c.activation == CLV_OP_GELU_TANH &&
              c.is_head_tied);
}

static void present_keys_override_the_defaults(void **state) {
  clv_hf_config c;
  clv_err err;
  (void)state;
  must(parse_parts(
           bert_config,
           "\"hidden_act\": \"gelu_new\", \"layer_norm_eps\": 1e-5, \"pad_token_id\": 7,\n"
           "\"classifier_dropout\": 0.3, \"hidden_dropout_prob\": 0.2, \"do_sample\": [{}],\n"
           "\"tie_word_embeddings\": false, \"id2label\": {\"0\": \"a\"}, "
           "\"initializer_range\": 0.5",
           &c, &err),
       &err);
  assert_true(c.activation == CLV_OP_GELU_TANH && c.eps == 1e-5 && c.padding_token == 7 &&
              !c.is_head_tied);
  assert_true(c.head_dropout == 0.3 && c.hidden_dropout == 0.2 && c.labels == 1);
  assert_true(c.embedding_dropout == 0.2 && c.init_deviation == 0.5);
  must(parse_parts(llama_config,
                   "\"rope_parameters\": {\"rope_type\": \"default\", \"rope_theta\": 5e5},\n"
                   "\"num_key_value_heads\": 2, \"head_dim\": 8, \"attention_bias\": true",
                   &c, &err),
       &err);
  assert_true(c.rope_base == 5e5 && c.n_kv_heads == 2 && c.head_width == 8 && c.qkv_bias &&
              c.out_bias);
  must(parse_parts(llama_config, "\"rope_theta\": 7, \"rope_scaling\": null", &c, &err), &err);
  assert_true(c.rope_base == 7);
}

/* Two keys may state the same number: the base of rotary positions, the number of labels or a size
 * of GPT-2. The key that transformers 5.24 prefers counts, in whichever order the keys are. */
static void nested_and_top_level_keys_rank_as_in_transformers(void **state) {
  static const struct {
    const char *first_lines, *last_lines;
    double base;
    int64_t labels, layers;
  } cases[] = {
      {llama_config, "\"rope_parameters\": {\"rope_theta\": 100}, \"rope_theta\": 7", 100, 2, 2},
      {llama_config, "\"rope_theta\": 7, \"rope_parameters\": {\"rope_theta\": 100}", 100, 2, 2},
      {llama_config, "\"rope_theta\": 7, \"rope_parameters\": {\"rope_type\": \"default\"}", 7, 2,
       2},
      {llama_config,
       "\"rope_theta\": 7, \"rope_scaling\": {}, \"rope_parameters\": {\"rope_theta\": 9}", 9, 2,
       2},
      {llama_config,
       "\"rope_scaling\": {\"type\": \"default\"}, \"rope_theta\": 7, "
       "\"rope_parameters\": {\"rope_theta\": 9}",
       7, 2, 2},
      {llama_config,
       "\"rope_parameters\": {\"rope_theta\": 9}, "
       "\"rope_scaling\": {\"rope_theta\": 5, \"factor\": 2, \"partial_rotary_factor\": 1.0}",
       5, 2, 2},
      {bert_config, "\"num_labels\": 5", 0, 5, 2},
      {bert_config, "\"num_labels\": 5, \"id2label\": {\"0\": \"a\"}", 0, 5, 2},
      {bert_config, "\"id2label\": {\"0\": \"a\"}, \"num_labels\": null", 0, 1, 2},
      {gpt2_config, "\"num_hidden_layers\": 2, \"hidden_size\": 16", 0, 2, 2},
      {"{\"model_type\": \"gpt2\", \"vocab_size\": 50, \"hidden_size\": 16",
       "\"num_hidden_layers\": 3, \"num_attention_heads\": 4, \"max_position_embeddings\": 20", 0,
       2, 3},
  };
  (void)state;
  for (size_t i = 0; i < CLV_COUNT(cases); i++) {
    clv_hf_config c;
    clv_err err;
    must(parse_parts(cases[i].first_lines, cases[i].last_lines, &c, &err), &err);
    if (c.rope_base != cases[i].base || c.labels != cases[i].labels ||
        c.n_layers != cases[i].layers)
      fail_msg("%s: base %g, labels %d, layers %d", cases[i].last_lines, c.rope_base, (int)c.labels,
               (int)c.n_layers);
  }
}

/* Compares the padding token with the padding row, the row of the embedding that gets no gradient.
 * A negative row counts from the end, as in torch.nn.Embedding. */
static void pad_token_and_padding_row_follow_the_class(void **state) {
  static const struct {
    const char *first_lines, *last_lines;
    int64_t wanted_token, wanted_row;
  } cases[] = {
      {bert_config, "", 0, 0},
      {bert_config, "\"pad_token_id\": 3", 3, 3},
      {bert_config, "\"pad_token_id\": null", -1, -1},
      {llama_config, "", -1, -1},
      {llama_config, "\"pad_token_id\": 4", 4, 4},
      {llama_config, "\"pad_token_id\": -1", -2, 49},
      {gpt2_config, "\"pad_token_id\": 4", 4, -1},
      {gpt2_config, "\"pad_token_id\": 50256", 50256, -1},
  };
  (void)state;
  for (size_t i = 0; i < CLV_COUNT(cases); i++) {
    clv_hf_config c;
    clv_err err;
    must(parse_parts(cases[i].first_lines, cases[i].last_lines, &c, &err), &err);
    if (c.padding_token != cases[i].wanted_token || c.padding_row != cases[i].wanted_row)
      fail_msg("%s: token %d, row %d", cases[i].last_lines, (int)c.padding_token,
               (int)c.padding_row);
  }
}

typedef struct refusal {
  const char *first_lines, *last_lines, *message;
} refusal;

static const refusal unsupported[] = {
    {bert_config, "\"hidden_act\": \"mish\"", "f/config.json:4:16: hidden_act 'mish' is not known"},
    {bert_config, "\"hidden_act\": 3",
     "f/config.json:4:16: hidden_act is a number, and a text is expected here"},
    {bert_config, "\"is_decoder\": true",
     "f/config.json:4:16: is_decoder is true: an encoder sees"},
    {bert_config, "\"position_embedding_type\": \"relative_key\"",
     "position_embedding_type 'relative_key': only absolute is supported: distances"},
    {bert_config, "\"pruned_heads\": {\"1\": [0]}", "pruned_heads is not empty"},
    {bert_config, "\"quantization_config\": {}", "quantization_config is given: its weights"},
    {bert_config, "\"hidden_size\": 16", "f/config.json:4:2: 'hidden_size' stands here twice"},
    {bert_config, "\"layer_norm_eps\": 0", "layer_norm_eps is a number from 1e-30 to 1"},
    {bert_config, "\"hidden_dropout_prob\": 1", "hidden_dropout_prob is a number from 0 to 0.999"},
    {bert_config, "\"id2label\": {}", "id2label names 0 classes"},
    {bert_config, "\"tie_word_embeddings\": 1",
     "tie_word_embeddings is a number, and true or false is expected here"},
    {llama_config, "\"num_key_value_heads\": 3", "3 heads of keys do not divide 4 of queries"},
    {llama_config, "\"rope_scaling\": {\"type\": \"linear\"}",
     "f/config.json: the key factor is missing, which rope_type linear needs"},
    {llama_config, "\"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": 8}",
     "the key low_freq_factor is missing, which rope_type llama3 needs"},
    {llama_config,
     "\"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": 8, \"low_freq_factor\": 4, "
     "\"high_freq_factor\": 4}",
     "low_freq_factor is 4, not below high_freq_factor 4"},
    {llama_config, "\"rope_parameters\": {\"rope_type\": \"yarn\"}",
     "f/config.json:3:35: rope_type 'yarn' is refused: it mixes angles with divided ones, and "
     "multiplies scores; if the model was trained without it"},
    {llama_config, "\"rope_parameters\": {\"rope_type\": \"spiral\"}",
     "f/config.json:3:35: rope_type 'spiral' is not known; there are default, linear, dynamic, "
     "llama3"},
    {llama_config, "\"rope_parameters\": {\"rope_factor\": 2}",
     "f/config.json:3:22: 'rope_parameters.rope_factor' is not known, and may change what the"},
    {bert_config, "\"auto_map\": {}",
     "f/config.json:4:2: 'auto_map' is not known, and may change what the model computes: if it "
     "does not, list it in model.ignore_keys of the session, or take it out"},
    {bert_config, "\"n_embd\": 16", "'n_embd' is not known"},
    {llama_config, "\"layer_types\": [\"sliding_attention\"]", "layer_types 'sliding_attention'"},
    {llama_config, "\"rope_parameters\": {\"full_attention\": {\"rope_theta\": 3}}",
     "'rope_parameters.full_attention' is not known"},
    {llama_config, "\"partial_rotary_factor\": 0.5",
     "partial_rotary_factor is not 1: all of a head"},
    {llama_config, "\"rope_parameters\": {\"partial_rotary_factor\": 0.25}",
     "partial_rotary_factor is not 1"},
    {llama_config, "\"pad_token_id\": 50", "pad_token_id is 50, and vocab_size 50"},
    {llama_config, "\"per_layer_config\": {\"1\": {\"head_dim\": 8}}",
     "per_layer_config is not empty"},
    {bert_config, "\"is_encoder_decoder\": true", "is_encoder_decoder is true: there is no second"},
    {bert_config, "\"num_labels\": 0", "num_labels is a whole number from 1"},
    {gpt2_config, "\"hidden_size\": 32",
     "hidden_size is 32 and n_embd is 16: they name one number"},
    {gpt2_config, "\"n_inner\": 0", "n_inner is a whole number from 1 to 1048576"},
    {gpt2_config, "\"scale_attn_weights\": false", "scale_attn_weights is false"},
    {"{\"model_type\": \"t5\"", "",
     "f/config.json:1:16: model_type 't5' is refused: it has a second network: take a family that"},
    {"{\"model_type\": \"gemma\"", "",
     "f/config.json:1:16: model_type 'gemma' is refused: its norms multiply by 1 + weight"},
    {"{\"model_type\": \"herbert\"", "",
     "f/config.json:1:16: model_type 'herbert' is not known; there are bert, roberta"},
    {"{\"hidden_size\": 3", "", "f/config.json: the key model_type is missing"},
    {"{\"model_type\": \"bert\"", "",
     "f/config.json: the key vocab_size is missing, which a bert needs"},
    {"[1", "", "f/config.json:1:1: an object is expected"},
};

static void unsupported_config_values_are_refused_by_name(void **state) {
  (void)state;
  for (size_t i = 0; i < CLV_COUNT(unsupported); i++) {
    clv_hf_config c;
    clv_err err = {0};
    expect_error(CLV_INVALID, unsupported[i].message,
                 parse_parts(unsupported[i].first_lines, unsupported[i].last_lines, &c, &err),
                 &err);
  }
}

/* A session may list keys of config.json that Cleave does not know, to skip them. A listed key that
 * Cleave knows is an error. */
static void listed_unknown_keys_are_skipped(void **state) {
  static const char *const unknown_names[] = {"auto_map", "rope_factor"}, *const known_names[] = {
                                                                              "use_cache"};
  static const char text[] =
      "{\"model_type\": \"llama\", \"vocab_size\": 50, \"hidden_size\": 16, \"auto_map\": {\"a\": "
      "1},\n"
      " \"num_hidden_layers\": 2, \"num_attention_heads\": 4, \"intermediate_size\": 24, "
      "\"rope_scaling\": {\"rope_factor\": 2}}";
  const clv_json_keys both_listed = {unknown_names, 2}, one_listed = {unknown_names, 1},
                      known_listed = {known_names, 1};
  clv_hf_config c;
  clv_err err = {0};
  (void)state;
  must(clv_hf_config_parse("f", text, strlen(text), &both_listed, &c, &err), &err);
  assert_int_equal(c.hidden_size, 16);
  expect_error(CLV_INVALID, "f:2:94: 'rope_scaling.rope_factor' is not known",
               clv_hf_config_parse("f", text, strlen(text), &one_listed, &c, &err), &err);
  expect_error(CLV_INVALID,
               "f: model.ignore_keys lists 'use_cache', which is known and not ignored",
               clv_hf_config_parse("f", text, strlen(text), &known_listed, &c, &err), &err);
}

/* Reads each kind of rotary positions, under the key of old and of new versions of transformers. If
 * the file gives no limit of positions, the default max_position_embeddings of the class is used.
 */
static void rotary_positions_and_windows_follow_the_file(void **state) {
  static const struct {
    const char *type, *last_lines;
    clv_hf_rope_kind kind;
    double factor;
    int64_t original, window;
  } cases[] = {
      {"llama", "\"rope_scaling\": null", CLV_HF_ROPE_DEFAULT, 0, 0, 0},
      {"llama", "\"rope_scaling\": {\"type\": \"linear\", \"factor\": 2}", CLV_HF_ROPE_LINEAR, 2,
       2048, 0},
      {"llama", "\"rope_scaling\": {\"type\": \"linear\", \"rope_type\": \"default\"}",
       CLV_HF_ROPE_DEFAULT, 0, 2048, 0},
      {"qwen2", "\"rope_scaling\": {\"type\": \"dynamic\", \"factor\": 2}", CLV_HF_ROPE_DYNAMIC, 2,
       32768, 0},
      {"llama",
       "\"max_position_embeddings\": 9, \"rope_parameters\": {\"rope_type\": \"llama3\", "
       "\"factor\": 8.0, \"low_freq_factor\": 1, \"high_freq_factor\": 4, "
       "\"original_max_position_embeddings\": 7}",
       CLV_HF_ROPE_LLAMA3, 8, 7, 0},
      {"mistral", "\"use_cache\": true", CLV_HF_ROPE_DEFAULT, 0, 0, 4096},
      {"mistral", "\"sliding_window\": null", CLV_HF_ROPE_DEFAULT, 0, 0, 0},
      {"phi3", "\"pad_token_id\": 0", CLV_HF_ROPE_DEFAULT, 0, 0, 0},
      {"phi3", "\"pad_token_id\": 0, \"sliding_window\": 7", CLV_HF_ROPE_DEFAULT, 0, 0, 7},
      {"mistral", "\"sliding_window\": 5", CLV_HF_ROPE_DEFAULT, 0, 0, 5},
  };
  (void)state;
  for (size_t i = 0; i < CLV_COUNT(cases); i++) {
    CLV_AUTO(clv_bytes_done) clv_bytes text = {0};
    clv_hf_config c;
    clv_err err;
    clv_bytes_printf(&text, "{\"model_type\": \"%s\", \"num_key_value_heads\": 2%s, %s}",
                     cases[i].type, strchr(llama_config, ','), cases[i].last_lines);
    must(parse_config(text.data, &c, &err), &err);
    if (c.rope.kind != cases[i].kind || c.rope.factor != cases[i].factor ||
        c.rope.original_positions != cases[i].original || c.window != cases[i].window)
      fail_msg("%s: kind %d, factor %g, %d positions, window %d", cases[i].last_lines,
               (int)c.rope.kind, c.rope.factor, (int)c.rope.original_positions, (int)c.window);
  }
}

/* DistilBERT and Qwen3 have names of their own for sizes, such as n_layers. A file may use these or
 * the common names; if it has both, with different values, it is refused. */
static void distilbert_and_qwen3_have_their_own_keys(void **state) {
  static const char distilbert_config[] =
      "{\"model_type\": \"distilbert\", \"vocab_size\": 50, \"hidden_size\": 16, \"n_layers\": 2,\n"
      " \"n_heads\": 4, \"hidden_dim\": 24, \"max_position_embeddings\": 20";
  clv_hf_config c;
  clv_err err = {0};
  (void)state;
  must(parse_parts(distilbert_config, "\"dim\": 16, \"qa_dropout\": 0.3, \"tie_weights_\": true",
                   &c, &err),
       &err);
  assert_true(c.hidden_size == 16 && c.eps == 1e-12 && c.head_dropout == 0.2 && c.is_head_tied);
  assert_true(c.embedding_dropout == 0.1 && c.attention_dropout == 0.1 && c.padding_token == 0);
  expect_error(CLV_INVALID, "dim is 32 and hidden_size is 16: they name one number",
               parse_parts(distilbert_config, "\"dim\": 32", &c, &err), &err);
  expect_error(CLV_INVALID, "sinusoidal_pos_embds is true: the table of positions learns",
               parse_parts(distilbert_config, "\"sinusoidal_pos_embds\": true", &c, &err), &err);
  must(clv_hf_config_read("tests/golden/hf/qwen3", NULL, &c, &err), &err);
  assert_true(c.head_width == 6 && !c.qkv_bias && !c.out_bias && c.n_kv_heads == 2);
}

/* Replaces one number of a valid config by a number out of range. The config is refused. */
static void out_of_range_config_numbers_are_refused(void **state) {
  static const char *const cases[][3] = {
      {"\"hidden_size\": 16", "\"hidden_size\": -1", "hidden_size is a whole number"},
      {"\"hidden_size\": 16", "\"hidden_size\": 18", "4 heads do not divide a width of 18"},
      {"\"vocab_size\": 50", "\"vocab_size\": 1e99", "vocab_size is a whole number"},
      {"\"vocab_size\": 50", "\"vocab_size\": \"50\"", "vocab_size is a whole number"},
      {"\"num_hidden_layers\": 2", "\"num_hidden_layers\": 100000", "from 1 to 240"},
      {"\"num_attention_heads\": 4", "\"num_attention_heads\": 0", "num_attention_heads is"},
  };
  (void)state;
  for (size_t i = 0; i < CLV_COUNT(cases); i++) {
    CLV_AUTO(clv_bytes_done) clv_bytes text = {0};
    const char *at = strstr(bert_config, cases[i][0]);
    clv_hf_config c;
    clv_err err = {0};
    assert_non_null(at);
    clv_bytes_printf(&text, "%.*s%s%s}", (int)(at - bert_config), bert_config, cases[i][1],
                     at + strlen(cases[i][0]));
    expect_error(CLV_INVALID, cases[i][2], parse_config(text.data, &c, &err), &err);
  }
}

/* Keys of generation_config.json and preprocessor_config.json are known and change nothing, or are
 * refused unless the session lists them. */
static void files_beside_the_config_are_checked_key_by_key(void **state) {
  static const char *const names[] = {"surprise"};
  static const clv_json_keys listed = {names, 1};
  static const struct {
    clv_hf_other_file file;
    const char *text, *message; /* message NULL: the text is accepted */
  } cases[] = {
      {CLV_HF_GENERATION, "{\"do_sample\": true, \"top_p\": 0.8, \"pad_token_id\": 3}", NULL},
      {CLV_HF_GENERATION, "{\"top_p\": 0.8,\n \"surprise\": 1}", "f:2:2: 'surprise' is not known"},
      {CLV_HF_GENERATION, "{\"image_mean\": [0.5]}", "f:1:2: 'image_mean' is not known"},
      {CLV_HF_GENERATION, "{} []", "f:1:4"},
      {CLV_HF_PREPROCESSOR, "{\"image_mean\": [0.5], \"size\": {\"height\": 8}}", NULL},
      {CLV_HF_PREPROCESSOR, "{\"do_flip_channel_order\": false}", NULL},
      {CLV_HF_PREPROCESSOR, "{\"do_flip_channel_order\": true}",
       "f:1:27: do_flip_channel_order is true: channels are read in the order red"},
      {CLV_HF_PREPROCESSOR, "{\"do_grayscale\": true}", "colours are not mixed"},
      {CLV_HF_PREPROCESSOR, "{\"image_mean\": \"half\"}", "image_mean is a text, and a list"},
      {CLV_HF_PREPROCESSOR, "{\"image_std\": [1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]}",
       "f:1:15: image_std has more than 16 channels"},
      {CLV_HF_PREPROCESSOR, "{\"rescale_factor\": 0}", "rescale_factor is a number from 1e-30"},
      {CLV_HF_PREPROCESSOR, "{\"surprise\": 1}", "f:1:2: 'surprise' is not known"},
      {CLV_HF_PREPROCESSOR, "[]", "f:1:1: an object is expected"},
  };
  clv_err err = {0};
  (void)state;
  for (size_t i = 0; i < CLV_COUNT(cases); i++) {
    const char *text = cases[i].text;
    clv_code code =
        clv_hf_other_file_parse(cases[i].file, "f", text, strlen(text), NULL, NULL, &err);
    if (cases[i].message)
      expect_error(CLV_INVALID, cases[i].message, code, &err);
    else
      must(code, &err);
    if (strstr(text, "surprise"))
      must(clv_hf_other_file_parse(cases[i].file, "f", text, strlen(text), &listed, NULL, &err),
           &err);
  }
}

/* Reads how pictures are normalised. Missing keys get the defaults of transformers' image
 * processors. */
static void normalisation_of_pictures_is_read(void **state) {
  static const struct {
    const char *text;
    bool is_normalized;
    size_t n_mean;
    double mean, std, factor;
  } cases[] = {
      {"{\"image_mean\": [0.5, 0.25], \"image_std\": 2}", true, 2, 0.25, 2, 1 / 255.0},
      {"{\"do_normalize\": false, \"image_mean\": 3, \"image_std\": [2]}", false, 1, 3, 2,
       1 / 255.0},
      {"{\"do_rescale\": false, \"rescale_factor\": 0.5}", false, 0, 0, 0, 1},
      {"{\"do_rescale\": null, \"do_normalize\": null, \"rescale_factor\": 0.5}", false, 0, 0, 0,
       0.5},
  };
  clv_err err = {0};
  (void)state;
  for (size_t i = 0; i < CLV_COUNT(cases); i++) {
    clv_hf_pictures p;
    must(clv_hf_other_file_parse(CLV_HF_PREPROCESSOR, "f", cases[i].text, strlen(cases[i].text),
                                 NULL, &p, &err),
         &err);
    assert_true(p.is_given && p.is_normalized == cases[i].is_normalized);
    assert_true(p.mean.n == cases[i].n_mean && p.factor == cases[i].factor);
    if (p.mean.n)
      assert_true(p.mean.at[p.mean.n - 1] == cases[i].mean && p.std.at[0] == cases[i].std);
  }
}

/* A config is read together with the other files of its folder. An unknown key in one of these
 * files refuses the config, unless the session lists the key. */
static void wrong_file_beside_the_config_is_refused(void **state) {
  static const char *const names[] = {"surprise"};
  static const clv_json_keys listed = {names, 1};
  static const char known_key[] = "{\"top_k\": 5}", unknown_key[] = "{\"surprise\": 5}";
  CLV_AUTO(clv_bytes_done) clv_bytes text = {0};
  clv_hf_config c;
  clv_err err = {0};
  (void)state;
  clv_bytes_printf(&text, "%s}", bert_config);
  (void)write_scratch_file("config.json", text.data, text.len);
  must(clv_hf_config_read(scratch, NULL, &c, &err), &err);
  for (int f = 0; f < CLV_HF_OTHER_FILES; f++) {
    const char *name = clv_hf_other_file_name((clv_hf_other_file)f);
    (void)write_scratch_file(name, unknown_key, strlen(unknown_key));
    expect_error(CLV_INVALID, name, clv_hf_config_read(scratch, NULL, &c, &err), &err);
    must(clv_hf_config_read(scratch, &listed, &c, &err), &err);
    (void)write_scratch_file(name, f == CLV_HF_GENERATION ? known_key : "{}",
                             f ? 2 : strlen(known_key));
  }
  must(clv_hf_config_read(scratch, NULL, &c, &err), &err);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(transformers_config_files_are_read),
      cmocka_unit_test(missing_keys_have_their_class_defaults),
      cmocka_unit_test(present_keys_override_the_defaults),
      cmocka_unit_test(nested_and_top_level_keys_rank_as_in_transformers),
      cmocka_unit_test(pad_token_and_padding_row_follow_the_class),
      cmocka_unit_test(unsupported_config_values_are_refused_by_name),
      cmocka_unit_test(out_of_range_config_numbers_are_refused),
      cmocka_unit_test(listed_unknown_keys_are_skipped),
      cmocka_unit_test(rotary_positions_and_windows_follow_the_file),
      cmocka_unit_test(distilbert_and_qwen3_have_their_own_keys),
      cmocka_unit_test(files_beside_the_config_are_checked_key_by_key),
      cmocka_unit_test(normalisation_of_pictures_is_read),
      cmocka_unit_test(wrong_file_beside_the_config_is_refused),
  };
  return cmocka_run_group_tests_name("hf_config", tests, scratch_setup, scratch_teardown);
}
