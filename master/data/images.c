/* SPDX-License-Identifier: Apache-2.0
 *
 * A dataset of images. The index is in memory; an image is read when a batch needs it. One thread
 * of the pool converts an image from its file to its row of the batch, in scratch memory that the
 * thread reuses. So a batch allocates only what the decoders need.
 *
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "master/data/image_int.h"

enum {
  MAX_PROBED_IMAGES = 16, /* most image headers that are read when a folder is opened */
  MAX_FILE_BYTES = 256 << 20,
};

/* Scratch memory of one thread of the pool. */
typedef struct image_decoder {
  uint8_t *file_bytes, *samples;
  size_t file_cap, samples_cap;
  clv_pixels pixels;
  clv_resampler resampler;
} image_decoder;

struct clv_images {
  clv_image_folder folder;
  clv_image_options o;
  uint32_t width, height; /* size of every record */
  bool skips_broken;
  /* error of the first image examined by probe_images that cannot be a record; CLV_OK: none */
  clv_err probe_err;
  clv_thread_pool *pool;
  image_decoder *decoders; /* [o.threads] scratch memory of the threads */
};

static void image_decoder_done(image_decoder *w) {
  free(w->file_bytes);
  free(w->samples);
  clv_pixels_done(&w->pixels);
  clv_resampler_done(&w->resampler);
}

void clv_images_free(clv_images *im) {
  if (!im) return;
  clv_thread_pool_free(im->pool);
  for (size_t i = 0; im->decoders && i < im->o.threads; i++) image_decoder_done(&im->decoders[i]);
  free(im->decoders);
  clv_image_folder_done(&im->folder);
  free(im);
}

static void images_freep(clv_images **im) { clv_images_free(*im); }

const clv_image_folder *clv_images_folder(const clv_images *im) { return &im->folder; }

void clv_images_record_size(const clv_images *im, uint32_t *ret_height, uint32_t *ret_width) {
  *ret_height = im->height;
  *ret_width = im->width;
}

void clv_images_keep_records(clv_images *im, const clv_subset *kept_records) {
  for (size_t i = 0; i < kept_records->n; i++) {
    im->folder.paths[i] = im->folder.paths[kept_records->index[i]];
    im->folder.labels[i] = im->folder.labels[kept_records->index[i]];
  }
  im->folder.n = kept_records->n;
}

/* ---- reading one image ----------------------------------------------------------------------- */

static const char *get_image_path(const clv_images *im, uint32_t record) {
  return im->folder.names.data + im->folder.paths[record];
}

/* Adds the path of the image to the front of *err. Errors other than lack of memory become
 * CLV_DATA_LOSS. */
static clv_code add_image_path_to_error(const clv_images *im, uint32_t record, clv_err *err) {
  clv_err reason = *err;
  bool is_out_of_memory = reason.code == CLV_EXHAUSTED;
  return clv_fail(err, is_out_of_memory ? CLV_EXHAUSTED : CLV_DATA_LOSS, "image %s/%s: %s",
                  im->folder.root, get_image_path(im, record), reason.text);
}

static void close_fd(int *fd) {
  if (*fd >= 0) close(*fd);
}

static clv_code read_bytes(int fd, uint8_t *dst, size_t n, clv_err *err) {
  for (size_t n_read = 0; n_read < n;) {
    ssize_t r = read(fd, dst + n_read, n - n_read);
    if (r < 0 && errno == EINTR) continue;
    if (r < 0) return clv_fail(err, CLV_DATA_LOSS, "%s", strerror(errno));
    if (r == 0) return clv_fail(err, CLV_DATA_LOSS, "became shorter while it was read");
    n_read += (size_t)r;
  }
  return CLV_OK;
}

