/* SPDX-License-Identifier: Apache-2.0
 *
 * Reports changes since the last attempt of a run: keys of the session file, the length of the run,
 * and other data that the user has accepted. clv_run_print_changes prints a line for each, and adds
 * it to the journal and to changes.jsonl; `train --resume` calls it. clv_run_refuse_changes refuses
 * changes with which no checkpoint of the run can be loaded. `eval` and `predict` call
 * clv_run_warn_changed_keys, which warns of keys that change how a record becomes numbers.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "master/run/run_int.h"

void clv_run_add_change(clv_run *r, const char *key, const char *old_value, const char *new_value) {
  clv_bytes_printf(&r->changes, "%s%c%s%c%s%c", key, 0, old_value, 0, new_value, 0);
}

/* ---- changed keys of the session file -------------------------------------------------------- */

/* Returns the value of a key in lines of "key: value"; NULL: no such key. *ret_len: bytes of the
 * value. */
static const char *find_value_of_key(const clv_bytes *lines, const char *key, size_t key_len,
                                     size_t *ret_len) {
  for (const char *at = lines->data; at && *at; at = strchr(at, '\n') + 1) {
    if (strncmp(at, key, key_len) != 0 || strncmp(at + key_len, ": ", 2) != 0) continue;
    *ret_len = strcspn(at + key_len + 2, "\n");
    return at + key_len + 2;
  }
  return NULL;
}

static void add_key_change(clv_run *r, const char *key, size_t key_len, const char *old_value,
                           size_t old_len, const char *new_value, size_t new_len) {
  static const char missing_text[] = "not given";
  CLV_AUTO(clv_bytes_done) clv_bytes key_text = {0}, old_text = {0}, new_text = {0};
  clv_bytes_printf(&key_text, "%.*s", (int)key_len, key);
  clv_bytes_printf(&old_text, "%.*s", old_value ? (int)old_len : (int)sizeof missing_text,
                   old_value ? old_value : missing_text);
  clv_bytes_printf(&new_text, "%.*s", new_value ? (int)new_len : (int)sizeof missing_text,
                   new_value ? new_value : missing_text);
  r->changes.failed |= key_text.failed || old_text.failed || new_text.failed;
  if (!r->changes.failed) clv_run_add_change(r, key_text.data, old_text.data, new_text.data);
}

enum { NO_COMMON_STAGE = 0 };

/* Returns true if the message about the changed cut already covers the key: the layers of any
 * stage, and every key of a stage that only the earlier or only the present session has. n_common:
 * number of stages that both sessions have; NO_COMMON_STAGE: the sessions have different layers, so
 * the function returns false for every key. */
static bool is_key_of_cut(const char *key, size_t n_common) {
  static const char stages_prefix[] = "stages.", layers_prefix[] = ".layers";
  if (n_common == NO_COMMON_STAGE || strncmp(key, stages_prefix, sizeof stages_prefix - 1) != 0)
    return false;
  char *after_number;
  unsigned long stage_number = strtoul(key + sizeof stages_prefix - 1, &after_number, 10);
  return stage_number >= n_common ||
         strncmp(after_number, layers_prefix, sizeof layers_prefix - 1) == 0;
}

/* Adds a change for each key of `first_lines` (the earlier session) that `second_lines` (the
 * present session) lacks or has with another value. adds_missing_only: `first_lines` is the present
 * session and `second_lines` the earlier one; adds only keys that `second_lines` lacks. n_common:
 * as in is_key_of_cut; keys for which that function is true are skipped. */
static void compare_key_lines(clv_run *r, const clv_bytes *first_lines,
                              const clv_bytes *second_lines, bool adds_missing_only,
                              size_t n_common) {
  for (const char *at = first_lines->data; at && *at; at = strchr(at, '\n') + 1) {
    size_t key_len = strcspn(at, ":"), first_len = strcspn(at + key_len + 2, "\n"), second_len = 0;
    if (is_key_of_cut(at, n_common)) continue;
    const char *first_value = at + key_len + 2,
               *second_value = find_value_of_key(second_lines, at, key_len, &second_len);
    if (adds_missing_only && !second_value)
      add_key_change(r, at, key_len, NULL, 0, first_value, first_len);
    if (adds_missing_only || (second_value && second_len == first_len &&
                              memcmp(second_value, first_value, second_len) == 0))
      continue;
    add_key_change(r, at, key_len, first_value, first_len, second_value, second_len);
  }
}

/* ---- changed length of the run --------------------------------------------------------------- */

