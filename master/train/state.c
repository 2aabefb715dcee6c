/* SPDX-License-Identifier: Apache-2.0
 *
 * The state of all stages. clv_trainer_save fetches the state into a checkpoint,
 * clv_trainer_restore sends the state in a checkpoint to the stages, and clv_trainer_push_files
 * sends the weights of the session's files. State passes through the master piece by piece, so the
 * master never has the state of a complete stage in memory.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/net/wire/wire.h"
#include "master/train/train_int.h"

/* ---- saving ---------------------------------------------------------------------------------- */

/* The state of a stage while it is written to a checkpoint. */
typedef struct state_reader {
  cleave_state_list listed;
  clv_weights_tensor *tensors; /* [n] tensors of the file */
  clv_weights_want *items;     /* [n] the items of `listed` that are written to the file */
  size_t n;
  clv_weights_sample *samples; /* [n] samples for the ledger; NULL: the ledger needs none */
  clv_weights_writer *file;
} state_reader;

static void state_reader_done(state_reader *s) {
  cleave_state_list_done(&s->listed);
  clv_trainer_free_samples(s->samples, s->n);
  free(s->tensors);
  free(s->items);
  clv_weights_writer_free(s->file);
}

/* Returns false for fixed weights of a worker's artifact, which a checkpoint does not need. */
static bool is_checkpointed(const clv_trainer *t, uint32_t stage, cleave_state_kind kind,
                            const char *name) {
  const clv_param *p = clv_params_find(t->b->stages[stage].params, name);
  return kind != CLEAVE_STATE_WEIGHTS || !p ||
         clv_is_param_checkpointed(&t->config->stages[stage], p);
}

static clv_code list_state(clv_trainer *t, uint32_t stage, cleave_state_kind kind, state_reader *s,
                           clv_err *err) {
  CLV_TRY_API(cleave_state_list_of(t->modules[stage], kind, &s->listed, CLV_API_ERROR));
  CLV_TRY(clv_alloc(s->listed.n, sizeof *s->tensors, &s->tensors, err));
  CLV_TRY(clv_alloc(s->listed.n, sizeof *s->items, &s->items, err));
  for (size_t i = 0; i < s->listed.n; i++) {
    const clv_weights_want *w = &s->listed.items[i];
    if (!is_checkpointed(t, stage, kind, w->name)) continue;
    s->tensors[s->n] = (clv_weights_tensor){w->name, w->dtype, w->shape, NULL};
    s->items[s->n++] = *w;
  }
  return CLV_OK;
}

static clv_code on_piece_received(void *user, size_t item, uint64_t offset, void *data,
                                  size_t length, clv_err *err) {
  const state_reader *s = user;
  if (s->samples && s->samples[item].n_parts)
    clv_weights_sample_add(&s->samples[item], offset, data, length);
  return clv_weights_put(s->file, item, offset, data, length, err);
}

static clv_code save_state(clv_trainer *t, uint32_t i, bool optimizer, clv_checkpoint_writer *w,
                           clv_err *err) {
  CLV_AUTO(state_reader_done) state_reader s = {0};
  cleave_state_kind kind = optimizer ? CLEAVE_STATE_OPTIMIZER : CLEAVE_STATE_WEIGHTS;
  CLV_TRY(list_state(t, i, kind, &s, err));
  CLV_TRY(clv_trainer_new_samples(t, i, kind, s.items, s.n, &s.samples, err));
  CLV_TRY(clv_checkpoint_begin_part(w, i, optimizer, s.tensors, s.n, &s.file, err));
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
    while (k < params->n && is_checkpointed(t, i, CLEAVE_STATE_WEIGHTS, params->list[k].name)) k++;
    if (k < params->n)
      clv_bytes_printf(ret, "%s%s", ret->len ? ", " : "", t->config->stages[i].name);
  }
  return ret->failed ? clv_fail(err, CLV_EXHAUSTED, "out of memory") : CLV_OK;
}

/* Extra key of a checkpoint, with three numbers: the last consecutive steps that changed no weight,
 * all steps whose loss was not finite, all steps with a gradient that was not finite. A checkpoint
 * lacks the key if the last two numbers are 0. */
static const char skipped_key[] = "skipped_steps";

static void format_skipped_steps(const clv_train_position *at, char text[80]) {
  snprintf(text, 80, "%llu %llu %llu", (unsigned long long)at->skipped,
           (unsigned long long)at->bad_losses, (unsigned long long)at->bad_gradients);
}

