/* SPDX-License-Identifier: Apache-2.0
 *
 * Converts errors, options and tensors of callers to the library's own types, and back.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "master/api/core/core_int.h"

_Static_assert((int)CLEAVE_PROTOCOL_VIOLATION == (int)CLV_BAD_ANSWER &&
                   (int)CLEAVE_NOT_FOUND == (int)CLV_NOT_FOUND,
               "a status is a code");
_Static_assert((int)CLEAVE_F32 == (int)CLV_F32 && (int)CLEAVE_I64 == (int)CLV_I64 &&
                   (int)CLEAVE_MAX_RANK == (int)CLV_MAX_RANK,
               "a tensor is a tensor");

cleave_status api_convert_error(cleave_error *error, const clv_err *err) {
  if (!error) return (cleave_status)err->code;
  *error = (cleave_error){.status = (cleave_status)err->code, .node = "master"};
  snprintf(error->text, sizeof error->text, "%s", err->text);
  return error->status;
}

cleave_status api_fail(cleave_error *error, clv_code code, const char *fmt, ...) {
  if (!error) return (cleave_status)code;
  va_list args;
  *error = (cleave_error){.status = (cleave_status)code, .node = "master"};
  va_start(args, fmt);
  vsnprintf(error->text, sizeof error->text, fmt, args);
  va_end(args);
  return error->status;
}

void api_set_error_node(cleave_error *error, const char *node, const char *hop) {
  if (!error) return;
  snprintf(error->node, sizeof error->node, "%s", node);
  snprintf(error->place, sizeof error->place, "%s", hop);
}

/* ---- checks of arguments --------------------------------------------------------------------- */

/* Finds the i-th name of a list with ", " between the names. Returns its length. */
static int find_name_at(const char *names, size_t i, const char **ret) {
  while (i--) names = strchr(names, ',') + 2;
  *ret = names;
  return (int)strcspn(names, ",");
}

cleave_status api_check_not_null(const void *const *arguments, size_t n, const char *names,
                                 cleave_error *error) {
  for (size_t i = 0; i < n; i++) {
    const char *name;
    if (arguments[i]) continue;
    int len = find_name_at(names, i, &name);
    return api_fail(error, CLV_INVALID, "the argument %.*s is NULL", len, name);
  }
  return CLEAVE_OK;
}

cleave_status api_copy_options_in(const void *options, size_t known_size, const char *type,
                                  void *ret, cleave_error *error) {
  size_t size = known_size;
  memset(ret, 0, known_size);
  if (!options) return CLEAVE_OK;
  memcpy(&size, options, sizeof size);
  if (size < sizeof size)
    return api_fail(error, CLV_INVALID, "%s.size is %zu: set it to sizeof(%s)", type, size, type);
  for (size_t i = known_size; i < size; i++)
    if (((const char *)options)[i])
      return api_fail(error, CLV_UNIMPLEMENTED,
                      "%s has %zu bytes and says something behind the %zu that this version (%s) "
                      "knows",
                      type, size, known_size, CLV_VERSION);
  memcpy(ret, options, CLV_MIN(size, known_size));
  return CLEAVE_OK;
}

const char *cleave_status_name(cleave_status status) { return clv_code_name((clv_code)status); }
const char *cleave_version(void) { return CLV_VERSION; }

void api_add_leak(cleave_leaks *l, const char *fmt, ...) {
  size_t at = strlen(l->text);
  va_list args;
  va_start(args, fmt);
  vsnprintf(l->text + at, sizeof l->text - at, fmt, args);
  va_end(args);
}

/* ---- copies of the program's tensors --------------------------------------------------------- */

cleave_status api_copy_shape_in(int rank, const int64_t *dims, clv_shape *ret,
                                cleave_error *error) {
  if (rank < 0 || rank > CLEAVE_MAX_RANK)
    return api_fail(error, CLV_INVALID, "a tensor of rank %d; 0 to %d are possible", rank,
                    CLEAVE_MAX_RANK);
  *ret = (clv_shape){.rank = rank};
  for (int i = 0; i < rank; i++) {
    if (dims[i] < 0)
      return api_fail(error, CLV_INVALID, "extent %d of a tensor is %lld; it must not be below 0",
                      i, (long long)dims[i]);
    ret->dim[i] = dims[i];
  }
  return CLEAVE_OK;
}

cleave_status api_copy_tensor_in(clv_pool *pool, const cleave_tensor *from, clv_tensor **ret,
                                 cleave_error *error) {
  clv_shape shape;
  if (!from) return api_fail(error, CLV_INVALID, "a tensor that is NULL");
  if (from->dtype != CLEAVE_F32 && from->dtype != CLEAVE_I64 && from->dtype != CLEAVE_BF16)
    return api_fail(error, CLV_INVALID, "dtype %d; CLEAVE_F32 and CLEAVE_I64 are possible",
                    (int)from->dtype);
  TRY_API(api_copy_shape_in(from->rank, from->shape, &shape, error));
  if (!from->data && cleave_tensor_count(from))
    return api_fail(error, CLV_INVALID, "a tensor without numbers");
  TRY(clv_pool_alloc_tensor(pool, (clv_dtype)from->dtype, &shape, ret, &err));
  if ((*ret)->bytes) memcpy((*ret)->data, from->data, (*ret)->bytes);
  return CLEAVE_OK;
}

cleave_status api_copy_tensor_out(const clv_tensor *from, cleave_tensor *ret, cleave_error *error) {
  if (!ret) return CLEAVE_OK;
  if (ret->capacity < from->bytes) {
    void *memory;
    TRY(clv_alloc_aligned(CLV_MAX(from->bytes, (size_t)1), &memory, &err));
    cleave_tensor_free(ret);
    ret->data = memory;
    ret->capacity = CLV_MAX(from->bytes, (size_t)1);
  }
  ret->dtype = (cleave_dtype)from->dtype;
  ret->rank = from->shape.rank;
  memcpy(ret->shape, from->shape.dim, sizeof ret->shape);
  if (from->bytes) memcpy(ret->data, from->data, from->bytes);
  return CLEAVE_OK;
}

size_t cleave_tensor_count(const cleave_tensor *tensor) {
  size_t n = tensor ? 1 : 0;
  for (int i = 0; tensor && i < tensor->rank; i++) n *= (size_t)tensor->shape[i];
  return n;
}

void cleave_tensor_free(cleave_tensor *tensor) {
  if (!tensor) return;
  if (tensor->capacity) free(tensor->data);
  *tensor = (cleave_tensor){0};
}

void api_state_items_free(api_state_item *items, uint32_t n) {
  for (uint32_t i = 0; items && i < n; i++) clv_tensor_unref(items[i].tensor);
  free(items);
}
