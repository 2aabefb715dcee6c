/* SPDX-License-Identifier: Apache-2.0
 *
 * Loads the state of all stages. clv_trainer_restore loads a checkpoint, and clv_trainer_push_files
 * sends the weights of the session's files. A file of a checkpoint that stayed at a stage's worker
 * is loaded there by name, and its digest compared with the manifest. The state in other files
 * passes through the master piece by piece, so the master never has the state of a complete stage
 * in memory.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "master/train/train_int.h"

/* ---- restoring from files of the master ------------------------------------------------------ */

/* Sends entries of a file to a stage. names: names of the entries at the stage; NULL: the names in
 * the file. */
static clv_code send_entries(clv_trainer *t, uint32_t stage, cleave_state_kind kind,
                             const clv_weights_file *f, const clv_weights_entry *const *entries,
                             const char *const *names, size_t n, clv_err *err) {
  CLV_AUTO(clv_freep) clv_weights_want *items = NULL;
  CLV_AUTO(clv_freep) clv_state_origin *from = NULL;
  CLV_TRY(clv_alloc(n, sizeof *items, &items, err));
  CLV_TRY(clv_alloc(n, sizeof *from, &from, err));
  for (size_t i = 0; i < n; i++) {
    const char *name = names ? names[i] : entries[i]->name;
    const clv_param *p = clv_params_find(t->b->stages[stage].params, name);
    bool is_narrowed = p && kind == CLEAVE_STATE_WEIGHTS && p->dtype == CLV_BF16;
    items[i] = (clv_weights_want){name, is_narrowed ? CLV_BF16 : entries[i]->dtype,
                                  entries[i]->shape, false};
    from[i] = (clv_state_origin){.file = f, .entry = entries[i]};
  }
  return clv_trainer_send_state(t, stage, kind, items, from, n, err);
}

/* Sends the parameters that the file has. found: [params] the entry of each parameter; NULL: the
 * file has none. */
static clv_code send_found_params(clv_trainer *t, uint32_t stage, const clv_weights_file *f,
                                  const clv_weights_entry **found, clv_err *err) {
  size_t n = 0;
  for (int k = 0; k < t->b->stages[stage].params->n; k++)
    if (found[k]) found[n++] = found[k];
  return send_entries(t, stage, CLEAVE_STATE_WEIGHTS, f, found, NULL, n, err);
}

static clv_code send_weights(clv_trainer *t, uint32_t stage, const clv_weights_file *f,
                             clv_err *err) {
  CLV_AUTO(clv_freep) const clv_weights_entry **found = NULL;
  CLV_TRY(clv_stage_find_tensors(t->b, stage, f, 0, &found, err));
  /* checkpoints of earlier versions also have parameters that need not be restored */
  for (int k = 0; k < t->b->stages[stage].params->n; k++)
    if (!clv_trainer_is_checkpointed(t, stage, CLEAVE_STATE_WEIGHTS,
                                     t->b->stages[stage].params->list[k].name))
      found[k] = NULL;
  return send_found_params(t, stage, f, found, err);
}

/* Returns true if `name` is a moment of a fixed parameter. Checkpoints of versions before 0.7 have
 * such moments. */
static bool is_moment_of_fixed_param(const clv_params *params, const char *name) {
  const char *dot = strrchr(name, '.');
  for (int i = 0; dot && i < params->n; i++) {
    const clv_param *p = &params->list[i];
    if (strlen(p->name) == (size_t)(dot - name) && strncmp(p->name, name, strlen(p->name)) == 0)
      return p->is_fixed;
  }
  return false;
}

/* Sends the optimiser's state of a stage. Fails if the file and the optimiser have different
 * numbers of tensors, because then the file belongs to another run. */
static clv_code send_optimizer_state(clv_trainer *t, uint32_t stage, const clv_weights_file *f,
                                     clv_err *err) {
  const clv_params *params = t->b->stages[stage].params;
  size_t n = 0, n_ema = 0, n_entries = clv_weights_n_entries(f),
         n_wanted = cleave_state_count(t->modules[stage], CLEAVE_STATE_OPTIMIZER);
  bool keeps_ema = t->config->train.ema > 0;
  CLV_AUTO(clv_freep) const clv_weights_entry **items = NULL;
  CLV_TRY(clv_alloc(n_entries, sizeof *items, &items, err));
  for (size_t i = 0; i < n_entries; i++) {
    const clv_weights_entry *e = &clv_weights_entries(f)[i];
    bool is_ema = clv_optim_is_ema(e->name);
    if (is_ema && !keeps_ema) continue;
    if (n_entries != n_wanted && is_moment_of_fixed_param(params, e->name)) continue;
    n_ema += is_ema;
    items[n++] = e;
  }
  /* if the file has no averages (train.ema), the averages begin with the weights that the node
   * already has */
  for (int k = 0; keeps_ema && !n_ema && k < params->n; k++)
    n_wanted -= params->list[k].trainable && !params->list[k].is_fixed;
  if (n != n_wanted)
    return clv_fail(
        err, CLV_INVALID,
        "the optimiser's file has %zu tensors, and train.optimizer with the layers that "
        "learn needs %zu",
        n, n_wanted);
  return send_entries(t, stage, CLEAVE_STATE_OPTIMIZER, f, items, NULL, n, err);
}

