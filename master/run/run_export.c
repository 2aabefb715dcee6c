/* SPDX-License-Identifier: Apache-2.0
 *
 * Exports a checkpoint: clv_export_adapters, clv_export_merged_weights and clv_export_hf_folder.
 * Adapters are found by the names of their tensors. The scale of an adapter follows from the
 * session file in the checkpoint.
 */
#include <fnmatch.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/model/graph/graph.h"
#include "common/model/hf/hf.h"
#include "master/run/run_int.h"

static const char session_file[] = "session.effective.yaml", lora_a_suffix[] = ".lora_A.weight",
                  lora_b_suffix[] = ".lora_B.weight";
enum { MAX_SESSION_BYTES = 16 << 20 };

/* State of an export: the checkpoint, its files of weights, and the tensors to write. */
typedef struct export_work {
  const clv_checkpoint *c;
  clv_session_config *session;
  uint32_t n_stages;
  /* family of model.hf, which decides the names in peft's files; -1: names as in the checkpoint */
  int family;
  clv_weights_file **stage_files; /* [n_stages] file of each stage's weights */
  /* [n] tensors to write; `allocated_blocks` has their names and merged values */
  clv_weights_tensor *tensors;
  size_t n, n_allocated_blocks;
  void **allocated_blocks;
  /* [n_ledger_items] names of merged tensors of stages that are at workers */
  clv_ledger_item *ledger_items;
  size_t n_ledger_items, cap_ledger_items;
} export_work;

static void free_export(export_work *x) {
  for (uint32_t i = 0; x->stage_files && i < x->n_stages; i++) clv_weights_close(x->stage_files[i]);
  for (size_t i = 0; i < x->n_allocated_blocks; i++) free(x->allocated_blocks[i]);
  clv_session_config_free(x->session);
  free(x->stage_files);
  free(x->tensors);
  free(x->allocated_blocks);
  free(x->ledger_items);
}

/* ---- reading the checkpoint ------------------------------------------------------------------ */

static clv_code read_session(export_work *x, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes text = {0};
  CLV_TRY(clv_checkpoint_read_file(x->c, session_file, &text, err));
  if (text.len > MAX_SESSION_BYTES)
    return clv_fail(err, CLV_DATA_LOSS, "%s is too large", session_file);
  CLV_TRY(clv_session_config_parse(session_file, text.data, text.len, NULL, &x->session, err));
  if (x->session->n_stages == x->n_stages) return CLV_OK;
  return clv_fail(err, CLV_DATA_LOSS, "%s has %zu stages, the checkpoint %u", session_file,
                  x->session->n_stages, x->n_stages);
}

static clv_code open_all_tensors(export_work *x, clv_err *err) {
  size_t max_tensors = 0;
  x->n_stages = clv_checkpoint_manifest(x->c)->stages;
  CLV_TRY(read_session(x, err));
  CLV_TRY(clv_alloc(x->n_stages, sizeof(clv_weights_file *), &x->stage_files, err));
  for (uint32_t i = 0; i < x->n_stages; i++) {
    CLV_TRY(clv_checkpoint_open_model(x->c, i, &x->stage_files[i], err));
    max_tensors += clv_weights_n_entries(x->stage_files[i]);
  }
  CLV_TRY(clv_alloc(2 * max_tensors, sizeof *x->tensors, &x->tensors, err));
  return clv_alloc(4 * max_tensors, sizeof(void *), &x->allocated_blocks, err);
}

/* Returns value i of a tensor, whose data may be unaligned. */
static float read_value(const clv_weights_entry *e, size_t i) {
  const char *at = (const char *)e->data + i * clv_dtype_size(e->dtype);
  uint16_t bf16_bits;
  float v;
  if (e->dtype == CLV_BF16) {
    memcpy(&bf16_bits, at, sizeof bf16_bits);
    return clv_bf16_value(bf16_bits);
  }
  memcpy(&v, at, sizeof v);
  return v;
}

