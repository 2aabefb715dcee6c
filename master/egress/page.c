/* SPDX-License-Identifier: Apache-2.0
 *
 * Prepares the page of a record: clv_egress_write_page joins rows of weights into one line, sums up
 * the bytes of each receiver and sorts the lines by attempt; page_formats.c writes the result. The
 * record may come from an untrusted source and be as long as the limits permit, so rows are joined
 * in a time that is linear in its length.
 */
#include <stdlib.h>
#include <string.h>

#include "master/egress/egress_int.h"

/* Number of lines, counted from the last one, that are searched for the line on which a row
 * belongs. A few lines suffice, because the rows of weights that are sent together follow each
 * other. */
enum { N_RECENT_LINES = 64 };

static void page_done(egress_page *p) {
  free(p->rows);
  free(p->hops);
}

/* ---- lines of the page ----------------------------------------------------------------------- */

/* Returns true if row r of the record belongs on line s of the page, because a line has all rows of
 * weights or state that agree in everything but name, dtype and shape. */
static bool is_row_of_line(const egress_page_row *s, const clv_egress_row_sum *r) {
  const clv_egress_key *a = s->key, *b = &r->key;
  return s->attempt == r->attempt && a->kind == b->kind &&
         a->has_random_values == b->has_random_values &&
         clv_egress_is_state((clv_egress_kind)b->kind) && strcmp(a->to, b->to) == 0 &&
         strcmp(a->stage, b->stage) == 0 && strcmp(a->from, b->from) == 0;
}

static egress_page_row *find_or_add_line(egress_page *p, const clv_egress_row_sum *r) {
  size_t first_searched_row = p->n_rows > N_RECENT_LINES ? p->n_rows - N_RECENT_LINES : 0;
  for (size_t i = p->n_rows; i-- > first_searched_row;)
    if (is_row_of_line(&p->rows[i], r)) return &p->rows[i];
  egress_page_row *s = &p->rows[p->n_rows++];
  *s = (egress_page_row){.attempt = r->attempt,
                         .key = &r->key,
                         .first_time = r->first_time,
                         .last_time = r->last_time};
  return s;
}

static egress_receiver *find_or_add_receiver(egress_page *p, const clv_egress_key *w) {
  egress_receiver *end = p->receivers + p->n_receivers;
  for (egress_receiver *q = p->receivers; q < end; q++)
    if (strcmp(q->name, w->to) == 0 && strcmp(q->identity, w->identity) == 0) return q;
  if (p->n_receivers < EGRESS_MAX_RECEIVERS) {
    *end = (egress_receiver){.name = w->to, .identity = w->identity};
    p->n_receivers++;
    return end;
  }
  p->receivers[EGRESS_MAX_RECEIVERS] =
      (egress_receiver){"others", "", end->settled_bytes, end->unsettled_bytes};
  return &p->receivers[EGRESS_MAX_RECEIVERS];
}

static void add_row(egress_page *p, const clv_egress_row_sum *r) {
  egress_page_row *s = find_or_add_line(p, r);
  s->n_rows++;
  s->n_tensors += r->n_tensors;
  s->settled_bytes += r->settled_bytes;
  s->unsettled_bytes += r->unsettled_bytes;
  if (strcmp(r->first_time, s->first_time) < 0) s->first_time = r->first_time;
  if (strcmp(r->last_time, s->last_time) > 0) s->last_time = r->last_time;
  if (strcmp(r->key.from, CLV_EGRESS_MASTER) != 0) return;
  egress_receiver *receiver = find_or_add_receiver(p, &r->key);
  receiver->settled_bytes += r->settled_bytes;
  receiver->unsettled_bytes += r->unsettled_bytes;
}

/* Compares lines by attempt, then by their order in the summary. */
static int compare_rows(const void *a, const void *b) {
  const egress_page_row *x = a, *y = b;
  if (x->attempt != y->attempt) return x->attempt < y->attempt ? -1 : 1;
  return x->key < y->key ? -1 : 1;
}

static int compare_hops(const void *a, const void *b) {
  const clv_egress_hop_sum *x = *(const clv_egress_hop_sum *const *)a,
                           *y = *(const clv_egress_hop_sum *const *)b;
  if (x->attempt != y->attempt) return x->attempt < y->attempt ? -1 : 1;
  return x < y ? -1 : 1;
}

static clv_code fill_page(egress_page *p, clv_err *err) {
  const clv_egress_summary *b = p->summary;
  CLV_TRY(clv_alloc(b->n_rows, sizeof *p->rows, &p->rows, err));
  CLV_TRY(clv_alloc(b->n_hops, sizeof(clv_egress_hop_sum *), &p->hops, err));
  for (size_t i = 0; i < b->n_rows; i++) add_row(p, &b->rows[i]);
  for (size_t i = 0; i < b->n_hops; i++) p->hops[i] = &b->hops[i];
  qsort(p->rows, p->n_rows, sizeof *p->rows, compare_rows);
  qsort(p->hops, b->n_hops, sizeof *p->hops, compare_hops);
  return CLV_OK;
}

/* ---- making the page ------------------------------------------------------------------------- */

clv_code clv_egress_write_page(const clv_egress_summary *b, const char *run, clv_egress_format form,
                               clv_bytes *out, clv_err *err) {
  static void (*const writers[])(const egress_page *, clv_bytes *) = {
      [CLV_EGRESS_PLAIN_TEXT] = egress_write_text_page,
      [CLV_EGRESS_HTML] = egress_write_html_page,
      [CLV_EGRESS_JSON] = egress_write_json_page};
  CLV_AUTO(page_done) egress_page p = {.summary = b, .run = run};
  CLV_TRY(fill_page(&p, err));
  writers[form](&p, out);
  return out->failed ? clv_fail(err, CLV_EXHAUSTED, "out of memory for a page") : CLV_OK;
}
