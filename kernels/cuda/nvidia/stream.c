/* SPDX-License-Identifier: Apache-2.0
 *
 * Streams, events, launches and captured graphs.
 */
#include "kernels/cuda/nvidia/nvidia_int.h"

#include <pthread.h>
#include <stdlib.h>

/* ---- streams --------------------------------------------------------------------------------- */

static clv_code create_stream(clv_cuda_stream *s, bool is_urgent, clv_err *err) {
  int lowest_priority = 0, highest_priority = 0;
  cudaMemPool_t pool;
  CLV_TRY(clv_nvidia_pool(s->device, &pool, err));
  NVIDIA_TRY(s->device, err, cudaDeviceGetStreamPriorityRange, &lowest_priority, &highest_priority);
  NVIDIA_TRY(s->device, err, cudaStreamCreateWithPriority, &s->stream, cudaStreamNonBlocking,
             is_urgent ? highest_priority : lowest_priority);
  return CLV_OK;
}

clv_code clv_nvidia_stream_new(int device, bool is_urgent, clv_cuda_stream **ret, clv_err *err) {
  clv_cuda_stream *s;
  CLV_TRY(clv_alloc(1, sizeof *s, &s, err));
  s->device = device;
  clv_code code = create_stream(s, is_urgent, err);
  if (code != CLV_OK) {
    free(s);
    return code;
  }
  *ret = s;
  return CLV_OK;
}

void clv_nvidia_stream_free(clv_cuda_stream *s) {
  const nvidia_cudnn *cudnn;
  clv_err err;
  if (!s) return;
  if (clv_nvidia_set_device(s->device, &err) == CLV_OK) {
    cudaError_t answer = cudaStreamSynchronize(s->stream);
    if (s->cudnn && clv_nvidia_cudnn(&cudnn, &err) == CLV_OK) cudnn->cudnnDestroy(s->cudnn);
    if (answer == cudaSuccess) answer = cudaStreamDestroy(s->stream);
    if (answer != cudaSuccess)
      clv_nvidia_fail_at(CLV_HERE, "cudaStreamDestroy", s->device, answer, &err);
  }
  free(s);
}

clv_code clv_nvidia_stream_finish(clv_cuda_stream *s, clv_err *err) {
  CLV_TRY(clv_nvidia_set_stream_device(s, err));
  NVIDIA_TRY(s->device, err, cudaStreamSynchronize, s->stream);
  return CLV_OK;
}

clv_code clv_nvidia_stream_wait(clv_cuda_stream *s, clv_cuda_event *e, clv_err *err) {
  CLV_TRY(clv_nvidia_set_stream_device(s, err));
  NVIDIA_TRY(s->device, err, cudaStreamWaitEvent, s->stream, e->event, 0);
  return CLV_OK;
}

/* Each stream has its own cuDNN handle, because a handle, like a stream, is used by one thread at a
 * time. */
clv_code clv_nvidia_cudnn_handle(clv_cuda_stream *s, const nvidia_cudnn *cudnn, clv_err *err) {
  if (s->cudnn) return CLV_OK;
  cudnnStatus_t answer = cudnn->cudnnCreate(&s->cudnn);
  if (answer != CUDNN_STATUS_SUCCESS) return clv_nvidia_dnn_fail(cudnn, "cudnnCreate", answer, err);
  answer = cudnn->cudnnSetStream(s->cudnn, s->stream);
  if (answer != CUDNN_STATUS_SUCCESS)
    return clv_nvidia_dnn_fail(cudnn, "cudnnSetStream", answer, err);
  return CLV_OK;
}

/* ---- events ---------------------------------------------------------------------------------- */

/* Makes an event. A thread that waits for it sleeps instead of polling. */
static clv_code create_event(clv_cuda_event *e, bool is_timed, clv_err *err) {
  unsigned flags = cudaEventBlockingSync | (is_timed ? 0u : cudaEventDisableTiming);
  CLV_TRY(clv_nvidia_set_device(e->device, err));
  NVIDIA_TRY(e->device, err, cudaEventCreateWithFlags, &e->event, flags);
  return CLV_OK;
}

clv_code clv_nvidia_event_new(int device, bool is_timed, clv_cuda_event **ret, clv_err *err) {
  clv_cuda_event *e;
  CLV_TRY(clv_alloc(1, sizeof *e, &e, err));
  e->device = device;
  clv_code code = create_event(e, is_timed, err);
  if (code != CLV_OK) {
    free(e);
    return code;
  }
  *ret = e;
  return CLV_OK;
}

void clv_nvidia_event_free(clv_cuda_event *e) {
  if (!e) return;
  if (cudaEventDestroy(e->event) != cudaSuccess) cudaGetLastError();
  free(e);
}

clv_code clv_nvidia_event_record(clv_cuda_event *e, clv_cuda_stream *s, clv_err *err) {
  CLV_TRY(clv_nvidia_set_stream_device(s, err));
  NVIDIA_TRY(s->device, err, cudaEventRecord, e->event, s->stream);
  return CLV_OK;
}

