/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests graphs made by a config.json: every parameter has the name and the shape that it has in the
 * files of transformers (tests/golden/hf), no parameter is missing except those that no output
 * reads, and what is not supported is refused.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "common/model/hf/hf.h"
#include "tests/unit/must.h"

enum { N = 2, PLACES = 7 };

static clv_hf_config read_config(const char *family) {
  char folder[64];
  clv_hf_config c;
  clv_err err;
  snprintf(folder, sizeof folder, "tests/golden/hf/%s", family);
  must(clv_hf_config_read(folder, NULL, &c, &err), &err);
  return c;
}

/* Builds the graph of a config, with the inputs that its family takes. */
static clv_code build_graph(const clv_hf_config *c, clv_hf_head head, bool has_lengths,
                            clv_graph **ret, clv_err *err) {
  CLV_AUTO(clv_graph_freep) clv_graph *g = NULL;
  bool takes_tokens = clv_hf_takes_tokens(c);
  clv_shape shape =
      takes_tokens ? CLV_SHAPE(N, PLACES) : CLV_SHAPE(N, c->channels, c->image_size, c->image_size);
  clv_shape boxes = CLV_SHAPE(N, PLACES, 4), lengths = CLV_SHAPE(N);
  clv_hf_inputs in = {.boxes = -1, .lengths = -1};
  uint32_t layer = 0;
  CLV_TRY(clv_graph_new(&g, err));
  CLV_TRY(
      clv_graph_add_input(g, "ids", takes_tokens ? CLV_I64 : CLV_F32, &shape, &in.records, err));
  if (clv_hf_takes_boxes(c))
    CLV_TRY(clv_graph_add_input(g, "boxes", CLV_I64, &boxes, &in.boxes, err));
  if (has_lengths) CLV_TRY(clv_graph_add_input(g, "lengths", CLV_I64, &lengths, &in.lengths, err));
  CLV_TRY(clv_hf_add_layers(c, head, 0, &in, g, &layer, &g->output_node, err));
  *ret = clv_steal(&g);
  return CLV_OK;
}

/* ---- names and shapes of parameters ---------------------------------------------------------- */

/* True if transformers makes the parameter but no output of the head uses it, or if the name is a
 * second name of another parameter. */
static bool is_unused_parameter(const char *line, clv_hf_head head) {
  static const char *const second_names[] = {"cls.predictions.bias", "lm_head.bias"};
  for (size_t i = 0; i < CLV_COUNT(second_names); i++)
    if (strncmp(line, second_names[i], strlen(second_names[i])) == 0) return true;
  return strstr(line, "pooler.dense") && head != CLV_HF_SEQUENCE;
}

/* Writes "name [2, 3]" to buf, as Python prints a shape. */
static const char *write_parameter_line(const clv_param *p, char *buf, size_t size) {
  char shape[160];
  snprintf(buf, size, "%s %s", p->name, clv_shape_format(&p->shape, shape, sizeof shape));
  return buf;
}

static bool has_parameter(const clv_params *params, const char *line) {
  char text[256];
  for (int i = 0; i < params->n; i++)
    if (strcmp(write_parameter_line(&params->list[i], text, sizeof text), line) == 0) return true;
  return false;
}

static void check_names(const char *family, clv_hf_head head, const clv_params *params) {
  char path[96], line[256], text[256];
  int n_unused = 0, n = 0;
  snprintf(path, sizeof path, "tests/golden/hf/%s/%s.txt", family, clv_hf_head_name(head));
  FILE *f = fopen(path, "r");
  if (!f) fail_msg("%s cannot be opened", path);
  while (f && fgets(line, sizeof line, f)) {
    line[strcspn(line, "\n")] = '\0';
    bool is_unused = is_unused_parameter(line, head);
    if (has_parameter(params, line) == is_unused) fail_msg("%s: %s", path, line);
    n_unused += is_unused;
    n++;
  }
  if (f) fclose(f);
  if (params->n != n - n_unused) {
    for (int i = 0; i < params->n; i++)
      print_error("%s\n", write_parameter_line(&params->list[i], text, sizeof text));
    fail_msg("%s: %d parameters, not %d", path, params->n, n - n_unused);
  }
}

