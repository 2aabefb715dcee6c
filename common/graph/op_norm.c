/* SPDX-License-Identifier: Apache-2.0 */
#include "common/graph/op_int.h"

static clv_code batchnorm_shape(const clv_op_site *s, clv_shape *ret, clv_err *err) {
  char text[160];
  if (s->in[0].rank != 2 && s->in[0].rank != 4)
    return clv_fail(err, CLV_INVALID, "batchnorm needs rank 2 [N, C] or 4 [N, C, H, W], got %s",
                    clv_shape_format(&s->in[0], text, sizeof text));
  return clv_same_shape(s, ret, err);
}

static int batchnorm_slots(const clv_op_site *s, clv_slot ret[CLV_MAX_PARAMS]) {
  clv_shape channels = CLV_SHAPE(s->in[0].dim[1]);
  ret[CLV_SLOT_WEIGHT] = (clv_slot){.suffix = "weight", .shape = channels, .init = CLV_INIT_ONE};
  ret[CLV_SLOT_BIAS] = (clv_slot){.suffix = "bias", .shape = channels};
  ret[CLV_SLOT_MEAN] = (clv_slot){.suffix = "running_mean", .shape = channels, .buffer = true};
  ret[CLV_SLOT_VAR] =
      (clv_slot){.suffix = "running_var", .shape = channels, .buffer = true, .init = CLV_INIT_ONE};
  ret[CLV_SLOT_TRACKED] = (clv_slot){.suffix = "num_batches_tracked", .buffer = true, .i64 = true};
  return 5;
}

static clv_code batchnorm_training(const clv_op_site *s, clv_err *err) {
  const clv_shape *in = &s->in[0];
  int64_t values = in->dim[0];
  char text[160];
  for (int i = 2; i < in->rank; i++) values *= in->dim[i];
  if (values > 1) return CLV_OK;
  return clv_fail(err, CLV_INVALID,
                  "Expected more than 1 value per channel when training, got input size %s",
                  clv_shape_format(in, text, sizeof text));
}

/* The normalised dimensions are the input's last ones, and N is not among them. */
static clv_code layernorm_shape(const clv_op_site *s, clv_shape *ret, clv_err *err) {
  const clv_shape *want = &s->attrs->shape, *in = &s->in[0];
  char a[160], b[160];
  bool fits = want->rank < in->rank;
  for (int i = 0; fits && i < want->rank; i++)
    fits = want->dim[i] == in->dim[in->rank - want->rank + i];
  if (!fits)
    return clv_fail(err, CLV_INVALID,
                    "layernorm over %s needs an input [N, ...] that ends in these extents, got %s",
                    clv_shape_format(want, a, sizeof a), clv_shape_format(in, b, sizeof b));
  return clv_same_shape(s, ret, err);
}

static int layernorm_slots(const clv_op_site *s, clv_slot ret[CLV_MAX_PARAMS]) {
  ret[CLV_SLOT_WEIGHT] =
      (clv_slot){.suffix = "weight", .shape = s->attrs->shape, .init = CLV_INIT_ONE};
  ret[CLV_SLOT_BIAS] = (clv_slot){.suffix = "bias", .shape = s->attrs->shape};
  return 2;
}

#define EPS_ROW \
  { .key = CLV_ATTR_EPS, .fallback = 1e-5, .low = 1e-30, .high = 1 }

static const clv_op_def ops[] = {
    {.op = CLV_OP_BATCHNORM,
     .name = "batchnorm",
     .doc = "y = (x - mean) / sqrt(var + eps) * weight + bias per channel; training uses the "
            "batch's statistics and moves the running ones by momentum "
            "(torch.nn.BatchNorm1d, BatchNorm2d)",
     .n_in = 1,
     .attrs = {EPS_ROW, {.key = CLV_ATTR_MOMENTUM, .fallback = 0.1, .low = 0, .high = 1}},
     .shape = batchnorm_shape,
     .slots = batchnorm_slots,
     .check_training = batchnorm_training},
    {.op = CLV_OP_LAYERNORM,
     .name = "layernorm",
     .doc = "y = (x - mean) / sqrt(var + eps) * weight + bias, mean and variance over the trailing "
            "dimensions `shape` (torch.nn.functional.layer_norm)",
     .n_in = 1,
     .attrs = {{.key = CLV_ATTR_SHAPE, .required = true, .low = 1, .high = CLV_EXTENT_MAX},
               EPS_ROW},
     .shape = layernorm_shape,
     .slots = layernorm_slots},
};

const clv_op_family clv_family_norm = {ops, CLV_COUNT(ops)};