static clv_code restore_stage(clv_trainer *t, uint32_t i, const clv_checkpoint *c, clv_err *err) {
  const clv_manifest *m = clv_checkpoint_manifest(c);
  bool has_optimizer_state = t->b->stages[i].n_learning_params && t->optimizer;
  CLV_AUTO(clv_weights_closep) clv_weights_file *model = NULL, *optimizer = NULL;
  if (!clv_manifest_find_stage(m, i, false)->keeper_identity) {
    CLV_TRY(clv_checkpoint_open_model_lazy(c, i, &model, err));
    CLV_TRY(send_weights(t, i, model, err));
  }
  if (!has_optimizer_state || clv_manifest_find_stage(m, i, true)->keeper_identity) return CLV_OK;
  CLV_TRY(clv_checkpoint_open_optimizer_lazy(c, i, &optimizer, err));
  return send_optimizer_state(t, i, optimizer, err);
}

/* Restores each stage from its own files, because the checkpoint has the cut of the session. */
static clv_code restore_stages(clv_trainer *t, const clv_checkpoint *c, clv_err *err) {
  for (uint32_t i = 0; i < t->b->n_stages; i++)
    if (restore_stage(t, i, c, err) != CLV_OK)
      return clv_err_prefix(err, "%s, stage '%s'", clv_checkpoint_path(c),
                            t->config->stages[i].name);
  return CLV_OK;
}

/* ---- restoring from files at workers --------------------------------------------------------- */

/* Time limit in ms for a worker's answer about a file. It is long because reading may be slow; the
 * loss of a worker is noticed much earlier. */
enum { STATE_LOAD_DEADLINE_MS = 3600 * 1000 };

/* Returns the name of the worker with the identity, or the identity if the session has no such
 * worker. */
static const char *find_keeper_name(const clv_trainer *t, const char *identity) {
  for (size_t i = 0; i < t->config->n_workers; i++)
    if (strcmp(t->config->workers[i].identity, identity) == 0) return t->config->workers[i].name;
  return identity;
}

/* Fails because a file of a stage cannot be loaded at the stage's worker. CLV_DATA_LOSS. */
static clv_code fail_lost_file(const clv_trainer *t, uint32_t stage, const clv_manifest *m,
                               const clv_manifest_file *f, const char *reason, clv_err *err) {
  return clv_fail(
      err, CLV_DATA_LOSS,
      "stage '%s' of step %llu is lost: its file '%s' was kept by worker '%s' alone: %s",
      t->config->stages[stage].name, (unsigned long long)m->step, f->kept_file_name,
      find_keeper_name(t, f->keeper_identity), reason);
}

/* Returns true if the error says that the worker does not have the file, or has one with other
 * contents. */
static bool is_file_lost(const cleave_error *reason) {
  return (reason->reported && reason->status != CLEAVE_UNAVAILABLE) ||
         reason->status == CLEAVE_UNIMPLEMENTED;
}

/* Loads one file at the worker of its stage, and compares it with the manifest. kind:
 * CLEAVE_STATE_EMA loads the averages in the optimiser's file into the parameters. */
static clv_code load_kept_file(clv_trainer *t, uint32_t stage, cleave_state_kind kind,
                               const clv_manifest *m, clv_err *err) {
  const clv_manifest_file *f = clv_manifest_find_stage(m, stage, kind != CLEAVE_STATE_WEIGHTS);
  int worker = t->b->stages[stage].worker;
  cleave_state_file found = {.size = sizeof found};
  cleave_error reason;
  char hex[65];
  if (!f->keeper_identity) return CLV_OK;
  CLV_TRY(clv_interrupt_check(err));
  if (worker < 0 || strcmp(t->config->workers[worker].identity, f->keeper_identity) != 0)
    return fail_lost_file(t, stage, m, f, "the stage is not there any more", err);
  CLV_TRY(clv_trainer_note_params(t, stage, err));
  if (cleave_state_load_by_digest(t->runtime, t->modules[stage], kind, f->kept_file_name,
                                  &f->sha256, STATE_LOAD_DEADLINE_MS, &found, &reason) != CLEAVE_OK)
    return is_file_lost(&reason) ? fail_lost_file(t, stage, m, f, reason.text, err)
                                 : clv_trainer_convert_error(t, &reason, err);
  clv_sha256_hex(&f->sha256, hex);
  if (found.bytes == f->bytes && strcmp(found.sha256, hex) == 0) return CLV_OK;
  return fail_lost_file(t, stage, m, f, "the file has other contents", err);
}