/* Adds a bf16 tensor to the list as f32, because config.json gives f32 as the type. */
static clv_code add_tensor_as_f32(export_work *x, const clv_weights_entry *e, const char *name,
                                  clv_err *err) {
  size_t n;
  float *values;
  CLV_TRY(clv_shape_numel(&e->shape, &n, err));
  CLV_TRY(clv_alloc(n, sizeof *values, &values, err));
  x->allocated_blocks[x->n_allocated_blocks++] = values;
  for (size_t i = 0; i < n; i++) values[i] = read_value(e, i);
  x->tensors[x->n++] = (clv_weights_tensor){name, CLV_F32, e->shape, values};
  return CLV_OK;
}

/* Adds a tensor to the list of tensors to write. The file lists the tensor under its own name if
 * `prefix` is "", otherwise under `prefix` followed by the name that peft uses. */
static clv_code add_tensor(export_work *x, const clv_weights_entry *e, const char *prefix,
                           clv_err *err) {
  char peft_name[CLV_PEFT_PARAM];
  const char *tensor_name = *prefix ? clv_model_peft_name(x->family, e->name, peft_name) : e->name;
  size_t len = strlen(prefix) + strlen(tensor_name) + 1;
  char *name;
  CLV_TRY(clv_alloc(len, 1, &name, err));
  snprintf(name, len, "%s%s", prefix, tensor_name);
  x->allocated_blocks[x->n_allocated_blocks++] = name;
  if (e->dtype == CLV_BF16) return add_tensor_as_f32(x, e, name, err);
  x->tensors[x->n++] = (clv_weights_tensor){name, e->dtype, e->shape, e->data};
  return CLV_OK;
}

static bool has_suffix(const char *name, const char *suffix) {
  size_t n = strlen(name), len = strlen(suffix);
  return n > len && strcmp(name + n - len, suffix) == 0;
}

static double adapter_scale(const clv_lora_config *l) {
  return l->alpha / (l->rslora ? sqrt((double)l->r) : (double)l->r);
}

/* Checks that config.json of model.hf is the one that the run of the checkpoint has read. */
static clv_code compare_model_config(const export_work *x, bool accepts_change, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes run = {0}, notes = {0};
  CLV_AUTO(clv_freep) char *dir = NULL;
  clv_bytes_printf(&run, "%s/..", clv_checkpoint_path(x->c));
  if (run.failed) return clv_fail(err, CLV_EXHAUSTED, "out of memory");
  dir = realpath(run.data, NULL);
  CLV_TRY(
      clv_run_compare_model_config(dir ? dir : run.data, x->session, accepts_change, &notes, err));
  if (notes.failed) return clv_fail(err, CLV_EXHAUSTED, "out of memory");
  if (notes.len) clv_notice(CLV_LOG_WARN, "data", "%s", (const char *)notes.data);
  return CLV_OK;
}

/* ---- export for peft ------------------------------------------------------------------------- */

typedef struct name_set {
  const char **list;
  size_t n;
} name_set;

static void free_names(name_set *s) { free(s->list); }

static void add_name(name_set *s, const char *name) {
  for (size_t i = 0; i < s->n; i++)
    if (strcmp(s->list[i], name) == 0) return;
  s->list[s->n++] = name;
}

/* Finds the module that contains a parameter and was trained without an adapter: a module that
 * `lora.train` names, or, in a stage without adapters, the parameter's own module. *ret NULL: the
 * parameter was not trained. */
static clv_code find_module(export_work *x, uint32_t stage, const char *param_name,
                            const char **ret, clv_err *err) {
  const clv_stage_spec *s = &x->session->stages[stage];
  const clv_text_list *frozen_patterns = &x->session->train.freeze;
  char *peft_name;
  *ret = NULL;
  for (size_t i = 0; i < frozen_patterns->n; i++)
    if (fnmatch(frozen_patterns->items[i], param_name, 0) == 0) return CLV_OK;
  for (size_t i = 0; i < s->lora.train.n && !*ret; i++)
    if (clv_name_is_in_module(param_name, s->lora.train.items[i])) *ret = s->lora.train.items[i];
  if (*ret || s->lora.targets.n || s->freeze) return CLV_OK;
  CLV_TRY(clv_strdup(param_name, &peft_name, err));
  x->allocated_blocks[x->n_allocated_blocks++] = peft_name;
  char *dot = strrchr(peft_name, '.');
  if (dot) *dot = '\0';
  *ret = peft_name;
  return CLV_OK;
}

