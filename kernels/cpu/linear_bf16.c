/* SPDX-License-Identifier: Apache-2.0
 *
 * linear where a session computes in bf16: oneDNN's products of bf16 factors with sums in f32.
 *
 *   y = x W^T + b,  dx = dy W,  dW = dy^T x: the factors are rounded, to nearest even; the bias,
 *   its gradient and all results are f32.
 *
 * Each product's second factor is in the layout that the library wants of it. The two copies of the
 * weights are made by refresh, once for each change of them; x is turned for dW, and y's gradient
 * rounded, in scratch.
 */
#include "kernels/cpu/dnnl_int.h"

typedef struct bf16_product {
  cpu_prim run, add; /* C = A B and C += A B; add: dW alone */
  cpu_prim pack;     /* f32 to B's layout */
  size_t packed_bytes;
} bf16_product;

typedef struct linear_bf16 {
  cpu_kernel k;
  dnnl_stream_t stream;
  int64_t rows, in, out;
  bf16_product forward, data, weight;
  size_t backward_at;           /* bytes into the cache */
  size_t rounded_at, packed_at; /* bytes into scratch, behind the library's scratchpad */
} linear_bf16;

/* ---- execution ------------------------------------------------------------------------------- */

static uint8_t *in_scratch(const clv_kernel_args *a, size_t at) {
  return (uint8_t *)a->scratch + at;
}

static clv_code multiply(linear_bf16 *k, cpu_prim *p, const void *left, const void *right,
                         const void *result, const clv_kernel_args *a, clv_err *err) {
  return clv_cpu_prim_run(p, k->stream, (const void *[]){left, right, result, a->scratch}, err);
}

static clv_code pack(linear_bf16 *k, bf16_product *p, const void *from, void *to,
                     const clv_kernel_args *a, clv_err *err) {
  clv_cpu_count_reorder();
  return clv_cpu_prim_run(&p->pack, k->stream, (const void *[]){from, to, a->scratch}, err);
}

static clv_code linear_refresh(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  linear_bf16 *k = (linear_bf16 *)base;
  const void *w = a->param[CLV_SLOT_WEIGHT];
  clv_cpu_set_threads(k->k.threads);
  if (a->refresh_for & CLV_FOR_FORWARD) CLV_TRY(pack(k, &k->forward, w, a->cache, a, err));
  if (!(a->refresh_for & CLV_FOR_BACKWARD) || !k->data.run.primitive) return CLV_OK;
  return pack(k, &k->data, w, (uint8_t *)a->cache + k->backward_at, a, err);
}

/* The gradient or the input, row-major, in bf16. */
static const void *rounded(const linear_bf16 *k, const float *x, int64_t columns,
                           const clv_kernel_args *a) {
  void *to = in_scratch(a, k->rounded_at);
  clv_cpu_convert(x, 1, to, (size_t)(k->rows * columns));
  return to;
}

static clv_code linear_forward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  linear_bf16 *k = (linear_bf16 *)base;
  clv_cpu_set_threads(k->k.threads);
  const void *x = rounded(k, a->in[0], k->in, a);
  CLV_TRY(multiply(k, &k->forward.run, x, a->cache, a->out, a, err));
  if (k->k.d.attrs.bias)
    clv_cpu_add_bias(a->out, a->param[CLV_SLOT_BIAS], (size_t)k->rows, (size_t)k->out);
  return CLV_OK;
}

static clv_code linear_backward_input(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  linear_bf16 *k = (linear_bf16 *)base;
  clv_cpu_set_threads(k->k.threads);
  const void *dy = rounded(k, a->dout, k->out, a);
  return multiply(k, &k->data.run, dy, (uint8_t *)a->cache + k->backward_at, a->din[0], a, err);
}

/* Where W is stored transposed, dW = x^T dy. */
static clv_code linear_backward_weight(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  linear_bf16 *k = (linear_bf16 *)base;
  cpu_prim *run = a->accumulate ? &k->weight.add : &k->weight.run;
  bool t = k->k.d.attrs.transposed;
  void *right = in_scratch(a, k->packed_at);
  clv_cpu_set_threads(k->k.threads);
  const void *left = rounded(k, t ? a->in[0] : a->dout, t ? k->in : k->out, a);
  CLV_TRY(pack(k, &k->weight, t ? a->dout : a->in[0], right, a, err));
  CLV_TRY(multiply(k, run, left, right, a->dparam[CLV_SLOT_WEIGHT], a, err));
  if (k->k.d.attrs.bias)
    clv_cpu_column_sums(a->dout, (size_t)k->rows, (size_t)k->out, a->dparam[CLV_SLOT_BIAS],
                        a->accumulate);
  return CLV_OK;
}