/* Only the embedding of the tokens has a padding row. The class of the family decides which row it
 * is. */
static void only_token_embedding_has_a_padding_row(void **state) {
  /* padding rows of bert, roberta, ... in the order of clv_hf_family; -1: none */
  static const int64_t padding_rows[CLV_HF_FAMILIES] = {0, 1, 1, 1, 0, 0, -1, -1, 5, 5, 5, 5, 5};
  (void)state;
  for (int i = 0; i < CLV_HF_FAMILIES; i++) {
    CLV_AUTO(clv_graph_freep) clv_graph *g = NULL;
    clv_hf_config c = read_config(clv_hf_family_name((clv_hf_family)i));
    clv_err err;
    if (c.family >= CLV_HF_LLAMA) c.padding_row = 5;
    must(build_graph(&c, CLV_HF_NO_HEAD, clv_hf_takes_tokens(&c), &g, &err), &err);
    for (int n = 0; n < g->n_nodes; n++) {
      const clv_attrs *a = &g->nodes[n].attrs;
      bool is_token_table = a->rows == c.vocabulary && a->column < 0 && a->minus < 0;
      if (g->nodes[n].op == CLV_OP_EMBEDDING &&
          a->padding_idx != (is_token_table ? padding_rows[i] : -1))
        fail_msg("%s: %s has padding_idx %d", clv_hf_family_name((clv_hf_family)i),
                 g->nodes[n].name, (int)a->padding_idx);
    }
  }
}

static void parameter_names_and_shapes_match_transformers(void **state) {
  (void)state;
  for (int i = 0; i < CLV_HF_FAMILIES; i++) {
    const char *family = clv_hf_family_name((clv_hf_family)i);
    clv_hf_config c = read_config(family);
    for (int h = 0; h < CLV_HF_HEADS; h++) {
      CLV_AUTO(clv_graph_freep) clv_graph *g = NULL;
      CLV_AUTO(clv_params_freep) clv_params *params = NULL;
      clv_err err;
      if (!clv_hf_class_name(c.family, (clv_hf_head)h)) continue;
      must(build_graph(&c, (clv_hf_head)h, clv_hf_takes_tokens(&c), &g, &err), &err);
      must(clv_params_make(g, &params, &err), &err);
      check_names(family, (clv_hf_head)h, params);
    }
  }
}

/* ---- ops of the graph and first values of parameters ----------------------------------------- */

static int count_op(const clv_graph *g, clv_op op) {
  int n = 0;
  for (int i = 0; i < g->n_nodes; i++) n += g->nodes[i].op == op;
  return n;
}

/* The graph has dropout where transformers has it: after the embeddings, on the probabilities of
 * attention, twice in a block and at the head. A config value of 0 means no dropout. */
static void dropout_positions_match_transformers(void **state) {
  clv_hf_config c = read_config("layoutlm");
  clv_err err;
  (void)state;
  for (int on = 1; on >= 0; on--) {
    CLV_AUTO(clv_graph_freep) clv_graph *g = NULL;
    if (!on) c.embedding_dropout = c.hidden_dropout = c.attention_dropout = c.head_dropout = 0;
    must(build_graph(&c, CLV_HF_TOKEN, true, &g, &err), &err);
    assert_int_equal(count_op(g, CLV_OP_DROPOUT), on ? 1 + 2 * 2 + 1 : 0);
    for (int i = 0; i < g->n_nodes; i++)
      if (g->nodes[i].op == CLV_OP_ATTENTION)
        assert_true(g->nodes[i].attrs.p == (on ? 0.1 : 0) && g->nodes[i].n_in == 4);
  }
}

