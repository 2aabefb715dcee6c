/* SPDX-License-Identifier: Apache-2.0
 *
 * session.yaml: loading (clv_session_config_load, _parse), and the checks across keys.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/model/config/schema_int.h"

#define fail_at clv_session_fail_at

/* ---- nodes of stages ------------------------------------------------------------------------- */

/* Finds the index of the worker named `at`; -1: `at` is the master. Fails for an unknown name. */
static clv_code find_worker(const clv_session_config *c, const char *at, clv_config_pos pos,
                            const char *key, int *ret, clv_err *err) {
  CLV_AUTO(clv_freep) const char **names = NULL;
  *ret = -1;
  if (strcmp(at, "master") == 0) return CLV_OK;
  CLV_TRY(clv_alloc(c->n_workers + 1, sizeof(char *), &names, err));
  for (size_t i = 0; i < c->n_workers; i++) {
    names[i] = c->workers[i].name;
    if (strcmp(at, names[i]) != 0) continue;
    *ret = (int)i;
    return CLV_OK;
  }
  names[c->n_workers] = "master";
  const char *suggestion = clv_did_you_mean(at, names, c->n_workers + 1);
  if (suggestion)
    return fail_at(c, pos, err, "'%s' names the unknown worker '%s', did you mean '%s'?", key, at,
                   suggestion);
  return fail_at(c, pos, err,
                 "'%s' names the unknown worker '%s': use master or a name under workers", key, at);
}

static clv_code check_workers(const clv_session_config *c, clv_err *err) {
  for (size_t i = 0; i < c->n_workers; i++)
    if (strcmp(c->workers[i].name, "master") == 0)
      return fail_at(c, c->workers[i].pos, err, "'master' cannot be the name of a worker");
  return CLV_OK;
}

static int find_worker_named(const clv_session_config *c, const char *name) {
  for (size_t i = 0; i < c->n_workers; i++)
    if (strcmp(c->workers[i].name, name) == 0) return (int)i;
  return -1;
}

int clv_session_worker_in_use(const clv_session_config *c, int worker) {
  if (worker < 0 || !c->workers[worker].spare_in_use) return worker;
  return find_worker_named(c, c->workers[worker].spares.items[c->workers[worker].spare_in_use - 1]);
}

static bool runs_stage(const clv_session_config *c, int worker) {
  for (size_t i = 0; i < c->n_stages; i++)
    if (c->stages[i].worker == worker) return true;
  return c->loss.worker == worker;
}

/* Checks the spares of each worker. Needs the workers of the stages. */
static clv_code check_spares(const clv_session_config *c, clv_err *err) {
  for (size_t i = 0; i < c->n_workers; i++) {
    const clv_remote_spec *w = &c->workers[i];
    for (size_t k = 0; k < w->spares.n; k++) {
      const char *name = w->spares.items[k];
      int spare = find_worker_named(c, name);
      if (spare < 0)
        return fail_at(c, w->spares_pos, err,
                       "workers.%s.spares: '%s' is not in `workers`: add its address and identity "
                       "there",
                       w->name, name);
      if (runs_stage(c, spare))
        return fail_at(c, w->spares_pos, err,
                       "workers.%s.spares: '%s' has a stage of its own: name a worker without one",
                       w->name, name);
      for (size_t j = 0; j < k; j++)
        if (strcmp(w->spares.items[j], name) == 0)
          return fail_at(c, w->spares_pos, err, "workers.%s.spares: '%s' is there twice", w->name,
                         name);
    }
  }
  return CLV_OK;
}

static clv_code check_tls_for_worker(const clv_session_config *c, clv_config_pos pos,
                                     const char *what, const char *at, clv_err *err) {
  if (c->tls.ca) return CLV_OK;
  return fail_at(c, pos, err, "%s runs at worker '%s', which needs tls: {ca, cert, key}", what, at);
}

/* Checks the keys of the section `loss`: a key that is given must be one that the kind of loss
 * has. */
static clv_code check_loss_keys(const clv_session_config *c, clv_err *err) {
  const struct {
    const char *name;
    unsigned key;
    bool is_given;
  } keys[] = {{"weight", CLV_LOSS_KEY_WEIGHT, c->loss.weight.n > 0},
              {"class_weights", CLV_LOSS_KEY_WEIGHT, c->loss.class_weights != 0},
              {"ignore_index", CLV_LOSS_KEY_IGNORE_INDEX, c->loss.ignore_index != -100},
              {"label_smoothing", CLV_LOSS_KEY_LABEL_SMOOTHING, c->loss.label_smoothing != 0},
              {"beta", CLV_LOSS_KEY_BETA, c->loss.beta != 1},
              {"delta", CLV_LOSS_KEY_DELTA, c->loss.delta != 1},
              {"quantile", CLV_LOSS_KEY_QUANTILE, c->loss.quantile != 0.5},
              {"gamma", CLV_LOSS_KEY_GAMMA, c->loss.gamma != 2}};
  char loss_names[80];
  for (size_t i = 0; i < CLV_COUNT(keys); i++) {
    if (!keys[i].is_given || clv_loss_row_of(c->loss.kind)->keys & keys[i].key) continue;
    clv_loss_names_of(keys[i].key, loss_names, sizeof loss_names);
    return fail_at(c, c->loss.pos, err, "loss.%s goes with %s, and not with %s: remove it",
                   keys[i].name, loss_names, clv_loss_name(c->loss.kind));
  }
  if (c->loss.class_weights && c->loss.weight.n)
    return fail_at(c, c->loss.class_weights_pos, err,
                   "loss.class_weights and loss.weight exclude each other: leave one out");
  return CLV_OK;
}

