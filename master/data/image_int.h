/* SPDX-License-Identifier: Apache-2.0
 *
 * Image folders: the index of a folder, PNG and JPEG to pixels, pixels to the part of them that a
 * record shows, and the threads that do it. Stays inside master/data.
 *
 * Whatever a file says is checked against max_pixels before memory is taken for it, and what is
 * wrong with a file is CLV_DATA_LOSS with the file's name in front.
 */
#ifndef CLEAVE_DATA_IMAGE_INT_H
#define CLEAVE_DATA_IMAGE_INT_H

#include "master/data/data.h"

/* ---- decoding (image.c, png.c, jpeg.c) ------------------------------------------------------- */

/* Rows of interleaved samples, top to bottom. The memory is kept for the next image. */
typedef struct clv_pixels {
  uint8_t *data;                    /* [height, width, channels] of u8 or u16 */
  size_t cap;                       /* bytes */
  uint32_t width, height, channels; /* 1: grey, 3: red, green, blue */
  bool is_wide;                     /* u16: 0 to 65535 */
} clv_pixels;

/* Bytes of one pixel. */
static inline size_t clv_pixel_bytes(const clv_pixels *p) {
  return (size_t)p->channels << p->is_wide;
}

void clv_pixels_done(clv_pixels *p);

/* A file's bytes and what is wanted of them. */
typedef struct clv_encoded_image {
  const uint8_t *data;
  size_t len;
  uint32_t channels;   /* 1 or 3 */
  uint64_t max_pixels; /* width * height */
  bool header_only;    /* the size alone; ret->data stays as it is */
} clv_encoded_image;

/* Decodes PNG or JPEG by content, as PIL's convert("RGB") or convert("L") does, but keeps all 16
 * bits of a PNG that has them. Drops alpha, converts CMYK, ignores EXIF orientation and colour
 * profiles. */
clv_code clv_image_decode(const clv_encoded_image *in, clv_pixels *ret,
                          clv_err *err) CLV_USE_RESULT;

/* For the decoders: checks the size of what they will write, `as`, and makes room for it. */
clv_code clv_pixels_reserve(const clv_encoded_image *in, clv_pixels as, clv_pixels *ret,
                            clv_err *err) CLV_USE_RESULT;
/* Room for `bytes` at *p, whose contents are lost when it grows. */
clv_code clv_reserve_bytes(uint8_t **p, size_t *cap, size_t bytes, clv_err *err) CLV_USE_RESULT;

clv_code clv_png_decode(const clv_encoded_image *in, clv_pixels *ret, clv_err *err) CLV_USE_RESULT;
clv_code clv_jpeg_decode(const clv_encoded_image *in, clv_pixels *ret, clv_err *err) CLV_USE_RESULT;

/* ---- resampling (resample.c) ----------------------------------------------------------------- */

typedef struct clv_box {
  uint32_t x, y, width, height;
} clv_box;

/* Scratch of one thread; zero-initialise. */
typedef struct clv_resampler {
  uint8_t *memory[3]; /* weights, rows after the horizontal pass, sums */
  size_t cap[3];
} clv_resampler;

void clv_resampler_done(clv_resampler *r);

/* The part `window` of what resizing src's part `box` to width x height gives, to dst: rows of
 * window.width pixels, `stride` bytes apart. To the bit what PIL's Image.resize with BILINEAR gives
 * (a triangle as wide as the reduction, horizontal pass first; weights of 22 bits, of u16 samples
 * in double). */
clv_code clv_resample(clv_resampler *r, const clv_pixels *src, clv_box box, uint32_t width,
                      uint32_t height, clv_box window, uint8_t *dst, size_t stride,
                      clv_err *err) CLV_USE_RESULT;

/* ---- what a record shows of its image (image_view.c) ----------------------------------------- */

/* `box` of the image is resized to width x height, and the record begins at (x, y) of that; what
 * lies outside is black. */
typedef struct clv_image_view {
  clv_box box;
  uint32_t width, height;
  int64_t x, y;
  uint32_t out_width, out_height; /* of the record */
  bool flip;
} clv_image_view;

/* The random choices of one record in one epoch; NULL stands for those of an evaluation. */
typedef clv_rng_key clv_image_view_rng;
clv_rng_key clv_image_view_key(uint64_t seed, uint64_t epoch, uint32_t record);

clv_code clv_image_view_choose(const clv_image_options *o, uint32_t width, uint32_t height,
                               const clv_rng_key *key, clv_image_view *ret,
                               clv_err *err) CLV_USE_RESULT;

