/* SPDX-License-Identifier: Apache-2.0
 *
 * clv_sched_draw: draws a schedule as a grid with a row per rank and columns of equal time. The
 * time of a column is chosen so that the shortest instruction has room for its label. Instructions
 * that are much shorter than the longest one do not count for this; their labels are cut.
 */
#include "common/model/sched/sched_int.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum {
  MIN_COLUMNS = 40,
  MAX_COLUMNS = 4096,
  LABEL_BYTES = 16,
  /* instructions shorter than 1/12 of the longest one do not determine the scale */
  SHORT_SHARE = 12,
};

typedef struct sched_drawing {
  const clv_sched *s;
  const clv_sched_run *run;
  const char *const *rank_names;
  clv_bytes *out;
  uint32_t drawing_width, rank_name_width; /* width of the drawing, and of the rank names in it */
  double seconds_per_column;               /* seconds that a column stands for */
  bool takes_no_time[CLV_SCHED_STAGES];
  /* [stage] index of the stage among the drawn stages of its rank */
  uint32_t index_at_rank[CLV_SCHED_STAGES];
  bool shows_seconds;
  bool hides_stages; /* the schedule has stages that take no time, which are not drawn */
  /* some rank has several drawn stages, so labels end with a letter for the stage */
  bool has_many_stages;
} sched_drawing;

static bool is_compute(const clv_instr *i) {
  return i->kind <= CLV_INSTR_WEIGHT || i->kind == CLV_INSTR_STEP;
}

static size_t make_label(const sched_drawing *d, const clv_instr *i, char buf[LABEL_BYTES]) {
  char text[SCHED_INSTR_TEXT];
  uint32_t n = d->index_at_rank[i->stage];
  clv_instr_text(i, text);
  if (!d->has_many_stages) return (size_t)snprintf(buf, LABEL_BYTES, "%s", text);
  return (size_t)snprintf(buf, LABEL_BYTES, "%s%c", text, n < 26 ? (char)('a' + n) : '+');
}

/* ---- the scale of a drawing ------------------------------------------------------------------ */

static void set_scale(sched_drawing *d, const clv_sched_costs *c) {
  double longest_seconds = 0, column_seconds = INFINITY;
  char buf[LABEL_BYTES];
  for (uint32_t r = 0; r < d->s->shape.n_ranks; r++)
    for (uint32_t k = 0; k < d->s->n[r]; k++)
      if (is_compute(&d->s->instrs[r][k]))
        longest_seconds = fmax(longest_seconds, clv_sched_instr_seconds(c, d->s->instrs[r][k].kind,
                                                                        d->s->instrs[r][k].stage));
  for (uint32_t r = 0; r < d->s->shape.n_ranks; r++)
    for (uint32_t k = 0; k < d->s->n[r]; k++) {
      const clv_instr *i = &d->s->instrs[r][k];
      double cost = is_compute(i) ? clv_sched_instr_seconds(c, i->kind, i->stage) : 0;
      if (cost > longest_seconds / SHORT_SHARE)
        column_seconds = fmin(column_seconds, cost / (double)make_label(d, i, buf));
    }
  d->seconds_per_column = column_seconds > 0 && !isinf(column_seconds) ? column_seconds : 1;
}

static void find_drawn_stages(sched_drawing *d, const clv_sched_costs *c) {
  const clv_sched_shape *shape = &d->s->shape;
  uint32_t n_drawn[CLV_SCHED_RANKS] = {0};
  clv_sched_mark_timeless_stages(shape, c, d->takes_no_time);
  for (uint32_t s = 0; s < shape->n_stages; s++) {
    if (!d->takes_no_time[s]) d->index_at_rank[s] = n_drawn[shape->stage_rank[s]]++;
    d->hides_stages |= d->takes_no_time[s];
    d->has_many_stages |= d->index_at_rank[s] > 0;
  }
}

/* ---- the rows of a drawing ------------------------------------------------------------------- */

static int make_rank_name(const sched_drawing *d, uint32_t rank, char *buf, size_t n) {
  if (d->rank_names && d->rank_names[rank])
    return (int)strlen(clv_text_truncate(d->rank_names[rank], buf, n));
  return snprintf(buf, n, "rank %u", rank);
}

static void set_rank_name_width(sched_drawing *d) {
  char buf[64];
  for (uint32_t r = 0; r < d->s->shape.n_ranks; r++) {
    uint32_t n = (uint32_t)make_rank_name(d, r, buf, sizeof buf);
    d->rank_name_width = CLV_MAX(
        d->rank_name_width, CLV_MIN(n, CLV_MIN(d->drawing_width / 4, (uint32_t)sizeof buf - 1)));
  }
}

/* Draws an instruction into columns `from` to `to` of a row: its label and dashes or, if the label
 * does not fit, its first letter and '*'. */
