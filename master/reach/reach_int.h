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
enum { REACH_EMPTY_SET = 0, REACH_FULL_SET = 1 };
/* most work (elements and words of sets that are read) of one analysis; so much work takes a few
 * seconds */
enum { REACH_MAX_WORK = 200 * 1000 * 1000 };

typedef struct reach_span {
  int32_t from, to; /* the places from..to - 1 */
} reach_span;

typedef struct reach_set {
  uint32_t at, n; /* at: index of the set's first span (range of places); n: number of its spans */
  int32_t n_places; /* number of places in the set */
} reach_set;

/* Sets of places (pixels, steps, tokens or features), each with a number. Equal sets have the same
 * number. */
typedef struct reach_set_pool {
  int64_t n_places; /* number of places of a record */
  reach_span *spans;
  reach_set *sets;
  uint32_t *hash_table; /* [1 << hash_table_bits] hash table of set numbers; 0: empty entry */
  uint64_t *bits;       /* bitmap of the places in the set under construction */
  size_t n_spans, spans_capacity, n_sets, sets_capacity;
  size_t lowest_word, highest_word; /* indexes of the first and last word of `bits` that is not 0 */
  int hash_table_bits;
  uint64_t work_done; /* work done so far: elements and words of sets that were read */
  /* true: a limit (REACH_MAX_WORK, or those of places and memory in sets.c) is exceeded; from then
   * on reach_propagate_worst_case makes all values */
  bool exceeds_limits;
  bool has_failed; /* true: an allocation has failed, so the results are not valid */
} reach_set_pool;

clv_code reach_pool_init(reach_set_pool *p, int64_t n_places, clv_err *err) CLV_USE_RESULT;
void reach_pool_done(reach_set_pool *p);
/* adds the places of a set to the set under construction */
void reach_pool_add_set(reach_set_pool *p, uint32_t set_number);
/* adds n places from `from` to the set under construction */
void reach_pool_add_span(reach_set_pool *p, int64_t from, int64_t n);
/* ends the set under construction and returns its number */
uint32_t reach_pool_take_set(reach_set_pool *p);
/* Adds `work` to p->work_done. False: a limit of the analysis is exceeded (exceeds_limits). */
static inline bool reach_charge_work(reach_set_pool *p, size_t work) {
  p->work_done += work;
  p->exceeds_limits |= p->work_done > REACH_MAX_WORK;
  return !p->exceeds_limits;
}
static inline int32_t reach_set_place_count(const reach_set_pool *p, uint32_t set_number) {
  return p->sets[set_number].n_places;
}

/* ---- elements of values ---------------------------------------------------------------------- */

/* Description of an element in 32 bits: the number of its set of places, and how the paths to the
 * element mix these places: not at all (REACH_FLAG_UNMIXED), by known weights (REACH_FLAG_MIXED),
 * by secret weights (REACH_FLAG_HIDDEN). */
typedef uint32_t reach_element;
enum {
  REACH_FLAG_UNMIXED = 1, /* some path to the element has no layer that mixes its places */
  REACH_FLAG_MIXED = 2,   /* on some path to the element, known weights mix its places */
  REACH_FLAG_HIDDEN = 4,  /* on some path to the element, secret weights mix its places */
  REACH_KIND_MASK = 7,    /* REACH_FLAG_UNMIXED, _MIXED and _HIDDEN */
  /* the path to the element goes through an embedding (token lookup) at the master */
  REACH_FLAG_TOKEN = 8,
  REACH_FLAG_ZERO = 16, /* the element is 0 for every record */
  REACH_FLAG_MASK = 31, /* all flags */
  /* number of low bits that hold flags; the bits above them hold the number of the set */
  REACH_SET_SHIFT = 5,
};
#define REACH_ABSENT_ELEMENT UINT32_MAX /* element to which no path from the record leads */

static inline uint32_t reach_element_set(reach_element e) { return e >> REACH_SET_SHIFT; }
/* True if the element is made of places (pixels, steps, tokens or features) of the record, so it is
 * neither absent nor constant. */
