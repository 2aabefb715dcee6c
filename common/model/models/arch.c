/* SPDX-License-Identifier: Apache-2.0
 *
 * clv_arch_add_layers: named architectures. Widths, classes, dropout and the like are keys of
 * `model:`, each with a default.
 */
#include <stdio.h>
#include <string.h>

#include "common/model/models/models_int.h"

static clv_code add_layer(clv_arch_builder *b, clv_op op, const clv_attr_value *values, int n,
                          clv_err *err) {
  return clv_arch_add_node(b, op, NULL, values, n, b->last_node, 1, err);
}

static clv_code add_linear(clv_arch_builder *b, int64_t out, clv_err *err) {
  clv_attr_value v = clv_arch_make_int_attr(CLV_ATTR_OUT, out);
  return add_layer(b, CLV_OP_LINEAR, &v, 1, err);
}

static clv_code add_conv(clv_arch_builder *b, int64_t out, int64_t kernel, int64_t pad,
                         clv_err *err) {
  clv_attr_value v[] = {clv_arch_make_int_attr(CLV_ATTR_OUT, out),
                        clv_arch_make_int_attr(CLV_ATTR_KERNEL, kernel),
                        clv_arch_make_int_attr(CLV_ATTR_PAD, pad)};
  return add_layer(b, CLV_OP_CONV2D, v, 3, err);
}

static clv_code add_maxpool(clv_arch_builder *b, clv_err *err) {
  clv_attr_value v = clv_arch_make_int_attr(CLV_ATTR_KERNEL, 2);
  return add_layer(b, CLV_OP_MAXPOOL, &v, 1, err);
}

static clv_code add_dropout(clv_arch_builder *b, double p, clv_err *err) {
  clv_attr_value v = {.key = CLV_ATTR_P, .is_number = true, .number = p};
  return p > 0 ? add_layer(b, CLV_OP_DROPOUT, &v, 1, err) : CLV_OK;
}

static clv_code flatten_if_needed(clv_arch_builder *b, clv_err *err) {
  return b->g->nodes[*b->last_node].shape.rank == 2 ? CLV_OK
                                                    : add_layer(b, CLV_OP_FLATTEN, NULL, 0, err);
}

/* Adds the layers of `mlp`: [flatten], (linear, activation, [dropout]) for each hidden width,
 * linear. */
static clv_code add_mlp(const clv_arch_args *a, clv_arch_builder *b, clv_err *err) {
  CLV_TRY(flatten_if_needed(b, err));
  for (int i = 0; i < a->n_hidden; i++) {
    CLV_TRY(add_linear(b, a->hidden_widths[i], err));
    CLV_TRY(add_layer(b, a->activation, NULL, 0, err));
    CLV_TRY(add_dropout(b, a->dropout, err));
  }
  return add_linear(b, a->n_classes, err);
}

/* Adds the layers of `cnn`: twice (3x3 convolution, [batchnorm], relu, 2x2 maxpool), flatten,
 * linear to 4 * width, relu, [dropout], linear. */
static clv_code add_cnn(const clv_arch_args *a, clv_arch_builder *b, clv_err *err) {
  for (int64_t w = a->width; w <= 2 * a->width; w *= 2) {
    CLV_TRY(add_conv(b, w, 3, 1, err));
    if (a->batchnorm) CLV_TRY(add_layer(b, CLV_OP_BATCHNORM, NULL, 0, err));
    CLV_TRY(add_layer(b, CLV_OP_RELU, NULL, 0, err));
    CLV_TRY(add_maxpool(b, err));
  }
  CLV_TRY(add_layer(b, CLV_OP_FLATTEN, NULL, 0, err));
  CLV_TRY(add_linear(b, 4 * a->width, err));
  CLV_TRY(add_layer(b, CLV_OP_RELU, NULL, 0, err));
  CLV_TRY(add_dropout(b, a->dropout, err));
  return add_linear(b, a->n_classes, err);
}

/* Adds LeNet-5 with relu and max pooling: 5x5 convolutions with 6 channels (padding 2) and 16
 * channels, then linear layers with 120 and 84 outputs. */
