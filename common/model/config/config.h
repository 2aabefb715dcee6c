/* SPDX-License-Identifier: Apache-2.0
 *
 * config: session.yaml, worker.yaml and egress.policy.yaml as plain structs. clv_..._load reads and
 * checks a file. One schema table for each kind of file holds the keys, types, ranges, defaults and
 * doc sentences; from it come also the effective config, a commented example, a JSON Schema and a
 * manual page.
 *
 * Precedence: defaults < file < environment (CLEAVE_TRAIN__BATCH=64) < sets ("train.batch=64").
 * An override's value is literal text unless it starts with [ { " or ', which make it YAML.
 * Every message is `file:line:column: text`, or starts with the override that caused it.
 *
 * Ownership: a config owns all its memory; free it with its _free. Threads: a loaded config is
 * read-only and may be shared. The process keeps the "C" numeric locale.
 * Absent optional texts are NULL; sizes are bytes, durations milliseconds; lists are never NULL
 * when their count is above 0. Paths are absolute after loading: relative ones are taken from the
 * config file's folder (data.train/test from data.root), those that start with
 * ${CREDENTIALS_DIRECTORY}/ from the folder that systemd gives credentials in; run.dir,
 * checkpoint.dir and log.tensorboard stay as written, relative to the working folder.
 * Limits: 1 MiB a file, 16 levels, 65536 values of up to 4096 bytes; no anchors, aliases, tags.
 */
#ifndef CLEAVE_CONFIG_H
#define CLEAVE_CONFIG_H

#include "common/base/base.h"
#include "common/base/settings/settings.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Position of a value: line and column in the file, both from 1. If line is 0, `column` is the
 * number of the override that gives the value, from 1. {0, 0}: no position, because the value is
 * a default. */
typedef struct clv_config_pos {
  uint32_t line, column;
} clv_config_pos;

typedef enum clv_config_kind {
  CLV_CONFIG_SESSION,
  CLV_CONFIG_WORKER,
  CLV_CONFIG_POLICY
} clv_config_kind;

/* Settings that override those of a file. Both lists may be empty. */
typedef struct clv_config_overrides {
  const char *const *env;  /* NULL-terminated list like environ; NULL: the environment is ignored */
  const char *const *sets; /* [n_sets] "a.b=value", the later one wins */
  size_t n_sets;
  /* [n_sets] how messages name each of `sets`, such as "--grid train.batch=64"; NULL, or NULL for
   * one of them: "--set" and its text */
  const char *const *set_labels;
} clv_config_overrides;

typedef struct clv_text_list {
  size_t n;
  char **items;
} clv_text_list;
typedef struct clv_number_list {
  size_t n;
  double *items;
} clv_number_list;

/* ---- layers of a model ----------------------------------------------------------------------- */

typedef enum clv_attr_kind {
  CLV_ATTR_INT,
  CLV_ATTR_FLOAT,
  CLV_ATTR_BOOL,
  CLV_ATTR_TEXT,
  CLV_ATTR_INTS, /* list of integers, may be empty */
} clv_attr_kind;

/* One `key: value` of a layer or model. The op table or the architecture checks key and value; the
 * functions of this folder do not. */
typedef struct clv_attr_spec {
  clv_config_pos pos; /* position of the key */
  char *key;
  clv_attr_kind kind;
  int64_t int_value;  /* value of kind INT */
  double float_value; /* value of kind FLOAT or INT */
  bool bool_value;    /* value of kind BOOL */
  char *text;         /* value of kind TEXT; NULL: another kind */
  size_t n_ints;      /* length of `ints`, the value of kind INTS */
  int64_t *ints;
} clv_attr_spec;

/* Values are in the order of clv_parallel (graph.h). */
typedef enum clv_layer_parallel {
  CLV_LAYER_WHOLE,
  CLV_LAYER_COLUMNS,
  CLV_LAYER_ROWS
} clv_layer_parallel;

typedef struct clv_layer_spec {
  clv_config_pos pos, op_pos; /* positions of the layer's entry and of its op */
  char *op;                   /* name of the op; loading does not check that the op exists */
  char *name;                 /* name of the layer; NULL: its number is its name */
  clv_config_pos from_pos;
  /* names of the layers or inputs that this layer reads; n = 0: the layer before it */
  clv_text_list from;
  clv_config_pos parallel_pos, tied_pos;
  clv_layer_parallel parallel;
  /* name of the earlier layer whose first parameter this layer shares; NULL: shares none */
  char *tied;
  size_t n_attrs;
  clv_attr_spec *attrs; /* in the order of the file */
} clv_layer_spec;

enum { CLV_LAYER_NAME_MAX = 64 };

/* Range "first..last" of layers, both included. Each end is a layer's number, or the name of a
 * layer or block. A single name stands for both ends. */
typedef struct clv_layer_range {
  bool is_given;
  uint64_t first, last;
  /* names of the first and the last layer; "": that end is given by its number */
  char first_layer_name[CLV_LAYER_NAME_MAX], last_layer_name[CLV_LAYER_NAME_MAX];
} clv_layer_range;

/* Parses a range such as "4..9" or "block.0..block.3", or a single name. Returns false if the text
 * is neither; a single number is neither. */
bool clv_layer_range_read(const char *text, clv_layer_range *ret);

/* ---- structs of session.yaml ----------------------------------------------------------------- */