/* The record's samples: [out_height, out_width, channels] of the type of `src`, flipped where the
 * view says so. */
clv_code clv_image_view_render(const clv_image_view *view, const clv_pixels *src,
                               uint64_t max_pixels, clv_resampler *r, uint8_t *dst,
                               clv_err *err) CLV_USE_RESULT;

/* ---- the index of a folder (image_folder.c) -------------------------------------------------- */

typedef struct clv_image_folder {
  char *root;
  clv_bytes names;         /* NUL-terminated paths from the root, and the classes' names */
  size_t *path;            /* [n] offsets into names */
  uint32_t *label;         /* [n] */
  size_t n, cap;           /* images */
  size_t *classes;         /* [n_classes] offsets into names, sorted by name */
  size_t n_classes, n_cap; /* classes */
  size_t n_strays;         /* files that are no images, or in no class */
  char *stray;             /* the first of them by name, below root */
} clv_image_folder;

/* root/CLASS/.../NAME.png|jpg|jpeg, in torchvision.datasets.ImageFolder's order: classes by name,
 * in a class by folder and then by name, all as bytes. Hidden names are passed over. unlabelled:
 * root/.../NAME without classes, and paths begin with "./". */
clv_code clv_image_folder_scan(const char *root, bool unlabelled, clv_image_folder *ret,
                               clv_err *err) CLV_USE_RESULT;
/* Keeps `limit` images, spread over the whole order; 0 keeps all. */
void clv_image_folder_sample(clv_image_folder *f, size_t limit);
void clv_image_folder_done(clv_image_folder *f);

/* ---- threads (thread_pool.c) ----------------------------------------------------------------- */

typedef struct clv_thread_pool clv_thread_pool;

clv_code clv_thread_pool_new(unsigned threads, clv_thread_pool **ret, clv_err *err) CLV_USE_RESULT;
void clv_thread_pool_free(clv_thread_pool *p);

/* Calls run(arg, i, thread, err) once for each i < n on its threads and waits. After a
 * failure no further ones begin; the failure with the smallest i is returned, which does not depend
 * on timing. May be called by several threads at once. */
typedef clv_code clv_thread_pool_fn(void *arg, size_t i, unsigned thread, clv_err *err);
clv_code clv_thread_pool_run(clv_thread_pool *p, size_t n, clv_thread_pool_fn *run, void *arg,
                             clv_err *err) CLV_USE_RESULT;

/* ---- a dataset of images (images.c) ---------------------------------------------------------- */

typedef struct clv_images clv_images;

clv_code clv_images_open(const clv_dataset_options *options, clv_images **ret,
                         clv_err *err) CLV_USE_RESULT;
void clv_images_free(clv_images *im);
const clv_image_folder *clv_images_folder(const clv_images *im);
/* Forgets all images but those of `kept`, which is ascending. */
void clv_images_keep(clv_images *im, const clv_subset *kept);
/* Of the bytes of each file; ret: [n]. Reads all of them, on the threads of the images. */
clv_code clv_images_digest(clv_images *im, clv_sha256 *ret, clv_err *err) CLV_USE_RESULT;
/* A line for each image: path, device, inode, size, times of data and of inode. Reads no file. */
clv_code clv_images_stamp(const clv_images *im, clv_bytes *lines, clv_err *err) CLV_USE_RESULT;
/* Whether unreadable images are left out, and not the end of a command. */
bool clv_images_can_skip_broken(const clv_images *im);
/* The first unreadable image of those that were looked at when the folder was opened. */
clv_code clv_images_probe_error(const clv_images *im, clv_err *err) CLV_USE_RESULT;
/* Decodes an image. Borrowed until the next call; not while a batch is made. */
clv_code clv_images_decode(clv_images *im, uint32_t record, const clv_pixels **ret,
                           clv_err *err) CLV_USE_RESULT;
/* Of each record. */
void clv_images_size(const clv_images *im, uint32_t *ret_height, uint32_t *ret_width);

/* What each sample becomes: tables of [256] and [65536] for samples of 8 and 16 bits, or as many
 * per channel, one behind the other. */
typedef struct clv_pixel_tables {
  const float *of_8, *of_16;
  bool per_channel;
} clv_pixel_tables;

/* Rows of x: [n, channels, height, width] f32. `draw` NULL: an evaluation. */
clv_code clv_images_fill(clv_images *im, const clv_draw_seed *draw, const uint32_t *index, size_t n,
                         const clv_pixel_tables *tables, float *x, clv_err *err) CLV_USE_RESULT;

#endif