/* ---- making ---------------------------------------------------------------------------------- */

/* C[m][n] = A[m][k] B[k][n], A and B as their tags say how they lie, before B is packed. */
typedef struct factors {
  int64_t m, n, k;
  dnnl_format_tag_t left, right;
} factors;

static clv_code matrix(dnnl_memory_desc_t *md, int64_t rows, int64_t columns, dnnl_data_type_t type,
                       dnnl_format_tag_t tag, clv_err *err) {
  dnnl_dims_t dims = {rows, columns};
  return clv_cpu_dnnl_check(dnnl_memory_desc_init_by_tag(md, 2, dims, type, tag), "matrix", err);
}

static clv_code adding(dnnl_primitive_attr_t attr, clv_err *err) {
  dnnl_post_ops_t ops;
  CLV_TRY(clv_cpu_dnnl_check(dnnl_post_ops_create(&ops), "post-op", err));
  dnnl_status_t status = dnnl_post_ops_append_sum(ops, 1);
  if (status == dnnl_success) status = dnnl_primitive_attr_set_post_ops(attr, ops);
  dnnl_post_ops_destroy(ops);
  return clv_cpu_dnnl_check(status, "post-op", err);
}

static clv_code describe(const factors *s, const dnnl_memory_desc_t *right, bool adds,
                         dnnl_primitive_desc_t *ret, clv_err *err) {
  dnnl_memory_desc_t a, c;
  dnnl_matmul_desc_t d;
  dnnl_engine_t engine;
  dnnl_primitive_attr_t attr;
  CLV_TRY(matrix(&a, s->m, s->k, dnnl_bf16, s->left, err));
  CLV_TRY(matrix(&c, s->m, s->n, dnnl_f32, dnnl_ab, err));
  CLV_TRY(clv_cpu_engine(&engine, err));
  CLV_TRY(clv_cpu_dnnl_check(dnnl_matmul_desc_init(&d, &a, right, NULL, &c), "matmul", err));
  CLV_TRY(clv_cpu_dnnl_attr(&attr, err));
  clv_code code = adds ? adding(attr, err) : CLV_OK;
  if (code == CLV_OK)
    code =
        clv_cpu_dnnl_check(dnnl_primitive_desc_create(ret, &d, attr, engine, NULL), "matmul", err);
  dnnl_primitive_attr_destroy(attr);
  return code;
}

static clv_code init(cpu_prim *p, const factors *s, const dnnl_memory_desc_t *right, bool adds,
                     dnnl_memory_desc_t *ret_right, clv_err *err) {
  static const cpu_prim_arg args[] = {
      {.arg = DNNL_ARG_SRC, .query = dnnl_query_src_md},
      {.arg = DNNL_ARG_WEIGHTS, .query = dnnl_query_weights_md},
      {.arg = DNNL_ARG_DST, .query = dnnl_query_dst_md},
  };
  dnnl_primitive_desc_t pd;
  CLV_TRY(describe(s, right, adds, &pd, err));
  *ret_right = *dnnl_primitive_desc_query_md(pd, dnnl_query_weights_md, 0);
  clv_code code = clv_cpu_prim_init(p, pd, args, 3, err);
  dnnl_primitive_desc_destroy(pd);
  return code;
}

static clv_code make_product(bf16_product *p, const factors *s, bool adds, clv_err *err) {
  dnnl_memory_desc_t any, plain, right;
  CLV_TRY(matrix(&any, s->k, s->n, dnnl_bf16, dnnl_format_tag_any, err));
  CLV_TRY(matrix(&plain, s->k, s->n, dnnl_f32, s->right, err));
  CLV_TRY(init(&p->run, s, &any, false, &right, err));
  p->packed_bytes = clv_align_up(dnnl_memory_desc_get_size(&right), 64);
  if (adds) CLV_TRY(init(&p->add, s, &right, true, &right, err));
  return clv_cpu_prim_reorder(&p->pack, &plain, &right, err);
}

