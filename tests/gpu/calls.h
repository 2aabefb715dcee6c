/* SPDX-License-Identifier: Apache-2.0
 *
 * calls: what kernels ask of the simulated device, under the names that device.h gives it.
 */
#ifndef CLEAVE_TESTS_GPU_CALLS_H
#define CLEAVE_TESTS_GPU_CALLS_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct clv_sim_index {
  unsigned x, y, z;
} clv_sim_index;

/* Constant as long as a thread lives, and a kernel is called once by each. */
clv_sim_index clv_sim_thread_index(void) __attribute__((const));
clv_sim_index clv_sim_block_index(void) __attribute__((const));
clv_sim_index clv_sim_block_size(void) __attribute__((const));
clv_sim_index clv_sim_grid_size(void) __attribute__((const));

/* The block's array `key`; made by the first of its threads that asks. */
void *clv_sim_shared(const void *key, size_t bytes);
void clv_sim_barrier(const char *where);
/* What lane `from` of the warp gave, once all lanes of the mask have come. */
uint64_t clv_sim_shuffle(unsigned mask, uint64_t bits, unsigned from, const char *where);

#ifdef __cplusplus
}
#endif
#endif
