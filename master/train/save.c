/* SPDX-License-Identifier: Apache-2.0
 *
 * Saves checkpoints of all stages. clv_trainer_begin_save asks the workers to write the state of
 * their stages into files that stay there, and writes everything else into the folder. Training
 * goes on. clv_trainer_end_save is called between steps: when all workers have reported their files
 * durable, it writes the manifest, which makes the folder a checkpoint, and then removes older
 * checkpoints with their files at workers.
 *
 * A worker keeps a file under the name SESSION.STEP.STAGE.w (weights) or .o (optimiser), which
 * never gets other contents. All files of a checkpoint belong to one step, because a worker copies
 * a stage's state behind that step's commit and before the next step's calls.
 *
 * The state of all other stages passes through the master: that of stages at the master, of stages
 * of a worker that keeps no files, and of all stages if checkpoint.home is `always`. It passes
 * piece by piece, so the master never has the state of a complete stage in memory.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/net/wire/wire.h"
#include "master/train/train_int.h"

/* Time limit in ms for a worker's answer about a file. It is long because writing may be slow; the
 * loss of a worker is noticed much earlier. */
enum { STATE_FILE_DEADLINE_MS = 3600 * 1000 };
/* Longest wait in ms for one worker's answer, before the next worker's answer is polled. */
enum { MAX_ANSWER_WAIT_MS = 200 };

/* The state of a stage while it is written to a checkpoint. */
typedef struct state_saving {
  cleave_state_list state_list;
  clv_weights_tensor *tensors; /* [n] tensors of the file */
  clv_weights_want *items;     /* [n] the items of `state_list` that are written to the file */
  size_t n;
  clv_weights_sample *samples; /* [n] samples for the ledger; NULL: the ledger needs none */
  clv_weights_writer *file;
} state_saving;

/* A file of a stage that stays at the stage's worker. */
typedef struct kept_stage_file {
  uint32_t stage;
  bool is_optimizer; /* the file has the state of the optimiser; false: the weights */
  state_saving state;
  /* answer of the worker; id 0: it has answered, or there is no file because state.n is 0 */
  cleave_future answer;
  char name[CLV_FILE_NAME + 1];
  /* row of the manifest; its keeper_identity belongs to the session, its kept_file_name is
   * `name` */
  clv_manifest_file manifest_row;
} kept_stage_file;

/* A checkpoint that has begun and has no manifest yet. */
struct clv_trainer_save {
  clv_checkpoint_writer *writer;
  char *run_dir;
  uint64_t step;
  char config_hash[65];
  /* [n_kept_files] files at workers, by stage, weights before optimiser */
  kept_stage_file *kept_files;
  size_t n_kept_files;
};

static void free_state_saving(state_saving *s) {
  cleave_state_list_done(&s->state_list);
  clv_trainer_free_samples(s->samples, s->n);
  free(s->tensors);
  free(s->items);
  clv_weights_writer_free(s->file);
}

bool clv_trainer_is_checkpointed(const clv_trainer *t, uint32_t stage, cleave_state_kind kind,
                                 const char *name) {
  const clv_param *p = clv_params_find(t->b->stages[stage].params, name);
  return kind != CLEAVE_STATE_WEIGHTS || !p ||
         clv_is_param_checkpointed(&t->config->stages[stage], p);
}

static cleave_state_kind state_kind_of(bool is_optimizer) {
  return is_optimizer ? CLEAVE_STATE_OPTIMIZER : CLEAVE_STATE_WEIGHTS;
}

static clv_code list_state(clv_trainer *t, uint32_t stage, bool is_optimizer, state_saving *s,
                           clv_err *err) {
  cleave_state_kind kind = state_kind_of(is_optimizer);
  CLV_TRY_API(cleave_state_list_of(t->modules[stage], kind, &s->state_list, CLV_API_ERROR));
  CLV_TRY(clv_alloc(s->state_list.n, sizeof *s->tensors, &s->tensors, err));
  CLV_TRY(clv_alloc(s->state_list.n, sizeof *s->items, &s->items, err));
  for (size_t i = 0; i < s->state_list.n; i++) {
    const clv_weights_want *w = &s->state_list.items[i];
    if (!clv_trainer_is_checkpointed(t, stage, kind, w->name)) continue;
    s->tensors[s->n] = (clv_weights_tensor){w->name, w->dtype, w->shape, NULL};
    s->items[s->n++] = *w;
  }
  return CLV_OK;
}