typedef enum clv_objective_choice {
  CLV_LABELS_OF_FILES,
  CLV_LABELS_CAUSAL,
  CLV_LABELS_MASKED
} clv_objective_choice;
typedef enum clv_label_unit { CLV_LABEL_PER_WORD, CLV_LABEL_PER_PAGE } clv_label_unit;
/* Treatment of accents in text. AUTO strips accents if the tokenizer makes text lower-case. */
typedef enum clv_accent_choice {
  CLV_ACCENT_AUTO,
  CLV_ACCENT_KEEP,
  CLV_ACCENT_STRIP
} clv_accent_choice;
/* How records are chosen for the validation split, or for a limit on the number of records. */
typedef enum clv_split_by {
  CLV_BY_CLASS,  /* random records, the same fraction of each class */
  CLV_BY_CHANCE, /* records chosen at random, whatever their class */
  CLV_BY_END,    /* the last records of the files for a split, the first ones for a limit */
  CLV_BY_GROUP,  /* complete groups of records, which are never divided */
  CLV_BY_TIME,   /* only for a split: the latest records by a column with times */
  CLV_BY_COLUMN  /* only for a split: a column names the set of each record */
} clv_split_by;
/* How an epoch takes training records. */
typedef enum clv_sampling_choice {
  CLV_SAMPLING_NONE,     /* each record once in an epoch */
  CLV_SAMPLING_BALANCED, /* records are drawn with replacement, each class equally often */
  CLV_SAMPLING_COLUMN    /* records are drawn with replacement, each by its weight in a column */
} clv_sampling_choice;
typedef enum clv_non_finite { CLV_NON_FINITE_REFUSE, CLV_NON_FINITE_SKIP } clv_non_finite;
typedef enum clv_broken_choice {
  CLV_BROKEN_RECORD_REFUSE,
  CLV_BROKEN_RECORD_SKIP
} clv_broken_choice;
typedef enum clv_train_crop {
  CLV_TRAIN_CROP_CENTER,
  CLV_TRAIN_CROP_RANDOM,
  CLV_TRAIN_CROP_RANDOM_RESIZED,
} clv_train_crop;
typedef enum clv_transfer { CLV_TRANSFER_VIA_MASTER, CLV_TRANSFER_DIRECT } clv_transfer;
/* Type in which convolutions and linear layers compute. All other ops compute in f32. */
typedef enum clv_compute { CLV_COMPUTE_F32, CLV_COMPUTE_BF16 } clv_compute;

/* Where the weights of the classes come from. */
typedef enum clv_class_weighting {
  CLV_CLASS_WEIGHTS_GIVEN,   /* loss.weight; all 1 if it is not given */
  CLV_CLASS_WEIGHTS_BALANCED /* from the number of training records of each class */
} clv_class_weighting;

typedef enum clv_lr_kind { CLV_LR_CONSTANT, CLV_LR_STEP, CLV_LR_COSINE, CLV_LR_LINEAR } clv_lr_kind;
/* Values are in the order of clv_sched_kind (sched.h). */
typedef enum clv_pipeline_kind {
  CLV_PIPE_NAIVE,
  CLV_PIPE_GPIPE,
  CLV_PIPE_1F1B,
  CLV_PIPE_INTERLEAVED,
  CLV_PIPE_ZB_H1,
  CLV_PIPE_PIPEDREAM,
  CLV_PIPE_PIPEDREAM_2BW,
  CLV_PIPE_CUSTOM,
} clv_pipeline_kind;

/* Numbers that store the words `auto` and `textbook` of pipeline.micro_batches and pipeline.window.
 */
#define CLV_MICRO_AUTO ((uint64_t)0)
#define CLV_WINDOW_AUTO ((uint64_t)0)
#define CLV_WINDOW_TEXTBOOK (-(uint64_t)1)
typedef enum clv_arch {
  CLV_ARCH_NONE,
  CLV_ARCH_MLP,
  CLV_ARCH_CNN,
  CLV_ARCH_LENET,
  CLV_ARCH_RESNET18,
  CLV_ARCH_RESNET34,
  CLV_ARCH_RESNET50,
} clv_arch;

/* Value of `recovery: on` and `recovery: off`, words that may stand in place of the section. */
typedef enum clv_recovery_switch {
  CLV_RECOVERY_ON, /* the numbers of the section apply */
  CLV_RECOVERY_OFF /* the loss of a worker ends the run */
} clv_recovery_switch;

/* Metric of a validation by which a run chooses: for checkpoint.best and train.early_stopping.
 * NONE, then the values in the order of clv_score_value (settings.h). */
typedef enum clv_best_metric {
  CLV_BEST_NONE,
#define CLV_SCORE_VALUE(NAME, ...) CLV_BEST_##NAME,
#include "common/base/settings/scores.def"
  CLV_BEST_COUNT
} clv_best_metric;
/* checkpoint.home: when the master copies the files of checkpoints that workers keep to its host.
 */
typedef enum clv_checkpoint_home {
  CLV_HOME_UNSET, /* the file does not set it: see clv_session_checkpoint_home */
  CLV_HOME_END,
  CLV_HOME_ALWAYS,
  CLV_HOME_NEVER
} clv_checkpoint_home;

/* checkpoint.mode: the smallest or the largest value is the best. AUTO: as the metric says. */
typedef enum clv_best_mode { CLV_BEST_AUTO, CLV_BEST_MIN, CLV_BEST_MAX } clv_best_mode;

typedef struct clv_tls_config {
  clv_config_pos pos;
  char *ca, *cert, *key; /* PEM files; all NULL when the section `tls` is missing */
  char *crl;             /* PEM file; NULL: no list of revoked certificates */
} clv_tls_config;

