/* SPDX-License-Identifier: Apache-2.0
 *
 * plan: computes everything that can be known of a session before a run connects to its workers.
 * A *blueprint* (clv_blueprint_new_of_data) has the stages, shapes, learning parameters and the
 * table of tensors that leave the master. A *placed schedule* (clv_placed_schedule_new) has the
 * position of each call in the order of its node. The commands `plan`, `check` and `train` print
 * and check these. No function of this folder connects to a worker.
 *
 * Threads: a blueprint is read-only, except for the functions that add to it before the run:
 * clv_blueprint_set_device, clv_blueprint_read_ledger and clv_blueprint_add_look.
 */
#ifndef CLEAVE_PLAN_H
#define CLEAVE_PLAN_H

#include "common/model/config/config.h"
#include "common/model/models/models.h"
#include "common/model/sched/sched.h"
#include "common/base/tensor/tensor.h"
#include "common/model/weights/weights.h"
#include "master/api/api.h"
#include "master/data/data.h"
#include "master/egress/egress.h"

/* ---- options of a command -------------------------------------------------------------------- */

/* Reason for which a run ends early: a signal, or the command `stop`. */
enum { CLV_INTERRUPTED = 1, CLV_ASKED_TO_STOP = 2 };

typedef struct clv_run_options {
  uint64_t max_steps; /* stop after this many steps in all; 0 = as the session says */
  bool resume, fresh, accept_egress, accept_data, json;
  bool log_json;                   /* progress as JSON too */
  const _Atomic(int) *interrupted; /* a signal sets it: finish the step, write a checkpoint */
  const char *out;        /* predict: output file; plan: file of the schedule's instructions */
  int format;             /* predict: 1 csv, 2 jsonl, 3 npy; 0: by the name of `out` */
  const char *checkpoint; /* eval, predict: a step, "latest" or "best"; NULL: latest */
  const char *trace;      /* train: a file for chrome://tracing and Perfetto */
  bool profile, schedule; /* train; plan */
  bool quick;             /* check: read a sample of the records */
  bool delete_caches;     /* cache */
  bool watch;             /* status: repeat every interval_s seconds; 0: every second */
  double interval_s;
  bool ask;          /* plan: ask the workers which device computes each stage */
  bool suggest_cuts; /* plan; uses links ("w1=20:1000") and speeds ("w1=8") */
  const char *const *links, *const *speeds;
  size_t n_links, n_speeds;
} clv_run_options;

/* ---- blueprint ------------------------------------------------------------------------------- */

/* Each stage is a module of libcleave, as are the loss and the master's loss of evaluations. */
enum { CLV_MAX_STAGES = 253 };
enum { CLV_EVAL_WINDOW = 4 }; /* batches in flight in an evaluation */
enum { CLV_STAGE_DEVICE_NAME = 32 };

/* Readers of the look (look.c): each tries to read one thing from the tensors that leave. */
typedef enum clv_look_reader {
  CLV_LOOK_PIXELS,
  CLV_LOOK_TOKENS,
  CLV_LOOK_LABELS,
  CLV_LOOK_FEATURES,
  CLV_LOOK_GROUPS, /* which records have the same label */
  CLV_LOOK_READERS
} clv_look_reader;

typedef enum clv_look_state {
  CLV_LOOK_NOTHING_TO_READ, /* the session has no such data, or sends nothing that shows it */
  CLV_LOOK_READ,
  CLV_LOOK_NOT_LOOKED_AT,
} clv_look_state;

enum {
  CLV_LOOK_MAX_RECORDS = 64,
  CLV_LOOK_DRAWS = 3,
  CLV_LOOK_MAX_SECONDS = 10,
  CLV_LOOK_WHY = 200
};

typedef struct clv_look_result {
  clv_look_state state;
  double figure;          /* READ: 0 is no better than a guess, 1 is everything */
  const char *by;         /* READ: name of the method that read best, static text */
  unsigned shows;         /* READ: clv_findings for a figure above the limit; 0: the reader's own */
  char why[CLV_LOOK_WHY]; /* other states: reason why the reader read nothing */
} clv_look_result;

