/* SPDX-License-Identifier: Apache-2.0
 *
 * Makes messages and results from records, at the moment when they are taken.
 */
#include "common/engine/reference/rref_int.h"

/* ---- messages made from records -------------------------------------------------------------- */

static void fill_handle_message(const clv_rref_handle *h, clv_rref_message *ret) {
  ret->ref = h->ref;
  ret->fork = h->record.id;
  ret->key = h->key;
  ret->context = h->context;
  ret->value = h->value;
}

static void fill_fetch_message(const clv_rref_handle *h, clv_rref_message *ret) {
  ret->ref = h->ref;
  ret->fork = h->record.id;
  ret->is_before_join = h->record.state == RREF_HANDLE_JOINING;
}

static void fill_fork_use(const clv_rref_fork *f, uint32_t self, clv_rref_message *ret) {
  ret->ref = f->entry->record.id;
  ret->fork = f->record.id;
  ret->key = f->entry->key;
  ret->owner = self;
  ret->context = f->context;
  ret->value = f->value;
}

static void fill_child_use(const clv_rref_child *c, clv_rref_message *ret) {
  ret->is_before_join = true;
  ret->ref = c->ref;
  ret->fork = c->record.id;
  ret->key = c->parent->key;
  ret->owner = c->owner;
  ret->context = c->context;
  ret->value = c->value;
}

static void fill_posted_message(const clv_rrefs *t, const clv_rref_post *post,
                                clv_rref_message *ret) {
  ret->kind = post->kind;
  ret->number = post->number;
  if (post->kind == CLV_RREF_USE && post->is_from_owner)
    fill_fork_use(RREF_OF(const clv_rref_fork, use, post), t->o.self, ret);
  else if (post->kind == CLV_RREF_USE)
    fill_child_use(RREF_OF(const clv_rref_child, use, post), ret);
  else if (post->kind == CLV_RREF_KEEP || post->kind == CLV_RREF_FORK)
    fill_handle_message(RREF_OF(const clv_rref_handle, join_post, post), ret);
  else if (post->kind == CLV_RREF_FETCH)
    fill_fetch_message(RREF_OF(const clv_rref_handle, fetch_post, post), ret);
  else if (post->kind == CLV_RREF_ACCEPT)
    fill_handle_message(RREF_OF(const clv_rref_handle, accept_post, post), ret);
  else if (post->kind == CLV_RREF_DELETE)
    fill_handle_message(RREF_OF(const clv_rref_handle, delete_post, post), ret);
}

static void fill_value_message(const clv_rref_fork *f, clv_rref_message *ret) {
  ret->kind = CLV_RREF_VALUE;
  ret->ref = f->entry->record.id;
  ret->fork = f->record.id;
  ret->tensor = f->entry->tensor;
  ret->failure = f->entry->failure;
}

/* Fills an ACK for the peer. False: no message of the peer needs an ACK any more. */
static bool fill_ack(clv_rrefs *t, clv_rref_peer *p, clv_rref_message *ret) {
  clv_code code;
  ret->kind = CLV_RREF_ACK;
  if (!clv_rref_next_ack(p, &ret->number, &code)) return false;
  if (code != CLV_OK) ret->failure = clv_rref_failure_of_code(code);
  if (p->ack_first <= p->ack_last) clv_rref_queue_message(t, &p->ack, RREF_FROM_PEER, p->node);
  return true;
}

static bool fill_message(clv_rrefs *t, clv_rref_queue_entry *out, uint32_t *ret_to,
                         clv_rref_message *ret) {
  *ret = (clv_rref_message){0};
  if (out->source == RREF_FROM_PEER) {
    clv_rref_peer *p = RREF_OF(clv_rref_peer, ack, out);
    *ret_to = p->node;
    return fill_ack(t, p, ret);
  }
  if (out->source == RREF_FROM_FORK) {
    const clv_rref_fork *f = RREF_OF(const clv_rref_fork, answer, out);
    *ret_to = f->node;
    fill_value_message(f, ret);
    return true;
  }
  const clv_rref_post *post = RREF_OF(const clv_rref_post, out, out);
  *ret_to = post->to;
  fill_posted_message(t, post, ret);
  return true;
}

static clv_rref_queue_entry *take_queue_entry(clv_rref_list *queue) {
  if (clv_rref_list_is_empty(queue)) return NULL;
  clv_rref_queue_entry *out = RREF_OF(clv_rref_queue_entry, link, queue->next);
  clv_rref_list_remove(&out->link);
  return out;
}

bool clv_rref_next_to_self(clv_rrefs *t, clv_rref_message *ret) {
  uint32_t self;
  for (clv_rref_queue_entry *out; (out = take_queue_entry(&t->to_self)) != NULL;)
    if (fill_message(t, out, &self, ret)) return true;
  return false;
}

/* ---- reports made from records --------------------------------------------------------------- */

/* Describes a handle. Leaves context and value 0 for a handle that this node created, because they
 * name the value of its KEEP, not one that the handle becomes at this node. */
