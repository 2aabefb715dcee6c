/* SPDX-License-Identifier: Apache-2.0
 *
 * plan: computes everything that can be known of a session before a run connects to its workers.
 * A *blueprint* (clv_blueprint_new_of_data) has the stages, shapes, learning parameters and the
 * table of tensors that leave the master. A *placed schedule* (clv_placed_schedule_new) has the
 * position of each call in the execution order of its node. The commands `plan`, `check` and
 * `train` print and check these. No function of this folder connects to a worker.
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

/* Reasons why a run ends early: a signal, or the command `stop`. */
enum { CLV_INTERRUPTED = 1, CLV_ASKED_TO_STOP = 2 };

/* Values of the option --weights; 0: the option was not given. */
enum { CLV_WEIGHTS_TRAINED = 1, CLV_WEIGHTS_EMA };

typedef struct clv_run_options {
  uint64_t max_steps; /* stop after this many steps in all; 0: the session's number of steps */
  bool resume, fresh, accept_egress, accept_data, json; /* true: the option was given */
  bool log_json;                                        /* print progress as JSON as well */
  const _Atomic(int) *interrupted; /* set by a signal handler; the run then finishes its step and
                                    * writes a checkpoint */
  const char *out;        /* predict: output file; plan: file of the schedule's instructions */
  int format;             /* predict: 1 csv, 2 jsonl, 3 npy; 0: chosen by the ending of `out` */
  const char *checkpoint; /* a step, "latest" or "best"; NULL: the option was not given */
  int weights;            /* weights to use; CLV_WEIGHTS_EMA: averages; else: as trained */
  const char *trace;      /* train: output file for chrome://tracing and Perfetto; NULL: none */
  /* profile: train prints where its time went; schedule: plan draws the schedule */
  bool profile, schedule;
  /* check: read only a sample of the records; checkpoint verify: ask workers for digests */
  bool is_quick;
  /* predict: write probabilities in place of outputs */
  bool probabilities;
  bool intervals; /* eval: also computes intervals of the scores */
  /* predict: number of passes with dropout, of which mean and interval are written; 0: one pass
   * without dropout */
  uint64_t dropout_samples;
  /* checkpoint rm: with `orphans` also delete files that belong to no checkpoint, with `force` also
   * delete the newest checkpoint */
  bool orphans, force;
  bool delete_caches; /* cache: delete the caches that are listed */
  bool watch;         /* status: repeat every interval_s seconds; 0: every second */
  double interval_s;
  bool ask_workers; /* plan: ask the workers which device computes each stage */
  /* plan: search for better cuts, with `links` ("w1=20:1000": ms, Mbit/s) and `speeds` ("w1=8") */
  bool suggest_cuts;
  const char *const *links, *const *speeds;
  size_t n_links, n_speeds;
} clv_run_options;

/* ---- the blueprint, all that is known of a session before a run ------------------------------ */

/* Most stages of a session. Each stage is a module of libcleave. Two more modules are the loss
 * of training and the loss that the master computes in evaluations; a session has at most 255
 * modules. */
enum { CLV_MAX_STAGES = 253 };
enum { CLV_EVAL_WINDOW = 4 };              /* batches in flight in an evaluation */
enum { CLV_STAGE_DEVICE_NAME_BYTES = 32 }; /* bytes of a device's name with its final NUL */

/* Readers of the look (look.c). Each is an attack that tries to read one thing, such as the labels,
 * from the tensors that leave. */
typedef enum clv_look_reader {
  CLV_LOOK_PIXELS,
  CLV_LOOK_TOKENS,
  CLV_LOOK_LABELS,
  CLV_LOOK_FEATURES,
  CLV_LOOK_GROUPS,   /* which records have the same label */
  CLV_LOOK_N_READERS /* number of attacks */
} clv_look_reader;

typedef enum clv_look_state {
  /* the session has no data that the attack could read, or sends nothing that shows them */
  CLV_LOOK_NOTHING_TO_READ,
  CLV_LOOK_RAN,           /* the reader (attack) ran; `figure` says how much it could read */
  CLV_LOOK_COULD_NOT_RUN, /* the reader (attack) could not run; `reason` says why */
} clv_look_state;

enum {
  CLV_LOOK_MAX_RECORDS = 64,
  CLV_LOOK_PREVIEW_DRAWS = 3, /* draws of the initial weights in a preview (`plan`, `check`) */
  CLV_LOOK_MAX_SECONDS = 10,
  CLV_LOOK_REASON_BYTES = 200 /* bytes of a reason with its final NUL */
};

typedef struct clv_look_result {
  clv_look_state state;
  /* in state CLV_LOOK_RAN: fraction that the attack has read, from 0 (no better than a guess) to 1
   * (all of it) */
  double figure;
  const char *method; /* in state CLV_LOOK_RAN: name of the best method; static text */
  /* in state CLV_LOOK_RAN: findings (clv_findings) to report if `figure` is above the limit; 0: the
   * usual findings of this attack */
  unsigned findings;
  char reason[CLV_LOOK_REASON_BYTES]; /* in other states: why the attack read nothing */
} clv_look_result;

