/* SPDX-License-Identifier: Apache-2.0
 *
 * x [N, C, ...]: mean and variance over the channels of a group and all positions, then a weight
 * and a bias for each channel.
 */
#include "kernels/ops/groupnorm_int.h"

static clv_code groupnorm_shape(const clv_op_site *s, clv_shape *ret, clv_err *err) {
  const clv_shape *in = &s->in[0];
  char text[160];
  if (in->rank < 2)
    return clv_fail(err, CLV_INVALID, "groupnorm needs rank 2 or more ([N, C, ...]), got %s",
                    clv_shape_format(in, text, sizeof text));
  CLV_TRY(clv_check_no_empty_dim("groupnorm", in, err));
  if (in->dim[1] % s->attrs->groups)
    return clv_fail(err, CLV_INVALID,
                    "groupnorm: the channels of %s do not divide into %lld groups",
                    clv_shape_format(in, text, sizeof text), (long long)s->attrs->groups);
  return clv_shape_of_input(s, ret, err);
}

static int groupnorm_slots(const clv_op_site *s, clv_slot ret[CLV_MAX_PARAMS]) {
  ret[CLV_SLOT_WEIGHT] = channel_slot(s, "weight", CLV_INIT_ONE);
  ret[CLV_SLOT_BIAS] = channel_slot(s, "bias", CLV_INIT_ZERO);
  return 2;
}

CLV_OP_ROW(groupnorm) = {
    .name = "groupnorm",
    .doc =
        "y = (x - mean) / sqrt(var + eps) * weight + bias, mean and variance over the channels "
        "of a group and all places, x: [N, C, ...] (torch.nn.functional.group_norm)",
    .torch_module = "GroupNorm(groups=num_groups, eps=eps)",
    .torch_needs = "affine=True",
    .n_in = 1,
    .attrs = {{.key = CLV_ATTR_GROUPS, .is_required = true, .low = 1, .high = CLV_EXTENT_MAX},
              EPS_ATTR},
    .shape = groupnorm_shape,
    .slots = groupnorm_slots,
    .max_params = 2,
    .forward = groupnorm_forward,
    .backward_input = groupnorm_backward_input,
    .backward_weight = groupnorm_backward_weight,
    .saved_for_dx = CLV_SAVE_IN0,
    .saved_for_dw = CLV_SAVE_IN0,
    .saved_bytes = groupnorm_saved_bytes,
};
