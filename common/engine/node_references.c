/* SPDX-License-Identifier: Apache-2.0
 *
 * References that outlive their context, at a node: connects the state machine of reference.h with
 * frames, the engine of contexts and, at the master, the program. A frame, a kept value or a tick
 * is an input of that state machine; after each input all its results are taken. The number of a
 * node is the index of its name in the session; 0 is the master. A worker does not know its own
 * name, so it uses MAX_NAMES as its number.
 */
#include <stdio.h>
#include <string.h>

#include "common/engine/node_int.h"

enum { FIRST_RETRY_MS = 100 };

static uint64_t get_now(const clv_session_node *n) { return clv_clock_now(&n->o.clock); }

static bool is_master(const clv_session_node *n) { return n->o.on_program != NULL; }

static uint32_t get_own_number(const clv_session_node *n) { return is_master(n) ? 0 : MAX_NAMES; }

static const clv_frame_kind frame_kinds[CLV_RREF_KINDS] = {
    [CLV_RREF_ACK] = CLV_REF_ACK,       [CLV_RREF_KEEP] = CLV_REF_KEEP,
    [CLV_RREF_USE] = CLV_REF_USE,       [CLV_RREF_FORK] = CLV_REF_FORK,
    [CLV_RREF_ACCEPT] = CLV_REF_ACCEPT, [CLV_RREF_DELETE] = CLV_REF_DELETE,
    [CLV_RREF_RENEW] = CLV_REF_RENEW,   [CLV_RREF_FETCH] = CLV_REF_FETCH,
    [CLV_RREF_VALUE] = CLV_REF_VALUE,
};

static clv_rref_kind get_rref_kind(clv_frame_kind kind) {
  clv_rref_kind i = 0;
  while (frame_kinds[i] != kind) i++;
  return i;
}

static void set_failure(clv_packet *p, const clv_rref_failure *why) {
  p->frame.has_failure = true;
  clv_frame_set_failure(&p->frame, why->code, why->text, why->hop);
}

static clv_rref_failure make_failure(const clv_err *why) {
  clv_rref_failure f = {.code = why->code};
  snprintf(f.text, sizeof f.text, "%.*s", CLV_WIRE_TEXT, why->text);
  return f;
}

/* ---- sending messages of references ---------------------------------------------------------- */

/* Sends a packet to the worker that it names, or to the master, which forwards it. */
static clv_code send_on_link(clv_session_node *n, clv_packet *p, clv_err *err) {
  CLV_AUTO(clv_link_unrefp)
  clv_link *link = p->frame.to[0] ? clv_node_link_to(n, p->frame.to) : NULL;
  if (link) return clv_link_send(link, p, err);
  if (!is_master(n)) return clv_node_send_to_program(n, p, err);
  clv_packet_free(p); /* the worker is lost: the packet is dropped */
  return CLV_OK;
}

/* Sends a packet. If a VALUE may not be sent, a failure is sent instead to the node that asked for
 * it. Does nothing about a link that has ended, because the link reports that itself. */
static void send_packet(clv_session_node *n, clv_packet *p) {
  clv_err err;
  clv_packet *failure_packet;
  clv_frame frame = p->frame;
  if (send_on_link(n, p, &err) == CLV_OK || err.code == CLV_UNAVAILABLE) return;
  if (frame.kind != CLV_REF_VALUE || !frame.n_tensors) return;
  clv_rref_failure why = make_failure(&err);
  if (clv_packet_new(n->o.pool, CLV_REF_VALUE, &failure_packet, &err) != CLV_OK) return;
  failure_packet->frame.reference = frame.reference;
  memcpy(failure_packet->frame.to, frame.to, sizeof frame.to);
  set_failure(failure_packet, &why);
  (void)!send_on_link(n, failure_packet, &err);
}

static void fill_reference_frame(clv_session_node *n, uint32_t to, const clv_rref_message *m,
                                 clv_frame *f) {
  memcpy(f->to, n->contexts->names[to], sizeof f->to);
  f->reference.ref_id = m->ref;
  f->reference.fork_id = m->fork;
  f->reference.ref_key = m->key;
  f->reference.message_number = m->number;
  f->reference.owner_lacks_fork = m->is_before_join;
  f->context = m->context;
  f->message_id = m->value;
  if (m->kind != CLV_RREF_USE) return;
  f->reference.is_for_owner = m->owner == to;
  if (m->owner < MAX_NAMES)
    memcpy(f->reference.node_name, n->contexts->names[m->owner], sizeof f->reference.node_name);
}

