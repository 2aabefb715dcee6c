/* SPDX-License-Identifier: Apache-2.0
 *
 * A curve of any length is kept in at most PAGE_MAX_POINTS evenly spaced points.
 */
#include <math.h>

#include "master/page/page_int.h"

/* Halves a full series: the points that stay are as far apart as before, two by two. */
static void thin_out(page_series *s) {
  size_t n = 0;
  for (size_t i = 0; i < s->n; i += 2, n++) {
    s->x[n] = s->x[i];
    s->y[n] = s->y[i];
  }
  s->n = n;
  s->skip *= 2;
}

void page_series_add(page_series *s, double x, double y) {
  if (!s->skip) s->skip = 1;
  if (!isfinite(y) || s->seen++ % s->skip) return;
  if (s->n == PAGE_MAX_POINTS) thin_out(s);
  s->x[s->n] = x;
  s->y[s->n++] = y;
}