/* Adds a module to the list modules_to_save, under the name that peft uses. */
static clv_code add_module(export_work *x, name_set *modules_to_save, const char *module_name,
                           clv_err *err) {
  char peft_name[CLV_PEFT_PARAM], *name;
  CLV_TRY(clv_strdup(clv_model_peft_name(x->family, module_name, peft_name), &name, err));
  x->allocated_blocks[x->n_allocated_blocks++] = name;
  add_name(modules_to_save, name);
  return CLV_OK;
}

/* Adds rank and alpha of a layer to peft's rank_pattern and alpha_pattern, if they differ from
 * those of the first stage with adapters. */
static clv_code add_layer_exception(clv_peft *p, const clv_lora_config *l, const char *layer_name,
                                    clv_err *err) {
  double rank_divisor = p->rslora ? sqrt((double)l->r) : (double)l->r,
         alpha = adapter_scale(l) * rank_divisor;
  int64_t r = (int64_t)l->r;
  if (r == p->r && alpha == p->alpha) return CLV_OK;
  return clv_peft_set_layer(p, layer_name, r == p->r ? 0 : r, alpha == p->alpha ? 0 : alpha, err);
}

static clv_code add_adapter(export_work *x, const clv_lora_config *l, const clv_weights_entry *e,
                            clv_peft *p, name_set *target_modules, clv_err *err) {
  CLV_TRY(add_tensor(x, e, CLV_PEFT_PREFIX, err));
  if (!has_suffix(e->name, lora_a_suffix)) return CLV_OK;
  char *layer_name;
  char peft_name[CLV_PEFT_PARAM];
  CLV_TRY(clv_strdup(clv_model_peft_name(x->family, e->name, peft_name), &layer_name, err));
  x->allocated_blocks[x->n_allocated_blocks++] = layer_name;
  layer_name[strlen(layer_name) - (sizeof lora_a_suffix - 1)] = '\0';
  target_modules->list[target_modules->n++] = layer_name;
  return add_layer_exception(p, l, layer_name, err);
}

static clv_code add_stage_for_peft(export_work *x, uint32_t i, clv_peft *p,
                                   name_set *target_modules, name_set *modules_to_save,
                                   clv_err *err) {
  const clv_lora_config *l = &x->session->stages[i].lora;
  const clv_weights_entry *e = clv_weights_entries(x->stage_files[i]);
  const char *module_name;
  if (l->targets.n && !target_modules->n)
    *p = (clv_peft){
        .r = (int64_t)l->r, .alpha = l->alpha, .dropout = l->dropout, .rslora = l->rslora};
  for (size_t k = 0; k < clv_weights_n_entries(x->stage_files[i]); k++) {
    if (clv_name_is_of_adapter(e[k].name)) {
      CLV_TRY(add_adapter(x, l, &e[k], p, target_modules, err));
      continue;
    }
    CLV_TRY(find_module(x, i, e[k].name, &module_name, err));
    if (!module_name) continue;
    CLV_TRY(add_module(x, modules_to_save, module_name, err));
    CLV_TRY(add_tensor(x, &e[k], CLV_PEFT_PREFIX, err));
  }
  return CLV_OK;
}

static clv_code write_tensors(const export_work *x, const char *folder, const char *name,
                              clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes path = {0};
  CLV_TRY(clv_mkdirs(folder, err));
  clv_bytes_printf(&path, "%s/%s", folder, name);
  if (path.failed) return clv_fail(err, CLV_EXHAUSTED, "out of memory");
  return clv_weights_write_file((const char *)path.data, x->tensors, x->n, NULL, 0, NULL, NULL,
                                err);
}

static clv_code write_peft_config(const char *folder, const clv_bytes *text, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes path = {0};
  clv_bytes_printf(&path, "%s/" CLV_PEFT_CONFIG, folder);
  if (path.failed || text->failed) return clv_fail(err, CLV_EXHAUSTED, "out of memory");
  return clv_file_write_durable((const char *)path.data, text->data, text->len, 0644, err);
}

