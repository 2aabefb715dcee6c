/* SPDX-License-Identifier: Apache-2.0
 *
 * The table of ops: along which axes an output depends on which inputs, and which inputs the
 * derivatives read. It contains no weights or data. An op of kernels/ops.def without a row here
 * does not compile, nor does a row without a relation and its reads.
 */
#include "master/reach/reach_int.h"

static void put(reach_relation *r, reach_axis axis) { r->axis[r->n++] = axis; }

static void put_same(reach_relation *r, int out, int in) {
  put(r, (reach_axis){.kind = REACH_SAME, .out = out, .in = in});
}

static void put_shift(reach_relation *r, int axis, int64_t by) {
  put(r, (reach_axis){.kind = REACH_SHIFT, .out = axis, .in = axis, .a = by});
}

static void put_blocks(reach_relation *r, int axis, int64_t out, int64_t in) {
  put(r, (reach_axis){.kind = REACH_BLOCKS, .out = axis, .in = axis, .a = out, .b = in});
}

/* Relates axes first..end - 1 of the output to the same ones of the input. */
static void put_axes(reach_relation *r, int first, int end) {
  for (int i = first; i < end; i++) put_same(r, i, i);
}

/* ---- element by element ---------------------------------------------------------------------- */

/* Relates element by element. An input with one value along an axis gives it to all elements of the
 * output. */
static void each(const clv_op_site *s, const clv_shape *out, int input, reach_relation *r) {
  const clv_shape *in = &s->in[input];
  r->none = s->in_dtype[input] == CLV_I64;
  for (int i = 0; i < in->rank; i++)
    if (in->dim[i] == out->dim[i]) put_same(r, i, i);
}

static void scaled(const clv_op_site *s, const clv_shape *out, int input, reach_relation *r) {
  each(s, out, input, r);
  r->none = s->attrs->factor == 0;
}

static int64_t last_extent(const clv_op_site *s) { return s->in[0].dim[s->in[0].rank - 1]; }

static int64_t trailing(const clv_op_site *s) {
  clv_shape all = clv_trailing_dims(s);
  int64_t n = 1;
  for (int i = 0; i < all.rank; i++) n *= all.dim[i];
  return n;
}

static int64_t of_group(const clv_op_site *s) {
  int64_t n = s->in[0].dim[1] / CLV_MAX(s->attrs->groups, 1);
  for (int i = 2; i < s->in[0].rank; i++) n *= s->in[0].dim[i];
  return n;
}

/* ---- moves ----------------------------------------------------------------------------------- */

static void reshaped(const clv_op_site *s, const clv_shape *out, int input, reach_relation *r) {
  (void)s, (void)out, (void)input;
  r->reshapes = true;
}

static void permuted(const clv_op_site *s, const clv_shape *out, int input, reach_relation *r) {
  (void)input;
  for (int i = 1; i < out->rank; i++) put_same(r, i, (int)s->attrs->order.dim[i - 1]);
}

/* Records that are joined along the batch never meet: each is a path of its own. */
static void joined(const clv_op_site *s, const clv_shape *out, int input, reach_relation *r) {
  int axis = clv_axis_of(s->attrs, out);
  int64_t before = 0;
  for (int i = 0; i < input; i++) before += s->in[i].dim[axis];
  for (int i = 1; i < out->rank; i++) {
    if (i == axis)
      put_shift(r, i, -before);
    else
      put_same(r, i, i);
  }
}

static void sliced(const clv_op_site *s, const clv_shape *out, int input, reach_relation *r) {
  int axis = clv_axis_of(s->attrs, out);
  int64_t stop, start = clv_slice_start(s->attrs, s->in[0].dim[axis], &stop);
  (void)input;
  for (int i = 1; i < out->rank; i++) {
    if (i == axis)
      put_shift(r, i, start);
    else
      put_same(r, i, i);
  }
}

static void prepended(const clv_op_site *s, const clv_shape *out, int input, reach_relation *r) {
  (void)s, (void)input;
  put_shift(r, 1, -1);
  put_axes(r, 2, out->rank);
}

/* Assumes a full sequence: its last step is the last one of the axis. */
static void ended(const clv_op_site *s, const clv_shape *out, int input, reach_relation *r) {
  int64_t at = s->attrs->first ? 0 : s->in[0].dim[1] - 1;
  r->none = input > 0;
  put(r, (reach_axis){.kind = REACH_FIXED, .in = 1, .a = at});
  for (int i = 1; i < out->rank; i++) put_same(r, i, i + 1);
}