/* Loads the files that stayed at workers. The trainer does this before it sends other state, so
 * that it sends nothing of a checkpoint with a lost file. */
static clv_code load_kept_files(clv_trainer *t, const clv_checkpoint *c, bool *ret_is_file_lost,
                                clv_err *err) {
  const clv_manifest *m = clv_checkpoint_manifest(c);
  clv_code code = CLV_OK;
  for (uint32_t i = 0; i < t->b->n_stages && code == CLV_OK; i++) {
    bool learns = t->b->stages[i].n_learning_params && t->optimizer;
    code = load_kept_file(t, i, CLEAVE_STATE_WEIGHTS, m, err);
    if (code == CLV_OK && learns) code = load_kept_file(t, i, CLEAVE_STATE_OPTIMIZER, m, err);
    if (code == CLV_OK && clv_checkpoint_uses_ema(c))
      code = load_kept_file(t, i, (cleave_state_kind)CLEAVE_STATE_EMA, m, err);
  }
  *ret_is_file_lost = code == CLV_DATA_LOSS;
  return code;
}

/* ---- restoring a checkpoint ------------------------------------------------------------------ */

static void note_different_machine(const clv_trainer_state *s, clv_bytes *notes) {
  const clv_backend *cpu = clv_backend_cpu();
  const struct {
    const char *saved, *present;
  } compared_facts[] = {{clv_trainer_state_get_extra(s, "isa"), clv_backend_isa(cpu)},
                        {clv_trainer_state_get_extra(s, "libraries"), clv_backend_libraries(cpu)}};
  for (size_t i = 0; i < CLV_COUNT(compared_facts); i++)
    if (compared_facts[i].saved && strcmp(compared_facts[i].saved, compared_facts[i].present) != 0)
      clv_bytes_printf(
          notes, "the checkpoint was computed with %s, this machine has %s: not bit-identical\n",
          compared_facts[i].saved, compared_facts[i].present);
}

/* Appends a note if the checkpoint has no averages of the weights, so that the averages begin with
 * its weights. */
static void note_new_averages(const clv_trainer *t, const clv_checkpoint *c, clv_bytes *notes) {
  CLV_AUTO(clv_session_config_freep) clv_session_config *config = NULL;
  clv_err reason;
  if (!t->optimizer || !(t->config->train.ema > 0)) return;
  if (clv_checkpoint_parse_session(c, &config, &reason) != CLV_OK || config->train.ema > 0) return;
  clv_bytes_puts(notes,
                 "the checkpoint has no averages of the weights (train.ema): they begin with "
                 "its weights\n");
}

/* Loads a checkpoint into the trainer. *ret_is_file_lost: true if workers have lost files of the
 * checkpoint. */
static clv_code restore_checkpoint(clv_trainer *t, const clv_checkpoint *c, clv_train_position *ret,
                                   clv_bytes *notes, bool *ret_is_file_lost, clv_err *err) {
  const clv_manifest *m = clv_checkpoint_manifest(c);
  const clv_trainer_state *s = clv_checkpoint_state(c);
  bool has_same_cut;
  *ret_is_file_lost = false;
  note_new_averages(t, c, notes);
  CLV_TRY(clv_trainer_check_moved_layers(t, c, err));
  CLV_TRY(clv_blueprint_compare_cut(t->b, c, &has_same_cut, err));
  clv_trainer_drop_held_batches(t); /* the loader reads the dropped batches again */
  t->n_committed_steps = m->step;
  if (t->optimizer)
    CLV_TRY_API(cleave_optimizer_set_steps(t->runtime, t->optimizer, m->step, CLV_API_ERROR));
  if (has_same_cut) CLV_TRY(load_kept_files(t, c, ret_is_file_lost, err));
  note_different_machine(s, notes);
  CLV_TRY(has_same_cut ? restore_stages(t, c, err) : clv_trainer_restore_other_cut(t, c, err));
  clv_trainer_read_position(s, ret);
  return CLV_OK;
}

clv_code clv_trainer_restore_from(clv_trainer *t, const clv_checkpoint *c, clv_train_position *ret,
                                  clv_bytes *notes, clv_err *err) {
  bool is_lost;
  return restore_checkpoint(t, c, ret, notes, &is_lost, err);
}

