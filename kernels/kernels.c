/* SPDX-License-Identifier: Apache-2.0
 *
 * Geometry of ops (windows, heads, axes, broadcasts, row numbers), and the functions
 * clv_backend_... that work on a backend's memory, or on host memory if the backend has none of its
 * own.
 */
#include "kernels/kernels.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

size_t clv_layout_numel(const clv_shape *shape, int layout) {
  int block = clv_layout_block(layout);
  size_t n = 1;
  for (int i = 0; i < shape->rank; i++) {
    size_t extent = (size_t)shape->dim[i];
    if (i == 1 && shape->rank == 4 && block > 1) {
      size_t width = (size_t)block;
      extent = (extent + width - 1) / width * width;
    }
    n *= extent;
  }
  return n;
}

int clv_axis_index(const clv_attrs *attrs, const clv_shape *in) {
  int64_t axis = attrs->dim < 0 ? attrs->dim + in->rank : attrs->dim;
  return axis >= 0 && axis < in->rank ? (int)axis : -1;
}

clv_axis clv_axis_extents(const clv_attrs *attrs, const clv_shape *shape) {
  clv_axis s = {1, 1, 1};
  int axis = clv_axis_index(attrs, shape);
  for (int i = 0; i < shape->rank; i++) {
    size_t *extent_product = i < axis ? &s.outer : i == axis ? &s.extent : &s.inner;
    *extent_product *= (size_t)shape->dim[i];
  }
  return s;
}

void clv_permuted_strides(const clv_shape *in, const clv_shape *order, size_t ret[CLV_MAX_RANK]) {
  size_t strides[CLV_MAX_RANK] = {0}, n_inner = 1;
  for (int d = in->rank; d-- > 0; n_inner *= (size_t)in->dim[d]) strides[d] = n_inner;
  ret[0] = strides[0];
  for (int d = 1; d < in->rank; d++) ret[d] = strides[order->dim[d - 1]];
}

clv_matmul clv_matmul_of(const clv_node_desc *d) {
  const clv_shape *a = &d->in[0];
  clv_matmul s = {1, a->dim[a->rank - 2], a->dim[a->rank - 1], d->out.dim[a->rank - 1]};
  for (int i = 0; i < a->rank - 2; i++) s.batch *= a->dim[i];
  return s;
}

bool clv_has_broadcast_input(const clv_node_desc *d) {
  bool has_one_shape = true;
  for (int i = 0; i < d->n_in && d->n_in > 1; i++)
    has_one_shape = has_one_shape && clv_shape_equal(&d->in[i], &d->out);
  return !has_one_shape;
}

/* Prepends dimension `axis` with n values, `step` apart, to the dimensions of v. Merges it with the
 * first dimension of v if their steps allow. */
static void prepend_dimension(clv_broadcast *v, int axis, size_t n, const size_t step[2]) {
  bool can_merge = v->rank > 0 && axis > 0;
  for (int j = 0; j < 2 && can_merge; j++)
    can_merge = step[j] == (v->step[j][0] ? v->step[j][0] * v->n[0] : 0);
  if (can_merge) {
    v->n[0] *= n;
    return;
  }
  for (int i = v->rank++; i > 0; i--) {
    v->n[i] = v->n[i - 1];
    for (int j = 0; j < 2; j++) v->step[j][i] = v->step[j][i - 1];
  }
  v->n[0] = n;
  for (int j = 0; j < 2; j++) v->step[j][0] = step[j];
}

/* Returns the broadcast with d's dimensions in the given order, outermost first; the batch must be
 * first. */
static clv_broadcast broadcast_in_order(const clv_node_desc *d, const int *order) {
  clv_broadcast v = {0};
  size_t n_inner[2] = {1, 1};
  for (int i = d->out.rank; i-- > 0;) {
    size_t step[2];
    int axis = order[i];
    for (int j = 0; j < 2; j++) {
      step[j] = d->in[j].dim[axis] == 1 && axis ? 0 : n_inner[j];
      n_inner[j] *= (size_t)d->in[j].dim[axis];
    }
    if (d->out.dim[axis] != 1 || !axis) prepend_dimension(&v, axis, (size_t)d->out.dim[axis], step);
  }
  return v;
}

clv_broadcast clv_broadcast_of(const clv_node_desc *d) {
  static const int row_major[] = {0, 1, 2, 3, 4, 5, 6, 7};
  _Static_assert(CLV_COUNT(row_major) == CLV_MAX_RANK, "each dimension has its place");
  return broadcast_in_order(d, row_major);
}