/* DistilBERT has no dropout after attention. Its head for sequences has a dropout of its own. */
static void distilbert_dropouts_match_transformers(void **state) {
  CLV_AUTO(clv_graph_freep) clv_graph *g = NULL;
  clv_hf_config c = read_config("distilbert");
  clv_err err;
  double last_p = 0;
  (void)state;
  must(build_graph(&c, CLV_HF_SEQUENCE, true, &g, &err), &err);
  assert_int_equal(count_op(g, CLV_OP_DROPOUT), 1 + 2 + 1);
  for (int i = 0; i < g->n_nodes; i++)
    if (g->nodes[i].op == CLV_OP_DROPOUT) last_p = g->nodes[i].attrs.p;
  assert_true(last_p == 0.2);
  assert_int_equal(count_op(g, CLV_OP_RELU), 1);
}

/* The op for rotary positions has the attributes of its kind. In Qwen3 an RMSNorm precedes that op,
 * for queries and for keys. */
static void rotary_attributes_follow_the_kind(void **state) {
  static const struct {
    clv_hf_rope rope;
    double factor;
    int64_t original;
  } cases[] = {{{CLV_HF_ROPE_DEFAULT, 8, 1, 4, 16}, 1, 0},
               {{CLV_HF_ROPE_LINEAR, 2, 0, 0, 16}, 2, 0},
               {{CLV_HF_ROPE_DYNAMIC, 2, 0, 0, 16}, 1, 0},
               {{CLV_HF_ROPE_LLAMA3, 8, 1, 4, 16}, 8, 16}};
  (void)state;
  for (size_t k = 0; k < CLV_COUNT(cases); k++) {
    CLV_AUTO(clv_graph_freep) clv_graph *g = NULL;
    clv_hf_config c = read_config("qwen3");
    clv_err err;
    c.rope = cases[k].rope;
    must(build_graph(&c, CLV_HF_CAUSAL, true, &g, &err), &err);
    assert_int_equal(count_op(g, CLV_OP_RMSNORM), 2 * 4 + 1);
    for (int i = 0; i < g->n_nodes; i++) {
      const clv_node *n = &g->nodes[i];
      if (n->op != CLV_OP_ROTARY) continue;
      assert_true(n->attrs.factor == cases[k].factor && n->attrs.original == cases[k].original);
      assert_int_equal(g->nodes[g->nodes[n->in[0]].in[0]].op, CLV_OP_RMSNORM);
    }
  }
}

/* Queries, keys and values of Phi-3 are columns of one linear layer. The gate and up projections
 * are columns of another. */
static void phi3_slices_cover_its_projections(void **state) {
  static const struct {
    const char *name;
    int64_t start, stop;
  } slices[] = {{"model.layers.1.self_attn.query", 0, 16},
                {"model.layers.1.self_attn.key", 16, 24},
                {"model.layers.1.self_attn.value", 24, 32},
                {"model.layers.1.mlp.gate", 0, 24},
                {"model.layers.1.mlp.up", 24, 48}};
  CLV_AUTO(clv_graph_freep) clv_graph *g = NULL;
  clv_hf_config c = read_config("phi3");
  clv_err err;
  size_t found = 0;
  (void)state;
  c.hidden_dropout = 0.1;
  must(build_graph(&c, CLV_HF_CAUSAL, true, &g, &err), &err);
  for (int i = 0; i < g->n_nodes; i++)
    for (size_t k = 0; k < CLV_COUNT(slices); k++) {
      if (strcmp(g->nodes[i].name, slices[k].name) != 0) continue;
      found++;
      assert_int_equal(g->nodes[i].attrs.start, slices[k].start);
      assert_int_equal(g->nodes[i].attrs.stop, slices[k].stop);
    }
  assert_int_equal(found, CLV_COUNT(slices));
  assert_int_equal(count_op(g, CLV_OP_DROPOUT), 2 * 2);
}

