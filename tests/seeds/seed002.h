/* SPDX-License-Identifier: Apache-2.0
 *
 * The notebook of seed 002: its data, its index arithmetic, and how close a run must come to
 * PyTorch's. Rounding errors in float32 grow, so only the losses of the first SEED002_COMPARED
 * iterations must equal PyTorch's within 1e-4. The last loss of a whole run must be in the range of
 * PyTorch's runs with perturbed weights, widened by 1e-4 of it, if these runs agree
 * (make_seeds.py). A run from a place in the middle begins every iteration with PyTorch's weights.
 * The loss of the iteration, and each parameter after it, must be PyTorch's within 1e-6, by the
 * norm of the difference: relative to PyTorch's norm, or absolute if that norm is below 1.
 */
#ifndef CLEAVE_SEED002_H
#define CLEAVE_SEED002_H

#include "seed.h"

/* Parameters that the notebook drew, and the modules that hold them. */
static struct {
  cleave_module *module;
  const char *name, *golden_name;
} seed002_weights[SEED_MAX_DRAWN];
static int seed002_n_weights;

enum { SEED002_BATCH = 32, SEED002_ROWS = 320, SEED002_WIDTH = 16, SEED002_COMPARED = 500 };

static inline cleave_tensor seed002_get_golden_matrix(const char *what, int64_t columns) {
  cleave_tensor t;
  if (!seed_find_golden("seed002", what, &t) || t.rank != 2 || t.shape[0] != SEED002_ROWS ||
      t.shape[1] != columns)
    seed_fail("seeds.txt has no seed002.%s of %d x %d", what, SEED002_ROWS, (int)columns);
  return t;
}

static inline cleave_tensor seed002_get_rows(const cleave_tensor *all_rows, size_t start,
                                             size_t end) {
  cleave_tensor selected_rows = *all_rows;
  selected_rows.shape[0] = (int64_t)(end - start);
  selected_rows.data = (float *)all_rows->data + start * (size_t)all_rows->shape[1];
  return selected_rows;
}

/* Gets rows start..end of the data. Returns false if there are none: PyTorch's loss of an empty
 * batch is NaN and its gradients are zero, so plain SGD changes nothing and the step is skipped. */
static inline bool seed002_get_data_rows(size_t start, size_t end, cleave_tensor *ret_x,
                                         cleave_tensor *ret_target) {
  cleave_tensor x = seed002_get_golden_matrix("x", SEED002_WIDTH),
                target = seed002_get_golden_matrix("target", 1);
  if (start >= end) return false;
  *ret_x = seed002_get_rows(&x, start, end);
  *ret_target = seed002_get_rows(&target, start, end);
  return true;
}

/* Gets the notebook's batch i: rows from i * size % 320 to (i + 1) * size % 320. The end is 0 for
 * the last rows, so that batch is empty. i counts from the program's first iteration. */
static inline bool seed002_get_batch(size_t i, size_t size, cleave_tensor *ret_x,
                                     cleave_tensor *ret_target) {
  i += seed.first_iteration;
  return seed002_get_data_rows(i * size % SEED002_ROWS, (i + 1) * size % SEED002_ROWS, ret_x,
                               ret_target);
}

static inline void seed002_write_weight(int i, const cleave_tensor *t) {
  MUST(cleave_weight_write(seed.rt, seed002_weights[i].module, seed002_weights[i].name, t, 0,
                           &seed.e));
}

/* Sets a parameter as the notebook drew it. A run that starts in the middle gets its parameters
 * from seed002_restart_from_golden. */
static inline void seed002_set_weight(cleave_module *module, const char *name, const char *golden) {
  int i = seed002_n_weights++;
  if (i == SEED_MAX_DRAWN) seed_fail("more than %d parameters", SEED_MAX_DRAWN);
  seed002_weights[i].module = module;
  seed002_weights[i].name = name;
  seed002_weights[i].golden_name = golden;
  if (seed.start_place) return;
  cleave_tensor t = seed_get_golden(golden);
  seed002_write_weight(i, &t);
}

/* Returns PyTorch's parameter before the program's iteration i. */
static inline cleave_tensor seed002_get_parameter_before(const char *golden, size_t i) {
  cleave_tensor t = seed_get_golden(golden);
  if (t.rank < 1 || (int64_t)i >= t.shape[0]) seed_fail("%s ends before iteration %zu", golden, i);
  t.rank--;
  memmove(t.shape, t.shape + 1, (size_t)t.rank * sizeof t.shape[0]);
  t.data = (float *)t.data + i * cleave_tensor_count(&t);
  return t;
}

/* Compares parameter k, as it is after iteration i - 1, with PyTorch's. */
static inline void seed002_compare_one_weight(int k, size_t i) {
  cleave_tensor ours = {0},
                theirs = seed002_get_parameter_before(seed002_weights[k].golden_name, i);
  MUST(cleave_weight_read(seed.rt, seed002_weights[k].module, seed002_weights[k].name, 0, &ours,
                          &seed.e));
  seed_compare_tensor(seed002_weights[k].golden_name, i, &ours, &theirs);
  cleave_tensor_free(&ours);
}

/* For a run that starts in the middle, called before every iteration: compares the weights of a
 * module (NULL: of all modules) with PyTorch's, then replaces them by PyTorch's. For a run from the
 * beginning: does nothing and returns false. */
static inline bool seed002_restart_from_golden(const cleave_module *module, size_t i) {
  if (!seed.start_place) return false;
  for (int k = 0; k < seed002_n_weights; k++) {
    if (module && module != seed002_weights[k].module) continue;
    if (i) seed002_compare_one_weight(k, i);
    cleave_tensor t = seed002_get_parameter_before(seed002_weights[k].golden_name, i);
    seed002_write_weight(k, &t);
  }
  return true;
}

/* Compares a loss with PyTorch's, as long as the two runs are comparable. */
static inline void seed002_compare_loss(size_t i, double ours, double theirs) {
  if (seed.start_place)
    seed_compare_number_from(1, "loss", i, ours, theirs);
  else if (i < SEED002_COMPARED)
    seed_compare_number("loss", i, ours, theirs);
}

static inline int seed002_print_place_verdict(size_t iterations) {
  for (int k = 0; k < seed002_n_weights; k++) {
    cleave_tensor all = seed_get_golden(seed002_weights[k].golden_name);
    seed002_compare_one_weight(k, (size_t)all.shape[0] - 1);
  }
  return seed_print_verdict(1e-6, "%zu iterations from %zu", iterations, seed.first_iteration);
}

/* As seed_print_verdict, and for a run from its beginning also checks the range of the last
 * loss. */
static inline int seed002_print_verdict(size_t iterations, double first, double last) {
  cleave_tensor range;
  if (seed.start_place) return seed002_print_place_verdict(iterations);
  if (!seed_find_golden(seed.name, "final", &range))
    return seed_print_verdict(1e-4, "%zu iterations, loss %.4f to %.4f", iterations, first, last);
  double low = seed_get_value(&range, 0), high = seed_get_value(&range, 1);
  if (!(last >= low * (1 - 1e-4) && last <= high * (1 + 1e-4)))
    seed_fail("%zu iterations end with loss %.4f, PyTorch's between %.4f and %.4f", iterations,
              last, low, high);
  return seed_print_verdict(1e-4, "%zu iterations, loss %.4f to %.4f, PyTorch's range %.4f to %.4f",
                            iterations, first, last, low, high);
}

#endif
