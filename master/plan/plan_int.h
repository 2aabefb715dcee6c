/* SPDX-License-Identifier: Apache-2.0
 *
 * plan_int: functions that the files of this folder share. blueprint.c calls most of them while it
 * makes a blueprint; describe.c calls those that append text for `plan`.
 */
#ifndef CLEAVE_MASTER_PLAN_INT_H
#define CLEAVE_MASTER_PLAN_INT_H

#include "common/model/models/models.h"
#include "master/plan/plan.h"

/* ---- findings: ways to read records or labels (privacy.c) ------------------------------------ */

/* Computes for all stages of b the findings, narrowest_picture_element, n_front_layers and
 * n_head_layers (see clv_stage_plan). */
clv_code clv_privacy_analyze(clv_blueprint *b, clv_err *err) CLV_USE_RESULT;
/* Returns the findings of a model input: ways in which a worker can read records from it. input:
 * its number among the inputs of the stage's graph. */
clv_findings clv_privacy_input_findings(const clv_blueprint *b, uint32_t stage, uint32_t input);
/* Returns how many values of the full model cross the cut behind a stage. ret: receives the nodes
 * of these values; may be NULL. */
uint32_t clv_blueprint_list_cut_values(const clv_blueprint *b, uint32_t stage,
                                       const clv_node *ret[CLV_MAX_NODES]);
/* Checks the findings of b against the session. CLV_INVALID: a worker would receive more than the
 * session permits. The message names the stage, the path of layers on which nothing hides the
 * records or labels, and what helps. */
clv_code clv_privacy_check(const clv_blueprint *b, clv_err *err) CLV_USE_RESULT;
/* Computes the findings of every possible cut. ret_values[layer]: findings of the values that cross
 * behind a layer, if the master had all layers up to it. ret_gradients[layer]: findings of the
 * gradients of these values, if the master had all layers behind the layer. */
clv_code clv_privacy_find_cut_findings(const clv_blueprint *b, clv_findings *ret_values,
                                       clv_findings *ret_gradients, clv_err *err) CLV_USE_RESULT;
/* Appends the findings for `plan`, as lines or as a JSON object. */
void clv_privacy_describe(const clv_blueprint *b, bool json, clv_bytes *out);
/* Append which lengths of sequences are sent, and whether the sizes of packed sequences show
 * lengths (lengths.c). sends_records: some tensor made of records is sent. The JSON text ends with
 * a comma, unless it is empty. */
void clv_lengths_describe(const clv_blueprint *b, bool sends_records, clv_bytes *out);
const char *clv_lengths_describe_json(const clv_blueprint *b, bool sends_records);
/* _expected_bytes scales the bytes of a step from full sequences to the mean length of data.train.
 * n_positions: positions of a full sequence; 0: the bytes do not depend on lengths.
 * _append_expected appends ", about 3.1 MiB of data.train" if the mean length is known. */
uint64_t clv_lengths_expected_bytes(const clv_blueprint *b, int64_t n_positions, uint64_t bytes);
void clv_lengths_append_expected(const clv_blueprint *b, int64_t n_positions, uint64_t bytes,
                                 clv_bytes *out);

/* Makes the rows of the egress table. Call it again after findings have changed (blueprint.c). */
clv_code clv_blueprint_make_egress_table(clv_blueprint *b, clv_err *err) CLV_USE_RESULT;

/* Returns how many moments the optimiser keeps for each learning parameter (blueprint.c). */
size_t clv_blueprint_moment_count(const clv_blueprint *b);

/* ---- the attribute `labels` of model.hf, and names of classes (data_check.c) ----------------- */

/* Returns the attribute `labels` of model.hf; NULL: the session has no model.hf, or no such
 * attribute. */
const clv_attr_spec *clv_plan_find_labels_attr(const clv_session_config *c);
/* True if the name of a class is a whole number, such as "10" or "007". */
bool clv_is_numeric_name(const char *name);

/* ---- indexes of a table's columns (table_index.c) -------------------------------------------- */

/* Checks that an embedding has a row for each number of input k, if this input is the index of a
 * table's column (the values of the column, numbered). CLV_INVALID: the embedding has fewer rows;
 * the message says how many rows the index needs. */
clv_code clv_index_check(const clv_blueprint *b, const clv_dataset *ds, size_t k,
                         const clv_node *node, clv_err *err) CLV_USE_RESULT;