static clv_code check_loss_options(clv_session_config *c, clv_err *err) {
  CLV_TRY(check_loss_keys(c, err));
  CLV_TRY(clv_session_check_targets(c, err));
  CLV_TRY(clv_session_check_scores(c, err));
  if (c->loss.ignore_index != floor(c->loss.ignore_index))
    return fail_at(c, c->loss.ignore_pos, err, "'loss.ignore_index' must be a whole number");
  for (size_t i = 0; i < c->loss.weight.n; i++)
    if (c->loss.weight.items[i] > 0) return CLV_OK;
  if (!c->loss.weight.n) return CLV_OK;
  return fail_at(c, c->loss.options_pos, err, "'loss.weight' is 0 for every class");
}

static clv_code check_loss(clv_session_config *c, clv_err *err) {
  clv_config_pos pos = c->loss.at_pos;
  CLV_TRY(check_loss_options(c, err));
  CLV_TRY(find_worker(c, c->loss.at, pos, "loss.at", &c->loss.worker, err));
  if (c->loss.worker < 0) return CLV_OK;
  if (!c->privacy.labels_leave)
    return fail_at(
        c, pos, err,
        "the loss is at '%s', but labels must not leave the master: put it at master, or "
        "set privacy.labels_leave: true",
        c->loss.at);
  return check_tls_for_worker(c, pos, "the loss", c->loss.at, err);
}

/* ---- checks of stages ------------------------------------------------------------------------ */

static clv_code check_weights(const clv_session_config *c, const clv_stage_spec *s, clv_err *err) {
  const char *master_path = s->weights_folder ? s->weights_folder : s->weights_file;
  if (!!s->weights_file + !!s->weights_folder + !!s->weights_artifact > 1)
    return fail_at(c, s->weights_pos, err,
                   "stage '%s' takes its weights from a file, from a folder or from an "
                   "artifact: give one of them",
                   s->name);
  if (s->weights_sha256 && !master_path && !s->weights_artifact)
    return fail_at(c, s->weights_pos, err,
                   "stage '%s' gives a sha256, but neither file nor artifact", s->name);
  if (s->weights_secret && !master_path)
    return fail_at(c, s->weights_pos, err,
                   "stage '%s' says secret: true of no file: it belongs to weights.file", s->name);
  if (s->weights_new.n && !s->weights_folder && !s->weights_artifact)
    return fail_at(c, s->weights_new_pos, err,
                   "stage '%s': 'new' goes with weights.folder or weights.artifact", s->name);
  if (s->weights_artifact && s->worker < 0)
    return fail_at(c, s->weights_pos, err,
                   "stage '%s' is at master, which has no artifacts: use "
                   "weights.file",
                   s->name);
  return CLV_OK;
}

/* Checks that all stages with the same file agree on weights.secret. */
static clv_code check_weights_secret(const clv_session_config *c, size_t i, clv_err *err) {
  const clv_stage_spec *s = &c->stages[i];
  const char *of = s->weights_folder ? s->weights_folder : s->weights_file;
  for (size_t j = 0; of && j < i; j++) {
    const clv_stage_spec *other = &c->stages[j];
    const char *other_path = other->weights_folder ? other->weights_folder : other->weights_file;
    if (!other_path || strcmp(other_path, of) != 0) continue;
    if (other->weights_secret != s->weights_secret)
      return fail_at(c, s->weights_pos, err,
                     "stages '%s' and '%s' take their weights from one file, and only one of them "
                     "says secret: true",
                     other->name, s->name);
  }
  return CLV_OK;
}

static clv_code check_stage(clv_session_config *c, size_t i, clv_err *err) {
  clv_stage_spec *s = &c->stages[i];
  CLV_AUTO(clv_bytes_done) clv_bytes what = {0};
  clv_bytes_printf(&what, "stages.%zu.at", i);
  if (what.failed) return clv_fail(err, CLV_EXHAUSTED, "out of memory for a message");
  CLV_TRY(find_worker(c, s->at, s->at_pos, what.data, &s->worker, err));
  for (size_t j = 0; j < i; j++)
    if (strcmp(c->stages[j].name, s->name) == 0)
      return fail_at(c, s->pos, err, "two stages are called '%s'", s->name);
  if (!s->transfer_pos.line && !s->transfer_pos.column) s->transfer = c->transfer;
  CLV_TRY(check_weights(c, s, err));
  if (s->freeze && s->lora.targets.n)
    return fail_at(c, s->lora.pos, err,
                   "stage '%s' has freeze: true, and adapters that are to learn: leave freeze out, "
                   "lora freezes the rest by itself",
                   s->name);
  CLV_TRY(check_weights_secret(c, i, err));
  if (s->recompute && s->recompute_blocks.n)
    return fail_at(c, s->recompute_blocks_pos, err,
                   "stage '%s' has recompute: true, which is all of it: leave that out, or "
                   "recompute_blocks",
                   s->name);
  if (s->worker < 0) return CLV_OK;
  if (i == 0 && !c->privacy.raw_input_leaves)
    return fail_at(
        c, s->at_pos, err,
        "the first stage '%s' is at '%s', but raw input must not leave the master: put it "
        "at master, or set privacy.raw_input_leaves: true",
        s->name, s->at);
  return check_tls_for_worker(c, s->at_pos, "this stage", s->at, err);
}

