/* SPDX-License-Identifier: Apache-2.0
 *
 * The inputs of a node's references: requests of the node, messages of other nodes, and time. Each
 * input function returns after it has handled all messages of this node to itself.
 */
#include "common/engine/reference/rref_int.h"

#include <stdlib.h>

enum { RENEWALS_PER_LEASE = 3, CHECKS_PER_LEASE = 6 };

/* ---- the table of references ----------------------------------------------------------------- */

static void init_peer(clv_rref_peer *p, uint32_t node) {
  p->node = node;
  clv_rref_list_init(&p->outbox);
  clv_rref_list_init(&p->forks);
  clv_rref_list_init(&p->handles);
  clv_rref_list_init(&p->children);
}

static void init_table(clv_rrefs *t, const clv_rrefs_options *o) {
  t->o = *o;
  t->due_ns = UINT64_MAX;
  t->entry_slab = clv_slab_make(sizeof(clv_rref_entry), CLV_WIRE_REFS, "references");
  t->fork_slab = clv_slab_make(sizeof(clv_rref_fork), CLV_WIRE_REFS, "users of references");
  t->handle_slab = clv_slab_make(sizeof(clv_rref_handle), CLV_WIRE_REFS, "uses of references");
  t->child_slab =
      clv_slab_make(sizeof(clv_rref_child), CLV_WIRE_REFS, "references being passed on");
  t->parked_slab = clv_slab_make(sizeof(clv_rref_parked), CLV_WIRE_REF_PARKED,
                                 "messages about unknown references");
  clv_rref_list_init(&t->fetching);
  clv_rref_list_init(&t->parked);
  clv_rref_list_init(&t->results);
  clv_rref_list_init(&t->to_self);
}

clv_code clv_rrefs_new(const clv_rrefs_options *options, clv_rrefs **ret, clv_err *err) {
  clv_rrefs *t;
  CLV_TRY(clv_alloc(1, sizeof *t, &t, err));
  init_table(t, options);
  clv_code code = clv_alloc(options->n_nodes, sizeof *t->peers, &t->peers, err);
  if (code != CLV_OK) {
    clv_rrefs_free(t);
    return code;
  }
  for (uint32_t i = 0; i < options->n_nodes; i++) init_peer(&t->peers[i], i);
  *ret = t;
  return CLV_OK;
}

static void forget_values(clv_rrefs *t) {
  for (uint32_t i = 0; i < t->entries.cap; i++)
    for (clv_rref_record *r = t->entries.buckets[i]; r; r = r->next)
      clv_rref_entry_clear((clv_rref_entry *)(void *)r);
  for (uint32_t i = 0; i < t->handles.cap; i++)
    for (clv_rref_record *r = t->handles.buckets[i]; r; r = r->next)
      clv_rref_handle_clear((clv_rref_handle *)(void *)r);
  clv_tensor_unref(t->last_tensor);
  clv_rref_failure_free(t->last_failure);
}

void clv_rrefs_free(clv_rrefs *t) {
  if (!t) return;
  forget_values(t);
  clv_rref_map *const maps[] = {&t->entries, &t->forks, &t->handles, &t->children};
  for (size_t i = 0; i < CLV_COUNT(maps); i++) free(maps[i]->buckets);
  clv_slab *const slabs[] = {&t->entry_slab, &t->fork_slab, &t->handle_slab, &t->child_slab,
                             &t->parked_slab};
  for (size_t i = 0; i < CLV_COUNT(slabs); i++) clv_slab_clear(slabs[i]);
  free(t->peers);
  free(t);
}

void clv_rrefs_count(const clv_rrefs *t, clv_rref_counts *ret) {
  *ret = (clv_rref_counts){.n_entries = t->entries.n,
                           .n_forks = t->forks.n,
                           .n_handles = t->handles.n,
                           .n_children = t->children.n,
                           .n_parked = t->parked_slab.n_records_used,
                           .n_unacknowledged = t->n_posts};
}

uint64_t clv_rrefs_due_ns(const clv_rrefs *t) { return t->due_ns; }

/* ---- messages of other nodes ----------------------------------------------------------------- */

