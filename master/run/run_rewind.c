/* SPDX-License-Identifier: Apache-2.0
 *
 * `train --resume --checkpoint best|STEP`: the run goes on from an earlier checkpoint. Later
 * checkpoints are removed, because the run takes their steps again, perhaps with other settings.
 * The later checkpoints are removed only after the workers have received the state of the chosen
 * checkpoint.
 */
#include <string.h>

#include "master/run/run_int.h"

bool clv_run_has_named_checkpoint(const clv_run *r) {
  return r->o->checkpoint && strcmp(r->o->checkpoint, "latest") != 0 && !r->is_rewound;
}

clv_code clv_run_load_start_checkpoint(const clv_run *r, clv_checkpoint **ret, clv_err *err) {
  if (clv_run_has_named_checkpoint(r)) return clv_run_open_checkpoint(r, ret, NULL, err);
  return clv_checkpoint_load_latest(r->dir.data, ret, NULL, err);
}

clv_code clv_run_check_named_checkpoint(const clv_run *r, clv_err *err) {
  CLV_AUTO(clv_checkpoint_freep) clv_checkpoint *c = NULL;
  return clv_run_has_named_checkpoint(r) ? clv_run_load_start_checkpoint(r, &c, err) : CLV_OK;
}

static void print_removed_checkpoints(const clv_run *r, const clv_run_checkpoints *l, size_t n,
                                      uint64_t step) {
  CLV_AUTO(clv_bytes_done) clv_bytes text = {0};
  clv_bytes_printf(&text, "the run goes back to the checkpoint of step %llu; removed: step%s",
                   (unsigned long long)step, CLV_S(n));
  for (size_t i = 0; i < n; i++)
    clv_bytes_printf(&text, "%s %llu", i ? "," : "", (unsigned long long)l->list[i].step);
  if (!text.failed) clv_run_warn(r, CLV_LOG_WARN, "checkpoint", text.data);
}

/* Removes the checkpoints of steps after `step`, the newest first, with their sealed copies and
 * files at workers. If the process is killed meanwhile, the run goes on from the newest checkpoint
 * that is left. */
static clv_code remove_later_checkpoints(clv_run *r, uint64_t step, clv_err *err) {
  CLV_AUTO(clv_run_checkpoints_free) clv_run_checkpoints all = {0};
  size_t n = 0;
  CLV_TRY(clv_run_checkpoints_read(r->dir.data, &all, err));
  while (n < all.n && all.list[n].step > step) n++; /* the list begins with the newest */
  if (n) print_removed_checkpoints(r, &all, n, step);
  CLV_TRY(clv_run_escrow_remove_later(r->config, step, err));
  uint64_t best_step = clv_run_best_checkpoint_step(r->dir.data);
  if (best_step != CLV_CHECKPOINT_NONE && best_step > step) clv_run_delete_best_file(r->dir.data);
  for (size_t i = 0; i < n; i++)
    CLV_TRY(clv_checkpoint_abandon(r->dir.data, all.list[i].step, err));
  clv_run_lock_note_rewind(r->lock, step);
  return CLV_OK;
}

clv_code clv_run_restore_named_checkpoint(clv_run *r, clv_train_position *ret, clv_err *err) {
  CLV_AUTO(clv_checkpoint_freep) clv_checkpoint *c = NULL;
  CLV_AUTO(clv_bytes_done) clv_bytes notes = {0};
  CLV_TRY(clv_run_load_start_checkpoint(r, &c, err));
  clv_code code = clv_trainer_restore_from(r->trainer, c, ret, &notes, err);
  clv_run_print_notes(r, "checkpoint", notes.data);
  CLV_TRY(code);
  CLV_TRY(remove_later_checkpoints(r, clv_checkpoint_manifest(c)->step, err));
  r->is_rewound = true;
  return CLV_OK;
}
