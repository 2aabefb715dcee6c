/* SPDX-License-Identifier: Apache-2.0
 *
 * reach: of which places of a record each element of each value of a graph is made, and backwards
 * from which of the model's outputs each element of a gradient comes. A *place* is a pixel, a
 * step, a token, or a feature of a record without places; the channels of a place count once. What
 * is computed looks at the graph alone, for one record, and never at numbers.
 *
 * Several paths lead from a record to an element: each operand of a sum, product or attention is
 * one. Each value has three profiles, so that no path is lost behind a worse one: the most exposed
 * path of each element, the narrowest, and the widest, on which known weights may mix. Padding,
 * constants, zeros and copies add no place, nor does to a layer of many positions what is the same
 * at several of them (uniform_columns.c). A flat record that the graph gives a form, such as [N,
 * 3072] as [3, 32, 32], has the places of that form.
 *
 * Dropout leaves places out. A layer behind it sums two places only where, of outputs to which any
 * place is left, at most one in fifty has a single one. With n places of c elements each, a rate p
 * and l = p^c this is n (1 - l) l^(n - 1) <= 0.02 (1 - l^n). Else the layer hides nothing, and the
 * finding is that of what it reads. So p = 0.5 takes 9 places, p = 0.9 takes 55.
 *
 * What exceeds the budget of memory or work becomes narrower and more exposed, never the opposite.
 *
 * Threads: none is shared; each call has memory of its own.
 */
#ifndef CLEAVE_REACH_H
#define CLEAVE_REACH_H

#include "common/model/graph/graph.h"

/* What the weights of a layer are to whoever receives what comes behind it. */
typedef enum clv_reach_layer {
  CLV_REACH_AT_WORKER, /* at a worker: it hides nothing, and known weights of it are no finding */
  CLV_REACH_KNOWN,     /* the worker can know its first weights */
  CLV_REACH_SECRET,
} clv_reach_layer;

/* Of all elements of a value, or of its gradient, that depend on a place at all. */
typedef struct clv_reach {
  bool bare, bare_token;     /* on some path no layer has mixed two places; _token: behind an
                               embedding at the master */
  bool known;                /* on some path known weights have, and no secret ones */
  bool narrow, narrow_token; /* mixed, and made of fewer than half of the places */
  int64_t least, places;     /* the fewest places of an element, and all that a record has */
  bool sums;                 /* of a layer with weights: each output sums two places at least */
  bool sums_none;            /* none of them does */
  bool thinned;              /* some are left with one by dropout too often */
  bool gave_up;              /* the budget did not do: it may be wider and better hidden */
  int reader;                /* of clv_reach_returned: the node whose derivative reads the worst of
                              * it; -1: the loss */
} clv_reach;

/* layers, ret: [g->n_nodes]. Values of layers behind `last` are not looked at. */
clv_code clv_reach_forward(const clv_graph *g, const clv_reach_layer *layers, uint32_t last,
                           clv_reach *ret, clv_err *err) CLV_USE_RESULT;
/* What gradients of values show of records to whoever knows the values in `known`: [n_nodes].
 * Gradients are followed to what layers 0..`first` and inputs make. */
clv_code clv_reach_returned(const clv_graph *g, const clv_reach_layer *layers, const bool *known,
                            uint32_t first, clv_reach *ret, clv_err *err) CLV_USE_RESULT;
/* What gradients show of labels, of values that layers 0..`first` and inputs make, and of all
 * behind them. `bare` says that an element has the gradient of one output alone. Of a model with
 * one output a layer sums where it has several inputs. */
clv_code clv_reach_backward(const clv_graph *g, const clv_reach_layer *layers, uint32_t first,
                            clv_reach *ret, clv_err *err) CLV_USE_RESULT;

#endif
