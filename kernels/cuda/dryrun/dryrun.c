/* SPDX-License-Identifier: Apache-2.0
 *
 * The vendor table of a dry run: its functions compute nothing and only report sizes of workspaces.
 */
#include "kernels/cuda/dryrun/dryrun.h"

#include <stdlib.h>

#include "kernels/cuda/cuda.h"

/* The dry run has one device for each value of clv_cuda_dry_run_workspace, numbered by the
 * value. */
enum { N_DEVICES = CLV_CUDA_DRY_RUN_MAX + 1 };

/* Memory whose addresses serve as handles; no function reads it. The handle of a device's stream is
 * the address of streams[device]. */
static char dummy_handle, streams[N_DEVICES];

static size_t get_assumed_workspace(int device, size_t max_bytes) {
  return device == CLV_CUDA_DRY_RUN_MAX ? max_bytes : 0;
}

static clv_code describe_device(int device, clv_cuda_info *ret, clv_err *err) {
  (void)device, (void)err;
  *ret = (clv_cuda_info){.name = "paper", .libraries = "none", .capability = 90};
  return CLV_OK;
}

/* ---- memory, streams and events -------------------------------------------------------------- */

static clv_code allocate_nothing(clv_cuda_stream *s, size_t bytes, void **ret, clv_err *err) {
  (void)s, (void)bytes, (void)err;
  *ret = &dummy_handle;
  return CLV_OK;
}

static void free_nothing(clv_cuda_stream *s, void *p) { (void)s, (void)p; }

static clv_code allocate_host_memory(size_t bytes, void **ret, clv_err *err) {
  return clv_alloc_aligned(bytes, ret, err);
}

static clv_code fill_nothing(clv_cuda_stream *s, void *dst, int byte, size_t bytes, clv_err *err) {
  (void)s, (void)dst, (void)byte, (void)bytes, (void)err;
  return CLV_OK;
}

static clv_code stream_new(int device, bool is_urgent, clv_cuda_stream **ret, clv_err *err) {
  (void)is_urgent, (void)err;
  *ret = (clv_cuda_stream *)&streams[device];
  return CLV_OK;
}

static void stream_free(clv_cuda_stream *s) { (void)s; }

static clv_code event_new(int device, bool is_timed, clv_cuda_event **ret, clv_err *err) {
  (void)device, (void)is_timed, (void)err;
  *ret = (clv_cuda_event *)&dummy_handle;
  return CLV_OK;
}

static void event_free(clv_cuda_event *e) { (void)e; }

/* ---- products, convolutions and LSTMs -------------------------------------------------------- */

static clv_code matmul_new(int device, const clv_cuda_matmul_desc *d, clv_cuda_matmul **ret,
                           size_t *ret_workspace, clv_err *err) {
  (void)d, (void)err;
  *ret = (clv_cuda_matmul *)&dummy_handle;
  *ret_workspace = get_assumed_workspace(device, CLV_CUDA_MATMUL_MAX_WORKSPACE);
  return CLV_OK;
}

static void matmul_free(clv_cuda_matmul *m) { (void)m; }

static clv_code conv_new(int device, const clv_cuda_conv_desc *d, clv_cuda_conv **ret,
                         size_t *ret_workspace, clv_err *err) {
  (void)d, (void)err;
  *ret = (clv_cuda_conv *)&dummy_handle;
  *ret_workspace = get_assumed_workspace(device, CLV_CUDA_CONV_MAX_WORKSPACE);
  return CLV_OK;
}

static void conv_free(clv_cuda_conv *c) { (void)c; }

/* Number of f32 values that an LSTM saves for backward in each step and layer, for each hidden
 * unit: four gates, the cell and the hidden value. CLV_CUDA_DRY_RUN_MAX assumes twice as many. */
enum { VALUES_SAVED_PER_STEP = 6 };

static clv_code lstm_new(clv_cuda_stream *s, const clv_cuda_lstm_desc *d, clv_cuda_lstm **ret,
                         clv_cuda_lstm_space *ret_space, clv_err *err) {
  (void)err;
  int device = (int)((const char *)s - streams);
  size_t h = (size_t)d->h, n_later_layers = (size_t)d->layers - 1;
  size_t n_weights = 4 * h * ((size_t)d->f + h) + n_later_layers * 8 * h * h;
  if (d->bias) n_weights += (n_later_layers + 1) * 8 * h;
  size_t n_hidden_values = (n_later_layers + 1) * (size_t)(d->n * d->t) * h;
  size_t reserve_bytes =
      d->has_backward ? VALUES_SAVED_PER_STEP * n_hidden_values * sizeof(float) : 0;
  *ret = (clv_cuda_lstm *)&dummy_handle;
  *ret_space = (clv_cuda_lstm_space){
      .weights = n_weights * sizeof(float),
      .reserve = reserve_bytes + get_assumed_workspace(device, reserve_bytes),
      .workspace = get_assumed_workspace(device, CLV_CUDA_MATMUL_MAX_WORKSPACE)};
  return CLV_OK;
}

static void lstm_free(clv_cuda_lstm *l) { (void)l; }

/* ---- the vendor table of a dry run ----------------------------------------------------------- */

static const clv_vendor vendor = {
    .abi = CLV_VENDOR_ABI,
    .size = sizeof(clv_vendor),
    .name = "cuda",
    .describe = describe_device,
    .allocate = allocate_nothing,
    .free = free_nothing,
    .host_allocate = allocate_host_memory,
    .host_free = free,
    .fill = fill_nothing,
    .stream_new = stream_new,
    .stream_free = stream_free,
    .event_new = event_new,
    .event_free = event_free,
    .matmul_new = matmul_new,
    .matmul_free = matmul_free,
    .conv_new = conv_new,
    .conv_free = conv_free,
    .lstm_new = lstm_new,
    .lstm_free = lstm_free,
};

clv_code clv_cuda_dry_run_open(clv_cuda_dry_run_workspace workspace, clv_backend **ret,
                               clv_err *err) {
  return clv_cuda_open(&vendor, workspace, ret, err);
}

void clv_cuda_dry_run_close(clv_backend *b) { clv_cuda_close(b); }

void clv_cuda_dry_run_closep(clv_backend **b) {
  clv_cuda_dry_run_close(*b);
  *b = NULL;
}
