/* SPDX-License-Identifier: Apache-2.0
 *
 * data: raw records at the master. The main parts are readers for IDX (plain or gzip), .npy,
 * images, texts and documents; the dataset, which turns records into batches; splits into training
 * and validation; shuffling by a seed, with a cursor that can be saved; and a loader that prepares
 * the next batch while the master trains on the current one.
 *
 * A caller opens a dataset (clv_dataset_open), may check it (clv_dataset_scan) and split it
 * (clv_subset_split), and then reads batches from a loader (clv_loader_next).
 *
 * This folder includes only base, json, tensor, settings, tokens and documents, so nothing here can
 * reach the network.
 *
 * Ownership: a dataset owns its tensors. Subsets, loaders and batches borrow the dataset, which
 * must outlive them. Threads: a dataset does not change once opened and limited, so many threads
 * may read it; every other object belongs to one thread. Limits: at most 2^32 - 1 records, rank 8,
 * and max_bytes of decoded data per file.
 *
 */
#ifndef CLEAVE_DATA_H
#define CLEAVE_DATA_H

#include "common/base/base.h"
#include "common/base/settings/settings.h"
#include "common/base/tensor/tensor.h"
#include "master/documents/documents.h"
#include "master/tokens/tokens.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- readers of array files ------------------------------------------------------------------ */

/* Limit of decoded bytes per file when max_bytes is 0. */
#define CLV_DATA_MAX_BYTES ((size_t)16 << 30)

/* Reads an IDX file (big-endian: 00 00 type rank, rank u32 extents, data), plain or gzip, as its
 * first bytes tell. Types of the tensor: u8 -> u8; i8, i16, i32 -> i32; f32 -> f32; f64 -> f64. A
 * gzip file is decompressed to exactly the declared length. Each error names the file, the expected
 * and the found value: CLV_NOT_FOUND missing; CLV_INVALID wrong magic, type or extents;
 * CLV_EXHAUSTED over max_bytes; CLV_DATA_LOSS truncated, trailing bytes or damaged gzip data. */
clv_code clv_idx_read(const char *path, size_t max_bytes, clv_tensor **ret,
                      clv_err *err) CLV_USE_RESULT;

/* Reads a .npy file of NumPy, format 1.0 to 3.0, in C or Fortran order, little- or big-endian,
 * plain or gzip. Types of the tensor: u1 and b1 (0 and 1) -> u8; i1, i2, u2, i4 -> i32; u4, i8, u8
 * -> i64; f2, f4 -> f32; f8 -> f64. Other types, and a u8 above 2^63 - 1, are CLV_INVALID; the
 * message has a line of Python that converts the file. Other errors as clv_idx_read. */
clv_code clv_npy_read(const char *path, size_t max_bytes, clv_tensor **ret,
                      clv_err *err) CLV_USE_RESULT;

/* As clv_idx_read and clv_npy_read, but read from memory. `label` stands for the file name in
 * messages. */
clv_code clv_idx_parse(const void *data, size_t len, const char *label, size_t max_bytes,
                       clv_tensor **ret, clv_err *err) CLV_USE_RESULT;
clv_code clv_npy_parse(const void *data, size_t len, const char *label, size_t max_bytes,
                       clv_tensor **ret, clv_err *err) CLV_USE_RESULT;

/* ---- datasets -------------------------------------------------------------------------------- */

typedef enum clv_label_kind {
  /* integers >= 0 -> y: [B] i64. Records of tokens or with named inputs may have one label per
   * position, [B, ...]; `ignored_label` marks a position without a label */
  CLV_LABEL_CLASS = 0,
  CLV_LABEL_FLOAT, /* numbers -> y: [B, ...] f32; a file of rank 1 becomes [B, 1] */
} clv_label_kind;

typedef enum clv_crop_kind {
  CLV_CROP_CENTER = 0,     /* torchvision's CenterCrop; evaluations always use it */
  CLV_CROP_RANDOM,         /* square at a random place, as torchvision's RandomCrop */
  CLV_CROP_RANDOM_RESIZED, /* torchvision's RandomResizedCrop; `resize` does not apply */
} clv_crop_kind;

#define CLV_IMAGE_MAX_PIXELS ((uint64_t)64 << 20)

/* How an image becomes a record: resize, then crop, then flip. Sizes are in pixels. */
typedef struct clv_image_options {
  uint32_t channels; /* channels of the record; 3: red, green, blue; 1: grey */
  /* length of the shorter side after resizing, bit-identical to Pillow's bilinear; 0: no
   * resizing */
  uint32_t resize;
  /* side of the square that is cut out; 0: no crop, so all images must have one size */
  uint32_t crop;
  clv_crop_kind train_crop;
  uint32_t pad; /* CLV_CROP_RANDOM: width of a black border added before the crop */
  /* CLV_CROP_RANDOM_RESIZED: smallest and largest area of the crop, as a fraction of the image's
   * area; > 0, <= 1 */
  double area_low, area_high;
  /* CLV_CROP_RANDOM_RESIZED: smallest and largest width / height of the crop; > 0 */
  double ratio_low, ratio_high;
  double flip;         /* probability of a horizontal flip when training */
  uint64_t max_pixels; /* most pixels of an image, and of a resized image; 0:
                                 * CLV_IMAGE_MAX_PIXELS */
  uint32_t threads;    /* threads that read and decode; 0 means 1 */
} clv_image_options;

/* How a text becomes a row of tokens. */
typedef struct clv_text_options {
  /* names of a CSV column or JSON key: `column` has the text of a record, `label` its class */
  const char *column, *label;
  const char *group;     /* CSV column or JSON key of the group; NULL: no groups */
  size_t max_tokens;     /* tokens per row; longer texts are cut, shorter ones padded */
  const char *tokenizer; /* path of the tokenizer's file */
  clv_tokenizer_options tokenizer_options;
  bool omits_first_and_last;      /* rows have no special token at their begin and end */
  const char *first, *last, *pad; /* token names; NULL: [CLS], [SEP] and [PAD] of a vocab.txt */
  const char *mask_token; /* name of the mask token, for CLV_OBJECTIVE_MASKED; NULL: [MASK] */
} clv_text_options;