static uint64_t count_steps_of_run(const clv_train_config *t, uint64_t n_records) {
  uint64_t steps_per_epoch = n_records / t->batch + (!t->drop_last && n_records % t->batch != 0);
  uint64_t n_steps = t->epochs * steps_per_epoch;
  return t->max_steps ? CLV_MIN(n_steps, t->max_steps) : n_steps;
}

/* Adds a change if the length of the run differs. The schedule of the learning rate then ends at
 * another step, unless the session sets train.schedule.total_steps. */
static void compare_total_steps(clv_run *r, const clv_session_config *earlier_session,
                                uint64_t n_old_records) {
  unsigned long long n_old_steps = count_steps_of_run(&earlier_session->train, n_old_records);
  unsigned long long n_new_steps = count_steps_of_run(&r->config->train, r->data.train_rows.n);
  const clv_lr_config *s = &r->config->train.schedule;
  bool depends_on_length =
      (s->kind == CLV_LR_COSINE || s->kind == CLV_LR_LINEAR) && !s->total_steps;
  char old_steps_text[24], new_steps_text[24], key[128];
  if (n_old_steps == n_new_steps) return;
  snprintf(old_steps_text, sizeof old_steps_text, "%llu", n_old_steps);
  snprintf(new_steps_text, sizeof new_steps_text, "%llu", n_new_steps);
  clv_run_add_change(r, "steps of the run", old_steps_text, new_steps_text);
  snprintf(key, sizeof key,
           "steps of train.schedule, which follow the run (total_steps: %llu keeps them)",
           n_old_steps);
  if (depends_on_length) clv_run_add_change(r, key, old_steps_text, new_steps_text);
}

/* ---- lines of changes.jsonl ------------------------------------------------------------------ */

static clv_code append_to_changes_file(const clv_run *r, const clv_bytes *line, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes path = {0};
  clv_bytes_printf(&path, "%s/" CLV_RUN_CHANGES_FILE, r->dir.data);
  if (path.failed || line->failed) return clv_fail(err, CLV_EXHAUSTED, "out of memory");
  FILE *f = fopen(path.data, "ae");
  bool ok = f && fwrite(line->data, 1, line->len, f) == line->len;
  if (f) ok = fclose(f) == 0 && ok;
  return ok ? CLV_OK : clv_fail(err, CLV_UNAVAILABLE, "%s cannot be written", path.data);
}

static clv_code print_change(const clv_run *r, const char *key, const char *old_value,
                             const char *new_value, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes text = {0}, json = {0}, line = {0};
  clv_bytes_printf(&text, "changed since the last attempt: %s: %s -> %s", key, old_value,
                   new_value);
  clv_bytes_printf(&json, "{\"event\":\"changed\",\"attempt\":%llu,\"key\":",
                   (unsigned long long)r->effective_config.attempt.attempt_number);
  clv_bytes_add_json(&json, key);
  clv_bytes_puts(&json, ",\"before\":");
  clv_bytes_add_json(&json, old_value);
  clv_bytes_puts(&json, ",\"after\":");
  clv_bytes_add_json(&json, new_value);
  clv_bytes_puts(&json, "}");
  if (text.failed || json.failed) return clv_fail(err, CLV_EXHAUSTED, "out of memory");
  clv_report_json(&line, CLV_LOG_INFO, NULL, json.data);
  clv_bytes_puts(&line, "\n");
  clv_report_notice(r->journal, clv_run_has_json_output(r), text.data, json.data);
  return append_to_changes_file(r, &line, err);
}

static clv_code print_all_changes(const clv_run *r, clv_err *err) {
  const char *at = r->changes.data, *end = at + r->changes.len;
  if (r->changes.failed) return clv_fail(err, CLV_EXHAUSTED, "out of memory");
  while (at && at < end) {
    const char *old_value = at + strlen(at) + 1, *new_value = old_value + strlen(old_value) + 1;
    CLV_TRY(print_change(r, at, old_value, new_value, err));
    at = new_value + strlen(new_value) + 1;
  }
  return CLV_OK;
}

/* ---- the session of the last attempt --------------------------------------------------------- */

/* Sets data.validation.by and data.limit_by of an earlier version's session to the present values,
 * because that version had no such keys. */
static void fill_in_missing_keys(const clv_run *r, clv_session_config *earlier_session) {
  if (!r->is_of_old_version) return;
  earlier_session->data.validation_split_by = r->config->data.validation_split_by;
  earlier_session->data.limit_chosen_by = r->config->data.limit_chosen_by;
}