/* Port that serves metrics over plain HTTP. */
typedef struct clv_metrics_config {
  clv_config_pos listen_pos;
  char *listen; /* address as "host:port"; NULL: no port is opened */
} clv_metrics_config;

/* Entry of `workers:` (session) or `peers:` (worker). */
typedef struct clv_remote_spec {
  clv_config_pos pos;
  char *name, *address; /* address: "host:port" */
  char *identity;       /* URI that the certificate of this worker or peer must contain */
  /* Session only: workers that take the place of this one if it is lost, in this order. */
  clv_config_pos spares_pos;
  clv_text_list spares;
  /* worker that computes the stages now; 0: this worker; k: spares.items[k - 1] */
  size_t spare_in_use;
} clv_remote_spec;

typedef struct clv_lora_config {
  clv_config_pos pos, targets_pos, train_pos;
  clv_text_list targets; /* layers with adapters; n = 0: no adapters */
  clv_text_list train;   /* submodules that are trained completely, without adapters */
  uint64_t r;
  double alpha, dropout;
  clv_compute base_type; /* type in which the frozen weights of linear layers are stored */
  bool rslora;
  char *from; /* folder of an adapter in peft's format that has the initial values; NULL: none */
} clv_lora_config;

typedef struct clv_stage_spec {
  clv_config_pos pos, at_pos, layers_pos, weights_pos, transfer_pos, cache_pos;
  clv_config_pos tf32_pos, weights_new_pos, recompute_blocks_pos;
  char *name;
  char *at;   /* "master" or a worker's name */
  int worker; /* index into `workers` of the node that runs the stage; -1: the master */
  uint64_t threads;
  char *device; /* "cpu", "auto", "cuda:0" or the like */
  bool tf32;
  size_t n_layers; /* number of layers listed in the stage; 0: `range` gives them */
  clv_layer_spec *layers;
  clv_layer_range range; /* range of layers of `model`, when the stage lists no layers */
  /* Source of the initial weights: at most one of file, folder and artifact is set. If none is set,
   * the seed initialises the weights. */
  char *weights_file;     /* path of a weights file on the master's disk */
  char *weights_folder;   /* path of a folder of weights on the master's disk */
  char *weights_artifact; /* name of an artifact in the worker's worker.yaml */
  /* expected digest of the file, folder or artifact, 64 hex digits; NULL: not checked */
  char *weights_sha256;
  bool weights_secret; /* no worker has the contents of weights_file or weights_folder */
  /* prefixes of the names of parameters that the seed initialises, although the source may have
   * them */
  clv_text_list weights_new;
  bool freeze;
  bool cache;            /* the worker of the next stage keeps this stage's outputs on its disk */
  uint64_t cache_ttl_ms; /* time after which an unused cache is deleted */
  clv_lora_config lora;
  bool recompute; /* recompute the complete stage in backward */
  /* recompute these parts of the stage in backward: names of layers or blocks, or ranges */
  clv_text_list recompute_blocks;
  /* route of its output to the next stage; if not given, that of the session */
  clv_transfer transfer;
} clv_stage_spec;

/* True if the master has the stage's initial weights and sends them to the stage's node. */
static inline bool clv_stage_has_master_weights(const clv_stage_spec *s) {
  return s->weights_file || s->weights_folder;
}

typedef enum clv_separator {
  CLV_SEPARATOR_BY_NAME, /* a tab in files named .tsv, else a comma */
  CLV_SEPARATOR_COMMA,
  CLV_SEPARATOR_SEMICOLON,
  CLV_SEPARATOR_TAB,
  CLV_SEPARATOR_PIPE
} clv_separator;
typedef enum clv_decimal_mark { CLV_DECIMAL_POINT, CLV_DECIMAL_COMMA } clv_decimal_mark;
/* Treatment of columns that the session file does not name. */
typedef enum clv_other_columns { CLV_OTHERS_REFUSED, CLV_OTHERS_IGNORED } clv_other_columns;

/* Place of a table's cells. */
typedef enum clv_table_storage {
  CLV_STORAGE_BY_SIZE, /* on disk if the file is larger than a quarter of the memory */
  CLV_STORAGE_MEMORY,
  CLV_STORAGE_DISK
} clv_table_storage;

/* A column of a table. */
typedef struct clv_column_spec {
  clv_config_pos pos;
  char *name;
  clv_column_use use;
  clv_column_scale scale; /* for CLV_COLUMN_NUMBER: how numbers are scaled */
  clv_missing_rule missing;
  /* for CLV_MISSING_VALUE: text that replaces a missing value; NULL: not given, which for a
   * CLV_COLUMN_TEXT means the empty text */
  char *value;
  char *format; /* for CLV_COLUMN_DATE: form of the dates; NULL: ISO 8601 */
  /* for CLV_COLUMN_INDEX: name of the input that the column makes; NULL: the name of the column */
  char *input;
  /* for CLV_COLUMN_DATE: names of the parts of a date that become inputs (clv_date_part); n = 0:
   * none */
  clv_text_list parts;
  bool has_indicator; /* an additional input element is 1 where the value is missing, else 0 */
} clv_column_spec;

