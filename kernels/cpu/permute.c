/* SPDX-License-Identifier: Apache-2.0
 *
 * permute: copies runs of values if the last dimension stays last, else transposes tiles that fit
 * into the cache. Dimensions that are neighbours in the same order in input and output are merged.
 */
#include <string.h>

#include "kernels/cpu/cpu_int.h"

/* Dimensions of the written tensor, in row-major order. Dimension i has n[i] values, which are
 * src_stride[i] values apart in the source and dst_stride[i] values apart in the destination.
 * dst_stride[rank - 1] is 1. */
typedef struct strided_copy {
  int rank;
  size_t n[CLV_MAX_RANK], src_stride[CLV_MAX_RANK], dst_stride[CLV_MAX_RANK];
  int adjacent_dim; /* index of the dimension whose values are adjacent in the source */
} strided_copy;

typedef struct permute_kernel {
  cpu_kernel k;
  strided_copy forward, backward;
} permute_kernel;

enum { MAX_TILE_SIDE = 64 }; /* largest number of rows and of columns of a tile */

/* ---- strides of source and destination ------------------------------------------------------- */

/* Appends a dimension of n values, or merges it with the last one if both strides allow. */
static void add_dimension(strided_copy *w, size_t n, size_t src_stride, size_t dst_stride) {
  int last_dim = w->rank - 1;
  if (n == 1) return;
  if (last_dim >= 0 && w->src_stride[last_dim] == n * src_stride &&
      w->dst_stride[last_dim] == n * dst_stride) {
    w->n[last_dim] *= n;
    w->src_stride[last_dim] = src_stride;
    w->dst_stride[last_dim] = dst_stride;
    return;
  }
  w->n[w->rank] = n;
  w->src_stride[w->rank] = src_stride;
  w->dst_stride[w->rank] = dst_stride;
  w->rank++;
}

/* Describes the copy that writes a tensor of dst_shape. Neighbours along its dimension i are
 * src_strides[i] values apart in the source. */
static strided_copy make_strided_copy(const clv_shape *dst_shape, const size_t *src_strides) {
  strided_copy w = {0};
  size_t step = clv_layout_numel(dst_shape, 1);
  if (!step) return (strided_copy){.rank = 1, .src_stride = {1}, .dst_stride = {1}};
  for (int i = 0; i < dst_shape->rank; i++)
    add_dimension(&w, (size_t)dst_shape->dim[i], src_strides[i], step /= (size_t)dst_shape->dim[i]);
  if (!w.rank) return (strided_copy){.rank = 1, .n = {1}, .src_stride = {1}, .dst_stride = {1}};
  for (int i = 0; i < w.rank; i++)
    if (w.src_stride[i] == 1) w.adjacent_dim = i;
  return w;
}

/* Computes the strides in the output, in values, of the input's dimensions. */
static void compute_backward_strides(const clv_node_desc *d, size_t ret[CLV_MAX_RANK]) {
  size_t step = 1;
  for (int i = d->out.rank; i-- > 0; step *= (size_t)d->out.dim[i])
    ret[i ? d->attrs.order.dim[i - 1] : 0] = step;
}

/* ---- copying the values ---------------------------------------------------------------------- */

typedef struct permute_job {
  const strided_copy *w;
  const float *src;
  float *dst;
  int covered_dim; /* dimension that one work item covers besides the last; -1: none */
  /* number of tiles of the last dimension if another dimension is adjacent in the source, else 1 */
  size_t n_row_tiles;
} permute_job;

/* Computes where work item number `at` begins in src and dst. An item covers the last dimension and
 * covered_dim; `at` is the row-major index over the other dimensions. */
static void find_addresses(const permute_job *j, size_t at, const float **ret_src,
                           float **ret_dst) {
  const strided_copy *w = j->w;
  *ret_src = j->src;
  *ret_dst = j->dst;
  for (int i = w->rank - 1; i-- > 0;) {
    if (i == j->covered_dim) continue;
    *ret_src += at % w->n[i] * w->src_stride[i];
    *ret_dst += at % w->n[i] * w->dst_stride[i];
    at /= w->n[i];
  }
}