static void on_ack(clv_rrefs *t, clv_rref_peer *p, const clv_rref_message *m) {
  clv_rref_post *post = clv_rref_end_acked_post(t, p, m->number);
  clv_code code = m->failure ? m->failure->code : CLV_OK;
  if (!post) return;
  if (post != &p->renew)
    clv_rref_on_ack(t, post, code);
  else if (code != CLV_OK) /* the owner has dropped the forks of this node */
    clv_rref_handles_fail_unknown(t, p, p->last_renew_ns);
}

/* Handles a message that has a sequence number. Returns the code of its ACK, or RREF_PARKED: no ACK
 * is sent yet. */
typedef int numbered_message_handler(clv_rrefs *t, uint32_t from, const clv_rref_message *m);
static numbered_message_handler *const numbered_handlers[CLV_RREF_KINDS] = {
    [CLV_RREF_KEEP] = clv_rref_on_keep,     [CLV_RREF_USE] = clv_rref_on_use,
    [CLV_RREF_FORK] = clv_rref_on_fork,     [CLV_RREF_ACCEPT] = clv_rref_on_accept,
    [CLV_RREF_DELETE] = clv_rref_on_delete, [CLV_RREF_RENEW] = clv_rref_on_renew,
    [CLV_RREF_FETCH] = clv_rref_on_fetch,
};

static void handle_message(clv_rrefs *t, clv_rref_peer *p, const clv_rref_message *m) {
  p->last_message_ns = t->now_ns;
  if (m->kind == CLV_RREF_ACK) {
    on_ack(t, p, m);
  } else if (m->kind == CLV_RREF_VALUE) {
    clv_rref_on_value(t, p->node, m);
  } else if (m->kind < CLV_RREF_KINDS && clv_rref_is_new_message(t, p, m->number)) {
    int answer = numbered_handlers[m->kind](t, p->node, m);
    if (answer != RREF_PARKED) clv_rref_queue_ack(t, p->node, m->number, (clv_code)answer);
  }
}

/* Every input function calls begin first and end last. */
static void begin_input(clv_rrefs *t, uint64_t now_ns) { t->now_ns = CLV_MAX(t->now_ns, now_ns); }

static void end_input(clv_rrefs *t) {
  clv_rref_message m;
  while (clv_rref_next_to_self(t, &m)) handle_message(t, &t->peers[t->o.self], &m);
}

void clv_rrefs_receive_message(clv_rrefs *t, uint32_t from, const clv_rref_message *m,
                               uint64_t now_ns) {
  if (from >= t->o.n_nodes) return;
  begin_input(t, now_ns);
  handle_message(t, &t->peers[from], m);
  end_input(t);
}

/* ---- requests of the node -------------------------------------------------------------------- */

/* Makes an entry and its handle together. Sends no KEEP to this node itself, because end_input
 * would handle the KEEP only after this function has returned. */
static clv_code make_owned(clv_rrefs *t, const clv_rref_new_ids *b, clv_tensor *tensor,
                           clv_err *err) {
  clv_rref_fork *f = NULL;
  CLV_TRY(clv_rref_entry_new_owned(t, b, tensor, &f, err));
  clv_code code = clv_rref_handle_new_owned(t, b, err);
  if (code != CLV_OK) clv_rref_entry_undo(t, f);
  return code;
}

clv_code clv_rrefs_new_owned(clv_rrefs *t, const clv_rref_new_ids *b, clv_tensor *tensor,
                             uint64_t now_ns, clv_err *err) {
  begin_input(t, now_ns);
  clv_code code = make_owned(t, b, tensor, err);
  end_input(t);
  return code;
}

clv_code clv_rrefs_new_kept(clv_rrefs *t, const clv_rref_new_ids *b, uint32_t owner,
                            uint64_t context, uint64_t value, uint64_t now_ns, clv_err *err) {
  begin_input(t, now_ns);
  clv_code code = clv_rref_handle_new_kept(t, b, owner, context, value, err);
  end_input(t);
  return code;
}

