/* SPDX-License-Identifier: Apache-2.0
 *
 * Counts right predictions. A predicted class is the one with the largest output. A row of a binary
 * loss is right if each output is above the threshold exactly if its label is positive.
 */
#include "master/train/train_int.h"

size_t clv_argmax_row(const float *output, size_t n_classes) {
  size_t best_class = 0;
  for (size_t c = 1; c < n_classes; c++)
    if (output[c] > output[best_class]) best_class = c;
  return best_class;
}

bool clv_is_positive_output(clv_loss_kind loss, float output) {
  return output > (loss == CLV_LOSS_BCE_WITH_LOGITS ? 0.0f : 0.5f);
}

size_t clv_count_correct_binary(clv_loss_kind loss, const float *output, const float *labels,
                                size_t n, size_t width) {
  size_t n_correct = 0;
  for (size_t i = 0; i < n; i++) {
    size_t n_right_outputs = 0;
    for (size_t k = i * width; k < (i + 1) * width; k++)
      n_right_outputs += clv_is_positive_output(loss, output[k]) == (labels[k] > 0.5f);
    n_correct += n_right_outputs == width;
  }
  return n_correct;
}

bool clv_trainer_has_accuracy(const clv_trainer *t) {
  return clv_loss_has_accuracy(t->config->loss.kind);
}

static size_t count_correct_classes(const clv_trainer *t, const float *output,
                                    const int64_t *labels, size_t n_positions, size_t width) {
  size_t n_correct = 0;
  for (size_t i = 0; i < n_positions; i++)
    n_correct += !clv_trainer_is_ignored_label(t, labels[i]) &&
                 (int64_t)clv_argmax_row(output + i * width, width) == labels[i];
  return n_correct;
}

size_t clv_trainer_count_correct(const clv_trainer *t, const cleave_tensor *prediction,
                                 const clv_tensor *labels, size_t start, size_t n) {
  size_t width = cleave_tensor_count(prediction) / n;
  size_t labels_per_row = labels->n / (size_t)labels->shape.dim[0];
  if (labels->dtype == CLV_I64)
    return count_correct_classes(t, prediction->data,
                                 (const int64_t *)labels->data + start * labels_per_row,
                                 n * labels_per_row, width / labels_per_row);
  /* cannot happen, because the loss refuses labels of another size than the prediction */
  if (labels->n != width * (size_t)labels->shape.dim[0]) return 0;
  return clv_count_correct_binary(t->config->loss.kind, prediction->data,
                                  (const float *)labels->data + start * width, n, width);
}
