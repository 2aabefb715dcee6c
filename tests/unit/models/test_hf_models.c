/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests sessions whose model a config.json describes: stages are ranges of block names, with or
 * without the prefix that parameters have in the files, and errors state their position.
 */
#include <limits.h>
#include <unistd.h>

#include "tests/unit/models/models_check.h"

static const clv_shape ids = {2, {2, 5}};

/* Returns a session over a Hugging Face folder. Line 7 is the model, line 9 the first stage. */
static clv_session_config *make_session(const char *folder, const char *model_keys,
                                        const char *const *ranges, int n) {
  clv_session_config *c = NULL;
  char working_dir[PATH_MAX];
  clv_bytes text = {0};
  assert_non_null(getcwd(working_dir, sizeof working_dir));
  clv_bytes_printf(&text,
                   "version: 1\nname: t\ndata: {format: npy, root: /data, train: [a, b]}\n"
                   "loss: {kind: cross_entropy}\ntrain:\n"
                   "  {batch: 8, optimizer: {kind: sgd, lr: 0.1}}\n"
                   "model: {hf: %s/tests/golden/hf/%s, %s}\nstages:\n",
                   working_dir, folder, model_keys);
  for (int i = 0; i < n; i++)
    clv_bytes_printf(&text, "  - {name: s%d, at: master, layers: %s}\n", i, ranges[i]);
  assert_ok(clv_session_config_parse("/s.yaml", text.data, text.len, NULL, &c, err));
  clv_bytes_done(&text);
  return c;
}

static void stage_ranges_accept_block_names(void **state) {
  static const char *const ranges[][3] = {
      {"embed_tokens", "layers.0..layers.1", "norm..lm_head"},
      {"model.embed_tokens", "model.layers.0..layers.1", "model.norm..lm_head"}};
  (void)state;
  for (size_t i = 0; i < CLV_COUNT(ranges); i++) {
    clv_session_config *c = make_session("llama", "head: causal", ranges[i], 3);
    clv_graph *g = NULL;
    uint32_t first[3], last[3];
    assert_true(clv_model_takes_tokens(c));
    assert_ok(clv_model_make_graph(c, &ids, &g, first, last, err));
    assert_int_equal(first[0] + last[0], 0);
    assert_int_equal(first[1], 1);
    assert_string_equal(g->nodes[first[1] + 1].name, "model.layers.0.input_layernorm");
    assert_string_equal(g->nodes[last[1] + 1].name, "model.layers.1.mlp.add");
    assert_int_equal(first[2], last[1] + 1);
    assert_string_equal(g->nodes[last[2] + 1].name, "lm_head");
    assert_int_equal(g->nodes[g->output_node].shape.dim[2], 50);
    clv_graph_free(g);
    clv_session_config_free(c);
  }
}

static void session_labels_override_the_config_file(void **state) {
  static const char *const full_range[] = {"embed_tokens..score"};
  (void)state;
  for (int n_labels = 0; n_labels <= 7; n_labels += 7) {
    clv_session_config *c =
        make_session("qwen2", n_labels ? "head: token, labels: 7" : "head: token", full_range, 1);
    clv_graph *g = NULL;
    uint32_t first, last;
    assert_ok(clv_model_make_graph(c, &ids, &g, &first, &last, err));
    assert_int_equal(g->nodes[g->output_node].shape.dim[2], n_labels ? n_labels : 3);
    clv_graph_free(g);
    clv_session_config_free(c);
  }
}

static void model_errors_name_session_line_or_config_file(void **state) {
  static const char *const misspelt_ranges[] = {"embed_tokens..layer.0", "norm..lm_head"};
  static const char *const unknown_ranges[] = {"embed_tokens..layers.0", "pooler..lm_head"};
  static const char *const full_range[] = {"embed_tokens..lm_head"};
  (void)state;
  assert_refused(make_session("llama", "head: causal", misspelt_ranges, 2), &ids,
                 "/s.yaml:9:", "no layer or block 'layer.0', did you mean 'layers.0'?");
  assert_refused(make_session("llama", "head: causal", unknown_ranges, 2), &ids, "/s.yaml:10:",
                 "no layer or block 'pooler'; it has embed_tokens, layers, norm, lm_head");
  assert_refused(make_session("llama", "head: masked", full_range, 1), &ids,
                 "/s.yaml:7:13: model.hf: ", "a llama has no head 'masked'");
  assert_refused(make_session("llama", "head: token, labels: 0", full_range, 1), &ids,
                 "/s.yaml:7:", "labels is a whole number from 1");
  assert_refused(make_session("llama", "head: token, classes: 2", full_range, 1), &ids,
                 "/s.yaml:7:", "a model by hf has no key 'classes', only labels");
  assert_refused(make_session("nothing", "head: token", full_range, 1), &ids,
                 "/s.yaml:7:13: model.hf: ", "nothing/config.json");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(stage_ranges_accept_block_names),
      cmocka_unit_test(session_labels_override_the_config_file),
      cmocka_unit_test(model_errors_name_session_line_or_config_file),
  };
  return cmocka_run_group_tests_name("hf_models", tests, NULL, NULL);
}
