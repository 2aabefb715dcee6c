/* SPDX-License-Identifier: Apache-2.0
 *
 * Functions of the simulated device that kernels call. device.h defines the names of CUDA, such as
 * threadIdx, by these functions.
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

/* Index of the calling simulated thread in its block. The function is `const`, because a thread
 * runs one kernel only and its index never changes. */
clv_sim_index clv_sim_thread_index(void) __attribute__((const));
clv_sim_index clv_sim_block_index(void) __attribute__((const));
clv_sim_index clv_sim_block_size(void) __attribute__((const));
clv_sim_index clv_sim_grid_size(void) __attribute__((const));

/* Returns the array `key` in the block's shared memory. The first thread of the block that asks for
 * this array allocates it. */
void *clv_sim_shared(const void *key, size_t bytes);
void clv_sim_barrier(const char *where);
/* Returns the value that lane `from` of the warp passes as `bits`, after all lanes in `mask` have
 * called this function. */
uint64_t clv_sim_shuffle(unsigned mask, uint64_t bits, unsigned from, const char *where);

#ifdef __cplusplus
}
#endif
#endif
