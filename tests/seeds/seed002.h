/* SPDX-License-Identifier: Apache-2.0
 *
 * The notebook of seed 002: its data, its index arithmetic, and how close a run has to come.
 * float32 drifts: the first SEED002_JUDGED iterations have to be PyTorch's within 1e-4; a whole run
 * has to end in the range of PyTorch's perturbed runs (make_seeds.py), give or take 1e-4 of it.
 */
#ifndef CLEAVE_SEED002_H
#define CLEAVE_SEED002_H

#include "seed.h"

enum { SEED002_BATCH = 32, SEED002_ROWS = 320, SEED002_WIDTH = 16, SEED002_JUDGED = 500 };

static inline cleave_tensor seed002_tensor(const char *what, int64_t columns) {
  cleave_tensor t;
  if (!seed_find("seed002", what, &t) || t.rank != 2 || t.shape[0] != SEED002_ROWS ||
      t.shape[1] != columns)
    seed_fail("seeds.txt has no seed002.%s of %d x %d", what, SEED002_ROWS, (int)columns);
  return t;
}

static inline cleave_tensor seed002_part(const cleave_tensor *whole, size_t start, size_t end) {
  cleave_tensor part = *whole;
  part.shape[0] = (int64_t)(end - start);
  part.data = (float *)whole->data + start * (size_t)whole->shape[1];
  return part;
}

/* Rows start:end of the data; false when there are none. In PyTorch an empty batch has the loss nan
 * and gradients of zeros, so plain SGD does not move: a skipped step. */
static inline bool seed002_slice(size_t start, size_t end, cleave_tensor *ret_x,
                                 cleave_tensor *ret_target) {
  cleave_tensor x = seed002_tensor("x", SEED002_WIDTH), target = seed002_tensor("target", 1);
  if (start >= end) return false;
  *ret_x = seed002_part(&x, start, end);
  *ret_target = seed002_part(&target, start, end);
  return true;
}

/* The notebook's batch i: i * size % 320 up to (i + 1) * size % 320, which is 0 for the last of the
 * data and leaves that batch empty. */
static inline bool seed002_batch(size_t i, size_t size, cleave_tensor *ret_x,
                                 cleave_tensor *ret_target) {
  return seed002_slice(i * size % SEED002_ROWS, (i + 1) * size % SEED002_ROWS, ret_x, ret_target);
}

/* A parameter as the notebook drew it. */
static inline void seed002_weight(cleave_module *module, const char *name, const char *golden) {
  cleave_tensor t = seed_golden(golden);
  MUST(cleave_weight_write(seed.rt, module, name, &t, 0, &seed.e));
}

/* One of the run's losses against PyTorch's, while they can be compared. */
static inline void seed002_compare(size_t i, double ours, double theirs) {
  if (i < SEED002_JUDGED) seed_compare("loss", i, ours, theirs);
}

/* seed_end, and the range of the end if the run was a whole one. */
static inline int seed002_end(size_t iterations, double first, double last) {
  cleave_tensor range;
  if (!seed_find(seed.name, "final", &range))
    return seed_end(1e-4, "%zu iterations, loss %.4f to %.4f", iterations, first, last);
  double low = seed_at(&range, 0), high = seed_at(&range, 1);
  if (!(last >= low * (1 - 1e-4) && last <= high * (1 + 1e-4)))
    seed_fail("%zu iterations end with loss %.4f, PyTorch's between %.4f and %.4f", iterations,
              last, low, high);
  return seed_end(1e-4, "%zu iterations, loss %.4f to %.4f, PyTorch's range %.4f to %.4f",
                  iterations, first, last, low, high);
}

#endif
