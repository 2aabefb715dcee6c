/* SPDX-License-Identifier: Apache-2.0
 *
 * Convolutions with oneDNN's direct algorithm. x and y are the input and the output of a
 * convolution. A transposed convolution is computed as the reverse of one: its input is y, its
 * output x. Its forward is the pass that computes x from y, which is the input gradient of the
 * convolution.
 *
 * The parameters hold the weights row-major; refresh copies them to oneDNN's formats: one copy for
 * the pass that computes y from x, one for the pass that computes x from y.
 */
#include <string.h>

#include "kernels/cpu/choices_int.h"
#include "kernels/cpu/conv_choice_int.h"
#include "kernels/cpu/norm_int.h"

/* Our own function that computes a weight gradient: clv_cpu_..._conv_compute_dw. */
typedef void weight_grad_fn(const cpu_weight_grad_job *job);

typedef struct conv_kernel {
  cpu_kernel k;
  clv_window s;
  bool is_transposed;
  dnnl_stream_t stream;
  /* oneDNN's primitives that compute y from x, x from y, and the weight gradient from both */
  cpu_primitive forward, backward_input, backward_weight;
  /* reorders of the weights and of their gradient; not made where the formats are equal */
  cpu_primitive reorder_to_forward, reorder_to_backward, reorder_from_gradient;
  /* conv_weights.c copies the weights or their gradient, in place of reorder_to_forward,
   * reorder_to_backward or reorder_from_gradient */
  bool forward_weights_are_tiled, backward_weights_are_tiled, gradient_is_tiled;
  /* the copy of the weights for the pass that computes x has its tiles in the order [C/16][K/16] */
  bool backward_tiles_are_c_major;
  /* the pass that computes x reads a copy of the weights in the cache, not the parameters */
  bool caches_backward_weights;
  /* offset in the cache, in floats, of the copy of the weights for the pass that computes x */
  size_t backward_weights_offset;
  /* function of conv_int.h that computes the weight gradient; NULL: oneDNN computes it */
  weight_grad_fn *own_weight_grad;
  int x_layout, y_layout; /* layouts of x and y without CLV_LAYOUT_BF16 */
  int din_layout;         /* f32 layout in which x is computed from y */
  bool is_bf16;           /* x, y, the gradient of y and the copies of the weights are bf16 */
  /* offsets in scratch, in floats, of the weight gradient in oneDNN's format and in row-major
   * layout, of the bias gradient, and of x in din_layout */
  size_t dw_offset, row_major_offset, db_offset, din_offset;
} conv_kernel;

/* has_pass_for_y: the op has a pass that computes y. has_pass_for_x: it has one that computes x. In
 * a transposed convolution forward computes x, and the input gradient y. */
static bool has_pass_for_y(const conv_kernel *k) { return !k->is_transposed || k->k.d.need_dx[0]; }
static bool has_pass_for_x(const conv_kernel *k) { return k->is_transposed || k->k.d.need_dx[0]; }
/* True if oneDNN adds the bias; the bias of a transposed convolution is added to x separately. */
static bool has_bias_added_by_onednn(const conv_kernel *k) {
  return k->k.d.attrs.bias && !k->is_transposed;
}
/* True if the pass for the weight gradient computes the bias gradient, too, as it does in bf16. */
static bool has_bias_grad_in_weight_pass(const conv_kernel *k) {
  return has_bias_added_by_onednn(k) && k->is_bf16;
}

/* ---- copies of the weights ------------------------------------------------------------------- */

static const float *weights_for_y(const conv_kernel *k, const clv_kernel_args *a) {
  return k->reorder_to_forward.primitive || k->forward_weights_are_tiled
             ? a->cache
             : a->param[CLV_SLOT_WEIGHT];
}

static const float *weights_for_x(const conv_kernel *k, const clv_kernel_args *a) {
  if (!k->caches_backward_weights) return a->param[CLV_SLOT_WEIGHT];
  return (const float *)a->cache + k->backward_weights_offset;
}

static clv_code reorder_weight(conv_kernel *k, cpu_primitive *p, const void *src, const void *dst,
                               const clv_kernel_args *a, clv_err *err) {
  clv_cpu_count_reorder();
  return clv_cpu_prim_run(p, k->stream, (const void *[]){src, dst, a->scratch}, err);
}

