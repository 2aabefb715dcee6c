/* SPDX-License-Identifier: Apache-2.0
 *
 * Commands on runs: those that are over and those that go on.
 */
#include "master/history/history.h"
#include "master/master_int.h"

static int ended(clv_code code, int outcome, const clv_err *err) {
  return code == CLV_OK ? outcome : clv_exit_report(CLV_EXIT_FAILED, err);
}

int clv_cmd_runs(void *args) {
  const arguments *a = args;
  clv_err err;
  const char *folder = a->line.n_words ? a->line.words[0] : NULL;
  return ended(clv_history_list(folder, a->run.json, &err), CLV_EXIT_OK, &err);
}

int clv_cmd_log(void *args) {
  const arguments *a = args;
  clv_err err;
  int outcome = 0;
  clv_code code = clv_history_log(a->line.words[0], a->follow, a->run.json, &outcome, &err);
  return ended(code, outcome, &err);
}

int clv_cmd_stop(void *args) {
  const arguments *a = args;
  clv_err err;
  int outcome = 0;
  clv_code code = clv_history_stop(a->line.words[0], a->now, a->run.json, &outcome, &err);
  return ended(code, outcome, &err);
}
