/* SPDX-License-Identifier: Apache-2.0
 *
 * Converts errors of libcleave to errors of the trainer, which name the worker and the activity,
 * and queues notices for the user.
 */
#include <stdio.h>
#include <string.h>

#include "master/train/train_int.h"

/* Returns true if the connection of the master failed at `operation`: "connect", "attach" or
 * "link". If a worker reports the error, the operation failed at a connection of that worker, so
 * the function returns false. */
static bool is_failure_at(const cleave_error *reason, const char *operation) {
  return !reason->reported && strcmp(reason->place, operation) == 0;
}

/* Returns the worker to which a worker reports that its link has ended; NULL: it reports something
 * else. Either that worker is lost, and the master's own link to it has not ended yet, or the two
 * workers cannot reach each other. A recovery connects all of them again. */
static const char *find_worker_of_lost_link(const clv_trainer *t, const cleave_error *reason) {
  if (!reason->reported || reason->status != CLEAVE_UNAVAILABLE) return NULL;
  for (size_t i = 0; i < t->config->n_workers; i++) {
    const char *name = t->config->workers[i].name;
    if (strcmp(name, reason->place) == 0 && strcmp(name, reason->node) != 0) return name;
  }
  return NULL;
}

/* Writes the reason to `err`. Puts the worker's name in front unless the reason contains it. */
static void write_reason(const cleave_error *reason, clv_err *err) {
  bool is_at_worker = reason->node[0] && strcmp(reason->node, "master") != 0;
  clv_code code = (clv_code)reason->status;
  if (is_at_worker && reason->reported && cleave_is_passed_on(reason))
    clv_fail(err, CLV_INTERNAL, "%.400s (passed on by worker '%s')", reason->text, reason->node);
  else if (is_at_worker && reason->reported)
    clv_fail(err, CLV_INTERNAL, "worker '%s' reports%s%s: %s", reason->node,
             reason->place[0] ? " for " : "", reason->place, reason->text);
  else if (is_at_worker && !strstr(reason->text, reason->node))
    clv_fail(err, code, "worker '%s': %s", reason->node, reason->text);
  else /* the error is the master's own, or its text names the worker already */
    clv_fail(err, cleave_is_passed_on(reason) ? CLV_INTERNAL : code, "%s", reason->text);
}

/* Appends limits.step_timeout to the text of a timeout, unless the text names a limit already. */
static void append_limit(const clv_trainer *t, clv_err *err) {
  size_t len = strlen(err->text);
  if (strstr(err->text, "limits.")) return;
  snprintf(err->text + len, sizeof err->text - len,
           "; limits.step_timeout is %g s: raise it if a step may take longer",
           (double)t->config->limits.step_timeout_ms / 1e3);
}

/* Returns CLV_INTERNAL for an error that a worker reports, so that the worker's code does not
 * decide the exit code of the program; CLV_UNAVAILABLE: it reports a lost link to another worker.
 */
clv_code clv_trainer_convert_error(clv_trainer *t, const cleave_error *reason, clv_err *err) {
  clv_err converted_err;
  bool is_connecting = is_failure_at(reason, "connect") || is_failure_at(reason, "attach");
  write_reason(reason, &converted_err);
  const char *other_worker = find_worker_of_lost_link(t, reason);
  if (other_worker || is_connecting || is_failure_at(reason, "link"))
    snprintf(t->lost_worker, sizeof t->lost_worker, "%s",
             other_worker ? other_worker : reason->node);
  if (converted_err.code == CLV_DEADLINE && !is_connecting && !reason->reported)
    append_limit(t, &converted_err);
  if (other_worker || (is_failure_at(reason, "link") && converted_err.code != CLV_BAD_ANSWER))
    converted_err.code = CLV_UNAVAILABLE;
  if (t->activity)
    clv_err_prefix(&converted_err, "%s %llu", t->activity, (unsigned long long)t->step_of_activity);
  if (err) *err = converted_err;
  return converted_err.code;
}

void clv_trainer_set_activity(clv_trainer *t, const char *activity, uint64_t step) {
  t->activity = activity;
  t->step_of_activity = step;
}

void clv_trainer_on_notice(void *trainer, const char *text) {
  clv_trainer *t = trainer;
  pthread_mutex_lock(&t->notes_lock);
  clv_bytes_printf(&t->notes, "%s\n", text);
  pthread_mutex_unlock(&t->notes_lock);
}
