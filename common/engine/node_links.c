/* SPDX-License-Identifier: Apache-2.0
 *
 * Sends packets of a node: to itself, to its program or its master, to other workers over their
 * links. Posts packets and ended work to the inbox; links do that from gRPC's queue threads.
 */
#include <stdio.h>
#include <string.h>

#include "common/engine/node_int.h"
#include "common/engine/wake_int.h"

clv_module *clv_node_module(clv_session_node *n, uint32_t module) {
  return module < CLV_MODULE_ALL ? n->modules[module] : NULL;
}

/* ---- links of a node ------------------------------------------------------------------------- */

/* Sets *place to a new reference to `link`, or to NULL if `link` is NULL, and returns the old link.
 * Caller holds the lock. */
static clv_link *swap_link(clv_link **place, clv_link *link) {
  clv_link *old = *place;
  *place = link ? clv_link_ref(link) : NULL;
  return old;
}

void clv_node_set_master(clv_session_node *n, clv_link *link) {
  pthread_mutex_lock(&n->lock);
  clv_link *old = swap_link(&n->master, link);
  pthread_mutex_unlock(&n->lock);
  clv_link_unref(old);
}

bool clv_node_is_master(clv_session_node *n, const clv_link *link) {
  pthread_mutex_lock(&n->lock);
  bool is = link == n->master;
  pthread_mutex_unlock(&n->lock);
  return is;
}

clv_code clv_node_add_peer(clv_session_node *n, const char *name, clv_link *link, clv_err *err) {
  clv_code code = CLV_OK;
  clv_link *old = NULL;
  pthread_mutex_lock(&n->lock);
  uint32_t i = 0;
  while (i < n->n_peers && strcmp(n->peer_names[i], name) != 0) i++;
  if (i == MAX_NAMES || strlen(name) > CLV_WIRE_NAME) {
    code = clv_fail(err, CLV_EXHAUSTED, "no link to '%s' added: a session has at most %d", name,
                    MAX_NAMES);
  } else {
    if (i == n->n_peers) snprintf(n->peer_names[n->n_peers++], sizeof *n->peer_names, "%s", name);
    old = swap_link(&n->peers[i], link);
  }
  pthread_mutex_unlock(&n->lock);
  clv_link_unref(old);
  return code;
}

void clv_node_remove_peers(clv_session_node *n) {
  for (uint32_t i = 0; i < n->n_peers; i++) {
    pthread_mutex_lock(&n->lock);
    clv_link *old = swap_link(&n->peers[i], NULL);
    pthread_mutex_unlock(&n->lock);
    clv_link_unref(old);
  }
}

/* ---- executors of a node's work -------------------------------------------------------------- */

static void count_and_start_work(void *user, clv_work *w) {
  clv_session_node *n = user;
  clv_inbox_begin_work(&n->inbox, w);
  n->o.executor.start(n->o.executor.user, w);
}

const clv_executor *clv_node_executor(clv_session_node *n) {
  n->executor = (clv_executor){n, count_and_start_work};
  return n->o.executor.start ? &n->executor : NULL;
}

/* Allocates a copy of a failure; NULL: no memory. Failures are rare, so work records have no space
 * for them. */
static clv_err *copy_failure(const clv_err *why) {
  clv_err *copy, ignored;
  if (clv_alloc(1, sizeof *copy, &copy, &ignored) != CLV_OK) return NULL;
  *copy = *why;
  return copy;
}

void clv_node_work_ended(clv_session_node *n, clv_work *w, clv_code code, const clv_err *why) {
  w->code = code;
  w->failure = code != CLV_OK && why ? copy_failure(why) : NULL;
  clv_inbox_post_ended_work(&n->inbox, w);
}

/* ---- posting to the inbox -------------------------------------------------------------------- */

/* Posts a packet. The posting thread decides whether the packet must wake the compute thread. */
void clv_node_post(clv_session_node *n, clv_packet *p) {
  bool waits = clv_inbox_begin_post(&n->inbox) &&
               clv_contexts_packet_can_wait(n->contexts, n->inbox.queued_kinds, p);
  clv_inbox_end_post(&n->inbox, p, waits ? CLV_MAX(clv_clock_now(&n->o.clock), 1) : 0);
}

/* ---- sending packets of a node --------------------------------------------------------------- */

/* Returns a new reference to the link in *place; NULL: there is none. */
static clv_link *ref_link(clv_session_node *n, clv_link *const *place) {
  pthread_mutex_lock(&n->lock);
  clv_link *link = *place ? clv_link_ref(*place) : NULL;
  pthread_mutex_unlock(&n->lock);
  return link;
}

/* Returns a new reference to the link of a worker; NULL: no worker of that name has a link. */
clv_link *clv_node_link_to(clv_session_node *n, const char *name) {
  clv_link *found = NULL;
  pthread_mutex_lock(&n->lock);
  for (uint32_t i = 0; i < n->n_peers; i++)
    if (n->peers[i] && strcmp(n->peer_names[i], name) == 0) found = clv_link_ref(n->peers[i]);
  pthread_mutex_unlock(&n->lock);
  return found;
}

/* Records a failure for status. Every node that a failed value reaches reports the failure, so only
 * failures that are sent to the master are counted. */
