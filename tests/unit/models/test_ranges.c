/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests ranges of a model by number and by name, and the messages about ranges that cannot be
 * stages.
 */
#include "tests/unit/models/models_test.h"

/* Ranges of layer names, of layer numbers, of nested blocks and of single names give the same cuts.
 */
static void equivalent_range_spellings_give_the_same_cuts(void **state) {
  (void)state;
  static const char *const equal_ranges[][3] = {
      {"conv1..layer1", "layer2", "layer3..fc"},
      {"0..maxpool", "layer1..layer2.3", "layer3.0.conv1..174"},
      {"0..35", "36..77", "78..174"},
      {"conv1..layer1.2.relu", "layer2.0..layer2", "\"layer3.0..fc\""},
  };
  static const uint32_t last_layers[][3] = {
      {35, 77, 174}, {3, 77, 174}, {35, 77, 174}, {35, 77, 174}};
  for (size_t i = 0; i < CLV_COUNT(equal_ranges); i++) {
    clv_session_config *c = make_session("resnet50", "", equal_ranges[i], 3);
    clv_graph *g = NULL;
    uint32_t first[3], last[3];
    assert_ok(clv_model_make_graph(c, &image, &g, first, last, err));
    assert_memory_equal(last, last_layers[i], sizeof last);
    clv_graph_free(g);
    clv_session_config_free(c);
  }
}

/* ---- ranges that are refused ----------------------------------------------------------------- */

static const struct {
  const char *ranges[2], *error_position, *error_text;
} refusals[] = {
    {{"conv1..layer2.7", "layer3..fc"},
     "/s.yaml:8:36: ",
     "no layer or block 'layer2.7', did you mean 'layer2.0'?; it has conv1, bn1, relu, maxpool, "
     "layer1, layer2, layer3, layer4, avgpool, flatten, fc"},
    {{"conv1..layer2", "stage5"}, "/s.yaml:9:36: ", "has no layer or block 'stage5'"},
    {{"0-77", "layer3..fc"}, "/s.yaml:8:36: ", "'0-77'; a range is written 0..77; it has conv1"},
    {{"conv1-layer2", "layer3..fc"}, "/s.yaml:8:36: ", "a range is written conv1..layer2"},
    {{"conv1..layer", "layer3..fc"}, "/s.yaml:8:36: ", "no layer or block 'layer'"},
    {{"conv1..layer2", "layer3.1..fc"},
     "/s.yaml:9:36: ",
     "stage 's1' starts with layer 90 ('layer3.1'), but layer 78 ('layer3') is next"},
    {{"conv1..layer2", "layer2.3..fc"}, "/s.yaml:9:36: ", "but layer 78 ('layer3') is next"},
    {{"conv1..layer2", "layer3..layer4"},
     "/s.yaml:6:",
     "the stages end with layer 171 ('layer4'), the model with layer 174 ('fc')"},
    {{"conv1..fc", "layer3..fc"}, "/s.yaml:9:36: ", "'s1' comes behind the end of the model"},
    {{"conv1..layer2", "layer3..175"},
     "/s.yaml:9:36: ",
     "the model has layers 0..174, by name conv1, bn1, relu, maxpool, layer1, "},
    {{"175..fc", "layer3..fc"}, "/s.yaml:8:36: ", "the model has layers 0..174"},
    {{"layer2..conv1", "layer3..fc"},
     "/s.yaml:8:36: ",
     "ends before it begins: layer 36 ('layer2') to layer 0 ('conv1')"},
};

static void invalid_cuts_are_refused(void **state) {
  (void)state;
  for (size_t i = 0; i < CLV_COUNT(refusals); i++) {
    assert_refused(make_session("resnet50", "", refusals[i].ranges, 2), &image,
                   refusals[i].error_position, refusals[i].error_text);
  }
}

/* A stage may end inside a block. Then the next stage receives the values of both branches. */
static void cut_inside_a_block_sends_both_branches(void **state) {
  (void)state;
  static const char *const ranges[] = {"conv1..layer2.2.bn1", "layer2.2.relu1..fc"};
  clv_session_config *c = make_session("resnet50", "", ranges, 2);
  clv_graph *g = NULL, *part = NULL;
  uint32_t first[2], last[2];
  assert_ok(clv_model_make_graph(c, &image, &g, first, last, err));
  assert_ok(clv_graph_slice(g, first[0], last[0], &part, err));
  assert_true(clv_shape_equal(&part->nodes[part->output_node].shape,
                              &CLV_SHAPE(2, 512 * 28 * 28 + 128 * 28 * 28)));
  clv_graph_free(part);
  assert_ok(clv_graph_slice(g, first[1], last[1], &part, err));
  assert_true(clv_shape_equal(&part->nodes[part->output_node].shape, &CLV_SHAPE(2, 1000)));
  clv_graph_free(part);
  clv_graph_free(g);
  clv_session_config_free(c);
}

/* A module of a program has one input and one output, so ranges are refused at whose end two values
 * would cross to the next stage. */
static const struct {
  const char *range, *error_text;
} refused_parts[] = {
    {"conv1..layer2.2.bn1",
     "stage 's0' ends inside block 'layer2.2', where two values would cross, of 'layer2.1.relu' "
     "and 'layer2.2.bn1'; end it with layer2.1 or layer2.2"},
    {"0..4", "end it with maxpool or layer1.0"},
    {"conv1..layer4.2.bn3", "layer4.1 or layer4"},
    {"5..174", "end it with maxpool or layer1.0"},
};

static void invalid_first_stage_ranges_are_refused(void **state) {
  (void)state;
  for (size_t i = 0; i < CLV_COUNT(refused_parts); i++) {
    clv_session_config *c = make_session("resnet50", "", &refused_parts[i].range, 1);
    clv_graph *g = NULL;
    clv_err err = {0};
    assert_int_equal(clv_model_make_first_stage_graph(c, &image, &g, &err), CLV_INVALID);
    if (strncmp(err.text, "/s.yaml:8:36: ", 14) || !strstr(err.text, refused_parts[i].error_text))
      fail_msg("'%s' is not '...%s'", err.text, refused_parts[i].error_text);
    clv_session_config_free(c);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(equivalent_range_spellings_give_the_same_cuts),
      cmocka_unit_test(invalid_cuts_are_refused),
      cmocka_unit_test(cut_inside_a_block_sends_both_branches),
      cmocka_unit_test(invalid_first_stage_ranges_are_refused),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