/* Source of the labels of texts and documents. Labels of tokens are [B, S]; pads have no label. */
typedef enum clv_objective {
  CLV_OBJECTIVE_LABELS = 0, /* the labels in the files */
  CLV_OBJECTIVE_CAUSAL,     /* the label of each token is the next token */
  /* masked language modelling as BERT: 15 % of the text's tokens, at least one per record, are
   * drawn from (seed, epoch, record). The label at the position of a drawn token is this token. In
   * the input, 80 % of the drawn tokens become the mask, 10 % a random token, and 10 % stay. All
   * evaluations draw the same tokens. */
  CLV_OBJECTIVE_MASKED,
} clv_objective;

/* How pages become windows of tokens; tokenizer and max_tokens are those of clv_text_options. */
typedef struct clv_page_options {
  /* number of tokens at the end of a window with which the next window of the page begins again */
  size_t stride;
  /* true: a page has one class, which all its windows have; false: each word has a class */
  bool has_label_per_page;
  const char *const *labels; /* [n_labels] class names in their order */
  /* number of labels; 0: the classes are all names that the files have, sorted */
  size_t n_labels;
  clv_child_limits limits; /* limits of the child process, per PDF or image */
} clv_page_options;

/* How one column of a table is read. */
typedef struct clv_column_options {
  const char *name; /* name of the column in the header */
  clv_column_use use;
  clv_column_scale scale; /* scaling of the numbers of a CLV_COLUMN_NUMBER */
  clv_missing_rule missing;
  /* CLV_MISSING_VALUE: text that replaces a missing value; for a CLV_COLUMN_TEXT, NULL means the
   * empty text */
  const char *value;
  /* the input has one more element for this column: 1 if the value is missing, else 0 */
  bool has_indicator;
  /* CLV_COLUMN_DATE: form of the dates, as C's strptime has it; NULL: ISO 8601 */
  const char *format;
  /* CLV_COLUMN_DATE: parts of a date that become elements, as bits 1 << clv_date_part */
  unsigned parts;
  /* CLV_COLUMN_INDEX: name of the input with the column's indexes; NULL: the name of the column */
  const char *input;
} clv_column_options;

/* One of several labels of a record, read from a column of a table. */
typedef struct clv_target_option {
  const char *name; /* column whose use is CLV_COLUMN_TARGET */
  /* CLV_TASK_CLASSES: any text is a class; CLV_TASK_LABELS: 0, 1, true, false, yes or no;
   * CLV_TASK_NUMBERS: a number */
  clv_task task;
} clv_target_option;

/* How a table becomes records: the input of a record has the elements of all columns, one column
 * after the other. If a column is an index, records have several inputs: "input" with the elements
 * of the other columns, unless there are none, and then each index, [B] i64, in the order of the
 * columns. If a column is a text, its tokens are the single input; or, if clv_dataset_options.names
 * lists "ids" or "lengths", the column makes an input for each of these names. */
typedef struct clv_table_options {
  char separator; /* character between fields; 0: a tab in files named .tsv, else a comma */
  bool has_decimal_comma;
  /* [n_missing_marks] texts of cells that mean a missing value, in addition to an empty cell;
   * n_missing_marks 0: the usual texts, such as NA */
  const char *const *missing_marks;
  size_t n_missing_marks;
  /* skip the columns of the file that `columns` does not list; false: refuse such a file */
  bool ignores_unlisted_columns;
  const clv_column_options *columns; /* [n_columns] in the order of the input */
  size_t n_columns;
  /* [n_targets] labels of a record that has several: y is [B, n_targets] f32 with numbers, class
   * numbers, and NaN for a missing label (CLV_MISSING_MASK). n_targets 0: a record has one label,
   * which is read as clv_dataset_options.labels says */
  const clv_target_option *targets;
  size_t n_targets;
  /* records with several targets: name of the target by whose classes a stratified split or limit
   * draws records; NULL: none */
  const char *split_target;
  /* CLV_COLUMN_FILE: folder to which the column's paths are relative; NULL: folder of the table */
  const char *image_folder;
  /* SQLite: the query whose records are the table's; NULL: none, and a database is refused */
  const char *query;
  uint32_t query_seconds; /* seconds after which the query is stopped */
  uint64_t query_rows;    /* most records that the query may return */
  /* folder for the cells of tables that are larger than memory, in files that are made once per
   * table; NULL: all tables are in memory */
  const char *cache_folder;
  bool is_on_disk; /* use cache_folder for tables of any size */
  /* receives a message when a table is read into cache_folder, which takes long */
  clv_notifier notifier;
  /* bytes of a table on disk that are in memory at the same time; 0: the default */
  size_t block_bytes;
} clv_table_options;

/* Meaning of the values in the table's column that text.group names. */
typedef enum clv_split_key {
  CLV_KEY_IS_GROUP, /* name of the record's group */
  CLV_KEY_IS_TIME,  /* time of the record, a number or a date */
  /* set (clv_set) of the record; clv_dataset_options.set_values has the values for each set */
  CLV_KEY_IS_SET,
} clv_split_key;
typedef enum clv_set { CLV_SET_TRAINING, CLV_SET_VALIDATION, CLV_SET_TEST, CLV_SET_COUNT } clv_set;
typedef struct clv_set_values {
  const char *const *items; /* [n] values of the table's column for one set, such as "train" */
  size_t n;
} clv_set_values;

/* The most inputs that a record can have. */
enum { CLV_DATA_MAX_INPUTS = 8 };

/* Options of clv_dataset_open, which keeps no pointers to the strings and arrays. Zero-initialise,
 * then set the options that are not to be 0 or NULL. */
