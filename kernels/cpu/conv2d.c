/* SPDX-License-Identifier: Apache-2.0
 *
 * Convolutions with oneDNN's direct algorithm, between x, y and the weights. A transposed
 * convolution reads y and computes x, as the input gradient of a convolution does, so its passes
 * are those of a convolution in other roles.
 *
 * The parameters hold the weights row-major; refresh copies them to the library's formats, one copy
 * for y from x and one for x from y.
 */
#include <string.h>

#include "kernels/cpu/choices_int.h"
#include "kernels/cpu/conv_choice_int.h"
#include "kernels/cpu/norm_int.h"

typedef void weight_grad_fn(const cpu_weight_job *job);

typedef struct conv_kernel {
  cpu_kernel k;
  clv_window s;
  bool is_transposed;
  dnnl_stream_t stream;
  /* oneDNN's primitives that compute y from x, x from y, and the weight gradient from both */
  cpu_prim forward, backward_input, backward_weight;
  /* reorders of weights and their gradient; not made where the formats are equal */
  cpu_prim to_forward, to_backward, from_gradient;
  /* conv_weights.c packs the weights or unpacks the gradient, in place of the reorder to_forward,
   * to_backward or from_gradient */
  bool forward_weights_are_tiled, backward_weights_are_tiled, gradient_is_tiled;
  /* the weight copy for x from y has its tiles ordered [C/16][K/16] */
  bool backward_tiles_are_c_major;
  /* the pass that computes x from y reads a copy of the weights in the cache, not the parameters */
  bool caches_backward_weights;
  /* offset in the cache, in floats, of the copy of the weights that the pass from y to x reads */
  size_t backward_offset;
  /* function for the weight gradient; NULL: oneDNN computes it */
  weight_grad_fn *own_weight_grad;
  int x_block, y_block; /* layouts of x and y; their values are bf16 if `bf16` is set, else f32 */
  int din_block;        /* f32 layout in which x is computed from y */
  bool bf16;            /* x, y, the gradient of y and the copies of the weights are bf16 */
  /* offsets into scratch after oneDNN's scratchpad, in floats */
  size_t dw_offset, row_major_offset, db_offset, din_offset;
} conv_kernel;

/* True if the op has a pass that computes y, or x: for a transposed convolution forward computes x,
 * and the input gradient y. */
static bool computes_y(const conv_kernel *k) { return !k->is_transposed || k->k.d.need_dx[0]; }
static bool computes_x(const conv_kernel *k) { return k->is_transposed || k->k.d.need_dx[0]; }
/* True if oneDNN adds the bias; the bias of a transposed convolution is added to x separately. */
static bool primitives_add_bias(const conv_kernel *k) {
  return k->k.d.attrs.bias && !k->is_transposed;
}

/* ---- copies of the weights ------------------------------------------------------------------- */

static const float *forward_weight(const conv_kernel *k, const clv_kernel_args *a) {
  return k->to_forward.primitive || k->forward_weights_are_tiled ? a->cache
                                                                 : a->param[CLV_SLOT_WEIGHT];
}

static const float *backward_weight(const conv_kernel *k, const clv_kernel_args *a) {
  if (!k->caches_backward_weights) return a->param[CLV_SLOT_WEIGHT];
  return (const float *)a->cache + k->backward_offset;
}

static clv_code reorder_weight(conv_kernel *k, cpu_prim *p, const void *src, const void *dst,
                               const clv_kernel_args *a, clv_err *err) {
  clv_cpu_count_reorder();
  return clv_cpu_prim_run(p, k->stream, (const void *[]){src, dst, a->scratch}, err);
}

static cpu_weight_tiles describe_tiles(const conv_kernel *k, void *plain) {
  return (cpu_weight_tiles){.k = k->s.k,
                            .c = k->s.c,
                            .taps = k->s.kernel[0] * k->s.kernel[1],
                            .threads = k->k.threads,
                            .bf16 = k->bf16,
                            .row_major = plain};
}

