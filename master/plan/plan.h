/* SPDX-License-Identifier: Apache-2.0
 *
 * plan: everything that can be known of a session before anything runs. A *blueprint* has its
 * stages, shapes, who learns, and which tensors leave the master; a *placed schedule*
 * its schedule as positions of the nodes. What is drawn, described and suggested comes from these,
 * and nothing here connects.
 *
 * Threads: a blueprint is read-only once made, and once clv_blueprint_set_device has noted what
 * nodes say.
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

/* ---- what is asked for ----------------------------------------------------------------------- */

/* Why a run is to end early: a signal, or `stop`'s. */
enum { CLV_INTERRUPTED = 1, CLV_ASKED_TO_STOP = 2 };

typedef struct clv_run_options {
  uint64_t max_steps; /* stop after this many steps in all; 0 = as the session says */
  bool resume, fresh, accept_egress, accept_data, json;
  bool log_json;                   /* progress as JSON too */
  const _Atomic(int) *interrupted; /* set by a signal: finish the step, write a checkpoint */
  const char *out;                 /* predict: a file; plan: the schedule's instructions */
  int format;                      /* predict: 1 csv, 2 jsonl, 3 npy; 0: as `out` says */
  const char *checkpoint;          /* eval, predict: a step, "latest" or "best"; NULL: latest */
  const char *trace;               /* train: a file for chrome://tracing and Perfetto */
  bool profile, schedule;          /* train; plan */
  bool quick;                      /* check: look at a sample of the records */
  bool delete_caches;              /* cache */
  bool watch;                      /* status, with interval_s between two rounds; 0: 1 */
  double interval_s;
  bool ask;          /* plan: the workers, for what computes each stage */
  bool suggest_cuts; /* plan, with the next two: "w1=20:1000", "w1=8" */
  const char *const *links, *const *speeds;
  size_t n_links, n_speeds;
} clv_run_options;

/* ---- blueprint ------------------------------------------------------------------------------- */

/* Each is a module of libcleave, as are the loss and the loss of evaluations at home. */
enum { CLV_MAX_STAGES = 253 };
enum { CLV_EVAL_WINDOW = 4 }; /* batches in flight in an evaluation */
enum { CLV_STAGE_DEVICE_NAME = 32 };

/* What onlookers were seen to read of the tensors that leave (look.c). */
typedef enum clv_look_reader {
  CLV_LOOK_PIXELS,
  CLV_LOOK_TOKENS,
  CLV_LOOK_LABELS,
  CLV_LOOK_FEATURES,
  CLV_LOOK_GROUPS, /* which labels are the same */
  CLV_LOOK_READERS
} clv_look_reader;

typedef enum clv_look_state {
  CLV_LOOK_NOTHING_TO_READ, /* the session has no such thing, or sends nothing that could show it */
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
  double figure;          /* READ: 0 is as good as a guess, 1 is everything */
  const char *by;         /* READ: which reader, static text */
  unsigned shows;         /* READ: clv_findings above the limit, where they differ by the session */
  char why[CLV_LOOK_WHY]; /* of the other states */
} clv_look_result;

#define CLV_LOOK_CERTAIN_FIGURE 0.9 /* figure from which a finding needs its key */

typedef struct clv_look {
  bool done; /* false: nobody has looked, or nothing leaves */
  uint32_t records, draws;
  double seconds;
  clv_look_result of[CLV_LOOK_READERS];
  /* Findings of readers above a limit and below CLV_LOOK_CERTAIN_FIGURE, set by
   * clv_blueprint_add_look: where the rules have not found them too, they are said and bound by a
   * policy alone. */
  unsigned uncertain; /* clv_findings */
} clv_look;

/* The fewest places that an element is made of, of all that a record has; places 0: none is. */
typedef struct clv_narrowest_element {
  int64_t least, places;
} clv_narrowest_element;

