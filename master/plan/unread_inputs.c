/* SPDX-License-Identifier: Apache-2.0
 *
 * Refuses entries of data.inputs that no layer reads. The user expects that such an entry has an
 * effect, for example that padding is ignored, but it would have none.
 */
#include <string.h>

#include "common/model/hf/hf.h"
#include "master/plan/plan_int.h"

enum { MAX_INPUT_NAMES = CLV_DATA_MAX_INPUTS + 3 };

static bool is_input_read(const clv_graph *g, int input) {
  for (int i = 0; i < g->n_nodes; i++)
    for (int k = 0; k < g->nodes[i].n_in; k++)
      if (g->nodes[i].in[k] == input) return true;
  return g->output_node == input;
}

/* Lists the names of the inputs that the model reads, and of further inputs that a model of
 * model.hf could read. */
static size_t list_input_names(const clv_blueprint *b, const char *names[MAX_INPUT_NAMES]) {
  static const char *const readable_names[] = {"ids", "lengths", "boxes"};
  int family = clv_model_hf_family(b->config);
  size_t n = 0, n_read_names, n_readable_names = family < 0 || family == CLV_HF_VIT ? 0 : 2;
  for (int i = 0; i < b->full_graph->n_nodes && n < CLV_DATA_MAX_INPUTS; i++)
    if (b->full_graph->nodes[i].op == CLV_OP_INPUT && is_input_read(b->full_graph, i))
      names[n++] = b->full_graph->nodes[i].name;
  n_read_names = n;
  if (family == CLV_HF_LAYOUTLM) n_readable_names = CLV_COUNT(readable_names);
  for (size_t i = n_read_names > 0; i < n_readable_names; i++) {
    bool is_listed = false;
    for (size_t k = 0; k < n_read_names; k++) is_listed |= strcmp(names[k], readable_names[i]) == 0;
    if (!is_listed) names[n++] = readable_names[i];
  }
  return n;
}

/* True if data.inputs names the input. False for "ids", because a table's text gives this name to
 * its input, whether the user names the input or not. */
static bool is_in_data_inputs(const clv_data_config *d, const char *input) {
  for (size_t i = 0; i < d->inputs.n; i++)
    if (strcmp(d->inputs.items[i], input) == 0) return strcmp(input, "ids") != 0;
  return false;
}

static clv_code refuse_unread(const clv_blueprint *b, const char *input, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes text = {0};
  const char *names[MAX_INPUT_NAMES] = {NULL};
  size_t n = list_input_names(b, names);
  const char *similar_name = clv_did_you_mean(input, names, n);
  for (size_t i = 0; i < n; i++) {
    bool is_lengths = b->config->model.hf && strcmp(names[i], "lengths") == 0;
    clv_bytes_printf(&text, "%s%s%s", i ? ", " : "", names[i],
                     is_lengths ? " (how many places of a record are no padding)" : "");
  }
  if (similar_name) clv_bytes_printf(&text, "; did you mean '%s'?", similar_name);
  if (text.failed) return clv_fail(err, CLV_EXHAUSTED, "out of memory for the names of the inputs");
  if (clv_data_has_column_inputs(&b->config->data) && !is_in_data_inputs(&b->config->data, input))
    return clv_session_fail_at(
        b->config, b->config->data.table.columns_pos, err,
        "data.table.columns: no layer reads the input '%s', and the model "
        "reads %s: name it in `from` of an embedding%s",
        input, text.data,
        strcmp(input, "input") == 0
            ? " or of another layer: it has the columns that are no index and no text"
            : ", or say as: ignore");
  return clv_session_fail_at(b->config, b->config->data.inputs_pos, err,
                             "data.inputs: no layer of the model reads '%s': it reads %s%s", input,
                             text.data, similar_name ? "" : "; leave the input and its files out");
}

clv_code clv_inputs_check(const clv_blueprint *b, clv_err *err) {
  const clv_data_config *d = &b->config->data;
  /* an entry that the user did not name, because the format of the data gives its name, may stay
   * unread */
  bool has_own_names = (d->inputs.n && !clv_format_row_of(d->format)->default_inputs[0]) ||
                       clv_data_has_column_inputs(d);
  for (int i = 0; has_own_names && i < b->full_graph->n_nodes; i++)
    if (b->full_graph->nodes[i].op == CLV_OP_INPUT && !is_input_read(b->full_graph, i))
      return refuse_unread(b, b->full_graph->nodes[i].name, err);
  return CLV_OK;
}
