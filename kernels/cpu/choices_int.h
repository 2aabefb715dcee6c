/* SPDX-License-Identifier: Apache-2.0
 *
 * choices_int: which of several kernels computes a graph node, where this depends on measured
 * speed. The answers are rows of choices.def, which `make bench-choices` measures and writes. At
 * run time nothing is timed, so an answer follows from the graph node's shape class, the
 * instruction set and the library's version alone. Machines send the digest of choices.def to each
 * other, because two kernels for one op may give different bits.
 */
#ifndef CLEAVE_KERNELS_CPU_CHOICES_INT_H
#define CLEAVE_KERNELS_CPU_CHOICES_INT_H

#include "kernels/cpu/cpu_int.h"

/* Questions about a graph node: which layout, library or kind of product it uses. Each comment
 * lists the candidates. The first candidate is the default, for processors and libraries of which
 * choices.def has no row. A candidate that the processor or library lacks is not used even if
 * choices.def names it. */
typedef enum cpu_question {
  CPU_CONV_F32, /* layout of a convolution in f32: channel blocks or row-major */
  /* layout of a convolution in bf16: channel blocks, or channels last with AMX */
  CPU_CONV_BF16,
  /* weight gradient of a convolution three taps wide in channel blocks of 8: our own loops or
   * oneDNN */
  CPU_CONV_WEIGHT_F32,
  /* weight gradient of a convolution in channels last: oneDNN or our own product */
  CPU_CONV_WEIGHT_BF16,
  CPU_LINEAR_WEIGHT, /* weight gradient of linear in f32: oneDNN or OpenBLAS */
  /* products of attention in a session in bf16: factors in f32, or pairs of bf16 */
  CPU_ATTENTION_BF16,
  /* products of lstm in a session in bf16: factors in f32, or pairs of bf16 */
  CPU_LSTM_BF16,
  CPU_QUESTIONS /* number of questions */
} cpu_question;

/* Answers to the questions: layouts, libraries and kinds of products. CPU_LOOPS, CPU_PRODUCT: our
 * own loops, and our own product. CPU_PAIRS: products of pairs_int.h, whose factors are bf16. */
typedef enum cpu_candidate {
  CPU_BLOCKS,        /* layout in channel blocks */
  CPU_ROW_MAJOR,     /* layout [N, C, H, W] */
  CPU_CHANNELS_LAST, /* layout [N, H, W, C] */
  CPU_ONEDNN,
  CPU_LOOPS,   /* our own loops */
  CPU_PRODUCT, /* our own matrix product */
  CPU_OPENBLAS,
  CPU_F32,       /* products of f32 factors */
  CPU_PAIRS,     /* products of bf16 factors, packed in pairs (pairs_int.h) */
  CPU_CANDIDATES /* number of candidates */
} cpu_candidate;

/* Classes of shapes; the functions clv_cpu_class_of_... say which shapes each class has. */
typedef enum cpu_shape_class {
  CPU_DEPTHWISE, /* convolution with a group for each channel */
  CPU_GROUPED,
  CPU_FEW_CHANNELS,
  CPU_DILATED,
  CPU_POINTWISE,
  CPU_POINTWISE_STRIDED,
  CPU_WINDOW, /* a window of more than one tap and at most 3 x 3, as in the next two classes */
  CPU_WINDOW_SMALL_IMAGE,
  CPU_WINDOW_STRIDED,
  CPU_WIDE_WINDOW,
  CPU_WIDE_WINDOW_STRIDED,
  CPU_FEW_ROWS,     /* linear of few input rows, or lstm of a small batch */
  CPU_MANY_ROWS,    /* linear of many input rows */
  CPU_NARROW,       /* attention of narrow heads, or lstm of a small hidden size */
  CPU_WIDE,         /* attention of wide heads, or lstm of a large hidden size */
  CPU_SHAPE_CLASSES /* number of classes */
} cpu_shape_class;

/* Returns the class of a convolution, the first of these that fits. DEPTHWISE: a group for each
 * channel. GROUPED: fewer groups, but more than one. FEW_CHANNELS: fewer than 16 input channels.
 * DILATED: dilated taps. POINTWISE: one tap. WIDE_WINDOW: more than 3 taps along an axis. WINDOW:
 * other windows; with SMALL_IMAGE the output has at most 64 positions. STRIDED: a stride above 1.
 */
cpu_shape_class clv_cpu_class_of_conv(const clv_window *s, int64_t groups);
/* Returns the class of a linear layer. CPU_FEW_ROWS: fewer than 256 rows of input, which are the
 * terms of the sums of its weight gradient; otherwise CPU_MANY_ROWS. */
cpu_shape_class clv_cpu_class_of_linear(int64_t rows);
/* Returns the class of attention. CPU_NARROW: heads of fewer than 32 values; otherwise CPU_WIDE.
 * The class depends on nothing else, so that packed and padded sequences have one kernel. */
cpu_shape_class clv_cpu_class_of_attention(int64_t width);
/* Returns the class of an LSTM. CPU_FEW_ROWS: batches of fewer than 4; otherwise CPU_NARROW: a
 * hidden size below 128; otherwise CPU_WIDE. */
cpu_shape_class clv_cpu_class_of_lstm(int64_t batch, int64_t hidden);

/* Returns the answer to a question for a shape class, with the processor and the libraries of this
 * process. */
cpu_candidate clv_cpu_choose(cpu_question question, cpu_shape_class shape_class);

/* As clv_cpu_choose, for an instruction set and a library ("oneDNN 2.6.3"). The answer is the row
 * of choices.def for this version of the library, or else the row for the newest other version. For
 * an instruction set without a row, it is a row of the next lower instruction set that has one. */
cpu_candidate clv_cpu_choose_for(cpu_question question, cpu_shape_class shape_class,
                                 const char *isa, const char *library);

/* Writes the processor's vendor, family and model: "GenuineIntel 6/207". CPU_PROCESSOR_NAME: size
 * of the buffer. */
enum { CPU_PROCESSOR_NAME = 32 };
void clv_cpu_print_processor(char ret[CPU_PROCESSOR_NAME]);

/* Computes clv_backend_cpu_bf16_percent (kernels.h). */
unsigned clv_cpu_bf16_percent(const clv_node_desc *d, const char **ret_processor);

/* Returns the first 12 hexadecimal digits of the SHA-256 of the rows CHOICE in choices.def. */
const char *clv_cpu_choices_digest(void);

#endif
