/* SPDX-License-Identifier: Apache-2.0
 *
 * conv2d by oneDNN's direct convolutions.
 *
 * The layouts are the first of these that the library has fast code for, whatever gradients are
 * wanted: (1) input and output in channel blocks; for fewer channels than a block, input row-major
 * and output in blocks, with the weight gradient of conv_small.c and an input gradient that is made
 * in blocks and reordered; (2) all row-major. Weights stand row-major in the parameter block;
 * refresh keeps copies in the library's formats, one for forward and one for the input gradient.
 */
#include <string.h>

#include "kernels/cpu/conv_int.h"
#include "kernels/cpu/dnnl_int.h"

typedef struct conv_kernel {
  cpu_kernel k;
  cpu_window s;
  dnnl_stream_t stream;
  cpu_prim forward, backward_input, backward_weight;
  cpu_prim to_forward, to_backward, from_gradient; /* weight reorders; not made: same format */
  bool backward_cached;                            /* the input gradient reads the cache, */
  size_t backward_at;                              /* this many floats from its start */
  void (*own_weight)(const cpu_weight_job *job);   /* weight gradient; NULL: the library's */
  int din_block;                                   /* block the input gradient is computed in */
  size_t dw_at, plain_at, db_at, din_at; /* floats into scratch, behind the library's scratchpad */
} conv_kernel;

/* One choice of layouts, and what the library makes of it. */
typedef struct conv_choice {
  int src, dst, din;
  bool few; /* channels in */
  dnnl_primitive_desc_t forward, data, weight;
} conv_choice;

static void choice_done(conv_choice *c) {
  dnnl_primitive_desc_t pds[] = {c->forward, c->data, c->weight};
  for (size_t i = 0; i < CLV_COUNT(pds); i++)
    if (pds[i]) dnnl_primitive_desc_destroy(pds[i]);
  c->forward = c->data = c->weight = NULL;
}

/* ---- descriptions ---------------------------------------------------------------------------- */

typedef struct conv_mds {
  dnnl_memory_desc_t src, din, weight, plain_weight, bias, dst;
  const dnnl_memory_desc_t *maybe_bias;
  dnnl_dims_t strides, pads;
} conv_mds;

static dnnl_format_tag_t tag_of(int block) {
  return block == 16 ? dnnl_nChw16c : block == 8 ? dnnl_nChw8c : dnnl_nchw;
}

static dnnl_status_t weight_md(const clv_node_desc *d, const cpu_window *s, dnnl_format_tag_t plain,
                               dnnl_memory_desc_t *ret) {
  int64_t g = d->attrs.groups;
  dnnl_dims_t whole = {s->k, s->c, s->kernel[0], s->kernel[1]};
  dnnl_dims_t parts = {g, s->k / g, s->c / g, s->kernel[0], s->kernel[1]};
  return dnnl_memory_desc_init_by_tag(ret, g > 1 ? 5 : 4, g > 1 ? parts : whole, dnnl_f32, plain);
}

static clv_code describe(const clv_node_desc *d, const cpu_window *s, const conv_choice *c,
                         conv_mds *m, clv_err *err) {
  dnnl_dims_t src = {s->n, s->c, s->h, s->w}, dst = {s->n, s->k, s->oh, s->ow}, bias = {s->k};
  dnnl_status_t status[] = {
      dnnl_memory_desc_init_by_tag(&m->src, 4, src, dnnl_f32, tag_of(c->src)),
      dnnl_memory_desc_init_by_tag(&m->din, 4, src, dnnl_f32, tag_of(c->din)),
      dnnl_memory_desc_init_by_tag(&m->dst, 4, dst, dnnl_f32, tag_of(c->dst)),
      dnnl_memory_desc_init_by_tag(&m->bias, 1, bias, dnnl_f32, dnnl_a),
      weight_md(d, s, dnnl_format_tag_any, &m->weight),
      weight_md(d, s, d->attrs.groups > 1 ? dnnl_goihw : dnnl_oihw, &m->plain_weight),
  };
  for (size_t i = 0; i < CLV_COUNT(status); i++)
    CLV_TRY(clv_cpu_dnnl_check(status[i], "conv2d layout", err));
  m->maybe_bias = d->attrs.bias ? &m->bias : NULL;
  for (int i = 0; i < 2; i++) {
    m->strides[i] = s->stride[i];
    m->pads[i] = s->pad[i];
  }
  return CLV_OK;
}