/* Limit of clv_look_result.figure, the fraction that an attack of the look has read. From this
 * figure on the session must permit the finding by a key of `privacy`. */
#define CLV_LOOK_CERTAIN_FIGURE 0.9

typedef struct clv_look {
  /* false: the look, the measurement before the run, has not run, or no tensor is sent */
  bool has_run;
  uint32_t n_records, n_draws;
  double duration_s;
  clv_look_result results[CLV_LOOK_N_READERS];
  /* clv_findings of the attacks whose figure, the fraction that they read, is above their limit
   * (clv_look_figure_limit) and below CLV_LOOK_CERTAIN_FIGURE. `plan` prints these findings and a
   * policy may forbid them, but they need no key of `privacy`, unless the analysis of the graph has
   * found them too. clv_blueprint_add_look sets them. */
  unsigned uncertain_findings;
} clv_look;

/* Element (single number) of a value that depends on the fewest positions of a record. */
typedef struct clv_narrowest_element {
  int64_t n_source_positions; /* number of positions of the record that the element depends on */
  int64_t n_total_positions;  /* number of all positions of the record; 0: no such element */
} clv_narrowest_element;

/* Plan of one stage of a blueprint, or of the loss. */
typedef struct clv_stage_plan {
  clv_graph *graph;   /* graph of a micro-batch; of packed sequences if the session packs */
  clv_params *params; /* parameters of the stage; frozen ones are marked */
  /* index into the session's workers of the one that computes the stage; -1: the master */
  int worker;
  int planned_worker; /* worker that the session names; `worker` is its spare after a loss */
  /* number of model inputs that the stage reads, besides the value that crosses the cut */
  uint32_t n_model_inputs;
  uint32_t model_inputs[CLV_MAX_INPUTS]; /* [n_model_inputs] indexes in the blueprint's inputs */
  bool input_needs_grad;                 /* backward computes the gradient of the stage's input */
  bool has_backward;                     /* the stage has learning parameters or input_needs_grad */
  uint32_t n_learning_params;            /* number of learning parameters */
  uint32_t first_layer, last_layer;
  /* the stage's worker sends the output straight to the next stage's worker, not through the
   * master */
  bool sends_directly;
  clv_findings output_findings; /* ways in which records can be read from the stage's output */
  /* element (single number) that depends on the smallest fraction of a record, in the output or, if
   * a worker has the stage, in the output's gradient; reported with CLV_FINDING_PICTURE */
  clv_narrowest_element narrowest_picture_element;
  /* ways in which records can be read from the output that a worker sends to another worker */
  clv_findings hop_findings;
  /* findings of the gradient of the stage's output: how labels can be read from it (if the master
   * has the loss), and how records can be read from it (if a worker has the stage) */
  clv_findings gradient_findings;
  /* findings in output_findings and in gradient_findings that the graph does not show, but that the
   * look (clv_look) has measured */
  clv_findings output_look_findings, gradient_look_findings;
  /* number of hiding layers, which mix by secret weights, from the records to the stage's output,
   * on the path with the fewest */
  uint32_t n_front_layers;
  /* number of secret learning layers from the stage's output to the loss, on the path with the
   * fewest */
  uint32_t n_head_layers;
  /* device that the stage's node has reported; "": the master has not asked the node */
  char device[CLV_STAGE_DEVICE_NAME_BYTES];
  /* peft folder from which the stage loads adapters: its own lora.from, or another stage's, if that
   * folder has a module of this stage; NULL: none */
  const char *adapter_folder;
  /* adapter_folder has parameters of the stage that are not adapters */
  bool folder_has_other_params;
} clv_stage_plan;

/* How well the order of the records predicts their labels. */
typedef struct clv_label_order_stats {
  uint32_t lag; /* distance of the compared records; 0: the order predicts nothing, or records
                    * are shuffled */
  /* fraction of records whose label equals that of the record `lag` records before */
  double equal_share;
  double shuffled_share; /* equal_share to be expected of records in random order */
} clv_label_order_stats;

/* A layer that was at another place, the master or a worker, when a checkpoint was written. */
typedef struct clv_moved_layer {
  char name[CLV_NAME_MAX];
  uint32_t layer, stage;             /* number of the layer; stage of the session that has it */
  const char *old_place, *new_place; /* "master" or the name of a worker */
  /* the layer moves to a worker from the master, or from an unknown place, so the policy of the
   * host or privacy.release of the session must permit the move */
  bool needs_release;
} clv_moved_layer;

typedef struct clv_moved_layers {
  clv_session_config *checkpoint_config; /* session of the checkpoint; NULL: it cannot be read */
  clv_err why_unknown;                   /* why checkpoint_config is NULL */
  clv_moved_layer *list;                 /* [n] the layers, in the order of the model */
  size_t n;
} clv_moved_layers;

/* All that is known of a session before a run. The pointers to config, policy and run are
 * caller-owned. */
