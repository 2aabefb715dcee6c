/* SPDX-License-Identifier: Apache-2.0
 *
 * graph_int: functions that the files of this folder share. Other folders do not include it.
 */
#ifndef CLEAVE_GRAPH_INT_H
#define CLEAVE_GRAPH_INT_H

#include "common/model/graph/graph.h"

clv_code clv_graph_clone(const clv_graph *g, clv_graph **ret, clv_err *err) CLV_USE_RESULT;

/* Checks that every value is in its range. For attributes that clv_attrs_parse has not checked. */
clv_code clv_attrs_check(clv_op op, const clv_attrs *attrs, clv_err *err) CLV_USE_RESULT;

/* Returns the number of parameter slots of a node of an inferred graph, and the slots in `ret`. An
 * input has none. */
int clv_node_slots(const clv_graph *g, const clv_node *node, clv_slot ret[CLV_MAX_PARAMS]);
/* Fills *ret with the node's attributes and the shapes and types of its inputs. */
void clv_node_site(const clv_graph *g, const clv_node *node, clv_op_site *ret);

#endif