/* With `minus` but no column the row is the same for all. */
static void looked_up(const clv_op_site *s, const clv_shape *out, int input, reach_relation *r) {
  (void)input;
  r->none = s->attrs->column < 0 && s->attrs->minus == 0;
  put_axes(r, 1, out->rank - 1);
  if (s->attrs->column >= 0)
    put(r, (reach_axis){.kind = REACH_FIXED, .in = s->in[0].rank - 1, .a = s->attrs->column});
}

/* ---- sums ------------------------------------------------------------------------------------ */

static void row(const clv_op_site *s, const clv_shape *out, int input, reach_relation *r) {
  (void)s, (void)input;
  put_axes(r, 1, out->rank - 1);
}

static void put_windows(const clv_op_site *s, reach_kind kind, reach_relation *r) {
  const clv_attrs *a = s->attrs;
  for (int i = 0; i < s->in[0].rank - 2; i++)
    put(r, (reach_axis){.kind = kind,
                        .out = 2 + i,
                        .in = 2 + i,
                        .kernel = a->kernel[i],
                        .stride = CLV_MAX(a->stride[i], 1),
                        .pad = a->pad[i],
                        .dilation = CLV_MAX(a->dilation[i], 1)});
}

static void put_groups(const clv_op_site *s, const clv_shape *out, reach_relation *r) {
  int64_t groups = CLV_MAX(s->attrs->groups, 1);
  if (groups > 1) put_blocks(r, 1, out->dim[1] / groups, s->in[0].dim[1] / groups);
}

static void windows(const clv_op_site *s, const clv_shape *out, int input, reach_relation *r) {
  (void)input;
  put_groups(s, out, r);
  put_windows(s, REACH_WINDOW, r);
}

static void unwindows(const clv_op_site *s, const clv_shape *out, int input, reach_relation *r) {
  (void)input;
  put_groups(s, out, r);
  put_windows(s, REACH_TRANSPOSED_WINDOW, r);
}

static void pooled(const clv_op_site *s, const clv_shape *out, int input, reach_relation *r) {
  (void)out, (void)input;
  put_same(r, 1, 1);
  put_windows(s, REACH_WINDOW, r);
}

static void pooled_whole(const clv_op_site *s, const clv_shape *out, int input, reach_relation *r) {
  (void)s, (void)out, (void)input;
  put_same(r, 1, 1);
}

static void averaged(const clv_op_site *s, const clv_shape *out, int input, reach_relation *r) {
  int axis = clv_axis_of(s->attrs, &s->in[0]);
  (void)input;
  for (int i = 1; i < out->rank; i++) put_same(r, i, i < axis ? i : i + 1);
}

static void steps(const clv_op_site *s, const clv_shape *out, int input, reach_relation *r) {
  (void)s, (void)out, (void)input;
  put(r, (reach_axis){.kind = REACH_CAUSAL, .out = 1, .in = 1});
}

/* Product of [..., m, k] by [..., k, n]. */
static void multiplied(const clv_op_site *s, const clv_shape *out, int input, reach_relation *r) {
  int last = out->rank - 1, shared = input ? last : last - 1;
  (void)s;
  put_axes(r, 1, last - 1);
  put_same(r, shared, shared);
}

/* Attention: a head's output is a mean of values, with scores from queries and keys. With one key
 * the score has no effect, which also holds for the first query of causal attention. */
static void attended(const clv_op_site *s, const clv_shape *out, int input, reach_relation *r) {
  int64_t heads = s->attrs->heads, kv = s->attrs->kv_heads ? s->attrs->kv_heads : heads;
  int64_t width = out->dim[2] / heads;
  r->none = input == 3 || (input < 2 && s->in[1].dim[1] == 1);
  if (!input)
    put_same(r, 1, 1);
  else if (s->attrs->causal)
    put(r, (reach_axis){.kind = REACH_CAUSAL, .out = 1, .in = 1});
  if (input == 2)
    put(r, (reach_axis){.kind = REACH_HEADS, .out = 2, .in = 2, .a = width, .b = heads / kv});
  else
    put_blocks(r, 2, input ? width * (heads / kv) : width, width);
}

static void of_no_path(const clv_op_site *s, const clv_shape *out, int input, reach_relation *r) {
  (void)s, (void)out, (void)input;
  r->none = true;
}

/* ---- derivatives ----------------------------------------------------------------------------- */

static bool reads_nothing(int to, int of) {
  (void)to, (void)of;
  return false;
}

/* Reads for signs, slopes, and the position of the maximum of a window. */
static bool reads_own(int to, int of) { return to == of; }

static bool reads_other(int to, int of) { return to != of; }

/* Attention: scores weight the gradient of values; scores and values weight that of queries and
 * keys. */
static bool reads_scores(int to, int of) { return of < 2 || (of == 2 && to < 2); }

