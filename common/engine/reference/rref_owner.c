/* SPDX-License-Identifier: Apache-2.0
 *
 * The owner's side of references (reference.h). The owner of a reference is the node that has the
 * value, a user is a node that may fetch it. Definitions:
 *
 *   entry           the owner's record of a reference: its key, and the value or its failure
 *   handle          a user's record of a reference; a user may have several (rref_user.c)
 *   fork            the owner's record of one handle; an entry is freed with its last fork
 *   child           a user's record of a handle that it has passed on, kept until the owner has
 *                   answered for the new handle (rref_user.c)
 *   parked message  a FORK or FETCH that arrived before the entry or fork which it needs
 *
 * Most functions apply an event to a record; the tables of rref_tables.c give the next state and
 * the actions, which this file has as functions.
 */
#include "common/engine/reference/rref_int.h"

static clv_code run_entry_event(clv_rrefs *t, clv_rref_entry *e, clv_rref_entry_event event,
                                clv_rref_event_args *given);
static clv_code run_fork_event(clv_rrefs *t, clv_rref_fork *f, clv_rref_fork_event event,
                               clv_rref_event_args *given);

/* ---- records of entries and forks ------------------------------------------------------------ */

void clv_rref_entry_clear(clv_rref_entry *e) {
  clv_tensor_unref(e->tensor);
  clv_rref_failure_free(e->failure);
  e->tensor = NULL;
  e->failure = NULL;
}

static clv_code free_entry(clv_rrefs *t, void *record, clv_rref_event_args *given) {
  clv_rref_entry *e = record;
  (void)given;
  clv_rref_entry_clear(e);
  clv_rref_record_drop(&t->entry_slab, &t->entries, e);
  return CLV_OK;
}

static clv_code new_entry(clv_rrefs *t, uint64_t ref, uint64_t key, clv_rref_entry **ret,
                          clv_err *err) {
  CLV_TRY(clv_rref_record_new(t, &t->entry_slab, &t->entries, ref, ret, err));
  (*ret)->key = key;
  clv_rref_list_init(&(*ret)->forks);
  return CLV_OK;
}

/* Makes a fork of entry e for a node. The caller applies its first event. */
static clv_code new_fork(clv_rrefs *t, clv_rref_entry *e, uint64_t id, uint32_t node,
                         clv_rref_fork **ret, clv_err *err) {
  CLV_TRY(clv_rref_record_new(t, &t->fork_slab, &t->forks, id, ret, err));
  clv_rref_fork *f = *ret;
  f->entry = e;
  f->node = node;
  f->use.is_from_owner = true;
  clv_rref_peer_start_lease(t, &t->peers[node]);
  clv_rref_list_add(&e->forks, &f->entry_link);
  clv_rref_list_add(&t->peers[node].forks, &f->peer_link);
  return CLV_OK;
}

static void drop_fork(clv_rrefs *t, clv_rref_fork *f) {
  clv_rref_post_cancel(t, &f->use);
  clv_rref_list_remove(&f->answer.link);
  clv_rref_list_remove(&f->entry_link);
  clv_rref_list_remove(&f->peer_link);
  clv_rref_record_drop(&t->fork_slab, &t->forks, f);
}

static clv_code free_fork(clv_rrefs *t, void *record, clv_rref_event_args *given) {
  clv_rref_fork *f = record;
  clv_rref_entry *e = f->entry;
  drop_fork(t, f);
  return clv_rref_list_is_empty(&e->forks) ? run_entry_event(t, e, RREF_ENTRY_UNUSED, given)
                                           : CLV_OK;
}

/* Returns the fork of that id; NULL: there is none, or it belongs to another node or reference. */
static clv_rref_fork *find_fork(const clv_rrefs *t, uint32_t node, uint64_t ref, uint64_t id) {
  clv_rref_fork *f = clv_rref_record_find(&t->forks, id);
  return f && f->node == node && f->entry->record.id == ref ? f : NULL;
}

