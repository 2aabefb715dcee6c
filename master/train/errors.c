/* SPDX-License-Identifier: Apache-2.0
 *
 * Converts errors of libcleave to errors of the trainer, which name the worker and the activity.
 */
#include <stdio.h>
#include <string.h>

#include "master/train/train_int.h"

/* Returns true if libcleave itself says that the connection failed at `hop`. The same word in a
 * worker's report means another connection. */
static bool hop_is(const cleave_error *why, const char *hop) {
  return !why->reported && strcmp(why->place, hop) == 0;
}

/* Writes the reason, with the name of the worker in front unless the reason has it. */
static void put_reason(const cleave_error *why, clv_err *err) {
  bool at_worker = why->node[0] && strcmp(why->node, "master") != 0;
  clv_code code = (clv_code)why->status;
  if (at_worker && why->reported && cleave_is_passed_on(why))
    clv_fail(err, CLV_INTERNAL, "%.400s (passed on by worker '%s')", why->text, why->node);
  else if (at_worker && why->reported)
    clv_fail(err, CLV_INTERNAL, "worker '%s' reports%s%s: %s", why->node,
             why->place[0] ? " for " : "", why->place, why->text);
  else if (at_worker && !strstr(why->text, why->node))
    clv_fail(err, code, "worker '%s': %s", why->node, why->text);
  else /* the master lacked a worker's value: the reason is the worker's report */
    clv_fail(err, cleave_is_passed_on(why) ? CLV_INTERNAL : code, "%s", why->text);
}

/* Appends the limit that was exceeded, if libcleave does not name it. */
static void put_limit(const clv_trainer *t, clv_err *err) {
  size_t len = strlen(err->text);
  if (strstr(err->text, "limits.")) return;
  snprintf(err->text + len, sizeof err->text - len,
           "; limits.step_timeout is %g s: raise it if a step may take longer",
           (double)t->config->limits.step_timeout_ms / 1e3);
}

/* The code of an error that a worker reports does not decide the exit code of the program. */
clv_code clv_trainer_convert_error(clv_trainer *t, const cleave_error *why, clv_err *err) {
  clv_err text;
  bool connecting = hop_is(why, "connect") || hop_is(why, "attach");
  put_reason(why, &text);
  if (connecting || hop_is(why, "link")) snprintf(t->lost, sizeof t->lost, "%s", why->node);
  if (text.code == CLV_DEADLINE && !connecting && !why->reported) put_limit(t, &text);
  if (hop_is(why, "link") && text.code != CLV_BAD_ANSWER) text.code = CLV_UNAVAILABLE;
  if (t->activity)
    clv_err_prefix(&text, "%s %llu", t->activity, (unsigned long long)t->activity_step);
  if (err) *err = text;
  return text.code;
}
