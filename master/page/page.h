/* SPDX-License-Identifier: Apache-2.0
 *
 * page: the report of runs, one HTML page that needs nothing else. `cleave-master report` reads the
 * files of each run folder and writes the page.
 *
 * The page shows names of classes and ids of records, so the command makes it readable by its owner
 * only. It has no script, its policy is default-src 'none' with the digest of its style, and each
 * text of a run is escaped and shown without control characters.
 *
 * Threads: functions share no state, so several threads may call them at a time.
 */
#ifndef CLEAVE_PAGE_H
#define CLEAVE_PAGE_H

#include "common/base/base.h"

enum { CLV_PAGE_MAX_RUNS = 8 };

/* Appends the page of the runs in `folders` [n], at most CLV_PAGE_MAX_RUNS of them. CLV_NOT_FOUND:
 * a folder has no run.json; CLV_DATA_LOSS: a file of a run is damaged; the message names file and
 * line. */
clv_code clv_page_write(const char *const *folders, size_t n, clv_bytes *out,
                        clv_err *err) CLV_USE_RESULT;

/* As clv_page_write, but makes the page of one run from the texts of its evaluations.jsonl (`len`
 * bytes) and its worst_records.json (`worst_records_len` bytes; 0: the run has none), without a
 * folder. */
clv_code clv_page_write_texts(const char *evaluation_lines, size_t len, const char *worst_records,
                              size_t worst_records_len, clv_bytes *out,
                              clv_err *err) CLV_USE_RESULT;

#endif
