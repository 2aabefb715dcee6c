/* SPDX-License-Identifier: Apache-2.0
 *
 * checkpoints_int: functions that the files of this folder share: closing a descriptor, and
 * comparing a digest with a manifest.
 */
#ifndef CLEAVE_CHECKPOINTS_INT_H
#define CLEAVE_CHECKPOINTS_INT_H

#include "master/checkpoints/checkpoints.h"

/* number of bytes that one call reads from a file; a worker returns no more in one answer */
enum { CLV_CHECKPOINTS_RANGE_BYTES = 1 << 20 };

/* closes *fd unless it is -1; cleanup function for CLV_AUTO */
void clv_checkpoints_close_fdp(int *fd);

/* Compares a digest with the digest that the manifest lists for a file. CLV_DATA_LOSS: the digests
 * differ. */
clv_code clv_checkpoints_compare_digest(const clv_sha256 *found_digest, const clv_manifest_file *f,
                                        clv_err *err) CLV_USE_RESULT;

#endif