/* Checks that ranges given by numbers divide the model's list of layers in order. Ranges with
 * names, and those of an architecture, are checked when the model is built. */
static clv_code check_stage_ranges(const clv_session_config *c, clv_err *err) {
  const clv_model_config *m = &c->model;
  uint64_t next_layer = 0;
  for (size_t i = 0; m->n_layers && i < c->n_stages; i++) {
    const clv_stage_spec *s = &c->stages[i];
    if (s->range.first_layer_name[0] || s->range.last_layer_name[0]) return CLV_OK;
    if (s->range.first != next_layer)
      return fail_at(c, s->layers_pos, err,
                     "stage '%s' starts with layer %llu, but layer %llu is next", s->name,
                     (unsigned long long)s->range.first, (unsigned long long)next_layer);
    next_layer = s->range.last + 1;
    if (next_layer > m->n_layers)
      return fail_at(c, s->layers_pos, err,
                     "stage '%s' ends with layer %llu, but the model ends with "
                     "%zu",
                     s->name, (unsigned long long)s->range.last, m->n_layers - 1);
  }
  if (next_layer != m->n_layers)
    return fail_at(c, m->pos, err, "no stage has layer %llu of the model",
                   (unsigned long long)next_layer);
  return CLV_OK;
}

/* Checks that either all stages list their layers, or all take ranges of the model. */
static clv_code check_layers(const clv_session_config *c, clv_err *err) {
  bool has_model = clv_model_is_given(&c->model);
  for (size_t i = 0; i < c->n_stages; i++) {
    const clv_stage_spec *s = &c->stages[i];
    if (s->range.is_given && !has_model)
      return fail_at(c, s->layers_pos, err,
                     "stage '%s' takes a range of layers, but there is no "
                     "model",
                     s->name);
    if (!s->range.is_given && has_model)
      return fail_at(c, s->layers_pos, err,
                     "stage '%s' lists its own layers, but there is a model "
                     "too: give a range such as 0..3",
                     s->name);
  }
  return check_stage_ranges(c, err);
}

bool clv_model_is_given(const clv_model_config *m) {
  return m->arch != CLV_ARCH_NONE || m->n_layers > 0 || m->hf;
}

/* Refuses model.ignore_keys in a session that reads no file of Hugging Face. */
static clv_code check_ignore_keys(const clv_session_config *c, clv_err *err) {
  bool reads_files = c->model.hf || c->data.tokenizer.file;
  for (size_t i = 0; i < c->n_stages; i++) reads_files |= c->stages[i].lora.from != NULL;
  if (!c->model.ignore_keys.n || reads_files) return CLV_OK;
  return fail_at(c, c->model.ignore_keys_pos, err,
                 "model.ignore_keys lists keys of config.json, adapter_config.json and the files "
                 "beside them, and the session has neither model.hf nor lora.from nor "
                 "data.tokenizer: leave it out");
}

/* Checks that model.head is given with model.hf, and only then. */
static clv_code check_model_hf(const clv_session_config *c, clv_err *err) {
  const clv_model_config *m = &c->model;
  if (m->hf && m->head == CLV_HEAD_NOT_GIVEN)
    return fail_at(c, m->hf_pos, err,
                   "model.hf needs a head: none, sequence, token, masked or causal");
  if (!m->hf && m->head != CLV_HEAD_NOT_GIVEN)
    return fail_at(c, m->head_pos, err, "model.head belongs to model.hf");
  return CLV_OK;
}

static clv_code check_model(const clv_session_config *c, clv_err *err) {
  const clv_model_config *m = &c->model;
  if ((m->arch != CLV_ARCH_NONE) + (m->n_layers > 0) + (m->hf != NULL) > 1)
    return fail_at(c, m->pos, err, "a model has an arch, layers or hf, and no two of them");
  CLV_TRY(check_model_hf(c, err));
  CLV_TRY(check_ignore_keys(c, err));
  if (m->pos.column && !clv_model_is_given(m))
    return fail_at(c, m->pos, err, "a model needs an arch, layers or hf");
  if (m->n_attrs && m->arch == CLV_ARCH_NONE && !m->hf)
    return fail_at(c, m->attrs[0].pos, err, "unknown key 'model.%s': attributes belong to an arch",
                   m->attrs[0].key);
  return CLV_OK;
}

/* ---- checks of numbers that depend on each other --------------------------------------------- */

/* Checks the keys whose values pipeline.schedule restricts. */
static clv_code check_pipeline(const clv_session_config *c, clv_err *err) {
  clv_pipeline_kind kind = c->pipeline.schedule;
  bool is_async = kind == CLV_PIPE_PIPEDREAM || kind == CLV_PIPE_PIPEDREAM_2BW;
  if ((kind == CLV_PIPE_CUSTOM) != (c->pipeline.file != NULL))
    return fail_at(c, c->pipeline.pos, err, "pipeline.file and schedule: custom need each other");
  if (kind == CLV_PIPE_PIPEDREAM && c->pipeline.micro_batches > 1)
    return fail_at(c, c->pipeline.pos, err,
                   "pipedream takes a step after each batch: micro_batches is 1 (pipedream-2bw "
                   "takes one after each micro_batches of them)");
  if (c->pipeline.micro_batches == CLV_MICRO_AUTO && (is_async || kind == CLV_PIPE_CUSTOM))
    return fail_at(
        c, c->pipeline.pos, err,
        "micro_batches: auto is not possible with schedule: %s, whose results depend on the "
        "number: give a number",
        clv_pipeline_name(kind));
  if (is_async && c->train.clip_grad_norm > 0)
    return fail_at(c, c->pipeline.pos, err,
                   "with %s each stage steps by itself, so there is no norm of all gradients for "
                   "train.clip_grad_norm; take 1f1b or leave clipping out",
                   clv_pipeline_name(kind));
  return CLV_OK;
}