static bool is_settled(const clv_rref_entry *e) { return e->tensor || e->failure; }

/* ---- parked messages ------------------------------------------------------------------------- */

static bool is_parked(const clv_rrefs *t, uint32_t from, const clv_rref_message *m) {
  for (const clv_rref_list *r = t->parked.next; r != &t->parked; r = r->next) {
    const clv_rref_parked *k = RREF_OF(const clv_rref_parked, link, r);
    if (k->from == from && k->number == m->number) return true;
  }
  return false;
}

/* Parks a message. If there is no memory, the message is dropped, and its sender sends it again. */
static clv_code park_message(clv_rrefs *t, void *record, clv_rref_event_args *given) {
  const clv_rref_message *m = given->message;
  clv_rref_parked *k;
  clv_err ignored;
  (void)record;
  given->is_parked = true;
  if (is_parked(t, given->from, m)) return CLV_OK;
  if (clv_slab_alloc(t->o.pool, &t->parked_slab, &k, &ignored) != CLV_OK) return CLV_OK;
  *k = (clv_rref_parked){.kind = m->kind,
                         .from = given->from,
                         .number = m->number,
                         .ref = m->ref,
                         .fork = m->fork,
                         .key = m->key,
                         .until_ns = t->now_ns + t->o.lease_ns};
  clv_rref_list_add(&t->parked, &k->link);
  clv_rref_schedule_tick(t, k->until_ns);
  return CLV_OK;
}

static clv_rref_parked remove_parked_message(clv_rrefs *t, clv_rref_parked *k) {
  clv_rref_parked copy = *k;
  clv_rref_list_remove(&k->link);
  clv_slab_recycle(&t->parked_slab, k);
  return copy;
}

static void answer_fetch(clv_rrefs *t, clv_rref_fork *f) {
  clv_rref_event_args none = {0};
  (void)run_fork_event(t, f, is_settled(f->entry) ? RREF_FORK_FETCH : RREF_FORK_FETCH_PENDING,
                       &none);
}

/* Handles the parked FETCH of a fork that has just been added, if there is one. */
static clv_code unpark_fetch(clv_rrefs *t, void *record, clv_rref_event_args *given) {
  clv_rref_fork *f = record;
  (void)given;
  for (clv_rref_list *r = t->parked.next; r != &t->parked; r = r->next) {
    clv_rref_parked *k = RREF_OF(clv_rref_parked, link, r);
    bool is_of_fork = k->fork == f->record.id && k->ref == f->entry->record.id;
    if (k->kind != CLV_RREF_FETCH || k->from != f->node || !is_of_fork) continue;
    clv_rref_queue_ack(t, f->node, remove_parked_message(t, k).number, CLV_OK);
    answer_fetch(t, f);
    break;
  }
  return CLV_OK;
}

static clv_code add_parked_fork(clv_rrefs *t, clv_rref_entry *e, uint32_t from, uint64_t id) {
  clv_rref_event_args given = {.from = from};
  clv_rref_message m = {.fork = id};
  given.message = &m;
  return run_entry_event(t, e, RREF_ENTRY_FORKED, &given);
}

static clv_code unpark_forks(clv_rrefs *t, void *record, clv_rref_event_args *given) {
  clv_rref_entry *e = record;
  (void)given;
  for (clv_rref_list *r = t->parked.next; r != &t->parked;) {
    clv_rref_parked *k = RREF_OF(clv_rref_parked, link, r);
    r = r->next;
    if (k->kind != CLV_RREF_FORK || k->ref != e->record.id || k->key != e->key) continue;
    clv_rref_parked was = remove_parked_message(t, k);
    clv_rref_queue_ack(t, was.from, was.number, add_parked_fork(t, e, was.from, was.fork));
    /* starts again, because the fork's parked FETCH may have been removed as well */
    r = t->parked.next;
  }
  return CLV_OK;
}

