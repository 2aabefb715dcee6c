/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/kernels.h"

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

int clv_axis_of(const clv_attrs *attrs, const clv_shape *in) {
  int64_t axis = attrs->dim < 0 ? attrs->dim + in->rank : attrs->dim;
  return axis >= 0 && axis < in->rank ? (int)axis : -1;
}

clv_axis clv_axis_around(const clv_attrs *attrs, const clv_shape *shape) {
  clv_axis s = {1, 1, 1};
  int axis = clv_axis_of(attrs, shape);
  for (int i = 0; i < shape->rank; i++) {
    size_t *part = i < axis ? &s.outer : i == axis ? &s.extent : &s.inner;
    *part *= (size_t)shape->dim[i];
  }
  return s;
}

clv_window clv_window_of(const clv_node_desc *d) {
  const clv_shape *in = &d->in[0], *out = &d->out;
  clv_window s = {.n = in->dim[0], .c = in->dim[1], .h = in->dim[2], .w = in->dim[3]};
  s.k = out->dim[1];
  s.oh = out->dim[2];
  s.ow = out->dim[3];
  for (int i = 0; i < 2; i++) {
    s.kernel[i] = d->attrs.kernel[i];
    s.stride[i] = d->attrs.stride[i];
    s.pad[i] = d->attrs.pad[i];
  }
  return s;
}

int64_t clv_slice_start(const clv_attrs *attrs, int64_t extent, int64_t *ret_stop) {
  *ret_stop = attrs->stop == CLV_TO_END ? extent
              : attrs->stop < 0         ? attrs->stop + extent
                                        : attrs->stop;
  return attrs->start < 0 ? attrs->start + extent : attrs->start;
}

clv_code clv_check_rows(const int64_t *index, size_t n, size_t per_sample, int64_t rows,
                        clv_err *err) {
  for (size_t i = 0; i < n; i++)
    if (index[i] < 0 || index[i] >= rows) {
      clv_fail(err, CLV_INVALID, "row number of sample %zu, place %zu, is outside 0..%lld",
               i / per_sample, i % per_sample, (long long)rows - 1);
      return clv_err_element(err, "%lld", (long long)index[i]);
    }
  return CLV_OK;
}