static void attention_and_head_dropout_match_transformers(void **state) {
  clv_hf_config c = read_config("qwen2");
  clv_err err;
  (void)state;
  for (int on = 1; on >= 0; on--) {
    CLV_AUTO(clv_graph_freep) clv_graph *g = NULL;
    c.attention_dropout = on ? 0.2 : 0;
    c.head_dropout = on ? 0.1 : 0;
    must(build_graph(&c, CLV_HF_TOKEN, true, &g, &err), &err);
    assert_int_equal(count_op(g, CLV_OP_DROPOUT), on);
    assert_int_equal(count_op(g, CLV_OP_ATTENTION), 2);
    for (int i = 0; i < g->n_nodes; i++)
      if (g->nodes[i].op == CLV_OP_ATTENTION)
        assert_true(g->nodes[i].attrs.p == (on ? 0.2 : 0) && g->nodes[i].n_in == 4 &&
                    g->nodes[i].attrs.causal);
  }
}

static void layers_are_numbered_and_named(void **state) {
  CLV_AUTO(clv_graph_freep) clv_graph *g = NULL;
  clv_hf_config c = read_config("llama");
  clv_err err;
  (void)state;
  must(build_graph(&c, CLV_HF_SEQUENCE, false, &g, &err), &err);
  for (int i = 1; i < g->n_nodes; i++) assert_int_equal(g->nodes[i].layer, i - 1);
  assert_string_equal(g->nodes[1].name, "model.embed_tokens");
  assert_string_equal(g->nodes[g->n_nodes - 1].name, "score");
  assert_string_equal(g->name_prefix, "model.");
}

/* Weights have the config's standard deviation and biases are 0. The output projections of GPT-2's
 * attention and MLP have a smaller deviation. */
static void initial_weights_have_the_config_deviation(void **state) {
  CLV_AUTO(clv_graph_freep) clv_graph *g = NULL;
  CLV_AUTO(clv_params_freep) clv_params *p = NULL;
  CLV_AUTO(clv_freep) char *block = NULL;
  clv_hf_config c = read_config("gpt2");
  clv_err err;
  (void)state;
  c.init_deviation = 0.5;
  must(build_graph(&c, CLV_HF_CAUSAL, false, &g, &err), &err);
  must(clv_params_make(g, &p, &err), &err);
  must(clv_alloc(p->total_bytes, 1, &block, &err), &err);
  clv_params_init(g, p, block);
  for (int i = 0; i < p->n; i++) {
    const float *v = (const float *)(const void *)(block + p->list[i].offset);
    double squares = 0, wanted_deviation = strstr(p->list[i].name, "c_proj") ? 0.25 : 0.5;
    for (size_t k = 0; k < p->list[i].n; k++) squares += (double)v[k] * v[k];
    if (strstr(p->list[i].name, ".ln_")) continue;
    if (strstr(p->list[i].name, ".bias")) wanted_deviation = 0;
    if (fabs(sqrt(squares / (double)p->list[i].n) - wanted_deviation) > 0.15 * wanted_deviation)
      fail_msg("%s: %g, not %g", p->list[i].name, sqrt(squares / (double)p->list[i].n),
               wanted_deviation);
  }
}

/* The decoder (last linear layer) of a language-model head shares the table of the token embedding,
 * which is listed once among the parameters. The decoder has a bias of its own. */
