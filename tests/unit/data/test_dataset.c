/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests datasets: shapes, normalisation bit for bit, label checks, splits. Expected floats are
 * computed here step by step in float32, and by NumPy where it is installed.
 */
#include <math.h>

#include "tests/unit/data/data_test.h"

static const char *write_idx_file(const char *name, uint8_t type, int rank, const uint32_t *extent,
                                  const void *data, size_t len) {
  CLV_AUTO(clv_bytes_done) clv_bytes b = make_idx_bytes(type, rank, extent, data, len);
  return write_scratch_file(name, b.data, b.len);
}

static const char *write_npy_file(const char *name, const char *descr, const char *shape,
                                  const void *data, size_t len) {
  char dict[160];
  snprintf(dict, sizeof dict, "{'descr': '%s', 'fortran_order': False, 'shape': (%s), }", descr,
           shape);
  CLV_AUTO(clv_bytes_done) clv_bytes b = make_npy_bytes(dict, data, len);
  return write_scratch_file(name, b.data, b.len);
}

static void rank_3_images_are_normalized_in_float32(void **state) {
  (void)state;
  uint8_t pixels[2 * 16 * 16], labels[2] = {3, 9};
  /* the pixels have each value from 0 to 255 twice */
  for (size_t i = 0; i < sizeof pixels; i++) pixels[i] = (uint8_t)i;
  const char *x_path = write_idx_file("x", 8, 3, (uint32_t[]){2, 16, 16}, pixels, sizeof pixels);
  const char *y_path = write_idx_file("y", 8, 1, (uint32_t[]){2}, labels, 2);
  volatile float mean = 0.1307f, std = 0.3081f;
  float m = mean, s = std;
  CLV_AUTO(clv_dataset_freep) clv_dataset *ds = NULL;
  clv_err err;
  clv_dataset_options o = {.inputs_path = x_path,
                           .labels_path = y_path,
                           .mean = &m,
                           .n_mean = 1,
                           .std = &s,
                           .n_std = 1,
                           .n_classes = 10};
  assert_ok(clv_dataset_open(&o, &ds, &err), &err);
  assert_int_equal(clv_dataset_count(ds), 2);
  int64_t min_label, max_label;
  assert_true(clv_dataset_label_range(ds, &min_label, &max_label));
  assert_int_equal(min_label, 3);
  assert_int_equal(max_label, 9);
  clv_shape xs = clv_dataset_x_shape(ds, 4), ys = clv_dataset_y_shape(ds, 4);
  assert_true(clv_shape_equal(&xs, &CLV_SHAPE(4, 1, 16, 16)));
  assert_true(clv_shape_equal(&ys, &CLV_SHAPE(4)));
  CLV_AUTO(clv_tensor_unrefp) clv_tensor *x = NULL, *y = NULL;
  assert_ok(clv_tensor_new(CLV_F32, &xs, &x, &err), &err);
  assert_ok(clv_tensor_new(clv_dataset_y_dtype(ds), &ys, &y, &err), &err);
  uint64_t before = clv_alloc_count();
  assert_ok(clv_batch_fill(ds, (uint32_t[]){1, 0, 1}, 3, x, y, &err), &err);
  assert_int_equal(clv_alloc_count(), before);
  assert_memory_equal(y->data, ((int64_t[]){9, 3, 9}), 24);
  for (int i = 0; i < 256; i++) {
    volatile float v = (float)i; /* volatile, so that every step rounds to float32 */
    v = v / 255.0f;
    v = v - mean;
    v = v / std;
    assert_true(((float *)x->data)[i] == v);
    assert_true(((float *)x->data)[256 + i] == v);
  }
}