clv_broadcast clv_broadcast_channels_last(const clv_node_desc *d) {
  static const int channels_last[] = {0, 2, 3, 1};
  return broadcast_in_order(d, channels_last);
}

clv_heads clv_heads_of(const clv_node_desc *d) {
  const clv_shape *q = &d->in[0], *k = &d->in[1];
  int64_t heads = d->attrs.heads, kv_heads = d->attrs.kv_heads ? d->attrs.kv_heads : heads;
  int64_t width = q->dim[q->rank - 1] / heads, packed = d->attrs.packed;
  return (clv_heads){packed ? d->in[3].dim[0] : q->dim[0],
                     packed ? packed : q->dim[1],
                     packed ? packed : k->dim[1],
                     heads,
                     kv_heads,
                     width,
                     heads / kv_heads,
                     1 / sqrt((double)width)};
}

clv_resample clv_resample_of(clv_op op, const clv_attrs *attrs, const clv_shape *in,
                             const clv_shape *out) {
  bool has_one_row = in->rank == 3,
       is_mean_pool = op == CLV_OP_ADAPTIVE_AVGPOOL1D || op == CLV_OP_ADAPTIVE_AVGPOOL2D;
  clv_resample r = {.kind = is_mean_pool                     ? CLV_RESAMPLE_MEAN
                            : op == CLV_OP_UPSAMPLE_BILINEAR ? CLV_RESAMPLE_LINEAR
                                                             : CLV_RESAMPLE_NEAREST,
                    .align_corners = attrs->align_corners,
                    .n = in->dim[0],
                    .c = in->dim[1]};
  for (int i = 0; i < 2; i++) {
    int axis = has_one_row ? 2 : 2 + i;
    bool is_missing_axis = has_one_row && i == 0;
    r.in[i] = is_missing_axis ? 1 : in->dim[axis];
    r.out[i] = is_missing_axis ? 1 : out->dim[axis];
    r.scale[i] = attrs->scale_factor > 0 && !is_missing_axis ? 1 / attrs->scale_factor
                                                             : (double)r.in[i] / (double)r.out[i];
    if (r.align_corners)
      r.scale[i] = r.out[i] > 1 ? (double)(r.in[i] - 1) / (double)(r.out[i] - 1) : 0;
  }
  return r;
}

bool clv_is_conv_transpose(clv_op op) {
  return op == CLV_OP_CONV_TRANSPOSE1D || op == CLV_OP_CONV_TRANSPOSE2D;
}

clv_window clv_window_of(const clv_node_desc *d) {
  bool is_transposed = clv_is_conv_transpose(d->op), has_one_row = d->in[0].rank == 3;
  const clv_shape *in = is_transposed ? &d->out : &d->in[0],
                  *out = is_transposed ? &d->in[0] : &d->out;
  int width_axis = has_one_row ? 2 : 3;
  clv_window s = {.n = in->dim[0],
                  .c = in->dim[1],
                  .h = has_one_row ? 1 : in->dim[2],
                  .w = in->dim[width_axis]};
  s.k = out->dim[1];
  s.oh = has_one_row ? 1 : out->dim[2];
  s.ow = out->dim[width_axis];
  for (int i = 0; i < 2; i++) {
    bool is_missing_axis = has_one_row && i == 0;
    s.kernel[i] = is_missing_axis ? 1 : d->attrs.kernel[i];
    s.stride[i] = is_missing_axis ? 1 : d->attrs.stride[i];
    s.pad[i] = is_missing_axis ? 0 : d->attrs.pad[i];
    /* pools have no dilation: the attribute is 0 */
    s.dilation[i] = is_missing_axis || !d->attrs.dilation[i] ? 1 : d->attrs.dilation[i];
  }
  return s;
}

int64_t clv_slice_start(const clv_attrs *attrs, int64_t extent, int64_t *ret_stop) {
  *ret_stop = attrs->stop == CLV_TO_END ? extent
              : attrs->stop < 0         ? attrs->stop + extent
                                        : attrs->stop;
  return attrs->start < 0 ? attrs->start + extent : attrs->start;
}

clv_row_numbers clv_row_numbers_of(const clv_node_desc *d) {
  const clv_shape *in = &d->in[0];
  size_t n = 1;
  for (int i = 0; i < in->rank; i++) n *= (size_t)in->dim[i];
  clv_row_numbers l = {
      .width = 1, .rows = d->attrs.rows, .minus = d->attrs.minus, .padding = d->attrs.padding_idx};
  if (d->attrs.column >= 0) {
    l.column = d->attrs.column;
    l.width = (size_t)in->dim[in->rank - 1];
    n /= l.width;
  }
  l.n = n;
  l.per_sample = in->dim[0] ? n / (size_t)in->dim[0] : 1;
  return l;
}

