/* SPDX-License-Identifier: Apache-2.0
 *
 * Recording of work that a session repeats: the stream is captured as a CUDA graph, and one call
 * launches the graph.
 */
#include "kernels/cuda/gpu_int.h"

clv_code clv_gpu_fail_recording(clv_gpu *g, const char *what, clv_err *err) {
  if (!g->is_recording) return CLV_OK;
  clv_code code =
      clv_fail(err, CLV_PRECONDITION, "%s: cannot %s during a recording", g->name, what);
  if (err && g->deferred_error.code == CLV_OK) g->deferred_error = *err;
  return code;
}

static clv_code recording_begin(const clv_backend *b, clv_err *err) {
  clv_gpu *g = b->private_data;
  if (g->deferred_error.code != CLV_OK)
    return clv_fail(err, CLV_PRECONDITION, "%s: cannot start a capture after an earlier error: %s",
                    g->name, g->deferred_error.text);
  CLV_TRY(g->vendor->capture_begin(g->stream, err));
  g->is_recording = true;
  return CLV_OK;
}

/* Ends the capture. Returns any error raised during the capture and clears it, so that the next
 * finish does not report it again. */
static clv_code recording_end(const clv_backend *b, void **ret, size_t *ret_bytes, clv_err *err) {
  clv_gpu *g = b->private_data;
  clv_err capture_error = g->deferred_error;
  clv_cuda_graph *graph = NULL;
  g->is_recording = false;
  g->deferred_error = (clv_err){0};
  CLV_TRY(g->vendor->capture_end(g->stream, &graph, ret_bytes, err));
  if (capture_error.code != CLV_OK) {
    g->vendor->graph_free(graph);
    if (err) *err = capture_error;
    return capture_error.code;
  }
  *ret = graph;
  return CLV_OK;
}

static clv_code recording_replay(const clv_backend *b, void *graph, clv_err *err) {
  clv_gpu *g = b->private_data;
  return g->vendor->graph_launch(g->stream, graph, err);
}

static void recording_free(const clv_backend *b, void *graph) {
  clv_gpu *g = b->private_data;
  g->vendor->graph_free(graph);
}

const clv_backend_recording clv_gpu_recording = {.begin = recording_begin,
                                                 .end = recording_end,
                                                 .replay = recording_replay,
                                                 .free = recording_free};
