/* SPDX-License-Identifier: Apache-2.0
 *
 * Folders of images: the index of a folder, the decoders of PNG and JPEG, resampling, the part of
 * an image that a record shows, and the thread pool that runs these. Private to master/data.
 *
 * The size that a file declares is checked against max_pixels before memory is allocated. A broken
 * file is CLV_DATA_LOSS, and the message begins with its name.
 *
 */
#ifndef CLEAVE_DATA_IMAGE_INT_H
#define CLEAVE_DATA_IMAGE_INT_H

#include "master/data/data.h"

/* ---- decoding images (image.c, png.c, jpeg.c) ------------------------------------------------ */

/* Pixels of an image: rows of interleaved samples, from top to bottom. The memory is reused for the
 * next image. */
typedef struct clv_pixels {
  uint8_t *data;                    /* [height, width, channels] of u8 or u16 */
  size_t cap;                       /* bytes of `data` that are allocated */
  uint32_t width, height, channels; /* channels: 1: grey, 3: red, green, blue */
  bool has_16_bits;                 /* samples are u16: 0 to 65535; false: u8 */
} clv_pixels;

/* Bytes of one pixel. */
static inline size_t clv_pixel_bytes(const clv_pixels *p) {
  return (size_t)p->channels << p->has_16_bits;
}

void clv_pixels_done(clv_pixels *p);

/* An encoded file and how to decode it. */
typedef struct clv_encoded_image {
  const uint8_t *data;
  size_t len;
  uint32_t channels;      /* channels that the caller wants: 1 (grey) or 3 */
  uint64_t max_pixels;    /* largest width * height that is decoded */
  bool reads_header_only; /* the decoder reads only the size and leaves ret->data unchanged */
} clv_encoded_image;

/* Decodes PNG or JPEG by content, as PIL's convert("RGB") or convert("L") does, but keeps all 16
 * bits of a PNG that has them. Drops alpha, converts CMYK, ignores EXIF orientation and colour
 * profiles. */
clv_code clv_image_decode(const clv_encoded_image *in, clv_pixels *ret,
                          clv_err *err) CLV_USE_RESULT;

/* Checks the size of the image that a decoder will write, and allocates memory for this image. as:
 * its width, height and channels. The decoders call this function. */
clv_code clv_pixels_reserve(const clv_encoded_image *in, clv_pixels as, clv_pixels *ret,
                            clv_err *err) CLV_USE_RESULT;
/* Grows *p to `bytes` or more. The contents are lost when it grows. */
clv_code clv_reserve_bytes(uint8_t **p, size_t *cap, size_t bytes, clv_err *err) CLV_USE_RESULT;

clv_code clv_png_decode(const clv_encoded_image *in, clv_pixels *ret, clv_err *err) CLV_USE_RESULT;
clv_code clv_jpeg_decode(const clv_encoded_image *in, clv_pixels *ret, clv_err *err) CLV_USE_RESULT;

/* ---- resampling images (resample.c) ---------------------------------------------------------- */

typedef struct clv_box {
  uint32_t x, y, width, height;
} clv_box;

/* Scratch memory of one thread for resampling. Zero-initialise. */
typedef struct clv_resampler {
  uint8_t *memory[3]; /* [0]: weights; [1]: rows after the horizontal pass; [2]: sums */
  size_t cap[3];      /* bytes of each memory */
} clv_resampler;

void clv_resampler_done(clv_resampler *r);

/* Resizes the part `box` of src to width x height, and writes the part `output_box` of the result
 * to dst: rows of output_box.width pixels, `stride` bytes apart. Bit-identical to PIL's
 * Image.resize with BILINEAR (a triangle as wide as the reduction, horizontal pass first; weights
 * of 22 bits, for u16 samples in double). */
clv_code clv_resample_pixels(clv_resampler *r, const clv_pixels *src, clv_box box, uint32_t width,
                             uint32_t height, clv_box output_box, uint8_t *dst, size_t stride,
                             clv_err *err) CLV_USE_RESULT;

/* ---- the part of an image in a record (image_view.c) ----------------------------------------- */

/* How a record is cut from an image: the part `box` of the image is resized to width x height, and
 * the record begins at (x, y) of the resized part. Pixels of the record that are outside this part
 * are black. */
typedef struct clv_image_transform {
  clv_box box;
  uint32_t width, height;
  int64_t x, y;
  uint32_t out_width, out_height; /* size of the record */
  bool is_flipped;                /* the record is mirrored horizontally */
} clv_image_transform;

/* Returns the RNG key of the random choices for one record in one epoch. If
 * clv_image_transform_choose gets NULL in place of a key, it chooses as for an evaluation. */
clv_rng_key clv_image_transform_rng_key(uint64_t seed, uint64_t epoch, uint32_t record);

clv_code clv_image_transform_choose(const clv_image_options *o, uint32_t width, uint32_t height,
                                    const clv_rng_key *key, clv_image_transform *ret,
                                    clv_err *err) CLV_USE_RESULT;

/* Writes the samples of a record to dst: [out_height, out_width, channels] in the type of the
 * samples of `src`, flipped if transform->is_flipped. */
clv_code clv_image_transform_apply(const clv_image_transform *transform, const clv_pixels *src,
                                   uint64_t max_pixels, clv_resampler *r, uint8_t *dst,
                                   clv_err *err) CLV_USE_RESULT;

/* ---- the index of a folder (image_folder.c) -------------------------------------------------- */

