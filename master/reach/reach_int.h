/* SPDX-License-Identifier: Apache-2.0
 *
 * reach_int: types and functions that the files of this folder share. sets.c stores sets of places,
 * relations.c has the relation of each op's outputs to its inputs, values.c the elements of a
 * value, propagate.c computes one value from another, uniform_columns.c removes columns that are
 * the same at all positions of a layer, and nodes.c has facts of single nodes. forward.c walks the
 * graph from the records on, returned.c follows the records back in gradients, and backward.c the
 * labels.
 */
#ifndef CLEAVE_MASTER_REACH_INT_H
#define CLEAVE_MASTER_REACH_INT_H

#include "master/reach/reach.h"

/* ---- sets of places (sets.c) ----------------------------------------------------------------- */

/* numbers of the empty set and of the set of all places */
enum { REACH_EMPTY = 0, REACH_FULL = 1 };
/* most work (elements and words of sets that are read) of one analysis; it takes a few seconds */
enum { REACH_MAX_WORK = 200 * 1000 * 1000 };

typedef struct reach_span {
  int32_t from, to; /* the places from..to - 1 */
} reach_span;

typedef struct reach_set {
  uint32_t at, n; /* at: index of the set's first span; n: number of its spans */
  int32_t count;  /* number of places in the set */
} reach_set;

/* Sets of places (pixels, steps, tokens or features), each with a number. Equal sets have the same
 * number. */
typedef struct reach_pool {
  int64_t n_places; /* number of places of a record */
  reach_span *spans;
  reach_set *sets;
  uint32_t *table; /* [1 << table_bits] hash table of set numbers; 0: empty entry */
  uint64_t *bits;  /* bitmap of the set under construction */
  size_t n_spans, cap_spans, n_sets, cap_sets, lowest, highest;
  int table_bits;
  uint64_t work; /* work done so far: elements and words of sets that were read */
  /* true: the budget of work is used up; from then on reach_give_up makes all values */
  bool is_over_budget;
  bool has_failed; /* true: an allocation has failed, so the results are not valid */
} reach_pool;

clv_code reach_pool_init(reach_pool *p, int64_t places, clv_err *err) CLV_USE_RESULT;
void reach_pool_done(reach_pool *p);
/* adds the places of a set to the set under construction */
void reach_pool_add(reach_pool *p, uint32_t set);
/* adds n places from `from` to the set under construction */
void reach_pool_add_run(reach_pool *p, int64_t from, int64_t n);
/* ends the set under construction and returns its number */
uint32_t reach_pool_take(reach_pool *p);
/* Adds work to that done so far. False: the budget (REACH_MAX_WORK) is used up. */
static inline bool reach_charge_work(reach_pool *p, size_t work) {
  p->work += work;
  p->is_over_budget |= p->work > REACH_MAX_WORK;
  return !p->is_over_budget;
}
static inline int32_t reach_set_count(const reach_pool *p, uint32_t set) {
  return p->sets[set].count;
}

/* ---- elements of values ---------------------------------------------------------------------- */

/* Description of an element in 32 bits: the number of its set of places, and how the paths that the
 * element sums have mixed these places: not at all (UNMIXED), by known weights (MIXED), by secret
 * weights (HIDDEN). */
typedef uint32_t reach_element;
enum {
  REACH_UNMIXED = 1,
  REACH_MIXED = 2,
  REACH_HIDDEN = 4,
  REACH_KINDS = 7,
  REACH_TOKEN = 8,
  REACH_ZERO = 16,
  REACH_FLAGS = 31,
  REACH_SET_SHIFT = 5,
};
#define REACH_ABSENT UINT32_MAX /* element without any path */

static inline uint32_t reach_set_of(reach_element e) { return e >> REACH_SET_SHIFT; }
static inline bool reach_is_path(reach_element e) { return e != REACH_ABSENT && reach_set_of(e); }
static inline reach_element reach_make_element(uint32_t set, unsigned flags) {
  return set << REACH_SET_SHIFT | flags;
}
#define REACH_CONSTANT reach_make_element(REACH_EMPTY, 0)
#define REACH_NOTHING reach_make_element(REACH_EMPTY, REACH_ZERO)

/* ---- values (values.c) ----------------------------------------------------------------------- */

/* The elements of a value of one record (N = 1). Along an axis where all elements are equal only
 * one is stored. */
typedef struct reach_value {
  clv_shape shape;
  /* stored extents along each axis: as in `shape`, or 1 along an axis where all elements are
   * equal */
  int64_t stored_extents[CLV_MAX_RANK];
  reach_element *element; /* NULL: the value has no elements yet */
  bool is_borrowed;       /* another value owns `element` */
  /* axis along which mixed elements with the same places are different sums of these places; 0: no
   * such axis is known */
  int sibling_axis;
  /* Dropout since the last layer with secret weights that mixed places. dropout_rate: 0 to 1;
   * n_copies: number of elements of a place that dropout drops independently. */
  double dropout_rate;
  int64_t n_copies;
} reach_value;

