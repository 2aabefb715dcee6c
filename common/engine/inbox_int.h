/* SPDX-License-Identifier: Apache-2.0
 *
 * The events that wait for the one thread that handles them: packets have come, work has ended.
 * Links post from rpc's queue threads, the program and who computes from their own.
 *
 * A packet for which nothing would run can wait for another one: it is queued without a wake-up as
 * long as the thread *rests*, which means that it comes back by itself after CLV_COALESCE_NS at the
 * latest. After a rest in which nothing came it sleeps, and whatever comes then wakes it: no packet
 * stays for longer than a rest.
 */
#ifndef CLEAVE_INBOX_INT_H
#define CLEAVE_INBOX_INT_H

#include <pthread.h>

#include "common/engine/context_types.h"

enum {
  CLV_COALESCE_NS = 10 * 1000 * 1000,
  CLV_COALESCE_PACKETS = 32, /* and with so many it is woken */
};

typedef struct clv_inbox {
  pthread_mutex_t lock;
  pthread_cond_t arrived;
  clv_packet *first, *last;
  clv_work *ended, **ended_end; /* in the order of their ends; taken before packets */
  uint32_t n_running;           /* started, and its end not posted; */
  uint32_t n_copies;            /* copies beside that */
  bool is_stopped, is_interrupted;
  bool is_sleeping;    /* its thread waits for a signal */
  bool is_coalescing;  /* what its thread works on stays as it is, and it comes back by itself */
  bool has_urgent;     /* of what is queued something cannot wait */
  uint64_t kinds;      /* of what is queued, a bit for each */
  uint32_t queued;     /* while it rests */
  uint64_t wake_at_ns; /* when it is to be back: UINT64_MAX, nothing waits for it */
  uint64_t wakes;      /* how often its thread has slept and woken; read by any thread */
} clv_inbox;

/* One of the two, or neither. */
typedef struct clv_inbox_item {
  clv_packet *packet;
  clv_work *ended;
} clv_inbox_item;

void clv_inbox_init(clv_inbox *b);
void clv_inbox_done(clv_inbox *b); /* frees what is queued */

/* From any thread. Between the two it is locked: if it rests, what its thread works on may be read.
 * wait_from: the time by the clock of its thread, 0 for a packet that cannot wait. */
bool clv_inbox_begin_post(clv_inbox *b);
void clv_inbox_end_post(clv_inbox *b, clv_packet *p, uint64_t wait_from); /* takes it */
/* Work has ended, which cannot wait. The record stands in the inbox by its own link. */
void clv_inbox_post_ended_work(clv_inbox *b, clv_work *w);
void clv_inbox_stop(clv_inbox *b);                         /* for good */
void clv_inbox_set_interrupted(clv_inbox *b, bool kicked); /* until it is kicked with false */

/* From the thread that handles the packets. The oldest end, else the oldest packet, or neither.
 * False: stopped or kicked, and nothing is taken. */
bool clv_inbox_take(clv_inbox *b, clv_inbox_item *ret);
bool clv_inbox_is_interrupted(clv_inbox *b);
/* It stays until it is taken. NULL: there is none, or an end goes before it. */
const clv_packet *clv_inbox_newest(clv_inbox *b);
/* BLOCKS until it has what cannot wait or is halted, a rest is over in which something came, or the
 * machine's monotonic clock, which is at `now_ns`, is at `until_ns`. */
void clv_inbox_wait(clv_inbox *b, uint64_t now_ns, uint64_t until_ns);

/* Work starts whose end will be posted, and whether there is some but copies, which take no share
 * of the cores. */
void clv_inbox_begin_work(clv_inbox *b, const clv_work *w);
bool clv_inbox_has_work_out(clv_inbox *b);
/* BLOCKS until there is none. The next end, halted or not; NULL: there is none. */
void clv_inbox_wait_for_work(clv_inbox *b);
clv_work *clv_inbox_take_ended_work(clv_inbox *b);

/* For a thread that waits elsewhere: it rests until it calls with false. */
void clv_inbox_set_coalescing(clv_inbox *b, bool resting);
/* When it is to be back, by the clock of its thread: 0 now, UINT64_MAX not yet. */
uint64_t clv_inbox_due_ns(clv_inbox *b);

#endif