/* Guesses the family from the names of parameters if config.json is missing. Returns CLV_HF_VIT;
 * -1: unknown. */
static int guess_family(const export_work *x) {
  for (uint32_t i = 0; x->session->model.hf && i < x->n_stages; i++)
    for (size_t k = 0; k < clv_weights_n_entries(x->stage_files[i]); k++)
      if (strstr(clv_weights_entries(x->stage_files[i])[k].name, ".attention.attention."))
        return CLV_HF_VIT;
  return -1;
}

clv_code clv_export_adapters(const clv_checkpoint *c, const char *folder, bool accepts_change,
                             clv_err *err) {
  CLV_AUTO(free_export) export_work x = {.c = c};
  CLV_AUTO(clv_peft_clear) clv_peft p = {0};
  CLV_AUTO(free_names) name_set targets = {0}, modules_to_save = {0};
  CLV_AUTO(clv_bytes_done) clv_bytes text = {0};
  size_t max_tensors = 0;
  CLV_TRY(open_all_tensors(&x, err));
  x.family = clv_model_hf_family(x.session);
  if (x.family >= 0) /* because peft's names of tensors depend on the family */
    CLV_TRY(compare_model_config(&x, accepts_change, err));
  if (x.family < 0) x.family = guess_family(&x);
  for (uint32_t i = 0; i < x.n_stages; i++) max_tensors += clv_weights_n_entries(x.stage_files[i]);
  CLV_TRY(clv_alloc(max_tensors, sizeof(char *), &targets.list, err));
  CLV_TRY(clv_alloc(max_tensors, sizeof(char *), &modules_to_save.list, err));
  for (uint32_t i = 0; i < x.n_stages; i++)
    CLV_TRY(add_stage_for_peft(&x, i, &p, &targets, &modules_to_save, err));
  if (!targets.n)
    return clv_fail(err, CLV_PRECONDITION, "%s has no adapters: no stage of its session has `lora`",
                    clv_checkpoint_path(c));
  CLV_TRY(write_tensors(&x, folder, CLV_PEFT_WEIGHTS, err));
  clv_peft_write(&p, NULL, targets.list, targets.n, modules_to_save.list, modules_to_save.n, &text);
  return write_peft_config(folder, &text, err);
}

/* ---- export of merged weights ---------------------------------------------------------------- */

/* Computes w[o][i] + scale * (sum over k of b[o][k] * a[k][i]). w is stored as [out, in] or, if
 * is_transposed, as [in, out]. */
static void add_adapter_product(const clv_weights_entry *w, const clv_weights_entry *a,
                                const clv_weights_entry *b, double scale, bool is_transposed,
                                float *ret) {
  int64_t r = a->shape.dim[0], in_features = a->shape.dim[1], out_features = b->shape.dim[0];
  for (int64_t o = 0; o < out_features; o++)
    for (int64_t i = 0; i < in_features; i++) {
      int64_t at = is_transposed ? i * out_features + o : o * in_features + i;
      double sum = 0;
      for (int64_t k = 0; k < r; k++)
        sum += (double)read_value(b, (size_t)(o * r + k)) *
               read_value(a, (size_t)(k * in_features + i));
      ret[at] = (float)(read_value(w, (size_t)at) + scale * sum);
    }
}

static bool is_float_matrix(const clv_weights_entry *e) {
  return e && (e->dtype == CLV_F32 || e->dtype == CLV_BF16) && e->shape.rank == 2;
}

static bool is_declared_transposed(const clv_layer_spec *l, size_t n, const char *weight_name) {
  for (size_t i = 0; i < n; i++) {
    size_t len = l[i].name ? strlen(l[i].name) : 0;
    if (!len || strncmp(l[i].name, weight_name, len) != 0 ||
        strcmp(weight_name + len, ".weight") != 0)
      continue;
    for (size_t k = 0; k < l[i].n_attrs; k++)
      if (strcmp(l[i].attrs[k].key, "transposed") == 0 && l[i].attrs[k].bool_value) return true;
  }
  return false;
}

/* Returns true if the weight is stored as [in, out]: a layer of the session file is `transposed`,
 * or the weight of a model.hf has a name of GPT-2. */
