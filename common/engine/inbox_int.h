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
  CLV_COALESCE_PACKETS = 32, /* as many queued packets wake the thread at once */
};

typedef struct clv_inbox {
  pthread_mutex_t lock;
  pthread_cond_t arrived;
  clv_packet *first, *last;
  clv_work *ended, **ended_end; /* ended work in order of ends; taken before packets */
  uint32_t n_running;           /* work that runs, copies apart */
  uint32_t n_copies;            /* copies that run */
  bool is_stopped, is_interrupted;
  bool is_sleeping; /* the thread waits for a signal */
  /* the thread sleeps for CLV_COALESCE_NS at most and changes nothing, so others may read the
   * engine */
  bool is_coalescing;
  bool has_urgent;     /* some queued item must wake the thread */
  uint64_t kinds;      /* kinds of the queued packets, one bit each */
  uint32_t queued;     /* packets queued since the inbox was last empty */
  uint64_t wake_at_ns; /* time at which the thread must handle queued packets; UINT64_MAX: none */
  uint64_t wakes;      /* times that the thread slept and woke; read by any thread */
} clv_inbox;

/* A packet, ended work, or neither. */
typedef struct clv_inbox_item {
  clv_packet *packet;
  clv_work *ended;
} clv_inbox_item;

void clv_inbox_init(clv_inbox *b);
void clv_inbox_done(clv_inbox *b); /* frees what is queued */

/* Any thread. The inbox is locked between the two calls. begin_post returns true if the packet may
 * wait, in which case the engine may be read. wait_from: the time now, by the thread's clock; 0:
 * the packet cannot wait. */
bool clv_inbox_begin_post(clv_inbox *b);
void clv_inbox_end_post(clv_inbox *b, clv_packet *p, uint64_t wait_from); /* takes the packet */
/* Queues ended work by its own `next`, and wakes the thread. */
void clv_inbox_post_ended_work(clv_inbox *b, clv_work *w);
void clv_inbox_stop(clv_inbox *b);                         /* stops the inbox for good */
void clv_inbox_set_interrupted(clv_inbox *b, bool kicked); /* until called with false */

/* For the thread that handles packets. Takes the oldest ended work, else the oldest packet, or
 * neither. False: stopped or interrupted, nothing is taken. */
bool clv_inbox_take(clv_inbox *b, clv_inbox_item *ret);
bool clv_inbox_is_interrupted(clv_inbox *b);
/* The newest packet, which stays queued. NULL: no packet, or ended work is taken first. */
const clv_packet *clv_inbox_newest(clv_inbox *b);
/* BLOCKS until an urgent item is queued, the inbox is stopped or interrupted, a coalescing interval
 * with a packet is over, or the machine's monotonic clock, now at `now_ns`, is at `until_ns`. */
void clv_inbox_wait(clv_inbox *b, uint64_t now_ns, uint64_t until_ns);

/* begin_work counts work that starts. has_work_out returns true if work other than copies runs;
 * copies need no share of the cores. */
void clv_inbox_begin_work(clv_inbox *b, const clv_work *w);
bool clv_inbox_has_work_out(clv_inbox *b);
/* wait_for_work BLOCKS until no work runs. take_ended_work returns the next ended work, even if
 * stopped; NULL: none. */
void clv_inbox_wait_for_work(clv_inbox *b);
clv_work *clv_inbox_take_ended_work(clv_inbox *b);

/* For a thread that waits outside the inbox: packets are coalesced until it calls with false. */
void clv_inbox_set_coalescing(clv_inbox *b, bool resting);
/* Time at which the thread must handle the queue; 0: now; UINT64_MAX: not yet. */
uint64_t clv_inbox_due_ns(clv_inbox *b);

#endif
