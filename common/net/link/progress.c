/* SPDX-License-Identifier: Apache-2.0
 *
 * A tensor that is coming is further on: what has waited for that goes on to leave.
 */
#include "common/net/link/link_int.h"

static void wake_departures(clv_coming *c) {
  for (clv_departures *d; (d = clv_coming_due(c)) != NULL;) clv_departures_go_on(d);
}

void clv_coming_reach(clv_coming *c, size_t bytes) {
  clv_coming_set(c, bytes, NULL);
  wake_departures(c);
}

void clv_coming_fail(clv_coming *c, const clv_err *why) {
  clv_coming_set(c, 0, why);
  wake_departures(c);
}
