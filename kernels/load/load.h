/* SPDX-License-Identifier: Apache-2.0
 *
 * load: the backend of a GPU, found and opened at run time. No program is linked with it, so the
 * same programs start on hosts that have neither a device nor a driver nor its libraries.
 *
 * Threads: clv_cuda_load may be called from any thread; the library that it returns too. A backend
 * opened from it is used by one thread at a time.
 */
#ifndef CLEAVE_KERNELS_LOAD_H
#define CLEAVE_KERNELS_LOAD_H

#include "kernels/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- what libcleave_cuda.so exports ---------------------------------------------------------- */

/* Of the struct below, and of what passes through it: kernels.h has a number of its own. */
enum { CLV_CUDA_INTERFACE = 3, CLV_CUDA_ABI = CLV_KERNELS_ABI * 1000 + CLV_CUDA_INTERFACE };

typedef struct clv_device_info {
  char name[64];       /* "NVIDIA H200" */
  char libraries[128]; /* "driver 13.0, cuBLASLt 13.1.0, cuDNN 9.19.0" */
  int capability;      /* 90: compute capability 9.0 */
  size_t memory_bytes;
} clv_device_info;

/* Plans of convolutions that outlive a process, by a text that says what each is for. Both may be
 * called from any thread. */
typedef struct clv_plan_store {
  bool (*find)(const char *what, clv_bytes *ret); /* false: there is none */
  void (*keep)(const char *what, const char *text, size_t n);
} clv_plan_store;

typedef struct clv_cuda_library {
  uint32_t abi, size; /* CLV_CUDA_ABI, sizeof(clv_cuda_library) */
  /* Folders between colons where NVIDIA's libraries are looked for before the loader's own; NULL:
   * none. Before anything else. */
  void (*look_in)(const char *folders);
  /* Where plans are kept for the next process; NULL: nowhere. */
  void (*keep_plans)(const clv_plan_store *store);
  /* CLV_UNAVAILABLE: why there is no device, or what it could not do without. Where the driver is
   * missing or sees none, no other library is opened: cuBLASLt alone is half a GiB, of which a
   * process that computes on its processor would keep a fifth. */
  clv_code (*count)(int *ret, clv_err *err);
  /* Whether what devices compute with is there, be there a device or not. CLV_UNAVAILABLE: what is
   * missing. Opens it. */
  clv_code (*libraries)(clv_err *err);
  clv_code (*describe)(int device, clv_device_info *ret, clv_err *err);
  clv_code (*open)(int device, clv_backend **ret, clv_err *err);
  void (*close)(clv_backend *b); /* takes NULL */
} clv_cuda_library;

/* Its one symbol. NULL where `abi` is not its own. */
#define CLV_CUDA_ENTRY "clv_cuda_entry"
typedef const clv_cuda_library *clv_cuda_entry_fn(uint32_t abi);

/* ---- the loader ------------------------------------------------------------------------------ */

typedef struct clv_cuda_options {
  const char *file;    /* of the library; NULL or "": beside the program, then in ../lib/cleave */
  const char *folders; /* between colons: where NVIDIA's libraries are; NULL or "": the system's */
  const char *plans;   /* folder where plans are kept, made if need be; NULL: nowhere */
  bool all_reasons;    /* without a device, look for all that is missing, not for the first */
  clv_notifier notifier; /* of those plans; lives as long as the process */
} clv_cuda_options;

/* The library with at least one device, for as long as the process lives. The first call decides
 * where it is looked for. CLV_UNAVAILABLE: why there is no device, in words that name the file,
 * the other version, the missing library, the driver or the device. */
clv_code clv_cuda_load(const clv_cuda_options *o, const clv_cuda_library **ret,
                       clv_err *err) CLV_USE_RESULT;

/* ---- plans on disk (plans.c) ----------------------------------------------------------------- */

/* Plans in files of that folder, at most a few thousand. NULL, or a plan that is not
 * taken or kept: why not is told. */
const clv_plan_store *clv_plan_files(const char *path, clv_notifier notifier);

/* The text of a file, n bytes, which must be of the plan with this digest. *ret lies in data. */
clv_code clv_plan_parse(const char *data, size_t n, const clv_sha256 *of, const char **ret,
                        size_t *ret_n, clv_err *err) CLV_USE_RESULT;

#ifdef __cplusplus
}
#endif
#endif
