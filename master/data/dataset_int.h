/* SPDX-License-Identifier: Apache-2.0
 *
 * The struct of a dataset. The reader of its format (format_*.c) fills it in clv_dataset_open,
 * dataset.c makes batches from it, and scan.c checks its records.
 */
#ifndef CLEAVE_DATA_DATASET_INT_H
#define CLEAVE_DATA_DATASET_INT_H

#include "master/data/image_int.h"
#include "master/data/page_int.h"
#include "master/data/reader_int.h"
#include "master/data/table_int.h"
#include "master/data/text_int.h"

/* One input of records that have several inputs with names. */
typedef struct clv_named_input {
  char *name, *path;          /* path: file of the input, for messages */
  clv_tensor *data;           /* [count or more, ...] as in the file */
  clv_dtype dtype;            /* type of the input in a batch */
  size_t elements_per_record; /* elements of one record */
  bool is_bool;               /* the u8 data are 0 and 1, and are not divided by 255 */
  /* facts about the table's index column that makes this input; the column owns the name in these
   * facts; n_rows 0: no index column makes the input */
  clv_index_facts index_facts;
} clv_named_input;

enum { CLV_TEXT_INPUTS = 2 /* ids and lengths */ };

struct clv_dataset {
  /* [n_named_inputs] named inputs, in place of `inputs`; NULL: a single input */
  clv_named_input *named_inputs;
  size_t n_named_inputs;
  /* single input, in the type of its file; NULL for images and named inputs */
  clv_tensor *inputs;
  clv_images *images; /* the folder of images; NULL: another format */
  /* format text: labels, classes and groups of the texts; format table: rows of tokens until they
   * become inputs; NULL: no texts */
  clv_texts *texts;
  clv_page_set *pages;   /* format documents: windows of pages; NULL: other format */
  clv_cell_table *table; /* format table: its cells; NULL: other format */
  /* [n_targets] name and classes of each target, if records have several labels; n_classes 0: the
   * target is a number, or yes or no */
  clv_learnt_target *targets;
  size_t n_targets;
  /* number, from 1, of the target that clv_table_options.split_target names; 0: none */
  size_t split_target;
  /* format table: names of the inputs that the column of texts makes, static; n_text_inputs 0: the
   * tokens of the texts are the single input */
  const char *text_inputs[CLV_TEXT_INPUTS];
  size_t n_text_inputs;
  clv_bytes class_names; /* format table: texts of `classes`, each with its NUL */
  clv_tensor *labels;    /* [count or more, ...] i64 or f32; NULL: no labels */
  /* [n_classes] names by class number; the reader of the format owns the texts */
  char **classes;
  size_t n_classes;          /* number of classes; 0: classes have numbers but no names */
  clv_broken_records broken; /* records that were skipped because they cannot be read */
  /* [count] integer of each record for the split: number of its group, of its time (later times
   * have larger numbers), or of its set (clv_set); NULL: groups were not read */
  int64_t *groups;
  /* number of records of the file that were dropped because they are in a set that kept_set_bits
   * excludes */
  size_t n_records_of_other_sets;
  /* [count] number of each record in its file; NULL: record i has the number i */
  uint32_t *record_numbers;
  size_t count;                        /* number of records */
  clv_shape x_shape, y_shape;          /* shapes of a batch; dim[0] is set for each batch */
  size_t elements_per_record;          /* elements of the single input in a record */
  size_t channels, values_per_channel; /* channels of a record, and values of each channel */
  /* number of means and of standard deviations: 1, or one per channel */
  size_t n_norm_values;
  float *mean, *std; /* [n_norm_values] means and standard deviations of torchvision's Normalize */
  /* [n_norm_values, 256] normalised value of each u8; NULL: inputs are not u8 */
  float *normalised_u8_values;
  /* [n_norm_values, 65536] normalised value of each u16, for images of 16 bits; NULL: no images */
  float *normalised_u16_values;
  clv_objective objective;
  clv_token_info token_info; /* special tokens of texts and documents */
  size_t token_input;        /* index of the input that has the tokens */
  int64_t ignored_label;     /* label of a position that has no label */
  bool divides_by_255, has_tokens;
  bool adds_channel; /* inputs [N, a, b] became [N, 1, a, b] */
  bool is_bool;      /* u8 inputs are 0 and 1, and are not divided by 255 */
  float scale;       /* factor of all values, before mean and std */
  /* paths for messages; labels_path NULL: no file has the labels */
  char *inputs_path, *labels_path;
  clv_label_kind label_kind;
  int64_t label_min, label_max; /* smallest and largest class label */
  /* first record with the largest label; set only if a file has the labels */
  size_t label_max_record;
};

