/* SPDX-License-Identifier: Apache-2.0
 *
 * Texts that a page has in every format (text, HTML, JSON). page_formats.c calls each function and
 * escapes the returned text.
 */
#include <string.h>

#include "master/egress/egress_int.h"

void egress_format_tensor_name(const egress_page_row *r, clv_bytes *out) {
  const clv_egress_key *w = r->key;
  bool is_sent_by_worker = strcmp(w->from, CLV_EGRESS_MASTER) != 0;
  clv_bytes_printf(out, "%s%s", is_sent_by_worker ? "planned: " : "",
                   clv_egress_kind_name((clv_egress_kind)w->kind));
  if (w->kind == CLV_EGRESS_FAILURE)
    clv_bytes_puts(out, " of the run: a code and its place");
  else
    clv_bytes_printf(out, " of stage '%s'", w->stage);
  if (r->n_rows > 1) clv_bytes_printf(out, ", %llu names", (unsigned long long)r->n_rows);
  if (r->n_rows == 1 && w->name[0]) clv_bytes_printf(out, ": %s", w->name);
  if (w->has_random_values) clv_bytes_puts(out, " (a trial with random numbers)");
  if (is_sent_by_worker) clv_bytes_printf(out, ", sent by %s", w->from);
}

static void put_size(uint64_t bytes, clv_bytes *out) {
  char text[24];
  clv_bytes_printf(out, "%s (%llu bytes)", clv_format_size(bytes, text, sizeof text),
                   (unsigned long long)bytes);
}

/* unsettled_bytes: bytes of allowances (grants of bytes) without a SETTLE line. The record cannot
 * say how many of these bytes were sent, so the printed sum is an upper limit. */
void egress_format_bytes(uint64_t settled_bytes, uint64_t unsettled_bytes, clv_bytes *out) {
  if (unsettled_bytes) clv_bytes_puts(out, "at most ");
  put_size(settled_bytes + unsettled_bytes, out);
  if (!unsettled_bytes) return;
  clv_bytes_puts(out, ", of which ");
  put_size(unsettled_bytes, out);
  clv_bytes_puts(out, " was allowed and not settled");
}

void egress_format_time(const clv_egress_attempt *a, clv_bytes *out) {
  if (a->has_ended)
    clv_bytes_printf(out, "%s to %s, ended with code %llu", a->start_line.at, a->end.at,
                     (unsigned long long)a->end.attempt_end.code);
  else
    clv_bytes_printf(out, "since %s; it goes on, or was cut off", a->start_line.at);
}

void egress_format_policy(const clv_egress_attempt *a, clv_bytes *out) {
  if (!a->start_line.start.policy[0])
    clv_bytes_puts(out, "no policy: `privacy` in the session file decided");
  else if (!a->start_line.start.approver[0])
    clv_bytes_printf(out, "policy %s, sha256 %s, not signed", a->start_line.start.policy,
                     a->start_line.start.policy_sha256);
  else
    clv_bytes_printf(out, "policy %s, sha256 %s, signed by %s", a->start_line.start.policy,
                     a->start_line.start.policy_sha256, a->start_line.start.approver);
}

void egress_format_look(const clv_egress_attempt *a, clv_bytes *out) {
  const clv_egress_line *l = &a->look;
  if (!a->has_look) {
    clv_bytes_puts(out, "no look was taken at what the tensors show");
    return;
  }
  clv_bytes_printf(out, "of %llu record%s an onlooker reads: pixels %s, tokens %s, labels %s",
                   (unsigned long long)l->look.n_records, CLV_S(l->look.n_records), l->look.pixels,
                   l->look.tokens, l->look.labels);
  if (*l->look.features)
    clv_bytes_printf(out, ", features %s, label groups %s", l->look.features, l->look.groups);
}
