/* SPDX-License-Identifier: Apache-2.0
 *
 * A node in a session of contexts: which frames are the engine's, and where its own go.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/dist/node_int.h"

/* ---- links by name ----------------------------------------------------------------------------- */

clv_code clv_node_peer(clv_session_node *n, const char *name, clv_link *link, clv_err *err) {
  clv_code code = CLV_OK;
  clv_link *old = NULL;
  pthread_mutex_lock(&n->lock);
  uint32_t i = 0;
  while (i < n->n_peers && strcmp(n->peer_names[i], name) != 0) i++;
  if (!n->contexts || i == MAX_NAMES || strlen(name) > CLV_WIRE_NAME) {
    code = clv_fail(err, CLV_EXHAUSTED,
                    "no place for a link to '%s': at most %d in a session of "
                    "contexts",
                    name, MAX_NAMES);
  } else {
    if (i == n->n_peers) snprintf(n->peer_names[n->n_peers++], sizeof *n->peer_names, "%s", name);
    old = n->peers[i];
    n->peers[i] = link ? clv_link_ref(link) : NULL;
  }
  pthread_mutex_unlock(&n->lock);
  clv_link_unref(old);
  return code;
}

void clv_node_forget_peers(clv_session_node *n) {
  for (uint32_t i = 0; i < n->n_peers; i++) {
    pthread_mutex_lock(&n->lock);
    clv_link *old = n->peers[i];
    n->peers[i] = NULL;
    pthread_mutex_unlock(&n->lock);
    clv_link_unref(old);
  }
}

/* With a reference; NULL for nobody known. */
static clv_link *link_to(clv_session_node *n, const char *name) {
  clv_link *found = NULL;
  pthread_mutex_lock(&n->lock);
  for (uint32_t i = 0; i < n->n_peers; i++)
    if (n->peers[i] && strcmp(n->peer_names[i], name) == 0) found = clv_link_ref(n->peers[i]);
  pthread_mutex_unlock(&n->lock);
  return found;
}

clv_code clv_node_send_to(clv_session_node *n, const char *name, clv_packet *p, clv_err *err) {
  if (!name[0]) {
    clv_node_post(n, p);
    return CLV_OK;
  }
  CLV_AUTO(clv_link_unrefp) clv_link *link = link_to(n, name);
  if (!link) {
    clv_packet_free(p);
    return clv_fail(err, CLV_NOT_FOUND, "no link to a worker '%s'", name);
  }
  return clv_link_send(link, p, err);
}

/* ---- sending ----------------------------------------------------------------------------------- */

static void to_driver(clv_session_node *n, clv_packet *p) {
  clv_link *master = n->routes[n->o.n_stages + 1];
  clv_err err;
  if (n->o.on_driver)
    n->o.on_driver(n->o.user, p);
  else if (!master)
    clv_packet_free(p); /* the session ends */
  else if (clv_link_send(master, p, &err) != CLV_OK)
    clv_node_fail(n, err.code, clv_link_peer(master), "%s", err.text);
}

void clv_node_refuse(clv_session_node *n, const clv_err *why, const clv_frame *cause) {
  clv_packet *p;
  clv_err ignored;
  char hop[32];
  if (clv_packet_new(n->o.pool, CLV_ERROR, &p, &ignored) != CLV_OK) return;
  p->frame.context = cause->context;
  p->frame.stage = cause->stage;
  p->frame.reply_to = cause->message;
  snprintf(hop, sizeof hop, "module %u", cause->stage);
  clv_frame_set_failure(&p->frame, why->code, why->text, hop);
  to_driver(n, p);
}

/* Over the link to the worker that is named; without one the master passes it on. */
static void emit(void *user, clv_packet *p) {
  clv_session_node *n = user;
  clv_err err;
  CLV_AUTO(clv_link_unrefp) clv_link *link = p->frame.to[0] ? link_to(n, p->frame.to) : NULL;
  if (link) {
    if (clv_link_send(link, p, &err) != CLV_OK)
      clv_node_fail(n, err.code, clv_link_peer(link), "%s", err.text);
    return;
  }
  if (!p->frame.to[0] || !n->o.on_driver) {
    to_driver(n, p);
    return;
  }
  (void)!clv_fail(&err, CLV_NOT_FOUND, "no link to a worker '%s'", p->frame.to);
  clv_node_refuse(n, &err, &p->frame);
  clv_packet_free(p);
}

/* ---- handling ---------------------------------------------------------------------------------- */

