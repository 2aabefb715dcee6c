/* SPDX-License-Identifier: Apache-2.0
 *
 * Splits records into training and validation, and chooses the records that a limit keeps. A split
 * depends only on the seed and the labels, so a resumed run has the same one.
 *
 * A stratified draw of n records first takes one record of each class, except of classes too small
 * to give one, until n records are taken. It takes the rest in proportion to the sizes of the
 * classes, by largest remainder. A permutation from the seed decides ties, and chooses the records
 * within a class.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "master/data/dataset_int.h"

/* Streams of random numbers of this file. batches.c, image_view.c, objective.c, folds.c and
 * sampling.c use other numbers from 0xfffffff0 on. */
static const uint32_t split_rng_stream = 0xfffffff1u, class_draw_rng_stream = 0xfffffff4u;

void clv_subset_done(clv_subset *s) {
  if (!s) return;
  free(s->index);
  *s = (clv_subset){0};
}

static clv_code copy_to_subset(const uint32_t *from, size_t n, clv_subset *ret, clv_err *err) {
  uint32_t *index;
  CLV_TRY(clv_alloc(n, sizeof *index, &index, err));
  if (n) memcpy(index, from, n * sizeof *index);
  *ret = (clv_subset){index, n};
  return CLV_OK;
}

clv_code clv_subset_all(const clv_dataset *ds, clv_subset *ret, clv_err *err) {
  size_t n = clv_dataset_count(ds);
  uint32_t *index;
  CLV_TRY(clv_alloc(n, sizeof *index, &index, err));
  for (size_t i = 0; i < n; i++) index[i] = (uint32_t)i;
  *ret = (clv_subset){index, n};
  return CLV_OK;
}

static int compare_numbers(const void *a, const void *b) {
  uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
  return x < y ? -1 : x > y;
}

void clv_subset_remove(clv_subset *s, const clv_subset *removed_records) {
  size_t n = 0;
  if (!removed_records->n) return;
  for (size_t i = 0; i < s->n; i++)
    if (!bsearch(&s->index[i], removed_records->index, removed_records->n,
                 sizeof *removed_records->index, compare_numbers))
      s->index[n++] = s->index[i];
  s->n = n;
}

/* ---- classes of records ---------------------------------------------------------------------- */

static bool are_labels_0_or_1(const clv_dataset *ds) {
  const float *y = ds->labels->data;
  for (size_t i = 0; i < ds->count; i++)
    if (y[i] != 0 && y[i] != 1) return false;
  return true;
}

bool clv_dataset_has_record_classes(const clv_dataset *ds) {
  if (!ds->labels || ds->labels->n != (size_t)ds->labels->shape.dim[0]) return false;
  return ds->label_kind == CLV_LABEL_CLASS || are_labels_0_or_1(ds);
}

int64_t clv_dataset_split_class(const clv_dataset *ds, size_t record) {
  if (ds->split_target) return clv_dataset_target_class(ds, ds->split_target - 1, record);
  if (ds->label_kind == CLV_LABEL_CLASS) return ((const int64_t *)ds->labels->data)[record];
  return (int64_t)((const float *)ds->labels->data)[record];
}

bool clv_subset_is_one_class(const clv_dataset *ds, const clv_subset *s, int64_t *ret) {
  if (!s->n || !clv_dataset_has_record_classes(ds)) return false;
  *ret = clv_dataset_split_class(ds, s->index[0]);
  for (size_t i = 1; i < s->n; i++)
    if (clv_dataset_split_class(ds, s->index[i]) != *ret) return false;
  return true;
}

/* ---- strata, the classes or groups of records ------------------------------------------------ */

/* The records of one class, or of one group. */
typedef struct stratum {
  int64_t class_or_group;
  size_t n_records;
  size_t max_drawn; /* most records that may be drawn from the stratum */
  size_t n_drawn;   /* number of records to draw from the stratum */
  /* draws that the stratum would get by its size, minus the draws it has got; with fractions */
  double unassigned_share;
  /* position of the stratum in a permutation from the seed, which decides ties */
  uint32_t tie_order;
} stratum;

typedef struct strata {
  stratum *list; /* [n] sorted by class_or_group */
  size_t n;
} strata;

static void strata_done(strata *s) { free(s->list); }

static int compare_class_or_group(const void *a, const void *b) {
  int64_t x = ((const stratum *)a)->class_or_group, y = ((const stratum *)b)->class_or_group;
  return x < y ? -1 : x > y;
}

