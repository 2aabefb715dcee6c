/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests a folder of images as a dataset: order and labels of torchvision's ImageFolder, the same
 * bits with any number of threads and after a resume, and errors that name the file.
 */
#include <dlfcn.h>
#include <png.h>
#include <poll.h>
#include <stdatomic.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <unistd.h>

#include "master/data/image_int.h"
#include "tests/unit/data/data_test.h"

static int n_folders_made;

/* Makes a new folder in the scratch folder. */
static const char *make_root_folder(void) {
  static char root[128];
  snprintf(root, sizeof root, "%s/root-%d", scratch, n_folders_made++);
  return root;
}

static void make_path_in(const char *root, const char *name, char path[256]) {
  char folder[256];
  clv_err err;
  snprintf(path, 256, "%s/%s", root, name);
  snprintf(folder, sizeof folder, "%s", path);
  *strrchr(folder, '/') = '\0';
  assert_ok(clv_mkdirs(folder, &err), &err);
}

/* Writes a grey image whose pixels all differ; value: the first pixel. */
static void write_png(const char *root, const char *name, uint32_t width, uint32_t height,
                      int value) {
  char path[256];
  make_path_in(root, name, path);
  uint8_t *data = malloc((size_t)width * height);
  assert_non_null(data);
  for (uint32_t i = 0; i < width * height; i++) data[i] = (uint8_t)((uint32_t)value + 7 * i);
  png_image image = {.version = PNG_IMAGE_VERSION, .width = width, .height = height};
  image.format = PNG_FORMAT_GRAY;
  assert_true(png_image_write_to_file(&image, path, 0, data, 0, NULL));
  free(data);
}

static void write_png16(FILE *f, uint32_t width, uint32_t height, const uint16_t *values) {
  png_structp png = png_create_write_struct(PNG_LIBPNG_VER_STRING, NULL, NULL, NULL);
  png_infop info = png_create_info_struct(png);
  assert_non_null(info);
  png_init_io(png, f);
  png_set_IHDR(png, info, width, height, 16, PNG_COLOR_TYPE_GRAY, 0, 0, 0);
  png_write_info(png, info);
  png_set_swap(png);
  for (uint32_t y = 0; y < height; y++)
    png_write_row(png, (png_const_bytep)(const void *)(values + (size_t)y * width));
  png_write_end(png, info);
  png_destroy_write_struct(&png, &info);
}

static void write_text_file(const char *root, const char *name, const char *text) {
  char path[256];
  make_path_in(root, name, path);
  FILE *f = fopen(path, "w");
  assert_non_null(f);
  fputs(text, f);
  fclose(f);
}

static clv_dataset_options make_options(const char *root) {
  return (clv_dataset_options){
      .format = CLV_FORMAT_IMAGES, .inputs_path = root, .images = {.channels = 1, .threads = 2}};
}

static clv_dataset *open_folder(const clv_dataset_options *o) {
  clv_dataset *ds = NULL;
  clv_err err;
  assert_ok(clv_dataset_open(o, &ds, &err), &err);
  return ds;
}

static void assert_refused(const clv_dataset_options *o, clv_code code, const char *says) {
  clv_dataset *ds = NULL;
  clv_err err;
  assert_int_equal(clv_dataset_open(o, &ds, &err), code);
  assert_says(&err, says);
}

static clv_tensor *make_input_tensor(const clv_dataset *ds, size_t n) {
  clv_shape shape = clv_dataset_x_shape(ds, n);
  clv_tensor *x;
  clv_err err;
  assert_ok(clv_tensor_new(CLV_F32, &shape, &x, &err), &err);
  return x;
}

