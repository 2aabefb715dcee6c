/* SPDX-License-Identifier: Apache-2.0
 *
 * data: raw records on the master. Readers for IDX (plain or gzip), .npy and folders of images, a
 * dataset that turns records into normalised float batches, seeded shuffling with a cursor that can
 * be saved, and a loader that prepares the next batch while the current one is being trained on.
 *
 * This folder sees base, json, tensor, settings, tokens and documents only, so nothing here can
 * reach the network.
 *
 * Ownership: a dataset owns its tensors; subsets, loaders and batches borrow the dataset, which
 * must outlive them. Threads: a dataset never changes after clv_dataset_open and may be read by
 * many threads; every other object belongs to one thread.
 * Limits: at most 2^32 - 1 records, rank 8, and max_bytes of decoded data per file.
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

/* ---- readers --------------------------------------------------------------------------------- */

/* Decoded bytes accepted when a limit of 0 is given. */
#define CLV_DATA_MAX_BYTES ((size_t)16 << 30)

/* IDX (big-endian: 00 00 type rank, rank u32 extents, data), plain or gzip, told apart by content.
 * u8 -> u8; i8, i16, i32 -> i32; f32 -> f32; f64 -> f64. A gzip file is decompressed to exactly
 * the declared length.
 * Errors, each naming file, expected and found: CLV_NOT_FOUND missing; CLV_INVALID wrong magic,
 * type or extents; CLV_EXHAUSTED over max_bytes; CLV_DATA_LOSS truncated, trailing bytes or
 * damaged gzip data. */
clv_code clv_idx_read(const char *path, size_t max_bytes, clv_tensor **ret,
                      clv_err *err) CLV_USE_RESULT;

/* NumPy .npy, format 1.0 to 3.0, in C or Fortran order, little- or big-endian, plain or gzip. u1
 * and b1 (0 and 1) -> u8; i1, i2, u2, i4 -> i32; u4, i8, u8 -> i64; f2, f4 -> f32; f8 -> f64. Other
 * types, and a u8 above 2^63 - 1, are CLV_INVALID with the line of Python that cures it. Errors as
 * clv_idx_read. */
clv_code clv_npy_read(const char *path, size_t max_bytes, clv_tensor **ret,
                      clv_err *err) CLV_USE_RESULT;

/* The same from memory; `label` stands for the file name in messages. */
clv_code clv_idx_parse(const void *data, size_t len, const char *label, size_t max_bytes,
                       clv_tensor **ret, clv_err *err) CLV_USE_RESULT;
clv_code clv_npy_parse(const void *data, size_t len, const char *label, size_t max_bytes,
                       clv_tensor **ret, clv_err *err) CLV_USE_RESULT;

/* ---- dataset --------------------------------------------------------------------------------- */

typedef enum clv_label_kind {
  CLV_LABEL_CLASS = 0, /* integers >= 0 -> y: [B] i64. Of records that are tokens or have named
                        * inputs also one per place, [B, ...], where `ignored` is none */
  CLV_LABEL_FLOAT,     /* numbers -> y: [B, ...] f32; a file of rank 1 becomes [B, 1] */
} clv_label_kind;

typedef enum clv_crop_kind {
  CLV_CROP_CENTER = 0,     /* torchvision's CenterCrop; evaluations always use it */
  CLV_CROP_RANDOM,         /* RandomCrop */
  CLV_CROP_RANDOM_RESIZED, /* RandomResizedCrop, instead of `resize` */
} clv_crop_kind;

#define CLV_IMAGE_MAX_PIXELS ((uint64_t)64 << 20)

