/* SPDX-License-Identifier: Apache-2.0
 *
 * The table of ops: along which axes an output depends on which inputs, and which inputs the
 * derivatives read. No row depends on weights or data. The compiler reports an op of
 * kernels/ops.def without a row, and a row without a relation or a `derivative_reads` function.
 */
#include "master/reach/reach_int.h"

static void add_axis(reach_relation *r, reach_axis axis) { r->axes[r->n++] = axis; }

static void add_same_index(reach_relation *r, int out, int in) {
  add_axis(r, (reach_axis){.index_relation = REACH_SAME, .out = out, .in = in});
}

static void add_shifted_index(reach_relation *r, int axis, int64_t offset) {
  add_axis(r, (reach_axis){.index_relation = REACH_SHIFT, .out = axis, .in = axis, .a = offset});
}

static void add_blocks(reach_relation *r, int axis, int64_t out, int64_t in) {
  add_axis(
      r, (reach_axis){.index_relation = REACH_BLOCKS, .out = axis, .in = axis, .a = out, .b = in});
}

/* Relates the axes first..end - 1 of the output to the same axes of the input. */
static void add_axes(reach_relation *r, int first, int end) {
  for (int i = first; i < end; i++) add_same_index(r, i, i);
}

/* ---- ops on each element --------------------------------------------------------------------- */

/* Relates each output element to the input element at the same index. An input with one value along
 * an axis is broadcast along that axis. */
static void relate_elementwise(const clv_op_site *s, const clv_shape *out, int input,
                               reach_relation *r) {
  const clv_shape *in = &s->in[input];
  r->is_independent = s->in_dtype[input] == CLV_I64;
  for (int i = 0; i < in->rank; i++)
    if (in->dim[i] == out->dim[i]) add_same_index(r, i, i);
}

static void relate_scaled(const clv_op_site *s, const clv_shape *out, int input,
                          reach_relation *r) {
  relate_elementwise(s, out, input, r);
  r->is_independent = s->attrs->factor == 0;
}

static int64_t get_last_extent(const clv_op_site *s) { return s->in[0].dim[s->in[0].rank - 1]; }

static int64_t count_trailing_values(const clv_op_site *s) {
  clv_shape trailing_shape = clv_trailing_dims(s);
  int64_t n = 1;
  for (int i = 0; i < trailing_shape.rank; i++) n *= trailing_shape.dim[i];
  return n;
}

static int64_t get_group_size(const clv_op_site *s) {
  int64_t n = s->in[0].dim[1] / CLV_MAX(s->attrs->groups, 1);
  for (int i = 2; i < s->in[0].rank; i++) n *= s->in[0].dim[i];
  return n;
}

/* Returns the number of values of a channel of one record. */
static int64_t count_channel_places(const clv_op_site *s) {
  int64_t n = 1;
  for (int i = 2; i < s->in[0].rank; i++) n *= s->in[0].dim[i];
  return n;
}

/* ---- ops that move elements ------------------------------------------------------------------ */

static void relate_reshaped(const clv_op_site *s, const clv_shape *out, int input,
                            reach_relation *r) {
  (void)s, (void)out, (void)input;
  r->is_reshape = true;
}

static void relate_permuted(const clv_op_site *s, const clv_shape *out, int input,
                            reach_relation *r) {
  (void)input;
  for (int i = 1; i < out->rank; i++) add_same_index(r, i, (int)s->attrs->order.dim[i - 1]);
}

/* Relates the output of an op that joins its inputs along an axis. Records that are joined along
 * the batch never meet in an element. */
static void relate_concatenated(const clv_op_site *s, const clv_shape *out, int input,
                                reach_relation *r) {
  int axis = clv_axis_index(s->attrs, out);
  int64_t concat_offset = 0;
  for (int i = 0; i < input; i++) concat_offset += s->in[i].dim[axis];
  for (int i = 1; i < out->rank; i++) {
    if (i == axis)
      add_shifted_index(r, i, -concat_offset);
    else
      add_same_index(r, i, i);
  }
}

static void relate_sliced(const clv_op_site *s, const clv_shape *out, int input,
                          reach_relation *r) {
  int axis = clv_axis_index(s->attrs, out);
  int64_t stop, start = clv_slice_start(s->attrs, s->in[0].dim[axis], &stop);
  (void)input;
  for (int i = 1; i < out->rank; i++) {
    if (i == axis)
      add_shifted_index(r, i, start);
    else
      add_same_index(r, i, i);
  }
}