/* ---- files of a checkpoint in the run folder ------------------------------------------------- */

static clv_code on_piece_received(void *user, size_t item, uint64_t offset, void *data,
                                  size_t length, clv_err *err) {
  const state_saving *s = user;
  if (s->samples && s->samples[item].n_parts)
    clv_weights_sample_add(&s->samples[item], offset, data, length);
  return clv_weights_writer_put(s->file, item, offset, data, length, err);
}

static clv_code save_state(clv_trainer *t, uint32_t i, bool is_optimizer, clv_checkpoint_writer *w,
                           clv_err *err) {
  CLV_AUTO(free_state_saving) state_saving s = {0};
  cleave_state_kind kind = state_kind_of(is_optimizer);
  CLV_TRY(list_state(t, i, is_optimizer, &s, err));
  CLV_TRY(clv_trainer_new_samples(t, i, kind, s.items, s.n, &s.samples, err));
  CLV_TRY(clv_checkpoint_begin_part(w, i, is_optimizer, s.tensors, s.n, &s.file, err));
  if (s.n)
    CLV_TRY_API(cleave_state_take(t->runtime, t->modules[i], kind, s.items, s.n, on_piece_received,
                                  &s, CLV_API_ERROR));
  CLV_TRY(clv_trainer_note_values(t, i, s.samples, s.n, err));
  return clv_checkpoint_end_part(w, clv_steal(&s.file), err);
}

static clv_code save_stage(clv_trainer *t, uint32_t i, clv_checkpoint_writer *w, clv_err *err) {
  CLV_TRY(save_state(t, i, false, w, err));
  return save_state(t, i, true, w, err);
}

/* Lists the stages of which the checkpoint lacks weights. Export prints this list. */
static clv_code list_incomplete_stages(const clv_trainer *t, clv_bytes *ret, clv_err *err) {
  for (uint32_t i = 0; i < t->b->n_stages; i++) {
    const clv_params *params = t->b->stages[i].params;
    int k = 0;
    while (k < params->n &&
           clv_trainer_is_checkpointed(t, i, CLEAVE_STATE_WEIGHTS, params->list[k].name))
      k++;
    if (k < params->n)
      clv_bytes_printf(ret, "%s%s", ret->len ? ", " : "", t->config->stages[i].name);
  }
  return ret->failed ? clv_fail(err, CLV_EXHAUSTED, "out of memory") : CLV_OK;
}

/* Extra key of a checkpoint for skipped steps, which changed no weight. The value has three
 * numbers: skipped steps in a row up to now, all steps skipped because of the loss, all steps
 * skipped because of a gradient. A checkpoint lacks the key if the last two numbers are 0. */
static const char skipped_steps_key[] = "skipped_steps";

static void format_skipped_steps(const clv_train_position *position, char text[80]) {
  snprintf(text, 80, "%llu %llu %llu", (unsigned long long)position->n_skipped_in_a_row,
           (unsigned long long)position->n_bad_losses,
           (unsigned long long)position->n_bad_gradients);
}

/* Extra key of a checkpoint, with the text of clv_early_stopping_format. A checkpoint lacks the key
 * if no validation was counted. */
static const char early_stopping_key[] = "early_stopping";

void clv_early_stopping_format(const clv_early_stopping_state *s,
                               char text[CLV_EARLY_STOPPING_TEXT_BYTES]) {
  text[0] = '\0';
  if (s->score == CLV_BEST_NONE) return;
  int n = snprintf(text, CLV_EARLY_STOPPING_TEXT_BYTES, "%s %llu", clv_best_metric_name(s->score),
                   (unsigned long long)s->n_without_improvement);
  if (s->has_best)
    n += snprintf(text + n, CLV_EARLY_STOPPING_TEXT_BYTES - (size_t)n, " behind %.17g step %llu",
                  s->best, (unsigned long long)s->best_step);
  if (s->target[0])
    snprintf(text + n, CLV_EARLY_STOPPING_TEXT_BYTES - (size_t)n, " of %s", s->target);
}

