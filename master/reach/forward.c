/* SPDX-License-Identifier: Apache-2.0
 *
 * Follows records forwards: finds which places (pixels, steps, tokens, or features of a table) a
 * record has, and from which places each value is made (clv_reach_records_in_values,
 * clv_reach_records_in_gradients).
 *
 * No attribute of a graph says whether a record of floats is [N, channels, places...] or [N,
 * places..., channels]. A convolution implies that channels come first. Without one both are tried,
 * and the worse result counts.
 */
#include <stdlib.h>
#include <string.h>

#include "master/reach/reach_int.h"

static void walk_done(reach_walk *w) {
  for (int p = 0; p < REACH_N_PROFILES; p++) {
    for (int k = 0; w->values[p] && k < w->g->n_nodes; k++) reach_value_done(&w->values[p][k]);
    free(w->values[p]);
  }
  reach_pool_done(&w->pool);
  free(w->origin_node);
  free(w->origin_factor);
  free(w->results);
}

/* ---- places (pixels, steps, tokens or features) of the inputs -------------------------------- */

static bool is_input(const reach_walk *w, int k) { return w->g->nodes[k].op == CLV_OP_INPUT; }
static bool is_known(const reach_walk *w, int k) { return w->is_known && w->is_known[k]; }
static bool has_integer_values(const reach_walk *w, int k) {
  return w->g->nodes[k].dtype == CLV_I64;
}

/* Returns the axis of channels of a shape; 0: there is none. A shape with a single place has no
 * channels: its values are the places, as in a table. */
static int find_channel_axis(const reach_walk *w, const clv_shape *s) {
  int axis = w->assumes_channels_last ? s->rank - 1 : 1;
  int64_t n = 1;
  for (int i = 1; i < s->rank; i++) n = CLV_MAX(n, i == axis ? 1 : s->dim[i]);
  return s->rank < 3 || n == 1 ? 0 : axis;
}

/* Returns the node that reshapes flat values [N, n] to a shape with places (such as pixels), if no
 * node before it moves or mixes the values; -1: there is none. Sets *ret_is_only_reader to false if
 * another node reads the flat values. */
static int find_reshaping_node(const clv_graph *g, int k, bool *ret_is_only_reader) {
  int found_node = -1;
  for (int m = k + 1; m < g->n_nodes; m++)
    for (int i = 0; i < g->nodes[m].n_in; i++) {
      const clv_node *n = &g->nodes[m];
      if (n->in[i] != k) continue;
      bool passes_values_on = clv_op_def_of(n->op)->mixing == CLV_MIXES_NOTHING &&
                              n->shape.rank == 2 && n->shape.dim[1] == g->nodes[k].shape.dim[1];
      int reshaping_node = n->op == CLV_OP_RESHAPE && n->shape.rank > 2 ? m : -1;
      if (reshaping_node < 0 && passes_values_on)
        reshaping_node = find_reshaping_node(g, m, ret_is_only_reader);
      if (reshaping_node < 0) *ret_is_only_reader = false;
      if (found_node < 0) found_node = reshaping_node;
    }
  return found_node;
}

/* Returns the node whose shape gives the places (pixels, steps, tokens) of an input: the input
 * itself if the input is not flat, else the node that reshapes the input. */
static int find_shape_node(const clv_graph *g, int k, bool *ret_is_only_reader) {
  const clv_node *n = &g->nodes[k];
  bool is_flat = n->op == CLV_OP_INPUT && n->dtype != CLV_I64 && n->shape.rank == 2;
  int reshaping_node = is_flat ? find_reshaping_node(g, k, ret_is_only_reader) : -1;
  return reshaping_node < 0 ? k : reshaping_node;
}

static int64_t count_shape_places(const clv_shape *s, int channel_axis) {
  int64_t n = 1;
  for (int i = 1; i < s->rank; i++)
    if (i != channel_axis) n *= s->dim[i];
  return n;
}

static clv_shape get_place_shape(const reach_walk *w, int k) {
  bool is_only_reader;
  return reach_node_shape(w->g,
                          w->uses_reshaped_places ? find_shape_node(w->g, k, &is_only_reader) : k);
}

/* Returns the number of places (pixels, steps, tokens or features) of an input. An input of
 * integers has one place for each index of the first dimension after the batch. */
static int64_t count_input_places(const reach_walk *w, int k) {
  clv_shape s = get_place_shape(w, k);
  if (has_integer_values(w, k)) return s.rank > 1 ? s.dim[1] : 1;
  return count_shape_places(&s, find_channel_axis(w, &s));
}