static void relate_prepended(const clv_op_site *s, const clv_shape *out, int input,
                             reach_relation *r) {
  (void)s, (void)input;
  add_shifted_index(r, 1, -1);
  add_axes(r, 2, out->rank);
}

/* Relates the output of `last`, the last step of a sequence. Assumes that the sequence is as long
 * as the axis. */
static void relate_last_step(const clv_op_site *s, const clv_shape *out, int input,
                             reach_relation *r) {
  int64_t at = s->attrs->first ? 0 : s->in[0].dim[1] - 1;
  r->is_independent = input > 0;
  add_axis(r, (reach_axis){.index_relation = REACH_FIXED, .in = 1, .a = at});
  for (int i = 1; i < out->rank; i++) add_same_index(r, i, i + 1);
}

/* Relates the output of an embedding. With the attribute `minus` but no column, all positions read
 * the same row. */
static void relate_embedding(const clv_op_site *s, const clv_shape *out, int input,
                             reach_relation *r) {
  (void)input;
  r->is_independent = s->attrs->column < 0 && s->attrs->minus == 0;
  add_axes(r, 1, out->rank - 1);
  if (s->attrs->column >= 0)
    add_axis(r, (reach_axis){
                    .index_relation = REACH_FIXED, .in = s->in[0].rank - 1, .a = s->attrs->column});
}

/* ---- ops that sum elements ------------------------------------------------------------------- */

static void relate_linear(const clv_op_site *s, const clv_shape *out, int input,
                          reach_relation *r) {
  (void)s, (void)input;
  add_axes(r, 1, out->rank - 1);
}

static void add_windows(const clv_op_site *s, reach_index_relation index_relation,
                        reach_relation *r) {
  const clv_attrs *a = s->attrs;
  for (int i = 0; i < s->in[0].rank - 2; i++)
    add_axis(r, (reach_axis){.index_relation = index_relation,
                             .out = 2 + i,
                             .in = 2 + i,
                             .kernel = a->kernel[i],
                             .stride = CLV_MAX(a->stride[i], 1),
                             .pad = a->pad[i],
                             .dilation = CLV_MAX(a->dilation[i], 1)});
}

static void add_groups(const clv_op_site *s, const clv_shape *out, reach_relation *r) {
  int64_t n_groups = CLV_MAX(s->attrs->groups, 1);
  if (n_groups > 1) add_blocks(r, 1, out->dim[1] / n_groups, s->in[0].dim[1] / n_groups);
}

static void relate_windows(const clv_op_site *s, const clv_shape *out, int input,
                           reach_relation *r) {
  (void)input;
  add_groups(s, out, r);
  add_windows(s, REACH_WINDOW, r);
}

static void relate_transposed_windows(const clv_op_site *s, const clv_shape *out, int input,
                                      reach_relation *r) {
  (void)input;
  add_groups(s, out, r);
  add_windows(s, REACH_TRANSPOSED_WINDOW, r);
}

static void relate_pooling(const clv_op_site *s, const clv_shape *out, int input,
                           reach_relation *r) {
  (void)out, (void)input;
  add_same_index(r, 1, 1);
  add_windows(s, REACH_WINDOW, r);
}

static void relate_global_pooling(const clv_op_site *s, const clv_shape *out, int input,
                                  reach_relation *r) {
  (void)s, (void)out, (void)input;
  add_same_index(r, 1, 1);
}

static void add_resampled(clv_op op, const clv_op_site *s, const clv_shape *out,
                          reach_relation *r) {
  add_same_index(r, 1, 1);
  for (int i = 2; i < out->rank; i++)
    add_axis(r, (reach_axis){.index_relation = REACH_RESAMPLED,
                             .out = i,
                             .in = i,
                             .a = out->rank == 3 ? 1 : i - 2,
                             .resample = clv_resample_of(op, s->attrs, &s->in[0], out)});
}

#define DEFINE_RESAMPLED_RELATION(name, op)                                        \
  static void relate_##name(const clv_op_site *s, const clv_shape *out, int input, \
                            reach_relation *r) {                                   \
    (void)input;                                                                   \
    add_resampled(op, s, out, r);                                                  \
  }
DEFINE_RESAMPLED_RELATION(adaptive, CLV_OP_ADAPTIVE_AVGPOOL2D)
DEFINE_RESAMPLED_RELATION(nearest, CLV_OP_UPSAMPLE_NEAREST)
DEFINE_RESAMPLED_RELATION(bilinear, CLV_OP_UPSAMPLE_BILINEAR)