static clv_code add_lenet(const clv_arch_args *a, clv_arch_builder *b, clv_err *err) {
  static const struct { int64_t out, pad; } convs[] = {{6, 2}, {16, 0}};
  static const int64_t linear_widths[] = {120, 84};
  for (size_t i = 0; i < CLV_COUNT(convs); i++) {
    CLV_TRY(add_conv(b, convs[i].out, 5, convs[i].pad, err));
    CLV_TRY(add_layer(b, CLV_OP_RELU, NULL, 0, err));
    CLV_TRY(add_maxpool(b, err));
  }
  CLV_TRY(add_layer(b, CLV_OP_FLATTEN, NULL, 0, err));
  for (size_t i = 0; i < CLV_COUNT(linear_widths); i++) {
    CLV_TRY(add_linear(b, linear_widths[i], err));
    CLV_TRY(add_layer(b, CLV_OP_RELU, NULL, 0, err));
  }
  return add_linear(b, a->n_classes, err);
}

/* ---- keys of an architecture ----------------------------------------------------------------- */

static clv_code read_positive(const clv_session_config *c, const clv_attr_spec *a, int64_t *ret,
                              clv_err *err) {
  if (a->kind != CLV_ATTR_INT || a->int_value < 1 || a->int_value > 1 << 20)
    return clv_session_fail_at(c, a->pos, err, "%s is a whole number from 1 to %d", a->key,
                               1 << 20);
  *ret = a->int_value;
  return CLV_OK;
}

static clv_code set_hidden(const clv_session_config *c, const clv_attr_spec *a, clv_arch_args *r,
                           clv_err *err) {
  if (a->kind != CLV_ATTR_INTS || a->n_ints > CLV_MAX_RANK)
    return clv_session_fail_at(c, a->pos, err, "hidden is a list of at most %d widths",
                               CLV_MAX_RANK);
  for (size_t i = 0; i < a->n_ints; i++)
    if (a->ints[i] < 1) return clv_session_fail_at(c, a->pos, err, "hidden: widths are positive");
  r->n_hidden = (int)a->n_ints;
  if (a->n_ints) memcpy(r->hidden_widths, a->ints, a->n_ints * sizeof *a->ints);
  return CLV_OK;
}

static clv_code set_width(const clv_session_config *c, const clv_attr_spec *a, clv_arch_args *r,
                          clv_err *err) {
  return read_positive(c, a, &r->width, err);
}

static clv_code set_classes(const clv_session_config *c, const clv_attr_spec *a, clv_arch_args *r,
                            clv_err *err) {
  return read_positive(c, a, &r->n_classes, err);
}

static clv_code set_dropout(const clv_session_config *c, const clv_attr_spec *a, clv_arch_args *r,
                            clv_err *err) {
  bool is_number = a->kind == CLV_ATTR_INT || a->kind == CLV_ATTR_FLOAT;
  if (!is_number || a->float_value < 0 || a->float_value >= 1)
    return clv_session_fail_at(c, a->pos, err, "dropout is a number in [0, 1)");
  r->dropout = a->float_value;
  return CLV_OK;
}

static clv_code set_batchnorm(const clv_session_config *c, const clv_attr_spec *a, clv_arch_args *r,
                              clv_err *err) {
  if (a->kind != CLV_ATTR_BOOL)
    return clv_session_fail_at(c, a->pos, err, "batchnorm is true or false");
  r->batchnorm = a->bool_value;
  return CLV_OK;
}

/* True if the op can be an activation: an element-wise function of one input without attributes. */
static bool is_activation(clv_op op) {
  const clv_op_def *def = clv_op_def_of(op);
  return def && def->elementwise && def->n_in == 1 && !def->attrs[0].key;
}

static clv_code set_activation(const clv_session_config *c, const clv_attr_spec *a,
                               clv_arch_args *r, clv_err *err) {
  char known[160] = "";
  size_t used = 0;
  for (int op = 0; op < CLV_OP_COUNT; op++) {
    if (!is_activation((clv_op)op)) continue;
    const char *name = clv_op_name((clv_op)op);
    if (a->kind == CLV_ATTR_TEXT && strcmp(a->text, name) == 0) {
      r->activation = (clv_op)op;
      return CLV_OK;
    }
    if (used < sizeof known)
      used += (size_t)snprintf(known + used, sizeof known - used, "%s%s", used ? ", " : "", name);
  }
  return clv_session_fail_at(c, a->pos, err, "activation is one of %s", known);
}