/* Refuses a setting of the optimiser that the chosen kind does not have. */
static clv_code check_settings_of_kind(const clv_session_config *c, const clv_optim_config *o,
                                       clv_err *err) {
  static const clv_optim_config unset_settings = {.alpha = 0.99};
  const uint32_t shared = 1u << CLV_OPTIM_SET_lr | 1u << CLV_OPTIM_SET_beta1 |
                          1u << CLV_OPTIM_SET_beta2 | 1u << CLV_OPTIM_SET_eps;
  for (int i = 0; i < CLV_OPTIM_SETTINGS; i++) {
    clv_optim_setting setting = (clv_optim_setting)i;
    if ((clv_optimizer_row_of(o->kind)->settings | shared) >> i & 1) continue;
    if (clv_optim_setting_value(o, setting) != clv_optim_setting_value(&unset_settings, setting))
      return fail_at(c, c->train.optimizer.pos, err, "%s has no train.optimizer.%s",
                     clv_optimizer_row_of(o->kind)->name, clv_optim_setting_name(setting));
  }
  return CLV_OK;
}

static clv_code check_optimizer(clv_session_config *c, clv_err *err) {
  clv_optimizer_config *o = &c->train.optimizer;
  clv_optim_config settings = {.kind = o->kind};
  o->beta1 = o->betas.items[0];
  o->beta2 = o->betas.items[1];
  const clv_optimizer_row *row = clv_optimizer_row_of(o->kind);
  if (!o->eps_pos.column) o->eps = row->defaults.eps > 0 ? row->defaults.eps : 1e-8;
  CLV_OPTIM_COPY(&settings, o);
  CLV_TRY(check_settings_of_kind(c, &settings, err));
  if (o->nesterov && !(o->momentum > 0))
    return fail_at(c, o->pos, err, "train.optimizer.nesterov needs a momentum above 0");
  if (!(o->beta1 < 1 && o->beta2 < 1))
    return fail_at(c, o->pos, err, "train.optimizer.betas must be below 1");
  if (!(o->alpha < 1)) return fail_at(c, o->pos, err, "train.optimizer.alpha must be below 1");
  return CLV_OK;
}

/* Applies train.accumulate: cuts a batch into as many micro-batches, and allows one of them in
 * flight at a time unless pipeline.window says otherwise. */
static clv_code set_accumulation(clv_session_config *c, clv_err *err) {
  uint64_t parts = c->train.accumulate;
  if (parts == 1) return CLV_OK;
  if (c->pipeline.micro_batches != 1 && c->pipeline.micro_batches != parts)
    return fail_at(c, c->pipeline.pos, err,
                   "train.accumulate: %llu cuts a batch into as many micro-batches, and "
                   "pipeline.micro_batches says otherwise: give one of them",
                   (unsigned long long)parts);
  c->pipeline.micro_batches = parts;
  if (c->pipeline.window == CLV_WINDOW_AUTO) c->pipeline.window = 1;
  return CLV_OK;
}

static clv_code check_train(clv_session_config *c, clv_err *err) {
  clv_train_config *t = &c->train;
  CLV_TRY(set_accumulation(c, err));
  if (!t->eval_batch) t->eval_batch = t->batch;
  CLV_TRY(check_optimizer(c, err));
  if (!(t->ema < 1))
    return fail_at(c, t->ema_pos, err, "train.ema is %g: set it below 1, as in 0.999", t->ema);
  if (t->ema_warmup && !(t->ema > 0))
    return fail_at(c, t->ema_pos, err,
                   "train.ema_warmup needs an average: set train.ema, as in 0.999");
  if (t->schedule.kind == CLV_LR_STEP && !t->schedule.step_size)
    return fail_at(c, t->schedule.pos, err, "a step schedule needs train.schedule.step_size");
  if (t->schedule.from_zero && !t->schedule.warmup_steps)
    return fail_at(c, t->schedule.pos, err,
                   "train.schedule.from_zero is of the warm-up: it needs warmup_steps");
  if (c->pipeline.micro_batches > t->batch)
    return fail_at(c, c->pipeline.pos, err,
                   "pipeline.micro_batches is %llu, more than the %llu records of train.batch",
                   (unsigned long long)c->pipeline.micro_batches, (unsigned long long)t->batch);
  return check_pipeline(c, err);
}

static clv_code resolve_paths(const clv_session_config *c, clv_text_list *list, clv_config_pos pos,
                              clv_err *err) {
  for (size_t i = 0; i < list->n; i++) {
    char *path = NULL;
    if (!clv_path_can_join(c->data.root, list->items[i]))
      return fail_at(c, pos, err, "data.root and a file name make a path of more than %d bytes",
                     CLV_CONFIG_MAX_TEXT);
    CLV_TRY(clv_path_join(c->data.root, list->items[i], &path, err));
    free(list->items[i]);
    list->items[i] = path;
  }
  return CLV_OK;
}