/* ---- entries of data.inputs (unread_inputs.c) ------------------------------------------------ */

/* Checks the entries of data.inputs. CLV_INVALID: the full model has no layer that reads some
 * entry. */
clv_code clv_inputs_check(const clv_blueprint *b, clv_err *err) CLV_USE_RESULT;

/* ---- names of classes (class_names.c) -------------------------------------------------------- */

/* Compares the classes of the data with the outputs of the trained head of model.hf. CLV_INVALID,
 * at pos: classes and outputs have the same names, but in another order. */
clv_code clv_class_names_check(const clv_blueprint *b, const clv_dataset *ds, const char *key,
                               clv_config_pos pos, clv_err *err) CLV_USE_RESULT;

/* ---- cached outputs of a frozen stage (cache.c) ---------------------------------------------- */

/* Checks that the outputs of cached stages can be cached. CLV_INVALID, at stages[].cache: some
 * output cannot be cached; the message says why. */
clv_code clv_cache_check(const clv_blueprint *b, clv_err *err) CLV_USE_RESULT;
/* Appends the description of the cache for `plan`, as lines or as a JSON object; null: no cache. */
void clv_cache_describe(const clv_blueprint *b, bool json, clv_bytes *out);

/* ---- low-rank adapters (adapters.c) ---------------------------------------------------------- */

/* Adds the adapters of all stages to the full model. first_layers, last_layers: [n_stages] first
 * and last layer of each stage. Errors name the line of lora.targets. */
clv_code clv_adapters_add_to_graph(clv_blueprint *b, const uint32_t *first_layers,
                                   const uint32_t *last_layers, clv_err *err) CLV_USE_RESULT;
/* True if a stage with adapters freezes the parameter, because it is no adapter and lora.train does
 * not name its module. */
bool clv_is_param_frozen_by_lora(const clv_lora_config *l, const char *param);
/* Sets `adapter_folder` and `folder_has_other_params` of all stages. A folder that cannot be read
 * counts as empty. */
void clv_adapters_find_folders(clv_blueprint *b);

/* Finds layers of the master whose secret weights do not mix the inputs, such as an identity, and
 * marks these layers in b->known_reasons (plain_weights.c). */
clv_code clv_blueprint_find_plain_weights(clv_blueprint *b, clv_err *err) CLV_USE_RESULT;

/* Checks what the look (clv_look_run) has read from the tensors against the session's privacy
 * settings. CLV_INVALID: a worker could read something that the session does not permit
 * (look.c). */
clv_code clv_look_refuse_readable(const clv_blueprint *b, clv_err *err) CLV_USE_RESULT;
/* Checks the names of lora.train. CLV_INVALID: the stage has no parameters with one of these
 * names. */
clv_code clv_adapters_check(const clv_blueprint *b, uint32_t stage, clv_err *err) CLV_USE_RESULT;

/* ---- layers that privacy.release lets move to a worker (moved_layers.c) ---------------------- */

/* Checks the patterns of privacy.release. CLV_INVALID: a pattern matches no layer of the model. */
clv_code clv_release_check(const clv_blueprint *b, clv_err *err) CLV_USE_RESULT;

/* ---- parameters that two stages share (ties.c) ----------------------------------------------- */

/* Freezes each tied parameter if the parameter that owns it is frozen. CLV_INVALID: a stage cannot
 * share a weight; the message gives the reason and what helps. */
clv_code clv_ties_apply(clv_blueprint *b, clv_err *err) CLV_USE_RESULT;

/* ---- measured times of layers (profile.c) ---------------------------------------------------- */

enum { CLV_PROFILE_MAX_SIZES = 8 };

/* Measured times of each layer of the full model, for several numbers of samples. */
typedef struct clv_profile {
  int threads;
  uint32_t n_layers, n_sizes;
  /* numbers of samples, descending from the batch size */
  int64_t sample_counts[CLV_PROFILE_MAX_SIZES];
  /* [n_layers] times of each layer, for each entry of sample_counts */
  clv_plan_times *layer_times[CLV_PROFILE_MAX_SIZES];
} clv_profile;

clv_code clv_profile_new(const clv_blueprint *b, int threads, clv_profile **ret,
                         clv_err *err) CLV_USE_RESULT;