static void relate_mean(const clv_op_site *s, const clv_shape *out, int input, reach_relation *r) {
  int axis = clv_axis_index(s->attrs, &s->in[0]);
  (void)input;
  for (int i = 1; i < out->rank; i++) add_same_index(r, i, i < axis ? i : i + 1);
}

/* Relates the output of an op that keeps the shape and in which elements depend on others along one
 * axis. */
static void relate_along(const clv_op_site *s, const clv_shape *out, reach_axis axis_relation,
                         reach_relation *r) {
  int axis = clv_axis_index(s->attrs, &s->in[0]);
  axis_relation.out = axis_relation.in = axis;
  for (int i = 1; i < out->rank; i++)
    if (i == axis)
      add_axis(r, axis_relation);
    else
      add_same_index(r, i, i);
}

static void relate_flipped(const clv_op_site *s, const clv_shape *out, int input,
                           reach_relation *r) {
  (void)input;
  relate_along(s, out, (reach_axis){.index_relation = REACH_FLIP_OR_ROLL, .a = -1, .b = -1}, r);
}

static void relate_rolled(const clv_op_site *s, const clv_shape *out, int input,
                          reach_relation *r) {
  (void)input;
  relate_along(s, out,
               (reach_axis){.index_relation = REACH_FLIP_OR_ROLL, .a = -s->attrs->shifts, .b = 1},
               r);
}

static void relate_cumulative_sum(const clv_op_site *s, const clv_shape *out, int input,
                                  reach_relation *r) {
  (void)input;
  relate_along(s, out, (reach_axis){.index_relation = REACH_CAUSAL}, r);
}

static void relate_recurrent_steps(const clv_op_site *s, const clv_shape *out, int input,
                                   reach_relation *r) {
  (void)s, (void)out, (void)input;
  add_axis(r, (reach_axis){.index_relation = REACH_CAUSAL, .out = 1, .in = 1});
}

/* Relates a matrix product, [..., m, k] by [..., k, n], to one of its two factors. */
static void relate_product(const clv_op_site *s, const clv_shape *out, int input,
                           reach_relation *r) {
  int last_axis = out->rank - 1, shared_axis = input ? last_axis : last_axis - 1;
  (void)s;
  add_axes(r, 1, last_axis - 1);
  add_same_index(r, shared_axis, shared_axis);
}

/* Relates the output of attention: a head's output is a mean of values, with scores from queries
 * and keys. With one key the score has no effect, which also holds for the first query of causal
 * attention. */
static void relate_attention(const clv_op_site *s, const clv_shape *out, int input,
                             reach_relation *r) {
  int64_t n_heads = s->attrs->heads, n_kv_heads = s->attrs->kv_heads ? s->attrs->kv_heads : n_heads;
  int64_t head_width = out->dim[2] / n_heads;
  r->is_independent = input == 3 || (input < 2 && s->in[1].dim[1] == 1);
  if (!input)
    add_same_index(r, 1, 1);
  else if (s->attrs->causal)
    add_axis(r, (reach_axis){.index_relation = REACH_CAUSAL, .out = 1, .in = 1});
  if (input == 2)
    add_axis(r, (reach_axis){.index_relation = REACH_HEADS,
                             .out = 2,
                             .in = 2,
                             .a = head_width,
                             .b = n_heads / n_kv_heads});
  else
    add_blocks(r, 2, input ? head_width * (n_heads / n_kv_heads) : head_width, head_width);
}

static void relate_nothing(const clv_op_site *s, const clv_shape *out, int input,
                           reach_relation *r) {
  (void)s, (void)out, (void)input;
  r->is_independent = true;
}

/* ---- inputs that derivatives read ------------------------------------------------------------ */

static bool reads_nothing(int to, int of) {
  (void)to, (void)of;
  return false;
}

/* For ops whose derivative by an input reads, of all inputs, that input alone: for example its
 * sign, or the position of the maximum in a window. */
static bool reads_own(int to, int of) { return to == of; }

static bool reads_other(int to, int of) { return to != of; }

/* For the op `where`: the gradients of its inputs a and b depend on the condition, and the
 * condition has no gradient. */
static bool reads_condition(int to, int of) { return to && !of; }

