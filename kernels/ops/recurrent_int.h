/* SPDX-License-Identifier: Apache-2.0
 *
 * recurrent_int: shape and parameters of lstm and gru, whose layers have PyTorch's names.
 */
#ifndef CLEAVE_OPS_RECURRENT_INT_H
#define CLEAVE_OPS_RECURRENT_INT_H

#include "kernels/ops/op_int.h"

static inline clv_code recurrent_shape(const char *op, const clv_op_site *s, clv_shape *ret,
                                       clv_err *err) {
  CLV_TRY(clv_check_rank(op, &s->in[0], 3, "[N, T, F]", "", err));
  CLV_TRY(clv_check_no_empty_dim(op, &s->in[0], err));
  *ret = CLV_SHAPE(s->in[0].dim[0], s->in[0].dim[1], s->attrs->out);
  return CLV_OK;
}

#define LAYER_NAMES(k) \
  { "weight_ih_l" #k, "weight_hh_l" #k, "bias_ih_l" #k, "bias_hh_l" #k }

/* Writes the slots of all layers. n_gates: rows of a weight for each hidden value. */
static inline int recurrent_slots(int64_t n_gates, const clv_op_site *s,
                                  clv_slot ret[CLV_MAX_PARAMS]) {
  static const char *const names[CLV_LSTM_LAYERS][4] = {
      LAYER_NAMES(0), LAYER_NAMES(1), LAYER_NAMES(2), LAYER_NAMES(3),
      LAYER_NAMES(4), LAYER_NAMES(5), LAYER_NAMES(6), LAYER_NAMES(7)};
  int64_t hidden_size = s->attrs->out, n_inputs = s->in[0].dim[2],
          n_weight_rows = n_gates * hidden_size;
  double init_bound = 1 / sqrt((double)hidden_size);
  int n = 0;
  for (int layer = 0; layer < s->attrs->layers; layer++, n_inputs = hidden_size) {
    const clv_shape shapes[] = {CLV_SHAPE(n_weight_rows, n_inputs),
                                CLV_SHAPE(n_weight_rows, hidden_size), CLV_SHAPE(n_weight_rows),
                                CLV_SHAPE(n_weight_rows)};
    for (int i = 0; i < (s->attrs->bias ? 4 : 2); i++)
      ret[n++] = (clv_slot){.suffix = names[layer][i],
                            .shape = shapes[i],
                            .init = CLV_INIT_UNIFORM,
                            .bound = init_bound};
  }
  return n;
}

#define RECURRENT_ATTRS(gates)                                                            \
  {.key = CLV_ATTR_OUT, .is_required = true, .low = 1, .high = CLV_EXTENT_MAX / (gates)}, \
      {.key = CLV_ATTR_LAYERS, .default_value = 1, .low = 1, .high = CLV_LSTM_LAYERS}, BIAS_ATTR

#endif
