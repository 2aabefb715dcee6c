/* SPDX-License-Identifier: Apache-2.0
 *
 * The op table: the families, look-up by number and name, and what the shape rules share.
 */
#include "common/graph/op_int.h"

#include <string.h>

static const clv_op_family *const families[] = {
    &clv_family_dense,  &clv_family_pool, &clv_family_pointwise, &clv_family_softmax,
    &clv_family_shape,  &clv_family_norm, &clv_family_loss,      &clv_family_sequence,
    &clv_family_select, &clv_family_wait,
};

const clv_op_def *clv_op_def_of(clv_op op) {
  for (size_t f = 0; f < CLV_COUNT(families); f++)
    for (size_t i = 0; i < families[f]->n; i++)
      if (families[f]->ops[i].op == op) return &families[f]->ops[i];
  return NULL;
}

clv_code clv_op_find(const char *name, clv_op *ret, clv_err *err) {
  const char *names[CLV_OP_COUNT];
  size_t n = 0;
  for (size_t f = 0; f < CLV_COUNT(families); f++)
    for (size_t i = 0; i < families[f]->n; i++) {
      const clv_op_def *def = &families[f]->ops[i];
      if (strcmp(def->name, name) == 0) {
        *ret = def->op;
        return CLV_OK;
      }
      names[n++] = def->name;
    }
  const char *near = clv_did_you_mean(name, names, n);
  if (near)
    return clv_fail(err, CLV_NOT_FOUND, "no op is called '%.64s'; did you mean '%s'?", name, near);
  return clv_fail(err, CLV_NOT_FOUND, "no op is called '%.64s'", name);
}

const char *clv_op_name(clv_op op) {
  const clv_op_def *def = clv_op_def_of(op);
  return def ? def->name : op == CLV_OP_INPUT ? "input" : "?";
}

const char *clv_op_doc(clv_op op) {
  const clv_op_def *def = clv_op_def_of(op);
  return def ? def->doc : "";
}

bool clv_op_is_loss(clv_op op) {
  const clv_op_def *def = clv_op_def_of(op);
  return def && def->loss;
}

int clv_op_n_inputs(clv_op op) {
  const clv_op_def *def = clv_op_def_of(op);
  return def ? def->n_in : 0;
}

clv_code clv_need_rank(const char *op, const clv_shape *in, int rank, const char *layout,
                       const char *hint, clv_err *err) {
  char text[160];
  if (in->rank == rank) return CLV_OK;
  return clv_fail(err, CLV_INVALID, "%s needs rank %d %s, got %s%s", op, rank, layout,
                  clv_shape_format(in, text, sizeof text), hint);
}

clv_code clv_same_shape(const clv_op_site *site, clv_shape *ret, clv_err *err) {
  (void)err;
  *ret = site->in[0];
  return CLV_OK;
}

clv_code clv_window_extents(const char *op, const clv_op_site *site, int64_t ret[2], clv_err *err) {
  const clv_attrs *a = site->attrs;
  char text[160];
  int64_t out[2];
  for (int i = 0; i < 2; i++) {
    /* Extents, kernel, stride and pad are at most 2^31 - 1 each: no overflow in 64 bits. */
    int64_t padded = site->in[0].dim[2 + i] + 2 * a->pad[i];
    if (padded < a->kernel[i])
      return clv_fail(err, CLV_INVALID,
                      "%s: kernel %lld x %lld does not fit the input %s with pad %lld x %lld", op,
                      (long long)a->kernel[0], (long long)a->kernel[1],
                      clv_shape_format(&site->in[0], text, sizeof text), (long long)a->pad[0],
                      (long long)a->pad[1]);
    out[i] = (padded - a->kernel[i]) / a->stride[i] + 1;
  }
  memcpy(ret, out, sizeof out);
  return CLV_OK;
}

clv_code clv_check_value(const char *what, const clv_shape *shape, clv_dtype dtype, clv_err *err) {
  char text[160];
  if (shape->rank < 0 || shape->rank > CLV_MAX_RANK)
    return clv_fail(err, CLV_INVALID, "%s has rank %d, outside 0..%d", what, shape->rank,
                    (int)CLV_MAX_RANK);
  for (int i = 0; i < shape->rank; i++)
    if (shape->dim[i] < 1 || shape->dim[i] > CLV_EXTENT_MAX)
      return clv_fail(err, CLV_INVALID, "%s %s has an extent outside 1..%d", what,
                      clv_shape_format(shape, text, sizeof text), (int)CLV_EXTENT_MAX);
  size_t bytes;
  if (clv_shape_bytes(shape, dtype, &bytes, err) != CLV_OK || bytes > CLV_VALUE_BYTES_MAX)
    return clv_fail(err, CLV_EXHAUSTED, "%s %s of %s is larger than the limit of 1 TiB", what,
                    clv_shape_format(shape, text, sizeof text), clv_dtype_name(dtype));
  return CLV_OK;
}
