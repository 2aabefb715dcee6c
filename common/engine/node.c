/* SPDX-License-Identifier: Apache-2.0
 *
 * A node, and the compute thread, which handles its packets: clv_node_run and clv_node_run_until
 * wait in the inbox and handle one packet or one end of work after the other.
 */
#include "common/engine/node_int.h"

#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

/* A loopback round trip takes 70 us if both ends poll and 180 us if both sleep. Over a real network
 * an answer seldom comes so soon, so a thread polls for at most SPIN_US. */
enum { SPIN_US = 200 };

clv_code clv_node_new(const clv_node_options *o, clv_session_node **ret, clv_err *err) {
  clv_session_node *n;
  CLV_TRY(clv_alloc(1, sizeof *n, &n, err));
  n->o = *o;
  n->o.pool = clv_pool_ref(o->pool);
  n->next_message = (uint64_t)o->originator << 48;
  pthread_mutex_init(&n->lock, NULL);
  clv_inbox_init(&n->inbox);
  clv_code code = clv_node_init_contexts(n, err);
  if (code == CLV_OK) code = clv_node_init_references(n, err);
  if (code != CLV_OK) {
    clv_node_free(n);
    return code;
  }
  *ret = n;
  return CLV_OK;
}

void clv_node_free(clv_session_node *n) {
  if (!n) return;
  clv_node_drain_work(n);
  clv_node_end_devices(n);
  clv_node_drop_file(n, NULL);
  /* before the inbox is freed, because a thread that has written a file posts the request there */
  clv_node_drop_saves(n);
  clv_inbox_clear(&n->inbox);
  /* freed first, so that contexts do not report kept values to n->references */
  clv_rrefs_free(clv_steal(&n->references));
  /* freed before the modules, because calls of contexts belong to the modules' plans */
  clv_contexts_free(n->contexts);
  /* each module first unpins the modules that own its tied parameters, so that the loop after this
   * one can free them in any order */
  for (uint32_t i = 0; i < CLV_MODULE_ALL; i++)
    if (n->modules[i]) clv_module_unpin_owners(n->modules[i]);
  for (uint32_t i = 0; i < CLV_MODULE_ALL; i++) clv_module_free(n->modules[i]);
  clv_node_remove_peers(n);
  clv_link_unref(n->master);
  pthread_mutex_destroy(&n->lock);
  clv_pool_unref(n->o.pool);
  free(n);
}

/* ---- the compute thread ---------------------------------------------------------------------- */

static uint64_t now_ns(const clv_session_node *n) { return clv_clock_now(&n->o.clock); }

unsigned clv_spin_us(unsigned compute_threads) {
  long n_cores = sysconf(_SC_NPROCESSORS_ONLN);
  return n_cores > 0 && compute_threads < (unsigned long)n_cores ? SPIN_US : 0;
}

static void tick_if_due(clv_session_node *n, uint64_t now) {
  if (clv_rrefs_due_ns(n->references) <= now) clv_node_tick(n);
}

static bool wait_by_callback(clv_session_node *n, uint64_t until_ns) {
  clv_inbox_set_coalescing(&n->inbox, true);
  bool has_more = n->o.wait(n->o.wait_user, until_ns);
  clv_inbox_set_coalescing(&n->inbox, false);
  return has_more;
}

/* Sleeps with nothing locked. Releases the share of the cores first, unless work runs on a device,
 * whose time is charged to the share. False: no event will ever come. */
static bool sleep_until(clv_session_node *n, uint64_t now, uint64_t until_ns) {
  until_ns = CLV_MIN(until_ns, clv_rrefs_due_ns(n->references));
  clv_node_flush(n);
  if (!clv_inbox_has_running_work(&n->inbox)) clv_share_release_cores(n->o.share);
  if (n->o.wait) return wait_by_callback(n, until_ns);
  clv_inbox_wait(&n->inbox, now, until_ns);
  return true;
}

static bool has_item(const clv_inbox_item *i) { return i->packet || i->ended_work; }