bool clv_early_stopping_parse(const char *text, clv_early_stopping_state *ret) {
  char name[64], rewritten_text[CLV_EARLY_STOPPING_TEXT_BYTES];
  unsigned long long n_without_improvement = 0, step = 0;
  clv_early_stopping_state s = {0};
  int n =
      sscanf(text, "%63s %llu behind %lf step %llu", name, &n_without_improvement, &s.best, &step);
  if (n != 2 && n != 4) return false;
  for (int i = CLV_BEST_NONE + 1; i < CLV_BEST_COUNT; i++)
    if (strcmp(name, clv_best_metric_name((clv_best_metric)i)) == 0) s.score = (clv_best_metric)i;
  const char *target_suffix = strstr(text, " of ");
  if (target_suffix) snprintf(s.target, sizeof s.target, "%s", target_suffix + strlen(" of "));
  s.has_best = n == 4;
  s.n_without_improvement = n_without_improvement;
  s.best_step = step;
  clv_early_stopping_format(&s, rewritten_text);
  if (s.score == CLV_BEST_NONE || !isfinite(s.best) || strcmp(text, rewritten_text) != 0)
    return false;
  *ret = s;
  return true;
}

void clv_trainer_read_position(const clv_trainer_state *s, clv_train_position *ret) {
  const char *text = clv_trainer_state_get_extra(s, skipped_steps_key);
  const char *stopping_text = clv_trainer_state_get_extra(s, early_stopping_key);
  unsigned long long n[3];
  *ret = (clv_train_position){.cursor = {s->epoch, s->records_used}};
  if (stopping_text) (void)!clv_early_stopping_parse(stopping_text, &ret->early_stopping_state);
  if (!text || sscanf(text, "%llu %llu %llu", &n[0], &n[1], &n[2]) != 3) return;
  ret->n_skipped_in_a_row = n[0];
  ret->n_bad_losses = n[1];
  ret->n_bad_gradients = n[2];
}

/* Adds trainer_state.json. incomplete_stages: the stages that list_incomplete_stages has found, or
 * "". */
static clv_code add_trainer_state(const clv_trainer *t, clv_checkpoint_writer *w,
                                  const clv_train_position *position, const char *incomplete_stages,
                                  clv_err *err) {
  char skipped_text[80], stopping_text[CLV_EARLY_STOPPING_TEXT_BYTES];
  format_skipped_steps(position, skipped_text);
  clv_early_stopping_format(&position->early_stopping_state, stopping_text);
  clv_kv extra_keys[5] = {{"isa", clv_backend_isa(clv_backend_cpu())},
                          {"libraries", clv_backend_libraries(clv_backend_cpu())}};
  size_t n = 2;
  if (incomplete_stages[0]) extra_keys[n++] = (clv_kv){CLV_STAGES_LEFT, incomplete_stages};
  if (position->n_bad_losses || position->n_bad_gradients)
    extra_keys[n++] = (clv_kv){skipped_steps_key, skipped_text};
  if (stopping_text[0]) extra_keys[n++] = (clv_kv){early_stopping_key, stopping_text};
  clv_trainer_state state = {.epoch = position->cursor.epoch,
                             .records_used = position->cursor.index,
                             .global_step = t->n_committed_steps,
                             .max_steps = t->config->train.max_steps,
                             .extra = extra_keys,
                             .n_extra = n};
  return clv_checkpoint_add_state(w, &state, err);
}