typedef struct clv_dataset_options {
  /* format of the files; CLV_FORMAT_AUTO: idx or npy, by their first bytes */
  clv_data_format format;
  const char *inputs_path;
  /* [n_named_inputs] inputs by name, one file each, instead of inputs_path (idx and npy). Integers
   * become i64, bytes are divided by 255 (f32), floats become f32, and shapes are those of the
   * files. scale, mean, std, flattens_records and holds_tokens do not apply. Texts, also those of a
   * table, provide "ids" [S] and "lengths" [], documents also "boxes" [S, 4]: list the names of the
   * needed inputs, in any order, without paths. n_named_inputs 0: one input, "input". */
  size_t n_named_inputs;
  const char *const *names;
  const char *const *named_paths;
  const char *labels_path; /* file of the labels; NULL: no labels (prediction), or the folders of
                            * images are the labels */
  /* labels are not read; images: the records are all files below the folder, at any depth */
  bool skips_labels;
  /* number of records to use: the first ones; images: evenly spread ones; 0: all */
  size_t limit;
  /* read the groups for CLV_SPLIT_GROUPS. A group is a file of documents, a folder of images below
   * the class, or all records with the same value in the column that text.group names */
  bool reads_groups;
  bool reads_weights;      /* tables: read the column of weights; false: the table may lack it */
  const char *group_path;  /* arrays: path of a file with the group of each record, an integer */
  clv_split_key split_key; /* tables: meaning of the column that text.group names */
  /* CLV_KEY_IS_SET: for each set, the values that its records have in the column */
  clv_set_values set_values[CLV_SET_COUNT];
  /* CLV_KEY_IS_SET: sets of records to keep, as bits 1 << clv_set; 0: all. Groups are then read
   * even with skips_labels */
  unsigned kept_set_bits;
  /* factor by which all input values are multiplied; 0: u8 is divided by 255 (ToTensor), others are
   * not scaled */
  float scale;
  /* [n_mean] means and [n_std] standard deviations: none, one for all channels, or one per channel;
   * std > 0 */
  const float *mean, *std;
  size_t n_mean, n_std;
  bool flattens_records; /* x becomes [B, elements of a record] */
  bool keeps_rank_3;     /* inputs [N, a, b] keep their rank; false: they become [N, 1, a, b] */
  /* x is i64 as in the file, which must hold integers; scale, mean and std do not apply */
  bool holds_tokens;
  clv_label_kind labels;
  clv_objective objective; /* other than CLV_OBJECTIVE_LABELS: labels of files are not read */
  /* label that marks a position without a label; NULL: CLV_LABEL_IGNORED */
  const int64_t *ignored_label;
  /* number of classes: all class labels must be less than this; 0: there is no upper limit */
  size_t n_classes;
  size_t max_bytes; /* limit of decoded bytes per file; 0: CLV_DATA_MAX_BYTES */
  /* skip broken texts and pages (clv_dataset_broken_records). Broken images are not skipped at
   * open; clv_dataset_scan lists them */
  bool skips_broken;
  clv_image_options images; /* options of CLV_FORMAT_IMAGES, and of CLV_COLUMN_FILE */
  /* options of CLV_FORMAT_TEXT and CLV_FORMAT_DOCUMENTS; a CLV_COLUMN_TEXT uses them, too, except
   * the names of columns */
  clv_text_options text;
  clv_page_options pages;  /* options of CLV_FORMAT_DOCUMENTS, beside `text` */
  clv_table_options table; /* options of CLV_FORMAT_TABLE */
} clv_dataset_options;

/* most unreadable records whose errors are listed */
enum { CLV_MAX_LISTED_BROKEN = 20 };
typedef struct clv_broken_records {
  size_t n; /* number of broken records */
  /* a line with the error of each of the first CLV_MAX_LISTED_BROKEN records */
  clv_bytes error_lines;
} clv_broken_records;

void clv_broken_records_done(clv_broken_records *b);
/* Counts a record that cannot be read. `cause` is its error, which names the file. */
void clv_broken_records_add(clv_broken_records *b, const clv_err *cause);

typedef struct clv_dataset clv_dataset;

/* Reads all files completely and checks that they fit each other. CLV_INVALID: record counts
 * differ, or a label is out of range; the message names both counts, or the first such label.
 * Inputs of rank 1 [N] become [N, 1], of rank 3 [N, H, W] become [N, 1, H, W] unless keeps_rank_3.
 * The channel is dimension 1 of the result, before flattening. Each value v of channel c is
 * normalised to ((float)v * scale - mean[c]) / std[c] in float32, in that order (automatic scale of
 * u8: (float)v / 255). This is bit-identical to torchvision's ToTensor and Normalize. For an image
 * folder, only the names and a few image headers are read; labels are class numbers in the order of
 * the class names. A broken image is CLV_DATA_LOSS, and the message names it. */
clv_code clv_dataset_open(const clv_dataset_options *options, clv_dataset **ret,
                          clv_err *err) CLV_USE_RESULT;
void clv_dataset_free(clv_dataset *ds);
void clv_dataset_freep(clv_dataset **ds);

size_t clv_dataset_count(const clv_dataset *ds);
/* Returns how many records of the file were left out because they are in a set that kept_set_bits
 * excludes. */
size_t clv_dataset_other_set_count(const clv_dataset *ds);
bool clv_dataset_has_labels(const clv_dataset *ds);
/* Returns the number of named classes (images, texts, documents); 0 for other formats. */
size_t clv_dataset_class_count(const clv_dataset *ds);
const char *clv_dataset_class_name(const clv_dataset *ds, size_t class);
/* Returns the number of targets, which is the number of columns of y, if each record has several
 * labels (clv_table_options.targets); 0: a record has one label. */
size_t clv_dataset_target_count(const clv_dataset *ds);
const char *clv_dataset_target_name(const clv_dataset *ds, size_t target);
/* Returns the number of classes of a target (2 if its labels are yes or no); 0: the target is a
 * number. */
size_t clv_dataset_target_class_count(const clv_dataset *ds, size_t target);
const char *clv_dataset_target_class_name(const clv_dataset *ds, size_t target, size_t class);
/* Returns true if a record has a label of a target; false: the label is missing
 * (CLV_MISSING_MASK). */
bool clv_dataset_has_target(const clv_dataset *ds, size_t target, size_t record);
/* Returns the class that a record has in a target; -1: the target is a number, or the record has no
 * label of the target. */
