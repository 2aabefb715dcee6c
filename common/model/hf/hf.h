/* SPDX-License-Identifier: Apache-2.0
 *
 * hf: models that are described by a config.json of Hugging Face, as graphs whose parameters have
 * the names of the weight files. clv_hf_config_read reads the config, clv_hf_add_layers appends the
 * layers to a graph.
 *
 *   LayoutLM   h = dropout(LN(W[id] + P[place] + X[x0] + Y[y0] + X[x1] + Y[y1] + H[y1 - y0]
 *                             + B[x1 - x0] + T[0]))
 *   block      a = LN(h + dropout(O attention(Q h, K h, V h))), h' = LN(a + dropout(F act(G a)))
 *
 * BERT, RoBERTa, XLM-R, CamemBERT and DistilBERT have no boxes (X, Y, H, B), and DistilBERT no T.
 * ViT, GPT-2, Llama, Mistral, Qwen2, Qwen3 and Phi-3 normalise the input of attention and
 * feed-forward, not the sum. N is the batch, S the number of positions of a sample.
 *
 * Ownership: a config is a plain struct, and no function keeps its arguments. Threads: no state.
 * Limits: 1 MiB of config.json; sizes as the table of config_keys.c says.
 */
#ifndef CLEAVE_HF_H
#define CLEAVE_HF_H

#include "common/base/json/json.h"
#include "common/model/graph/graph.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum clv_hf_family {
  CLV_HF_BERT,
  CLV_HF_ROBERTA,
  CLV_HF_XLM_ROBERTA, /* RoBERTa with another vocabulary, as CamemBERT */
  CLV_HF_CAMEMBERT,
  CLV_HF_LAYOUTLM,
  CLV_HF_DISTILBERT,
  CLV_HF_VIT,
  CLV_HF_GPT2, /* this and the following are decoders */
  CLV_HF_LLAMA,
  CLV_HF_MISTRAL,
  CLV_HF_QWEN2,
  CLV_HF_QWEN3,
  CLV_HF_PHI3,
  CLV_HF_FAMILIES
} clv_hf_family;

/* Head behind the last block, and the shape of its output. */
typedef enum clv_hf_head {
  CLV_HF_NO_HEAD,  /* the output of the last block, [N, S, hidden] */
  CLV_HF_SEQUENCE, /* scores the class of the sample, [N, labels] */
  CLV_HF_TOKEN,    /* scores the class of each position, [N, S, labels] */
  CLV_HF_MASKED,   /* predicts masked tokens, [N, S, vocabulary] */
  CLV_HF_CAUSAL,   /* predicts the token after each position, [N, S, vocabulary] */
  CLV_HF_HEADS
} clv_hf_head;

/* Kinds of rotary positions: the values of rope_type. Position t turns pair d of a head by t times
 * the number below. There f = base^(-2 d / width), and L is the number of positions in the earlier
 * training.
 *
 *   default  f
 *   linear   f / factor
 *   dynamic  f up to max_position_embeddings, beyond which every length has other angles: refused
 *   llama3   f (s + (1 - s) / factor), where s is (L f / 2 pi - low) / (high - low) within 0..1
 */
typedef enum clv_hf_rope_kind {
  CLV_HF_ROPE_DEFAULT,
  CLV_HF_ROPE_LINEAR,
  CLV_HF_ROPE_DYNAMIC,
  CLV_HF_ROPE_LLAMA3,
  CLV_HF_ROPE_KINDS
} clv_hf_rope_kind;

/* Rotary positions other than the default ones. Numbers that the kind does not have are 0. */
typedef struct clv_hf_rope {
  clv_hf_rope_kind kind;
  double factor, low_freq_factor, high_freq_factor;
  /* L: positions of the earlier training; for dynamic: positions up to which angles are default */
  int64_t original_positions;
} clv_hf_rope;

