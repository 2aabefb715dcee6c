/* SPDX-License-Identifier: Apache-2.0
 *
 * The user's side of references (reference.h): handles, and their children, which are handles that
 * this node passed on and that the owner does not know yet.
 */
#include "common/engine/reference/rref_int.h"

/* number of FETCHes sent per lease for a value that the owner has promised */
enum { FETCHES_PER_LEASE = 6 };

static clv_code run_handle_event(clv_rrefs *t, clv_rref_handle *h, clv_rref_handle_event event,
                                 clv_rref_event_args *given);
static clv_code run_child_event(clv_rrefs *t, clv_rref_child *c, clv_rref_child_event event,
                                clv_rref_event_args *given);

/* ---- records and actions of handles ---------------------------------------------------------- */

void clv_rref_handle_clear(clv_rref_handle *h) {
  clv_tensor_unref(h->tensor);
  clv_rref_failure_free(h->fetch_failure);
  h->tensor = NULL;
  h->fetch_failure = NULL;
}

static clv_code send_keep(clv_rrefs *t, void *record, clv_rref_event_args *given) {
  clv_rref_handle *h = record;
  (void)given;
  clv_rref_post_new(t, &h->join_post, CLV_RREF_KEEP, h->owner);
  return CLV_OK;
}

static clv_code send_fork(clv_rrefs *t, void *record, clv_rref_event_args *given) {
  clv_rref_handle *h = record;
  (void)given;
  clv_rref_post_new(t, &h->join_post, CLV_RREF_FORK, h->owner);
  return CLV_OK;
}

static clv_code send_delete(clv_rrefs *t, void *record, clv_rref_event_args *given) {
  clv_rref_handle *h = record;
  (void)given;
  clv_rref_post_new(t, &h->delete_post, CLV_RREF_DELETE, h->owner);
  return CLV_OK;
}

static clv_code send_fetch(clv_rrefs *t, void *record, clv_rref_event_args *given) {
  clv_rref_handle *h = record;
  (void)given;
  if (h->wants_value) return CLV_OK;
  h->wants_value = true;
  clv_rref_list_add(&t->fetching, &h->fetching);
  clv_rref_post_new(t, &h->fetch_post, CLV_RREF_FETCH, h->owner);
  return CLV_OK;
}

static clv_code send_accept(clv_rrefs *t, void *record, clv_rref_event_args *given) {
  clv_rref_handle *h = record;
  (void)given;
  if (h->parent == RREF_NO_NODE) return CLV_OK;
  clv_rref_post_new(t, &h->accept_post, CLV_RREF_ACCEPT, h->parent);
  h->parent = RREF_NO_NODE;
  return CLV_OK;
}

static clv_code note_joined(clv_rrefs *t, void *record, clv_rref_event_args *given) {
  (void)given;
  ((clv_rref_handle *)record)->joined_ns = t->now_ns;
  return CLV_OK;
}

/* Cancels all messages to the owner, which does not know the handle or is lost, and records the
 * failure. */
static clv_code cancel_owner_posts(clv_rrefs *t, void *record, clv_rref_event_args *given) {
  clv_rref_handle *h = record;
  h->failure = clv_rref_failure_of_code(given->code);
  clv_rref_post_cancel(t, &h->join_post);
  clv_rref_post_cancel(t, &h->fetch_post);
  clv_rref_post_cancel(t, &h->delete_post);
  clv_rref_list_remove(&h->peer_link);
  return CLV_OK;
}

static void cancel_fetch_wait(clv_rrefs *t, clv_rref_handle *h) {
  h->wants_value = false;
  clv_rref_list_remove(&h->fetching);
  clv_rref_post_cancel(t, &h->fetch_post);
}

static clv_code cancel_fetch(clv_rrefs *t, void *record, clv_rref_event_args *given) {
  clv_rref_handle *h = record;
  (void)given;
  cancel_fetch_wait(t, h);
  clv_rref_unqueue_report(&h->fetched, &h->record);
  clv_rref_handle_clear(h);
  return CLV_OK;
}

static clv_code refetch_soon(clv_rrefs *t, void *record, clv_rref_event_args *given) {
  clv_rref_handle *h = record;
  (void)given;
  h->fetch_ns = t->now_ns + t->o.retry_ns;
  clv_rref_schedule_tick(t, h->fetch_ns);
  return CLV_OK;
}