/* The padding behind the image that the output's extent implies; may be negative. */
static void right_pads(const cpu_window *s, dnnl_dims_t ret) {
  for (int i = 0; i < 2; i++) {
    int64_t in = i ? s->w : s->h, out = i ? s->ow : s->oh;
    ret[i] = (out - 1) * s->stride[i] + s->kernel[i] - in - s->pad[i];
  }
}

/* The library's implementations for one choice, in c; a missing one is an error. */
static clv_code ask(const cpu_window *s, const conv_mds *m, dnnl_primitive_attr_t attr,
                    conv_choice *c, clv_err *err) {
  dnnl_engine_t engine;
  dnnl_convolution_desc_t forward, data, weight;
  dnnl_dims_t right = {0};
  right_pads(s, right);
  CLV_TRY(clv_cpu_engine(&engine, err));
  CLV_TRY(clv_cpu_dnnl_check(dnnl_convolution_forward_desc_init(
                                 &forward, dnnl_forward_training, dnnl_convolution_direct, &m->src,
                                 &m->weight, m->maybe_bias, &m->dst, m->strides, m->pads, right),
                             "conv2d", err));
  CLV_TRY(clv_cpu_dnnl_check(dnnl_primitive_desc_create(&c->forward, &forward, attr, engine, NULL),
                             "conv2d", err));
  CLV_TRY(clv_cpu_dnnl_check(
      dnnl_convolution_backward_data_desc_init(&data, dnnl_convolution_direct, &m->din, &m->weight,
                                               &m->dst, m->strides, m->pads, right),
      "conv2d input gradient", err));
  CLV_TRY(clv_cpu_dnnl_check(dnnl_primitive_desc_create(&c->data, &data, attr, engine, c->forward),
                             "conv2d input gradient", err));
  if (c->few) return CLV_OK;
  CLV_TRY(clv_cpu_dnnl_check(dnnl_convolution_backward_weights_desc_init(
                                 &weight, dnnl_convolution_direct, &m->src, &m->weight,
                                 m->maybe_bias, &m->dst, m->strides, m->pads, right),
                             "conv2d weight gradient", err));
  return clv_cpu_dnnl_check(
      dnnl_primitive_desc_create(&c->weight, &weight, attr, engine, c->forward),
      "conv2d weight gradient", err);
}

static bool is_fast(const_dnnl_primitive_desc_t pd) {
  const char *impl = "ref";
  dnnl_primitive_desc_query(pd, dnnl_query_impl_info_str, 0, (void *)&impl);
  return strncmp(impl, "ref", 3) != 0;
}

static clv_code choose(const clv_node_desc *d, const cpu_window *s, dnnl_primitive_attr_t attr,
                       conv_choice *ret, conv_mds *ret_mds, clv_err *err) {
  int b = clv_cpu_block();
  bool few = s->c < b && d->attrs.groups == 1;
  conv_choice choices[] = {{few ? 1 : b, b, b, few, NULL, NULL, NULL},
                           {1, 1, 1, false, NULL, NULL, NULL}};
  clv_code code = CLV_OK;
  for (size_t i = 0; i < CLV_COUNT(choices); i++) {
    conv_choice *c = &choices[i];
    CLV_TRY(describe(d, s, c, ret_mds, err));
    code = ask(s, ret_mds, attr, c, err);
    bool last = i + 1 == CLV_COUNT(choices);
    bool fast =
        code == CLV_OK && is_fast(c->forward) && is_fast(c->data) && (c->few || is_fast(c->weight));
    if (fast || (last && code == CLV_OK)) {
      *ret = *c;
      return CLV_OK;
    }
    choice_done(c);
  }
  return code;
}

/* ---- execution ------------------------------------------------------------------------------- */

static const float *forward_weight(const conv_kernel *k, const clv_kernel_args *a) {
  return k->to_forward.primitive ? a->cache : a->param[CLV_SLOT_WEIGHT];
}

static const float *backward_weight(const conv_kernel *k, const clv_kernel_args *a) {
  if (!k->backward_cached) return a->param[CLV_SLOT_WEIGHT];
  return (const float *)a->cache + k->backward_at;
}

