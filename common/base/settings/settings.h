/* SPDX-License-Identifier: Apache-2.0
 *
 * settings: tables of optimisers, of data formats, of losses and of scores. An optimiser is a row
 * of optimizers.def and a formula (kernels/steps). Session files, the C API, the wire and
 * checkpoints take names, numbers, defaults and ranges of its settings from here. A format is a row
 * of formats.def and a reader (master/data).
 *
 * Threads: all functions are pure.
 */
#ifndef CLEAVE_SETTINGS_H
#define CLEAVE_SETTINGS_H

#include "common/base/base.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum clv_optim_kind {
#define CLV_OPTIMIZER(NAME, name, ...) CLV_OPTIM_##NAME,
#include "common/base/settings/optimizers.def"
#undef CLV_OPTIMIZER
  CLV_OPTIM_COUNT
} clv_optim_kind;

/* List of the settings that are numbers: the member's name, which is the same in every struct, and
 * its range from LOW to HIGH. CLOSED: HIGH is allowed, too. */
#define CLV_OPTIM_NUMBERS(X)                       \
  X(lr, 0, INFINITY, false)                        \
  X(weight_decay, 0, INFINITY, false)              \
  X(momentum, 0, 1, true)                          \
  X(beta1, 0, 1, false)                            \
  X(beta2, 0, 1, false)                            \
  X(alpha, 0, 1, false)                            \
  X(lr_decay, 0, INFINITY, false)                  \
  X(initial_accumulator_value, 0, INFINITY, false) \
  X(eps, 0, INFINITY, false)
#define CLV_OPTIM_FLAGS(X) X(nesterov) X(centered)

/* Expands to members of a struct. */
#define CLV_OPTIM_NUMBER_MEMBER(name, ...) double name;
#define CLV_OPTIM_FLAG_MEMBER(name) bool name;
#define CLV_OPTIM_FIELDS \
  CLV_OPTIM_NUMBERS(CLV_OPTIM_NUMBER_MEMBER) CLV_OPTIM_FLAGS(CLV_OPTIM_FLAG_MEMBER)

/* Copies all settings between two structs that have them as members. Does not copy the kind. */
#define CLV_OPTIM_COPY_NUMBER(name, ...) copy_to->name = copy_from->name;
#define CLV_OPTIM_COPY_FLAG(name) copy_to->name = copy_from->name;
#define CLV_OPTIM_COPY(to, from)             \
  do {                                       \
    __typeof__(to) copy_to = (to);           \
    __typeof__(from) copy_from = (from);     \
    CLV_OPTIM_NUMBERS(CLV_OPTIM_COPY_NUMBER) \
    CLV_OPTIM_FLAGS(CLV_OPTIM_COPY_FLAG)     \
  } while (0)

typedef struct clv_optim_config {
  clv_optim_kind kind;
  double lr; /* base learning rate; a step receives the rate that the schedule gives */
  /* adamw: factor of weight decay; other kinds: L2 term added to the gradient */
  double weight_decay;
  double momentum;     /* momentum of sgd and rmsprop; 0: none */
  double beta1, beta2; /* decay of the first and second moment, in adam, adamw and adamax */
  double alpha;        /* rmsprop: decay of the average of squares */
  double lr_decay;     /* adagrad: step t = 1, 2, ... uses lr / (1 + (t - 1) lr_decay) */
  double initial_accumulator_value; /* adagrad: initial sum of squares */
  double eps;                       /* all but sgd: added to the denominator */
  bool nesterov;                    /* sgd: needs momentum > 0 */
  bool centered;                    /* rmsprop: divide by the variance */
  /* all kinds, equal in all groups: decay of the moving average of the parameters, 0 <= ema < 1; 0:
   * no average */
  double ema;
  bool ema_warmup; /* step t = 1, 2, ... has the decay min(ema, (1 + t) / (10 + t)) */
} clv_optim_config;

/* Index of each setting. In a set of settings, bit i stands for the setting with index i. */
typedef enum clv_optim_setting {
#define CLV_OPTIM_NUMBER_OF(name, ...) CLV_OPTIM_SET_##name,
  CLV_OPTIM_NUMBERS(CLV_OPTIM_NUMBER_OF) CLV_OPTIM_FLAGS(CLV_OPTIM_NUMBER_OF) CLV_OPTIM_SETTINGS
#undef CLV_OPTIM_NUMBER_OF
} clv_optim_setting;