static void images_sort_by_path_and_get_their_folder_label(void **state) {
  (void)state;
  const char *root = make_root_folder();
  static const char *const names[] = {"b/2.png",   "b/a/1.PNG",   "b/10.png",   "a/z.png",
                                      "c d/x.png", "b/a-b/0.png", "b/a/b/3.png"};
  static const int order[] = {3, 2, 0, 1, 5, 6, 4}; /* sorted by whole path: b/a < b/a-b < b/a/b */
  static const int64_t labels[] = {0, 1, 1, 1, 1, 1, 2};
  for (int i = 0; i < 7; i++) write_png(root, names[i], 2, 1, 10 * i);
  write_text_file(root, "b/.hidden.png", "x");
  write_text_file(root, ".git/x.png", "x");
  write_text_file(root, "b/notes.txt", "x");
  write_text_file(root, "loose.png", "x");
  write_text_file(root, "a/.png", "x");
  clv_dataset_options o = make_options(root);
  float mean = 0.5f, std = 0.25f;
  o.mean = &mean;
  o.std = &std;
  o.n_mean = o.n_std = 1;
  CLV_AUTO(clv_dataset_freep) clv_dataset *ds = open_folder(&o);
  assert_int_equal(clv_dataset_count(ds), 7);
  assert_int_equal(clv_dataset_class_count(ds), 3);
  int64_t min_label, max_label;
  assert_true(clv_dataset_label_range(ds, &min_label, &max_label));
  assert_int_equal(max_label, 2);
  CLV_AUTO(clv_tensor_unrefp) clv_tensor *x = make_input_tensor(ds, 7), *y = NULL;
  assert_int_equal(x->shape.rank, 4);
  assert_int_equal(x->shape.dim[3], 2);
  clv_shape ys = clv_dataset_y_shape(ds, 7);
  clv_err err;
  assert_ok(clv_tensor_new(CLV_I64, &ys, &y, &err), &err);
  assert_ok(clv_batch_fill(ds, (uint32_t[]){0, 1, 2, 3, 4, 5, 6}, 7, x, y, &err), &err);
  for (int i = 0; i < 7; i++) {
    float want = ((float)(10 * order[i]) / 255.0f - 0.5f) / 0.25f;
    assert_true(((const float *)x->data)[2 * i] == want);
    assert_int_equal(((const int64_t *)y->data)[i], labels[i]);
  }
}

/* Values of 16 bits are divided by 65535 and those of 8 bits by 255; with a scale both have the
 * same unit. */
static void sixteen_bit_images_keep_full_precision(void **state) {
  (void)state;
  static const uint16_t values[4] = {0, 1, 4095, 65535};
  const char *root = make_root_folder();
  char path[256];
  write_png(root, "a/0.png", 2, 2, 16);
  make_path_in(root, "a/1.png", path);
  FILE *f = fopen(path, "wb");
  assert_non_null(f);
  write_png16(f, 2, 2, values);
  fclose(f);
  for (int k = 0; k < 2; k++) {
    clv_dataset_options o = make_options(root);
    float mean = 0.5f, std = 0.25f;
    o.mean = &mean;
    o.std = &std;
    o.n_mean = o.n_std = 1;
    o.scale = k ? 2 : 0;
    CLV_AUTO(clv_dataset_freep) clv_dataset *ds = open_folder(&o);
    CLV_AUTO(clv_tensor_unrefp) clv_tensor *x = make_input_tensor(ds, 2);
    clv_err err;
    assert_ok(clv_batch_fill(ds, (uint32_t[]){0, 1}, 2, x, NULL, &err), &err);
    const float *v = x->data;
    assert_true(v[0] == ((k ? 32.0f : 16.0f / 255.0f) - 0.5f) / 0.25f);
    for (int i = 0; i < 4; i++) {
      float scaled = k ? (float)values[i] / 257.0f * 2.0f : (float)values[i] / 65535.0f;
      assert_true(v[4 + i] == (scaled - 0.5f) / 0.25f);
    }
  }
}

