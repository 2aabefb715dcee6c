/* SPDX-License-Identifier: Apache-2.0
 *
 * Reports how the compute thread spent its time. Any thread may call this while the compute thread
 * runs.
 */
#include "common/engine/node_int.h"

/* Returns the total idle time. A wait that ends while this function reads the two times is counted
 * once, or is missing until the next call. */
uint64_t clv_node_idle_ns(const clv_session_node *n) {
  uint64_t since, before, now = clv_clock_now(&n->o.clock);
  do {
    since = __atomic_load_n(&n->idle_since_ns, __ATOMIC_ACQUIRE);
    before = __atomic_load_n(&n->idle_ns, __ATOMIC_ACQUIRE);
  } while (since != __atomic_load_n(&n->idle_since_ns, __ATOMIC_ACQUIRE));
  return before + (since ? now - CLV_MIN(since, now) : 0);
}

void clv_node_time(const clv_session_node *n, clv_node_times *ret) {
  uint64_t began = __atomic_load_n(&n->began_ns, __ATOMIC_RELAXED),
           now = clv_clock_now(&n->o.clock);
  uint64_t age = began ? now - CLV_MIN(began, now) : 0, idle = clv_node_idle_ns(n);
  clv_share_counts c = {0};
  if (n->o.share) clv_share_get_counts(n->o.share, &c);
  *ret = (clv_node_times){.idle_ns = CLV_MIN(idle, age)};
  ret->share_ns = CLV_MIN(c.waited_ns, age - ret->idle_ns);
  ret->busy_ns = age - ret->idle_ns - ret->share_ns;
  ret->wakes = __atomic_load_n(&n->inbox.wakes, __ATOMIC_RELAXED);
}
