/* SPDX-License-Identifier: Apache-2.0
 *
 * Checks the records before a run (clv_run_scan_data), and prints the progress of the check.
 */
#include <stdio.h>
#include <unistd.h>

#include "master/run/run_int.h"

/* records of each set that are checked with --quick */
enum { N_SAMPLE_RECORDS = 1000 };
static const uint64_t PROGRESS_INTERVAL_NS = 1000000000u; /* time between two lines of progress */

/* Progress of the check of records, printed once a second if standard error is a terminal. */
typedef struct scan_progress {
  uint64_t next_print_ns; /* clv_now_ns time at which the next line is printed */
} scan_progress;

static void print_scan_progress(void *user, const char *key, size_t n_done, size_t n_records) {
  scan_progress *w = user;
  uint64_t now_ns = clv_now_ns();
  if (now_ns < w->next_print_ns || !isatty(STDERR_FILENO)) return;
  w->next_print_ns = now_ns + PROGRESS_INTERVAL_NS;
  clv_notice(CLV_LOG_INFO, "scan", "%s: %zu of %zu records checked (%.0f %%)", key, n_done,
             n_records, 100.0 * (double)n_done / (double)n_records);
}

size_t clv_run_scan_limit(const clv_run *r, size_t n_records) {
  return r->o->is_quick ? CLV_MIN(n_records, (size_t)N_SAMPLE_RECORDS) : n_records;
}

clv_code clv_run_scan_data(clv_run *r, bool decodes_images, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes notes = {0};
  scan_progress w = {clv_now_ns() + PROGRESS_INTERVAL_NS};
  const clv_run_scan o = {.max_records = r->o->is_quick ? N_SAMPLE_RECORDS : 0,
                          .decodes_images = decodes_images,
                          .progress = print_scan_progress,
                          .user = &w};
  CLV_TRY(clv_run_data_scan(r->config, &r->data, &o, &r->n_omitted_records, &notes, err));
  clv_run_print_notes(r, "data", notes.data);
  return CLV_OK;
}