static void flatten_scale_and_limit_are_applied(void **state) {
  (void)state;
  uint8_t pixels[12] = {0, 10, 20, 30, 40, 50, 60, 70, 80, 90, 100, 255};
  CLV_AUTO(clv_dataset_freep) clv_dataset *ds = NULL;
  CLV_AUTO(clv_tensor_unrefp) clv_tensor *x = NULL;
  clv_err err;
  clv_dataset_options o = {
      .inputs_path = write_idx_file("x", 8, 3, (uint32_t[]){3, 2, 2}, pixels, 12),
      .flattens_records = true,
      .scale = 2,
      .limit = 2};
  assert_ok(clv_dataset_open(&o, &ds, &err), &err);
  assert_int_equal(clv_dataset_count(ds), 2);
  assert_false(clv_dataset_has_labels(ds));
  clv_shape xs = clv_dataset_x_shape(ds, 1);
  assert_true(clv_shape_equal(&xs, &CLV_SHAPE(1, 4)));
  assert_int_equal(clv_dataset_y_shape(ds, 1).rank, 0);
  assert_ok(clv_tensor_new(CLV_F32, &xs, &x, &err), &err);
  assert_ok(clv_batch_fill(ds, (uint32_t[]){1}, 1, x, NULL, &err), &err);
  assert_memory_equal(x->data, ((float[]){80, 100, 120, 140}), 16);
  assert_int_equal(clv_batch_fill(ds, (uint32_t[]){2}, 1, x, NULL, &err), CLV_INVALID);
  assert_says(&err, "record 2 is outside 0..1");
  assert_int_equal(clv_batch_fill(ds, (uint32_t[]){0, 1}, 2, x, NULL, &err), CLV_INVALID);
  assert_says(&err, "f32 [2, 4]");
}

/* A True of NumPy's type bool reads as 1: as an input, as an input with a scale, and as a label. */
static void numpy_true_reads_as_one(void **state) {
  (void)state;
  static const uint8_t raw[4] = {1, 0, 1, 1};
  const char *path = write_npy_file("b", "|b1", "2, 2", raw, 4), *name = "mask";
  const char *labels = write_npy_file("l", "|b1", "2,", raw, 2);
  const clv_dataset_options options[] = {
      {.inputs_path = path, .labels_path = labels},
      {.n_named_inputs = 1, .names = &name, .named_paths = &path, .labels_path = labels},
      {.inputs_path = path, .labels_path = labels, .labels = CLV_LABEL_FLOAT, .scale = 2}};
  for (int k = 0; k < 3; k++) {
    CLV_AUTO(clv_dataset_freep) clv_dataset *ds = NULL;
    CLV_AUTO(clv_tensor_unrefp) clv_tensor *x = NULL, *y = NULL;
    clv_err err;
    assert_ok(clv_dataset_open(&options[k], &ds, &err), &err);
    clv_shape xs = clv_dataset_x_shape(ds, 2), ys = clv_dataset_y_shape(ds, 2);
    assert_ok(clv_tensor_new(CLV_F32, &xs, &x, &err), &err);
    assert_ok(clv_tensor_new(clv_dataset_y_dtype(ds), &ys, &y, &err), &err);
    assert_ok(clv_batch_fill(ds, (uint32_t[]){0, 1}, 2, x, y, &err), &err);
    float scaled_one = k == 2 ? 2 : 1;
    assert_memory_equal(x->data, ((float[]){scaled_one, 0, scaled_one, scaled_one}), 16);
    if (k == 2)
      assert_memory_equal(y->data, ((float[]){1, 0}), 8);
    else
      assert_memory_equal(y->data, ((int64_t[]){1, 0}), 16);
  }
}