/* Contents of a config.json. Fields for keys that the family does not have are 0 or false. */
typedef struct clv_hf_config {
  clv_hf_family family;
  /* numbers that the config gives; n_kv_heads 0: as many as n_heads */
  int64_t vocabulary, hidden_size, n_layers, n_heads, n_kv_heads, inner_size;
  /* width of an attention head; 0: hidden / heads */
  int64_t head_width;
  /* numbers of rows in the embedding tables of positions, token types and box coordinates */
  int64_t max_positions, n_token_types, max_box_positions;
  /* id of the padding token; -1: the config has none; -2: the config has a negative id, which no
   * token has, so that the last row of the token table is the padding row (see padding_row) */
  int64_t padding_token;
  int64_t padding_row; /* row of the token table that gets no gradient; -1: none */
  int64_t image_size, patch_size, channels; /* image_size and patch_size: pixels per side */
  int64_t labels; /* number of classes that the config names; 2 if it names none */
  double embedding_dropout, hidden_dropout, attention_dropout, head_dropout;
  /* eps of norms; standard deviation of initial weights; base of rotary positions */
  double eps, init_deviation, rope_base;
  clv_hf_rope rope;
  /* number of positions to which a position attends, itself included (sliding_window); 0: all
   * before it */
  int64_t window;
  clv_op activation;
  bool is_head_tied; /* the token table is also the weight of the head */
  bool qkv_bias, out_bias, inner_bias;
} clv_hf_config;

/* Parses the text of a config.json. ignored: keys that are skipped although no row of the table of
 * keys has them (model.ignore_keys of a session); NULL: none. CLV_INVALID: the text is
 * `label:line:column: text`, or `label: text` for a missing key or an ignored one that has a
 * row. */
clv_code clv_hf_config_parse(const char *label, const char *text, size_t len,
                             const clv_json_keys *ignored, clv_hf_config *ret,
                             clv_err *err) CLV_USE_RESULT;
/* Reads and parses FOLDER/config.json, and calls clv_hf_check_other_files. CLV_NOT_FOUND: there is
 * no such file; CLV_EXHAUSTED: it is too large; CLV_INVALID: as clv_hf_config_parse. */
clv_code clv_hf_config_read(const char *folder, const clv_json_keys *ignored, clv_hf_config *ret,
                            clv_err *err) CLV_USE_RESULT;

/* Files beside config.json, whose keys change nothing that the graph computes. */
typedef enum clv_hf_other_file {
  CLV_HF_GENERATION,   /* generation_config.json */
  CLV_HF_PREPROCESSOR, /* preprocessor_config.json */
  CLV_HF_OTHER_FILES
} clv_hf_other_file;

/* Numbers in a preprocessor_config.json, one for each channel of pictures. A single number is for
 * all channels. */
typedef struct clv_hf_channels {
  size_t n; /* number of values; 0: not given */
  double at[16];
} clv_hf_channels;

/* Formula of preprocessor_config.json for the values of pictures: (value * factor - mean) / std. */
typedef struct clv_hf_pictures {
  bool is_given;      /* the folder has the file */
  bool is_normalized; /* mean and std are given, and do_normalize is not false */
  bool is_scaled;     /* do_rescale; without it `factor` is 1 */
  double factor;
  clv_hf_channels mean, std;
} clv_hf_pictures;

const char *clv_hf_other_file_name(clv_hf_other_file file);
/* Checks that each key of the text is known and has a value that changes nothing, or is in
 * `ignored`. ret: receives the formula of a preprocessor_config.json; NULL: not wanted.
 * CLV_INVALID: the text is `label:line:column: text`. */
clv_code clv_hf_other_file_parse(clv_hf_other_file file, const char *label, const char *text,
                                 size_t len, const clv_json_keys *ignored, clv_hf_pictures *ret,
                                 clv_err *err) CLV_USE_RESULT;
/* Reads FOLDER/preprocessor_config.json, if there is one. */
clv_code clv_hf_pictures_read(const char *folder, const clv_json_keys *ignored,
                              clv_hf_pictures *ret, clv_err *err) CLV_USE_RESULT;
/* Reads and checks those files of clv_hf_other_file that the folder has. CLV_EXHAUSTED: one is
 * larger than 1 MiB. */
clv_code clv_hf_check_other_files(const char *folder, const clv_json_keys *ignored,
                                  clv_err *err) CLV_USE_RESULT;

