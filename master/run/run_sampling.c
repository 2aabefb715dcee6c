/* SPDX-License-Identifier: Apache-2.0
 *
 * data.sampling and data.sampling_weights: training draws records with replacement.
 */
#include <stdlib.h>

#include "master/run/run_int.h"

clv_code clv_run_make_sampling(clv_run *r, clv_err *err) {
  const clv_data_config *d = &r->config->data;
  clv_err reason;
  free(clv_steal(&r->sampling_sums));
  if (!clv_data_samples(d) || !r->data.train) return CLV_OK;
  clv_code code =
      d->sampling == CLV_SAMPLING_COLUMN
          ? clv_sampling_sums_of_column(r->data.train, &r->data.train_rows, &r->sampling_sums,
                                        &reason)
          : clv_sampling_sums(r->data.train, &r->data.train_rows, d->sampling_weights.items,
                              d->sampling_weights.n, &r->sampling_sums, &reason);
  if (code == CLV_OK) return CLV_OK;
  return clv_session_fail_at(r->config, d->sampling_pos, err, "data.sampling: %s", reason.text);
}