size_t clv_data_n_inputs(const clv_data_config *d) { return d->inputs.n ? d->inputs.n : 1; }

static const clv_format_row *data_format_row(const clv_session_config *c) {
  return clv_format_row_of(c->data.format);
}

/* Returns the row of the format that names the records' inputs: that of data.format, but that of
 * the format for texts if the data are a table with a text column. */
static const clv_format_row *input_format_row(const clv_session_config *c) {
  return clv_data_has_table_text(&c->data) ? clv_format_row_of(CLV_FORMAT_TEXT)
                                           : data_format_row(c);
}

/* Checks the names in data.inputs for a data format whose input names are fixed. If none are given,
 * sets the format's default names. */
static clv_code set_input_names(clv_session_config *c, clv_err *err) {
  const clv_format_row *f = input_format_row(c);
  clv_data_config *d = &c->data;
  char names[80];
  for (size_t i = 0; f->inputs[0] && i < d->inputs.n; i++) {
    size_t k = 0;
    while (f->inputs[k] && strcmp(f->inputs[k], d->inputs.items[i]) != 0) k++;
    if (f->inputs[k]) continue;
    clv_list_names(f->inputs, names, sizeof names);
    return fail_at(c, d->inputs_pos, err, "data.inputs: there is no '%s'; there are %s",
                   d->inputs.items[i], names);
  }
  for (size_t i = 0, given = d->inputs.n; !given && f->default_inputs[i]; i++)
    CLV_TRY(clv_text_list_add(&d->inputs, f->default_inputs[i], err));
  if (d->inputs.n || !clv_data_has_table_text(d) || !clv_data_has_column_inputs(d)) return CLV_OK;
  /* the input from the text column needs a name when other columns make inputs, too */
  return clv_text_list_add(&d->inputs, f->inputs[0], err);
}

/* Refuses data.normalize, data.scale and data.flatten for named inputs and for tokens, which reach
 * the model unchanged. */
static clv_code check_no_normalisation(const clv_session_config *c, clv_err *err) {
  const clv_data_config *d = &c->data;
  const struct {
    const char *key;
    bool given;
    clv_config_pos pos;
  } keys[] = {{"data.normalize", d->mean.n || d->std.n, d->normalize_pos},
              {"data.scale", d->scale != 0, d->scale_pos},
              {"data.flatten", d->flatten, d->flatten_pos}};
  for (size_t i = 0; i < CLV_COUNT(keys); i++) {
    if (!keys[i].given) continue;
    if (data_format_row(c)->needs_tokenizer)
      return fail_at(c, keys[i].pos, err,
                     "%s does not go with data.format %s, whose records become tokens: remove it",
                     keys[i].key, data_format_row(c)->name);
    if (!(data_format_row(c)->accepted_keys & CLV_KEY_NORMALIZE) && !clv_data_has_images(d))
      return fail_at(
          c, keys[i].pos, err,
          "%s does not go with data.format %s, whose columns have a scale each: remove it",
          keys[i].key, data_format_row(c)->name);
    if (d->inputs.n)
      return fail_at(c, keys[i].pos, err,
                     "%s does not go with data.inputs, which are taken as they are: remove it",
                     keys[i].key);
  }
  return CLV_OK;
}

static clv_code check_input_names(clv_session_config *c, clv_err *err) {
  const clv_data_config *d = &c->data;
  CLV_TRY(set_input_names(c, err));
  if (d->inputs.n && !(input_format_row(c)->accepted_keys & CLV_KEY_INPUTS))
    return fail_at(c, d->inputs_pos, err, "data.inputs does not go with data.format %s",
                   data_format_row(c)->name);
  CLV_TRY(check_no_normalisation(c, err));
  for (size_t i = 0; i < d->inputs.n; i++)
    for (size_t k = 0; k < i; k++)
      if (strcmp(d->inputs.items[i], d->inputs.items[k]) == 0)
        return fail_at(c, d->inputs_pos, err,
                       "data.inputs has '%s' twice: give each input its own name",
                       d->inputs.items[i]);
  return CLV_OK;
}

static clv_code check_data_files(const clv_session_config *c, const char *key,
                                 const clv_text_list *files, clv_config_pos pos, clv_err *err) {
  const clv_format_row *f = data_format_row(c);
  size_t inputs = f->has_arrays ? clv_data_n_inputs(&c->data) : 1;
  /* the files have inputs and no labels, as `predict` accepts */
  bool has_inputs_only = files == &c->data.test && files->n == inputs;
  if (!files->n || files->n == inputs + f->has_arrays || has_inputs_only) return CLV_OK;
  if (c->data.inputs.n && f->has_arrays)
    return fail_at(c, pos, err,
                   "'%s' must name %zu files, one per name of data.inputs and then the labels, got "
                   "%zu",
                   key, inputs + 1, files->n);
  return fail_at(c, pos, err, "'%s' must name %s, got %zu%s", key, f->train_names, files->n,
                 f->has_arrays ? "" : " names");
}

/* Refuses keys of data.tokenizer that change case or accents if the file is a tokenizer.json, whose
 * normalizer already says what becomes of both. */
