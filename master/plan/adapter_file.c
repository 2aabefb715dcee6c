/* SPDX-License-Identifier: Apache-2.0
 *
 * Opens folders in peft's format that have the low-rank adapters with which stages begin.
 * clv_stage_adapters_open finds the tensors of a stage in its folder, clv_adapters_find_folders
 * finds the folder of each stage. A folder may have adapters of more than one stage. A tensor that
 * no stage has is refused.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "master/plan/plan_int.h"

typedef char prefixed_name[sizeof CLV_PEFT_PREFIX + CLV_PEFT_PARAM];

/* An open adapter file and its family of parameter names. A file has either the names of the
 * session (transformers 4), or the names that peft gives to the family (transformers 5). */
typedef struct adapter_file {
  clv_weights_file *file;
  int name_family;
} adapter_file;

/* Returns the name of a parameter in the file: the name that peft gives the family's parameter, or
 * else the name in the session. */
static const char *get_name_in_file(const adapter_file *a, const char *param, prefixed_name ret) {
  char peft_name[CLV_PEFT_PARAM];
  snprintf(ret, sizeof(prefixed_name), CLV_PEFT_PREFIX "%s",
           clv_model_peft_name(a->name_family, param, peft_name));
  if (!clv_weights_find_entry(a->file, ret))
    snprintf(ret, sizeof(prefixed_name), CLV_PEFT_PREFIX "%s", param);
  return ret;
}

/* True if a stage loads the parameter from the folder: always the stage's own adapters, and other
 * learning parameters of the stage if the folder has them (*is_optional). A frozen parameter is not
 * loaded, because an export would leave it out. */
static bool is_loaded_from_folder(const clv_stage_spec *s, const clv_param *p, bool *is_optional) {
  bool is_adapter = clv_name_is_of_adapter(p->name);
  *is_optional = !is_adapter;
  return is_adapter ? s->lora.from != NULL : !p->frozen;
}

static clv_code read_adapter_settings(const clv_text_list *ignored_keys, const char *folder,
                                      clv_peft *ret, clv_err *err) {
  const clv_json_keys keys = {(const char *const *)ignored_keys->items, ignored_keys->n};
  CLV_AUTO(clv_bytes_done) clv_bytes path = {0}, text = {0};
  clv_bytes_printf(&path, "%s/" CLV_PEFT_CONFIG, folder);
  if (path.failed) return clv_fail(err, CLV_EXHAUSTED, "out of memory for the path of %s", folder);
  CLV_TRY(clv_file_read((const char *)path.data, CLV_PEFT_MAX_CONFIG, &text, err));
  return clv_peft_parse((const char *)path.data, (const char *)text.data, text.len, &keys, ret,
                        err);
}

/* Checks that the rank and the scale of an adapter equal those in its folder, because the values of
 * the adapter were trained with them. */
static clv_code check_scale(const clv_lora_config *l, const clv_peft *p, const char *param,
                            clv_err *err) {
  double session_scale = l->alpha / (l->rslora ? sqrt((double)l->r) : (double)l->r);
  char layer_name[CLV_NAME_MAX + 24];
  int64_t r;
  snprintf(layer_name, sizeof layer_name, "%s", param);
  *strstr(layer_name, ".lora_") = '\0';
  double folder_scale = clv_peft_scale(p, layer_name, &r);
  if (r == (int64_t)l->r && fabs(folder_scale - session_scale) <= 1e-9 * session_scale)
    return CLV_OK;
  return clv_fail(err, CLV_INVALID,
                  "the adapter of '%s' has rank %lld and scale %g in the folder, but rank %llu and "
                  "scale %g in the session: set lora.r, alpha and rslora as " CLV_PEFT_CONFIG
                  " has them",
                  layer_name, (long long)r, folder_scale, (unsigned long long)l->r, session_scale);
}

static clv_code check_scales(const clv_blueprint *b, uint32_t stage, const adapter_file *a,
                             clv_err *err) {
  const clv_lora_config *l = &b->config->stages[stage].lora;
  CLV_AUTO(clv_peft_clear) clv_peft p = {0};
  prefixed_name name;
  CLV_TRY(read_adapter_settings(&b->config->model.ignore_keys, b->stages[stage].adapter_folder, &p,
                                err));
  for (int i = 0; l->from && i < b->stages[stage].params->n; i++) {
    const char *param = b->stages[stage].params->list[i].name;
    if (!clv_name_is_of_adapter(param)) continue;
    CLV_TRY(check_scale(l, &p, get_name_in_file(a, param, name) + sizeof CLV_PEFT_PREFIX - 1, err));
  }
  return CLV_OK;
}