/* True if the input describes the tokens, for example by their boxes, so that its elements belong
 * to the places of the tokens. */
static bool has_token_places(const reach_walk *w, int k) {
  clv_shape s = get_place_shape(w, k);
  if (has_integer_values(w, k)) return s.rank > 1 && s.dim[1] == w->n_token_places;
  return w->assumes_channels_last && s.rank == 3 && find_channel_axis(w, &s) &&
         s.dim[1] == w->n_token_places;
}

static void find_token_places(reach_walk *w) {
  w->n_token_places = -1;
  for (int k = 0; k < w->g->n_nodes && w->n_token_places < 0; k++)
    if (is_input(w, k) && has_integer_values(w, k) && !clv_graph_length_limit(w->g, k))
      w->n_token_places = w->g->nodes[k].shape.rank > 1 ? count_input_places(w, k) : -1;
}

static bool has_own_places(const reach_walk *w, int k) {
  return is_input(w, k) && !clv_graph_length_limit(w->g, k) && !is_known(w, k) &&
         !(has_token_places(w, k) && w->first_token_place >= 0);
}

static int64_t count_places(reach_walk *w) {
  int64_t n = 0;
  w->first_token_place = -1;
  for (int k = 0; k < w->g->n_nodes; k++) {
    if (!has_own_places(w, k)) continue;
    if (has_token_places(w, k)) w->first_token_place = n;
    n += count_input_places(w, k);
  }
  return n;
}

/* Makes the elements of an input, one for each place (pixel, step, token or feature); `first_place`
 * is the number of the first place. All channels of a place share one element, because the channels
 * of a place count once. */
static clv_code fill_reshaped_input(reach_walk *w, int k, int64_t first_place, reach_value *ret,
                                    clv_err *err) {
  *ret = (reach_value){.shape = get_place_shape(w, k)};
  if (w->pool.exceeds_limits)
    return reach_value_fill(ret, &ret->shape,
                            reach_make_element(REACH_FULL_SET, REACH_FLAG_UNMIXED), err);
  int channel_axis = has_integer_values(w, k) ? -1 : find_channel_axis(w, &ret->shape);
  for (int i = 0; i < CLV_MAX_RANK; i++) {
    bool is_place = i && i < ret->shape.rank && (channel_axis < 0 ? i == 1 : i != channel_axis);
    ret->stored_extents[i] = is_place ? ret->shape.dim[i] : 1;
  }
  CLV_TRY(reach_value_alloc(ret, err));
  for (size_t i = 0, n = reach_value_element_count(ret); i < n; i++) {
    reach_pool_add_span(&w->pool, first_place + (int64_t)i, 1);
    uint32_t set_number = reach_pool_take_set(&w->pool);
    ret->elements[i] = reach_make_element(set_number, REACH_FLAG_UNMIXED);
  }
  return CLV_OK;
}

static clv_code fill_input(reach_walk *w, int k, int64_t first_place, reach_value *ret,
                           clv_err *err) {
  clv_shape own_shape = reach_node_shape(w->g, k);
  reach_value reshaped_value = {0};
  clv_code code = fill_reshaped_input(w, k, first_place, &reshaped_value, err);
  if (code == CLV_OK && reshaped_value.shape.rank > own_shape.rank) {
    code = reach_reshape_value(&w->pool, &reshaped_value, &own_shape, ret, err);
    reach_value_done(&reshaped_value);
    return code;
  }
  *ret = reshaped_value;
  return code;
}

static clv_code fill_inputs(reach_walk *w, clv_err *err) {
  int64_t next_place = 0;
  for (int k = 0; k < w->g->n_nodes; k++) {
    if (!is_input(w, k)) continue;
    clv_shape shape = reach_node_shape(w->g, k);
    reach_value *v = &w->values[0][k];
    if (clv_graph_length_limit(w->g, k) || is_known(w, k)) {
      CLV_TRY(reach_value_fill(v, &shape, REACH_CONSTANT_ELEMENT, err));
      continue;
    }
    CLV_TRY(fill_input(w, k, has_token_places(w, k) ? w->first_token_place : next_place, v, err));
    if (!has_token_places(w, k) || w->first_token_place == next_place)
      next_place += count_input_places(w, k);
  }
  return w->pool.has_failed ? clv_fail(err, CLV_EXHAUSTED, "out of memory") : CLV_OK;
}

/* ---- values that are multiples of one other value -------------------------------------------- */