#define CLV_LOOK_CERTAIN_FIGURE 0.9 /* figure from which a finding needs its key */

typedef struct clv_look {
  bool done; /* false: no look has run, or no tensor leaves */
  uint32_t records, draws;
  double seconds;
  clv_look_result of[CLV_LOOK_READERS];
  /* clv_findings of readers above a limit and below CLV_LOOK_CERTAIN_FIGURE, set by
   * clv_blueprint_add_look. Unless the rules have found them too, `plan` prints them and a policy
   * may forbid them, but they need no key of `privacy`. */
  unsigned uncertain;
} clv_look;

/* The narrowest element of a value: `least` is the fewest places that an element is made of,
 * `places` the number of places of a record. places 0: there is no such element. */
typedef struct clv_narrowest_element {
  int64_t least, places;
} clv_narrowest_element;

/* One stage of a blueprint, or the loss. */
typedef struct clv_stage_plan {
  clv_graph *graph;   /* graph of a micro-batch; over packed sequences if the session packs */
  clv_params *params; /* parameters; frozen ones are marked */
  int worker;         /* index into the session's workers, -1 = master */
  uint32_t n_leaves;  /* model inputs that the stage reads, after the value that crosses the cut */
  uint32_t leaf[CLV_MAX_INPUTS]; /* [n_leaves] indexes into the blueprint's inputs */
  bool input_needs_grad;         /* backward computes the gradient of its input */
  bool participates;             /* it has learning parameters or input_needs_grad */
  uint32_t n_learning;           /* learning parameters */
  uint32_t first_layer, last_layer;
  bool direct;                   /* its worker sends the output straight to the next worker */
  clv_findings shows;            /* findings of records in its output */
  clv_narrowest_element picture; /* narrowest element, for CLV_FINDING_PICTURE */
  clv_findings hop_shows;        /* findings of records in its output as a worker sends it on */
  /* findings in the gradient of its output: of labels, if the master has the loss, and of records,
   * if a worker has the stage */
  clv_findings gradient_shows;
  clv_findings looked, gradient_looked; /* findings of `shows` and `gradient_shows` that only the
                                         * look has found */
  uint32_t front_layers; /* hiding layers from the records to its output, on the path with the
                          * fewest */
  uint32_t head_layers;  /* secret learning layers from its output to the loss, on the path with
                          * the fewest */
  char device[CLV_STAGE_DEVICE_NAME]; /* device that its node has reported; "": not asked */
  const char *adapters; /* peft folder that the stage begins with: its own lora.from, or that of
                         * another stage if the folder has a module of this one; NULL: none */
  bool has_modules;     /* that folder has parameters of the stage that are no adapters */
} clv_stage_plan;

/* How well the order of the records in their files predicts the labels. */
typedef struct clv_label_order {
  uint32_t lag;    /* distance in records; 0: the order predicts nothing, or records are shuffled */
  double share;    /* fraction of records with the label of the record `lag` before */
  double shuffled; /* that fraction in a random order */
} clv_label_order;

/* All that is known of a session before a run. */
typedef struct clv_blueprint {
  const clv_session_config *config; /* caller-owned */
  clv_graph *whole;                 /* graph of the full model; never packed */
  uint32_t n_stages;                /* stages of the model; the loss is stage n_stages */
  clv_stage_plan *stages;           /* [n_stages + 1], the loss last */
  clv_model_inputs inputs;          /* inputs of one record, N = 1 */
  int64_t micro_size, eval_size;    /* largest micro-batch of training and of evaluation, samples */
  int lengths;        /* index of the input with the lengths of packed sequences; -1: not packed */
  int64_t places;     /* most places of a packed sequence */
  double mean_places; /* mean places of the sequences of data.train; 0: not counted */
  uint32_t micro_batches, max_micro;
  clv_egress_row *egress; /* [n_egress] rows of the egress table */
  size_t n_egress;
  bool *worker_used;     /* [config->n_workers] */
  bool caches;           /* the worker of stage 1 keeps the outputs of stage 0 */
  clv_policy *policy;    /* caller-owned; limits what may leave. NULL: no policy */
  char **known;          /* [whole->n_nodes] why a worker can know a layer of the master ("was at
                          * ..."), NULL: it cannot; the array is NULL until the ledger was read */
  const clv_sha256 *run; /* caller-owned; secret of the run, from which the ledger derives names of
                          * parameters; NULL: none */
  clv_label_order order;
  clv_look look;
} clv_blueprint;

