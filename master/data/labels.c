/* SPDX-License-Identifier: Apache-2.0 */
#include "master/data/dataset_int.h"

bool clv_dataset_label(const clv_dataset *ds, size_t record, double *ret) {
  size_t each = 1;
  if (!ds->labels || record >= ds->count) return false;
  for (int i = 1; i < ds->y_shape.rank; i++) each *= (size_t)ds->y_shape.dim[i];
  if (each != 1) return false;
  *ret = ds->labels->dtype == CLV_F32 ? (double)((const float *)ds->labels->data)[record]
                                      : (double)clv_dataset_integer(ds->labels, record);
  return true;
}
