/* SPDX-License-Identifier: Apache-2.0
 *
 * Numbered messages: sent until they are acknowledged, obeyed once. A sender has at most a window
 * of them on their way to a receiver, counted from the oldest that is not acknowledged. So a
 * receiver that remembers its verdicts on a window's worth of numbers knows every message that it
 * can still be
 * sent: what is older has been acknowledged, and its sender knows that.
 */

#include "common/reference/rref_int.h"

enum { RENEWALS = 3, LOOKS = 6, LONGEST_WAIT = 60 /* parts of a lease */ };

/* ---- who is there ---------------------------------------------------------------------------- */

static bool tied(const clv_rref_peer *p) {
  return !clv_rref_ring_empty(&p->outbox) || !clv_rref_ring_empty(&p->forks) ||
         !clv_rref_ring_empty(&p->handles) || !clv_rref_ring_empty(&p->children);
}

void clv_rref_tie(clv_rrefs *t, clv_rref_peer *p) {
  if (tied(p)) return;
  p->heard_ns = t->now;
  p->renewed_ns = t->now;
  if (p->node != t->env.self) clv_rref_wake_by(t, t->now + t->env.lease_ns / LOOKS);
}

/* ---- sending --------------------------------------------------------------------------------- */

static uint64_t longest_wait(const clv_rrefs *t) {
  return CLV_MAX(t->env.retry_ns, t->env.lease_ns / LONGEST_WAIT);
}

bool clv_rref_posted(const clv_rref_post *post) { return post->at.next != NULL; }

static void transmit(clv_rrefs *t, clv_rref_post *post) {
  clv_rref_message m = {.kind = post->kind, .number = post->number};
  clv_rref_fill(t, post, &m);
  post->due_ns = t->now + post->wait_ns;
  post->wait_ns = CLV_MIN(2 * post->wait_ns, longest_wait(t));
  post->sent = true;
  clv_rref_wake_by(t, post->due_ns);
  clv_rref_send(t, post->to, &m);
}

/* Within the window, what has not been sent or was not acknowledged in time. */
static void transmit_due(clv_rrefs *t, clv_rref_peer *p, bool unsent_alone) {
  if (clv_rref_ring_empty(&p->outbox)) return;
  uint64_t first = RREF_OF(clv_rref_post, at, p->outbox.next)->number;
  for (clv_rref_ring *r = p->outbox.next, *next; r != &p->outbox; r = next) {
    next = r->next;
    clv_rref_post *post = RREF_OF(clv_rref_post, at, r);
    if (post->number >= first + CLV_WIRE_REF_WINDOW) return;
    if (!post->sent || (!unsent_alone && post->due_ns <= t->now)) transmit(t, post);
    clv_rref_wake_by(t, post->due_ns);
  }
}

void clv_rref_post_new(clv_rrefs *t, clv_rref_post *post, clv_rref_kind kind, uint32_t to) {
  clv_rref_peer *p = &t->peers[to];
  clv_rref_tie(t, p);
  bool of_fork = post->of_fork;
  *post = (clv_rref_post){.kind = kind,
                          .to = to,
                          .of_fork = of_fork,
                          .number = ++p->last_number,
                          .wait_ns = t->env.retry_ns};
  clv_rref_ring_add(&p->outbox, &post->at);
  t->n_posts++;
  uint64_t first = RREF_OF(clv_rref_post, at, p->outbox.next)->number;
  if (post->number < first + CLV_WIRE_REF_WINDOW) transmit(t, post);
}

void clv_rref_post_cancel(clv_rrefs *t, clv_rref_post *post) {
  if (!clv_rref_posted(post)) return;
  clv_rref_peer *p = &t->peers[post->to];
  bool oldest = p->outbox.next == &post->at;
  clv_rref_ring_remove(&post->at);
  t->n_posts--;
  if (oldest) transmit_due(t, p, true);
}

/* ---- receiving ------------------------------------------------------------------------------- */

static void acknowledge(clv_rrefs *t, uint32_t to, uint64_t number, clv_code code) {
  clv_rref_message m = {.kind = CLV_RREF_ACK, .number = number};
  if (code != CLV_OK) m.failure = clv_rref_refusal(code);
  clv_rref_send(t, to, &m);
}

void clv_rref_answer(clv_rrefs *t, uint32_t to, uint64_t number, clv_code code) {
  t->peers[to].answers[number % CLV_WIRE_REF_WINDOW] = (uint8_t)(1 + code);
  acknowledge(t, to, number, code);
}

/* Numbers that come into the window have no verdict yet. */
static void advance(clv_rref_peer *p, uint64_t number) {
  uint64_t new = CLV_MIN(number - p->highest, (uint64_t)CLV_WIRE_REF_WINDOW);
  for (uint64_t i = 0; i < new; i++) p->answers[(number - i) % CLV_WIRE_REF_WINDOW] = 0;
  p->highest = number;
}

/* False: it is nothing new. */
static bool is_new(clv_rrefs *t, clv_rref_peer *p, uint64_t number) {
  if (!number || number + CLV_WIRE_REF_WINDOW <= p->highest) return false;
  if (number > p->highest) advance(p, number);
  uint8_t verdict = p->answers[number % CLV_WIRE_REF_WINDOW];
  if (verdict) acknowledge(t, p->node, number, (clv_code)(verdict - 1));
  return !verdict;
}