/* A row of the table of keys of config.json, for documents. Texts are static. */
typedef struct clv_hf_key {
  const char *names;   /* names of the key, with a blank between two */
  unsigned families;   /* bit 1 << f of each clv_hf_family f that has them; 0: all */
  const char *outcome; /* "done", "harmless", "refused unless null" and such */
  const char *word;    /* the only value accepted, after "refused unless"; NULL: none */
  const char *reason;  /* why a value is refused or skipped, or a remark; NULL: none */
  /* primary name, if `names` is the second name of a key; NULL: it is the primary name */
  const char *primary_key;
} clv_hf_key;
/* Returns false if the table has fewer than i + 1 rows. */
bool clv_hf_describe_key(size_t i, clv_hf_key *ret);
/* As clv_hf_describe_key, of the keys within rope_parameters and rope_scaling. */
bool clv_hf_describe_rope_key(size_t i, clv_hf_key *ret);
/* As clv_hf_describe_key, of the keys of another file. */
bool clv_hf_describe_other_key(clv_hf_other_file file, size_t i, clv_hf_key *ret);

/* Reads the text of FOLDER/config.json, and returns it and the file's path. */
clv_code clv_hf_config_read_text(const char *folder, clv_bytes *ret_path, clv_bytes *ret_text,
                                 clv_err *err) CLV_USE_RESULT;

/* Names of the classes, in the order of their numbers. */
typedef struct clv_hf_labels {
  char **names; /* [n], owned; no entry is NULL */
  size_t n;     /* number of classes; 0: the config names none */
} clv_hf_labels;

void clv_hf_labels_clear(clv_hf_labels *l);
clv_code clv_hf_labels_parse(const char *label, const char *text, size_t len, clv_hf_labels *ret,
                             clv_err *err) CLV_USE_RESULT;
clv_code clv_hf_labels_read(const char *folder, clv_hf_labels *ret, clv_err *err) CLV_USE_RESULT;

const char *clv_hf_family_name(clv_hf_family family); /* value of model_type, such as "layoutlm" */
/* value of model.head in a session file, such as "token" */
const char *clv_hf_head_name(clv_hf_head head);
/* Maximum bytes of the name of a module or parameter, with its NUL. */
enum { CLV_HF_NAME = 256 };
/* Returns the name that transformers 5 uses in memory for a module or parameter named `name` in
 * weight files. The names differ in the blocks of ViT. Files of peft use the names in memory. */
const char *clv_hf_name_in_memory(clv_hf_family family, const char *name, char ret[CLV_HF_NAME]);
/* Returns the prefix of all parameter names, except those of the head, such as "layoutlm." */
const char *clv_hf_param_prefix(const clv_hf_config *c, clv_hf_head head);
/* Returns the name of the transformers class for a family with a head, such as
 * "LayoutLMForTokenClassification"; NULL: the family has no such head. */
const char *clv_hf_class_name(clv_hf_family family, clv_hf_head head);

/* True if the model reads tokens; otherwise it reads images. */
bool clv_hf_takes_tokens(const clv_hf_config *c);
/* True if the model reads a box for each token. */
bool clv_hf_takes_boxes(const clv_hf_config *c);
/* True if positions are numbered as in RoBERTa: only tokens that are no padding count, and the
 * first of them has the number of the padding token plus 1. */
bool clv_hf_numbers_from_padding(clv_hf_family family);
/* True if attention is causal: a position attends only to itself and to earlier positions. */
bool clv_hf_is_decoder(const clv_hf_config *c);

/* Nodes of the graph that are the model's inputs. */
typedef struct clv_hf_inputs {
  int records; /* i64 [N, S], or f32 [N, channels, image, image] */
  int boxes;   /* i64 [N, S, 4]: x0, y0, x1, y1; -1: no boxes */
  int lengths; /* i64 [N]; -1: no position is padding */
} clv_hf_inputs;

/* Appends all layers of the model and of its head. *layer: in, number of the first new layer; out,
 * number behind the last one. *last: the node with the output. labels: number of classes; 0: the
 * number in the config. CLV_INVALID: the family has no such head, or a shape does not fit. */
clv_code clv_hf_add_layers(const clv_hf_config *c, clv_hf_head head, int64_t labels,
                           const clv_hf_inputs *inputs, clv_graph *g, uint32_t *layer, int *last,
                           clv_err *err) CLV_USE_RESULT;

#ifdef __cplusplus
}
#endif
#endif
