/* SPDX-License-Identifier: Apache-2.0
 *
 * What a dataset is made of: dataset.c opens it and makes batches, scan.c looks through it.
 */
#ifndef CLEAVE_DATA_DATASET_INT_H
#define CLEAVE_DATA_DATASET_INT_H

#include "master/data/image_int.h"
#include "master/data/text_int.h"

struct clv_dataset {
  clv_tensor *inputs; /* as in the file; NULL for images */
  clv_images *images; /* a folder of images, or NULL */
  clv_texts *texts;   /* where classes and their names come from, or NULL */
  clv_tensor *labels; /* [count or more, ...] i64 or f32, or NULL */
  size_t count;
  clv_shape x_shape, y_shape; /* of a batch; dim[0] is filled in per batch */
  size_t record;              /* elements of a record */
  size_t channels, inner;     /* record = channels * inner */
  size_t n_norm;              /* 1, or channels */
  float *mean, *std;          /* [n_norm] */
  float *table;               /* [n_norm, 256] for u8 inputs, or NULL */
  bool divide_255, tokens;
  float scale;
  char *inputs_path, *labels_path; /* for messages; labels NULL without a file of them */
  clv_label_kind kind;
  int64_t label_min, label_max;
};

/* Element i of a file of whole numbers. */
int64_t clv_dataset_integer(const clv_tensor *t, size_t i);

#endif
