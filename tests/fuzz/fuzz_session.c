/* SPDX-License-Identifier: Apache-2.0
 *
 * Fuzzes the parser of session files with overrides (fuzz_config.h). An accepted file is written as
 * text that is accepted again and written as the same text, and gives a graph or an error that says
 * why not.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/model/models/models.h"
#include "tests/fuzz/fuzz_config.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_round_trip(const clv_session_config *config) {
  CLV_AUTO(clv_bytes_done) clv_bytes first = {0}, second = {0};
  CLV_AUTO(clv_session_config_freep) clv_session_config *parsed_again = NULL;
  NEVER(clv_session_config_write(config, &first, NULL));
  NEVER(clv_session_config_parse("/elsewhere/t.yaml", first.data, first.len, NULL, &parsed_again,
                                 NULL));
  NEVER(clv_session_config_write(parsed_again, &second, NULL));
  NEVER(first.len != second.len || memcmp(first.data, second.data, first.len) != 0);
  first.len = second.len = 0;
  NEVER(clv_session_config_write_lines(config, &first, NULL));
  NEVER(clv_session_config_write_lines(parsed_again, &second, NULL));
  NEVER(first.len != second.len || memcmp(first.data, second.data, first.len) != 0);
}

/* Adds adapters to an accepted graph, or gets an error. No layer's number may change. */
static void check_adapters(const clv_lora_config *l, const clv_graph *g) {
  CLV_AUTO(clv_graph_freep) clv_graph *graph_with_adapters = NULL;
  clv_err err = {0};
  clv_lora lora = {.targets = (const char *const *)l->targets.items,
                   .n_targets = l->targets.n,
                   .r = (int64_t)l->r,
                   .alpha = l->alpha,
                   .dropout = l->dropout,
                   .rslora = l->rslora};
  if (!lora.n_targets) return;
  clv_code code = clv_graph_add_lora(g, 0, UINT32_MAX, &lora, &graph_with_adapters, &err);
  NEVER((code == CLV_OK) != (graph_with_adapters != NULL) || (code != CLV_OK && !err.text[0]));
  NEVER(graph_with_adapters && graph_with_adapters->nodes[graph_with_adapters->output_node].layer !=
                                   g->nodes[g->output_node].layer);
}

/* Looks up the worker that serves in place of another. */
static void check_spares(clv_session_config *config) {
  for (size_t i = 0; i < config->n_workers; i++) {
    if (config->workers[i].spares.n) config->workers[i].spare_in_use = 1;
    int worker = clv_session_worker_in_use(config, (int)i);
    NEVER(worker < 0 || (size_t)worker >= config->n_workers);
    NEVER(config->workers[i].spares.n &&
          strcmp(config->workers[worker].name, config->workers[i].spares.items[0]) != 0);
    config->workers[i].spare_in_use = 0;
  }
}

/* Makes the list of layers of each stage. This may fail with an error, for example if too many
 * values cross a cut. */
static void check_stage_layers(const clv_session_config *config, const clv_graph *g,
                               const uint32_t *first, const uint32_t *last) {
  for (size_t s = 0; s < config->n_stages; s++) {
    CLV_AUTO(clv_graph_freep) clv_graph *part = NULL;
    clv_err err = {0};
    clv_code code = clv_graph_slice(g, first[s], last[s], &part, &err);
    NEVER((code == CLV_OK) != (part != NULL) || (code != CLV_OK && !err.text[0]));
    NEVER(part && s + 1 == config->n_stages &&
          !clv_shape_equal(&part->nodes[part->output_node].shape, &g->nodes[g->output_node].shape));
  }
}

/* As check_stage_layers, for inputs of the types that data.inputs names. */
static void check_inputs(const clv_session_config *config, uint32_t *first, uint32_t *last) {
  CLV_AUTO(clv_graph_freep) clv_graph *g = NULL;
  clv_model_inputs inputs = {.n = config->data.inputs.n};
  clv_err err = {0};
  if (!inputs.n) return;
  for (size_t k = 0; k < inputs.n; k++) {
    snprintf(inputs.inputs[k].name, sizeof inputs.inputs[k].name, "%s",
             config->data.inputs.items[k]);
    inputs.inputs[k].dtype = k % 2 ? CLV_F32 : CLV_I64;
    inputs.inputs[k].shape = k % 3 == 2 ? CLV_SHAPE(1) : CLV_SHAPE(1, 16);
  }
  clv_code code = clv_model_make_graph_of_inputs(config, &inputs, &g, first, last, &err);
  NEVER((code == CLV_OK) != (g != NULL) || (code != CLV_OK && !err.text[0]));
  if (g) check_stage_layers(config, g, first, last);
}

/* Makes the graph of an accepted session, for images and for rows as inputs. Each attempt must
 * return a graph or an error text. */
static void check_model(const clv_session_config *config) {
  const clv_shape samples[] = {CLV_SHAPE(1, 3, 32, 32), CLV_SHAPE(1, 16)};
  CLV_AUTO(clv_freep) uint32_t *first = calloc(config->n_stages, sizeof *first);
  CLV_AUTO(clv_freep) uint32_t *last = calloc(config->n_stages, sizeof *last);
  if (!first || !last) return;
  for (size_t i = 0; i < CLV_COUNT(samples); i++) {
    CLV_AUTO(clv_graph_freep) clv_graph *g = NULL;
    clv_err err = {0};
    clv_code code = clv_model_make_graph(config, &samples[i], &g, first, last, &err);
    NEVER((code == CLV_OK) != (g != NULL) || (code != CLV_OK && !err.text[0]));
    for (size_t s = 0; g && s < config->n_stages; s++)
      NEVER(first[s] > last[s] || (s && first[s] != last[s - 1] + 1));
    if (g) check_stage_layers(config, g, first, last);
    for (size_t s = 0; g && s < config->n_stages; s++) check_adapters(&config->stages[s].lora, g);
    CLV_AUTO(clv_graph_freep) clv_graph *part = NULL;
    NEVER(g && config->stages[0].range.is_given &&
          clv_model_make_first_stage_graph(config, &samples[i], &part, &err) != CLV_OK &&
          !err.text[0]);
    CLV_AUTO(clv_graph_freep) clv_graph *loss = NULL;
    NEVER(g &&
          clv_session_make_loss_graph(config, &g->nodes[g->output_node].shape, 2, &loss, &err) !=
              CLV_OK &&
          !err.text[0]);
  }
  check_inputs(config, first, last);
  bool takes_sequences = clv_model_takes_sequences(config),
       takes_sequences_or_images = clv_model_takes_sequences_or_images(config);
  NEVER((takes_sequences || takes_sequences_or_images) &&
        (config->model.hf || config->model.arch != CLV_ARCH_NONE));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  config_input in;
  split_config_input(data, size, &in);
  clv_session_config *config = NULL;
  clv_err err = {0};
  clv_code code =
      clv_session_config_parse("/etc/cleave/s.yaml", in.text, in.len, &in.over, &config, &err);
  NEVER((code == CLV_OK) != (config != NULL) || (code != CLV_OK && !err.text[0]));
  if (config) check_spares(config);
  if (config) check_round_trip(config);
  if (config) check_model(config);
  clv_session_config_free(config);
  return 0;
}