/* Waits for the next packet or end of work, and handles due timers of references meanwhile. False:
 * stopped, interrupted, or past the deadline. *ret_waker: the packet that ended the last sleep,
 * still queued; NULL: none. */
static bool wait_for_next_item(clv_session_node *n, uint64_t now, uint64_t deadline_ns,
                               clv_inbox_item *ret, const clv_packet **ret_waker) {
  for (bool is_first = true, has_more = true;; is_first = false) {
    tick_if_due(n, now);
    bool is_over =
        !clv_inbox_take(&n->inbox, ret) || !has_more || (!is_first && now >= deadline_ns);
    if (is_over || has_item(ret)) return has_item(ret);
    has_more = sleep_until(n, now, deadline_ns);
    *ret_waker = clv_inbox_newest_packet(&n->inbox);
    now = now_ns(n);
  }
}

/* As wait_for_next_item; counts the wait as idle time, unless work runs on a device. */
static bool wait_for_item(clv_session_node *n, uint64_t deadline_ns, clv_inbox_item *ret) {
  uint64_t begin = now_ns(n);
  const clv_packet *waker = NULL;
  bool has_running_work = clv_inbox_has_running_work(&n->inbox);
  __atomic_store_n(&n->idle_since_ns, has_running_work ? 0 : begin, __ATOMIC_RELAXED);
  if (!has_running_work) clv_share_yield(n->o.share);
  bool got_item = wait_for_next_item(n, begin, deadline_ns, ret, &waker);
  if (!got_item) clv_node_flush(n);
  if (!got_item) clv_share_release_cores(n->o.share);
  uint64_t slept = now_ns(n) - begin, idle = has_running_work ? 0 : slept;
  n->slept_while_working_ns += slept - idle;
  /* cleared before idle_ns grows, because clv_node_idle_ns reads both */
  __atomic_store_n(&n->idle_since_ns, 0, __ATOMIC_RELEASE);
  __atomic_store_n(&n->idle_ns, n->idle_ns + idle, __ATOMIC_RELEASE);
  if (got_item && waker && waker->received_by) clv_link_record_node_wait(waker->received_by, idle);
  return got_item;
}

static void handle_item(clv_session_node *n, const clv_inbox_item *i) {
  if (i->ended_work)
    clv_node_handle_work_end(n, i->ended_work);
  else
    clv_node_handle(n, i->packet);
}

bool clv_node_poll(clv_session_node *n) {
  bool got_item = false;
  clv_inbox_set_coalescing(&n->inbox, false);
  tick_if_due(n, now_ns(n));
  for (clv_inbox_item i; clv_inbox_take(&n->inbox, &i) && has_item(&i); got_item = true)
    handle_item(n, &i);
  clv_node_flush(n);
  clv_inbox_set_coalescing(&n->inbox, true);
  return got_item;
}

uint64_t clv_node_due_ns(clv_session_node *n) {
  return CLV_MIN(clv_inbox_due_ns(&n->inbox), clv_rrefs_due_ns(n->references));
}

void clv_node_last_failure(clv_session_node *n, clv_node_failure *ret) {
  pthread_mutex_lock(&n->lock);
  *ret = n->failure;
  pthread_mutex_unlock(&n->lock);
}

void clv_node_run(clv_session_node *n) {
  __atomic_store_n(&n->began_ns, now_ns(n), __ATOMIC_RELAXED);
  for (clv_inbox_item i; wait_for_item(n, UINT64_MAX, &i);) handle_item(n, &i);
}

bool clv_node_run_until(clv_session_node *n, uint64_t deadline_ns) {
  for (clv_inbox_item i; wait_for_item(n, deadline_ns, &i);) handle_item(n, &i);
  return clv_inbox_is_interrupted(&n->inbox);
}

void clv_node_stop(clv_session_node *n) {
  if (!n) return;
  clv_inbox_stop(&n->inbox);
  clv_share_stop(n->o.share);
}

void clv_node_interrupt(clv_session_node *n) { clv_inbox_set_interrupted(&n->inbox, true); }
void clv_node_clear_interrupt(clv_session_node *n) { clv_inbox_set_interrupted(&n->inbox, false); }
