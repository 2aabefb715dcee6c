/* SPDX-License-Identifier: Apache-2.0
 *
 * fair: who may use how much. *Accounts* hold the quotas of sessions, identities and a whole
 * worker; *pools* and *slabs* are memory that is charged to them; the *scheduler* shares the cores
 * among the nodes of a process. No network, and no clock of its own. What cannot be had is
 * CLV_EXHAUSTED, with a text for the peer that asked. All may be used by any thread, unless it
 * says otherwise; slabs by one at a time.
 */
#ifndef CLEAVE_FAIR_H
#define CLEAVE_FAIR_H

#include "common/base/tensor/tensor.h"

/* ---- accounts ----------------------------------------------------------------------------------
 *
 * What is in use of each quota, by a session, by all sessions of an identity, by a whole worker:
 * what is charged to one is charged to those above it as well. Any thread; a charge is an atomic
 * addition. */

typedef enum clv_quota {
  CLV_QUOTA_SESSIONS,
  CLV_QUOTA_BYTES,   /* of tensors, free ones in pools too, of modules and of records */
  CLV_QUOTA_TENSORS, /* free ones in pools too */
  CLV_QUOTA_CALLS,   /* of contexts: that wait or run */
  CLV_QUOTAS
} clv_quota;

typedef struct clv_account clv_account;

typedef struct clv_account_options {
  clv_account *above;          /* a reference is taken; NULL: none */
  const char *of;              /* whose it is, for messages; static, as the keys */
  uint64_t most[CLV_QUOTAS];   /* 0: no limit here */
  const char *key[CLV_QUOTAS]; /* of worker.yaml, that raises it; NULL: none does */
  bool shared;                 /* with strangers: messages do not say how much is in use, */
  bool tells_left;             /* but how much is left */
} clv_account_options;

clv_code clv_account_new(const clv_account_options *options, clv_account **ret,
                         clv_err *err) CLV_USE_RESULT;
clv_account *clv_account_ref(clv_account *a);
/* What is still charged to it goes from those above, with the last reference. NULL is allowed. */
void clv_account_unref(clv_account *a);
void clv_account_unrefp(clv_account **a); /* and sets it to NULL */

/* All or nothing. CLV_EXHAUSTED names the quota that is over, what is in use of it, and the key. */
clv_code clv_account_charge(clv_account *a, clv_quota q, uint64_t n, clv_err *err) CLV_USE_RESULT;
void clv_account_discharge(clv_account *a, clv_quota q, uint64_t n);
uint64_t clv_account_used(const clv_account *a, clv_quota q);
uint64_t clv_account_peak(const clv_account *a, clv_quota q);      /* the most that was in use */
uint64_t clv_account_own_limit(const clv_account *a, clv_quota q); /* its own limit, 0: none */
/* Another quota from now on; 0 is none. What is in use over it stays. Any thread. */
void clv_account_set_limit(clv_account *a, clv_quota q, uint64_t most);

/* ---- pools of tensors ------------------------------------------------------------------------ */

/* Tensors of one session, reused by size: after warm-up no memory is taken. Counts against a quota:
 * over it, tensors that are free are given back first, of all pools that share it. */
typedef struct clv_pool clv_pool;

/* With an account of its own. */
clv_code clv_pool_new(size_t max_bytes, size_t max_tensors, clv_pool **ret,
                      clv_err *err) CLV_USE_RESULT;
/* Charges `account`, which nothing else charges with bytes or tensors; a reference is taken. */
clv_code clv_pool_new_for_account(clv_account *account, clv_pool **ret,
                                  clv_err *err) CLV_USE_RESULT;
clv_pool *clv_pool_ref(clv_pool *pool);
/* The pool is freed when the last of its packets and the caller have let go of it. NULL is
 * allowed. */
void clv_pool_unref(clv_pool *pool);
/* A tensor with one reference for the caller; unref it as any other. CLV_EXHAUSTED over the
 * quota. */
clv_code clv_pool_tensor(clv_pool *pool, clv_dtype dtype, const clv_shape *shape, clv_tensor **ret,
                         clv_err *err) CLV_USE_RESULT;
size_t clv_pool_bytes(const clv_pool *pool); /* charged now: tensors, free ones too, and modules */
clv_account *clv_pool_account(const clv_pool *pool);

/* For main, before the first thread: freed memory up to the size of the transport's buffers stays
 * with the process. Otherwise each tensor's worth of them is unmapped, mapped and cleared anew. */
void clv_tune_malloc(void);

/* Make sure that n tensors of a size exist, so that none is made in the middle of a step. Their
 * memory is touched only when it is used. */
clv_code clv_pool_reserve(clv_pool *p, clv_dtype dtype, const clv_shape *shape, uint32_t n,
                          clv_err *err) CLV_USE_RESULT;

