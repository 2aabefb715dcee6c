/* SPDX-License-Identifier: Apache-2.0
 *
 * Groups of records, such as the images of one patient. Records of a group have the same number. If
 * groups have names, the number is a hash of the name.
 */
#include <string.h>

#include "master/data/dataset_int.h"

/* Returns FNV-1a, a hash of 64 bits. If two groups had the same hash, they would only be put into
 * the same part of a split. */
int64_t clv_group_number(const char *name, size_t len) {
  uint64_t h = 0xcbf29ce484222325u;
  for (size_t i = 0; i < len; i++) h = (h ^ (unsigned char)name[i]) * 0x100000001b3u;
  return (int64_t)h;
}

int64_t clv_time_number(double time) {
  int64_t time_bits;
  time += 0.0; /* turns -0 into 0, so that both have the same number */
  memcpy(&time_bits, &time, sizeof time_bits);
  return time_bits < 0 ? time_bits ^ INT64_MAX : time_bits;
}

void clv_dataset_set_groups(clv_dataset *ds, const clv_bytes *group_numbers) {
  memcpy(ds->groups, group_numbers->data,
         CLV_MIN(group_numbers->len, ds->count * sizeof *ds->groups));
}