typedef struct clv_data_config {
  clv_config_pos pos, root_pos, train_pos, test_pos, inputs_pos, normalize_pos, packed_pos;
  clv_config_pos objective_pos, group_pos, scale_pos, flatten_pos;
  clv_data_format format;
  clv_non_finite non_finite; /* treatment of records with values that are not finite */
  clv_broken_choice broken;  /* treatment of records that cannot be read */
  char *root;
  /* files of inputs and then labels; or one folder of images; or one table of texts */
  clv_text_list train;
  clv_text_list test; /* test files, in the same form as `train`; n = 0: not given */
  clv_objective_choice objective;
  /* names of a record's inputs, or, for a table, of the inputs from its texts; n = 0: one input,
   * named "input", or those that a table's columns make */
  clv_text_list inputs;
  /* fraction of the training set that is held back for validation, 0..0.5 */
  double validation_fraction;
  /* limit_chosen_by is at most CLV_BY_END */
  clv_split_by validation_split_by, limit_chosen_by;
  /* fold number `fold`, from 1 to `folds`, is held back; folds 0: validation_fraction is used
   * instead */
  uint64_t folds, fold;
  /* column by which CLV_BY_TIME or CLV_BY_COLUMN splits a table; NULL: not given */
  char *split_column;
  /* with several targets, the target whose classes CLV_BY_CLASS counts; NULL: not given */
  char *split_target;
  clv_config_pos split_target_pos;
  /* for CLV_BY_COLUMN: values of the column for each set; n = 0: the usual names */
  clv_text_list training_values, validation_values, test_values;
  /* for CLV_BY_GROUP: column of the text table, or file with the group of each record */
  char *validation_group;
  /* one value per channel, both lists of equal length; n = 0: no normalisation */
  clv_number_list mean, std;
  double scale;                     /* factor on raw values; 0: 1/255 for u8, 1 for other types */
  uint64_t limit_train, limit_test; /* maximum number of records used; 0: all */
  bool flatten;
  bool packed; /* sequences are packed without padding */
  clv_config_pos sampling_pos;
  clv_sampling_choice sampling;
  clv_number_list sampling_weights; /* chance of a record by its class; n = 0: not given */
  /* with several targets, the target whose classes decide how records are drawn; NULL: not given */
  char *sampling_target;
  uint64_t threads; /* threads that read and decode images */
  struct {
    clv_config_pos pos;
    /* in pixels; resize 0: no resizing; crop 0: no cropping */
    uint64_t channels, resize, crop, pad, max_pixels;
    clv_train_crop train_crop;
    clv_number_list area, ratio; /* each is [minimum, maximum], for CLV_TRAIN_CROP_RANDOM_RESIZED */
    double flip;
  } images;
  struct {
    clv_config_pos pos;
    char *column, *label;
    uint64_t max_tokens;
  } text;
  struct {
    clv_config_pos pos;
    clv_label_unit label_unit;
    /* names of the classes in the order of their numbers; n = 0: all names in the data, sorted */
    clv_text_list labels;
    uint64_t max_tokens, stride, seconds, memory_mib;
  } documents;
  struct {
    clv_config_pos pos;
    char *file; /* path of the tokenizer's file; NULL: not given in the file */
    /* lower_case: texts are made lower-case; adds_first_and_last (key `ends`): the tokens `first`
     * and `last` are put around each text */
    bool lower_case, adds_first_and_last;
    clv_accent_choice accents;
    /* special tokens; NULL: the usual tokens of that kind of tokenizer file */
    char *first, *last, *pad, *mask;
  } tokenizer;
  struct {
    clv_config_pos pos, columns_pos, files_pos;
    clv_separator separator;
    clv_decimal_mark decimal;
    clv_text_list missing_marks; /* n = 0: the usual marks */
    clv_other_columns others;
    clv_table_storage storage;
    clv_column_spec *columns; /* [n_columns] columns that the session file names */
    size_t n_columns;
    char *files; /* folder of the images that a column names; NULL: the folder of the table */
    char *query; /* SQL query, if the table is an SQLite database; NULL: not given */
    uint64_t query_seconds, query_rows;
  } table;
} clv_data_config;

/* True if records are images: those of a folder, or those that a column of a table names. */
bool clv_data_has_images(const clv_data_config *d);
/* True if training draws records with replacement. */
static inline bool clv_data_samples(const clv_data_config *d) {
  return d->sampling != CLV_SAMPLING_NONE || d->sampling_weights.n;
}
/* Returns the name of the input of a CLV_COLUMN_INDEX. */
static inline const char *clv_column_input_name(const clv_column_spec *s) {
  return s->input ? s->input : s->name;
}
/* True if a column of the table is an index, which has an input of its own. */
bool clv_data_has_indexes(const clv_data_config *d);
/* True if a column of the table has texts, which become tokens. */
bool clv_data_has_table_text(const clv_data_config *d);
/* True if columns of the table make several inputs: indexes, or a text beside other columns. */
bool clv_data_has_column_inputs(const clv_data_config *d);
/* Returns the number of inputs of a record. */
size_t clv_data_n_inputs(const clv_data_config *d);
/* True if records of data.train are held back for validation. */
bool clv_data_has_validation(const clv_data_config *d);

/* NOT_GIVEN, then the values in the order of clv_hf_head (hf.h). */
typedef enum clv_head_choice {
  CLV_HEAD_NOT_GIVEN,
  CLV_HEAD_NONE,
  CLV_HEAD_SEQUENCE,
  CLV_HEAD_TOKEN,
  CLV_HEAD_MASKED,
  CLV_HEAD_CAUSAL
} clv_head_choice;