/* Makes the blueprint of a session. inputs: those of one record, N = 1. Errors point into the
 * session file. Free it with clv_blueprint_free. */
clv_code clv_blueprint_new_of_inputs(const clv_session_config *config,
                                     const clv_model_inputs *inputs, clv_dtype label_dtype,
                                     clv_blueprint **ret, clv_err *err) CLV_USE_RESULT;
/* As clv_blueprint_new_of_inputs, for records with one unnamed input of shape `sample`. */
clv_code clv_blueprint_new(const clv_session_config *config, const clv_shape *sample,
                           clv_dtype label_dtype, clv_blueprint **ret, clv_err *err) CLV_USE_RESULT;
/* As clv_blueprint_new_of_inputs, with the input shapes and the label type of `data`. */
clv_code clv_blueprint_new_of_data(const clv_session_config *config, const clv_dataset *data,
                                   clv_blueprint **ret, clv_err *err) CLV_USE_RESULT;
void clv_blueprint_free(clv_blueprint *b);
void clv_blueprint_freep(clv_blueprint **b);

/* Returns the stage and the name of the parameter that tie `tie` of a stage shares; false: the
 * stage itself has it. */
bool clv_stage_tie_owner(const clv_blueprint *b, uint32_t stage, int tie, uint32_t *ret_stage,
                         const char **ret_weight);

/* Notes that the node of a stage computes on `device`, such as "cuda:0", as it has reported. Later
 * descriptions are for that device. */
void clv_blueprint_set_device(clv_blueprint *b, uint32_t stage, const char *device);

/* True if plans of this process compute in bf16. A master without stages whose processor lacks bf16
 * estimates with f32. */
bool clv_blueprint_is_bf16(const clv_blueprint *b);

/* Appends stages, parameters, memory, bytes per step over each cut and the egress table, as text or
 * as one JSON object. */
clv_code clv_blueprint_describe(const clv_blueprint *b, bool json, clv_bytes *out,
                                clv_err *err) CLV_USE_RESULT;

/* Appends the schedule as a grid, with the micro-batches and versions that stages keep, or as one
 * JSON object. ret_text: its instructions in the form of pipeline.file. */
clv_code clv_blueprint_draw_schedule(const clv_blueprint *b, bool json, clv_bytes *out,
                                     clv_bytes *ret_text, clv_err *err) CLV_USE_RESULT;

/* Appends the egress table, as in the description, and the policy; JSON: the two keys "egress" and
 * "policy". */
void clv_blueprint_describe_egress(const clv_blueprint *b, bool json, clv_bytes *out);

/* Appends the egress table as stable text. A resumed run compares it with the table that it began
 * with. The text omits findings of the look, whose figures change while weights learn. */
void clv_blueprint_egress_text(const clv_blueprint *b, clv_bytes *out);

/* ---- the policy (policy_check.c) ------------------------------------------------------------- */

/* Kinds and numbers of tensors that a command is going to send. */
typedef struct clv_planned_sends {
  bool weights;                /* weights of stages, to begin from a checkpoint */
  bool optimizer;              /* moments of the optimiser */
  uint64_t trained, evaluated; /* records of an epoch at most, for training and for evaluations */
} clv_planned_sends;

