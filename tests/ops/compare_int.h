/* SPDX-License-Identifier: Apache-2.0
 *
 * Compares the results of one backend with those of another backend, or of another run.
 */
#ifndef CLEAVE_COMPARE_INT_H
#define CLEAVE_COMPARE_INT_H

#include "tests/ops/each_op.h"
#include "tests/ops/run_int.h"

static inline bool run_case_on_drawn(const op_case *c, const run_options *o, values *s,
                                     const char **ret_impl) {
  allocate_values(s, &c->d);
  draw_case(c, s);
  return run_case(o, &c->d, s, ret_impl);
}

/* The largest distance from ref that rounding explains. A GRU amplifies rounding with each step:
 * PyTorch's gradient in f32, with weights drawn like these, is 1e-6 from that in f64 after 4 steps
 * and 1e-5 to 2e-5 after 20. */
static inline double compute_distance_limit(const clv_node_desc *d) {
  return d->op == CLV_OP_GRU ? fmax(1e-5, 2e-6 * (double)d->in[0].dim[1]) : 1e-5;
}

/* Fails unless each result of a backend is near that of ref. Returns the largest distance. */
static inline double print_distances(const op_case *c, const char *impl, const values *want,
                                     const values *got) {
  double max_distance = 0;
  for (int i = V_FIRST_RESULT; i < V_COUNT; i++) {
    double distance = compute_distance(got->v[i], want->v[i], got->n[i]);
    if (!(distance <= compute_distance_limit(&c->d)))
      fail_msg("%s (%s): %s is %.2e from ref", c->name, impl,
               write_value_name(&c->d, i, (char[40]){0}), distance);
    if (distance > max_distance) max_distance = distance;
  }
  return max_distance;
}

/* Fails unless the results of two runs have the same bits. difference_text: how the run of *b
 * differs from that of *a. */
static inline void assert_same_bits(const op_case *c, const char *impl, const char *difference_text,
                                    const values *a, const values *b) {
  for (int i = V_FIRST_RESULT; i < V_COUNT; i++)
    for (size_t j = 0; j < a->n[i]; j++)
      if (memcmp(&a->v[i][j], &b->v[i][j], sizeof(double)))
        fail_msg("%s (%s): %s[%zu] is %.9g %s, %.9g before", c->name, impl,
                 write_value_name(&c->d, i, (char[40]){0}), j, b->v[i][j], difference_text,
                 a->v[i][j]);
}

#endif
