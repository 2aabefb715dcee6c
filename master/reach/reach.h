/* SPDX-License-Identifier: Apache-2.0
 *
 * reach: computes from which places of a record each element of each value of a graph is made, and
 * backwards from which outputs of the model each element of a gradient is made. A *place* is a
 * pixel, a step, a token, or a feature of a record without places; the channels of a place count
 * once. The analysis reads only the graph, for one record, and no weights or data. privacy.c of
 * master/plan calls it.
 *
 * Several paths lead from a record to an element: each operand of a sum, product or attention is
 * one. The path that shows most in one respect may not do so in another, so each value has three
 * profiles: the most exposed path of each element, the narrowest path, and the widest path, on
 * which known weights may mix. Padding, constants, zeros and copies add no place. Nor do columns
 * that are the same at several positions of a layer (uniform_columns.c). A flat record that the
 * graph reshapes, such as [N, 3072] to [3, 32, 32], has the places of that shape.
 *
 * Dropout leaves places out. A layer after dropout counts as summing two places only if, of the
 * outputs that keep any place, at most one in fifty keeps a single one. With n places of c elements
 * each, a rate p and l = p^c this is n * (1 - l) * l^(n - 1) <= 0.02 * (1 - l^n). Otherwise the
 * layer hides nothing, and its finding is that of its input. So p = 0.5 needs 9 places, p = 0.9
 * needs 55.
 *
 * If the analysis exceeds its limit of places, memory or work, a value may be reported as narrower
 * and more exposed than it is, never as wider or better hidden.
 *
 * Threads: calls share no memory.
 */
#ifndef CLEAVE_REACH_H
#define CLEAVE_REACH_H

#include "common/model/graph/graph.h"

/* Knowledge of the weights of a layer that a worker can have. */
typedef enum clv_weight_secrecy {
  /* a worker has the layer, so the layer hides nothing and does not count as mixing */
  CLV_WEIGHTS_AT_WORKER,
  CLV_WEIGHTS_KNOWN,  /* a worker can know the initial weights */
  CLV_WEIGHTS_SECRET, /* no worker can know the initial weights */
} clv_weight_secrecy;

/* Summary of the elements of a value, or of its gradient, that depend on places of the record
 * (pixels, steps, tokens or features). */
typedef struct clv_reach {
  /* some path from the record has no layer that mixes two places (such as pixels); _token: such a
   * path goes through an embedding at the master */
  bool has_unmixed_path, has_unmixed_token_path;
  /* on some path a layer with known weights mixes places, and no layer with secret weights does */
  bool has_known_mixing;
  /* some mixed element is narrow: made of fewer than half of the places; _token: on a path through
   * an embedding at the master */
  bool has_narrow_element, has_narrow_token_element;
  /* smallest number of places (pixels, tokens ...) that an element is made of */
  int64_t n_fewest_places;
  int64_t n_places; /* number of places (pixels, tokens ...) of a record */
  /* for a layer with weights: each of its outputs sums at least two places */
  bool sums_two_places;
  bool never_sums_two_places; /* for a layer with weights: no output sums two places */
  /* dropout leaves some output with a single place too often (more than once in fifty) */
  bool is_thinned_by_dropout;
  /* the analysis has exceeded its limit of places, memory or work, so the value may be wider and
   * better hidden than reported */
  bool exceeds_limits;
  /* in results of clv_reach_records_in_gradients: node whose derivative adds the most exposed
   * addend of the gradient; -1: the loss */
  int reader_node;
} clv_reach;

/* Follows the records forwards, up to the values of layer `last_layer`. layer_secrecy: [g->n_nodes]
 * what workers know of each node's weights; ret: [g->n_nodes]. */
clv_code clv_reach_records_in_values(const clv_graph *g, const clv_weight_secrecy *layer_secrecy,
                                     uint32_t last_layer, clv_reach *ret,
                                     clv_err *err) CLV_USE_RESULT;
/* Follows the records in gradients, back to the values of layers 0..`first_layer` and of inputs.
 * is_known: [n_nodes] true: the receiver of a gradient knows the node's value already, so a
 * gradient that shows this value tells the receiver nothing new. */
clv_code clv_reach_records_in_gradients(const clv_graph *g, const clv_weight_secrecy *layer_secrecy,
                                        const bool *is_known, uint32_t first_layer, clv_reach *ret,
                                        clv_err *err) CLV_USE_RESULT;
/* Follows the labels in gradients, back to the values of layers 0..`first_layer` and of inputs. In
 * these results `has_unmixed_path` means that an element has the gradient of one output alone. In a
 * model with one output a layer counts as summing if the layer has several inputs. */
clv_code clv_reach_labels_in_gradients(const clv_graph *g, const clv_weight_secrecy *layer_secrecy,
                                       uint32_t first_layer, clv_reach *ret,
                                       clv_err *err) CLV_USE_RESULT;

#endif
