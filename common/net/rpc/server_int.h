/* SPDX-License-Identifier: Apache-2.0
 *
 * Internals of a server, shared by server.c and server_call.c.
 */
#ifndef CLEAVE_RPC_SERVER_INT_H
#define CLEAVE_RPC_SERVER_INT_H

#include "common/net/rpc/rpc_int.h"

struct clv_rpc_server {
  clv_rpc_runtime *runtime;
  clv_rpc_server_options options; /* limits filled in; pem cleared */
  rpc_server_certs certs;
  rpc_peers peers;
  rpc_pool pool;
  grpc_server *grpc;
  unsigned port;
  rpc_tag shutdown_tag;
  atomic_uint_fast64_t calls, denied, unauthenticated, refused_by_limit;
  atomic_uint active_calls;
  pthread_mutex_t lock; /* guards the fields below */
  pthread_cond_t changed;
  unsigned live; /* accept slots and calls */
  bool is_draining, is_shut;
};

void rpc_server_shut(rpc_tag *tag, bool ok);

/* Count an accept slot or a call that a drain waits for, and its end. */
void rpc_server_add_object(clv_rpc_server *server);
void rpc_server_drop_object(clv_rpc_server *server);

/* Handles a new call, which rpc_server_add_object has already counted. Takes it over. */
void rpc_server_admit(clv_rpc_server *server, grpc_call *call, grpc_slice method);

#endif
