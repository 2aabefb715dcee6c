/* SPDX-License-Identifier: Apache-2.0 */
#include "common/graph/op_int.h"

static clv_code pool_shape(const char *op, const clv_op_site *s, clv_shape *ret, clv_err *err) {
  int64_t image[2];
  CLV_TRY(clv_need_rank(op, &s->in[0], 4, "[N, C, H, W]", "", err));
  for (int i = 0; i < 2; i++)
    if (s->attrs->pad[i] > s->attrs->kernel[i] / 2)
      return clv_fail(err, CLV_INVALID, "%s: pad %lld must be at most half of kernel %lld", op,
                      (long long)s->attrs->pad[i], (long long)s->attrs->kernel[i]);
  CLV_TRY(clv_window_extents(op, s, image, err));
  *ret = CLV_SHAPE(s->in[0].dim[0], s->in[0].dim[1], image[0], image[1]);
  return CLV_OK;
}

static clv_code maxpool_shape(const clv_op_site *s, clv_shape *ret, clv_err *err) {
  return pool_shape("maxpool", s, ret, err);
}

static clv_code avgpool_shape(const clv_op_site *s, clv_shape *ret, clv_err *err) {
  return pool_shape("avgpool", s, ret, err);
}

static clv_code globalavgpool_shape(const clv_op_site *s, clv_shape *ret, clv_err *err) {
  CLV_TRY(clv_need_rank("globalavgpool", &s->in[0], 4, "[N, C, H, W]", "", err));
  *ret = CLV_SHAPE(s->in[0].dim[0], s->in[0].dim[1], 1, 1);
  return CLV_OK;
}

#define WINDOW_ROWS                                                               \
  {                                                                               \
    {.key = CLV_ATTR_KERNEL, .required = true, .low = 1, .high = CLV_EXTENT_MAX}, \
        {.key = CLV_ATTR_STRIDE, .low = 1, .high = CLV_EXTENT_MAX}, {             \
      .key = CLV_ATTR_PAD, .low = 0, .high = CLV_EXTENT_MAX                       \
    }                                                                             \
  }

static const clv_op_def ops[] = {
    {.op = CLV_OP_MAXPOOL,
     .name = "maxpool",
     .doc = "y = max over the window, padding counts as -inf, the first of equal values takes the "
            "gradient (torch.nn.functional.max_pool2d)",
     .n_in = 1,
     .stride_is_kernel = true,
     .attrs = WINDOW_ROWS,
     .shape = maxpool_shape},
    {.op = CLV_OP_AVGPOOL,
     .name = "avgpool",
     .doc = "y = sum over the window / (kh kw), padding counts as 0 "
            "(torch.nn.functional.avg_pool2d, count_include_pad=True)",
     .n_in = 1,
     .stride_is_kernel = true,
     .attrs = WINDOW_ROWS,
     .shape = avgpool_shape},
    {.op = CLV_OP_GLOBALAVGPOOL,
     .name = "globalavgpool",
     .doc = "y = mean over H and W, [N, C, 1, 1] (torch.nn.functional.adaptive_avg_pool2d(x, 1))",
     .n_in = 1,
     .shape = globalavgpool_shape},
};

const clv_op_family clv_family_pool = {ops, CLV_COUNT(ops)};