typedef struct clv_model_config {
  clv_config_pos pos, arch_pos, hf_pos, head_pos, ignore_keys_pos;
  clv_arch arch; /* CLV_ARCH_NONE when the model is given by `layers` or `hf`, or not at all */
  char *hf;      /* folder with a config.json of Hugging Face; NULL: not given */
  clv_head_choice head;
  /* keys of config.json, adapter_config.json and the files beside them that are skipped although
   * they are not known */
  clv_text_list ignore_keys;
  size_t n_attrs;
  clv_attr_spec *attrs; /* attributes of the architecture, or of the model by `hf` */
  size_t n_layers;
  clv_layer_spec *layers;
} clv_model_config;

/* True if the session file has a `model:`, so that stages take ranges of its layers. */
bool clv_model_is_given(const clv_model_config *m);

/* Parameters to which weight decay applies. */
typedef enum clv_decayed {
  CLV_DECAYS_ALL,    /* all trained parameters */
  CLV_DECAYS_WEIGHTS /* all except biases and parameters of normalisations */
} clv_decayed;

/* Settings of the optimiser. CLV_OPTIM_FIELDS (common/base/settings) declares one field for each.
 */
typedef struct clv_optimizer_config {
  clv_config_pos pos, eps_pos;
  clv_optim_kind kind;
  CLV_OPTIM_FIELDS
  clv_number_list betas; /* beta1 and beta2 of the optimiser */
  clv_decayed decayed_params;
} clv_optimizer_config;

typedef struct clv_lr_config {
  clv_config_pos pos;
  clv_lr_kind kind;
  /* numbers of steps; total_steps 0: the length of the run */
  uint64_t warmup_steps, step_size, total_steps;
  double gamma;
  bool from_zero;
} clv_lr_config;

/* Seed of all random numbers. is_given: the file has the seed. is_drawn: the file has none, so the
 * run has drawn and stored one. is_guessable: the seed is given and below 2^64. A worker with a key
 * that was derived from such a seed can find the seed by trying all of them, and then knows the
 * initial values of every layer. */
typedef struct clv_seed {
  clv_key key;
  bool is_given, is_guessable, is_drawn;
} clv_seed;

/* Parses a seed: 32 hexadecimal digits, or a decimal number below 2^64, which makes a guessable
 * seed. Returns false for another text. */
bool clv_seed_parse(const char *text, clv_seed *ret);

/* Identity of one attempt of a run. Loading a session file leaves it zero; the run sets it. */
typedef struct clv_attempt {
  uint8_t session_id[16];
  uint64_t attempt_number; /* number of the attempt, from 1; 0: not an attempt of a run */
  clv_sha256 config_digest;
} clv_attempt;

typedef struct clv_train_config {
  clv_config_pos pos, freeze_pos, dtype_pos;
  /* epochs and steps after which training ends; max_steps 0: no limit */
  uint64_t epochs, max_steps;
  uint64_t batch, eval_batch; /* records in a batch of training, of evaluation */
  clv_seed seed;
  clv_compute dtype;
  bool shuffle, drop_last;
  clv_optimizer_config optimizer;
  clv_lr_config schedule;
  /* number of parts into which a batch is cut and which are computed one after another before a
   * step (gradient accumulation); 1: only pipeline.micro_batches divides the batch */
  uint64_t accumulate;
  double clip_grad_norm; /* largest norm of all gradients together; 0: no clipping */
  clv_text_list freeze;  /* glob patterns of parameter names */
  clv_config_pos ema_pos;
  double ema;      /* decay of the moving average of the trained parameters, < 1; 0: no average */
  bool ema_warmup; /* the decay is smaller in the first steps: see clv_optim_config */
  struct {
    clv_config_pos pos, score_pos;
    clv_best_metric score; /* CLV_BEST_NONE: the run does not stop early */
    char *target;          /* target that has the score; NULL: the evaluation itself */
    /* validations in a row without an improvement, after which the run stops */
    uint64_t patience;
    double min_delta; /* an improvement is larger than this */
  } early_stopping;
} clv_train_config;

/* A label of a record that has a loss of its own (loss.targets). */
typedef struct clv_target_spec {
  clv_config_pos pos;
  char *name; /* name of the table's column */
  clv_loss_kind kind;
  uint64_t n_classes; /* key `classes`; 0: not given, the target is a number or a yes or no */
  /* the target's column has `missing: mask`: the loss skips records without a label */
  bool masks_missing;
  double loss_weight;     /* factor of this loss in the sum */
  double pos_weight;      /* factor of the terms of a binary loss whose label is 1 */
  clv_number_list weight; /* weight of each class; n = 0: all 1 */
  clv_class_weighting class_weights;
  /* numbers of the target's loss, as in `loss` */
  double label_smoothing, beta, delta, quantile, gamma, specificity;
  clv_config_pos scores_pos;
  clv_text_list scores;
} clv_target_spec;

/* Returns the number of the model's outputs that belong to a target: one per class, otherwise 1. */
size_t clv_target_width(const clv_target_spec *s);

