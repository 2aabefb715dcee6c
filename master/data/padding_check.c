/* SPDX-License-Identifier: Apache-2.0
 *
 * Checks that tokens and labels of records mean the same to Cleave and to transformers.
 * transformers recognises pads by their token id, and shifts the labels of a causal head by one
 * position.
 *
 */
#include <string.h>

#include "master/data/dataset_int.h"

/* The tokens of all records, and the length of each record. */
typedef struct clv_token_input {
  const clv_tensor *ids, *lengths; /* lengths NULL: all positions of a record are tokens */
  size_t row_len;                  /* positions of a record */
} clv_token_input;

static const clv_tensor *find_input(const clv_dataset *ds, const char *name) {
  for (size_t k = 0; k < ds->n_named_inputs; k++)
    if (strcmp(ds->named_inputs[k].name, name) == 0) return ds->named_inputs[k].data;
  return NULL;
}

/* Finds the tokens of the records. False: the records are not rows of integers. */
static bool find_token_input(const clv_dataset *ds, clv_token_input *ret) {
  *ret = (clv_token_input){.ids = ds->inputs};
  if (ds->named_inputs) {
    ret->ids = find_input(ds, "ids");
    ret->lengths = find_input(ds, "lengths");
    if (!ret->ids) ret->ids = ds->named_inputs[0].data;
  }
  const clv_tensor *ids = ret->ids;
  if (!ids || ids->shape.rank != 2 || (ids->dtype != CLV_I32 && ids->dtype != CLV_I64))
    return false;
  ret->row_len = (size_t)ids->shape.dim[1];
  return true;
}

static size_t get_length(const clv_token_input *t, size_t record) {
  if (!t->lengths) return t->row_len;
  int64_t n = clv_tensor_element_as_integer(t->lengths, record);
  return n < 0 ? 0 : CLV_MIN((size_t)n, t->row_len);
}

static bool is_pad(const clv_token_input *t, size_t record, size_t position, int64_t pad) {
  return clv_tensor_element_as_integer(t->ids, record * t->row_len + position) == pad;
}

/* Returns the position of the first pad within the length; if no pad is there, the length. */
static size_t find_first_pad(const clv_token_input *t, size_t record, int64_t pad) {
  size_t n = get_length(t, record), i = 0;
  while (i < n && !is_pad(t, record, i, pad)) i++;
  return i;
}

/* Returns the last position whose token is not the pad; 0 if all are pads. */
static size_t find_last_non_pad(const clv_token_input *t, size_t record, int64_t pad) {
  size_t i = t->row_len;
  while (i > 1 && is_pad(t, record, i - 1, pad)) i--;
  return i ? i - 1 : 0;
}

/* True if the token that transformers scores is the last one within the length. transformers scores
 * the last token that is not a pad, or position 0 if all are pads. */
static bool is_scored_token_last(const clv_token_input *t, size_t record, int64_t pad,
                                 clv_pad_fault *ret) {
  size_t length = get_length(t, record), position = find_last_non_pad(t, record, pad);
  bool is_empty = position == 0 && is_pad(t, record, 0, pad);
  *ret = (clv_pad_fault){record, (int64_t)position, (int64_t)length, is_empty || !length};
  return position + 1 == length;
}

static bool has_no_pad_inside(const clv_token_input *t, size_t record, int64_t pad,
                              clv_pad_fault *ret) {
  size_t length = get_length(t, record), position = find_first_pad(t, record, pad);
  *ret = (clv_pad_fault){record, (int64_t)position, (int64_t)length, false};
  return position == length;
}

bool clv_dataset_has_valid_pads(const clv_dataset *ds, clv_pad_rule rule, int64_t pad,
                                clv_pad_fault *ret) {
  clv_token_input t;
  if (pad == CLV_NO_PAD || !find_token_input(ds, &t)) return true;
  for (size_t r = 0; r < ds->count; r++)
    if (!(rule == CLV_PADS_NOT_INSIDE ? has_no_pad_inside : is_scored_token_last)(&t, r, pad, ret))
      return false;
  return true;
}

/* Counts the labels at positions whose token differs from the next token, because only such labels
 * show whether labels are shifted. */
static void compare_labels(const clv_dataset *ds, const clv_token_input *t, size_t record,
                           int64_t ignored_label, clv_label_shift *m) {
  for (size_t i = 0; i + 1 < t->row_len; i++) {
    size_t at = record * t->row_len + i;
    int64_t label = clv_tensor_element_as_integer(ds->labels, at),
            same_position_token = clv_tensor_element_as_integer(t->ids, at);
    if (label == ignored_label ||
        same_position_token == clv_tensor_element_as_integer(t->ids, at + 1))
      continue;
    m->n_comparable++;
    m->n_same_position += label == same_position_token;
  }
}

clv_label_shift clv_dataset_label_shift(const clv_dataset *ds, int64_t ignored_label) {
  clv_label_shift m = {0};
  clv_token_input t;
  if (!ds->labels || ds->objective != CLV_OBJECTIVE_LABELS || !find_token_input(ds, &t)) return m;
  const clv_tensor *y = ds->labels;
  if (y->shape.rank != 2 || (size_t)y->shape.dim[1] != t.row_len || y->dtype == CLV_F32) return m;
  for (size_t r = 0; r < ds->count; r++) compare_labels(ds, &t, r, ignored_label, &m);
  return m;
}

bool clv_labels_are_own_tokens(const clv_label_shift *m) {
  size_t n_others = m->n_comparable - m->n_same_position;
  return m->n_same_position &&
         (n_others <= m->n_comparable / 10 || (n_others == 1 && m->n_comparable >= 4));
}