static void pack_tiles(const conv_kernel *k, const clv_kernel_args *a, bool packs_forward,
                       bool packs_backward) {
  cpu_weight_tiles w = describe_tiles(k, a->param[CLV_SLOT_WEIGHT]);
  w.forward_tiles = packs_forward && k->forward_weights_are_tiled ? a->cache : NULL;
  w.backward_tiles = packs_backward && k->backward_weights_are_tiled
                         ? (float *)a->cache + k->backward_offset
                         : NULL;
  w.backward_tiles_are_c_major = k->backward_tiles_are_c_major;
  if (w.forward_tiles) clv_cpu_count_reorder();
  if (w.backward_tiles) clv_cpu_count_reorder();
  if (w.forward_tiles || w.backward_tiles) clv_cpu_weight_pack(&w);
}

static void unpack_tiles(const conv_kernel *k, float *tiles, float *row_major, bool accumulate) {
  cpu_weight_tiles w = describe_tiles(k, row_major);
  w.forward_tiles = tiles;
  w.unpack_adds = accumulate;
  clv_cpu_count_reorder();
  clv_cpu_weight_unpack(&w);
}

static clv_code conv_refresh(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  conv_kernel *k = (conv_kernel *)base;
  const void *w = a->param[CLV_SLOT_WEIGHT];
  bool has_two_copies = k->backward_weights_are_tiled || k->to_backward.primitive;
  unsigned y_pass = k->is_transposed ? CLV_FOR_BACKWARD : CLV_FOR_FORWARD;
  unsigned x_pass = CLV_FOR_FORWARD + CLV_FOR_BACKWARD - y_pass;
  bool packs_forward = a->refresh_for & y_pass || !has_two_copies,
       packs_backward = a->refresh_for & x_pass;
  clv_cpu_set_threads(k->k.threads);
  pack_tiles(k, a, packs_forward, packs_backward);
  if (packs_forward && k->to_forward.primitive)
    CLV_TRY(reorder_weight(k, &k->to_forward, w, forward_weight(k, a), a, err));
  if (packs_backward && k->to_backward.primitive)
    CLV_TRY(reorder_weight(k, &k->to_backward, w, backward_weight(k, a), a, err));
  return CLV_OK;
}

/* ---- running the passes ---------------------------------------------------------------------- */

static clv_code compute_y(conv_kernel *k, const clv_kernel_args *a, const void *x, void *y,
                          clv_err *err) {
  const void *with_bias[] = {x, forward_weight(k, a), y, a->param[CLV_SLOT_BIAS], a->scratch};
  const void *without_bias[] = {x, forward_weight(k, a), y, a->scratch};
  clv_cpu_set_threads(k->k.threads);
  return clv_cpu_prim_run(&k->forward, k->stream, primitives_add_bias(k) ? with_bias : without_bias,
                          err);
}

static clv_shape shape_of_x(const conv_kernel *k) {
  return CLV_SHAPE(k->s.n, k->s.c, k->s.h, k->s.w);
}

static clv_code compute_x(conv_kernel *k, const clv_kernel_args *a, const void *y, void *x,
                          clv_err *err) {
  int x_block = k->x_block;
  bool needs_reorder = k->din_block != x_block;
  float *din = needs_reorder ? (float *)a->scratch + k->din_offset : x;
  const void *pointers[] = {y, backward_weight(k, a), din, a->scratch};
  clv_shape shape = shape_of_x(k);
  clv_cpu_set_threads(k->k.threads);
  CLV_TRY(clv_cpu_prim_run(&k->backward_input, k->stream, pointers, err));
  if (needs_reorder) clv_cpu_reorder(&shape, din, k->din_block, x, x_block);
  return CLV_OK;
}

static clv_code run_own_weight_grad(const conv_kernel *k, const clv_kernel_args *a, const void *x,
                                    const void *y) {
  cpu_weight_job job = {.s = k->s,
                        .block = k->y_block,
                        .threads = k->k.threads,
                        .x = x,
                        .dy = y,
                        .dw = a->dparam[CLV_SLOT_WEIGHT],
                        .db = primitives_add_bias(k) ? a->dparam[CLV_SLOT_BIAS] : NULL,
                        .scratch = a->scratch,
                        .accumulate = a->accumulate};
  k->own_weight_grad(&job);
  return CLV_OK;
}

/* Computes the weight gradient. oneDNN overwrites its output, so for a sum it writes to scratch
 * first. */
