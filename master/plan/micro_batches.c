/* SPDX-License-Identifier: Apache-2.0
 *
 * Finds the numbers of micro-batches into which a batch can be cut (clv_list_micro_batch_choices).
 */
#include "master/plan/plan.h"

bool clv_can_cut_batch(uint64_t batch, uint64_t m, int64_t min_samples, size_t *sizes) {
  return m > 0 && m <= batch && clv_chunk_sizes(batch, m, sizes) == m &&
         (int64_t)sizes[m - 1] >= min_samples;
}

clv_code clv_list_micro_batch_choices(uint64_t batch, int64_t min_samples, uint32_t extra_choice,
                                      uint32_t **ret, uint32_t *ret_n, clv_err *err) {
  CLV_AUTO(clv_freep) size_t *sizes = NULL;
  uint64_t max_choice = CLV_MAX((uint64_t)CLV_MAX_AUTO_MICRO_BATCHES, extra_choice);
  uint32_t *choices, n = 0;
  CLV_TRY(clv_alloc(max_choice, sizeof *sizes, &sizes, err));
  CLV_TRY(clv_alloc(max_choice, sizeof *choices, &choices, err));
  for (uint64_t m = 1; m <= max_choice; m++) {
    bool is_divisor_or_power =
        m <= CLV_MAX_AUTO_MICRO_BATCHES && (batch % m == 0 || (m & (m - 1)) == 0);
    if ((is_divisor_or_power || m == extra_choice) &&
        clv_can_cut_batch(batch, m, m == extra_choice ? 1 : min_samples, sizes))
      choices[n++] = (uint32_t)m;
  }
  *ret = choices;
  *ret_n = n;
  return CLV_OK;
}
