/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLEAVE_SERVICE_INT_H
#define CLEAVE_SERVICE_INT_H

#include <pthread.h>

#include "common/dist/dist.h"
#include "worker/service/service.h"
#include "worker/store/store.h"

enum { MAX_SESSIONS = 256, MAX_PEER_LINKS = 16 };

typedef struct session session;

/* A link to or from another worker, under its name in worker.yaml. */
typedef struct peer_link {
  char name[CLV_WIRE_NAME + 1];
  clv_link *link;
} peer_link;

struct session {
  clv_service *service;
  int refs; /* the table, every link, every handler at work on it */
  clv_wire_id id;
  uint64_t epoch, seed, opened_ms;
  uint64_t send_credit; /* towards the owner, at first */
  char owner[CLV_WIRE_URI + 1], name[CLV_WIRE_NAME + 1];
  char **peers; /* identities that may attach */
  uint32_t n_peers;
  clv_wire_limits granted;
  unsigned threads; /* of its largest stage; under the service's lock */

  pthread_mutex_t loading; /* held through a LoadShard, before `lock` */
  pthread_mutex_t lock;    /* links, node creation */
  clv_pool *pool;
  clv_session_node *node; /* made by the first LoadShard */
  pthread_t compute;
  bool computing;
  clv_link *master;
  peer_link out[MAX_PEER_LINKS], in[MAX_PEER_LINKS];
  uint32_t n_out, n_in;
  bool gone; /* the master's link has ended: to be closed by the next tick */
  char why[CLV_ERR_TEXT];
};

struct clv_service {
  const clv_worker_config *config;
  clv_rpc_runtime *runtime;
  clv_rpc_server *server;
  clv_rpc_pem pem; /* for dialling peers; owned copies */
  clv_wire_id incarnation;
  clv_wire_limits limits;
  clv_lane_acceptor acceptor;
  uint64_t started_ms;
  uint64_t *credit;  /* [n_allow] what that identity's last HELLO grants; under lock */
  uint64_t nameless; /* refused callers without an identity, as the audit has told */
  bool draining;
  pthread_mutex_t lock; /* the table, pem, draining */
  session *sessions[MAX_SESSIONS];
  uint32_t n_sessions;
};

extern const clv_rpc_unary clv_service_methods[];
extern const size_t clv_service_n_methods;

clv_code clv_service_authorize(void *user, const clv_rpc_peer *peer, const char *method,
                               clv_err *err);
const clv_allow_spec *clv_service_allowed(const clv_service *s, const char *uri);
/* A copy of the credentials in use, for dialling: a reload may come in between. */
clv_code clv_service_pem(clv_service *s, clv_rpc_pem *ret, clv_err *err) CLV_USE_RESULT;
void clv_service_pem_done(clv_rpc_pem *pem);
/* Bytes of tensors that may be on their way to `uri`, as its last HELLO said. */
void clv_service_set_credit(clv_service *s, const char *uri, uint64_t bytes);
uint64_t clv_service_credit(clv_service *s, const char *uri);

/* sessions.c */
clv_code clv_session_open(clv_service *s, const char *uri, const clv_wire_open_request *request,
                          clv_wire_limits *ret_granted, clv_err *err) CLV_USE_RESULT;
/* The session, with a reference, if `uri` owns it and the epoch is right. A stranger's session and
 * one that does not exist give the same error. */
clv_code clv_session_find(clv_service *s, const clv_wire_id *id, uint64_t epoch, const char *uri,
                          session **ret, clv_err *err) CLV_USE_RESULT;
void clv_session_unref(session *s);
void clv_session_unrefp(session **s);
void clv_session_counts(session *s, clv_wire_close_reply *ret);
/* A stage of so many threads has been loaded. */
void clv_session_uses(session *s, unsigned threads);
/* Out of the table, threads joined, links closed; one audit line. BLOCKS. */
void clv_session_close(session *s, const char *verdict);
clv_code clv_session_find_link(void *user, const clv_frame *attach, const char *uri, clv_link **ret,
                               clv_err *err);
/* The node learns of all links known so far. Under s->lock. */
void clv_session_links(session *s);
clv_code clv_session_dial_peer(session *s, const char *name, clv_err *err) CLV_USE_RESULT;

/* load.c */
clv_code clv_session_load(session *s, const clv_wire_load_request *request,
                          clv_wire_load_reply *reply, clv_err *err) CLV_USE_RESULT;

#endif