/* What a record shows of its image, in the order resize, crop, flip. Sizes are pixels. */
typedef struct clv_image_options {
  uint32_t channels; /* 3: red, green, blue; 1: grey */
  uint32_t resize;   /* of the shorter side, 0 = as it is; Pillow's bilinear to the bit */
  uint32_t crop;     /* side of the square, 0 = all of it: then all images must have one size */
  clv_crop_kind train_crop;
  uint32_t pad;                 /* CLV_CROP_RANDOM: black border first */
  double area_low, area_high;   /* CLV_CROP_RANDOM_RESIZED: share of the image, 0 < .. <= 1 */
  double ratio_low, ratio_high; /* CLV_CROP_RANDOM_RESIZED: width / height, > 0 */
  double flip;                  /* probability of a horizontal flip when training */
  uint64_t max_pixels;          /* of an image, also while it is resized; 0 = the above */
  uint32_t threads;             /* that read and decode; 0 = 1 */
} clv_image_options;

/* How a text becomes a row of tokens. */
typedef struct clv_text_options {
  const char *column, *label; /* where text and class stand: of a CSV's header, of each object */
  const char *group;          /* the same of the group; NULL: not wanted */
  size_t max_tokens;          /* of a row; longer texts are cut, shorter ones filled */
  const char *tokenizer;      /* its file */
  clv_tokenizer_options pieces;
  bool no_ends;                   /* neither first nor last */
  const char *first, *last, *pad; /* tokens by name; NULL: [CLS], [SEP] and [PAD] of a vocab.txt */
  const char *mask;               /* the same, [MASK]; for CLV_OBJECTIVE_MASKED */
} clv_text_options;

/* What the labels are, of texts and documents. Those of tokens are [B, S]; pads have none. */
typedef enum clv_objective {
  CLV_OBJECTIVE_LABELS = 0, /* those of the files */
  CLV_OBJECTIVE_CAUSAL,     /* of each token the next one */
  CLV_OBJECTIVE_MASKED, /* BERT's: 15 in 100 tokens of the text, drawn from (seed, epoch, record),
                         * have themselves; of these 80 in 100 become the mask, 10 any token, and 10
                         * stay. One at least of a record that has any. Evaluations see the same
                         * ones each time. */
} clv_objective;

/* How pages become windows of tokens; tokenizer and max_tokens are those of clv_text_options. */
typedef struct clv_page_options {
  size_t stride;             /* tokens of a window that come again in the next one */
  bool per_page;             /* a class per page and so per window; false: one per word */
  const char *const *labels; /* [n_labels] names of the classes in their order; 0: all, sorted */
  size_t n_labels;
  clv_child_limits limits; /* of each PDF or image */
} clv_page_options;

/* Inputs of a record, at most. */
enum { CLV_DATA_MAX_INPUTS = 8 };

/* Zero-initialise, then set what differs. Strings and arrays are read during open only. */
typedef struct clv_dataset_options {
  clv_data_format format; /* AUTO: idx or npy */
  const char *inputs_path;
  /* [n_named]: several inputs by name, a file each, instead of inputs_path; idx and npy. Whole
   * numbers stay (i64), bytes are divided by 255, floats are floats (f32), and shapes are those of
   * the files. scale, mean, std, flatten and tokens are none of theirs. 0: one input, "input".
   * Texts have ids [S] and lengths [], documents boxes [S, 4] too: any of these in any order, and
   * no paths. */
  size_t n_named;
  const char *const *names;
  const char *const *named_paths;
  const char *labels_path; /* NULL: no labels (prediction), or those of an image folder */
  bool unlabelled;         /* of images: all below the folder, in whatever folders they are */
  size_t limit;            /* use the first `limit` records, or so many of all images; 0 = all */
  bool grouped; /* which records belong together is read, for CLV_SPLIT_GROUPS: of documents those
                 * of a file, of images those of a folder below the class, of texts by text.group */
  const char *group;       /* arrays: path of a file, a whole number a record */
  float scale;             /* factor; 0 = u8 is divided by 255 (ToTensor), others stay */
  const float *mean, *std; /* [n_mean], [n_std]: 0, 1 or one per channel; std > 0 */
  size_t n_mean, n_std;
  bool flatten;      /* x: [B, all of a record] */
  bool keeps_rank_3; /* inputs [N, a, b] stay so; false: they are images [N, 1, a, b] */
  bool tokens;       /* x: i64 as in the file, which must hold integers; no scale, mean or std */
  clv_label_kind labels;
  clv_objective objective;  /* other than labels: those of files are not looked for */
  const int64_t *ignored;   /* the label of places without one; NULL: CLV_LABEL_IGNORED */
  size_t n_classes;         /* > 0: class labels must be below it */
  size_t max_bytes;         /* per file; 0 = CLV_DATA_MAX_BYTES */
  bool tolerates_broken;    /* leaves broken texts and pages out (clv_dataset_broken); images that
                             * are found at open are left to clv_dataset_scan */
  clv_image_options images; /* CLV_FORMAT_IMAGES */
  clv_text_options text;    /* CLV_FORMAT_TEXT, CLV_FORMAT_DOCUMENTS */
  clv_page_options pages;   /* CLV_FORMAT_DOCUMENTS */
} clv_dataset_options;

