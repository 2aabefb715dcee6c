/* SPDX-License-Identifier: Apache-2.0
 *
 * Device time between two events on the stream. The second event is recorded before the last piece
 * of a copy to the host, for which the host waits anyway, so the host need not wait for the event.
 */
#include "kernels/cuda/gpu_int.h"

/* Makes the events. If that fails, callers measure the time with the host's clock. */
void clv_gpu_open_timer(clv_gpu *g) {
  clv_cuda_event **events[] = {&g->timer.begin_event, &g->timer.end_event};
  clv_err ignored_err;
  for (size_t i = 0; i < CLV_COUNT(events); i++)
    if (g->vendor->event_new(g->device, true, events[i], &ignored_err) != CLV_OK) *events[i] = NULL;
}

void clv_gpu_close_timer(clv_gpu *g) {
  if (g->timer.begin_event) g->vendor->event_free(g->timer.begin_event);
  if (g->timer.end_event) g->vendor->event_free(g->timer.end_event);
}

static bool record_event(clv_gpu *g, clv_cuda_event *e) {
  clv_err ignored_err;
  return !g->is_recording && g->vendor->event_record(e, g->stream, &ignored_err) == CLV_OK;
}

void clv_gpu_mark_time(clv_gpu *g) {
  if (g->timer.is_running) g->timer.has_ended = record_event(g, g->timer.end_event);
}

static void timer_begin(const clv_backend *b) {
  clv_gpu *g = b->private_data;
  g->timer.has_ended = false;
  g->timer.is_running =
      g->timer.begin_event && g->timer.end_event && record_event(g, g->timer.begin_event);
}

static bool timer_end(const clv_backend *b, double *ret_ms) {
  clv_gpu *g = b->private_data;
  clv_err ignored_err;
  bool is_time_known = g->timer.is_running && g->timer.has_ended;
  g->timer.is_running = g->timer.has_ended = false;
  return is_time_known && g->vendor->event_ms(g->timer.begin_event, g->timer.end_event, ret_ms,
                                              &ignored_err) == CLV_OK;
}

const clv_backend_timer clv_gpu_timer = {.begin = timer_begin, .end = timer_end};