typedef struct clv_blueprint {
  const clv_session_config *config;
  clv_graph *full_graph;   /* graph of the full model, for sequences that are not packed */
  uint32_t n_stages;       /* stages of the model; the loss is stage n_stages */
  clv_stage_plan *stages;  /* [n_stages + 1] plans of the stages, the loss last */
  clv_model_inputs inputs; /* shapes and types of the inputs of one record (N = 1) */
  /* samples of the largest micro-batch: micro_size in training, eval_size in evaluations */
  int64_t micro_size, eval_size;
  int lengths_input;     /* index of the input with the lengths of sequences; -1: sequences are not
                       * packed */
  int64_t max_positions; /* most positions of a packed sequence */
  double mean_positions; /* mean positions of the sequences of data.train; 0: not counted */
  /* micro_batches: micro-batches of a step; max_micro_batches: most micro-batches in flight, the
   * larger of micro_batches and CLV_EVAL_WINDOW */
  uint32_t micro_batches, max_micro_batches;
  clv_egress_row *egress; /* [n_egress] rows of the egress table */
  size_t n_egress;
  /* [config->n_workers] true if the worker has a stage or the loss, or is a spare of such a
   * worker */
  bool *is_worker_used;
  bool has_cache;     /* the worker of stage 1 stores the outputs of stage 0 */
  clv_policy *policy; /* limits what may be sent; NULL: no policy */
  /* [full_graph->n_nodes] reason why a worker can know the weights of a layer of the master ("was
   * at ..."); NULL: no worker can. The array is NULL until clv_blueprint_read_ledger was called. */
  char **known_reasons;
  /* secret of the run, from which the ledger derives names of parameters; NULL: none */
  const clv_sha256 *run_secret;
  clv_label_order_stats label_order;
  clv_look look;
  clv_moved_layers moved_layers; /* layers that a resumed run moves; n 0: none, or not looked for */
} clv_blueprint;

/* Makes the blueprint of a session. inputs: shapes and types of the inputs of one record (N = 1).
 * An error names the line of the session file. Free *ret with clv_blueprint_free. */
clv_code clv_blueprint_new_of_inputs(const clv_session_config *config,
                                     const clv_model_inputs *inputs, clv_dtype label_dtype,
                                     clv_blueprint **ret, clv_err *err) CLV_USE_RESULT;
/* As clv_blueprint_new_of_inputs, for records with one unnamed input of shape sample_shape. */
clv_code clv_blueprint_new(const clv_session_config *config, const clv_shape *sample_shape,
                           clv_dtype label_dtype, clv_blueprint **ret, clv_err *err) CLV_USE_RESULT;
/* As clv_blueprint_new_of_inputs, with the input shapes and the label type of `data`. */
clv_code clv_blueprint_new_of_data(const clv_session_config *config, const clv_dataset *data,
                                   clv_blueprint **ret, clv_err *err) CLV_USE_RESULT;
/* Returns a node with the type and the shape of a batch's labels, as a loader makes them. */
clv_node clv_blueprint_labels_node(const clv_blueprint *b);

/* Labels of records with several targets, arranged as inputs of the graph of the loss, in the order
 * that the comment of clv_target_make_loss_graph gives. */
typedef struct clv_target_inputs {
  void *block; /* owned; the inputs are parts of it */
  uint32_t n;  /* number of inputs, without the predictions */
  /* number of columns of the f32 input (clv_targets_number_width); 0: there is no f32 input.
   * Otherwise inputs[0] is the f32 input, [n_records][n_numbers]. Its first columns are the labels
   * of the targets without classes; a missing label is 0. The mask columns follow, one or two for
   * each target that masks missing labels. The first of two columns has 1 for a record with a
   * label, else 0; the second has the same factor for all records: the number of records of the
   * batch divided by the sum of their weights, or 1 if no record has a label. A single mask column
   * has the weight of the record's label times this factor. Each other input has the classes of one
   * target, [n_records] i64; a missing label has the default of ignore_index, or 0 if the loss has
   * no ignore_index */
  size_t n_numbers;
  const void *inputs[CLV_MAX_INPUTS]; /* [n] */
} clv_target_inputs;
/* Labels of a batch, and which of its records a micro-batch has. */
typedef struct clv_target_labels {
  const float *y;  /* [n_batch][n_targets] labels of the batch; NaN: missing */
  size_t n_batch;  /* records of the batch */
  size_t start, n; /* first record of the micro-batch, and number of its records */
} clv_target_labels;
/* Converts the labels of a micro-batch to inputs of the loss. Free *ret with
 * clv_target_inputs_done. */
clv_code clv_target_inputs_make(const clv_session_config *c, const clv_target_labels *labels,
                                clv_target_inputs *ret, clv_err *err) CLV_USE_RESULT;
/* Returns the weight of a label in the mean of the target's loss: the weight of the label's class,
 * or 1 without class weights; 0 for a missing label. */
double clv_target_label_weight(const clv_target_spec *s, float label);
void clv_target_inputs_done(clv_target_inputs *t);
void clv_blueprint_free(clv_blueprint *b);
void clv_blueprint_freep(clv_blueprint **b);

/* Finds the owner of tie `tie` of a stage. Returns the stage that has the shared parameter, and the
 * parameter's name there. False: the owner is in the same stage. */
bool clv_stage_tie_owner(const clv_blueprint *b, uint32_t stage, int tie, uint32_t *ret_stage,
                         const char **ret_weight);

