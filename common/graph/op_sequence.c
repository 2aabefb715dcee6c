/* SPDX-License-Identifier: Apache-2.0
 *
 * Ops over sequences: a table look-up and a recurrent network.
 */
#include "common/graph/op_int.h"

#include <math.h>

static clv_code embedding_shape(const clv_op_site *s, clv_shape *ret, clv_err *err) {
  const clv_shape *in = &s->in[0];
  char text[160];
  if (in->rank >= CLV_MAX_RANK)
    return clv_fail(err, CLV_INVALID, "embedding adds a dimension to %s, which has the most, %d",
                    clv_shape_format(in, text, sizeof text), CLV_MAX_RANK);
  *ret = *in;
  ret->dim[ret->rank++] = s->attrs->out;
  return CLV_OK;
}

static int embedding_slots(const clv_op_site *s, clv_slot ret[CLV_MAX_PARAMS]) {
  ret[CLV_SLOT_WEIGHT] = (clv_slot){.suffix = "weight",
                                    .shape = CLV_SHAPE(s->attrs->rows, s->attrs->out),
                                    .init = CLV_INIT_NORMAL};
  return 1;
}

static clv_code lstm_shape(const clv_op_site *s, clv_shape *ret, clv_err *err) {
  CLV_TRY(clv_need_rank("lstm", &s->in[0], 3, "[N, T, F]", "", err));
  *ret = CLV_SHAPE(s->in[0].dim[0], s->in[0].dim[1], s->attrs->out);
  return CLV_OK;
}

#define LAYER_NAMES(k) \
  { "weight_ih_l" #k, "weight_hh_l" #k, "bias_ih_l" #k, "bias_hh_l" #k }

static int lstm_slots(const clv_op_site *s, clv_slot ret[CLV_MAX_PARAMS]) {
  static const char *const names[CLV_LSTM_LAYERS][4] = {
      LAYER_NAMES(0), LAYER_NAMES(1), LAYER_NAMES(2), LAYER_NAMES(3),
      LAYER_NAMES(4), LAYER_NAMES(5), LAYER_NAMES(6), LAYER_NAMES(7)};
  int64_t hidden = s->attrs->out, in = s->in[0].dim[2];
  double bound = 1 / sqrt((double)hidden);
  int n = 0;
  for (int layer = 0; layer < s->attrs->layers; layer++, in = hidden) {
    const clv_shape shapes[] = {CLV_SHAPE(4 * hidden, in), CLV_SHAPE(4 * hidden, hidden),
                                CLV_SHAPE(4 * hidden), CLV_SHAPE(4 * hidden)};
    for (int i = 0; i < (s->attrs->bias ? 4 : 2); i++)
      ret[n++] = (clv_slot){
          .suffix = names[layer][i], .shape = shapes[i], .init = CLV_INIT_UNIFORM, .bound = bound};
  }
  return n;
}

static const clv_op_def ops[] = {
    {.op = CLV_OP_EMBEDDING,
     .name = "embedding",
     .doc = "y = W[x], x: i64 row numbers [N, ...], W: [rows, out], y: [N, ..., out] "
            "(torch.nn.functional.embedding)",
     .n_in = 1,
     .rows = true,
     .attrs = {{.key = CLV_ATTR_ROWS, .required = true, .low = 1, .high = CLV_EXTENT_MAX},
               {.key = CLV_ATTR_OUT, .required = true, .low = 1, .high = CLV_EXTENT_MAX}},
     .shape = embedding_shape,
     .slots = embedding_slots},
    {.op = CLV_OP_LSTM,
     .name = "lstm",
     .doc = "per layer and step, zeros before the first: "
            "[i f g o] = W_ih x_t + b_ih + W_hh h_(t-1) + b_hh; "
            "c_t = sigmoid(f) c_(t-1) + sigmoid(i) tanh(g); h_t = sigmoid(o) tanh(c_t); "
            "x: [N, T, F], y: h of the last layer [N, T, out] (torch.nn.LSTM, batch_first=True)",
     .n_in = 1,
     .attrs = {{.key = CLV_ATTR_OUT, .required = true, .low = 1, .high = CLV_EXTENT_MAX / 4},
               {.key = CLV_ATTR_LAYERS, .fallback = 1, .low = 1, .high = CLV_LSTM_LAYERS},
               {.key = CLV_ATTR_BIAS, .fallback = 1, .low = 0, .high = 1}},
     .shape = lstm_shape,
     .slots = lstm_slots},
};

const clv_op_family clv_family_sequence = {ops, CLV_COUNT(ops)};