void clv_rref_parked_expire(clv_rrefs *t) {
  while (!clv_rref_list_is_empty(&t->parked)) {
    clv_rref_parked *k = RREF_OF(clv_rref_parked, link, t->parked.next);
    if (k->until_ns > t->now_ns) {
      clv_rref_schedule_tick(t, k->until_ns);
      return;
    }
    clv_rref_parked was = remove_parked_message(t, k);
    clv_rref_queue_ack(t, was.from, was.number, CLV_NOT_FOUND);
  }
}

void clv_rref_parked_drop_of_node(clv_rrefs *t, uint32_t node) {
  for (clv_rref_list *r = t->parked.next, *next; r != &t->parked; r = next) {
    next = r->next;
    clv_rref_parked *k = RREF_OF(clv_rref_parked, link, r);
    if (k->from == node) (void)remove_parked_message(t, k);
  }
}

/* ---- actions of entries ---------------------------------------------------------------------- */

/* Adds the fork that a FORK message names. CLV_NOT_FOUND if the fork id is in use, as if the
 * reference did not exist: the table refuses RREF_FORK_ADDED for a fork that exists. */
static clv_code add_fork(clv_rrefs *t, void *record, clv_rref_event_args *given) {
  clv_rref_fork *f = clv_rref_record_find(&t->forks, given->message->fork);
  clv_err why;
  /* refused, because the fork id is in use */
  if (f && run_fork_event(t, f, RREF_FORK_ADDED, given) != CLV_OK) return CLV_NOT_FOUND;
  clv_code code = new_fork(t, record, given->message->fork, given->from, &f, &why);
  if (code != CLV_OK) return code == CLV_EXISTS ? CLV_NOT_FOUND : code;
  return run_fork_event(t, f, RREF_FORK_ADDED, given);
}

static clv_code store_value(clv_rrefs *t, void *record, clv_rref_event_args *given) {
  (void)t;
  ((clv_rref_entry *)record)->tensor = clv_tensor_ref(given->tensor);
  return CLV_OK;
}

static clv_code store_failure(clv_rrefs *t, void *record, clv_rref_event_args *given) {
  (void)t;
  ((clv_rref_entry *)record)->failure = clv_rref_failure_copy(given->failure);
  return CLV_OK;
}

static clv_code serve_forks(clv_rrefs *t, void *record, clv_rref_event_args *given) {
  clv_rref_entry *e = record;
  for (clv_rref_list *r = e->forks.next; r != &e->forks; r = r->next)
    (void)run_fork_event(t, RREF_OF(clv_rref_fork, entry_link, r), RREF_FORK_SETTLED, given);
  return CLV_OK;
}

static clv_code report_create(clv_rrefs *t, void *record, clv_rref_event_args *given) {
  clv_rref_entry *e = record;
  (void)given;
  clv_rref_queue_report(t, &e->create, RREF_CREATE_RESULT, &e->record);
  return CLV_OK;
}

static clv_code report_freed(clv_rrefs *t, void *record, clv_rref_event_args *given) {
  clv_rref_entry *e = record;
  (void)given;
  /* the value need not be created any more, because no fork is left */
  clv_rref_unqueue_report(&e->create, &e->record);
  clv_rref_queue_report(t, &e->freed, RREF_FREED_RESULT, &e->record);
  return CLV_OK;
}

static clv_rref_action_fn *const entry_action_fns[RREF_ACTIONS] = {
    [RREF_PARK] = park_message,
    [RREF_ADD_FORK] = add_fork,
    [RREF_STORE_VALUE] = store_value,
    [RREF_STORE_FAILURE] = store_failure,
    [RREF_SERVE_FORKS] = serve_forks,
    [RREF_UNPARK_FORKS] = unpark_forks,
    [RREF_REPORT_CREATE] = report_create,
    [RREF_REPORT_FREED] = report_freed,
    [RREF_FREE] = free_entry,
};

static clv_code run_entry_event(clv_rrefs *t, clv_rref_entry *e, clv_rref_entry_event event,
                                clv_rref_event_args *given) {
  uint8_t none = RREF_ENTRY_NONE;
  return clv_rref_on_event(t, RREF_ENTRIES, entry_action_fns, e, e ? &e->record.state : &none,
                           event, given);
}

