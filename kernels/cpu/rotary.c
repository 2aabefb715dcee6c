/* SPDX-License-Identifier: Apache-2.0
 *
 * The op rotary: rotates pairs of values by angles that depend on their position. Sines and cosines
 * are computed once, when the kernel is prepared.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cpu/cpu_int.h"

typedef struct rotary_kernel {
  cpu_kernel k;
  size_t steps, heads;
  size_t half_width;
  float *angle_table; /* cosines and sines of the angles, [steps][2][half_width] */
} rotary_kernel;

typedef struct rotary_job {
  const rotary_kernel *k;
  const float *x;
  float *y;
  float sign;
  const int64_t *lengths; /* lengths of the packed sequences; read only if they are packed */
} rotary_job;

CPU_INLINE void rotate_head_body(const float *x, const float *cosine, const float *sine,
                                 size_t half_width, float sign, float *y) {
  for (size_t d = 0; d < half_width; d++) {
    float s = sign * sine[d], a = x[d], b = x[half_width + d];
    y[d] = cosine[d] * a - s * b;
    y[half_width + d] = cosine[d] * b + s * a;
  }
}

CPU_CLONES(rotate_head,
           (const float *restrict x, const float *restrict cosine, const float *restrict sine,
            size_t half_width, float sign, float *restrict y),
           (x, cosine, sine, half_width, sign, y))

/* Rotates heads [begin, end), counted over all samples and steps. */
static void rotate_heads(void *arg, size_t begin, size_t end) {
  const rotary_job *j = arg;
  size_t half_width = j->k->half_width;
  for (size_t i = begin; i < end; i++) {
    const float *angles_of_step =
        j->k->angle_table + i / j->k->heads % j->k->steps * 2 * half_width;
    rotate_head(j->x + i * 2 * half_width, angles_of_step, angles_of_step + half_width, half_width,
                j->sign, j->y + i * 2 * half_width);
  }
}

/* Rotates packed sequences [begin, end). */
static void rotate_sequences(void *arg, size_t begin, size_t end) {
  const rotary_job *j = arg;
  size_t half_width = j->k->half_width,
         i = (size_t)clv_packed_rows_before(j->lengths, (int64_t)begin);
  i *= j->k->heads;
  for (size_t n = begin; n < end; n++)
    for (size_t t = 0; t < (size_t)j->lengths[n]; t++) {
      const float *angles_of_step = j->k->angle_table + t * 2 * half_width;
      for (size_t h = 0; h < j->k->heads; h++, i++)
        rotate_head(j->x + i * 2 * half_width, angles_of_step, angles_of_step + half_width,
                    half_width, j->sign, j->y + i * 2 * half_width);
    }
}

/* Rotates all packed sequences. Rows that belong to no sequence become 0. */
static clv_code rotate_packed(rotary_job *j, clv_err *err) {
  const cpu_kernel *k = &j->k->k;
  int64_t n = k->d.in[1].dim[0];
  CLV_TRY(clv_check_packed(j->lengths, n, k->d.attrs.packed, k->d.in[0].dim[0], err));
  size_t n_used_values = (size_t)(clv_packed_rows_before(j->lengths, n) * k->d.in[0].dim[1]);
  memset(j->y + n_used_values, 0, (k->n_in - n_used_values) * sizeof *j->y);
  clv_cpu_parallel(clv_cpu_useful_threads(k->threads, 2 * k->n_in), (size_t)n, rotate_sequences, j);
  return CLV_OK;
}

static clv_code rotate_all(clv_kernel *base, const clv_kernel_args *a, const float *x, float *y,
                           float sign, clv_err *err) {
  const rotary_kernel *k = (const rotary_kernel *)base;
  rotary_job j = {k, x, y, sign, a->in[1]};
  if (k->k.d.attrs.packed) return rotate_packed(&j, err);
  size_t heads = k->half_width ? k->k.n_in / (2 * k->half_width) : 0;
  clv_cpu_parallel(clv_cpu_useful_threads(k->k.threads, 2 * k->k.n_in), heads, rotate_heads, &j);
  return CLV_OK;
}

static clv_code rotary_forward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  return rotate_all(base, a, a->in[0], a->out, 1, err);
}

static clv_code rotary_backward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  return rotate_all(base, a, a->dout, a->din[0], -1, err);
}

static void rotary_free(clv_kernel *base) {
  free(((rotary_kernel *)base)->angle_table);
  free(base);
}

static void fill_angle_table(const rotary_kernel *k) {
  clv_rotary_angles angles = clv_rotary_angles_of(&k->k.d.attrs);
  for (size_t t = 0; t < k->steps; t++)
    for (size_t d = 0; d < k->half_width; d++) {
      double angle = (double)t * clv_rotary_angle(&angles, (double)d, (double)k->half_width);
      k->angle_table[t * 2 * k->half_width + d] = (float)cos(angle);
      k->angle_table[(t * 2 + 1) * k->half_width + d] = (float)sin(angle);
    }
}

static clv_code rotary_prepare(const clv_node_desc *d, clv_kernel **ret, clv_err *err) {
  rotary_kernel *k;
  CLV_TRY(clv_cpu_kernel_new(d, sizeof *k, 1, 1, &k, err));
  k->k.base.free = rotary_free;
  k->steps = (size_t)(d->attrs.packed ? d->attrs.packed : d->in[0].dim[1]);
  k->heads = (size_t)d->attrs.heads;
  k->half_width = (size_t)(d->in[0].dim[d->in[0].rank - 1] / d->attrs.heads / 2);
  clv_code code =
      clv_alloc(k->steps * 2 * k->half_width, sizeof *k->angle_table, &k->angle_table, err);
  if (code != CLV_OK) {
    rotary_free(&k->k.base);
    return code;
  }
  fill_angle_table(k);
  k->k.base.forward = rotary_forward;
  k->k.base.backward_input = d->need_dx[0] ? rotary_backward : NULL;
  if (d->need_dx[0] && d->attrs.packed) k->k.base.saved_flags = CLV_SAVE_IN1;
  *ret = &k->k.base;
  return CLV_OK;
}

CLV_CPU_OP(rotary, rotary_prepare)
