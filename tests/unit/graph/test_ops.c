/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests the op table: names, attributes, shape rules.
 */
#include "tests/unit/graph/graph_test.h"

#include <math.h>

static void every_op_is_found_by_its_name(void **state) {
  (void)state;
  for (int op = CLV_OP_INPUT + 1; op < CLV_OP_COUNT; op++) {
    if (!clv_op_def_of((clv_op)op)) continue; /* the number of an op that was removed */
    clv_op found;
    const char *name = clv_op_name((clv_op)op);
    assert_ok(clv_op_find(name, &found, err));
    assert_int_equal(found, op);
    assert_non_null(strstr(clv_op_doc((clv_op)op), "torch"));
  }
  clv_op op;
  assert_fails(clv_op_find("con2d", &op, err), CLV_NOT_FOUND, "did you mean 'conv2d'?");
  assert_fails(clv_op_find("input", &op, err), CLV_NOT_FOUND, "no op is called 'input'");
  assert_fails(clv_op_find("Linear", &op, err), CLV_NOT_FOUND, "did you mean 'linear'?");
  assert_fails(clv_op_find("transformer", &op, err), CLV_NOT_FOUND,
               "no op is called 'transformer'; `cleave-master ops` lists them");
  assert_string_equal(clv_op_name((clv_op)999), "?");
  assert_string_equal(clv_op_name((clv_op)-1), "?");
  assert_string_equal(clv_attr_name((clv_attr_key)99), "?");
}

static void attributes_are_found_by_name_or_suggested(void **state) {
  (void)state;
  clv_attr_key key;
  assert_ok(clv_op_attr_find(CLV_OP_CONV2D, "kernel", &key, err));
  assert_int_equal(key, CLV_ATTR_KERNEL);
  assert_fails(clv_op_attr_find(CLV_OP_CONV2D, "kernal", &key, err), CLV_NOT_FOUND,
               "conv2d has no attribute 'kernal', did you mean 'kernel'? It takes out, kernel, "
               "stride, pad, dilation, groups, bias");
  assert_fails(clv_op_attr_find(CLV_OP_RELU, "p", &key, err), CLV_NOT_FOUND,
               "relu has no attribute 'p'; it takes none");
  assert_fails(clv_op_attr_find((clv_op)77, "p", &key, err), CLV_NOT_FOUND, "it takes none");
}

/* Every attribute of every op has a name, a type, and a default within its range. */
static void every_attribute_has_a_type_and_a_valid_default(void **state) {
  (void)state;
  for (int op = 0; op < CLV_OP_COUNT; op++) {
    const clv_op_def *def = clv_op_def_of((clv_op)op);
    for (const clv_attr_row *row = def ? def->attrs : NULL; row && row->key; row++) {
      bool has_no_fixed_default =
          row->is_required || row->key == CLV_ATTR_SHAPE || row->key == CLV_ATTR_STRIDE;
      if (strcmp(clv_attr_name(row->key), "?") == 0 || !*clv_attr_type_name(row->key) ||
          !*clv_attr_doc(row->key))
        fail_msg("attribute key %d of %s has no row in attrs.c", (int)row->key, def->name);
      if (!(has_no_fixed_default ||
            (row->default_value >= row->low && row->default_value <= row->high)))
        fail_msg("%s.%s is outside its range by default", def->name, clv_attr_name(row->key));
    }
  }
}

/* Without a shape, layernorm normalises the last dimension and has parameters for it. */
static void layernorm_without_shape_uses_the_last_dimension(void **state) {
  clv_attr_value none[CLV_MAX_RANK];
  clv_attrs attrs;
  clv_params *params;
  int x, y;
  (void)state;
  clv_graph *g = make_graph(CLV_F32, CLV_SHAPE(4, 5, 3), &x);
  assert_ok(clv_attrs_parse(CLV_OP_LAYERNORM, NULL, 0, &attrs, err));
  assert_int_equal(clv_attrs_encode(CLV_OP_LAYERNORM, &attrs, none, CLV_MAX_RANK), 0);
  assert_ok(clv_graph_add(g, CLV_OP_LAYERNORM, &attrs, "n", 0, &x, 1, &y, err));
  assert_ok(clv_params_make(g, &params, err));
  for (int i = 0; i < 2; i++) assert_true(clv_shape_equal(&params->list[i].shape, &CLV_SHAPE(3)));
  clv_params_free(params);
  clv_graph_free(g);
}

