/* SPDX-License-Identifier: Apache-2.0
 *
 * Fills the table clv_vendor with the real functions, and defines clv_cuda_entry, the function that
 * the library exports.
 */
#include <string.h>

#include "kernels/cuda/nvidia/nvidia_int.h"

static const clv_vendor vendor = {
    .abi = CLV_VENDOR_ABI,
    .size = sizeof(clv_vendor),
    .name = "cuda",
#define ENTRY(entry, ...) .entry = clv_nvidia_##entry,
#define ENTRY_VOID ENTRY
#include "kernels/cuda/nvidia/entries.def"
#undef ENTRY
#undef ENTRY_VOID
};

const clv_vendor *clv_nvidia_vendor(void) { return &vendor; }

/* Lowest compute capability for which the kernels are compiled. A device needs cuBLASLt, because
 * almost all ops use it. cuDNN is optional, because convolutions have another implementation. */
enum { MIN_CAPABILITY = 80 };

static clv_code open_device(int device, clv_backend **ret, clv_err *err) {
  const nvidia_cublas *cublas;
  clv_cuda_info info;
  CLV_TRY(clv_nvidia_cublas(&cublas, err));
  CLV_TRY(clv_nvidia_describe(device, &info, err));
  if (info.capability < MIN_CAPABILITY)
    return clv_fail(err, CLV_UNAVAILABLE,
                    "cuda:%d, %s, has compute capability %d.%d, less than %d.%d", device, info.name,
                    info.capability / 10, info.capability % 10, MIN_CAPABILITY / 10,
                    MIN_CAPABILITY % 10);
  return clv_cuda_open(&vendor, device, ret, err);
}

static clv_code check_libraries(clv_err *err) {
  const nvidia_cublas *cublas;
  return clv_nvidia_cublas(&cublas, err);
}

static clv_code count_devices(int *ret, clv_err *err) {
  CLV_TRY(clv_nvidia_count(ret, err));
  return check_libraries(err);
}

static clv_code describe_device(int device, clv_device_info *ret, clv_err *err) {
  clv_cuda_info info;
  CLV_TRY(clv_nvidia_describe(device, &info, err));
  *ret = (clv_device_info){.capability = info.capability, .memory_bytes = info.memory_bytes};
  _Static_assert(sizeof ret->name == sizeof info.name, "copied whole");
  memcpy(ret->name, info.name, sizeof ret->name);
  _Static_assert(sizeof ret->libraries == sizeof info.libraries, "copied whole");
  memcpy(ret->libraries, info.libraries, sizeof ret->libraries);
  return CLV_OK;
}

static const clv_cuda_library library = {
    .abi = CLV_CUDA_ABI,
    .size = sizeof(clv_cuda_library),
    .set_folders = clv_nvidia_set_folders,
    .set_plan_store = clv_nvidia_set_plan_store,
    .count = count_devices,
    .libraries = check_libraries,
    .describe = describe_device,
    .open = open_device,
    .close = clv_cuda_close,
};

const clv_cuda_library *clv_cuda_entry(uint32_t abi) {
  return abi == CLV_CUDA_ABI ? &library : NULL;
}
