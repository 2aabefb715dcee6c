/* SPDX-License-Identifier: Apache-2.0
 *
 * Functions that tests of nodes share: modules of one op on [rows, columns].
 */
#ifndef CLEAVE_ENGINE_TEST_H
#define CLEAVE_ENGINE_TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/engine/engine.h"

#define assert_ok(call)                                                       \
  do {                                                                        \
    clv_code code_ = (call);                                                  \
    if (code_ != CLV_OK) fail_msg("%s: %s (%s)", #call, err.text, err.where); \
  } while (0)

/* Returns a graph of one layer "0": a linear as wide as its input, or another op without
 * attributes. */
static inline clv_graph *make_one_layer_graph(clv_op op, int64_t rows, int64_t columns) {
  clv_err err = {0};
  clv_graph *g;
  int input, output;
  clv_attr_value out = {.key = CLV_ATTR_OUT, .n_ints = 1, .ints = {columns}};
  clv_attrs attrs;
  assert_ok(clv_graph_new(&g, &err));
  assert_ok(clv_graph_add_input(g, "x", CLV_F32, &CLV_SHAPE(rows, columns), &input, &err));
  assert_ok(clv_attrs_parse(op, &out, op == CLV_OP_LINEAR, &attrs, &err));
  assert_ok(clv_graph_add(g, op, &attrs, NULL, 0, &input, 1, &output, &err));
  g->output_node = output;
  return g;
}

/* Options of a module that is trained by SGD. */
static inline clv_module_options make_module_options(clv_graph *graph, uint32_t index) {
  return (clv_module_options){.index = index,
                              .graph = graph,
                              .backend = clv_backend_ref(),
                              .threads = 1,
                              .optimizer = {.kind = CLV_OPTIM_SGD, .lr = 0.1},
                              .is_trainable = true,
                              .max_calls_in_flight = 1};
}

#endif