/* Returns the total rate of two dropouts in sequence. */
static inline double reach_combined_dropout_rate(double a, double b) {
  return 1 - (1 - a) * (1 - b);
}

size_t reach_value_count(const reach_value *v);
/* Allocates the elements of v, as many as v->stored_extents says. */
clv_code reach_value_alloc(reach_value *v, clv_err *err) CLV_USE_RESULT;
void reach_value_done(reach_value *v);
/* Makes a value of a shape whose elements are all e. */
clv_code reach_value_fill(reach_value *v, const clv_shape *shape, reach_element e,
                          clv_err *err) CLV_USE_RESULT;
void reach_value_steps(const reach_value *v, int64_t ret[CLV_MAX_RANK]);
/* Advances an index within `extents`; false: it was the last index. */
bool reach_next_index(int64_t *index, const int64_t *extents, int rank);
size_t reach_offset(const int64_t *index, const int64_t *steps, int rank);
/* keeps only one element along each axis where all elements are equal */
void reach_compress(reach_value *v);
/* Makes ret from the elements of `from`, in row-major order under another shape. */
clv_code reach_reshape(reach_pool *p, const reach_value *from, const clv_shape *shape,
                       reach_value *ret, clv_err *err) CLV_USE_RESULT;

/* Rule by which a value keeps one of several paths to an element: the most exposed path, the
 * narrowest (made of the fewest places) or the widest. */
typedef enum reach_profile {
  REACH_EXPOSED,
  REACH_NARROW,
  REACH_WIDE,
  REACH_PROFILES
} reach_profile;

/* Merges the paths of `other` into `to`, which may have no elements yet; frees `other`. product:
 * the values are multiplied, so an element is zero if it is zero in either. */
clv_code reach_merge(reach_pool *p, reach_profile profile, bool is_product, reach_value *to,
                     reach_value *other, clv_err *err) CLV_USE_RESULT;
/* Returns the one of the elements a and b that the profile keeps. */
reach_element reach_choose_path(const reach_pool *p, reach_profile profile, reach_element a,
                                reach_element b);

/* ---- relations of outputs to inputs (relations.c) -------------------------------------------- */

/* How index o along an axis of the output depends on index i along an axis of the input. */
typedef enum reach_kind {
  REACH_SAME,   /* index i = o: the same index */
  REACH_SHIFT,  /* i = o + a: an index moved by a */
  REACH_WINDOW, /* i = o stride - pad + u dilation, for all u of the kernel */
  /* o = i stride - pad + u dilation, for all u of the kernel: transposed convolution */
  REACH_TRANSPOSED_WINDOW,
  REACH_CAUSAL, /* i <= o: all indexes up to the output's */
  /* o / a = i / b, as integers: blocks of a outputs read blocks of b inputs */
  REACH_BLOCKS,
  /* a: values of a head; b: number of heads of the output for each head of the input */
  REACH_HEADS,
  REACH_TURNED,    /* i = (a + b o) mod the extent of the axis; b: 1 or -1 */
  REACH_FIXED,     /* i = a, for all outputs: one fixed index */
  REACH_RESAMPLED, /* i is one of the taps of o (clv_taps_of) along axis a of the images */
} reach_kind;

typedef struct reach_axis {
  reach_kind kind;
  int out, in; /* axis of the output, axis of the input */
  int64_t a, b;
  int64_t kernel, stride, pad, dilation;
  clv_resample resample;
} reach_axis;

/* How an output depends on an input, axis by axis. Along an output axis that no entry names all
 * elements are equal; an input axis that no entry names is summed. */
typedef struct reach_relation {
  bool is_independent; /* no output depends on the input */
  /* the op only changes the shape: elements keep their row-major order, and n is 0 */
  bool reshapes;
  int n;
  reach_axis axis[2 * CLV_MAX_RANK];
} reach_relation;

/* Position of a record's channels, as an op that reads the record implies it. */
typedef enum reach_channels {
  REACH_CHANNELS_ANY,   /* the op does not say where the channels are */
  REACH_CHANNELS_EACH,  /* the op reads each element by itself, so it implies no position */
  REACH_CHANNELS_FIRST, /* [N, channels, places...], if the op has one group */
  REACH_CHANNELS_LAST,  /* the op reads [N, steps, channels] */
} reach_channels;

/* Row of the table of ops: how the outputs and the derivatives of an op depend on its inputs. */
typedef struct reach_op {
  void (*relate)(const clv_op_site *site, const clv_shape *out, int input, reach_relation *ret);
  /* True if the derivative by input `to` depends on input `of`. A derivative that reads the op's
   * output depends on all inputs of that output. */
  bool (*reads)(int to, int of);
  /* For an op with two inputs: how the gradient of input `to` depends on the other input; NULL: as
   * it depends on the gradient of the output. */
  void (*back)(const clv_op_site *site, int to, reach_relation *ret);
  /* How the non-zero elements of the input's gradient depend on the output's gradient; NULL: as
   * `relate` says. */
  void (*spread)(const clv_op_site *site, reach_relation *ret);
  reach_channels channels;
  bool multiplies; /* the op multiplies its inputs: a zero in one makes the output zero */
  /* Returns the number of values that the op normalizes together; if that is 1 the output is a
   * constant. NULL: the op does not normalize. */
  int64_t (*normalizes)(const clv_op_site *site);
} reach_op;

