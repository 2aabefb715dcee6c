/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLEAVE_DIST_INT_H
#define CLEAVE_DIST_INT_H

#include "common/dist/dist.h"

/* `bytes` of tensors received through the link are free again. Grants are bundled: a CREDIT frame
 * leaves when a quarter of what this side accepts is due. */
void clv_link_return_credit(clv_link *link, uint64_t bytes);

/* The compute thread slept so long until a packet of this link came. */
void clv_link_awaited(clv_link *link, uint64_t ns);

/* The part of a CRC32C that a chunk with the sum `crc` contributes when `bytes` follow it; the sum
 * of the whole is the exclusive or of all parts. */
uint32_t clv_crc32c_shift(uint32_t crc, uint64_t bytes);

/* ---- module, called by the node on the compute thread ---------------------------------------- */

/* Make sure that n tensors of a size exist, so that none is made in the middle of a step. Their
 * memory is touched only when it is used. */
clv_code clv_pool_reserve(clv_pool *p, clv_dtype dtype, const clv_shape *shape, uint32_t n,
                          clv_err *err) CLV_USE_RESULT;
clv_code clv_pool_reserve_packets(clv_pool *p, uint32_t in_flight, clv_err *err) CLV_USE_RESULT;

/* Memory of the session outside the pool, counted against the pool's quota. CLV_EXHAUSTED over
 * it. */
clv_code clv_pool_charge(clv_pool *p, size_t bytes, clv_err *err) CLV_USE_RESULT;
void clv_pool_discharge(clv_pool *p, size_t bytes);

/* The session it belongs to from now on. */
void clv_module_bind(clv_module *m, clv_pool *pool);

uint32_t clv_module_index(const clv_module *m);
const char *clv_module_device(const clv_module *m); /* that computes it, "cpu" */

/* Pool tensors for the most that a step can hold at once: an activation and a gradient of each
 * micro-batch on either side of the module. */
clv_code clv_module_reserve(const clv_module *m, clv_pool *pool, clv_err *err) CLV_USE_RESULT;

#endif
