/* SPDX-License-Identifier: Apache-2.0
 *
 * The packets that wait for the one thread that handles them. Links post from rpc's queue threads,
 * the program from its own.
 */
#ifndef CLEAVE_INBOX_INT_H
#define CLEAVE_INBOX_INT_H

#include <pthread.h>

#include "common/link/link.h"

typedef struct clv_inbox {
  pthread_mutex_t lock;
  pthread_cond_t arrived;
  clv_packet *first, *last;
  bool stopped, kicked, sleeping;
} clv_inbox;

void clv_inbox_init(clv_inbox *b);
void clv_inbox_done(clv_inbox *b); /* frees what is queued */

/* From any thread. */
void clv_inbox_post(clv_inbox *b, clv_packet *p); /* takes it */
void clv_inbox_stop(clv_inbox *b);                /* for good */
void clv_inbox_kick(clv_inbox *b, bool kicked);   /* until it is kicked with false */

/* From the thread that handles the packets. The oldest, NULL: none. False: stopped or kicked, and
 * nothing is taken. */
bool clv_inbox_take(clv_inbox *b, clv_packet **ret);
bool clv_inbox_is_kicked(clv_inbox *b);
/* The machine's monotonic time at which it wants its thread: 0 now, UINT64_MAX not yet. */
uint64_t clv_inbox_due(clv_inbox *b);
/* BLOCKS until it is due or halted, or the machine's monotonic clock is at `until_ns`. */
void clv_inbox_wait(clv_inbox *b, uint64_t until_ns);

#endif
