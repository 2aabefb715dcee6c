/* SPDX-License-Identifier: Apache-2.0
 *
 * Keeps a curve of any length in at most PAGE_MAX_POINTS points. The points are evenly spaced in
 * the order in which they were added.
 */
#include <math.h>

#include "master/page/page_int.h"

/* Drops every second point of a full series and doubles its stride. */
static void drop_every_second_point(page_series *s) {
  size_t n = 0;
  for (size_t i = 0; i < s->n; i += 2, n++) {
    s->x[n] = s->x[i];
    s->y[n] = s->y[i];
  }
  s->n = n;
  s->stride *= 2;
}

void page_series_add(page_series *s, double x, double y) {
  if (!s->stride) s->stride = 1;
  if (!isfinite(y) || s->n_added++ % s->stride) return;
  if (s->n == PAGE_MAX_POINTS) drop_every_second_point(s);
  s->x[s->n] = x;
  s->y[s->n++] = y;
}
