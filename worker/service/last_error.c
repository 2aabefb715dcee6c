/* SPDX-License-Identifier: Apache-2.0
 *
 * Sets the last error of a session, of an identity and of the worker, which Status reports.
 */
#include <stdio.h>

#include "worker/service/service_int.h"

/* longest time between an error and the end of its session for which the error counts as the cause
 * of the end */
#define MAX_CAUSE_AGE_NS 10000000000u

/* Stores a text in *t. Makes the text printable, because peers and libraries may have written parts
 * of it, and terminals show it. */
static void set_last_error(clv_last_error *t, const char *fmt, va_list ap) {
  vsnprintf(t->text, sizeof t->text, fmt, ap);
  clv_text_to_printable(t->text);
  t->at_ns = clv_now_ns();
}

void clv_session_set_last_error(clv_session *s, const char *fmt, ...) {
  va_list ap;
  va_start(ap, fmt);
  pthread_mutex_lock(&s->lock);
  set_last_error(&s->last_error, fmt, ap);
  pthread_mutex_unlock(&s->lock);
  va_end(ap);
}

void clv_service_set_last_error(clv_service *s, const char *identity, const char *fmt, ...) {
  va_list ap;
  va_start(ap, fmt);
  pthread_mutex_lock(&s->lock);
  clv_member *m = identity ? clv_service_find_member(s, identity) : NULL;
  set_last_error(&s->last_error, fmt, ap);
  if (m) m->last_error = s->last_error;
  pthread_mutex_unlock(&s->lock);
  va_end(ap);
}

void clv_session_log_error(clv_session *s, const char *fmt, ...) {
  char text[CLV_ERR_TEXT];
  va_list ap;
  va_start(ap, fmt);
  vsnprintf(text, sizeof text, fmt, ap);
  va_end(ap);
  const clv_log_source source = {.peer = s->owner, .event_kind = "errors of sessions"};
  clv_log_limited(CLV_LOG_WARN, "log", &source, "session %s: %s", s->name, text);
  clv_session_set_last_error(s, "%s", text);
  clv_service_set_last_error(s->service, s->owner, "session %s: %s", s->name, text);
}

/* Makes a recent failure of the session's node the last error of the session's owner. A master
 * whose request was refused, for instance by a quota, often closes the session at once, and the
 * failure is freed with the node. A lost link to a peer is no failure of the node, because links
 * also end normally. */
void clv_session_keep_last_error(clv_session *s, const char *reason) {
  clv_node_failure f = {0};
  pthread_mutex_lock(&s->lock);
  clv_session_node *node = s->node;
  pthread_mutex_unlock(&s->lock);
  if (node) clv_node_last_failure(node, &f);
  if (f.count && clv_now_ns() - f.at_ns < MAX_CAUSE_AGE_NS)
    clv_service_set_last_error(s->service, s->owner, "session %s: %s; then %s", s->name, f.text,
                               reason);
}
