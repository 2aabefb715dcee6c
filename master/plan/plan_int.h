/* SPDX-License-Identifier: Apache-2.0
 *
 * plan_int: what the files of this folder know for each other.
 */
#ifndef CLEAVE_MASTER_PLAN_INT_H
#define CLEAVE_MASTER_PLAN_INT_H

#include "common/model/models/models.h"
#include "master/plan/plan.h"

/* ---- what is shown (privacy.c) --------------------------------------------------------------- */

/* Fills shows, picture, gradient_shows, front_layers and head_layers of the stages. */
clv_code clv_privacy_find(clv_blueprint *b, clv_err *err) CLV_USE_RESULT;
/* What an input of the model shows that is this input of a stage. */
clv_findings clv_shown_by_leaf(const clv_blueprint *b, uint32_t stage, uint32_t input);
/* The nodes of the whole model whose values cross behind a stage, and how many; ret: or NULL. */
uint32_t clv_blueprint_crossing(const clv_blueprint *b, uint32_t stage,
                                const clv_node *ret[CLV_MAX_NODES]);
/* CLV_INVALID, at the stage that would be shown what the session does not permit: the path that
 * makes it so, and what helps. */
clv_code clv_privacy_check(const clv_blueprint *b, clv_err *err) CLV_USE_RESULT;
/* What each layer of the whole model would show behind it if that and all before it were at home,
 * and what the gradient there would if all behind it were: [layers]. */
clv_code clv_privacy_of_cuts(const clv_blueprint *b, clv_findings *ret_shows,
                             clv_findings *ret_gradient, clv_err *err) CLV_USE_RESULT;
/* For `plan`: lines, or a JSON object. */
void clv_privacy_describe(const clv_blueprint *b, bool json, clv_bytes *out);
/* Of the lengths of sequences (lengths.c); any: something of the records is sent. JSON: keys, each
 * with its comma. */
void clv_lengths_describe(const clv_blueprint *b, bool any, clv_bytes *out);
const char *clv_lengths_json(const clv_blueprint *b, bool any);
/* Of bytes a step that are those of full sequences, `places` being 0 or what one has: what is
 * expected of data.train. As text, ", about 3.1 MiB of data.train", where that is known. */
uint64_t clv_lengths_expect(const clv_blueprint *b, int64_t places, uint64_t bytes);
void clv_lengths_about(const clv_blueprint *b, int64_t places, uint64_t bytes, clv_bytes *out);

/* The rows of the egress table, once more if what is shown has changed (blueprint.c). */
clv_code clv_blueprint_make_table(clv_blueprint *b, clv_err *err) CLV_USE_RESULT;

/* Moments that the session's optimiser keeps of each parameter that learns (blueprint.c). */
size_t clv_blueprint_moments(const clv_blueprint *b);

/* ---- labels (data_fits.c) -------------------------------------------------------------------- */

/* The `labels` of model.hf, as the session file has them; NULL: it has none, or another model. */
const clv_attr_spec *clv_plan_head_labels(const clv_session_config *c);
/* True if the name of a class is a whole number, such as 10 or 007. */
bool clv_plan_is_number(const char *name);

/* ---- inputs (unread_inputs.c) ---------------------------------------------------------------- */

/* CLV_INVALID, at data.inputs: one of them that no layer of the whole model reads. */
clv_code clv_inputs_check(const clv_blueprint *b, clv_err *err) CLV_USE_RESULT;

/* ---- names of classes (class_names.c) -------------------------------------------------------- */

/* CLV_INVALID, at pos: the head of model.hf was trained on the same names in another order. */
clv_code clv_class_names_fit(const clv_blueprint *b, const clv_dataset *ds, const char *key,
                             clv_config_pos pos, clv_err *err) CLV_USE_RESULT;

/* ---- caches (cache.c) ------------------------------------------------------------------------ */