static bool is_stored_transposed(const export_work *x, uint32_t stage, const char *weight_name) {
  static const char *const gpt2_suffixes[] = {".c_attn.weight", ".c_proj.weight", ".c_fc.weight"};
  const clv_session_config *c = x->session;
  for (size_t i = 0; c->model.hf && i < CLV_COUNT(gpt2_suffixes); i++)
    if (has_suffix(weight_name, gpt2_suffixes[i])) return true;
  return is_declared_transposed(c->model.layers, c->model.n_layers, weight_name) ||
         is_declared_transposed(c->stages[stage].layers, c->stages[stage].n_layers, weight_name);
}

static clv_code add_ledger_items(export_work *x, clv_ledger_kind kind,
                                 const clv_sha256 *name_hashes, size_t n, const char *identity,
                                 clv_err *err) {
  if (x->n_ledger_items + n > x->cap_ledger_items) {
    size_t new_cap = 2 * (x->n_ledger_items + n);
    clv_ledger_item *grown_items = reallocarray(x->ledger_items, new_cap, sizeof *grown_items);
    if (!grown_items) return clv_fail(err, CLV_EXHAUSTED, "out of memory");
    x->ledger_items = grown_items;
    x->cap_ledger_items = new_cap;
  }
  for (size_t i = 0; i < n; i++)
    x->ledger_items[x->n_ledger_items++] = (clv_ledger_item){kind, name_hashes[i], identity};
  return CLV_OK;
}

static clv_code add_value_names(export_work *x, const clv_weights_sample *s, const char *identity,
                                clv_err *err) {
  clv_sha256 value_names[CLV_SAMPLE_MAX_HASHES];
  clv_row_hashes rows;
  size_t n_names;
  CLV_TRY(clv_weights_sample_hashes(s, value_names, &n_names, err));
  CLV_TRY(add_ledger_items(x, CLV_LEDGER_WEIGHTS, value_names, n_names, identity, err));
  for (int is_by_column = 0; is_by_column < 2; is_by_column++) {
    CLV_TRY(clv_weights_sample_row_hashes(s, is_by_column, &rows, err));
    CLV_TRY(add_ledger_items(x, CLV_LEDGER_ROW, rows.hashes, rows.n, identity, err));
  }
  return CLV_OK;
}

static void sample_freep(clv_weights_sample **s) {
  if (*s) clv_weights_sample_done(*s);
  free(*s);
}

/* Adds a merged tensor to the items for the ledger, the list of weights that workers know. A worker
 * that has both matrices of the adapter and the base can compute the same sum, so the sum is not
 * secret. */
static clv_code note_merged_tensor(export_work *x, uint32_t stage, const clv_shape *shape,
                                   const float *merged_values, clv_err *err) {
  int worker = x->session->stages[stage].worker;
  CLV_AUTO(sample_freep) clv_weights_sample *s = NULL;
  const char *identity = worker < 0 ? NULL : x->session->workers[worker].identity;
  size_t bytes;
  if (!identity) return CLV_OK;
  CLV_TRY(clv_alloc(1, sizeof *s, &s, err));
  CLV_TRY(clv_shape_bytes(shape, CLV_F32, &bytes, err));
  if (!clv_weights_sample_begin(s, CLV_F32, shape)) return CLV_OK;
  clv_weights_sample_add(s, 0, merged_values, bytes);
  return add_value_names(x, s, identity, err);
}

