/* SPDX-License-Identifier: Apache-2.0
 *
 * Functions that the bench programs share. Each program is one side of a comparison and is driven
 * by bench.py: it reads one command per line from standard input, runs one round, and answers with
 * one line of JSON. So bench.py alone decides which side runs when.
 */
#ifndef CLEAVE_BENCH_INT_H
#define CLEAVE_BENCH_INT_H

#include <stdio.h>
#include <stdlib.h>

#include "common/base/base.h"

static inline void must(clv_code code, const clv_err *err) {
  if (code == CLV_OK) return;
  fprintf(stderr, "bench: %s: %s\n", err->where, err->text);
  exit(1);
}

static inline _Noreturn void exit_with_message(const char *text) {
  fprintf(stderr, "bench: %s\n", text);
  exit(1);
}

static inline double *allocate_samples(unsigned n) {
  double *list;
  clv_err err;
  must(clv_alloc(n, sizeof *list, &list, &err), &err);
  return list;
}

static inline void print_list(const double *list, unsigned n) {
  printf("[");
  for (unsigned i = 0; i < n; i++) printf("%s%.9g", i ? "," : "", list[i]);
  printf("]\n");
  fflush(stdout);
}

#endif