static void omitted_attributes_have_their_defaults(void **state) {
  (void)state;
  clv_attrs a;
  clv_attr_value conv_attrs[] = {make_int_attr(CLV_ATTR_OUT, 4),
                                 {.key = CLV_ATTR_KERNEL, .n_ints = 2, .ints = {3, 5}}};
  assert_ok(clv_attrs_parse(CLV_OP_CONV2D, conv_attrs, 2, &a, err));
  assert_int_equal(a.kernel[0], 3);
  assert_int_equal(a.kernel[1], 5);
  assert_int_equal(a.stride[0], 1);
  assert_int_equal(a.pad[1], 0);
  assert_int_equal(a.groups, 1);
  assert_true(a.bias);
  clv_attr_value pool = make_int_attr(CLV_ATTR_KERNEL, 3);
  assert_ok(clv_attrs_parse(CLV_OP_MAXPOOL, &pool, 1, &a, err));
  assert_int_equal(a.stride[0], 3);
  assert_int_equal(a.stride[1], 3);
  assert_ok(clv_attrs_parse(CLV_OP_DROPOUT, NULL, 0, &a, err));
  assert_true(a.p == 0.5);
  assert_ok(clv_attrs_parse(CLV_OP_BATCHNORM, NULL, 0, &a, err));
  assert_true(a.eps == 1e-5 && a.momentum == 0.1);
  /* an integer is a valid value of the float attribute p */
  clv_attr_value integer_p = make_int_attr(CLV_ATTR_P, 1);
  assert_ok(clv_attrs_parse(CLV_OP_DROPOUT, &integer_p, 1, &a, err));
  assert_true(a.p == 1);
}

static void invalid_attribute_values_are_refused(void **state) {
  (void)state;
  clv_attrs a;
#define REFUSED(op, part, ...)                                                             \
  do {                                                                                     \
    clv_attr_value v_[] = {__VA_ARGS__};                                                   \
    assert_fails(clv_attrs_parse(op, v_, (int)CLV_COUNT(v_), &a, err), CLV_INVALID, part); \
  } while (0)
  REFUSED(CLV_OP_LINEAR, "linear needs 'out'", make_int_attr(CLV_ATTR_BIAS, 1));
  REFUSED(CLV_OP_LINEAR, "linear.out is 0, outside 1..2147483647", make_int_attr(CLV_ATTR_OUT, 0));
  REFUSED(CLV_OP_LINEAR, "linear.out is -9223372036854775808",
          make_int_attr(CLV_ATTR_OUT, INT64_MIN));
  REFUSED(CLV_OP_LINEAR, "outside", make_int_attr(CLV_ATTR_OUT, INT64_MAX));
  REFUSED(CLV_OP_LINEAR, "linear.out needs one integer", make_real_attr(CLV_ATTR_OUT, 3));
  REFUSED(CLV_OP_LINEAR, "given twice", make_int_attr(CLV_ATTR_OUT, 1),
          make_int_attr(CLV_ATTR_OUT, 1));
  REFUSED(CLV_OP_LINEAR, "has no attribute 'kernel'", make_int_attr(CLV_ATTR_KERNEL, 1));
  REFUSED(CLV_OP_LINEAR, "has no attribute '?' (key 1234567)",
          make_int_attr((clv_attr_key)1234567, 1));
  REFUSED(CLV_OP_LINEAR, "bias needs true or false",
          {.key = CLV_ATTR_BIAS, .n_ints = 2, .ints = {1, 1}});
  REFUSED(CLV_OP_MAXPOOL, "an integer or a pair",
          {.key = CLV_ATTR_KERNEL, .n_ints = 3, .ints = {1, 2, 3}});
  REFUSED(CLV_OP_DROPOUT, "dropout.p is 1.5, outside 0..1", make_real_attr(CLV_ATTR_P, 1.5));
  REFUSED(CLV_OP_DROPOUT, "dropout.p is nan", make_real_attr(CLV_ATTR_P, (double)NAN));
  REFUSED(CLV_OP_RESHAPE, "a list of 1 to 7 integers", {.key = CLV_ATTR_SHAPE, .n_ints = 8});
  static const float weights[CLV_MAX_CLASS_WEIGHTS + 1] = {1, -1, (float)NAN};
#define WEIGHTS(at, n) {.key = CLV_ATTR_CLASS_WEIGHTS, .n_numbers = (n), .numbers = weights + (at)}
  REFUSED(CLV_OP_CROSS_ENTROPY, "a list of 1 to 128 numbers", WEIGHTS(0, 129));
  REFUSED(CLV_OP_CROSS_ENTROPY, "class_weights has -1, outside", WEIGHTS(0, 2));
  REFUSED(CLV_OP_CROSS_ENTROPY, "class_weights has nan", WEIGHTS(2, 1));
  REFUSED(CLV_OP_LINEAR, "linear.out needs one integer",
          {.key = CLV_ATTR_OUT, .n_numbers = 1, .numbers = weights});
#undef WEIGHTS
  REFUSED((clv_op)999, "unknown op number 999", make_int_attr(CLV_ATTR_OUT, 1));
#undef REFUSED
}

