/* SPDX-License-Identifier: Apache-2.0
 *
 * The functions of the cpu backend's clv_backend, and the preparation of its kernels
 * from gen/cpu_ops.def.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cpu/choices_int.h"
#include "kernels/cpu/dnnl_int.h"

/* ---- preparing kernels ----------------------------------------------------------------------- */

static void free_kernel(clv_kernel *k) { free(k); }

clv_code clv_cpu_kernel_new(const clv_node_desc *d, size_t size, int in_block, int out_block,
                            void *ret_pp, clv_err *err) {
  cpu_kernel *k;
  size_t bytes;
  CLV_TRY(clv_shape_bytes(&d->in[0], CLV_F32, &bytes, err));
  CLV_TRY(clv_shape_bytes(&d->out, CLV_F32, &bytes, err));
  CLV_TRY(clv_alloc(1, size, &k, err));
  k->d = *d;
  k->threads = CLV_MAX(d->threads, 1);
  k->n_in = clv_layout_numel(&d->in[0], in_block);
  k->n_out = clv_layout_numel(&d->out, out_block);
  k->has_backward = d->need_dw;
  for (int i = 0; i < d->n_in; i++) k->has_backward |= d->need_dx[i];
  k->base.free = free_kernel;
  for (int i = 0; i < CLV_MAX_IN; i++) k->base.in_block[i] = in_block;
  k->base.out_block = out_block;
  k->base.impl = "simd";
  *(cpu_kernel **)ret_pp = k;
  return CLV_OK;
}

void clv_cpu_order_recurrent_grads(cpu_kernel *k,
                                   clv_code (*weight_part)(clv_kernel *, const clv_kernel_args *,
                                                           clv_err *)) {
  bool needs_dw = k->d.need_dw, needs_dx = k->d.need_dx[0];
  k->base.fused_grads = needs_dw && !needs_dx;
  k->base.weight_part_is_last = needs_dw && needs_dx;
  k->base.backward_weight = k->base.weight_part_is_last ? weight_part : NULL;
  k->base.saved_flags = needs_dw ? CLV_SAVE_IN0 : 0;
  k->base.saved_flags_for_dw = k->base.weight_part_is_last ? CLV_SAVE_IN0 : 0;
}

int clv_cpu_offered_block(const clv_node_desc *d) {
  int b = clv_layout_block(d->offered_block[0]);
  if (d->in[0].rank == 4 && clv_layout_is_channels_last(d->offered_block[0]))
    return clv_layout_f32(d->offered_block[0]);
  return d->in[0].rank == 4 && (b == 8 || b == 16) ? b : 1;
}

#define CPU_OP(name) cpu_prepare_fn clv_cpu_prepare_##name;
#include "cpu_ops.def"
#undef CPU_OP

/* Functions that prepare the ops that this backend has; ref prepares the others. */
static cpu_prepare_fn *const prepare_fns[CLV_OP_COUNT] = {
#define CPU_OP(name) [CLV_OP_NUMBER_##name] = clv_cpu_prepare_##name,
#include "cpu_ops.def"
#undef CPU_OP
};

static bool cpu_has_op(clv_op op) {
  return op > CLV_OP_INPUT && op < CLV_OP_COUNT && prepare_fns[op];
}

/* Prepares a kernel with the node's number of threads, because oneDNN primitives fix theirs when
 * they are made, from the calling thread's setting. */
static clv_code cpu_prepare(const clv_backend *b, const clv_node_desc *d, clv_kernel **ret,
                            clv_err *err) {
  (void)b;
  if (d->dtype != CLV_F32 || !cpu_has_op(d->op))
    return clv_fail(err, CLV_UNIMPLEMENTED, "cpu has no op %d in %s", (int)d->op,
                    clv_dtype_name(d->dtype));
  const clv_op_def *row = clv_op_def_of(d->op);
  if (d->tail && !row->takes_tails)
    return clv_fail(err, CLV_UNIMPLEMENTED, "cpu has no op %d with a tail", (int)d->op);
  if (row->check_kernel) CLV_TRY(row->check_kernel(d, err));
  int previous_threads = clv_cpu_get_threads();
  clv_cpu_set_threads(d->threads);
  clv_code code = prepare_fns[d->op](d, ret, err);
  clv_cpu_set_threads(previous_threads);
  return code;
}

