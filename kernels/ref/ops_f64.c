/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/ref/ref_int.h"

#define REAL double
#define MATH(name) name
#define OPS clv_ref_ops_f64
#include "kernels/ref/table_int.h"