/* Stores the device that the node of a stage has reported, such as "cuda:0". Later descriptions of
 * the stage are for this device. */
void clv_blueprint_set_device(clv_blueprint *b, uint32_t stage, const char *device);

/* True if this process computes its plans in bf16. A master without stages may run on a processor
 * without bf16; its plans are then in f32, as estimates. */
bool clv_blueprint_is_bf16(const clv_blueprint *b);

/* Appends a description as text or as one JSON object: stages, parameters, memory, bytes per step
 * over each cut, and the egress table. */
clv_code clv_blueprint_describe(const clv_blueprint *b, bool json, clv_bytes *out,
                                clv_err *err) CLV_USE_RESULT;

/* Appends the schedule as a grid, with the micro-batches and the versions of weights that the
 * stages hold, or as one JSON object. ret_text: the instructions in the form of pipeline.file. */
clv_code clv_blueprint_draw_schedule(const clv_blueprint *b, bool json, clv_bytes *out,
                                     clv_bytes *ret_text, clv_err *err) CLV_USE_RESULT;

/* Appends the egress table and the policy, as clv_blueprint_describe does. JSON: the two members
 * "egress" and "policy". */
void clv_blueprint_describe_egress(const clv_blueprint *b, bool json, clv_bytes *out);

/* Returns true if the row's worker has the stage that the tensor is for. The rows of a spare are
 * not in use until the spare has taken the place of a lost worker. From then on the rows of the
 * lost worker are not in use. */
bool clv_blueprint_is_row_in_use(const clv_blueprint *b, const clv_egress_row *r);
/* Appends the egress table as text that does not change between releases. A resumed run compares
 * this text with the text that the run began with. The text omits the results of the look
 * (clv_look_run), because these change while weights learn. */
void clv_blueprint_append_egress_text(const clv_blueprint *b, clv_bytes *out);

/* ---- the policy of the host (policy_check.c) ------------------------------------------------- */

/* Kinds and numbers of tensors that a command will send. */
typedef struct clv_planned_sends {
  bool sends_weights;   /* the command sends weights of stages, from a checkpoint */
  bool sends_optimizer; /* the command sends moments of the optimiser */
  /* most records of an epoch, for training and for evaluations */
  uint64_t n_train_records, n_eval_records;
} clv_planned_sends;

/* Kinds of commands, by what they send. */
typedef enum clv_command_kind {
  CLV_COMMAND_TRAINS,   /* the command train */
  CLV_COMMAND_RESUMES,  /* the command train --resume */
  CLV_COMMAND_EVALUATES /* the commands eval and predict */
} clv_command_kind;

typedef struct clv_run_data clv_run_data;
clv_planned_sends clv_planned_sends_make(const clv_run_data *d, clv_command_kind command_kind);

/* Checks every row of the egress table, every worker and the bytes of an epoch against b->policy.
 * CLV_INVALID: the policy forbids something; the message names it and the line of the policy. */
clv_code clv_blueprint_check_policy(const clv_blueprint *b, const clv_planned_sends *sends,
                                    clv_err *err) CLV_USE_RESULT;
/* Returns the bytes of the tensors that leave the master in an epoch. */
uint64_t clv_blueprint_epoch_bytes(const clv_blueprint *b, const clv_planned_sends *sends);
/* Returns a row for a tensor that one worker sends to another: the output of a direct stage, or, if
 * is_gradient, the gradient of the output. The master never sees this tensor, so it cannot check it
 * when it is sent, but the policy and the egress record cover it. */
clv_egress_row clv_blueprint_hop_row(const clv_blueprint *b, uint32_t stage, bool is_gradient);

/* ---- several runs over the same records (repeats.c) ------------------------------------------ */

typedef struct clv_repeated_runs {
  uint64_t n_runs;
  uint64_t epoch_bytes; /* bytes of an epoch of all runs together; 0: nothing leaves the master */
  /* the session has train.seed, so all runs begin with the same weights */
  bool has_same_initial_weights;
} clv_repeated_runs;
/* Appends how often a record leaves the master in these runs, and how many bytes leave: a line of
 * text or of JSON. */
void clv_repeated_runs_describe(const clv_repeated_runs *r, bool json, clv_bytes *out);

/* ---- checkpoints that stay at workers (checkpoint_bytes.c) ----------------------------------- */

/* Returns the number of checkpoints that are at workers at once: the newest ones (checkpoint.keep),
 * the best one, and the one that is being written. */
uint64_t clv_blueprint_kept_checkpoint_count(const clv_blueprint *b);
/* Returns an upper limit of the bytes that the checkpoints kept at a worker take there, to compare
 * with allow[].state_bytes of the worker. 0: no stage of the worker keeps checkpoints there. */
uint64_t clv_blueprint_max_kept_bytes(const clv_blueprint *b, int worker);
/* Appends decay and bytes of the averages of the weights (train.ema), as a line or as a member
 * `,"ema":{...}` of a JSON object. Appends nothing if the run keeps no averages. */
