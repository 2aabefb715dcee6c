/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/ref/ref_int.h"

#define REAL float
#define MATH(name) name##f
#define OPS clv_ref_ops_f32
#include "kernels/ref/table_int.h"
