/* SPDX-License-Identifier: Apache-2.0
 *
 * Computes the weights with which micro-batches count in the mean loss of a batch. PyTorch's
 * cross_entropy divides by the sum of weights of the positions that are not ignored. The trainer
 * weighs each micro-batch by its part of that sum, so the mean over the micro-batches is that of
 * the complete batch.
 */
#include <math.h>

#include "master/train/train_int.h"

double clv_step_accuracy(const clv_step_result *r) {
  return r->n_labelled ? (double)r->n_correct / (double)r->n_labelled : (double)NAN;
}

bool clv_trainer_is_ignored_label(const clv_trainer *t, int64_t label) {
  return clv_loss_row_of(t->config->loss.kind)->keys & CLV_LOSS_KEY_IGNORE_INDEX &&
         (double)label == t->config->loss.ignore_index;
}

/* Returns the class weight of a label; 1 for a label that is no class (the loss refuses it). */
static double class_weight_of(const clv_number_list *weights, int64_t label) {
  bool is_class = label >= 0 && (uint64_t)label < weights->n;
  return is_class ? (double)(float)weights->items[label] : 1;
}

static const int64_t *find_labels_of_rows(const clv_tensor *labels, size_t start, size_t n,
                                          size_t *ret_n) {
  size_t labels_per_row = labels->n / (size_t)labels->shape.dim[0];
  *ret_n = n * labels_per_row;
  return (const int64_t *)labels->data + start * labels_per_row;
}

double clv_trainer_batch_weight(const clv_trainer *t, const clv_tensor *labels, size_t start,
                                size_t n) {
  size_t n_positions;
  double weight_sum = 0;
  if (labels->dtype != CLV_I64) return (double)n;
  const int64_t *row_labels = find_labels_of_rows(labels, start, n, &n_positions);
  for (size_t i = 0; i < n_positions; i++)
    if (!clv_trainer_is_ignored_label(t, row_labels[i]))
      weight_sum += class_weight_of(&t->config->loss.weight, row_labels[i]);
  return weight_sum;
}

size_t clv_trainer_count_labelled(const clv_trainer *t, const clv_tensor *labels, size_t start,
                                  size_t n) {
  size_t n_positions, n_labelled = 0;
  if (labels->dtype != CLV_I64) return n;
  const int64_t *row_labels = find_labels_of_rows(labels, start, n, &n_positions);
  for (size_t i = 0; i < n_positions; i++)
    n_labelled += !clv_trainer_is_ignored_label(t, row_labels[i]);
  return n_labelled;
}