static int compare_tie_order(const void *a, const void *b) {
  return compare_numbers(&((const stratum *)a)->tie_order, &((const stratum *)b)->tie_order);
}

static int compare_unassigned_share(const void *a, const void *b) {
  const stratum *x = a, *y = b;
  if (x->unassigned_share != y->unassigned_share)
    return x->unassigned_share > y->unassigned_share ? -1 : 1;
  return compare_tie_order(a, b);
}

static int compare_n_records(const void *a, const void *b) {
  const stratum *x = a, *y = b;
  if (x->n_records != y->n_records) return x->n_records > y->n_records ? -1 : 1;
  return compare_tie_order(a, b);
}

static void sort_strata(strata *s, int order(const void *, const void *)) {
  if (s->n) qsort(s->list, s->n, sizeof *s->list, order);
}

static clv_code set_tie_orders(strata *s, uint64_t seed, clv_err *err) {
  CLV_AUTO(clv_freep) uint32_t *order = NULL;
  CLV_TRY(clv_alloc(s->n, sizeof *order, &order, err));
  clv_rng_permutation(&(clv_rng_key){.seed = seed, .layer = class_draw_rng_stream}, order, s->n);
  for (size_t i = 0; i < s->n; i++) s->list[i].tie_order = order[i];
  return CLV_OK;
}

static int compare_keys(const void *a, const void *b) {
  int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
  return x < y ? -1 : x > y;
}

/* Counts how many different numbers are in an ascending list. */
static size_t count_distinct_keys(const int64_t *keys, size_t n) {
  size_t n_distinct = 0;
  for (size_t i = 0; i < n; i++) n_distinct += !i || keys[i] != keys[i - 1];
  return n_distinct;
}

static clv_code find_strata(const clv_dataset *ds, bool by_group, uint64_t seed, strata *ret,
                            clv_err *err) {
  CLV_AUTO(clv_freep) int64_t *keys = NULL;
  CLV_TRY(clv_alloc(ds->count, sizeof *keys, &keys, err));
  for (size_t i = 0; i < ds->count; i++)
    keys[i] = by_group ? ds->groups[i] : clv_dataset_split_class(ds, i);
  if (ds->count) qsort(keys, ds->count, sizeof *keys, compare_keys);
  CLV_TRY(clv_alloc(count_distinct_keys(keys, ds->count), sizeof *ret->list, &ret->list, err));
  for (size_t i = 0; i < ds->count; i++) {
    if (!i || keys[i] != keys[i - 1]) ret->list[ret->n++].class_or_group = keys[i];
    ret->list[ret->n - 1].n_records++;
  }
  return set_tie_orders(ret, seed, err);
}

static stratum *find_stratum(const strata *s, int64_t key) {
  return bsearch(&(stratum){.class_or_group = key}, s->list, s->n, sizeof *s->list,
                 compare_class_or_group);
}

/* Draws one record of each class from which records may be drawn, the largest classes first, at
 * most n_to_draw. Returns how many of the n_to_draw records are not drawn yet. */
static size_t draw_one_of_each_class(strata *s, size_t n_to_draw) {
  sort_strata(s, compare_n_records);
  for (size_t i = 0; i < s->n && n_to_draw; i++) {
    if (!s->list[i].max_drawn) continue;
    s->list[i].n_drawn = 1;
    n_to_draw--;
  }
  return n_to_draw;
}

/* Gives each class draws in proportion to its size, rounded down. n_to_draw: all draws; n_left:
 * draws that no class has got yet. Returns how many draws are left afterwards. */
static size_t assign_proportional_draws(strata *s, size_t n_to_draw, size_t n_left,
                                        size_t n_records) {
  double sum = 0;
  for (size_t i = 0; i < s->n; i++) {
    stratum *k = &s->list[i];
    k->unassigned_share =
        fmax(0, (double)n_to_draw * (double)k->n_records / (double)n_records - (double)k->n_drawn);
    sum += k->unassigned_share;
  }
  size_t n_assigned = 0;
  for (size_t i = 0; i < s->n && sum > 0; i++) {
    stratum *k = &s->list[i];
    double share = k->unassigned_share * (double)n_left / sum;
    size_t n_full_draws =
        CLV_MIN((size_t)share, CLV_MIN(k->max_drawn - k->n_drawn, n_left - n_assigned));
    k->n_drawn += n_full_draws;
    k->unassigned_share = share - (double)n_full_draws;
    n_assigned += n_full_draws;
  }
  return n_left - n_assigned;
}