static clv_code check_tokenizer_options(const clv_session_config *c, clv_err *err) {
  const clv_data_config *d = &c->data;
  size_t n = d->tokenizer.file ? strlen(d->tokenizer.file) : 0;
  if (n <= 5 || strcmp(d->tokenizer.file + n - 5, ".json") != 0) return CLV_OK;
  if (d->tokenizer.lower_case && d->tokenizer.accents == CLV_ACCENT_AUTO) return CLV_OK;
  return fail_at(c, d->tokenizer.pos, err,
                 "data.tokenizer.%s is of a vocab.txt, and %s has a normalizer of its own: remove "
                 "the key",
                 d->tokenizer.lower_case ? "accents" : "lower_case", d->tokenizer.file);
}

static clv_code check_text_data(const clv_session_config *c, clv_err *err) {
  const clv_data_config *d = &c->data;
  const clv_format_row *f = data_format_row(c);
  char formats[80];
  if (d->objective != CLV_LABELS_OF_FILES && !(f->accepted_keys & CLV_KEY_OBJECTIVE)) {
    clv_format_names(CLV_KEY_OBJECTIVE, formats, sizeof formats);
    return fail_at(c, d->objective_pos, err, "data.objective goes with the formats %s", formats);
  }
  if (f->needs_tokenizer && !d->tokenizer.file)
    return fail_at(c, d->pos, err,
                   "data.format %s needs data.tokenizer.file, a vocab.txt or a tokenizer.json",
                   f->name);
  CLV_TRY(check_tokenizer_options(c, err));
  if (d->format == CLV_FORMAT_TEXT && strcmp(d->text.column, d->text.label) == 0)
    return fail_at(c, d->text.pos, err, "data.text: column and label are both '%s'",
                   d->text.column);
  return CLV_OK;
}

static clv_code check_image_data(const clv_session_config *c, clv_err *err) {
  const char *what = NULL;
  const clv_data_config *d = &c->data;
  if (d->images.channels == 2) what = "channels must be 1 or 3";
  if (d->images.train_crop != CLV_TRAIN_CROP_CENTER && !d->images.crop)
    what = "train_crop needs the size: set data.images.crop";
  if (d->images.pad && d->images.train_crop != CLV_TRAIN_CROP_RANDOM)
    what = "pad belongs to train_crop: random";
  if (d->images.area.items[0] > d->images.area.items[1]) what = "area is [least, greatest]";
  if (d->images.ratio.items[0] > d->images.ratio.items[1]) what = "ratio is [least, greatest]";
  return what ? fail_at(c, d->images.pos, err, "data.images: %s", what) : CLV_OK;
}

/* Fails because the data format does not take data.validation.group. The text says how other
 * formats group records: ": documents are grouped by their files, images by ...". */
static clv_code fail_group_unsupported(const clv_session_config *c, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes others = {0};
  char formats[80];
  clv_format_names(CLV_KEY_GROUP, formats, sizeof formats);
  for (int i = CLV_FORMAT_COUNT - 1; i >= 0; i--) {
    const clv_format_row *f = clv_format_row_of((clv_data_format)i);
    if (f->grouped_by)
      clv_bytes_printf(&others, "%s%s %sby %s", others.len ? ", " : ": ", f->name,
                       others.len ? "" : "are grouped ", f->grouped_by);
  }
  if (others.failed) return clv_fail(err, CLV_EXHAUSTED, "out of memory for a message");
  return fail_at(c, c->data.group_pos, err, "data.validation.group goes with %s%s", formats,
                 others.len ? others.data : "");
}

/* Checks data.validation.group, which a split by group needs if the records do not name their
 * groups. For array formats the key names a file, whose path is relative to data.root. */
static clv_code check_validation_group(clv_session_config *c, clv_err *err) {
  clv_data_config *d = &c->data;
  const clv_format_row *f = data_format_row(c);
  char *path = NULL;
  if (d->validation_group && d->validation_split_by != CLV_BY_GROUP)
    return fail_at(c, d->group_pos, err,
                   "data.validation.group goes with data.validation.by: group");
  if (d->validation_group && !(f->accepted_keys & CLV_KEY_GROUP))
    return fail_group_unsupported(c, err);
  if (d->validation_split_by == CLV_BY_GROUP && f->group && !d->validation_group)
    return fail_at(c, d->group_pos, err,
                   "data.validation.by: group needs data.validation.group, %s", f->group);
  if (!f->has_arrays || !d->validation_group) return CLV_OK;
  if (!clv_path_can_join(d->root, d->validation_group))
    return fail_at(c, d->group_pos, err,
                   "data.root and data.validation.group make a path of more than %d bytes",
                   CLV_CONFIG_MAX_TEXT);
  CLV_TRY(clv_path_join(d->root, d->validation_group, &path, err));
  free(d->validation_group);
  d->validation_group = path;
  return CLV_OK;
}

static bool text_has_line(const clv_bytes *text, const char *line) {
  size_t len = strlen(line);
  for (const char *at = text->data; at && *at; at += strcspn(at, "\n"), at += *at == '\n')
    if (strncmp(at, line, len) == 0 && at[len] == '\n') return true;
  return false;
}

/* Makes a config in which all keys have their defaults. */
static clv_code make_default_config(clv_session_config **ret, clv_err *err) {
  const clv_yaml_source no_source = {.file = ""};
  const clv_binder b = {.schema = clv_session_schema(), .source = &no_source, .folder = "/"};
  CLV_TRY(clv_alloc(1, sizeof **ret, ret, err));
  return clv_schema_bind_defaults(&b, *ret, err);
}

/* Returns the column use with which a key in the section of another format applies to a table, too;
 * NULL: there is none. line: the key and its value. */
