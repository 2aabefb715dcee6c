/* SPDX-License-Identifier: Apache-2.0
 *
 * The commands `checkpoint gather` and `checkpoint rm`, which change a run folder. Both take the
 * lock of the run, so they fail while the run trains.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "master/run/run_int.h"

/* State of `checkpoint gather` or `checkpoint rm`. */
typedef struct checkpoint_command {
  const clv_session_config *config;
  const clv_run_options *o;
  const char *dir;
  clv_run_lock *lock;
  clv_stores *stores;
  clv_run_checkpoints checkpoints; /* checkpoints that --step names */
  uint64_t step;                   /* step of the checkpoint that is fetched now */
  clv_exit_code exit_code;
} checkpoint_command;

static void free_command(checkpoint_command *c) {
  clv_run_checkpoints_free(&c->checkpoints);
  clv_stores_free(c->stores);
  clv_run_lock_free(c->lock);
}

/* Locks the run folder, which must exist, and lists its checkpoints. */
static clv_code open_command(checkpoint_command *c, clv_err *err) {
  c->dir = c->config->checkpoint.dir;
  /* fails if there is no run folder */
  CLV_TRY(clv_run_checkpoints_read(c->dir, &c->checkpoints, err));
  CLV_TRY(clv_run_lock_new(c->dir, &c->lock, err));
  clv_run_checkpoints_free(&c->checkpoints);
  CLV_TRY(clv_run_checkpoints_read(c->dir, &c->checkpoints, err));
  return clv_stores_new(c->config, &c->stores, err);
}

static clv_exit_code fail_command(const clv_err *err) {
  fflush(stdout);
  return (clv_exit_code)clv_exit_report(clv_run_checkpoints_exit_code(err), err);
}

/* Reports a failure that does not end the command. The command returns the exit code of its first
 * failure. */
static void note_failure(checkpoint_command *c, const clv_err *reason) {
  clv_exit_code code = clv_run_checkpoints_exit_code(reason);
  /* CLV_EXIT_CHECKPOINT would mean that a checkpoint is missing, but here the session file has no
   * worker with the identity that the manifest gives */
  if (code == CLV_EXIT_CHECKPOINT) code = CLV_EXIT_CONNECT;
  if (c->exit_code == CLV_EXIT_OK) c->exit_code = code;
}

/* ---- orphans, files at workers that no checkpoint needs -------------------------------------- */

static void print_orphan(void *user, const clv_orphan *o, const clv_err *reason) {
  checkpoint_command *c = user;
  CLV_AUTO(clv_bytes_done) clv_bytes json = {0};
  const char *worker_name = clv_stores_worker_name(c->stores, o->keeper_identity);
  char size[24];
  clv_format_size(o->bytes, size, sizeof size);
  if (reason) note_failure(c, reason);
  if (c->o->json) {
    clv_bytes_printf(&json, "{\"event\":\"%s\",\"kept\":\"%s\",\"bytes\":%llu",
                     reason ? "stays" : "removed", o->kept_file_name, (unsigned long long)o->bytes);
    clv_run_append_worker_json(c->stores, o->keeper_identity, &json);
    if (reason) clv_bytes_puts(&json, ",\"message\":");
    if (reason) clv_bytes_add_json(&json, reason->text);
    if (!json.failed) printf("%s}\n", json.data);
  } else if (reason) {
    printf("%s: %s (%s) stays there: %s\n", worker_name, o->kept_file_name, size, reason->text);
  } else {
    printf("%s: %s (%s) is removed\n", worker_name, o->kept_file_name, size);
  }
}

/* Removes the files at workers that no checkpoint needs. If a worker cannot be reached,
 * print_orphan reports its files, and the command does not fail. */
static clv_code remove_unneeded_files(checkpoint_command *c, clv_err *err) {
  clv_code code = clv_orphans_remove_files(c->dir, c->stores, print_orphan, c, err);
  if (code == CLV_OK || c->exit_code == CLV_EXIT_OK) return code;
  if (!c->o->json)
    printf("`cleave-master checkpoint rm %s --orphans` tries again to remove what stays\n",
           c->config->file);
  return CLV_OK;
}

/* ---- the command checkpoint gather ----------------------------------------------------------- */