static void encoded_attributes_parse_back_equal(void **state) {
  (void)state;
  clv_attr_value v[] = {make_int_attr(CLV_ATTR_OUT, 8),
                        {.key = CLV_ATTR_KERNEL, .n_ints = 2, .ints = {1, 7}},
                        make_int_attr(CLV_ATTR_GROUPS, 2),
                        make_int_attr(CLV_ATTR_BIAS, 0)};
  clv_attr_value encoded[CLV_MAX_RANK + 2];
  clv_attrs a, b;
  assert_ok(clv_attrs_parse(CLV_OP_CONV2D, v, 4, &a, err));
  int n = clv_attrs_encode(CLV_OP_CONV2D, &a, encoded, (int)CLV_COUNT(encoded));
  /* n counts the attributes that are required or differ from the default */
  assert_int_equal(n, 4);
  assert_ok(clv_attrs_parse(CLV_OP_CONV2D, encoded, n, &b, err));
  assert_memory_equal(&a, &b, sizeof a);
  clv_attr_value pool = make_int_attr(CLV_ATTR_KERNEL, 3);
  assert_ok(clv_attrs_parse(CLV_OP_AVGPOOL, &pool, 1, &a, err));
  assert_int_equal(clv_attrs_encode(CLV_OP_AVGPOOL, &a, encoded, 10), 1);
  a.stride[1] = 1;
  assert_int_equal(clv_attrs_encode(CLV_OP_AVGPOOL, &a, encoded, 10), 2);
  static const float weights[] = {0.5f, 2, 0};
  clv_attr_value loss_attrs[] = {
      {.key = CLV_ATTR_CLASS_WEIGHTS, .n_numbers = 3, .numbers = weights},
      make_int_attr(CLV_ATTR_IGNORE_INDEX, -7)};
  assert_ok(clv_attrs_parse(CLV_OP_CROSS_ENTROPY, loss_attrs, 2, &a, err));
  assert_int_equal(clv_attrs_encode(CLV_OP_CROSS_ENTROPY, &a, encoded, 10), 2);
  assert_ok(clv_attrs_parse(CLV_OP_CROSS_ENTROPY, encoded, 2, &b, err));
  assert_memory_equal(&a, &b, sizeof a);
  clv_attr_value p = make_real_attr(CLV_ATTR_P, 0.1);
  assert_ok(clv_attrs_parse(CLV_OP_DROPOUT, &p, 1, &a, err));
  clv_attr_value slice_attrs[] = {make_int_attr(CLV_ATTR_DIM, -1),
                                  make_int_attr(CLV_ATTR_START, -3)};
  assert_ok(clv_attrs_parse(CLV_OP_SLICE, slice_attrs, 2, &b, err));
  assert_int_equal(b.stop, CLV_TO_END);
  assert_int_equal(clv_attrs_encode(CLV_OP_SLICE, &b, encoded, 10), 2);
  n = clv_attrs_encode(CLV_OP_DROPOUT, &a, encoded, 10);
  assert_int_equal(n, 1);
  assert_true(encoded[0].is_number && encoded[0].number == 0.1);
}

/* ---- shapes of outputs and parameters -------------------------------------------------------- */

typedef struct shape_case {
  clv_op op;
  clv_attrs attrs;
  clv_shape in;
  clv_shape wanted_shape; /* expected shape of the output; rank -1: the op refuses the input */
  const char *refusal_text;
} shape_case;

#define REFUSED_SHAPE \
  { .rank = -1 }
#define WINDOW(kh, kw, sh, sw, ph, pw) \
  .kernel = {kh, kw}, .stride = {sh, sw}, .pad = {ph, pw}, .dilation = {1, 1}
#define SHAPE(...)                                                      \
  {                                                                     \
    sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t), { __VA_ARGS__ } \
  }