static inline bool reach_element_has_places(reach_element e) {
  return e != REACH_ABSENT_ELEMENT && reach_element_set(e);
}
static inline reach_element reach_make_element(uint32_t set_number, unsigned flags) {
  return set_number << REACH_SET_SHIFT | flags;
}
#define REACH_CONSTANT_ELEMENT reach_make_element(REACH_EMPTY_SET, 0)
#define REACH_ZERO_ELEMENT reach_make_element(REACH_EMPTY_SET, REACH_FLAG_ZERO)

/* ---- values (values.c) ----------------------------------------------------------------------- */

/* The elements of a value of one record (N = 1). Along an axis where all elements are equal only
 * one element is stored. */
typedef struct reach_value {
  clv_shape shape;
  /* stored extents along each axis: as in `shape`, or 1 along an axis where all elements are
   * equal */
  int64_t stored_extents[CLV_MAX_RANK];
  reach_element *elements; /* NULL: the value has no elements yet */
  bool borrows_elements;   /* another value owns `elements` */
  /* axis along which mixed elements with the same places are different sums of these places; 0: no
   * such axis is known */
  int sibling_axis;
  /* Dropout since the last layer with secret weights that mixed places. dropout_rate: 0 to 1;
   * n_elements_per_place: number of elements of a place that dropout drops independently. */
  double dropout_rate;
  int64_t n_elements_per_place;
} reach_value;

/* Returns the total rate of two dropouts in sequence. */
static inline double reach_combined_dropout_rate(double a, double b) {
  return 1 - (1 - a) * (1 - b);
}

size_t reach_value_element_count(const reach_value *v);
/* Allocates the elements of v, as many as v->stored_extents says. */
clv_code reach_value_alloc(reach_value *v, clv_err *err) CLV_USE_RESULT;
void reach_value_done(reach_value *v);
/* Makes a value with the given shape whose elements are all `e`. */
clv_code reach_value_fill(reach_value *v, const clv_shape *shape, reach_element e,
                          clv_err *err) CLV_USE_RESULT;
void reach_value_strides(const reach_value *v, int64_t ret[CLV_MAX_RANK]);
/* Advances an index within `extents`; false: it was the last index. */
bool reach_advance_index(int64_t *index, const int64_t *extents, int rank);
size_t reach_offset(const int64_t *index, const int64_t *strides, int rank);
/* reduces v to one stored element along each axis where all elements are equal */
void reach_compress_value(reach_value *v);
/* Makes `ret` from the elements of `from`: the same elements in row-major order, with another
 * shape. */
clv_code reach_reshape_value(reach_set_pool *p, const reach_value *from, const clv_shape *shape,
                             reach_value *ret, clv_err *err) CLV_USE_RESULT;

/* Rule by which a value keeps one of several paths to an element: the most exposed path, the
 * narrowest (made of the fewest places) or the widest. */
typedef enum reach_profile {
  REACH_PROFILE_EXPOSED,
  REACH_PROFILE_NARROW,
  REACH_PROFILE_WIDE,
  REACH_N_PROFILES
} reach_profile;

/* Merges the paths of `other` into `to`, which may have no elements yet; frees `other`. is_product:
 * the values are multiplied, so an element is zero if it is zero in either value. */
clv_code reach_merge_values(reach_set_pool *p, reach_profile profile, bool is_product,
                            reach_value *to, reach_value *other, clv_err *err) CLV_USE_RESULT;
/* Returns the one of the elements a and b that the profile keeps. */
reach_element reach_choose_path(const reach_set_pool *p, reach_profile profile, reach_element a,
                                reach_element b);

/* ---- relations of outputs to inputs (relations.c) -------------------------------------------- */

