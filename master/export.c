/* SPDX-License-Identifier: Apache-2.0
 *
 * The command `export`: writes a checkpoint of a run to files for other programs.
 */
#include <stdio.h>
#include <sys/stat.h>

#include "master/history/history.h"
#include "master/master_int.h"

static clv_code open_checkpoint(const clv_master_arguments *a, clv_checkpoint **ret, clv_err *err) {
  CLV_AUTO(clv_freep) char *folder = NULL;
  CLV_AUTO(clv_bytes_done) clv_bytes notes = {0};
  CLV_TRY(clv_history_find_folder(a->line.words[0], &folder, err));
  clv_code code = clv_run_find_checkpoint(folder, a->run.checkpoint, ret, &notes, err);
  if (notes.len) clv_notice(CLV_LOG_WARN, "checkpoint", "%s", (const char *)notes.data);
  return code;
}

/* Checks that each path that is given is a folder or does not exist yet. */
static clv_code check_folders(const clv_master_arguments *a, clv_err *err) {
  const struct {
    const char *option, *path;
  } folders[] = {{"adapters", a->adapters}, {"merge", a->merge}, {"hf", a->hf}};
  struct stat st;
  for (size_t i = 0; i < CLV_COUNT(folders); i++)
    if (folders[i].path && stat(folders[i].path, &st) == 0 && !S_ISDIR(st.st_mode))
      return clv_fail(
          err, CLV_INVALID,
          "--%s %s: this is not a folder: name a folder, which is made if it is missing",
          folders[i].option, folders[i].path);
  return CLV_OK;
}

static clv_code export_checkpoint(const clv_master_arguments *a, clv_err *err) {
  CLV_AUTO(clv_checkpoint_freep) clv_checkpoint *c = NULL;
  CLV_TRY(check_folders(a, err));
  CLV_TRY(open_checkpoint(a, &c, err));
  CLV_TRY(clv_checkpoint_choose_weights(c, a->run.weights, err));
  if (a->adapters) CLV_TRY(clv_export_adapters(c, a->adapters, a->run.accept_data, err));
  if (a->merge) CLV_TRY(clv_export_merged_weights(c, a->merge, err));
  if (a->hf) CLV_TRY(clv_export_hf_folder(c, a->hf, a->run.accept_data, err));
  const char *const folders[] = {a->adapters, a->merge, a->hf};
  printf("%s: step %llu%s in", a->line.words[0],
         (unsigned long long)clv_checkpoint_manifest(c)->step,
         clv_checkpoint_uses_ema(c) ? ", averages of the weights," : "");
  for (size_t i = 0, n = 0; i < CLV_COUNT(folders); i++)
    if (folders[i]) printf("%s %s", n++ ? " and" : "", folders[i]);
  printf("\n");
  return CLV_OK;
}

int clv_cmd_export(void *args) {
  const clv_master_arguments *a = args;
  clv_err err;
  if (!a->adapters && !a->merge && !a->hf)
    return clv_cli_usage(&a->line, "export writes --adapters, --merge or --hf FOLDER");
  if (!clv_is_checkpoint_name(a->run.checkpoint))
    return clv_cli_usage(&a->line, "--checkpoint: '%s' is not the number of a step, latest or best",
                         a->run.checkpoint);
  clv_code code = export_checkpoint(a, &err);
  if (code == CLV_OK) return CLV_EXIT_OK;
  return clv_exit_report(code == CLV_DATA_LOSS ? CLV_EXIT_DATA : CLV_EXIT_FAILED, &err);
}