/* Adds the change of the cut to r->changes. Warns if the schedule is asynchronous, because its
 * results depend on how the layers are divided into stages. */
static void add_cut_change(clv_run *r, const clv_bytes *old_cut, const clv_bytes *new_cut) {
  clv_pipeline_kind schedule_kind = r->config->pipeline.schedule;
  CLV_AUTO(clv_bytes_done) clv_bytes text = {0};
  if (!old_cut->len) return;
  clv_run_add_change(r, "cut", old_cut->data, new_cut->data);
  if (schedule_kind != CLV_PIPE_PIPEDREAM && schedule_kind != CLV_PIPE_PIPEDREAM_2BW) return;
  clv_bytes_printf(&text,
                   "each stage of schedule %s steps by itself: with another cut the run has other "
                   "bits than without",
                   clv_pipeline_name(schedule_kind));
  if (!text.failed) clv_run_warn(r, CLV_LOG_WARN, "changed", text.data);
}

static clv_code compare_keys(clv_run *r, clv_session_config *earlier_session, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes before = {0}, after = {0}, old_cut = {0}, new_cut = {0};
  bool has_same_layers;
  const clv_seed *seed = &r->config->train.seed, *old_seed = &earlier_session->train.seed;
  fill_in_missing_keys(r, earlier_session);
  CLV_TRY(clv_session_config_write_lines(earlier_session, &before, err));
  CLV_TRY(clv_session_config_write_lines(r->config, &after, err));
  CLV_TRY(clv_run_compare_cut(r, earlier_session, &old_cut, &new_cut, &has_same_layers, err));
  add_cut_change(r, &old_cut, &new_cut);
  size_t n_common =
      has_same_layers ? CLV_MIN(earlier_session->n_stages, r->config->n_stages) : NO_COMMON_STAGE;
  compare_key_lines(r, &before, &after, false, n_common);
  compare_key_lines(r, &after, &before, true, n_common);
  if (seed->is_given && old_seed->is_given &&
      memcmp(&seed->key, &old_seed->key, sizeof seed->key) != 0)
    clv_run_add_change(r, "train.seed", "(secret)", "another one");
  compare_total_steps(r, earlier_session,
                      r->n_records_at_begin ? r->n_records_at_begin : r->data.train_rows.n);
  return CLV_OK;
}

/* Loads the session of the last attempt. If the file cannot be read, sets *ret to NULL and `reason`
 * to the reason. */
static clv_code load_last_session(const clv_run *r, clv_session_config **ret, clv_err *reason,
                                  clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes path = {0};
  clv_bytes_printf(&path, "%s/session.effective.yaml", r->dir.data);
  if (path.failed) return clv_fail(err, CLV_EXHAUSTED, "out of memory");
  if (clv_session_config_load(path.data, NULL, ret, reason) != CLV_OK) *ret = NULL;
  return CLV_OK;
}

clv_code clv_run_print_changes(clv_run *r, clv_err *err) {
  CLV_AUTO(clv_session_config_freep) clv_session_config *earlier_session = NULL;
  CLV_AUTO(clv_bytes_done) clv_bytes text = {0};
  clv_err reason;
  if (!r->is_resumed) return CLV_OK;
  CLV_TRY(load_last_session(r, &earlier_session, &reason, err));
  if (earlier_session) {
    CLV_TRY(compare_keys(r, earlier_session, err));
    return print_all_changes(r, err);
  }
  clv_bytes_printf(&text, "which keys have changed since the last attempt is not known: %s",
                   reason.text);
  if (!text.failed) clv_run_warn(r, CLV_LOG_WARN, "changed", text.data);
  return print_all_changes(r, err);
}

/* ---- changes with which no checkpoint can be loaded ------------------------------------------ */

static clv_code fail_changed_key(const clv_run *r, const char *key, const char *old_value,
                                 const char *new_value, clv_err *err) {
  return clv_fail(err, CLV_INVALID,
                  "%s is %s, but the checkpoints of %s were written with %s: set it back to %s, or "
                  "start over with --fresh",
                  key, new_value, r->dir.data, old_value, old_value);
}

static clv_optim_config optimizer_config_of(const clv_session_config *c) {
  clv_optim_config o = {.kind = c->train.optimizer.kind};
  CLV_OPTIM_COPY(&o, &c->train.optimizer);
  return o;
}