static clv_code compute_weight_grad(conv_kernel *k, const clv_kernel_args *a, const void *x,
                                    const void *y, clv_err *err) {
  bool bias = primitives_add_bias(k), is_tiled = k->gradient_is_tiled;
  bool needs_reorder = is_tiled || k->from_gradient.primitive;
  if (k->own_weight_grad) return run_own_weight_grad(k, a, x, y);
  float *scratch = a->scratch, *w = a->dparam[CLV_SLOT_WEIGHT], *b = a->dparam[CLV_SLOT_BIAS];
  float *row_major = a->accumulate ? scratch + k->row_major_offset : w;
  float *db = a->accumulate ? scratch + k->db_offset : b;
  float *dw = needs_reorder ? scratch + k->dw_offset : row_major;
  const void *with_bias[] = {x, y, dw, db, scratch};
  const void *without_bias[] = {x, y, dw, scratch};
  clv_cpu_set_threads(k->k.threads);
  CLV_TRY(clv_cpu_prim_run(&k->backward_weight, k->stream, bias ? with_bias : without_bias, err));
  if (is_tiled)
    unpack_tiles(k, dw, w, a->accumulate);
  else if (needs_reorder)
    CLV_TRY(reorder_weight(k, &k->from_gradient, dw, row_major, a, err));
  if (!a->accumulate) return CLV_OK;
  if (!is_tiled)
    clv_cpu_add_to(CLV_F32, w, row_major, clv_layout_numel(&k->k.d.param[CLV_SLOT_WEIGHT], 1));
  if (bias) clv_cpu_add_to(CLV_F32, b, db, (size_t)k->s.k);
  return CLV_OK;
}

static clv_code conv_forward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  return compute_y((conv_kernel *)base, a, a->in[0], a->out, err);
}

static clv_code conv_backward_input(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  return compute_x((conv_kernel *)base, a, a->dout, a->din[0], err);
}

static clv_code conv_backward_weight(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  return compute_weight_grad((conv_kernel *)base, a, a->in[0], a->dout, err);
}

/* ---- transposed convolutions ----------------------------------------------------------------- */

/* Returns the number of values of a plane of x: one channel block of one sample. */
static size_t plane_size(const conv_kernel *k) { return (size_t)(k->s.h * k->s.w * k->x_block); }
static size_t count_blocks(const conv_kernel *k) {
  return (size_t)((k->s.c + k->x_block - 1) / k->x_block);
}

static void add_bias(const conv_kernel *k, const float *bias, float *x) {
  size_t b = (size_t)k->x_block, plane = plane_size(k), blocks = count_blocks(k);
  for (size_t p = 0; p < (size_t)k->s.n * blocks; p++) {
    size_t first = p % blocks * b;
    clv_norm_affine f = {0};
    for (size_t l = 0; l < b; l++) f.scale[l] = 1;
    for (size_t l = 0; l < b && first + l < (size_t)k->s.c; l++) f.shift[l] = bias[first + l];
    clv_cpu_norm_apply(x + p * plane, NULL, plane, b, &f, false, x + p * plane);
  }
}

/* Computes the gradient of the bias: sums of channels in double, with the same bits in every
 * layout. */
static void bias_gradient(const conv_kernel *k, const float *dx, float *db, bool accumulate) {
  static const double zero[NORM_LANES];
  size_t b = (size_t)k->x_block, plane = plane_size(k), blocks = count_blocks(k);
  for (size_t block = 0; block < blocks; block++) {
    clv_norm_sums s = {0};
    for (size_t n = 0; n < (size_t)k->s.n; n++)
      clv_cpu_norm_add_moments(dx + (n * blocks + block) * plane, plane, b, zero, &s);
    for (size_t l = 0, c = block * b; l < b && c < (size_t)k->s.c; l++, c++) {
      const double *lane = &s.first[l];
      float sum = (float)((lane[0] + lane[2 * b]) + (lane[b] + lane[3 * b]));
      db[c] = accumulate ? db[c] + sum : sum;
    }
  }
}

static clv_code transpose_forward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  conv_kernel *k = (conv_kernel *)base;
  CLV_TRY(compute_x(k, a, a->in[0], a->out, err));
  if (k->k.d.attrs.bias) add_bias(k, a->param[CLV_SLOT_BIAS], a->out);
  return CLV_OK;
}

static clv_code transpose_backward_input(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  return compute_y((conv_kernel *)base, a, a->dout, a->din[0], err);
}

static clv_code transpose_backward_weight(clv_kernel *base, const clv_kernel_args *a,
                                          clv_err *err) {
  conv_kernel *k = (conv_kernel *)base;
  CLV_TRY(compute_weight_grad(k, a, a->dout, a->in[0], err));
  if (k->k.d.attrs.bias) bias_gradient(k, a->dout, a->dparam[CLV_SLOT_BIAS], a->accumulate);
  return CLV_OK;
}