typedef struct clv_stage_plan {
  clv_graph *graph;   /* of a micro-batch; over packed sequences where the session packs them */
  clv_params *params; /* with frozen ones marked */
  int worker;         /* index into the session's workers, -1 = master */
  uint32_t n_leaves;  /* inputs of the model that it reads, behind what crosses the cut */
  uint32_t leaf[CLV_MAX_INPUTS]; /* [n_leaves] indexes into the blueprint's inputs */
  bool input_needs_grad, participates;
  uint32_t n_learning;
  uint32_t first_layer, last_layer;
  bool direct;                   /* its output goes straight to the next stage's worker */
  clv_findings shows;            /* of the records: its output */
  clv_narrowest_element picture; /* of PICTURE: the narrowest element */
  clv_findings hop_shows;        /* of the records: what a worker sends to another one */
  clv_findings gradient_shows; /* its output's gradient: of the labels, with the loss at home, and,
                                * if it is at a worker, of the records */
  clv_findings looked, gradient_looked; /* of both: what the look alone has found */
  uint32_t front_layers; /* hiding layers from the records to its output, on the path with the
                            fewest */
  uint32_t head_layers;  /* secret layers that learn, from its output to the loss, on the path with
                            the fewest */
  /* on which its node says that it computes; "": nobody has asked */
  char device[CLV_STAGE_DEVICE_NAME];
  const char *adapters; /* the folder of peft that the stage begins with: its own lora.from, or that
                           of another stage, where a module of this one is saved; NULL: none */
  bool has_modules;     /* parameters of it that are no adapters are in that folder */
} clv_stage_plan;

/* How far labels follow from the order of the records, which is that of the files. */
typedef struct clv_label_order {
  uint32_t lag;           /* records apart; 0: they do not, or records are shuffled */
  double share, shuffled; /* of records with the label of the one so far before; in any order */
} clv_label_order;

typedef struct clv_blueprint {
  const clv_session_config *config; /* borrowed */
  clv_graph *whole;                 /* never packed */
  uint32_t n_stages;                /* of the model; the loss is stage n_stages */
  clv_stage_plan *stages;           /* [n_stages + 1], the loss last */
  clv_model_inputs inputs;          /* of one record, N = 1 */
  int64_t micro_size, eval_size;    /* largest micro-batch, samples */
  int lengths;                      /* the input by which sequences are packed; -1: they are not */
  int64_t places;                   /* of a sequence at most, where they are packed, */
  double mean_places;               /* and of those of data.train; 0: nobody has counted */
  uint32_t micro_batches, max_micro;
  clv_egress_row *egress;
  size_t n_egress;
  bool *worker_used;     /* [config->n_workers] */
  bool caches;           /* the outputs of the first stage are kept by the worker behind it */
  clv_policy *policy;    /* borrowed; what may leave besides by the table. NULL: no policy */
  char **known;          /* [whole->n_nodes] why the ledger knows a layer at home ("was at ...");
                            NULL in it: it does not; NULL: nobody has looked */
  const clv_sha256 *run; /* borrowed; the run's secret, by which the ledger names its parameters;
                            NULL: none */
  clv_label_order order;
  clv_look look;
} clv_blueprint;

/* inputs: of one record, N = 1. Errors point into the session file. */
clv_code clv_blueprint_new_of_inputs(const clv_session_config *config,
                                     const clv_model_inputs *inputs, clv_dtype label_dtype,
                                     clv_blueprint **ret, clv_err *err) CLV_USE_RESULT;
/* The same for records of one input without a name. */
clv_code clv_blueprint_new(const clv_session_config *config, const clv_shape *sample,
                           clv_dtype label_dtype, clv_blueprint **ret, clv_err *err) CLV_USE_RESULT;
/* The same for these data. */
clv_code clv_blueprint_new_of_data(const clv_session_config *config, const clv_dataset *data,
                                   clv_blueprint **ret, clv_err *err) CLV_USE_RESULT;
void clv_blueprint_free(clv_blueprint *b);
void clv_blueprint_freep(clv_blueprint **b);

/* Whose parameter tie `tie` of a stage is; false: it is the stage's own. */
bool clv_stage_tie_owner(const clv_blueprint *b, uint32_t stage, int tie, uint32_t *ret_stage,
                         const char **ret_weight);

/* The node of a stage says that it computes on "cuda:0", where the session file may leave that to
 * it: what is described from now on is of that device. */
void clv_blueprint_set_device(clv_blueprint *b, uint32_t stage, const char *device);

/* Plans made here compute in bf16. A master that cannot, and has no stage itself, counts in f32. */
bool clv_blueprint_is_bf16(const clv_blueprint *b);

/* Stages, parameters, memory, bytes per step over each cut, and what leaves the network: text for
 * people or one JSON object. */
clv_code clv_blueprint_describe(const clv_blueprint *b, bool json, clv_bytes *out,
                                clv_err *err) CLV_USE_RESULT;

