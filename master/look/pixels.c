/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads pictures (clv_look_pixels): is a channel that leaves the record, only smaller? The mean
 * record is subtracted first; otherwise any channel would resemble any record.
 */
#include <math.h>
#include <stdlib.h>

#include "master/look/look_int.h"

/* Number of pictures that a channel is compared with: the mean of the record's channels, and the
 * first few of them. */
enum { LIKENESSES = 4 };

typedef struct grid {
  const clv_look_view *view, *records;
  clv_look_split half;
  size_t n_places, n_like;
  float *like;    /* [n_like][n][n_places]: records averaged to the grid, less their mean */
  float *channel; /* [n][n_places]: the same of one channel */
} grid;

static void grid_done(grid *g) {
  free(g->like);
  free(g->channel);
}

/* Range from..to of `n` places that place `at` of `of` covers; at least one. */
static void span(size_t at, size_t of, size_t n, size_t *from, size_t *to) {
  *from = at * n / of;
  *to = CLV_MAX((at + 1) * n / of, *from + 1);
}

/* Mean of a record over a place of the grid; like 0: mean of all channels. */
static float record_mean(const grid *g, size_t record, size_t place, size_t like) {
  const clv_look_view *r = g->records;
  size_t y0, y1, x0, x1, c0 = like ? like - 1 : 0, c1 = like ? like : r->n_channels;
  double sum = 0;
  span(place / g->view->n_columns, g->view->n_rows, r->n_rows, &y0, &y1);
  span(place % g->view->n_columns, g->view->n_columns, r->n_columns, &x0, &x1);
  for (size_t c = c0; c < c1; c++)
    for (size_t y = y0; y < y1; y++)
      for (size_t x = x0; x < x1; x++)
        sum += (double)look_value(r, record, y * r->n_columns + x, c);
  return (float)(sum / (double)((c1 - c0) * (y1 - y0) * (x1 - x0)));
}

/* Subtracts the mean over the records of the first half from all records. */
static void center(const grid *g, float *map) {
  for (size_t p = 0; p < g->n_places; p++) {
    double mean = 0;
    for (size_t r = 0; r < g->half.n_fit; r++) mean += (double)map[r * g->n_places + p];
    mean /= (double)g->half.n_fit;
    for (size_t r = 0; r < g->half.n; r++) map[r * g->n_places + p] -= (float)mean;
  }
}

static double correlation(const grid *g, size_t like, size_t from, size_t to) {
  const float *x = g->like + like * g->half.n * g->n_places, *y = g->channel;
  double xx = 0, yy = 0, xy = 0;
  for (size_t i = from * g->n_places; i < to * g->n_places; i++) {
    xx += (double)x[i] * (double)x[i];
    yy += (double)y[i] * (double)y[i];
    xy += (double)x[i] * (double)y[i];
  }
  double both = sqrt(xx) * sqrt(yy);
  return both > 0 && isfinite(both) ? fabs(xy) / both : 0;
}

static clv_code grid_new(const clv_look_view *view, const clv_look_view *records,
                         clv_look_split half, grid *g, clv_err *err) {
  size_t channels = records->n_channels;
  *g = (grid){view, records, half, view->n_rows * view->n_columns, 1, NULL, NULL};
  if (channels > 1) g->n_like += CLV_MIN(channels, (size_t)LIKENESSES - 1);
  size_t map = half.n * g->n_places;
  CLV_TRY(clv_alloc(g->n_like * map, sizeof *g->like, &g->like, err));
  CLV_TRY(clv_alloc(map, sizeof *g->channel, &g->channel, err));
  for (size_t like = 0; like < g->n_like; like++) {
    for (size_t i = 0; i < map; i++)
      g->like[like * map + i] = record_mean(g, i / g->n_places, i % g->n_places, like);
    center(g, g->like + like * map);
  }
  return CLV_OK;
}

static void look_at_channel(const grid *g, size_t c, double *best, clv_look_reading *ret) {
  for (size_t r = 0; r < g->half.n; r++)
    for (size_t p = 0; p < g->n_places; p++)
      g->channel[r * g->n_places + p] = look_value(g->view, r, p, c);
  center(g, g->channel);
  for (size_t like = 0; like < g->n_like; like++) {
    double fit = correlation(g, like, 0, g->half.n_fit);
    if (fit <= *best) continue;
    *best = fit;
    ret->figure = correlation(g, like, g->half.n_fit, g->half.n);
  }
}

clv_code clv_look_pixels(const clv_look_view *views, size_t n_views, const clv_look_view *records,
                         clv_look_split half, clv_look_reading *ret, clv_err *err) {
  double best = 0;
  *ret = (clv_look_reading){.by = ""};
  for (size_t k = 0; k < n_views; k++) {
    CLV_AUTO(grid_done) grid g = {0};
    if (views[k].n_rows * views[k].n_columns < CLV_LOOK_MIN_PLACES) continue;
    ret->by = "one channel";
    CLV_TRY(grid_new(&views[k], records, half, &g, err));
    for (size_t c = 0; c < views[k].n_channels; c++) look_at_channel(&g, c, &best, ret);
  }
  return CLV_OK;
}
