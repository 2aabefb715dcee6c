/* SPDX-License-Identifier: Apache-2.0
 *
 * The command predict, which writes the outputs of a checkpoint for records. It does not read the
 * labels of the records.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "master/run/run_int.h"

static clv_code open_blueprint_for_prediction(clv_run *r, clv_err *err) {
  r->purpose = RUN_EVALUATION;
  CLV_TRY(clv_policy_find(&r->policy, err));
  CLV_TRY(clv_run_read_learnt(r, &r->data.learnt, err));
  clv_run_report_table_reading(r);
  CLV_TRY(clv_run_data_open_inputs(r->config, &r->data, err));
  CLV_TRY(clv_run_scan_data(r, false, err));
  CLV_TRY(clv_run_resolve_class_weights(r, err));
  CLV_TRY(clv_run_make_blueprint(r, err));
  CLV_TRY(clv_run_check_dropout(r, err));
  return clv_run_data_check_fit(&r->data, r->blueprint, err);
}

/* Returns the format that --format names; without --format, the format of the extension of
 * --output, such as .csv; if that names no format, NumPy's. */
static clv_predictions_format choose_format(const clv_run_options *o) {
  const char *dot = o->out ? strrchr(o->out, '.') : NULL;
  if (o->format) return (clv_predictions_format)(o->format - 1);
  if (dot && strcmp(dot, ".csv") == 0) return CLV_PREDICTIONS_CSV;
  return dot && strcmp(dot, ".jsonl") == 0 ? CLV_PREDICTIONS_JSONL : CLV_PREDICTIONS_NPY;
}

/* Fails, before any record is sent, if --probabilities is given and the loss has no
 * probabilities. */
static clv_code check_probabilities(const clv_session_config *c, const clv_run_options *o,
                                    clv_err *err) {
  bool has_probabilities = clv_loss_has_accuracy(c->loss.kind);
  for (size_t i = 0; i < c->loss.n_targets; i++)
    has_probabilities |= clv_loss_has_accuracy(c->loss.targets[i].kind);
  if (!o->probabilities || has_probabilities) return CLV_OK;
  return clv_fail(err, CLV_PRECONDITION,
                  "--probabilities goes with losses of classes, and %s predicts numbers: leave it "
                  "out",
                  clv_loss_name(c->loss.kind));
}

/* Fails if --output is one of the files with the records, because it would be overwritten. */
static clv_code check_output_is_no_input(const clv_session_config *c, const clv_run_options *o,
                                         clv_err *err) {
  struct stat out, in;
  const clv_text_list *lists[] = {&c->data.train, &c->data.test};
  if (!o->out || stat(o->out, &out) != 0) return CLV_OK;
  for (size_t k = 0; k < CLV_COUNT(lists); k++)
    for (size_t i = 0; i < lists[k]->n; i++)
      if (stat(lists[k]->items[i], &in) == 0 && in.st_dev == out.st_dev && in.st_ino == out.st_ino)
        return clv_fail(err, CLV_PRECONDITION,
                        "--output %s is %s, a file of data.%s: give predictions another name",
                        o->out, lists[k]->items[i], k ? "test" : "train");
  return CLV_OK;
}

/* Fails, before any record is sent, if the predictions could not be written. */
static clv_code check_output_folder(const clv_run_options *o, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes folder = {0};
  const char *slash = o->out ? strrchr(o->out, '/') : NULL;
  if (slash) clv_bytes_add(&folder, o->out, (size_t)(slash - o->out) + 1);
  clv_bytes_puts(&folder, slash ? "" : ".");
  if (folder.failed) return clv_fail(err, CLV_EXHAUSTED, "out of memory");
  if (access(folder.data, W_OK) == 0) return CLV_OK;
  return clv_fail(err, CLV_PRECONDITION, "predictions cannot be written to %s: %s", folder.data,
                  strerror(errno));
}

/* Writes the predictions to the file --output. intervals: ends of the intervals with
 * --dropout-samples; its tensors are NULL without that option. */
static clv_code write_predictions(clv_run *r, const clv_tensor *outputs,
                                  const clv_interval_tensors *intervals, clv_err *err) {
  static const char *const default_paths[] = {[CLV_PREDICTIONS_NPY] = "predictions.npy",
                                              [CLV_PREDICTIONS_CSV] = "predictions.csv",
                                              [CLV_PREDICTIONS_JSONL] = "predictions.jsonl"};
  CLV_AUTO(clv_classes_free) clv_classes classes = {0};
  CLV_AUTO(clv_tensor_unrefp) clv_tensor *probabilities = NULL;
  char shape_text[160];
  clv_predictions_format format = choose_format(r->o);
  const char *path = r->o->out ? r->o->out : default_paths[format];
  CLV_TRY(clv_classes_read(r->config->checkpoint.dir, &classes, err));
  if (r->o->probabilities && !intervals->mean)
    CLV_TRY(clv_run_compute_probabilities(r->config, outputs, &probabilities, err));
  const clv_predictions predictions = {
      .outputs = outputs,
      .probabilities = r->o->probabilities && intervals->mean ? intervals->mean : probabilities,
      .low = intervals->low,
      .high = intervals->high,
      .data = r->data.test,
      .index = r->data.test_rows.index,
      .classes = &classes,
      .loss = r->config->loss.kind,
      .targets = r->config->loss.targets,
      .n_targets = r->config->loss.n_targets,
      .learnt = r->data.learnt};
  size_t n_pages = format == CLV_PREDICTIONS_JSONL ? clv_predictions_page_count(&predictions) : 0;
  CLV_TRY(clv_predictions_write(&predictions, format, path, err));
  printf("%s: ", path);
  if (n_pages) printf("%zu page%s, ", n_pages, CLV_S(n_pages));
  printf("%s f32\n", clv_shape_format(&outputs->shape, shape_text, sizeof shape_text));
  return CLV_OK;
}

clv_exit_code clv_run_predict(const clv_session_config *config, const clv_run_options *o) {
  CLV_AUTO(clv_run_done) clv_run r = {.config = config, .o = o};
  CLV_AUTO(clv_tensor_unrefp) clv_tensor *outputs = NULL;
  CLV_AUTO(clv_interval_tensors_done) clv_interval_tensors intervals = {NULL};
  clv_step_result ignored_result;
  clv_err err;
  clv_exit_code code = r.exit_code = clv_run_check_has_test(&r);
  if (code != CLV_EXIT_OK) return code;
  if (check_probabilities(config, o, &err) != CLV_OK ||
      check_output_is_no_input(config, o, &err) != CLV_OK || check_output_folder(o, &err) != CLV_OK)
    return clv_run_fail(&r, CLV_EXIT_FAILED, &err);
  if (clv_run_resolve_key(&r, true, &err) != CLV_OK)
    return clv_run_fail(&r, CLV_EXIT_CHECKPOINT, &err);
  if (open_blueprint_for_prediction(&r, &err) != CLV_OK)
    return clv_run_fail(&r, clv_run_setup_exit_code(&err), &err);
  code = r.exit_code = clv_run_eval_checkpoint(&r, "predict", &ignored_result, &outputs);
  if (code != CLV_EXIT_OK) return code;
  if (o->dropout_samples && clv_run_sample_dropout(&r, &outputs, &intervals, &err) != CLV_OK)
    return clv_run_fail(&r, clv_run_exit_code(&r, &err), &err);
  if (write_predictions(&r, outputs, &intervals, &err) == CLV_OK) return CLV_EXIT_OK;
  return clv_run_fail(&r, err.code == CLV_DATA_LOSS ? CLV_EXIT_DATA : CLV_EXIT_FAILED, &err);
}