/* For attention: the gradient of values depends on the scores (queries and keys); the gradients of
 * queries and keys depend on scores and values. */
static bool reads_scores(int to, int of) { return of < 2 || (of == 2 && to < 2); }

/* Relates the gradient of one factor of a matrix product, [..., m, k] by [..., k, n], to the
 * elements of the other factor, which this gradient sums. */
static void relate_product_back(const clv_op_site *s, int to, reach_relation *r) {
  int last_axis = s->in[to].rank - 1;
  add_axes(r, 1, last_axis - 1);
  if (to)
    add_same_index(r, last_axis - 1, last_axis);
  else
    add_same_index(r, last_axis, last_axis - 1);
}

static void spread_along_last(const clv_op_site *s, reach_relation *r) {
  add_axes(r, 1, s->in[0].rank - 1);
}

static void spread_along_trailing(const clv_op_site *s, reach_relation *r) {
  add_axes(r, 1, s->in[0].rank - clv_trailing_dims(s).rank);
}

static void spread_along_group(const clv_op_site *s, reach_relation *r) {
  int64_t n = s->in[0].dim[1] / CLV_MAX(s->attrs->groups, 1);
  add_blocks(r, 1, n, n);
}

static void spread_along_channel(const clv_op_site *s, reach_relation *r) {
  (void)s;
  add_same_index(r, 1, 1);
}

/* ---- the table of ops ------------------------------------------------------------------------ */

/* A row of the table: the relation, and the function that says which inputs the derivatives
 * read. */