/* Gives the n_left draws that rounding and small classes have left over to the classes in turn, one
 * to each, the class with the largest unassigned_share first. */
static void assign_remaining_draws(strata *s, size_t n_left) {
  sort_strata(s, compare_unassigned_share);
  for (bool has_assigned = true; has_assigned && n_left;) {
    has_assigned = false;
    for (size_t i = 0; i < s->n && n_left; i++) {
      if (s->list[i].n_drawn == s->list[i].max_drawn) continue;
      s->list[i].n_drawn++;
      n_left--;
      has_assigned = true;
    }
  }
}

/* Decides how many records of each class are drawn, n_to_draw in all. min_undrawn: records of each
 * class to leave undrawn, as long as enough others can be drawn. */
static void apportion_draws(strata *s, size_t n_to_draw, size_t n_records, size_t min_undrawn) {
  size_t max_drawn_sum = 0;
  for (size_t i = 0; i < s->n; i++)
    max_drawn_sum += s->list[i].max_drawn =
        s->list[i].n_records - CLV_MIN(min_undrawn, s->list[i].n_records);
  for (size_t i = 0; i < s->n && max_drawn_sum < n_to_draw; i++)
    s->list[i].max_drawn = s->list[i].n_records;
  size_t n_left = draw_one_of_each_class(s, n_to_draw);
  n_left = assign_proportional_draws(s, n_to_draw, n_left, n_records);
  assign_remaining_draws(s, n_left);
  sort_strata(s, compare_class_or_group);
}

/* ---- drawing records ------------------------------------------------------------------------- */

/* Chooses complete groups, in an order from the seed. A group is taken if it brings the number of
 * records nearer to n_to_draw; at least one group is not taken. */
static void choose_groups(strata *s, size_t n_to_draw) {
  size_t n_drawn_records = 0, n_chosen_groups = 0;
  sort_strata(s, compare_tie_order);
  for (size_t i = 0; i < s->n && n_drawn_records < n_to_draw && n_chosen_groups + 1 < s->n; i++) {
    stratum *g = &s->list[i];
    if (n_drawn_records && g->n_records >= 2 * (n_to_draw - n_drawn_records)) continue;
    g->n_drawn = g->n_records;
    n_drawn_records += g->n_records;
    n_chosen_groups++;
  }
  sort_strata(s, compare_class_or_group);
}

typedef struct split_draw {
  clv_split_kind kind;
  uint64_t seed;
  size_t n_to_draw;
  size_t min_undrawn; /* records of each class to leave undrawn */
} split_draw;

/* Sets is_drawn[i] for each drawn record i. All of is_drawn [count] must be false before. */
static clv_code draw_records(const clv_dataset *ds, const split_draw *d, bool *is_drawn,
                             clv_err *err) {
  CLV_AUTO(strata_done) strata s = {0};
  CLV_AUTO(clv_freep) uint32_t *order = NULL;
  bool by_group = d->kind == CLV_SPLIT_GROUPS;
  CLV_TRY(find_strata(ds, by_group, d->seed, &s, err));
  if (by_group)
    choose_groups(&s, d->n_to_draw);
  else
    apportion_draws(&s, d->n_to_draw, ds->count, d->min_undrawn);
  CLV_TRY(clv_alloc(ds->count, sizeof *order, &order, err));
  clv_rng_permutation(&(clv_rng_key){.seed = d->seed, .layer = split_rng_stream}, order, ds->count);
  for (size_t i = 0; i < ds->count; i++) {
    stratum *drawn_stratum =
        find_stratum(&s, by_group ? ds->groups[order[i]] : clv_dataset_split_class(ds, order[i]));
    if (!drawn_stratum->n_drawn) continue;
    drawn_stratum->n_drawn--;
    is_drawn[order[i]] = true;
  }
  return CLV_OK;
}

