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

int64_t clv_slice_start(const clv_attrs *attrs, int64_t extent, int64_t *ret_stop) {
  *ret_stop = attrs->stop == CLV_TO_END ? extent
              : attrs->stop < 0         ? attrs->stop + extent
                                        : attrs->stop;
  return attrs->start < 0 ? attrs->start + extent : attrs->start;
}

clv_code clv_check_rows(const int64_t *index, size_t n, size_t per_sample, int64_t rows,
                        clv_err *err) {
  for (size_t i = 0; i < n; i++)
    if (index[i] < 0 || index[i] >= rows)
      return clv_fail(err, CLV_INVALID,
                      "row number %lld of sample %zu, place %zu, is outside 0..%lld",
                      (long long)index[i], i / per_sample, i % per_sample, (long long)rows - 1);
  return CLV_OK;
}
