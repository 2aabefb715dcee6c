/* SPDX-License-Identifier: Apache-2.0
 *
 * graph_int: functions that the files of this folder share. Other folders do not include it.
 */
#ifndef CLEAVE_GRAPH_INT_H
#define CLEAVE_GRAPH_INT_H

#include "common/model/graph/graph.h"

/* Bits of key.layer of an RNG key that hold the number of a parameter slot; the layer's number is
 * above them. A kernel's own key has slot 0. */
enum { RNG_SLOT_BITS = 4 };

clv_code clv_graph_clone(const clv_graph *g, clv_graph **ret, clv_err *err) CLV_USE_RESULT;

/* Checks that every attribute of the op is in its range. Needed for attributes that do not come
 * from clv_attrs_parse. */
clv_code clv_attrs_check(clv_op op, const clv_attrs *attrs, clv_err *err) CLV_USE_RESULT;

/* Writes the parameter slots (weight, bias, ...) of a node whose shape is inferred to `ret`, and
 * returns their number. An input node has none. */
int clv_node_get_slots(const clv_graph *g, const clv_node *node, clv_slot ret[CLV_MAX_PARAMS]);
/* Fills *ret, the argument of op functions, with the node's attributes and the shapes and types of
 * its inputs. */
void clv_node_get_site(const clv_graph *g, const clv_node *node, clv_op_site *ret);

/* Returns the number of values of one record in a node's value. */
int64_t clv_graph_values_per_record(const clv_node *n);
/* Adds nodes that join the values of `nodes`, [n], to the graph's output. */
clv_code clv_graph_join(clv_graph *g, const int *nodes, int n, clv_err *err) CLV_USE_RESULT;
/* Adds nodes that take a value of that shape out of a joined one, from value *start of each record.
 * Adds its width to *start. */
clv_code clv_graph_split(clv_graph *g, int joined, int64_t *start, const clv_shape *shape, int *ret,
                         clv_err *err) CLV_USE_RESULT;

#endif
