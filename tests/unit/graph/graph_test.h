/* SPDX-License-Identifier: Apache-2.0
 *
 * graph_test: short functions that add nodes to a graph, and graphs that several tests use.
 */
#ifndef CLEAVE_GRAPH_TEST_H
#define CLEAVE_GRAPH_TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
/* cmocka.h requires the headers above */
#include <cmocka.h>

#include "common/model/graph/graph.h"

#define assert_ok(call)                                 \
  do {                                                  \
    clv_err ok_err_ = {0};                              \
    clv_err *err = &ok_err_;                            \
    (void)err;                                          \
    if ((call) != CLV_OK) fail_msg("%s", ok_err_.text); \
  } while (0)

/* Asserts that the call fails with `code_` and a text that contains `part`. */
#define assert_fails(call, code_, part)                                                     \
  do {                                                                                      \
    clv_err fails_err_ = {0};                                                               \
    clv_err *err = &fails_err_;                                                             \
    assert_int_equal((call), code_);                                                        \
    if (!strstr(fails_err_.text, part)) fail_msg("'%s' lacks '%s'", fails_err_.text, part); \
  } while (0)

static inline clv_attr_value make_int_attr(clv_attr_key key, int64_t v) {
  return (clv_attr_value){.key = key, .n_ints = 1, .ints = {v}};
}

static inline clv_attr_value make_real_attr(clv_attr_key key, double v) {
  return (clv_attr_value){.key = key, .is_number = true, .number = v};
}

/* Adds a node with input `a`, and with input `b` if b >= 0. values: its n attributes. */
static inline int add_node(clv_graph *g, clv_op op, uint32_t layer, int a, int b,
                           const clv_attr_value *values, int n) {
  clv_attrs attrs;
  int node = -1, in[2] = {a, b};
  assert_ok(clv_attrs_parse(op, values, n, &attrs, err));
  assert_ok(clv_graph_add(g, op, &attrs, NULL, layer, in, b < 0 ? 1 : 2, &node, err));
  return node;
}

static inline int add_plain(clv_graph *g, clv_op op, uint32_t layer, int a) {
  return add_node(g, op, layer, a, -1, NULL, 0);
}

static inline int add_conv(clv_graph *g, uint32_t layer, int a, int64_t out, int64_t kernel,
                           int64_t pad) {
  clv_attr_value v[] = {make_int_attr(CLV_ATTR_OUT, out), make_int_attr(CLV_ATTR_KERNEL, kernel),
                        make_int_attr(CLV_ATTR_PAD, pad)};
  return add_node(g, CLV_OP_CONV2D, layer, a, -1, v, 3);
}

static inline int add_linear(clv_graph *g, uint32_t layer, int a, int64_t out) {
  clv_attr_value v = make_int_attr(CLV_ATTR_OUT, out);
  return add_node(g, CLV_OP_LINEAR, layer, a, -1, &v, 1);
}

static inline int add_pool(clv_graph *g, clv_op op, uint32_t layer, int a, int64_t kernel) {
  clv_attr_value v = make_int_attr(CLV_ATTR_KERNEL, kernel);
  return add_node(g, op, layer, a, -1, &v, 1);
}

static inline int add_dropout(clv_graph *g, uint32_t layer, int a, double p) {
  clv_attr_value v = make_real_attr(CLV_ATTR_P, p);
  return add_node(g, CLV_OP_DROPOUT, layer, a, -1, &v, 1);
}

static inline clv_graph *make_graph(clv_dtype dtype, clv_shape shape, int *ret_input) {
  clv_graph *g = NULL;
  assert_ok(clv_graph_new(&g, err));
  assert_ok(clv_graph_add_input(g, "input", dtype, &shape, ret_input, err));
  return g;
}

/* Returns a graph of layers 0 to 10 in a chain, over an image of odd size. The chain has every op
 * that a chain can contain. */
static inline clv_graph *make_chain_graph(clv_dtype dtype, int64_t batch) {
  int x;
  clv_graph *g = make_graph(dtype, CLV_SHAPE(batch, 3, 9, 7), &x);
  x = add_conv(g, 0, x, 10, 3, 1);
  x = add_plain(g, CLV_OP_BATCHNORM, 1, x);
  x = add_plain(g, CLV_OP_RELU, 2, x);
  x = add_pool(g, CLV_OP_MAXPOOL, 3, x, 2);
  x = add_conv(g, 4, x, 18, 3, 1);
  x = add_plain(g, CLV_OP_GELU, 5, x);
  x = add_dropout(g, 6, x, 0.25);
  x = add_plain(g, CLV_OP_FLATTEN, 7, x);
  x = add_linear(g, 8, x, 13);
  x = add_plain(g, CLV_OP_TANH, 9, x);
  x = add_linear(g, 10, x, 5);
  return g;
}

enum { CHAIN_LAYERS = 11 };

static inline int add_conv_and_batchnorm(clv_graph *g, uint32_t layer, int x, int64_t out,
                                         int64_t kernel) {
  x = add_conv(g, layer, x, out, kernel, kernel / 2);
  return add_plain(g, CLV_OP_BATCHNORM, layer + 1, x);
}

/* Returns two residual blocks as in ResNet. The shortcut of the first block is a convolution, that
 * of the second is its input. Batchnorm is the left operand of the first addition, and the right
 * operand of the second. */
static inline clv_graph *make_residual_graph(int64_t batch) {
  int x, y;
  clv_graph *g = make_graph(CLV_F32, CLV_SHAPE(batch, 5, 6, 6), &x);
  x = add_plain(g, CLV_OP_RELU, 2, add_conv_and_batchnorm(g, 0, x, 19, 3));
  y = add_plain(g, CLV_OP_RELU, 5, add_conv_and_batchnorm(g, 3, x, 17, 1));
  y = add_conv_and_batchnorm(g, 6, y, 20, 3);
  y = add_node(g, CLV_OP_ADD, 10, y, add_conv_and_batchnorm(g, 8, x, 20, 1), NULL, 0);
  x = add_plain(g, CLV_OP_RELU, 11, y);
  y = add_plain(g, CLV_OP_RELU, 14, add_conv_and_batchnorm(g, 12, x, 18, 3));
  y = add_node(g, CLV_OP_ADD, 17, x, add_conv_and_batchnorm(g, 15, y, 20, 1), NULL, 0);
  x = add_plain(g, CLV_OP_RELU, 18, y);
  x = add_plain(g, CLV_OP_FLATTEN, 20, add_plain(g, CLV_OP_GLOBALAVGPOOL, 19, x));
  add_linear(g, 21, x, 4);
  return g;
}

#endif