/* Reads a file into w->file_bytes. O_NONBLOCK keeps open() from blocking on a named pipe. */
static clv_code read_file(const clv_images *im, uint32_t record, image_decoder *w, size_t *ret_len,
                          clv_err *err) {
  CLV_AUTO(close_fd) int folder = open(im->folder.root, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  CLV_AUTO(close_fd) int file = -1;
  struct stat st;
  if (folder >= 0)
    file = openat(folder, get_image_path(im, record), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file < 0 || fstat(file, &st) != 0) return clv_fail(err, CLV_DATA_LOSS, "%s", strerror(errno));
  if (!S_ISREG(st.st_mode)) return clv_fail(err, CLV_DATA_LOSS, "not a regular file");
  if (st.st_size > MAX_FILE_BYTES)
    return clv_fail(err, CLV_DATA_LOSS, "%lld bytes, the limit is %d", (long long)st.st_size,
                    MAX_FILE_BYTES);
  *ret_len = (size_t)st.st_size;
  CLV_TRY(clv_reserve_bytes(&w->file_bytes, &w->file_cap, *ret_len, err));
  return read_bytes(file, w->file_bytes, *ret_len, err);
}

static clv_code decode_image(const clv_images *im, uint32_t record, bool reads_header_only,
                             image_decoder *w, clv_err *err) {
  size_t len = 0;
  CLV_TRY(read_file(im, record, w, &len, err));
  clv_encoded_image in = {.data = w->file_bytes,
                          .len = len,
                          .channels = im->o.channels,
                          .max_pixels = im->o.max_pixels,
                          .reads_header_only = reads_header_only};
  return clv_image_decode(&in, &w->pixels, err);
}

clv_code clv_images_decode(clv_images *im, uint32_t record, const clv_pixels **ret, clv_err *err) {
  *ret = &im->decoders[0].pixels;
  return decode_image(im, record, false, &im->decoders[0], err);
}

static clv_code check_size(const clv_images *im, const clv_image_transform *v, clv_err *err) {
  if (v->out_width == im->width && v->out_height == im->height) return CLV_OK;
  return clv_fail(
      err, CLV_DATA_LOSS,
      "is %u x %u%s, and others are %u x %u: set data.images.crop, so that all have one "
      "size",
      v->out_width, v->out_height, im->o.resize ? " when resized" : "", im->width, im->height);
}

/* ---- filling batches ------------------------------------------------------------------------- */

typedef struct fill_job {
  clv_images *im;
  const clv_draw_seed *draw;
  const uint32_t *record_indexes;
  const clv_pixel_tables *tables;
  float *x;
} fill_job;

/* Converts rows of interleaved samples to planes of floats, one per channel. */
#define WRITE_PLANES(type, all)                                                            \
  do {                                                                                     \
    const type *from = (const type *)(const void *)src;                                    \
    for (size_t c = 0; c < channels; c++) {                                                \
      const float *table = (all) + (t->has_table_per_channel ? c << 8 * sizeof(type) : 0); \
      for (size_t i = 0; i < n; i++) *dst++ = table[from[i * channels + c]];               \
    }                                                                                      \
  } while (0)

static void write_planes(const fill_job *f, const uint8_t *src, bool has_16_bits, float *dst) {
  const clv_pixel_tables *t = f->tables;
  size_t channels = f->im->o.channels, n = (size_t)f->im->width * f->im->height;
  if (has_16_bits)
    WRITE_PLANES(uint16_t, t->u16_values);
  else
    WRITE_PLANES(uint8_t, t->u8_values);
}

static clv_code make_record_from_image(const fill_job *f, uint32_t record, float *dst,
                                       image_decoder *w, clv_err *err) {
  clv_images *im = f->im;
  clv_image_transform transform;
  CLV_TRY(decode_image(im, record, false, w, err));
  clv_rng_key key = f->draw ? clv_image_transform_rng_key(f->draw->seed, f->draw->epoch, record)
                            : (clv_rng_key){0};
  CLV_TRY(clv_image_transform_choose(&im->o, w->pixels.width, w->pixels.height,
                                     f->draw ? &key : NULL, &transform, err));
  CLV_TRY(check_size(im, &transform, err));
  size_t bytes = (size_t)im->width * im->height * clv_pixel_bytes(&w->pixels);
  CLV_TRY(clv_reserve_bytes(&w->samples, &w->samples_cap, bytes, err));
  CLV_TRY(clv_image_transform_apply(&transform, &w->pixels, im->o.max_pixels, &w->resampler,
                                    w->samples, err));
  write_planes(f, w->samples, w->pixels.has_16_bits, dst);
  return CLV_OK;
}

static clv_code fill_record(void *arg, size_t i, unsigned thread_number, clv_err *err) {
  const fill_job *f = arg;
  size_t record = (size_t)f->im->width * f->im->height * f->im->o.channels;
  clv_code code = make_record_from_image(f, f->record_indexes[i], f->x + i * record,
                                         &f->im->decoders[thread_number], err);
  return code == CLV_OK ? CLV_OK : add_image_path_to_error(f->im, f->record_indexes[i], err);
}

clv_code clv_images_fill(clv_images *im, const clv_draw_seed *draw, const uint32_t *record_indexes,
                         size_t n, const clv_pixel_tables *tables, float *x, clv_err *err) {
  fill_job f = {im, draw, record_indexes, tables, x};
  return clv_thread_pool_run(im->pool, n, fill_record, &f, err);
}

/* ---- digests of images ----------------------------------------------------------------------- */

typedef struct digest_job {
  clv_images *im;
  clv_sha256 *ret; /* digests of the images, [n] */
} digest_job;

static clv_code digest_record(void *arg, size_t i, unsigned thread_number, clv_err *err) {
  const digest_job *d = arg;
  image_decoder *w = &d->im->decoders[thread_number];
  size_t len = 0;
  clv_code code = read_file(d->im, (uint32_t)i, w, &len, err);
  if (code == CLV_OK) code = clv_sha256_of(w->file_bytes, len, &d->ret[i], err);
  return code == CLV_OK ? CLV_OK : add_image_path_to_error(d->im, (uint32_t)i, err);
}

clv_code clv_images_digest(clv_images *im, clv_sha256 *ret, clv_err *err) {
  digest_job d = {im, ret};
  return clv_thread_pool_run(im->pool, im->folder.n, digest_record, &d, err);
}

clv_code clv_images_list_file_stamps(const clv_images *im, clv_bytes *lines, clv_err *err) {
  CLV_AUTO(close_fd) int folder = open(im->folder.root, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  struct stat st;
  for (uint32_t i = 0; i < im->folder.n; i++) {
    if (folder < 0 || fstatat(folder, get_image_path(im, i), &st, 0) != 0) {
      clv_fail(err, CLV_DATA_LOSS, "%s", strerror(errno));
      return add_image_path_to_error(im, i, err);
    }
    clv_bytes_printf(lines, "%s %llu %llu %lld %lld.%09ld %lld.%09ld\n", get_image_path(im, i),
                     (unsigned long long)st.st_dev, (unsigned long long)st.st_ino,
                     (long long)st.st_size, (long long)st.st_mtim.tv_sec, st.st_mtim.tv_nsec,
                     (long long)st.st_ctim.tv_sec, st.st_ctim.tv_nsec);
  }
  return lines->failed ? clv_fail(err, CLV_EXHAUSTED, "out of memory for the stamps of %zu images",
                                  im->folder.n)
                       : CLV_OK;
}

/* ---- opening a dataset of images ------------------------------------------------------------- */

static clv_code check_options(const clv_image_options *o, clv_err *err) {
  if (o->channels != 1 && o->channels != 3)
    return clv_fail(err, CLV_INVALID, "images of %u channels: 1 or 3 are expected", o->channels);
  if (o->train_crop != CLV_CROP_CENTER && !o->crop)
    return clv_fail(err, CLV_INVALID, "a random crop needs its size");
  if (!(o->flip >= 0 && o->flip <= 1))
    return clv_fail(err, CLV_INVALID, "flip is %g, expected 0..1", o->flip);
  if (o->train_crop != CLV_CROP_RANDOM_RESIZED) return CLV_OK;
  if (!(o->area_low > 0 && o->area_low <= o->area_high && o->area_high <= 1))
    return clv_fail(err, CLV_INVALID, "area is %g..%g, expected 0 < low <= high <= 1", o->area_low,
                    o->area_high);
  if (!(o->ratio_low > 0 && o->ratio_low <= o->ratio_high))
    return clv_fail(err, CLV_INVALID, "ratio is %g..%g, expected 0 < low <= high", o->ratio_low,
                    o->ratio_high);
  return CLV_OK;
}

/* Reads the header of an image and finds the size that its record would have. */
static clv_code probe_image(clv_images *im, uint32_t record, clv_image_transform *ret,
                            clv_err *err) {
  image_decoder *w = &im->decoders[0];
  CLV_TRY(decode_image(im, record, true, w, err));
  return clv_image_transform_choose(&im->o, w->pixels.width, w->pixels.height, NULL, ret, err);
}

/* Sets the size of the records to the most frequent size in the n transforms; among equally
 * frequent sizes, to the first one. */
static void choose_record_size(clv_images *im, const clv_image_transform *transforms, size_t n) {
  size_t n_most_equal = 0;
  for (size_t i = 0; i < n; i++) {
    size_t n_equal = 0;
    for (size_t k = 0; k < n; k++)
      n_equal += transforms[k].out_width == transforms[i].out_width &&
                 transforms[k].out_height == transforms[i].out_height;
    if (n_equal <= n_most_equal) continue;
    n_most_equal = n_equal;
    im->width = transforms[i].out_width;
    im->height = transforms[i].out_height;
  }
}

bool clv_images_can_skip_broken(const clv_images *im) { return im->skips_broken; }

clv_code clv_images_probe_error(const clv_images *im, clv_err *err) {
  if (im->probe_err.code != CLV_OK && err) *err = im->probe_err;
  return im->probe_err.code;
}

/* Stores the error of the first probed image that cannot be a record. Returns true if further
 * images are to be probed. */
static bool store_probe_err(clv_images *im, uint32_t record, clv_err *reason) {
  clv_code code = add_image_path_to_error(im, record, reason);
  if (im->probe_err.code == CLV_OK) im->probe_err = *reason;
  return im->skips_broken && code != CLV_EXHAUSTED;
}

/* Probes up to MAX_PROBED_IMAGES images, evenly spread over the folder; the first image is one of
 * them. */
static clv_code probe_images(clv_images *im, clv_err *err) {
  clv_image_transform transforms[MAX_PROBED_IMAGES];
  uint32_t record[MAX_PROBED_IMAGES];
  size_t n_probed = CLV_MIN(im->folder.n, MAX_PROBED_IMAGES), n = 0;
  clv_err reason;
  for (size_t i = 0; i < n_probed; i++) {
    record[n] = (uint32_t)(i * im->folder.n / n_probed);
    if (probe_image(im, record[n], &transforms[n], &reason) == CLV_OK)
      n++;
    else if (!store_probe_err(im, record[n], &reason))
      break;
  }
  choose_record_size(im, transforms, n);
  for (size_t i = 0; i < n; i++)
    if (check_size(im, &transforms[i], &reason) != CLV_OK &&
        !store_probe_err(im, record[i], &reason))
      break;
  return im->skips_broken && im->width ? CLV_OK : clv_images_probe_error(im, err);
}

clv_code clv_images_open_list(const clv_dataset_options *options, clv_image_folder *folder,
                              clv_images **ret, clv_err *err) {
  CLV_AUTO(images_freep) clv_images *im = NULL;
  CLV_TRY(check_options(&options->images, err));
  CLV_TRY(clv_alloc(1, sizeof *im, &im, err));
  im->o = options->images;
  im->o.max_pixels = im->o.max_pixels ? im->o.max_pixels : CLV_IMAGE_MAX_PIXELS;
  im->o.threads = im->o.threads ? im->o.threads : 1;
  im->folder = *folder;
  *folder = (clv_image_folder){0};
  CLV_TRY(clv_alloc(im->o.threads, sizeof *im->decoders, &im->decoders, err));
  im->skips_broken = options->skips_broken;
  CLV_TRY(probe_images(im, err));
  CLV_TRY(clv_thread_pool_new(im->o.threads, &im->pool, err));
  *ret = clv_steal(&im);
  return CLV_OK;
}

clv_code clv_images_open(const clv_dataset_options *options, clv_images **ret, clv_err *err) {
  CLV_AUTO(clv_image_folder_done) clv_image_folder folder = {0};
  CLV_TRY(check_options(&options->images, err));
  CLV_TRY(clv_image_folder_scan(options->inputs_path, options->skips_labels, &folder, err));
  clv_image_folder_limit(&folder, options->limit);
  return clv_images_open_list(options, &folder, ret, err);
}
