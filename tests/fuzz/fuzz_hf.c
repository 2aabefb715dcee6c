/* SPDX-License-Identifier: Apache-2.0
 *
 * Fuzzes a config.json of Hugging Face, and builds the graphs of the small models that it
 * describes, with every head.
 */
#include "common/model/hf/hf.h"
#include "tests/fuzz/never.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* True if the last dimension of the output is that of the head. */
static bool has_own_head_width(const clv_hf_config *c, clv_hf_head head, const clv_graph *g,
                               int last) {
  const clv_shape *s = &g->nodes[last].shape;
  int64_t wanted_width = head == CLV_HF_NO_HEAD                           ? c->hidden_size
                         : head == CLV_HF_MASKED || head == CLV_HF_CAUSAL ? c->vocabulary
                                                                          : c->labels;
  return s->dim[0] == 2 && s->dim[s->rank - 1] == wanted_width;
}

static void build_graph(const clv_hf_config *c, clv_hf_head head) {
  CLV_AUTO(clv_graph_freep) clv_graph *g = NULL;
  CLV_AUTO(clv_params_freep) clv_params *p = NULL;
  clv_shape ids = CLV_SHAPE(2, 3), boxes = CLV_SHAPE(2, 3, 4), lengths = CLV_SHAPE(2);
  clv_shape pixels = CLV_SHAPE(2, c->channels, c->image_size, c->image_size);
  bool takes_tokens = clv_hf_takes_tokens(c);
  clv_hf_inputs in = {.boxes = -1, .lengths = -1};
  uint32_t layer = 0;
  int last;
  clv_err err;
  NEVER(clv_graph_new(&g, &err) != CLV_OK);
  if (clv_graph_add_input(g, "ids", takes_tokens ? CLV_I64 : CLV_F32, takes_tokens ? &ids : &pixels,
                          &in.records, &err) != CLV_OK)
    return;
  if (clv_hf_takes_boxes(c))
    NEVER(clv_graph_add_input(g, "boxes", CLV_I64, &boxes, &in.boxes, &err) != CLV_OK);
  if (takes_tokens)
    NEVER(clv_graph_add_input(g, "lengths", CLV_I64, &lengths, &in.lengths, &err) != CLV_OK);
  if (clv_hf_add_layers(c, head, 0, &in, g, &layer, &last, &err) != CLV_OK) return;
  NEVER(!clv_hf_class_name(c->family, head) || !has_own_head_width(c, head, g, last));
  NEVER(layer + 1 + takes_tokens + clv_hf_takes_boxes(c) != (uint32_t)g->n_nodes);
  if (clv_params_make(g, &p, &err) == CLV_OK) NEVER(p->n_trainable_values == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static const char *const unknown[] = {"auto_map", "surprise"};
  const clv_json_keys ignored = {unknown, CLV_COUNT(unknown)};
  clv_hf_config c, other;
  clv_err err = {0}, other_err;
  clv_code code = clv_hf_config_parse("fuzz", (const char *)data, size, NULL, &c, &err);
  clv_code code_with_ignored =
      clv_hf_config_parse("fuzz", (const char *)data, size, &ignored, &other, &other_err);
  NEVER(code == CLV_OK && code_with_ignored != CLV_OK);
  NEVER(code != CLV_OK && !strstr(err.text, "fuzz:"));
  clv_hf_pictures pictures;
  for (int f = 0; f < CLV_HF_OTHER_FILES; f++) {
    clv_code without = clv_hf_other_file_parse((clv_hf_other_file)f, "fuzz", (const char *)data,
                                               size, NULL, NULL, &other_err);
    clv_code with = clv_hf_other_file_parse((clv_hf_other_file)f, "fuzz", (const char *)data, size,
                                            &ignored, &pictures, &other_err);
    NEVER(without == CLV_OK && with != CLV_OK);
    NEVER(with == CLV_OK && (pictures.mean.n > 16 || pictures.std.n > 16));
  }
  CLV_AUTO(clv_hf_labels_clear) clv_hf_labels names = {0};
  if (clv_hf_labels_parse("fuzz", (const char *)data, size, &names, &err) == CLV_OK)
    for (size_t i = 0; i < names.n; i++) NEVER(!names.names[i]);
  if (code != CLV_OK || c.n_layers > 3) return 0;
  for (int h = 0; h < CLV_HF_HEADS; h++) build_graph(&c, (clv_hf_head)h);
  return 0;
}
