/* SPDX-License-Identifier: Apache-2.0
 *
 * Draws the random numbers of the simulation.
 */
#ifndef CLEAVE_SIMULATE_RANDOM_H
#define CLEAVE_SIMULATE_RANDOM_H

#include <stdint.h>

/* Random numbers of splitmix64, which are the same on all machines. */
typedef struct sim_random {
  uint64_t rng_state;
} sim_random;

static inline uint64_t sim_draw_number(sim_random *r) {
  uint64_t z = (r->rng_state += UINT64_C(0x9e3779b97f4a7c15));
  z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
  z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
  return z ^ (z >> 31);
}

static inline uint32_t sim_draw_below(sim_random *r, uint32_t n) {
  return (uint32_t)((sim_draw_number(r) >> 32) * n >> 32);
}

#endif
