/* SPDX-License-Identifier: Apache-2.0
 *
 * Internals of sweep: points.c makes the points of the options, point_range.c reads and draws a
 * range, scores.c reads the validations of a run, table.c prints the points with their scores,
 * runs.c makes the runs of the points and checks them, child_runs.c starts them and waits for them,
 * and sweep.c has the commands and the files.
 */
#ifndef CLEAVE_SWEEP_INT_H
#define CLEAVE_SWEEP_INT_H

#include <sys/types.h>

#include "common/model/config/config.h"
#include "master/sweep/sweep.h"

enum {
  SWEEP_MAX_KEYS = 32,    /* most swept keys */
  SWEEP_MAX_VALUES = 256, /* most values of a key */
  SWEEP_MAX_RUNS = 4096,  /* most runs of a sweep, folds included */
  SWEEP_MAX_FOLDS = 100,
  SWEEP_SCORE_NAME = 64
};

/* ---- ranges of --random (point_range.c) ------------------------------------------------------ */

/* A range "LOW..HIGH" of --random, from which the values of a key are drawn. */
typedef struct sweep_range {
  double low, high;
  bool is_logarithmic;   /* the logarithms of drawn values are uniformly distributed */
  bool has_integer_ends; /* both ends are written as integers, so drawn values are integers */
} sweep_range;

/* Returns true if `text` is a range. CLV_INVALID in `err`, with *ret_is_range true: `text` is a
 * range whose ends are in the wrong order, or not above 0 with log. */
clv_code sweep_range_parse(const char *text, sweep_range *ret, bool *ret_is_range,
                           clv_err *err) CLV_USE_RESULT;
/* Appends the value of the range at `u`, a number in [0, 1): 0 is the low end of the range. */
void sweep_range_append_value(const sweep_range *r, double u, clv_bytes *out);

/* ---- points of a sweep (points.c) ------------------------------------------------------------ */

/* A swept key, with the values of --grid, or the range or the values of --random. */
typedef struct sweep_key {
  char *name;
  char **values; /* [n_values] texts of the values; NULL if has_range */
  size_t n_values;
  bool has_range; /* `range` is set, and there are no values */
  sweep_range range;
} sweep_key;

typedef struct sweep_points {
  sweep_key *keys; /* [n_keys] the swept keys */
  size_t n_keys;
  char **values; /* [n_points][n_keys] value of each key at each point */
  size_t n_points;
} sweep_points;

/* Makes the points of the options. Without --grid and --random there is one point without keys.
 * CLV_INVALID: an option is not valid; err names the option. */
clv_code sweep_points_make(const clv_sweep_options *o, sweep_points *ret,
                           clv_err *err) CLV_USE_RESULT;
void sweep_points_done(sweep_points *p);
static inline const char *sweep_point_value(const sweep_points *p, size_t point_index, size_t key) {
  return p->values[point_index * p->n_keys + key];
}

/* ---- the runs of a sweep --------------------------------------------------------------------- */

typedef enum sweep_run_state {
  SWEEP_RUN_WAITING, /* not started by this command */
  SWEEP_RUN_RUNNING, /* the process of the run has started and not ended */
  SWEEP_RUN_FINISHED,
  SWEEP_RUN_FAILED, /* its process ended with another exit code than 0 */
} sweep_run_state;

/* One run of a sweep: that of a point or, with folds, of one fold of a point. */
typedef struct sweep_run {
  size_t point_index;
  uint64_t fold; /* from 1; 0: no folds */
  char *name, *folder;
  sweep_run_state state;
  int exit_code;           /* exit code of a failed run; negative: minus the number of a signal */
  pid_t pid;               /* process of the run; valid while it runs */
  uint64_t next_report_ns; /* time (clv_now_ns) from which the run's progress is printed again */
  bool had_other_runs;     /* another run was in progress at some time during this one */
  bool is_retried;         /* the run failed once and was started again */
  /* score of the run, and the step of the validation that has it; NaN: no score yet */
  double value;
  uint64_t step;
} sweep_run;

/* The score by which the points are compared. */
typedef struct sweep_score {
  clv_best_metric metric;
  /* true: the score is that of the run's best validation, whose checkpoint is kept
   * (checkpoint.best); false: that of its last validation */
  bool uses_best_validation;
  char target[CLV_BEST_TARGET_BYTES]; /* target that has the metric; "": the validation itself */
} sweep_score;

