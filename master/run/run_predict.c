/* SPDX-License-Identifier: Apache-2.0
 *
 * Outputs for records that nobody knows the answers of.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "master/run/run_int.h"

static clv_code open_inputs(clv_run *r, clv_err *err) {
  r->sends = RUN_EVALUATES;
  CLV_TRY(clv_policy_find(&r->policy, err));
  CLV_TRY(clv_run_data_open_inputs(r->config, &r->data, err));
  CLV_TRY(clv_run_scan_data(r, false, err));
  CLV_TRY(clv_run_make_blueprint(r, err));
  return clv_run_data_fits(&r->data, r->blueprint, err);
}

/* As was asked for, or as the name says; NumPy's unless it says otherwise. */
static clv_records_format format_of(const clv_run_options *o) {
  const char *dot = o->out ? strrchr(o->out, '.') : NULL;
  if (o->format) return (clv_records_format)(o->format - 1);
  if (dot && strcmp(dot, ".csv") == 0) return CLV_RECORDS_CSV;
  return dot && strcmp(dot, ".jsonl") == 0 ? CLV_RECORDS_JSONL : CLV_RECORDS_NPY;
}

/* Records are not sent for predictions that cannot be written. */
static clv_code check_folder(const clv_run_options *o, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes folder = {0};
  const char *slash = o->out ? strrchr(o->out, '/') : NULL;
  if (slash) clv_bytes_add(&folder, o->out, (size_t)(slash - o->out) + 1);
  clv_bytes_puts(&folder, slash ? "" : ".");
  if (folder.failed) return clv_fail(err, CLV_EXHAUSTED, "out of memory");
  if (access(folder.data, W_OK) == 0) return CLV_OK;
  return clv_fail(err, CLV_PRECONDITION, "predictions cannot be written to %s: %s", folder.data,
                  strerror(errno));
}

static clv_code write_records(clv_run *r, const clv_tensor *outputs, clv_err *err) {
  static const char *const standard[] = {[CLV_RECORDS_NPY] = "predictions.npy",
                                         [CLV_RECORDS_CSV] = "predictions.csv",
                                         [CLV_RECORDS_JSONL] = "predictions.jsonl"};
  CLV_AUTO(clv_classes_done) clv_classes classes = {0};
  char shape[160];
  clv_records_format format = format_of(r->o);
  const char *path = r->o->out ? r->o->out : standard[format];
  CLV_TRY(clv_classes_read(r->config->checkpoint.dir, &classes, err));
  const clv_records records = {.outputs = outputs,
                               .data = r->data.test,
                               .index = r->data.test_rows.index,
                               .classes = &classes,
                               .loss = r->config->loss.kind};
  CLV_TRY(clv_records_write(&records, format, path, err));
  printf("%s: %s f32\n", path, clv_shape_format(&outputs->shape, shape, sizeof shape));
  return CLV_OK;
}

clv_exit clv_run_predict(const clv_session_config *config, const clv_run_options *o) {
  CLV_AUTO(clv_run_done) clv_run r = {.config = config, .o = o};
  CLV_AUTO(clv_tensor_unrefp) clv_tensor *outputs = NULL;
  clv_step_result unused;
  clv_err err;
  clv_exit code = r.code = clv_run_need_test(&r);
  if (code != CLV_EXIT_OK) return code;
  if (check_folder(o, &err) != CLV_OK) return clv_run_fail(&r, CLV_EXIT_FAILED, &err);
  if (clv_run_settle_key(&r, true, &err) != CLV_OK)
    return clv_run_fail(&r, CLV_EXIT_CHECKPOINT, &err);
  if (open_inputs(&r, &err) != CLV_OK) return clv_run_fail(&r, clv_run_setup_exit(&err), &err);
  code = r.code = clv_run_trained(&r, "predict", &unused, &outputs);
  if (code != CLV_EXIT_OK) return code;
  if (write_records(&r, outputs, &err) == CLV_OK) return CLV_EXIT_OK;
  return clv_run_fail(&r, err.code == CLV_DATA_LOSS ? CLV_EXIT_DATA : CLV_EXIT_FAILED, &err);
}