/* The schedule as a grid, with what stages keep, or as one JSON object; ret_text: its instructions,
 * as pipeline.file takes them. */
clv_code clv_blueprint_draw_schedule(const clv_blueprint *b, bool json, clv_bytes *out,
                                     clv_bytes *ret_text, clv_err *err) CLV_USE_RESULT;

/* The egress table alone, as in the description, with the policy that holds; JSON: the two keys
 * "egress" and "policy". */
void clv_blueprint_describe_egress(const clv_blueprint *b, bool json, clv_bytes *out);

/* The egress table as stable text: a run's table is compared with the one it began with. It has no
 * findings of the look, whose figures change while weights learn. */
void clv_blueprint_egress_text(const clv_blueprint *b, clv_bytes *out);

/* ---- the policy (policy_check.c) ------------------------------------------------------------- */

/* What a command is going to send. */
typedef struct clv_planned_sends {
  bool weights;                /* state of stages that is sent to begin from a checkpoint */
  bool optimizer;              /* what the optimiser keeps, too */
  uint64_t trained, evaluated; /* records of an epoch, of the largest one */
} clv_planned_sends;

/* Commands, by what they send. */
typedef enum clv_command_kind {
  CLV_BEGINS,   /* train */
  CLV_RESUMES,  /* train --resume */
  CLV_EVALUATES /* eval, predict */
} clv_command_kind;

typedef struct clv_run_data clv_run_data;
clv_planned_sends clv_sends_of(const clv_run_data *d, clv_command_kind command);

/* Every row, every worker and the bytes of an epoch against b->policy. CLV_INVALID: what is not
 * permitted, with the line of the policy. */
clv_code clv_blueprint_check_policy(const clv_blueprint *b, const clv_planned_sends *sends,
                                    clv_err *err) CLV_USE_RESULT;
/* What the worker of a direct stage sends to the next worker, or back the gradient, as a row: it
 * passes no gate, and policy and record are of it all the same. */
clv_egress_row clv_blueprint_hop_row(const clv_blueprint *b, uint32_t stage, bool back);

/* ---- what workers know from earlier sessions (known_layers.c, weights_sample.c) -------------- */

/* Looks the layers at home up in the ledger, and makes the table again with what was found. run: as
 * the field. Without workers nothing is read. Errors as of clv_ledger_open. */
clv_code clv_blueprint_read_ledger(clv_blueprint *b, const clv_sha256 *run,
                                   clv_err *err) CLV_USE_RESULT;
/* CLV_INVALID: the session does not permit what the blueprint shows by now. */
clv_code clv_blueprint_check_privacy(const clv_blueprint *b, clv_err *err) CLV_USE_RESULT;

/* For `plan`: a line for each layer at home that counts as known, or a JSON array. */
void clv_known_layers_describe(const clv_blueprint *b, bool json, clv_bytes *out);

/* Names in the ledger: of the key of the layer that node k of a stage's graph, or of the whole
 * model, is of; of a parameter in a run. */
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

/* Values of a tensor that name it. */
typedef struct clv_weights_sample {
  clv_dtype dtype;
  clv_shape shape;
  size_t count;              /* values of the tensor */
  size_t parts, part;        /* runs of values that are taken; values of one */
  clv_weights_spread spread; /* of a tensor of several parts */
  char values[CLV_SAMPLE_PARTS * CLV_SAMPLE_PART * sizeof(float)];
} clv_weights_sample;

/* false: the tensor is none that hides anything: its rank is below 2, or its type no float. */
bool clv_weights_sample_begin(clv_weights_sample *s, clv_dtype dtype, const clv_shape *shape);
/* Bytes of the tensor from `offset` on, in any order until all have come, each once. */
void clv_weights_sample_add(clv_weights_sample *s, uint64_t offset, const void *data, size_t len);
enum { CLV_SAMPLE_CHUNK = 65536 }; /* values to read at once; taking one costs 15 ns */
clv_code clv_weights_sample_digest(const clv_weights_sample *s, clv_sha256 *ret,
                                   clv_err *err) CLV_USE_RESULT;

enum { CLV_SPREAD_MEANS = 8 };

/* How values are spread, whatever their order and their unit. */
typedef struct clv_weights_moments {
  char kind[8];                  /* "form": of the sample; "spread": of all values */
  size_t count;                  /* values of the tensor */
  double mean[CLV_SPREAD_MEANS]; /* in cells */
} clv_weights_moments;