static void find_origin_node(reach_walk *w, int k) {
  const clv_node *n = &w->g->nodes[k];
  w->origin_node[k] = k;
  w->origin_factor[k] = 1;
  if (n->op != CLV_OP_SCALE && n->op != CLV_OP_ADD) return;
  int of = w->origin_node[n->in[0]];
  double total_factor = w->origin_factor[n->in[0]];
  if (n->op == CLV_OP_SCALE) total_factor *= n->attrs.factor;
  if (n->op == CLV_OP_ADD && w->origin_node[n->in[1]] != of) return;
  if (n->op == CLV_OP_ADD) total_factor += w->origin_factor[n->in[1]];
  w->origin_node[k] = of;
  w->origin_factor[k] = total_factor;
}

/* ---- values of one node ---------------------------------------------------------------------- */

/* Sets REACH_FLAG_TOKEN in the elements of an embedding at the master. The embedding of a token
 * hides nothing of the token; its features are different functions of the token. Leaves an
 * embedding at a worker as it is, because it counts as the token itself. */
static void mark_tokens(const reach_walk *w, int k, reach_value *v) {
  const clv_op_def *def = clv_op_def_of(w->g->nodes[k].op);
  int last_axis = v->shape.rank - 1;
  if (!def->takes_row_numbers || w->layer_secrecy[k] == CLV_WEIGHTS_AT_WORKER) return;
  v->sibling_axis = v->shape.dim[last_axis] > 1 ? last_axis : 0;
  for (size_t i = 0; i < reach_value_element_count(v); i++)
    if (reach_element_has_places(v->elements[i])) v->elements[i] |= REACH_FLAG_TOKEN;
}

static void replace_absent_by_constant(reach_value *v) {
  for (size_t i = 0; i < reach_value_element_count(v); i++)
    if (v->elements[i] == REACH_ABSENT_ELEMENT) v->elements[i] = REACH_CONSTANT_ELEMENT;
}

/* Returns the element of a value that is the same for every record; REACH_ABSENT_ELEMENT: the value
 * depends on the record. */
static reach_element get_constant_element(const reach_walk *w, int k) {
  bool is_constant = reach_is_constant(w->g, k);
  if (is_known(w, k)) return REACH_CONSTANT_ELEMENT;
  if (w->origin_factor[k] == 0 || (is_constant && w->g->nodes[k].op == CLV_OP_LOG_SOFTMAX))
    return REACH_ZERO_ELEMENT;
  return is_constant ? REACH_CONSTANT_ELEMENT : REACH_ABSENT_ELEMENT;
}

/* False if node k is attention whose values are the same for all keys. The output is a mean of the
 * values, so the scores then have no effect on the output. p: the profile, the rule that chooses
 * one of several paths. */
static bool has_effective_scores(const reach_walk *w, int k, int p) {
  const clv_node *n = &w->g->nodes[k];
  if (n->op != CLV_OP_ATTENTION) return true;
  const reach_value *v = &w->values[p][n->in[2]];
  return v->stored_extents[1] > 1 || reach_element_has_places(v->elements[0]);
}

static clv_code make_value(reach_walk *w, int k, int p, clv_err *err) {
  const clv_node *n = &w->g->nodes[k];
  reach_value *ret = &w->values[p][k];
  clv_reach *layer_result = &w->results[k];
  clv_shape shape = reach_node_shape(w->g, k);
  reach_element constant = get_constant_element(w, k);
  if (constant != REACH_ABSENT_ELEMENT) return reach_value_fill(ret, &shape, constant, err);
  for (int i = 0; i < n->n_in; i++) {
    reach_relation relation;
    reach_step s = reach_make_step(w->g, k, i, &w->pool, w->layer_secrecy, &relation);
    reach_value input_share = {0};
    if (relation.is_independent && n->n_in > 1 && !reach_get_op_row(n->op)->is_product) continue;
    if (i < 2 && !has_effective_scores(w, k, p)) continue;
    s.from = &w->values[p][n->in[i]];
    s.is_widest = p == REACH_PROFILE_WIDE;
    CLV_TRY(reach_propagate(&s, &input_share, err));
    layer_result->sums_two_places &= s.sums_two_places;
    layer_result->never_sums_two_places &= s.never_sums_two_places;
    layer_result->is_thinned_by_dropout |= s.is_thinned_by_dropout;
    clv_code code = reach_merge_values(&w->pool, (reach_profile)p,
                                       reach_get_op_row(n->op)->is_product, ret, &input_share, err);
    reach_value_done(&input_share);
    CLV_TRY(code);
  }
  if (!ret->elements) return reach_value_fill(ret, &shape, REACH_CONSTANT_ELEMENT, err);
  replace_absent_by_constant(ret);
  mark_tokens(w, k, ret);
  return CLV_OK;
}

