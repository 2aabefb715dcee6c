/* SPDX-License-Identifier: Apache-2.0
 *
 * a [N, ..., m, k], b [N, ..., k, n], y [N, ..., m, n]; da = dy b^T, db = a^T dy.
 */
#include "kernels/ops/op_int.h"

static clv_code matmul_shape(const clv_op_site *s, clv_shape *ret, clv_err *err) {
  const clv_shape *a = &s->in[0], *b = &s->in[1];
  char a_text[160], b_text[160];
  bool shapes_match =
      a->rank >= 3 && b->rank == a->rank && a->dim[a->rank - 1] == b->dim[a->rank - 2];
  for (int i = 0; shapes_match && i < a->rank - 2; i++) shapes_match = a->dim[i] == b->dim[i];
  if (!shapes_match)
    return clv_fail(err, CLV_INVALID,
                    "matmul needs [N, ..., m, k] and [N, ..., k, n], equal but for m and n, got %s "
                    "and %s",
                    clv_shape_format(a, a_text, sizeof a_text),
                    clv_shape_format(b, b_text, sizeof b_text));
  *ret = *a;
  ret->dim[a->rank - 1] = b->dim[a->rank - 1];
  return CLV_OK;
}

/* A product y(i, j) = sum_l x(i, l) z(l, j) with n_terms values of l. A stride is the distance
 * between adjacent rows or columns, in values. */
typedef struct matrix_product {
  int64_t n_rows, n_columns, n_terms;
  const REAL *x;
  int64_t x_row_stride, x_column_stride;
  const REAL *z;
  int64_t z_row_stride, z_column_stride;
  REAL *y;
} matrix_product;

static void compute_product(const matrix_product *p) {
  for (int64_t i = 0; i < p->n_rows; i++)
    for (int64_t j = 0; j < p->n_columns; j++) {
      double sum = 0;
      for (int64_t l = 0; l < p->n_terms; l++)
        sum += (double)p->x[i * p->x_row_stride + l * p->x_column_stride] *
               p->z[l * p->z_row_stride + j * p->z_column_stride];
      p->y[i * p->n_columns + j] = (REAL)sum;
    }
}

static clv_code matmul_forward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  clv_matmul s = clv_matmul_of(&((const clv_ref_kernel *)base)->d);
  (void)err;
  for (int64_t b = 0; b < s.batch; b++)
    compute_product(&(matrix_product){s.m, s.n, s.k, (const REAL *)a->in[0] + b * s.m * s.k, s.k, 1,
                                      (const REAL *)a->in[1] + b * s.k * s.n, s.n, 1,
                                      (REAL *)a->out + b * s.m * s.n});
  return CLV_OK;
}

static clv_code matmul_backward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  clv_matmul s = clv_matmul_of(&((const clv_ref_kernel *)base)->d);
  (void)err;
  for (int64_t b = 0; b < s.batch; b++) {
    const REAL *dy = (const REAL *)a->dout + b * s.m * s.n;
    if (a->din[0])
      compute_product(&(matrix_product){s.m, s.k, s.n, dy, s.n, 1,
                                        (const REAL *)a->in[1] + b * s.k * s.n, 1, s.n,
                                        (REAL *)a->din[0] + b * s.m * s.k});
    if (a->din[1])
      compute_product(&(matrix_product){s.k, s.n, s.m, (const REAL *)a->in[0] + b * s.m * s.k, 1,
                                        s.k, dy, s.n, 1, (REAL *)a->din[1] + b * s.k * s.n});
  }
  return CLV_OK;
}

CLV_OP_ROW(matmul) = {
    .name = "matmul",
    .doc =
        "y = a b: a [N, ..., m, k], b [N, ..., k, n], y [N, ..., m, n], no broadcasting "
        "(torch.matmul)",
    .torch_module = "",
    .no_torch_module = "torch.matmul is a function",
    .n_in = 2,
    .shape = matmul_shape,
    .forward = matmul_forward,
    .backward_input = matmul_backward,
    .saved_for_dx = SAVE_BOTH_INPUTS,
};