/* Adds the files that describe the run at this step, and sets s->config_hash. */
static clv_code add_description(clv_trainer *t, struct clv_trainer_save *s,
                                const clv_train_position *position, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes config = {0}, incomplete_stages = {0};
  clv_sha256 digest;
  CLV_TRY(clv_session_config_write(t->config, &config, err));
  CLV_TRY(clv_sha256_of(config.data, config.len, &digest, err));
  clv_sha256_hex(&digest, s->config_hash);
  CLV_TRY(
      clv_checkpoint_add_file(s->writer, "session.effective.yaml", config.data, config.len, err));
  CLV_TRY(list_incomplete_stages(t, &incomplete_stages, err));
  return add_trainer_state(t, s->writer, position,
                           incomplete_stages.len ? incomplete_stages.data : "", err);
}

/* ---- files of a checkpoint at workers -------------------------------------------------------- */

static void free_save(clv_trainer *t, struct clv_trainer_save *s) {
  if (!s) return;
  for (size_t i = 0; i < s->n_kept_files; i++) {
    if (s->kept_files[i].answer.id)
      (void)cleave_future_release(t->runtime, s->kept_files[i].answer, NULL);
    free_state_saving(&s->kept_files[i].state);
  }
  clv_checkpoint_writer_free(s->writer);
  free(s->kept_files);
  free(s->run_dir);
  free(s);
}

void clv_trainer_drop_save(clv_trainer *t) { free_save(t, clv_steal(&t->save_in_progress)); }

bool clv_trainer_is_saving(const clv_trainer *t) { return t->save_in_progress != NULL; }

/* Returns true if the files of a stage stay at the stage's worker. */
static bool is_kept_at_worker(const clv_trainer *t, uint32_t stage) {
  return t->b->stages[stage].worker >= 0 &&
         clv_session_checkpoint_home(t->config) != CLV_HOME_ALWAYS && !t->is_stage_fetched[stage];
}

static void make_kept_file_name(const clv_trainer *t, kept_stage_file *p) {
  char session_hex[33];
  for (int i = 0; i < 16; i++)
    snprintf(session_hex + 2 * i, 3, "%02x", t->config->attempt.session_id[i]);
  snprintf(p->name, sizeof p->name, "%s.%llu.%u.%c", session_hex,
           (unsigned long long)t->n_committed_steps, p->stage, p->is_optimizer ? 'o' : 'w');
}

/* Notes that a worker does not keep a stage's files, which the master fetches from now on. reason:
 * the worker's error. Queues a notice with the reason, unless the worker keeps no files at all
 * (UNIMPLEMENTED) and the session does not set checkpoint.home. */
static void fetch_stage_from_now_on(clv_trainer *t, uint32_t stage, const cleave_error *reason) {
  CLV_AUTO(clv_bytes_done) clv_bytes text = {0};
  t->is_stage_fetched[stage] = true;
  if (reason->status == CLEAVE_UNIMPLEMENTED && !t->config->checkpoint.home) return;
  clv_bytes_printf(&text,
                   "checkpoint of step %llu: worker '%s' cannot keep the files of stage '%s': %s; "
                   "the master fetches them from now on",
                   (unsigned long long)t->step_of_activity,
                   t->config->workers[t->b->stages[stage].worker].name,
                   t->config->stages[stage].name, reason->text);
  if (!text.failed) clv_trainer_on_notice(t, text.data);
}

/* Asks the stage's worker to write one file. */
static clv_code begin_kept_file(clv_trainer *t, uint32_t stage, bool is_optimizer,
                                kept_stage_file *p, cleave_error *ret_refusal, clv_err *err) {
  cleave_error reason;
  *p = (kept_stage_file){.stage = stage, .is_optimizer = is_optimizer};
  make_kept_file_name(t, p);
  CLV_TRY(list_state(t, stage, is_optimizer, &p->state, err));
  if (!p->state.n) return CLV_OK;
  if (cleave_state_save_at_worker_async(t->runtime, t->modules[stage], state_kind_of(is_optimizer),
                                        p->name, STATE_FILE_DEADLINE_MS, &p->answer,
                                        &reason) == CLEAVE_OK)
    return CLV_OK;
  if (reason.status != CLEAVE_UNIMPLEMENTED && !reason.reported)
    return clv_trainer_convert_error(t, &reason, err);
  *ret_refusal = reason;
  return CLV_OK;
}

