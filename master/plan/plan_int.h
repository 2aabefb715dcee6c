/* SPDX-License-Identifier: Apache-2.0
 *
 * plan_int: functions that the files of this folder share. blueprint.c calls most of them while it
 * makes a blueprint; describe.c calls those that append text for `plan`.
 */
#ifndef CLEAVE_MASTER_PLAN_INT_H
#define CLEAVE_MASTER_PLAN_INT_H

#include "common/model/models/models.h"
#include "master/plan/plan.h"

/* ---- findings (privacy.c) -------------------------------------------------------------------- */

/* Fills shows, picture, gradient_shows, front_layers and head_layers of the stages. */
clv_code clv_privacy_analyze(clv_blueprint *b, clv_err *err) CLV_USE_RESULT;
/* Findings of the model input that is input `input` of a stage. */
clv_findings clv_privacy_leaf_findings(const clv_blueprint *b, uint32_t stage, uint32_t input);
/* Returns the number of nodes of the full model whose values cross behind a stage. ret: receives
 * the nodes, or NULL. */
uint32_t clv_blueprint_cut_values(const clv_blueprint *b, uint32_t stage,
                                  const clv_node *ret[CLV_MAX_NODES]);
/* Checks the findings against the session. CLV_INVALID, at the stage whose worker would be shown
 * more than the session permits, names the path that shows it, and what helps. */
clv_code clv_privacy_check(const clv_blueprint *b, clv_err *err) CLV_USE_RESULT;
/* For each layer of the full model, [layers]: ret_shows has the findings of a cut behind it, if the
 * master had all layers up to it; ret_gradient those of the gradient at that cut, if the master had
 * all layers after it. */
clv_code clv_privacy_findings_of_cuts(const clv_blueprint *b, clv_findings *ret_shows,
                                      clv_findings *ret_gradient, clv_err *err) CLV_USE_RESULT;
/* Appends the findings for `plan`, as lines or as a JSON object. */
void clv_privacy_describe(const clv_blueprint *b, bool json, clv_bytes *out);
/* Append what leaves of the lengths of sequences (lengths.c). any: tensors made of records are
 * sent. JSON: keys, each with a comma after it. */
void clv_lengths_describe(const clv_blueprint *b, bool any, clv_bytes *out);
const char *clv_lengths_json(const clv_blueprint *b, bool any);
/* Scales the bytes of a step from full sequences to the mean length of data.train. places: places
 * of a full sequence; 0: the bytes do not depend on lengths. _append_ writes ", about 3.1 MiB of
 * data.train" if the mean length is known. */
uint64_t clv_lengths_expected_bytes(const clv_blueprint *b, int64_t places, uint64_t bytes);
void clv_lengths_append_expected(const clv_blueprint *b, int64_t places, uint64_t bytes,
                                 clv_bytes *out);

/* Makes the rows of the egress table; call it again after findings have changed (blueprint.c). */
clv_code clv_blueprint_make_table(clv_blueprint *b, clv_err *err) CLV_USE_RESULT;

/* Returns the number of moments that the optimiser keeps of each learning parameter (blueprint.c).
 * */
size_t clv_blueprint_moments(const clv_blueprint *b);

/* ---- labels (data_check.c) ------------------------------------------------------------------- */

/* Returns the attribute `labels` of model.hf; NULL: the session has none, or no model.hf. */
const clv_attr_spec *clv_plan_head_labels(const clv_session_config *c);
/* True if the name of a class is a whole number, such as 10 or 007. */
bool clv_is_number_name(const char *name);

/* ---- inputs (unread_inputs.c) ---------------------------------------------------------------- */

/* CLV_INVALID, at data.inputs, names an input that no layer of the full model reads. */
clv_code clv_inputs_check(const clv_blueprint *b, clv_err *err) CLV_USE_RESULT;

/* ---- names of classes (class_names.c) -------------------------------------------------------- */

/* CLV_INVALID, at pos: the head of model.hf was trained on the same names in another order. */
clv_code clv_class_names_check(const clv_blueprint *b, const clv_dataset *ds, const char *key,
                               clv_config_pos pos, clv_err *err) CLV_USE_RESULT;

/* ---- caches (cache.c) ------------------------------------------------------------------------ */

/* CLV_INVALID, at stages[].cache, says why the outputs of that stage cannot be cached. */
clv_code clv_cache_check(const clv_blueprint *b, clv_err *err) CLV_USE_RESULT;
/* Appends the cache for `plan`, as lines or as a JSON object (null: no cache). */
void clv_cache_describe(const clv_blueprint *b, bool json, clv_bytes *out);

/* ---- adapters (adapters.c) ------------------------------------------------------------------- */

/* Adds the adapters of all stages to the full model. first, last: [n_stages], layers of the stages.
 * Errors point at lora.targets. */
clv_code clv_adapters_add_to_graph(clv_blueprint *b, const uint32_t *first, const uint32_t *last,
                                   clv_err *err) CLV_USE_RESULT;
/* True if a stage with adapters freezes the parameter: it is no adapter, and lora.train does not
 * name its module. */
