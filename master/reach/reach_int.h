/* SPDX-License-Identifier: Apache-2.0
 *
 * reach_int: what the files of this folder know for each other. sets.c has sets of places,
 * relations.c what each op does to elements, values.c the elements of a value, propagate.c one step
 * from value to value, uniform_columns.c what a layer is given alike at all of its positions,
 * nodes.c what is of one node. forward.c walks the graph from the records, returned.c from there
 * back in gradients, and backward.c from the labels.
 */
#ifndef CLEAVE_MASTER_REACH_INT_H
#define CLEAVE_MASTER_REACH_INT_H

#include "master/reach/reach.h"

/* ---- sets of places (sets.c) ----------------------------------------------------------------- */

enum { REACH_EMPTY = 0, REACH_FULL = 1 };    /* numbers of sets */
enum { REACH_MAX_WORK = 200 * 1000 * 1000 }; /* of one analysis, a few seconds */

typedef struct reach_span {
  int32_t from, to; /* places from..to - 1 */
} reach_span;

typedef struct reach_set {
  uint32_t at, n; /* its spans */
  int32_t count;  /* of places */
} reach_set;

/* Sets by number: equal sets have the same one. */
typedef struct reach_pool {
  int64_t places;
  reach_span *spans;
  reach_set *sets;
  uint32_t *table; /* [1 << table_bits] numbers by hash, 0: none */
  uint64_t *bits;  /* the set that is being made */
  size_t n_spans, cap_spans, n_sets, cap_sets, lowest, highest;
  int table_bits;
  uint64_t work; /* elements read so far, and words of sets */
  bool spent;    /* the budget is: what is made from now on is one element of what it is made of */
  bool failed;   /* out of memory */
} reach_pool;

clv_code reach_pool_init(reach_pool *p, int64_t places, clv_err *err) CLV_USE_RESULT;
void reach_pool_done(reach_pool *p);
void reach_pool_add(reach_pool *p, uint32_t set);                /* to the set that is being made */
void reach_pool_add_run(reach_pool *p, int64_t from, int64_t n); /* n places */
uint32_t reach_pool_take(reach_pool *p); /* its number; the next one begins empty */
/* Of the budget of work; false: it is spent. */
static inline bool reach_charge_work(reach_pool *p, size_t work) {
  p->work += work;
  p->spent |= p->work > REACH_MAX_WORK;
  return !p->spent;
}
static inline int32_t reach_set_count(const reach_pool *p, uint32_t set) {
  return p->sets[set].count;
}

/* ---- elements -------------------------------------------------------------------------------- */

/* What an element is made of, in 32 bits: the set, and what has become of the places on the paths
 * that are summed in it: nothing, mixed by known weights, mixed by secret ones. */
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

/* The elements of a value, N = 1. An axis along which all are alike is there once. */
typedef struct reach_value {
  clv_shape shape;
  int64_t kept[CLV_MAX_RANK]; /* extents of `element`: those of shape, or 1 */
  reach_element *element;     /* NULL: there is none */
  bool borrowed;              /* it is another value's */
  int siblings; /* the axis along which mixed elements with the same places are different sums; 0:
                   none is known */
  /* What dropout may leave out since a secret layer has mixed: the rate, 0 to 1, and how many
   * elements of a place it leaves out each by itself. */
  double dropped;
  int64_t copies;
} reach_value;

/* The rate of two in a row. */
static inline double reach_dropped_twice(double a, double b) { return 1 - (1 - a) * (1 - b); }

size_t reach_value_count(const reach_value *v);
/* With room for its elements by v->kept. */
clv_code reach_value_alloc(reach_value *v, clv_err *err) CLV_USE_RESULT;
void reach_value_done(reach_value *v);
/* Of this shape, all elements alike. */
clv_code reach_value_fill(reach_value *v, const clv_shape *shape, reach_element e,
                          clv_err *err) CLV_USE_RESULT;
void reach_value_steps(const reach_value *v, int64_t ret[CLV_MAX_RANK]);
/* Goes to the next index within `extents`; false: that was the last. */
bool reach_next_index(int64_t *index, const int64_t *extents, int rank);
size_t reach_offset(const int64_t *index, const int64_t *steps, int rank);
void reach_compress(reach_value *v); /* axes along which all are alike are kept once */
/* The same elements in row-major order under another shape. */
clv_code reach_reshape(reach_pool *p, const reach_value *from, const clv_shape *shape,
                       reach_value *ret, clv_err *err) CLV_USE_RESULT;

/* Which of several paths to an element a profile keeps. */
typedef enum reach_profile {
  REACH_EXPOSED,
  REACH_NARROW,
  REACH_WIDE,
  REACH_PROFILES
} reach_profile;

/* Another path to the elements of `to`, which may be without any; `other` is consumed. product:
 * where either is zero, so is the result. */
clv_code reach_merge(reach_pool *p, reach_profile profile, bool product, reach_value *to,
                     reach_value *other, clv_err *err) CLV_USE_RESULT;
/* The one that a profile keeps. */
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
  REACH_HEADS,             /* values a wide; b heads of the output for one of the input */
  REACH_FIXED,             /* i = a; along no axis of the output */
} reach_kind;

typedef struct reach_axis {
  reach_kind kind;
  int out, in; /* axes */
  int64_t a, b;
  int64_t kernel, stride, pad, dilation;
} reach_axis;