static clv_code merge_adapter(export_work *x, uint32_t stage, const clv_weights_entry *w,
                              const clv_weights_entry *a, const clv_weights_entry *b,
                              clv_err *err) {
  double scale = adapter_scale(&x->session->stages[stage].lora);
  bool is_transposed = is_stored_transposed(x, stage, w->name);
  bool have_fitting_shapes = is_float_matrix(w) && is_float_matrix(a) && is_float_matrix(b) &&
                             a->shape.dim[0] == b->shape.dim[1];
  int64_t out_features = have_fitting_shapes ? b->shape.dim[0] : 0,
          in_features = have_fitting_shapes ? a->shape.dim[1] : 0;
  clv_shape expected_shape =
      is_transposed ? CLV_SHAPE(in_features, out_features) : CLV_SHAPE(out_features, in_features);
  float *merged_values;
  if (!have_fitting_shapes || !clv_shape_equal(&w->shape, &expected_shape))
    return clv_fail(err, CLV_DATA_LOSS, "'%s' does not fit its adapter", w->name);
  CLV_TRY(clv_alloc((size_t)out_features * (size_t)in_features, sizeof *merged_values,
                    &merged_values, err));
  x->allocated_blocks[x->n_allocated_blocks++] = merged_values;
  add_adapter_product(w, a, b, scale, is_transposed, merged_values);
  x->tensors[x->n++] = (clv_weights_tensor){w->name, CLV_F32, w->shape, merged_values};
  return note_merged_tensor(x, stage, &w->shape, merged_values, err);
}

/* Returns one matrix of a weight's adapter, such as "NAME.lora_A.weight" for "NAME.weight"; NULL:
 * the weight has no adapter. */
static const clv_weights_entry *find_adapter_matrix(const clv_weights_file *f,
                                                    const char *weight_name,
                                                    const char *matrix_suffix) {
  static const char suffix[] = ".weight";
  char name[CLV_WEIGHTS_MAX_NAME + 32];
  if (!has_suffix(weight_name, suffix)) return NULL;
  snprintf(name, sizeof name, "%.*s%s", (int)(strlen(weight_name) - (sizeof suffix - 1)),
           weight_name, matrix_suffix);
  return clv_weights_find_entry(f, name);
}

static clv_code fail_without_base(const export_work *x, uint32_t stage, const char *adapter_name,
                                  clv_err *err) {
  const clv_stage_spec *s = &x->session->stages[stage];
  return clv_fail(
      err, CLV_PRECONDITION,
      "the checkpoint has no weights for '%.120s' to be added to: stage '%s' takes them "
      "from the artifact '%s' of a worker; export the adapters, and merge them where "
      "that file is",
      adapter_name, s->name, s->weights_artifact ? s->weights_artifact : "?");
}

static clv_code merge_stage(export_work *x, uint32_t i, clv_err *err) {
  const clv_weights_file *f = x->stage_files[i];
  size_t n_merged = 0, n_adapters = 0;
  const char *last_adapter_name = "";
  for (size_t k = 0; k < clv_weights_n_entries(f); k++) {
    const clv_weights_entry *e = &clv_weights_entries(f)[k];
    const clv_weights_entry *a = find_adapter_matrix(f, e->name, lora_a_suffix),
                            *b = find_adapter_matrix(f, e->name, lora_b_suffix);
    bool is_adapter = clv_name_is_of_adapter(e->name);
    if (is_adapter) last_adapter_name = e->name;
    n_adapters += is_adapter && has_suffix(e->name, lora_a_suffix);
    if (is_adapter) continue;
    n_merged += a && b;
    if (a && b)
      CLV_TRY(merge_adapter(x, i, e, a, b, err));
    else
      CLV_TRY(add_tensor(x, e, "", err));
  }
  return n_merged == n_adapters ? CLV_OK : fail_without_base(x, i, last_adapter_name, err);
}

/* Fails if the checkpoint lacks weights of the network. */
static clv_code check_no_stage_missing(const export_work *x, clv_err *err) {
  const char *missing_stages =
      clv_trainer_state_get_extra(clv_checkpoint_state(x->c), CLV_STAGES_LEFT);
  if (!missing_stages) return CLV_OK;
  return clv_fail(
      err, CLV_PRECONDITION,
      "the checkpoint has not all weights of: %.200s; the rest is in artifacts of workers "
      "(weights.artifact of %s), and is not fetched from there. Put the two together "
      "where the artifact's files are",
      missing_stages, session_file);
}

static clv_code merge_all_stages(export_work *x, clv_err *err) {
  for (uint32_t i = 0; i < x->n_stages; i++) CLV_TRY(merge_stage(x, i, err));
  CLV_TRY(check_no_stage_missing(x, err));
  return clv_ledger_add(x->ledger_items, x->n_ledger_items, err);
}

