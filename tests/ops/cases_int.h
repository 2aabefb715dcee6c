/* SPDX-License-Identifier: Apache-2.0
 *
 * The case table (cases.txt, where its format is described) as node descriptions. Output and
 * parameter shapes are worked out here, apart from the shape rules of common/graph.
 */
#ifndef CLEAVE_CASES_INT_H
#define CLEAVE_CASES_INT_H

#include "kernels/kernels.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef enum fill {
  FILL_NORMAL,
  FILL_TIES,
  FILL_NAN,
  FILL_UNIT,
  FILL_EDGE,
  FILL_BIG,
  FILL_SHIFTED
} fill;

typedef struct op_case {
  char name[32];
  clv_node_desc d; /* need_dx, need_dw set wherever a gradient exists */
  fill fill;
  bool golden;
} op_case;

enum { MAX_CASES = 256 };

/* wait is not here: PyTorch has none, and its loops have a test of their own in
 * tests/unit/graph. */
static const char *const case_ops[CLV_OP_COUNT] = {
    [CLV_OP_LINEAR] = "linear",
    [CLV_OP_CONV2D] = "conv2d",
    [CLV_OP_MAXPOOL] = "maxpool",
    [CLV_OP_AVGPOOL] = "avgpool",
    [CLV_OP_GLOBALAVGPOOL] = "globalavgpool",
    [CLV_OP_RELU] = "relu",
    [CLV_OP_SIGMOID] = "sigmoid",
    [CLV_OP_TANH] = "tanh",
    [CLV_OP_GELU] = "gelu",
    [CLV_OP_SOFTMAX] = "softmax",
    [CLV_OP_LOG_SOFTMAX] = "log_softmax",
    [CLV_OP_ADD] = "add",
    [CLV_OP_FLATTEN] = "flatten",
    [CLV_OP_RESHAPE] = "reshape",
    [CLV_OP_DROPOUT] = "dropout",
    [CLV_OP_BATCHNORM] = "batchnorm",
    [CLV_OP_CROSS_ENTROPY] = "cross_entropy",
    [CLV_OP_NLL] = "nll",
    [CLV_OP_MSE] = "mse",
    [CLV_OP_BCE] = "bce",
    [CLV_OP_BCE_WITH_LOGITS] = "bce_with_logits",
    [CLV_OP_EMBEDDING] = "embedding",
    [CLV_OP_LSTM] = "lstm",
    [CLV_OP_MEAN] = "mean",
    [CLV_OP_SCALE] = "scale",
    [CLV_OP_CONCAT] = "concat",
    [CLV_OP_SLICE] = "slice",
    [CLV_OP_LAYERNORM] = "layernorm",
};

static inline void case_bad(const char *line, const char *why) {
  fprintf(stderr, "tests/ops/cases.txt: %s: %s\n", why, line);
  exit(1);
}

static inline int name_index(const char *word, const char *const *names, int n) {
  for (int i = 0; i < n; i++)
    if (names[i] && strcmp(names[i], word) == 0) return i;
  return -1;
}

static inline clv_shape parse_extents(const char *text) {
  clv_shape s = {0};
  char *end;
  for (const char *p = text; s.rank < CLV_MAX_RANK; p = end + 1) {
    s.dim[s.rank++] = strtoll(p, &end, 10);
    if (*end != 'x') break;
  }
  return s;
}

static inline void parse_pair(const char *text, int64_t ret[2]) {
  clv_shape s = parse_extents(text);
  ret[0] = s.dim[0];
  ret[1] = s.dim[1];
}

static inline void case_key(op_case *c, const char *key, const char *value) {
  static const char *const fills[] = {"normal", "ties", "nan", "unit", "edge", "big", "shifted"};
  static const char *const pairs[] = {"kernel", "stride", "pad"};
  static const char *const wholes[] = {"out", "groups", "rows", "layers", "dim", "start", "stop"};
  static const char *const reals[] = {"p", "eps", "momentum", "factor"};
  clv_attrs *a = &c->d.attrs;
  int64_t *const pair[] = {a->kernel, a->stride, a->pad};
  int64_t *const whole[] = {&a->out, &a->groups, &a->rows, &a->layers,
                            &a->dim, &a->start,  &a->stop};
  double *const real[] = {&a->p, &a->eps, &a->momentum, &a->factor};
  int at;
  if ((at = name_index(key, pairs, 3)) >= 0)
    parse_pair(value, pair[at]);
  else if ((at = name_index(key, wholes, 7)) >= 0)
    *whole[at] = atoll(value);
  else if ((at = name_index(key, reals, 4)) >= 0)
    *real[at] = atof(value);
  else if (!strncmp(key, "in", 2))
    c->d.in[key[2] ? key[2] - '0' : 0] = parse_extents(value);
  else if (!strcmp(key, "shape"))
    a->shape = parse_extents(value);
  else if (!strcmp(key, "bias"))
    a->bias = *value == '1';
  else if (!strcmp(key, "training"))
    c->d.training = *value == '1';
  else if (!strcmp(key, "golden"))
    c->golden = *value == '1';
  else if (!strcmp(key, "fill") && name_index(value, fills, 7) >= 0)
    c->fill = (fill)name_index(value, fills, 7);
  else
    case_bad(key, "unknown key or value");
}

