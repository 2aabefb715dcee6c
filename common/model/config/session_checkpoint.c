/* SPDX-License-Identifier: Apache-2.0
 *
 * Values of the section `checkpoint` of a session file that depend on other keys.
 */
#include <string.h>

#include "common/model/config/schema_int.h"

clv_checkpoint_home clv_session_checkpoint_home(const clv_session_config *c) {
  if (c->checkpoint.home != CLV_HOME_UNSET) return c->checkpoint.home;
  for (size_t i = 0; i < c->n_workers; i++)
    if (c->workers[i].spares.n) return CLV_HOME_ALWAYS;
  return CLV_HOME_END;
}

uint64_t clv_session_checkpoint_every_ms(const clv_session_config *c) {
  uint64_t ms = 0;
  return c->checkpoint.every && clv_text_to_duration(c->checkpoint.every, &ms) ? ms : 0;
}

bool clv_session_checkpoint_is_auto(const clv_session_config *c) {
  return c->checkpoint.every && strcmp(c->checkpoint.every, "auto") == 0;
}
