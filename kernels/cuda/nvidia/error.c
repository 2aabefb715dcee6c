/* SPDX-License-Identifier: Apache-2.0
 *
 * Converts errors of NVIDIA's runtime and libraries to clv_err, and records devices that are
 * lost to this process.
 */
#include <stdatomic.h>
#include <stdio.h>

#include "kernels/cuda/nvidia/nvidia_int.h"

/* The meaning of an error of NVIDIA's runtime for the caller. Errors not listed are CLV_INTERNAL.
 * `marks_device_lost`: the process cannot use the device any more. */
typedef struct error_meaning {
  cudaError_t error;
  clv_code code;
  bool marks_device_lost;
} error_meaning;

static const error_meaning error_meanings[] = {
    {cudaErrorMemoryAllocation, CLV_EXHAUSTED, false},
    {cudaErrorNoDevice, CLV_UNAVAILABLE, false},
    {cudaErrorInvalidDevice, CLV_UNAVAILABLE, false},
    {cudaErrorInsufficientDriver, CLV_UNAVAILABLE, false},
    {cudaErrorStubLibrary, CLV_UNAVAILABLE, false},
    {cudaErrorInitializationError, CLV_UNAVAILABLE, false},
    {cudaErrorDevicesUnavailable, CLV_UNAVAILABLE, false},
    {cudaErrorSystemNotReady, CLV_UNAVAILABLE, false},
    {cudaErrorSystemDriverMismatch, CLV_UNAVAILABLE, false},
    {cudaErrorCompatNotSupportedOnDevice, CLV_UNAVAILABLE, false},
    {cudaErrorOperatingSystem, CLV_UNAVAILABLE, false},
    {cudaErrorNoKernelImageForDevice, CLV_UNAVAILABLE, false},
    {cudaErrorNotSupported, CLV_UNIMPLEMENTED, false},
    {cudaErrorIllegalAddress, CLV_UNAVAILABLE, true},
    {cudaErrorIllegalInstruction, CLV_UNAVAILABLE, true},
    {cudaErrorMisalignedAddress, CLV_UNAVAILABLE, true},
    {cudaErrorInvalidAddressSpace, CLV_UNAVAILABLE, true},
    {cudaErrorInvalidPc, CLV_UNAVAILABLE, true},
    {cudaErrorHardwareStackError, CLV_UNAVAILABLE, true},
    {cudaErrorLaunchFailure, CLV_UNAVAILABLE, true},
    {cudaErrorLaunchTimeout, CLV_UNAVAILABLE, true},
    {cudaErrorAssert, CLV_UNAVAILABLE, true},
    {cudaErrorECCUncorrectable, CLV_UNAVAILABLE, true},
    {cudaErrorNvlinkUncorrectable, CLV_UNAVAILABLE, true},
    {cudaErrorContained, CLV_UNAVAILABLE, true},
    {cudaErrorExternalDevice, CLV_UNAVAILABLE, true},
};

/* For each device, the error that made it unusable; cudaSuccess: the device is usable. */
static _Atomic(int) fatal_errors[NVIDIA_MAX_DEVICES];

static const error_meaning *find_error_meaning(cudaError_t answer) {
  static const error_meaning unlisted_error = {.code = CLV_INTERNAL};
  for (size_t i = 0; i < CLV_COUNT(error_meanings); i++)
    if (error_meanings[i].error == answer) return &error_meanings[i];
  return &unlisted_error;
}

clv_code clv_nvidia_fail_text_at(const char *where, const char *call, int device,
                                 const char *reason, clv_code code, clv_err *err) {
  char name[24] = "cuda";
  if (device >= 0) snprintf(name, sizeof name, "cuda:%d", device);
  return clv_fail_at(where, err, code, "%s: %s: %s", name, call, reason);
}

clv_code clv_nvidia_fail_at(const char *where, const char *call, int device, cudaError_t answer,
                            clv_err *err) {
  const error_meaning *m = find_error_meaning(answer);
  if (m->marks_device_lost && device >= 0 && device < NVIDIA_MAX_DEVICES)
    atomic_store(&fatal_errors[device], (int)answer);
  cudaGetLastError(); /* clears the error, so that the next call does not report it again */
  return clv_nvidia_fail_text_at(where, call, device, cudaGetErrorString(answer), m->code, err);
}

clv_code clv_nvidia_check_not_lost(int device, clv_err *err) {
  if (device < 0 || device >= NVIDIA_MAX_DEVICES)
    return clv_fail(err, CLV_UNAVAILABLE, "there is no device cuda:%d", device);
  int error = atomic_load(&fatal_errors[device]);
  if (error == cudaSuccess) return CLV_OK;
  return clv_fail(err, CLV_UNAVAILABLE,
                  "this process cannot use cuda:%d after an earlier error: %s: restart the process",
                  device, cudaGetErrorString((cudaError_t)error));
}