static const shape_case shapes[] = {
    {CLV_OP_LINEAR, {.out = 5}, SHAPE(3, 7), SHAPE(3, 5), NULL},
    {CLV_OP_LINEAR, {.out = 5}, SHAPE(3, 9, 7), SHAPE(3, 9, 5), NULL},
    {CLV_OP_LINEAR, {.out = 5}, SHAPE(64, 32, 7, 7), SHAPE(64, 32, 7, 5), NULL},
    {CLV_OP_LINEAR,
     {.out = 5},
     SHAPE(7),
     REFUSED_SHAPE,
     "linear needs rank 2 or more ([N, ..., F]), got [7]"},
    {CLV_OP_LINEAR,
     {.out = INT32_MAX},
     SHAPE(2, INT32_MAX),
     REFUSED_SHAPE,
     "weight [2147483647, 2147483647]"},
    {CLV_OP_LINEAR,
     {.out = INT32_MAX},
     SHAPE(1 << 20, 1),
     REFUSED_SHAPE,
     "larger than the limit of 1 TiB"},
    /* convolution; each side of the output is floor((side + 2 pad - kernel) / stride) + 1 */
    {CLV_OP_CONV2D,
     {.out = 4, .groups = 1, WINDOW(3, 3, 1, 1, 1, 1)},
     SHAPE(2, 3, 28, 28),
     SHAPE(2, 4, 28, 28),
     NULL},
    {CLV_OP_CONV2D,
     {.out = 4, .groups = 1, WINDOW(3, 5, 2, 3, 0, 2)},
     SHAPE(2, 3, 28, 27),
     SHAPE(2, 4, 13, 9),
     NULL},
    {CLV_OP_CONV2D,
     {.out = 6, .groups = 3, WINDOW(1, 1, 1, 1, 0, 0)},
     SHAPE(1, 9, 5, 4),
     SHAPE(1, 6, 5, 4),
     NULL},
    {CLV_OP_CONV2D,
     {.out = 6, .groups = 2, WINDOW(1, 1, 1, 1, 0, 0)},
     SHAPE(1, 9, 5, 4),
     REFUSED_SHAPE,
     "groups 2 needs channels in and out divisible by it; they are 9 and 6"},
    {CLV_OP_CONV2D,
     {.out = 4, .groups = 3, WINDOW(1, 1, 1, 1, 0, 0)},
     SHAPE(1, 9, 5, 4),
     REFUSED_SHAPE,
     "they are 9 and 4"},
    {CLV_OP_CONV2D,
     {.out = 4, .groups = 1, WINDOW(7, 7, 1, 1, 0, 0)},
     SHAPE(1, 1, 6, 9),
     REFUSED_SHAPE,
     "kernel 7 x 7 does not fit the input [1, 1, 6, 9] with pad 0 x 0"},
    {CLV_OP_CONV2D,
     {.out = 4, .groups = 1, WINDOW(3, 3, 1, 1, 0, 0)},
     SHAPE(9, 9),
     REFUSED_SHAPE,
     "conv2d needs rank 4 [N, C, H, W], got [9, 9]"},
    {CLV_OP_CONV2D,
     {.out = 4, .groups = 1, WINDOW(3, 3, 1, 1, INT32_MAX, INT32_MAX)},
     SHAPE(1, 1, 9, 9),
     REFUSED_SHAPE,
     "extent outside"},
    {CLV_OP_MAXPOOL, {WINDOW(2, 2, 2, 2, 0, 0)}, SHAPE(2, 3, 7, 5), SHAPE(2, 3, 3, 2), NULL},
    {CLV_OP_MAXPOOL, {WINDOW(3, 3, 2, 2, 1, 1)}, SHAPE(2, 3, 7, 8), SHAPE(2, 3, 4, 4), NULL},
    {CLV_OP_MAXPOOL,
     {WINDOW(3, 3, 2, 2, 2, 1)},
     SHAPE(2, 3, 7, 8),
     REFUSED_SHAPE,
     "pad 2 must be at most half of kernel 3"},
    {CLV_OP_AVGPOOL, {WINDOW(2, 3, 1, 2, 1, 1)}, SHAPE(1, 1, 5, 6), SHAPE(1, 1, 6, 3), NULL},
    {CLV_OP_GLOBALAVGPOOL, {0}, SHAPE(2, 3, 5, 6), SHAPE(2, 3, 1, 1), NULL},
    {CLV_OP_GLOBALAVGPOOL, {0}, SHAPE(2, 3), REFUSED_SHAPE, "globalavgpool needs rank 4"},
    {CLV_OP_RELU, {0}, SHAPE(7), SHAPE(7), NULL},
    {CLV_OP_SOFTMAX, {0}, SHAPE(7, 2, 3), SHAPE(7, 2, 3), NULL},
    {CLV_OP_SOFTMAX, {0}, SHAPE(7), REFUSED_SHAPE, "softmax needs rank 2 or more"},
    {CLV_OP_FLATTEN, {0}, SHAPE(2, 3, 5, 7), SHAPE(2, 105), NULL},
    {CLV_OP_FLATTEN, {0}, SHAPE(2), REFUSED_SHAPE, "flatten needs rank 2 or more"},
    {CLV_OP_RESHAPE, {.shape = SHAPE(5, -1, 3)}, SHAPE(2, 3, 5, 7), SHAPE(2, 5, 7, 3), NULL},
    {CLV_OP_RESHAPE,
     {.shape = SHAPE(5, 7, 4)},
     SHAPE(2, 3, 5, 7),
     REFUSED_SHAPE,
     "reshape to [5, 7, 4] per sample does not fit the 105 values per sample of [2, 3, 5, 7]"},
    {CLV_OP_RESHAPE, {.shape = SHAPE(-1, -1)}, SHAPE(2, 4), REFUSED_SHAPE, "does not fit"},
    {CLV_OP_RESHAPE, {.shape = SHAPE(0, 4)}, SHAPE(2, 4), REFUSED_SHAPE, "does not fit"},
    {CLV_OP_RESHAPE,
     {.shape = SHAPE(INT32_MAX, INT32_MAX, INT32_MAX)},
     SHAPE(2, 4),
     REFUSED_SHAPE,
     "does not fit"},
    {CLV_OP_BATCHNORM, {.eps = 1e-5}, SHAPE(4, 3), SHAPE(4, 3), NULL},
    {CLV_OP_BATCHNORM, {.eps = 1e-5}, SHAPE(4, 3, 2), SHAPE(4, 3, 2), NULL},
    {CLV_OP_BATCHNORM,
     {.eps = 1e-5},
     SHAPE(4, 3, 2, 2, 2),
     REFUSED_SHAPE,
     "batchnorm needs rank 2 [N, C], 3 [N, C, L] or 4"},
    {CLV_OP_UPSAMPLE_NEAREST, {.scale_factor = 1.5}, SHAPE(2, 3, 5, 4), SHAPE(2, 3, 7, 6), NULL},
    {CLV_OP_UPSAMPLE_BILINEAR, {.size = {9, 9}}, SHAPE(2, 3, 5), SHAPE(2, 3, 9), NULL},
    {CLV_OP_BATCHNORM, {.eps = -1}, SHAPE(4, 3), REFUSED_SHAPE, "batchnorm.eps is -1"},
    {CLV_OP_LSTM, {.out = 5, .layers = 2}, SHAPE(4, 3, 2), SHAPE(4, 3, 5), NULL},
    {CLV_OP_LSTM,
     {.out = 5, .layers = 1},
     SHAPE(4, 3),
     REFUSED_SHAPE,
     "lstm needs rank 3 [N, T, F]"},
    {CLV_OP_LSTM,
     {.out = 5, .layers = 9},
     SHAPE(4, 3, 2),
     REFUSED_SHAPE,
     "lstm.layers is 9, outside 1..8"},
    {CLV_OP_LSTM,
     {.out = 1 << 30, .layers = 1},
     SHAPE(1, 1, 1),
     REFUSED_SHAPE,
     "lstm.out is 1073741824"},
    {CLV_OP_MEAN, {.dim = 1}, SHAPE(4, 3, 2), SHAPE(4, 2), NULL},
    {CLV_OP_MEAN, {.dim = -1}, SHAPE(4, 3, 2), SHAPE(4, 3), NULL},
    {CLV_OP_MEAN, {.dim = 1}, SHAPE(4, 3), SHAPE(4), NULL},
    {CLV_OP_MEAN, {.dim = 0}, SHAPE(4, 3), REFUSED_SHAPE, "mean: dim 0 of [4, 3] is the batch"},
    {CLV_OP_MEAN, {.dim = -2}, SHAPE(4, 3), REFUSED_SHAPE, "mean: dim -2 of [4, 3] is the batch"},
    {CLV_OP_MEAN,
     {.dim = 2},
     SHAPE(4, 3),
     REFUSED_SHAPE,
     "mean: dim 2 is not a dimension of [4, 3]"},
    {CLV_OP_MEAN,
     {.dim = -3},
     SHAPE(4, 3),
     REFUSED_SHAPE,
     "mean: dim -3 is not a dimension of [4, 3]"},
    {CLV_OP_MEAN, {.dim = 99}, SHAPE(4, 3), REFUSED_SHAPE, "mean.dim is 99, outside -8..7"},
    {CLV_OP_SCALE, {.factor = -0.5}, SHAPE(4, 3, 2), SHAPE(4, 3, 2), NULL},
    {CLV_OP_SCALE, {.factor = INFINITY}, SHAPE(4, 3), REFUSED_SHAPE, "scale.factor is inf"},
    {CLV_OP_SCALE, {.factor = NAN}, SHAPE(4, 3), REFUSED_SHAPE, "scale.factor is nan"},
    {CLV_OP_SLICE, {.dim = 1, .start = 1, .stop = 3}, SHAPE(4, 5, 2), SHAPE(4, 2, 2), NULL},
    {CLV_OP_SLICE, {.dim = 2, .start = -3, .stop = -1}, SHAPE(4, 5, 7), SHAPE(4, 5, 2), NULL},
    {CLV_OP_SLICE, {.dim = -1, .stop = CLV_TO_END}, SHAPE(4, 5), SHAPE(4, 5), NULL},
    {CLV_OP_SLICE,
     {.dim = 1, .start = 3, .stop = 3},
     SHAPE(4, 5, 2),
     REFUSED_SHAPE,
     "slice 3..3 is empty or not within 0..5, dim 1 of [4, 5, 2]"},
    {CLV_OP_SLICE, {.dim = 1, .stop = 6}, SHAPE(4, 5), REFUSED_SHAPE, "slice 0..6 is empty or not"},
    {CLV_OP_SLICE,
     {.dim = 1, .start = -6, .stop = 2},
     SHAPE(4, 5),
     REFUSED_SHAPE,
     "slice -1..2 is"},
    {CLV_OP_SLICE, {.dim = 1, .start = 0, .stop = -5}, SHAPE(4, 5), REFUSED_SHAPE, "slice 0..0 is"},
    {CLV_OP_SLICE,
     {.dim = 0, .stop = 1},
     SHAPE(4, 5),
     REFUSED_SHAPE,
     "slice: dim 0 of [4, 5] is the batch"},
    {CLV_OP_LAYERNORM,
     {.shape = SHAPE(3, 2), .eps = 1e-5},
     SHAPE(4, 5, 3, 2),
     SHAPE(4, 5, 3, 2),
     NULL},
    {CLV_OP_LAYERNORM,
     {.shape = SHAPE(2, 3), .eps = 1e-5},
     SHAPE(4, 5, 3, 2),
     REFUSED_SHAPE,
     "layernorm over [2, 3] needs an input [N, ...] that ends in these extents, got [4, 5, 3, 2]"},
    {CLV_OP_LAYERNORM,
     {.shape = SHAPE(4, 3), .eps = 1e-5},
     SHAPE(4, 3),
     REFUSED_SHAPE,
     "layernorm over [4, 3] needs an input"},
    {CLV_OP_LAYERNORM,
     {.shape = SHAPE(3), .eps = 0},
     SHAPE(4, 3),
     REFUSED_SHAPE,
     "layernorm.eps is 0"},
    {CLV_OP_LAYERNORM, {.eps = 1e-5}, SHAPE(4, 5, 3), SHAPE(4, 5, 3), NULL},
    {CLV_OP_LAYERNORM, {.eps = 1e-5}, SHAPE(4), REFUSED_SHAPE, "layernorm needs rank 2 or more"},
    {CLV_OP_EMBEDDING,
     {.rows = 3, .out = 2, .column = -1, .minus = -1, .padding_idx = -1},
     SHAPE(4, 3),
     REFUSED_SHAPE,
     "embedding needs i64 row numbers as input 0, got f32"},
    /* the shape function checks attributes even if clv_attrs_parse has not */
    {CLV_OP_CONV2D,
     {.out = 4, WINDOW(3, 3, 1, 1, 0, 0)},
     SHAPE(1, 1, 9, 9),
     REFUSED_SHAPE,
     "conv2d.groups is 0"},
    {CLV_OP_MAXPOOL,
     {WINDOW(2, 2, 0, 1, 0, 0)},
     SHAPE(1, 1, 9, 9),
     REFUSED_SHAPE,
     "maxpool.stride is 0"},
    {CLV_OP_RESHAPE, {.shape = {.rank = 1000}}, SHAPE(1, 9), REFUSED_SHAPE, "has 1000 extents"},
};