int64_t clv_dataset_target_class(const clv_dataset *ds, size_t target, size_t record);
/* Returns the path of an image relative to the folder, as in "cat/1.png"; NULL: another format. */
const char *clv_dataset_image_path(const clv_dataset *ds, size_t record);
/* Compares the classes of the training data and the test data. CLV_DATA_LOSS: both have named
 * classes, and the names differ. */
clv_code clv_dataset_check_same_classes(const clv_dataset *train, const clv_dataset *test,
                                        clv_err *err) CLV_USE_RESULT;
/* Returns the number of files in a folder of images that are not used: no .png, .jpg or .jpeg, or
 * outside the class folders. *ret_first: the first of them by name, relative to the folder; NULL:
 * there is none. */
size_t clv_dataset_stray_file_count(const clv_dataset *ds, const char **ret_first);
/* Returns true if the file has inputs [N, a, b], and the dataset made them images [N, 1, a, b]. */
bool clv_dataset_adds_channel(const clv_dataset *ds);
/* Returns the number and the errors of texts and pages that were skipped (`skips_broken`). */
const clv_broken_records *clv_dataset_broken_records(const clv_dataset *ds);
/* Returns the number of texts that were cut to max_tokens. */
size_t clv_dataset_truncated_count(const clv_dataset *ds);
/* Numbers of pages, words and windows of documents; zeros for other formats. */
typedef struct clv_page_counts {
  size_t n_pages, n_words, n_windows;
  size_t n_long_pages;           /* pages with more than one window */
  size_t n_unlabelled_windows;   /* windows without a label, which are skipped */
  size_t n_words_without_tokens; /* words for which the tokenizer returns no token */
  size_t n_stray_files;          /* files that are not documents */
} clv_page_counts;
clv_page_counts clv_dataset_page_counts(const clv_dataset *ds);
/* A page that is kept because the documents were opened with skips_labels: predictions are printed
 * with its words. */
typedef struct clv_kept_page {
  clv_page_word *words; /* [n] words of the page */
  size_t n;
  /* members of the page's JSON object besides words, boxes, labels and probabilities, as text, such
   * as "file":"a.pdf","page":1; "": none. Predictions print them again */
  const char *other_json_members;
  /* number of the page's first record; number of its records, which are its windows */
  size_t first_record, n_records;
} clv_kept_page;
/* number of pages that are kept; 0: none */
size_t clv_dataset_kept_page_count(const clv_dataset *ds);
const clv_kept_page *clv_dataset_kept_page(const clv_dataset *ds, size_t page);
/* Returns, for each token of a record of a kept page, the index of the word that the token
 * represents, or CLV_LABEL_IGNORED if it represents no word: [*ret_n] indexes. Exactly one token of
 * a page represents each word: the word's first token, in the window in which training would label
 * the word. */
const int32_t *clv_dataset_token_word_indices(const clv_dataset *ds, size_t record, size_t *ret_n);
/* Returns the number of token ids of the tokenizer; 0 without a tokenizer. */
int64_t clv_dataset_vocab_size(const clv_dataset *ds);
/* Returns the smallest and largest class label that is not ignored. False: the labels are not
 * classes. */
bool clv_dataset_label_range(const clv_dataset *ds, int64_t *ret_min, int64_t *ret_max);
/* Returns the single label of a record. False: the record has no label, or several. */
bool clv_dataset_label(const clv_dataset *ds, size_t record, double *ret);
/* As clv_dataset_label, but returns a hash of the labels if the record has several. False: the
 * record has no label. */
bool clv_dataset_label_hash(const clv_dataset *ds, size_t record, double *ret);
/* Returns the number, in its file, of the first record with the largest class label. False if the
 * number of classes does not follow from the records, because classes have names or are tokens. */
bool clv_dataset_largest_label(const clv_dataset *ds, size_t *ret_record);

/* Returns the class of a record; -1: the labels are not classes, or a record has one label per
 * position. */
int64_t clv_dataset_record_class(const clv_dataset *ds, size_t record);

/* Return shapes and types of a batch of n records. x is f32, or i64 for tokens. y is i64 (classes)
 * or f32. Without labels the shape of y has rank 0. */
clv_shape clv_dataset_x_shape(const clv_dataset *ds, size_t n);
clv_shape clv_dataset_y_shape(const clv_dataset *ds, size_t n);
clv_dtype clv_dataset_x_dtype(const clv_dataset *ds);
clv_dtype clv_dataset_y_dtype(const clv_dataset *ds);

/* An input of a record. Input 0 is the x of clv_dataset_x_shape. */
typedef struct clv_data_input {
  const char *name; /* name as in the options; "input" for a single, unnamed input */
  clv_dtype dtype;  /* CLV_F32 or CLV_I64 */
  clv_shape shape;  /* shape of a batch of n records */
} clv_data_input;
/* number of inputs, 1..CLV_DATA_MAX_INPUTS */
size_t clv_dataset_input_count(const clv_dataset *ds);
clv_data_input clv_dataset_input(const clv_dataset *ds, size_t k, size_t n);

/* Fills the first n rows of x ([B >= n, ...] of clv_dataset_x_dtype) and y (may be NULL) with the
 * records `record_indexes` [n] of a dataset with one input. Allocates nothing, except for images.
 * CLV_INVALID: a tensor or an index does not fit. */
clv_code clv_batch_fill(const clv_dataset *ds, const uint32_t *record_indexes, size_t n,
                        clv_tensor *x, clv_tensor *y, clv_err *err) CLV_USE_RESULT;

/* Seed and epoch, by which random crops, flips and masked tokens are drawn for training. */
typedef struct clv_draw_seed {
  uint64_t seed, epoch;
} clv_draw_seed;
/* As clv_batch_fill, but fills all inputs, x: [clv_dataset_input_count], and draws random crops,
 * flips and masked tokens for training. The draws depend only on (seed, epoch, record), not on
 * threads or the position in the batch. draw NULL: fills as for an evaluation, always equally. */
clv_code clv_batch_fill_inputs(const clv_dataset *ds, const clv_draw_seed *draw,
                               const uint32_t *record_indexes, size_t n, clv_tensor *const *x,
                               clv_tensor *y, clv_err *err) CLV_USE_RESULT;