static cpu_weight_tiles describe_tiles(const conv_kernel *k, void *row_major) {
  return (cpu_weight_tiles){.k = k->s.k,
                            .c = k->s.c,
                            .n_taps = k->s.kernel[0] * k->s.kernel[1],
                            .threads = k->k.threads,
                            .tiles_are_bf16 = k->is_bf16,
                            .row_major = row_major};
}

static void pack_tiles(const conv_kernel *k, const clv_kernel_args *a, bool packs_forward,
                       bool packs_backward) {
  cpu_weight_tiles w = describe_tiles(k, a->param[CLV_SLOT_WEIGHT]);
  w.forward_tiles = packs_forward && k->forward_weights_are_tiled ? a->cache : NULL;
  w.backward_tiles = packs_backward && k->backward_weights_are_tiled
                         ? (float *)a->cache + k->backward_weights_offset
                         : NULL;
  w.backward_tiles_are_c_major = k->backward_tiles_are_c_major;
  if (w.forward_tiles) clv_cpu_count_reorder();
  if (w.backward_tiles) clv_cpu_count_reorder();
  if (w.forward_tiles || w.backward_tiles) clv_cpu_weight_tiles_pack(&w);
}

static void unpack_tiles(const conv_kernel *k, float *tiles, float *row_major, bool accumulate) {
  cpu_weight_tiles w = describe_tiles(k, row_major);
  w.forward_tiles = tiles;
  w.unpack_adds = accumulate;
  clv_cpu_count_reorder();
  clv_cpu_weight_tiles_unpack(&w);
}

static clv_code conv_refresh(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  conv_kernel *k = (conv_kernel *)base;
  const void *w = a->param[CLV_SLOT_WEIGHT];
  bool has_two_copies = k->backward_weights_are_tiled || k->reorder_to_backward.primitive;
  unsigned pass_that_computes_y = k->is_transposed ? CLV_FOR_BACKWARD : CLV_FOR_FORWARD;
  unsigned pass_that_computes_x = CLV_FOR_FORWARD + CLV_FOR_BACKWARD - pass_that_computes_y;
  bool packs_forward = a->refresh_for & pass_that_computes_y || !has_two_copies,
       packs_backward = a->refresh_for & pass_that_computes_x;
  clv_cpu_set_threads(k->k.threads);
  pack_tiles(k, a, packs_forward, packs_backward);
  if (packs_forward && k->reorder_to_forward.primitive)
    CLV_TRY(reorder_weight(k, &k->reorder_to_forward, w, weights_for_y(k, a), a, err));
  if (packs_backward && k->reorder_to_backward.primitive)
    CLV_TRY(reorder_weight(k, &k->reorder_to_backward, w, weights_for_x(k, a), a, err));
  return CLV_OK;
}

/* ---- running the passes ---------------------------------------------------------------------- */

static clv_code compute_y(conv_kernel *k, const clv_kernel_args *a, const void *x, void *y,
                          clv_err *err) {
  const void *pointers_with_bias[] = {x, weights_for_y(k, a), y, a->param[CLV_SLOT_BIAS],
                                      a->scratch};
  const void *pointers_without_bias[] = {x, weights_for_y(k, a), y, a->scratch};
  clv_cpu_set_threads(k->k.threads);
  return clv_cpu_prim_run(&k->forward, k->stream,
                          has_bias_added_by_onednn(k) ? pointers_with_bias : pointers_without_bias,
                          err);
}

static clv_shape make_x_shape(const conv_kernel *k) {
  return CLV_SHAPE(k->s.n, k->s.c, k->s.h, k->s.w);
}

static clv_code compute_x(conv_kernel *k, const clv_kernel_args *a, const void *y, void *x,
                          clv_err *err) {
  int x_layout = k->x_layout;
  bool needs_reorder = k->din_layout != x_layout;
  float *din = needs_reorder ? (float *)a->scratch + k->din_offset : x;
  const void *pointers[] = {y, weights_for_x(k, a), din, a->scratch};
  clv_shape shape = make_x_shape(k);
  clv_cpu_set_threads(k->k.threads);
  CLV_TRY(clv_cpu_prim_run(&k->backward_input, k->stream, pointers, err));
  if (needs_reorder) clv_cpu_reorder(&shape, din, k->din_layout, x, x_layout);
  return CLV_OK;
}