static void draw_instr(const sched_drawing *d, const clv_instr *i, char *row, double from,
                       double to, uint32_t width) {
  char text[LABEL_BYTES];
  if (!(from < width)) return;
  uint32_t begin = (uint32_t)from, end = to < width ? (uint32_t)to : width;
  size_t n = make_label(d, i, text);
  bool label_fits = n <= (uint32_t)CLV_MIN(to - begin, LABEL_BYTES);
  for (uint32_t at = begin; at < end; at++) {
    size_t k = at - begin;
    row[at] = label_fits ? (k < n ? text[k] : '-') : (k == 0 ? text[0] : '*');
  }
}

static void draw_rank(const sched_drawing *d, uint32_t rank) {
  char name[64], shown_name[65], row[MAX_COLUMNS + 1];
  uint32_t width = d->drawing_width - d->rank_name_width - 1;
  uint32_t used = (uint32_t)fmin(width, round(d->run->seconds / d->seconds_per_column));
  memset(row, '.', used);
  row[used] = 0;
  for (uint32_t k = 0; k < d->s->n[rank]; k++) {
    const clv_instr *i = &d->s->instrs[rank][k];
    const clv_sched_span *at = &d->run->spans[rank][k];
    if (is_compute(i))
      draw_instr(d, i, row, round(at->begin / d->seconds_per_column),
                 round(at->end / d->seconds_per_column), used);
  }
  make_rank_name(d, rank, name, sizeof name);
  clv_text_truncate(name, shown_name, CLV_MAX(d->rank_name_width + 1, 4u));
  clv_bytes_printf(d->out, "%-*s %s\n", (int)d->rank_name_width, shown_name, row);
}

/* ---- the legend of a drawing ----------------------------------------------------------------- */

/* Writes a text in lines of at most d->drawing_width characters. */
static void write_wrapped(const sched_drawing *d, const char *text) {
  size_t line = 0;
  while (*text) {
    size_t n = strcspn(text, " ");
    if (line && line + 1 + n > d->drawing_width) {
      clv_bytes_puts(d->out, "\n");
      line = 0;
    }
    if (line) clv_bytes_puts(d->out, " ");
    clv_bytes_add(d->out, text, n);
    line += n + (line != 0);
    text += n + (text[n] == ' ');
  }
  clv_bytes_puts(d->out, "\n");
}

static void draw_legend(const sched_drawing *d) {
  char line[512];
  double drawn_seconds = (d->drawing_width - d->rank_name_width - 1) * d->seconds_per_column;
  snprintf(line, sizeof line,
           "F forward, B backward, I and W the gradients of input and weights, S step, * too short "
           "to number, . idle%s%s",
           d->has_many_stages ? "; a, b: the first, second stage of a rank" : "",
           d->hides_stages ? "; stages that take no time are not drawn" : "");
  write_wrapped(d, line);
  if (d->shows_seconds)
    snprintf(line, sizeof line, "a column is %.3g ms, the round %.6g ms, bubble %.1f %%",
             d->seconds_per_column * 1e3, d->run->seconds * 1e3, d->run->bubble * 100);
  else
    snprintf(line, sizeof line, "bubble %.1f %%", d->run->bubble * 100);
  write_wrapped(d, line);
  if (d->run->seconds < drawn_seconds + d->seconds_per_column / 2) return;
  snprintf(line, sizeof line, "cut off after %.0f %%: the whole round takes %.0f columns",
           100 * drawn_seconds / d->run->seconds,
           ceil(d->run->seconds / d->seconds_per_column) + d->rank_name_width + 1);
  write_wrapped(d, line);
}

clv_code clv_sched_draw(const clv_sched *s, const clv_sched_costs *c, bool costs_are_seconds,
                        uint32_t columns, const char *const *rank_names, clv_bytes *out,
                        clv_err *err) {
  clv_sched_run run = {0};
  clv_sched_costs equal_costs;
  clv_sched_costs_set_equal(&equal_costs, 1, 1, 1);
  if (!c) c = &equal_costs;
  if (columns < MIN_COLUMNS)
    return clv_fail(err, CLV_INVALID, "%u columns are too few to draw in: %d are the least",
                    columns, MIN_COLUMNS);
  CLV_TRY(clv_sched_simulate(s, c, true, &run, err));
  sched_drawing d = {.s = s,
                     .run = &run,
                     .rank_names = rank_names,
                     .shows_seconds = costs_are_seconds,
                     .out = out};
  d.drawing_width = CLV_MIN(columns, MAX_COLUMNS);
  find_drawn_stages(&d, c);
  set_scale(&d, c);
  set_rank_name_width(&d);
  for (uint32_t r = 0; r < s->shape.n_ranks; r++) draw_rank(&d, r);
  draw_legend(&d);
  clv_sched_run_clear(&run, s);
  return out->failed ? clv_fail(err, CLV_EXHAUSTED, "no memory for the drawing") : CLV_OK;
}
