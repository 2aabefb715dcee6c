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

enum { REACH_EMPTY = 0, REACH_FULL = 1 };    /* numbers of sets */
enum { REACH_MAX_WORK = 200 * 1000 * 1000 }; /* of one analysis: a few seconds */

typedef struct reach_span {
  int32_t from, to; /* places from..to - 1 */
} reach_span;

typedef struct reach_set {
  uint32_t at, n; /* index of its first span, number of spans */
  int32_t count;  /* number of places */
} reach_set;

/* Sets of places, named by number. Equal sets have the same number. */
typedef struct reach_pool {
  int64_t places;
  reach_span *spans;
  reach_set *sets;
  uint32_t *table; /* [1 << table_bits] numbers by hash, 0: none */
  uint64_t *bits;  /* bitmap of the set under construction */
  size_t n_spans, cap_spans, n_sets, cap_sets, lowest, highest;
  int table_bits;
  uint64_t work;       /* elements read so far, and words of sets */
  bool is_over_budget; /* the budget is used up: reach_give_up makes all later values */
  bool failed;         /* out of memory */
} reach_pool;

clv_code reach_pool_init(reach_pool *p, int64_t places, clv_err *err) CLV_USE_RESULT;
void reach_pool_done(reach_pool *p);
void reach_pool_add(reach_pool *p, uint32_t set); /* adds to the set under construction */
void reach_pool_add_run(reach_pool *p, int64_t from, int64_t n); /* adds n places */
uint32_t reach_pool_take(reach_pool *p); /* ends the set, returns its number */
/* Charges work to the budget. false: the budget is used up. */
static inline bool reach_charge_work(reach_pool *p, size_t work) {
  p->work += work;
  p->is_over_budget |= p->work > REACH_MAX_WORK;
  return !p->is_over_budget;
}
static inline int32_t reach_set_count(const reach_pool *p, uint32_t set) {
  return p->sets[set].count;
}

/* ---- elements -------------------------------------------------------------------------------- */

/* Description of an element in 32 bits: its set of places, and how the paths that it sums have
 * mixed them: not at all (UNMIXED), by known weights (MIXED), by secret weights (HIDDEN). */
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
#define REACH_ABSENT UINT32_MAX /* there is no such path */

static inline uint32_t reach_set_of(reach_element e) { return e >> REACH_SET_SHIFT; }
static inline bool reach_is_path(reach_element e) { return e != REACH_ABSENT && reach_set_of(e); }
static inline reach_element reach_make_element(uint32_t set, unsigned flags) {
  return set << REACH_SET_SHIFT | flags;
}
#define REACH_CONSTANT reach_make_element(REACH_EMPTY, 0)
#define REACH_NOTHING reach_make_element(REACH_EMPTY, REACH_ZERO)

/* ---- values (values.c) ----------------------------------------------------------------------- */

/* The elements of a value, N = 1. An axis along which all elements are equal is stored once. */
typedef struct reach_value {
  clv_shape shape;
  int64_t kept[CLV_MAX_RANK]; /* extents of `element`: those of shape, or 1 */
  reach_element *element;     /* NULL: the value has no elements yet */
  bool borrowed;              /* another value owns `element` */
  int siblings; /* axis along which mixed elements with the same places are different sums; 0: no
                 * such axis is known */
  /* Dropout since the last secret layer that mixed: its rate, 0 to 1, and the number of elements of
   * a place that it leaves out independently. */
  double dropped;
  int64_t copies;
} reach_value;

/* Returns the rate of two dropouts in sequence. */
static inline double reach_dropped_twice(double a, double b) { return 1 - (1 - a) * (1 - b); }

size_t reach_value_count(const reach_value *v);
/* Allocates the elements of v by v->kept. */
clv_code reach_value_alloc(reach_value *v, clv_err *err) CLV_USE_RESULT;
void reach_value_done(reach_value *v);
/* Makes a value of the shape, all elements of which are e. */
clv_code reach_value_fill(reach_value *v, const clv_shape *shape, reach_element e,
                          clv_err *err) CLV_USE_RESULT;