static void copy_runs(void *arg, size_t begin, size_t end) {
  const permute_job *j = arg;
  const strided_copy *w = j->w;
  int last_dim = w->rank - 1, covered = j->covered_dim;
  for (size_t item = begin; item < end; item++) {
    const float *src;
    float *dst;
    find_addresses(j, item, &src, &dst);
    for (size_t i = 0; i < (covered < 0 ? 1 : w->n[covered]); i++)
      memcpy(dst + (covered < 0 ? 0 : i * w->dst_stride[covered]),
             src + (covered < 0 ? 0 : i * w->src_stride[covered]), w->n[last_dim] * sizeof *dst);
  }
}

static void transpose_tiles(void *arg, size_t begin, size_t end) {
  const permute_job *j = arg;
  const strided_copy *w = j->w;
  int last_dim = w->rank - 1;
  for (size_t item = begin; item < end; item++) {
    const float *src;
    float *dst;
    size_t row = item % j->n_row_tiles * MAX_TILE_SIDE,
           rows = CLV_MIN(MAX_TILE_SIDE, w->n[last_dim] - row);
    find_addresses(j, item / j->n_row_tiles, &src, &dst);
    for (size_t c = 0; c < w->n[j->covered_dim]; c += MAX_TILE_SIDE)
      clv_cpu_transpose(src + row * w->src_stride[last_dim] + c, rows,
                        CLV_MIN(MAX_TILE_SIDE, w->n[j->covered_dim] - c), w->src_stride[last_dim],
                        dst + c * w->dst_stride[j->covered_dim] + row,
                        w->dst_stride[j->covered_dim]);
  }
}

static void run_strided_copy(const permute_kernel *k, const strided_copy *w, const float *src,
                             float *dst) {
  int last_dim = w->rank - 1;
  bool must_transpose = w->adjacent_dim != last_dim;
  permute_job j = {w, src, dst, must_transpose ? w->adjacent_dim : last_dim - 1, 1};
  size_t n_items = 1;
  if (must_transpose) j.n_row_tiles = (w->n[last_dim] + MAX_TILE_SIDE - 1) / MAX_TILE_SIDE;
  for (int i = 0; i < last_dim; i++) n_items *= i == j.covered_dim ? 1 : w->n[i];
  clv_cpu_parallel(clv_cpu_useful_threads(k->k.threads, k->k.n_in), n_items * j.n_row_tiles,
                   must_transpose ? transpose_tiles : copy_runs, &j);
}

static clv_code permute_forward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const permute_kernel *k = (const permute_kernel *)base;
  (void)err;
  run_strided_copy(k, &k->forward, a->in[0], a->out);
  return CLV_OK;
}

static clv_code permute_backward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const permute_kernel *k = (const permute_kernel *)base;
  (void)err;
  run_strided_copy(k, &k->backward, a->dout, a->din[0]);
  return CLV_OK;
}

static clv_code permute_prepare(const clv_node_desc *d, clv_kernel **ret, clv_err *err) {
  permute_kernel *k;
  size_t output_strides[CLV_MAX_RANK], input_strides[CLV_MAX_RANK];
  CLV_TRY(clv_cpu_kernel_new(d, sizeof *k, 1, 1, &k, err));
  clv_permuted_strides(&d->in[0], &d->attrs.order, output_strides);
  compute_backward_strides(d, input_strides);
  k->forward = make_strided_copy(&d->out, output_strides);
  k->backward = make_strided_copy(&d->in[0], input_strides);
  k->k.base.forward = permute_forward;
  k->k.base.backward_input = d->need_dx[0] ? permute_backward : NULL;
  k->k.base.impl = "copy";
  *ret = &k->k.base;
  return CLV_OK;
}

CLV_CPU_OP(permute, permute_prepare)