/* all: of all values, where the tensor has more than the sample. false: there are no more, they are
 * too few, or all 0. */
bool clv_weights_sample_moments(const clv_weights_sample *s, bool all, clv_weights_moments *ret);
enum { CLV_SAMPLE_NAMES = 3 }; /* for the ledger: of its values, and of both forms */

/* What the ledger keeps of a tensor that a worker has. */
clv_code clv_weights_sample_names(const clv_weights_sample *s, clv_sha256 ret[CLV_SAMPLE_NAMES],
                                  size_t *ret_n, clv_err *err) CLV_USE_RESULT;
/* Names the form. Bit i of `beside`: with the cell beside that of mean i, where it is so near that
 * rounded values may be in it; *ret_near false: a mean of them is not. */
clv_code clv_weights_moments_digest(const clv_weights_moments *f, unsigned beside, clv_sha256 *ret,
                                    bool *ret_near, clv_err *err) CLV_USE_RESULT;

/* ---- data ------------------------------------------------------------------------------------ */

struct clv_run_data {
  clv_dataset *train, *test; /* test NULL when the session names none */
  clv_subset train_rows, validation_rows, test_rows;
};

/* What shuffling, splits, crops and flips follow from: derived from train.seed, never sent. */
clv_code clv_run_data_derive_seed(const clv_session_config *config, uint64_t *ret,
                                  clv_err *err) CLV_USE_RESULT;

clv_code clv_run_data_open(const clv_session_config *config, bool need_train, clv_run_data *ret,
                           clv_err *err) CLV_USE_RESULT;
/* The records of data.test alone: what labels there are is not read. */
clv_code clv_run_data_open_inputs(const clv_session_config *config, clv_run_data *ret,
                                  clv_err *err) CLV_USE_RESULT;
void clv_run_data_done(clv_run_data *d);
/* "63 of 629 records are held back for validation: each class by its share"; nothing where none
 * is. */
void clv_run_data_describe_held_back(const clv_session_config *config, const clv_run_data *d,
                                     clv_bytes *out);

/* Looks through the records, the training ones as they are drawn for training. One with a value
 * that is not finite is CLV_DATA_LOSS and names the first; with data.non_finite: skip all such are
 * taken out of the rows instead, *ret_left_out counts them, and `notes` gets a line for each
 * file. `notes` also names a set whose records have one class alone, and a fraction of which no
 * record would be held back. */
typedef struct clv_run_scan {
  size_t most; /* records of each file that are looked at; 0: every one */
  bool decode; /* read images, too */
  /* key: data.train or data.test; may be NULL */
  void (*progress)(void *user, const char *key, size_t done, size_t all);
  void *user;
} clv_run_scan;
clv_code clv_run_data_scan(const clv_session_config *config, clv_run_data *d,
                           const clv_run_scan *options, uint64_t *ret_left_out, clv_bytes *notes,
                           clv_err *err) CLV_USE_RESULT;

/* Records, labels, outputs and sizes of batches go together (data_check.c); CLV_INVALID points at
 * the key and names the file. */
clv_code clv_run_data_check_fit(const clv_run_data *d, const clv_blueprint *b,
                                clv_err *err) CLV_USE_RESULT;
/* Packed sequences of a micro-batch have one of so many numbers of rows, so that a node makes few
 * plans: the next above their places. Others would cost a plan and its memory for nearly every
 * micro-batch; this costs half of a 32nd of the padded size on average. */
enum { CLV_PACKED_SIZES = 32 };
/* Fills b->order (label_order.c). */
clv_code clv_run_data_find_label_order(const clv_run_data *d, clv_blueprint *b,
                                       clv_err *err) CLV_USE_RESULT;
/* Of so many labels; sorts them. */
clv_label_order clv_label_order_compute(double *labels, size_t n);
/* For `plan`, `check` and `train`: a line where labels follow, or JSON: an object or null. */
void clv_label_order_describe(const clv_blueprint *b, bool json, clv_bytes *out);
/* Notes how long the sequences of data.train are, where they are packed. */
void clv_run_data_measure_lengths(const clv_run_data *d, clv_blueprint *b);

/* ---- the look (look.c) ----------------------------------------------------------------------- */