/* A sweep while its command runs. */
typedef struct sweep_work {
  const clv_sweep_options *o;
  /* the session with the options --set of all runs, without the values of a point */
  clv_session_config *base_session;
  sweep_points points;
  sweep_run *runs; /* [n_runs] ordered by point, then by fold */
  size_t n_runs;
  sweep_score score;
  char *folder;         /* RUN_DIR/NAME.sweep */
  int lock_fd;          /* descriptor of the locked file in `folder`; 0: not locked yet */
  bool may_resume;      /* the policy permits what `train --resume` sends */
  uint64_t epoch_bytes; /* bytes that all runs together send in an epoch */
} sweep_work;

/* The --set options of one run: first the options that all runs have, then those of its point, its
 * fold and its name. The texts of the options that all runs have are caller-owned; the struct owns
 * the other texts. */
enum { SWEEP_MAX_SET_OPTIONS = CLV_CLI_LIST + SWEEP_MAX_KEYS + 3 };
typedef struct sweep_set_options {
  const char *items[SWEEP_MAX_SET_OPTIONS]; /* settings, such as "train.batch=64" */
  /* option from which each item comes, for messages: "--grid train.batch=64"; NULL: "--set ..." */
  const char *labels[SWEEP_MAX_SET_OPTIONS];
  /* n: number of options; n_shared: number of the first options, those that all runs have */
  size_t n, n_shared;
} sweep_set_options;
clv_code sweep_set_options_make(const sweep_work *s, const sweep_run *r, sweep_set_options *ret,
                                clv_err *err) CLV_USE_RESULT;
void sweep_set_options_done(sweep_set_options *s);

/* ---- runs and their checks (runs.c) ---------------------------------------------------------- */

/* Makes the points and their runs, loads and plans the session of each run, and checks the policy.
 * Sets all members but folder and lock_fd. Prints an error and returns its exit code. */
clv_exit_code sweep_prepare_runs(const clv_sweep_options *o, sweep_work *ret);
void sweep_done(sweep_work *s);

/* ---- scores and states of runs (scores.c) ---------------------------------------------------- */

/* A validation of evaluations.jsonl. */
typedef struct sweep_validation {
  bool is_validation; /* false: another event, such as the test */
  uint64_t step;
  double value; /* value of the score; NaN: the line lacks it or has null */
} sweep_validation;

/* Parses a line of evaluations.jsonl, of `len` bytes. name: name of the score in scores.def.
 * target: the target that has the score; "": the validation itself. line_index: index of the line,
 * from 0; `label` and it name the line in errors. */
clv_code sweep_validation_parse(const char *label, const char *line, size_t len, size_t line_index,
                                const char *name, const char *target, sweep_validation *ret,
                                clv_err *err) CLV_USE_RESULT;
/* Reads the score of a run from its folder into r->value and r->step. */
clv_code sweep_score_read(const sweep_score *score, sweep_run *r, clv_err *err) CLV_USE_RESULT;
/* State of a run, from its run.json. */
typedef struct sweep_stored_state {
  bool exists;               /* there is a run.json */
  bool is_finished;          /* the last attempt finished */
  char reason[CLV_ERR_TEXT]; /* why the last attempt failed; "": it did not */
} sweep_stored_state;
/* Reads run.json of the run in `folder`. A missing file is no error. CLV_DATA_LOSS: the file is
 * damaged. */
clv_code sweep_stored_state_read(const char *folder, sweep_stored_state *ret,
                                 clv_err *err) CLV_USE_RESULT;

/* ---- the table of points and scores (table.c) ------------------------------------------------ */

/* Appends the points with their scores, the best first. */
clv_code sweep_table_format(const sweep_work *s, clv_bytes *out, clv_err *err) CLV_USE_RESULT;

/* ---- starting runs as processes (child_runs.c) ----------------------------------------------- */

/* Starts runs, at most o->jobs at a time, until each is finished or has failed, or the user
 * interrupts. BLOCKS. */
clv_code sweep_run_all(sweep_work *s, clv_err *err) CLV_USE_RESULT;

#endif