/* Product of [..., m, k] by [..., k, n]: the elements of the other factor that the gradient of an
 * element sums. */
static void multiplied_back(const clv_op_site *s, int to, reach_relation *r) {
  int last = s->in[to].rank - 1;
  put_axes(r, 1, last - 1);
  if (to)
    put_same(r, last - 1, last);
  else
    put_same(r, last, last - 1);
}

static void along_last(const clv_op_site *s, reach_relation *r) {
  put_axes(r, 1, s->in[0].rank - 1);
}

static void along_trailing(const clv_op_site *s, reach_relation *r) {
  put_axes(r, 1, s->in[0].rank - clv_trailing_dims(s).rank);
}

static void along_group(const clv_op_site *s, reach_relation *r) {
  int64_t n = s->in[0].dim[1] / CLV_MAX(s->attrs->groups, 1);
  put_blocks(r, 1, n, n);
}

static void along_channel(const clv_op_site *s, reach_relation *r) {
  (void)s;
  put_same(r, 1, 1);
}

/* ---- the table ------------------------------------------------------------------------------- */

/* A row has a relation and the inputs that the derivatives read. */
#define ROW(relation, derivative, ...) \
  { .relate = relation, .reads = reads_##derivative, __VA_ARGS__ }
#define EACH(derivative, ...) ROW(each, derivative, .channels = REACH_CHANNELS_EACH, __VA_ARGS__)
#define NORM(axes, ...) ROW(each, own, .spread = along_##axes, __VA_ARGS__)
#define FIRST .channels = REACH_CHANNELS_FIRST
#define LAST .channels = REACH_CHANNELS_LAST
#define PRODUCT .product = true
#define OF(count) .normalizes = count

static const reach_op op_linear = ROW(row, nothing, ), op_conv2d = ROW(windows, nothing, FIRST),
                      op_conv1d = ROW(windows, nothing, FIRST),
                      op_conv_transpose2d = ROW(unwindows, nothing, FIRST),
                      op_conv_transpose1d = ROW(unwindows, nothing, FIRST),
                      op_lstm = ROW(steps, own, LAST), op_embedding = ROW(looked_up, nothing, ),
                      op_mean = ROW(averaged, nothing, ),
                      op_matmul = ROW(multiplied, other, PRODUCT, .back = multiplied_back),
                      op_attention = ROW(attended, scores, ), op_add = ROW(each, nothing, ),
                      op_mul = ROW(each, other, PRODUCT);
static const reach_op op_maxpool = ROW(pooled, own, FIRST),
                      op_avgpool = ROW(pooled, nothing, FIRST),
                      op_globalavgpool = ROW(pooled_whole, nothing, FIRST);
static const reach_op op_relu = EACH(own, ), op_sigmoid = EACH(own, ), op_tanh = EACH(own, ),
                      op_gelu = EACH(own, ), op_gelu_tanh = EACH(own, ), op_silu = EACH(own, ),
                      op_leaky_relu = EACH(own, ), op_dropout = EACH(nothing, ),
                      op_wait = EACH(nothing, ),
                      op_scale = ROW(scaled, nothing, .channels = REACH_CHANNELS_EACH);
static const reach_op op_positions = ROW(each, nothing, ), op_rotary = ROW(each, nothing, ),
                      op_rmsnorm = NORM(last, ), op_softmax = NORM(last, OF(last_extent)),
                      op_log_softmax = NORM(last, OF(last_extent)),
                      op_layernorm = NORM(trailing, OF(trailing)),
                      op_batchnorm = NORM(channel, FIRST),
                      op_groupnorm = NORM(group, OF(of_group), FIRST);
static const reach_op op_flatten = ROW(reshaped, nothing, ), op_reshape = ROW(reshaped, nothing, ),
                      op_permute = ROW(permuted, nothing, ), op_concat = ROW(joined, nothing, ),
                      op_slice = ROW(sliced, nothing, ), op_prepend = ROW(prepended, nothing, ),
                      op_last = ROW(ended, nothing, );
static const reach_op op_cross_entropy = ROW(of_no_path, own, ), op_nll = ROW(of_no_path, own, ),
                      op_mse = ROW(of_no_path, own, ), op_bce = ROW(of_no_path, own, ),
                      op_bce_with_logits = ROW(of_no_path, own, );

const reach_op *reach_op_of(clv_op op) {
  static const reach_op *const ops[] = {
#define OP(number, NAME, name) [number] = &op_##name,
#include "kernels/ops.def"
#undef OP
  };
  return op > CLV_OP_INPUT && op < CLV_OP_COUNT ? ops[op] : NULL;
}