/* Normalises inputs of every type per channel, with and without a lookup table. */
static void channels_are_normalized_for_every_dtype(void **state) {
  (void)state;
  static const struct {
    const char *descr;
    size_t size;
  } types[] = {{"|u1", 1}, {"<i4", 4}, {"<i8", 8}, {"<f4", 4}, {"<f8", 8}};
  float mean[3] = {1, 2, 3}, std[3] = {0.5f, 0.25f, 2};
  for (size_t k = 0; k < CLV_COUNT(types); k++) {
    uint8_t raw[6 * 8] = {0};
    for (int i = 0; i < 6; i++) {
      float f = (float)i;
      double d = i;
      int64_t n = i;
      memcpy(raw + (size_t)i * types[k].size,
             types[k].descr[1] != 'f' ? (void *)&n
             : types[k].size == 4     ? (void *)&f
                                      : (void *)&d,
             types[k].size);
    }
    CLV_AUTO(clv_dataset_freep) clv_dataset *ds = NULL;
    CLV_AUTO(clv_tensor_unrefp) clv_tensor *x = NULL;
    clv_err err;
    clv_dataset_options o = {
        .inputs_path = write_npy_file("x", types[k].descr, "1, 3, 1, 2", raw, 6 * types[k].size),
        .mean = mean,
        .n_mean = 3,
        .std = std,
        .n_std = 3,
        .scale = 1};
    assert_ok(clv_dataset_open(&o, &ds, &err), &err);
    clv_shape xs = clv_dataset_x_shape(ds, 1);
    assert_ok(clv_tensor_new(CLV_F32, &xs, &x, &err), &err);
    assert_ok(clv_batch_fill(ds, (uint32_t[]){0}, 1, x, NULL, &err), &err);
    assert_memory_equal(x->data, ((float[]){-2, 0, 0, 4, 0.5f, 1}), 24);
  }
}

static void float_targets_are_converted_to_f32(void **state) {
  (void)state;
  float rows[8] = {1, 2, 3, 4, 5, 6, 7, 8};
  double targets[4] = {0, 1, 0.25, -3};
  CLV_AUTO(clv_dataset_freep) clv_dataset *ds = NULL;
  CLV_AUTO(clv_tensor_unrefp) clv_tensor *x = NULL, *y = NULL;
  clv_err err;
  clv_dataset_options o = {.inputs_path = write_npy_file("x", "<f4", "4, 2", rows, sizeof rows),
                           .labels_path = write_npy_file("y", "<f8", "4,", targets, sizeof targets),
                           .labels = CLV_LABEL_FLOAT};
  assert_ok(clv_dataset_open(&o, &ds, &err), &err);
  int64_t min_label, max_label;
  assert_false(clv_dataset_label_range(ds, &min_label, &max_label));
  clv_shape xs = clv_dataset_x_shape(ds, 2), ys = clv_dataset_y_shape(ds, 2);
  assert_true(clv_shape_equal(&ys, &CLV_SHAPE(2, 1)));
  assert_ok(clv_tensor_new(CLV_F32, &xs, &x, &err), &err);
  assert_ok(clv_tensor_new(clv_dataset_y_dtype(ds), &ys, &y, &err), &err);
  assert_ok(clv_batch_fill(ds, (uint32_t[]){3, 2}, 2, x, y, &err), &err);
  assert_memory_equal(x->data, ((float[]){7, 8, 5, 6}), 16);
  assert_memory_equal(y->data, ((float[]){-3, 0.25f}), 8);
}

static void assert_refused(clv_dataset_options o, const char *says) {
  clv_dataset *ds = NULL;
  clv_err err;
  assert_int_equal(clv_dataset_open(&o, &ds, &err), CLV_INVALID);
  assert_null(ds);
  assert_says(&err, says);
}