void clv_ema_describe(const clv_blueprint *b, bool json, clv_bytes *out);
/* Appends a line for each worker at which checkpoints stay, or a JSON array. */
void clv_kept_bytes_describe(const clv_blueprint *b, bool json, clv_bytes *out);

/* ---- checkpoints of another cut (checkpoint_cut.c, moved_layers.c) --------------------------- */

#define CLV_SESSION_FILE "session.effective.yaml" /* file of a checkpoint with its session */

/* Makes the checkpoint return averages in place of weights (clv_checkpoint_use_ema), if `weights`
 * is CLV_WEIGHTS_EMA. CLV_INVALID: the run kept no averages. */
clv_code clv_checkpoint_choose_weights(clv_checkpoint *c, int weights, clv_err *err) CLV_USE_RESULT;
/* Parses the session with which a checkpoint was written. */
clv_code clv_checkpoint_parse_session(const clv_checkpoint *c, clv_session_config **ret,
                                      clv_err *err) CLV_USE_RESULT;
/* Finds the stage of the checkpoint that has each parameter: *ret_stages [p->n], which the caller
 * frees. An entry CLV_CHECKPOINT_NO_STAGE: the checkpoint lacks the parameter. */
clv_code clv_params_find_checkpoint_stages(const clv_params *p, const clv_checkpoint *c,
                                           uint32_t **ret_stages, clv_err *err) CLV_USE_RESULT;

/* Compares the cut of the session with that of the checkpoint. *ret: true if each stage of the
 * session has its weights in the checkpoint's file of the stage with the same index; false: the
 * checkpoint has another number of stages, a layer has changed its stage, or fixed weights come
 * from another kind of source. */
clv_code clv_blueprint_compare_cut(const clv_blueprint *b, const clv_checkpoint *c, bool *ret,
                                   clv_err *err) CLV_USE_RESULT;
/* Checks that the session finds the files of the checkpoint that stayed at workers. CLV_INVALID:
 * the session has another cut than the checkpoint, or another worker for a stage; the message says
 * how to gather the files. */
clv_code clv_blueprint_check_kept_files(const clv_blueprint *b, const clv_checkpoint *c,
                                        clv_err *err) CLV_USE_RESULT;

/* Finds the layers with parameters whose place has changed since the checkpoint was written. If the
 * checkpoint's session cannot be read, lists all layers that are at workers now. Free with
 * clv_moved_layers_done. */
clv_code clv_moved_layers_find(const clv_blueprint *b, const clv_checkpoint *c,
                               clv_moved_layers *ret, clv_err *err) CLV_USE_RESULT;
void clv_moved_layers_done(clv_moved_layers *m); /* frees and zeroes */
/* Checks that the layers may move to workers. CLV_INVALID: the policy of the host does not
 * permit a move or, without a policy, privacy.release of the session does not; the message names
 * the layers. */
clv_code clv_moved_layers_check(const clv_blueprint *b, const clv_moved_layers *m,
                                clv_err *err) CLV_USE_RESULT;
/* Appends the moved layers, as lines or as a JSON array. */
void clv_moved_layers_describe(const clv_moved_layers *m, bool json, clv_bytes *out);

/* ---- weights that workers know from earlier sessions (known_layers.c) ------------------------ */

/* Looks up the master's layers in the ledger, and makes the egress table again with the result.
 * run_secret: see clv_blueprint.run_secret. Does nothing if no stage is at a worker. Fails as
 * clv_ledger_open does. */
clv_code clv_blueprint_read_ledger(clv_blueprint *b, const clv_sha256 *run_secret,
                                   clv_err *err) CLV_USE_RESULT;
/* Checks the blueprint's findings against the session. CLV_INVALID: the session does not permit one
 * of the findings. */
clv_code clv_blueprint_check_privacy(const clv_blueprint *b, clv_err *err) CLV_USE_RESULT;

/* Appends for `plan` a line for each layer of the master whose weights a worker may know, or a JSON
 * array. */
void clv_known_layers_describe(const clv_blueprint *b, bool json, clv_bytes *out);

/* Return the hash under which the ledger lists weights. _graph_node: weights that are drawn with
 * the random key of node k; g is the graph of a stage or of the full model. _param_name: the
 * parameter `name` in the run with this secret. */
clv_code clv_ledger_hash_graph_node(const clv_session_config *c, const clv_graph *g, int k,
                                    clv_sha256 *ret, clv_err *err) CLV_USE_RESULT;
clv_code clv_ledger_hash_param_name(const clv_sha256 *run_secret, const char *name, clv_sha256 *ret,
                                    clv_err *err) CLV_USE_RESULT;

/* ---- the records of a session ---------------------------------------------------------------- */

/* Folder beside run folders that has the cells of tables which are larger than memory. */
#define CLV_TABLES_FOLDER "tables.cache"

struct clv_run_data {
  clv_dataset *train, *test; /* test NULL: the session names no data.test */
  clv_subset train_rows, validation_rows, test_rows;
  clv_notifier notifier; /* gets a message when a large table is read, which takes long */
  clv_learnt *learnt;    /* how a table is encoded, learnt from its training records; NULL: another
                       * format, or nothing is learnt yet */
};