static void record_failure(clv_session_node *n, const clv_frame *f) {
  if (!clv_frame_is_failure(f)) return;
  pthread_mutex_lock(&n->lock);
  n->failure.count++;
  n->failure.at_ns = clv_clock_now(&n->o.clock);
  n->failure.code = f->failure.code;
  memcpy(n->failure.text, f->failure.text, sizeof n->failure.text);
  pthread_mutex_unlock(&n->lock);
}

/* Sends a packet to the program, or to the master. Not an error: a link that has ended, because it
 * reports that itself; no link at all, because the session is ending then. */
clv_code clv_node_send_to_program(clv_session_node *n, clv_packet *p, clv_err *err) {
  if (n->o.on_program) {
    n->o.on_program(n->o.user, p);
    return CLV_OK;
  }
  record_failure(n, &p->frame);
  CLV_AUTO(clv_link_unrefp) clv_link *master = ref_link(n, &n->master);
  if (!master) {
    clv_packet_free(p);
    return CLV_OK;
  }
  clv_code code = clv_link_send(master, p, err);
  return code == CLV_UNAVAILABLE ? CLV_OK : code;
}

clv_request clv_node_request_of_frame(const clv_frame *f) {
  return (clv_request){
      .kind = f->kind, .context = f->context, .message = f->message_id, .module = f->module};
}

/* Sends a failure. kind: ERROR refuses one message, ABORT ends its context. */
static void send_failure(clv_session_node *n, clv_frame_kind kind, const clv_err *why,
                         const clv_request *c, const char *hop) {
  clv_packet *p;
  clv_err ignored;
  if (clv_packet_new(n->o.pool, kind, &p, &ignored) != CLV_OK) return;
  p->frame.context = c->context;
  p->frame.message_id = ++n->next_message;
  p->frame.module = c->module;
  p->frame.reply_to = c->message;
  clv_frame_set_failure(&p->frame, why->code, why->text, hop);
  memcpy(p->frame.failure.offending_value, why->offending_value, sizeof why->offending_value);
  /* a failure to send the report cannot be reported */
  (void)!clv_node_send_to_program(n, p, &ignored);
}

void clv_node_abort(clv_session_node *n, uint64_t id, const clv_err *why, const char *hop) {
  const clv_request c = {.kind = CLV_ABORT, .context = id};
  send_failure(n, CLV_ABORT, why, &c, hop);
}

void clv_node_refuse(clv_session_node *n, const clv_err *why, const clv_request *c) {
  char hop[32] = "";
  bool is_for_module = c->kind == CLV_CALL || c->kind == CLV_APPLY || c->kind == CLV_STATE_GET ||
                       c->kind == CLV_STATE_PUT || c->kind == CLV_UNLOAD ||
                       (c->kind >= CLV_STATE_SAVE && c->kind <= CLV_STATE_REMOVE);
  if (is_for_module && c->module != CLV_MODULE_ALL)
    snprintf(hop, sizeof hop, "module %u", c->module);
  send_failure(n, CLV_ERROR, why, c, hop);
}

/* Sends a packet to the worker that it names, or to the master, which forwards it. If the packet
 * may not be sent, or the link has ended, its context fails at this node and ABORT is sent. An
 * ABORT that cannot be sent is dropped. */
void clv_node_send(clv_session_node *n, clv_packet *p) {
  clv_err err;
  p->coalesces_with_next = true;
  clv_code code = CLV_OK;
  const clv_request c = clv_node_request_of_frame(&p->frame);
  CLV_AUTO(clv_link_unrefp)
  clv_link *link = p->frame.to[0] ? clv_node_link_to(n, p->frame.to) : NULL;
  if (link) {
    code = clv_link_send(link, p, &err);
  } else if (!p->frame.to[0] || !n->o.on_program) {
    code = clv_node_send_to_program(n, p, &err);
  } else {
    (void)!clv_fail(&err, CLV_NOT_FOUND, "no link to a worker '%s'", p->frame.to);
    clv_node_refuse(n, &err, &c);
    clv_packet_free(p);
  }
  if (code == CLV_OK || c.kind == CLV_ABORT) return;
  if (clv_contexts_fail_context(n->contexts, c.context, c.module, &err)) return;
  send_failure(n, CLV_ABORT, &err, &c, clv_frame_kind_name(c.kind));
}

void clv_node_flush(clv_session_node *n) {
  clv_link *links[1 + MAX_NAMES];
  uint32_t n_links = 0;
  pthread_mutex_lock(&n->lock);
  if (n->master) links[n_links++] = clv_link_ref(n->master);
  for (uint32_t i = 0; i < n->n_peers; i++)
    if (n->peers[i]) links[n_links++] = clv_link_ref(n->peers[i]);
  pthread_mutex_unlock(&n->lock);
  for (uint32_t i = 0; i < n_links; i++) {
    clv_link_flush(links[i]);
    clv_link_unref(links[i]);
  }
}

clv_code clv_node_send_to(clv_session_node *n, const char *name, clv_packet *p, clv_err *err) {
  if (!name[0]) {
    clv_node_post(n, p);
    return CLV_OK;
  }
  CLV_AUTO(clv_link_unrefp) clv_link *link = clv_node_link_to(n, name);
  if (link) return clv_link_send(link, p, err);
  clv_packet_free(p);
  return clv_fail(err, CLV_NOT_FOUND, "no link to a worker '%s'", name);
}