static clv_code refetch_later(clv_rrefs *t, void *record, clv_rref_event_args *given) {
  clv_rref_handle *h = record;
  (void)given;
  h->fetch_ns = t->now_ns + t->o.lease_ns / FETCHES_PER_LEASE;
  clv_rref_schedule_tick(t, h->fetch_ns);
  return CLV_OK;
}

static clv_code report_used(clv_rrefs *t, void *record, clv_rref_event_args *given) {
  clv_rref_handle *h = record;
  (void)given;
  clv_rref_queue_report(t, &h->report, RREF_USED_RESULT, &h->record);
  return CLV_OK;
}

static clv_code report_joined(clv_rrefs *t, void *record, clv_rref_event_args *given) {
  clv_rref_handle *h = record;
  if (!h->is_created_here) return CLV_OK;
  h->report.code = given->code;
  clv_rref_queue_report(t, &h->report, RREF_JOIN_RESULT, &h->record);
  return CLV_OK;
}

/* Queues the FETCHED result of a handle. It replaces a FETCHED result that was not taken yet, which
 * has the same value. */
static clv_code report_value(clv_rrefs *t, void *record, clv_rref_event_args *given) {
  clv_rref_handle *h = record;
  cancel_fetch_wait(t, h);
  clv_rref_handle_clear(h);
  if (given->tensor)
    h->tensor = clv_tensor_ref(given->tensor);
  else
    h->fetch_failure = clv_rref_failure_copy(given->failure);
  clv_rref_queue_report(t, &h->fetched, RREF_FETCHED_RESULT, &h->record);
  return CLV_OK;
}

static clv_code report_failure(clv_rrefs *t, void *record, clv_rref_event_args *given) {
  clv_rref_event_args why = {.failure = clv_rref_failure_of_code(given->code)};
  return ((clv_rref_handle *)record)->wants_value ? report_value(t, record, &why) : CLV_OK;
}

static clv_code check_waiters(clv_rrefs *t, void *record, clv_rref_event_args *given) {
  clv_rref_handle *h = record;
  if (!clv_rref_list_is_empty(&h->children)) return CLV_OK;
  return run_handle_event(t, h,
                          clv_rref_post_is_active(&h->accept_post) ? RREF_HANDLE_HAS_NO_CHILDREN
                                                                   : RREF_HANDLE_HAS_NO_WAITERS,
                          given);
}

static clv_code free_handle(clv_rrefs *t, void *record, clv_rref_event_args *given) {
  clv_rref_handle *h = record;
  (void)given;
  clv_rref_list_remove(&h->peer_link);
  clv_rref_record_drop(&t->handle_slab, &t->handles, h);
  return CLV_OK;
}

/* ---- records and actions of children --------------------------------------------------------- */

static clv_code new_child(clv_rrefs *t, clv_rref_handle *h, const clv_rref_pass_args *what,
                          clv_rref_child **ret, clv_err *err) {
  clv_rref_child *c;
  CLV_TRY(clv_rref_record_new(t, &t->child_slab, &t->children, what->child_fork, &c, err));
  c->parent = h;
  c->ref = h->ref;
  c->owner = h->owner;
  c->context = what->context;
  c->value = what->value;
  c->use.to = what->to;
  clv_rref_peer_start_lease(t, &t->peers[what->to]);
  clv_rref_list_add(&h->children, &c->parent_link);
  clv_rref_list_add(&t->peers[what->to].children, &c->peer_link);
  *ret = c;
  return CLV_OK;
}

/* Makes a child of the handle. If this node is the owner and the handle is JOINED, adds the fork at
 * once instead. */
static clv_code add_child(clv_rrefs *t, void *record, clv_rref_event_args *given) {
  const clv_rref_pass_args *what = given->passing;
  const clv_rref_handle *h = record;
  clv_rref_event_args none = {0};
  clv_rref_child *c = clv_rref_record_find(&t->children, what->child_fork);
  if (h->owner == t->o.self && h->record.state == RREF_HANDLE_JOINED)
    return clv_rref_fork_pass(t, h->ref, what, given->err);
  if (c && run_child_event(t, c, RREF_CHILD_PASSED, &none) != CLV_OK)
    return clv_fail(given->err, CLV_EXISTS, "id %llu is taken",
                    (unsigned long long)what->child_fork);
  CLV_TRY(new_child(t, record, what, &c, given->err));
  return run_child_event(t, c, RREF_CHILD_PASSED, &none);
}