/* ---- making the kernel ----------------------------------------------------------------------- */

static void conv_free(clv_kernel *base) {
  conv_kernel *k = (conv_kernel *)base;
  cpu_prim *prims[] = {&k->forward,    &k->backward_input, &k->backward_weight,
                       &k->to_forward, &k->to_backward,    &k->from_gradient};
  for (size_t i = 0; i < CLV_COUNT(prims); i++) clv_cpu_prim_done(prims[i]);
  if (k->stream) dnnl_stream_destroy(k->stream);
  clv_freep(&k);
}

static cpu_const_md weight_md(const_dnnl_primitive_desc_t pd) {
  return dnnl_primitive_desc_query_md(pd, dnnl_query_weights_md, 0);
}

/* True if oneDNN's layout `md` is that of `tag`, which conv_weights.c can pack. */
static bool is_tiled(const conv_kernel *k, cpu_const_md md, dnnl_data_type_t type,
                     dnnl_format_tag_t tag) {
  CLV_AUTO(clv_cpu_md_freep) cpu_md wanted = NULL;
  dnnl_dims_t dims = {k->s.k, k->s.c, k->s.kernel[0], k->s.kernel[1]};
  return clv_cpu_weight_tiles_fit(&k->s, k->k.d.attrs.groups, type == dnnl_bf16) &&
         cpu_md_create(&wanted, 4, dims, type, tag) == dnnl_success &&
         dnnl_memory_desc_equal(wanted, md);
}

typedef struct weight_tags {
  dnnl_data_type_t type;
  dnnl_format_tag_t forward_tiles, backward_tiles, c_major_backward_tiles;
} weight_tags;

static const weight_tags f32_tags = {dnnl_f32, dnnl_OIhw16i16o, dnnl_OIhw16o16i, dnnl_IOhw16o16i};
static const weight_tags bf16_tags = {dnnl_bf16, dnnl_OIhw8i16o2i, dnnl_OIhw8o16i2o,
                                      dnnl_IOhw8o16i2o};

/* Chooses the weight copies that refresh makes: none if oneDNN accepts row-major weights, one if
 * forward and backward use the same format. */
static clv_code choose_weight_copies(conv_kernel *k, const clv_conv_choice *c, clv_err *err) {
  cpu_const_md forward = weight_md(c->forward), backward = weight_md(c->backward_input);
  cpu_const_md row_major = c->row_major_weight;
  const weight_tags t = k->bf16 ? bf16_tags : f32_tags;
  clv_kernel *base = &k->k.base;
  if (!dnnl_memory_desc_equal(forward, row_major)) {
    k->forward_weights_are_tiled = is_tiled(k, forward, t.type, t.forward_tiles);
    if (!k->forward_weights_are_tiled)
      CLV_TRY(clv_cpu_prim_reorder(&k->to_forward, row_major, forward, err));
    base->cache_bytes = clv_align_up(dnnl_memory_desc_get_size(forward), 64);
    base->reorders_refresh++;
  }
  k->caches_backward_weights = !dnnl_memory_desc_equal(backward, row_major);
  if (computes_x(k) && k->caches_backward_weights && !dnnl_memory_desc_equal(backward, forward)) {
    k->backward_tiles_are_c_major = is_tiled(k, backward, t.type, t.c_major_backward_tiles);
    k->backward_weights_are_tiled =
        k->backward_tiles_are_c_major || is_tiled(k, backward, t.type, t.backward_tiles);
    if (!k->backward_weights_are_tiled)
      CLV_TRY(clv_cpu_prim_reorder(&k->to_backward, row_major, backward, err));
    k->backward_offset = base->cache_bytes / sizeof(float);
    base->cache_bytes += clv_align_up(dnnl_memory_desc_get_size(backward), 64);
    base->reorders_refresh++;
  }
  if (base->reorders_refresh) base->refresh = conv_refresh;
  return CLV_OK;
}