static clv_code run_own_weight_grad(const conv_kernel *k, const clv_kernel_args *a, const void *x,
                                    const void *y) {
  cpu_weight_grad_job job = {
      .s = k->s,
      .block = k->y_layout,
      .threads = k->k.threads,
      .x = x,
      .dy = y,
      .dw = a->dparam[CLV_SLOT_WEIGHT],
      .db = has_bias_grad_in_weight_pass(k) ? a->dparam[CLV_SLOT_BIAS] : NULL,
      .scratch = a->scratch,
      .accumulate = a->accumulate};
  k->own_weight_grad(&job);
  return CLV_OK;
}

/* Computes the weight gradient. oneDNN overwrites its output, so with a->accumulate it writes to
 * scratch, and the result is then added. */
static clv_code compute_weight_grad(conv_kernel *k, const clv_kernel_args *a, const void *x,
                                    const void *y, clv_err *err) {
  bool has_bias = has_bias_grad_in_weight_pass(k), is_tiled = k->gradient_is_tiled;
  bool needs_reorder = is_tiled || k->reorder_from_gradient.primitive;
  if (k->own_weight_grad) return run_own_weight_grad(k, a, x, y);
  float *scratch = a->scratch, *w = a->dparam[CLV_SLOT_WEIGHT], *b = a->dparam[CLV_SLOT_BIAS];
  float *row_major = a->accumulate ? scratch + k->row_major_offset : w;
  float *db = a->accumulate ? scratch + k->db_offset : b;
  float *dw = needs_reorder ? scratch + k->dw_offset : row_major;
  const void *pointers_with_bias[] = {x, y, dw, db, scratch};
  const void *pointers_without_bias[] = {x, y, dw, scratch};
  clv_cpu_set_threads(k->k.threads);
  CLV_TRY(clv_cpu_prim_run(&k->backward_weight, k->stream,
                           has_bias ? pointers_with_bias : pointers_without_bias, err));
  if (is_tiled)
    unpack_tiles(k, dw, w, a->accumulate);
  else if (needs_reorder)
    CLV_TRY(reorder_weight(k, &k->reorder_from_gradient, dw, row_major, a, err));
  if (!a->accumulate) return CLV_OK;
  if (!is_tiled)
    clv_cpu_add_to(CLV_F32, w, row_major, clv_layout_numel(&k->k.d.param[CLV_SLOT_WEIGHT], 1));
  if (has_bias) clv_cpu_add_to(CLV_F32, b, db, (size_t)k->s.k);
  return CLV_OK;
}

/* Computes the bias gradient from dout, which has `channels` channels in channel blocks of `block`,
 * and `positions` positions in an image. */
static void compute_bias_grad(const conv_kernel *k, const clv_kernel_args *a, int64_t channels,
                              int64_t positions, int block) {
  cpu_bias_grad_job j = {.dy = a->dout,
                         .n = k->s.n,
                         .channels = channels,
                         .positions = positions,
                         .block = block,
                         .db = a->dparam[CLV_SLOT_BIAS],
                         .accumulate = a->accumulate};
  int threads = clv_cpu_useful_threads(k->k.threads, (size_t)(k->s.n * channels * positions));
  clv_cpu_parallel(threads, clv_cpu_conv_count_bias_blocks(&j), clv_cpu_conv_sum_bias_grads, &j);
}

static clv_code conv_forward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  return compute_y((conv_kernel *)base, a, a->in[0], a->out, err);
}

static clv_code conv_backward_input(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  return compute_x((conv_kernel *)base, a, a->dout, a->din[0], err);
}

static clv_code conv_backward_weight(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  conv_kernel *k = (conv_kernel *)base;
  CLV_TRY(compute_weight_grad(k, a, a->in[0], a->dout, err));
  if (has_bias_added_by_onednn(k) && !has_bias_grad_in_weight_pass(k))
    compute_bias_grad(k, a, k->s.k, k->s.oh * k->s.ow, k->y_layout);
  return CLV_OK;
}

/* ---- transposed convolutions ----------------------------------------------------------------- */