static bool are_equal_values(const reach_value *a, const reach_value *b) {
  bool has_same_layout = a->sibling_axis == b->sibling_axis && a->dropout_rate == b->dropout_rate &&
                         a->n_elements_per_place == b->n_elements_per_place &&
                         memcmp(a->stored_extents, b->stored_extents,
                                (size_t)a->shape.rank * sizeof *a->stored_extents) == 0;
  return has_same_layout &&
         memcmp(a->elements, b->elements, reach_value_element_count(a) * sizeof *a->elements) == 0;
}

/* True if all profiles (exposed, narrow, wide) of the value of node k are equal, because no two
 * paths from the record meet in node k or before it. */
static bool has_equal_profiles(const reach_walk *w, int k) {
  const clv_node *n = &w->g->nodes[k];
  bool are_equal = n->n_in < 2 || n->op == CLV_OP_CONCAT;
  for (int i = 0; i < n->n_in; i++)
    for (int p = 1; p < REACH_N_PROFILES; p++) are_equal &= w->values[p][n->in[i]].borrows_elements;
  return are_equal;
}

static void share_first_profile(reach_walk *w, int k, int p) {
  w->values[p][k] = w->values[0][k];
  w->values[p][k].borrows_elements = true;
}

static clv_code make_profiles(reach_walk *w, int k, clv_err *err) {
  bool is_graph_input = is_input(w, k),
       has_one_profile = is_graph_input || has_equal_profiles(w, k);
  if (!is_graph_input) CLV_TRY(make_value(w, k, 0, err));
  for (int p = 1; p < REACH_N_PROFILES; p++) {
    if (!has_one_profile) CLV_TRY(make_value(w, k, p, err));
    bool has_same_elements =
        has_one_profile || are_equal_values(&w->values[0][k], &w->values[p][k]);
    if (!has_one_profile && has_same_elements) reach_value_done(&w->values[p][k]);
    if (has_same_elements) share_first_profile(w, k, p);
  }
  return CLV_OK;
}

static clv_code walk_nodes(reach_walk *w, clv_err *err) {
  for (int k = 0; k < w->g->n_nodes; k++) {
    bool is_graph_input = is_input(w, k);
    find_origin_node(w, k);
    if (!is_graph_input && w->g->nodes[k].layer > w->last_layer) continue;
    w->results[k].sums_two_places = w->results[k].never_sums_two_places = true;
    CLV_TRY(make_profiles(w, k, err));
    for (int p = 0; p < REACH_N_PROFILES; p++)
      reach_summarize_value(&w->pool, &w->values[p][k], &w->results[k]);
  }
  return CLV_OK;
}

/* ---- results of all walks through the graph -------------------------------------------------- */

/* Merges the result `other` into `to`. Each flag is set if it is set in either result, except that
 * sums_two_places and never_sums_two_places must be set in both; n_fewest_places and n_places are
 * those of the result with the smaller quotient n_fewest_places / n_places. */
static void merge_result(clv_reach *to, const clv_reach *other) {
  bool is_first = !to->n_places;
  double share = (double)other->n_fewest_places / (double)other->n_places;
  bool is_smaller = is_first || share < (double)to->n_fewest_places / (double)to->n_places;
  to->has_unmixed_path |= other->has_unmixed_path;
  to->has_unmixed_token_path |= other->has_unmixed_token_path;
  to->has_known_mixing |= other->has_known_mixing;
  to->exceeds_limits |= other->exceeds_limits;
  to->is_thinned_by_dropout |= other->is_thinned_by_dropout;
  to->has_narrow_element |= other->has_narrow_element;
  to->has_narrow_token_element |= other->has_narrow_token_element;
  to->sums_two_places = (is_first || to->sums_two_places) && other->sums_two_places;
  to->never_sums_two_places =
      (is_first || to->never_sums_two_places) && other->never_sums_two_places;
  if (to->reader_node < 0 || is_smaller) to->reader_node = other->reader_node;
  if (is_smaller) to->n_fewest_places = other->n_fewest_places;
  if (is_smaller) to->n_places = other->n_places;
}

static clv_code walk_under_assumption(const reach_walk *as, clv_reach *ret, clv_err *err) {
  size_t n = (size_t)as->g->n_nodes;
  CLV_AUTO(walk_done) reach_walk w = *as;
  for (int p = 0; p < REACH_N_PROFILES; p++)
    CLV_TRY(clv_alloc(n, sizeof *w.values[p], &w.values[p], err));
  CLV_TRY(clv_alloc(n, sizeof *w.origin_node, &w.origin_node, err));
  CLV_TRY(clv_alloc(n, sizeof *w.origin_factor, &w.origin_factor, err));
  CLV_TRY(clv_alloc(n, sizeof *w.results, &w.results, err));
  find_token_places(&w);
  CLV_TRY(reach_pool_init(&w.pool, count_places(&w), err));
  CLV_TRY(fill_inputs(&w, err));
  CLV_TRY(walk_nodes(&w, err));
  if (w.follows_gradients) CLV_TRY(reach_walk_back(&w, err));
  for (size_t k = 0; k < n; k++) merge_result(&ret[k], &w.results[k]);
  return CLV_OK;
}

