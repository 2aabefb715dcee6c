/* SPDX-License-Identifier: Apache-2.0
 *
 * Functions of clv_arch_builder, with which named architectures add their layers.
 */
#include "common/model/models/models_int.h"

clv_code clv_arch_add_node(clv_arch_builder *b, clv_op op, const char *name,
                           const clv_attr_value *values, int n, const int *in, int n_in,
                           clv_err *err) {
  clv_attrs attrs;
  CLV_TRY(clv_attrs_parse(op, values, n, &attrs, err));
  return clv_graph_add(b->g, op, &attrs, name, (*b->next_layer)++, in, n_in, b->last_node, err);
}

clv_attr_value clv_arch_make_int_attr(clv_attr_key key, int64_t v) {
  return (clv_attr_value){.key = key, .n_ints = 1, .ints = {v}};
}
