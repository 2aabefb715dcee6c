/* SPDX-License-Identifier: Apache-2.0
 *
 * Prints errors, notices and results of the commands. Errors are printed only here, once, and
 * become exit codes.
 */
#include <stdio.h>
#include <string.h>

#include "master/run/run_int.h"

/* Adds a message to the journal of the run, if it has one. code: exit code of the command; 0: the
 * message does not end the command. */
static void add_message_to_journal(const clv_run *r, clv_log_level level, const char *event,
                                   int code, const char *message) {
  CLV_AUTO(clv_bytes_done) clv_bytes text = {0}, json = {0}, line = {0};
  if (!r || !r->journal) return;
  clv_bytes_printf(&text, "cleave-master: %s", message);
  clv_bytes_printf(&json, "{\"event\":\"%s\",", event);
  if (code) clv_bytes_printf(&json, "\"code\":%d,", code);
  clv_bytes_puts(&json, "\"message\":");
  clv_bytes_add_json(&json, message);
  clv_bytes_puts(&json, "}");
  if (!json.failed) clv_report_json(&line, level, NULL, json.data);
  if (!text.failed && !line.failed && line.len) clv_journal_add(r->journal, text.data, line.data);
}

clv_exit_code clv_run_fail(const clv_run *r, clv_exit_code code, const clv_err *err) {
  add_message_to_journal(r, CLV_LOG_ERROR, "failed", code, err->text);
  fflush(stdout);
  clv_exit_report(code, err);
  return code;
}

void clv_run_warn(const clv_run *r, clv_log_level level, const char *event, const char *message) {
  clv_notice(level, event, "%s", message);
  add_message_to_journal(r, level, event, 0, message);
}

void clv_run_print_notes(const clv_run *r, const char *event, char *notes) {
  char *remaining_notes = notes;
  for (char *line; remaining_notes && (line = strsep(&remaining_notes, "\n")) != NULL;)
    if (*line) clv_run_warn(r, CLV_LOG_WARN, event, line);
}

void clv_run_on_notice(void *user, const char *text) {
  clv_run_warn(user, CLV_LOG_WARN, "notice", text);
}

void clv_run_print_notices(const clv_run *r) {
  CLV_AUTO(clv_bytes_done) clv_bytes notes = {0};
  clv_trainer_take_notes(r->trainer, &notes);
  clv_run_print_notes(r, "notice", notes.data);
}

/* ---- exit codes of failures ------------------------------------------------------------------ */

/* Returns true if the user's interrupt caused the error: a call was cancelled, or the master
 * stopped waiting for a worker. */
static bool is_caused_by_interrupt(const clv_err *err) {
  return clv_ms_since_interrupt() && (err->code == CLV_CANCELLED || err->code == CLV_UNAVAILABLE);
}

clv_exit_code clv_run_setup_exit_code(const clv_err *err) {
  switch (err->code) {
    case CLV_DATA_LOSS:
      return CLV_EXIT_DATA;
    case CLV_UNAVAILABLE:
    case CLV_UNAUTHENTICATED:
    case CLV_DENIED:
    case CLV_ABORTED:
      return CLV_EXIT_CONNECT;
    case CLV_DEADLINE:
      return CLV_EXIT_TIMEOUT;
    case CLV_INVALID:
      return CLV_EXIT_CONFIG;
    case CLV_BAD_ANSWER:
      return CLV_EXIT_BAD_ANSWER;
    case CLV_INTERNAL:
      return CLV_EXIT_INTERNAL;
    default:
      return CLV_EXIT_FAILED;
  }
}

/* Returns true if the error is a refusal by the host's policy, which forbade a tensor that was
 * about to be sent. */
static bool is_caused_by_policy(const clv_run *r, const clv_err *err) {
  return err->code == CLV_DENIED && clv_policy_has_refused(r->policy);
}

clv_exit_code clv_run_connect_exit_code(const clv_run *r, const clv_err *err) {
  if (is_caused_by_interrupt(err)) return CLV_EXIT_INTERRUPTED;
  if (is_caused_by_policy(r, err)) return CLV_EXIT_CONFIG;
  return err->code == CLV_INTERNAL ? CLV_EXIT_FAILED : clv_run_setup_exit_code(err);
}

clv_exit_code clv_run_exit_code(const clv_run *r, const clv_err *err) {
  if (is_caused_by_interrupt(err)) return CLV_EXIT_INTERRUPTED;
  if (is_caused_by_policy(r, err)) return CLV_EXIT_CONFIG;
  if (err->code == CLV_RANGE) return CLV_EXIT_DIVERGED;
  if (err->code == CLV_DEADLINE) return CLV_EXIT_TIMEOUT;
  if (err->code == CLV_BAD_ANSWER) return CLV_EXIT_BAD_ANSWER;
  if (err->code == CLV_UNAUTHENTICATED) return CLV_EXIT_CONNECT;
  if (err->code == CLV_UNAVAILABLE && clv_trainer_lost_worker(r->trainer)[0] &&
      strcmp(clv_trainer_lost_worker(r->trainer), "master") != 0)
    return CLV_EXIT_WORKER_LOST;
  return err->code == CLV_DATA_LOSS ? CLV_EXIT_DATA : CLV_EXIT_FAILED;
}

/* ---- results of evaluations ------------------------------------------------------------------ */

bool clv_run_has_json_output(const clv_run *r) { return r->o->json || r->o->log_json; }

bool clv_run_has_accuracy(const clv_run *r) { return clv_loss_has_accuracy(r->config->loss.kind); }

void clv_run_print_line(const clv_run *r, const char *text, const char *json) {
  clv_reporter_notice(r->reporter, clv_run_has_json_output(r) && !r->reporter ? json : text, json);
}

void clv_run_print_eval(clv_run *r, const char *set_name, const clv_step_result *e,
                        const char *step_text, const char *step_json) {
  CLV_AUTO(clv_bytes_done) clv_bytes text = {0}, json = {0};
  char loss_json[CLV_JSON_NUMBER_BYTES], loss_text[CLV_JSON_NUMBER_BYTES];
  char positions_text[48] = "", positions_json[48] = "";
  double accuracy = e->n_labelled ? clv_step_accuracy(e) : 0;
  unsigned long long n_samples = e->samples;
  if (e->n_labelled != e->samples) {
    snprintf(positions_text, sizeof positions_text, ", %llu places",
             (unsigned long long)e->n_labelled);
    snprintf(positions_json, sizeof positions_json, ",\"places\":%llu",
             (unsigned long long)e->n_labelled);
  }
  if (clv_run_has_accuracy(r))
    clv_bytes_printf(&text, "%s accuracy %.2f %%  (loss %s, %llu samples%s%s)", set_name,
                     100 * accuracy, clv_format_number("%.4f", e->loss, loss_text), n_samples,
                     positions_text, step_text);
  else
    clv_bytes_printf(&text, "%s loss %s  (%llu samples%s)", set_name,
                     clv_format_number("%.6f", e->loss, loss_text), n_samples, step_text);
  clv_bytes_printf(&json, "{\"event\":\"%s\"%s,\"loss\":%s,\"accuracy\":%.6f,\"samples\":%llu%s",
                   set_name, step_json, clv_json_number(e->loss, 9, loss_json), accuracy, n_samples,
                   positions_json);
  clv_run_add_scores(r, e, strcmp(set_name, "test") == 0, &text, &json);
  if (!text.failed && !json.failed) clv_run_print_line(r, text.data, json.data);
}
