/* SPDX-License-Identifier: Apache-2.0
 *
 * packed_int: packed sequences on a device. The host does not know their lengths, so a launch has
 * as many threads as padded sequences would need, and the threads for padding do nothing.
 */
#ifndef CLEAVE_KERNELS_CUDA_PACKED_INT_H
#define CLEAVE_KERNELS_CUDA_PACKED_INT_H

#include "kernels/cuda/gpu_int.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Packed sequences: n sequences of at most `steps` positions, stored one after another in [rows,
 * ...] in place of [n, steps, ...]. */
typedef struct cuda_packed {
  size_t n, steps, rows;
  /* [n + 1] the first row of each sequence, then the number of rows in use; NULL: the sequences are
   * not packed */
  const int64_t *first_rows;
} cuda_packed;

/* Returns the size of cuda_packed.first_rows in bytes; 0 if the sequences are not packed. */
static inline size_t gpu_packed_bytes(const cuda_kernel *k) {
  const clv_node_desc *d = &k->r.d;
  return d->attrs.packed ? ((size_t)d->in[d->n_in - 1].dim[0] + 1) * sizeof(int64_t) : 0;
}

/* Computes the first rows of the sequences from the lengths in the op's last input, and writes them
 * to `buffer`. A refused length counts as 0. */
clv_code clv_gpu_find_first_rows(const cuda_kernel *k, const clv_kernel_args *a, void *buffer,
                                 cuda_packed *ret, clv_err *err) CLV_USE_RESULT;

#ifdef __cplusplus
}
#endif
#endif