/* CLV_INVALID, at stages[].cache: why the outputs of that stage cannot be kept. */
clv_code clv_cache_check(const clv_blueprint *b, clv_err *err) CLV_USE_RESULT;
/* For `plan`: lines, or a JSON object; null without one. */
void clv_cache_describe(const clv_blueprint *b, bool json, clv_bytes *out);

/* ---- adapters (adapters.c) ------------------------------------------------------------------- */

/* Those of all stages, in the whole model. first, last: [n_stages], the stages' layers. Errors
 * point at lora.targets. */
clv_code clv_adapters_put(clv_blueprint *b, const uint32_t *first, const uint32_t *last,
                          clv_err *err) CLV_USE_RESULT;
/* Of a stage with adapters: is this parameter none of them, and of nothing that `train` names? */
bool clv_adapters_freeze(const clv_lora_config *l, const char *param);
/* Which stages begin with tensors of a lora.from. A folder that cannot be read has none. */
void clv_adapters_find(clv_blueprint *b);

/* Notes in b->known layers at home whose secret file mixes nothing by its values
 * (plain_weights.c). */
clv_code clv_blueprint_find_plain(clv_blueprint *b, clv_err *err) CLV_USE_RESULT;

/* CLV_INVALID: the session does not permit what the look has read (look.c). */
clv_code clv_look_check(const clv_blueprint *b, clv_err *err) CLV_USE_RESULT;
/* Each name of `train` has parameters in the stage. */
clv_code clv_adapters_check(const clv_blueprint *b, uint32_t stage, clv_err *err) CLV_USE_RESULT;

/* ---- ties (ties.c) --------------------------------------------------------------------------- */

/* Marks what is frozen of them. CLV_INVALID points at the stage that cannot have what it is tied
 * to, with the reason and what helps. */
clv_code clv_ties_follow(clv_blueprint *b, clv_err *err) CLV_USE_RESULT;

/* ---- layers ---------------------------------------------------------------------------------- */

enum { CLV_PROFILE_SIZES = 8 };

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
/* Of so many samples, between those that were measured. */
clv_plan_times clv_profile_at(const clv_profile *p, uint32_t layer, double samples);

/* ---- what a stage needs (stage_memory.c) ----------------------------------------------------- */

/* In bytes, of its micro-batches of b->micro_size. Those of a processor are what its plan takes; of
 * a stage that is on a device all that the session is charged there, while nothing is recorded. */
typedef struct clv_stage_facts {
  size_t parameters; /* values */
  size_t weights, old_weights, optimizer, activations, scratch, cache;
  size_t values;     /* on the device: outputs, and gradients of what crosses the cuts */
  size_t kept;       /* on the device: running statistics kept, and libraries' own of each kernel */
  size_t evaluation; /* on the device: plan and values of evaluations, where there are any */
  size_t memory;     /* all of the above */
  size_t borrowed;   /* on the device: what libraries may want beside it, at most */
  bool on_device;
  int reorders;
  bool falls_back[CLV_MAX_NODES]; /* by node: it computes with a kernel of ref */
} clv_stage_facts;

/* What computes a stage, as far as that is known: its node's answer, or the session's word. */
const char *clv_stage_device(const clv_blueprint *b, uint32_t stage);
/* live: micro-batches kept at once, versions: of the weights, by the schedule. */
clv_code clv_stage_facts_of(const clv_blueprint *b, uint32_t stage, uint32_t live,
                            uint32_t versions, clv_stage_facts *ret, clv_err *err) CLV_USE_RESULT;
/* Of one version. */
clv_code clv_stage_memory(const clv_blueprint *b, uint32_t stage, uint32_t live, size_t *ret,
                          clv_err *err) CLV_USE_RESULT;

/* ---- records that cannot be read (broken_records.c) ------------------------------------------ */

/* Prints the list of them, and fails where there are any. */
clv_code clv_plan_refuse_broken(const clv_broken *b, clv_err *err) CLV_USE_RESULT;
/* Adds a line with their number to `notes`. */
void clv_plan_note_broken(const char *key, const clv_broken *b, clv_bytes *notes);

#endif
