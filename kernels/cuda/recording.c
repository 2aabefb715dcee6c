/* SPDX-License-Identifier: Apache-2.0
 *
 * What is asked of the stream, captured as a graph and launched as a whole.
 */
#include "kernels/cuda/gpu_int.h"

clv_code clv_gpu_fail_recording(clv_gpu *g, const char *what, clv_err *err) {
  if (!g->recording) return CLV_OK;
  clv_code code = clv_fail(err, CLV_PRECONDITION, "%s: %s while work is recorded", g->name, what);
  if (err && g->failed.code == CLV_OK) g->failed = *err;
  return code;
}

static clv_code recording_begin(const clv_backend *b, clv_err *err) {
  clv_gpu *g = b->own;
  if (g->failed.code != CLV_OK)
    return clv_fail(err, CLV_PRECONDITION, "%s: something has failed before", g->name);
  CLV_TRY(g->vendor->capture_begin(g->stream, err));
  g->recording = true;
  return CLV_OK;
}

/* What failed meanwhile has not been done, and is not told when somebody waits. */
static clv_code recording_end(const clv_backend *b, void **ret, size_t *ret_bytes, clv_err *err) {
  clv_gpu *g = b->own;
  clv_err failed = g->failed;
  clv_cuda_graph *graph = NULL;
  g->recording = false;
  g->failed = (clv_err){0};
  CLV_TRY(g->vendor->capture_end(g->stream, &graph, ret_bytes, err));
  if (failed.code != CLV_OK) {
    g->vendor->graph_free(graph);
    if (err) *err = failed;
    return failed.code;
  }
  *ret = graph;
  return CLV_OK;
}

static clv_code recording_again(const clv_backend *b, void *record, clv_err *err) {
  clv_gpu *g = b->own;
  return g->vendor->graph_launch(g->stream, record, err);
}

static void recording_free(const clv_backend *b, void *record) {
  clv_gpu *g = b->own;
  g->vendor->graph_free(record);
}

const clv_backend_recording clv_gpu_recording = {.begin = recording_begin,
                                                 .end = recording_end,
                                                 .again = recording_again,
                                                 .free = recording_free};