/* most bytes, with the NUL, of a message about a value; the message names the file, the record, the
 * column and the value */
enum { CLV_SCAN_TEXT_BYTES = 400 };

/* Range and number of different values in a sample of records, as stored in the files. */
typedef struct clv_value_levels {
  /* number of records read; 0: the data are texts, tokens or several inputs, or no record could be
   * read */
  size_t n_records;
  double low, high;
  size_t n_levels; /* number of different values; 0: some value is no integer from 0 to 65535 */
  /* bits of a sample (one channel of one pixel): 16 if one of the images has 16, else 8; 0: no
   * images were read. If 16, the samples of images with 8 bits are multiplied by 257. */
  unsigned image_bits;
} clv_value_levels;
/* Finds the range and the number of different values of at most max_records records, evenly
 * spread. */
clv_code clv_dataset_value_levels(const clv_dataset *ds, size_t max_records, clv_value_levels *ret,
                                  clv_err *err) CLV_USE_RESULT;

/* True if all labels are numbers in low..high (NaN is not), if there are no labels, or if labels
 * are classes. If false, `first_outside` names the first label outside. */
bool clv_dataset_has_labels_in_range(const clv_dataset *ds, double low, double high,
                                     char first_outside[CLV_SCAN_TEXT_BYTES]);

/* Selects the numbers of an input that the op embedding uses as row indexes: those in column
 * `column` of the last dimension (-1: all columns), minus those in column `minus_column` (-1:
 * subtract nothing). */
typedef struct clv_data_columns {
  int64_t column, minus_column;
} clv_data_columns;
#define CLV_ALL_COLUMNS ((clv_data_columns){-1, -1})

/* Range of the numbers in an input. */
typedef struct clv_data_range {
  int64_t min, max;
  /* number, in its file, of the first record that has `min`, and of the first that has `max` */
  size_t min_at, max_at;
  double sum; /* sum of all numbers */
} clv_data_range;
/* Returns the range of input k. False: the input is not i64. If the difference of two columns
 * overflows, it counts as the largest or smallest i64. */
bool clv_dataset_input_range(const clv_dataset *ds, size_t k, clv_data_columns columns,
                             clv_data_range *ret);

/* Rules by which the padding of records must agree with their lengths. The library transformers
 * recognises pads by their token id, whatever the length says. */
typedef enum clv_pad_rule {
  /* No position within the length may have the pad token, because transformers skips pads when it
   * numbers positions. */
  CLV_PADS_NOT_INSIDE,
  /* The last position within the length must be the last token that is no pad, because that is the
   * token which transformers scores. */
  CLV_PADS_END_AT_TOKEN,
} clv_pad_rule;
/* Special values of the id of a pad token. CLV_NO_PAD: the model has no pad token.
 * CLV_PAD_NOT_A_TOKEN: the model's pad is an id that no token has. */
enum { CLV_NO_PAD = -1, CLV_PAD_NOT_A_TOKEN = -2 };
typedef struct clv_pad_fault {
  size_t record;
  int64_t position; /* position of the pad, or of the token that transformers scores */
  int64_t length;   /* length of the record */
  bool is_empty;    /* the record has only pads, or the length 0 */
} clv_pad_fault;

/* True if all records follow the rule, or pad is CLV_NO_PAD. Otherwise *ret is the first record
 * that does not. Tokens are the input "ids", or the first input. The length is the input
 * "lengths"; without it, all positions count. */
bool clv_dataset_has_valid_pads(const clv_dataset *ds, clv_pad_rule rule, int64_t pad,
                                clv_pad_fault *ret);
/* Counts that tell whether the labels of tokens are shifted by one position. Only labels at
 * positions whose token differs from the next token are compared. */
typedef struct clv_label_shift {
  size_t n_comparable;    /* number of compared labels; 0: labels are not tokens */
  size_t n_same_position; /* number of compared labels that equal the token at their own position */
} clv_label_shift;
clv_label_shift clv_dataset_label_shift(const clv_dataset *ds, int64_t ignored_label);
/* True if labels are not shifted by one position: at least 90 % of the compared labels equal the
 * token at their own position. If four or more labels are compared, one of them may differ. */
bool clv_labels_are_own_tokens(const clv_label_shift *m);

/* Appends a line for a file, or for each file in a folder: path, device, inode, size and
 * modification time. Reads no contents. Equal lines mean equal records, unless the times were set
 * back. */
clv_code clv_data_list_file_stamps(const char *path, clv_bytes *lines, clv_err *err) CLV_USE_RESULT;

/* ---- subsets of records ---------------------------------------------------------------------- */

/* Records of a dataset, listed by index. Release with clv_subset_done. */
typedef struct clv_subset {
  uint32_t *index; /* [n] indexes of the records in the dataset */
  size_t n;
} clv_subset;

void clv_subset_done(clv_subset *s);
clv_code clv_subset_all(const clv_dataset *ds, clv_subset *ret, clv_err *err) CLV_USE_RESULT;

typedef enum clv_split_kind {
  CLV_SPLIT_LAST = 0,   /* validation is the last part of the files */
  CLV_SPLIT_SHUFFLED,   /* validation is the last part of a permutation from the seed */
  CLV_SPLIT_STRATIFIED, /* validation has the same fraction of each class, drawn from the seed */
  CLV_SPLIT_GROUPS,     /* validation has complete groups, drawn from the seed */
  CLV_SPLIT_TIME,       /* validation has the latest records (CLV_KEY_IS_TIME) */
  CLV_SPLIT_COLUMN,     /* validation has the records of CLV_SET_VALIDATION (CLV_KEY_IS_SET) */
} clv_split_kind;

/* True if each record has one class: a class label, or a number that is 0 or 1 in all records. */
bool clv_dataset_has_record_classes(const clv_dataset *ds);
/* Returns the kind of split that is used when `requested_kind` is requested. STRATIFIED becomes
 * GROUPS if a page has several windows, so that these stay together. It becomes SHUFFLED if there
 * are no classes to stratify by: records do not have one class each, and no split_target is set. */
clv_split_kind clv_dataset_split_kind(const clv_dataset *ds, clv_split_kind requested_kind);