/* For prediction, folders have no meaning as classes, and each image is listed with its path. */
static void unlabelled_folder_lists_all_images(void **state) {
  static const char *const names[] = {"2.png", "10.png", "b/a/1.PNG", "b/0.png"};
  static const char *const order[] = {"10.png", "2.png", "b/0.png", "b/a/1.PNG"};
  (void)state;
  const char *root = make_root_folder();
  for (int i = 0; i < 4; i++) write_png(root, names[i], 2, 1, i);
  write_text_file(root, "notes.txt", "x");
  clv_dataset_options o = make_options(root);
  o.skips_labels = true;
  /* any label type is accepted here, because an unlabelled dataset reads no labels */
  o.labels = CLV_LABEL_FLOAT;
  CLV_AUTO(clv_dataset_freep) clv_dataset *ds = open_folder(&o);
  assert_int_equal(clv_dataset_count(ds), 4);
  assert_int_equal(clv_dataset_class_count(ds), 0);
  assert_false(clv_dataset_has_labels(ds));
  for (size_t i = 0; i < 4; i++) assert_string_equal(clv_dataset_image_path(ds, i), order[i]);
  o.limit = 2;
  CLV_AUTO(clv_dataset_freep) clv_dataset *some = open_folder(&o);
  assert_string_equal(clv_dataset_image_path(some, 1), "b/0.png");
  const char *empty_root = make_root_folder();
  write_text_file(empty_root, "notes.txt", "x");
  o.inputs_path = empty_root;
  assert_refused(&o, CLV_INVALID, "has no .png");
}

/* Returns options with every random augmentation. */
static clv_dataset_options make_augmented_options(const char *root, uint32_t threads) {
  clv_dataset_options o = make_options(root);
  o.images = (clv_image_options){.channels = 3,
                                 .crop = 12,
                                 .resize = 16,
                                 .train_crop = CLV_CROP_RANDOM_RESIZED,
                                 .area_low = 0.3,
                                 .area_high = 1,
                                 .ratio_low = 0.75,
                                 .ratio_high = 1.25,
                                 .flip = 0.5,
                                 .threads = threads};
  return o;
}

enum { IMAGES = 24 };

static const char *write_many_images(void) {
  const char *root = make_root_folder();
  char name[32];
  for (int i = 0; i < IMAGES; i++) {
    snprintf(name, sizeof name, "%c/%02d.png", 'a' + i % 3, i);
    write_png(root, name, 20 + (uint32_t)i, 30 - (uint32_t)i / 2, 5 * i);
  }
  return root;
}

static clv_tensor *draw_all_images(const char *root, uint32_t threads, uint64_t epoch,
                                   bool backwards) {
  clv_dataset_options o = make_augmented_options(root, threads);
  CLV_AUTO(clv_dataset_freep) clv_dataset *ds = open_folder(&o);
  clv_tensor *x = make_input_tensor(ds, IMAGES);
  uint32_t index[IMAGES];
  clv_err err;
  for (uint32_t i = 0; i < IMAGES; i++) index[i] = backwards ? IMAGES - 1 - i : i;
  clv_draw_seed draw = {.seed = 3, .epoch = epoch};
  assert_ok(clv_batch_fill_inputs(ds, &draw, index, IMAGES, &x, NULL, &err), &err);
  return x;
}

static void augmentation_ignores_threads_and_batch_order(void **state) {
  (void)state;
  const char *root = write_many_images();
  CLV_AUTO(clv_tensor_unrefp) clv_tensor *one_thread = draw_all_images(root, 1, 0, false);
  CLV_AUTO(clv_tensor_unrefp) clv_tensor *eight = draw_all_images(root, 8, 0, false);
  CLV_AUTO(clv_tensor_unrefp) clv_tensor *drawn_backwards = draw_all_images(root, 3, 0, true);
  CLV_AUTO(clv_tensor_unrefp) clv_tensor *next_epoch = draw_all_images(root, 8, 1, false);
  assert_memory_equal(one_thread->data, eight->data, one_thread->bytes);
  size_t image_bytes = one_thread->bytes / IMAGES;
  size_t n_changed = 0;
  for (size_t i = 0; i < IMAGES; i++) {
    assert_memory_equal((char *)one_thread->data + i * image_bytes,
                        (char *)drawn_backwards->data + (IMAGES - 1 - i) * image_bytes,
                        image_bytes);
    n_changed += memcmp((char *)one_thread->data + i * image_bytes,
                        (char *)next_epoch->data + i * image_bytes, image_bytes) != 0;
  }
  assert_true(n_changed > IMAGES / 2);
}

