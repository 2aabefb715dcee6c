/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests the names of classes, and files of predictions with these names.
 */
#include <math.h>
#include <sys/stat.h>

#include "master/run/run_int.h"
#include "tests/unit/scratch.h"

static int setup(void **state) {
  if (scratch_setup(state) != 0) return -1;
  return chdir(scratch);
}

/* ---- files of class names -------------------------------------------------------------------- */

static clv_code parse_classes(const char *text, clv_classes *ret, clv_err *err) {
  return clv_classes_parse(text, strlen(text), "run/classes", ret, err);
}

static void class_file_is_parsed_strictly(void **state) {
  static const struct {
    const char *text, *says;
  } cases[] = {
      {"", "line 1 is missing"},         {"cat", "line 1 has no end"},
      {"cat\ndog", "line 2 has no end"}, {"\n", "line 1 is no name"},
      {"cat\n\n", "line 2 is no name"},  {"cat\ndog\ncat\n", "the class 'cat' comes twice"},
      {"a/b\n", "line 1 is no name"},    {".hidden\n", "line 1 is no name"},
      {"cat\r\n", "line 1 is no name"},  {"\x1b[2J\n", "line 1 is no name"},
      {"a\x7f\n", "line 1 is no name"},
  };
  char long_line[300];
  clv_err err = {0};
  clv_classes c = {0};
  (void)state;
  for (size_t i = 0; i < CLV_COUNT(cases); i++) {
    assert_int_equal(parse_classes(cases[i].text, &c, &err), CLV_DATA_LOSS);
    assert_says(&err, "run/classes is damaged");
    assert_says(&err, cases[i].says);
  }
  assert_int_equal(clv_classes_parse("a\0b\n", 4, "it", &c, &err), CLV_DATA_LOSS);
  memset(long_line, 'a', sizeof long_line);
  strcpy(long_line + 256, "\n");
  assert_int_equal(parse_classes(long_line, &c, &err), CLV_DATA_LOSS);
  assert_ok(parse_classes("A\nb c\n\xc3\xa9\n", &c, &err), &err);
  assert_int_equal(c.n, 3);
  assert_string_equal(c.names[1], "b c");
  clv_classes_free(&c);
  /* reads the class file of a run without class names */
  assert_ok(clv_classes_read(".", &c, &err), &err);
  assert_int_equal(c.n, 0);
}

/* ---- files of digests and predictions -------------------------------------------------------- */

static const char *const three_names[] = {"cat", "dog, \"big\"", "eel"};
static const clv_classes classes = {.names = (const char **)(uintptr_t)three_names, .n = 3};
static const clv_classes none;

/* Returns predictions of records 7 and 9 with this many outputs. */
static clv_predictions make_predictions(const clv_classes *class_names, clv_loss_kind loss,
                                        clv_tensor *outputs, const clv_dataset *data) {
  static const uint32_t index[] = {7, 9};
  return (clv_predictions){
      .outputs = outputs, .data = data, .index = index, .classes = class_names, .loss = loss};
}

static clv_tensor *make_tensor(const float *values, int64_t width) {
  clv_tensor *t = NULL;
  clv_err err = {0};
  assert_ok(clv_tensor_new(CLV_F32, &CLV_SHAPE(2, width), &t, &err), &err);
  memcpy(t->data, values, t->bytes);
  return t;
}

/* Returns a dataset of ten classes without names. */
static clv_dataset *make_dataset(void) {
  static const char head[] =
      "\x93NUMPY\x01\0\x76\0{'descr': '|u1', 'fortran_order': False, 'shape': (10,)}";
  clv_dataset *ds = NULL;
  clv_err err = {0};
  FILE *f = fopen("x.npy", "wb");
  assert_non_null(f);
  fwrite(head, 1, sizeof head - 1, f);
  for (size_t n = sizeof head - 1; n < 10 + 0x76 - 1; n++) fputc(' ', f);
  fputs("\n0123456789", f);
  fclose(f);
  const clv_dataset_options o = {.format = CLV_FORMAT_NPY, .inputs_path = "x.npy"};
  assert_ok(clv_dataset_open(&o, &ds, &err), &err);
  return ds;
}