void clv_rrefs_settle_entry(clv_rrefs *t, uint64_t ref, clv_tensor *tensor,
                            const clv_rref_failure *why, uint64_t now_ns) {
  begin_input(t, now_ns);
  clv_rref_entry_settle(t, ref, tensor, why);
  end_input(t);
}

static clv_code apply_request(clv_rrefs *t, uint64_t fork, clv_rref_handle_event event,
                              const clv_rref_pass_args *what, uint64_t now_ns, clv_err *err) {
  begin_input(t, now_ns);
  clv_code code = clv_rref_handle_request(t, fork, event, what, err);
  end_input(t);
  return code;
}

clv_code clv_rrefs_pass_handle(clv_rrefs *t, uint64_t fork, const clv_rref_pass_args *what,
                               uint64_t now_ns, clv_err *err) {
  return apply_request(t, fork, RREF_HANDLE_PASS, what, now_ns, err);
}

clv_code clv_rrefs_fetch_value(clv_rrefs *t, uint64_t fork, uint64_t now_ns, clv_err *err) {
  return apply_request(t, fork, RREF_HANDLE_FETCH, NULL, now_ns, err);
}

clv_code clv_rrefs_release_handle(clv_rrefs *t, uint64_t fork, uint64_t now_ns, clv_err *err) {
  return apply_request(t, fork, RREF_HANDLE_RELEASE, NULL, now_ns, err);
}

/* ---- timers and leases of peers -------------------------------------------------------------- */

/* Handles an expired lease: frees the peer's forks and its parked messages, fails this node's
 * handles on the peer's values, and cancels the messages to the peer. */
static void drop_lost_peer(clv_rrefs *t, clv_rref_peer *p) {
  clv_rref_handles_fail_lost(t, p);
  clv_rref_parked_drop_of_node(t, p->node);
  clv_rref_forks_drop_lost(t, p);
  while (!clv_rref_list_is_empty(
      &p->outbox)) { /* the posts that are left concern only the peer: ACCEPT, RENEW */
    clv_rref_post *post = RREF_OF(clv_rref_post, link, p->outbox.next);
    clv_rref_post_cancel(t, post);
    if (post != &p->renew) clv_rref_on_ack(t, post, CLV_UNAVAILABLE);
  }
}

static void renew_if_due(clv_rrefs *t, clv_rref_peer *p) {
  bool needs_lease = !clv_rref_list_is_empty(&p->handles) || !clv_rref_list_is_empty(&p->children);
  if (!needs_lease || clv_rref_post_is_active(&p->renew) ||
      t->now_ns < p->last_renew_ns + t->o.lease_ns / RENEWALS_PER_LEASE)
    return;
  p->last_renew_ns = t->now_ns;
  clv_rref_post_new(t, &p->renew, CLV_RREF_RENEW, p->node);
}

/* Does the periodic work for a peer: checks its lease, renews ours, sends unacknowledged messages
 * again. overdue_ns: delay of this tick. */
static void tick_peer(clv_rrefs *t, clv_rref_peer *p, uint64_t overdue_ns) {
  if (!clv_rref_peer_has_lease(p)) return;
  if (p->node != t->o.self) {
    /* Messages of the peer may have arrived while this node was busy, and are not handled yet: so
     * the delay of the tick is not counted as silence. */
    p->last_message_ns = CLV_MIN(t->now_ns, p->last_message_ns + overdue_ns);
    if (t->now_ns - p->last_message_ns > t->o.lease_ns) drop_lost_peer(t, p);
    renew_if_due(t, p);
  }
  clv_rref_posts_resend(t, p);
  if (clv_rref_peer_has_lease(p))
    clv_rref_schedule_tick(t, t->now_ns + t->o.lease_ns / CHECKS_PER_LEASE);
}

void clv_rrefs_tick(clv_rrefs *t, uint64_t now_ns) {
  begin_input(t, now_ns);
  uint64_t overdue_ns = t->now_ns - CLV_MIN(t->due_ns, t->now_ns);
  t->due_ns = UINT64_MAX;
  for (uint32_t i = 0; i < t->o.n_nodes; i++) tick_peer(t, &t->peers[i], overdue_ns);
  clv_rref_fetches_resend(t);
  clv_rref_parked_expire(t);
  end_input(t);
}
