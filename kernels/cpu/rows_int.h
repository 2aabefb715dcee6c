/* SPDX-License-Identifier: Apache-2.0
 *
 * rows_int: sums of the exponentials of a row, for softmax and the losses of classes. They are
 * computed in double, as in ref. Rounded to f32, results equal those of ref, unless a result is
 * almost half way between two floats.
 */
#ifndef CLEAVE_KERNELS_CPU_ROWS_INT_H
#define CLEAVE_KERNELS_CPU_ROWS_INT_H

#include "kernels/cpu/cpu_int.h"

/* Returns the largest value of a row. The result may ignore a NaN, because the sum of exponentials
 * is NaN then. */
float clv_cpu_find_row_max(const float *x, size_t n);

/* Returns sum_i exp(x_i - max_x), where value i is added to the partial sum i % 16. */
double clv_cpu_sum_row_exps(const float *x, size_t n, double max_x);

#endif