clv_code clv_check_rows(const clv_row_numbers *l, const int64_t *values, clv_err *err) {
  for (size_t i = 0; i < l->n; i++) {
    int64_t row = clv_row_number_at(l, values, i);
    if (row >= 0 && row < l->rows) continue;
    clv_fail(err, CLV_INVALID, "row number of sample %zu, place %zu, is outside 0..%lld",
             i / l->per_sample, i % l->per_sample, (long long)l->rows - 1);
    return clv_err_set_offending_value(err, "%lld", (long long)row);
  }
  return CLV_OK;
}

/* ---- functions that work on a backend's memory ----------------------------------------------- */

clv_code clv_backend_allocate(const clv_backend *b, size_t bytes, void *ret_pp, clv_err *err) {
  void *p;
  if (!b->memory) return clv_alloc_aligned(bytes, ret_pp, err);
  CLV_TRY(b->memory->allocate(b, bytes, &p, err));
  memcpy(ret_pp, &p, sizeof p);
  return CLV_OK;
}

void clv_backend_free_memory(const clv_backend *b, void *p) {
  if (!b || !b->memory)
    free(p);
  else if (p)
    b->memory->free(b, p);
}

clv_code clv_backend_put(const clv_backend *b, void *dst, const void *host, size_t bytes,
                         clv_err *err) {
  if (b->memory) return b->memory->put(b, dst, host, bytes, err);
  if (bytes) memcpy(dst, host, bytes);
  return CLV_OK;
}

clv_code clv_backend_get_in_pieces(const clv_backend *b, void *host, const void *src, size_t bytes,
                                   const clv_copy_progress *to, clv_err *err) {
  if (b->memory) return b->memory->get(b, host, src, bytes, to, err);
  if (bytes) memcpy(host, src, bytes);
  if (to->report) to->report(to->user, bytes);
  return CLV_OK;
}

clv_code clv_backend_get(const clv_backend *b, void *host, const void *src, size_t bytes,
                         clv_err *err) {
  const clv_copy_progress no_reports = {0};
  return clv_backend_get_in_pieces(b, host, src, bytes, &no_reports, err);
}

clv_code clv_backend_copy(const clv_backend *b, void *dst, const void *src, size_t bytes,
                          clv_err *err) {
  if (b->memory) return b->memory->copy(b, dst, src, bytes, err);
  if (bytes) memcpy(dst, src, bytes);
  return CLV_OK;
}

bool clv_backend_can_copy_from(const clv_backend *b, const clv_backend *from) {
  return b->memory && b->memory->copy_from && from->memory && strcmp(b->name, from->name) == 0;
}

clv_code clv_backend_copy_from(const clv_backend *b, void *dst, const clv_backend *from,
                               const void *src, size_t bytes, clv_err *err) {
  if (!from) return clv_backend_put(b, dst, src, bytes, err);
  if (from == b) return clv_backend_copy(b, dst, src, bytes, err);
  return b->memory->copy_from(b, dst, from, src, bytes, err);
}

clv_code clv_backend_fill(const clv_backend *b, void *dst, int byte, size_t bytes, clv_err *err) {
  if (b->memory) return b->memory->fill(b, dst, byte, bytes, err);
  if (bytes) memset(dst, byte, bytes);
  return CLV_OK;
}

clv_code clv_backend_finish(const clv_backend *b, clv_err *err) {
  int64_t layer;
  return b->memory ? b->memory->finish(b, &layer, err) : CLV_OK;
}

clv_code clv_backend_branch(const clv_backend *b, const clv_backend **ret, clv_err *err) {
  if (b->branch) return b->branch(b, ret, err);
  *ret = b;
  return CLV_OK;
}

clv_code clv_backend_check_tf32(const clv_backend *b, clv_err *err) {
  if (b->check_tf32) return b->check_tf32(b, err);
  return clv_fail(err, CLV_PRECONDITION,
                  "tf32 needs an NVIDIA device of capability 8.0 or above, but %s is a processor: "
                  "leave tf32 out, or name such a device",
                  b->device);
}

const clv_backend *clv_backend_retain(const clv_backend *b) {
  if (b->retain) b->retain(b);
  return b;
}

void clv_backend_release(const clv_backend *b) {
  if (b && b->release) b->release(b);
}