static clv_rref_use describe_handle(const clv_rrefs *t, const clv_rref_handle *h) {
  clv_rref_use u = {.ref = h->ref, .fork = h->record.id, .owner = h->owner, .node = t->o.self};
  if (h->is_created_here) return u;
  u.context = h->context;
  u.value = h->value;
  return u;
}

static void report_create(clv_rrefs *t, clv_rref_queue_entry *out, clv_rref_result *ret) {
  clv_rref_entry *e = RREF_OF(clv_rref_entry, create, out);
  ret->kind = CLV_RREF_RESULT_CREATE;
  ret->handle = (clv_rref_use){.ref = e->record.id, .context = e->context, .value = e->value};
  clv_rref_record_result_taken(&t->entry_slab, e);
}

static void report_freed(clv_rrefs *t, clv_rref_queue_entry *out, clv_rref_result *ret) {
  clv_rref_entry *e = RREF_OF(clv_rref_entry, freed, out);
  ret->kind = CLV_RREF_RESULT_FREED;
  ret->handle = (clv_rref_use){.ref = e->record.id};
  clv_rref_record_result_taken(&t->entry_slab, e);
}

static void report_used(clv_rrefs *t, clv_rref_queue_entry *out, clv_rref_result *ret) {
  clv_rref_handle *h = RREF_OF(clv_rref_handle, report, out);
  ret->kind = CLV_RREF_RESULT_USED;
  ret->handle = describe_handle(t, h);
  clv_rref_record_result_taken(&t->handle_slab, h);
}

static void report_joined(clv_rrefs *t, clv_rref_queue_entry *out, clv_rref_result *ret) {
  clv_rref_handle *h = RREF_OF(clv_rref_handle, report, out);
  ret->kind = CLV_RREF_RESULT_JOINED;
  ret->handle = describe_handle(t, h);
  if (out->code != CLV_OK) ret->failure = clv_rref_failure_of_code(out->code);
  clv_rref_record_result_taken(&t->handle_slab, h);
}

/* Makes a FETCHED result. The table holds its tensor and failure until the next
 * clv_rrefs_next_result. */
static void report_fetched(clv_rrefs *t, clv_rref_queue_entry *out, clv_rref_result *ret) {
  clv_rref_handle *h = RREF_OF(clv_rref_handle, fetched, out);
  ret->kind = CLV_RREF_RESULT_FETCHED;
  ret->handle = describe_handle(t, h);
  ret->tensor = t->last_tensor = h->tensor;
  ret->failure = t->last_failure = h->fetch_failure;
  h->tensor = NULL;
  h->fetch_failure = NULL;
  clv_rref_record_result_taken(&t->handle_slab, h);
}

static void report_fork_unused(clv_rrefs *t, clv_rref_queue_entry *out, clv_rref_result *ret) {
  clv_rref_fork *f = RREF_OF(clv_rref_fork, unused, out);
  ret->kind = CLV_RREF_RESULT_UNUSED;
  ret->handle =
      (clv_rref_use){f->entry->record.id, f->record.id, t->o.self, f->node, f->context, f->value};
  ret->failure = clv_rref_failure_of_code(out->code);
  clv_rref_record_result_taken(&t->fork_slab, f);
}

static void report_child_unused(clv_rrefs *t, clv_rref_queue_entry *out, clv_rref_result *ret) {
  clv_rref_child *c = RREF_OF(clv_rref_child, unused, out);
  ret->kind = CLV_RREF_RESULT_UNUSED;
  ret->handle = (clv_rref_use){c->ref, c->record.id, c->owner, c->use.to, c->context, c->value};
  ret->failure = clv_rref_failure_of_code(out->code);
  clv_rref_record_result_taken(&t->child_slab, c);
}

typedef void reporter(clv_rrefs *t, clv_rref_queue_entry *out, clv_rref_result *ret);
static reporter *const reporters[] = {
    [RREF_CREATE_RESULT] = report_create,
    [RREF_FREED_RESULT] = report_freed,
    [RREF_USED_RESULT] = report_used,
    [RREF_JOIN_RESULT] = report_joined,
    [RREF_FETCHED_RESULT] = report_fetched,
    [RREF_FORK_UNUSED_RESULT] = report_fork_unused,
    [RREF_CHILD_UNUSED_RESULT] = report_child_unused,
};

static bool make_result(clv_rrefs *t, clv_rref_queue_entry *out, clv_rref_result *ret) {
  *ret = (clv_rref_result){.kind = CLV_RREF_RESULT_SEND};
  if (!reporters[out->source]) return fill_message(t, out, &ret->to, &ret->message);
  reporters[out->source](t, out, ret);
  return true;
}

/* Takes the next result, and frees the tensor and failure of the last FETCHED result. The tensor of
 * a message stays in its record until the next input. */
bool clv_rrefs_next_result(clv_rrefs *t, clv_rref_result *ret) {
  clv_tensor_unref(clv_steal(&t->last_tensor));
  clv_rref_failure_free(clv_steal(&t->last_failure));
  for (clv_rref_queue_entry *out; (out = take_queue_entry(&t->results)) != NULL;)
    if (make_result(t, out, ret)) return true;
  return false;
}