static void output_shapes_follow_the_op_rules(void **state) {
  (void)state;
  for (size_t i = 0; i < CLV_COUNT(shapes); i++) {
    const shape_case *c = &shapes[i];
    char got[160], want[160];
    int x, y = -1;
    clv_graph *g = make_graph(CLV_F32, c->in, &x);
    if (c->wanted_shape.rank < 0) {
      assert_fails(clv_graph_add(g, c->op, &c->attrs, NULL, 0, &x, 1, &y, err) == CLV_OK, false,
                   c->refusal_text);
      assert_int_equal(g->n_nodes, 1);
    } else {
      assert_ok(clv_graph_add(g, c->op, &c->attrs, NULL, 0, &x, 1, &y, err));
      assert_string_equal(clv_shape_format(&g->nodes[y].shape, got, sizeof got),
                          clv_shape_format(&c->wanted_shape, want, sizeof want));
    }
    clv_graph_free(g);
  }
}

typedef struct pair_case {
  clv_op op;
  clv_shape a, b;
  clv_dtype dtype; /* type of the second input, b */
  const char *refusal_text;
} pair_case;

static const pair_case pairs[] = {
    {CLV_OP_ADD, SHAPE(2, 3), SHAPE(2, 3), CLV_F32, NULL},
    {CLV_OP_ADD, SHAPE(2, 3), SHAPE(2, 1), CLV_F32, NULL},
    {CLV_OP_ADD, SHAPE(2, 3), SHAPE(2, 2), CLV_F32,
     "dimensions are equal or 1; got [2, 3] and [2, 2]"},
    {CLV_OP_MUL, SHAPE(2, 3), SHAPE(1, 3), CLV_F32,
     "dimensions are equal or 1; got [2, 3] and [1, 3]"},
    {CLV_OP_ADD, SHAPE(2, 3), SHAPE(2, 3), CLV_I64, "add needs a float tensor as input 1, got i64"},
    {CLV_OP_ADD, SHAPE(2, 3), SHAPE(2, 3), CLV_F64, "different dtypes, f32 and f64"},
    {CLV_OP_CROSS_ENTROPY, SHAPE(4, 10), SHAPE(4), CLV_I64, NULL},
    {CLV_OP_CROSS_ENTROPY, SHAPE(4, 10), SHAPE(5), CLV_I64, "one class index per sample ([4] i64)"},
    {CLV_OP_CROSS_ENTROPY, SHAPE(4, 10), SHAPE(4), CLV_F32, "needs i64 class indices as input 1"},
    {CLV_OP_NLL, SHAPE(4, 10, 2), SHAPE(4), CLV_I64, "nll needs rank 2 [N, classes]"},
    {CLV_OP_NLL, SHAPE(4, 10), SHAPE(4), CLV_I64, NULL},
    {CLV_OP_MSE, SHAPE(4, 10, 2), SHAPE(4, 10, 2), CLV_F32, NULL},
    {CLV_OP_BCE, SHAPE(4, 1), SHAPE(4), CLV_F32,
     "targets shaped as the predictions [4, 1], got [4]"},
    {CLV_OP_BCE_WITH_LOGITS, SHAPE(4, 1), SHAPE(4, 1), CLV_F32, NULL},
};

