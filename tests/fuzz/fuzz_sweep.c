/* SPDX-License-Identifier: Apache-2.0
 *
 * Fuzzes the options of a sweep and lines of evaluations.jsonl. The texts are separated by NUL
 * bytes, and the first letter of each says what it is: g and r for --grid and --random, s for
 * --set, l for a line. Each point of a sweep must have a non-empty value for each key, and no point
 * may come twice.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "master/sweep/sweep_int.h"
#include "tests/fuzz/never.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MAX_TEXTS = 16, POINTS = 5 };

static void add_text(clv_cli_list *l, const char *text) {
  if (l->n < MAX_TEXTS) l->items[l->n++] = text;
}

static bool are_equal(const sweep_points *p, size_t a, size_t b) {
  for (size_t k = 0; k < p->n_keys; k++)
    if (strcmp(sweep_point_value(p, a, k), sweep_point_value(p, b, k)) != 0) return false;
  return true;
}

static void check_points(const sweep_points *p) {
  NEVER(!p->n_points || p->n_points > SWEEP_MAX_RUNS);
  for (size_t i = 0; i < p->n_points; i++)
    for (size_t k = 0; k < p->n_keys; k++) NEVER(!sweep_point_value(p, i, k)[0]);
  for (size_t i = 1; i < CLV_MIN(p->n_points, (size_t)MAX_TEXTS); i++)
    for (size_t k = 0; k < i; k++) NEVER(are_equal(p, i, k));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  CLV_AUTO(clv_freep) char *text = malloc(size + 1);
  CLV_AUTO(sweep_points_done) sweep_points points = {.n_keys = 0};
  clv_cli_list sets = {.n = 0}, grids = {.n = 0}, randoms = {.n = 0};
  clv_sweep_options o = {.sets = &sets, .grids = &grids, .randoms = &randoms};
  clv_err err = {0};
  if (!text) return 0;
  if (size) memcpy(text, data, size);
  text[size] = '\0';
  for (char *at = text; at < text + size; at += strlen(at) + 1) {
    sweep_validation v;
    if (*at == 'g') add_text(&grids, at + 1);
    if (*at == 'r') add_text(&randoms, at + 1);
    if (*at == 's') add_text(&sets, at + 1);
    if (*at == 'f') o.folds = 2;
    const char *target = *at == 't' ? "died" : "";
    if ((*at == 'l' || *at == 't') &&
        sweep_validation_parse("l", at + 1, strlen(at + 1), 0, "f1_macro", target, &v, &err) ==
            CLV_OK)
      NEVER(v.step > INT64_MAX || isinf(v.value));
  }
  o.n_points = randoms.n ? POINTS : 0;
  clv_code code = sweep_points_make(&o, &points, &err);
  if (code == CLV_OK) check_points(&points);
  NEVER(code != CLV_OK && !err.text[0]);
  return 0;
}
