/* SPDX-License-Identifier: Apache-2.0
 *
 * Describes how often a record leaves the master if several runs, such as those of a sweep or of a
 * cross-validation, use the same records.
 */
#include "master/plan/plan.h"

static void append_text_repeats(const clv_repeated_runs *r, clv_bytes *out) {
  char size_text[24];
  unsigned long long n = r->n_runs;
  clv_bytes_printf(out, "%llu run%s over the same records: ", n, CLV_S(n));
  if (!r->epoch_bytes) {
    clv_bytes_puts(out, "no record leaves, since the master computes all stages\n");
    return;
  }
  clv_bytes_printf(out,
                   "each record leaves in each run, %llu time%s in all, through %llu front%s%s. A "
                   "worker that keeps what it is sent "
                   "has %llu view%s of a record. An epoch of all runs sends %s\n",
                   n, CLV_S(n), n, CLV_S(n),
                   r->has_same_initial_weights ? ", which begin with the same weights (train.seed)"
                                               : ", whose weights are drawn for each run",
                   n, CLV_S(n), clv_format_size(r->epoch_bytes, size_text, sizeof size_text));
}

void clv_repeated_runs_describe(const clv_repeated_runs *r, bool json, clv_bytes *out) {
  if (!json)
    append_text_repeats(r, out);
  else
    clv_bytes_printf(
        out,
        "{\"repeats\":{\"runs\":%llu,\"times_a_record_leaves\":%llu,"
        "\"fronts_begin_alike\":%s,\"bytes_per_epoch\":%llu}}\n",
        (unsigned long long)r->n_runs, (unsigned long long)(r->epoch_bytes ? r->n_runs : 0),
        r->has_same_initial_weights ? "true" : "false", (unsigned long long)r->epoch_bytes);
}