/* Kinds of commands, by the tensors that they send. */
typedef enum clv_command_kind {
  CLV_BEGINS,   /* train */
  CLV_RESUMES,  /* train --resume */
  CLV_EVALUATES /* eval, predict */
} clv_command_kind;

typedef struct clv_run_data clv_run_data;
clv_planned_sends clv_sends_of(const clv_run_data *d, clv_command_kind command);

/* Checks every row, every worker and the bytes of an epoch against b->policy. CLV_INVALID names
 * what the policy does not permit, with the line of the policy. */
clv_code clv_blueprint_check_policy(const clv_blueprint *b, const clv_planned_sends *sends,
                                    clv_err *err) CLV_USE_RESULT;
/* Returns the row of a tensor that workers send each other: the output of a direct stage, or (back)
 * its gradient. The master's gate never sees that tensor, but policy and record cover it. */
clv_egress_row clv_blueprint_hop_row(const clv_blueprint *b, uint32_t stage, bool back);

/* ---- what workers know from earlier sessions (known_layers.c, weights_sample.c) -------------- */

/* Looks up the master's layers in the ledger and makes the egress table again with the result. run:
 * see clv_blueprint.run. Without workers it reads nothing. Errors as of clv_ledger_open. */
clv_code clv_blueprint_read_ledger(clv_blueprint *b, const clv_sha256 *run,
                                   clv_err *err) CLV_USE_RESULT;
/* CLV_INVALID: the session does not permit a finding that the blueprint has now. */
clv_code clv_blueprint_check_privacy(const clv_blueprint *b, clv_err *err) CLV_USE_RESULT;

/* Appends for `plan` a line for each layer of the master that counts as known, or a JSON array. */
void clv_known_layers_describe(const clv_blueprint *b, bool json, clv_bytes *out);

/* Return names in the ledger: _key that of the key of the layer of node k, in the graph of a stage
 * or of the full model; _param that of a parameter in a run. */
clv_code clv_ledger_name_of_key(const clv_session_config *c, const clv_graph *g, int k,
                                clv_sha256 *ret, clv_err *err) CLV_USE_RESULT;
clv_code clv_ledger_name_of_param(const clv_sha256 *run, const char *name, clv_sha256 *ret,
                                  clv_err *err) CLV_USE_RESULT;

enum { CLV_SAMPLE_PARTS = 64, CLV_SAMPLE_PART = 64, CLV_SPREAD_SUMS = 6 };

/* Sums over all values of a tensor, in any order (weights_sample.c). */
typedef struct clv_weights_spread {
  size_t n; /* values so far */
  double all[CLV_SPREAD_SUMS], by_sign[CLV_SPREAD_SUMS];
} clv_weights_spread;

/* Sample of a tensor's values, from which the ledger derives a name of the tensor. */
typedef struct clv_weights_sample {
  clv_dtype dtype;
  clv_shape shape;
  size_t count;                 /* values of the tensor */
  size_t parts, part;           /* number of sampled runs; values in each run */
  clv_weights_spread spread;    /* sums over all values, if the sample has several parts */
  struct clv_row_digests *rows; /* digests of rows and columns; NULL: no value was added yet */
  size_t max_rows;              /* digests of rows, and of columns, at most */
  char values[CLV_SAMPLE_PARTS * CLV_SAMPLE_PART * sizeof(float)];
} clv_weights_sample;

/* Begins a sample; free it with clv_weights_sample_done. false: the tensor can hide nothing, since
 * its rank is below 2 or its type is no float, and there is nothing to free. */
bool clv_weights_sample_begin(clv_weights_sample *s, clv_dtype dtype, const clv_shape *shape);
/* Adds bytes of the tensor from `offset` on. The caller adds each byte once, in any order. */
void clv_weights_sample_add(clv_weights_sample *s, uint64_t offset, const void *data, size_t len);
enum { CLV_SAMPLE_CHUNK = 65536 }; /* values to read at once; adding one costs 15 ns */
clv_code clv_weights_sample_digest(const clv_weights_sample *s, clv_sha256 *ret,
                                   clv_err *err) CLV_USE_RESULT;

