/* SPDX-License-Identifier: Apache-2.0
 *
 * Tensors: shapes, storages and reference counts.
 */
#include "common/base/tensor/tensor.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct clv_storage {
  _Atomic int refs;
  size_t bytes;
  void *data;
  void (*release)(void *owner);
  void *owner;
};

static const struct {
  const char *name;
  size_t size;
} dtypes[] = {
    [CLV_F32] = {"f32", 4},   [CLV_F64] = {"f64", 8}, [CLV_I64] = {"i64", 8},
    [CLV_I32] = {"i32", 4},   [CLV_U8] = {"u8", 1},   [CLV_F16] = {"f16", 2},
    [CLV_BF16] = {"bf16", 2},
};

float clv_bf16_value(uint16_t bits) {
  uint32_t f32_bits = (uint32_t)bits << 16;
  float value;
  memcpy(&value, &f32_bits, sizeof value);
  return value;
}

uint16_t clv_bf16_of(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  if ((bits & 0x7fffffff) > 0x7f800000) return (uint16_t)(bits >> 16 | 0x40);
  return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

void clv_bf16_widen(float *to, const uint16_t *from, size_t n) {
  for (size_t i = 0; i < n; i++) to[i] = clv_bf16_value(from[i]);
}

void clv_bf16_narrow(uint16_t *to, const float *from, size_t n) {
  for (size_t i = 0; i < n; i++) to[i] = clv_bf16_of(from[i]);
}

void clv_bf16_add(uint16_t *to, const uint16_t *from, size_t n) {
  for (size_t i = 0; i < n; i++)
    to[i] = clv_bf16_of(clv_bf16_value(to[i]) + clv_bf16_value(from[i]));
}

size_t clv_dtype_size(clv_dtype dtype) {
  return (unsigned)dtype < CLV_COUNT(dtypes) ? dtypes[dtype].size : 0;
}

const char *clv_dtype_name(clv_dtype dtype) {
  return clv_dtype_size(dtype) ? dtypes[dtype].name : "?";
}

bool clv_dtype_parse(const char *name, clv_dtype *ret) {
  for (size_t i = 1; i < CLV_COUNT(dtypes); i++)
    if (strcmp(name, dtypes[i].name) == 0) {
      *ret = (clv_dtype)i;
      return true;
    }
  return false;
}

bool clv_shape_equal(const clv_shape *a, const clv_shape *b) {
  if (a->rank != b->rank) return false;
  for (int i = 0; i < a->rank; i++)
    if (a->dim[i] != b->dim[i]) return false;
  return true;
}

clv_code clv_shape_numel(const clv_shape *shape, size_t *ret_n, clv_err *err) {
  size_t n = 1;
  if (shape->rank < 0 || shape->rank > CLV_MAX_RANK)
    return clv_fail(err, CLV_INVALID, "rank %d is outside 0..%d", shape->rank, CLV_MAX_RANK);
  for (int i = 0; i < shape->rank; i++) {
    if (shape->dim[i] < 0)
      return clv_fail(err, CLV_INVALID, "extent %lld of dimension %d is negative",
                      (long long)shape->dim[i], i);
    if (!clv_mul_size(n, (size_t)shape->dim[i], &n))
      return clv_fail(err, CLV_EXHAUSTED, "the number of elements overflows");
  }
  *ret_n = n;
  return CLV_OK;
}

clv_code clv_shape_bytes(const clv_shape *shape, clv_dtype dtype, size_t *ret_bytes, clv_err *err) {
  size_t n, bytes;
  CLV_TRY(clv_shape_numel(shape, &n, err));
  if (!clv_dtype_size(dtype)) return clv_fail(err, CLV_INVALID, "unknown dtype %d", (int)dtype);
  if (!clv_mul_size(n, clv_dtype_size(dtype), &bytes) || bytes > SIZE_MAX / 2)
    return clv_fail(err, CLV_EXHAUSTED, "%zu elements of %s overflow", n, clv_dtype_name(dtype));
  *ret_bytes = bytes;
  return CLV_OK;
}

char *clv_shape_format(const clv_shape *shape, char *buf, size_t len) {
  size_t used = (size_t)snprintf(buf, len, "[");
  for (int i = 0; i < shape->rank && used < len; i++)
    used +=
        (size_t)snprintf(buf + used, len - used, "%s%lld", i ? ", " : "", (long long)shape->dim[i]);
  if (used < len) snprintf(buf + used, len - used, "]");
  return buf;
}

static clv_storage *storage_ref(clv_storage *s) {
  atomic_fetch_add_explicit(&s->refs, 1, memory_order_relaxed);
  return s;
}

static void storage_unref(clv_storage *s) {
  if (!s || atomic_fetch_sub_explicit(&s->refs, 1, memory_order_acq_rel) != 1) return;
  if (s->release) s->release(s->owner);
  free(s);
}

static clv_code make_view_of_storage(clv_storage *s, void *data, clv_dtype dtype,
                                     const clv_shape *shape, size_t bytes, clv_tensor **ret,
                                     clv_err *err) {
  clv_tensor *t;
  CLV_TRY(clv_alloc(1, sizeof *t, &t, err));
  *t = (clv_tensor){.dtype = dtype,
                    .shape = *shape,
                    .n = bytes / clv_dtype_size(dtype),
                    .bytes = bytes,
                    .data = data,
                    .storage = s,
                    .refs = 1};
  *ret = t;
  return CLV_OK;
}

clv_code clv_tensor_wrap(clv_dtype dtype, const clv_shape *shape, void *data,
                         void (*release)(void *owner), void *owner, clv_tensor **ret,
                         clv_err *err) {
  size_t bytes;
  CLV_TRY(clv_shape_bytes(shape, dtype, &bytes, err));
  clv_storage *s;
  CLV_TRY(clv_alloc(1, sizeof *s, &s, err));
  *s = (clv_storage){.refs = 1, .bytes = bytes, .data = data, .release = release, .owner = owner};
  clv_code code = make_view_of_storage(s, data, dtype, shape, bytes, ret, err);
  /* free, not storage_unref, because after a failure the memory stays the caller's */
  if (code != CLV_OK) free(s);
  return code;
}

clv_code clv_tensor_new(clv_dtype dtype, const clv_shape *shape, clv_tensor **ret, clv_err *err) {
  size_t bytes;
  CLV_AUTO(clv_freep) void *data = NULL;
  CLV_TRY(clv_shape_bytes(shape, dtype, &bytes, err));
  CLV_TRY(clv_alloc_aligned(bytes, &data, err));
  CLV_TRY(clv_tensor_wrap(dtype, shape, data, free, data, ret, err));
  data = NULL;
  return CLV_OK;
}

clv_code clv_tensor_view(clv_tensor *base, size_t offset_bytes, clv_dtype dtype,
                         const clv_shape *shape, clv_tensor **ret, clv_err *err) {
  size_t bytes, end;
  CLV_TRY(clv_shape_bytes(shape, dtype, &bytes, err));
  size_t start = (size_t)((char *)base->data - (char *)base->storage->data);
  if (!clv_add_size(start, offset_bytes, &start) || !clv_add_size(start, bytes, &end) ||
      end > base->storage->bytes)
    return clv_fail(err, CLV_RANGE,
                    "a view of %zu bytes at offset %zu exceeds its storage of %zu bytes", bytes,
                    start, base->storage->bytes);
  CLV_TRY(make_view_of_storage(base->storage, (char *)base->storage->data + start, dtype, shape,
                               bytes, ret, err));
  storage_ref(base->storage);
  return CLV_OK;
}

clv_tensor *clv_tensor_ref(clv_tensor *t) {
  __atomic_fetch_add(&t->refs, 1, __ATOMIC_RELAXED);
  return t;
}

clv_tensor *clv_tensor_unref(clv_tensor *t) {
  if (t && __atomic_fetch_sub(&t->refs, 1, __ATOMIC_ACQ_REL) == 1) {
    storage_unref(t->storage);
    free(t);
  }
  return NULL;
}

void clv_tensor_unrefp(clv_tensor **t) { *t = clv_tensor_unref(*t); }