static void two_input_ops_check_shapes_and_dtypes(void **state) {
  (void)state;
  for (size_t i = 0; i < CLV_COUNT(pairs); i++) {
    const pair_case *c = &pairs[i];
    clv_attrs none = {0};
    int in[2], y = -1;
    clv_graph *g = make_graph(CLV_F32, c->a, &in[0]);
    assert_ok(clv_graph_add_input(g, "other", c->dtype, &c->b, &in[1], err));
    if (c->refusal_text) {
      assert_fails(clv_graph_add(g, c->op, &none, NULL, 0, in, 2, &y, err), CLV_INVALID,
                   c->refusal_text);
    } else {
      assert_ok(clv_graph_add(g, c->op, &none, NULL, 0, in, 2, &y, err));
      assert_int_equal(g->nodes[y].shape.rank, clv_op_is_loss(c->op) ? 0 : c->a.rank);
    }
    clv_graph_free(g);
  }
}

static void hostile_input_shapes_are_refused(void **state) {
  (void)state;
  static const clv_shape bad[] = {SHAPE(INT64_MAX, INT64_MAX, INT64_MAX),
                                  SHAPE(0),
                                  SHAPE(-1, 3),
                                  SHAPE(INT64_MIN),
                                  SHAPE(INT32_MAX, INT32_MAX),
                                  {.rank = 9},
                                  {.rank = -3},
                                  {.rank = INT32_MAX}};
  clv_graph *g;
  assert_ok(clv_graph_new(&g, err));
  for (size_t i = 0; i < CLV_COUNT(bad); i++)
    assert_fails(clv_graph_add_input(g, "x", CLV_F32, &bad[i], NULL, err) == CLV_OK, false,
                 "input 'x'");
  clv_shape valid_shape = CLV_SHAPE(2, 3);
  assert_fails(clv_graph_add_input(g, "x", CLV_U8, &valid_shape, NULL, err), CLV_INVALID,
               "take f32, f64");
  assert_fails(clv_graph_add_input(g, "x", (clv_dtype)77, &valid_shape, NULL, err), CLV_INVALID,
               "input 'x'");
  assert_int_equal(g->n_nodes, 0);
  clv_graph_free(g);
}