/* CLV_OPTIM_MAX_MOMENTS: most moments of a clv_optimizer_row. CLV_OPTIM_EMA: index of the average
 * of the parameters in a set of moments, after those of the row. CLV_OPTIM_MAX_STATES: most blocks
 * of state of an optimiser, which are its moments and the average. */
enum { CLV_OPTIM_MAX_MOMENTS = 3, CLV_OPTIM_EMA = CLV_OPTIM_MAX_MOMENTS, CLV_OPTIM_MAX_STATES };

typedef struct clv_optimizer_row {
  const char *name;  /* name in session files */
  uint32_t settings; /* set of the settings that the optimiser reads besides lr */
  clv_optim_config defaults;
  struct {
    const char *name; /* name of the moment in PyTorch; NULL: the optimiser has no such moment */
    /* the moment is absent if the one setting in this set is 0; empty set: never absent */
    uint32_t absent_if_0;
  } moments[CLV_OPTIM_MAX_MOMENTS];
} clv_optimizer_row;

/* Returns the row of a kind; NULL: there is no such kind. */
const clv_optimizer_row *clv_optimizer_row_of(clv_optim_kind kind);
const char *clv_optim_setting_name(clv_optim_setting setting);
double clv_optim_setting_value(const clv_optim_config *c, clv_optim_setting setting);

/* Checks the kind and the settings of an optimiser. CLV_INVALID: there is no such kind, or a
 * setting that the kind reads is out of range; the message quotes it. */
clv_code clv_optim_check(const clv_optim_config *c, clv_err *err) CLV_USE_RESULT;

/* Sets each setting with a default other than 0 to its default, if all of these are 0. */
void clv_optim_set_defaults(clv_optim_config *c);

/* Returns the moments that these settings need: bit i for moments[i] of the clv_optimizer_row of
 * c->kind, bit CLV_OPTIM_EMA for the average of the parameters. An optimiser needs the moments of
 * all its groups. */
uint32_t clv_optim_moment_mask(const clv_optim_config *c);
int clv_optim_count_moments(uint32_t moments);
/* Returns the name of the moment that bit i of clv_optim_moment_mask stands for, such as "exp_avg"
 * or "ema"; NULL: the kind has no such moment. */
const char *clv_optim_moment_name_of(clv_optim_kind kind, int i);
/* True if `name` is the name of a parameter's average, "<param>.ema". */
bool clv_optim_is_ema(const char *name);

/* ---- formats of data files ------------------------------------------------------------------- */

typedef enum clv_data_format {
  /* idx or npy, detected from the first bytes of each file; a session file names its format */
  CLV_FORMAT_AUTO,
#define CLV_DATA_FORMAT(NAME, ...) CLV_FORMAT_##NAME,
#include "common/base/settings/formats.def"
  CLV_FORMAT_COUNT
} clv_data_format;

/* Keys of `data` that only some formats accept, as bits of a set. */
enum {
  CLV_KEY_INPUTS = 1,    /* key data.inputs */
  CLV_KEY_OBJECTIVE = 2, /* key data.objective with another value than labels */
  CLV_KEY_GROUP = 4,     /* key data.validation.group */
  /* all keys of data.images; the next three are for the keys of the section that they name */
  CLV_KEY_IMAGES = 8,
  CLV_KEY_TEXT = 16,
  CLV_KEY_DOCUMENTS = 32,
  CLV_KEY_TOKENIZER = 64,
  CLV_KEY_TABLE = 128,
  CLV_KEY_NORMALIZE = 256, /* keys data.normalize, data.scale and data.flatten */
};
enum { CLV_FORMAT_INPUTS = 3 };

