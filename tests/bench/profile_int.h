/* SPDX-License-Identifier: Apache-2.0
 *
 * A backend that passes every call on to the backend cpu and adds up the time of each kind of
 * kernel. A plan runs on it as on any other backend.
 */
#ifndef CLEAVE_PROFILE_INT_H
#define CLEAVE_PROFILE_INT_H

#include <stdio.h>
#include <string.h>

#include "common/model/graph/graph.h"

enum { PROFILE_ROWS = 512 };

typedef struct profile_row {
  char name[96];
  uint64_t ns, n_calls;
} profile_row;

static profile_row profile_rows[PROFILE_ROWS];
static int profile_n;

static inline void profile_reset(void) { profile_n = 0; }

static inline void profile_add_time(const char *name, uint64_t begin) {
  uint64_t ns = clv_now_ns() - begin;
  int i = 0;
  while (i < profile_n && strcmp(profile_rows[i].name, name)) i++;
  if (i == PROFILE_ROWS) return;
  if (i == profile_n) {
    profile_rows[profile_n++] = (profile_row){0};
    snprintf(profile_rows[i].name, sizeof profile_rows[i].name, "%s", name);
  }
  profile_rows[i].ns += ns;
  profile_rows[i].n_calls++;
}

static inline int profile_compare_times(const void *a, const void *b) {
  const profile_row *x = a, *y = b;
  return (x->ns < y->ns) - (x->ns > y->ns);
}

static inline void profile_print(FILE *to, unsigned steps) {
  double all = 0;
  qsort(profile_rows, (size_t)profile_n, sizeof *profile_rows, profile_compare_times);
  for (int i = 0; i < profile_n; i++) {
    const profile_row *r = &profile_rows[i];
    fprintf(to, "%-64s %9.3f ms %5.0f\n", r->name, (double)r->ns / 1e6 / steps,
            (double)r->n_calls / steps);
    all += (double)r->ns / 1e6 / steps;
  }
  fprintf(to, "%-64s %9.3f ms\n", "all", all);
}

/* ---- kernels that measure the time of other kernels ------------------------------------------ */

typedef struct profiled_kernel {
  /* first member: a kernel of the profile is cast to it; copied from `wrapped_kernel`, except for
   * the functions */
  clv_kernel profiled;
  clv_kernel *wrapped_kernel;
  char name[64];
} profiled_kernel;

#define PROFILED(function)                                                               \
  static inline clv_code profiled_##function(clv_kernel *base, const clv_kernel_args *a, \
                                             clv_err *err) {                             \
    profiled_kernel *k = (profiled_kernel *)base;                                        \
    uint64_t begin = clv_now_ns();                                                       \
    char name[96];                                                                       \
    clv_code code = k->wrapped_kernel->function(k->wrapped_kernel, a, err);              \
    snprintf(name, sizeof name, "%s %s", k->name, #function);                            \
    profile_add_time(name, begin);                                                       \
    return code;                                                                         \
  }

PROFILED(refresh)
PROFILED(forward)
PROFILED(recompute)
PROFILED(backward_input)
PROFILED(backward_weight)

static inline void profiled_free(clv_kernel *base) {
  profiled_kernel *k = (profiled_kernel *)base;
  k->wrapped_kernel->free(k->wrapped_kernel);
  free(k);
}

static inline clv_code profiled_prepare(const clv_backend *b, const clv_node_desc *d,
                                        clv_kernel **ret, clv_err *err) {
  (void)b;
  profiled_kernel *k;
  clv_kernel *inner;
  CLV_TRY(clv_backend_cpu()->prepare(clv_backend_cpu(), d, &inner, err));
  CLV_TRY(clv_alloc(1, sizeof *k, &k, err));
  k->profiled = *inner;
  k->wrapped_kernel = inner;
  k->profiled.refresh = inner->refresh ? profiled_refresh : NULL;
  k->profiled.forward = profiled_forward;
  k->profiled.recompute = inner->recompute ? profiled_recompute : NULL;
  k->profiled.backward_input = inner->backward_input ? profiled_backward_input : NULL;
  k->profiled.backward_weight = inner->backward_weight ? profiled_backward_weight : NULL;
  k->profiled.free = profiled_free;
  char window[32] = "";
  if (d->attrs.kernel[0])
    snprintf(window, sizeof window, " %lldx%lld", (long long)d->attrs.kernel[0],
             (long long)d->attrs.kernel[1]);
  snprintf(k->name, sizeof k->name, "%s%s%s%s", clv_op_name(d->op),
           d->tail & CLV_TAIL_ADD ? "+add" : "", d->tail ? "+relu" : "", window);
  *ret = &k->profiled;
  return CLV_OK;
}

static inline clv_code profiled_reorder(const clv_backend *b, const clv_shape *shape,
                                        clv_dtype dtype, const void *src, int src_block, void *dst,
                                        int dst_block, clv_err *err) {
  (void)b;
  uint64_t begin = clv_now_ns();
  clv_code code = clv_backend_cpu()->reorder(clv_backend_cpu(), shape, dtype, src, src_block, dst,
                                             dst_block, err);
  profile_add_time("reorder", begin);
  return code;
}

static inline void profiled_add(const clv_backend *b, clv_dtype dtype, void *dst, const void *src,
                                size_t n) {
  (void)b;
  uint64_t begin = clv_now_ns();
  clv_backend_cpu()->add(clv_backend_cpu(), dtype, dst, src, n);
  profile_add_time("add of gradients", begin);
}

static inline const clv_backend *profiled_backend(void) {
  static clv_backend b;
  b = *clv_backend_cpu();
  b.prepare = profiled_prepare;
  b.reorder = profiled_reorder;
  b.add = profiled_add;
  return &b;
}

#endif