static void on_ack(clv_rrefs *t, clv_rref_peer *p, const clv_rref_message *m) {
  clv_rref_ring *r = p->outbox.next;
  while (r != &p->outbox && RREF_OF(clv_rref_post, at, r)->number < m->number) r = r->next;
  if (r == &p->outbox) return;
  clv_rref_post *post = RREF_OF(clv_rref_post, at, r);
  if (post->number != m->number) return;
  clv_rref_post_cancel(t, post);
  clv_code code = m->failure ? m->failure->code : CLV_OK;
  if (post == &p->renew) {
    /* The owner had given up on this node: what it had answered for before is gone. */
    if (code != CLV_OK) clv_rref_handles_fail(t, p, p->renewed_ns, CLV_NOT_FOUND);
  } else {
    clv_rref_answered(t, post, code);
  }
}

typedef int numbered_handler(clv_rrefs *t, uint32_t from, const clv_rref_message *m);
static numbered_handler *const numbered[CLV_RREF_KINDS] = {
    [CLV_RREF_KEEP] = clv_rref_on_keep,     [CLV_RREF_USE] = clv_rref_on_use,
    [CLV_RREF_FORK] = clv_rref_on_fork,     [CLV_RREF_ACCEPT] = clv_rref_on_accept,
    [CLV_RREF_DELETE] = clv_rref_on_delete, [CLV_RREF_RENEW] = clv_rref_on_renew,
    [CLV_RREF_FETCH] = clv_rref_on_fetch,
};

static void obey(clv_rrefs *t, clv_rref_peer *p, const clv_rref_message *m) {
  if (m->kind == CLV_RREF_ACK) {
    on_ack(t, p, m);
  } else if (m->kind == CLV_RREF_VALUE) {
    clv_rref_on_value(t, p->node, m);
  } else if (m->kind < CLV_RREF_KINDS && is_new(t, p, m->number)) {
    int verdict = numbered[m->kind](t, p->node, m);
    if (verdict != RREF_PARKED) clv_rref_answer(t, p->node, m->number, (clv_code)verdict);
  }
}

void clv_rrefs_receive(clv_rrefs *t, uint32_t from, const clv_rref_message *m, uint64_t now_ns) {
  if (from >= t->env.n_nodes) return;
  clv_rref_enter(t, now_ns);
  t->peers[from].heard_ns = t->now;
  obey(t, &t->peers[from], m);
  clv_rref_leave(t);
}

/* ---- time ------------------------------------------------------------------------------------ */

/* Nothing was heard of it for a lease: whatever waited for it need not, and its own goes. */
static void give_up(clv_rrefs *t, clv_rref_peer *p) {
  clv_rref_handles_fail(t, p, UINT64_MAX, CLV_UNAVAILABLE);
  clv_rref_children_fail(t, p);
  clv_rref_unpark_of(t, p->node);
  while (!clv_rref_ring_empty(&p->forks))
    clv_rref_fork_free(t, RREF_OF(clv_rref_fork, of_peer, p->forks.next));
  while (!clv_rref_ring_empty(&p->outbox)) { /* what is left is for its sake: ACCEPT, RENEW */
    clv_rref_post *post = RREF_OF(clv_rref_post, at, p->outbox.next);
    clv_rref_post_cancel(t, post);
    if (post != &p->renew) clv_rref_answered(t, post, CLV_UNAVAILABLE);
  }
}

static void renew(clv_rrefs *t, clv_rref_peer *p) {
  bool owes = !clv_rref_ring_empty(&p->handles) || !clv_rref_ring_empty(&p->children);
  if (!owes || clv_rref_posted(&p->renew) || t->now < p->renewed_ns + t->env.lease_ns / RENEWALS)
    return;
  p->renewed_ns = t->now;
  clv_rref_post_new(t, &p->renew, CLV_RREF_RENEW, p->node);
}

static void look_at(clv_rrefs *t, clv_rref_peer *p, uint64_t late_ns) {
  if (!tied(p)) return;
  if (p->node != t->env.self) {
    /* What came while this node was busy may wait to be handled. */
    p->heard_ns = CLV_MIN(t->now, p->heard_ns + late_ns);
    if (t->now - p->heard_ns > t->env.lease_ns) give_up(t, p);
    renew(t, p);
  }
  transmit_due(t, p, false);
  if (tied(p)) clv_rref_wake_by(t, t->now + t->env.lease_ns / LOOKS);
}

void clv_rrefs_tick(clv_rrefs *t, uint64_t now_ns) {
  clv_rref_enter(t, now_ns);
  uint64_t late_ns = t->now - CLV_MIN(t->due, t->now);
  t->due = UINT64_MAX;
  for (uint32_t i = 0; i < t->env.n_nodes; i++) look_at(t, &t->peers[i], late_ns);
  clv_rref_fetch_again(t);
  clv_rref_unpark_late(t);
  clv_rref_leave(t);
}
