/* SPDX-License-Identifier: Apache-2.0
 *
 * graph_int: what the files of graph share.
 */
#ifndef CLEAVE_GRAPH_INT_H
#define CLEAVE_GRAPH_INT_H

#include "common/model/graph/graph.h"

clv_code clv_graph_clone(const clv_graph *g, clv_graph **ret, clv_err *err) CLV_USE_RESULT;

/* Attributes that did not come through clv_attrs_parse: every value in its range. */
clv_code clv_attrs_check(clv_op op, const clv_attrs *attrs, clv_err *err) CLV_USE_RESULT;

/* The slots of a node of an inferred graph; 0 for inputs. */
int clv_node_slots(const clv_graph *g, const clv_node *node, clv_slot ret[CLV_MAX_PARAMS]);
void clv_node_site(const clv_graph *g, const clv_node *node, clv_op_site *ret);

#endif