void clv_profile_free(clv_profile *p); /* NULL is allowed */
void clv_profile_freep(clv_profile **p);
/* Returns the times of a layer for `n_samples` samples, interpolated between the measured
 * numbers. */
clv_plan_times clv_profile_times(const clv_profile *p, uint32_t layer, double n_samples);

/* ---- memory of a stage (stage_memory.c) ------------------------------------------------------ */

/* Memory of a stage in bytes, for micro-batches of b->micro_size. On a processor it is the memory
 * of the stage's plan. On a device it is all memory that counts for the session there, except that
 * of captured graphs. */
typedef struct clv_stage_usage {
  size_t n_param_values; /* number of values of all learning parameters */
  size_t weight_bytes, old_weight_bytes, optimizer_bytes;
  size_t activation_bytes, scratch_bytes, cache_bytes;
  size_t value_bytes; /* on a device: outputs, and gradients of the values that cross cuts */
  /* on a device: running statistics, and the memory that libraries need per kernel */
  size_t resident_bytes;
  /* on a device: plan and values of evaluations; 0: the session has no evaluations */
  size_t evaluation_bytes;
  size_t total_bytes; /* sum of the sizes above */
  /* on a device: largest workspace that libraries may use; not part of `total_bytes` */
  size_t max_workspace_bytes;
  bool is_on_device;
  /* number of conversions of tensors to another layout in a step */
  int n_reorders;
  bool uses_ref_kernel[CLV_MAX_NODES]; /* [node] the reference kernel computes the layer */
} clv_stage_usage;

/* Returns the device of a stage: as its node has reported it, or else as the session file gives
 * it. */
const char *clv_stage_device(const clv_blueprint *b, uint32_t stage);
/* Computes the memory of a stage. n_live_micro_batches, n_weight_versions: most micro-batches, and
 * most versions of the weights, that exist at once under the schedule. */
clv_code clv_stage_usage_compute(const clv_blueprint *b, uint32_t stage,
                                 uint32_t n_live_micro_batches, uint32_t n_weight_versions,
                                 clv_stage_usage *ret, clv_err *err) CLV_USE_RESULT;
/* As clv_stage_usage_compute with one version of the weights, but returns only `total_bytes`. */
clv_code clv_stage_memory_bytes(const clv_blueprint *b, uint32_t stage,
                                uint32_t n_live_micro_batches, size_t *ret,
                                clv_err *err) CLV_USE_RESULT;

/* ---- normalised pictures (picture_values.c) -------------------------------------------------- */

/* Appends a line if the preprocessor_config.json beside the model's config.json normalises pictures
 * otherwise than the session does. */
void clv_pictures_describe(const clv_session_config *c, clv_bytes *out);

/* ---- records that cannot be read (broken_records.c) ------------------------------------------ */

/* Prints the list of broken records. Fails if there is one. */
clv_code clv_plan_refuse_broken_records(const clv_broken_records *b, clv_err *err) CLV_USE_RESULT;
/* Appends a line with the number of broken records to `notes`; nothing if there are none. */
void clv_plan_note_broken_records(const char *key, const clv_broken_records *b, clv_bytes *notes);

/* ---- several labels per record (targets.c) --------------------------------------------------- */

/* Lists name and task of each target of loss.targets. Returns the number of targets; 0: records
 * have one label. */
size_t clv_list_targets(const clv_session_config *c, clv_target_option ret[CLV_MAX_TARGETS]);
/* Checks that no target has more classes than loss.targets says. key: key of the data set in the
 * session file. */
clv_code clv_targets_check(const clv_session_config *c, const clv_dataset *ds, const char *key,
                           clv_err *err) CLV_USE_RESULT;
/* Appends the losses of several targets, with their outputs and weights; nothing if a record has
 * one label. */
void clv_targets_describe(const clv_session_config *c, bool json, clv_bytes *out);
/* Fails with CLV_DATA_LOSS if there is a target of which no training record has a label. d->train
 * must be set. */
clv_code clv_targets_check_labelled(const clv_session_config *c, const clv_run_data *d,
                                    clv_err *err) CLV_USE_RESULT;
/* Appends a note for each set of records and each target, if the set has no labels of the target,
 * or if all these labels are the same class. */
void clv_targets_note_sets(const clv_run_data *d, clv_bytes *notes);

#endif