static clv_code send_use(clv_rrefs *t, void *record, clv_rref_event_args *given) {
  clv_rref_child *c = record;
  (void)given;
  clv_rref_post_new(t, &c->use, CLV_RREF_USE, c->use.to);
  return CLV_OK;
}

static clv_code report_unused(clv_rrefs *t, void *record, clv_rref_event_args *given) {
  clv_rref_child *c = record;
  c->unused.code = given->code;
  clv_rref_queue_report(t, &c->unused, RREF_CHILD_UNUSED_RESULT, &c->record);
  return CLV_OK;
}

static clv_code free_child(clv_rrefs *t, void *record, clv_rref_event_args *given) {
  clv_rref_child *c = record;
  clv_rref_handle *h = c->parent;
  clv_rref_post_cancel(t, &c->use);
  clv_rref_list_remove(&c->parent_link);
  clv_rref_list_remove(&c->peer_link);
  clv_rref_record_drop(&t->child_slab, &t->children, c);
  return check_waiters(t, h, given);
}

/* ---- actions of handles and children --------------------------------------------------------- */

static clv_rref_action_fn *const handle_action_fns[RREF_ACTIONS] = {
    [RREF_SEND_KEEP] = send_keep,
    [RREF_SEND_FORK] = send_fork,
    [RREF_SEND_FETCH] = send_fetch,
    [RREF_SEND_ACCEPT] = send_accept,
    [RREF_SEND_DELETE] = send_delete,
    [RREF_ADD_CHILD] = add_child,
    [RREF_NOTE_JOINED] = note_joined,
    [RREF_CANCEL_OWNER_POSTS] = cancel_owner_posts,
    [RREF_CANCEL_FETCH] = cancel_fetch,
    [RREF_REFETCH_SOON] = refetch_soon,
    [RREF_REFETCH_LATER] = refetch_later,
    [RREF_REPORT_USED] = report_used,
    [RREF_REPORT_JOINED] = report_joined,
    [RREF_REPORT_FAILURE] = report_failure,
    [RREF_REPORT_VALUE] = report_value,
    [RREF_CHECK] = check_waiters,
    [RREF_FREE] = free_handle,
};

static clv_code run_handle_event(clv_rrefs *t, clv_rref_handle *h, clv_rref_handle_event event,
                                 clv_rref_event_args *given) {
  uint8_t none = RREF_HANDLE_NONE;
  return clv_rref_on_event(t, RREF_HANDLES, handle_action_fns, h, h ? &h->record.state : &none,
                           event, given);
}

static clv_rref_action_fn *const child_action_fns[RREF_ACTIONS] = {
    [RREF_SEND_USE] = send_use, [RREF_REPORT_UNUSED] = report_unused, [RREF_FREE] = free_child};

static clv_code run_child_event(clv_rrefs *t, clv_rref_child *c, clv_rref_child_event event,
                                clv_rref_event_args *given) {
  uint8_t none = RREF_CHILD_NONE;
  return clv_rref_on_event(t, RREF_CHILDREN, child_action_fns, c, c ? &c->record.state : &none,
                           event, given);
}

static void apply_handle_event(clv_rrefs *t, clv_rref_handle *h, clv_rref_handle_event event,
                               clv_code code) {
  clv_rref_event_args given = {.code = code};
  (void)run_handle_event(t, h, event, &given);
}

static void apply_child_event(clv_rrefs *t, clv_rref_child *c, clv_rref_child_event event,
                              clv_code code) {
  clv_rref_event_args given = {.code = code};
  (void)run_child_event(t, c, event, &given);
}

/* ---- making handles -------------------------------------------------------------------------- */

/* Makes a handle with the ids of a message, and applies its first event. CLV_EXISTS: the id is in
 * use. */