/* Reads the position of a checkpoint. Counts that are missing or malformed become 0. */
static void read_position(const clv_trainer_state *s, clv_train_position *ret) {
  const char *text = clv_trainer_state_get(s, skipped_key);
  unsigned long long n[3];
  *ret = (clv_train_position){.cursor = {s->epoch, s->index}};
  if (!text || sscanf(text, "%llu %llu %llu", &n[0], &n[1], &n[2]) != 3) return;
  ret->skipped = n[0];
  ret->bad_losses = n[1];
  ret->bad_gradients = n[2];
}

/* Adds trainer_state.json. left: the stages that list_incomplete_stages has found, or "". */
static clv_code add_trainer_state(const clv_trainer *t, clv_checkpoint_writer *w,
                                  const clv_train_position *at, const char *left, clv_err *err) {
  char skipped[80];
  format_skipped_steps(at, skipped);
  clv_kv extra[4] = {{"isa", clv_backend_isa(clv_backend_cpu())},
                     {"libraries", clv_backend_libraries(clv_backend_cpu())}};
  size_t n = 2;
  if (left[0]) extra[n++] = (clv_kv){CLV_STAGES_LEFT, left};
  if (at->bad_losses || at->bad_gradients) extra[n++] = (clv_kv){skipped_key, skipped};
  clv_trainer_state state = {.epoch = at->cursor.epoch,
                             .index = at->cursor.index,
                             .global_step = t->committed_steps,
                             .max_steps = t->config->train.max_steps,
                             .extra = extra,
                             .n_extra = n};
  return clv_checkpoint_add_state(w, &state, err);
}

clv_code clv_trainer_save(clv_trainer *t, const char *run_dir, const clv_train_position *at,
                          uint64_t keep_step, clv_err *err) {
  CLV_AUTO(clv_checkpoint_writer_freep) clv_checkpoint_writer *w = NULL;
  CLV_AUTO(clv_bytes_done) clv_bytes config = {0}, left = {0};
  clv_sha256 digest;
  char hex[65];
  clv_trainer_set_activity(t, "checkpoint of step", t->committed_steps);
  clv_code code = clv_checkpoint_begin(run_dir, t->committed_steps, t->b->n_stages, &w, err);
  if (code == CLV_EXISTS) return CLV_OK; /* the checkpoint of this step exists already */
  CLV_TRY(code);
  for (uint32_t i = 0; i < t->b->n_stages; i++) CLV_TRY(save_stage(t, i, w, err));
  CLV_TRY(clv_session_config_write(t->config, &config, err));
  CLV_TRY(clv_sha256_of(config.data, config.len, &digest, err));
  clv_sha256_hex(&digest, hex);
  CLV_TRY(clv_checkpoint_add_file(w, "session.effective.yaml", config.data, config.len, err));
  CLV_TRY(list_incomplete_stages(t, &left, err));
  CLV_TRY(add_trainer_state(t, w, at, left.len ? left.data : "", err));
  CLV_TRY(clv_checkpoint_commit(w, hex, CLV_WIRE_PROTOCOL, NULL, err));
  return clv_checkpoint_prune(run_dir, (uint32_t)t->config->checkpoint.keep, keep_step, err);
}

/* ---- restoring ------------------------------------------------------------------------------- */

/* Source of the pieces of a stage's state: a file or a folder. */
typedef struct state_source {
  const clv_weights_file *file;
  const clv_weights_entry *const *entries; /* [n] entries of `file` */
  const clv_stage_folder *folder;          /* set if `file` is NULL */
  const size_t *indices;                   /* [n] indices of the tensors in `folder` */
  const clv_weights_want *items;           /* [n] the pieces to send */
} state_source;

static clv_code read_from_file(void *user, size_t item, uint64_t offset, void *data, size_t length,
                               clv_err *err) {
  const state_source *s = user;
  clv_dtype as = s->items[item].dtype;
  size_t size = clv_dtype_size(as);
  CLV_TRY(clv_interrupt_check(err)); /* no step has begun yet, so stop at once */
  return clv_weights_read_range_as(s->file, s->entries[item], as, (size_t)offset / size, data,
                                   length / size, err);
}

static clv_code read_from_folder(void *user, size_t item, uint64_t offset, void *data,
                                 size_t length, clv_err *err) {
  const state_source *s = user;
  const clv_weights_want *w = &s->items[item];
  size_t size = clv_dtype_size(w->dtype);
  CLV_TRY(clv_interrupt_check(err));
  return clv_weights_folder_read_range(s->folder->folder, s->indices[item], w,
                                       (size_t)offset / size, length / size, data, err);
}