/* Records that cannot be read. */
enum { CLV_BROKEN_LISTED = 20 };
typedef struct clv_broken_records {
  size_t n;
  clv_bytes list; /* what is wrong with the first CLV_BROKEN_LISTED of them, a line each */
} clv_broken_records;

void clv_broken_done(clv_broken_records *b);
/* Counts one, with its error, which names the file. */
void clv_broken_add(clv_broken_records *b, const clv_err *why);

typedef struct clv_dataset clv_dataset;

/* Reads all files whole and checks them against each other: CLV_INVALID names both counts when
 * they differ, and the first label out of range with its index.
 * Inputs of rank 1 [N] count as [N, 1], of rank 3 [N, H, W] as [N, 1, H, W] unless keeps_rank_3;
 * the channel is dimension 1 of what results, before flattening.
 * Each value becomes ((float)v * scale - mean[c]) / std[c] in float32, in that order (automatic
 * scale of u8: (float)v / 255), which are torchvision's ToTensor and Normalize to the bit.
 * Of an image folder the index is read and a few headers; labels are the classes' numbers, classes
 * are sorted by name. What is wrong with an image is CLV_DATA_LOSS and names it. */
clv_code clv_dataset_open(const clv_dataset_options *options, clv_dataset **ret,
                          clv_err *err) CLV_USE_RESULT;
void clv_dataset_free(clv_dataset *ds);
void clv_dataset_freep(clv_dataset **ds);

size_t clv_dataset_count(const clv_dataset *ds);
bool clv_dataset_has_labels(const clv_dataset *ds);
/* Folders of images, and texts: how many classes there are, else 0; and that both have the same
 * ones. */
size_t clv_dataset_class_count(const clv_dataset *ds);
const char *clv_dataset_class_name(const clv_dataset *ds, size_t class); /* its name */
/* The path of an image in its folder, as in "cat/1.png"; NULL for records of other files. */
const char *clv_dataset_image_path(const clv_dataset *ds, size_t record);
clv_code clv_dataset_check_same_classes(const clv_dataset *train, const clv_dataset *test,
                                        clv_err *err) CLV_USE_RESULT;
/* Folders of images: files that are left alone, since they are no .png, .jpg or .jpeg or are in no
 * class; the first by name, below the folder. */
size_t clv_dataset_stray_files(const clv_dataset *ds, const char **ret_first);
/* Whether inputs [N, a, b] became images [N, 1, a, b]. */
bool clv_dataset_adds_channel(const clv_dataset *ds);
/* Texts and pages that were left out with `tolerates_broken`. */
const clv_broken_records *clv_dataset_broken(const clv_dataset *ds);
/* Texts that are longer than max_tokens. */
size_t clv_dataset_truncated(const clv_dataset *ds);
/* Of documents; zeros otherwise. */
typedef struct clv_page_counts {
  size_t pages, words, windows;
  size_t long_pages; /* of more than one window */
  size_t left_out;   /* windows without a label */
  size_t no_token;   /* words that the tokenizer makes nothing of */
  size_t strays;     /* files that are no documents */
} clv_page_counts;
clv_page_counts clv_dataset_page_counts(const clv_dataset *ds);
/* A page of documents that were opened `unlabelled`: predictions are of its words. */
typedef struct clv_kept_page {
  clv_page_word *words; /* [n] */
  size_t n;
  const char *more;      /* "file":"a.pdf","page":1; of a line of JSON all that is not words, boxes,
                          * labels or probabilities, as it stands there; "": nothing */
  size_t first, windows; /* its records: first, first + 1, ... */
} clv_kept_page;
size_t clv_dataset_kept_page_count(const clv_dataset *ds); /* 0: they are not kept */
const clv_kept_page *clv_dataset_kept_page(const clv_dataset *ds, size_t page);
/* Of a record of such a page, [*ret_n]: the word that each of its tokens speaks for, or
 * CLV_LABEL_IGNORED. One token of all windows speaks for a word: its first one, in the window where
 * it would have its label. */
