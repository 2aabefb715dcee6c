/* SPDX-License-Identifier: Apache-2.0
 *
 * Draws charts as SVG within the page. A curve names its colour by a CSS class of the page's style,
 * so the colours change with light and dark mode and in print.
 */
#include <math.h>

#include "master/page/page_int.h"

/* Size and margins of a chart in units of its SVG viewBox, and the intervals between ticks. */
enum {
  CHART_WIDTH = 460,
  CHART_HEIGHT = 250,
  LEFT_MARGIN = 54,
  RIGHT_MARGIN = 16,
  TOP_MARGIN = 10,
  BOTTOM_MARGIN = 38,
  N_TICK_INTERVALS = 4
};

typedef struct value_range {
  double low, high;
} value_range;

/* Extends *r so that it contains v. */
static void widen_range(value_range *r, double v) {
  if (v < r->low) r->low = v;
  if (v > r->high) r->high = v;
}

/* Finds the ranges of both axes. Returns false if no curve has a point. */
static bool find_ranges(const page_curve *curves, size_t n, bool has_unit_axes, value_range *x,
                        value_range *y) {
  *x = *y = (value_range){INFINITY, -INFINITY};
  for (size_t k = 0; k < n; k++)
    for (size_t i = 0; i < curves[k].points->n; i++) {
      widen_range(x, curves[k].points->x[i]);
      widen_range(y, curves[k].points->y[i]);
    }
  if (!(x->low <= x->high)) return false;
  if (has_unit_axes) *x = *y = (value_range){0, 1};
  if (x->high <= x->low) x->high = x->low + 1;
  if (y->high <= y->low) *y = (value_range){y->low - 0.5, y->high + 0.5};
  return true;
}

/* Convert a value of the x or y axis to a coordinate of the SVG. */
static double svg_x(const value_range *r, double v) {
  return LEFT_MARGIN +
         (v - r->low) / (r->high - r->low) * (CHART_WIDTH - LEFT_MARGIN - RIGHT_MARGIN);
}
static double svg_y(const value_range *r, double v) {
  return CHART_HEIGHT - BOTTOM_MARGIN -
         (v - r->low) / (r->high - r->low) * (CHART_HEIGHT - TOP_MARGIN - BOTTOM_MARGIN);
}

/* Appends the horizontal grid lines, the tick labels and the name of the x axis. Unless
 * has_unit_axes, the x axis counts steps, so its tick labels are rounded to whole numbers. */
static void put_axes(clv_bytes *out, const value_range *x, const value_range *y, const char *x_name,
                     bool has_unit_axes) {
  for (int i = 0; i <= N_TICK_INTERVALS; i++) {
    double vx = x->low + (x->high - x->low) * i / N_TICK_INTERVALS;
    if (!has_unit_axes) vx = floor(vx + 0.5);
    double vy = y->low + (y->high - y->low) * i / N_TICK_INTERVALS, at = svg_y(y, vy);
    clv_bytes_printf(out, "<line class=\"g\" x1=\"%d\" x2=\"%d\" y1=\"%.1f\" y2=\"%.1f\"/>",
                     LEFT_MARGIN, CHART_WIDTH - RIGHT_MARGIN, at, at);
    clv_bytes_printf(out, "<text x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%.3g</text>",
                     LEFT_MARGIN - 6, at + 4, vy);
    clv_bytes_printf(out, "<text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%.4g</text>",
                     svg_x(x, vx), CHART_HEIGHT - BOTTOM_MARGIN + 16, vx);
  }
  clv_bytes_printf(out, "<text x=\"%d\" y=\"%d\" text-anchor=\"end\">", CHART_WIDTH - RIGHT_MARGIN,
                   CHART_HEIGHT - 2);
  page_put_text(out, x_name);
  clv_bytes_puts(out, "</text>");
}

static void put_curve(clv_bytes *out, const page_curve *c, const value_range *x,
                      const value_range *y) {
  if (!c->points->n) return;
  clv_bytes_printf(out, "<polyline class=\"c c%d\" points=\"", c->color);
  for (size_t i = 0; i < c->points->n; i++)
    clv_bytes_printf(out, "%s%.1f,%.1f", i ? " " : "", svg_x(x, c->points->x[i]),
                     svg_y(y, c->points->y[i]));
  clv_bytes_puts(out, "\"/>");
  if (c->points->n == 1)
    clv_bytes_printf(out, "<circle class=\"f%d\" r=\"3\" cx=\"%.1f\" cy=\"%.1f\"/>", c->color,
                     svg_x(x, c->points->x[0]), svg_y(y, c->points->y[0]));
}

void page_put_chart(clv_bytes *out, const char *title, const char *x_name, const page_curve *curves,
                    size_t n, bool has_unit_axes) {
  value_range x, y;
  if (!find_ranges(curves, n, has_unit_axes, &x, &y)) return;
  clv_bytes_puts(out, "<figure><figcaption>");
  page_put_text(out, title);
  clv_bytes_puts(out, "</figcaption>");
  clv_bytes_printf(out, "<svg viewBox=\"0 0 %d %d\" role=\"img\"><title>", CHART_WIDTH,
                   CHART_HEIGHT);
  page_put_text(out, title);
  clv_bytes_puts(out, "</title>");
  put_axes(out, &x, &y, x_name, has_unit_axes);
  if (has_unit_axes)
    clv_bytes_printf(out, "<line class=\"d\" x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\"/>",
                     svg_x(&x, 0), svg_y(&y, 0), svg_x(&x, 1), svg_y(&y, 1));
  for (size_t i = 0; i < n; i++) put_curve(out, &curves[i], &x, &y);
  clv_bytes_puts(out, "</svg><p class=\"legend\">");
  for (size_t i = 0; i < n; i++) {
    if (!curves[i].points->n) continue;
    clv_bytes_printf(out,
                     "<span class=\"k\"><svg viewBox=\"0 0 12 12\"><rect class=\"f%d\" "
                     "width=\"12\" height=\"12\"/></svg> ",
                     curves[i].color);
    page_put_text(out, curves[i].name);
    clv_bytes_puts(out, "</span> ");
  }
  clv_bytes_puts(out, "</p></figure>\n");
}
