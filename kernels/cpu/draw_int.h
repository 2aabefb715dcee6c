/* SPDX-License-Identifier: Apache-2.0
 *
 * draw_int: random numbers of the dropouts, many words of a random stream at once.
 */
#ifndef CLEAVE_KERNELS_CPU_DRAW_INT_H
#define CLEAVE_KERNELS_CPU_DRAW_INT_H

#include "kernels/cpu/cpu_int.h"

enum { CPU_RANDOM_WORDS = 64 };

/* Writes the random words of 16 Philox blocks, from block first_block on, one block after the
 * other. The words are the same on every processor. */
void clv_cpu_draw_words(const clv_rng_stream *s, uint32_t first_block,
                        uint32_t ret[CPU_RANDOM_WORDS]);

/* Returns the limit of a dropout with probability p: a value is kept exactly if the upper 24 bits
 * of its random word, as a number, are at least the limit, which is p 2^24 rounded up. */
uint32_t clv_cpu_dropout_threshold(double p);

#endif
