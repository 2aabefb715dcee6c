/* SPDX-License-Identifier: Apache-2.0
 *
 * add and mul of inputs that stand for several values, in f32 whatever the session computes in.
 */
#include "kernels/cuda/broadcast_int.h"

clv_code clv_gpu_broadcast_forward(const cuda_kernel *k, const clv_kernel_args *a, clv_err *err) {
  clv_broadcast v = clv_broadcast_of(&k->r.d);
  return clv_gpu_broadcast(k->gpu, &v, k->r.d.op == CLV_OP_MUL, a->in[0], a->in[1], a->out,
                           k->r.n_out, err);
}

/* Neighbouring threads take neighbouring values where these lie so in the output, if there are
 * enough of them, or few terms. */
enum { ENOUGH_VALUES = 4096, FEW_TERMS = 32 };

static cuda_fold fold_of(const clv_broadcast *v, int input) {
  cuda_fold f = {.values = 1, .terms = 1};
  size_t out = 1;
  for (int i = 0; i < v->rank; i++) out *= v->n[i];
  for (int i = 0; i < v->rank; i++) {
    bool kept = !i || v->step[input][i];
    int to = kept ? f.rank++ : f.n_summed++;
    out /= v->n[i];
    (kept ? f.n : f.summed)[to] = v->n[i];
    (kept ? f.out : f.summed_out)[to] = out;
    (kept ? f.other : f.summed_other)[to] = v->step[1 - input][i];
    *(kept ? &f.values : &f.terms) *= v->n[i];
  }
  f.alone = f.terms == 1 ||
            (v->step[input][v->rank - 1] && (f.values >= ENOUGH_VALUES || f.terms <= FEW_TERMS));
  return f;
}

clv_code clv_gpu_broadcast_backward(const cuda_kernel *k, const clv_kernel_args *a, clv_err *err) {
  clv_broadcast v = clv_broadcast_of(&k->r.d);
  for (int i = 0; i < 2; i++) {
    cuda_fold f = fold_of(&v, i);
    if (!a->din[i]) continue;
    CLV_TRY(clv_gpu_fold(k->gpu, &f, a->dout, k->r.d.op == CLV_OP_MUL ? a->in[1 - i] : NULL,
                         a->din[i], err));
  }
  return CLV_OK;
}