typedef struct clv_format_row {
  const char *name; /* value of data.format in session files */
  /* description of what data.train must name, such as "two files, records and labels"; for
   * messages */
  const char *train_names;
  /* a data set has a file for each input and a file of labels; false: it is a single path */
  bool has_arrays;
  bool needs_tokenizer; /* data.tokenizer.file is required */
  /* set of the keys (CLV_KEY_...) that the format accepts; other keys are refused */
  uint32_t accepted_keys;
  /* inputs: allowed names in data.inputs; default_inputs: the names without data.inputs; both end
   * with NULL. No names: any name is allowed. */
  const char *inputs[CLV_FORMAT_INPUTS + 1], *default_inputs[CLV_FORMAT_INPUTS + 1];
  /* description of what data.validation.group names; NULL: the key is refused */
  const char *group;
  /* unit by which the format keeps records together without data.validation.group, in the plural:
   * "their files"; the error that refuses this key quotes it. NULL: none */
  const char *grouped_by;
  /* description of where class names come from; NULL: classes are numbers */
  const char *classes;
  const char *class_list; /* key that may list the class names in order; NULL: none */
} clv_format_row;

const clv_format_row *clv_format_row_of(clv_data_format format);
/* Writes the names of the formats that accept the key: "idx, npy and text". */
void clv_format_names(uint32_t key, char *buf, size_t len);
/* Joins names, which end with NULL: "a, b and c". */
void clv_list_names(const char *const *names, char *buf, size_t len);

/* ---- losses and their keys ------------------------------------------------------------------- */

/* Kind of labels and outputs. */
typedef enum clv_task {
  CLV_TASK_CLASSES = 1, /* a class number per record or position; an output per class */
  CLV_TASK_LABELS = 2,  /* a number from 0 to 1 per output; each answers a yes-or-no question */
  CLV_TASK_NUMBERS = 4, /* a number per output */
  CLV_TASK_TARGETS = 8  /* several labels per record, each with a task of its own */
} clv_task;

/* Keys of `loss` that not every loss takes. */
enum {
  CLV_LOSS_KEY_WEIGHT = 1 << 0, /* weight and class_weights */
  CLV_LOSS_KEY_IGNORE_INDEX = 1 << 1,
  CLV_LOSS_KEY_LABEL_SMOOTHING = 1 << 2,
  CLV_LOSS_KEY_BETA = 1 << 3,
  CLV_LOSS_KEY_DELTA = 1 << 4,
  CLV_LOSS_KEY_QUANTILE = 1 << 5,
  CLV_LOSS_KEY_GAMMA = 1 << 6,
  CLV_LOSS_KEY_POS_WEIGHT = 1 << 7 /* pos_weight, which only loss.targets accepts */
};

typedef enum clv_loss_kind {
#define CLV_LOSS(NAME, ...) CLV_LOSS_##NAME,
#include "common/base/settings/losses.def"
  CLV_LOSS_COUNT
} clv_loss_kind;
extern const char *const clv_loss_names[]; /* [CLV_LOSS_COUNT] names of the losses, then NULL */
/* As clv_loss_names, without `targets`, the last one: the losses that one target can have. */
extern const char *const clv_target_loss_names[];
/* CLV_MAX_TARGETS: most targets of a record, which are labels with losses of their own.
 * CLV_MAX_CLASS_TARGETS: most targets that are classes, because the graph of the loss has an input
 * for each of these. */
enum { CLV_MAX_TARGETS = 64, CLV_MAX_CLASS_TARGETS = 6 };

typedef struct clv_loss_row {
  const char *name;
  clv_task task;
  unsigned keys; /* set of CLV_LOSS_KEY_* that the loss accepts */
} clv_loss_row;

const clv_loss_row *clv_loss_row_of(clv_loss_kind kind);
/* Writes the names of the losses that take a key: "cross_entropy and focal". */
void clv_loss_names_of(unsigned key, char *buf, size_t len);
/* Returns true if a prediction can be right or wrong. */
static inline bool clv_loss_has_accuracy(clv_loss_kind kind) {
  return (clv_loss_row_of(kind)->task & (CLV_TASK_CLASSES | CLV_TASK_LABELS)) != 0;
}

/* ---- scores of evaluations ------------------------------------------------------------------- */

/* Scores that loss.scores may list. CLV_SCORE_F1 and so on are their bits in a set. */
typedef enum clv_score_kind {
#define CLV_SCORE(NAME, ...) CLV_SCORE_KIND_##NAME,
#include "common/base/settings/scores.def"
  CLV_SCORE_KINDS
} clv_score_kind;
enum {
#define CLV_SCORE(NAME, ...) CLV_SCORE_##NAME = 1u << CLV_SCORE_KIND_##NAME,
#include "common/base/settings/scores.def"
};
extern const char *const clv_score_names[]; /* [CLV_SCORE_KINDS] names of the scores, then NULL */
/* Returns the tasks whose evaluations have the score: a set of clv_task. */
unsigned clv_score_tasks(clv_score_kind kind);
/* Writes the names of the scores that evaluations of a task have: "mae, rmse and r2". */
void clv_score_names_of(clv_task task, char *buf, size_t len);

