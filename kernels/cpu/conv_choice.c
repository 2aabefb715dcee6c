/* SPDX-License-Identifier: Apache-2.0
 *
 * Chooses the layouts of a convolution, regardless of the gradients needed. The choices are tried
 * in an order that depends on choices.def, until oneDNN has fast code for one. In f32 the choices
 * are:
 * (1) Input and output in channel blocks. With fewer input channels than a block, the input is
 *     row-major, conv_small.c computes the weight gradient, and the input gradient is computed in
 *     blocks and reordered.
 * (2) Input and output row-major.
 *
 * If bf16 is wanted, two choices in bf16 are tried before these:
 * (3) Channels last, on processors with AMX, if oneDNN has code with AMX for forward and both
 *     gradients. For channel blocks oneDNN has no code with AMX.
 * (4) Channel blocks as in (1), but oneDNN computes all gradients.
 */
#include <string.h>

#include "kernels/cpu/choices_int.h"
#include "kernels/cpu/conv_choice_int.h"

void clv_cpu_conv_choice_done(clv_conv_choice *c) {
  if (!c) return;
  dnnl_primitive_desc_t primitive_descs[] = {c->forward, c->backward_input, c->weight_grad};
  for (size_t i = 0; i < CLV_COUNT(primitive_descs); i++)
    if (primitive_descs[i]) dnnl_primitive_desc_destroy(primitive_descs[i]);
  cpu_md_destroy(c->row_major_weight);
  c->forward = c->backward_input = c->weight_grad = NULL;
  c->row_major_weight = NULL;
}

/* ---- descriptions of tensors for oneDNN ------------------------------------------------------ */

static dnnl_format_tag_t find_format_tag(int block) {
  if (clv_layout_is_channels_last(block)) return dnnl_nhwc;
  return block == 16 ? dnnl_nChw16c : block == 8 ? dnnl_nChw8c : dnnl_nchw;
}

/* Computes the padding below and to the right of the image, from the output's extents. It may be
 * negative. */
static void compute_right_pads(const clv_window *s, dnnl_dims_t ret) {
  for (int i = 0; i < 2; i++) {
    int64_t in = i ? s->w : s->h, out = i ? s->ow : s->oh;
    int64_t window_extent = (s->kernel[i] - 1) * s->dilation[i] + 1;
    ret[i] = (out - 1) * s->stride[i] + window_extent - in - s->pad[i];
  }
}

/* Descriptions of a convolution's tensors, and its window: strides, pads before and after the
 * image, and dilates, the numbers of positions between two taps. */
typedef struct conv_tensors {
  cpu_memory_desc src, din, weight, dweight, bias, dst;
  dnnl_dims_t strides, pads, right_pads, dilates;
} conv_tensors;

static void free_tensors(const conv_tensors *t) {
  const cpu_memory_desc memory_descs[] = {t->src, t->din, t->weight, t->dweight, t->bias, t->dst};
  for (size_t i = 0; i < CLV_COUNT(memory_descs); i++) cpu_md_destroy(memory_descs[i]);
}

static dnnl_status_t describe_weight(const clv_conv_request *request, dnnl_data_type_t type,
                                     dnnl_format_tag_t tag, cpu_memory_desc *ret) {
  const clv_window *s = &request->s;
  int64_t g = request->groups;
  dnnl_dims_t dense_dims = {s->k, s->c, s->kernel[0], s->kernel[1]};
  dnnl_dims_t grouped_dims = {g, s->k / g, s->c / g, s->kernel[0], s->kernel[1]};
  return cpu_md_create(ret, g > 1 ? 5 : 4, g > 1 ? grouped_dims : dense_dims, type, tag);
}

static clv_code describe_tensors(const clv_conv_request *request, clv_conv_choice *c,
                                 conv_tensors *t, clv_err *err) {
  const clv_window *s = &request->s;
  dnnl_dims_t src = {s->n, s->c, s->h, s->w}, dst = {s->n, s->k, s->oh, s->ow}, bias = {s->k};
  dnnl_data_type_t type = c->is_bf16 ? dnnl_bf16 : dnnl_f32;
  dnnl_format_tag_t row_major = request->groups > 1 ? dnnl_goihw : dnnl_oihw;
  dnnl_status_t status[] = {
      cpu_md_create(&t->src, 4, src, type, find_format_tag(c->src_layout)),
      cpu_md_create(&t->din, 4, src, dnnl_f32, find_format_tag(c->din_layout)),
      cpu_md_create(&t->dst, 4, dst, type, find_format_tag(c->dst_layout)),
      request->has_bias ? cpu_md_create(&t->bias, 1, bias, dnnl_f32, dnnl_a) : dnnl_success,
      describe_weight(request, type, dnnl_format_tag_any, &t->weight),
      describe_weight(request, dnnl_f32, dnnl_format_tag_any, &t->dweight),
      describe_weight(request, dnnl_f32, row_major, &c->row_major_weight),
  };
  for (size_t i = 0; i < CLV_COUNT(status); i++)
    CLV_TRY(clv_cpu_dnnl_check(status[i], "conv2d layout", err));
  for (int i = 0; i < 2; i++) {
    t->strides[i] = s->stride[i];
    t->pads[i] = s->pad[i];
    t->dilates[i] = s->dilation[i] - 1;
  }
  compute_right_pads(s, t->right_pads);
  return CLV_OK;
}