/* Begins both files of a stage. *ret: false if the worker keeps no files. */
static clv_code begin_kept_stage(clv_trainer *t, uint32_t stage, bool *ret, clv_err *err) {
  struct clv_trainer_save *s = t->save_in_progress;
  cleave_error refusal = {.status = CLEAVE_OK};
  for (int k = 0; k < 2 && refusal.status == CLEAVE_OK; k++)
    CLV_TRY(begin_kept_file(t, stage, k, &s->kept_files[s->n_kept_files++], &refusal, err));
  *ret = refusal.status == CLEAVE_OK;
  if (*ret) return CLV_OK;
  while (s->n_kept_files && s->kept_files[s->n_kept_files - 1].stage == stage) {
    kept_stage_file *p = &s->kept_files[--s->n_kept_files];
    if (p->answer.id) (void)cleave_future_release(t->runtime, p->answer, NULL);
    free_state_saving(&p->state);
  }
  fetch_stage_from_now_on(t, stage, &refusal);
  return CLV_OK;
}

/* Asks each worker that keeps files of its stages to write the files. The master calls this before
 * it writes its own files, so that all write at the same time. is_kept: [n_stages] receives true
 * for each stage whose worker keeps its files. */
static clv_code begin_kept_stages(clv_trainer *t, bool *is_kept, clv_err *err) {
  for (uint32_t i = 0; i < t->b->n_stages; i++)
    if (is_kept_at_worker(t, i)) CLV_TRY(begin_kept_stage(t, i, &is_kept[i], err));
  return CLV_OK;
}

static clv_code begin_files(clv_trainer *t, const clv_train_position *position, clv_err *err) {
  CLV_AUTO(clv_freep) bool *is_kept = NULL;
  CLV_TRY(clv_alloc(t->b->n_stages, sizeof *is_kept, &is_kept, err));
  CLV_TRY(clv_alloc(2 * (size_t)t->b->n_stages, sizeof *t->save_in_progress->kept_files,
                    &t->save_in_progress->kept_files, err));
  CLV_TRY(begin_kept_stages(t, is_kept, err));
  for (uint32_t i = 0; i < t->b->n_stages; i++)
    if (!is_kept[i]) CLV_TRY(save_stage(t, i, t->save_in_progress->writer, err));
  return add_description(t, t->save_in_progress, position, err);
}

/* Begins the folder of a checkpoint. Does not set *ret if the checkpoint of this step exists
 * already. A checkpoint that clv_trainer_restore could not use has lost files, so it is
 * replaced. */
static clv_code begin_folder(clv_trainer *t, const char *run_dir, clv_checkpoint_writer **ret,
                             clv_err *err) {
  uint64_t step = t->n_committed_steps;
  if (step >= t->first_lost_step) {
    CLV_TRY(clv_checkpoint_remove(run_dir, step, err));
    t->first_lost_step = step + 1;
  }
  clv_code code = clv_checkpoint_begin(run_dir, step, t->b->n_stages, ret, err);
  return code == CLV_EXISTS ? CLV_OK : code;
}

clv_code clv_trainer_begin_save(clv_trainer *t, const char *run_dir,
                                const clv_train_position *position, clv_err *err) {
  CLV_AUTO(clv_checkpoint_writer_freep) clv_checkpoint_writer *w = NULL;
  clv_trainer_set_activity(t, "checkpoint of step", t->n_committed_steps);
  CLV_TRY(begin_folder(t, run_dir, &w, err));
  if (!w) return CLV_OK;
  CLV_TRY(clv_alloc(1, sizeof *t->save_in_progress, &t->save_in_progress, err));
  t->save_in_progress->writer = clv_steal(&w);
  t->save_in_progress->step = t->n_committed_steps;
  clv_code code = clv_strdup(run_dir, &t->save_in_progress->run_dir, err);
  if (code == CLV_OK) code = begin_files(t, position, err);
  if (code != CLV_OK) clv_trainer_drop_save(t);
  return code;
}