static clv_code sample_item(clv_weights_sample *s, cleave_piece_move *give, state_source *from,
                            size_t item, clv_err *err) {
  size_t size = clv_dtype_size(s->dtype);
  CLV_AUTO(clv_freep) char *chunk = NULL;
  CLV_TRY(clv_alloc(CLV_SAMPLE_CHUNK, size, &chunk, err));
  for (size_t first = 0; first < s->n_values; first += CLV_SAMPLE_CHUNK) {
    size_t n = CLV_MIN(s->n_values - first, (size_t)CLV_SAMPLE_CHUNK);
    CLV_TRY(give(from, item, (uint64_t)first * size, chunk, n * size, err));
    clv_weights_sample_add(s, (uint64_t)first * size, chunk, n * size);
  }
  return CLV_OK;
}

/* Adds the values to the ledger before they are sent. For that it reads the values one more
 * time. */
static clv_code note_values_in_ledger(const clv_trainer *t, uint32_t stage, cleave_state_kind kind,
                                      const clv_weights_want *items, size_t n,
                                      cleave_piece_move *give, state_source *s, clv_err *err) {
  clv_weights_sample *samples;
  CLV_TRY(clv_trainer_new_samples(t, stage, kind, items, n, &samples, err));
  clv_code code = CLV_OK;
  for (size_t i = 0; samples && i < n && code == CLV_OK; i++)
    if (samples[i].n_parts) code = sample_item(&samples[i], give, s, i, err);
  if (code == CLV_OK) code = clv_trainer_note_values(t, stage, samples, n, err);
  clv_trainer_free_samples(samples, n);
  return code;
}

static clv_code send_items(clv_trainer *t, uint32_t stage, cleave_state_kind kind,
                           const clv_weights_want *items, size_t n, cleave_piece_move *give,
                           state_source *s, clv_err *err) {
  s->items = items;
  if (n) CLV_TRY(clv_trainer_allow_state(t, stage, kind, items, n, err));
  CLV_TRY(note_values_in_ledger(t, stage, kind, items, n, give, s, err));
  if (!n) return CLV_OK;
  CLV_TRY_API(
      cleave_state_give(t->runtime, t->modules[stage], kind, items, n, give, s, CLV_API_ERROR));
  return CLV_OK;
}

/* Sends entries of a file to a stage. names: names of the entries at the stage; NULL: the names in
 * the file. */
static clv_code send_entries(clv_trainer *t, uint32_t stage, cleave_state_kind kind,
                             const clv_weights_file *f, const clv_weights_entry *const *entries,
                             const char *const *names, size_t n, clv_err *err) {
  CLV_AUTO(clv_freep) clv_weights_want *items = NULL;
  state_source s = {.file = f, .entries = entries};
  CLV_TRY(clv_alloc(n, sizeof *items, &items, err));
  for (size_t i = 0; i < n; i++) {
    const char *name = names ? names[i] : entries[i]->name;
    const clv_param *p = clv_params_find(t->b->stages[stage].params, name);
    bool narrow = p && kind == CLEAVE_STATE_WEIGHTS && p->dtype == CLV_BF16;
    items[i] =
        (clv_weights_want){name, narrow ? CLV_BF16 : entries[i]->dtype, entries[i]->shape, false};
  }
  return send_items(t, stage, kind, items, n, read_from_file, &s, err);
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
  CLV_TRY(clv_stage_match_weights(t->b, stage, f, 0, &found, err));
  /* checkpoints of earlier versions also have parameters that need not be restored */
  for (int k = 0; k < t->b->stages[stage].params->n; k++)
    if (!is_checkpointed(t, stage, CLEAVE_STATE_WEIGHTS, t->b->stages[stage].params->list[k].name))
      found[k] = NULL;
  return send_found_params(t, stage, f, found, err);
}

/* Returns true for a moment of a fixed parameter. Checkpoints before version 0.7 have such moments.
 */
static bool is_moment_of_fixed(const clv_params *params, const char *name) {
  const char *dot = strrchr(name, '.');
  for (int i = 0; dot && i < params->n; i++) {
    const clv_param *p = &params->list[i];
    if (strlen(p->name) == (size_t)(dot - name) && strncmp(p->name, name, strlen(p->name)) == 0)
      return p->fixed;
  }
  return false;
}

/* Sends the optimiser's state of a stage. Fails if the file and the optimiser have different
 * numbers of tensors, because then the file belongs to another run. */