clv_code clv_trainer_restore(clv_trainer *t, const char *run_dir, clv_train_position *ret,
                             clv_bytes *notes, clv_err *err) {
  uint64_t older_than_step = CLV_CHECKPOINT_NONE;
  clv_err loss_err = {.code = CLV_OK};
  for (;;) {
    CLV_AUTO(clv_checkpoint_freep) clv_checkpoint *c = NULL;
    bool is_lost;
    clv_code code = clv_checkpoint_load_before(run_dir, older_than_step, &c, notes, err);
    if (code == CLV_NOT_FOUND && loss_err.code != CLV_OK)
      return clv_fail(err, CLV_DATA_LOSS, "%.400s; no older checkpoint can be used", loss_err.text);
    CLV_TRY(code);
    code = restore_checkpoint(t, c, ret, notes, &is_lost, err);
    if (code == CLV_OK || !is_lost) return code;
    older_than_step = t->first_lost_step = clv_checkpoint_manifest(c)->step;
    clv_bytes_printf(notes, "checkpoint-%llu refused: %s\n", (unsigned long long)older_than_step,
                     err->text);
    if (loss_err.code == CLV_OK) loss_err = *err;
  }
}

/* ---- sending the session's weight files ------------------------------------------------------ */

static clv_code push_file(clv_trainer *t, uint32_t i, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes notes = {0};
  CLV_AUTO(clv_weights_closep) clv_weights_file *f = NULL;
  CLV_AUTO(clv_freep) const clv_weights_entry **found = NULL;
  clv_code code = clv_stage_file_open(t->b, i, &f, &found, &notes, err);
  if (notes.len) clv_trainer_on_notice(t, notes.data);
  CLV_TRY(code);
  /* counters (such as batch norm's) that the file lacks stay 0 */
  return send_found_params(t, i, f, found, err);
}

static clv_code push_adapters(clv_trainer *t, uint32_t i, clv_err *err) {
  const clv_params *params = t->b->stages[i].params;
  CLV_AUTO(clv_weights_closep) clv_weights_file *f = NULL;
  CLV_AUTO(clv_freep) const clv_weights_entry **found = NULL;
  CLV_AUTO(clv_freep) const char **names = NULL;
  size_t n = 0;
  CLV_TRY(clv_stage_adapters_open(t->b, i, &f, &found, err));
  CLV_TRY(clv_alloc((size_t)params->n, sizeof(char *), &names, err));
  for (int k = 0; k < params->n; k++) {
    if (!found[k]) continue;
    names[n] = params->list[k].name;
    found[n++] = found[k];
  }
  return send_entries(t, i, CLEAVE_STATE_WEIGHTS, f, found, names, n, err);
}

/* Sends the tensors that the folder has for this stage, piece by piece. */
static clv_code push_tensors(clv_trainer *t, uint32_t stage, const clv_stage_folder *f,
                             clv_err *err) {
  CLV_AUTO(clv_freep) clv_weights_want *items = NULL;
  CLV_AUTO(clv_freep) clv_state_origin *from = NULL;
  size_t n = 0;
  CLV_TRY(clv_alloc(f->n, sizeof *items, &items, err));
  CLV_TRY(clv_alloc(f->n, sizeof *from, &from, err));
  for (size_t i = 0; i < f->n; i++) {
    if (f->folder_indexes[i] == CLV_WEIGHTS_NONE) continue;
    items[n] = f->wanted_tensors[i];
    from[n++] = (clv_state_origin){.folder = f->folder, .index = f->folder_indexes[i]};
  }
  return clv_trainer_send_state(t, stage, CLEAVE_STATE_WEIGHTS, items, from, n, err);
}

static clv_code push_folder(clv_trainer *t, uint32_t i, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes notes = {0};
  CLV_AUTO(clv_stage_folder_done) clv_stage_folder f = {0};
  clv_code code = clv_stage_folder_open(t->b, i, &f, &notes, err);
  if (notes.len) clv_trainer_on_notice(t, notes.data);
  CLV_TRY(code);
  return push_tensors(t, i, &f, err);
}

clv_code clv_trainer_push_files(clv_trainer *t, clv_err *err) {
  for (uint32_t i = 0; i < t->b->n_stages; i++) {
    if (t->config->stages[i].weights_file) CLV_TRY(push_file(t, i, err));
    if (t->config->stages[i].weights_folder) CLV_TRY(push_folder(t, i, err));
    if (t->b->stages[i].adapter_folder) CLV_TRY(push_adapters(t, i, err));
  }
  return CLV_OK;
}
