/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLEAVE_STATUS_INT_H
#define CLEAVE_STATUS_INT_H

#include "common/config/config.h"
#include "common/wire/wire.h"
#include "master/report/report.h"

/* The memory behind the sessions of a clv_look_worker. Start with {0}. */
typedef struct look_memory {
  clv_look_session *sessions;
  clv_look_module *modules;
  clv_look_link *links;
} look_memory;

/* What a worker of the session file says now beside what it said before (NULL: compared with its
 * own beginning). Sessions that are new since are compared with theirs. The texts are those of
 * `now` and of the config. Fills all but error and fix. */
clv_code clv_look_make(const clv_session_config *config, uint32_t worker,
                       const clv_wire_status_reply *before, const clv_wire_status_reply *now,
                       look_memory *memory, clv_look_worker *ret, clv_err *err) CLV_USE_RESULT;
void clv_look_memory_done(look_memory *memory);

#endif