static void embedding_shapes_types_and_limits_are_checked(void **state) {
  (void)state;
  clv_attrs a = {.rows = 9, .out = 5, .column = -1, .minus = -1, .padding_idx = -1};
  int x, y;
  clv_graph *g = make_graph(CLV_I64, CLV_SHAPE(2, 3), &x);
  clv_shape max_rank_shape = {.rank = CLV_MAX_RANK, .dim = {1, 1, 1, 1, 1, 1, 1, 1}};
  char text[160];
  assert_ok(clv_graph_add(g, CLV_OP_EMBEDDING, &a, NULL, 0, &x, 1, &y, err));
  assert_string_equal(clv_shape_format(&g->nodes[y].shape, text, sizeof text), "[2, 3, 5]");
  assert_int_equal(g->nodes[y].dtype, CLV_F32);
  g->dtype = CLV_F64;
  assert_ok(clv_graph_set_batch(g, 7, err));
  assert_int_equal(g->nodes[y].dtype, CLV_F64);
  assert_ok(clv_graph_add_input(g, "full", CLV_I64, &max_rank_shape, &x, err));
  assert_fails(
      clv_graph_add(g, CLV_OP_EMBEDDING, &a, NULL, 1, &x, 1, &y, err), CLV_INVALID,
      "embedding adds a dimension to [1, 1, 1, 1, 1, 1, 1, 1], which already has the most, 8");
  a.rows = INT32_MAX, a.out = INT32_MAX;
  x = 0;
  assert_fails(clv_graph_add(g, CLV_OP_EMBEDDING, &a, NULL, 1, &x, 1, &y, err), CLV_EXHAUSTED,
               "larger than the limit of 1 TiB");
  clv_graph_free(g);
}

static void bare_parameter_is_named_after_its_layer(void **state) {
  (void)state;
  clv_attrs a = {.rows = 9, .bare = true}, linear = {.out = 2, .bias = true};
  clv_params *params;
  int x, y;
  clv_graph *g = make_graph(CLV_F32, CLV_SHAPE(2, 3, 4), &x);
  assert_ok(clv_graph_add(g, CLV_OP_POSITIONS, &a, "embeddings.position", 0, &x, 1, &y, err));
  assert_ok(clv_graph_add(g, CLV_OP_LINEAR, &linear, "a", 1, &y, 1, &x, err));
  assert_ok(clv_params_make(g, &params, err));
  assert_string_equal(params->list[0].name, "embeddings.position");
  assert_int_equal(params->list[0].shape.dim[1], 9);
  clv_params_free(params);
  a.rows = 3;
  assert_ok(clv_graph_add(g, CLV_OP_POSITIONS, &a, "a.weight", 2, &x, 1, &y, err));
  assert_fails(clv_params_make(g, &params, err), CLV_INVALID,
               "two layers have a parameter 'a.weight': rename one of them");
  clv_graph_free(g);
}

/* Returns the standard deviation around 0. *ret_nonzero: how many of n values are not 0. */
static double compute_deviation(const float *v, size_t n, size_t *ret_nonzero) {
  double squares = 0;
  *ret_nonzero = 0;
  for (size_t i = 0; i < n; i++) {
    squares += (double)v[i] * (double)v[i];
    *ret_nonzero += v[i] != 0;
  }
  return sqrt(squares / (double)n);
}

static void init_std_sets_the_weight_deviation(void **state) {
  (void)state;
  for (int is_transposed = 0; is_transposed < 2; is_transposed++) {
    clv_attrs a = {.out = 64, .bias = true, .init_std = 0.05, .transposed = is_transposed};
    clv_params *params;
    int x, y;
    size_t n_nonzero;
    clv_graph *g = make_graph(CLV_F32, CLV_SHAPE(2, 50), &x);
    assert_ok(clv_graph_add(g, CLV_OP_LINEAR, &a, "a", 0, &x, 1, &y, err));
    assert_ok(clv_params_make(g, &params, err));
    assert_int_equal(params->list[0].shape.dim[0], is_transposed ? 50 : 64);
    char *block = calloc(1, params->total_bytes);
    clv_params_init(g, params, block);
    assert_true(fabs(compute_deviation((float *)(void *)block, 3200, &n_nonzero) - 0.05) < 0.003);
    compute_deviation((float *)(void *)(block + params->list[1].offset), 64, &n_nonzero);
    assert_int_equal(n_nonzero, 0);
    free(block);
    clv_params_free(params);
    clv_graph_free(g);
  }
}