/* Returns element i of a tensor of integers. */
int64_t clv_tensor_element_as_integer(const clv_tensor *t, size_t i);
/* Returns element i of a tensor of any number type. */
double clv_tensor_element_as_double(const clv_tensor *t, size_t i);

/* ---- readers of the formats of datasets (formats.c) ------------------------------------------ */

/* Functions that open the datasets of one format: clv_reader_NAME in format_NAME.c for each row of
 * formats.def, and clv_reader_arrays for all formats with one array per file. */
typedef struct clv_format_reader {
  /* Reads the data: fills `inputs`, `named_inputs` or `images`, `count`, the shapes, and labels and
   * classes if there are any. */
  clv_code (*open)(clv_dataset *ds, const clv_dataset_options *o, clv_err *err);
  /* Fills ds->groups [count]. clv_dataset_open calls it after `open`. */
  clv_code (*group)(clv_dataset *ds, const clv_dataset_options *o, clv_err *err);
  bool always_reads_groups; /* read the groups even if clv_dataset_options.reads_groups is false */
} clv_format_reader;

extern const clv_format_reader clv_reader_arrays;
#define CLV_ARRAY_FORMAT(...)
#define CLV_DATA_FORMAT(NAME, name, ...) extern const clv_format_reader clv_reader_##name;
#include "common/base/settings/formats.def"

/* ---- normalisation of inputs (dataset.c) ----------------------------------------------------- */

/* Sets scale, mean and std from the options. `channels` must be set before. is_u8: the inputs are
 * u8. */
clv_code clv_dataset_set_normalisation(clv_dataset *ds, const clv_dataset_options *o, bool is_u8,
                                       clv_err *err) CLV_USE_RESULT;
/* Makes the table normalised_u16_values of the normalised samples of 16 bits. A sample v is scaled
 * to v / 65535 if samples of 8 bits are divided by 255, else to v / 257 * scale, because one step
 * of 8 bits is 257 steps of 16 bits; then mean and std apply. */
clv_code clv_dataset_make_normalised_u16_values(clv_dataset *ds, clv_err *err) CLV_USE_RESULT;

/* ---- records whose file has one array (format_arrays.c) -------------------------------------- */

/* Sets count, shape and normalisation of the records from ds->inputs. */
clv_code clv_arrays_set_records(clv_dataset *ds, const clv_dataset_options *o,
                                clv_err *err) CLV_USE_RESULT;

/* ---- records that are images (format_images.c) ----------------------------------------------- */

/* Sets count, shape and normalisation of the records from ds->images. */
clv_code clv_images_set_records(clv_dataset *ds, const clv_dataset_options *o,
                                clv_err *err) CLV_USE_RESULT;

/* ---- labels of records (labels.c) ------------------------------------------------------------ */

/* Makes *labels the labels of ds, which then owns this tensor. The labels must be class numbers
 * below n_classes. */
void clv_dataset_set_labels(clv_dataset *ds, clv_tensor **labels, size_t n_classes);

/* ---- several labels per record (table_targets.c) --------------------------------------------- */

/* Makes the labels [count, targets] from the cells of ds->table, and numbers the classes as `l`
 * does. */
clv_code clv_targets_set_labels(clv_dataset *ds, const clv_learnt *l, clv_err *err) CLV_USE_RESULT;

/* ---- texts of a table (table_text_inputs.c) -------------------------------------------------- */

/* Sets ds->text_inputs, the inputs that the column of texts makes. Does nothing for a table without
 * texts. CLV_PRECONDITION: the first layer of the model is no embedding. */
clv_code clv_table_prepare_texts(clv_dataset *ds, const clv_dataset_options *o,
                                 clv_err *err) CLV_USE_RESULT;
