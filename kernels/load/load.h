/* SPDX-License-Identifier: Apache-2.0
 *
 * load: finds and opens the backend for GPUs at run time. No program is linked with that library,
 * so the same programs start on hosts without a device, its driver or NVIDIA's libraries.
 *
 * Threads: clv_cuda_load and the functions of the library it returns may be called from any thread.
 * A backend opened from the library is used by one thread at a time.
 */
#ifndef CLEAVE_KERNELS_LOAD_H
#define CLEAVE_KERNELS_LOAD_H

#include "kernels/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- exports of libcleave_cuda.so ------------------------------------------------------------ */

/* CLV_CUDA_INTERFACE: version of clv_cuda_library and of the types in this file. CLV_CUDA_ABI: this
 * version and that of kernels.h in one number. */
enum { CLV_CUDA_INTERFACE = 3, CLV_CUDA_ABI = CLV_KERNELS_ABI * 1000 + CLV_CUDA_INTERFACE };

typedef struct clv_device_info {
  char name[64];       /* "NVIDIA H200" */
  char libraries[128]; /* "driver 13.0, cuBLASLt 13.1.0, cuDNN 9.19.0" */
  int capability;      /* 90: compute capability 9.0 */
  size_t memory_bytes;
} clv_device_info;

/* Store of convolution plans that outlive a process. The key of a plan is a text that describes the
 * convolution and the device. Both functions may be called from any thread. */
typedef struct clv_plan_store {
  /* Appends the plan's text to *ret; false: the store has no plan with this key. */
  bool (*find)(const char *plan_key, clv_bytes *ret);
  /* Stores the plan's text, which has n bytes. */
  void (*store)(const char *plan_key, const char *text, size_t n);
} clv_plan_store;

typedef struct clv_cuda_library {
  uint32_t abi, size; /* CLV_CUDA_ABI, sizeof(clv_cuda_library) */
  /* Sets the folders, separated by colons, that are searched for NVIDIA's libraries before the
   * loader searches; NULL: none. Call it before any other function. */
  void (*set_folders)(const char *folders);
  /* Sets the store that keeps plans for the next process; NULL: none. */
  void (*set_plan_store)(const clv_plan_store *store);
  /* Writes the number of devices. CLV_UNAVAILABLE: the text says why there is no device, or what is
   * missing. Without a driver or device no other library is opened, because cuBLASLt alone is half
   * a GiB, of which a process that computes on its processor would keep a fifth in memory. */
  clv_code (*count)(int *ret, clv_err *err);
  /* Opens the libraries that compute on devices, also on a host without a device. CLV_UNAVAILABLE:
   * the text names what is missing. */
  clv_code (*libraries)(clv_err *err);
  /* Describes device number `device`, counted from 0. */
  clv_code (*describe)(int device, clv_device_info *ret, clv_err *err);
  /* Opens the backend of a device; free it with close. */
  clv_code (*open)(int device, clv_backend **ret, clv_err *err);
  void (*close)(clv_backend *b); /* takes NULL */
} clv_cuda_library;

/* The library's one exported function. Returns NULL if `abi` is not the library's own version. */
#define CLV_CUDA_ENTRY "clv_cuda_entry"
typedef const clv_cuda_library *clv_cuda_entry_fn(uint32_t abi);

/* ---- finding and opening the library --------------------------------------------------------- */

typedef struct clv_cuda_options {
  /* path of the library; NULL or "": the folder of the program is searched, then ../lib/cleave */
  const char *file;
  /* folders of NVIDIA's libraries, separated by colons; NULL or "": the system's */
  const char *folders;
  /* folder in which plans of convolutions are stored for later processes, created if necessary;
   * NULL: plans are not stored */
  const char *plans;
  /* on a host without a device, the error lists all reasons, not only the first */
  bool all_reasons;
  /* receives notices about plans; must remain valid until the process ends */
  clv_notifier notifier;
} clv_cuda_options;

/* Loads the library, once in a process, and fails unless there is a device. Only the options of the
 * first successful call are used. CLV_UNAVAILABLE: the text names the file, the other version, the
 * missing library, the driver or the device. */
clv_code clv_cuda_load(const clv_cuda_options *o, const clv_cuda_library **ret,
                       clv_err *err) CLV_USE_RESULT;

/* ---- plans of convolutions on disk (plans.c) ------------------------------------------------- */

/* Returns a store that keeps plans as files in the folder `path`, at most a few thousand. Returns
 * NULL if the folder cannot be used. `notifier` receives the reason, and a notice of each plan that
 * cannot be read or written. */
const clv_plan_store *clv_plan_store_in_folder(const char *path, clv_notifier notifier);

/* Checks `data`, the n bytes of a plan's file; key_digest: digest of the plan's key. *ret: the
 * plan's text, *ret_n bytes inside `data`. CLV_INVALID: the file is damaged, or of another plan or
 * version. */
clv_code clv_plan_parse(const char *data, size_t n, const clv_sha256 *key_digest, const char **ret,
                        size_t *ret_n, clv_err *err) CLV_USE_RESULT;

#ifdef __cplusplus
}
#endif
#endif