/* ---- finding the tensors of a stage in an adapter file --------------------------------------- */

static clv_code refuse_tensor(const char *param, clv_err *err) {
  if (clv_name_is_of_adapter(param))
    return clv_fail(err, CLV_INVALID,
                    "'%s' is in the folder too, and the lora of this stage has no from: give each "
                    "stage with adapters of the folder the same lora.from",
                    param);
  return clv_fail(err, CLV_INVALID,
                  "'%s' is saved in full there, but is frozen here: name its module in the "
                  "stage's lora.train, or leave freeze out",
                  param);
}

static clv_code find_adapter_tensors(const clv_blueprint *b, uint32_t stage, const adapter_file *a,
                                     const clv_weights_entry **found_entries, clv_err *err) {
  const clv_params *params = b->stages[stage].params;
  CLV_AUTO(clv_freep) prefixed_name *file_names = NULL;
  CLV_AUTO(clv_freep) clv_weights_want *wanted_tensors = NULL;
  CLV_AUTO(clv_freep) const clv_weights_entry **matched_entries = NULL;
  size_t n = 0;
  bool is_optional;
  CLV_TRY(clv_alloc((size_t)params->n, sizeof *file_names, &file_names, err));
  CLV_TRY(clv_alloc((size_t)params->n, sizeof *wanted_tensors, &wanted_tensors, err));
  CLV_TRY(clv_alloc((size_t)params->n, sizeof *matched_entries, &matched_entries, err));
  for (int i = 0; i < params->n; i++) {
    const clv_param *p = &params->list[i];
    get_name_in_file(a, p->name, file_names[n]);
    bool needs_tensor = is_loaded_from_folder(&b->config->stages[stage], p, &is_optional);
    if (!needs_tensor && clv_weights_find_entry(a->file, file_names[n]))
      return refuse_tensor(p->name, err);
    if (!needs_tensor) continue;
    wanted_tensors[n] = (clv_weights_want){file_names[n], p->dtype, p->shape, is_optional};
    n++;
  }
  CLV_TRY(clv_weights_match_tensors(a->file, wanted_tensors, n, CLV_WEIGHTS_ALLOW_UNEXPECTED,
                                    matched_entries, err));
  for (int i = params->n; i-- > 0;)
    if (is_loaded_from_folder(&b->config->stages[stage], &params->list[i], &is_optional))
      found_entries[i] = matched_entries[--n];
  return CLV_OK;
}

/* Refuses the file if it has an adapter for a layer to which the session adds no adapter. */
static clv_code check_layer_has_adapter(const clv_blueprint *b, uint32_t stage,
                                        const adapter_file *a, const char *weight, clv_err *err) {
  static const char weight_suffix[] = ".weight", matrix_a_suffix[] = ".lora_A.weight";
  const clv_stage_spec *s = &b->config->stages[stage];
  size_t len = strlen(weight);
  char param[CLV_PEFT_PARAM];
  prefixed_name name;
  if (len < sizeof weight_suffix ||
      strcmp(weight + len - (sizeof weight_suffix - 1), weight_suffix) != 0)
    return CLV_OK;
  snprintf(param, sizeof param, "%.*s%s", (int)(len - (sizeof weight_suffix - 1)), weight,
           matrix_a_suffix);
  if (clv_params_find(b->stages[stage].params, param) ||
      !clv_weights_find_entry(a->file, get_name_in_file(a, param, name)))
    return CLV_OK;
  if (!s->lora.targets.n)
    return clv_fail(
        err, CLV_INVALID,
        "'%s' is in the folder too, and stage '%s' has no lora: give it that of this stage", param,
        s->name);
  return clv_fail(
      err, CLV_INVALID,
      "'%s' is in the folder too, and lora.targets of stage '%s' does not name its layer: "
      "add it there",
      param, s->name);
}

static clv_code check_layers_have_adapters(const clv_blueprint *b, const adapter_file *a,
                                           clv_err *err) {
  for (uint32_t i = 0; i < b->n_stages; i++)
    for (int k = 0; k < b->stages[i].params->n; k++)
      CLV_TRY(check_layer_has_adapter(b, i, a, b->stages[i].params->list[k].name, err));
  return CLV_OK;
}