typedef struct clv_image_folder {
  char *root;
  clv_bytes names;  /* NUL-terminated paths relative to root, and class names */
  size_t *paths;    /* [n] offset of each image's path in `names` */
  uint32_t *labels; /* [n] class number of each image */
  size_t n, cap;    /* n: number of images; cap: capacity of `paths` and `labels` */
  size_t *classes;  /* [n_classes] offset of each class's name in `names`; sorted by name */
  size_t n_classes, class_cap; /* number of classes; capacity of `classes` */
  size_t n_stray_files;   /* number of files that are not images, or outside the class folders */
  char *first_stray_file; /* first stray file by name, relative to root; NULL: none */
} clv_image_folder;

/* Lists the images root/CLASS/.../NAME.png|jpg|jpeg in torchvision.datasets.ImageFolder's order:
 * classes by name, in a class by folder and then by name, all as bytes. Skips hidden names.
 * is_unlabelled: lists root/.../NAME without classes, with paths that begin with "./". */
clv_code clv_image_folder_scan(const char *root, bool is_unlabelled, clv_image_folder *ret,
                               clv_err *err) CLV_USE_RESULT;
/* Lists n images of root, whose paths are at the offsets `paths` of `names`, without classes. */
clv_code clv_image_folder_list(const char *root, const char *names, const size_t *paths, size_t n,
                               clv_image_folder *ret, clv_err *err) CLV_USE_RESULT;
/* Returns true for a path that stays in its folder: relative, without a part "..". */
bool clv_image_is_path_inside(const char *path);
/* Returns true if a path in a folder is a file. */
bool clv_image_is_file(const char *folder, const char *path);
/* Keeps `limit` images, evenly spread over the list, and drops the others. limit 0 keeps all. */
void clv_image_folder_limit(clv_image_folder *f, size_t limit);
void clv_image_folder_done(clv_image_folder *f);

/* ---- a pool of threads (thread_pool.c) ------------------------------------------------------- */

typedef struct clv_thread_pool clv_thread_pool;

clv_code clv_thread_pool_new(unsigned n_threads, clv_thread_pool **ret,
                             clv_err *err) CLV_USE_RESULT;
void clv_thread_pool_free(clv_thread_pool *p);

/* Calls fn(arg, i, thread_number, err) once for each i < n on the threads of the pool, and waits
 * until all calls have returned. After a failure no further calls begin. Returns the failure with
 * the smallest i, so the result does not depend on timing. Several threads may call this at
 * once. */
typedef clv_code clv_thread_pool_fn(void *arg, size_t i, unsigned thread_number, clv_err *err);
clv_code clv_thread_pool_run(clv_thread_pool *p, size_t n, clv_thread_pool_fn *fn, void *arg,
                             clv_err *err) CLV_USE_RESULT;

/* ---- a dataset of images (images.c) ---------------------------------------------------------- */

typedef struct clv_images clv_images;

clv_code clv_images_open(const clv_dataset_options *options, clv_images **ret,
                         clv_err *err) CLV_USE_RESULT;
/* As clv_images_open, for the images of *folder, which the result then owns. */
clv_code clv_images_open_list(const clv_dataset_options *options, clv_image_folder *folder,
                              clv_images **ret, clv_err *err) CLV_USE_RESULT;
void clv_images_free(clv_images *im);
const clv_image_folder *clv_images_folder(const clv_images *im);
/* Drops all images except those of `kept_records`, which must be ascending. */
void clv_images_keep_records(clv_images *im, const clv_subset *kept_records);
/* Computes the digest of each file's bytes: ret [n]. Reads all files on the threads of the pool. */
clv_code clv_images_digest(clv_images *im, clv_sha256 *ret, clv_err *err) CLV_USE_RESULT;
/* Appends a line per image: path, device, inode, size, time of modification and time of inode
 * change. Reads no file. */
clv_code clv_images_list_file_stamps(const clv_images *im, clv_bytes *lines,
                                     clv_err *err) CLV_USE_RESULT;
/* True if unreadable images are skipped; false: an unreadable image ends the command with an
 * error. */
bool clv_images_can_skip_broken(const clv_images *im);
/* Returns the error of the first unreadable image among those whose header clv_images_open has
 * read; CLV_OK: all were readable. */
clv_code clv_images_probe_error(const clv_images *im, clv_err *err) CLV_USE_RESULT;
/* Decodes an image. *ret is valid until the next call. Do not call it while a batch is filled. */
clv_code clv_images_decode(clv_images *im, uint32_t record, const clv_pixels **ret,
                           clv_err *err) CLV_USE_RESULT;
/* Returns the size that every record has, in pixels. */
void clv_images_record_size(const clv_images *im, uint32_t *ret_height, uint32_t *ret_width);

/* Tables of normalised values: [256] for samples of 8 bits, [65536] for samples of 16 bits; with
 * has_table_per_channel one such table for each channel, one after the other. */
typedef struct clv_pixel_tables {
  const float *u8_values, *u16_values;
  bool has_table_per_channel;
} clv_pixel_tables;

/* Fills x, [n, channels, height, width] f32. draw NULL: crop as for an evaluation. */
clv_code clv_images_fill(clv_images *im, const clv_draw_seed *draw, const uint32_t *record_indexes,
                         size_t n, const clv_pixel_tables *tables, float *x,
                         clv_err *err) CLV_USE_RESULT;

#endif
