/* SPDX-License-Identifier: Apache-2.0
 *
 * status_int: computes what `status` shows of a worker (status_make.c), for status.c.
 */
#ifndef CLEAVE_STATUS_INT_H
#define CLEAVE_STATUS_INT_H

#include "common/model/config/config.h"
#include "common/net/wire/wire.h"
#include "master/report/report.h"

/* Arrays that the sessions and devices of a clv_status_worker refer to. Start with {0}. */
typedef struct clv_status_buffers {
  clv_status_session *sessions;
  clv_status_module *modules;
  clv_status_link *links;
  clv_status_device *devices;
} clv_status_buffers;

/* Computes the status of a worker from two answers: differences, rates and shares. old_reply NULL:
 * the differences are those since the worker's start. A session that is not in old_reply is
 * compared with its own start. *ret refers to texts of new_reply and of the config. Fills all
 * fields except error and fix. */
clv_code clv_status_compare(const clv_session_config *config, uint32_t worker,
                            const clv_wire_status_reply *old_reply,
                            const clv_wire_status_reply *new_reply, clv_status_buffers *buffers,
                            clv_status_worker *ret, clv_err *err) CLV_USE_RESULT;
void clv_status_buffers_done(clv_status_buffers *buffers);

#endif
