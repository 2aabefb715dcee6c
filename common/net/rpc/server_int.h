/* SPDX-License-Identifier: Apache-2.0
 *
 * Internals of a server, shared by server.c and server_call.c.
 */
#ifndef CLEAVE_RPC_SERVER_INT_H
#define CLEAVE_RPC_SERVER_INT_H

#include "common/net/rpc/rpc_int.h"

struct clv_rpc_server {
  clv_rpc_runtime *runtime;
  /* options of the server, with the defaults of limits filled in; pem is zeroed */
  clv_rpc_server_options options;
  rpc_server_certs certs;
  rpc_peers peers;
  rpc_pool handler_pool;
  grpc_server *grpc_handle;
  unsigned port;
  rpc_tag shutdown_tag;
  atomic_uint_fast64_t n_calls, n_calls_denied, n_calls_unauthenticated, n_calls_refused;
  atomic_uint n_active_calls;
  pthread_mutex_t lock; /* guards the fields below */
  pthread_cond_t state_changed;
  unsigned n_slots_and_calls; /* accept slots and calls in progress */
  bool is_draining, is_grpc_shut_down;
};

void rpc_server_on_shutdown(rpc_tag *tag, bool ok);

/* rpc_server_begin_slot_or_call counts an accept slot or a call, for which a drain waits.
 * rpc_server_end_slot_or_call counts its end. */
void rpc_server_begin_slot_or_call(clv_rpc_server *server);
void rpc_server_end_slot_or_call(clv_rpc_server *server);

/* Handles a new call and takes it over. rpc_server_begin_slot_or_call has already counted the
 * call. */
void rpc_server_admit_call(clv_rpc_server *server, grpc_call *call, grpc_slice method);

#endif