/* Axes of the output that are in none are alike; all of such an axis of the input is summed. */
typedef struct reach_relation {
  bool none;     /* no output depends on the input */
  bool reshapes; /* row-major order is kept; there are no axes */
  int n;
  reach_axis axis[2 * CLV_MAX_RANK];
} reach_relation;

/* What an op says of where a record's channels are. */
typedef enum reach_channels {
  REACH_CHANNELS_ANY,
  REACH_CHANNELS_EACH,  /* nothing: it takes each by itself */
  REACH_CHANNELS_FIRST, /* [N, channels, places...], where it has one group */
  REACH_CHANNELS_LAST,  /* [N, steps, channels] */
} reach_channels;

/* The row of an op. */
typedef struct reach_op {
  void (*relate)(const clv_op_site *site, const clv_shape *out, int input, reach_relation *ret);
  /* Does the derivative by input `to` depend on input `of`? On the op's output it depends as on all
   * inputs that this is made of. */
  bool (*reads)(int to, int of);
  /* How the gradient of input `to` of two depends on the other one; NULL: as the output does. */
  void (*back)(const clv_op_site *site, int to, reach_relation *ret);
  /* Which elements of the output's gradient make any of the input's other than zero, where relate
   * does not say it; NULL: it does. */
  void (*spread)(const clv_op_site *site, reach_relation *ret);
  reach_channels channels;
  bool product; /* a zero in one input makes the output zero */
  /* Of all values of one axis: what is left is a constant if that has one value. NULL: no. */
  int64_t (*normalizes)(const clv_op_site *site);
} reach_op;

const reach_op *reach_op_of(clv_op op); /* NULL for inputs */

/* ---- one step (propagate.c) ------------------------------------------------------------------ */

typedef struct reach_step {
  reach_pool *pool;
  const reach_relation *relation;
  bool back;   /* from the output to the input */
  bool labels; /* places are outputs of the model */
  const reach_value *from;
  /* `from` with what reach_drop_uniform_columns leaves out; NULL: nothing is */
  const reach_value *whole;
  clv_shape to;      /* shape of what is made */
  bool widest;       /* of that profile, in which hidden elements do not count */
  bool weighs;       /* the op sums with weights */
  bool constant;     /* with nothing summed there is still a bias */
  double drops;      /* rate of dropout that the op is; 0: it is none */
  double drops_keys; /* rate at which attention leaves out values of keys */
  bool scalar;       /* the model has one output: `several` says whether the layer sums */
  bool several;
  clv_reach_layer layer; /* of `weighs` */
  int64_t width;         /* of `weighs`: different sums that it makes of the same places */
  int width_axis;        /* along which */
  bool thinned;          /* set where dropout leaves one place alone too often */
  bool sums, sums_none;  /* set to false where an element is not so; of `weighs` */
} reach_step;

/* The elements of an input's share in an output, or of an output's gradient in an input's. */
clv_code reach_propagate(reach_step *s, reach_value *ret, clv_err *err) CLV_USE_RESULT;
/* All elements are as the worst of what they are made of: the most exposed, and as narrow as the
 * narrowest. */
clv_code reach_give_up(reach_step *s, reach_value *ret, clv_err *err) CLV_USE_RESULT;

/* ---- columns (uniform_columns.c) ------------------------------------------------------------- */

/* The source of a layer without the places of columns that are the same at each of its positions;
 * without elements where there are none. */
clv_code reach_drop_uniform_columns(reach_step *s, reach_value *ret, clv_err *err) CLV_USE_RESULT;

/* ---- from the records, and back (returned.c) ------------------------------------------------- */

/* One reading of where the channels of records are. */
typedef struct reach_walk {
  const clv_graph *g;
  const clv_reach_layer *layers;
  const bool *known;      /* [n_nodes] values that count as constants; NULL: none */
  uint32_t last, back_to; /* layers: back_to has the last one that no gradient passes */
  bool returns;           /* what is found is that of gradients */
  bool channels_last;
  bool lays_out; /* a flat record has the places of the form that the graph gives it */
  reach_pool pool;
  int64_t places, tokens, tokens_at;   /* tokens: places of sequences, -1: there are none */
  reach_value *values[REACH_PROFILES]; /* [n_nodes] */
  int *origin;                         /* [n_nodes] the node whose multiple a value is, */
  double *factor;                      /* and its factor */
  clv_reach *found;                    /* [n_nodes] of this reading */
} reach_walk;

/* w->found of w->values becomes that of gradients. */
clv_code reach_walk_back(reach_walk *w, clv_err *err) CLV_USE_RESULT;

/* ---- all directions (forward.c) ------------------------------------------------------------- */

static inline int64_t reach_groups_of(const clv_node *n) { return CLV_MAX(n->attrs.groups, 1); }
clv_shape reach_shape(const clv_graph *g, int node);                /* for one record */
void reach_op_site(const clv_graph *g, int node, clv_op_site *ret); /* the same of its inputs */
void reach_summarize(const reach_pool *p, const reach_value *v, clv_reach *ret);
/* Node k normalizes one value alone, so it is a constant. */
bool reach_is_constant(const clv_graph *g, int k);
/* The step of node k with its input i, but for `from`. */
reach_step reach_step_of(const clv_graph *g, int k, int i, reach_pool *pool,
                         const clv_reach_layer *layers, reach_relation *relation);
/* The same for the way back: its sums are those of the inputs' gradients. */
void reach_step_reverse(const clv_graph *g, int k, reach_step *s);

#endif