/* ---- completing a checkpoint ----------------------------------------------------------------- */

/* Reads the worker's answer about a file. */
static cleave_status take_answer(clv_trainer *t, kept_stage_file *p, cleave_error *error) {
  cleave_state_file f = {.size = sizeof f};
  cleave_status status = cleave_future_state_file(t->runtime, p->answer, &f, error);
  (void)cleave_future_release(t->runtime, p->answer, NULL);
  p->answer = (cleave_future){0};
  if (status != CLEAVE_OK) return status;
  p->manifest_row.bytes = f.bytes;
  /* parsing cannot fail, because libcleave has written the text */
  (void)clv_sha256_parse(f.sha256, &p->manifest_row.sha256);
  return CLEAVE_OK;
}

/* Reads the answers of workers that have arrived. waits: waits for each answer. *ret_failed_file:
 * the first file that its worker could not write; NULL: none. *ret_is_pending: some answer has not
 * arrived yet. */
static clv_code take_answers(clv_trainer *t, bool waits, kept_stage_file **ret_failed_file,
                             bool *ret_is_pending, cleave_error *ret_reason, clv_err *err) {
  struct clv_trainer_save *s = t->save_in_progress;
  *ret_failed_file = NULL;
  *ret_is_pending = false;
  for (size_t i = 0; i < s->n_kept_files && !*ret_failed_file; i++) {
    kept_stage_file *p = &s->kept_files[i];
    bool is_ready = !p->answer.id;
    if (is_ready) continue;
    CLV_TRY_API(cleave_future_poll(t->runtime, p->answer, &is_ready, CLV_API_ERROR));
    while (waits && !is_ready) {
      /* the result is ignored, because the next call polls the answer */
      (void)!cleave_future_wait(t->runtime, p->answer, MAX_ANSWER_WAIT_MS, NULL);
      CLV_TRY_API(cleave_future_poll(t->runtime, p->answer, &is_ready, CLV_API_ERROR));
    }
    if (!is_ready)
      *ret_is_pending = true;
    else if (take_answer(t, p, ret_reason) != CLEAVE_OK)
      *ret_failed_file = p;
  }
  return CLV_OK;
}

static clv_code add_kept_file(clv_trainer *t, kept_stage_file *p, clv_err *err) {
  struct clv_trainer_save *s = t->save_in_progress;
  const state_saving *r = &p->state;
  clv_weights_writer *file;
  if (!r->n) {
    CLV_TRY(clv_checkpoint_begin_part(s->writer, p->stage, p->is_optimizer, NULL, 0, &file, err));
    return clv_checkpoint_end_part(s->writer, file, err);
  }
  p->manifest_row.keeper_identity = t->config->workers[t->b->stages[p->stage].worker].identity;
  p->manifest_row.kept_file_name = p->name;
  return clv_checkpoint_add_kept(s->writer, p->stage, p->is_optimizer, r->tensors, r->n,
                                 &p->manifest_row, err);
}

/* Returns a module at the worker with the identity; NULL: the session has none. */
static cleave_module *find_module_at(const clv_trainer *t, const char *identity) {
  for (uint32_t i = 0; i < t->b->n_stages; i++) {
    int worker = t->b->stages[i].worker;
    if (worker >= 0 && strcmp(t->config->workers[worker].identity, identity) == 0)
      return t->modules[i];
  }
  return NULL;
}

/* Callback for a checkpoint that is deleted: asks the workers to remove its files. Does not wait
 * for the answers. A file whose worker is not in use stays there; `checkpoint rm` removes it. */