const int32_t *clv_dataset_token_words(const clv_dataset *ds, size_t record, size_t *ret_n);
/* How many tokens the tokenizer has; 0 without one. */
int64_t clv_dataset_vocab_size(const clv_dataset *ds);
/* Smallest and largest class label that is not ignored; false unless the labels are classes. */
bool clv_dataset_label_range(const clv_dataset *ds, int64_t *ret_min, int64_t *ret_max);
/* The one label of a record; false: it has none, or several. */
bool clv_dataset_label(const clv_dataset *ds, size_t record, double *ret);
/* The same; of several a number that is equal where all of them are. false: it has none. */
bool clv_dataset_label_hash(const clv_dataset *ds, size_t record, double *ret);
/* The number in its file of the first record with the largest class label. False where classes are
 * not counted by looking at records: they have names, or are tokens. */
bool clv_dataset_largest_label(const clv_dataset *ds, size_t *ret_record);

/* The class of a record; -1: its labels are no classes, or one for each place. */
int64_t clv_dataset_record_class(const clv_dataset *ds, size_t record);

/* Shapes of a batch of n records. x is f32, or i64 of tokens; y is i64 (classes) or f32; rank 0
 * without labels. */
clv_shape clv_dataset_x_shape(const clv_dataset *ds, size_t n);
clv_shape clv_dataset_y_shape(const clv_dataset *ds, size_t n);
clv_dtype clv_dataset_x_dtype(const clv_dataset *ds);
clv_dtype clv_dataset_y_dtype(const clv_dataset *ds);

/* The inputs of a record, by name. x above is the first of them. */
typedef struct clv_data_input {
  const char *name; /* of the options; "input" where there is one without a name */
  clv_dtype dtype;  /* CLV_F32 or CLV_I64 */
  clv_shape shape;  /* of a batch */
} clv_data_input;
size_t clv_dataset_input_count(const clv_dataset *ds); /* 1..CLV_DATA_MAX_INPUTS */
clv_data_input clv_dataset_input(const clv_dataset *ds, size_t k, size_t n);

/* Fill the first n rows of x ([B >= n, ...] of x_dtype) and y (may be NULL) with the records
 * `index` [n], of a dataset with one input. Allocates nothing, except for images. CLV_INVALID when
 * a tensor or an index does not fit. */
clv_code clv_batch_fill(const clv_dataset *ds, const uint32_t *index, size_t n, clv_tensor *x,
                        clv_tensor *y, clv_err *err) CLV_USE_RESULT;

/* The same of all inputs, x: [clv_dataset_input_count], and for training: random crops and flips of
 * images are drawn from (seed, epoch, record), so neither threads nor the place in the batch change
 * them. draw NULL: nothing is random. */
typedef struct clv_draw_seed {
  uint64_t seed, epoch;
} clv_draw_seed;
clv_code clv_batch_fill_inputs(const clv_dataset *ds, const clv_draw_seed *draw,
                               const uint32_t *index, size_t n, clv_tensor *const *x, clv_tensor *y,
                               clv_err *err) CLV_USE_RESULT;

/* What is wrong with a value: file, record, column and value. */
enum { CLV_SCAN_TEXT = 400 };