static void linear_free(clv_kernel *base) {
  linear_bf16 *k = (linear_bf16 *)base;
  bf16_product *all[] = {&k->forward, &k->data, &k->weight};
  for (size_t i = 0; i < CLV_COUNT(all); i++) {
    clv_cpu_prim_done(&all[i]->run);
    clv_cpu_prim_done(&all[i]->add);
    clv_cpu_prim_done(&all[i]->pack);
  }
  if (k->stream) dnnl_stream_destroy(k->stream);
  clv_freep(&k);
}

static size_t scratchpad(const linear_bf16 *k) {
  const bf16_product *all[] = {&k->forward, &k->data, &k->weight};
  size_t bytes = 0;
  for (size_t i = 0; i < CLV_COUNT(all); i++) {
    bytes = CLV_MAX(bytes, all[i]->run.scratch_bytes);
    bytes = CLV_MAX(bytes, all[i]->add.scratch_bytes);
    bytes = CLV_MAX(bytes, all[i]->pack.scratch_bytes);
  }
  return clv_align_up(bytes, 64);
}

static void lay_out(linear_bf16 *k) {
  clv_kernel *base = &k->k.base;
  int64_t wide = k->data.run.primitive || k->weight.run.primitive ? CLV_MAX(k->in, k->out) : k->in;
  base->refresh = linear_refresh;
  base->reorders_refresh = 1 + (k->data.run.primitive != NULL);
  base->reorders_backward = k->weight.run.primitive != NULL;
  base->cache_bytes = k->backward_at = k->forward.packed_bytes;
  base->cache_bytes += k->data.packed_bytes;
  k->rounded_at = scratchpad(k);
  k->packed_at = k->rounded_at + clv_align_up((size_t)(k->rows * wide) * sizeof(uint16_t), 64);
  base->scratch_bytes = k->packed_at + k->weight.packed_bytes;
  base->impl = k->forward.run.impl;
}

static clv_code make(linear_bf16 *k, clv_err *err) {
  bool t = k->k.d.attrs.transposed;
  const factors forward = {k->rows, k->out, k->in, dnnl_ab, t ? dnnl_ab : dnnl_ba};
  const factors data = {k->rows, k->in, k->out, dnnl_ab, t ? dnnl_ba : dnnl_ab};
  const factors weight = {t ? k->in : k->out, t ? k->out : k->in, k->rows, dnnl_ba, dnnl_ab};
  clv_kernel *base = &k->k.base;
  dnnl_engine_t engine;
  CLV_TRY(clv_cpu_engine(&engine, err));
  CLV_TRY(clv_cpu_dnnl_check(dnnl_stream_create(&k->stream, engine, dnnl_stream_default_flags),
                             "stream", err));
  CLV_TRY(make_product(&k->forward, &forward, false, err));
  if (k->k.d.need_dx[0]) CLV_TRY(make_product(&k->data, &data, false, err));
  if (k->k.d.need_dw) CLV_TRY(make_product(&k->weight, &weight, true, err));
  base->forward = linear_forward;
  base->backward_input = k->k.d.need_dx[0] ? linear_backward_input : NULL;
  base->backward_weight = k->k.d.need_dw ? linear_backward_weight : NULL;
  base->saves = base->saves_for_dw = k->k.d.need_dw ? CLV_SAVE_IN0 : 0;
  lay_out(k);
  return CLV_OK;
}

clv_code clv_cpu_linear_bf16(const clv_node_desc *d, clv_kernel **ret, clv_err *err) {
  const clv_shape *in = &d->in[0];
  linear_bf16 *k;
  CLV_TRY(clv_cpu_kernel_new(d, sizeof *k, 1, 1, &k, err));
  k->k.base.free = linear_free;
  k->in = in->dim[in->rank - 1];
  k->out = d->attrs.out;
  k->rows = k->in ? (int64_t)k->k.n_in / k->in : 0;
  clv_code code = make(k, err);
  if (code == CLV_OK)
    *ret = &k->k.base;
  else
    linear_free(&k->k.base);
  return code;
}
