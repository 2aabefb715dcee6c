/* SPDX-License-Identifier: Apache-2.0
 *
 * look: what an onlooker who records the tensors that leave can read of records, tokens and labels.
 * Each reader learns from one half of the samples and reports how well it reads the other half.
 * Readers are pure functions of numbers: they draw nothing and see neither files nor the network.
 *
 * Threads: no state.
 */
#ifndef CLEAVE_LOOK_H
#define CLEAVE_LOOK_H

#include "common/base/base.h"
#include "common/base/tensor/tensor.h"

enum {
  CLV_LOOK_MIN_PLACES = 16, /* places of the smallest grid that counts as a picture */
  CLV_LOOK_MAX_LENGTHS = 8,
  CLV_LOOK_MAX_CLASSES = 256, /* classes told apart; samples of further ones are not counted */
};

/* What a reader read: 0 is as good as a guess, 1 is everything. */
typedef struct clv_look_reading {
  double figure;  /* 0..1 */
  const char *by; /* reader that was best on the first half, static text; "" if none applies */
} clv_look_reading;

/* One way to see the values of a record as places with a vector each. Values of record r, place
 * (i, k) and channel c are at values[r record + first + i row + k column + c channel]. */
typedef struct clv_look_view {
  const float *values;
  size_t record; /* values from one record to the next */
  size_t first, row, column, channel;
  size_t n_rows, n_columns, n_channels; /* n_rows * n_columns places */
} clv_look_view;

/* ---- views (views.c) ------------------------------------------------------------------------- */

/* A tensor of each record, its values row-major at values[r record + first]. */
typedef struct clv_look_tensor {
  const float *values;
  size_t record, first;
  clv_shape shape; /* without N */
} clv_look_tensor;

enum { CLV_LOOK_MAX_VIEWS = 8 }; /* of one tensor, at most */

/* A record as an image [C, H, W] or a signal [C, L]; false: it is neither, or is smaller than
 * CLV_LOOK_MIN_PLACES places. */
bool clv_look_record_view(const clv_look_tensor *t, clv_look_view *ret);
/* The ways to see a tensor as channels over a grid like that of the records. Returns how many. */
size_t clv_look_grid_views(const clv_look_tensor *t, const clv_look_view *records,
                           clv_look_view ret[CLV_LOOK_MAX_VIEWS]);
/* The ways to see a tensor as vectors of places of a sequence; all of it is one of them. */
size_t clv_look_sequence_views(const clv_look_tensor *t, size_t n_tokens,
                               clv_look_view ret[CLV_LOOK_MAX_VIEWS]);

/* ---- readers --------------------------------------------------------------------------------- */

/* Records n of which the first n_fit are learned from. */
typedef struct clv_look_split {
  size_t n, n_fit;
} clv_look_split;

/* The absolute correlation of the best channel of any view with the records, averaged to the grid
 * of the view, less the mean record. Views below CLV_LOOK_MIN_PLACES places do not count; by "":
 * none is that large. `records` has the records themselves as a view. */
clv_code clv_look_pixels(const clv_look_view *views, size_t n_views, const clv_look_view *records,
                         clv_look_split half, clv_look_reading *ret, clv_err *err) CLV_USE_RESULT;

/* Tokens of the records: [n][n_tokens], negative where a place is padding. */
typedef struct clv_look_tokens {
  const int64_t *token;
  size_t n_tokens;
} clv_look_tokens;

/* The token of the nearest vector among those of the first half: (hits - base) / (1 - base), base
 * being the share of the commonest token. Counts places whose token the first half has. The best
 * place alone counts as well, less two standard deviations of chance. */
clv_code clv_look_nearest(const clv_look_view *views, size_t n_views, const clv_look_tokens *tokens,
                          clv_look_split half, clv_look_reading *ret, clv_err *err) CLV_USE_RESULT;

/* Gradients [n][width] with what they may tell; the first n_fit are learned from. */
typedef struct clv_look_gradients {
  const float *values;
  const int64_t *label; /* [n_columns][n], negative: it has none and is not counted */
  size_t n, n_fit, width;
  size_t n_columns;        /* labels of a gradient, each of which is read by itself */
  const size_t *n_lengths; /* [n_columns] groups of lengths told apart, 2..CLV_LOOK_MAX_LENGTHS */
  bool of_outputs; /* they are gradients of the outputs themselves: no layer is behind them */
} clv_look_gradients;

/* Labels by the sign of one value, by the length, by zeros, and by two clusters of directions; of
 * outputs also by the most negative value: (hits - base) / (1 - base). The column that is read best
 * counts. */
clv_code clv_look_labels(const clv_look_gradients *g, clv_look_reading *ret,
                         clv_err *err) CLV_USE_RESULT;

/* Which gradients share a label, of the first column: as many clusters of directions as there are
 * classes, 64 at most, each named by its commonest label: (hits - base) / (1 - base). */
clv_code clv_look_label_groups(const clv_look_gradients *g, clv_look_reading *ret,
                               clv_err *err) CLV_USE_RESULT;

/* Features of records beside what leaves of the same records. */
typedef struct clv_look_features {
  const float *features;
  size_t record, n_features; /* record: features from one record to the next */
  const float *values;
  size_t row, n_values; /* row: values from one record to the next */
} clv_look_features;

/* The absolute correlation of values with one feature each: of most values, of the best ones of
 * most features, or of the best pair, less what sums with random weights of features of one size
 * have by chance. At most 256 features and 512 values are compared. */
clv_code clv_look_features_read(const clv_look_features *f, clv_look_split half,
                                clv_look_reading *ret, clv_err *err) CLV_USE_RESULT;

#endif
