/* SPDX-License-Identifier: Apache-2.0
 *
 * Reports records that cannot be read: clv_plan_refuse_broken_records prints a list of these
 * records and fails, clv_plan_note_broken_records adds the number of these records to notes.
 */
#include <string.h>

#include "master/plan/plan_int.h"

static int get_first_line_len(const clv_broken_records *b) {
  return (int)strcspn(b->error_lines.data, "\n");
}

/* Prints one line for each record that `b` lists, with the reason why it cannot be read. */
static void print_broken_records(const clv_broken_records *b) {
  for (const char *at = b->error_lines.data, *line_end; (line_end = strchr(at, '\n'));
       at = line_end + 1)
    clv_notice(CLV_LOG_WARN, "broken", "%.*s", (int)(line_end - at), at);
  if (b->n > CLV_MAX_LISTED_BROKEN)
    clv_notice(CLV_LOG_WARN, "broken", "and %zu more", b->n - CLV_MAX_LISTED_BROKEN);
}

clv_code clv_plan_refuse_broken_records(const clv_broken_records *b, clv_err *err) {
  if (!b->n) return CLV_OK;
  if (b->error_lines.failed)
    return clv_fail(err, CLV_EXHAUSTED, "out of memory for the list of %zu broken records", b->n);
  if (b->n == 1)
    return clv_fail(err, CLV_DATA_LOSS, "%.*s", get_first_line_len(b), b->error_lines.data);
  print_broken_records(b);
  return clv_fail(err, CLV_DATA_LOSS,
                  "%zu records cannot be read: correct them, or leave them out with data.broken: "
                  "skip; the first: %.*s",
                  b->n, get_first_line_len(b), b->error_lines.data);
}

void clv_plan_note_broken_records(const char *key, const clv_broken_records *b, clv_bytes *notes) {
  if (!b->n || b->error_lines.failed) return;
  clv_bytes_printf(notes, "%s: %zu record%s left out (data.broken: skip); the first: %.*s\n", key,
                   b->n, CLV_S(b->n), get_first_line_len(b), b->error_lines.data);
}