/* Memory of the session outside the pool, counted against the pool's quota. CLV_EXHAUSTED over
 * it. */
clv_code clv_pool_charge(clv_pool *p, size_t bytes, clv_err *err) CLV_USE_RESULT;
void clv_pool_discharge(clv_pool *p, size_t bytes);
void clv_pool_shrink(clv_pool *p); /* tensors that are free are not kept any more */

/* Records of one size that are ready for whoever keeps them with the pool: those of packets. NULL:
 * there is none. */
void *clv_pool_record_alloc(clv_pool *pool);
/* Takes the record, which clv_alloc gave. */
void clv_pool_record_recycle(clv_pool *pool, void *record);

/* ---- slabs of records ------------------------------------------------------------------------ */

/* Records of one size, taken in blocks, reused. Their memory counts against the session's quota. */
typedef struct clv_slab {
  size_t size;
  uint32_t used, most;
  uint32_t block;   /* records taken at once; 0: 64 */
  const char *what; /* for messages */
  void *idle, *blocks;
} clv_slab;

/* size: bytes; what: a plural, kept. */
clv_slab clv_slab_of(size_t size, uint32_t most, const char *what);
/* A record of zeros. CLV_EXHAUSTED over `most`, over the quota, or without memory. */
clv_code clv_slab_alloc(clv_pool *pool, clv_slab *s, void *ret_pp, clv_err *err) CLV_USE_RESULT;
void clv_slab_recycle(clv_slab *s, void *record); /* that was taken from it */
/* Its memory, records that are in use too; what is charged goes with the session. NULL is
 * allowed. */
void clv_slab_done(clv_slab *s);

/* ---- shares of the cores ------------------------------------------------------------------------
 *
 * The nodes of a process share its cores by weighted fair queueing: as many threads compute at once
 * as there are cores. Of the shares that wait, the one with the least virtual time is scheduled,
 * the time computed divided by the weight; tenants first, then the shares of a tenant, one for each
 * node. Time that a tenant or a share has been idle is not made up for. What a share is scheduled
 * for is a time slice: it ends when the share has nothing to do, or after slice_ns when another
 * share has had less. */

typedef struct clv_fair_scheduler clv_fair_scheduler;
typedef struct clv_share clv_share;

typedef struct clv_fair_scheduler_options {
  unsigned cores;
  size_t n_tenants;
  const uint64_t *weights; /* [n_tenants], copied */
  uint64_t slice_ns;       /* a time slice is not cut shorter for others */
  clv_clock clock;         /* of all slices; zeroed: the machine's */
} clv_fair_scheduler_options;

/* CLV_INVALID: no cores. */
clv_code clv_fair_scheduler_new(const clv_fair_scheduler_options *options, clv_fair_scheduler **ret,
                                clv_err *err) CLV_USE_RESULT;
/* One more tenant, whose number is the next; and another weight for one: what it computes from then
 * on counts by that. */
clv_code clv_fair_scheduler_add_tenant(clv_fair_scheduler *t, uint64_t weight, size_t *ret_tenant,
                                       clv_err *err) CLV_USE_RESULT;
void clv_fair_scheduler_set_weight(clv_fair_scheduler *t, size_t tenant, uint64_t weight);
void clv_fair_scheduler_free(clv_fair_scheduler *t); /* after its shares; NULL is allowed */

/* CLV_INVALID: there is no such tenant. */
clv_code clv_share_new(clv_fair_scheduler *t, size_t tenant, clv_share **ret,
                       clv_err *err) CLV_USE_RESULT;
void clv_share_free(clv_share *s); /* its thread must be done with it; NULL is allowed */

/* By one thread, with nothing of its own locked; without a share (NULL) nobody waits. BLOCKS until
 * it is scheduled, with so many threads (those of all cores at most), or it is stopped: false. To
 * be called before each piece of work; costs next to nothing while nobody else waits. */
bool clv_share_take(clv_share *s, unsigned threads);
/* By the same thread: whether clv_share_take with as many threads as last time would block now. */
bool clv_share_would_block(const clv_share *s);
void clv_share_yield(clv_share *s); /* ends its slice if another share is due; never waits */
/* nothing to do: to be called before waiting for anything else */
void clv_share_release(clv_share *s);

/* By the same thread: of the time that it slept with its share, so much was not spent on what it
 * slept for, and is taken off. At most what its slice was charged with. */
void clv_share_refund(clv_share *s, uint64_t ns);

/* From any thread. It is not scheduled any more, and does not wait for it. NULL is allowed. */
void clv_share_stop(clv_share *s);

typedef struct clv_share_counts {
  uint64_t waited_ns, computed_ns, slices; /* wall time less credits, with what is in progress */
} clv_share_counts;
void clv_share_count(clv_share *s, clv_share_counts *ret);

#endif