enum { CLV_SPREAD_MEANS = 8 };

/* Distribution of values, independent of their order and their unit. */
typedef struct clv_weights_moments {
  char kind[8];                  /* "form": from the sample; "spread": from all values */
  size_t count;                  /* values of the tensor */
  double mean[CLV_SPREAD_MEANS]; /* in cells */
} clv_weights_moments;

/* all: moments of all values of a tensor that has more than the sample, instead of the sample's.
 * false: the tensor has no more, or its values are too few or all 0. */
bool clv_weights_sample_moments(const clv_weights_sample *s, bool all, clv_weights_moments *ret);
/* Names of a tensor in the ledger: of its values, and of both kinds of moments. */
enum { CLV_SAMPLE_NAMES = 3 };

/* Returns the names that the ledger keeps of a tensor that a worker has received. */
clv_code clv_weights_sample_names(const clv_weights_sample *s, clv_sha256 ret[CLV_SAMPLE_NAMES],
                                  size_t *ret_n, clv_err *err) CLV_USE_RESULT;
/* ---- rows that a worker had (row_digests.c) -------------------------------------------------- */

enum {
  CLV_ROW_MARKS = 128, /* digests that the ledger keeps of the rows of a tensor, of its columns */
  CLV_ROW_QUESTIONS = 4096, /* digests of rows, and of columns, that are looked up */
  CLV_ROW_POINTS = 4        /* points of equal rows by which a layer counts as known */
};

typedef struct clv_row_digests clv_row_digests;

/* Names of rows or columns in the ledger. */
typedef struct clv_row_names {
  const clv_sha256 *list; /* [n], ascending, distinct; owned by the sample */
  size_t n;
} clv_row_names;

/* Returns the digests of a sample that has all values; n is 0 before that. CLV_EXHAUSTED: there was
 * no memory for them. */
clv_code clv_weights_sample_rows(const clv_weights_sample *s, bool columns, clv_row_names *ret,
                                 clv_err *err) CLV_USE_RESULT;
/* Returns how many points an equal row is worth: CLV_ROW_POINTS, or 1 for a short one, which may be
 * equal by chance. */
size_t clv_row_points(const clv_sha256 *name);
/* Frees the digests of a sample. A sample of zeros is allowed. */
void clv_weights_sample_done(clv_weights_sample *s);

/* Digest of the moments. Bit i of `beside` takes the cell next to that of mean i, for values that
 * rounding moved there. *ret_near false: one of these means is too far from its next cell. */
clv_code clv_weights_moments_digest(const clv_weights_moments *f, unsigned beside, clv_sha256 *ret,
                                    bool *ret_near, clv_err *err) CLV_USE_RESULT;

/* ---- data ------------------------------------------------------------------------------------ */

struct clv_run_data {
  clv_dataset *train, *test; /* test NULL when the session names none */
  clv_subset train_rows, validation_rows, test_rows;
};

/* Derives from train.seed the seed of shuffling, splits, crops and flips. It is never sent. */
clv_code clv_run_data_derive_seed(const clv_session_config *config, uint64_t *ret,
                                  clv_err *err) CLV_USE_RESULT;

/* Opens the data sets of the session. need_train: opens data.train even if data.test exists. */
clv_code clv_run_data_open(const clv_session_config *config, bool need_train, clv_run_data *ret,
                           clv_err *err) CLV_USE_RESULT;
/* Opens the records of data.test alone; reads no labels. */
clv_code clv_run_data_open_inputs(const clv_session_config *config, clv_run_data *ret,
                                  clv_err *err) CLV_USE_RESULT;
void clv_run_data_done(clv_run_data *d);
/* Appends "63 of 629 records are held back for validation: each class by its share"; nothing if
 * none are. */
