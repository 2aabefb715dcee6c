/* SPDX-License-Identifier: Apache-2.0
 *
 * Waits for nodes. A thread sleeps on the runtime's condition variable, or runs the master's own
 * node if the node has no thread. Before a thread sleeps, it runs the jobs of the runtime that are
 * due.
 */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <time.h>

#include "master/api/core/core_int.h"

/* PROCESS_STOP_DELAY_NS: if a timer fires this much too late, the process was stopped.
 * MAX_SLEEP_NS: longest single sleep of a thread that waits.
 * MAX_SILENCE_AT_EXIT_MS: in a process that must exit, a worker that was silent for this time is
 * not waited for.
 * INTERRUPT_POLL_INTERVAL_NS: time between two questions to cleave_options.interrupted. */
enum { PROCESS_STOP_DELAY_NS = 300000000, MAX_SLEEP_NS = 250000000 };
enum { MAX_SILENCE_AT_EXIT_MS = 3000, INTERRUPT_POLL_INTERVAL_NS = 50000000 };
/* no deadline passes for this time after the process was stopped */
static const uint64_t GRACE_AFTER_STOP_NS = 5000000000;

/* Runs the master's own node on this thread, until until_ns or an interrupt. Then wakes the other
 * waiting threads, because one of them must run the node next. */
static bool drive_master_node(cleave_runtime *rt, uint64_t until_ns) {
  rt->is_node_driven_by_caller = true;
  rt->n_node_drives_begun++;
  clv_node_clear_interrupt(rt->node);
  api_unlock(rt);
  bool is_in_time = clv_node_run_until(rt->node, until_ns);
  api_lock(rt);
  rt->is_node_driven_by_caller = false;
  pthread_cond_broadcast(&rt->state_changed_cond);
  pthread_cond_signal(&rt->futures_thread_cond);
  return is_in_time;
}

/* Detects by a timer that has fired much too late that the process was stopped (SIGSTOP). Packets
 * that came meanwhile are still unread, so no deadline passes for the next GRACE_AFTER_STOP_NS. */
static void detect_process_stop(cleave_runtime *rt, uint64_t began_ns, uint64_t until_ns) {
  uint64_t now_ns = api_now(rt);
  if (began_ns < until_ns && now_ns > until_ns && now_ns - until_ns > PROCESS_STOP_DELAY_NS)
    rt->deadlines_paused_until_ns = now_ns + GRACE_AFTER_STOP_NS;
}

/* Ends the links to silent workers, in a process that must exit. The process still waits for
 * workers that answer. */
static void end_silent_links(cleave_runtime *rt) {
  for (uint32_t i = 1; i < rt->n_peers; i++)
    if (!api_is_peer_lost(&rt->peers[i]) && rt->peers[i].link)
      clv_link_ping_or_end(rt->peers[i].link, MAX_SILENCE_AT_EXIT_MS,
                           "it does not answer, and after an interrupt it has 3 s for that");
}

static void flush_links(cleave_runtime *rt) {
  for (uint32_t i = 1; i < rt->n_peers; i++)
    if (!api_is_peer_lost(&rt->peers[i])) clv_link_flush(rt->peers[i].link);
}

/* Sleeps until `condition` is signalled, or runs the master's own node if no thread runs it. Sends
 * buffered packets in either case. Returns false if until_ns has passed. */
static bool sleep_until(cleave_runtime *rt, pthread_cond_t *condition, uint64_t until_ns) {
  if (rt->node && !rt->has_node_thread && !rt->is_node_driven_by_caller)
    return drive_master_node(rt, until_ns);
  if (rt->is_single_threaded) flush_links(rt);
  struct timespec ts = {(time_t)(until_ns / 1000000000u), (long)(until_ns % 1000000000u)};
  return pthread_cond_timedwait(condition, &rt->lock, &ts) != ETIMEDOUT;
}

/* Runs the jobs that are due. Returns the time of the next job, monotonic ns. */
static uint64_t run_jobs(cleave_runtime *rt) {
  uint64_t next_due_ns = UINT64_MAX;
  for (uint32_t i = 0; i < rt->n_jobs; i++) {
    uint64_t due_ns = rt->jobs[i]->before_sleep(rt);
    next_due_ns = CLV_MIN(next_due_ns, due_ns);
  }
  return next_due_ns;
}

static bool sleep_on_condition(cleave_runtime *rt, pthread_cond_t *condition, uint64_t until_ns) {
  uint64_t began_ns = api_now(rt);
  api_update_outage_clock(rt);
  until_ns = CLV_MAX(api_deadline_monotonic_ns(rt, until_ns), rt->deadlines_paused_until_ns);
  uint64_t wake_ns = CLV_MIN(until_ns, run_jobs(rt));
  if (!rt->platform.clock.now_ns)
    wake_ns = CLV_MIN(wake_ns,
                      began_ns + (rt->is_interrupted ? INTERRUPT_POLL_INTERVAL_NS : MAX_SLEEP_NS));
  if (clv_ms_since_interrupt()) end_silent_links(rt);
  bool is_in_time = sleep_until(rt, condition, wake_ns);
  api_ask_about_outages(rt, !is_in_time);
  detect_process_stop(rt, began_ns, wake_ns);
  for (uint32_t i = 0; i < rt->n_jobs; i++)
    if (rt->jobs[i]->after_sleep) rt->jobs[i]->after_sleep(rt);
  return is_in_time || wake_ns < until_ns || until_ns < rt->deadlines_paused_until_ns;
}

bool api_sleep(cleave_runtime *rt, uint64_t until_ns) {
  return sleep_on_condition(rt, &rt->state_changed_cond, until_ns);
}

void api_sleep_as_futures_thread(cleave_runtime *rt, uint64_t until_ns) {
  (void)sleep_on_condition(rt, &rt->futures_thread_cond, until_ns);
}

/* ---- interrupts by the program --------------------------------------------------------------- */

bool api_is_interrupted(const cleave_runtime *rt) {
  return rt->is_interrupted && rt->is_interrupted(rt->user);
}

bool api_wait(cleave_runtime *rt, uint64_t until_ns) {
  if (api_is_interrupted(rt)) return false;
  return api_sleep(rt, until_ns) && !api_is_interrupted(rt);
}

cleave_status api_fail_late(const cleave_runtime *rt, cleave_error *error, const char *fmt, ...) {
  char text[CLEAVE_TEXT];
  va_list args;
  va_start(args, fmt);
  vsnprintf(text, sizeof text, fmt, args);
  va_end(args);
  bool is_interrupted = api_is_interrupted(rt);
  return api_fail(error, is_interrupted ? CLV_CANCELLED : CLV_DEADLINE, "%s%s",
                  is_interrupted ? "the program has interrupted the wait: " : "", text);
}

static bool is_runtime_interrupted(void *user) { return api_is_interrupted(user); }

void api_interruptible_begin(cleave_runtime *rt, api_interruptible *ret) {
  ret->hook = (clv_cancel_hook){is_runtime_interrupted, rt};
  ret->previous_hook = clv_rpc_set_cancel_hook(rt->is_interrupted ? &ret->hook : NULL);
}

void api_interruptible_end(api_interruptible *i) {
  (void)clv_rpc_set_cancel_hook(i->previous_hook);
}

void api_poll(cleave_runtime *rt) {
  (void)run_jobs(rt);
  if (rt->node && !rt->has_node_thread && !rt->is_node_driven_by_caller)
    (void)drive_master_node(rt, api_now(rt));
  else if (rt->is_single_threaded)
    flush_links(rt);
}
