/* SPDX-License-Identifier: Apache-2.0
 *
 * How long the device takes, between two events on the stream. The second is recorded ahead of each
 * copy that the host waits for anyway, so it is done when that is, and nobody waits for it.
 */
#include "kernels/cuda/gpu_int.h"

/* Without them the host's clock has to do. */
void clv_gpu_open_timer(clv_gpu *g) {
  clv_cuda_event **events[] = {&g->timer.begun, &g->timer.ended};
  clv_err ignored;
  for (size_t i = 0; i < CLV_COUNT(events); i++)
    if (g->vendor->event_new(g->device, true, events[i], &ignored) != CLV_OK) *events[i] = NULL;
}

void clv_gpu_close_timer(clv_gpu *g) {
  if (g->timer.begun) g->vendor->event_free(g->timer.begun);
  if (g->timer.ended) g->vendor->event_free(g->timer.ended);
}

static bool record(clv_gpu *g, clv_cuda_event *e) {
  clv_err ignored;
  return !g->recording && g->vendor->event_record(e, g->stream, &ignored) == CLV_OK;
}

void clv_gpu_mark_time(clv_gpu *g) {
  if (g->timer.runs) g->timer.known = record(g, g->timer.ended);
}

static void timer_begin(const clv_backend *b) {
  clv_gpu *g = b->own;
  g->timer.known = false;
  g->timer.runs = g->timer.begun && g->timer.ended && record(g, g->timer.begun);
}

static bool timer_end(const clv_backend *b, double *ret_ms) {
  clv_gpu *g = b->own;
  clv_err ignored;
  bool known = g->timer.runs && g->timer.known;
  g->timer.runs = g->timer.known = false;
  return known && g->vendor->event_ms(g->timer.begun, g->timer.ended, ret_ms, &ignored) == CLV_OK;
}

const clv_backend_timer clv_gpu_timer = {.begin = timer_begin, .end = timer_end};
