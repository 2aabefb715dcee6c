/* SPDX-License-Identifier: Apache-2.0
 *
 * look: attacks, called readers, that measure how well a worker can infer records, tokens, labels
 * and features from the tensors that it receives. Each reader learns from one half of the samples
 * and reports how well it reads the other half. Readers are pure functions of numbers: they use no
 * random seed, no files and no network. master/plan/look_front.c and look_head.c call them.
 *
 * Threads: the functions have no state.
 */
#ifndef CLEAVE_LOOK_H
#define CLEAVE_LOOK_H

#include "common/base/base.h"
#include "common/base/tensor/tensor.h"

enum {
  CLV_LOOK_MIN_PLACES = 16, /* fewest places of a grid that counts as a picture */
  /* most groups into which gradients are divided by their length (norm) */
  CLV_LOOK_MAX_LENGTH_GROUPS = 8,
  CLV_LOOK_MAX_CLASSES = 256, /* most classes; samples of further classes are not counted */
};

/* Result of a reader, an attack on tensors: how well it reads, and by which method. */
typedef struct clv_look_reading {
  /* fraction of the records or labels that was read above guessing; 0: no better than a guess; 1:
   * everything is read */
  double figure;
  /* name of the method that reads best in the half from which the attack learns (static text); "":
   * no method applies */
  const char *by;
} clv_look_reading;

/* View of a tensor as a grid of places with a vector each, as an attack reads it. The value of
 * record r, place (i, k) and channel c is values[first_index + r * record_stride + i * row_stride +
 * k * column_stride + c * channel_stride]. */
typedef struct clv_look_view {
  const float *values;
  size_t record_stride; /* distance between records, in values */
  size_t first_index;   /* index of the first value of record 0 */
  /* distances between rows, columns and channels, in values */
  size_t row_stride, column_stride, channel_stride;
  size_t n_rows, n_columns, n_channels; /* the grid has n_rows * n_columns places */
} clv_look_view;

/* ---- views of tensors (views.c) -------------------------------------------------------------- */

/* One tensor for each record. The tensor of record r begins at
 * values[first_index + r * record_stride], in row-major order. */
typedef struct clv_look_tensor {
  const float *values;
  size_t record_stride, first_index;
  clv_shape shape; /* shape of one record's tensor, without the batch */
} clv_look_tensor;

enum { CLV_LOOK_MAX_VIEWS = 8 }; /* most views of one tensor */

/* Makes the view of a record as an image [C, H, W] or a signal [C, L]. false: the record is neither
 * of these, or has fewer than CLV_LOOK_MIN_PLACES places. */
bool clv_look_make_record_view(const clv_look_tensor *t, clv_look_view *ret);
/* Makes the views of a tensor as channels over a grid that has the same ratio of rows to columns as
 * the records. Returns the number of views. */
size_t clv_look_make_grid_views(const clv_look_tensor *t, const clv_look_view *records,
                                clv_look_view ret[CLV_LOOK_MAX_VIEWS]);
/* Makes the views of a tensor as one vector for each place of a sequence; one further view has the
 * full tensor as its only vector. Returns the number of views. */
size_t clv_look_make_sequence_views(const clv_look_tensor *t, size_t n_tokens,
                                    clv_look_view ret[CLV_LOOK_MAX_VIEWS]);

/* ---- readers, the attacks on tensors --------------------------------------------------------- */

/* Halves of n records: attacks learn from the first n_fit, and are tested with the others. */
typedef struct clv_look_split {
  size_t n, n_fit; /* number of records; number of those that attacks learn from */
} clv_look_split;

/* Reads pixels. The figure is the absolute correlation of the best channel of any view with the
 * records, which are averaged to the grid of the view and from which the mean record is subtracted.
 * Views with fewer than CLV_LOOK_MIN_PLACES places do not count; ret->by "": all views are smaller.
 * records: view of the records themselves. */
clv_code clv_look_read_pixels(const clv_look_view *views, size_t n_views,
                              const clv_look_view *records, clv_look_split split,
                              clv_look_reading *ret, clv_err *err) CLV_USE_RESULT;

/* Tokens of the records: [n][n_tokens]; a negative token is padding. */
typedef struct clv_look_tokens {
  const int64_t *token_ids;
  size_t n_tokens;
} clv_look_tokens;

/* Reads tokens: the answer for a vector is the token of the nearest vector of the first half. The
 * figure is (hits - base) / (1 - base): hits is the fraction of right answers, base the fraction of
 * the commonest token. Only places whose token occurs in the first half count. The result is the
 * figure of all places together or, if it is larger, the figure of the best single place after two
 * standard deviations of chance are subtracted from its hits. */
clv_code clv_look_read_tokens(const clv_look_view *views, size_t n_views,
                              const clv_look_tokens *tokens, clv_look_split split,
                              clv_look_reading *ret, clv_err *err) CLV_USE_RESULT;

/* Gradients [n][width] with their labels. Attacks learn from the first n_fit, and are tested with
 * the others. */
typedef struct clv_look_gradients {
  const float *values;
  /* [n_columns][n] label of each gradient; negative: the gradient has no label and is not
   * counted */
  const int64_t *labels;
  /* n: number of gradients; n_fit: number of those that attacks learn from; width: number of values
   * in a gradient */
  size_t n, n_fit, width;
  size_t n_columns; /* number of labels of a gradient; each column is read separately */
  /* [n_columns] number of groups into which to divide the gradients by norm,
   * 2..CLV_LOOK_MAX_LENGTH_GROUPS */
  const size_t *n_length_groups;
  bool are_of_outputs; /* the gradients are those of the model's outputs */
} clv_look_gradients;

/* Reads labels by the sign of one value, by the length of the gradient, by zeros, and by two
 * clusters of directions; from gradients of outputs also by the most negative value. The figure is
 * (hits - base) / (1 - base) of the column that is read best: hits is the fraction of right
 * answers, base the fraction of the commonest label. */
clv_code clv_look_read_labels(const clv_look_gradients *g, clv_look_reading *ret,
                              clv_err *err) CLV_USE_RESULT;

/* Reads which gradients have the same label in the first column. Makes as many clusters of
 * directions as there are classes, 64 at most, and answers each with its commonest label. The
 * figure is (hits - base) / (1 - base): hits is the fraction of right answers, base the fraction of
 * the commonest label. */
clv_code clv_look_read_label_groups(const clv_look_gradients *g, clv_look_reading *ret,
                                    clv_err *err) CLV_USE_RESULT;

/* Features of records, and the values that a worker receives for the same records; an attack tries
 * to find the features among the values. */
typedef struct clv_look_features {
  const float *features;
  size_t feature_record_stride; /* distance between records, in features */
  size_t n_features;
  const float *values;
  size_t value_record_stride; /* distance between records, in values */
  size_t n_values;
} clv_look_features;

/* Reads features. The figure is the largest of three absolute correlations: the median over all
 * values, each with its best feature; the median over all features, each with its best value; and
 * the best pair. The correlation that random sums of the features have by chance is subtracted from
 * each. At most 256 features are compared with at most 512 values. */
clv_code clv_look_read_features(const clv_look_features *f, clv_look_split split,
                                clv_look_reading *ret, clv_err *err) CLV_USE_RESULT;

#endif
