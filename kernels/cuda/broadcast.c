/* SPDX-License-Identifier: Apache-2.0
 *
 * The ops add and mul for inputs whose shapes differ, so that one is broadcast.
 */
#include "kernels/cuda/broadcast_int.h"

/* Sets the layouts of the inputs of add and mul. An input of one value a channel has the same order
 * in all layouts, so its layout is 1, row-major f32. */
clv_code clv_gpu_broadcast_open(cuda_kernel *k, clv_err *err) {
  (void)err;
  for (int i = 0; i < 2 && k->channels_last && clv_has_broadcast_input(&k->r.d); i++)
    if (k->r.d.in[i].dim[2] * k->r.d.in[i].dim[3] == 1) k->r.base.in_block[i] = 1;
  return CLV_OK;
}

static clv_broadcast describe_broadcast(const cuda_kernel *k) {
  return k->channels_last ? clv_broadcast_channels_last(&k->r.d) : clv_broadcast_of(&k->r.d);
}

static cuda_bf16_flags make_bf16_flags(const cuda_kernel *k) {
  const clv_kernel *b = &k->r.base;
  return (cuda_bf16_flags){{clv_layout_is_bf16(b->in_block[0]), clv_layout_is_bf16(b->in_block[1])},
                           clv_layout_is_bf16(b->out_block)};
}

clv_code clv_gpu_broadcast_forward(const cuda_kernel *k, const clv_kernel_args *a, clv_err *err) {
  clv_broadcast v = describe_broadcast(k);
  cuda_bf16_flags flags = make_bf16_flags(k);
  return clv_gpu_broadcast(k->gpu, &v, &flags, k->r.d.op == CLV_OP_MUL, a->in[0], a->in[1], a->out,
                           k->r.n_out, err);
}

/* One thread computes a value of the gradient, in place of a block of threads, if neighbouring
 * values are adjacent in the output, and there are many values, or few terms to sum in each. */
enum { MANY_VALUES = 4096, FEW_TERMS = 32 };

static cuda_broadcast_sum describe_broadcast_sum(const clv_broadcast *v,
                                                 const cuda_bf16_flags *flags, int input_index) {
  cuda_broadcast_sum f = {.n_values = 1,
                          .n_terms = 1,
                          .dx_is_bf16 = flags->in[input_index],
                          .other_is_bf16 = flags->in[1 - input_index],
                          .dy_is_bf16 = flags->out};
  size_t out_stride = 1;
  for (int i = 0; i < v->rank; i++) out_stride *= v->n[i];
  for (int i = 0; i < v->rank; i++) {
    bool is_input_dim = !i || v->step[input_index][i];
    int index = is_input_dim ? f.rank++ : f.n_summed++;
    out_stride /= v->n[i];
    (is_input_dim ? f.extent : f.summed_extent)[index] = v->n[i];
    (is_input_dim ? f.out_stride : f.summed_out_stride)[index] = out_stride;
    (is_input_dim ? f.other_stride : f.summed_other_stride)[index] = v->step[1 - input_index][i];
    *(is_input_dim ? &f.n_values : &f.n_terms) *= v->n[i];
  }
  f.has_thread_per_value =
      f.n_terms == 1 ||
      (v->step[input_index][v->rank - 1] && (f.n_values >= MANY_VALUES || f.n_terms <= FEW_TERMS));
  return f;
}

clv_code clv_gpu_broadcast_backward(const cuda_kernel *k, const clv_kernel_args *a, clv_err *err) {
  clv_broadcast v = describe_broadcast(k);
  cuda_bf16_flags flags = make_bf16_flags(k);
  for (int i = 0; i < 2; i++) {
    cuda_broadcast_sum f = describe_broadcast_sum(&v, &flags, i);
    if (!a->din[i]) continue;
    CLV_TRY(clv_gpu_sum_broadcast(k->gpu, &f, a->dout,
                                  k->r.d.op == CLV_OP_MUL ? a->in[1 - i] : NULL, a->din[i], err));
  }
  return CLV_OK;
}