/* Derives from train.seed the seed of shuffling, splits, crops and flips. This seed is never
 * sent. */
clv_code clv_run_data_derive_seed(const clv_session_config *config, uint64_t *ret,
                                  clv_err *err) CLV_USE_RESULT;

/* Opens the data sets of the session. needs_train: open data.train even if data.test exists. The
 * caller zeroes *ret, but may set ret->notifier, and ret->learnt from an earlier run: tables are
 * then encoded by ret->learnt, otherwise by what clv_dataset_learn learns from the training
 * records. CLV_DATA_LOSS: a table has neither ret->learnt nor training records. */
clv_code clv_run_data_open(const clv_session_config *config, bool needs_train, clv_run_data *ret,
                           clv_err *err) CLV_USE_RESULT;
/* Opens data.test without its labels, and no other set. `ret` as in clv_run_data_open. */
clv_code clv_run_data_open_inputs(const clv_session_config *config, clv_run_data *ret,
                                  clv_err *err) CLV_USE_RESULT;
void clv_run_data_done(clv_run_data *d);
/* Appends "63 of 629 records are held back for validation: each class by its share"; nothing if no
 * record is held back. */
void clv_run_data_describe_held_back(const clv_session_config *config, const clv_run_data *d,
                                     clv_bytes *out);

/* Options of clv_run_data_scan, which reads and checks the records. */
typedef struct clv_run_scan {
  size_t max_records;  /* most records to read of each set; 0: all */
  bool decodes_images; /* decode the images as well */
  /* Called with n_done, the number of records read so far of n_records; key: data.train or
   * data.test. NULL: no calls. */
  void (*progress)(void *user, const char *key, size_t n_done, size_t n_records);
  void *user;
} clv_run_scan;
/* Reads the records of data.train and data.test, the training records with the same random crops
 * and flips as in training. CLV_DATA_LOSS: a record has a value that is not finite; the message
 * names the first such record. With data.non_finite: skip such records are removed from the rows
 * and counted in *ret_n_left_out, and `notes` gets a line for each set. `notes` also names a set
 * whose records all have one class, and a validation fraction that would hold back no record. */
clv_code clv_run_data_scan(const clv_session_config *config, clv_run_data *d,
                           const clv_run_scan *options, uint64_t *ret_n_left_out, clv_bytes *notes,
                           clv_err *err) CLV_USE_RESULT;

/* Checks that records, labels, outputs and batch sizes fit together (data_check.c). CLV_INVALID:
 * they do not; the message names the key and the file. */
clv_code clv_run_data_check_fit(const clv_run_data *d, const clv_blueprint *b,
                                clv_err *err) CLV_USE_RESULT;
/* Appends for `plan` and `check` a line for each column of a table that is an index (its values are
 * numbered for an embedding), with the number of rows that the embedding needs. ds: data.train; may
 * be NULL. */
void clv_indexes_describe(const clv_dataset *ds, clv_bytes *out);
/* Number of sizes that a packed micro-batch can have. The rows of a micro-batch are padded to the
 * next size, so that a node makes few plans; otherwise nearly every micro-batch would need its own
 * plan and memory. On average the padding is half of a 32nd of the full size. */
enum { CLV_N_PACKED_SIZES = 32 };
/* Computes b->label_order from the labels of the training records (label_order.c). */
clv_code clv_run_data_find_label_order(const clv_run_data *d, clv_blueprint *b,
                                       clv_err *err) CLV_USE_RESULT;
/* Computes how well the order of n labels predicts each label. Sorts `labels`. */
clv_label_order_stats clv_label_order_compute(double *labels, size_t n);
/* Appends for `plan`, `check` and `train` a line if the order of the records predicts labels; JSON:
 * an object, or null. */
void clv_label_order_describe(const clv_blueprint *b, bool json, clv_bytes *out);
/* Appends for `plan`, `check` and `train` a line if data.sampling lets workers see how often a
 * record is sent; JSON: true or false. */
void clv_sampling_describe(const clv_blueprint *b, bool json, clv_bytes *out);
/* Sets b->mean_positions from data.train, if the session packs sequences. */
void clv_run_data_measure_lengths(const clv_run_data *d, clv_blueprint *b);

/* ---- the look: measures what sent tensors show (look.c) -------------------------------------- */

/* Data and weights that the look reads, the measurement of what observers can read from tensors. */
typedef struct clv_look_options {
  const clv_dataset *dataset;
  const clv_subset *rows; /* records of `dataset` to choose from */
  /* checkpoint with the weights that the look runs with; NULL: the initial weights */
  const clv_checkpoint *checkpoint;
  /* run the look CLV_LOOK_PREVIEW_DRAWS times with initial weights from other seeds; false: once,
   * with the session's seed */
  bool is_preview;
  bool only_evaluates; /* the command only evaluates, so it sends no gradients */
} clv_look_options;

/* Runs the look: computes the master's first and last layers in this process on a few records, and
 * tries to read records and labels from the tensors that would be sent, for at most
 * CLV_LOOK_MAX_SECONDS. Sends nothing, and changes nothing that training reads. If an attack cannot
 * run, its result says why. */
