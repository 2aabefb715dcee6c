/* SPDX-License-Identifier: Apache-2.0
 *
 * Compares the classes of the data with those of a trained head (last layer). Data number their
 * classes in the order of the names, and a head of transformers numbers them in the order of its
 * config.json. If both have the same names in another order, outputs would count as wrong classes.
 */
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "common/model/hf/hf.h"
#include "master/plan/plan_int.h"

/* True if the name is transformers' default name of the class, such as "LABEL_3" for class 3. */
static bool is_default_name(const char *name, const char *class_name) {
  return strncmp(name, "LABEL_", 6) == 0 && strcmp(name + 6, class_name) == 0;
}

/* Returns the output that has the name of the class; l->n: no output has it. Prefers the same
 * spelling, then ignores case and accepts the default name. */
static size_t find_output_index(const clv_hf_labels *l, const char *class_name) {
  for (size_t i = 0; i < l->n; i++)
    if (strcmp(l->names[i], class_name) == 0) return i;
  for (size_t i = 0; i < l->n; i++)
    if (strcasecmp(l->names[i], class_name) == 0 || is_default_name(l->names[i], class_name))
      return i;
  return l->n;
}

/* True if the weights of the head come from a file, so that the head has been trained already. */
static bool has_trained_head(const clv_blueprint *b) {
  const clv_stage_spec *spec = &b->config->stages[b->n_stages - 1];
  const clv_params *p = b->stages[b->n_stages - 1].params;
  if (!spec->weights_file && !spec->weights_folder && !spec->weights_artifact) return false;
  return p->n && !clv_weights_is_newly_initialised(p->list[p->n - 1].name,
                                                   (const char *const *)spec->weights_new.items,
                                                   spec->weights_new.n);
}

/* True if each class of the data has the name of an output. *ret_first_moved_class: the first class
 * whose output has another number than the class; the number of classes: there is no such class. */
static bool has_output_for_each_class(const clv_hf_labels *l, const clv_dataset *ds,
                                      size_t *ret_first_moved_class) {
  size_t n = clv_dataset_class_count(ds);
  *ret_first_moved_class = n;
  for (size_t i = n; i-- > 0;) {
    size_t output_index = find_output_index(l, clv_dataset_class_name(ds, i));
    if (output_index == l->n) return false;
    if (output_index != i) *ret_first_moved_class = i;
  }
  return true;
}

static clv_code refuse_order(const clv_blueprint *b, const clv_hf_labels *l, const clv_dataset *ds,
                             size_t class_index, const char *key, clv_config_pos pos,
                             clv_err *err) {
  char class_name_text[80], output_name_text[80];
  const char *class_list_key = clv_format_row_of(b->config->data.format)->class_list;
  size_t output_index = find_output_index(l, clv_dataset_class_name(ds, class_index));
  clv_text_truncate(clv_dataset_class_name(ds, class_index), class_name_text,
                    sizeof class_name_text);
  clv_text_truncate(l->names[class_index], output_name_text, sizeof output_name_text);
  return clv_session_fail_at(
      b->config, pos, err,
      "%s: its classes, %zu in the order of their names, are not in the order of the %zu that "
      "config.json of model.hf names: '%s' is class %zu of the data and output %zu of the head, "
      "whose output %zu is '%s'; %s%s, or start the head from scratch with weights.new",
      key, clv_dataset_class_count(ds), l->n, class_name_text, class_index, output_index,
      class_index, output_name_text,
      class_list_key
          ? "list all names in the order of config.json as "
          : "give the data all of these classes, with names that sort as their numbers do "
            "and are not those of config.json (0-x, 1-y; 00-x from ten on)",
      class_list_key ? class_list_key : "");
}

clv_code clv_class_names_check(const clv_blueprint *b, const clv_dataset *ds, const char *key,
                               clv_config_pos pos, clv_err *err) {
  const clv_node *output_node = &b->full_graph->nodes[b->full_graph->output_node];
  CLV_AUTO(clv_hf_labels_clear) clv_hf_labels l = {0};
  size_t first_moved_class, n = clv_dataset_class_count(ds);
  if (!n || !b->config->model.hf || !has_trained_head(b)) return CLV_OK;
  CLV_TRY(clv_hf_labels_read(b->config->model.hf, &l, err));
  if ((int64_t)l.n != output_node->shape.dim[output_node->shape.rank - 1] ||
      !has_output_for_each_class(&l, ds, &first_moved_class))
    return CLV_OK;
  return first_moved_class < n ? refuse_order(b, &l, ds, first_moved_class, key, pos, err) : CLV_OK;
}