static void on_send(clv_session_node *n, const clv_rref_result *r) {
  const clv_rref_message *m = &r->message;
  clv_packet *p;
  clv_err ignored; /* without memory the message counts as lost, and is sent again later */
  if (clv_packet_new(n->o.pool, frame_kinds[m->kind], &p, &ignored) != CLV_OK) return;
  fill_reference_frame(n, r->to, m, &p->frame);
  if (m->failure) set_failure(p, m->failure);
  if (m->tensor) clv_packet_add_tensor(p, m->tensor);
  send_packet(n, p);
}

/* ---- other results of references ------------------------------------------------------------- */

/* Sets the failure of a packet. The text for an expired lease begins with the name of the silent
 * owner. */
static void set_owner_failure(clv_session_node *n, clv_packet *p, const clv_rref_use *u,
                              const clv_rref_failure *why) {
  clv_rref_failure at = *why;
  if (why->is_lease_expiry && u->owner < MAX_NAMES)
    snprintf(at.text, sizeof at.text, "'%s': %.200s", n->contexts->names[u->owner], why->text);
  set_failure(p, &at);
}

/* Sends a report about a reference to the program of this process; does nothing at a worker. */
static void send_report(clv_session_node *n, clv_frame_kind kind, const clv_rref_use *u,
                        clv_tensor *tensor, const clv_rref_failure *why) {
  clv_packet *p;
  clv_err err;
  if (!is_master(n)) return;
  if (clv_packet_new(n->o.pool, kind, &p, &err) != CLV_OK) {
    clv_notify(n->o.notice, "reference %llu: %s", (unsigned long long)u->ref, err.text);
    return;
  }
  p->frame.reference.ref_id = u->ref;
  p->frame.reference.fork_id = u->fork;
  if (why) set_owner_failure(n, p, u, why);
  if (tensor) clv_packet_add_tensor(p, tensor);
  n->o.on_program(n->o.user, p);
}

/* Delivers a fetched reference as a VALUE of a context, to this node's engine or to the node that
 * waits for it. */
static void deliver_value(clv_session_node *n, const clv_rref_use *u, clv_tensor *tensor,
                          const clv_rref_failure *why) {
  clv_packet *p;
  clv_err err;
  if (clv_packet_new(n->o.pool, CLV_VALUE, &p, &err) != CLV_OK) {
    clv_node_abort(n, u->context, &err, "reference");
    return;
  }
  p->frame.context = u->context;
  p->frame.message_id = u->value;
  if (why) set_owner_failure(n, p, u, why);
  if (tensor) clv_packet_add_tensor(p, tensor);
  if (u->node == get_own_number(n)) {
    clv_node_post(n, p);
    return;
  }
  memcpy(p->frame.to, n->contexts->names[u->node], sizeof p->frame.to);
  send_packet(n, p);
}

static void on_create(clv_session_node *n, const clv_rref_result *r) {
  const clv_rref_use *u = &r->handle;
  clv_err err;
  if (clv_contexts_keep_value(n->contexts, u->ref, u->context, u->value, &err) == CLV_OK) return;
  clv_rref_failure why = make_failure(&err);
  clv_rrefs_settle_entry(n->references, u->ref, NULL, &why, get_now(n));
}

/* Fetches a reference that was passed to this node, because a call here waits for its value. */
static void on_used(clv_session_node *n, const clv_rref_result *r) {
  clv_err err;
  if (clv_rrefs_fetch_value(n->references, r->handle.fork, get_now(n), &err) == CLV_OK) return;
  clv_rref_failure why = make_failure(&err);
  deliver_value(n, &r->handle, NULL, &why);
}

static void on_fetched(clv_session_node *n, const clv_rref_result *r) {
  const clv_rref_use *u = &r->handle;
  clv_err ignored;
  if (!u->context) {
    send_report(n, CLV_REF_VALUE, u, r->tensor, r->failure);
    return;
  }
  deliver_value(n, u, r->tensor, r->failure);
  (void)!clv_rrefs_release_handle(n->references, u->fork, get_now(n), &ignored);
}

static void on_joined(clv_session_node *n, const clv_rref_result *r) {
  send_report(n, CLV_REF_ACK, &r->handle, NULL, r->failure);
}