/* The values of a sample of records as their files have them. */
typedef struct clv_value_levels {
  size_t records; /* that were looked at; 0: texts, tokens, several inputs, none readable */
  double low, high;
  size_t levels; /* different values; 0: not all are whole numbers from 0 to 65535 */
  unsigned bits; /* of images: 8, or 16 where one has so many, and of bytes times 257; else 0 */
} clv_value_levels;
clv_code clv_dataset_value_levels(const clv_dataset *ds, size_t most, clv_value_levels *ret,
                                  clv_err *err) CLV_USE_RESULT;

/* Whether all labels are numbers in low..high, NaN being none; true where there are no labels or
 * they are classes. When false, `first` names the first one that is not. */
bool clv_dataset_has_labels_in(const clv_dataset *ds, double low, double high,
                               char first[CLV_SCAN_TEXT]);

/* Which numbers of an input: those of a column of its last dimension (-1: all), less those of
 * column `minus` (-1: nothing), as the op embedding has them. */
typedef struct clv_data_columns {
  int64_t column, minus;
} clv_data_columns;
#define CLV_ALL_COLUMNS ((clv_data_columns){-1, -1})

/* Smallest and largest of them in input k, and the number in its file of the first record that has
 * each; false unless that is whole numbers (i64). A difference that no i64 holds counts as the
 * largest or smallest one. */
typedef struct clv_data_range {
  int64_t min, max;
  size_t min_at, max_at;
  double sum; /* of all of them */
} clv_data_range;
bool clv_dataset_input_range(const clv_dataset *ds, size_t k, clv_data_columns columns,
                             clv_data_range *ret);

/* Where transformers looks for pads by their token, records must say the same by their lengths. */
typedef enum clv_pad_rule {
  CLV_PADS_NOT_INSIDE, /* no pad among the real places: places are numbered without pads there */
  /* the last token that is no pad is the last real one: it is scored there */
  CLV_PADS_END_AT_TOKEN,
} clv_pad_rule;
/* Instead of the token of pads: there is none; pads are a number that no token has. */
enum { CLV_NO_PAD = -1, CLV_PAD_NOT_A_TOKEN = -2 };
typedef struct clv_pad_fault {
  size_t record;
  int64_t place, length; /* place: of the pad, or of the token that is scored there */
  bool is_empty;         /* it has no token but pads, or the length 0 */
} clv_pad_fault;

/* Whether all records follow the rule; else the first that does not. Tokens are the input "ids", or
 * the first one; real places those before "lengths", or all. True for
 * CLV_NO_PAD. */
bool clv_dataset_has_valid_pads(const clv_dataset *ds, clv_pad_rule rule, int64_t pad,
                                clv_pad_fault *ret);
/* Labels of places where the next place has another token: how many there are, and how many of them
 * are the token of their own place. 0 where labels are no tokens. */
typedef struct clv_label_shift {
  size_t telling, own;
} clv_label_shift;
clv_label_shift clv_dataset_label_shift(const clv_dataset *ds, int64_t ignored);
/* Nine of ten are their own token, or all but one of at least four. */
bool clv_labels_are_own_tokens(const clv_label_shift *m);

/* What a file is, or each file in a folder, without reading it: adds a line with path, inode, size
 * and time. Equal lines, equal records, unless somebody sets times back. */
clv_code clv_data_stamp(const char *path, clv_bytes *lines, clv_err *err) CLV_USE_RESULT;

/* ---- subsets --------------------------------------------------------------------------------- */

/* A list of record numbers. Release with clv_subset_done. */
typedef struct clv_subset {
  uint32_t *index;
  size_t n;
} clv_subset;

void clv_subset_done(clv_subset *s);
clv_code clv_subset_all(const clv_dataset *ds, clv_subset *ret, clv_err *err) CLV_USE_RESULT;

typedef enum clv_split_kind {
  CLV_SPLIT_LAST = 0,   /* validation is the last part of the files */
  CLV_SPLIT_SHUFFLED,   /* validation is the last part of a permutation of the seed */
  CLV_SPLIT_STRATIFIED, /* drawn by the seed, each class by its share */
  CLV_SPLIT_GROUPS,     /* groups drawn by the seed, each whole */
} clv_split_kind;