static void load_images_from(const char *root, clv_cursor start_cursor, size_t n_skipped_batches,
                             float *ret, size_t n) {
  clv_dataset_options o = make_augmented_options(root, 4);
  CLV_AUTO(clv_dataset_freep) clv_dataset *ds = open_folder(&o);
  CLV_AUTO(clv_subset_done) clv_subset all = {0};
  CLV_AUTO(clv_loader_freep) clv_loader *l = NULL;
  clv_err err;
  assert_ok(clv_subset_all(ds, &all, &err), &err);
  clv_batches_options bo = {.subset = &all,
                            .batch_size = 5,
                            .shuffles = true,
                            .seed = 9,
                            .epochs = 3,
                            .start = start_cursor};
  assert_ok(clv_loader_new(ds, &bo, &l, &err), &err);
  for (size_t k = 0; k < n_skipped_batches + n; k++) {
    clv_batch b;
    assert_ok(clv_loader_next(l, &b, &err), &err);
    if (k >= n_skipped_batches) *ret++ = ((const float *)b.x->data)[37];
    if (k >= n_skipped_batches) *ret++ = (float)b.index[b.n - 1];
  }
}

/* Batch 6 is in the second epoch. A run that resumes there gets the same values as a run without a
 * stop. */
static void resumed_loader_gives_the_same_values(void **state) {
  (void)state;
  const char *root = write_many_images();
  float uninterrupted[12], resumed[12];
  load_images_from(root, (clv_cursor){0, 0}, 6, uninterrupted, 6);
  load_images_from(root, (clv_cursor){1, 5}, 0, resumed, 6);
  assert_memory_equal(uninterrupted, resumed, sizeof uninterrupted);
}

/* Waits until inotify reports that `name` was opened in the watched folder. */
static bool wait_until_opened(int watch, const char *name) {
  _Alignas(struct inotify_event) char events[4096];
  struct pollfd p = {.fd = watch, .events = POLLIN};
  while (poll(&p, 1, 20000) == 1) {
    ssize_t n = read(watch, events, sizeof events);
    for (char *at = events; n > 0 && at < events + n;) {
      const struct inotify_event *e = (const struct inotify_event *)(void *)at;
      if (e->len && strcmp(e->name, name) == 0) return true;
      at += sizeof *e + e->len;
    }
  }
  return false;
}

/* The loader decodes the next batch while the program still uses the present batch. */
static void next_batch_is_decoded_ahead(void **state) {
  (void)state;
  const char *root = write_many_images();
  clv_dataset_options o = make_augmented_options(root, 2);
  CLV_AUTO(clv_dataset_freep) clv_dataset *ds = open_folder(&o);
  CLV_AUTO(clv_subset_done) clv_subset all = {0};
  CLV_AUTO(clv_loader_freep) clv_loader *l = NULL;
  char folder[256];
  clv_err err;
  clv_batch b;
  int watch = inotify_init1(IN_CLOEXEC);
  snprintf(folder, sizeof folder, "%s/b", root);
  assert_true(inotify_add_watch(watch, folder, IN_OPEN) >= 0);
  assert_ok(clv_subset_all(ds, &all, &err), &err);
  /* batch 0 is class a, batch 1 class b */
  clv_batches_options bo = {.subset = &all, .batch_size = 8};
  assert_ok(clv_loader_new(ds, &bo, &l, &err), &err);
  assert_ok(clv_loader_next(l, &b, &err), &err);
  assert_true(wait_until_opened(watch, "22.png")); /* the last image of batch 1 */
  close(watch);
}