clv_code clv_look_run(const clv_blueprint *b, const clv_look_options *o, clv_look *ret,
                      clv_err *err) CLV_USE_RESULT;
/* Copies the results of the look to b->look. If an attack has read a larger fraction than its limit
 * (pixels 0.5, tokens 0.2, labels 0.3, features 0.9), adds its finding to the rows of b.
 * clv_blueprint_check_privacy then checks the findings against the session. */
void clv_blueprint_add_look(clv_blueprint *b, const clv_look *look);

/* Return the name of an attack, such as "pixels", and the limit above which its figure, the
 * fraction that it has read, is a finding. */
const char *clv_look_reader_name(clv_look_reader reader);
double clv_look_figure_limit(clv_look_reader reader);
/* Append the results of b->look, the measurement of what sent tensors show: as lines, or as a comma
 * and JSON's member "look". */
void clv_look_describe(const clv_blueprint *b, clv_bytes *out);
void clv_look_describe_json(const clv_blueprint *b, clv_bytes *out);
/* Write the result of one attack ("0.82", "not applicable" or "not looked at"), and the results of
 * all attacks in one line. */
enum { CLV_LOOK_RESULT_TEXT_BYTES = 16 };
void clv_look_format_result(const clv_look_result *r, char ret[CLV_LOOK_RESULT_TEXT_BYTES]);
void clv_look_append_summary(const clv_look *look, clv_bytes *out);

/* ---- schedules of micro-batches -------------------------------------------------------------- */

/* Positions of the parts of a call in the execution order of its node, from 1 on; 0: the call has
 * no such part. */
typedef struct clv_call_positions {
  uint32_t forward_position, backward_position, weight_grad_position;
  bool uses_old_weights; /* backward uses the version of the weights that the forward has used */
} clv_call_positions;

/* Schedule of n_micro_batches micro-batches in n_steps optimiser steps. n_steps is 1 unless the
 * schedule is asynchronous. */
typedef struct clv_placed_schedule {
  clv_sched *sched;
  clv_sched_report report;
  uint32_t n_micro_batches, n_steps, window;
  clv_call_positions *positions; /* [stages and loss][n_micro_batches] positions of each call */
  uint32_t *step_positions;      /* [stages][n_steps] position of the optimiser step of a stage; 0:
                                  * the stage takes none */
} clv_placed_schedule;

/* Makes the schedule. costs NULL: those of clv_pipeline_default_costs. CLV_INVALID: the schedule of
 * the session is not possible; the message names the key of the session. */
clv_code clv_placed_schedule_new(const clv_blueprint *b, uint32_t n_micro, uint32_t n_steps,
                                 uint32_t window, const clv_sched_costs *costs,
                                 clv_placed_schedule **ret, clv_err *err) CLV_USE_RESULT;
void clv_placed_schedule_free(clv_placed_schedule *l); /* NULL is allowed */
void clv_placed_schedule_freep(clv_placed_schedule **l);

/* Returns the number of ranks (nodes that compute). Fills `shape`, except n_micro and n_accumulate,
 * and names[rank] with the name of each rank's node. */
uint32_t clv_pipeline_list_ranks(const clv_blueprint *b, clv_sched_shape *shape,
                                 const char *names[CLV_SCHED_RANKS]);
void clv_pipeline_default_costs(const clv_blueprint *b, clv_sched_costs *ret);
/* Returns the number of optimiser steps in a round of the schedule: pipeline.flush_every if the
 * schedule is asynchronous, else 1. */
uint32_t clv_pipeline_steps_per_round(const clv_session_config *c);
/* Returns the window (number of micro-batches in flight) to use before anything is measured; 0: the
 * schedule chooses. */
uint32_t clv_pipeline_initial_window(const clv_session_config *c);
/* Checks, before the run connects to workers, that the session's schedule is possible for all steps
 * of a round (clv_pipeline_steps_per_round). */
clv_code clv_pipeline_check(const clv_blueprint *b, clv_err *err) CLV_USE_RESULT;

/* ---- files of initial weights ---------------------------------------------------------------- */

/* Finds all tensors of the stage in a weights file. *ret: [params->n] entries; the caller frees the
 * list. With the flag CLV_WEIGHTS_ALLOW_NO_COUNTS the file may lack counts, such as
 * num_batches_tracked, and adapters; the entries of missing tensors are NULL. */
clv_code clv_stage_find_tensors(const clv_blueprint *b, uint32_t stage, const clv_weights_file *f,
                                unsigned flags, const clv_weights_entry ***ret,
                                clv_err *err) CLV_USE_RESULT;

/* Opens the file of a stage's initial weights and finds the stage's tensors in it. An entry is NULL
 * if the file lacks the tensor and it is a count, such as num_batches_tracked; `notes` gets a line
 * about it. CLV_DATA_LOSS names the line of the session: the file is missing or damaged, has
 * another digest, lacks a tensor of the stage, has one in another type or shape, or has one that
 * the full model lacks. */
clv_code clv_stage_file_open(const clv_blueprint *b, uint32_t stage, clv_weights_file **ret,
                             const clv_weights_entry ***ret_entries, clv_bytes *notes,
                             clv_err *err) CLV_USE_RESULT;
