/* SPDX-License-Identifier: Apache-2.0
 *
 * Fuzzes a config.json of Hugging Face, and builds the graphs of the small models that it
 * describes, with every head. An accepted file is read again from a folder, under its name.
 */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "common/model/hf/hf.h"
#include "tests/fuzz/never.h"

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static char folder[] = "/dev/shm/cleave-fuzz-XXXXXX";

static void remove_folder(void) { rmdir(folder); }

int LLVMFuzzerInitialize(int *argc, char ***argv) {
  (void)argc, (void)argv;
  NEVER(!mkdtemp(folder));
  return atexit(remove_folder);
}

/* Writes a file into the folder. The caller must unlink `path` before it writes the next file. */
static void put_file(const char *name, const uint8_t *data, size_t size, char path[96]) {
  clv_err err;
  snprintf(path, 96, "%s/%s", folder, name);
  NEVER(clv_file_write_durable(path, data, size, 0600, &err) != CLV_OK);
}

static void read_config_from_folder(const uint8_t *data, size_t size,
                                    const clv_json_keys *ignored) {
  char path[96];
  clv_hf_config c;
  clv_err err = {0};
  put_file("config.json", data, size, path);
  NEVER(clv_hf_config_read(folder, ignored, &c, &err) != CLV_OK);
  unlink(path);
}

static void read_other_file_from_folder(clv_hf_other_file file, const uint8_t *data, size_t size,
                                        const clv_json_keys *ignored) {
  char path[96];
  clv_hf_pictures pictures;
  clv_err err = {0};
  put_file(clv_hf_other_file_name(file), data, size, path);
  NEVER(clv_hf_check_other_files(folder, ignored, &err) != CLV_OK);
  NEVER(clv_hf_pictures_read(folder, ignored, &pictures, &err) != CLV_OK);
  unlink(path);
}

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
    if (with == CLV_OK) read_other_file_from_folder((clv_hf_other_file)f, data, size, &ignored);
  }
  CLV_AUTO(clv_hf_labels_clear) clv_hf_labels names = {0};
  if (clv_hf_labels_parse("fuzz", (const char *)data, size, &names, &err) == CLV_OK)
    for (size_t i = 0; i < names.n; i++) NEVER(!names.names[i]);
  if (code_with_ignored == CLV_OK) read_config_from_folder(data, size, &ignored);
  if (code != CLV_OK || c.n_layers > 3) return 0;
  for (int h = 0; h < CLV_HF_HEADS; h++) build_graph(&c, (clv_hf_head)h);
  return 0;
}
