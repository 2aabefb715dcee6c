/* SPDX-License-Identifier: Apache-2.0
 *
 * Gives a worker of the tests the simulated device instead of NVIDIA's library: the worker is
 * linked with --wrap=clv_cuda_load. No installed program contains this file.
 *
 * CLV_SIM_SEED: seed of the order in which the device runs operations; CLV_SIM_NO_CUDNN: cuDNN is
 * absent; CLV_SIM_NO_GRAPHS: nothing can be captured; CLV_SIM_CAPABILITY: compute capability, 75
 * for 7.5; CLV_SIM_MEMORY: bytes of each of CLV_SIM_DEVICES devices; CLV_SIM_FAIL_TAKE,
 * CLV_SIM_FAIL_LAUNCH, CLV_SIM_LOSE_AT and CLV_SIM_FAILING: see clv_sim_options; CLV_SIM_PLANT: a
 * fault, see apply_planted_fault. If the worker leaves memory or objects on the device when it
 * ends, or has used the default stream, its exit code is EXIT_WITH_LEAKS.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernels/load/load.h"
#include "tests/gpu/sim.h"

clv_code __wrap_clv_cuda_load(const clv_cuda_options *o, const clv_cuda_library **ret,
                              clv_err *err);

static uint64_t read_number(const char *name) {
  const char *text = getenv(name);
  return text ? strtoull(text, NULL, 10) : 0;
}

enum { EXIT_WITH_LEAKS = 71, ALLOCATIONS_AT_START = 4 };

static void exit_if_leaked(void) {
  uint64_t n_default_stream_calls = clv_sim_get_counts().n_default_stream_calls;
  if (n_default_stream_calls)
    fprintf(stderr, "cuda-sim: the default stream was used %llu times\n",
            (unsigned long long)n_default_stream_calls);
  if (clv_sim_count_leaks() || n_default_stream_calls) _exit(EXIT_WITH_LEAKS);
}

/* ---- planted faults -------------------------------------------------------------------------- */

static clv_vendor faulty_vendor;
static const clv_vendor *simulated_vendor;

static clv_code return_without_waiting(clv_cuda_event *e, clv_err *err) {
  (void)e;
  (void)err;
  return CLV_OK;
}

/* Fault: frees each allocation at once, except those that the worker makes when it starts. */
static clv_code free_at_once(clv_cuda_stream *s, size_t bytes, void **ret, clv_err *err) {
  static int n;
  CLV_TRY(simulated_vendor->allocate(s, bytes, ret, err));
  if (++n > ALLOCATIONS_AT_START) simulated_vendor->free(s, *ret);
  return CLV_OK;
}

static clv_code fill_on_default_stream(clv_cuda_stream *s, void *dst, int byte, size_t bytes,
                                       clv_err *err) {
  static int n;
  return simulated_vendor->fill(++n > ALLOCATIONS_AT_START ? NULL : s, dst, byte, bytes, err);
}

/* Returns the function table with the fault that CLV_SIM_PLANT names, which a sanitizer or the
 * simulation must find while a session runs. */
static const clv_vendor *apply_planted_fault(const clv_vendor *v) {
  const char *name = getenv("CLV_SIM_PLANT");
  simulated_vendor = v;
  if (!name) return v;
  faulty_vendor = *v;
  if (strcmp(name, "no_wait") == 0) faulty_vendor.event_finish = return_without_waiting;
  if (strcmp(name, "given") == 0) faulty_vendor.allocate = free_at_once;
  if (strcmp(name, "default_stream") == 0) faulty_vendor.fill = fill_on_default_stream;
  return &faulty_vendor;
}

/* ---- the simulated device, with options from the environment --------------------------------- */

static const clv_vendor *make_simulated_vendor(void) {
  return clv_sim_make_vendor(
      &(clv_sim_options){.seed = read_number("CLV_SIM_SEED"),
                         .n_devices = (int)read_number("CLV_SIM_DEVICES"),
                         .memory_bytes = read_number("CLV_SIM_MEMORY"),
                         .capability = (int)read_number("CLV_SIM_CAPABILITY"),
                         .no_cudnn = read_number("CLV_SIM_NO_CUDNN") != 0,
                         .no_graphs = read_number("CLV_SIM_NO_GRAPHS") != 0,
                         .failing_allocation = read_number("CLV_SIM_FAIL_TAKE"),
                         .failing_launch = read_number("CLV_SIM_FAIL_LAUNCH"),
                         .losing_call = read_number("CLV_SIM_LOSE_AT"),
                         .failing_device = (int)read_number("CLV_SIM_FAILING")});
}

static const clv_vendor *get_vendor(void) {
  static const clv_vendor *vendor;
  if (vendor) return vendor;
  atexit(exit_if_leaked);
  return vendor = apply_planted_fault(make_simulated_vendor());
}

static void ignore_library_folders(const char *folders) { (void)folders; }
static void ignore_plan_store(const clv_plan_store *store) { (void)store; }

static clv_code count_devices(int *ret, clv_err *err) { return get_vendor()->count(ret, err); }
static clv_code check_libraries(clv_err *err) {
  (void)err;
  return CLV_OK;
}

static clv_code describe_device(int device, clv_device_info *ret, clv_err *err) {
  clv_cuda_info info;
  CLV_TRY(get_vendor()->describe(device, &info, err));
  *ret = (clv_device_info){.capability = info.capability, .memory_bytes = info.memory_bytes};
  snprintf(ret->name, sizeof ret->name, "%s", info.name);
  snprintf(ret->libraries, sizeof ret->libraries, "%s", info.libraries);
  return CLV_OK;
}

static clv_code open_device(int device, clv_backend **ret, clv_err *err) {
  return clv_cuda_open(get_vendor(), device, ret, err);
}

clv_code __wrap_clv_cuda_load(const clv_cuda_options *o, const clv_cuda_library **ret,
                              clv_err *err) {
  static const clv_cuda_library library = {.abi = CLV_CUDA_ABI,
                                           .size = sizeof(clv_cuda_library),
                                           .set_folders = ignore_library_folders,
                                           .set_plan_store = ignore_plan_store,
                                           .count = count_devices,
                                           .libraries = check_libraries,
                                           .describe = describe_device,
                                           .open = open_device,
                                           .close = clv_cuda_close};
  (void)o;
  (void)err;
  *ret = &library;
  return CLV_OK;
}