static clv_code new_handle(clv_rrefs *t, const clv_rref_message *m, uint32_t parent,
                           clv_rref_handle_event event, clv_err *err) {
  clv_rref_event_args given = {0};
  clv_rref_handle *h = clv_rref_record_find(&t->handles, m->fork);
  if (h && run_handle_event(t, h, event, &given) != CLV_OK)
    return clv_fail(err, CLV_EXISTS, "id %llu is taken", (unsigned long long)m->fork);
  CLV_TRY(clv_rref_record_new(t, &t->handle_slab, &t->handles, m->fork, &h, err));
  h->ref = m->ref;
  h->key = m->key;
  h->owner = m->owner;
  h->parent = parent;
  h->context = m->context;
  h->value = m->value;
  h->is_created_here = event == RREF_HANDLE_KEPT || event == RREF_HANDLE_OWNED;
  clv_rref_list_init(&h->children);
  clv_rref_peer_start_lease(t, &t->peers[h->owner]);
  clv_rref_list_add(&t->peers[h->owner].handles, &h->peer_link);
  return run_handle_event(t, h, event, &given);
}

clv_code clv_rref_handle_new_owned(clv_rrefs *t, const clv_rref_new_ids *b, clv_err *err) {
  clv_rref_message m = {.ref = b->ref, .fork = b->fork, .key = b->key, .owner = t->o.self};
  return new_handle(t, &m, RREF_NO_NODE, RREF_HANDLE_OWNED, err);
}

clv_code clv_rref_handle_new_kept(clv_rrefs *t, const clv_rref_new_ids *b, uint32_t owner,
                                  uint64_t context, uint64_t value, clv_err *err) {
  clv_rref_message m = {.ref = b->ref,
                        .fork = b->fork,
                        .key = b->key,
                        .owner = owner,
                        .context = context,
                        .value = value};
  return new_handle(t, &m, RREF_NO_NODE, RREF_HANDLE_KEPT, err);
}

/* ---- answers of the owner -------------------------------------------------------------------- */

static void handle_join_answer(clv_rrefs *t, clv_rref_post *post, clv_code code) {
  apply_handle_event(t, RREF_OF(clv_rref_handle, join_post, post),
                     code == CLV_OK ? RREF_HANDLE_JOIN_ACKED : RREF_HANDLE_JOIN_REFUSED, code);
}

static void handle_accept_answer(clv_rrefs *t, clv_rref_post *post, clv_code code) {
  clv_rref_event_args given = {.code = code};
  (void)check_waiters(t, RREF_OF(clv_rref_handle, accept_post, post), &given);
}

static void handle_delete_answer(clv_rrefs *t, clv_rref_post *post, clv_code code) {
  apply_handle_event(t, RREF_OF(clv_rref_handle, delete_post, post), RREF_HANDLE_DELETE_ACKED,
                     code);
}

static void handle_fetch_answer(clv_rrefs *t, clv_rref_post *post, clv_code code) {
  apply_handle_event(t, RREF_OF(clv_rref_handle, fetch_post, post),
                     code == CLV_OK ? RREF_HANDLE_FETCH_ACKED : RREF_HANDLE_FETCH_REFUSED, code);
}

static void handle_use_answer(clv_rrefs *t, clv_rref_post *post, clv_code code) {
  if (post->is_from_owner)
    clv_rref_fork_on_event(t, RREF_OF(clv_rref_fork, use, post),
                           code == CLV_OK ? RREF_FORK_USE_ACKED : RREF_FORK_USE_REFUSED, code);
  else
    apply_child_event(t, RREF_OF(clv_rref_child, use, post),
                      code == CLV_OK ? RREF_CHILD_USE_ACKED : RREF_CHILD_USE_REFUSED, code);
}

void clv_rref_on_ack(clv_rrefs *t, clv_rref_post *post, clv_code code) {
  static void (*const answered[CLV_RREF_KINDS])(clv_rrefs *, clv_rref_post *, clv_code) = {
      [CLV_RREF_KEEP] = handle_join_answer,     [CLV_RREF_FORK] = handle_join_answer,
      [CLV_RREF_ACCEPT] = handle_accept_answer, [CLV_RREF_DELETE] = handle_delete_answer,
      [CLV_RREF_USE] = handle_use_answer,       [CLV_RREF_FETCH] = handle_fetch_answer,
  };
  answered[post->kind](t, post, code);
}