static void print_fetched_file(void *user, const clv_manifest_file *f, const clv_err *reason) {
  checkpoint_command *c = user;
  CLV_AUTO(clv_bytes_done) clv_bytes json = {0};
  unsigned long long step = c->step, bytes = f->bytes;
  char size[24];
  clv_err ledger_err;
  if (!reason && clv_run_note_gathered_file(c->dir, c->step, f, &ledger_err) != CLV_OK)
    clv_notice(CLV_LOG_WARN, "notice", "%s", ledger_err.text);
  if (reason) note_failure(c, reason);
  if (c->o->json) {
    clv_bytes_printf(&json, "{\"event\":\"%s\",\"step\":%llu,\"file\":\"%s\",\"bytes\":%llu",
                     reason ? "failed" : "fetched", step, f->name, bytes);
    clv_run_append_worker_json(c->stores, f->keeper_identity, &json);
    if (reason) clv_bytes_puts(&json, ",\"message\":");
    if (reason) clv_bytes_add_json(&json, reason->text);
    if (!json.failed) printf("%s}\n", json.data);
  } else if (reason) {
    printf("checkpoint-%llu: %s stays at %s: %s\n", step, f->name,
           clv_stores_worker_name(c->stores, f->keeper_identity), reason->text);
  } else {
    printf("checkpoint-%llu: %s fetched from %s (%s)\n", step, f->name,
           clv_stores_worker_name(c->stores, f->keeper_identity),
           clv_format_size(f->bytes, size, sizeof size));
  }
  fflush(stdout);
}

/* Returns true if the command fetches the checkpoint. Without --step, it fetches the newest
 * checkpoint and the best. */
static bool is_chosen_checkpoint(const checkpoint_command *c,
                                 const clv_run_checkpoint *checkpoint) {
  return c->o->checkpoint || checkpoint->is_newest || checkpoint->is_best;
}

/* Restores the checkpoint from its sealed copy, if there is one. *ret: true if it was restored. */
static clv_code restore_sealed_copy(checkpoint_command *c, const clv_run_checkpoint *checkpoint,
                                    bool *ret, clv_err *err) {
  CLV_TRY(clv_run_escrow_fetch(c->config, checkpoint->step, ret, err));
  if (!*ret) return CLV_OK;
  c->exit_code = CLV_EXIT_OK;
  if (c->o->json)
    printf("{\"event\":\"unsealed\",\"step\":%llu}\n", (unsigned long long)checkpoint->step);
  else
    printf("checkpoint-%llu: restored from its sealed copy\n",
           (unsigned long long)checkpoint->step);
  return CLV_OK;
}

static clv_code gather_checkpoints(checkpoint_command *c, clv_err *err) {
  bool was_restored = false;
  clv_err reason;
  size_t n = 0;
  CLV_TRY(clv_run_checkpoints_choose(&c->checkpoints, c->dir, c->o->checkpoint, err));
  for (size_t i = 0; i < c->checkpoints.n; i++) {
    const clv_run_checkpoint *k = &c->checkpoints.list[i];
    if (!is_chosen_checkpoint(c, k)) continue;
    if (k->problem.code != CLV_OK) return clv_fail(err, k->problem.code, "%s", k->problem.text);
    c->step = k->step;
    n++;
    clv_code code =
        clv_checkpoint_gather(c->dir, k->step, c->stores, print_fetched_file, c, &reason);
    if (code == CLV_CANCELLED) return clv_fail(err, code, "%s", reason.text);
    if (code != CLV_OK) CLV_TRY(restore_sealed_copy(c, k, &was_restored, err));
    if (code != CLV_OK && was_restored) continue;
    if (code != CLV_OK && c->exit_code == CLV_EXIT_OK)
      return clv_fail(err, code, "%s", reason.text);
    if (code == CLV_OK && !c->o->json)
      printf("checkpoint-%llu: all files are in the run folder\n", (unsigned long long)k->step);
  }
  if (!n)
    return clv_fail(err, CLV_NOT_FOUND, "run folder %s has no usable checkpoint: train first",
                    c->dir);
  return remove_unneeded_files(c, err);
}

