/* SPDX-License-Identifier: Apache-2.0
 *
 * hello_int: the Hello call that doctor.c and hello.c share.
 */
#ifndef CLEAVE_WATCH_HELLO_INT_H
#define CLEAVE_WATCH_HELLO_INT_H

#include "common/net/rpc/rpc.h"
#include "common/net/tls/tls.h"
#include "common/net/wire/wire.h"
#include "master/watch/watch.h"

/* Asks a worker for its Hello answer over a separate connection, without a session. BLOCKS up to
 * limits.connect_timeout, for connection and call together. The caller frees *ret with
 * clv_wire_message_clear. */
clv_code clv_watch_call_hello(const clv_session_config *config, clv_rpc_runtime *runtime,
                              const clv_remote_spec *worker, const clv_tls_identity *id,
                              clv_wire_hello_reply *ret, clv_err *err) CLV_USE_RESULT;

#endif