static clv_code send_optimizer_state(clv_trainer *t, uint32_t stage, const clv_weights_file *f,
                                     clv_err *err) {
  size_t n = 0, all = clv_weights_count(f),
         want = cleave_state_count(t->modules[stage], CLEAVE_STATE_OPTIMIZER);
  CLV_AUTO(clv_freep) const clv_weights_entry **items = NULL;
  CLV_TRY(clv_alloc(all, sizeof *items, &items, err));
  for (size_t i = 0; i < all; i++) {
    const clv_weights_entry *e = &clv_weights_entries(f)[i];
    if (all == want || !is_moment_of_fixed(t->b->stages[stage].params, e->name)) items[n++] = e;
  }
  if (n != want)
    return clv_fail(
        err, CLV_INVALID,
        "the optimiser's file has %zu tensors, and train.optimizer with the layers that "
        "learn needs %zu",
        n, want);
  return send_entries(t, stage, CLEAVE_STATE_OPTIMIZER, f, items, NULL, n, err);
}

static clv_code restore_stage(clv_trainer *t, uint32_t i, const clv_checkpoint *c, clv_err *err) {
  CLV_AUTO(clv_weights_closep) clv_weights_file *model = NULL, *optimizer = NULL;
  CLV_TRY(clv_checkpoint_open_model_lazy(c, i, &model, err));
  CLV_TRY(send_weights(t, i, model, err));
  if (!t->b->stages[i].n_learning_params || !t->optimizer) return CLV_OK;
  CLV_TRY(clv_checkpoint_open_optimizer_lazy(c, i, &optimizer, err));
  return send_optimizer_state(t, i, optimizer, err);
}

clv_code clv_trainer_restore(clv_trainer *t, const char *run_dir, clv_train_position *ret,
                             clv_bytes *notes, clv_err *err) {
  CLV_AUTO(clv_checkpoint_freep) clv_checkpoint *c = NULL;
  CLV_TRY(clv_checkpoint_load_latest(run_dir, &c, notes, err));
  return clv_trainer_restore_from(t, c, ret, notes, err);
}

static void note_different_machine(const clv_trainer_state *s, clv_bytes *notes) {
  const clv_backend *cpu = clv_backend_cpu();
  const struct {
    const char *then, *now;
  } compared[] = {{clv_trainer_state_get(s, "isa"), clv_backend_isa(cpu)},
                  {clv_trainer_state_get(s, "libraries"), clv_backend_libraries(cpu)}};
  for (size_t i = 0; i < CLV_COUNT(compared); i++)
    if (compared[i].then && strcmp(compared[i].then, compared[i].now) != 0)
      clv_bytes_printf(
          notes, "the checkpoint was computed with %s, this machine has %s: not bit-identical\n",
          compared[i].then, compared[i].now);
}

clv_code clv_trainer_restore_from(clv_trainer *t, const clv_checkpoint *c, clv_train_position *ret,
                                  clv_bytes *notes, clv_err *err) {
  const clv_manifest *m = clv_checkpoint_manifest(c);
  const clv_trainer_state *s = clv_checkpoint_state(c);
  if (m->stages != t->b->n_stages)
    return clv_fail(err, CLV_INVALID, "%s has %u stages, the session %u", clv_checkpoint_path(c),
                    m->stages, t->b->n_stages);
  note_different_machine(s, notes);
  clv_trainer_drop_held_batches(t); /* the loader reads these batches again */
  t->committed_steps = m->step;
  if (t->optimizer)
    CLV_TRY_API(cleave_optimizer_set_steps(t->runtime, t->optimizer, m->step, CLV_API_ERROR));
  for (uint32_t i = 0; i < t->b->n_stages; i++) {
    if (restore_stage(t, i, c, err) != CLV_OK)
      return clv_err_prefix(err, "%s, stage '%s'", clv_checkpoint_path(c),
                            t->config->stages[i].name);
  }
  read_position(s, ret);
  return CLV_OK;
}

static clv_code push_file(clv_trainer *t, uint32_t i, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes notes = {0};
  CLV_AUTO(clv_weights_closep) clv_weights_file *f = NULL;
  CLV_AUTO(clv_freep) const clv_weights_entry **found = NULL;
  clv_code code = clv_stage_file_open(t->b, i, &f, &found, &notes, err);
  if (notes.len) clv_trainer_on_notice(t, notes.data);
  CLV_TRY(code);
  return send_found_params(t, i, f, found, err); /* counters that the file lacks stay 0 */
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
  CLV_AUTO(clv_freep) size_t *found = NULL;
  state_source s = {.folder = f};
  size_t n = 0;
  CLV_TRY(clv_alloc(f->n, sizeof *items, &items, err));
  CLV_TRY(clv_alloc(f->n, sizeof *found, &found, err));
  for (size_t i = 0; i < f->n; i++) {
    if (f->folder_index[i] == CLV_WEIGHTS_NONE) continue;
    items[n] = f->wanted[i];
    found[n++] = f->folder_index[i];
  }
  s.indices = found;
  return send_items(t, stage, CLEAVE_STATE_WEIGHTS, items, n, read_from_folder, &s, err);
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
