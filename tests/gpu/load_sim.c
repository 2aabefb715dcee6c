/* SPDX-License-Identifier: Apache-2.0
 *
 * Programs of the tests find the simulated device where others look for libcleave_cuda.so: they are
 * linked with --wrap=clv_cuda_load. The environment has its options: CLV_SIM_SEED,
 * CLV_SIM_DEVICES, CLV_SIM_MEMORY, CLV_SIM_FAIL_TAKE, CLV_SIM_FAIL_LAUNCH, CLV_SIM_LOSE_AT. What is
 * left on the device when the program ends makes its exit code LEFT.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernels/load/load.h"
#include "tests/gpu/sim.h"

enum { LEFT = 71 };

static const clv_vendor *vendor;

static void look_in(const char *folders) { (void)folders; }

static clv_code count(int *ret, clv_err *err) { return vendor->count(ret, err); }

static clv_code describe(int device, clv_device_info *ret, clv_err *err) {
  clv_cuda_info info;
  CLV_TRY(vendor->describe(device, &info, err));
  *ret = (clv_device_info){.capability = info.capability, .memory_bytes = info.memory_bytes};
  snprintf(ret->name, sizeof ret->name, "%s", info.name);
  snprintf(ret->libraries, sizeof ret->libraries, "%s", info.libraries);
  return CLV_OK;
}

static clv_code open_device(int device, clv_backend **ret, clv_err *err) {
  return clv_cuda_open(vendor, device, ret, err);
}

static uint64_t option(const char *name) {
  const char *text = getenv(name);
  return text ? strtoull(text, NULL, 10) : 0;
}

static void look_for_leaks(void) {
  if (clv_sim_leaks()) _exit(LEFT);
}

static void begin(void) {
  const clv_sim_options o = {.seed = option("CLV_SIM_SEED"),
                             .devices = (int)option("CLV_SIM_DEVICES"),
                             .memory_bytes = option("CLV_SIM_MEMORY"),
                             .fail_take = option("CLV_SIM_FAIL_TAKE"),
                             .fail_launch = option("CLV_SIM_FAIL_LAUNCH"),
                             .lose_at = option("CLV_SIM_LOSE_AT")};
  vendor = clv_sim_vendor(&o);
  atexit(look_for_leaks);
}

clv_code __wrap_clv_cuda_load(const clv_cuda_options *o, const clv_cuda_library **ret,
                              clv_err *err);
clv_code __wrap_clv_cuda_load(const clv_cuda_options *o, const clv_cuda_library **ret,
                              clv_err *err) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  static const clv_cuda_library library = {.abi = CLV_CUDA_ABI,
                                           .size = sizeof library,
                                           .look_in = look_in,
                                           .count = count,
                                           .describe = describe,
                                           .open = open_device,
                                           .close = clv_cuda_close};
  (void)o;
  (void)err;
  pthread_once(&once, begin);
  *ret = &library;
  return CLV_OK;
}
