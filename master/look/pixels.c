/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads pictures (clv_look_read_pixels), as one attack of the look, which measures before a run
 * what sent tensors show. The attack measures whether a channel that a worker receives is the
 * picture of the record, only smaller. The mean record is subtracted first; otherwise any channel
 * would resemble any record.
 */
#include <math.h>
#include <stdlib.h>

#include "master/look/look_int.h"

/* Most pictures that a channel is compared with: the mean of the record's channels, and the first
 * few channels one by one. */
enum { MAX_PICTURES = 4 };

typedef struct picture_grid {
  const clv_look_view *view, *records;
  clv_look_split split;
  size_t n_places, n_pictures;
  /* [n_pictures][n][n_places] pictures of the records averaged to the grid, less the mean record */
  float *pictures;
  float *channel_values; /* [n][n_places] one channel of the view, less its mean over records */
} picture_grid;

static void picture_grid_done(picture_grid *g) {
  free(g->pictures);
  free(g->channel_values);
}

/* Returns the range from..to of the places of a record that place `at` of the grid covers, at least
 * one place. n_record_places, n_grid_places: places of record and grid along one axis. */
static void get_covered_range(size_t at, size_t n_grid_places, size_t n_record_places, size_t *from,
                              size_t *to) {
  *from = at * n_record_places / n_grid_places;
  *to = CLV_MAX((at + 1) * n_record_places / n_grid_places, *from + 1);
}

/* Returns the mean of a record over the pixels that a place of the grid covers. picture 0: mean
 * over all channels; picture k > 0: mean over channel k - 1 alone. */
static float compute_record_mean(const picture_grid *g, size_t record, size_t place,
                                 size_t picture) {
  const clv_look_view *r = g->records;
  size_t y0, y1, x0, x1, c0 = picture ? picture - 1 : 0, c1 = picture ? picture : r->n_channels;
  double sum = 0;
  get_covered_range(place / g->view->n_columns, g->view->n_rows, r->n_rows, &y0, &y1);
  get_covered_range(place % g->view->n_columns, g->view->n_columns, r->n_columns, &x0, &x1);
  for (size_t c = c0; c < c1; c++)
    for (size_t y = y0; y < y1; y++)
      for (size_t x = x0; x < x1; x++)
        sum += (double)look_value(r, record, y * r->n_columns + x, c);
  return (float)(sum / (double)((c1 - c0) * (y1 - y0) * (x1 - x0)));
}

/* Subtracts from all records the mean record of the half that the attack learns from. */
static void subtract_mean_record(const picture_grid *g, float *grid_values) {
  for (size_t p = 0; p < g->n_places; p++) {
    double mean = 0;
    for (size_t r = 0; r < g->split.n_fit; r++) mean += (double)grid_values[r * g->n_places + p];
    mean /= (double)g->split.n_fit;
    for (size_t r = 0; r < g->split.n; r++) grid_values[r * g->n_places + p] -= (float)mean;
  }
}

static double compute_correlation(const picture_grid *g, size_t picture, size_t first_record,
                                  size_t to) {
  const float *x = g->pictures + picture * g->split.n * g->n_places, *y = g->channel_values;
  double xx = 0, yy = 0, xy = 0;
  for (size_t i = first_record * g->n_places; i < to * g->n_places; i++) {
    xx += (double)x[i] * (double)x[i];
    yy += (double)y[i] * (double)y[i];
    xy += (double)x[i] * (double)y[i];
  }
  double norm_product = sqrt(xx) * sqrt(yy);
  return norm_product > 0 && isfinite(norm_product) ? fabs(xy) / norm_product : 0;
}

static clv_code picture_grid_new(const clv_look_view *view, const clv_look_view *records,
                                 clv_look_split split, picture_grid *g, clv_err *err) {
  size_t n_channels = records->n_channels;
  *g = (picture_grid){view, records, split, view->n_rows * view->n_columns, 1, NULL, NULL};
  if (n_channels > 1) g->n_pictures += CLV_MIN(n_channels, (size_t)MAX_PICTURES - 1);
  size_t n_grid_values = split.n * g->n_places;
  CLV_TRY(clv_alloc(g->n_pictures * n_grid_values, sizeof *g->pictures, &g->pictures, err));
  CLV_TRY(clv_alloc(n_grid_values, sizeof *g->channel_values, &g->channel_values, err));
  for (size_t picture = 0; picture < g->n_pictures; picture++) {
    for (size_t i = 0; i < n_grid_values; i++)
      g->pictures[picture * n_grid_values + i] =
          compute_record_mean(g, i / g->n_places, i % g->n_places, picture);
    subtract_mean_record(g, g->pictures + picture * n_grid_values);
  }
  return CLV_OK;
}

static void compare_channel(const picture_grid *g, size_t c, double *best_fit,
                            clv_look_reading *ret) {
  for (size_t r = 0; r < g->split.n; r++)
    for (size_t p = 0; p < g->n_places; p++)
      g->channel_values[r * g->n_places + p] = look_value(g->view, r, p, c);
  subtract_mean_record(g, g->channel_values);
  for (size_t picture = 0; picture < g->n_pictures; picture++) {
    double fit_correlation = compute_correlation(g, picture, 0, g->split.n_fit);
    if (fit_correlation <= *best_fit) continue;
    *best_fit = fit_correlation;
    ret->figure = compute_correlation(g, picture, g->split.n_fit, g->split.n);
  }
}

clv_code clv_look_read_pixels(const clv_look_view *views, size_t n_views,
                              const clv_look_view *records, clv_look_split split,
                              clv_look_reading *ret, clv_err *err) {
  double best_fit = 0;
  *ret = (clv_look_reading){.by = ""};
  for (size_t k = 0; k < n_views; k++) {
    CLV_AUTO(picture_grid_done) picture_grid g = {0};
    if (views[k].n_rows * views[k].n_columns < CLV_LOOK_MIN_PLACES) continue;
    ret->by = "one channel";
    CLV_TRY(picture_grid_new(&views[k], records, split, &g, err));
    for (size_t c = 0; c < views[k].n_channels; c++) compare_channel(&g, c, &best_fit, ret);
  }
  return CLV_OK;
}