bool clv_is_param_frozen_by_lora(const clv_lora_config *l, const char *param);
/* Sets `adapters` and `has_modules` of the stages. A folder that cannot be read counts as empty. */
void clv_adapters_find_sources(clv_blueprint *b);

/* Notes in b->known the layers of the master whose secret file has values that mix nothing
 * (plain_weights.c). */
clv_code clv_blueprint_find_plain_weights(clv_blueprint *b, clv_err *err) CLV_USE_RESULT;

/* Adds values of a sample to the digests of its rows (row_digests.c). */
void clv_row_digests_add(clv_weights_sample *s, uint64_t offset, const void *data, size_t len);
void clv_row_digests_free(clv_row_digests *d); /* NULL is allowed */

/* ---- rows that anybody knows (public_rows.c) ------------------------------------------------- */

/* Rows of a tensor that follow from a few numbers, as those of a Hadamard or cosine transform. */
typedef struct clv_row_forms clv_row_forms;
clv_code clv_row_forms_new(size_t rows, size_t columns, clv_row_forms **ret,
                           clv_err *err) CLV_USE_RESULT;
void clv_row_forms_add(clv_row_forms *f, const float *values, size_t n); /* all values, in order */
bool clv_row_forms_are_public(clv_row_forms *f);
void clv_row_forms_freep(clv_row_forms **f);

/* CLV_INVALID: the session does not permit a reading of the look (look.c). */
clv_code clv_look_check(const clv_blueprint *b, clv_err *err) CLV_USE_RESULT;
/* CLV_INVALID: a name of lora.train has no parameters in the stage. */
clv_code clv_adapters_check(const clv_blueprint *b, uint32_t stage, clv_err *err) CLV_USE_RESULT;

/* ---- ties (ties.c) --------------------------------------------------------------------------- */

/* Marks tied parameters as frozen where their owner is. CLV_INVALID points at the stage that cannot
 * share a weight, with the reason and what helps. */
clv_code clv_ties_apply(clv_blueprint *b, clv_err *err) CLV_USE_RESULT;

/* ---- layers ---------------------------------------------------------------------------------- */

enum { CLV_PROFILE_SIZES = 8 };

/* Measured times of the layers of the full model, by number of samples. */
typedef struct clv_profile {
  int threads;
  uint32_t n_layers, n_sizes;
  int64_t size[CLV_PROFILE_SIZES];          /* samples, descending from the batch */
  clv_plan_times *times[CLV_PROFILE_SIZES]; /* [n_layers] */
} clv_profile;

clv_code clv_profile_new(const clv_blueprint *b, int threads, clv_profile **ret,
                         clv_err *err) CLV_USE_RESULT;
void clv_profile_free(clv_profile *p); /* NULL is allowed */
void clv_profile_freep(clv_profile **p);
/* Returns the times of a layer for `samples`, interpolated between the measured sizes. */
clv_plan_times clv_profile_times(const clv_profile *p, uint32_t layer, double samples);

/* ---- memory of a stage (stage_memory.c) ------------------------------------------------------ */

/* Memory of a stage in bytes, for micro-batches of b->micro_size. On a processor it is that of the
 * stage's plan; on a device it is all that the session is charged there, without graph capture. */
typedef struct clv_stage_usage {
  size_t parameters; /* values */
  size_t weights, old_weights, optimizer, activations, scratch, cache;
  size_t values;        /* on the device: outputs, and gradients of the values at the cuts */
  size_t resident;      /* on the device: running statistics, and memory of libraries per kernel */
  size_t evaluation;    /* on the device: plan and values of evaluations; 0: no evaluations */
  size_t memory;        /* sum of all above */
  size_t max_workspace; /* on the device: most workspace of libraries, not in `memory` */
  bool on_device;
  int reorders;
  bool uses_ref_kernel[CLV_MAX_NODES]; /* by node: the reference kernel computes it */
} clv_stage_usage;

/* Device of a stage: the one that its node has reported, or else the one of the session file. */
const char *clv_stage_device(const clv_blueprint *b, uint32_t stage);
/* Computes the memory of a stage. live: micro-batches, versions: versions of the weights that the
 * schedule keeps at once. */
clv_code clv_stage_usage_compute(const clv_blueprint *b, uint32_t stage, uint32_t live,
                                 uint32_t versions, clv_stage_usage *ret,
                                 clv_err *err) CLV_USE_RESULT;
/* Returns `memory` of clv_stage_usage_compute with one version of the weights. */
clv_code clv_stage_memory(const clv_blueprint *b, uint32_t stage, uint32_t live, size_t *ret,
                          clv_err *err) CLV_USE_RESULT;

/* ---- records that cannot be read (broken_records.c) ------------------------------------------ */

/* Prints the list of broken records; fails if there are any. */
clv_code clv_plan_refuse_broken(const clv_broken_records *b, clv_err *err) CLV_USE_RESULT;
/* Adds a line with the number of broken records to `notes`. */
void clv_plan_note_broken(const char *key, const clv_broken_records *b, clv_bytes *notes);

#endif