clv_code clv_export_merged_weights(const clv_checkpoint *c, const char *folder, clv_err *err) {
  CLV_AUTO(free_export) export_work x = {.c = c};
  CLV_TRY(open_all_tensors(&x, err));
  CLV_TRY(merge_all_stages(&x, err));
  return write_tensors(&x, folder, "model.safetensors", err);
}

/* ---- export for transformers ----------------------------------------------------------------- */

enum { MAX_CONFIG_BYTES = 1 << 20 };

static size_t count_labels(const clv_model_config *m) {
  for (size_t i = 0; i < m->n_attrs; i++)
    if (strcmp(m->attrs[i].key, "labels") == 0) return (size_t)m->attrs[i].int_value;
  return 0;
}

/* Reads the class names from the run folder, the parent folder of the checkpoint. If the checkpoint
 * was moved elsewhere, there are no names. */
static clv_code read_classes(const export_work *x, clv_classes *ret, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes run = {0};
  clv_bytes_printf(&run, "%s/..", clv_checkpoint_path(x->c));
  if (run.failed) return clv_fail(err, CLV_EXHAUSTED, "out of memory");
  return clv_classes_read(run.data, ret, err);
}

static clv_code write_hf_config(const export_work *x, const char *folder, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes source_path = {0}, target_path = {0}, text = {0}, out = {0};
  CLV_AUTO(clv_classes_free) clv_classes classes = {0};
  const clv_model_config *m = &x->session->model;
  int family = clv_model_hf_family(x->session);
  clv_bytes_printf(&source_path, "%s/config.json", m->hf);
  clv_bytes_printf(&target_path, "%s/config.json", folder);
  if (source_path.failed || target_path.failed)
    return clv_fail(err, CLV_EXHAUSTED, "out of memory");
  if (family < 0) CLV_TRY(clv_model_check_hf(x->session, err));
  CLV_TRY(clv_file_read((const char *)source_path.data, MAX_CONFIG_BYTES, &text, err));
  const char *hf_class_name =
      clv_hf_class_name((clv_hf_family)family, (clv_hf_head)(m->head - CLV_HEAD_NONE));
  CLV_TRY(read_classes(x, &classes, err));
  const char *const *class_names = classes.n && classes.n == count_labels(m) ? classes.names : NULL;
  CLV_TRY(clv_weights_make_hf_config(text.data, text.len, (const char *)source_path.data,
                                     hf_class_name, count_labels(m), class_names, &out, err));
  return clv_file_write_durable((const char *)target_path.data, out.data, out.len, 0644, err);
}

/* Adds the bias of the token decoder a second time, as a parameter of the head, because
 * transformers has two parameters for this bias and requires both in a folder. */
static clv_code add_bias_of_head(export_work *x, clv_err *err) {
  static const char decoder_suffix[] = ".decoder.bias";
  for (size_t i = 0, n = x->n; i < n; i++) {
    clv_weights_tensor t = x->tensors[i];
    if (!has_suffix(t.name, decoder_suffix)) continue;
    size_t name_prefix_len = strlen(t.name) - strlen(decoder_suffix);
    char *name;
    CLV_TRY(clv_strdup(t.name, &name, err));
    x->allocated_blocks[x->n_allocated_blocks++] = name;
    strcpy(name + name_prefix_len, ".bias");
    x->tensors[x->n++] = (clv_weights_tensor){name, t.dtype, t.shape, t.data};
  }
  return CLV_OK;
}

clv_code clv_export_hf_folder(const clv_checkpoint *c, const char *folder, bool accepts_change,
                              clv_err *err) {
  CLV_AUTO(free_export) export_work x = {.c = c};
  CLV_TRY(open_all_tensors(&x, err));
  if (!x.session->model.hf)
    return clv_fail(err, CLV_PRECONDITION,
                    "the session's model is not by config.json (model.hf), so there is none to go "
                    "with its weights; the files of the checkpoint are safetensors as they are");
  CLV_TRY(compare_model_config(&x, accepts_change, err));
  CLV_TRY(merge_all_stages(&x, err));
  CLV_TRY(add_bias_of_head(&x, err));
  CLV_TRY(write_tensors(&x, folder, "model.safetensors", err));
  return write_hf_config(&x, folder, err);
}
