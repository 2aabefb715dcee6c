/* SPDX-License-Identifier: Apache-2.0
 *
 * Draws the random numbers of the simulation.
 */
#include "tests/gpu/sim/sim_int.h"

static uint64_t state;

void sim_draw_seed(uint64_t seed) { state = seed; }

/* Returns a random number below `below`, by splitmix64. */
uint64_t sim_draw_below(uint64_t below) {
  uint64_t z = state += 0x9E3779B97F4A7C15u;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return (z ^ (z >> 31)) % below;
}