void clv_run_data_describe_held_back(const clv_session_config *config, const clv_run_data *d,
                                     clv_bytes *out);

/* clv_run_data_scan reads the records, the training ones as training draws them. A record with a
 * value that is not finite is CLV_DATA_LOSS, and the message names the first one. With
 * data.non_finite: skip the scan removes such records from the rows, counts them in *ret_left_out,
 * and adds a line for each file to `notes`. `notes` also names a set whose records all have one
 * class, and a validation fraction that would hold back no record. */
typedef struct clv_run_scan {
  size_t most; /* most records to read of each file; 0: all */
  bool decode; /* decode images, too */
  /* Called with the number of records read so far; key: data.train or data.test. NULL: no calls */
  void (*progress)(void *user, const char *key, size_t done, size_t all);
  void *user;
} clv_run_scan;
clv_code clv_run_data_scan(const clv_session_config *config, clv_run_data *d,
                           const clv_run_scan *options, uint64_t *ret_left_out, clv_bytes *notes,
                           clv_err *err) CLV_USE_RESULT;

/* Checks that records, labels, outputs and batch sizes fit together (data_check.c). CLV_INVALID
 * points at the key and names the file. */
clv_code clv_run_data_check_fit(const clv_run_data *d, const clv_blueprint *b,
                                clv_err *err) CLV_USE_RESULT;
/* Number of sizes of a packed micro-batch: its rows are padded to the next of these sizes, so that
 * a node makes few plans. Without them nearly every micro-batch would need a plan and memory of its
 * own. The padding is half of a 32nd of the full size on average. */
enum { CLV_PACKED_SIZES = 32 };
/* Fills b->order (label_order.c). */
clv_code clv_run_data_find_label_order(const clv_run_data *d, clv_blueprint *b,
                                       clv_err *err) CLV_USE_RESULT;
/* Returns the order of n labels. Sorts `labels`. */
clv_label_order clv_label_order_compute(double *labels, size_t n);
/* Appends for `plan`, `check` and `train` a line if the order predicts labels; JSON: an object or
 * null. */
void clv_label_order_describe(const clv_blueprint *b, bool json, clv_bytes *out);
/* Sets b->mean_places from data.train, if the session packs sequences. */
void clv_run_data_measure_lengths(const clv_run_data *d, clv_blueprint *b);

/* ---- the look (look.c) ----------------------------------------------------------------------- */

/* Data and weights of a look. */
typedef struct clv_look_options {
  const clv_dataset *data;
  const clv_subset *rows;           /* rows of data to choose from */
  const clv_checkpoint *checkpoint; /* weights to look with; NULL: the initial ones */
  bool preview;   /* draw initial weights from other seeds, CLV_LOOK_DRAWS times; false: from the
                   * seed of the session */
  bool evaluates; /* the command sends no gradients */
} clv_look_options;

/* Runs the layers before the last cut, and the head, in this process on a few records, and reads
 * the tensors that would leave as an observer would, for at most CLV_LOOK_MAX_SECONDS. Sends
 * nothing, and changes nothing that training reads. If a reader cannot run, its result says why. */
clv_code clv_look_run(const clv_blueprint *b, const clv_look_options *o, clv_look *ret,
                      clv_err *err) CLV_USE_RESULT;
/* Adds readings above the limits (pixels 0.5, tokens 0.2, labels 0.3, features 0.9) to the findings
 * of the rows of b, and copies the look to b->look. clv_blueprint_check_privacy compares the
 * findings with the session. */
void clv_blueprint_add_look(clv_blueprint *b, const clv_look *look);

/* Name of a reader, such as "pixels", and the limit above which its figure is a finding. */
const char *clv_look_name(clv_look_reader reader);
double clv_look_limit(clv_look_reader reader);
/* Append the results of b->look: as lines, or as JSON's key "look" after a comma. */
void clv_look_describe(const clv_blueprint *b, clv_bytes *out);
void clv_look_json(const clv_blueprint *b, clv_bytes *out);
/* Text of one result ("0.82", "not applicable" or "not looked at"), and of all results in a line.
 * */
