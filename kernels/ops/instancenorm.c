/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/ops/groupnorm_int.h"

static clv_code instancenorm_shape(const clv_op_site *s, clv_shape *ret, clv_err *err) {
  const clv_shape *in = &s->in[0];
  char text[160];
  if (in->rank < 3)
    return clv_fail(err, CLV_INVALID, "instancenorm needs rank 3 or more ([N, C, ...]), got %s",
                    clv_shape_format(in, text, sizeof text));
  CLV_TRY(clv_check_no_empty_dim("instancenorm", in, err));
  return clv_shape_of_input(s, ret, err);
}

static int instancenorm_slots(const clv_op_site *s, clv_slot ret[CLV_MAX_PARAMS]) {
  if (!s->attrs->affine) return 0;
  ret[CLV_SLOT_WEIGHT] = channel_slot(s, "weight", CLV_INIT_ONE);
  ret[CLV_SLOT_BIAS] = channel_slot(s, "bias", CLV_INIT_ZERO);
  return 2;
}

CLV_OP_ROW(instancenorm) = {
    .name = "instancenorm",
    .doc =
        "y = (x - mean) / sqrt(var + eps), mean and variance over the places of a channel, with "
        "affine times weight plus bias, x: [N, C, ...] (torch.nn.functional.instance_norm)",
    .torch_module = "InstanceNorm1d|InstanceNorm2d(eps=eps, affine=affine)",
    .torch_needs = "track_running_stats=False",
    .n_in = 1,
    .attrs = {EPS_ATTR, {.key = CLV_ATTR_AFFINE, .low = 0, .high = 1}},
    .shape = instancenorm_shape,
    .slots = instancenorm_slots,
    .max_params = 2,
    .forward = groupnorm_forward,
    .backward_input = groupnorm_backward_input,
    .backward_weight = groupnorm_backward_weight,
    .saved_for_dx = CLV_SAVE_IN0,
    .saved_for_dw = CLV_SAVE_IN0,
    .saved_bytes = groupnorm_saved_bytes,
};
