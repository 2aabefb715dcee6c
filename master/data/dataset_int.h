/* SPDX-License-Identifier: Apache-2.0
 *
 * What a dataset is made of: the reader of its format (format_*.c) opens it, dataset.c makes
 * batches, scan.c looks through it.
 */
#ifndef CLEAVE_DATA_DATASET_INT_H
#define CLEAVE_DATA_DATASET_INT_H

#include "master/data/image_int.h"
#include "master/data/page_int.h"
#include "master/data/reader_int.h"
#include "master/data/text_int.h"

/* One of several inputs. */
typedef struct clv_named_input {
  char *name, *path; /* path: for messages */
  clv_tensor *data;  /* [count or more, ...] as in the file */
  clv_dtype dtype;   /* of a batch */
  size_t row;        /* elements of a record */
  bool is_bool;      /* of u8 data: they are 0 and 1, and stay so */
} clv_named_input;

struct clv_dataset {
  clv_named_input *named; /* [n_named], in the place of `inputs`; NULL where there is one input */
  size_t n_named;
  clv_tensor *inputs;        /* as in the file; NULL for images and named inputs */
  clv_images *images;        /* a folder of images, or NULL */
  clv_texts *texts;          /* what a table of texts became, or NULL */
  clv_page_set *pages;       /* the same of documents, or NULL */
  clv_tensor *labels;        /* [count or more, ...] i64 or f32, or NULL */
  char **classes;            /* [n_classes] names in the order of the numbers; the reader's texts */
  size_t n_classes;          /* 0: classes are numbers alone */
  clv_broken_records broken; /* records that were left out */
  int64_t *groups;   /* [count] records with equal numbers belong together; NULL: not read */
  uint32_t *numbers; /* [count] of records in their files; NULL: those of the records */
  size_t count;
  clv_shape x_shape, y_shape; /* of a batch; dim[0] is filled in per batch */
  size_t record;              /* elements of a record */
  size_t channels, inner;     /* record = channels * inner */
  size_t n_norm;              /* 1, or channels */
  float *mean, *std;          /* [n_norm] */
  float *table;               /* [n_norm, 256] for u8 inputs, or NULL */
  float *wide;                /* [n_norm, 65536] for images of 16 bits, or NULL */
  clv_objective objective;
  clv_token_info kinds; /* of texts and documents */
  size_t ids;           /* which input the tokens are */
  int64_t ignored;      /* label of a place that has none */
  bool divide_255, tokens;
  bool adds_channel; /* inputs [N, a, b] became [N, 1, a, b] */
  bool is_bool;      /* u8 inputs are 0 and 1, and stay so */
  float scale;
  char *inputs_path, *labels_path; /* for messages; labels NULL without a file of them */
  clv_label_kind kind;
  int64_t label_min, label_max;
  size_t label_max_at; /* the first record that has the largest, of a file of labels */
};

/* Element i of a file of whole numbers. */
int64_t clv_dataset_integer(const clv_tensor *t, size_t i);
/* Element i of a file of numbers. */
double clv_dataset_element(const clv_tensor *t, size_t i);

/* ---- formats (formats.c) --------------------------------------------------------------------- */

/* How a set of a format is opened: clv_reader_NAME for each row of formats.def, in format_NAME.c;
 * clv_reader_arrays for those with an array in each file. */
typedef struct clv_format_reader {
  /* Reads a set: fills `inputs`, `named` or `images`, `count`, the shapes, and labels and classes
   * if there are any. */
  clv_code (*open)(clv_dataset *ds, const clv_dataset_options *o, clv_err *err);
  /* Fills ds->groups [count]. */
  clv_code (*group)(clv_dataset *ds, const clv_dataset_options *o, clv_err *err);
  bool always_grouped; /* whether groups are wanted or not */
} clv_format_reader;

extern const clv_format_reader clv_reader_arrays;
#define CLV_ARRAY_FORMAT(...)
#define CLV_DATA_FORMAT(NAME, name, ...) extern const clv_format_reader clv_reader_##name;
#include "common/base/settings/formats.def"

/* ---- normalisation (dataset.c) --------------------------------------------------------------- */

/* Takes scale, mean and std; `channels` is set. bytes: inputs are u8. */
clv_code clv_dataset_set_norm(clv_dataset *ds, const clv_dataset_options *o, bool bytes,
                              clv_err *err) CLV_USE_RESULT;
/* For samples of 16 bits: v / 65535 where bytes are divided by 255; else `scale` is that of bytes,
 * of which one has 257 steps. */
clv_code clv_dataset_make_u16_table(clv_dataset *ds, clv_err *err) CLV_USE_RESULT;

/* ---- records that are one array (format_arrays.c) -------------------------------------------- */

/* Takes ds->inputs as the records: their number, shape and normalisation. */
clv_code clv_arrays_set_records(clv_dataset *ds, const clv_dataset_options *o,
                                clv_err *err) CLV_USE_RESULT;

/* ---- labels (labels.c) ----------------------------------------------------------------------- */

/* Takes labels of classes that are numbered without a gap. */
void clv_dataset_set_labels(clv_dataset *ds, clv_tensor **labels, size_t n_classes);

/* ---- labels that follow from the tokens (objective.c) ---------------------------------------- */

/* Takes the options' objective for records of tokens, and makes its labels [n, S] unless they are
 * those of the files: of masked tokens those that may be drawn. ids: [n, S], lengths: [n], i32;
 * call it before the inputs take these. */
clv_code clv_objective_set(clv_dataset *ds, const clv_dataset_options *o, clv_token_info kinds,
                           const clv_tensor *ids, const clv_tensor *lengths,
                           clv_err *err) CLV_USE_RESULT;
/* Draws which of a record's tokens are hidden. ids, labels: [S], as in the files; of labels those
 * that were not drawn are taken away. draw NULL: for an evaluation. */
void clv_objective_mask(const clv_dataset *ds, const clv_draw_seed *draw, uint32_t record,
                        int64_t *ids, int64_t *labels);

/* ---- fewer records (keep_records.c) ---------------------------------------------------------- */

/* Forgets all records but those of `kept`, which is ascending. Not of pages that predictions are
 * wanted of. */
clv_code clv_dataset_keep(clv_dataset *ds, const clv_subset *kept, clv_err *err) CLV_USE_RESULT;

/* ---- groups of records (groups.c) ------------------------------------------------------------ */

/* Copies the numbers [count] of int64_t that a reader has found. */
void clv_dataset_set_groups(clv_dataset *ds, const clv_bytes *numbers);

/* ---- named inputs (inputs.c) ----------------------------------------------------------------- */

/* Reads the files and checks their counts of records; fills count and x_shape. */
clv_code clv_inputs_open(clv_dataset *ds, const clv_dataset_options *o,
                         clv_err *err) CLV_USE_RESULT;
/* Hands over the next of [n_named]; dtype follows from the tensor. */
clv_code clv_inputs_add(clv_dataset *ds, const char *name, const char *path, clv_tensor **data,
                        clv_err *err) CLV_USE_RESULT;
/* Hands over the inputs that were asked for, of those [n] that the records have. */
clv_code clv_inputs_select(clv_dataset *ds, const clv_dataset_options *o, const char *const *names,
                           clv_tensor **const *tensors, size_t n, clv_err *err) CLV_USE_RESULT;
void clv_inputs_free(clv_dataset *ds);
/* Input k of a record into row i of x, which fits. */
void clv_inputs_fill(const clv_dataset *ds, size_t k, size_t record, clv_tensor *x, size_t i);

#endif
