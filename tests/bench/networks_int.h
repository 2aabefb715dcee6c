/* SPDX-License-Identifier: Apache-2.0
 *
 * Makes the graphs of the networks whose training steps are measured.
 */
#ifndef CLEAVE_NETWORKS_INT_H
#define CLEAVE_NETWORKS_INT_H

#include "common/model/graph/graph.h"
#include "tests/bench/bench_int.h"

enum { NET_CLASSES = 1000 };

static inline int net_add_node(clv_graph *g, clv_op op, const clv_attrs *attrs, int a, int b) {
  clv_err err;
  int in[] = {a, b}, node;
  must(clv_graph_add(g, op, attrs, NULL, (uint32_t)g->n_nodes, in, b >= 0 ? 2 : 1, &node, &err),
       &err);
  return node;
}

static inline int net_add_plain(clv_graph *g, clv_op op, int x) {
  return net_add_node(g, op, &(clv_attrs){.eps = 1e-5, .momentum = 0.1}, x, -1);
}

static inline int net_add_conv_norm(clv_graph *g, int x, int64_t out, int64_t kernel,
                                    int64_t stride) {
  int64_t pad = kernel / 2;
  clv_attrs a = {.out = out,
                 .kernel = {kernel, kernel},
                 .dilation = {1, 1},
                 .stride = {stride, stride},
                 .pad = {pad, pad},
                 .groups = 1};
  return net_add_plain(g, CLV_OP_BATCHNORM, net_add_node(g, CLV_OP_CONV2D, &a, x, -1));
}

static inline int net_add_bottleneck(clv_graph *g, int x, int64_t width, int64_t stride,
                                     bool first) {
  int y = net_add_plain(g, CLV_OP_RELU, net_add_conv_norm(g, x, width, 1, 1));
  y = net_add_plain(g, CLV_OP_RELU, net_add_conv_norm(g, y, width, 3, stride));
  y = net_add_conv_norm(g, y, 4 * width, 1, 1);
  int skip = first ? net_add_conv_norm(g, x, 4 * width, 1, stride) : x;
  return net_add_plain(g, CLV_OP_RELU, net_add_node(g, CLV_OP_ADD, &(clv_attrs){0}, y, skip));
}

static inline clv_graph *net_make_resnet50(int64_t batch, int64_t size) {
  static const int blocks[] = {3, 4, 6, 3};
  clv_err err;
  clv_graph *g;
  int x, target;
  clv_shape image = CLV_SHAPE(batch, 3, size, size), classes = CLV_SHAPE(batch, NET_CLASSES);
  must(clv_graph_new(&g, &err), &err);
  must(clv_graph_add_input(g, "x", CLV_F32, &image, &x, &err), &err);
  must(clv_graph_add_input(g, "target", CLV_F32, &classes, &target, &err), &err);
  x = net_add_plain(g, CLV_OP_RELU, net_add_conv_norm(g, x, 64, 7, 2));
  x = net_add_node(g, CLV_OP_MAXPOOL,
                   &(clv_attrs){.kernel = {3, 3}, .stride = {2, 2}, .pad = {1, 1}}, x, -1);
  for (int stage = 0; stage < 4; stage++)
    for (int i = 0; i < blocks[stage]; i++)
      x = net_add_bottleneck(g, x, 64 << stage, stage && !i ? 2 : 1, !i);
  x = net_add_plain(g, CLV_OP_FLATTEN, net_add_plain(g, CLV_OP_GLOBALAVGPOOL, x));
  x = net_add_node(g, CLV_OP_LINEAR, &(clv_attrs){.out = NET_CLASSES, .bias = true}, x, -1);
  net_add_node(g, CLV_OP_MSE, &(clv_attrs){0}, x, target);
  return g;
}

#endif
