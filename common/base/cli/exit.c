/* SPDX-License-Identifier: Apache-2.0
 *
 * Table of exit codes, and the report of why a program ends.
 */
#include "common/base/cli/cli.h"

/* clang-format off */
const clv_exit_row clv_exit_rows[] = {
    {.code = CLV_EXIT_OK, .used_by_worker = true, .doc = "done"},
    {.code = CLV_EXIT_FAILED, .used_by_worker = true, .doc = "the command failed; the message says why"},
    {.code = CLV_EXIT_USAGE, .used_by_worker = true, .doc = "wrong usage"},
    {.code = CLV_EXIT_CONFIG, .used_by_worker = true,
     .doc = "a configuration file is wrong (file:line:column in the message)"},
    {.code = CLV_EXIT_CONNECT, .links_to_docs = true, .used_by_worker = true,
     .doc = "address, connection, TLS or authorisation"},
    {.code = CLV_EXIT_TIMEOUT, .links_to_docs = true, .doc = "something took too long"},
    {.code = CLV_EXIT_WORKER_LOST, .links_to_docs = true,
     .doc = "a worker was lost; the named checkpoint is usable"},
    {.code = CLV_EXIT_DATA, .links_to_docs = true, .used_by_worker = true,
     .doc = "data, weights or artifacts are missing or damaged"},
    {.code = CLV_EXIT_CHECKPOINT, .links_to_docs = true, .doc = "no usable checkpoint"},
    {.code = CLV_EXIT_DIVERGED, .links_to_docs = true,
     .doc = "diverged: 20 steps in a row, or all of a run, were not finite"},
    {.code = CLV_EXIT_BAD_ANSWER, .links_to_docs = true,
     .doc = "a worker's answer violates the protocol: it is broken, or hostile"},
    {.code = CLV_EXIT_INTERNAL, .links_to_docs = true, .doc = "internal error"},
    {.code = CLV_EXIT_INTERRUPTED, .doc = "interrupted or stopped, after a checkpoint"},
};
/* clang-format on */
const size_t clv_exit_n_rows = CLV_COUNT(clv_exit_rows);

int clv_exit_report(clv_exit_code code, const clv_err *err) {
  bool links_to_docs = false;
  for (size_t i = 0; i < clv_exit_n_rows; i++)
    if (clv_exit_rows[i].code == code) links_to_docs = clv_exit_rows[i].links_to_docs;
  if (links_to_docs)
    clv_notice(CLV_LOG_ERROR, "failed", "%s (exit %d: EXIT-CODES.md#exit-%d)", err->text, code,
               code);
  else
    clv_notice(CLV_LOG_ERROR, "failed", "%s", err->text);
  return code;
}