static void on_unused(clv_session_node *n, const clv_rref_result *r) {
  deliver_value(n, &r->handle, NULL, r->failure);
}

static void on_freed(clv_session_node *n, const clv_rref_result *r) {
  send_report(n, CLV_REF_DELETE, &r->handle, NULL, NULL);
}

/* Takes and handles all results, including those that handling a result causes. A value that the
 * engine is asked to keep arrives later, through clv_node_on_kept_value. */
static void take_reference_results(clv_session_node *n) {
  static void (*const on[CLV_RREF_RESULTS])(clv_session_node *, const clv_rref_result *) = {
      [CLV_RREF_RESULT_SEND] = on_send,     [CLV_RREF_RESULT_CREATE] = on_create,
      [CLV_RREF_RESULT_USED] = on_used,     [CLV_RREF_RESULT_JOINED] = on_joined,
      [CLV_RREF_RESULT_UNUSED] = on_unused, [CLV_RREF_RESULT_FETCHED] = on_fetched,
      [CLV_RREF_RESULT_FREED] = on_freed};
  clv_rref_result r;
  while (clv_rrefs_next_result(n->references, &r)) on[r.kind](n, &r);
}

void clv_node_on_kept_value(clv_session_node *n, uint64_t ref, clv_tensor *tensor,
                            const clv_shared_err *failed) {
  clv_rref_failure why = {0};
  if (!n->references) return;
  if (failed) {
    why.code = failed->code;
    memcpy(why.text, failed->text, sizeof why.text);
    memcpy(why.hop, failed->hop, sizeof why.hop);
  }
  clv_rrefs_settle_entry(n->references, ref, tensor, failed ? &why : NULL, get_now(n));
  take_reference_results(n);
}

clv_code clv_node_init_references(clv_session_node *n, clv_err *err) {
  uint32_t lease_ms = n->o.reference_lease_ms ? n->o.reference_lease_ms : CLV_WIRE_REF_LEASE_MS;
  clv_rrefs_options o = {.pool = n->o.pool,
                         .n_nodes = MAX_NAMES + 1,
                         .self = get_own_number(n),
                         .lease_ns = (uint64_t)lease_ms * 1000000u,
                         .retry_ns = (uint64_t)FIRST_RETRY_MS * 1000000u};
  return clv_rrefs_new(&o, &n->references, err);
}

/* ---- requests of the program ----------------------------------------------------------------- */

static clv_code handle_keep_request(clv_session_node *n, const clv_packet *p, clv_err *err) {
  const clv_frame *f = &p->frame;
  uint32_t owner;
  clv_rref_new_ids b = {f->reference.ref_id, f->reference.fork_id, f->reference.ref_key};
  if (f->n_tensors) return clv_rrefs_new_owned(n->references, &b, p->tensor[0], get_now(n), err);
  CLV_TRY(clv_contexts_index_of_name(n->contexts, f->to, &owner, err));
  return clv_rrefs_new_kept(n->references, &b, owner, f->context, f->message_id, get_now(n), err);
}

static clv_code handle_pass_request(clv_session_node *n, const clv_packet *p, clv_err *err) {
  const clv_frame *f = &p->frame;
  clv_rref_pass_args what = {
      .child_fork = f->reply_to, .context = f->context, .value = f->message_id};
  CLV_TRY(clv_contexts_index_of_name(n->contexts, f->to, &what.to, err));
  return clv_rrefs_pass_handle(n->references, f->reference.fork_id, &what, get_now(n), err);
}

static void deliver_use_failure(clv_session_node *n, const clv_frame *f,
                                const clv_rref_failure *why) {
  clv_err ignored;
  clv_rref_use u = {.context = f->context, .value = f->message_id};
  if (clv_contexts_index_of_name(n->contexts, f->to, &u.node, &ignored) == CLV_OK)
    deliver_value(n, &u, NULL, why);
}

