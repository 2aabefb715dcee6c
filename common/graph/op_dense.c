/* SPDX-License-Identifier: Apache-2.0 */
#include "common/graph/op_int.h"

static clv_code linear_shape(const clv_op_site *s, clv_shape *ret, clv_err *err) {
  const clv_shape *in = &s->in[0];
  if (in->rank != 3) /* a sequence is meant so; an image means that a flatten was forgotten */
    CLV_TRY(clv_need_rank("linear", in, 2, "[N, F]",
                          "; put a flatten before it, or give it a sequence [N, T, F]", err));
  *ret = *in;
  ret->dim[in->rank - 1] = s->attrs->out;
  return CLV_OK;
}

static int linear_slots(const clv_op_site *s, clv_slot ret[CLV_MAX_PARAMS]) {
  const clv_shape *in = &s->in[0];
  ret[CLV_SLOT_WEIGHT] = (clv_slot){.suffix = "weight",
                                    .shape = CLV_SHAPE(s->attrs->out, in->dim[in->rank - 1]),
                                    .init = CLV_INIT_FAN_IN};
  ret[CLV_SLOT_BIAS] =
      (clv_slot){.suffix = "bias", .shape = CLV_SHAPE(s->attrs->out), .init = CLV_INIT_FAN_IN};
  return s->attrs->bias ? 2 : 1;
}

static clv_code conv_shape(const clv_op_site *s, clv_shape *ret, clv_err *err) {
  int64_t image[2], groups = s->attrs->groups, channels;
  CLV_TRY(clv_need_rank("conv2d", &s->in[0], 4, "[N, C, H, W]", "", err));
  channels = s->in[0].dim[1];
  if (channels % groups || s->attrs->out % groups)
    return clv_fail(err, CLV_INVALID,
                    "conv2d with groups %lld needs channels in and out divisible by it; they are "
                    "%lld and %lld",
                    (long long)groups, (long long)channels, (long long)s->attrs->out);
  CLV_TRY(clv_window_extents("conv2d", s, image, err));
  *ret = CLV_SHAPE(s->in[0].dim[0], s->attrs->out, image[0], image[1]);
  return CLV_OK;
}

static int conv_slots(const clv_op_site *s, clv_slot ret[CLV_MAX_PARAMS]) {
  const clv_attrs *a = s->attrs;
  ret[CLV_SLOT_WEIGHT] = (clv_slot){
      .suffix = "weight",
      .shape = CLV_SHAPE(a->out, s->in[0].dim[1] / a->groups, a->kernel[0], a->kernel[1]),
      .init = a->kaiming_normal ? CLV_INIT_FAN_OUT : CLV_INIT_FAN_IN};
  ret[CLV_SLOT_BIAS] =
      (clv_slot){.suffix = "bias", .shape = CLV_SHAPE(a->out), .init = CLV_INIT_FAN_IN};
  return a->bias ? 2 : 1;
}

#define OUT_ROW \
  { .key = CLV_ATTR_OUT, .required = true, .low = 1, .high = CLV_EXTENT_MAX }
#define BIAS_ROW \
  { .key = CLV_ATTR_BIAS, .fallback = 1, .low = 0, .high = 1 }

static const clv_op_def ops[] = {
    {.op = CLV_OP_LINEAR,
     .name = "linear",
     .doc = "y = x W^T + b, x: [N, F] or [N, T, F], W: [out, F] (torch.nn.functional.linear)",
     .n_in = 1,
     .attrs = {OUT_ROW, BIAS_ROW},
     .shape = linear_shape,
     .slots = linear_slots},
    {.op = CLV_OP_CONV2D,
     .name = "conv2d",
     .doc = "y[n,k,i,j] = b[k] + sum_{c,u,v} W[k,c,u,v] x[n,c,i*stride-pad+u,j*stride-pad+v], "
            "x: [N, C, H, W], W: [K, C/groups, kh, kw] (torch.nn.functional.conv2d)",
     .n_in = 1,
     .attrs = {OUT_ROW,
               {.key = CLV_ATTR_KERNEL, .required = true, .low = 1, .high = CLV_EXTENT_MAX},
               {.key = CLV_ATTR_STRIDE, .fallback = 1, .low = 1, .high = CLV_EXTENT_MAX},
               {.key = CLV_ATTR_PAD, .fallback = 0, .low = 0, .high = CLV_EXTENT_MAX},
               {.key = CLV_ATTR_GROUPS, .fallback = 1, .low = 1, .high = CLV_EXTENT_MAX},
               BIAS_ROW,
               {.key = CLV_ATTR_KAIMING_NORMAL, .fallback = 0, .low = 0, .high = 1}},
     .shape = conv_shape,
     .slots = conv_slots},
};

const clv_op_family clv_family_dense = {ops, CLV_COUNT(ops)};
