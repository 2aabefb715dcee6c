/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cpu/pointwise_int.h"

typedef struct pointwise_kernel {
  cpu_kernel k;
  cpu_map_fn *map, *back_map;
  cpu_formula_numbers numbers;
  int cost_in_loads;           /* cost of one element, in loads from memory */
  bool maps_zero_to_zero;      /* `map` returns 0 for 0 */
  bool back_maps_zero_to_zero; /* `back_map` returns 0 for a saved value of 0 and a gradient of 0 */
} pointwise_kernel;

typedef struct map_job {
  cpu_map_fn *fn;
  const float *x, *z;
  float *y;
  cpu_formula_numbers numbers;
} map_job;

static void run_map(void *arg, size_t begin, size_t end) {
  const map_job *j = arg;
  j->fn(j->x + begin, j->z ? j->z + begin : NULL, j->y + begin, end - begin, j->numbers);
}

static void map_all(const pointwise_kernel *k, map_job job) {
  int threads = clv_cpu_useful_threads(k->k.threads, k->k.n_in * (size_t)k->cost_in_loads);
  clv_cpu_parallel(threads, k->k.n_in, run_map, &job);
}

static clv_code map_forward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const pointwise_kernel *k = (const pointwise_kernel *)base;
  (void)err;
  map_all(k, (map_job){k->map, a->in[0], a->in[1], a->out, k->numbers});
  if (!k->maps_zero_to_zero) clv_cpu_zero_padding(&k->k.d.out, base->out_block, a->out);
  return CLV_OK;
}

static clv_code map_backward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const pointwise_kernel *k = (const pointwise_kernel *)base;
  const float *saved_values = base->saved_flags & CLV_SAVE_OUT ? a->out : a->in[0];
  (void)err;
  map_all(k, (map_job){k->back_map, saved_values, a->dout, a->din[0], k->numbers});
  if (!k->back_maps_zero_to_zero) clv_cpu_zero_padding(&k->k.d.in[0], base->in_block[0], a->din[0]);
  return CLV_OK;
}

/* True if `back_map` returns 0 for a saved value of 0 and a gradient of 0. */
static bool is_zero_for_zeros(cpu_map_fn *back_map, cpu_formula_numbers numbers) {
  float zero = 0, result = 0;
  if (back_map) back_map(&zero, &zero, &result, 1, numbers);
  return result == 0;
}

clv_code clv_cpu_pointwise(const clv_node_desc *d, cpu_map_fn *map, cpu_map_fn *back_map,
                           int cost_in_loads, clv_kernel **ret, clv_err *err) {
  const clv_op_def *row = clv_op_def_of(d->op);
  pointwise_kernel *k;
  int block = clv_cpu_offered_block(d);
  CLV_TRY(clv_cpu_kernel_new(d, sizeof *k, block, block, &k, err));
  k->map = map;
  k->back_map = back_map;
  clv_formula_numbers numbers = clv_op_formula_numbers(d);
  k->numbers = (cpu_formula_numbers){(float)numbers.p, (float)numbers.q};
  k->cost_in_loads = cost_in_loads;
  k->maps_zero_to_zero = row->maps_zero_to_zero;
  k->back_maps_zero_to_zero = is_zero_for_zeros(back_map, k->numbers);
  k->k.base.forward = map_forward;
  k->k.base.backward_input = d->need_dx[0] ? map_backward : NULL;
  k->k.base.saved_flags = d->need_dx[0] ? row->saved_for_dx : 0;
  k->k.base.in_place = row->in_place;
  k->k.base.din_in_place_mask = 1u << 0;
  *ret = &k->k.base;
  return CLV_OK;
}