static clv_code reorder_weight(conv_kernel *k, cpu_prim *p, const void *src, const void *dst,
                               const clv_kernel_args *a, clv_err *err) {
  clv_cpu_count_reorder();
  return clv_cpu_prim_run(p, k->stream, (const void *[]){src, dst, a->scratch}, err);
}

static clv_code conv_refresh(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  conv_kernel *k = (conv_kernel *)base;
  const void *w = a->param[CLV_SLOT_WEIGHT];
  clv_cpu_set_threads(k->k.threads);
  if (k->to_forward.primitive)
    CLV_TRY(reorder_weight(k, &k->to_forward, w, forward_weight(k, a), a, err));
  if (k->to_backward.primitive)
    CLV_TRY(reorder_weight(k, &k->to_backward, w, backward_weight(k, a), a, err));
  return CLV_OK;
}

static clv_code conv_forward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  conv_kernel *k = (conv_kernel *)base;
  bool bias = k->k.d.attrs.bias;
  const void *with[] = {a->in[0], forward_weight(k, a), a->out, a->param[CLV_SLOT_BIAS],
                        a->scratch};
  const void *without[] = {a->in[0], forward_weight(k, a), a->out, a->scratch};
  clv_cpu_set_threads(k->k.threads);
  return clv_cpu_prim_run(&k->forward, k->stream, bias ? with : without, err);
}

static clv_code conv_backward_input(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  conv_kernel *k = (conv_kernel *)base;
  bool apart = k->din_block != base->in_block[0];
  float *din = apart ? (float *)a->scratch + k->din_at : a->din[0];
  const void *pointers[] = {a->dout, backward_weight(k, a), din, a->scratch};
  clv_cpu_set_threads(k->k.threads);
  CLV_TRY(clv_cpu_prim_run(&k->backward_input, k->stream, pointers, err));
  if (apart) clv_cpu_reorder(&k->k.d.in[0], din, k->din_block, a->din[0], base->in_block[0]);
  return CLV_OK;
}

static clv_code own_weight(const conv_kernel *k, const clv_kernel_args *a) {
  cpu_weight_job job = {.s = k->s,
                        .block = k->k.base.out_block,
                        .threads = k->k.threads,
                        .x = a->in[0],
                        .dy = a->dout,
                        .dw = a->dparam[CLV_SLOT_WEIGHT],
                        .db = k->k.d.attrs.bias ? a->dparam[CLV_SLOT_BIAS] : NULL,
                        .scratch = a->scratch,
                        .accumulate = a->accumulate};
  k->own_weight(&job);
  return CLV_OK;
}

/* The library overwrites; a sum goes through scratch. */
static clv_code conv_backward_weight(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  conv_kernel *k = (conv_kernel *)base;
  bool bias = k->k.d.attrs.bias, reorders = k->from_gradient.primitive != NULL;
  if (k->own_weight) return own_weight(k, a);
  float *scratch = a->scratch, *w = a->dparam[CLV_SLOT_WEIGHT], *b = a->dparam[CLV_SLOT_BIAS];
  float *plain = a->accumulate ? scratch + k->plain_at : w;
  float *db = a->accumulate ? scratch + k->db_at : b;
  float *dw = reorders ? scratch + k->dw_at : plain;
  const void *with[] = {a->in[0], a->dout, dw, db, scratch};
  const void *without[] = {a->in[0], a->dout, dw, scratch};
  clv_cpu_set_threads(k->k.threads);
  CLV_TRY(clv_cpu_prim_run(&k->backward_weight, k->stream, bias ? with : without, err));
  if (reorders) CLV_TRY(reorder_weight(k, &k->from_gradient, dw, plain, a, err));
  if (!a->accumulate) return CLV_OK;
  clv_cpu_add_to(CLV_F32, w, plain, clv_layout_numel(&k->k.d.param[CLV_SLOT_WEIGHT], 1));
  if (bias) clv_cpu_add_to(CLV_F32, b, db, (size_t)k->s.k);
  return CLV_OK;
}

/* ---- making ---------------------------------------------------------------------------------- */

