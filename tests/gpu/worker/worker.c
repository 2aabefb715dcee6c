/* SPDX-License-Identifier: Apache-2.0
 *
 * Stands in for the library of NVIDIA's devices in a worker of the tests: the programs are linked
 * with --wrap=clv_cuda_load and the simulated device. Nothing that is installed has it.
 *
 * CLV_SIM_SEED: of the order in which the device does what it is asked; CLV_SIM_NO_CONV: as where
 * cuDNN is absent; CLV_SIM_NO_GRAPHS: nothing can be captured; CLV_SIM_CAPABILITY: 75 for 7.5;
 * CLV_SIM_MEMORY: bytes of each of CLV_SIM_DEVICES devices; CLV_SIM_FAIL_TAKE, CLV_SIM_FAIL_LAUNCH,
 * CLV_SIM_LOSE_AT and CLV_SIM_FAILING: see clv_sim_options. What is left on the device when the
 * worker ends makes its exit code LEFT.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernels/load/load.h"
#include "tests/gpu/sim.h"

clv_code __wrap_clv_cuda_load(const clv_cuda_options *o, const clv_cuda_library **ret,
                              clv_err *err);

static uint64_t number(const char *name) {
  const char *text = getenv(name);
  return text ? strtoull(text, NULL, 10) : 0;
}

enum { LEFT = 71 };

static void look_for_leaks(void) {
  if (clv_sim_leaks()) _exit(LEFT);
}

static const clv_vendor *vendor(void) {
  static const clv_vendor *made;
  if (made) return made;
  atexit(look_for_leaks);
  return made = clv_sim_vendor(&(clv_sim_options){.seed = number("CLV_SIM_SEED"),
                                                  .devices = (int)number("CLV_SIM_DEVICES"),
                                                  .memory_bytes = number("CLV_SIM_MEMORY"),
                                                  .capability = (int)number("CLV_SIM_CAPABILITY"),
                                                  .no_conv = number("CLV_SIM_NO_CONV") != 0,
                                                  .no_graphs = number("CLV_SIM_NO_GRAPHS") != 0,
                                                  .fail_take = number("CLV_SIM_FAIL_TAKE"),
                                                  .fail_launch = number("CLV_SIM_FAIL_LAUNCH"),
                                                  .lose_at = number("CLV_SIM_LOSE_AT"),
                                                  .failing = (int)number("CLV_SIM_FAILING")});
}

static void look_in(const char *folders) { (void)folders; }

static clv_code count_devices(int *ret, clv_err *err) { return vendor()->count(ret, err); }

static clv_code describe_device(int device, clv_device_info *ret, clv_err *err) {
  clv_cuda_info info;
  CLV_TRY(vendor()->describe(device, &info, err));
  *ret = (clv_device_info){.capability = info.capability, .memory_bytes = info.memory_bytes};
  snprintf(ret->name, sizeof ret->name, "%s", info.name);
  snprintf(ret->libraries, sizeof ret->libraries, "%s", info.libraries);
  return CLV_OK;
}

static clv_code open_device(int device, clv_backend **ret, clv_err *err) {
  return clv_cuda_open(vendor(), device, ret, err);
}

clv_code __wrap_clv_cuda_load(const clv_cuda_options *o, const clv_cuda_library **ret,
                              clv_err *err) {
  static const clv_cuda_library library = {.abi = CLV_CUDA_ABI,
                                           .size = sizeof(clv_cuda_library),
                                           .look_in = look_in,
                                           .count = count_devices,
                                           .describe = describe_device,
                                           .open = open_device,
                                           .close = clv_cuda_close};
  (void)o;
  (void)err;
  *ret = &library;
  return CLV_OK;
}
