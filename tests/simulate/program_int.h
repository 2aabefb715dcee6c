/* SPDX-License-Identifier: Apache-2.0
 *
 * State of a random program while it runs. program.c makes its modules and draws its statements,
 * statements.c executes them.
 */
#ifndef CLEAVE_SIMULATE_PROGRAM_INT_H
#define CLEAVE_SIMULATE_PROGRAM_INT_H

#include "tests/simulate/program.h"
#include "tests/simulate/random.h"

/* Widths of values in columns. A wide value of two rows exceeds CLV_WIRE_INLINE_MAX, so the head of
 * a CALL can arrive before such a value. The widest value exceeds CLV_WIRE_CHUNK_BYTES with three
 * rows. */
enum {
  NARROW_WIDTH = 4,
  WIDE_WIDTH = 8400,
  WIDEST_WIDTH = 24000,
  MAX_MODULES = 8,       /* modules of a program */
  MAX_CONTEXTS = 12,     /* contexts of a program, closed ones included */
  MAX_OPEN_CONTEXTS = 3, /* contexts that are open at the same time */
  MAX_VALUES = 40,
  MAX_LOSSES = 6,
  MAX_KEPT_VALUES = 6,
  MAX_ROWS = 3,
  ALL_PLACES = (1 << SIM_PLACES) - 1,
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

/* get_n_inputs returns the number of inputs of a module of this kind. has_wide_input and
 * has_wide_output are true if its inputs, or its output, have wide_width columns instead of
 * NARROW_WIDTH. */
int get_n_inputs(stage_kind k);
bool has_wide_input(stage_kind k);
bool has_wide_output(stage_kind k);

typedef struct stage {
  cleave_module *module;
  stage_kind kind;
  uint32_t place;
  int optimizer;  /* index of the optimiser of the module; -1: none */
  bool is_placed; /* the module's node has been asked to load the module */
  /* bit per place: places on which the module's state depends, including its own place */
  uint32_t depended_places;
  uint32_t n_replacements; /* how often the module has been replaced by a new one */
} stage;

typedef struct value {
  cleave_reference ref;
  cleave_future future; /* future of the value; id 0: none */
  int stage;            /* index of the module that computes the value; -1: the value is a leaf */
  bool is_wide;         /* true: the value has wide_width columns */
  bool is_released, needs_gradient;
  bool needs_wait; /* `future` was started and nothing has waited for it yet */
  /* computing the value changes running statistics, so this must happen before its context ends */
  bool changes_statistics;
} value;

/* An open or closed context of the program. */
typedef struct scope {
  cleave_context id;
  bool is_made; /* true: the context was opened without an error */
  bool is_open, is_evaluation, has_backward;
  bool has_changed_weights;  /* parameters have changed since the context was opened */
  bool has_undecided_step;   /* one of the context's steps may still be rolled back */
  bool has_written_gradient; /* the program has written gradients of the context */
  int64_t n_rows;
  value values[MAX_VALUES], losses[MAX_LOSSES];
  int n, n_losses;
  /* bits of places, as in sim_line: places whose loss a statement of this context may report, and
   * all places on which the numbers of this context depend */
  uint32_t needed_places, depended_places;
  uint32_t stages;      /* bit per module: modules that the context has called */
  uint32_t n_backwards; /* number of backwards of the context that may have begun */
  bool has_failure;     /* one of the statements in this context has failed */
} scope;

typedef struct kept_value {
  cleave_kept id;
  int64_t n_rows;
  bool is_wide; /* true: the value has wide_width columns */
  uint32_t place;
  int scope_index; /* index of the scope in which the value was made */
} kept_value;

typedef struct program {
  const sim_environment *environment;
  cleave_runtime *rt;
  sim_record *record;
  sim_random rng;
  /* draws shapes and attributes. Separate from `rng`, because skipped statements draw none */
  sim_random shape_rng;
  /* draws the calls of intruders (sim_environment.use_as_intruder). Separate from `rng`, so that
   * the program's statements do not depend on the intruders */
  sim_random intruder_rng;
  stage stages[MAX_MODULES];
  int n_stages;
  cleave_optimizer *optimizers[2];
  int n_optimizers;
  bool has_cancelled_step; /* the last step was cancelled, and may still be undecided */
  bool is_wide;            /* the program uses wide values */
  bool has_final_steps;    /* the master makes each step final at once */
  bool skips_pause;        /* no time passes before the next statement */
  /* the next call has positions, and the program never sends its last input */
  bool leaves_input_unsent;
  bool
      /* the third module has running statistics and is at the second one's place */
      has_statistics_beside_second;
  int64_t wide_width; /* number of columns of wide values */
  scope scopes[MAX_CONTEXTS];
  int n_scopes;
  kept_value kept_values[MAX_KEPT_VALUES];
  int n_kept_values;
  cleave_tensor last_tensor; /* tensor that the last statement returned */
  cleave_error last_error;
  uint64_t statement_began_ns;
  bool is_after_rejoin; /* value of is_after_rejoin for the next lines */
  scope *line_scope;    /* context of the next lines; NULL: none */
} program;

static inline uint32_t draw_below(program *p, uint32_t n) { return sim_draw_below(&p->rng, n); }
static inline bool happens_once_in(program *p, uint32_t n) { return draw_below(p, n) == 0; }

static inline uint32_t place_bit(uint32_t place) { return 1u << place; }
static inline int index_of_scope(const program *p, const scope *s) { return (int)(s - p->scopes); }

/* Returns the name of a place; if all modules are at the master, the master's name. */
const char *place_name(const program *p, uint32_t place);

/* A statement consists of begin_statement, a call of the C API, and end_statement with the call's
 * status. end_statement returns true if the call succeeded. */
void begin_statement(program *p);
bool end_statement(program *p, cleave_status status, uint32_t needed_places, uint32_t depends_on,
                   const char *fmt, ...) CLV_PRINTF(5, 6);
#define DO(p, call, needs, depends_on, ...) \
  (begin_statement(p), end_statement((p), (call), (needs), (depends_on), __VA_ARGS__))
/* Records a statement that is not executed because a value that it needs has failed. */
void skip_statement(program *p, const char *label);
/* Allows the last statement to report the failure of another one. */
void mark_may_report_other_failure(program *p);
/* Returns the status that `end_statement` records for an impossible result. */
cleave_status report_impossible(program *p, const char *fmt, ...) CLV_PRINTF(2, 3);
/* Adds numbers to the last statement. */
void record_bytes(program *p, const void *bytes, size_t n);
void record_tensor(program *p, const cleave_tensor *t);

/* statements.c: each function draws what it needs and executes statements. */
value *add_leaf(program *p, scope *s, bool is_wide, bool has_gradient);
/* Calls a module and adds the new value to the context. after: value of an earlier call at the same
 * node, whose backward must run before the new call; NULL: none. */
value *add_call(program *p, scope *s, int index, const value *const *inputs, const value *after);
/* Computes the loss of a value against a newly drawn target. */
void add_loss(program *p, scope *s, const value *prediction);
void fetch_value(program *p, scope *s, value *v, const char *label);
void release_value(program *p, scope *s, value *v);
/* Keeps a value; the caller has checked that there is space. Adds it at the end of
 * p->kept_values. */
void keep_value(program *p, scope *s, const value *v);
void fetch_kept_value(program *p, int index);
void do_backward_from_losses(program *p, scope *s, const float *weights, size_t n, bool retain);
void read_leaf_gradient(program *p, scope *s, const value *v);
void read_weight_gradient(program *p, scope *s, int module);
/* Reads a parameter of the module and writes it back changed. */
bool write_weight(program *p, int module);
void do_compute_loss(program *p, scope *s);
void fetch_all_values(program *p, scope *s);
void read_gradients(program *p, scope *s);
bool changes_statistics(const program *p, const scope *s);
void record_step(program *p, scope *s, int optimizer);
void note_weights_changed(program *p);
void do_open_context(program *p);
/* executes a random statement in an open context */
void do_statement_in_context(program *p, scope *s);
/* reads and writes weights, and fetches or releases kept values */
void do_statement_without_context(program *p);
void do_close_context(program *p, scope *s);
void release_futures(program *p, scope *s);
void do_release_kept_value(program *p, int index);
void do_read_state(program *p, stage *m);

/* program.c: replaces a released module by another one of the same name. */
void do_replace_module(program *p);

/* comeback.c: lets lost workers rejoin */
/* Lets a lost worker rejoin, with its modules in their initial state. */
void do_rejoin_workers(program *p);
/* Lets all lost workers rejoin, sets the same numbers in all modules and uses each module once
 * more. */
void do_reload_after_loss(program *p);

/* futures.c: each function makes a blocking call, or starts the operation as a future and waits for
 * it. Tensors are stored in p->last_tensor. */
cleave_status fetch_to_here(program *p, cleave_reference from);
cleave_status fetch_kept_to_here(program *p, cleave_kept from);
cleave_status read_weight_tensor(program *p, cleave_module *m, const char *name);
cleave_status close_context(program *p, cleave_context c);
cleave_status step_optimizer(program *p, cleave_optimizer *o, cleave_context c,
                             cleave_step_result *ret);
cleave_status run_backward(program *p, cleave_context c, const cleave_reference *roots, size_t n,
                           const cleave_backward_options *o);
/* Starts futures and cancels them. */
void do_cancel_future(program *p, scope *s);

/* plots.c: a fixed sequence of statements that random order seldom produces. */
void do_fixed_sequence(program *p, scope *s);

#endif