static clv_code engine(clv_session_node *n, clv_packet *p, bool *ret_kept, clv_err *err) {
  if (n->o.runtime) clv_rpc_busy_enter(n->o.runtime);
  clv_code code = clv_contexts_packet(n->contexts, p, ret_kept, err);
  if (n->o.runtime) clv_rpc_busy_leave(n->o.runtime);
  return code;
}

/* At the master: what a worker sends is passed on, for a local call, for the program, or both. */
static bool at_master(clv_session_node *n, clv_packet *p, clv_code *ret_code, clv_err *err) {
  clv_frame_kind kind = p->frame.kind;
  bool kept = false, carries = kind == CLV_VALUE || kind == CLV_GRADIENT;
  if (carries && p->frame.to[0]) {
    emit(n, p);
    return true;
  }
  bool waits = carries && clv_contexts_waits(n->contexts, &p->frame);
  if (waits) *ret_code = engine(n, p, &kept, err);
  if (kind == CLV_GRADIENT && waits) {
    clv_packet_free(p);
    return true;
  }
  bool reported = p->from && (kind == CLV_ABORT || kind == CLV_ERROR);
  if (!carries && !reported && kind != CLV_FINISHED && kind != CLV_APPLIED) return false;
  n->o.on_driver(n->o.user, p);
  return true;
}

bool clv_node_context_frame(clv_session_node *n, clv_packet *p, clv_code *ret_code, clv_err *err) {
  clv_frame_kind kind = p->frame.kind;
  bool kept = false;
  *ret_code = CLV_OK;
  if (n->o.on_driver && at_master(n, p, ret_code, err)) return true;
  if (kind == CLV_STATE_GET || kind == CLV_STATE_PUT) {
    *ret_code = clv_contexts_hold(n->contexts, p, &kept, err);
    if (*ret_code != CLV_OK) clv_packet_free(p);
    return kept || *ret_code != CLV_OK;
  }
  bool mine = kind >= CLV_CALL || kind == CLV_END_CONTEXT || kind == CLV_ABORT;
  bool steps = kind == CLV_FORWARD || kind == CLV_BACKWARD || kind == CLV_COMMIT;
  if (!mine && !steps) return false;
  *ret_code = mine ? engine(n, p, &kept, err)
                   : clv_fail(err, CLV_PRECONDITION, "%s in a session of contexts",
                              clv_frame_kind_name(kind));
  if (!kept) clv_packet_free(p);
  return true;
}

/* ---- making ------------------------------------------------------------------------------------ */

/* A frame of state whose turn has come. */
static void obey(void *user, clv_packet *p) {
  clv_session_node *n = user;
  clv_frame cause = p->frame;
  clv_err err;
  if (clv_node_state_frame(n, p, &err) != CLV_OK) clv_node_refuse(n, &err, &cause);
  clv_packet_free(p);
}

static clv_stage *module_of(void *user, uint32_t module) { return clv_node_stage(user, module); }

clv_code clv_node_init_contexts(clv_session_node *n, clv_err *err) {
  clv_contexts_env env = {.pool = n->o.pool,
                          .next_message = &n->next_message,
                          .user = n,
                          .stage = module_of,
                          .emit = emit,
                          .obey = obey};
  if (n->o.n_stages != CLV_MODULE_ALL) return CLV_OK;
  CLV_TRY(clv_alloc(MAX_NAMES, sizeof *n->peers, &n->peers, err));
  CLV_TRY(clv_alloc(MAX_NAMES, sizeof *n->peer_names, &n->peer_names, err));
  return clv_contexts_new(&env, &n->contexts, err);
}

void clv_node_free_contexts(clv_session_node *n) {
  clv_contexts_free(n->contexts);
  if (n->peers) clv_node_forget_peers(n);
  free(n->peers);
  free(n->peer_names);
}

void clv_node_context_count(const clv_session_node *n, clv_context_counts *ret) {
  const clv_context_counts *c = n->contexts ? &n->contexts->counts : NULL;
  *ret = (clv_context_counts){0};
  if (!c) return;
  ret->contexts = __atomic_load_n(&c->contexts, __ATOMIC_RELAXED);
  ret->values = __atomic_load_n(&c->values, __ATOMIC_RELAXED);
  ret->calls_waiting = __atomic_load_n(&c->calls_waiting, __ATOMIC_RELAXED);
  ret->late_frames = __atomic_load_n(&c->late_frames, __ATOMIC_RELAXED);
}