/* ---- messages to a user ---------------------------------------------------------------------- */

int clv_rref_on_use(clv_rrefs *t, uint32_t from, const clv_rref_message *m) {
  clv_err why;
  if (m->owner >= t->o.n_nodes) return CLV_NOT_FOUND;
  bool is_from_owner = m->owner == from && !m->is_before_join;
  return new_handle(t, m, is_from_owner ? RREF_NO_NODE : from,
                    is_from_owner ? RREF_HANDLE_RECEIVED_FROM_OWNER : RREF_HANDLE_RECEIVED, &why);
}

int clv_rref_on_accept(clv_rrefs *t, uint32_t from, const clv_rref_message *m) {
  clv_rref_child *c = clv_rref_record_find(&t->children, m->fork);
  bool is_own_child = c && c->use.to == from && c->ref == m->ref;
  apply_child_event(t, is_own_child ? c : NULL, RREF_CHILD_ACCEPTED, CLV_OK);
  return CLV_OK;
}

void clv_rref_on_value(clv_rrefs *t, uint32_t from, const clv_rref_message *m) {
  clv_rref_handle *h = clv_rref_record_find(&t->handles, m->fork);
  clv_rref_event_args given = {.tensor = m->tensor, .failure = m->failure};
  if (!h || h->owner != from || h->ref != m->ref || !h->wants_value || !m->tensor == !m->failure)
    return;
  (void)run_handle_event(t, h, RREF_HANDLE_VALUE_ARRIVED, &given);
}

/* ---- resending, and failures of owners ------------------------------------------------------- */

void clv_rref_fetches_resend(clv_rrefs *t) {
  for (clv_rref_list *r = t->fetching.next; r != &t->fetching; r = r->next) {
    clv_rref_handle *h = RREF_OF(clv_rref_handle, fetching, r);
    if (clv_rref_post_is_active(&h->fetch_post)) continue;
    if (h->fetch_ns <= t->now_ns)
      clv_rref_post_new(t, &h->fetch_post, CLV_RREF_FETCH, h->owner);
    else
      clv_rref_schedule_tick(t, h->fetch_ns);
  }
}

void clv_rref_handles_fail_unknown(clv_rrefs *t, clv_rref_peer *p, uint64_t before_ns) {
  for (clv_rref_list *r = p->handles.next, *next; r != &p->handles; r = next) {
    next = r->next;
    clv_rref_handle *h = RREF_OF(clv_rref_handle, peer_link, r);
    if (h->joined_ns < before_ns) apply_handle_event(t, h, RREF_HANDLE_OWNER_FORGOT, CLV_NOT_FOUND);
  }
}

void clv_rref_handles_fail_lost(clv_rrefs *t, clv_rref_peer *p) {
  for (clv_rref_list *r = p->handles.next, *next; r != &p->handles; r = next) {
    next = r->next;
    apply_handle_event(t, RREF_OF(clv_rref_handle, peer_link, r), RREF_HANDLE_OWNER_LOST,
                       CLV_UNAVAILABLE);
  }
  while (!clv_rref_list_is_empty(&p->children))
    apply_child_event(t, RREF_OF(clv_rref_child, peer_link, p->children.next), RREF_CHILD_LOST,
                      CLV_UNAVAILABLE);
}

/* ---- requests of this node ------------------------------------------------------------------- */

clv_code clv_rref_handle_request(clv_rrefs *t, uint64_t fork, clv_rref_handle_event event,
                                 const clv_rref_pass_args *what, clv_err *err) {
  clv_rref_event_args given = {.passing = what, .err = err};
  clv_rref_handle *h = clv_rref_record_find(&t->handles, fork);
  bool failed = h && h->record.state == RREF_HANDLE_FAILED;
  clv_code code = run_handle_event(t, h, event, &given);
  if (!given.is_refused) return code;
  return failed ? clv_fail(err, h->failure->code, "%s", h->failure->text)
                : clv_fail(err, CLV_NOT_FOUND, "handle %llu is not here, or was released",
                           (unsigned long long)fork);
}