void clv_rref_entry_settle(clv_rrefs *t, uint64_t ref, clv_tensor *tensor,
                           const clv_rref_failure *why) {
  clv_rref_event_args given = {.tensor = tensor, .failure = why};
  (void)run_entry_event(t, clv_rref_record_find(&t->entries, ref),
                        tensor ? RREF_ENTRY_SETTLED : RREF_ENTRY_FAILED, &given);
}

/* Makes an entry and its first fork, for a KEEP or for this node itself. CLV_EXISTS: an id is in
 * use; the table refuses `event` for an entry that exists. */
static clv_code new_entry_with_fork(clv_rrefs *t, const clv_rref_new_ids *b, uint32_t node,
                                    clv_rref_entry_event event, clv_rref_event_args *given,
                                    clv_rref_fork **ret, clv_err *err) {
  clv_rref_entry *e = clv_rref_record_find(&t->entries, b->ref);
  if (e && run_entry_event(t, e, event, given) != CLV_OK) /* refused, because an id is in use */
    return clv_fail(err, CLV_EXISTS, "id %llu is taken", (unsigned long long)b->ref);
  CLV_TRY(new_entry(t, b->ref, b->key, &e, err));
  clv_code code = new_fork(t, e, b->fork, node, ret, err);
  if (code != CLV_OK) {
    (void)free_entry(t, e, given);
    return code;
  }
  (void)run_fork_event(t, *ret, RREF_FORK_ADDED, given);
  return run_entry_event(t, e, event, given);
}

clv_code clv_rref_entry_new_owned(clv_rrefs *t, const clv_rref_new_ids *b, clv_tensor *tensor,
                                  clv_rref_fork **ret, clv_err *err) {
  clv_rref_event_args given = {.tensor = tensor};
  return new_entry_with_fork(t, b, t->o.self, RREF_ENTRY_OWNED, &given, ret, err);
}

void clv_rref_entry_undo(clv_rrefs *t, clv_rref_fork *f) {
  clv_rref_event_args none = {0};
  clv_rref_entry *e = f->entry;
  drop_fork(t, f);
  (void)free_entry(t, e, &none);
}

/* ---- actions of forks ------------------------------------------------------------------------ */

static clv_code send_value(clv_rrefs *t, void *record, clv_rref_event_args *given) {
  clv_rref_fork *f = record;
  (void)given;
  clv_rref_queue_message(t, &f->answer, RREF_FROM_FORK, f->node);
  return CLV_OK;
}

static clv_code send_use(clv_rrefs *t, void *record, clv_rref_event_args *given) {
  clv_rref_fork *f = record;
  (void)given;
  clv_rref_post_new(t, &f->use, CLV_RREF_USE, f->node);
  return CLV_OK;
}

static clv_code report_unused(clv_rrefs *t, void *record, clv_rref_event_args *given) {
  clv_rref_fork *f = record;
  f->unused.code = given->code;
  clv_rref_queue_report(t, &f->unused, RREF_FORK_UNUSED_RESULT, &f->record);
  return CLV_OK;
}

static clv_rref_action_fn *const fork_action_fns[RREF_ACTIONS] = {
    [RREF_PARK] = park_message,           [RREF_UNPARK_FETCH] = unpark_fetch,
    [RREF_SEND_VALUE] = send_value,       [RREF_SEND_USE] = send_use,
    [RREF_REPORT_UNUSED] = report_unused, [RREF_FREE] = free_fork,
};

static clv_code run_fork_event(clv_rrefs *t, clv_rref_fork *f, clv_rref_fork_event event,
                               clv_rref_event_args *given) {
  uint8_t none = RREF_FORK_NONE;
  return clv_rref_on_event(t, RREF_FORKS, fork_action_fns, f, f ? &f->record.state : &none, event,
                           given);
}

