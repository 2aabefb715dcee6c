/* SPDX-License-Identifier: Apache-2.0
 *
 * Chooses the layouts of a convolution: the first of the following for which the library has fast
 * code, regardless of the gradients needed. (1) Input and output in channel blocks; for fewer
 * channels than a block, input row-major and output in blocks, with the weight gradient of
 * conv_small.c and an input gradient that is computed in blocks and reordered. (2) All row-major.
 * If bf16 is requested, (1) in bf16 comes first, with all gradients by the library; if the library
 * lacks it, the convolution is computed in f32.
 */
#include <string.h>

#include "kernels/cpu/conv_choice_int.h"

void clv_cpu_conv_choice_done(clv_conv_choice *c) {
  if (!c) return;
  dnnl_primitive_desc_t pds[] = {c->forward, c->data, c->weight};
  for (size_t i = 0; i < CLV_COUNT(pds); i++)
    if (pds[i]) dnnl_primitive_desc_destroy(pds[i]);
  c->forward = c->data = c->weight = NULL;
}

/* ---- descriptions ---------------------------------------------------------------------------- */

static dnnl_format_tag_t format_tag(int block) {
  return block == 16 ? dnnl_nChw16c : block == 8 ? dnnl_nChw8c : dnnl_nchw;
}

static dnnl_status_t describe_weight(const clv_conv_request *what, dnnl_data_type_t type,
                                     dnnl_format_tag_t plain, dnnl_memory_desc_t *ret) {
  const clv_window *s = &what->s;
  int64_t g = what->groups;
  dnnl_dims_t dense = {s->k, s->c, s->kernel[0], s->kernel[1]};
  dnnl_dims_t grouped = {g, s->k / g, s->c / g, s->kernel[0], s->kernel[1]};
  return dnnl_memory_desc_init_by_tag(ret, g > 1 ? 5 : 4, g > 1 ? grouped : dense, type, plain);
}

static clv_code describe_tensors(const clv_conv_request *what, const clv_conv_choice *c,
                                 clv_conv_mds *m, clv_err *err) {
  const clv_window *s = &what->s;
  dnnl_dims_t src = {s->n, s->c, s->h, s->w}, dst = {s->n, s->k, s->oh, s->ow}, bias = {s->k};
  dnnl_data_type_t type = c->bf16 ? dnnl_bf16 : dnnl_f32;
  dnnl_status_t status[] = {
      dnnl_memory_desc_init_by_tag(&m->src, 4, src, type, format_tag(c->src)),
      dnnl_memory_desc_init_by_tag(&m->din, 4, src, dnnl_f32, format_tag(c->din)),
      dnnl_memory_desc_init_by_tag(&m->dst, 4, dst, type, format_tag(c->dst)),
      dnnl_memory_desc_init_by_tag(&m->bias, 1, bias, dnnl_f32, dnnl_a),
      describe_weight(what, type, dnnl_format_tag_any, &m->weight),
      describe_weight(what, dnnl_f32, dnnl_format_tag_any, &m->dweight),
      describe_weight(what, dnnl_f32, what->groups > 1 ? dnnl_goihw : dnnl_oihw, &m->plain_weight),
  };
  for (size_t i = 0; i < CLV_COUNT(status); i++)
    CLV_TRY(clv_cpu_dnnl_check(status[i], "conv2d layout", err));
  m->bias_or_null = what->bias ? &m->bias : NULL;
  for (int i = 0; i < 2; i++) {
    m->strides[i] = s->stride[i];
    m->pads[i] = s->pad[i];
    m->dilates[i] = s->dilation[i] - 1;
  }
  return CLV_OK;
}

/* Computes the padding after the image, which follows from the output's extent; may be negative. */
static void compute_right_pads(const clv_window *s, dnnl_dims_t ret) {
  for (int i = 0; i < 2; i++) {
    int64_t in = i ? s->w : s->h, out = i ? s->ow : s->oh;
    int64_t reach = (s->kernel[i] - 1) * s->dilation[i] + 1;
    ret[i] = (out - 1) * s->stride[i] + reach - in - s->pad[i];
  }
}

