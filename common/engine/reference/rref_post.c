/* SPDX-License-Identifier: Apache-2.0
 *
 * Numbered messages: sent until they are acknowledged, handled once. A sender has at most a window
 * of unacknowledged numbers per receiver, counted from the oldest. So a receiver needs to remember
 * only its answers for one window: older messages were acknowledged, and their sender has received
 * the acknowledgement.
 */
#include "common/engine/reference/rref_int.h"

enum { CHECKS_PER_LEASE = 6, WAITS_PER_LEASE = 60 /* divisors of a lease */, ACK_OWED = 0x80 };

/* ---- leases of peers ------------------------------------------------------------------------- */

bool clv_rref_peer_has_lease(const clv_rref_peer *p) {
  return !clv_rref_list_is_empty(&p->outbox) || !clv_rref_list_is_empty(&p->forks) ||
         !clv_rref_list_is_empty(&p->handles) || !clv_rref_list_is_empty(&p->children);
}

void clv_rref_peer_start_lease(clv_rrefs *t, clv_rref_peer *p) {
  if (clv_rref_peer_has_lease(p)) return;
  p->last_message_ns = t->now_ns;
  p->last_renew_ns = t->now_ns;
  if (p->node != t->o.self) clv_rref_schedule_tick(t, t->now_ns + t->o.lease_ns / CHECKS_PER_LEASE);
}

/* ---- sending numbered messages --------------------------------------------------------------- */

static uint64_t get_longest_wait(const clv_rrefs *t) {
  return CLV_MAX(t->o.retry_ns, t->o.lease_ns / WAITS_PER_LEASE);
}

bool clv_rref_post_is_active(const clv_rref_post *post) { return post->state != RREF_POST_NONE; }

static clv_code transmit(clv_rrefs *t, void *record, clv_rref_event_args *given) {
  clv_rref_post *post = record;
  (void)given;
  post->due_ns = t->now_ns + post->wait_ns;
  post->wait_ns = CLV_MIN(2 * post->wait_ns, get_longest_wait(t));
  clv_rref_schedule_tick(t, post->due_ns);
  clv_rref_queue_message(t, &post->out, RREF_FROM_POST, post->to);
  return CLV_OK;
}

static clv_code unlink_post(clv_rrefs *t, void *record, clv_rref_event_args *given) {
  clv_rref_post *post = record;
  (void)given;
  clv_rref_list_remove(&post->link);
  clv_rref_list_remove(&post->out.link);
  t->n_posts--;
  return CLV_OK;
}

static clv_rref_action_fn *const action_fns[RREF_ACTIONS] = {
    [RREF_TRANSMIT] = transmit, [RREF_UNLINK] = unlink_post};

static void apply_event(clv_rrefs *t, clv_rref_post *post, clv_rref_post_event event) {
  clv_rref_event_args none = {0};
  (void)clv_rref_on_event(t, RREF_POSTS, action_fns, post, &post->state, event, &none);
}

static uint64_t get_oldest_number(const clv_rref_peer *p) {
  return RREF_OF(clv_rref_post, link, p->outbox.next)->number;
}

/* Sends the messages to a peer that are within the window and were not sent. due: also sends again
 * those that were not acknowledged in time. */
static void send_window(clv_rrefs *t, clv_rref_peer *p, bool due) {
  if (clv_rref_list_is_empty(&p->outbox)) return;
  uint64_t first = get_oldest_number(p);
  for (clv_rref_list *r = p->outbox.next; r != &p->outbox; r = r->next) {
    clv_rref_post *post = RREF_OF(clv_rref_post, link, r);
    if (post->number >= first + CLV_WIRE_REF_WINDOW) return;
    if (post->state == RREF_POST_WAITING)
      apply_event(t, post, RREF_POST_IN_WINDOW);
    else if (due && post->due_ns <= t->now_ns)
      apply_event(t, post, RREF_POST_DUE);
    clv_rref_schedule_tick(t, post->due_ns);
  }
}

void clv_rref_posts_resend(clv_rrefs *t, clv_rref_peer *p) { send_window(t, p, true); }