static clv_code make_forward(conv_kernel *k, const clv_conv_choice *c, clv_err *err) {
  static const cpu_prim_arg args[] = {
      {.arg = DNNL_ARG_SRC, .query = dnnl_query_src_md},
      {.arg = DNNL_ARG_WEIGHTS, .query = dnnl_query_weights_md},
      {.arg = DNNL_ARG_DST, .query = dnnl_query_dst_md},
      {.arg = DNNL_ARG_BIAS, .query = dnnl_query_weights_md, .index = 1},
  };
  if (!computes_y(k)) return CLV_OK;
  return clv_cpu_prim_init(&k->forward, c->forward, args, primitives_add_bias(k) ? 4 : 3, err);
}

static clv_code make_backward_input(conv_kernel *k, const clv_conv_choice *c, clv_err *err) {
  static const cpu_prim_arg args[] = {
      {.arg = DNNL_ARG_DIFF_DST, .query = dnnl_query_diff_dst_md},
      {.arg = DNNL_ARG_WEIGHTS, .query = dnnl_query_weights_md},
      {.arg = DNNL_ARG_DIFF_SRC, .query = dnnl_query_diff_src_md},
  };
  if (!computes_x(k)) return CLV_OK;
  *(k->is_transposed ? &k->k.base.reorders_forward : &k->k.base.reorders_backward) +=
      k->din_block != k->x_block;
  return clv_cpu_prim_init(&k->backward_input, c->backward_input, args, 3, err);
}

static clv_code make_backward_weight(conv_kernel *k, const clv_conv_choice *c, clv_err *err) {
  static const cpu_prim_arg args[] = {
      {.arg = DNNL_ARG_SRC, .query = dnnl_query_src_md},
      {.arg = DNNL_ARG_DIFF_DST, .query = dnnl_query_diff_dst_md},
      {.arg = DNNL_ARG_DIFF_WEIGHTS, .query = dnnl_query_diff_weights_md},
      {.arg = DNNL_ARG_DIFF_BIAS, .query = dnnl_query_diff_weights_md, .index = 1},
  };
  if (!k->k.d.need_dw) return CLV_OK;
  k->k.base.saved_flags = k->k.base.saved_flags_for_dw = CLV_SAVE_IN0;
  if (k->own_weight_grad) return CLV_OK;
  cpu_const_md dw = dnnl_primitive_desc_query_md(c->weight, dnnl_query_diff_weights_md, 0);
  if (!dnnl_memory_desc_equal(dw, c->row_major_weight)) {
    k->gradient_is_tiled = is_tiled(k, dw, dnnl_f32, dnnl_OIhw16i16o);
    if (!k->gradient_is_tiled)
      CLV_TRY(clv_cpu_prim_reorder(&k->from_gradient, dw, c->row_major_weight, err));
    k->k.base.reorders_backward++;
    /* the size in bytes, until lay_out_scratch replaces it by the offset */
    k->dw_offset = dnnl_memory_desc_get_size(dw);
  }
  return clv_cpu_prim_init(&k->backward_weight, c->weight, args, primitives_add_bias(k) ? 4 : 3,
                           err);
}

static size_t own_weight_grad_scratch(const conv_kernel *k) {
  if (k->own_weight_grad == clv_cpu_product_conv_weight)
    return clv_cpu_product_conv_scratch(&k->s, k->k.threads);
  if (k->own_weight_grad == clv_cpu_wide_conv_weight)
    return clv_cpu_wide_conv_scratch(&k->s, k->k.threads);
  return clv_cpu_small_conv_scratch(&k->s, k->y_block, k->k.threads);
}

/* Lays out scratch: one region for oneDNN's scratchpads, then the buffers of a weight gradient or
 * of an input gradient. No two functions run at once, so the largest need determines the size. */
static void lay_out_scratch(conv_kernel *k) {
  const cpu_prim *prims[] = {&k->forward,    &k->backward_input, &k->backward_weight,
                             &k->to_forward, &k->to_backward,    &k->from_gradient};
  size_t pad = 0, unit = 64 / sizeof(float);
  for (size_t i = 0; i < CLV_COUNT(prims); i++) pad = CLV_MAX(pad, prims[i]->scratch_bytes);
  pad = clv_align_up(pad, 64) / sizeof(float);
  k->row_major_offset = pad + clv_align_up(k->dw_offset, 64) / sizeof(float);
  k->db_offset =
      k->row_major_offset + clv_align_up(clv_layout_numel(&k->k.d.param[CLV_SLOT_WEIGHT], 1), unit);
  size_t weight = k->db_offset + clv_align_up((size_t)k->s.k, unit);
  k->dw_offset = k->din_offset = pad;
  size_t floats = pad;
  if (k->k.d.need_dw && k->own_weight_grad)
    floats = CLV_MAX(floats, own_weight_grad_scratch(k) / sizeof(float));
  else if (k->k.d.need_dw)
    floats = CLV_MAX(floats, weight);
  clv_shape x = shape_of_x(k);
  if (computes_x(k) && k->din_block != k->x_block)
    floats = CLV_MAX(floats, pad + clv_layout_numel(&x, k->din_block));
  k->k.base.scratch_bytes = floats * sizeof(float);
}

