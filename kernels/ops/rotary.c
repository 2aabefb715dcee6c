/* SPDX-License-Identifier: Apache-2.0
 *
 * Rotary position embedding (Su et al., 2021), in the form of Llama: values d and d + width/2 of a
 * head of `width` values are the two coordinates of a point. At step t the point is rotated by
 * t / base^(2 d / width), or less (clv_rotary_angle); backward rotates by the negative angle.
 */
#include "kernels/ops/op_int.h"

static clv_code rotary_shape(const clv_op_site *s, clv_shape *ret, clv_err *err) {
  int64_t heads = s->attrs->heads;
  CLV_TRY(clv_check_packed_shapes("rotary", s, 1, err));
  if (!s->attrs->packed) CLV_TRY(clv_check_rank("rotary", &s->in[0], 3, "[N, T, F]", "", err));
  int64_t n_values = s->in[0].dim[s->in[0].rank - 1];
  if (n_values % (2 * heads))
    return clv_fail(err, CLV_INVALID,
                    "rotary: %lld values do not divide into %lld heads of even width",
                    (long long)n_values, (long long)heads);
  if (s->attrs->original && s->attrs->low_freq_factor >= s->attrs->high_freq_factor)
    return clv_fail(err, CLV_INVALID,
                    "rotary: low_freq_factor is %g, not below high_freq_factor %g",
                    s->attrs->low_freq_factor, s->attrs->high_freq_factor);
  return clv_shape_of_input(s, ret, err);
}

/* Rotates n values of x, of which the first is at step 0. */
static void rotate_values(const clv_ref_kernel *k, const REAL *x, REAL *y, size_t n, double sign) {
  const clv_shape *in = &k->d.in[0];
  int64_t steps = k->d.attrs.packed ? k->d.attrs.packed : in->dim[1], heads = k->d.attrs.heads;
  int64_t width = in->dim[in->rank - 1] / heads;
  clv_rotary_angles angles = clv_rotary_angles_of(&k->d.attrs);
  for (size_t i = 0; i < n; i++) {
    int64_t d = (int64_t)i % width, half = width / 2;
    int64_t t = (int64_t)i / (width * heads) % steps;
    double angle = (double)t * clv_rotary_angle(&angles, (double)(d % half), (double)half);
    double partner = d < half ? -(double)x[i + (size_t)half] : (double)x[i - (size_t)half];
    y[i] = (REAL)(cos(angle) * x[i] + sign * sin(angle) * partner);
  }
}

/* Rotates all values of x by the angles of their steps, multiplied by `sign` (1 or -1). Each packed
 * sequence starts at step 0; rows after the last sequence become 0. */
static clv_code rotate_all(clv_kernel *base, const clv_kernel_args *a, const REAL *x, REAL *y,
                           double sign, clv_err *err) {
  const clv_ref_kernel *k = (const clv_ref_kernel *)base;
  const clv_node_desc *d = &k->d;
  if (!d->attrs.packed) return rotate_values(k, x, y, k->n_in, sign), CLV_OK;
  const int64_t *lengths = a->in[1];
  CLV_TRY(clv_check_packed(lengths, d->in[1].dim[0], d->attrs.packed, d->in[0].dim[0], err));
  size_t offset = 0;
  for (int64_t n = 0; n < d->in[1].dim[0]; n++) {
    size_t n_values = (size_t)(lengths[n] * d->in[0].dim[1]);
    rotate_values(k, x + offset, y + offset, n_values, sign);
    offset += n_values;
  }
  memset(y + offset, 0, (k->n_in - offset) * sizeof *y);
  return CLV_OK;
}

static clv_code rotary_forward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  return rotate_all(base, a, a->in[0], a->out, 1, err);
}

static clv_code rotary_backward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  return rotate_all(base, a, a->dout, a->din[0], -1, err);
}

CLV_OP_ROW(rotary) = {
    .name = "rotary",
    .doc =
        "rotary positions: in each head of [N, T, heads width] values d and d + width/2 of step t "
        "are rotated by t / base^(2 d / width) (no function of torch; transformers' "
        "apply_rotary_pos_emb); factor divides the angles, with `original` as in Llama 3.1 (its "
        "rope_type llama3); packed: t is counted in each sequence of [T, heads width]",
    .torch_module = "",
    .no_torch_module = "apply_rotary_pos_emb is a function",
    .n_in = 1,
    .max_in = 2,
    .takes_lengths = true,
    .packing = CLV_PACKS_LENGTHS,
    .attrs = {{.key = CLV_ATTR_HEADS, .is_required = true, .low = 1, .high = 65536},
              {.key = CLV_ATTR_BASE, .default_value = 10000, .low = 1, .high = 1e12},
              {.key = CLV_ATTR_FACTOR, .default_value = 1, .low = 1e-6, .high = 1e6},
              {.key = CLV_ATTR_ORIGINAL, .low = 0, .high = CLV_EXTENT_MAX},
              {.key = CLV_ATTR_LOW_FREQ_FACTOR, .default_value = 1, .low = 1e-6, .high = 1e6},
              {.key = CLV_ATTR_HIGH_FREQ_FACTOR, .default_value = 4, .low = 1e-6, .high = 1e6},
              PACKED_ATTR},
    .shape = rotary_shape,
    .forward = rotary_forward,
    .backward_input = rotary_backward,
    .saved_for_dx = CLV_SAVE_IN1,
};
