/* SPDX-License-Identifier: Apache-2.0
 *
 * Checks the records before a run (clv_run_scan_data), and prints the progress of the check.
 */
#include <stdio.h>
#include <unistd.h>

#include "master/run/run_int.h"

enum { SAMPLE = 1000 };                          /* records of each file with --quick */
static const uint64_t PROGRESS_NS = 1000000000u; /* time between two lines of progress */

/* Progress lines, printed once a second if standard error is a terminal. */
typedef struct scan_progress {
  uint64_t next_ns; /* time of the next line */
} scan_progress;

static void show_progress(void *user, const char *key, size_t done, size_t all) {
  scan_progress *w = user;
  uint64_t now = clv_now_ns();
  if (now < w->next_ns || !isatty(STDERR_FILENO)) return;
  w->next_ns = now + PROGRESS_NS;
  clv_notice(CLV_LOG_INFO, "scan", "%s: %zu of %zu records checked (%.0f %%)", key, done, all,
             100.0 * (double)done / (double)all);
}

size_t clv_run_scan_limit(const clv_run *r, size_t all) {
  return r->o->reads_sample_only ? CLV_MIN(all, (size_t)SAMPLE) : all;
}

clv_code clv_run_scan_data(clv_run *r, bool decode, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes notes = {0};
  scan_progress w = {clv_now_ns() + PROGRESS_NS};
  const clv_run_scan o = {.max_records = r->o->reads_sample_only ? SAMPLE : 0,
                          .decodes_images = decode,
                          .progress = show_progress,
                          .user = &w};
  CLV_TRY(clv_run_data_scan(r->config, &r->data, &o, &r->n_left_out, &notes, err));
  clv_run_print_notes(r, "data", notes.data);
  return CLV_OK;
}