/* What is looked at. */
typedef struct clv_look_options {
  const clv_dataset *data;
  const clv_subset *rows;           /* of data */
  const clv_checkpoint *checkpoint; /* whose weights; NULL: the first ones */
  bool preview;   /* first weights are drawn from other seeds, CLV_LOOK_DRAWS times; false: from the
                     session's */
  bool evaluates; /* no gradient is sent */
} clv_look_options;

/* Runs what is before the last cut, and the head, in this process on a few records, and reads what
 * would leave as an onlooker would: for CLV_LOOK_MAX_SECONDS at most. Sends nothing, and changes
 * nothing that training reads. What cannot be looked at is a result, too. */
clv_code clv_look_run(const clv_blueprint *b, const clv_look_options *o, clv_look *ret,
                      clv_err *err) CLV_USE_RESULT;
/* Adds what was read above the limits (pixels 0.5, tokens 0.2, labels 0.3, features 0.9) to the
 * findings of the rows of b, and keeps the look there. clv_blueprint_check_privacy compares them
 * with the session. */
void clv_blueprint_add_look(clv_blueprint *b, const clv_look *look);

/* "pixels"; the limit above which a figure is a finding. */
const char *clv_look_name(clv_look_reader reader);
double clv_look_limit(clv_look_reader reader);
/* Lines of what was read, or JSON's key "look" with its comma before it. */
void clv_look_describe(const clv_blueprint *b, clv_bytes *out);
void clv_look_json(const clv_blueprint *b, clv_bytes *out);
/* "0.82", "not applicable" or "not looked at", and all of them in a line. */
enum { CLV_LOOK_RESULT_TEXT = 16 };
void clv_look_result_text(const clv_look_result *r, char ret[CLV_LOOK_RESULT_TEXT]);
void clv_look_summary(const clv_look *look, clv_bytes *out);

/* ---- schedules ------------------------------------------------------------------------------- */

/* Places of a call in its node's order, 0: none. */
typedef struct clv_call_positions {
  uint32_t forward, backward, weight;
  bool old_weights;
} clv_call_positions;

/* A schedule for n_steps steps (one, unless it is asynchronous) of n_micro micro-batches
 * together. */
typedef struct clv_placed_schedule {
  clv_sched *sched;
  clv_sched_report report;
  uint32_t n_micro, n_steps, window;
  clv_call_positions *positions; /* [stages, the loss included][n_micro] */
  uint32_t *steps;               /* [stages][n_steps] position of the stage's own step, 0: none */
} clv_placed_schedule;

/* costs NULL: the textbook's. CLV_INVALID: what does not fit, in the session's words. */
clv_code clv_placed_schedule_new(const clv_blueprint *b, uint32_t n_micro, uint32_t n_steps,
                                 uint32_t window, const clv_sched_costs *costs,
                                 clv_placed_schedule **ret, clv_err *err) CLV_USE_RESULT;
void clv_placed_schedule_free(clv_placed_schedule *l); /* NULL is allowed */
void clv_placed_schedule_freep(clv_placed_schedule **l);

/* Stages and their ranks; names: of the ranks, [n_ranks]. Fills all but n_micro and
 * n_accumulate. */
uint32_t clv_pipeline_ranks(const clv_blueprint *b, clv_sched_shape *shape,
                            const char *names[CLV_SCHED_RANKS]);
void clv_pipeline_default_costs(const clv_blueprint *b, clv_sched_costs *ret);
uint32_t clv_pipeline_steps_in_round(const clv_session_config *c); /* steps in a round */
uint32_t clv_pipeline_first_window(const clv_session_config *c);   /* before anything is measured */
/* Is there a schedule for whole rounds? Before anything is connected. */
clv_code clv_pipeline_check(const clv_blueprint *b, clv_err *err) CLV_USE_RESULT;

/* ---- initial weights ------------------------------------------------------------------------- */

/* All tensors that the stage has, in a weights file: *ret is [params->n], to be freed. NULL in it:
 * see CLV_WEIGHTS_ALLOW_NO_COUNTS. */
clv_code clv_stage_match_weights(const clv_blueprint *b, uint32_t stage, const clv_weights_file *f,
                                 unsigned flags, const clv_weights_entry ***ret,
                                 clv_err *err) CLV_USE_RESULT;

/* The file of a stage's initial weights, with the stage's tensors in it; a NULL among them is a
 * count that the file has not, and `notes` gets one more line about it. CLV_DATA_LOSS names the
 * place in the session: it is missing or damaged, has another digest, lacks a tensor of the stage
 * or has one in another type or shape, or one that the whole model has not. */