enum { CLV_LOOK_RESULT_TEXT = 16 };
void clv_look_result_text(const clv_look_result *r, char ret[CLV_LOOK_RESULT_TEXT]);
void clv_look_summary(const clv_look *look, clv_bytes *out);

/* ---- schedules ------------------------------------------------------------------------------- */

/* Positions of the parts of a call in the order of its node; 0: the call has no such part. */
typedef struct clv_call_positions {
  uint32_t forward, backward, weight;
  bool old_weights; /* the backward uses the version of the weights that its forward had */
} clv_call_positions;

/* Schedule of n_micro micro-batches, which belong to n_steps steps (one, unless the schedule is
 * asynchronous). */
typedef struct clv_placed_schedule {
  clv_sched *sched;
  clv_sched_report report;
  uint32_t n_micro, n_steps, window;
  clv_call_positions *positions; /* [stages, the loss included][n_micro] */
  uint32_t *steps;               /* [stages][n_steps] position of the stage's own step; 0: none */
} clv_placed_schedule;

/* Makes the schedule. costs NULL: those of clv_pipeline_default_costs. CLV_INVALID names the key of
 * the session that does not fit. */
clv_code clv_placed_schedule_new(const clv_blueprint *b, uint32_t n_micro, uint32_t n_steps,
                                 uint32_t window, const clv_sched_costs *costs,
                                 clv_placed_schedule **ret, clv_err *err) CLV_USE_RESULT;
void clv_placed_schedule_free(clv_placed_schedule *l); /* NULL is allowed */
void clv_placed_schedule_freep(clv_placed_schedule **l);

/* Returns the number of ranks. Fills the stages and their ranks in shape, all but n_micro and
 * n_accumulate, and names[n_ranks]. */
uint32_t clv_pipeline_ranks(const clv_blueprint *b, clv_sched_shape *shape,
                            const char *names[CLV_SCHED_RANKS]);
void clv_pipeline_default_costs(const clv_blueprint *b, clv_sched_costs *ret);
uint32_t clv_pipeline_steps_in_round(const clv_session_config *c); /* steps of a round */
uint32_t clv_pipeline_first_window(const clv_session_config *c); /* window before any measurement */
/* Checks, before the run connects, that there is a schedule for full rounds. */
clv_code clv_pipeline_check(const clv_blueprint *b, clv_err *err) CLV_USE_RESULT;

/* ---- initial weights ------------------------------------------------------------------------- */

/* Finds all tensors of the stage in a weights file. *ret is [params->n]; the caller frees it. An
 * entry is NULL under CLV_WEIGHTS_ALLOW_NO_COUNTS, see there. */
clv_code clv_stage_match_weights(const clv_blueprint *b, uint32_t stage, const clv_weights_file *f,
                                 unsigned flags, const clv_weights_entry ***ret,
                                 clv_err *err) CLV_USE_RESULT;

/* Opens the file of a stage's initial weights and finds the stage's tensors in it. A NULL among
 * them is a count that the file lacks; `notes` gets a line about it. CLV_DATA_LOSS names the line
 * of the session: the file is missing or damaged, has another digest, lacks a tensor of the stage,
 * has one in another type or shape, or has one that the full model lacks. */
clv_code clv_stage_file_open(const clv_blueprint *b, uint32_t stage, clv_weights_file **ret,
                             const clv_weights_entry ***ret_found, clv_bytes *notes,
                             clv_err *err) CLV_USE_RESULT;
/* True if checkpoints contain the parameter. They omit a frozen one of a stage whose weights come
 * from a worker's artifact. */
bool clv_is_param_checkpointed(const clv_stage_spec *s, const clv_param *p);

/* As clv_stage_file_open, but for the stage's folder `adapters`: finds its adapters, and those of
 * its other parameters that the folder has (peft's modules_to_save). Names in the file begin with
 * peft's prefix. */