/* Handles a request of the program. If the request fails, the failure is reported as its answer. */
static void apply_program_request(clv_session_node *n, const clv_packet *p) {
  const clv_frame *f = &p->frame;
  clv_rref_use u = {.ref = f->reference.ref_id, .fork = f->reference.fork_id};
  uint64_t now = get_now(n);
  clv_code code = CLV_OK;
  clv_err err = {0};
  if (f->kind == CLV_REF_KEEP) code = handle_keep_request(n, p, &err);
  if (f->kind == CLV_REF_USE) code = handle_pass_request(n, p, &err);
  if (f->kind == CLV_REF_FETCH) code = clv_rrefs_fetch_value(n->references, u.fork, now, &err);
  if (f->kind == CLV_REF_DELETE) code = clv_rrefs_release_handle(n->references, u.fork, now, &err);
  if (code == CLV_OK) return;
  clv_rref_failure why = make_failure(&err);
  if (f->kind == CLV_REF_KEEP) send_report(n, CLV_REF_ACK, &u, NULL, &why);
  if (f->kind == CLV_REF_FETCH) send_report(n, CLV_REF_VALUE, &u, NULL, &why);
  if (f->kind == CLV_REF_USE) deliver_use_failure(n, f, &why);
}

/* ---- messages of other nodes ----------------------------------------------------------------- */

/* Returns the number of the node that sent a message. In messages that the master forwards the
 * frame names the sender; else it is the peer of the link. */
static clv_code get_sender(clv_session_node *n, const clv_packet *p, uint32_t *ret, clv_err *err) {
  clv_frame_kind kind = p->frame.kind;
  bool is_forwarded = !is_master(n) && clv_node_is_master(n, p->received_by);
  bool is_from_master = is_forwarded && (kind == CLV_REF_KEEP || kind == CLV_REF_USE);
  const char *name = is_from_master ? ""
                     : is_forwarded ? p->frame.reference.node_name
                                    : clv_link_peer_name(p->received_by);
  return clv_contexts_index_of_name(n->contexts, name, ret, err);
}

static clv_code get_owner(clv_session_node *n, const clv_frame *f, uint32_t *ret, clv_err *err) {
  *ret = get_own_number(n);
  return f->reference.is_for_owner
             ? CLV_OK
             : clv_contexts_index_of_name(n->contexts, f->reference.node_name, ret, err);
}

static clv_code handle_message(clv_session_node *n, const clv_packet *p, clv_err *err) {
  const clv_frame *f = &p->frame;
  clv_rref_failure why = {0};
  uint32_t from;
  clv_rref_message m = {.kind = get_rref_kind(f->kind),
                        .number = f->reference.message_number,
                        .ref = f->reference.ref_id,
                        .fork = f->reference.fork_id,
                        .key = f->reference.ref_key,
                        .is_before_join = f->reference.owner_lacks_fork,
                        .context = f->context,
                        .value = f->message_id,
                        .tensor = f->n_tensors ? p->tensor[0] : NULL};
  CLV_TRY(get_sender(n, p, &from, err));
  if (f->kind == CLV_REF_USE) CLV_TRY(get_owner(n, f, &m.owner, err));
  if (f->has_failure) {
    why.code = f->failure.code;
    memcpy(why.text, f->failure.text, sizeof why.text);
    memcpy(why.hop, f->failure.detected_at, sizeof why.hop);
    m.failure = &why;
  }
  clv_rrefs_receive_message(n->references, from, &m, get_now(n));
  return CLV_OK;
}

static void publish_counts(clv_session_node *n) {
  clv_rref_counts c;
  clv_rrefs_count(n->references, &c);
  __atomic_store_n(&n->reference_counts.n_owned, c.n_entries, __ATOMIC_RELAXED);
  __atomic_store_n(&n->reference_counts.n_used, c.n_handles, __ATOMIC_RELAXED);
  __atomic_store_n(&n->reference_counts.n_pending, c.n_unacknowledged, __ATOMIC_RELAXED);
}

/* True for frame kinds that the master does not accept from a worker: it ignores such frames. */
static bool is_started_by_master(clv_frame_kind kind) {
  return kind == CLV_REF_KEEP || kind == CLV_REF_USE || kind == CLV_REF_FORK;
}

clv_code clv_node_on_reference(clv_session_node *n, clv_packet *p, bool *ret_kept, clv_err *err) {
  clv_frame_kind kind = p->frame.kind;
  clv_code code = CLV_OK;
  (void)ret_kept;
  if (!p->received_by)
    apply_program_request(n, p);
  else if (!is_master(n) || !is_started_by_master(kind))
    code = handle_message(n, p, err);
  take_reference_results(n);
  publish_counts(n);
  return code;
}

void clv_node_tick(clv_session_node *n) {
  clv_rrefs_tick(n->references, get_now(n));
  take_reference_results(n);
  publish_counts(n);
}