static void slopes_of_prelu_begin_with_their_init(void **state) {
  (void)state;
  for (int is_f64 = 0; is_f64 < 2; is_f64++) {
    clv_attrs a = {.num_parameters = 3, .init = 0.125};
    clv_params *params;
    int x, y;
    clv_graph *g = make_graph(is_f64 ? CLV_F64 : CLV_F32, CLV_SHAPE(2, 3, 4), &x);
    assert_ok(clv_graph_add(g, CLV_OP_PRELU, &a, "a", 0, &x, 1, &y, err));
    assert_ok(clv_params_make(g, &params, err));
    char *block = calloc(1, params->total_bytes);
    clv_params_init(g, params, block);
    for (int i = 0; i < 3; i++)
      assert_true((is_f64 ? ((double *)(void *)block)[i] : (double)((float *)(void *)block)[i]) ==
                  0.125);
    free(block);
    clv_params_free(params);
    clv_graph_free(g);
  }
}

/* Checks concat of n inputs along dim: its shape, or the error. */
static void check_concat(int64_t dim, const clv_shape *in, int n, const char *wanted_shape,
                         const char *refusal_text) {
  clv_attrs a = {.dim = dim};
  int nodes[CLV_MAX_IN + 1] = {0}, y;
  char name[16], text[160];
  clv_graph *g;
  assert_ok(clv_graph_new(&g, err));
  for (int i = 0; i < n && i < CLV_MAX_IN; i++) {
    snprintf(name, sizeof name, "x%d", i);
    assert_ok(clv_graph_add_input(g, name, CLV_F32, &in[i], &nodes[i], err));
  }
  if (refusal_text) {
    assert_fails(clv_graph_add(g, CLV_OP_CONCAT, &a, NULL, 0, nodes, n, &y, err), CLV_INVALID,
                 refusal_text);
  } else {
    assert_ok(clv_graph_add(g, CLV_OP_CONCAT, &a, NULL, 0, nodes, n, &y, err));
    assert_string_equal(clv_shape_format(&g->nodes[y].shape, text, sizeof text), wanted_shape);
  }
  clv_graph_free(g);
}

static void concat_shapes_and_input_counts_are_checked(void **state) {
  (void)state;
  static const clv_shape in[] = {SHAPE(2, 3, 4), SHAPE(2, 1, 4), SHAPE(2, 5, 4)};
  static const clv_shape unequal_ranks[] = {SHAPE(2, 3), SHAPE(2, 3, 4)};
  static const clv_shape rows[] = {SHAPE(2, 3), SHAPE(5, 3), SHAPE(1, 3)};
  static const clv_shape nine_columns[] = {SHAPE(2, 1), SHAPE(2, 1), SHAPE(2, 1),
                                           SHAPE(2, 1), SHAPE(2, 1), SHAPE(2, 1),
                                           SHAPE(2, 1), SHAPE(2, 1), SHAPE(2, 1)};
  check_concat(1, in, 3, "[2, 9, 4]", NULL);
  check_concat(-2, in, 3, "[2, 9, 4]", NULL);
  check_concat(2, in, 2, NULL,
               "concat along dim 2 needs inputs equal in all others, got [2, 3, 4] and [2, 1, 4]");
  check_concat(1, unequal_ranks, 2, NULL, "got [2, 3] and [2, 3, 4]");
  check_concat(0, rows, 3, "[8, 3]", NULL);
  check_concat(-2, rows, 2, "[7, 3]", NULL);
  check_concat(0, in, 2, NULL,
               "concat along dim 0 needs inputs equal in all others, got [2, 3, 4] and [2, 1, 4]");
  check_concat(3, in, 2, NULL, "concat: dim 3 is not a dimension of [2, 3, 4]");
  check_concat(1, in, 1, NULL, "concat takes 2 to 8 inputs, got 1");
  check_concat(1, nine_columns, 8, "[2, 8]", NULL);
  check_concat(1, nine_columns, 9, NULL, "concat takes 2 to 8 inputs, got 9");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_op_is_found_by_its_name),
      cmocka_unit_test(attributes_are_found_by_name_or_suggested),
      cmocka_unit_test(every_attribute_has_a_type_and_a_valid_default),
      cmocka_unit_test(layernorm_without_shape_uses_the_last_dimension),
      cmocka_unit_test(omitted_attributes_have_their_defaults),
      cmocka_unit_test(invalid_attribute_values_are_refused),
      cmocka_unit_test(encoded_attributes_parse_back_equal),
      cmocka_unit_test(output_shapes_follow_the_op_rules),
      cmocka_unit_test(two_input_ops_check_shapes_and_dtypes),
      cmocka_unit_test(embedding_shapes_types_and_limits_are_checked),
      cmocka_unit_test(bare_parameter_is_named_after_its_layer),
      cmocka_unit_test(init_std_sets_the_weight_deviation),
      cmocka_unit_test(slopes_of_prelu_begin_with_their_init),
      cmocka_unit_test(concat_shapes_and_input_counts_are_checked),
      cmocka_unit_test(hostile_input_shapes_are_refused),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