clv_code clv_stage_adapters_open(const clv_blueprint *b, uint32_t stage, clv_weights_file **ret,
                                 const clv_weights_entry ***ret_found, clv_err *err) CLV_USE_RESULT;

/* Open folder of a stage's initial weights, and where each of the parameters is in it. */
typedef struct clv_stage_folder {
  clv_weights_folder *folder;
  clv_manifest manifest; /* if the session has a sha256 */
  size_t n;
  clv_weights_want *want; /* [n] */
  size_t *found;          /* [n], CLV_WEIGHTS_NONE: the parameter starts from the seed */
} clv_stage_folder;

void clv_stage_folder_done(clv_stage_folder *f); /* releases and zeroes */
/* Errors as of clv_stage_file_open, but what the model has not is only said, in `notes`, as is what
 * starts from the seed. Headers of the stage's files are read, their numbers are not. */
clv_code clv_stage_folder_open(const clv_blueprint *b, uint32_t stage, clv_stage_folder *ret,
                               clv_bytes *notes, clv_err *err) CLV_USE_RESULT;
/* True if weights.new names the parameter. */
bool clv_stage_is_new(const clv_stage_spec *spec, const char *parameter);
/* CLV_INVALID: an entry of weights.new that no parameter of the stage begins with. */
clv_code clv_stage_check_new(const clv_blueprint *b, uint32_t stage, clv_err *err) CLV_USE_RESULT;

/* ---- numbers of micro-batches (micro_batches.c) ---------------------------------------------- */

enum { CLV_MAX_MICRO_CHOICES = 64 };

/* True if the batch can be cut into m micro-batches of at least `least` samples. sizes: memory of
 * [m]. */
bool clv_can_cut_batch(uint64_t batch, uint64_t m, int64_t least, size_t *sizes);
/* Returns the numbers of micro-batches to compare, ascending: those up to CLV_MAX_MICRO_CHOICES
 * that clv_can_cut_batch accepts and that divide the batch or are a power of two, and `also`, if
 * clv_can_cut_batch accepts it. */
clv_code clv_micro_batch_choices(uint64_t batch, int64_t least, uint32_t also, uint32_t **ret,
                                 uint32_t *ret_n, clv_err *err) CLV_USE_RESULT;

/* Interpolates linearly between the values at the two nearest sizes (descending). Beyond the ends
 * it returns the value of the end. */
double clv_interpolate(const int64_t *size, const double *value, uint32_t n, double at);

/* ---- cuts (suggest.c) ------------------------------------------------------------------------ */

/* Links and speeds of the nodes, compared with this machine, as given by --link and --speed. */
typedef struct clv_link_estimate {
  double latency_s, bytes_s; /* one way: seconds, and bytes per second */
  bool given;                /* by an option; false: the default */
} clv_link_estimate;
typedef struct clv_links {
  size_t n;                /* workers of the session */
  clv_link_estimate *link; /* [n]: to the master */
  clv_link_estimate *hop;  /* [n][n]: direct, from the lower to the higher index */
  double *speed;           /* [n + 1]: the workers', the master's last */
  clv_bytes notes;         /* "w1 20 ms, 1000 Mbit/s" */
} clv_links;
/* Parses --link and --speed. The default of a link is 1 ms and 1 Gbit/s, that of a direct hop the
 * worse of its workers' links. CLV_INVALID names the wrong word of the option. */
clv_code clv_links_parse(const clv_session_config *c, const clv_run_options *o, clv_links **ret,
                         clv_err *err) CLV_USE_RESULT;
void clv_links_freep(clv_links **l);

/* Times the layers, searches for the best cuts, and prints them beside those of the session. */
clv_code clv_suggest_cuts(const clv_blueprint *b, const clv_links *links, bool json, clv_bytes *out,
                          clv_err *err) CLV_USE_RESULT;

#endif
