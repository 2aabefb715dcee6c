/* SPDX-License-Identifier: Apache-2.0
 *
 * flatten and reshape: a copy from the layout that is offered to row-major.
 */
#include <string.h>

#include "kernels/cpu/cpu_int.h"

static clv_code reshape_forward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const cpu_kernel *k = (const cpu_kernel *)base;
  (void)err;
  if (base->in_block[0] != 1)
    clv_cpu_reorder(&k->d.in[0], a->in[0], base->in_block[0], a->out, 1);
  else if (a->out != a->in[0])
    memcpy(a->out, a->in[0], k->n_in * sizeof(float));
  return CLV_OK;
}

static clv_code reshape_backward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const cpu_kernel *k = (const cpu_kernel *)base;
  (void)err;
  if (base->in_block[0] != 1)
    clv_cpu_reorder(&k->d.in[0], a->dout, 1, a->din[0], base->in_block[0]);
  else if (a->din[0] != a->dout)
    memcpy(a->din[0], a->dout, k->n_out * sizeof(float));
  return CLV_OK;
}

static clv_code reshape_prepare(const clv_node_desc *d, clv_kernel **ret, clv_err *err) {
  cpu_kernel *k;
  int block = clv_cpu_offered_block(d);
  CLV_TRY(clv_cpu_kernel_new(d, sizeof *k, block, 1, &k, err));
  k->base.forward = reshape_forward;
  k->base.backward_input = d->need_dx[0] ? reshape_backward : NULL;
  k->base.in_place = block == 1;
  k->base.reorders_forward = block != 1;
  k->base.reorders_backward = block != 1 && d->need_dx[0];
  k->base.impl = "copy";
  *ret = &k->base;
  return CLV_OK;
}

CLV_CPU_OP(flatten, reshape_prepare)
CLV_CPU_OP(reshape, reshape_prepare)
