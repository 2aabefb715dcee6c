/* SPDX-License-Identifier: Apache-2.0
 *
 * draw_int: many words of a random stream at once.
 */
#ifndef CLEAVE_KERNELS_CPU_DRAW_INT_H
#define CLEAVE_KERNELS_CPU_DRAW_INT_H

#include "kernels/cpu/cpu_int.h"

enum { CPU_WORDS = 64 };

/* Writes the words of 16 blocks from block `first` on, one block after the other;
 * equal on any processor. */
void clv_cpu_random_words(const clv_rng_stream *s, uint32_t first, uint32_t ret[CPU_WORDS]);

/* Returns the least number of 24 bits that keeps a value: with u a word's top 24 bits over 2^24, u
 * >= p exactly if the bits are at least this number. */
uint32_t clv_cpu_dropout_limit(double p);

#endif