static inline bool has_labels(clv_op op) { return op == CLV_OP_CROSS_ENTROPY || op == CLV_OP_NLL; }

static inline bool is_loss(clv_op op) {
  return op >= CLV_OP_CROSS_ENTROPY && op <= CLV_OP_BCE_WITH_LOGITS;
}

/* Input i holds integers. */
static inline bool is_whole(clv_op op, int i) {
  return (has_labels(op) && i == 1) || (op == CLV_OP_EMBEDDING && i == 0);
}

static inline void window_shape(clv_node_desc *d, int64_t channels) {
  const clv_attrs *a = &d->attrs;
  d->out = CLV_SHAPE(d->in[0].dim[0], channels, 0, 0);
  for (int i = 0; i < 2; i++)
    d->out.dim[2 + i] = (d->in[0].dim[2 + i] + 2 * a->pad[i] - a->kernel[i]) / a->stride[i] + 1;
}

static inline void reshaped(clv_node_desc *d) {
  int64_t rest = 1;
  for (int i = 1; i < d->in[0].rank; i++) rest *= d->in[0].dim[i];
  d->out = CLV_SHAPE(d->in[0].dim[0], rest);
  if (d->op != CLV_OP_RESHAPE) return;
  d->out.rank = d->attrs.shape.rank + 1;
  for (int i = 0; i < d->attrs.shape.rank; i++) d->out.dim[i + 1] = d->attrs.shape.dim[i];
}

/* embedding appends an extent, linear and lstm replace the last one. */
static inline void last_extent(clv_node_desc *d) {
  d->out = d->in[0];
  if (d->op == CLV_OP_EMBEDDING) d->out.rank++;
  d->out.dim[d->out.rank - 1] = d->attrs.out;
}

/* mean, concat and slice: what becomes of the extent of dimension dim. */
static inline void along(clv_node_desc *d) {
  int axis = (int)(d->attrs.dim < 0 ? d->attrs.dim + d->in[0].rank : d->attrs.dim);
  d->out = d->in[0];
  int64_t *extent = &d->out.dim[axis];
  if (d->op == CLV_OP_MEAN) {
    d->out.rank--;
    memmove(extent, extent + 1, (size_t)(CLV_MAX_RANK - 1 - axis) * sizeof *extent);
  } else if (d->op == CLV_OP_CONCAT) {
    for (int i = 1; i < d->n_in; i++) *extent += d->in[i].dim[axis];
  } else {
    int64_t stop = d->attrs.stop <= 0 ? d->attrs.stop + *extent : d->attrs.stop;
    *extent = stop - (d->attrs.start < 0 ? d->attrs.start + *extent : d->attrs.start);
    d->attrs.stop = d->attrs.stop ? d->attrs.stop : CLV_TO_END;
  }
}

static inline void case_out(clv_node_desc *d) {
  const clv_shape *in = &d->in[0];
  if (d->op == CLV_OP_LINEAR || d->op == CLV_OP_LSTM || d->op == CLV_OP_EMBEDDING)
    last_extent(d);
  else if (d->op == CLV_OP_CONV2D)
    window_shape(d, d->attrs.out);
  else if (d->op == CLV_OP_MAXPOOL || d->op == CLV_OP_AVGPOOL)
    window_shape(d, in->dim[1]);
  else if (d->op == CLV_OP_GLOBALAVGPOOL)
    d->out = CLV_SHAPE(in->dim[0], in->dim[1], 1, 1);
  else if (d->op == CLV_OP_FLATTEN || d->op == CLV_OP_RESHAPE)
    reshaped(d);
  else if (d->op == CLV_OP_MEAN || d->op == CLV_OP_CONCAT || d->op == CLV_OP_SLICE)
    along(d);
  else if (is_loss(d->op))
    d->out = (clv_shape){0};
  else
    d->out = *in;
}

