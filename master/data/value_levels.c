/* SPDX-License-Identifier: Apache-2.0
 *
 * Finds the range and the number of different values in some records. These reveal images that use
 * only 12 of 16 bits, and values in an unexpected unit.
 */
#include <float.h>

#include "master/data/dataset_int.h"

enum { N_COUNTED_INTEGERS = 65536 /* integers from 0 to N_COUNTED_INTEGERS - 1 are counted */ };

typedef struct value_counter {
  clv_value_levels *levels;
  uint64_t seen_values[N_COUNTED_INTEGERS / 64]; /* [bit v] true: the integer v has occurred */
  /* a value occurred that is no integer from 0 to N_COUNTED_INTEGERS - 1 */
  bool has_uncounted_value;
} value_counter;

static void count_value(value_counter *c, double v) {
  c->levels->low = CLV_MIN(c->levels->low, v);
  c->levels->high = CLV_MAX(c->levels->high, v);
  if (!(v >= 0 && v < N_COUNTED_INTEGERS && v == (double)(uint32_t)v)) {
    c->has_uncounted_value = true;
    return;
  }
  c->seen_values[(uint32_t)v / 64] |= (uint64_t)1 << (uint32_t)v % 64;
}

static void count_pixel_values(value_counter *c, const clv_pixels *p) {
  size_t n = (size_t)p->width * p->height * p->channels;
  const uint16_t *u16_samples = (const uint16_t *)(const void *)p->data;
  if (p->has_16_bits) c->levels->image_bits = 16;
  for (size_t i = 0; i < n; i++)
    count_value(c, p->has_16_bits ? u16_samples[i] : 257.0 * p->data[i]);
}

static void count_values(value_counter *c, const clv_dataset *ds, size_t record) {
  const clv_tensor *t = ds->inputs;
  for (size_t i = record * ds->elements_per_record; i < (record + 1) * ds->elements_per_record; i++)
    count_value(c, clv_tensor_element_as_double(t, i));
}

static clv_code count_record(value_counter *c, const clv_dataset *ds, size_t record) {
  const clv_pixels *p;
  if (!ds->images) return count_values(c, ds, record), CLV_OK;
  CLV_TRY(clv_images_decode(ds->images, (uint32_t)record, &p, NULL));
  count_pixel_values(c, p);
  return CLV_OK;
}

static void finish_levels(value_counter *c, bool are_images) {
  clv_value_levels *f = c->levels;
  for (size_t i = 0; !c->has_uncounted_value && i < CLV_COUNT(c->seen_values); i++)
    f->n_levels += (size_t)__builtin_popcountll(c->seen_values[i]);
  if (!are_images || f->image_bits == 16) return;
  f->image_bits = 8;
  f->low /= 257;
  f->high /= 257;
}

clv_code clv_dataset_value_levels(const clv_dataset *ds, size_t max_records, clv_value_levels *ret,
                                  clv_err *err) {
  CLV_AUTO(clv_freep) value_counter *c = NULL;
  size_t n = CLV_MIN(max_records, ds->count);
  *ret = (clv_value_levels){.low = DBL_MAX, .high = -DBL_MAX};
  if (ds->named_inputs || ds->has_tokens) return CLV_OK;
  CLV_TRY(clv_alloc(1, sizeof *c, &c, err));
  c->levels = ret;
  for (size_t i = 0; i < n; i++)
    if (count_record(c, ds, i * ds->count / n) == CLV_OK) ret->n_records++;
  finish_levels(c, ds->images != NULL);
  return CLV_OK;
}