typedef struct clv_session_config {
  char *file; /* path of the file as given to the loader, for messages */
  /* texts of the applied overrides; a clv_config_pos with line 0 is an index into them, from 1 */
  clv_text_list overrides;
  clv_attempt attempt; /* identity of the attempt; the run sets it, loading leaves it zero */
  uint64_t version;    /* version of the file's format: 1 */
  char *name;
  clv_tls_config tls;
  size_t n_workers;
  clv_remote_spec *workers;
  clv_data_config data;
  clv_model_config model;
  size_t n_stages;
  clv_stage_spec *stages;
  struct {
    clv_config_pos pos, at_pos, options_pos, ignore_pos;
    clv_loss_kind kind;
    clv_number_list weight; /* weight of each class; n = 0: all 1 */
    double ignore_index;    /* label that the loss ignores, a whole number */
    double label_smoothing;
    /* parameters of the losses smooth_l1, huber, quantile and focal */
    double beta, delta, quantile, gamma;
    double specificity; /* specificity at which the score `sensitivity` is computed */
    clv_class_weighting class_weights;
    clv_config_pos class_weights_pos;
    clv_config_pos scores_pos;
    clv_text_list scores; /* scores that evaluations report in addition to loss and accuracy */
    clv_config_pos targets_pos;
    /* [n_targets] kind CLV_LOSS_TARGETS: labels of a record, in the order of the model's outputs */
    clv_target_spec *targets;
    size_t n_targets;
    char *at;
    int worker; /* index into `workers` of the node that computes the loss; -1: the master */
  } loss;
  struct {
    bool raw_input_leaves, tokens_readable, front_known, labels_readable, labels_leave;
    clv_config_pos release_pos;
    /* glob patterns of the names of layers that may move from the master to a worker in a run */
    clv_text_list release;
  } privacy;
  clv_train_config train;
  struct {
    clv_config_pos pos;
    uint64_t micro_batches; /* number of micro-batches in a batch, or CLV_MICRO_AUTO */
    clv_pipeline_kind schedule;
    /* for 1f1b: micro-batches in flight, CLV_WINDOW_AUTO or CLV_WINDOW_TEXTBOOK */
    uint64_t window;
    /* for pipedream, pipedream-2bw: steps after which the stages wait for each other */
    uint64_t flush_every;
    char *file; /* for a custom schedule: file with its instructions */
  } pipeline;
  clv_transfer transfer;
  struct {
    uint64_t step_timeout_ms, connect_timeout_ms, peer_timeout_ms, lease_ms, reference_lease_ms,
        credit_bytes;
    clv_config_pos lease_pos; /* {0, 0}: limits.lease is not given */
  } limits;
  struct {
    uint64_t every; /* steps between two log lines */
    bool json;
    char *tensorboard; /* folder for runs' event files; "true": the run folder; NULL: no files */
  } log;
  struct {
    char *dir;
    uint64_t every_steps; /* steps between two checkpoints; 0: no checkpoint by steps */
    uint64_t keep;        /* number of newest checkpoints that are not deleted */
    clv_config_pos every_steps_pos, every_pos;
    char *every; /* "auto", a duration, or NULL: every_steps decides */
    clv_checkpoint_home home;
    clv_config_pos best_pos;
    clv_best_metric best; /* metric whose best checkpoint is kept in addition to the newest ones */
    char *best_target;    /* target that has the metric; NULL: the evaluation itself */
    clv_best_mode mode;   /* MIN or MAX after loading */
    struct {
      clv_config_pos every_pos;
      /* time between two sealed (encrypted) copies of checkpoints; NULL: no copies are made */
      char *every;
      uint64_t every_ms; /* `every` in milliseconds; 0 if it is NULL */
      char *key, *dir;   /* key file; folder of the copies of all runs */
    } escrow;
  } checkpoint;
  struct {
    clv_config_pos pos;
    clv_recovery_switch use;
    uint64_t attempts; /* maximum number of recoveries in a row without a newer checkpoint */
    /* longest pause between two tries; time for all tries together */
    uint64_t wait_ms, give_up_after_ms;
    /* time from a loss after which a spare takes the place of a worker that cannot be reached */
    uint64_t replace_after_ms;
  } recovery;
  struct {
    char *dir;
  } run;
  clv_metrics_config metrics;
} clv_session_config;

/* ---- structs of worker.yaml ------------------------------------------------------------------ */

typedef enum clv_role { CLV_ROLE_MASTER, CLV_ROLE_PEER, CLV_ROLE_OBSERVER } clv_role;

typedef struct clv_allow_spec {
  clv_config_pos pos;
  char *identity;
  clv_role role;
  /* Quotas of this identity over all its sessions; 0: only the worker's `limits` apply. */
  uint64_t sessions, bytes, tensors, calls;
  uint64_t connections; /* open connections; 0: limits.identity_connections applies */
  /* quotas on disk for its state files and its caches; 0: it may store none */
  uint64_t state_bytes, cache_bytes;
  uint64_t weight; /* weight of its share of the cores, at least 1 */
} clv_allow_spec;

/* Parameters of an artifact that a master may read. */
typedef enum clv_readable {
  CLV_READ_TRAINED, /* masters may read the trained parameters */
  CLV_READ_ALL,     /* masters may read all parameters */
  CLV_READ_NONE     /* masters may read no parameter, and may train none */
} clv_readable;
typedef struct clv_artifact_spec {
  clv_config_pos pos;
  char *name;
  char *file, *folder; /* path of a safetensors file, or of a folder; exactly one is set */
  char *sha256;        /* 64 hex digits: digest of the file, or of the folder's ARTIFACT.json */
  bool shared;         /* all identities share one copy in memory of the frozen parameters */
  clv_readable readable;
} clv_artifact_spec;

/* Numbers that store the words `auto` and `none` of memory_limit. */
#define CLV_MEMORY_AUTO UINT64_C(0)
#define CLV_MEMORY_NONE UINT64_MAX

