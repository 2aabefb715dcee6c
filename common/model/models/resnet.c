/* SPDX-License-Identifier: Apache-2.0
 *
 * clv_arch_add_resnet: ResNet 18, 34 and 50 with the names, shapes and initial weights of
 * torchvision.models.resnet (in a bottleneck the 3x3 convolution has the stride). Every op is a
 * layer with its own name, such as "layer2.0.conv1", which names its parameters. The RNG of their
 * initial values depends on the layer's number.
 */
#include <stdio.h>
#include <string.h>

#include "common/model/models/models_int.h"

enum { STAGES = 4, FIRST_WIDTH = 64 };

/* Convolution of a residual block, followed by a batch norm. */
typedef struct block_conv {
  int64_t kernel;
  bool has_stride;
  int64_t expansion; /* output channels as a multiple of the stage's width */
} block_conv;

typedef struct block_kind {
  int n_convs;
  block_conv convs[3];
} block_kind;

static const block_kind basic = {
    .n_convs = 2,
    .convs = {{.kernel = 3, .has_stride = true, .expansion = 1}, {.kernel = 3, .expansion = 1}},
};
static const block_kind bottleneck = {
    .n_convs = 3,
    .convs = {{.kernel = 1, .expansion = 1},
              {.kernel = 3, .has_stride = true, .expansion = 1},
              {.kernel = 1, .expansion = 4}},
};

typedef struct resnet {
  const block_kind *kind;
  int blocks_per_stage[STAGES];
} resnet;

/* Full name of a node. Returned by value, so that it needs no buffer of the caller. */
typedef struct node_name {
  char text[CLV_NAME_MAX];
} node_name;

static node_name full_name(const char *prefix, const char *name) {
  node_name n;
  snprintf(n.text, sizeof n.text, "%s%s", prefix, name);
  return n;
}

static clv_code add_named_node(clv_arch_builder *b, clv_op op, node_name name,
                               const clv_attr_value *values, int n, clv_err *err) {
  return clv_arch_add_node(b, op, name.text, values, n, b->last_node, 1, err);
}

static clv_code add_conv_bn(clv_arch_builder *b, node_name conv, node_name bn, int64_t out,
                            int64_t kernel, int64_t stride, clv_err *err) {
  clv_attr_value v[] = {clv_arch_make_int_attr(CLV_ATTR_OUT, out),
                        clv_arch_make_int_attr(CLV_ATTR_KERNEL, kernel),
                        clv_arch_make_int_attr(CLV_ATTR_STRIDE, stride),
                        clv_arch_make_int_attr(CLV_ATTR_PAD, kernel / 2),
                        clv_arch_make_int_attr(CLV_ATTR_BIAS, 0),
                        clv_arch_make_int_attr(CLV_ATTR_KAIMING_NORMAL, 1)};
  CLV_TRY(add_named_node(b, CLV_OP_CONV2D, conv, v, CLV_COUNT(v), err));
  return add_named_node(b, CLV_OP_BATCHNORM, bn, NULL, 0, err);
}

/* Adds the convolutions of a block: conv1, bn1, relu1, conv2 and so on. No relu follows the last
 * batch norm. */
static clv_code add_branch(clv_arch_builder *b, const block_kind *kind, const char *prefix,
                           int64_t width, int64_t stride, clv_err *err) {
  for (int i = 0; i < kind->n_convs; i++) {
    const block_conv *c = &kind->convs[i];
    char conv[16], bn[16], relu[16];
    snprintf(conv, sizeof conv, "conv%d", i + 1);
    snprintf(bn, sizeof bn, "bn%d", i + 1);
    snprintf(relu, sizeof relu, "relu%d", i + 1);
    CLV_TRY(add_conv_bn(b, full_name(prefix, conv), full_name(prefix, bn), c->expansion * width,
                        c->kernel, c->has_stride ? stride : 1, err));
    if (i + 1 < kind->n_convs)
      CLV_TRY(add_named_node(b, CLV_OP_RELU, full_name(prefix, relu), NULL, 0, err));
  }
  return CLV_OK;
}

/* Adds a residual block, relu(branch(x) + x). If the shapes differ, a 1x1 convolution and a batch
 * norm convert x. */
static clv_code add_block(clv_arch_builder *b, const block_kind *kind, const char *prefix,
                          int64_t width, int64_t stride, clv_err *err) {
  int64_t out = kind->convs[kind->n_convs - 1].expansion * width;
  int join[2], x = *b->last_node;
  CLV_TRY(add_branch(b, kind, prefix, width, stride, err));
  join[0] = *b->last_node;
  *b->last_node = x;
  if (stride != 1 || b->g->nodes[x].shape.dim[1] != out)
    CLV_TRY(add_conv_bn(b, full_name(prefix, "downsample.0"), full_name(prefix, "downsample.1"),
                        out, 1, stride, err));
  join[1] = *b->last_node;
  CLV_TRY(clv_arch_add_node(b, CLV_OP_ADD, full_name(prefix, "add").text, NULL, 0, join, 2, err));
  return add_named_node(b, CLV_OP_RELU, full_name(prefix, "relu"), NULL, 0, err);
}

static clv_code add_stem(clv_arch_builder *b, clv_err *err) {
  clv_attr_value pool[] = {clv_arch_make_int_attr(CLV_ATTR_KERNEL, 3),
                           clv_arch_make_int_attr(CLV_ATTR_STRIDE, 2),
                           clv_arch_make_int_attr(CLV_ATTR_PAD, 1)};
  CLV_TRY(add_conv_bn(b, full_name("", "conv1"), full_name("", "bn1"), FIRST_WIDTH, 7, 2, err));
  CLV_TRY(add_named_node(b, CLV_OP_RELU, full_name("", "relu"), NULL, 0, err));
  return add_named_node(b, CLV_OP_MAXPOOL, full_name("", "maxpool"), pool, CLV_COUNT(pool), err);
}

static clv_code add_head(clv_arch_builder *b, int64_t classes, clv_err *err) {
  clv_attr_value out = clv_arch_make_int_attr(CLV_ATTR_OUT, classes);
  CLV_TRY(add_named_node(b, CLV_OP_GLOBALAVGPOOL, full_name("", "avgpool"), NULL, 0, err));
  CLV_TRY(add_named_node(b, CLV_OP_FLATTEN, full_name("", "flatten"), NULL, 0, err));
  return add_named_node(b, CLV_OP_LINEAR, full_name("", "fc"), &out, 1, err);
}

clv_code clv_arch_add_resnet(const clv_arch_args *a, clv_arch_builder *b, clv_err *err) {
  static const resnet kinds[] = {
      [CLV_ARCH_RESNET18] = {.kind = &basic, .blocks_per_stage = {2, 2, 2, 2}},
      [CLV_ARCH_RESNET34] = {.kind = &basic, .blocks_per_stage = {3, 4, 6, 3}},
      [CLV_ARCH_RESNET50] = {.kind = &bottleneck, .blocks_per_stage = {3, 4, 6, 3}},
  };
  const resnet *r = &kinds[a->arch];
  CLV_TRY(add_stem(b, err));
  for (int s = 0; s < STAGES; s++)
    for (int i = 0; i < r->blocks_per_stage[s]; i++) {
      char prefix[32];
      snprintf(prefix, sizeof prefix, "layer%d.%d.", s + 1, i);
      CLV_TRY(
          add_block(b, r->kind, prefix, (int64_t)FIRST_WIDTH << s, s > 0 && i == 0 ? 2 : 1, err));
    }
  return add_head(b, a->n_classes, err);
}
