/* SPDX-License-Identifier: Apache-2.0
 *
 * Counts records that cannot be read, and lists the errors of the first ones.
 */
#include <string.h>

#include "master/data/text_int.h"

void clv_broken_records_done(clv_broken_records *b) {
  if (!b) return;
  clv_bytes_done(&b->error_lines);
  *b = (clv_broken_records){0};
}

void clv_broken_records_add(clv_broken_records *b, const clv_err *cause) {
  if (b->n++ < CLV_MAX_LISTED_BROKEN) clv_bytes_printf(&b->error_lines, "%s\n", cause->text);
}

clv_code clv_text_rows_skip_broken(clv_text_rows *r, const clv_err *cause, clv_err *err) {
  bool must_stop = cause->code != CLV_INVALID && cause->code != CLV_DATA_LOSS;
  if (!r->skips_broken || must_stop) {
    if (err) *err = *cause;
    return cause->code;
  }
  clv_broken_records_add(&r->broken, cause);
  return r->broken.error_lines.failed
             ? clv_fail(err, CLV_EXHAUSTED, "out of memory for the list of %zu broken records",
                        r->broken.n)
             : CLV_OK;
}

clv_code clv_text_rows_check_broken(const clv_text_rows *r, clv_err *err) {
  if (!r->broken.n) return CLV_OK;
  return clv_fail(err, CLV_INVALID, "%s: none of %zu records can be read; the first: %.*s", r->path,
                  r->broken.n, (int)strcspn(r->broken.error_lines.data, "\n"),
                  r->broken.error_lines.data);
}
