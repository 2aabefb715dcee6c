/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLEAVE_NODE_INT_H
#define CLEAVE_NODE_INT_H

#include <pthread.h>

#include "common/dist/context_int.h"

struct clv_session_node {
  clv_node_options o;
  pthread_mutex_t lock;
  pthread_cond_t arrived;
  clv_packet *first, *last;
  uint32_t n_queued; /* read without the lock by the spinning thread */
  bool stop, sleeping;

  clv_stage **stages; /* [n_stages + 1], NULL where not local */
  clv_link **routes;  /* [n_stages + 2], the driver last */
  clv_frame commit;   /* the decision that some links have not been told yet */
  uint64_t commits_sent;
  bool *owes_commit; /* [n_stages + 2], set at the first route of a link */
  bool *carries;     /* [n_stages + 2], the master itself feeds that stage */
  uint32_t (
      *puts)[CLV_STATE_GRADIENTS + 1]; /* [n_stages + 1] items of a STATE_PUT that have come */
  uint64_t next_message;

  clv_contexts *contexts; /* NULL in a session of steps */
  clv_link **peers;       /* [MAX_NAMES], under `lock` */
  char (*peer_names)[CLV_WIRE_NAME + 1];
  uint32_t n_peers;

  bool failed;
  clv_err failure;
  char hop[CLV_WIRE_NAME + 1];
};

/* What is refused in a session of contexts is answered; the session goes on. */
void clv_node_refuse(clv_session_node *n, const clv_err *why, const clv_frame *cause);

/* STATE_GET or STATE_PUT. The packet stays the caller's. */
clv_code clv_node_state_frame(clv_session_node *n, clv_packet *p, clv_err *err) CLV_USE_RESULT;

/* The engine, if n_stages says that this is a session of contexts. */
clv_code clv_node_init_contexts(clv_session_node *n, clv_err *err) CLV_USE_RESULT;
void clv_node_free_contexts(clv_session_node *n);

/* Whether a frame of a session of contexts is the engine's, or one for the driver. Takes the packet if
 * so, whatever comes of it. */
bool clv_node_context_frame(clv_session_node *n, clv_packet *p, clv_code *ret_code, clv_err *err);

#endif