/* Returns the number of values of a plane of x: one channel block of one sample. */
static size_t x_plane_size(const conv_kernel *k) { return (size_t)(k->s.h * k->s.w * k->x_layout); }
static size_t count_x_blocks(const conv_kernel *k) {
  return (size_t)((k->s.c + k->x_layout - 1) / k->x_layout);
}

static void add_bias(const conv_kernel *k, const float *bias, float *x) {
  size_t b = (size_t)k->x_layout, plane_size = x_plane_size(k), n_blocks = count_x_blocks(k);
  for (size_t p = 0; p < (size_t)k->s.n * n_blocks; p++) {
    size_t first_channel = p % n_blocks * b;
    clv_norm_affine f = {0};
    for (size_t l = 0; l < b; l++) f.scale[l] = 1;
    for (size_t l = 0; l < b && first_channel + l < (size_t)k->s.c; l++)
      f.shift[l] = bias[first_channel + l];
    clv_cpu_norm_apply(x + p * plane_size, NULL, plane_size, b, &f, false, x + p * plane_size);
  }
}

static clv_code conv_transpose_forward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  conv_kernel *k = (conv_kernel *)base;
  CLV_TRY(compute_x(k, a, a->in[0], a->out, err));
  if (k->k.d.attrs.bias) add_bias(k, a->param[CLV_SLOT_BIAS], a->out);
  return CLV_OK;
}

static clv_code conv_transpose_backward_input(clv_kernel *base, const clv_kernel_args *a,
                                              clv_err *err) {
  return compute_y((conv_kernel *)base, a, a->dout, a->din[0], err);
}

static clv_code conv_transpose_backward_weight(clv_kernel *base, const clv_kernel_args *a,
                                               clv_err *err) {
  conv_kernel *k = (conv_kernel *)base;
  CLV_TRY(compute_weight_grad(k, a, a->dout, a->in[0], err));
  if (k->k.d.attrs.bias) compute_bias_grad(k, a, k->s.c, k->s.h * k->s.w, k->x_layout);
  return CLV_OK;
}

/* ---- making the kernel ----------------------------------------------------------------------- */

static void conv_free(clv_kernel *base) {
  conv_kernel *k = (conv_kernel *)base;
  cpu_primitive *prims[] = {&k->forward,
                            &k->backward_input,
                            &k->backward_weight,
                            &k->reorder_to_forward,
                            &k->reorder_to_backward,
                            &k->reorder_from_gradient};
  for (size_t i = 0; i < CLV_COUNT(prims); i++) clv_cpu_prim_done(prims[i]);
  if (k->stream) dnnl_stream_destroy(k->stream);
  clv_freep(&k);
}

static cpu_const_memory_desc get_weight_md(const_dnnl_primitive_desc_t pd) {
  return dnnl_primitive_desc_query_md(pd, dnnl_query_weights_md, 0);
}

/* True if oneDNN's layout `md` is the one that `tag` names, and conv_weights.c can pack it. */
static bool is_tiled(const conv_kernel *k, cpu_const_memory_desc md, dnnl_data_type_t type,
                     dnnl_format_tag_t tag) {
  CLV_AUTO(clv_cpu_md_freep) cpu_memory_desc wanted = NULL;
  dnnl_dims_t dims = {k->s.k, k->s.c, k->s.kernel[0], k->s.kernel[1]};
  return clv_cpu_can_use_weight_tiles(&k->s, k->k.d.attrs.groups, type == dnnl_bf16) &&
         cpu_md_create(&wanted, 4, dims, type, tag) == dnnl_success &&
         dnnl_memory_desc_equal(wanted, md);
}

/* oneDNN's names of the tiled layouts of cpu_weight_tiles, for one type of values. */
typedef struct weight_tags {
  dnnl_data_type_t type;
  dnnl_format_tag_t forward_tiles, backward_tiles, c_major_backward_tiles;
} weight_tags;

static const weight_tags f32_tags = {dnnl_f32, dnnl_OIhw16i16o, dnnl_OIhw16o16i, dnnl_IOhw16o16i};
static const weight_tags bf16_tags = {dnnl_bf16, dnnl_OIhw8i16o2i, dnnl_OIhw8o16i2o,
                                      dnnl_IOhw8o16i2o};

