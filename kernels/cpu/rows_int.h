/* SPDX-License-Identifier: Apache-2.0
 *
 * rows_int: sums over the exponentials of a row, for softmax and the losses of classes. All in
 * double, as in ref: the values rounded to f32 are equal, unless they are almost half way
 * between two floats.
 */
#ifndef CLEAVE_KERNELS_CPU_ROWS_INT_H
#define CLEAVE_KERNELS_CPU_ROWS_INT_H

#include "kernels/cpu/cpu_int.h"

/* Returns the largest value of a row. The result may ignore a NaN, because the sum of exponentials
 * is NaN then. */
float clv_cpu_row_max(const float *x, size_t n);

/* Returns sum_i exp(x_i - top), where value i is added to the partial sum i % 16. */
double clv_cpu_row_exp_sum(const float *x, size_t n, double top);

#endif