/* Whether each record has one class: a class label, or a number that is 0 or 1 in all of them. */
bool clv_dataset_has_record_classes(const clv_dataset *ds);
/* What a split of the kind `asked` comes to. STRATIFIED is GROUPS where a page has several windows,
 * so that the windows of a page stay together, and SHUFFLED where records have no class of their
 * own. */
clv_split_kind clv_dataset_split_kind(const clv_dataset *ds, clv_split_kind asked);

/* Splits all records: round(count * fraction) go to validation, at least one where fraction > 0, 0
 * <= fraction < 1; GROUPS: about so many. Both lists are ascending but for CLV_SPLIT_SHUFFLED.
 * CLV_INVALID: training would be left without a record, or there are no groups, or one alone. */
clv_code clv_subset_split(const clv_dataset *ds, double fraction, clv_split_kind kind,
                          uint64_t seed, clv_subset *ret_train, clv_subset *ret_validation,
                          clv_err *err) CLV_USE_RESULT;

/* Takes the records of `gone`, which is ascending, out of s; the others keep their order. */
void clv_subset_remove(clv_subset *s, const clv_subset *gone);
/* Whether all records of s have the same class, *ret. False for an empty list, and where records
 * have no class of their own. */
bool clv_subset_is_one_class(const clv_dataset *ds, const clv_subset *s, int64_t *ret);

/* Keeps `limit` records, drawn as a split draws, and forgets the others; their order stays. 0: all.
 * GROUPS and LAST draw as SHUFFLED. */
clv_code clv_dataset_limit(clv_dataset *ds, size_t limit, clv_split_kind kind, uint64_t seed,
                           clv_err *err) CLV_USE_RESULT;
/* Number of a record in its file, from 0: another than `record` behind clv_dataset_limit. */
size_t clv_dataset_record_number(const clv_dataset *ds, size_t record);

/* ---- digests (digest.c) ---------------------------------------------------------------------- */

/* The parts of a set, each with a digest of its own: its inputs ("records", or their names), then
 * "labels" where it has some. A path is for messages. */
size_t clv_dataset_part_count(const clv_dataset *ds);
const char *clv_dataset_part_name(const clv_dataset *ds, size_t part);
const char *clv_dataset_part_path(const clv_dataset *ds, size_t part);
/* Digest of what training reads of the part: type, shape and values of all records; of images the
 * bytes of their files, which are read for it. */
clv_code clv_dataset_digest(const clv_dataset *ds, size_t part, clv_sha256 *ret,
                            clv_err *err) CLV_USE_RESULT;
/* Digest of paths, inodes, sizes and times of the files of images, which are not read: as long as
 * it stays, so does the digest of the records. Zeroes of other data, which are in memory. */
clv_code clv_dataset_stamp(const clv_dataset *ds, clv_sha256 *ret, clv_err *err) CLV_USE_RESULT;
/* Digest of the numbers of the records in their file, in the order of s. */
clv_code clv_subset_digest(const clv_dataset *ds, const clv_subset *s, clv_sha256 *ret,
                           clv_err *err) CLV_USE_RESULT;

/* ---- a look through the records (scan.c) ----------------------------------------------------- */

typedef struct clv_scan_options {
  size_t most; /* records that are looked at, spread over all; 0: every one */
  /* Images have no values that are not finite. With `decode` each is read all the same, so that one
   * that is damaged is found; with `draw` as for training. */
  bool decode;
  const clv_draw_seed *draw;
  /* Told every few megabytes, and at the end; may be NULL. */
  void (*progress)(void *user, size_t done, size_t all);
  void *user;
} clv_scan_options;

/* Release with clv_scan_done. */
typedef struct clv_scan {
  size_t looked_at;
  clv_subset not_finite;     /* records with such a value in inputs or labels, ascending */
  clv_subset unreadable;     /* images, ascending; with tolerates_broken alone */
  clv_broken_records broken; /* what is wrong with them */
  char first[CLV_SCAN_TEXT]; /* the first of them: "x.npy: record 17, column 3 is nan" */
} clv_scan;