static void data_digests_are_parsed_strictly(void **state) {
  (void)state;
  static const char digest[] = "35fa9f01aabae2baaa3f3d27df72e5d583238fccd31861f073ac6005eb1c32ed";
  static const char *const bad_texts[] = {"train.labels 020 %s\n",
                                          "train.labels 20 %.63s\n",
                                          "train.labels 20 %.63sg\n",
                                          "train.labels  20 %s\n",
                                          "train.labels 20 %s",
                                          "train.labels -1 %s\n",
                                          "train.labels 20 %s \n",
                                          " 20 %s\n",
                                          "train.labels %s\n",
                                          "\n%s\n",
                                          "%s\n"};
  char text[256];
  clv_data_digests digests;
  clv_err err;
  snprintf(text, sizeof text, "train.labels 20 %s\ntest.rows 7 %s\n", digest, digest);
  assert_ok(clv_data_digests_parse(text, strlen(text), "d", &digests, &err), &err);
  assert_int_equal(digests.n, 2);
  assert_string_equal(digests.list[1].name, "test.rows");
  assert_int_equal(digests.list[1].records, 7);
  for (size_t i = 0; i < CLV_COUNT(bad_texts); i++) {
    snprintf(text, sizeof text, bad_texts[i], digest);
    assert_int_equal(clv_data_digests_parse(text, strlen(text), "d", &digests, &err),
                     CLV_DATA_LOSS);
    assert_says(&err, "d is damaged: line 1");
  }
  assert_int_equal(clv_data_digests_parse("", 0, "d", &digests, &err), CLV_DATA_LOSS);
  snprintf(text, sizeof text, "test.rows 20 %s\ntest.rows 7 %s\n", digest, digest);
  assert_int_equal(clv_data_digests_parse(text, strlen(text), "d", &digests, &err), CLV_DATA_LOSS);
  assert_says(&err, "d is damaged: line 2 has the name 'test.rows' again");
}

static void prediction_lines_have_ids_classes_and_names(void **state) {
  static const float three_outputs[] = {0.25f, 1, NAN, 3, -2.5f, 0.1f},
                     one_output[] = {0.75f, 0.25f};
  const struct {
    const clv_classes *classes;
    clv_loss_kind loss;
    const float *values;
    int64_t width;
    const char *csv, *json;
  } cases[] = {
      {&classes, CLV_LOSS_CROSS_ENTROPY, three_outputs, 3,
       "id,class,name,output_cat,\"output_dog, \"\"big\"\"\",output_eel\n"
       "7,1,\"dog, \"\"big\"\"\",0.25,1,nan\n9,0,cat,3,-2.5,0.100000001\n",
       "{\"id\":7,\"class\":1,\"name\":\"dog, \\\"big\\\"\",\"outputs\":[0.25,1,null]}\n"
       "{\"id\":9,\"class\":0,\"name\":\"cat\",\"outputs\":[3,-2.5,0.100000001]}\n"},
      {&none, CLV_LOSS_CROSS_ENTROPY, three_outputs, 3,
       "id,class,output_0,output_1,output_2\n7,1,0.25,1,nan\n9,0,3,-2.5,0.100000001\n",
       "{\"id\":7,\"class\":1,\"outputs\":[0.25,1,null]}\n"
       "{\"id\":9,\"class\":0,\"outputs\":[3,-2.5,0.100000001]}\n"},
      {&none, CLV_LOSS_BCE, one_output, 1, "id,class,output_0\n7,1,0.75\n9,0,0.25\n",
       "{\"id\":7,\"class\":1,\"outputs\":[0.75]}\n{\"id\":9,\"class\":0,\"outputs\":[0.25]}\n"},
      {&none, CLV_LOSS_BCE_WITH_LOGITS, one_output, 1, "id,class,output_0\n7,1,0.75\n9,1,0.25\n",
       "{\"id\":7,\"class\":1,\"outputs\":[0.75]}\n{\"id\":9,\"class\":1,\"outputs\":[0.25]}\n"},
      {&none, CLV_LOSS_MSE, one_output, 1, "id,output_0\n7,0.75\n9,0.25\n",
       "{\"id\":7,\"outputs\":[0.75]}\n{\"id\":9,\"outputs\":[0.25]}\n"},
  };
  CLV_AUTO(clv_dataset_freep) clv_dataset *data = make_dataset();
  (void)state;
  for (size_t i = 0; i < CLV_COUNT(cases); i++) {
    CLV_AUTO(clv_tensor_unrefp) clv_tensor *t = make_tensor(cases[i].values, cases[i].width);
    CLV_AUTO(clv_bytes_done) clv_bytes csv = {0}, json = {0};
    const clv_predictions r = make_predictions(cases[i].classes, cases[i].loss, t, data);
    clv_err err = {0};
    assert_ok(clv_predictions_write(&r, CLV_PREDICTIONS_CSV, "p.csv", &err), &err);
    assert_ok(clv_predictions_write(&r, CLV_PREDICTIONS_JSONL, "p.jsonl", &err), &err);
    assert_ok(clv_file_read("p.csv", 1 << 20, &csv, &err), &err);
    assert_ok(clv_file_read("p.jsonl", 1 << 20, &json, &err), &err);
    assert_string_equal(csv.data, cases[i].csv);
    assert_string_equal(json.data, cases[i].json);
  }
}