static void remove_kept_files(void *user, const clv_manifest *m) {
  clv_trainer *t = user;
  for (size_t i = 0; i < m->n_files; i++) {
    const clv_manifest_file *f = &m->files[i];
    cleave_module *module = f->keeper_identity ? find_module_at(t, f->keeper_identity) : NULL;
    cleave_future delete_future;
    cleave_error reason;
    if (!module) continue;
    if (cleave_state_remove_at_worker_async(t->runtime, module, f->kept_file_name,
                                            STATE_FILE_DEADLINE_MS, &delete_future,
                                            &reason) == CLEAVE_OK)
      (void)cleave_future_release(t->runtime, delete_future, NULL);
    else
      clv_log(CLV_LOG_DEBUG, "file '%s' at '%s' was not removed: %s", f->kept_file_name,
              f->keeper_identity, reason.text);
  }
}

clv_code clv_trainer_prune_checkpoints(clv_trainer *t, const char *run_dir, uint64_t step_to_keep,
                                       clv_err *err) {
  return clv_checkpoint_prune(run_dir, (uint32_t)t->config->checkpoint.keep, step_to_keep,
                              remove_kept_files, t, err);
}

/* Queues a notice for the user when the first checkpoint whose files stay at workers is
 * complete. */
static void note_first_kept_files(clv_trainer *t) {
  const struct clv_trainer_save *s = t->save_in_progress;
  CLV_AUTO(clv_bytes_done) clv_bytes text = {0};
  char size[24];
  if (t->has_noted_kept_files || !s->n_kept_files) return;
  t->has_noted_kept_files = true;
  for (size_t i = 0; i + 1 < s->n_kept_files; i += 2) {
    const kept_stage_file *p = &s->kept_files[i];
    clv_bytes_printf(
        &text, "%sstage '%s' at worker '%s' (%s)",
        i ? ", " : "checkpoints stay at the workers, as plain files: ",
        t->config->stages[p->stage].name, t->config->workers[t->b->stages[p->stage].worker].name,
        clv_format_size(p[0].manifest_row.bytes + p[1].manifest_row.bytes, size, sizeof size));
  }
  if (!text.failed) clv_trainer_on_notice(t, text.data);
}

static clv_code commit_checkpoint(clv_trainer *t, const clv_save_end_options *options,
                                  clv_err *err) {
  struct clv_trainer_save *s = t->save_in_progress;
  for (size_t i = 0; i < s->n_kept_files; i++) CLV_TRY(add_kept_file(t, &s->kept_files[i], err));
  clv_checkpoint_writer_set_check(s->writer, options->check_before_rename, options->check_user);
  CLV_TRY(clv_checkpoint_commit(s->writer, s->config_hash, CLV_WIRE_PROTOCOL, NULL, err));
  note_first_kept_files(t);
  return clv_trainer_prune_checkpoints(t, s->run_dir, options->step_to_keep, err);
}

/* Handles a file that was not written. Queues a notice with the worker's reason, or returns an
 * error if the worker was lost. */
static clv_code handle_failed_file(clv_trainer *t, const kept_stage_file *p,
                                   const cleave_error *reason, clv_err *err) {
  if (!reason->reported && reason->status != CLEAVE_DEADLINE &&
      reason->status != CLEAVE_UNIMPLEMENTED)
    return clv_trainer_convert_error(t, reason, err);
  fetch_stage_from_now_on(t, p->stage, reason);
  return CLV_OK;
}

clv_code clv_trainer_end_save(clv_trainer *t, const clv_save_end_options *options,
                              clv_save_result *ret, clv_err *err) {
  kept_stage_file *failed_file;
  bool is_pending;
  cleave_error reason;
  *ret = CLV_SAVE_DONE;
  if (!t->save_in_progress) return CLV_OK;
  clv_trainer_set_activity(t, "checkpoint of step", t->save_in_progress->step);
  clv_code code =
      take_answers(t, options->waits_for_files, &failed_file, &is_pending, &reason, err);
  if (code == CLV_OK && failed_file) code = handle_failed_file(t, failed_file, &reason, err);
  if (code == CLV_OK && is_pending && !failed_file) {
    *ret = CLV_SAVE_PENDING;
    return CLV_OK;
  }
  if (failed_file) *ret = CLV_SAVE_FAILED;
  if (code == CLV_OK && !failed_file) code = commit_checkpoint(t, options, err);
  clv_trainer_drop_save(t);
  return code;
}
