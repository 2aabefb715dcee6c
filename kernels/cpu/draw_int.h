/* SPDX-License-Identifier: Apache-2.0
 *
 * draw_int: many words of a stream of random numbers at once.
 */
#ifndef CLEAVE_KERNELS_CPU_DRAW_INT_H
#define CLEAVE_KERNELS_CPU_DRAW_INT_H

#include "kernels/cpu/cpu_int.h"

enum { CPU_WORDS = 64 };

/* The words of 16 blocks from block `first` on, one block after the other; the same on any
 * processor. */
void clv_cpu_random_words(const clv_rng_stream *s, uint32_t first, uint32_t ret[CPU_WORDS]);

/* With u a word's top 24 bits over 2^24, u >= p exactly where they are at least this. */
uint32_t clv_cpu_dropout_limit(double p);

#endif