typedef struct clv_worker_config {
  char *file;
  clv_text_list overrides;
  clv_config_pos listen_pos;
  char *listen; /* address of the daemon, "host:port" */
  char *name;   /* name of the worker; NULL: not given in the file */
  clv_tls_config tls;
  size_t n_allow; /* number of entries of `allow`, at least 1 */
  clv_allow_spec *allow;
  size_t n_peers;
  clv_remote_spec *peers;
  struct {
    uint64_t sessions, tensors, session_bytes, message_bytes, concurrent_calls, connections;
    uint64_t identity_connections;
    clv_config_pos lease_pos;
    uint64_t credit_bytes, lease_ms, peer_timeout_ms, reference_lease_ms, handshake_timeout_ms,
        calls;
  } limits;
  char *device;
  struct {
    char *library; /* path of Cleave's library for NVIDIA devices; NULL: not given in the file */
    clv_text_list folders;
    char *plans_folder; /* folder of stored plans; NULL: not given in the file */
    bool graphs;
  } cuda;
  uint64_t cpu_devices; /* number of CPU devices */
  /* limit of the worker's memory, bytes; CLV_MEMORY_NONE: no limit; CLV_MEMORY_AUTO: `cleave-worker
   * serve` computes the limit */
  uint64_t device_memory;
  /* bytes; CLV_MEMORY_NONE: no limit; CLV_MEMORY_AUTO: `cleave-worker serve` computes the limit */
  uint64_t memory_limit;
  /* `cleave-worker serve` has computed memory_limit, which was CLV_MEMORY_AUTO */
  bool memory_limit_is_computed;
  clv_config_pos cores_pos;
  /* cores to which compute threads are pinned; n = 0: threads are not pinned */
  clv_number_list cores;
  size_t n_artifacts;
  clv_artifact_spec *artifacts;
  /* folder in which the worker stores its state; NULL: not given in the file */
  char *state_dir;
  uint64_t cache_ttl_ms; /* maximum time after which an unused cache is deleted */
  struct {
    clv_log_level level;
    bool json;
    /* maximum log lines per minute and identity for session opens, for closes and for module loads
     */
    uint64_t lines_per_minute;
  } log;
  uint64_t drain_timeout_ms;
  clv_metrics_config metrics;
} clv_worker_config;

/* ---- structs of egress.policy.yaml ----------------------------------------------------------- */

/* Programs on libcleave that connect to workers. The policy refuses them, or lets them send only
 * the tensors that they have declared. */
typedef enum clv_policy_programs {
  CLV_PROGRAMS_REFUSE = 0,
  CLV_PROGRAMS_DECLARED,
} clv_policy_programs;

/* Policy for tensors that a master may send. Neither the environment nor --set overrides it. */
typedef struct clv_policy_config {
  char *file;
  clv_text_list overrides; /* empty, as nothing overrides a policy; clv_config_build needs a list */
  uint64_t version;        /* version of the file's format: 1 */
  clv_config_pos workers_pos, kinds_pos, shape_pos, dtypes_pos, bytes_pos, pictures_pos,
      min_layers_pos, max_read_pos, pixels_pos, tokens_pos, labels_pos, features_pos, groups_pos,
      release_pos, programs_pos;
  clv_policy_programs programs;
  /* identities of the workers that may receive tensors, at least 1 */
  clv_text_list workers;
  /* kinds of tensors that may be sent: "activation", "gradient", "weights", "cached" */
  clv_text_list kinds;
  /* largest extent of each dimension, whole numbers; the first dimension counts records */
  clv_number_list largest_shape;
  clv_text_list dtypes; /* types that may be sent: "f32", "i64", "bf16" */
  uint64_t bytes_per_epoch;
  /* minimum number of layers at the master that hide records or labels, on each path between
   * them and a worker */
  uint64_t min_layers_at_home;
  bool allows_pictures; /* tensors that `plan` classifies as PICTURE may be sent */
  /* glob patterns of the names of layers that may move from the master to a worker in a run */
  clv_text_list release;
  struct {
    clv_config_pos pos; /* position of the section `allow` */
    clv_config_pos labels_pos, labels_readable_pos, raw_pos, front_known_pos, tokens_pos;
    bool labels, labels_readable, raw, front_known, tokens;
  } allow;
  /* limits on what the measurement `look` may recover of pixels, tokens, labels, features, groups:
   * 0 (none) to 1 (no limit) */
  double max_read[5];
} clv_policy_config;

/* ---- loading, checking and writing configs --------------------------------------------------- */

/* Read a file, apply overrides (`over`; NULL: none) and check the result. CLV_NOT_FOUND: the file
 * does not exist; CLV_EXHAUSTED: it is too large; CLV_INVALID: any error in its text. */
clv_code clv_session_config_load(const char *path, const clv_config_overrides *over,
                                 clv_session_config **ret_config, clv_err *err) CLV_USE_RESULT;
clv_code clv_worker_config_load(const char *path, const clv_config_overrides *over,
                                clv_worker_config **ret_config, clv_err *err) CLV_USE_RESULT;

/* Parse a text in memory. `path` names it in messages, and relative paths start in its folder. */
clv_code clv_session_config_parse(const char *path, const char *text, size_t len,
                                  const clv_config_overrides *over, clv_session_config **ret_config,
                                  clv_err *err) CLV_USE_RESULT;
clv_code clv_worker_config_parse(const char *path, const char *text, size_t len,
                                 const clv_config_overrides *over, clv_worker_config **ret_config,
                                 clv_err *err) CLV_USE_RESULT;

/* Parses a policy. There is no function that loads its file, because the caller checks the owner
 * and permissions of the file that it reads. */
