/* SPDX-License-Identifier: Apache-2.0
 *
 * Which records belong together, such as the images of a patient: a number for each record, equal
 * in a group. Where groups have names, the number is a digest of the name.
 */
#include <string.h>

#include "master/data/dataset_int.h"

/* FNV-1a of 64 bits: two names with one number would be held back together, and no more. */
int64_t clv_group_number(const char *name, size_t len) {
  uint64_t h = 0xcbf29ce484222325u;
  for (size_t i = 0; i < len; i++) h = (h ^ (unsigned char)name[i]) * 0x100000001b3u;
  return (int64_t)h;
}

void clv_dataset_set_groups(clv_dataset *ds, const clv_bytes *numbers) {
  memcpy(ds->groups, numbers->data, CLV_MIN(numbers->len, ds->count * sizeof *ds->groups));
}