void clv_rref_post_new(clv_rrefs *t, clv_rref_post *post, clv_rref_kind kind, uint32_t to) {
  clv_rref_peer *p = &t->peers[to];
  clv_rref_peer_start_lease(t, p);
  bool is_from_owner = post->is_from_owner;
  *post = (clv_rref_post){.kind = kind,
                          .to = to,
                          .is_from_owner = is_from_owner,
                          .number = ++p->last_number,
                          .wait_ns = t->o.retry_ns};
  clv_rref_list_add(&p->outbox, &post->link);
  t->n_posts++;
  bool is_in_window = post->number < get_oldest_number(p) + CLV_WIRE_REF_WINDOW;
  apply_event(t, post, is_in_window ? RREF_POST_POSTED : RREF_POST_OVER_WINDOW);
}

/* Applies the event `how`, which ends a post. If the post was the oldest of its peer, the window
 * advances. */
static void end_post(clv_rrefs *t, clv_rref_post *post, clv_rref_post_event how) {
  clv_rref_peer *p = &t->peers[post->to];
  bool is_oldest = p->outbox.next == &post->link;
  apply_event(t, post, how);
  if (is_oldest) send_window(t, p, false);
}

void clv_rref_post_cancel(clv_rrefs *t, clv_rref_post *post) {
  end_post(t, post, RREF_POST_CANCELLED);
}

clv_rref_post *clv_rref_end_acked_post(clv_rrefs *t, clv_rref_peer *p, uint64_t number) {
  clv_rref_list *r = p->outbox.next;
  while (r != &p->outbox && RREF_OF(clv_rref_post, link, r)->number < number) r = r->next;
  if (r == &p->outbox) return NULL;
  clv_rref_post *post = RREF_OF(clv_rref_post, link, r);
  if (post->number != number) return NULL;
  end_post(t, post, RREF_POST_ACKED);
  return post;
}

/* ---- receiving numbered messages ------------------------------------------------------------- */

static uint8_t *get_answer(clv_rref_peer *p, uint64_t number) {
  return &p->answers[number % CLV_WIRE_REF_WINDOW];
}

static bool has_ack_owed(const clv_rref_peer *p) {
  return p->ack_first && p->ack_first <= p->ack_last;
}

static void owe_ack(clv_rrefs *t, clv_rref_peer *p, uint64_t number) {
  bool is_first_owed = !has_ack_owed(p);
  *get_answer(p, number) |= ACK_OWED;
  p->ack_first = is_first_owed ? number : CLV_MIN(p->ack_first, number);
  p->ack_last = is_first_owed ? number : CLV_MAX(p->ack_last, number);
  clv_rref_queue_message(t, &p->ack, RREF_FROM_PEER, p->node);
}

static bool has_left_window(const clv_rref_peer *p, uint64_t number) {
  return number < p->highest_number && p->highest_number - number >= CLV_WIRE_REF_WINDOW;
}

void clv_rref_queue_ack(clv_rrefs *t, uint32_t to, uint64_t number, clv_code code) {
  /* the sender no longer waits for this answer */
  if (has_left_window(&t->peers[to], number)) return;
  *get_answer(&t->peers[to], number) = (uint8_t)(1 + code);
  owe_ack(t, &t->peers[to], number);
}

bool clv_rref_next_ack(clv_rref_peer *p, uint64_t *ret_number, clv_code *ret_code) {
  /* the sender has the answers for numbers that have left the window, so these are skipped */
  bool is_window_full = p->highest_number >= CLV_WIRE_REF_WINDOW;
  if (is_window_full)
    p->ack_first = CLV_MAX(p->ack_first, p->highest_number - CLV_WIRE_REF_WINDOW + 1);
  while (has_ack_owed(p)) {
    uint64_t number = p->ack_first++;
    uint8_t *answer = get_answer(p, number);
    if (!(*answer & ACK_OWED)) continue;
    *answer &= (uint8_t)~ACK_OWED;
    *ret_number = number;
    *ret_code = (clv_code)(*answer - 1);
    return true;
  }
  return false;
}

/* Advances the window of received numbers to `number`, and clears the answers of the numbers that
 * enter it. */
static void advance_window(clv_rref_peer *p, uint64_t number) {
  uint64_t n_new = CLV_MIN(number - p->highest_number, (uint64_t)CLV_WIRE_REF_WINDOW);
  for (uint64_t i = 0; i < n_new; i++) *get_answer(p, number - i) = 0;
  p->highest_number = number;
}

bool clv_rref_is_new_message(clv_rrefs *t, clv_rref_peer *p, uint64_t number) {
  if (!number || has_left_window(p, number)) return false;
  if (number > p->highest_number) advance_window(p, number);
  bool has_answer = *get_answer(p, number);
  if (has_answer) owe_ack(t, p, number);
  return !has_answer;
}