static bool has_moment(const clv_optim_config *o, const char *name) {
  uint32_t moment_mask = clv_optim_moment_mask(o);
  for (int i = 0; i < CLV_OPTIM_MAX_MOMENTS; i++)
    if (moment_mask >> i & 1 && strcmp(clv_optimizer_row_of(o->kind)->moments[i].name, name) == 0)
      return true;
  return false;
}

/* Returns the index of a moment that the optimiser `one` has and `other` lacks; -1: none. */
static int find_missing_moment(const clv_optim_config *one, const clv_optim_config *other) {
  uint32_t moment_mask = clv_optim_moment_mask(one);
  for (int i = 0; i < CLV_OPTIM_MAX_MOMENTS; i++)
    if (moment_mask >> i & 1 &&
        !has_moment(other, clv_optimizer_row_of(one->kind)->moments[i].name))
      return i;
  return -1;
}

/* Refuses an optimiser that has other moments than the last attempt's. Permits a change from adam
 * to adamw, because both have the same moments. Also permits train.ema to be added or removed. */
static clv_code check_optimizer(const clv_run *r, const clv_session_config *last_session,
                                clv_err *err) {
  clv_optim_config old_optim = optimizer_config_of(last_session),
                   new_optim = optimizer_config_of(r->config);
  const clv_optimizer_row *old_row = clv_optimizer_row_of(old_optim.kind),
                          *new_row = clv_optimizer_row_of(new_optim.kind);
  char key[64], old_value[32], new_value[32];
  int lost_moment_index = find_missing_moment(&old_optim, &new_optim),
      moment_index =
          lost_moment_index < 0 ? find_missing_moment(&new_optim, &old_optim) : lost_moment_index;
  if (moment_index < 0) return CLV_OK;
  if (old_row != new_row)
    return fail_changed_key(r, "train.optimizer.kind", old_row->name, new_row->name, err);
  uint32_t setting_mask = new_row->moments[moment_index].absent_if_0;
  clv_optim_setting setting = (clv_optim_setting)__builtin_ctz(setting_mask);
  snprintf(key, sizeof key, "train.optimizer.%s", clv_optim_setting_name(setting));
  snprintf(old_value, sizeof old_value, "%g", clv_optim_setting_value(&old_optim, setting));
  snprintf(new_value, sizeof new_value, "%g", clv_optim_setting_value(&new_optim, setting));
  return fail_changed_key(r, key, old_value, new_value, err);
}

clv_code clv_run_refuse_changes(const clv_run *r, clv_err *err) {
  CLV_AUTO(clv_session_config_freep) clv_session_config *last_session = NULL;
  clv_err reason;
  CLV_TRY(load_last_session(r, &last_session, &reason, err));
  if (!last_session)
    /* not an error: if the checkpoint does not fit the session, loading it fails with a reason of
     * its own */
    return CLV_OK;
  return check_optimizer(r, last_session, err);
}

/* ---- warnings of `eval` and `predict` -------------------------------------------------------- */

static void warn_of_each_change(const clv_run *r) {
  const char *at = r->changes.data, *end = at + r->changes.len;
  while (at && at < end) {
    CLV_AUTO(clv_bytes_done) clv_bytes text = {0};
    const char *before = at + strlen(at) + 1, *after = before + strlen(before) + 1;
    clv_bytes_printf(&text, "%s is %s here, but was %s when the run in %s trained", at, after,
                     before, r->dir.data);
    if (clv_session_key_changes_records(at) && !text.failed)
      clv_run_warn(r, CLV_LOG_WARN, "changed", text.data);
    at = after + strlen(after) + 1;
  }
}

clv_code clv_run_warn_changed_keys(clv_run *r, clv_err *err) {
  CLV_AUTO(clv_session_config_freep) clv_session_config *earlier_session = NULL;
  CLV_AUTO(clv_bytes_done) clv_bytes before = {0}, after = {0};
  clv_err reason;
  CLV_TRY(load_last_session(r, &earlier_session, &reason, err));
  /* not an error: a folder that has only checkpoints has no session to compare with */
  if (!earlier_session) return CLV_OK;
  CLV_TRY(clv_session_config_write_lines(earlier_session, &before, err));
  CLV_TRY(clv_session_config_write_lines(r->config, &after, err));
  compare_key_lines(r, &before, &after, false, NO_COMMON_STAGE);
  compare_key_lines(r, &after, &before, true, NO_COMMON_STAGE);
  if (r->changes.failed) return clv_fail(err, CLV_EXHAUSTED, "out of memory");
  warn_of_each_change(r);
  return CLV_OK;
}