static void conv_free(clv_kernel *base) {
  conv_kernel *k = (conv_kernel *)base;
  cpu_prim *prims[] = {&k->forward,    &k->backward_input, &k->backward_weight,
                       &k->to_forward, &k->to_backward,    &k->from_gradient};
  for (size_t i = 0; i < CLV_COUNT(prims); i++) clv_cpu_prim_done(prims[i]);
  if (k->stream) dnnl_stream_destroy(k->stream);
  clv_freep(&k);
}

static const dnnl_memory_desc_t *weight_of(const_dnnl_primitive_desc_t pd) {
  return dnnl_primitive_desc_query_md(pd, dnnl_query_weights_md, 0);
}

/* Weight copies that refresh makes: none where the library takes row-major, one where forward and
 * backward agree. */
static clv_code make_caches(conv_kernel *k, const conv_choice *c, const conv_mds *m, clv_err *err) {
  const dnnl_memory_desc_t *forward = weight_of(c->forward), *data = weight_of(c->data);
  const dnnl_memory_desc_t *plain = &m->plain_weight;
  clv_kernel *base = &k->k.base;
  if (!dnnl_memory_desc_equal(forward, plain)) {
    CLV_TRY(clv_cpu_prim_reorder(&k->to_forward, plain, forward, err));
    base->cache_bytes = clv_align_up(dnnl_memory_desc_get_size(forward), 64);
    base->reorders_refresh++;
  }
  k->backward_cached = !dnnl_memory_desc_equal(data, plain);
  if (k->k.d.need_dx[0] && k->backward_cached && !dnnl_memory_desc_equal(data, forward)) {
    CLV_TRY(clv_cpu_prim_reorder(&k->to_backward, plain, data, err));
    k->backward_at = base->cache_bytes / sizeof(float);
    base->cache_bytes += clv_align_up(dnnl_memory_desc_get_size(data), 64);
    base->reorders_refresh++;
  }
  if (base->reorders_refresh) base->refresh = conv_refresh;
  return CLV_OK;
}

static clv_code make_forward(conv_kernel *k, const conv_choice *c, clv_err *err) {
  static const cpu_prim_arg args[] = {{DNNL_ARG_SRC, dnnl_query_src_md, 0},
                                      {DNNL_ARG_WEIGHTS, dnnl_query_weights_md, 0},
                                      {DNNL_ARG_DST, dnnl_query_dst_md, 0},
                                      {DNNL_ARG_BIAS, dnnl_query_weights_md, 1}};
  k->k.base.forward = conv_forward;
  return clv_cpu_prim_init(&k->forward, c->forward, args, k->k.d.attrs.bias ? 4 : 3, err);
}

static clv_code make_backward_input(conv_kernel *k, const conv_choice *c, clv_err *err) {
  static const cpu_prim_arg args[] = {{DNNL_ARG_DIFF_DST, dnnl_query_diff_dst_md, 0},
                                      {DNNL_ARG_WEIGHTS, dnnl_query_weights_md, 0},
                                      {DNNL_ARG_DIFF_SRC, dnnl_query_diff_src_md, 0}};
  if (!k->k.d.need_dx[0]) return CLV_OK;
  k->k.base.backward_input = conv_backward_input;
  k->k.base.reorders_backward += k->din_block != k->k.base.in_block[0];
  return clv_cpu_prim_init(&k->backward_input, c->data, args, 3, err);
}

static clv_code make_backward_weight(conv_kernel *k, const conv_choice *c, const conv_mds *m,
                                     clv_err *err) {
  static const cpu_prim_arg args[] = {{DNNL_ARG_SRC, dnnl_query_src_md, 0},
                                      {DNNL_ARG_DIFF_DST, dnnl_query_diff_dst_md, 0},
                                      {DNNL_ARG_DIFF_WEIGHTS, dnnl_query_diff_weights_md, 0},
                                      {DNNL_ARG_DIFF_BIAS, dnnl_query_diff_weights_md, 1}};
  if (!k->k.d.need_dw) return CLV_OK;
  k->k.base.backward_weight = conv_backward_weight;
  k->k.base.saves = CLV_SAVE_IN0;
  if (k->own_weight) return CLV_OK;
  const dnnl_memory_desc_t *dw =
      dnnl_primitive_desc_query_md(c->weight, dnnl_query_diff_weights_md, 0);
  if (!dnnl_memory_desc_equal(dw, &m->plain_weight)) {
    CLV_TRY(clv_cpu_prim_reorder(&k->from_gradient, dw, &m->plain_weight, err));
    k->k.base.reorders_backward++;
    k->dw_at = dnnl_memory_desc_get_size(dw); /* its size; lay_out_scratch turns it into a place */
  }
  return clv_cpu_prim_init(&k->backward_weight, c->weight, args, k->k.d.attrs.bias ? 4 : 3, err);
}