/* Finds values that f32 cannot hold as a finite number, and images that cannot be read.
 * CLV_DATA_LOSS names the first of the latter, unless the dataset tolerates them. */
clv_code clv_dataset_scan(const clv_dataset *ds, const clv_scan_options *options, clv_scan *ret,
                          clv_err *err) CLV_USE_RESULT;
void clv_scan_done(clv_scan *s);

/* ---- order of records ------------------------------------------------------------------------ */

/* A place in the order of records: `index` records of `epoch` have been used. With the seed these
 * two numbers are all there is to save; index == count means {epoch + 1, 0}. */
typedef struct clv_cursor {
  uint64_t epoch, index;
} clv_cursor;

typedef struct clv_batches_options {
  const clv_subset *subset; /* borrowed */
  size_t batch;             /* records per batch, > 0 */
  bool shuffle;             /* permutation of {seed, step = epoch, layer = 0xfffffff0} */
  bool drop_last;           /* skip an epoch's last, short batch */
  uint64_t seed;
  uint64_t epochs; /* stop before this epoch number; 0 = go on for ever */
  clv_cursor start;
  bool evaluation; /* of a loader: nothing about a record is random */
} clv_batches_options;

typedef struct clv_batches clv_batches;

/* CLV_INVALID: empty subset, batch 0, drop_last with batch > count, start.index > count. */
clv_code clv_batches_new(const clv_batches_options *options, clv_batches **ret,
                         clv_err *err) CLV_USE_RESULT;
void clv_batches_free(clv_batches *b);

/* The record numbers of the next batch: *ret_index points at [*ret_n] numbers that stay valid
 * until the next call. *ret_n = 0 when `epochs` are over. Allocates nothing. */
void clv_batches_next(clv_batches *b, const uint32_t **ret_index, size_t *ret_n);

/* Where the next batch starts: save this to go on with it, in this process or another. */
clv_cursor clv_batches_cursor(const clv_batches *b);
size_t clv_batches_per_epoch(const clv_batches *b);

/* ---- loader ---------------------------------------------------------------------------------- */

/* One batch, ready to be trained on. */
typedef struct clv_batch {
  clv_tensor *x; /* [n, ...], the first input, borrowed until the next clv_loader_next */
  /* [n_inputs] of [n, ...], as clv_dataset_input has them */
  clv_tensor *inputs[CLV_DATA_MAX_INPUTS];
  size_t n_inputs;
  clv_tensor *y;         /* [n] i64 or [n, ...] f32, borrowed; NULL without labels */
  const uint32_t *index; /* [n] record numbers, borrowed */
  size_t n;              /* 0: no batch is left */
  clv_cursor at;         /* where the batch starts */
  clv_cursor next;       /* save this once the batch has been used */
  bool last;             /* the last batch of its epoch */
} clv_batch;

typedef struct clv_loader clv_loader;

/* Starts one thread that keeps the next batch ready (two buffers): it is read and decoded while the
 * current one is being trained on. After this call nothing is allocated any more, except for
 * images. */
clv_code clv_loader_new(const clv_dataset *ds, const clv_batches_options *options, clv_loader **ret,
                        clv_err *err) CLV_USE_RESULT;
void clv_loader_free(clv_loader *l); /* stops the thread; takes NULL */
void clv_loader_freep(clv_loader **l);

/* Waits for the next batch; gives the memory of the former one back to the thread. */
clv_code clv_loader_next(clv_loader *l, clv_batch *ret, clv_err *err) CLV_USE_RESULT;
size_t clv_loader_per_epoch(const clv_loader *l);

/* ---- micro-batches --------------------------------------------------------------------------- */

/* Sizes of the pieces torch.chunk cuts n rows into: ceil(n / chunks) each, a shorter last one, and
 * possibly fewer than `chunks`. sizes: [chunks]; returns how many were written (0 when n or
 * chunks is 0). Source: torch.chunk, PyTorch 1.13. */
size_t clv_chunk_sizes(size_t n, size_t chunks, size_t *sizes);

#ifdef __cplusplus
}
#endif
#endif