static const char *column_use_of_key(uint32_t section, const char *line) {
  static const char max_tokens[] = "data.text.max_tokens:";
  bool is_max_tokens = strncmp(line, max_tokens, strlen(max_tokens)) == 0;
  if (section == CLV_KEY_IMAGES) return clv_column_use_names[CLV_COLUMN_FILE];
  return section == CLV_KEY_TOKENIZER || is_max_tokens ? clv_column_use_names[CLV_COLUMN_TEXT]
                                                       : NULL;
}

/* Returns true if a key of another format's section applies to a column of the table. */
static bool is_key_of_column(const clv_session_config *c, uint32_t section, const char *line) {
  if (!column_use_of_key(section, line)) return false;
  return section == CLV_KEY_IMAGES ? clv_data_has_images(&c->data)
                                   : clv_data_has_table_text(&c->data);
}

static clv_code fail_inapplicable(const clv_session_config *c, uint32_t section, clv_config_pos pos,
                                  const char *line, clv_err *err) {
  bool is_table = data_format_row(c)->accepted_keys & CLV_KEY_TABLE;
  const char *use = is_table ? column_use_of_key(section, line) : NULL;
  char formats[80];
  clv_format_names(section, formats, sizeof formats);
  return fail_at(c, pos, err, "%.*s does not go with data.format %s, but with %s%s%s%s: remove it",
                 (int)strcspn(line, ":"), line, data_format_row(c)->name, formats,
                 use ? ", or with a column `as: " : "", use ? use : "", use ? "`" : "");
}

/* Checks that keys of sections that do not apply to data.format have their defaults. Files written
 * by Cleave contain these keys with their defaults, so they cannot be refused altogether. */
static clv_code check_inapplicable_sections(const clv_session_config *c, clv_err *err) {
  const struct {
    const char *prefix;
    uint32_t key;
    clv_config_pos pos;
  } sections[] = {{"data.images.", CLV_KEY_IMAGES, c->data.images.pos},
                  {"data.text.", CLV_KEY_TEXT, c->data.text.pos},
                  {"data.documents.", CLV_KEY_DOCUMENTS, c->data.documents.pos},
                  {"data.table.", CLV_KEY_TABLE, c->data.table.pos},
                  {"data.tokenizer.", CLV_KEY_TOKENIZER, c->data.tokenizer.pos}};
  CLV_AUTO(clv_session_config_freep) clv_session_config *defaults = NULL;
  CLV_AUTO(clv_bytes_done) clv_bytes lines = {0}, usual = {0};
  CLV_TRY(make_default_config(&defaults, err));
  clv_schema_write_lines(clv_session_schema(), c, &lines);
  clv_schema_write_lines(clv_session_schema(), defaults, &usual);
  if (lines.failed || usual.failed) return clv_fail(err, CLV_EXHAUSTED, "out of memory");
  for (char *line = lines.data, *end; line && (end = strchr(line, '\n')) != NULL; line = end + 1) {
    *end = '\0';
    for (size_t i = 0; i < CLV_COUNT(sections); i++) {
      if (data_format_row(c)->accepted_keys & sections[i].key ||
          is_key_of_column(c, sections[i].key, line) ||
          strncmp(line, sections[i].prefix, strlen(sections[i].prefix)) != 0 ||
          text_has_line(&usual, line))
        continue;
      return fail_inapplicable(c, sections[i].key, sections[i].pos, line, err);
    }
  }
  return CLV_OK;
}

static clv_code check_data(clv_session_config *c, clv_err *err) {
  clv_data_config *d = &c->data;
  CLV_TRY(check_inapplicable_sections(c, err));
  CLV_TRY(check_input_names(c, err));
  CLV_TRY(check_data_files(c, "data.train", &d->train, d->train_pos, err));
  CLV_TRY(check_data_files(c, "data.test", &d->test, d->test_pos, err));
  CLV_TRY(check_image_data(c, err));
  CLV_TRY(check_text_data(c, err));
  CLV_TRY(clv_session_check_table(c, err));
  CLV_TRY(check_validation_group(c, err));
  CLV_TRY(clv_session_check_split(c, err));
  if (d->mean.n != d->std.n)
    return fail_at(c, d->normalize_pos, err,
                   "data.normalize has %zu means and %zu standard deviations", d->mean.n, d->std.n);
  CLV_TRY(resolve_paths(c, &d->train, d->train_pos, err));
  return resolve_paths(c, &d->test, d->test_pos, err);
}

#define MAX_ESCROW_EVERY_MS (UINT64_C(720) * 3600 * 1000)

static clv_code parse_escrow_every(clv_session_config *c, clv_err *err) {
  uint64_t ms = 0;
  if (!c->checkpoint.escrow.every) return CLV_OK;
  if (clv_parse_duration(c->checkpoint.escrow.every, &ms, NULL) != CLV_OK || ms < 1000 ||
      ms > MAX_ESCROW_EVERY_MS)
    return fail_at(c, c->checkpoint.escrow.every_pos, err,
                   "checkpoint.escrow.every is a time from 1s to 720h, as in 30m, not '%.40s'",
                   c->checkpoint.escrow.every);
  c->checkpoint.escrow.every_ms = ms;
  return CLV_OK;
}