/* How index o along an axis of the output depends on index i along an axis of the input. */
typedef enum reach_index_relation {
  REACH_SAME,   /* index i = o: the same index */
  REACH_SHIFT,  /* i = o + a: index o moved by a */
  REACH_WINDOW, /* i = o * stride - pad + u * dilation, for all u of the kernel */
  /* o = i * stride - pad + u * dilation, for all u of the kernel: transposed convolution */
  REACH_TRANSPOSED_WINDOW,
  REACH_CAUSAL, /* i <= o: all indexes up to the output's */
  /* o / a = i / b, as integers: blocks of a outputs read blocks of b inputs */
  REACH_BLOCKS,
  /* heads of attention; a: values of a head; b: number of heads of the output for each head of the
   * input */
  REACH_HEADS,
  REACH_FLIP_OR_ROLL, /* i = (a + b * o) mod the extent of the axis; b: 1 or -1 */
  REACH_FIXED,        /* i = a, for all outputs: one fixed index */
  /* i is one of the taps of o, the inputs that o interpolates (clv_taps_of), along axis a of the
   * images */
  REACH_RESAMPLED,
} reach_index_relation;

typedef struct reach_axis {
  reach_index_relation index_relation;
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
  bool is_reshape;
  int n;
  reach_axis axes[2 * CLV_MAX_RANK];
} reach_relation;

/* Position of a record's channels, as an op that reads the record implies it. */
typedef enum reach_channel_position {
  REACH_CHANNELS_ANY,   /* the op does not say where the channels are */
  REACH_CHANNELS_EACH,  /* the op reads each element by itself, so it implies no position */
  REACH_CHANNELS_FIRST, /* [N, channels, places...], if the op has one group */
  REACH_CHANNELS_LAST,  /* the op reads [N, steps, channels] */
} reach_channel_position;

/* Row of the table of ops: how the outputs and the derivatives of an op depend on its inputs. */
typedef struct reach_op {
  void (*relate_output)(const clv_op_site *site, const clv_shape *out, int input,
                        reach_relation *ret);
  /* True if the derivative by input `to` depends on input `of`. A derivative that reads the op's
   * output depends on all inputs of that output. */
  bool (*derivative_reads)(int to, int of);
  /* For an op with two inputs: how the gradient of input `to` depends on the other input; NULL: in
   * the same way as on the gradient of the output. */
  void (*relate_back)(const clv_op_site *site, int to, reach_relation *ret);
  /* How the non-zero elements of the input's gradient depend on the output's gradient; NULL: as
   * `relate_output` says. */
  void (*relate_spread)(const clv_op_site *site, reach_relation *ret);
  reach_channel_position channel_position;
  bool is_product; /* the op multiplies its inputs: a zero in one makes the output zero */
  /* Returns the number of values that the op normalizes together; if that is 1 the output is a
   * constant. NULL: the op does not normalize. */
  int64_t (*count_normalized)(const clv_op_site *site);
} reach_op;

/* returns the row of an op in the table of ops; NULL: the op is an input of the graph */
const reach_op *reach_get_op_row(clv_op op);

/* ---- one step of the analysis (propagate.c) -------------------------------------------------- */

typedef struct reach_step {
  reach_set_pool *pool;
  const reach_relation *relation;
  bool is_backward; /* the step is backwards: from the output's gradient to an input's gradient */
  bool places_are_outputs; /* the places are outputs of the model (clv_reach_labels_in_gradients) */
  const reach_value *from;
  /* `from` before reach_drop_uniform_columns left out columns; NULL: it left out none */
  const reach_value *undropped_source;
  clv_shape to; /* shape of the result */
  /* the profile is REACH_PROFILE_WIDE, which ignores elements that secret weights have mixed */
  bool is_widest;
  bool has_weights; /* the op sums with weights */
  /* the layer has a bias, so an output that sums nothing is a constant, not zero */
  bool has_bias;
  double op_dropout_rate;  /* dropout rate of the op; 0: the op is no dropout */
  double key_dropout_rate; /* rate at which attention drops values of keys */
  /* the model has one output, so there is only one place; a layer then counts as summing if it has
   * several inputs */
  bool has_one_output;
  bool has_several_inputs;           /* the layer has several inputs */
  clv_weight_secrecy weight_secrecy; /* if has_weights: what workers know of the layer's weights */
  /* if has_weights: number of different sums that the layer makes of the same places */
  int64_t n_sums;
  int sums_axis;              /* axis along which the `n_sums` sums of the same places are */
  bool is_thinned_by_dropout; /* result: dropout leaves some output with a single place too often */
  bool sums_two_places, never_sums_two_places; /* results, if has_weights: as in clv_reach */
} reach_step;