/* Chooses the copies of the weights that refresh makes: none if oneDNN reads row-major weights, one
 * if both passes read the same format. */
static clv_code choose_weight_copies(conv_kernel *k, const clv_conv_choice *c, clv_err *err) {
  cpu_const_memory_desc forward_md = get_weight_md(c->forward),
                        backward_md = get_weight_md(c->backward_input);
  cpu_const_memory_desc row_major_md = c->row_major_weight;
  const weight_tags tags = k->is_bf16 ? bf16_tags : f32_tags;
  clv_kernel *base = &k->k.base;
  if (!dnnl_memory_desc_equal(forward_md, row_major_md)) {
    k->forward_weights_are_tiled = is_tiled(k, forward_md, tags.type, tags.forward_tiles);
    if (!k->forward_weights_are_tiled)
      CLV_TRY(clv_cpu_prim_init_reorder(&k->reorder_to_forward, row_major_md, forward_md, err));
    base->cache_bytes = clv_align_up(dnnl_memory_desc_get_size(forward_md), 64);
    base->reorders_refresh++;
  }
  k->caches_backward_weights = !dnnl_memory_desc_equal(backward_md, row_major_md);
  if (has_pass_for_x(k) && k->caches_backward_weights &&
      !dnnl_memory_desc_equal(backward_md, forward_md)) {
    k->backward_tiles_are_c_major =
        is_tiled(k, backward_md, tags.type, tags.c_major_backward_tiles);
    k->backward_weights_are_tiled =
        k->backward_tiles_are_c_major || is_tiled(k, backward_md, tags.type, tags.backward_tiles);
    if (!k->backward_weights_are_tiled)
      CLV_TRY(clv_cpu_prim_init_reorder(&k->reorder_to_backward, row_major_md, backward_md, err));
    k->backward_weights_offset = base->cache_bytes / sizeof(float);
    base->cache_bytes += clv_align_up(dnnl_memory_desc_get_size(backward_md), 64);
    base->reorders_refresh++;
  }
  if (base->reorders_refresh) base->refresh = conv_refresh;
  return CLV_OK;
}

static clv_code make_forward_primitive(conv_kernel *k, const clv_conv_choice *c, clv_err *err) {
  static const cpu_primitive_arg args[] = {
      {.arg = DNNL_ARG_SRC, .query = dnnl_query_src_md},
      {.arg = DNNL_ARG_WEIGHTS, .query = dnnl_query_weights_md},
      {.arg = DNNL_ARG_DST, .query = dnnl_query_dst_md},
      {.arg = DNNL_ARG_BIAS, .query = dnnl_query_weights_md, .index = 1},
  };
  if (!has_pass_for_y(k)) return CLV_OK;
  return clv_cpu_prim_init(&k->forward, c->forward, args, has_bias_added_by_onednn(k) ? 4 : 3, err);
}

static clv_code make_backward_input_primitive(conv_kernel *k, const clv_conv_choice *c,
                                              clv_err *err) {
  static const cpu_primitive_arg args[] = {
      {.arg = DNNL_ARG_DIFF_DST, .query = dnnl_query_diff_dst_md},
      {.arg = DNNL_ARG_WEIGHTS, .query = dnnl_query_weights_md},
      {.arg = DNNL_ARG_DIFF_SRC, .query = dnnl_query_diff_src_md},
  };
  if (!has_pass_for_x(k)) return CLV_OK;
  *(k->is_transposed ? &k->k.base.reorders_forward : &k->k.base.reorders_backward) +=
      k->din_layout != k->x_layout;
  return clv_cpu_prim_init(&k->backward_input, c->backward_input, args, 3, err);
}

