/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests which predictions count as correct.
 */
#include <math.h>

#include "master/train/train_int.h"
#include "tests/unit/scratch.h"

static void predicted_class_is_the_first_maximum(void **state) {
  static const float outputs[] = {0.1f, 0.7f, 0.2f, 3, 3, 1};
  (void)state;
  assert_int_equal(clv_argmax_row(outputs, 3), 1);
  /* of equal values the first counts, as in torch.argmax */
  assert_int_equal(clv_argmax_row(outputs + 3, 3), 0);
  assert_int_equal(clv_argmax_row(outputs, 1), 0);
}

static void binary_predictions_use_the_loss_threshold(void **state) {
  static const float probabilities[] = {0.9f, 0.4f, 0.5f, 0.6f}, labels[] = {1, 0, 0, 0};
  static const float logits[] = {0.1f, -0.1f, 0, -5}, labels_of_logits[] = {1, 0, 0, 1};
  (void)state;
  assert_int_equal(clv_count_correct_binary(CLV_LOSS_BCE, probabilities, labels, 4, 1), 3);
  assert_int_equal(
      clv_count_correct_binary(CLV_LOSS_BCE_WITH_LOGITS, logits, labels_of_logits, 4, 1), 3);
  assert_false(clv_is_positive_output(CLV_LOSS_BCE, NAN));
}

/* A record with several outputs is correct if all of them are. */
static void record_is_correct_only_if_all_outputs_are(void **state) {
  static const float outputs[] = {0.9f, 0.1f, 0.9f, 0.9f, 0.2f, 0.2f},
                     labels[] = {1, 0, 1, 0, 0, 0.2f};
  (void)state;
  assert_int_equal(clv_count_correct_binary(CLV_LOSS_BCE, outputs, labels, 3, 2), 2);
}

static void labels_of_another_width_count_none_correct(void **state) {
  clv_session_config config = {.loss = {.kind = CLV_LOSS_BCE}};
  const clv_trainer t = {.config = &config};
  clv_tensor *labels = NULL;
  clv_err err = {0};
  float values[6] = {0};
  const cleave_tensor output = {.dtype = CLEAVE_F32, .rank = 2, .shape = {2, 3}, .data = values};
  (void)state;
  assert_ok(clv_tensor_new(CLV_F32, &CLV_SHAPE(2, 1), &labels, &err), &err);
  memset(labels->data, 0, labels->bytes);
  assert_int_equal(clv_trainer_count_correct(&t, &output, labels, 0, 2), 0);
  clv_tensor_unref(labels);
}

/* Returns labels of 2 records of 3 positions. */
static clv_tensor *make_labels(const int64_t labels[6]) {
  clv_tensor *t = NULL;
  clv_err err = {0};
  assert_ok(clv_tensor_new(CLV_I64, &CLV_SHAPE(2, 3), &t, &err), &err);
  memcpy(t->data, labels, t->bytes);
  return t;
}

static void ignored_positions_are_not_counted(void **state) {
  double weight[] = {0.5, 2};
  clv_session_config config = {.loss = {.ignore_index = -100}};
  const clv_trainer t = {.config = &config};
  clv_tensor *labels = make_labels((const int64_t[]){1, -100, 0, -100, -100, 1});
  float values[12] = {0, 1, 0, 1, 0, 1, 1, 0, 1, 0, 0, 1};
  const cleave_tensor output = {.dtype = CLEAVE_F32, .rank = 3, .shape = {2, 3, 2}, .data = values};
  const cleave_tensor second_record = {
      .dtype = CLEAVE_F32, .rank = 3, .shape = {1, 3, 2}, .data = values + 6};
  (void)state;
  assert_true(clv_trainer_batch_weight(&t, labels, 0, 2) == 3);
  assert_true(clv_trainer_batch_weight(&t, labels, 1, 1) == 1);
  assert_int_equal(clv_trainer_count_labelled(&t, labels, 0, 1), 2);
  assert_int_equal(clv_trainer_count_correct(&t, &output, labels, 0, 2), 2);
  assert_int_equal(clv_trainer_count_correct(&t, &second_record, labels, 1, 1), 1);
  config.loss.weight = (clv_number_list){.n = 2, .items = weight};
  assert_true(clv_trainer_batch_weight(&t, labels, 0, 2) == 4.5);
  assert_int_equal(clv_trainer_count_labelled(&t, labels, 0, 2), 3);
  config.loss.ignore_index = 1;
  assert_int_equal(clv_trainer_count_labelled(&t, labels, 0, 2), 4);
  clv_tensor_unref(labels);
}

static void accuracy_of_no_labelled_records_is_nan(void **state) {
  (void)state;
  assert_true(isnan(clv_step_accuracy(&(clv_step_result){.samples = 3})));
  assert_true(clv_step_accuracy(&(clv_step_result){.n_correct = 1, .n_labelled = 4}) == 0.25);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(predicted_class_is_the_first_maximum),
      cmocka_unit_test(binary_predictions_use_the_loss_threshold),
      cmocka_unit_test(record_is_correct_only_if_all_outputs_are),
      cmocka_unit_test(labels_of_another_width_count_none_correct),
      cmocka_unit_test(ignored_positions_are_not_counted),
      cmocka_unit_test(accuracy_of_no_labelled_records_is_nan),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