clv_code clv_nvidia_event_done(clv_cuda_event *e, bool *ret, clv_err *err) {
  CLV_TRY(clv_nvidia_check_not_lost(e->device, err));
  cudaError_t answer = cudaEventQuery(e->event);
  if (answer == cudaErrorNotReady) cudaGetLastError();
  if (answer != cudaSuccess && answer != cudaErrorNotReady)
    return clv_nvidia_fail_at(CLV_HERE, "cudaEventQuery", e->device, answer, err);
  *ret = answer == cudaSuccess;
  return CLV_OK;
}

clv_code clv_nvidia_event_finish(clv_cuda_event *e, clv_err *err) {
  CLV_TRY(clv_nvidia_check_not_lost(e->device, err));
  NVIDIA_TRY(e->device, err, cudaEventSynchronize, e->event);
  return CLV_OK;
}

clv_code clv_nvidia_event_ms(clv_cuda_event *begin, clv_cuda_event *end, double *ret,
                             clv_err *err) {
  float ms = 0;
  CLV_TRY(clv_nvidia_check_not_lost(begin->device, err));
  NVIDIA_TRY(begin->device, err, cudaEventElapsedTime, &ms, begin->event, end->event);
  *ret = (double)ms;
  return CLV_OK;
}

/* ---- launches and captured graphs ------------------------------------------------------------ */

clv_code clv_nvidia_launch(clv_cuda_stream *s, const clv_cuda_launch *l, clv_err *err) {
  struct cudaLaunchConfig_st config = {.gridDim = {l->grid[0], l->grid[1], 1},
                                       .blockDim = {l->block, 1, 1},
                                       .dynamicSmemBytes = l->shared_bytes,
                                       .stream = s->stream};
  CLV_TRY(clv_nvidia_set_stream_device(s, err));
  cudaError_t answer = cudaLaunchKernelExC(&config, l->kernel, (void **)(uintptr_t)l->args);
  if (answer != cudaSuccess) return clv_nvidia_fail_at(CLV_HERE, l->name, s->device, answer, err);
  return CLV_OK;
}

struct clv_cuda_graph {
  int device;
  cudaGraphExec_t exec;
};

/* Captures in thread-local mode, so that other threads may make calls that this thread's capture
 * forbids. */
clv_code clv_nvidia_capture_begin(clv_cuda_stream *s, clv_err *err) {
  CLV_TRY(clv_nvidia_set_stream_device(s, err));
  NVIDIA_TRY(s->device, err, cudaStreamBeginCapture, s->stream, cudaStreamCaptureModeThreadLocal);
  return CLV_OK;
}

/* Mutex that is held while a graph is made, so that each graph's memory is counted once. */
static pthread_mutex_t graph_lock = PTHREAD_MUTEX_INITIALIZER;

static clv_code instantiate_graph(clv_cuda_stream *s, clv_cuda_graph *g, cudaGraph_t captured_graph,
                                  size_t *ret_bytes, clv_err *err) {
  size_t bytes_before = 0, bytes_after = 0;
  CLV_TRY(clv_nvidia_other_process_bytes(s->device, &bytes_before, err));
  NVIDIA_TRY(s->device, err, cudaGraphInstantiate, &g->exec, captured_graph, 0);
  NVIDIA_TRY(s->device, err, cudaGraphUpload, g->exec, s->stream);
  CLV_TRY(clv_nvidia_other_process_bytes(s->device, &bytes_after, err));
  *ret_bytes = bytes_after - CLV_MIN(bytes_after, bytes_before);
  return CLV_OK;
}

static clv_code make_graph(clv_cuda_stream *s, cudaGraph_t captured_graph, clv_cuda_graph **ret,
                           size_t *ret_bytes, clv_err *err) {
  clv_cuda_graph *g;
  CLV_TRY(clv_alloc(1, sizeof *g, &g, err));
  g->device = s->device;
  pthread_mutex_lock(&graph_lock);
  clv_code code = instantiate_graph(s, g, captured_graph, ret_bytes, err);
  pthread_mutex_unlock(&graph_lock);
  if (code == CLV_OK)
    *ret = g;
  else
    clv_nvidia_graph_free(g);
  return code;
}

clv_code clv_nvidia_capture_end(clv_cuda_stream *s, clv_cuda_graph **ret, size_t *ret_bytes,
                                clv_err *err) {
  cudaGraph_t captured_graph = NULL;
  CLV_TRY(clv_nvidia_set_stream_device(s, err));
  NVIDIA_TRY(s->device, err, cudaStreamEndCapture, s->stream, &captured_graph);
  clv_code code = make_graph(s, captured_graph, ret, ret_bytes, err);
  cudaGraphDestroy(captured_graph);
  return code;
}

clv_code clv_nvidia_graph_launch(clv_cuda_stream *s, clv_cuda_graph *g, clv_err *err) {
  CLV_TRY(clv_nvidia_set_stream_device(s, err));
  NVIDIA_TRY(s->device, err, cudaGraphLaunch, g->exec, s->stream);
  return CLV_OK;
}

void clv_nvidia_graph_free(clv_cuda_graph *g) {
  if (!g) return;
  if (g->exec && cudaGraphExecDestroy(g->exec) != cudaSuccess) cudaGetLastError();
  free(g);
}
