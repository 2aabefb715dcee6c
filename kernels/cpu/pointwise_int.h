/* SPDX-License-Identifier: Apache-2.0
 *
 * pointwise_int: element-wise ops. They give the same bits in any layout, so they use the layout
 * offered. If a function does not map 0 to 0, the padding channels are set to 0 afterwards.
 */
#ifndef CLEAVE_KERNELS_CPU_POINTWISE_INT_H
#define CLEAVE_KERNELS_CPU_POINTWISE_INT_H

#include "kernels/cpu/math_int.h"

/* Attributes p and q that a formula reads (clv_formula_numbers). */
typedef struct cpu_formula_numbers {
  float p, q;
} cpu_formula_numbers;

/* Computes y[i] from x[i], from z[i] if the op has a second input, and from the numbers. */
typedef void cpu_map_fn(const float *x, const float *z, float *y, size_t n,
                        cpu_formula_numbers numbers);

/* MAP(name, expression) defines a cpu_map_fn called `name`, which computes `expression` of x,
 * zs[i], p and q. In a backward map x is the saved value and zs[i] the gradient of the output. */
#define MAP(name, expression)                                                                      \
  CPU_INLINE void name##_body(const float *xs, const float *zs, float *ys, size_t n,               \
                              cpu_formula_numbers numbers) {                                       \
    const float p = numbers.p, q = numbers.q;                                                      \
    (void)zs, (void)p, (void)q;                                                                    \
    CPU_INDEPENDENT                                                                                \
    for (size_t i = 0; i < n; i++) {                                                               \
      float x = xs[i];                                                                             \
      (void)x;                                                                                     \
      ys[i] = (expression);                                                                        \
    }                                                                                              \
  }                                                                                                \
  CPU_CLONES(name,                                                                                 \
             (const float *xs, const float *zs, float *ys, size_t n, cpu_formula_numbers numbers), \
             (xs, zs, ys, n, numbers))

/* Makes a kernel for an op of one or two inputs: forward is `map`, backward_input is `back_map`
 * (NULL: the caller sets backward_input). The op's row in kernels/ops says which values are saved,
 * and if forward may run in place. cost_in_loads: cost of one element, in loads from memory. */
clv_code clv_cpu_pointwise(const clv_node_desc *d, cpu_map_fn *map, cpu_map_fn *back_map,
                           int cost_in_loads, clv_kernel **ret, clv_err *err) CLV_USE_RESULT;

/* CPU_POINTWISE(name, cost_in_loads) defines name_prepare, which makes the kernel of an op of one
 * input from the maps name_map and name_back. */
#define CPU_POINTWISE(name, cost_in_loads)                                                 \
  static clv_code name##_prepare(const clv_node_desc *d, clv_kernel **ret, clv_err *err) { \
    return clv_cpu_pointwise(d, name##_map, name##_back, cost_in_loads, ret, err);         \
  }

/* Prepares add and mul with broadcast inputs (clv_broadcast). */
cpu_prepare_fn clv_cpu_broadcast;

#endif
