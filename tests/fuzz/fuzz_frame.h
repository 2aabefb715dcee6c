/* SPDX-License-Identifier: Apache-2.0
 *
 * A function of the fuzz targets that receive frames. One .c file of each target includes this
 * header.
 */
#ifndef CLEAVE_TESTS_FUZZ_FRAME_H
#define CLEAVE_TESTS_FUZZ_FRAME_H

#include "common/net/wire/wire.h"

/* Corrects the checksums of the tensors inside the frame, because a frame with a wrong checksum is
 * refused before anything else is read. */
static inline void correct_checksums(clv_frame *f, const clv_piece *piece,
                                     const clv_payload *payload) {
  size_t from = 0;
  for (uint32_t i = 0; i < f->n_tensors; i++) {
    clv_tensor_head *h = &f->tensors[i];
    if (h->transfer_id) continue;
    h->crc32c = clv_payload_crc32c(piece, payload, from, h->bytes);
    from += h->bytes;
  }
}

#endif
