/* SPDX-License-Identifier: Apache-2.0
 *
 * The inbox of the compute thread: packets received and work that has ended. Links post from rpc's
 * queue threads, programs and executors from their own threads.
 *
 * A packet for which no work would run can wait for another one: it is queued without a wake-up
 * while the thread is coalescing, that is, asleep for at most CLV_COALESCE_NS. After a coalescing
 * interval without a packet the thread sleeps until any packet wakes it. So no packet waits longer
 * than one interval.
 */
#ifndef CLEAVE_INBOX_INT_H
#define CLEAVE_INBOX_INT_H

#include <pthread.h>

#include "common/engine/context_types.h"

enum {
  CLV_COALESCE_NS = 10 * 1000 * 1000,
  CLV_COALESCE_PACKETS = 32, /* number of queued packets at which the thread is woken at once */
};

typedef struct clv_inbox {
  pthread_mutex_t lock;
  pthread_cond_t item_arrived;
  clv_packet *first, *last;
  /* list of ended work in the order in which it ended; taken before packets */
  clv_work *ended_work, **ended_work_end;
  uint32_t n_running; /* number of pieces of work that run, not counting copies */
  uint32_t n_copies;  /* number of copies that run */
  bool is_stopped, is_interrupted;
  bool is_sleeping; /* the compute thread waits for the condition variable */
  /* the compute thread sleeps for CLV_COALESCE_NS at most and changes nothing, so other threads may
   * read the engine */
  bool is_coalescing;
  bool has_urgent_item;  /* some queued packet or ended work must wake the compute thread */
  uint64_t queued_kinds; /* set of the frame kinds of the queued packets, one bit each */
  uint32_t n_queued;     /* number of packets queued since the inbox was last empty */
  /* time at which the compute thread must handle the queued packets; UINT64_MAX: none is due */
  uint64_t wake_at_ns;
  /* number of times that the compute thread slept and woke; read by any thread */
  uint64_t wakes;
} clv_inbox;

/* Item taken from the inbox: a packet, or ended work; both NULL: the inbox is empty. */
typedef struct clv_inbox_item {
  clv_packet *packet;
  clv_work *ended_work;
} clv_inbox_item;

void clv_inbox_init(clv_inbox *b);
void clv_inbox_clear(clv_inbox *b); /* frees the queued packets */

/* Post a packet, from any thread that keeps the node: call clv_inbox_begin_post, then
 * clv_inbox_end_post; the inbox is locked between the two calls. clv_inbox_begin_post returns true
 * if the compute thread need not be woken for the packet; the caller may then read the engine.
 * wait_from: the present time, by the compute thread's clock, if the packet shall wait for others;
 * 0: the packet wakes the compute thread. */
bool clv_inbox_begin_post(clv_inbox *b);
void clv_inbox_end_post(clv_inbox *b, clv_packet *p, uint64_t wait_from); /* takes the packet */
/* Posts a packet, from a thread that does not keep the node: the node may be freed as soon as it
 * has handled the packet. Takes the packet and wakes the compute thread. */
void clv_inbox_post_last_packet(clv_inbox *b, clv_packet *p);
/* Queues ended work, linked by its member `next`, and wakes the compute thread. */
void clv_inbox_post_ended_work(clv_inbox *b, clv_work *w);
void clv_inbox_stop(clv_inbox *b); /* stops the inbox for good */
/* interrupted true: clv_inbox_take and clv_inbox_wait return at once, until this is called with
 * false */
void clv_inbox_set_interrupted(clv_inbox *b, bool interrupted);

/* Takes the oldest ended work, else the oldest packet, else nothing. Only the compute thread calls
 * it. False: the inbox is stopped or interrupted, and nothing is taken. */
bool clv_inbox_take(clv_inbox *b, clv_inbox_item *ret);
bool clv_inbox_is_interrupted(clv_inbox *b);
/* Returns the newest packet, which stays queued. NULL: there is no packet, or ended work will be
 * taken first. */
const clv_packet *clv_inbox_newest_packet(clv_inbox *b);
/* BLOCKS until an urgent item is queued, the inbox is stopped or interrupted, a coalescing interval
 * with a packet is over, or the machine's monotonic clock, now at `now_ns`, is at `until_ns`. */
void clv_inbox_wait(clv_inbox *b, uint64_t now_ns, uint64_t until_ns);

/* clv_inbox_begin_work counts work that starts. clv_inbox_has_running_work returns true if work
 * other than copies runs (copies need no share of the cores). */
void clv_inbox_begin_work(clv_inbox *b, const clv_work *w);
bool clv_inbox_has_running_work(clv_inbox *b);
/* clv_inbox_wait_for_work BLOCKS until no work runs. clv_inbox_take_ended_work returns the oldest
 * ended work, even if the inbox is stopped; NULL: none. */
void clv_inbox_wait_for_work(clv_inbox *b);
clv_work *clv_inbox_take_ended_work(clv_inbox *b);

/* coalescing true: the compute thread waits outside the inbox (clv_node_options.wait), so packets
 * are coalesced until it calls this with false. */
void clv_inbox_set_coalescing(clv_inbox *b, bool is_coalescing);
/* Returns the time at which the compute thread must handle the queue; 0: now; UINT64_MAX: nothing
 * is due. */
uint64_t clv_inbox_due_ns(clv_inbox *b);

#endif