static void invalid_dataset_options_are_refused(void **state) {
  (void)state;
  uint8_t v[12] = {0, 1, 2};
  char x[128];
  strcpy(x, write_idx_file("x", 8, 2, (uint32_t[]){3, 4}, v, 12));
  float two_means[2] = {1, 1}, zero = 0, nan = NAN;
  assert_refused((clv_dataset_options){0}, "no inputs file");
  assert_refused(
      (clv_dataset_options){.inputs_path = x,
                            .labels_path = write_idx_file("y", 8, 1, (uint32_t[]){2}, v, 2)},
      "/x holds 3 records and ");
  assert_refused(
      (clv_dataset_options){.inputs_path = x,
                            .labels_path = write_idx_file("y", 8, 1, (uint32_t[]){3}, v, 3),
                            .n_classes = 2},
      "label 2 of record 2 is no class: expected 0..1");
  assert_refused((clv_dataset_options){.inputs_path = x,
                                       .labels_path = write_idx_file("y", 9, 1, (uint32_t[]){3},
                                                                     "\0\377\0", 3)},
                 "label -1 of record 1 is no class");
  assert_refused((clv_dataset_options){.inputs_path = x,
                                       .labels_path = write_npy_file("y", "<f4", "3,", v, 12)},
                 "class labels must be integers, found f32");
  assert_refused(
      (clv_dataset_options){.inputs_path = x,
                            .labels_path = write_idx_file("y", 8, 2, (uint32_t[]){3, 2}, v, 6)},
      "class labels must have the shape [3], found [3, 2]");
  assert_refused((clv_dataset_options){.inputs_path = x, .mean = two_means, .n_mean = 2},
                 "mean has 2 values; the inputs have 4 channels");
  assert_refused((clv_dataset_options){.inputs_path = x, .std = &zero, .n_std = 1}, "std[0] is 0");
  assert_refused((clv_dataset_options){.inputs_path = x, .mean = &nan, .n_mean = 1},
                 "mean[0] is nan");
  assert_refused(
      (clv_dataset_options){.inputs_path = write_idx_file("e", 8, 2, (uint32_t[]){0, 4}, v, 0)},
      "no records: its shape is [0, 4]");
  assert_refused((clv_dataset_options){.inputs_path = write_scratch_file("t", "hello world", 11)},
                 "neither IDX (00 00 <type> <rank>) nor .npy");
  assert_refused((clv_dataset_options){.inputs_path = x, .format = CLV_FORMAT_NPY}, "wrong magic");
}

static void split_holds_back_the_requested_fraction(void **state) {
  (void)state;
  uint8_t v[10] = {0};
  CLV_AUTO(clv_dataset_freep) clv_dataset *ds = NULL;
  CLV_AUTO(clv_subset_done) clv_subset train = {0}, held = {0}, train2 = {0}, held2 = {0};
  clv_err err;
  clv_dataset_options o = {.inputs_path = write_idx_file("x", 8, 1, (uint32_t[]){10}, v, 10)};
  assert_ok(clv_dataset_open(&o, &ds, &err), &err);
  clv_shape xs = clv_dataset_x_shape(ds, 10);
  assert_true(clv_shape_equal(&xs, &CLV_SHAPE(10, 1)));
  assert_ok(clv_subset_split(ds, 0.3, CLV_SPLIT_LAST, 0, &train, &held, &err), &err);
  assert_int_equal(train.n, 7);
  assert_memory_equal(train.index, ((uint32_t[]){0, 1, 2, 3, 4, 5, 6}), 28);
  assert_memory_equal(held.index, ((uint32_t[]){7, 8, 9}), 12);
  assert_ok(clv_subset_split(ds, 0.3, CLV_SPLIT_SHUFFLED, 5, &train2, &held2, &err), &err);
  unsigned seen = 0;
  for (size_t i = 0; i < 7; i++) seen |= 1u << train2.index[i];
  for (size_t i = 0; i < 3; i++) seen |= 1u << held2.index[i];
  assert_int_equal(seen, 1023);
  assert_memory_not_equal(held2.index, held.index, 12);
  clv_subset none = {0};
  assert_int_equal(clv_subset_split(ds, 1.0, CLV_SPLIT_LAST, 0, &none, &none, &err), CLV_INVALID);
  assert_int_equal(clv_subset_split(ds, -0.1, CLV_SPLIT_LAST, 0, &none, &none, &err), CLV_INVALID);
  assert_int_equal(clv_subset_split(ds, NAN, CLV_SPLIT_LAST, 0, &none, &none, &err), CLV_INVALID);
  assert_int_equal(clv_subset_split(ds, 0.99, CLV_SPLIT_LAST, 0, &none, &none, &err), CLV_INVALID);
  assert_says(&err, "takes all 10 records");
}