static clv_code make_backward_weight_primitive(conv_kernel *k, const clv_conv_choice *c,
                                               clv_err *err) {
  static const cpu_primitive_arg args[] = {
      {.arg = DNNL_ARG_SRC, .query = dnnl_query_src_md},
      {.arg = DNNL_ARG_DIFF_DST, .query = dnnl_query_diff_dst_md},
      {.arg = DNNL_ARG_DIFF_WEIGHTS, .query = dnnl_query_diff_weights_md},
      {.arg = DNNL_ARG_DIFF_BIAS, .query = dnnl_query_diff_weights_md, .index = 1},
  };
  if (!k->k.d.need_dw) return CLV_OK;
  k->k.base.saved_flags = k->k.base.saved_flags_for_dw = CLV_SAVE_IN0;
  if (k->own_weight_grad) return CLV_OK;
  cpu_const_memory_desc dw =
      dnnl_primitive_desc_query_md(c->weight_grad, dnnl_query_diff_weights_md, 0);
  if (!dnnl_memory_desc_equal(dw, c->row_major_weight)) {
    k->gradient_is_tiled = is_tiled(k, dw, dnnl_f32, dnnl_OIhw16i16o);
    if (!k->gradient_is_tiled)
      CLV_TRY(clv_cpu_prim_init_reorder(&k->reorder_from_gradient, dw, c->row_major_weight, err));
    k->k.base.reorders_backward++;
    /* the size in bytes, until lay_out_scratch replaces it by the offset */
    k->dw_offset = dnnl_memory_desc_get_size(dw);
  }
  return clv_cpu_prim_init(&k->backward_weight, c->weight_grad, args,
                           has_bias_grad_in_weight_pass(k) ? 4 : 3, err);
}

static size_t own_weight_grad_scratch_bytes(const conv_kernel *k) {
  if (k->own_weight_grad == clv_cpu_product_conv_compute_dw)
    return clv_cpu_product_conv_scratch_bytes(&k->s, k->k.threads);
  if (k->own_weight_grad == clv_cpu_wide_conv_compute_dw)
    return clv_cpu_wide_conv_scratch_bytes(&k->s, k->k.threads);
  return clv_cpu_small_conv_scratch_bytes(&k->s, k->y_layout, k->k.threads);
}

/* Lays out scratch: one region for oneDNN's scratchpads, then the buffers of the weight gradient or
 * of the pass that computes x. No two functions run at once, so scratch has the size of the
 * largest. */
static void lay_out_scratch(conv_kernel *k) {
  const cpu_primitive *prims[] = {&k->forward,
                                  &k->backward_input,
                                  &k->backward_weight,
                                  &k->reorder_to_forward,
                                  &k->reorder_to_backward,
                                  &k->reorder_from_gradient};
  size_t scratchpad_floats = 0, line_floats = 64 / sizeof(float);
  for (size_t i = 0; i < CLV_COUNT(prims); i++)
    scratchpad_floats = CLV_MAX(scratchpad_floats, prims[i]->scratch_bytes);
  scratchpad_floats = clv_align_up(scratchpad_floats, 64) / sizeof(float);
  k->row_major_offset = scratchpad_floats + clv_align_up(k->dw_offset, 64) / sizeof(float);
  k->db_offset = k->row_major_offset +
                 clv_align_up(clv_layout_numel(&k->k.d.param[CLV_SLOT_WEIGHT], 1), line_floats);
  size_t weight_grad_floats = k->db_offset + clv_align_up((size_t)k->s.k, line_floats);
  k->dw_offset = k->din_offset = scratchpad_floats;
  size_t scratch_floats = scratchpad_floats;
  if (k->k.d.need_dw && k->own_weight_grad)
    scratch_floats = CLV_MAX(scratch_floats, own_weight_grad_scratch_bytes(k) / sizeof(float));
  else if (k->k.d.need_dw)
    scratch_floats = CLV_MAX(scratch_floats, weight_grad_floats);
  clv_shape x = make_x_shape(k);
  if (has_pass_for_x(k) && k->din_layout != k->x_layout)
    scratch_floats =
        CLV_MAX(scratch_floats, scratchpad_floats + clv_layout_numel(&x, k->din_layout));
  k->k.base.scratch_bytes = scratch_floats * sizeof(float);
}

static void choose_functions(conv_kernel *k) {
  clv_kernel *b = &k->k.base;
  bool is_transposed = k->is_transposed;
  b->free = conv_free;
  b->forward = is_transposed ? conv_transpose_forward : conv_forward;
  if (k->k.d.need_dx[0])
    b->backward_input = is_transposed ? conv_transpose_backward_input : conv_backward_input;
  if (k->k.d.need_dw)
    b->backward_weight = is_transposed ? conv_transpose_backward_weight : conv_backward_weight;
}