clv_exit_code clv_run_checkpoint_gather(const clv_session_config *config,
                                        const clv_run_options *o) {
  CLV_AUTO(free_command) checkpoint_command c = {.config = config, .o = o};
  clv_err err;
  if (open_command(&c, &err) != CLV_OK || gather_checkpoints(&c, &err) != CLV_OK)
    return fail_command(&err);
  return c.exit_code;
}

/* ---- the command checkpoint rm --------------------------------------------------------------- */

static clv_code remove_checkpoint(const checkpoint_command *c, const clv_run_checkpoint *k,
                                  clv_err *err) {
  if (k->is_newest && !c->o->force)
    return clv_fail(err, CLV_PRECONDITION,
                    "checkpoint-%llu is the newest of %s, from which train --resume continues: "
                    "--force deletes it",
                    (unsigned long long)k->step, c->dir);
  CLV_TRY(clv_run_escrow_remove(c->config, k->step, err));
  CLV_TRY(clv_checkpoint_abandon(c->dir, k->step, err));
  if (k->is_best) clv_run_delete_best_file(c->dir);
  if (c->o->json)
    printf("{\"event\":\"deleted\",\"step\":%llu}\n", (unsigned long long)k->step);
  else
    printf("checkpoint-%llu is deleted\n", (unsigned long long)k->step);
  return CLV_OK;
}

static clv_code remove_chosen_checkpoints(checkpoint_command *c, clv_err *err) {
  if (!c->o->orphans) {
    CLV_TRY(clv_run_checkpoints_choose(&c->checkpoints, c->dir, c->o->checkpoint, err));
    for (size_t i = 0; i < c->checkpoints.n; i++)
      CLV_TRY(remove_checkpoint(c, &c->checkpoints.list[i], err));
  }
  return remove_unneeded_files(c, err);
}

clv_exit_code clv_run_checkpoint_rm(const clv_session_config *config, const clv_run_options *o) {
  CLV_AUTO(free_command) checkpoint_command c = {.config = config, .o = o};
  clv_err err;
  if (open_command(&c, &err) != CLV_OK || remove_chosen_checkpoints(&c, &err) != CLV_OK)
    return fail_command(&err);
  return c.exit_code;
}

/* ---- files at workers of a run that --fresh deletes ------------------------------------------ */

/* Appends the names of the checkpoints' files that are at the worker `keeper_identity`. Returns the
 * number of files; *ret_bytes: the sum of their sizes. */
static size_t append_file_names_at(const clv_run_checkpoints *checkpoints,
                                   const char *keeper_identity, clv_bytes *names,
                                   uint64_t *ret_bytes) {
  size_t n = 0;
  *ret_bytes = 0;
  for (size_t i = 0; i < checkpoints->n; i++)
    for (size_t k = 0; k < checkpoints->list[i].manifest.n_files; k++) {
      const clv_manifest_file *f = &checkpoints->list[i].manifest.files[k];
      if (!f->keeper_identity || strcmp(f->keeper_identity, keeper_identity) != 0) continue;
      clv_bytes_printf(names, "%s%s", n++ ? ", " : "", f->kept_file_name);
      *ret_bytes += f->bytes;
    }
  return n;
}

clv_code clv_run_note_orphans(const clv_run *r, const clv_run_checkpoints *checkpoints,
                              clv_err *err) {
  for (size_t i = 0; i < checkpoints->n; i++)
    CLV_TRY(clv_orphans_add_manifest_files(r->dir.data, &checkpoints->list[i].manifest, err));
  for (size_t i = 0; i < r->config->n_workers; i++) {
    CLV_AUTO(clv_bytes_done) clv_bytes names = {0}, text = {0};
    const clv_remote_spec *w = &r->config->workers[i];
    uint64_t bytes;
    char size[24];
    size_t n = append_file_names_at(checkpoints, w->identity, &names, &bytes);
    if (!n) continue;
    clv_bytes_printf(&text,
                     "--fresh deletes the run, of which worker '%s' still has %zu file%s (%s): %s; "
                     "`cleave-master checkpoint rm %s --orphans` removes them when the new run has "
                     "ended",
                     w->name, n, CLV_S(n), clv_format_size(bytes, size, sizeof size), names.data,
                     r->config->file);
    if (text.failed) return clv_fail(err, CLV_EXHAUSTED, "out of memory");
    clv_run_warn(r, CLV_LOG_WARN, "orphans", text.data);
  }
  return CLV_OK;
}
