/* SPDX-License-Identifier: Apache-2.0
 *
 * Implements the functions of tests/gpu/sim.h with NVIDIA's runtime, so that the test programs of
 * the simulated device run on a real device. Seeds have no effect. Of the planned failures only
 * failing_capture happens. Only captures and launches of graphs are counted.
 *
 * CLEAVE_CUDA_FOLDERS: folders with NVIDIA's libraries, separated by colons. Exits with 77 if there
 * is no device.
 */
#include <stdio.h>
#include <stdlib.h>

#include "kernels/cuda/nvidia/nvidia.h"
#include "tests/gpu/sim.h"

enum { NO_DEVICE = 77 };

static clv_code refuse_conv(int device, const clv_cuda_conv_desc *d, clv_cuda_conv **ret,
                            size_t *ret_workspace, clv_err *err) {
  (void)device, (void)d, (void)ret, (void)ret_workspace;
  return clv_fail(err, CLV_UNIMPLEMENTED, "this run has no cuDNN");
}

static clv_code refuse_lstm(clv_cuda_stream *s, const clv_cuda_lstm_desc *d, clv_cuda_lstm **ret,
                            clv_cuda_lstm_space *ret_space, clv_err *err) {
  (void)s, (void)d, (void)ret, (void)ret_space;
  return clv_fail(err, CLV_UNIMPLEMENTED, "this run has no cuDNN");
}

static clv_sim_options current_options;
static clv_sim_counts counts;

static clv_code refuse_capture(clv_cuda_stream *s, clv_err *err) {
  (void)s;
  return clv_fail(err, CLV_UNIMPLEMENTED, "no captures, as planned");
}

static clv_code end_capture(clv_cuda_stream *s, clv_cuda_graph **ret, size_t *ret_bytes,
                            clv_err *err) {
  CLV_TRY(clv_nvidia_vendor()->capture_end(s, ret, ret_bytes, err));
  if (++counts.n_captures != current_options.failing_capture) return CLV_OK;
  clv_nvidia_vendor()->graph_free(*ret);
  return clv_fail(err, CLV_INTERNAL, "a capture fails, as planned");
}

static clv_code launch_graph(clv_cuda_stream *s, clv_cuda_graph *g, clv_err *err) {
  counts.n_graph_launches++;
  return clv_nvidia_vendor()->graph_launch(s, g, err);
}

const clv_vendor *clv_sim_make_vendor(const clv_sim_options *options) {
  static clv_vendor vendor;
  const clv_cuda_library *library = clv_cuda_entry(CLV_CUDA_ABI);
  clv_err err;
  int n;
  vendor = *clv_nvidia_vendor();
  current_options = *options;
  counts = (clv_sim_counts){0};
  vendor.capture_end = end_capture;
  vendor.graph_launch = launch_graph;
  if (options->no_graphs) vendor.capture_begin = refuse_capture;
  if (options->no_cudnn) vendor.conv_new = refuse_conv;
  if (options->no_cudnn) vendor.lstm_new = refuse_lstm;
  library->set_folders(getenv("CLEAVE_CUDA_FOLDERS"));
  if (library->count(&n, &err) == CLV_OK) return &vendor;
  printf("no device: %s\n", err.text);
  exit(NO_DEVICE);
}

/* Returns 0: the size of a graph on a real device is not known before its capture. */
size_t clv_sim_get_graph_bytes(size_t launches) {
  (void)launches;
  return 0;
}

clv_sim_counts clv_sim_get_counts(void) { return counts; }

size_t clv_sim_count_leaks(void) { return 0; }