static clv_code check_extra_tensors(const clv_blueprint *b, const adapter_file *a, clv_err *err) {
  CLV_AUTO(clv_params_freep) clv_params *all = NULL;
  CLV_AUTO(clv_freep) prefixed_name *names = NULL;
  CLV_AUTO(clv_freep) clv_weights_want *known = NULL;
  CLV_TRY(clv_params_make(b->full_graph, &all, err));
  CLV_TRY(clv_alloc((size_t)all->n, sizeof *names, &names, err));
  CLV_TRY(clv_alloc((size_t)all->n, sizeof *known, &known, err));
  for (int i = 0; i < all->n; i++) known[i].name = get_name_in_file(a, all->list[i].name, names[i]);
  return clv_weights_check_no_extra(a->file, known, (size_t)all->n, err);
}

static clv_code open_file(const char *folder, clv_weights_file **ret, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes path = {0};
  clv_bytes_printf(&path, "%s/" CLV_PEFT_WEIGHTS, folder);
  if (path.failed) return clv_fail(err, CLV_EXHAUSTED, "out of memory for the path of %s", folder);
  return clv_weights_open((const char *)path.data, 0, ret, err);
}

clv_code clv_stage_adapters_open(const clv_blueprint *b, uint32_t stage, clv_weights_file **ret,
                                 const clv_weights_entry ***ret_entries, clv_err *err) {
  const clv_stage_spec *spec = &b->config->stages[stage];
  CLV_AUTO(clv_weights_closep) clv_weights_file *f = NULL;
  CLV_AUTO(clv_freep) const clv_weights_entry **found_entries = NULL;
  clv_err reason;
  CLV_TRY(
      clv_alloc((size_t)b->stages[stage].params->n, sizeof *found_entries, &found_entries, err));
  clv_code code = open_file(b->stages[stage].adapter_folder, &f, &reason);
  adapter_file a = {f, clv_model_hf_family(b->config)};
  if (code == CLV_OK) code = check_scales(b, stage, &a, &reason);
  if (code == CLV_OK) code = check_layers_have_adapters(b, &a, &reason);
  if (code == CLV_OK) code = check_extra_tensors(b, &a, &reason);
  if (code == CLV_OK) code = find_adapter_tensors(b, stage, &a, found_entries, &reason);
  if (code != CLV_OK) {
    /* the message points at the line of the session that names the faulty folder */
    clv_config_pos pos = spec->lora.from ? spec->lora.pos : spec->pos;
    clv_session_fail_at(b->config, pos, err, "stage '%s': lora.from: %s", spec->name, reason.text);
    if (err) err->code = CLV_DATA_LOSS;
    return CLV_DATA_LOSS;
  }
  *ret = clv_steal(&f);
  *ret_entries = clv_steal(&found_entries);
  return CLV_OK;
}

/* ---- search for folders with adapters of a stage --------------------------------------------- */

/* True if the folder has a tensor of the stage. If the stage names the folder itself
 * (is_named_by_stage), its adapters do not count, because the stage loads them anyway. Otherwise
 * the adapters count, so that the session refuses them instead of ignoring them. */
static bool has_tensor_of_stage(const adapter_file *a, const clv_params *params,
                                bool is_named_by_stage) {
  prefixed_name name;
  for (int i = 0; i < params->n; i++)
    if (!(is_named_by_stage && clv_name_is_of_adapter(params->list[i].name)) &&
        clv_weights_find_entry(a->file, get_name_in_file(a, params->list[i].name, name)))
      return true;
  return false;
}

static void mark_stages_of_folder(clv_blueprint *b, const char *folder) {
  CLV_AUTO(clv_weights_closep) clv_weights_file *f = NULL;
  clv_err ignored_err;
  if (open_file(folder, &f, &ignored_err) != CLV_OK) return;
  adapter_file a = {f, clv_model_hf_family(b->config)};
  for (uint32_t i = 0; i < b->n_stages; i++) {
    clv_stage_plan *s = &b->stages[i];
    const char *named_folder = b->config->stages[i].lora.from;
    if ((named_folder && strcmp(named_folder, folder) != 0) || s->folder_has_other_params) continue;
    s->folder_has_other_params = has_tensor_of_stage(&a, s->params, named_folder != NULL);
    if (s->folder_has_other_params) s->adapter_folder = folder;
  }
}

void clv_adapters_find_folders(clv_blueprint *b) {
  for (uint32_t i = 0; i < b->n_stages; i++)
    b->stages[i].adapter_folder = b->config->stages[i].lora.from;
  for (uint32_t i = 0; i < b->n_stages; i++)
    if (b->config->stages[i].lora.from) mark_stages_of_folder(b, b->config->stages[i].lora.from);
}