/* True if checkpoints contain the parameter. A frozen parameter of a stage whose weights come from
 * a worker's artifact is in no checkpoint. */
bool clv_is_param_checkpointed(const clv_stage_spec *s, const clv_param *p);

/* As clv_stage_file_open, but for the stage's `adapter_folder`. Finds the stage's adapters, and its
 * other parameters that the folder has (peft's modules_to_save). Names in the file begin with
 * peft's prefix. */
clv_code clv_stage_adapters_open(const clv_blueprint *b, uint32_t stage, clv_weights_file **ret,
                                 const clv_weights_entry ***ret_entries,
                                 clv_err *err) CLV_USE_RESULT;

/* Opened folder of a stage's initial weights, with the index of each parameter in it. */
typedef struct clv_stage_folder {
  clv_weights_folder *folder;
  clv_manifest manifest; /* list of the folder's files; empty unless the session has a sha256 */
  size_t n;
  clv_weights_want *wanted_tensors; /* [n] the parameters to find in the folder */
  /* [n] index of each parameter's tensor in the folder; CLV_WEIGHTS_NONE: the parameter starts from
   * the seed */
  size_t *folder_indexes;
} clv_stage_folder;

void clv_stage_folder_done(clv_stage_folder *f); /* frees and zeroes */
/* Opens the folder of a stage's initial weights and finds the stage's parameters in it. Reads the
 * headers of the files, not the values. `notes` gets a line about tensors that the model lacks, and
 * one about parameters that start from the seed. Fails as clv_stage_file_open does, but not because
 * of a tensor that the model lacks. */
clv_code clv_stage_folder_open(const clv_blueprint *b, uint32_t stage, clv_stage_folder *ret,
                               clv_bytes *notes, clv_err *err) CLV_USE_RESULT;
/* True if the stage's weights.new names the parameter, so that the parameter starts from the
 * seed. */
bool clv_stage_is_param_new(const clv_stage_spec *spec, const char *parameter);
/* Checks the entries of weights.new. CLV_INVALID: the stage has no parameter whose name begins with
 * some entry. */
clv_code clv_stage_check_new_params(const clv_blueprint *b, uint32_t stage,
                                    clv_err *err) CLV_USE_RESULT;

/* ---- numbers of micro-batches (micro_batches.c) ---------------------------------------------- */

enum { CLV_MAX_AUTO_MICRO_BATCHES = 64 };

/* True if the batch can be cut into m micro-batches of at least min_samples samples each. sizes:
 * [m], scratch. */
bool clv_can_cut_batch(uint64_t batch, uint64_t m, int64_t min_samples, size_t *sizes);
/* Lists the numbers of micro-batches to compare, ascending: divisors of the batch and powers of two
 * up to CLV_MAX_AUTO_MICRO_BATCHES, and extra_choice (0: none). With each listed number, every
 * micro-batch has at least min_samples samples; with extra_choice, at least one sample. */
clv_code clv_list_micro_batch_choices(uint64_t batch, int64_t min_samples, uint32_t extra_choice,
                                      uint32_t **ret, uint32_t *ret_n, clv_err *err) CLV_USE_RESULT;

/* Interpolates linearly between the values at the two sizes nearest to `at`; outside the sizes it
 * returns the first or last value. sizes: [n], descending. */
double clv_interpolate_linearly(const int64_t *sizes, const double *values, uint32_t n, double at);

/* ---- suggested cuts (suggest.c) -------------------------------------------------------------- */

/* Link of a worker, or a direct hop between two workers. */
typedef struct clv_link_estimate {
  /* of one direction of the link: latency in seconds, bandwidth in bytes per second */
  double latency_s, bytes_per_s;
  bool is_given; /* an option gives the values; false: they are defaults */
} clv_link_estimate;
typedef struct clv_link_estimates {
  size_t n;                        /* number of workers of the session */
  clv_link_estimate *worker_links; /* [n] link of each worker to the master */
  /* [n][n] direct hops (transfers from worker to worker), from the lower to the higher index */
  clv_link_estimate *hops;
  /* [n + 1] speed of each worker and, as the last entry, of the master; as a multiple of the speed
   * of this machine */
  double *speeds;
  clv_bytes notes; /* latencies and speeds that were given or assumed: "w1 20 ms, 1000 Mbit/s" */
} clv_link_estimates;
/* Parses --link and --speed. A link that no option gives has 1 ms and 1 Gbit/s; a direct hop has
 * the worse values of its two workers' links. CLV_INVALID: an option cannot be parsed; the message
 * names its wrong word. */
clv_code clv_link_estimates_parse(const clv_session_config *c, const clv_run_options *o,
                                  clv_link_estimates **ret, clv_err *err) CLV_USE_RESULT;
void clv_link_estimates_freep(clv_link_estimates **l);

/* Times the layers, searches for the best cuts, and prints them beside those of the session. */
clv_code clv_suggest_cuts(const clv_blueprint *b, const clv_link_estimates *links, bool json,
                          clv_bytes *out, clv_err *err) CLV_USE_RESULT;

#endif
