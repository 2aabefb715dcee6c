/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/ops/resample_int.h"

static clv_code output_shape(const clv_op_site *s, clv_shape *ret, clv_err *err) {
  return adaptive_shape("adaptive_avgpool1d", 3, s, ret, err);
}

CLV_OP_ROW(adaptive_avgpool1d) = {
    .name = "adaptive_avgpool1d",
    .doc =
        "y[o] = mean of x[floor(o in / out)..ceil((o + 1) in / out) - 1] along each axis, "
        "x: [N, C, L] (torch.nn.functional.adaptive_avg_pool1d)",
    .torch_module = "AdaptiveAvgPool1d(output_size=output_size)",
    .n_in = 1,
    .attrs = {{.key = CLV_ATTR_OUTPUT_SIZE, .is_required = true, .low = 1, .high = CLV_EXTENT_MAX}},
    .shape = output_shape,
    .forward = resample_forward,
    .backward_input = resample_backward,
};