static void probabilities_replace_outputs_for_the_owner_alone(void **state) {
  static const float three_outputs[] = {0, 0, 1e9f, -1e9f, 0, 0}, one_output[] = {0, -1e9f},
                     log_probabilities[] = {-INFINITY, 0};
  const struct {
    clv_loss_kind loss;
    const float *values;
    int64_t width;
    const char *csv;
  } cases[] = {
      {CLV_LOSS_FOCAL, three_outputs, 3,
       "id,class,probability_0,probability_1,probability_2\n7,2,0,0,1\n9,1,0,0.5,0.5\n"},
      {CLV_LOSS_BCE_WITH_LOGITS, one_output, 1, "id,class,probability_0\n7,0,0.5\n9,0,0\n"},
      {CLV_LOSS_NLL, log_probabilities, 1, "id,class,probability_0\n7,0,0\n9,0,1\n"}};
  CLV_AUTO(clv_dataset_freep) clv_dataset *data = make_dataset();
  struct stat st;
  clv_err err = {0};
  (void)state;
  for (size_t i = 0; i < CLV_COUNT(cases); i++) {
    CLV_AUTO(clv_tensor_unrefp) clv_tensor *t = make_tensor(cases[i].values, cases[i].width);
    CLV_AUTO(clv_tensor_unrefp) clv_tensor *p = NULL;
    CLV_AUTO(clv_bytes_done) clv_bytes csv = {0};
    clv_predictions r = make_predictions(&none, cases[i].loss, t, data);
    assert_ok(clv_predictions_compute_probabilities(t, cases[i].loss, &p, &err), &err);
    r.probabilities = p;
    assert_ok(clv_predictions_write(&r, CLV_PREDICTIONS_CSV, "p.csv", &err), &err);
    assert_ok(clv_file_read("p.csv", 1 << 20, &csv, &err), &err);
    assert_string_equal(csv.data, cases[i].csv);
    assert_ok(clv_predictions_write(&r, CLV_PREDICTIONS_NPY, "q.npy", &err), &err);
  }
  for (int k = 0; k < 2; k++) {
    assert_int_equal(stat(k ? "p.csv" : "q.npy", &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
  }
  CLV_AUTO(clv_tensor_unrefp) clv_tensor *t = make_tensor(three_outputs, 3);
  clv_tensor *p = NULL;
  assert_int_equal(clv_predictions_compute_probabilities(t, CLV_LOSS_MSE, &p, &err), CLV_INVALID);
}

static void intervals_follow_the_values(void **state) {
  static const float mean[] = {1, 2}, low[] = {0.5f, 1.5f}, high[] = {1.5f, 2.5f};
  CLV_AUTO(clv_dataset_freep) clv_dataset *data = make_dataset();
  CLV_AUTO(clv_tensor_unrefp)
  clv_tensor *t = make_tensor(mean, 1), *l = make_tensor(low, 1), *h = make_tensor(high, 1),
             *back = NULL;
  CLV_AUTO(clv_bytes_done) clv_bytes csv = {0}, json = {0};
  clv_predictions r = make_predictions(&none, CLV_LOSS_MSE, t, data);
  clv_err err = {0};
  (void)state;
  r.low = l;
  r.high = h;
  assert_ok(clv_predictions_write(&r, CLV_PREDICTIONS_CSV, "p.csv", &err), &err);
  assert_ok(clv_predictions_write(&r, CLV_PREDICTIONS_JSONL, "p.jsonl", &err), &err);
  assert_ok(clv_predictions_write(&r, CLV_PREDICTIONS_NPY, "i.npy", &err), &err);
  assert_ok(clv_file_read("p.csv", 1 << 20, &csv, &err), &err);
  assert_ok(clv_file_read("p.jsonl", 1 << 20, &json, &err), &err);
  assert_string_equal(csv.data,
                      "id,output_0,low_output_0,high_output_0\n7,1,0.5,1.5\n9,2,1.5,2.5\n");
  assert_string_equal(json.data,
                      "{\"id\":7,\"outputs\":[1],\"low\":[0.5],\"high\":[1.5]}\n"
                      "{\"id\":9,\"outputs\":[2],\"low\":[1.5],\"high\":[2.5]}\n");
  assert_ok(clv_npy_read("i.npy.high", 0, &back, &err), &err);
  assert_memory_equal(back->data, h->data, h->bytes);
}

static void percentiles_are_those_of_numpy(void **state) {
  static const float values[] = {1, 2, 4, 8, 16};
  (void)state;
  assert_true(clv_percentile(values, 5, 0.025) == 1.1); /* numpy.percentile(values, 2.5) */
  assert_true(clv_percentile(values, 5, 0.5) == 4);
  assert_true(clv_percentile(values, 5, 0.975) > 15.199999 &&
              clv_percentile(values, 5, 0.975) < 15.200001);
  assert_true(clv_percentile(values, 1, 0.975) == 1 && clv_percentile(values, 5, 1) == 16);
}

static void npy_predictions_get_a_json_file_of_names(void **state) {
  static const float values[] = {1, 2, 3, 4, 5, 6};
  CLV_AUTO(clv_dataset_freep) clv_dataset *data = make_dataset();
  CLV_AUTO(clv_tensor_unrefp) clv_tensor *t = make_tensor(values, 3), *back = NULL;
  CLV_AUTO(clv_bytes_done) clv_bytes json = {0};
  clv_err err = {0};
  (void)state;
  const clv_predictions without_names = make_predictions(&none, CLV_LOSS_MSE, t, data),
                        with_names = make_predictions(&classes, CLV_LOSS_NLL, t, data);
  assert_ok(clv_predictions_write(&without_names, CLV_PREDICTIONS_NPY, "p.npy", &err), &err);
  assert_int_not_equal(access("p.npy.json", F_OK), 0);
  assert_ok(clv_predictions_write(&with_names, CLV_PREDICTIONS_NPY, "p.npy", &err), &err);
  assert_ok(clv_file_read("p.npy.json", 1 << 20, &json, &err), &err);
  assert_string_equal(json.data,
                      "{\"ids\":[7,9],\"classes\":[\"cat\",\"dog, \\\"big\\\"\",\"eel\"]}\n");
  assert_ok(clv_npy_read("p.npy", 0, &back, &err), &err);
  assert_memory_equal(back->data, t->data, t->bytes);
}

static void failed_prediction_write_leaves_no_file(void **state) {
  static const float values[] = {1, 2};
  CLV_AUTO(clv_dataset_freep) clv_dataset *data = make_dataset();
  CLV_AUTO(clv_tensor_unrefp) clv_tensor *t = make_tensor(values, 1);
  const clv_predictions r = make_predictions(&none, CLV_LOSS_MSE, t, data);
  clv_err err = {0};
  (void)state;
  assert_int_equal(clv_predictions_write(&r, CLV_PREDICTIONS_CSV, "none/p.csv", &err),
                   CLV_UNAVAILABLE);
  assert_says(&err, "none/p.csv");
  assert_ok(clv_mkdirs("folder.csv/x", &err), &err);
  assert_int_equal(clv_predictions_write(&r, CLV_PREDICTIONS_CSV, "folder.csv", &err),
                   CLV_UNAVAILABLE);
  assert_int_not_equal(access("folder.csv.tmp", F_OK), 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(class_file_is_parsed_strictly),
      cmocka_unit_test(data_digests_are_parsed_strictly),
      cmocka_unit_test(prediction_lines_have_ids_classes_and_names),
      cmocka_unit_test(probabilities_replace_outputs_for_the_owner_alone),
      cmocka_unit_test(intervals_follow_the_values),
      cmocka_unit_test(percentiles_are_those_of_numpy),
      cmocka_unit_test(npy_predictions_get_a_json_file_of_names),
      cmocka_unit_test(failed_prediction_write_leaves_no_file),
  };
  return cmocka_run_group_tests(tests, setup, scratch_teardown);
}