/* Divides the records into the drawn ones and the others. Both lists are ascending. */
static clv_code divide_records(const clv_dataset *ds, const split_draw *d, clv_subset *ret_undrawn,
                               clv_subset *ret_drawn, clv_err *err) {
  CLV_AUTO(clv_freep) bool *is_drawn = NULL;
  CLV_AUTO(clv_subset_done) clv_subset undrawn = {0}, chosen = {0};
  CLV_TRY(clv_alloc(ds->count, sizeof *is_drawn, &is_drawn, err));
  CLV_TRY(draw_records(ds, d, is_drawn, err));
  CLV_TRY(clv_subset_all(ds, &undrawn, err));
  CLV_TRY(clv_subset_all(ds, &chosen, err));
  undrawn.n = chosen.n = 0;
  for (size_t i = 0; i < ds->count; i++) {
    clv_subset *to = is_drawn[i] ? &chosen : &undrawn;
    to->index[to->n++] = (uint32_t)i;
  }
  *ret_undrawn = undrawn;
  *ret_drawn = chosen;
  undrawn = chosen = (clv_subset){0};
  return CLV_OK;
}

/* Divides the records by a permutation, or by the order of the files. Versions up to 0.7 divided
 * images and texts in this way. The lists keep the order of the permutation, so that runs of these
 * versions can resume. */
static clv_code divide_shuffled(const clv_dataset *ds, const split_draw *d, clv_subset *ret_undrawn,
                                clv_subset *ret_drawn, clv_err *err) {
  CLV_AUTO(clv_subset_done) clv_subset all = {0}, undrawn = {0};
  CLV_TRY(clv_subset_all(ds, &all, err));
  if (d->kind == CLV_SPLIT_SHUFFLED)
    clv_rng_permutation(&(clv_rng_key){.seed = d->seed, .layer = split_rng_stream}, all.index,
                        all.n);
  CLV_TRY(copy_to_subset(all.index, all.n - d->n_to_draw, &undrawn, err));
  CLV_TRY(copy_to_subset(all.index + (all.n - d->n_to_draw), d->n_to_draw, ret_drawn, err));
  *ret_undrawn = undrawn;
  undrawn = (clv_subset){0};
  return CLV_OK;
}

/* True if a page has several windows, which must stay in one set even if the session names no
 * groups. */
static bool has_long_pages(const clv_dataset *ds) {
  for (size_t i = 1; ds->pages && ds->groups && i < ds->count; i++)
    if (ds->groups[i] == ds->groups[i - 1]) return true;
  return false;
}

clv_split_kind clv_dataset_split_kind(const clv_dataset *ds, clv_split_kind requested_kind) {
  if (requested_kind != CLV_SPLIT_STRATIFIED) return requested_kind;
  if (has_long_pages(ds)) return CLV_SPLIT_GROUPS;
  bool has_classes = ds->split_target || clv_dataset_has_record_classes(ds);
  return has_classes ? CLV_SPLIT_STRATIFIED : CLV_SPLIT_SHUFFLED;
}

/* Divides the records by their number in ds->groups, such as a time: validation gets the records
 * with the number `min_key` or a larger one. */
static clv_code divide_by_key(const clv_dataset *ds, int64_t min_key, clv_subset *ret_undrawn,
                              clv_subset *ret_drawn, clv_err *err) {
  CLV_AUTO(clv_subset_done) clv_subset undrawn = {0}, drawn = {0};
  CLV_TRY(clv_subset_all(ds, &undrawn, err));
  CLV_TRY(clv_subset_all(ds, &drawn, err));
  undrawn.n = drawn.n = 0;
  for (size_t i = 0; i < ds->count; i++) {
    clv_subset *to = ds->groups[i] >= min_key ? &drawn : &undrawn;
    to->index[to->n++] = (uint32_t)i;
  }
  if (!undrawn.n) return clv_fail(err, CLV_INVALID, "no record is left for training");
  if (!drawn.n) return clv_fail(err, CLV_INVALID, "no record is of validation");
  *ret_undrawn = undrawn;
  *ret_drawn = drawn;
  undrawn = drawn = (clv_subset){0};
  return CLV_OK;
}

/* Takes for validation the n latest records, and all others that have the time of the earliest of
 * these n, so that no time is in both sets. */
static clv_code divide_by_time(const clv_dataset *ds, size_t n, clv_subset *ret_undrawn,
                               clv_subset *ret_drawn, clv_err *err) {
  CLV_AUTO(clv_freep) int64_t *times = NULL;
  CLV_TRY(clv_alloc(ds->count, sizeof *times, &times, err));
  memcpy(times, ds->groups, ds->count * sizeof *times);
  qsort(times, ds->count, sizeof *times, compare_keys);
  int64_t min_key = times[ds->count - n];
  if (min_key > times[0]) return divide_by_key(ds, min_key, ret_undrawn, ret_drawn, err);
  return clv_fail(err, CLV_INVALID,
                  "the earliest record has the time of the last %zu of %zu records, and a time is "
                  "in one set alone: use a finer time or a smaller fraction",
                  n, ds->count);
}