static inline void lstm_params(clv_node_desc *d) {
  int64_t in = d->in[0].dim[2], h = d->attrs.out;
  for (int layer = 0; layer < d->attrs.layers; layer++, in = h) {
    d->param[d->n_params++] = CLV_SHAPE(4 * h, in);
    d->param[d->n_params++] = CLV_SHAPE(4 * h, h);
    for (int i = 0; i < 2 && d->attrs.bias; i++) d->param[d->n_params++] = CLV_SHAPE(4 * h);
  }
}

static inline void case_params(clv_node_desc *d) {
  const clv_attrs *a = &d->attrs;
  clv_shape channels = CLV_SHAPE(d->in[0].dim[1]);
  if (d->op == CLV_OP_LSTM) lstm_params(d);
  if (d->op == CLV_OP_LAYERNORM) {
    d->param[0] = d->param[1] = a->shape;
    d->n_params = 2;
  }
  if (d->op == CLV_OP_EMBEDDING) {
    d->param[0] = CLV_SHAPE(a->rows, a->out);
    d->n_params = 1;
  }
  if (d->op == CLV_OP_LINEAR) d->param[0] = CLV_SHAPE(a->out, d->in[0].dim[d->in[0].rank - 1]);
  if (d->op == CLV_OP_CONV2D)
    d->param[0] = CLV_SHAPE(a->out, d->in[0].dim[1] / a->groups, a->kernel[0], a->kernel[1]);
  if (d->op == CLV_OP_LINEAR || d->op == CLV_OP_CONV2D) {
    d->param[1] = CLV_SHAPE(a->out);
    d->n_params = a->bias ? 2 : 1;
  }
  if (d->op != CLV_OP_BATCHNORM) return;
  for (int i = 0; i < 4; i++) d->param[i] = channels;
  d->n_params = 5;
}

static inline void case_finish(op_case *c) {
  clv_node_desc *d = &c->d;
  clv_attrs *a = &d->attrs;
  bool pool = d->op == CLV_OP_MAXPOOL || d->op == CLV_OP_AVGPOOL;
  for (int i = 0; i < 2; i++)
    if (!a->stride[i]) a->stride[i] = pool ? a->kernel[i] : 1;
  d->n_in = is_loss(d->op) || d->op == CLV_OP_ADD ? 2 : 1;
  if (d->op == CLV_OP_CONCAT)
    while (d->n_in < CLV_MAX_IN && d->in[d->n_in].rank) d->n_in++;
  else
    d->in[1] = has_labels(d->op) ? CLV_SHAPE(d->in[0].dim[0]) : d->in[0];
  case_out(d);
  case_params(d);
  for (int i = 0; i < d->n_in; i++) {
    d->need_dx[i] = !is_whole(d->op, i);
    d->offered_block[i] = 1;
  }
  d->need_dw = d->n_params > 0;
  d->threads = 1;
}

static inline void case_line(char *line, op_case *c) {
  char *rest = NULL, *name = strtok_r(line, " \n", &rest), *op = strtok_r(NULL, " \n", &rest);
  *c = (op_case){.golden = true,
                 .d.attrs = {.groups = 1,
                             .bias = true,
                             .p = 0.5,
                             .eps = 1e-5,
                             .momentum = 0.1,
                             .layers = 1,
                             .dim = 1}};
  snprintf(c->name, sizeof c->name, "%s", name);
  int number = op ? name_index(op, case_ops, CLV_OP_COUNT) : -1;
  if (number < 0) case_bad(name, "unknown op");
  c->d.op = (clv_op)number;
  for (char *word; (word = strtok_r(NULL, " \n", &rest));) {
    char *equals = strchr(word, '=');
    if (!equals) case_bad(word, "no '='");
    *equals = 0;
    case_key(c, word, equals + 1);
  }
  case_finish(c);
}

/* All cases of the table; their number is returned. */
static inline int cases_read(op_case cases[MAX_CASES]) {
  char line[256];
  int n = 0;
  FILE *f = fopen("tests/ops/cases.txt", "r");
  if (!f) case_bad("not found", "tests run from the root of the repository");
  while (fgets(line, sizeof line, f)) {
    if (line[0] == '#' || line[0] == '\n') continue;
    if (n == MAX_CASES) case_bad(line, "too many cases");
    case_line(line, &cases[n++]);
  }
  fclose(f);
  return n;
}

#endif
