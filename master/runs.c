/* SPDX-License-Identifier: Apache-2.0
 *
 * The commands on finished and running runs: runs, log, stop, egress and report.
 */
#include <stdio.h>
#include <stdlib.h>

#include "master/egress/egress.h"
#include "master/history/history.h"
#include "master/master_int.h"
#include "master/page/page.h"

static int choose_exit_code(clv_code code, int run_exit_code, const clv_err *err) {
  return code == CLV_OK ? run_exit_code : clv_exit_report(CLV_EXIT_FAILED, err);
}

int clv_cmd_runs(void *args) {
  const clv_master_arguments *a = args;
  clv_err err;
  const char *folder = a->line.n_words ? a->line.words[0] : NULL;
  return choose_exit_code(clv_history_print_runs(folder, a->run.json, &err), CLV_EXIT_OK, &err);
}

int clv_cmd_log(void *args) {
  const clv_master_arguments *a = args;
  clv_err err;
  int run_exit_code = 0;
  clv_code code =
      clv_history_print_log(a->line.words[0], a->follows_log, a->run.json, &run_exit_code, &err);
  return choose_exit_code(code, run_exit_code, &err);
}

/* Reads the egress record, the list of sent tensors, in a run folder. `train --fresh` moves the
 * other files of a finished run, but this record stays in the folder of the run that sent. */
static clv_code read_egress_record(const char *folder, clv_egress_summary *ret, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes path = {0};
  clv_bytes_printf(&path, "%s/" CLV_EGRESS_FILE, folder);
  if (path.failed) return clv_fail(err, CLV_EXHAUSTED, "out of memory");
  clv_code code = clv_egress_read(path.data, ret, err);
  if (code != CLV_NOT_FOUND) return code;
  return clv_fail(err, code,
                  "%s has no record: no tensor was sent from there; a run that --fresh has moved "
                  "to another folder is in the record of its former folder",
                  folder);
}

int clv_cmd_egress(void *args) {
  const clv_master_arguments *a = args;
  CLV_AUTO(clv_freep) char *folder = NULL;
  CLV_AUTO(clv_bytes_done) clv_bytes page = {0};
  CLV_AUTO(clv_egress_summary_done) clv_egress_summary book = {0};
  clv_err err;
  clv_egress_format format = a->html ? CLV_EGRESS_HTML : CLV_EGRESS_PLAIN_TEXT;
  if (a->html && a->run.json) return clv_cli_usage(&a->line, "egress prints --html or --json");
  if (clv_history_find_folder(a->line.words[0], &folder, &err) != CLV_OK)
    return choose_exit_code(err.code, CLV_EXIT_OK, &err);
  clv_code code = read_egress_record(folder, &book, &err);
  if (code == CLV_OK)
    code =
        clv_egress_write_page(&book, folder, a->run.json ? CLV_EGRESS_JSON : format, &page, &err);
  if (code == CLV_OK) fputs(page.data, stdout);
  if (code == CLV_DATA_LOSS) return clv_exit_report(CLV_EXIT_DATA, &err);
  return choose_exit_code(code, CLV_EXIT_OK, &err);
}

/* ---- the command report ---------------------------------------------------------------------- */

typedef struct folder_list {
  char *items[CLV_PAGE_MAX_RUNS];
  size_t n;
} folder_list;

static void free_folders(folder_list *l) {
  for (size_t i = 0; i < l->n; i++) free(l->items[i]);
}

static clv_code find_run_folders(const clv_master_arguments *a, folder_list *ret, clv_err *err) {
  if (a->line.n_words > CLV_PAGE_MAX_RUNS)
    return clv_fail(err, CLV_INVALID, "%zu runs on one page, at most %d: leave some out",
                    a->line.n_words, CLV_PAGE_MAX_RUNS);
  for (; ret->n < a->line.n_words; ret->n++)
    CLV_TRY(clv_history_find_folder(a->line.words[ret->n], &ret->items[ret->n], err));
  return CLV_OK;
}

static clv_code write_report(const clv_master_arguments *a, const char *path, clv_bytes *page,
                             clv_err *err) {
  CLV_AUTO(free_folders) folder_list folders = {.n = 0};
  CLV_TRY(find_run_folders(a, &folders, err));
  CLV_TRY(clv_page_write((const char *const *)folders.items, folders.n, page, err));
  clv_code code = clv_file_write_durable(path, page->data, page->len, 0600, err);
  return code == CLV_OK ? code : clv_err_prefix(err, "--output");
}

int clv_cmd_report(void *args) {
  const clv_master_arguments *a = args;
  CLV_AUTO(clv_bytes_done) clv_bytes page = {0};
  const char *path = a->run.out ? a->run.out : "report.html";
  char size[24];
  clv_err err;
  clv_code code = write_report(a, path, &page, &err);
  if (code == CLV_DATA_LOSS) return clv_exit_report(CLV_EXIT_DATA, &err);
  if (code == CLV_OK)
    printf("%s: %s; it shows ids of records and names of classes, and only you may read it\n", path,
           clv_format_size(page.len, size, sizeof size));
  return choose_exit_code(code, CLV_EXIT_OK, &err);
}

int clv_cmd_stop(void *args) {
  const clv_master_arguments *a = args;
  clv_err err;
  int run_exit_code = 0;
  clv_code code =
      clv_history_stop_run(a->line.words[0], a->kills_now, a->run.json, &run_exit_code, &err);
  return choose_exit_code(code, run_exit_code, &err);
}
