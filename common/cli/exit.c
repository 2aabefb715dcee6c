/* SPDX-License-Identifier: Apache-2.0 */
#include "common/cli/cli.h"

/* clang-format off */
const clv_exit_row clv_exit_rows[] = {
    {CLV_EXIT_OK,          false, true,  "done"},
    {CLV_EXIT_FAILED,      false, true,  "the command failed; the message says why"},
    {CLV_EXIT_USAGE,       false, true,  "wrong usage"},
    {CLV_EXIT_CONFIG,      false, true,  "a configuration file is wrong (file:line:column in the message)"},
    {CLV_EXIT_CONNECT,     true,  true,  "address, connection, TLS or authorisation"},
    {CLV_EXIT_TIMEOUT,     true,  false, "something took too long"},
    {CLV_EXIT_WORKER_LOST, true,  false, "a worker was lost; the named checkpoint is usable"},
    {CLV_EXIT_DATA,        true,  true,  "data, weights or artifacts are missing or damaged"},
    {CLV_EXIT_CHECKPOINT,  true,  false, "no usable checkpoint"},
    {CLV_EXIT_DIVERGED,    true,  false, "diverged: 20 steps in a row had gradients that were not finite"},
    {CLV_EXIT_INTERNAL,    true,  false, "internal error"},
    {CLV_EXIT_INTERRUPTED, false, false, "interrupted or stopped, after a checkpoint"},
};
/* clang-format on */
const size_t clv_exit_n_rows = CLV_COUNT(clv_exit_rows);

int clv_exit_report(clv_exit code, const clv_err *err) {
  bool points = false;
  for (size_t i = 0; i < clv_exit_n_rows; i++)
    if (clv_exit_rows[i].code == code) points = clv_exit_rows[i].points;
  if (points)
    clv_notice(CLV_LOG_ERROR, "failed", "%s (exit %d: EXIT-CODES.md#exit-%d)", err->text, code,
               code);
  else
    clv_notice(CLV_LOG_ERROR, "failed", "%s", err->text);
  return code;
}