void clv_rref_fork_on_event(clv_rrefs *t, clv_rref_fork *f, clv_rref_fork_event event,
                            clv_code code) {
  clv_rref_event_args given = {.code = code};
  (void)run_fork_event(t, f, event, &given);
}

clv_code clv_rref_fork_pass(clv_rrefs *t, uint64_t ref, const clv_rref_pass_args *what,
                            clv_err *err) {
  clv_rref_event_args given = {0};
  clv_rref_fork *f = clv_rref_record_find(&t->forks, what->child_fork);
  clv_rref_entry *e = clv_rref_record_find(&t->entries, ref);
  if (!e) return clv_fail(err, CLV_NOT_FOUND, "reference %llu is gone", (unsigned long long)ref);
  /* refused, because the fork id is in use */
  if (f && run_fork_event(t, f, RREF_FORK_PASSED, &given) != CLV_OK)
    return clv_fail(err, CLV_EXISTS, "id %llu is taken", (unsigned long long)what->child_fork);
  CLV_TRY(new_fork(t, e, what->child_fork, what->to, &f, err));
  f->context = what->context;
  f->value = what->value;
  return run_fork_event(t, f, RREF_FORK_PASSED, &given);
}

void clv_rref_forks_drop_lost(clv_rrefs *t, clv_rref_peer *p) {
  while (!clv_rref_list_is_empty(&p->forks))
    clv_rref_fork_on_event(t, RREF_OF(clv_rref_fork, peer_link, p->forks.next), RREF_FORK_LOST,
                           CLV_UNAVAILABLE);
}

/* ---- messages to the owner ------------------------------------------------------------------- */

int clv_rref_on_keep(clv_rrefs *t, uint32_t from, const clv_rref_message *m) {
  clv_rref_event_args given = {.from = from, .message = m};
  clv_rref_new_ids b = {m->ref, m->fork, m->key};
  clv_rref_fork *f;
  clv_err why;
  clv_code code = new_entry_with_fork(t, &b, from, RREF_ENTRY_KEPT, &given, &f, &why);
  if (code != CLV_OK) return code;
  f->entry->context = m->context;
  f->entry->value = m->value;
  return CLV_OK;
}

int clv_rref_on_fork(clv_rrefs *t, uint32_t from, const clv_rref_message *m) {
  clv_rref_event_args given = {.from = from, .message = m};
  clv_rref_entry *e = clv_rref_record_find(&t->entries, m->ref);
  bool has_wrong_key = e && e->key != m->key;
  clv_code code =
      run_entry_event(t, e, has_wrong_key ? RREF_ENTRY_WRONG_KEY : RREF_ENTRY_FORKED, &given);
  return given.is_parked ? RREF_PARKED : (int)code;
}

int clv_rref_on_delete(clv_rrefs *t, uint32_t from, const clv_rref_message *m) {
  clv_rref_fork_on_event(t, find_fork(t, from, m->ref, m->fork), RREF_FORK_DELETED, CLV_OK);
  return CLV_OK;
}

/* Answers a RENEW. CLV_NOT_FOUND: the sender has no forks here, so it must fail its handles of this
 * node's values. */
int clv_rref_on_renew(clv_rrefs *t, uint32_t from, const clv_rref_message *m) {
  (void)m;
  return clv_rref_list_is_empty(&t->peers[from].forks) ? CLV_NOT_FOUND : CLV_OK;
}

int clv_rref_on_fetch(clv_rrefs *t, uint32_t from, const clv_rref_message *m) {
  clv_rref_event_args given = {.from = from, .message = m};
  clv_rref_fork *f = find_fork(t, from, m->ref, m->fork);
  clv_rref_fork_event event = f && !is_settled(f->entry) ? RREF_FORK_FETCH_PENDING
                              : !f && m->is_before_join  ? RREF_FORK_FETCH_EARLY
                                                         : RREF_FORK_FETCH;
  clv_code code = run_fork_event(t, f, event, &given);
  return given.is_parked ? RREF_PARKED : (int)code;
}
