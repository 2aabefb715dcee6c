/* SPDX-License-Identifier: Apache-2.0
 *
 * Internals of accounts. A root account lists the pools below it, so that unused tensors of one
 * pool can be freed when another pool needs the memory.
 */
#ifndef CLEAVE_ACCOUNT_INT_H
#define CLEAVE_ACCOUNT_INT_H

#include <pthread.h>

#include "common/net/fair/fair.h"

struct clv_account {
  clv_account_options o;
  int refs;
  uint64_t usage[CLV_N_QUOTAS];      /* usage of each quota; atomic */
  uint64_t peak_usage[CLV_N_QUOTAS]; /* highest usage of each quota so far; atomic */
  pthread_mutex_t lock;              /* guards `pools`; taken before the lock of any pool */
  /* list of all pools below the account, if it is a root account */
  clv_pool *pools;
};

/* Charges `n` to `a` and its parents. Returns the first account upwards whose limit is exceeded;
 * NULL: all are charged. */
clv_account *clv_account_try_charge(clv_account *a, clv_quota q, uint64_t n) CLV_USE_RESULT;
clv_code clv_account_fail_exceeded(clv_account *a, clv_quota q, uint64_t n, clv_err *err);
/* True if `a` is `ancestor` or below it in the tree of accounts. */
bool clv_account_is_within(const clv_account *a, const clv_account *ancestor);
clv_account *clv_account_root(clv_account *a);

#endif
