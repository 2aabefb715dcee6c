/* SPDX-License-Identifier: Apache-2.0
 *
 * draw_int: many words of a random stream at once.
 */
#ifndef CLEAVE_KERNELS_CPU_DRAW_INT_H
#define CLEAVE_KERNELS_CPU_DRAW_INT_H

#include "kernels/cpu/cpu_int.h"

enum { CPU_WORDS = 64 };

/* Writes the random words of 16 Philox blocks, from block `first` on, one block after the other.
 * The words are the same on every processor. */
void clv_cpu_random_words(const clv_rng_stream *s, uint32_t first, uint32_t ret[CPU_WORDS]);

/* Returns the limit of a dropout with probability p: a value is kept exactly if the top 24 bits of
 * its random word, as a number, are at least the limit (that is, at least p as a fraction of 2^24).
 */
uint32_t clv_cpu_dropout_threshold(double p);

#endif