/* Makes the descriptions of oneDNN's primitives for one choice, in c. Fails if oneDNN lacks one. */
static clv_code make_primitive_descs(const conv_tensors *t, dnnl_primitive_attr_t attr,
                                     clv_conv_choice *c, clv_err *err) {
  cpu_conv_desc d = {.algorithm = dnnl_convolution_direct,
                     .src = t->src,
                     .weight = t->weight,
                     .bias = t->bias,
                     .dst = t->dst,
                     .strides = t->strides,
                     .dilates = t->dilates,
                     .pads = t->pads,
                     .right_pads = t->right_pads,
                     .attr = attr};
  CLV_TRY(clv_cpu_get_engine(&d.engine, err));
  CLV_TRY(clv_cpu_dnnl_check(cpu_conv_forward_desc_create(&c->forward, &d), "conv2d", err));
  d.hint = c->forward;
  d.src = t->din;
  CLV_TRY(clv_cpu_dnnl_check(cpu_conv_data_desc_create(&c->backward_input, &d),
                             "conv2d input gradient", err));
  if (c->has_few_channels) return CLV_OK;
  d.src = t->src;
  d.weight = t->dweight;
  if (!c->is_bf16) d.bias = NULL; /* clv_cpu_conv_sum_bias_grads computes its gradient */
  return clv_cpu_dnnl_check(cpu_conv_weight_desc_create(&c->weight_grad, &d),
                            "conv2d weight gradient", err);
}

static clv_code try_choice(const clv_conv_request *request, dnnl_primitive_attr_t attr,
                           clv_conv_choice *c, clv_err *err) {
  conv_tensors t = {0};
  clv_code code = describe_tensors(request, c, &t, err);
  if (code == CLV_OK) code = make_primitive_descs(&t, attr, c, err);
  free_tensors(&t);
  return code;
}

static bool is_fast_impl(const_dnnl_primitive_desc_t pd, const clv_conv_choice *c) {
  const char *impl = "ref";
  dnnl_primitive_desc_query(pd, dnnl_query_impl_info_str, 0, (void *)&impl);
  return c->needs_amx ? strstr(impl, "amx") != NULL : strncmp(impl, "ref", 3) != 0;
}

static bool is_fast(const clv_conv_choice *c) {
  return is_fast_impl(c->forward, c) && is_fast_impl(c->backward_input, c) &&
         (c->has_few_channels || is_fast_impl(c->weight_grad, c));
}

enum { CHANNELS_LAST_BF16, BLOCKS_BF16, BLOCKS, ROW_MAJOR, N_LAYOUTS };

/* Writes to ret the layouts to try, the preferred layout first and ROW_MAJOR last. Returns the
 * number of layouts. */
static int order_layouts(const clv_conv_request *request, int ret[N_LAYOUTS]) {
  cpu_shape_class shape_class = clv_cpu_class_of_conv(&request->s, request->groups);
  int n = 0;
  if (request->allows_blocks && request->wants_bf16) {
    bool prefers_blocks = clv_cpu_choose(CPU_CONV_BF16, shape_class) == CPU_BLOCKS;
    if (prefers_blocks) ret[n++] = BLOCKS_BF16;
    if (clv_cpu_has_amx()) ret[n++] = CHANNELS_LAST_BF16;
    if (!prefers_blocks) ret[n++] = BLOCKS_BF16;
  }
  if (request->allows_blocks && clv_cpu_choose(CPU_CONV_F32, shape_class) == CPU_BLOCKS)
    ret[n++] = BLOCKS;
  ret[n++] = ROW_MAJOR;
  return n;
}

clv_code clv_cpu_conv_choose(const clv_conv_request *request, dnnl_primitive_attr_t attr,
                             clv_conv_choice *ret, clv_err *err) {
  int b = clv_cpu_channel_block();
  bool reads_few_channels = request->s.c < b && request->groups == 1;
  int channels_last_layout = 1 | CLV_LAYOUT_CHANNELS_LAST, layouts_to_try[N_LAYOUTS];
  clv_conv_choice choices[N_LAYOUTS] = {
      [CHANNELS_LAST_BF16] = {.src_layout = channels_last_layout,
                              .dst_layout = channels_last_layout,
                              .din_layout = channels_last_layout,
                              .is_bf16 = true,
                              .needs_amx = true},
      [BLOCKS_BF16] = {.src_layout = reads_few_channels ? 1 : b,
                       .dst_layout = b,
                       .din_layout = b,
                       .is_bf16 = true},
      [BLOCKS] = {.src_layout = reads_few_channels ? 1 : b,
                  .dst_layout = b,
                  .din_layout = b,
                  .has_few_channels = reads_few_channels},
      [ROW_MAJOR] = {.src_layout = 1, .dst_layout = 1, .din_layout = 1},
  };
  clv_code code = CLV_OK;
  for (int i = 0, n = order_layouts(request, layouts_to_try); i < n; i++) {
    clv_conv_choice *c = &choices[layouts_to_try[i]];
    code = try_choice(request, attr, c, err);
    if (code == CLV_OK && (layouts_to_try[i] == ROW_MAJOR || is_fast(c))) {
      *ret = *c;
      return CLV_OK;
    }
    clv_cpu_conv_choice_done(c);
  }
  return code;
}