/* Makes ds->texts from the rows of tokens of ds->table. Does nothing for a table without texts. */
clv_code clv_table_encode_texts(clv_dataset *ds, clv_err *err) CLV_USE_RESULT;
/* Adds the inputs that ds->text_inputs names to ds->named_inputs. */
clv_code clv_table_add_text_inputs(clv_dataset *ds, clv_err *err) CLV_USE_RESULT;
/* Finds the smallest and largest number of tokens of a text in the records `rows`, and counts
 * missing texts and different rows of tokens. */
clv_code clv_table_count_texts(const clv_dataset *ds, const clv_table_column *c,
                               const clv_subset *rows, clv_column_facts *f,
                               clv_err *err) CLV_USE_RESULT;

/* ---- labels that follow from the tokens (objective.c) ---------------------------------------- */

/* Sets the objective of records of tokens. Makes labels [n, S], unless the files have the labels;
 * for masked tokens, every position that may be masked gets a label. ids: [n, S], lengths: [n],
 * both i32. Call it before clv_inputs_select, which takes ownership of these tensors. */
clv_code clv_dataset_set_objective(clv_dataset *ds, const clv_dataset_options *o,
                                   clv_token_info token_info, const clv_tensor *ids,
                                   const clv_tensor *lengths, clv_err *err) CLV_USE_RESULT;
/* Chooses tokens of a record at random and replaces them in ids [S]. Removes the labels [S] of all
 * other tokens. draw NULL: choose as for an evaluation. */
void clv_dataset_mask_tokens(const clv_dataset *ds, const clv_draw_seed *draw, uint32_t record,
                             int64_t *ids, int64_t *labels);

/* ---- splits (split.c) ------------------------------------------------------------------------ */

/* Returns the class of a record for a stratified split. If ds->split_target is set: the class in
 * this target, or -1 for a record without a label there. If not: the single class of the record, so
 * clv_dataset_has_record_classes must be true. */
int64_t clv_dataset_split_class(const clv_dataset *ds, size_t record);
/* Keeps the records of the sets in `set_bits`, bits 1 << clv_set. CLV_INVALID: no record is in one
 * of these sets. */
clv_code clv_dataset_keep_sets(clv_dataset *ds, unsigned set_bits, clv_err *err) CLV_USE_RESULT;

/* ---- dropping records (keep_records.c) ------------------------------------------------------- */

/* Drops all records except those of `kept_records`, which must be ascending. Not for a dataset with
 * kept pages. */
clv_code clv_dataset_keep_records(clv_dataset *ds, const clv_subset *kept_records,
                                  clv_err *err) CLV_USE_RESULT;

/* ---- groups of records (groups.c) ------------------------------------------------------------ */

/* Copies group numbers to ds->groups. group_numbers: [count] int64_t. */
void clv_dataset_set_groups(clv_dataset *ds, const clv_bytes *group_numbers);

/* ---- named inputs (inputs.c) ----------------------------------------------------------------- */

/* Reads one file for each named input and checks that all have equally many records. Fills count
 * and x_shape. */
clv_code clv_inputs_open(clv_dataset *ds, const clv_dataset_options *o,
                         clv_err *err) CLV_USE_RESULT;
/* Adds an input to the end of ds->named_inputs. Takes ownership of *data, whose type decides the
 * type of a batch. */
clv_code clv_inputs_add(clv_dataset *ds, const char *name, const char *path, clv_tensor **data,
                        clv_err *err) CLV_USE_RESULT;
/* Adds the inputs that the options list by name. names, tensors: [n] the inputs that the records
 * can have. Takes ownership of the tensors of the added inputs. */
clv_code clv_inputs_select(clv_dataset *ds, const clv_dataset_options *o, const char *const *names,
                           clv_tensor **const *tensors, size_t n, clv_err *err) CLV_USE_RESULT;
void clv_inputs_free(clv_dataset *ds);
/* Copies input k of a record into row i of x. The caller must have checked the shape of x. */
void clv_inputs_fill(const clv_dataset *ds, size_t k, size_t record, clv_tensor *x, size_t i);

#endif