/* Returns the function of conv_int.h that computes the weight gradient; NULL: oneDNN computes it.
 */
static weight_grad_fn *choose_own_weight_grad(const conv_kernel *k, const clv_conv_choice *c) {
  int64_t groups = k->k.d.attrs.groups;
  cpu_shape_class shape_class = clv_cpu_class_of_conv(&k->s, groups);
  if (c->needs_amx)
    return clv_cpu_can_use_product_conv(&k->s, groups) &&
                   clv_cpu_choose(CPU_CONV_WEIGHT_BF16, shape_class) == CPU_PRODUCT
               ? clv_cpu_product_conv_compute_dw
               : NULL;
  if (c->is_bf16) return NULL;
  if (c->has_few_channels) return clv_cpu_small_conv_compute_dw;
  return groups == 1 && c->src_layout > 1 && clv_cpu_can_use_wide_conv(&k->s, c->src_layout) &&
                 clv_cpu_choose(CPU_CONV_WEIGHT_F32, shape_class) == CPU_LOOPS
             ? clv_cpu_wide_conv_compute_dw
             : NULL;
}

static clv_code make_kernel(conv_kernel *k, const clv_conv_choice *c, clv_err *err) {
  dnnl_engine_t engine;
  k->s = clv_window_of(&k->k.d);
  k->is_transposed = clv_is_conv_transpose(k->k.d.op);
  k->x_layout = c->src_layout;
  k->y_layout = c->dst_layout;
  choose_functions(k);
  k->is_bf16 = c->is_bf16;
  if (c->is_bf16) k->k.base.din_block[0] = c->src_layout;
  k->own_weight_grad = choose_own_weight_grad(k, c);
  k->din_layout = c->din_layout;
  CLV_TRY(clv_cpu_get_engine(&engine, err));
  CLV_TRY(clv_cpu_dnnl_check(dnnl_stream_create(&k->stream, engine, dnnl_stream_default_flags),
                             "stream", err));
  CLV_TRY(choose_weight_copies(k, c, err));
  CLV_TRY(make_forward_primitive(k, c, err));
  CLV_TRY(make_backward_input_primitive(k, c, err));
  CLV_TRY(make_backward_weight_primitive(k, c, err));
  lay_out_scratch(k);
  k->k.base.impl = has_pass_for_y(k) ? k->forward.impl : k->backward_input.impl;
  return CLV_OK;
}

static clv_code conv_prepare(const clv_node_desc *d, clv_kernel **ret, clv_err *err) {
  bool is_transposed = clv_is_conv_transpose(d->op);
  clv_conv_request request = {.s = clv_window_of(d),
                              .groups = d->attrs.groups,
                              .has_bias = d->attrs.bias && !is_transposed,
                              .wants_bf16 = d->bf16 && clv_op_def_of(d->op)->computes_in_bf16,
                              .allows_blocks = d->in[0].rank == 4};
  dnnl_primitive_attr_t attr;
  clv_conv_choice c = {0};
  conv_kernel *k;
  CLV_TRY(clv_cpu_make_dnnl_attr(&attr, err));
  clv_code code = clv_cpu_conv_choose(&request, attr, &c, err);
  dnnl_primitive_attr_destroy(attr);
  CLV_TRY(code);
  int layout_flags = c.is_bf16 ? CLV_LAYOUT_BF16 : 0;
  int x_layout = c.src_layout | layout_flags, y_layout = c.dst_layout | layout_flags;
  code = clv_cpu_kernel_new(d, sizeof *k, is_transposed ? y_layout : x_layout,
                            is_transposed ? x_layout : y_layout, &k, err);
  if (code == CLV_OK) {
    code = make_kernel(k, &c, err);
    if (code == CLV_OK)
      *ret = &k->k.base;
    else
      conv_free(&k->k.base);
  }
  clv_cpu_conv_choice_done(&c);
  return code;
}

CLV_CPU_OP(conv2d, conv_prepare)
CLV_CPU_OP(conv1d, conv_prepare)
CLV_CPU_OP(conv_transpose2d, conv_prepare)
CLV_CPU_OP(conv_transpose1d, conv_prepare)
