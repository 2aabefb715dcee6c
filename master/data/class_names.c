/* SPDX-License-Identifier: Apache-2.0
 *
 * Gives each class name a number. The names are kept sorted, and a name is found by binary search.
 */
#include <stdlib.h>
#include <string.h>

#include "master/data/page_int.h"

void clv_name_table_done(clv_name_table *s) {
  if (!s) return;
  clv_bytes_done(&s->text);
  free(s->sorted);
  *s = (clv_name_table){0};
}

/* Returns the index of a name in s->sorted. If the table lacks the name (*ret_is_present false),
 * returns the index at which the name belongs. */
static size_t find_name_index(const clv_name_table *s, const char *name, bool *ret_is_present) {
  size_t low = 0, high = s->n;
  *ret_is_present = false;
  while (low < high && !*ret_is_present) {
    size_t middle = low + (high - low) / 2;
    int comparison = strcmp(s->text.data + s->sorted[middle].at, name);
    *ret_is_present = comparison == 0;
    if (comparison < 0)
      low = middle + 1;
    else
      high = middle;
  }
  return *ret_is_present ? high : low;
}

static clv_code reserve_entry(clv_name_table *s, clv_err *err) {
  if (s->n == CLV_MAX_CLASS_NAMES)
    return clv_fail(err, CLV_EXHAUSTED, "more than %d %s", CLV_MAX_CLASS_NAMES,
                    s->has_texts ? "different values" : "classes");
  if (s->n < s->cap) return CLV_OK;
  size_t new_cap = s->cap ? 2 * s->cap : 16;
  void *new_sorted = realloc(s->sorted, new_cap * sizeof *s->sorted);
  if (!new_sorted) return clv_fail(err, CLV_EXHAUSTED, "no memory for %zu classes", new_cap);
  s->sorted = new_sorted;
  s->cap = new_cap;
  return CLV_OK;
}

static clv_code insert_name(clv_name_table *s, const char *name, size_t len, size_t index,
                            clv_err *err) {
  if (s->is_closed)
    return clv_fail(err, CLV_INVALID, "the class '%s' is not in data.documents.labels", name);
  if (!s->has_texts) CLV_TRY(clv_check_class_name(name, len, err));
  CLV_TRY(reserve_entry(s, err));
  size_t at = s->text.len;
  clv_bytes_add(&s->text, name, len);
  clv_bytes_add(&s->text, "", 1);
  if (s->text.failed) return clv_fail(err, CLV_EXHAUSTED, "no memory for classes");
  memmove(s->sorted + index + 1, s->sorted + index, (s->n - index) * sizeof *s->sorted);
  s->sorted[index] = (struct clv_name_entry){at, (int32_t)s->n};
  s->n++;
  return CLV_OK;
}

clv_code clv_name_table_find_or_add(clv_name_table *s, const char *name, size_t len, int32_t *ret,
                                    clv_err *err) {
  bool is_present;
  size_t index = find_name_index(s, name, &is_present);
  if (!is_present) CLV_TRY(insert_name(s, name, len, index, err));
  *ret = s->sorted[index].number;
  return CLV_OK;
}

clv_code clv_name_table_list(const clv_name_table *s, char ***ret_classes, int32_t **ret_ranks,
                             clv_err *err) {
  CLV_AUTO(clv_freep) char **classes = NULL;
  int32_t *ranks;
  CLV_TRY(clv_alloc(s->n, sizeof *classes, &classes, err));
  CLV_TRY(clv_alloc(s->n, sizeof *ranks, &ranks, err));
  for (size_t i = 0; i < s->n; i++) {
    int32_t number = s->sorted[i].number;
    ranks[number] = s->is_closed ? number : (int32_t)i;
    classes[ranks[number]] = s->text.data + s->sorted[i].at;
  }
  *ret_classes = clv_steal(&classes);
  *ret_ranks = ranks;
  return CLV_OK;
}