/* Splits all records into training and validation. Validation gets round(count * fraction) records,
 * at least one if fraction > 0. GROUPS gives validation about this number of records, in complete
 * groups. TIME adds all other records with the time of the earliest of them. COLUMN gives
 * validation all records of CLV_SET_VALIDATION, whatever the fraction. 0 <= fraction < 1. Both
 * lists are ascending, except for SHUFFLED. CLV_INVALID: training would have no record, or there
 * are no groups, or only one. */
clv_code clv_subset_split(const clv_dataset *ds, double fraction, clv_split_kind kind,
                          uint64_t seed, clv_subset *ret_train, clv_subset *ret_validation,
                          clv_err *err) CLV_USE_RESULT;

/* Splits all records for cross-validation: validation is fold `fold` of 1..n_folds, and with one
 * seed each record is in exactly one fold. kind: STRATIFIED (sizes of a class differ by one record
 * at most), SHUFFLED or GROUPS (a group goes to the smallest fold, the largest group first). Both
 * lists are ascending. CLV_INVALID: there are fewer records, or groups, than folds. */
clv_code clv_subset_split_fold(const clv_dataset *ds, clv_split_kind kind, size_t n_folds,
                               size_t fold, uint64_t seed, clv_subset *ret_train,
                               clv_subset *ret_validation, clv_err *err) CLV_USE_RESULT;

/* Removes from s the records of `removed_records`, which must be ascending. The others keep their
 * order. */
void clv_subset_remove(clv_subset *s, const clv_subset *removed_records);
/* True if all records of s have one class, *ret. False also for an empty list, and if records do
 * not have one class each. */
bool clv_subset_is_one_class(const clv_dataset *ds, const clv_subset *s, int64_t *ret);

/* Keeps `limit` records, drawn from the seed, and drops the others. STRATIFIED draws in proportion
 * to the sizes of the classes, any other kind from all records alike. The kept records stay in
 * their order. limit 0 keeps all. */
clv_code clv_dataset_limit(clv_dataset *ds, size_t limit, clv_split_kind kind, uint64_t seed,
                           clv_err *err) CLV_USE_RESULT;
/* Returns the number of a record in its file, from 0. It differs from `record` after
 * clv_dataset_limit. */
size_t clv_dataset_record_number(const clv_dataset *ds, size_t record);

/* ---- encoding the records of tables (table_encoder.c, table_learnt.c) ------------------------ */

/* Facts learnt from the training records of a table, which encoding any record needs: means,
 * categories, classes and the like. */
typedef struct clv_learnt clv_learnt;
void clv_learnt_free(clv_learnt *l);
void clv_learnt_freep(clv_learnt **l);

/* True if the format is table. Such a dataset has labels once it is open, and inputs once it is
 * encoded: no function that reads inputs may be called before clv_dataset_encode. */
bool clv_dataset_has_table(const clv_dataset *ds);
/* Learns from the training records `rows` how to encode records; learns the classes from all
 * records. */
clv_code clv_dataset_learn(const clv_dataset *ds, const clv_subset *rows, clv_learnt **ret,
                           clv_err *err) CLV_USE_RESULT;
/* Makes the input of each record, x: [B, elements] f32, and numbers the classes as training did.
 * CLV_DATA_LOSS: the columns are not those that were learnt. CLV_INVALID: a record has a class that
 * no record of data.train has. */
clv_code clv_dataset_encode(clv_dataset *ds, const clv_learnt *l, clv_err *err) CLV_USE_RESULT;
/* Describes an input that is the index of a column. */
typedef struct clv_index_facts {
  const char *column;   /* name of the column */
  size_t n_values;      /* number of different values of the training records */
  bool has_missing_row; /* missing values have an index of their own, the last one */
  size_t n_rows;        /* number of different indexes: the rows that an embedding needs */
} clv_index_facts;
/* Returns true if input k is the index of a table's column, and describes it. */
bool clv_dataset_index_facts(const clv_dataset *ds, size_t k, clv_index_facts *ret);
/* Returns the id of a record; NULL: the table has no column of ids, or the format is another. */
const char *clv_dataset_record_id(const clv_dataset *ds, size_t record);

/* A column of a table that no session describes yet, and how it could be used. */
typedef struct clv_found_column {
  char *name; /* name in the header; "": the header names none, and the column is ignored */
  clv_column_use use;
  const char *format;     /* CLV_COLUMN_DATE: form of the dates, static; NULL: ISO 8601 */
  bool has_unclear_dates; /* dates whose month and day are not distinguishable */
  size_t n_missing, n_distinct;
} clv_found_column;
typedef struct clv_found_table {
  clv_found_column *columns; /* [n] columns of the table, of which one is the target */
  size_t n, n_records;
  size_t n_classes; /* number of different values of the target; 0: the target is a number */
  char separator;   /* character between fields; 0: the file has lines of JSON */
  bool has_decimal_comma;
} clv_found_table;
/* Guesses the separator, the decimal mark and the use of each column of a CSV, or of lines of JSON
 * (.jsonl, .ndjson), plain or gzip. The target is the column named target, label, class, outcome,
 * y, diagnosis, response or result, else the last column. Release with clv_found_table_done.
 * CLV_INVALID: the file is no table. */
clv_code clv_table_guess_columns(const char *path, clv_found_table *ret,
                                 clv_err *err) CLV_USE_RESULT;
void clv_found_table_done(clv_found_table *t);

/* Reason why the user should check a column of a table; CLV_COLUMN_IS_FINE: there is none. */
typedef enum clv_column_suspicion {
  CLV_COLUMN_IS_FINE,
  CLV_COLUMN_IS_CONSTANT,
  /* each record has a different whole number, or word, in the column, which may thus hold ids */
  CLV_COLUMN_NAMES_RECORDS,
  /* the column may reveal the target: its correlation with the target is above 0.99 or below -0.99,
   * or it has few different words and all records with the same word have the same class */
  CLV_COLUMN_REVEALS_TARGET,
  CLV_COLUMN_REPEATS_IDS,        /* two records have the same id */
  CLV_COLUMN_IS_CONSTANT_TARGET, /* all records have the same label */
} clv_column_suspicion;

