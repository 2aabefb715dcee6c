/* SPDX-License-Identifier: Apache-2.0
 *
 * Advances and ends device copies, and resumes the send queues that waited for the bytes.
 */
#include "common/net/link/link_int.h"

static void wake_send_queues(clv_device_copy *c) {
  for (clv_send_queue *d; (d = clv_device_copy_take_due_waiter(c)) != NULL;)
    clv_send_queue_resume_after_copy(d);
}

void clv_device_copy_advance(clv_device_copy *c, size_t bytes) {
  clv_device_copy_set_progress(c, bytes, NULL);
  wake_send_queues(c);
}

void clv_device_copy_fail(clv_device_copy *c, const clv_err *why) {
  clv_device_copy_set_progress(c, 0, why);
  wake_send_queues(c);
}
