/* SPDX-License-Identifier: Apache-2.0
 *
 * tensor: data types, shapes and reference-counted row-major tensors in host memory.
 *
 * A tensor holds a reference to a storage. Several tensors may view one storage, as the parameters
 * of a module view its parameter block. Reference counts are atomic. No lock guards the elements: a
 * thread that writes them must be their only user.
 */
#ifndef CLEAVE_TENSOR_H
#define CLEAVE_TENSOR_H

#include "common/base/base.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum clv_dtype {
  CLV_F32 = 1,
  CLV_F64 = 2,
  CLV_I64 = 3,
  CLV_I32 = 4,
  CLV_U8 = 5,
  CLV_F16 = 6,
  CLV_BF16 = 7,
} clv_dtype;

size_t clv_dtype_size(clv_dtype dtype);      /* bytes per element; 0 for an unknown value */
const char *clv_dtype_name(clv_dtype dtype); /* name such as "f32"; "?" for an unknown value */
bool clv_dtype_parse(const char *name, clv_dtype *ret);

/* Convert between bf16, the upper half of an f32, and f32. clv_bf16_of rounds to nearest even; NaN
 * stays NaN. */
float clv_bf16_value(uint16_t bits);
uint16_t clv_bf16_of(float value);
/* Convert n values, and add n values to those of `to`; each sum is rounded to nearest even. */
void clv_bf16_widen(float *to, const uint16_t *from, size_t n);
void clv_bf16_narrow(uint16_t *to, const float *from, size_t n);
void clv_bf16_add(uint16_t *to, const uint16_t *from, size_t n);

enum { CLV_MAX_RANK = 8 };

/* Row-major extents. rank 0 is a scalar (one element). */
typedef struct clv_shape {
  int rank;
  int64_t dim[CLV_MAX_RANK];
} clv_shape;

#define CLV_SHAPE(...) \
  ((clv_shape){(int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), {__VA_ARGS__}})

bool clv_shape_equal(const clv_shape *a, const clv_shape *b);

/* Returns the number of elements. CLV_INVALID: the rank or an extent is out of range;
 * CLV_EXHAUSTED: the product overflows size_t. */
clv_code clv_shape_numel(const clv_shape *shape, size_t *ret_n, clv_err *err) CLV_USE_RESULT;
clv_code clv_shape_bytes(const clv_shape *shape, clv_dtype dtype, size_t *ret_bytes,
                         clv_err *err) CLV_USE_RESULT;

/* Writes "[64, 1, 28, 28]" to buf; returns buf. 160 bytes hold any shape. */
char *clv_shape_format(const clv_shape *shape, char *buf, size_t len);

struct clv_backend; /* functions and memory of a device; defined in the folder kernels */

/* Reference-counted memory. The last reference calls release(owner). */
typedef struct clv_storage clv_storage;

typedef struct clv_tensor {
  clv_dtype dtype;
  clv_shape shape;
  size_t n;     /* number of elements */
  size_t bytes; /* n * size of an element */
  void *data;   /* row-major, 64-byte aligned when made by clv_tensor_new */
  /* device backend that owns `data`, which the host cannot access; NULL: host memory */
  const struct clv_backend *device;
  /* storage that owns `data`; only tensor.c uses it */
  clv_storage *storage;
  int refs;
} clv_tensor;

/* Makes a tensor with its own, uninitialised memory. */
clv_code clv_tensor_new(clv_dtype dtype, const clv_shape *shape, clv_tensor **ret,
                        clv_err *err) CLV_USE_RESULT;

/* Makes a tensor over the caller's memory. Calls release(owner) once, with the last reference.
 * release NULL: the memory outlives all users. */
clv_code clv_tensor_wrap(clv_dtype dtype, const clv_shape *shape, void *data,
                         void (*release)(void *owner), void *owner, clv_tensor **ret,
                         clv_err *err) CLV_USE_RESULT;

/* Makes a tensor over bytes [offset, offset + size of shape) of `base`; shares its storage. */
clv_code clv_tensor_view(clv_tensor *base, size_t offset_bytes, clv_dtype dtype,
                         const clv_shape *shape, clv_tensor **ret, clv_err *err) CLV_USE_RESULT;

clv_tensor *clv_tensor_ref(clv_tensor *t);
clv_tensor *clv_tensor_unref(clv_tensor *t); /* drops a reference; NULL is allowed; returns NULL */
void clv_tensor_unrefp(clv_tensor **t);      /* clv_tensor_unref for CLV_AUTO */

#ifdef __cplusplus
}
#endif
#endif