clv_code clv_policy_config_parse(const char *path, const char *text, size_t len,
                                 clv_policy_config **ret_config, clv_err *err) CLV_USE_RESULT;

/* Returns the worker that computes the stages of `worker`: itself or a spare in its place; -1, the
 * master, for -1. Both are indices into c->workers. */
int clv_session_worker_in_use(const clv_session_config *c, int worker);
/* frees a config and all its memory; takes NULL, as every _free function here */
void clv_session_config_free(clv_session_config *config);
void clv_worker_config_free(clv_worker_config *config);
void clv_session_config_freep(clv_session_config **config); /* for CLV_AUTO */
void clv_worker_config_freep(clv_worker_config **config);
void clv_policy_config_free(clv_policy_config *config);
void clv_policy_config_freep(clv_policy_config **config);

/* Append the effective config to *ret as YAML: every key with its value, and absolute paths.
 * Loading the text again gives a config with the same bits. */
clv_code clv_session_config_write(const clv_session_config *config, clv_bytes *ret,
                                  clv_err *err) CLV_USE_RESULT;
clv_code clv_worker_config_write(const clv_worker_config *config, clv_bytes *ret,
                                 clv_err *err) CLV_USE_RESULT;
clv_code clv_policy_config_write(const clv_policy_config *config, clv_bytes *ret,
                                 clv_err *err) CLV_USE_RESULT;

/* As clv_session_config_write, but leaves out keys that name a file, a folder or an address, and
 * the seed. The run writes this text to its TensorBoard event files. */
clv_code clv_session_config_write_public(const clv_session_config *config, clv_bytes *ret,
                                         clv_err *err) CLV_USE_RESULT;
/* True if the key of a session file, such as "data.images.crop", changes how records become
 * numbers. */
bool clv_session_key_changes_records(const char *key);

/* Writes the config with one line per key, such as "train.batch: 12". Hides the value of
 * train.seed. */
clv_code clv_session_config_write_lines(const clv_session_config *config, clv_bytes *ret,
                                        clv_err *err) CLV_USE_RESULT;

/* Appends an example file that can be loaded. It has every key with its default or a sample value,
 * below a comment that describes the key. */
clv_code clv_config_write_example(clv_config_kind kind, clv_bytes *ret,
                                  clv_err *err) CLV_USE_RESULT;

/* Appends the JSON Schema (draft 2020-12) of a kind of file, for editors. */
clv_code clv_config_write_json_schema(clv_config_kind kind, clv_bytes *ret,
                                      clv_err *err) CLV_USE_RESULT;

/* Appends the manual page of a kind of file, as man(7) text. */
clv_code clv_config_write_man_page(clv_config_kind kind, clv_bytes *ret,
                                   clv_err *err) CLV_USE_RESULT;

/* Appends the words that a shell offers after `--set`, such as "train.batch=" and "log.json=true".
 * Leaves out keys inside lists and maps. */
void clv_config_write_completions(clv_config_kind kind, clv_bytes *ret);

/* Fail with CLV_INVALID and a text that begins with the position: `file:line:col: text`, or `--set
 * a.b=c: text`. For errors that are found after loading. */
clv_code clv_session_fail_at(const clv_session_config *config, clv_config_pos pos, clv_err *err,
                             const char *fmt, ...) CLV_PRINTF(4, 5);
clv_code clv_worker_fail_at(const clv_worker_config *config, clv_config_pos pos, clv_err *err,
                            const char *fmt, ...) CLV_PRINTF(4, 5);
clv_code clv_policy_fail_at(const clv_policy_config *policy, clv_config_pos pos, clv_err *err,
                            const char *fmt, ...) CLV_PRINTF(4, 5);

/* Returns checkpoint.home, or what applies if it is not given: END, but ALWAYS if a worker has
 * spares, because a spare cannot read what a lost worker has kept. */
clv_checkpoint_home clv_session_checkpoint_home(const clv_session_config *config);
/* Returns the time of checkpoint.every in milliseconds; 0: it is not given, or is auto. */
uint64_t clv_session_checkpoint_every_ms(const clv_session_config *config);
/* Returns true for checkpoint.every: auto. */
bool clv_session_checkpoint_is_auto(const clv_session_config *config);
/* Return the names that the files use for these values, such as "cross_entropy". */
const char *clv_best_metric_name(clv_best_metric metric);
/* CLV_BEST_TARGET_BYTES: most bytes of the name of a target by which a run chooses, with its NUL.
 * CLV_BEST_NAME_BYTES: bytes of the name of a metric, target included, with its NUL. */
enum { CLV_BEST_TARGET_BYTES = 128, CLV_BEST_NAME_BYTES = CLV_BEST_TARGET_BYTES + 40 };
/* Writes the name of a metric: "validation.auc", or "validation.died.auc" for the target "died".
 * target: name of the target that has the metric; NULL or "": the evaluation itself. Returns
 * `name`. */
const char *clv_best_name(clv_best_metric metric, const char *target,
                          char name[CLV_BEST_NAME_BYTES]);
/* Returns true if the largest value of the metric is the best one, false for the smallest. */
bool clv_best_metric_is_largest(clv_best_metric metric);
const char *clv_loss_name(clv_loss_kind kind);
const char *clv_compute_name(clv_compute dtype);
const char *clv_pipeline_name(clv_pipeline_kind kind);
const char *clv_arch_name(clv_arch arch);

#ifdef __cplusplus
}
#endif
#endif