#define OP_ROW(relation, derivative, ...) \
  { .relate_output = relation, .derivative_reads = reads_##derivative, __VA_ARGS__ }
#define ELEMENTWISE_ROW(derivative, ...) \
  OP_ROW(relate_elementwise, derivative, .channel_position = REACH_CHANNELS_EACH, __VA_ARGS__)
#define NORM_ROW(axes, ...) \
  OP_ROW(relate_elementwise, own, .relate_spread = spread_along_##axes, __VA_ARGS__)
#define CHANNELS_FIRST .channel_position = REACH_CHANNELS_FIRST
#define CHANNELS_LAST .channel_position = REACH_CHANNELS_LAST
#define IS_PRODUCT .is_product = true
#define NORMALIZED_COUNT(count) .count_normalized = count

static const reach_op op_linear = OP_ROW(relate_linear, nothing, ),
                      op_conv2d = OP_ROW(relate_windows, nothing, CHANNELS_FIRST),
                      op_conv1d = OP_ROW(relate_windows, nothing, CHANNELS_FIRST),
                      op_conv_transpose2d =
                          OP_ROW(relate_transposed_windows, nothing, CHANNELS_FIRST),
                      op_conv_transpose1d =
                          OP_ROW(relate_transposed_windows, nothing, CHANNELS_FIRST),
                      op_lstm = OP_ROW(relate_recurrent_steps, own, CHANNELS_LAST),
                      op_gru = OP_ROW(relate_recurrent_steps, own, CHANNELS_LAST),
                      op_embedding = OP_ROW(relate_embedding, nothing, ),
                      op_mean = OP_ROW(relate_mean, nothing, ),
                      op_matmul = OP_ROW(relate_product, other, IS_PRODUCT,
                                         .relate_back = relate_product_back),
                      op_attention = OP_ROW(relate_attention, scores, ),
                      op_add = OP_ROW(relate_elementwise, nothing, ),
                      op_where = OP_ROW(relate_elementwise, condition,
                                        .channel_position = REACH_CHANNELS_EACH),
                      op_mul = OP_ROW(relate_elementwise, other, IS_PRODUCT);
static const reach_op op_maxpool = OP_ROW(relate_pooling, own, CHANNELS_FIRST),
                      op_maxpool1d = OP_ROW(relate_pooling, own, CHANNELS_FIRST),
                      op_avgpool = OP_ROW(relate_pooling, nothing, CHANNELS_FIRST),
                      op_avgpool1d = OP_ROW(relate_pooling, nothing, CHANNELS_FIRST),
                      op_adaptive_avgpool1d = OP_ROW(relate_adaptive, nothing, CHANNELS_FIRST),
                      op_adaptive_avgpool2d = OP_ROW(relate_adaptive, nothing, CHANNELS_FIRST),
                      op_upsample_nearest = OP_ROW(relate_nearest, nothing, CHANNELS_FIRST),
                      op_upsample_bilinear = OP_ROW(relate_bilinear, nothing, CHANNELS_FIRST),
                      op_globalavgpool = OP_ROW(relate_global_pooling, nothing, CHANNELS_FIRST);
static const reach_op op_relu = ELEMENTWISE_ROW(own, ), op_sigmoid = ELEMENTWISE_ROW(own, ),
                      op_tanh = ELEMENTWISE_ROW(own, ), op_gelu = ELEMENTWISE_ROW(own, ),
                      op_gelu_tanh = ELEMENTWISE_ROW(own, ), op_silu = ELEMENTWISE_ROW(own, ),
                      op_leaky_relu = ELEMENTWISE_ROW(own, ), op_clamp = ELEMENTWISE_ROW(own, ),
                      op_hardtanh = ELEMENTWISE_ROW(own, ), op_hardswish = ELEMENTWISE_ROW(own, ),
                      op_hardsigmoid = ELEMENTWISE_ROW(own, ), op_elu = ELEMENTWISE_ROW(own, ),
                      op_softplus = ELEMENTWISE_ROW(own, ), op_mish = ELEMENTWISE_ROW(own, ),
                      op_sqrt = ELEMENTWISE_ROW(own, ), op_pow = ELEMENTWISE_ROW(own, ),
                      op_prelu = OP_ROW(relate_elementwise, own, CHANNELS_FIRST),
                      op_stochastic_depth = ELEMENTWISE_ROW(nothing, ),
                      op_dropout = ELEMENTWISE_ROW(nothing, ), op_wait = ELEMENTWISE_ROW(nothing, ),
                      op_scale =
                          OP_ROW(relate_scaled, nothing, .channel_position = REACH_CHANNELS_EACH);
static const reach_op op_positions = OP_ROW(relate_elementwise, nothing, ),
                      op_rotary = OP_ROW(relate_elementwise, nothing, ),
                      op_rmsnorm = NORM_ROW(last, ),
                      op_softmax = NORM_ROW(last, NORMALIZED_COUNT(get_last_extent)),
                      op_log_softmax = NORM_ROW(last, NORMALIZED_COUNT(get_last_extent)),
                      op_layernorm = NORM_ROW(trailing, NORMALIZED_COUNT(count_trailing_values)),
                      op_batchnorm = NORM_ROW(channel, CHANNELS_FIRST),
                      op_instancenorm =
                          NORM_ROW(channel, NORMALIZED_COUNT(count_channel_places), CHANNELS_FIRST),
                      op_groupnorm =
                          NORM_ROW(group, NORMALIZED_COUNT(get_group_size), CHANNELS_FIRST);
static const reach_op op_flatten = OP_ROW(relate_reshaped, nothing, ),
                      op_reshape = OP_ROW(relate_reshaped, nothing, ),
                      op_permute = OP_ROW(relate_permuted, nothing, ),
                      op_concat = OP_ROW(relate_concatenated, nothing, ),
                      op_flip = OP_ROW(relate_flipped, nothing, ),
                      op_roll = OP_ROW(relate_rolled, nothing, ),
                      op_cumsum = OP_ROW(relate_cumulative_sum, nothing, ),
                      op_var = OP_ROW(relate_mean, own, ),
                      op_slice = OP_ROW(relate_sliced, nothing, ),
                      op_prepend = OP_ROW(relate_prepended, nothing, ),
                      op_last = OP_ROW(relate_last_step, nothing, );
static const reach_op op_cross_entropy = OP_ROW(relate_nothing, own, ),
                      op_nll = OP_ROW(relate_nothing, own, ),
                      op_mse = OP_ROW(relate_nothing, own, ),
                      op_bce = OP_ROW(relate_nothing, own, ),
                      op_bce_with_logits = OP_ROW(relate_nothing, own, ),
                      op_smooth_l1 = OP_ROW(relate_nothing, own, ),
                      op_huber = OP_ROW(relate_nothing, own, ),
                      op_quantile = OP_ROW(relate_nothing, own, ),
                      op_poisson = OP_ROW(relate_nothing, own, ),
                      op_focal = OP_ROW(relate_nothing, own, );

const reach_op *reach_get_op_row(clv_op op) {
  static const reach_op *const ops[] = {
#define OP(number, NAME, name) [number] = &op_##name,
#include "kernels/ops.def"
#undef OP
  };
  return op > CLV_OP_INPUT && op < CLV_OP_COUNT ? ops[op] : NULL;
}
