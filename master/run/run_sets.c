/* SPDX-License-Identifier: Apache-2.0
 *
 * What check says of each set: the range of its values, and how many records each class has.
 */
#include <stdio.h>
#include <stdlib.h>

#include "master/run/run_int.h"

enum { SAMPLE = 32 /* records whose values are looked at */, SHOWN = 8 /* classes */ };

static clv_code print_levels(const char *key, const clv_dataset *ds, clv_err *err) {
  clv_data_levels f;
  char levels[48] = "", of[64] = "";
  CLV_TRY(clv_dataset_levels(ds, SAMPLE, &f, err));
  if (!f.records) return CLV_OK;
  if (f.levels) snprintf(levels, sizeof levels, ", %zu level%s", f.levels, CLV_S(f.levels));
  if (f.bits) snprintf(of, sizeof of, " of %d (%u bits)", f.bits == 16 ? 65535 : 255, f.bits);
  printf("%s: values from %.6g to %.6g%s%s, in %zu of %zu records\n", key, f.low, f.high, of,
         levels, f.records, clv_dataset_count(ds));
  return CLV_OK;
}

static size_t classes_of(const clv_dataset *ds) {
  int64_t low, high;
  size_t named = clv_dataset_classes(ds);
  if (named) return named;
  return clv_dataset_label_range(ds, &low, &high) && high < 1 << 20 ? (size_t)high + 1 : 0;
}

static void put_class(clv_bytes *out, const clv_dataset *ds, size_t class, size_t n) {
  clv_bytes_puts(out, class ? ", " : "");
  if (clv_dataset_classes(ds))
    clv_bytes_printf(out, "'%s' %zu", clv_dataset_class(ds, class), n);
  else
    clv_bytes_printf(out, "class %zu: %zu", class, n);
}

static void put_rest(clv_bytes *out, const size_t *counts, size_t n) {
  size_t least = SIZE_MAX, most = 0, none = 0;
  for (size_t i = SHOWN; i < n; i++) {
    least = CLV_MIN(least, counts[i]);
    most = CLV_MAX(most, counts[i]);
    none += !counts[i];
  }
  clv_bytes_printf(out, " and %zu more classes of %zu to %zu records", n - SHOWN, least, most);
  if (none) clv_bytes_printf(out, ", %zu of them without any", none);
}

static clv_code print_classes(const char *set, const clv_dataset *ds, const clv_subset *rows,
                              clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes line = {0};
  CLV_AUTO(clv_freep) size_t *counts = NULL;
  size_t n = classes_of(ds);
  if (!n || !rows->n || clv_dataset_class_of(ds, 0) == -1) return CLV_OK;
  CLV_TRY(clv_alloc(n, sizeof *counts, &counts, err));
  for (size_t i = 0; i < rows->n; i++) {
    int64_t class = clv_dataset_class_of(ds, rows->index[i]);
    if (class >= 0 && (uint64_t) class < n) counts[class]++;
  }
  for (size_t i = 0; i < CLV_MIN(n, (size_t)SHOWN); i++) put_class(&line, ds, i, counts[i]);
  if (n > SHOWN) put_rest(&line, counts, n);
  if (line.failed) return clv_fail(err, CLV_EXHAUSTED, "out of memory");
  clv_text_clean(line.data);
  printf("%s: %zu record%s: %s\n", set, rows->n, CLV_S(rows->n), line.data);
  return CLV_OK;
}

clv_code clv_run_print_sets(const clv_run *r, clv_err *err) {
  const clv_run_data *d = &r->data;
  CLV_TRY(print_levels("data.train", d->train, err));
  if (d->test) CLV_TRY(print_levels("data.test", d->test, err));
  CLV_TRY(print_classes("training", d->train, &d->train_rows, err));
  CLV_TRY(print_classes("validation", d->train, &d->validation_rows, err));
  return d->test ? print_classes("test", d->test, &d->test_rows, err) : CLV_OK;
}