static void damaged_image_error_names_the_file(void **state) {
  (void)state;
  const char *root = write_many_images();
  write_text_file(root, "b/99.jpg", "\xff\xd8\xff\xe0 but no more");
  clv_dataset_options o = make_augmented_options(root, 4);
  /* opens the folder before the test watches its files */
  CLV_AUTO(clv_dataset_freep) clv_dataset *ds = open_folder(&o);
  CLV_AUTO(clv_subset_done) clv_subset all = {0};
  CLV_AUTO(clv_loader_freep) clv_loader *l = NULL;
  clv_err err;
  clv_batch b;
  assert_ok(clv_subset_all(ds, &all, &err), &err);
  clv_batches_options bo = {.subset = &all, .batch_size = 25};
  assert_ok(clv_loader_new(ds, &bo, &l, &err), &err);
  assert_int_equal(clv_loader_next(l, &b, &err), CLV_DATA_LOSS);
  assert_says(&err, "/b/99.jpg: JPEG: ");
}

/* A loader for evaluation returns the same values as clv_batch_fill, in every epoch: nothing is
 * augmented. */
static void evaluation_loader_skips_augmentation(void **state) {
  (void)state;
  const char *root = write_many_images();
  clv_dataset_options o = make_augmented_options(root, 2);
  CLV_AUTO(clv_dataset_freep) clv_dataset *ds = open_folder(&o);
  CLV_AUTO(clv_tensor_unrefp) clv_tensor *x = make_input_tensor(ds, IMAGES);
  CLV_AUTO(clv_subset_done) clv_subset all = {0};
  CLV_AUTO(clv_loader_freep) clv_loader *l = NULL, *drawn = NULL;
  clv_err err;
  clv_batch b;
  assert_ok(clv_subset_all(ds, &all, &err), &err);
  assert_ok(clv_batch_fill(ds, all.index, IMAGES, x, NULL, &err), &err);
  clv_batches_options bo = {.subset = &all, .batch_size = IMAGES};
  assert_ok(clv_loader_new(ds, &bo, &drawn, &err), &err);
  bo.is_evaluation = true;
  assert_ok(clv_loader_new(ds, &bo, &l, &err), &err);
  for (int epoch = 0; epoch < 3; epoch++) {
    assert_ok(clv_loader_next(l, &b, &err), &err);
    assert_memory_equal(b.x->data, x->data, x->bytes);
  }
  /* here x has the values of the previous epoch, which differ because the augmentation is random */
  for (int epoch = 0; epoch < 3; epoch++) {
    assert_ok(clv_loader_next(drawn, &b, &err), &err);
    assert_memory_not_equal(b.x->data, x->data, x->bytes);
    memcpy(x->data, b.x->data, x->bytes);
  }
}

static atomic_size_t n_failed_closes;

/* Replaces close() of the C library, or of a sanitizer, and counts failed calls. A descriptor must
 * not be closed twice, because its number may meanwhile belong to a file of another thread. */
int close(int fd) {
  static int (*_Atomic next_close)(int);
  if (!next_close) next_close = (int (*)(int))(uintptr_t)dlsym(RTLD_NEXT, "close");
  int code = next_close(fd);
  if (code != 0) atomic_fetch_add(&n_failed_closes, 1);
  return code;
}

static void file_descriptors_are_closed_exactly_once(void **state) {
  (void)state;
  clv_dataset_options o = make_augmented_options(write_many_images(), 2);
  atomic_store(&n_failed_closes, 0);
  CLV_AUTO(clv_dataset_freep) clv_dataset *ds = open_folder(&o);
  CLV_AUTO(clv_tensor_unrefp) clv_tensor *x = make_input_tensor(ds, IMAGES);
  clv_err err;
  assert_ok(clv_batch_fill(ds, (uint32_t[]){0, 7, 23}, 3, x, NULL, &err), &err);
  assert_int_equal(close(-1), -1); /* checks that the counter works */
  assert_int_equal(n_failed_closes, 1);
}

