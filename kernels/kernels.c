/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/kernels.h"

size_t clv_layout_numel(const clv_shape *shape, int block) {
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
