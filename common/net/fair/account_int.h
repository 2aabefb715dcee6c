/* SPDX-License-Identifier: Apache-2.0
 *
 * Accounts from within: the pools that a topmost account knows, so that memory which lies idle in
 * one can be given back when another needs it.
 */
#ifndef CLEAVE_ACCOUNT_INT_H
#define CLEAVE_ACCOUNT_INT_H

#include <pthread.h>

#include "common/net/fair/fair.h"

struct clv_account {
  clv_account_options o;
  int refs;
  uint64_t used[CLV_QUOTAS]; /* atomic */
  uint64_t peak[CLV_QUOTAS]; /* atomic: the most that was */
  pthread_mutex_t lock;      /* the list, before the lock of any pool */
  clv_pool *pools;           /* of a topmost account, all below it */
};

/* The account that has no room for `n` more, from `a` upwards; NULL: they are charged. */
clv_account *clv_account_try_charge(clv_account *a, clv_quota q, uint64_t n) CLV_USE_RESULT;
clv_code clv_account_fail_exceeded(clv_account *a, clv_quota q, uint64_t n, clv_err *err);
bool clv_account_is_below(const clv_account *a, const clv_account *above);
clv_account *clv_account_root(clv_account *a);

#endif