/* Makes oneDNN's primitive descriptions for one choice, in c. Fails if oneDNN lacks one. */
static clv_code query_onednn(const clv_window *s, const clv_conv_mds *m, dnnl_primitive_attr_t attr,
                             clv_conv_choice *c, clv_err *err) {
  dnnl_engine_t engine;
  dnnl_convolution_desc_t forward, data, weight;
  dnnl_dims_t right = {0};
  compute_right_pads(s, right);
  CLV_TRY(clv_cpu_engine(&engine, err));
  CLV_TRY(clv_cpu_dnnl_check(
      dnnl_dilated_convolution_forward_desc_init(
          &forward, dnnl_forward_training, dnnl_convolution_direct, &m->src, &m->weight,
          m->bias_or_null, &m->dst, m->strides, m->dilates, m->pads, right),
      "conv2d", err));
  CLV_TRY(clv_cpu_dnnl_check(dnnl_primitive_desc_create(&c->forward, &forward, attr, engine, NULL),
                             "conv2d", err));
  CLV_TRY(clv_cpu_dnnl_check(dnnl_dilated_convolution_backward_data_desc_init(
                                 &data, dnnl_convolution_direct, &m->din, &m->weight, &m->dst,
                                 m->strides, m->dilates, m->pads, right),
                             "conv2d input gradient", err));
  CLV_TRY(clv_cpu_dnnl_check(dnnl_primitive_desc_create(&c->data, &data, attr, engine, c->forward),
                             "conv2d input gradient", err));
  if (c->has_few_channels) return CLV_OK;
  CLV_TRY(clv_cpu_dnnl_check(dnnl_dilated_convolution_backward_weights_desc_init(
                                 &weight, dnnl_convolution_direct, &m->src, &m->dweight,
                                 m->bias_or_null, &m->dst, m->strides, m->dilates, m->pads, right),
                             "conv2d weight gradient", err));
  return clv_cpu_dnnl_check(
      dnnl_primitive_desc_create(&c->weight, &weight, attr, engine, c->forward),
      "conv2d weight gradient", err);
}

static bool is_fast_impl(const_dnnl_primitive_desc_t pd) {
  const char *impl = "ref";
  dnnl_primitive_desc_query(pd, dnnl_query_impl_info_str, 0, (void *)&impl);
  return strncmp(impl, "ref", 3) != 0;
}

clv_code clv_cpu_conv_choose(const clv_conv_request *what, dnnl_primitive_attr_t attr,
                             clv_conv_choice *ret, clv_conv_mds *ret_mds, clv_err *err) {
  int b = clv_cpu_block();
  bool few = what->s.c < b && what->groups == 1;
  clv_conv_choice choices[] = {
      {.src = few ? 1 : b, .dst = b, .din = b, .bf16 = true},
      {.src = few ? 1 : b, .dst = b, .din = b, .has_few_channels = few},
      {.src = 1, .dst = 1, .din = 1},
  };
  clv_code code = CLV_OK;
  for (size_t i = !what->allows_blocks ? 2 : what->bf16 ? 0 : 1; i < CLV_COUNT(choices); i++) {
    clv_conv_choice *c = &choices[i];
    CLV_TRY(describe_tensors(what, c, ret_mds, err));
    code = query_onednn(&what->s, ret_mds, attr, c, err);
    bool last = i + 1 == CLV_COUNT(choices);
    bool fast = code == CLV_OK && is_fast_impl(c->forward) && is_fast_impl(c->data) &&
                (c->has_few_channels || is_fast_impl(c->weight));
    if (fast || (last && code == CLV_OK)) {
      *ret = *c;
      return CLV_OK;
    }
    clv_cpu_conv_choice_done(c);
  }
  return code;
}