enum { CLV_DATE_TEXT_BYTES = 32 };
/* Writes the day of a date as YYYY-MM-DD. days: since 1970-01-01. Returns buf. */
const char *clv_date_text(double days, char buf[CLV_DATE_TEXT_BYTES]);

/* Facts about the cells of a column. The name belongs to the dataset. Two texts count as different
 * if their rows of tokens differ; the rows may be cut to max_tokens. */
typedef struct clv_column_facts {
  const char *name;
  clv_column_use use;
  size_t n_missing, n_distinct;
  /* smallest and largest number, or date in days since 1970-01-01, or number of a text's tokens;
   * NaN: the column has words, or no value */
  double low, high;
  bool has_integers;
  size_t n_rows; /* CLV_COLUMN_INDEX: rows that an embedding needs; 0: another use */
  /* Pearson's correlation with a target of numbers or of two classes, the largest if there are
   * several targets; 0: not computed */
  double correlation;
  /* of several targets, the name of the first one that the column reveals; NULL: none */
  const char *revealed_target;
  clv_column_suspicion suspicion;
} clv_column_facts;
/* Returns the number of columns that the session names; 0: another format. */
size_t clv_dataset_column_count(const clv_dataset *ds);
clv_code clv_dataset_column_facts(const clv_dataset *ds, const clv_subset *rows, size_t column,
                                  clv_column_facts *ret, clv_err *err) CLV_USE_RESULT;

/* Appends the learnt facts as JSON, from which clv_learnt_parse restores exactly the same values.
 * CLV_INVALID (of clv_learnt_parse): the text is damaged; the message has line and column. */
clv_code clv_learnt_write(const clv_learnt *l, clv_bytes *out, clv_err *err) CLV_USE_RESULT;
/* Return the number and the names of the targets in training, in the order of the model's outputs;
 * number 0: a record has one label. */
size_t clv_learnt_target_count(const clv_learnt *l);
const char *clv_learnt_target_name(const clv_learnt *l, size_t target);
/* Returns the name of a class of one of several targets; NULL: there is no such class. */
const char *clv_learnt_class_name(const clv_learnt *l, const char *target, size_t class);
clv_code clv_learnt_parse(const char *text, size_t len, const char *label, clv_learnt **ret,
                          clv_err *err) CLV_USE_RESULT;

/* ---- duplicate records (duplicates.c) -------------------------------------------------------- */

typedef struct clv_duplicates {
  size_t n; /* number of records that are equal to another record */
  /* number of these records whose label differs from the label of the record that they equal; 0
   * unless a set is compared with itself */
  size_t n_with_other_label;
  /* numbers, in their files, of the first record that is equal to another one, and of this other
   * record */
  size_t record, equal_record;
} clv_duplicates;

/* Counts the records of `rows` that are also in `other_rows`; if both are the same list, counts the
 * records that occur twice in it. by_id: records are the same if they have the same id; false: if
 * their inputs, or the files of images, are equal bit by bit. */
clv_code clv_dataset_find_duplicates(const clv_dataset *ds, const clv_subset *rows,
                                     const clv_dataset *other, const clv_subset *other_rows,
                                     bool by_id, clv_duplicates *ret, clv_err *err) CLV_USE_RESULT;

/* ---- digests (digest.c) ---------------------------------------------------------------------- */

/* Parts of a dataset, each of which has a digest: the inputs ("records", or the names of
 * inputs), then "labels" if there are any. clv_dataset_part_count returns the number of parts,
 * clv_dataset_part_name the name of a part, clv_dataset_part_path the file of a part, for
 * messages. */
size_t clv_dataset_part_count(const clv_dataset *ds);
const char *clv_dataset_part_name(const clv_dataset *ds, size_t part_index);
const char *clv_dataset_part_path(const clv_dataset *ds, size_t part_index);
/* Computes the digest of a part of a dataset: of type, shape and values of all records. For images
 * it reads all files and digests their bytes. */
clv_code clv_dataset_digest(const clv_dataset *ds, size_t part_index, clv_sha256 *ret,
                            clv_err *err) CLV_USE_RESULT;
/* Computes a digest of the paths, inodes, sizes and times of image files, without reading the
 * files. While this digest stays the same, the digest of the records does, too. Zeros for other
 * formats, whose data are in memory. */
clv_code clv_dataset_digest_file_stamps(const clv_dataset *ds, clv_sha256 *ret,
                                        clv_err *err) CLV_USE_RESULT;
/* Computes a digest of the record numbers (clv_dataset_record_number), in the order of s. */
clv_code clv_subset_digest(const clv_dataset *ds, const clv_subset *s, clv_sha256 *ret,
                           clv_err *err) CLV_USE_RESULT;

/* ---- scan of the records for bad values (scan.c) --------------------------------------------- */

typedef struct clv_scan_options {
  size_t max_records; /* most records to check, evenly spread; 0: all */
  /* decode each image to find damaged ones; false: images are not read, because their values are
   * always finite */
  bool decodes_images;
  const clv_draw_seed *draw; /* decode images as for training; NULL: as for an evaluation */
  /* The scan calls this every few megabytes, and at the end; may be NULL. */
  void (*progress)(void *user, size_t n_done, size_t n_all);
  void *user;
} clv_scan_options;

/* Result of a scan. Release with clv_scan_result_done. */
typedef struct clv_scan_result {
  size_t n_checked;                     /* number of checked records */
  clv_subset not_finite_records;        /* records with a value that is not finite, ascending */
  clv_subset unreadable_images;         /* unreadable images, ascending; only with skips_broken */
  clv_broken_records unreadable_errors; /* errors of the unreadable images */
  /* first value not finite: "x.npy: record 17, column 3 is nan" */
  char first_not_finite[CLV_SCAN_TEXT_BYTES];
} clv_scan_result;

/* Finds values that f32 cannot hold as a finite number, and images that cannot be read. Without
 * skips_broken, CLV_DATA_LOSS names the first unreadable image. */
clv_code clv_dataset_scan(const clv_dataset *ds, const clv_scan_options *options,
                          clv_scan_result *ret, clv_err *err) CLV_USE_RESULT;
