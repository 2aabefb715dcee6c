/* SPDX-License-Identifier: Apache-2.0
 *
 * store: the weights a worker may load from its own disk. Masters name an artifact and its SHA-256;
 * the file behind the name stands in worker.yaml alone.
 *
 * Ownership: opened weights belong to the caller. Threads: no state.
 */
#ifndef CLEAVE_STORE_H
#define CLEAVE_STORE_H

#include "common/config/config.h"
#include "common/weights/weights.h"

/* Every artifact of the config exists and has its stated digest; the first that does not is named
 * with its line. Reads each file once: at start-up and for `check`. */
clv_code clv_store_check(const clv_worker_config *config, clv_err *err) CLV_USE_RESULT;

/* Open an artifact by name. CLV_NOT_FOUND: not in worker.yaml; CLV_DATA_LOSS: the file does not
 * have the digest that the master, or worker.yaml, states. */
clv_code clv_store_open(const clv_worker_config *config, const char *name, const clv_sha256 *want,
                        clv_weights_file **ret, clv_err *err) CLV_USE_RESULT;

#endif