static clv_code cpu_reorder(const clv_backend *b, const clv_shape *shape, clv_dtype dtype,
                            const void *src, int src_block, void *dst, int dst_block,
                            clv_err *err) {
  const int blocks[] = {clv_layout_block(src_block), clv_layout_block(dst_block)};
  (void)b;
  bool changes_order =
      clv_layout_is_channels_last(src_block) != clv_layout_is_channels_last(dst_block);
  bool changes_type =
      !changes_order && clv_layout_is_bf16(src_block) != clv_layout_is_bf16(dst_block);
  if (shape->rank != 4 || dtype != CLV_F32)
    return clv_fail(err, CLV_INVALID, "reorder needs f32 of rank 4, got %s of rank %d",
                    clv_dtype_name(dtype), shape->rank);
  for (int i = 0; i < 2; i++)
    if (blocks[i] != 1 && blocks[i] != 8 && blocks[i] != 16)
      return clv_fail(err, CLV_INVALID, "channel block %d: it must be 1, 8 or 16", blocks[i]);
  if (changes_type && blocks[0] != blocks[1])
    return clv_fail(
        err, CLV_INVALID,
        "a conversion between f32 and bf16 cannot change the channel block from %d to %d",
        blocks[0], blocks[1]);
  if (changes_type) {
    clv_cpu_count_reorder();
    clv_cpu_convert_type(src, src_block, dst, clv_layout_numel(shape, src_block));
  } else {
    clv_cpu_reorder(shape, src, src_block, dst, dst_block);
  }
  return CLV_OK;
}

/* ---- names of the instruction set and the libraries ------------------------------------------ */

const char *clv_cpu_isa_name(unsigned isa, bool is_amx_ready) {
#define ISA(name) {dnnl_cpu_isa_##name, #name},
  static const struct {
    unsigned isa;
    const char *name;
  } isa_names[] = {CPU_ISAS(ISA)};
#undef ISA
  static const char amx_prefix[] = "avx512_core_amx";
  for (size_t i = 0; i < CLV_COUNT(isa_names); i++)
    if (isa_names[i].isa == isa)
      return is_amx_ready || strncmp(isa_names[i].name, amx_prefix, strlen(amx_prefix)) != 0
                 ? isa_names[i].name
                 : "avx512_core_amx_refused";
  return "generic";
}

static const char *cpu_isa(const clv_backend *b) {
  (void)b;
  return clv_cpu_isa_name((unsigned)dnnl_get_effective_cpu_isa(), clv_cpu_has_amx());
}

int clv_cpu_channel_block(void) {
  unsigned avx512_bits = dnnl_cpu_isa_avx512_core;
  return ((unsigned)dnnl_get_effective_cpu_isa() & avx512_bits) == avx512_bits ? 16 : 8;
}

static char libraries_text[192];

static void fill_libraries_text(void) {
  const dnnl_version_t *v = dnnl_version();
  snprintf(libraries_text, sizeof libraries_text, "oneDNN %d.%d.%d, %s, choices %s", v->major,
           v->minor, v->patch, clv_cpu_blas_version(), clv_cpu_choices_digest());
}

static const char *cpu_libraries(const clv_backend *b) {
  (void)b;
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, fill_libraries_text);
  return libraries_text;
}

static void cpu_add(const clv_backend *b, clv_dtype dtype, void *dst, const void *src, size_t n) {
  (void)b;
  clv_cpu_add_to(dtype, dst, src, n);
}

unsigned clv_backend_cpu_bf16_percent(const clv_node_desc *d, const char **ret_processor) {
  return clv_cpu_bf16_percent(d, ret_processor);
}

const clv_backend *clv_backend_cpu(void) {
  static const clv_backend backend = {
      .abi = CLV_KERNELS_ABI,
      .size = sizeof(clv_backend),
      .name = "cpu",
      .device = "cpu",
      .prepare = cpu_prepare,
      .has = cpu_has_op,
      .reorder = cpu_reorder,
      .add = cpu_add,
      .sum_squares = clv_cpu_sum_squares,
      .step = clv_cpu_step,
      .set_threads = clv_cpu_set_threads,
      .isa = cpu_isa,
      .libraries = cpu_libraries,
      .check_bf16 = clv_cpu_check_bf16,
      .reorder_count = clv_cpu_reorder_count,
      .trim = clv_cpu_trim_cache,
  };
  return &backend;
}