static clv_code fill_in_escrow(clv_session_config *c, clv_err *err) {
  CLV_TRY(parse_escrow_every(c, err));
  if (!c->checkpoint.escrow.every_ms || c->checkpoint.escrow.dir) return CLV_OK;
  if (clv_path_can_join(c->checkpoint.dir, "escrow"))
    return clv_path_join(c->checkpoint.dir, "escrow", &c->checkpoint.escrow.dir, err);
  return clv_fail(err, CLV_INVALID, "%s: the path of checkpoint.dir has more than %d bytes",
                  c->file, CLV_CONFIG_MAX_TEXT);
}

static clv_code set_default_checkpoint_dir(clv_session_config *c, clv_err *err) {
  if (c->checkpoint.dir) return CLV_OK;
  if (!clv_path_can_join(c->run.dir, c->name))
    return clv_fail(err, CLV_INVALID,
                    "%s: run.dir and the run's name make a path of more than %d bytes", c->file,
                    CLV_CONFIG_MAX_TEXT);
  return clv_path_join(c->run.dir, c->name, &c->checkpoint.dir, err);
}

static bool is_key_given(clv_config_pos pos) { return pos.line || pos.column; }

static clv_code check_checkpoint_every(clv_session_config *c, clv_err *err) {
  uint64_t ms;
  clv_config_pos pos = c->checkpoint.every_pos;
  if (!c->checkpoint.every) return CLV_OK;
  if (c->checkpoint.every_steps && is_key_given(c->checkpoint.every_steps_pos))
    return fail_at(c, pos, err,
                   "checkpoint.every and checkpoint.every_steps exclude each other: leave one out");
  c->checkpoint.every_steps = 0;
  if (clv_session_checkpoint_is_auto(c)) return CLV_OK;
  if (!clv_text_to_duration(c->checkpoint.every, &ms) || ms < 1000 || ms > 7 * 86400000)
    return fail_at(c, pos, err,
                   "'checkpoint.every' must be auto or a time from 1s to 7d, got '%.60s'",
                   c->checkpoint.every);
  return CLV_OK;
}

static void drop_tensorboard_if_off(clv_session_config *c) {
  if (strcmp(c->log.tensorboard, "false") != 0) return;
  free(c->log.tensorboard);
  c->log.tensorboard = NULL;
}

/* Keeps limits.lease below limits.reference_lease: a node that may come back within the lease still
 * finds the values that are kept for it. Fails if limits.lease is given, else lowers its
 * default. */
static clv_code check_reference_lease(clv_session_config *c, clv_err *err) {
  uint64_t reference_lease_ms = c->limits.reference_lease_ms;
  char lease[32], reference_lease[32];
  if (c->limits.lease_ms < reference_lease_ms) return CLV_OK;
  clv_duration_to_text(c->limits.lease_ms, lease);
  clv_duration_to_text(reference_lease_ms, reference_lease);
  if (c->limits.lease_pos.line || c->limits.lease_pos.column)
    return fail_at(c, c->limits.lease_pos, err,
                   "limits.lease of %s has to be shorter than limits.reference_lease, %s: lower "
                   "the one or raise the other",
                   lease, reference_lease);
  c->limits.lease_ms = reference_lease_ms / 4 * 3;
  return CLV_OK;
}

static clv_code fill_in_config(clv_session_config *c, clv_err *err) {
  CLV_TRY(check_workers(c, err));
  CLV_TRY(check_data(c, err));
  CLV_TRY(check_model(c, err));
  for (size_t i = 0; i < c->n_stages; i++) CLV_TRY(check_stage(c, i, err));
  CLV_TRY(check_layers(c, err));
  CLV_TRY(check_loss(c, err));
  CLV_TRY(check_spares(c, err));
  CLV_TRY(check_train(c, err));
  CLV_TRY(clv_session_check_choices(c, err));
  CLV_TRY(check_checkpoint_every(c, err));
  drop_tensorboard_if_off(c);
  CLV_TRY(check_reference_lease(c, err));
  CLV_TRY(set_default_checkpoint_dir(c, err));
  return fill_in_escrow(c, err);
}

/* ---- loading session files ------------------------------------------------------------------- */

void clv_session_config_free(clv_session_config *config) {
  if (!config) return;
  clv_schema_free_at(clv_session_schema(), config);
  clv_text_list_clear(&config->overrides);
  free(config->file);
  free(config);
}

void clv_session_config_freep(clv_session_config **config) { clv_session_config_free(*config); }

clv_code clv_session_config_parse(const char *path, const char *text, size_t len,
                                  const clv_config_overrides *over, clv_session_config **ret_config,
                                  clv_err *err) {
  CLV_AUTO(clv_session_config_freep) clv_session_config *c = NULL;
  CLV_TRY(clv_alloc(1, sizeof *c, &c, err));
  CLV_TRY(clv_strdup(path, &c->file, err));
  clv_yaml_source source = {c->file, &c->overrides};
  CLV_TRY(clv_config_build(clv_session_schema(), &source, text, len, over, &c->overrides, c, err));
  CLV_TRY(fill_in_config(c, err));
  *ret_config = clv_steal(&c);
  return CLV_OK;
}

clv_code clv_session_config_load(const char *path, const clv_config_overrides *over,
                                 clv_session_config **ret_config, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes text = {0};
  clv_code code = clv_file_read(path, CLV_CONFIG_MAX_BYTES, &text, err);
  if (code == CLV_NOT_FOUND && err)
    return clv_fail(err, code, "%s; `cleave-master init` writes a first session.yaml", err->text);
  CLV_TRY(code);
  return clv_session_config_parse(path, text.data, text.len, over, ret_config, err);
}