static size_t own_weight_scratch(const conv_kernel *k) {
  if (k->own_weight == clv_cpu_wide_conv_weight)
    return clv_cpu_wide_conv_scratch(&k->s, k->k.threads);
  return clv_cpu_small_conv_scratch(&k->s, k->k.base.out_block, k->k.threads);
}

/* One region for the library's scratchpads; behind it what a weight gradient or an input gradient
 * needs. No two functions run at once, so the largest need decides. */
static void lay_out_scratch(conv_kernel *k) {
  const cpu_prim *prims[] = {&k->forward,    &k->backward_input, &k->backward_weight,
                             &k->to_forward, &k->to_backward,    &k->from_gradient};
  size_t pad = 0, unit = 64 / sizeof(float);
  for (size_t i = 0; i < CLV_COUNT(prims); i++) pad = CLV_MAX(pad, prims[i]->scratch_bytes);
  pad = clv_align_up(pad, 64) / sizeof(float);
  k->plain_at = pad + clv_align_up(k->dw_at, 64) / sizeof(float);
  k->db_at = k->plain_at + clv_align_up(clv_layout_numel(&k->k.d.param[CLV_SLOT_WEIGHT], 1), unit);
  size_t weight = k->db_at + clv_align_up((size_t)k->s.k, unit);
  k->dw_at = k->din_at = pad;
  size_t floats = pad;
  if (k->k.d.need_dw && k->own_weight)
    floats = CLV_MAX(floats, own_weight_scratch(k) / sizeof(float));
  else if (k->k.d.need_dw)
    floats = CLV_MAX(floats, weight);
  if (k->k.d.need_dx[0] && k->din_block != k->k.base.in_block[0])
    floats = CLV_MAX(floats, pad + clv_layout_numel(&k->k.d.in[0], k->din_block));
  k->k.base.scratch_bytes = floats * sizeof(float);
}

static clv_code make(conv_kernel *k, const conv_choice *c, const conv_mds *m, clv_err *err) {
  dnnl_engine_t engine;
  k->k.base.free = conv_free;
  k->s = clv_cpu_window(&k->k.d);
  if (c->few)
    k->own_weight = clv_cpu_small_conv_weight;
  else if (k->k.d.attrs.groups == 1 && c->src > 1 && clv_cpu_wide_conv_fits(&k->s, c->src))
    k->own_weight = clv_cpu_wide_conv_weight;
  k->din_block = c->din;
  CLV_TRY(clv_cpu_engine(&engine, err));
  CLV_TRY(clv_cpu_dnnl_check(dnnl_stream_create(&k->stream, engine, dnnl_stream_default_flags),
                             "stream", err));
  CLV_TRY(make_caches(k, c, m, err));
  CLV_TRY(make_forward(k, c, err));
  CLV_TRY(make_backward_input(k, c, err));
  CLV_TRY(make_backward_weight(k, c, m, err));
  lay_out_scratch(k);
  k->k.base.impl = k->forward.impl;
  return CLV_OK;
}

clv_code clv_cpu_conv2d(const clv_node_desc *d, clv_kernel **ret, clv_err *err) {
  cpu_window s = clv_cpu_window(d);
  dnnl_primitive_attr_t attr;
  conv_choice c = {0};
  conv_mds m = {0};
  conv_kernel *k;
  CLV_TRY(clv_cpu_dnnl_attr(&attr, err));
  clv_code code = choose(d, &s, attr, &c, &m, err);
  dnnl_primitive_attr_destroy(attr);
  CLV_TRY(code);
  code = clv_cpu_kernel_new(d, sizeof *k, c.src, c.dst, &k, err);
  if (code == CLV_OK) {
    code = make(k, &c, &m, err);
    if (code == CLV_OK)
      *ret = &k->k.base;
    else
      conv_free(&k->k.base);
  }
  choice_done(&c);
  return code;
}