/* Computes the elements that an input contributes to an output, or (is_backward) that the gradient
 * of an output contributes to the gradient of an input. */
clv_code reach_propagate(reach_step *s, reach_value *ret, clv_err *err) CLV_USE_RESULT;
/* Makes the result without following places: each element is as exposed and as narrow as the worst
 * element of the source. Called when a limit is exceeded (exceeds_limits), or when it is unknown
 * which elements are summed. */
clv_code reach_propagate_worst_case(reach_step *s, reach_value *ret, clv_err *err) CLV_USE_RESULT;

/* ---- columns that are the same at all positions (uniform_columns.c) -------------------------- */

/* Makes a copy of a layer's source without the places of columns that are the same at all positions
 * of the layer. ret has no elements if there are no such columns, or no others. */
clv_code reach_drop_uniform_columns(reach_step *s, reach_value *ret, clv_err *err) CLV_USE_RESULT;

/* ---- the walk through the graph, forwards and back (returned.c) ------------------------------ */

/* State of a walk through the graph under one assumption about the position of the records'
 * channels (first or last). */
typedef struct reach_walk {
  const clv_graph *g;
  const clv_weight_secrecy *layer_secrecy;
  /* [n_nodes] true: the node's value counts as a constant; NULL: no value does */
  const bool *is_known;
  /* last_layer: last layer to analyse; gradient_end_layer: layer to whose values gradients are
   * followed back */
  uint32_t last_layer, gradient_end_layer;
  bool follows_gradients; /* true: `results` are those of gradients; false: those of values */
  bool assumes_channels_last;
  /* a flat record has the places (such as pixels) of the shape to which the graph reshapes it */
  bool uses_reshaped_places;
  reach_set_pool pool;
  /* n_places: number of places of a record; n_token_places: number of places of sequences, -1: the
   * record has no sequences; first_token_place: first place of sequences */
  int64_t n_places, n_token_places, first_token_place;
  reach_value *values[REACH_N_PROFILES]; /* [n_nodes] elements of each node's value */
  /* [n_nodes] the other node of whose value this node's value is a multiple; the node's own index:
   * there is no such node */
  int *origin_node;
  double *origin_factor; /* [n_nodes] factor by which the value of origin_node is multiplied */
  clv_reach *results;    /* [n_nodes] results of this walk */
} reach_walk;

/* Replaces w->results by the results of gradients. Call it after the forward walk. */
clv_code reach_walk_back(reach_walk *w, clv_err *err) CLV_USE_RESULT;

/* ---- facts of single nodes (nodes.c) --------------------------------------------------------- */

static inline int64_t reach_group_count(const clv_node *n) { return CLV_MAX(n->attrs.groups, 1); }
/* returns the shape of a node's value for one record */
clv_shape reach_node_shape(const clv_graph *g, int node);
/* describes a node's op, with shapes of one record */
void reach_describe_op(const clv_graph *g, int node, clv_op_site *ret);
void reach_summarize_value(const reach_set_pool *p, const reach_value *v, clv_reach *ret);
/* True if node k normalizes a single value, so that its output is a constant. */
bool reach_is_constant(const clv_graph *g, int k);
/* Returns the step from input i of node k to its output; the caller sets `from`. */
reach_step reach_make_step(const clv_graph *g, int k, int i, reach_set_pool *pool,
                           const clv_weight_secrecy *layer_secrecy, reach_relation *relation);
/* Turns a step of node k into the backward step, whose sums are the gradients of the inputs. */
void reach_reverse_step(const clv_graph *g, int k, reach_step *s);

#endif
