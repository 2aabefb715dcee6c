/* SPDX-License-Identifier: Apache-2.0
 *
 * A program in progress: program.c makes its modules and draws what it does, statements.c does it.
 */
#ifndef CLEAVE_SIMULATE_PROGRAM_INT_H
#define CLEAVE_SIMULATE_PROGRAM_INT_H

#include "tests/simulate/program.h"
#include "tests/simulate/random.h"

/* A wide value is over CLV_WIRE_INLINE_MAX with two rows, so that the head of its CALL can come
 * before it; the widest is over CLV_WIRE_CHUNK_BYTES with three. */
enum {
  NARROW_WIDTH = 4,
  WIDE_WIDTH = 8400,
  WIDEST_WIDTH = 24000,
  MODULES = 8,
  CONTEXTS = 12,
  OPEN = 3,
  VALUES = 40,
  LOSSES = 6,
  KEPT = 6,
  ROWS = 3,
  EVERYBODY = (1 << SIM_PLACES) - 1,
};

typedef enum stage_kind {
  LINEAR,
  RELU,
  TANH,
  FROZEN,
  JOIN,
  NORM,
  DROP,
  WIDEN,
  TANH_WIDE,
  JOIN_WIDE,
  NARROW,
  LOSS,
  KINDS
} stage_kind;

/* Of the modules of a kind. */
int inputs_of(stage_kind k);
bool takes_wide(stage_kind k);
bool gives_wide(stage_kind k);

typedef struct stage {
  cleave_module *module;
  stage_kind kind;
  uint32_t place;
  int optimizer;   /* -1: none */
  bool placed;     /* its node has been asked to take it */
  uint32_t stands; /* places that what it holds depends on, its own among them */
  uint32_t times;  /* it has been replaced */
} stage;

typedef struct value {
  cleave_reference ref;
  cleave_future future; /* id 0: none */
  int stage;            /* -1: a leaf */
  bool wide, released, gradient, awaited;
  bool moves; /* running statistics, when it is computed: it has to be before its context ends */
} value;

/* A context. */
typedef struct scope {
  cleave_context id;
  bool made, open, evaluation, passed;
  bool old;       /* parameters have changed since it began */
  bool undecided; /* a step of it may have to be taken back */
  int64_t rows;
  value values[VALUES], losses[LOSSES];
  int n, n_losses;
  uint32_t needs, stands; /* places, as in sim_line */
  uint32_t stages;        /* it has called, a bit each */
  uint32_t passes;        /* that it may have begun */
  bool shaken;            /* something in it has gone wrong */
} scope;

typedef struct kept_value {
  cleave_kept id;
  int64_t rows;
  bool wide;
  uint32_t place;
  int scope; /* it was made in */
} kept_value;

typedef struct program {
  const sim_stand *stand;
  cleave_runtime *rt;
  sim_record *record;
  sim_random random;
  sim_random forms;      /* of what is called: their own, as what is skipped draws none of them */
  sim_random intrusions; /* their own: what the program does is the same without them */
  stage stages[MODULES];
  int n_stages;
  cleave_optimizer *optimizers[2];
  int n_optimizers;
  bool step_given_up; /* the last one, which may still be undecided */
  bool wide, final;   /* final: steps are */
  bool hurries;       /* no time passes before what it does next */
  bool leaves_gap;    /* the next call has positions, and the last of them never comes */
  bool neighbours;    /* the third module keeps statistics and is where the second is */
  int64_t width;      /* of what is wide */
  scope scopes[CONTEXTS];
  int n_scopes;
  kept_value kept[KEPT];
  int n_kept;
  cleave_tensor tensor; /* of the last thing that gave one */
  cleave_error error;
  uint64_t began;
  bool firm; /* so are the lines that follow */
  scope *in; /* of the lines that follow; NULL: of none */
} program;

static inline uint32_t below(program *p, uint32_t n) { return sim_below(&p->random, n); }
static inline bool one_in(program *p, uint32_t n) { return below(p, n) == 0; }

static inline uint32_t bit(uint32_t place) { return 1u << place; }
static inline int number_of(const program *p, const scope *s) { return (int)(s - p->scopes); }

/* The name of a place, of the master's where all is at home. */
const char *place_name(const program *p, uint32_t place);

/* A line: `begin`, the call, `done` with its status. done returns whether it went well. */
void begin(program *p);
bool done(program *p, cleave_status status, uint32_t needs, uint32_t stands, const char *fmt, ...)
    CLV_PRINTF(5, 6);
#define DO(p, call, needs, stands, ...) \
  (begin(p), done((p), (call), (needs), (stands), __VA_ARGS__))
/* What stands on something that failed is not done. */
void skip(program *p, const char *what);
/* The last line may say what happened to somebody else's work. */
void anybody(program *p);
/* For `done`, of what must not be. */
cleave_status impossible(program *p, const char *fmt, ...) CLV_PRINTF(2, 3);
/* Numbers of the last line. */
void note(program *p, const void *bytes, size_t n);
void note_tensor(program *p, const cleave_tensor *t);

/* statements.c: each draws what it needs, and adds lines. */
value *new_leaf(program *p, scope *s, bool wide, bool gradient);
/* A call of a module with `after`, a value of its node, or NULL: its value is one more of the
 * context's. */
value *new_call(program *p, scope *s, int index, const value *const *inputs, const value *after);
/* The loss of a value, with a target of its own. */
void new_loss(program *p, scope *s, const value *of);
void fetch(program *p, scope *s, value *v, const char *what);
void release(program *p, scope *s, value *v);
/* There is room for it; it is the last of the program's. */
void keep(program *p, scope *s, const value *v);
void fetch_kept(program *p, int index);
void backward(program *p, scope *s, const float *weights, size_t n, bool retain);
void read_leaf_gradient(program *p, scope *s, const value *v);
void read_weight_gradient(program *p, scope *s, int module);
/* Reads a parameter of the module and changes it. */
bool write_weight(program *p, int module);
void do_loss(program *p, scope *s);
void fetch_all(program *p, scope *s);
void read_gradients(program *p, scope *s);
bool moves_statistics(const program *p, const scope *s);
void steps(program *p, scope *s, int optimizer);
void age(program *p);
void do_open(program *p);
void do_in_scope(program *p, scope *s); /* anything that is done in an open context */
void do_outside(program *p);            /* weights and kept values */
void do_close(program *p, scope *s);
void release_futures(program *p, scope *s);
void do_release_kept(program *p, int index);
void do_read_state(program *p, stage *m);

/* program.c: another module under the name of one that is released. */
void do_replace(program *p);

/* comeback.c */
/* A worker that was lost comes back, its modules with it, as they began. */
void do_rejoin(program *p);
/* Everybody does; then all modules get the same numbers and are used once more. */
void do_come_back(program *p);

/* futures.c: what blocks, by a future now and then; tensors are the program's. */
cleave_status to_here(program *p, cleave_reference from);
cleave_status fetch_of(program *p, cleave_kept from);
cleave_status weight_of(program *p, cleave_module *m, const char *name);
cleave_status closed(program *p, cleave_context c);
cleave_status stepped_by(program *p, cleave_optimizer *o, cleave_context c,
                         cleave_step_result *ret);
cleave_status passed(program *p, cleave_context c, const cleave_reference *roots, size_t n,
                     const cleave_backward_options *o);
/* Futures that are cancelled on the way. */
void do_cancel(program *p, scope *s);

/* plots.c: several of these in a row, which what is ordered by chance seldom does. */
void do_plot(program *p, scope *s);

#endif