void reach_value_steps(const reach_value *v, int64_t ret[CLV_MAX_RANK]);
/* Advances the index within `extents`; false: it was the last one. */
bool reach_next_index(int64_t *index, const int64_t *extents, int rank);
size_t reach_offset(const int64_t *index, const int64_t *steps, int rank);
void reach_compress(reach_value *v); /* stores axes with equal elements once */
/* Makes ret from the elements of `from`, in row-major order under another shape. */
clv_code reach_reshape(reach_pool *p, const reach_value *from, const clv_shape *shape,
                       reach_value *ret, clv_err *err) CLV_USE_RESULT;

/* Kind of path that a profile keeps, of several paths to an element. */
typedef enum reach_profile {
  REACH_EXPOSED,
  REACH_NARROW,
  REACH_WIDE,
  REACH_PROFILES
} reach_profile;

/* Merges the paths of `other` into `to`, which may have no elements yet. Consumes `other`. product:
 * an element is zero if it is zero in either value. */
clv_code reach_merge(reach_pool *p, reach_profile profile, bool product, reach_value *to,
                     reach_value *other, clv_err *err) CLV_USE_RESULT;
/* Returns the element that a profile keeps. */
reach_element reach_choose_path(const reach_pool *p, reach_profile profile, reach_element a,
                                reach_element b);

/* ---- relations (relations.c) ----------------------------------------------------------------- */

/* How output o along one axis depends on input i along another. */
typedef enum reach_kind {
  REACH_SAME,              /* i = o */
  REACH_SHIFT,             /* i = o + a */
  REACH_WINDOW,            /* i = o stride - pad + u dilation, for all u of the kernel */
  REACH_TRANSPOSED_WINDOW, /* o = i stride - pad + u dilation */
  REACH_CAUSAL,            /* i <= o */
  REACH_BLOCKS,            /* o / a = i / b */
  REACH_HEADS,             /* heads of a values; b heads of the output for one of the input */
  REACH_FIXED,             /* i = a, for all outputs */
} reach_kind;

typedef struct reach_axis {
  reach_kind kind;
  int out, in; /* axes */
  int64_t a, b;
  int64_t kernel, stride, pad, dilation;
} reach_axis;

/* Axes by which an output depends on an input. Along an axis of the output that is in no entry all
 * elements are equal; an axis of the input that is in no entry is summed. */
typedef struct reach_relation {
  bool none;     /* no output depends on the input */
  bool reshapes; /* the elements keep their row-major order; n is 0 */
  int n;
  reach_axis axis[2 * CLV_MAX_RANK];
} reach_relation;

/* Position of a record's channels, as an op that reads the record implies it. */
typedef enum reach_channels {
  REACH_CHANNELS_ANY,
  REACH_CHANNELS_EACH,  /* no position: the op reads each element by itself */
  REACH_CHANNELS_FIRST, /* [N, channels, places...], if the op has one group */
  REACH_CHANNELS_LAST,  /* [N, steps, channels] */
} reach_channels;

/* Table row of an op. */
typedef struct reach_op {
  void (*relate)(const clv_op_site *site, const clv_shape *out, int input, reach_relation *ret);
  /* True if the derivative by input `to` depends on input `of`. A derivative that reads the op's
   * output depends on all inputs of that output. */
  bool (*reads)(int to, int of);
  /* Relation of the gradient of input `to` to the other one of two inputs; NULL: that of the
   * output. */
  void (*back)(const clv_op_site *site, int to, reach_relation *ret);
  /* Relation of the non-zero elements of the input's gradient to the output's gradient; NULL:
   * relate describes it. */
  void (*spread)(const clv_op_site *site, reach_relation *ret);
  reach_channels channels;
  bool product; /* a zero in one input makes the output zero */
  /* Number of values that the op normalizes together: with one value its output is a constant.
   * NULL: the op does not normalize. */
  int64_t (*normalizes)(const clv_op_site *site);
} reach_op;

const reach_op *reach_op_of(clv_op op); /* NULL for inputs */

/* ---- one step (propagate.c) ------------------------------------------------------------------ */