static void choose_functions(conv_kernel *k) {
  clv_kernel *b = &k->k.base;
  bool t = k->is_transposed;
  b->free = conv_free;
  b->forward = t ? transpose_forward : conv_forward;
  if (k->k.d.need_dx[0]) b->backward_input = t ? transpose_backward_input : conv_backward_input;
  if (k->k.d.need_dw) b->backward_weight = t ? transpose_backward_weight : conv_backward_weight;
}

/* Returns our function for the weight gradient; NULL: oneDNN computes it. */
static weight_grad_fn *choose_own_weight_grad(const conv_kernel *k, const clv_conv_choice *c) {
  int64_t groups = k->k.d.attrs.groups;
  cpu_shape_class shape_class = clv_cpu_class_of_conv(&k->s, groups);
  if (c->needs_amx)
    return clv_cpu_product_conv_fits(&k->s, groups) &&
                   clv_cpu_choose(CPU_CONV_WEIGHT_BF16, shape_class) == CPU_PRODUCT
               ? clv_cpu_product_conv_weight
               : NULL;
  if (c->bf16) return NULL;
  if (c->has_few_channels) return clv_cpu_small_conv_weight;
  return groups == 1 && c->src > 1 && clv_cpu_wide_conv_fits(&k->s, c->src) &&
                 clv_cpu_choose(CPU_CONV_WEIGHT_F32, shape_class) == CPU_LOOPS
             ? clv_cpu_wide_conv_weight
             : NULL;
}

static clv_code make_kernel(conv_kernel *k, const clv_conv_choice *c, clv_err *err) {
  dnnl_engine_t engine;
  k->s = clv_window_of(&k->k.d);
  k->is_transposed = clv_is_conv_transpose(k->k.d.op);
  k->x_block = c->src;
  k->y_block = c->dst;
  choose_functions(k);
  k->bf16 = c->bf16;
  if (c->bf16) k->k.base.din_block[0] = c->src;
  k->own_weight_grad = choose_own_weight_grad(k, c);
  k->din_block = c->din;
  CLV_TRY(clv_cpu_engine(&engine, err));
  CLV_TRY(clv_cpu_dnnl_check(dnnl_stream_create(&k->stream, engine, dnnl_stream_default_flags),
                             "stream", err));
  CLV_TRY(choose_weight_copies(k, c, err));
  CLV_TRY(make_forward(k, c, err));
  CLV_TRY(make_backward_input(k, c, err));
  CLV_TRY(make_backward_weight(k, c, err));
  lay_out_scratch(k);
  k->k.base.impl = computes_y(k) ? k->forward.impl : k->backward_input.impl;
  return CLV_OK;
}

static clv_code conv_prepare(const clv_node_desc *d, clv_kernel **ret, clv_err *err) {
  bool is_transposed = clv_is_conv_transpose(d->op);
  clv_conv_request request = {.s = clv_window_of(d),
                              .groups = d->attrs.groups,
                              .bias = d->attrs.bias && !is_transposed,
                              .bf16 = d->bf16 && clv_op_def_of(d->op)->computes_in_bf16,
                              .allows_blocks = d->in[0].rank == 4};
  dnnl_primitive_attr_t attr;
  clv_conv_choice c = {0};
  conv_kernel *k;
  CLV_TRY(clv_cpu_dnnl_attr(&attr, err));
  clv_code code = clv_cpu_conv_choose(&request, attr, &c, err);
  dnnl_primitive_attr_destroy(attr);
  CLV_TRY(code);
  int type = c.bf16 ? CLV_LAYOUT_BF16 : 0;
  int x = c.src | type, y = c.dst | type;
  code = clv_cpu_kernel_new(d, sizeof *k, is_transposed ? y : x, is_transposed ? x : y, &k, err);
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
