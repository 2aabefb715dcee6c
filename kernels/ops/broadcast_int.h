/* SPDX-License-Identifier: Apache-2.0
 *
 * broadcast_int: ops of two inputs whose dimensions are equal, or 1 in one of them, broadcast as in
 * NumPy. The batch is not broadcast, because ops never mix samples. The gradient of a value that
 * was broadcast is the sum of the gradients of its copies.
 */
#ifndef CLEAVE_OPS_BROADCAST_INT_H
#define CLEAVE_OPS_BROADCAST_INT_H

#include "kernels/ops/pointwise_int.h"

static inline clv_code broadcast_shape(const char *op, const clv_op_site *s, clv_shape *ret,
                                       clv_err *err) {
  const clv_shape *a = &s->in[0], *b = &s->in[1];
  char a_text[160], b_text[160];
  bool is_compatible = a->rank == b->rank;
  *ret = *a;
  for (int i = 0; is_compatible && i < a->rank; i++) {
    is_compatible = a->dim[i] == b->dim[i] || (i && (a->dim[i] == 1 || b->dim[i] == 1));
    if (a->dim[i] == 1) ret->dim[i] = b->dim[i];
  }
  if (is_compatible) return CLV_OK;
  return clv_fail(err, CLV_INVALID,
                  "%s needs two inputs of the same rank and batch size, whose other dimensions are "
                  "equal or 1; got %s and %s",
                  op, clv_shape_format(a, a_text, sizeof a_text),
                  clv_shape_format(b, b_text, sizeof b_text));
}

/* Computes the index, in each input, of the value from which value o of the output is computed. */
static inline void find_broadcast_indices(const clv_broadcast *v, size_t o, size_t ret[2]) {
  ret[0] = ret[1] = 0;
  for (int i = v->rank; i-- > 0; o /= v->n[i])
    for (int j = 0; j < 2; j++) ret[j] += o % v->n[i] * v->step[j][i];
}

static inline size_t broadcast_scratch_bytes(const clv_ref_kernel *k) {
  size_t n = 0;
  for (int i = 0; i < 2 && k->has_backward && clv_has_broadcast_input(&k->d); i++)
    n = CLV_MAX(n, clv_layout_numel(&k->d.in[i], 1));
  return n * sizeof(double);
}

/* Computes the gradient of input j. It is, for each value, the sum of dout over the copies of the
 * value, or, if other_input is not NULL, the sum of dout times the value of the other input. The
 * terms are added in the order of their indices. */
static inline void compute_broadcast_gradient(const clv_ref_kernel *k, const clv_kernel_args *a,
                                              int j, const REAL *other_input) {
  clv_broadcast v = clv_broadcast_of(&k->d);
  size_t n = clv_layout_numel(&k->d.in[j], 1), index[2];
  const REAL *dy = a->dout;
  double *sum = a->scratch;
  for (size_t i = 0; i < n; i++) sum[i] = 0;
  for (size_t o = 0; o < k->n_out; o++) {
    find_broadcast_indices(&v, o, index);
    sum[index[j]] += other_input ? (double)dy[o] * other_input[index[1 - j]] : dy[o];
  }
  for (size_t i = 0; i < n; i++) ((REAL *)a->din[j])[i] = (REAL)sum[i];
}

/* Defines a forward function that computes `expression` of x and z, a value of each input. */
#define DEFINE_BROADCAST_FORWARD(name, expression)                                           \
  static clv_code name##_forward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) { \
    const clv_ref_kernel *k = (const clv_ref_kernel *)base;                                  \
    clv_broadcast v = clv_broadcast_of(&k->d);                                               \
    const REAL *xs = a->in[0], *zs = a->in[1];                                               \
    REAL *ys = a->out;                                                                       \
    (void)err;                                                                               \
    bool has_one_shape = !clv_has_broadcast_input(&k->d);                                    \
    for (size_t o = 0; o < k->n_out; o++) {                                                  \
      size_t at[2] = {o, o};                                                                 \
      if (!has_one_shape) find_broadcast_indices(&v, o, at);                                 \
      REAL x = xs[at[0]], z = zs[at[1]];                                                     \
      ys[o] = (expression);                                                                  \
    }                                                                                        \
    return CLV_OK;                                                                           \
  }

#endif