static clv_code check_groups(const clv_dataset *ds, clv_err *err) {
  if (!ds->groups)
    return clv_fail(err, CLV_INVALID,
                    "the records have no groups: data.validation.group names them");
  for (size_t i = 1; i < ds->count; i++)
    if (ds->groups[i] != ds->groups[0]) return CLV_OK;
  return clv_fail(
      err, CLV_INVALID,
      "all %zu records are in one group, and a group is never divided: use groups of fewer "
      "records or another data.validation.by",
      ds->count);
}

clv_code clv_subset_split(const clv_dataset *ds, double fraction, clv_split_kind kind,
                          uint64_t seed, clv_subset *ret_train, clv_subset *ret_validation,
                          clv_err *err) {
  if (!(fraction >= 0 && fraction < 1))
    return clv_fail(err, CLV_INVALID, "validation fraction %g is outside 0 <= f < 1", fraction);
  split_draw d = {.kind = clv_dataset_split_kind(ds, kind),
                  .seed = seed,
                  .n_to_draw = (size_t)llround((double)ds->count * fraction),
                  .min_undrawn = 1};
  if (fraction > 0 && !d.n_to_draw) d.n_to_draw = 1;
  if (d.n_to_draw >= ds->count)
    return clv_fail(err, CLV_INVALID, "validation fraction %g takes all %zu record%s", fraction,
                    ds->count, CLV_S(ds->count));
  if (d.kind == CLV_SPLIT_COLUMN)
    return divide_by_key(ds, CLV_SET_VALIDATION, ret_train, ret_validation, err);
  if (!d.n_to_draw) d.kind = CLV_SPLIT_LAST;
  if (d.kind == CLV_SPLIT_TIME)
    return divide_by_time(ds, d.n_to_draw, ret_train, ret_validation, err);
  if (d.kind == CLV_SPLIT_GROUPS) CLV_TRY(check_groups(ds, err));
  bool is_shuffled = d.kind == CLV_SPLIT_SHUFFLED || d.kind == CLV_SPLIT_LAST;
  return (is_shuffled ? divide_shuffled : divide_records)(ds, &d, ret_train, ret_validation, err);
}

/* ---- limiting the number of records ---------------------------------------------------------- */

clv_code clv_dataset_limit(clv_dataset *ds, size_t limit, clv_split_kind kind, uint64_t seed,
                           clv_err *err) {
  CLV_AUTO(clv_subset_done) clv_subset undrawn = {0}, chosen = {0};
  split_draw d = {.kind = clv_dataset_split_kind(ds, kind), .seed = seed, .n_to_draw = limit};
  if (!limit || limit >= ds->count) return CLV_OK;
  if (d.kind != CLV_SPLIT_STRATIFIED) d.kind = CLV_SPLIT_SHUFFLED;
  bool is_shuffled = d.kind == CLV_SPLIT_SHUFFLED;
  CLV_TRY((is_shuffled ? divide_shuffled : divide_records)(ds, &d, &undrawn, &chosen, err));
  if (is_shuffled) qsort(chosen.index, chosen.n, sizeof *chosen.index, compare_numbers);
  return clv_dataset_keep_records(ds, &chosen, err);
}

clv_code clv_dataset_keep_sets(clv_dataset *ds, unsigned set_bits, clv_err *err) {
  CLV_AUTO(clv_subset_done) clv_subset kept_records = {0};
  size_t n_before = ds->count;
  CLV_TRY(clv_subset_all(ds, &kept_records, err));
  kept_records.n = 0;
  for (size_t i = 0; i < n_before; i++)
    if (set_bits >> ds->groups[i] & 1) kept_records.index[kept_records.n++] = (uint32_t)i;
  if (!kept_records.n)
    return clv_fail(err, CLV_INVALID,
                    "%.200s: none of its %zu records is of %s: see data.validation.column, and the "
                    "values in data.validation",
                    ds->inputs_path, n_before,
                    set_bits == 1u << CLV_SET_TEST ? "the test set" : "training or validation");
  if (kept_records.n < n_before) CLV_TRY(clv_dataset_keep_records(ds, &kept_records, err));
  ds->n_records_of_other_sets = n_before - kept_records.n;
  return CLV_OK;
}