static void limit_keeps_images_of_every_class(void **state) {
  (void)state;
  clv_dataset_options o = make_augmented_options(write_many_images(), 1);
  o.limit = 6;
  CLV_AUTO(clv_dataset_freep) clv_dataset *ds = open_folder(&o);
  CLV_AUTO(clv_tensor_unrefp) clv_tensor *x = make_input_tensor(ds, 6), *y = NULL;
  clv_shape ys = clv_dataset_y_shape(ds, 6);
  static const int64_t labels[] = {0, 0, 1, 1, 2, 2};
  clv_err err;
  assert_int_equal(clv_dataset_count(ds), 6);
  assert_ok(clv_tensor_new(CLV_I64, &ys, &y, &err), &err);
  assert_ok(clv_batch_fill(ds, (uint32_t[]){0, 1, 2, 3, 4, 5}, 6, x, y, &err), &err);
  assert_memory_equal(y->data, labels, sizeof labels);
}

/* Writes a large image without its last bytes. The reader notices this error later than any
 * other. */
static void write_truncated_png(const char *root, const char *name) {
  char path[256];
  struct stat st;
  write_png(root, name, 1500, 1500, 0);
  make_path_in(root, name, path);
  assert_int_equal(stat(path, &st), 0);
  assert_int_equal(truncate(path, st.st_size - 4), 0);
}

/* If many files are damaged, the reader reports the same file each time, in whatever order its
 * threads read them. */
static void first_damaged_image_is_reported_every_time(void **state) {
  (void)state;
  const char *root = write_many_images();
  clv_dataset_options o = make_augmented_options(root, 8);
  CLV_AUTO(clv_dataset_freep) clv_dataset *ds = open_folder(&o);
  CLV_AUTO(clv_tensor_unrefp) clv_tensor *x = make_input_tensor(ds, IMAGES);
  uint32_t index[IMAGES];
  char name[32];
  clv_err err;
  for (uint32_t i = 0; i < IMAGES; i++) index[i] = i;
  /* the split takes each third image: a/00, a/03, ...; so its fourth record is a/09 */
  for (int i = 2; i < IMAGES; i++) {
    snprintf(name, sizeof name, "%c/%02d.png", 'a' + i % 3, i);
    if (i != 3 && i != 6) write_text_file(root, name, "gone");
  }
  write_truncated_png(root, "a/09.png");
  for (int k = 0; k < 5; k++) {
    assert_int_equal(clv_batch_fill(ds, index, IMAGES, x, NULL, &err), CLV_DATA_LOSS);
    assert_says(&err, "/a/09.png: PNG: truncated");
  }
}

static void malformed_image_folders_are_refused(void **state) {
  (void)state;
  const char *root = make_root_folder();
  clv_dataset_options o = make_options(root);
  assert_refused(&o, CLV_NOT_FOUND, "No such file");
  write_text_file(root, "loose.png", "x");
  assert_refused(&o, CLV_INVALID, "images go into one folder per class");
  write_png(root, "a/1.png", 4, 4, 0);
  write_text_file(root, "b/readme.md", "x");
  assert_refused(&o, CLV_INVALID, "class 'b' has no .png, .jpg or .jpeg");
  write_png(root, "b/1.png", 4, 5, 0);
  assert_refused(&o, CLV_DATA_LOSS,
                 "/b/1.png: is 4 x 5, and others are 4 x 4: set data.images.crop");
  write_text_file(root, "b/1.png", "text");
  assert_refused(&o, CLV_DATA_LOSS, "/b/1.png: neither PNG");
  char path[256];
  make_path_in(root, "b/1.png", path);
  assert_int_equal(unlink(path), 0);
  assert_int_equal(mkfifo(path, 0600), 0);
  assert_refused(&o, CLV_DATA_LOSS, "/b/1.png: not a regular file");
  assert_int_equal(unlink(path), 0);
  assert_int_equal(symlink("..", path), 0); /* a link 1.png to its parent folder */
  assert_refused(&o, CLV_INVALID, "does a link lead back up?");
}