clv_code clv_stage_file_open(const clv_blueprint *b, uint32_t stage, clv_weights_file **ret,
                             const clv_weights_entry ***ret_found, clv_bytes *notes,
                             clv_err *err) CLV_USE_RESULT;
/* Whether checkpoints have it: not what begins as a worker's artifact has it, or from its key, and
 * stays so. */
bool clv_is_param_checkpointed(const clv_stage_spec *s, const clv_param *p);

/* As clv_stage_file_open, of the stage's folder `adapters`: its adapters, and of what else it has
 * what is there, as peft's modules_to_save; names in the file begin with peft's prefix. */
clv_code clv_stage_adapters_open(const clv_blueprint *b, uint32_t stage, clv_weights_file **ret,
                                 const clv_weights_entry ***ret_found, clv_err *err) CLV_USE_RESULT;

/* The folder of a stage's initial weights, open, and where it has each of its parameters. */
typedef struct clv_stage_folder {
  clv_weights_folder *folder;
  clv_manifest manifest; /* with a sha256 in the session */
  size_t n;
  clv_weights_want *want; /* [n] */
  size_t *found;          /* [n], CLV_WEIGHTS_NONE: starts from the seed */
} clv_stage_folder;

void clv_stage_folder_done(clv_stage_folder *f); /* releases and zeroes */
/* Errors as of clv_stage_file_open, but what the model has not is only said, in `notes`, as is what
 * starts from the seed. Headers of the stage's files are read, their numbers are not. */
clv_code clv_stage_folder_open(const clv_blueprint *b, uint32_t stage, clv_stage_folder *ret,
                               clv_bytes *notes, clv_err *err) CLV_USE_RESULT;
/* weights.new names this parameter. */
bool clv_stage_is_new(const clv_stage_spec *spec, const char *parameter);
/* CLV_INVALID: an entry of weights.new that no parameter of the stage begins with. */
clv_code clv_stage_check_new(const clv_blueprint *b, uint32_t stage, clv_err *err) CLV_USE_RESULT;

/* ---- numbers of micro-batches (micro_batches.c) ---------------------------------------------- */

enum { CLV_MAX_MICRO_CHOICES = 64 };

/* The batch cut into m micro-batches is cut into m, none of fewer than `least` samples. sizes:
 * [m] */
bool clv_can_cut_batch(uint64_t batch, uint64_t m, int64_t least, size_t *sizes);
/* Numbers worth a look, ascending: those up to CLV_MAX_MICRO_CHOICES that cut the batch into so
 * many parts of at least `least` samples and divide it or are a power of two; and `also`, if it is
 * a number of parts. */
clv_code clv_micro_batch_choices(uint64_t batch, int64_t least, uint32_t also, uint32_t **ret,
                                 uint32_t *ret_n, clv_err *err) CLV_USE_RESULT;

/* On the line between the values at the two nearest sizes (descending); at the ends as there. */
double clv_interpolate(const int64_t *size, const double *value, uint32_t n, double at);

/* ---- cuts (suggest.c) ------------------------------------------------------------------------ */

/* What somebody says of the links and of how fast the nodes are, compared with this machine. */
typedef struct clv_link_estimate {
  double latency_s, bytes_s; /* one way */
  bool given;
} clv_link_estimate;
typedef struct clv_links {
  size_t n;                /* workers of the session */
  clv_link_estimate *link; /* [n]: to the master */
  clv_link_estimate *hop;  /* [n][n]: direct, from the lower to the higher index */
  double *speed;           /* [n + 1]: the workers', the master's last */
  clv_bytes notes;         /* "w1 20 ms, 1000 Mbit/s" */
} clv_links;
/* From options; unless given a link has 1 ms and 1 Gbit/s, and a direct hop the worse of the two
 * links.
 * CLV_INVALID: which word of which option is wrong. */
clv_code clv_links_parse(const clv_session_config *c, const clv_run_options *o, clv_links **ret,
                         clv_err *err) CLV_USE_RESULT;
void clv_links_freep(clv_links **l);

/* Times the layers, looks for the best cuts, and prints them beside those of the session. */
clv_code clv_suggest_cuts(const clv_blueprint *b, const clv_links *links, bool json, clv_bytes *out,
                          clv_err *err) CLV_USE_RESULT;

#endif
