/* SPDX-License-Identifier: Apache-2.0
 *
 * The page of a record: which lines it has, and what they say in any form. A record may be
 * anybody's and of any length within its limits, so nothing here takes longer than in proportion to
 * it.
 */
#include <stdlib.h>
#include <string.h>

#include "master/egress/egress_int.h"

enum { NEAR_ROWS = 64 }; /* lines among which a row may join another; pushes come in one go */

static void page_done(egress_page *p) {
  free(p->rows);
  free(p->hops);
}

/* ---- lines ----------------------------------------------------------------------------------- */

static bool joins(const egress_shown *s, const clv_egress_row_sum *r) {
  const clv_egress_what *a = s->what, *b = &r->what;
  return s->attempt == r->attempt && a->kind == b->kind && a->random == b->random &&
         clv_egress_is_state((clv_egress_kind)b->kind) && strcmp(a->to, b->to) == 0 &&
         strcmp(a->stage, b->stage) == 0 && strcmp(a->from, b->from) == 0;
}

static egress_shown *line_of(egress_page *p, const clv_egress_row_sum *r) {
  size_t from = p->n_rows > NEAR_ROWS ? p->n_rows - NEAR_ROWS : 0;
  for (size_t i = p->n_rows; i-- > from;)
    if (joins(&p->rows[i], r)) return &p->rows[i];
  egress_shown *s = &p->rows[p->n_rows++];
  *s = (egress_shown){.attempt = r->attempt, .what = &r->what, .first = r->first, .last = r->last};
  return s;
}

static egress_party *party_of(egress_page *p, const clv_egress_what *w) {
  egress_party *end = p->parties + p->n_parties;
  for (egress_party *q = p->parties; q < end; q++)
    if (strcmp(q->name, w->to) == 0 && strcmp(q->identity, w->identity) == 0) return q;
  if (p->n_parties < EGRESS_PARTIES) {
    *end = (egress_party){.name = w->to, .identity = w->identity};
    p->n_parties++;
    return end;
  }
  p->parties[EGRESS_PARTIES] = (egress_party){"others", "", end->settled, end->open};
  return &p->parties[EGRESS_PARTIES];
}

static void add_row(egress_page *p, const clv_egress_row_sum *r) {
  egress_shown *s = line_of(p, r);
  s->names++;
  s->tensors += r->tensors;
  s->settled += r->settled;
  s->open += r->open;
  if (strcmp(r->first, s->first) < 0) s->first = r->first;
  if (strcmp(r->last, s->last) > 0) s->last = r->last;
  if (strcmp(r->what.from, CLV_EGRESS_MASTER) != 0) return;
  egress_party *party = party_of(p, &r->what);
  party->settled += r->settled;
  party->open += r->open;
}

/* By attempt, and as they stand in the book otherwise. */
static int compare_rows(const void *a, const void *b) {
  const egress_shown *x = a, *y = b;
  if (x->attempt != y->attempt) return x->attempt < y->attempt ? -1 : 1;
  return x->what < y->what ? -1 : 1;
}

static int compare_hops(const void *a, const void *b) {
  const clv_egress_hop_sum *x = *(const clv_egress_hop_sum *const *)a,
                           *y = *(const clv_egress_hop_sum *const *)b;
  if (x->attempt != y->attempt) return x->attempt < y->attempt ? -1 : 1;
  return x < y ? -1 : 1;
}

static clv_code fill(egress_page *p, clv_err *err) {
  const clv_egress_book *b = p->book;
  CLV_TRY(clv_alloc(b->n_rows, sizeof *p->rows, &p->rows, err));
  CLV_TRY(clv_alloc(b->n_hops, sizeof(clv_egress_hop_sum *), &p->hops, err));
  for (size_t i = 0; i < b->n_rows; i++) add_row(p, &b->rows[i]);
  for (size_t i = 0; i < b->n_hops; i++) p->hops[i] = &b->hops[i];
  qsort(p->rows, p->n_rows, sizeof *p->rows, compare_rows);
  qsort(p->hops, b->n_hops, sizeof *p->hops, compare_hops);
  return CLV_OK;
}

/* ---- the whole ------------------------------------------------------------------------------- */

clv_code clv_egress_page(const clv_egress_book *b, const char *run, clv_egress_form form,
                         clv_bytes *out, clv_err *err) {
  static void (*const forms[])(const egress_page *, clv_bytes *) = {
      [CLV_EGRESS_TEXT_FORM] = egress_page_text,
      [CLV_EGRESS_HTML] = egress_page_html,
      [CLV_EGRESS_JSON] = egress_page_json};
  CLV_AUTO(page_done) egress_page p = {.book = b, .run = run};
  CLV_TRY(fill(&p, err));
  forms[form](&p, out);
  return out->failed ? clv_fail(err, CLV_EXHAUSTED, "out of memory for a page") : CLV_OK;
}
