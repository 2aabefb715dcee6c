/* SPDX-License-Identifier: Apache-2.0
 *
 * settings: what an optimiser may be told, and what a format of data files has. An optimiser is a
 * row of optimizers.def and a formula (kernels/steps). Whoever carries settings (session files, the
 * C API, the wire, checkpoints) takes names, numbers, defaults and ranges from here. A format is a
 * row of formats.def and a reader (master/data).
 *
 * Threads: everything here is pure.
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

/* The settings, by name: of every struct that carries them. The numbers with what they may be, from
 * LOW up to HIGH; CLOSED: HIGH itself too. */
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

/* As members of a struct. */
#define CLV_OPTIM_NUMBER_MEMBER(name, ...) double name;
#define CLV_OPTIM_FLAG_MEMBER(name) bool name;
#define CLV_OPTIM_FIELDS \
  CLV_OPTIM_NUMBERS(CLV_OPTIM_NUMBER_MEMBER) CLV_OPTIM_FLAGS(CLV_OPTIM_FLAG_MEMBER)

/* `to` gets all settings of `from`, two structs that have them as members; the kind stays. */
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
  double lr;           /* base rate; a step is given the rate in force */
  double weight_decay; /* adamw: taken from the weights; else added to the gradient */
  double momentum;     /* sgd, rmsprop: 0 = none */
  double beta1, beta2; /* adam, adamw, adamax */
  double alpha;        /* rmsprop: of the average of squares */
  double lr_decay;     /* adagrad: step t = 1, 2, ... has lr / (1 + (t - 1) lr_decay) */
  double initial_accumulator_value; /* adagrad: what the sum of squares begins with */
  double eps;                       /* all but sgd: added to the denominator */
  bool nesterov;                    /* sgd: needs momentum > 0 */
  bool centered;                    /* rmsprop: divide by the variance */
} clv_optim_config;

/* Numbers of the settings: bit clv_optim_setting of a set. */
typedef enum clv_optim_setting {
#define CLV_OPTIM_NUMBER_OF(name, ...) CLV_OPTIM_SET_##name,
  CLV_OPTIM_NUMBERS(CLV_OPTIM_NUMBER_OF) CLV_OPTIM_FLAGS(CLV_OPTIM_NUMBER_OF) CLV_OPTIM_SETTINGS
#undef CLV_OPTIM_NUMBER_OF
} clv_optim_setting;

enum { CLV_OPTIM_MAX_MOMENTS = 3 };

typedef struct clv_optimizer_row {
  const char *name; /* in session files */
  uint32_t reads;   /* set of settings beside lr */
  clv_optim_config defaults;
  struct {
    const char *name;  /* PyTorch's; NULL: no such moment */
    uint32_t unless_0; /* set with the setting that decides whether it is there; 0: always */
  } moments[CLV_OPTIM_MAX_MOMENTS];
} clv_optimizer_row;

/* NULL: there is no such kind. */
const clv_optimizer_row *clv_optimizer_row_of(clv_optim_kind kind);
const char *clv_optim_setting_name(clv_optim_setting setting);
double clv_optim_setting_value(const clv_optim_config *c, clv_optim_setting setting);

/* CLV_INVALID: no such kind, or a setting that it reads is out of range (the text quotes it). */
clv_code clv_optim_check(const clv_optim_config *c, clv_err *err) CLV_USE_RESULT;

/* When all settings are 0 that have a default other than 0, each gets its default. */
void clv_optim_set_defaults(clv_optim_config *c);

/* Which moments these settings have: bit i for moments[i] of the kind's row. Those of an optimiser
 * are all that any of its groups has (|). */
uint32_t clv_optim_moments_of(const clv_optim_config *c);
int clv_optim_count_moments(uint32_t moments);

/* ---- formats of data files ------------------------------------------------------------------- */

typedef enum clv_data_format {
  CLV_FORMAT_AUTO, /* by the first bytes of each file; a session file names the format */
#define CLV_DATA_FORMAT(NAME, ...) CLV_FORMAT_##NAME,
#include "common/base/settings/formats.def"
  CLV_FORMAT_COUNT
} clv_data_format;

/* Keys of `data` that only some formats take: bits of a set. */
enum {
  CLV_KEY_INPUTS = 1,    /* data.inputs */
  CLV_KEY_OBJECTIVE = 2, /* data.objective, other than labels */
  CLV_KEY_GROUP = 4,     /* data.validation.group */
  CLV_KEY_IMAGES = 8,    /* the keys of data.images; as the next ones */
  CLV_KEY_TEXT = 16,
  CLV_KEY_DOCUMENTS = 32,
  CLV_KEY_TOKENIZER = 64,
};
enum { CLV_FORMAT_INPUTS = 3 };

typedef struct clv_format_row {
  const char *name;     /* data.format in session files */
  const char *set;      /* what data.train names, for a message */
  bool has_arrays;      /* a set is a file for each input, then one of labels; else one path */
  bool needs_tokenizer; /* data.tokenizer.file is required */
  uint32_t takes;       /* set of CLV_KEY_...; other keys of these are refused */
  /* Names that data.inputs may have, and those that it has unless given; both end with NULL. No
   * names: any. */
  const char *inputs[CLV_FORMAT_INPUTS + 1], *given[CLV_FORMAT_INPUTS + 1];
  const char *group;      /* what data.validation.group names; NULL: it is refused, because */
  const char *grouped_by; /* the records are grouped by these */
  const char *classes;    /* where names of classes come from; NULL: classes are numbers */
  const char *class_list; /* key that may list the names of classes in order; NULL: none */
} clv_format_row;

const clv_format_row *clv_format_row_of(clv_data_format format);
/* "idx, npy and text": the formats that take the key. */
void clv_format_names(uint32_t key, char *buf, size_t len);
/* Joins names, which end with NULL, in the same way: "a, b and c". */
void clv_list_names(const char *const *names, char *buf, size_t len);

#ifdef __cplusplus
}
#endif
#endif
