/* SPDX-License-Identifier: Apache-2.0
 *
 * onednn_int: the one place that knows which oneDNN the build has. Debian 12 has 2.6, Ubuntu 24.04
 * 3.1 and Debian 13 3.7. In 3 a memory description is an object. In 2 a primitive description is
 * made from a description of the operation, in 3 without one. Some names differ. The rest of the
 * interface that we use is equal in both.
 */
#ifndef CLEAVE_KERNELS_CPU_ONEDNN_INT_H
#define CLEAVE_KERNELS_CPU_ONEDNN_INT_H

#include <dnnl.h>
#include <stdlib.h>

/* cpu_memory_desc: a memory description that the caller owns. cpu_md_create makes it;
 * cpu_md_destroy frees it and accepts NULL. cpu_const_memory_desc: a memory description that
 * another object owns, such as a primitive description. oneDNN's functions take either. */
#if DNNL_VERSION_MAJOR >= 3
typedef dnnl_memory_desc_t cpu_memory_desc;
typedef const_dnnl_memory_desc_t cpu_const_memory_desc;
#else
typedef dnnl_memory_desc_t *cpu_memory_desc;
typedef const dnnl_memory_desc_t *cpu_const_memory_desc;
#endif

/* A convolution, for which the functions cpu_conv_..._desc_create make primitive descriptions of
 * its forward and gradients. bias: NULL if it has none. dilates: number of positions between two
 * taps. hint: the forward's primitive description, which only those of the gradients need. */
typedef struct cpu_conv_desc {
  dnnl_engine_t engine;
  dnnl_alg_kind_t algorithm;
  cpu_const_memory_desc src, weight, bias, dst;
  const dnnl_dim_t *strides, *dilates, *pads, *right_pads;
  const_dnnl_primitive_attr_t attr;
  const_dnnl_primitive_desc_t hint;
} cpu_conv_desc;

#if DNNL_VERSION_MAJOR >= 3

/* Instruction sets that oneDNN 2 does not know. */
#define CPU_NEWER_ISAS(ISA) ISA(avx2_vnni_2) ISA(avx512_core_fp16) ISA(avx512_core_amx_fp16)

static inline dnnl_status_t cpu_md_create(cpu_memory_desc *ret, int rank, const dnnl_dims_t dims,
                                          dnnl_data_type_t type, dnnl_format_tag_t tag) {
  return dnnl_memory_desc_create_with_tag(ret, rank, dims, type, tag);
}

static inline void cpu_md_destroy(cpu_memory_desc md) {
  if (md) dnnl_memory_desc_destroy(md);
}

static inline dnnl_status_t cpu_conv_forward_desc_create(dnnl_primitive_desc_t *ret,
                                                         const cpu_conv_desc *c) {
  return dnnl_convolution_forward_primitive_desc_create(
      ret, c->engine, dnnl_forward_training, c->algorithm, c->src, c->weight, c->bias, c->dst,
      c->strides, c->dilates, c->pads, c->right_pads, c->attr);
}

static inline dnnl_status_t cpu_conv_data_desc_create(dnnl_primitive_desc_t *ret,
                                                      const cpu_conv_desc *c) {
  return dnnl_convolution_backward_data_primitive_desc_create(
      ret, c->engine, c->algorithm, c->src, c->weight, c->dst, c->strides, c->dilates, c->pads,
      c->right_pads, c->hint, c->attr);
}

static inline dnnl_status_t cpu_conv_weight_desc_create(dnnl_primitive_desc_t *ret,
                                                        const cpu_conv_desc *c) {
  return dnnl_convolution_backward_weights_primitive_desc_create(
      ret, c->engine, c->algorithm, c->src, c->weight, c->bias, c->dst, c->strides, c->dilates,
      c->pads, c->right_pads, c->hint, c->attr);
}

#else

#define CPU_NEWER_ISAS(ISA)
#define dnnl_last_impl_reached dnnl_iterator_ends

static inline dnnl_status_t cpu_md_create(cpu_memory_desc *ret, int rank, const dnnl_dims_t dims,
                                          dnnl_data_type_t type, dnnl_format_tag_t tag) {
  *ret = calloc(1, sizeof **ret);
  if (!*ret) return dnnl_out_of_memory;
  return dnnl_memory_desc_init_by_tag(*ret, rank, dims, type, tag);
}

static inline void cpu_md_destroy(cpu_memory_desc md) { free(md); }

static inline dnnl_status_t cpu_conv_desc_create(dnnl_primitive_desc_t *ret, const cpu_conv_desc *c,
                                                 dnnl_status_t init_status,
                                                 const dnnl_convolution_desc_t *operation) {
  if (init_status != dnnl_success) return init_status;
  return dnnl_primitive_desc_create(ret, operation, c->attr, c->engine, c->hint);
}

static inline dnnl_status_t cpu_conv_forward_desc_create(dnnl_primitive_desc_t *ret,
                                                         const cpu_conv_desc *c) {
  dnnl_convolution_desc_t operation;
  dnnl_status_t init_status = dnnl_dilated_convolution_forward_desc_init(
      &operation, dnnl_forward_training, c->algorithm, c->src, c->weight, c->bias, c->dst,
      c->strides, c->dilates, c->pads, c->right_pads);
  return cpu_conv_desc_create(ret, c, init_status, &operation);
}

static inline dnnl_status_t cpu_conv_data_desc_create(dnnl_primitive_desc_t *ret,
                                                      const cpu_conv_desc *c) {
  dnnl_convolution_desc_t operation;
  dnnl_status_t init_status = dnnl_dilated_convolution_backward_data_desc_init(
      &operation, c->algorithm, c->src, c->weight, c->dst, c->strides, c->dilates, c->pads,
      c->right_pads);
  return cpu_conv_desc_create(ret, c, init_status, &operation);
}

static inline dnnl_status_t cpu_conv_weight_desc_create(dnnl_primitive_desc_t *ret,
                                                        const cpu_conv_desc *c) {
  dnnl_convolution_desc_t operation;
  dnnl_status_t init_status = dnnl_dilated_convolution_backward_weights_desc_init(
      &operation, c->algorithm, c->src, c->weight, c->bias, c->dst, c->strides, c->dilates, c->pads,
      c->right_pads);
  return cpu_conv_desc_create(ret, c, init_status, &operation);
}

#endif

static inline void clv_cpu_md_freep(const cpu_memory_desc *md) { cpu_md_destroy(*md); }

/* Calls ISA(name) for each instruction set that the library knows as dnnl_cpu_isa_NAME. */
#define CPU_AVX512_ISAS(ISA) ISA(avx512_core_vnni) ISA(avx512_core_bf16) ISA(avx512_core_amx)
#define CPU_OLDER_ISAS(ISA) ISA(sse41) ISA(avx) ISA(avx2) ISA(avx2_vnni) ISA(avx512_core)
#define CPU_ISAS(ISA) CPU_OLDER_ISAS(ISA) CPU_AVX512_ISAS(ISA) CPU_NEWER_ISAS(ISA)

#endif
