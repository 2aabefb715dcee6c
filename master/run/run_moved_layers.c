/* SPDX-License-Identifier: Apache-2.0
 *
 * Handles layers that move to another node because a run resumes with another cut.
 * clv_run_check_moved_layers refuses layers that may not move from the master to a worker, before
 * the master connects. The trainer then finds the tensors of these layers in the checkpoint
 * (master/train/resplit.c).
 */
#include "master/run/run_int.h"

static clv_code find_moved_layers(clv_run *r, const clv_checkpoint *c, clv_err *err) {
  clv_blueprint *b = r->blueprint;
  clv_moved_layers_done(&b->moved_layers);
  return clv_moved_layers_find(b, c, &b->moved_layers, err);
}

/* Adds the layers that move from the master to workers to the list of changes since the last
 * attempt. */
static void add_released_layers(clv_run *r) {
  const clv_moved_layers *m = &r->blueprint->moved_layers;
  CLV_AUTO(clv_bytes_done) clv_bytes names = {0};
  for (size_t i = 0; i < m->n; i++)
    if (m->list[i].needs_release)
      clv_bytes_printf(&names, "%s%s to %s", names.len ? ", " : "", m->list[i].name,
                       m->list[i].new_place);
  r->changes.failed |= names.failed;
  if (names.len && !names.failed) clv_run_add_change(r, "released layers", "none", names.data);
}

clv_code clv_run_check_moved_layers(clv_run *r, const clv_checkpoint *c, clv_err *err) {
  CLV_TRY(clv_blueprint_check_kept_files(r->blueprint, c, err));
  CLV_TRY(find_moved_layers(r, c, err));
  CLV_TRY(clv_moved_layers_check(r->blueprint, &r->blueprint->moved_layers, err));
  add_released_layers(r);
  return CLV_OK;
}

void clv_run_find_moved_layers(clv_run *r) {
  CLV_AUTO(clv_checkpoint_freep) clv_checkpoint *c = NULL;
  CLV_AUTO(clv_bytes_done) clv_bytes text = {0};
  clv_err reason;
  if (clv_checkpoint_peek(r->config->checkpoint.dir, &c, &reason) != CLV_OK) return;
  clv_code code = find_moved_layers(r, c, &reason);
  if (code == CLV_OK) code = clv_blueprint_check_kept_files(r->blueprint, c, &reason);
  if (code == CLV_OK)
    code = clv_moved_layers_check(r->blueprint, &r->blueprint->moved_layers, &reason);
  if (code == CLV_OK) return;
  clv_bytes_printf(&text, "train --resume will be refused: %s", reason.text);
  if (!text.failed) clv_run_warn(r, CLV_LOG_WARN, "privacy", text.data);
}