typedef struct reach_step {
  reach_pool *pool;
  const reach_relation *relation;
  bool back;   /* from the output's gradient to the input's */
  bool labels; /* places are outputs of the model */
  const reach_value *from;
  /* `from` before reach_drop_uniform_columns; NULL: nothing was dropped */
  const reach_value *whole;
  clv_shape to;      /* shape of the result */
  bool widest;       /* profile REACH_WIDE, which ignores hidden elements */
  bool weighs;       /* the op sums with weights */
  bool constant;     /* the layer has a bias, so an empty sum is a constant, not zero */
  double drops;      /* rate of a dropout op; 0: the op is no dropout */
  double drops_keys; /* rate at which attention leaves out values of keys */
  bool scalar;       /* the model has one output: `several` says whether the layer sums */
  bool several;
  clv_reach_layer layer; /* weighs: knowledge of its weights */
  int64_t width;         /* weighs: number of different sums of the same places */
  int width_axis;        /* axis of these sums */
  bool thinned;          /* result: dropout leaves an output with a single place too often */
  bool sums, sums_none;  /* results, weighs: as of clv_reach */
} reach_step;

/* Makes the elements that an input adds to an output, or (back) that the gradient of an output adds
 * to that of an input. */
clv_code reach_propagate(reach_step *s, reach_value *ret, clv_err *err) CLV_USE_RESULT;
/* Makes a value without following places: each element is as exposed and as narrow as the worst
 * element of the source. */
clv_code reach_give_up(reach_step *s, reach_value *ret, clv_err *err) CLV_USE_RESULT;

/* ---- columns (uniform_columns.c) ------------------------------------------------------------- */

/* Makes a copy of the source of a layer without the places of columns that are the same at each of
 * its positions. ret has no elements if there are no such columns. */
clv_code reach_drop_uniform_columns(reach_step *s, reach_value *ret, clv_err *err) CLV_USE_RESULT;

/* ---- from the records, and back (returned.c) ------------------------------------------------- */

/* State of a walk of the graph, for one assumption about the position of the records' channels. */
typedef struct reach_walk {
  const clv_graph *g;
  const clv_reach_layer *layers;
  const bool *known;      /* [n_nodes] values that count as constants; NULL: no value */
  uint32_t last, back_to; /* last layer to analyze; last layer that gradients do not pass */
  bool returns;           /* `found` is that of gradients */
  bool channels_last;
  bool lays_out; /* a flat record has the places of the shape that the graph gives it */
  reach_pool pool;
  int64_t places, tokens, tokens_at;   /* tokens: places of sequences; -1: no sequences */
  reach_value *values[REACH_PROFILES]; /* [n_nodes] */
  int *origin;                         /* [n_nodes] node of which the value is a multiple */
  double *factor;                      /* [n_nodes] factor of that multiple */
  clv_reach *found;                    /* [n_nodes] results of this walk */
} reach_walk;

/* Replaces w->found by the results of gradients. Call it after the walk forwards. */
clv_code reach_walk_back(reach_walk *w, clv_err *err) CLV_USE_RESULT;

/* ---- all directions (forward.c) ------------------------------------------------------------- */

static inline int64_t reach_groups_of(const clv_node *n) { return CLV_MAX(n->attrs.groups, 1); }
clv_shape reach_shape(const clv_graph *g, int node); /* shape of its value, for one record */
void reach_op_site(const clv_graph *g, int node, clv_op_site *ret); /* with shapes of one record */
void reach_summarize(const reach_pool *p, const reach_value *v, clv_reach *ret);
/* True if node k normalizes one value alone, so that its output is a constant. */
bool reach_is_constant(const clv_graph *g, int k);
/* Returns the step from input i of node k to its output; the caller sets `from`. */
reach_step reach_step_of(const clv_graph *g, int k, int i, reach_pool *pool,
                         const clv_reach_layer *layers, reach_relation *relation);
/* Turns the step of node k to the backward direction: its sums are those of the inputs' gradients.
 * */
void reach_step_reverse(const clv_graph *g, int k, reach_step *s);

#endif