const reach_op *reach_op_of(clv_op op); /* row of an op; NULL: the op is an input of the graph */

/* ---- one step of the analysis (propagate.c) -------------------------------------------------- */

typedef struct reach_step {
  reach_pool *pool;
  const reach_relation *relation;
  bool is_backward; /* the step is backwards: from the output's gradient to an input's gradient */
  bool places_are_outputs; /* the places are outputs of the model (clv_reach_backward) */
  const reach_value *from;
  /* `from` before reach_drop_uniform_columns left out columns; NULL: it left out none */
  const reach_value *undropped_from;
  clv_shape to;     /* shape of the result */
  bool is_widest;   /* the profile is REACH_WIDE, which ignores hidden elements */
  bool has_weights; /* the op sums with weights */
  /* the layer has a bias, so an output that sums nothing is a constant, not zero */
  bool has_bias;
  double op_dropout_rate;  /* dropout rate of the op; 0: the op is no dropout */
  double key_dropout_rate; /* rate at which attention drops values of keys */
  /* the model has one output, so there is one place; a layer counts as summing if it has several
   * inputs */
  bool has_one_output;
  bool has_several_inputs; /* the layer has several inputs */
  clv_reach_layer layer;   /* if has_weights: what workers know of the layer's weights */
  /* if has_weights: number of different sums that the layer makes of the same places */
  int64_t width;
  int width_axis;           /* axis along which the `width` sums of the same places are */
  bool is_thinned;          /* result: dropout leaves some output with a single place too often */
  bool sums_two, sums_none; /* results, if has_weights: as in clv_reach */
} reach_step;

/* Computes the elements that an input contributes to an output, or (is_backward) that the gradient
 * of an output contributes to the gradient of an input. */
clv_code reach_propagate(reach_step *s, reach_value *ret, clv_err *err) CLV_USE_RESULT;
/* Makes the result without following places: each element is as exposed and as narrow as the worst
 * element of the source. Called when the budget of work is used up. */
clv_code reach_give_up(reach_step *s, reach_value *ret, clv_err *err) CLV_USE_RESULT;

/* ---- columns that are the same everywhere (uniform_columns.c) -------------------------------- */

/* Makes a copy of a layer's source without the places of columns that are the same at all positions
 * of the layer. ret has no elements if there are no such columns, or no others. */
clv_code reach_drop_uniform_columns(reach_step *s, reach_value *ret, clv_err *err) CLV_USE_RESULT;

/* ---- the walk through the graph, forwards and back (returned.c) ------------------------------ */

/* State of a walk through the graph under one assumption about the position of the records'
 * channels (first or last). */
typedef struct reach_walk {
  const clv_graph *g;
  const clv_reach_layer *layers;
  /* [n_nodes] true: the node's value counts as a constant; NULL: no value does */
  const bool *is_known;
  /* last: last layer to analyse; gradient_end_layer: gradients are followed back to its values */
  uint32_t last, gradient_end_layer;
  bool follows_returned; /* true: `results` are those of gradients; false: those of values */
  bool channels_last;
  /* a flat record has the places of the shape to which the graph reshapes it */
  bool uses_reshaped_form;
  reach_pool pool;
  /* n_places: number of places of a record; n_token_places: number of places of sequences, -1: no
   * sequences; first_token_place: first place of sequences */
  int64_t n_places, n_token_places, first_token_place;
  reach_value *values[REACH_PROFILES]; /* [n_nodes] elements of each node's value */
  /* [n_nodes] node of which the node's value is a multiple; the node itself: none */
  int *origin_node;
  double *factor;     /* [n_nodes] factor of that multiple */
  clv_reach *results; /* [n_nodes] results of this walk */
} reach_walk;

/* Replaces w->results by the results of gradients. Call it after the forward walk. */
clv_code reach_walk_back(reach_walk *w, clv_err *err) CLV_USE_RESULT;

/* ---- facts of single nodes (nodes.c) --------------------------------------------------------- */

static inline int64_t reach_groups_of(const clv_node *n) { return CLV_MAX(n->attrs.groups, 1); }
clv_shape reach_shape(const clv_graph *g, int node); /* shape of a node's value, for one record */
/* describes a node's op, with shapes of one record */
void reach_op_site(const clv_graph *g, int node, clv_op_site *ret);
void reach_summarize(const reach_pool *p, const reach_value *v, clv_reach *ret);
/* True if node k normalizes a single value, so that its output is a constant. */
bool reach_is_constant(const clv_graph *g, int k);
/* Returns the step from input i of node k to its output; the caller sets `from`. */
reach_step reach_step_of(const clv_graph *g, int k, int i, reach_pool *pool,
                         const clv_reach_layer *layers, reach_relation *relation);
/* Turns a step of node k into the backward step: its sums are then those of the inputs'
 * gradients. */
void reach_step_reverse(const clv_graph *g, int k, reach_step *s);

#endif
