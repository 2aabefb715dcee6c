/* SPDX-License-Identifier: Apache-2.0
 *
 * The programs that test the backend on the simulated device, on a real one: what they ask of the
 * simulation, answered by NVIDIA's runtime. Seeds and planned faults mean nothing here.
 *
 * CLEAVE_CUDA_FOLDERS: folders between colons with NVIDIA's libraries. Exits 77 where there is no
 * device.
 */
#include <stdio.h>
#include <stdlib.h>

#include "kernels/cuda/nvidia/nvidia.h"
#include "tests/gpu/sim.h"

enum { NO_DEVICE = 77 };

static clv_code no_conv(int device, const clv_cuda_conv_desc *d, clv_cuda_conv **ret,
                        size_t *ret_workspace, clv_err *err) {
  (void)device, (void)d, (void)ret, (void)ret_workspace;
  return clv_fail(err, CLV_UNIMPLEMENTED, "this run has no cuDNN");
}

static clv_code no_lstm(clv_cuda_stream *s, const clv_cuda_lstm_desc *d, clv_cuda_lstm **ret,
                        clv_cuda_lstm_space *ret_space, clv_err *err) {
  (void)s, (void)d, (void)ret, (void)ret_space;
  return clv_fail(err, CLV_UNIMPLEMENTED, "this run has no cuDNN");
}

const clv_vendor *clv_sim_vendor(const clv_sim_options *options) {
  static clv_vendor vendor;
  const clv_cuda_library *library = clv_cuda_entry(CLV_CUDA_ABI);
  clv_err err;
  int n;
  vendor = *clv_nvidia();
  if (options->no_cudnn) vendor.conv_new = no_conv;
  if (options->no_cudnn) vendor.lstm_new = no_lstm;
  library->look_in(getenv("CLEAVE_CUDA_FOLDERS"));
  if (library->count(&n, &err) == CLV_OK) return &vendor;
  printf("no device: %s\n", err.text);
  exit(NO_DEVICE);
}

clv_sim_counts clv_sim_count(void) { return (clv_sim_counts){0}; }

size_t clv_sim_leaks(void) { return 0; }