/* ---- assumptions about the position of channels ---------------------------------------------- */

/* True if every reader of the value of node k implies that the channels are at `position`. A reader
 * that treats each element by itself implies nothing; instead of it, the nodes that read its output
 * must imply `position`. */
static bool are_channels_at(const clv_graph *g, int k, reach_channel_position position) {
  bool has_reader = false;
  for (int m = k + 1; m < g->n_nodes; m++)
    for (int i = 0; i < g->nodes[m].n_in; i++) {
      const reach_op *op = reach_get_op_row(g->nodes[m].op);
      if (g->nodes[m].in[i] != k) continue;
      bool implies_position =
          op->channel_position == position && reach_group_count(&g->nodes[m]) == 1;
      bool reads_each_element = op->channel_position == REACH_CHANNELS_EACH;
      if (!implies_position && !(reads_each_element && are_channels_at(g, m, position)))
        return false;
      has_reader = true;
    }
  return has_reader;
}

/* Assumptions about the inputs, under each of which the graph is walked once.
 * channels_may_be_last, channels_may_be_first: the channels of some input may be its last, or
 * its first dimension. inputs_only_reshaped: every flat input that a node reshapes is read only
 * in that reshaped form. */
typedef struct reach_assumptions {
  bool channels_may_be_last, channels_may_be_first, inputs_only_reshaped;
} reach_assumptions;

static reach_assumptions list_assumptions(const clv_graph *g) {
  reach_assumptions ret = {.inputs_only_reshaped = true};
  bool has_input = false;
  for (int k = 0; k < g->n_nodes; k++) {
    if (g->nodes[k].op != CLV_OP_INPUT || g->nodes[k].dtype == CLV_I64) continue;
    bool is_only_reshaped = true;
    int shape_node = find_shape_node(g, k, &is_only_reshaped);
    ret.inputs_only_reshaped &= shape_node == k || is_only_reshaped;
    if (g->nodes[shape_node].shape.rank < 3) continue;
    ret.channels_may_be_last |= !are_channels_at(g, shape_node, REACH_CHANNELS_FIRST);
    ret.channels_may_be_first |= !are_channels_at(g, shape_node, REACH_CHANNELS_LAST);
    has_input = true;
  }
  ret.channels_may_be_first |= !has_input;
  return ret;
}

/* Walks the graph under each assumption about its inputs. Keeps, for each node, the result that
 * shows most of the records. */
static clv_code walk_under_all_assumptions(const reach_walk *as, clv_reach *ret, clv_err *err) {
  const reach_assumptions r = list_assumptions(as->g);
  reach_walk w = *as;
  memset(ret, 0, (size_t)w.g->n_nodes * sizeof *ret);
  w.uses_reshaped_places = true;
  if (r.channels_may_be_first) CLV_TRY(walk_under_assumption(&w, ret, err));
  w.assumes_channels_last = true;
  if (r.channels_may_be_last || !r.channels_may_be_first)
    CLV_TRY(walk_under_assumption(&w, ret, err));
  w.uses_reshaped_places = w.assumes_channels_last = false;
  return r.inputs_only_reshaped ? CLV_OK : walk_under_assumption(&w, ret, err);
}

clv_code clv_reach_records_in_values(const clv_graph *g, const clv_weight_secrecy *layer_secrecy,
                                     uint32_t last_layer, clv_reach *ret, clv_err *err) {
  return walk_under_all_assumptions(
      &(reach_walk){.g = g, .layer_secrecy = layer_secrecy, .last_layer = last_layer}, ret, err);
}

clv_code clv_reach_records_in_gradients(const clv_graph *g, const clv_weight_secrecy *layer_secrecy,
                                        const bool *is_known, uint32_t first_layer, clv_reach *ret,
                                        clv_err *err) {
  const reach_walk w = {.g = g,
                        .layer_secrecy = layer_secrecy,
                        .is_known = is_known,
                        .last_layer = UINT32_MAX,
                        .gradient_end_layer = first_layer,
                        .follows_gradients = true};
  return walk_under_all_assumptions(&w, ret, err);
}
