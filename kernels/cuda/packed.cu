/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/packed_int.cuh"

/* Computes first_rows, the row in the packed tensor at which each sequence starts, and refuses
 * invalid lengths. One thread does all, because there are few sequences. */
static __global__ void compute_first_rows(cuda_packed p, const int64_t *lengths, cuda_refusal r,
                                          int64_t *first_rows, clv_gpu_fault *f) {
  size_t row = 0;
  for (size_t n = 0; n < p.n; n++) {
    first_rows[n] = static_cast<int64_t>(row);
    int64_t length = lengths[n];
    if (length < 0 || static_cast<size_t>(length) > p.steps ||
        static_cast<size_t>(length) > p.rows - row)
      gpu_refuse_value(f, n);
    else
      row += static_cast<size_t>(length);
  }
  first_rows[p.n] = static_cast<int64_t>(row);
  gpu_record_refusal(f, lengths, r);
}

clv_code clv_gpu_find_first_rows(const cuda_kernel *k, const clv_kernel_args *a, void *buffer,
                                 cuda_packed *ret, clv_err *err) {
  const clv_node_desc *d = &k->r.d;
  int lengths_input = d->n_in - 1;
  int64_t *first_rows = static_cast<int64_t *>(buffer);
  *ret = cuda_packed{static_cast<size_t>(d->in[lengths_input].dim[0]),
                     static_cast<size_t>(d->attrs.packed), static_cast<size_t>(d->in[0].dim[0]),
                     first_rows};
  cuda_refusal r = {d->op, a->key.layer, d->attrs.packed, d->in[0].dim[0]};
  return gpu_launch(k->gpu, 1, 1, err, compute_first_rows, *ret,
                    static_cast<const int64_t *>(a->in[lengths_input]), r, first_rows,
                    k->gpu->fault);
}