/* Numbers that an evaluation may report. */
typedef enum clv_score_value {
#define CLV_SCORE_VALUE(NAME, ...) CLV_VALUE_##NAME,
#include "common/base/settings/scores.def"
  CLV_SCORE_VALUES
} clv_score_value;

typedef struct clv_score_value_row {
  const char *name;
  /* set of the CLV_SCORE_* that an evaluation needs for the number; 0: every evaluation has it */
  unsigned needs;
  bool largest_is_best;
} clv_score_value_row;

const clv_score_value_row *clv_score_value_row_of(clv_score_value value);

/* ---- columns of tables ----------------------------------------------------------------------- */

/* Use of a table's column; the values of `as` in a session file, in their order. */
typedef enum clv_column_use {
  CLV_COLUMN_NUMBER,   /* one number of the input */
  CLV_COLUMN_CATEGORY, /* one element of the input per value (one-hot) */
  CLV_COLUMN_INDEX,    /* number of the value, an input of its own for the op embedding */
  CLV_COLUMN_BOOLEAN,  /* 0 or 1 */
  CLV_COLUMN_DATE,     /* days since 1970-01-01, and the parts in clv_date_part */
  CLV_COLUMN_TARGET,   /* the label; never an input */
  CLV_COLUMN_ID,       /* names the record in predictions; never an input */
  CLV_COLUMN_WEIGHT,   /* chance of the record to be drawn for training; never an input */
  CLV_COLUMN_IGNORED,
  CLV_COLUMN_FILE, /* path of the record's image, which is its input */
  CLV_COLUMN_TEXT, /* text, whose tokens are an input for the op embedding */
  CLV_COLUMN_USES
} clv_column_use;

extern const char *const clv_column_use_names[]; /* names in files, in order; end with NULL */

/* Parts of a date that repeat, such as its weekday. A set of parts has bit CLV_DATE_... for each. A
 * part gives two elements of the input: sine and cosine of 2 pi f, where f is the fraction of its
 * period that has passed, 0 <= f < 1. */
typedef enum clv_date_part {
  CLV_DATE_YEAR,    /* (day of the year - 1) / days of the year */
  CLV_DATE_MONTH,   /* (month - 1) / 12 */
  CLV_DATE_WEEKDAY, /* Monday is 0, Sunday 6 / 7 */
  CLV_DATE_PARTS
} clv_date_part;
extern const char *const clv_date_part_names[];

/* Scaling of a number. Its constants are computed from the training records. */
typedef enum clv_column_scale {
  CLV_SCALE_STANDARD, /* (v - mean) / std, with the std of all training records (n, not n - 1) */
  CLV_SCALE_MIN_MAX,  /* (v - min) / (max - min) */
  CLV_SCALE_QUANTILE, /* fraction of the training records with a value below v, 0..1 */
  CLV_SCALE_LOG,      /* ln(1 + v), then as CLV_SCALE_STANDARD; v > -1 */
  CLV_SCALE_NONE,
} clv_column_scale;
extern const char *const clv_column_scale_names[];

/* Treatment of a cell that is empty or has a mark of missing values. */
typedef enum clv_missing_rule {
  CLV_MISSING_REFUSE,
  CLV_MISSING_MEAN,
  CLV_MISSING_MEDIAN,
  /* the most frequent value; among equally frequent ones, the smallest */
  CLV_MISSING_MOST_FREQUENT,
  CLV_MISSING_VALUE, /* the value that the session file gives */
  /* CLV_COLUMN_CATEGORY, CLV_COLUMN_INDEX: missing values get an element or an index of their
   * own */
  CLV_MISSING_OWN,
  /* CLV_COLUMN_TARGET, if there are several targets: a record with a missing value has no label for
   * this target, whose loss skips the record */
  CLV_MISSING_MASK,
} clv_missing_rule;
extern const char *const clv_missing_rule_names[];

#ifdef __cplusplus
}
#endif
#endif