static void tied_head_shares_the_token_embedding(void **state) {
  static const struct {
    const char *family, *table, *decoder;
    clv_hf_head head;
  } of[] = {
      {"bert", "bert.embeddings.word_embeddings.weight", "cls.predictions.decoder", CLV_HF_MASKED},
      {"roberta", "roberta.embeddings.word_embeddings.weight", "lm_head.decoder", CLV_HF_MASKED},
      {"layoutlm", "layoutlm.embeddings.word_embeddings.weight", "cls.predictions.decoder",
       CLV_HF_MASKED},
      {"xlm-roberta", "roberta.embeddings.word_embeddings.weight", "lm_head.decoder",
       CLV_HF_MASKED},
      {"distilbert", "distilbert.embeddings.word_embeddings.weight", "vocab_projector",
       CLV_HF_MASKED},
      {"qwen3", "model.embed_tokens.weight", "lm_head", CLV_HF_CAUSAL},
      {"gpt2", "transformer.wte.weight", "lm_head", CLV_HF_CAUSAL},
      {"llama", "model.embed_tokens.weight", "lm_head", CLV_HF_CAUSAL},
      {"qwen2", "model.embed_tokens.weight", "lm_head", CLV_HF_CAUSAL}};
  clv_err err;
  (void)state;
  for (size_t i = 0; i < CLV_COUNT(of); i++) {
    CLV_AUTO(clv_graph_freep) clv_graph *g = NULL;
    CLV_AUTO(clv_params_freep) clv_params *p = NULL;
    clv_hf_config c = read_config(of[i].family);
    char weight[96];
    c.is_head_tied = true;
    must(build_graph(&c, of[i].head, true, &g, &err), &err);
    must(clv_params_make(g, &p, &err), &err);
    snprintf(weight, sizeof weight, "%s.weight", of[i].decoder);
    assert_int_equal(p->n_ties, 1);
    assert_string_equal(p->ties[0].param.name, weight);
    assert_string_equal(p->list[p->ties[0].owner_index].name, of[i].table);
    assert_null(clv_params_find(p, weight));
    snprintf(weight, sizeof weight, "%s.bias", of[i].decoder);
    assert_int_equal(clv_params_find(p, weight) != NULL, of[i].head == CLV_HF_MASKED);
  }
}

/* ---- configs that are refused ---------------------------------------------------------------- */

static void unsupported_heads_and_sizes_are_refused(void **state) {
  CLV_AUTO(clv_graph_freep) clv_graph *g = NULL;
  clv_hf_config c = read_config("llama");
  clv_err err = {0};
  (void)state;
  expect_error(CLV_INVALID, "a llama has no head 'masked', only none, sequence, token, causal",
               build_graph(&c, CLV_HF_MASKED, false, &g, &err), &err);
  c = read_config("layoutlm");
  c.max_positions = PLACES - 1;
  expect_error(CLV_INVALID, "position_embeddings", build_graph(&c, CLV_HF_TOKEN, false, &g, &err),
               &err);
  c = read_config("mistral");
  c.window = PLACES;
  must(build_graph(&c, CLV_HF_TOKEN, false, &g, &err), &err);
  clv_graph_free(g);
  g = NULL;
  c.window--;
  expect_error(CLV_INVALID,
               "records have 7 positions, and sliding_window of config.json lets a "
               "position see 6",
               build_graph(&c, CLV_HF_TOKEN, false, &g, &err), &err);
  c = read_config("llama");
  c.rope = (clv_hf_rope){.kind = CLV_HF_ROPE_DYNAMIC, .original_positions = PLACES - 1};
  expect_error(CLV_INVALID, "rope_type dynamic of config.json turns those beyond 6",
               build_graph(&c, CLV_HF_TOKEN, false, &g, &err), &err);
  c = read_config("llama");
  c.n_layers = 100000;
  expect_error(CLV_EXHAUSTED, "nodes", build_graph(&c, CLV_HF_TOKEN, false, &g, &err), &err);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(only_token_embedding_has_a_padding_row),
      cmocka_unit_test(parameter_names_and_shapes_match_transformers),
      cmocka_unit_test(dropout_positions_match_transformers),
      cmocka_unit_test(attention_and_head_dropout_match_transformers),
      cmocka_unit_test(distilbert_dropouts_match_transformers),
      cmocka_unit_test(rotary_attributes_follow_the_kind),
      cmocka_unit_test(phi3_slices_cover_its_projections),
      cmocka_unit_test(layers_are_numbered_and_named),
      cmocka_unit_test(initial_weights_have_the_config_deviation),
      cmocka_unit_test(tied_head_shares_the_token_embedding),
      cmocka_unit_test(unsupported_heads_and_sizes_are_refused),
  };
  return cmocka_run_group_tests_name("hf_graph", tests, NULL, NULL);
}