void clv_scan_result_done(clv_scan_result *s);

/* ---- weighted sampling (sampling.c) ---------------------------------------------------------- */

/* Computes, for each record of `rows`, its chance to be drawn plus the chances of all records
 * before it: *ret [rows->n], ascending, which the caller frees. weights: [n_weights] chance of a
 * record of each class; n_weights 0: each class is drawn equally often. CLV_INVALID: records do not
 * have one class each, a class has no weight, or all chances are 0. */
clv_code clv_sampling_sums(const clv_dataset *ds, const clv_subset *rows, const double *weights,
                           size_t n_weights, double **ret, clv_err *err) CLV_USE_RESULT;
/* As clv_sampling_sums, but by the classes of one of several targets. A record without a label of
 * this target has the mean chance of the labelled records, so an epoch draws it once on average. */
clv_code clv_sampling_sums_of_target(const clv_dataset *ds, const clv_subset *rows, size_t target,
                                     const double *weights, size_t n_weights, double **ret,
                                     clv_err *err) CLV_USE_RESULT;
/* As clv_sampling_sums, but the chance of a record of a table is its weight in the column with
 * CLV_COLUMN_WEIGHT. CLV_INVALID: all weights are 0. */
clv_code clv_sampling_sums_of_column(const clv_dataset *ds, const clv_subset *rows, double **ret,
                                     clv_err *err) CLV_USE_RESULT;
/* Draws the records of an epoch with replacement: ret_order [n] receives indexes in the subset.
 * Draw i takes the first record whose sum is above u_i times the last sum. u_i is uniform in [0, 1)
 * and depends only on seed, epoch and i. */
void clv_sampling_draw(const double *sums, size_t n, uint64_t seed, uint64_t epoch,
                       uint32_t *ret_order);

/* ---- order of records ------------------------------------------------------------------------ */

/* Position in the order of records: `index` records of `epoch` have been used. The seed and this
 * position restore the order. If `index` is the number of records, the position means the same as
 * {epoch + 1, 0}. */
typedef struct clv_cursor {
  uint64_t epoch, index;
} clv_cursor;

typedef struct clv_batches_options {
  const clv_subset *subset; /* caller-owned; must outlive the batches */
  size_t batch_size;        /* records per batch, above 0 */
  /* shuffle the records of each epoch, by a permutation from the RNG key {seed, step = epoch, layer
   * = 0xfffffff0} */
  bool shuffles;
  /* [subset n] sums of clv_sampling_sums: an epoch draws as many records as the subset has, with
   * replacement; NULL: an epoch has each record once. Caller-owned; must outlive the batches. */
  const double *sampling_sums;
  /* leave out the last batch of an epoch if it has less than batch_size records */
  bool drops_short_last;
  uint64_t seed;
  uint64_t epochs;  /* stop before the epoch with this number; 0: never stop */
  clv_cursor start; /* position of the first record */
  /* for a loader: make batches as for an evaluation, without random crops and flips */
  bool is_evaluation;
} clv_batches_options;

typedef struct clv_batches clv_batches;

/* Makes the batches of a subset. CLV_INVALID: the subset is empty, batch_size is 0,
 * drops_short_last leaves no batch, or start.index is above the number of records. */
clv_code clv_batches_new(const clv_batches_options *options, clv_batches **ret,
                         clv_err *err) CLV_USE_RESULT;
void clv_batches_free(clv_batches *b);

/* Returns the records of the next batch: *ret_records points at [*ret_n] indexes that stay valid
 * until the next call. *ret_n = 0 after the last epoch. Allocates nothing. */
void clv_batches_next(clv_batches *b, const uint32_t **ret_records, size_t *ret_n);

/* Returns where the next batch starts. A later process continues there if it gets this cursor as
 * `start`. */
clv_cursor clv_batches_cursor(const clv_batches *b);
size_t clv_batches_per_epoch(const clv_batches *b);

/* ---- the loader, which prepares batches of records ------------------------------------------- */

/* A batch of records. Its memory belongs to the loader and is valid until the next
 * clv_loader_next. */
typedef struct clv_batch {
  clv_tensor *x; /* [n, ...] first input of the records */
  /* [n_inputs] tensors [n, ...] of all inputs, in the order of clv_dataset_input */
  clv_tensor *inputs[CLV_DATA_MAX_INPUTS];
  size_t n_inputs;
  clv_tensor *y;         /* [n] i64 or [n, ...] f32; NULL without labels */
  const uint32_t *index; /* [n] indexes of the records in the dataset */
  size_t n;              /* number of records; 0: no batch is left */
  clv_cursor at;         /* cursor at the start of this batch */
  /* cursor at the start of the next batch; to be saved once this batch has been used */
  clv_cursor next;
  bool is_last_of_epoch; /* the batch is the last one of its epoch */
} clv_batch;

typedef struct clv_loader clv_loader;

/* Starts one thread that prepares the next batch in a second buffer while the caller uses the
 * current one. Later calls allocate no memory, except for images. */
clv_code clv_loader_new(const clv_dataset *ds, const clv_batches_options *options, clv_loader **ret,
                        clv_err *err) CLV_USE_RESULT;
void clv_loader_free(clv_loader *l); /* stops the thread and frees the loader; NULL is allowed */
void clv_loader_freep(clv_loader **l);

/* Waits for the next batch, and lets the loader's thread reuse the memory of the previous batch. */
clv_code clv_loader_next(clv_loader *l, clv_batch *ret, clv_err *err) CLV_USE_RESULT;
size_t clv_loader_per_epoch(const clv_loader *l);

/* ---- sizes of micro-batches ------------------------------------------------------------------ */

/* Computes the sizes of the chunks into which torch.chunk cuts n rows: ceil(n / n_chunks) each, the
 * last one shorter, possibly fewer than n_chunks. chunk_sizes: [n_chunks]. Returns the number of
 * sizes written; 0 if n or n_chunks is 0. Source: torch.chunk, PyTorch 1.13. */
size_t clv_chunk_sizes(size_t n, size_t n_chunks, size_t *chunk_sizes);

#ifdef __cplusplus
}
#endif
#endif