static const char numpy_script[] =
    "import numpy as np\n"
    "r = np.random.default_rng(3)\n"
    "f = np.float32\n"
    "def norm(a, scale, c):\n"
    "    m = np.array([.485, .456, .406], f).reshape(c)\n"
    "    s = np.array([.229, .224, .225], f).reshape(c)\n"
    "    v = a.astype(f)\n"
    "    v = v / f(255) if scale is None else v * f(scale)\n"
    "    return (v - m) / s\n"
    "u = r.integers(0, 256, (9, 3, 5, 7)).astype(np.uint8)\n"
    "np.save('u.npy', u); np.save('u_want.npy', norm(u, None, (1, 3, 1, 1)))\n"
    "d = r.normal(size=(9, 3))\n"
    "np.save('d.npy', d); np.save('d_want.npy', norm(d, .3, (1, 3)))\n"
    "np.lib.format.write_array(open('v2.npy', 'wb'), u, version=(2, 0))\n"
    "np.lib.format.write_array(open('v3.npy', 'wb'), u, version=(3, 0))\n"
    "for i, t in enumerate('i1 <i2 >i2 <u2 >u2 <i4 >i4 <u4 >u4 <i8 >i8 <u8 >u8 <f2 >f2 >f4 "
    ">f8'.split()):\n"
    "    a = r.normal(size=(4, 3, 5, 2)) * 100\n"
    "    a = (abs(a) if 'u' in t else a).astype('i8' if t[-2] in 'iu' else "
    "'f8').astype(t)\n"
    "    np.save(f't{i}.npy', np.asfortranarray(a) if i % 3 else a)\n"
    "    np.save(f't{i}_want.npy', norm(a, .3, (1, 3, 1, 1)))\n";

static void assert_same_as_numpy(const char *inputs, const char *wanted, float scale) {
  float mean[3] = {.485f, .456f, .406f}, std[3] = {.229f, .224f, .225f};
  CLV_AUTO(clv_dataset_freep) clv_dataset *ds = NULL;
  CLV_AUTO(clv_tensor_unrefp) clv_tensor *x = NULL, *want = NULL;
  CLV_AUTO(clv_subset_done) clv_subset all = {0};
  clv_err err;
  clv_dataset_options o = {
      .inputs_path = at(inputs), .mean = mean, .n_mean = 3, .std = std, .n_std = 3, .scale = scale};
  assert_ok(clv_dataset_open(&o, &ds, &err), &err);
  assert_ok(clv_npy_read(at(wanted), 0, &want, &err), &err);
  assert_ok(clv_subset_all(ds, &all, &err), &err);
  clv_shape xs = clv_dataset_x_shape(ds, all.n);
  assert_ok(clv_tensor_new(CLV_F32, &xs, &x, &err), &err);
  assert_ok(clv_batch_fill(ds, all.index, all.n, x, NULL, &err), &err);
  assert_int_equal(x->bytes, want->bytes);
  assert_memory_equal(x->data, want->data, x->bytes);
}

static void normalized_values_match_numpy(void **state) {
  (void)state;
  write_scratch_file("make.py", numpy_script, sizeof numpy_script - 1);
  char command[256];
  snprintf(command, sizeof command, "cd %s && /usr/bin/python3 make.py 2>/dev/null", scratch);
  if (system(command) != 0) {
    print_message("because /usr/bin/python3 has no numpy\n");
    skip();
  }
  assert_same_as_numpy("u.npy", "u_want.npy", 0);
  assert_same_as_numpy("v2.npy", "u_want.npy", 0);
  assert_same_as_numpy("v3.npy", "u_want.npy", 0);
  assert_same_as_numpy("d.npy", "d_want.npy", 0.3f);
  for (int i = 0; i < 17; i++) {
    char inputs[16], wanted[24];
    snprintf(inputs, sizeof inputs, "t%d.npy", i);
    snprintf(wanted, sizeof wanted, "t%d_want.npy", i);
    assert_same_as_numpy(inputs, wanted, 0.3f);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(rank_3_images_are_normalized_in_float32),
      cmocka_unit_test(flatten_scale_and_limit_are_applied),
      cmocka_unit_test(channels_are_normalized_for_every_dtype),
      cmocka_unit_test(float_targets_are_converted_to_f32),
      cmocka_unit_test(invalid_dataset_options_are_refused),
      cmocka_unit_test(split_holds_back_the_requested_fraction),
      cmocka_unit_test(normalized_values_match_numpy),
      cmocka_unit_test(numpy_true_reads_as_one),
  };
  return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}