enum {
  MLP = 1u << CLV_ARCH_MLP,
  CNN = 1u << CLV_ARCH_CNN,
  LENET = 1u << CLV_ARCH_LENET,
  RESNET = 1u << CLV_ARCH_RESNET18 | 1u << CLV_ARCH_RESNET34 | 1u << CLV_ARCH_RESNET50
};

static const struct {
  const char *key;
  unsigned arch_mask;
  clv_code (*set_arg)(const clv_session_config *c, const clv_attr_spec *a, clv_arch_args *r,
                      clv_err *err);
} keys[] = {
    {.key = "hidden", .arch_mask = MLP, .set_arg = set_hidden},
    {.key = "activation", .arch_mask = MLP, .set_arg = set_activation},
    {.key = "width", .arch_mask = CNN, .set_arg = set_width},
    {.key = "batchnorm", .arch_mask = CNN, .set_arg = set_batchnorm},
    {.key = "dropout", .arch_mask = MLP | CNN, .set_arg = set_dropout},
    {.key = "classes", .arch_mask = MLP | CNN | LENET | RESNET, .set_arg = set_classes},
};

static clv_code set_arch_key(const clv_session_config *c, const clv_attr_spec *a, clv_arch_args *r,
                             clv_err *err) {
  const char *names[CLV_COUNT(keys)];
  size_t n = 0;
  for (size_t i = 0; i < CLV_COUNT(keys); i++) {
    if (!(keys[i].arch_mask >> c->model.arch & 1)) continue;
    if (strcmp(keys[i].key, a->key) == 0) return keys[i].set_arg(c, a, r, err);
    names[n++] = keys[i].key;
  }
  const char *suggestion = clv_did_you_mean(a->key, names, n);
  if (suggestion)
    return clv_session_fail_at(c, a->pos, err, "%s has no key '%s'; did you mean '%s'?",
                               clv_arch_name(c->model.arch), a->key, suggestion);
  char known[128] = "";
  for (size_t i = 0, used = 0; i < n && used < sizeof known; i++)
    used += (size_t)snprintf(known + used, sizeof known - used, "%s%s", i ? ", " : "", names[i]);
  return clv_session_fail_at(c, a->pos, err,
                             "%s has no key '%s', only %s; the data give the size of its input",
                             clv_arch_name(c->model.arch), a->key, known);
}

clv_code clv_arch_add_layers(const clv_session_config *c, clv_graph *g, uint32_t *layer, int *last,
                             clv_err *err) {
  static clv_code (*const archs[])(const clv_arch_args *, clv_arch_builder *, clv_err *) = {
      [CLV_ARCH_MLP] = add_mlp,
      [CLV_ARCH_CNN] = add_cnn,
      [CLV_ARCH_LENET] = add_lenet,
      [CLV_ARCH_RESNET18] = clv_arch_add_resnet,
      [CLV_ARCH_RESNET34] = clv_arch_add_resnet,
      [CLV_ARCH_RESNET50] = clv_arch_add_resnet};
  bool is_resnet = 1u << c->model.arch & RESNET;
  clv_arch_args a = {.arch = c->model.arch,
                     .hidden_widths = {128},
                     .n_hidden = 1,
                     .width = 32,
                     .n_classes = is_resnet ? 1000 : 10,
                     .activation = CLV_OP_RELU};
  clv_arch_builder b = {g, layer, last};
  clv_err why;
  for (size_t i = 0; i < c->model.n_attrs; i++)
    CLV_TRY(set_arch_key(c, &c->model.attrs[i], &a, err));
  if (archs[c->model.arch](&a, &b, &why) != CLV_OK)
    return clv_session_fail_at(c, c->model.arch_pos, err, "%s: %s", clv_arch_name(c->model.arch),
                               why.text);
  return CLV_OK;
}