static void files_that_are_not_images_are_counted(void **state) {
  (void)state;
  const char *root = make_root_folder(), *first_stray_file;
  write_png(root, "cat/1.png", 4, 4, 1);
  write_png(root, "loose.png", 4, 4, 1);
  write_text_file(root, "cat/b.gif", "");
  write_text_file(root, "cat/sub/a.webp", "");
  write_text_file(root, "cat/.hidden", "");
  clv_dataset_options o = make_options(root);
  CLV_AUTO(clv_dataset_freep) clv_dataset *ds = open_folder(&o);
  assert_int_equal(clv_dataset_count(ds), 1);
  assert_int_equal(clv_dataset_stray_file_count(ds, &first_stray_file), 3);
  assert_string_equal(first_stray_file, "cat/b.gif");
}

static void invalid_image_options_are_refused(void **state) {
  (void)state;
  const char *root = write_many_images();
  clv_dataset_options o = make_augmented_options(root, 1);
  o.labels = CLV_LABEL_FLOAT;
  assert_refused(&o, CLV_INVALID, "goes with cross_entropy or nll");
  o = make_augmented_options(root, 1);
  o.images.channels = 2;
  assert_refused(&o, CLV_INVALID, "images of 2 channels");
  o = make_augmented_options(root, 1);
  o.images.crop = 0;
  assert_refused(&o, CLV_INVALID, "a random crop needs its size");
  o = make_augmented_options(root, 1);
  o.images.max_pixels = 599;
  assert_refused(&o, CLV_DATA_LOSS, "/a/00.png: PNG: 20 x 30 are 600 pixels, the limit is 599");
}

static void folders_with_different_classes_are_refused(void **state) {
  (void)state;
  char first[128];
  snprintf(first, sizeof first, "%s", make_root_folder());
  write_png(first, "cat/1.png", 2, 2, 0);
  write_png(first, "dog/1.png", 2, 2, 0);
  const char *second_root = make_root_folder();
  write_png(second_root, "cat/1.png", 2, 2, 0);
  clv_dataset_options oa = make_options(first), ob = make_options(second_root);
  CLV_AUTO(clv_dataset_freep) clv_dataset *a = open_folder(&oa), *b = open_folder(&ob);
  clv_err err;
  assert_ok(clv_dataset_check_same_classes(a, a, &err), &err);
  assert_int_equal(clv_dataset_check_same_classes(a, b, &err), CLV_DATA_LOSS);
  assert_says(&err, "has 2 classes and");
  write_png(second_root, "wolf/1.png", 2, 2, 0);
  CLV_AUTO(clv_dataset_freep) clv_dataset *c = open_folder(&ob);
  assert_int_equal(clv_dataset_check_same_classes(a, c, &err), CLV_DATA_LOSS);
  assert_says(&err, "class 1 is 'dog' in");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(images_sort_by_path_and_get_their_folder_label),
      cmocka_unit_test(unlabelled_folder_lists_all_images),
      cmocka_unit_test(sixteen_bit_images_keep_full_precision),
      cmocka_unit_test(augmentation_ignores_threads_and_batch_order),
      cmocka_unit_test(resumed_loader_gives_the_same_values),
      cmocka_unit_test(next_batch_is_decoded_ahead),
      cmocka_unit_test(evaluation_loader_skips_augmentation),
      cmocka_unit_test(file_descriptors_are_closed_exactly_once),
      cmocka_unit_test(limit_keeps_images_of_every_class),
      cmocka_unit_test(damaged_image_error_names_the_file),
      cmocka_unit_test(first_damaged_image_is_reported_every_time),
      cmocka_unit_test(malformed_image_folders_are_refused),
      cmocka_unit_test(files_that_are_not_images_are_counted),
      cmocka_unit_test(invalid_image_options_are_refused),
      cmocka_unit_test(folders_with_different_classes_are_refused),
  };
  return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}
