/* SPDX-License-Identifier: Apache-2.0
 *
 * Allocates the pixels of an image, within limits.
 */
#include <stdlib.h>

#include "master/data/image_int.h"

void clv_pixels_done(clv_pixels *p) {
  if (!p) return;
  free(p->data);
  *p = (clv_pixels){0};
}

clv_code clv_reserve_bytes(uint8_t **p, size_t *cap, size_t bytes, clv_err *err) {
  if (bytes <= *cap) return CLV_OK;
  free(*p);
  *p = NULL;
  *cap = 0;
  CLV_TRY(clv_alloc_aligned(bytes, p, err));
  *cap = bytes;
  return CLV_OK;
}

clv_code clv_pixels_reserve(const clv_encoded_image *in, clv_pixels as, clv_pixels *ret,
                            clv_err *err) {
  uint64_t n_pixels = (uint64_t)as.width * as.height;
  if (n_pixels == 0)
    return clv_fail(err, CLV_DATA_LOSS, "an image of %u x %u has no pixels", as.width, as.height);
  if (n_pixels > in->max_pixels)
    return clv_fail(err, CLV_DATA_LOSS,
                    "%u x %u are %llu pixels, the limit is %llu: make it smaller, or raise "
                    "data.images.max_pixels",
                    as.width, as.height, (unsigned long long)n_pixels,
                    (unsigned long long)in->max_pixels);
  as.data = ret->data;
  as.cap = ret->cap;
  *ret = as;
  if (in->reads_header_only) return CLV_OK;
  return clv_reserve_bytes(&ret->data, &ret->cap,
                           n_pixels * CLV_MAX(as.channels, in->channels) << as.has_16_bits, err);
}
