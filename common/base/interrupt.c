/* SPDX-License-Identifier: Apache-2.0
 *
 * Request of the user to end the process; a signal handler stores its time.
 */
#include <stdatomic.h>

#include "common/base/base.h"

static atomic_uint_fast64_t since_ns; /* time of the request, by clv_now_ns; 0: not requested */
_Static_assert(ATOMIC_LLONG_LOCK_FREE == 2, "a signal handler may not wait");

void clv_interrupt(void) {
  uint_fast64_t not_requested = 0;
  atomic_compare_exchange_strong(&since_ns, &not_requested, clv_now_ns());
}

uint64_t clv_ms_since_interrupt(void) {
  uint64_t since = atomic_load_explicit(&since_ns, memory_order_relaxed);
  return since ? 1 + (clv_now_ns() - since) / 1000000u : 0;
}

clv_code clv_interrupt_check(clv_err *err) {
  return clv_ms_since_interrupt() ? clv_fail(err, CLV_CANCELLED, "interrupted") : CLV_OK;
}

void clv_interrupt_handled(void) { atomic_store(&since_ns, 0); }
