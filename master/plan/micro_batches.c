/* SPDX-License-Identifier: Apache-2.0
 *
 * Numbers of micro-batches into which a batch can be cut.
 */
#include "master/plan/plan.h"

bool clv_can_cut_batch(uint64_t batch, uint64_t m, int64_t least, size_t *sizes) {
  return m > 0 && m <= batch && clv_chunk_sizes(batch, m, sizes) == m &&
         (int64_t)sizes[m - 1] >= least;
}

clv_code clv_micro_batch_choices(uint64_t batch, int64_t least, uint32_t also, uint32_t **ret,
                                 uint32_t *ret_n, clv_err *err) {
  CLV_AUTO(clv_freep) size_t *sizes = NULL;
  uint64_t most = CLV_MAX((uint64_t)CLV_MAX_MICRO_CHOICES, also);
  uint32_t *list, n = 0;
  CLV_TRY(clv_alloc(most, sizeof *sizes, &sizes, err));
  CLV_TRY(clv_alloc(most, sizeof *list, &list, err));
  for (uint64_t m = 1; m <= most; m++) {
    bool even = m <= CLV_MAX_MICRO_CHOICES && (batch % m == 0 || (m & (m - 1)) == 0);
    if ((even || m == also) && clv_can_cut_batch(batch, m, m == also ? 1 : least, sizes))
      list[n++] = (uint32_t)m;
  }
  *ret = list;
  *ret_n = n;
  return CLV_OK;
}
